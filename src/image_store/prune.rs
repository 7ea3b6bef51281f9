//! Takes a partial layer back to a restart point: what was made after it is removed, and is made again. I/O, blocking.
//!
//! A file's time of creation (`btime`) tells: it is the file system's own, and no later call changes it. Without it nothing is known.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, StatxFlags, Timestamps, fstat, futimens, openat, statx, unlinkat,
};
use rustix::io::Errno;

use super::unpack::{through, times_of};
use crate::limits::{LAYER_DEPTH_MAX, LAYER_PRUNE_BATCH};
use crate::tree;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// When something was made; `None` where the file system does not tell.
pub(super) fn born(dir: &OwnedFd, name: &CStr) -> io::Result<Option<SystemTime>> {
    let found = statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME)?;
    if !StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
        return Ok(None);
    }
    let since = u64::try_from(found.stx_btime.tv_sec).ok();
    let since = since.map(|seconds| Duration::new(seconds, found.stx_btime.tv_nsec));
    Ok(since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)))
}

struct Level {
    dir: OwnedFd,
    entries: Dir,
}

impl Level {
    /// With nothing in it that was made after that time.
    fn enter(dir: OwnedFd, point: SystemTime) -> io::Result<Self> {
        let times = times_of(&fstat(&dir)?);
        while remove_some(&dir, point, &times)? {}
        Ok(Self { entries: Dir::read_from(&dir)?, dir })
    }
}

/// Removes everything below a layer's root that was made after that time.
///
/// # Errors
/// The file system's, or it does not tell when something was made.
pub(super) fn prune(root: OwnedFd, point: SystemTime) -> io::Result<()> {
    let mut levels = vec![Level::enter(root, point)?];
    loop {
        let depth = levels.len();
        let Some(Level { dir, entries }) = levels.last_mut() else { return Ok(()) };
        let Some(entry) = entries.next() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if matches!(name.to_bytes(), b"." | b"..") || !may_be_dir {
            continue;
        }
        let below = match openat(&*dir, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => continue,
            below => below?,
        };
        if depth > LAYER_DEPTH_MAX + 1 {
            return Err(io::Error::other("a layer is too deep"));
        }
        levels.push(Level::enter(below, point)?);
    }
}

/// True when there may be more.
fn remove_some(dir: &OwnedFd, point: SystemTime, times: &Timestamps) -> io::Result<bool> {
    let mut later: Vec<CString> = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Some(born) = born(dir, name)? else {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        };
        if born > point {
            later.push(name.to_owned());
            if later.len() == LAYER_PRUNE_BATCH {
                break;
            }
        }
    }
    for name in &later {
        match unlinkat(dir, &**name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => drop(tree::remove(&through(dir, name), || true)?),
            removed => removed?,
        }
    }
    if !later.is_empty() {
        futimens(dir, times)?;
    }
    Ok(later.len() == LAYER_PRUNE_BATCH)
}
