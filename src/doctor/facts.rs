//! Collects the facts of the machine and of the runtime for `judge`. I/O; blocks, for seconds when a runtime does not answer.
//! Read-only, but for a mount of overlayfs that is tried. What cannot be read counts as absent.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{announcements, forward, modules};
use crate::clock::{Clock as _, SharedClock, SystemClock};
use crate::cni::{self, RuntimeSettings};
use crate::config::{Config, Flags};
use crate::cri::choice::{RuntimeChoice, choose_beside};
use crate::cri::shims::{Shim, orphaned, shims};
use crate::cri::{GrpcRuntime, Image, Runtime as _, RuntimeCondition, RuntimeError, convert, endpoint};
use crate::eviction::{Amount, Signal};
use crate::executor::Executor;
use crate::facts::{self, embedded_runtime};
use crate::filesystem::Filesystem;
use crate::image::name::is_of_a_pause;
use crate::kernel_tunables::network::{self as cluster_network, Lacking, Network};
use crate::kernel_tunables::{self, Differing};
use crate::limits::{
    DOCTOR_CNI_FILES_MAX, DOCTOR_COMMAND_PATIENCE, DOCTOR_FILE_BYTES_MAX, DOCTOR_KUBELETS_MAX,
    ENDPOINT_CHECK_TIMEOUT,
};
use crate::model::{SandboxState, Wall};
use crate::program;
use crate::render::CgroupDriver;
use crate::resolv_conf::PodServers;
use crate::runtime::{Settings, lacks_apparmor_parser, overlay, readiness};

/// All facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Running as root; otherwise some facts are missing.
    pub is_root: bool,
    /// Why the given settings are invalid; the defaults are used then.
    pub bad_settings: Option<String>,
    /// Control groups.
    pub cgroups: CgroupFacts,
    /// What pods need of the kernel and it was not built with.
    pub kernel_lacks: Vec<&'static str>,
    /// The configured cgroup driver.
    pub cgroup_driver: CgroupDriver,
    /// The runtime, or an error with its remedy.
    pub runtime: Result<RuntimeFacts, String>,
    /// Other node agents on this machine.
    pub kubelets: Vec<Kubelet>,
    /// The pods' network.
    pub cni: CniFacts,
    /// The file systems of the state directory and, when the runtime reports it, of the images.
    pub disks: Vec<DiskFacts>,
    /// The clock.
    pub clock: ClockFacts,
    /// Active swap devices and files.
    pub swaps: Vec<String>,
    /// inotify's limits.
    pub inotify: InotifyFacts,
    /// Kernel settings that differ from the kubelet's.
    pub tunables: Vec<Differing>,
    /// What the network of a k3s cluster needs of the kernel and has not; `None`: the node is of no such cluster.
    pub cluster_network: Option<Lacking>,
    /// `accept_ra` of links whose addresses end, because a node of such a cluster with IPv6 forwards it.
    pub ignored_announcements: Vec<Differing>,
    /// Kernel modules that its Services, policies and links to other nodes need and that cannot be had; `None`: nothing is known.
    pub missing_modules: Option<Vec<&'static str>>,
    /// Address families of which iptables drops forwarded packets that no rule accepts.
    pub forward_drops: Vec<&'static str>,
    /// Chains of another service proxy or of other network policies beside this node's own.
    pub foreign_rules: Vec<&'static str>,
    /// firewalld runs, and its zone `trusted` has no source and no interface.
    pub firewalld_trusts_none: bool,
    /// The pods' name servers; `None`: they have none of the node's.
    pub name_servers: Option<PodServers>,
}

/// The kernel's control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupFacts {
    /// Their mount point.
    pub mounts: String,
    /// Controllers of version 2, if it is mounted there.
    pub unified: Option<Vec<String>>,
    /// Controllers of version 1 with a hierarchy there.
    pub v1: Vec<String>,
    /// The memory controller is disabled on the kernel's command line, by the firmware of a Raspberry Pi or by the user.
    pub memory_disabled: bool,
    /// The file with the kernel's command line for the firmware.
    pub cmdline_file: Option<&'static str>,
}

