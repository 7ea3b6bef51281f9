//! The reflector of this node's own Node object: labels and taints for admission, pod CIDRs, and conditions, which the node
//! lifecycle controller changes when the node's lease expires.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use smol::channel::Sender;

use crate::admit::Resources;
use crate::cluster::k3s_node::NodeMetadata;
use crate::decode::{Node, Path, typed};
use crate::kube::{Collection, Follower, KubeError, Resource};
use crate::limits::{POD_CIDR_BYTES_MAX, POD_CIDRS_MAX};
use crate::model::SortedMap;

/// Labels, taints, conditions and pod CIDRs of the Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFields {
    /// `metadata.uid`: a Node of the same name with another UID was created anew.
    pub uid: Box<str>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `status.conditions`: types and statuses. At most what an object may hold.
    pub conditions: SortedMap<Box<str>, Box<str>>,
    /// Extended resources of `status.allocatable`, which other clients may have added. At most what an object may hold.
    pub scalars: SortedMap<Box<str>, i64>,
    /// What a node of k3s sets in it.
    pub metadata: NodeMetadata,
    /// `spec.podCIDRs`, else `spec.podCIDR`; at most `POD_CIDRS_MAX`.
    pub pod_cidrs: Vec<Box<str>>,
}

impl NodeFields {
    /// From the object. Invalid entries are left out: the server has validated them.
    fn of(object: &Node) -> Self {
        let metadata = object.field("metadata");
        let labels = metadata.and_then(|metadata| metadata.field("labels"));
        let uid = metadata.and_then(|metadata| metadata.field("uid")).and_then(Node::text);
        let conditions = object.field("status").and_then(|status| status.field("conditions"));
        let condition = |condition: &Node| {
            let text = |field| condition.field(field).and_then(Node::text).map(Box::from);
            Some((text("type")?, text("status")?))
        };
        let allocatable = object.field("status").and_then(|status| status.field("allocatable"));
        let allocatable = allocatable.and_then(|list| typed::read_known(list, Path::default()).ok());
        let spec = object.field("spec");
        let taints = spec.and_then(|spec| spec.field("taints"));
        let several = spec.and_then(|spec| spec.field("podCIDRs")).map(Node::items).unwrap_or_default();
        let one = spec.and_then(|spec| spec.field("podCIDR")).filter(|_| several.is_empty());
        let pod_cidrs = several.iter().chain(one).filter_map(Node::text);
        let pod_cidrs = pod_cidrs.filter(|cidr| (1..=POD_CIDR_BYTES_MAX).contains(&cidr.len()));
        let labels: BTreeMap<String, String> =
            labels.and_then(|labels| typed::read_known(labels, Path::default()).ok()).unwrap_or_default();
        let taints: Vec<Taint> =
            taints.and_then(|taints| typed::read_known(taints, Path::default()).ok()).unwrap_or_default();
        let annotations = metadata.and_then(|metadata| metadata.field("annotations"));
        let annotations = match annotations {
            Some(Node::Map(entries)) => entries.as_slice(),
            Some(_) | None => &[],
        };
        let of_k3s = annotations.iter().filter(|(key, _)| NodeMetadata::is_kept_annotation(key));
        let provider_id = spec.and_then(|spec| spec.field("providerID")).and_then(Node::text);
        let metadata = NodeMetadata {
            labels: labels.clone(),
            annotations: of_k3s
                .filter_map(|(key, value)| Some((key.clone(), value.text()?.into())))
                .collect(),
            provider_id: provider_id.unwrap_or_default().into(),
            is_uninitialized: taints.iter().any(|taint| NodeMetadata::is_uninitialized_taint(&taint.key)),
        };
        Self {
            uid: uid.unwrap_or_default().into(),
            metadata,
            conditions: conditions
                .map(Node::items)
                .unwrap_or_default()
                .iter()
                .filter_map(condition)
                .collect(),
            scalars: allocatable.map(|list| Resources::of(&list).scalars).unwrap_or_default(),
            labels,
            taints,
            pod_cidrs: pod_cidrs.take(POD_CIDRS_MAX).map(Box::from).collect(),
        }
    }
}

/// The follower of the Node object.
pub struct ApiNode {
    now: Option<NodeFields>,
    reported: Option<NodeFields>,
    /// Bounded by one: the newest replaces one that was not received yet.
    node: Sender<Option<NodeFields>>,
}

impl ApiNode {
    /// The collection of this Node alone.
    pub fn collection(name: &str) -> Collection {
        Collection {
            field_selector: format!("metadata.name={name}").into(),
            ..Collection::all(Resource::NODES)
        }
    }

    /// Sends each change to `node`, which holds one; `None` = the Node was deleted.
    pub fn new(node: Sender<Option<NodeFields>>) -> Self {
        Self { now: None, reported: None, node }
    }
}

impl Follower for ApiNode {
    fn list_begins(&mut self) {
        self.now = None;
    }

    fn apply(&mut self, object: Node) {
        self.now = Some(NodeFields::of(&object));
    }

    fn delete(&mut self, _: &Node) {
        self.now = None;
    }

    fn settled(&mut self) {
        // A Node that is not registered yet was never deleted.
        if self.reported != self.now {
            self.reported.clone_from(&self.now);
            // The loop is gone only when the process ends.
            let _ = self.node.force_send(self.now.clone());
        }
    }

    fn lost(&mut self, why: &KubeError) {
        log::debug!("watch of the Node failed: {why}");
    }
}
