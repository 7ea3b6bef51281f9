//! A layer that arrives: decompressed, verified and unpacked piece by piece, and seen by nobody before both of its digests are right.
//! I/O, blocking.
//!
//! ```text
//!     ingest/DIFF_ID/fs         what is unpacked so far
//!     ingest/DIFF_ID/restart    a restart point, each LAYER_RESTART_BYTES
//!                 │ digest of what came, digest of what was unpacked; syncfs; rename
//!                 ▼
//!     layers/DIFF_ID/{fs,layer}
//! ```
//!
//! No compressed byte is written. A link that is cut goes on where it stopped, in the same process at the very byte, after a restart at
//! the last restart point: offset of the compressed layer, state of the decoder (for gzip, between two deflate blocks, the window of
//! 32 KiB), of the archive's reader and of both digests. The file system is synced before a point is written, so it holds after a power
//! cut too. A zstd frame cannot be entered in its middle: such a layer begins again after a restart, unless it has several frames.
//!
//! At the point everything is as it was when the point was written: what was made later is removed (`super::prune`), and what was made
//! before is replaced by nothing while the point is on the disk (`super::unpack`). It tells the two apart by the file system's clock:
//! while that is behind what it was, which it is after a boot without a battery, no point is written.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, futimens, mkdirat, openat,
    renameat_with, syncfs, utimensat,
};
use rustix::io::Errno;

use super::decompress::{Decoder, MAGIC_BYTES};
use super::digest::{Digest, Hasher};
use super::disk::Disk;
use super::error::{ImageStoreError, ImageStoreResult};
use super::prune::{born, prune};
use super::record::{self, Layer, RestartPoint, Snapshotter};
use super::tar::{Parser, Refused};
use super::unpack::{Counts, EPOCH, Tree, UnpackError};
use crate::filesystem::{Filesystem, read_bounded, replace};
use crate::limits::{
    FILE_CLOCK_TICK, LAYER_BYTES_MAX, LAYER_DISK_FREE_MIN, LAYER_RATIO_FREE_BYTES, LAYER_RATIO_MAX,
    LAYER_RESTART_BYTES, LAYER_RESTART_BYTES_AFTER_LOSS, LAYER_RESTART_FILE_BYTES_MAX,
};

/// Directory of a layer's files in its own.
pub(super) const FILES: &str = "fs";
/// The record of a layer in its directory.
pub(super) const RECORD: &str = "layer";
pub(super) const RESTART: &str = "restart";

/// A layer as a manifest and a configuration describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSource {
    /// Digest of the bytes that arrive.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
    /// Digest of the archive, uncompressed.
    pub diff_id: Digest,
}

/// A layer that arrives.
pub(super) struct Ingest {
    dir: PathBuf,
    source: LayerSource,
    /// Bytes read, whose digest is `compressed`.
    offset: u64,
    compressed: Hasher,
    diff: Hasher,
    /// The first bytes, until they tell the form.
    head: Vec<u8>,
    decoder: Option<Decoder>,
    parser: Parser,
    tree: Tree,
    unpacked: u64,
    /// Bytes of the archive at the last look at the disk.
    measured: u64,
    /// Bytes of the archive from which on a restart point is written.
    next_restart_point: u64,
    /// The latest time that the clock has shown, here and before the restart point that was gone on with.
    latest: SystemTime,
}

