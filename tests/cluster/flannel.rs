//! The pods' network of a k3s cluster's nodes: each test in a network namespace of its own, on the kernel's real links.
//!
//! On real time, as in `k3s`.

use std::process::Command;

use serde_json::{Value, json};
use smolet::config::{Config, EmbeddedSettings, FlannelSettings, Registration};
use smolet::limits::NODE_STATUS_UPDATE_PERIOD;

use crate::common::Stopwatch;
use crate::common::namespace::{in_namespace, ip, lease, make_link};
use crate::k3s::{is_ready, joining};
use crate::supervisor::K3s;
use crate::world::{NODE, World};

const PREFIX: &str = "flannel.alpha.coreos.com/";

/// What a command of iproute2 prints.
fn shown(command: &str) -> String {
    let mut words = command.split(' ');
    let ended = Command::new(words.next().unwrap()).args(words).output().expect("iproute2 is there");
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

/// A world whose server has these settings, and a configuration with flannel; the namespace has an address.
fn with_flannel(settings: Value) -> (World, K3s, Config) {
    make_link();
    lease("192.168.7.1", "192.168.7.254");
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().settings = settings;
    let config = joining(&world, &k3s, &k3s.token());
    let kubeconfig = world.api.kubeconfig(&world.path(""), "system:k3s-controller");
    std::fs::create_dir_all(world.path("root/k3s")).unwrap();
    std::fs::copy(kubeconfig, world.path("root/k3s/k3scontroller.kubeconfig")).unwrap();
    let flannel = FlannelSettings { interface: None, subnet_file: world.path("run/subnet.env") };
    let embedded = EmbeddedSettings { cni_conf_dir: world.path("cni"), ..config.embedded.clone() };
    (world, k3s, Config { flannel: Some(flannel), embedded, ..config })
}

fn settings(backend: &str) -> Value {
    // 10.42.0.0/16, as Go writes it.
    let range = json!({"IP": "10.42.0.0", "Mask": "//8AAA=="});
    json!({"FlannelBackend": backend, "ClusterIPRange": range, "ClusterIPRanges": [range]})
}

/// A node of k3s as flanneld leaves it.
fn add_node(world: &World, name: &str, number: u8) {
    let annotations = json!({
        format!("{PREFIX}backend-data"): format!(r#"{{"VNI":1,"VtepMAC":"5a:00:00:00:00:0{number}"}}"#),
        format!("{PREFIX}backend-type"): "vxlan",
        format!("{PREFIX}kube-subnet-manager"): "true",
        format!("{PREFIX}public-ip"): format!("192.168.7.{number}"),
    });
    let cidr = format!("10.42.{number}.0/24");
    let spec = json!({"podCIDR": cidr, "podCIDRs": [cidr]});
    world.api.create("nodes", json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec}));
}

fn give_range(world: &World) {
    world.until("it is registered", |world| world.node().is_some());
    let spec = json!({"spec": {"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24"]}});
    world.api.patch("nodes", "", NODE, &spec);
}

fn annotation(world: &World, name: &str) -> Value {
    world.node().unwrap()["metadata"]["annotations"][format!("{PREFIX}{name}")].clone()
}

fn mac() -> String {
    let link = shown("ip -o link show flannel.1");
    link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned()
}

fn route_to(number: u8) -> String {
    shown(&format!("ip route show 10.42.{number}.0/24"))
}

