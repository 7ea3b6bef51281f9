//! A pod sandbox's CRI configuration (`generatePodSandboxConfig`). PURE.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use super::cgroup_name::pod_cgroup_parent;
use super::dns::pod_dns;
use super::downward::address;
use super::hostname::kernel_hostname;
use super::labels::{pod_annotations, pod_labels};
use super::paths::pod_logs_dir;
use super::qos::pod_qos;
use super::resources::sandbox_resources;
use super::security::{
    UserNamespace, namespaces, runtime_default, selinux_option, supplemental_groups,
    supplemental_groups_policy,
};
use super::{NodeSettings, RenderError};
use crate::model::DesiredPod;
use crate::proto::runtime::v1::{
    Int64Value, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig, PodSandboxMetadata,
    PortMapping, Protocol,
};

/// The configuration for `RunPodSandbox`. `attempt` counts the pod's sandboxes from 0; `user_namespace` is the pod's own, if
/// it asks for one.
pub fn sandbox_config(
    node: &NodeSettings,
    pod: &DesiredPod,
    attempt: u32,
    user_namespace: Option<UserNamespace>,
) -> Result<PodSandboxConfig, RenderError> {
    render(node, pod, attempt, user_namespace).map_err(RenderError::Sandbox)
}

fn render(
    node: &NodeSettings,
    pod: &DesiredPod,
    attempt: u32,
    user_namespace: Option<UserNamespace>,
) -> Result<PodSandboxConfig, String> {
    let hostname =
        if pod.spec().host_network == Some(true) { String::new() } else { kernel_hostname(node, pod)? };
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.key.name.to_string(),
            uid: pod.key.uid.to_string(),
            namespace: pod.key.namespace.to_string(),
            attempt,
        }),
        hostname,
        log_directory: pod_logs_dir(node, &pod.key),
        dns_config: Some(pod_dns(node, pod)),
        port_mappings: pod.containers().iter().flat_map(port_mappings).collect(),
        labels: pod_labels(pod),
        annotations: pod_annotations(pod),
        linux: Some(linux(node, pod, user_namespace)?),
    })
}

/// The container's ports, each name once (`MakePortMappings`). A port without a name is identified by its family, protocol,
/// address and numbers.
fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let mut names = BTreeSet::new();
    let mut mappings = Vec::new();
    for port in container.ports.iter().flatten() {
        let host_ip = port.host_ip.as_deref().unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let host_port = port.host_port.unwrap_or_default();
        let name = port.name.as_deref().filter(|name| !name.is_empty());
        let name = name.map_or_else(
            || {
                let family = match host_ip {
                    "" => "any",
                    ip if address(ip).is_some_and(|ip| ip.is_ipv6()) => "v6",
                    _ => "v4",
                };
                format!("{family}-{protocol}-{host_ip}:{}:{host_port}", port.container_port)
            },
            str::to_owned,
        );
        if !names.insert(name) {
            continue;
        }
        let protocol = match protocol {
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        mappings.push(PortMapping {
            protocol: protocol as i32,
            container_port: port.container_port,
            host_port,
            host_ip: host_ip.to_owned(),
        });
    }
    mappings
}

/// `generatePodSandboxLinuxConfig`, `applySandboxResources`. Users, groups and namespaces are set only when the pod has a
/// security context, which the API always adds.
fn linux(
    node: &NodeSettings,
    pod: &DesiredPod,
    user_namespace: Option<UserNamespace>,
) -> Result<LinuxPodSandboxConfig, String> {
    let of_pod = pod.spec().security_context.as_ref();
    let mut context = LinuxSandboxSecurityContext {
        privileged: has_privileged_container(pod),
        seccomp: Some(runtime_default()),
        ..LinuxSandboxSecurityContext::default()
    };
    let mut sysctls = BTreeMap::new();
    if let Some(of) = of_pod {
        for sysctl in of.sysctls.iter().flatten() {
            sysctls.insert(sysctl_name(&sysctl.name), sysctl.value.clone());
        }
        context.run_as_user = of.run_as_user.map(|value| Int64Value { value });
        context.run_as_group = of.run_as_group.map(|value| Int64Value { value });
        context.namespace_options = Some(namespaces(pod, user_namespace)?);
        context.supplemental_groups = supplemental_groups(of_pod);
        context.supplemental_groups_policy = supplemental_groups_policy(of_pod)?;
        context.selinux_options = of.se_linux_options.as_ref().map(selinux_option);
    }
    let (resources, overhead) = sandbox_resources(node, &pod.pod);
    Ok(LinuxPodSandboxConfig {
        cgroup_parent: pod_cgroup_parent(node, pod.key.uid.as_str(), pod_qos(&pod.pod)),
        security_context: Some(context),
        sysctls,
        overhead: Some(overhead),
        resources: Some(resources),
    })
}

fn has_privileged_container(pod: &DesiredPod) -> bool {
    let privileged = |own: Option<&SecurityContext>| own.and_then(|own| own.privileged).unwrap_or(false);
    let containers = pod.init_containers().iter().chain(pod.containers());
    containers.map(|container| container.security_context.as_ref()).any(privileged)
        || pod
            .ephemeral_containers()
            .iter()
            .map(|container| container.security_context.as_ref())
            .any(privileged)
}

/// `net/ipv4/conf/eth0.1/x` → `net.ipv4.conf.eth0/1.x`: when a slash comes before any dot, slashes and dots are swapped
/// (`NormalizeName`).
pub fn sysctl_name(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|at| name.as_bytes()[at] == b'.') {
        return name.to_owned();
    }
    let swapped = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(swapped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_names_take_points() {
        for (name, normal) in [
            ("net.core.somaxconn", "net.core.somaxconn"),
            ("net/core/somaxconn", "net.core.somaxconn"),
            ("net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0/1.x"),
            ("net.ipv4.conf.eth0/1.x", "net.ipv4.conf.eth0/1.x"),
            ("", ""),
            ("x", "x"),
        ] {
            assert_eq!(sysctl_name(name), normal);
        }
    }
}
