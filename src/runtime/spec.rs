//! The OCI runtime-spec of a container on this machine: `oci` (PURE) decides, what it needs to know is read here. I/O, blocking.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::checkpoint;
use super::context::{failed, invalid};
use super::host;
use super::images::FoundImage;
use super::namespaces::{IPC, NET, SHM, UTS};
use super::pod_config;
use super::sandbox::{HOSTNAME, HOSTS, RESOLV_CONF};
use super::stats;
use super::users::{self, USER, Users};
use crate::cri::{RuntimeError, RuntimeResult};
use crate::filesystem::{read_linked, read_start};
use crate::limits::{HOSTS_FILE_BYTES_MAX, SECCOMP_PROFILE_BYTES_MAX};
use crate::oci::{
    self, CdiFile, ImageDocument, Input, NodeFacts, SandboxFiles, SandboxInput, SandboxNamespaces,
    SelinuxLabels, SpecError, Volume,
};
use crate::proto::runtime::v1 as cri;
use crate::proto::runtime::v1::security_profile::ProfileType;

/// What a spec is made of.
pub(super) struct Asked {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) bundle: PathBuf,
    /// The sandbox's namespaces.
    pub(super) sandbox_run: PathBuf,
    /// The sandbox's files.
    pub(super) sandbox_dir: PathBuf,
    pub(super) config: cri::ContainerConfig,
    pub(super) sandbox_config: cri::PodSandboxConfig,
    pub(super) image: FoundImage,
    pub(super) rootfs: PathBuf,
    /// The directories of the image's volumes.
    pub(super) volumes: Vec<Volume>,
    /// The first process of the pod's PID namespace, when containers share it.
    pub(super) pod_pid: Option<u32>,
    /// The first process of the container whose PID namespace it joins.
    pub(super) target: Option<u32>,
    pub(super) node: Arc<NodeFacts>,
    pub(super) cgroup_mounts: PathBuf,
    /// The `AppArmor` profiles that are loaded; `None`: the kernel has it not enabled.
    pub(super) apparmor: Option<String>,
    /// The container's `SELinux` labels.
    pub(super) selinux: Option<SelinuxLabels>,
}

/// A spec, and what of it the container's status and monitor need.
pub(super) struct Made {
    pub(super) json: Vec<u8>,
    pub(super) uid: i64,
    pub(super) gid: i64,
    pub(super) groups: Vec<i64>,
    /// `linux.cgroupsPath`.
    pub(super) cgroup: String,
    pub(super) stop_signal: i32,
    /// The file that counts its processes that were killed for want of memory.
    pub(super) oom_events: Option<PathBuf>,
    /// Sources of its mounts that get its `SELinux` label.
    pub(super) relabelled: Vec<String>,
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: SpecError) -> RuntimeError {
    invalid(error.to_string())
}

/// Paths of the volumes that the image declares, but for those that a mount takes the place of.
///
/// # Errors
/// The image's configuration is refused.
pub(super) fn volume_paths(config: &cri::ContainerConfig, image: &[u8]) -> RuntimeResult<Vec<String>> {
    let document = ImageDocument::parse(image).map_err(refused)?;
    Ok(oci::image_volume_paths(config, &document.config))
}

