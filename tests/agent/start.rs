//! Starts of pods: order and arguments of the calls.

use std::time::Duration;

use smolet::config::Config;
use smolet::model::container_hash;
use smolet::proto::runtime::v1 as cri;
use smolet::render::CgroupDriver;

use crate::common::fake::Program;
use crate::world::{NODE, START, World, manifest};

#[test]
fn a_pod_starts_with_the_kubelets_arguments() {
    let world = World::new();
    world.run("web", "terminationGracePeriodSeconds: 7, containers: [{name: app, image: 'busybox:1'}]");
    assert_eq!(
        world.actions(),
        ["RunPodSandbox web#0", "CreateContainer web/app#0", "StartContainer web/app#0"]
    );
    let uid = world.uid("web");
    let logs = world.logs("web");
    let state = world.fake.state();
    let sandbox = state.sandbox("web-gw").unwrap();
    let text = |map: &std::collections::BTreeMap<String, String>, key: &str| map.get(key).cloned().unwrap();
    let config = &sandbox.config;
    assert_eq!(text(&config.labels, "io.kubernetes.pod.name"), "web-gw");
    assert_eq!(text(&config.labels, "io.kubernetes.pod.namespace"), "default");
    assert_eq!(text(&config.labels, "io.kubernetes.pod.uid"), uid);
    assert_eq!(text(&config.annotations, "smolet.io/node"), NODE);
    assert_eq!(text(&config.annotations, "kubernetes.io/config.source"), "file");
    assert!(!text(&config.annotations, "kubernetes.io/config.hash").is_empty());
    assert!(!text(&config.annotations, "kubernetes.io/config.seen").is_empty());
    assert_eq!(config.log_directory, logs.to_string_lossy());
    assert!(logs.join("app").is_dir());

    let config = &state.container("web-gw/app").unwrap().config;
    assert_eq!(text(&config.labels, "io.kubernetes.container.name"), "app");
    assert_eq!(text(&config.labels, "io.kubernetes.pod.uid"), uid);
    let hash = format!("{:x}", container_hash("app", "busybox:1"));
    assert_eq!(text(&config.annotations, "io.kubernetes.container.hash"), hash);
    assert_eq!(text(&config.annotations, "io.kubernetes.container.restartCount"), "0");
    assert_eq!(text(&config.annotations, "io.kubernetes.pod.terminationGracePeriod"), "7");
    assert_eq!(config.log_path, "app/0.log");
    drop(state);
    assert!(world.describe("web").contains("Started container app"), "{}", world.describe("web"));
}

/// Virtual time stands still: a wait for a timer would never end.
#[test]
fn from_a_manifests_rename_to_its_sandbox_no_timer_is_awaited() {
    let world = World::new();
    let spec = "terminationGracePeriodSeconds: 2, containers: [{name: app, image: 'busybox:1'}]";
    // The agent's work after its start.
    world.run("before", spec);
    world.put("renamed", spec);
    world.wait("its container", |world| world.running().contains(&"renamed/app#0".to_owned()));
    std::fs::write(world.path("manifests").join("closed.yaml"), manifest("closed", spec)).unwrap();
    world.wait("its container", |world| world.running().contains(&"closed/app#0".to_owned()));
    // Later, changes are debounced.
    world.step();
    world.put("renamed", &spec.replace("busybox:1", "busybox:2"));
    world.wait("another container", |world| world.count("StopContainer renamed/app#0") == 1);
}

#[test]
fn the_runtimes_cgroup_driver_is_used() {
    let world = World::without_agent();
    world.fake.state().cgroup_driver = Some(cri::CgroupDriver::Cgroupfs);
    world.start_with(Config { cgroup_driver: CgroupDriver::Systemd, ..world.config() });
    world.run("web", "containers: [{name: app, image: 'busybox:1'}]");
    let state = world.fake.state();
    let parent = state.sandbox("web-gw").unwrap().config.linux.as_ref().unwrap().cgroup_parent.clone();
    assert!(parent.starts_with("/kubepods/besteffort/pod"), "{parent}");
}

