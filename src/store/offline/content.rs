//! PURE: the needed fields of a ConfigMap, a Secret, a token, services, a runtime class, a claim or the Node ⇄ minicbor.
//!
//! Field numbers never change; an older agent skips those it does not know. The absence of an object is stored too: a pod with
//! an optional reference starts without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Secret, Service, ServicePort,
    ServiceSpec, Taint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use minicbor::{Decode, Encode};

use super::record::{Kind, Name};
use crate::limits::{KUBE_SERVICES_MAX, LIST_ITEMS_MAX, OFFLINE_LABELS_MAX, POD_CIDRS_MAX};
use crate::model::object::{Claim, ClaimedVolume, RuntimeClass, Services, Token, VolumeSource};
use crate::model::{NfsExport, Object, ObjectKey, ObjectKind, Side};

/// Why bytes are not a valid content.
pub type DecodeError = minicbor::decode::Error;

/// Encoding of an object that does not exist: CBOR's null.
const NOTHING: &[u8] = &[0xf6];

#[derive(Encode, Decode)]
#[cbor(map)]
struct Values<'a> {
    #[b(0)]
    texts: Vec<(&'a str, &'a str)>,
    #[b(1)]
    bytes: Vec<Value<'a>>,
    #[n(2)]
    immutable: Option<bool>,
    /// A Secret's type.
    #[b(3)]
    kind: Option<&'a str>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Value<'a> {
    #[b(0)]
    key: &'a str,
    #[cbor(b(1), with = "minicbor::bytes")]
    value: &'a [u8],
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StoredService<'a> {
    #[b(0)]
    name: Option<&'a str>,
    #[b(1)]
    cluster_ip: Option<&'a str>,
    #[b(2)]
    ports: Vec<StoredPort<'a>>,
    #[b(3)]
    namespace: Option<&'a str>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StoredPort<'a> {
    #[b(0)]
    name: Option<&'a str>,
    #[b(1)]
    protocol: Option<&'a str>,
    #[n(2)]
    port: i32,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StoredVolume<'a> {
    #[b(0)]
    name: &'a str,
    /// For a path on the node. An older agent, which knows only this source, cannot decode a volume without it and asks the
    /// server again.
    #[b(1)]
    path: Option<&'a str>,
    #[b(2)]
    kind: Option<&'a str>,
    #[b(3)]
    nodes: Option<Vec<Term<'a>>>,
    #[b(4)]
    nfs: Option<StoredExport<'a>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StoredExport<'a> {
    #[b(0)]
    server: &'a str,
    #[b(1)]
    path: &'a str,
    #[b(2)]
    options: Vec<&'a str>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Term<'a> {
    #[b(0)]
    expressions: Option<Vec<Requirement<'a>>>,
    #[b(1)]
    fields: Option<Vec<Requirement<'a>>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct Requirement<'a> {
    #[b(0)]
    key: &'a str,
    #[b(1)]
    operator: &'a str,
    #[b(2)]
    values: Option<Vec<&'a str>>,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StoredTaint<'a> {
    #[b(0)]
    key: &'a str,
    #[b(1)]
    value: Option<&'a str>,
    #[b(2)]
    effect: &'a str,
}

#[derive(Encode, Decode)]
#[cbor(map)]
struct StoredNode<'a> {
    #[b(0)]
    labels: Vec<(&'a str, &'a str)>,
    #[b(1)]
    taints: Vec<StoredTaint<'a>>,
    #[b(2)]
    pod_cidrs: Vec<&'a str>,
}

/// Stored fields of the Node: those that admission needs, and the pods' address ranges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfflineNode {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<Box<str>>,
}

/// The name of an API server object in the offline copy; other objects are not stored.
pub fn name_of(key: &ObjectKey) -> Name {
    debug_assert_eq!(key.side, Side::ApiServer, "{key} is no object of the API server");
    let kind = match key.kind {
        ObjectKind::ConfigMap => Kind::ConfigMap,
        ObjectKind::Secret => Kind::Secret,
        ObjectKind::Token => Kind::Token,
        ObjectKind::Services => Kind::Services,
        ObjectKind::RuntimeClass => Kind::RuntimeClass,
        ObjectKind::Claim => Kind::Claim,
    };
    Name { kind, namespace: (*key.namespace).into(), name: (*key.name).into() }
}

/// The key of the object of that name; `None` for a pod and the Node.
pub fn key_of(name: &Name) -> Option<ObjectKey> {
    let kind = match name.kind {
        Kind::Pod | Kind::Node => return None,
        Kind::ConfigMap => ObjectKind::ConfigMap,
        Kind::Secret => ObjectKind::Secret,
        Kind::Token => ObjectKind::Token,
        Kind::Services => ObjectKind::Services,
        Kind::RuntimeClass => ObjectKind::RuntimeClass,
        Kind::Claim => ObjectKind::Claim,
    };
    Some(ObjectKey::new(Side::ApiServer, kind, &name.namespace, &name.name))
}

fn to_vec(of: &impl Encode<()>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // `Infallible`: writing to a vector does not fail.
    let _ = minicbor::encode(of, &mut bytes);
    bytes
}

fn pairs<'a>(of: impl IntoIterator<Item = (&'a String, &'a String)>) -> Vec<(&'a str, &'a str)> {
    of.into_iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn values(of: Option<&BTreeMap<String, ByteString>>) -> Vec<Value<'_>> {
    of.into_iter().flatten().map(|(key, value)| Value { key, value: &value.0 }).collect()
}

/// Encodes an object; `None` = it does not exist. Returns `None` for a claim without a volume, which is not stored.
pub fn encode(object: Option<&Object>) -> Option<Vec<u8>> {
    Some(match object {
        None => NOTHING.to_vec(),
        Some(Object::ConfigMap(map)) => to_vec(&Values {
            texts: pairs(map.data.iter().flatten()),
            bytes: values(map.binary_data.as_ref()),
            immutable: map.immutable,
            kind: None,
        }),
        Some(Object::Secret(secret)) => to_vec(&Values {
            texts: Vec::new(),
            bytes: values(secret.data.as_ref()),
            immutable: secret.immutable,
            kind: secret.type_.as_deref(),
        }),
        Some(Object::Token(token)) => to_vec(&&*token.value),
        Some(Object::Services(services)) => {
            to_vec(&services.list.iter().map(stored_service).collect::<Vec<_>>())
        }
        Some(Object::RuntimeClass(class)) => to_vec(&&*class.handler),
        Some(Object::Claim(claim)) => to_vec(&stored_volume(claim.volume.as_ref().ok()?)),
    })
}

fn stored_service(service: &Service) -> StoredService<'_> {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
    StoredService {
        name: service.metadata.name.as_deref(),
        namespace: service.metadata.namespace.as_deref(),
        cluster_ip: spec.and_then(|spec| spec.cluster_ip.as_deref()),
        ports: ports
            .map(|port| StoredPort {
                name: port.name.as_deref(),
                protocol: port.protocol.as_deref(),
                port: port.port,
            })
            .collect(),
    }
}

fn stored_volume(volume: &ClaimedVolume) -> StoredVolume<'_> {
    fn requirement(of: &NodeSelectorRequirement) -> Requirement<'_> {
        let values = of.values.as_ref().map(|values| values.iter().map(String::as_str).collect());
        Requirement { key: &of.key, operator: &of.operator, values }
    }
    fn requirements(of: Option<&Vec<NodeSelectorRequirement>>) -> Option<Vec<Requirement<'_>>> {
        of.map(|of| of.iter().map(requirement).collect())
    }
    let nodes = volume.nodes.as_ref().map(|nodes| {
        let terms = nodes.node_selector_terms.iter();
        terms
            .map(|term| Term {
                expressions: requirements(term.match_expressions.as_ref()),
                fields: requirements(term.match_fields.as_ref()),
            })
            .collect()
    });
    let (path, kind, nfs) = match &volume.source {
        VolumeSource::Path { path, kind } => (Some(&**path), Some(&**kind), None),
        VolumeSource::Nfs(NfsExport { server, path, options }) => {
            let options = options.iter().map(|option| &**option).collect();
            (None, None, Some(StoredExport { server, path, options }))
        }
    };
    StoredVolume { name: &volume.name, path, kind, nodes, nfs }
}

