//! ConfigMaps, Secrets and the other objects that pods reference. PURE.
//!
//! Every object belongs to one of two [`Side`]s, and a pod uses only those of its own: the side is part of an object's key, and
//! [`Objects`] are looked up for a pod.
use std::fmt;
use std::sync::Arc;

use super::{DesiredPod, NfsExport};
use crate::model::annotations::is_of_api_server;
use crate::model::{SortedMap, SortedSet};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, NodeSelector, Pod, Secret, Service, ServiceAccountTokenProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Origin of objects and pods. Who may write on one side must not read the other: a tenant of the cluster must not read the
/// node's Secrets, and a static pod, which is often privileged, must not be configured by a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The node's manifests, from the directory or the URL.
    Manifests,
    /// The API server, or its offline copy.
    ApiServer,
}

impl Side {
    /// The pod's side.
    pub fn of(pod: &Pod) -> Self {
        if is_of_api_server(pod) { Self::ApiServer } else { Self::Manifests }
    }
}

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// `ConfigMap`.
    ConfigMap,
    /// `Secret`.
    Secret,
    /// A service account's token for one pod ([`Token`]).
    Token,
    /// Services of a namespace ([`Services`]).
    Services,
    /// `RuntimeClass` ([`RuntimeClass`]), of no namespace.
    RuntimeClass,
    /// `PersistentVolumeClaim`, with its volume ([`Claim`]).
    Claim,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Token => "Token",
            Self::Services => "Services",
            Self::RuntimeClass => "RuntimeClass",
            Self::Claim => "PersistentVolumeClaim",
        })
    }
}

/// Identifies an object; shown as `Secret default/wifi` on either side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its side.
    pub side: Side,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// `metadata.namespace`. Shared: many hold the key of one object.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key with these parts.
    pub fn new(side: Side, kind: ObjectKind, namespace: &str, name: &str) -> Self {
        Self { side, kind, namespace: namespace.into(), name: name.into() }
    }

    /// The key of the object that the pod references by that name: of its side and namespace.
    pub fn of(pod: &Pod, kind: ObjectKind, name: &str) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        Self::new(Side::of(pod), kind, namespace, name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.kind, &self.namespace, &self.name)
    }
}

fn show(f: &mut fmt::Formatter<'_>, kind: ObjectKind, namespace: &str, name: &str) -> fmt::Result {
    match namespace {
        "" => write!(f, "{kind} {name}"),
        namespace => write!(f, "{kind} {namespace}/{name}"),
    }
}

/// An object. Shared, because it is decoded on one thread and used on another; its `Debug` shows no value.
#[derive(Clone, PartialEq)]
pub enum Object {
    /// A ConfigMap.
    ConfigMap(Arc<ConfigMap>),
    /// A Secret; its `stringData` is in `data`.
    Secret(Arc<Secret>),
    /// A token.
    Token(Arc<Token>),
    /// Services.
    Services(Arc<Services>),
    /// A runtime class.
    RuntimeClass(Arc<RuntimeClass>),
    /// A claim.
    Claim(Arc<Claim>),
}

/// A persistent volume claim of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// The volume, shared with the pods that have it; or why there is none for a pod of this node.
    pub volume: Result<Arc<ClaimedVolume>, Arc<str>>,
}

/// A persistent volume that the node can mount without a CSI driver.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedVolume {
    /// The `PersistentVolume`'s name.
    pub name: Box<str>,
    /// Its source.
    pub source: VolumeSource,
    /// `spec.nodeAffinity.required`.
    pub nodes: Option<NodeSelector>,
}

/// Source of a persistent volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A path of the node.
    Path {
        /// The path.
        path: Box<str>,
        /// The required type, as `hostPath.type`; empty: not checked.
        kind: Box<str>,
    },
    /// A server's directory.
    Nfs(NfsExport),
}

/// A runtime class. Its overhead and scheduling are in the pods already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeClass {
    /// `metadata.name`.
    pub name: Box<str>,
    /// `handler`: the name of the runtime's handler.
    pub handler: Arc<str>,
}

/// The pod's runtime class.
pub fn class_of(pod: &Pod) -> Option<ObjectKey> {
    let class = pod.spec.as_ref()?.runtime_class_name.as_deref().filter(|class| !class.is_empty())?;
    Some(ObjectKey::new(Side::of(pod), ObjectKind::RuntimeClass, "", class))
}

/// Services of one namespace, with the fields for environment variables.
#[derive(Clone, PartialEq)]
pub struct Services {
    /// Theirs.
    pub namespace: Arc<str>,
    /// That of the one there is; empty: all of the namespace.
    pub name: Arc<str>,
    /// In the order of their names.
    pub list: Vec<Service>,
}

