//! A container's environment (`makeEnvironmentVariables`). PURE: values from outside the pod are looked up through
//! [`EnvSources`].
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Secret, Service};

use super::downward::{pod_field, resource_field};
use super::env_file::env_file_value;
use super::expand::expand;
use super::services::service_variables;
use super::{ContainerInput, NodeSettings};
use crate::limits::ENVIRONMENT_BYTES_MAX;
use crate::model::{DesiredPod, Object, ObjectKind, Objects, SortedMap};
use crate::text::quoted;

/// Variables sorted by name. A value may come from a Secret and need not be UTF-8.
pub type Environment = SortedMap<String, Vec<u8>>;

/// Sources of environment variables outside the pod.
///
/// Objects are looked up for a pod, in its namespace and on its [`Side`](crate::model::Side).
///
/// An `Err` is the message shown in the status, in the kubelet's wording.
pub trait EnvSources {
    /// The pod's ConfigMap of that name; `Ok(None)` when it does not exist.
    fn config_map(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<ConfigMap>>, String>;
    /// The pod's Secret of that name; `Ok(None)` when it does not exist.
    fn secret(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<Secret>>, String>;
    /// The "not found" message of the API client's error (`apierrors.NewNotFound`).
    fn not_found(&self, kind: ObjectKind, name: &str) -> String {
        let resource = match kind {
            ObjectKind::ConfigMap => "configmaps",
            ObjectKind::Secret => "secrets",
            ObjectKind::Token => "tokens",
            ObjectKind::Services => "services",
            ObjectKind::RuntimeClass => "runtimeclasses.node.k8s.io",
            ObjectKind::Claim => "persistentvolumeclaims",
        };
        format!("{resource} {} not found", quoted(name))
    }
    /// All known services on the pod's side, of any namespace.
    fn services(&self, pod: &DesiredPod) -> Rc<[Service]>;
    /// The text of `path` in the pod's volume (`fileKeyRef`); `Ok(None)` when the file does not exist.
    fn volume_file(&self, volume: &str, path: &str) -> Result<Option<Rc<str>>, String>;
}

/// ConfigMaps and Secrets from the manifests and the cluster, and the cluster's services; no files of variables.
///
/// Differs from the kubelet, which without an API server has none of these, and fails on optional references too.
#[derive(Clone, Debug, Default)]
pub struct ManifestObjects(pub Rc<Objects>);

impl EnvSources for ManifestObjects {
    fn config_map(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
        Ok(match self.0.find(pod, ObjectKind::ConfigMap, name) {
            Some(Object::ConfigMap(map)) => Some(map.clone()),
            _ => None,
        })
    }

    fn secret(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<Secret>>, String> {
        Ok(match self.0.find(pod, ObjectKind::Secret, name) {
            Some(Object::Secret(secret)) => Some(secret.clone()),
            _ => None,
        })
    }

    /// The error of the kubelet's own store (`objectCache.Get`).
    fn not_found(&self, kind: ObjectKind, name: &str) -> String {
        let resource = match kind {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
            ObjectKind::Token => "token",
            ObjectKind::Services => "service",
            ObjectKind::RuntimeClass => "runtimeclass",
            ObjectKind::Claim => "persistentvolumeclaim",
        };
        format!("{resource} {} not found", quoted(name))
    }

    fn services(&self, pod: &DesiredPod) -> Rc<[Service]> {
        self.0.services_for(pod).cloned().collect()
    }

    fn volume_file(&self, _: &str, _: &str) -> Result<Option<Rc<str>>, String> {
        Ok(None)
    }
}

/// The container's environment: `envFrom`, then `env` in spec order, which overrides it, then service variables for names
/// that are not set yet. `$(NAME)` in a value refers to variables declared before it.
///
/// Sorted by name: the kubelet's order is random.
pub fn environment(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<Environment, String> {
    let Some(links) = input.pod.spec().enable_service_links else {
        return Err("nil pod.spec.enableServiceLinks encountered, cannot construct envvars".into());
    };
    let services = service_variables(&input.env.services(input.pod), &input.pod.key.namespace, links);
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
                // Optional and missing: an earlier variable of this name stays.
                None => continue,
            },
            (None, None) => Vec::new(),
        };
        found.insert(variable.name.clone(), value);
    }
    for (name, value) in services {
        found.entry(name).or_insert_with(|| value.into_bytes());
    }
    // Differs from the kubelet, where the runtime or the kernel rejects an environment that is too large.
    let bytes: usize = found.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENVIRONMENT_BYTES_MAX {
        return Err(format!(
            "its variables have {bytes} bytes, of at most {ENVIRONMENT_BYTES_MAX}; mount what is large as a volume"
        ));
    }
    Ok(found)
}

fn config_map(
    input: &ContainerInput<'_>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Arc<ConfigMap>>, String> {
    match input.env.config_map(input.pod, name)? {
        None if optional != Some(true) => Err(input.env.not_found(ObjectKind::ConfigMap, name)),
        found => Ok(found),
    }
}

fn secret(
    input: &ContainerInput<'_>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<Arc<Secret>>, String> {
    match input.env.secret(input.pod, name)? {
        None if optional != Some(true) => Err(input.env.not_found(ObjectKind::Secret, name)),
        found => Ok(found),
    }
}

/// The value of a `valueFrom`; `None` when it is optional and missing.
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
