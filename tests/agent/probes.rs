//! Probes: effects of their results, and their schedule.

use std::collections::BTreeSet;
use std::time::Duration;

use smolet::limits::PROBES_AT_ONCE_MAX;

use crate::common::fake::{Exec, Program};
use crate::metrics::{count, entries};
use crate::world::World;

const SECOND: i64 = 1_000_000_000;
const YEARS: i64 = 10 * 365 * 24 * 3600;

fn failing() -> Exec {
    Exec { code: 1, stdout: b"not yet".to_vec(), stderr: b", sorry".to_vec() }
}

fn app(probes: &str) -> String {
    format!("containers: [{{name: app, image: 'busybox:1', {probes}}}]")
}

fn exec(kind: &str, more: &str) -> String {
    format!("{kind}Probe: {{exec: {{command: [{kind}]}}{more}}}")
}

fn condition(world: &World, pod: &str, kind: &str) -> String {
    let conditions = world.pod(pod).and_then(|pod| pod.status?.conditions).unwrap_or_default();
    conditions.into_iter().find(|c| c.type_ == kind).map(|c| c.status).unwrap_or_default()
}

fn ready(world: &World, pod: &str) -> bool {
    condition(world, pod, "Ready") == "True"
}

fn asked(world: &World, call: &str) -> Vec<i64> {
    world.times(&format!("ExecSync {call}"))
}

#[test]
fn a_readiness_probe_decides_whether_the_pod_is_ready_and_nothing_else() {
    let world = World::new();
    world.fake.exec("readiness", failing());
    world
        .run("web", &app(&exec("readiness", ", failureThreshold: 2, successThreshold: 2, periodSeconds: 5")));
    world.pass(12);
    assert!(!ready(&world, "web"));
    assert_eq!(condition(&world, "web", "ContainersReady"), "False");
    let shown = world.describe("web");
    assert!(shown.contains("Readiness probe failed: not yet, sorry"), "{shown}");
    let begun = asked(&world, "web/app").len();
    world.fake.exec("readiness", Exec::default());
    world.until("it to be ready", |world| ready(world, "web"));
    assert_eq!(asked(&world, "web/app").len(), begun + 2, "two in a row");
    world.fake.exec("readiness", failing());
    let begun = asked(&world, "web/app").len();
    world.until("it not to be ready", |world| !ready(world, "web"));
    assert_eq!(asked(&world, "web/app").len(), begun + 2);
    assert_eq!((world.count("StopContainer"), world.count("StartContainer")), (0, 1));
    let times = asked(&world, "web/app");
    assert!(times.windows(2).all(|pair| (4..=5).contains(&(pair[1] - pair[0]))), "{times:?}");
}

#[test]
fn a_container_whose_liveness_probe_fails_is_replaced_after_the_probes_grace_period() {
    let world = World::new();
    let liveness =
        exec("liveness", ", periodSeconds: 2, failureThreshold: 3, terminationGracePeriodSeconds: 7");
    world.run("web", &app(&format!("{liveness}, {}", exec("readiness", ", periodSeconds: 3600"))));
    world.until("it to be ready", |world| ready(world, "web"));
    world.pass(5);
    world.fake.exec("liveness", failing());
    let begun = asked(&world, "web/app#0 liveness").len();
    world.until("another one", |world| world.running() == ["web/app#1"]);
    assert_eq!(asked(&world, "web/app#0 liveness").len(), begun + 3);
    assert_eq!(
        world.actions().iter().filter(|call| call.starts_with("StopContainer")).collect::<Vec<_>>(),
        ["StopContainer web/app#0 grace=7"]
    );
    let shown = world.describe("web");
    assert!(shown.contains("Liveness probe failed: not yet"), "{shown}");
    assert!(shown.contains("Container app failed liveness probe, will be restarted"), "{shown}");
    assert_eq!(asked(&world, "web/app#1 readiness").len(), 1, "the next one is probed at once");
    // It fails as well: soon it is in back-off, as after every crash.
    world.until("a wait", |world| world.waiting("web", "app").0 == "CrashLoopBackOff");
    assert!(world.status_of("web", "app").unwrap().restart_count >= 1);
}

#[test]
fn a_failed_probe_does_not_wait_for_the_pods_image_pull() {
    let world = World::new();
    world.fake.missing_image("nothere:1");
    let probe = exec("liveness", ", periodSeconds: 1, failureThreshold: 1");
    let containers =
        format!("{{name: app, image: 'busybox:1', {probe}}}, {{name: other, image: 'nothere:1'}}");
    world.put("web", &format!("containers: [{containers}]"));
    // From here on the next pull is minutes away.
    world.until("it to run", |world| world.running() == ["web/app#0"]);
    world.leap(300);
    world.until("the pull to wait", |world| world.waiting("web", "other").0 == "ImagePullBackOff");
    world.fake.clear_calls();
    world.fake.exec("liveness", failing());
    world.pass(3);
    assert_eq!((world.count("StopContainer web/app#0"), world.count("PullImage")), (1, 0));
}

