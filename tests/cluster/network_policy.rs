//! The agent enforces the cluster's network policies: what it watches, and when the table is there. In a network namespace of its
//! own, on real time.

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use smolet::config::Config;
use smolet::network_policy::TABLE;
use smolet::proto::runtime::v1::PodSandboxConfig;

use crate::common::namespace::{in_namespace, lease, make_link};
use crate::k3s::joining;
use crate::supervisor::K3s;
use crate::world::{NODE, World, app};

/// `nft list table`, if the table is there.
fn table() -> Option<String> {
    let output =
        Command::new("nft").args(["list", "table", "inet", TABLE]).output().expect("nftables is there");
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

fn deny(world: &World, name: &str) {
    let policy = json!({"metadata": {"namespace": "default", "name": name},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}});
    world.api.create("networkpolicies", policy);
}

fn label(world: &World, pod: &str, value: &str) {
    world.api.patch("pods", "default", pod, &json!({"metadata": {"labels": {"app": value}}}));
}

fn has(text: &str) -> bool {
    table().is_some_and(|table| table.contains(text))
}

/// So late the server hears of a pod's address: it takes a busy machine less to start a container, and to print the table.
const LATE: Duration = Duration::from_secs(8);

/// Settings of a node that enforces policies.
fn enforcing(world: &World, config: Config) -> Config {
    Config {
        network_policy: Some(world.api.kubeconfig(&world.path("root"), "system:k3s-controller")),
        ..config
    }
}

/// Lists and watches of all pods.
fn looks_at_pods(world: &World) -> usize {
    world
        .api
        .requests()
        .iter()
        .filter(|request| request.path == "/api/v1/pods" && request.user == "system:k3s-controller")
        .count()
}

#[test]
fn policies_are_enforced_while_there_are_any() {
    if !in_namespace("network_policy::policies_are_enforced_while_there_are_any") {
        return;
    }
    let world = World::on_real_time_without_agent();
    let config = enforcing(&world, world.config());
    world.start_with(config.clone());
    world.run("web");
    label(&world, "web", "web");
    let ip = world.pod("web").unwrap()["status"]["podIP"].as_str().unwrap().to_owned();
    assert_eq!((table(), looks_at_pods(&world)), (None, 0), "without policies nothing is watched but them");
    deny(&world, "deny");
    world.until("the pod is isolated", |_| has(&format!("{ip} : goto pods-")));
    assert!(has("comment \"default/deny\""), "{:?}", table());
    // A new pod's first container starts behind the rules, though the server learns of its address later.
    world.api.delay(LATE);
    let mut spec = app();
    spec["nodeName"] = NODE.into();
    let metadata = json!({"name": "late", "namespace": "default", "labels": {"app": "web"}});
    world.api.create("pods", json!({"metadata": metadata, "spec": spec}));
    world.until("it has a container", |world| world.fake.state().container("late/app").is_some());
    let late = {
        let state = world.fake.state();
        let is_it = |config: &PodSandboxConfig| config.metadata.as_ref().is_some_and(|of| of.name == "late");
        state.sandboxes.values().find(|sandbox| is_it(&sandbox.config)).expect("it has a sandbox").ip.clone()
    };
    assert!(has(&late), "{late}: {:?}", table());
    assert!(world.pod("late").unwrap()["status"]["podIP"].is_null(), "the server does not know it");
    world.api.heal();
    label(&world, "web", "other");
    world.until("the pod is free", |_| !has(&ip) && table().is_some());
    label(&world, "web", "web");
    world.until("it is isolated again", |_| has(&ip));
    // Somebody flushes all rules: they are looked at every half minute. The server is away meanwhile.
    world.kill();
    assert!(has(&ip), "rules stay while the agent is not there");
    world.start_with(config.clone());
    std::thread::sleep(Duration::from_secs(1));
    assert!(has(&ip));
    world.api.delete("networkpolicies", "default", "deny", None);
    world.until("the table is gone with the last policy", |_| table().is_none());
    let before = looks_at_pods(&world);
    deny(&world, "deny");
    world.until("the next policy counts", |_| has(&ip));
    assert!(looks_at_pods(&world) > before);
    world.kill();
    world.start_with(Config { network_policy: None, ..config });
    world.until("policies are switched off", |_| table().is_none());
}

#[test]
fn a_k3s_server_decides_for_its_cluster() {
    if !in_namespace("network_policy::a_k3s_server_decides_for_its_cluster") {
        return;
    }
    // A certificate has the node's address.
    make_link();
    lease("192.0.2.2", "192.0.2.1");
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    deny(&world, "deny");
    k3s.state().settings = json!({"DisableNPC": true});
    let config = enforcing(&world, joining(&world, &k3s, &k3s.token()));
    world.start_with(config.clone());
    world.run("web");
    label(&world, "web", "web");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((table(), looks_at_pods(&world)), (None, 0));
    k3s.state().settings = json!({"DisableNPC": false});
    world.kill();
    world.start_with(config.clone());
    world.until("the settings are new", |_| has("goto pods-"));
    k3s.state().settings = json!({"DisableNPC": true});
    world.kill();
    assert!(table().is_some());
    world.start_with(config);
    world.until("they are switched off", |_| table().is_none());
}
