//! `smolet debug`: an ephemeral container in an existing pod.

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::EphemeralContainer;
use smolet::limits::{DEBUGGED_PODS_BYTES_MAX, DEBUGGERS_PER_POD_MAX};
use smolet::proto::runtime::v1::NamespaceMode;

use crate::checkpoint::{checkpoint, pass_until_saved, power_cut};
use crate::common::fake::Program;
use crate::common::runner;
use crate::world::{World, full};

const SECOND: Duration = Duration::from_secs(1);
const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";

/// The status code and the response.
fn debug(world: &World, query: &str, words: &[&str]) -> (u16, String) {
    let body: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    world.post(&format!("/debug?{query}"), &body)
}

/// Adds a container of that name to the pod and waits until it was started.
fn added(world: &World, pod: &str, name: &str) {
    let start = format!("StartContainer {pod}/{name}#0");
    let before = world.count(&start);
    let (code, said) = debug(world, &format!("pod={pod}&container={name}"), &["busybox:1", "sh"]);
    assert_eq!(code, 200, "{said}");
    world.until("its start", |world| world.count(&start) == before + 1);
}

/// All running containers, by name.
fn running(world: &World) -> Vec<String> {
    let mut running = world.running();
    running.sort();
    running
}

fn debuggers(world: &World, pod: &str) -> Vec<EphemeralContainer> {
    world.pod(pod).and_then(|pod| pod.spec?.ephemeral_containers).unwrap_or_default()
}

fn names(world: &World, pod: &str) -> Vec<String> {
    debuggers(world, pod).into_iter().map(|container| container.name).collect()
}

#[test]
fn a_container_is_added_to_a_pod_that_runs_and_starts_once() {
    let world = World::new();
    world.run("web", APP);
    world.fake.program("shell", Program::exits(3, 5 * SECOND));
    world.fake.clear_calls();
    let query = "pod=web&container=shell&target=app&stdin=1&tty=1&pull=Never";
    let (code, said) = debug(&world, query, &["busybox:2", "sh", "-c", "ä b"]);
    let targets = "note Targeting container \"app\". If you don't see processes from this container it may be because \
        the container runtime doesn't support this feature.\n";
    assert_eq!((code, said), (200, format!("pod default web-gw\ncontainer shell\n{targets}")));
    world.until("it runs", |world| world.running() == ["web/app#0", "web/shell#0"]);
    assert_eq!(world.actions(), ["CreateContainer web/shell#0", "StartContainer web/shell#0"]);
    {
        let state = world.fake.state();
        let app = state.container("web-gw/app").unwrap().id.clone();
        let config = &state.container("web-gw/shell").unwrap().config;
        assert_eq!((config.stdin, config.tty, config.stdin_once), (true, true, false));
        assert_eq!(config.command, ["sh", "-c", "ä b"]);
        let security = config.linux.as_ref().unwrap().security_context.as_ref().unwrap();
        assert_eq!(security.capabilities.as_ref().unwrap().add_capabilities, ["SYS_PTRACE"]);
        let namespaces = security.namespace_options.as_ref().unwrap();
        assert_eq!((namespaces.pid(), &*namespaces.target_id), (NamespaceMode::Target, &*app));
    }
    let listed = debuggers(&world, "web");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].image_pull_policy.as_deref(), Some("Never"));
    assert!(world.describe("web").contains("Ephemeral Containers:"), "{}", world.describe("web"));
    world.until("its end", |world| world.running() == ["web/app#0"]);
    world.pass(30);
    let end = world.status_of("web", "shell").and_then(|status| status.state?.terminated);
    assert_eq!(end.map(|end| end.exit_code), Some(3));
    assert_eq!((world.count("StartContainer"), world.phase("web")), (1, "Running".to_owned()));

    // The pod's termination includes it.
    added(&world, "web", "other");
    world.fake.clear_calls();
    world.remove("web");
    world.until("nothing left", |world| world.pods().is_empty());
    assert_eq!((world.count("StopContainer web/other#0"), world.count("RemoveContainer web/shell")), (1, 1));
}

