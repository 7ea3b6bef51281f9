//! Follows logs until their containers have ended. I/O, blocking, in a process of its own.
//!
//! inotify on the logs' directories says when to look again. A container that ends takes its log's writer with it, which is
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

use super::line::Sink;
use super::read::LogReader;
use crate::limits::{
    INOTIFY_BUFFER_BYTES, LOG_ASK_FIRST, LOG_ASK_MAX, LOG_CHUNK_BYTES, LOG_CHUNKS_AT_ONCE, LOG_LAST_WORDS,
};

/// A log that is followed.
struct Followed {
    reader: LogReader,
    watch: i32,
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
    inotify: OwnedFd,
    logs: Vec<Followed>,
}

impl Follower {
    /// Follows nothing yet.
    ///
    /// # Errors
    /// inotify is used up.
    pub fn new() -> io::Result<Self> {
        Ok(Self { inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?, logs: Vec::new() })
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
        let watch = inotify::add_watch(&self.inotify, directory, events)?;
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
                match log.turn(&mut chunk, sink, || runs(at))? {
                    Turn::More => more = true,
                    Turn::Until(at) => wake_at = Some(wake_at.map_or(at, |other| other.min(at))),
                    Turn::Over => log.over = true,
                }
            }
            if self.logs.iter().all(|log| log.over) {
                return Ok(());
            }
            sink.flush()?;
            let wait = wake_at.filter(|_| !more).map(|at| at.saturating_duration_since(Instant::now()));
            self.wait(wait.unwrap_or_default())?;
        }
    }

    /// Waits for inotify and takes its events.
    fn wait(&mut self, wait: Duration) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [MaybeUninit::uninit(); INOTIFY_BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let closed = event.events().contains(ReadFlags::CLOSE_WRITE);
                    let Some(name) = event.file_name().filter(|_| closed) else { continue };
                    let name = OsStr::from_bytes(name.to_bytes());
                    self.logs
                        .iter_mut()
                        .filter(|log| log.watch == event.wd())
                        .for_each(|log| log.closed(name));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What a log needs next.
enum Turn {
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
        chunk: &mut [u8],
        sink: &mut impl Sink,
        runs: impl FnOnce() -> bool,
    ) -> io::Result<Turn> {
        for _ in 0..LOG_CHUNKS_AT_ONCE {
            if !self.reader.pump(chunk, sink)? {
                return self.at_end(runs);
            }
        }
        Ok(Turn::More)
    }

    /// At the end of what is there.
    fn at_end(&mut self, runs: impl FnOnce() -> bool) -> io::Result<Turn> {
        let now = Instant::now();
        let mut wake_at = self.ask_at;
        if self.reader.is_rotated()? {
            let patience = *self.rotated.get_or_insert(now) + LOG_LAST_WORDS;
            // What its writer had still in hand comes before it lets go of the file.
            let name = self.reader.name_now();
            let closed =
                self.closed.as_deref().is_some_and(|closed| name.as_deref().map(OsStr::new) == Some(closed));
            if !(closed || self.ended || now >= patience) && self.reader.may_grow()? {
                return Ok(Turn::Until(patience));
            }
            if self.reader.next_file()? {
                self.rotated = None;
                return Ok(Turn::More);
            }
            // Between the two steps of another rotation, or removed.
            wake_at = wake_at.min(now + LOG_ASK_FIRST);
        } else {
            self.rotated = None;
        }
        if self.ended {
            return Ok(Turn::Over);
        }
        if now < self.ask_at {
            return Ok(Turn::Until(wake_at));
        }
        if !runs() {
            self.ended = true;
            return Ok(Turn::More);
        }
        self.ask_at = now + self.ask_wait;
        self.ask_wait = (self.ask_wait * 2).min(LOG_ASK_MAX);
        Ok(Turn::Until(self.ask_at))
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
