//! Stdio of a container, and its start by the OCI runtime.

use std::fs::{DirBuilder, File};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, XattrFlags, chownat, lsetxattr, mkfifoat, open};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer};
use serde::Deserialize;

use super::record::{Arguments, Init, init_of, place};
use super::{MonitorError, names, pid_of, wait_readable};
use crate::filesystem::{read_bounded, read_start};
use crate::limits::{
    CGROUP_MOVE_PERIOD, CGROUP_MOVES_MAX, CONTAINER_CREATE_TIME, CONTAINER_DELETE_TIME,
    MONITOR_RECORD_BYTES_MAX, RUNTIME_LOG_BYTES_MAX, RUNTIME_MESSAGE_BYTES_MAX,
};
use crate::text::start_of;

/// A started container, and the monitor's ends of its stdio. None of them blocks.
pub(super) struct Ready {
    pub(super) init: Init,
    /// A pidfd; `None` when the process has ended already.
    pub(super) init_fd: Option<OwnedFd>,
    /// Whether the monitor is its subreaper, and will know the exit code.
    pub(super) is_own: bool,
    pub(super) stdio: Stdios,
}

/// The monitor's ends of a container's stdio.
#[derive(Default)]
pub(super) struct Stdios {
    /// Both ways, with a terminal; then there is nothing else.
    pub(super) terminal: Option<OwnedFd>,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

/// The container's ends.
struct Ends {
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
}

/// Runs `RUNTIME run --detach`, as one program's start is quicker than those of `create` and `start`. What it made is removed when
/// that fails, with the sockets of the monitor.
pub(super) fn create(directory: &Path, arguments: &Arguments) -> Result<Ready, MonitorError> {
    let created = try_create(directory, arguments);
    if created.is_err() {
        delete(directory, arguments);
        for name in [names::PID, names::STDIN, names::STDOUT, names::STDERR, names::ATTACH, names::CONTROL] {
            let _ = std::fs::remove_file(directory.join(name));
        }
        let _ = std::fs::remove_dir(directory.join(names::IO));
    }
    for name in [names::CONSOLE, names::RUNTIME_LOG, names::RUNTIME_PID] {
        let _ = std::fs::remove_file(directory.join(name));
    }
    created
}

fn try_create(directory: &Path, arguments: &Arguments) -> Result<Ready, MonitorError> {
    let failed = |name: &str| {
        let path = directory.join(name);
        move |source: io::Error| MonitorError::Io { path, source }
    };
    for name in [names::EXIT, names::PID, names::RUNTIME_LOG, names::RUNTIME_PID, names::CONSOLE] {
        let _ = std::fs::remove_file(directory.join(name));
    }
    let (mut stdio, ends, console) = if arguments.tty {
        let folder = open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let folder = folder.map_err(|error| failed("")(error.into()))?;
        // The path of a socket has at most 107 bytes.
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), folder.as_raw_fd()));
        let path = path.join(names::CONSOLE);
        let listener = UnixListener::bind(&path).map_err(failed(names::CONSOLE))?;
        let ends = Ends { stdin: Stdio::null(), stdout: Stdio::null(), stderr: Stdio::piped() };
        (Stdios::default(), ends, Some((folder, path, listener)))
    } else {
        let (stdio, ends) = fifos(directory, arguments)?;
        (stdio, ends, None)
    };
    let log = directory.join(names::RUNTIME_LOG);
    let pid_file = directory.join(names::RUNTIME_PID);
    let mut command = runtime(arguments, &log);
    command.args(["run", "--detach", "--bundle"]).arg(&arguments.bundle).arg("--pid-file").arg(&pid_file);
    if let Some((_, path, _)) = &console {
        command.arg("--console-socket").arg(path);
    }
    command.arg(&arguments.id).stdin(ends.stdin).stdout(ends.stdout).stderr(ends.stderr);
    let mut child = command.spawn().map_err(|source| no_runtime(arguments, &source))?;
    // The container's ends are the container's alone from here on.
    drop(command);
    hasten(&child);
    let is_good = wait(&mut child, CONTAINER_CREATE_TIME).map_err(failed(names::RUNTIME_PID))?;
    match is_good {
        Some(true) => {}
        Some(false) => {
            let own = message_of(&read_bounded(&log, RUNTIME_LOG_BYTES_MAX).unwrap_or_default());
            let other = child.stderr.take().map(OwnedFd::from).or_else(|| stdio.stderr.take());
            let message = own.or_else(|| other.and_then(|fd| waiting_text(&fd)));
            let message = message
                .unwrap_or_else(|| format!("{} run failed without a message", arguments.runtime.display()));
            return Err(MonitorError::Refused(start_of(&message, RUNTIME_MESSAGE_BYTES_MAX).to_owned()));
        }
        None => {
            let seconds = CONTAINER_CREATE_TIME.as_secs();
            return Err(MonitorError::Refused(format!(
                "{} run did not end within {seconds} s and was killed",
                arguments.runtime.display()
            )));
        }
    }
    if let Some((_, _, listener)) = console {
        stdio.terminal = Some(receive_terminal(&listener).map_err(failed(names::CONSOLE))?);
    }
    let text = read_bounded(&pid_file, MONITOR_RECORD_BYTES_MAX).map_err(failed(names::RUNTIME_PID))?;
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    let Some(number) = number.filter(|number| pid_of(*number).is_some()) else {
        return Err(MonitorError::Refused(format!("{} wrote no process ID", arguments.runtime.display())));
    };
    let unknown = |error: Errno| failed(names::PID)(error.into());
    let init = match Init::of(number) {
        // Mostly it is this subreaper's child. Another one, a handler's own, may have reaped it already: it has ended.
        Err(Errno::SRCH) => Init::gone(number),
        init => init.map_err(unknown)?,
    };
    let init_fd = init.held().map_err(unknown)?;
    let text = serde_json::to_vec(&init).map_err(|error| failed(names::PID)(error.into()))?;
    place(directory, names::PID, &text).map_err(failed(names::PID))?;
    Ok(Ready { init, init_fd, is_own: true, stdio })
}

