//! A scripted HTTP/2 server: it sends frames as the script says, and parses received frames. Implements only settings, flow
//! control and plain HPACK literals of RFC 9113.

#![allow(missing_docs, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use prost::Message;

pub const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// How long a script waits before it fails.
const PATIENCE: Duration = Duration::from_mins(2);

pub struct Peer {
    stream: UnixStream,
    inbox: Vec<u8>,
    /// Requests whose head was received, in order.
    heads: VecDeque<u32>,
    bodies: BTreeMap<u32, Body>,
    resets: BTreeMap<u32, u32>,
    /// Pings that the client has answered.
    pongs: u32,
    /// The client's flow-control windows.
    window: i64,
    windows: BTreeMap<u32, i64>,
    first_window: i64,
    closed: bool,
}

#[derive(Default)]
struct Body {
    pieces: VecDeque<Vec<u8>>,
    ended: bool,
}

/// A message with gRPC's prefix.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    framed.extend(bytes);
    framed
}

impl Peer {
    /// Accepts one connection: reads the preface, sends the settings.
    pub fn accept(listener: &UnixListener) -> Self {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut peer = Self {
            stream,
            inbox: Vec::new(),
            heads: VecDeque::new(),
            bodies: BTreeMap::new(),
            resets: BTreeMap::new(),
            pongs: 0,
            window: 65_535,
            windows: BTreeMap::new(),
            first_window: 65_535,
            closed: false,
        };
        // For the largest request: stream windows of 16 MiB, and as much for the connection.
        peer.frame(SETTINGS, 0, 0, &[0, 4, 1, 0, 0, 0]);
        peer.frame(WINDOW_UPDATE, 0, 0, &(16_u32 << 20).to_be_bytes());
        peer
    }

