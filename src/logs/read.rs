//! Reads a container's log, its end or all of it, and follows it across rotations. I/O, blocking, in a process of its own.
//!
//! ```text
//!     N.log.STAMP, the newest (not compressed yet) ─► N.log ─► (follow) what comes
//!                                                      └─ rotated: read to its end ─► the next one, compressed or not ─► N.log
//! ```
//!
//! The kubelet reads `N.log` alone, so that right after a rotation there is nothing to see.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::files::{self, Forms, Rotated, Stamp};
use super::line::{Lines, Shown, Sink, head};
use crate::filesystem::open_regular;
use crate::limits::{LOG_CHUNK_BYTES, LOG_HEAD_BYTES_MAX, LOG_LAST_WORDS, LOG_OPEN_PAUSE, LOG_OPEN_TRIES};

/// How much of a log is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Only so many lines before the end.
    pub tail: Option<u64>,
    /// What comes later too; without it, what is there now.
    pub follow: bool,
}

/// Where the bytes come from.
enum Source {
    Plain(File),
    Compressed(Box<MultiGzDecoder<File>>),
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Compressed(file) => file.read(buffer),
        }
    }
}

/// A file, whatever its name is now.
type Inode = (u64, u64);

fn inode(file: &File) -> io::Result<Inode> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}

/// One log that is read.
pub struct LogReader {
    log: PathBuf,
    source: Source,
    /// The source was the log itself, or is rotated by now.
    own: Option<Inode>,
    /// The source was opened as this rotated log.
    stamp: Option<Stamp>,
    /// What follows the source, opened together with it.
    behind: Option<File>,
    /// Bytes of the log itself that are wanted; `None` = all that come.
    left: Option<u64>,
    lines: Lines,
}

impl LogReader {
    /// Opens the log, and goes to where the wanted part begins.
    ///
    /// # Errors
    /// It is not there or cannot be read.
    pub fn open(log: &Path, part: Part, shown: Shown) -> io::Result<Self> {
        let Opened { current, older } = Opened::new(log)?;
        let length = current.metadata()?.len();
        let (mut from, mut older_from) = (0, Some(0));
        if let Some(lines) = part.tail {
            let (start, found) = tail_start(&current, length, lines)?;
            from = start;
            older_from = match &older {
                Some((older, _)) if found < lines => {
                    Some(tail_start(older, older.metadata()?.len(), lines - found)?.0)
                }
                _ => None,
            };
        }
        let own = Some(inode(&current)?);
        let left = (!part.follow).then(|| length.saturating_sub(from));
        let mut reader = Self {
            log: log.to_owned(),
            source: Source::Plain(current.try_clone()?),
            own,
            stamp: None,
            behind: None,
            left,
            lines: Lines::new(shown),
        };
        match (older, older_from) {
            (Some((mut older, stamp)), Some(start)) => {
                older.seek(SeekFrom::Start(start))?;
                reader.source = Source::Plain(older);
                reader.own = None;
                reader.stamp = Some(stamp);
                // Who follows goes on with whatever is the next one by then.
                reader.behind = (!part.follow).then_some(current);
            }
            _ => reader.seek(from)?,
        }
        Ok(reader)
    }

    fn seek(&mut self, to: u64) -> io::Result<()> {
        if let Source::Plain(file) = &mut self.source {
            file.seek(SeekFrom::Start(to))?;
        }
        Ok(())
    }