/// Finds the container of a monitor that was killed.
pub(super) fn adopted(directory: &Path, arguments: &Arguments) -> Result<Ready, MonitorError> {
    let Some(init) = init_of(directory)? else {
        return Err(MonitorError::Failed(format!(
            "{} has no record of a process: the container was not created; delete it with {} delete --force",
            directory.display(),
            arguments.runtime.display()
        )));
    };
    let init_fd = init
        .held()
        .map_err(|error| MonitorError::Io { path: directory.join(names::PID), source: error.into() })?;
    let mut stdio = Stdios::default();
    if !arguments.tty {
        let ours = |name, access| {
            let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            // Those of an earlier version's monitor are beside the other files.
            let before = Path::new(name).file_name().unwrap_or_default();
            let opened = open(directory.join(name), flags, Mode::empty());
            opened.or_else(|_| open(directory.join(before), flags, Mode::empty())).ok()
        };
        stdio.stdin = arguments.stdin.then(|| ours(names::STDIN, OFlags::WRONLY)).flatten();
        stdio.stdout = ours(names::STDOUT, OFlags::RDONLY);
        stdio.stderr = ours(names::STDERR, OFlags::RDONLY);
    }
    Ok(Ready { init, init_fd, is_own: false, stdio })
}

/// Makes the FIFOs, and opens both ends of each.
fn fifos(directory: &Path, arguments: &Arguments) -> Result<(Stdios, Ends), MonitorError> {
    let of_fifos = directory.join(names::IO);
    match DirBuilder::new().mode(0o700).create(&of_fifos) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(MonitorError::Io { path: of_fifos, source: error });
        }
        Ok(()) | Err(_) => {}
    }
    let made = |name: &str| -> Result<PathBuf, MonitorError> {
        let path = directory.join(name);
        let _ = std::fs::remove_file(&path);
        let given = mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).and_then(|()| match arguments.owner {
            Some((uid, gid)) => {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            None => Ok(()),
        });
        let given = given.and_then(|()| match &*arguments.label {
            "" => Ok(()),
            label => match lsetxattr(&path, "security.selinux", label.as_bytes(), XattrFlags::empty()) {
                // A file system that keeps none.
                Err(Errno::OPNOTSUPP) => Ok(()),
                set => set,
            },
        });
        match given {
            Ok(()) => Ok(path),
            Err(error) => Err(MonitorError::Io { path, source: error.into() }),
        }
    };
    let opened = |path: &Path, access: OFlags| {
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::empty());
        file.map_err(|error| MonitorError::Io { path: path.to_owned(), source: error.into() })
    };
    // Each end is opened by itself, so that O_NONBLOCK of ours is not the container's.
    let output = |name| {
        let path = made(name)?;
        let ours = opened(&path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        // For writing alone: programs take an output that can be read for one whose reader is gone (tail, Python's asyncio).
        let theirs = opened(&path, OFlags::WRONLY)?;
        Ok::<_, MonitorError>((ours, Stdio::from(theirs)))
    };
    let (stdout, their_stdout) = output(names::STDOUT)?;
    let (stderr, their_stderr) = output(names::STDERR)?;
    let (stdin, their_stdin) = if arguments.stdin {
        let path = made(names::STDIN)?;
        // Opening one end waits for the other, but for this one.
        let first = opened(&path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let ours = opened(&path, OFlags::WRONLY | OFlags::NONBLOCK)?;
        // Input that nobody closes outlasts the monitor in the same way.
        let theirs = opened(&path, if arguments.stdin_once { OFlags::RDONLY } else { OFlags::RDWR })?;
        drop(first);
        (Some(ours), Stdio::from(theirs))
    } else {
        (None, Stdio::null())
    };
    let ours = Stdios { terminal: None, stdin, stdout: Some(stdout), stderr: Some(stderr) };
    Ok((ours, Ends { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr }))
}

/// The OCI runtime with its global arguments.
fn runtime(arguments: &Arguments, log: &Path) -> Command {
    let mut command = Command::new(&arguments.runtime);
    command.args(&arguments.runtime_arguments).arg("--log").arg(log).args(["--log-format", "json"]);
    command
}

fn no_runtime(arguments: &Arguments, source: &io::Error) -> MonitorError {
    let path = arguments.runtime.display();
    MonitorError::Refused(format!("{path} could not be executed: {source}; install crun or runc"))
}

/// Makes the OCI runtime's move of the container into its cgroups quick. The first move of a while waits until every processor has
/// passed a point of rest (RCU), 5 to 15 ms; those of the next 10 ms do not. So this process moves meanwhile, into the cgroups in
/// which it is.
fn hasten(runtime: &Child) {
    let Some(procs) = own_cgroup_procs() else { return };
    let Some(Ok(end)) = pid_of(runtime.id()).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    for _ in 0..CGROUP_MOVES_MAX {
        let is_moved = rustix::io::write(&procs, b"0").is_ok();
        if !is_moved || !wait_readable(&end, CGROUP_MOVE_PERIOD).is_ok_and(|has_ended| !has_ended) {
            return;
        }
    }
}

/// `cgroup.procs` of a cgroup in which this process is, of whatever hierarchy: it is the same lock of the kernel. `None`: it may not
/// write there, or the hierarchies are elsewhere.
fn own_cgroup_procs() -> Option<File> {
    let text = read_start(Path::new("/proc/self/cgroup"), MONITOR_RECORD_BYTES_MAX).ok()?;
    std::str::from_utf8(&text).ok()?.lines().find_map(|line| {
        let (controllers, cgroup) = line.split_once(':')?.1.split_once(':')?;
        File::options().write(true).open(format!("/sys/fs/cgroup/{controllers}{cgroup}/cgroup.procs")).ok()
    })
}

/// Waits for the process; `None` when it took longer and was killed. `Some(true)` when it succeeded.
fn wait(child: &mut Child, time: Duration) -> io::Result<Option<bool>> {
    let Some(pid) = pid_of(child.id()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let (fd, began) = (pidfd_open(pid, PidfdFlags::empty())?, Instant::now());
    loop {
        let Some(left) = time.checked_sub(began.elapsed()) else {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        };
        if wait_readable(&fd, left)? {
            return Ok(Some(child.wait()?.success()));
        }
    }
}

/// Removes whatever the OCI runtime has made; what remains is the agent's to delete.
fn delete(directory: &Path, arguments: &Arguments) {
    let mut command = runtime(arguments, &directory.join(names::RUNTIME_LOG));
    command.args(["delete", "--force", &arguments.id]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        let _ = wait(&mut child, CONTAINER_DELETE_TIME);
    }
}

/// The last error in the OCI runtime's log, whose lines are JSON objects.
fn message_of(log: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Entry {
        level: String,
        msg: String,
    }
    let entries = log.split(|byte| *byte == b'\n').rev().filter_map(|line| serde_json::from_slice(line).ok());
    let mut errors =
        entries.filter(|entry: &Entry| ["error", "fatal", "panic"].contains(&entry.level.as_str()));
    errors.next().map(|entry| entry.msg.trim().to_owned())
}

/// What a pipe has to read now: the standard error of an OCI runtime that has ended.
fn waiting_text(fd: &OwnedFd) -> Option<String> {
    let mut bytes = vec![0; RUNTIME_MESSAGE_BYTES_MAX];
    if !wait_readable(fd, Duration::ZERO).ok()? {
        return None;
    }
    let read = rustix::io::read(fd, &mut bytes[..]).ok()?;
    let text = String::from_utf8_lossy(&bytes[..read]).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The terminal that an OCI runtime has sent to its `--console-socket`: it has ended, so that its message waits.
fn receive_terminal(listener: &UnixListener) -> io::Result<OwnedFd> {
    listener.set_nonblocking(true)?;
    let (socket, _) = listener.accept()?;
    socket.set_nonblocking(true)?;
    sent_terminal(&socket)
}

/// The terminal that an OCI runtime sends over that connection to its `--console-socket`. The descriptor does not block.
///
/// # Errors
/// `UnexpectedEof`: it sent none; `WouldBlock`: not yet, where the socket does not block.
pub fn sent_terminal(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0; 256];
    let mut pieces = [IoSliceMut::new(&mut name)];
    recvmsg(socket, &mut pieces, &mut received, RecvFlags::CMSG_CLOEXEC)?;
    let fds = received.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let fd = fds
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the OCI runtime sent no terminal"))?;
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(fd)
}

/// The container's side of a terminal, to be held while its process lives: a moment in which nobody there has it open (getty, systemd)
/// would read as its end. `None`: Linux before 4.13, where it does.
pub fn other_side(terminal: &OwnedFd) -> Option<OwnedFd> {
    ioctl_tiocgptpeer(terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_the_runtimes_log_is_its_message() {
        let log = br#"{"level":"warning","msg":"w","time":"t"}
{"level":"error","msg":"first","time":"t"}
{"level":"error","msg":"exec: \"none\": not found ","time":"t"}
{"level":"info","msg":"i"}
no JSON
"#;
        assert_eq!(message_of(log).as_deref(), Some("exec: \"none\": not found"));
        assert_eq!(message_of(b"{\"level\":\"info\",\"msg\":\"i\"}\n"), None);
        assert_eq!(message_of(b""), None);
    }
}
