//! Who tries to hold the agent's one thread: servers that are probed, and answer without end.
//!
//! The figures are of the thread: what one poll held it for at most (`smolet_longest_poll_seconds`), and how long the local socket
//! took to answer at most. These tests run one at a time (`make attack`): beside others they would measure the machine.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::agent::{Agent, SILENCE_MAX, pod};
use crate::common::fake::Fake;

/// Where the fake runtime puts the hostile pod.
const POD_IP: &str = "127.88.0.5";
/// How long an attack goes on while it is measured.
const ATTACK: Duration = Duration::from_secs(4);

/// A server that begins each answer with `head`, and goes on with `piece` without end, as fast as it is read.
struct Endless {
    port: u16,
    /// Connections so far.
    taken: Arc<AtomicUsize>,
}

impl Endless {
    fn start(head: Vec<u8>, piece: Vec<u8>) -> Self {
        let listener = TcpListener::bind((POD_IP, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = taken.clone();
        // Large pieces: the server is never what is waited for.
        let piece = piece.repeat((1 << 20) / piece.len());
        thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::Relaxed);
                let (head, piece) = (head.clone(), piece.clone());
                thread::spawn(move || answer(stream.unwrap(), &head, &piece));
            }
        });
        Self { port, taken }
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Until the client hangs up.
fn answer(mut stream: TcpStream, head: &[u8], piece: &[u8]) {
    let _ = stream.read(&mut [0; 4096]);
    let mut written = stream.write_all(head);
    while written.is_ok() {
        written = stream.write_all(piece);
    }
}

/// An HTTP/2 server's first words, and PRIORITY frames, which ask for nothing and mean nothing any more (RFC 9113, 5.3.2).
fn priorities() -> (Vec<u8>, Vec<u8>) {
    let settings = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    let priority = vec![0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
    (settings, priority)
}

/// The loop answers all the time while one pod's server, which `handler` asks with the port, never ends.
fn never_silent(what: &str, handler: &str, server: &Endless) {
    let fake = Fake::start_on_real_time();
    fake.state().pods_on_loopback = true;
    let mut agent = Agent::beside(fake);
    let handler = handler.replace("PORT", &server.port.to_string());
    agent.apply("hostile", pod("hostile", &handler));
    agent.wait("the first connection", |_| server.taken() > 0);
    let silence = agent.silence(ATTACK);
    let (longest, task) = agent.longest_poll();
    println!("{what}: silence {} ms, longest poll {} ms ({task})", silence.as_millis(), longest.as_millis());
    assert!(silence <= SILENCE_MAX && longest <= SILENCE_MAX, "{what}; the log:\n{}", agent.log());
    agent.wait("further connections", |_| server.taken() > 1);
    fs::remove_file(agent.manifest("hostile")).unwrap();
    agent.withstood(what);
}

#[test]
fn of_a_probe_that_gets_interim_answers_without_end() {
    let server = Endless::start(Vec::new(), b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec());
    let probe = "livenessProbe: {periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1000, \
                 httpGet: {port: PORT}}";
    never_silent("103 without end", probe, &server);
}

#[test]
fn of_a_probe_that_gets_a_head_without_end() {
    let server = Endless::start(b"HTTP/1.1 200 OK\r\n".to_vec(), b"a: b\r\n".to_vec());
    let probe = "readinessProbe: {periodSeconds: 1, timeoutSeconds: 1, httpGet: {port: PORT}}";
    never_silent("a head without end", probe, &server);
}

#[test]
fn of_a_probe_that_gets_chunks_without_end() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let server = Endless::start(head, b"1;x=y\r\na\r\n".to_vec());
    let probe = "readinessProbe: {periodSeconds: 1, timeoutSeconds: 1, httpGet: {port: PORT}}";
    never_silent("chunks without end", probe, &server);
}

#[test]
fn of_a_probe_that_gets_frames_without_end() {
    let (head, frame) = priorities();
    let server = Endless::start(head, frame);
    let probe =
        "livenessProbe: {periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1000, grpc: {port: PORT}}";
    // The pod's address is the fake runtime's; on the node's network it is the node's own.
    never_silent("PRIORITY frames without end", probe, &server);
}

#[test]
fn of_a_hook_that_gets_interim_answers_without_end() {
    let server = Endless::start(Vec::new(), b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec());
    let hook = "lifecycle: {postStart: {httpGet: {port: PORT}}}";
    never_silent("103 without end for a hook", hook, &server);
}
