//! The node's own API: who is let in, what it says, what it passes on.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::config::{Authorization, Config, NodeApi};
use smolet::limits::{
    BLOCKING_JOBS_MAX, CLUSTER_BOUNDS, KUBE_MEMORY_MAX, NODE_CONNECTIONS_MAX, NODE_HANDSHAKE_TIME,
    NODE_STREAMS_MAX, PODS_MAX, STATUS_STORE_BYTES, memory_ceiling,
};
use smolet::model::Wall;

use crate::client::{Client, Response, unused_port};
use crate::common::Stopwatch;
use crate::common::apiserver::{ApiServer, Identity};
use crate::common::away::Away;
use crate::common::fake::{Exec, Program};
use crate::world::{NODE, World, app};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The API server as a client of its nodes, which may do everything.
fn server(world: &World) -> Identity {
    world.api.allow_access("kube-apiserver", "*", "*");
    world.api.identity("kube-apiserver", &[], None)
}

fn get(world: &World, identity: &Identity, path: &str) -> Response {
    world.request(Some(identity), "GET", path, "")
}

#[test]
fn who_shows_nothing_or_something_wrong_is_nobody() {
    let world = World::new();
    world.run("web");
    let stranger = ApiServer::start().identity("kube-apiserver", &["system:masters"], None);
    let expired = world.api.identity("kube-apiserver", &[], Some((Wall(0), Wall(1_000_000_000))));
    world.api.allow_access("kube-apiserver", "*", "*");
    for identity in [None, Some(&stranger), Some(&expired)] {
        let said = world.request(identity, "GET", "/pods", "");
        assert_eq!((said.status, said.body.as_str()), (401, "Unauthorized"), "{identity:?}");
    }
    let said = world.request(None, "GET", "/pods", "Authorization: Bearer wrong\r\n");
    assert_eq!((said.status, said.body.as_str()), (401, "Unauthorized"));
    // A certificate that proves nothing does not keep a token from being looked at.
    world.api.add_token("right", "kube-apiserver", &[]);
    let said = world.request(Some(&stranger), "GET", "/pods", "Authorization: Bearer right\r\n");
    assert_eq!(said.status, 200);
}

#[test]
fn a_token_and_what_it_may_are_asked_for_once() {
    let world = World::new();
    world.api.add_token("secret", "system:serviceaccount:kube-system:metrics", &["system:serviceaccounts"]);
    world.api.allow_access("system:serviceaccounts", "get", "nodes/metrics");
    let ask = |path: &str| world.request(None, "GET", path, "Authorization: Bearer secret\r\n");
    for _ in 0..3 {
        assert_eq!(ask("/metrics/resource").status, 200);
    }
    assert_eq!(world.api.count("POST", TOKEN_REVIEWS), 1);
    assert_eq!(world.api.count("POST", ACCESS_REVIEWS), 1);
    for _ in 0..2 {
        let said = ask("/pods");
        let why = "Forbidden (user=system:serviceaccount:kube-system:metrics, verb=get, resource=nodes, \
                   subresource(s)=[pods proxy])\n";
        assert_eq!((said.status, said.body.as_str()), (403, why));
    }
    assert_eq!(world.api.count("POST", TOKEN_REVIEWS), 1);
    assert_eq!(world.api.count("POST", ACCESS_REVIEWS), 3);
    // What is not there needs a permission too.
    assert_eq!(ask("/nothing").status, 403);
}

/// A WebSocket begins with GET; `get` on nodes/proxy is what is given to whoever reads metrics.
#[test]
fn who_may_only_read_runs_nothing_in_a_container() {
    let world = World::new();
    world.run("web");
    world.api.add_token("reader", "reader", &[]);
    world.api.allow_access("reader", "get", "nodes/proxy");
    let upgrade = "Authorization: Bearer reader\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    for path in [
        "/exec/default/web/app?command=ls&output=1",
        "/%65xec/default/web/app?command=ls&output=1",
        "/attach/default/web/app?output=1",
        "/portForward/default/web?port=80",
    ] {
        let said = world.request(None, "GET", path, upgrade);
        let why = "Forbidden (user=reader, verb=create, resource=nodes, subresource(s)=[proxy])\n".to_owned();
        assert_eq!((said.status, said.body), (403, why), "{path}");
    }
    let reads = |path: &str| world.request(None, "GET", path, "Authorization: Bearer reader\r\n").status;
    assert_eq!(reads("/containerLogs/default/web/app"), 200);
    assert_eq!(reads("/pods"), 200);
}

