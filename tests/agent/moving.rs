//! Moving to another runtime (`--drain-runtime`), and the record of the kind of runtime that a node has.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use smolet::config::Config;

use crate::adopt::foreign;
use crate::common::agent::endpoint;
use crate::common::fake::Fake;
use crate::world::{NODE, PATIENCE, World, ask};

const APP: &str = "terminationGracePeriodSeconds: 7, containers: [{name: app, image: 'busybox:1'}]";
const PODS: [(&str, &str, Option<&str>); 3] = [
    ("mine", "1b4e28ba-2fa1-41d2-883f-0016d3cca427", Some(NODE)),
    ("other", "1b4e28ba-2fa1-41d2-883f-0016d3cca428", Some("other-node")),
    ("kubelet", "1b4e28ba-2fa1-41d2-883f-0016d3cca429", None),
];

/// The runtime that the node leaves: with a pod of this node, of another one's smolet, and of a kubelet.
fn left(world: &World) -> Fake {
    let old = Fake::start(world.clock.clone());
    old.add_image("busybox:1");
    for (name, uid, node) in PODS {
        foreign(&old, name, uid, node);
    }
    old
}

fn moving(world: &World, old: &Fake) -> Config {
    Config { drain_runtime: Some(endpoint(old)), ..world.config() }
}

/// Virtual time goes on, slower than the deadlines of calls, until it holds.
fn until(world: &World, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen: {:?}", world.fake.calls());
        world.clock.advance(Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pods(fake: &Fake) -> Vec<&'static str> {
    let state = fake.state();
    PODS.iter().map(|(name, ..)| *name).filter(|name| state.sandbox(name).is_some()).collect()
}

/// Empty before the agent listens; the socket's file is there a moment earlier.
fn answer(world: &World) -> String {
    UnixStream::connect(world.path("sock")).map_or_else(|_| String::new(), |stream| ask(stream, "/pods").1)
}

fn kind(world: &World) -> Option<String> {
    std::fs::read_to_string(world.path("root").join("runtime-kind")).ok()
}

#[test]
fn pods_start_in_the_new_runtime_once_this_nodes_pods_have_ended_in_the_old_one() {
    let world = World::without_agent();
    let old = left(&world);
    world.put("web", APP);
    old.hang("StopContainer");
    world.silent(true);
    world.spawn(moving(&world, &old), false);
    until(&world, "a stop in the old runtime", || old.count("StopContainer") > 0);
    let begun = world.seconds();
    until(&world, "some time", || world.seconds() > begun + 20);
    assert_eq!(world.fake.actions(), [""; 0], "the old pod runs still");
    assert_eq!(kind(&world), None);
    assert_eq!(pods(&old).len(), 3);
    old.heal("StopContainer");
    until(&world, "a pod in the new runtime", || world.fake.count("StartContainer") > 0);
    assert_eq!(pods(&old), ["other", "kubelet"]);
    assert!(old.state().running().iter().all(|container| !container.contains("mine")));
    let stops = old.calls().into_iter().filter(|call| call.starts_with("StopContainer"));
    assert!(
        stops.clone().count() > 0 && stops.into_iter().all(|call| call.ends_with("grace=5")),
        "{:?}",
        old.calls()
    );
    assert_eq!(kind(&world).as_deref(), Some("cri\n"));
    world.stop();

    // A start with the flag while nothing of this node is left there: it looks, and changes nothing.
    old.clear_calls();
    world.spawn(moving(&world, &old), false);
    until(&world, "a relist of the new runtime", || world.fake.count("ListContainers") > 0);
    assert_eq!(old.actions(), [""; 0]);
    assert!(old.count("ListPodSandbox") > 0);
    world.stop();
}

#[test]
fn no_pod_starts_while_the_old_runtime_does_not_answer() {
    let world = World::without_agent();
    let old = left(&world);
    old.refuse_connections();
    world.put("web", APP);
    world.silent(true);
    world.spawn(moving(&world, &old), false);
    until(&world, "the reason", || answer(&world).contains("--drain-runtime: "));
    let said = answer(&world);
    assert!(said.contains("if it is gone for good, remove the flag"), "{said}");
    assert_eq!((world.fake.actions().len(), kind(&world)), (0, None));
    old.accept_connections();
    until(&world, "a pod in the new runtime", || world.fake.count("StartContainer") > 0);
    assert_eq!(pods(&old), ["other", "kubelet"]);
    world.stop();
}

#[test]
fn the_runtime_in_use_is_not_drained() {
    let world = World::new();
    world.run("web", APP);
    world.stop();
    world.silent(true);
    world.spawn(Config { drain_runtime: Some(endpoint(&world.fake)), ..world.config() }, false);
    until(&world, "the reason", || answer(&world).contains("the node uses this runtime"));
    assert_eq!(world.fake.actions(), [""; 0]);
    assert_eq!(world.running().len(), 1);
    world.stop();
}

/// A runtime that is late, as at boot, leaves no trace: what the node has is recorded when it was ready.
#[test]
fn the_kind_of_runtime_is_recorded_once_it_was_ready() {
    let world = World::without_agent();
    world.fake.condition("RuntimeReady", "Late", "it starts");
    world.silent(true);
    world.spawn(world.config(), false);
    until(&world, "the reason", || answer(&world).contains("it starts"));
    assert_eq!(kind(&world), None);
    world.fake.condition("RuntimeReady", "", "");
    until(&world, "a relist", || world.fake.count("ListContainers") > 0);
    assert_eq!(kind(&world).as_deref(), Some("cri\n"));
    world.stop();

    // The record of another kind: the named runtime counts, also while it is late.
    std::fs::write(world.path("root").join("runtime-kind"), "embedded\n").unwrap();
    world.fake.refuse_connections();
    world.spawn(world.config(), false);
    let begun = world.seconds();
    until(&world, "some time", || world.seconds() > begun + 20);
    assert_eq!(kind(&world).as_deref(), Some("embedded\n"));
    assert!(!world.path("root").join("runtime").exists(), "the embedded runtime was not opened");
    world.fake.accept_connections();
    until(&world, "a relist", || world.fake.count("ListContainers") > 0);
    assert_eq!(kind(&world).as_deref(), Some("cri\n"));
    world.stop();
}
