//! What the embedded runtime is given: directories, OCI runtimes, CNI, cgroups. The search for an OCI runtime is I/O.

use std::path::{Path, PathBuf};

use super::stats::is_unified;
use crate::cri::choice::is_installed;
use crate::model::SortedMap;
use crate::render::CgroupDriver;

/// Directories in which OCI runtimes are looked for: a service's `PATH` may lack those of the administrator.
const PROGRAM_DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Settings of the embedded runtime.
#[derive(Clone, Debug)]
pub struct Settings {
    /// State that outlives a reboot: `ROOT_DIR/runtime`.
    pub root_dir: PathBuf,
    /// State of this boot, on a tmpfs: `/run/smolet/runtime`.
    pub run_dir: PathBuf,
    /// The binary whose mode `monitor` is run for each container.
    pub program: PathBuf,
    /// OCI runtimes by the name of their handler. The empty name is the default handler's; absent: none was found.
    pub handlers: SortedMap<Box<str>, PathBuf>,
    /// Directory of CNI configurations.
    pub cni_conf_dir: PathBuf,
    /// Another runtime is installed, whose pods may be in the networks of `cni_conf_dir`.
    pub is_cni_shared: bool,
    /// Directories of CNI plugins, in the order of the search.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Pods are in a network of the runtime's own while `cni_conf_dir` has no configuration; else they wait for one.
    pub has_own_network: bool,
    /// The bridge of that network, as long as the node has no pod CIDR. One for each CIDR has a name that begins so.
    pub bridge: Box<str>,
    /// Its addresses, until the node has a pod CIDR.
    pub subnet: Box<str>,
    /// Containers get the `SELinux` labels of the node's policy, where there is one.
    pub selinux: bool,
    /// The cgroup driver.
    pub cgroup_driver: CgroupDriver,
    /// Where the cgroup hierarchies are mounted: `/sys/fs/cgroup`.
    pub cgroup_mounts: PathBuf,
}

impl Settings {
    /// The usual ones below these two directories, with the OCI runtime that this machine has. Blocking.
    pub fn of_machine(root_dir: &Path, run_dir: &Path, program: &Path, cgroup_mounts: &Path) -> Self {
        let mut handlers = SortedMap::new();
        if let Some(found) = find_oci_runtime(cgroup_mounts) {
            handlers.insert(Box::from(""), found);
        }
        Self {
            root_dir: root_dir.to_owned(),
            run_dir: run_dir.to_owned(),
            program: program.to_owned(),
            handlers,
            cni_conf_dir: PathBuf::from(crate::paths::CNI),
            is_cni_shared: is_installed(false),
            cni_bin_dirs: crate::paths::CNI_PLUGINS.map(PathBuf::from).into(),
            has_own_network: true,
            bridge: "smolet0".into(),
            subnet: "10.87.0.0/16".into(),
            selinux: false,
            cgroup_driver: CgroupDriver::Cgroupfs,
            cgroup_mounts: cgroup_mounts.to_owned(),
        }
    }

    /// The store of images.
    pub fn images(&self) -> PathBuf {
        self.root_dir.join("images")
    }

    /// The pod CIDRs that the node had last: its pods have addresses of them before the node's cluster is reached.
    pub(super) fn pod_cidr(&self) -> PathBuf {
        self.root_dir.join("pod-cidr")
    }

    /// The OCI runtime of a handler, for records; empty: there is none.
    pub(super) fn path_of(&self, handler: &str) -> Box<str> {
        self.handlers.get(handler).and_then(|path| path.to_str()).unwrap_or_default().into()
    }

    pub(super) fn sandboxes(&self) -> PathBuf {
        self.root_dir.join("sandboxes")
    }

    pub(super) fn containers(&self) -> PathBuf {
        self.root_dir.join("containers")
    }

    /// Pinned namespaces and `/dev/shm` of sandboxes.
    pub(super) fn sandboxes_run(&self) -> PathBuf {
        self.run_dir.join("sandboxes")
    }

    /// Bundles of containers, with the files of their monitors.
    pub(super) fn containers_run(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// State of the OCI runtime.
    pub(super) fn oci_state(&self) -> PathBuf {
        self.run_dir.join("oci")
    }
}

/// cgroup v1 with a tree of v2 beside it. Blocking.
pub(super) fn is_hybrid(cgroup_mounts: &Path) -> bool {
    !is_unified(cgroup_mounts) && cgroup_mounts.join("unified/cgroup.procs").exists()
}

/// The default OCI runtime: crun, which is smaller and faster, else runc. crun refuses a hybrid tree of cgroup v1 and v2. Blocking.
pub fn find_oci_runtime(cgroup_mounts: &Path) -> Option<PathBuf> {
    let names: &[&str] = if is_hybrid(cgroup_mounts) { &["runc", "crun"] } else { &["crun", "runc"] };
    names.iter().find_map(|name| find_program(name))
}

/// The program of that name. Blocking.
pub fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}
