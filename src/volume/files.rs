//! Files of volumes with generated content (configMap, secret, downwardAPI, projected). PURE.
use std::fmt;

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, PodSpec, SecurityContext, ServiceAccountTokenProjection, Volume,
};

use crate::model::SortedMap;
use crate::model::object::{TOKEN_KEY, TokenRequest};
use crate::model::{DesiredPod, Object, ObjectKind, Objects};
use crate::render::{NodeSettings, file_field, file_resource};
use crate::text::quoted;

/// Mode of a file when neither its item nor the volume's `defaultMode` sets one.
const FILE_MODE: u32 = 0o644;

/// One file of such a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Relative to the volume; validated: no `..` in it.
    pub path: String,
    /// Permission bits, before `fsGroup` adds some.
    pub mode: u32,
    /// The owner, when not root (`FileProjection.FsUser`).
    pub user: Option<u32>,
    /// Content of the file.
    pub content: Content,
}

/// Content of a file. Its `Debug` output hides it.
#[derive(Clone, PartialEq)]
pub enum Content {
    /// The value of a key; shared, as a hundred pods may have it in their volumes.
    Value(Object, Box<str>),
    /// Text of the downward API.
    Text(Box<str>),
}

impl Eq for Content {}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes().len())
    }
}

impl Content {
    /// The content's bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Value(object, key) => object.value(key).unwrap_or_default(),
            Self::Text(text) => text.as_bytes(),
        }
    }
}

/// Inputs of volumes with generated content.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// The pod.
    pub pod: &'a DesiredPod,
    /// For the defaults of limits that the pod does not set.
    pub node: &'a NodeSettings,
    /// ConfigMaps and Secrets; the pod sees those of its side.
    pub objects: &'a Objects,
}

/// True when the files are kept in a tmpfs, as in the kubelet: those that may contain secrets.
pub fn in_memory(volume: &Volume) -> bool {
    volume.secret.is_some() || volume.downward_api.is_some() || volume.projected.is_some()
}

/// The files of such a volume, sorted by path; `None` for a volume of another kind.
///
/// # Errors
/// A required object or key does not exist, or a field of the pod cannot be rendered, in the kubelet's wording
/// (`MakePayload`, `CollectData`).
pub fn of_volume(volume: &Volume, from: Sources<'_>) -> Option<Result<Vec<File>, String>> {
    let mut found = Files { from, mode: FILE_MODE, found: SortedMap::new(), errors: Vec::new() };
    if let Some(source) = &volume.config_map {
        found.mode = bits(source.default_mode).unwrap_or(FILE_MODE);
        found.object(ObjectKind::ConfigMap, &source.name, source.items.as_deref(), source.optional);
    } else if let Some(source) = &volume.secret {
        found.mode = bits(source.default_mode).unwrap_or(FILE_MODE);
        let name = source.secret_name.as_deref().unwrap_or_default();
        found.object(ObjectKind::Secret, name, source.items.as_deref(), source.optional);
    } else if let Some(source) = &volume.downward_api {
        found.mode = bits(source.default_mode).unwrap_or(FILE_MODE);
        found.downward(source.items.as_deref());
    } else if let Some(projected) = &volume.projected {
        found.mode = bits(projected.default_mode).unwrap_or(FILE_MODE);
        for source in projected.sources.iter().flatten() {
            if let Some(of) = &source.secret {
                found.object(ObjectKind::Secret, &of.name, of.items.as_deref(), of.optional);
            } else if let Some(of) = &source.config_map {
                found.object(ObjectKind::ConfigMap, &of.name, of.items.as_deref(), of.optional);
            } else if let Some(of) = &source.downward_api {
                found.downward(of.items.as_deref());
            } else if let Some(of) = &source.service_account_token {
                found.token(of);
            } else {
                // The kubelet fails the volume too when these features are disabled.
                let what =
                    if source.pod_certificate.is_some() { "PodCertificate" } else { "ClusterTrustBundle" };
                found.errors.push(format!("{what} projection is not supported by this node"));
            }
        }
    } else {
        return None;
    }
    Some(found.done())
}

/// The files collected so far; of two at one path the later wins.
struct Files<'a> {
    from: Sources<'a>,
    mode: u32,
    found: SortedMap<String, File>,
    errors: Vec<String>,
}

