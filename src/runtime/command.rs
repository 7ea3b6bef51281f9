//! A command that the OCI runtime runs in a container (`exec`): its process document and its end. I/O, blocking.
//!
//! ```text
//!     config.json ──► NAME.json ──► smolet monitor --exec ──► OCI runtime: exec --detach --process NAME.json --pid-file NAME.pid
//!                                   keeps the command         (ends)
//! ```
//!
//! The document says all of the command: user, environment, directory, capabilities, confinement. Of arguments alone runc makes
//! the same from the container's first process, but crun a process of root in `/`.
//!
//! The OCI runtime does not stay: runc would take ten times the memory of what keeps the command in its place, and crun waits for what a
//! command leaves behind where processes see those of the node. The command is a child of its keeper, which reaps it, and in a session
//! of its own: killing the keeper would leave it behind, first as a process, then as a zombie of the machine's first process.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitOptions, getpgid, kill_process, kill_process_group, waitpid};

use crate::filesystem::{read_bounded, read_start};
use crate::limits::{
    BUNDLE_SPEC_BYTES_MAX, EXEC_PID_PERIOD, EXEC_PID_TIME, EXEC_PROCESS_DEPTH_MAX, KIB,
    RUNTIME_ENTRIES_READ_MAX,
};
use crate::monitor::{keeper_arguments, pid_in, stat_field};
use crate::oci;

/// Why a command has no exit code.
pub(super) const KEEPER_KILLED: &str =
    "the process that waits for it was killed (out of memory?), and so is the command";

/// How the names of commands begin: of `ExecSync`, and of those with streams.
pub(super) const EXEC: &str = "exec-";
pub(super) const STREAM: &str = "stream-";

/// How the names of the sockets begin to which terminals are sent.
pub(super) const TERMINAL: &str = "tty-";
/// Looks for the process ID of a former agent's command.
const FORMER_TRIES: usize = 10;
/// Number of a process's parent in `/proc/PID/stat`.
const STAT_PARENT: usize = 4;

/// A command in a container.
#[derive(Debug)]
pub(super) struct ContainerCommand {
    /// The container's, in which the files of the command are too.
    bundle: PathBuf,
    /// The process document, for the OCI runtime.
    process_file: PathBuf,
    /// The OCI runtime writes the command's process ID to it.
    pid_file: PathBuf,
    /// Program and arguments.
    words: Vec<String>,
    tty: bool,
}

impl ContainerCommand {
    /// Of that name ([`EXEC`] or [`STREAM`], and a number), which no other command of the container has that runs.
    pub(super) fn in_bundle(bundle: PathBuf, name: &str, words: Vec<String>, tty: bool) -> Self {
        let file = |suffix: &str| bundle.join(format!("{name}.{suffix}"));
        Self { process_file: file("json"), pid_file: file("pid"), bundle, words, tty }
    }

