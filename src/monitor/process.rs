//! The modes of the process: `smolet monitor --held DIR` and `--held-adopt DIR` are the monitor; `smolet monitor DIR` and
//! `--adopt DIR` start one of them and end; `--exec` keeps a command (`keeper`).
//!
//! It is dispatched before the command line is parsed, so that a monitor touches as little of the binary as it can. All
//! descriptors of the agent are closed when a program is executed, so that a monitor inherits its standard streams alone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::process::{getpid, set_child_subreaper, setsid, umask};
use rustix::thread::set_name;

use super::attend::{Monitor, Opened};
use super::create;
use super::keeper;
use super::log_file::LogFile;
use super::record::{exit_of, read_arguments};
use super::{Created, MonitorError, Report, names};
use crate::limits::{MONITOR_LOCK_PAUSE, MONITOR_LOCK_TRIES};

/// The first argument.
pub(super) const MODE: &str = "monitor";
/// Goes on with a container whose monitor was killed.
pub(super) const ADOPT: &str = "--adopt";
/// Is the monitor.
pub(super) const HELD: &str = "--held";
const HELD_ADOPT: &str = "--held-adopt";
const SELF: &str = "/proc/self/exe";

/// `smolet monitor …`: `None` when the command line is another one. The agent alone calls it ([`super::spawn`]).
#[inline(never)]
pub fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != MODE {
        return None;
    }
    let mode = arguments.next();
    if mode.as_deref().is_some_and(|mode| mode == keeper::EXEC) {
        return Some(keeper::keep(arguments));
    }
    let result = match (mode, arguments.next(), arguments.next()) {
        (Some(directory), None, None) => start(HELD, directory),
        (Some(mode), Some(directory), None) if mode == ADOPT => start(HELD_ADOPT, directory),
        (Some(mode), Some(directory), None) if mode == HELD => hold(Path::new(&directory), How::Create),
        (Some(mode), Some(directory), None) if mode == HELD_ADOPT => hold(Path::new(&directory), How::Adopt),
        _ => Err(MonitorError::Failed("the monitor of a container; the agent starts it".to_owned())),
    };
    let Err(error) = result else {
        return Some(ExitCode::SUCCESS);
    };
    report(&match error {
        MonitorError::Refused(message) => Report::Refused(message),
        MonitorError::Failed(message) => Report::Failed(message),
        error => Report::Failed(error.to_string().trim_start_matches("container monitor: ").to_owned()),
    });
    Some(ExitCode::FAILURE)
}

/// Starts the process that stays. Its parent ends at once, so that it is init's child, and nobody else has to reap it.
fn start(mode: &str, directory: OsString) -> Result<(), MonitorError> {
    let mut command = Command::new(SELF);
    // Not the link's name, for who looks at processes.
    command.arg0("smolet").arg(MODE).arg(mode).arg(directory).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop).map_err(|source| MonitorError::Io { path: SELF.into(), source })
}

#[derive(Clone, Copy)]
enum How {
    Create,
    Adopt,
}

/// The life of a monitor.
fn hold(directory: &Path, how: How) -> Result<(), MonitorError> {
    let failed = |source: io::Error| MonitorError::Io { path: directory.to_owned(), source };
    // Signals of a terminal's group, and the end of the agent's session, are not for it. It may lead one already.
    let _ = setsid();
    let _ = set_name(c"smolet-monitor");
    set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
    umask(Mode::from_raw_mode(0o022));
    // Not resolved: that takes 8 KiB of stack, which would stay resident.
    let directory = std::path::absolute(directory).map_err(failed)?;
    let arguments = read_arguments(&directory)?;
    let lock = locked(&directory)?;
    let (ready, opened) = match how {
        How::Create => {
            let log = LogFile::open(arguments.log.clone());
            let path = || arguments.log.clone().unwrap_or_else(|| directory.clone());
            let log = log.map_err(|source| MonitorError::Io { path: path(), source })?;
            let opened = Opened::open(&directory, log)?;
            // What the OCI runtime starts is to have the machine's usual score, unless its configuration says another one.
            adjust_oom_score(b"0");
            (create::create(&directory, &arguments)?, opened)
        }
        How::Adopt => {
            // The monitor before this one may have recorded it before it ended: that one saw the exit code.
            if exit_of(&directory)?.is_some() {
                return Err(MonitorError::Failed(format!(
                    "the container of {} has ended",
                    directory.display()
                )));
            }
            let ready = create::adopted(&directory, &arguments)?;
            // The container runs already: it goes on without its log, until the log is opened again.
            (ready, Opened::open(&directory, LogFile::open_or_lose(arguments.log.clone()))?)
        }
    };
    // Without its monitor a container has no log and no exit code, and it is small.
    adjust_oom_score(b"-999");
    let created = Created { pid: ready.init.pid, monitor: std::process::id() };
    let mut monitor = Monitor::new(&directory, arguments, ready, opened)?;
    // No directory of the spawner's is held.
    std::env::set_current_dir("/").map_err(failed)?;
    report(&Report::Created(created));
    close_report().map_err(failed)?;
    let exit = monitor.attend();
    monitor.finish(exit);
    drop(lock);
    Ok(())
}

/// The lock that says that a monitor lives; a reader may hold it for an instant.
fn locked(directory: &Path) -> Result<File, MonitorError> {
    let path = directory.join(names::LOCK);
    let failed = |source: io::Error| MonitorError::Io { path: path.clone(), source };
    let file =
        File::options().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
    for _ in 0..MONITOR_LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                file.set_len(0).map_err(failed)?;
                write!(&file, "{}", std::process::id()).map_err(failed)?;
                return Ok(file);
            }
            Err(Errno::WOULDBLOCK) => std::thread::sleep(MONITOR_LOCK_PAUSE),
            Err(error) => return Err(failed(error.into())),
        }
    }
    Err(MonitorError::Failed(format!("{} has a living monitor", directory.display())))
}

/// Not permitted (a test without root, a user namespace): the score stays.
pub(super) fn adjust_oom_score(score: &[u8]) {
    let _ = std::fs::write("/proc/self/oom_score_adj", score);
}

/// Tells the spawner, which may have ended meanwhile.
fn report(report: &Report) {
    if let Ok(text) = serde_json::to_vec(report) {
        // Not `std::io::stdout`, which keeps a buffer of its own.
        let mut left = text.as_slice();
        while let Ok(written @ 1..) = rustix::io::write(rustix::stdio::stdout(), left) {
            left = left.get(written..).unwrap_or_default();
        }
    }
}

/// The spawner reads until the end.
fn close_report() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}
