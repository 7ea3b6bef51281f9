//! `/configz` of the node's API: the effective settings, by the names of the KubeletConfiguration.

use serde_json::{Map, Value, json};

use super::{Authorization, Config, fields};
use crate::decode::Node;

impl Config {
    /// `{"kubeletconfig": {…}}`. It contains paths of keys, and no keys.
    pub fn configz(&self) -> String {
        let api = &self.node_api;
        let certificate = api.certificate.as_ref();
        let mode = match api.authorization {
            Authorization::Everything => "AlwaysAllow",
            Authorization::Asked { .. } => "Webhook",
        };
        let mut all = Map::new();
        put(&mut all, "kind", json!("KubeletConfiguration"));
        put(&mut all, "apiVersion", json!("kubelet.config.k8s.io/v1beta1"));
        for field in fields::fields() {
            let value = self.given.node(field.path).map(to_json);
            if let Some(value) = value.or_else(|| field.default_value().as_ref().map(to_json)) {
                put(&mut all, field.path, value);
            }
        }
        // A flag of smolet's own may override these fields.
        for (path, value) in [
            ("staticPodPath", json!(self.manifests)),
            ("podLogsDir", json!(self.pod_logs_dir)),
            ("containerRuntimeEndpoint", json!(self.runtime_endpoint.as_deref().unwrap_or_default())),
            ("maxPods", json!(self.max_pods)),
            ("cgroupRoot", json!(self.cgroup_root)),
            ("cgroupDriver", json!(self.cgroup_driver.as_str())),
            ("serializeImagePulls", json!(self.image_pulls == 1)),
            ("maxParallelImagePulls", json!(self.image_pulls)),
            ("rotateCertificates", json!(self.rotate_certificates)),
            ("serverTLSBootstrap", json!(self.server_tls_bootstrap)),
            ("providerID", json!(self.registration.provider_id)),
            ("address", json!(api.address)),
            ("port", json!(api.port)),
            ("tlsCertFile", json!(certificate.map(|(file, _)| file))),
            ("tlsPrivateKeyFile", json!(certificate.map(|(_, file)| file))),
            ("authentication.x509.clientCAFile", json!(api.client_ca)),
            ("authentication.webhook.enabled", json!(api.token_ttl.is_some())),
            ("authentication.anonymous.enabled", json!(api.anonymous)),
            ("authorization.mode", json!(mode)),
        ] {
            put(&mut all, path, value);
        }
        json!({"kubeletconfig": all}).to_string()
    }
}

/// Sets the value at a path; null values are left out.
fn put(at: &mut Map<String, Value>, path: &str, value: Value) {
    if value.is_null() {
        return;
    }
    let Some((first, rest)) = path.split_once('.') else {
        at.insert(path.to_owned(), value);
        return;
    };
    let below = at.entry(first).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(below) = below {
        put(below, rest, value);
    }
}

/// Recursion is bounded by the depth of the file that was read.
fn to_json(node: &Node) -> Value {
    match node {
        Node::Null => Value::Null,
        Node::Bool(value) => (*value).into(),
        Node::Int(value) => (*value).into(),
        Node::Float(value) => (*value).into(),
        Node::Text(text) => Value::from(&**text),
        Node::List(items) => Value::Array(items.iter().map(to_json).collect()),
        Node::Map(entries) => {
            Value::Object(entries.iter().map(|(key, value)| (key.to_string(), to_json(value))).collect())
        }
    }
}
