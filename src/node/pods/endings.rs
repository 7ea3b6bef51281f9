//! Terminations of pods besides the removal of their manifests: eviction, preemption, the node's shutdown; and the reasons for
//! which pods wait or fail before they start.

use std::rc::Rc;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::{MachineState, Pods};
use crate::admit::preempt;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::eviction::NodeCondition;
use crate::eviction::local::OwnLimit;
#[cfg(feature = "tls")]
use crate::limits::GRACE_SECONDS_MIN;
use crate::model::{PodUid, Seconds, Wall};
use crate::node::effects::{Effect, Effects};
use crate::shutdown::{REFUSED, REFUSED_MESSAGE, ShutdownGroup, TERMINATED};
#[cfg(feature = "tls")]
use crate::source::EndingPod;
use crate::status::{self, Phase};
use crate::sync::outcome::SyncError;
use crate::sync::plan::Plan;
use crate::sync::worker::Life;
#[cfg(feature = "tls")]
use crate::sync::worker::Why;

/// Why a pod is evicted.
#[derive(Clone, Copy)]
pub(in crate::node) enum EvictedFor {
    /// It exceeded a limit of its own, and fails for good.
    Limit(OwnLimit),
    /// Node pressure: it starts again after that, and its containers and files are removed at once.
    Node,
}

