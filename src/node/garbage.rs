//! Dead containers beyond what is kept of all pods together (`--maximum-dead-containers`). What is kept of one pod is
//! decided with its plan; what is decided by is in `gc`.
//!
//! Without that limit, as by default, nothing of this is looked at. Only pods that go on are: of one that has ended, what is
//! left stays until its manifest goes.

use super::agent::Agent;
use crate::cri::Runtime;
use crate::gc::{self, GcPlan, GcPolicy, GcRemoval};
use crate::model::SortedMap;
use crate::model::{DesiredPod, Mono, Now, ObservedPod, PodUid};
use crate::sync::worker::Life;

/// What of all pods is to go.
pub(super) struct Garbage {
    pub(super) policy: GcPolicy,
    /// A pod was read since the last look at all of them.
    pub(super) stale: bool,
    /// When a container is old enough to go that was not at the last look.
    next: Option<Mono>,
    /// By pod, as of the last look. At most what was read of them.
    surplus: SortedMap<PodUid, Vec<GcRemoval>>,
}

impl Garbage {
    pub(super) fn new(policy: GcPolicy) -> Self {
        Self { policy, stale: false, next: None, surplus: SortedMap::new() }
    }

    /// When all pods are looked at without a cause from outside.
    pub(super) fn due(&self) -> Option<Mono> {
        self.next
    }

    /// What goes of this pod, by its own limit and by that of all.
    pub(super) fn of(&self, pod: &DesiredPod, observed: &ObservedPod, now: Now) -> GcPlan {
        let mut plan = gc::collect_pod(self.policy, &pod.key, observed, now);
        for removal in self.surplus.get(&pod.key.uid).into_iter().flatten() {
            let is_there = observed.containers.iter().any(|container| container.id == removal.id);
            if is_there && !plan.containers.iter().any(|other| other.id == removal.id) {
                plan.containers.push(removal.clone());
            }
        }
        plan
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// Looks at all pods when one of them has changed, and drives those of which something goes.
    pub(super) fn count_garbage_when_due(&mut self, now: Now) {
        let policy = self.garbage.policy;
        let is_due =
            std::mem::take(&mut self.garbage.stale) || self.garbage.next.is_some_and(|at| at <= now.mono);
        if policy.containers_max.is_none() || !is_due {
            return;
        }
        let going_on = || {
            let records = self.records.values().filter(|record| record.worker.life() == Life::Syncing);
            records.filter_map(|record| Some((record.worker.key(), &**record.worker.observed()?)))
        };
        let next = going_on().filter_map(|(_, observed)| gc::ripe_at(policy, observed, now.mono)).min();
        let surplus = gc::surplus(policy, going_on(), now);
        let touched: Vec<PodUid> = surplus.keys().cloned().collect();
        (self.garbage.next, self.garbage.surplus) = (next, surplus);
        for uid in touched {
            if let Some(record) = self.records.get_mut(&uid) {
                record.worker.plan_again();
                self.drive(&uid);
            }
        }
    }
}
