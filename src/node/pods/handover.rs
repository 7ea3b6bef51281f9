//! Adopts pods that a former agent of this node, such as a kubelet, has left in the runtime.
//!
//! A manifest's pod that runs under the former agent's UID keeps that UID, and nothing of it restarts. A pod of the same name
//! that differs from the manifest's is replaced, as by the former agent. A pod that no source has is left alone, unless
//! `--take-over` is set.

use super::Pods;
use crate::cri::Runtime;
use crate::model::PodUid;
use crate::pleg::Relist;
use crate::source::{self, SourceUpdate, SourcedPod};

impl<R: Runtime + 'static> Pods<R> {
    /// Marks the adopted pods in a relist: one that began before the adoption shows them as the former agent's.
    pub(in crate::node) fn with_taken_over(&self, mut relist: Relist) -> Relist {
        for uid in self.identity.adopted() {
            relist.take_over(uid);
        }
        relist
    }

    /// Replaces the UIDs of static pods by those under which they run.
    pub(in crate::node) fn keep_uids(&mut self, update: &mut SourceUpdate) {
        if update.source == source::API {
            return;
        }
        for sourced in &mut update.pods {
            let own = sourced.pod.key.uid.clone();
            // A pod with a record keeps its UID.
            let has_record =
                |pods: &Self, uid: Option<&PodUid>| uid.is_some_and(|uid| pods.records.contains_key(uid));
            if !has_record(self, Some(&own)) && !has_record(self, self.identity.kept(&own)) {
                self.claim_former_pods(sourced);
            }
            if let Some(found) = self.identity.kept(&own) {
                rename(sourced, found);
            }
        }
    }

    /// Adopts the former agent's pods of this name: one may be this pod, the others are terminated.
    fn claim_former_pods(&mut self, sourced: &SourcedPod) {
        let Some(relist) = &mut self.relist else { return };
        let (found, all) = relist.former.of_name(&sourced.pod);
        let own = &sourced.pod.key.uid;
        let exists = |uid: &PodUid| relist.pods.contains_key(uid);
        let own_exists = exists(own) || self.identity.kept(own).is_some_and(exists);
        // A former pod whose sandbox is not ready does not replace an existing pod of this agent.
        let found = found.filter(|found| found.is_ready() || !own_exists).map(|found| found.key.uid.clone());
        let all: Vec<PodUid> = all.iter().map(|former| former.key.uid.clone()).collect();
        if let Some(found) = found
            && *own != found
            && self.identity.keep(own, &found)
        {
            log::info!("pod {}: adopted from a former agent with the UID {found}", sourced.pod.key);
            self.identity_changed = true;
        }
        for uid in all {
            // Full: the pod is left alone.
            self.identity_changed |= self.identity.adopt(&uid);
            if self.identity.adopted().contains(&uid) {
                relist.take_over(&uid);
            }
        }
    }

    /// Adopts the former agent's pods that are to be terminated: those that were deleted in the cluster meanwhile, and, with
    /// `--take-over`, those that no source has, once all sources were read.
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

/// Sets the pod's UID.
fn rename(sourced: &mut SourcedPod, uid: &PodUid) {
    sourced.pod.key.uid = uid.clone();
    let mut pod = (*sourced.pod.pod).clone();
    pod.metadata.uid = Some(uid.to_string());
    sourced.pod.pod = pod.into();
}
