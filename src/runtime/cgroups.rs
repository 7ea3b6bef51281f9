//! Removes a container's cgroup where the OCI runtime has left it: it was killed in the middle of a call. I/O, blocking.

use std::io;
use std::path::{Path, PathBuf};

use super::stats::is_unified;
use crate::cgroup;
use crate::limits::CGROUP_ENTRIES_MAX;

/// Kills what is in the cgroup of that path, in every hierarchy, and removes it. Idempotent.
///
/// # Errors
/// The kernel's: `ResourceBusy` while a killed process has not exited.
pub(super) fn remove(mounts: &Path, cgroup: &str) -> io::Result<()> {
    let paths: Vec<PathBuf> = hierarchies(mounts)?.iter().map(|hierarchy| hierarchy.join(cgroup)).collect();
    match cgroup::remove(&paths) {
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::new(error.source.kind(), error.to_string())),
    }
}

fn hierarchies(mounts: &Path) -> io::Result<Vec<PathBuf>> {
    if is_unified(mounts) {
        return Ok(vec![mounts.to_owned()]);
    }
    let entries = std::fs::read_dir(mounts)?.take(CGROUP_ENTRIES_MAX);
    // Links are other names of hierarchies (`cpu` of `cpu,cpuacct`).
    let is_dir = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.flatten().filter(is_dir).map(|entry| entry.path()).collect())
}