/// The services whose variables the pod's containers get (`getServiceEnvVarMap`), whether they exist or not.
pub fn services_of(pod: &Pod) -> impl Iterator<Item = ObjectKey> {
    let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links) != Some(false);
    let namespace = pod.metadata.namespace.as_deref().filter(|_| links);
    let key = |namespace, name| ObjectKey::new(Side::of(pod), ObjectKind::Services, namespace, name);
    let own = namespace.map(|namespace| key(namespace, ""));
    own.into_iter().chain([key("default", "kubernetes")])
}

/// A service account's token for one pod.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// [`TokenRequest::name`].
    pub name: Arc<str>,
    /// The token itself; never shown.
    pub value: Box<str>,
}

/// A token that a projected volume of a pod requests (`ServiceAccountTokenProjection`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The pod's UID, to which the token is bound.
    pub pod: Box<str>,
    /// The service account.
    pub account: Box<str>,
    /// The audience; empty: the API server itself.
    pub audience: Box<str>,
    /// Its requested lifetime.
    pub seconds: i64,
}

/// Default lifetime of a token, in seconds.
const TOKEN_SECONDS: i64 = 3600;

impl TokenRequest {
    /// The request of that source of the pod's volume.
    pub fn of(pod: &Pod, source: &ServiceAccountTokenProjection) -> Self {
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        Self {
            pod: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            account: account.filter(|name| !name.is_empty()).unwrap_or("default").into(),
            audience: source.audience.as_deref().unwrap_or_default().into(),
            seconds: source.expiration_seconds.unwrap_or(TOKEN_SECONDS),
        }
    }

    /// Its name as an object: different requests have different names.
    pub fn name(&self) -> String {
        format!("{}/{}/{}/{}", self.pod, self.account, self.seconds, self.audience)
    }
}

/// The tokens that the pod requests, by key.
pub fn tokens_of(pod: &Pod) -> impl Iterator<Item = (ObjectKey, TokenRequest)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources =
        volumes.filter_map(|volume| volume.projected.as_ref()).flat_map(|of| of.sources.iter().flatten());
    sources.filter_map(|source| source.service_account_token.as_ref()).map(move |source| {
        let wish = TokenRequest::of(pod, source);
        (ObjectKey::of(pod, ObjectKind::Token, &wish.name()), wish)
    })
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, namespace, name) = self.parts();
        show(f, kind, namespace, name)
    }
}

impl Object {
    /// Its key on that side; missing metadata becomes empty text.
    pub fn key(&self, side: Side) -> ObjectKey {
        let (kind, namespace, name) = self.parts();
        ObjectKey::new(side, kind, namespace, name)
    }

    /// Its kind, namespace and name.
    fn parts(&self) -> (ObjectKind, &str, &str) {
        fn named(kind: ObjectKind, metadata: &ObjectMeta) -> (ObjectKind, &str, &str) {
            let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
            (kind, namespace.unwrap_or_default(), name.unwrap_or_default())
        }
        match self {
            Self::ConfigMap(map) => named(ObjectKind::ConfigMap, &map.metadata),
            Self::Secret(secret) => named(ObjectKind::Secret, &secret.metadata),
            Self::Token(token) => (ObjectKind::Token, &token.namespace, &token.name),
            Self::Services(of) => (ObjectKind::Services, &of.namespace, &of.name),
            Self::Claim(of) => (ObjectKind::Claim, &of.namespace, &of.name),
            Self::RuntimeClass(class) => (ObjectKind::RuntimeClass, "", &class.name),
        }
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
            Self::Token(token) => (key == TOKEN_KEY).then_some(token.value.as_bytes()),
            Self::Services(_) | Self::RuntimeClass(_) | Self::Claim(_) => None,
        }
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let (text, binary) = match self {
            Self::ConfigMap(map) => (map.data.as_ref(), map.binary_data.as_ref()),
            Self::Secret(secret) => (None, secret.data.as_ref()),
            Self::Token(_) | Self::Services(_) | Self::RuntimeClass(_) | Self::Claim(_) => (None, None),
        };
        let token = matches!(self, Self::Token(_)).then_some(TOKEN_KEY);
        let text = text.into_iter().flat_map(std::collections::BTreeMap::keys);
        text.chain(binary.into_iter().flat_map(std::collections::BTreeMap::keys))
            .map(String::as_str)
            .chain(token)
    }

    /// True when its content may not change (`immutable`).
    pub fn is_immutable(&self) -> bool {
        let immutable = match self {
            Self::ConfigMap(map) => map.immutable,
            Self::Secret(secret) => secret.immutable,
            Self::Token(_) | Self::Services(_) | Self::RuntimeClass(_) | Self::Claim(_) => None,
        };
        immutable == Some(true)
    }
}

