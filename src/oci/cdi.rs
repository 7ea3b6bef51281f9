//! CDI, the Container Device Interface: edits of a container's spec that a device's vendor put on the node. PURE.
//! Follows `tags.cncf.io/container-device-interface` 1.0.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::runtime_spec::{Device, DeviceKind, Hook, IntelRdt, Mount, Spec};
use super::{Input, SpecError, clean, resources};
use crate::decode::typed;
use crate::decode::{Path, yaml};
use crate::limits::{
    CDI_DEVICES_MAX, CDI_SPEC_BYTES_MAX, CONTAINER_DEVICES_MAX, CONTAINER_MOUNTS_MAX, PROCESS_ENV_MAX,
};
use crate::proto::runtime::v1::ContainerConfig;

const FIELD: &str = "cdi_devices";
/// Annotations of containers name devices too, as before the CRI's field; their values are lists with commas.
const ANNOTATION: &str = "cdi.k8s.io/";

/// A specification of the node: JSON or YAML.
#[derive(Clone, Copy, Debug)]
pub struct CdiFile<'a> {
    /// Its path, for errors.
    pub path: &'a str,
    /// Its text.
    pub text: &'a [u8],
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiSpec {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    devices: Vec<CdiDevice>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiDevice {
    name: String,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    net_devices: Vec<NetDevice>,
    hooks: Vec<CdiHook>,
    mounts: Vec<CdiMount>,
    intel_rdt: Option<CdiRdt>,
    additional_gids: Vec<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceNode {
    path: String,
    host_path: String,
    r#type: String,
    major: u32,
    minor: u32,
    file_mode: Option<u32>,
    permissions: String,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetDevice {
    host_interface_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiHook {
    hook_name: String,
    path: String,
    args: Vec<String>,
    env: Vec<String>,
    timeout: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiMount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
    r#type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CdiRdt {
    #[serde(rename = "closID")]
    clos_id: String,
    l3_cache_schema: String,
    mem_bw_schema: String,
}

/// The devices that a container asks for, each once: by the CRI's field, then by its annotations.
fn asked(config: &ContainerConfig) -> Result<Vec<&str>, SpecError> {
    let by_annotation = config.annotations.iter().filter(|(key, _)| key.starts_with(ANNOTATION));
    let by_annotation = by_annotation.flat_map(|(_, value)| value.split(','));
    let mut seen = BTreeSet::new();
    let mut asked = Vec::new();
    for name in config.cdi_devices.iter().map(|device| &*device.name).chain(by_annotation) {
        if seen.insert(name) {
            asked.push(name);
            SpecError::at_most(FIELD, asked.len(), CDI_DEVICES_MAX)?;
        }
    }
    Ok(asked)
}

/// The container asks for devices by CDI.
pub(super) fn is_asked(config: &ContainerConfig) -> bool {
    !config.cdi_devices.is_empty() || config.annotations.keys().any(|key| key.starts_with(ANNOTATION))
}

/// Applies the edits of the devices that the container asks for: those for all devices of a file once, before those of its first
/// device. A file that cannot be read counts only when a device is not found.
pub(super) fn apply(spec: &mut Spec, input: &Input<'_>) -> Result<(), SpecError> {
    let asked = asked(input.config)?;
    if asked.is_empty() {
        return Ok(());
    }
    let mut files = Vec::new();
    let mut bad = Vec::new();
    for file in input.cdi {
        match parse(file) {
            Ok(parsed) => files.push(parsed),
            Err(error) => bad.push(error),
        }
    }
    // A later file takes the place of an earlier one, device by device.
    let mut places = BTreeMap::new();
    for (file, parsed) in files.iter().enumerate() {
        for (device, one) in parsed.devices.iter().enumerate() {
            places.insert(format!("{}={}", parsed.kind, one.name), (file, device));
        }
    }
    let mut begun = BTreeSet::new();
    for name in asked {
        let Some((file, device)) = places.get(name) else {
            let others = bad.first().map(|error| format!("; {error}")).unwrap_or_default();
            return Err(SpecError::invalid(
                FIELD,
                format!(
                    "no CDI specification of the node has the device {name:?}; see /etc/cdi and /var/run/cdi{others}"
                ),
            ));
        };
        if begun.insert(*file) {
            edit(spec, input, &files[*file].container_edits, name)?;
        }
        edit(spec, input, &files[*file].devices[*device].container_edits, name)?;
    }
    // As with the CRI's own mounts: none hides one below it.
    spec.mounts.sort_by_cached_key(|mount| clean(&mount.destination).matches('/').count());
    Ok(())
}

fn parse(file: &CdiFile<'_>) -> Result<CdiSpec, String> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", file.path);
    if file.text.len() > CDI_SPEC_BYTES_MAX {
        return Err(at(&format!("it has more than {CDI_SPEC_BYTES_MAX} bytes")));
    }
    let mut read = None;
    yaml::documents(file.text, |_, document| {
        read.get_or_insert(document);
    })
    .map_err(|error| at(&format!("line {}: {}", error.line, error.message)))?;
    let node = match read {
        Some(Ok(node)) => node,
        Some(Err(error)) => return Err(at(&format!("line {}: {}", error.line, error.message))),
        None => return Err(at(&"it is empty")),
    };
    let parsed: CdiSpec = typed::read_known(&node, Path::default()).map_err(|errors| {
        let first = errors.iter().next().map(ToString::to_string).unwrap_or_default();
        at(&first)
    })?;
    if !parsed.cdi_version.starts_with("0.") && !parsed.cdi_version.starts_with("1.") {
        return Err(at(&format!("cdiVersion {:?} is not known", parsed.cdi_version)));
    }
    if !parsed.kind.split_once('/').is_some_and(|(vendor, class)| !vendor.is_empty() && !class.is_empty()) {
        return Err(at(&format!("kind {:?} is not VENDOR/CLASS", parsed.kind)));
    }
    Ok(parsed)
}

fn edit(spec: &mut Spec, input: &Input<'_>, edits: &Edits, name: &str) -> Result<(), SpecError> {
    let invalid =
        |why: String| SpecError::invalid(FIELD, format!("the CDI specification of {name:?}: {why}"));
    for variable in &edits.env {
        let Some((key, _)) = variable.split_once('=') else {
            return Err(invalid(format!("env {variable:?} is not NAME=VALUE")));
        };
        let start = &variable[..=key.len()];
        match spec.process.env.iter_mut().find(|other| other.starts_with(start)) {
            Some(other) => other.clone_from(variable),
            None => spec.process.env.push(variable.clone()),
        }
    }
    SpecError::at_most("envs", spec.process.env.len(), PROCESS_ENV_MAX)?;
    for node in &edits.device_nodes {
        add_device(spec, input, node, &invalid)?;
    }
    if let Some(interface) = edits.net_devices.first() {
        let name = &interface.host_interface_name;
        return Err(SpecError::unsupported(
            FIELD,
            format!("network device {name:?}: the OCI runtime has none of these"),
        ));
    }
    for mount in &edits.mounts {
        if !mount.container_path.starts_with('/') || mount.host_path.is_empty() {
            return Err(invalid(format!("mount {:?} has no absolute paths", mount.container_path)));
        }
        spec.mounts.retain(|other| other.destination != mount.container_path);
        spec.mounts.push(Mount {
            destination: mount.container_path.clone(),
            kind: mount.r#type.clone().into(),
            source: mount.host_path.clone(),
            options: mount.options.iter().map(|option| option.clone().into()).collect(),
            ..Mount::default()
        });
    }
    SpecError::at_most("mounts", spec.mounts.len(), CONTAINER_MOUNTS_MAX)?;
    for hook in &edits.hooks {
        let hooks = match &*hook.hook_name {
            "prestart" => &mut spec.hooks.prestart,
            "createRuntime" => &mut spec.hooks.create_runtime,
            "createContainer" => &mut spec.hooks.create_container,
            "startContainer" => &mut spec.hooks.start_container,
            "poststart" => &mut spec.hooks.poststart,
            "poststop" => &mut spec.hooks.poststop,
            other => return Err(invalid(format!("there is no hook {other:?}"))),
        };
        if !hook.path.starts_with('/') {
            return Err(invalid(format!("the hook's path {:?} is not absolute", hook.path)));
        }
        hooks.push(Hook {
            path: hook.path.clone(),
            args: hook.args.clone(),
            env: hook.env.clone(),
            timeout: hook.timeout,
        });
    }
    if let Some(rdt) = &edits.intel_rdt {
        spec.linux.intel_rdt = Some(IntelRdt {
            clos_id: rdt.clos_id.clone(),
            l3_cache_schema: rdt.l3_cache_schema.clone(),
            mem_bw_schema: rdt.mem_bw_schema.clone(),
        });
    }
    for gid in edits.additional_gids.iter().filter(|gid| **gid != 0) {
        if !spec.process.user.additional_gids.contains(gid) {
            spec.process.user.additional_gids.push(*gid);
        }
    }
    Ok(())
}

/// What the node of the specification does not say is taken from the machine's.
fn add_device(
    spec: &mut Spec,
    input: &Input<'_>,
    node: &DeviceNode,
    invalid: &dyn Fn(String) -> SpecError,
) -> Result<(), SpecError> {
    let host_path = if node.host_path.is_empty() { &node.path } else { &node.host_path };
    if !node.path.starts_with('/') {
        return Err(invalid(format!("device {:?} is not an absolute path", node.path)));
    }
    let kind = match &*node.r#type {
        "b" => Some(DeviceKind::Block),
        "c" | "u" => Some(DeviceKind::Character),
        "p" => Some(DeviceKind::Fifo),
        "" => None,
        other => return Err(invalid(format!("device type {other:?} is not b, c, u or p"))),
    };
    let needs_machine = kind.is_none() || (node.major == 0 && kind != Some(DeviceKind::Fifo));
    let found = input.devices.iter().find(|found| found.path == clean(host_path));
    let mut device = match (found, kind) {
        (Some(found), _) if needs_machine => {
            if kind.is_some_and(|kind| kind != found.kind) {
                return Err(invalid(format!("{host_path} is a device of another type")));
            }
            Device { path: node.path.clone(), ..found.clone() }
        }
        (_, Some(kind)) if !needs_machine => Device {
            kind,
            path: node.path.clone(),
            major: node.major,
            minor: node.minor,
            file_mode: found.and_then(|found| found.file_mode),
            uid: None,
            gid: None,
        },
        (Some(_) | None, _) => return Err(invalid(format!("{host_path} is no device of this machine"))),
    };
    let own_id = |id: u32| Some(id).filter(|id| *id > 0);
    device.file_mode = node.file_mode.or(device.file_mode);
    // The device is the process's where the specification does not say whose, as the CDI library has it.
    device.uid = node.uid.or_else(|| own_id(spec.process.user.uid)).or(device.uid);
    device.gid = node.gid.or_else(|| own_id(spec.process.user.gid)).or(device.gid);
    let access = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
    if let Some(rule) = resources::rule(&device, access) {
        // All is allowed to a privileged container already.
        if spec.linux.resources.devices.first().is_some_and(|first| !first.allow) {
            spec.linux.resources.devices.push(rule);
        }
    }
    spec.linux.devices.retain(|other| other.path != device.path);
    spec.linux.devices.push(device);
    SpecError::at_most("devices", spec.linux.devices.len(), CONTAINER_DEVICES_MAX)
}
