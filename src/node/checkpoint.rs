//! What of the loop's state survives the process and the boot: when it is written, what waits for that, and what is
//! taken over at the start.
//!
//! ```text
//!     a change ─► a second to settle, ten since the last write ─► written in a blocking job ─► saved
//!     a removal that takes the runtime's last word ─► at once; the removal begins when it is saved
//!     an active deadline runs ─► each sixteenth of it, for its age
//!     the agent's end ─► at once, waited for
//! ```
use std::time::Duration;

use k8s_openapi::api::core::v1::EphemeralContainer;

use super::agent::{Agent, Event};
use super::pod::Work;
use super::resizes::{Granted, Resizing};
use super::shutdown::revive;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::{
    CHECKPOINT_AGES_PERIOD_MIN, CHECKPOINT_AGES_SHARE, CHECKPOINT_END_PATIENCE, CHECKPOINT_PERIOD,
    CHECKPOINT_PODS_MAX, CHECKPOINT_SETTLE, CHECKPOINT_TEXT_BYTES_MAX, KEPT_SIZES_MAX, SYNC_RETRY,
};
use crate::model::backoff::BackoffKey;
use crate::model::{Debugger, DesiredPod, Mono, Now, PodKey, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::status::merge;
use crate::store::checkpoint::{Checkpoint, KeptImage, KeptPod, KeptWait, millis, restored_status, to_bytes};
use crate::store::file::CheckpointFile;

/// How far the file is behind the state.
pub(super) struct Saving {
    file: CheckpointFile,
    boot: Box<str>,
    /// The state in the file; `None` = not of this boot.
    saved: Option<Mark>,
    /// The write in flight, and the state that it writes.
    write: Option<(smol::Task<()>, Mark, Mono)>,
    /// Numbers the writes.
    writes: u64,
    /// When the next one begins.
    due: Option<Mono>,
    /// When the last one that is in the file began.
    saved_at: Mono,
    not_before: Mono,
    /// The last write failed, which was told.
    failing: bool,
    /// Pods whose removals wait for a write.
    pub(super) waiting: SortedSet<PodUid>,
    /// Containers came since the images in use were noted.
    pub(super) images_stale: bool,
    /// Numbers the containers that `smolet debug` adds.
    debuggers: u64,
    /// What the file says of pods that nobody has asked for yet. Bounded by the file.
    restored: SortedMap<PodUid, Restored>,
}

/// Counters of changes: equal marks are equal states. Time is no change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    statuses: u64,
    crashes: u64,
    pulls: u64,
    images: u64,
    debuggers: u64,
    resizes: u64,
}

/// A pod of the checkpoint, but for its status, which is in the store.
pub(super) struct Restored {
    key: PodKey,
    pub(super) active_since: Option<Mono>,
    /// What `smolet debug` added to it.
    pub(super) debuggers: Vec<EphemeralContainer>,
    /// What it was resized to, and what it was granted.
    pub(super) resizing: Option<(Box<Resizing>, Granted)>,
}

impl Saving {
    pub(super) fn new(file: CheckpointFile, boot: Box<str>, now: Mono) -> Self {
        Self {
            file,
            boot,
            saved: None,
            write: None,
            writes: 0,
            due: None,
            saved_at: now,
            not_before: now,
            failing: false,
            waiting: SortedSet::new(),
            images_stale: false,
            debuggers: 0,
            restored: SortedMap::new(),
        }
    }

    /// A container was added to a pod: the number that is in the file when it is.
    pub(super) fn debugger_added(&mut self) -> u64 {
        self.debuggers += 1;
        self.debuggers
    }
}

