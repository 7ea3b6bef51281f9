//! The streams of one `exec` or `attach`: standard input, output and error, the terminal's sizes, and how it ended.
//!
//! ```text
//!     client ──► read ──► stdin, sizes ──► Streams ──► stdout, stderr ──► write ──► client
//!                  └────────── accepted streams, pings answered ───────────┘ (then the status)
//! ```

use std::cell::RefCell;
use std::io;
use std::net::TcpStream;
use std::rc::Rc;

use async_io::Timer;
use serde_json::Value;
use smol::channel::{Receiver, Sender, bounded};

use super::head::{Agreed, Carrier};
use super::spdy::{self, header};
use super::websocket;
use super::wire::{Answer, ChannelEvent, ChannelReader, Outgoing, Source, pong, while_connected};
use super::{Ends, Running};
use crate::limits::{
    SERVED_ANSWERS_MAX, SERVED_CHANNELS_MAX, SERVED_SIZE_BYTES_MAX, STREAM_OPEN_TIME, STREAM_QUEUE_MAX,
};
use crate::proto::runtime::v1::{AttachRequest, ExecRequest};
use crate::stream::Socket;
use crate::streaming::command::Size;
use crate::streaming::frame::{Opener, StreamId, put_data, put_go_away, put_ping, put_reset};
use crate::streaming::status;

/// A stream of a command; the numbers are those of WebSocket's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
    Error = 3,
    Resize = 4,
}

impl Channel {
    const ALL: [Self; 5] = [Self::Stdin, Self::Stdout, Self::Stderr, Self::Error, Self::Resize];

    fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    fn of_kind(kind: &str) -> Option<Self> {
        Some(match kind {
            "stdin" => Self::Stdin,
            "stdout" => Self::Stdout,
            "stderr" => Self::Stderr,
            "error" => Self::Error,
            "resize" => Self::Resize,
            _ => return None,
        })
    }
}

/// A message of WebSocket that closes the channel named by its next byte (`v5.channel.k8s.io`).
const CLOSE_CHANNEL: u8 = 255;

/// The streams that the request of the CRI named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Wanted {
    pub(super) fn of_exec(request: &ExecRequest) -> Self {
        let ExecRequest { stdin, stdout, stderr, tty, .. } = *request;
        Self { stdin, stdout, stderr, tty }
    }

    pub(super) fn of_attach(request: &AttachRequest) -> Self {
        let AttachRequest { stdin, stdout, stderr, tty, .. } = *request;
        Self { stdin, stdout, stderr, tty }
    }

    fn has(self, channel: Channel, version: u8) -> bool {
        match channel {
            Channel::Stdin => self.stdin,
            Channel::Stdout => self.stdout,
            Channel::Stderr => self.stderr,
            Channel::Error => true,
            Channel::Resize => self.tty && version >= 3,
        }
    }
}

/// SPDY's streams of the connection, in the order in which they were opened; at most `SERVED_CHANNELS_MAX`.
type Opened = Rc<RefCell<Vec<(StreamId, Channel)>>>;

/// Runs the command, or attaches to one, with its ends of the streams: the exit code.
pub(super) type Run = Box<dyn FnOnce(Ends) -> Running<Result<i32, String>>>;

/// Moves the streams until the command has ended, or the client is gone.
pub(super) async fn serve(
    socket: Rc<Socket<TcpStream>>,
    already: Vec<u8>,
    agreed: Agreed,
    wanted: Wanted,
    run: Run,
) {
    let (answers, answered) = bounded(SERVED_ANSWERS_MAX);
    let (stdin, stdin_end) = bounded(STREAM_QUEUE_MAX);
    let (stdout_end, stdout) = bounded(STREAM_QUEUE_MAX);
    let (stderr_end, stderr) = bounded(STREAM_QUEUE_MAX);
    let (sizes, sizes_end) = bounded(STREAM_QUEUE_MAX);
    let (all_opened, is_open) = bounded(1);
    let (ended, ending) = bounded(1);
    let opened = Opened::default();
    let ends = Ends {
        stdin: wanted.stdin.then_some(stdin_end),
        stdout: wanted.stdout.then_some(stdout_end),
        stderr: wanted.stderr.then_some(stderr_end),
        sizes: wanted.tty.then_some(sizes_end),
    };
    let inputs = Inputs {
        socket: socket.clone(),
        stdin: wanted.stdin.then_some(stdin),
        sizes: wanted.tty.then_some(sizes),
        size: Vec::new(),
    };
    let mut reading = Reading {
        source: Source::new(socket.clone(), already),
        inputs,
        answers,
        opened: opened.clone(),
        all_opened,
        wanted,
        version: agreed.version,
    };
    let writing = Writing { out: Outgoing::new(socket, false), opened, agreed };
    let read = async move {
        let why = match agreed.carrier {
            Carrier::Spdy | Carrier::Tunnel => reading.spdy().await,
            Carrier::Channels | Carrier::Ports => reading.channels().await,
        };
        if let Err(why) = why {
            log::debug!("streaming connection: {why}");
        }
    };
    let mut read = std::pin::pin!(read);
    let command = async move {
        let late = async {
            Timer::after(STREAM_OPEN_TIME).await;
            false
        };
        let is_open = smol::future::or(async { is_open.recv().await.is_ok() }, late).await;
        let result = if is_open {
            run(ends).await
        } else {
            Err(format!("the client opened not all streams within {} s", STREAM_OPEN_TIME.as_secs()))
        };
        let _ = ended.send(result).await;
    };
    let write = writing.run(answered, stdout, stderr, ending);
    let served = async { Some(smol::future::zip(command, write).await.1) };
    let gone = async {
        read.as_mut().await;
        None
    };
    if let Some(Ok(())) = smol::future::or(served, gone).await {
        writing.out.finish(read).await;
    }
}

