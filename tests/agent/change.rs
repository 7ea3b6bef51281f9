//! Manifests that change, are removed, restored, become invalid or conflict.

use std::time::Duration;

use smolet::model::Seconds;
use smolet::node::Stop;
use smolet::shutdown::{ShutdownGroup, ShutdownGroups};

use crate::common::fake::Program;
use crate::world::{World, full, manifest, names};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const PAIR: &str = "terminationGracePeriodSeconds: 8, \
                    containers: [{name: app, image: 'busybox:1'}, {name: more, image: 'busybox:1'}]";

#[test]
fn a_changed_image_restarts_that_container_alone() {
    let world = World::new();
    world.run("web", PAIR);
    let uid = world.uid("web");
    world.fake.clear_calls();
    world.put("web", &PAIR.replacen("busybox:1", "busybox:2", 1));
    world.until("the new image", |world| world.running().contains(&"web/app#1".to_owned()));
    world.pass(3);
    assert_eq!(
        world.actions(),
        ["StopContainer web/app#0 grace=8", "CreateContainer web/app#1", "StartContainer web/app#1"]
    );
    assert_eq!(world.uid("web"), uid);
    assert_eq!(world.sandbox("web", |sandbox| sandbox.attempt()), 0);
    let status = world.status_of("web", "app").unwrap();
    assert_eq!((status.restart_count, status.image.contains("busybox:2")), (1, true));
    assert_eq!(world.status_of("web", "more").unwrap().restart_count, 0);
}

#[test]
fn an_image_changed_while_a_container_starts_waits_for_that_start() {
    let world = World::new();
    world.fake.delay("StartContainer", std::time::Duration::from_secs(5));
    world.put("web", "containers: [{name: app, image: 'busybox:1'}]");
    world.until("the call", |world| world.count("StartContainer web/app#0") == 1);
    world.fake.clear_calls();
    world.put("web", "containers: [{name: app, image: 'busybox:2'}]");
    world.until("the new one", |world| world.running() == ["web/app#1"]);
    // An abandoned start may still take effect: it is waited for, then stopped as any other.
    assert_eq!(
        world.actions(),
        ["StopContainer web/app#0 grace=30", "CreateContainer web/app#1", "StartContainer web/app#1"]
    );
}

#[test]
fn a_removed_pod_waits_for_the_start_of_its_container() {
    type End = fn(&World);
    let ends: [End; 2] = [|world| world.remove("web"), |world| world.tell(Stop::Prepare(None))];
    for end in ends {
        let world = World::without_agent();
        let mut config = world.config();
        let group = ShutdownGroup { priority: 0, grace: Seconds(30) };
        config.shutdown = ShutdownGroups::of_priorities(vec![group]).unwrap();
        world.start_with(config);
        world.fake.delay("StartContainer", Duration::from_secs(5));
        world.put("web", PAIR);
        world.until("the call", |world| world.count("StartContainer web/app#0") == 1);
        world.fake.clear_calls();
        end(&world);
        world.until("its end", |world| world.count("StopPodSandbox") > 0);
        // The runtime has started it, and nothing else was created meanwhile.
        let actions = world.actions();
        assert_eq!(actions[0], "StopContainer web/app#0 grace=8", "{actions:?}");
        let state = world.fake.state();
        assert!(state.container("app").is_none_or(|app| app.reason != "StartError"));
    }
}

#[test]
fn operations_of_a_pod_do_not_delay_its_termination() {
    let world = World::new();
    // A hook, and a container that is being stopped for another image.
    world.fake.hang("ExecSync");
    world.put(
        "hook",
        "terminationGracePeriodSeconds: 5, containers: [{name: app, image: 'busybox:1', \
         lifecycle: {postStart: {exec: {command: [sleep]}}}}]",
    );
    world.until("the hook", |world| world.fake.count("ExecSync") == 1);
    world.fake.program("slow", Program::STUBBORN);
    let slow = "terminationGracePeriodSeconds: 60, containers: [{name: slow, image: 'busybox:1'}]";
    world.run("slow", slow);
    world.put("slow", &slow.replace("busybox:1", "busybox:2"));
    world.until("the stop", |world| world.count("StopContainer slow/slow#0 grace=60") == 1);
    world.fake.clear_calls();
    world.remove("hook");
    world.remove("slow");
    world.until("their end", |world| world.pod("hook").is_none() && world.pod("slow").is_none());
    let actions = world.actions();
    for (stop, sandbox) in [
        ("StopContainer hook/app#0 grace=5", "StopPodSandbox hook#0"),
        ("StopContainer slow/slow#0 grace=60", "StopPodSandbox slow#0"),
    ] {
        let at = |call: &str| actions.iter().position(|action| action == call).unwrap();
        assert!(at(stop) < at(sandbox), "{actions:?}");
    }
}

