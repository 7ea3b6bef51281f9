//! Writes a layer that arrives in pieces, on threads.

use smol::lock::{MutexGuardArc, SemaphoreGuardArc};

use super::digest::Digest;
use super::disk::Disk;
use super::error::{ImageStoreError, ImageStoreResult};
use super::layer::{Ingest, LayerSource};
use super::record::Layer;
use super::shared::Shared;
use super::sweep::{Parked, discard};
use super::windows::Window;
use super::{ImageStore, State, Usage};
use crate::limits::LAYER_FEED_BYTES;

/// A layer that is being written. When it is dropped, what was unpacked stays for a later writer of the same layer, which goes on at
/// the very byte in the same process for a while, and at the last restart point later on.
///
/// A write that is cancelled ends the writer: a further call but [`LayerWriter::restart`] fails. A link that is cut is no reason to drop
/// it: the next request begins at [`LayerWriter::offset`].
pub struct LayerWriter {
    store: ImageStore,
    source: LayerSource,
    /// Gone while a thread has it.
    held: Option<Held>,
}

/// A part of a layer, and the right to write it: no other writer of this layer is there, also while a thread of an abandoned one runs.
struct Held {
    state: Shared<State>,
    diff_id: Digest,
    /// Gone after an error.
    ingest: Option<Box<Ingest>>,
    /// At most `limits::LAYER_FEED_BYTES` and a piece.
    buffer: Vec<u8>,
    /// The right to its window, once it wants one. It is given back before the right to write.
    window: Window,
    _only: MutexGuardArc<()>,
    _arriving: SemaphoreGuardArc,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(ingest) =
            self.ingest.take().filter(|ingest| ingest.offset() > 0 || !self.buffer.is_empty())
        {
            let parked = Parked::new(ingest, std::mem::take(&mut self.buffer));
            let dropped = self.state.borrow_mut().park(parked);
            drop(dropped);
        }
    }
}

impl Held {
    /// Unpacks what was collected. Bytes of the window that the rest of it waits for.
    fn feed(&mut self, disk: &Disk) -> ImageStoreResult<Option<u64>> {
        let Some(ingest) = &mut self.ingest else { return Err(abandoned(self.diff_id)) };
        match ingest.feed(&self.buffer) {
            Ok(taken) => {
                self.buffer.drain(..taken);
                ingest.touch();
                let wanted = ingest.wants_window();
                if wanted.is_some() {
                    // First: it waits for those that wait for what it has.
                    self.window.clear();
                }
                let counts = ingest.counts();
                let usage = Usage { bytes: counts.bytes, inodes: counts.inodes };
                self.state.borrow_mut().found.parts.insert(self.diff_id, usage);
                Ok(wanted)
            }
            Err(error) => {
                self.buffer.clear();
                Err(self.failed(disk, error))
            }
        }
    }

    fn finish(&mut self, disk: &Disk) -> ImageStoreResult<Layer> {
        let ingest = self.ingest.take().ok_or_else(|| abandoned(self.diff_id))?;
        let finished = ingest.finish(disk);
        self.window.clear();
        match finished {
            Ok(layer) => {
                self.state.borrow_mut().arrived(layer.clone());
                Ok(layer)
            }
            Err(error) => Err(self.failed(disk, error)),
        }
    }

    /// What is wrong is not gone on with, and what has no room does not keep it.
    fn failed(&mut self, disk: &Disk, error: ImageStoreError) -> ImageStoreError {
        self.ingest = None;
        self.window.clear();
        let is_wrong = error.is_final() || matches!(error, ImageStoreError::Digest { .. });
        if (is_wrong || error.is_no_space())
            && let Err(error) = discard(disk, &self.state, self.diff_id)
        {
            log::warn!("{error}; it is tried again");
        }
        error
    }

    fn begin_again(
        &mut self,
        disk: &Disk,
        source: LayerSource,
        form: super::Snapshotter,
    ) -> ImageStoreResult<()> {
        self.ingest = None;
        self.window.clear();
        self.buffer.clear();
        discard(disk, &self.state, self.diff_id)?;
        self.ingest = Some(Box::new(Ingest::open(disk, source, form)?));
        Ok(())
    }
}

fn abandoned(diff_id: Digest) -> ImageStoreError {
    let error = std::io::Error::other("an earlier write was abandoned; begin again");
    ImageStoreError::io(format!("layer {diff_id}"), error)
}

