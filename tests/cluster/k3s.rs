//! Joining a k3s server, and its tunnel to the node.
//!
//! On real time: the supervisor's thread and the ends of a tunnel do not tell when they have answered everything.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::config::{Call, Config, K3s as Joins, NodeApi, Registration, TokenSource};
use smolet::kernel_tunables::network::Conntrack;
use smolet::limits::{TUNNEL_CONNECTIONS_MAX, TUNNEL_PING_PERIOD, TUNNELS_MAX};

use crate::client::Client;
use crate::common::apiserver::ApiServer;
use crate::supervisor::{K3s, SECRET};
use crate::world::{NODE, PATIENCE, World, app};

/// The settings of a node that has a token, and nothing else.
pub fn joining(world: &World, k3s: &K3s, token: &str) -> Config {
    let config = world.config();
    // A kernel that has everything.
    for (setting, value) in
        [("bridge/bridge-nf-call-iptables", "1"), ("netfilter/nf_conntrack_max", "9999999")]
    {
        let path = world.path("sys/net").join(setting);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value).unwrap();
    }
    std::fs::write(world.path("token"), format!("{token}\n")).unwrap();
    Config {
        kubeconfig: Some(world.path("root/k3s/kubelet.kubeconfig")),
        k3s: Some(Joins {
            server: k3s.url(),
            token: TokenSource::File(world.path("token")),
            node_password: world.path("etc/rancher/node/password"),
            node_id: None,
            load_balancer_port: None,
            call: Call::default(),
            modprobe: world.path("modprobe"),
            conntrack: Conntrack::default(),
        }),
        node_api: NodeApi { client_ca: None, ..config.node_api.clone() },
        ..config
    }
}

pub fn is_ready(world: &World) -> bool {
    let node = world.node().unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o777
}

/// A node that has joined, with its server.
fn joined() -> (World, K3s, Config) {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let config = joining(&world, &k3s, &k3s.token());
    world.start_with(config.clone());
    world.until("the node is ready", is_ready);
    (world, k3s, config)
}

#[test]
fn a_node_joins_by_its_token_and_keeps_what_it_was_given() {
    let (world, k3s, config) = joined();
    world.run("web");
    let asked = k3s.state().asked.clone();
    assert_eq!(asked[0].path, "/cacerts");
    assert!(!asked[0].headers.contains_key("authorization"), "whoever is not known yet gets no secret");
    let of_client = asked.iter().find(|asked| asked.path == "/v1-k3s/client-kubelet.crt").unwrap();
    assert_eq!((of_client.method.as_str(), of_client.headers["k3s-node-name"].as_str()), ("POST", NODE));
    let password = std::fs::read_to_string(&config.k3s.as_ref().unwrap().node_password).unwrap();
    assert_eq!(of_client.headers["k3s-node-password"], password.trim());
    assert_eq!(password.trim().len(), 32, "as many digits as those of k3s");
    for name in
        ["server-ca.crt", "client-ca.crt", "client-kubelet.pem", "serving-kubelet.pem", "kubelet.kubeconfig"]
    {
        let path = world.path("root/k3s").join(name);
        assert_eq!(mode(&path), 0o600, "{name}");
        assert!(!std::fs::read_to_string(&path).unwrap().contains(SECRET), "{name}");
    }
    assert_eq!(mode(&world.path("etc/rancher/node/password")), 0o600);

    // Known by its certificate from now on, it asks for no other; nothing is written anew.
    world.kill();
    let written = || std::fs::metadata(world.path("root/k3s/kubelet.kubeconfig")).unwrap().mtime_nsec();
    let before = written();
    k3s.state().token_ended = true;
    std::fs::remove_file(world.path("token")).unwrap();
    k3s.forget();
    world.start_with(config);
    world.run("other");
    world.until("it was greeted", |_| k3s.paths().contains(&"GET /v1-k3s/server-ca.crt".to_owned()));
    assert!(!k3s.paths().iter().any(|path| path.contains("kubelet")), "{:?}", k3s.paths());
    assert_eq!(written(), before);
}

