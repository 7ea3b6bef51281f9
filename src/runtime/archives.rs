//! Images of archives in the image store ([`ArchiveImages`]): which archive an image is from stands in a label for each of its names.

use std::fs::File;
use std::path::Path;

use crate::image::archive_store::{ArchiveImages, Local};
use crate::image::import::{ARCHIVE_LABEL, Failure};
use crate::image_store::{ImageStore, ImageStoreError, StoredImage};

impl ArchiveImages for ImageStore {
    fn labelled(&self) -> Vec<(String, String)> {
        self.list().iter().flat_map(labels_by_name).collect()
    }

    fn unlabel<'a>(&'a self, image: &'a str) -> Local<'a, Result<(), Failure>> {
        Box::pin(async move {
            let key = key(image);
            let has = |stored: &StoredImage| stored.labels.iter().any(|(label, _)| *label == key);
            let Some(stored) = self.list().into_iter().find(has) else { return Ok(()) };
            let left: Vec<_> = stored.labels.into_iter().filter(|(label, _)| *label != key).collect();
            let pinned = left.iter().any(|(label, _)| label.starts_with(ARCHIVE_LABEL));
            match self.pin(&stored.id.to_string(), pinned, left).await {
                // Removed meanwhile.
                Ok(()) | Err(ImageStoreError::NotFound(_)) => Ok(()),
                Err(error) => Err(failure(&error)),
            }
        })
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
            let images =
                self.import_file(file, path, &|image| wanted.contains(&image)).await.map_err(failed)?;
            for (name, image) in images {
                let id = image.id.to_string();
                let labels = self.resolve(&id).unwrap_or(image).labels.into_iter();
                let own = key(&name);
                let mut labels: Vec<_> = labels.filter(|(label, _)| *label != own).collect();
                labels.push((own, label.to_owned()));
                self.pin(&id, true, labels).await.map_err(failed)?;
                named.push(name);
            }
            Ok(())
        })
    }
}

/// The label's key of an image by its name.
fn key(image: &str) -> String {
    format!("{ARCHIVE_LABEL}/{image}")
}

fn labels_by_name(image: &StoredImage) -> Vec<(String, String)> {
    let of_archive = image.labels.iter().filter_map(|(key, label)| {
        let name = key.strip_prefix(ARCHIVE_LABEL)?.strip_prefix('/')?;
        Some((name.to_owned(), label.clone()))
    });
    of_archive.collect()
}

fn failure(error: &ImageStoreError) -> Failure {
    let why = error.to_string();
    match error {
        ImageStoreError::Io { .. } => Failure::Later(why),
        ImageStoreError::Layer { .. }
        | ImageStoreError::Digest { .. }
        | ImageStoreError::Invalid { .. }
        | ImageStoreError::NotFound(_)
        | ImageStoreError::Full(_) => Failure::Refused(why),
    }
}
