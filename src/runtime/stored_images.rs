//! [`StoredImages`]: the images of the embedded runtime, from the image store and the registries.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::images::{FoundImage, Images, Local};
use crate::clock::SharedClock;
use crate::cri::{PullProgress, RuntimeError, RuntimeResult};
use crate::image_store::{ImageStore, ImageStoreError, RootfsOptions, Snapshotter, StoredImage, Usage};
use crate::proto::runtime::v1 as cri;
use crate::registry::{LayerProgress, Registries, RegistryError};

/// gRPC status codes of refusals.
const UNKNOWN: i32 = 2;
const RESOURCE_EXHAUSTED: i32 = 8;

/// Images of the node's own store.
pub struct StoredImages {
    store: ImageStore,
    registries: Registries,
    clock: SharedClock,
}

impl StoredImages {
    /// The images of that store, and of these registries.
    pub fn new(store: ImageStore, registries: Registries, clock: SharedClock) -> Rc<Self> {
        Rc::new(Self { store, registries, clock })
    }

    /// An image that is in the store.
    fn existing(&self, image: &str) -> RuntimeResult<StoredImage> {
        self.store.resolve(image).ok_or_else(|| failed(ImageStoreError::NotFound(image.to_owned())))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: ImageStoreError) -> RuntimeError {
    let message = error.to_string();
    match error {
        ImageStoreError::NotFound(_) => RuntimeError::NotFound(message),
        ImageStoreError::Full(_) => RuntimeError::Failed { code: RESOURCE_EXHAUSTED, message },
        ImageStoreError::Io { .. }
        | ImageStoreError::Layer { .. }
        | ImageStoreError::Digest { .. }
        | ImageStoreError::Invalid { .. } => RuntimeError::Failed { code: UNKNOWN, message },
    }
}

/// CRI `Image`.
fn message(image: &StoredImage) -> cri::Image {
    let of = image.to_model();
    cri::Image {
        id: of.id.into(),
        repo_tags: of.repo_tags.into_iter().map(String::from).collect(),
        repo_digests: of.repo_digests.into_iter().map(String::from).collect(),
        size: of.size_bytes,
        uid: of.uid.map(|value| cri::Int64Value { value }),
        username: of.username.into(),
        pinned: of.pinned,
        ..cri::Image::default()
    }
}

/// The name in a request.
fn named(image: Option<cri::ImageSpec>) -> String {
    image.map(|image| image.image).unwrap_or_default()
}

impl Images for StoredImages {
    fn find<'a>(&'a self, image: &'a str) -> Local<'a, RuntimeResult<Option<FoundImage>>> {
        Box::pin(async move {
            let Some(stored) = self.store.resolve(image) else { return Ok(None) };
            let config = self.store.config(&stored).await.map_err(failed)?;
            let of = stored.to_model();
            let id = of.id.clone();
            Ok(Some(FoundImage {
                reference: of.repo_digests.first().cloned().unwrap_or_else(|| id.clone()),
                name: of.repo_tags.first().cloned().unwrap_or_default(),
                id,
                config,
            }))
        })
    }

