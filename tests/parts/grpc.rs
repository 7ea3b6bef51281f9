//! gRPC on the wire, against a hand-written HTTP/2 server that can do everything wrong.

#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used, clippy::pedantic)]

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::TempDir;
use crate::peer::{self, Peer, framed};
use prost::Message;
use smolet::clock::VirtualClock;
use smolet::executor::Executor;
use smolet::grpc::{Channel, Code, Field, GrpcError, Value};
use smolet::limits;
use smolet::model::Wall;
use smolet::proto::runtime::v1::{VersionRequest, VersionResponse};

const METHOD: &str = "/runtime.v1.RuntimeService/Version";
const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

/// A client on virtual time, and a socket for a peer.
struct World {
    clock: VirtualClock,
    executor: Rc<Executor>,
    channel: Channel,
    socket: PathBuf,
    _folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = TempDir::new();
        let socket = folder.path().join("s");
        let clock = VirtualClock::new(Wall(0));
        let executor = Rc::new(Executor::new());
        let channel = Channel::new(&socket, &executor, Rc::new(clock.clone()));
        Self { clock, executor, channel, socket, _folder: folder }
    }

    /// The peer's script runs in a thread of its own; its panic is the test's.
    fn serve<T: Send + 'static>(
        &self,
        script: impl FnOnce(UnixListener) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).unwrap();
        std::thread::spawn(move || script(listener))
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    async fn call(&self) -> Result<VersionResponse, GrpcError> {
        self.channel.unary(METHOD, &request(), MINUTE).await
    }

    /// Waits for the peer's script while hyper's tasks go on.
    fn join<T>(&self, peer: JoinHandle<T>) -> T {
        while !peer.is_finished() {
            self.run(async_io::Timer::after(Duration::from_millis(2)));
        }
        peer.join().expect("the peer's script holds")
    }
}

/// How one side of a test tells the other that it may go on.
fn signal() -> (mpsc::Sender<()>, Signal) {
    let (sender, receiver) = mpsc::channel();
    (sender, Signal(receiver))
}

struct Signal(mpsc::Receiver<()>);

impl Signal {
    /// For a peer's thread.
    fn wait(&self) {
        self.0.recv_timeout(Duration::from_mins(2)).expect("the other side goes on");
    }

    /// For the client's: its tasks go on meanwhile.
    async fn given(&self) {
        while self.0.try_recv().is_err() {
            async_io::Timer::after(Duration::from_millis(1)).await;
        }
    }
}

fn request() -> VersionRequest {
    VersionRequest { version: "ask".into() }
}

fn answer(text: &str) -> VersionResponse {
    VersionResponse { version: text.into(), ..VersionResponse::default() }
}

/// Answers a call as a server that has nothing special does.
fn whole(peer: &mut Peer, stream: u32, text: &str) {
    peer.head(stream);
    peer.message(stream, &answer(text));
    peer.trailers(stream, 0, "");
}

fn status(code: Code, message: &str) -> GrpcError {
    GrpcError::Status { code, message: message.into() }
}

/// One call, one scripted answer; the peer returns what it saw.
fn one_call(script: impl FnOnce(&mut Peer, u32) + Send + 'static) -> Result<VersionResponse, GrpcError> {
    let world = World::new();
    let peer = world.serve(move |listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        script(&mut peer, stream);
        peer.until_closed();
    });
    let result = world.run(world.call());
    drop(world.channel);
    // Nothing keeps the connection now: let hyper close it.
    smol::block_on(world.executor.run(async_io::Timer::after(Duration::from_millis(10))));
    drop(world.executor);
    peer.join().expect("the peer's script holds");
    result
}

fn is_protocol(result: Result<VersionResponse, GrpcError>, words: &str) {
    match result {
        Err(GrpcError::Protocol(message)) if message.contains(words) => {}
        other => panic!("{words}: {other:?}"),
    }
}

// ---- one answer ------------------------------------------------------------------------------------------

#[test]
fn a_call_is_answered() {
    let result = one_call(|peer, stream| {
        whole(peer, stream, "fine");
    });
    assert_eq!(result.unwrap().version, "fine");
}

