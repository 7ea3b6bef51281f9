//! The life of a monitor: container output into the log and to clients, clients' input to the container, requests, the exit.
//!
//! One loop of `poll(2)`; it sleeps for as long as nothing happens. Back-pressure: output is not read while a client does not
//! take what it has (at most `limits::ATTACH_STALL_TIME`, then the client goes), and input is not read while the container does not
//! take what it has. Once the container's first process has ended no client holds its output: its last words are in the log.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use rustix::time::{ClockId, clock_gettime};

use super::clients::{Clients, Input};
use super::control::{Answer, Request};
use super::create::{Ready, Stdios, other_side};
use super::line::{Lines, Stamp, Stream};
use super::log_file::LogFile;
use super::record::{
    Arguments, EXIT_CODE_UNKNOWN, Exit, Init, STAT_EXIT_CODE, STAT_START_TIME, is_exited, place, stat_field,
};
use super::{MonitorError, control, names, pid_of, timespec};
use crate::cgroup;
use crate::filesystem::read_start;
use crate::limits::{
    LOG_BATCH_BYTES, MONITOR_EXIT_PAUSE, MONITOR_EXIT_TRIES, MONITOR_IDLE_TIME, MONITOR_REAP_PERIOD,
    MONITOR_RECORD_BYTES_MAX, MONITOR_STARTER_PAUSE_MAX, OUTPUT_DRAIN_IDLE_TIME, OUTPUT_DRAIN_TIME,
    OUTPUT_READ_BYTES,
};
use crate::model::Wall;

/// A monitor at work.
pub(super) struct Monitor {
    directory: PathBuf,
    arguments: Arguments,
    init: Init,
    /// `None` once it has ended.
    init_fd: Option<OwnedFd>,
    is_own: bool,
    /// The container shares the node's process IDs: its orphans become children of this process.
    has_orphans: bool,
    /// When to look for the process that started the container, and the pause until the next look: crun leaves it, and it ends by itself, as
    /// a child of this one.
    starter: Option<(Instant, Duration)>,
    /// The cgroup's counter has had an OOM kill.
    oom_killed: bool,
    ended: Option<Ended>,
    outputs: [Option<Output>; 2],
    /// The way to the container's standard input: a FIFO, or the terminal's descriptor once more.
    stdin: Option<OwnedFd>,
    /// Input that the container has not yet taken; one frame of each client at most.
    typed: Vec<u8>,
    /// A pseudo-terminal, for its size.
    terminal: Option<OwnedFd>,
    /// The container's side of it, while the first process lives.
    held: Option<OwnedFd>,
    log: LogFile,
    clients: Clients,
    control: control::Listener,
    /// For what is read; empty while the container is quiet.
    buffer: Vec<u8>,
}

/// One stream of a container's output.
struct Output {
    stream: Stream,
    fd: OwnedFd,
    lines: Lines,
}

/// How the first process ended, while the rest of the output is read.
struct Ended {
    exit: Exit,
    at: Instant,
    last_output: Instant,
}

/// What a descriptor of the poll is.
#[derive(Clone, Copy)]
enum Source {
    Init,
    Output(usize),
    Stdin,
    Attach,
    Control,
    Client(usize),
}

/// What a monitor opens before the container starts: where that fails nothing of the container ran.
pub(super) struct Opened {
    log: LogFile,
    clients: Clients,
    control: control::Listener,
}

impl Opened {
    /// Opens the sockets.
    pub(super) fn open(directory: &Path, log: LogFile) -> Result<Self, MonitorError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| MonitorError::Io { path, source }
        };
        Ok(Self {
            log,
            clients: Clients::listen(directory).map_err(failed(&directory.join(names::ATTACH)))?,
            control: control::Listener::listen(directory).map_err(failed(&directory.join(names::CONTROL)))?,
        })
    }
}

