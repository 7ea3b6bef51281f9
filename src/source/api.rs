//! The pods that are bound to this node in an API server, as a source (`NewSourceApiserver`).
//!
//! Each pod of the server becomes one entry:
//!
//! | the pod in the API | on this node |
//! |---|---|
//! | is a mirror pod | belongs to its static pod; nothing runs for it |
//! | has a deletionTimestamp | is terminated, and deleted in the API once nothing of it is left |
//! | cannot be run by this version | is rejected, with a status |
//! | is Succeeded or Failed, and has state on this node | is desired but not started; its running containers are stopped, whichever client set the phase |
//! | is Succeeded or Failed | is dropped (`filterOutInactivePods`) |
//! | has a status that another client changed | is desired, and its status is sent again (`needsReconcile`) |
//! | else | is desired |
//!
//! Memory is given first to pods that have state on this node, then to new ones, the oldest first. Terminated pods take none of
//! it; their state on this node has a limit of its own. Pods that were left out for lack of entries are listed again when there
//! are some.
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use smol::channel::Sender;

use super::api_local_pods::LocalPods;
use super::api_offline::Trees;
use super::api_status_versions::{ApiStatusVersion, ApiStatusVersions};
use super::identity::NodeName;
use super::{
    EndingPod, MirrorPod, Origin, RefusedPod, ServerPods, SourceUpdate, SourceUsage, SourcedPod, manifest,
};
use crate::admit::first_come;
use crate::clock::SharedClock;
use crate::decode::Node;
use crate::kube::{Collection, Follower, KubeError, Resource};
use crate::limits::{
    CONDITION_STATUS_BYTES_MAX, ENDED_PODS_BYTES_MAX, ENDED_PODS_MAX, KUBE_PODS_MAX, MIRROR_HASH_BYTES_MAX,
    PODS_BYTES_MAX, READINESS_GATES_MAX, TERMINAL_STATUS_TEXT_BYTES_MAX,
};
use crate::model::annotations::CONFIG_MIRROR;
use crate::model::{DesiredPod, PodKey, PodUid, Seconds};
use crate::model::{SortedMap, SortedSet};
use crate::text::start_of;

/// The origin of these pods, in place of a manifest's file.
pub(crate) const ORIGIN: &str = "the API server";

/// `status.reason` of a pod that this version cannot run.
const REFUSED: &str = "UnexpectedAdmissionError";

/// State shared by this source and the loop.
#[derive(Clone)]
pub struct Shared {
    /// The pods that have state on this node, set by the loop.
    pub local_pods: LocalPods,
    /// Statuses that were sent, and those that the API server has.
    pub statuses: ApiStatusVersions,
}

/// The follower of the node's pods; each change is sent to the loop.
pub struct ApiPods {
    node: NodeName,
    clock: SharedClock,
    /// Bounded by one: the newest update replaces one that was not received yet.
    updates: Sender<SourceUpdate>,
    origin: Arc<str>,
    /// At most `KUBE_PODS_MAX`, besides those with state on this node. Full: a further pod is left out, with a message, until
    /// there is space.
    pods: SortedMap<PodUid, Entry>,
    shared: Shared,
    /// Number of pods that were seen to terminate.
    ended: u64,
    /// A pod was left out since the last list began.
    left_out: bool,
    /// Pods of the list in progress so far.
    listed: Option<SortedSet<PodUid>>,
    /// That list is incomplete.
    short: bool,
    /// There is a change that no update contains yet; most events are the echo of the agent's own statuses.
    changed: bool,
    lost: Option<KubeError>,
    /// Objects for the offline copy.
    trees: Trees,
}

enum Entry {
    /// `over`: it is Succeeded or Failed; the number of pods that terminated before it, or 0 before the last list.
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
    /// The desired state is the same.
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
    /// The collection of the node's pods.
    pub fn collection(node: &NodeName) -> Collection {
        Collection {
            field_selector: format!("spec.nodeName={}", node.as_str()).into(),
            ..Collection::all(Resource::PODS)
        }
    }

    /// Sends each change to `updates`, which holds one, and puts the pods' objects into `trees`. The pods with state on this node
    /// have to be known when the first list begins.
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