#[test]
fn a_request_is_one_uncompressed_message() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, body) = peer.request();
        peer.head(stream);
        peer.trailers(stream, 12, "");
        peer.until_quiet();
        body
    });
    world.run(world.call()).unwrap_err();
    assert_eq!(world.join(peer), framed(&request()));
}

#[test]
fn an_answer_in_tiny_pieces_is_an_answer() {
    let result = one_call(|peer, stream| {
        peer.head(stream);
        for byte in framed(&answer("piece by piece")) {
            peer.data(stream, &[byte]);
        }
        peer.trailers(stream, 0, "");
    });
    assert_eq!(result.unwrap().version, "piece by piece");
}

#[test]
fn an_error_stands_in_the_trailers() {
    let result = one_call(|peer, stream| {
        peer.head(stream);
        peer.trailers(stream, 5, "container %22x%22 caf%C3%A9: 100%25 gone");
    });
    assert_eq!(result, Err(status(Code::NOT_FOUND, "container \"x\" café: 100% gone")));
}

#[test]
fn an_error_may_come_without_a_head_of_its_own() {
    let result = one_call(|peer, stream| {
        let head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "12")];
        peer.headers(stream, &[&head[..], &[("grpc-message", "unknown service a%0Ab")]].concat(), true);
    });
    assert_eq!(result, Err(status(Code::UNIMPLEMENTED, "unknown service a\nb")));
}

#[test]
fn an_error_after_a_message_is_an_error() {
    let result = one_call(|peer, stream| {
        peer.head(stream);
        peer.message(stream, &answer("x"));
        peer.trailers(stream, 13, "late");
    });
    assert_eq!(result, Err(status(Code::INTERNAL, "late")));
}

#[test]
fn an_answer_without_a_status_is_no_answer() {
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            peer.frame(peer::DATA, peer::END_STREAM, stream, &framed(&answer("x")));
        }),
        "without a grpc-status",
    );
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            peer.message(stream, &answer("x"));
            peer.headers(stream, &[("other", "x")], true);
        }),
        "without a grpc-status",
    );
}

#[test]
fn ok_needs_exactly_one_whole_message() {
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            peer.trailers(stream, 0, "");
        }),
        "without a whole message",
    );
    is_protocol(
        one_call(|peer, stream| {
            let head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "0")];
            peer.headers(stream, &head, true);
        }),
        "without a message",
    );
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            peer.data(stream, &framed(&answer("cut"))[..6]);
            peer.trailers(stream, 0, "");
        }),
        "without a whole message",
    );
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            peer.message(stream, &answer("one"));
            peer.message(stream, &answer("two"));
        }),
        "two messages",
    );
}

#[test]
fn http_errors_become_statuses() {
    for (http, code) in [("503", Code::UNAVAILABLE), ("404", Code::UNIMPLEMENTED), ("500", Code::UNKNOWN)] {
        let result = one_call(move |peer, stream| {
            peer.headers(stream, &[(":status", http), ("content-type", "text/html")], false);
            peer.frame(peer::DATA, peer::END_STREAM, stream, b"<html>");
        });
        assert_eq!(result, Err(status(code, &format!("the server answered with HTTP status {http}"))));
    }
    let result = one_call(|peer, stream| {
        peer.headers(stream, &[(":status", "200"), ("content-type", "text/html")], true);
    });
    assert!(matches!(result, Err(GrpcError::Status { code: Code::UNKNOWN, .. })), "{result:?}");
}

#[test]
fn a_compressed_message_is_refused() {
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            let mut message = framed(&answer("x"));
            message[0] = 1;
            peer.data(stream, &message);
        }),
        "compressed",
    );
}

#[test]
fn broken_protobuf_is_refused() {
    is_protocol(
        one_call(|peer, stream| {
            peer.head(stream);
            peer.data(stream, &[0, 0, 0, 0, 2, 0x0a, 9]);
            peer.trailers(stream, 0, "");
        }),
        "no valid protobuf",
    );
}

