//! Requests of the agent to a monitor: one line each on a connection of its own, and one line as the answer.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use super::{MonitorError, names};
use crate::limits::{
    CONTROL_ANSWER_TIME, CONTROL_REQUEST_BYTES_MAX, CONTROL_REQUEST_TIME, MONITOR_RECORD_BYTES_MAX,
};

/// What the agent asks for.
pub(super) enum Request {
    ReopenLog,
    Resize { columns: u16, rows: u16 },
    Unknown,
}

pub(super) enum Answer {
    Done,
    Failed(String),
}

/// Lets the monitor open its log's path again, after a rotation (`ReopenContainerLog`). Blocks for up to
/// `limits::CONTROL_ANSWER_TIME`.
///
/// # Errors
/// There is no monitor (`Io`, not found or refused: the container has ended), it does not answer, or the path cannot be opened;
/// then it goes on with the old file.
pub fn reopen_log(directory: &Path) -> Result<(), MonitorError> {
    ask(directory, "reopen-log\n")
}

/// Sets the size of the container's terminal; without a terminal nothing happens.
///
/// # Errors
/// As [`reopen_log`].
pub fn resize(directory: &Path, columns: u16, rows: u16) -> Result<(), MonitorError> {
    ask(directory, &format!("resize {columns} {rows}\n"))
}

fn ask(directory: &Path, request: &str) -> Result<(), MonitorError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock => MonitorError::DeadlineExceeded(directory.to_owned()),
        _ => MonitorError::Io { path: directory.join(names::CONTROL), source },
    };
    let place = Place::of(directory).map_err(failed)?;
    let mut socket = UnixStream::connect(place.path(names::CONTROL)).map_err(failed)?;
    socket.set_read_timeout(Some(CONTROL_ANSWER_TIME)).map_err(failed)?;
    socket.set_write_timeout(Some(CONTROL_ANSWER_TIME)).map_err(failed)?;
    socket.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    let most = u64::try_from(MONITOR_RECORD_BYTES_MAX).unwrap_or(u64::MAX);
    socket.take(most).read_to_string(&mut answer).map_err(failed)?;
    match answer.trim_end() {
        "done" => Ok(()),
        "" => Err(MonitorError::Died(directory.to_owned())),
        message => Err(MonitorError::Failed(message.trim_start_matches("failed: ").to_owned())),
    }
}

/// A directory for sockets: their paths have at most 107 bytes, and those below a container's directory may have more.
pub(super) struct Place(OwnedFd);

impl Place {
    pub(super) fn of(directory: &Path) -> io::Result<Self> {
        Ok(Self(open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Valid in this process for as long as the place is there.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    /// Listens there, for root alone; what another monitor has left is replaced.
    pub(super) fn listen(&self, name: &str) -> io::Result<UnixListener> {
        let path = self.path(name);
        let _ = std::fs::remove_file(&path);
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

/// The monitor's end.
pub(super) struct Listener(UnixListener);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    pub(super) fn listen(directory: &Path) -> io::Result<Self> {
        Place::of(directory)?.listen(names::CONTROL).map(Self)
    }

    /// The next request, which the agent has sent at once.
    pub(super) fn next(&self) -> Option<(UnixStream, Request)> {
        let (mut socket, _) = self.0.accept().ok()?;
        socket.set_nonblocking(false).ok()?;
        socket.set_read_timeout(Some(CONTROL_REQUEST_TIME)).ok()?;
        socket.set_write_timeout(Some(CONTROL_REQUEST_TIME)).ok()?;
        let mut line = [0; CONTROL_REQUEST_BYTES_MAX];
        let read = socket.read(&mut line).ok()?;
        let request = std::str::from_utf8(line.get(..read)?).map_or(Request::Unknown, request_of);
        Some((socket, request))
    }
}

/// PURE.
fn request_of(line: &str) -> Request {
    let mut words = line.split_ascii_whitespace();
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok());
    match words.next() {
        Some("reopen-log") => Request::ReopenLog,
        Some("resize") => match (number(words.next()), number(words.next())) {
            (Some(columns), Some(rows)) => Request::Resize { columns, rows },
            _ => Request::Unknown,
        },
        _ => Request::Unknown,
    }
}

/// Sends the answer, and closes the connection.
pub(super) fn reply(mut socket: &UnixStream, answer: &Answer) {
    let text = match answer {
        Answer::Done => "done\n".to_owned(),
        Answer::Failed(message) => format!("failed: {message}\n"),
    };
    // Who asked may have gone.
    let _ = socket.write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_others_are_unknown() {
        assert!(matches!(request_of("reopen-log\n"), Request::ReopenLog));
        assert!(matches!(request_of("resize 120 40\n"), Request::Resize { columns: 120, rows: 40 }));
        for unknown in ["", "\n", "resize", "resize 1", "resize 1 x", "resize 70000 1", "open"] {
            assert!(matches!(request_of(unknown), Request::Unknown), "{unknown}");
        }
    }
}
