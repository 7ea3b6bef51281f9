//! The monitor of a container: a mode of the binary that holds its stdio, writes its log and records its exit.
//!
//! ```text
//!     agent ── launch ──► smolet monitor --held DIR ── OCI runtime: run ──► the container's first process
//!        ▲                  │  own session             (ends)               child of the subreaper --held
//!        └── report: PIDs, or the error
//! ```
//!
//! Owns the files below, all in the container's directory. The agent makes the directory with `monitor.json`
//! ([`write_arguments`]), calls [`launch`], and kills and deletes the container with the OCI runtime itself.
//!
//! | file | what it is |
//! |---|---|
//! | `monitor.json` | [`Arguments`], written by the agent |
//! | `lock` | locked while a monitor lives; its text is the monitor's process ID |
//! | `pid` | [`Init`], once the container has started |
//! | `stdin`, `stdout`, `stderr` | FIFOs between the container and its monitor, without a terminal |
//! | `attach`, `control` | sockets for [`attach::connect`] and [`control`] |
//! | `exit` | [`Exit`], appears whole by a rename when the container has ended and its output is in the log |
//!
//! **The end of a monitor.** It goes on when the agent ends. Who has [`launch`]ed it reaps it; one of [`spawn`] and [`adopt`] is
//! started by a process that ends at once, and is nobody's child. When a monitor is killed, its container goes on: the agent
//! holds the container's outputs ([`hold_outputs`]), so that they do not break, and keep 64 KiB of output; then a write waits. Where neither lives
//! a write fails (`EPIPE`), as behind a shim of containerd that was killed.
//! [`adopt`] starts a new monitor, which goes on with log, attach and exit. Three things are lost: the exit code (the new monitor
//! is no parent; it is [`EXIT_CODE_UNKNOWN`]), input that was to be closed after the first client (`stdin_once`: the container
//! reads its end), and a terminal: it hangs up, the container gets SIGHUP and reads its end, and what it prints is lost, as with
//! conmon. Of output only what the monitor had read and not yet written is lost: one read; of a container that ends before it has a new
//! monitor, what was in its pipes too, 64 KiB each. A monitor that is killed before `pid`
//! is written leaves a container that nobody knows: the agent deletes it by force.
//!
//! A service manager that ends the agent must leave its monitors alone (`KillMode=process`).
//!
//! `line` (PURE) frames log entries, `log_file` writes them, `create` runs the OCI runtime, `attend` is the life of a monitor,
//! `clients` are those that are attached. `keeper` is the same for a command in a container. What the mode itself does blocks, and it has no thread, no executor and no logger.

pub mod attach;
mod attend;
mod clients;
pub mod control;
mod create;
mod frame;
mod keeper;
mod line;
mod log_file;
mod process;
mod record;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::limits::{MONITOR_RECORD_BYTES_MAX, MONITOR_REPORT_TIME};

pub use control::reopen_log;
pub use create::{other_side, sent_terminal};
pub use keeper::{arguments as keeper_arguments, is_keeper, pid_in};
pub use process::main;
pub use record::{
    Arguments, EXIT_CODE_UNKNOWN, Exit, Init, exit_of, init_of, is_alive, monitor_of, stat_field, stat_state,
    write_arguments,
};

/// What [`spawn`] and [`adopt`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Created {
    /// Process ID of the container's first process.
    pub pid: u32,
    /// Process ID of the monitor: a pidfd of it tells when it was killed.
    pub monitor: u32,
}

/// What a monitor tells its spawner, once.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Report {
    Created(Created),
    /// The OCI runtime refused; its message.
    Refused(String),
    /// The monitor itself could not go on.
    Failed(String),
}

/// Why there is no monitor, or no answer of one.
#[derive(Debug)]
pub enum MonitorError {
    /// The monitor could not be started, or a file of it could not be read or written.
    Io {
        /// The file or program.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// The OCI runtime did not create the container: its own message. The container is deleted.
    Refused(String),
    /// The monitor could not go on: its message.
    Failed(String),
    /// The monitor ended without a word. A container that it began is deleted by force (`runc delete --force`).
    Died(PathBuf),
    /// The monitor did not answer in time.
    DeadlineExceeded(PathBuf),
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "container monitor: {}: {source}", path.display()),
            Self::Refused(message) => write!(f, "OCI runtime: {message}"),
            Self::Failed(message) => write!(f, "container monitor: {message}"),
            Self::Died(directory) => {
                write!(f, "container monitor of {} ended without a report", directory.display())
            }
            Self::DeadlineExceeded(directory) => {
                write!(f, "container monitor of {} did not answer in time", directory.display())
            }
        }
    }
}

impl std::error::Error for MonitorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Refused(_) | Self::Failed(_) | Self::Died(_) | Self::DeadlineExceeded(_) => None,
        }
    }
}

/// Reading ends of a container's outputs; none with a terminal.
pub type HeldOutputs = [Option<OwnedFd>; 2];

/// Opens the outputs of a container that runs. While they are held, and nothing is read from them, what it writes waits for its next
/// monitor. It does not block: opening a FIFO with `O_NONBLOCK` waits for nobody.
pub fn hold_outputs(directory: &Path) -> HeldOutputs {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    [names::STDOUT, names::STDERR].map(|name| open(directory.join(name), flags, Mode::empty()).ok())
}