/// Makes the spec.
///
/// # Errors
/// A field is refused; a file of the machine or of the image cannot be read.
pub(super) fn make(asked: &Asked) -> RuntimeResult<Made> {
    let mut config = asked.config.clone();
    let document = ImageDocument::parse(&asked.image.config).map_err(refused)?;
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let seccomp_profile =
        context.and_then(|context| context.seccomp.as_ref()).map_or(Ok(None), seccomp_of)?;
    let devices = oci::find_devices(&mut config).map_err(refused)?;
    let cdi = if has_cdi_devices(&config) { host::cdi_files() } else { Vec::new() };
    let cdi: Vec<CdiFile<'_>> = cdi.iter().map(|(path, text)| CdiFile { path, text }).collect();
    let database = |name: &str| {
        let read = host::file_of_rootfs(&asked.rootfs, name);
        read.map_err(|error| failed(format!("/{name} of the image: {error}")))
    };
    let (passwd, group) = (database("etc/passwd")?, database("etc/group")?);
    let mut node = (*asked.node).clone();
    if config.mounts.iter().any(|mount| mount.propagation != 0) {
        let mountinfo = NodeFacts::read_mountinfo();
        node.mountinfo = mountinfo.map_err(|error| failed(format!("/proc/self/mountinfo: {error}")))?;
    }
    let hosts = hosts_of(asked, &config);
    let hosts = hosts.map_err(|error| failed(format!("/etc/hosts of the pod: {error}")))?;
    let input = Input {
        id: &asked.id,
        sandbox_id: &asked.sandbox,
        config: &config,
        sandbox: &asked.sandbox_config,
        image: &document.config,
        image_name: &asked.image.name,
        rootfs: &asked.rootfs.display().to_string(),
        passwd: &passwd,
        group: &group,
        namespaces: &namespaces(asked),
        files: &files(asked, hosts),
        volumes: &asked.volumes,
        seccomp_profile: seccomp_profile.as_deref(),
        selinux: asked.selinux.as_ref(),
        devices: &devices,
        cdi: &cdi,
        apparmor: asked.apparmor.as_deref(),
        annotations: &checkpoint::annotations(&asked.bundle),
        node: &node,
    };
    let spec = oci::spec(&input).map_err(refused)?;
    let user = &spec.process.user;
    let cgroup = spec.linux.cgroups_path.clone();
    Ok(Made {
        uid: user.uid.into(),
        gid: user.gid.into(),
        groups: user.additional_gids.iter().map(|gid| i64::from(*gid)).collect(),
        stop_signal: oci::stop_signal(&config, &document.config),
        oom_events: Some(oom_events(&asked.cgroup_mounts, &cgroup)),
        relabelled: asked.selinux.as_ref().map(|_| oci::relabelled(&input)).unwrap_or_default(),
        json: spec.to_json().map_err(refused)?,
        cgroup,
    })
}

fn seccomp_of(profile: &cri::SecurityProfile) -> RuntimeResult<Option<Vec<u8>>> {
    if profile.profile_type != i32::from(ProfileType::Localhost) {
        return Ok(None);
    }
    // As the kubelet names it, and as its older annotation does.
    let path = profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref);
    let path = Path::new(path);
    let text = read_linked(path, SECCOMP_PROFILE_BYTES_MAX);
    text.map(Some).map_err(|error| failed(format!("the seccomp profile {}: {error}", path.display())))
}

fn namespaces(asked: &Asked) -> SandboxNamespaces {
    let of = pod_config::namespaces(&asked.sandbox_config);
    let path = |name: &str| Some(asked.sandbox_run.join(name).display().to_string());
    let pid = |pid: u32| format!("/proc/{pid}/ns/pid");
    SandboxNamespaces {
        network: if of.host_network { None } else { path(NET) },
        ipc: if of.host_ipc { None } else { path(IPC) },
        uts: if of.host_network { None } else { path(UTS) },
        user: has_users(&asked.sandbox_config).then(|| path(USER)).flatten(),
        pid: asked.pod_pid.map(pid),
        target_pid: asked.target.map(pid),
    }
}

fn has_users(sandbox: &cri::PodSandboxConfig) -> bool {
    oci::user_mappings(sandbox).is_ok_and(|mappings| mappings.is_some())
}

fn files(asked: &Asked, hosts: Option<String>) -> SandboxFiles {
    let of = pod_config::namespaces(&asked.sandbox_config);
    let path = |name: &str| Some(asked.sandbox_dir.join(name).display().to_string());
    SandboxFiles {
        hostname: path(HOSTNAME),
        hosts,
        resolv_conf: path(RESOLV_CONF),
        shm: Some(if of.host_ipc {
            "/dev/shm".to_owned()
        } else {
            asked.sandbox_run.join(SHM).display().to_string()
        }),
    }
}

