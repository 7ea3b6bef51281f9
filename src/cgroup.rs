//! The node's cgroup hierarchies: the settings of pods' cgroups (`settings`), and the removal of a pod's cgroups that the
//! runtime has left behind, in every hierarchy, with their processes. I/O, small; blocking, so that callers run it on another
//! thread (UIDs are plain text here, because a `PodUid` stays on the loop's thread).
//!
//! `render::cgroup_name` decides the names; here the cgroups are found and removed below the mount points of the cgroup
//! hierarchies only. Symbolic links are not followed.
//!
//! A runtime that was killed in the middle of a call may lose a container and leave its processes running. They get SIGKILL, as
//! from the kubelet (`tryKillingCgroupProcesses`).

mod devices;
mod settings;
mod tree;
use std::path::{Path, PathBuf};

use crate::filesystem::read_start;
use crate::limits::{CGROUP_DEPTH_MAX, CGROUP_WRITTEN_BYTES_MAX, CGROUPS_PER_POD_MAX};
use crate::model::SortedSet;
use crate::render::NodeSettings;
use crate::render::cgroup_name::pod_cgroup_candidates;
use crate::render::cgroup_settings::Controller;

pub use devices::DeviceChange;
pub use settings::{Missing, SettingError};
pub use tree::{CgroupError, Removed, kill, remove};

/// The cgroup hierarchies of the node: one on v2, one for each controller on v1, both kinds when mixed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    hierarchies: Vec<PathBuf>,
    /// Mount points of the version 1 controllers.
    controllers: Vec<(Controller, PathBuf)>,
    /// The mount point of version 2, when it is the only hierarchy.
    unified: Option<PathBuf>,
}

impl Cgroups {
    /// The hierarchies in `mounts` (the text of `/proc/self/mounts`) below `root`, `/sys/fs/cgroup`; others are not the node's.
    pub fn from_mounts(mounts: &str, root: &Path) -> Self {
        let (mut hierarchies, mut controllers) = (Vec::new(), Vec::new());
        let mut all_v2 = true;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(point), Some(kind), options) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let point = Path::new(point);
            if !matches!(kind, "cgroup" | "cgroup2") || !point.starts_with(root) {
                continue;
            }
            hierarchies.push(point.to_owned());
            if kind == "cgroup" {
                all_v2 = false;
                let has = |controller: &Controller| {
                    options.is_some_and(|all| all.split(',').any(|option| option == controller.as_str()))
                };
                controllers.extend(Controller::ALL.into_iter().filter(has).map(|c| (c, point.to_owned())));
            }
        }
        // Controllers that are mounted together are one hierarchy; a mount over another one occurs twice.
        hierarchies.sort_unstable();
        hierarchies.dedup();
        let unified = hierarchies.first().filter(|_| all_v2).cloned();
        Self { hierarchies, controllers, unified }
    }

    /// Removes the pod's cgroups of every QoS class, children first, and kills the processes in them: only for a pod without
    /// containers in the runtime. All hierarchies are tried; the first error is returned.
    ///
    /// With the systemd driver after its slices are stopped.
    pub fn remove_pod(&self, node: &NodeSettings, uid: &str) -> Result<Removed, CgroupError> {
        // A UID becomes part of a path: one with a separator is not ours.
        if uid.is_empty() || uid.contains('/') {
            return Ok(Removed::default());
        }
        let names = pod_cgroup_candidates(node, uid);
        let of =
            |hierarchy: &PathBuf| names.each_ref().map(|name| hierarchy.join(name.trim_start_matches('/')));
        remove(&self.hierarchies.iter().flat_map(of).collect::<Vec<_>>())
    }

    /// Bytes that the pod's cgroup has written to disks since it was made; `None` without a cgroup that counts them: version 1 counts
    /// neither what the kernel writes back later nor, without throttling, anything else.
    pub fn written_by_pod(&self, node: &NodeSettings, uid: &str) -> Option<u64> {
        let text = of_pod(self.unified.as_ref()?, node, uid, "io.stat", CGROUP_WRITTEN_BYTES_MAX)?;
        Some(written(&text))
    }

    /// Process IDs of the pod's processes and threads; `None` without a cgroup that counts them.
    pub fn pids_of_pod(&self, node: &NodeSettings, uid: &str) -> Option<u64> {
        let apart = self.controllers.iter().find(|(controller, _)| *controller == Controller::Pids);
        let hierarchy = apart.map(|(_, path)| path).or(self.unified.as_ref())?;
        // A number and a newline.
        of_pod(hierarchy, node, uid, "pids.current", 32)?.trim().parse().ok()
    }

    /// Kills the processes in the pod's cgroups and returns the names of the existing ones: systemd would wait ninety seconds
    /// for the processes when it stops them. Only for a pod whose containers have ended.
    pub fn end_pod(&self, node: &NodeSettings, uid: &str) -> (Vec<String>, SortedSet<i32>) {
        let mut removed = Removed::default();
        if uid.is_empty() || uid.contains('/') {
            return Default::default();
        }
        let mut names = Vec::from(pod_cgroup_candidates(node, uid));
        names.retain(|name| {
            let paths = self.hierarchies.iter().map(|hierarchy| hierarchy.join(name.trim_start_matches('/')));
            let there: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
            let mut left = CGROUPS_PER_POD_MAX;
            for path in &there {
                tree::kill_tree(path, CGROUP_DEPTH_MAX, &mut left, &mut removed);
            }
            !there.is_empty()
        });
        (names, removed.killed)
    }
}

