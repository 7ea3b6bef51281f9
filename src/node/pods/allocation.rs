//! In-place pod resize (`allocation_manager.go`): the records have the state, [`crate::allocation`] decides, and this file
//! applies the decisions.

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

use super::Pods;
use super::record::Record;
use super::worker::Work;
use crate::allocation::pending::{Decision, Waiting, sort};
use crate::allocation::resizing::{Progress, ResizeEvent, ResizingPod, Retry};
use crate::allocation::{created_with, is_resize, resizable};
use crate::cri::Runtime;
use crate::model::{DesiredPod, Now, ObservedPod, PodUid};
use crate::node::effects::Effects;
use crate::render::NodeSettings;
use crate::render::resources::sizes;
use crate::store::checkpoint::SizesCheckpoint;
use crate::store::statuses::StatusStore;
use crate::sync::outcome::Outcome;

impl Record {
    /// The form for the checkpoint.
    pub(in crate::node) fn kept_sizes(&self) -> Option<Vec<SizesCheckpoint<'_>>> {
        let (resizing, pod) = (self.resizing.as_ref()?, self.worker.pod()?);
        Some(resizing.kept(resizable(pod).map(|container| (&*container.name, sizes(container)))))
    }

    /// Completes an observation with the resources that the runtime does not report. True when the first observation shows an
    /// allocation that differs from the desired resources.
    pub(in crate::node) fn note_sizes(&mut self, node: &NodeSettings, observed: &mut ObservedPod) -> bool {
        let mut found = false;
        if let (None, Some(pod)) = (self.worker.observed(), self.worker.pod()) {
            if let Some(resizing) = &mut self.resizing {
                resizing.recognise(node, pod, observed);
            } else if let Some(allocated) = created_with(pod, observed) {
                self.resizing.get_or_insert_default();
                self.worker.replace_pod(allocated.into());
                found = true;
            }
        }
        if let Some(resizing) = &mut self.resizing {
            resizing.complete(observed);
        }
        found
    }

    /// [`PlanInput::resizing`](crate::sync::plan::PlanInput::resizing).
    pub(in crate::node) fn is_resizing(&self) -> bool {
        self.resizing.as_ref().is_some_and(|resizing| resizing.is_unsettled())
    }

    fn is_resize_pending(&self) -> bool {
        self.resizing.as_ref().is_some_and(|resizing| resizing.is_pending())
    }
}

