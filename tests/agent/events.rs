//! A runtime with an event stream: events that are correct, wrong, duplicate, late or missing.

use std::time::Duration;

use smolet::cri::EventService::{self, Containerd, Cri};

use crate::common::fake::{EventFaults, Program};
use crate::world::World;

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
/// containerd 1.6 reports an exit 31 to 83 ms after its event.
const LAG: Duration = Duration::from_millis(60);
/// The greatest interval between two relists.
const MINUTE: u32 = 61;

/// An agent that follows and trusts `service`.
fn world(service: EventService) -> World {
    let world = World::without_agent();
    world.fake.tell_events(service);
    if service == Containerd {
        world.fake.exit_lag(LAG);
    }
    world.seldom(true);
    world.start();
    world.run("web", APP);
    world.pass(2 * MINUTE);
    world
}

/// Advances so many virtual milliseconds, in steps as small as the agent's own.
fn millis(world: &World, millis: u32) {
    (0..millis).step_by(5).for_each(|_| world.leap_for(Duration::from_millis(5)));
}

#[test]
fn an_exit_is_followed_by_a_restart_at_once_and_without_a_relist() {
    for service in [Cri, Containerd] {
        let world = world(service);
        let before = world.relists();
        world.fake.clear_calls();
        world.fake.exit("web-gw/app", 1, "", "");
        millis(&world, 150);
        assert_eq!(world.running(), ["web/app#1"], "{service} {:?}", world.fake.calls());
        assert_eq!(world.relists(), before);
        let looks = world.fake.count("ContainerStatus");
        // Nine polls until the status shows the exit, because the first nine waits add up to 61 ms; three of two reads.
        assert!(looks <= 12, "{service}: {looks} looks: {:?}", world.fake.calls());
    }
}

#[test]
fn an_idle_pod_is_relisted_once_a_minute() {
    for service in [Cri, Containerd] {
        let world = world(service);
        let (before, turns) = (world.relists(), world.turns());
        for _ in 0..30 {
            world.leap_for(Duration::from_secs(20));
        }
        let relists = world.relists() - before;
        assert!((9..=11).contains(&relists), "{relists} relists in ten minutes");
        let turns = world.turns() - turns;
        // 30 scans of the manifests and 10 relists; an agent that relists every second has 2,000 turns and more.
        assert!(turns < 500, "{turns} turns in ten minutes");
        assert_eq!(world.fake.event_streams(), 1);
    }
}

#[test]
fn a_missed_change_is_found_and_counted_and_the_stream_is_doubted() {
    for service in [Cri, Containerd] {
        let world = world(service);
        world.fake.event_faults(EventFaults { lost: 100, ..EventFaults::default() });
        world.fake.exit("web-gw/app", 1, "", "");
        world.pass(MINUTE);
        assert_eq!(world.running(), ["web/app#1"], "the slow relist finds it");
        // It may have happened in the minute's last second, and its effect is a change without an event too.
        world.pass(5);
        let before = world.relists();
        world.pass(10);
        assert!(world.relists() - before >= 9, "relisted every second");
        world.fake.event_faults(EventFaults::default());
        // Only one of the services is available, and is retried with back-off until then.
        world.pass(10);
        world.run("other", APP);
        world.pass(2);
        let before = world.relists();
        world.pass(30);
        assert!(world.relists() - before <= 1, "trusted again");
    }
}

#[test]
fn duplicate_late_and_reordered_events_have_the_same_effect() {
    for service in [Cri, Containerd] {
        for seed in 0..4 {
            let world = world(service);
            world.fake.event_faults(EventFaults {
                seed,
                doubled: 50,
                late: 50,
                delay: Duration::from_millis(400),
                ..EventFaults::default()
            });
            world.fake.clear_calls();
            world.fake.exit("web-gw/app", 1, "", "");
            world.pass(15);
            world.run("other", APP);
            world.remove("other");
            world.until("its end", |world| world.fake.state().sandboxes.len() == 1);
            world.pass(5);
            assert_eq!(world.running(), ["web/app#1"]);
            let ours = |call: &&String| call.contains("web/app");
            let actions = world.actions();
            let of_web: Vec<&String> = actions.iter().filter(ours).collect();
            assert_eq!(of_web, ["CreateContainer web/app#1", "StartContainer web/app#1"], "{service} {seed}");
        }
    }
}

#[test]
fn an_exit_before_its_container_was_read_is_not_lost() {
    let world = world(Containerd);
    // The event precedes the response to StartContainer, and the status follows later.
    world.fake.program("short", Program::exits(0, Duration::ZERO));
    let before = world.relists();
    world.put("job", "restartPolicy: Never, containers: [{name: short, image: 'busybox:1'}]");
    world.step();
    millis(&world, 200);
    assert_eq!(world.phase("job"), "Succeeded");
    assert!(world.relists() - before <= 1, "{} relists", world.relists() - before);
}

