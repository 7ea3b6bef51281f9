//! Programs that the agent executes. What is the agent's alone in its environment is not theirs ([`command`]); [`run`] waits for one
//! until it exits, or until its deadline. Blocking I/O.
//!
//! An OCI runtime that finds `NOTIFY_SOCKET` waits for the container to say that it is ready, and gives the socket to it; the variables
//! of k3s have tokens.

use std::ffi::OsStr;
use std::io::{self, PipeReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::limits::{PROGRAM_OUTPUT_BYTES_MAX, PROGRAM_POLL_PERIOD};

/// Of a supervisor (`sd_notify(3)`, `sd_watchdog_enabled(3)`, `sd_listen_fds(3)`), and of `k3s agent`.
const AGENT_VARIABLES: [&str; 4] = ["NOTIFY_", "WATCHDOG_", "LISTEN_", "K3S_"];

/// A command that gets the agent's environment without what is for the agent alone.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in std::env::vars_os().map(|(name, _)| name).filter(|name| is_for_agent(name)) {
        command.env_remove(name);
    }
    command
}

fn is_for_agent(variable: &OsStr) -> bool {
    AGENT_VARIABLES.iter().any(|prefix| variable.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// Kills the program when dropped: its result is no longer needed.
#[derive(Debug, Default)]
pub(crate) struct KillOnDrop(Arc<AtomicBool>);

impl KillOnDrop {
    /// For the thread that runs the program: true when the result is no longer needed.
    pub(crate) fn dropped(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Result of a program.
pub(crate) struct Ended {
    /// `None`: it was killed, because of its deadline or because its result was no longer needed.
    pub(crate) status: Option<ExitStatus>,
    /// The beginning of its output, at most `limits::PROGRAM_OUTPUT_BYTES_MAX`.
    pub(crate) output: String,
}

/// Runs the program in its own process group, so that its children are killed with it.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(
    program: &str,
    arguments: &[String],
    patience: Duration,
    dropped: &AtomicBool,
) -> io::Result<Ended> {
    let until = Instant::now() + patience;
    let (mut reader, writer) = io::pipe()?;
    fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    let mut child = {
        let mut command = command(program);
        command.args(arguments).env("LC_ALL", "C").process_group(0).stdin(Stdio::null());
        // Our write ends are dropped with the command: the pipe closes when the last process of the group exits.
        command.stdout(writer.try_clone()?).stderr(writer).spawn()?
    };
    let (mut output, mut is_open) = (Vec::new(), true);
    // Daemons that the program started (rpc.statd) may keep the pipe open: the program's own exit is what counts.
    let mut pause = Duration::from_millis(1);
    let status = loop {
        is_open = is_open && keep(&mut reader, &mut output);
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until && !dropped.load(Ordering::Relaxed) => {}
            Ok(None) | Err(_) => {
                kill(&mut child);
                break None;
            }
        }
        if is_open {
            let wait = Timespec::try_from(PROGRAM_POLL_PERIOD).ok();
            // The result does not matter: the next iteration checks the process.
            let _ = poll(&mut [PollFd::new(&reader, PollFlags::IN)], wait.as_ref());
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PROGRAM_POLL_PERIOD);
        }
    };
    if is_open {
        keep(&mut reader, &mut output);
    }
    Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned() })
}

/// What a program prints that succeeds; `None` when it is not there, fails, or takes longer than `patience`.
pub(crate) fn output(program: &str, words: &[&str], patience: Duration) -> Option<String> {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    let ended = run(program, &words, patience, &AtomicBool::new(false)).ok()?;
    ended.status?.success().then_some(ended.output)
}