/// The kubelet brings a hosts file of its own. Other clients get the node's, as with containerd.
fn hosts_of(asked: &Asked, config: &cri::ContainerConfig) -> io::Result<Option<String>> {
    if config.mounts.iter().any(|mount| mount.container_path == "/etc/hosts") {
        return Ok(None);
    }
    let path = asked.sandbox_dir.join(HOSTS);
    if !path.exists() {
        let node = read_start(Path::new("/etc/hosts"), HOSTS_FILE_BYTES_MAX).unwrap_or_default();
        super::namespaces::write_mounted(&path, &String::from_utf8_lossy(&node))?;
        let users = Users::of(&asked.sandbox_config).ok().flatten();
        users.map_or(Ok(()), |users| users::give(&path, users.root()))?;
    }
    Ok(Some(path.display().to_string()))
}

fn oom_events(mounts: &Path, cgroups_path: &str) -> PathBuf {
    let dir = stats::controller_dir(mounts, "memory", &stats::cgroup_dir(cgroups_path));
    dir.join(if stats::is_unified(mounts) { "memory.events" } else { "memory.oom_control" })
}

/// The OCI runtime's resources of an update, as JSON.
///
/// # Errors
/// A value is refused.
pub(super) fn update(asked: &cri::LinuxContainerResources, node: &NodeFacts) -> RuntimeResult<Vec<u8>> {
    let resources = oci::update(asked, node).map_err(refused)?;
    serde_json::to_vec(&resources).map_err(|error| failed(error.to_string()))
}

/// Whether a container asks for devices of CDI. PURE.
pub(super) fn has_cdi_devices(config: &cri::ContainerConfig) -> bool {
    !config.cdi_devices.is_empty() || config.annotations.keys().any(|key| key.starts_with("cdi.k8s.io/"))
}

/// A runtime-spec with what [`update`] gives in its resources. PURE.
///
/// # Errors
/// One of the two is no JSON.
pub(super) fn with_resources(spec: &[u8], resources: &[u8]) -> serde_json::Result<Vec<u8>> {
    let mut spec: Value = serde_json::from_slice(spec)?;
    merge(&mut spec["linux"]["resources"], serde_json::from_slice(resources)?);
    serde_json::to_vec(&spec)
}

/// Puts the members of objects in each other's place, everything else as a whole.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// The bundle's `config.json` of the process that holds a pod's PID namespace.
///
/// # Errors
/// A field is refused.
pub(super) fn of_pause(
    (id, config): (&str, &cri::PodSandboxConfig),
    (rootfs, program): (&Path, &Path),
    run_dir: &Path,
    selinux: Option<&SelinuxLabels>,
    node: &NodeFacts,
) -> RuntimeResult<Vec<u8>> {
    let of = pod_config::namespaces(config);
    let path = |name: &str| Some(run_dir.join(name).display().to_string());
    let namespaces = SandboxNamespaces {
        network: if of.host_network { None } else { path(NET) },
        ipc: if of.host_ipc { None } else { path(IPC) },
        uts: if of.host_network { None } else { path(UTS) },
        user: has_users(config).then(|| path(USER)).flatten(),
        ..SandboxNamespaces::default()
    };
    // What a program that is not linked statically needs; released binaries are.
    let is_there = |path: &&str| Path::new(path).is_dir();
    let libraries: Vec<String> = ["/lib", "/lib64", "/usr/lib"]
        .iter()
        .filter(|path| is_there(path))
        .map(|path| (*path).to_owned())
        .collect();
    let libraries = if cfg!(target_env = "musl") { Vec::new() } else { libraries };
    let input = SandboxInput {
        id,
        sandbox_id: id,
        config,
        rootfs: &rootfs.display().to_string(),
        pause: &program.display().to_string(),
        libraries: &libraries,
        namespaces: &namespaces,
        selinux,
        node,
    };
    oci::sandbox_spec(&input).and_then(|spec| spec.to_json()).map_err(refused)
}