impl Ingest {
    /// Begins, or goes on at the restart point. The caller is the only one with this layer.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn open(disk: &Disk, source: LayerSource, form: Snapshotter) -> ImageStoreResult<Self> {
        let dir = disk.ingest(source.diff_id);
        if let Some(resumed) = Self::resume(&dir, source, form) {
            return Ok(resumed);
        }
        let failed = |error: io::Error| ImageStoreError::io(format!("making {}", dir.display()), error);
        let tree = Tree::new(begin(disk, &dir).map_err(failed)?, form);
        Ok(Self::new(dir, source, tree))
    }

    fn new(dir: PathBuf, source: LayerSource, tree: Tree) -> Self {
        Self {
            dir,
            source,
            offset: 0,
            compressed: Hasher::default(),
            diff: Hasher::default(),
            head: Vec::new(),
            decoder: None,
            parser: Parser::default(),
            tree,
            unpacked: 0,
            measured: 0,
            next_restart_point: LAYER_RESTART_BYTES,
            latest: SystemTime::now(),
        }
    }

    /// `None`: there is no restart point, or it is of other bytes.
    fn resume(dir: &Path, source: LayerSource, form: Snapshotter) -> Option<Self> {
        let file = dir.join(RESTART);
        let point = read_point(&file)?;
        if point.digest != source.digest || point.offset > source.size || point.form != form {
            return None;
        }
        let (seconds, nanos) = point.made_until;
        let made_until = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))?;
        let implicit = point.implicit.into_iter().map(Into::into).collect();
        prune(directory(&dir.join(FILES)).ok()?, made_until).ok()?;
        let root = directory(&dir.join(FILES)).ok()?;
        let mut tree = Tree::resume((root, form), point.open, implicit, point.counts).ok()?;
        tree.holes = point.holes;
        tree.set_point(file);
        let mut resumed = Self {
            offset: point.offset,
            compressed: Hasher::of_state(&point.compressed)?,
            diff: Hasher::of_state(&point.diff)?,
            decoder: Some(Decoder::resume(&point.decoder)?),
            parser: point.parser,
            unpacked: point.unpacked,
            measured: point.unpacked,
            next_restart_point: point.unpacked + LAYER_RESTART_BYTES,
            ..Self::new(dir.to_owned(), source, tree)
        };
        // The tick that the point was written in is over.
        if resumed.latest <= made_until + FILE_CLOCK_TICK {
            resumed.latest = made_until + FILE_CLOCK_TICK;
        }
        resumed.watch_clock().ok()?;
        Some(resumed)
    }

    /// The next byte of the compressed layer that is wanted.
    pub(super) fn offset(&self) -> u64 {
        self.offset + self.head.len() as u64
    }

    /// What was made so far.
    pub(super) fn counts(&self) -> &Counts {
        self.tree.counts()
    }

    /// The layer.
    pub(super) fn source(&self) -> &LayerSource {
        &self.source
    }

    /// Notes that it was written to: an old one that nobody writes is removed.
    pub(super) fn touch(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let now = Timestamps { last_access: now, last_modification: now };
        // Without the note it is older than it is.
        let _ = utimensat(CWD, &self.dir, &now, AtFlags::empty());
    }

    /// Its form is not known yet.
    pub(super) fn is_new(&self) -> bool {
        self.decoder.is_none()
    }

    /// Bytes of the window that what follows needs, when that is larger than is allowed. It has none in memory then.
    pub(super) fn wants_window(&self) -> Option<u64> {
        self.decoder.as_ref().and_then(Decoder::wants_window)
    }

    /// Allows a window of that many bytes, which is in memory from then on: the caller counts it.
    pub(super) fn allow_window(&mut self, bytes: u64) {
        if let Some(decoder) = &mut self.decoder {
            decoder.allow_window(bytes);
        }
    }

    /// Bytes of the window that was allowed.
    pub(super) fn window_bytes(&self) -> u64 {
        self.decoder.as_ref().map_or(0, Decoder::window_bytes)
    }

    /// Unpacks further bytes. Returns how many: all, unless it wants a window.
    ///
    /// # Errors
    /// The layer is refused, or the file system's. It is not to be used any more.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> ImageStoreResult<usize> {
        if self.offset() + bytes.len() as u64 > self.source.size {
            let size = self.source.size;
            return Err(self.refused("", format!("it has more than the {size} bytes of its manifest")));
        }
        if self.decoder.is_some() {
            return self.decode(bytes);
        }
        self.head.extend_from_slice(bytes);
        if self.head.len() < MAGIC_BYTES {
            return Ok(bytes.len());
        }
        let head = std::mem::take(&mut self.head);
        self.decoder = Some(Decoder::of(&head).map_err(|Refused(reason)| self.refused("", reason))?);
        let before = head.len() - bytes.len();
        // A decoder takes more than these few bytes before it wants anything.
        Ok(self.decode(&head)?.saturating_sub(before))
    }

    fn decode(&mut self, bytes: &[u8]) -> ImageStoreResult<usize> {
        // Taken out for the time of the loop: a step borrows it.
        let Some(mut decoder) = self.decoder.take() else { return Ok(bytes.len()) };
        let mut rest = bytes;
        loop {
            let step = decoder.step(rest).map_err(|Refused(reason)| self.refused("", reason))?;
            let (consumed, is_idle) = (step.consumed, step.out.is_empty());
            self.compressed.update(&rest[..consumed]);
            self.offset += consumed as u64;
            rest = &rest[consumed..];
            self.watch_clock()?;
            let had_point = self.tree.has_point();
            self.unpack(step.out)?;
            if had_point && !self.tree.has_point() {
                self.next_restart_point = self.unpacked + LAYER_RESTART_BYTES_AFTER_LOSS;
            }
            if self.unpacked - self.measured >= LAYER_RESTART_BYTES {
                self.measure_disk()?;
            }
            if self.unpacked >= self.next_restart_point {
                self.restart_point(&decoder)?;
            }
            if rest.is_empty() && is_idle || decoder.wants_window().is_some() {
                break;
            }
        }
        self.decoder = Some(decoder);
        Ok(bytes.len() - rest.len())
    }

    fn unpack(&mut self, out: &[u8]) -> ImageStoreResult<()> {
        self.unpacked += out.len() as u64;
        let most = LAYER_RATIO_FREE_BYTES.saturating_add(self.offset.saturating_mul(LAYER_RATIO_MAX));
        // A preallocated file is honest: what it has of zeros is not written.
        let written = self.unpacked.saturating_sub(self.tree.holes);
        if self.unpacked > LAYER_BYTES_MAX || written > most {
            let times = format!(
                "it unpacks to more than {LAYER_RATIO_MAX} times its size or {LAYER_BYTES_MAX} bytes"
            );
            return Err(self.refused("", times));
        }
        self.diff.update(out);
        self.parser.feed(out, &mut self.tree).map_err(|error| self.failed(error))
    }

    /// What is made while the clock is behind what it was cannot be told from what was made before the restart point.
    fn watch_clock(&mut self) -> ImageStoreResult<()> {
        let now = SystemTime::now();
        if now < self.latest && self.tree.has_point() {
            self.tree.drop_point().map_err(|error| self.failed(error))?;
            self.next_restart_point = self.unpacked + LAYER_RESTART_BYTES_AFTER_LOSS;
        }
        self.latest = self.latest.max(now);
        Ok(())
    }

    fn measure_disk(&mut self) -> ImageStoreResult<()> {
        self.measured = self.unpacked;
        let unpacking = || format!("unpacking layer {} in {}", self.source.digest, self.dir.display());
        let disk = Filesystem::of(&self.dir).map_err(|error| ImageStoreError::io(unpacking(), error))?;
        if disk.bytes_free < LAYER_DISK_FREE_MIN {
            return Err(ImageStoreError::io(unpacking(), Errno::NOSPC));
        }
        Ok(())
    }

    /// Writes a restart point, where the decoder may stop.
    fn restart_point(&mut self, decoder: &Decoder) -> ImageStoreResult<()> {
        let Some(state) = decoder.state() else { return Ok(()) };
        let made = Instant::now();
        let path = self.dir.join(RESTART);
        let failed = |error: io::Error| ImageStoreError::io(format!("writing {}", path.display()), error);
        if self.file_clock().map_err(failed)?.is_none() {
            // There is no going on with this layer: `prune` needs these times.
            self.next_restart_point = u64::MAX;
            return Ok(());
        }
        syncfs(self.tree.root()).map_err(|error| failed(error.into()))?;
        // The clock of what was made so far has moved on, and so it has before anything else is made.
        sleep_until(made + FILE_CLOCK_TICK);
        let Some(made_until) = self.file_clock().map_err(failed)?.filter(|now| *now >= self.latest) else {
            self.next_restart_point = self.unpacked + LAYER_RESTART_BYTES_AFTER_LOSS;
            return Ok(());
        };
        let marked = Instant::now();
        self.next_restart_point = self.unpacked + LAYER_RESTART_BYTES;
        let since = made_until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let point = RestartPoint {
            digest: self.source.digest,
            offset: self.offset,
            compressed: self.compressed.state(),
            diff: self.diff.state(),
            unpacked: self.unpacked,
            decoder: state,
            parser: self.parser.clone(),
            open: self.tree.open_file().map(|(entry, end)| (entry.clone(), end)),
            implicit: self.tree.implicit().iter().cloned().map(Into::into).collect(),
            counts: self.tree.counts().clone(),
            form: self.tree.form(),
            made_until: (since.as_secs(), since.subsec_nanos()),
            holes: self.tree.holes,
        };
        let bytes = record::to_bytes(&point);
        if bytes.len() > LAYER_RESTART_FILE_BYTES_MAX {
            return Ok(());
        }
        replace(&path, &self.dir.join("restart.new"), &bytes).map_err(failed)?;
        self.tree.set_point(path);
        sleep_until(marked + FILE_CLOCK_TICK);
        Ok(())
    }

    /// The time that the file system dates with what is made now; `None` where it tells of no such time.
    fn file_clock(&self) -> io::Result<Option<SystemTime>> {
        let path = self.dir.join("clock");
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        born(&directory(&self.dir)?, c"clock")
    }

    /// All bytes are there: the layer is verified, synced, and seen from now on.
    ///
    /// # Errors
    /// It is cut off or not what its digests say, or the file system's.
    pub(super) fn finish(self, disk: &Disk) -> ImageStoreResult<Layer> {
        let wanted = self.source;
        if self.offset() != wanted.size {
            let reason = format!("it ends after {} of {} bytes; pull it again", self.offset(), wanted.size);
            return Err(ImageStoreError::io(
                format!("layer {}", wanted.digest),
                io::Error::new(io::ErrorKind::UnexpectedEof, reason),
            ));
        }
        // Digests first: they tell damage on the way from a damaged image.
        check(wanted.digest, self.compressed.finish())?;
        let is_whole =
            self.decoder.as_ref().map_or_else(|| Err(Refused("it is empty".into())), Decoder::finish);
        is_whole.map_err(|Refused(reason)| self.refused("", reason))?;
        self.parser.finish().map_err(|refused| self.failed(refused.into()))?;
        check(wanted.diff_id, self.diff.finish())?;

        let failed =
            |error: io::Error| ImageStoreError::io(format!("storing layer {}", wanted.digest), error);
        let implicit = self.tree.implicit().iter().cloned().map(Into::into).collect();
        let layer = Layer {
            diff_id: wanted.diff_id,
            counts: self.tree.counts().clone(),
            implicit,
            form: self.tree.form_of_whole(),
        };
        put(disk, &self.dir, &layer, self.tree.root()).map_err(failed)?;
        Ok(layer)
    }

    fn refused(&self, entry: &str, reason: String) -> ImageStoreError {
        ImageStoreError::Layer { layer: self.source.digest, entry: entry.to_owned(), reason }
    }

    fn failed(&self, error: UnpackError) -> ImageStoreError {
        let entry = self.parser.path();
        match error {
            UnpackError::Refused(Refused(reason)) => self.refused(&entry, reason),
            UnpackError::Io(what, error) => ImageStoreError::io(
                format!("layer {}: entry {}: {what}", self.source.digest, crate::text::quoted(&entry)),
                error,
            ),
        }
    }
}

