//! The end of a command that the OCI runtime runs in a container (`exec`). I/O, blocking.
//!
//! The command is a child of the OCI runtime, which reaps it, and in a session of its own: killing the OCI runtime would leave it
//! behind, first as a process, then as a zombie of the machine's first process.

use std::path::Path;
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use crate::filesystem::read_start;
use crate::limits::{EXEC_PID_PERIOD, EXEC_PID_TIME};

/// Kills the command, and returns when the OCI runtime has reaped it and exited; an OCI runtime that does not within
/// `limits::EXEC_PID_TIME` is killed too. `runtime` is the caller's child, in a process group of its own, and not reaped yet; the
/// command's process ID is in the file, which is removed, or will be: the command may run before it is written.
pub(super) fn end(runtime: Pid, pid_file: &Path) {
    let is_over = || waitpid(Some(runtime), WaitOptions::NOHANG).is_ok_and(|status| status.is_some());
    let deadline = Instant::now() + EXEC_PID_TIME;
    let mut is_killed = false;
    let mut is_reaped = is_over();
    while !is_reaped && Instant::now() < deadline {
        // Its process ID is its own until the OCI runtime reaps it, and ends.
        is_killed = is_killed || kill(pid_file);
        std::thread::sleep(EXEC_PID_PERIOD);
        is_reaped = is_over();
    }
    if !is_reaped {
        // It is not reaped, so its PID is still its own.
        let _ = kill_process_group(runtime, Signal::KILL);
        let _ = waitpid(Some(runtime), WaitOptions::empty());
        if !is_killed {
            kill(pid_file);
        }
    }
    let _ = std::fs::remove_file(pid_file);
}

/// Kills the command whose process ID the OCI runtime has written; false: it has not.
fn kill(pid_file: &Path) -> bool {
    let text = read_start(pid_file, 32).unwrap_or_default();
    let pid = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    let Some(pid) = pid.and_then(Pid::from_raw) else { return false };
    // It leads a session of its own.
    let _ = kill_process_group(pid, Signal::KILL).or_else(|_| kill_process(pid, Signal::KILL));
    true
}
