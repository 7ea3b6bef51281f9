//! The pods' statuses in the cluster (status manager): each is patched when it has changed here, once more when somebody has changed
//! it there, and a pod that was deleted there is deleted for good when nothing of it is left here.
//!
//! One task per pod at a time; what fails is told again later, with what there is to tell then.

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::calls::{refusal, tell};
use super::{Membership, News, Task};
use crate::cluster::pod_status::tells_of_resize;
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::kube::KubeError;
use crate::limits::{KUBE_RETRY_MAX, STATUS_CORRECTION_PERIOD};
use crate::model::{Mono, Now, PodKey, PodUid, Seconds, SortedMap};
use crate::node::effects::{Effect, Effects, Forgotten};
use crate::node::pods::{Pods, note_refusal};
use crate::source::api_statuses::StatusThere;
use crate::source::{EndingPod, MirrorPod, RefusedPod, SourceUpdate};
use crate::status::merge;
use crate::sync::worker::Life;

/// What the server has of the node's pods.
#[derive(Default)]
pub(super) struct StatusManager {
    /// Boxed: each update from the server rebuilds the map.
    pods: SortedMap<PodUid, Box<ServerPod>>,
    /// Those of which something is told at the moment.
    under_way: usize,
}

/// What the server knows of a pod.
pub(super) struct ServerPod {
    key: PodKey,
    /// It is a static pod, and the key that of its copy.
    is_mirror: bool,
    /// Of the status that it has; 0 = none of this process.
    revision: u64,
    /// Something of a resize may stand in it.
    resized: bool,
    /// Somebody has changed its status there.
    changed: bool,
    /// When the status that somebody had changed was sent again.
    corrected: Option<Mono>,
    /// It was deleted there.
    ending: Option<EndingPod>,
    /// It does not run here, because of this.
    refused: Option<Box<RefusedPod>>,
    /// What its status was when the last of it went.
    last: Option<Box<PodStatus>>,
    task: Task,
}

impl ServerPod {
    /// Nothing of it is told yet.
    fn new(key: PodKey, now: Mono, seed: u64) -> Self {
        let task = Task::new(now, seed);
        Self {
            key,
            is_mirror: false,
            revision: 0,
            resized: false,
            changed: false,
            corrected: None,
            ending: None,
            refused: None,
            last: None,
            task,
        }
    }

    /// The same of a static pod, with its copy's key.
    fn of_mirror(key: PodKey, now: Mono, seed: u64) -> Self {
        Self { is_mirror: true, ..Self::new(key, now, seed) }
    }

    /// Somebody has changed its status there, or no one has any more.
    fn compared(&mut self, changed: bool, now: Mono) {
        if changed && !self.changed {
            self.correct(now);
        }
        self.changed = changed;
    }

    /// Its status is sent once more (`needsReconcile`), to one who changes it again and again not at once.
    fn correct(&mut self, now: Mono) {
        let at = self.corrected.map_or(now, |before| now.max(before + STATUS_CORRECTION_PERIOD));
        self.corrected = Some(at);
        self.revision = 0;
        self.task.at = at;
    }

    /// Tells what there is to tell of it now.
    fn begin<R: Runtime + 'static>(
        &mut self,
        uid: &PodUid,
        of: &Membership,
        pods: &Pods<R>,
        now: Now,
        out: &Effects,
    ) {
        let deleted = is_gone(uid, self, pods);
        let record = pods.get(uid);
        let observed = record.and_then(|record| record.worker().observed());
        let (revision, status) = if let Some(why) = self.refused.as_ref().filter(|_| !deleted) {
            (1, Some(refusal(why, now.wall)))
        } else if deleted {
            (self.revision, self.last.as_deref().cloned())
        } else {
            let status = pods.statuses().status(uid);
            let may_run = observed.is_some_and(|observed| observed.is_alive());
            let pod = record.and_then(|record| record.worker().pod());
            let status = status.map(|status| match pod {
                Some(pod) => merge::for_api(&pod.pod, &terminal_there(&pod.pod), status, may_run, now.wall),
                None => status,
            });
            (pods.statuses().revision_of(uid), status)
        };
        // Before this process one may have told anything of what runs.
        let ran = observed.is_some_and(|observed| !observed.containers.is_empty());
        let tells = status.as_ref().is_some_and(tells_of_resize);
        let resized = std::mem::replace(&mut self.resized, tells) || self.revision == 0 && ran;
        self.task.in_flight = true;
        of.shared.statuses.sending(&self.key.uid);
        let (client, key, uid) = (of.client.clone(), self.key.clone(), uid.clone());
        out.start("pod status", async move {
            let result = tell(&client, &key, status, resized, deleted).await;
            News::Told { uid, key, revision, deleted, result }.event()
        });
    }
}

/// How the pod ended in the server's word; nothing of one that is not over there.
fn terminal_there(pod: &Pod) -> PodStatus {
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    PodStatus { phase, ..PodStatus::default() }
}

