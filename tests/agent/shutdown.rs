//! The node shuts down: pods end by priority within their time, and come back with the next agent.

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

/// An agent that gives its pods so long.
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

/// Virtual time goes by until the agent has ended.
fn pass_until_stopped(world: &World) {
    // Without an agent no relist can be waited for.
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
fn pods_end_group_by_group_and_the_agent_with_them() {
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
    // Each as long as it asks for, and no longer than its group has.
    let stops = |world: &World| {
        let mut stops: Vec<String> =
            world.actions().into_iter().filter(|call| call.starts_with("StopContainer")).collect();
        stops.sort();
        stops
    };
    assert_eq!(stops(&world), ["StopContainer quick/app#0 grace=7", "StopContainer slow/slow#0 grace=20"]);
    world.until("its end", |world| world.phase("quick") == "Failed");
    let words = ("Terminated".to_owned(), TERMINATED_MESSAGE.to_owned());
    assert_eq!((reason(&world, "quick"), reason(&world, "slow")), (words.clone(), words));
    for pod in ["quick", "slow"] {
        assert_eq!(condition(&world, pod, "DisruptionTarget"), "True", "{pod}");
        assert_eq!(condition(&world, pod, "Ready"), "False", "{pod}");
    }
    assert_eq!((world.phase("node"), condition(&world, "node", "Ready")), ("Running".into(), "True".into()));
    // What comes now is refused.
    world.put("late", APP);
    world.until("its refusal", |world| world.phase("late") == "Failed");
    assert_eq!(reason(&world, "late"), ("NodeShutdown".to_owned(), REFUSED_MESSAGE.to_owned()));
    // The next group is not kept waiting by the first one for longer than that one's time.
    world.until("the critical pods' turn", |world| world.count("StopContainer node/slow#0 grace=10") == 1);
    assert!((20..=22).contains(&(world.seconds() - begun)), "{} s", world.seconds() - begun);
    pass_until_stopped(&world);
    assert!((30..=33).contains(&(world.seconds() - begun)), "{} s", world.seconds() - begun);
    assert_eq!((world.running(), world.count("RunPodSandbox")), (Vec::new(), 0));

    // With the next agent all of them are kept again.
    world.start();
    world.until("all run", |world| {
        let again = world.status_of("quick", "app").is_some_and(|app| app.restart_count == 1);
        again && ["slow", "quick", "node", "own", "late"].iter().all(|pod| world.phase(pod) == "Running")
    });
    assert_eq!((reason(&world, "quick"), condition(&world, "quick", "DisruptionTarget")), Default::default());
}

#[test]
fn a_group_without_pods_is_not_waited_for_and_a_quick_one_not_longer_than_it_takes() {
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
fn without_a_time_for_them_and_at_the_agents_own_end_pods_run_on() {
    let world = World::new();
    world.run("web", APP);
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert_eq!(world.running(), ["web/app#0"]);
    start(&world, &[(0, 20)]);
    world.pass(2);
    world.stop();
    assert_eq!((world.running(), world.actions()), (vec!["web/app#0".to_owned()], Vec::new()));

    // The agent's own end goes before that of pods that take their time.
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
fn a_shutdown_that_is_called_off_brings_the_pods_back() {
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
    // And another one, in earnest.
    world.tell(Stop::Prepare(None));
    world.tell(Stop::Pods);
    pass_until_stopped(&world);
    assert_eq!(world.running(), [""; 0]);
}

#[test]
fn a_pull_that_hangs_does_not_hold_up_the_end() {
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
