//! Where the images of archives go, and which of them are there: containerd's own store, or the embedded runtime's.

use std::fs::File;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use super::import::{ARCHIVE_LABEL, Failure, PINNED_LABEL};
use crate::cri::{GrpcRuntime, ImageStore};

/// A future on the loop's thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The right to a window in memory, until it is dropped.
pub type ArchiveWindow = Box<dyn Send>;

/// The store of a runtime that takes images of archives.
pub enum ArchiveStore {
    /// containerd's, with the runtime's client.
    Containerd(ImageStore, GrpcRuntime),
    /// The embedded runtime's.
    Embedded(Rc<dyn ArchiveImages>),
}

/// Images of archives in the embedded runtime's store. They are pinned for as long as they have a label.
pub trait ArchiveImages {
    /// Waits for the right to the largest zstd window, which an archive may be compressed with, beside those of pulls.
    fn archive_window(&self) -> Local<'_, ArchiveWindow>;
    /// The label of each image that came from an archive, by the image's name.
    fn labelled(&self) -> Vec<(String, String)>;
    /// Removes the label of an image. A missing image is no error.
    fn unlabel<'a>(&'a self, image: &'a str) -> Local<'a, Result<(), Failure>>;
    /// Imports those images of an archive, which is not compressed, with that label. Names that are there are added to `named`,
    /// whatever fails after them; errors name the path.
    fn import<'a>(
        &'a self,
        archive: (&'a File, &'a Path),
        label: &'a str,
        wanted: &'a [&'a str],
        named: &'a mut Vec<String>,
    ) -> Local<'a, Result<(), Failure>>;
}

impl ArchiveStore {
    /// Waits for the right to unpack an archive in memory. With containerd nothing else in the agent has such windows.
    pub(super) async fn archive_window(&self) -> ArchiveWindow {
        match self {
            Self::Containerd(..) => Box::new(()),
            Self::Embedded(store) => store.archive_window().await,
        }
    }

    /// The label of each image that came from an archive, by the image's name.
    pub(super) async fn labelled(&self) -> Result<Vec<(String, String)>, Failure> {
        match self {
            Self::Containerd(store, _) => Ok(store.labelled(ARCHIVE_LABEL).await?),
            Self::Embedded(store) => Ok(store.labelled()),
        }
    }

    /// An image is no longer an archive's.
    pub(super) async fn unlabel(&self, image: &str) -> Result<(), Failure> {
        match self {
            Self::Containerd(store, _) => Ok(store.unlabel(image, &[ARCHIVE_LABEL, PINNED_LABEL]).await?),
            Self::Embedded(store) => store.unlabel(image).await,
        }
    }

    /// Takes the lease that protects the blobs of an import under way. The embedded runtime's store has one for each import.
    pub(super) async fn take_lease(&self) -> Result<(), Failure> {
        match self {
            Self::Containerd(store, _) => Ok(store.take_lease().await?),
            Self::Embedded(_) => Ok(()),
        }
    }

    /// Ends it.
    pub(super) async fn end_lease(&self) -> Result<(), Failure> {
        match self {
            Self::Containerd(store, _) => Ok(store.end_lease().await?),
            Self::Embedded(_) => Ok(()),
        }
    }
}