#[test]
fn without_the_server_nobody_new_is_let_in() {
    let world = World::new();
    let identity = server(&world);
    assert_eq!(get(&world, &identity, "/healthz").status, 200);
    world.api.fail_next(1, "POST", ACCESS_REVIEWS, 500, "InternalError");
    let said = get(&world, &identity, "/configz");
    let why = "Authorization error (user=kube-apiserver, verb=get, resource=nodes, subresource=configz)";
    assert_eq!((said.status, said.body.as_str()), (500, why));
    world.api.fail_next(1, "POST", TOKEN_REVIEWS, 500, "InternalError");
    assert_eq!(world.request(None, "GET", "/healthz", "Authorization: Bearer t\r\n").status, 401);
    assert_eq!(get(&world, &identity, "/healthz").status, 200, "known");
}

#[test]
fn anonymous_users_and_other_settings_are_honoured() {
    let world = World::without_agent();
    let config = world.config();
    let authorization = Authorization::Everything;
    let node_api = NodeApi { anonymous: true, authorization, client_ca: None, ..config.node_api.clone() };
    world.start_with(Config { node_api, ..config });
    assert_eq!(world.request(None, "GET", "/healthz", "").body, "ok");
    assert_eq!(world.request(None, "GET", "/healthz", "Authorization: Bearer x\r\n").status, 401);
    assert_eq!(world.api.count("POST", ACCESS_REVIEWS), 0);
    let said = world.request(None, "GET", "/configz", "");
    let settings: Value = serde_json::from_str(&said.body).unwrap();
    let settings = &settings["kubeletconfig"];
    assert_eq!(settings["authentication"]["anonymous"]["enabled"], true);
    assert_eq!(settings["authorization"]["mode"], "AlwaysAllow");
    assert_eq!(settings["maxPods"], 110);
}