#[test]
fn a_container_that_must_not_restart_is_only_killed() {
    let world = World::new();
    world.fake.exec("liveness", failing());
    let probe = exec("liveness", ", periodSeconds: 1");
    let containers =
        format!("{{name: other, image: 'busybox:1'}}, {{name: app, image: 'busybox:1', {probe}}}");
    world.put("web", &format!("restartPolicy: Never, containers: [{containers}]"));
    world.until("its end", |world| world.count("StopContainer web/app#0") == 1);
    world.pass(5);
    assert_eq!((world.count("StartContainer"), world.running()), (2, vec!["web/other#0".to_owned()]));
    assert!(world.describe("web").contains("Container app failed liveness probe"));
}

#[test]
fn the_other_probes_wait_for_the_startup_probe() {
    let world = World::new();
    world.fake.exec("startup", failing());
    let probes = [
        exec("startup", ", periodSeconds: 2, failureThreshold: 5"),
        exec("liveness", ""),
        exec("readiness", ""),
    ];
    world.put("web", &app(&probes.join(", ")));
    world.until("three tries", |world| asked(world, "web/app#0 startup").len() == 3);
    assert_eq!(world.status_of("web", "app").unwrap().started, Some(false));
    assert_eq!(asked(&world, "web/app#0 liveness").len() + asked(&world, "web/app#0 readiness").len(), 0);
    world.fake.exec("startup", Exec::default());
    world.until("it to be ready", |world| ready(world, "web"));
    assert_eq!(world.status_of("web", "app").unwrap().started, Some(true));
    world.pass(8);
    let of = |kind| asked(&world, &format!("web/app#0 {kind}"));
    assert_eq!((of("startup").len(), of("liveness").len(), of("readiness").len()), (4, 1, 1));
    assert_eq!(of("startup")[3], of("readiness")[0], "at once");
    assert_eq!(world.count("StopContainer"), 0);
}

#[test]
fn a_startup_probe_that_fails_for_too_long_ends_the_container() {
    let world = World::new();
    world.fake.exec("startup", failing());
    let startup =
        exec("startup", ", periodSeconds: 1, failureThreshold: 4, terminationGracePeriodSeconds: 9");
    world.put("web", &app(&format!("{startup}, {}", exec("liveness", ", terminationGracePeriodSeconds: 3"))));
    world.until("another one", |world| world.running() == ["web/app#1"]);
    assert_eq!(asked(&world, "web/app#0 startup").len(), 4);
    assert_eq!(world.count("StopContainer web/app#0 grace=9"), 1);
    assert!(world.describe("web").contains("Container app failed startup probe, will be restarted"));
}

#[test]
fn a_sidecars_startup_probe_gates_the_next_init_container() {
    let world = World::new();
    world.fake.exec("startup", failing());
    world.fake.program("second", Program::exits(0, Duration::ZERO));
    let side = format!(
        "{{name: side, image: 'busybox:1', restartPolicy: Always, {}}}",
        exec("startup", ", periodSeconds: 2, failureThreshold: 30")
    );
    let spec =
        format!("initContainers: [{side}, {{name: second, image: 'busybox:1'}}], {}", app("command: [x]"));
    world.put("web", &spec);
    world.until("the sidecar to be asked", |world| asked(world, "web/side").len() == 4);
    assert_eq!(world.running(), ["web/side#0"]);
    assert_eq!(world.count("CreateContainer"), 1);
    // Its result from before the agent's restart still counts; a missing one is waited for.
    world.kill();
    world.start();
    world.pass(3);
    assert_eq!(world.running(), ["web/side#0"]);
    world.fake.exec("startup", Exec::default());
    world.until("the app", |world| world.phase("web") == "Running" && ready(world, "web"));
    world.stop();
    world.fake.exec("startup", failing());
    world.start();
    world.pass(70);
    assert_eq!(world.count("StopContainer"), 0, "it had started");
    assert_eq!(asked(&world, "web/side").len(), 0);
    assert!(ready(&world, "web"));
}

