//! The Node object and its lease.

use serde_json::Value;

use crate::world::{NODE, World};

fn condition(node: &Value, kind: &str) -> Value {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

#[test]
fn a_node_registers_and_keeps_its_lease() {
    let world = World::new();
    let node = world.wait("the node is ready", |world| {
        world.node().filter(|node| condition(node, "Ready")["status"] == "True")
    });
    assert_eq!(condition(&node, "Ready")["reason"], "KubeletReady");
    assert_eq!(condition(&node, "MemoryPressure")["status"], "False");
    let status = &node["status"];
    assert_eq!(status["capacity"]["pods"], "110");
    assert_eq!(status["nodeInfo"]["operatingSystem"], "linux");
    assert!(status["nodeInfo"]["kubeletVersion"].as_str().unwrap().starts_with("v1.36.2"));
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    let lease = |world: &World| world.api.get("leases", "kube-node-lease", NODE);
    let first = world.wait("a lease", lease);
    assert_eq!(first["spec"]["holderIdentity"], NODE);
    assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
    world.until("it is renewed", |world| {
        lease(world).is_some_and(|lease| lease["spec"]["renewTime"] != first["spec"]["renewTime"])
    });
}

#[test]
fn a_node_that_is_known_keeps_what_others_wrote_on_it() {
    let world = World::new();
    world.until("it is registered", |world| world.node().is_some());
    world.stop();
    let label = serde_json::json!({"metadata": {"labels": {"site": "roof", "kubernetes.io/os": null}}});
    world.api.patch("nodes", "", NODE, &label);
    world.start();
    let node = world.wait("its own label", |world| {
        world.node().filter(|node| node["metadata"]["labels"]["kubernetes.io/os"] == "linux")
    });
    assert_eq!(node["metadata"]["labels"]["site"], "roof");
}

#[test]
fn a_node_that_was_deleted_registers_again() {
    let world = World::new();
    let first = world.wait("it is registered", World::node);
    world.api.delete("nodes", "", NODE, None);
    let again = world.wait("it is registered again", World::node);
    assert_ne!(first["metadata"]["uid"], again["metadata"]["uid"]);
}
