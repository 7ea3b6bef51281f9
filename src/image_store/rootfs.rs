//! Root file systems of containers, and views of images for image volumes.
//!
//! ```text
//!     rootfs/ID/record     image and layers, written before anything is made: layers in use stay
//!     rootfs/ID/upper      what the container writes (overlay)
//!     rootfs/ID/work       overlayfs' own
//!     rootfs/ID/merged     the root: mounted, or the copy
//! ```
//!
//! A mount outlives the agent. After a restart the runtime asks for those that are there ([`ImageStore::rootfs_names`]), and removes
//! those of containers that it does not have.

use std::io;
use std::iter::Sum;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, chownat};
use rustix::io::Errno;

use super::copy::{Shift, copy_layer, shift_owners};
use super::digest::Digest;
use super::disk::{Disk, make_directories};
use super::error::{ImageStoreError, ImageStoreResult};
use super::layer::directory;
use super::overlay::{Overlay, detach};
use super::record::{self, Layer, RootfsRecord, Snapshotter, StoredImage};
use super::{ImageStore, State};
use crate::filesystem::replace_unsynced;
use crate::limits::{
    REMOVAL_PIECE, ROOTFS_MAX, VOLUME_USAGE_PIECE, WRITABLE_LAYER_ENTRIES_MAX, WRITABLE_LAYER_USAGE_AGE_MAX,
    WRITABLE_LAYERS_USAGE_TIME,
};
use crate::tree::{self, Walk, WalkResult};

pub use crate::oci::runtime_spec::IdMapping;

/// How a root file system is wanted.
#[derive(Clone, Debug, Default)]
pub struct RootfsOptions {
    /// A view without a writable layer, for image volumes.
    pub read_only: bool,
    /// Users of the pod's user namespace; empty for the node's.
    pub uids: Vec<IdMapping>,
    /// Groups, likewise.
    pub gids: Vec<IdMapping>,
    /// The `SELinux` label of its files where it is an overlay; empty: each has its own. A copy is left to the caller.
    pub label: String,
}

/// A root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rootfs {
    /// The directory, which is mounted.
    pub path: PathBuf,
    /// How it was made.
    pub snapshotter: Snapshotter,
}

/// What something takes on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Usage {
    /// A layer's.
    pub(super) fn of(layer: &Layer) -> Self {
        Self { bytes: layer.counts.bytes, inodes: layer.counts.inodes }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, of| Self {
            bytes: sum.bytes.saturating_add(of.bytes),
            inodes: sum.inodes.saturating_add(of.inodes),
        })
    }
}

impl ImageStore {
    /// Makes a container's root file system. One that is there is mounted again if need be.
    ///
    /// # Errors
    /// A bound is exceeded, the id is no file's name, or the file system's.
    pub async fn rootfs(
        &self,
        id: &str,
        image: &StoredImage,
        options: &RootfsOptions,
    ) -> ImageStoreResult<Rootfs> {
        check_id(id)?;
        // Whiteouts of a layer that was unpacked for copies mean nothing to overlayfs.
        let is_of_copies = {
            let state = self.inner.state.borrow();
            let layers = image.layers.iter().filter_map(|layer| state.found.layers.get(layer));
            layers.map(|layer| layer.form).any(|form| form == Snapshotter::Native)
        };
        let record = RootfsRecord {
            image: image.id,
            layers: image.layers.clone(),
            snapshotter: if is_of_copies { Snapshotter::Native } else { self.inner.snapshotter },
            read_only: options.read_only,
        };
        let known = {
            // In use from now on: a removal of the image leaves the layers.
            let found = &mut self.inner.state.borrow_mut().found;
            let is_whole = image.layers.iter().all(|layer| found.layers.contains_key(layer));
            let rootfs = &mut found.rootfs;
            if !is_whole && !rootfs.contains_key(id) {
                // Removed since the caller looked for it.
                return Err(ImageStoreError::NotFound(image.id.to_string()));
            }
            if rootfs.len() >= ROOTFS_MAX && !rootfs.contains_key(id) {
                let why =
                    format!("the image store has {ROOTFS_MAX} root file systems; remove dead containers");
                return Err(ImageStoreError::Full(why));
            }
            rootfs.insert(id.to_owned(), record.clone())
        };
        if known.as_ref().is_some_and(|known| *known != record) {
            self.inner.state.borrow_mut().found.rootfs.extend(known.map(|known| (id.to_owned(), known)));
            let error = io::Error::from(io::ErrorKind::AlreadyExists);
            return Err(ImageStoreError::io(format!("root file system {id}"), error));
        }
        let shift = Shift { uids: options.uids.clone(), gids: options.gids.clone() };
        let label = options.label.clone();
        let (disk, name) = (self.inner.disk.clone(), id.to_owned());
        let is_new = known.is_none();
        // A copy of the image, or of what its users are to own, takes long.
        let is_long = record.snapshotter == Snapshotter::Native || !shift.is_empty();
        let work = move || make(&disk, &name, &record, (&shift, &label), is_new);
        let made = if is_long { self.long_work(work).await } else { self.inner.blocking.run(work).await };
        if made.is_err() && is_new {
            let (disk, name) = (self.inner.disk.clone(), id.to_owned());
            // A second error tells nothing new; what is left is removed at the next start.
            let _ = self.inner.blocking.run(move || remove(&disk, &name, || true)).await;
            let state = &mut *self.inner.state.borrow_mut();
            state.usage.remove(id);
            state.found.rootfs.remove(id);
        }
        made
    }