#[test]
fn what_is_damaged_or_another_clusters_is_fetched_anew() {
    let (world, k3s, config) = joined();
    let folder = world.path("root/k3s");
    let other = ApiServer::start().client_ca_pem();
    for (name, text) in [
        ("serving-kubelet.pem", "damaged"),
        ("client-kubelet.pem", "damaged"),
        ("client-ca.crt", other.as_str()),
        ("server-ca.crt", ""),
        ("kubelet.kubeconfig", "}"),
        ("config.json", "}"),
    ] {
        world.kill();
        world.forget_port();
        let before = std::fs::read_to_string(folder.join("client-kubelet.pem")).unwrap();
        let mark = std::fs::read_to_string(folder.join("serving-kubelet.pem")).unwrap();
        let mark = mark.lines().next().unwrap().to_owned();
        std::fs::write(folder.join(name), format!("{mark}\n{text}")).unwrap();
        k3s.forget();
        world.start_with(config.clone());
        world.until("it was greeted", |_| k3s.paths().contains(&"GET /v1-k3s/server-ca.crt".to_owned()));
        // The settings alone are no reason.
        let anew = name != "config.json";
        world.until(name, |_| {
            let text = std::fs::read_to_string(folder.join("client-kubelet.pem")).unwrap();
            text.contains("PRIVATE KEY") && (text != before) == anew
        });
        world.until("the node's API has the cluster's", |world| {
            Client::connect(world.node_port(), &world.api.ca_pem(), None).is_ok()
        });
        world.run(&name.replace(['.', '_'], "-"));
        let asked = k3s.paths().contains(&"POST /v1-k3s/client-kubelet.crt".to_owned());
        assert_eq!(asked, anew, "{name}");
    }
}

#[test]
fn name_servers_are_those_of_the_cluster_also_without_its_server() {
    let (world, k3s, config) = joined();
    let dns = |world: &World, pod: &str| {
        let state = world.fake.state();
        let is_it = |name: &str| name == pod;
        let mut all = state.sandboxes.values().map(|sandbox| &sandbox.config);
        let config = all.find(|config| config.metadata.as_ref().is_some_and(|of| is_it(&of.name)));
        let dns = config.expect("the pod has a sandbox").dns_config.clone().expect("it has servers");
        (dns.servers, dns.searches)
    };
    world.run("web");
    let wanted = (vec!["10.43.0.10".to_owned()], "default.svc.k3s.test".to_owned());
    let (servers, searches) = dns(&world, "web");
    assert_eq!((servers, searches[0].clone()), wanted);
    world.kill();
    drop(k3s);
    world.start_with(config);
    world.run("later");
    let (servers, searches) = dns(&world, "later");
    assert_eq!((servers, searches[0].clone()), wanted);
}

#[test]
fn a_server_of_another_authority_learns_nothing() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    let token = k3s.token().replacen("K10", "K10ffff", 1);
    let token = format!("{}{}", &token[..67], &token[71..]);
    world.start_with(joining(&world, &k3s, &token));
    world.until("it was asked again", |_| k3s.paths().len() >= 2);
    for asked in &k3s.state().asked {
        assert_eq!((asked.path.as_str(), asked.headers.get("authorization")), ("/cacerts", None));
    }
    assert!(!world.path("root/k3s").exists());
}

#[test]
fn servers_that_know_no_requests_of_nodes_send_keys() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().legacy = true;
    world.start_with(joining(&world, &k3s, SECRET));
    world.until("the node is ready", is_ready);
    assert!(k3s.paths().contains(&"GET /v1-k3s/client-kubelet.crt".to_owned()));
    for name in ["client-kube-proxy.pem", "client-k3s-controller.pem"] {
        let path = world.path("root/k3s").join(name);
        world.until(name, |_| path.exists());
        assert_eq!(std::fs::read_to_string(&path).unwrap().matches("PRIVATE KEY").count(), 2, "one key");
    }
}