/// What the client sends to the command.
struct Inputs {
    socket: Rc<Socket<TcpStream>>,
    stdin: Option<Sender<Vec<u8>>>,
    sizes: Option<Sender<Size>>,
    /// The begun text of a size.
    size: Vec<u8>,
}

impl Inputs {
    /// Waits while the command does not read.
    ///
    /// # Errors
    /// The client is gone meanwhile.
    async fn data(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), String> {
        match channel {
            Channel::Stdin => {
                let is_closed = match &self.stdin {
                    Some(stdin) => while_connected(&self.socket, stdin.send(bytes.to_vec())).await?.is_err(),
                    None => false,
                };
                if is_closed {
                    // The command reads no more; it continues.
                    self.stdin = None;
                }
            }
            Channel::Resize => {
                for byte in bytes {
                    if self.size.len() < SERVED_SIZE_BYTES_MAX {
                        self.size.push(*byte);
                    }
                    if *byte == b'}' {
                        let text = std::mem::take(&mut self.size);
                        if let (Some(size), Some(sizes)) = (size(&text), &self.sizes) {
                            // Full: the command is at an older one, and the next size is the one that counts.
                            let _ = sizes.force_send(size);
                        }
                    }
                }
            }
            Channel::Stdout | Channel::Stderr | Channel::Error => {}
        }
        Ok(())
    }

    fn end(&mut self, channel: Channel) {
        match channel {
            Channel::Stdin => self.stdin = None,
            Channel::Resize => self.sizes = None,
            Channel::Stdout | Channel::Stderr | Channel::Error => {}
        }
    }
}

/// A size as client-go writes it.
fn size(text: &[u8]) -> Option<Size> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let number = |name: &str| u16::try_from(value[name].as_u64()?).ok();
    Some(Size { width: number("Width")?, height: number("Height")? })
}

struct Reading {
    source: Source,
    inputs: Inputs,
    answers: Sender<Answer>,
    opened: Opened,
    all_opened: Sender<()>,
    wanted: Wanted,
    version: u8,
}

impl Reading {
    /// Reads until the client is gone.
    async fn spdy(&mut self) -> Result<(), String> {
        let (mut reader, mut opener) = (spdy::Reader::default(), Opener::default());
        loop {
            let mut input: &[u8] = self.source.bytes();
            while let Some(frame) = reader.next(&mut input).map_err(|error| error.to_string())? {
                let mut answer = Vec::new();
                match frame {
                    spdy::Frame::Open(stream, headers) => {
                        let channel = header(&headers, "streamtype").and_then(Channel::of_kind);
                        let mut opened = self.opened.borrow_mut();
                        match channel.filter(|_| opened.len() < SERVED_CHANNELS_MAX) {
                            None => put_reset(&mut answer, stream),
                            Some(channel) => {
                                opener.reply(&mut answer, stream);
                                opened.push((stream, channel));
                            }
                        }
                        let is_there = |channel: Channel| opened.iter().any(|(_, of)| *of == channel);
                        let needed = |channel: &Channel| self.wanted.has(*channel, self.version);
                        if Channel::ALL.into_iter().filter(needed).all(is_there) {
                            let _ = self.all_opened.try_send(());
                        }
                    }
                    spdy::Frame::Data(stream, bytes) => {
                        if let Some(channel) = channel_of(&self.opened, stream) {
                            self.inputs.data(channel, bytes).await?;
                        }
                    }
                    spdy::Frame::End(stream) | spdy::Frame::Reset(stream) => {
                        if let Some(channel) = channel_of(&self.opened, stream) {
                            self.inputs.end(channel);
                        }
                    }
                    spdy::Frame::Ping(number) => put_ping(&mut answer, number),
                }
                if !answer.is_empty() && self.answers.send(Answer::Spdy(answer)).await.is_err() {
                    return Ok(());
                }
            }
            if !self.source.fill().await {
                return Ok(());
            }
        }
    }

