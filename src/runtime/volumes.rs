//! Volumes that an image declares: directories of the container's own, with what the image has there; they go with it (containerd's
//! `WithVolumes`). I/O.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::container::{Container, Containers};
use super::context::failed;
use super::users::{self, Owner, Users};
use crate::cri::RuntimeResult;
use crate::limits::REMOVAL_PIECE;
use crate::model::ContainerId;
use crate::oci::Volume;
use crate::tree;

fn dir_of(containers: &Containers, id: &ContainerId) -> PathBuf {
    containers.dir(id).join("volumes")
}

/// Makes those of these paths in the container; the root file system is there.
///
/// # Errors
/// The file system's.
pub(super) async fn make(
    containers: &Containers,
    container: &Container,
    users: Option<&Users>,
    paths: Vec<String>,
) -> RuntimeResult<Vec<Volume>> {
    let mut volumes = Vec::with_capacity(paths.len());
    for (index, path) in paths.into_iter().enumerate() {
        let dir = dir_of(containers, container.id()).join(index.to_string());
        let (made, root) = (dir.clone(), users.map(Users::root));
        let made = containers.context.blocking(move || make_dir(&made, root)).await;
        made.map_err(|error| failed(format!("the image's volume {path}: {error}")))?;
        containers.images.copy_out(container.id().as_str(), &path, &dir).await?;
        volumes.push(Volume { container_path: path, host_path: dir.display().to_string() });
    }
    Ok(volumes)
}

/// As an image has it that has no directory there.
fn make_dir(dir: &Path, root: Option<Owner>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755))?;
    root.map_or(Ok(()), |root| users::give(dir, root))
}

/// Removes them, in pieces: a container may have made any number of files, and others wait for a turn. No link is followed. Idempotent.
///
/// # Errors
/// The file system's.
pub(super) async fn remove(containers: &Containers, id: &ContainerId) -> io::Result<()> {
    loop {
        let dir = dir_of(containers, id);
        let piece = move || {
            let began = Instant::now();
            tree::remove(&dir, || began.elapsed() < REMOVAL_PIECE)
        };
        match containers.context.blocking(piece).await {
            Ok(false) => {}
            Ok(true) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
