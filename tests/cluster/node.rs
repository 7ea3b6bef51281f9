//! The Node object and its lease.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use smolet::config::{Config, NodeTaint, Periods, Registration, Reserved};

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
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    let lease = |world: &World| world.api.get("leases", "kube-node-lease", NODE);
    let first = world.wait("a lease", lease);
    assert_eq!(first["spec"]["holderIdentity"], NODE);
    assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
    world.until("it is renewed", |world| {
        lease(world).is_some_and(|lease| lease["spec"]["renewTime"] != first["spec"]["renewTime"])
    });
}

#[test]
fn a_node_is_registered_with_what_it_was_given() {
    let world = World::without_agent();
    let edge = |effect: &str| NodeTaint { key: "edge".into(), value: "yes".into(), effect: effect.into() };
    let registration = Registration {
        labels: [("site".into(), "roof".into())].into(),
        taints: vec![edge("NoSchedule")],
        provider_id: "metal://gw".to_owned(),
        external_cloud: false,
        external_addresses: Vec::new(),
        addresses: vec!["10.1.2.3".parse().unwrap(), "fd00::3".parse().unwrap()],
        reserved: Reserved { milli_cpu: 500, memory: 64 << 20, ephemeral_storage: 1 << 20 },
        periods: Periods { look: Duration::from_secs(1), report: Duration::from_secs(1), lease_seconds: 4 },
    };
    world.start_with(Config { registration, ..world.config() });
    let node = world.wait("the node", |world| {
        world
            .node()
            .filter(|node| node["status"]["images"].as_array().is_some_and(|images| !images.is_empty()))
    });
    assert_eq!(node["metadata"]["labels"]["site"], "roof");
    assert_eq!(node["spec"]["taints"], json!([{"key": "edge", "value": "yes", "effect": "NoSchedule"}]));
    assert_eq!(node["spec"]["providerID"], "metal://gw");
    let status = &node["status"];
    assert_eq!(
        status["addresses"],
        json!([
            {"type": "InternalIP", "address": "10.1.2.3"},
            {"type": "InternalIP", "address": "fd00::3"},
            {"type": "Hostname", "address": NODE},
        ])
    );
    let kib = |of: &str, name: &str| {
        let text = status[of][name].as_str().unwrap();
        text.strip_suffix("Ki").unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(kib("capacity", "memory") - kib("allocatable", "memory"), 64 << 10);
    assert_eq!(kib("capacity", "ephemeral-storage") - kib("allocatable", "ephemeral-storage"), 1 << 10);
    assert!(status["allocatable"]["cpu"].as_str().unwrap().ends_with("500m"), "{status}");
    let names = status["images"][0]["names"].to_string();
    assert!(names.contains("busybox:"), "{names}");
    let lease = |world: &World| world.api.get("leases", "kube-node-lease", NODE);
    let first = world.wait("a lease", lease);
    assert_eq!(first["spec"]["leaseDurationSeconds"], 4);
    // Its status and its lease are told each second.
    let told = |world: &World| world.api.count("PATCH", &format!("/api/v1/nodes/{NODE}/status"));
    let before = told(&world);
    let begun = world.now();
    world.until("it is told of again", |world| {
        let renewed =
            lease(world).is_some_and(|lease| lease["spec"]["renewTime"] != first["spec"]["renewTime"]);
        renewed && told(world) >= before + 2
    });
    assert!(world.since(begun) < Duration::from_secs(8), "{:?}", world.since(begun));
}

#[test]
fn a_node_that_is_known_keeps_what_others_wrote_on_it() {
    let world = World::new();
    world.until("it is registered", |world| world.node().is_some());
    world.stop();
    let label = json!({"metadata": {"labels": {"site": "roof", "kubernetes.io/os": null}}});
    world.api.patch("nodes", "", NODE, &label);
    world.start();
    let node = world.wait("its own label", |world| {
        world.node().filter(|node| node["metadata"]["labels"]["kubernetes.io/os"] == "linux")
    });
    assert_eq!(node["metadata"]["labels"]["site"], "roof");
}

#[test]
fn a_node_that_was_given_up_says_that_it_is_ready() {
    let world = World::new();
    world.until("it is ready", |world| is_ready(world) && has_reported(world));
    // Nothing was heard of it for a while.
    let mut conditions = world.node().unwrap()["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().unwrap() {
        condition["status"] = "Unknown".into();
    }
    world.api.patch("nodes", "", NODE, &json!({"status": {"conditions": conditions}}));
    let begun = world.now();
    world.until("it is ready again", is_ready);
    assert!(world.since(begun) < Duration::from_secs(30), "{:?}", world.since(begun));
}

fn is_ready(world: &World) -> bool {
    world.node().is_some_and(|node| condition(&node, "Ready")["status"] == "True")
}

fn has_reported(world: &World) -> bool {
    world.api.count("PATCH", &format!("/api/v1/nodes/{NODE}/status")) > 0
}

#[test]
fn a_node_that_was_deleted_registers_again() {
    let world = World::new();
    world.until("it has told its status", has_reported);
    let first = world.node().unwrap();
    world.api.delete("nodes", "", NODE, None);
    let again = world.wait("it is registered again", World::node);
    assert_ne!(first["metadata"]["uid"], again["metadata"]["uid"]);
}

/// A task that held the executor would stay, with its sockets, after the agent.
#[test]
fn an_agent_that_has_ended_leaves_no_port_open() {
    let world = World::new();
    for kill in [true, false] {
        let port = world.node_port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the node API listens");
        if kill {
            world.kill()
        } else {
            world.stop()
        }
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
        // The next agent's port is another one.
        world.api.delete("nodes", "", NODE, None);
        world.start();
    }
}
