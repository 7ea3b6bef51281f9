//! Other devices for a container that runs: what its device cgroup opens, and the nodes in its `/dev`. I/O, blocking.
//!
//! ```text
//!     the container's cgroup ─► a process in it ─► /proc/PID/root ─► its /dev: a new node takes the name, and the kernel detaches
//!                                                                    the mount on the old one, which is of another mount namespace
//! ```
//!
//! What the container may open is in `devices.allow` of cgroup v1. On v2 a program of eBPF decides, which no file changes: there only a
//! container that may open every device gets other ones. Not in the kubelet. The container may change its file system meanwhile: no link
//! leads out of it, and nothing is changed in a directory that the node has mounted too.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, major, makedev, minor, mknodat, open, openat,
    openat2, renameat, statat, unlinkat,
};

use super::Cgroups;
use super::settings::put;
use super::tree::child_directories;
use crate::filesystem::read_start;
use crate::limits::CGROUP_STAT_BYTES_MAX;
use crate::model::DeviceNumber;
use crate::mounts;
use crate::render::NodeSettings;
use crate::render::cgroup_name::pod_cgroup_candidates;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A device volume of a container, as it is to be.
#[derive(Clone, Debug)]
pub struct DeviceChange {
    /// On the node.
    pub path: PathBuf,
    /// Where the container has it.
    pub container_path: String,
    /// What the container may do with it, `r` or `rw`; empty when it may open every device anyway.
    pub access: &'static str,
    /// The device.
    pub number: DeviceNumber,
}

impl Cgroups {
    /// Gives the running container of that id these devices in the place of those that it has there; names those that were others.
    ///
    /// # Errors
    /// It cannot be done while the container runs, or not here. Some of them may be changed then.
    pub fn change_devices(
        &self,
        node: &NodeSettings,
        (uid, id): (&str, &str),
        changes: &[DeviceChange],
    ) -> io::Result<String> {
        let dir = self.of_container(node, uid, id)?;
        let root = root_of(&dir)?;
        let mut changed = String::new();
        for change in changes {
            let Some(old) = apply(&root, &dir, change)? else { continue };
            let _ = write!(changed, " {}", change.number);
            // Another container's adapter may get that number next.
            if !change.access.is_empty() && changes.iter().all(|other| other.number != old) {
                tell(&dir, "devices.deny", &format!("{old} rwm"))?;
            }
        }
        Ok(changed)
    }

    /// Its cgroup, that with devices where there is one.
    fn of_container(&self, node: &NodeSettings, uid: &str, id: &str) -> io::Result<PathBuf> {
        // They become part of a path.
        if uid.is_empty() || uid.contains('/') || id.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let names = pod_cgroup_candidates(node, uid);
        let with = |file: &str| {
            let mut pods = self
                .hierarchies
                .iter()
                .flat_map(|hierarchy| names.iter().map(|name| hierarchy.join(name.trim_start_matches('/'))));
            pods.find(|pod| pod.join(file).exists())
        };
        let pod = with("devices.allow").or_else(|| with("cgroup.procs")).ok_or_else(no_cgroup)?;
        let names = child_directories(&pod).map_err(|error| error.source)?;
        let name = names.into_iter().find(|name| name.to_string_lossy().contains(id));
        Ok(pod.join(name.ok_or_else(no_cgroup)?))
    }
}

fn no_cgroup() -> io::Error {
    io::Error::other("it has no cgroup")
}

/// The root of a process in this cgroup. With version 2 it may be one level below: CRI-O's crun makes a cgroup of its own in systemd's scope.
fn root_of(dir: &Path) -> io::Result<OwnedFd> {
    let ended = || io::Error::other("it has no process");
    if let Some(root) = root_in(dir)? {
        return Ok(root);
    }
    // Of version 1 the upper one's list of devices is not the lower one's.
    if dir.join("devices.allow").exists() {
        return Err(ended());
    }
    let below = child_directories(dir).map_err(|error| error.source)?;
    below.iter().find_map(|name| root_in(&dir.join(name)).ok().flatten()).ok_or_else(ended)
}

