//! Runs the programs that the embedded runtime stands on (the OCI runtime, CNI plugins). I/O, without blocking the loop: a thread
//! starts the program, its pipes and its exit (a pidfd) are awaited by the reactor.
//!
//! Dropping the future kills the program with its process group, and the command that it runs in a container.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fmt;
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use rustix::fs::{Gid, Uid, fchown};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use smol::channel::{Receiver, bounded};
use smol::future::{or, zip};
use smol::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use super::command::ContainerCommand;
use super::users::Owner;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::limits::{EXEC_PID_TIME, OUTPUT_TURN_BYTES, PROGRAM_DRAIN_TIME};
use crate::program;
use crate::text::start_of;

/// A program to run.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Added to the agent's own environment.
    pub(super) environment: Vec<(&'static str, OsString)>,
    pub(super) stdin: Vec<u8>,
    /// Bytes kept of standard output; the rest is read and dropped.
    pub(super) stdout_bytes_max: usize,
    /// Bytes kept of standard error; the rest is read and dropped.
    pub(super) stderr_bytes_max: usize,
    /// `None`: it may run for ever.
    pub(super) time: Option<Duration>,
    /// The command in a container that it keeps. Then it is the command that is killed.
    pub(super) command: Option<Arc<ContainerCommand>>,
    /// Whose its pipes are; the agent's own user where it is not given.
    pub(super) owner: Option<Owner>,
    /// It is left to run when nobody waits for it any more: ended halfway it would leave behind what nobody mends.
    pub(super) outlives: bool,
    /// Bytes that all programs with this room may keep of their outputs together, while they run. Full: the rest is read and dropped.
    pub(super) room: Option<Room>,
}

/// Bytes that are left of a bound.
pub(super) type Room = Rc<Cell<usize>>;

/// A program that has exited.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) pid: Pid,
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// Standard output had more than is kept.
    pub(super) is_cut: bool,
}

impl Output {
    /// What it printed on standard error, for messages: the last line that is not empty.
    pub(super) fn last_error(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        start_of(line.unwrap_or("it printed no error").trim(), 1024).to_owned()
    }
}

/// Why a program has no output.
#[derive(Debug)]
pub(super) enum ProgramError {
    /// It could not be started.
    NotStarted(PathBuf, io::Error),
    /// It was killed after that time.
    TooSlow(PathBuf, Duration),
    /// It could not be waited for.
    Lost(PathBuf, io::Error),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(path, error) => write!(f, "{} cannot be started: {error}", path.display()),
            Self::TooSlow(path, time) => {
                write!(f, "{} did not end within {} s and was killed", path.display(), time.as_secs())
            }
            Self::Lost(path, error) => write!(f, "{} cannot be waited for: {error}", path.display()),
        }
    }
}

impl std::error::Error for ProgramError {}

/// Killed when dropped before its exit.
struct Running {
    child: Option<Child>,
    /// Its command in a container.
    command: Option<Arc<ContainerCommand>>,
    outlives: bool,
}

