//! A node whose address comes late, and is another one later: in a network namespace of its own.

use std::net::TcpListener;

use serde_json::json;
use smolet::addresses::NodeAddresses;
use smolet::config::Config;
use smolet::facts::host_ips;

use crate::common::namespace::{in_namespace, ip, lease, make_link};
use crate::world::{NODE, World};

const WITH_HOST_IP: &str =
    "{name: app, image: 'busybox:1', env: [{name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]}";

fn host_of(world: &World, pod: &str) -> Option<String> {
    let state = world.fake.state();
    let container = state.container(&format!("{pod}/app"))?;
    let found = container.config.envs.iter().find(|env| env.key == "HOST")?;
    Some(String::from_utf8_lossy(found.value.as_ref()).into_owned())
}

#[test]
fn a_node_that_gets_its_address_late_and_another_one_later() {
    if !in_namespace("addresses::a_node_that_gets_its_address_late_and_another_one_later") {
        return;
    }
    make_link();
    let world = World::new();
    let probed = TcpListener::bind("127.0.0.1:0").unwrap();
    let internal = |world: &World| {
        let node = world.node()?;
        let addresses = node["status"]["addresses"].as_array()?.clone();
        let found = addresses.into_iter().find(|address| address["type"] == "InternalIP");
        Some(found.and_then(|found| found["address"].as_str().map(str::to_owned)).unwrap_or_default())
    };
    world.until("it is registered without an address", |world| internal(world).as_deref() == Some(""));
    let env = json!([{"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]);
    world.bind("web", json!({"containers": [{"name": "app", "image": "busybox:1", "env": env}]}));
    let port = probed.local_addr().unwrap().port();
    let probe = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    let app = json!({"name": "app", "image": "busybox:1", "readinessProbe": probe});
    world.bind("on-node", json!({"hostNetwork": true, "containers": [app]}));
    world
        .until("a pod on the node's network is probed without an address", |world| world.is_ready("on-node"));
    world.until("a pod waits for the node's address", |world| {
        let pod = world.pod("web").unwrap_or_default();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    lease("10.7.0.2", "10.7.0.1");
    world.until("the Node has it", |world| internal(world).as_deref() == Some("10.7.0.2"));
    world.until("the pod starts", |world| world.is_ready("web"));
    assert_eq!(host_of(&world, "web").as_deref(), Some("10.7.0.2"));
    let host_ip = |world: &World, pod: &str| world.pod(pod).unwrap_or_default()["status"]["hostIP"].clone();
    let certified = |world: &World, address: &str| {
        // Whoever connects has it made.
        let _ = world.connect(None);
        let pem = std::fs::read_to_string(world.path("root/pki/smolet.crt")).unwrap_or_default();
        pem.lines().next().is_some_and(|names| names.split(' ').any(|name| name == address))
    };
    world.until("the certificate of its API names it", |world| certified(world, "10.7.0.2"));
    ip("address flush dev up0");
    lease("10.7.0.3", "10.7.0.1");
    world.until("the Node has the other one", |world| internal(world).as_deref() == Some("10.7.0.3"));
    world.until("its pods have it", |world| {
        host_ip(world, "web") == "10.7.0.3" && host_ip(world, "on-node") == "10.7.0.3"
    });
    assert_eq!(world.pod("on-node").unwrap()["status"]["podIP"], "10.7.0.3");
    world.until("the certificate names the other one", |world| certified(world, "10.7.0.3"));
    assert_eq!(world.node().unwrap()["metadata"]["name"], NODE);

    // It has none any more: what the API server was told stays, and further statuses are taken.
    ip("address flush dev up0");
    world.until("it is noticed", |world| world.log().iter().any(|line| line.contains("node addresses: [],")));
    drop(probed);
    world.until("a pod is not ready any more", |world| !world.is_ready("on-node"));
    assert_eq!((host_ip(&world, "web"), host_ip(&world, "on-node")), (json!("10.7.0.3"), json!("10.7.0.3")));
    assert_eq!(world.pod("on-node").unwrap()["status"]["podIP"], "10.7.0.3");
    assert_eq!(internal(&world).as_deref(), Some("10.7.0.3"));
}

#[test]
fn an_address_stays_while_a_link_has_it() {
    if !in_namespace("addresses::an_address_stays_while_a_link_has_it") {
        return;
    }
    make_link();
    lease("10.7.0.2", "10.7.0.1");
    let addresses = NodeAddresses::new(&["10.7.0.2".into()]);
    let now = || addresses.read(&[], None).join(" ");
    assert_eq!(now(), "10.7.0.2");
    // Another uplink takes the default route.
    ip("address add 10.8.0.2/24 dev up1");
    ip("route replace default via 10.8.0.1 dev up1");
    assert_eq!(host_ips(), ["10.8.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(now(), "10.7.0.2");
    assert_eq!(addresses.read(&["0.0.0.0".parse().unwrap()], None).join(" "), "10.7.0.2");
    // Nobody has it.
    ip("route del default");
    assert_eq!(now(), "10.7.0.2");
    ip("-6 address add fd00::2/64 dev up1 nodad");
    ip("-6 route add default via fd00::1 dev up1");
    assert_eq!(now(), "10.7.0.2 fd00::2", "a further family");
    ip("route replace default via 10.8.0.1 dev up1");
    ip("address del 10.7.0.2/24 dev up0");
    assert_eq!(now(), "10.8.0.2 fd00::2", "it is gone");
}

#[test]
fn the_addresses_of_a_named_interface_are_one_of_each_family() {
    if !in_namespace("addresses::the_addresses_of_a_named_interface_are_one_of_each_family") {
        return;
    }
    make_link();
    lease("10.7.0.2", "10.7.0.1");
    let of = |present: &str, interface: &str| {
        let present: Vec<Box<str>> = present.split_whitespace().map(Box::from).collect();
        NodeAddresses::new(&present).read(&[], Some(interface)).join(" ")
    };
    for none in ["up1", "up7", "a-name-that-no-interface-may-have", "lo"] {
        assert_eq!(of("", none), "", "{none}: it has only addresses of the link, or is not there");
    }
    ip("-6 address add fd00::2/64 dev up1 nodad");
    assert_eq!(of("", "up1"), "fd00::2");
    ip("address add 10.8.0.2/24 dev up1");
    ip("address add 10.8.0.3/24 dev up1");
    assert_eq!((of("", "up1"), of("fd00::2", "up1")), ("10.8.0.2 fd00::2".into(), "10.8.0.2 fd00::2".into()));
    // As with the default route: one stays while a link has it.
    assert_eq!(of("10.8.0.3 fd00::2", "up1"), "10.8.0.3 fd00::2");
    assert_eq!(of("10.8.0.9 fd00::2", "up1"), "10.8.0.2 fd00::2");
    ip("link del up1");
    assert_eq!(of("10.8.0.2 fd00::2", "up1"), "");
}

#[test]
fn a_node_alone_gets_its_address_late() {
    if !in_namespace("addresses::a_node_alone_gets_its_address_late") {
        return;
    }
    let world = World::without_agent();
    world.start_with(Config { kubeconfig: None, ..world.config() });
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: [{WITH_HOST_IP}]\n"
    );
    std::fs::write(world.path("manifests/web.yaml"), manifest).unwrap();
    let pod = format!("web-{NODE}");
    world.until("its sandbox is there", |world| world.fake.state().sandbox(&pod).is_some());
    make_link();
    lease("10.7.0.2", "10.7.0.1");
    world.until("the pod starts", |world| host_of(world, &pod).is_some());
    assert_eq!(host_of(&world, &pod).as_deref(), Some("10.7.0.2"));
}
