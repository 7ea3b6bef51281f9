//! What the embedded runtime needs of images: root file systems of containers, and the CRI's `ImageService`. The image store and the
//! registry client implement it; so do tests, with a directory.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use crate::cri::{PullProgress, RuntimeError, RuntimeResult};
use crate::image_store::RootfsOptions;
use crate::proto::runtime::v1 as cri;

/// A future on the loop's thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An image that is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundImage {
    /// Digest of its configuration.
    pub id: Box<str>,
    /// Its name with a digest, else the id: the `image_ref` of its containers.
    pub reference: Box<str>,
    /// Its name with a tag; empty without one.
    pub name: Box<str>,
    /// Its configuration (OCI image-spec, JSON).
    pub config: Vec<u8>,
}

/// Images of the node.
pub trait Images {
    /// Finds an image by id or name; `None` when it is not present.
    fn find<'a>(&'a self, image: &'a str) -> Local<'a, RuntimeResult<Option<FoundImage>>>;
    /// Mounts a root file system of that name for an image, with a layer to write to unless it is read-only. Its files are those of the
    /// users of a user namespace, if there is one. The path of the mount.
    fn make_rootfs<'a>(
        &'a self,
        name: &'a str,
        image_id: &'a str,
        options: RootfsOptions,
    ) -> Local<'a, RuntimeResult<PathBuf>>;
    /// Unmounts and removes the root file system of that name, with what was written to it. Idempotent.
    fn remove_rootfs<'a>(&'a self, name: &'a str) -> Local<'a, RuntimeResult<()>>;
    /// Copies a directory of the root file system of that name, before its container starts. One that is not there leaves the target as
    /// it is.
    fn copy_out<'a>(
        &'a self,
        name: &'a str,
        directory: &'a str,
        to: &'a Path,
    ) -> Local<'a, RuntimeResult<()>>;
    /// Names of all root file systems that are there.
    fn rootfs_names(&self) -> Local<'_, RuntimeResult<Vec<String>>>;
    /// Bytes and inodes of what was written to a root file system; `None` when they are not known.
    fn written<'a>(&'a self, name: &'a str) -> Local<'a, Option<(u64, u64)>>;

    /// The directory of what was written to a root file system; `None` where it is a copy, or is not there.
    fn written_dir(&self, _name: &str) -> Option<PathBuf> {
        None
    }

    /// Root file systems are copies of their images: overlayfs cannot be mounted.
    fn makes_copies(&self) -> bool {
        false
    }

    /// `ImageStatus`.
    fn image_status(
        &self,
        _request: cri::ImageStatusRequest,
    ) -> Local<'_, RuntimeResult<cri::ImageStatusResponse>> {
        unimplemented_yet("ImageStatus")
    }
    /// `ListImages`.
    fn list_images(
        &self,
        _request: cri::ListImagesRequest,
    ) -> Local<'_, RuntimeResult<cri::ListImagesResponse>> {
        unimplemented_yet("ListImages")
    }
    /// `PullImage`.
    fn pull_image(
        &self,
        _request: cri::PullImageRequest,
    ) -> Local<'_, RuntimeResult<cri::PullImageResponse>> {
        unimplemented_yet("PullImage")
    }
    /// The pulls that are under way.
    fn pulls(&self) -> Vec<PullProgress> {
        Vec::new()
    }
    /// `RemoveImage`; idempotent.
    fn remove_image(
        &self,
        _request: cri::RemoveImageRequest,
    ) -> Local<'_, RuntimeResult<cri::RemoveImageResponse>> {
        unimplemented_yet("RemoveImage")
    }
    /// `ImageFsInfo`.
    fn image_fs_info(&self) -> Local<'_, RuntimeResult<cri::ImageFsInfoResponse>> {
        unimplemented_yet("ImageFsInfo")
    }
}

fn unimplemented_yet<T: 'static>(call: &str) -> Local<'static, RuntimeResult<T>> {
    let error = RuntimeError::Unimplemented(format!("{call}: these images cannot be changed"));
    Box::pin(async move { Err(error) })
}