impl Running {
    /// Kills it. The channel closes when its command has ended.
    fn kill(&mut self) -> Option<Receiver<()>> {
        let mut child = self.child.take()?;
        let pid = Pid::from_child(&child);
        let command = self.command.take();
        if command.is_none() && !self.outlives {
            if let Ok(Some(_)) = child.try_wait() {
                return None;
            }
            // It may have exited meanwhile; it is not reaped, so its PID is still its own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let (ended, end) = bounded(1);
        // A killed process takes a moment to exit: its thread ends with it. Without a thread it is reaped when the agent ends, and the
        // keeper of a command is killed, which may leave the command behind.
        let wait = move || {
            match command {
                Some(command) => command.end(pid),
                None => drop(child.wait()),
            }
            drop(ended);
        };
        let thread = std::thread::Builder::new().name("reaper".to_owned()).spawn(wait);
        if thread.is_err() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        thread.is_ok().then_some(end)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Runs a program until it exits, in a process group of its own.
///
/// # Errors
/// It cannot be started, or takes too long.
pub(super) async fn run(
    blocking: &Blocking,
    clock: &SharedClock,
    program: Program,
) -> Result<Output, ProgramError> {
    let Program {
        path,
        arguments,
        environment,
        stdin,
        stdout_bytes_max,
        stderr_bytes_max,
        time,
        command,
        owner,
        outlives,
        room,
    } = program;
    let mut starts = program::command(&path);
    starts.args(arguments).envs(environment).process_group(0);
    if command.is_some() {
        // This program keeps it. Not its path, for who looks at processes.
        starts.arg0("smolet");
    }
    starts.stdin(if stdin.is_empty() { Stdio::null() } else { Stdio::piped() });
    starts.stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = blocking.run(move || spawn(starts, command, owner, outlives)).await;
    let mut running = started.map_err(|error| ProgramError::NotStarted(path.clone(), error))?;
    // Boxed: it waits below many others.
    let outputs = (Kept::new(stdout_bytes_max, room.clone()), Kept::new(stderr_bytes_max, room));
    let ended = Box::pin(ended(&mut running, clock, stdin, outputs));
    let Some(time) = time else { return ended.await.map_err(|error| ProgramError::Lost(path, error)) };
    let late = async {
        clock.sleep(time).await;
        None
    };
    match or(async { Some(ended.await) }, late).await {
        Some(Ok(output)) => Ok(output),
        Some(Err(error)) => Err(ProgramError::Lost(path, error)),
        None => {
            // Whoever is told that a command was killed finds it gone.
            if let (true, Some(end)) = (running.command.is_some(), running.kill()) {
                let end = async {
                    let _ = end.recv().await;
                };
                or(end, clock.sleep(EXEC_PID_TIME)).await;
            }
            Err(ProgramError::TooSlow(path, time))
        }
    }
}

/// The pipes have their owner before the OCI runtime, which has some steps to go, runs the command that may open them.
fn spawn(
    mut starts: Command,
    command: Option<Arc<ContainerCommand>>,
    owner: Option<Owner>,
    outlives: bool,
) -> io::Result<Running> {
    if let Some(command) = &command {
        command.prepare()?;
    }
    let child = starts.spawn().inspect_err(|_| {
        if let Some(command) = &command {
            command.remove();
        }
    })?;
    let given = owner.map_or(Ok(()), |owner| give_pipes(&child, owner));
    let running = Running { child: Some(child), command, outlives };
    given.map(|()| running)
}

/// Gives the pipes of a program to a user.
pub(super) fn give_pipes(child: &Child, (uid, gid): Owner) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    // Both ends of a pipe are one inode.
    let pipes = [
        child.stdin.as_ref().map(AsFd::as_fd),
        child.stdout.as_ref().map(AsFd::as_fd),
        child.stderr.as_ref().map(AsFd::as_fd),
    ];
    pipes.into_iter().flatten().try_for_each(|pipe| Ok(fchown(pipe, uid, gid)?))
}

async fn ended(
    running: &mut Running,
    clock: &SharedClock,
    stdin: Vec<u8>,
    (stdout, stderr): (Kept, Kept),
) -> io::Result<Output> {
    let Some(child) = running.child.as_mut() else { return Err(io::ErrorKind::NotFound.into()) };
    let exit = Async::new_nonblocking(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)?;
    let input = child.stdin.take().map(Async::new).transpose()?;
    let of_stdout = child.stdout.take().map(Async::new).transpose()?;
    let of_stderr = child.stderr.take().map(Async::new).transpose()?;
    let write = async {
        if let Some(mut input) = input {
            // It may exit without reading all of it.
            let _ = input.write_all(&stdin).await;
        }
    };
    let pipes = zip(write, zip(stdout.read(of_stdout), stderr.read(of_stderr)));
    let mut pipes = pin!(async {
        pipes.await;
    });
    let mut are_closed = false;
    or(
        async {
            pipes.as_mut().await;
            are_closed = true;
            pending().await
        },
        exit.readable(),
    )
    .await?;
    if !are_closed {
        or(pipes, clock.sleep(PROGRAM_DRAIN_TIME)).await;
    }
    let pid = Pid::from_child(child);
    let status = child.try_wait()?.ok_or_else(|| io::Error::other("it has not exited"))?;
    running.child = None;
    let is_cut = stdout.is_cut();
    Ok(Output { pid, status, stdout: stdout.take(), stderr: stderr.take(), is_cut })
}

/// The beginning of an output.
struct Kept(RefCell<Begun>);

struct Begun {
    bytes: Vec<u8>,
    bytes_max: usize,
    is_cut: bool,
    /// What others have to do with, and how much of it this output has taken.
    room: Option<Room>,
    taken: usize,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.set(room.get() + self.taken);
        }
    }
}

