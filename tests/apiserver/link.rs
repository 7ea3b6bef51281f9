//! The link and who may use it.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::clock::{Clock as _, SystemClock};
use smolet::model::Wall;

use crate::client::{Answer, Client, Config};
use crate::common::TempDir;
use crate::common::apiserver::{ApiServer, Authority, Identity};
use crate::{PATIENCE, QUIET};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn with(server: &ApiServer, identity: &Identity) -> Config {
    let pems = (identity.certificate_pem(), identity.key_pem());
    Config { identity: Some(pems), ..Config::anonymous(server) }
}

fn unauthorized(config: &Config) {
    let answer = Client::connect(config).unwrap().get(PODS).failed();
    assert_eq!(answer, (401, "Unauthorized".into(), "Unauthorized".into()));
}

#[test]
fn who_has_no_identity_that_is_known_is_told_so() {
    let server = ApiServer::start();
    let anonymous = Config::anonymous(&server);
    unauthorized(&anonymous);
    unauthorized(&Config { token: Some("guessed".into()), ..anonymous.clone() });
    unauthorized(&with(
        &server,
        &Authority::new("somebody").client("system:node:gw", &["system:nodes"], None),
    ));
    let hour = Duration::from_hours(1).as_nanos() as i64;
    let now = SystemClock.now().wall.0;
    let past = (Wall(now - 2 * hour), Wall(now - hour));
    unauthorized(&with(&server, &server.identity("system:node:gw", &["system:nodes"], Some(past))));
    assert!(server.requests().iter().all(|request| request.user.is_empty()));
    // Only what everybody may ask.
    let mut client = Client::connect(&anonymous).unwrap();
    assert_eq!(client.get("/readyz").ok(), "ok");
    assert_eq!(client.get("/version").ok()["gitVersion"], "v1.36.2");
}

#[test]
fn certificates_and_tokens_say_who_it_is() {
    let server = ApiServer::start();
    let folder = TempDir::new();
    let hour = Duration::from_hours(1).as_nanos() as i64;
    let now = SystemClock.now().wall.0;
    let short =
        server.identity("system:node:short", &["system:nodes"], Some((Wall(now - hour), Wall(now + hour))));
    let token = server.kubeconfig_with_token(folder.path(), "system:bootstrap:abcdef", "abcdef.0123", &[]);
    for (config, user) in [
        (Config::read(&server.kubeconfig(folder.path(), "system:node:gw")), "system:node:gw"),
        (Config::read(&token), "system:bootstrap:abcdef"),
        (with(&server, &short), "system:node:short"),
    ] {
        let list = Client::connect(&config).unwrap().get(PODS).ok();
        assert_eq!(list["kind"], "PodList");
        assert_eq!(server.requests().last().unwrap().user, user);
    }
    server.revoke_token("abcdef.0123");
    unauthorized(&Config::read(&token));
}

#[test]
fn each_server_has_authorities_of_its_own() {
    let (server, other) = (ApiServer::start(), ApiServer::start());
    let wrong = Config { ca: other.ca_pem(), ..Config::anonymous(&server) };
    let refused = Client::connect(&wrong).map(drop).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    // The authority of clients is not that of servers.
    let wrong = Config { ca: server.client_ca_pem(), ..Config::anonymous(&server) };
    assert!(Client::connect(&wrong).is_err());
    unauthorized(&with(&server, &other.identity("admin", &["system:masters"], None)));
}

#[test]
fn a_server_comes_back_on_its_port_with_all_it_knew() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let made = client.post("/api/v1/namespaces/default/configmaps", config_map("a")).ok();
    for _ in 0..3 {
        server.stop_listening();
        assert_eq!(server.open_connections(), 0);
        assert!(TcpStream::connect(server.address()).is_err(), "nobody listens");
        assert!(client.call("GET", PODS, ("", None)).is_err());
        server.listen_again();
        server.listen_again();
        client = Client::of(&server);
        assert_eq!(client.get("/api/v1/namespaces/default/configmaps/a").ok(), made);
    }
    assert_eq!(server.connections(), 4);
}

#[test]
fn cut_connections_end_everything_that_is_under_way() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let mut watch = client.watch(&format!("{PODS}?watch=true&resourceVersion=1")).unwrap();
    server.wait_for("a watch", PATIENCE, |server| server.open_watches() == 1);
    server.cut_connections();
    assert_eq!(server.open_connections(), 0);
    assert!(watch.end().is_err(), "a watch that is cut does not end in order");
    server.wait_for("the watch's end", PATIENCE, |server| server.open_watches() == 0);
    assert!(client.call("GET", PODS, ("", None)).is_err());
    assert_eq!(Client::of(&server).get(PODS).code, 200);
}

