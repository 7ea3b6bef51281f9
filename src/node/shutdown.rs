//! Graceful node shutdown: terminates the pods group by group, and starts no others (`shutdown`).
//!
//! ```text
//!     begin ─► all pods of a group are terminated ─► all have ended, or its time is over ─► the next group … ─► over
//!     cancel ─► the pods are started again
//! ```
//!
//! The first group with pods has the time of those without any too.
//!
//! The termination is not final: the next start of the agent starts the pods again.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;

use super::effects::{Effect, Effects};
use super::pods::Pods;
use super::pods::Record;
use crate::cri::Runtime;
use crate::eviction::pods::priority;
use crate::limits::SHUTDOWN_STATUS_WAIT;
use crate::model::{Mono, PodUid, Seconds};
use crate::shutdown::ShutdownGroups;
use crate::status::Phase;
use crate::sync::worker::Life;
use crate::systemd::logind::DelayLock;

/// Terminates the pods of a node that shuts down (`nodeshutdown.Manager`).
pub(super) struct ShutdownManager {
    groups: ShutdownGroups,
    /// The shutdown in progress.
    under_way: Option<Shutdown>,
    /// The delay lock of logind, while it is held.
    lock: Option<DelayLock>,
}

/// Progress of a shutdown.
#[derive(Clone, Copy)]
struct Shutdown {
    /// Index of the group that is being terminated.
    group: usize,
    /// Deadline of the group; `None` = its termination has not begun.
    until: Option<Mono>,
    /// A group has begun, with the time of those without pods.
    has_begun: bool,
    /// Deadline for the report of the Node's status.
    report_until: Mono,
}

impl ShutdownManager {
    pub(super) fn new(groups: ShutdownGroups) -> Self {
        Self { groups, under_way: None, lock: None }
    }

    /// Begins the shutdown. The machine waits until the pods have ended and the lock is released; without groups it does not wait.
    pub(super) fn begin(&mut self, lock: Option<DelayLock>, now: Mono, out: &mut Effects) {
        self.lock = lock.or(self.lock.take());
        if self.under_way.is_none() {
            log::info!(
                "node shutdown: terminating all pods within {} s, starting none",
                self.groups.all().as_secs()
            );
            let report_until = now + SHUTDOWN_STATUS_WAIT;
            self.under_way = Some(Shutdown { group: 0, until: None, has_begun: false, report_until });
            out.push(Effect::Close(self.groups.get(0)));
            out.push(Effect::ReportNode);
        }
    }

    /// Cancels the shutdown: terminated pods start again.
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

    /// The deadline for the report of the Node's status is over.
    pub(super) fn has_waited(&self, now: Mono) -> bool {
        self.under_way.is_none_or(|shutdown| shutdown.report_until <= now)
    }

    /// The next deadline. `is_node_reported`: the API server has the Node's shutdown condition.
    pub(super) fn due(&self, is_node_reported: bool) -> Option<Mono> {
        let shutdown = self.under_way?;
        let waits = self.is_over() && !is_node_reported;
        shutdown.until.or(waits.then_some(shutdown.report_until))
    }

    /// Advances by one step if one is due, and returns whether it did; the next one follows when the effects are applied.
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
        let place = |record: &Record| {
            let priority = record.worker().pod().map_or(0, |pod| priority(pod));
            self.groups.place_of(priority)
        };
        let of_group =
            |of: usize| pods.iter().filter(move |(_, record)| place(record) == of && !is_over(record));
        let left: Vec<PodUid> = of_group(shutdown.group).map(|(uid, _)| uid.clone()).collect();
        match shutdown.until {
            // A group without pods needs no wait.
            None if left.is_empty() => {}
            None => {
                let mut group = group;
                if !std::mem::replace(&mut shutdown.has_begun, true) {
                    let spare = self.groups.spare(|of| of_group(of).next().is_some());
                    group.grace = Seconds(group.grace.0.saturating_add(spare.0));
                }
                let grace = u64::try_from(group.grace.0).unwrap_or_default();
                log::info!(
                    "node shutdown: terminating {} pods of priority {} within {grace} s",
                    left.len(),
                    group.priority
                );
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

/// The shutdown does not wait for this pod.
fn is_over(record: &Record) -> bool {
    match record.worker().life() {
        Life::Ended => true,
        // Only stopped containers are still to be removed.
        Life::Removing => record.worker().observed().is_some_and(|observed| !observed.is_alive()),
        Life::Waiting | Life::Syncing | Life::Ending(_) => record.is_set_aside(),
    }
}

/// Resets the stored status of a pod that a shutdown terminated, so that it starts again; its containers' last terminations stay.
pub(super) fn revive(status: &mut PodStatus) {
    status.phase = Some(Phase::Pending.as_str().to_owned());
    (status.reason, status.message) = (None, None);
    status
        .conditions
        .iter_mut()
        .for_each(|all| all.retain(|condition| condition.type_ != "DisruptionTarget"));
}
