//! Imports image archives (docker save, OCI layout) into the store. Reads the archive once; no layer is written twice.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::digest::Digest;
use super::error::{ImageStoreError, ImageStoreResult};
use super::layer::{Ingest, LayerSource};
use super::name::Config;
use super::record::StoredImage;
use super::sweep::discard;
use super::windows::Window;
use super::{ImageStore, Lease, NewImage};
use crate::filesystem::open_linked;
use crate::image::archive::{Blob, Data, Extent, Index, Plan, Platform, plan};
use crate::limits::{IMAGE_JSON_BYTES_MAX, LAYER_FEED_BYTES, LAYERS_PER_IMAGE_MAX};

/// An archive that was read.
struct Archive {
    file: Arc<File>,
    plan: Plan,
    shown: String,
}

/// An image of it.
struct Planned {
    name: String,
    target: Digest,
    manifest: Vec<u8>,
    config: Vec<u8>,
    /// With their place in the archive.
    layers: Vec<(LayerSource, Extent)>,
}

impl ImageStore {
    /// Imports those images of an archive for this node's platform whose names are wanted; returns them by these names. Labels and the
    /// mark of pinned images are kept.
    ///
    /// # Errors
    /// It is no image archive, is damaged, or has nothing for this node; or the file system's. Images before the one that failed are
    /// stored.
    pub async fn import_archive(
        &self,
        path: &Path,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> ImageStoreResult<Vec<(String, StoredImage)>> {
        let owned = path.to_owned();
        // Without a turn of the pool: the archive may be on a server that does not answer.
        let opened = self.inner.blocking.run_alone(move || open_linked(&owned));
        let failed = |error| ImageStoreError::io(format!("opening {}", path.display()), error);
        let mut stored = Vec::new();
        self.import_file(opened.await.flatten().map_err(failed)?, path, is_wanted, &mut stored).await?;
        Ok(stored)
    }

    /// The same of an open archive, which is called by that path. Images that are stored are added to `stored`, whatever fails after
    /// them.
    ///
    /// # Errors
    /// As [`ImageStore::import_archive`].
    pub async fn import_file(
        &self,
        file: File,
        path: &Path,
        is_wanted: &dyn Fn(&str) -> bool,
        stored: &mut Vec<(String, StoredImage)>,
    ) -> ImageStoreResult<()> {
        let platform = Platform::here();
        let owned = path.to_owned();
        let read = self.inner.blocking.run_alone(move || Archive::read(file, &owned, &platform));
        let failed = |error| ImageStoreError::io(format!("importing {}", path.display()), error);
        let archive = Arc::new(read.await.map_err(failed)??);
        let lease = self.lease();
        let imported = self.import_images(&archive, &lease, path, is_wanted, stored).await;
        drop(lease);
        if imported.as_ref().is_err_and(ImageStoreError::is_no_space) {
            self.make_space().await;
        }
        imported
    }

    async fn import_images(
        &self,
        archive: &Arc<Archive>,
        lease: &Lease,
        path: &Path,
        is_wanted: &dyn Fn(&str) -> bool,
        stored: &mut Vec<(String, StoredImage)>,
    ) -> ImageStoreResult<()> {
        let failed = |error| ImageStoreError::io(format!("importing {}", path.display()), error);
        for index in 0..archive.plan.images.len() {
            if !is_wanted(&archive.plan.images[index].name) {
                continue;
            }
            let of = archive.clone();
            let planned = self.inner.blocking.run_alone(move || of.image(index)).await.map_err(failed)??;
            for (source, extent) in &planned.layers {
                self.import_layer(lease, archive, *source, *extent).await?;
            }
            let known = self.list().into_iter().find(|image| image.id == Digest::of(&planned.config));
            let new = NewImage {
                name: planned.name.clone(),
                target: Some(planned.target),
                manifest: planned.manifest,
                config: planned.config,
                pinned: known.as_ref().is_some_and(|image| image.pinned),
                labels: known.map(|image| image.labels).unwrap_or_default(),
            };
            stored.push((planned.name, self.commit_image(lease, new).await?));
        }
        Ok(())
    }

    async fn import_layer(
        &self,
        lease: &Lease,
        archive: &Arc<Archive>,
        source: LayerSource,
        extent: Extent,
    ) -> ImageStoreResult<()> {
        lease.hold(&[source.diff_id]);
        let only = self.only(source.diff_id).await;
        if self.has_layer(&source.diff_id) {
            return Ok(());
        }
        let (archive, form) = (archive.clone(), self.inner.snapshotter);
        let (disk, state) = (self.inner.disk.clone(), self.inner.state.clone());
        let windows = self.inner.windows.clone();
        let unpacked = self.inner.blocking.run_alone(move || {
            let _only = only;
            let parked = state.borrow_mut().unpark(source.diff_id);
            drop(parked);
            let mut window = Window::new();
            let mut ingest = Ingest::open(&disk, source, form)?;
            let mut done = ingest.offset();
            let mut feed = || {
                while done < extent.size {
                    let size = (extent.size - done).min(LAYER_FEED_BYTES as u64);
                    let piece = Extent { offset: extent.offset + done, size };
                    let bytes = archive.bytes(piece)?;
                    let mut taken = ingest.feed(&bytes)?;
                    while let Some(wanted) = ingest.wants_window() {
                        // First: it waits for those that wait for what it has.
                        window.clear();
                        window = smol::future::block_on(windows.take(&state, wanted));
                        ingest.allow_window(wanted);
                        taken += ingest.feed(&bytes[taken..])?;
                    }
                    done += size;
                }
                Ok(())
            };
            let layer = feed().and_then(|()| ingest.finish(&disk));
            match &layer {
                Ok(layer) => state.borrow_mut().arrived(layer.clone()),
                // The archive is here: it is read again from its beginning. A second error tells nothing new.
                Err(_) => drop(discard(&disk, &state, source.diff_id)),
            }
            layer
        });
        let failed = |error| ImageStoreError::io(format!("importing layer {}", source.digest), error);
        unpacked.await.map_err(failed)?.map(drop)
    }
}

impl Archive {
    fn read(file: File, path: &Path, platform: &Platform) -> ImageStoreResult<Self> {
        let shown = path.display().to_string();
        let unread = |error: io::Error| ImageStoreError::io(format!("opening {shown}"), error);
        let length = file.metadata().map_err(unread)?.size();
        let refused = |reason| ImageStoreError::invalid(shown.clone(), reason);
        let index = Index::read(&file, length).map_err(refused)?;
        let plan = plan(&index, platform, &mut |at| read_at(&file, at).map_err(|error| error.to_string()));
        let plan = plan.map_err(refused)?;
        Ok(Self { file: Arc::new(file), plan, shown })
    }