#[test]
fn another_machines_name_is_not_taken_until_it_is_free() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().passwords.insert(NODE.to_owned(), "another".to_owned());
    world.start_with(joining(&world, &k3s, &k3s.token()));
    world.until("it was refused twice", |_| {
        k3s.paths().iter().filter(|path| path.contains("serving-kubelet")).count() >= 2
    });
    assert!(world.node().is_none() && !world.path("root/k3s").exists());
    k3s.state().passwords.clear();
    world.until("the node is ready", is_ready);
}

#[test]
fn certificates_are_fetched_anew_before_they_end() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().seconds = Some(20);
    world.start_with(joining(&world, &k3s, &k3s.token()));
    world.until("the node is ready", is_ready);
    // The components ask for theirs beside that: all of them are to end soon.
    let paths = ["client-kubelet.pem", "client-kube-proxy.pem", "client-k3s-controller.pem"];
    let paths = paths.map(|name| world.path("root/k3s").join(name));
    world.until("the certificates", |_| paths.iter().all(|path| path.exists()));
    let firsts = paths.each_ref().map(|path| std::fs::read(path).unwrap());
    k3s.state().seconds = None;
    for (path, first) in paths.iter().zip(&firsts) {
        world.until("another certificate", |_| std::fs::read(path).unwrap() != *first);
    }
    world.run("web");
}

#[test]
fn the_server_reaches_the_nodes_api_through_the_tunnel_and_nothing_else() {
    let (world, k3s, config) = joined();
    world.run("web");
    world.api.allow_access("kube-apiserver", "*", "*");
    let identity = world.api.identity("kube-apiserver", &[], None);
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
    let get = |path: &str| {
        // By the authority that the server knows nodes by.
        let ca = world.api.ca_pem();
        let mut client = world.wait("the node to answer", |world| {
            let through = k3s.forward(NODE, &format!("127.0.0.1:{}", world.node_port()));
            Client::connect(through, &ca, Some(&identity)).ok()
        });
        client.send(format!("GET {path} HTTP/1.1\r\nHost: gw\r\n\r\n").as_bytes());
        client.rest()
    };
    for _ in 0..3 {
        assert_eq!(get("/healthz").body, "ok");
    }
    let pods: Value = serde_json::from_str(&get("/pods").body).unwrap();
    assert_eq!(pods["items"][0]["metadata"]["name"], "web");
    // What it holds is told.
    for (structure, limit) in [("tunnels", TUNNELS_MAX), ("tunnel_connections", TUNNEL_CONNECTIONS_MAX)] {
        for line in [
            format!("smolet_bounded_entries{{structure=\"{structure}\"}} 1\n"),
            format!("smolet_bounded_entries_limit{{structure=\"{structure}\"}} {limit}\n"),
        ] {
            // The connection before may not have ended there.
            world.until(&line, |_| get("/metrics").body.contains(&line));
        }
    }

    // A pod's own address, until the pod is gone.
    world.fake.state().pods_on_loopback = true;
    world.run("listens");
    let ip = world.pod("listens").unwrap()["status"]["podIP"].as_str().unwrap().to_owned();
    let pod = TcpListener::bind((ip.as_str(), 0)).unwrap();
    let to_pod = pod.local_addr().unwrap().to_string();
    let ask = |to: &str| {
        let mut socket = TcpStream::connect(("127.0.0.1", k3s.forward(NODE, to))).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let _ = socket.write_all(b"hello");
        let mut said = [0; 5];
        socket.read_exact(&mut said).map(|()| said).ok()
    };
    pod.set_nonblocking(true).unwrap();
    let is_untouched = |pod: &TcpListener| pod.accept().is_err();
    assert!(ask(&to_pod).is_none() && is_untouched(&pod), "only where the server says that it reaches pods");
    world.kill();
    world.forget_port();
    k3s.state().reaches_pods = true;
    k3s.forget();
    world.start_with(config);
    world.until("it was greeted", |_| k3s.paths().contains(&"GET /v1-k3s/server-ca.crt".to_owned()));
    world.until("the tunnel is open again", |_| k3s.has_tunnel(NODE));
    pod.set_nonblocking(false).unwrap();
    let echo = std::thread::spawn(move || {
        let (mut socket, _) = pod.accept().unwrap();
        let mut bytes = [0; 5];
        socket.read_exact(&mut bytes).unwrap();
        socket.write_all(&bytes).unwrap();
        pod
    });
    world.until("the pod answers", |_| ask(&to_pod) == Some(*b"hello"));
    let pod = echo.join().unwrap();
    pod.set_nonblocking(true).unwrap();
    world.api.delete("pods", "default", "listens", Some(0));
    // The server forgets it at once, the node when it has ended.
    world.until("the pod is gone", |_| !get("/pods").body.contains("listens"));
    assert_eq!(ask(&to_pod), None);
    assert!(is_untouched(&pod), "nobody came");

    // Neither another port of the machine's nor another machine.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let other_port = other.local_addr().unwrap().port();
    for to in [format!("127.0.0.1:{other_port}"), "192.0.2.1:443".to_owned(), "localhost:22".to_owned()] {
        assert_eq!(ask(&to), None, "{to}");
    }
    assert!(other.accept().is_err(), "nobody came");
    assert_eq!(get("/healthz").body, "ok", "the tunnel is still there");

    // Cut, it comes again.
    k3s.cut_tunnels();
    world.until("the tunnel is open again", |_| k3s.has_tunnel(NODE));
    assert_eq!(get("/healthz").body, "ok");
}