#[test]
fn a_reset_call_has_the_resets_meaning() {
    for (reason, expected) in [
        (8, Code::CANCELLED),
        (11, Code::RESOURCE_EXHAUSTED),
        (12, Code::PERMISSION_DENIED),
        (2, Code::INTERNAL),
    ] {
        let result = one_call(move |peer, stream| peer.reset(stream, reason));
        assert!(matches!(&result, Err(GrpcError::Status { code, .. }) if *code == expected), "{result:?}");
    }
}

// ---- sizes -----------------------------------------------------------------------------------------------

#[test]
fn a_request_over_the_cap_is_never_sent() {
    let world = World::new();
    let peer = world.serve(|listener| {
        listener.set_nonblocking(true).unwrap();
        listener.accept().map(drop).map_err(|e| e.kind())
    });
    let huge = VersionRequest { version: "x".repeat(limits::GRPC_REQUEST_BYTES_MAX) };
    let result = world.run(world.channel.unary(METHOD, &huge, MINUTE));
    is_protocol(result, "the limit is");
    assert_eq!(world.join(peer), Err(std::io::ErrorKind::WouldBlock), "not even a connection");
}

#[test]
fn the_largest_request_gets_through() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, body) = peer.request();
        whole(&mut peer, stream, "big");
        peer.until_quiet();
        body.len()
    });
    let mut big = VersionRequest { version: "x".repeat(limits::GRPC_REQUEST_BYTES_MAX - 5) };
    assert!(big.encoded_len() <= limits::GRPC_REQUEST_BYTES_MAX);
    let result: VersionResponse = world.run(world.channel.unary(METHOD, &big, MINUTE)).unwrap();
    assert_eq!(result.version, "big");
    big.version.clear();
    assert!(world.join(peer) > limits::GRPC_REQUEST_BYTES_MAX - 5);
}

#[test]
fn an_answer_over_the_cap_is_cut_off_and_the_connection_goes_on() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        peer.head(stream);
        let huge = framed(&answer(&"x".repeat(8 * limits::GRPC_ANSWER_BYTES_MAX)));
        let sent = peer.data_until_reset(stream, &huge);
        let (stream, _) = peer.request();
        whole(&mut peer, stream, "fine");
        peer.until_quiet();
        sent
    });
    world.run(async {
        is_protocol(world.call().await, "the answer is over");
        assert_eq!(world.call().await.unwrap().version, "fine");
    });
    let sent = world.join(peer);
    let most = limits::GRPC_ANSWER_BYTES_MAX + limits::GRPC_WINDOW_CONNECTION_BYTES as usize;
    assert!(sent <= most, "the peer could send {sent} bytes");
}

#[test]
fn a_long_error_message_is_cut_and_an_endless_one_is_an_error() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut first = Peer::accept(&listener);
        // The last one is far over what our settings allow: it costs the connection.
        for size in [30_000, 70_000, 200_000] {
            let (stream, _) = first.request();
            first.head(stream);
            first.trailers(stream, 2, &"x".repeat(size));
        }
        let mut second = Peer::accept(&listener);
        let (stream, _) = second.request();
        whole(&mut second, stream, "fine");
    });
    world.run(async {
        let cut = "x".repeat(limits::GRPC_STATUS_MESSAGE_BYTES_MAX);
        assert_eq!(world.call().await, Err(status(Code::UNKNOWN, &cut)));
        // The code came first and fitted.
        assert_eq!(world.call().await, Err(status(Code::UNKNOWN, "")));
        let error = world.call().await.unwrap_err();
        assert!(matches!(error, GrpcError::Protocol(_)), "{error:?}");
        assert_eq!(world.call().await.unwrap().version, "fine");
    });
    world.join(peer);
}

