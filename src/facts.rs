//! Facts of the machine, read once at start: memory, CPUs, cgroups, addresses (followed by `addresses`), resolver configuration
//! (again for each sandbox). I/O; blocks.

use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

#[cfg(feature = "tls")]
use crate::cluster::node_object::{Handler, Machine};
use crate::config::{Config, Reserved, paths};
#[cfg(feature = "tls")]
use crate::cri::{RuntimeHandler, RuntimeVersion};
use crate::eviction::Signal;
use crate::filesystem::Filesystem;
use crate::netlink::link_address::{LinkAddress, is_link_local, preferred};
use crate::netlink::{Netlink, Protocol};
use crate::oci::has_apparmor;
use crate::render::{NodeSettings, admission};
use crate::resolv_conf;
use crate::runtime;

/// The settings of the embedded runtime.
pub fn embedded_runtime(config: &Config) -> runtime::Settings {
    // The program's file, which the OCI runtime can mount for a pause process; after an upgrade has replaced it the program of this
    // process.
    let file = std::env::current_exe().ok().filter(|file| file.exists());
    let program = file.unwrap_or_else(|| Path::new("/proc/self/exe").to_owned());
    let (root_dir, run_dir) = (config.root_dir.join("runtime"), config.runtime_run_dir());
    let mut settings = runtime::Settings::of_machine(&root_dir, &run_dir, &program, &config.cgroup_mounts);
    settings.handlers.extend(config.embedded.oci_runtimes.iter().cloned());
    settings.cni_conf_dir.clone_from(&config.embedded.cni_conf_dir);
    settings.cni_bin_dirs.clone_from(&config.embedded.cni_bin_dirs);
    // Pods that start before flannel's configuration is there would stay where no other node reaches them.
    settings.has_own_network = config.flannel.is_none();
    settings.selinux = config.embedded.selinux;
    settings.cgroup_driver = config.cgroup_driver;
    settings
}

/// The node's settings for rendering, with the given name. What cannot be read counts as absent.
pub fn node_settings(config: &Config, node_name: &str) -> NodeSettings {
    let mut node = NodeSettings::new(node_name, &config.root_dir.to_string_lossy());
    let (memory, swap) = memory_bytes(&read("/proc/meminfo"));
    node.node_ips = node_ips(&config.registration.addresses, &own_ips(config.node_interface()));
    node.cgroup_version = runtime::cgroup_version(Path::new(paths::CGROUP_MOUNTS));
    node.cgroup_driver = config.cgroup_driver;
    node.cgroup_root = config.cgroup_root.as_str().into();
    node.cpu_cfs_quota = config.cpu_cfs_quota;
    node.cpu_cfs_period_us = i64::try_from(config.cpu_cfs_quota_period.as_micros()).unwrap_or(100_000);
    node.cpu_capacity_millis = cpus().saturating_mul(1_000);
    node.memory_capacity_bytes = memory;
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let disk = disk_bytes(config);
    let kept = reserved(config, u64::try_from(memory).unwrap_or_default(), disk);
    node.cpu_allocatable_millis = node.cpu_capacity_millis.saturating_sub(number(kept.milli_cpu)).max(0);
    let in_huge_pages = huge_pages().iter().map(|(_, bytes)| *bytes).sum();
    let of_pods = memory.saturating_sub(number(kept.memory)).saturating_sub(number(in_huge_pages));
    node.memory_allocatable_bytes = of_pods.max(0);
    node.ephemeral_storage_bytes = number(disk.saturating_sub(kept.ephemeral_storage));
    node.swap_capacity_bytes = swap;
    node.hugepage_sizes = hugepage_sizes();
    node.pod_logs_dir = config.pod_logs_dir.to_string_lossy().into();
    node.container_logs_dir = config.container_logs_dir.to_string_lossy().into();
    node.log_memory = config.log_memory.bytes;
    node.rotates_logs = config.log_rotation.is_some();
    node.resolv_conf = config.resolver().read(false);
    resolv_conf::warn(&config.resolver());
    node.cluster_dns = config.cluster_dns.iter().map(|server| server.as_str().into()).collect();
    node.cluster_domain = config.cluster_domain.as_str().into();
    node.seccomp_default = config.seccomp_default;
    node.opens_devices = config.opens_devices;
    node.memory_swap = config.memory_swap;
    node.single_process_oom_kill = config.single_process_oom_kill;
    node.pod_pids_limit = config.pod_pids_limit;
    node.apparmor = has_apparmor();
    node.selinux = runtime::is_selinux_enabled();
    let allowed = config.allowed_unsafe_sysctls.iter().flatten();
    node.allowed_unsafe_sysctls = allowed.map(|pattern| admission::sysctl_name(pattern).into()).collect();
    node.thermal_throttle_paths = thermal_throttle_paths();
    node
}