#[test]
fn a_frozen_link_keeps_everything_for_later() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    let mut watch = client.watch(&format!("/api/v1/configmaps?watch=true&resourceVersion={from}")).unwrap();
    server.freeze(true);
    let sent = server.bytes_sent();
    let mut pending = client.begin("GET", PODS, ("", None));
    server.create("configmaps", config_map("a"));
    assert!(pending.wait(QUIET).is_none(), "nothing is answered");
    assert_eq!(watch.within(QUIET), None);
    // Who comes now is let in by the kernel, and hears nothing.
    let late = TcpStream::connect(server.address()).unwrap();
    server.wait_for("a second connection", PATIENCE, |server| server.open_connections() == 2);
    assert_eq!(server.bytes_sent(), sent);
    drop(late);
    server.freeze(false);
    assert_eq!(watch.brief().1, "a");
    assert_eq!(pending.wait(PATIENCE).unwrap().unwrap().code, 200);
    server.freeze(true);
    server.cut_connections();
    assert_eq!(server.open_connections(), 0, "a frozen connection can be cut");
}

#[test]
fn a_connection_that_has_to_go_ends_what_is_under_way_in_peace() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    let mut watch = client.watch(&format!("/api/v1/configmaps?watch=1&resourceVersion={from}")).unwrap();
    server.go_away();
    let start = Instant::now();
    while client.call("GET", PODS, ("", None)).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the connection takes new requests for ever");
    }
    server.create("configmaps", config_map("a"));
    assert_eq!(watch.brief().1, "a");
    assert_eq!(server.open_connections(), 1);
    let mut next = Client::of(&server);
    assert_eq!(next.get(PODS).code, 200, "only those that were there have to go");
    drop((watch, client));
    server.wait_for("the connection's end", PATIENCE, |server| server.open_connections() == 1);
    assert_eq!(next.get(PODS).code, 200);
}

#[test]
fn requests_fail_as_the_test_wants() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    server.fail_next(2, "GET", PODS, 503, "ServiceUnavailable");
    server.fail_next(1, "watch", "", 429, "TooManyRequests");
    server.fail_next(1, "", "/api/v1/namespaces/default/configmaps/a", 500, "InternalError");
    assert_eq!(client.get("/api/v1/nodes").code, 200);
    for _ in 0..2 {
        let answer = client.get(PODS);
        assert!(answer.retry);
        assert_eq!(answer.why(), (503, "ServiceUnavailable".into()));
    }
    assert_eq!(client.get(PODS).code, 200);
    let refused = client.watch(&format!("{PODS}?watch=true")).map(drop).unwrap_err();
    assert_eq!(refused.body["details"]["retryAfterSeconds"], 1);
    assert_eq!(refused.why(), (429, "TooManyRequests".into()));
    assert_eq!(client.delete("/api/v1/namespaces/default/configmaps/a", json!({})).why().0, 500);
    assert_eq!(client.delete("/api/v1/namespaces/default/configmaps/a", json!({})).why().0, 404);
    server.fail_next(9, "", "", 500, "InternalError");
    server.heal();
    assert_eq!(client.get(PODS).code, 200);
}

#[test]
fn a_lost_answer_is_of_a_request_that_was_done() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    server.lose_next(1, "POST", "/api/v1/");
    let body = config_map("a");
    let lost =
        client.call("POST", "/api/v1/namespaces/default/configmaps", ("application/json", Some(&body)));
    assert!(lost.is_err(), "{lost:?}");
    assert!(server.get("configmaps", "default", "a").is_some());
    let mut client = Client::of(&server);
    let again = client.post("/api/v1/namespaces/default/configmaps", body);
    assert_eq!(again.why(), (409, "AlreadyExists".into()));
    let codes: Vec<Option<u16>> = server.requests().iter().map(|request| request.code).collect();
    assert_eq!(codes, [None, Some(409)]);
}

#[test]
fn answers_are_delayed() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    // For so long no thread is kept from the processor.
    let delay = 20 * QUIET;
    server.delay(delay);
    let start = Instant::now();
    let mut pending = client.begin("GET", PODS, ("", None));
    assert!(pending.wait(QUIET).is_none());
    assert_eq!(pending.wait(PATIENCE).unwrap().unwrap().code, 200);
    assert!(start.elapsed() >= delay);
    server.delay(Duration::ZERO);
    assert_eq!(client.get(PODS).code, 200);
}

