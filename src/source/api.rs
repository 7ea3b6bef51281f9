//! The pods that an API server has bound to this node, as a source (`NewSourceApiserver`).
//!
//! What the server tells of each pod becomes one entry:
//!
//! | the pod there | here |
//! |---|---|
//! | is a mirror of a static pod | is that pod's copy, and nothing that runs |
//! | has a deletionTimestamp | ends, and is deleted there when nothing of it is left |
//! | cannot be run by this version | is refused, and told so there |
//! | has Succeeded or Failed, and something of it is here | is wanted, and does not begin; what runs of it ends, whoever said so |
//! | has Succeeded or Failed | is forgotten (`filterOutInactivePods`) |
//! | has a status that somebody changed | is wanted, and its status is sent again (`needsReconcile`) |
//! | else | is wanted |
//!
//! Room is for the pods that are here first, then for those that begin, the oldest first. Pods that are over take none of it; what
//! they have left here is bounded by itself. What was left out for want of entries is listed anew when there are some.
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use smol::channel::Sender;

use super::api_here::PodsHere;
use super::api_kept::Trees;
use super::api_statuses::{StatusThere, StatusesThere};
use super::identity::NodeName;
use super::{EndingPod, Held, MirrorPod, Origin, RefusedPod, ServerPods, SourceUpdate, SourcedPod, manifest};
use crate::admit::first_come;
use crate::clock::SharedClock;
use crate::decode::Node;
use crate::events::cut;
use crate::kube::{Collection, Follower, KubeError, Resource};
use crate::limits::{
    CONDITION_STATUS_BYTES_MAX, ENDED_PODS_BYTES_MAX, ENDED_PODS_MAX, KUBE_PODS_MAX, MIRROR_HASH_BYTES_MAX,
    PODS_BYTES_MAX, READINESS_GATES_MAX, TERMINAL_STATUS_TEXT_BYTES_MAX,
};
use crate::model::annotations::CONFIG_MIRROR;
use crate::model::{DesiredPod, PodKey, PodUid, Seconds};
use crate::model::{SortedMap, SortedSet};

/// What stands in the place of a manifest's file.
pub(crate) const ORIGIN: &str = "the API server";

/// `status.reason` of a pod that this version cannot run.
const REFUSED: &str = "UnexpectedAdmissionError";

/// What this source and the loop tell each other.
#[derive(Clone)]
pub struct Shared {
    /// By the loop: which pods have something here.
    pub here: PodsHere,
    /// Statuses that were sent, and those that the API server has.
    pub statuses: StatusesThere,
}

/// The pods as the server has them, told to the loop with each change.
pub struct ApiPods {
    node: NodeName,
    clock: SharedClock,
    /// Bounded by one: the newest update takes the place of one that was not taken yet.
    updates: Sender<SourceUpdate>,
    origin: Arc<str>,
    /// At most `KUBE_PODS_MAX`, besides those that are here. Full: a further pod is left out, with a message, until there is
    /// room.
    pods: SortedMap<PodUid, Entry>,
    shared: Shared,
    /// How many were seen to end.
    ended: u64,
    /// A pod was left out since the last list began.
    left_out: bool,
    /// Those that the list under way has told so far.
    listed: Option<SortedSet<PodUid>>,
    /// That list does not tell all there are.
    short: bool,
    /// There is something that no update told yet; most of what comes is the echo of our own statuses.
    changed: bool,
    lost: Option<KubeError>,
    /// Where pods are left for the disk.
    trees: Trees,
}

enum Entry {
    /// `over`: it has Succeeded or Failed; after so many others did, or before the last list.
    Wanted {
        pod: SourcedPod,
        over: Option<u64>,
        changed: bool,
    },
    Ending(EndingPod),
    Refused(RefusedPod),
    Mirror(MirrorPod),
}