#[test]
fn init_containers_run_one_after_the_other() {
    let world = World::new();
    world.fake.program("one", Program::exits(0, Duration::from_secs(3)));
    world.fake.program("two", Program::exits(0, Duration::from_secs(2)));
    world.run(
        "web",
        "initContainers: [{name: one, image: 'busybox:1'}, {name: two, image: 'busybox:1'}], \
         containers: [{name: app, image: 'busybox:1'}, {name: more, image: 'busybox:1'}]",
    );
    let created: Vec<String> =
        world.actions().into_iter().filter(|action| action.starts_with("CreateContainer")).collect();
    assert_eq!(
        created,
        [
            "CreateContainer web/one#0",
            "CreateContainer web/two#0",
            "CreateContainer web/app#0",
            "CreateContainer web/more#0"
        ]
    );
    let at = |call| world.times(call)[0];
    let (one, two, app) =
        (at("StartContainer web/one"), at("StartContainer web/two"), at("StartContainer web/app"));
    assert!((one + 3..=one + 5).contains(&two), "{one} {two}");
    assert!((two + 2..=two + 4).contains(&app), "{two} {app}");
    assert_eq!(world.running(), ["web/app#0", "web/more#0"]);
}

#[test]
fn a_failing_init_container_is_retried_before_the_next_one() {
    let world = World::new();
    world.fake.program("one", Program::exits(1, Duration::from_secs(1)));
    world.put(
        "web",
        "initContainers: [{name: one, image: 'busybox:1'}], containers: [{name: app, image: 'busybox:1'}]",
    );
    world.until("two retries", |world| world.count("StartContainer web/one") == 3);
    assert_eq!(world.count("CreateContainer web/app"), 0);
    world.fake.program("one", Program::exits(0, Duration::from_secs(1)));
    world.until("the app", |world| world.running() == ["web/app#0"]);
}

#[test]
fn a_sidecar_starts_before_the_app_and_stops_after_it() {
    let world = World::new();
    world.run(
        "web",
        "terminationGracePeriodSeconds: 9, \
         initContainers: [{name: proxy, image: 'busybox:1', restartPolicy: Always}], \
         containers: [{name: app, image: 'busybox:1'}]",
    );
    assert_eq!(
        world.actions(),
        [
            "RunPodSandbox web#0",
            "CreateContainer web/proxy#0",
            "StartContainer web/proxy#0",
            "CreateContainer web/app#0",
            "StartContainer web/app#0"
        ]
    );
    world.fake.clear_calls();
    world.remove("web");
    world.until("the end", |world| world.pods().is_empty());
    let stops =
        ["StopContainer web/app#0 grace=9", "StopContainer web/proxy#0 grace=9", "StopPodSandbox web#0"];
    assert_eq!(world.actions()[..3], stops);
}

#[test]
fn thirty_pods_at_once_each_run_once() {
    let world = World::without_agent();
    for index in 0..30 {
        world.put(&format!("web{index}"), "containers: [{name: app, image: 'busybox:1'}]");
    }
    world.start();
    world.until("all pods", |world| world.running().len() == 30);
    world.pass(3);
    assert_eq!((world.count("RunPodSandbox"), world.count("CreateContainer")), (30, 30));
    assert_eq!(world.count("StartContainer"), 30);
    let pods = world.pods();
    assert_eq!(pods.len(), 30);
    assert!(pods.iter().all(|pod| pod.status.as_ref().unwrap().phase.as_deref() == Some("Running")));
}