/// Greatest number of pods (`MachineInfo`).
pub fn pods_max(config: &Config, node: &NodeSettings) -> usize {
    let cpus = usize::try_from(node.cpu_capacity_millis / 1000).unwrap_or(1).max(1);
    let of_cpus = config.pods_per_core.map(|pods| pods.saturating_mul(cpus));
    of_cpus.map_or(config.max_pods, |pods| pods.min(config.max_pods))
}

/// The machine's properties for its Node object; `node` are its settings.
#[cfg(feature = "tls")]
pub fn machine(
    config: &Config,
    node: &NodeSettings,
    runtime: &RuntimeVersion,
    handlers: &[RuntimeHandler],
) -> Machine {
    let disk = disk_bytes(config);
    let memory = u64::try_from(node.memory_capacity_bytes).unwrap_or_default();
    let registration = &config.registration;
    let cpus = u64::try_from(node.cpu_capacity_millis / 1000).unwrap_or(1).max(1);
    let machine_id = read("/etc/machine-id").trim().to_owned();
    let board = read("/sys/class/dmi/id/product_uuid").trim().to_owned();
    let release = read("/etc/os-release");
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let provided = registration.addresses.iter().filter(|ip| !ip.is_unspecified());
    Machine {
        name: node.node_name.clone(),
        addresses: node.node_ips.clone(),
        system_uuid: if board.is_empty() { machine_id.as_str() } else { board.as_str() }.into(),
        machine_id: machine_id.into(),
        boot_id: read("/proc/sys/kernel/random/boot_id").trim().into(),
        kernel: rustix::system::uname().release().to_string_lossy().into(),
        os_image: pretty.unwrap_or("Linux").trim_matches('"').into(),
        runtime: format!("{}://{}", runtime.runtime_name, runtime.runtime_version).into(),
        architecture: go_architecture(),
        cpus,
        memory,
        disk,
        pods: pods_max(config, node),
        images_max: config.node_images,
        reserved: reserved(config, memory, disk),
        labels: registration.labels.clone().into_iter().collect(),
        taints: registration.taints.clone(),
        provider_id: registration.provider_id.as_str().into(),
        periods: registration.periods,
        port: 0,
        handlers: handlers.iter().map(Handler::of).collect(),
        supplemental_groups_policy: None,
        swap: u64::try_from(node.swap_capacity_bytes).unwrap_or_default(),
        huge_pages: huge_pages().into_iter().map(|(kib, bytes)| (huge_pages_name(kib), bytes)).collect(),
        external_cloud: registration.external_cloud,
        provided_addresses: provided.map(|ip| ip.to_string().into()).collect(),
        k3s: None,
    }
}

/// Capacity of the file system of the pods' directories.
fn disk_bytes(config: &Config) -> u64 {
    Filesystem::of(&config.root_dir).map_or(0, |disk| disk.bytes)
}

