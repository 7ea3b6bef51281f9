//! Removes a pod's directory: smolet's mounts in it first, then its content. NFS volumes were unmounted before (`nfs`).
//! Blocking I/O.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};
use std::time::Instant;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

use super::VolumeError;
use crate::limits::REMOVAL_PIECE;
use crate::model::pod_dirs::{NFS, SUBPATHS};
use crate::mounts::{self, Mount};
use crate::tree;
use crate::userns;

/// Removes a pod's directory with its content. Symlinks are removed, never followed; tmpfs volumes and subPaths are
/// unmounted, and while anything else is mounted below it nothing is removed. Returns after `limits::REMOVAL_PIECE`, with
/// whether everything is gone: further calls remove the rest.
///
/// # Errors
/// One sentence; the caller retries later.
pub fn pod_dir(pod_dir: &Path) -> Result<bool, VolumeError> {
    remove(pod_dir, one_piece)
}

/// Removes the volumes of a pod that has ended, as [`pod_dir`] does, and its range of user ids last
/// (`usernsManager.Release`). The files that its status is read from stay, and its hosts file.
///
/// # Errors
/// As [`pod_dir`].
pub fn volumes(pod_dir: &Path) -> Result<bool, VolumeError> {
    remove(pod_dir, |pod_dir| {
        if !unless_gone(one_piece(&pod_dir.join("volumes")))? {
            return Ok(false);
        }
        unless_gone(std::fs::remove_file(pod_dir.join(userns::NAME)).map(|()| true))
    })
}

fn one_piece(path: &Path) -> io::Result<bool> {
    let began = Instant::now();
    tree::remove(path, || began.elapsed() < REMOVAL_PIECE)
}

fn unless_gone(removed: io::Result<bool>) -> io::Result<bool> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        removed => removed,
    }
}

fn remove(pod_dir: &Path, files: fn(&Path) -> io::Result<bool>) -> Result<bool, VolumeError> {
    let fail = |what: String| VolumeError(format!("pod directory {}: {what}", pod_dir.display()));
    let mounts = mounted_below(pod_dir).map_err(|error| fail(format!("cannot be checked: {error}")))?;
    if let Some(other) = mounts.iter().find(|mounted| !mounted.is_ours) {
        return Err(fail(format!("{} is still mounted; unmount it", other.point)));
    }
    let unmounted = |own: &Mounted, done: rustix::io::Result<()>| {
        done.map_err(|error| fail(format!("{} cannot be unmounted: {error}", own.point)))
    };
    // Mounts that the node made below a subPath belong to the node: only their copy here is detached. Other mounts are not
    // accessed: their file system may hang, which unmounting does not mind.
    for own in mounts.iter().filter(|own| own.is_shared && mounts.iter().any(|other| other.is_below(own))) {
        unmounted(own, mount_change(own.point.as_str(), MountPropagationFlags::PRIVATE))?;
    }
    // The last one mounted first: subPaths before the volumes.
    for own in mounts.iter().rev() {
        unmounted(own, unmount(own.point.as_str(), UnmountFlags::NOFOLLOW))?;
    }
    let emptied =
        parts(&pod_dir.join(SUBPATHS), 3).and_then(|()| parts(&pod_dir.join("volumes").join(NFS), 1));
    let removed = emptied.and_then(|()| one_file_system(pod_dir)).and_then(|()| files(pod_dir));
    unless_gone(removed).map_err(|error| fail(format!("cannot be removed: {error}")))
}

/// Removes the mount points of subPaths and of NFS volumes, never what is below them: if one is mounted after all, the
/// kernel refuses. A program started by an agent that was killed since may still mount one at any moment.
fn parts(directory: &Path, depth: usize) -> io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        match (entry.file_type()?.is_dir(), depth) {
            (true, 1) => std::fs::remove_dir(entry.path())?,
            (true, _) => parts(&entry.path(), depth - 1)?,
            (false, _) => std::fs::remove_file(entry.path())?,
        }
    }
    std::fs::remove_dir(directory)
}

/// An error when a volume in the directory is on another file system (`RemoveAllOneFilesystem`).
fn one_file_system(pod_dir: &Path) -> io::Result<()> {
    let own = pod_dir.metadata()?.dev();
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for volume in entries(&pod_dir.join("volumes")).flat_map(|plugin| entries(&plugin.path())) {
        // Of a symlink itself, not its target.
        if volume.metadata()?.dev() != own {
            return Err(io::Error::other(format!("{} is mounted by now", volume.path().display())));
        }
    }
    Ok(())
}

/// A mount below a pod's directory.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    point: String,
    /// smolet mounted it: a tmpfs volume, or a subPath.
    is_ours: bool,
    /// Mounts in it propagate to other namespaces.
    is_shared: bool,
}

impl Mounted {
    fn is_below(&self, other: &Self) -> bool {
        self.point != other.point && Path::new(&self.point).starts_with(&other.point)
    }
}

/// The mount points at or below `directory`, in mount order.
fn mounted_below(directory: &Path) -> io::Result<Vec<Mounted>> {
    // The kernel writes resolved paths, so the directory's path must be resolved too.
    let Ok(real) = directory.canonicalize() else { return Ok(Vec::new()) };
    Ok(points(mounts::read_below(&real)?, &real))
}