impl StatusManager {
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>, is_busy: bool) -> Option<Mono> {
        let told = self.pods.iter().filter(|(uid, told)| !is_busy && tells(uid, told, pods));
        told.filter_map(|(_, told)| told.task.due()).min()
    }

    /// Tells of those that are due, of as many as there is `room` for.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        pods: &Pods<R>,
        room: usize,
        now: Now,
        out: &Effects,
    ) {
        let is_due = |told: &ServerPod| told.task.due().is_some_and(|at| at <= now.mono);
        let due = self.pods.iter_mut().filter(|(uid, told)| is_due(told) && tells(uid, told, pods));
        for (uid, told) in due.take(room) {
            self.under_way += 1;
            told.begin(uid, of, pods, now, out);
        }
    }

    /// Something was told of a pod, or not: that UID, the pod's key and revision then, and whether it was deleted for good. True when
    /// the server has it no more.
    pub(super) fn take(
        &mut self,
        (uid, key, revision, deleted): (&PodUid, &PodKey, u64, bool),
        result: Result<Option<StatusThere>, KubeError>,
        of: &mut Membership,
        now: Mono,
    ) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        // A static pod may have another copy by now.
        let Some(told) = self.pods.get_mut(uid).filter(|told| told.key == *key) else { return false };
        told.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
        let answer = result.as_ref().ok().copied().flatten();
        let changed = of.shared.statuses.sent(&key.uid, answer);
        match result {
            Ok(_) if deleted => {
                self.pods.remove(uid);
                return true;
            }
            Ok(_) => {
                told.revision = revision;
                // What changed meanwhile is told at once.
                told.task.at = now;
                if changed {
                    told.correct(now);
                }
            }
            Err(why) => {
                told.resized = true;
                if why.is_final() && !deleted {
                    // The same once more would be refused once more.
                    told.revision = revision;
                }
                of.failed(&format!("pod {key}: status update failed"), &why, now);
            }
        }
        false
    }

    /// The server has these pods: what is to end is asked for, what was refused is noted. Returns those that it has no more.
    pub(super) fn learn(
        &mut self,
        update: &SourceUpdate,
        seed: u64,
        now: Mono,
        note: &dyn Fn(About<'_>, EventKind, &'static str, &str),
        out: &mut Effects,
    ) -> Vec<PodUid> {
        let known = std::mem::take(&mut self.pods).into_iter();
        let (mirrors, mut before): (SortedMap<_, _>, SortedMap<_, _>) =
            known.partition(|(_, told)| told.is_mirror);
        self.pods = mirrors;
        let mut know = |key: &PodKey| {
            before.remove(&key.uid).unwrap_or_else(|| Box::new(ServerPod::new(key.clone(), now, seed)))
        };
        for sourced in &update.pods {
            let key = &sourced.pod.key;
            let mut told = know(key);
            told.refused = None;
            told.compared(update.server.changed.contains(&key.uid), now);
            self.pods.insert(key.uid.clone(), told);
        }
        for refused in &update.server.refused {
            let mut told = know(&refused.key);
            if told.refused.is_none() {
                note_refusal(note, refused);
            }
            told.refused = Some(Box::new(refused.clone()));
            self.pods.insert(refused.key.uid.clone(), told);
        }
        let mut sooner = Vec::new();
        for ending in &update.server.ending {
            let mut told = know(&ending.key);
            match &told.ending {
                None => out.push(Effect::Delete(ending.clone())),
                Some(before) if ending.grace < before.grace => sooner.push(ending.clone()),
                Some(_) => {}
            }
            told.ending = Some(ending.clone());
            self.pods.insert(ending.key.uid.clone(), told);
        }
        let gone = before.keys().cloned().collect();
        // The server knows nothing more of a pod that ends here: it was deleted once more, at once (`kubectl delete --force`).
        let forgotten = before.into_values().filter(|told| told.ending.is_some());
        sooner.extend(forgotten.map(|told| EndingPod { key: told.key, grace: Seconds(0) }));
        for ending in sooner {
            out.push(Effect::Hurry(ending));
        }
        gone
    }

    /// Nothing of the pod is left here.
    pub(super) fn forget(&mut self, forgotten: Forgotten) {
        let Some(told) = self.pods.get_mut(&forgotten.uid) else { return };
        if told.ending.is_some() && told.revision != forgotten.revision {
            told.last = forgotten.status.map(Box::new);
        }
    }

    /// The static pods of these UIDs are told of through these copies, and no others.
    pub(super) fn tell_through(&mut self, mirrors: &SortedMap<PodUid, MirrorPod>, seed: u64, now: Mono) {
        let stays =
            |uid: &PodUid, told: &ServerPod| mirrors.get(uid).is_some_and(|mirror| mirror.key == told.key);
        self.pods.retain(|uid, told| !told.is_mirror || stays(uid, told));
        for (uid, mirror) in mirrors {
            let told = self.pods.entry(uid.clone());
            let told = told.or_insert_with(|| Box::new(ServerPod::of_mirror(mirror.key.clone(), now, seed)));
            told.compared(mirror.changed, now);
        }
    }
}

/// There is something to tell of this pod.
fn tells<R: Runtime + 'static>(uid: &PodUid, told: &ServerPod, pods: &Pods<R>) -> bool {
    told.refused.is_some() && told.revision == 0 || is_gone(uid, told, pods) || has_news(uid, told, pods)
}

/// Its status here is not what the server has; one that was not looked at yet has none to tell.
fn has_news<R: Runtime + 'static>(uid: &PodUid, told: &ServerPod, pods: &Pods<R>) -> bool {
    let looked_at = pods.get(uid).is_some_and(|record| {
        record.worker().observed().is_some()
            || record.worker().life() == Life::Waiting
            || record.is_set_aside()
    });
    looked_at && pods.statuses().revision_of(uid) != told.revision
}

/// It was deleted there, and nothing of it is left here.
fn is_gone<R: Runtime + 'static>(uid: &PodUid, told: &ServerPod, pods: &Pods<R>) -> bool {
    let left = pods.relist().is_none_or(|relist| relist.pods.contains_key(uid));
    told.ending.is_some() && !left && pods.get(uid).is_none()
}
