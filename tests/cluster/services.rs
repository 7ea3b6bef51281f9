//! The agent serves the cluster's Services: what it watches, and what the kernel has. In a network namespace of its own, on real time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::config::{Config, ServiceProxySettings};
use smolet::limits::{K3S_LOST_WAIT, SERVICES_CHECK_PERIOD};

use crate::common::namespace::{in_namespace, ip, lease, make_link};
use crate::k3s::joining;
use crate::supervisor::K3s;
use crate::world::{NODE, PATIENCE, World};

const PROXY: &str = "system:kube-proxy";
const CLUSTER_IP: &str = "10.43.0.10:80";

/// Addresses of two pods, behind each of which somebody answers with a name.
fn serve_pods() {
    make_link();
    lease("192.168.9.1", "192.168.9.2");
    for (address, name) in [("10.42.0.3", "one"), ("10.42.0.4", "two")] {
        ip(&format!("addr add {address}/32 dev lo"));
        let listener = TcpListener::bind((address, 8080)).unwrap();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let _ = connection.unwrap().write_all(name.as_bytes());
            }
        });
    }
}

fn ask(address: &str) -> Result<String, ErrorKind> {
    let address: SocketAddr = address.parse().unwrap();
    // A refusal of the kernel's own may come with the second packet, after a second.
    let connected = TcpStream::connect_timeout(&address, Duration::from_secs(2));
    let mut connection = connected.map_err(|error| error.kind())?;
    let mut answer = String::new();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.read_to_string(&mut answer).map_err(|error| error.kind())?;
    Ok(answer)
}

fn service(name: &str, cluster_ip: &str, more: &Value) -> Value {
    let mut service = json!({"metadata": {"namespace": "default", "name": name}, "spec": {"clusterIP": cluster_ip,
        "clusterIPs": [cluster_ip], "type": "ClusterIP", "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]}});
    for (field, value) in more.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

fn slice(service: &str, addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| {
        json!({"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": NODE})
    };
    json!({"metadata": {"namespace": "default", "name": format!("{service}-abcde"),
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>()})
}

fn table() -> Option<String> {
    let output = Command::new("nft").args(["list", "table", "ip", "smolet-services"]).output();
    let output = output.expect("nftables is there");
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Whether the kernel takes these commands of nft(8), all or none.
fn nft(commands: &str) -> bool {
    let mut program =
        Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    program.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    program.wait().unwrap().success()
}

/// What a balancer learns at that `healthCheckNodePort`.
fn health(port: u16) -> Option<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    connection.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn serving(world: &World) -> Config {
    let kubeconfig = world.api.kubeconfig(&world.path("root"), PROXY);
    let service_proxy =
        Some(ServiceProxySettings { kubeconfig: Some(kubeconfig), cluster_cidrs: Vec::new() });
    Config { service_proxy, ..world.config() }
}

#[test]
fn services_are_served_while_they_are_there() {
    if !in_namespace("services::services_are_served_while_they_are_there") {
        return;
    }
    serve_pods();
    let world = World::on_real_time_without_agent();
    world.api.create("services", service("web", "10.43.0.10", &json!({})));
    world.api.create("endpointslices", slice("web", &["10.42.0.3"]));
    let config = serving(&world);
    world.start_with(config.clone());
    world.until("it is served", |_| ask(CLUSTER_IP) == Ok("one".to_owned()));
    // What is served was listed; the watches begin after that.
    let mut watched: Vec<String> = world.wait("the watches", |world| {
        let requests = world.api.requests().into_iter();
        let watches = requests.filter(|request| request.user == PROXY && request.verb == "watch");
        let watched: Vec<String> = watches
            .map(|of| format!("{} {}", of.path, of.query.split("&labelSelector=").nth(1).unwrap()))
            .collect();
        (watched.len() >= 2).then_some(watched)
    });
    watched.sort();
    assert_eq!(
        watched,
        [
            "/api/v1/services %21service.kubernetes.io%2Fservice-proxy-name",
            "/apis/discovery.k8s.io/v1/endpointslices %21service.kubernetes.io%2Fheadless"
        ]
    );
    // Another proxy gets it, and gives it back.
    for (proxy, is_served) in [(json!("mesh"), false), (Value::Null, true)] {
        let labels = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": proxy}}});
        world.api.patch("services", "default", "web", &labels);
        world.until("it is served or not", |_| ask(CLUSTER_IP).is_ok() == is_served);
    }

    // Another endpoint instead, and none.
    let to = |addresses: &[&str]| json!({"endpoints": slice("web", addresses)["endpoints"]});
    world.api.patch("endpointslices", "default", "web-abcde", &to(&["10.42.0.4"]));
    world.until("the other one serves", |_| ask(CLUSTER_IP) == Ok("two".to_owned()));
    world.api.patch("endpointslices", "default", "web-abcde", &to(&[]));
    world.until("nobody serves", |_| ask(CLUSTER_IP) == Err(ErrorKind::ConnectionRefused));
    world.api.patch("endpointslices", "default", "web-abcde", &to(&["10.42.0.3"]));
    world.until("it is served again", |_| ask(CLUSTER_IP) == Ok("one".to_owned()));

    // The rules stay while nobody is there; what happened meanwhile is made up for.
    world.kill();
    assert_eq!(ask(CLUSTER_IP), Ok("one".to_owned()));
    world.api.create("services", service("other", "10.43.0.11", &json!({})));
    world.api.create("endpointslices", slice("other", &["10.42.0.4"]));
    world.api.delete("services", "default", "web", None);
    world.start_with(config.clone());
    world.until("the new one is served", |_| ask("10.43.0.11:80") == Ok("two".to_owned()));
    assert!(ask(CLUSTER_IP).is_err(), "{:?}", table());

    // Somebody flushes all rules: they are looked at each minute.
    assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
    // What the watches say meanwhile hides it from nobody.
    world.api.send_bookmarks();
    world.until("it is served again", |_| ask("10.43.0.11:80") == Ok("two".to_owned()));

    // A node that is no longer to serve deletes them.
    world.kill();
    assert!(table().is_some());
    world.start_with(Config { service_proxy: None, ..config });
    world.until("the table is gone", |_| table().is_none());
}

/// A node with the one endpoint of a Service whose balancer asks it at port 32123.
fn balancing() -> World {
    serve_pods();
    let world = World::on_real_time_without_agent();
    let balanced =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32123});
    world.api.create("services", service("web", "10.43.0.10", &balanced));
    world.api.create("endpointslices", slice("web", &["10.42.0.3"]));
    world.start_with(serving(&world));
    world
}

#[test]
fn a_balancer_learns_whether_the_node_has_endpoints() {
    if !in_namespace("services::a_balancer_learns_whether_the_node_has_endpoints") {
        return;
    }
    let world = balancing();
    let health = || health(32123);
    world.until("it has one", |_| {
        health().is_some_and(|answer| {
            answer.starts_with("HTTP/1.1 200") && answer.contains("\"localEndpoints\": 1")
        })
    });
    let none = json!({"endpoints": []});
    world.api.patch("endpointslices", "default", "web-abcde", &none);
    world.until("it has none", |_| health().is_some_and(|answer| answer.starts_with("HTTP/1.1 503")));
    world.api.delete("services", "default", "web", None);
    world.until("nobody asks any more", |_| health().is_none());
}

#[test]
fn a_balancer_learns_that_rules_are_not_put_back() {
    if !in_namespace("services::a_balancer_learns_that_rules_are_not_put_back") {
        return;
    }
    let world = balancing();
    let says = |words: &str| health(32123).is_some_and(|answer| answer.contains(words));
    world.until("it has one", |_| says("HTTP/1.1 200"));
    // Somebody flushes all rules. Where a hook has 1024 chains the kernel takes no further one.
    let filled = |count: usize| {
        let chain = |number| format!("chain c{number} {{ type filter hook forward priority 0; }}\n");
        let chains: String = (0..count).map(chain).collect();
        nft(&format!("table ip filler {{\n{chains}}}\n"))
    };
    assert!(nft("flush ruleset\n") && (1000..=1024).rev().any(filled));
    world.until("they are not put back", |_| {
        says("HTTP/1.1 503") && says("\"localEndpoints\": 1") && says("\"serviceProxyHealthy\": false")
    });
    assert_eq!(table(), None);
    assert!(nft("delete table ip filler\n"));
    let begun = Instant::now();
    world.until("they are", |_| says("HTTP/1.1 200"));
    assert!(begun.elapsed() < SERVICES_CHECK_PERIOD / 2, "with the next look: {:?}", begun.elapsed());
    assert_eq!(ask(CLUSTER_IP), Ok("one".to_owned()));
}

#[test]
fn ranges_of_sources_follow_the_nodes_address() {
    if !in_namespace("services::ranges_of_sources_follow_the_nodes_address") {
        return;
    }
    serve_pods();
    let world = World::on_real_time_without_agent();
    let balanced = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.168.9.0/24"]});
    let mut web = service("web", "10.43.0.10", &balanced);
    web["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.8", "ipMode": "VIP"}]}});
    world.api.create("services", web);
    world.api.create("endpointslices", slice("web", &["10.42.0.3"]));
    world.start_with(serving(&world));
    // A node with an address in the ranges reaches the balancer's address, which is its own source then.
    let is_source = || table().map(|table| table.contains("ip saddr 203.0.113.8"));
    world.until("it is served", |_| is_source() == Some(true));
    ip("address flush dev up0");
    lease("192.168.8.1", "192.168.8.2");
    world.until("the node has left the ranges", |_| is_source() == Some(false));
    ip("address flush dev up0");
    lease("192.168.9.7", "192.168.9.2");
    world.until("it is back", |_| is_source() == Some(true));
}

