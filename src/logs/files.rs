//! The files of a container's log: `N.log`, which the runtime writes, and rotated files: `N.log.STAMP`, the older ones
//! compressed as `N.log.STAMP.gz` (kubelet `container_log_manager.go`). Blocking I/O.
//!
//! Differs from the kubelet: stamps are in UTC and each is later than the previous one, whatever the clock says. So their
//! order is the order of the logs, and two rotations within a second have two names. Other files in the directory are left
//! alone.
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags};

use super::gzip::GzipWriter;
use crate::filesystem::open_regular;
use crate::limits::{LOG_CHUNK_BYTES, LOG_NAMES_READ_MAX};
use crate::model::SortedMap;
use crate::model::Wall;

/// Suffix of a compressed log.
const COMPRESSED: &str = ".gz";
/// Suffix of an incomplete compression.
const UNFINISHED: &str = ".tmp";

/// Rotation time in a log's name: `20260102-030405`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(Box<str>);

impl Stamp {
    /// PURE: parses a stamp.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |(at, byte): (usize, u8)| if at == 8 { byte == b'-' } else { byte.is_ascii_digit() };
        (text.len() == 15 && text.bytes().enumerate().all(fits)).then(|| Self(text.into()))
    }

    /// PURE: the stamp of the second of `now`.
    fn of(now: Wall) -> Self {
        // `2026-01-02T03:04:05Z`
        let digits: String = now.to_string().chars().filter(char::is_ascii_digit).collect();
        let (day, time) = digits.split_at(digits.len().min(8));
        Self(format!("{day}-{time}").into())
    }

    /// PURE: one second later; the last possible second stays.
    fn next(&self) -> Self {
        let number =
            |from: usize, to: usize| self.0.get(from..to).and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let of_day = number(9, 11) * 3600 + number(11, 13) * 60 + number(13, 15) + 1;
        Self::of(Wall::of_civil(number(0, 4), number(4, 6), number(6, 8), of_day))
    }

    /// PURE: the stamp of a log that is rotated now, later than all existing ones.
    fn after(newest: Option<&Self>, now: Wall) -> Self {
        let now = Self::of(now);
        match newest {
            Some(newest) if *newest >= now => newest.next(),
            _ => now,
        }
    }
}

/// Existing forms of a rotated log: at least one of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Uncompressed.
    pub plain: bool,
    /// Compressed.
    pub compressed: bool,
}

/// The rotated files of one log, the oldest first.
#[derive(Debug, Default)]
pub struct Rotated {
    log: PathBuf,
    /// At most `limits::LOG_NAMES_READ_MAX`.
    pub logs: SortedMap<Stamp, Forms>,
    /// Left by interrupted compressions.
    unfinished: Vec<Stamp>,
}

impl Rotated {
    /// Reads the existing rotated files.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn of(log: &Path) -> io::Result<Self> {
        let mut rotated = Self { log: log.to_owned(), ..Self::default() };
        let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str()))
        else {
            return Ok(rotated);
        };
        for entry in fs::read_dir(directory)?.take(LOG_NAMES_READ_MAX) {
            let entry = entry?.file_name();
            let Some(rest) = entry.to_str().and_then(|entry| stamp_part(entry, name)) else { continue };
            if let Some(stamp) = Stamp::parse(rest) {
                rotated.logs.entry(stamp).or_default().plain = true;
            } else if let Some(stamp) = rest.strip_suffix(COMPRESSED).and_then(Stamp::parse) {
                rotated.logs.entry(stamp).or_default().compressed = true;
            } else if let Some(stamp) = rest.strip_suffix(UNFINISHED).and_then(Stamp::parse) {
                rotated.unfinished.push(stamp);
            }
        }
        Ok(rotated)
    }

    /// Path of an uncompressed rotated log.
    pub fn plain(&self, stamp: &Stamp) -> PathBuf {
        self.path(stamp, "")
    }

    /// Path of a compressed rotated log.
    pub fn compressed(&self, stamp: &Stamp) -> PathBuf {
        self.path(stamp, COMPRESSED)
    }

    fn path(&self, stamp: &Stamp, suffix: &str) -> PathBuf {
        let mut path = self.log.clone().into_os_string();
        path.push(format!(".{}{suffix}", stamp.0));
        path.into()
    }
}

/// PURE: the part of a file name after `LOG.`.
fn stamp_part<'n>(name: &'n str, log: &str) -> Option<&'n str> {
    name.strip_prefix(log)?.strip_prefix('.')
}

