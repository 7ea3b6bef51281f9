//! Node pressure on memory, disk or process IDs: evictions, refusals, and later starts. The ranking is tested in `eviction`.

use std::time::Duration;

use smolet::config::{Config, EvictionPolicy};
use smolet::eviction::{Amount, Signal, Threshold};
use smolet::image::gc::ImageGcPolicy;

use crate::checkpoint::pass_until_saved;
use crate::common::fake::Program;
use crate::world::World;

const MIB: u64 = 1 << 20;

fn threshold(signal: Signal, quantity: u64, grace: u64) -> Threshold {
    Threshold { signal, at: Amount::Quantity(quantity), grace: Duration::from_secs(grace), min_reclaim: None }
}

/// Hard at 100 MiB; a condition holds for five minutes.
///
/// Memory and disks are measured on a thread, which virtual time does not wait for: on a busy machine everything may happen
/// many seconds later.
fn hard() -> EvictionPolicy {
    EvictionPolicy {
        thresholds: vec![threshold(Signal::MemoryAvailable, 100 * MIB, 0)],
        transition: Duration::from_mins(5),
        max_pod_grace: 0,
    }
}

/// So much memory of a GiB is available.
fn memory(world: &World, mib: u64) {
    let text = format!("MemTotal: {} kB\nMemFree: 1 kB\nMemAvailable: {} kB\n", 1 << 20, mib << 10);
    std::fs::write(world.path("meminfo.new"), text).unwrap();
    std::fs::rename(world.path("meminfo.new"), world.path("meminfo")).unwrap();
}