#[test]
fn a_field_over_the_cap_is_cut_and_the_rest_read() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        peer.head(stream);
        let mut huge = answer(&"x".repeat(5_000_000));
        huge.runtime_name = "after".into();
        peer.message(stream, &huge);
        peer.trailers(stream, 0, "");
        peer.until_quiet();
    });
    let mut seen = Vec::new();
    let mut each = |field: Field<'_>| {
        if let Value::Bytes { kept, length } = field.value {
            seen.push((field.number, kept.len(), length));
        }
        Ok(())
    };
    world.run(world.channel.unary_fields(METHOD, &request(), MINUTE, 100, &mut each)).unwrap();
    assert_eq!(seen, [(1, 100, 5_000_000), (2, 5, 5)]);
    world.join(peer);
}

// ---- time ------------------------------------------------------------------------------------------------

#[test]
fn a_deadline_passes_on_the_injected_clock_and_the_server_is_told() {
    let world = World::new();
    let (asked, seen) = signal();
    let peer = world.serve(move |listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        asked.send(()).unwrap();
        assert_eq!(peer.wait_for_reset(stream), 8, "CANCEL");
        let (stream, _) = peer.request();
        whole(&mut peer, stream, "fine");
    });
    world.run(async {
        let late = async {
            seen.given().await;
            world.clock.advance(Duration::from_secs(59));
            async_io::Timer::after(Duration::from_millis(20)).await;
            assert!(world.clock.next_sleeper().is_some(), "a minute has not passed");
            world.clock.advance(Duration::from_secs(1));
            std::future::pending().await
        };
        let result = smol::future::or(world.call(), late).await;
        assert_eq!(result, Err(GrpcError::DeadlineExceeded("Version: no answer within 60 s".into())));
        assert_eq!(world.call().await.unwrap().version, "fine");
    });
    world.join(peer);
}

#[test]
fn a_call_without_a_deadline_ends_when_it_is_dropped() {
    let world = World::new();
    let (asked, seen) = signal();
    let peer = world.serve(move |listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        asked.send(()).unwrap();
        peer.wait_for_reset(stream)
    });
    world.run(async {
        let request = request();
        let call = world.channel.unary::<VersionResponse>(METHOD, &request, None);
        let bored = async {
            seen.given().await;
            world.clock.advance(Duration::from_secs(1_000_000));
            async_io::Timer::after(Duration::from_millis(20)).await;
            Err(GrpcError::Protocol("dropped by the test".into()))
        };
        assert!(smol::future::or(call, bored).await.unwrap_err().to_string().contains("dropped by the test"));
    });
    assert_eq!(world.join(peer), 8, "CANCEL");
}

#[test]
fn a_server_that_accepts_and_says_nothing_holds_nobody_past_the_deadline() {
    let world = World::new();
    let (asked, seen) = signal();
    let (done, over) = signal();
    let peer = world.serve(move |listener| {
        use std::io::Read;
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 24]).unwrap();
        asked.send(()).unwrap();
        over.wait();
    });
    world.run(async {
        let time = async {
            seen.given().await;
            world.clock.advance(Duration::from_secs(60));
            std::future::pending().await
        };
        let result = smol::future::or(world.call(), time).await;
        assert!(matches!(result, Err(GrpcError::DeadlineExceeded(_))), "{result:?}");
    });
    done.send(()).unwrap();
    world.join(peer);
}

// ---- the connection --------------------------------------------------------------------------------------

#[test]
fn nothing_is_sent_while_idle() {
    let world = World::new();
    let (listened, idle_is_over) = signal();
    let peer = world.serve(move |listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        whole(&mut peer, stream, "fine");
        // Settings and windows are exchanged first, however late the client is.
        peer.ping();
        (0..3).for_each(|_| peer.until_quiet());
        let idle = peer.bytes_within(Duration::from_millis(700));
        listened.send(()).unwrap();
        // Still the same connection.
        let (stream, _) = peer.request();
        whole(&mut peer, stream, "again");
        idle
    });
    world.run(async {
        world.call().await.unwrap();
        let hours = async {
            loop {
                async_io::Timer::after(Duration::from_millis(20)).await;
                world.clock.advance(Duration::from_secs(3600));
            }
        };
        smol::future::or(idle_is_over.given(), hours).await;
        assert_eq!(world.clock.next_sleeper(), None, "no timer runs either");
        assert_eq!(world.call().await.unwrap().version, "again");
    });
    assert_eq!(world.join(peer), 0, "bytes while idle");
}

