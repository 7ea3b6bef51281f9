//! The pods' addresses and the bridge that has them.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::world::{NODE, World};

fn bridge(world: &World) -> PathBuf {
    world.path("cni/99-smolet-bridge.conflist")
}

/// The first range of the configuration, if it is there.
fn range(world: &World) -> Option<String> {
    let text = std::fs::read_to_string(bridge(world)).ok()?;
    let list: Value = serde_json::from_str(&text).expect("it is never there in part");
    let first = &list["plugins"][0]["ipam"]["ranges"][0][0]["subnet"];
    Some(first.as_str().expect("a subnet").to_owned())
}

fn give(world: &World, cidrs: &[&str]) {
    let spec = json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
    world.api.patch("nodes", "", NODE, &spec);
}

fn told(world: &World) -> Vec<String> {
    let calls = world.fake.actions().into_iter();
    calls.filter(|call| call.starts_with("UpdateRuntimeConfig")).collect()
}

fn with_bridge() -> World {
    let world = World::without_agent();
    let config = world.config();
    world.start_with(smolet::config::Config { cni_bridge: Some(world.path("cni")), ..config });
    world
}

#[test]
fn the_runtime_is_told_the_pods_addresses() {
    let world = World::new();
    world.until("it is registered", |world| world.node().is_some());
    give(&world, &["10.42.1.0/24", "fd00:1::/64"]);
    world.until("the runtime knows", |world| {
        told(world).last().is_some_and(|call| call.contains("10.42.1.0/24,fd00:1::/64"))
    });
    world.run("web");
    assert_eq!(told(&world).len(), 1, "once");
    assert!(!world.path("cni").exists(), "nobody asked for a bridge");
}

#[test]
fn a_node_without_a_network_gets_a_bridge_of_its_addresses() {
    let world = with_bridge();
    world.run("web");
    assert_eq!(range(&world), None, "there are no addresses yet");
    give(&world, &["10.42.1.0/24"]);
    world.until("the bridge is there", |world| range(world).as_deref() == Some("10.42.1.0/24"));
    let left: Vec<_> = std::fs::read_dir(world.path("cni")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // The node is registered anew, with other addresses.
    give(&world, &["10.42.2.0/24"]);
    world.until("it has the others", |world| range(world).as_deref() == Some("10.42.2.0/24"));
    // Somebody else brings a network.
    std::fs::write(world.path("cni/10-other.conflist"), "{}").unwrap();
    give(&world, &["10.42.3.0/24"]);
    world.until("ours is gone", |world| !bridge(world).exists());
    world.until("the runtime knows", |world| {
        told(world).last().is_some_and(|call| call.contains("10.42.3.0"))
    });
    assert_eq!(std::fs::read_to_string(world.path("cni/10-other.conflist")).unwrap(), "{}");
}

/// On the node's network a pod's addresses are the node's: in its status, and in its variables from the first start on.
#[test]
fn a_pod_on_the_nodes_network_is_told_the_nodes_address() {
    let world = World::new();
    let variable =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut spec = crate::world::app();
    spec["hostNetwork"] = true.into();
    spec["containers"][0]["env"] =
        json!([variable("POD_IP", "status.podIP"), variable("POD_IPS", "status.podIPs")]);
    world.bind("host", spec);
    world.until("it runs", |world| world.is_ready("host"));
    let pod = world.pod("host").expect("it runs");
    let ips = pod["status"]["podIPs"].as_array().expect("addresses");
    let ips: Vec<&str> = ips.iter().filter_map(|ip| ip["ip"].as_str()).collect();
    let state = world.fake.state();
    let envs = &state.container("host/app").expect("it runs").config.envs;
    let of = |name: &str| envs.iter().find(|env| env.key == name).map(|env| &*env.value);
    assert_eq!(of("POD_IP"), Some(ips[0].as_bytes()));
    assert_eq!(of("POD_IPS"), Some(ips.join(",").as_bytes()));
    assert_eq!(pod["status"]["podIP"], ips[0]);
}
