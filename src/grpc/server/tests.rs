//! The server against this crate's own client, and against bytes that no client sends.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use async_io::Async;

use super::*;
use crate::clock::SystemClock;
use crate::grpc::{Channel, GrpcError};
use crate::proto::runtime::v1::{ExecSyncRequest, VersionRequest, VersionResponse};
use crate::stream::Socket;

const ECHO: &str = "/test.Service/Echo";

/// What the client asks for is in the request's text.
struct TestService;

impl Service for TestService {
    fn call(&self, path: &str, request: Vec<u8>) -> Option<Serving> {
        (path == ECHO).then(|| {
            Box::pin(async move {
                let VersionRequest { version } = decoded(&request)?;
                let answer = |version: String| VersionResponse { version, ..VersionResponse::default() };
                match version.split_once(' ').unwrap_or((&version, "")) {
                    ("fail", why) => Err(Status::new(Code::NOT_FOUND, why)),
                    ("wait", _) => std::future::pending().await,
                    ("many", count) => {
                        let count: u32 = count.parse().unwrap();
                        let all = (0..count).map(move |number| encoded(&answer(number.to_string())));
                        let end = smol::stream::iter([Err(Status::new(Code::CANCELLED, "enough"))]);
                        let all = smol::stream::StreamExt::chain(smol::stream::iter(all), end);
                        Ok(Reply::Many(Box::pin(all)))
                    }
                    ("large", bytes) => encoded(&answer("x".repeat(bytes.parse().unwrap()))).map(Reply::One),
                    _ => encoded(&answer(version)).map(Reply::One),
                }
            }) as Serving
        })
    }
}