#[test]
fn a_goaway_lets_running_calls_finish_and_the_next_one_connects_anew() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut first = Peer::accept(&listener);
        let (stream, _) = first.request();
        first.goaway(stream, 0);
        std::thread::sleep(Duration::from_millis(50));
        whole(&mut first, stream, "old");
        let mut second = Peer::accept(&listener);
        let (stream, _) = second.request();
        whole(&mut second, stream, "new");
        second.until_quiet();
    });
    world.run(async {
        assert_eq!(world.call().await.unwrap().version, "old");
        assert_eq!(world.call().await.unwrap().version, "new");
    });
    world.join(peer);
}

#[test]
fn a_call_the_server_did_not_begin_is_made_again_once() {
    // GOAWAY that leaves the call out, and a refused stream: RFC 9113 says neither was begun.
    for refuse in [false, true] {
        let world = World::new();
        let peer = world.serve(move |listener| {
            let mut first = Peer::accept(&listener);
            let (stream, body) = first.request();
            if refuse {
                first.reset(stream, 7);
                let (stream, again) = first.request();
                assert_eq!(body, again);
                whole(&mut first, stream, "second try");
                first.until_quiet();
            } else {
                first.goaway(0, 0);
                let mut second = Peer::accept(&listener);
                let (stream, again) = second.request();
                assert_eq!(body, again);
                whole(&mut second, stream, "second try");
                second.until_quiet();
            }
        });
        assert_eq!(world.run(world.call()).unwrap().version, "second try");
        world.join(peer);
    }
}

#[test]
fn a_server_that_refuses_every_call_is_not_asked_for_ever() {
    let result = one_call(|peer, stream| {
        peer.reset(stream, 7);
        let (stream, _) = peer.request();
        peer.reset(stream, 7);
    });
    assert_eq!(result, Err(GrpcError::Unavailable("the server refused the call".into())));
}

#[test]
fn an_angry_goaway_is_unavailable_and_not_repeated() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.request();
        peer.goaway(0, 11);
        peer.until_closed();
        listener.set_nonblocking(true).unwrap();
        listener.accept().is_err()
    });
    let error = world.run(world.call()).unwrap_err();
    assert!(matches!(&error, GrpcError::Unavailable(m) if m.contains("GOAWAY")), "{error:?}");
    assert!(world.join(peer), "no second connection");
}

#[test]
fn a_connection_lost_mid_call_is_unavailable_and_the_next_call_connects_anew() {
    // Before the head, within the message, and before the trailers.
    for stage in 0..3 {
        let world = World::new();
        let peer = world.serve(move |listener| {
            let mut first = Peer::accept(&listener);
            let (stream, _) = first.request();
            whole(&mut first, stream, "warm");
            let (stream, _) = first.request();
            if stage > 0 {
                first.head(stream);
                let message = framed(&answer("cut"));
                first.data(stream, if stage == 1 { &message[..6] } else { &message });
            }
            drop(first);
            let mut second = Peer::accept(&listener);
            let (stream, _) = second.request();
            whole(&mut second, stream, "back");
            second.until_quiet();
        });
        world.run(async {
            assert_eq!(world.call().await.unwrap().version, "warm");
            let error = world.call().await.unwrap_err();
            assert!(matches!(error, GrpcError::Unavailable(_)), "stage {stage}: {error:?}");
            assert_eq!(world.call().await.unwrap().version, "back", "at once, without back-off");
        });
        world.join(peer);
    }
}

