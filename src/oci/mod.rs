//! The OCI runtime-spec of a container, from the CRI's `ContainerConfig` and the image's configuration. PURE.
//!
//! Follows containerd's CRI plugin (`container_create_linux.go`, `internal/cri/opts`, `pkg/oci`); where CRI-O or we do otherwise,
//! the line says so. What the rules need to know of the machine comes in [`Input`]: the caller reads files, resolves links,
//! makes directories, mounts images. One file per part of the spec:
//!
//! ```text
//!     ContainerConfig ─┬─► process ── users, capabilities, environment ─┐
//!     ImageConfig ─────┤─► mounts ── the pod's files, image volumes     ├─► cdi ─► Spec (config.json)
//!     NodeFacts ───────┤─► resources ── cgroup path, limits, devices    │
//!     namespaces ──────┴─► security ── seccomp, `AppArmor` ──────────────┘
//! ```
//!
//! `machine` reads the facts and finds devices (I/O). Fields of Windows do not reach us: the CRI's messages are compiled without them, as the kubelet on Linux never sets them.

mod capabilities;
mod cdi;
mod error;
mod features;
mod image_config;
mod machine;
mod mounts;
mod process;
mod resources;
pub mod runtime_spec;
mod sandbox;
mod seccomp;
mod security;
mod selinux;
mod signal;
pub mod users;

use std::borrow::Cow;

use crate::proto::runtime::v1::{
    ContainerConfig, LinuxContainerSecurityContext, NamespaceMode, PodSandboxConfig,
};
use crate::render::CgroupVersion;

pub use cdi::CdiFile;
pub use error::SpecError;
pub use features::RuntimeFeatures;
pub use image_config::{ImageConfig, ImageDocument};
pub use machine::{find_devices, has_apparmor, read_apparmor_profiles};
pub use mounts::{Volume, image_volume_paths, relabelled};
pub use process::exec_process;
pub use resources::{cgroups_path, update};
pub use runtime_spec::Spec;
pub use sandbox::{SandboxInput, sandbox_spec, sysctls, user_mappings};
pub use security::{APPARMOR_PROFILE_NAME, apparmor_profile, is_apparmor_loaded, may_want_default_apparmor};
pub use selinux::{SelinuxLabels, value_of};
pub use signal::stop_signal;

use runtime_spec::{Device, IdMapping, Linux, Map, Namespace, Rlimit, Root};

/// What a container's spec is made of.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The container's id.
    pub id: &'a str,
    /// The id of its sandbox.
    pub sandbox_id: &'a str,
    /// As `CreateContainer` brought it, but for host paths: that of a mount is one without links that exists (for an image
    /// volume the directory where the image is mounted), that of a device one without links.
    pub config: &'a ContainerConfig,
    /// As `RunPodSandbox` brought it.
    pub sandbox: &'a PodSandboxConfig,
    /// The image's configuration.
    pub image: &'a ImageConfig,
    /// The image's name for the annotation.
    pub image_name: &'a str,
    /// The root file system, as an absolute path or below the bundle.
    pub rootfs: &'a str,
    /// `/etc/passwd` of the root file system; empty when there is none.
    pub passwd: &'a [u8],
    /// `/etc/group` of the root file system; empty when there is none.
    pub group: &'a [u8],
    /// The namespaces of the sandbox.
    pub namespaces: &'a SandboxNamespaces,
    /// The files of the sandbox that the container sees.
    pub files: &'a SandboxFiles,
    /// The directories of the image's volumes: one for each of [`image_volume_paths`].
    pub volumes: &'a [Volume],
    /// The text of the seccomp profile that `seccomp.localhost_ref` names.
    pub seccomp_profile: Option<&'a [u8]>,
    /// The container's `SELinux` labels; `None`: it gets none.
    pub selinux: Option<&'a SelinuxLabels>,
    /// Device nodes of the machine: those at and below the CRI's devices, those of CDI, and with a privileged container all
    /// below `/dev`. Their paths are the host's.
    pub devices: &'a [Device],
    /// The CDI specifications of the node, those of `/var/run/cdi` after those of `/etc/cdi`.
    pub cdi: &'a [CdiFile<'a>],
    /// The `AppArmor` profiles that are loaded ([`read_apparmor_profiles`]); `None`: it is not enabled.
    pub apparmor: Option<&'a str>,
    /// Further annotations.
    pub annotations: &'a Map,
    /// The machine.
    pub node: &'a NodeFacts,
}

