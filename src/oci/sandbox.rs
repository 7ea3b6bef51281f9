//! A pod's sandbox: its id ranges, its sysctls, and the spec of the init process of a PID namespace that containers share. PURE.

use super::runtime_spec::{
    self, Capabilities, Cpu, IdMapping, Linux, Map, Mount, Namespace, Process, Resources, Root, User,
};
use super::{
    Mappings, NodeFacts, SandboxNamespaces, SelinuxLabels, Spec, SpecError, add_subgroup, borrowed,
    cgroup_parent, cgroups_path, clean, mounts, seccomp,
};
use crate::proto::runtime::v1::{
    self as proto, NamespaceMode, NamespaceOption, PodSandboxConfig, UserNamespace,
};

/// containerd's and dockershim's for the pause container: the last to be killed.
const OOM_SCORE_ADJ: i64 = -998;
/// The weight of a process that sleeps.
const CPU_SHARES: u64 = 2;
/// Where the program stands in the init's root file system.
const PROGRAM: &str = "/smolet";

/// What the spec of a sandbox's init process is made of.
#[derive(Clone, Copy)]
pub struct SandboxInput<'a> {
    /// The id of the container that the OCI runtime makes for it.
    pub id: &'a str,
    /// The id of the sandbox.
    pub sandbox_id: &'a str,
    /// As `RunPodSandbox` brought it.
    pub config: &'a PodSandboxConfig,
    /// An empty directory on the machine; the OCI runtime makes the mount points in it.
    pub rootfs: &'a str,
    /// The program that is run as `smolet pause`, bound into the root file system. It is linked statically, or needs
    /// `libraries`.
    pub pause: &'a str,
    /// Directories of the machine that are bound to the same path, read-only: a program that is not linked statically needs
    /// `/lib` and the like.
    pub libraries: &'a [String],
    /// The namespaces; that for PIDs is new.
    pub namespaces: &'a SandboxNamespaces,
    /// The sandbox's `SELinux` labels; `None`: it has none.
    pub selinux: Option<&'a SelinuxLabels>,
    /// The machine.
    pub node: &'a NodeFacts,
}

/// The spec of the init process of a pod's PID namespace (`shareProcessNamespace`). It reaps what containers leave, and nothing
/// else: no capability, no privilege, a read-only root with the program alone, our seccomp profile.
///
/// # Errors
/// A field of the sandbox that cannot be.
pub fn sandbox_spec(input: &SandboxInput<'_>) -> Result<Spec, SpecError> {
    let context = input.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    let mapped = user_mappings(input.config)?;
    let binds_sys = mapped.is_some() && is_of_node(options, |options| options.network);
    let (uid_mappings, gid_mappings) = mapped.unwrap_or_default();
    let bound = |source: &str, destination: &str| Mount {
        destination: destination.to_owned(),
        kind: "bind".into(),
        source: source.to_owned(),
        options: borrowed(&["rbind", "rprivate", "ro", "nosuid", "nodev"]),
        ..Mount::default()
    };
    let mut mounts = mounts::system_mounts(binds_sys);
    // What it does not use it does not see.
    mounts.retain(|mount| matches!(&*mount.destination, "/proc" | "/dev" | "/sys"));
    mounts.push(bound(input.pause, PROGRAM));
    mounts.extend(input.libraries.iter().map(|path| bound(path, path)));
    let joined = |kind, path: &Option<String>| path.clone().map(|path| Namespace { kind, path });
    let mut namespaces = vec![Namespace { kind: "pid", path: String::new() }];
    namespaces.extend(joined("ipc", &input.namespaces.ipc));
    namespaces.extend(joined("uts", &input.namespaces.uts));
    namespaces.push(Namespace { kind: "mount", path: String::new() });
    namespaces.extend(joined("network", &input.namespaces.network));
    namespaces.extend(joined("user", &input.namespaces.user));
    let capabilities = Capabilities::default();
    let seccomp = input.node.seccomp.then(|| seccomp::default_profile(&capabilities.bounding));
    Ok(Spec {
        oci_version: runtime_spec::VERSION,
        process: Process {
            user: User::default(),
            args: vec![PROGRAM.to_owned(), "pause".to_owned()],
            cwd: "/".to_owned(),
            capabilities,
            no_new_privileges: true,
            oom_score_adj: Some(OOM_SCORE_ADJ.max(input.node.oom_score_adj_min)),
            selinux_label: input.selinux.map(|labels| labels.process.clone()).unwrap_or_default(),
            ..Process::default()
        },
        root: Root { path: input.rootfs.to_owned(), readonly: true },
        hostname: String::new(),
        mounts,
        hooks: runtime_spec::Hooks::default(),
        annotations: annotations(input),
        linux: Linux {
            uid_mappings,
            gid_mappings,
            cgroups_path: cgroups_path(cgroup_parent(input.config), input.id),
            resources: Resources {
                cpu: Cpu { shares: Some(CPU_SHARES), ..Cpu::default() },
                ..Resources::default()
            },
            namespaces,
            seccomp,
            mount_label: input.selinux.map(|labels| labels.mount.clone()).unwrap_or_default(),
            ..Linux::default()
        },
    })
}

fn annotations(input: &SandboxInput<'_>) -> Map {
    let of_pod = input.config.metadata.as_ref();
    let entries = [
        ("container-type", "sandbox"),
        ("sandbox-id", input.sandbox_id),
        ("sandbox-log-directory", &*input.config.log_directory),
        ("sandbox-name", of_pod.map_or("", |metadata| &metadata.name)),
        ("sandbox-namespace", of_pod.map_or("", |metadata| &metadata.namespace)),
        ("sandbox-uid", of_pod.map_or("", |metadata| &metadata.uid)),
    ];
    let entries = entries.into_iter();
    let mut annotations: Map =
        entries.map(|(key, value)| (format!("io.kubernetes.cri.{key}"), value.to_owned())).collect();
    add_subgroup(&mut annotations, cgroup_parent(input.config));
    annotations
}