    /// The ids of all root file systems on the disk, those included that were not made to the end and have no record.
    ///
    /// # Errors
    /// The file system's.
    pub async fn rootfs_names(&self) -> ImageStoreResult<Vec<String>> {
        let disk = self.inner.disk.clone();
        self.inner.blocking.run(move || disk.rootfs_names()).await
    }

    /// Unmounts and removes a root file system, and layers that nothing uses any more. A missing one is no error.
    ///
    /// # Errors
    /// The file system's.
    pub async fn remove_rootfs(&self, id: &str) -> ImageStoreResult<()> {
        check_id(id)?;
        // In pieces: a container may have made any number of files, and others wait for a turn.
        loop {
            let (disk, name) = (self.inner.disk.clone(), id.to_owned());
            if self.inner.blocking.run(move || remove(&disk, &name, piece(REMOVAL_PIECE))).await? {
                break;
            }
        }
        let was_known = {
            let state = &mut *self.inner.state.borrow_mut();
            state.usage.remove(id);
            let found = &mut state.found;
            let was_unknown = found.unknown_rootfs.remove(id);
            found.rootfs.remove(id).is_some() || was_unknown
        };
        if was_known {
            self.collect().await;
        }
        Ok(())
    }

    /// What all containers have written, ended ones included, and copies of images. What was not counted for
    /// [`WRITABLE_LAYER_USAGE_AGE_MAX`] is counted anew, the oldest first and for [`WRITABLE_LAYERS_USAGE_TIME`]; a copy that was never
    /// counted has its image's size.
    pub async fn rootfs_usages(&self) -> Usage {
        let (began, mut due) = (Instant::now(), Vec::new());
        {
            let state = self.inner.state.borrow();
            let takes_space = |of: &RootfsRecord| !of.read_only || of.snapshotter == Snapshotter::Native;
            for (id, _) in state.found.rootfs.iter().filter(|(_, of)| takes_space(of)) {
                let counted = state.usage.get(id).map(|(at, _)| *at);
                if counted.is_none_or(|at| at + WRITABLE_LAYER_USAGE_AGE_MAX <= began) {
                    due.push((counted, id.clone()));
                }
            }
        }
        let until = began + WRITABLE_LAYERS_USAGE_TIME;
        while Instant::now() < until
            && let Some(oldest) = (0..due.len()).min_by_key(|at| due[*at].0)
        {
            let (_, id) = due.swap_remove(oldest);
            // Removed meanwhile, or not made to the end.
            let _ = self.count(&id, Some(until)).await;
        }
        let state = self.inner.state.borrow();
        state.found.rootfs.iter().map(|(id, of)| state.last_usage(id, of)).sum()
    }