/// Facts of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Its socket.
    pub socket: String,
    /// Its name and version.
    pub version: String,
    /// `RuntimeReady`, `NetworkReady` ...; or why its status is unknown.
    pub conditions: Result<Vec<RuntimeCondition>, String>,
    /// The sandbox image and whether it is present; `None` when unknown.
    pub pause_image: Option<(String, bool)>,
    /// Running sandboxes that smolet has not created, and the pod of one of them.
    pub foreign_sandboxes: Option<(usize, String)>,
    /// Shims of containerd that serve no sandbox.
    pub orphaned_shims: Vec<Shim>,
    /// The cgroup driver that it reports by the CRI, which the agent then uses (`RuntimeConfig`).
    pub runtime_cgroup_driver: Option<CgroupDriver>,
    /// The cgroup driver in its configuration, if it shows that.
    pub cgroup_driver_set: Option<CgroupDriver>,
    /// It is the embedded runtime: judged by what this machine has, where no agent runs.
    pub is_embedded: bool,
    /// Its profile of `AppArmor` cannot be loaded into the kernel, which has it.
    pub lacks_apparmor_parser: bool,
}

/// Another node agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// Its process ID.
    pub pid: u32,
    /// Its name: `kubelet`, `k3s-server` ...
    pub name: String,
    /// The runtime endpoint in its arguments.
    pub endpoint: Option<String>,
}

/// The pods' network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniFacts {
    /// Directory of configurations.
    pub conf_dir: String,
    /// The runtime tells that it is this one.
    pub is_told: bool,
    /// The first one by name, which the runtime uses, with its plugins or its error.
    pub configuration: Option<(String, Result<Vec<String>, String>)>,
    /// Directories of plugins.
    pub bin_dirs: Vec<String>,
    /// Its plugins that are in none of them.
    pub missing: Vec<String>,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// Its use: `state` or `images`.
    pub of: &'static str,
    /// A path on it.
    pub path: String,
    /// Its capacity; empty when it could not be read.
    pub space: Filesystem,
    /// Available bytes below which pods are evicted at once; 0 = never.
    pub bytes_least: u64,
    /// Available inodes, likewise.
    pub inodes_least: u64,
}

/// The clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockFacts {
    /// The clock's present time.
    pub now: Wall,
    /// Whether it is synchronised with a time server, if known.
    pub is_synchronised: Option<bool>,
    /// The running time service.
    pub service: Option<String>,
    /// The machine has a real-time clock.
    pub has_rtc: bool,
}

/// inotify's limits; `None` when they cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InotifyFacts {
    /// `fs.inotify.max_user_instances`.
    pub instances: Option<u64>,
    /// `fs.inotify.max_user_watches`.
    pub watches: Option<u64>,
}

