//! The pods that an API server has bound to this node, as a source (`NewSourceApiserver`).
//!
//! What the server tells of each pod becomes one entry:
//!
//! | the pod there | here |
//! |---|---|
//! | is a mirror of a static pod | is that pod's copy, and nothing that runs |
//! | has a deletionTimestamp | ends, and is deleted there when nothing of it is left |
//! | cannot be run by this version | is refused, and told so there |
//! | has Succeeded or Failed | is wanted, and does not begin |
//! | was marked as not ready by another | is wanted, and its status is told again |
//! | else | is wanted |

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use smol::channel::Sender;

use super::api_kept::Trees;
use super::decode::Node;
use super::identity::{CONFIG_MIRROR, NodeName};
use super::{EndingPod, Held, MirrorPod, Origin, RefusedPod, ServerPods, SourceUpdate, SourcedPod, manifest};
use crate::clock::SharedClock;
use crate::events::cut;
use crate::kube::{Collection, Follower, KubeError, Resource};
use crate::limits::{
    CONDITION_STATUS_BYTES_MAX, KUBE_PODS_MAX, MIRROR_HASH_BYTES_MAX, PODS_BYTES_MAX, READINESS_GATES_MAX,
};
use crate::model::desired::conditions_of;
use crate::model::{DesiredPod, PodKey, PodUid, Seconds};

/// What stands in the place of a manifest's file.
pub(crate) const ORIGIN: &str = "the API server";

/// `status.reason` of a pod that this version cannot run.
const REFUSED: &str = "UnexpectedAdmissionError";

/// The pods as the server has them, told to the loop with each change.
pub struct ApiPods {
    node: NodeName,
    clock: SharedClock,
    /// Bounded by one: the newest update takes the place of one that was not taken yet.
    updates: Sender<SourceUpdate>,
    origin: Arc<str>,
    /// At most `KUBE_PODS_MAX`. Full: a further pod is passed over, with a message.
    pods: BTreeMap<PodUid, Entry>,
    /// Those that the list under way has told so far.
    listed: Option<BTreeSet<PodUid>>,
    /// That list does not tell all there are.
    short: bool,
    /// There is something that no update told yet; most of what comes is the echo of our own statuses.
    changed: bool,
    lost: Option<KubeError>,
    /// Where pods are left for the disk.
    trees: Trees,
}

enum Entry {
    Wanted { pod: SourcedPod, over: bool, marked: bool },
    Ending(EndingPod),
    Refused(RefusedPod),
    Mirror(MirrorPod),
}

impl Entry {
    /// It asks for the same.
    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Wanted { pod, over, marked },
                Self::Wanted { pod: other, over: was_over, marked: was_marked },
            ) => {
                pod.config_hash == other.config_hash
                    && over == was_over
                    && marked == was_marked
                    && conditions_of(&pod.pod.pod) == conditions_of(&other.pod.pod)
            }
            (Self::Ending(pod), Self::Ending(other)) => pod == other,
            (Self::Refused(pod), Self::Refused(other)) => pod == other,
            (Self::Mirror(pod), Self::Mirror(other)) => pod == other,
            (Self::Wanted { .. } | Self::Ending(_) | Self::Refused(_) | Self::Mirror(_), _) => false,
        }
    }
}

impl ApiPods {
    /// Which pods are followed.
    pub fn collection(node: &NodeName) -> Collection {
        Collection {
            resource: Resource::PODS,
            namespace: "".into(),
            field_selector: format!("spec.nodeName={}", node.as_str()).into(),
        }
    }

    /// Tells each change to `updates`, which holds one, and leaves the pods in `trees`.
    pub fn new(node: NodeName, clock: SharedClock, updates: Sender<SourceUpdate>, trees: Trees) -> Self {
        Self {
            node,
            clock,
            updates,
            origin: Arc::from(ORIGIN),
            pods: BTreeMap::new(),
            listed: None,
            short: false,
            changed: true,
            lost: None,
            trees,
        }
    }

    fn bytes(&self) -> usize {
        let bytes = |entry: &Entry| if let Entry::Wanted { pod, .. } = entry { pod.bytes } else { 0 };
        self.pods.values().map(bytes).sum()
    }