    /// What a container has written.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn rootfs_usage(&self, id: &str) -> ImageStoreResult<Usage> {
        self.count(id, None).await
    }

    /// The same; from that time on it is the last one, if that is more than what was counted so far.
    async fn count(&self, id: &str, until: Option<Instant>) -> ImageStoreResult<Usage> {
        let snapshotter = {
            let state = self.inner.state.borrow();
            state.found.rootfs.get(id).ok_or_else(|| no_rootfs(id))?.snapshotter
        };
        let path = self.inner.disk.path("rootfs", id).join(match snapshotter {
            Snapshotter::Overlay => "upper",
            Snapshotter::Native => "merged",
        });
        let failed =
            |error: io::Error| ImageStoreError::io(format!("measuring root file system {id}"), error);
        let begun = move || Walk::new(&path, false).map(|walk| measure(walk, Usage::default()));
        let (mut walk, mut sum, mut walked) = self.inner.blocking.run(begun).await.map_err(failed)?;
        while walked == WalkResult::Stopped && sum.inodes < WRITABLE_LAYER_ENTRIES_MAX {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            (walk, sum, walked) = self.inner.blocking.run(move || measure(walk, sum)).await;
        }
        let state = &mut *self.inner.state.borrow_mut();
        if let Some(record) = state.found.rootfs.get(id) {
            let last = state.last_usage(id, record);
            if walked == WalkResult::Stopped && last.inodes > sum.inodes {
                sum = last;
            }
            state.usage.insert(id.to_owned(), (Instant::now(), sum));
        }
        Ok(sum)
    }

    /// The directory of what a container has written, with overlayfs' whiteouts for what it has removed; `None` where the root file system is
    /// a copy, or is not there.
    pub fn written_dir(&self, id: &str) -> Option<PathBuf> {
        let state = self.inner.state.borrow();
        let record = state.found.rootfs.get(id).filter(|of| of.snapshotter == Snapshotter::Overlay)?;
        (!record.read_only).then(|| self.inner.disk.path("rootfs", id).join("upper"))
    }

    /// Copies a directory of a container's root file system, before the container starts: the content of an anonymous volume that the
    /// image declares. A path that is not there leaves the target as it is.
    ///
    /// # Errors
    /// The file system's.
    pub async fn copy_out(&self, id: &str, directory: &str, to: &Path) -> ImageStoreResult<()> {
        let root = self.inner.disk.path("rootfs", id).join("merged");
        let (to, directory) = (to.to_owned(), directory.trim_start_matches('/').to_owned());
        self.long_work(move || copy_out(&root, &directory, &to)).await
    }
}

impl State {
    /// What a root file system had when it was counted last; before, that of its image if it is a copy.
    fn last_usage(&self, id: &str, record: &RootfsRecord) -> Usage {
        match self.usage.get(id) {
            Some((_, usage)) => *usage,
            None if record.snapshotter == Snapshotter::Overlay => Usage::default(),
            None => {
                record.layers.iter().filter_map(|layer| self.found.layers.get(layer)).map(Usage::of).sum()
            }
        }
    }
}

fn check_id(id: &str) -> ImageStoreResult<()> {
    let is_name = !id.is_empty()
        && id.len() <= 128
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_name {
        Ok(())
    } else {
        let reason = "an id has 1 to 128 letters, digits, - and _";
        Err(ImageStoreError::invalid(format!("root file system {}", crate::text::quoted(id)), reason))
    }
}

fn no_rootfs(id: &str) -> ImageStoreError {
    ImageStoreError::io(format!("root file system {id}"), io::Error::from(io::ErrorKind::NotFound))
}

fn make(
    disk: &Disk,
    id: &str,
    record: &RootfsRecord,
    (shift, label): (&Shift, &str),
    is_new: bool,
) -> ImageStoreResult<Rootfs> {
    let dir = disk.path("rootfs", id);
    let failed =
        |error: io::Error| ImageStoreError::io(format!("making root file system {}", dir.display()), error);
    let merged = dir.join("merged");
    let rootfs = Rootfs { path: merged.clone(), snapshotter: record.snapshotter };
    if is_new {
        // Leftovers without a record.
        remove(disk, id, || true)?;
        make_directories(&merged, 0o755).map_err(failed)?;
        restrict(&dir, shift).map_err(failed)?;
        // Not synced: after a power cut no container runs, and a root file system without a record is removed with its container.
        replace_unsynced(&dir.join("record"), &dir.join("record.new"), &record::to_bytes(record))
            .map_err(failed)?;
    } else if record.snapshotter == Snapshotter::Native
        || crate::mounts::is_mounted(&merged).map_err(failed)?
    {
        return Ok(rootfs);
    }
    match record.snapshotter {
        Snapshotter::Overlay => mount(disk, &dir, record, (shift, label), is_new).map_err(failed)?,
        Snapshotter::Native => {
            for layer in &record.layers {
                copy_layer(&disk.files(*layer), &merged, shift).map_err(failed)?;
            }
        }
    }
    Ok(rootfs)
}