    /// Hands the next piece to the sink; false at the end of what is there.
    ///
    /// # Errors
    /// The file's or the sink's.
    pub fn pump(&mut self, chunk: &mut [u8], sink: &mut impl Sink) -> io::Result<bool> {
        let wanted = match self.left.filter(|_| self.own.is_some()) {
            Some(left) => chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX)),
            None => chunk.len(),
        };
        let bytes = match self.source.read(&mut chunk[..wanted]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            bytes => bytes?,
        };
        if bytes > 0 {
            if let Some(left) = self.left.as_mut().filter(|_| self.own.is_some()) {
                *left -= bytes as u64;
            }
            self.lines.push(&chunk[..bytes], sink)?;
            return Ok(true);
        }
        let Some(current) = self.behind.take() else { return Ok(false) };
        self.own = Some(inode(&current)?);
        self.take(Source::Plain(current), None);
        Ok(true)
    }

    fn take(&mut self, source: Source, stamp: Option<Stamp>) {
        self.source = source;
        self.stamp = stamp;
        self.lines.next_file();
    }

    /// Reads to the end of what is there.
    ///
    /// # Errors
    /// As [`LogReader::pump`].
    pub fn read(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let mut chunk = vec![0; LOG_CHUNK_BYTES];
        while self.pump(&mut chunk, sink)? {}
        Ok(())
    }

    /// Its writer may still have the rotated log that was read to its end: it was the log a moment ago.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn may_grow(&self) -> io::Result<bool> {
        let Source::Plain(file) = &self.source else { return Ok(false) };
        let Some(stamp) = &self.stamp else { return Ok(true) };
        let written = file.metadata()?.modified()?;
        // Written in the future, after the clock was set back: it counts as young, which costs a moment.
        let is_young = written.elapsed().map_or(true, |age| age < LOG_LAST_WORDS);
        Ok(is_young && Rotated::of(&self.log)?.logs.keys().next_back() == Some(stamp))
    }

    /// The log's name in its directory.
    pub(super) fn log_name(&self) -> Option<&OsStr> {
        self.log.file_name()
    }

    /// Whether the log's name belongs to another file now than the one that was read to its end.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn is_rotated(&mut self) -> io::Result<bool> {
        let Some(own) = self.own else { return Ok(true) };
        match fs::symlink_metadata(&self.log) {
            // Between the two steps of a rotation, or removed.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
            Ok(there) => {
                let same = (there.dev(), there.ino()) == own;
                if same
                    && let Source::Plain(file) = &mut self.source
                    && there.len() < file.stream_position()?
                {
                    // Emptied by somebody else's rotation.
                    file.seek(SeekFrom::Start(0))?;
                    self.lines.next_file();
                }
                Ok(!same)
            }
        }
    }

    /// The name that the file has now.
    pub(super) fn name_now(&self) -> Option<String> {
        let Source::Plain(file) = &self.source else { return None };
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let name = path.file_name()?.to_str()?;
        Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
    }

    /// Goes on with the file behind the one that was read to its end: the next rotated one, or the log. False when it is not
    /// there (yet).
    ///
    /// # Errors
    /// The file's.
    pub(super) fn next_file(&mut self) -> io::Result<bool> {
        let log_name = self.log.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let renamed = || self.name_now().and_then(|name| files::stamp_of(&name, log_name));
        let stamp = self.stamp.clone().or_else(renamed);
        for _ in 0..LOG_OPEN_TRIES {
            let rotated = Rotated::of(&self.log)?;
            let opened = match next_of(&rotated, stamp.as_ref()) {
                Some((stamp, forms)) if forms.plain => {
                    open_regular(&rotated.plain(stamp)).map(|file| (Source::Plain(file), Some(stamp.clone())))
                }
                Some((stamp, _)) => open_regular(&rotated.compressed(stamp)).map(|file| {
                    (Source::Compressed(Box::new(MultiGzDecoder::new(file))), Some(stamp.clone()))
                }),
                None => open_regular(&self.log).map(|file| (Source::Plain(file), None)),
            };
            match opened {
                // Compressed, removed or rotated since the look.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                // Rotated since the look, and perhaps another one made before it was opened.
                Ok((_, None)) if next_of(&Rotated::of(&self.log)?, stamp.as_ref()).is_some() => {}
                Ok((source, stamp)) => {
                    self.own = match (&source, &stamp) {
                        (Source::Plain(file), None) => Some(inode(file)?),
                        _ => None,
                    };
                    self.take(source, stamp);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The rotated log behind that one.
fn next_of<'r>(rotated: &'r Rotated, stamp: Option<&Stamp>) -> Option<(&'r Stamp, &'r Forms)> {
    stamp.and_then(|stamp| rotated.logs.iter().find(|(other, _)| *other > stamp))
}

/// The log and the newest of the rotated ones, when it is not compressed: as they are at one moment.
struct Opened {
    current: File,
    older: Option<(File, Stamp)>,
}

impl Opened {
    fn new(log: &Path) -> io::Result<Self> {
        for _ in 0..LOG_OPEN_TRIES {
            match Self::at_once(log) {
                Ok(Some(opened)) => return Ok(opened),
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                // In the middle of a rotation.
                Ok(None) | Err(_) => std::thread::sleep(LOG_OPEN_PAUSE),
            }
        }
        Ok(Self { current: open_regular(log)?, older: None })
    }

    /// Nothing when the log was rotated meanwhile.
    fn at_once(log: &Path) -> io::Result<Option<Self>> {
        let current = open_regular(log)?;
        let rotated = Rotated::of(log)?;
        let newest = rotated.logs.last_key_value().filter(|(_, forms)| forms.plain).map(|(stamp, _)| stamp);
        let older = newest.map(|stamp| open_regular(&rotated.plain(stamp)).map(|file| (file, stamp.clone())));
        let older = older.transpose()?;
        let meta = fs::symlink_metadata(log)?;
        let same = (meta.dev(), meta.ino()) == inode(&current)?;
        Ok(same.then_some(Self { current, older }))
    }
}

/// Where the last `lines` whole lines of the first `length` bytes begin, and how many there are. A line in parts counts once,
/// where it ends; what is behind the last line's end comes on top.
fn tail_start(file: &File, length: u64, lines: u64) -> io::Result<(u64, u64)> {
    let is_whole = |start: u64| -> io::Result<bool> {
        let mut text = [0; LOG_HEAD_BYTES_MAX];
        let bytes = file.read_at(&mut text, start)?;
        Ok(head(&text[..bytes]).is_some_and(|head| !head.partial))
    };
    let mut block = vec![0; LOG_CHUNK_BYTES];
    // Behind the end of the line whose begin comes next.
    let mut end = None;
    let (mut found, mut right) = (0, length);
    while right > 0 {
        let left = right.saturating_sub(block.len() as u64);
        let bytes = usize::try_from(right - left).unwrap_or(block.len());
        file.read_exact_at(&mut block[..bytes], left)?;
        // A line begins behind each line's end, and at the file's begin.
        let ends = (0..bytes).rev().filter(|at| block[*at] == b'\n').map(|at| left + at as u64 + 1);
        for start in ends.chain((left == 0).then_some(0)) {
            if let Some(end) = end.replace(start)
                && is_whole(start)?
            {
                if found == lines {
                    return Ok((end, found));
                }
                found += 1;
            }
        }
        right = left;
    }
    Ok((0, found))
}
