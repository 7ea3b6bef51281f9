//! Takes a pod's directory away: what smolet mounted in it first, then all that is in it. I/O, blocking.

use std::io;
use std::path::{Component, Path};

use rustix::mount::{UnmountFlags, unmount};

use super::VolumeError;
use crate::limits::MOUNTINFO_BYTES_MAX;

/// Removes a pod's directory with all that is in it. Symlinks are removed, never followed; memory and parts of volumes
/// are unmounted, and where something else is still mounted below it nothing is touched.
///
/// # Errors
/// One sentence; the caller tries again later.
pub fn pod_dir(pod_dir: &Path) -> Result<(), VolumeError> {
    let fail = |what: String| VolumeError(format!("pod directory {}: {what}", pod_dir.display()));
    let mounts = mounted_below(pod_dir).map_err(|error| fail(format!("cannot be checked: {error}")))?;
    if let Some(other) = mounts.iter().find(|mounted| !mounted.is_ours) {
        return Err(fail(format!("{} is still mounted; unmount it", other.point)));
    }
    // The last one mounted first: parts of volumes before the volumes.
    for own in mounts.iter().rev() {
        unmount(own.point.as_str(), UnmountFlags::NOFOLLOW)
            .map_err(|error| fail(format!("{} cannot be unmounted: {error}", own.point)))?;
    }
    match std::fs::remove_dir_all(pod_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(fail(format!("cannot be removed: {error}")))
        }
        _ => Ok(()),
    }
}

/// What is mounted below a pod's directory.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    point: String,
    /// smolet mounted it: the memory of a volume, or a part of one.
    is_ours: bool,
}

/// The mount points at or below `directory`, in the order of their mounting.
fn mounted_below(directory: &Path) -> io::Result<Vec<Mounted>> {
    use std::io::Read as _;
    let mut table = String::new();
    let mut file = std::fs::File::open("/proc/self/mountinfo")?.take(MOUNTINFO_BYTES_MAX as u64);
    file.read_to_string(&mut table)?;
    if file.limit() == 0 {
        return Err(io::Error::other("the mount table is too long"));
    }
    // The kernel writes real paths, so the directory's own must be one too.
    let Ok(real) = directory.canonicalize() else { return Ok(Vec::new()) };
    Ok(points(&table, &real))
}

fn points(table: &str, real: &Path) -> Vec<Mounted> {
    // Field 5 is the mount point, blanks in it are octal escapes; the type stands behind " - ".
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        Some((before.split(' ').nth(4)?.replace("\\040", " "), after.split(' ').next()?))
    });
    let below = mounts.filter_map(|(point, kind)| {
        let below: Vec<&str> = Path::new(&point).strip_prefix(real).ok()?.components().map(name).collect();
        let is_ours = match below[..] {
            ["volumes", plugin, _] => match plugin {
                "kubernetes.io~empty-dir" => kind == "tmpfs" || kind == "hugetlbfs",
                "kubernetes.io~secret" | "kubernetes.io~projected" | "kubernetes.io~downward-api" => {
                    kind == "tmpfs"
                }
                _ => false,
            },
            ["volume-subpaths", _, _, index] => index.bytes().all(|byte| byte.is_ascii_digit()),
            _ => false,
        };
        Some(Mounted { point, is_ours })
    });
    below.collect()
}

fn name(part: Component<'_>) -> &str {
    part.as_os_str().to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_smolet_mounts_is_its_own() {
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
            let found = points(&table, Path::new("/r x/u"));
            assert_eq!(found.first().map(|mounted| mounted.is_ours), ours, "{below} {kind}: {found:?}");
        }
    }
}
