//! Follows logs until their containers have exited. Blocking I/O: `smolet logs` does it in its own process, the node API in
//! steps on pool threads.
//!
//! inotify on the logs' directories triggers the reads; without inotify instances (the usual limit is 128 per user), logs
//! are polled every `LOG_POLL_PERIOD`. When a container exits, its log's writer closes the file: then the runtime is asked
//! whether the container runs, and also at intervals, in case there is no event.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::line::Sink;
use super::read::LogReader;
use crate::limits::{
    INOTIFY_BUFFER_BYTES, LOG_ASK_FIRST, LOG_ASK_MAX, LOG_CHUNK_BYTES, LOG_CHUNKS_AT_ONCE, LOG_DRAIN_TIME,
    LOG_POLL_PERIOD,
};

/// A log that is followed.
struct Followed {
    reader: LogReader,
    watch: Option<i32>,
    /// When its rotation was detected; it is read to its end once its writer has closed it.
    rotated: Option<Instant>,
    /// Nothing more is written to the rotated log: what is read of it from now on is its rest.
    drained: bool,
    /// The file that a writer closed last.
    closed: Option<OsString>,
    /// Time of the next query whether the container runs.
    ask_at: Instant,
    /// Interval to the query after that.
    ask_wait: Duration,
    /// The container has exited: the current content is the rest.
    ended: bool,
    /// The rest was shown too.
    over: bool,
}

/// Logs that are followed together.
pub struct Follower {
    /// `None`: no inotify instance was available.
    inotify: Option<OwnedFd>,
    logs: Vec<Followed>,
}

