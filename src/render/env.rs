//! A container's environment (`makeEnvironmentVariables`). PURE: what stands outside the pod comes through
//! [`EnvSources`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector, Secret, Service,
};

use super::env_file::env_file_value;
use super::expand::expand;
use super::quantity::Quantity;
use super::resources::{Amounts, amount, pod_level_limits};
use super::services::service_variables;
use super::{ContainerInput, NodeSettings};
use crate::text::{qualified_name_error, quoted};

/// Variables by name, in the order of their names. A value may come from a Secret and need not be UTF-8.
pub type Environment = BTreeMap<String, Vec<u8>>;

/// Where environment variables come from besides the pod. A node without an API server has [`NoSources`].
///
/// An `Err` is the message shown in the status, in the kubelet's words.
pub trait EnvSources {
    /// The ConfigMap; `Ok(None)` when it does not exist.
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Rc<ConfigMap>>, String>;
    /// The Secret; `Ok(None)` when it does not exist.
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<Rc<Secret>>, String>;
    /// All services the node knows.
    fn services(&self) -> Rc<[Service]>;
    /// The text of `path` in the pod's volume (`fileKeyRef`); `Ok(None)` when the file does not exist.
    fn volume_file(&self, volume: &str, path: &str) -> Result<Option<Rc<str>>, String>;
}

/// No ConfigMaps, Secrets, services or files of variables.
///
/// Deviation: a kubelet without an API server fails on optional references too; here an optional one is left out,
/// as it is when the API server says that it does not exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSources;

impl EnvSources for NoSources {
    fn config_map(&self, _: &str, _: &str) -> Result<Option<Rc<ConfigMap>>, String> {
        Ok(None)
    }

    fn secret(&self, _: &str, _: &str) -> Result<Option<Rc<Secret>>, String> {
        Ok(None)
    }

    fn services(&self) -> Rc<[Service]> {
        Rc::from([])
    }

    fn volume_file(&self, _: &str, _: &str) -> Result<Option<Rc<str>>, String> {
        Ok(None)
    }
}

