//! What the OCI runtime-specs need to know of this machine beside the facts of `oci`: the cgroup version, files of root file systems,
//! CDI specifications. I/O, blocking.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::stats::is_unified;
use crate::filesystem::{read_linked, read_start, read_whole};
use crate::limits::{CDI_FILES_MAX, CDI_SPEC_BYTES_MAX, KIB, USER_DATABASE_BYTES_MAX};
use crate::render::CgroupVersion;

/// The cgroup version, and whether it accounts for swap.
pub(super) fn cgroup_version(mounts: &Path) -> CgroupVersion {
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
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let dir = openat(CWD, rootfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Looked at first: opening a device may have any effect.
    let handle = |flags| -> Result<OwnedFd, Errno> {
        openat2(&dir, name, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    };
    let path = match handle(OFlags::PATH | OFlags::CLOEXEC) {
        Ok(path) => File::from(path),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    read_whole(&File::from(handle(flags)?), USER_DATABASE_BYTES_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_root_file_system_do_not_lead_out_of_it() {
        let root = std::env::temp_dir().join(format!("smolet-host-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("usr")).unwrap();
        std::os::unix::fs::symlink("/usr/passwd", root.join("etc/passwd")).unwrap();
        assert!(file_of_rootfs(&root, "etc/passwd").unwrap().is_empty(), "a link to nothing");
        std::fs::write(root.join("usr/passwd"), "own").unwrap();
        assert_eq!(file_of_rootfs(&root, "etc/passwd").unwrap(), b"own");
        std::os::unix::fs::symlink("../../../../../etc/hostname", root.join("etc/group")).unwrap();
        assert!(file_of_rootfs(&root, "etc/group").unwrap().is_empty());
        rustix::fs::mkfifoat(CWD, root.join("etc/fifo"), Mode::RWXU).unwrap();
        assert!(file_of_rootfs(&root, "etc/fifo").is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
