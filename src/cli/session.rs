//! The local side of `exec` and `attach`: standard streams, the terminal and signals, while `streaming::command` copies the
//! bytes.

use std::fs::File;
use std::io;
use std::process::ExitCode;

use async_signal::{Signal, Signals};
use smol::channel::{Receiver, Sender};
use smol::stream::StreamExt as _;

use super::stdio::{self, Detach};
use super::terminal::{self, Raw};
use crate::limits::STREAM_QUEUE_MAX;
use crate::streaming::command::{self, Ending, Size, Streams};
use crate::streaming::upgrade::{self, COMMAND_PROTOCOL};

/// A shell's exit code for a program killed by SIGPIPE, which happens when its output is not read.
const BROKEN_PIPE: u8 = 128 + 13;

/// Parameters of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session<'u> {
    /// The streaming URL from the agent.
    pub url: &'u str,
    /// Standard input is sent to the container.
    pub stdin: bool,
    /// The container has a terminal.
    pub tty: bool,
    /// The local side has a terminal, too: it is put into raw mode, and its size is sent.
    pub raw: bool,
    /// Attached to a running program: a change of size makes it redraw, and the detach keys end the session.
    pub attached: bool,
}

/// How a session ended.
enum Ended {
    Command(Ending),
    /// By the detach keys; the container continues.
    Detached,
    /// By a signal with that number.
    Signal(u8),
}

/// Runs the session to its end.
///
/// # Errors
/// Why it could not be opened, or was lost.
pub(super) fn run(session: Session<'_>) -> Result<ExitCode, String> {
    let terminal = |error: io::Error| format!("the terminal cannot be used: {error}");
    // Without raw mode signals have their default action.
    let wanted = [Signal::Winch, Signal::Term, Signal::Int, Signal::Hup, Signal::Quit];
    let signals = session.raw.then(|| Signals::new(wanted)).transpose().map_err(terminal)?;
    let (changes, sizes) = smol::channel::bounded(STREAM_QUEUE_MAX);
    if let Some(size) = terminal::size().filter(|_| session.raw) {
        if session.attached {
            // As kubectl: a different size first, so that there is a change.
            tell(
                &changes,
                Size { width: size.width.saturating_add(1), height: size.height.saturating_add(1) },
            );
        }
        tell(&changes, size);
    }
    let ended = {
        let _raw = session.raw.then(Raw::enter).transpose().map_err(terminal)?;
        let moved = moved(session, sizes);
        async_io::block_on(smol::future::or(moved, until_signal(signals, changes)))
    };
    match ended? {
        Ended::Detached | Ended::Command(Ending::Exit(0)) => Ok(ExitCode::SUCCESS),
        Ended::Command(Ending::Exit(code)) => {
            super::say(&format!("command terminated with exit code {code}"));
            Ok(ExitCode::from(code))
        }
        Ended::Command(Ending::OutputClosed) => Ok(ExitCode::from(BROKEN_PIPE)),
        Ended::Signal(number) => Ok(ExitCode::from(128_u8.saturating_add(number))),
    }
}

/// Sends a size, replacing one that was not sent yet.
fn tell(changes: &Sender<Size>, size: Size) {
    // Never closed before the session ends.
    let _ = changes.force_send(size);
}

/// Sends every change of the terminal's size, until a signal ends the session.
async fn until_signal(signals: Option<Signals>, changes: Sender<Size>) -> Result<Ended, String> {
    let Some(mut signals) = signals else { return std::future::pending().await };
    loop {
        match signals.next().await {
            Some(Ok(Signal::Winch)) => {
                if let Some(size) = terminal::size() {
                    tell(&changes, size);
                }
            }
            Some(Ok(signal)) => {
                return Ok(Ended::Signal(u8::try_from(signal as i32).unwrap_or_default()));
            }
            Some(Err(_)) | None => return std::future::pending().await,
        }
    }
}

async fn moved(session: Session<'_>, sizes: Receiver<Size>) -> Result<Ended, String> {
    let file = |stream: io::Result<File>| stream.map_err(|error| format!("the standard streams: {error}"));
    let connection = upgrade::connect(session.url, COMMAND_PROTOCOL).await?;
    let (mut stdin, mut reading) = (None, None);
    if session.stdin {
        let file = file(stdio::file(io::stdin()))?;
        let detach = (session.attached && session.raw).then(Detach::default);
        let (to, from) = smol::channel::bounded(STREAM_QUEUE_MAX);
        stdin = Some(from);
        reading = Some(smol::unblock(move || stdio::read(&file, &to, detach)));
    }
    let detached = async {
        let detached = match reading {
            Some(reading) => reading.await,
            None => false,
        };
        if detached { Ok(Ended::Detached) } else { std::future::pending().await }
    };
    let output = |file: File| {
        let (to, from) = smol::channel::bounded(STREAM_QUEUE_MAX);
        (to, smol::unblock(move || stdio::write(&from, &file)))
    };
    let (stdout, written) = output(file(stdio::file(io::stdout()))?);
    let (mut stderr, mut errors_written) = (None, None);
    if !session.tty {
        let (to, written) = output(file(stdio::file(io::stderr()))?);
        (stderr, errors_written) = (Some(to), Some(written));
    }
    let sizes = session.tty.then_some(sizes);
    let command = command::run(connection, Streams { stdin, stdout, stderr, sizes });
    // A thread that still waits for terminal input ends with the process.
    let ended = smol::future::or(async { command.await.map(Ended::Command) }, detached).await;
    // Received output is written before any message about its end.
    written.await;
    if let Some(written) = errors_written {
        written.await;
    }
    ended
}
