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

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

use super::agent::Agent;
use crate::admit::{Rejection, Resources, fits};
use crate::cri::Runtime;
use crate::model::{DesiredPod, Now, ObservedPod, PodUid};
use crate::render::NodeSettings;
use crate::sync::plan::Plan;
use crate::sync::worker::Life;

/// What pods may ask for of a node that is alone (`Node.status.allocatable`). What could not be read is no bound.
pub(super) fn allocatable(node: &NodeSettings, pods_max: usize) -> Resources {
    let known = |amount: i64| if amount > 0 { amount } else { i64::MAX };
    Resources {
        milli_cpu: known(node.cpu_allocatable_millis),
        memory: known(node.memory_allocatable_bytes),
        ephemeral_storage: known(node.ephemeral_storage_bytes),
        pods: i64::try_from(pods_max).unwrap_or(i64::MAX),
        ..Resources::default()
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// Whether the pod may begin. One that may not waits, or has failed; its status says why.
    pub(super) fn may_begin(
        &mut self,
        uid: &PodUid,
        pod: &DesiredPod,
        observed: &ObservedPod,
        plan: &Plan,
        now: Now,
    ) -> bool {
        let Some(record) = self.records.get_mut(uid) else { return false };
        record.awaits_room = None;
        if record.admitted || !observed.is_empty() || pod.pod.is_of_api_server() {
            record.admitted = true;
            return true;
        }
        let others = self.pods_with_room(uid);
        let admitted = match self.admit_static(uid, pod, &others) {
            Some(admitted) => admitted,
            None => fits(&pod.pod, &self.allocatable, &mut others.iter().map(|pod| &**pod)).map_err(Some),
        };
        let Some(record) = self.records.get_mut(uid) else { return false };
        record.admitted = admitted.is_ok();
        let Err(why) = admitted else { return true };
        record.awaits_room = Some(others.len());
        record.worker.settled(None);
        if let Some(Rejection { reason, message, .. }) = why {
            let reason = match reason {
                std::borrow::Cow::Borrowed(reason) => reason,
                std::borrow::Cow::Owned(_) => "UnexpectedAdmissionError",
            };
            let message = format!("{message}; it begins when there is room");
            self.hold_back(uid, plan, reason, &message, now);
        }
        false
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
            let is_told = self.desired.pod(of).is_some() || self.is_deleted(of);
            is_told && (ends || !self.statuses.has_ended(of)) && (record.admitted || is_here())
        };
        let pods = self.records.iter().filter(|(of, _)| *of != uid && takes(of));
        pods.filter_map(|(_, record)| Some(record.worker.pod()?.pod.without_volumes())).collect()
    }

    /// Asks again about those that wait, if the number of the others is another one.
    pub(super) fn admit_those_that_wait(&mut self) {
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
            self.drive(&uid);
        }
    }
}