#[test]
fn a_node_reaches_the_others_pods_and_they_its() {
    if !in_namespace("flannel::a_node_reaches_the_others_pods_and_they_its") {
        return;
    }
    let (world, _k3s, config) = with_flannel(settings("vxlan"));
    add_node(&world, "b", 2);
    world.start_with(config.clone());
    give_range(&world);
    let begun = Stopwatch::start();
    world.until("it says how its pods are reached", |world| annotation(world, "backend-data").is_string());
    assert!(begun.elapsed() < NODE_STATUS_UPDATE_PERIOD / 2, "at once: {:?}", begun.elapsed());
    let own = mac();
    assert_eq!(annotation(&world, "backend-data"), format!(r#"{{"VNI":1,"VtepMAC":"{own}"}}"#));
    for (name, value) in
        [("backend-type", "vxlan"), ("kube-subnet-manager", "true"), ("public-ip", "192.168.7.1")]
    {
        assert_eq!(annotation(&world, name), value, "{name}");
    }
    world.until("the other node is known", |_| {
        route_to(2) == "10.42.2.0/24 via 10.42.2.0 dev flannel.1 onlink"
    });
    assert_eq!(shown("bridge fdb show dev flannel.1"), "5a:00:00:00:00:02 dst 192.168.7.2 self permanent");
    let list: Value =
        serde_json::from_slice(&std::fs::read(world.path("cni/10-flannel.conflist")).unwrap()).unwrap();
    assert_eq!(list["plugins"][0]["mtu"], 1450);
    assert_eq!(list["plugins"][0]["ipam"]["ranges"], json!([[{"subnet": "10.42.1.0/24"}]]));
    let subnet = std::fs::read_to_string(world.path("run/subnet.env")).unwrap();
    assert!(subnet.contains("FLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\n"), "{subnet}");
    let masquerades = || shown("nft list table ip flannel-ipv4").contains("masquerade fully-random");
    assert!(masquerades());
    let accepted = shown("iptables -S FLANNEL-FWD");
    for end in ["-s", "-d"] {
        let rule =
            format!("-A FLANNEL-FWD {end} 10.42.0.0/16 -m comment --comment \"flanneld forward\" -j ACCEPT");
        assert!(accepted.contains(&rule), "{accepted}");
    }
    world.until("the node is ready", is_ready);

    // Others come and go, and somebody changes what is the node's own.
    add_node(&world, "c", 3);
    world.until("the third node is known", |_| !route_to(3).is_empty());
    world.api.delete("nodes", "", "b", None);
    world.until("the second one is gone", |_| route_to(2).is_empty());
    world.api.patch(
        "nodes",
        "",
        NODE,
        &json!({"metadata": {"annotations": {format!("{PREFIX}public-ip"): "192.168.7.9"}}}),
    );
    world.until("it is right again", |world| annotation(world, "public-ip") == "192.168.7.1");
    ip("link del flannel.1");
    world.until("the link is there again", |_| !route_to(3).is_empty());
    assert_eq!(mac(), own);

    // All of it stays while the agent does not run, and when it starts again.
    let link = || shown("ip -o link show flannel.1");
    let before = link();
    world.kill();
    assert!(link() == before && !route_to(3).is_empty());
    world.start_with(config);
    world
        .until("it is up again", |world| world.log().iter().any(|line| line.contains("pods' network is up")));
    assert!(link() == before && !route_to(3).is_empty());

    // The node's address changes.
    ip("address flush dev up0");
    lease("192.168.7.11", "192.168.7.254");
    world.until("others learn of it", |world| annotation(world, "public-ip") == "192.168.7.11");
    assert!(shown("ip -d link show flannel.1").contains("local 192.168.7.11"));
    assert_eq!(mac(), own);

    // Nothing tells of it.
    shown("nft flush ruleset");
    assert!(!masquerades());
    world.until("the rules are there again", |_| masquerades());
}

#[test]
fn the_nodes_address_is_that_of_the_interface_that_is_named() {
    if !in_namespace("flannel::the_nodes_address_is_that_of_the_interface_that_is_named") {
        return;
    }
    let (world, _k3s, config) = with_flannel(settings("host-gw"));
    let of = |interface: &str| FlannelSettings {
        interface: Some(interface.to_owned()),
        ..config.flannel.clone().unwrap()
    };
    world.start_with(Config { flannel: Some(of("up1")), ..config.clone() });
    give_range(&world);
    let internal =
        |world: &World| world.node().unwrap()["metadata"]["annotations"]["k3s.io/internal-ip"].clone();
    world.until("the node is ready", is_ready);
    assert_eq!(internal(&world), json!(null), "not that of the default route");
    ip("address add 10.8.0.2/24 dev up1");
    world.until("the node has its address", |world| internal(world) == "10.8.0.2");
    world.until("others reach its pods there", |world| annotation(world, "public-ip") == "10.8.0.2");
    world.kill();
    // What is given counts more.
    let registration =
        Registration { addresses: vec!["192.168.7.1".parse().unwrap()], ..config.registration.clone() };
    world.start_with(Config { flannel: Some(of("up1")), registration, ..config });
    world.until("the node has the given one", |world| internal(world) == "192.168.7.1");
}

/// The kernel has it or not: `make kernel` has one that has it.
#[test]
fn a_node_of_an_encrypted_network_says_its_key_or_what_the_kernel_lacks() {
    if !in_namespace("flannel::a_node_of_an_encrypted_network_says_its_key_or_what_the_kernel_lacks") {
        return;
    }
    let (world, _k3s, config) = with_flannel(settings("wireguard-native"));
    let has_it = Command::new("ip").args(["link", "add", "wg-try", "type", "wireguard"]).output().unwrap();
    world.start_with(config);
    give_range(&world);
    if has_it.status.success() {
        ip("link del wg-try");
        world.until("it says its key", |world| annotation(world, "backend-data").is_string());
        let data: Value = serde_json::from_str(annotation(&world, "backend-data").as_str().unwrap()).unwrap();
        assert_eq!((data["PublicKey"].as_str().unwrap().len(), &data["Port"]), (44, &json!(51820)));
        assert_eq!(annotation(&world, "backend-type"), "wireguard");
        assert!(world.path("run/wgkey").exists());
        world.until("the node is ready", is_ready);
    } else {
        let logged = |text: &str| world.log().iter().any(|line| line.contains(text));
        world.until("it says so", |_| {
            logged("flannel: link flannel-wg: making it: ") && logged("CONFIG_WIREGUARD, modprobe wireguard")
        });
        assert!(
            annotation(&world, "backend-type").is_null() && !world.path("cni/10-flannel.conflist").exists()
        );
    }
}

#[test]
fn a_network_that_is_not_flannels_is_left_alone() {
    if !in_namespace("flannel::a_network_that_is_not_flannels_is_left_alone") {
        return;
    }
    let (world, k3s, config) = with_flannel(settings("none"));
    world.start_with(config.clone());
    give_range(&world);
    world.until("the node is ready", is_ready);
    let logged = |world: &World, text: &str| world.log().iter().any(|line| line.contains(text));
    world.until("it says so", |world| logged(world, "flannel: the servers have none"));
    world.kill();
    k3s.state().settings = settings("tailscale");
    world.start_with(config.clone());
    world.until("it says so", |world| logged(world, "FlannelBackend of the k3s server is tailscale"));
    assert!(!shown("ip link").contains("flannel") && !world.path("cni").exists());
    assert!(annotation(&world, "backend-type").is_null());
    // The servers get another one.
    world.kill();
    k3s.state().settings = settings("host-gw");
    world.start_with(config);
    world.until("it has it", |world| annotation(world, "backend-type") == "host-gw");
    assert_eq!(annotation(&world, "backend-data"), "null");
    assert!(world.path("cni/10-flannel.conflist").exists());
}
