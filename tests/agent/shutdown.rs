//! Node shutdown: pods are terminated by priority within their time, and started again by the next agent.

use std::time::Duration;

use smolet::model::Seconds;
use smolet::node::Stop;
use smolet::shutdown::{REFUSED_MESSAGE, ShutdownGroup, ShutdownGroups, TERMINATED_MESSAGE};

use crate::common::fake::Program;
use crate::world::World;

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";

fn groups(of: &[(i32, i64)]) -> ShutdownGroups {
    let group = |&(priority, grace)| ShutdownGroup { priority, grace: Seconds(grace) };
    ShutdownGroups::of_priorities(of.iter().map(group).collect()).unwrap()
}

/// Starts an agent with this time for its pods.
fn start(world: &World, of: &[(i32, i64)]) {
    let mut config = world.config();
    config.shutdown = groups(of);
    world.start_with(config);
}

fn reason(world: &World, pod: &str) -> (String, String) {
    let status = world.pod(pod).and_then(|pod| pod.status).unwrap_or_default();
    (status.reason.unwrap_or_default(), status.message.unwrap_or_default())
}

fn condition(world: &World, pod: &str, kind: &str) -> String {
    let conditions = world.pod(pod).and_then(|pod| pod.status?.conditions).unwrap_or_default();
    conditions.into_iter().find(|of| of.type_ == kind).map(|of| of.status).unwrap_or_default()
}

/// Advances virtual time until the agent has ended.
fn pass_until_stopped(world: &World) {
    // Without an agent there is no relist to wait for.
    world.silent(true);
    for _ in 0..60 {
        world.settle();
        if world.has_stopped() {
            return world.silent(false);
        }
        world.leap_for(Duration::from_secs(1));
        world.settle();
    }
    panic!("it does not end: {}", world.trace());
}

#[test]
fn pods_are_terminated_group_by_group_and_then_the_agent_ends() {
    let world = World::without_agent();
    start(&world, &[(0, 20), (2_000_000_000, 10)]);
    world.fake.program("slow", Program::STUBBORN);
    let slow = "terminationGracePeriodSeconds: 60, containers: [{name: slow, image: 'busybox:1'}]";
    world.run("slow", slow);
    world.run("quick", &format!("terminationGracePeriodSeconds: 7, {APP}"));
    world.run("node", &format!("priorityClassName: system-node-critical, {slow}"));
    world.run("own", &format!("priority: 2000000001, {APP}"));
    world.fake.clear_calls();
    let begun = world.seconds();
    world.tell(Stop::Pods);
    world.until("the stops", |world| world.count("StopContainer") == 2);
    // Each for its grace period, limited by its group's time, of which 2 s are for the kill.
    let stops = |world: &World| {
        let mut stops: Vec<String> =
            world.actions().into_iter().filter(|call| call.starts_with("StopContainer")).collect();
        stops.sort();
        stops
    };
    assert_eq!(stops(&world), ["StopContainer quick/app#0 grace=7", "StopContainer slow/slow#0 grace=18"]);
    world.until("its end", |world| world.phase("quick") == "Failed");
    let words = ("Terminated".to_owned(), TERMINATED_MESSAGE.to_owned());
    assert_eq!((reason(&world, "quick"), reason(&world, "slow")), (words.clone(), words));
    for pod in ["quick", "slow"] {
        assert_eq!(condition(&world, pod, "DisruptionTarget"), "True", "{pod}");
        assert_eq!(condition(&world, pod, "Ready"), "False", "{pod}");
    }
    assert_eq!((world.phase("node"), condition(&world, "node", "Ready")), ("Running".into(), "True".into()));
    // A new pod is rejected.
    world.put("late", APP);
    world.until("its refusal", |world| world.phase("late") == "Failed");
    assert_eq!(reason(&world, "late"), ("NodeShutdown".to_owned(), REFUSED_MESSAGE.to_owned()));
    // What ignores SIGTERM is killed within the first group's time, and the next one begins then.
    world.until("the critical pods' turn", |world| world.count("StopContainer node/slow#0 grace=8") == 1);
    assert!((18..=20).contains(&(world.seconds() - begun)), "{} s", world.seconds() - begun);
    assert_eq!(world.running(), ["node/slow#0"]);
    pass_until_stopped(&world);
    assert!((26..30).contains(&(world.seconds() - begun)), "{} s", world.seconds() - begun);
    assert_eq!((world.running(), world.count("RunPodSandbox")), (Vec::new(), 0));

    // The next agent starts all of them again.
    world.start();
    world.until("all run", |world| {
        let again = world.status_of("quick", "app").is_some_and(|app| app.restart_count == 1);
        again && ["slow", "quick", "node", "own", "late"].iter().all(|pod| world.phase(pod) == "Running")
    });
    assert_eq!((reason(&world, "quick"), condition(&world, "quick", "DisruptionTarget")), Default::default());
}