/// A socket with that server behind it, and a client.
struct World {
    executor: Rc<Executor>,
    channel: Channel,
    server: Server,
    path: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl World {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smolet-grpc-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let executor = Rc::new(Executor::new());
        let listener = Async::<std::os::unix::net::UnixListener>::bind(&path).unwrap();
        let server = Server::new(Rc::new(TestService), &executor, Rc::new(SystemClock));
        let (serving, weak) = (server.clone(), Rc::downgrade(&executor));
        executor
            .spawn("accept", async move {
                while let (Ok((socket, _)), Some(executor)) = (listener.accept().await, weak.upgrade()) {
                    let serving = serving.clone();
                    let serve = async move {
                        serving.serve(Socket::from(socket), Rc::default(), std::future::pending()).await;
                    };
                    executor.spawn("connection", serve).detach();
                }
            })
            .detach();
        let channel = Channel::new(&path, &executor, Rc::new(SystemClock));
        Self { executor, channel, server, path }
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    fn echo(&self, text: &str) -> Result<String, GrpcError> {
        let request = VersionRequest { version: text.to_owned() };
        let call = self.channel.unary::<VersionResponse>(ECHO, &request, Some(Duration::from_secs(20)));
        self.run(call).map(|answer| answer.version)
    }

    /// The server's answer to these bytes, until it closes the connection or half a second has passed.
    fn raw(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.raw_until(bytes, Duration::from_millis(500), |_| false)
    }

    /// The same, until it is enough or the server has been silent for so long.
    fn raw_until(&self, bytes: Vec<u8>, silence: Duration, is_enough: fn(&[u8]) -> bool) -> Vec<u8> {
        let path = self.path.clone();
        let client = std::thread::spawn(move || {
            let mut socket = UnixStream::connect(path).unwrap();
            socket.set_read_timeout(Some(silence)).unwrap();
            let _ = socket.write_all(&bytes);
            let (mut answer, mut piece) = (Vec::<u8>::new(), [0; 4096]);
            while !is_enough(&answer)
                && let Ok(length @ 1..) = socket.read(&mut piece)
            {
                answer.extend_from_slice(&piece[..length]);
            }
            answer
        });
        while !client.is_finished() {
            self.run(async_io::Timer::after(Duration::from_millis(2)));
        }
        client.join().unwrap()
    }

    /// What the server holds of requests: nothing soon, because its tasks see the end of a connection in one of their next turns.
    fn held(&self) -> usize {
        let begun = std::time::Instant::now();
        while self.server.held.get() > 0 && begun.elapsed() < Duration::from_mins(1) {
            self.run(async_io::Timer::after(Duration::from_millis(2)));
        }
        self.server.held.get()
    }
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    [&[high, middle, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A client's preface, its settings, and the head of a call with these further headers.
fn call(headers: &[(&str, &str)], end: bool) -> Vec<u8> {
    let mut block = Vec::new();
    let first = [(":method", "POST"), (":scheme", "http"), (":path", ECHO), (":authority", "x")];
    for (name, value) in first.iter().chain(headers) {
        // A literal that is not indexed; a length of 7 bits, or one with a further byte.
        block.push(0);
        for text in [name, value] {
            match u8::try_from(text.len()).unwrap() {
                short @ 0..127 => block.push(short),
                long => block.extend([127, long - 127]),
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    [preface, frame(4, 0, 0, &[]), frame(1, 4 | u8::from(end), 1, &block)].concat()
}

const KIND: (&str, &str) = ("content-type", "application/grpc");

#[test]
fn a_call_has_its_answer_or_its_status() {
    let world = World::new("unary");
    assert_eq!(world.echo("words"), Ok("words".to_owned()));
    let message = "no café: 100 %\nsecond line".to_owned();
    let failed = world.echo(&format!("fail {message}"));
    assert_eq!(failed, Err(GrpcError::Status { code: Code::NOT_FOUND, message }));
    assert_eq!(world.echo("large 900000").map(|text| text.len()), Ok(900_000));
    let over = world.echo(&format!("large {GRPC_SERVED_ANSWER_BYTES_MAX}"));
    assert!(matches!(over, Err(GrpcError::Status { code: Code::RESOURCE_EXHAUSTED, .. })), "{over:?}");
    assert_eq!(world.server.held.get(), 0);
}

#[test]
fn a_stream_has_its_messages_and_then_its_status() {
    let world = World::new("stream");
    let ended = world.run(async {
        let request = VersionRequest { version: "many 1000".to_owned() };
        let mut stream = world.channel.server_stream(ECHO, &request, None).await.unwrap();
        for number in 0..1000 {
            let next: VersionResponse = stream.next().await.unwrap().expect("a message");
            assert_eq!(next.version, number.to_string());
        }
        stream.next::<VersionResponse>().await
    });
    assert_eq!(ended, Err(GrpcError::Status { code: Code::CANCELLED, message: "enough".to_owned() }));
}

#[test]
fn an_unknown_method_and_a_bad_message_have_a_status() {
    let world = World::new("unknown");
    let request = VersionRequest::default();
    let call = world.channel.unary::<VersionResponse>("/test.Service/Other", &request, None);
    let unknown = world.run(call);
    let message = "unknown method /test.Service/Other; this is the CRI v1 server".to_owned();
    assert_eq!(unknown, Err(GrpcError::Status { code: Code::UNIMPLEMENTED, message }));
    // Field 1 is a message there, and no text.
    let request =
        ExecSyncRequest { timeout: 1, container_id: "\u{1}".to_owned(), ..ExecSyncRequest::default() };
    let call = world.channel.unary::<VersionResponse>(ECHO, &request, None);
    assert!(world.run(call).is_ok(), "an unknown field is passed over");
}

#[test]
fn a_call_ends_at_the_clients_deadline() {
    let world = World::new("deadline");
    // SETTINGS, their acknowledgement, and a head that ends the stream: trailers only.
    let has_head = |answer: &[u8]| answer.windows(9).any(|head| head[3..] == [1, 5, 0, 0, 0, 1]);
    let answer = world.raw_until(
        [call(&[KIND, ("grpc-timeout", "20m")], false), frame(0, 1, 1, b"\0\0\0\0\x06\x0a\x04wait")].concat(),
        Duration::from_mins(1),
        has_head,
    );
    assert!(has_head(&answer), "{}", answer.escape_ascii());
    assert_eq!(world.held(), 0);
}

#[test]
fn what_is_no_call_is_refused_and_the_next_one_is_served() {
    let world = World::new("malformed");
    let message = b"\0\0\0\0\x03\x0a\x01x";
    let whole = |data: &[u8]| frame(0, 1, 1, data);
    for (name, bytes) in [
        ("another content type", [call(&[("content-type", "text/html")], false), whole(message)].concat()),
        ("compressed", [call(&[KIND], false), whole(b"\x01\0\0\0\x03\x0a\x01x")].concat()),
        ("a codec", [call(&[KIND, ("grpc-encoding", "gzip")], false), whole(message)].concat()),
        ("a timeout that is none", [call(&[KIND, ("grpc-timeout", "soon")], false), whole(message)].concat()),
        ("two messages", [call(&[KIND], false), whole(&[&message[..], message].concat())].concat()),
        ("no message", call(&[KIND], true)),
        ("a cut message", [call(&[KIND], false), whole(&message[..6])].concat()),
        ("a message over the limit", [call(&[KIND], false), whole(b"\0\xff\xff\xff\xff\x0a\x01x")].concat()),
        ("no end", [call(&[KIND], false), frame(0, 0, 1, message)].concat()),
        ("no HTTP/2", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a frame over the limit", [call(&[KIND], false), vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat()),
    ] {
        let answer = world.raw(bytes);
        assert!(answer.len() < 4096, "{name}: {}", answer.escape_ascii());
        assert_eq!(world.echo("words"), Ok("words".to_owned()), "{name}");
        assert_eq!(world.held(), 0, "{name}");
    }
}

#[test]
fn headers_over_the_limit_do_not_reach_the_service() {
    let world = World::new("headers");
    let long = "x".repeat(200);
    let headers: Vec<(&str, &str)> =
        std::iter::once(KIND).chain((0..70).map(|_| ("x-long", &*long))).collect();
    let answer = world.raw(call(&headers, true));
    assert!(answer.len() < 1024);
    assert_eq!(world.echo("words"), Ok("words".to_owned()));
}

#[test]
fn a_request_over_the_limit_is_refused() {
    let world = World::new("oversize");
    let mut bytes = call(&[KIND], false);
    let length = u32::try_from(GRPC_REQUEST_BYTES_MAX + 1).unwrap();
    // All of it in frames of what a window of the client's allows: the server stops reading before.
    bytes.extend(frame(0, 0, 1, &[&[0][..], &length.to_be_bytes()].concat()));
    for _ in 0..3 {
        bytes.extend(frame(0, 0, 1, &[b'x'; 16 * 1024]));
    }
    assert!(world.raw(bytes).len() < 4096);
    assert_eq!(world.echo("words"), Ok("words".to_owned()));
    assert_eq!(world.held(), 0);
    let mut held = Held { bytes: 0, all: world.server.held.clone() };
    assert!(held.add(GRPC_SERVED_BYTES_MAX) && !held.add(1));
    let full = world.echo("words");
    assert!(matches!(full, Err(GrpcError::Status { code: Code::RESOURCE_EXHAUSTED, .. })), "{full:?}");
    drop(held);
    assert_eq!(world.echo("words"), Ok("words".to_owned()));
}

#[test]
fn times_are_read() {
    for (value, time) in [
        (&b"20m"[..], Some(Duration::from_millis(20))),
        (b"2S", Some(Duration::from_secs(2))),
        (b"1H", Some(Duration::from_hours(1))),
        (b"3M", Some(Duration::from_mins(3))),
        (b"7u", Some(Duration::from_micros(7))),
        (b"99999999n", Some(Duration::from_nanos(99_999_999))),
        (b"999999999n", None),
        (b"S", None),
        (b"", None),
        (b"1", None),
        (b"-1S", None),
        (b"1D", None),
    ] {
        assert_eq!(timeout(value), time, "{}", value.escape_ascii());
    }
}
