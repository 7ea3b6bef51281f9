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

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, futimens, mkdirat, openat, renameat_with, syncfs};
use rustix::io::Errno;
use smol::lock::MutexGuardArc;

use super::decompress::{Decoder, MAGIC_BYTES};
use super::digest::{Digest, Hasher};
use super::error::{ImageStoreError, ImageStoreResult};
use super::record::{self, Layer, RestartPoint, Snapshotter};
use super::tar::{Parser, Refused};
use super::unpack::{EPOCH, Tree, UnpackError};
use crate::filesystem::{Filesystem, read_bounded, replace};
use crate::limits::{
    LAYER_BYTES_MAX, LAYER_DISK_FREE_MIN, LAYER_RATIO_FREE_BYTES, LAYER_RATIO_MAX, LAYER_RESTART_BYTES,
    LAYER_RESTART_BYTES_AFTER_LOSS, LAYER_RESTART_FILE_BYTES_MAX,
};
use crate::tree;

/// Directory of a layer's files in its own.
pub(super) const FILES: &str = "fs";
/// The record of a layer in its directory.
pub(super) const RECORD: &str = "layer";
const RESTART: &str = "restart";

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
    has_restart_point: bool,
    /// No other ingest of this layer, also while a thread of an abandoned one runs.
    _only: Option<MutexGuardArc<()>>,
}

