//! Actions of probes and lifecycle hooks, with resolved addresses (`httpprobe.NewRequestForHTTPGetAction`,
//! `probe.ResolveContainerPort`). PURE.

use std::net::IpAddr;

use hyper::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar, HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::net::Address;
use crate::net::http::{HttpGet, encoded_path};
use crate::render::expand::expand;

/// The kubelet version in the user agent.
const KUBELET: &str = "1.36";

/// The action of a probe or hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Run this command in the container.
    Exec(Vec<String>),
    /// Send this request.
    HttpGet(HttpGet),
    /// Connect to this address.
    TcpSocket(Address),
    /// Check the health of this service of a gRPC server.
    Grpc {
        /// The server.
        address: Address,
        /// Empty: the server as a whole.
        service: String,
    },
}

impl Handler {
    /// The action of a container's probe; `pod_ip` is the pod's address.
    ///
    /// # Errors
    /// A sentence, when an address or a header is invalid.
    pub fn of_probe(probe: &Probe, container: &Container, pod_ip: Option<IpAddr>) -> Result<Self, String> {
        let ports = container.ports.as_deref().unwrap_or_default();
        if let Some(exec) = &probe.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            Ok(Self::Exec(static_command(command, container.env.as_deref().unwrap_or_default())))
        } else if let Some(action) = &probe.http_get {
            HttpGet::new(action, ports, pod_ip, "probe").map(Self::HttpGet)
        } else if let Some(action) = &probe.tcp_socket {
            Address::of_tcp(action, ports, pod_ip).map(Self::TcpSocket)
        } else if let Some(action) = &probe.grpc {
            let address = Address::new(None, &IntOrString::Int(action.port), ports, pod_ip)?;
            Ok(Self::Grpc { address, service: action.service.clone().unwrap_or_default() })
        } else {
            Err("missing probe handler".to_owned())
        }
    }
}

/// `ExpandContainerCommandOnlyStatic`: only literal values of the manifest are expanded; others are empty.
fn static_command(command: &[String], env: &[EnvVar]) -> Vec<String> {
    let value = |name: &[u8]| {
        let last = env.iter().rfind(|variable| variable.name.as_bytes() == name)?;
        Some(last.value.as_deref().unwrap_or_default().as_bytes())
    };
    let expanded = |word: &String| String::from_utf8_lossy(&expand(word.as_bytes(), value)).into_owned();
    command.iter().map(expanded).collect()
}

impl Address {
    /// The action that connects to a port.
    ///
    /// # Errors
    /// A sentence: the port does not exist, or the pod has no address yet.
    pub fn of_tcp(
        action: &TCPSocketAction,
        ports: &[ContainerPort],
        pod_ip: Option<IpAddr>,
    ) -> Result<Self, String> {
        Self::new(action.host.as_deref(), &action.port, ports, pod_ip)
    }

    fn new(
        host: Option<&str>,
        port: &IntOrString,
        ports: &[ContainerPort],
        pod_ip: Option<IpAddr>,
    ) -> Result<Self, String> {
        let port = resolve_port(port, ports)?;
        let host = match host.filter(|host| !host.is_empty()) {
            Some(host) => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            None => pod_ip.ok_or("the pod has no address yet")?.to_string(),
        };
        Ok(Self { host, port })
    }
}