/// So many calls at once, which all are answered.
async fn calls_at_once(world: &World, count: usize) {
    let call = |_| {
        let channel = world.channel.clone();
        let call = async move { channel.unary::<VersionResponse>(METHOD, &request(), MINUTE).await };
        world.executor.spawn("test", call)
    };
    for call in (0..count).map(call).collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

fn answers(peer: &mut Peer, streams: Vec<u32>) {
    streams.into_iter().for_each(|stream| whole(peer, stream, "x"));
}

#[test]
fn calls_that_start_together_share_one_attempt_to_connect() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let streams = (0..limits::GRPC_CONNECTION_CALLS).map(|_| peer.request().0).collect();
        answers(&mut peer, streams);
        peer.until_quiet();
        listener.set_nonblocking(true).unwrap();
        listener.accept().is_err()
    });
    world.run(calls_at_once(&world, limits::GRPC_CONNECTION_CALLS));
    assert!(world.join(peer), "one connection only");
}

#[test]
fn a_burst_of_calls_has_a_connection_that_ends_with_it() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut first = Peer::accept(&listener);
        let of_first: Vec<u32> = (0..limits::GRPC_CONNECTION_CALLS).map(|_| first.request().0).collect();
        let mut further = Peer::accept(&listener);
        let of_further = (0..40).map(|_| further.request().0).collect();
        answers(&mut further, of_further);
        answers(&mut first, of_first);
        let (stream, _) = first.request();
        further.until_closed();
        answers(&mut first, vec![stream]);
        first.until_quiet();
    });
    world.run(async {
        calls_at_once(&world, limits::GRPC_CONNECTION_CALLS + 40).await;
        world.call().await.unwrap();
    });
    world.join(peer);
}

#[test]
fn beside_hanging_calls_the_others_share_one_further_connection() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut first = Peer::accept(&listener);
        let of_first: Vec<u32> = (0..limits::GRPC_CONNECTION_CALLS).map(|_| first.request().0).collect();
        let mut further = Peer::accept(&listener);
        for _ in 0..3 {
            let (stream, _) = further.request();
            answers(&mut further, vec![stream]);
        }
        answers(&mut first, of_first);
        first.until_quiet();
    });
    world.run(async {
        let hanging = calls_at_once(&world, limits::GRPC_CONNECTION_CALLS);
        let others = async {
            // Behind the others.
            smol::future::yield_now().await;
            for _ in 0..3 {
                world.call().await.unwrap();
            }
        };
        smol::future::zip(hanging, others).await;
    });
    world.join(peer);
}

#[test]
fn whoever_hangs_up_unanswered_is_tried_with_back_off() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut accepted = 0;
        for _ in 0..3 {
            drop(listener.accept().unwrap());
            accepted += 1;
        }
        accepted
    });
    world.run(async {
        for wait in [100, 200, 400] {
            // Whether the call or the connection is told first that it is over, is the scheduler's business.
            let mut error = world.call().await.unwrap_err();
            for _ in 0..1000 {
                assert!(matches!(error, GrpcError::Unavailable(_)), "{error:?}");
                if error.to_string().contains("next attempt") {
                    break;
                }
                async_io::Timer::after(Duration::from_millis(1)).await;
                error = world.call().await.unwrap_err();
            }
            assert!(error.to_string().contains(&format!("next attempt in {wait} ms")), "{error}");
            world.clock.advance(Duration::from_millis(wait));
        }
    });
    assert_eq!(world.join(peer), 3);
}

#[test]
fn an_http_1_server_is_told_apart() {
    let world = World::new();
    let peer = world.serve(|listener| {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read(&mut [0; 1024]);
    });
    let error = world.run(world.call()).unwrap_err();
    assert!(matches!(&error, GrpcError::Protocol(m) if m.contains("does not speak HTTP/2")), "{error:?}");
    world.join(peer);
}

// ---- streams ---------------------------------------------------------------------------------------------