/// Collects all facts, with the settings that the agent has or would have.
pub fn collect(config: &Config, bad_settings: Option<String>) -> Facts {
    let executor = Rc::new(Executor::new());
    let of_runtime = Box::pin(runtime(config, &executor));
    let (runtime, settings, images) = async_io::block_on(executor.run(of_runtime));
    let evicted_for = |bytes, inodes| {
        let hard = |signal| {
            let mut hard = config.eviction.thresholds.iter().filter(|threshold| threshold.is_hard());
            hard.find(|threshold| threshold.signal == signal).map(|threshold| threshold.at)
        };
        (hard(bytes), hard(inodes))
    };
    let of_state = evicted_for(Signal::NodeFsAvailable, Signal::NodeFsInodesFree);
    let of_images = evicted_for(Signal::ImageFsAvailable, Signal::ImageFsInodesFree);
    let mut disks = vec![disk("state", &config.root_dir, of_state)];
    disks.extend(images.map(|path| disk("images", Path::new(&path), of_images)));
    Facts {
        is_root: rustix::process::geteuid().is_root(),
        bad_settings,
        cgroups: cgroups(&config.cgroup_mounts),
        kernel_lacks: kernel_lacks(Path::new("/proc")),
        cgroup_driver: config.cgroup_driver,
        runtime,
        kubelets: kubelets(),
        cni: network(settings),
        disks,
        clock: ClockFacts {
            now: SystemClock.now().wall,
            is_synchronised: is_synchronised(),
            service: processes().map(|(_, name)| name).find(|name| TIME_SERVICES.contains(&name.as_str())),
            has_rtc: Path::new("/sys/class/rtc/rtc0").exists(),
        },
        swaps: swaps(&read("/proc/swaps")),
        inotify: InotifyFacts {
            instances: number("/proc/sys/fs/inotify/max_user_instances"),
            watches: number("/proc/sys/fs/inotify/max_user_watches"),
        },
        tunables: kernel_tunables::differing(Path::new("/proc/sys")),
        cluster_network: config.k3s.as_ref().map(|k3s| {
            let cpus = u64::try_from(facts::cpus()).unwrap_or(1);
            let of = Network { has_ipv6: has_ipv6(config), cpus, conntrack: k3s.conntrack };
            cluster_network::lacking(Path::new("/proc/sys"), of)
        }),
        ignored_announcements: if config.k3s.is_some() && has_ipv6(config) {
            let accept_ra = |link: &str| number(&format!("/proc/sys/net/ipv6/conf/{link}/accept_ra"));
            announcements::ignored(&read("/proc/net/if_inet6"), accept_ra)
        } else {
            Vec::new()
        },
        missing_modules: modules::missing(config),
        forward_drops: forward::dropping(),
        foreign_rules: forward::foreign(config),
        firewalld_trusts_none: forward::firewalld_trusts_none(),
        name_servers: config.resolver().pod_servers(),
    }
}

/// What each container needs of the kernel, by the file that is there with it. Distributions build it in; the kernels of routers
/// (`OpenWrt`'s images) often lack some. Overlays are not among them: they may be a module that is loaded with the first mount.
const KERNEL_FEATURES: [(&str, &str); 7] = [
    ("self/ns/mnt", "mount namespaces (CONFIG_NAMESPACES)"),
    ("self/ns/pid", "PID namespaces (CONFIG_PID_NS)"),
    ("self/ns/net", "network namespaces (CONFIG_NET_NS)"),
    ("self/ns/ipc", "IPC namespaces (CONFIG_IPC_NS)"),
    ("self/ns/uts", "UTS namespaces (CONFIG_UTS_NS)"),
    ("sys/fs/mqueue", "message queues (CONFIG_POSIX_MQUEUE)"),
    ("sys/kernel/seccomp/actions_avail", "seccomp filters (CONFIG_SECCOMP_FILTER)"),
];

/// `proc`: where procfs is mounted. Without it nothing can be said.
fn kernel_lacks(proc: &Path) -> Vec<&'static str> {
    let features = KERNEL_FEATURES.iter().filter(|_| proc.join("self").exists());
    features.filter(|(file, _)| !proc.join(file).exists()).map(|(_, name)| *name).collect()
}

/// Whether pods of its cluster have IPv6 addresses, as far as the node knows.
#[cfg(feature = "tls")]
fn has_ipv6(config: &Config) -> bool {
    crate::k3s::Files::new(&config.root_dir).kept_settings().is_some_and(|settings| settings.has_ipv6())
}

#[cfg(not(feature = "tls"))]
fn has_ipv6(_config: &Config) -> bool {
    false
}

/// Reads at most `DOCTOR_FILE_BYTES_MAX`.
fn read(path: impl AsRef<Path>) -> String {
    read_or_why(path.as_ref()).unwrap_or_default()
}

