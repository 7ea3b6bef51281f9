//! Images of the embedded runtime on disk: blobs, unpacked layers, root file systems of containers.
//!
//! ```text
//! |     registry, archive ──► Lease ──► LayerWriter (one a layer) ──► commit_image ──► StoredImage
//! |                                                                                        │
//! |     container ◄── mount (overlay, or a copy) ◄── rootfs ◄──────────────────────────────┘
//! ```
//!
//! Owns the directory below `images` (`disk`). Layers are content-addressed by the digest of their archive and kept unpacked only: no
//! compressed layer is written; but for those that the store makes of directories (`implicit`). `tar`, `sparse`, `decompress`, `record`, `digest`, `name` are PURE; `unpack`, `layer`, `disk`, `rootfs`,
//! `copy` and `implicit` do blocking I/O, on threads of `blocking`. State in memory is a copy of the records; it changes with the disk, on the same
//! thread, so that a call which is dropped has happened in both or in neither.

mod copy;
mod decompress;
mod digest;
mod disk;
mod error;
mod implicit;
mod import;
pub mod inflate;
mod layer;
mod name;
mod overlay;
mod prune;
mod record;
mod rootfs;
mod shared;
mod sparse;
mod sweep;
pub mod tar;
pub mod unpack;
mod windows;
mod writer;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use smol::lock::{Mutex as AsyncMutex, MutexGuardArc, Semaphore};

pub(crate) use decompress::{GZIP, ZSTD};
pub use digest::Digest;
pub use error::{ImageStoreError, ImageStoreResult};
pub use layer::LayerSource;
pub use overlay::refusal_at as overlay_refusal_at;
pub use record::{Layer, Snapshotter, StoredImage, Tag};
pub use rootfs::{IdMapping, Rootfs, RootfsOptions, Usage};
pub use windows::Window;
pub use writer::LayerWriter;

use crate::blocking::Blocking;
use crate::image::gc::STORE_IS_FULL;
use crate::image::name::{ImageName, full_name};
use crate::limits::{
    IMAGE_JOBS_MAX, IMAGE_JSON_BYTES_MAX, LAYERS_ARRIVING_MAX, LAYERS_PER_IMAGE_MAX, STORED_IMAGE_LABELS_MAX,
    STORED_IMAGE_NAMES_MAX, STORED_IMAGES_MAX, STORED_LABEL_BYTES_MAX,
};
use crate::model::runtime::Image;
use crate::model::{SortedMap, SortedSet};
use disk::{Disk, Found, layers_in_use};
use shared::Shared;
use sweep::Parked;
use windows::Windows;

/// The store. Cheap to clone; all clones are one store.
#[derive(Clone)]
pub struct ImageStore {
    inner: Rc<Inner>,
}

struct Inner {
    disk: Arc<Disk>,
    blocking: Rc<Blocking>,
    snapshotter: Snapshotter,
    state: Shared<State>,
    /// Held while records are changed, and while a layer is removed.
    turn: Arc<AsyncMutex<()>>,
    /// Held while what was set aside is removed.
    removal: Arc<AsyncMutex<()>>,
    /// One for each layer that arrives.
    ingests: RefCell<SortedMap<Digest, Arc<AsyncMutex<()>>>>,
    /// Layers that arrive at once.
    arriving: Arc<Semaphore>,
    /// Memory of those that are compressed with zstd.
    windows: Arc<Windows>,
    /// Blocking jobs that take long.
    long_work: Arc<Semaphore>,
}

/// What is on the disk.
struct State {
    found: Found,
    /// Layers of pulls and imports under way, with the number of their leases.
    leased: SortedMap<Digest, usize>,
    /// Layers that no image has, and when the last lease of each ended.
    released: SortedMap<Digest, Instant>,
    /// Of the name that was given last.
    serial: u64,
    /// Usage of root file systems, and when it was counted; one for each at most.
    usage: SortedMap<String, (Instant, Usage)>,
    /// Parts of layers whose pull has ended; at most `limits::LAYERS_PARKED_MAX`.
    parked: Vec<Parked>,
    /// When leftovers were looked for last.
    swept: Option<Instant>,
}

