//! The node shuts down: its pods end, group by group, and no further ones begin (`shutdown`).
//!
//! ```text
//!     told ─► a group's pods end at once ─► all have ended, or its time is over ─► the next group … ─► over
//!     told that it does not after all ─► they begin afresh
//! ```
//!
//! What ends so has not ended for good: with the next agent the pods are kept again.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;

use super::effects::{Effect, Effects};
use super::pods::Pods;
use super::pods::Record;
use crate::cri::Runtime;
use crate::eviction::pods::priority;
use crate::limits::SHUTDOWN_STATUS_WAIT;
use crate::model::{Mono, PodUid};
use crate::shutdown::ShutdownGroups;
use crate::status::Phase;
use crate::sync::worker::Life;
use crate::systemd::logind::DelayLock;

/// Ends the pods of a node that shuts down (`nodeshutdown.Manager`).
pub(super) struct ShutdownManager {
    groups: ShutdownGroups,
    /// While it is under way.
    under_way: Option<Shutdown>,
    /// logind's, while it waits.
    lock: Option<DelayLock>,
}

/// How far it is.
#[derive(Clone, Copy)]
struct Shutdown {
    /// The place of the group that ends.
    group: usize,
    /// When its time is over; `None` = it has not begun.
    until: Option<Mono>,
    /// How long the server is waited for when no pod is.
    told_until: Mono,
}

impl ShutdownManager {
    pub(super) fn new(groups: ShutdownGroups) -> Self {
        Self { groups, under_way: None, lock: None }
    }

    /// The node shuts down, as soon as its pods have ended and the lock is gone. Without groups there is nothing to wait for.
    pub(super) fn begin(&mut self, lock: Option<DelayLock>, now: Mono, out: &mut Effects) {
        self.lock = lock.or(self.lock.take());
        if self.under_way.is_none() {
            log::info!(
                "node shutdown: terminating all pods within {} s, starting none",
                self.groups.all().as_secs()
            );
            let told_until = now + SHUTDOWN_STATUS_WAIT;
            self.under_way = Some(Shutdown { group: 0, until: None, told_until });
            out.push(Effect::Close(self.groups.get(0)));
            out.push(Effect::ReportNode);
        }
    }

    /// It does not after all: what it has ended begins afresh.
    pub(super) fn cancel(&mut self, out: &mut Effects) {
        self.lock = None;
        if self.under_way.take().is_none() {
            return;
        }
        log::info!("node shutdown cancelled; starting pods again");
        out.push(Effect::ReportNode);
        out.push(Effect::Reopen);
    }

    /// All groups have ended, or their time is over.
    pub(super) fn is_over(&self) -> bool {
        self.under_way.is_some_and(|shutdown| self.groups.get(shutdown.group).is_none())
    }

    /// The server had its time to take in that the node shuts down.
    pub(super) fn has_waited(&self, now: Mono) -> bool {
        self.under_way.is_none_or(|shutdown| shutdown.told_until <= now)
    }

    /// `is_node_reported`: the server knows of it.
    pub(super) fn due(&self, is_node_reported: bool) -> Option<Mono> {
        let shutdown = self.under_way?;
        let waits = self.is_over() && !is_node_reported;
        shutdown.until.or(waits.then_some(shutdown.told_until))
    }

    /// Goes on with it by a step, if there is one to go now; the next one follows when its effects are applied.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        pods: &Pods<R>,
        now: Mono,
        out: &mut Effects,
    ) -> bool {
        let goes_on = self.advance(pods, now, out);
        if self.is_over() && self.lock.take().is_some() {
            log::info!("node shutdown: releasing the delay lock of logind");
        }
        goes_on
    }

    fn advance<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &mut Effects) -> bool {
        let Some(shutdown) = &mut self.under_way else { return false };
        let Some(group) = self.groups.get(shutdown.group) else { return false };
        let of_group = |record: &Record| {
            let priority = record.worker().pod().map_or(0, |pod| priority(pod));
            self.groups.place_of(priority) == shutdown.group
        };
        let left = pods.iter().filter(|(_, record)| of_group(record) && !is_over(record));
        let left: Vec<PodUid> = left.map(|(uid, _)| uid.clone()).collect();
        match shutdown.until {
            // Nobody is waited for in a group without pods.
            None if left.is_empty() => {}
            None => {
                log::info!("node shutdown: terminating {} pods of priority {}", left.len(), group.priority);
                let grace = u64::try_from(group.grace.0).unwrap_or_default();
                shutdown.until = Some(now + Duration::from_secs(grace));
                for uid in left {
                    out.push(Effect::EndForShutdown(uid, group));
                }
                return true;
            }
            Some(until) if !left.is_empty() && now < until => return false,
            Some(_) if !left.is_empty() => {
                log::warn!("node shutdown: {} pods not terminated in time", left.len());
            }
            Some(_) => {}
        }
        (shutdown.group, shutdown.until) = (shutdown.group + 1, None);
        true
    }
}

/// Nothing of it is to be waited for.
fn is_over(record: &Record) -> bool {
    match record.worker().life() {
        Life::Ended => true,
        // Removing takes from the runtime what has stopped.
        Life::Removing => record.worker().observed().is_some_and(|observed| !observed.is_alive()),
        Life::Waiting | Life::Syncing | Life::Ending(_) => record.is_set_aside(),
    }
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
