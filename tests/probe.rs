//! What probes do over the network: against servers on loopback, in real time.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used, clippy::pedantic)]

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::{HeaderMap, Request, Response};
use k8s_openapi::api::core::v1::{Container, Probe};
use serde_json::{Value, json};
use smol::LocalExecutor;
use smolet::clock::{Clock as _, SystemClock};
use smolet::cri::GrpcRuntime;
use smolet::limits::{KIB, PROBE_OUTPUT_BYTES_MAX};
use smolet::model::ContainerId;
use smolet::probe::handler::Handler;
use smolet::probe::run::{Answer, Lookups, Tools, probe};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// More than any answer here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn run_for(handler: Value, timeout: Duration) -> Answer {
    let spec: Probe = serde_json::from_value(handler).unwrap();
    let handler = Handler::of_probe(&spec, &Container::default(), Some(LOOPBACK)).unwrap();
    let executor = Rc::new(LocalExecutor::new());
    let clock = Rc::new(SystemClock);
    let runtime = Rc::new(GrpcRuntime::new(Path::new("/nowhere"), &executor, clock.clone()));
    let tools = Tools { runtime, clock, lookups: Lookups::default() };
    let id = ContainerId::from("c");
    let answer = smol::block_on(executor.run(probe(&tools, &id, &handler, timeout)));
    answer.expect("it can be run")
}

fn run(handler: Value) -> Answer {
    run_for(handler, PATIENCE)
}

fn failure(handler: Value) -> String {
    match run(handler) {
        Answer::Failure(words) => words,
        other => panic!("{other:?}"),
    }
}

/// A port that nobody listens on.
fn closed() -> u16 {
    TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port()
}

/// Serves connections one after the other on a thread that ends with the test's process.
fn server(serve: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    port
}