/// Resources of a machine with that memory and disk that pods do not get: reserved ones, and those that eviction keeps free
/// (`GetNodeAllocatableReservation`).
fn reserved(config: &Config, memory: u64, disk: u64) -> Reserved {
    let kept_free = |signal: Signal, of: u64| {
        let mut thresholds = config.eviction.thresholds.iter();
        let hard = thresholds.find(|threshold| threshold.signal == signal && threshold.is_hard());
        hard.map_or(0, |threshold| threshold.at.of(of))
    };
    let Reserved { milli_cpu, memory: of_memory, ephemeral_storage } = config.registration.reserved;
    Reserved {
        milli_cpu,
        memory: of_memory.saturating_add(kept_free(Signal::MemoryAvailable, memory)),
        ephemeral_storage: ephemeral_storage.saturating_add(kept_free(Signal::NodeFsAvailable, disk)),
    }
}

/// The node's addresses: the given ones, where an unspecified one is replaced by the one that was found of its family; without given
/// ones those that were found.
pub fn node_ips(given: &[IpAddr], found: &[IpAddr]) -> Vec<Box<str>> {
    let of_family = |family: &IpAddr| found.iter().find(|ip| ip.is_ipv4() == family.is_ipv4()).copied();
    let in_use = |ip: &IpAddr| if ip.is_unspecified() { of_family(ip) } else { Some(*ip) };
    let ips: Vec<IpAddr> =
        if given.is_empty() { found.to_vec() } else { given.iter().filter_map(in_use).collect() };
    ips.iter().map(|ip| ip.to_string().into()).collect()
}

/// Go's name of the architecture.
#[cfg(feature = "tls")]
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    }
}

/// The machine's host name, as `uname -n`.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The node's own addresses, IPv4 first: those of the interface with this name, else of the default routes.
pub fn own_ips(interface: Option<&str>) -> Vec<IpAddr> {
    let Some(name) = interface else { return host_ips() };
    interface_ips(name).unwrap_or_else(|error| {
        log::debug!("node addresses: interface {name}: {error}");
        Vec::new()
    })
}

/// One of each family, beyond the link (`GetIPFromInterface`). Differs from k3s, which refuses to start: of several of IPv4 the one
/// that flannel prefers counts, and an interface without an address may get one later.
fn interface_ips(name: &str) -> io::Result<Vec<IpAddr>> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let link = net::netdevice::name_to_index(&socket, name)?;
    let there = link_addresses(|of| of.link == link)?;
    let of = |is_v4: bool| preferred(there.iter().filter(|of| of.address.is_ipv4() == is_v4));
    Ok([true, false].into_iter().filter_map(of).filter(|ip| !is_link_local(*ip)).collect())
}

/// Those of the addresses of all links that count.
pub(crate) fn link_addresses(counts: impl Fn(&LinkAddress) -> bool) -> io::Result<Vec<LinkAddress>> {
    let question = LinkAddress::question();
    Netlink::open(Protocol::Route)?.collect(&question, &mut |found: &mut Vec<LinkAddress>, _, answer| {
        found.extend(LinkAddress::read(answer).filter(|of| counts(of)));
    })
}

/// The source addresses of the default routes, IPv4 first. Connecting a UDP socket sends nothing; the
/// kernel selects the source address.
pub fn host_ips() -> Vec<IpAddr> {
    // Documentation addresses: never on a link, so always routed by the default route.
    [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .into_iter()
        .filter_map(|(from, to)| {
            let socket = UdpSocket::bind(from).ok()?;
            socket.connect(to).ok()?;
            socket.local_addr().ok().map(|address| address.ip())
        })
        .filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
        .collect()
}

const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// `MemTotal` and `SwapTotal` in bytes.
fn memory_bytes(meminfo: &str) -> (i64, i64) {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().split(' ').next()?.parse::<i64>().ok()
    };
    let bytes = |name| field(name).unwrap_or(0).saturating_mul(1024);
    (bytes("MemTotal:"), bytes("SwapTotal:"))
}

