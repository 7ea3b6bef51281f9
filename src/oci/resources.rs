//! Cgroups: their path, the limits of a container, its devices. PURE.

use super::runtime_spec::{Cpu, Device, DeviceKind, DeviceRule, HugepageLimit, Map, Memory, Pids, Resources};
use super::{Input, NodeFacts, SpecError, clean};
use crate::limits::CONTAINER_DEVICES_MAX;
use crate::proto::runtime::v1::{ContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext};
use crate::render::CgroupVersion;

/// All that can be done with a device: read, write, mknod.
const RWM: &str = "rwm";

/// Before the id in the name of a systemd scope (`smolet-ID.scope`), and above containers without a pod's cgroup.
const PREFIX: &str = "smolet";

/// `linux.cgroupsPath`: below the pod's cgroup; with a parent that is a slice in the form `SLICE:PREFIX:NAME` that OCI runtimes
/// take with their systemd driver (`getCgroupsPath`).
pub fn cgroups_path(parent: &str, id: &str) -> String {
    let parent = parent.trim_end_matches('/');
    if is_slice(parent) {
        format!("{}:{PREFIX}:{id}", base_of(parent))
    } else if parent.is_empty() {
        format!("/{PREFIX}/{id}")
    } else {
        clean(&format!("{parent}/{id}"))
    }
}

/// Whether a pod's cgroup is a slice of systemd's, and those below it are made by systemd.
pub(super) fn is_slice(parent: &str) -> bool {
    base_of(parent.trim_end_matches('/')).strip_suffix(".slice").is_some()
}

fn base_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// `linux.resources` of a container; devices are added by [`devices`].
pub(super) fn of_container(config: &ContainerConfig, node: &NodeFacts) -> Result<Resources, SpecError> {
    let asked = config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let mut resources = match asked {
        Some(asked) => update(asked, node)?,
        None => Resources::default(),
    };
    if let Some(limit) = node.pids_limit.filter(|limit| *limit > 0) {
        resources.pids = Some(Pids { limit });
    }
    Ok(resources)
}

/// What is sent to `runc update --resources -` for `UpdateContainerResources`: what is given, and nothing else, as 0 and empty
/// mean unchanged (`WithResources`).
///
/// # Errors
/// A number that no limit can be; a kind of limit that the machine has not.
pub fn update(asked: &LinuxContainerResources, node: &NodeFacts) -> Result<Resources, SpecError> {
    let given = |value: i64| Some(value).filter(|value| *value != 0);
    let positive = |field: &'static str, value: i64| match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(SpecError::invalid(field, format!("{value} is negative"))),
    };
    let has_swap = match node.cgroup {
        CgroupVersion::V1 { swap_controller } | CgroupVersion::V2 { swap_controller, .. } => swap_controller,
    };
    let limit = given(asked.memory_limit_in_bytes);
    // Without a limit of its own, swap is what the memory's limit leaves: none.
    let swap = given(asked.memory_swap_limit_in_bytes).or(limit).filter(|_| has_swap);
    // As with containerd (`tolerate_missing_hugetlb_controller`): the kubelet names every page size, those without a limit too.
    let hugepage_limits = asked.hugepage_limits.iter().filter(|_| node.hugetlb);
    if matches!(node.cgroup, CgroupVersion::V1 { .. }) && !asked.unified.is_empty() {
        return Err(SpecError::unsupported(
            "linux.resources.unified",
            "this machine has cgroup v1; start it with v2",
        ));
    }
    Ok(Resources {
        devices: Vec::new(),
        memory: Memory { limit, swap },
        cpu: Cpu {
            shares: positive("linux.resources.cpu_shares", asked.cpu_shares)?,
            quota: given(asked.cpu_quota),
            period: positive("linux.resources.cpu_period", asked.cpu_period)?,
            cpus: asked.cpuset_cpus.clone(),
            mems: asked.cpuset_mems.clone(),
        },
        pids: None,
        hugepage_limits: hugepage_limits
            .map(|limit| HugepageLimit { page_size: limit.page_size.clone(), limit: limit.limit })
            .collect(),
        unified: asked.unified.iter().map(|(k, v)| (k.clone(), v.clone())).collect::<Map>(),
    })
}

/// The container's device nodes; the rules for them go to the resources. The standard ones (`/dev/null` ...) are the OCI
/// runtime's own. A privileged container has all of the machine and every rule.
pub(super) fn devices(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
    resources: &mut Resources,
) -> Result<Vec<Device>, SpecError> {
    let mut devices: Vec<Device> = Vec::new();
    let everything =
        |allow| DeviceRule { allow, kind: None, major: None, minor: None, access: RWM.to_owned() };
    resources.devices.push(everything(false));
    for asked in &input.config.devices {
        let access = &asked.permissions;
        if access.is_empty() || !access.bytes().all(|c| RWM.as_bytes().contains(&c)) {
            return Err(SpecError::invalid(
                "devices",
                format!("permissions {access:?} are not of r, w and m"),
            ));
        }
        let host_path = clean(&asked.host_path);
        let container_path =
            clean(if asked.container_path.is_empty() { &host_path } else { &asked.container_path });
        let mut is_found = false;
        for found in input.devices {
            let Some(below) = found.path.strip_prefix(&*host_path) else { continue };
            if !(below.is_empty() || below.starts_with('/')) || (!below.is_empty() && is_passed_over(found)) {
                continue;
            }
            is_found = true;
            let device = Device { path: format!("{container_path}{below}"), ..found.clone() };
            resources.devices.extend(rule(&device, access));
            if !devices.iter().any(|other| other.path == device.path) {
                devices.push(device);
            }
        }
        if !is_found {
            return Err(SpecError::invalid("devices", format!("{host_path} is no device of this machine")));
        }
        SpecError::at_most("devices", devices.len(), CONTAINER_DEVICES_MAX)?;
    }
    if context.privileged {
        resources.devices = vec![everything(true)];
        let paths: std::collections::BTreeSet<String> =
            devices.iter().map(|device| device.path.clone()).collect();
        let of_machine =
            input.devices.iter().filter(|found| found.path.starts_with("/dev/") && !is_passed_over(found));
        devices.extend(of_machine.filter(|found| !paths.contains(&found.path)).cloned());
        SpecError::at_most("devices", devices.len(), CONTAINER_DEVICES_MAX)?;
    }
    Ok(devices)
}

/// A named pipe needs no rule.
pub(super) fn rule(device: &Device, access: &str) -> Option<DeviceRule> {
    (device.kind != DeviceKind::Fifo).then(|| DeviceRule {
        allow: true,
        kind: Some(device.kind),
        major: Some(device.major),
        minor: Some(device.minor),
        access: access.to_owned(),
    })
}

/// Nodes below a directory that no container gets with it: pipes, terminals of others, the console (`getDevices`).
fn is_passed_over(device: &Device) -> bool {
    let mut parts = device.path.split('/').collect::<Vec<_>>();
    let name = parts.pop().unwrap_or_default();
    let skipped = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"];
    device.kind == DeviceKind::Fifo || name == "console" || parts.iter().any(|part| skipped.contains(part))
}
