//! A node of a k3s cluster of several servers: a tunnel to each, and another one's turn when the one in use is gone.
//!
//! On real time: supervisors' threads and the ends of tunnels do not tell when they have answered everything.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::config::{Config, K3s as Joins};
use smolet::limits::{K3S_LOST_WAIT, K3S_SERVERS_MAX, KUBE_CALL_TIME};

use crate::client::{Client, unused_port};
use crate::common::Stopwatch;
use crate::common::apiserver::ApiServer;
use crate::k3s::{is_ready, joining};
use crate::supervisor::K3s;
use crate::world::{NODE, World};

/// A port of one of the machine's addresses behind which the API server is.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<RelayState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct RelayState {
    ended: AtomicBool,
    /// Nothing goes through, and nobody is told.
    frozen: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Relay {
    pub fn start(listener: TcpListener, to: SocketAddr) -> Self {
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(RelayState::default()));
        let shared = state.clone();
        let run = move || {
            for socket in listener.incoming().flatten() {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                let onward = TcpStream::connect(to).unwrap();
                for (from, to) in [(&socket, &onward), (&onward, &socket)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = shared.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 * 1024];
                        while let Ok(read @ 1..) = from.read(&mut bytes) {
                            while state.frozen.load(Ordering::SeqCst) && !state.ended.load(Ordering::SeqCst) {
                                std::thread::sleep(Duration::from_millis(50));
                            }
                            if to.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
                shared.sockets.lock().unwrap().extend([socket, onward]);
            }
        };
        let thread = std::thread::Builder::new().name("relay".into()).spawn(run).unwrap();
        Self { address, state, thread: Some(thread) }
    }
}

impl Relay {
    /// Connections are cut, and new ones refused.
    fn end(&self) {
        self.state.ended.store(true, Ordering::SeqCst);
        for socket in &*self.state.sockets.lock().unwrap() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        // Wakes it.
        let _ = TcpStream::connect(self.address);
    }

    fn was_used(&self) -> bool {
        !self.state.sockets.lock().unwrap().is_empty()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end();
        let _ = self.thread.take().unwrap().join();
    }
}

/// A server of the cluster: its supervisor, and its API, on two ports that all servers have.
struct Server {
    k3s: K3s,
    relay: Relay,
}

impl Server {
    /// As the cluster lists it.
    fn listed(&self) -> String {
        self.relay.address.to_string()
    }

    fn url(&self, host: &str) -> String {
        let url = self.k3s.url();
        format!("https://{host}:{}", url.rsplit_once(':').unwrap().1)
    }
}

