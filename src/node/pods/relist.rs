//! Compares a relist with the pods' records.

use std::rc::Rc;

use super::Pods;
use super::record::Record;
use crate::cri::Runtime;
use crate::limits::{CONTAINERS_READ_MAX, RELIST_PERIOD_MAX};
use crate::model::{Mono, Now, ObservedPod, PodUid, SortedSet};
use crate::node::effects::{Effect, Effects};
use crate::pleg::{Interest, Relist, RelistPod};

impl<R: Runtime + 'static> Pods<R> {
    /// What a look at everything has to find.
    pub(in crate::node) fn interest(&self) -> Interest {
        let mut uids: SortedSet<PodUid> = self.records.keys().cloned().collect();
        uids.extend(self.identity.adopted().iter().cloned());
        Interest {
            node: Rc::from(self.identity.node_name()),
            uids,
            in_hand: self.records.len(),
            all_former: self.take_over || self.facts.room.is_of_cluster(),
        }
    }

    /// Applies the result of a relist that began at `begun`, and returns the pods to drive. `is_back`: the runtime was
    /// unreachable before.
    pub(in crate::node) fn relisted(
        &mut self,
        relist: Relist,
        begun: Mono,
        is_back: bool,
        out: &mut Effects,
    ) -> SortedSet<PodUid> {
        let now = self.now();
        // As the kubelet with each `HandlePodCleanups`.
        self.backoff.collect(now.mono);
        let mut touched = SortedSet::new();
        if is_back {
            for (uid, record) in &mut self.records {
                record.worker.runtime_is_back();
                touched.insert(uid.clone());
            }
        }
        let mut relist = self.with_taken_over(relist);
        relist.share_keys(|uid| self.records.get(uid).map(|record| record.worker.key()));
        let before = self.relist.replace(relist);
        if let Some(relist) = &self.relist {
            log::debug!("relist: {} pods", relist.pods.len());
            if before.map_or(0, |before| before.foreign_sandboxes) != relist.foreign_sandboxes {
                log::info!(
                    "{} sandboxes in the runtime are not managed by this node; ignored unless a source names \
                     their pods",
                    relist.foreign_sandboxes
                );
            }
            for (uid, record) in &mut self.records {
                let found = compare(record, relist, begun, now);
                if let Comparison::Unexplained(agreed) = found {
                    out.push(Effect::Suspect(uid.clone(), agreed));
                }
                if found != Comparison::AsRead {
                    record.worker.touched();
                    touched.insert(uid.clone());
                }
            }
            let taken_over =
                |(uid, pod): &(&PodUid, &RelistPod)| !pod.made_here && self.desired.pod(uid).is_some();
            for (uid, _) in relist.pods.iter().filter(taken_over) {
                self.identity_changed |= self.identity.adopt(uid);
            }
        }
        out.push(Effect::LocalPods);
        touched
    }

    /// What follows for pods from a look at everything, once what sources said before it has been taken in.
    pub(in crate::node) fn settle_relist(&mut self, mut touched: SortedSet<PodUid>, out: &mut Effects) {
        self.end_orphans(&mut touched, out);
        self.free_names(&mut touched);
        touched.iter().for_each(|uid| out.drive(uid));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// Or not comparable: not read yet, or read for this difference a moment ago.
    AsRead,
    /// A job of ours, or a read that is under way, may explain it.
    Explained,
    /// It changed by itself after this instant.
    Unexplained(Mono),
}

/// Compares a pod in a relist that began at `begun` with its last full read.
fn compare(record: &mut Record, relist: &Relist, begun: Mono, now: Now) -> Comparison {
    let Some(observed) = record.worker.observed() else { return Comparison::AsRead };
    let agreement = &mut record.agreement;
    let Some(state) = relist.differs(&record.worker.key().uid, observed) else {
        agreement.at = agreement.at.max(begun);
        agreement.differed = None;
        return Comparison::AsRead;
    };
    let known = |(before, at): (u64, Mono)| before == state && now.mono.since(at) < RELIST_PERIOD_MAX;
    if agreement.differed.is_some_and(known) {
        return Comparison::AsRead;
    }
    agreement.differed = Some((state, now.mono));
    let explained = record.worker.in_flight().is_some()
        || record.worker.is_stale()
        || !record.awaited.is_empty()
        || agreement.at > begun
        || is_cut(observed);
    if explained { Comparison::Explained } else { Comparison::Unexplained(agreement.at) }
}

/// The read may have left something out.
fn is_cut(observed: &ObservedPod) -> bool {
    observed.containers.len() >= CONTAINERS_READ_MAX || observed.sandboxes.len() >= CONTAINERS_READ_MAX
}
