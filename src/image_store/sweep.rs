//! What leaves the store: layers that nothing uses any more, and what interrupted pulls have left. I/O.
//!
//! ```text
//!     layer of a removed image or container     at once
//!     layer that no image has used so far ┐     after INGEST_KEPT; INGEST_KEPT_SHORT while little of the disk is free;
//!     part of a layer without a writer    ┘     at once when there is no space for another one
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use smol::lock::MutexGuardArc;

use super::disk::{Disk, layers_in_use};
use super::error::ImageStoreError;
use super::layer::Ingest;
use super::shared::Shared;
use super::windows::Window;
use super::{Digest, ImageStore, State};
use crate::filesystem::Filesystem;
use crate::limits::{
    ARCHIVE_ZSTD_WINDOW_BYTES_MAX, INGEST_DISK_FREE_PERCENT, INGEST_KEPT, INGEST_KEPT_SHORT,
    INGEST_SWEEP_PERIOD, INGESTS_BYTES_MAX, INGESTS_MAX, LAYER_PARKED_TIME, LAYERS_PARKED_MAX, REMOVAL_PIECE,
};
use crate::model::SortedSet;

/// A part of a layer in memory, whose pull has ended.
pub(super) struct Parked {
    pub(super) ingest: Box<Ingest>,
    /// Bytes that it has not been fed.
    pub(super) buffer: Vec<u8>,
    since: Instant,
}

impl Parked {
    pub(super) fn new(ingest: Box<Ingest>, buffer: Vec<u8>) -> Self {
        Self { ingest, buffer, since: Instant::now() }
    }
}

impl State {
    /// Keeps a part in memory for a while; returns what is to be dropped, which closes files.
    #[must_use]
    pub(super) fn park(&mut self, parked: Parked) -> Vec<Parked> {
        let mut dropped = self.unpark(parked.ingest.source().diff_id);
        if self.parked.len() == LAYERS_PARKED_MAX {
            dropped.push(self.parked.remove(0));
        }
        self.parked.push(parked);
        dropped
    }

    /// Takes the part of that layer.
    pub(super) fn unpark(&mut self, diff_id: Digest) -> Vec<Parked> {
        self.take_parked(|parked| parked.ingest.source().diff_id == diff_id)
    }

    pub(super) fn take_parked(&mut self, is_wanted: impl FnMut(&Parked) -> bool) -> Vec<Parked> {
        let (taken, left) = std::mem::take(&mut self.parked).into_iter().partition(is_wanted);
        self.parked = left;
        taken
    }

    /// True when the layer may be removed.
    fn is_removable(&self, layer: &Digest) -> bool {
        !self.found.fresh.contains(layer)
            && !self.leased.contains_key(layer)
            && self.found.unknown_rootfs.is_empty()
            && layers_in_use(&self.found.images, &self.found.rootfs).all(|used| used != *layer)
    }
}

/// Removes the part of a layer. Its writer's, or nobody's: the caller holds its lock.
///
/// # Errors
/// The file system's: it stays.
pub(super) fn discard(disk: &Disk, state: &Shared<State>, diff_id: Digest) -> Result<(), ImageStoreError> {
    let parked = state.borrow_mut().unpark(diff_id);
    drop(parked);
    let dir = disk.ingest(diff_id);
    disk.set_aside(&dir)
        .map_err(|error| ImageStoreError::io(format!("removing {}", dir.display()), error))?;
    state.borrow_mut().found.parts.remove(&diff_id);
    Ok(())
}

impl ImageStore {
    /// Work on the disk that takes long: it leaves turns to others.
    pub(super) async fn long_work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = self.inner.long_work.acquire_arc().await;
        let done = self.inner.blocking.run(move || {
            let _turn = turn;
            work()
        });
        done.await
    }

    /// Waits for the right to the window of a compressed archive: all of the memory for windows.
    pub async fn archive_window(&self) -> Window {
        self.inner.windows.take(&self.inner.state, ARCHIVE_ZSTD_WINDOW_BYTES_MAX).await
    }

    /// Removes layers that nothing uses and no lease holds. What a dropped call, or another one that removes the same layer, leaves undone the
    /// next one does.
    pub(super) async fn collect(&self) {
        let removable: Vec<Digest> = {
            let state = self.inner.state.borrow();
            state.found.layers.keys().filter(|layer| state.is_removable(layer)).copied().collect()
        };
        for layer in removable {
            // Another call removes it, or a pull has begun to write it anew. One that comes now waits until it is gone.
            let Some(only) = self.try_only(layer) else { continue };
            // An image that is being stored may use it.
            let turn = self.inner.turn.lock_arc().await;
            let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
            let removed = self.inner.blocking.run(move || {
                let _held = (turn, only);
                remove_layer(&disk, &state, layer);
            });
            removed.await;
        }
        self.empty_removed().await;
    }

    async fn empty_removed(&self) {
        while self.inner.disk.has_removed() {
            let only = self.inner.removal.lock_arc().await;
            let disk = self.inner.disk.clone();
            let may_be_used = !self.inner.state.borrow().found.unknown_rootfs.is_empty();
            // In pieces: others wait for a turn.
            let removed = self.long_work(move || {
                let _only = only;
                disk.empty_removed(may_be_used, super::rootfs::piece(REMOVAL_PIECE))
            });
            if removed.await {
                break;
            }
        }
    }

    /// Removes what interrupted pulls have left when it is old, or soon when little of the disk is free. Called often, it looks now and
    /// then.
    pub async fn sweep(&self) {
        {
            let mut state = self.inner.state.borrow_mut();
            if state.swept.is_some_and(|at| at.elapsed() < INGEST_SWEEP_PERIOD) {
                return;
            }
            state.swept = Some(Instant::now());
        }
        let disk = self.inner.disk.clone();
        let filesystem = self.inner.blocking.run(move || Filesystem::of(disk.root())).await;
        let is_short = filesystem
            .is_ok_and(|disk| disk.bytes_free / 100 < disk.bytes / 10_000 * INGEST_DISK_FREE_PERCENT);
        self.remove_leftovers(if is_short { INGEST_KEPT_SHORT } else { INGEST_KEPT }).await;
    }

    /// There is no space: whatever nobody uses and no lease holds is removed. A pull or an import that found none calls it once its own lease has
    /// ended, too: what it brought would keep the disk full, and would not be enough for the next try either.
    pub async fn make_space(&self) {
        self.remove_leftovers(Duration::ZERO).await;
    }

    /// Removes whole layers and parts that were not changed for that long, and the oldest parts beyond their bounds.
    async fn remove_leftovers(&self, kept: Duration) {
        let parked = self
            .inner
            .state
            .borrow_mut()
            .take_parked(|parked| parked.since.elapsed() >= kept.min(LAYER_PARKED_TIME));
        drop(parked);
        let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
        let old = self.inner.blocking.run(move || old_leftovers(&disk, &state, kept)).await;
        for part in old {
            // One that is written has a writer, who holds it.
            let Some(only) = self.try_only(part) else { continue };
            let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
            let discarded = self.long_work(move || {
                let _only = only;
                discard(&disk, &state, part)
            });
            if let Err(error) = discarded.await {
                log::warn!("{error}; it is tried again");
            }
        }
        self.collect().await;
    }

    fn try_only(&self, diff_id: Digest) -> Option<MutexGuardArc<()>> {
        self.lock_of(diff_id).try_lock_arc()
    }
}

