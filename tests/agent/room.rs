//! Admission of static pods on a standalone node: a pod without capacity waits, reports it, and starts when there is some.

use smolet::config::Config;

use crate::world::World;

const PORT: &str =
    "containers: [{name: app, image: 'busybox:1', ports: [{containerPort: 80, hostPort: 8080}]}]";
const PLAIN: &str = "containers: [{name: app, image: 'busybox:1'}]";

/// Waits until the pod is pending for that reason; returns the message.
fn waits(world: &World, name: &str, reason: &str) -> String {
    world.until(reason, |world| world.waiting(name, "app").0 == reason);
    let message = world.waiting(name, "app").1;
    let (describe, events) = (world.describe(name), world.ask("/events").1);
    assert!(describe.contains(&message), "{message}\n{describe}");
    assert!(events.contains(reason), "{events}");
    message
}

#[test]
fn a_pod_without_capacity_starts_when_another_is_removed() {
    let world = World::new();
    world.run("first", PORT);
    world.put("second", PORT);
    assert_eq!(
        waits(&world, "second", "NodePorts"),
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports; it starts when there is room"
    );
    let large =
        "containers: [{name: app, image: 'busybox:1', resources: {requests: {cpu: '500', memory: 640Gi}}}]";
    world.put("large", large);
    let message = waits(&world, "large", "OutOfcpu");
    assert!(
        message.starts_with("Node didn't have enough resource: cpu, requested: 500000, used: 0, capacity: "),
        "{message}"
    );
    assert_eq!((world.phase("second").as_str(), world.phase("large").as_str()), ("Pending", "Pending"));
    // A running pod is not admitted again.
    world.kill();
    world.start();
    waits(&world, "second", "NodePorts");
    assert_eq!(world.running(), ["first/app#0"]);
    world.remove("first");
    world.until("the second has the port", |world| world.phase("second") == "Running");
    assert_eq!(world.phase("large"), "Pending");
    assert_eq!(world.running(), ["second/app#0"]);
}

#[test]
fn a_pod_beyond_the_maximum_waits() {
    let world = World::without_agent();
    world.start_with(Config { max_pods: 2, ..world.config() });
    world.run("a", PLAIN);
    let once = format!("restartPolicy: Never, {}", PLAIN.replace("app", "job"));
    world.run("b", &once);
    world.put("c", PLAIN);
    let message = waits(&world, "c", "OutOfpods");
    assert!(message.contains("pods, requested: 1, used: 2, capacity: 2"), "{message}");
    // A terminated pod does not count.
    world.fake.exit("b-gw/job", 0, "Completed", "");
    world.until("it has a place", |world| world.phase("c") == "Running");
}

#[test]
fn pods_per_core_limits_the_number_of_pods() {
    let world = World::without_agent();
    let config = Config { pods_per_core: Some(1), ..world.config() };
    let places = smolet::facts::pods_max(&config, &smolet::facts::node_settings(&config, "gw"));
    world.start_with(config);
    for number in 0..places {
        world.run(&format!("web{number}"), PLAIN);
    }
    if places < smolet::limits::PODS_MAX {
        world.put("more", PLAIN);
        let message = waits(&world, "more", "OutOfpods");
        assert!(message.contains(&format!("used: {places}, capacity: {places}")), "{message}");
    }
}
