//! Dead containers beyond what is kept of all pods together (`--maximum-dead-containers`). What is kept of one pod is
//! decided with its plan; what is decided by is in `gc`.
//!
//! Without that limit, as by default, nothing of this is looked at. Only pods that go on are: of one that has ended, what is
//! left stays until its manifest goes.

use super::effects::{Effect, Effects};
use super::pods::Pods;
use crate::cri::Runtime;
use crate::gc::{self, GcPolicy};
use crate::model::{Mono, Now};
use crate::sync::worker::Life;

/// When all pods are looked at.
pub(super) struct ContainerGc {
    policy: GcPolicy,
    /// The reads of pods that the last look saw.
    reads: u64,
    /// When a container is old enough to go that was not at the last look.
    next: Option<Mono>,
}

impl ContainerGc {
    pub(super) fn new(policy: GcPolicy) -> Self {
        Self { policy, reads: 0, next: None }
    }

    /// When all pods are looked at without a cause from outside.
    pub(super) fn due(&self) -> Option<Mono> {
        self.next
    }

    /// Looks at all pods when one of them was read, and plans those again of which something goes.
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
