//! What a pod passes to CNI plugins: `CNI_ARGS`, and the values of capabilities. PURE.
//!
//! As containerd and CRI-O pass them: port mappings, bandwidth from annotations, DNS, and the pod's name as its alias.

use serde_json::{Map, Value, json};

use crate::limits::PORT_MAPPINGS_MAX;
use crate::model::quantity::Quantity;
use crate::proto::runtime::v1 as cri;

/// Annotations that limit a pod's bandwidth, in bits per second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The token bucket's size: no limit of its own.
const BURST: i64 = i32::MAX as i64;

/// `CNI_ARGS` of a pod.
pub(in crate::runtime) fn arguments(id: &str, metadata: &cri::PodSandboxMetadata) -> String {
    let pairs = [
        ("K8S_POD_NAMESPACE", &*metadata.namespace),
        ("K8S_POD_NAME", &*metadata.name),
        ("K8S_POD_INFRA_CONTAINER_ID", id),
        ("K8S_POD_UID", &*metadata.uid),
    ];
    let mut text = "IgnoreUnknown=1".to_owned();
    for (name, value) in pairs {
        // Kubernetes' names have none of these; one that has would forge another argument.
        let value: String = value.chars().filter(|c| !matches!(c, ';' | '=')).collect();
        for part in [";", name, "=", &value] {
            text.push_str(part);
        }
    }
    text
}

/// The value of each capability.
///
/// # Errors
/// A field is not valid.
pub(in crate::runtime) fn capabilities(config: &cri::PodSandboxConfig) -> Result<Map<String, Value>, String> {
    let mut all = Map::new();
    let ports = port_mappings(&config.port_mappings)?;
    if !ports.is_empty() {
        all.insert("portMappings".into(), Value::Array(ports));
    }
    if let Some(limits) = bandwidth(config)? {
        all.insert("bandwidth".into(), limits);
    }
    let name = config.metadata.as_ref().map_or("", |metadata| &*metadata.name);
    if !name.is_empty() {
        all.insert("aliases".into(), json!([name]));
    }
    if let Some(dns) = &config.dns_config {
        let value = json!({ "servers": dns.servers, "searches": dns.searches, "options": dns.options });
        all.insert("dns".into(), value);
    }
    Ok(all)
}

fn port_mappings(mappings: &[cri::PortMapping]) -> Result<Vec<Value>, String> {
    if mappings.len() > PORT_MAPPINGS_MAX {
        return Err(format!("port_mappings has {} entries; {PORT_MAPPINGS_MAX} at most", mappings.len()));
    }
    let mut ports = Vec::new();
    for (index, mapping) in mappings.iter().filter(|mapping| mapping.host_port != 0).enumerate() {
        let protocol = match cri::Protocol::try_from(mapping.protocol) {
            Ok(cri::Protocol::Tcp) => "tcp",
            Ok(cri::Protocol::Udp) => "udp",
            Ok(cri::Protocol::Sctp) => "sctp",
            Err(_) => return Err(format!("port_mappings[{index}].protocol {} is unknown", mapping.protocol)),
        };
        let is_port = |port: i32| (1..=65535).contains(&port);
        if !is_port(mapping.host_port) || !is_port(mapping.container_port) {
            let (host, container) = (mapping.host_port, mapping.container_port);
            return Err(format!("port_mappings[{index}]: {host} to {container} are not ports of 1 to 65535"));
        }
        ports.push(json!({
            "hostPort": mapping.host_port,
            "containerPort": mapping.container_port,
            "protocol": protocol,
            "hostIP": mapping.host_ip,
        }));
    }
    Ok(ports)
}

fn bandwidth(config: &cri::PodSandboxConfig) -> Result<Option<Value>, String> {
    let rate = |annotation: &str| match config.annotations.get(annotation) {
        None => Ok(None),
        Some(text) => match Quantity::parse(text) {
            Ok(rate) if rate.is_positive() => Ok(Some(rate.value())),
            Ok(_) | Err(_) => Err(format!("annotation {annotation}: {text:?} is no rate in bits per second")),
        },
    };
    let mut limits = Map::new();
    for (annotation, direction) in [(INGRESS, "ingress"), (EGRESS, "egress")] {
        if let Some(rate) = rate(annotation)? {
            limits.insert(format!("{direction}Rate"), json!(rate));
            limits.insert(format!("{direction}Burst"), json!(BURST));
        }
    }
    Ok((!limits.is_empty()).then_some(Value::Object(limits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> cri::PodSandboxConfig {
        let metadata = cri::PodSandboxMetadata {
            name: "web".into(),
            namespace: "default".into(),
            uid: "u1".into(),
            attempt: 0,
        };
        cri::PodSandboxConfig { metadata: Some(metadata), ..Default::default() }
    }

    #[test]
    fn a_pod_is_named_to_plugins() {
        let mut metadata = config().metadata.unwrap();
        let wanted = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=id;\
                      K8S_POD_UID=u1";
        assert_eq!(arguments("id", &metadata), wanted);
        metadata.uid = "u1;K8S_POD_NAME=other".into();
        assert!(arguments("id", &metadata).ends_with(";K8S_POD_UID=u1K8S_POD_NAMEother"));
    }

    #[test]
    fn capabilities_have_the_pods_values() {
        let mapping = |host_port, container_port, protocol: cri::Protocol| cri::PortMapping {
            host_port,
            container_port,
            protocol: protocol.into(),
            host_ip: String::new(),
        };
        let mut config = config();
        config.port_mappings = vec![
            mapping(8080, 80, cri::Protocol::Tcp),
            mapping(0, 81, cri::Protocol::Tcp),
            mapping(53, 53, cri::Protocol::Udp),
        ];
        config.annotations.insert(INGRESS.into(), "1M".into());
        let all = capabilities(&config).unwrap();
        assert_eq!(
            all["portMappings"],
            json!([
                { "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "" },
                { "hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "" },
            ])
        );
        assert_eq!(all["bandwidth"], json!({ "ingressRate": 1_000_000, "ingressBurst": BURST }));
        assert_eq!(all["aliases"], json!(["web"]));
        assert_eq!(all.get("dns"), None);
        config.annotations.insert(EGRESS.into(), "fast".into());
        let error = capabilities(&config).unwrap_err();
        assert!(error.starts_with("annotation kubernetes.io/egress-bandwidth: \"fast\""), "{error}");
        config.annotations.clear();
        config.port_mappings.push(mapping(70_000, 80, cri::Protocol::Tcp));
        assert!(capabilities(&config).unwrap_err().starts_with("port_mappings[2]: 70000 to 80"));
    }
}
