//! Agents that restart, pods of other agents, agents that are killed at the worst moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use smolet::config::Config;
use smolet::model::{PodUid, container_hash};
use smolet::proto::runtime::v1 as cri;
use smolet::store::identity::Identity;

use crate::common::agent::endpoint;
use crate::common::fake::Fake;
use crate::world::{NODE, PATIENCE, World, full};

const APP: &str = "terminationGracePeriodSeconds: 7, containers: [{name: app, image: 'busybox:1'}]";
const UID: &str = "1b4e28ba-2fa1-41d2-883f-0016d3cca427";

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A pod of a kubelet, or of the smolet of `node`.
pub fn foreign(fake: &Fake, name: &str, uid: &str, node: Option<&str>) {
    let labels = map(&[
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", uid),
    ]);
    let metadata = cri::PodSandboxMetadata {
        name: name.into(),
        uid: uid.into(),
        namespace: "default".into(),
        attempt: 0,
    };
    let sandbox = cri::PodSandboxConfig {
        metadata: Some(metadata),
        labels: labels.clone(),
        annotations: node.map(|node| map(&[("smolet.io/node", node)])).unwrap_or_default(),
        ..Default::default()
    };
    let mut labels = labels;
    labels.insert("io.kubernetes.container.name".into(), "app".into());
    let container = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: "busybox:1".into(), ..Default::default() }),
        labels,
        annotations: map(&[
            ("io.kubernetes.container.hash", &format!("{:x}", container_hash("app", "busybox:1"))),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.pod.terminationGracePeriod", "5"),
        ]),
        ..Default::default()
    };
    fake.run_pod(sandbox, vec![container]);
}

#[test]
fn a_restarted_agent_adopts_its_pods_unchanged() {
    let world = World::new();
    world.run("web", APP);
    world.run(
        "other",
        &format!("initContainers: [{{name: side, image: 'busybox:1', restartPolicy: Always}}], {APP}"),
    );
    let running = world.running();
    for ending in [World::stop, World::kill] {
        ending(&world);
        assert_eq!(world.running(), running, "containers outlive the agent");
        world.start();
        world.pass(20);
        assert_eq!(world.actions(), [""; 0]);
        assert_eq!((world.phase("web"), world.phase("other")), ("Running".into(), "Running".into()));
        assert_eq!(world.status_of("web", "app").unwrap().restart_count, 0);
    }
}

#[test]
fn a_drain_ends_pods_that_were_taken_over_from_a_kubelet_too() {
    let world = World::without_agent();
    let old = Fake::start(world.clock.clone());
    old.add_image("busybox:1");
    foreign(&old, "kubelets", UID, None);
    foreign(&old, "strange", "1b4e28ba-2fa1-41d2-883f-0016d3cca428", None);
    let mut identity = Identity::open(&world.path("root"), Some(NODE), NODE).unwrap();
    assert!(identity.adopt(&PodUid::from(UID)));
    identity.pending().write().unwrap();
    drop(identity);
    world.put("web", APP);
    world.spawn(Config { drain_runtime: Some(endpoint(&old)), ..world.config() }, false);
    let begun = Instant::now();
    while world.fake.count("StartContainer") == 0 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", old.calls());
        world.clock.advance(Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(5));
    }
    let state = old.state();
    assert!(state.sandbox("kubelets").is_none(), "no second one of it may start");
    assert!(state.sandbox("strange").is_some(), "nobody has said that it is this node's");
}

#[test]
fn a_manifest_removed_while_no_agent_ran_terminates_its_pod_with_its_grace_period() {
    let world = World::new();
    world.run("web", APP);
    world.run("other", APP);
    let (logs, pod_dir) = (world.logs("web"), world.pod_dir("web"));
    world.kill();
    world.remove("web");
    world.start();
    world.until("its end", |world| world.fake.state().sandboxes.len() == 1);
    assert_eq!(world.actions()[0], "StopContainer web/app#0 grace=7");
    world.until("no trace of it", |world| world.pods().len() == 1);
    assert!(!logs.exists() && !pod_dir.exists());
    assert_eq!(world.running(), ["other/app#0"]);
}

#[test]
fn a_manifest_changed_while_no_agent_ran_replaces_its_pod_in_order() {
    let world = World::new();
    world.run("web", APP);
    let old = world.uid("web");
    world.kill();
    world.put("web", &format!("hostname: other, {APP}"));
    world.start();
    world.until("the new pod", |world| {
        !["", &old].contains(&&*world.uid("web")) && world.phase("web") == "Running"
    });
    let actions = world.actions();
    assert_eq!(actions[0], "StopContainer web/app#0 grace=7");
    let at = |call: &str| actions.iter().position(|action| action.starts_with(call)).unwrap();
    assert!(at("StopPodSandbox") < at("RunPodSandbox"), "{actions:?}");
    world.until("one pod", |world| world.fake.state().sandboxes.len() == 1);
}

#[test]
fn a_pod_that_must_not_be_replaced_yet_blocks_its_name() {
    let world = World::new();
    world.run("web", APP);
    let old = world.uid("web");
    world.kill();
    world.put("web", &format!("hostname: other, {APP}"));
    // While this one cannot be read, nothing is terminated.
    world.put_text("broken", "kind: [\n");
    world.start();
    world.pass(20);
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.running(), ["web/app#0"]);
    world.remove("broken");
    world.until("the new pod", |world| {
        !["", &old].contains(&&*world.uid("web")) && world.phase("web") == "Running"
    });
    world.until("one pod", |world| world.fake.state().sandboxes.len() == 1);
}

