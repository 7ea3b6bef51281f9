//! The store's directory: reading it at the start, and every change of it. I/O, blocking.
//!
//! ```text
//!     blobs/sha256/HEX     manifests and configurations
//!     layers/DIFF_ID/      fs (the files), layer (the record)
//!     records/ID           an image: names, layers, labels; written last, after everything that it names is on the disk
//!     ingest/DIFF_ID/      layers that arrive; own-NAME: one of directories, while it is made
//!     rootfs/CONTAINER/    record, upper, work, merged
//!     empty/               a layer without files
//!     removed/             layers, whole ones and parts, on their way out: a removal that ends in its midst leaves no half of one
//! ```
//!
//! An image exists when its record and all that it names exist. Everything else is a leftover, removed at the start; layers of a pull that
//! was interrupted not long ago are kept for it. A record that cannot be read, or is of another version, is neither there nor a leftover.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::digest::Digest;
use super::error::{ImageStoreError, ImageStoreResult};
use super::layer::{FILES, RECORD, RESTART, directory, read_point};
use super::record::{self, Layer, RootfsRecord, StoredImage};
use super::rootfs::Usage;
use crate::filesystem::{read_bounded, replace};
use crate::limits::{
    IMAGE_JSON_BYTES_MAX, INGEST_KEPT, LAYER_RECORD_BYTES_MAX, ROOTFS_MAX, ROOTFS_RECORD_BYTES_MAX,
    STORE_ENTRIES_MAX, STORED_IMAGE_BYTES_MAX, STORED_IMAGES_MAX,
};
use crate::model::{SortedMap, SortedSet};
use crate::tree;

const DIRECTORIES: [&str; 7] = ["blobs/sha256", "layers", "records", "ingest", "empty", "probe", REMOVED];
const REMOVED: &str = "removed";
/// Names there of parts of layers begin with this.
const PART: &str = "part-";

/// Paths of the store.
#[derive(Debug)]
pub(super) struct Disk {
    root: PathBuf,
    /// Of the name that was given in `removed` last.
    serial: AtomicU64,
    /// There may be something in `removed`.
    has_removed: AtomicBool,
    /// What cannot be removed is in the log.
    is_told: AtomicBool,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) images: Vec<StoredImage>,
    pub(super) layers: SortedMap<Digest, Layer>,
    pub(super) rootfs: SortedMap<String, RootfsRecord>,
    /// Whole layers that no image has used so far: those of a pull under way, or of one that goes on later.
    pub(super) fresh: SortedSet<Digest>,
    /// Parts of layers, with what they take.
    pub(super) parts: SortedMap<Digest, Usage>,
    /// Root file systems of which a layer is not known, or may have been set aside: no layer is removed while there is one.
    pub(super) unknown_rootfs: SortedSet<String>,
    /// Some record cannot be read: what it names is kept.
    pub(super) has_unread: bool,
}

/// What became of a record.
enum Read<T> {
    Whole(T),
    /// It does not exist, or is damaged.
    Absent,
    /// It may be whole: it cannot be read now, or is of another version.
    Unread(String),
}

impl<T> Read<T> {
    fn of(path: &Path, bytes_max: usize) -> Self
    where
        T: for<'b> minicbor::Decode<'b, ()>,
    {
        match read_bounded(path, bytes_max) {
            Ok(bytes) if record::is_of_other_version(&bytes) => {
                Self::Unread(format!("{}: is of another version of smolet", path.display()))
            }
            Ok(bytes) => record::from_bytes(&bytes).map_or(Self::Absent, Self::Whole),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge) => {
                Self::Absent
            }
            Err(error) => Self::Unread(format!("{}: {error}", path.display())),
        }
    }

    fn filter(self, is_whole: impl FnOnce(&T) -> bool) -> Self {
        match self {
            Self::Whole(record) if !is_whole(&record) => Self::Absent,
            read => read,
        }
    }
}

