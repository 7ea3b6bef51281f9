//! The identity of a static pod: its name on this node, its UID and the hash of its manifest. PURE.
//!
//! Both hashes are taken from the document as written, before defaulting and typing, in a canonical form: JSON
//! without white space, keys sorted, nulls left out. So neither an upgrade of the agent nor a reformatted manifest
//! changes a UID. The golden test (`tests/golden`) holds the bytes that are hashed.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use sha2::{Digest, Sha256};

use crate::decode::Node;
use crate::model::annotations::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE, OF_FILE, OF_URL};
use crate::model::{NanoFixed, Wall};

/// The node's name as it was stored at the first start.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name as given.
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a manifest's pod: `NAME-NODENAME`, the node's name in lower case (`generatePodName`).
    pub fn pod_name(&self, name: &str) -> String {
        format!("{name}-{}", self.0.to_ascii_lowercase())
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kind of a manifest's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestKind<'a> {
    /// A manifest directory.
    File,
    /// This URL.
    Url(&'a str),
}

/// Computed from a manifest before defaulting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.uid`: the manifest's own, else the hash of its immutable part.
    pub uid: String,
    /// `kubernetes.io/config.hash`: the hash of the whole manifest, `status` apart.
    pub config_hash: String,
}

/// The manifest's namespace; `default` when it has none.
pub fn namespace(manifest: &Node) -> &str {
    let given = manifest.field("metadata").and_then(|m| m.field("namespace")).and_then(Node::text);
    given.filter(|namespace| !namespace.is_empty()).unwrap_or("default")
}

/// Computes the identity of `manifest` on `node`.
///
/// With `restartPolicy: Always` (or none) the UID does not depend on the images of app containers and sidecars and on the
/// metadata: a change of these restarts one container in place. A change of anything else, and with another policy of anything
/// but the status, makes another pod. As the kubelet's (`applyDefaults`) the UID depends on the URL; unlike the kubelet's it does
/// not depend on the file.
pub fn identity(kind: ManifestKind<'_>, node: &NodeName, manifest: &Node) -> Identity {
    let metadata = manifest.field("metadata");
    let name = metadata.and_then(|m| m.field("name")).and_then(Node::text).unwrap_or_default();
    let url = match kind {
        ManifestKind::File => None,
        ManifestKind::Url(url) => Some(format!("url:{url}")),
    };
    let parts = [node.as_str(), namespace(manifest), name].into_iter().chain(url.as_deref());
    let parts: Vec<&str> = parts.collect();
    let own_uid = metadata.and_then(|m| m.field("uid")).and_then(Node::text).filter(|uid| !uid.is_empty());
    let uid = match own_uid {
        Some(uid) => uid.to_owned(),
        None => digest("smolet pod uid 1", &parts, &canonical_immutable(manifest)),
    };
    Identity { uid, config_hash: digest("smolet config hash 1", &parts, &canonical(manifest)) }
}

/// Sets a decoded pod's identity, as `applyDefaults` of the kubelet's `pkg/kubelet/config` does.
pub fn apply(kind: ManifestKind<'_>, pod: &mut Pod, identity: &Identity, node: &NodeName, seen: Wall) {
    let meta = &mut pod.metadata;
    meta.uid = Some(identity.uid.clone());
    meta.name = meta.name.as_deref().map(|name| node.pod_name(name));
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".to_owned());
    }
    let annotations = meta.annotations.get_or_insert_default();
    let source = if kind == ManifestKind::File { OF_FILE } else { OF_URL };
    annotations.insert(CONFIG_SOURCE.to_owned(), source.to_owned());
    annotations.insert(CONFIG_SEEN.to_owned(), NanoFixed(seen).to_string());
    annotations.insert(CONFIG_HASH.to_owned(), identity.config_hash.clone());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.as_str().to_owned());
    // A static pod is not evicted by taints (`AddOrUpdateTolerationInPod`).
    let stays = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    if kind == ManifestKind::File {
        let tolerations = spec.tolerations.get_or_insert_default();
        if !tolerations.contains(&stays) {
            tolerations.push(stays);
        }
    }
    // The manifest's status is ignored; the kubelet sets only the phase.
    pod.status = Some(k8s_openapi::api::core::v1::PodStatus {
        phase: Some("Pending".to_owned()),
        ..Default::default()
    });
}

