//! Clients that are attached to a container, on the monitor's side: output goes to each, input comes from each.
//!
//! What a client has not taken waits in its socket, which the kernel bounds. When that is full, the rest of one frame waits here,
//! and the container's output is not read; a client that takes nothing for `limits::ATTACH_STALL_TIME` is closed. Once the container
//! has ended its output is read whatever clients do, and up to `limits::ATTACH_UNSENT_BYTES_MAX` wait here for each.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::control::Place;
use super::frame::{self, HEAD_BYTES, Head, Kind, Streams};
use super::line::Stream;
use super::names;
use crate::limits::{ATTACH_CLIENTS_MAX, ATTACH_FRAME_BYTES_MAX, ATTACH_STALL_TIME, ATTACH_UNSENT_BYTES_MAX};

/// All clients.
pub(super) struct Clients {
    listener: UnixListener,
    /// At most `limits::ATTACH_CLIENTS_MAX`.
    all: Vec<Client>,
}

/// What a client sends to the container.
pub(super) enum Input {
    Bytes(Vec<u8>),
    End,
    Resize { columns: u16, rows: u16 },
}

struct Client {
    socket: UnixStream,
    /// What it wants, from its first frame; before that it gets nothing.
    streams: Option<Streams>,
    /// The frame that is being received.
    received: Vec<u8>,
    /// What its socket did not take, the rest of a frame first, and since when.
    unsent: Vec<u8>,
    stalled: Option<Instant>,
    /// Since when it is gone, with input that the container has not taken.
    gone: Option<Instant>,
    is_closed: bool,
}

impl Clients {
    pub(super) fn listen(directory: &Path) -> io::Result<Self> {
        let listener = Place::of(directory)?.listen(names::ATTACH)?;
        Ok(Self { listener, all: Vec::new() })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Whether a client has output that it does not take now.
    pub(super) fn is_held(&self) -> bool {
        self.all.iter().any(|client| client.stalled.is_some() && !client.is_closed)
    }

    /// When the next client that takes nothing is to be closed.
    pub(super) fn patience(&self) -> Option<Duration> {
        let since = self.all.iter().filter_map(|client| client.stalled.or(client.gone));
        since.map(|since| ATTACH_STALL_TIME.saturating_sub(since.elapsed())).min()
    }

    /// What the poll waits for.
    pub(super) fn waits(
        &self,
        takes_input: bool,
    ) -> impl Iterator<Item = (usize, BorrowedFd<'_>, PollFlags)> {
        let reads = move |client: &Client| takes_input || client.streams.is_none();
        // Of one that is gone the poll would tell again and again.
        let all =
            self.all.iter().enumerate().filter(move |(_, client)| reads(client) || client.gone.is_none());
        all.map(move |(index, client)| {
            let mut flags = PollFlags::empty();
            // Without a place for input only a client's first frame is read.
            flags.set(PollFlags::IN, reads(client));
            flags.set(PollFlags::OUT, client.stalled.is_some());
            (index, client.socket.as_fd(), flags)
        })
    }

    /// A further client.
    pub(super) fn accept(&mut self) {
        let Ok((socket, _)) = self.listener.accept() else { return };
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let mut client = Client {
            socket,
            streams: None,
            received: Vec::new(),
            unsent: Vec::new(),
            stalled: None,
            gone: None,
            is_closed: false,
        };
        if self.all.len() >= ATTACH_CLIENTS_MAX {
            client.send(Kind::Refused, b"too many clients are attached to this container");
            return;
        }
        self.all.push(client);
    }

    /// Sends output to all who want it.
    pub(super) fn send(&mut self, stream: Stream, bytes: &[u8]) {
        let kind = match stream {
            Stream::Stdout => Kind::Stdout,
            Stream::Stderr => Kind::Stderr,
        };
        for client in &mut self.all {
            let wants = client.streams.is_some_and(|streams| match stream {
                Stream::Stdout => streams.stdout,
                Stream::Stderr => streams.stderr,
            });
            if wants {
                client.send(kind, bytes);
            }
        }
    }

    /// Does what the poll says of that client; the input that it sent, one frame at most.
    pub(super) fn serve(&mut self, index: usize, events: PollFlags) -> Option<Input> {
        let client = self.all.get_mut(index)?;
        if events.contains(PollFlags::OUT) {
            client.send_rest();
        }
        if events.intersects(PollFlags::IN) {
            client.receive()
        } else {
            if events.intersects(PollFlags::HUP | PollFlags::ERR) {
                client.lose();
            }
            None
        }
    }

    /// Removes closed clients and those that have taken nothing for too long; `true` if one of them had input.
    pub(super) fn remove_closed(&mut self) -> bool {
        let is_over = |client: &Client| {
            let since = client.stalled.or(client.gone);
            client.is_closed || since.is_some_and(|since| since.elapsed() >= ATTACH_STALL_TIME)
        };
        let had_input = |client: &&Client| client.streams.is_some_and(|streams| streams.stdin);
        let ended = self.all.iter().filter(|client| is_over(client)).any(|client| had_input(&client));
        self.all.retain(|client| !is_over(client));
        if self.all.is_empty() {
            self.all.shrink_to_fit();
        }
        ended
    }

    /// The container has ended.
    pub(super) fn end(&mut self) {
        for mut client in self.all.drain(..) {
            client.send(Kind::End, &[]);
        }
    }
}

impl Client {
    fn send(&mut self, kind: Kind, bytes: &[u8]) {
        if self.is_closed || self.gone.is_some() {
            return;
        }
        if self.unsent.len() + HEAD_BYTES + bytes.len() > ATTACH_UNSENT_BYTES_MAX {
            self.unsent = Vec::new();
            self.is_closed = true;
            return;
        }
        // A turn has up to two reads of output; the second one waits behind the first one's rest.
        let is_empty = self.unsent.is_empty();
        self.unsent.extend_from_slice(&frame::head(kind, bytes.len()));
        self.unsent.extend_from_slice(bytes);
        if is_empty {
            self.send_rest();
        }
    }