fn start(world: &World, eviction: EvictionPolicy) {
    let meminfo = world.path("meminfo");
    world.spawn(Config { eviction, meminfo, ..world.config() }, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    world.settle();
}

/// A world with plenty of memory.
fn world(eviction: EvictionPolicy) -> World {
    let world = World::without_agent();
    memory(&world, 900);
    start(&world, eviction);
    world
}

/// A container `c-NAME` with this memory usage, and more of the spec.
fn run(world: &World, name: &str, uses: u64, spec: &str) {
    world.fake.state().memory.insert(format!("c-{name}"), i64::try_from(uses * MIB).unwrap());
    world.run(name, &app(name, "", spec));
}

fn app(name: &str, requests: &str, spec: &str) -> String {
    format!(
        "{spec}containers: [{{name: c-{name}, image: 'busybox:1', resources: {{requests: {{{requests}}}}}}}]"
    )
}

/// Advances time until the current memory was measured: the runtime is asked for its images' file system after each
/// measurement, because the reported one does not exist.
fn look(world: &World) {
    let before = world.fake.count("ImageFsInfo");
    world.until("two looks", |world| world.fake.count("ImageFsInfo") >= before + 2);
}

/// Reason and message of the pod's status.
fn why(world: &World, name: &str) -> (String, String) {
    let status = world.pod(name).and_then(|pod| pod.status).unwrap_or_default();
    (status.reason.unwrap_or_default(), status.message.unwrap_or_default())
}

fn gone(world: &World, names: &[&str]) -> bool {
    names.iter().all(|name| world.phase(name) == "Failed")
}

#[test]
fn only_the_first_ranked_pod_is_evicted_and_starts_again_without_pressure() {
    let world = world(hard());
    // Nothing counts twice.
    world.fake.state().repeats_stats = true;
    run(&world, "little", 30, "");
    run(&world, "much", 60, "");
    run(&world, "system", 500, "priorityClassName: system-node-critical, ");
    world.pass(40);
    assert_eq!(world.running().len(), 3, "above the threshold");
    memory(&world, 50);
    world.until("the end of one", |world| gone(world, &["much"]));
    memory(&world, 900);
    let words = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c-much was \
                 using 60Mi, request is 0, has larger consumption of memory. ";
    assert_eq!(why(&world, "much"), ("Evicted".to_owned(), words.to_owned()));
    let status = world.pod("much").unwrap().status.unwrap();
    let target = status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget");
    assert_eq!(target.and_then(|target| target.reason.as_deref()), Some("TerminationByKubelet"));
    let page = world.ask("/metrics").1;
    for line in [
        "kubelet_evictions{eviction_signal=\"memory.available\"} 1",
        "smolet_node_condition{condition=\"MemoryPressure\"} 1",
    ] {
        assert!(page.contains(line), "{line} in\n{page}");
    }
    assert!(world.describe("little").contains("MemoryPressure"));
    assert!(world.table().contains("The node has MemoryPressure"));
    world.until("its end", |world| world.fake.state().sandbox("much-gw").is_none());
    world.pass(30);
    assert_eq!(world.phase("much"), "Failed", "the condition still holds");
    world.leap(300);
    world.until("its return", |world| world.phase("much") == "Running");
    assert_eq!(world.count("StopContainer"), 1, "{}", world.trace());
    assert!(!world.table().contains("The node has"));
}

#[test]
fn evicted_pods_run_again_when_eviction_is_switched_off() {
    let world = world(hard());
    run(&world, "much", 60, "");
    memory(&world, 50);
    world.until("its end", |world| gone(world, &["much"]) && world.running().is_empty());
    pass_until_saved(&world);
    world.stop();
    start(&world, EvictionPolicy { thresholds: Vec::new(), ..hard() });
    world.until("its return", |world| world.phase("much") == "Running");
}

#[test]
fn a_pod_that_waits_for_its_next_start_is_not_evicted_before_one_that_uses_memory() {
    let world = world(hard());
    run(&world, "much", 60, "");
    world.fake.program("c-crash", Program::exits(1, Duration::ZERO));
    world.run("crash", &app("crash", "", ""));
    world.until("its wait", |world| world.waiting("crash", "c-crash").0 == "CrashLoopBackOff");
    memory(&world, 50);
    world.until("the end of one", |world| gone(world, &["much"]) || gone(world, &["crash"]));
    assert_eq!(why(&world, "much").0, "Evicted");
    assert_eq!(why(&world, "crash").0, "");
}

#[test]
fn under_pid_pressure_the_lowest_priority_is_evicted() {
    let world = World::without_agent();
    memory(&world, 900);
    std::fs::create_dir_all(world.path("sys/kernel")).unwrap();
    std::fs::write(world.path("sys/kernel/pid_max"), "4194304\n").unwrap();
    std::fs::write(world.path("sys/kernel/threads-max"), "1000\n").unwrap();
    let threads = |count: u32| {
        std::fs::write(world.path("loadavg.new"), format!("0.1 0.1 0.1 1/{count} 99\n")).unwrap();
        std::fs::rename(world.path("loadavg.new"), world.path("loadavg")).unwrap();
    };
    threads(100);
    let thresholds = vec![threshold(Signal::PidAvailable, 300, 0)];
    start(&world, EvictionPolicy { thresholds, ..hard() });
    run(&world, "first", 1, "priority: 10, ");
    run(&world, "second", 1, "");
    threads(750);
    world.until("the end of one", |world| gone(world, &["second"]));
    threads(100);
    let words = "The node was low on resource: pids. Threshold quantity: 300, available: 250. ";
    assert_eq!(why(&world, "second"), ("Evicted".to_owned(), words.to_owned()));
    assert_eq!(world.phase("first"), "Running");
    assert!(world.describe("first").contains("PIDPressure"));
    let events = world.ask("/events").1;
    assert!(events.contains("NodeHasInsufficientPID"), "{events}");
}

#[test]
fn pods_are_evicted_one_by_one_and_critical_ones_never() {
    let world = world(hard());
    world.fake.state().memory.insert("c-modest".to_owned(), 50 << 20);
    world.run("modest", &app("modest", "memory: 100Mi", ""));
    run(&world, "urgent", 40, "priority: 1000, ");
    run(&world, "little", 30, "");
    run(&world, "much", 60, "");
    run(&world, "system", 500, "priorityClassName: system-cluster-critical, ");
    memory(&world, 50);
    for name in ["much", "little", "urgent", "modest"] {
        world.until(name, |world| gone(world, &[name]));
    }
    let names = ["much", "little", "urgent", "modest"];
    let order = names.map(|name| world.times(&format!("StopContainer {name}/"))[0]);
    assert!(order.is_sorted(), "{order:?}");
    // On a busy machine a call may count in the second after the decision.
    let decided = names.map(|name| {
        let status = world.pod(name).unwrap().status.unwrap();
        let target =
            status.conditions.unwrap().into_iter().find(|of| of.type_ == "DisruptionTarget").unwrap();
        target.last_transition_time.unwrap().0.as_second()
    });
    assert!(decided.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{decided:?}");
    world.pass(60);
    assert_eq!(world.running(), ["system/c-system#0"]);
}

#[test]
fn a_soft_threshold_acts_after_its_grace_period_across_clock_steps() {
    let soft = EvictionPolicy {
        thresholds: vec![threshold(Signal::MemoryAvailable, 100 * MIB, 90)],
        max_pod_grace: 7,
        ..hard()
    };
    let world = world(soft);
    run(&world, "web", 60, "terminationGracePeriodSeconds: 30, ");
    memory(&world, 50);
    world.until("the condition", |world| world.table().contains("MemoryPressure"));
    let met = world.seconds();
    for step in [1, -2] {
        world.pass(20);
        world.clock.step_wall(step * 10 * 365 * 86_400);
    }
    world.pass(30);
    assert_eq!(world.phase("web"), "Running", "70 of 90 s");
    world.until("the end", |world| gone(world, &["web"]));
    let after = world.times("StopContainer web/")[0] - met;
    assert!(after >= 80, "{after} s after it was told");
    assert_eq!(world.count("StopContainer web/c-web#0 grace=7"), 1, "{}", world.trace());
}

#[test]
fn a_soft_threshold_that_is_interrupted_starts_again() {
    let soft =
        EvictionPolicy { thresholds: vec![threshold(Signal::MemoryAvailable, 100 * MIB, 150)], ..hard() };
    let world = world(soft);
    run(&world, "web", 60, "");
    for _ in 0..3 {
        memory(&world, 50);
        look(&world);
        world.pass(60);
        memory(&world, 150);
        look(&world);
    }
    assert_eq!((world.phase("web").as_str(), world.count("StopContainer")), ("Running", 0));
}

#[test]
fn a_new_pod_without_a_memory_request_waits_under_memory_pressure() {
    let world = world(hard());
    memory(&world, 50);
    world.until("the condition", |world| world.table().contains("MemoryPressure"));
    world.put("best-effort", &app("best-effort", "", ""));
    world.put("critical", &app("critical", "", "priorityClassName: system-node-critical, "));
    world.until("the critical one", |world| world.phase("critical") == "Running");
    let words = "The node had condition: [MemoryPressure]. ";
    world.until("the word", |world| world.waiting("best-effort", "c-best-effort").0 == "Evicted");
    assert_eq!(world.waiting("best-effort", "c-best-effort").1, words);
    memory(&world, 900);
    world.put("burstable", &app("burstable", "memory: 1Mi", ""));
    world.until("the burstable one", |world| world.phase("burstable") == "Running");
    assert_eq!(world.count("RunPodSandbox best-effort"), 0, "{}", world.trace());
    world.leap(300);
    world.until("the other one", |world| world.phase("best-effort") == "Running");
}

#[test]
fn an_eviction_survives_a_restart_while_the_condition_holds() {
    let world = world(hard());
    run(&world, "web", 60, "");
    memory(&world, 50);
    world.until("the end", |world| gone(world, &["web"]) && world.running().is_empty());
    pass_until_saved(&world);
    world.kill();
    start(&world, hard());
    world.pass(40);
    assert_eq!((world.phase("web").as_str(), why(&world, "web").0.as_str()), ("Failed", "Evicted"));
    assert_eq!(world.count("StartContainer"), 0, "{}", world.trace());
    memory(&world, 900);
    look(&world);
    world.leap(300);
    world.until("its return", |world| world.phase("web") == "Running");
}

#[test]
fn a_removed_manifest_removes_its_evicted_pod() {
    let world = world(hard());
    run(&world, "web", 60, "");
    memory(&world, 50);
    world.until("the end", |world| gone(world, &["web"]) && world.running().is_empty());
    world.remove("web");
    world.until("nothing", |world| world.pod("web").is_none());
    memory(&world, 900);
    look(&world);
    world.leap(300);
    world.pass(60);
    assert!(world.running().is_empty() && world.pod("web").is_none());
}

#[test]
fn under_disk_pressure_dead_containers_are_removed_then_images_then_the_largest_pod() {
    // More than any disk has.
    let disk = EvictionPolicy { thresholds: vec![threshold(Signal::NodeFsAvailable, 1 << 60, 0)], ..hard() };
    let world = World::without_agent();
    memory(&world, 900);
    {
        let mut state = world.fake.state();
        state.image_mountpoint = Some(world.path("root").to_string_lossy().into_owned());
        state.written.insert("c-much".to_owned(), 100 << 20);
    }
    // Unused ones that are old enough.
    let policy = ImageGcPolicy {
        high_percent: 100,
        low_percent: 80,
        available_min: 0,
        min_age: Duration::ZERO,
        max_age: None,
    };
    world.start();
    for name in ["little", "much"] {
        world.run(name, &app(name, "", ""));
    }
    world.fake.program("c-done", Program::exits(3, Duration::ZERO));
    world.put("done", &app("done", "", "restartPolicy: Never, "));
    world.until("an end", |world| world.phase("done") == "Failed");
    let done = world.logs("done");
    assert!(done.exists() && world.count("RemoveContainer done/") == 0);
    world.stop();
    let config = Config { eviction: disk, meminfo: world.path("meminfo"), ..world.config() };
    world.spawn(Config { image_gc: Some(policy), ..config }, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    world.settle();
    let (dir, logs) = (world.pod_dir("much"), world.logs("much"));
    assert!(dir.exists() && logs.exists());
    world.until("the first end", |world| {
        // A measurement on a thread is abandoned after ten seconds, which should be more than a moment.
        std::thread::sleep(Duration::from_millis(100));
        world.count("StopContainer") > 0
    });
    world.until("the room it took", |_| !dir.exists() && !logs.exists());
    let actions = world.actions();
    let at = |call: &str| actions.iter().position(|action| action.starts_with(call)).unwrap();
    assert_eq!(world.count("RemoveImage"), 2, "busybox:1 is in use; {}", world.trace());
    assert!(at("RemoveContainer done/") < at("RemoveImage") && !done.exists());
    let last = world.status_of("done", "c-done").and_then(|status| status.state?.terminated);
    assert_eq!((world.phase("done").as_str(), last.map(|last| last.exit_code)), ("Failed", Some(3)));
    assert!(at("RemoveImage") < at("StopContainer") && at("StopContainer") == at("StopContainer much/"));
    assert!(why(&world, "much").1.starts_with("The node was low on resource: ephemeral-storage. "));
    world.until("the second", |world| gone(world, &["little"]));
}

#[test]
fn without_reported_usage_no_pod_is_evicted() {
    let world = world(hard());
    run(&world, "web", 60, "");
    world.fake.fail("ListContainerStats", u32::MAX, 2, "broken");
    memory(&world, 50);
    world.pass(80);
    assert!(world.table().contains("MemoryPressure"));
    assert_eq!((world.phase("web").as_str(), world.count("StopContainer")), ("Running", 0));
    world.fake.heal("ListContainerStats");
    world.until("the end", |world| gone(world, &["web"]));
}

#[test]
fn pressure_that_is_over_before_the_pods_are_measured_evicts_none() {
    let world = world(hard());
    run(&world, "web", 60, "");
    world.until("it runs", |world| world.phase("web") == "Running");
    world.fake.delay("ListContainerStats", Duration::from_secs(20));
    let before = world.fake.count("ListContainerStats");
    memory(&world, 50);
    world.until("a measurement", |world| world.fake.count("ListContainerStats") > before);
    assert!(world.table().contains("MemoryPressure"));
    memory(&world, 900);
    world.pass(80);
    assert_eq!((world.phase("web").as_str(), world.count("StopContainer")), ("Running", 0));
    memory(&world, 50);
    world.until("the end", |world| gone(world, &["web"]));
}

#[test]
fn a_hard_eviction_leaves_a_second_for_the_hook() {
    let world = world(hard());
    world.fake.state().memory.insert("c-web".to_owned(), i64::try_from(500 * MIB).unwrap());
    let hook = "lifecycle: {preStop: {exec: {command: [bye]}}}";
    world.run("web", &format!("containers: [{{name: c-web, image: 'busybox:1', {hook}}}]"));
    memory(&world, 50);
    world.until("its end", |world| world.count("StopContainer") == 1);
    assert_eq!(world.fake.count("ExecSync"), 1, "{}", world.trace());
}

#[test]
fn a_kill_that_takes_longer_than_its_grace_period_is_reported() {
    let world = world(hard());
    run(&world, "web", 500, "");
    world.fake.delay("StopContainer", Duration::from_secs(12));
    memory(&world, 50);
    let is_told = |world: &World| world.ask("/events").1.contains("ExceededGracePeriod");
    world.until("its end", |world| world.count("StopContainer") == 1);
    assert!(!is_told(&world), "it is still terminating");
    world.until("the words for it", is_told);
}
