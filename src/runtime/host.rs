//! What the OCI runtime-specs need to know of this machine beside the facts of `oci`: the cgroup version, files of root file systems,
//! CDI specifications. I/O, blocking.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::stats::is_unified;
use crate::filesystem::{read_linked, read_start, read_within};
use crate::limits::{CDI_FILES_MAX, CDI_SPEC_BYTES_MAX, KIB, USER_DATABASE_BYTES_MAX};
use crate::render::CgroupVersion;

/// The cgroup version, and whether it accounts for swap. Blocking.
pub fn cgroup_version(mounts: &Path) -> CgroupVersion {
    if is_unified(mounts) {
        CgroupVersion::V2 { swap_controller: has_swap_v2(mounts) }
    } else {
        let swap_controller = mounts.join("memory/memory.memsw.limit_in_bytes").exists();
        CgroupVersion::V1 { swap_controller }
    }
}

/// `memory.swap.max` is in every cgroup but the root's.
fn has_swap_v2(mounts: &Path) -> bool {
    let own = read_start(Path::new("/proc/self/cgroup"), 4 * KIB).unwrap_or_default();
    let own = String::from_utf8_lossy(&own).into_owned();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
    let dirs = [mounts.join(&path), mounts.join("init.scope"), mounts.join("system.slice")];
    dirs.iter().any(|dir| dir.join("memory.swap.max").exists())
}

/// A file of a root file system, without a way out of it; empty when there is none.
///
/// # Errors
/// It is no regular file, or is too large.
pub(super) fn file_of_rootfs(rootfs: &Path, name: &str) -> io::Result<Vec<u8>> {
    match read_within(rootfs, name, USER_DATABASE_BYTES_MAX) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        read => read,
    }
}

/// The node's CDI specifications, with their paths.
pub(super) fn cdi_files() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for dir in ["/etc/cdi", "/var/run/cdi"] {
        let entries = std::fs::read_dir(dir).into_iter().flatten().take(CDI_FILES_MAX).flatten();
        let is_spec = |path: &PathBuf| {
            path.extension().is_some_and(|ending| ending == "json" || ending == "yaml" || ending == "yml")
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_spec).collect();
        paths.sort_unstable();
        for path in paths {
            match read_linked(&path, CDI_SPEC_BYTES_MAX) {
                Ok(text) => files.push((path.display().to_string(), text)),
                Err(error) => log::warn!("CDI specification {}: {error}; it is passed over", path.display()),
            }
        }
    }
    files
}