/// The beginning of a file of the pod's cgroup in that hierarchy; `None` when it has none there.
fn of_pod(hierarchy: &Path, node: &NodeSettings, uid: &str, file: &str, bytes_max: usize) -> Option<String> {
    // A UID becomes part of a path: one with a separator is not ours.
    if uid.is_empty() || uid.contains('/') {
        return None;
    }
    let text = pod_cgroup_candidates(node, uid).iter().find_map(|name| {
        read_start(&hierarchy.join(name.trim_start_matches('/')).join(file), bytes_max).ok()
    })?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Bytes written to all devices, of an `io.stat`. PURE.
fn written(text: &str) -> u64 {
    let of = |line: &str| line.split(' ').find_map(|part| part.strip_prefix("wbytes=")?.parse().ok());
    text.lines().filter_map(of).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::process::Signal;

    use super::*;
    use crate::render::CgroupDriver;

    /// The tests' pods that have a cgroup in some hierarchy.
    fn with_cgroups(cgroups: &Cgroups, node: &NodeSettings) -> Vec<&'static str> {
        let is_there = |uid: &&str| {
            let names = pod_cgroup_candidates(node, uid);
            let path = |h: &PathBuf, name: &String| h.join(name.trim_start_matches('/'));
            cgroups.hierarchies.iter().any(|h| names.iter().any(|name| path(h, name).exists()))
        };
        ["a-b", "u1", "u2"].into_iter().filter(is_there).collect()
    }

    /// Hierarchies with these mount points.
    fn mounted_at(hierarchies: Vec<PathBuf>) -> Cgroups {
        Cgroups { hierarchies, controllers: Vec::new(), unified: None }
    }

    #[test]
    fn what_a_pod_has_written_is_what_all_devices_got() {
        let scratch = Scratch::new();
        let node = NodeSettings::new("gw", "/var/lib/smolet");
        let path = scratch.make(pod_cgroup_candidates(&node, "u1")[0].trim_start_matches('/'));
        let mut cgroups = mounted_at(vec![scratch.0.clone()]);
        std::fs::write(
            path.join("io.stat"),
            "8:0 rbytes=1 wbytes=4096 rios=1\n179:0 wbytes=904 wios=1\n7:0 \n",
        )
        .unwrap();
        assert_eq!(cgroups.written_by_pod(&node, "u1"), None, "version 1");
        cgroups.unified = Some(scratch.0.clone());
        let of = |uid| cgroups.written_by_pod(&node, uid);
        assert_eq!([of("u1"), of("u2"), of("../u1"), of("")], [Some(5000), None, None, None]);
    }

    /// A temporary directory, removed when the test ends.
    pub(super) struct Scratch(pub(super) PathBuf);

    impl Scratch {
        pub(super) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name =
                format!("smolet-cgroup-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(super) fn make(&self, path: &str) -> PathBuf {
            let path = self.0.join(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        }

        pub(super) fn has(&self, path: &str) -> bool {
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
        let root = Path::new("/sys/fs/cgroup");
        let [cpu, memory, unified] = ["cpu,cpuacct", "memory", "unified"].map(|point| root.join(point));
        assert_eq!(
            Cgroups::from_mounts(mounts, root),
            Cgroups {
                hierarchies: vec![cpu, memory.clone(), unified],
                controllers: vec![(Controller::Memory, memory)],
                unified: None,
            }
        );
        let v2 = Cgroups::from_mounts("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", root);
        let root = PathBuf::from(root);
        assert_eq!(v2, Cgroups { hierarchies: vec![root.clone()], controllers: vec![], unified: Some(root) });
    }

    #[test]
    fn a_pods_cgroups_are_removed_from_every_hierarchy_and_no_others() {
        let scratch = Scratch::new();
        scratch.make("memory/kubepods/burstable/podu1/c1/deeper");
        scratch.make("memory/kubepods/burstable/podu2/c1");
        scratch.make("cpu/kubepods/podu1");
        scratch.make("cpu/other/podu1");
        let cgroups = mounted_at(vec![scratch.0.join("memory"), scratch.0.join("cpu")]);
        let node = node(CgroupDriver::Cgroupfs);
        assert_eq!(with_cgroups(&cgroups, &node), ["u1", "u2"]);
        assert_eq!(cgroups.remove_pod(&node, "u1").unwrap().directories, 4);
        assert_eq!(
            cgroups.remove_pod(&node, "u1").unwrap(),
            Removed::default(),
            "nothing is left for a second removal"
        );
        assert!(!scratch.has("memory/kubepods/burstable/podu1") && !scratch.has("cpu/kubepods/podu1"));
        assert!(scratch.has("memory/kubepods/burstable/podu2/c1") && scratch.has("cpu/other/podu1"));
        assert_eq!(with_cgroups(&cgroups, &node), ["u2"]);
    }

    #[test]
    fn slices_of_the_systemd_driver_are_found() {
        let scratch = Scratch::new();
        let slice = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice";
        scratch.make(&format!("{slice}/cri-containerd-1.scope"));
        let cgroups = mounted_at(vec![scratch.0.clone()]);
        let node = node(CgroupDriver::Systemd);
        assert_eq!(with_cgroups(&cgroups, &node), ["a-b"]);
        assert_eq!(cgroups.remove_pod(&node, "a-b").unwrap().directories, 2);
        assert!(!scratch.has(slice) && scratch.has("kubepods.slice/kubepods-besteffort.slice"));
    }

    #[test]
    fn processes_in_a_slice_are_killed_before_it_is_stopped() {
        let scratch = Scratch::new();
        let slice = "kubepods.slice/kubepods-podu1.slice";
        let scope = scratch.make(&format!("{slice}/forgotten.scope"));
        let mut left = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        std::fs::write(scope.join("cgroup.procs"), format!("{}\n", left.id())).unwrap();
        let cgroups = mounted_at(vec![scratch.0.clone()]);
        let node = node(CgroupDriver::Systemd);
        let killed = SortedSet::from([i32::try_from(left.id()).unwrap()]);
        assert_eq!(cgroups.end_pod(&node, "u1"), (vec![format!("/{slice}")], killed));
        let ended = left.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(Signal::KILL.as_raw()));
        assert!(scratch.has(slice), "systemd removes it");
        for other in ["u2", "", "../kubepods-podu1.slice"] {
            assert_eq!(cgroups.end_pod(&node, other), (vec![], SortedSet::new()), "{other}");
        }
    }

    #[test]
    fn links_are_not_followed_and_a_uid_with_a_separator_is_refused() {
        let scratch = Scratch::new();
        let outside = scratch.make("outside/kept");
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        std::fs::write(scratch.0.join("outside/cgroup.procs"), format!("{}\n", other.id())).unwrap();
        scratch.make("root/kubepods/podu1");
        std::os::unix::fs::symlink(scratch.0.join("outside"), scratch.0.join("root/kubepods/podu1/link"))
            .unwrap();
        std::os::unix::fs::symlink(scratch.0.join("outside"), scratch.0.join("root/kubepods/podu2")).unwrap();
        let cgroups = mounted_at(vec![scratch.0.join("root")]);
        let node = node(CgroupDriver::Cgroupfs);
        // Not empty, so it stays; a real cgroup has no links.
        assert!(cgroups.remove_pod(&node, "u1").is_err());
        assert!(cgroups.remove_pod(&node, "u2").is_err());
        assert_eq!(cgroups.remove_pod(&node, "/../../../outside/kept").unwrap(), Removed::default());
        assert_eq!(cgroups.remove_pod(&node, "").unwrap(), Removed::default());
        assert!(outside.is_dir());
        assert!(other.try_wait().unwrap().is_none(), "the link's target still runs");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn only_processes_of_the_cgroup_are_killed() {
        let scratch = Scratch::new();
        let pod = scratch.make("kubepods/podu1/forgotten");
        let sleeper = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (mut left, mut other) = (sleeper(), sleeper());
        // A truncated line, a process of another namespace, this process, a process group: none of them is killed.
        let procs = format!("{}\n0\n{}\n-{}\n{}", left.id(), std::process::id(), other.id(), other.id());
        std::fs::write(pod.join("cgroup.procs"), procs).unwrap();
        // A real cgroup's files do not prevent its removal; here they do.
        let removed = mounted_at(vec![scratch.0.clone()]).remove_pod(&node(CgroupDriver::Cgroupfs), "u1");
        assert!(removed.is_err());
        let ended = left.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(Signal::KILL.as_raw()));
        assert!(other.try_wait().unwrap().is_none(), "it still runs");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_tree_beyond_the_limit_is_left_alone() {
        let scratch = Scratch::new();
        let deep = format!("kubepods/podu1{}", "/x".repeat(CGROUP_DEPTH_MAX + 1));
        scratch.make(&deep);
        let cgroups = mounted_at(vec![scratch.0.clone()]);
        let error = cgroups.remove_pod(&node(CgroupDriver::Cgroupfs), "u1").unwrap_err();
        assert!(error.to_string().contains("more cgroups below it than one pod may have"), "{error}");
        assert!(scratch.has(&deep));
    }
}