impl Monitor {
    pub(super) fn new(
        directory: &Path,
        arguments: Arguments,
        ready: Ready,
        opened: Opened,
    ) -> Result<Self, MonitorError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| MonitorError::Io { path, source }
        };
        let Ready { init, init_fd, is_own, stdio } = ready;
        let Stdios { terminal, stdin, stdout, stderr } = stdio;
        let again = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let (stdin, stdout, stderr) = match &terminal {
            Some(_) if arguments.stdin => (again(&terminal), again(&terminal), Ok(None)),
            Some(_) => (Ok(None), again(&terminal), Ok(None)),
            None => (Ok(stdin), Ok(stdout), Ok(stderr)),
        };
        let output = |stream, fd: io::Result<Option<OwnedFd>>| {
            let fd = fd.map_err(failed(directory))?;
            Ok(fd.map(|fd| Output { stream, fd, lines: Lines::default() }))
        };
        let outputs = [output(Stream::Stdout, stdout)?, output(Stream::Stderr, stderr)?];
        let held = terminal.as_ref().filter(|_| init_fd.is_some()).and_then(other_side);
        let Opened { log, clients, control } = opened;
        let spaces = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let has_orphans = spaces("self") == spaces(&init.pid.to_string());
        Ok(Self {
            clients,
            control,
            directory: directory.to_owned(),
            arguments,
            init,
            init_fd,
            is_own,
            has_orphans,
            starter: is_own.then(|| (Instant::now() + MONITOR_IDLE_TIME, MONITOR_IDLE_TIME)),
            oom_killed: false,
            ended: None,
            outputs,
            stdin: stdin.map_err(failed(directory))?,
            typed: Vec::new(),
            terminal,
            held,
            log,
            buffer: Vec::new(),
        })
    }

    /// Works until the container has ended and its output is in the log.
    pub(super) fn attend(&mut self) -> Exit {
        if self.init_fd.is_none() {
            self.end();
            // Pipes that nobody has open any more say so to who reads, and nothing to who waits.
            for index in 0..if self.terminal.is_none() { self.outputs.len() } else { 0 } {
                self.read_output(index);
            }
        }
        loop {
            if let Some(ended) = &self.ended {
                let is_read = self.outputs.iter().all(Option::is_none);
                let is_late = ended.at.elapsed() >= OUTPUT_DRAIN_TIME
                    || ended.last_output.elapsed() >= OUTPUT_DRAIN_IDLE_TIME;
                if is_read && !self.clients.is_held() || is_late {
                    let exit = ended.exit;
                    self.read_rest();
                    return exit;
                }
            }
            self.turn();
        }
    }

    /// Waits for something to happen, and does what it asks for.
    fn turn(&mut self) {
        let is_held = self.clients.is_held() && self.ended.is_none();
        let (mut fds, mut sources) = (Vec::with_capacity(8), Vec::with_capacity(8));
        let mut add = |source, fd, flags| {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            sources.push(source);
        };
        if let Some(fd) = &self.init_fd {
            add(Source::Init, fd.as_fd(), PollFlags::IN);
        }
        for (index, output) in self.outputs.iter().enumerate().filter(|_| !is_held) {
            if let Some(output) = output {
                add(Source::Output(index), output.fd.as_fd(), PollFlags::IN);
            }
        }
        if let Some(fd) = self.stdin.as_ref().filter(|_| !self.typed.is_empty()) {
            add(Source::Stdin, fd.as_fd(), PollFlags::OUT);
        }
        add(Source::Attach, self.clients.listener(), PollFlags::IN);
        add(Source::Control, self.control.as_fd(), PollFlags::IN);
        let takes_input = self.typed.is_empty();
        for (index, fd, flags) in self.clients.waits(takes_input) {
            add(Source::Client(index), fd, flags);
        }
        let patience = self.patience();
        let ready = poll(&mut fds, patience.map(timespec).as_ref());
        let woken: Vec<(Source, PollFlags)> = match ready {
            Ok(1..) => fds.iter().zip(&sources).map(|(fd, source)| (*source, fd.revents())).collect(),
            Ok(_) | Err(_) => Vec::new(),
        };
        drop(fds);
        let woken = || woken.iter().filter(|(_, events)| !events.is_empty());
        let has_ended = woken().any(|(source, _)| matches!(source, Source::Init));
        if has_ended {
            // Before the output is written, which takes time: systemd removes the empty cgroup meanwhile, and the counter with it.
            self.look_for_oom_kill();
        }
        for (source, events) in woken() {
            match *source {
                Source::Init => {}
                Source::Output(index) => _ = self.read_output(index),
                Source::Stdin => self.pass_input(),
                Source::Attach => self.clients.accept(),
                Source::Control => self.answer(),
                Source::Client(index) => {
                    if let Some(input) = self.clients.serve(index, *events) {
                        self.take_input(input);
                    }
                }
            }
        }
        // After the output that came before the end.
        if has_ended {
            self.end();
        }
        if self.clients.remove_closed() && self.arguments.stdin_once {
            self.close_input();
        }
        let is_due = |(at, _): &mut (Instant, Duration)| *at <= Instant::now();
        if let Some((_, pause)) = self.starter.take_if(is_due) {
            let has_reaped = self.reap();
            let next = (pause * 2 <= MONITOR_STARTER_PAUSE_MAX && !has_reaped).then_some(pause * 2);
            self.starter = next.map(|pause| (Instant::now() + pause, pause));
        } else if self.has_orphans {
            self.reap();
        }
        if woken().next().is_none() {
            self.log.flush(now());
            self.log.shrink();
            self.buffer = Vec::new();
        }
    }

    /// How long nothing may happen; `None`: for ever.
    fn patience(&self) -> Option<Duration> {
        let drain = self.ended.as_ref().map(|ended| {
            let whole = OUTPUT_DRAIN_TIME.saturating_sub(ended.at.elapsed());
            whole.min(OUTPUT_DRAIN_IDLE_TIME.saturating_sub(ended.last_output.elapsed()))
        });
        let idle = (!self.buffer.is_empty()).then_some(MONITOR_IDLE_TIME);
        let starter = self.starter.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let reap = self.has_orphans.then_some(MONITOR_REAP_PERIOD);
        [drain, idle, reap, starter, self.clients.patience()].into_iter().flatten().min()
    }

    /// Reads what the outputs hold at this moment and no more, as others may go on writing: at most the capacity of a pipe. Nobody reads after
    /// that, so that a last line without an end becomes a part.
    fn read_rest(&mut self) {
        for index in 0..self.outputs.len() {
            let output = self.outputs.get(index).and_then(Option::as_ref);
            let mut left = output.map_or(0, |output| rustix::io::ioctl_fionread(&output.fd).unwrap_or(0));
            while left > 0 {
                let read = self.read_output(index);
                if read == 0 {
                    break;
                }
                left = left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
            }
            let output = self.outputs.get_mut(index).and_then(Option::as_mut);
            if let Some(output) = output.filter(|_| self.log.is_kept()) {
                output.lines.end(&Stamp::new(now(), output.stream), self.log.batch());
            }
        }
    }

    /// Reads once from a stream of the container; how many bytes.
    fn read_output(&mut self, index: usize) -> usize {
        let Some(output) = self.outputs.get_mut(index).and_then(Option::as_mut) else {
            return 0;
        };
        if self.buffer.is_empty() {
            self.buffer = vec![0; OUTPUT_READ_BYTES];
            if self.log.is_kept() {
                self.log.batch().reserve(2 * LOG_BATCH_BYTES);
            }
        }
        let read = match rustix::io::read(&output.fd, &mut self.buffer[..]) {
            Err(Errno::AGAIN | Errno::INTR) => return 0,
            // EIO: the last process of a terminal is gone.
            Ok(0) | Err(_) => 0,
            Ok(read) => read,
        };
        let bytes = self.buffer.get(..read).unwrap_or_default();
        let now = now();
        if self.log.is_kept() {
            let stamp = Stamp::new(now, output.stream);
            if bytes.is_empty() {
                output.lines.end(&stamp, self.log.batch());
            } else {
                // In pieces, so that many short lines make no large batch: of empty lines one of 2 KiB makes 100 KiB.
                for piece in bytes.chunks(OUTPUT_READ_BYTES / 8) {
                    output.lines.add(&stamp, piece, self.log.batch());
                    self.log.flush_full(now);
                }
            }
            self.log.flush(now);
        }
        if bytes.is_empty() {
            if let Some(slot) = self.outputs.get_mut(index) {
                *slot = None;
            }
            return 0;
        }
        self.clients.send(output.stream, bytes);
        if let Some(ended) = &mut self.ended {
            ended.last_output = Instant::now();
        }
        read
    }

    /// What a client sent.
    fn take_input(&mut self, input: Input) {
        match input {
            Input::Bytes(bytes) => {
                if self.stdin.is_some() {
                    // Another client's may wait: both were ready in the same turn.
                    self.typed.extend(bytes);
                    self.pass_input();
                }
            }
            Input::End => {
                if self.arguments.stdin_once {
                    self.close_input();
                }
            }
            Input::Resize { columns, rows } => self.resize(columns, rows),
        }
    }

    /// Writes what was typed, as far as the container takes it.
    fn pass_input(&mut self) {
        let Some(stdin) = &self.stdin else {
            self.typed.clear();
            return;
        };
        match rustix::io::write(stdin, &self.typed) {
            Ok(written) => {
                self.typed.drain(..written);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The container has closed its end.
            Err(_) => {
                self.typed.clear();
                self.stdin = None;
            }
        }
        if self.typed.is_empty() {
            self.typed = Vec::new();
        }
    }

    /// Closes standard input once the container has what was typed. A terminal stays: its end is the container's decision.
    fn close_input(&mut self) {
        if self.terminal.is_none() {
            // What the container does not take now it will not get: its FIFO has 64 KiB.
            self.pass_input();
            self.stdin = None;
        }
    }

    fn resize(&self, columns: u16, rows: u16) {
        if let Some(terminal) = &self.terminal {
            let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // Its other end is gone: so is who would want to know.
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }

    /// One request of the agent.
    fn answer(&mut self) {
        let Some((socket, request)) = self.control.next() else {
            return;
        };
        let answer = match request {
            Request::ReopenLog => {
                self.log.flush(now());
                match self.log.reopen() {
                    Ok(()) => Answer::Done,
                    Err(error) => Answer::Failed(error.to_string()),
                }
            }
            Request::Resize { columns, rows } => {
                self.resize(columns, rows);
                Answer::Done
            }
            Request::Unknown => Answer::Failed("unknown request".to_owned()),
        };
        control::reply(&socket, &answer);
    }

    /// The container's first process has ended.
    fn end(&mut self) {
        if self.is_own {
            self.reap();
        }
        // Another one's child: the handler has a subreaper of its own, or the monitor before this one was killed.
        if self.ended.is_none() {
            self.record_end(foreign_exit_code(&self.init));
        }
    }

    /// Takes the statuses of all children that have ended, that of the first process among them. True: another one was among them.
    fn reap(&mut self) -> bool {
        let init = pid_of(self.init.pid);
        let mut has_other = false;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if Some(pid) == init && self.is_own {
                self.record_end(
                    status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal)),
                );
            } else {
                has_other = true;
            }
        }
        has_other
    }

    /// Keeps what the counter says: the file may be gone at the next look.
    fn look_for_oom_kill(&mut self) {
        self.oom_killed |= self.arguments.oom_events.as_deref().is_some_and(has_oom_kill);
    }

    fn record_end(&mut self, code: Option<i32>) {
        self.look_for_oom_kill();
        let code = code.unwrap_or(EXIT_CODE_UNKNOWN);
        let exit = Exit { code, finished_at: now().0, oom_killed: self.oom_killed };
        let at = Instant::now();
        (self.init_fd, self.held) = (None, None);
        self.ended = Some(Ended { exit, at, last_output: at });
        self.kill_rest();
    }

    /// Without a PID namespace of its own the container's other processes live on, and may hold its output. They end with the first one, as with
    /// containerd (`shouldKillAllOnExit`); with one the kernel has ended them.
    fn kill_rest(&self) {
        let cgroup = self.arguments.oom_events.as_deref().and_then(Path::parent);
        // Its last part is the container's id: nothing else is killed.
        let is_own = |cgroup: &&Path| cgroup.to_string_lossy().contains(&self.arguments.id);
        if let Some(cgroup) = cgroup.filter(is_own) {
            cgroup::kill(cgroup);
        }
    }

    /// Writes the exit; clients and sockets go first, so that who sees the exit finds nothing else.
    pub(super) fn finish(&mut self, exit: Exit) {
        self.log.flush(now());
        self.clients.end();
        let remove = |name: &str| drop(std::fs::remove_file(self.directory.join(name)));
        for name in [names::ATTACH, names::CONTROL, names::STDIN, names::STDOUT, names::STDERR] {
            remove(name);
        }
        let _ = std::fs::remove_dir(self.directory.join(names::IO));
        let Ok(text) = serde_json::to_vec(&exit) else { return };
        for _ in 0..MONITOR_EXIT_TRIES {
            match place(&self.directory, names::EXIT, &text) {
                // The agent sees the rename at once; a power cut before the sync leaves a container whose exit is unknown.
                Ok(file) => {
                    let _ = file.sync_all();
                    let _ = File::open(&self.directory).and_then(|directory| directory.sync_all());
                    return;
                }
                // Nobody else knows the exit: it waits for space.
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    std::thread::sleep(MONITOR_EXIT_PAUSE);
                }
                Err(_) => return,
            }
        }
    }
}

