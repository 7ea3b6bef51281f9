//! Images of archives in the image store ([`ArchiveImages`]): which archive an image is from stands in a label for each of its names.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use crate::image::archive_store::{ArchiveImages, ArchiveWindow, Local};
use crate::image::import::{ARCHIVE_LABEL, Failure};
use crate::image_store::{Digest, ImageStore, ImageStoreError, StoredImage};

impl ArchiveImages for ImageStore {
    fn archive_window(&self) -> Local<'_, ArchiveWindow> {
        Box::pin(async { Box::new(Self::archive_window(self).await) as ArchiveWindow })
    }

    fn labelled(&self) -> Vec<(String, String)> {
        let images = self.list();
        let mut found = BTreeMap::new();
        // An image that has lost the name to another one may have been left with the label: the one that has the name counts.
        for has_name in [false, true] {
            for image in &images {
                let is_tag = |name: &str| image.tags.iter().any(|tag| tag.name == name);
                found.extend(labels_by_name(image).filter(|(name, _)| is_tag(name) == has_name));
            }
        }
        found.into_iter().collect()
    }

    fn unlabel<'a>(&'a self, image: &'a str) -> Local<'a, Result<(), Failure>> {
        Box::pin(async move { release(self, image, None).await })
    }

    fn import<'a>(
        &'a self,
        (file, path): (&'a File, &'a Path),
        label: &'a str,
        wanted: &'a [&'a str],
        named: &'a mut Vec<String>,
    ) -> Local<'a, Result<(), Failure>> {
        Box::pin(async move {
            let failed = |error: ImageStoreError| failure(&error);
            let file = file.try_clone().map_err(|error| Failure::Refused(error.to_string()))?;
            let mut images = Vec::new();
            let imported = self.import_file(file, path, &|image| wanted.contains(&image), &mut images).await;
            for (name, image) in images {
                // It was another image's before.
                release(self, &name, Some(image.id)).await?;
                let id = image.id.to_string();
                let labels = self.resolve(&id).unwrap_or(image).labels.into_iter();
                let own = key(&name);
                let mut labels: Vec<_> = labels.filter(|(label, _)| *label != own).collect();
                labels.push((own, label.to_owned()));
                self.pin(&id, true, labels).await.map_err(failed)?;
                named.push(name);
            }
            imported.map_err(failed)
        })
    }
}

/// Takes the label of that name from all images except one; those without any label are no longer pinned.
async fn release(store: &ImageStore, name: &str, except: Option<Digest>) -> Result<(), Failure> {
    let key = key(name);
    let has = |stored: &StoredImage| stored.labels.iter().any(|(label, _)| *label == key);
    for stored in store.list().into_iter().filter(|stored| has(stored) && Some(stored.id) != except) {
        let left: Vec<_> = stored.labels.into_iter().filter(|(label, _)| *label != key).collect();
        let pinned = left.iter().any(|(label, _)| label.starts_with(ARCHIVE_LABEL));
        match store.pin(&stored.id.to_string(), pinned, left).await {
            // Removed meanwhile.
            Ok(()) | Err(ImageStoreError::NotFound(_)) => {}
            Err(error) => return Err(failure(&error)),
        }
    }
    Ok(())
}

/// The label's key of an image by its name.
fn key(image: &str) -> String {
    format!("{ARCHIVE_LABEL}/{image}")
}

fn labels_by_name(image: &StoredImage) -> impl Iterator<Item = (String, String)> {
    image.labels.iter().filter_map(|(key, label)| {
        let name = key.strip_prefix(ARCHIVE_LABEL)?.strip_prefix('/')?;
        Some((name.to_owned(), label.clone()))
    })
}

fn failure(error: &ImageStoreError) -> Failure {
    let why = error.to_string();
    match error {
        ImageStoreError::Io { .. } => Failure::Disk(why),
        ImageStoreError::Layer { .. }
        | ImageStoreError::Digest { .. }
        | ImageStoreError::Invalid { .. }
        | ImageStoreError::NotFound(_)
        | ImageStoreError::Full(_) => Failure::Refused(why),
    }
}
