//! The downward API: a pod's own fields for its containers, in environment variables and in files. PURE.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, ResourceFieldSelector};

use super::resources::{Amounts, amount, pod_level_limits};
use super::{ContainerInput, NodeSettings};
use crate::model::DesiredPod;
use crate::model::quantity::Quantity;
use crate::text::{qualified_name_error, quoted, to_lower};

/// `fieldRef` (`podFieldSelectorRuntimeValue`).
pub(super) fn pod_field(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    field: &ObjectFieldSelector,
) -> Result<String, String> {
    // Absent means v1, the API's default.
    if let Some(version) = field.api_version.as_deref().filter(|version| *version != "v1") {
        return Err(format!("unsupported pod version: {version}"));
    }
    let (path, pod) = (field.field_path.as_str(), input.pod);
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    if let Some(value) = metadata_field(pod, path) {
        return value;
    }
    match path {
        "spec.nodeName" | "spec.host" => Ok(text(&pod.spec().node_name)),
        "spec.serviceAccountName" => Ok(text(&pod.spec().service_account_name)),
        "status.hostIP" => node
            .node_ips
            .first()
            .map(ToString::to_string)
            .ok_or_else(|| "host IP unknown; known addresses: []".to_owned()),
        "status.hostIPs" => Ok(node.node_ips.join(",")),
        "status.podIP" => Ok(sorted_pod_ips(node, input.pod_ips).into_iter().next().unwrap_or_else(|| {
            // Unsorted: the runtime's first address, if there is one.
            input.pod_ips.first().map(ToString::to_string).unwrap_or_default()
        })),
        "status.podIPs" => Ok(sorted_pod_ips(node, input.pod_ips).join(",")),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            Err(format!("unsupported fieldPath: {path}"))
        }
        _ if subscript(path).is_some() => Err(format!("field label does not support subscript: {path}")),
        _ => Err(format!("field label not supported: {path}")),
    }
}

/// A field for a file in a downwardAPI volume (`fieldpath.ExtractFieldPathAsString`).
pub fn file_field(pod: &DesiredPod, path: &str) -> Result<String, String> {
    metadata_field(pod, path).unwrap_or_else(|| {
        Err(match subscript(path) {
            Some(_) => format!("fieldPath {} does not support subscript", quoted(path)),
            None => format!("unsupported fieldPath: {path}"),
        })
    })
}

/// `metadata.labels['NAME']` as `metadata.labels` and `NAME` (`SplitMaybeSubscriptedPath`).
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']").and_then(|path| path.split_once("['")).filter(|(of, _)| !of.is_empty())
}

/// Fields available to both variables and files; `None` for another field.
fn metadata_field(pod: &DesiredPod, path: &str) -> Option<Result<String, String>> {
    let metadata = &pod.pod.metadata;
    if let Some((of, key)) = subscript(path) {
        let (map, invalid) = match of {
            "metadata.annotations" => (&metadata.annotations, qualified_name_error(&to_lower(key))),
            "metadata.labels" => (&metadata.labels, qualified_name_error(key)),
            _ => return None,
        };
        return Some(match invalid {
            Some(error) => Err(format!("invalid key subscript in {path}: {error}")),
            None => Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()),
        });
    }
    Some(Ok(match path {
        "metadata.name" => pod.key.name.to_string(),
        "metadata.namespace" => pod.key.namespace.to_string(),
        "metadata.uid" => pod.key.uid.to_string(),
        "metadata.annotations" => format_map(metadata.annotations.as_ref()),
        "metadata.labels" => format_map(metadata.labels.as_ref()),
        _ => return None,
    }))
}

/// `key="value"` lines, sorted (`fieldpath.FormatMap`).
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// One address per family, the node's family first (`sortPodIPs`).
pub fn sorted_pod_ips(node: &NodeSettings, pod_ips: &[Box<str>]) -> Vec<String> {
    let addresses: Vec<IpAddr> = pod_ips.iter().filter_map(|ip| address(ip)).collect();
    let v6_first = node.node_ips.first().and_then(|ip| address(ip)).is_some_and(|ip| ip.is_ipv6());
    [v6_first, !v6_first]
        .into_iter()
        .filter_map(|v6| addresses.iter().find(|ip| ip.is_ipv6() == v6))
        .map(IpAddr::to_string)
        .collect()
}

/// Parses an address; an IPv4-mapped IPv6 address is IPv4, as in Go.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// `resourceFieldRef` of a variable (`containerResourceRuntimeValue`). A limit that is not set defaults to the pod's, then
/// to the node's.
pub(super) fn resource_field(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    container: &Container,
    field: &ResourceFieldSelector,
) -> Result<String, String> {
    let name = field.container_name.as_deref().unwrap_or_default();
    // Only app containers and the container itself get the node's limits (`defaultPodLimitsForDownwardAPI`).
    let (of, defaulted) = if name.is_empty() { (container, true) } else { container_named(input.pod, name)? };
    resource_of(node, input.pod, of, defaulted, field)
}

/// A resource for a file in a downwardAPI volume (`ExtractResourceValueByContainerNameAndNodeAllocatable`): a limit that is
/// not set defaults to the pod's or the node's for an init container too.
pub fn file_resource(
    node: &NodeSettings,
    pod: &DesiredPod,
    field: &ResourceFieldSelector,
) -> Result<String, String> {
    let (of, _) = container_named(pod, field.container_name.as_deref().unwrap_or_default())?;
    resource_of(node, pod, of, true, field)
}

/// The container of that name, and whether it is an app container.
fn container_named<'a>(pod: &'a DesiredPod, name: &str) -> Result<(&'a Container, bool), String> {
    let named = |list: &'a [Container]| list.iter().find(|container| container.name == name);
    let app = named(pod.containers()).map(|container| (container, true));
    app.or_else(|| named(pod.init_containers()).map(|container| (container, false)))
        .ok_or_else(|| format!("container {name} not found"))
}

fn resource_of(
    node: &NodeSettings,
    pod: &DesiredPod,
    of: &Container,
    defaulted: bool,
    field: &ResourceFieldSelector,
) -> Result<String, String> {
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
            if own.is_zero() && defaulted { default_limit(node, pod, resource, limits) } else { own }
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
fn default_limit(node: &NodeSettings, pod: &DesiredPod, resource: &str, own: Option<&Amounts>) -> Quantity {
    let allocatable = match resource {
        "cpu" => Quantity::from_millis(node.cpu_allocatable_millis),
        "memory" => Quantity::from_units(node.memory_allocatable_bytes),
        _ if node.ephemeral_storage_bytes == 0 => amount(own, resource),
        _ => return Quantity::from_units(node.ephemeral_storage_bytes),
    };
    let of_pod = if resource == "ephemeral-storage" {
        Quantity::ZERO
    } else {
        amount(pod_level_limits(&pod.pod), resource)
    };
    if of_pod.is_zero() { allocatable } else { of_pod }
}
