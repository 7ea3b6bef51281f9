//! The node's facts and settings for rendering, gathered once at the start by the node loop. PURE.

/// The node's cgroup version, as far as rendering depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1 {
        /// `memory.memsw.limit_in_bytes` exists (`checkSwapControllerAvailability`).
        swap_controller: bool,
    },
    /// The unified hierarchy.
    V2 {
        /// `memory.swap.max` exists in the agent's own cgroup.
        swap_controller: bool,
    },
}

/// The cgroup driver, which decides how cgroup names are spelled (`cgroupDriver`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// `/kubepods/burstable/podUID`.
    Cgroupfs,
    /// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`.
    Systemd,
}

impl CgroupDriver {
    /// The value of a KubeletConfiguration's `cgroupDriver`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// `memorySwap.swapBehavior`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehavior {
    /// No container may swap; the default.
    NoSwap,
    /// Burstable pods get swap in proportion to their memory request (cgroup v2 only).
    LimitedSwap,
}

/// The node's parsed `resolv.conf` (`parseResolvConf`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver` lines, in order.
    pub nameservers: Vec<Box<str>>,
    /// The last `search` line's domains.
    pub searches: Vec<Box<str>>,
    /// The last `options` line.
    pub options: Vec<Box<str>>,
}

/// The node's facts and the agent's settings that rendering depends on. Computed once at the start.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The node's name.
    pub node_name: Box<str>,
    /// The node's own addresses, the primary one first (`status.hostIP`, `status.hostIPs`).
    pub node_ips: Vec<Box<str>>,
    /// cgroup v1 or v2, and whether swap can be limited.
    pub cgroup_version: CgroupVersion,
    /// cgroupfs or systemd.
    pub cgroup_driver: CgroupDriver,
    /// `cgroupRoot`, the parent of `kubepods`: `/` by default.
    pub cgroup_root: Box<str>,
    /// `cpuCFSQuota`: CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds; 100000 by default.
    pub cpu_cfs_period_us: i64,
    /// The machine's CPUs in thousandths.
    pub cpu_capacity_millis: i64,
    /// The pods' share of it (allocatable); the default of `resourceFieldRef: limits.cpu`.
    pub cpu_allocatable_millis: i64,
    /// The machine's memory in bytes.
    pub memory_capacity_bytes: i64,
    /// The pods' share of it (allocatable); the default of `resourceFieldRef: limits.memory`.
    pub memory_allocatable_bytes: i64,
    /// The machine's swap in bytes.
    pub swap_capacity_bytes: i64,
    /// The default of `resourceFieldRef: limits.ephemeral-storage` in bytes; 0 when unknown.
    pub ephemeral_storage_bytes: i64,
    /// Huge page sizes of the kernel, as the cgroup files spell them (`2MB`, `1GB`).
    pub hugepage_sizes: Vec<Box<str>>,
    /// `/var/log/pods`.
    pub pod_logs_dir: Box<str>,
    /// `/var/log/containers`: a symlink per container, for log collectors.
    pub container_logs_dir: Box<str>,
    /// Bytes of memory for the container logs of a pod that asks for nothing else; `None`: they are on the disk.
    pub log_memory: Option<u64>,
    /// Container logs are rotated.
    pub rotates_logs: bool,
    /// The agent's state directory, with `pods/UID/…` and `seccomp/` below it.
    pub root_dir: Box<str>,
    /// The node's resolver configuration; `None` when it is disabled (`resolvConf: ""`).
    pub resolv_conf: Option<ResolvConf>,
    /// `clusterDNS`; empty without a cluster.
    pub cluster_dns: Vec<Box<str>>,
    /// `clusterDomain`; empty without a cluster.
    pub cluster_domain: Box<str>,
    /// The kubelet's `seccompDefault`.
    pub seccomp_default: bool,
    /// hostPath volumes of type `CharDevice` and `BlockDevice` open their device to containers that are not privileged.
    pub opens_devices: bool,
    /// `singleProcessOOMKill`: on cgroup v2 only the process that runs out of memory is killed, not the whole container.
    /// False by default on v2.
    pub single_process_oom_kill: bool,
    /// `podPidsLimit`: maximum number of processes per pod; `None` = no limit.
    pub pod_pids_limit: Option<u64>,
    /// `memorySwap.swapBehavior`.
    pub memory_swap: SwapBehavior,
    /// The kernel has `AppArmor` enabled.
    pub apparmor: bool,
    /// The kernel has a policy of `SELinux`: the runtime may have to label the agent's own files (`selinux.GetEnabled`).
    pub selinux: bool,
    /// `allowedUnsafeSysctls`: names, or prefixes followed by `*`, with dots as separators.
    pub allowed_unsafe_sysctls: Vec<Box<str>>,
    /// Paths masked in addition to the fixed list: the machine's `/sys/devices/system/cpu/cpuN/thermal_throttle`.
    pub thermal_throttle_paths: Vec<Box<str>>,
}

impl NodeSettings {
    /// Default settings of a node: the kubelet's defaults, cgroup v2, one CPU.
    pub fn new(node_name: &str, root_dir: &str) -> Self {
        Self {
            node_name: node_name.into(),
            node_ips: Vec::new(),
            cgroup_version: CgroupVersion::V2 { swap_controller: true },
            cgroup_driver: CgroupDriver::Cgroupfs,
            cgroup_root: "/".into(),
            cpu_cfs_quota: true,
            cpu_cfs_period_us: 100_000,
            cpu_capacity_millis: 1_000,
            cpu_allocatable_millis: 1_000,
            memory_capacity_bytes: 0,
            memory_allocatable_bytes: 0,
            swap_capacity_bytes: 0,
            ephemeral_storage_bytes: 0,
            hugepage_sizes: Vec::new(),
            pod_logs_dir: "/var/log/pods".into(),
            container_logs_dir: "/var/log/containers".into(),
            log_memory: None,
            rotates_logs: true,
            root_dir: root_dir.into(),
            resolv_conf: Some(ResolvConf::default()),
            cluster_dns: Vec::new(),
            cluster_domain: "".into(),
            seccomp_default: false,
            opens_devices: false,
            single_process_oom_kill: false,
            pod_pids_limit: None,
            memory_swap: SwapBehavior::NoSwap,
            apparmor: false,
            selinux: false,
            allowed_unsafe_sysctls: Vec::new(),
            thermal_throttle_paths: Vec::new(),
        }
    }
}