#[test]
fn a_restart_of_the_agent_keeps_readiness_until_a_probe_fails() {
    for clock_steps in [0, YEARS, -YEARS] {
        let world = World::new();
        world.fake.exec("down-gw/app", failing());
        for pod in ["web", "down"] {
            world.run(pod, &app(&exec("readiness", ", periodSeconds: 20, failureThreshold: 2")));
        }
        world.until("it to be ready", |world| ready(world, "web"));
        world.pass(30);
        let since = |world: &World| {
            let conditions = world.pod("web").unwrap().status.unwrap().conditions.unwrap();
            conditions.into_iter().find(|c| c.type_ == "Ready").unwrap().last_transition_time
        };
        let before = since(&world);
        world.stop();
        world.clock.step_wall(clock_steps);
        world.fake.exec("web-gw/app", failing());
        world.start();
        world.until("the pods to be read", |world| world.status_of("web", "app").is_some());
        assert!(ready(&world, "web") && !ready(&world, "down"), "{clock_steps}");
        assert_eq!(since(&world), before, "{clock_steps}: it was so all the time");
        world.until("it not to be ready", |world| !ready(world, "web"));
        assert_eq!(asked(&world, "web/app").len(), 2, "{clock_steps}");
        assert_eq!(world.count("StartContainer"), 0);
    }
}

#[test]
fn a_step_of_the_wall_clock_delays_no_probe() {
    for step in [YEARS, -YEARS] {
        let world = World::new();
        let delayed = exec("liveness", ", initialDelaySeconds: 30, periodSeconds: 10, failureThreshold: 2");
        let startup = exec("startup", ", periodSeconds: 10");
        world.fake.exec("startup", failing());
        world.put("web", &app(&format!("{delayed}, {startup}")));
        world.until("the first probe", |world| asked(world, "web/app#0 startup").len() == 1);
        let start = asked(&world, "web/app#0 startup")[0];
        world.clock.step_wall(step);
        // Only from here on the liveness probe is scheduled, from the container's start.
        world.fake.exec("startup", Exec::default());
        world.pass(35);
        world.clock.step_wall(-step);
        world.fake.exec("liveness", failing());
        world.until("another one", |world| world.running() == ["web/app#1"]);
        let after: Vec<i64> = asked(&world, "web/app#0 liveness").iter().map(|at| at - start).collect();
        assert_eq!(after, [30, 40, 50], "{step}");
    }
}

#[test]
fn probes_that_hang_delay_others_only_at_the_limit_and_late_ones_are_counted() {
    let world = World::new();
    world.fake.hang_on("ExecSync", "stuck");
    let readiness = exec("readiness", ", periodSeconds: 5");
    world.run("good", &app(&readiness));
    for n in 0..PROBES_AT_ONCE_MAX - 1 {
        world.run(&format!("stuck{n}"), &app(&readiness));
    }
    world.until("all but one to hang", |world| entries(world, "probes_running") == PROBES_AT_ONCE_MAX - 1);
    let begun = asked(&world, "good/app").len();
    world.pass(20);
    assert_eq!(asked(&world, "good/app").len(), begun + 4);
    assert_eq!(count(&world, "smolet_probes_late_total"), 0);
    // With one more there is no permit for another probe, and no busy loop.
    world.run("stuck-too", &app(&readiness));
    world.until("all to hang", |world| entries(world, "probes_running") == PROBES_AT_ONCE_MAX);
    world.pass(10);
    let (begun, turns) = (asked(&world, "good/app").len(), world.turns());
    world.pass(20);
    assert_eq!(asked(&world, "good/app").len(), begun, "it waits");
    assert!(world.turns() - turns < 1000, "{} turns for nothing", world.turns() - turns);
    assert_eq!(entries(&world, "probers"), PROBES_AT_ONCE_MAX + 1);
    world.fake.heal("ExecSync");
    world.until("its probe", |world| asked(world, "good/app").len() > begun);
    assert!(count(&world, "smolet_probes_late_total") >= 1);
    // A removed pod cancels its probes.
    world.fake.hang_on("ExecSync", "stuck");
    world.until("some to hang", |world| entries(world, "probes_running") > 3);
    for n in 0..PROBES_AT_ONCE_MAX - 1 {
        world.remove(&format!("stuck{n}"));
    }
    world.remove("stuck-too");
    world.until("the pods to go", |world| world.pods().len() == 1);
    assert_eq!((entries(&world, "probes_running"), entries(&world, "probers")), (0, 1));
}

#[test]
fn probes_of_one_pod_that_hang_delay_no_other_pod() {
    let world = World::new();
    world.fake.hang_on("ExecSync", "stuck");
    let readiness = exec("readiness", ", periodSeconds: 5");
    let many: Vec<String> =
        (0..16).map(|n| format!("{{name: app{n}, image: 'busybox:1', {readiness}}}")).collect();
    // One of each pod in any case, and a share of the common permits.
    for (name, running) in
        [("stuck0", 4), ("stuck1", 6), ("stuck2", 8), ("stuck3", 9), ("stuck4", 10), ("stuck5", 11)]
    {
        world.put(name, &format!("terminationGracePeriodSeconds: 2, containers: [{}]", many.join(", ")));
        world.until(name, |world| entries(world, "probes_running") >= running);
        world.pass(10);
        assert_eq!(entries(&world, "probes_running"), running, "{name}");
    }
    world.run("good", &app(&readiness));
    world.until("it to be ready", |world| ready(world, "good"));
    let (begun, turns) = (asked(&world, "good/app").len(), world.turns());
    world.pass(20);
    assert_eq!(asked(&world, "good/app").len(), begun + 4, "in time");
    assert!(world.turns() - turns < 1000, "{} turns for nothing", world.turns() - turns);
}