#[test]
fn any_other_change_terminates_the_old_pod_before_the_new_one_starts() {
    let init = "initContainers: [{name: one, image: 'busybox:1'}], ";
    let pod = format!("{init}{PAIR}");
    for changed in [pod.replacen("busybox:1", "busybox:2", 1), format!("{init}hostname: other, {PAIR}")] {
        let world = World::without_agent();
        world.fake.program("one", Program::exits(0, Duration::from_secs(1)));
        // The old pod takes its grace period: the new one has to wait.
        world.fake.program("app", Program::STUBBORN);
        world.start();
        world.run("web", &pod);
        let old = world.uid("web");
        world.fake.clear_calls();
        world.put("web", &changed);
        world.until("the stop", |world| world.count("StopContainer web/app#0 grace=8") == 1);
        world.pass(4);
        assert_eq!(world.count("RunPodSandbox"), 0, "the old one still runs");
        assert_eq!(world.uid("web"), old);
        world.until("the new pod", |world| {
            !["", &old].contains(&&*world.uid("web")) && world.phase("web") == "Running"
        });
        let actions = world.actions();
        let at = |call: &str| actions.iter().position(|action| action.starts_with(call)).unwrap();
        assert!(at("RemovePodSandbox web#0") < at("RunPodSandbox web#0"), "{actions:?}");
        assert!(at("RemoveContainer web/app#0") < at("RunPodSandbox web#0"), "{actions:?}");
        assert_eq!(world.running(), ["web/app#0", "web/more#0"]);
        assert_eq!(world.pods().len(), 1);
    }
}

#[test]
fn a_removed_manifest_terminates_its_pod_and_removes_everything() {
    let world = World::new();
    world.run("web", PAIR);
    world.run("other", APP);
    let (logs, pod_dir) = (world.logs("web"), world.pod_dir("web"));
    assert!(logs.is_dir() && pod_dir.is_dir());
    world.fake.clear_calls();
    world.remove("web");
    world.until("its end", |world| world.pod("web").is_none());
    let mut stops = world.actions();
    stops.truncate(2);
    stops.sort();
    assert_eq!(stops, ["StopContainer web/app#0 grace=8", "StopContainer web/more#0 grace=8"]);
    assert_eq!(world.count("StopPodSandbox web#0"), 2, "once for the termination, once before the removal");
    assert_eq!((world.count("RemoveContainer web/"), world.count("RemovePodSandbox web#0")), (2, 1));
    assert!(!logs.exists() && !pod_dir.exists());
    assert_eq!(names(&world.path("logs")).len(), 1);
    assert_eq!(world.running(), ["other/app#0"]);
    assert_eq!(world.fake.state().sandboxes.len(), 1);
}

#[test]
fn a_manifest_restored_during_the_termination_starts_a_new_pod_afterwards() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, Duration::from_secs(1)));
    world.fake.program("more", Program::STUBBORN);
    world.put("web", PAIR);
    world.start();
    // Deep in the back-off, which is reset.
    world.until("the fourth start", |world| world.count("StartContainer web/app") == 4);
    world.pass(2);
    world.fake.clear_calls();
    world.remove("web");
    world.until("the stop", |world| world.count("StopContainer web/more#0 grace=8") == 1);
    assert!(world.pod("web").unwrap().metadata.deletion_timestamp.is_some());
    world.put("web", PAIR);
    world.pass(3);
    assert_eq!(world.count("RunPodSandbox"), 0, "it is still terminating");
    world.until("the second life", |world| world.count("StartContainer web/app#0") == 1);
    assert_eq!(world.count("RemovePodSandbox web#0"), 1);
    assert_eq!(world.count("RunPodSandbox web#0"), 1);
    world.pass(4);
    assert_eq!(world.count("StartContainer web/app#1"), 1, "the first restart has no back-off");
    assert!(world.pod("web").unwrap().metadata.deletion_timestamp.is_none());
}