impl Files<'_> {
    /// Adds a file and returns its cleaned path.
    fn add(&mut self, path: &str, mode: Option<i32>, content: Content) -> String {
        let mode = bits(mode).unwrap_or(self.mode);
        // `filepath.Clean`: dropping empty and `.` components is enough, as no path leads upwards.
        let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        let path = parts.join("/");
        self.found.insert(path.clone(), File { path: path.clone(), mode, user: None, content });
        path
    }

    fn object(&mut self, kind: ObjectKind, name: &str, items: Option<&[KeyToPath]>, optional: Option<bool>) {
        let (optional, items) = (optional == Some(true), items.unwrap_or_default());
        let found = self.from.objects.find(self.from.pod, kind, name);
        let (word, key_missing) = match kind {
            ObjectKind::ConfigMap => ("configmap", "configmap references non-existent config key"),
            ObjectKind::Secret => ("secret", "references non-existent secret key"),
            ObjectKind::Token => ("token", "references non-existent token key"),
            ObjectKind::Services => ("service", "references non-existent service key"),
            ObjectKind::RuntimeClass => ("runtimeclass", "references non-existent runtimeclass key"),
            ObjectKind::Claim => ("persistentvolumeclaim", "references non-existent claim key"),
        };
        let Some(object) = found.cloned() else {
            if !optional {
                self.errors.push(format!("{word} {} not found", quoted(name)));
            }
            return;
        };
        if items.is_empty() {
            for key in object.keys() {
                let _ = self.add(key, None, Content::Value(object.clone(), key.into()));
            }
        }
        for item in items {
            if object.value(&item.key).is_some() {
                let content = Content::Value(object.clone(), item.key.as_str().into());
                let _ = self.add(&item.path, item.mode, content);
            } else if !optional {
                self.errors.push(format!("{key_missing}: {}", item.key));
                return;
            }
        }
    }

    /// `collectData` of a token: when the pod defines the reader (`fsGroup`, or the same user for all containers), only that
    /// one may read it.
    fn token(&mut self, source: &ServiceAccountTokenProjection) {
        let pod = &self.from.pod.pod;
        let wish = TokenRequest::of(pod, source);
        let known = self.from.objects.find(self.from.pod, ObjectKind::Token, &wish.name());
        let Some(object) = known.cloned() else {
            let account = quoted(&wish.account);
            self.errors
                .push(format!("failed to fetch token: there is none yet for serviceaccount {account}"));
            return;
        };
        let user = fs_user(self.from.pod.spec());
        let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
        let is_narrow = user.is_some() || security.is_some_and(|security| security.fs_group.is_some());
        let path =
            self.add(&source.path, is_narrow.then_some(0o600), Content::Value(object, TOKEN_KEY.into()));
        if let Some(file) = self.found.get_mut(&path) {
            file.user = user;
        }
    }

    fn downward(&mut self, items: Option<&[DownwardAPIVolumeFile]>) {
        for item in items.unwrap_or_default() {
            let text = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => file_field(self.from.pod, &field.field_path),
                (None, Some(field)) => file_resource(self.from.node, self.from.pod, field),
                (None, None) => Ok(String::new()),
            };
            match text {
                Ok(text) => drop(self.add(&item.path, item.mode, Content::Text(text.into()))),
                Err(error) => self.errors.push(error),
            }
        }
    }

    /// All errors as one (`utilerrors.NewAggregate`).
    fn done(mut self) -> Result<Vec<File>, String> {
        match self.errors.len() {
            0 => Ok(self.found.into_values().collect()),
            1 => Err(self.errors.remove(0)),
            _ => Err(format!("[{}]", self.errors.join(", "))),
        }
    }
}

/// The user that all containers run as (`FsUserFrom`); `None` when one sets no user, or another one.
fn fs_user(spec: &PodSpec) -> Option<u32> {
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let own = |context: Option<&SecurityContext>| context.and_then(|context| context.run_as_user).or(of_pod);
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| own(c.security_context.as_ref()));
    let mut users = all.map(|c| own(c.security_context.as_ref())).chain(ephemeral);
    let first = users.next()??;
    if users.all(|user| user == Some(first)) { u32::try_from(first).ok() } else { None }
}