/// Nobody but root enters the directory: layers have setuid programs. The root user of a user namespace passes through it.
fn restrict(dir: &Path, shift: &Shift) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let (_, group) = shift.of(0, 0);
    let mode = if shift.is_empty() { 0o700 } else { 0o710 };
    chownat(CWD, dir, None, Some(group), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
}

fn mount(
    disk: &Disk,
    dir: &Path,
    record: &RootfsRecord,
    (shift, label): (&Shift, &str),
    is_new: bool,
) -> io::Result<()> {
    let merged = dir.join("merged");
    // A layer that is there twice, mostly one without files, counts where it is highest: overlayfs takes none twice.
    let mut layers: Vec<Digest> = Vec::with_capacity(record.layers.len());
    for layer in record.layers.iter().rev() {
        if !layers.contains(layer) {
            layers.push(*layer);
        }
    }
    let mut lower: Vec<PathBuf> = layers.into_iter().map(|layer| disk.files(layer)).collect();
    // An image without layers; and an overlay without an upper directory needs two below.
    while lower.len() < 1 + usize::from(record.read_only) {
        lower.push(disk.empty());
    }
    if record.read_only && shift.is_empty() {
        return Overlay { lower, upper: None, metacopy: false, label: label.to_owned() }.mount(&merged);
    }
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    if is_new {
        make_directories(&upper, 0o755)?;
        make_directories(&work, 0o700)?;
        // The root's own attributes are those of the highest layer.
        if let Some(highest) = record.layers.last() {
            super::copy::copy_root(&disk.files(*highest), &upper)?;
        }
    }
    let metacopy = !shift.is_empty();
    let mut overlay = Overlay { lower, upper: Some((upper, work)), metacopy, label: label.to_owned() };
    match overlay.mount(&merged) {
        // A kernel before 4.19: data are copied with their owners.
        Err(error) if overlay.metacopy && error.kind() == io::ErrorKind::InvalidInput => {
            overlay.metacopy = false;
            overlay.mount(&merged)?;
        }
        mounted => mounted?,
    }
    if is_new && !shift.is_empty() {
        shift_owners(&merged, shift)?;
    }
    Ok(())
}

/// True when everything is removed; else another call goes on.
fn remove(disk: &Disk, id: &str, mut goes_on: impl FnMut() -> bool) -> ImageStoreResult<bool> {
    let dir = disk.path("rootfs", id);
    let failed =
        |error: io::Error| ImageStoreError::io(format!("removing root file system {}", dir.display()), error);
    detach(&dir.join("merged")).map_err(failed)?;
    // The record last: without it the rest would be nobody's.
    for part in ["merged", "upper", "work", ""] {
        match tree::remove(&if part.is_empty() { dir.clone() } else { dir.join(part) }, &mut goes_on) {
            Ok(false) => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(true) | Err(_) => {}
        }
    }
    Ok(true)
}

/// Counts on for a while.
fn measure(mut walk: Walk, mut sum: Usage) -> (Walk, Usage, WalkResult) {
    let mut goes_on = piece(VOLUME_USAGE_PIECE);
    let walked = walk.go_on(|stat| {
        sum.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        sum.inodes += 1;
        let is_time = !sum.inodes.is_multiple_of(256) || goes_on();
        if sum.inodes < WRITABLE_LAYER_ENTRIES_MAX && is_time {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    (walk, sum, walked)
}

/// True until a piece of work has taken that long.
pub(super) fn piece(time: Duration) -> impl FnMut() -> bool {
    let began = Instant::now();
    move || began.elapsed() < time
}

fn copy_out(root: &Path, path: &str, to: &Path) -> ImageStoreResult<()> {
    let failed = |error: io::Error| ImageStoreError::io(format!("copying {path} to {}", to.display()), error);
    let dir = directory(root).map_err(failed)?;
    match super::unpack::beneath(&dir, path.as_bytes()) {
        // The image has no such directory.
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        from => super::copy::copy_tree(from.map_err(|error| failed(error.into()))?, to).map_err(failed),
    }
}
