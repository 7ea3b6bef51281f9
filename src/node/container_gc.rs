//! Removal of dead containers beyond the limit for all pods (`--maximum-dead-containers`). A pod's own limit is part of its
//! plan; the policy is in `gc`.
//!
//! Without that limit, as by default, nothing is checked. Only running pods are: the containers of an ended pod stay until its
//! manifest is removed.

use super::effects::{Effect, Effects};
use super::pods::Pods;
use crate::cri::Runtime;
use crate::gc::{self, GcPolicy};
use crate::model::{Mono, Now};
use crate::sync::worker::Life;

/// The schedule of the checks.
pub(super) struct ContainerGc {
    policy: GcPolicy,
    /// Number of reads of pods at the last check.
    reads: u64,
    /// When the next container reaches the minimum age.
    next: Option<Mono>,
}

impl ContainerGc {
    pub(super) fn new(policy: GcPolicy) -> Self {
        Self { policy, reads: 0, next: None }
    }

    /// The next check that no event causes.
    pub(super) fn due(&self) -> Option<Mono> {
        self.next
    }

    /// Checks all pods after one of them was read, and plans those again whose containers are to be removed.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Now, out: &mut Effects) {
        let was_read = std::mem::replace(&mut self.reads, pods.reads()) != pods.reads();
        let is_due = was_read || self.next.is_some_and(|at| at <= now.mono);
        if self.policy.containers_max.is_none() || !is_due {
            return;
        }
        let going_on = || {
            let records = pods.iter().filter(|(_, record)| record.worker().life() == Life::Syncing);
            records.filter_map(|(_, record)| Some((record.worker().key(), &**record.worker().observed()?)))
        };
        self.next = going_on().filter_map(|(_, seen)| gc::ripe_at(self.policy, seen, now.mono)).min();
        out.push(Effect::Surplus(gc::surplus(self.policy, going_on(), now)));
    }
}