impl State {
    /// A layer is in the store.
    fn arrived(&mut self, mut layer: Layer) {
        layer.implicit = Vec::new();
        self.found.parts.remove(&layer.diff_id);
        self.found.fresh.insert(layer.diff_id);
        self.found.layers.insert(layer.diff_id, layer);
    }

    /// An image's record is on the disk.
    fn put(&mut self, image: StoredImage) {
        for layer in &image.layers {
            self.found.fresh.remove(layer);
        }
        match self.found.images.iter_mut().find(|known| known.id == image.id) {
            Some(known) => *known = image,
            None => self.found.images.push(image),
        }
    }
}

/// An image to be stored, whose layers are in the store.
#[derive(Clone, Debug, Default)]
pub struct NewImage {
    /// The name that it was pulled or saved by: `busybox`, `docker.io/library/busybox:1`, `…@sha256:…`.
    pub name: String,
    /// Digest of what the name refers to: an index or the manifest. It is the image's digest in the CRI.
    pub target: Option<Digest>,
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
    /// The configuration's bytes.
    pub config: Vec<u8>,
    /// Garbage collection keeps it.
    pub pinned: bool,
    /// Labels. They and the pin replace those that the image has, unless there are none and no pin.
    pub labels: Vec<(String, String)>,
}

impl ImageStore {
    /// Opens the store in that directory, which is made, and removes leftovers.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub async fn open(root: &Path, blocking: Rc<Blocking>) -> ImageStoreResult<Self> {
        let path = root.to_owned();
        let opened = blocking.run(move || {
            let (disk, found) = Disk::open(&path)?;
            let snapshotter = overlay::probe(&disk.path("probe", ""));
            Ok((disk, found, snapshotter))
        });
        let (disk, found, snapshotter) = opened.await?;
        let root = disk.root().display();
        let snapshotter = match snapshotter {
            Ok(()) => Snapshotter::Overlay,
            Err(why) if overlay::is_refusal(&why) => {
                log::warn!(
                    "{root}: overlayfs cannot be mounted ({why}); containers get copies of their images, which takes time and space"
                );
                Snapshotter::Native
            }
            Err(why) => {
                log::warn!(
                    "{root}: whether overlayfs can be mounted cannot be tried now ({why}); it is taken for granted"
                );
                Snapshotter::Overlay
            }
        };
        let serial =
            found.images.iter().flat_map(|image| &image.tags).map(|tag| tag.serial).max().unwrap_or(0);
        Ok(Self {
            inner: Rc::new(Inner {
                disk: Arc::new(disk),
                blocking,
                snapshotter,
                state: Shared::new(State {
                    found,
                    leased: SortedMap::default(),
                    serial,
                    usage: SortedMap::default(),
                    parked: Vec::new(),
                    released: SortedMap::default(),
                    swept: None,
                }),
                turn: Arc::default(),
                removal: Arc::default(),
                ingests: RefCell::default(),
                arriving: Arc::new(Semaphore::new(LAYERS_ARRIVING_MAX)),
                windows: Arc::default(),
                long_work: Arc::new(Semaphore::new(IMAGE_JOBS_MAX)),
            }),
        })
    }

    /// How root file systems are made here.
    pub fn snapshotter(&self) -> Snapshotter {
        self.inner.snapshotter
    }

    /// The store's directory.
    pub fn root(&self) -> &Path {
        self.inner.disk.root()
    }

    // ---- images ----------------------------------------------------------------------------------------

    /// Finds an image by its id (also by its first digits, without a name of that form), name, or name with a digest.
    pub fn resolve(&self, reference: &str) -> Option<StoredImage> {
        let state = self.inner.state.borrow();
        name::find(&state.found.images, reference).cloned()
    }

    /// All images.
    pub fn list(&self) -> Vec<StoredImage> {
        self.inner.state.borrow().found.images.clone()
    }

    /// The configuration (OCI image-spec) of an image.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub async fn config(&self, image: &StoredImage) -> ImageStoreResult<Vec<u8>> {
        let (disk, id) = (self.inner.disk.clone(), image.id);
        self.inner.blocking.run(move || disk.read_blob(id)).await
    }

    /// Removes an image with all its names; a missing one is no error. Its layers stay while a container or another image uses them.
    ///
    /// # Errors
    /// The file system's.
    pub async fn remove(&self, reference: &str) -> ImageStoreResult<()> {
        let turn = self.inner.turn.lock_arc().await;
        let Some(image) = self.resolve(reference) else { return Ok(()) };
        let needed: SortedSet<Digest> = {
            let state = self.inner.state.borrow();
            let others = state.found.images.iter().filter(|other| other.id != image.id);
            others.flat_map(|other| [other.id, other.manifest]).collect()
        };
        let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
        let removed = self.inner.blocking.run(move || {
            let _turn = turn;
            disk.remove_image(&image, &needed)?;
            state.borrow_mut().found.images.retain(|other| other.id != image.id);
            Ok(())
        });
        removed.await?;
        self.collect().await;
        Ok(())
    }

    /// Pins an image, or lets garbage collection have it again; labels replace those that it has.
    ///
    /// # Errors
    /// It does not exist, a bound is exceeded, or the file system's.
    pub async fn pin(
        &self,
        reference: &str,
        pinned: bool,
        labels: Vec<(String, String)>,
    ) -> ImageStoreResult<()> {
        check_labels(&labels)?;
        let turn = self.inner.turn.lock_arc().await;
        let image = self.resolve(reference).ok_or_else(|| ImageStoreError::NotFound(reference.to_owned()))?;
        let image = StoredImage { pinned, labels, ..image };
        let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
        let written = self.inner.blocking.run(move || {
            let _turn = turn;
            write_image(&disk, &state, image)
        });
        written.await
    }

    /// Gives an image a further name, with the digest of the reference if that has one; another image with that tag loses it.
    ///
    /// # Errors
    /// It does not exist, the name is invalid, a bound is exceeded, or the file system's.
    pub async fn tag(&self, reference: &str, name: &str) -> ImageStoreResult<StoredImage> {
        let image = self.resolve(reference).ok_or_else(|| ImageStoreError::NotFound(reference.to_owned()))?;
        let lease = self.lease();
        lease.hold(&image.layers);
        let new = NewImage {
            name: name.to_owned(),
            target: std::iter::once(reference)
                .chain(image.digests.iter().rev().map(|digest| &**digest))
                .find_map(|digest| Digest::parse(digest.split_once('@')?.1)),
            manifest: self.blob(image.manifest).await?,
            config: self.blob(image.id).await?,
            pinned: image.pinned,
            labels: image.labels,
        };
        self.commit_image(&lease, new).await
    }

    /// Bytes and inodes of all layers, and of what has arrived of further ones.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.borrow();
        state.found.layers.values().map(Usage::of).chain(state.found.parts.values().copied()).sum()
    }

    // ---- storing ---------------------------------------------------------------------------------------

    /// Begins a pull or an import: layers that are written or found by it stay until it is dropped.
    pub fn lease(&self) -> Lease {
        Lease { store: self.clone(), layers: RefCell::default() }
    }

    /// True when the layer is in the store.
    pub fn has_layer(&self, diff_id: &Digest) -> bool {
        self.inner.state.borrow().found.layers.contains_key(diff_id)
    }

    /// True when the manifest or configuration is in the store.
    pub fn has_blob(&self, digest: &Digest) -> bool {
        let state = self.inner.state.borrow();
        state.found.images.iter().any(|image| image.id == *digest || image.manifest == *digest)
    }

    /// A manifest or configuration of a stored image.
    ///
    /// # Errors
    /// It is not there, or is damaged.
    pub async fn blob(&self, digest: Digest) -> ImageStoreResult<Vec<u8>> {
        let disk = self.inner.disk.clone();
        self.inner.blocking.run(move || disk.read_blob(digest)).await
    }

    /// Stores an image, seen from now on and after a power cut too. Another image with its tag loses it.
    ///
    /// # Errors
    /// A layer is missing, the configuration is no such, a bound is exceeded, or the file system's.
    pub async fn commit_image(&self, lease: &Lease, new: NewImage) -> ImageStoreResult<StoredImage> {
        check_labels(&new.labels)?;
        let config = name::Config::parse(&new.config)
            .map_err(|reason| ImageStoreError::invalid(format!("image {}", new.name), reason))?;
        let turn = self.inner.turn.lock_arc().await;
        lease.hold(&config.layers);
        let image = self.prepare(&new, &config)?;
        let (moved, layers) = {
            let state = self.inner.state.borrow();
            let is_moved = |tag: &Tag| image.tags.iter().any(|ours| ours.name == tag.name);
            let others = state.found.images.iter().filter(|other| other.id != image.id);
            let moved: Vec<StoredImage> = others
                .filter(|other| other.tags.iter().any(is_moved))
                .map(|other| {
                    let mut other = other.clone();
                    other.tags.retain(|tag| !is_moved(tag));
                    other
                })
                .collect();
            let used: SortedSet<Digest> = layers_in_use(&state.found.images, &state.found.rootfs).collect();
            // Some of what uses layers is not known.
            let all = state.found.has_unread || !state.found.unknown_rootfs.is_empty();
            let layers: Vec<(Digest, bool)> =
                config.layers.iter().map(|layer| (*layer, all || used.contains(layer))).collect();
            (moved, layers)
        };
        let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
        let blobs = (new.manifest, new.config);
        let stored = self.inner.blocking.run(move || {
            let _turn = turn;
            let failed =
                |error| ImageStoreError::io(format!("describing directories of image {}", image.id), error);
            let layers = implicit::describe(&disk, &state, &layers).map_err(failed)?;
            let image = StoredImage { layers, ..image };
            disk.write_blob(&blobs.0)?;
            disk.write_blob(&blobs.1)?;
            write_image(&disk, &state, image.clone())?;
            // Whatever their records say for now: a tag is one image's, as it is when the store is opened.
            for other in &moved {
                state.borrow_mut().put(other.clone());
            }
            moved.into_iter().try_for_each(|other| write_image(&disk, &state, other)).map(|()| image)
        });
        let stored = stored.await;
        if stored.as_ref().is_err_and(ImageStoreError::is_no_space) {
            self.make_space().await;
        }
        stored
    }

    /// The record of an image, with its new names beside those that it has.
    fn prepare(&self, new: &NewImage, config: &name::Config) -> ImageStoreResult<StoredImage> {
        let invalid = |reason: String| ImageStoreError::invalid(format!("image {}", new.name), reason);
        if new.manifest.len().max(new.config.len()) > IMAGE_JSON_BYTES_MAX {
            return Err(invalid(format!(
                "its manifest or configuration is larger than {IMAGE_JSON_BYTES_MAX} bytes"
            )));
        }
        if config.layers.len() > LAYERS_PER_IMAGE_MAX {
            return Err(invalid(format!("it has more than {LAYERS_PER_IMAGE_MAX} layers")));
        }
        let mut state = self.inner.state.borrow_mut();
        let mut size = (new.manifest.len() + new.config.len()) as u64;
        for layer in &config.layers {
            let there = state.found.layers.get(layer);
            size += there.ok_or_else(|| invalid(format!("layer {layer} is not in the store")))?.counts.bytes;
        }
        let (id, manifest) = (Digest::of(&new.config), Digest::of(&new.manifest));
        let full = full_name(&new.name).map_err(invalid)?;
        let ImageName { repository, tag, .. } = ImageName::parse(&full).map_err(invalid)?;
        let known = state.found.images.iter().find(|image| image.id == id).cloned();
        if known.is_none() && state.found.images.len() >= STORED_IMAGES_MAX {
            let why =
                format!("{STORE_IS_FULL}: it has {STORED_IMAGES_MAX} images; remove some (smolet image rm)");
            return Err(ImageStoreError::Full(why));
        }
        // A pull says nothing about them: they stay.
        let is_silent = new.labels.is_empty() && !new.pinned;
        let (pinned, labels) = known
            .as_ref()
            .filter(|_| is_silent)
            .map_or_else(|| (new.pinned, new.labels.clone()), |image| (image.pinned, image.labels.clone()));
        let (mut tags, mut digests) =
            known.map_or_else(Default::default, |image| (image.tags, image.digests));
        state.serial += 1;
        if !tag.is_empty() {
            let name = format!("{repository}:{tag}");
            tags.retain(|tag: &Tag| tag.name != name);
            tags.push(Tag { name, serial: state.serial });
        }
        let digest = format!("{repository}@{}", new.target.unwrap_or(manifest));
        digests.retain(|known| *known != digest);
        digests.push(digest);
        while tags.len() + digests.len() > STORED_IMAGE_NAMES_MAX {
            if digests.len() > 1 {
                digests.remove(0);
            } else if let Some(oldest) = (0..tags.len()).min_by_key(|at| tags[*at].serial) {
                // Builds that change nothing are tagged without end.
                tags.remove(oldest);
            }
        }
        let image = StoredImage {
            id,
            manifest,
            tags,
            digests,
            layers: config.layers.clone(),
            size,
            user: config.user.clone(),
            pinned,
            labels,
        };
        if image.is_within_limits() { Ok(image) } else { Err(invalid("a name of it is too long".to_owned())) }
    }

    /// Waits until no other writer has this layer.
    async fn only(&self, diff_id: Digest) -> MutexGuardArc<()> {
        self.lock_of(diff_id).lock_arc().await
    }

    fn lock_of(&self, diff_id: Digest) -> Arc<AsyncMutex<()>> {
        let mut ingests = self.inner.ingests.borrow_mut();
        ingests.retain(|_, lock| Arc::strong_count(lock) > 1);
        ingests.entry(diff_id).or_default().clone()
    }
}

