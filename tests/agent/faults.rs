//! A runtime that fails, loses its state, disconnects and returns.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use smolet::config::Config;

use crate::common::fake::Program;
use crate::world::{World, names};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const UNKNOWN: i32 = 2;

#[test]
fn after_a_restart_of_the_runtime_pods_are_synced_once() {
    let world = World::new();
    world.run("web", APP);
    world.run("other", APP);
    world.pass(3);
    world.fake.clear_calls();
    world.silent(true);
    world.fake.drop_connections();
    world.pass(5);
    assert_eq!(world.actions(), [""; 0], "a cut connection is no reason to act");
    world.fake.refuse_connections();
    world.pass(3);
    // While it is down: one container dies, a manifest is removed, another is added.
    world.fake.exit("web-gw/app", 1, "", "");
    world.remove("other");
    world.put("new", APP);
    world.pass(40);
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.ask("/healthz"), (200, "ok".to_owned()), "the agent answers meanwhile");
    world.fake.accept_connections();
    world.until("all synced", |world| {
        let mut running = world.running();
        running.sort();
        running == ["new/app#0", "web/app#1"] && world.fake.state().sandboxes.len() == 2
    });
    world.silent(false);
    world.pass(5);
    assert_eq!(world.count("RunPodSandbox"), 1);
    assert_eq!(world.count("CreateContainer"), 2);
    assert_eq!(world.count("StopContainer other/app#0"), 1);
}

#[test]
fn a_runtime_that_is_being_started_is_found_soon() {
    let world = World::without_agent();
    world.fake.fail("Version", 10_000, UNKNOWN, "server is not initialized yet");
    world.silent(true);
    world.start_in_trouble();
    for _ in 0..32 {
        world.leap_for(Duration::from_millis(250));
    }
    assert!(world.ask("/pods").1.contains("server is not initialized yet"), "{}", world.ask("/pods").1);
    assert!(world.fake.count("Version") <= 32, "{}", world.fake.count("Version"));
    world.fake.heal("Version");
    world.leap_for(Duration::from_millis(500));
    assert_eq!(world.ask("/pods").0, 200, "{}", world.ask("/pods").1);
}

#[test]
fn connections_closed_during_starts_cause_no_duplicates() {
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer", "PodSandboxStatus", "ListContainers"]
    {
        let world = World::new();
        world.fake.lose_answer(method, 2);
        world.silent(true);
        world.put("web", APP);
        world.put("other", APP);
        let mut seconds = 0;
        while world.running().len() < 2
            || world.phase("web") != "Running"
            || world.phase("other") != "Running"
        {
            world.step();
            seconds += 1;
            assert!(seconds < 60, "{method}: {}\n{}", world.trace(), world.table());
        }
        world.pass(20);
        assert_eq!(world.running().len(), 2, "{method}");
    }
}

#[test]
fn a_failed_sandbox_is_retried_every_ten_seconds() {
    let world = World::new();
    world.fake.fail("RunPodSandbox", 3, UNKNOWN, "failed to set up the network: no bridge");
    world.put("web", APP);
    world.until("the pod", |world| world.phase("web") == "Running");
    let times = world.times("RunPodSandbox");
    assert_eq!(times.len(), 4);
    let gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A call that is answered late in real time delays the later retries.
    assert_eq!(gaps.iter().min(), Some(&10), "{gaps:?}");
    let shown = world.describe("web");
    assert!(shown.contains("FailedCreatePodSandBox") && shown.contains("no bridge"), "{shown}");
    assert_eq!(world.running(), ["web/app#0"]);
}

#[test]
fn a_runtime_with_the_other_cgroup_driver_is_reported_with_what_to_set() {
    let world = World::new();
    // runc's words.
    let error = "runc create failed: expected cgroupsPath to be of format \"slice:prefix:name\" for systemd cgroups, \
                 got \"/kubepods/besteffort/podu/id\" instead: unknown";
    world.fake.fail("RunPodSandbox", 1, UNKNOWN, error);
    world.put("web", APP);
    world.until("the failure", |world| world.describe("web").contains("FailedCreatePodSandBox"));
    let shown = world.describe("web");
    assert!(shown.contains("set cgroupDriver: systemd"), "{shown}");
}