impl Entry {
    /// It asks for the same.
    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Wanted { pod, over, changed },
                Self::Wanted { pod: other, over: was_over, changed: was_changed },
            ) => {
                pod.config_hash == other.config_hash
                    && over.is_some() == was_over.is_some()
                    && changed == was_changed
                    && pod.pod.pod.conditions() == other.pod.pod.conditions()
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

    /// Tells each change to `updates`, which holds one, and leaves the pods in `trees`. Which pods are here has to be
    /// known when the first list begins.
    pub fn new(
        node: NodeName,
        clock: SharedClock,
        updates: Sender<SourceUpdate>,
        trees: Trees,
        shared: Shared,
    ) -> Self {
        Self {
            node,
            clock,
            updates,
            origin: Arc::from(ORIGIN),
            pods: SortedMap::new(),
            shared,
            ended: 0,
            left_out: false,
            listed: None,
            short: false,
            changed: true,
            lost: None,
            trees,
        }
    }

    /// Memory of the pods that are over, or of the others, and how many these are.
    fn held(&self, are_over: bool) -> (usize, usize) {
        let bytes = |entry: &Entry| match entry {
            Entry::Wanted { pod, over, .. } if over.is_some() == are_over => Some(pod.bytes),
            Entry::Wanted { .. } | Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_) => None,
        };
        let held = self.pods.values().filter_map(bytes);
        held.fold((0, 0), |(pods, sum), bytes| (pods + 1, sum + bytes))
    }

    fn entry(&mut self, key: PodKey, mut object: Node) -> Option<Entry> {
        let changed = self.shared.statuses.watched(&key.uid, StatusThere::of(&object));
        let metadata = object.field("metadata");
        let deleted = metadata.is_some_and(|m| m.field("deletionTimestamp").is_some());
        if let Some(hash) = mirrored(&object) {
            let hash = cut(hash, MIRROR_HASH_BYTES_MAX).into();
            return Some(Entry::Mirror(MirrorPod { key, hash, deleted, changed }));
        }
        if deleted {
            let grace = match metadata.and_then(|m| m.field("deletionGracePeriodSeconds")) {
                Some(Node::Int(seconds)) => Seconds(*seconds),
                _ => Seconds(0),
            };
            return Some(Entry::Ending(EndingPod { key, grace }));
        }
        let over = self.over(&key.uid, &object);
        let is_here = self.shared.here.has(&key.uid);
        if over.is_some() && !is_here {
            return None;
        }
        let changed = over.is_none() && changed;
        let generation = match metadata.and_then(|m| m.field("generation")) {
            Some(Node::Int(generation)) => Some(*generation),
            _ => None,
        };
        let status = status_of(&object, over.is_some());
        let mut read = match manifest::bound(&mut object, &self.node, self.clock.now().wall) {
            Ok(read) => read,
            Err(errors) => {
                let shown = errors.iter().map(ToString::to_string);
                return Some(refused(key, &shown.collect::<Vec<_>>().join("; "), generation));
            }
        };
        // Of those that are over the bytes are counted apart.
        let (before, its) = match self.pods.get(&key.uid) {
            Some(Entry::Wanted { pod, .. }) if pod.config_hash == read.config_hash => {
                // Only its status changed: what is held already stays.
                return Some(Entry::Wanted { pod: with_status(pod, status), over, changed });
            }
            Some(Entry::Wanted { pod, over: None, .. }) => (Some(pod), pod.bytes),
            Some(Entry::Wanted { pod, over: Some(_), .. }) => (Some(pod), 0),
            Some(Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_)) | None => (None, 0),
        };
        let (_, held) = self.held(false);
        let held = held - its;
        if over.is_none() && held + read.bytes > PODS_BYTES_MAX {
            if let Some(before) = before.filter(|_| is_here) {
                log::warn!("pod {key}: it goes on as it was: what is wanted of it now {}", does_not_fit());
                return Some(Entry::Wanted { pod: with_status(before, status), over, changed });
            }
            let fits = self.give_way(held + read.bytes - PODS_BYTES_MAX, (!is_here).then_some(&read.pod));
            if !fits && !is_here {
                return Some(refused(key, &does_not_fit(), generation));
            }
        }
        if over.is_none() {
            self.trees.put(&key.uid, &object);
        }
        read.pod.status = status;
        let origin = Origin { file: self.origin.clone(), document: read.document };
        let pod = SourcedPod {
            pod: DesiredPod::new(read.pod),
            origin,
            config_hash: read.config_hash,
            bytes: read.bytes,
        };
        Some(Entry::Wanted { pod, over, changed })
    }

    /// Since when the pod is over: it has Succeeded or Failed.
    fn over(&mut self, uid: &PodUid, object: &Node) -> Option<u64> {
        if !is_over(object) {
            return None;
        }
        match self.pods.get(uid) {
            Some(Entry::Wanted { over: Some(over), .. }) => Some(*over),
            _ if self.listed.is_some() => Some(0),
            _ => {
                self.ended += 1;
                Some(self.ended)
            }
        }
    }

    /// Pods that have not begun give so many bytes, the youngest first: to one that is here, or to one that is older than they
    /// are. Nobody gives any when that would not do.
    fn give_way(&mut self, bytes: usize, to: Option<&Pod>) -> bool {
        let gives = |(uid, entry): (&PodUid, &Entry)| match entry {
            Entry::Wanted { pod, over: None, .. } if !self.shared.here.has(uid) => {
                let its = pod.pod.pod.without_volumes();
                let younger = to.is_none_or(|to| first_come(to, &its).is_lt());
                younger.then_some((its, pod.bytes))
            }
            Entry::Wanted { .. } | Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_) => None,
        };
        let mut giving: Vec<(Rc<Pod>, usize)> = self.pods.iter().filter_map(gives).collect();
        // Their times have whole seconds: of one second the first in the order of the list stays.
        giving.sort_by(|(a, _), (b, _)| first_come(b, a).then_with(|| b.metadata.name.cmp(&a.metadata.name)));
        let mut given = 0;
        let enough = giving.iter().position(|(_, its)| {
            given += its;
            given >= bytes
        });
        for (pod, _) in giving.iter().take(enough.map_or(0, |last| last + 1)) {
            let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
            if let Some(Entry::Wanted { pod: sourced, .. }) = self.pods.get(&uid) {
                let entry = refused(sourced.pod.key.clone(), &does_not_fit(), pod.metadata.generation);
                self.trees.remove(&uid);
                self.pods.insert(uid, entry);
            }
        }
        enough.is_some()
    }

    fn forget(&mut self, uid: &PodUid) {
        self.shared.statuses.forget(uid);
        self.changed |= self.pods.remove(uid).is_some();
        self.trees.remove(uid);
    }

    /// Of the pods that are over those stay that have something here, the newest, within the bounds of these. The others are not
    /// wanted any more: what they have left here goes, their statuses stay with the server.
    fn forget_ended(&mut self) {
        loop {
            let (pods, bytes) = self.held(true);
            let is_full = pods > ENDED_PODS_MAX || bytes > ENDED_PODS_BYTES_MAX;
            let ended = self.pods.iter().filter_map(|(uid, entry)| match entry {
                Entry::Wanted { pod, over: Some(over), .. } if is_full || !self.shared.here.has(uid) => {
                    Some((
                        self.shared.here.has(uid),
                        over,
                        pod.pod.pod.without_volumes().metadata.creation_timestamp.clone(),
                        uid,
                    ))
                }
                Entry::Wanted { .. } | Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_) => None,
            });
            let Some(uid) = ended.min_by(Ord::cmp).map(|(.., uid)| uid.clone()) else { return };
            self.forget(&uid);
        }
    }
}

