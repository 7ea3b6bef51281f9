//! Removes what the runtime leaves behind of a pod: its cgroup parent, in every hierarchy. I/O, small; blocking, so
//! that callers run it on another thread (UIDs are plain text here, as a `PodUid` stays on the loop's thread).
//!
//! Which names to look for is decided in `render::cgroup_name`; here they are found and removed below the mount
//! points of the cgroup hierarchies, and nowhere else: symbolic links are not followed, and only empty cgroups can
//! be removed at all.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::limits::{CGROUP_DEPTH_MAX, CGROUPS_PER_POD_MAX};
use crate::render::NodeSettings;
use crate::render::cgroup_name::pod_cgroup_candidates;

/// Where cgroup hierarchies are mounted; what is mounted elsewhere belongs to somebody else.
const CGROUP_MOUNTS: &str = "/sys/fs/cgroup";

/// A cgroup that could not be read or removed. All kinds are tried again with the pod's next sync.
#[derive(Debug)]
pub struct CgroupError {
    /// Which directory.
    pub path: PathBuf,
    /// Why. `ResourceBusy` while processes of the pod still run.
    pub source: io::Error,
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cgroup {}: {}", self.path.display(), self.source)?;
        match self.source.kind() {
            io::ErrorKind::ResourceBusy => f.write_str("; its processes have not ended yet"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The cgroup hierarchies of the node: one on v2, one for each controller on v1, both kinds when mixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    hierarchies: Vec<PathBuf>,
}

impl Cgroups {
    /// The hierarchies with these mount points.
    pub fn new(hierarchies: Vec<PathBuf>) -> Self {
        Self { hierarchies }
    }

    /// The hierarchies that `mounts` (the text of `/proc/self/mounts`) names below `/sys/fs/cgroup`.
    pub fn from_mounts(mounts: &str) -> Self {
        let mut hierarchies: Vec<PathBuf> = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ');
                let (point, kind) = (Path::new(fields.nth(1)?), fields.next()?);
                (matches!(kind, "cgroup" | "cgroup2") && point.starts_with(CGROUP_MOUNTS))
                    .then(|| point.to_owned())
            })
            .collect();
        // Controllers mounted together stand there once; a mount over another one stands twice.
        hierarchies.sort_unstable();
        hierarchies.dedup();
        Self { hierarchies }
    }

    /// Removes the pod's cgroups, whatever its class was, children first. Returns how many directories went; 0 when
    /// none was there. All hierarchies are tried; the first error is told.
    ///
    /// On the systemd driver the slice's directory goes and systemd keeps its idle unit until the next boot: asking
    /// systemd would take a D-Bus client.
    pub fn remove_pod(&self, node: &NodeSettings, uid: &str) -> Result<usize, CgroupError> {
        // A UID becomes part of a path: one that could leave its directory names no cgroup of ours.
        if uid.is_empty() || uid.contains('/') {
            return Ok(0);
        }
        let mut removed = 0;
        let mut failed = None;
        for hierarchy in &self.hierarchies {
            for name in pod_cgroup_candidates(node, uid) {
                let path = hierarchy.join(name.trim_start_matches('/'));
                let mut left = CGROUPS_PER_POD_MAX;
                if let Err(error) = remove_tree(&path, CGROUP_DEPTH_MAX, &mut left) {
                    failed.get_or_insert(error);
                }
                removed += CGROUPS_PER_POD_MAX - left;
            }
        }
        failed.map_or(Ok(removed), Err)
    }
}