#[test]
fn what_is_here_is_told() {
    let world = World::new();
    world.run("web");
    world.run("job");
    // A container has used the processor after a while.
    world.pass(Duration::from_secs(1));
    let identity = server(&world);
    let ok = |path: &str| {
        let said = get(&world, &identity, path);
        assert_eq!(said.status, 200, "{path}: {said:?}");
        said.body
    };
    let parsed = |path: &str| serde_json::from_str::<Value>(&ok(path)).unwrap();
    assert_eq!(ok("/healthz"), "ok");
    assert_eq!(ok("/healthz/ping"), "ok");
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let pods = parsed("/pods");
    assert_eq!(names(&pods), ["job", "web"]);
    assert_eq!(pods["items"][1]["status"]["phase"], "Running");
    let running = parsed("/runningpods/");
    assert_eq!(names(&running), ["job", "web"]);
    assert_eq!(running["items"][0]["spec"]["containers"][0]["name"], "app");
    assert!(ok("/metrics").contains("\nkubelet_running_pods 2\n"));
    let page = ok("/metrics/resource");
    let row =
        "container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 5242880 ";
    assert!(page.lines().any(|line| line.starts_with(row)), "{page}");
    for name in ["node_cpu_usage_seconds_total ", "node_memory_working_set_bytes ", "resource_scrape_error 0"]
    {
        assert!(page.lines().any(|line| line.starts_with(name)), "{name} in {page}");
    }
    let summary = parsed("/stats/summary");
    assert_eq!(summary["node"]["nodeName"], "gw");
    assert!(summary["node"]["fs"]["capacityBytes"].as_u64().unwrap() > 0);
    assert_eq!(summary["pods"][1]["podRef"]["name"], "web");
    assert_eq!(summary["pods"][1]["podRef"]["uid"], world.pod("web").unwrap()["metadata"]["uid"]);
    assert!(summary["pods"][1]["containers"][0]["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap() > 0);
    let short = parsed("/stats/summary?only_cpu_and_memory=true");
    assert!(short["node"]["fs"].is_null());
    assert_eq!(get(&world, &identity, "/nothing").status, 404);
    assert_eq!(world.request(Some(&identity), "POST", "/pods", "Content-Length: 0\r\n").status, 405);
}

/// The running container's log.
#[test]
fn what_a_node_of_a_cluster_holds_is_told_beside_its_limits() {
    let world = World::new();
    world.run("web");
    let identity = server(&world);
    let page = get(&world, &identity, "/metrics").body;
    let value = |line: &str| -> usize {
        let found = page.lines().find_map(|other| other.strip_prefix(line)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{line}\n{page}")).parse().unwrap()
    };
    for bound in &CLUSTER_BOUNDS {
        let of = |family: &str| value(&format!("smolet_bounded_{family}{{structure=\"{}\"}}", bound.name));
        assert_eq!((of("entries_limit"), of("bytes_limit")), (bound.entries_max, bound.bytes_max));
        let (entries, bytes) = (of("entries"), of("bytes"));
        assert!(
            entries <= bound.entries_max && bytes <= bound.bytes_max,
            "{}: {entries} {bytes}",
            bound.name
        );
        // Of a pod that names no object and does not wait to be resized, of a server that refuses nothing and is none of k3s, of a node that
        // serves no Services and enforces no policies, and of a client that is known by its certificate.
        let is_none = [
            "cluster_objects",
            "kept_changes",
            "refusals_said",
            "resizes_waiting",
            "server_calls",
            "node_api_users",
            "api_servers",
            "tunnels",
            "tunnel_connections",
            "load_balancer_connections",
            "services",
            "flannel_peers",
            "network_policy_pods",
        ]
        .contains(&bound.name);
        assert!(is_none || entries > 0 && bytes > 0, "{}", bound.name);
    }
    let ceiling = memory_ceiling(STATUS_STORE_BYTES) + KUBE_MEMORY_MAX;
    assert_eq!(value("smolet_memory_ceiling_bytes"), ceiling);
}

/// Those that are refused are known too, so that the limit is that of all that are.
#[test]
fn more_known_pods_than_may_run_are_within_the_limit_that_is_shown() {
    let world = World::new();
    world.run("web");
    let identity = server(&world);
    let mut spec = app();
    spec["nodeSelector"] = json!({"nowhere": "true"});
    let pods: Vec<String> = (0..PODS_MAX + 10).map(|n| format!("elsewhere-{n}")).collect();
    for pod in &pods {
        world.bind(pod, spec.clone());
    }
    world.until("all are refused", |world| {
        let page = get(world, &identity, "/metrics").body;
        let value = |family: &str| -> usize {
            let line = format!("smolet_bounded_{family}{{structure=\"cluster_pods\"}} ");
            page.lines().find_map(|other| other.strip_prefix(&*line)).unwrap().parse().unwrap()
        };
        assert!(value("entries") <= value("entries_limit"), "{page}");
        pods.iter().all(|pod| world.phase(pod) == "Failed")
    });
}

fn log(world: &World, pod: &str) -> std::fs::File {
    let uid = world.pod(pod).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let path = world.path(&format!("logs/default_{pod}_{uid}/app/0.log"));
    std::fs::File::options().append(true).open(path).unwrap()
}

#[test]
fn logs_are_shown_in_part_or_whole_and_followed() {
    // On real time: a log is followed by the machine's clock.
    let world = World::on_real_time();
    world.run("web");
    let identity = server(&world);
    let mut file = log(&world, "web");
    write!(
        file,
        "2026-01-01T00:00:00.5Z stdout F one\n2026-01-01T00:00:01Z stderr F two\n2026-01-01T00:00:02Z stdout F three\n"
    )
    .unwrap();
    for (query, body) in [
        ("", "one\ntwo\nthree\n"),
        ("tailLines=1", "three\n"),
        ("tailLines=0", ""),
        ("limitBytes=5", "one\nt"),
        ("sinceTime=2026-01-01T00:00:01Z", "two\nthree\n"),
        ("sinceSeconds=1", ""),
        ("stream=Stderr", "two\n"),
        ("timestamps=true&tailLines=1", "2026-01-01T00:00:02.000000000Z three\n"),
    ] {
        let said = get(&world, &identity, &format!("/containerLogs/default/web/app?{query}"));
        assert_eq!((said.status, said.body.as_str()), (200, body), "{query}");
    }
    let long = "x".repeat(100_000);
    writeln!(file, "2026-01-01T00:00:03Z stdout F {long}").unwrap();
    let said = get(&world, &identity, "/containerLogs/default/web/app?tailLines=1");
    assert_eq!(said.body.len(), long.len() + 1);

    let mut client = world.connect(Some(&identity)).unwrap();
    client.send(b"GET /containerLogs/default/web/app?follow=true&tailLines=0 HTTP/1.1\r\nHost: gw\r\n\r\n");
    let head = client.until(|text| text.contains("\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    for number in 0..3 {
        let begun = Stopwatch::start();
        writeln!(file, "2026-01-01T00:00:04Z stdout F line {number}").unwrap();
        client.until(|text| text.contains(&format!("line {number}\n")));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    world.fake.exit("web/app", 0, "Completed", "");
    drop(file);
    let begun = Stopwatch::start();
    client.until(|text| text.ends_with("0\r\n\r\n"));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn logs_that_are_followed_leave_room_for_questions() {
    // On real time: a log is followed by the machine's clock.
    let world = World::on_real_time();
    world.run("web");
    let identity = server(&world);
    let follow = || {
        let mut client = world.connect(Some(&identity)).unwrap();
        client.send(b"GET /containerLogs/default/web/app?follow=true HTTP/1.1\r\nHost: gw\r\n\r\n");
        let head = client.until(|text| text.contains("\r\n\r\n"));
        (client, head)
    };
    let mut followed: Vec<_> = (0..NODE_STREAMS_MAX).map(|_| follow()).collect();
    assert!(followed.iter().all(|(_, head)| head.starts_with("HTTP/1.1 200 ")), "{:?}", followed[0].1);
    let refused = follow().1;
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert_eq!(get(&world, &identity, "/healthz").body, "ok");
    // One that ends makes room for another.
    followed.pop();
    world.wait("room", |_| follow().1.starts_with("HTTP/1.1 200 ").then_some(()));
}

/// A container with a hostPath on the logs may put anything in their place: what hangs takes none of the agent's own turns.
#[test]
fn a_log_that_hangs_holds_up_no_other() {
    // On real time: a thread hangs on the disk.
    let world = World::on_real_time();
    world.run("web");
    world.run("other");
    let identity = server(&world);
    drop(log(&world, "web"));
    let uid = world.pod("web").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let (logs, away) = (world.path(&format!("logs/default_web_{uid}/app")), world.path("away"));
    std::fs::rename(&logs, world.path("before")).unwrap();
    std::os::unix::fs::symlink(&away, &logs).unwrap();
    let away = Away::mount(&away);
    let ask = |pod: &str| {
        let mut client = world.connect(Some(&identity)).unwrap();
        let head = format!("GET /containerLogs/default/{pod}/app HTTP/1.1\r\nHost: gw\r\n\r\n");
        client.send(head.as_bytes());
        client
    };
    let hang: Vec<_> = (0..=BLOCKING_JOBS_MAX).map(|_| ask("web")).collect();
    let mut file = log(&world, "other");
    for number in 0..3 {
        writeln!(file, "2026-01-01T00:00:00Z stdout F line {number}").unwrap();
        let said = ask("other").rest();
        assert!(said.status == 200 && said.body.ends_with(&format!("line {number}\n")), "{said:?}");
    }
    for client in hang {
        let said = client.rest();
        assert!(said.status == 400 && said.body.contains("does not answer within 10 s"), "{said:?}");
    }
    drop(away);
}

#[test]
fn what_has_no_log_is_refused_in_the_kubelets_words() {
    let world = World::new();
    world.run("web");
    let mut waits = app();
    waits["containers"][0]["env"] =
        json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "a"}}}]);
    world.bind("waits", waits);
    world.until("it waits", |world| {
        let pod = world.pod("waits").unwrap();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    let identity = server(&world);
    for (path, status, why) in [
        ("default/none/app", 404, "pod \"none\" does not exist"),
        ("other/web/app", 404, "pod \"web\" does not exist"),
        ("default/web/none", 404, "container \"none\" not found in pod \"web\""),
        (
            "default/web/app?previous=true",
            400,
            "previous terminated container \"app\" in pod \"web\" not found",
        ),
        (
            "default/waits/app",
            400,
            "container \"app\" in pod \"waits\" is waiting to start: CreateContainerConfigError",
        ),
        ("default/web/app?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}"),
        ("default/web/app?tailLines=x", 400, "{\"message\": \"Unable to decode query.\"}"),
    ] {
        let said = get(&world, &identity, &format!("/containerLogs/{path}"));
        assert_eq!((said.status, said.body.as_str()), (status, why), "{path}");
    }
    world.fake.program("app", Program::exits(1, Duration::from_millis(10)));
    world.fake.exit("web/app", 1, "Error", "");
    world.until("it has a life before", |world| {
        let pod = world.pod("web").unwrap();
        pod["status"]["containerStatuses"][0]["lastState"]["terminated"].is_object()
    });
    let said = get(&world, &identity, "/containerLogs/default/web/app?previous=true");
    assert_eq!(said.status, 200, "{said:?}");
}

/// A streaming server of a runtime's: takes one connection, answers its upgrade, and says everything back in capitals. What
/// it was asked is returned.
fn echo(world: &World, answer: &'static str) -> JoinHandle<String> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    world.fake.state().streaming_server = Some(format!("http://{}", listener.local_addr().unwrap()));
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        // Its first words stand right behind the answer.
        write!(socket, "{answer}\r\n\r\nhello ").unwrap();
        say_back(&mut socket);
        String::from_utf8(head).unwrap()
    })
}

fn say_back(socket: &mut TcpStream) {
    let mut piece = [0; 1000];
    loop {
        let read = socket.read(&mut piece).unwrap_or(0);
        piece[..read].make_ascii_uppercase();
        if read == 0 || socket.write_all(&piece[..read]).is_err() || piece[..read].contains(&b'.') {
            return;
        }
    }
}

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                        X-Stream-Protocol-Version: v4.channel.k8s.io";

#[test]
fn connections_are_upgraded_and_bytes_go_both_ways() {
    let world = World::new();
    world.run("web");
    let identity = server(&world);
    let uid = world.pod("web").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    for (path, call, token) in [
        (
            "/exec/default/web/app?command=sh&command=-c&input=1&output=1&tty=1",
            "Exec web/app#0 -i -t sh -c",
            "exec",
        ),
        (&format!("/exec/default/web/{uid}/app?command=ls&output=1&error=1"), "Exec web/app#0 2> ls", "exec"),
        ("/attach/default/web/app?output=1&error=1&tty=1", "Attach web/app#0", "attach"),
        ("/portForward/default/web", "PortForward web#0", "portforward"),
        (&format!("/portForward/default/web/{uid}"), "PortForward web#0", "portforward"),
    ] {
        world.fake.clear_calls();
        let asked = echo(&world, SWITCHED);
        let mut client = world.connect(Some(&identity)).unwrap();
        // What is sent right behind the head is not lost.
        let head = "Host: gw\r\nAuthorization: Bearer secret\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                    X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\nearly ";
        client.send(format!("POST {path} HTTP/1.1\r\n{head}").as_bytes());
        let said = client.until(|text| text.ends_with("\r\n\r\nhello EARLY "));
        assert!(said.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{said}");
        assert!(said.contains("\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n"), "{said}");
        // With a word more in it, an API server sees no upgrade.
        assert!(said.contains("\r\nconnection: Upgrade\r\n"), "{said}");
        let long = "abcdefghij".repeat(30_000);
        client.send(long.as_bytes());
        client.until(|text| text.len() == long.len());
        client.send(b"end.");
        client.until(|text| text == "END.");
        let asked = asked.join().unwrap();
        assert!(asked.starts_with(&format!("POST /{token}/token HTTP/1.1\r\n")), "{asked}");
        assert!(!asked.contains("secret"), "{asked}");
        assert!(world.fake.calls().contains(&call.to_owned()), "{call} in {:?}", world.fake.calls());
    }
}

#[test]
fn a_connection_on_which_nothing_moves_is_closed() {
    // On real time: the client and the runtime's streaming server exchange bytes now and then.
    let world = World::on_real_time_without_agent();
    let idle = Duration::from_secs(5);
    let config = world.config();
    let node_api = NodeApi { stream_idle_max: idle, ..config.node_api.clone() };
    world.start_with(Config { node_api, cluster_dns: vec!["10.43.0.10".to_owned()], ..config });
    world.run("web");
    let identity = server(&world);
    const HEAD: &str =
        "HTTP/1.1\r\nHost: gw\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n";
    for path in ["/exec/default/web/app?command=sh&input=1", "/portForward/default/web"] {
        let asked = echo(&world, SWITCHED);
        let mut client = world.connect(Some(&identity)).unwrap();
        let begun = Instant::now();
        client.send(format!("POST {path} {HEAD}").as_bytes());
        client.until(|text| text.ends_with("\r\n\r\nhello "));
        // What moves now and then goes on for longer than that.
        let mut last = Instant::now();
        while begun.elapsed() < idle * 3 / 2 {
            std::thread::sleep(Duration::from_millis(300));
            last = Instant::now();
            client.send(b"a");
            client.until(|text| text == "A");
        }
        assert_eq!(client.end(), "", "{path}");
        assert!(last.elapsed() >= idle, "{path}: {:?}", last.elapsed());
        asked.join().unwrap();
    }
}

#[test]
fn tls_is_spoken_as_the_settings_have_it() {
    use futures_rustls::rustls::version::{TLS12, TLS13};
    let world = World::without_agent();
    let config = world.config();
    let connect = |versions: &[&'static futures_rustls::rustls::SupportedProtocolVersion]| {
        let port = world.node_port();
        let pem = std::fs::read_to_string(world.path("root/pki/smolet.crt")).unwrap();
        Client::connect_by(versions, port, &pem, None)
    };
    let new = |tls13_only: bool, suites: &[&str]| {
        let cipher_suites = suites.iter().map(|&suite| suite.to_owned()).collect();
        let node_api = NodeApi { tls13_only, cipher_suites, ..config.node_api.clone() };
        // The next agent's port is another one.
        if world.node().is_some() {
            world.api.delete("nodes", "", NODE, None);
        }
        world.start_with(Config { node_api, ..config.clone() });
    };
    new(true, &[]);
    assert_eq!(connect(&[&TLS13]).unwrap().spoken().0, "TLSv1_3");
    let refused = connect(&[&TLS12]).map(drop).unwrap_err().to_string();
    assert!(refused.contains("ProtocolVersion"), "{refused}");
    world.stop();
    new(false, &["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_RSA_WITH_RC4_128_SHA"]);
    let spoken = connect(&[&TLS12]).unwrap().spoken();
    assert_eq!(
        (spoken.0.as_str(), spoken.1.as_str()),
        ("TLSv1_2", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
    );
    world.stop();
    // The node's own certificate is of another kind.
    new(false, &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    assert!(connect(&[&TLS12]).is_err());
    assert!(connect(&[&TLS13]).is_ok());
}

#[test]
fn a_web_socket_is_passed_on_as_it_is() {
    let world = World::new();
    world.run("web");
    let identity = server(&world);
    let asked = echo(
        &world,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x",
    );
    let mut client = world.connect(Some(&identity)).unwrap();
    client.send(
        b"GET /exec/default/web/app?command=ls&output=1 HTTP/1.1\r\nHost: gw\r\nConnection: Upgrade\r\n\
          Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
          Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
    );
    let said = client.until(|text| text.ends_with("hello "));
    assert!(said.contains("\r\nsec-websocket-accept: x\r\n"), "{said}");
    client.send(b"bye.");
    client.until(|text| text == "BYE.");
    assert!(asked.join().unwrap().contains("\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"));
}

#[test]
fn an_upgrade_that_cannot_be_is_refused() {
    let world = World::new();
    world.run("web");
    let identity = server(&world);
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
    for (path, headers, status, why) in [
        ("/exec/default/web/app?command=ls&output=1", "", 400, "Upgrade request required"),
        (
            "/exec/default/web/app?command=ls",
            UPGRADE,
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        ("/exec/default/none/app?command=ls&output=1", UPGRADE, 404, "pod does not exist"),
        ("/exec/default/web/none?command=ls&output=1", UPGRADE, 500, "container not found (\"none\")"),
        ("/exec/default/web/0-1/app?command=ls&output=1", UPGRADE, 500, "container not found (\"app\")"),
        ("/portForward/default/web/0-1", UPGRADE, 500, "pod not found (\"web_default\")"),
        ("/portForward/default/none", UPGRADE, 404, "pod does not exist"),
    ] {
        let said = world.request(Some(&identity), "POST", path, &format!("{headers}Content-Length: 0\r\n"));
        assert_eq!((said.status, said.body.as_str()), (status, why), "{path}");
    }
    // The streaming server is not there, or refuses.
    let path = "/exec/default/web/app?command=ls&output=1";
    let said = world.request(Some(&identity), "POST", path, UPGRADE);
    assert_eq!(said.status, 502, "{said:?}");
    let asked = echo(&world, "HTTP/1.1 403 Forbidden\r\nContent-Length: 5");
    let said = world.request(Some(&identity), "POST", path, UPGRADE);
    assert_eq!((said.status, said.body.as_str()), (403, "hello"), "{said:?}");
    asked.join().unwrap();
}

#[test]
fn a_command_is_run_with_its_output() {
    let world = World::new();
    world.run("web");
    let identity = server(&world);
    let run = |path: &str| world.request(Some(&identity), "POST", path, "Content-Length: 0\r\n");
    world.fake.exec("ls", Exec { code: 0, stdout: b"out\n".to_vec(), stderr: b"err\n".to_vec() });
    let said = run("/run/default/web/app?cmd=ls%20-l");
    assert_eq!((said.status, said.body.as_str()), (200, "out\nerr\n"));
    world.fake.exec("fail", Exec { code: 3, stdout: b"no".to_vec(), stderr: Vec::new() });
    let said = run("/run/default/web/app?cmd=fail");
    assert_eq!((said.status, said.body.as_str()), (500, "command 'fail' exited with 3: no"));
    assert_eq!(run("/run/default/none/app?cmd=ls").status, 404);
}

#[test]
fn hostile_clients_hold_up_nobody() {
    let world = World::new();
    let identity = server(&world);
    let port = world.node_port();
    // Half a greeting, garbage, and plain HTTP.
    let mut open: Vec<TcpStream> = Vec::new();
    for bytes in [&b""[..], b"\x16\x03\x01", b"\x00garbage\xff", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.write_all(bytes).unwrap();
        open.push(socket);
    }
    let said = world.request(Some(&identity), "GET", "/healthz", &format!("X: {}\r\n", "x".repeat(40_000)));
    assert_eq!(said.status, 431);
    let said = world.request(Some(&identity), "GET", &format!("/exec?{}", "a=%zz&".repeat(1000)), "");
    assert!(matches!(said.status, 400 | 404), "{said:?}");
    let said = world.request(Some(&identity), "GET", "/%2e%2e/%00", "");
    assert_eq!(said.status, 404);
    // More than there are places, of those that say nothing.
    open.extend((0..=NODE_CONNECTIONS_MAX).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()));
    let begun = Stopwatch::start();
    assert_eq!(get(&world, &identity, "/healthz").body, "ok");
    assert!(begun.elapsed() < NODE_HANDSHAKE_TIME / 2, "{:?}", begun.elapsed());
}

#[test]
fn health_is_told_without_a_question_on_a_port_of_its_own() {
    let world = World::without_agent();
    let config = world.config();
    // All addresses of both families, as with Go.
    let healthz = SocketAddr::from((Ipv4Addr::UNSPECIFIED, unused_port()));
    let node_api = NodeApi { healthz: Some(healthz), ..config.node_api.clone() };
    world.start_with(Config { node_api, ..config });
    world.node_port();
    let ask_at = |host: IpAddr, request: &str| {
        let mut socket = TcpStream::connect((host, healthz.port())).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).unwrap();
        said
    };
    let ask = |request: &str| ask_at(Ipv4Addr::LOCALHOST.into(), request);
    let said = ask_at(Ipv6Addr::LOCALHOST.into(), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(said.ends_with("\r\n\r\nok"), "{said}");
    assert!(ask("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\nok"));
    for path in ["/pods", "/metrics", "/configz", "/containerLogs/default/web/app", "/exec/a/b/c?output=1"] {
        let said = ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(said.starts_with("HTTP/1.1 404 Not Found\r\n"), "{path}: {said}");
    }
    assert!(ask("POST /healthz HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405 "));
}

#[test]
fn a_port_or_a_certificate_that_cannot_be_used_is_named_at_the_start() {
    let world = World::without_agent();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = world.config();
    let port = taken.local_addr().unwrap().port();
    let key = world.path("key.pem");
    let with = |change: &dyn Fn(&mut NodeApi)| {
        let mut config = config.clone();
        change(&mut config.node_api);
        world.refusal(config)
    };
    let why = with(&|api| api.port = port);
    assert!(why.starts_with(&format!("node API 127.0.0.1:{port}: ")) && why.contains("--port"), "{why}");
    let why = with(&|api| api.client_ca = Some(key.clone()));
    assert!(why.starts_with(&format!("{}: No such file", key.display())), "{why}");
    std::fs::write(&key, "no key").unwrap();
    let why = with(&|api| api.certificate = Some((world.path("clients.crt"), key.clone())));
    assert_eq!(why, format!("{}: holds no private key in PEM", key.display()));
}