    // ---- out -----------------------------------------------------------------------------------------

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        // The client may be gone: the test checks how it reacts.
        let _ = self.stream.write_all(&bytes);
    }

    pub fn headers(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) {
        let mut block = Vec::new();
        for (name, value) in fields {
            // A literal with a literal name, not indexed, not Huffman-coded.
            block.push(0);
            for text in [name, value] {
                // HPACK's integers: seven bits, then seven at a time.
                let mut rest = text.len();
                block.push(u8::try_from(rest.min(127)).unwrap());
                if rest >= 127 {
                    rest -= 127;
                    while rest >= 128 {
                        block.push(u8::try_from(rest % 128).unwrap() | 0x80);
                        rest /= 128;
                    }
                    block.push(u8::try_from(rest).unwrap());
                }
                block.extend(text.as_bytes());
            }
        }
        let mut pieces = block.chunks(16_384).peekable();
        let mut kind = HEADERS;
        while let Some(piece) = pieces.next() {
            let last = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            let end = if end && kind == HEADERS { END_STREAM } else { 0 };
            self.frame(kind, last | end, stream, piece);
            kind = CONTINUATION;
        }
    }

    /// The head of a response with a body.
    pub fn head(&mut self, stream: u32) {
        self.headers(stream, &[(":status", "200"), ("content-type", "application/grpc")], false);
    }

    pub fn trailers(&mut self, stream: u32, status: i32, message: &str) {
        let status = status.to_string();
        self.headers(stream, &[("grpc-status", &status), ("grpc-message", message)], true);
    }

    pub fn message(&mut self, stream: u32, message: &impl Message) {
        self.data(stream, &framed(message));
    }

    /// Sends everything within the client's windows.
    pub fn data(&mut self, stream: u32, bytes: &[u8]) {
        let sent = self.data_until_reset(stream, bytes);
        assert_eq!(sent, bytes.len(), "the client reset the call");
    }

    /// Sends until everything is sent or the client resets the call; returns the number of sent bytes.
    pub fn data_until_reset(&mut self, stream: u32, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() && !self.resets.contains_key(&stream) && !self.closed {
            let now = self.data_while_allowed(stream, &bytes[sent..]);
            sent += now;
            // The reset may have been among what was just read.
            if now == 0 && !self.resets.contains_key(&stream) {
                self.read_some(PATIENCE);
            }
        }
        sent
    }

    /// Sends what the windows allow now; returns the number of bytes.
    pub fn data_while_allowed(&mut self, stream: u32, bytes: &[u8]) -> usize {
        self.stream.set_nonblocking(true).unwrap();
        while self.read_some(PATIENCE) {}
        self.stream.set_nonblocking(false).unwrap();
        let mut sent = 0;
        while sent < bytes.len() {
            let first = self.first_window;
            let window = self.windows.entry(stream).or_insert(first);
            let room = usize::try_from((*window).min(self.window)).unwrap_or(0).min(16_384);
            let size = room.min(bytes.len() - sent);
            if size == 0 {
                break;
            }
            *window -= i64::try_from(size).unwrap();
            self.window -= i64::try_from(size).unwrap();
            self.frame(DATA, 0, stream, &bytes[sent..sent + size]);
            sent += size;
        }
        sent
    }

    pub fn reset(&mut self, stream: u32, reason: u32) {
        self.frame(RST_STREAM, 0, stream, &reason.to_be_bytes());
    }

    pub fn goaway(&mut self, last: u32, reason: u32) {
        let payload = [last.to_be_bytes(), reason.to_be_bytes()].concat();
        self.frame(GOAWAY, 0, 0, &payload);
    }

    // ---- in ------------------------------------------------------------------------------------------

    /// The next request with its whole body.
    pub fn request(&mut self) -> (u32, Vec<u8>) {
        let stream = self.request_head();
        let mut body = Vec::new();
        while let Some(piece) = self.request_data(stream) {
            body.extend(piece);
        }
        (stream, body)
    }

    /// The next request, whose body may be incomplete.
    pub fn request_head(&mut self) -> u32 {
        self.wait(|peer| !peer.heads.is_empty(), "a request");
        self.heads.pop_front().unwrap()
    }

    /// The next piece of a request's body; `None` at its end.
    pub fn request_data(&mut self, stream: u32) -> Option<Vec<u8>> {
        let there =
            |peer: &Self| peer.bodies.get(&stream).is_some_and(|body| body.ended || !body.pieces.is_empty());
        self.wait(there, "a request's body");
        self.bodies.get_mut(&stream).unwrap().pieces.pop_front()
    }

    /// Why the client reset the call.
    pub fn wait_for_reset(&mut self, stream: u32) -> u32 {
        self.wait(|peer| peer.resets.contains_key(&stream), "a reset");
        self.resets[&stream]
    }

    /// Waits until the client has closed the connection.
    pub fn until_closed(&mut self) {
        self.wait(|peer| peer.closed, "the end of the connection");
    }

    /// Waits for the client's answer to a ping: it has read all that was sent before.
    pub fn ping(&mut self) {
        let before = self.pongs;
        self.frame(PING, 0, 0, &[0; 8]);
        self.wait(|peer| peer.pongs > before, "a ping's answer");
    }

    /// Waits until the client has been silent for a while: settings and windows are exchanged then.
    pub fn until_quiet(&mut self) {
        while self.read_some(Duration::from_millis(80)) {}
    }

    /// Number of bytes that the client sends within that time.
    pub fn bytes_within(&mut self, time: Duration) -> usize {
        let end = Instant::now() + time;
        let before = self.inbox.len();
        let mut bytes = 0;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut buffer = [0; 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the client closed the connection"),
                Ok(size) => {
                    bytes += size;
                    self.inbox.extend(&buffer[..size]);
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)),
            }
        }
        bytes + before
    }

    /// Number of further requests within that time.
    pub fn requests_within(&mut self, time: Duration) -> usize {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.read_some(Duration::from_millis(10));
        }
        self.heads.len()
    }

    fn wait(&mut self, there: impl Fn(&Self) -> bool, what: &str) {
        let end = Instant::now() + PATIENCE;
        while !there(self) {
            let alive = self.read_some(PATIENCE);
            assert!(there(self) || (alive && Instant::now() < end), "waited in vain for {what}");
        }
    }

    /// Reads once and processes the frames; false when nothing was received in time or the connection has ended.
    fn read_some(&mut self, patience: Duration) -> bool {
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(size) if size > 0 => self.inbox.extend(&buffer[..size]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Ok(_) | Err(_) => {
                self.closed = true;
                return false;
            }
        }
        while let Some(head) = self.inbox.first_chunk::<9>() {
            let size = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            if self.inbox.len() < 9 + size {
                break;
            }
            let payload: Vec<u8> = self.inbox.drain(..9 + size).skip(9).collect();
            self.handle(kind, flags, stream, &payload);
        }
        true
    }

    fn handle(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let number = || u32::from_be_bytes(payload[..4].try_into().unwrap());
        match kind {
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.chunks(6) {
                    if setting[..2] == [0, 4] {
                        let size = i64::from(u32::from_be_bytes(setting[2..].try_into().unwrap()));
                        self.windows.values_mut().for_each(|window| *window += size - self.first_window);
                        self.first_window = size;
                    }
                }
                self.frame(SETTINGS, ACK, 0, &[]);
            }
            PING if flags & ACK != 0 => self.pongs += 1,
            PING => panic!("the client sent a ping"),
            WINDOW_UPDATE if stream == 0 => self.window += i64::from(number()),
            WINDOW_UPDATE => {
                let first = self.first_window;
                *self.windows.entry(stream).or_insert(first) += i64::from(number());
            }
            RST_STREAM => {
                self.resets.insert(stream, number());
            }
            HEADERS => {
                self.heads.push_back(stream);
                self.bodies.entry(stream).or_default().ended = flags & END_STREAM != 0;
            }
            DATA => {
                let body = self.bodies.entry(stream).or_default();
                body.ended = flags & END_STREAM != 0;
                if !payload.is_empty() {
                    body.pieces.push_back(payload.to_vec());
                }
            }
            _ => {}
        }
    }
}
