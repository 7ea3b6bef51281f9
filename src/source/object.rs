//! Parses and validates a document of kind ConfigMap or Secret (`ValidateConfigMap`, `ValidateSecret`). PURE.
//!
//! Errors about a Secret contain none of its values.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, NodeSelector, NodeSelectorRequirement, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::identity;
use super::validate;
use crate::decode::typed::{self, Decoded};
use crate::decode::{ErrorKind, FieldError, FieldErrors, Node, Path};
use crate::image::keyring::pull_secret;
use crate::limits::OBJECT_BYTES_MAX;
use crate::model::names;
use crate::model::object::{RuntimeClass, VolumeSource};
use crate::model::{NfsExport, Object, ObjectKind};

type Texts = BTreeMap<String, String>;

/// The manifest type of one of these kinds: the fields that they share, and those of the kind.
macro_rules! manifest {
    ($kind:literal $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* }) => {
        #[derive(Default, Deserialize)]
        #[serde(rename = $kind, rename_all = "camelCase", default)]
        struct $name {
            #[serde(rename = "apiVersion")]
            _api_version: Option<String>,
            #[serde(rename = "kind")]
            _kind: Option<String>,
            metadata: ObjectMeta,
            data: Option<Texts>,
            immutable: Option<bool>,
            $($(#[$attribute])* $field: $type),*
        }
    };
}

manifest!("ConfigMap" ConfigMapManifest { binary_data: Option<Texts> });
manifest!("Secret" SecretManifest { string_data: Option<Texts>, #[serde(rename = "type")] type_: Option<String> });

/// The object kind of a document; `None` for other kinds.
pub(super) fn kind(kind: &str) -> Option<ObjectKind> {
    match kind {
        "ConfigMap" => Some(ObjectKind::ConfigMap),
        "Secret" => Some(ObjectKind::Secret),
        _ => None,
    }
}

/// Reads the object; paths in its errors begin at it.
pub fn read(kind: ObjectKind, tree: &Node) -> Result<Object, FieldErrors> {
    match kind {
        ObjectKind::RuntimeClass => {
            let name = tree.field("metadata").and_then(|metadata| metadata.field("name"));
            let name = name.and_then(Node::text).unwrap_or_default().into();
            let handler = tree.field("handler").and_then(Node::text).unwrap_or_default().into();
            Ok(Object::RuntimeClass(Arc::new(RuntimeClass { name, handler })))
        }
        ObjectKind::Token | ObjectKind::Services | ObjectKind::Claim => {
            Err(FieldError::new("", "is nothing that a document may hold").into())
        }
        ObjectKind::ConfigMap => config_map(tree),
        ObjectKind::Secret => secret(tree),
    }
}

fn config_map(tree: &Node) -> Result<Object, FieldErrors> {
    let Decoded { value, mut errors, unread } = typed::read_all::<ConfigMapManifest>(tree, Path::default());
    let Some(read) = value else { return Err(errors) };
    let binary = decoded("binaryData", read.binary_data, "", &mut errors);
    config_map_errors(read.data.as_ref(), binary.as_ref(), &mut errors);
    let metadata = checked(read.metadata, tree, &unread, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let map = ConfigMap { metadata, data: read.data, binary_data: binary, immutable: read.immutable };
    Ok(Object::ConfigMap(Arc::new(map)))
}

fn secret(tree: &Node) -> Result<Object, FieldErrors> {
    let Decoded { value, mut errors, unread } = typed::read_all::<SecretManifest>(tree, Path::default());
    errors.hide_values();
    let Some(read) = value else { return Err(errors) };
    let mut data = decoded("data", read.data, "; plain text belongs into stringData", &mut errors);
    for (key, value) in read.string_data.into_iter().flatten() {
        data.get_or_insert_default().insert(key, ByteString(value.into_bytes()));
    }
    keys("data", data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.len())), &mut errors);
    // What a type needs may stand in what could not be read.
    if unread.is_empty() {
        secret_type_errors(read.type_.as_deref().unwrap_or_default(), data.as_ref(), &mut errors);
    }
    let metadata = checked(read.metadata, tree, &unread, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let type_ = read.type_.filter(|type_| !type_.is_empty()).or_else(|| Some("Opaque".into()));
    Ok(Object::Secret(Arc::new(Secret {
        metadata,
        data,
        string_data: None,
        type_,
        immutable: read.immutable,
    })))
}

/// Memory of an object in bytes, rather overestimated.
pub(crate) fn cost(object: &Object) -> usize {
    const OBJECT: usize = 1024;
    const ENTRY: usize = 64;
    const SERVICE: usize = 2048;
    let entries: usize = match object {
        Object::ConfigMap(map) => {
            let text = map.data.iter().flatten().map(|(key, value)| ENTRY + key.len() + value.len());
            let binary =
                map.binary_data.iter().flatten().map(|(key, value)| ENTRY + key.len() + value.0.len());
            text.chain(binary).sum()
        }
        Object::Secret(secret) => {
            secret.data.iter().flatten().map(|(key, value)| ENTRY + key.len() + value.0.len()).sum()
        }
        Object::Token(token) => token.name.len() + token.value.len(),
        Object::Services(services) => services.list.len() * SERVICE,
        Object::RuntimeClass(class) => class.name.len() + class.handler.len(),
        Object::Claim(claim) => match &claim.volume {
            Ok(volume) => {
                let source = match &volume.source {
                    VolumeSource::Path { path, kind } => path.len() + kind.len(),
                    VolumeSource::Nfs(NfsExport { server, path, options }) => {
                        let options = options.iter().map(|option| ENTRY + option.len());
                        server.len() + path.len() + options.sum::<usize>()
                    }
                };
                source + volume.nodes.as_ref().map_or(0, selector_cost)
            }
            Err(why) => why.len(),
        },
    };
    OBJECT + entries
}

/// Memory of a node selector.
fn selector_cost(selector: &NodeSelector) -> usize {
    const REQUIREMENT: usize = 256;
    let terms = selector.node_selector_terms.iter();
    let all = terms.flat_map(|term| term.match_expressions.iter().chain(&term.match_fields).flatten());
    let texts = |of: &NodeSelectorRequirement| {
        REQUIREMENT + of.key.len() + of.values.iter().flatten().map(|value| 32 + value.len()).sum::<usize>()
    };
    selector.node_selector_terms.len() * REQUIREMENT + all.map(texts).sum::<usize>()
}

/// What is kept of the metadata: the name and the namespace, by default `default`.
fn checked(metadata: ObjectMeta, tree: &Node, unread: &[String], errors: &mut FieldErrors) -> ObjectMeta {
    let namespace = identity::namespace(tree).to_owned();
    errors.append(validate::object_names(metadata.name.as_deref(), &namespace, unread));
    ObjectMeta { name: metadata.name, namespace: Some(namespace), ..ObjectMeta::default() }
}

/// Decodes base64 as Go does: line ends are skipped.
fn decoded(
    field: &str,
    data: Option<Texts>,
    mend: &str,
    errors: &mut FieldErrors,
) -> Option<BTreeMap<String, ByteString>> {
    let mut decoded = BTreeMap::new();
    for (key, text) in data? {
        let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        let Ok(bytes) = BASE64_STANDARD.decode(text) else {
            let message = format!("must be base64{mend}");
            errors.push(FieldError::of(ErrorKind::Invalid, format!("{field}.{}", shown(&key)), message));
            continue;
        };
        decoded.insert(key, ByteString(bytes));
    }
    Some(decoded)
}

fn shown(key: &str) -> String {
    crate::decode::middle_cut(key, 64).replace(char::is_control, "\u{fffd}")
}

/// The rules for keys, and the size of all values.
fn keys<'a>(field: &str, entries: impl Iterator<Item = (&'a str, usize)>, errors: &mut FieldErrors) -> usize {
    let mut bytes = 0;
    for (key, length) in entries {
        bytes += length;
        if let Some(message) = names::config_key(key) {
            errors.push(FieldError::of(ErrorKind::Invalid, format!("{field}.{}", shown(key)), message));
        }
    }
    if bytes > OBJECT_BYTES_MAX {
        let message = format!("has {bytes} bytes of values; an object may have {OBJECT_BYTES_MAX}");
        errors.push(FieldError::new(field, message));
    }
    bytes
}

fn config_map_errors(
    data: Option<&Texts>,
    binary: Option<&BTreeMap<String, ByteString>>,
    errors: &mut FieldErrors,
) {
    let text = keys("data", data.into_iter().flatten().map(|(k, v)| (k.as_str(), v.len())), errors);
    let bytes =
        keys("binaryData", binary.into_iter().flatten().map(|(k, v)| (k.as_str(), v.0.len())), errors);
    if text <= OBJECT_BYTES_MAX && bytes <= OBJECT_BYTES_MAX && text + bytes > OBJECT_BYTES_MAX {
        let message = format!("has {} bytes of values; an object may have {OBJECT_BYTES_MAX}", text + bytes);
        errors.push(FieldError::new("", message));
    }
    for key in data.into_iter().flatten().map(|(key, _)| key) {
        if binary.is_some_and(|binary| binary.contains_key(key)) {
            errors.push(FieldError::new(
                format!("data.{}", shown(key)),
                "is in binaryData too; remove one of them",
            ));
        }
    }
}

/// What a Secret of that type must hold.
fn secret_type_errors(type_: &str, data: Option<&BTreeMap<String, ByteString>>, errors: &mut FieldErrors) {
    let value = |key: &str| data.and_then(|data| data.get(key)).map(|value| value.0.as_slice());
    let mut required = |keys: &[&str]| {
        for key in keys {
            let message = format!("of a Secret of type {type_}");
            errors.push(FieldError::of(ErrorKind::Required, format!("data.{key}"), message));
        }
    };
    match type_ {
        "kubernetes.io/service-account-token" => {
            let message = "is not supported by this version: service accounts need an API server";
            errors.push(FieldError::of(ErrorKind::Forbidden, "type", message));
        }
        "kubernetes.io/basic-auth" if value("username").is_none() && value("password").is_none() => {
            required(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if value("ssh-privatekey").is_none_or(<[u8]>::is_empty) => {
            required(&["ssh-privatekey"]);
        }
        "kubernetes.io/tls" => {
            let missing: Vec<&str> =
                ["tls.crt", "tls.key"].into_iter().filter(|key| value(key).is_none()).collect();
            required(&missing);
        }
        _ => {
            if let Some((key, read)) = pull_secret(type_) {
                match value(key).map(read) {
                    None => required(&[key]),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => errors.push(FieldError::new(format!("data.{key}"), error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Side;
    use crate::source::NodeName;
    use crate::source::manifest::{ParsedFile, parse};

    fn parsed(text: &str) -> ParsedFile {
        parse(&Arc::from("f.yaml"), text.as_bytes(), &NodeName::new("n"), crate::model::Wall(0), 1 << 20)
    }

    fn one(text: &str) -> Object {
        let parsed = parsed(text);
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
        parsed.objects.into_iter().next().unwrap().object
    }

    #[test]
    fn both_kinds_are_read_with_all_their_fields() {
        let Object::ConfigMap(map) = one(
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: ns, labels: {a: b}}, immutable: true,\n\
             data: {a.conf: \"x\\ny\\n\", empty: }, binaryData: {raw: AP8=}}",
        ) else {
            panic!("a ConfigMap")
        };
        assert_eq!(map.data.as_ref().unwrap()["a.conf"], "x\ny\n");
        assert_eq!(map.data.as_ref().unwrap()["empty"], "");
        assert_eq!(map.binary_data.as_ref().unwrap()["raw"].0, [0, 255]);
        assert_eq!((map.immutable, map.metadata.labels.is_none()), (Some(true), true));
        assert_eq!(
            one("{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}").key(Side::Manifests).to_string(),
            "ConfigMap default/m"
        );

        let Object::Secret(secret) = one(
            "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  a: |\n    aGVs\n    bG8=\n  b: b2xk\n\
             stringData: {b: new, c: plain}\n",
        ) else {
            panic!("a Secret")
        };
        let data = secret.data.as_ref().unwrap();
        let value = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
        assert_eq!((value("a"), value("b"), value("c")), ("hello".into(), "new".into(), "plain".into()));
        assert_eq!((secret.type_.as_deref(), secret.string_data.is_none()), (Some("Opaque"), true));
    }

    #[test]
    fn objects_stand_beside_pods_and_in_lists() {
        let parsed = parsed(
            "apiVersion: v1\nkind: List\nitems:\n\
             - {apiVersion: v1, kind: ConfigMap, metadata: {name: m}}\n\
             - {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}\n\
             ---\n{apiVersion: v1, kind: Secret, metadata: {name: s}}\n",
        );
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
        let places: Vec<(String, u32)> = parsed
            .objects
            .iter()
            .map(|object| (object.object.key(Side::Manifests).to_string(), object.document))
            .collect();
        assert_eq!(places, [("ConfigMap default/m".into(), 1), ("Secret default/s".into(), 2)]);
        assert_eq!(parsed.pods.len(), 1);
        assert!(parsed.bytes > 2 * 1024 + 3 * 1024);
    }

    /// Errors name object, field and remedy, and no value of a Secret.
    #[test]
    fn what_is_wrong_is_said_without_values() {
        let large = "x".repeat(OBJECT_BYTES_MAX / 2 + 1);
        let rows = [
            (
                "kind: ConfigMap, metadata: {name: m}, data: {port: 80}",
                "ConfigMap default/m: data.port: Invalid value: 80: must be a string",
            ),
            ("kind: ConfigMap, metadata: {name: m}, dat: {}", "dat: unknown field"),
            (
                "kind: ConfigMap, metadata: {name: M_}",
                "metadata.name: Invalid value: \"M_\": must be at most 253 lower case",
            ),
            ("kind: ConfigMap, metadata: {}", "metadata.name: Required value"),
            (
                "kind: ConfigMap, metadata: {name: m, namespace: A}",
                "metadata.namespace: Invalid value: \"A\"",
            ),
            (
                "kind: ConfigMap, metadata: {name: m}, data: {a/b: x}",
                "data.a/b: Invalid value: must be at most 253 letters",
            ),
            ("kind: ConfigMap, metadata: {name: m}, data: {..a: x}", "data...a: Invalid value: must be"),
            (
                "kind: ConfigMap, metadata: {name: m}, data: {a: x}, binaryData: {a: eA==}",
                "data.a: is in binaryData too",
            ),
            (
                "kind: ConfigMap, metadata: {name: m}, binaryData: {a: '?'}",
                "binaryData.a: Invalid value: must be base64",
            ),
            (
                "kind: ConfigMap, metadata: {name: m}, immutable: perhaps",
                "immutable: Invalid value: \"perhaps\": must be true or false",
            ),
            (
                "kind: Secret, metadata: {name: s}, data: {a: hunter2!}",
                "Secret default/s: data.a: Invalid value: must be base64; plain text belongs into stringData",
            ),
            (
                "kind: Secret, metadata: {name: s}, data: {a: [hunter2]}",
                "data.a: Invalid value: must be a string",
            ),
            (
                "kind: Secret, metadata: {name: s}, stringData: hunter2",
                "stringData: Invalid value: must be a map",
            ),
            ("kind: Secret, metadata: {name: s}, password: hunter2", "password: unknown field"),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/tls, stringData: {tls.crt: hunter2}",
                "data.tls.key: Required value: of a Secret of type kubernetes.io/tls",
            ),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/basic-auth",
                "data.username: Required value",
            ),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/ssh-auth, stringData: {ssh-privatekey: ''}",
                "data.ssh-privatekey: Required value",
            ),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: hunter2}",
                "data..dockerconfigjson: must be a JSON object",
            ),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/dockerconfigjson, \
                 stringData: {.dockerconfigjson: '{\"auths\": {\"r.io\": {\"auth\": \"hunter2!\"}}}'}",
                "data..dockerconfigjson: auths[\"r.io\"].auth: must be the base64 of user:password",
            ),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/dockercfg",
                "data..dockercfg: Required value",
            ),
            (
                "kind: Secret, metadata: {name: s}, type: kubernetes.io/service-account-token",
                "type: Forbidden: is not supported by this version",
            ),
            (
                "kind: Secrets, metadata: {name: s}, stringData: {a: hunter2}",
                "must be Pod, ConfigMap, Secret or List",
            ),
            (
                &format!("kind: ConfigMap, metadata: {{name: m}}, data: {{a: {large}, b: {large}}}"),
                "an object may have",
            ),
        ];
        for (text, wanted) in rows {
            let parsed = parsed(&format!("{{apiVersion: v1, {text}}}"));
            let problems: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
            assert!(problems.iter().any(|problem| problem.contains(wanted)), "{wanted} is in {problems:?}");
            assert!(parsed.objects.is_empty() && !problems.concat().contains("hunter2"), "{problems:?}");
        }
        let old = parsed("{apiVersion: v2, kind: Secret, metadata: {name: s}}");
        assert!(
            old.problems[0]
                .to_string()
                .contains("Secret default/s: apiVersion: Invalid value: \"v2\": must be v1")
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let text = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m}}, data: {{a: {}}}}}",
            "x".repeat(4096)
        );
        let node = NodeName::new("n");
        let parsed = parse(&Arc::from("f.yaml"), text.as_bytes(), &node, crate::model::Wall(0), 4096);
        assert!(
            parsed.objects.is_empty() && parsed.problems[0].to_string().contains("does not fit"),
            "{:?}",
            parsed.problems
        );
    }
}