#[test]
fn a_failed_create_or_start_is_reported_with_its_cause() {
    for (method, reason) in
        [("CreateContainer", "CreateContainerError"), ("StartContainer", "RunContainerError")]
    {
        let world = World::new();
        world.fake.fail(method, 2, UNKNOWN, "exec: \"nothere\": not found in $PATH");
        world.put("web", APP);
        world.until("the reason", |world| world.waiting("web", "app").0 == reason);
        assert!(world.waiting("web", "app").1.contains("nothere"), "{:?}", world.waiting("web", "app"));
        assert_eq!(world.phase("web"), "Pending");
        let shown = world.describe("web");
        assert!(shown.contains(reason) && shown.contains("nothere"), "{shown}");
        world.until("the pod", |world| world.phase("web") == "Running");
        world.pass(3);
        assert_eq!(world.running().len(), 1);
        assert_eq!(world.waiting("web", "app").0, "");
        assert_eq!(world.count("RunPodSandbox"), 1, "the sandbox is kept");
    }
}

#[test]
fn a_container_in_unknown_state_is_stopped_before_it_is_replaced() {
    let world = World::new();
    world.run("web", APP);
    world.pass(3);
    world.fake.clear_calls();
    world.fake.report_unknown("web-gw/app");
    world.until("its replacement", |world| world.running() == ["web/app#1"]);
    assert_eq!(
        world.actions(),
        ["StopContainer web/app#0 grace=30", "CreateContainer web/app#1", "StartContainer web/app#1"]
    );
}

#[test]
fn a_pod_with_a_container_in_unknown_state_can_be_terminated() {
    let world = World::new();
    world.run("web", APP);
    world.pass(3);
    world.fake.report_unknown("web-gw/app");
    world.fake.clear_calls();
    world.remove("web");
    world.until("its end", |world| world.fake.state().sandboxes.is_empty());
    assert!(world.fake.state().containers.is_empty());
}

#[test]
fn a_container_that_the_runtime_lost_is_created_again_with_the_next_attempt() {
    let world = World::new();
    world.run("web", APP);
    std::fs::write(world.logs("web").join("app/0.log"), "").unwrap();
    world.fake.forget_container("web-gw/app");
    world.until("a new one", |world| world.running() == ["web/app#1"]);
    assert_eq!(world.count("RunPodSandbox"), 1);
    let path = world.fake.state().container("web-gw/app").unwrap().config.log_path.clone();
    assert_eq!(path, "app/1.log", "the old log is not overwritten");
}

#[test]
fn a_sandbox_that_the_runtime_lost_is_created_again() {
    let world = World::new();
    world.run("web", APP);
    std::fs::write(world.logs("web").join("app/0.log"), "").unwrap();
    world.fake.forget_sandbox("web-gw");
    world.until("a new one", |world| world.running() == ["web/app#1"]);
    world.until("its status", |world| world.phase("web") == "Running");
    assert_eq!(world.count("RunPodSandbox"), 2);
}

#[test]
fn a_dead_sandbox_is_replaced_with_its_containers() {
    let world = World::new();
    world.run("web", APP);
    world.pass(3);
    world.fake.clear_calls();
    world.fake.stop_sandbox("web-gw");
    world.until("a new one", |world| world.running() == ["web/app#1"]);
    world.pass(3);
    assert_eq!(
        world.actions(),
        [
            "StopContainer web/app#0 grace=30",
            "StopPodSandbox web#0",
            "RunPodSandbox web#1",
            "CreateContainer web/app#1",
            "StartContainer web/app#1",
            // The dead one is kept while the newest dead container of a name is in it.
        ]
    );
    world.until("its address", |world| {
        let ip = world.pod("web").unwrap().status.unwrap().pod_ip;
        ip.is_some_and(|ip| ip == world.sandbox("web", |sandbox| sandbox.ip.clone()))
    });
}

#[test]
fn an_old_sandbox_is_kept_with_the_status_of_completed_containers() {
    let world = World::without_agent();
    world.fake.program("done", Program::exits(0, Duration::from_secs(1)));
    let spec = "restartPolicy: OnFailure, containers: [{name: done, image: 'busybox:1'}, \
                {name: app, image: 'busybox:1'}]";
    world.put("web", spec);
    world.start();
    world.until("one ends", |world| world.running() == ["web/app#0"]);
    for attempt in 1..3 {
        world.fake.stop_sandbox("web-gw");
        world.until("the other runs again", |world| world.running() == [format!("web/app#{attempt}")]);
        world.pass(90);
        assert_eq!(world.times("StartContainer web/done").len(), 1, "{}", world.trace());
        // The first has the exit of the one, the second-to-last the exit of the other.
        assert_eq!(world.fake.state().sandboxes.len(), 2 + usize::from(attempt > 1), "{}", world.trace());
    }
    world.remove("web");
    world.until("nothing left", |world| world.fake.state().sandboxes.is_empty());
}