impl Ingest {
    /// Begins, or goes on at the restart point.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn open(
        ingests: &Path,
        source: LayerSource,
        form: Snapshotter,
        only: Option<MutexGuardArc<()>>,
    ) -> ImageStoreResult<Self> {
        let dir = ingests.join(source.diff_id.hex());
        if let Some(resumed) = Self::resume(&dir, source, form) {
            return Ok(Self { _only: only, ..resumed });
        }
        let failed = |error: io::Error| ImageStoreError::io(format!("making {}", dir.display()), error);
        match tree::remove(&dir, || true) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(_) | Err(_) => {}
        }
        let files = dir.join(FILES);
        for (path, mode) in [(&dir, 0o700), (&files, 0o755)] {
            mkdirat(CWD, path, Mode::from(mode)).map_err(|error| failed(error.into()))?;
        }
        let root = directory(&files).map_err(failed)?;
        futimens(&root, &EPOCH).map_err(|error| failed(error.into()))?;
        let tree = Tree::new(root, form);
        Ok(Self::new(dir, source, tree, only))
    }

    fn new(dir: PathBuf, source: LayerSource, tree: Tree, only: Option<MutexGuardArc<()>>) -> Self {
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
            has_restart_point: false,
            _only: only,
        }
    }

    /// `None`: there is no restart point, or it is of other bytes.
    fn resume(dir: &Path, source: LayerSource, form: Snapshotter) -> Option<Self> {
        let bytes = read_bounded(&dir.join(RESTART), LAYER_RESTART_FILE_BYTES_MAX).ok()?;
        let point: RestartPoint = record::from_bytes(&bytes)?;
        if point.digest != source.digest || point.offset > source.size || point.form != form {
            return None;
        }
        let implicit = point.implicit.into_iter().map(Into::into).collect();
        let root = directory(&dir.join(FILES)).ok()?;
        let tree = Tree::resume((root, form), point.open, implicit, point.counts).ok()?;
        Some(Self {
            offset: point.offset,
            compressed: Hasher::of_state(&point.compressed)?,
            diff: Hasher::of_state(&point.diff)?,
            decoder: Some(Decoder::resume(&point.decoder)?),
            parser: point.parser,
            unpacked: point.unpacked,
            measured: point.unpacked,
            next_restart_point: point.unpacked + LAYER_RESTART_BYTES,
            has_restart_point: true,
            ..Self::new(dir.to_owned(), source, tree, None)
        })
    }

    /// The next byte of the compressed layer that is wanted.
    pub(super) fn offset(&self) -> u64 {
        self.offset + self.head.len() as u64
    }

    /// Unpacks further bytes.
    ///
    /// # Errors
    /// The layer is refused, or the file system's. It is not to be used any more.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> ImageStoreResult<()> {
        if self.offset() + bytes.len() as u64 > self.source.size {
            let size = self.source.size;
            return Err(self.refused("", format!("it has more than the {size} bytes of its manifest")));
        }
        if self.decoder.is_some() {
            return self.decode(bytes);
        }
        self.head.extend_from_slice(bytes);
        if self.head.len() < MAGIC_BYTES {
            return Ok(());
        }
        let head = std::mem::take(&mut self.head);
        self.decoder = Some(Decoder::of(&head).map_err(|Refused(reason)| self.refused("", reason))?);
        self.decode(&head)
    }

    fn decode(&mut self, mut bytes: &[u8]) -> ImageStoreResult<()> {
        // Taken out for the time of the loop: a step borrows it.
        let Some(mut decoder) = self.decoder.take() else { return Ok(()) };
        loop {
            let step = decoder.step(bytes).map_err(|Refused(reason)| self.refused("", reason))?;
            let (consumed, is_idle) = (step.consumed, step.out.is_empty());
            self.compressed.update(&bytes[..consumed]);
            self.offset += consumed as u64;
            bytes = &bytes[consumed..];
            self.unpack(step.out)?;
            self.drop_restart_point();
            if self.unpacked - self.measured >= LAYER_RESTART_BYTES {
                self.measure_disk()?;
            }
            if self.unpacked >= self.next_restart_point {
                self.restart_point(&decoder)?;
            }
            if bytes.is_empty() && is_idle {
                break;
            }
        }
        self.decoder = Some(decoder);
        Ok(())
    }

    fn unpack(&mut self, out: &[u8]) -> ImageStoreResult<()> {
        self.unpacked += out.len() as u64;
        let most = LAYER_RATIO_FREE_BYTES.saturating_add(self.offset.saturating_mul(LAYER_RATIO_MAX));
        if self.unpacked > most.min(LAYER_BYTES_MAX) {
            let times = format!(
                "it unpacks to more than {LAYER_RATIO_MAX} times its size or {LAYER_BYTES_MAX} bytes"
            );
            return Err(self.refused("", times));
        }
        self.diff.update(out);
        self.parser.feed(out, &mut self.tree).map_err(|error| self.failed(error))
    }

    /// An entry replaced another one: from the restart point the archive would not be read the same way again.
    fn drop_restart_point(&mut self) {
        if !self.tree.take_replaced() || !self.has_restart_point {
            return;
        }
        // On the disk too, before what was replaced can be.
        let _ = std::fs::remove_file(self.dir.join(RESTART));
        let _ = directory(&self.dir).map(|dir| rustix::fs::fsync(&dir));
        self.has_restart_point = false;
        self.next_restart_point = self.unpacked + LAYER_RESTART_BYTES_AFTER_LOSS;
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
        self.next_restart_point = self.unpacked + LAYER_RESTART_BYTES;
        let path = self.dir.join(RESTART);
        let failed = |error: io::Error| ImageStoreError::io(format!("writing {}", path.display()), error);
        syncfs(self.tree.root()).map_err(|error| failed(error.into()))?;
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
        };
        let bytes = record::to_bytes(&point);
        if bytes.len() > LAYER_RESTART_FILE_BYTES_MAX {
            return Ok(());
        }
        replace(&path, &self.dir.join("restart.new"), &bytes).map_err(failed)?;
        self.tree.take_replaced();
        self.has_restart_point = true;
        Ok(())
    }

    /// All bytes are there: the layer is verified, synced, and seen from now on.
    ///
    /// # Errors
    /// It is cut off or not what its digests say, or the file system's.
    pub(super) fn finish(self, layers: &Path) -> ImageStoreResult<Layer> {
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
            form: self.tree.form(),
        };
        replace(&self.dir.join(RECORD), &self.dir.join("layer.new"), &record::to_bytes(&layer))
            .map_err(failed)?;
        let _ = std::fs::remove_file(self.dir.join(RESTART));
        syncfs(self.tree.root()).map_err(|error| failed(error.into()))?;
        let to = layers.join(wanted.diff_id.hex());
        match renameat_with(CWD, &self.dir, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => drop(tree::remove(&self.dir, || true)),
            // A file system without the flag.
            Err(Errno::INVAL | Errno::NOSYS) => {
                std::fs::rename(&self.dir, &to).map_err(failed)?;
            }
            Err(error) => return Err(failed(error.into())),
        }
        let above = directory(layers).map_err(failed)?;
        rustix::fs::fsync(&above).map_err(|error| failed(error.into()))?;
        Ok(layer)
    }

    /// Removes what was unpacked: it is of no use.
    pub(super) fn discard(ingests: &Path, diff_id: Digest) {
        let dir = ingests.join(diff_id.hex());
        if let Err(error) = tree::remove(&dir, || true)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{}: cannot be removed: {error}; it is removed at the next start", dir.display());
        }
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

fn check(wanted: Digest, found: Digest) -> ImageStoreResult<()> {
    if wanted == found { Ok(()) } else { Err(ImageStoreError::Digest { wanted, found }) }
}

/// Opens a directory.
pub(super) fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