impl Kept {
    fn new(bytes_max: usize, room: Option<Room>) -> Self {
        Self(RefCell::new(Begun { bytes: Vec::new(), bytes_max, is_cut: false, room, taken: 0 }))
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut().bytes)
    }

    fn is_cut(&self) -> bool {
        self.0.borrow().is_cut
    }

    fn add(&self, bytes: &[u8]) {
        let mut begun = self.0.borrow_mut();
        let in_common = begun.room.as_ref().map_or(usize::MAX, |room| room.get());
        let kept = &bytes[..bytes.len().min(begun.bytes_max - begun.bytes.len()).min(in_common)];
        begun.is_cut |= kept.len() < bytes.len();
        begun.bytes.extend_from_slice(kept);
        if let Some(room) = &begun.room {
            room.set(in_common - kept.len());
            begun.taken += kept.len();
        }
    }

    /// Reads to the end. A program that prints without end does not keep the loop from its other tasks.
    async fn read(&self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let (mut buffer, mut turn) = (vec![0; 4096], 0);
        while let Ok(read) = pipe.read(&mut buffer).await {
            if read == 0 {
                return;
            }
            self.add(&buffer[..read]);
            turn += read;
            if turn >= OUTPUT_TURN_BYTES {
                turn = 0;
                smol::future::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::clock::SystemClock;

    fn sh(line: &str, stdin: &str, time: Option<Duration>) -> Result<Output, ProgramError> {
        ran(shell(line, stdin, time))
    }

    #[test]
    fn programs_that_share_a_room_keep_no_more_together() {
        let room: Room = Rc::new(Cell::new(12));
        let (first, second) = (Kept::new(10, Some(room.clone())), Kept::new(10, Some(room.clone())));
        first.add(b"12345678");
        second.add(b"12345678");
        assert!(second.is_cut() && !first.is_cut());
        assert_eq!((first.take().len(), second.take().len(), room.get()), (8, 4, 0));
        drop(first);
        second.add(b"123");
        drop(second);
        assert_eq!(room.get(), 12);
        let line = "echo 123456789012345; echo error >&2";
        let output = ran(Program { room: Some(room.clone()), ..shell(line, "", None) }).unwrap();
        assert_eq!((output.stdout.len() + output.stderr.len(), room.get()), (12, 12));
    }

    fn ran(program: Program) -> Result<Output, ProgramError> {
        let clock: SharedClock = Rc::new(SystemClock);
        let blocking = Blocking::on_threads(clock.clone(), Path::new("/"));
        smol::block_on(run(&blocking, &clock, program))
    }

    fn shell(line: &str, stdin: &str, time: Option<Duration>) -> Program {
        Program {
            path: "/bin/sh".into(),
            arguments: ["-c", line].map(OsString::from).into(),
            environment: vec![("ANSWER", "42".into())],
            stdin: stdin.as_bytes().to_vec(),
            stdout_bytes_max: 100,
            stderr_bytes_max: 10,
            time,
            command: None,
            owner: None,
            outlives: false,
            room: None,
        }
    }

    #[test]
    fn outputs_exit_code_and_environment() {
        let output = sh("cat; echo $ANSWER; echo error >&2; exit 3", "in ", None).unwrap();
        assert_eq!((output.status.code(), &*output.stdout, output.is_cut), (Some(3), &b"in 42\n"[..], false));
        assert_eq!((&*output.stderr, &*output.last_error()), (&b"error\n"[..], "error"));
        let much = sh("head -c 3000000 /dev/zero", "", None).unwrap();
        assert_eq!((much.stdout.len(), much.is_cut), (100, true));
        // It does not read its input.
        assert!(sh("exit 0", &"x".repeat(1 << 20), None).unwrap().status.success());
    }

    #[test]
    fn a_program_that_outlives_its_caller_runs_to_its_end() {
        let done = std::env::temp_dir().join(format!("smolet-outlives-{}", std::process::id()));
        let _ = std::fs::remove_file(&done);
        for outlives in [false, true] {
            let clock: SharedClock = Rc::new(SystemClock);
            let blocking = Blocking::on_threads(clock.clone(), Path::new("/"));
            let line = format!("sleep 0.5; echo >{}", done.display());
            let program = Program { outlives, ..shell(&line, "", None) };
            let given_up = async {
                async_io::Timer::after(Duration::from_millis(200)).await;
            };
            smol::block_on(or(async { drop(run(&blocking, &clock, program).await) }, given_up));
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(done.exists(), outlives);
        }
        std::fs::remove_file(&done).unwrap();
    }

    #[test]
    fn a_slow_program_is_killed_with_its_children() {
        let begun = Instant::now();
        let slow = sh("sleep 300 & sleep 300", "", Some(Duration::from_millis(200)));
        assert!(matches!(slow, Err(ProgramError::TooSlow(..))), "{slow:?}");
        // A child that holds the pipes is not waited for.
        let left = sh("sleep 60 >&2 & echo $!", "", None).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30));
        let pid: i32 = String::from_utf8(left.stdout).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}