#[test]
fn what_was_asked_is_remembered_and_counted() {
    let server = ApiServer::start();
    let mut client = Client::named(&server, "system:node:gw");
    let before = (server.bytes_received(), server.bytes_sent());
    assert!(before.0 > 0 && before.1 > 0, "the handshake counts");
    client.post("/api/v1/namespaces/default/configmaps", config_map("a")).ok();
    client.get("/api/v1/namespaces/default/configmaps?limit=5").ok();
    client.get("/nothing").failed();
    let requests = server.requests();
    let shown: Vec<String> = requests.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "POST /api/v1/namespaces/default/configmaps 201",
            "GET /api/v1/namespaces/default/configmaps?limit=5 200",
            "GET /nothing 404"
        ]
    );
    assert_eq!(requests[0].user, "system:node:gw");
    assert_eq!((requests[0].verb, requests[1].verb), ("create", "list"));
    assert_eq!(requests[0].body.as_deref().unwrap()["data"], json!({"a": "b"}));
    assert!(requests[0].at <= requests[1].at);
    assert_eq!(
        (server.count("GET", ""), server.count("list", "/api"), server.count("", "/api/v1/")),
        (2, 1, 2)
    );
    assert!(server.bytes_received() > before.0 && server.bytes_sent() > before.1);
    server.clear_requests();
    assert_eq!((server.requests().len(), server.request_count()), (0, 3));
    server.wait_for("an idle thread", PATIENCE, ApiServer::is_idle);
}

#[test]
fn too_much_and_nonsense_are_refused() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let large = json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(4 << 20)}});
    let refused: Answer = client.post("/api/v1/namespaces/default/configmaps", large);
    assert_eq!(refused.why(), (413, "RequestEntityTooLarge".into()));
    for (method, path, kind, body, wanted) in [
        ("GET", "/", "", None, 404),
        ("GET", "/api/v1/widgets", "", None, 404),
        ("GET", "/api/v2/pods", "", None, 404),
        ("GET", "/api/v1/pods/web", "", None, 404),
        ("GET", "/api/v1/namespaces/default/nodes", "", None, 404),
        ("GET", "/api/v1/namespaces/default/pods/a/b/c", "", None, 404),
        ("GET", "/api/v1/namespaces/default/configmaps/a/status", "", None, 404),
        ("GET", "/api/v1/%ff", "", None, 400),
        ("GET", "/api/v1/pods?limit=many", "", None, 400),
        ("GET", "/api/v1/pods?fieldSelector=spec.magic%3D1", "", None, 400),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name", "", None, 400),
        ("GET", "/api/v1/pods?continue=x", "", None, 400),
        ("GET", "/api/v1/pods?resourceVersion=1000000", "", None, 504),
        ("POST", "/api/v1/pods", "application/json", Some(json!({})), 405),
        ("DELETE", PODS, "application/json", None, 405),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews", "", None, 405),
        ("POST", PODS, "application/vnd.kubernetes.protobuf", Some(json!({})), 415),
        ("PATCH", "/api/v1/nodes/gw", "application/json-patch+json", Some(json!([])), 415),
        (
            "PATCH",
            "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
            "application/merge-patch+json",
            Some(json!([])),
            400,
        ),
        ("POST", PODS, "application/json", Some(json!([])), 400),
        ("POST", PODS, "application/json", Some(json!({"metadata": "x"})), 400),
        ("POST", PODS, "application/json", Some(json!({"kind": "Node"})), 400),
        ("POST", PODS, "application/json", Some(json!({"metadata": {}})), 422),
        ("POST", PODS, "application/json", Some(json!({"metadata": {"name": "a"}})), 422),
        (
            "POST",
            "/api/v1/nodes",
            "application/json",
            Some(json!({"metadata": {"name": "a", "resourceVersion": "5"}})),
            500,
        ),
    ] {
        let answer = client.call(method, path, (kind, body.as_ref())).unwrap();
        assert_eq!(answer.failed().0, wanted, "{method} {path}");
    }
}

#[test]
fn nothing_is_left_of_a_server_that_is_dropped() {
    let server = ApiServer::start();
    let address = server.address();
    let mut client = Client::of(&server);
    let mut watch = client.watch(&format!("{PODS}?watch=true")).unwrap();
    // The table is read in pieces while other tests change it: a socket may stand there twice, or be missing for once.
    let start = Instant::now();
    while sockets(address.port()).len() != 2 {
        assert!(
            start.elapsed() < PATIENCE,
            "the listener and a connection; one that is only bound is in no table"
        );
    }
    drop(server);
    assert!(watch.end().is_err());
    assert_eq!(sockets(address.port()), BTreeSet::new());
    assert!(TcpStream::connect(address).is_err());
}

/// The inodes of sockets with this local port; one that waits out its time has none.
fn sockets(port: u16) -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = lines.filter(|line| line[1].ends_with(&local) && line[9] != "0");
    ours.map(|line| line[9].to_owned()).collect()
}
