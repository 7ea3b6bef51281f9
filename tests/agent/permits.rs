//! Operations of one pod that hang do not use up another pod's permits.

use crate::world::World;

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";

/// A pod with this number of equal containers.
fn many(containers: usize, more: &str) -> String {
    let containers: Vec<String> =
        (0..containers).map(|n| format!("{{name: app{n}, image: 'busybox:1'{more}}}")).collect();
    format!("terminationGracePeriodSeconds: 3600, containers: [{}]", containers.join(", "))
}

/// Three pods with more containers than there are permits, and more pods than halves of them.
const STUCK: [usize; 11] = [40, 40, 40, 2, 2, 2, 2, 2, 2, 2, 2];

fn run_stuck(world: &World, more: &str) {
    for (n, containers) in STUCK.iter().enumerate() {
        world.run(&format!("stuck{n}"), &many(*containers, more));
    }
}

fn remove_stuck(world: &World, call: &str) {
    for n in 0..STUCK.len() {
        world.remove(&format!("stuck{n}"));
        world.until("its end to begin", |world| world.count(&format!("{call} stuck{n}/")) > 0);
    }
}

#[test]
fn containers_that_ignore_their_stop_delay_no_other_pod() {
    let world = World::new();
    world.run("deleted", APP);
    run_stuck(&world, "");
    world.fake.hang_on("StopContainer", "stuck");
    remove_stuck(&world, "StopContainer");
    let began = world.seconds();
    world.remove("deleted");
    world.until("another pod's end", |world| world.pod("deleted").is_none());
    world.run("new", APP);
    let took = world.seconds() - began;
    assert!(took < 10, "{took} s");
    world.fake.heal("StopContainer");
    world.until("their end", |world| world.pods().len() == 1);
}

#[test]
fn hooks_that_hang_delay_no_other_pod() {
    let world = World::new();
    let hooks = |hook: &str| format!(", lifecycle: {{{hook}: {{exec: {{command: [x]}}}}}}");
    world.run("deleted", &many(2, &hooks("preStop")));
    run_stuck(&world, &hooks("preStop"));
    world.fake.hang_on("ExecSync", "stuck");
    remove_stuck(&world, "ExecSync");
    let began = world.seconds();
    world.remove("deleted");
    world.until("another pod's end", |world| world.pod("deleted").is_none());
    assert_eq!(world.count("ExecSync deleted/"), 2, "its hooks have run");
    world.run("new", &many(2, &hooks("postStart")));
    let took = world.seconds() - began;
    assert!(took < 10, "{took} s");
    world.fake.heal("ExecSync");
    world.until("their end", |world| world.pods().len() == 1);
}
