//! Reads a container's log, its tail or all of it, and follows it across rotations. Blocking I/O, in its own process.
//!
//! ```text
//! |     N.log.STAMP, the newest (not compressed yet) ─► N.log ─► (follow) new lines
//! |                                                      └─ rotated: read to its end ─► the next one, compressed or not ─► N.log
//! ```
//!
//! The kubelet reads only `N.log`, which is empty right after a rotation.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::files::{self, Forms, Rotated, Stamp};
use super::gzip::GzipReader;
use super::line::{Lines, Shown, Sink, head};
use crate::filesystem::open_regular;
use crate::limits::{LOG_CHUNK_BYTES, LOG_DRAIN_TIME, LOG_HEAD_BYTES_MAX, LOG_OPEN_PAUSE, LOG_OPEN_TRIES};

/// The part of a log to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Only that many last lines.
    pub tail: Option<u64>,
    /// New lines too; otherwise only the current content.
    pub follow: bool,
}

/// Source of the bytes.
enum Source {
    Plain(File),
    Compressed(Box<GzipReader<File>>),
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.read(buffer),
            Self::Compressed(file) => file.read(buffer),
        }
    }
}

/// Device and inode: a file, whatever its name is now.
type Inode = (u64, u64);

fn inode(file: &File) -> io::Result<Inode> {
    file.metadata().map(|meta| (meta.dev(), meta.ino()))
}

/// Reader of one log.
pub struct LogReader {
    log: PathBuf,
    source: Source,
    /// The source was opened as the current log; it may be rotated by now.
    own: Option<Inode>,
    /// The source was opened as this rotated log.
    stamp: Option<Stamp>,
    /// The file after the source, opened together with it.
    behind: Option<File>,
    /// Bytes to read of the current log; `None` = no limit.
    left: Option<u64>,
    lines: Lines,
}

impl LogReader {
    /// Opens the log and seeks to the beginning of the requested part.
    ///
    /// # Errors
    /// It does not exist or cannot be read.
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
                // A follower continues with whatever file is next by then.
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

    /// Reads the next piece into the sink; false at the end of the current content.
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

    /// Reads to the end of the current content.
    ///
    /// # Errors
    /// As [`LogReader::pump`].
    pub fn read(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let mut chunk = vec![0; LOG_CHUNK_BYTES];
        while self.pump(&mut chunk, sink)? {}
        Ok(())
    }

    /// True when the rotated log that was read to its end may still get lines: it was the current log a moment ago.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn may_grow(&self) -> io::Result<bool> {
        let Source::Plain(file) = &self.source else { return Ok(false) };
        let Some(stamp) = &self.stamp else { return Ok(true) };
        let written = file.metadata()?.modified()?;
        // Modified in the future, after the clock was set back: counts as young, which costs a moment.
        let is_young = written.elapsed().map_or(true, |age| age < LOG_DRAIN_TIME);
        Ok(is_young && Rotated::of(&self.log)?.logs.keys().next_back() == Some(stamp))
    }

    /// The log's name in its directory.
    pub(super) fn log_name(&self) -> Option<&OsStr> {
        self.log.file_name()
    }

    /// True when the log's name now belongs to another file than the one that was read to its end.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn check_rotated(&mut self) -> io::Result<bool> {
        let Some(own) = self.own else { return Ok(true) };
        match fs::symlink_metadata(&self.log) {
            // In the middle of a rotation, or removed.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
            Ok(there) => {
                let same = (there.dev(), there.ino()) == own;
                if same
                    && let Source::Plain(file) = &mut self.source
                    && there.len() < file.stream_position()?
                {
                    // Truncated by another program's rotation.
                    file.seek(SeekFrom::Start(0))?;
                    self.lines.next_file();
                }
                Ok(!same)
            }
        }
    }

    /// The file's current name.
    pub(super) fn name_now(&self) -> Option<String> {
        let Source::Plain(file) = &self.source else { return None };
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let name = path.file_name()?.to_str()?;
        Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
    }

    /// Continues with the file after the one that was read to its end: the next rotated one, or the log. False when it does
    /// not exist (yet).
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
                Some((stamp, _)) => open_regular(&rotated.compressed(stamp))
                    .map(|file| (Source::Compressed(Box::new(GzipReader::new(file))), Some(stamp.clone()))),
                None => open_regular(&self.log).map(|file| (Source::Plain(file), None)),
            };
            match opened {
                // Compressed, removed or rotated since the directory was read.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                // Rotated since the directory was read, perhaps twice before the file was opened.
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

/// The rotated log after that stamp.
fn next_of<'r>(rotated: &'r Rotated, stamp: Option<&Stamp>) -> Option<(&'r Stamp, &'r Forms)> {
    stamp.and_then(|stamp| rotated.logs.iter().find(|(other, _)| *other > stamp))
}

/// The log and the newest rotated one, if uncompressed, at one point in time.
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

    /// `None` when the log was rotated meanwhile.
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

/// Offset of the last `lines` complete lines in the first `length` bytes, and their number. A line in several parts counts
/// once, where it ends; an incomplete last line comes on top.
fn tail_start(file: &File, length: u64, lines: u64) -> io::Result<(u64, u64)> {
    let is_whole = |start: u64| -> io::Result<bool> {
        let mut text = [0; LOG_HEAD_BYTES_MAX];
        let bytes = file.read_at(&mut text, start)?;
        Ok(head(&text[..bytes]).is_some_and(|head| !head.partial))
    };
    let mut block = vec![0; LOG_CHUNK_BYTES];
    // End of the line whose beginning is searched.
    let mut end = None;
    let (mut found, mut right) = (0, length);
    while right > 0 {
        let left = right.saturating_sub(block.len() as u64);
        let bytes = usize::try_from(right - left).unwrap_or(block.len());
        file.read_exact_at(&mut block[..bytes], left)?;
        // A line begins after each line's end, and at the file's beginning.
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