/// The container's environment: `envFrom`, then `env` in spec order over it, then the services' variables where
/// nothing stands yet. `$(NAME)` in a value means what was declared before it.
///
/// Sorted by name: the kubelet leaves the order to chance.
pub fn environment(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<Environment, String> {
    let Some(links) = input.pod.spec().enable_service_links else {
        return Err("nil pod.spec.enableServiceLinks encountered, cannot construct envvars".into());
    };
    let services = service_variables(&input.env.services(), &input.pod.key.namespace, links);
    let mut found = Environment::new();
    let namespace = &*input.pod.key.namespace;
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(of) = &from.config_map_ref {
            let Some(map) = config_map(input, &of.name, of.optional)? else { continue };
            for (key, value) in map.data.iter().flatten() {
                found.insert(format!("{prefix}{key}"), value.clone().into_bytes());
            }
        } else if let Some(of) = &from.secret_ref {
            let Some(secret) = secret(input, &of.name, of.optional)? else { continue };
            for (key, value) in secret.data.iter().flatten() {
                found.insert(format!("{prefix}{key}"), value.0.clone());
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (variable.value.as_deref().filter(|value| !value.is_empty()), &variable.value_from)
        {
            (Some(value), _) => {
                let lookup = |name: &[u8]| {
                    let name = std::str::from_utf8(name).ok()?;
                    found.get(name).map(Vec::as_slice).or_else(|| services.get(name).map(String::as_bytes))
                };
                expand(value.as_bytes(), lookup)
            }
            (None, Some(source)) => match sourced(node, input, container, source, namespace)? {
                Some(value) => value,
                // Optional and not there: an earlier variable of this name stays.
                None => continue,
            },
            (None, None) => Vec::new(),
        };
        found.insert(variable.name.clone(), value);
    }
    for (name, value) in services {
        found.entry(name).or_insert_with(|| value.into_bytes());
    }
    Ok(found)
}

fn config_map(
    input: &ContainerInput<'_>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Rc<ConfigMap>>, String> {
    match input.env.config_map(&input.pod.key.namespace, name)? {
        None if optional != Some(true) => Err(format!("configmaps {} not found", quoted(name))),
        found => Ok(found),
    }
}

fn secret(
    input: &ContainerInput<'_>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Rc<Secret>>, String> {
    match input.env.secret(&input.pod.key.namespace, name)? {
        None if optional != Some(true) => Err(format!("secrets {} not found", quoted(name))),
        found => Ok(found),
    }
}

/// A `valueFrom`; `None` when it is optional and not there.
fn sourced(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    container: &Container,
    source: &EnvVarSource,
    namespace: &str,
) -> Result<Option<Vec<u8>>, String> {
    if let Some(field) = &source.field_ref {
        return pod_field(node, input, field).map(|value| Some(value.into_bytes()));
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_field(node, input, container, field).map(|value| Some(value.into_bytes()));
    }
    if let Some(of) = &source.config_map_key_ref {
        let Some(map) = config_map(input, &of.name, of.optional)? else { return Ok(None) };
        return match map.data.as_ref().and_then(|data| data.get(&of.key)) {
            Some(value) => Ok(Some(value.clone().into_bytes())),
            None if of.optional == Some(true) => Ok(None),
            None => Err(format!("couldn't find key {} in ConfigMap {namespace}/{}", of.key, of.name)),
        };
    }
    if let Some(of) = &source.secret_key_ref {
        let Some(secret) = secret(input, &of.name, of.optional)? else { return Ok(None) };
        return match secret.data.as_ref().and_then(|data| data.get(&of.key)) {
            Some(value) => Ok(Some(value.0.clone())),
            None if of.optional == Some(true) => Ok(None),
            None => Err(format!("couldn't find key {} in Secret {namespace}/{}", of.key, of.name)),
        };
    }
    if let Some(of) = &source.file_key_ref {
        let text = input.env.volume_file(&of.volume_name, &of.path)?;
        // A file that is missing or broken is an error even for an optional key, as in the kubelet.
        let text = text.ok_or("couldn't parse env file")?;
        return match env_file_value(&text, &of.key).map_err(|_| "couldn't parse env file")? {
            Some(value) => Ok(Some(value.into_bytes())),
            None if of.optional == Some(true) => Ok(None),
            None => Err(format!(
                "environment variable key {} not found in file {}",
                quoted(&of.key),
                quoted(&of.path)
            )),
        };
    }
    Ok(Some(Vec::new()))
}

/// `fieldRef` (`podFieldSelectorRuntimeValue`).
fn pod_field(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    field: &ObjectFieldSelector,
) -> Result<String, String> {
    // Absent means v1: the API's defaulting says so.
    if let Some(version) = field.api_version.as_deref().filter(|version| *version != "v1") {
        return Err(format!("unsupported pod version: {version}"));
    }
    let (path, pod) = (field.field_path.as_str(), input.pod);
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    if let Some((of, key)) =
        path.strip_suffix("']").and_then(|path| path.split_once("['")).filter(|(of, _)| !of.is_empty())
    {
        let metadata = &pod.pod.metadata;
        let (map, invalid) = match of {
            "metadata.annotations" => (&metadata.annotations, qualified_name_error(&key.to_lowercase())),
            "metadata.labels" => (&metadata.labels, qualified_name_error(key)),
            _ => return Err(format!("field label does not support subscript: {path}")),
        };
        if let Some(error) = invalid {
            return Err(format!("invalid key subscript in {path}: {error}"));
        }
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    match path {
        "metadata.name" => Ok(pod.key.name.to_string()),
        "metadata.namespace" => Ok(pod.key.namespace.to_string()),
        "metadata.uid" => Ok(pod.key.uid.to_string()),
        "metadata.annotations" => Ok(format_map(pod.pod.metadata.annotations.as_ref())),
        "metadata.labels" => Ok(format_map(pod.pod.metadata.labels.as_ref())),
        "spec.nodeName" | "spec.host" => Ok(text(&pod.spec().node_name)),
        "spec.serviceAccountName" => Ok(text(&pod.spec().service_account_name)),
        "status.hostIP" => node
            .node_ips
            .first()
            .map(ToString::to_string)
            .ok_or_else(|| "host IP unknown; known addresses: []".to_owned()),
        "status.hostIPs" => Ok(node.node_ips.join(",")),
        "status.podIP" => Ok(sorted_pod_ips(node, input.pod_ips).into_iter().next().unwrap_or_else(|| {
            // Nothing to sort: what the runtime said, if anything.
            input.pod_ips.first().map(ToString::to_string).unwrap_or_default()
        })),
        "status.podIPs" => Ok(sorted_pod_ips(node, input.pod_ips).join(",")),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            Err(format!("unsupported fieldPath: {path}"))
        }
        _ => Err(format!("field label not supported: {path}")),
    }
}

/// `key="value"` lines, sorted (`fieldpath.FormatMap`).
pub(super) fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// One address of each family, the node's family first (`sortPodIPs`).
pub fn sorted_pod_ips(node: &NodeSettings, pod_ips: &[Box<str>]) -> Vec<String> {
    let addresses: Vec<IpAddr> = pod_ips.iter().filter_map(|ip| address(ip)).collect();
    let v6_first = node.node_ips.first().and_then(|ip| address(ip)).is_some_and(|ip| ip.is_ipv6());
    [v6_first, !v6_first]
        .into_iter()
        .filter_map(|v6| addresses.iter().find(|ip| ip.is_ipv6() == v6))
        .map(IpAddr::to_string)
        .collect()
}

/// An address; IPv4 written as IPv6 is IPv4, as for Go.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// `resourceFieldRef` (`containerResourceRuntimeValue`). A limit that is not set is the pod's, else the node's.
fn resource_field(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    container: &Container,
    field: &ResourceFieldSelector,
) -> Result<String, String> {
    let name = field.container_name.as_deref().unwrap_or_default();
    // Only app containers and the container itself get the node's limits (`defaultPodLimitsForDownwardAPI`).
    let (of, defaulted) = if name.is_empty() {
        (container, true)
    } else if let Some(app) = input.pod.containers().iter().find(|app| app.name == name) {
        (app, true)
    } else if let Some(init) = input.pod.init_containers().iter().find(|init| init.name == name) {
        (init, false)
    } else {
        return Err(format!("container {name} not found"));
    };
    let divisor = match &field.divisor {
        Some(divisor) => Quantity::parse(&divisor.0).map_err(|error| error.to_string())?,
        None => Quantity::ZERO,
    };
    let divisor = if divisor.is_zero() { Quantity::from_units(1) } else { divisor };
    let resources = of.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let unsupported = || format!("unsupported container resource : {}", field.resource);
    let (which, resource) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let quantity = match (which, resource) {
        ("limits", "cpu" | "memory" | "ephemeral-storage") => {
            let own = amount(limits, resource);
            if own.is_zero() && defaulted { default_limit(node, input, resource, limits) } else { own }
        }
        ("requests", "cpu" | "memory" | "ephemeral-storage") => amount(requests, resource),
        ("limits", _) if resource.starts_with("hugepages-") => amount(limits, resource),
        ("requests", _) if resource.starts_with("hugepages-") => amount(requests, resource),
        _ => return Err(unsupported()),
    };
    let (quantity, divisor) = if resource == "cpu" {
        (quantity.milli_value(), divisor.milli_value())
    } else {
        (quantity.value(), divisor.value())
    };
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the kubelet divides in floating point, and its answer is what containers know"
    )]
    let share = (quantity as f64 / divisor as f64).ceil() as i64;
    Ok(share.to_string())
}

/// The node's allocatable, or the pod's own limit (`MergeContainerResourceLimits`).
fn default_limit(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    resource: &str,
    own: Option<&Amounts>,
) -> Quantity {
    let allocatable = match resource {
        "cpu" => Quantity::from_millis(node.cpu_capacity_millis),
        "memory" => Quantity::from_units(node.memory_capacity_bytes),
        _ if node.ephemeral_storage_bytes == 0 => amount(own, resource),
        _ => return Quantity::from_units(node.ephemeral_storage_bytes),
    };
    let of_pod = if resource == "ephemeral-storage" {
        Quantity::ZERO
    } else {
        amount(pod_level_limits(&input.pod.pod), resource)
    };
    if of_pod.is_zero() { allocatable } else { of_pod }
}