fn whole<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, DecodeError> {
    let mut decoder = minicbor::Decoder::new(bytes);
    let read = decoder.decode()?;
    if decoder.position() < bytes.len() {
        return Err(DecodeError::message("bytes behind the content"));
    }
    Ok(read)
}

fn few<T>(list: &[T], max: usize) -> Result<(), DecodeError> {
    if list.len() > max { Err(DecodeError::message("more than there can be")) } else { Ok(()) }
}

/// Decodes the object of that key; `None` = it does not exist.
///
/// # Errors
/// The bytes are not exactly one content of that kind, or exceed its limits.
pub fn decode(key: &ObjectKey, bytes: &[u8]) -> Result<Option<Object>, DecodeError> {
    if bytes == NOTHING {
        return Ok(None);
    }
    let (namespace, name) = (key.namespace.clone(), key.name.clone());
    let metadata = || ObjectMeta {
        name: Some(name.to_string()),
        namespace: Some(namespace.to_string()),
        ..ObjectMeta::default()
    };
    let owned = |of: &[Value<'_>]| {
        let value = |of: &Value<'_>| (of.key.to_owned(), ByteString(of.value.to_vec()));
        (!of.is_empty()).then(|| of.iter().map(value).collect::<BTreeMap<_, _>>())
    };
    Ok(Some(match key.kind {
        ObjectKind::ConfigMap => {
            let Values { texts, bytes, immutable, .. } = whole(bytes)?;
            let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
            let data = (!texts.is_empty()).then(|| texts.into_iter().map(text).collect());
            let binary_data = owned(&bytes);
            Object::ConfigMap(Arc::new(ConfigMap { metadata: metadata(), data, binary_data, immutable }))
        }
        ObjectKind::Secret => {
            let Values { bytes, immutable, kind, .. } = whole(bytes)?;
            Object::Secret(Arc::new(Secret {
                metadata: metadata(),
                data: owned(&bytes),
                string_data: None,
                type_: kind.map(str::to_owned),
                immutable,
            }))
        }
        ObjectKind::Token => {
            let value: &str = whole(bytes)?;
            Object::Token(Arc::new(Token { namespace, name, value: value.into() }))
        }
        ObjectKind::Services => {
            let list: Vec<StoredService<'_>> = whole(bytes)?;
            few(&list, KUBE_SERVICES_MAX)?;
            let list = list.into_iter().map(service).collect::<Result<_, _>>()?;
            Object::Services(Arc::new(Services { namespace, name, list }))
        }
        ObjectKind::RuntimeClass => {
            let handler: &str = whole(bytes)?;
            Object::RuntimeClass(Arc::new(RuntimeClass { name: (*name).into(), handler: handler.into() }))
        }
        ObjectKind::Claim => {
            let volume = Arc::new(volume(whole(bytes)?)?);
            Object::Claim(Arc::new(Claim { namespace, name, volume: Ok(volume) }))
        }
    }))
}