/// The root of the first process in this very cgroup; `None`: it has none.
fn root_in(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let text = || read_start(&dir.join("cgroup.procs"), CGROUP_STAT_BYTES_MAX);
    let first = |text: Vec<u8>| -> Option<u32> {
        String::from_utf8_lossy(&text).lines().next().and_then(|line| line.parse().ok())
    };
    let Some(pid) = first(text()?) else { return Ok(None) };
    let process = open(format!("/proc/{pid}"), DIRECTORY, Mode::empty())?;
    let root = openat(&process, "root", DIRECTORY, Mode::empty())?;
    // Its number was not given to another one before it was held.
    Ok((first(text()?) == Some(pid)).then_some(root))
}

/// What was there before, unless it was that device already.
fn apply(root: &OwnedFd, cgroup: &Path, change: &DeviceChange) -> io::Result<Option<DeviceNumber>> {
    let wanted = change.number;
    let at = Path::new(&change.container_path);
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let dir = openat2(root, parent, DIRECTORY, Mode::empty(), resolve)?;
    let there = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let old = number_of(&there).ok_or_else(|| io::Error::other("it is no device any more"))?;
    let on_node = fs::metadata(&change.path)?;
    let is_owned = (there.st_uid, there.st_gid, there.st_mode & 0o777)
        == (on_node.uid(), on_node.gid(), on_node.mode() & 0o777);
    if old == wanted && is_owned {
        return Ok(None);
    }
    let own = fstat(&dir)?.st_dev;
    let own = format!("{}:{}", major(own), minor(own));
    if mounts::read()?.iter().any(|mount| *mount.device == *own) {
        return Err(io::Error::other("its directory is not of the container's own /dev"));
    }
    if old == wanted {
        // udev sets them later than the kernel makes the node.
        give(&dir, name, wanted, &on_node)?;
        return Ok(None);
    }
    if !change.access.is_empty() {
        tell(cgroup, "devices.allow", &format!("{wanted} {}", change.access))?;
    }
    let new = OsStr::new(".smolet-device");
    let _ = unlinkat(&dir, new, AtFlags::empty());
    let kind = if wanted.is_block { FileType::BlockDevice } else { FileType::CharacterDevice };
    mknodat(&dir, new, kind, Mode::empty(), makedev(wanted.major, wanted.minor))?;
    give(&dir, new, wanted, &on_node)?;
    renameat(&dir, new, &dir, name)?;
    Ok(Some(old))
}

/// Gives a node its owner and mode.
fn give(dir: &OwnedFd, name: &OsStr, number: DeviceNumber, like: &Metadata) -> io::Result<()> {
    let node = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if number_of(&fstat(&node)?) != Some(number) {
        return Err(io::Error::other("the container has put something else in its place"));
    }
    // Of what was opened, whatever has its name now.
    let node = format!("/proc/self/fd/{}", node.as_raw_fd());
    chown(&node, Some(like.uid()), Some(like.gid()))?;
    fs::set_permissions(&node, Permissions::from_mode(like.mode() & 0o777))
}

fn tell(cgroup: &Path, file: &str, line: &str) -> io::Result<()> {
    // There is no such file with cgroup v2.
    put(&cgroup.join(file), line).map_err(|error| io::Error::other(format!("{file} of cgroup v1: {error}")))
}

fn number_of(stat: &Stat) -> Option<DeviceNumber> {
    let is_block = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => true,
        FileType::CharacterDevice => false,
        _ => return None,
    };
    Some(DeviceNumber { is_block, major: major(stat.st_rdev), minor: minor(stat.st_rdev) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_in_the_cgroup_or_one_level_below() {
        let dir = std::env::temp_dir().join(format!("smolet-root-of-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let below = dir.join("container");
        fs::create_dir_all(&below).unwrap();
        let set = |dir: &Path, pids: String| fs::write(dir.join("cgroup.procs"), pids).unwrap();
        let root = fs::metadata("/").unwrap();
        let is_root = |found: OwnedFd| fstat(found).is_ok_and(|stat| stat.st_ino == root.ino());
        let own = format!("{}\n", std::process::id());
        set(&dir, String::new());
        set(&below, String::new());
        assert!(root_of(&dir).is_err());
        set(&below, own.clone());
        assert!(root_of(&dir).is_ok_and(is_root));
        fs::write(dir.join("devices.allow"), "").unwrap();
        assert!(root_of(&dir).is_err(), "cgroup v1: what is told the upper one is not told the lower one");
        set(&dir, own);
        assert!(root_of(&dir).is_ok_and(is_root));
        fs::remove_dir_all(&dir).unwrap();
    }
}
