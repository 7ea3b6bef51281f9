//! The files of a container's log: `N.log`, which the runtime writes, and `N.log.STAMP`, rotated, the older ones as
//! `N.log.STAMP.gz` (kubelet `container_log_manager.go`). I/O, blocking.
//!
//! Other than the kubelet's, stamps are in UTC and each is later than the one before, whatever the clock says: their order is
//! the order of the logs, and two rotations in a second have two names. Files beside them that have no such name are left
//! alone.
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{CWD, RenameFlags};

use crate::filesystem::open_regular;
use crate::limits::{LOG_CHUNK_BYTES, LOG_NAMES_READ_MAX};
use crate::model::SortedMap;
use crate::model::Wall;

/// Behind the name of a compressed log.
const COMPRESSED: &str = ".gz";
/// Behind the name of one that is being compressed.
const UNFINISHED: &str = ".tmp";

/// When a log was rotated, as its name has it: `20260102-030405`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(Box<str>);

impl Stamp {
    /// PURE: the text, when it is a stamp.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = |(at, byte): (usize, u8)| if at == 8 { byte == b'-' } else { byte.is_ascii_digit() };
        (text.len() == 15 && text.bytes().enumerate().all(fits)).then(|| Self(text.into()))
    }

    /// PURE: the second in which `now` falls.
    fn of(now: Wall) -> Self {
        // `2026-01-02T03:04:05Z`
        let digits: String = now.to_string().chars().filter(char::is_ascii_digit).collect();
        let (day, time) = digits.split_at(digits.len().min(8));
        Self(format!("{day}-{time}").into())
    }

    /// PURE: a second later, or the last second there is.
    fn next(&self) -> Self {
        let number =
            |from: usize, to: usize| self.0.get(from..to).and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let of_day = number(9, 11) * 3600 + number(11, 13) * 60 + number(13, 15) + 1;
        Self::of(Wall::of_civil(number(0, 4), number(4, 6), number(6, 8), of_day))
    }

    /// PURE: the stamp of a log that is rotated now, behind those that are there.
    fn after(newest: Option<&Self>, now: Wall) -> Self {
        let now = Self::of(now);
        match newest {
            Some(newest) if *newest >= now => newest.next(),
            _ => now,
        }
    }
}

/// How a rotated log is there: at least one of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// As it was written.
    pub plain: bool,
    /// Compressed.
    pub compressed: bool,
}

/// The rotated logs of one log, the oldest first.
#[derive(Debug, Default)]
pub struct Rotated {
    log: PathBuf,
    /// At most `limits::LOG_NAMES_READ_MAX`.
    pub logs: SortedMap<Stamp, Forms>,
    /// Left by a compression that was cut off.
    unfinished: Vec<Stamp>,
}

impl Rotated {
    /// Those that are there.
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

    /// Where one of them is, as it was written.
    pub fn plain(&self, stamp: &Stamp) -> PathBuf {
        self.path(stamp, "")
    }

    /// Where one of them is, compressed.
    pub fn compressed(&self, stamp: &Stamp) -> PathBuf {
        self.path(stamp, COMPRESSED)
    }

    fn path(&self, stamp: &Stamp, suffix: &str) -> PathBuf {
        let mut path = self.log.clone().into_os_string();
        path.push(format!(".{}{suffix}", stamp.0));
        path.into()
    }
}

/// PURE: what stands behind `LOG.` in a file's name.
fn stamp_part<'n>(name: &'n str, log: &str) -> Option<&'n str> {
    name.strip_prefix(log)?.strip_prefix('.')
}

/// PURE: the stamp in the name of a rotated log of that name, compressed or not.
pub fn stamp_of(name: &str, log: &str) -> Option<Stamp> {
    let rest = stamp_part(name, log)?;
    Stamp::parse(rest.strip_suffix(COMPRESSED).unwrap_or(rest))
}

/// The bytes of a log; nothing when it is no regular file.
///
/// # Errors
/// It is not there, or cannot be looked at.
pub fn size(log: &Path) -> io::Result<Option<u64>> {
    let meta = fs::symlink_metadata(log)?;
    Ok(meta.is_file().then_some(meta.len()))
}

/// Gives the log the name of a rotated one (`rotateLatestLog`), which is the answer, and removes the oldest before, so that
/// with it and the one the runtime makes next there are `files_max` at most.
///
/// # Errors
/// What could not be done, with the file's name.
pub fn rotate(log: &Path, files_max: usize, now: Wall) -> Result<PathBuf, String> {
    let rotated = Rotated::of(log).map_err(|error| format!("the directory of {}: {error}", log.display()))?;
    let excess = rotated.logs.len().saturating_sub(files_max.saturating_sub(2));
    // From the oldest on, so that whoever follows the log misses none between two.
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

/// Gives a rotated log its name back, unless the runtime has made a new one after all.
///
/// # Errors
/// It keeps the other name, and is one of the rotated logs.
pub fn put_back(rotated: &Path, log: &Path) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(CWD, rotated, CWD, log, RenameFlags::NOREPLACE)?)
}

/// Compresses the rotated logs but for the newest, which may still be written to, and removes what a compression that was cut
/// off has left. Only one at a time may do so.
///
/// # Errors
/// The first thing that could not be done, with the file's name; the others are tried all the same.
pub fn compress(log: &Path) -> Result<(), String> {
    let rotated = match Rotated::of(log) {
        // It went with its container.
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
            // It was cut off before it removed the other.
            remove(&plain)
        } else {
            let compressed = rotated.compressed(stamp);
            let done = compress_one(&plain, &rotated.path(stamp, UNFINISHED), &compressed);
            done.map_err(|error| format!("{} was not compressed: {error}", plain.display()))
        });
    }
    first
}

/// `compressLog`. The disk has the new file before the old one goes.
fn compress_one(plain: &Path, unfinished: &Path, compressed: &Path) -> io::Result<()> {
    let mut from = match open_regular(plain) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        from => from?,
    };
    let mode = from.metadata()?.mode() & 0o777;
    let to = OpenOptions::new().write(true).create_new(true).mode(mode).open(unfinished)?;
    let done = (|| {
        // As fast as can be: the processor is a gateway's, and what there is to gain is little. (The kubelet: level 6.)
        let mut packer = GzEncoder::new(to, Compression::fast());
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
        // It was removed meanwhile, as too old or with its container: so goes this.
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