fn read_or_why(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(DOCTOR_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn number(path: &str) -> Option<u64> {
    read(path).trim().parse().ok()
}

// ---- the runtime -----------------------------------------------------------------------------------------

/// The runtime, its configuration, and the file system of its images.
async fn runtime(
    config: &Config,
    executor: &Rc<Executor>,
) -> (Result<RuntimeFacts, String>, RuntimeSettings, Option<String>) {
    let clock: SharedClock = Rc::new(SystemClock);
    let none = |error: String| (Err(error), RuntimeSettings::parse(None), None);
    let candidates = match choose_beside(
        config.runtime_endpoint.as_deref(),
        &config.root_dir,
        (&config.cri_socket(), config.k3s.is_some()),
    ) {
        Ok(RuntimeChoice::Sockets(candidates)) => candidates,
        Ok(RuntimeChoice::Embedded) => return embedded(config, executor, &clock).await,
        Err(error) => return none(error),
    };
    let found = match endpoint::find(&candidates, executor, &clock).await {
        Ok(found) => found,
        Err(error) => return none(error.to_string()),
    };
    let version = format!("{} {}", found.version.runtime_name, found.version.runtime_version);
    let runtime = found.runtime.with_timeout(ENDPOINT_CHECK_TIMEOUT);
    let conditions = runtime.status().await.map(|status| status.conditions);
    let settings = runtime.settings().await.unwrap_or_default();
    let pause_image = if let Some(name) = settings.as_deref().and_then(convert::sandbox_image) {
        runtime.image_status(&name).await.ok().map(|image| (name, image.is_some()))
    } else {
        like_a_pause_image(&runtime).await.map(|name| (name, true))
    };
    let mut foreign_sandboxes: Option<(usize, String)> = None;
    // An error counts as an empty list: that it does not answer is reported with its conditions.
    let _ = runtime
        .list_pod_sandboxes(None, &mut |sandbox| {
            if sandbox.node.is_none() && sandbox.state == SandboxState::Ready {
                foreign_sandboxes.get_or_insert_with(|| (0, sandbox.pod.to_string())).0 += 1;
            }
        })
        .await;
    let look = async || shims(Path::new("/proc"), runtime.socket());
    let orphaned_shims = orphaned(&runtime, &clock, look).await.unwrap_or_default();
    let images = runtime.image_fs_info().await.unwrap_or_default();
    let runtime_cgroup_driver = runtime.cgroup_driver().await.ok().flatten();
    let settings = RuntimeSettings::parse(settings.as_deref());
    let facts = RuntimeFacts {
        socket: runtime.socket().display().to_string(),
        version,
        conditions: conditions.map_err(|error| error.to_string()),
        pause_image,
        foreign_sandboxes,
        orphaned_shims,
        runtime_cgroup_driver,
        cgroup_driver_set: settings.cgroup_driver,
        is_embedded: false,
        lacks_apparmor_parser: false,
    };
    (Ok(facts), settings, images.first().map(|images| images.mountpoint.to_string()))
}

/// The embedded runtime, by what a running agent says of it: its service may be denied what it needs. Else by what it would find here.
async fn embedded(
    config: &Config,
    executor: &Rc<Executor>,
    clock: &SharedClock,
) -> (Result<RuntimeFacts, String>, RuntimeSettings, Option<String>) {
    let settings = embedded_runtime(config);
    let running = GrpcRuntime::new(&config.cri_socket(), executor, clock.clone());
    let running = running.with_timeout(ENDPOINT_CHECK_TIMEOUT);
    let conditions = match running.status().await {
        Ok(mut status) => {
            // An agent of an older version has no such call; one that has just ended says nothing of its pods.
            let networks = running.check_networks().await;
            status.conditions.extend(networks.map(|of| of.conditions).unwrap_or_default());
            Ok(status.conditions)
        }
        Err(RuntimeError::Unavailable(_)) => not_served(&settings, agent(&config.socket)),
        Err(error) => Err(error.to_string()),
    };
    let facts = RuntimeFacts {
        socket: config.cri_socket().display().to_string(),
        version: format!("smolet {}", env!("CARGO_PKG_VERSION")),
        conditions,
        pause_image: None,
        foreign_sandboxes: None,
        orphaned_shims: Vec::new(),
        runtime_cgroup_driver: None,
        cgroup_driver_set: None,
        is_embedded: true,
        lacks_apparmor_parser: lacks_apparmor_parser(),
    };
    let cni = RuntimeSettings {
        cni_conf_dir: settings.cni_conf_dir.display().to_string(),
        is_told: true,
        cni_bin_dirs: settings.cni_bin_dirs.iter().map(|dir| dir.display().to_string()).collect(),
        cgroup_driver: None,
    };
    (Ok(facts), cni, Some(settings.root_dir.display().to_string()))
}

/// An agent serves the CRI once its runtime is ready; where none runs, that is what this machine has.
fn not_served(settings: &Settings, agent: Option<u32>) -> Result<Vec<RuntimeCondition>, String> {
    let mut found = readiness(settings, agent);
    match agent {
        Some(pid) if found.iter().all(|condition| condition.status) => {
            return Err(format!("the agent, process {pid}, has not opened it yet"));
        }
        None if rustix::process::geteuid().is_root() => found.extend(overlay(settings)),
        Some(_) | None => {}
    }
    Ok(found)
}

/// The process ID of the agent that serves this socket.
fn agent(socket: &Path) -> Option<u32> {
    let stream = std::os::unix::net::UnixStream::connect(socket).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    peer.pid.as_raw_nonzero().get().try_into().ok()
}

/// The first image with a name like a pause image's.
async fn like_a_pause_image(runtime: &GrpcRuntime) -> Option<String> {
    let mut found: Option<String> = None;
    let mut each = |image: Image| {
        let tag = image.repo_tags.iter().find(|tag| is_of_a_pause(tag));
        found = found.take().or_else(|| tag.map(ToString::to_string));
    };
    runtime.list_images(&mut each).await.ok()?;
    found
}

// ---- control groups --------------------------------------------------------------------------------------

/// The kernel's command line on Raspberry Pi OS: since Debian 12, and before.
const CMDLINE_FILES: [&str; 2] = ["/boot/firmware/cmdline.txt", "/boot/cmdline.txt"];

fn cgroups(mounts: &Path) -> CgroupFacts {
    let words = |text: String| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let unified = read_or_why(&mounts.join("cgroup.controllers")).ok().map(words);
    CgroupFacts {
        mounts: mounts.display().to_string(),
        v1: if unified.is_some() { Vec::new() } else { mounted_v1(&read("/proc/self/mounts"), mounts) },
        unified,
        memory_disabled: memory_disabled(&read("/proc/cgroups"), &read("/proc/cmdline")),
        cmdline_file: CMDLINE_FILES.into_iter().find(|file| Path::new(file).exists()),
    }
}

/// The controllers of version 1 that are mounted below `root`.
fn mounted_v1(mounts: &str, root: &Path) -> Vec<String> {
    let controllers = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup" && Path::new(point).starts_with(root)).then_some(options)
    });
    let mut named: Vec<String> =
        controllers.flat_map(|options| options.split(',')).map(str::to_owned).collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// The kernel has a memory controller that is disabled: by `/proc/cgroups`, where it is listed as disabled, or by the last
/// parameter about it on the command line, because a kernel without version 1 of it does not list it.
fn memory_disabled(cgroups: &str, cmdline: &str) -> bool {
    let row = cgroups.lines().find(|line| line.split_whitespace().next() == Some("memory"));
    if let Some(enabled) = row.and_then(|row| row.split_whitespace().nth(3)) {
        return enabled == "0";
    }
    let last = cmdline.split_whitespace().rfind(|word| {
        let value = word.strip_prefix("cgroup_disable=").or_else(|| word.strip_prefix("cgroup_enable="));
        value.is_some_and(|value| value.split(',').any(|controller| controller == "memory"))
    });
    last.is_some_and(|word| word.starts_with("cgroup_disable="))
}

// ---- other agents ----------------------------------------------------------------------------------------

/// Names of processes that are, or contain, a kubelet.
fn is_kubelet(name: &str) -> bool {
    matches!(name, "kubelet" | "kubelite" | "k3s") || name.starts_with("k3s-")
}

/// At most `DOCTOR_KUBELETS_MAX` of them.
fn kubelets() -> Vec<Kubelet> {
    let with_endpoint = |(pid, name): (u32, String)| {
        let arguments = read(format!("/proc/{pid}/cmdline"));
        Kubelet { pid, name, endpoint: named_endpoint(&arguments) }
    };
    let named = processes().filter(|(_, name)| is_kubelet(name));
    named.take(DOCTOR_KUBELETS_MAX).map(with_endpoint).collect()
}

/// The visible processes, with the first 15 bytes of their programs' names.
fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, read(entry.path().join("comm")).trim_end().to_owned()))
    })
}

