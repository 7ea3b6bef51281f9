//! Pods that a former agent of this node has left in the runtime: which are ours from now on.
//!
//! A manifest's pod that runs with the UID of the former agent keeps it, and nothing of it restarts. One of the same name
//! that is not the manifest's pod any more is replaced by it, as by the former agent. What nothing names is left alone,
//! unless we were told to take the node over.

use super::Pods;
use crate::cri::Runtime;
use crate::model::PodUid;
use crate::pleg::Relist;
use crate::source::{self, SourceUpdate, SourcedPod};

impl<R: Runtime + 'static> Pods<R> {
    /// A relist that began before a pod was taken over shows it as the former agent's.
    pub(in crate::node) fn with_taken_over(&self, mut relist: Relist) -> Relist {
        for uid in self.identity.adopted() {
            relist.take_over(uid);
        }
        relist
    }

    /// Gives pods of manifests the UIDs with which they run.
    pub(in crate::node) fn keep_uids(&mut self, update: &mut SourceUpdate) {
        if update.source == source::API {
            return;
        }
        for sourced in &mut update.pods {
            let own = sourced.pod.key.uid.clone();
            // What is in hand goes on as it is.
            let in_hand =
                |pods: &Self, uid: Option<&PodUid>| uid.is_some_and(|uid| pods.records.contains_key(uid));
            if !in_hand(self, Some(&own)) && !in_hand(self, self.identity.kept(&own)) {
                self.claim_former_pods(sourced);
            }
            if let Some(found) = self.identity.kept(&own) {
                rename(sourced, found);
            }
        }
    }

    /// The pods of this name that a former agent has left are ours: one may be this pod, the others end.
    fn claim_former_pods(&mut self, sourced: &SourcedPod) {
        let Some(relist) = &mut self.relist else { return };
        let (found, all) = relist.former.of_name(&sourced.pod);
        let own = &sourced.pod.key.uid;
        let is_here = |uid: &PodUid| relist.pods.contains_key(uid);
        let ours_is_here = is_here(own) || self.identity.kept(own).is_some_and(is_here);
        // What is left of one that does not run is no reason to end one of ours.
        let found =
            found.filter(|found| found.is_ready() || !ours_is_here).map(|found| found.key.uid.clone());
        let all: Vec<PodUid> = all.iter().map(|former| former.key.uid.clone()).collect();
        if let Some(found) = found
            && *own != found
            && self.identity.keep(own, &found)
        {
            log::info!("pod {}: adopted from a former agent with the UID {found}", sourced.pod.key);
            self.identity_changed = true;
        }
        for uid in all {
            // Full: it is left alone.
            self.identity_changed |= self.identity.adopt(&uid);
            if self.identity.adopted().contains(&uid) {
                relist.take_over(&uid);
            }
        }
    }

    /// What a former agent has left and is to end is ours to end: pods that were deleted in the cluster meanwhile, and, where
    /// the node is taken over, those that no source names once all of them are known.
    pub(in crate::node) fn take_over_orphans(&mut self) {
        let Some(relist) = &self.relist else { return };
        let all = self.take_over && self.desired.may_terminate_orphans();
        let is_ours = |uid: &PodUid| self.desired.pod(uid).is_some() || self.records.contains_key(uid);
        let left = relist.former.iter().map(|former| &former.key.uid);
        let taken = left.filter(|uid| !is_ours(uid) && (all || self.is_deleted(uid)));
        let taken: Vec<PodUid> = taken.cloned().collect();
        for uid in taken {
            self.identity_changed |= self.identity.adopt(&uid);
            if self.identity.adopted().contains(&uid)
                && let Some(relist) = &mut self.relist
            {
                relist.take_over(&uid);
            }
        }
    }
}

/// The pod goes by this UID.
fn rename(sourced: &mut SourcedPod, uid: &PodUid) {
    sourced.pod.key.uid = uid.clone();
    let mut pod = (*sourced.pod.pod).clone();
    pod.metadata.uid = Some(uid.to_string());
    sourced.pod.pod = pod.into();
}
