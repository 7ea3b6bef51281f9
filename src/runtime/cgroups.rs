//! Removes a container's cgroup where the OCI runtime has left it: it was killed in the middle of a call. I/O, blocking.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, getpid, kill_process};

use super::stats::is_unified;
use crate::filesystem::read_start;
use crate::limits::{
    CGROUP_DEPTH_MAX, CGROUP_ENTRIES_MAX, CGROUP_REMOVE_PAUSE, CGROUP_REMOVE_TRIES, CGROUP_STAT_BYTES_MAX,
};

/// Kills what is in the cgroup of that path, in every hierarchy, and removes it. Idempotent.
///
/// # Errors
/// The kernel's: `ResourceBusy` while a killed process has not exited.
pub(super) fn remove(mounts: &Path, cgroup: &str) -> io::Result<()> {
    for hierarchy in hierarchies(mounts)? {
        let path = hierarchy.join(cgroup);
        let mut tries = 0;
        while let Err(error) = remove_tree(&path, CGROUP_DEPTH_MAX) {
            tries += 1;
            if tries == CGROUP_REMOVE_TRIES {
                return Err(io::Error::new(error.kind(), format!("cgroup {}: {error}", path.display())));
            }
            // Killed processes take a moment to exit.
            std::thread::sleep(CGROUP_REMOVE_PAUSE * tries);
        }
    }
    Ok(())
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

fn remove_tree(path: &Path, depth: usize) -> io::Result<()> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if depth > 0 {
        for entry in entries.take(CGROUP_ENTRIES_MAX).flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path(), depth - 1)?;
            }
        }
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            kill_processes(path);
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

fn kill_processes(path: &Path) {
    let text = read_start(&path.join("cgroup.procs"), CGROUP_STAT_BYTES_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let pids = text.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw);
    for pid in pids.filter(|pid| *pid != getpid()) {
        // It may have exited meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}