/// Stores an image's record, on the disk and then in memory.
fn write_image(disk: &Disk, state: &Shared<State>, image: StoredImage) -> ImageStoreResult<()> {
    disk.write_image(&image)?;
    state.borrow_mut().put(image);
    Ok(())
}

fn check_labels(labels: &[(String, String)]) -> ImageStoreResult<()> {
    let is_long = |(key, value): &(String, String)| key.len().max(value.len()) > STORED_LABEL_BYTES_MAX;
    if labels.len() > STORED_IMAGE_LABELS_MAX || labels.iter().any(is_long) {
        let most =
            format!("at most {STORED_IMAGE_LABELS_MAX} labels of {STORED_LABEL_BYTES_MAX} bytes are kept");
        return Err(ImageStoreError::Full(most));
    }
    Ok(())
}

/// A pull or an import under way. Layers that it wrote or found are not removed while it is there.
pub struct Lease {
    store: ImageStore,
    layers: RefCell<Vec<Digest>>,
}

impl Lease {
    fn hold(&self, layers: &[Digest]) {
        let mut held = self.layers.borrow_mut();
        for layer in layers.iter().filter(|layer| !held.contains(layer)).copied().collect::<Vec<_>>() {
            held.push(layer);
            *self.store.inner.state.borrow_mut().leased.entry(layer).or_default() += 1;
        }
    }