fn does_not_fit() -> String {
    format!("does not fit: all pods of this node may take {PODS_BYTES_MAX} bytes together")
}

fn refused(key: PodKey, why: &str, generation: Option<i64>) -> Entry {
    let message = format!("Pod was rejected: {why}").into();
    Entry::Refused(RefusedPod { key, reason: REFUSED.into(), message, generation })
}

impl Follower for ApiPods {
    fn list_begins(&mut self) {
        self.listed = Some(SortedSet::new());
        self.short = false;
        self.left_out = false;
    }

    fn passed_over(&mut self) {
        self.short = true;
    }

    fn is_there(&mut self, object: Node) {
        let Some(key) = key(&object) else { return };
        let is_known = self.pods.contains_key(&key.uid) || self.shared.here.has(&key.uid);
        if self.pods.len() >= KUBE_PODS_MAX && !is_known && !is_over(&object) {
            if !std::mem::replace(&mut self.left_out, true) {
                log::warn!("pod {key}: pending, {KUBE_PODS_MAX} pods are bound to this node already");
            }
            return;
        }
        let Some(mut entry) = self.entry(key.clone(), object) else { return self.forget(&key.uid) };
        if let Entry::Wanted { pod, .. } = &mut entry {
            pod.pod.pod.pack();
        }
        if let Some(listed) = &mut self.listed {
            listed.insert(key.uid.clone());
        }
        self.changed |= !self.pods.get(&key.uid).is_some_and(|known| known.is_as(&entry));
        if !matches!(entry, Entry::Wanted { over: None, .. }) {
            self.trees.remove(&key.uid);
        }
        self.pods.insert(key.uid, entry);
    }

    fn is_gone(&mut self, object: &Node) {
        if let Some(key) = key(object) {
            self.forget(&key.uid);
        }
    }

    fn has_room(&self) -> bool {
        self.left_out && self.listed.is_none() && self.pods.len() < KUBE_PODS_MAX
    }

