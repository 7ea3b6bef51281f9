//! One connection to the streaming server: its reading and its writing half, which run concurrently.

use std::cell::Cell;
use std::io;
use std::net::TcpStream;
use std::rc::Rc;

use async_io::Timer;
use smol::channel::{Receiver, Sender};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::frame::{Frame, Opener, Reader, StreamId, put_data, put_ping, put_reset};
use crate::limits::{STREAM_BUFFER_BYTES, STREAM_OPEN_TIME, STREAM_STATUS_BYTES_MAX};
use crate::stream::Socket;

/// An upgraded connection.
#[derive(Debug)]
pub struct Connection {
    /// The half that reads.
    pub incoming: Incoming,
    /// The half that writes.
    pub outgoing: Outgoing,
}

impl Connection {
    /// From the socket, and bytes that were read after the response's head.
    pub fn new(socket: Socket<TcpStream>, already: Vec<u8>) -> Self {
        let socket = Rc::new(socket);
        let end = already.len();
        Self {
            incoming: Incoming {
                socket: socket.clone(),
                reader: Reader::default(),
                buffer: already,
                start: 0,
                end,
            },
            outgoing: Outgoing { socket, opener: Opener::default(), out: Vec::new() },
        }
    }
}

/// The reading half; holds `STREAM_BUFFER_BYTES` at most.
#[derive(Debug)]
pub struct Incoming {
    socket: Rc<Socket<TcpStream>>,
    reader: Reader,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    /// The next frame of the bytes read so far.
    ///
    /// # Errors
    /// It is not SPDY.
    pub fn frame(&mut self) -> Result<Option<Frame<'_>>, String> {
        let mut rest = &self.buffer[self.start..self.end];
        let frame = self.reader.next(&mut rest);
        self.start = self.end - rest.len();
        frame.map_err(|error| format!("the runtime's streaming server: {error}"))
    }

    /// Reads more, once [`Self::frame`] has returned all frames. False when the server has closed or reset the connection; a
    /// server that closes it while frames of ours are in flight resets it.
    pub async fn fill(&mut self) -> bool {
        self.buffer.resize(STREAM_BUFFER_BYTES, 0);
        (self.start, self.end) = (0, 0);
        match (&*self.socket).read(&mut self.buffer).await {
            Ok(read) => {
                self.end = read;
                read > 0
            }
            Err(_) => false,
        }
    }
}

/// The writing half.
#[derive(Debug)]
pub struct Outgoing {
    socket: Rc<Socket<TcpStream>>,
    opener: Opener,
    out: Vec<u8>,
}

impl Outgoing {
    /// Opens a stream of that type, with further headers; sent by [`Self::flush`].
    pub fn open(&mut self, stream: StreamId, kind: &str, headers: &[(&str, &str)]) {
        let headers: Vec<_> = [("streamtype", kind)].into_iter().chain(headers.iter().copied()).collect();
        self.opener.open(&mut self.out, stream, &headers);
    }

    /// Sends data; with `fin` nothing more follows on the stream.
    ///
    /// # Errors
    /// The server no longer reads.
    pub async fn data(&mut self, stream: StreamId, data: &[u8], fin: bool) -> io::Result<()> {
        put_data(&mut self.out, stream, data, fin);
        self.flush().await
    }

    /// Resets a stream; sent by [`Self::flush`].
    pub fn reset(&mut self, stream: StreamId) {
        put_reset(&mut self.out, stream);
    }

    /// Answers a ping; sent by [`Self::flush`].
    pub fn ping(&mut self, number: u32) {
        put_ping(&mut self.out, number);
    }

    /// Sends the buffered frames.
    ///
    /// # Errors
    /// The server no longer reads.
    pub async fn flush(&mut self) -> io::Result<()> {
        (&*self.socket).write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }
}

/// State that the reading half shares with the writing half. It never waits for it: the writing half may be blocked by the
/// server, and the server by a reader that does not read.
#[derive(Debug)]
pub(super) struct ReaderState {
    /// Every stream was accepted: data sent before is lost in the server.
    pub open: Cell<bool>,
    /// The server accepts no more input.
    pub input_closed: Cell<bool>,
    /// A ping to answer. When another one arrives before that, only the last one is answered.
    ping: Cell<Option<u32>>,
    wake: Sender<()>,
    woken: Receiver<()>,
}

impl ReaderState {
    pub(super) fn new() -> Self {
        let (wake, woken) = smol::channel::bounded(1);
        let (open, input_closed, ping) = Default::default();
        Self { open, input_closed, ping, wake, woken }
    }

    /// The server has accepted a stream; with the last of them, data may be sent.
    pub(super) fn accepted(&self, awaited: &mut Vec<StreamId>, stream: StreamId) {
        awaited.retain(|waits| *waits != stream);
        if awaited.is_empty() {
            self.open.set(true);
            self.tell();
        }
    }

    /// A ping was received.
    pub(super) fn pinged(&self, number: u32) {
        self.ping.set(Some(number));
        self.tell();
    }

    /// Answers a received ping.
    pub(super) async fn pong(&self, outgoing: &mut Outgoing) -> io::Result<()> {
        if let Some(number) = self.ping.take() {
            outgoing.ping(number);
        }
        outgoing.flush().await
    }

    /// Fails when the streams are not open after `STREAM_OPEN_TIME`; otherwise it never ends.
    pub(super) async fn late<T>(&self) -> Result<T, String> {
        Timer::after(STREAM_OPEN_TIME).await;
        if self.open.get() {
            std::future::pending::<()>().await;
        }
        Err(format!(
            "the runtime's streaming server opens no streams within {} s",
            STREAM_OPEN_TIME.as_secs()
        ))
    }

    /// Wakes the writing half.
    pub(super) fn tell(&self) {
        // Full: a wake-up is pending already.
        let _ = self.wake.try_send(());
    }

    /// Waits for a wake-up.
    pub(super) async fn heard(&self) {
        // Never closed: a sender is beside it.
        let _ = self.woken.recv().await;
    }
}

/// Appends a part of the error stream; at most `STREAM_STATUS_BYTES_MAX` of it are kept.
pub(super) fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = STREAM_STATUS_BYTES_MAX - kept.len();
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}
