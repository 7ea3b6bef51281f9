//! Labels and annotations of CRI objects: rendering and parsing. PURE. Follows `kuberuntime/labels.go`: a kubelet can take
//! over these pods, and smolet a kubelet's.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Container, ContainerPort, HTTPGetAction, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize as _;

use crate::limits::{ANNOTATION_PATH_BYTES_MAX, CRI_JSON_BYTES_MAX};
use crate::model::device::parse_device_lines;
use crate::model::{ContainerMeta, DesiredPod, Sizes, container_hash};
use crate::text::push_json_text;

/// smolet's own annotation on sandboxes: the node name of the agent that created it.
pub const NODE_ANNOTATION: &str = "smolet.io/node";
/// smolet's own annotation on containers: the CPU and memory at its creation ([`Sizes`]).
pub const RESOURCES_ANNOTATION: &str = "smolet.io/resources";
/// smolet's own annotation on containers: their device volumes at their creation ([`device_lines`]).
///
/// [`device_lines`]: crate::model::device::device_lines
pub const DEVICES_ANNOTATION: &str = "smolet.io/devices";
/// Label: the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
const HASH: &str = "io.kubernetes.container.hash";
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub(crate) const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
const PORTS: &str = "io.kubernetes.container.ports";

/// Labels or annotations in the CRI's format.
pub type Map = BTreeMap<String, String>;

/// A sandbox's labels: the pod's labels and its identity (`newPodLabels`).
pub fn pod_labels(pod: &DesiredPod) -> Map {
    let mut labels = pod.pod.metadata.labels.clone().unwrap_or_default();
    put_identity(&mut labels, pod);
    labels
}

/// A sandbox's annotations: the pod's (`newPodAnnotations`).
pub fn pod_annotations(pod: &DesiredPod) -> Map {
    pod.pod.metadata.annotations.clone().unwrap_or_default()
}

/// A container's labels: its identity only (`newContainerLabels`).
pub fn container_labels(pod: &DesiredPod, container_name: &str) -> Map {
    let mut labels = Map::new();
    put_identity(&mut labels, pod);
    labels.insert(CONTAINER_NAME.into(), container_name.into());
    labels
}

fn put_identity(labels: &mut Map, pod: &DesiredPod) {
    labels.insert(POD_NAME.into(), pod.key.name.to_string());
    labels.insert(POD_NAMESPACE.into(), pod.key.namespace.to_string());
    labels.insert(POD_UID.into(), pod.key.uid.to_string());
}

/// A container's annotations (`newContainerAnnotations`). `devices` are a device plugin's; those of the kubelet override
/// them.
pub fn container_annotations(
    pod: &DesiredPod,
    container: &Container,
    restart_count: u32,
    devices: &[(Box<str>, Box<str>)],
) -> Map {
    let mut annotations: Map =
        devices.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let mut put = |name: &str, value: String| annotations.insert(name.into(), value);
    let hash = container_hash(&container.name, container.image.as_deref().unwrap_or_default());
    put(HASH, format!("{hash:x}"));
    put(RESTART_COUNT, restart_count.to_string());
    put(TERMINATION_MESSAGE_PATH, container.termination_message_path.clone().unwrap_or_default());
    put(TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_default());
    if let Some(seconds) = pod.pod.metadata.deletion_grace_period_seconds {
        put(DELETION_GRACE_PERIOD, seconds.to_string());
    }
    if let Some(seconds) = pod.spec().termination_grace_period_seconds {
        put(TERMINATION_GRACE_PERIOD, seconds.to_string());
    }
    if let Some(handler) = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
        put(PRE_STOP_HANDLER, handler_json(handler));
    }
    if let Some(ports) = container.ports.as_deref().filter(|ports| !ports.is_empty()) {
        put(PORTS, ports_json(ports));
    }
    annotations
}

/// The pod's annotations that request Container Device Interface devices (`cdi.k8s.io/ANY: VENDOR/CLASS=DEVICE`): runtimes
/// that support CDI give the devices to containers with these annotations.
///
/// Differs from the kubelet, where only device plugins and resource claims request such devices: a node without them has no
/// other way.
pub fn cdi_annotations(pod: &DesiredPod) -> Vec<(Box<str>, Box<str>)> {
    let annotations = pod.pod.metadata.annotations.iter().flatten();
    let cdi = annotations.filter(|(key, _)| key.starts_with(CDI_PREFIX));
    cdi.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()
}