    fn settled(&mut self) {
        if self.lost.take().is_some() {
            log::info!("API server reachable again");
        }
        // One that was passed over may be any that is missing: nothing ends for it.
        if let Some(listed) = self.listed.take().filter(|_| !self.short) {
            let before = self.pods.len();
            self.pods.retain(|uid, _| {
                let stays = listed.contains(uid);
                if !stays {
                    self.trees.remove(uid);
                    self.shared.statuses.forget(uid);
                }
                stays
            });
            self.changed |= self.pods.len() < before;
        }
        self.forget_ended();
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let (mut pods, mut server) = (Vec::new(), ServerPods::default());
        for entry in self.pods.values() {
            match entry {
                Entry::Wanted { pod, over, changed } => {
                    if over.is_some() {
                        server.over.insert(pod.pod.key.uid.clone());
                    }
                    if *changed {
                        server.changed.insert(pod.pod.key.uid.clone());
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
            held: Held { pod_bytes: self.held(true).1 + self.held(false).1, ..Held::default() },
            server,
        };
        // The loop is gone only when the process ends.
        let _ = self.updates.force_send(update);
    }

    fn lost(&mut self, why: &KubeError) {
        self.trees.failed();
        if self.lost.as_ref() != Some(why) {
            log::warn!("{why}; pods keep running, retrying");
            self.lost = Some(why.clone());
        }
    }
}

/// It has Succeeded or Failed, and was not deleted; a static pod's copy is not meant.
fn is_over(object: &Node) -> bool {
    let phase = object.field("status").and_then(|status| status.field("phase")).and_then(Node::text);
    let metadata = object.field("metadata");
    matches!(phase, Some("Succeeded" | "Failed"))
        && mirrored(object).is_none()
        && metadata.is_some_and(|metadata| metadata.field("deletionTimestamp").is_none())
}

/// Which pod; nothing when the object names none that directories can be made for.
fn key(object: &Node) -> Option<PodKey> {
    let metadata = object.field("metadata")?;
    let text = |field| metadata.field(field).and_then(Node::text);
    let key = PodKey::new(text("namespace")?, text("name")?, text("uid")?);
    key.is_path_safe().then_some(key)
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

/// What of the status there counts here: the conditions of readiness gates and, of a pod that is over, how it ended.
fn status_of(object: &Node, over: bool) -> Option<PodStatus> {
    let status = object.field("status").filter(|_| over);
    let text = |field| Some(cut(status?.field(field)?.text()?, TERMINAL_STATUS_TEXT_BYTES_MAX).to_owned());
    let gates = gates(object);
    let (phase, reason, message) = (text("phase"), text("reason"), text("message"));
    let conditions = Some(gates).filter(|gates| !gates.is_empty());
    let is_some = phase.is_some() || conditions.is_some();
    is_some.then(|| PodStatus { phase, reason, message, conditions, ..PodStatus::default() })
}

/// The same wish, with this status.
fn with_status(of: &SourcedPod, status: Option<PodStatus>) -> SourcedPod {
    let mut of = of.clone();
    if of.pod.pod.status != status {
        let mut pod = (*of.pod.pod).clone();
        pod.status = status;
        of.pod.pod = pod.into();
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
    use crate::clock::VirtualClock;
    use crate::model::Wall;

    #[test]
    fn a_pod_that_is_over_may_get_another_label_and_may_be_wanted_again() {
        let (updates, told) = smol::channel::bounded(1);
        let (failed, _failed) = smol::channel::bounded(1);
        let (here, _looked) = PodsHere::new();
        here.are(std::iter::once("u".into()).collect());
        let shared = Shared { here, statuses: StatusesThere::default() };
        let clock = Rc::new(VirtualClock::new(Wall(0)));
        let mut pods = ApiPods::new(NodeName::new("gw"), clock, updates, Trees::new(failed), shared);
        pods.list_begins();
        pods.settled();
        let mut hashes = Vec::new();
        for (phase, image) in
            [("Running", "i:1"), ("Succeeded", "i:1"), ("Succeeded", "i:2"), ("Running", "i")]
        {
            let text = format!(
                r#"{{"metadata": {{"name": "web", "namespace": "default", "uid": "u"}},
                    "spec": {{"nodeName": "gw", "containers": [{{"name": "app", "image": "{image}"}}]}},
                    "status": {{"phase": "{phase}"}}}}"#
            );
            pods.is_there(crate::decode::json::read(text.as_bytes()).expect("JSON"));
            pods.settled();
            let update = told.try_recv().expect("an update");
            assert_eq!((update.pods.len(), update.server.refused.len()), (1, 0), "{phase} {image}");
            assert_eq!(update.server.over.len(), usize::from(phase == "Succeeded"), "{phase} {image}");
            hashes.push(update.pods[0].config_hash.clone());
        }
        hashes.dedup();
        assert_eq!(hashes.len(), 3);
    }

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
            crate::decode::json::read(text.as_bytes()).expect("JSON")
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