#[test]
fn a_stream_that_ends_is_reopened_and_no_change_is_missed() {
    for service in [Cri, Containerd] {
        let world = world(service);
        world.fake.event_faults(EventFaults { lost: 100, ..EventFaults::default() });
        world.fake.exit("web-gw/app", 1, "", "");
        // A read of the state makes the fake send events: without a subscriber.
        assert_eq!(world.fake.event_streams(), 1);
        world.fake.event_faults(EventFaults::default());
        world.fake.end_event_streams();
        world.step();
        assert_eq!(world.fake.event_streams(), 1, "{service}");
        world.pass(2);
        assert_eq!(world.running(), ["web/app#1"], "the relist at its end finds it");
    }
}

#[test]
fn a_stream_without_events_is_relisted_with_back_off_until_it_misses_a_change() {
    let world = World::without_agent();
    world.fake.tell_events(Cri);
    world.fake.event_faults(EventFaults { hang: true, ..EventFaults::default() });
    world.seldom(true);
    world.start();
    let before = world.relists();
    world.pass(70);
    assert!(world.relists() - before <= 8, "{} relists", world.relists() - before);
    // A container that our own job starts shows that no event arrives.
    world.run("web", APP);
    world.pass(2);
    world.fake.exit("web-gw/app", 1, "", "");
    world.pass(2);
    assert_eq!(world.running(), ["web/app#1"]);
    let before = world.relists();
    world.pass(10);
    assert!(world.relists() - before >= 9, "relisted every second");
}

#[test]
fn a_sandbox_and_a_container_removed_by_others_are_created_again_at_once() {
    for service in [Cri, Containerd] {
        let world = world(service);
        let before = world.relists();
        world.fake.stop_sandbox("web-gw");
        world.until("the container runs anew", |world| world.running() == ["web/app#1"]);
        world.fake.forget_container("web-gw/app");
        world.until("and once more", |world| world.running().len() == 1);
        assert!(world.relists() - before <= 1, "{service}: all was looked at, not what it was told of");
    }
}

#[test]
fn events_of_other_clients_cause_few_relists() {
    let world = world(Containerd);
    let before = world.relists();
    world.fake.clear_calls();
    for name in ["a", "b", "c"] {
        let metadata = smolet::proto::runtime::v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("foreign-{name}"),
            namespace: "other".to_owned(),
            attempt: 0,
        };
        let sandbox =
            smolet::proto::runtime::v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
        world.fake.run_pod(sandbox, Vec::new());
        world.step();
    }
    world.pass(10);
    let relists = world.relists() - before;
    assert!((1..=2).contains(&relists), "{relists} relists");
    assert_eq!(world.actions(), [""; 0]);
}

#[test]
fn a_flood_of_events_loses_no_change() {
    let world = world(Containerd);
    let foreign: Vec<String> = (0..400).map(|n| format!("foreign-{n}")).collect();
    for uid in &foreign {
        let metadata = smolet::proto::runtime::v1::PodSandboxMetadata {
            name: uid.clone(),
            uid: uid.clone(),
            namespace: "other".to_owned(),
            attempt: 0,
        };
        let sandbox =
            smolet::proto::runtime::v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
        world.fake.run_pod(sandbox, Vec::new());
    }
    world.pass(20);
    // More exits at once than the loop's queue holds, ours last: it is dropped, and a relist follows.
    world.fake.event_faults(EventFaults { delay: Duration::from_millis(900), ..EventFaults::default() });
    foreign.iter().for_each(|uid| world.fake.stop_sandbox(uid));
    world.fake.exit("web-gw/app", 1, "", "");
    world.pass(3);
    assert_eq!(world.running(), ["web/app#1"]);
}

#[test]
fn a_container_that_another_client_created_during_a_pull_is_not_created_twice() {
    let world = world(Cri);
    world.fake.hang("PullImage");
    world.put("late", "containers: [{name: app, image: 'far:1'}]");
    world.until("the pull", |world| world.count("PullImage") == 1);
    // Another client creates this container meanwhile.
    world.fake.add_image("far:1");
    let uid = world.uid("late");
    let label = |name: &str, value: &str| (format!("io.kubernetes.{name}"), value.to_owned());
    let container = smolet::proto::runtime::v1::ContainerConfig {
        metadata: Some(smolet::proto::runtime::v1::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(smolet::proto::runtime::v1::ImageSpec { image: "far:1".into(), ..Default::default() }),
        labels: [
            label("pod.name", "late-gw"),
            label("pod.namespace", "default"),
            label("pod.uid", &uid),
            label("container.name", "app"),
        ]
        .into(),
        ..Default::default()
    };
    world.fake.clear_calls();
    world.fake.run_container("late-gw", container);
    world.step();
    world.fake.heal("PullImage");
    world.pass(1);
    let made = |attempt: u32| world.count(&format!("CreateContainer late/app#{attempt}"));
    assert_eq!(made(0), 0, "{:?}", world.actions());
}