/// The value of `--container-runtime-endpoint` among NUL-terminated arguments; the last one counts.
fn named_endpoint(arguments: &str) -> Option<String> {
    let mut arguments = arguments.split('\0');
    let mut named = None;
    while let Some(argument) = arguments.next() {
        let Some(rest) = argument.trim_start_matches('-').strip_prefix("container-runtime-endpoint") else {
            continue;
        };
        if rest.is_empty() {
            named = arguments.next();
        } else if let Some(value) = rest.strip_prefix('=') {
            named = Some(value);
        }
    }
    named.filter(|value| !value.is_empty()).map(str::to_owned)
}

// ---- network, disks, clock, swap -------------------------------------------------------------------------

fn network(settings: RuntimeSettings) -> CniFacts {
    let RuntimeSettings { cni_conf_dir, is_told, cni_bin_dirs, .. } = settings;
    let conf_dir = PathBuf::from(&cni_conf_dir);
    let names = fs::read_dir(&conf_dir).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| cni::is_configuration(name)).take(DOCTOR_CNI_FILES_MAX).collect();
    names.sort_unstable();
    let configuration = names.into_iter().next().map(|name| {
        let text = read_or_why(&conf_dir.join(&name)).map_err(|error| format!("cannot be read: {error}"));
        let plugins = text.and_then(|text| cni::plugins(&text));
        (name, plugins)
    });
    let is_there = |plugin: &String| cni_bin_dirs.iter().any(|dir| Path::new(dir).join(plugin).exists());
    let named = configuration.iter().filter_map(|(_, plugins)| plugins.as_ref().ok()).flatten();
    let missing = named.filter(|plugin| !is_there(plugin)).cloned().collect();
    CniFacts { conf_dir: cni_conf_dir, is_told, configuration, bin_dirs: cni_bin_dirs, missing }
}