/// The parts that are to be removed; whole layers are left to the collection.
fn old_leftovers(disk: &Disk, state: &Shared<State>, kept: Duration) -> Vec<Digest> {
    // With the time since the end of the pull that was the last to have it; one under way keeps what it has.
    let (fresh, known): (Vec<(Digest, Option<Duration>)>, _) = {
        let state = &mut *state.borrow_mut();
        state.released.retain(|layer, _| state.found.fresh.contains(layer));
        let fresh = state.found.fresh.iter().filter(|layer| !state.leased.contains_key(layer));
        let fresh = fresh.map(|layer| (*layer, state.released.get(layer).map(Instant::elapsed)));
        (if state.found.has_unread { Vec::new() } else { fresh.collect() }, state.found.parts.clone())
    };
    let is_old = |(layer, since): &(Digest, Option<Duration>)| {
        since.unwrap_or(Duration::MAX).min(disk.layer_age(*layer)) >= kept
    };
    let old: SortedSet<Digest> = fresh.into_iter().filter(is_old).map(|(layer, _)| layer).collect();
    state.borrow_mut().found.fresh.retain(|layer| !old.contains(layer));
    let mut parts = disk.parts().unwrap_or_default();
    parts.sort_by_key(|(_, age)| *age);
    let (mut count, mut bytes) = (0, 0_u64);
    parts.retain(|(part, age)| {
        let of = known.get(part).map_or(0, |usage| usage.bytes);
        let fits = count < INGESTS_MAX && bytes.saturating_add(of) <= INGESTS_BYTES_MAX;
        if *age < kept && fits {
            count += 1;
            bytes += of;
        }
        *age >= kept || !fits
    });
    parts.into_iter().map(|(part, _)| part).collect()
}

/// Removes a layer unless it is used by now. Memory first: whoever looks for it meanwhile does not find it.
fn remove_layer(disk: &Disk, state: &Shared<State>, layer: Digest) {
    let record = {
        let mut state = state.borrow_mut();
        if !state.is_removable(&layer) {
            return;
        }
        state.found.layers.remove(&layer)
    };
    let Some(record) = record else { return };
    let path: &Path = &disk.layer(layer);
    if let Err(error) = disk.set_aside(path) {
        log::warn!("{}: cannot be removed: {error}; it is tried again", path.display());
        if path.exists() {
            state.borrow_mut().found.layers.insert(layer, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::record::Layer;
    use super::super::unpack::Counts;
    use super::*;
    use crate::blocking::Blocking;
    use crate::image_store::Snapshotter;

    /// Whoever removes an image waits for no download of another one.
    #[test]
    fn a_layer_that_is_being_written_holds_up_no_collection() {
        let root = std::env::temp_dir().join(format!("smolet-collect-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let blocking = Rc::new(Blocking::on_this_thread());
        let store = smol::block_on(ImageStore::open(&root, blocking)).unwrap();
        let [written, unused] = [&b"written"[..], b"unused"].map(Digest::of);
        for diff_id in [written, unused] {
            std::fs::create_dir(store.inner.disk.layer(diff_id)).unwrap();
            let layer =
                Layer { diff_id, counts: Counts::default(), implicit: Vec::new(), form: Snapshotter::Native };
            store.inner.state.borrow_mut().found.layers.insert(diff_id, layer);
        }
        let writer = store.try_only(written);
        let collected = async {
            store.collect().await;
            true
        };
        let waits = async {
            async_io::Timer::after(Duration::from_secs(10)).await;
            false
        };
        assert!(smol::block_on(smol::future::or(collected, waits)));
        assert_eq!([written, unused].map(|layer| store.has_layer(&layer)), [true, false]);
        drop(writer);
        smol::block_on(store.collect());
        assert!(!store.has_layer(&written) && !store.inner.disk.layer(written).exists());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