/// The first half of a SHA-256 in hex: 32 characters, as long as the kubelet's. Parts are prefixed by their lengths, so that
/// different lists of parts differ in the digest.
fn digest(purpose: &str, parts: &[&str], body: &str) -> String {
    let mut hash = Sha256::new();
    for part in [purpose].iter().chain(parts).chain(&[body]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    crate::text::hex(&hash.finalize()[..16])
}

/// The canonical form of the whole manifest without its status.
pub fn canonical(manifest: &Node) -> String {
    let mut out = String::new();
    write_node(&mut out, manifest, &|path: &[PathStep<'_>], _| is_left_out(path));
    out
}

/// The canonical form of the immutable part of a manifest.
pub fn canonical_immutable(manifest: &Node) -> String {
    let policy = manifest.field("spec").and_then(|spec| spec.field("restartPolicy"));
    let always = policy.is_none_or(|policy| policy.text() == Some("Always"));
    let mut out = String::new();
    write_node(&mut out, manifest, &|path: &[PathStep<'_>], parent| match path {
        _ if is_left_out(path) => true,
        [PathStep::Key("metadata")]
        | [PathStep::Key("spec"), PathStep::Key("containers"), PathStep::Item, PathStep::Key("image")] => {
            always
        }
        [PathStep::Key("spec"), PathStep::Key("initContainers"), PathStep::Item, PathStep::Key("image")] => {
            always && parent.field("restartPolicy").and_then(Node::text) == Some("Always")
        }
        _ => false,
    });
    out
}

/// Fields that are left out: the status, which the source may write; and `apiVersion` and `kind`, which are the same in every pod
/// and which the items of a `PodList` leave out.
fn is_left_out(path: &[PathStep<'_>]) -> bool {
    matches!(path, [PathStep::Key("status" | "apiVersion" | "kind")])
}

/// One step into a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathStep<'a> {
    Key(&'a str),
    Item,
}

/// Writes `node` canonically; `skip` decides by path and parent map which entries are left out.
fn write_node(out: &mut String, node: &Node, skip: &dyn Fn(&[PathStep<'_>], &Node) -> bool) {
    fn go<'a>(
        out: &mut String,
        node: &'a Node,
        path: &mut Vec<PathStep<'a>>,
        skip: &dyn Fn(&[PathStep<'_>], &Node) -> bool,
    ) {
        match node {
            Node::Null => out.push_str("null"),
            Node::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Node::Int(value) => {
                let _ = write!(out, "{value}");
            }
            // Whole floats print like integers: JSON knows one kind of number.
            Node::Float(value) => {
                let _ = write!(out, "{value}");
            }
            Node::Text(text) => write_text(out, text),
            Node::List(items) => {
                out.push('[');
                path.push(PathStep::Item);
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    go(out, item, path, skip);
                }
                path.pop();
                out.push(']');
            }
            Node::Map(entries) => {
                let mut sorted: Vec<&'a (Box<str>, Node)> = entries.iter().collect();
                sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                out.push('{');
                let start = out.len();
                for (key, value) in sorted {
                    path.push(PathStep::Key(key));
                    if !matches!(value, Node::Null) && !skip(path, node) {
                        if out.len() > start {
                            out.push(',');
                        }
                        write_text(out, key);
                        out.push(':');
                        go(out, value, path, skip);
                    }
                    path.pop();
                }
                out.push('}');
            }
        }
    }
    go(out, node, &mut Vec::new(), skip);
}

/// JSON text, escaping only what JSON demands.
fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::yaml::documents;
    use crate::decode::{Path, typed};

    fn tree(text: &str) -> Node {
        let mut got = None;
        documents(text.as_bytes(), |_, outcome| got = outcome.ok()).expect(text);
        got.expect(text)
    }

    const BASE: &str = "kind: Pod\nmetadata: {name: web, labels: {a: b}}\nspec:\n  initContainers:\n  - {name: i, \
                        image: init:1}\n  - {name: s, image: side:1, restartPolicy: Always}\n  containers:\n  - {name: \
                        a, image: app:1, args: [x]}\n";

    fn uid(text: &str) -> String {
        identity(ManifestKind::File, &NodeName::new("gw"), &tree(text)).uid
    }

    fn hash(text: &str) -> String {
        identity(ManifestKind::File, &NodeName::new("gw"), &tree(text)).config_hash
    }

    /// Rows: (changed field, from, to, the UID stays under Always, the UID stays under Never)
    #[test]
    fn the_uid_changes_with_the_immutable_part_only() {
        for (what, from, to, stays_always, stays_never) in [
            ("an app container's image", "app:1", "app:2", true, false),
            ("a sidecar's image", "side:1", "side:2", true, false),
            ("an init container's image", "init:1", "init:2", false, false),
            ("a label", "a: b", "a: c", true, false),
            ("an argument", "[x]", "[y]", false, false),
            ("the name", "name: web", "name: wob", false, false),
            ("the namespace", "name: web", "name: web, namespace: other", false, false),
            ("a namespace that was the default", "name: web", "name: web, namespace: default", true, false),
            ("a comment", "spec:", "spec: # note", true, true),
            ("a null", "spec:\n", "spec:\n  volumes:\n", true, true),
            ("quotes", "init:1", "'init:1'", true, true),
            ("the order of keys", "name: a, image: app:1", "image: app:1, name: a", true, true),
            ("a status", "kind: Pod", "kind: Pod\nstatus: {phase: Failed}", true, true),
        ] {
            assert!(BASE.contains(from), "{what}");
            assert_eq!(uid(BASE) == uid(&BASE.replacen(from, to, 1)), stays_always, "Always: {what}");
            let never = BASE.replace("spec:\n", "spec:\n  restartPolicy: Never\n");
            assert_eq!(uid(&never) == uid(&never.replacen(from, to, 1)), stays_never, "Never: {what}");
        }
        let other = |kind, node| identity(kind, &NodeName::new(node), &tree(BASE)).uid;
        assert_ne!(uid(BASE), other(ManifestKind::File, "gw2"), "another node");
        assert_ne!(uid(BASE), other(ManifestKind::Url("http://a/"), "gw"), "a URL");
        assert_ne!(other(ManifestKind::Url("http://b/"), "gw"), other(ManifestKind::Url("http://a/"), "gw"));
    }

    #[test]
    fn the_config_hash_covers_the_whole_manifest() {
        for (from, to, stays) in [
            ("app:1", "app:2", false),
            ("a: b", "a: c", false),
            ("[x]", "[y]", false),
            ("kind: Pod", "kind: Pod\nstatus: {phase: Failed}", true),
        ] {
            assert_eq!(hash(BASE) == hash(&BASE.replacen(from, to, 1)), stays, "{from} → {to}");
        }
    }

    #[test]
    fn an_explicit_uid_is_honoured() {
        let own = BASE.replace("name: web", "name: web, uid: my-uid");
        assert_eq!(uid(&own), "my-uid");
        assert_eq!(hash(&own).len(), 32);
    }

    #[test]
    fn a_pod_gets_what_the_kubelet_gives_a_static_pod() {
        let manifest = tree(BASE);
        let node = NodeName::new("Gateway-7");
        let mut pod: Pod = typed::read(&manifest, Path::default()).expect("a pod");
        let kind = ManifestKind::File;
        apply(kind, &mut pod, &identity(kind, &node, &manifest), &node, Wall(0));
        assert_eq!(pod.metadata.name.as_deref(), Some("web-gateway-7"));
        assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        assert_eq!(annotations.get(CONFIG_SOURCE).map(String::as_str), Some("file"));
        assert_eq!(annotations.get(CONFIG_SEEN).map(String::as_str), Some("1970-01-01T00:00:00.000000000Z"));
        assert_eq!(annotations.get(CONFIG_HASH).map(String::len), Some(32));
        let spec = pod.spec.expect("a spec");
        assert_eq!(spec.node_name.as_deref(), Some("Gateway-7"));
        assert_eq!(spec.tolerations.map(|t| t.len()), Some(1));
    }
}