const EXIST: i32 = Errno::EXIST.raw_os_error();
const NOT_EMPTY: i32 = Errno::NOTEMPTY.raw_os_error();

/// Makes the directory of a layer that arrives, and returns that of its files.
pub(super) fn begin(disk: &Disk, dir: &Path) -> io::Result<OwnedFd> {
    disk.set_aside(dir)?;
    let files = dir.join(FILES);
    for (path, mode) in [(dir, 0o700), (&files, 0o755)] {
        mkdirat(CWD, path, Mode::from(mode))?;
    }
    let root = directory(&files)?;
    futimens(&root, &EPOCH)?;
    Ok(root)
}

/// Puts a whole layer into the store, on the disk when this returns.
pub(super) fn put(disk: &Disk, dir: &Path, layer: &Layer, root: &OwnedFd) -> io::Result<()> {
    replace(&dir.join(RECORD), &dir.join("layer.new"), &record::to_bytes(layer))?;
    for file in [RESTART, "clock"] {
        let _ = std::fs::remove_file(dir.join(file));
    }
    syncfs(root)?;
    let to = disk.layer(layer.diff_id);
    match rename_new(dir, &to) {
        // The store does not know it: it may be damaged, and this one is not.
        Err(error) if matches!(error.raw_os_error(), Some(EXIST | NOT_EMPTY)) => {
            disk.set_aside(&to).and_then(|()| rename_new(dir, &to))
        }
        renamed => renamed,
    }?;
    for above in [to.parent(), dir.parent()].into_iter().flatten() {
        rustix::fs::fsync(&directory(above)?)?;
    }
    Ok(())
}

/// Renames a directory to a name that is free.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system without the flag: of a directory that has entries none is replaced either.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// A restart point; `None` when there is none, or it is damaged.
pub(super) fn read_point(file: &Path) -> Option<RestartPoint> {
    record::from_bytes(&read_bounded(file, LAYER_RESTART_FILE_BYTES_MAX).ok()?)
}

fn sleep_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

fn check(wanted: Digest, found: Digest) -> ImageStoreResult<()> {
    if wanted == found { Ok(()) } else { Err(ImageStoreError::Digest { wanted, found }) }
}

/// Opens a directory.
pub(super) fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
