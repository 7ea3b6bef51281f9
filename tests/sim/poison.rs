//! A pod whose handling ends the process twice is set aside; the others run.

use std::time::Duration;

use smolet::poison::watch_panics;

use crate::common::show_log;
use crate::world::World;

fn spec(image: u8) -> String {
    format!("containers: [{{name: app, image: 'busybox:{image}'}}]")
}

/// The agent's panics so far. Here a panic ends the task it happens in; in a release build it ends the process.
fn panics(world: &World) -> usize {
    std::fs::read_to_string(world.path("root/panics")).unwrap_or_default().lines().count()
}

/// A life of so many seconds, to its end by a panic or a kill; true when it panicked.
fn life(world: &mut World, seconds: u64) -> bool {
    let before = panics(world);
    world.start();
    world.pass(Duration::from_secs(seconds));
    world.kill();
    panics(world) > before
}

fn calls_of(world: &World, pod: &str) -> usize {
    let is = |call: &&crate::common::fake::Call| call.changes() && call.target.starts_with(pod);
    world.runtime.state(|state| state.calls.iter().filter(is).count())
}

#[test]
fn a_pod_that_ends_the_process_twice_is_set_aside() {
    show_log();
    let mut world = World::new(0);
    watch_panics(&world.path("root"));
    world.put("good", &spec(1));
    world.put("bad", &spec(1));
    // Kills count for nothing.
    for turns in 1..40 {
        world.dies_in = Some(turns);
        assert!(!life(&mut world, 1));
    }
    assert!(!world.path("root/panics").exists(), "nothing is written before a panic");

    world.runtime.panics_on(Some(("StopContainer", "bad-gw")));
    world.put("bad", &spec(2));
    assert!(life(&mut world, 5), "the fault shows");
    assert!(life(&mut world, 5), "once is not enough to blame the pod");
    world.runtime.state(|state| state.calls.clear());
    assert!(!life(&mut world, 60), "it is set aside");
    world.start();
    world.pass(Duration::from_secs(60));
    assert_eq!(calls_of(&world, "bad-gw"), 0, "nothing is done to it");
    assert!(world.table().contains("SetAside"), "{}", world.table());
    assert_eq!((&*world.phases()["good"], &*world.phases()["bad"]), ("Running", "Unknown"));

    // Another manifest is another try, in the same life too, and as many as the first had.
    world.put("bad", &spec(3));
    world.pass(Duration::from_secs(5));
    assert_eq!(panics(&world), 3);
    world.kill();
    assert!(life(&mut world, 5));
    assert!(!life(&mut world, 60));
    world.start();
    world.pass(Duration::from_secs(5));

    // So is its end, which succeeds without the fault.
    world.runtime.panics_on(None);
    world.remove("bad");
    world.pass(Duration::from_secs(60));
    assert!(world.runtime.state(|state| state.sandbox("bad-gw").is_none()));
    assert_eq!(world.phases().into_keys().collect::<Vec<_>>(), ["good"]);
}
