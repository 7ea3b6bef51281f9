//! Garbage collection of dead containers and of links to removed logs. The decisions are tested in `gc`.

use std::os::unix::fs::symlink;
use std::time::Duration;

use smolet::config::Config;
use smolet::gc::GcPolicy;

use crate::common::fake::Program;
use crate::world::{World, names};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const INIT: &str =
    "initContainers: [{name: init, image: 'busybox:1'}], containers: [{name: app, image: 'busybox:1'}]";

/// An agent with that policy for dead containers.
fn world(policy: GcPolicy) -> World {
    let world = World::without_agent();
    world.spawn(Config { dead_containers: policy, ..world.config() }, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    world.settle();
    world
}

/// The dead containers in the runtime, as `POD/CONTAINER#ATTEMPT`, sorted.
fn dead(world: &World) -> Vec<String> {
    let mut dead: Vec<String> = world.fake.state().dead();
    dead.iter_mut().for_each(|name| *name = name.replace("-gw", ""));
    dead.sort();
    dead
}

/// The termination logs that the runtime's records of the container `app` have mounted, of running ones or of all.
fn mounted_logs(world: &World, all: bool) -> Vec<String> {
    let state = world.fake.state();
    let containers = state.containers.values().filter(|of| of.name() == "app" && (all || of.running()));
    let mounts = containers.flat_map(|of| &of.config.mounts);
    let logs = mounts.filter(|mount| mount.container_path == "/dev/termination-log");
    let mut logs: Vec<String> = logs.map(|mount| mount.host_path.clone()).collect();
    logs.sort();
    logs
}

#[test]
fn only_the_termination_logs_of_existing_containers_are_kept() {
    let world = World::new();
    world.run("web", APP);
    for start in 1..5 {
        let said = format!("end of {start}");
        std::fs::write(&mounted_logs(&world, false)[0], &said).unwrap();
        world.fake.exit("web-gw/app", 1, "Error", "");
        world.until("the next start", |world| world.running() == [format!("web/app#{start}")]);
        // The last one's message is kept.
        world.until("the message", |world| {
            let last = world.status_of("web", "app").and_then(|status| status.last_state?.terminated);
            last.and_then(|last| last.message).as_ref() == Some(&said)
        });
    }
    // A failed start leaves one too, until the next.
    world.fake.fail("CreateContainer", 2, 2, "no");
    world.fake.exit("web-gw/app", 1, "Error", "");
    for _ in 0..60 {
        if world.running() == ["web/app#5"] {
            break;
        }
        world.leap(20);
    }
    assert_eq!(
        (world.running(), world.count("CreateContainer web/app#5")),
        (vec!["web/app#5".to_owned()], 3)
    );
    let dir = world.pod_dir("web").join("containers/app");
    let there: Vec<String> =
        names(&dir).into_iter().map(|name| format!("{}/{name}", dir.display())).collect();
    assert_eq!(there, mounted_logs(&world, true), "{}", world.trace());
    assert!(there.len() <= 2, "{there:?}");
}

#[test]
fn the_newest_dead_containers_of_each_name_are_kept() {
    let world = world(GcPolicy { per_container_max: Some(2), ..GcPolicy::default() });
    world.fake.program("app", Program::exits(1, Duration::from_secs(1)));
    world.put("web", APP);
    world.until("four starts", |world| world.count("StartContainer web/app#3") == 1);
    world.until("their ends", |world| dead(world) == ["web/app#2", "web/app#3"]);
    assert_eq!(world.count("RemoveContainer"), 2, "{}", world.trace());
}

#[test]
fn dead_containers_go_while_another_one_of_their_pod_cannot_start() {
    let world = World::new();
    world.fake.missing_image("nothere:1");
    world.fake.program("app", Program::exits(1, Duration::from_secs(1)));
    world.put("web", "containers: [{name: app, image: 'busybox:1'}, {name: other, image: 'nothere:1'}]");
    world.until("five starts", |world| world.count("StartContainer web/app#4") == 1);
    assert!(dead(&world).len() <= 2, "{}", world.trace());
    // One that cannot be removed keeps nothing from starting.
    world.fake.fail("RemoveContainer", 1000, 2, "it is held");
    world.fake.state().missing.clear();
    world.until("the other one", |world| world.running().contains(&"web/other#0".to_owned()));
}

#[test]
fn a_dead_container_is_kept_for_the_minimum_age_across_clock_steps() {
    let world = world(GcPolicy { min_age: Duration::from_secs(60), ..GcPolicy::default() });
    world.fake.program("app", Program::exits(1, Duration::from_secs(1)));
    world.put("web", APP);
    let mut wall = 10 * 365 * 86_400;
    world.until("two ends", |world| dead(world).len() == 2);
    for _ in 0..2 {
        world.clock.step_wall(wall);
        wall *= -2;
        world.pass(5);
        assert_eq!(world.count("RemoveContainer"), 0, "{}", world.trace());
    }
    world.until("the removal", |world| world.count("RemoveContainer web/app#0") == 1);
    let after = world.times("RemoveContainer web/app#0")[0] - world.times("StartContainer web/app#0")[0];
    assert!((61..=70).contains(&after), "it ran for a second, and was removed {after} s after its start");
}

#[test]
fn the_total_of_dead_containers_is_limited_without_a_restart() {
    let world = world(GcPolicy { containers_max: Some(1), ..GcPolicy::default() });
    world.fake.program("init", Program::exits(0, Duration::from_secs(1)));
    for name in ["a", "b", "c"] {
        world.run(name, INIT);
    }
    world.until("the removals", |world| world.count("RemoveContainer") == 2);
    assert_eq!(dead(&world), ["c/init#0"], "the one that exited last");
    world.pass(30);
    assert_eq!((world.count("RemoveContainer"), world.count("StartContainer")), (2, 6), "{}", world.trace());
    assert_eq!(world.running().len(), 3);
}

#[test]
fn only_links_to_logs_of_removed_pods_are_removed() {
    let world = World::without_agent();
    let link = |name: &str, to: &std::path::Path| symlink(to, world.path("links").join(name)).unwrap();
    std::fs::create_dir(world.path("logs/default_here_u1")).unwrap();
    link("gone.log", &world.path("logs/default_gone_u2/app/0.log"));
    link("here.log", &world.path("logs/default_here_u1/app/0.log"));
    link("other.log", std::path::Path::new("/var/log/elsewhere/default_gone_u2/app/0.log"));
    std::fs::write(world.path("links/file.log"), "").unwrap();
    world.start();
    world.until("the link gone", |world| names(&world.path("links")).len() == 3);
    assert_eq!(names(&world.path("links")), ["file.log", "here.log", "other.log"]);
}