const USERNS_OPTIONS: &str = "linux.security_context.namespace_options.userns_options";
const SYSCTLS: &str = "linux.sysctls";

fn is_of_node(options: Option<&NamespaceOption>, mode: impl Fn(&NamespaceOption) -> i32) -> bool {
    options.is_some_and(|options| mode(options) == NamespaceMode::Node as i32)
}

/// The kernel parameters of a sandbox, by their paths below `/proc/sys`; whoever writes them is in its namespaces. Only those
/// that a namespace of the pod's own has: another one would change the machine (runc's `sysctl` validation). Ports from 0 on and
/// `ping` need no privilege, as with containerd 2 (`enable_unprivileged_ports`, `enable_unprivileged_icmp`).
///
/// # Errors
/// A name that no namespace of this sandbox has.
pub fn sysctls(config: &PodSandboxConfig) -> Result<Map, SpecError> {
    let linux = config.linux.as_ref();
    let options = linux.and_then(|linux| linux.security_context.as_ref()?.namespace_options.as_ref());
    let owns_network = !is_of_node(options, |options| options.network);
    let owns_ipc = !is_of_node(options, |options| options.ipc);
    let mut paths = Map::new();
    if owns_network {
        paths.insert("net/ipv4/ip_unprivileged_port_start".into(), "0".into());
        // The range would be of ids that a user namespace does not have.
        if user_mappings(config)?.is_none() {
            paths.insert("net/ipv4/ping_group_range".into(), "0 2147483647".into());
        }
    }
    for (name, value) in linux.map(|linux| &linux.sysctls).into_iter().flatten() {
        let path = sysctl_path(name)?;
        let is_owned = if path.starts_with("net/") {
            owns_network
        } else if IPC_SYSCTLS.contains(&&*path) || path.starts_with("fs/mqueue/") {
            owns_ipc
        } else {
            // The pod's UTS namespace is its own when its network is.
            path == "kernel/domainname" && owns_network
        };
        if !is_owned {
            return Err(SpecError::invalid(
                SYSCTLS,
                format!("{name} is not of a namespace of the pod's own: it would change the node; remove it"),
            ));
        }
        if value.contains('\0') {
            return Err(SpecError::invalid(SYSCTLS, format!("the value of {name} has a zero byte")));
        }
        paths.insert(path, value.clone());
    }
    Ok(paths)
}

/// Those of an IPC namespace (`ipc_namespaces(7)`), and `fs.mqueue.*`.
const IPC_SYSCTLS: [&str; 8] = [
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
    "kernel/shm_rmid_forced",
];

/// `net.ipv4.conf.eth0/1.forwarding` and `net/ipv4/conf/eth0.1/forwarding` are one path: the first separator decides which of the
/// two characters is the other's (sysctl(8), the kubelet's `NormalizeName`).
fn sysctl_path(name: &str) -> Result<String, SpecError> {
    let is_dotted = name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'.');
    let path: String = if is_dotted {
        let swapped = |c| match c {
            '.' => '/',
            '/' => '.',
            c => c,
        };
        name.chars().map(swapped).collect()
    } else {
        name.to_owned()
    };
    // No way out of /proc/sys.
    if path.is_empty() || path.contains('\0') || clean(&path) != format!("/{path}") {
        return Err(SpecError::invalid(SYSCTLS, format!("{name:?} is no name of a kernel parameter")));
    }
    Ok(path)
}

pub(super) fn id_mapping(of: &proto::IdMapping) -> IdMapping {
    IdMapping { container_id: of.container_id, host_id: of.host_id, size: of.length }
}

/// The id ranges of a sandbox's user namespace; `None` in the node's.
///
/// # Errors
/// Ranges that cannot be.
pub fn user_mappings(config: &PodSandboxConfig) -> Result<Option<Mappings>, SpecError> {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    id_mappings(options.and_then(|options| options.userns_options.as_ref()), USERNS_OPTIONS)
}

/// The id ranges of a pod's user namespace; `None` in the node's (`parseUsernsIDs`).
pub(super) fn id_mappings(
    options: Option<&UserNamespace>,
    field: &'static str,
) -> Result<Option<Mappings>, SpecError> {
    let Some(options) = options else { return Ok(None) };
    let has_none = options.uids.is_empty() && options.gids.is_empty();
    match NamespaceMode::try_from(options.mode) {
        Ok(NamespaceMode::Node) if has_none => Ok(None),
        Ok(NamespaceMode::Node) => {
            Err(SpecError::invalid(field, "the node's user namespace has no mappings"))
        }
        Ok(NamespaceMode::Pod) => {
            // One range, as with containerd: the image's files are mapped by one.
            let ([uids], [gids]) = (&*options.uids, &*options.gids) else {
                return Err(SpecError::invalid(
                    field,
                    "there must be one range of user ids and one of group ids",
                ));
            };
            if uids.length == 0 || gids.length == 0 {
                return Err(SpecError::invalid(field, "a range of ids is empty"));
            }
            Ok(Some((vec![id_mapping(uids)], vec![id_mapping(gids)])))
        }
        Ok(NamespaceMode::Container | NamespaceMode::Target) | Err(_) => {
            Err(SpecError::invalid(field, "a user namespace is the pod's or the node's"))
        }
    }
}
