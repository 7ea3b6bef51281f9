//! Writes a layer that arrives in pieces, on threads.

use super::ImageStore;
use super::digest::Digest;
use super::error::{ImageStoreError, ImageStoreResult};
use super::layer::{Ingest, LayerSource};
use super::record::Layer;
use crate::limits::LAYER_FEED_BYTES;

/// A layer that is being written. When it is dropped, what was unpacked stays for a later writer of the same layer, which goes on at
/// the last restart point.
///
/// A write that is cancelled ends the writer: a further call but [`LayerWriter::restart`] fails. A link that is cut is no reason to drop it: the next request
/// begins at [`LayerWriter::offset`].
pub struct LayerWriter {
    store: ImageStore,
    source: LayerSource,
    /// Gone while a thread has it.
    ingest: Option<Box<Ingest>>,
    /// At most `limits::LAYER_FEED_BYTES` and a piece.
    buffer: Vec<u8>,
}

impl LayerWriter {
    pub(super) fn new(store: ImageStore, source: LayerSource, ingest: Ingest) -> Self {
        Self { store, source, ingest: Some(Box::new(ingest)), buffer: Vec::new() }
    }

    /// The next byte of the layer that is wanted: the beginning of a `Range`.
    pub fn offset(&self) -> u64 {
        self.ingest.as_ref().map_or(0, |ingest| ingest.offset()) + self.buffer.len() as u64
    }

    /// Takes further bytes, and waits for the disk once enough are collected.
    ///
    /// # Errors
    /// The layer is refused or the file system's; the writer is of no use then.
    pub async fn write(&mut self, bytes: &[u8]) -> ImageStoreResult<()> {
        for piece in bytes.chunks(LAYER_FEED_BYTES) {
            self.buffer.extend_from_slice(piece);
            if self.buffer.len() >= LAYER_FEED_BYTES {
                self.feed().await?;
            }
        }
        Ok(())
    }

    async fn feed(&mut self) -> ImageStoreResult<()> {
        let mut ingest = self.take()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let fed = self.store.inner.blocking.run(move || {
            let fed = ingest.feed(&buffer);
            buffer.clear();
            (fed, ingest, buffer)
        });
        let (fed, ingest, buffer) = fed.await;
        self.buffer = buffer;
        match fed {
            Ok(()) => self.ingest = Some(ingest),
            Err(error) => {
                drop(ingest);
                self.discard_if(&error).await;
                return Err(error);
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
        let (ingest, layers) = (self.take()?, self.store.inner.disk.layers());
        match self.store.inner.blocking.run(move || ingest.finish(&layers)).await {
            Ok(layer) => {
                self.store.inner.state.borrow_mut().found.layers.insert(layer.diff_id, layer.clone());
                Ok(layer)
            }
            Err(error) => {
                self.discard_if(&error).await;
                Err(error)
            }
        }
    }

    /// Forgets what arrived: the layer begins again, also after an error.
    ///
    /// # Errors
    /// The file system's.
    pub async fn restart(&mut self) -> ImageStoreResult<()> {
        self.ingest = None;
        self.buffer.clear();
        // An abandoned thread ends first.
        let only = self.store.only(self.source.diff_id).await;
        let (disk, source, form) = (self.store.inner.disk.clone(), self.source, self.store.inner.snapshotter);
        let opened = self.store.inner.blocking.run(move || {
            Ingest::discard(&disk.ingests(), source.diff_id);
            Ingest::open(&disk.ingests(), source, form, Some(only))
        });
        self.ingest = Some(Box::new(opened.await?));
        Ok(())
    }

    fn take(&mut self) -> ImageStoreResult<Box<Ingest>> {
        self.ingest.take().ok_or_else(|| {
            let error = std::io::Error::other("an earlier write was abandoned; begin again");
            ImageStoreError::io(format!("layer {}", self.source.digest), error)
        })
    }

    /// What is wrong is not gone on with.
    async fn discard_if(&self, error: &ImageStoreError) {
        let is_wrong = error.is_final() || matches!(error, ImageStoreError::Digest { .. });
        if is_wrong {
            let (ingests, diff_id): (_, Digest) = (self.store.inner.disk.ingests(), self.source.diff_id);
            let only = self.store.only(diff_id).await;
            let discarded = self.store.inner.blocking.run(move || {
                Ingest::discard(&ingests, diff_id);
                drop(only);
            });
            discarded.await;
        }
    }
}