    /// The program, for messages.
    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", |word| word)
    }

    /// Arguments of this program, which keeps the command, before the container's ID: with the OCI runtime and its global ones. The command has
    /// the container's `oom_score_adj`.
    pub(super) fn arguments(&self, runtime: &Path, global: Vec<String>, oom_score_adj: i64) -> Vec<OsString> {
        let (process, pid) = (self.process_file.clone(), self.pid_file.clone());
        let mut arguments = keeper_arguments(oom_score_adj, &self.pid_file, runtime).to_vec();
        arguments.extend(global.into_iter().map(OsString::from));
        let exec = ["exec".into(), "--detach".into(), "--process".into(), process.into()];
        arguments.extend(exec.into_iter().chain(["--pid-file".into(), pid.into()]));
        arguments
    }

    /// Writes the process document, mode 0600: the environment may have secrets. Files of a former agent's command are removed.
    ///
    /// # Errors
    /// The bundle cannot be read, or has more than `limits::BUNDLE_SPEC_BYTES_MAX` bytes; the document cannot be written. There is none then.
    pub(super) fn prepare(&self) -> io::Result<()> {
        self.remove();
        let config = read_bounded(&self.bundle.join("config.json"), BUNDLE_SPEC_BYTES_MAX)?;
        let process = oci::exec_process(&config, &self.words, self.tty).map_err(io::Error::other)?;
        drop(config);
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(&self.process_file)?;
        file.write_all(&process).inspect_err(|_| {
            self.remove();
        })
    }

    /// Removes the files. True: the command was started.
    pub(super) fn remove(&self) -> bool {
        let _ = std::fs::remove_file(&self.process_file);
        std::fs::remove_file(&self.pid_file).is_ok()
    }

    /// Kills the command, and returns when its keeper has reaped it and exited; a keeper that does not within
    /// `limits::EXEC_PID_TIME` is killed too, with the OCI runtime. `keeper` is the caller's child, in a process group of its own, and not
    /// reaped yet. The files are removed; the one with the process ID may not be there yet, and the command run.
    pub(super) fn end(&self, keeper: Pid) {
        let is_over = || waitpid(Some(keeper), WaitOptions::NOHANG).is_ok_and(|status| status.is_some());
        let deadline = Instant::now() + EXEC_PID_TIME;
        let mut is_killed = false;
        let mut is_reaped = is_over();
        while !is_reaped && Instant::now() < deadline {
            // Its process ID is its own until the keeper reaps it, and ends.
            is_killed = is_killed || kill(&self.pid_file, keeper);
            std::thread::sleep(EXEC_PID_PERIOD);
            is_reaped = is_over();
        }
        if !is_reaped {
            // It is not reaped, so its PID is still its own.
            let _ = kill_process_group(keeper, Signal::KILL);
            let _ = waitpid(Some(keeper), WaitOptions::empty());
            if !is_killed && let Some(pid) = pid_in(&self.pid_file) {
                kill_group(pid, Some(keeper));
            }
        }
        self.remove();
    }

    /// Kills the command of a keeper that somebody has killed, and its OCI runtime: it runs without anybody who knows of its end. The files are
    /// removed.
    pub(super) fn end_left(&self, keeper: Pid) {
        // Its number is no other group's while one of it lives.
        let _ = kill_process_group(keeper, Signal::KILL);
        // The number may be another process's by now.
        let id = self.bundle.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
        if let Some(pid) = pid_in(&self.pid_file)
            && let Ok(cgroups) = read_start(Path::new(&format!("/proc/{}/cgroup", pid.as_raw_pid())), 4 * KIB)
            && !id.is_empty()
            && cgroups.windows(id.len()).any(|of| of == id)
        {
            kill_group(pid, None);
        }
        self.remove();
    }
}

/// Kills the command whose process ID the OCI runtime has written, and what it has started in its group, for a living keeper; false: it is
/// not written yet, or the OCI runtime, its parent, ends at this moment. The number may be another process's by now.
fn kill(pid_file: &Path, keeper: Pid) -> bool {
    let Some(pid) = pid_in(pid_file).filter(|pid| descends(*pid, keeper)) else { return false };
    kill_group(pid, Some(keeper));
    true
}

/// The process is the other one's child, or below it.
fn descends(pid: Pid, from: Pid) -> bool {
    let parent = |of: &Pid| {
        let stat = read_start(Path::new(&format!("/proc/{}/stat", of.as_raw_pid())), 4 * KIB).ok()?;
        Pid::from_raw(i32::try_from(stat_field(&stat, STAT_PARENT)?).ok()?)
    };
    std::iter::successors(parent(&pid), parent).take(EXEC_PROCESS_DEPTH_MAX).any(|parent| parent == from)
}

fn kill_group(pid: Pid, keeper: Option<Pid>) {
    // It leads a session of its own. With crun before 1.20 one does that has ended and left it its group.
    let group = getpgid(Some(pid)).ok().filter(|group| Some(*group) != keeper).unwrap_or(pid);
    let _ = kill_process_group(group, Signal::KILL).or_else(|_| kill_process(pid, Signal::KILL));
}