impl Disk {
    /// Reads the store, and removes leftovers.
    ///
    /// # Errors
    /// Its directories cannot be made or read. Whatever is damaged in it is no error, but absent.
    pub(super) fn open(root: &Path) -> ImageStoreResult<(Self, Found)> {
        let failed =
            |error| ImageStoreError::io(format!("opening the image store {}", root.display()), error);
        // Passable for the root user of a pod's user namespace; images themselves are not: they may have secrets and setuid programs.
        make_directories(&root.join("rootfs"), 0o711).map_err(failed)?;
        for directory in DIRECTORIES {
            make_directories(&root.join(directory), 0o700).map_err(failed)?;
        }
        // Overlay options want a path without links.
        let disk = Self {
            root: root.canonicalize().map_err(failed)?,
            serial: AtomicU64::new(0),
            has_removed: AtomicBool::new(true),
            is_told: AtomicBool::new(false),
        };
        let mut found = Found::default();
        disk.read_rootfs(&mut found).map_err(failed)?;
        for name in disk.names("layers").map_err(failed)? {
            let diff_id = Digest::from_hex(&name);
            match diff_id.map_or(Read::Absent, |diff_id| disk.read_layer(diff_id)) {
                Read::Whole(mut layer) => {
                    layer.implicit = Vec::new();
                    found.layers.insert(layer.diff_id, layer);
                }
                Read::Absent => {
                    let users = diff_id.map(|layer| disk.mounted_with(layer, &found)).unwrap_or_default();
                    if users.is_empty() {
                        disk.drop_layer(&disk.path("layers", &name));
                    } else {
                        log::warn!(
                            "layer {name}: its record is damaged; images with it are absent until they are pulled, and no layer \
                             is removed while a container runs on it"
                        );
                        found.unknown_rootfs.extend(users);
                    }
                }
                Read::Unread(why) => {
                    log::warn!("{why}; images with this layer are absent until they are pulled");
                    found.has_unread = true;
                }
            }
        }
        for name in disk.names("records").map_err(failed)? {
            let path = disk.path("records", &name);
            let is_missing = found.has_unread;
            match Digest::from_hex(&name).map_or(Read::Absent, |id| disk.read_image(id, &found.layers)) {
                Read::Whole(image) if found.images.len() < STORED_IMAGES_MAX => found.images.push(image),
                Read::Whole(_) | Read::Absent if !is_missing => {
                    log::warn!(
                        "{}: damaged or incomplete; the image is absent until it is pulled",
                        path.display()
                    );
                    remove_leftover(&path);
                }
                // What it misses may be what cannot be read.
                Read::Whole(_) | Read::Absent => {}
                Read::Unread(why) => {
                    log::warn!("{why}; the image is absent until it is pulled");
                    found.has_unread = true;
                }
            }
        }
        // Set aside while a container ran on it, for one that is whole.
        for name in disk.names(REMOVED).map_err(failed)? {
            let layer = name.rsplit_once('-').and_then(|(layer, _)| Digest::from_hex(layer));
            let users = layer.map(|layer| disk.mounted_with(layer, &found)).unwrap_or_default();
            found.unknown_rootfs.extend(users);
        }
        settle_names(&mut found.images);
        disk.sweep(&mut found).map_err(failed)?;
        Ok((disk, found))
    }