/// Names of the files in a container's directory.
pub mod names {
    /// [`Arguments`](super::Arguments).
    pub const ARGUMENTS: &str = "monitor.json";
    /// Locked while a monitor lives.
    pub const LOCK: &str = "lock";
    /// [`Init`](super::Init).
    pub const PID: &str = "pid";
    /// [`Exit`](super::Exit); watch the directory for `IN_MOVED_TO` of this name.
    pub const EXIT: &str = "exit";
    /// The socket of attached clients.
    pub const ATTACH: &str = "attach";
    /// The socket of requests.
    pub const CONTROL: &str = "control";
    /// The directory of the FIFOs. Processes of the container may open and close them as they like, and the agent, which watches the
    /// directory above, is not woken by that.
    pub const IO: &str = "io";
    /// FIFO of the container's standard input.
    pub const STDIN: &str = "io/stdin";
    /// FIFO of the container's standard output.
    pub const STDOUT: &str = "io/stdout";
    /// FIFO of the container's standard error.
    pub const STDERR: &str = "io/stderr";
    /// Where the OCI runtime sends the terminal; gone when the container has started.
    pub const CONSOLE: &str = "console";
    /// The OCI runtime's own log; gone when the container has started.
    pub const RUNTIME_LOG: &str = "runtime.log";
    /// Where the OCI runtime writes the process ID; gone when the container has started.
    pub const RUNTIME_PID: &str = "runtime.pid";
}

/// Starts the monitor of the container whose directory this is, and waits until it has started the container with
/// `RUNTIME run --detach`. `program` is smolet's own binary (`/proc/self/exe`). Blocks for up to `limits::MONITOR_REPORT_TIME`.
///
/// When the caller ends meanwhile the monitor goes on: the next agent finds the directory with a living monitor
/// ([`is_alive`]) and, soon, `pid`.
///
/// # Errors
/// As [`MonitorError`] says. The monitor has then removed what it made, but for `Died` and `DeadlineExceeded`.
pub fn spawn(program: &Path, directory: &Path) -> Result<Created, MonitorError> {
    start_apart(program, &[], directory)?.wait()
}

/// The same without the wait and without a process between the two, which would take milliseconds: the caller reads the report, and
/// reaps the monitor, its child.
///
/// # Errors
/// The monitor could not be started.
pub fn launch(program: &Path, directory: &Path) -> Result<(Launched, Child), MonitorError> {
    start(program, &[process::HELD], directory)
}

/// Starts a new monitor for a container whose monitor was killed; see the module's text for what it has lost. A container that
/// has ended meanwhile gets its `exit`, with the code [`EXIT_CODE_UNKNOWN`].
///
/// # Errors
/// As [`spawn`]; `Failed` when there is no `pid` (the container has not started) or a monitor lives.
pub fn adopt(program: &Path, directory: &Path) -> Result<Created, MonitorError> {
    start_apart(program, &[process::ADOPT], directory)?.wait()
}

/// A monitor that has not yet reported.
#[derive(Debug)]
pub struct Launched {
    /// It writes its report there, at most `limits::MONITOR_RECORD_BYTES_MAX`, and closes it.
    pub report: OwnedFd,
    directory: PathBuf,
}

impl Launched {
    /// What the report says.
    ///
    /// # Errors
    /// As [`spawn`].
    pub fn read(directory: PathBuf, report: &[u8]) -> Result<Created, MonitorError> {
        match serde_json::from_slice(report) {
            Ok(Report::Created(created)) => Ok(created),
            Ok(Report::Refused(message)) => Err(MonitorError::Refused(message)),
            Ok(Report::Failed(message)) => Err(MonitorError::Failed(message)),
            Err(_) => Err(MonitorError::Died(directory)),
        }
    }

    fn wait(self) -> Result<Created, MonitorError> {
        let failed = |error: io::Error| MonitorError::Io { path: self.directory.clone(), source: error };
        let (began, mut text) = (Instant::now(), Vec::new());
        loop {
            let Some(left) = MONITOR_REPORT_TIME.checked_sub(began.elapsed()) else {
                return Err(MonitorError::DeadlineExceeded(self.directory));
            };
            if !wait_readable(&self.report, left).map_err(failed)? {
                continue;
            }
            let mut piece = [0; 1024];
            let read = rustix::io::read(&self.report, &mut piece).map_err(|error| failed(error.into()))?;
            text.extend_from_slice(&piece[..read]);
            if read == 0 || text.len() > MONITOR_RECORD_BYTES_MAX {
                return Self::read(self.directory, &text);
            }
        }
    }
}

fn start(program: &Path, mode: &[&str], directory: &Path) -> Result<(Launched, Child), MonitorError> {
    let failed = |source| MonitorError::Io { path: program.to_owned(), source };
    let mut command = crate::program::command(program);
    // Not the program's path, for who looks at processes.
    command.arg0("smolet").arg(process::MODE).args(mode).arg(directory);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(failed)?;
    let directory = directory.to_owned();
    match child.stdout.take() {
        Some(report) => Ok((Launched { report: report.into(), directory }, child)),
        None => Err(MonitorError::Died(directory)),
    }
}

/// By a process that ends as soon as it has started the monitor.
fn start_apart(program: &Path, mode: &[&str], directory: &Path) -> Result<Launched, MonitorError> {
    let (launched, mut between) = start(program, mode, directory)?;
    between.wait().map_err(|source| MonitorError::Io { path: program.to_owned(), source })?;
    Ok(launched)
}

/// Waits for something to read or the end; `false` when the time is over or a signal came.
fn wait_readable(fd: impl std::os::fd::AsFd, time: std::time::Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(time))) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn timespec(time: std::time::Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// A process ID of a file or of the kernel.
fn pid_of(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}