fn service(of: StoredService<'_>) -> Result<Service, DecodeError> {
    few(&of.ports, LIST_ITEMS_MAX)?;
    let text = |text: Option<&str>| text.map(str::to_owned);
    let port = |of: StoredPort<'_>| ServicePort {
        name: text(of.name),
        protocol: text(of.protocol),
        port: of.port,
        ..ServicePort::default()
    };
    Ok(Service {
        metadata: ObjectMeta { name: text(of.name), namespace: text(of.namespace), ..ObjectMeta::default() },
        spec: Some(ServiceSpec {
            cluster_ip: text(of.cluster_ip),
            ports: Some(of.ports.into_iter().map(port).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

fn volume(of: StoredVolume<'_>) -> Result<ClaimedVolume, DecodeError> {
    let requirement = |of: Requirement<'_>| NodeSelectorRequirement {
        key: of.key.to_owned(),
        operator: of.operator.to_owned(),
        values: of.values.map(|values| values.into_iter().map(str::to_owned).collect()),
    };
    let requirements = |of: Vec<Requirement<'_>>| of.into_iter().map(requirement).collect();
    let term = |of: Term<'_>| NodeSelectorTerm {
        match_expressions: of.expressions.map(requirements),
        match_fields: of.fields.map(requirements),
    };
    let nodes =
        of.nodes.map(|terms| NodeSelector { node_selector_terms: terms.into_iter().map(term).collect() });
    let source = match (of.path, of.kind, of.nfs) {
        (Some(path), Some(kind), None) => VolumeSource::Path { path: path.into(), kind: kind.into() },
        (None, None, Some(StoredExport { server, path, options })) => {
            let export = NfsExport::new(server, path, options.into_iter());
            VolumeSource::Nfs(export.map_err(|refused| DecodeError::message(refused.field))?)
        }
        _ => return Err(DecodeError::message("a volume of no one kind")),
    };
    Ok(ClaimedVolume { name: of.name.into(), source, nodes })
}

/// Encodes the Node's fields.
pub fn encode_node(node: &OfflineNode) -> Vec<u8> {
    fn taint(of: &Taint) -> StoredTaint<'_> {
        StoredTaint { key: &of.key, value: of.value.as_deref(), effect: &of.effect }
    }
    to_vec(&StoredNode {
        labels: pairs(&node.labels),
        taints: node.taints.iter().map(taint).collect(),
        pod_cidrs: node.pod_cidrs.iter().map(|cidr| &**cidr).collect(),
    })
}

/// Decodes the Node's fields.
///
/// # Errors
/// The bytes are invalid, or exceed a Node's limits.
pub fn decode_node(bytes: &[u8]) -> Result<OfflineNode, DecodeError> {
    let StoredNode { labels, taints, pod_cidrs } = whole(bytes)?;
    few(&labels, OFFLINE_LABELS_MAX)?;
    few(&taints, OFFLINE_LABELS_MAX)?;
    few(&pod_cidrs, POD_CIDRS_MAX)?;
    let taint = |of: StoredTaint<'_>| Taint {
        key: of.key.to_owned(),
        value: of.value.map(str::to_owned),
        effect: of.effect.to_owned(),
        time_added: None,
    };
    Ok(OfflineNode {
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        taints: taints.into_iter().map(taint).collect(),
        pod_cidrs: pod_cidrs.into_iter().map(Box::from).collect(),
    })
}