#[test]
fn a_manifest_that_becomes_invalid_leaves_its_pod_running() {
    let world = World::new();
    world.run("web", APP);
    world.run("other", APP);
    world.pass(3);
    world.fake.clear_calls();
    world.put_text("web", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n");
    world.until("the problem", |world| world.table().contains("spec.containers"));
    // Another file changes meanwhile.
    world.put("other", &APP.replace("busybox:1", "busybox:2"));
    world.until("the other's change", |world| world.running().contains(&"other/app#1".to_owned()));
    assert!(world.running().contains(&"web/app#0".to_owned()));
    assert!(world.describe("web").contains("InvalidManifest"), "{}", world.describe("web"));
    // The agent that starts now knows the pod only from the runtime.
    for ending in [World::stop, World::kill] {
        ending(&world);
        world.start();
        world.pass(30);
        assert_eq!(world.actions(), [""; 0]);
        assert!(world.table().contains("spec.containers"));
    }
    world.put("web", APP);
    world.until("the mended manifest", |world| world.phase("web") == "Running");
    world.pass(3);
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.running(), ["web/app#0", "other/app#1"]);
}

#[test]
fn a_manifest_removed_while_another_is_invalid_is_terminated_once_all_are_valid() {
    let world = World::new();
    world.run("web", APP);
    world.put_text("other", "kind: [\n");
    world.until("the problem", |world| world.table().contains("other.yaml"));
    world.pass(3);
    world.fake.clear_calls();
    world.remove("web");
    world.pass(20);
    assert_eq!(world.actions(), [""; 0]);
    assert!(world.table().contains("it stays as it is"), "{}", world.table());
    world.remove("other");
    world.until("its end", |world| world.fake.state().sandboxes.is_empty());
}

#[test]
fn of_two_manifests_of_one_pod_the_running_one_stays_and_both_are_reported() {
    let world = World::new();
    world.run("web", APP);
    world.pass(3);
    world.fake.clear_calls();
    // First in the order of names, and different.
    world.put_text(
        "a-copy",
        &manifest("web", "containers: [{name: app, image: 'busybox:1'}], hostname: other"),
    );
    world.until("the problem", |world| world.table().contains("a-copy.yaml"));
    let table = world.table();
    let line = table.lines().find(|line| line.contains("a-copy.yaml")).unwrap();
    assert!(line.contains("web.yaml") && line.contains(&full("web")), "{line}");
    world.pass(5);
    assert_eq!(world.actions(), [""; 0]);
    // The same after a restart, when both are new to the agent.
    world.kill();
    world.start();
    world.pass(5);
    assert_eq!(world.actions(), [""; 0]);
    assert!(world.table().contains("a-copy.yaml"));
    let old = world.uid("web");
    world.remove("web");
    world.until("the other one", |world| {
        !["", &old].contains(&&*world.uid("web")) && world.phase("web") == "Running"
    });
    assert!(!world.table().contains("Problems"), "{}", world.table());
}

#[test]
fn a_manifest_edited_twice_during_the_termination_runs_in_its_last_version() {
    let world = World::without_agent();
    world.fake.program("app", Program::STUBBORN);
    world.start();
    world.run("web", PAIR);
    let old = world.uid("web");
    world.put("web", &format!("hostname: one, {PAIR}"));
    world.until("the stop", |world| world.count("StopContainer web/app#0") == 1);
    world.put("web", &format!("hostname: two, {PAIR}"));
    world.pass(2);
    world.until("the new pod", |world| {
        world.fake.state().sandbox("web-gw").is_some_and(|s| s.config.metadata.as_ref().unwrap().uid != old)
            && world.phase("web") == "Running"
    });
    assert_eq!(world.sandbox("web", |sandbox| sandbox.config.hostname.clone()), "two");
    assert_eq!(world.count("RunPodSandbox"), 2);
    assert_eq!(world.pods().len(), 1);
}