/// Of a process that another one reaps: until then its status stands in `/proc`.
fn foreign_exit_code(init: &Init) -> Option<i32> {
    let stat = read_start(Path::new(&format!("/proc/{}/stat", init.pid)), MONITOR_RECORD_BYTES_MAX).ok()?;
    exit_code_in(&stat, init)
}

/// The exit code in the text of `/proc/PID/stat`, if that is still this process, and it has exited. Another one may have its ID by
/// now, and the field of a process that runs is 0. PURE.
fn exit_code_in(stat: &[u8], init: &Init) -> Option<i32> {
    if stat_field(stat, STAT_START_TIME) != Some(init.started) || !is_exited(stat) {
        return None;
    }
    let status = i32::try_from(stat_field(stat, STAT_EXIT_CODE)?).ok()?;
    // As wait(2) has it: a signal, or the code in the second byte.
    Some(match status & 0x7f {
        0 => status >> 8 & 0xff,
        signal => 128 + signal,
    })
}

/// Whether the cgroup's counter says that a process was killed for want of memory.
fn has_oom_kill(events: &Path) -> bool {
    let text = read_start(events, MONITOR_RECORD_BYTES_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
    count.is_some_and(|count| count > 0)
}

fn now() -> Wall {
    let now = clock_gettime(ClockId::Realtime);
    Wall(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_that_of_the_container_and_of_no_later_process() {
        let init = Init { pid: 17, started: 1000, boot: "b".to_owned() };
        let stat = |state: char, started: u64, status: u64| {
            let between: Vec<String> = (4..22).map(|field| field.to_string()).collect();
            let after: Vec<String> = (23..52).map(|field| field.to_string()).collect();
            format!("17 (a) b) {state} {} {started} {} {status}\n", between.join(" "), after.join(" "))
        };
        for (state, started, status, code) in [
            ('Z', 1000, 3 << 8, Some(3)),
            ('X', 1000, 3 << 8, Some(3)),
            ('Z', 1000, 9, Some(137)),
            ('Z', 1000, 0, Some(0)),
            // The number is another process's: that of a living one has 0 there.
            ('S', 2000, 0, None),
            ('Z', 2000, 3 << 8, None),
            // It runs.
            ('S', 1000, 0, None),
        ] {
            let text = stat(state, started, status);
            assert_eq!(exit_code_in(text.as_bytes(), &init), code, "{text}");
        }
        assert_eq!(exit_code_in(b"", &init), None);
    }
}
