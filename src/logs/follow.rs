//! Follows logs until their containers have ended. I/O, blocking, in a process of its own; the node's API follows one step by
//! step, each on a thread.
//!
//! inotify on the logs' directories says when to look again; where the kernel has none left to give (128 for each user, as a
//! rule), logs are looked at every `LOG_LOOK_UNTOLD`. A container that ends takes its log's writer with it, which is
//! when somebody is asked whether it runs; and now and then, should nothing tell.

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
    INOTIFY_BUFFER_BYTES, LOG_ASK_FIRST, LOG_ASK_MAX, LOG_CHUNK_BYTES, LOG_CHUNKS_AT_ONCE, LOG_LAST_WORDS,
    LOG_LOOK_UNTOLD,
};

/// A log that is followed.
struct Followed {
    reader: LogReader,
    watch: Option<i32>,
    /// It was seen rotated at that instant, and is read to its end when its writer has let go of it.
    rotated: Option<Instant>,
    /// The file that a writer has let go of last.
    closed: Option<OsString>,
    /// When it is asked next whether the container runs.
    ask_at: Instant,
    /// The wait after that.
    ask_wait: Duration,
    /// The container has ended: what is there is the rest.
    ended: bool,
    /// That was shown too.
    over: bool,
}

/// Logs that are followed together.
pub struct Follower {
    /// `None`: there was none left.
    inotify: Option<OwnedFd>,
    logs: Vec<Followed>,
}

impl Follower {
    /// Follows nothing yet.
    ///
    /// # Errors
    /// inotify's, but for that it is used up.
    pub fn new() -> io::Result<Self> {
        let inotify = match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(inotify) => Some(inotify),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { inotify, logs: Vec::new() })
    }

    /// One that nothing tells of changes.
    #[cfg(test)]
    pub(super) const fn untold() -> Self {
        Self { inotify: None, logs: Vec::new() }
    }

    /// When to look again where nothing tells of a change.
    pub(crate) fn look_at(&self, at: Instant) -> Instant {
        if self.inotify.is_some() { at } else { at.min(Instant::now() + LOG_LOOK_UNTOLD) }
    }

    /// Watches the log's directory and opens the log after that, so that nothing falls between.
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
            // No more watches for this user: as if there were no inotify.
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
            closed: None,
            // It may have ended since it was looked up.
            ask_at: Instant::now() + LOG_ASK_FIRST,
            ask_wait: LOG_ASK_FIRST,
            ended: false,
            over: false,
        });
        Ok(())
    }

    /// Hands all that comes to the sink, until every container has ended, of which `runs` is asked by its place in the order
    /// of adding.
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
    /// It is readable when there is something to do: the task waits for it by itself. `None`: nothing tells.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn readable(&self) -> io::Result<Option<OwnedFd>> {
        self.inotify.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Takes inotify's events, and reads on in the first log, of which so many bytes at once fit into `chunk`. `runs`: its
    /// container does, as far as anybody knows; asked for when [`Follower::asks`].
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

    /// The next [`Follower::step`] wants to know whether the first log's container runs.
    pub(crate) fn asks(&self) -> bool {
        self.logs.first().is_some_and(|log| !log.ended && log.ask_at <= Instant::now())
    }
}

/// What a log needs next.
pub(crate) enum NextAction {
    /// There is more to read.
    More,
    /// Another look, then or when something happens.
    Until(Instant),
    /// Nothing: it has ended.
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

    /// At the end of what is there.
    fn at_end(&mut self, runs: impl FnOnce() -> bool) -> io::Result<NextAction> {
        let now = Instant::now();
        let mut wake_at = self.ask_at;
        if self.reader.is_rotated()? {
            let patience = *self.rotated.get_or_insert(now) + LOG_LAST_WORDS;
            // What its writer had still in hand comes before it lets go of the file.
            let name = self.reader.name_now();
            let closed =
                self.closed.as_deref().is_some_and(|closed| name.as_deref().map(OsStr::new) == Some(closed));
            if !(closed || self.ended || now >= patience) && self.reader.may_grow()? {
                return Ok(NextAction::Until(patience));
            }
            if self.reader.next_file()? {
                self.rotated = None;
                return Ok(NextAction::More);
            }
            // Between the two steps of another rotation, or removed.
            wake_at = wake_at.min(now + LOG_ASK_FIRST);
        } else {
            self.rotated = None;
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

    /// A writer has let go of the file of that name. (So has who compressed one; that is no log of this name.)
    fn closed(&mut self, name: &OsStr) {
        if self.reader.log_name() == Some(name) {
            // The container has ended, or the runtime.
            self.ask_at = Instant::now();
            self.ask_wait = LOG_ASK_FIRST;
        } else {
            self.closed = Some(name.to_owned());
        }
    }
}
