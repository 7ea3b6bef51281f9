//! The two halves of a served connection: the bytes of the client, and the frames for it.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;

use async_io::Timer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smol::channel::Sender;
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::websocket::{self, Event};
use crate::limits::{SERVED_CLIENT_PERIOD, STREAM_BUFFER_BYTES, STREAM_CLOSE_TIME};
use crate::stream::Socket;

/// The client's bytes; holds `STREAM_BUFFER_BYTES` at most.
pub(super) struct Source {
    socket: Rc<Socket<TcpStream>>,
    buffer: Vec<u8>,
    end: usize,
}

impl Source {
    /// From the socket, and bytes that were read after the request's head.
    pub(super) fn new(socket: Rc<Socket<TcpStream>>, already: Vec<u8>) -> Self {
        let end = already.len();
        Self { socket, buffer: already, end }
    }

    /// The bytes read last.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.end]
    }

    /// Reads more, once the last ones are used. False: the client has closed or reset the connection.
    pub(super) async fn fill(&mut self) -> bool {
        self.buffer.resize(STREAM_BUFFER_BYTES, 0);
        self.end = (&*self.socket).read(&mut self.buffer).await.unwrap_or_default();
        self.end > 0
    }
}

/// What `handed_on` says, which may wait for a command or a port that does not read; meanwhile nobody reads the socket, so it is
/// asked each `SERVED_CLIENT_PERIOD` whether the client has closed or reset it.
///
/// # Errors
/// The client is gone.
pub(super) async fn while_connected<T>(
    socket: &Socket<TcpStream>,
    handed_on: impl Future<Output = T>,
) -> Result<T, String> {
    let gone = async {
        loop {
            Timer::after(SERVED_CLIENT_PERIOD).await;
            let mut asked = [PollFd::new(socket.get_ref(), PollFlags::RDHUP)];
            if poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return Err("the client is gone".to_owned());
            }
        }
    };
    smol::future::or(async { Ok(handed_on.await) }, gone).await
}

/// SPDY's bytes, as they are or out of the messages of WebSocket.
pub(super) struct SpdySource {
    source: Source,
    tunnel: Option<(websocket::Reader, Vec<u8>)>,
    /// Answers to the client's pings, as whole WebSocket frames.
    answers: Sender<Answer>,
}

/// Something to send.
pub(super) enum Answer {
    /// Frames of SPDY.
    Spdy(Vec<u8>),
    /// A frame of WebSocket.
    WebSocket(Vec<u8>),
}

impl SpdySource {
    pub(super) fn new(source: Source, is_tunnel: bool, answers: Sender<Answer>) -> Self {
        Self { source, tunnel: is_tunnel.then(Default::default), answers }
    }

    /// The bytes read last; call [`Self::unwrap`] before.
    pub(super) fn bytes(&mut self) -> &[u8] {
        match &self.tunnel {
            None => self.source.bytes(),
            Some((_, payload)) => payload,
        }
    }

    /// Takes the bytes read last out of their messages. False: the client closes, or speaks something else.
    pub(super) async fn unwrap(&mut self) -> bool {
        let Some((reader, payload)) = &mut self.tunnel else { return true };
        payload.clear();
        let mut input = self.source.bytes();
        loop {
            match reader.next(&mut input) {
                Ok(Some(Event::Piece(piece))) => payload.extend_from_slice(piece),
                Ok(Some(Event::Ping(ping))) => {
                    if self.answers.send(pong(&ping)).await.is_err() {
                        return false;
                    }
                }
                Ok(Some(Event::Begin | Event::End)) => {}
                Ok(None) => return true,
                Ok(Some(Event::Close)) => return false,
                Err(error) => {
                    log::debug!("streaming connection: {error}");
                    return false;
                }
            }
        }
    }

    pub(super) async fn fill(&mut self) -> bool {
        self.source.fill().await
    }
}

/// A message of WebSocket for a channel.
pub(super) fn of_channel(number: u8, bytes: &[u8]) -> Answer {
    let mut frame = Vec::with_capacity(bytes.len() + 11);
    websocket::put(&mut frame, websocket::BINARY, &[&[number], bytes]);
    Answer::WebSocket(frame)
}

/// What comes by messages of WebSocket, each of which begins with the number of its channel.
#[derive(Default)]
pub(super) struct ChannelReader {
    reader: websocket::Reader,
    /// The first byte of the message, once it was read.
    number: Option<u8>,
}

/// A part of it.
pub(super) enum ChannelEvent<'b> {
    /// Bytes for that channel; they may be empty.
    Bytes(u8, &'b [u8]),
    /// The client expects this back.
    Ping(Vec<u8>),
    /// The client closes the connection.
    Close,
}

impl ChannelReader {
    /// The next event in `input`, from which the consumed bytes are removed; `None` when more are needed.
    ///
    /// # Errors
    /// It is not WebSocket.
    #[allow(clippy::mut_mut, reason = "input is consumed from a slice that is unmasked in place")]
    pub(super) fn next<'b>(&mut self, input: &mut &'b mut [u8]) -> Result<Option<ChannelEvent<'b>>, String> {
        while let Some(event) = self.reader.next(input).map_err(|error| error.to_string())? {
            match event {
                Event::Begin | Event::End => self.number = None,
                Event::Piece(piece) => {
                    let piece: &'b [u8] = piece;
                    let (number, bytes) = match (self.number, piece.split_first()) {
                        (Some(number), _) => (number, piece),
                        (None, Some((first, rest))) => (*self.number.insert(*first), rest),
                        (None, None) => continue,
                    };
                    return Ok(Some(ChannelEvent::Bytes(number, bytes)));
                }
                Event::Ping(ping) => return Ok(Some(ChannelEvent::Ping(ping))),
                Event::Close => return Ok(Some(ChannelEvent::Close)),
            }
        }
        Ok(None)
    }
}

/// The answer to a ping of WebSocket.
pub(super) fn pong(ping: &[u8]) -> Answer {
    let mut frame = Vec::new();
    websocket::put(&mut frame, websocket::PONG, &[ping]);
    Answer::WebSocket(frame)
}

/// The frames for the client.
pub(super) struct Outgoing {
    socket: Rc<Socket<TcpStream>>,
    is_tunnel: bool,
}

impl Outgoing {
    pub(super) fn new(socket: Rc<Socket<TcpStream>>, is_tunnel: bool) -> Self {
        Self { socket, is_tunnel }
    }

    /// Sends it all.
    ///
    /// # Errors
    /// The client no longer reads.
    pub(super) async fn send(&self, answer: Answer) -> io::Result<()> {
        let bytes = match answer {
            Answer::Spdy(bytes) if self.is_tunnel => {
                let mut frame = Vec::with_capacity(bytes.len() + 10);
                websocket::put(&mut frame, websocket::BINARY, &[&bytes]);
                frame
            }
            Answer::Spdy(bytes) | Answer::WebSocket(bytes) => bytes,
        };
        (&*self.socket).write_all(&bytes).await
    }

    /// Nothing more is sent. The client is read for a while until it closes: a socket that is closed with unread bytes resets the
    /// connection, and the client loses what it has not read.
    pub(super) async fn finish(&self, read: impl Future<Output = ()>) {
        if self.socket.get_ref().shutdown(Shutdown::Write).is_err() {
            return;
        }
        let late = async {
            Timer::after(STREAM_CLOSE_TIME).await;
        };
        smol::future::or(read, late).await;
    }
}