/// Listeners on one port of several hosts.
fn listeners<const N: usize>(hosts: [&str; N]) -> [TcpListener; N] {
    loop {
        let first = TcpListener::bind((hosts[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let rest = hosts[1..].iter().map_while(|host| TcpListener::bind((*host, port)).ok());
        let all: Vec<TcpListener> = std::iter::once(first).chain(rest).collect();
        // Somebody else may have that port of another host.
        if let Ok(all) = all.try_into() {
            return all;
        }
    }
}

/// Servers that have one state, each of which lists them all.
fn servers<const N: usize>(world: &World, hosts: [&str; N]) -> [Server; N] {
    let mut apis = listeners(hosts).into_iter();
    let all = listeners(hosts).map(|supervisor| {
        let relay = Relay::start(apis.next().unwrap(), world.api.address());
        Server { k3s: K3s::start_on(supervisor, &world.api, relay.address.port()), relay }
    });
    let listed: Vec<String> = all.iter().map(Server::listed).collect();
    list(&all, &json!(listed));
    all
}

fn list(servers: &[Server], listed: &Value) {
    for server in servers {
        server.k3s.state().apiservers = Some(listed.clone());
    }
}

fn settings(world: &World, named: &Server) -> Config {
    joining(world, &named.k3s, &named.k3s.token())
}

/// A page of the node's API, asked for through the tunnel to that server.
fn page(world: &World, through: &Server, path: &str) -> String {
    world.until("the tunnel", |_| through.k3s.has_tunnel(NODE));
    let identity = world.api.identity("kube-apiserver", &[], None);
    world.wait("the node to answer", |world| {
        let port = through.k3s.forward(NODE, &format!("127.0.0.1:{}", world.node_port()));
        let mut client = Client::connect(port, &world.api.ca_pem(), Some(&identity)).ok()?;
        client.send(format!("GET {path} HTTP/1.1\r\nHost: gw\r\n\r\n").as_bytes());
        let said = client.rest();
        (said.status == 200).then_some(said.body)
    })
}

fn value(page: &str, name: &str) -> u64 {
    let line = page.lines().find(|line| line.split(' ').next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("{name} in\n{page}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn entries(page: &str, structure: &str) -> u64 {
    value(page, &format!("smolet_bounded_entries{{structure=\"{structure}\"}}"))
}

fn kept(world: &World) -> Option<Value> {
    let text = std::fs::read_to_string(world.path("root/k3s/servers.json")).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

fn written(world: &World) -> (u64, i64) {
    let of = std::fs::metadata(world.path("root/k3s/servers.json")).unwrap();
    (of.ino(), of.mtime_nsec())
}

#[test]
fn the_node_goes_on_with_the_second_server_when_the_first_is_gone_also_after_a_restart() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let [first, second] = servers(&world, ["127.0.0.2", "127.0.0.3"]);
    let config = settings(&world, &first);
    let balanced = unused_port();
    let joins = Joins { load_balancer_port: Some(balanced), ..config.k3s.clone().unwrap() };
    let config = Config { k3s: Some(joins), ..config };
    world.start_with(config.clone());
    world.until("the node is ready", is_ready);
    world.run("web");
    for server in [&first, &second] {
        let page = page(&world, server, "/metrics");
        assert_eq!(value(&page, "smolet_api_server_moves_total"), 0);
        assert_eq!(entries(&page, "api_servers"), 2);
    }
    world.until("a tunnel to each", |world| entries(&page(world, &first, "/metrics"), "tunnels") == 2);
    let named = first.k3s.url().replace("https://", "");
    let wanted = json!({"server": named, "apiservers": [first.listed(), second.listed()]});
    world.until("they are kept", |world| kept(world).as_ref() == Some(&wanted));
    let before = written(&world);
    assert_eq!(
        std::fs::metadata(world.path("root/k3s/servers.json")).unwrap().mode() & 0o777,
        0o600,
        "as the files beside it"
    );

    drop(first);
    world.run("later");
    // Whoever shares the node's network is led to the other one, too.
    world.until("the second server answers", |world| {
        let Ok(mut client) = Client::connect_to("localhost", balanced, &world.api.ca_pem()) else {
            return false;
        };
        client.send(b"GET /cacerts HTTP/1.1\r\nHost: k3s\r\n\r\n");
        client.rest().body == world.api.ca_pem()
    });
    let said = page(&world, &second, "/metrics");
    assert_eq!(value(&said, "smolet_api_server_moves_total"), 1, "it stays there");
    assert_eq!(entries(&said, "tunnels"), 1);

    // The server of its flags is still not there.
    world.kill();
    // The process lives on.
    second.k3s.cut_tunnels();
    second.k3s.forget();
    world.start_with(config);
    world.run("again");
    assert_eq!(page(&world, &second, "/healthz"), "ok");
    for path in ["GET /v1-k3s/config", "GET /v1-k3s/apiservers"] {
        world.until("it was greeted", |_| second.k3s.paths().contains(&path.to_owned()));
    }
    assert!(!second.k3s.paths().iter().any(|path| path.contains("kubelet")), "{:?}", second.k3s.paths());
    assert_eq!((kept(&world), written(&world)), (Some(wanted), before), "nothing was written anew");
}

#[test]
fn the_load_balancer_leaves_a_server_whose_tunnel_is_lost() {
    let world = World::on_real_time_without_agent();
    let [first, second] = servers(&world, ["127.0.0.2", "127.0.0.3"]);
    let config = settings(&world, &first);
    let balanced = unused_port();
    let joins = Joins { load_balancer_port: Some(balanced), ..config.k3s.clone().unwrap() };
    world.start_with(Config { k3s: Some(joins), ..config });
    for server in [&first, &second] {
        world.until("a tunnel to each", |_| server.k3s.has_tunnel(NODE));
    }
    let connected = || {
        world.wait("a server", |world| Client::connect_to("localhost", balanced, &world.api.ca_pem()).ok())
    };
    let was_asked = |server: &Server, path: &str| server.k3s.paths().contains(&format!("GET {path}"));
    let held = connected();
    assert!(connected().ask("/first", "").is_ok() && was_asked(&first, "/first"));
    // It accepts connections, and does nothing for the node.
    first.k3s.state().refuses_tunnels = true;
    first.k3s.cut_tunnels();
    world.until("its connections are closed", |world| {
        world.log().iter().any(|line| line.contains("load balancer") && line.contains("are closed"))
    });
    assert!(held.ask("/held", "").is_err() && !was_asked(&first, "/held"));
    let held = connected();
    assert!(connected().ask("/second", "").is_ok() && was_asked(&second, "/second"));

    // Neither has a tunnel: whoever can be reached has to do.
    second.k3s.state().refuses_tunnels = true;
    second.k3s.cut_tunnels();
    world.until("the loss is known", |world| {
        let lost = |line: &&String| line.contains("tunnel to k3s server") && line.starts_with("WARN");
        world.log().iter().filter(lost).count() >= 2
    });
    assert!(held.ask("/held", "").is_ok() && was_asked(&second, "/held"), "it goes on");
    assert!(connected().ask("/last", "").is_ok());
}

#[test]
fn a_list_with_hostile_entries_brings_nobody_a_word() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let servers = servers(&world, ["127.0.0.2", "127.0.0.3"]);
    let [first, second] = &servers;
    // At the place of a server, with another authority.
    let (theirs, port) =
        (ApiServer::start(), first.k3s.url().rsplit_once(':').unwrap().1.parse::<u16>().unwrap());
    let impostor = K3s::start_on(TcpListener::bind(("127.0.0.4", port)).unwrap(), &theirs, 1);
    let of_impostor = format!("127.0.0.4:{}", first.relay.address.port());
    let mut listed = vec![
        json!(second.listed()),
        json!(of_impostor),
        json!(null),
        json!(["127.0.0.4:1"]),
        json!(""),
        json!("https://127.0.0.4:1"),
        json!("user@127.0.0.4:1"),
        json!("127.0.0.4:1\r\nHost: x:1"),
        json!("0.0.0.0:1"),
        json!(format!("{}:1", "x".repeat(2000))),
    ];
    listed.extend((0..50).map(|_| json!(second.listed())));
    list(&servers, &json!(listed));
    world.start_with(settings(&world, first));
    world.until("the node is ready", is_ready);
    assert_eq!(page(&world, second, "/healthz"), "ok");
    world.until("the impostor is tried", |_| impostor.state().connections >= 2);
    assert_eq!(impostor.paths(), Vec::<String>::new(), "not a word of it");
    assert_eq!(kept(&world).unwrap()["apiservers"], json!([second.listed(), of_impostor]));

    // Of very many a bounded number counts.
    world.kill();
    let many: Vec<String> = (10..200).map(|host| format!("127.0.1.{host}:1")).collect();
    list(&servers, &json!(many));
    world.start_with(settings(&world, first));
    world.until("so many are kept", |world| {
        kept(world).unwrap()["apiservers"].as_array().unwrap().len() == K3S_SERVERS_MAX
    });
    // What is no list at all changes nothing.
    world.kill();
    let before = (kept(&world), written(&world));
    list(&servers, &json!({"servers": [second.listed()]}));
    first.k3s.forget();
    world.start_with(settings(&world, first));
    world.until("it was asked", |_| {
        first.k3s.paths().iter().filter(|path| path.contains("apiservers")).count() >= 2
    });
    assert_eq!((kept(&world), written(&world)), before);
    assert_eq!(
        page(&world, first, "/healthz"),
        "ok",
        "through the server of the flags: no other can be reached"
    );
}

#[test]
fn an_older_server_that_lists_none_is_the_only_one() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let [only] = servers(&world, ["127.0.0.2"]);
    only.k3s.state().apiservers = None;
    world.start_with(settings(&world, &only));
    world.until("the node is ready", is_ready);
    world.until("it was asked", |_| only.k3s.paths().contains(&"GET /v1-k3s/apiservers".to_owned()));
    world.run("web");
    let page = page(&world, &only, "/metrics");
    assert_eq!((entries(&page, "api_servers"), entries(&page, "tunnels")), (0, 1));
    assert_eq!(kept(&world), None);
    let asked = only.k3s.paths().iter().filter(|path| path.contains("apiservers")).count();
    assert_eq!(asked, 1, "it is not asked over and over");
}

#[test]
fn a_cluster_that_does_not_know_its_servers_yet_is_asked_again() {
    let world = World::on_real_time_without_agent();
    let servers = servers(&world, ["127.0.0.2", "127.0.0.3"]);
    list(&servers, &Value::Null);
    let [first, second] = &servers;
    world.start_with(settings(&world, first));
    world.until("it was asked twice", |_| {
        first.k3s.paths().iter().filter(|path| path.contains("apiservers")).count() >= 2
    });
    assert!(!second.k3s.has_tunnel(NODE));
    list(&servers, &json!([first.listed(), second.listed()]));
    world.until("the other tunnel", |_| second.k3s.has_tunnel(NODE));
}

#[test]
fn after_a_tunnel_was_lost_the_list_is_asked_for_and_who_left_has_none() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let servers = servers(&world, ["127.0.0.2", "127.0.0.3", "127.0.0.4"]);
    world.start_with(settings(&world, &servers[0]));
    world.until("the node is ready", is_ready);
    world.until("the tunnels", |_| servers.iter().all(|server| server.k3s.has_tunnel(NODE)));
    // The API of the first is gone, and the one that takes its place leaves the cluster.
    servers[0].relay.end();
    world.run("web");
    let (leaves, stays): (Vec<_>, Vec<_>) = servers[1..].iter().partition(|server| server.relay.was_used());
    let ([leaves], [stays]) = (&leaves[..], &stays[..]) else { panic!("it uses one of them") };
    list(&servers, &json!([servers[0].listed(), stays.listed()]));
    let (begun, soon) = (Instant::now(), Stopwatch::start());
    leaves.k3s.cut_tunnels();
    world.until("it is opened again", |_| leaves.k3s.has_tunnel(NODE));
    assert!(soon.elapsed() < K3S_LOST_WAIT / 2, "{:?}", soon.elapsed());
    world.until("it is ended", |_| !leaves.k3s.has_tunnel(NODE));
    assert!(begun.elapsed() >= K3S_LOST_WAIT, "{:?}", begun.elapsed());
    world.until("it is kept", |world| {
        kept(world).unwrap()["apiservers"].as_array().unwrap().len() == 2 && stays.relay.was_used()
    });
    world.run("later");
    assert!(servers[0].k3s.has_tunnel(NODE) && stays.k3s.has_tunnel(NODE));
    assert_eq!(value(&page(&world, stays, "/metrics"), "smolet_api_server_moves_total"), 2);
}

#[test]
fn a_server_is_left_that_says_nothing_any_more_and_the_node_stays_ready() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let [first, second] = servers(&world, ["127.0.0.2", "127.0.0.3"]);
    world.start_with(settings(&world, &first));
    world.until("the node is ready", is_ready);
    world.until("both tunnels", |_| first.k3s.has_tunnel(NODE) && second.k3s.has_tunnel(NODE));
    let renewed = |world: &World| {
        let lease = world.api.get("leases", "kube-node-lease", NODE)?;
        lease["spec"]["renewTime"].as_str().map(str::to_owned)
    };
    let before = world.wait("its lease", renewed);
    let begun = Stopwatch::start();
    first.relay.state.frozen.store(true, Ordering::SeqCst);
    world.until("it goes on", |world| renewed(world) != Some(before.clone()));
    // A lease's period, and a call's time: the cluster waits for longer than that (`node-monitor-grace-period`).
    assert!(begun.elapsed() < Duration::from_secs(15) + KUBE_CALL_TIME, "{:?}", begun.elapsed());
    assert_eq!(value(&page(&world, &second, "/metrics"), "smolet_api_server_moves_total"), 1);
}

#[test]
fn a_server_is_left_that_is_not_ready() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let [first, second] = servers(&world, ["127.0.0.2", "127.0.0.3"]);
    world.start_with(settings(&world, &first));
    world.until("the node is ready", is_ready);
    world.until("both are known", |world| entries(&page(world, &first, "/metrics"), "api_servers") == 2);
    world.api.fail_next(3, "", "/api/v1/namespaces/default/pods", 503, "ServiceUnavailable");
    world.run("web");
    assert_eq!(value(&page(&world, &second, "/metrics"), "smolet_api_server_moves_total"), 1);
}