/// The file system of a path that exists or will be created, and the eviction thresholds.
fn disk(of: &'static str, path: &Path, (bytes, inodes): (Option<Amount>, Option<Amount>)) -> DiskFacts {
    let found = path.ancestors().find(|above| above.exists()).map(Filesystem::of);
    let space = found.and_then(Result::ok).unwrap_or_default();
    DiskFacts {
        of,
        path: path.display().to_string(),
        space,
        bytes_least: bytes.map_or(0, |bytes| bytes.of(space.bytes)),
        inodes_least: inodes.map_or(0, |inodes| inodes.of(space.inodes)),
    }
}

/// Process names of time services.
const TIME_SERVICES: [&str; 4] = ["systemd-timesyn", "chronyd", "ntpd", "openntpd"];

/// Whether the clock is synchronised: by the file of systemd-timesyncd, else by `timedatectl`, which asks the kernel, whichever
/// program keeps the time. The kernel's own call (`adjtimex`) would need unsafe code here.
fn is_synchronised() -> Option<bool> {
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return Some(true);
    }
    let words = ["show", "--property=NTPSynchronized", "--value"];
    let text = program::output("timedatectl", &words, DOCTOR_COMMAND_PATIENCE)?;
    match text.trim() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Swap in `/proc/swaps`, without compressed memory, which wears no storage and keeps nothing over a reboot.
fn swaps(table: &str) -> Vec<String> {
    let names = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| !name.starts_with("/dev/zram")).map(str::to_owned).collect()
}