    /// The store's directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn path(&self, directory: &str, name: &str) -> PathBuf {
        self.root.join(directory).join(name)
    }

    pub(super) fn layer(&self, diff_id: Digest) -> PathBuf {
        self.path("layers", &diff_id.hex())
    }

    /// A part of a layer.
    pub(super) fn ingest(&self, diff_id: Digest) -> PathBuf {
        self.path("ingest", &diff_id.hex())
    }

    /// A layer's files.
    pub(super) fn files(&self, layer: Digest) -> PathBuf {
        self.layer(layer).join(FILES)
    }

    /// A directory without files.
    pub(super) fn empty(&self) -> PathBuf {
        self.root.join("empty")
    }

    fn names(&self, directory: &str) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.root.join(directory))?.take(STORE_ENTRIES_MAX);
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Root file systems, also those without a record.
    pub(super) fn rootfs_names(&self) -> ImageStoreResult<Vec<String>> {
        self.names("rootfs").map_err(|error| ImageStoreError::io("reading the root file systems", error))
    }

    fn read_rootfs(&self, found: &mut Found) -> io::Result<()> {
        for name in self.names("rootfs")? {
            let path = self.path("rootfs", &name).join("record");
            match Read::of(&path, ROOTFS_RECORD_BYTES_MAX) {
                Read::Whole(record) if found.rootfs.len() < ROOTFS_MAX => {
                    found.rootfs.insert(name, record);
                }
                // Where nothing is mounted no container runs on layers. It is removed with those that no container has.
                Read::Whole(_) | Read::Absent | Read::Unread(_) => {
                    if self.is_mounted(&name) {
                        log::warn!(
                            "{}: cannot be read; no layer is removed while it is mounted",
                            path.display()
                        );
                        found.unknown_rootfs.insert(name);
                    }
                }
            }
        }
        Ok(())
    }

    fn is_mounted(&self, rootfs: &str) -> bool {
        crate::mounts::is_mounted(&self.path("rootfs", rootfs).join("merged")).unwrap_or(true)
    }

    /// The root file systems that are mounted on a layer.
    fn mounted_with(&self, layer: Digest, found: &Found) -> Vec<String> {
        let on_it = found.rootfs.iter().filter(|(_, rootfs)| rootfs.layers.contains(&layer));
        on_it.map(|(name, _)| name.clone()).filter(|name| self.is_mounted(name)).collect()
    }

    /// The record of a layer in the store, with the directories that it does not describe.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn layer_record(&self, diff_id: Digest) -> io::Result<Layer> {
        match self.read_layer(diff_id) {
            Read::Whole(layer) => Ok(layer),
            Read::Absent | Read::Unread(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    // Once in the binary, for both callers.
    #[inline(never)]
    fn read_layer(&self, diff_id: Digest) -> Read<Layer> {
        let dir = self.layer(diff_id);
        Read::of(&dir.join(RECORD), LAYER_RECORD_BYTES_MAX).filter(|layer: &Layer| {
            layer.diff_id == diff_id && layer.is_within_limits() && dir.join(FILES).is_dir()
        })
    }

    fn read_image(&self, id: Digest, layers: &SortedMap<Digest, Layer>) -> Read<StoredImage> {
        let read = Read::of(&self.path("records", &id.hex()), STORED_IMAGE_BYTES_MAX);
        let read = read.filter(|image: &StoredImage| {
            image.id == id
                && image.is_within_limits()
                && image.layers.iter().all(|layer| layers.contains_key(layer))
        });
        let Read::Whole(image) = read else { return read };
        for blob in [image.id, image.manifest] {
            match self.read_blob(blob) {
                Ok(_) => {}
                Err(ImageStoreError::Io { what, error }) if error.kind() != io::ErrorKind::NotFound => {
                    return Read::Unread(format!("{what}: {error}"));
                }
                Err(_) => return Read::Absent,
            }
        }
        Read::Whole(image)
    }

    /// A manifest or configuration, verified.
    ///
    /// # Errors
    /// It is not there, or not what its digest says.
    pub(super) fn read_blob(&self, digest: Digest) -> ImageStoreResult<Vec<u8>> {
        let path = self.path("blobs/sha256", &digest.hex());
        let bytes = read_bounded(&path, IMAGE_JSON_BYTES_MAX)
            .map_err(|error| ImageStoreError::io(format!("reading {}", path.display()), error))?;
        match Digest::of(&bytes) {
            found if found == digest => Ok(bytes),
            found => Err(ImageStoreError::Digest { wanted: digest, found }),
        }
    }

    /// Stores a manifest or configuration, on the disk when this returns.
    pub(super) fn write_blob(&self, bytes: &[u8]) -> ImageStoreResult<Digest> {
        let digest = Digest::of(bytes);
        let path = self.path("blobs/sha256", &digest.hex());
        if self.read_blob(digest).is_err() {
            let beside = self.path("blobs/sha256", &format!("{}.new", digest.hex()));
            replace(&path, &beside, bytes)
                .map_err(|error| ImageStoreError::io(format!("writing {}", path.display()), error))?;
        }
        Ok(digest)
    }

    /// Stores an image's record, on the disk when this returns.
    pub(super) fn write_image(&self, image: &StoredImage) -> ImageStoreResult<()> {
        let path = self.path("records", &image.id.hex());
        let beside = self.path("records", &format!("{}.new", image.id.hex()));
        replace(&path, &beside, &record::to_bytes(image))
            .map_err(|error| ImageStoreError::io(format!("writing {}", path.display()), error))
    }

    /// Removes an image's record, and its blobs unless they are among those that others need.
    pub(super) fn remove_image(
        &self,
        image: &StoredImage,
        needed: &SortedSet<Digest>,
    ) -> ImageStoreResult<()> {
        let path = self.path("records", &image.id.hex());
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ImageStoreError::io(format!("removing {}", path.display()), error));
            }
            Ok(()) | Err(_) => {}
        }
        for blob in [image.id, image.manifest] {
            if !needed.contains(&blob) {
                remove_leftover(&self.path("blobs/sha256", &blob.hex()));
            }
        }
        Ok(())
    }

    /// Takes a layer, or a part of one, from where it counts, on the disk when this returns; [`Disk::empty_removed`] removes it, and knows
    /// parts by their name. One that is not there is no error.
    ///
    /// # Errors
    /// The file system's: it is where it was.
    pub(super) fn set_aside(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix = if path.starts_with(self.root.join("ingest")) { PART } else { "" };
        loop {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let to = self.path(REMOVED, &format!("{prefix}{name}-{serial}"));
            match std::fs::rename(path, &to) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                // Of an earlier start.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                    ) && serial < STORE_ENTRIES_MAX as u64 => {}
                Err(error) => return Err(error),
            }
        }
        self.has_removed.store(true, Ordering::Relaxed);
        for above in [path.parent(), Some(&*self.root.join(REMOVED))].into_iter().flatten() {
            rustix::fs::fsync(&directory(above)?)?;
        }
        Ok(())
    }

    /// True when there may be something to remove.
    pub(super) fn has_removed(&self) -> bool {
        self.has_removed.load(Ordering::Relaxed)
    }

    /// Removes what was set aside, while `goes_on` returns true; of whole layers only where no container may use them. True when nothing is
    /// left to do. What cannot be removed is logged once, and tried again.
    pub(super) fn empty_removed(&self, may_be_used: bool, mut goes_on: impl FnMut() -> bool) -> bool {
        self.has_removed.store(false, Ordering::Relaxed);
        let names = self.names(REMOVED).unwrap_or_default();
        for name in names {
            let path = self.path(REMOVED, &name);
            if may_be_used && !name.starts_with(PART) {
                self.has_removed.store(true, Ordering::Relaxed);
                continue;
            }
            match tree::remove(&path, &mut goes_on) {
                Ok(true) => {}
                Ok(false) => {
                    self.has_removed.store(true, Ordering::Relaxed);
                    return false;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.has_removed.store(true, Ordering::Relaxed);
                    if !self.is_told.swap(true, Ordering::Relaxed) {
                        log::warn!("{}: cannot be removed: {error}; it is tried again", path.display());
                    }
                }
            }
        }
        true
    }

    /// Sets a layer aside; what cannot be is logged, and tried again at the next start.
    fn drop_layer(&self, path: &Path) {
        if let Err(error) = self.set_aside(path) {
            log::warn!("{}: cannot be removed: {error}; it is tried again at the next start", path.display());
        }
    }

    /// Parts of layers, and how long ago each was changed: nothing for one that was changed in the future.
    pub(super) fn parts(&self) -> io::Result<Vec<(Digest, Duration)>> {
        let names = self.names("ingest")?.into_iter();
        let parts = names.filter_map(|name| Digest::from_hex(&name));
        Ok(parts.map(|part| (part, age(&self.ingest(part)))).collect())
    }

    /// How long ago a whole layer was changed.
    pub(super) fn layer_age(&self, layer: Digest) -> Duration {
        age(&self.layer(layer))
    }

    /// Removes what no image and no root file system needs.
    fn sweep(&self, found: &mut Found) -> io::Result<()> {
        for name in self.names("ingest")? {
            let path = self.path("ingest", &name);
            let part = Digest::from_hex(&name).filter(|_| age(&path) < INGEST_KEPT);
            match part.and_then(|part| Some((part, read_point(&path.join(RESTART))?))) {
                Some((part, point)) => {
                    let usage = Usage { bytes: point.counts.bytes, inodes: point.counts.inodes };
                    found.parts.insert(part, usage);
                }
                // Nobody can go on with it.
                None => self.drop_layer(&path),
            }
        }
        let needed: SortedSet<Digest> = layers_in_use(&found.images, &found.rootfs).collect();
        let keeps_all = found.has_unread || !found.unknown_rootfs.is_empty();
        for layer in found.layers.keys().copied().filter(|layer| !needed.contains(layer)).collect::<Vec<_>>()
        {
            if found.has_unread || age(&self.layer(layer)) < INGEST_KEPT {
                found.fresh.insert(layer);
            } else if !keeps_all {
                self.drop_layer(&self.layer(layer));
                found.layers.remove(&layer);
            }
        }
        if found.has_unread {
            return Ok(());
        }
        let blobs: SortedSet<Digest> =
            found.images.iter().flat_map(|image| [image.id, image.manifest]).collect();
        for name in self.names("blobs/sha256")? {
            if Digest::from_hex(&name).is_none_or(|blob| !blobs.contains(&blob)) {
                remove_leftover(&self.path("blobs/sha256", &name));
            }
        }
        Ok(())
    }
}

