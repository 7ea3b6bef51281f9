//! Admission of static pods, which the kubelet admits as all other pods (`HandlePodAdditions`,
//! `predicateAdmitHandler.Admit`).
//!
//! ```text
//!     it was admitted, or a sandbox or container exists    admitted
//!     a node of a cluster                                  as the kubelet: it preempts other pods, since it is critical, or is
//!                                                          rejected
//!     a standalone node                                    it waits, and is checked again when the number of other pods changes
//! ```
//!
//! Differs from the kubelet on a standalone node: there such a pod fails permanently, and no controller replaces it.

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

/// Prefix of a rejected pod's status message.
pub(in crate::node) const REJECTED: &str = "Pod was rejected: ";

/// The node's allocatable resources, labels and taints, by which pods are admitted.
pub(in crate::node) struct NodeRoom {
    name: Box<str>,
    /// `Node.status.allocatable`.
    allocatable: Resources,
    of_cluster: bool,
    /// Labels and taints of the Node; `None` = standalone, or not known yet.
    labels_and_taints: Option<(BTreeMap<String, String>, Vec<Taint>)>,
}

impl NodeRoom {
    /// Of a standalone node. Resources that could not be read are not limited.
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

    /// Of a node of a cluster, before its Node object is known.
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

    /// The node as admission sees it; `None` = its Node object is not known yet.
    pub(in crate::node) fn view(&self) -> Option<NodeView<'_>> {
        self.view_of(&self.allocatable)
    }

    fn view_of<'a>(&'a self, allocatable: &'a Resources) -> Option<NodeView<'a>> {
        let (labels, taints) = self.labels_and_taints.as_ref()?;
        Some(NodeView { name: &self.name, labels, taints, allocatable, declared_features: DECLARED_FEATURES })
    }
}

/// Records the event of a rejected pod (`rejectPod`).
pub(in crate::node) fn note_refusal(
    note: &dyn Fn(About<'_>, EventKind, &'static str, &str),
    refused: &RefusedPod,
) {
    let RefusedPod { key, message, .. } = refused;
    let message = message.strip_prefix(REJECTED).unwrap_or(message);
    match &refused.reason {
        Cow::Borrowed(reason) => note(key.into(), EventKind::Warning, reason, message),
        // The name of an extended resource is not a static text, as the event ring needs: only the status has it.
        Cow::Owned(reason) => log::warn!("pod {key}: {reason}: {message}"),
    }
}

impl<R: Runtime + 'static> Pods<R> {
    /// Sets the Node's labels, taints and extended resources (`getNodeAnyWay`). Waiting static pods are checked again.
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

    /// True when the pod is admitted. Otherwise it waits or is rejected, with the reason in its status.
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
            let message = format!("{message}; it starts when there is room");
            self.hold_back(uid, plan, reason, &message);
        }
        false
    }

    /// Admits a static pod. On a node of a cluster it preempts other pods or is rejected; while the Node is not known, and on a
    /// standalone node, it waits for room: `Err` has the reason, or `None` when the status already has it or victims terminate.
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

    /// Rejects the static pod (`rejectPod`).
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

    /// Decides whether the pod is allocated its desired CPU and memory.
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

    /// The other pods that take room on a node of a cluster (`GetActivePods`): all desired or deleted ones that have not ended.
    fn others_in_cluster(&self, uid: &PodUid) -> Vec<Rc<Pod>> {
        let ends = |of: &PodUid| {
            self.records.get(of).is_some_and(|record| matches!(record.worker.life(), Life::Ending(_)))
        };
        let is_known_to_source = |of: &PodUid| self.desired.pod(of).is_some() || self.is_deleted(of);
        let takes =
            |of: &PodUid| of != uid && is_known_to_source(of) && (!self.statuses.has_ended(of) || ends(of));
        let with_record = self.records.values().filter_map(|record| record.worker.pod());
        let waiting = self.desired.entries().map(|entry| &entry.wanted.pod);
        let waiting = waiting.filter(|pod| !self.records.contains_key(&pod.key.uid));
        let others = with_record.map(|pod| &**pod).chain(waiting).filter(|pod| takes(&pod.key.uid));
        others.map(|pod| as_it_counts(&self.records, &self.statuses, pod)).collect()
    }

    /// The other pods that take room (`GetActivePods`): all that were admitted and have not ended.
    fn pods_with_room(&self, uid: &PodUid) -> Vec<Rc<Pod>> {
        let relist = self.relist.as_ref();
        let takes = |of: &PodUid| {
            let Some(record) = self.records.get(of) else { return false };
            let ends = matches!(record.worker.life(), Life::Ending(_));
            let exists = || {
                record.worker.observed().is_some_and(|observed| !observed.is_empty())
                    || relist.is_some_and(|relist| relist.pods.contains_key(of))
            };
            let is_known_to_source = self.desired.pod(of).is_some() || self.is_deleted(of);
            is_known_to_source && (ends || !self.statuses.has_ended(of)) && (record.admitted || exists())
        };
        let pods = self.records.iter().filter(|(of, _)| *of != uid && takes(of));
        pods.filter_map(|(_, record)| Some(record.worker.pod()?.pod.without_volumes())).collect()
    }

    /// Checks the waiting pods again when the number of other pods has changed.
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