#[test]
fn a_stream_hands_over_one_message_after_the_other() {
    let world = World::new();
    let (looked, go_on) = signal();
    let peer = world.serve(move |listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        // Quiet for a while, headers included: that is no failure.
        go_on.wait();
        peer.head(stream);
        // Two messages and a half in one frame.
        let three: Vec<u8> = ["a", "b", "c"].iter().flat_map(|text| framed(&answer(text))).collect();
        let half = three.len() - 4;
        peer.data(stream, &three[..half]);
        go_on.wait();
        peer.data(stream, &three[half..]);
        peer.trailers(stream, 0, "");
        peer.until_quiet();
    });
    world.run(async {
        let mut stream = world.channel.server_stream(METHOD, &request(), None).await.unwrap();
        // Looking once and coming back loses nothing.
        for _ in 0..20 {
            let look = async { stream.next::<VersionResponse>().await.map(|_| true) };
            let bored = async { Ok(false) };
            assert_eq!(smol::future::or(look, bored).await, Ok(false));
            async_io::Timer::after(Duration::from_millis(1)).await;
        }
        looked.send(()).unwrap();
        for text in ["a", "b"] {
            assert_eq!(stream.next::<VersionResponse>().await.unwrap().unwrap().version, text);
        }
        for _ in 0..20 {
            let look = async { stream.next::<VersionResponse>().await.map(|_| true) };
            let bored = async { Ok(false) };
            assert_eq!(smol::future::or(look, bored).await, Ok(false), "half a message is none");
            async_io::Timer::after(Duration::from_millis(1)).await;
        }
        looked.send(()).unwrap();
        assert_eq!(stream.next::<VersionResponse>().await.unwrap().unwrap().version, "c");
        assert_eq!(stream.next::<VersionResponse>().await, Ok(None));
        assert_eq!(stream.next::<VersionResponse>().await, Ok(None), "and stays so");
    });
    world.join(peer);
}

#[test]
fn a_stream_ends_with_its_status() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        peer.head(stream);
        peer.message(stream, &answer("a"));
        peer.trailers(stream, 14, "shutting down");
        // At once, without a head: as containerd 1.6 answers GetContainerEvents.
        let (stream, _) = peer.request();
        let head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "12")];
        peer.headers(stream, &head, true);
        // Within a message.
        let (stream, _) = peer.request();
        peer.head(stream);
        peer.data(stream, &framed(&answer("half"))[..7]);
        peer.trailers(stream, 0, "");
        // Without a word.
        let (stream, _) = peer.request();
        peer.head(stream);
        peer.until_quiet();
    });
    world.run(async {
        let open = || async { world.channel.server_stream(METHOD, &request(), None).await.unwrap() };
        let mut stream = open().await;
        assert_eq!(stream.next::<VersionResponse>().await.unwrap().unwrap().version, "a");
        let error = stream.next::<VersionResponse>().await.unwrap_err();
        assert_eq!(error, status(Code::UNAVAILABLE, "shutting down"));
        assert_eq!(stream.next::<VersionResponse>().await, Ok(None));
        let error = open().await.next::<VersionResponse>().await.unwrap_err();
        assert_eq!(error, status(Code::UNIMPLEMENTED, ""));
        let error = open().await.next::<VersionResponse>().await.unwrap_err();
        assert!(matches!(&error, GrpcError::Protocol(m) if m.contains("within a message")), "{error:?}");
        let error = open().await.next::<VersionResponse>().await.unwrap_err();
        assert!(matches!(error, GrpcError::Unavailable(_)), "{error:?}");
    });
    world.join(peer);
}

#[test]
fn a_streams_deadline_counts_from_its_start() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let (stream, _) = peer.request();
        peer.head(stream);
        peer.message(stream, &answer("a"));
        peer.wait_for_reset(stream)
    });
    world.run(async {
        let mut stream = world.channel.server_stream(METHOD, &request(), MINUTE).await.unwrap();
        assert_eq!(stream.next::<VersionResponse>().await.unwrap().unwrap().version, "a");
        world.clock.advance(Duration::from_secs(60));
        let error = stream.next::<VersionResponse>().await.unwrap_err();
        assert!(matches!(error, GrpcError::DeadlineExceeded(_)), "{error:?}");
    });
    assert_eq!(world.join(peer), 8, "CANCEL");
}