/// Validated: 0 to 0777.
fn bits(mode: Option<i32>) -> Option<u32> {
    mode.and_then(|mode| u32::try_from(mode).ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Side;
    use serde_json::{Value, json};

    fn objects() -> Objects {
        let map = json!({"metadata": {"name": "m", "namespace": "ns"}, "data": {"a": "1", "b": "2"}, "binaryData": {"c": "AP8="}});
        let secret = json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"word": "aHVudGVyMg=="}});
        let all = [
            Object::ConfigMap(Arc::new(serde_json::from_value(map).unwrap())),
            Object::Secret(Arc::new(serde_json::from_value(secret).unwrap())),
        ];
        all.into_iter().map(|object| (object.key(Side::Manifests), object)).collect()
    }

    fn shown(volume: Value) -> String {
        shown_to("file", volume, &objects())
    }

    /// What a pod of that source sees in the volume.
    fn shown_to(source: &str, volume: Value, objects: &Objects) -> String {
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let annotations = json!({"kubernetes.io/config.source": source});
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"a": "1", "b": "x\"y"}, "annotations": annotations},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c", "resources": {"limits": {"memory": "1Ki"}}}]}});
        let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        let mut node = NodeSettings::new("n", "/r");
        node.memory_allocatable_bytes = 5000;
        let from = Sources { pod: &pod, node: &node, objects };
        match of_volume(&volume, from) {
            None => "none".to_owned(),
            Some(Ok(files)) => {
                let one = |file: &File| format!("{} {:o} {:?}", file.path, file.mode, file.content);
                format!("[{}]", files.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            Some(Err(error)) => error,
        }
    }

    #[test]
    fn files_are_those_of_the_keys_or_of_the_items() {
        for (source, wanted) in [
            (json!({"configMap": {"name": "m"}}), "[a 644 1 bytes, b 644 1 bytes, c 644 2 bytes]"),
            (
                json!({"configMap": {"name": "m", "defaultMode": 256, "items": [
                    {"key": "b", "path": "x/y"}, {"key": "c", "path": "z", "mode": 493}]}}),
                "[x/y 400 1 bytes, z 755 2 bytes]",
            ),
            (json!({"secret": {"secretName": "s", "defaultMode": 288}}), "[word 440 7 bytes]"),
            (
                json!({"configMap": {"name": "m", "items": [{"key": "no", "path": "x"}]}}),
                "configmap references non-existent config key: no",
            ),
            (
                json!({"secret": {"secretName": "s", "items": [{"key": "no", "path": "x"}]}}),
                "references non-existent secret key: no",
            ),
            (
                json!({"secret": {"secretName": "s", "optional": true, "items": [{"key": "no", "path": "x"}]}}),
                "[]",
            ),
            (json!({"configMap": {"name": "s"}}), "configmap \"s\" not found"),
            (json!({"secret": {"secretName": "m"}}), "secret \"m\" not found"),
            (json!({"secret": {"secretName": "m", "optional": true}}), "[]"),
            (json!({"emptyDir": {}}), "none"),
            (
                json!({"downwardAPI": {"items": [
                    {"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "./x//n", "mode": 256, "fieldRef": {"fieldPath": "metadata.name"}},
                    {"path": "own", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory"}},
                    {"path": "nodes", "resourceFieldRef": {"containerName": "i", "resource": "limits.memory"}}]}}),
                "[l 644 14 bytes, nodes 644 4 bytes, own 644 4 bytes, x/n 400 1 bytes]",
            ),
            (
                json!({"downwardAPI": {"items": [
                    {"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}},
                    {"path": "s", "fieldRef": {"fieldPath": "spec['x']"}},
                    {"path": "c", "resourceFieldRef": {"containerName": "no", "resource": "limits.cpu"}}]}}),
                "[unsupported fieldPath: status.podIP, fieldPath \"spec['x']\" does not support subscript, container no not found]",
            ),
            (
                json!({"projected": {"defaultMode": 288, "sources": [
                    {"configMap": {"name": "m"}}, {"secret": {"name": "s", "items": [{"key": "word", "path": "a"}]}},
                    {"downwardAPI": {"items": [{"path": "d/n", "mode": 292, "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    {"secret": {"name": "no", "optional": true}}]}}),
                "[a 440 7 bytes, b 440 1 bytes, c 440 2 bytes, d/n 444 1 bytes]",
            ),
            (
                json!({"projected": {"sources": [{"configMap": {"name": "no"}}, {"secret": {"name": "no"}}]}}),
                "[configmap \"no\" not found, secret \"no\" not found]",
            ),
        ] {
            let mut volume = source.clone();
            volume["name"] = json!("v");
            assert_eq!(shown(volume), wanted, "{source}");
        }
    }

    #[test]
    fn a_pod_has_the_objects_of_its_side_only() {
        let volumes = [
            (json!({"name": "v", "configMap": {"name": "m"}}), "configmap \"m\" not found"),
            (json!({"name": "v", "secret": {"secretName": "s"}}), "secret \"s\" not found"),
            (json!({"name": "v", "secret": {"secretName": "s", "optional": true}}), "[]"),
            (
                json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "m"}}, {"secret": {"name": "s"}}]}}),
                "[configmap \"m\" not found, secret \"s\" not found]",
            ),
        ];
        let served: Objects = [
            json!({"metadata": {"name": "m", "namespace": "ns"}, "data": {"theirs": "123"}}),
            json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"theirs": "MTIzNDU="}}),
        ]
        .into_iter()
        .zip([ObjectKind::ConfigMap, ObjectKind::Secret])
        .map(|(value, kind)| {
            let object = if kind == ObjectKind::ConfigMap {
                Object::ConfigMap(Arc::new(serde_json::from_value(value).unwrap()))
            } else {
                Object::Secret(Arc::new(serde_json::from_value(value).unwrap()))
            };
            (object.key(Side::ApiServer), object)
        })
        .collect();
        for (volume, missing) in volumes {
            assert_eq!(shown_to("api", volume.clone(), &objects()), missing, "{volume}");
            for source in ["file", "http"] {
                assert_eq!(shown_to(source, volume.clone(), &served), missing, "{volume}");
                assert!(!shown_to(source, volume.clone(), &objects()).contains("not found"), "{volume}");
            }
            let own = shown_to("api", volume.clone(), &served);
            assert!(own.contains("theirs") && !own.contains("not found"), "{own}");
        }
    }

    #[test]
    fn a_token_is_readable_only_by_the_pods_user_if_it_defines_one() {
        let as_user = |user: i64| json!({"runAsUser": user});
        for (pod, init, app, debugger, wanted) in [
            (json!({}), json!({}), json!({}), None, "644 None"),
            (as_user(7), json!({}), json!({}), None, "600 Some(7)"),
            (json!({}), as_user(7), as_user(7), None, "600 Some(7)"),
            (json!({}), json!({}), as_user(7), None, "644 None"),
            (as_user(7), as_user(8), json!({}), None, "644 None"),
            (as_user(7), as_user(8), as_user(8), None, "600 Some(8)"),
            (as_user(0), json!({}), json!({}), None, "600 Some(0)"),
            (json!({"fsGroup": 9}), json!({}), json!({}), None, "600 None"),
            (json!({"fsGroup": 9, "runAsUser": 7}), json!({}), json!({}), None, "600 Some(7)"),
            (as_user(7), json!({}), json!({}), Some(json!({})), "600 Some(7)"),
            (json!({}), as_user(7), as_user(7), Some(json!({})), "644 None"),
        ] {
            let volume =
                json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
            let spec = json!({"securityContext": pod, "volumes": [volume],
                "initContainers": [{"name": "i", "securityContext": init}],
                "containers": [{"name": "c", "securityContext": app}],
                "ephemeralContainers": debugger.iter().map(|own| json!({"name": "e", "securityContext": own})).collect::<Vec<_>>()});
            let object = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
            let pod = DesiredPod::new(serde_json::from_value(object).unwrap());
            let (key, _) = crate::model::object::tokens_of(&pod.pod).next().unwrap();
            let token = crate::model::object::Token {
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                value: "x".into(),
            };
            let objects = Objects::from_iter([(key, Object::Token(Arc::new(token)))]);
            let node = NodeSettings::new("n", "/r");
            let volume = &pod.spec().volumes.as_ref().unwrap()[0];
            let from = Sources { pod: &pod, node: &node, objects: &objects };
            let files = of_volume(volume, from).unwrap().unwrap();
            assert_eq!(format!("{:o} {:?}", files[0].mode, files[0].user), wanted, "{spec}");
        }
    }
}