/// The only key of a token.
pub const TOKEN_KEY: &str = "token";

/// Objects of both sides, each with its own bounds: objects of manifests count in `PODS_BYTES_MAX`; of the API server there are
/// at most `KUBE_OBJECTS_MAX`, of `KUBE_OBJECTS_BYTES_MAX`.
///
/// Looked up only for a pod.
#[derive(Clone, Debug, Default)]
pub struct Objects(SortedMap<ObjectKey, Object>);

impl Objects {
    /// The object that the pod references by that name, if it exists.
    pub fn find(&self, pod: &DesiredPod, kind: ObjectKind, name: &str) -> Option<&Object> {
        self.0.get(&pod.names(kind, name))
    }

    /// The services of the pod's side in all namespaces.
    pub fn services_for(&self, pod: &DesiredPod) -> impl Iterator<Item = &Service> {
        let side = pod.pod.side();
        let lists = self.0.iter().filter_map(move |(key, object)| match object {
            Object::Services(services) if key.side == side => Some(&services.list),
            Object::Services(_)
            | Object::ConfigMap(_)
            | Object::Secret(_)
            | Object::Token(_)
            | Object::RuntimeClass(_)
            | Object::Claim(_) => None,
        });
        lists.flatten()
    }
}

impl FromIterator<(ObjectKey, Object)> for Objects {
    fn from_iter<T: IntoIterator<Item = (ObjectKey, Object)>>(objects: T) -> Self {
        Self(objects.into_iter().collect())
    }
}

/// The objects that a pod references, of its side, whether they exist or not.
pub fn named_by(pod: &Pod) -> SortedSet<ObjectKey> {
    let mut names = SortedSet::new();
    let mut add = |kind, name: &str| names.extend([ObjectKey::of(pod, kind, name)]);
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
        if let Some(of) = &volume.persistent_volume_claim {
            add(ObjectKind::Claim, &claim_of(pod, &of.claim_name));
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
    names.extend(tokens_of(pod).map(|(key, _)| key));
    names
}

/// The claim's name in an object key, with the pod's UID: each pod reads it itself (kubelet `getPVCExtractPV`), because another
/// claim may have the name by then.
pub fn claim_of(pod: &Pod, claim: &str) -> String {
    format!("{claim}/{}", pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The names of a pod's pull secrets, without empty ones, which the API admits (`getPullSecretsForPod`).
pub fn pull_secrets(pod: &Pod) -> impl Iterator<Item = &str> {
    let references = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    references.map(|of| of.name.as_str()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pods_references_are_found_and_no_value_is_shown() {
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

        assert!(named_by(&pod).iter().all(|key| key.side == Side::Manifests));

        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "ns"}, "data": {"k": "aHVudGVyMg=="}, "immutable": true}))
        .unwrap();
        let object = Object::Secret(Arc::new(secret));
        assert_eq!(format!("{object:?}"), "Secret ns/s");
        assert!(object.is_immutable());
    }

    #[test]
    fn a_pods_references_are_of_its_side() {
        for (source, side) in [
            (Some("file"), Side::Manifests),
            (Some("http"), Side::Manifests),
            (Some("api"), Side::ApiServer),
            (None, Side::Manifests),
        ] {
            let annotations = source.map(|source| json!({"kubernetes.io/config.source": source}));
            let sources = json!([{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]);
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "ns", "annotations": annotations},
                "spec": {"runtimeClassName": "r", "imagePullSecrets": [{"name": "l"}],
                    "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "m"}}]}],
                    "volumes": [{"name": "v", "projected": {"sources": sources}},
                        {"name": "w", "persistentVolumeClaim": {"claimName": "d"}}]}}))
            .unwrap();
            let keys = named_by(&pod).into_iter().chain(services_of(&pod)).chain(class_of(&pod));
            let keys: Vec<ObjectKey> = keys.collect();
            assert_eq!(keys.len(), 8, "{keys:?}");
            assert!(keys.iter().all(|key| key.side == side), "{source:?}: {keys:?}");
            // A service by namespace and name, of that side.
            let services =
                Services { namespace: "ns".into(), name: "".into(), list: vec![Service::default()] };
            let services = Object::Services(Arc::new(services));
            let objects: Objects = [(services.key(Side::ApiServer), services)].into_iter().collect();
            let seen = objects.services_for(&DesiredPod::new(pod)).count();
            assert_eq!(seen, usize::from(side == Side::ApiServer), "{source:?}");
        }
    }
}