#[test]
fn a_k3s_server_says_whether_its_nodes_serve() {
    if !in_namespace("services::a_k3s_server_says_whether_its_nodes_serve") {
        return;
    }
    serve_pods();
    let world = World::on_real_time_without_agent();
    world.api.create("services", service("web", "10.43.0.10", &json!({})));
    world.api.create("endpointslices", slice("web", &["10.42.0.3"]));
    let k3s = K3s::start(&world.api);
    // With the credentials that the server gives.
    let service_proxy = Some(ServiceProxySettings { kubeconfig: None, cluster_cidrs: Vec::new() });
    let config = Config { service_proxy, ..joining(&world, &k3s, &k3s.token()) };
    k3s.state().settings = json!({"DisableKubeProxy": true});
    world.start_with(config.clone());
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(table(), None);
    world.kill();
    k3s.state().settings = json!({});
    world.start_with(config);
    world.until("it is served", |_| ask(CLUSTER_IP) == Ok("one".to_owned()));
    // A server joins the cluster.
    let servers = |addresses: &[&str]| {
        let mut slice = slice("kubernetes", addresses);
        slice["metadata"]["name"] = json!("kubernetes");
        slice
    };
    world.api.create("endpointslices", servers(&["192.168.9.8"]));
    let lists = || k3s.paths().iter().filter(|path| path.contains("apiservers")).count();
    world.until("the servers are listed", |_| lists() > 0);
    let (before, begun) = (lists(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    world.api.update("endpointslices", servers(&["192.168.9.8", "192.168.9.9"]));
    world.until("they are listed again", |_| lists() > before);
    assert!(begun.elapsed() >= K3S_LOST_WAIT, "{:?}", begun.elapsed());
}
