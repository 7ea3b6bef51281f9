//! The store's directory: reading it at the start, and every change of it. I/O, blocking.
//!
//! ```text
//!     blobs/sha256/HEX     manifests and configurations
//!     layers/DIFF_ID/      fs (the files), layer (the record)
//!     records/ID           an image: names, layers, labels; written last, after everything that it names is on the disk
//!     ingest/DIFF_ID/      layers that arrive
//!     rootfs/CONTAINER/    record, upper, work, merged
//!     empty/               a layer without files
//! ```
//!
//! An image exists when its record and all that it names exist. Everything else is a leftover, removed at the start; layers of a pull that
//! was interrupted not long ago are kept for it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::digest::Digest;
use super::error::{ImageStoreError, ImageStoreResult};
use super::layer::{FILES, RECORD};
use super::record::{self, Layer, RootfsRecord, StoredImage};
use crate::filesystem::{read_bounded, replace};
use crate::limits::{
    IMAGE_JSON_BYTES_MAX, INGEST_KEPT, LAYER_RECORD_BYTES_MAX, ROOTFS_MAX, ROOTFS_RECORD_BYTES_MAX,
    STORE_ENTRIES_MAX, STORED_IMAGE_BYTES_MAX, STORED_IMAGES_MAX,
};
use crate::model::{SortedMap, SortedSet};
use crate::tree;

const DIRECTORIES: [&str; 6] = ["blobs/sha256", "layers", "records", "ingest", "empty", "probe"];

/// Paths of the store.
#[derive(Debug)]
pub(super) struct Disk {
    root: PathBuf,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) images: Vec<StoredImage>,
    pub(super) layers: SortedMap<Digest, Layer>,
    pub(super) rootfs: SortedMap<String, RootfsRecord>,
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
        let disk = Self { root: root.canonicalize().map_err(failed)? };
        let mut found = Found::default();
        for name in disk.names("layers").map_err(failed)? {
            match Digest::from_hex(&name).and_then(|diff_id| disk.read_layer(diff_id)) {
                Some(layer) => drop(found.layers.insert(layer.diff_id, layer)),
                None => remove_leftover(&disk.path("layers", &name)),
            }
        }
        for name in disk.names("rootfs").map_err(failed)? {
            let path = disk.path("rootfs", &name).join("record");
            let bytes = read_bounded(&path, ROOTFS_RECORD_BYTES_MAX).ok();
            // Without a record it is unmounted and removed with those that no container has (`ImageStore::rootfs_names`).
            if let Some(record) = bytes.and_then(|bytes| record::from_bytes::<RootfsRecord>(&bytes))
                && found.rootfs.len() < ROOTFS_MAX
            {
                found.rootfs.insert(name, record);
            }
        }
        for name in disk.names("records").map_err(failed)? {
            let image = Digest::from_hex(&name).and_then(|id| disk.read_image(id, &found.layers));
            match image {
                Some(image) if found.images.len() < STORED_IMAGES_MAX => found.images.push(image),
                _ => {
                    let path = disk.path("records", &name);
                    log::warn!(
                        "{}: damaged or incomplete; the image is absent until it is pulled",
                        path.display()
                    );
                    remove_leftover(&path);
                }
            }
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

    pub(super) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(super) fn ingests(&self) -> PathBuf {
        self.root.join("ingest")
    }

    /// A layer's files.
    pub(super) fn files(&self, layer: Digest) -> PathBuf {
        self.path("layers", &layer.hex()).join(FILES)
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

    fn read_layer(&self, diff_id: Digest) -> Option<Layer> {
        let dir = self.path("layers", &diff_id.hex());
        let bytes = read_bounded(&dir.join(RECORD), LAYER_RECORD_BYTES_MAX).ok()?;
        let layer: Layer = record::from_bytes(&bytes)?;
        let is_whole = layer.diff_id == diff_id && layer.is_within_limits() && dir.join(FILES).is_dir();
        is_whole.then_some(layer)
    }

    fn read_image(&self, id: Digest, layers: &SortedMap<Digest, Layer>) -> Option<StoredImage> {
        let bytes = read_bounded(&self.path("records", &id.hex()), STORED_IMAGE_BYTES_MAX).ok()?;
        let image: StoredImage = record::from_bytes(&bytes)?;
        let is_whole = image.id == id
            && image.is_within_limits()
            && image.layers.iter().all(|layer| layers.contains_key(layer))
            && [image.id, image.manifest].into_iter().all(|blob| self.read_blob(blob).is_ok());
        is_whole.then_some(image)
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

    /// Removes a layer. What cannot be removed is logged, and removed at the next start.
    pub(super) fn remove_layer(&self, layer: Digest) {
        remove_leftover(&self.path("layers", &layer.hex()));
    }

    /// Removes what no image and no root file system needs.
    fn sweep(&self, found: &mut Found) -> io::Result<()> {
        let blobs: SortedSet<Digest> =
            found.images.iter().flat_map(|image| [image.id, image.manifest]).collect();
        for name in self.names("blobs/sha256")? {
            if Digest::from_hex(&name).is_none_or(|blob| !blobs.contains(&blob)) {
                remove_leftover(&self.path("blobs/sha256", &name));
            }
        }
        let needed: SortedSet<Digest> = layers_in_use(&found.images, &found.rootfs).collect();
        for name in self.names("ingest")? {
            let path = self.path("ingest", &name);
            if Digest::from_hex(&name).is_none() || !is_recent(&path) {
                remove_leftover(&path);
            }
        }
        for layer in found.layers.keys().copied().collect::<Vec<_>>() {
            let path = self.path("layers", &layer.hex());
            if !needed.contains(&layer) && !is_recent(&path) {
                remove_leftover(&path);
                found.layers.remove(&layer);
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

/// True when it was changed within `limits::INGEST_KEPT`, and not in the future.
fn is_recent(path: &Path) -> bool {
    let changed = std::fs::symlink_metadata(path).and_then(|meta| meta.modified());
    changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < INGEST_KEPT))
}

/// Directories of that mode.
pub(super) fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}