    /// Begins or goes on with a layer; `None` when it is in the store. Waits while another pull writes it.
    ///
    /// # Errors
    /// The file system's.
    pub async fn layer(&self, source: LayerSource) -> ImageStoreResult<Option<LayerWriter>> {
        self.hold(&[source.diff_id]);
        let only = self.store.only(source.diff_id).await;
        if self.store.has_layer(&source.diff_id) {
            return Ok(None);
        }
        LayerWriter::open(self.store.clone(), source, only).await.map(Some)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.store.inner.state.borrow_mut();
        for layer in self.layers.borrow().iter() {
            if let Some(count) = state.leased.get_mut(layer) {
                *count -= 1;
                if *count == 0 {
                    state.leased.remove(layer);
                    if state.found.fresh.contains(layer) {
                        state.released.insert(*layer, Instant::now());
                    }
                }
            }
        }
    }
}

impl StoredImage {
    /// CRI `Image`.
    pub fn to_model(&self) -> Image {
        // `getUserFromImage`: a number, or a name; the group behind a colon is not reported.
        let user = self.user.split(':').next().unwrap_or_default();
        let uid = user.parse().ok();
        Image {
            id: self.id.to_string().into(),
            repo_tags: self.tags.iter().map(|tag| tag.name.as_str().into()).collect(),
            repo_digests: self.digests.iter().map(|digest| digest.as_str().into()).collect(),
            size_bytes: self.size,
            uid,
            username: if uid.is_some() { "".into() } else { user.into() },
            pinned: self.pinned,
        }
    }
}
