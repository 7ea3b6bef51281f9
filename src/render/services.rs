//! Service variables: environment variables with the cluster's services (`kubelet/envvars`). PURE.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;

/// Variables for the services visible to a pod of the namespace (`getServiceEnvVarMap`): those of its namespace with
/// `enableServiceLinks`, and `kubernetes` of the default namespace in any case.
///
/// Services without an address or port have none. When two services define the same variable the later name wins; in the
/// kubelet the winner is random.
pub(super) fn service_variables(
    services: &[Service],
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut seen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.iter().filter(|service| cluster_ip(service).is_some()) {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let of = service.metadata.namespace.as_deref().unwrap_or_default();
        if of == "default" && name == "kubernetes" {
            seen.entry(name).or_insert(service);
        } else if of == namespace && links {
            seen.insert(name, service);
        }
    }
    let mut variables = BTreeMap::new();
    for (name, service) in seen {
        put_service(&mut variables, name, service);
    }
    variables
}

fn cluster_ip(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None")
}

fn variable_name(text: &str) -> String {
    text.replace('-', "_").to_ascii_uppercase()
}

fn put_service(variables: &mut BTreeMap<String, String>, name: &str, service: &Service) {
    let Some(ip) = cluster_ip(service) else { return };
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let Some(first) = ports.first() else { return };
    let prefix = variable_name(name);
    let mut put = |name: String, value: String| variables.insert(name, value);
    put(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    put(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            put(format!("{prefix}_SERVICE_PORT_{}", variable_name(name)), port.port.to_string());
        }
    }
    // An IPv6 address is put in brackets before a port.
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let (number, lower) = (port.port, protocol.to_ascii_lowercase());
        let address = format!("{lower}://{host}:{number}");
        if index == 0 {
            put(format!("{prefix}_PORT"), address.clone());
        }
        let of_port = format!("{prefix}_PORT_{number}_{}", protocol.to_ascii_uppercase());
        put(format!("{of_port}_PROTO"), lower);
        put(format!("{of_port}_PORT"), number.to_string());
        put(format!("{of_port}_ADDR"), ip.to_owned());
        put(of_port, address);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn variables(services: &Value, links: bool) -> Vec<String> {
        let services: Vec<Service> = serde_json::from_value(services.clone()).unwrap();
        service_variables(&services, "ns", links)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    fn service(namespace: &str, name: &str, ip: &str, ports: &Value) -> Value {
        json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterIP": ip, "ports": ports}})
    }

    #[test]
    fn a_pod_sees_its_own_namespace_and_the_api() {
        let port = json!([{"port": 80}]);
        let all = json!([
            service("default", "kubernetes", "10.0.0.1", &port),
            service("default", "other", "10.0.0.2", &port),
            service("ns", "headless", "None", &port),
            service("ns", "nothing", "10.0.0.3", &json!([])),
            service("ns", "my-db", "fd00::1", &json!([{"port": 53, "name": "dns-x", "protocol": "UDP"}])),
        ]);
        let hosts = |links| -> Vec<String> {
            variables(&all, links).into_iter().filter(|line| line.contains("_SERVICE_HOST")).collect()
        };
        assert_eq!(hosts(false), ["KUBERNETES_SERVICE_HOST=10.0.0.1"]);
        assert_eq!(hosts(true), ["KUBERNETES_SERVICE_HOST=10.0.0.1", "MY_DB_SERVICE_HOST=fd00::1"]);
        let db: Vec<String> =
            variables(&all, true).into_iter().filter(|line| line.starts_with("MY_DB")).collect();
        assert_eq!(
            db,
            [
                "MY_DB_PORT=udp://[fd00::1]:53",
                "MY_DB_PORT_53_UDP=udp://[fd00::1]:53",
                "MY_DB_PORT_53_UDP_ADDR=fd00::1",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_SERVICE_HOST=fd00::1",
                "MY_DB_SERVICE_PORT=53",
                "MY_DB_SERVICE_PORT_DNS_X=53",
            ]
        );
    }
}