/// The settings to use when the given ones are invalid: the defaults, except for paths that flags name.
pub fn usual_settings(given: &Flags, socket: &Path) -> Option<Config> {
    let places = Flags {
        root_dir: given.root_dir.clone(),
        runtime_endpoint: given.runtime_endpoint.clone(),
        cgroup_mounts: given.cgroup_mounts.clone(),
        ..Flags::default()
    };
    let with = |flags: &Flags| Config::load(flags, Some(socket)).ok();
    with(&places).or_else(|| with(&Flags::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_off_when_the_kernel_says_so() {
        let table = |enabled| {
            format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t80\t{enabled}\n")
        };
        for (cgroups, cmdline, disabled) in [
            (table(1), "cgroup_disable=memory cgroup_enable=memory", false),
            (table(0), "cgroup_disable=memory console=tty1", true),
            (table(0), "", true),
            // Kernels without version 1 of the controller.
            (String::new(), "cgroup_disable=memory console=tty1", true),
            (String::new(), "cgroup_disable=memory rootwait cgroup_enable=cpuset,memory", false),
            (String::new(), "cgroup_disable=memory_hugetlb", false),
            (String::new(), "", false),
        ] {
            assert_eq!(memory_disabled(&cgroups, cmdline), disabled, "{cgroups:?} {cmdline:?}");
        }
    }

    #[test]
    fn the_kernel_lacks_what_has_no_file_in_proc() {
        let proc = std::env::temp_dir().join(format!("smolet-doctor-{}", std::process::id()));
        assert_eq!(kernel_lacks(&proc), [""; 0], "where proc is not mounted nothing is known");
        for (file, _) in KERNEL_FEATURES {
            fs::create_dir_all(proc.join(file)).unwrap();
        }
        assert_eq!(kernel_lacks(&proc), [""; 0]);
        fs::remove_dir(proc.join("self/ns/pid")).unwrap();
        fs::remove_dir(proc.join("sys/fs/mqueue")).unwrap();
        let lacking = ["PID namespaces (CONFIG_PID_NS)", "message queues (CONFIG_POSIX_MQUEUE)"];
        assert_eq!(kernel_lacks(&proc), lacking);
        fs::remove_dir_all(proc).unwrap();
    }

    #[test]
    fn hierarchies_of_version_1_are_those_mounted_there() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /elsewhere/pids cgroup rw,pids 0 0\n";
        assert_eq!(mounted_v1(mounts, Path::new("/sys/fs/cgroup")), ["cpu", "cpuacct", "memory", "rw"]);
    }

    #[test]
    fn kubelets_are_known_by_their_names_and_name_their_runtime() {
        for (name, is_one) in [
            ("kubelet", true),
            ("k3s-agent", true),
            ("k3s", true),
            ("kubelite", true),
            ("smolet", false),
            ("k3sup", false),
        ] {
            assert_eq!(is_kubelet(name), is_one, "{name}");
        }
        for (arguments, endpoint) in [
            ("kubelet\0--v=2\0", None),
            ("kubelet\0--container-runtime-endpoint=unix:///a\0", Some("unix:///a")),
            ("k3s\0agent\0--container-runtime-endpoint\0/b\0--x\0", Some("/b")),
            ("kubelet\0--container-runtime-endpoint=/a\0--container-runtime-endpoint=/b\0", Some("/b")),
            ("kubelet\0--container-runtime-endpoint-x=/a\0", None),
            ("kubelet\0--container-runtime-endpoint", None),
        ] {
            assert_eq!(named_endpoint(arguments).as_deref(), endpoint, "{arguments:?}");
        }
    }

    #[test]
    fn swap_in_compressed_memory_is_none() {
        let table = "Filename\tType\tSize\tUsed\tPriority\n/var/swap file 102396 0 -2\n/dev/zram0 partition 1 0 100\n";
        assert_eq!(swaps(table), ["/var/swap"]);
        assert!(swaps("Filename\tType\tSize\tUsed\tPriority\n").is_empty());
        assert!(swaps("").is_empty());
    }

    #[test]
    fn a_directory_that_is_not_there_yet_lies_where_it_will() {
        let found =
            disk("state", Path::new("/nonexistent/smolet/state"), (Some(Amount::Share(500_000)), None));
        assert!(found.space.bytes > 0 && found.path == "/nonexistent/smolet/state", "{found:?}");
        assert_eq!((found.bytes_least, found.inodes_least), (found.space.bytes / 2, 0));
    }
}