/// `hugepages-2048kB` → `2MB`, as in the names of cgroup files.
fn hugepage_sizes() -> Vec<Box<str>> {
    huge_pages().into_iter().map(|(kib, _)| hugepage_name(kib).into()).collect()
}

/// The sizes of huge pages in KiB, and the bytes of all pages of each (cAdvisor `GetHugePagesInfo`).
fn huge_pages() -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir(HUGE_PAGES) else { return Vec::new() };
    let mut all: Vec<(u64, u64)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages: u64 = read(&format!("{HUGE_PAGES}/{name}/nr_hugepages")).trim().parse().ok()?;
            Some((kib, kib.saturating_mul(1024).saturating_mul(pages)))
        })
        .collect();
    all.sort_unstable();
    all
}

/// The size in the form of the resource's name.
#[cfg(feature = "tls")]
fn huge_pages_name(kib: u64) -> Box<str> {
    let text = match kib {
        kib if kib % (1 << 20) == 0 => format!("{}Gi", kib >> 20),
        kib if kib % (1 << 10) == 0 => format!("{}Mi", kib >> 10),
        kib => format!("{kib}Ki"),
    };
    text.into()
}

/// The machine's CPUs, regardless of the agent's own CPU affinity (cAdvisor `GetTopology`).
pub(crate) fn cpus() -> i64 {
    let here =
        || std::thread::available_parallelism().map_or(1, |cpus| i64::try_from(cpus.get()).unwrap_or(1));
    cpus_of(&read("/sys/devices/system/cpu/online")).unwrap_or_else(here)
}

/// Number of CPUs in a list (`0-3,6`); `None` when it is invalid.
fn cpus_of(list: &str) -> Option<i64> {
    let mut all: i64 = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        all += i64::from(last.checked_sub(first)?) + 1;
    }
    Some(all)
}

fn hugepage_name(kib: u64) -> String {
    match kib {
        kib if kib >= 1 << 20 => format!("{}GB", kib >> 20),
        kib if kib >= 1 << 10 => format!("{}MB", kib >> 10),
        kib => format!("{kib}KB"),
    }
}

/// Intel machines have these; containers do not need them (runtime-spec default masks, added by the kubelet).
fn thermal_throttle_paths() -> Vec<Box<str>> {
    let Ok(cpus) = fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
    let mut paths: Vec<Box<str>> = cpus
        .flatten()
        .filter(|cpu| {
            let name = cpu.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(|cpu| cpu.path().join("thermal_throttle"))
        .filter(|path| path.is_dir())
        .map(|path| path.to_string_lossy().into())
        .collect();
    paths.sort_unstable();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "tls")]
    use crate::config::Flags;

    #[test]
    #[cfg(feature = "tls")]
    fn pods_wait_for_the_network_of_flannel() {
        let server = Some("https://10.0.0.1:6443".to_owned());
        let alone = Flags { server, token_file: Some("/t".into()), ..Flags::default() };
        let with = Flags { flannel: true, ..alone.clone() };
        for (flags, has_own_network) in [(alone, true), (with, false)] {
            let config = Config::load(&flags, None).unwrap();
            assert_eq!(embedded_runtime(&config).has_own_network, has_own_network);
        }
    }

    #[test]
    fn files_of_the_kernel_are_read() {
        let meminfo = "MemTotal:         948012 kB\nMemFree: 1 kB\nSwapTotal:        102396 kB\n";
        assert_eq!(memory_bytes(meminfo), (948_012 * 1024, 102_396 * 1024));
        assert_eq!(memory_bytes(""), (0, 0));
        for (kib, name) in [(64, "64KB"), (2048, "2MB"), (1 << 20, "1GB"), (16 << 20, "16GB")] {
            assert_eq!(hugepage_name(kib), name);
        }
        for (list, cpus) in
            [("0-3\n", Some(4)), ("0,2-3,8", Some(4)), ("0", Some(1)), ("", None), ("3-1", None)]
        {
            assert_eq!(cpus_of(list), cpus, "{list:?}");
        }
    }
}