/// An HTTP server that answers by path with these bytes; the heads of the requests.
fn http(answers: &[(&str, &str)]) -> (u16, Arc<Mutex<Vec<String>>>) {
    let answers: Vec<(String, String)> =
        answers.iter().map(|(p, a)| (p.to_string(), a.to_string())).collect();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    let port = server(move |mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        kept.lock().unwrap().push(head.clone());
        let path = head.split(' ').nth(1).unwrap_or_default();
        if let Some((_, answer)) = answers.iter().find(|(of, _)| of == path) {
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (port, heads)
}

fn get(port: u16, path: &str) -> Value {
    json!({"httpGet": {"port": port, "path": path, "scheme": "HTTP"}})
}

#[test]
fn status_codes_are_judged_as_the_kubelet_does() {
    let body = "x".repeat(20 * KIB);
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let (port, heads) = http(&[
        ("/ok", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
        ("/none", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("/old", "HTTP/1.0 200 OK\r\n\r\nuntil the end"),
        ("/chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        ("/long", &long),
        ("/careless", "HTTP/1.1 200 OK\r\nA : 1\r\n b\r\nb\u{e9}: 2\r\n\r\n"),
        ("/away", "HTTP/1.1 404 Not Found\r\n\r\n"),
        ("/broken", "HTTP/1.1 503 Unavailable\r\nContent-Length: 1\r\n\r\nx"),
        ("/cached", "HTTP/1.1 304 Not Modified\r\n\r\n"),
        ("/cut", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"),
        ("/noise", "not HTTP at all\r\n\r\n"),
        ("/silent", ""),
    ]);
    for path in ["/ok", "/none", "/old", "/chunked", "/long", "/careless"] {
        assert_eq!(run(get(port, path)), Answer::Success, "{path}");
    }
    assert_eq!(failure(get(port, "/away")), "HTTP probe failed with statuscode: 404");
    assert_eq!(failure(get(port, "/broken")), "HTTP probe failed with statuscode: 503");
    let warning = Answer::Warning("Probe terminated redirects, Response body: ".to_owned());
    assert_eq!(run(get(port, "/cached")), warning);
    for path in ["/cut", "/noise", "/silent"] {
        let words = failure(get(port, path));
        assert!(words.starts_with(&format!("Get \"http://127.0.0.1:{port}{path}\": ")), "{words}");
    }
    let heads = heads.lock().unwrap();
    let wanted = format!(
        "GET /ok HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(heads[0], wanted);
}

#[test]
fn a_manifests_own_headers_go_over_the_wire() {
    let (port, heads) = http(&[("/", "HTTP/1.1 200 OK\r\n\r\n")]);
    let own = json!([{"name": "Host", "value": "a.example"}, {"name": "X-Api-Key", "value": "k"}, {"name": "accept", "value": ""}]);
    assert_eq!(run(json!({"httpGet": {"port": port, "httpHeaders": own}})), Answer::Success);
    assert_eq!(run(json!({"httpGet": {"port": port, "host": "localhost"}})), Answer::Success);
    let heads = heads.lock().unwrap();
    assert!(
        heads[0].contains("\r\nHost: a.example\r\n") && heads[0].contains("\r\nX-Api-Key: k\r\n"),
        "{heads:?}"
    );
    assert!(!heads[0].contains("Accept"), "{heads:?}");
    assert!(heads[1].contains(&format!("\r\nHost: localhost:{port}\r\n")), "{heads:?}");
}

#[test]
fn redirects_are_followed_on_the_same_host_only_and_not_for_ever() {
    let to = |location: &str| {
        format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\nmore")
    };
    let (port, heads) = http(&[
        ("/a", &to("b")),
        ("/b", &to("/ok")),
        ("/ok", "HTTP/1.1 200 OK\r\n\r\n"),
        ("/bad", &to("/none")),
        ("/none", "HTTP/1.1 500 Oh\r\n\r\n"),
        ("/round", &to("/round")),
        ("/elsewhere", &to("http://192.0.2.1/")),
        ("/nowhere", "HTTP/1.1 301 Moved\r\n\r\n"),
    ]);
    assert_eq!(run(get(port, "/a")), Answer::Success);
    assert_eq!(heads.lock().unwrap().len(), 3);
    assert_eq!(failure(get(port, "/bad")), "HTTP probe failed with statuscode: 500");
    let words = failure(get(port, "/round"));
    assert_eq!(words, format!("Get \"http://127.0.0.1:{port}/round\": stopped after 10 redirects"));
    assert_eq!(heads.lock().unwrap().len(), 3 + 2 + 10);
    let warning = |body: &str| Answer::Warning(format!("Probe terminated redirects, Response body: {body}"));
    assert_eq!(run(get(port, "/elsewhere")), warning("more"));
    assert_eq!(run(get(port, "/nowhere")), warning(""));
}

#[test]
fn what_an_event_has_no_room_for_is_not_kept() {
    let body = "\u{e9}".repeat(8 * KIB);
    let (port, _) = http(&[("/", &format!("HTTP/1.1 300 Choose\r\n\r\n{body}"))]);
    let Answer::Warning(words) = run(get(port, "/")) else { panic!("a warning") };
    assert!(words.len() <= PROBE_OUTPUT_BYTES_MAX + 50, "{}", words.len());
    let head = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(64 * KIB));
    let (port, _) = http(&[("/", &head)]);
    assert!(failure(get(port, "/")).contains("message head is too large"));
}

#[test]
fn a_server_that_does_not_answer_fails_the_probe_in_its_time() {
    let port = server(std::mem::forget);
    let second = Duration::from_millis(50);
    let begun = SystemClock.now().mono;
    let late = |handler| match run_for(handler, second) {
        Answer::Failure(words) => words,
        other => panic!("{other:?}"),
    };
    let words = late(get(port, "/x"));
    assert_eq!(
        words,
        format!(
            "Get \"http://127.0.0.1:{port}/x\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )
    );
    assert!(late(json!({"grpc": {"port": port}})).starts_with("timeout: health rpc did not complete within"));
    assert!(SystemClock.now().mono.since(begun) >= 2 * second);
}

#[test]
fn a_port_is_open_or_it_is_not() {
    let (port, closed) = (server(drop), closed());
    assert_eq!(run(json!({"tcpSocket": {"port": port}})), Answer::Success);
    assert_eq!(run(json!({"tcpSocket": {"port": port, "host": "localhost"}})), Answer::Success);
    let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    assert_eq!(failure(json!({"tcpSocket": {"port": closed}})), refused);
    assert_eq!(failure(get(closed, "/")), format!("Get \"http://127.0.0.1:{closed}/\": {refused}"));
    let words = failure(json!({"grpc": {"port": closed}}));
    assert_eq!(words, format!("error: failed to connect service at \"127.0.0.1:{closed}\": {refused}"));
    let words = failure(json!({"tcpSocket": {"port": 1, "host": "no such host"}}));
    assert!(words.starts_with("dial tcp: lookup no such host: "), "{words}");
}

// ---- gRPC --------------------------------------------------------------------------------------------------

#[derive(Clone)]
struct Spawner(Rc<LocalExecutor<'static>>);

impl<F: Future + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        self.0.spawn(async { drop(task.await) }).detach();
    }
}

/// The health service: its answers by the service's name; an unknown one has the status NOT_FOUND.
fn health() -> u16 {
    server(|stream| {
        let stream = async_io::Async::new(stream).unwrap();
        let executor = Rc::new(LocalExecutor::new());
        let serve = hyper::service::service_fn(|request: Request<Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            assert_eq!(request.headers()["user-agent"], "kube-probe/1.36");
            assert!(request.uri().authority().unwrap().as_str().starts_with("127.0.0.1:"));
            let body = request.into_body().collect().await.unwrap().to_bytes();
            // Five bytes of framing, then field 1.
            let service = String::from_utf8_lossy(body.get(7..).unwrap_or_default()).into_owned();
            let (status, message): (&str, &[u8]) = match &*service {
                "" => ("0", &[8, 1]),
                "down" => ("0", &[8, 2]),
                "odd" => ("0", &[8, 77]),
                "unborn" => ("0", &[]),
                "none" => ("12", &[]),
                _ => ("5", &[]),
            };
            let mut framed = vec![0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
            framed.extend(message);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            trailers.insert("grpc-message", "no such service".parse().unwrap());
            let mut frames: Vec<Result<Frame<Bytes>, Infallible>> = Vec::new();
            if status == "0" {
                frames.push(Ok(Frame::data(framed.into())));
            }
            frames.push(Ok(Frame::trailers(trailers)));
            let body = StreamBody::new(smol::stream::iter(frames));
            let response = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.body(body).unwrap())
        });
        let connection = hyper::server::conn::http2::Builder::new(Spawner(executor.clone()))
            .serve_connection(smol_hyper::rt::FuturesIo::new(stream), serve);
        let _ = smol::block_on(executor.run(connection));
    })
}

#[test]
fn a_grpc_server_is_asked_for_its_health() {
    let port = health();
    let check = |service: &str| json!({"grpc": {"port": port, "service": service}});
    assert_eq!(run(json!({"grpc": {"port": port}})), Answer::Success);
    assert_eq!(run(check("")), Answer::Success);
    for (service, words) in [
        ("down", "service unhealthy (responded with \"NOT_SERVING\")"),
        ("odd", "service unhealthy (responded with \"77\")"),
        ("unborn", "service unhealthy (responded with \"UNKNOWN\")"),
        (
            "none",
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no such service",
        ),
        ("other", "error: health rpc probe failed: no such service (gRPC status 5)"),
    ] {
        assert_eq!(failure(check(service)), words);
    }
}

#[test]
fn a_server_of_http_1_is_no_grpc_server() {
    let (port, _) = http(&[("*", "HTTP/1.1 400 Bad Request\r\n\r\n")]);
    let words = failure(json!({"grpc": {"port": port}}));
    assert!(words.starts_with("error: health rpc probe failed: "), "{words}");
}