    /// Memory and number of the terminated pods, or of the others.
    fn held(&self, are_over: bool) -> (usize, usize) {
        let bytes = |entry: &Entry| match entry {
            Entry::Wanted { pod, over, .. } if over.is_some() == are_over => Some(pod.bytes),
            Entry::Wanted { .. } | Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_) => None,
        };
        let held = self.pods.values().filter_map(bytes);
        held.fold((0, 0), |(pods, sum), bytes| (pods + 1, sum + bytes))
    }

    fn entry(&mut self, key: PodKey, mut object: Node) -> Option<Entry> {
        let changed = self.shared.statuses.watched(&key.uid, ApiStatusVersion::of(&object));
        let metadata = object.field("metadata");
        let deleted = metadata.is_some_and(|m| m.field("deletionTimestamp").is_some());
        if let Some(hash) = mirrored(&object) {
            let hash = start_of(hash, MIRROR_HASH_BYTES_MAX).into();
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
        let is_here = self.shared.local_pods.has(&key.uid);
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
        // Terminated pods have their own byte limit.
        let (before, its) = match self.pods.get(&key.uid) {
            Some(Entry::Wanted { pod, .. }) if pod.config_hash == read.config_hash => {
                // Only its status changed: the pod that is already held stays.
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
                log::warn!(
                    "pod {key}: update ignored, it keeps its former spec: the new one {}",
                    does_not_fit()
                );
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

    /// Number of the pod's termination, if it is Succeeded or Failed.
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

    /// Drops pods that have not started, the youngest first, to free the bytes: for a pod with state on this node, or for an
    /// older one. None is dropped when that would not suffice.
    fn give_way(&mut self, bytes: usize, to: Option<&Pod>) -> bool {
        let gives = |(uid, entry): (&PodUid, &Entry)| match entry {
            Entry::Wanted { pod, over: None, .. } if !self.shared.local_pods.has(uid) => {
                let its = pod.pod.pod.without_volumes();
                let younger = to.is_none_or(|to| first_come(to, &its).is_lt());
                younger.then_some((its, pod.bytes))
            }
            Entry::Wanted { .. } | Entry::Ending(_) | Entry::Refused(_) | Entry::Mirror(_) => None,
        };
        let mut giving: Vec<(Rc<Pod>, usize)> = self.pods.iter().filter_map(gives).collect();
        // Creation times have whole seconds: within one second the first in list order stays.
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

    /// Keeps the newest terminated pods that have state on this node, within their limits. The others are no longer desired:
    /// their state here is removed, their statuses stay in the server.
    fn forget_ended(&mut self) {
        loop {
            let (pods, bytes) = self.held(true);
            let is_full = pods > ENDED_PODS_MAX || bytes > ENDED_PODS_BYTES_MAX;
            let ended = self.pods.iter().filter_map(|(uid, entry)| match entry {
                Entry::Wanted { pod, over: Some(over), .. }
                    if is_full || !self.shared.local_pods.has(uid) =>
                {
                    Some((
                        self.shared.local_pods.has(uid),
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

    fn skipped(&mut self) {
        self.short = true;
    }

    fn apply(&mut self, object: Node) {
        let Some(key) = key(&object) else { return };
        let is_known = self.pods.contains_key(&key.uid) || self.shared.local_pods.has(&key.uid);
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

    fn delete(&mut self, object: &Node) {
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
        // A skipped object may be any missing one: no pod is terminated for its absence.
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
            held: SourceUsage { pod_bytes: self.held(true).1 + self.held(false).1, ..SourceUsage::default() },
            server,
        };
        // The loop is gone only when the process ends.
        let _ = self.updates.force_send(update);
    }

    fn lost(&mut self, why: &KubeError) {
        self.trees.failed();
        if !matches!(why, KubeError::NotJoined(_)) && self.lost.as_ref() != Some(why) {
            log::warn!("{why}; pods keep running, retrying");
            self.lost = Some(why.clone());
        }
    }
}

/// The pod is Succeeded or Failed, and not being deleted; mirror pods do not count.
fn is_over(object: &Node) -> bool {
    let phase = object.field("status").and_then(|status| status.field("phase")).and_then(Node::text);
    let metadata = object.field("metadata");
    matches!(phase, Some("Succeeded" | "Failed"))
        && mirrored(object).is_none()
        && metadata.is_some_and(|metadata| metadata.field("deletionTimestamp").is_none())
}

/// The pod's key; `None` when its names are not valid for directories.
fn key(object: &Node) -> Option<PodKey> {
    let metadata = object.field("metadata")?;
    let text = |field| metadata.field(field).and_then(Node::text);
    let key = PodKey::new(text("namespace")?, text("name")?, text("uid")?);
    key.is_path_safe().then_some(key)
}

/// The conditions of the pod's readiness gates, as other clients have set them, without their messages and times; other
/// conditions are not kept. At most `limits::READINESS_GATES_MAX`.
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
            status: start_of(status, CONDITION_STATUS_BYTES_MAX).to_owned(),
            ..PodCondition::default()
        })
    };
    gates.filter_map(condition).collect()
}

/// The relevant part of the status: the conditions of readiness gates and, for a terminated pod, how it ended.
fn status_of(object: &Node, over: bool) -> Option<PodStatus> {
    let status = object.field("status").filter(|_| over);
    let text =
        |field| Some(start_of(status?.field(field)?.text()?, TERMINAL_STATUS_TEXT_BYTES_MAX).to_owned());
    let gates = gates(object);
    let (phase, reason, message) = (text("phase"), text("reason"), text("message"));
    let conditions = Some(gates).filter(|gates| !gates.is_empty());
    let is_some = phase.is_some() || conditions.is_some();
    is_some.then(|| PodStatus { phase, reason, message, conditions, ..PodStatus::default() })
}

/// The same pod with this status.
fn with_status(of: &SourcedPod, status: Option<PodStatus>) -> SourcedPod {
    let mut of = of.clone();
    if of.pod.pod.status != status {
        let mut pod = (*of.pod.pod).clone();
        pod.status = status;
        of.pod.pod = pod.into();
    }
    of
}

/// The manifest's hash of a mirror pod.
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
        let (updates, received) = smol::channel::bounded(1);
        let (failed, _failed) = smol::channel::bounded(1);
        let (local_pods, _looked) = LocalPods::new();
        local_pods.are(std::iter::once("u".into()).collect());
        let shared = Shared { local_pods, statuses: ApiStatusVersions::default() };
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
            pods.apply(crate::decode::json::read(text.as_bytes()).expect("JSON"));
            pods.settled();
            let update = received.try_recv().expect("an update");
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