    fn make_rootfs<'a>(
        &'a self,
        name: &'a str,
        image_id: &'a str,
        options: RootfsOptions,
    ) -> Local<'a, RuntimeResult<PathBuf>> {
        Box::pin(async move {
            let image = self.existing(image_id)?;
            self.store.rootfs(name, &image, &options).await.map(|rootfs| rootfs.path).map_err(failed)
        })
    }

    fn remove_rootfs<'a>(&'a self, name: &'a str) -> Local<'a, RuntimeResult<()>> {
        Box::pin(async move { self.store.remove_rootfs(name).await.map_err(failed) })
    }

    fn copy_out<'a>(
        &'a self,
        name: &'a str,
        directory: &'a str,
        to: &'a Path,
    ) -> Local<'a, RuntimeResult<()>> {
        Box::pin(async move { self.store.copy_out(name, directory, to).await.map_err(failed) })
    }

    fn rootfs_names(&self) -> Local<'_, RuntimeResult<Vec<String>>> {
        Box::pin(async move { self.store.rootfs_names().await.map_err(failed) })
    }

    fn written<'a>(&'a self, name: &'a str) -> Local<'a, Option<(u64, u64)>> {
        Box::pin(async move {
            let usage = self.store.rootfs_usage(name).await.ok()?;
            Some((usage.bytes, usage.inodes))
        })
    }

    fn written_dir(&self, name: &str) -> Option<PathBuf> {
        self.store.written_dir(name)
    }

    fn makes_copies(&self) -> bool {
        self.store.snapshotter() == Snapshotter::Native
    }

    fn image_status(
        &self,
        request: cri::ImageStatusRequest,
    ) -> Local<'_, RuntimeResult<cri::ImageStatusResponse>> {
        Box::pin(async move {
            let stored = self.store.resolve(&named(request.image));
            let info = match &stored {
                Some(stored) if request.verbose => {
                    super::verbose::image(&self.store.config(stored).await.map_err(failed)?)
                }
                _ => super::verbose::Info::new(),
            };
            Ok(cri::ImageStatusResponse { image: stored.as_ref().map(message), info })
        })
    }

    fn list_images(
        &self,
        request: cri::ListImagesRequest,
    ) -> Local<'_, RuntimeResult<cri::ListImagesResponse>> {
        Box::pin(async move {
            let wanted = named(request.filter.and_then(|filter| filter.image));
            let images = match wanted.as_str() {
                "" => self.store.list(),
                wanted => self.store.resolve(wanted).into_iter().collect(),
            };
            Ok(cri::ListImagesResponse { images: images.iter().map(message).collect() })
        })
    }

    fn pull_image(&self, request: cri::PullImageRequest) -> Local<'_, RuntimeResult<cri::PullImageResponse>> {
        Box::pin(async move {
            let (image, auth) = (named(request.image), request.auth);
            let pulled = self.registries.pull(&self.store, &image, auth.as_ref()).await;
            let pulled = pulled.map_err(|error| match error {
                RegistryError::NotFound(why) => RuntimeError::NotFound(why),
                other => RuntimeError::Failed { code: UNKNOWN, message: other.to_string() },
            })?;
            Ok(cri::PullImageResponse { image_ref: pulled.id })
        })
    }

    fn pulls(&self) -> Vec<PullProgress> {
        let pull = |(image, layers): (Box<str>, Vec<LayerProgress>)| {
            let sum = |of: fn(&LayerProgress) -> u64| layers.iter().map(of).fold(0, u64::saturating_add);
            PullProgress {
                image,
                received_bytes: sum(|layer| layer.received),
                size_bytes: sum(|layer| layer.size),
                layers_done: layers.iter().filter(|layer| layer.is_done).count(),
                layers: layers.len(),
            }
        };
        self.registries.running().into_iter().map(pull).collect()
    }

    fn remove_image(
        &self,
        request: cri::RemoveImageRequest,
    ) -> Local<'_, RuntimeResult<cri::RemoveImageResponse>> {
        Box::pin(async move {
            match self.store.remove(&named(request.image)).await {
                Ok(()) | Err(ImageStoreError::NotFound(_)) => Ok(cri::RemoveImageResponse {}),
                Err(error) => Err(failed(error)),
            }
        })
    }

    fn image_fs_info(&self) -> Local<'_, RuntimeResult<cri::ImageFsInfoResponse>> {
        Box::pin(async move {
            // Image garbage collection and eviction ask now and then: leftovers go before images do.
            self.store.sweep().await;
            let value = |value| Some(cri::UInt64Value { value });
            let used = |usage: Usage| cri::FilesystemUsage {
                timestamp: self.clock.now().wall.0,
                fs_id: Some(cri::FilesystemIdentifier {
                    mountpoint: self.store.root().display().to_string(),
                }),
                used_bytes: value(usage.bytes),
                inodes_used: value(usage.inodes),
            };
            // Of the metrics' counting what is recent is taken.
            let written = self.store.rootfs_usages().await;
            Ok(cri::ImageFsInfoResponse {
                image_filesystems: vec![used(self.store.usage())],
                container_filesystems: vec![used(written)],
            })
        })
    }
}
