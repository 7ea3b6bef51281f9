//! Whether an emptyDir on disk has outgrown its `sizeLimit` (eviction manager, `emptyDirLimitEviction`). What [`limited`]
//! finds is PURE; measuring is I/O, blocking.
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2, statat};

use super::{CONFIG_MAP, EMPTY_DIR, own_path};
use crate::limits::{VOLUME_DEPTH_MAX, VOLUME_LINKS_MAX};
use crate::model::DesiredPod;
use crate::model::SortedSet;
use crate::mounts;
use crate::render::quantity::Quantity;

/// An emptyDir that may hold so much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The volume's name.
    pub name: Box<str>,
    path: PathBuf,
    limit: Box<str>,
    bytes_max: u64,
}

/// The pod's emptyDirs on disk that have a limit. Those in memory cannot outgrow theirs.
pub fn limited(pod: &DesiredPod, pod_dir: &str) -> Vec<Limited> {
    let volumes = pod.spec().volumes.iter().flatten();
    let found = volumes.filter_map(|volume| {
        let of =
            volume.empty_dir.as_ref().filter(|of| of.medium.as_deref().unwrap_or_default().is_empty())?;
        let limit = of.size_limit.as_ref()?;
        let bytes_max = u64::try_from(Quantity::parse(&limit.0).ok()?.value()).ok()?;
        // 0 is no limit (`emptyDirLimitEviction` asks for a positive one).
        (bytes_max > 0).then(|| Limited {
            name: volume.name.as_str().into(),
            path: own_path(pod_dir, volume).into(),
            limit: limit.0.as_str().into(),
            bytes_max,
        })
    });
    found.collect()
}

impl Limited {
    /// The kubelet's message when it holds more than it may. What is mounted in it may not answer: it is not looked at.
    /// (Before Linux 5.6 nothing is that is beside it.)
    pub fn outgrown(&self) -> Option<String> {
        let sum = Sum::of(&self.path, self.bytes_max)?;
        (sum.bytes > self.bytes_max).then(|| {
            // With the blank at its end.
            format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", self.name, self.limit)
        })
    }
}

/// Bytes and inodes that a directory takes on its disk; `None` when it is not there. What is mounted in it is not of it.
pub fn measured(path: &Path) -> Option<(u64, u64)> {
    Sum::of(path, u64::MAX).map(|sum| (sum.bytes, sum.inodes))
}

/// Bytes and inodes of what a pod's volumes take on the node's disk (`IsLocalEphemeralVolume`), and its hosts file
/// (`getPodEtcHostsStats`).
pub fn measured_pod(pod_dir: &Path) -> (u64, u64) {
    let hosts = std::fs::symlink_metadata(pod_dir.join("etc-hosts"));
    let (mut bytes, mut inodes) = hosts.map_or((0, 0), |file| (file.blocks() * 512, 1));
    for plugin in [EMPTY_DIR, CONFIG_MAP] {
        let (more, further) = measured(&pod_dir.join("volumes").join(plugin)).unwrap_or_default();
        bytes += more;
        inodes += further;
    }
    (bytes, inodes)
}

/// A container may put a link in a directory's place at any time.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Sum {
    bytes: u64,
    inodes: u64,
    bytes_max: u64,
    /// What is mounted in the volume is not of it.
    device: u64,
    /// There is such.
    has_mounts: bool,
    /// Files of several names that are counted already.
    links: SortedSet<u64>,
}

impl Sum {
    /// Of that directory. What is mounted in it may not answer: it is not looked at.
    fn of(path: &Path, bytes_max: u64) -> Option<Self> {
        let has_mounts = mounts::has_mounts(path).ok()?;
        let directory = if has_mounts {
            let parent = open(path.parent()?, DIRECTORY, Mode::empty()).ok()?;
            openat2(&parent, path.file_name()?, DIRECTORY, Mode::empty(), ResolveFlags::NO_XDEV).ok()?
        } else {
            open(path, DIRECTORY, Mode::empty()).ok()?
        };
        let device = fstat(&directory).ok()?.st_dev;
        let mut sum = Self { bytes: 0, inodes: 0, bytes_max, device, has_mounts, links: SortedSet::new() };
        sum.add(&directory, 0);
        Some(sum)
    }