impl Follower {
    /// A follower without logs.
    ///
    /// # Errors
    /// inotify's errors, except for reached limits.
    pub fn new() -> io::Result<Self> {
        let inotify = match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(inotify) => Some(inotify),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { inotify, logs: Vec::new() })
    }

    /// A follower without inotify.
    #[cfg(test)]
    pub(super) const fn untold() -> Self {
        Self { inotify: None, logs: Vec::new() }
    }

    /// Time of the next poll without inotify.
    pub(crate) fn look_at(&self, at: Instant) -> Instant {
        if self.inotify.is_some() { at } else { at.min(Instant::now() + LOG_POLL_PERIOD) }
    }

    /// Watches the log's directory and then opens the log, so that no change is missed in between.
    ///
    /// # Errors
    /// inotify's, or those of `open`.
    pub fn add(&mut self, log: &Path, open: impl FnOnce() -> io::Result<LogReader>) -> io::Result<()> {
        let directory = log.parent().unwrap_or(log);
        let events = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        let watch = match self.inotify.as_ref().map(|inotify| inotify::add_watch(inotify, directory, events))
        {
            None => None,
            Some(Ok(watch)) => Some(watch),
            // The user's limit on watches is reached: handled as without inotify.
            Some(Err(Errno::NOSPC | Errno::NOMEM)) => {
                self.inotify = None;
                None
            }
            Some(Err(error)) => return Err(error.into()),
        };
        self.logs.push(Followed {
            reader: open()?,
            watch,
            rotated: None,
            drained: false,
            closed: None,
            // It may have exited since its status was read.
            ask_at: Instant::now() + LOG_ASK_FIRST,
            ask_wait: LOG_ASK_FIRST,
            ended: false,
            over: false,
        });
        Ok(())
    }

    /// Writes all output to the sink until every container has exited. `runs` is queried with the container's index in the
    /// order of adding.
    ///
    /// # Errors
    /// A log's or the sink's.
    pub fn run(mut self, sink: &mut impl Sink, mut runs: impl FnMut(usize) -> bool) -> io::Result<()> {
        let mut chunk = vec![0; LOG_CHUNK_BYTES];
        loop {
            let (mut more, mut wake_at) = (false, None::<Instant>);
            for (at, log) in self.logs.iter_mut().enumerate().filter(|(_, log)| !log.over) {
                match log.turn(LOG_CHUNKS_AT_ONCE, &mut chunk, sink, || runs(at))? {
                    NextAction::More => more = true,
                    NextAction::Until(at) => wake_at = Some(wake_at.map_or(at, |other| other.min(at))),
                    NextAction::Over => log.over = true,
                }
            }
            if self.logs.iter().all(|log| log.over) {
                return Ok(());
            }
            sink.flush()?;
            let wake_at = wake_at.filter(|_| !more).map(|at| self.look_at(at));
            let wait = wake_at.map(|at| at.saturating_duration_since(Instant::now()));
            self.wait(wait.unwrap_or_default())?;
        }
    }

    /// Waits for inotify and takes its events.
    fn wait(&mut self, wait: Duration) -> io::Result<()> {
        let Some(inotify) = &self.inotify else {
            std::thread::sleep(wait);
            return Ok(());
        };
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(inotify, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.take_events()
    }

    fn take_events(&mut self) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let mut buffer = [MaybeUninit::uninit(); INOTIFY_BUFFER_BYTES];
        let mut reader = Reader::new(inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let closed = event.events().contains(ReadFlags::CLOSE_WRITE);
                    let Some(name) = event.file_name().filter(|_| closed) else { continue };
                    let name = OsStr::from_bytes(name.to_bytes());
                    self.logs
                        .iter_mut()
                        .filter(|log| log.watch == Some(event.wd()))
                        .for_each(|log| log.closed(name));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// For a task that follows one log, a step at a time.
#[cfg(feature = "tls")]
impl Follower {
    /// Returns a descriptor that becomes readable on events: the task waits for it by itself. `None`: no inotify.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn readable(&self) -> io::Result<Option<OwnedFd>> {
        self.inotify.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Drains inotify's events, and continues reading the first log, at most one `chunk` at a time. `runs`: whether its
    /// container runs, as far as known; required when [`Follower::asks`].
    ///
    /// # Errors
    /// The log's or the sink's.
    pub(crate) fn step(
        &mut self,
        chunk: &mut [u8],
        sink: &mut impl Sink,
        runs: bool,
    ) -> io::Result<NextAction> {
        self.take_events()?;
        match self.logs.first_mut() {
            Some(log) => match log.turn(1, chunk, sink, || runs)? {
                NextAction::Until(at) => Ok(NextAction::Until(self.look_at(at))),
                turn => Ok(turn),
            },
            None => Ok(NextAction::Over),
        }
    }

    /// True when the next [`Follower::step`] needs to know whether the first log's container runs.
    pub(crate) fn asks(&self) -> bool {
        self.logs.first().is_some_and(|log| !log.ended && log.ask_at <= Instant::now())
    }
}

/// The next action for a log.
pub(crate) enum NextAction {
    /// There is more to read.
    More,
    /// Read again at that time, or at an event.
    Until(Instant),
    /// Nothing: the container has exited and everything was shown.
    Over,
}

impl Followed {
    fn turn(
        &mut self,
        chunks: usize,
        chunk: &mut [u8],
        sink: &mut impl Sink,
        runs: impl FnOnce() -> bool,
    ) -> io::Result<NextAction> {
        for _ in 0..chunks {
            if !self.reader.pump(chunk, sink)? {
                return self.at_end(runs);
            }
        }
        Ok(NextAction::More)
    }

    /// Handles the end of the current content.
    fn at_end(&mut self, runs: impl FnOnce() -> bool) -> io::Result<NextAction> {
        let now = Instant::now();
        let mut wake_at = self.ask_at;
        if self.reader.check_rotated()? {
            let patience = *self.rotated.get_or_insert(now) + LOG_DRAIN_TIME;
            // A writer writes its buffered output before it closes the file.
            let name = self.reader.name_now();
            let closed =
                self.closed.as_deref().is_some_and(|closed| name.as_deref().map(OsStr::new) == Some(closed));
            if !(closed || self.ended || now >= patience) && self.reader.may_grow()? {
                return Ok(NextAction::Until(patience));
            }
            // Between the end that was read and this moment, the writer may have written its last lines.
            if !std::mem::replace(&mut self.drained, true) {
                return Ok(NextAction::More);
            }
            if self.reader.next_file()? {
                self.rotated = None;
                self.drained = false;
                return Ok(NextAction::More);
            }
            // In the middle of another rotation, or removed.
            wake_at = wake_at.min(now + LOG_ASK_FIRST);
        } else {
            self.rotated = None;
            self.drained = false;
        }
        if self.ended {
            return Ok(NextAction::Over);
        }
        if now < self.ask_at {
            return Ok(NextAction::Until(wake_at));
        }
        if !runs() {
            self.ended = true;
            return Ok(NextAction::More);
        }
        self.ask_at = now + self.ask_wait;
        self.ask_wait = (self.ask_wait * 2).min(LOG_ASK_MAX);
        Ok(NextAction::Until(self.ask_at))
    }

    /// A writer has closed the file of that name. (So has the compression; its file is not a log of this name.)
    fn closed(&mut self, name: &OsStr) {
        if self.reader.log_name() == Some(name) {
            // The container exited, or the runtime did.
            self.ask_at = Instant::now();
            self.ask_wait = LOG_ASK_FIRST;
        } else {
            self.closed = Some(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Shown;
    use super::super::read::Part;
    use super::super::tests::{Both, Folder, Writer, assert_same};
    use super::*;

    /// A follower's thread may stand still between the end that it read and the look at the files.
    #[test]
    fn what_is_written_between_the_end_and_the_rotation_is_shown() {
        let folder = Folder::new("between");
        let mut writer = Writer::new(&folder.log());
        writer.lines(10);
        let mut follower = Follower::untold();
        let open = || LogReader::open(&folder.log(), Part { tail: None, follow: true }, Shown::default());
        follower.add(&folder.log(), open).unwrap();
        let log = &mut follower.logs[0];
        let (mut chunk, mut both) = (vec![0; LOG_CHUNK_BYTES], Both::default());
        for _ in 0..5 {
            while log.reader.pump(&mut chunk, &mut both).unwrap() {}
            log.rotated = Instant::now().checked_sub(LOG_DRAIN_TIME);
            writer.lines(3);
            writer.rotate(2);
            assert!(matches!(log.at_end(|| true).unwrap(), NextAction::More), "it is read once more");
            while matches!(log.turn(1, &mut chunk, &mut both, || true).unwrap(), NextAction::More) {}
        }
        writer.lines(5);
        let end = Instant::now() + LOG_DRAIN_TIME * 20;
        loop {
            assert!(Instant::now() < end, "it does not end");
            match log.turn(1, &mut chunk, &mut both, || false).unwrap() {
                NextAction::More => {}
                NextAction::Until(at) => std::thread::sleep(at.saturating_duration_since(Instant::now())),
                NextAction::Over => break,
            }
        }
        assert_same(both.out(), &writer.expected());
    }
}