#[test]
fn an_image_changed_while_no_agent_ran_restarts_that_container_alone() {
    let world = World::new();
    world.run("web", APP);
    world.kill();
    world.put("web", &APP.replace("busybox:1", "busybox:2"));
    world.start();
    world.until("the new image", |world| world.running() == ["web/app#1"]);
    assert_eq!(
        world.actions(),
        ["StopContainer web/app#0 grace=7", "CreateContainer web/app#1", "StartContainer web/app#1"]
    );
}

#[test]
fn pods_of_other_agents_are_never_changed() {
    let world = World::without_agent();
    foreign(&world.fake, "theirs", "uid-1", Some("other-node"));
    foreign(&world.fake, "kubelets", "uid-2", None);
    // The same name as a pod of ours, and another UID.
    foreign(&world.fake, &full("lone"), "uid-3", None);
    // A copy of our annotation; with this UID the directory of all pods would be removed.
    foreign(&world.fake, "odd", "..", Some(NODE));
    world.start();
    world.run("web", APP);
    world.remove("web");
    world.until("its end", |world| world.count("RemovePodSandbox web#0") == 1);
    world.kill();
    world.start();
    world.pass(20);
    let touched = |name: &str| world.fake.calls().iter().any(|call| call.contains(name));
    assert!(
        !touched("theirs") && !touched("kubelets") && !touched("lone") && !touched("odd"),
        "{:?}",
        world.fake.calls()
    );
    assert_eq!(world.running().len(), 4);
    assert!(world.pods().is_empty());
}

#[test]
fn a_running_pod_with_the_desired_uid_is_adopted_and_recorded() {
    let world = World::without_agent();
    foreign(&world.fake, &full("web"), UID, None);
    let manifest =
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web, uid: {UID}}}\nspec: {{{APP}}}\n");
    world.put_text("web", &manifest);
    world.start();
    world.pass(5);
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.phase("web"), "Running");
    let identity = || std::fs::read(world.path("root").join("identity.cbor")).unwrap();
    let remembered = || identity().windows(UID.len()).any(|bytes| bytes == UID.as_bytes());
    world.wait("the record", |_| remembered());
    world.kill();
    world.remove("web");
    world.start();
    world.until("its end", |world| world.fake.state().sandboxes.is_empty());
    // From the pod's labels, because its manifest is gone.
    assert_eq!(world.actions()[0], "StopContainer web/app#0 grace=5");
    world.wait("the record's end", |_| !remembered());
}

#[test]
fn an_agent_killed_between_create_and_start_leaves_no_duplicate() {
    let world = World::new();
    world.fake.hang("StartContainer");
    world.put("web", APP);
    world.until("the call", |world| world.count("StartContainer web/app#0") == 1);
    world.kill();
    world.fake.heal("StartContainer");
    world.start();
    world.until("the pod", |world| world.phase("web") == "Running");
    world.pass(5);
    assert_eq!(world.running().len(), 1);
    assert_eq!(world.count("RunPodSandbox"), 0);
    // The runtime may still execute the interrupted call.
    assert!(world.count("StartContainer") <= 1, "{:?}", world.actions());
}

#[test]
fn an_agent_killed_during_any_call_leaves_no_duplicate() {
    for method in ["RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer"] {
        for done in [false, true] {
            let world = World::new();
            if done {
                world.fake.lose_answer(method, 1);
            } else {
                world.fake.hang(method);
            }
            world.put("web", APP);
            for _ in 0..20 {
                world.silent(true);
                world.step();
                if world.count(method) > 0 || world.fake.count(method) > 0 {
                    break;
                }
            }
            assert!(world.fake.count(method) > 0, "{method}");
            world.kill();
            world.fake.heal(method);
            world.silent(false);
            world.start();
            world.until("the pod", |world| world.phase("web") == "Running");
            world.pass(3);
            assert_eq!(world.running().len(), 1, "{method}");
            let ready = world.fake.state().sandboxes.values().filter(|sandbox| sandbox.ready).count();
            assert_eq!(ready, 1, "{method}");
        }
    }
}

#[test]
fn an_agent_killed_during_a_termination_continues_it() {
    for method in ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"] {
        let world = World::new();
        world.run("web", APP);
        world.fake.hang(method);
        world.remove("web");
        world.until("the call", |world| world.fake.count(method) > 0);
        world.kill();
        world.fake.heal(method);
        world.start();
        world.until("nothing left", |world| world.fake.state().sandboxes.is_empty());
        assert!(world.fake.state().containers.is_empty(), "{method}");
        assert_eq!(world.count("RunPodSandbox"), 0, "{method}");
    }
}

#[test]
fn the_files_of_a_desired_pod_are_kept_when_the_runtime_lost_it_while_no_agent_ran() {
    let world = World::new();
    world.run("web", APP);
    let kept = world.pod_dir("web").join("kept");
    std::fs::write(&kept, "data").unwrap();
    world.kill();
    world.fake.forget_sandbox("web-gw");
    world.start();
    world.until("the pod", |world| world.phase("web") == "Running");
    world.pass(3);
    assert_eq!(std::fs::read_to_string(&kept).ok().as_deref(), Some("data"), "not a leftover: it is desired");
}

#[test]
fn after_a_reboot_every_pod_gets_a_new_sandbox() {
    let world = World::new();
    world.run("web", APP);
    world.kill();
    world.fake.reboot();
    world.start();
    // Not its phase, which is Running too for a pod whose exited containers start again.
    world.until("the pod", |world| world.running() == ["web/app#1"]);
    assert_eq!(world.sandbox("web", |sandbox| sandbox.attempt()), 1);
    assert_eq!(world.count("RunPodSandbox"), 1);
}