    fn send_rest(&mut self) {
        let mut sent = 0;
        while let Some(rest) = self.unsent.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(0) => self.is_closed = true,
                Ok(written) => {
                    sent += written;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.lose();
                    return;
                }
            }
            break;
        }
        self.unsent.drain(..sent);
        if self.unsent.is_empty() {
            self.unsent = Vec::new();
            self.stalled = None;
        } else if sent > 0 || self.stalled.is_none() {
            self.stalled = Some(Instant::now());
        }
    }

    /// It reads no more; what it has sent is still the container's.
    fn lose(&mut self) {
        self.unsent = Vec::new();
        self.stalled = None;
        self.gone.get_or_insert_with(Instant::now);
    }

    /// Reads on in the frame that is being received; the input, if it is whole.
    fn receive(&mut self) -> Option<Input> {
        let wanted = match frame::head_of(&self.received) {
            Ok(None) => HEAD_BYTES,
            Ok(Some(head)) => HEAD_BYTES + head.length,
            Err(_) => {
                self.is_closed = true;
                return None;
            }
        };
        let begun = self.received.len();
        if begun < wanted {
            self.received.resize(wanted, 0);
            let read = self.socket.read(&mut self.received[begun..]);
            let is_end = matches!(read, Ok(0));
            self.received.truncate(begun + read.as_ref().map_or(0, |read| *read));
            match read {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    return None;
                }
                Ok(1..) => {}
                Ok(_) | Err(_) => self.is_closed = true,
            }
            if is_end {
                return None;
            }
        }
        let head = match frame::head_of(&self.received) {
            Ok(Some(head)) if self.received.len() == HEAD_BYTES + head.length => head,
            Ok(Some(Head { length: 1.., .. }) | None) => return None,
            Ok(Some(head)) => head,
            Err(_) => {
                self.is_closed = true;
                return None;
            }
        };
        let mut frame = std::mem::take(&mut self.received);
        let content = frame.split_off(HEAD_BYTES);
        match (head.kind, self.streams) {
            (Kind::Hello, None) => {
                self.streams = Some(Streams::of(&content));
                self.send(Kind::Hello, &[]);
                None
            }
            (Kind::Stdin, Some(Streams { stdin: true, .. })) => Some(Input::Bytes(content)),
            (Kind::StdinEnd, Some(Streams { stdin: true, .. })) => Some(Input::End),
            (Kind::Resize, Some(_)) => match content[..] {
                [a, b, c, d] => Some(Input::Resize {
                    columns: u16::from_be_bytes([a, b]),
                    rows: u16::from_be_bytes([c, d]),
                }),
                _ => None,
            },
            _ => {
                self.is_closed = true;
                None
            }
        }
    }
}

const _: () = assert!(ATTACH_FRAME_BYTES_MAX <= 0xff_ffff);