#[test]
fn of_a_pod_on_the_nodes_network_declared_ports_are_reached() {
    let world = World::on_real_time_without_agent();
    let k3s = K3s::start(&world.api);
    k3s.state().reaches_pods = true;
    let config = joining(&world, &k3s, &k3s.token());
    let (node, ports) = ("127.99.0.1", [0, 1].map(|_| TcpListener::bind(("127.99.0.1", 0)).unwrap()));
    let registration = Registration { addresses: vec![node.parse().unwrap()], ..config.registration.clone() };
    world.start_with(Config { registration, ..config });
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
    let [declared, other] = ports.each_ref().map(|of| of.local_addr().unwrap().port());
    let mut spec = app();
    spec["hostNetwork"] = json!(true);
    spec["containers"][0]["ports"] = json!([{"containerPort": declared}]);
    world.bind("listens", spec);
    world.until("the pod is ready", |world| world.is_ready("listens"));
    for port in &ports {
        port.set_nonblocking(true).unwrap();
    }
    // Somebody comes, or the connection ends: refused.
    let comes = |port: u16, listener: &TcpListener| {
        let through = k3s.forward(NODE, &format!("{node}:{port}"));
        let mut socket = TcpStream::connect(("127.0.0.1", through)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let begun = Instant::now();
        loop {
            if listener.accept().is_ok() {
                return true;
            }
            match socket.read(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return false,
            }
            assert!(begun.elapsed() < PATIENCE, "neither came somebody, nor was it refused");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    world.until("somebody came", |_| comes(declared, &ports[0]));
    assert!(!comes(other, &ports[1]), "it is not declared");
}

#[test]
fn a_command_runs_through_the_tunnel_and_megabytes_come_back() {
    let (world, k3s, _) = joined();
    let lines = 40_000;
    world.until("the tunnel", |_| k3s.has_tunnel(NODE));
    world.run("talks");
    let folder = std::fs::read_dir(world.path("logs")).unwrap().next().unwrap().unwrap().path();
    let path = folder.join("app/0.log");
    let line = "2026-11-23T00:00:00.000000000Z stdout F 0123456789012345678901234567890123456789\n";
    std::fs::write(path, line.repeat(lines)).unwrap();
    world.api.allow_access("kube-apiserver", "*", "*");
    let identity = world.api.identity("kube-apiserver", &[], None);
    let mut client = world.wait("the node to answer", |world| {
        let through = k3s.forward(NODE, &format!("127.0.0.1:{}", world.node_port()));
        Client::connect(through, &world.api.ca_pem(), Some(&identity)).ok()
    });
    client.send(b"GET /containerLogs/default/talks/app HTTP/1.1\r\nHost: gw\r\n\r\n");
    let said = client.rest();
    assert_eq!((said.status, said.body.len()), (200, lines * 41));
    assert!(TUNNEL_PING_PERIOD < Duration::from_secs(60), "k3s waits for a minute");
}
