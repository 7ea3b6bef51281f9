//! The node shuts down: its pods end, group by group, and no further ones begin (`shutdown`).
//!
//! ```text
//!     told ─► a group's pods end at once ─► all have ended, or its time is over ─► the next group … ─► over
//!     told that it does not after all ─► they begin afresh
//! ```
//!
//! What ends so has not ended for good: with the next agent the pods are kept again.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::agent::Agent;
use super::record::Record;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::eviction::pods::priority;
use crate::limits::SHUTDOWN_TOLD_WAIT;
use crate::model::{Mono, PodUid, Wall};
use crate::shutdown::{REFUSED, REFUSED_MESSAGE, ShutdownGroup, TERMINATED, TERMINATED_MESSAGE};
use crate::status::{self, Phase};
use crate::sync::worker::Life;
use crate::systemd::logind::DelayLock;

/// How far it is.
#[derive(Clone, Copy)]
pub(super) struct Shutdown {
    /// The place of the group that ends.
    group: usize,
    /// When its time is over; `None` = it has not begun.
    until: Option<Mono>,
    /// How long the server is waited for when no pod is.
    told_until: Mono,
}

impl<R: Runtime + 'static> Agent<R> {
    /// The node shuts down, as soon as its pods have ended and the lock is gone. Without groups there is nothing to wait for.
    pub(super) fn begin_shutdown(&mut self, lock: Option<DelayLock>) {
        self.delay_lock = lock.or(self.delay_lock.take());
        if self.shutdown.is_none() {
            log::info!(
                "the node shuts down: its pods end within {} s, and none begins",
                self.shutdown_groups.all().as_secs()
            );
            let told_until = self.ctx.clock.now().mono + SHUTDOWN_TOLD_WAIT;
            self.shutdown = Some(Shutdown { group: 0, until: None, told_until });
            self.tell_node();
        }
    }

    /// It does not after all: what it has ended begins afresh.
    pub(super) fn cancel_shutdown(&mut self) {
        self.delay_lock = None;
        if self.shutdown.take().is_none() {
            return;
        }
        self.tell_node();
        log::info!("the node does not shut down after all: its pods begin afresh");
        let ended: Vec<PodUid> = self
            .records
            .iter()
            .filter(|(_, record)| record.shutdown_grace.is_some())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ended {
            let pod = self.desired.pod(&uid).map(|entry| entry.wanted.pod.clone());
            // One of an API server has failed for good.
            if pod.as_ref().is_some_and(|pod| pod.pod.is_of_api_server()) {
                continue;
            }
            let Some(record) = self.records.get_mut(&uid) else { continue };
            record.shutdown_grace = None;
            record.worker.unwant();
            if let Some(pod) = pod {
                record.want(pod);
            }
            self.drive(&uid);
        }
    }

    /// All groups have ended, or their time is over.
    pub(super) fn shutdown_is_over(&self) -> bool {
        self.shutdown.as_ref().is_some_and(|shutdown| self.shutdown_groups.get(shutdown.group).is_none())
    }

    /// The Node says that it shuts down, or the server had its time to take that in.
    pub(super) fn shutdown_is_told(&self, now: Mono) -> bool {
        self.node_is_told() || self.shutdown.is_none_or(|shutdown| shutdown.told_until <= now)
    }

    pub(super) fn shutdown_due(&self) -> Option<Mono> {
        let shutdown = self.shutdown.as_ref()?;
        let waits = self.shutdown_is_over() && !self.node_is_told();
        shutdown.until.or(waits.then_some(shutdown.told_until))
    }

    /// Goes on with it, as far as it goes now.
    pub(super) fn turn_shutdown(&mut self, now: Mono) {
        self.end_groups(now);
        if self.shutdown_is_over() && self.delay_lock.take().is_some() {
            log::info!("the node may shut down now");
        }
    }

    fn end_groups(&mut self, now: Mono) {
        while let Some(Shutdown { group: place, until, told_until }) = self.shutdown
            && let Some(group) = self.shutdown_groups.get(place)
        {
            match until {
                None => {
                    let pods = self.pods_of_group(place, |record| !is_over(record));
                    // Nobody is waited for in a group without pods.
                    if pods.is_empty() {
                        self.shutdown = Some(Shutdown { group: place + 1, until: None, told_until });
                        continue;
                    }
                    log::info!("the node shuts down: {} pods of priority {} end", pods.len(), group.priority);
                    let grace = u64::try_from(group.grace.0).unwrap_or_default();
                    let until = now + Duration::from_secs(grace);
                    self.shutdown = Some(Shutdown { group: place, until: Some(until), told_until });
                    for uid in pods {
                        self.end_for_shutdown(&uid, group, TERMINATED, TERMINATED_MESSAGE);
                    }
                }
                Some(until) => {
                    let left = self.pods_of_group(place, |record| !is_over(record));
                    if !left.is_empty() && now < until {
                        return;
                    }
                    if !left.is_empty() {
                        log::warn!("the node shuts down: {} pods have not ended in time", left.len());
                    }
                    self.shutdown = Some(Shutdown { group: place + 1, until: None, told_until });
                }
            }
        }
    }

    /// A pod that came while the node shuts down (`Admit`).
    pub(super) fn refuse_for_shutdown(&mut self, uid: &PodUid) {
        if let Some(group) = self.shutdown.as_ref().and_then(|_| self.shutdown_groups.get(0)) {
            self.end_for_shutdown(uid, group, REFUSED, REFUSED_MESSAGE);
        }
    }

    fn pods_of_group(&self, place: usize, wanted: impl Fn(&Record) -> bool) -> Vec<PodUid> {
        let of_group = |record: &Record| {
            let priority = record.worker.pod().map_or(0, |pod| priority(pod));
            self.shutdown_groups.place_of(priority) == place
        };
        let pods = self.records.iter().filter(|(_, record)| of_group(record) && wanted(record));
        pods.map(|(uid, _)| uid.clone()).collect()
    }

    fn end_for_shutdown(&mut self, uid: &PodUid, group: ShutdownGroup, reason: &str, message: &'static str) {
        let Some(record) = self.records.get_mut(uid).filter(|record| !record.set_aside) else { return };
        // One whose manifest is gone ends by itself, and has ended for good when it has.
        if matches!(record.worker.life(), Life::Ending(_) | Life::Ended | Life::Removing) {
            return;
        }
        record.shutdown_grace =
            Some(group.grace_of(record.worker.pod().and_then(|pod| pod.pod.spec.as_ref())));
        record.cut_off_act();
        self.ctx.note(record.worker.key(), EventKind::Normal, "NodeShutdown", message);
        let now = self.ctx.clock.now();
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
        self.drive(uid);
    }
}

/// Nothing of it is to be waited for.
fn is_over(record: &Record) -> bool {
    match record.worker.life() {
        Life::Ended => true,
        // Removing takes from the runtime what has stopped.
        Life::Removing => record.worker.observed().is_some_and(|observed| !observed.is_alive()),
        Life::Waiting | Life::Syncing | Life::Ending(_) => record.set_aside,
    }
}

/// `v1.DisruptionTarget`.
pub(super) fn disrupt(status: &mut PodStatus, message: &str, now: Wall) {
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

/// A kept status of a pod that a shutdown has ended, as that of one that is kept again: how its containers ended stays.
pub(super) fn revive(status: &mut PodStatus) {
    status.phase = Some(Phase::Pending.as_str().to_owned());
    (status.reason, status.message) = (None, None);
    status
        .conditions
        .iter_mut()
        .for_each(|all| all.retain(|condition| condition.type_ != "DisruptionTarget"));
}
