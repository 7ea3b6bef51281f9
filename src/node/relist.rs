//! Looks at everything in the runtime: when, and what follows from one.
use std::rc::Rc;

use super::agent::{Agent, Event};
use super::record::Record;
use crate::cri::{Runtime, RuntimeResult};
use crate::limits::{CONTAINERS_READ_MAX, RELIST_PERIOD, RELIST_PERIOD_MAX, RELIST_RETRY_MAX};
use crate::model::SortedSet;
use crate::model::{Mono, Now, ObservedPod, PodUid};
use crate::pleg::{self, Interest, Relist, RelistPod};

/// When the next relist begins.
pub(super) struct Relisting {
    at: Mono,
    in_flight: bool,
    /// When the last one began.
    pub(super) begun: Mono,
    /// When the last one ended well.
    ended: Option<Mono>,
    /// In a row.
    pub(super) failures: u32,
}

impl Relisting {
    pub(super) fn new(now: Mono) -> Self {
        Self { at: now, in_flight: false, begun: now, ended: None, failures: 0 }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (!self.in_flight).then_some(self.at)
    }

    /// A relist is to begin by then: one that is under way may have looked too early. While the runtime does not answer,
    /// the wait that was set stays.
    pub(super) fn request(&mut self, by: Mono) {
        if self.failures == 0 {
            self.at = self.at.min(by);
        }
    }

    /// The runtime answered a pod's read: after relists that failed, the next one need not wait.
    pub(super) fn runtime_answered(&mut self, now: Mono) {
        if self.failures > 0 {
            self.at = self.at.min(now);
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn start_relist_when_due(&mut self, now: Mono) {
        if self.relisting.due().is_none_or(|at| at > now) {
            return;
        }
        self.relisting.in_flight = true;
        self.relisting.begun = now;
        // Nothing is due but what is requested from now on.
        self.relisting.at = Mono(i64::MAX);
        let mut uids: SortedSet<PodUid> = self.records.keys().cloned().collect();
        uids.extend(self.identity.adopted().iter().cloned());
        let node = Rc::from(self.identity.node_name());
        let all_former = self.take_over || self.cluster.is_some();
        let interest = Interest { node, uids, in_hand: self.records.len(), all_former };
        let (runtime, events) = (self.ctx.runtime.clone(), self.events.clone());
        let task = async move {
            let result = pleg::relist(&*runtime, &interest).await;
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Relisted(result)).await;
        };
        self.executor.spawn("relist", task).detach();
    }

    pub(super) fn relisted(&mut self, result: RuntimeResult<Relist>) {
        let now = self.ctx.clock.now();
        let relisting = &mut self.relisting;
        relisting.in_flight = false;
        let relist = match result {
            Ok(relist) => relist,
            Err(error) => {
                if relisting.failures == 0 {
                    log::warn!("the runtime does not answer: {error}; its pods run on, trying again");
                }
                relisting.failures = relisting.failures.saturating_add(1);
                let wait = RELIST_PERIOD * 2_u32.saturating_pow(relisting.failures.min(10) - 1);
                relisting.at = now.mono + wait.min(RELIST_RETRY_MAX);
                return;
            }
        };
        relisting.at = relisting.at.min(now.mono + self.runtime_events.watch.relist_wait());
        let failed_before = std::mem::take(&mut relisting.failures) > 0;
        let begun = relisting.begun;
        self.metrics.relists.add(now.mono.since(begun));
        if let Some(before) = relisting.ended.replace(now.mono) {
            self.metrics.relist_intervals.add(now.mono.since(before));
        }
        self.runtime_events.strangers.looked(begun);
        // As the kubelet with each `HandlePodCleanups`.
        self.backoff.collect(now.mono);
        let mut touched = SortedSet::new();
        if failed_before {
            log::info!("the runtime answers again");
            self.runtime_events.watch.runtime_is_back(now.mono);
            for (uid, record) in &mut self.records {
                record.worker.runtime_is_back();
                touched.insert(uid.clone());
            }
        }
        let before = self.relist.replace(self.with_taken_over(relist));
        if let Some(relist) = &self.relist {
            log::debug!("relist: {} pods", relist.pods.len());
            if before.map_or(0, |before| before.foreign_sandboxes) != relist.foreign_sandboxes {
                log::info!(
                    "{} sandboxes in the runtime are not this node's; left alone unless a source names their pods",
                    relist.foreign_sandboxes
                );
            }
            for (uid, record) in &mut self.records {
                let found = compare(record, relist, begun, now);
                if let Found::Unexplained(agreed) = found {
                    self.runtime_events.watch.suspect(uid, agreed, now.mono);
                }
                if found != Found::AsRead {
                    record.worker.touched();
                    touched.insert(uid.clone());
                }
            }
            let taken_over =
                |(uid, pod): &(&PodUid, &RelistPod)| !pod.made_here && self.desired.pod(uid).is_some();
            for (uid, _) in relist.pods.iter().filter(taken_over) {
                self.disk.changed |= self.identity.adopt(uid);
            }
        }
        self.write_identity();
        self.tell_pods_here();
        for (_, update) in std::mem::take(&mut self.early_updates) {
            self.apply(update);
        }
        self.end_orphans(&mut touched);
        self.free_names(&mut touched);
        for uid in touched {
            self.drive(&uid);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Or not comparable: not read yet, or read for this difference a moment ago.
    AsRead,
    /// A job of ours, or a read that is under way, may explain it.
    Explained,
    /// It changed by itself after this instant.
    Unexplained(Mono),
}

/// Compares what a relist that began at `begun` shows of a pod with its last full read.
fn compare(record: &mut Record, relist: &Relist, begun: Mono, now: Now) -> Found {
    let Some(observed) = record.worker.observed() else { return Found::AsRead };
    let agreement = &mut record.agreement;
    let Some(state) = relist.differs(&record.worker.key().uid, observed) else {
        agreement.at = agreement.at.max(begun);
        agreement.differed = None;
        return Found::AsRead;
    };
    let known = |(before, at): (u64, Mono)| before == state && now.mono.since(at) < RELIST_PERIOD_MAX;
    if agreement.differed.is_some_and(known) {
        return Found::AsRead;
    }
    agreement.differed = Some((state, now.mono));
    let explained = record.worker.in_flight().is_some()
        || record.worker.is_stale()
        || !record.awaited.is_empty()
        || agreement.at > begun
        || is_cut(observed);
    if explained { Found::Explained } else { Found::Unexplained(agreement.at) }
}

/// The read may have left something out.
fn is_cut(observed: &ObservedPod) -> bool {
    observed.containers.len() >= CONTAINERS_READ_MAX || observed.sandboxes.len() >= CONTAINERS_READ_MAX
}