#[test]
fn a_probe_that_cannot_be_run_has_no_effect() {
    let world = World::new();
    world.run(
        "web",
        &app(&format!(
            "{}, {}",
            exec("liveness", ", periodSeconds: 1"),
            exec("readiness", ", periodSeconds: 1")
        )),
    );
    world.until("it to be ready", |world| ready(world, "web"));
    world.fake.fail("ExecSync", u32::MAX, 2, "no runc here");
    let begun = asked(&world, "web/app#0 liveness").len();
    world.pass(5);
    assert_eq!(asked(&world, "web/app#0 liveness").len(), begun + 15, "each is tried three times");
    assert!(ready(&world, "web"));
    assert_eq!(world.count("StopContainer"), 0);
    let shown = world.describe("web");
    assert!(shown.contains("Liveness probe errored and resulted in unknown state: no runc here"), "{shown}");
    assert_eq!(count(&world, "prober_probe_total{probe_type=\"Liveness\",result=\"unknown\"}"), 5);
    // The runtime's report of a command's timeout is a result.
    world.fake.heal("ExecSync");
    world.fake.fail_on("ExecSync", "liveness", 3, 4, "timeout 1s exceeded");
    world.until("another one", |world| world.running() == ["web/app#1"]);
    assert!(
        world
            .describe("web")
            .contains("Liveness probe failed: command timed out: ExecSync: timeout 1s exceeded")
    );
    assert_eq!(count(&world, "prober_probe_total{probe_type=\"Liveness\",result=\"failed\"}"), 3);
}

#[test]
fn a_result_of_a_removed_container_does_not_count_for_the_next() {
    let world = World::new();
    world.run("web", &app(&exec("readiness", ", periodSeconds: 3")));
    world.until("it to be ready", |world| ready(world, "web"));
    world.fake.hang_on("ExecSync", "web-gw/app#0");
    world.until("a probe to hang", |world| entries(world, "probes_running") == 1);
    world.fake.exit("web-gw/app", 1, "Error", "");
    world.until("the next one to be ready", |world| world.running() == ["web/app#1"] && ready(world, "web"));
    assert_eq!(entries(&world, "probes_running"), 1, "the old one's still hangs");
    world.fake.heal("ExecSync");
    world.pass(4);
    assert!(ready(&world, "web"));
    assert!(!world.describe("web").contains("Readiness probe failed"));
}

#[test]
fn a_terminating_pod_has_only_readiness_probes() {
    let world = World::new();
    world.fake.program("app", Program::STUBBORN);
    let probes = [exec("liveness", ", periodSeconds: 1"), exec("readiness", ", periodSeconds: 1")];
    world.run("web", &format!("terminationGracePeriodSeconds: 20, {}", app(&probes.join(", "))));
    world.until("it to be ready", |world| ready(world, "web"));
    world.remove("web");
    world.until("its end to begin", |world| world.count("StopContainer") == 1);
    let of = |kind| asked(&world, &format!("web/app#0 {kind}")).len();
    let (liveness, readiness) = (of("liveness"), of("readiness"));
    world.pass(10);
    assert_eq!((of("liveness"), of("readiness")), (liveness, readiness + 10));
    world.until("it to go", |world| world.pods().is_empty());
}

#[test]
fn many_probes_cause_as_many_wakeups_as_one() {
    const PODS: usize = 110;
    let world = World::without_agent();
    let probes = [exec("startup", ""), exec("liveness", ""), exec("readiness", "")];
    for n in 0..PODS {
        world.put(&format!("web{n}"), &app(&probes.join(", ")));
    }
    world.start();
    world.until("all to be ready", |world| {
        let running = world.running().len();
        running == PODS
            && count(world, "prober_probe_total{probe_type=\"Readiness\",result=\"successful\"}") >= PODS
    });
    world.pass(10);
    world.fake.clear_calls();
    let begun = world.seconds();
    world.pass(60);
    let calls: Vec<i64> = {
        let state = world.fake.state();
        state.calls.iter().filter(|call| call.method == "ExecSync").map(|call| call.mono.0).collect()
    };
    assert_eq!(calls.len(), PODS * 2 * 6, "each liveness and readiness probe, every ten seconds");
    let at: BTreeSet<i64> = calls.into_iter().collect();
    assert!(at.iter().all(|at| at % SECOND == 0), "at whole seconds");
    assert!(at.len() <= usize::try_from(world.seconds() - begun).unwrap(), "{at:?}");
    assert_eq!(entries(&world, "probers"), PODS * 3);
}
