//! A cgroup and those below it: killed, removed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::limits::{
    CGROUP_DEPTH_MAX, CGROUP_ENTRIES_MAX, CGROUP_PROCS_BYTES_MAX, CGROUP_REMOVE_PAUSE, CGROUP_REMOVE_TRIES,
    CGROUPS_PER_POD_MAX,
};
use crate::model::SortedSet;

/// A cgroup that could not be read or removed. It is retried with the pod's next sync.
#[derive(Debug)]
pub struct CgroupError {
    /// The directory.
    pub path: PathBuf,
    /// The error. `ResourceBusy` while its processes still run after SIGKILL.
    pub source: io::Error,
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cgroup {}: {}", self.path.display(), self.source)?;
        match self.source.kind() {
            io::ErrorKind::ResourceBusy => f.write_str("; its processes still run after SIGKILL"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Number of directories in all hierarchies; 0 when there was none.
    pub directories: usize,
    /// PIDs of the killed processes: usually none, because the runtime has stopped them.
    pub killed: SortedSet<i32>,
}

/// Kills the processes of a cgroup and of those below it: those that are there at this moment, unless the kernel does it (version 2,
/// from 5.14), which also sees those that are started meanwhile.
pub fn kill(path: &Path) {
    let by_kernel = File::options().write(true).open(path.join("cgroup.kill"));
    if by_kernel.and_then(|mut file| file.write_all(b"1")).is_err() {
        kill_tree(path, CGROUP_DEPTH_MAX, &mut { CGROUPS_PER_POD_MAX }, &mut Removed::default());
    }
}

/// Removes these cgroups and those below them, children first, and kills the processes in them. All are tried; the first error is
/// returned.
///
/// # Errors
/// The kernel's; `ResourceBusy` while a killed process has not exited.
pub fn remove(paths: &[PathBuf]) -> Result<Removed, CgroupError> {
    let mut removed = Removed::default();
    let mut tries = 1;
    loop {
        let mut result = Ok(());
        for path in paths {
            let mut left = CGROUPS_PER_POD_MAX;
            result = result.and(remove_tree(path, CGROUP_DEPTH_MAX, &mut left, &mut removed));
        }
        match result {
            // Killed processes take a moment to exit.
            Err(error)
                if tries < CGROUP_REMOVE_TRIES && error.source.kind() == io::ErrorKind::ResourceBusy =>
            {
                std::thread::sleep(CGROUP_REMOVE_PAUSE * tries);
                tries += 1;
            }
            result => return result.map(|()| removed),
        }
    }
}

/// Removes the directory and those below it, at most `left`. A missing directory counts as removed; one that cannot be removed
/// does not stop the others, and its processes get SIGKILL.
fn remove_tree(
    path: &Path,
    depth: usize,
    left: &mut usize,
    removed: &mut Removed,
) -> Result<(), CgroupError> {
    let failed = |source| CgroupError { path: path.to_owned(), source };
    let mut result = Ok(());
    for name in child_directories(path)? {
        if depth == 0 || *left == 0 {
            return Err(failed(io::Error::other("more cgroups below it than one pod may have")));
        }
        result = result.and(remove_tree(&path.join(name), depth - 1, left, removed));
    }
    match std::fs::remove_dir(path) {
        Ok(()) => {
            *left = left.saturating_sub(1);
            removed.directories += 1;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            if matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty) {
                kill_processes(path, removed);
            }
            result = result.and(Err(failed(error)));
        }
    }
    result
}

/// Kills the processes in this cgroup and those below it, at most `left`.
pub(super) fn kill_tree(path: &Path, depth: usize, left: &mut usize, removed: &mut Removed) {
    // Unreadable: nothing is killed; running processes keep the cgroup busy, which is reported.
    for name in child_directories(path).unwrap_or_default() {
        if depth == 0 || *left == 0 {
            return;
        }
        *left -= 1;
        kill_tree(&path.join(name), depth - 1, left, removed);
    }
    kill_processes(path, removed);
}

/// Kills the processes in this cgroup, without those below it. Unreadable (a threaded cgroup of version 2, whose processes are
/// listed above it): nothing is killed; the busy cgroup is reported.
fn kill_processes(path: &Path, removed: &mut Removed) {
    let Ok(file) = File::open(path.join("cgroup.procs")) else { return };
    let mut text = String::new();
    if file.take(CGROUP_PROCS_BYTES_MAX).read_to_string(&mut text).is_err() {
        return;
    }
    // A process of another PID namespace is listed as 0; the last line may be truncated, and is read by the retry.
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let pids = whole.filter_map(|line| i32::try_from(line.parse::<u32>().ok()?).ok());
    for pid in pids.filter_map(Pid::from_raw).filter(|pid| *pid != getpid()) {
        if kill_process(pid, Signal::KILL).is_ok() {
            removed.killed.insert(pid.as_raw_pid());
        }
    }
}

/// Names of the subdirectories, without symbolic links. Empty for a missing directory.
pub(super) fn child_directories(path: &Path) -> Result<Vec<std::ffi::OsString>, CgroupError> {
    let failed = |source| CgroupError { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        // Removed between the two calls.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries.take(CGROUP_ENTRIES_MAX) {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}