/// What the specs need to know of the machine and of the OCI runtime. It does not change while the agent runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The cgroup hierarchy.
    pub cgroup: CgroupVersion,
    /// The hugetlb controller is there.
    pub hugetlb: bool,
    /// The kernel filters system calls.
    pub seccomp: bool,
    /// `AppArmor` is enabled ([`has_apparmor`]).
    pub apparmor: bool,
    /// `/proc/sys/kernel/cap_last_cap`.
    pub last_capability: u8,
    /// The agent's own capabilities (`CapEff` of `/proc/self/status`), which are all that a container can be given.
    pub capabilities: u64,
    /// The lowest `oom_score_adj` that the agent can give: without `CAP_SYS_RESOURCE` its own, else −1000.
    pub oom_score_adj_min: i64,
    /// The kernel makes user namespaces, and maps the ids of mounts (Linux 5.12).
    pub user_namespaces: bool,
    /// What the OCI runtime has; in the specs of a `RuntimeClass` handler that of the handler.
    pub runtime: RuntimeFeatures,
    /// `/proc/self/mountinfo`, for mounts that propagate; without it their sources are not checked.
    pub mountinfo: String,
    /// The machine's host name, for pods that have none of their own.
    pub hostname: String,
    /// Limits of processes beside those that the runtime's own process has; none, as with containerd.
    pub rlimits: Vec<Rlimit>,
    /// Limit of a container's tasks; none, the pod's own limit is at the pod's cgroup.
    pub pids_limit: Option<i64>,
}

/// Paths of a sandbox's namespaces; `None` is the node's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxNamespaces {
    /// Network namespace.
    pub network: Option<String>,
    /// IPC namespace.
    pub ipc: Option<String>,
    /// UTS namespace.
    pub uts: Option<String>,
    /// User namespace.
    pub user: Option<String>,
    /// PID namespace of the pod, when its containers share one.
    pub pid: Option<String>,
    /// PID namespace of the container that [`NamespaceMode::Target`] names.
    pub target_pid: Option<String>,
}

/// Files of a sandbox that its containers see; `None` are not mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxFiles {
    /// `/etc/hostname`.
    pub hostname: Option<String>,
    /// `/etc/hosts`. The kubelet brings its own.
    pub hosts: Option<String>,
    /// `/etc/resolv.conf`.
    pub resolv_conf: Option<String>,
    /// The directory of `/dev/shm`, the node's own when the pod shares its IPC namespace.
    pub shm: Option<String>,
}

/// The container's spec.
///
/// # Errors
/// A field of the container that cannot be had, by its value or on this machine.
pub fn spec(input: &Input<'_>) -> Result<Spec, SpecError> {
    let no_context = LinuxContainerSecurityContext::default();
    let context = input.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let context = context.unwrap_or(&no_context);
    if context.privileged && !is_privileged_sandbox(input.sandbox) {
        return Err(SpecError::invalid(
            "linux.security_context.privileged",
            "the pod's sandbox is not privileged; create it with linux.security_context.privileged",
        ));
    }
    let mapped = user_namespace(input, context)?;
    let mut resources = resources::of_container(input.config, input.node)?;
    let devices = resources::devices(input, context, &mut resources)?;
    let process = process::of_container(input, context)?;
    let (mounts, propagation) = mounts::of_container(input, context, mapped.is_some())?;
    let seccomp = security::seccomp(input, context, &process)?;
    let (uid_mappings, gid_mappings) = mapped.unwrap_or_default();
    let mut spec = Spec {
        oci_version: runtime_spec::VERSION,
        root: Root { path: input.rootfs.to_owned(), readonly: context.readonly_rootfs },
        hostname: String::new(),
        mounts,
        hooks: runtime_spec::Hooks::default(),
        annotations: annotations(input),
        linux: Linux {
            uid_mappings,
            gid_mappings,
            sysctl: Map::new(),
            resources,
            cgroups_path: cgroups_path(cgroup_parent(input.sandbox), input.id),
            namespaces: namespaces(input, context)?,
            devices,
            seccomp,
            rootfs_propagation: propagation,
            masked_paths: if context.privileged { Vec::new() } else { context.masked_paths.clone() },
            readonly_paths: if context.privileged { Vec::new() } else { context.readonly_paths.clone() },
            mount_label: input.selinux.map(|labels| labels.mount.clone()).unwrap_or_default(),
            intel_rdt: None,
        },
        process,
    };
    cdi::apply(&mut spec, input)?;
    Ok(spec)
}

impl Spec {
    /// `config.json`.
    ///
    /// # Errors
    /// None that is known of: no map of it has keys that are no texts.
    pub fn to_json(&self) -> Result<Vec<u8>, SpecError> {
        serde_json::to_vec(self).map_err(|error| SpecError::invalid("config.json", error.to_string()))
    }
}

/// The CRI's cgroup parent; empty when the pod has none.
fn cgroup_parent(sandbox: &PodSandboxConfig) -> &str {
    sandbox.linux.as_ref().map_or("", |linux| &linux.cgroup_parent)
}