/// Prefix of annotations that request devices.
pub const CDI_PREFIX: &str = "cdi.k8s.io/";

/// Parses a container's annotations (`getContainerInfoFromAnnotations`). A value that cannot be parsed counts as absent, as
/// in the kubelet; so does an empty path, and a value longer than the API admits (not written by a node agent). The handler
/// and the ports are validated and kept as text.
pub fn container_meta(annotations: &Map) -> ContainerMeta {
    let text = |name: &str| annotations.get(name).map(String::as_str);
    let words = |name: &str| {
        text(name).filter(|text| !text.is_empty() && text.len() <= ANNOTATION_PATH_BYTES_MAX).map(Box::from)
    };
    let json = |name: &str| text(name).filter(|json| json.len() <= CRI_JSON_BYTES_MAX);
    ContainerMeta {
        hash: container_hash_of(annotations),
        restart_count: text(RESTART_COUNT).and_then(|count| count.parse().ok()).unwrap_or_default(),
        deletion_grace_period: text(DELETION_GRACE_PERIOD).and_then(|seconds| seconds.parse().ok()),
        termination_grace_period: text(TERMINATION_GRACE_PERIOD).and_then(|seconds| seconds.parse().ok()),
        termination_message_path: words(TERMINATION_MESSAGE_PATH),
        termination_message_policy: words(TERMINATION_MESSAGE_POLICY),
        pre_stop_handler: json(PRE_STOP_HANDLER)
            .filter(|json| pre_stop_handler(json).is_some())
            .map(Box::from),
        ports: json(PORTS).filter(|json| container_ports(json).is_some()).map(Box::from),
        sizes: text(RESOURCES_ANNOTATION).and_then(Sizes::parse),
        devices: text(DEVICES_ANNOTATION).and_then(parse_device_lines),
    }
}

/// The container hash in a container's annotations; 0 when absent or invalid.
pub fn container_hash_of(annotations: &Map) -> u64 {
    let hash = annotations.get(HASH).filter(|hash| !hash.starts_with('+'));
    // Rust accepts a sign before an unsigned number, Go does not.
    hash.and_then(|hash| u64::from_str_radix(hash, 16).ok()).unwrap_or_default()
}

/// Parses the `preStopHandler` annotation. Through a `Value`: one deserializer for all API types keeps the binary small.
pub fn pre_stop_handler(json: &str) -> Option<LifecycleHandler> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    LifecycleHandler::deserialize(value).ok()
}

/// Parses the `ports` annotation.
pub fn container_ports(json: &str) -> Option<Vec<ContainerPort>> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    value.as_array()?.iter().map(|port| ContainerPort::deserialize(port).ok()).collect()
}

/// Writes a JSON object field by field: Go's field order, Go's escapes, empty fields left out. Serde would write the fields
/// in alphabetical order, and this text is compared with the kubelet's.
struct Json(String);

impl Json {
    fn object(fields: impl FnOnce(&mut Self)) -> String {
        let mut json = Self("{".into());
        fields(&mut json);
        json.0.push('}');
        json.0
    }

    fn raw(&mut self, name: &str, value: &str) {
        if !self.0.ends_with('{') {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{name}\":{value}");
    }

    /// Left out when empty (`omitempty`).
    fn text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.raw(name, &json_text(value));
        }
    }

    fn port(&mut self, value: &IntOrString) {
        match value {
            IntOrString::Int(number) => self.raw("port", &number.to_string()),
            IntOrString::String(name) => self.raw("port", &json_text(name)),
        }
    }
}

/// A string as Go's `encoding/json` writes it, with HTML escaping.
fn json_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let html = |c| matches!(c, '<' | '>' | '&' | '\0'..='\u{1f}' | '\u{2028}' | '\u{2029}');
    push_json_text(&mut out, text, html);
    out
}

fn json_array<T>(items: &[T], each: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(each).collect();
    format!("[{}]", items.join(","))
}