#[test]
fn a_crash_loops_back_off_survives_the_sandbox() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, Duration::ZERO));
    world.put("web", "containers: [{name: app, image: 'busybox:1'}, {name: other, image: 'busybox:1'}]");
    world.start();
    world.until("a long wait", |world| world.times("StartContainer web/app").len() == 5);
    let fifth = world.seconds();
    world.pass(5);
    world.fake.stop_sandbox("web-gw");
    world.until("another start", |world| world.times("StartContainer web/app").len() == 6);
    // Of the 80 s.
    assert!(world.seconds() - fifth >= 75, "{}", world.trace());
}

#[test]
fn a_failed_stop_is_retried_until_the_pod_is_removed() {
    for method in ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"] {
        let world = World::new();
        world.run("web", APP);
        world.fake.fail(method, 2, UNKNOWN, "the shim does not answer");
        world.remove("web");
        world.until("its end", |world| world.pods().is_empty());
        assert!(world.fake.state().sandboxes.is_empty() && names(&world.path("logs")).is_empty(), "{method}");
        let times = world.times(method);
        if method.ends_with("Container") {
            // Its sandbox is stopped and removed all the same, as by the kubelet, with the container.
            assert_eq!(times.len(), 1);
        } else {
            assert!(times.len() >= 3 && times[1] - times[0] >= 10, "{method}: {times:?}");
        }
    }
}

/// A process in the cgroup of a pod, below a root of the test's own.
struct InCgroup {
    /// In each hierarchy: the agent has its classes there too.
    roots: Vec<PathBuf>,
    pod: String,
    process: Child,
}

impl InCgroup {
    fn new(root: &str, uid: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let roots: Vec<PathBuf> = (mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()))
            .filter(|line| line[2].starts_with("cgroup"))
            .map(|line| Path::new(line[1]).join(root.trim_start_matches('/')))
            .collect();
        let pod = format!("kubepods/besteffort/pod{uid}");
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        let left = Self { roots, pod, process };
        // A new cgroup of cpuset takes none.
        let takes = |root: &PathBuf| {
            let app = root.join(&left.pod).join("app");
            std::fs::create_dir_all(&app).is_ok()
                && std::fs::write(app.join("cgroup.procs"), left.process.id().to_string()).is_ok()
        };
        assert!(left.roots.iter().any(takes), "cgroups need root");
        left
    }
}

impl Drop for InCgroup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let app = format!("{}/app", self.pod);
        for root in &self.roots {
            for below in [&app, &self.pod, "kubepods/besteffort", "kubepods/burstable", "kubepods", ""] {
                let _ = std::fs::remove_dir(root.join(below));
            }
        }
    }
}

/// After a start that was interrupted, containerd can take a container for ended whose process runs: it stops it no more, and does not
/// remove it.
#[test]
fn a_process_of_an_ended_container_is_killed_when_its_container_cannot_be_removed() {
    let world = World::without_agent();
    let root = format!("/smolet-test-ended-{}", std::process::id());
    world.put("web", APP);
    let cgroups =
        Config { cgroup_root: root.clone(), cgroup_mounts: "/sys/fs/cgroup".into(), ..world.config() };
    world.start_with(cgroups);
    world.until("web running", |world| world.phase("web") == "Running");
    let uid = world.pod("web").and_then(|pod| pod.metadata.uid).unwrap();
    let mut left = InCgroup::new(&root, &uid);
    for method in ["RemoveContainer", "RemovePodSandbox"] {
        world.fake.fail(method, 1, UNKNOWN, "cannot delete running task");
    }
    world.remove("web");
    world.until("an attempt", |world| world.count("RemovePodSandbox web#0") == 1);
    world.wait("the end of the process", |_| left.process.try_wait().unwrap().is_some());
    assert!(world.pod("web").is_some(), "it is not removed yet");
    world.until("the next attempt", |world| world.pods().is_empty());
    assert!(world.fake.state().sandboxes.is_empty());
    assert!(left.roots.iter().all(|root| !root.join(&left.pod).exists()));
}

#[test]
fn a_dead_sandbox_that_cannot_be_stopped_is_told_while_its_pod_waits() {
    let world = World::new();
    world.run("web", APP);
    world.fake.fail("StopPodSandbox", 2, UNKNOWN, "failed to destroy network for sandbox");
    world.fake.stop_sandbox("web-gw");
    world.until("a try", |world| world.count("StopPodSandbox web#0") == 1);
    world.pass(1);
    let described = world.describe("web");
    assert!(described.contains("FailedKillPod"), "{described}");
    assert!(described.contains("failed to destroy network for sandbox"), "{described}");
    world.until("another start", |world| world.running() == ["web/app#1"]);
    assert_eq!(world.count("StopPodSandbox web#0"), 3);
}

