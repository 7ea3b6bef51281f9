//! ConfigMaps and Secrets: what pods take values from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};

/// What kind of object, as `kind` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// `ConfigMap`.
    ConfigMap,
    /// `Secret`.
    Secret,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        })
    }
}

/// Which object; shown as `Secret default/wifi`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// What it is.
    pub kind: ObjectKind,
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.name`.
    pub name: Box<str>,
}

impl ObjectKey {
    /// The key of these parts.
    pub fn new(kind: ObjectKind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// One of them. Shared, as it is read on one thread and used on another; its `Debug` shows no value.
#[derive(Clone, PartialEq)]
pub enum Object {
    /// A ConfigMap.
    ConfigMap(Arc<ConfigMap>),
    /// A Secret; its `stringData` is in `data`.
    Secret(Arc<Secret>),
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key())
    }
}

impl Object {
    /// Which it is; missing metadata becomes empty text.
    pub fn key(&self) -> ObjectKey {
        let (kind, metadata) = match self {
            Self::ConfigMap(map) => (ObjectKind::ConfigMap, &map.metadata),
            Self::Secret(secret) => (ObjectKind::Secret, &secret.metadata),
        };
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().into();
        ObjectKey { kind, namespace: text(&metadata.namespace), name: text(&metadata.name) }
    }

    /// The value of a key; of a ConfigMap in `data` or `binaryData`.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        match self {
            Self::ConfigMap(map) => {
                let text = map.data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
                let binary = || map.binary_data.as_ref()?.get(key).map(|value| value.0.as_slice());
                text.or_else(binary)
            }
            Self::Secret(secret) => secret.data.as_ref()?.get(key).map(|value| value.0.as_slice()),
        }
    }

    /// All its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let (text, binary) = match self {
            Self::ConfigMap(map) => (map.data.as_ref(), map.binary_data.as_ref()),
            Self::Secret(secret) => (None, secret.data.as_ref()),
        };
        let text = text.into_iter().flat_map(BTreeMap::keys);
        text.chain(binary.into_iter().flat_map(BTreeMap::keys)).map(String::as_str)
    }

    /// Its content may not change (`immutable`).
    pub fn is_immutable(&self) -> bool {
        let immutable = match self {
            Self::ConfigMap(map) => map.immutable,
            Self::Secret(secret) => secret.immutable,
        };
        immutable == Some(true)
    }
}

/// Objects by their key.
pub type Objects = BTreeMap<ObjectKey, Object>;

/// The objects a pod names, whether they are there or not.
pub fn named_by(pod: &Pod) -> BTreeSet<ObjectKey> {
    let mut names = BTreeSet::new();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut add = |kind, name: &str| names.extend([ObjectKey::new(kind, namespace, name)]);
    let containers =
        pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    for Container { env, env_from, .. } in containers {
        for from in env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(of) = &from.config_map_key_ref {
                add(ObjectKind::ConfigMap, &of.name);
            }
            if let Some(of) = &from.secret_key_ref {
                add(ObjectKind::Secret, &of.name);
            }
        }
        for from in env_from.iter().flatten() {
            if let Some(of) = &from.config_map_ref {
                add(ObjectKind::ConfigMap, &of.name);
            }
            if let Some(of) = &from.secret_ref {
                add(ObjectKind::Secret, &of.name);
            }
        }
    }
    for name in pull_secrets(pod) {
        add(ObjectKind::Secret, name);
    }
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        if let Some(of) = &volume.config_map {
            add(ObjectKind::ConfigMap, &of.name);
        }
        if let Some(name) = volume.secret.as_ref().and_then(|of| of.secret_name.as_deref()) {
            add(ObjectKind::Secret, name);
        }
        for source in volume.projected.iter().flat_map(|of| of.sources.iter().flatten()) {
            if let Some(of) = &source.config_map {
                add(ObjectKind::ConfigMap, &of.name);
            }
            if let Some(of) = &source.secret {
                add(ObjectKind::Secret, &of.name);
            }
        }
    }
    names
}

/// The names of a pod's pull secrets. Empty ones, which the API lets pass, are none (`getPullSecretsForPod`).
pub fn pull_secrets(pod: &Pod) -> impl Iterator<Item = &str> {
    let references = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    references.map(|of| of.name.as_str()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pods_objects_are_found_and_no_value_is_shown() {
        let reference = json!({"name": "r"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {
                "initContainers": [{"name": "i", "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}}]}],
                "containers": [{"name": "c",
                    "env": [{"name": "B", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}}],
                    "envFrom": [{"configMapRef": reference}, {"secretRef": reference}]}],
                "volumes": [{"name": "x", "configMap": {"name": "v"}}, {"name": "y", "secret": {"secretName": "w"}},
                    {"name": "z", "projected": {"sources": [{"configMap": {"name": "p"}}, {"secret": {"name": "q"}}]}}],
                "imagePullSecrets": [{"name": "z"}, {"name": ""}],
            },
        }))
        .unwrap();
        let names: Vec<String> = named_by(&pod).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "ConfigMap ns/a",
                "ConfigMap ns/p",
                "ConfigMap ns/r",
                "ConfigMap ns/v",
                "Secret ns/b",
                "Secret ns/q",
                "Secret ns/r",
                "Secret ns/w",
                "Secret ns/z"
            ]
        );

        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "ns"}, "data": {"k": "aHVudGVyMg=="}, "immutable": true}))
        .unwrap();
        let object = Object::Secret(Arc::new(secret));
        assert_eq!(format!("{object:?}"), "Secret ns/s");
        assert!(object.is_immutable());
    }
}