fn handler_json(handler: &LifecycleHandler) -> String {
    Json::object(|json| {
        if let Some(exec) = &handler.exec {
            json.raw(
                "exec",
                &Json::object(|json| {
                    if let Some(command) = exec.command.as_deref().filter(|command| !command.is_empty()) {
                        json.raw("command", &json_array(command, |word| json_text(word)));
                    }
                }),
            );
        }
        if let Some(get) = &handler.http_get {
            json.raw("httpGet", &http_get_json(get));
        }
        if let Some(socket) = &handler.tcp_socket {
            json.raw(
                "tcpSocket",
                &Json::object(|json| {
                    json.port(&socket.port);
                    json.text("host", socket.host.as_deref());
                }),
            );
        }
        if let Some(sleep) = &handler.sleep {
            json.raw("sleep", &Json::object(|json| json.raw("seconds", &sleep.seconds.to_string())));
        }
    })
}

fn http_get_json(get: &HTTPGetAction) -> String {
    Json::object(|json| {
        json.text("path", get.path.as_deref());
        json.port(&get.port);
        json.text("host", get.host.as_deref());
        json.text("scheme", get.scheme.as_deref());
        if let Some(headers) = get.http_headers.as_deref().filter(|headers| !headers.is_empty()) {
            let header = |name: &str, value: &str| {
                Json::object(|json| {
                    json.raw("name", &json_text(name));
                    json.raw("value", &json_text(value));
                })
            };
            json.raw("httpHeaders", &json_array(headers, |one| header(&one.name, &one.value)));
        }
    })
}

fn ports_json(ports: &[ContainerPort]) -> String {
    json_array(ports, |port| {
        Json::object(|json| {
            json.text("name", port.name.as_deref());
            if let Some(host_port) = port.host_port.filter(|port| *port != 0) {
                json.raw("hostPort", &host_port.to_string());
            }
            json.raw("containerPort", &port.container_port.to_string());
            json.text("protocol", port.protocol.as_deref());
            json.text("hostIP", port.host_ip.as_deref());
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> DesiredPod {
        let json = serde_json::json!({
            "metadata": {"name": "web", "namespace": "prod", "uid": "u1", "deletionGracePeriodSeconds": 5},
            "spec": {"terminationGracePeriodSeconds": 60, "containers": [{
                "name": "c", "image": "busybox",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo <&> \u{2028}\n"]}}},
                "ports": [{"name": "http", "containerPort": 80, "hostPort": 0, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "1"}}
            }]}
        });
        DesiredPod::new(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let pod = pod();
        let container = &pod.containers()[0];
        let annotations = container_annotations(&pod, container, 3, &[]);
        let meta = container_meta(&annotations);
        assert_eq!(meta.hash, u64::from(pod.app_hashes[0]));
        assert_eq!(
            (meta.restart_count, meta.deletion_grace_period, meta.termination_grace_period),
            (3, Some(5), Some(60))
        );
        assert_eq!(meta.termination_message_path.as_deref(), Some("/dev/termination-log"));
        let handler = pre_stop_handler(meta.pre_stop_handler.as_deref().unwrap()).unwrap();
        assert_eq!(Some(&handler), container.lifecycle.as_ref().unwrap().pre_stop.as_ref());
        let ports = container_ports(meta.ports.as_deref().unwrap()).unwrap();
        assert_eq!(ports[0].container_port, 80);
        assert_eq!(ports[0].host_port, None, "zero is left out, as Go does");
    }

    #[test]
    fn values_that_cannot_be_read_count_as_absent() {
        let long = format!("[{}]", " ".repeat(CRI_JSON_BYTES_MAX));
        let long: Map = [(PORTS.to_owned(), long)].into();
        assert_eq!(container_meta(&long), ContainerMeta::default());
        let bad: Map = [
            (HASH, "+12"),
            (RESTART_COUNT, "-1"),
            (DELETION_GRACE_PERIOD, "soon"),
            (TERMINATION_GRACE_PERIOD, "1.5"),
            (TERMINATION_MESSAGE_PATH, ""),
            (PRE_STOP_HANDLER, "{\"exec\":"),
            (PORTS, "[{\"containerPort\":\"x\"}]"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        assert_eq!(container_meta(&bad), ContainerMeta::default());
    }
}