/// PURE: the stamp in a rotated log's name, compressed or not.
pub fn stamp_of(name: &str, log: &str) -> Option<Stamp> {
    let rest = stamp_part(name, log)?;
    Stamp::parse(rest.strip_suffix(COMPRESSED).unwrap_or(rest))
}

/// PURE: the N of `N.log` and of its rotated files.
pub fn log_number(name: &str) -> Option<u32> {
    let (number, _) = name.split_once(".log")?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse().ok()
}

/// The size of a log in bytes; `None` when it is not a regular file.
///
/// # Errors
/// It does not exist, or cannot be accessed.
pub fn size(log: &Path) -> io::Result<Option<u64>> {
    let meta = fs::symlink_metadata(log)?;
    Ok(meta.is_file().then_some(meta.len()))
}

/// Renames the log to a rotated one (`rotateLatestLog`), and returns its path. Removes the oldest before, so that with the
/// rotated and the next log there are at most `files_max`.
///
/// # Errors
/// The operation that failed, with the file's name.
pub fn rotate(log: &Path, files_max: usize, now: Wall) -> Result<PathBuf, String> {
    let rotated = Rotated::of(log).map_err(|error| format!("the directory of {}: {error}", log.display()))?;
    let excess = rotated.logs.len().saturating_sub(files_max.saturating_sub(2));
    // The oldest first, so that a follower misses none in between.
    for (stamp, forms) in rotated.logs.iter().take(excess) {
        let plain = forms.plain.then(|| rotated.plain(stamp));
        for path in plain.into_iter().chain(forms.compressed.then(|| rotated.compressed(stamp))) {
            remove(&path)?;
        }
    }
    let to = rotated.plain(&Stamp::after(rotated.logs.keys().next_back(), now));
    fs::rename(log, &to).map_err(|error| format!("{} was not renamed: {error}", log.display()))?;
    Ok(to)
}

/// Renames a rotated log back, unless the runtime has created a new one after all.
///
/// # Errors
/// It keeps the rotated name and counts as a rotated log.
pub fn put_back(rotated: &Path, log: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(CWD, rotated, CWD, log, RenameFlags::NOREPLACE)?)
}

/// Compresses the rotated logs except for the newest, which may still be written to, and removes leftovers of interrupted
/// compressions. Only one at a time may run.
///
/// # Errors
/// The first operation that failed, with the file's name; the others are tried all the same.
pub fn compress(log: &Path) -> Result<(), String> {
    let rotated = match Rotated::of(log) {
        // Removed with its container.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        rotated => rotated.map_err(|error| format!("the directory of {}: {error}", log.display()))?,
    };
    let mut first = Ok(());
    for stamp in &rotated.unfinished {
        first = first.and(remove(&rotated.path(stamp, UNFINISHED)));
    }
    let old = rotated.logs.len().saturating_sub(1);
    for (stamp, forms) in rotated.logs.iter().take(old).filter(|(_, forms)| forms.plain) {
        let plain = rotated.plain(stamp);
        first = first.and(if forms.compressed {
            // Interrupted before it removed the uncompressed file.
            remove(&plain)
        } else {
            let compressed = rotated.compressed(stamp);
            let done = compress_one(&plain, &rotated.path(stamp, UNFINISHED), &compressed);
            done.map_err(|error| format!("{} was not compressed: {error}", plain.display()))
        });
    }
    first
}

/// `compressLog`. The new file is synced to the disk before the old one is removed.
fn compress_one(plain: &Path, unfinished: &Path, compressed: &Path) -> io::Result<()> {
    let mut from = match open_regular(plain) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        from => from?,
    };
    let mode = from.metadata()?.mode() & 0o777;
    let to = OpenOptions::new().write(true).create_new(true).mode(mode).open(unfinished)?;
    let done = (|| {
        let mut packer = GzipWriter::new(to)?;
        let mut chunk = vec![0; LOG_CHUNK_BYTES];
        loop {
            match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(bytes) => packer.write_all(&chunk[..bytes])?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        packer.finish()?.sync_all()?;
        fs::rename(unfinished, compressed)
    })();
    if done.is_err() {
        // Best effort; the next compression removes it too.
        let _ = fs::remove_file(unfinished);
        return done;
    }
    match fs::remove_file(plain) {
        // Removed meanwhile, by rotation or with its container: remove the compressed one too.
        Err(error) if error.kind() == ErrorKind::NotFound => fs::remove_file(compressed),
        removed => removed,
    }
}

fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("{} was not removed: {error}", path.display()))
        }
        _ => Ok(()),
    }
}