impl<R: Runtime + 'static> Pods<R> {
    /// The pod of that record is desired like this now.
    pub(in crate::node) fn note_resize_request(&mut self, pod: &DesiredPod) {
        let Some(record) = self.records.get_mut(&pod.key.uid) else { return };
        if is_resize(record.worker.life(), record.worker.pod().map(|pod| &**pod), pod) {
            record.resizing.get_or_insert_default();
        }
        self.retry_resizes |= record.resizing.is_some();
    }

    /// Requests a retry of pending resizes: there may be room now.
    pub(in crate::node) fn queue_resize_retries(&mut self) {
        self.retry_resizes |= self.records.values().any(Record::is_resize_pending);
    }

    /// Retries the pending resizes (`RetryPendingResizes`).
    pub(in crate::node) fn settle_resizes(&mut self, now: Now, out: &mut Effects) {
        if !self.retry_resizes {
            return;
        }
        // Until then the allocations of the running pods are unknown.
        let Some(relist) = &self.relist else { return };
        let unread = |(uid, record): (&PodUid, &Record)| {
            record.worker.observed().is_none() && !record.set_aside && relist.pods.contains_key(uid)
        };
        if self.records.iter().any(unread) {
            return;
        }
        self.retry_resizes = false;
        let (mut queue, mut withdrawn) = (Vec::new(), Vec::new());
        for (uid, record) in &mut self.records {
            let Some(resizing) = &mut record.resizing else { continue };
            let (Some(allocated), Some(entry)) = (record.worker.pod(), self.desired.pod(uid)) else {
                continue;
            };
            let desired = &entry.wanted.pod;
            let retry = resizing.retry(&ResizingPod {
                life: record.worker.life(),
                set_aside: record.set_aside,
                in_flight: record.worker.in_flight().is_some(),
                desired,
                allocated,
                observed: record.worker.observed().map(|observed| &**observed),
            });
            match retry {
                Retry::Leave => {}
                Retry::Decide { since } => queue.push(Waiting {
                    uid: uid.clone(),
                    desired: desired.clone(),
                    allocated: allocated.clone(),
                    since,
                }),
                Retry::Withdraw => {
                    resizing.withdraw();
                    withdrawn.push(uid.clone());
                }
                Retry::Forget => record.resizing = None,
            }
        }
        for uid in withdrawn {
            self.refresh_status(&uid, now);
        }
        sort(&mut queue);
        for Waiting { uid, desired, allocated, .. } in queue {
            self.settle_resize(&uid, desired, &allocated, now, out);
        }
    }

    /// Applies the decision on a pod's resize.
    fn settle_resize(
        &mut self,
        uid: &PodUid,
        desired: DesiredPod,
        allocated: &DesiredPod,
        now: Now,
        out: &mut Effects,
    ) {
        match self.decide_resize(uid, &desired, allocated) {
            Decision::Allocate => self.allocate(uid, desired, now, out),
            Decision::AllocateUnfit(why) => {
                log::warn!(
                    "pod {}: resized although it does not fit, too many resizes are pending: {why}",
                    desired.key
                );
                self.allocate(uid, desired, now, out);
            }
            Decision::PutOff(pending, victims) => {
                for victim in victims {
                    self.preempt(&victim, out);
                }
                let record = self.records.get_mut(uid);
                let Some(resizing) = record.and_then(|record| record.resizing.as_mut()) else { return };
                let event = resizing.put_off(&desired, &pending, now.wall);
                self.note_resize(&desired, event);
                self.refresh_status(uid, now);
            }
            // Deferred until the node's labels are known.
            Decision::Wait => self.retry_resizes = true,
        }
    }

    /// The pod may have its desired resources.
    fn allocate(&mut self, uid: &PodUid, desired: DesiredPod, now: Now, out: &mut Effects) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(resizing) = &mut record.resizing else { return };
        let observed = record.worker.observed().map(|observed| &**observed);
        if record.worker.pod().is_some_and(|allocated| resizing.note_unknown(allocated, observed)) {
            // The next observation has it.
            record.worker.touched();
        }
        self.resizes += 1;
        resizing.number = self.resizes;
        let event = resizing.allocate(&desired, now.wall);
        self.note_resize(&desired, Some(event));
        if let Some(record) = self.records.get_mut(uid) {
            record.set_desired_and_allocated(desired);
        }
        self.refresh_status(uid, now);
        out.drive(uid);
    }

    fn note_resize(&self, pod: &DesiredPod, event: Option<ResizeEvent>) {
        if let Some(ResizeEvent { kind, reason, message }) = event {
            self.ctx.note(&pod.key, kind, reason, &message);
        }
    }

    /// Number of containers whose resources are recorded.
    pub(in crate::node) fn resizes_noted(&self) -> usize {
        let resizing = self.records.values().filter_map(|record| record.resizing.as_ref());
        resizing.map(|resizing| resizing.noted()).sum()
    }

    /// Pods that wait to be resized and are there once more for that, but for one, and what they take.
    pub(in crate::node) fn resizes_waiting(&self, but: Option<&PodUid>) -> (usize, usize) {
        let waiting =
            self.records.iter().filter(|(uid, record)| Some(*uid) != but && record.is_resize_pending());
        waiting.fold((0, 0), |(pods, bytes), (uid, _)| {
            (pods + 1, bytes + self.desired.pod(uid).map_or(0, |entry| entry.wanted.bytes))
        })
    }

    /// Records the resources that a sync has changed.
    pub(in crate::node) fn resized(&mut self, uid: &PodUid, outcome: &Outcome, now: Now) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let (Some(resizing), Some(pod)) = (&mut record.resizing, record.worker.pod()) else { return };
        for fresh in &outcome.actuated {
            self.resizes += 1;
            resizing.actuate(&fresh.id, fresh.sizes);
        }
        match outcome.resize() {
            None => {}
            Some(None) => resizing.settle(),
            Some(Some(failure)) => {
                let (pod, event) = (pod.clone(), resizing.fail(pod, &failure.message, now.wall));
                self.note_resize(&pod, event);
            }
        }
    }

    /// Updates the progress of the pod's resize (`ResizeInProgress` and its end) by the last observation.
    pub(in crate::node) fn update_resize(&mut self, uid: &PodUid, now: Now) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(resizing) = &mut record.resizing else { return };
        let (Some(pod), Some(observed)) = (record.worker.pod(), record.worker.observed()) else { return };
        match resizing.look(pod, observed, now.wall) {
            Progress::Unchanged => return,
            Progress::Begun => {}
            Progress::Completed(event) => {
                let pod = pod.clone();
                self.note_resize(&pod, Some(event));
            }
        }
        self.refresh_status(uid, now);
        // Other pods may use the released resources, or the resize is complete.
        self.retry_resizes = true;
    }
}

/// The pod as admission counts it: with its allocated resources and, during a resize, its actual ones
/// (`PodRequests` with `UseStatusResources`).
pub(in crate::node) fn as_it_counts(
    records: &BTreeMap<PodUid, Record>,
    statuses: &StatusStore,
    pod: &DesiredPod,
) -> Rc<Pod> {
    let uid = &pod.key.uid;
    let record = records.get(uid);
    let allocated = record.and_then(|record| record.worker.pod()).map_or(&pod.pod, |pod| &pod.pod);
    let resizing = record.and_then(|record| record.resizing.as_ref());
    if resizing.is_none_or(|resizing| !resizing.is_in_progress()) {
        return allocated.without_volumes();
    }
    let mut object = (**allocated).clone();
    object.status = statuses.status(uid);
    object.into()
}

impl Work {
    /// The sync changes CPU and memory of running containers.
    pub(in crate::node) fn resizes(&self) -> bool {
        matches!(self, Self::Act(plan) if !plan.resizes.is_empty())
    }
}