#[test]
fn what_ignores_sigterm_is_killed_before_the_agent_ends() {
    let world = World::without_agent();
    start(&world, &[(0, 3), (2_000_000_000, 2)]);
    world.fake.program("slow", Program::STUBBORN);
    let slow = "terminationGracePeriodSeconds: 60, containers: [{name: slow, image: 'busybox:1'}]";
    world.run("slow", slow);
    world.run("slower", slow);
    let begun = world.seconds();
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert_eq!(world.running(), [""; 0], "{}", world.trace());
    // No pod is critical: the others have their time too.
    let graces: Vec<String> =
        world.actions().into_iter().filter(|call| call.starts_with("StopContainer")).collect();
    assert!(graces.len() == 2 && graces.iter().all(|call| call.ends_with("grace=4")), "{graces:?}");
    assert!((4..=5).contains(&(world.seconds() - begun)), "{} s", world.seconds() - begun);
}

#[test]
fn groups_end_as_soon_as_their_pods_have_terminated() {
    let world = World::without_agent();
    start(&world, &[(-10, 300), (0, 300), (1000, 300)]);
    world.run("web", APP);
    let begun = world.seconds();
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert!(world.seconds() - begun <= 2, "{} s", world.seconds() - begun);
    assert_eq!(world.running(), [""; 0]);
}

#[test]
fn pods_keep_running_without_a_grace_period_and_when_only_the_agent_stops() {
    let world = World::new();
    world.run("web", APP);
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert_eq!(world.running(), ["web/app#0"]);
    start(&world, &[(0, 20)]);
    world.pass(2);
    world.stop();
    assert_eq!((world.running(), world.actions()), (vec!["web/app#0".to_owned()], Vec::new()));

    // The agent's own stop takes precedence over pods that are terminating.
    start(&world, &[(0, 300)]);
    world.fake.program("app", Program::STUBBORN);
    world.run("slow", APP);
    world.tell(Stop::Pods);
    world.until("the stop", |world| world.count("StopContainer slow/app#0") == 1);
    world.tell(Stop::Agent);
    pass_until_stopped(&world);
    assert_eq!(world.running(), ["slow/app#0"]);
}

#[test]
fn a_cancelled_shutdown_starts_the_pods_again() {
    let world = World::without_agent();
    start(&world, &[(0, 20)]);
    world.run("web", APP);
    world.run("once", &format!("restartPolicy: Never, {APP}"));
    world.tell(Stop::Prepare(None));
    world.until("their end", |world| world.running().is_empty() && world.phase("web") == "Failed");
    world.put("late", APP);
    world.until("its refusal", |world| world.phase("late") == "Failed");
    world.pass(10);
    assert_eq!(world.running(), [""; 0]);
    world.tell(Stop::Cancelled);
    world.until("they run", |world| {
        ["web", "once", "late"].iter().all(|pod| world.phase(pod) == "Running") && world.running().len() == 3
    });
    assert_eq!(reason(&world, "web"), Default::default());
    // And another one, which is not cancelled.
    world.tell(Stop::Prepare(None));
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert_eq!(world.running(), [""; 0]);
}

#[test]
fn a_pull_that_hangs_does_not_delay_the_shutdown() {
    let world = World::without_agent();
    world.fake.state().missing.insert("nowhere:1".to_owned());
    world.fake.hang("PullImage");
    start(&world, &[(0, 20)]);
    world.put("waits", "containers: [{name: app, image: 'nowhere:1'}]");
    world.until("the pull", |world| world.fake.count("PullImage") == 1);
    let begun = world.seconds();
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert!(world.seconds() - begun <= 3, "{} s", world.seconds() - begun);
    world.fake.heal("PullImage");
}