/// Reads the available output; false at its end.
fn keep(reader: &mut PipeReader, output: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 512];
    // One pipe buffer at a time: a program that prints endlessly still reaches its deadline.
    for _ in 0..128 {
        match reader.read(&mut buffer) {
            Ok(0) => return false,
            Ok(read) => {
                let room = PROGRAM_OUTPUT_BYTES_MAX - output.len();
                output.extend_from_slice(&buffer[..read.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

fn kill(child: &mut Child) {
    // It may have exited meanwhile.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(2);

    fn sh(line: &str, patience: Duration) -> Ended {
        run("sh", &["-c".to_owned(), line.to_owned()], patience, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn programs_that_hang_or_fail_say_nothing() {
        let said = |line: &str, patience| output("sh", &["-c", line], patience);
        assert_eq!(said("echo yes", LONG), Some("yes\n".to_owned()));
        assert_eq!(said("echo yes; exit 3", LONG), None);
        assert_eq!(output("/nonexistent/timedatectl", &[], LONG), None);
        assert_eq!(said("exec sleep 600", Duration::from_millis(100)), None, "it is ended");
    }

    #[test]
    fn programs_get_neither_the_supervisors_variables_nor_tokens() {
        for variable in
            ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "K3S_TOKEN", "K3S_URL"]
        {
            assert!(is_for_agent(OsStr::new(variable)), "{variable}");
        }
        for variable in ["PATH", "HTTPS_PROXY", "TMPDIR", "MY_NOTIFY_SOCKET", "LANG"] {
            assert!(!is_for_agent(OsStr::new(variable)), "{variable}");
        }
    }

    #[test]
    fn output_and_exit_status_are_returned() {
        let ended = sh("echo out; echo err >&2; cat; exit 32", LONG);
        assert_eq!((ended.status.unwrap().code(), &*ended.output), (Some(32), "out\nerr\n"));
        let went_well = |ended: &Ended| ended.status.is_some_and(|status| status.success());
        assert!(went_well(&sh("true", LONG)));
        let much = sh("head -c 5000000 /dev/zero | tr '\\0' x", LONG);
        assert!(went_well(&much) && much.output == "x".repeat(PROGRAM_OUTPUT_BYTES_MAX));
        let none = run("/nonexistent/mount", &[], LONG, &AtomicBool::new(false));
        assert_eq!(none.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_daemon_that_it_started_is_not_waited_for() {
        let begun = Instant::now();
        let ended = sh("sleep 60 & echo $!", LONG);
        assert!(ended.status.is_some() && begun.elapsed() < Duration::from_secs(30));
        let left: i32 = ended.output.trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let gone = |ended: &Ended| {
            let pid = ended.output.trim().to_owned();
            assert!(pid.parse::<u32>().is_ok(), "it has begun: {pid}");
            let begun = Instant::now();
            // Its parent is gone: another process reaps it.
            while std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
            {
                assert!(begun.elapsed() < Duration::from_secs(30), "{pid} runs on");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        // On a busy machine a shell takes its time until it has begun.
        let ended = sh("sleep 600 & echo $!; wait", Duration::from_secs(3));
        assert!(ended.status.is_none());
        gone(&ended);
        assert!(sh("exec >&- 2>&-; sleep 600", Duration::from_millis(300)).status.is_none());
        let wanted = KillOnDrop::default();
        let dropped = wanted.dropped();
        let sign = std::env::temp_dir().join(format!("smolet-begun-{}", std::process::id()));
        let _ = std::fs::remove_file(&sign);
        std::thread::scope(|scope| {
            let line = format!("sleep 600 & echo $!; >{}; wait", sign.display());
            let line = ["-c".to_owned(), line];
            let run = scope.spawn(move || run("sh", &line, LONG, &dropped).unwrap());
            let begun = Instant::now();
            while !sign.exists() {
                assert!(begun.elapsed() < LONG, "it begins");
                std::thread::sleep(Duration::from_millis(5));
            }
            std::fs::remove_file(&sign).unwrap();
            drop(wanted);
            let ended = run.join().unwrap();
            assert!(ended.status.is_none());
            gone(&ended);
        });
    }
}
