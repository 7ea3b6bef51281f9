//! A client of a container's monitor, for the agent: the container's output, input to it, its terminal's size.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::control::Place;
use super::frame::{self, HEAD_BYTES, Kind};
use super::{MonitorError, names};
use crate::limits::ATTACH_FRAME_BYTES_MAX;
use crate::stream::Socket;

pub use super::frame::Streams;
pub use super::line::Stream;

/// What comes from the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes of that stream, in the caller's buffer.
    Output(Stream),
    /// The container has ended, or its monitor; there is no more.
    End,
}

/// Receives from the container.
#[derive(Debug)]
pub struct Receiver {
    socket: Rc<Socket<UnixStream>>,
    /// The frame that is being received.
    begun: Vec<u8>,
}

/// Sends to the container. Dropping both ends detaches: with `stdin_once` that closes the container's input, if this client had it.
#[derive(Clone, Debug)]
pub struct Sender {
    socket: Rc<Socket<UnixStream>>,
}

/// Attaches to the container of that directory. Output that comes after the return is received; the caller sets a deadline.
///
/// # Errors
/// There is no monitor (`Io`), or too many clients are attached (`Failed`).
pub async fn connect(directory: &Path, streams: Streams) -> Result<(Receiver, Sender), MonitorError> {
    let failed = |source: io::Error| MonitorError::Io { path: directory.join(names::ATTACH), source };
    let place = Place::of(directory).map_err(failed)?;
    let socket = Rc::new(Socket::<UnixStream>::connect(&place.path(names::ATTACH)).await.map_err(failed)?);
    drop(place);
    let sender = Sender { socket: Rc::clone(&socket) };
    let mut receiver = Receiver { socket, begun: Vec::new() };
    let sent = sender.frame(Kind::Hello, &streams.bytes()).await;
    let mut answer = Vec::new();
    match receiver.frame(&mut answer).await.map_err(failed)? {
        Some(Kind::Hello) => Ok((receiver, sender)),
        Some(Kind::Refused) => Err(MonitorError::Failed(String::from_utf8_lossy(&answer).into_owned())),
        // A refusal is read even where the monitor has closed its end before the frame was sent.
        Some(_) | None => sent.map_err(failed).and(Err(MonitorError::Died(directory.to_owned()))),
    }
}

impl Receiver {
    /// The next output, which replaces what is in `bytes`; at most `limits::ATTACH_FRAME_BYTES_MAX`. It may be dropped at its await;
    /// nothing is lost then. A client that does not call it for a second while there is output is detached.
    ///
    /// # Errors
    /// The socket's.
    pub async fn next(&mut self, bytes: &mut Vec<u8>) -> io::Result<Event> {
        match self.frame(bytes).await? {
            Some(Kind::Stdout) => Ok(Event::Output(Stream::Stdout)),
            Some(Kind::Stderr) => Ok(Event::Output(Stream::Stderr)),
            Some(_) | None => Ok(Event::End),
        }
    }

    async fn frame(&mut self, content: &mut Vec<u8>) -> io::Result<Option<Kind>> {
        let bad = |_| io::Error::other("the container's monitor sent no frame");
        loop {
            let mut wanted = HEAD_BYTES;
            if let Some(head) = frame::head_of(&self.begun).map_err(bad)? {
                wanted = HEAD_BYTES + head.length;
                if self.begun.len() == wanted {
                    content.clear();
                    content.extend_from_slice(&self.begun[HEAD_BYTES..]);
                    self.begun.clear();
                    return Ok(Some(head.kind));
                }
            }
            // Never beyond the frame, and what came is kept before the next await.
            let mut piece = [0; 4096];
            let most = wanted.saturating_sub(self.begun.len()).min(piece.len());
            let read = (&*self.socket).read(&mut piece[..most]).await?;
            if read == 0 {
                return Ok(None);
            }
            self.begun.extend_from_slice(&piece[..read]);
        }
    }
}

impl Sender {
    /// Sends input. It waits while the container takes none. It must not be dropped at its await, unless the client is too.
    ///
    /// # Errors
    /// The socket's: the container has ended.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(ATTACH_FRAME_BYTES_MAX) {
            self.frame(Kind::Stdin, piece).await?;
        }
        Ok(())
    }

    /// The input ends: with `stdin_once` the container's is closed.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn end(&self) -> io::Result<()> {
        self.frame(Kind::StdinEnd, &[]).await
    }

    /// Sets the size of the container's terminal.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        let ([a, b], [c, d]) = (columns.to_be_bytes(), rows.to_be_bytes());
        self.frame(Kind::Resize, &[a, b, c, d]).await
    }

    async fn frame(&self, kind: Kind, content: &[u8]) -> io::Result<()> {
        let frame = [&frame::head(kind, content.len())[..], content].concat();
        (&*self.socket).write_all(&frame).await
    }
}