    fn entry(&self, key: PodKey, mut object: Node) -> Entry {
        let metadata = object.field("metadata");
        let deleted = metadata.is_some_and(|m| m.field("deletionTimestamp").is_some());
        if let Some(hash) = mirrored(&object) {
            let hash = cut(hash, MIRROR_HASH_BYTES_MAX).into();
            return Entry::Mirror(MirrorPod { key, hash, deleted, marked: is_marked(&object) });
        }
        if deleted {
            let grace = match metadata.and_then(|m| m.field("deletionGracePeriodSeconds")) {
                Some(Node::Int(seconds)) => Seconds(*seconds),
                _ => Seconds(0),
            };
            return Entry::Ending(EndingPod { key, grace });
        }
        let phase = object.field("status").and_then(|status| status.field("phase")).and_then(Node::text);
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        let marked = !over && is_marked(&object);
        let generation = match metadata.and_then(|m| m.field("generation")) {
            Some(Node::Int(generation)) => Some(*generation),
            _ => None,
        };
        let refused = |why: String| {
            let message = format!("Pod was rejected: {why}").into();
            Entry::Refused(RefusedPod { key: key.clone(), reason: REFUSED.into(), message, generation })
        };
        let gates = gates(&object);
        let mut read = match manifest::bound(&mut object, &self.node, self.clock.now().wall) {
            Ok(read) => read,
            Err(errors) => {
                let shown = errors.iter().map(|error| format!("{}: {}", error.path, error.message));
                return refused(shown.collect::<Vec<_>>().join("; "));
            }
        };
        let before = match self.pods.get(&key.uid) {
            Some(Entry::Wanted { pod, .. }) if pod.config_hash == read.config_hash => {
                // Only its status changed: what is held already stays.
                return Entry::Wanted { pod: with_gates(pod, gates), over, marked };
            }
            Some(Entry::Wanted { pod, .. }) => pod.bytes,
            Some(Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_)) | None => 0,
        };
        if self.bytes() - before + read.bytes > PODS_BYTES_MAX {
            return refused(format!(
                "does not fit: all pods of this node may take {PODS_BYTES_MAX} bytes together"
            ));
        }
        if !over {
            self.trees.put(&key.uid, &object);
        }
        read.pod.status = status_of(gates);
        let origin = Origin { file: self.origin.clone(), document: read.document };
        let pod = SourcedPod {
            pod: DesiredPod::new(read.pod),
            origin,
            config_hash: read.config_hash,
            bytes: read.bytes,
        };
        Entry::Wanted { pod, over, marked }
    }
}

impl Follower for ApiPods {
    fn list_begins(&mut self) {
        self.listed = Some(BTreeSet::new());
        self.short = false;
    }

    fn passed_over(&mut self) {
        self.short = true;
    }

    fn is_there(&mut self, object: Node) {
        let Some(key) = key(&object) else { return };
        if let Some(listed) = &mut self.listed {
            listed.insert(key.uid.clone());
        }
        if self.pods.len() >= KUBE_PODS_MAX && !self.pods.contains_key(&key.uid) {
            log::warn!("pod {key}: more than {KUBE_PODS_MAX} pods are bound to this node; it is passed over");
            return;
        }
        let entry = self.entry(key.clone(), object);
        self.changed |= !self.pods.get(&key.uid).is_some_and(|known| known.is_as(&entry));
        if !matches!(entry, Entry::Wanted { over: false, .. }) {
            self.trees.remove(&key.uid);
        }
        self.pods.insert(key.uid, entry);
    }

    fn is_gone(&mut self, object: &Node) {
        if let Some(key) = key(object) {
            self.changed |= self.pods.remove(&key.uid).is_some();
            self.trees.remove(&key.uid);
        }
    }

    fn settled(&mut self) {
        if self.lost.take().is_some() {
            log::info!("the API server answers again");
        }
        // One that was passed over may be any that is missing: nothing ends for it.
        if let Some(listed) = self.listed.take().filter(|_| !self.short) {
            let before = self.pods.len();
            self.pods.retain(|uid, _| {
                let stays = listed.contains(uid);
                if !stays {
                    self.trees.remove(uid);
                }
                stays
            });
            self.changed |= self.pods.len() < before;
        }
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let (mut pods, mut server) = (Vec::new(), ServerPods::default());
        for entry in self.pods.values() {
            match entry {
                Entry::Wanted { pod, over, marked } => {
                    if *over {
                        server.over.insert(pod.pod.key.uid.clone());
                    }
                    if *marked {
                        server.marked.insert(pod.pod.key.uid.clone());
                    }
                    pods.push(pod.clone());
                }
                Entry::Ending(pod) => server.ending.push(pod.clone()),
                Entry::Refused(pod) => server.refused.push(pod.clone()),
                Entry::Mirror(pod) => server.mirrors.push(pod.clone()),
            }
        }
        let update = SourceUpdate {
            source: super::API,
            pods,
            objects: Vec::new(),
            problems: Vec::new(),
            complete: true,
            held: Held { pod_bytes: self.bytes(), ..Held::default() },
            server,
        };
        // The loop is gone only when the process ends.
        let _ = self.updates.force_send(update);
    }