    fn bytes(&self, at: Extent) -> ImageStoreResult<Vec<u8>> {
        read_at(&self.file, at).map_err(|error| ImageStoreError::io(format!("reading {}", self.shown), error))
    }

    fn refused(&self, reason: impl Into<String>) -> ImageStoreError {
        ImageStoreError::invalid(self.shown.clone(), reason)
    }

    fn blob(&self, digest: Digest) -> ImageStoreResult<&Blob> {
        let text = digest.to_string();
        let blob = self.plan.blobs.iter().find(|blob| blob.digest == text);
        blob.ok_or_else(|| self.refused(format!("{digest} is missing; save the image with all its layers")))
    }

    /// A manifest, index or configuration, verified.
    fn json(&self, digest: Digest) -> ImageStoreResult<(Vec<u8>, Value)> {
        let blob = self.blob(digest)?;
        let bytes = match &blob.data {
            Data::Made(bytes) => bytes.clone(),
            Data::InArchive(at) if at.size <= IMAGE_JSON_BYTES_MAX as u64 => self.bytes(*at)?,
            Data::InArchive(at) => {
                let most = IMAGE_JSON_BYTES_MAX;
                return Err(self.refused(format!("{digest} has {} bytes; at most {most} are read", at.size)));
            }
        };
        let found = Digest::of(&bytes);
        if found != digest {
            return Err(ImageStoreError::Digest { wanted: digest, found });
        }
        let json =
            serde_json::from_slice(&bytes).map_err(|_| self.refused(format!("{digest} is no JSON")))?;
        Ok((bytes, json))
    }

    fn digest(&self, text: &str) -> ImageStoreResult<Digest> {
        Digest::parse(text).ok_or_else(|| self.refused(format!("{text:?} is no sha256 digest")))
    }

    fn image(&self, index: usize) -> ImageStoreResult<Planned> {
        let image = self.plan.images.get(index).ok_or_else(|| self.refused("has no such image"))?;
        let target = self.digest(&image.target.digest)?;
        let (mut manifest, mut json) = self.json(target)?;
        if json["manifests"].is_array() {
            // The plan has chosen the one for this platform, and refers to nothing else from an index.
            let chosen = self.blob(target)?.labels.values().next();
            let chosen = self.digest(chosen.map_or("", String::as_str))?;
            (manifest, json) = self.json(chosen)?;
        }
        let config = self.digest(json["config"]["digest"].as_str().unwrap_or_default())?;
        let (config, _) = self.json(config)?;
        let diff_ids = Config::parse(&config).map_err(|reason| self.refused(reason))?.layers;
        let described = json["layers"].as_array().map_or(&[][..], Vec::as_slice);
        if described.len() != diff_ids.len() || diff_ids.len() > LAYERS_PER_IMAGE_MAX {
            return Err(self.refused(format!(
                "{} has {} layers where its configuration says {}; save the image again",
                image.name,
                described.len(),
                diff_ids.len()
            )));
        }
        let mut layers = Vec::with_capacity(diff_ids.len());
        for (described, diff_id) in described.iter().zip(diff_ids) {
            let digest = self.digest(described["digest"].as_str().unwrap_or_default())?;
            let Data::InArchive(extent) = self.blob(digest)?.data else {
                return Err(self.refused(format!("{digest} is no layer")));
            };
            layers.push((LayerSource { digest, size: extent.size, diff_id }, extent));
        }
        Ok(Planned { name: image.name.clone(), target, manifest, config, layers })
    }
}

/// A range of the archive; at most `limits::LAYER_FEED_BYTES` or `IMAGE_JSON_BYTES_MAX`.
fn read_at(file: &File, at: Extent) -> io::Result<Vec<u8>> {
    let size = usize::try_from(at.size).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, at.offset)?;
    Ok(bytes)
}