#[test]
fn a_container_without_a_name_gets_one() {
    let world = World::new();
    world.run("web", APP);
    for count in 1..=3 {
        let (code, said) = debug(&world, "pod=web", &["busybox:1"]);
        let name = said.lines().find_map(|line| line.strip_prefix("container ")).unwrap().to_owned();
        let note = format!("note Defaulting debug container name to {name}.\n");
        assert_eq!((code, &*said), (200, &*format!("pod default web-gw\ncontainer {name}\n{note}")));
        assert!(name.starts_with("debugger-") && name.len() == 14, "{name}");
        assert_eq!(names(&world, "web").iter().filter(|other| **other == name).count(), 1);
        world.until("it runs", |world| world.running().len() == 1 + count);
    }
}

#[test]
fn a_pod_that_waits_for_its_init_container_can_be_debugged() {
    let world = World::new();
    world.fake.state().missing.insert("nowhere:1".to_owned());
    let init = "initContainers: [{name: first, image: 'busybox:1'}]";
    world.put("web", &format!("{init}, containers: [{{name: app, image: 'nowhere:1'}}]"));
    world.until("the first", |world| world.running() == ["web/first#0"]);
    added(&world, "web", "shell");
    assert_eq!(world.running(), ["web/first#0", "web/shell#0"]);
    // A missing image delays no other container, and is reported.
    assert_eq!(debug(&world, "pod=web&container=lost", &["nowhere:1"]).0, 200);
    world.until("its reason", |world| !world.waiting("web", "lost").1.is_empty());
    assert!(world.waiting("web", "lost").0.contains("Image"), "{:?}", world.waiting("web", "lost"));
    world.fake.exit("web-gw/first", 0, "Completed", "");
    world.until("the app's turn", |world| world.waiting("web", "app").0.contains("Image"));
    // Its image exists now: it waits no longer than the others.
    world.fake.add_image("nowhere:1");
    world.fake.state().missing.clear();
    world.until("all run", |world| running(world) == ["web/app#0", "web/lost#0", "web/shell#0"]);
}

#[test]
fn it_is_saved_before_it_starts() {
    let world = World::new();
    world.run("web", APP);
    pass_until_saved(&world);
    world.fake.hang("CreateContainer");
    let begun = world.seconds();
    assert_eq!(debug(&world, "pod=web&container=shell", &["busybox:1"]).0, 200);
    world.wait("the call", |world| world.fake.count("CreateContainer") == 2);
    assert_eq!(world.seconds(), begun, "only the disk was waited for");
    let kept = checkpoint(&world).unwrap();
    assert_eq!(kept.pods[0].debuggers.as_ref().unwrap()[0].name, "shell");
    world.fake.heal("CreateContainer");
    world.until("it runs", |world| world.running() == ["web/app#0", "web/shell#0"]);
}

#[test]
fn a_full_disk_does_not_prevent_its_start() {
    let world = World::new();
    world.run("web", APP);
    pass_until_saved(&world);
    std::fs::create_dir(world.path("root/checkpoint.new")).unwrap();
    added(&world, "web", "shell");
    assert_eq!(checkpoint(&world).unwrap().pods[0].debuggers, None, "the write failed");
}

#[test]
fn it_outlives_the_agent_but_not_the_boot() {
    for ending in [World::stop, World::kill] {
        let world = World::new();
        world.run("web", APP);
        added(&world, "web", "shell");
        let before = debuggers(&world, "web");
        ending(&world);
        world.start();
        world.pass(3);
        assert_eq!((world.actions(), debuggers(&world, "web")), (Vec::new(), before));
        let runs = world.status_of("web", "shell").and_then(|status| status.state?.running);
        assert!(runs.is_some(), "{:?}", world.status_of("web", "shell"));
        // It is still there after a kill of another agent, and an exit without an agent is an exit.
        ending(&world);
        world.fake.exit("web-gw/shell", 0, "Completed", "");
        world.start();
        world.pass(15);
        assert_eq!((world.actions(), names(&world, "web")), (Vec::new(), vec!["shell".to_owned()]));
        ending(&world);
        power_cut(&world);
        world.start();
        world.until("it runs", |world| world.running() == ["web/app#1"]);
        world.pass(15);
        assert_eq!((world.running(), debuggers(&world, "web")), (vec!["web/app#1".to_owned()], Vec::new()));
    }
}