#[test]
fn a_stream_nobody_reads_holds_up_no_call() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let mut stuffed = 0;
        for _ in 0..8 {
            let (stream, _) = peer.request();
            peer.head(stream);
            let events: Vec<u8> = (0..500).flat_map(|_| framed(&answer(&"e".repeat(1000)))).collect();
            stuffed += peer.data_while_allowed(stream, &events);
        }
        for _ in 0..50 {
            let (stream, _) = peer.request();
            peer.head(stream);
            peer.message(stream, &answer(&"x".repeat(10_000)));
            peer.trailers(stream, 0, "");
        }
        peer.until_quiet();
        stuffed
    });
    world.run(async {
        let mut unread = Vec::new();
        for _ in 0..8 {
            let mut stream = world.channel.server_stream(METHOD, &request(), None).await.unwrap();
            assert_eq!(stream.next::<VersionResponse>().await.unwrap().unwrap().version.len(), 1000);
            unread.push(stream);
        }
        for _ in 0..50 {
            assert_eq!(world.call().await.unwrap().version.len(), 10_000);
        }
        drop(unread);
    });
    let stuffed = world.join(peer);
    assert!(stuffed >= 8 * 60_000, "only {stuffed} bytes lay unread: the test proves nothing");
}

#[test]
fn both_sides_of_a_bidirectional_call_talk() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let stream = peer.request_head();
        peer.head(stream);
        let mut heard = Vec::new();
        for _ in 0..3 {
            let bytes = peer.request_data(stream).expect("a message");
            let message = VersionRequest::decode(&bytes[5..]).unwrap();
            peer.message(stream, &answer(&format!("{}!", message.version)));
            heard.push(message.version);
        }
        assert_eq!(peer.request_data(stream), None, "the request side has ended");
        peer.trailers(stream, 0, "");
        peer.until_quiet();
        heard
    });
    world.run(async {
        let (sender, mut stream) = world.channel.bidirectional(METHOD, MINUTE).await.unwrap();
        for text in ["a", "b", "c"] {
            sender.send(&VersionRequest { version: text.into() }).await.unwrap();
            let reply = stream.next::<VersionResponse>().await.unwrap().unwrap();
            assert_eq!(reply.version, format!("{text}!"));
        }
        drop(sender);
        assert_eq!(stream.next::<VersionResponse>().await, Ok(None));
    });
    assert_eq!(world.join(peer), ["a", "b", "c"]);
}

#[test]
fn sending_into_a_call_that_has_ended_is_an_error() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut peer = Peer::accept(&listener);
        let stream = peer.request_head();
        let head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "12")];
        peer.headers(stream, &head, true);
        peer.reset(stream, 0);
        peer.until_quiet();
    });
    world.run(async {
        let (sender, mut stream) = world.channel.bidirectional(METHOD, MINUTE).await.unwrap();
        let error = stream.next::<VersionResponse>().await.unwrap_err();
        assert_eq!(error, status(Code::UNIMPLEMENTED, ""));
        // Fails as soon as hyper has let go of the call; until then the queue takes a few.
        let error = loop {
            if let Err(error) = sender.send(&request()).await {
                break error;
            }
        };
        assert!(matches!(error, GrpcError::Unavailable(_)), "{error:?}");
    });
    world.join(peer);
}

#[test]
fn a_call_over_the_number_of_calls_waits_for_its_turn() {
    let world = World::new();
    let peer = world.serve(|listener| {
        let mut first = Peer::accept(&listener);
        let of_first: Vec<u32> = (0..limits::GRPC_CONNECTION_CALLS).map(|_| first.request().0).collect();
        let mut further = Peer::accept(&listener);
        let rest = limits::GRPC_CALLS_MAX - limits::GRPC_CONNECTION_CALLS;
        let of_further: Vec<u32> = (0..rest).map(|_| further.request().0).collect();
        let more = further.requests_within(Duration::from_millis(100));
        answers(&mut further, of_further);
        for _ in 0..3 {
            let (stream, _) = further.request();
            answers(&mut further, vec![stream]);
        }
        answers(&mut first, of_first);
        first.until_quiet();
        more
    });
    world.run(calls_at_once(&world, limits::GRPC_CALLS_MAX + 3));
    assert_eq!(world.join(peer), 0, "calls over the limit");
}
