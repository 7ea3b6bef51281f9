//! Disk usage of volumes: emptyDirs that exceed their `sizeLimit` (eviction manager, `emptyDirLimitEviction`). [`limited`]
//! is PURE; measuring is blocking I/O.
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat};

use super::{CONFIG_MAP, EMPTY_DIR, own_path};
use crate::limits::{VOLUME_LINKS_MAX, VOLUME_USAGE_PERIOD, VOLUME_USAGE_PIECE, VOLUMES_HALF_MEASURED_MAX};
use crate::model::DesiredPod;
use crate::model::SortedSet;
use crate::model::quantity::Quantity;
use crate::mounts;
use crate::tree::{Walk, WalkResult};

/// An emptyDir with a size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The volume's name.
    pub name: Box<str>,
    path: PathBuf,
    limit: Box<str>,
    bytes_max: u64,
}

/// The pod's emptyDirs on disk with a limit. A tmpfs cannot exceed its own.
pub fn limited(pod: &DesiredPod, pod_dir: &str) -> Vec<Limited> {
    let volumes = pod.spec().volumes.iter().flatten();
    let found = volumes.filter_map(|volume| {
        let of =
            volume.empty_dir.as_ref().filter(|of| of.medium.as_deref().unwrap_or_default().is_empty())?;
        let limit = of.size_limit.as_ref()?;
        let bytes_max = u64::try_from(Quantity::parse(&limit.0).ok()?.value()).ok()?;
        // 0 means no limit (`emptyDirLimitEviction` requires a positive one).
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
    /// The kubelet's message when the volume exceeds its limit, with the trailing blank.
    fn outgrown(&self, sum: &Sum) -> Option<String> {
        let is_outgrown = sum.bytes > self.bytes_max;
        is_outgrown
            .then(|| format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", self.name, self.limit))
    }
}

/// Measurements of large volumes that are not complete, and are continued by the next [`Measurement::run`].
#[derive(Default)]
pub struct Measurement {
    /// At most one per pod, and `limits::VOLUMES_HALF_MEASURED_MAX`. Full: a further volume starts from the beginning the
    /// next time.
    unfinished: Vec<(String, Limited, Sum)>,
    /// The last pod that was added: the next time the pods after it come first.
    last: String,
}

impl Measurement {
    /// The pods, by UID, with a volume that exceeds its limit, and the message. Each volume is measured for
    /// `limits::VOLUME_USAGE_PIECE`; the large ones continue in turn within `limits::VOLUME_USAGE_PERIOD`, so that none
    /// delays the others. Mounts in a volume may hang: they are not measured. (Before Linux 5.6 directories
    /// beside a mount are not measured either.)
    pub fn run(&mut self, pods: Vec<(String, Vec<Limited>)>) -> Vec<(String, String)> {
        self.run_in_pieces(pods, VOLUME_USAGE_PIECE, VOLUME_USAGE_PERIOD)
    }

    fn run_in_pieces(
        &mut self,
        mut pods: Vec<(String, Vec<Limited>)>,
        piece: Duration,
        period: Duration,
    ) -> Vec<(String, String)> {
        let began = Instant::now();
        self.unfinished.retain(|(uid, volume, _)| {
            pods.iter().any(|(of, volumes)| of == uid && volumes.contains(volume))
        });
        pods.sort_by_key(|(uid, _)| (*uid <= self.last, uid.clone()));
        let mut found: Vec<(String, String)> = Vec::new();
        for (uid, volumes) in pods {
            for volume in volumes {
                if self.unfinished.iter().any(|(of, begun, _)| *of == uid && *begun == volume) {
                    continue;
                }
                let Some(mut sum) = Sum::of(&volume.path, volume.bytes_max) else { continue };
                let is_over = sum.go_on(piece);
                if let Some(message) = volume.outgrown(&sum) {
                    found.push((uid, message));
                    break;
                }
                let has_place = self.unfinished.len() < VOLUMES_HALF_MEASURED_MAX
                    && self.unfinished.iter().all(|(of, ..)| *of != uid);
                if !is_over && has_place {
                    self.last.clone_from(&uid);
                    self.unfinished.push((uid.clone(), volume, sum));
                }
            }
        }
        self.unfinished.retain(|(uid, ..)| found.iter().all(|(of, _)| of != uid));
        loop {
            self.unfinished.retain_mut(|(uid, volume, sum)| {
                let is_over = sum.go_on(piece);
                found.extend(volume.outgrown(sum).map(|message| (uid.clone(), message)));
                !is_over
            });
            if self.unfinished.is_empty() || began.elapsed() >= period {
                return found;
            }
        }
    }

    /// Drops incomplete measurements and closes their directories.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Bytes and inodes that a directory uses on its disk, without other mounts in it; `None` when it does not exist.
pub fn measured(path: &Path) -> Option<(u64, u64)> {
    let mut sum = Sum::of(path, u64::MAX)?;
    while !sum.go_on(VOLUME_USAGE_PIECE) {}
    Some((sum.bytes, sum.inodes))
}

/// Bytes and inodes of a pod's volumes on the node's disk (`IsLocalEphemeralVolume`), its hosts file
/// (`getPodEtcHostsStats`), and its containers' termination logs, which have no size limit of their own.
pub fn measured_pod(pod_dir: &Path) -> (u64, u64) {
    let hosts = std::fs::symlink_metadata(pod_dir.join("etc-hosts"));
    let (mut bytes, mut inodes) = hosts.map_or((0, 0), |file| (file.blocks() * 512, 1));
    let volumes = pod_dir.join("volumes");
    for directory in [volumes.join(EMPTY_DIR), volumes.join(CONFIG_MAP), pod_dir.join("containers")] {
        let (more, further) = measured(&directory).unwrap_or_default();
        bytes += more;
        inodes += further;
    }
    (bytes, inodes)
}

/// Disk usage of a directory, as `du` counts it.
struct Sum {
    walk: Walk,
    bytes: u64,
    inodes: u64,
    bytes_max: u64,
    /// Inodes of hard-linked files that are counted already.
    links: SortedSet<u64>,
}

impl Sum {
    /// The measurement of that directory, with nothing counted yet.
    fn of(path: &Path, bytes_max: u64) -> Option<Self> {
        let walk = Walk::new(path, mounts::has_mounts(path).ok()?).ok()?;
        Some(Self { walk, bytes: 0, inodes: 0, bytes_max, links: SortedSet::new() })
    }

    /// Counts for at most that time. True when the result is known: everything is counted, or more than the limit. Files
    /// that vanish meanwhile, or cannot be read, count nothing.
    fn go_on(&mut self, time: Duration) -> bool {
        /// Entries between two clock readings.
        const AT_ONCE: u32 = 64;
        let Self { walk, bytes, inodes, bytes_max, links } = self;
        let (began, mut seen) = (Instant::now(), 0_u32);
        let walked = walk.go_on(|there: &Stat| {
            let is_new = FileType::from_raw_mode(there.st_mode).is_dir()
                || there.st_nlink < 2
                || links.len() >= VOLUME_LINKS_MAX
                || links.insert(there.st_ino);
            if is_new {
                *inodes += 1;
                *bytes = bytes.saturating_add(u64::try_from(there.st_blocks).unwrap_or(0) * 512);
            }
            seen = seen.wrapping_add(1);
            let is_late = || seen.is_multiple_of(AT_ONCE) && began.elapsed() >= time;
            if *bytes > *bytes_max || is_late() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        walked != WalkResult::Stopped || self.bytes > self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    use rustix::io::Errno;
    use serde_json::json;

    fn look_at(volume: &Limited) -> Option<String> {
        let found = Measurement::default().run(vec![("u".to_owned(), vec![volume.clone()])]);
        found.into_iter().next().map(|(_, message)| message)
    }

    #[test]
    fn an_empty_dirs_disk_usage_is_compared_with_its_limit() {
        let root = std::env::temp_dir().join(format!("smolet-usage-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "a", "emptyDir": {"sizeLimit": "1Mi"}}, {"name": "b", "emptyDir": {}},
            {"name": "c", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, {"name": "d", "emptyDir": {"sizeLimit": "0"}}]}});
        let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        let found = limited(&pod, root.to_str().unwrap());
        assert_eq!(found.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["a"]);
        let (dir, outgrown) = (&found[0].path, || look_at(&found[0]));
        assert_eq!(outgrown(), None, "it does not exist yet");
        std::fs::create_dir_all(dir.join("deep/er")).unwrap();
        std::fs::write(dir.join("deep/er/x"), vec![1; 600 << 10]).unwrap();
        std::fs::hard_link(dir.join("deep/er/x"), dir.join("again")).unwrap();
        std::os::unix::fs::symlink("/", dir.join("all")).unwrap();
        std::fs::File::create(dir.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        assert_eq!(outgrown(), None, "a hard link, a symlink and a hole use nothing");
        std::fs::write(dir.join("y"), vec![1; 500 << 10]).unwrap();
        // deep, deep/er, x under one of its names, the link, the sparse file and y.
        let (bytes, inodes) = measured(dir).unwrap();
        let about = (1100 << 10)..(1200 << 10);
        assert!(inodes == 6 && about.contains(&bytes), "{inodes} inodes, {bytes} bytes");
        assert_eq!(outgrown().as_deref(), Some("Usage of EmptyDir volume \"a\" exceeds the limit \"1Mi\". "));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_pods_files_on_the_disk_are_counted() {
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
        // Five files, the volumes and a directory in one, the container's directory.
        let (bytes, inodes) = measured_pod(&root);
        let about = (2708 << 10)..(2770 << 10);
        assert!(inodes == 10 && about.contains(&bytes), "{inodes} inodes, {bytes} bytes");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_mount_in_an_empty_dir_is_not_accessed() {
        let root = std::env::temp_dir().join(format!("smolet-usage-away-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let path = root.join("a");
        std::fs::create_dir_all(path.join("deep/away")).unwrap();
        std::fs::write(path.join("deep/x"), vec![1; 600 << 10]).unwrap();
        let limited =
            Limited { name: "a".into(), path: path.clone(), limit: "512Ki".into(), bytes_max: 512 << 10 };
        // Emulators may be as old as kernels before Linux 5.6.
        let known = openat2(CWD, &root, OFlags::DIRECTORY, Mode::empty(), ResolveFlags::empty());
        let is_measured = known.err() != Some(Errno::NOSYS);
        for (at, outgrown) in [(path.join("deep/away"), is_measured), (path, false)] {
            let away = mounts::SilentServer::mount(&at);
            let (found, result) = std::sync::mpsc::channel();
            let theirs = limited.clone();
            std::thread::spawn(move || found.send(look_at(&theirs).is_some()));
            let result = result.recv_timeout(std::time::Duration::from_mins(1));
            // A hung thread gets an error.
            drop(away);
            assert_eq!(result, Ok(outgrown), "{}", at.display());
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// 20 MB, 70 levels down, against a limit of 1 MiB.
    #[test]
    fn what_lies_deep_counts() {
        let root = std::env::temp_dir().join(format!("smolet-usage-deep-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let deep = root.join("d/".repeat(70));
        std::fs::create_dir_all(&deep).unwrap();
        let volume =
            Limited { name: "a".into(), path: root.clone(), limit: "1Mi".into(), bytes_max: 1 << 20 };
        assert_eq!(look_at(&volume), None);
        std::fs::write(deep.join("x"), vec![1; 20_000_000]).unwrap();
        assert_eq!(
            look_at(&volume).as_deref(),
            Some("Usage of EmptyDir volume \"a\" exceeds the limit \"1Mi\". ")
        );
        assert!(measured(&root).unwrap().0 >= 20_000_000);
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// A large volume is measured in pieces, over several calls; the others do not wait for it.
    #[test]
    fn a_volume_of_many_files_does_not_hold_up_the_others() {
        let root = std::env::temp_dir().join(format!("smolet-usage-wide-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let limited = |name: &str| Limited {
            name: name.into(),
            path: root.join(name),
            limit: "1Mi".into(),
            bytes_max: 1 << 20,
        };
        let pods: Vec<_> = ["a", "b", "c"].map(|name| (name.to_owned(), vec![limited(name)])).into();
        for (uid, _) in &pods {
            std::fs::create_dir_all(root.join(uid).join("0")).unwrap();
        }
        for number in 0..640 {
            std::fs::write(root.join(format!("a/0/{number}")), "").unwrap();
        }
        std::fs::write(root.join("c/x"), vec![1; 2 << 20]).unwrap();
        let mut measurement = Measurement::default();
        let mut look = |pods: &[_]| {
            let found = measurement.run_in_pieces(pods.to_vec(), Duration::ZERO, Duration::ZERO);
            let found = found.into_iter().map(|(uid, _)| uid).collect::<String>();
            (
                found,
                measurement.unfinished.len(),
                measurement.unfinished.first().map_or(0, |(.., sum)| sum.inodes),
            )
        };
        // A piece of zero duration is 64 entries.
        assert_eq!(look(&pods), ("c".to_owned(), 1, 128));
        assert_eq!(look(&pods), ("c".to_owned(), 1, 192), "taken up again");
        assert_eq!(look(&pods[1..]), ("c".to_owned(), 0, 0), "its pod is gone");
        assert_eq!(look(&pods).1, 1);
        let found = measurement.run_in_pieces(pods, Duration::ZERO, Duration::from_mins(1));
        assert!(found.iter().any(|(uid, _)| uid == "c") && measurement.unfinished.is_empty(), "{found:?}");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