#[test]
fn times_after_2038_are_shown_and_counted() {
    let world = World::without_agent();
    // 2040-01-01T00:00:00Z: more seconds than 31 bits hold.
    world.clock.step_wall(2_208_988_800 - START.0 / 1_000_000_000);
    world.fake.program("crash", Program::exits(1, Duration::ZERO));
    world.start();
    world.run("web", "containers: [{name: app, image: 'busybox:1'}]");
    world.put("bad", "containers: [{name: crash, image: 'busybox:1'}]");
    world.until("the back-off", |world| world.waiting("bad", "crash").0 == "CrashLoopBackOff");
    let status = world.pod("web").unwrap().status.unwrap();
    let started = status.start_time.unwrap().0.to_string();
    assert!(started.starts_with("2040-01-01T00:0"), "{started}");
    world.until("two restarts", |world| world.status_of("bad", "crash").is_some_and(|s| s.restart_count > 1));
    let starts = world.times("StartContainer bad/crash");
    // The first restart comes at once, the second waits.
    assert!(starts[2] - starts[1] >= 10, "the back-off applies: {starts:?}");
    assert_eq!(world.running(), ["web/app#0"]);
}

#[test]
fn an_idle_agent_changes_nothing() {
    let world = World::new();
    world.run("web", "containers: [{name: app, image: 'busybox:1'}]");
    world.pass(3);
    world.fake.clear_calls();
    world.pass(70);
    assert_eq!(world.actions(), [""; 0]);
    let calls = world.fake.calls();
    world.silent(true);
    let turns = world.turns();
    world.pass(60);
    let turns = world.turns() - turns;
    assert!(turns <= 60 * 20, "{turns} wake-ups in a minute: what should sleep spins");
    let lists = |call: &&String| call.starts_with("ListPodSandbox") || call.starts_with("ListContainers");
    assert_eq!(calls.len(), calls.iter().filter(lists).count(), "{calls:?}");
}

#[test]
fn volumes_are_created_for_the_pod_and_removed_with_it() {
    let world = World::new();
    let host = world.path("host");
    world.run(
        "web",
        &format!(
            "volumes: [{{name: scratch, emptyDir: {{}}}}, \
             {{name: host, hostPath: {{path: {}, type: DirectoryOrCreate}}}}], \
             containers: [{{name: app, image: 'busybox:1', volumeMounts: [{{name: scratch, mountPath: /scratch}}, \
             {{name: host, mountPath: /host, readOnly: true}}]}}]",
            host.display()
        ),
    );
    let mounts = world.fake.state().container("web-gw/app").unwrap().config.mounts.clone();
    let at = |path: &str| mounts.iter().find(|mount| mount.container_path == path).unwrap();
    let scratch = std::path::PathBuf::from(&at("/scratch").host_path);
    assert!(scratch.is_dir() && scratch.starts_with(world.pod_dir("web")) && !at("/scratch").readonly);
    assert!(host.is_dir() && at("/host").host_path == host.to_string_lossy() && at("/host").readonly);
    assert!(std::path::Path::new(&at("/etc/hosts").host_path).is_file());
    std::fs::write(scratch.join("data"), "of the pod").unwrap();
    std::fs::write(host.join("data"), "of the node").unwrap();
    let pod_dir = world.pod_dir("web");
    // A new container of the pod sees the files of the old one.
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("its restart", |world| world.running() == ["web/app#1"]);
    assert!(scratch.join("data").is_file());
    world.remove("web");
    world.until("its end", |world| world.pods().is_empty());
    assert!(!pod_dir.exists());
    assert_eq!(std::fs::read_to_string(host.join("data")).unwrap(), "of the node");
}

#[test]
fn sandboxes_are_created_eight_at_a_time() {
    let world = World::without_agent();
    world.fake.hang("RunPodSandbox");
    for number in 0..30 {
        world.put(&format!("p{number}"), "containers: [{name: app, image: 'busybox:1'}]");
    }
    world.start();
    world.until("the first of them", |world| world.count("RunPodSandbox") > 0);
    world.pass(3);
    assert_eq!(world.count("RunPodSandbox"), 8, "{:?}", world.actions());
    world.fake.heal("RunPodSandbox");
    world.until("all of them", |world| world.running().len() == 30);
}
