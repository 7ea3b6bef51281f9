//! Whether a static pod may begin beside the others: the kubelet admits those of files as it does all others
//! (`HandlePodAdditions`, `predicateAdmitHandler.Admit`).
//!
//! ```text
//!     something of it is here, or it was admitted    it goes on, whatever becomes of the node
//!     a node of a cluster                            as the kubelet: others end for it, for it is critical; or it is Failed
//!     alone                                          it waits, and is asked about again when the number of the others changes
//! ```
//!
//! Differs from the kubelet where the node is alone: there such a pod is Failed for good, and nobody makes another one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Pod, Taint};

use super::Pods;
use super::allocation::as_it_counts;
use crate::admit::arrivals::{RoomFor, room_for};
use crate::admit::{DECLARED_FEATURES, NodeView, Rejection, Resources, fits};
use crate::allocation::pending::{Decision, Request, Room, decide};
use crate::cri::Runtime;
use crate::events::{About, EventKind};
#[cfg(feature = "tls")]
use crate::model::SortedMap;
use crate::model::{DesiredPod, ObservedPod, PodUid};
use crate::node::effects::Effects;
use crate::render::NodeSettings;
use crate::source::RefusedPod;
use crate::sync::plan::Plan;
use crate::sync::worker::Life;

/// What the message of a pod's status begins with when the node does not take it.
pub(in crate::node) const REJECTED: &str = "Pod was rejected: ";

/// What the node has for pods, and whom it lets in.
pub(in crate::node) struct NodeRoom {
    name: Box<str>,
    /// `Node.status.allocatable`.
    allocatable: Resources,
    of_cluster: bool,
    /// Labels and taints of the Node; `None` = the node is alone, or they are not known yet.
    labels_and_taints: Option<(BTreeMap<String, String>, Vec<Taint>)>,
}

impl NodeRoom {
    /// Of a node that is alone. What could not be read is no bound.
    pub(in crate::node) fn alone(node: &NodeSettings, pods_max: usize) -> Self {
        let known = |amount: i64| if amount > 0 { amount } else { i64::MAX };
        let allocatable = Resources {
            milli_cpu: known(node.cpu_allocatable_millis),
            memory: known(node.memory_allocatable_bytes),
            ephemeral_storage: known(node.ephemeral_storage_bytes),
            pods: i64::try_from(pods_max).unwrap_or(i64::MAX),
            ..Resources::default()
        };
        Self { name: node.node_name.clone(), allocatable, of_cluster: false, labels_and_taints: None }
    }

    /// Of a node of a cluster, before its Node is known.
    #[cfg(feature = "tls")]
    pub(in crate::node) fn of_cluster(name: &str, allocatable: Resources) -> Self {
        Self { name: name.into(), allocatable, of_cluster: true, labels_and_taints: None }
    }

    pub(super) fn is_of_cluster(&self) -> bool {
        self.of_cluster
    }

    /// The Node's labels, once they are known.
    #[cfg(feature = "tls")]
    pub(in crate::node) fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.labels_and_taints.as_ref().map(|(labels, _)| labels)
    }

    /// How pods see the node; `None` = its Node is not known yet.
    pub(in crate::node) fn view(&self) -> Option<NodeView<'_>> {
        self.view_of(&self.allocatable)
    }

    fn view_of<'a>(&'a self, allocatable: &'a Resources) -> Option<NodeView<'a>> {
        let (labels, taints) = self.labels_and_taints.as_ref()?;
        Some(NodeView { name: &self.name, labels, taints, allocatable, declared_features: DECLARED_FEATURES })
    }
}

/// Says that a pod does not run here (`rejectPod`).
pub(in crate::node) fn note_refusal(
    note: &dyn Fn(About<'_>, EventKind, &'static str, &str),
    refused: &RefusedPod,
) {
    let RefusedPod { key, message, .. } = refused;
    let message = message.strip_prefix(REJECTED).unwrap_or(message);
    match &refused.reason {
        Cow::Borrowed(reason) => note(key.into(), EventKind::Warning, reason, message),
        // Of a resource that only this cluster has: the status alone has that word.
        Cow::Owned(reason) => log::warn!("pod {key}: {reason}: {message}"),
    }
}