impl<R: Runtime + 'static> Pods<R> {
    /// Evicts a pod with that grace period (`evictPod`), unless it has ended.
    ///
    /// Differs from the kubelet, which evicts no static pod, since those are critical there. Here all pods may be static, and a
    /// limit without evictions would have no effect.
    pub(in crate::node) fn evict(
        &mut self,
        uid: &PodUid,
        message: &str,
        grace: Seconds,
        why: EvictedFor,
        out: &mut Effects,
    ) {
        let now = self.now();
        let for_the_node = matches!(why, EvictedFor::Node);
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(mut status) = self.statuses.status(uid).filter(|_| !self.statuses.has_ended(uid)) else {
            return;
        };
        status::eviction::evict(&mut status, message, for_the_node, now.wall);
        record.eviction_grace = grace;
        // Otherwise a sync that starts its containers would continue.
        record.cut_off_act();
        self.ctx.note(record.worker.key(), EventKind::Warning, "Evicted", message);
        self.statuses.put(uid, status);
        // Saved at once: the eviction has to outlast a restart of the agent.
        out.push(Effect::AwaitSave(uid.clone()));
        self.refresh_status(uid, now);
        if let Some(record) = self.records.get_mut(uid) {
            if for_the_node {
                record.worker.clear_when_ended();
            }
            record.worker.finished();
        }
        if let EvictedFor::Limit(limit) = why {
            self.metrics.evictions_of_limits[limit as usize].inc();
        }
        out.drive(uid);
    }

    /// Sets the node's pressure conditions. Pods that waited for the end of one are planned again, and without any condition the
    /// evicted pods start again.
    pub(in crate::node) fn set_conditions(&mut self, conditions: Vec<NodeCondition>, out: &mut Effects) {
        let ended = self.facts.conditions.iter().any(|condition| !conditions.contains(condition));
        self.facts.conditions = conditions;
        if ended {
            for (uid, record) in &mut self.records {
                let Some(observed) = record.worker.observed() else { continue };
                if record.worker.life() == Life::Syncing && observed.sandboxes.is_empty() {
                    record.worker.plan_again();
                    out.drive(uid);
                }
            }
        }
        if self.facts.conditions.is_empty() {
            self.take_evicted_back(out);
        }
    }

    fn take_evicted_back(&mut self, out: &mut Effects) {
        let now = self.now();
        let evicted = |uid: &&PodUid| {
            self.statuses.has_ended(uid)
                && self.statuses.status(uid).is_some_and(|status| status::eviction::was_for_the_node(&status))
        };
        let evicted: Vec<PodUid> = self.records.keys().filter(evicted).cloned().collect();
        for uid in evicted {
            // A pod without a manifest terminates anyway.
            let Some(pod) = self.desired.pod(&uid).map(|entry| entry.wanted.pod.clone()) else { continue };
            // A pod of the API server has failed for good: its controller creates another one, perhaps on another node.
            if pod.pod.is_of_api_server() {
                continue;
            }
            log::info!("pod {}: restarting the evicted pod, the node is under no pressure any more", pod.key);
            self.remove_desired(&uid, now);
            self.set_desired(pod, out);
            out.drive(&uid);
        }
    }

    /// Removes the containers, logs and volumes of a pod that has ended for good (`DeleteAllUnusedContainers`).
    pub(in crate::node) fn clear_ended(&mut self, uid: &PodUid, out: &mut Effects) {
        if self.records.get_mut(uid).is_some_and(|record| record.worker.clear_when_ended()) {
            log::info!("pod {uid}: removing a terminated pod's leftovers (disk pressure)");
            out.drive(uid);
        }
    }

    /// The pod is not admitted under node pressure: its containers wait, with the kubelet's reason.
    pub(super) fn hold_back(&mut self, uid: &PodUid, plan: &Plan, reason: &'static str, message: &str) {
        let mut room = self.start_failures_room();
        let now = self.now();
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(pod) = record.worker.pod().cloned() else { return };
        for start in plan.starts() {
            let name = Rc::from(pod.container(start.kind, start.index).name);
            record.failures.set(&name, SyncError::Refused(reason).to_string(), message, &mut room);
        }
        self.ctx.note(&pod.key, EventKind::Warning, reason, message);
        self.refresh_status(uid, now);
    }

    /// The pod fails for good without a start (`rejectPod`).
    pub(super) fn reject_pod(&mut self, uid: &PodUid, reason: String, message: String) {
        let Some(record) = self.records.get_mut(uid) else { return };
        record.worker.finished();
        let mut status = self.statuses.status(uid).unwrap_or_default();
        status.phase = Some(Phase::Failed.as_str().to_owned());
        status.reason = Some(reason);
        status.message = Some(message);
        self.statuses.put(uid, status);
        self.refresh_status(uid, self.now());
    }

    /// Terminates the pod for good in favour of a critical one (`evictPodsToFreeRequests`).
    pub(in crate::node) fn preempt(&mut self, uid: &PodUid, out: &mut Effects) {
        let now = self.now();
        let Some(record) = self.records.get_mut(uid).filter(|record| !record.set_aside) else { return };
        if record.worker.life() != Life::Syncing {
            return;
        }
        record.cut_off_act();
        self.ctx.note(record.worker.key(), EventKind::Warning, preempt::REASON, preempt::MESSAGE);
        let mut status = self.statuses.status(uid).unwrap_or_default();
        status.phase = Some(Phase::Failed.as_str().to_owned());
        status.reason = Some(preempt::REASON.to_owned());
        status.message = Some(preempt::MESSAGE.to_owned());
        disrupt(&mut status, preempt::CONDITION_MESSAGE, now.wall);
        self.statuses.put(uid, status);
        self.refresh_status(uid, now);
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.finished();
        }
        out.drive(uid);
    }

    // ---- deletion on the API server ------------------------------------------------------------------------

    /// Begins the termination with the deletion's grace period; the update then removes the pod from the desired ones.
    #[cfg(feature = "tls")]
    pub(in crate::node) fn begin_deletion(&mut self, ending: &EndingPod) {
        let wall = self.now().wall;
        let Some(record) = self.records.get_mut(&ending.key.uid) else { return };
        record.unwanted_at.get_or_insert(wall);
        // A pod that is no longer desired terminates already, and must not start again.
        let is_wanted = !matches!(record.worker.life(), Life::Ending(Why::Unwanted) | Life::Removing);
        if let Some(pod) = record.worker.pod().filter(|_| is_wanted) {
            let mut deleted = (**pod).clone();
            let mut object = (*deleted.pod).clone();
            object.metadata.deletion_grace_period_seconds = Some(ending.grace.0);
            object.metadata.deletion_timestamp = status::time(wall);
            deleted.pod = object.into();
            record.worker.set_desired(Rc::new(deleted));
        }
    }

    /// Shortens the grace period of a terminating pod.
    #[cfg(feature = "tls")]
    pub(in crate::node) fn hurry(&mut self, ending: &EndingPod, out: &mut Effects) {
        let EndingPod { key, grace } = ending;
        let Some(record) = self.records.get_mut(&key.uid) else { return };
        log::info!("pod {key}: deleted again; terminating it within {} s", grace.0.max(GRACE_SECONDS_MIN));
        record.hurry(*grace);
        out.drive(&key.uid);
    }

    // ---- the node's shutdown -------------------------------------------------------------------------------

    /// The node shuts down: new pods are terminated as those of this group, and no pod takes over a name.
    pub(in crate::node) fn close(&mut self, group: Option<ShutdownGroup>) {
        self.facts.machine = MachineState::ShutsDown(group);
    }

    /// The shutdown was cancelled: terminated pods start again.
    pub(in crate::node) fn reopen(&mut self, out: &mut Effects) {
        self.facts.machine = MachineState::Runs;
        let ended: Vec<PodUid> = self
            .records
            .iter()
            .filter(|(_, record)| record.shutdown_grace.is_some())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ended {
            let pod = self.desired.pod(&uid).map(|entry| entry.wanted.pod.clone());
            // A pod of the API server has failed for good.
            if pod.as_ref().is_some_and(|pod| pod.pod.is_of_api_server()) {
                continue;
            }
            let Some(record) = self.records.get_mut(&uid) else { continue };
            record.shutdown_grace = None;
            record.worker.remove_desired();
            if let Some(pod) = pod {
                record.set_desired(pod);
            }
            out.drive(&uid);
        }
    }

    /// Rejects a pod that was added while the node shuts down (`Admit`).
    pub(super) fn refuse_for_shutdown(&mut self, uid: &PodUid, out: &mut Effects) {
        if let MachineState::ShutsDown(Some(group)) = self.facts.machine {
            self.end_for_shutdown(uid, group, REFUSED, REFUSED_MESSAGE, out);
        }
    }

    pub(in crate::node) fn end_for_shutdown(
        &mut self,
        uid: &PodUid,
        group: ShutdownGroup,
        reason: &str,
        message: &'static str,
        out: &mut Effects,
    ) {
        let now = self.now();
        let Some(record) = self.records.get_mut(uid).filter(|record| !record.set_aside) else { return };
        // A pod without a manifest terminates without this, and for good.
        if matches!(record.worker.life(), Life::Ending(_) | Life::Ended | Life::Removing) {
            return;
        }
        record.shutdown_grace =
            Some(group.grace_of(record.worker.pod().and_then(|pod| pod.pod.spec.as_ref())));
        record.cut_off_act();
        self.ctx.note(record.worker.key(), EventKind::Normal, "NodeShutdown", message);
        let mut status = self.statuses.status(uid).unwrap_or_default();
        if status.phase.as_deref() != Some(Phase::Succeeded.as_str()) {
            status.phase = Some(Phase::Failed.as_str().to_owned());
        }
        status.reason = Some(reason.to_owned());
        status.message = Some(message.to_owned());
        if reason == TERMINATED {
            disrupt(&mut status, message, now.wall);
        }
        self.statuses.put(uid, status);
        self.refresh_status(uid, now);
        if let Some(record) = self.records.get_mut(uid) {
            if record.worker.pod().is_some_and(|pod| !pod.pod.is_of_api_server()) {
                record.worker.keep_volumes();
            }
            record.worker.name_is_free();
            record.worker.finished();
        }
        out.drive(uid);
    }
}

/// `v1.DisruptionTarget`.
pub(in crate::node) fn disrupt(status: &mut PodStatus, message: &str, now: Wall) {
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "DisruptionTarget");
    conditions.push(PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: status::time(now),
        ..PodCondition::default()
    });
}