    fn lost(&mut self, why: &KubeError) {
        self.trees.failed();
        if self.lost.as_ref() != Some(why) {
            log::warn!("{why}; this node's pods run on as they are, trying again");
            self.lost = Some(why.clone());
        }
    }
}

/// Which pod; nothing when the object names none that directories can be made for.
fn key(object: &Node) -> Option<PodKey> {
    let metadata = object.field("metadata")?;
    let text = |field| metadata.field(field).and_then(Node::text);
    let key = PodKey::new(text("namespace")?, text("name")?, text("uid")?);
    key.is_path_safe().then_some(key)
}

/// It is not ready there, and nobody says why: a node agent does, and whoever marks the pods of a node of which nothing is
/// heard does not (`MarkPodsNotReady`).
fn is_marked(object: &Node) -> bool {
    let conditions = object.field("status").and_then(|status| status.field("conditions"));
    conditions.map(Node::items).unwrap_or_default().iter().any(|condition| {
        let text = |field| condition.field(field).and_then(Node::text).unwrap_or_default();
        text("type") == "Ready" && text("status") == "False" && text("reason").is_empty()
    })
}

/// The conditions of the pod's status that its readiness gates name, as others have set them; of the others nothing is kept,
/// nor words and times of these. As many as there are gates at most (`limits::READINESS_GATES_MAX`).
fn gates(object: &Node) -> Vec<PodCondition> {
    let items = |of: &'static str, list| object.field(of).and_then(|of| of.field(list)).map(Node::items);
    let conditions = items("status", "conditions").unwrap_or_default();
    let gates = items("spec", "readinessGates").unwrap_or_default().iter().take(READINESS_GATES_MAX);
    let condition = |gate: &Node| {
        let wanted = gate.field("conditionType")?.text()?;
        let is = |condition: &&Node| condition.field("type").and_then(Node::text) == Some(wanted);
        let status = conditions.iter().find(is)?.field("status")?.text()?;
        Some(PodCondition {
            type_: wanted.to_owned(),
            status: cut(status, CONDITION_STATUS_BYTES_MAX).to_owned(),
            ..PodCondition::default()
        })
    };
    gates.filter_map(condition).collect()
}

fn status_of(gates: Vec<PodCondition>) -> Option<PodStatus> {
    (!gates.is_empty()).then(|| PodStatus { conditions: Some(gates), ..PodStatus::default() })
}

/// The same wish, with these conditions.
fn with_gates(of: &SourcedPod, gates: Vec<PodCondition>) -> SourcedPod {
    let mut of = of.clone();
    if conditions_of(&of.pod.pod) != gates {
        let mut pod = (*of.pod.pod).clone();
        pod.status = status_of(gates);
        of.pod.pod = Rc::new(pod);
    }
    of
}

/// Of a static pod's copy: the hash of the manifest.
fn mirrored(object: &Node) -> Option<&str> {
    let annotations = object.field("metadata")?.field("annotations")?;
    Some(annotations.field(CONFIG_MIRROR)?.text().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_gates_name_are_kept_and_no_others() {
        let gate = |name: &str| format!(r#"{{"conditionType": "{name}"}}"#);
        let condition = |name: &str, status: &str| {
            format!(
                r#"{{"type": "{name}", "status": "{status}", "message": "m", "lastTransitionTime": null}}"#
            )
        };
        let pod = |gates: &[String], conditions: &[String]| {
            let text = format!(
                r#"{{"spec": {{"readinessGates": [{}]}}, "status": {{"conditions": [{}]}}}}"#,
                gates.join(","),
                conditions.join(",")
            );
            crate::kube::json::read(text.as_bytes()).expect("JSON")
        };
        let shown = |pod: &Node| {
            let all = gates(pod).into_iter().map(|c| format!("{}={} {:?}", c.type_, c.status, c.message));
            all.collect::<Vec<_>>().join(" ")
        };
        let there = [condition("a", "True"), condition("Ready", "True"), condition("b", "False")];
        assert_eq!(shown(&pod(&[], &there)), "");
        assert_eq!(shown(&pod(&[gate("b"), gate("c"), gate("a")], &there)), "b=False None a=True None");
        let long = [condition("a", &"x".repeat(1000))];
        assert_eq!(gates(&pod(&[gate("a")], &long))[0].status.len(), CONDITION_STATUS_BYTES_MAX);
        let many: Vec<String> = (0..=READINESS_GATES_MAX).map(|_| gate("a")).collect();
        assert_eq!(gates(&pod(&many, &there)).len(), READINESS_GATES_MAX);
    }
}