#[test]
fn a_stop_that_hangs_delays_no_other_pod() {
    let world = World::new();
    world.run("web", APP);
    world.fake.hang_on("StopContainer", "web-gw");
    world.remove("web");
    world.until("the call", |world| world.count("StopContainer web/app#0") == 1);
    world.run("other", APP);
    world.remove("other");
    world.until("the other's end", |world| world.pod("other").is_none());
    assert_eq!(world.count("StopContainer web/app#0"), 1);
    world.fake.heal("StopContainer");
    world.until("its end", |world| world.fake.state().sandboxes.is_empty());
}

#[test]
fn an_agent_that_starts_before_its_runtime_waits_for_it() {
    let world = World::without_agent();
    world.fake.refuse_connections();
    world.put("web", APP);
    world.spawn(world.config(), false);
    world.silent(true);
    world.wait("the socket", |world| world.path("sock").exists());
    world.pass(30);
    world.fake.accept_connections();
    world.pass(12);
    world.silent(false);
    world.until("the pod", |world| world.phase("web") == "Running");
    assert_eq!(world.running(), ["web/app#0"]);
}

#[test]
fn an_agent_that_waits_for_its_runtime_can_be_stopped() {
    let world = World::without_agent();
    world.fake.refuse_connections();
    world.spawn(world.config(), false);
    world.wait("the socket", |world| world.path("sock").exists());
    world.stop();
    assert!(!world.path("sock").exists());
}

#[test]
fn a_crash_of_one_container_does_not_wait_for_the_back_off_of_another() {
    let world = World::without_agent();
    world.fake.program("bad", Program::exits(1, Duration::from_secs(1)));
    world.put("web", "containers: [{name: bad, image: 'busybox:1'}, {name: good, image: 'busybox:1'}]");
    world.start();
    world.until("a long wait", |world| world.count("StartContainer web/bad") == 5);
    world.pass(3);
    world.fake.exit("web-gw/good", 1, "", "");
    world.pass(3);
    assert!(world.running().contains(&"web/good#1".to_owned()), "{}", world.trace());
    assert_eq!(world.count("StartContainer web/bad"), 5);
}

#[test]
fn a_missing_image_delays_no_other_container_of_its_pod() {
    let world = World::new();
    world.fake.missing_image("nothere:1");
    world.put("web", "containers: [{name: bad, image: 'nothere:1'}, {name: good, image: 'busybox:1'}]");
    world.until("the good one", |world| world.running() == ["web/good#0"]);
    world.until("the back-off", |world| world.waiting("web", "bad").0 == "ImagePullBackOff");
    world.fake.exit("web-gw/good", 1, "", "");
    world.pass(3);
    assert_eq!(world.running(), ["web/good#1"]);
}

#[test]
fn a_relist_that_hangs_ends_with_its_deadline() {
    let world = World::new();
    world.run("web", APP);
    world.pass(2);
    world.silent(true);
    let relists = || world.fake.state().relists;
    let before = relists();
    world.fake.hang("ListContainers");
    world.step();
    world.wait("the relist that hangs", |_| relists() == before + 1);
    world.fake.exit("web-gw/app", 1, "", "");
    world.pass(100);
    assert_eq!(relists(), before + 1, "it is in progress");
    let mut seconds = 0;
    while relists() == before + 1 {
        world.step();
        seconds += 1;
        assert!(seconds < 60, "after two minutes it is cancelled and retried");
    }
    assert_eq!(world.running(), [""; 0]);
    assert_eq!(world.ask("/healthz").0, 200);
    world.fake.heal("ListContainers");
    world.until("the restart", |world| world.running() == ["web/app#1"]);
}

#[test]
fn a_stubborn_container_is_killed_after_its_grace_period() {
    let world = World::without_agent();
    world.fake.program("app", Program::STUBBORN);
    world.start();
    world.run("web", &format!("terminationGracePeriodSeconds: 20, {APP}"));
    world.pass(2);
    let stop = "StopContainer web/app#0 grace=20";
    world.remove("web");
    world.until("the stop", |world| world.count(stop) == 1);
    world.until("its end", |world| world.count("StopPodSandbox web#0") > 0);
    let took = world.times("StopPodSandbox")[0] - world.times(stop)[0];
    assert!((20..=24).contains(&took), "{took}");
    assert_eq!(world.count(stop), 1, "stopped once");
}

#[test]
fn a_slow_call_is_waited_for_and_not_repeated() {
    let world = World::new();
    world.fake.delay("RunPodSandbox", Duration::from_secs(30));
    world.fake.delay("StartContainer", Duration::from_secs(20));
    world.put("web", APP);
    world.until("the pod", |world| world.phase("web") == "Running");
    world.pass(3);
    assert_eq!(
        world.actions(),
        ["RunPodSandbox web#0", "CreateContainer web/app#0", "StartContainer web/app#0"]
    );
}