#[test]
fn a_server_by_another_name_has_a_tunnel_until_it_has_one_by_its_address() {
    let world = World::on_real_time_without_agent();
    world.api.allow_access("kube-apiserver", "*", "*");
    let servers = servers(&world, ["127.0.0.1"]);
    let [only] = &servers;
    let config = settings(&world, only);
    let url = only.url("localhost");
    let k3s = config.k3s.clone().map(|k3s| Joins { server: url, ..k3s });
    // Of the addresses by which the servers know each other this node reaches none.
    list(&servers, &json!(["127.0.1.1:1"]));
    world.start_with(Config { k3s, ..config.clone() });
    world.until("the node is ready", is_ready);
    world.until("it is known", |world| entries(&page(world, only, "/metrics"), "api_servers") == 1);
    assert_eq!(entries(&page(&world, only, "/metrics"), "tunnels"), 1);
    world.until("the list is kept", |world| kept(world).is_some());
    world.kill();
    list(&servers, &json!([only.listed()]));
    only.k3s.forget();
    std::fs::remove_file(world.path("root/k3s/servers.json")).unwrap();
    let k3s = config.k3s.clone().map(|k3s| Joins { server: only.url("localhost"), ..k3s });
    world.start_with(Config { k3s, ..config });
    let hosts = || -> Vec<String> {
        let asked = only.k3s.state().asked.clone();
        let tunnels = asked.iter().filter(|asked| asked.path == "/v1-k3s/connect");
        tunnels.map(|asked| asked.headers["host"].rsplit_once(':').unwrap().0.to_owned()).collect()
    };
    world.until("both were opened", |_| hosts() == ["localhost", "127.0.0.1"]);
    world.until("one is left", |world| entries(&page(world, only, "/metrics"), "tunnels") == 1);
}