impl<R: Runtime + 'static> Agent<R> {
    // ---- the start -----------------------------------------------------------------------------------------

    /// Takes over what an earlier agent left. What the runtime reports counts for more; this only adds what the
    /// runtime forgets.
    pub(super) fn restore(&mut self, now: Now) {
        let file = self.saving.file.clone();
        // Ages count from a write of this boot: after a reboot there has to be one.
        let is_current = file.load(|kept| {
            self.take_over(kept, now);
            kept.boot == &*self.saving.boot
        });
        self.saving.saved = is_current.unwrap_or(true).then(|| self.mark());
    }

    fn take_over(&mut self, kept: &Checkpoint<'_>, now: Now) {
        let elapsed = kept.elapsed(&self.saving.boot, now.mono);
        let is_current = kept.boot == &*self.saving.boot;
        let ago = |ms: u64| now.mono - Duration::from_millis(ms) - elapsed;
        for pod in &kept.pods {
            let Some(mut status) = restored_status(pod) else { continue };
            if pod.shut_down == Some(true) {
                revive(&mut status);
            }
            let sizes = pod.sizes.as_deref().filter(|sizes| !sizes.is_empty());
            let resizing = sizes.map(|sizes| Resizing::restored(sizes, &status));
            let resizing = resizing.map(|(resizing, granted)| (Box::new(resizing), granted));
            let key = PodKey::new(pod.namespace, pod.name, pod.uid);
            let uid = key.uid.clone();
            self.statuses.put(&uid, status);
            self.statuses.set_wanted(&uid, false);
            // What another boot ended is not started again.
            let debuggers = pod.debuggers.iter().flatten().filter(|_| is_current).map(Debugger::container);
            let (active_since, debuggers) = (pod.active_ms.map(ago), debuggers.collect());
            let restored = Restored { key, active_since, debuggers, resizing };
            self.saving.restored.insert(uid, restored);
        }
        for wait in &kept.crashes {
            let key = BackoffKey::from_kept(wait.key);
            self.backoff.restore(key, Duration::from_millis(wait.wait_ms), ago(wait.age_ms));
        }
        for wait in &kept.pulls {
            let key = BackoffKey::from_kept(wait.key);
            self.ctx.images.restore(key, Duration::from_millis(wait.wait_ms), ago(wait.age_ms));
        }
        for image in &kept.images {
            self.images_seen.restore(image.image, ago(image.first_ms), ago(image.last_ms));
        }
    }

    /// What the checkpoint says of a pod that a source wants now, if it is the same pod.
    pub(super) fn claim(&mut self, pod: &DesiredPod) -> Option<Restored> {
        let uid = &pod.key.uid;
        let restored = self.saving.restored.remove(uid)?;
        let fits = |status| restored.key == pod.key && merge::is_of(&pod.pod, &status);
        if self.statuses.status(uid).is_some_and(fits) {
            self.statuses.set_wanted(uid, true);
            return Some(restored);
        }
        self.statuses.forget(uid);
        None
    }

    /// Every source and the runtime have been read: pods of the checkpoint that are nowhere are forgotten.
    pub(super) fn forget_restored_but(&mut self, known: &SortedSet<PodUid>) {
        let (statuses, restored) = (&mut self.statuses, &mut self.saving.restored);
        restored.retain(|uid, _| {
            let stays = known.contains(uid);
            if !stays {
                statuses.forget(uid);
            }
            stays
        });
    }

    /// A pod is gone.
    pub(super) fn forget_status(&mut self, uid: &PodUid) {
        self.statuses.forget(uid);
        self.saving.restored.remove(uid);
        self.saving.waiting.remove(uid);
    }

    // ---- writing -------------------------------------------------------------------------------------------

    /// When the next write is to begin.
    pub(super) fn save_due(&self) -> Option<Mono> {
        let due = self.saving.due.into_iter().chain(self.ages_due()).min();
        due.filter(|_| self.saving.write.is_none())
    }

    /// Begins a write that is due. Called at the end of every turn; does nothing when nothing has changed.
    pub(super) fn save_when_due(&mut self, now: Mono) {
        if std::mem::take(&mut self.saving.images_stale) {
            let observed = self.records.values().filter_map(|record| record.worker.observed());
            let containers = observed.flat_map(|observed| &observed.containers);
            self.images_seen.used(containers.map(|container| &*container.image_ref), now);
        }
        let mark = self.mark();
        let aged = self.ages_due().is_some_and(|at| at <= now);
        if self.saving.saved == Some(mark) && !aged {
            self.saving.due = None;
            return;
        }
        if self.saving.write.is_some() {
            return;
        }
        let settled = (now + CHECKPOINT_SETTLE).max(self.saving.not_before);
        let due = *self.saving.due.get_or_insert(settled);
        let urgent = !self.saving.waiting.is_empty() && !self.saving.failing;
        if due > now && !urgent && !aged {
            return;
        }
        self.saving.due = None;
        self.saving.writes += 1;
        let (number, bytes) = (self.saving.writes, to_bytes(&self.kept(now)));
        let (file, events, blocking) =
            (self.saving.file.clone(), self.events.clone(), self.ctx.blocking.clone());
        let task = self.executor.spawn("checkpoint file", async move {
            let written = blocking.run(move || file.write(number, &bytes)).await;
            // The loop is gone only when the process ends.
            let _ = events.send(Event::CheckpointWritten(written)).await;
        });
        self.saving.write = Some((task, mark, now));
    }

    pub(super) fn checkpoint_written(&mut self, result: std::io::Result<()>) {
        let Some((_, mark, began)) = self.saving.write.take() else { return };
        let now = self.ctx.clock.now().mono;
        if let Err(error) = result {
            self.saving.not_before = now + SYNC_RETRY;
            if !std::mem::replace(&mut self.saving.failing, true) {
                log::warn!(
                    "the checkpoint was not written: {error}; tried again until it is, and dead containers whose \
                     restart count would be lost stay until then"
                );
                // Whoever does not have to wait for a disk that takes nothing goes on; the others say why they wait.
                self.drive_waiting();
            }
            return;
        }
        if std::mem::take(&mut self.saving.failing) {
            log::info!("the checkpoint is written again");
        }
        self.metrics.state_writes.inc();
        self.saving.saved = Some(mark);
        self.saving.saved_at = began;
        self.saving.not_before = now + CHECKPOINT_PERIOD;
        self.drive_waiting();
    }

    fn drive_waiting(&mut self) {
        for uid in std::mem::take(&mut self.saving.waiting) {
            if let Some(record) = self.records.get_mut(&uid) {
                record.worker.plan_again();
                self.drive(&uid);
            }
        }
    }

    /// When ages have to be written again though nothing has changed: a power cut may take a small part of the time of a
    /// running `activeDeadlineSeconds`, and no more.
    fn ages_due(&self) -> Option<Mono> {
        let deadlines = self.records.iter().filter_map(|(uid, record)| {
            let seconds = record.worker.pod()?.spec().active_deadline_seconds?;
            let runs = record.active_since.is_some() && !record.set_aside && !self.statuses.has_ended(uid);
            u64::try_from(seconds).ok().filter(|_| runs)
        });
        let every = Duration::from_secs(deadlines.min()?) / CHECKPOINT_AGES_SHARE;
        let every = every.max(CHECKPOINT_AGES_PERIOD_MIN);
        Some((self.saving.saved_at + every).max(self.saving.not_before))
    }

    /// The work takes away the runtime's last word on a restart count, or starts what only the file will know, and the file
    /// does not have it yet: it waits, and is planned anew when the file is written.
    pub(super) fn must_save_first(&mut self, uid: &PodUid, work: &Work) -> bool {
        let Some(record) = self.records.get(uid) else { return false };
        let saved_debugger = self.saving.saved.map_or(0, |mark| mark.debuggers);
        // On a disk that takes nothing there is the more to debug.
        if work.starts_debugger() && record.debugger > saved_debugger && !self.saving.failing {
            self.saving.waiting.insert(uid.clone());
            return true;
        }
        let granted = record.resizing.as_ref().map_or(0, |resizing| resizing.number);
        if work.resizes()
            && granted > self.saving.saved.map_or(0, |mark| mark.resizes)
            && !self.saving.failing
        {
            self.saving.waiting.insert(uid.clone());
            return true;
        }
        let loses = record.worker.observed().is_some_and(|observed| work.loses_counts(observed));
        let saved = self.saving.saved.map_or(0, |mark| mark.statuses);
        if !loses || self.statuses.revision_of(uid) <= saved {
            return false;
        }
        if self.saving.failing {
            // Nothing of the pod runs: that counts for more than a count, which the logs may still tell.
            if work.recreates() {
                return false;
            }
            let message = "its containers' records are not removed until the checkpoint can be written";
            self.ctx.note(record.worker.key(), EventKind::Warning, "CheckpointNotWritten", message);
        }
        self.saving.waiting.insert(uid.clone());
        true
    }

    /// Before the agent ends by itself: ages too are written, which count on from there after a reboot. Waits for the
    /// disk, but not for ever.
    pub(super) async fn save_at_end(&mut self) {
        #[cfg(feature = "tls")]
        self.keep_at_end().await;
        let now = self.ctx.clock.now().mono;
        let kept = self.kept(now);
        if kept.pods.is_empty() && self.saving.saved == Some(self.mark()) {
            return;
        }
        let (number, bytes, file) = (self.saving.writes + 1, to_bytes(&kept), self.saving.file.clone());
        // A write in flight goes on in its thread; numbers keep their order.
        self.saving.write = None;
        let write = async {
            self.ctx.blocking.run(move || file.write(number, &bytes)).await.map_err(|e| e.to_string())
        };
        let patience = async {
            self.ctx.clock.sleep(CHECKPOINT_END_PATIENCE).await;
            Err("the disk does not answer".to_owned())
        };
        if let Err(error) = smol::future::or(write, patience).await {
            log::warn!("the checkpoint was not written: {error}; the next start goes by an older one");
        }
    }

    fn mark(&self) -> Mark {
        Mark {
            statuses: self.statuses.revision(),
            crashes: self.backoff.changes(),
            pulls: self.ctx.images.changes(),
            images: self.images_seen.changes(),
            debuggers: self.saving.debuggers,
            resizes: self.resizes.number,
        }
    }

    fn kept(&self, now: Mono) -> Checkpoint<'_> {
        let mut room = KEPT_SIZES_MAX;
        let pods = self.statuses.records().filter_map(|(uid, status)| {
            let nothing = [].as_slice();
            let (key, active_since, added, shut_down, sizes) =
                match (self.records.get(uid), self.saving.restored.get(uid)) {
                    (Some(record), _) => {
                        // One of an API server has its own, and what ended it with the node has ended it for good.
                        let pod = record.worker.pod().filter(|pod| !pod.pod.is_of_api_server());
                        let added = pod.map_or(nothing, |pod| pod.ephemeral_containers());
                        let shut_down = record.shutdown_grace.is_some() && pod.is_some();
                        (record.worker.key(), record.active_since, added, shut_down, record.kept_sizes())
                    }
                    (None, Some(restored)) => {
                        let added = &*restored.debuggers;
                        let sizes = restored.resizing.as_ref().map(|(resizing, granted)| {
                            resizing.kept(granted.iter().map(|(name, sizes)| (&**name, *sizes)))
                        });
                        (&restored.key, restored.active_since, added, false, sizes)
                    }
                    (None, None) => return None,
                };
            let sizes = sizes.filter(|sizes| sizes.len() <= room);
            room -= sizes.as_ref().map_or(0, Vec::len);
            let pod = KeptPod {
                uid: uid.as_str(),
                namespace: &key.namespace,
                name: &key.name,
                status,
                active_ms: active_since.map(|since| millis(now.since(since))),
                shut_down: shut_down.then_some(true),
                debuggers: (!added.is_empty()).then(|| added.iter().map(Debugger::of).collect()),
                sizes,
            };
            // A pod of no such name is started by no source; its record would make the file unreadable.
            let fits = |text: &str| text.len() <= CHECKPOINT_TEXT_BYTES_MAX;
            [pod.uid, pod.namespace, pod.name].into_iter().all(fits).then_some(pod)
        });
        let wait = |(key, wait, age): (BackoffKey, Duration, Duration)| KeptWait {
            key: key.kept(),
            wait_ms: millis(wait),
            age_ms: millis(age),
        };
        let image =
            |(image, first, last)| KeptImage { image, first_ms: millis(first), last_ms: millis(last) };
        Checkpoint {
            boot: &self.saving.boot,
            written_ms: millis(now.since(Mono(0))),
            pods: pods.take(CHECKPOINT_PODS_MAX).collect(),
            crashes: self.backoff.waits(now).map(wait).collect(),
            pulls: self.ctx.images.waits(now).into_iter().map(wait).collect(),
            images: self.images_seen.ages(now).map(image).collect(),
        }
    }
}