#[test]
fn a_change_in_place_keeps_it_and_a_new_pod_has_none() {
    let world = World::new();
    world.run("web", APP);
    added(&world, "web", "shell");
    world.put("web", &APP.replace("busybox:1", "busybox:2"));
    world.until("the new image", |world| running(world) == ["web/app#1", "web/shell#0"]);
    assert_eq!(names(&world, "web"), ["shell"]);
    world.put("web", &format!("hostname: other, {APP}"));
    world.until("the new pod", |world| world.running() == ["web/app#0"]);
    world.pass(5);
    assert_eq!((names(&world, "web"), world.running()), (Vec::new(), vec!["web/app#0".to_owned()]));

    // The same manifest, removed for a moment: a new pod of the same UID.
    added(&world, "web", "shell");
    let (manifest, away) = (world.path("manifests/web.yaml"), world.path("web.yaml"));
    world.fake.program("app", Program::STUBBORN);
    std::fs::rename(&manifest, &away).unwrap();
    world.until("its end begins", |world| world.count("StopContainer web/shell#0") == 2);
    std::fs::rename(&away, &manifest).unwrap();
    world.until("it begins afresh", |world| {
        world.count("RunPodSandbox") == 3 && world.phase("web") == "Running"
    });
    world.pass(5);
    assert_eq!((names(&world, "web"), world.running()), (Vec::new(), vec!["web/app#0".to_owned()]));
}

