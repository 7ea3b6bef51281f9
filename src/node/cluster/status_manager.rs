//! Reports the pods' statuses to the API server (status manager), as [`crate::cluster::status_manager`] decides: a task for
//! each call.

use super::calls::patch_status;
use super::{ClusterEventKind, Membership};
use crate::cluster::pod_status::for_api;
use crate::cluster::status_manager::{CallEnd, LocalState, ReportedPod, ReportedPods};
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::kube::KubeError;
use crate::model::{Mono, Now, PodKey, PodUid, SortedMap};
use crate::node::effects::{Effect, Effects, Forgotten};
use crate::node::pods::{Pods, note_refusal};
use crate::source::api_status_versions::ApiStatusVersion;
use crate::source::{MirrorPod, SourceUpdate};
use crate::sync::worker::Life;

/// The node's pods in the API server.
#[derive(Default)]
pub(super) struct StatusManager {
    pods: ReportedPods,
    /// Number of calls in flight.
    under_way: usize,
}

impl StatusManager {
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.has(uid)
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>, is_busy: bool) -> Option<Mono> {
        let reported = self.pods.iter().filter(|_| !is_busy);
        reported.filter_map(|(uid, reported)| reported.due(|| local_state(uid, reported, pods))).min()
    }

    /// Starts at most `room` of the calls that are due.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        pods: &Pods<R>,
        room: usize,
        now: Now,
        out: &Effects,
    ) {
        let is_due = |uid: &PodUid, reported: &ReportedPod| {
            reported.due(|| local_state(uid, reported, pods)).is_some_and(|at| at <= now.mono)
        };
        let due = self.pods.iter_mut().filter(|(uid, reported)| is_due(uid, reported));
        for (uid, reported) in due.take(room) {
            self.under_way += usize::from(begin(uid, reported, of, pods, now, out));
        }
    }

    /// A call ended: for that pod's UID, with the key and revision that it was made with, and whether it deleted the pod for
    /// good. True when the API server no longer has the pod.
    pub(super) fn take(
        &mut self,
        (uid, key, revision, deleted): (&PodUid, &PodKey, u64, bool),
        result: &Result<Option<ApiStatusVersion>, KubeError>,
        of: &mut Membership,
        now: Mono,
    ) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        if !self.pods.awaits(uid, key) {
            return false;
        }
        let changed = of.shared.statuses.sent(&key.uid, result.as_ref().ok().copied().flatten());
        let end = match result {
            Ok(_) => CallEnd::Succeeded { changed },
            Err(why) => CallEnd::Failed { is_final: why.is_final() },
        };
        if let Err(why) = result {
            of.log_failure(&format!("pod {key}: status update failed"), why, now);
        }
        self.pods.ended(uid, revision, deleted, end, now)
    }

    /// Takes in the pods that the API server has: requests the deletions, records the rejections. Returns the pods that it no
    /// longer has.
    pub(super) fn update_pods(
        &mut self,
        update: &SourceUpdate,
        seed: u64,
        now: Mono,
        note: &dyn Fn(About<'_>, EventKind, &'static str, &str),
        out: &mut Effects,
    ) -> Vec<PodUid> {
        let changes = self.pods.update_pods(update, seed, now);
        for refused in &changes.rejected {
            note_refusal(note, refused);
        }
        for ending in changes.deleted {
            out.push(Effect::Delete(ending));
        }
        for ending in changes.sooner {
            out.push(Effect::Hurry(ending));
        }
        changes.gone
    }

    /// Nothing of the pod is left here.
    pub(super) fn forget(&mut self, Forgotten { uid, revision, status }: Forgotten) {
        self.pods.forget(&uid, revision, status);
    }

    /// Reports the static pods of these UIDs through these mirror pods, and no others.
    pub(super) fn set_mirror_pods(&mut self, mirrors: &SortedMap<PodUid, MirrorPod>, seed: u64, now: Mono) {
        self.pods.set_mirror_pods(mirrors, seed, now);
    }
}

/// The pod's state on this node.
fn local_state<R: Runtime + 'static>(uid: &PodUid, reported: &ReportedPod, pods: &Pods<R>) -> LocalState {
    let record = pods.get(uid);
    let observed = record.and_then(|record| record.worker().observed());
    let in_runtime = || pods.relist().is_none_or(|relist| relist.pods.contains_key(uid));
    LocalState {
        is_left: !reported.is_ending() || record.is_some() || in_runtime(),
        is_known: record.is_some_and(|record| {
            observed.is_some() || record.worker().life() == Life::Waiting || record.is_set_aside()
        }),
        revision: pods.statuses().revision_of(uid),
        has_containers: observed.is_some_and(|observed| !observed.containers.is_empty()),
    }
}

/// Starts the call that is due for the pod. True when there is one.
fn begin<R: Runtime + 'static>(
    uid: &PodUid,
    reported: &mut ReportedPod,
    of: &Membership,
    pods: &Pods<R>,
    now: Now,
    out: &Effects,
) -> bool {
    let status = || {
        let (record, status) = (pods.get(uid), pods.statuses().status(uid)?);
        let may_run = record.and_then(|record| record.worker().observed()).is_some_and(|of| of.is_alive());
        Some(match record.and_then(|record| record.worker().pod()) {
            Some(pod) => for_api(&pod.pod, status, may_run, now.wall),
            None => status,
        })
    };
    let local = local_state(uid, reported, pods);
    let Some(call) = reported.begin(&local, status, now.wall) else { return false };
    of.shared.statuses.sending(&reported.key().uid);
    let (client, key, uid) = (of.client.clone(), reported.key().clone(), uid.clone());
    out.start("pod status", async move {
        let (revision, deleted) = (call.revision, call.deleted);
        let result = patch_status(&client, &key, call).await;
        ClusterEventKind::StatusPatched { uid, key, revision, deleted, result }.event()
    });
    true
}