    /// Adds what a directory takes on the disk, as `du` does. Symlinks are not followed; what goes away meanwhile, or
    /// cannot be read, counts nothing. Ends when it is enough.
    fn add(&mut self, directory: &OwnedFd, depth: usize) {
        let Ok(entries) = Dir::read_from(directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let there = if self.has_mounts {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat2(directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV).and_then(fstat)
            } else {
                statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
            };
            let Ok(there) = there else { continue };
            if there.st_dev != self.device {
                continue;
            }
            let is_dir = FileType::from_raw_mode(there.st_mode).is_dir();
            let is_new = is_dir
                || there.st_nlink < 2
                || self.links.len() >= VOLUME_LINKS_MAX
                || self.links.insert(there.st_ino);
            if is_new {
                self.inodes += 1;
                self.bytes = self.bytes.saturating_add(u64::try_from(there.st_blocks).unwrap_or(0) * 512);
            }
            if is_dir
                && depth < VOLUME_DEPTH_MAX
                && let Ok(below) = openat(directory, name, DIRECTORY, Mode::empty())
            {
                self.add(&below, depth + 1);
            }
            if self.bytes > self.bytes_max {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use rustix::io::Errno;
    use serde_json::json;

    #[test]
    fn what_an_empty_dir_takes_on_the_disk_is_held_against_its_limit() {
        let root = std::env::temp_dir().join(format!("smolet-usage-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "a", "emptyDir": {"sizeLimit": "1Mi"}}, {"name": "b", "emptyDir": {}},
            {"name": "c", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, {"name": "d", "emptyDir": {"sizeLimit": "0"}}]}});
        let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        let found = limited(&pod, root.to_str().unwrap());
        assert_eq!(found.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["a"]);
        let (dir, outgrown) = (&found[0].path, || found[0].outgrown());
        assert_eq!(outgrown(), None, "it is not there yet");
        std::fs::create_dir_all(dir.join("deep/er")).unwrap();
        std::fs::write(dir.join("deep/er/x"), vec![1; 600 << 10]).unwrap();
        std::fs::hard_link(dir.join("deep/er/x"), dir.join("again")).unwrap();
        std::os::unix::fs::symlink("/", dir.join("all")).unwrap();
        std::fs::File::create(dir.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        assert_eq!(outgrown(), None, "two names of one file, a link and a hole take nothing");
        std::fs::write(dir.join("y"), vec![1; 500 << 10]).unwrap();
        // deep, deep/er, x under one of its names, the link, the sparse file and y.
        let (bytes, inodes) = measured(dir).unwrap();
        let about = (1100 << 10)..(1200 << 10);
        assert!(inodes == 6 && about.contains(&bytes), "{inodes} inodes, {bytes} bytes");
        assert_eq!(outgrown().as_deref(), Some("Usage of EmptyDir volume \"a\" exceeds the limit \"1Mi\". "));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn of_a_pod_what_it_has_on_the_disk_is_counted() {
        let root = std::env::temp_dir().join(format!("smolet-usage-pod-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        assert_eq!(measured_pod(&root), (0, 0));
        for (file, kib) in [
            ("etc-hosts", 8),
            ("volumes/kubernetes.io~empty-dir/a/x", 100),
            ("volumes/kubernetes.io~empty-dir/b/deep/x", 200),
            ("volumes/kubernetes.io~configmap/c/x", 400),
            ("volumes/kubernetes.io~secret/d/x", 1000),
            ("containers/app/0badcafe", 2000),
        ] {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, vec![1; kib << 10]).unwrap();
        }
        // Four files, the volumes and a directory in one.
        let (bytes, inodes) = measured_pod(&root);
        let about = (708 << 10)..(760 << 10);
        assert!(inodes == 8 && about.contains(&bytes), "{inodes} inodes, {bytes} bytes");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_is_mounted_in_an_empty_dir_is_not_looked_at() {
        let root = std::env::temp_dir().join(format!("smolet-usage-away-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let path = root.join("a");
        std::fs::create_dir_all(path.join("deep/away")).unwrap();
        std::fs::write(path.join("deep/x"), vec![1; 600 << 10]).unwrap();
        let limited =
            Limited { name: "a".into(), path: path.clone(), limit: "512Ki".into(), bytes_max: 512 << 10 };
        // Emulators may be as old as the kernel before Linux 5.6.
        let known = openat2(CWD, &root, DIRECTORY, Mode::empty(), ResolveFlags::empty());
        let is_measured = known.err() != Some(Errno::NOSYS);
        for (at, outgrown) in [(path.join("deep/away"), is_measured), (path, false)] {
            let away = mounts::Away::mount(&at);
            let (found, told) = std::sync::mpsc::channel();
            let theirs = limited.clone();
            std::thread::spawn(move || found.send(theirs.outgrown().is_some()));
            let told = told.recv_timeout(std::time::Duration::from_mins(1));
            // A thread that hangs gets an error.
            drop(away);
            assert_eq!(told, Ok(outgrown), "{}", at.display());
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
