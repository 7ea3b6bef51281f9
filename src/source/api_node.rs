//! What others wrote on this node's Node object: its labels and taints, by which pods are admitted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use smol::channel::Sender;

use super::decode::{Node, Path, typed};
use crate::kube::{Collection, Follower, KubeError, Resource};

/// The labels and taints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMarks {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
}

impl NodeMarks {
    /// Those of the object. What is none is left out: the server has checked them.
    fn of(object: &Node) -> Self {
        let labels = object.field("metadata").and_then(|metadata| metadata.field("labels"));
        let taints = object.field("spec").and_then(|spec| spec.field("taints"));
        Self {
            labels: labels
                .and_then(|labels| typed::read_known(labels, Path::default()).ok())
                .unwrap_or_default(),
            taints: taints
                .and_then(|taints| typed::read_known(taints, Path::default()).ok())
                .unwrap_or_default(),
        }
    }
}

/// Follows the object.
pub struct ApiNode {
    now: Option<NodeMarks>,
    told: Option<NodeMarks>,
    /// Bounded by one: the newest takes the place of one that was not taken yet.
    marks: Sender<NodeMarks>,
}

impl ApiNode {
    /// Which object.
    pub fn collection(name: &str) -> Collection {
        Collection {
            resource: Resource::NODES,
            namespace: "".into(),
            field_selector: format!("metadata.name={name}").into(),
        }
    }

    /// Tells each change to `marks`, which holds one.
    pub fn new(marks: Sender<NodeMarks>) -> Self {
        Self { now: None, told: None, marks }
    }
}

impl Follower for ApiNode {
    fn list_begins(&mut self) {
        self.now = None;
    }

    fn is_there(&mut self, object: Node) {
        self.now = Some(NodeMarks::of(&object));
    }

    fn is_gone(&mut self, _: &Node) {
        self.now = None;
    }

    fn settled(&mut self) {
        // One that is not registered yet has none to go by.
        if let Some(now) = self.now.as_ref().filter(|now| self.told.as_ref() != Some(now)) {
            self.told = Some(now.clone());
            // The loop is gone only when the process ends.
            let _ = self.marks.force_send(now.clone());
        }
    }

    fn lost(&mut self, why: &KubeError) {
        log::debug!("the Node is not followed: {why}");
    }
}