/// Removes the directory and those below it. A directory that is not there is removed already.
fn remove_tree(path: &Path, depth: usize, left: &mut usize) -> Result<(), CgroupError> {
    let failed = |source| CgroupError { path: path.to_owned(), source };
    for name in child_directories(path)? {
        if depth == 0 || *left == 0 {
            return Err(failed(io::Error::other("more cgroups below it than one pod may have")));
        }
        remove_tree(&path.join(name), depth - 1, left)?;
    }
    match std::fs::remove_dir(path) {
        Ok(()) => *left = left.saturating_sub(1),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    Ok(())
}

/// The names of the real directories in a directory: links are none. Nothing for a directory that is not there.
fn child_directories(path: &Path) -> Result<Vec<std::ffi::OsString>, CgroupError> {
    let failed = |source| CgroupError { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        // Gone between the two calls.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries.take(crate::limits::CGROUP_ENTRIES_MAX) {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(entry.file_name());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::render::CgroupDriver;

    /// Which of the tests' pods have a cgroup in some hierarchy.
    fn with_cgroups(cgroups: &Cgroups, node: &NodeSettings) -> Vec<&'static str> {
        let is_there = |uid: &&str| {
            let names = pod_cgroup_candidates(node, uid);
            let path = |h: &PathBuf, name: &String| h.join(name.trim_start_matches('/'));
            cgroups.hierarchies.iter().any(|h| names.iter().any(|name| path(h, name).exists()))
        };
        ["a-b", "u1", "u2"].into_iter().filter(is_there).collect()
    }

    /// A directory of the test's own, gone when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name =
                format!("smolet-cgroup-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn make(&self, path: &str) -> PathBuf {
            let path = self.0.join(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        }

        fn has(&self, path: &str) -> bool {
            self.0.join(path).exists()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn node(driver: CgroupDriver) -> NodeSettings {
        NodeSettings { cgroup_driver: driver, ..NodeSettings::new("n", "/r") }
    }

    #[test]
    fn mount_points_of_both_versions() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup2 /run/other/cgroup cgroup2 rw 0 0\n\
                      /dev/sda1 / ext4 rw 0 0\nbroken\n";
        let points = ["cpu,cpuacct", "memory", "unified"];
        let expected = points.map(|point| Path::new("/sys/fs/cgroup").join(point)).to_vec();
        assert_eq!(Cgroups::from_mounts(mounts), Cgroups::new(expected));
        let v2 = Cgroups::from_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n");
        assert_eq!(v2, Cgroups::new(vec!["/sys/fs/cgroup".into()]));
    }

    #[test]
    fn a_pods_cgroups_go_from_every_hierarchy_and_nothing_else_does() {
        let scratch = Scratch::new();
        scratch.make("memory/kubepods/burstable/podu1/c1/deeper");
        scratch.make("memory/kubepods/burstable/podu2/c1");
        scratch.make("cpu/kubepods/podu1");
        scratch.make("cpu/other/podu1");
        let cgroups = Cgroups::new(vec![scratch.0.join("memory"), scratch.0.join("cpu")]);
        let node = node(CgroupDriver::Cgroupfs);
        assert_eq!(with_cgroups(&cgroups, &node), ["u1", "u2"]);
        assert_eq!(cgroups.remove_pod(&node, "u1").unwrap(), 4);
        assert_eq!(cgroups.remove_pod(&node, "u1").unwrap(), 0, "a second time there is nothing");
        assert!(!scratch.has("memory/kubepods/burstable/podu1") && !scratch.has("cpu/kubepods/podu1"));
        assert!(scratch.has("memory/kubepods/burstable/podu2/c1") && scratch.has("cpu/other/podu1"));
        assert_eq!(with_cgroups(&cgroups, &node), ["u2"]);
    }

    #[test]
    fn slices_of_the_systemd_driver_are_found() {
        let scratch = Scratch::new();
        let slice = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice";
        scratch.make(&format!("{slice}/cri-containerd-1.scope"));
        let cgroups = Cgroups::new(vec![scratch.0.clone()]);
        let node = node(CgroupDriver::Systemd);
        assert_eq!(with_cgroups(&cgroups, &node), ["a-b"]);
        assert_eq!(cgroups.remove_pod(&node, "a-b").unwrap(), 2);
        assert!(!scratch.has(slice) && scratch.has("kubepods.slice/kubepods-besteffort.slice"));
    }

    #[test]
    fn links_are_not_followed_and_a_uid_is_no_path() {
        let scratch = Scratch::new();
        let outside = scratch.make("outside/kept");
        scratch.make("root/kubepods/podu1");
        std::os::unix::fs::symlink(scratch.0.join("outside"), scratch.0.join("root/kubepods/podu1/link"))
            .unwrap();
        std::os::unix::fs::symlink(scratch.0.join("outside"), scratch.0.join("root/kubepods/podu2")).unwrap();
        let cgroups = Cgroups::new(vec![scratch.0.join("root")]);
        let node = node(CgroupDriver::Cgroupfs);
        // Not empty, so it stays; a link cannot stand in a real cgroup.
        assert!(cgroups.remove_pod(&node, "u1").is_err());
        assert!(cgroups.remove_pod(&node, "u2").is_err());
        assert_eq!(cgroups.remove_pod(&node, "/../../../outside/kept").unwrap(), 0);
        assert_eq!(cgroups.remove_pod(&node, "").unwrap(), 0);
        assert!(outside.is_dir());
    }

    #[test]
    fn a_tree_deeper_than_any_pods_is_left_alone() {
        let scratch = Scratch::new();
        let deep = format!("kubepods/podu1{}", "/x".repeat(CGROUP_DEPTH_MAX + 1));
        scratch.make(&deep);
        let cgroups = Cgroups::new(vec![scratch.0.clone()]);
        let error = cgroups.remove_pod(&node(CgroupDriver::Cgroupfs), "u1").unwrap_err();
        assert!(error.to_string().contains("more cgroups below it than one pod may have"), "{error}");
        assert!(scratch.has(&deep));
    }
}