/// Removes something; what cannot be removed is logged, and removed at the next start.
fn remove_leftover(path: &Path) {
    match tree::remove(path, || true) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("{}: cannot be removed: {error}; it is tried again at the next start", path.display());
        }
        Ok(_) | Err(_) => {}
    }
}

/// Layers that images and root file systems use.
pub(super) fn layers_in_use<'a>(
    images: &'a [StoredImage],
    rootfs: &'a SortedMap<String, RootfsRecord>,
) -> impl Iterator<Item = Digest> + 'a {
    let of_images = images.iter().flat_map(|image| &image.layers);
    of_images.chain(rootfs.values().flat_map(|rootfs| &rootfs.layers)).copied()
}

/// A name that was moved from one image to another is in both records when the power went between the two writes: the later one has it.
fn settle_names(images: &mut [StoredImage]) {
    let mut latest: SortedMap<String, u64> = SortedMap::default();
    for tag in images.iter().flat_map(|image| &image.tags) {
        let serial = latest.entry(tag.name.clone()).or_default();
        *serial = tag.serial.max(*serial);
    }
    for image in images {
        image.tags.retain(|tag| latest.get(&tag.name) == Some(&tag.serial));
    }
}

/// How long ago it was changed. Nothing when that is in the future: a clock without a battery is behind after a power cut.
fn age(path: &Path) -> Duration {
    let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    changed.ok().and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default()
}

/// Directories of that mode.
pub(super) fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}