impl LayerWriter {
    /// Begins, or goes on where an earlier writer was.
    pub(super) async fn open(
        store: ImageStore,
        source: LayerSource,
        only: MutexGuardArc<()>,
    ) -> ImageStoreResult<Self> {
        let mut held = Held::new(&store, source.diff_id, only).await;
        let mut parked = held.state.borrow_mut().unpark(source.diff_id);
        parked.retain(|parked| *parked.ingest.source() == source);
        if let Some(Parked { ingest, buffer, .. }) = parked.pop() {
            // `None`: another layer takes it just now, and would have let the part go.
            if let Some(window) = store.inner.windows.take_back(ingest.window_bytes()) {
                (held.ingest, held.buffer, held.window) = (Some(ingest), buffer, window);
                return Ok(Self { store, source, held: Some(held) });
            }
        }
        let (disk, form) = (store.inner.disk.clone(), store.inner.snapshotter);
        let opened = store.long_work(move || {
            let opened = Ingest::open(&disk, source, form);
            opened.map(|ingest| {
                held.ingest = Some(Box::new(ingest));
                held
            })
        });
        let held = opened.await?;
        Ok(Self { store, source, held: Some(held) })
    }

    /// The next byte of the layer that is wanted: the beginning of a `Range`.
    pub fn offset(&self) -> u64 {
        let Some(held) = &self.held else { return 0 };
        held.ingest.as_ref().map_or(0, |ingest| ingest.offset()) + held.buffer.len() as u64
    }

    /// Takes further bytes, and waits for the disk once enough are collected.
    ///
    /// # Errors
    /// The layer is refused or the file system's; the writer is of no use then.
    pub async fn write(&mut self, bytes: &[u8]) -> ImageStoreResult<()> {
        for piece in bytes.chunks(LAYER_FEED_BYTES) {
            let held = self.held.as_mut().ok_or_else(|| abandoned(self.source.diff_id))?;
            held.buffer.extend_from_slice(piece);
            // The first bytes at once: they tell the window, and a layer that waits for it has few of them in memory.
            let is_new = held.ingest.as_ref().is_some_and(|ingest| ingest.is_new());
            if is_new || held.buffer.len() >= LAYER_FEED_BYTES {
                self.feed().await?;
            }
        }
        Ok(())
    }

    /// Unpacks what was collected; where that needs a window, once other layers leave it room.
    async fn feed(&mut self) -> ImageStoreResult<()> {
        while let Some(wanted) = self.with(Held::feed).await? {
            let inner = &self.store.inner;
            let window = inner.windows.take(&inner.state, wanted).await;
            if let Some(held) = &mut self.held {
                held.window = window;
                held.ingest.iter_mut().for_each(|ingest| ingest.allow_window(wanted));
            }
        }
        Ok(())
    }

    /// All bytes were written: verifies the layer, and puts it into the store.
    ///
    /// # Errors
    /// It is cut off, or not what its digests say, or the file system's.
    pub async fn commit(&mut self) -> ImageStoreResult<Layer> {
        self.feed().await?;
        self.with(Held::finish).await
    }

    /// Forgets what arrived: the layer begins again, also after an error.
    ///
    /// # Errors
    /// The file system's.
    pub async fn restart(&mut self) -> ImageStoreResult<()> {
        if self.held.is_none() {
            // An abandoned thread ends first.
            let only = self.store.only(self.source.diff_id).await;
            self.held = Some(Held::new(&self.store, self.source.diff_id, only).await);
        }
        let (source, form) = (self.source, self.store.inner.snapshotter);
        self.with(move |held, disk| held.begin_again(disk, source, form)).await
    }

    /// Work on a thread.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Held, &Disk) -> ImageStoreResult<T> + Send + 'static,
    ) -> ImageStoreResult<T> {
        let mut held = self.held.take().ok_or_else(|| abandoned(self.source.diff_id))?;
        let disk = self.store.inner.disk.clone();
        let done = self.store.long_work(move || {
            let done = work(&mut held, &disk);
            (done, held)
        });
        let (done, held) = done.await;
        self.held = Some(held);
        if done.as_ref().is_err_and(ImageStoreError::is_no_space) {
            self.store.make_space().await;
        }
        done
    }
}

impl Held {
    async fn new(store: &ImageStore, diff_id: Digest, only: MutexGuardArc<()>) -> Self {
        let arriving = store.inner.arriving.acquire_arc().await;
        let state = store.inner.state.clone();
        let (ingest, buffer, window) = Default::default();
        Self { state, diff_id, ingest, buffer, window, _only: only, _arriving: arriving }
    }
}