/// `ResolveContainerPort`.
fn resolve_port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = ports.iter().find(|port| port.name.as_deref() == Some(name));
            match named {
                Some(port) => port.container_port,
                // As in the kubelet, a number as text.
                None => name.parse().map_err(|_| format!("port {name} not found"))?,
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

impl HttpGet {
    /// `NewRequestForHTTPGetAction`; `purpose` is `probe` or `lifecycle`, for the user agent.
    ///
    /// # Errors
    /// A sentence: the port does not exist, the pod has no address yet, or a header is invalid.
    pub fn new(
        action: &HTTPGetAction,
        ports: &[ContainerPort],
        pod_ip: Option<IpAddr>,
        purpose: &str,
    ) -> Result<Self, String> {
        let address = Address::new(action.host.as_deref(), &action.port, ports, pod_ip)?;
        let mut headers = HeaderMap::new();
        for header in action.http_headers.iter().flatten() {
            let name = HeaderName::from_bytes(header.name.as_bytes())
                .map_err(|_| format!("net/http: invalid header field name {:?}", header.name))?;
            let value = HeaderValue::from_str(header.value.trim_matches([' ', '\t']))
                .map_err(|_| format!("net/http: invalid header field value for {:?}", header.name))?;
            headers.append(name, value);
        }
        if !headers.contains_key(USER_AGENT)
            && let Ok(agent) = HeaderValue::try_from(format!("kube-{purpose}/{KUBELET}"))
        {
            headers.insert(USER_AGENT, agent);
        }
        match headers.get(ACCEPT) {
            None => drop(headers.insert(ACCEPT, HeaderValue::from_static("*/*"))),
            Some(accept) if accept.is_empty() => drop(headers.remove(ACCEPT)),
            Some(_) => {}
        }
        let host = headers.get(HOST).filter(|host| !host.is_empty()).cloned();
        headers.remove(HOST);
        let path = action.path.as_deref().unwrap_or_default();
        let tls = action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        Ok(Self { tls, address, path: encoded_path(path), headers, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(ports: &Value) -> Container {
        serde_json::from_value(json!({"name": "c", "ports": ports, "env": [
            {"name": "A", "value": "1"}, {"name": "A", "value": "2"},
            {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]}))
        .unwrap()
    }

    fn handler(probe: Value) -> Result<Handler, String> {
        let probe: Probe = serde_json::from_value(probe).unwrap();
        let container = container(&json!([{"name": "web", "containerPort": 8080}]));
        Handler::of_probe(&probe, &container, Some(IpAddr::from([10, 0, 0, 9])))
    }

    fn get(action: &Value) -> HttpGet {
        match handler(json!({"httpGet": action})) {
            Ok(Handler::HttpGet(get)) => get,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ports_are_found_by_name_and_hosts_are_the_pods_own() {
        for (port, host, wanted) in [
            (json!(80), "", Ok("10.0.0.9:80")),
            (json!("web"), "", Ok("10.0.0.9:8080")),
            (json!("81"), "db.example", Ok("db.example:81")),
            (json!(82), "fd00::1", Ok("[fd00::1]:82")),
            (json!(82), "[fd00::1]", Ok("[fd00::1]:82")),
            (json!("db"), "", Err("port db not found")),
            (json!(0), "", Err("invalid port number: 0")),
            (json!(65536), "", Err("invalid port number: 65536")),
        ] {
            let got = match handler(json!({"tcpSocket": {"port": port, "host": host}})) {
                Ok(Handler::TcpSocket(address)) => Ok(address.to_string()),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error),
            };
            assert_eq!(got.as_deref().map_err(String::as_str), wanted, "{port} {host}");
        }
        let probe: Probe = serde_json::from_value(json!({"tcpSocket": {"port": 1}})).unwrap();
        let error = Handler::of_probe(&probe, &container(&json!([])), None);
        assert_eq!(error, Err("the pod has no address yet".to_owned()));
    }

    #[test]
    fn a_command_gets_the_values_that_stand_in_the_manifest() {
        let command = handler(json!({"exec": {"command": ["x", "$(A)", "-$(F)-", "$(NONE)", "$$(A)"]}}));
        let words = ["x", "2", "--", "$(NONE)", "$(A)"].map(str::to_owned);
        assert_eq!(command, Ok(Handler::Exec(words.to_vec())));
    }

    #[test]
    fn headers_are_the_kubelets_and_the_manifests() {
        let plain = get(&json!({"port": 80, "path": "/x"}));
        assert_eq!(plain.headers[USER_AGENT], "kube-probe/1.36");
        assert_eq!(plain.headers[ACCEPT], "*/*");
        assert_eq!((plain.headers.len(), plain.host), (2, None));
        let own = get(&json!({"port": 80, "httpHeaders": [
            {"name": "Host", "value": "a.example"}, {"name": "User-Agent", "value": "me"},
            {"name": "accept", "value": ""}, {"name": "X-A", "value": "1"}, {"name": "x-a", "value": " 2 "},
        ]}));
        assert_eq!(own.host.unwrap(), "a.example");
        assert_eq!(own.headers[USER_AGENT], "me");
        assert!(!own.headers.contains_key(ACCEPT) && !own.headers.contains_key(HOST));
        assert_eq!(own.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        let wrong =
            handler(json!({"httpGet": {"port": 80, "httpHeaders": [{"name": "A", "value": "a\nb"}]}}));
        assert!(wrong.unwrap_err().contains("invalid header field value"));
    }

    #[test]
    fn paths_are_encoded_as_go_does() {
        for (path, wanted) in [
            ("", "/"),
            ("/healthz", "/healthz"),
            ("healthz", "/healthz"),
            ("/a b?c=d&e=f", "/a%20b?c=d&e=f"),
            ("/a%20b", "/a%20b"),
            ("/50%?x", "/50%25%3Fx"),
            ("/é", "/%C3%A9"),
            ("/x#part", "/x"),
            ("/{id}|\"", "/%7Bid%7D%7C%22"),
        ] {
            assert_eq!(get(&json!({"port": 80, "path": path})).path, wanted, "{path}");
        }
    }

    #[test]
    fn redirects_are_followed_on_the_same_host() {
        let from = get(&json!({"port": 80, "path": "/a/b?q=1", "httpHeaders": [
            {"name": "Host", "value": "site"}, {"name": "X-A", "value": "1"},
        ]}));
        for (location, wanted) in [
            ("/login", Some(("10.0.0.9:80", "/login", true))),
            ("c/d?x", Some(("10.0.0.9:80", "/a/c/d?x", true))),
            ("../../c/./d/..", Some(("10.0.0.9:80", "/c/", true))),
            ("?z", Some(("10.0.0.9:80", "/a/b?z", true))),
            ("#top", Some(("10.0.0.9:80", "/a/b", true))),
            ("http://10.0.0.9:8080", Some(("10.0.0.9:8080", "/", false))),
            ("HTTPS://10.0.0.9:8443/x", Some(("10.0.0.9:8443", "/x", false))),
            ("https://10.0.0.9/x", Some(("10.0.0.9:443", "/x", false))),
            ("https://elsewhere/x", None),
            ("HTTP://10.0.0.9/x y", Some(("10.0.0.9:80", "/x%20y", false))),
            ("//me@10.0.0.9:81/x", Some(("10.0.0.9:81", "/x", true))),
            ("http://elsewhere/x", None),
            ("//elsewhere/x", None),
            ("mailto:me", None),
            ("http://10.0.0.9:x/", None),
            ("http:/x", None),
        ] {
            let to = from.redirected(location);
            let shown = to.as_ref().map(|to| (to.address.to_string(), to.path.clone(), to.host.is_some()));
            let shown = shown.as_ref().map(|(address, path, host)| (&**address, &**path, *host));
            assert_eq!(shown, wanted, "{location}");
            let tls = location.to_ascii_lowercase().starts_with("https:");
            assert!(to.is_none_or(|to| to.headers == from.headers && to.tls == tls));
        }
        let from = get(&json!({"port": 443, "scheme": "HTTPS"}));
        assert_eq!(from.to_string(), "https://10.0.0.9:443/");
        for (location, wanted) in [
            ("/x", "https://10.0.0.9:443/x"),
            ("//10.0.0.9/x", "https://10.0.0.9:443/x"),
            ("http://10.0.0.9/x", "http://10.0.0.9:80/x"),
        ] {
            assert_eq!(from.redirected(location).unwrap().to_string(), wanted);
        }
    }
}