impl<R: Runtime + 'static> Pods<R> {
    /// The Node has these labels and taints, and what others have put on it counts (`getNodeAnyWay`). Static pods that wait are
    /// asked about by that.
    #[cfg(feature = "tls")]
    pub(in crate::node) fn set_node_fields(
        &mut self,
        labels: BTreeMap<String, String>,
        taints: Vec<Taint>,
        scalars: Option<&SortedMap<Box<str>, i64>>,
    ) {
        let room = &mut self.facts.room;
        room.labels_and_taints = Some((labels, taints));
        if let Some(scalars) = scalars {
            room.allocatable.scalars.clone_from(scalars);
            for record in self.records.values_mut() {
                record.awaits_room = record.awaits_room.map(|_| usize::MAX);
            }
        }
    }

    /// Whether the pod may begin. One that may not waits, or has failed; its status says why.
    pub(super) fn may_begin(
        &mut self,
        uid: &PodUid,
        pod: &DesiredPod,
        observed: &ObservedPod,
        plan: &Plan,
        out: &mut Effects,
    ) -> bool {
        let Some(record) = self.records.get_mut(uid) else { return false };
        record.awaits_room = None;
        if record.admitted || !observed.is_empty() || pod.pod.is_of_api_server() {
            record.admitted = true;
            return true;
        }
        let others = self.pods_with_room(uid);
        let admitted = self.admit_static(uid, pod, &others, out);
        let Some(record) = self.records.get_mut(uid) else { return false };
        record.admitted = admitted.is_ok();
        let Err(why) = admitted else { return true };
        record.awaits_room = Some(others.len());
        record.worker.settled(None);
        if let Some(Rejection { reason, message, .. }) = why {
            let reason = match reason {
                Cow::Borrowed(reason) => reason,
                Cow::Owned(_) => "UnexpectedAdmissionError",
            };
            let message = format!("{message}; it begins when there is room");
            self.hold_back(uid, plan, reason, &message);
        }
        false
    }

    /// Whether a static pod may begin. Of a node of a cluster others end for it, or it has failed for good, when it may not; while
    /// the Node is not known, and on a node that is alone, it waits for room, with the reason.
    fn admit_static(
        &mut self,
        uid: &PodUid,
        pod: &DesiredPod,
        others: &[Rc<Pod>],
        out: &mut Effects,
    ) -> Result<(), Option<Rejection>> {
        let room = &self.facts.room;
        let counted;
        let allocatable = if room.of_cluster {
            counted = room.allocatable.with_uncounted(&pod.pod);
            &counted
        } else {
            &room.allocatable
        };
        let Some(view) = room.view_of(allocatable) else {
            return fits(&pod.pod, allocatable, &mut others.iter().map(|pod| &**pod)).map_err(Some);
        };
        match room_for(&pod.pod, &view, others) {
            RoomFor::Here => Ok(()),
            RoomFor::After(victims) => {
                for victim in victims {
                    self.preempt(&victim, out);
                }
                Err(None)
            }
            RoomFor::None(rejection) => {
                self.reject_static(uid, rejection);
                Err(None)
            }
        }
    }

    /// The static pod has failed, for good (`rejectPod`).
    fn reject_static(&mut self, uid: &PodUid, rejection: Rejection) {
        let Some(record) = self.records.get(uid) else { return };
        let refused = RefusedPod {
            key: record.worker.key().clone(),
            reason: rejection.reason,
            message: format!("{REJECTED}{}", rejection.message).into(),
            generation: None,
        };
        note_refusal(&*self.ctx.manager.notes, &refused);
        self.reject_pod(uid, refused.reason.into_owned(), refused.message.into());
    }

    /// Whether a pod that is here may have the CPU and memory that it is desired with.
    pub(super) fn decide_resize(
        &self,
        uid: &PodUid,
        desired: &DesiredPod,
        allocated: &DesiredPod,
    ) -> Decision {
        let is_checked = self.facts.room.of_cluster && desired.pod.is_of_api_server();
        let room = match self.facts.room.view() {
            _ if !is_checked => Room::Unchecked,
            None => Room::Unknown,
            Some(view) => Room::Of(view),
        };
        let own = self.desired.pod(uid).map_or(0, |entry| entry.wanted.bytes);
        let request = Request {
            node: &self.ctx.node,
            desired,
            allocated,
            noted: self.resizes_noted(),
            waiting_bytes: self.resizes_waiting(Some(uid)).1 + own,
            room,
        };
        decide(&request, || self.others_in_cluster(uid))
    }

    /// The pods that take room beside this one on a node of a cluster (`GetActivePods`): all that are told, and have not ended.
    fn others_in_cluster(&self, uid: &PodUid) -> Vec<Rc<Pod>> {
        let ends = |of: &PodUid| {
            self.records.get(of).is_some_and(|record| matches!(record.worker.life(), Life::Ending(_)))
        };
        let is_known_to_source = |of: &PodUid| self.desired.pod(of).is_some() || self.is_deleted(of);
        let takes =
            |of: &PodUid| of != uid && is_known_to_source(of) && (!self.statuses.has_ended(of) || ends(of));
        let here = self.records.values().filter_map(|record| record.worker.pod());
        let waiting = self.desired.entries().map(|entry| &entry.wanted.pod);
        let waiting = waiting.filter(|pod| !self.records.contains_key(&pod.key.uid));
        let others = here.map(|pod| &**pod).chain(waiting).filter(|pod| takes(&pod.key.uid));
        others.map(|pod| as_it_counts(&self.records, &self.statuses, pod)).collect()
    }

    /// The pods that take room beside this one, as they count (`GetActivePods`): all that were admitted and have not ended.
    fn pods_with_room(&self, uid: &PodUid) -> Vec<Rc<Pod>> {
        let relist = self.relist.as_ref();
        let takes = |of: &PodUid| {
            let Some(record) = self.records.get(of) else { return false };
            let ends = matches!(record.worker.life(), Life::Ending(_));
            let is_here = || {
                record.worker.observed().is_some_and(|observed| !observed.is_empty())
                    || relist.is_some_and(|relist| relist.pods.contains_key(of))
            };
            let is_known_to_source = self.desired.pod(of).is_some() || self.is_deleted(of);
            is_known_to_source && (ends || !self.statuses.has_ended(of)) && (record.admitted || is_here())
        };
        let pods = self.records.iter().filter(|(of, _)| *of != uid && takes(of));
        pods.filter_map(|(_, record)| Some(record.worker.pod()?.pod.without_volumes())).collect()
    }

    /// Asks again about those that wait, if the number of the others is another one.
    pub(in crate::node) fn admit_waiting(&mut self, out: &mut Effects) {
        let waiting = self.records.iter().filter_map(|(uid, record)| Some((uid, record.awaits_room?)));
        let waiting: Vec<PodUid> = waiting
            .filter(|(uid, before)| self.pods_with_room(uid).len() != *before)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in waiting {
            if let Some(record) = self.records.get_mut(&uid) {
                record.awaits_room = None;
                record.worker.plan_again();
            }
            out.drive(&uid);
        }
    }
}
