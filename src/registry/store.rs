//! Pulls into the image store, and which are under way.

use std::cell::RefCell;
use std::rc::Rc;

use super::sink::{BlobSink, BlobStore, PulledImage, SinkError};
use super::{
    Descriptor, Hosts, LayerProgress, Platform, Progress, Pull, Pulled, RegistryError, RegistryResult,
};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::image::gc::is_no_space;
use crate::image_store::{Digest, ImageStore, ImageStoreError, LayerSource, LayerWriter, Lease, NewImage};
use crate::net::Lookups;
use crate::proto::runtime::v1::AuthConfig;

/// Images and their progress.
type RunningPulls = Rc<RefCell<Vec<(Box<str>, Progress)>>>;

/// The registries, as a node pulls from them. Clones share the list of pulls.
#[derive(Clone)]
pub struct Registries {
    hosts: Rc<Hosts>,
    platform: Rc<Platform>,
    clock: SharedClock,
    lookups: Lookups,
    blocking: Rc<Blocking>,
    /// One for each pull; as many as the caller begins at once.
    running: RunningPulls,
}

/// Takes the pull from the list when it ends or is dropped.
struct Running<'a> {
    of: &'a Registries,
    progress: Progress,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.of.running.borrow_mut().retain(|(_, progress)| !progress.is(&self.progress));
    }
}

impl Registries {
    /// The registries by this configuration, for images of that platform.
    pub fn new(hosts: Hosts, platform: Platform, clock: SharedClock, blocking: Rc<Blocking>) -> Self {
        let (hosts, platform) = (Rc::new(hosts), Rc::new(platform));
        Self { hosts, platform, clock, lookups: Lookups::default(), blocking, running: Rc::default() }
    }

    /// Pulls an image into the store. Dropping the future cancels it; what has arrived is used by the next pull.
    ///
    /// # Errors
    /// As [`Pull::image`].
    pub async fn pull(
        &self,
        store: &ImageStore,
        image: &str,
        auth: Option<&AuthConfig>,
    ) -> RegistryResult<Pulled> {
        let running = Running { of: self, progress: Progress::default() };
        self.running.borrow_mut().push((image.into(), running.progress.clone()));
        let of_pull = StoreOfPull::new(store);
        let Self { hosts, platform, clock, lookups, blocking, running: _ } = self;
        let pull =
            Pull { hosts, store: &of_pull, clock, lookups, blocking, platform, progress: &running.progress };
        let pulled = pull.image(image, auth).await;
        drop(of_pull);
        if matches!(&pulled, Err(RegistryError::Store(why)) if is_no_space(why)) {
            store.make_space().await;
        }
        pulled
    }

    /// The pulls under way: image and layers.
    pub fn running(&self) -> Vec<(Box<str>, Vec<LayerProgress>)> {
        self.running.borrow().iter().map(|(image, progress)| (image.clone(), progress.layers())).collect()
    }
}

/// The image store during one pull: the layers that the pull has written or found stay until it ends.
pub struct StoreOfPull {
    store: ImageStore,
    lease: Lease,
}

impl StoreOfPull {
    /// Begins a pull.
    pub fn new(store: &ImageStore) -> Self {
        Self { store: store.clone(), lease: store.lease() }
    }
}

impl From<ImageStoreError> for SinkError {
    fn from(error: ImageStoreError) -> Self {
        match error {
            ImageStoreError::Digest { .. } => Self::Digest(error.to_string()),
            ImageStoreError::Layer { .. } | ImageStoreError::Invalid { .. } => {
                Self::Refused(error.to_string())
            }
            ImageStoreError::Io { .. } | ImageStoreError::NotFound(_) | ImageStoreError::Full(_) => {
                Self::Failed(error.to_string())
            }
        }
    }
}

impl BlobStore for StoreOfPull {
    type Sink = LayerWriter;

    async fn existing(&self, name: &str, tag: &str, target: Digest) -> Result<Option<String>, SinkError> {
        let digested = format!("{name}@{target}");
        let Some(image) = self.store.resolve(&digested) else { return Ok(None) };
        let tagged = format!("{name}:{tag}");
        if !tag.is_empty() && image.tags.iter().all(|found| found.name != tagged) {
            self.store.tag(&digested, &tagged).await?;
        }
        Ok(Some(image.id.to_string()))
    }

    async fn layer(&self, layer: &Descriptor, diff_id: Digest) -> Result<Option<LayerWriter>, SinkError> {
        Ok(self.lease.layer(LayerSource { digest: layer.digest, size: layer.size, diff_id }).await?)
    }

    async fn commit(&self, image: PulledImage) -> Result<String, SinkError> {
        let PulledImage { name, tag, target, manifest, config, .. } = image;
        let name = if tag.is_empty() { format!("{name}@{target}") } else { format!("{name}:{tag}") };
        let new = NewImage { name, target: Some(target), manifest, config, ..NewImage::default() };
        Ok(self.store.commit_image(&self.lease, new).await?.id.to_string())
    }
}

impl BlobSink for LayerWriter {
    fn offset(&self) -> u64 {
        Self::offset(self)
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        Ok(Self::write(self, bytes).await?)
    }

    async fn restart(&mut self) -> Result<(), SinkError> {
        Ok(Self::restart(self).await?)
    }

    async fn finish(&mut self) -> Result<(), SinkError> {
        self.commit().await?;
        Ok(())
    }
}