fn points(mounts: Vec<Mount>, real: &Path) -> Vec<Mounted> {
    let below = mounts.into_iter().filter_map(|Mount { point, kind, is_shared, .. }| {
        let kind = &*kind;
        let below: Vec<&str> = Path::new(&point).strip_prefix(real).ok()?.components().map(name).collect();
        let is_ours = match below[..] {
            ["volumes", plugin, _] => match plugin {
                "kubernetes.io~empty-dir" => kind == "tmpfs" || kind == "hugetlbfs",
                "kubernetes.io~secret" | "kubernetes.io~projected" | "kubernetes.io~downward-api" => {
                    kind == "tmpfs"
                }
                _ => false,
            },
            // Including what the node mounted in it since.
            [SUBPATHS, _, _, index, ..] => index.bytes().all(|byte| byte.is_ascii_digit()),
            _ => false,
        };
        Some(Mounted { point, is_ours, is_shared })
    });
    below.collect()
}

fn name(part: Component<'_>) -> &str {
    part.as_os_str().to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An NFS volume is unmounted elsewhere, with a deadline. Until it is, nothing is removed, and nothing through a mount that
    /// appears meanwhile.
    #[test]
    fn nothing_is_removed_through_an_nfs_volume() {
        use rustix::mount::{MountFlags, mount};
        let root = std::env::temp_dir().join(format!("smolet-remove-nfs-{}", std::process::id()));
        let (own, volume) =
            (root.join("volumes/kubernetes.io~empty-dir/own"), root.join("volumes").join(NFS).join("v"));
        let _ = unmount(&volume, UnmountFlags::DETACH);
        let _ = std::fs::remove_dir_all(&root);
        for directory in [&own, &volume] {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(own.join("file"), "x").unwrap();
        mount("nas:/data", &volume, "tmpfs", MountFlags::NODEV, None::<&std::ffi::CStr>)
            .expect("mounting needs root");
        std::fs::write(volume.join("kept"), "x").unwrap();
        let error = pod_dir(&root).expect_err("mounted").0;
        assert!(error.ends_with("kubernetes.io~nfs/v is still mounted; unmount it"), "{error}");
        // It was mounted after the check.
        let error = parts(&root.join("volumes").join(NFS), 1).expect_err("mounted");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(volume.join("kept").exists() && own.join("file").exists(), "nothing is touched");
        unmount(&volume, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
        // A process wrote here locally what was meant for the server.
        std::fs::write(volume.join("local"), "x").unwrap();
        let error = pod_dir(&root).expect_err("not empty").0;
        assert!(
            error.contains("cannot be removed: Directory not empty") && volume.join("local").exists(),
            "{error}"
        );
        std::fs::remove_file(volume.join("local")).unwrap();
        pod_dir(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn only_mounts_of_smolet_are_its_own() {
        for (below, kind, ours) in [
            ("volumes/kubernetes.io~secret/s", "tmpfs", Some(true)),
            ("volumes/kubernetes.io~projected/s", "tmpfs", Some(true)),
            ("volumes/kubernetes.io~downward-api/s", "tmpfs", Some(true)),
            ("volumes/kubernetes.io~empty-dir/s", "tmpfs", Some(true)),
            ("volumes/kubernetes.io~empty-dir/s", "hugetlbfs", Some(true)),
            ("volumes/kubernetes.io~empty-dir/s", "ext4", Some(false)),
            ("volumes/kubernetes.io~secret/s", "ext4", Some(false)),
            ("volumes/kubernetes.io~secret/s/deep", "tmpfs", Some(false)),
            ("volumes/kubernetes.io~configmap/s", "tmpfs", Some(false)),
            ("volumes/kubernetes.io~nfs/s", "nfs4", Some(false)),
            ("volume-subpaths/v/c/0", "ext4", Some(true)),
            ("volume-subpaths/v/c/12", "tmpfs", Some(true)),
            ("volume-subpaths/v/c/3/usb", "vfat", Some(true)),
            ("volume-subpaths/v/c/x", "ext4", Some(false)),
            ("volume-subpaths/v/c", "ext4", Some(false)),
            ("", "ext4", Some(false)),
            ("../other/volumes/kubernetes.io~secret/s", "tmpfs", None),
        ] {
            let point = if let Some(other) = below.strip_prefix("../") {
                format!("/r\\040x/{other}")
            } else {
                format!("/r\\040x/u/{below}")
            };
            let table = format!(
                "22 1 0:3 / /proc rw - proc proc rw\n36 35 98:0 / {} rw shared:1 - {kind} none rw\n",
                point.trim_end_matches('/')
            );
            let found = points(mounts::parse(&table), Path::new("/r x/u"));
            assert_eq!(found.first().map(|mounted| mounted.is_ours), ours, "{below} {kind}: {found:?}");
            assert!(found.iter().all(|mounted| mounted.is_shared));
            let alone = points(mounts::parse(&table.replace("shared:1", "master:1")), Path::new("/r x/u"));
            assert!(alone.len() == found.len() && alone.iter().all(|mounted| !mounted.is_shared));
        }
    }
}