fn is_privileged_sandbox(sandbox: &PodSandboxConfig) -> bool {
    sandbox.linux.as_ref().and_then(|l| l.security_context.as_ref()).is_some_and(|c| c.privileged)
}

/// Ranges of user ids and of group ids.
pub type Mappings = (Vec<IdMapping>, Vec<IdMapping>);

/// The id ranges of the container's user namespace, which are the sandbox's (`parseUsernsIDs`, `sameUsernsConfig`); `None`
/// in the node's.
fn user_namespace(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
) -> Result<Option<Mappings>, SpecError> {
    const FIELD: &str = "linux.security_context.namespace_options.userns_options";
    let own = context.namespace_options.as_ref().and_then(|options| options.userns_options.as_ref());
    let own = sandbox::id_mappings(own, FIELD)?;
    if own != user_mappings(input.sandbox)? {
        return Err(SpecError::invalid(
            FIELD,
            "it is another one than the sandbox's; a pod has one user namespace",
        ));
    }
    Ok(own)
}

/// The namespaces: the sandbox's for network, IPC and UTS, a PID namespace by its mode, an own mount namespace
/// (`WithPodNamespaces`). containerd names `/proc/PID/ns` of the sandbox also where that is the node's; we leave it out.
fn namespaces(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
) -> Result<Vec<Namespace>, SpecError> {
    const FIELD: &str = "linux.security_context.namespace_options.pid";
    let own = |kind| Namespace { kind, path: String::new() };
    let pid = context.namespace_options.as_ref().map_or(0, |options| options.pid);
    let pid = NamespaceMode::try_from(pid)
        .map_err(|_| SpecError::invalid(FIELD, format!("no namespace mode has the number {pid}")))?;
    let mut namespaces = Vec::with_capacity(7);
    let joined = |kind, path: &Option<String>| path.clone().map(|path| Namespace { kind, path });
    match pid {
        NamespaceMode::Container => namespaces.push(own("pid")),
        NamespaceMode::Node => {}
        NamespaceMode::Pod => match joined("pid", &input.namespaces.pid) {
            Some(of_pod) => namespaces.push(of_pod),
            None => {
                return Err(SpecError::invalid(
                    FIELD,
                    "the sandbox was created without a PID namespace for the pod",
                ));
            }
        },
        NamespaceMode::Target => match joined("pid", &input.namespaces.target_pid) {
            Some(of_target) => namespaces.push(of_target),
            None => return Err(SpecError::invalid(FIELD, "the target container is not running in this pod")),
        },
    }
    namespaces.extend(joined("ipc", &input.namespaces.ipc));
    namespaces.extend(joined("uts", &input.namespaces.uts));
    namespaces.push(own("mount"));
    namespaces.extend(joined("network", &input.namespaces.network));
    // It hides /sys/fs/cgroup; not with cgroup v1 nor for a privileged container, as with containerd.
    if matches!(input.node.cgroup, CgroupVersion::V2 { .. }) && !context.privileged {
        namespaces.push(own("cgroup"));
    }
    namespaces.extend(joined("user", &input.namespaces.user));
    Ok(namespaces)
}

/// containerd's `DefaultCRIAnnotations`, which OCI hooks and runtimes such as kata read, and what crun has to know.
fn annotations(input: &Input<'_>) -> Map {
    let mut annotations = input.annotations.clone();
    add_subgroup(&mut annotations, cgroup_parent(input.sandbox));
    let of_container = input.config.metadata.as_ref();
    let of_pod = input.sandbox.metadata.as_ref();
    for (key, value) in [
        ("container-name", of_container.map_or("", |metadata| &metadata.name)),
        ("container-type", "container"),
        ("image-name", input.image_name),
        ("sandbox-id", input.sandbox_id),
        ("sandbox-name", of_pod.map_or("", |metadata| &metadata.name)),
        ("sandbox-namespace", of_pod.map_or("", |metadata| &metadata.namespace)),
        ("sandbox-uid", of_pod.map_or("", |metadata| &metadata.uid)),
    ] {
        annotations.insert(format!("io.kubernetes.cri.{key}"), value.to_owned());
    }
    annotations
}

/// With systemd's cgroups crun puts processes into a cgroup `container` below their scope, where nobody looks for them. An empty name: into
/// the scope itself, as runc does.
fn add_subgroup(annotations: &mut Map, cgroup_parent: &str) {
    if resources::is_slice(cgroup_parent) {
        annotations.insert("run.oci.systemd.subgroup".to_owned(), String::new());
    }
}

/// The path without empty, `.` and `..` parts, as Go's `filepath.Clean` has it. Absolute paths only.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Texts of the tables.
fn borrowed(texts: &[&'static str]) -> Vec<Cow<'static, str>> {
    texts.iter().map(|text| Cow::Borrowed(*text)).collect()
}

#[cfg(test)]
mod tests;
