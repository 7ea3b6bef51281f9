//! Mirror pods of static pods (`mirror_client.go`, `tryReconcileMirrorPods`, `deleteOrphanedMirrorPods`). PURE.
//!
//! | the static pod | its mirror pod | action |
//! |---|---|---|
//! | is desired | none | create it |
//! | is desired | of this manifest | none |
//! | is desired | of another manifest, or being deleted | delete it, and create it again once it is gone |
//! | terminates, or may be desired by an unreadable manifest | any | none |
//! | is gone, or cannot have a mirror pod | any | delete it |
//!
//! Differs from the kubelet in the hash: there it is also the pod's UID, here it is that of the whole manifest.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

use crate::desired::update::MirrorPod;
use crate::model::annotations::{CONFIG_HASH, CONFIG_MIRROR};
use crate::model::object::named_by;

/// The desired state of a pod name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticPodState<'a> {
    /// A manifest has the pod; this is its hash.
    Desired(&'a str),
    /// The pod terminates, or an unreadable manifest may have it.
    Undecided,
    /// No pod has that name, or it cannot have a mirror pod.
    Gone,
}

/// The action on a mirror pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// None.
    Keep,
    /// Create it.
    Create,
    /// Delete it without a grace period.
    Delete,
}

/// Looks up the row of the table.
pub fn action(state: StaticPodState<'_>, mirror: Option<&MirrorPod>) -> Action {
    match (state, mirror) {
        (StaticPodState::Desired(_), None) => Action::Create,
        (StaticPodState::Desired(hash), Some(mirror)) if !is_of(mirror, hash) => Action::Delete,
        (StaticPodState::Gone, Some(_)) => Action::Delete,
        (StaticPodState::Desired(_), Some(_))
        | (StaticPodState::Undecided, _)
        | (StaticPodState::Gone, None) => Action::Keep,
    }
}

/// The mirror pod is not being deleted, and has the hash of that manifest (`IsMirrorPodOf`).
pub fn is_of(mirror: &MirrorPod, hash: &str) -> bool {
    !mirror.deleted && *mirror.hash == *hash
}

/// Why the server refuses a mirror pod of this pod: it must not reference API objects (`NodeRestriction`), and the objects of
/// manifests are not in the API.
pub fn refusal(pod: &Pod) -> Option<String> {
    let named = named_by(pod).into_iter().next()?;
    Some(format!(
        "is not shown in the cluster: it names {named}, and an API server takes no mirror pod that names an object"
    ))
}

/// The object to create. The server sets its UID and its status.
pub fn object(pod: &Pod, node: &str, node_uid: &str) -> Value {
    let mut mirror = Pod { metadata: pod.metadata.clone(), spec: pod.spec.clone(), status: None };
    let metadata = &mut mirror.metadata;
    metadata.uid = None;
    metadata.resource_version = None;
    metadata.managed_fields = None;
    let annotations = metadata.annotations.get_or_insert_default();
    let hash = annotations.get(CONFIG_HASH).cloned().unwrap_or_default();
    annotations.insert(CONFIG_MIRROR.to_owned(), hash);
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    // A typed object always serializes.
    serde_json::to_value(mirror).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PodKey;
    use serde_json::json;

    #[test]
    fn a_mirror_pod_follows_its_static_pod() {
        let mirror = |hash: &str, deleted| MirrorPod {
            key: PodKey::new("default", "web-gw", "u"),
            hash: hash.into(),
            deleted,
            changed: false,
        };
        let (same, other, goes) = (mirror("1", false), mirror("2", false), mirror("1", true));
        for (state, mirror, wanted) in [
            (StaticPodState::Desired("1"), None, Action::Create),
            (StaticPodState::Desired("1"), Some(&same), Action::Keep),
            (StaticPodState::Desired("1"), Some(&other), Action::Delete),
            (StaticPodState::Desired("1"), Some(&goes), Action::Delete),
            (StaticPodState::Undecided, None, Action::Keep),
            (StaticPodState::Undecided, Some(&same), Action::Keep),
            (StaticPodState::Undecided, Some(&goes), Action::Keep),
            (StaticPodState::Gone, None, Action::Keep),
            (StaticPodState::Gone, Some(&same), Action::Delete),
            (StaticPodState::Gone, Some(&goes), Action::Delete),
        ] {
            assert_eq!(action(state, mirror), wanted, "{state:?} {mirror:?}");
        }
    }

    #[test]
    fn a_mirror_pod_says_whose_it_is() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web-gw", "namespace": "default", "uid": "own", "resourceVersion": "7",
                "annotations": {"kubernetes.io/config.hash": "h", "kubernetes.io/config.source": "file"}},
            "spec": {"nodeName": "gw", "containers": [{"name": "app", "image": "x"}]},
            "status": {"phase": "Pending"},
        }))
        .unwrap();
        assert_eq!(
            object(&pod, "gw", "n1"),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "web-gw", "namespace": "default",
                    "annotations": {"kubernetes.io/config.hash": "h", "kubernetes.io/config.source": "file",
                        "kubernetes.io/config.mirror": "h"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gw", "uid": "n1", "controller": true}]},
                "spec": {"nodeName": "gw", "containers": [{"name": "app", "image": "x"}]},
            })
        );
        assert_eq!(refusal(&pod), None);
        let named: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web-gw", "namespace": "default"},
            "spec": {"containers": [], "imagePullSecrets": [{"name": "login"}]},
        }))
        .unwrap();
        assert!(refusal(&named).is_some_and(|why| why.contains("Secret default/login")));
    }
}