/// The files of commands in the containers below `dir`: a command that ends removes its own, and those of an agent that was killed stay.
pub(super) fn left(dir: &Path) -> Vec<PathBuf> {
    let entries =
        |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().take(RUNTIME_ENTRIES_READ_MAX);
    let is_of_command = |file: &DirEntry| {
        let name = file.file_name();
        [EXEC, STREAM, TERMINAL].iter().any(|kind| name.as_encoded_bytes().starts_with(kind.as_bytes()))
    };
    let files = entries(dir).flat_map(|bundle| entries(&bundle.path()));
    files.filter(is_of_command).map(|file| file.path()).collect()
}

/// Ends a command of a former agent, which has nobody who reads it: by the arguments of its keeper, a process that is not this one's
/// child, or of its OCI runtime.
pub(super) fn end_former(pid_file: &Path, keeper: Pid) {
    for _ in 0..FORMER_TRIES {
        if kill(pid_file, keeper) {
            break;
        }
        std::thread::sleep(EXEC_PID_PERIOD);
    }
    // It leads a group of its own.
    let _ = kill_process_group(keeper, Signal::KILL).or_else(|_| kill_process(keeper, Signal::KILL));
}

/// Removes files that are left.
pub(super) fn remove(files: impl IntoIterator<Item = PathBuf>) {
    for file in files {
        let _ = std::fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_process_document_is_the_owners_alone_and_is_removed() {
        let bundles = std::env::temp_dir().join(format!("smolet-command-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&bundles);
        let dir = bundles.join("id");
        std::fs::create_dir_all(&dir).unwrap();
        let command = ContainerCommand::in_bundle(dir.clone(), "exec-0", vec!["ls".to_owned()], true);
        assert!(command.prepare().is_err(), "there is no bundle");
        let config = r#"{"process": {"cwd": "/tmp", "env": ["SECRET=1"]}}"#;
        std::fs::write(dir.join("config.json"), config).unwrap();
        // Of a former agent's command: an OCI runtime may have it open yet, with another mode.
        std::fs::write(dir.join("exec-0.json"), "old").unwrap();
        std::fs::write(dir.join("exec-0.pid"), "1").unwrap();
        command.prepare().unwrap();
        let path = dir.join("exec-0.json");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            r#"{"args":["ls"],"cwd":"/tmp","env":["SECRET=1","TERM=xterm"],"terminal":true}"#
        );
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let arguments =
            command.arguments(Path::new("/bin/crun"), vec!["--root".to_owned(), "/r".to_owned()], 1000);
        let arguments: Vec<_> = arguments.iter().map(|word| word.to_str().unwrap()).collect();
        let pid_file = dir.join("exec-0.pid");
        let (document, pid_file) = (path.to_str().unwrap(), pid_file.to_str().unwrap());
        assert_eq!(arguments[..5], ["monitor", "--exec", "1000", pid_file, "/bin/crun"]);
        assert_eq!(arguments[5..7], ["--root", "/r"]);
        assert_eq!(arguments[7..], ["exec", "--detach", "--process", document, "--pid-file", pid_file]);
        assert_eq!(left(&bundles), std::slice::from_ref(&path));
        assert!(!command.remove() && !path.exists(), "it was not started");
        assert!(left(&bundles).is_empty(), "what the container itself has is no command's");
        for name in ["exec-7.pid", "stream-0.json", "tty-0"] {
            std::fs::write(dir.join(name), "").unwrap();
        }
        assert_eq!(left(&bundles).len(), 3);
        remove(left(&bundles));
        assert_eq!(left(&bundles).len(), 0);
        command.prepare().unwrap();
        std::fs::write(dir.join("exec-0.pid"), "1").unwrap();
        assert!(command.remove());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(&bundles).unwrap();
    }
}
