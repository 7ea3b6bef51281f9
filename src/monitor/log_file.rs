//! The log of a container: opened, appended to, opened again after a rotation. Blocking I/O in the monitor's own process.
//!
//! A slow disk holds the monitor, so the container's output waits in its FIFO, and then the container: nothing is lost. Where the
//! disk is full or broken the output is dropped, as by containerd: a container does not stand still because its node's disk is
//! full. What is dropped is counted, and when the disk takes entries again one of standard error says how much was lost.
//! An entry is never torn: what a failed write has left of it is cut off.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::line::{Stamp, Stream};
use crate::limits::LOG_BATCH_BYTES;
use crate::model::Wall;

/// The log, and entries that are not yet written.
#[derive(Debug)]
pub(super) struct LogFile {
    path: Option<PathBuf>,
    file: Option<File>,
    /// Entries for the next write.
    batch: Vec<u8>,
    /// Bytes of entries that were dropped since the last write that succeeded.
    lost: u64,
}

impl LogFile {
    /// Opens the log; without a path the output is discarded.
    pub(super) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let file = path.as_deref().map(opened).transpose()?;
        Ok(Self { path, file, batch: Vec::new(), lost: 0 })
    }

    /// The same; a file that cannot be opened takes nothing until [`LogFile::reopen`], and what it would have got is lost.
    pub(super) fn open_or_lose(path: Option<PathBuf>) -> Self {
        let file = path.as_deref().and_then(|path| opened(path).ok());
        Self { path, file, batch: Vec::new(), lost: 0 }
    }

    /// Opens the path again: the file was renamed (`ReopenContainerLog`). When that fails the old one stays.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = self.path.as_deref() {
            self.file = Some(opened(path)?);
        }
        Ok(())
    }

    /// Whether output is kept at all.
    pub(super) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Where entries are appended to. [`flush_full`](Self::flush_full) follows.
    pub(super) fn batch(&mut self) -> &mut Vec<u8> {
        &mut self.batch
    }

    /// Writes the entries if they are enough for a write.
    pub(super) fn flush_full(&mut self, now: Wall) {
        if self.batch.len() >= LOG_BATCH_BYTES {
            self.flush(now);
        }
    }

    /// Writes all entries.
    pub(super) fn flush(&mut self, now: Wall) {
        let Some(file) = &self.file else {
            self.batch.clear();
            return;
        };
        if self.batch.is_empty() && self.lost == 0 {
            return;
        }
        if self.lost > 0 {
            let mut told = Vec::new();
            let text = format!("smolet: {} bytes of this log were lost: the disk took none\n", self.lost);
            super::line::Lines::default().add(&Stamp::new(now, Stream::Stderr), text.as_bytes(), &mut told);
            if append(file, &told).is_ok() {
                self.lost = 0;
            }
        }
        if !self.batch.is_empty() && append(file, &self.batch).is_err() {
            self.lost = self.lost.saturating_add(u64::try_from(self.batch.len()).unwrap_or(u64::MAX));
        }
        self.batch.clear();
    }

    /// Gives the memory back.
    pub(super) fn shrink(&mut self) {
        if self.batch.is_empty() {
            self.batch = Vec::new();
        }
    }
}

/// All of it or nothing.
fn append(mut file: &File, entries: &[u8]) -> io::Result<()> {
    let before = rustix::fs::fstat(file).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
    let written = file.write_all(entries);
    if written.is_err()
        && let Some(before) = before
    {
        // If that fails too there is nothing else to do.
        let _ = file.set_len(before);
    }
    written
}

/// A regular file, appended to. Log collectors of a group may read it, as containerd's.
fn opened(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o640))?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("is no regular file"));
    }
    Ok(File::from(file))
}
