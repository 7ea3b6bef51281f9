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
use smolet::executor::Executor;
use smolet::limits::{KIB, PROBE_OUTPUT_BYTES_MAX};
use smolet::model::ContainerId;
use smolet::net::Lookups;
use smolet::probe::handler::Handler;
use smolet::probe::run::{Answer, Tools, probe};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// More than any answer here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn run_for(handler: Value, timeout: Duration) -> Answer {
    let spec: Probe = serde_json::from_value(handler).unwrap();
    let handler = Handler::of_probe(&spec, &Container::default(), Some(LOOPBACK)).unwrap();
    let executor = Rc::new(Executor::new());
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

/// A port that nobody listens on: a free one of those that the kernel gives may be another test's by then.
const CLOSED: u16 = 1;

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
    let (port, closed) = (server(drop), CLOSED);
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

// ---- TLS ---------------------------------------------------------------------------------------------------

#[cfg(feature = "tls")]
mod tls {
    use std::io::{BufRead as _, BufReader};
    use std::path::PathBuf;
    use std::process::{Child, ChildStdout, Command, Stdio};

    use super::*;

    /// `openssl s_server`, which answers a path with the file of that name; ended with the test.
    struct Tls {
        process: Child,
        /// Open for as long as it writes.
        _output: BufReader<ChildStdout>,
        dir: PathBuf,
        port: u16,
    }

    impl Tls {
        /// `key` is what `openssl req -newkey` takes; `options` are the server's.
        fn start(name: &str, key: &[&str], options: &[&str]) -> Self {
            let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-tls-{name}"));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir).unwrap();
            let openssl = |arguments: &[&str]| {
                let mut command = Command::new("openssl");
                command.current_dir(&dir).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
                command
            };
            let own = [
                "req",
                "-x509",
                "-nodes",
                "-subj",
                "/CN=elsewhere",
                "-keyout",
                "key.pem",
                "-out",
                "cert.pem",
            ];
            let made = openssl(&[&own, key].concat()).status().expect("openssl, of Debian's package openssl");
            assert!(made.success());
            let own = ["s_server", "-accept", "127.0.0.1:0", "-key", "key.pem", "-cert", "cert.pem", "-HTTP"];
            let mut process = openssl(&[&own, options].concat()).stdout(Stdio::piped()).spawn().unwrap();
            let mut output = BufReader::new(process.stdout.take().unwrap());
            // "ACCEPT 127.0.0.1:PORT PID=N"
            let mut listens = output.by_ref().lines().map(Result::unwrap);
            let said = listens.find(|line| line.starts_with("ACCEPT ")).expect("it listens");
            let port = said.split([':', ' ']).nth(2).unwrap().parse().unwrap();
            Self { process, _output: output, dir, port }
        }

        fn answer(&self, path: &str, answer: &str) {
            std::fs::write(self.dir.join(path), answer).unwrap();
        }

        fn get(&self, path: &str) -> Value {
            json!({"httpGet": {"port": self.port, "path": path, "scheme": "HTTPS"}})
        }
    }

    impl Drop for Tls {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    #[test]
    fn https_is_asked_whosever_certificate_it_is() {
        let rsa = ["-newkey", "rsa:2048", "-days", "1"];
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1"];
        for (name, key, options) in [
            ("rsa-1.2", &rsa[..], ["-tls1_2"]),
            ("rsa-1.3", &rsa, ["-tls1_3"]),
            ("ec-1.2", &curve, ["-tls1_2"]),
            ("ec-1.3", &curve, ["-tls1_3"]),
        ] {
            let server = Tls::start(name, key, &options);
            server.answer("ok", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
            server.answer("away", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            server.answer("to", "HTTP/1.1 302 Found\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(run(server.get("/ok")), Answer::Success, "{name}");
            assert_eq!(failure(server.get("/away")), "HTTP probe failed with statuscode: 404", "{name}");
            assert_eq!(run(server.get("/to")), Answer::Success, "{name}");
            let named = json!({"httpGet": {"host": "localhost", "port": server.port, "path": "/ok", "scheme": "HTTPS"}});
            assert_eq!(run(named), Answer::Success, "{name}");
            let location =
                format!("HTTP/1.1 301 Moved\r\nLocation: https://127.0.0.1:{}/ok\r\n\r\n", server.port);
            let (port, _) = http(&[("/", &location)]);
            assert_eq!(run(get(port, "/")), Answer::Success, "{name}");
        }
    }

    #[test]
    fn a_server_by_tls_that_sends_too_much_fails_the_probe() {
        // A certificate with 400 names, and one for the answer.
        let names: Vec<String> =
            (0..400).map(|n| format!("DNS:a-name-of-which-there-are-many-{n:08}.example")).collect();
        let names = format!("subjectAltName={}", names.join(","));
        let many =
            ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1", "-addext", &names];
        for version in ["-tls1_2", "-tls1_3"] {
            let server = Tls::start(&format!("much{version}"), &many, &[version]);
            server.answer("ok", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            let words = failure(server.get("/ok"));
            assert!(words.ends_with(": the peer sends too much"), "{words}");
        }
        let server = Tls::start("long", &many[..6], &["-tls1_3"]);
        let body = "x".repeat(1024 * KIB);
        server.answer("long", &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(run(server.get("/long")), Answer::Success);
        server.answer("head", &format!("HTTP/1.1 200 OK\r\nA: {body}\r\n\r\n"));
        assert!(failure(server.get("/head")).contains("message head is too large"));
    }

    #[test]
    fn what_is_not_tls_is_said_as_go_says_it() {
        let get = |port: u16| json!({"httpGet": {"port": port, "path": "/x", "scheme": "HTTPS"}});
        let plain = server(|mut stream| {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
        });
        let words = "http: server gave HTTP response to HTTPS client";
        assert_eq!(failure(get(plain)), format!("Get \"https://127.0.0.1:{plain}/x\": {words}"));
        let silent = server(drop);
        let words = failure(get(silent));
        let ends = ["EOF", "connection reset"].iter().any(|end| words.contains(end));
        assert!(words.starts_with(&format!("Get \"https://127.0.0.1:{silent}/x\": ")) && ends, "{words}");
        let closed = CLOSED;
        let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
        assert_eq!(failure(get(closed)), format!("Get \"https://127.0.0.1:{closed}/x\": {refused}"));
        let noise = server(|mut stream| {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(&[0x15, 3, 3, 0, 2, 2, 40]);
        });
        let words = failure(get(noise));
        assert!(words.contains("tls: "), "{words}");
    }
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