    /// Reads until the client is gone.
    async fn channels(&mut self) -> Result<(), String> {
        let _ = self.all_opened.try_send(());
        let mut reader = ChannelReader::default();
        loop {
            let mut input = self.source.bytes();
            while let Some(event) = reader.next(&mut input)? {
                match event {
                    ChannelEvent::Bytes(CLOSE_CHANNEL, bytes) if self.version >= 5 => {
                        if let Some(channel) = bytes.first().copied().and_then(Channel::of_number) {
                            self.inputs.end(channel);
                        }
                    }
                    ChannelEvent::Bytes(number, bytes) => {
                        if let Some(channel) = Channel::of_number(number).filter(|_| !bytes.is_empty()) {
                            self.inputs.data(channel, bytes).await?;
                        }
                    }
                    ChannelEvent::Ping(ping) => {
                        if self.answers.send(pong(&ping)).await.is_err() {
                            return Ok(());
                        }
                    }
                    ChannelEvent::Close => return Ok(()),
                }
            }
            if !self.source.fill().await {
                return Ok(());
            }
        }
    }
}

fn channel_of(opened: &Opened, stream: StreamId) -> Option<Channel> {
    opened.borrow().iter().find(|(of, _)| *of == stream).map(|(_, channel)| *channel)
}

struct Writing {
    out: Outgoing,
    opened: Opened,
    agreed: Agreed,
}

enum Next {
    Answer(Answer),
    Output(Channel, Vec<u8>),
    OutputEnded(Channel),
    Ended(Result<i32, String>),
}

impl Writing {
    /// Writes until the status is sent.
    async fn run(
        &self,
        answered: Receiver<Answer>,
        stdout: Receiver<Vec<u8>>,
        stderr: Receiver<Vec<u8>>,
        ending: Receiver<Result<i32, String>>,
    ) -> io::Result<()> {
        if self.agreed.carrier == Carrier::Channels {
            // As the Go servers: an empty message says that the connection is there.
            self.data(Channel::Stdout, &[], false).await?;
        }
        let (mut stdout, mut stderr) = (Some(stdout), Some(stderr));
        loop {
            let answer = async {
                match answered.recv().await {
                    Ok(answer) => Next::Answer(answer),
                    Err(_) => std::future::pending().await,
                }
            };
            let is_silent = stdout.is_none() && stderr.is_none();
            let ended = async {
                match ending.recv().await {
                    Ok(result) if is_silent => Next::Ended(result),
                    Ok(_) | Err(_) => std::future::pending().await,
                }
            };
            let outputs = smol::future::or(
                next(stdout.clone(), Channel::Stdout),
                next(stderr.clone(), Channel::Stderr),
            );
            let next = if is_silent {
                smol::future::or(answer, ended).await
            } else {
                smol::future::or(answer, outputs).await
            };
            match next {
                Next::Answer(answer) => self.out.send(answer).await?,
                Next::Output(channel, bytes) => self.data(channel, &bytes, false).await?,
                Next::OutputEnded(Channel::Stdout) => stdout = None,
                Next::OutputEnded(_) => stderr = None,
                Next::Ended(result) => return self.status(&result).await,
            }
        }
    }

    async fn data(&self, channel: Channel, bytes: &[u8], fin: bool) -> io::Result<()> {
        let mut out = Vec::with_capacity(bytes.len() + 16);
        if self.agreed.carrier == Carrier::Channels {
            if !fin || !bytes.is_empty() {
                websocket::put(&mut out, websocket::BINARY, &[&[channel as u8], bytes]);
            }
        } else {
            let stream =
                self.opened.borrow().iter().find(|(_, of)| *of == channel).map(|(stream, _)| *stream);
            let Some(stream) = stream else { return Ok(()) };
            put_data(&mut out, stream, bytes, fin);
        }
        self.out.send(Answer::WebSocket(out)).await
    }

    /// How it ended, and the end of all streams.
    async fn status(&self, result: &Result<i32, String>) -> io::Result<()> {
        let text = match (self.agreed.version, result) {
            (4.., _) => status::of_ending(result).to_string(),
            (_, Ok(0)) => String::new(),
            (_, Ok(code)) => format!("command terminated with non-zero exit code: exit code {code}"),
            (_, Err(why)) => why.clone(),
        };
        for channel in [Channel::Stdout, Channel::Stderr] {
            self.data(channel, &[], true).await?;
        }
        self.data(Channel::Error, text.as_bytes(), true).await?;
        let mut out = Vec::new();
        if self.agreed.carrier == Carrier::Channels {
            out.extend_from_slice(&websocket::CLOSE);
        } else {
            for channel in [Channel::Stdin, Channel::Resize] {
                self.data(channel, &[], true).await?;
            }
            let last = self.opened.borrow().iter().map(|(stream, _)| *stream).max();
            put_go_away(&mut out, last.unwrap_or(StreamId(0)));
        }
        self.out.send(Answer::WebSocket(out)).await
    }
}

async fn next(of: Option<Receiver<Vec<u8>>>, channel: Channel) -> Next {
    match of {
        None => std::future::pending().await,
        Some(output) => match output.recv().await {
            Ok(bytes) => Next::Output(channel, bytes),
            Err(_) => Next::OutputEnded(channel),
        },
    }
}
