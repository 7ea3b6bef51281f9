//! The keeper of a command in a container (`exec`): it waits for the command in the place of the OCI runtime.
//!
//! ```text
//!     agent ── streams ──► smolet monitor --exec SCORE PID_FILE RUNTIME … ── RUNTIME … exec --detach ──► the command
//!        ▲                   │  subreaper; has let go of the streams            (ends)                   child of the subreaper
//!        └── exit code ──────┘
//! ```
//!
//! The agent's child, in a process group of its own, which is killed with it. It blocks, and has no thread.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process,
    pidfd_open, set_child_subreaper, wait, waitid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::set_name;

use super::process::{MODE, adjust_oom_score};
use crate::filesystem::read_start;

/// Keeps a command.
pub(super) const EXEC: &str = "--exec";
/// The exit code of an OCI runtime that runs no command (runc's).
const NO_COMMAND: u8 = 255;
/// A process ID, and a line feed.
const PID_BYTES_MAX: usize = 32;
/// Process IDs of children: mostly there is none.
const CHILDREN_BYTES_MAX: usize = 256;

/// Arguments of this program before those of the OCI runtime, which writes the command's process ID to that file. The command has
/// `oom_score_adj` from its first instant on: crun passes on its own, and the agent's would spare the command whatever memory it takes.
#[must_use]
pub fn arguments(oom_score_adj: i64, pid_file: &Path, runtime: &Path) -> [OsString; 5] {
    [MODE.into(), EXEC.into(), oom_score_adj.to_string().into(), pid_file.into(), runtime.into()]
}

/// The process ID that an OCI runtime has written to that file.
#[must_use]
pub fn pid_in(file: &Path) -> Option<Pid> {
    let text = read_start(file, PID_BYTES_MAX).ok()?;
    Pid::from_raw(std::str::from_utf8(&text).ok()?.trim().parse().ok()?)
}

/// Whether these words of a command line, the program's first, are those of a keeper.
#[must_use]
pub fn is_keeper(words: &[impl AsRef<str>]) -> bool {
    words.get(1).is_some_and(|word| word.as_ref() == MODE)
        && words.get(2).is_some_and(|word| word.as_ref() == EXEC)
}

/// Runs the OCI runtime, and exits with the code of its command (128 and the signal of one that was killed), or with that of the OCI
/// runtime, whose message is on standard error, where there is none.
pub(super) fn keep(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(score), Some(pid_file), Some(runtime)) = (arguments.next(), arguments.next(), arguments.next())
    else {
        return refused("the keeper of a command; the agent starts it");
    };
    let _ = set_name(c"smolet-exec");
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        return refused(&format!("a command cannot be kept: {error}"));
    }
    adjust_oom_score(score.as_encoded_bytes());
    let ran = match Command::new(&runtime).args(arguments).status() {
        Ok(ran) => ran,
        Err(error) => return refused(&format!("{} cannot be executed: {error}", runtime.display())),
    };
    // They are the command's alone from here on: whoever reads them sees their end.
    let _ = let_go();
    // Without its keeper a command has no exit code, and it is small.
    adjust_oom_score(b"-999");
    let Some(pid) = pid_in(Path::new(&pid_file)) else {
        end_children();
        return ExitCode::from(code_of(ran));
    };
    ExitCode::from(exit_code(pid))
}

/// Waits for the command. What it has left behind is reaped, and not waited for.
fn exit_code(command: Pid) -> u8 {
    let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(command), looks).is_err() {
        // It is the child of a subreaper that its OCI runtime has left: that one has the code.
        if let Ok(end) = pidfd_open(command, PidfdFlags::empty()) {
            while poll(&mut [PollFd::new(&end, PollFlags::IN)], None) == Err(Errno::INTR) {}
        }
        return NO_COMMAND;
    }
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => return code_of_wait(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return NO_COMMAND,
        }
    }
}

/// What an OCI runtime has left that died, or failed, before it said which process is the command.
fn end_children() {
    let text = read_start(Path::new("/proc/thread-self/children"), CHILDREN_BYTES_MAX).unwrap_or_default();
    let children = std::str::from_utf8(&text).unwrap_or_default().split(' ');
    for child in children.filter_map(|child| Pid::from_raw(child.parse().ok()?)) {
        let _ = kill_process(child, Signal::KILL);
    }
}

fn code_of_wait(status: WaitStatus) -> u8 {
    let signal = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NO_COMMAND)
}

/// That of an OCI runtime without a command: never success.
fn code_of(ran: ExitStatus) -> u8 {
    let code = ran.code().and_then(|code| u8::try_from(code).ok());
    code.filter(|code| *code != 0).unwrap_or(NO_COMMAND)
}

fn let_go() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(dup2_stderr(&null)?)
}

fn refused(message: &str) -> ExitCode {
    let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
    ExitCode::from(NO_COMMAND)
}
