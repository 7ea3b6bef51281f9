//! The streams of `exec` and `attach` (client-go `remotecommand`, protocol v4): standard input, output and error, the
//! terminal's size, and how the command ended.
//!
//! ```text
//!     stdin, sizes ──► send ──► 3, 9 ┐                 ┌ 5, 7 ──► receive ──► stdout, stderr
//!                                    ├── the server ───┤
//!                        pings ◄─────┘                 └ 1 (error) ──► exit code
//! ```

use std::convert::Infallible;

use smol::channel::{Receiver, Sender};

use super::connection::{Incoming, Outgoing, ReaderState, keep};
use super::frame::{Frame, StreamId};
use super::{Connection, status};

const ERROR: StreamId = StreamId(1);
const STDIN: StreamId = StreamId(3);
const STDOUT: StreamId = StreamId(5);
const STDERR: StreamId = StreamId(7);
const RESIZE: StreamId = StreamId(9);

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The local ends of a command's streams. A full channel makes the other side wait.
#[derive(Debug)]
pub struct Streams {
    /// Standard input to its end; `None`: the command has none.
    pub stdin: Option<Receiver<Vec<u8>>>,
    /// Standard output.
    pub stdout: Sender<Vec<u8>>,
    /// Standard error; on a terminal it is part of the output.
    pub stderr: Option<Sender<Vec<u8>>>,
    /// Sizes of the terminal, when there is one.
    pub sizes: Option<Receiver<Size>>,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The command's exit code.
    Exit(u8),
    /// Its output is no longer read. The command's own end is unknown.
    OutputClosed,
}

/// Moves the streams until the command has ended.
///
/// # Errors
/// A sentence: the command did not run, or the connection was lost.
pub async fn run(connection: Connection, streams: Streams) -> Result<Ending, String> {
    let Connection { mut incoming, mut outgoing } = connection;
    let Streams { stdin, stdout, stderr, sizes } = streams;
    let wanted = [
        (ERROR, "error", true),
        (STDIN, "stdin", stdin.is_some()),
        (STDOUT, "stdout", true),
        (STDERR, "stderr", stderr.is_some()),
        (RESIZE, "resize", sizes.is_some()),
    ];
    let wanted = wanted.into_iter().filter(|(.., wanted)| *wanted);
    let opened: Vec<StreamId> = wanted
        .inspect(|(stream, kind, _)| outgoing.open(*stream, kind, &[]))
        .map(|(stream, ..)| stream)
        .collect();
    let state = ReaderState::new();
    let send = async {
        let never = send(&mut outgoing, &state, stdin, sizes).await;
        match never {}
    };
    let receive = receive(&mut incoming, &state, opened, stdout, stderr);
    smol::future::or(smol::future::or(receive, state.late()), send).await
}

/// Reads until the outputs and the error stream have ended.
async fn receive(
    incoming: &mut Incoming,
    state: &ReaderState,
    mut awaited: Vec<StreamId>,
    stdout: Sender<Vec<u8>>,
    stderr: Option<Sender<Vec<u8>>>,
) -> Result<Ending, String> {
    let mut running: Vec<StreamId> =
        awaited.iter().copied().filter(|stream| [ERROR, STDOUT, STDERR].contains(stream)).collect();
    let mut error = Vec::new();
    while !running.is_empty() {
        let Some(frame) = incoming.frame()? else {
            if incoming.fill().await {
                continue;
            }
            if !error.is_empty() {
                // The command's output is complete.
                break;
            }
            return Err("the connection to the runtime was lost before the command ended; \
                what became of it is not known"
                .to_owned());
        };
        match frame {
            Frame::Reply(stream) => state.accepted(&mut awaited, stream),
            Frame::Data(STDOUT, bytes) => {
                if stdout.send(bytes.to_vec()).await.is_err() {
                    return Ok(Ending::OutputClosed);
                }
            }
            Frame::Data(STDERR, bytes) => {
                if let Some(stderr) = &stderr {
                    // Closed: it is no longer read, and the command continues.
                    let _ = stderr.send(bytes.to_vec()).await;
                }
            }
            Frame::Data(ERROR, bytes) => keep(&mut error, bytes),
            Frame::Reset(stream) if awaited.contains(&stream) => {
                return Err("the runtime's streaming server refuses a stream".to_owned());
            }
            Frame::End(stream) | Frame::Reset(stream) => {
                running.retain(|runs| *runs != stream);
                if stream == STDIN {
                    state.input_closed.set(true);
                    state.tell();
                }
            }
            Frame::Ping(number) => state.pinged(number),
            // Existing streams continue.
            Frame::Data(..) | Frame::GoAway => {}
        }
    }
    status::exit_code(&error).map(Ending::Exit)
}

enum Input {
    Stdin(Option<Vec<u8>>),
    Size(Size),
    ReaderState,
}

/// Writes for as long as it is polled. When the server reads no more, the reading half still receives what it has sent.
async fn send(
    outgoing: &mut Outgoing,
    state: &ReaderState,
    mut stdin: Option<Receiver<Vec<u8>>>,
    mut sizes: Option<Receiver<Size>>,
) -> Infallible {
    let mut sent = outgoing.flush().await;
    while sent.is_ok() {
        if state.input_closed.get() {
            stdin = None;
        }
        let open = state.open.get();
        let input = async {
            match &stdin {
                Some(stdin) if open => Input::Stdin(stdin.recv().await.ok()),
                _ => std::future::pending().await,
            }
        };
        let size = async {
            match &sizes {
                Some(sizes) if open => sizes.recv().await.ok().map(Input::Size),
                _ => std::future::pending().await,
            }
        };
        let heard = async {
            state.heard().await;
            Some(Input::ReaderState)
        };
        // Pings and sizes first: a command that reads no input still gets its terminal's size, as long as the server reads.
        let next = smol::future::or(heard, smol::future::or(size, async { Some(input.await) })).await;
        sent = match next {
            Some(Input::Stdin(Some(bytes))) => outgoing.data(STDIN, &bytes, false).await,
            Some(Input::Stdin(None)) => {
                stdin = None;
                outgoing.data(STDIN, &[], true).await
            }
            Some(Input::Size(Size { width, height })) => {
                let size = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
                outgoing.data(RESIZE, size.as_bytes(), false).await
            }
            Some(Input::ReaderState) => state.pong(outgoing).await,
            // The terminal's size does not change any more.
            None => {
                sizes = None;
                Ok(())
            }
        };
    }
    std::future::pending().await
}