#[test]
fn a_changed_object_keeps_it() {
    let world = World::new();
    let env = "env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a, optional: true}}}]";
    world.run("web", &format!("containers: [{{name: app, image: 'busybox:1', {env}}}]"));
    added(&world, "web", "shell");
    world.put_text("settings", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n");
    world.pass(5);
    assert_eq!((names(&world, "web"), world.running().len()), (vec!["shell".to_owned()], 2));
}

#[test]
fn the_oldest_exited_one_is_replaced_completely() {
    let world = World::new();
    world.run("web", APP);
    for index in 0..DEBUGGERS_PER_POD_MAX {
        added(&world, "web", &format!("d{index}"));
    }
    let (code, said) = debug(&world, "pod=web&container=more", &["busybox:1"]);
    assert!(code == 404 && said.contains("gets no further container: a pod may have 8"), "{code} {said}");
    for index in [4, 2] {
        world.fake.exit(&format!("web-gw/d{index}"), 0, "Completed", "");
    }
    let has_ended = |world: &World, name: &str| {
        world
            .status_of("web", name)
            .is_some_and(|status| status.state.is_some_and(|of| of.terminated.is_some()))
    };
    world.until("their ends", |world| has_ended(world, "d2") && has_ended(world, "d4"));
    world.fake.clear_calls();
    added(&world, "web", "more");
    world.until("the removal", |world| world.count("RemoveContainer web/d2#0") == 1);
    world.pass(3);
    assert_eq!(
        world.actions(),
        ["CreateContainer web/more#0", "StartContainer web/more#0", "RemoveContainer web/d2#0"]
    );
    assert_eq!(names(&world, "web"), ["d0", "d1", "d3", "d4", "d5", "d6", "d7", "more"]);
    assert!(world.status_of("web", "d2").is_none());
}

#[test]
fn the_command_waits_for_its_container_and_shows_the_log_when_it_cannot_attach() {
    let world = World::new();
    world.run("web", APP);
    world.fake.program("quick", Program::exits(0, Duration::ZERO));
    for (name, input, code, said) in [
        // It adds a container and does not wait.
        ("quiet", "-q", 0, ""),
        // It has exited when it is polled.
        ("quick", "-i", 0, ""),
        // It runs, and no server listens at the runtime's address.
        ("stays", "-i", 0, "warning: couldn't attach to pod/web-gw, falling back to its logs: "),
        ("quick", "-i", 1, "smolet: spec.ephemeralContainers[3].name: Duplicate value: \"quick\""),
    ] {
        let mut command = runner::smolet();
        command.args(["debug", "web", "--image", "busybox:1", "-c", name, input, "--socket"]);
        command.arg(world.path("sock")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("smolet can be run");
        world.wait("its end", |_| child.try_wait().expect("our own child").is_some());
        let output = child.wait_with_output().expect("our own child");
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{name}: {why}");
        assert_eq!(why.is_empty(), said.is_empty(), "{name}: {why}");
        assert!(why.lines().any(|line| line.starts_with(said)) || said.is_empty(), "{name}: {why}");
    }
    assert_eq!(names(&world, "web"), ["quiet", "quick", "stays"]);
}

#[test]
fn invalid_requests_are_refused_with_the_reason() {
    let world = World::new();
    // It terminates slowly.
    world.fake.program("app", Program::STUBBORN);
    world.run(
        "web",
        &format!("initContainers: [{{name: side, image: 'busybox:1', restartPolicy: Always}}], {APP}"),
    );
    world.fake.program("ends", Program::exits(0, SECOND));
    world.put("done", "restartPolicy: Never, containers: [{name: ends, image: 'busybox:1'}]");
    world.until("done has ended", |world| world.phase("done") == "Succeeded");
    let long = "x".repeat(DEBUGGED_PODS_BYTES_MAX);
    world.run("large", &format!("containers: [{{name: app, image: 'busybox:1', args: ['{long}']}}]"));
    added(&world, "web", "shell");
    world.fake.clear_calls();
    for (query, image, code, why) in [
        ("pod=nobody", "busybox:1", 404, "there is no pod nobody"),
        ("container=c", "busybox:1", 400, "which pod?"),
        (
            "pod=done",
            "busybox:1",
            404,
            "is completed: nothing can be added to it; current phase is Succeeded",
        ),
        (
            "pod=web&container=app",
            "busybox:1",
            404,
            "spec.ephemeralContainers[1].name: Duplicate value: \"app\"",
        ),
        ("pod=web&container=side", "busybox:1", 404, "name: Duplicate value: \"side\""),
        ("pod=web&container=shell", "busybox:1", 404, "name: Duplicate value: \"shell\""),
        (
            "pod=web&container=A",
            "busybox:1",
            404,
            "name: Invalid value: \"A\": must be at most 63 lower case letters",
        ),
        (
            "pod=web&target=nope",
            "busybox:1",
            404,
            "spec.ephemeralContainers[1].targetContainerName: Invalid value: \"nope\": names no container or init container",
        ),
        (
            "pod=web&target=shell",
            "busybox:1",
            404,
            "targetContainerName: Invalid value: \"shell\": names no container",
        ),
        (
            "pod=web&pull=Sometimes",
            "busybox:1",
            404,
            "imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\"",
        ),
        ("pod=web", "Bad Image", 404, "invalid image name \"Bad Image\""),
        ("pod=large", "busybox:1", 404, "pods that are debugged may take 262144 bytes together; "),
    ] {
        let (got, said) = debug(&world, query, &[image]);
        assert!(got == code && said.contains(why), "{query}: {got} {said}");
    }
    world.pass(2);
    assert_eq!((world.actions(), names(&world, "web")), (Vec::new(), vec!["shell".to_owned()]));
    assert_eq!(world.ask("/debug?pod=web"), (405, "only POST\n".to_owned()));
    // A terminating pod gets no container either.
    world.remove("web");
    world.until("its end begins", |world| world.count("StopContainer web/app#0") == 1);
    let (code, said) = debug(&world, "pod=web", &["busybox:1"]);
    assert!(code == 404 && said.contains("is not kept running"), "{code} {said}");
    assert!(said.contains(&full("web")));
}
