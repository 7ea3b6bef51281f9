//! The checkpoint: the state that survives the process and the boot. When it is written, which pods wait for a write, and what
//! is restored at the start.
//!
//! ```text
//!     a change ─► one second later, at most every ten seconds ─► written by a blocking job ─► saved
//!     a change of conditions and readiness alone ─► ten minutes after the last write: a probe may flap for ever, and flash wears out
//!     a removal of the last record of a restart count ─► at once; the removal begins after the write
//!     a running activeDeadlineSeconds ─► at each sixteenth of it, for the pod's age
//!     the agent's end ─► at once, and the agent waits for the write
//! ```

use std::time::Duration;

use k8s_openapi::api::core::v1::EphemeralContainer;

use super::agent::Event;
use super::effects::{Effect, Effects};
use super::image_gc::ImageGc;
use super::pods::{AllocatedSizes, Pods, Resizing};
use super::shutdown::revive;
use crate::cri::Runtime;
use crate::limits::{
    CHECKPOINT_AGES_PERIOD_MIN, CHECKPOINT_AGES_SHARE, CHECKPOINT_END_PATIENCE, CHECKPOINT_LIGHT_PERIOD,
    CHECKPOINT_PERIOD, CHECKPOINT_PODS_MAX, CHECKPOINT_SETTLE, CHECKPOINT_SIZES_MAX,
    CHECKPOINT_TEXT_BYTES_MAX, SYNC_RETRY,
};
use crate::model::SortedSet;
use crate::model::backoff::BackoffKey;
use crate::model::{Debugger, Mono, Now, PodKey, PodUid};
use crate::status::restarts::end_of_boot;
use crate::store::checkpoint::{
    BackoffCheckpoint, Checkpoint, ImageCheckpoint, PodCheckpoint, millis, restored_status, to_bytes,
    wall_millis,
};
use crate::store::file::CheckpointFile;

/// Schedule and progress of the writes.
pub(super) struct Checkpointing {
    file: CheckpointFile,
    boot: Box<str>,
    /// The state in the file; `None` = not of this boot.
    saved: Option<Mark>,
    /// The write in flight, and the state that it writes.
    write: Option<(smol::Task<()>, Mark, Mono)>,
    /// Number of the last write.
    writes: u64,
    /// When the next write begins.
    due: Option<Mono>,
    /// When the last successful write began.
    saved_at: Mono,
    /// Earliest time of the next write.
    not_before: Mono,
    /// The last write failed, which was logged.
    failing: bool,
    /// Pods that wait for a write.
    waiting: SortedSet<PodUid>,
    /// Number of the last container that `smolet debug` added.
    debuggers: u64,
}

/// Counters of changes: equal marks mean equal states. The passing of time is no change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    statuses: u64,
    lasting: u64,
    crashes: u64,
    pulls: u64,
    images: u64,
    debuggers: u64,
    resizes: u64,
}

/// The parts of the checkpoint that pods wait for.
#[derive(Clone, Copy, Default)]
pub(super) struct Saved {
    /// The revision of the statuses.
    pub(super) statuses: u64,
    /// The number of the container that `smolet debug` added last.
    pub(super) debuggers: u64,
    /// The number of the last allocation.
    pub(super) resizes: u64,
    /// The last write failed: pods wait for the next one only if they must.
    pub(super) failing: bool,
}

/// A pod of the checkpoint without its status, which is in the store.
pub(super) struct Restored {
    pub(super) key: PodKey,
    pub(super) active_since: Option<Mono>,
    /// It is of another boot, at whose end nothing crashed.
    pub(super) is_of_earlier_boot: bool,
    /// The ephemeral containers that `smolet debug` added.
    pub(super) debuggers: Vec<EphemeralContainer>,
    /// Its resize, and its allocated CPU and memory.
    pub(super) resizing: Option<(Box<Resizing>, AllocatedSizes)>,
}

impl Checkpointing {
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
            debuggers: 0,
        }
    }

    /// A number for a container that is added to a pod: the file has the container once it has the number.
    pub(super) fn next_debugger(&mut self) -> u64 {
        self.debuggers += 1;
        self.debuggers
    }

    // ---- the start -----------------------------------------------------------------------------------------

    /// Restores the state of the last agent. The runtime's reports have precedence; the checkpoint only adds what the runtime
    /// does not keep.
    pub(super) fn restore<R: Runtime + 'static>(
        &mut self,
        pods: &mut Pods<R>,
        images: &mut ImageGc,
        now: Now,
    ) {
        // Ages are relative to a write of this boot: after a reboot the file is written again.
        let is_current = self.file.load(|kept| {
            take_over(kept, &self.boot, pods, images, now);
            kept.boot == &*self.boot
        });
        self.saved = is_current.unwrap_or(true).then(|| self.mark(pods, images));
        pods.set_saved(self.saved());
    }

    /// The state in the file, for the pods that wait for it.
    fn saved(&self) -> Saved {
        let mark = self.saved.as_ref();
        Saved {
            statuses: mark.map_or(0, |mark| mark.statuses),
            debuggers: mark.map_or(0, |mark| mark.debuggers),
            resizes: mark.map_or(0, |mark| mark.resizes),
            failing: self.failing,
        }
    }

    /// The pod waits for a write, which begins at once.
    pub(super) fn await_save(&mut self, uid: PodUid) {
        self.waiting.insert(uid);
    }

    /// Nothing of the pod is left on this node.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
    }

    // ---- writing -------------------------------------------------------------------------------------------

    /// When the next write is due.
    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>) -> Option<Mono> {
        let due = self.due.into_iter().chain(self.ages_due(pods)).min();
        due.filter(|_| self.write.is_none())
    }

    /// Starts a write that is due. Called at the end of every turn; does nothing when nothing has changed.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        pods: &Pods<R>,
        images: &ImageGc,
        now: Mono,
        out: &Effects,
    ) {
        let mark = self.mark(pods, images);
        let aged = self.ages_due(pods).is_some_and(|at| at <= now);
        if self.saved == Some(mark) && !aged {
            self.due = None;
            return;
        }
        if self.write.is_some() {
            return;
        }
        let is_light = self.saved.is_some_and(|saved| Mark { statuses: mark.statuses, ..saved } == mark);
        let light = if is_light { self.saved_at + CHECKPOINT_LIGHT_PERIOD } else { now };
        let settled = (now + CHECKPOINT_SETTLE).max(self.not_before).max(light);
        let due = self.due.map_or(settled, |due| due.min(settled));
        self.due = Some(due);
        let urgent = !self.waiting.is_empty() && !self.failing;
        if due > now && !urgent && !aged {
            return;
        }
        self.due = None;
        self.writes += 1;
        let (number, bytes) = (self.writes, to_bytes(&self.content(pods, images)));
        let (file, blocking) = (self.file.clone(), pods.manager().blocking.clone());
        let task = out.keep("checkpoint file", async move {
            let written = blocking.run(move || file.write(number, &bytes)).await;
            Event::CheckpointWritten(written)
        });
        self.write = Some((task, mark, now));
    }

    /// A write ended.
    pub(super) fn take(&mut self, result: std::io::Result<()>, now: Mono, out: &mut Effects) {
        let Some((_, mark, began)) = self.write.take() else { return };
        if let Err(error) = result {
            self.not_before = now + SYNC_RETRY;
            if !std::mem::replace(&mut self.failing, true) {
                log::warn!(
                    "checkpoint not written: {error}; retrying, dead containers whose restart count would be lost \
                     stay until then"
                );
                // Pods that need not wait for the failing disk continue; the others record an event with the reason.
                self.publish_saved(out);
            }
            return;
        }
        if std::mem::take(&mut self.failing) {
            log::info!("checkpoint written again");
        }
        out.metrics().state_writes.inc();
        self.saved = Some(mark);
        self.saved_at = began;
        self.not_before = now + CHECKPOINT_PERIOD;
        self.publish_saved(out);
    }

    /// Publishes the state in the file, and plans the waiting pods again.
    fn publish_saved(&mut self, out: &mut Effects) {
        out.push(Effect::Saved(self.saved()));
        std::mem::take(&mut self.waiting).into_iter().for_each(|uid| out.push(Effect::PlanAgain(uid)));
    }

    /// When ages are written again without a change: a power cut loses at most a sixteenth of a running
    /// `activeDeadlineSeconds`.
    fn ages_due<R: Runtime + 'static>(&self, pods: &Pods<R>) -> Option<Mono> {
        let deadlines = pods.iter().filter_map(|(uid, record)| {
            let seconds = record.worker().pod()?.spec().active_deadline_seconds?;
            let runs =
                record.active_since().is_some() && !record.is_set_aside() && !pods.statuses().has_ended(uid);
            u64::try_from(seconds).ok().filter(|_| runs)
        });
        let every = Duration::from_secs(deadlines.min()?) / CHECKPOINT_AGES_SHARE;
        let every = every.max(CHECKPOINT_AGES_PERIOD_MIN);
        Some((self.saved_at + every).max(self.not_before))
    }

    /// Writes the state before the agent ends, including the ages, which continue from there after a reboot. Waits at most
    /// [`CHECKPOINT_END_PATIENCE`].
    pub(super) async fn save_at_end<R: Runtime + 'static>(&mut self, pods: &Pods<R>, images: &ImageGc) {
        let kept = self.content(pods, images);
        let has_ages = !kept.pods.is_empty() || !kept.images.is_empty();
        if !has_ages && self.saved == Some(self.mark(pods, images)) {
            return;
        }
        let (number, bytes, file) = (self.writes + 1, to_bytes(&kept), self.file.clone());
        // A write in flight continues in its thread; the file keeps the one with the higher number.
        self.write = None;
        let write = async {
            pods.manager().blocking.run(move || file.write(number, &bytes)).await.map_err(|e| e.to_string())
        };
        let patience = async {
            pods.manager().clock.sleep(CHECKPOINT_END_PATIENCE).await;
            Err("the disk does not respond".to_owned())
        };
        if let Err(error) = smol::future::or(write, patience).await {
            log::warn!("checkpoint not written: {error}; the next start uses the last one that was written");
        }
    }

    fn mark<R: Runtime + 'static>(&self, pods: &Pods<R>, images: &ImageGc) -> Mark {
        Mark {
            statuses: pods.statuses().revision(),
            lasting: pods.statuses().lasting_changes(),
            crashes: pods.backoff().changes(),
            pulls: pods.manager().images.changes(),
            images: images.seen().changes(),
            debuggers: self.debuggers,
            resizes: pods.resizes(),
        }
    }

    fn content<'a, R: Runtime + 'static>(&'a self, pods: &'a Pods<R>, images: &'a ImageGc) -> Checkpoint<'a> {
        let Now { mono: now, wall } = pods.now();
        let mut room = CHECKPOINT_SIZES_MAX;
        let kept = pods.statuses().records().filter_map(|(uid, status)| {
            let nothing = [].as_slice();
            let (key, active_since, added, shut_down, sizes) = match (pods.get(uid), pods.restored().get(uid))
            {
                (Some(record), _) => {
                    // The API server's pods have their ephemeral containers in the API, and do not start again after a shutdown.
                    let pod = record.worker().pod().filter(|pod| !pod.pod.is_of_api_server());
                    let added = pod.map_or(nothing, |pod| pod.ephemeral_containers());
                    let shut_down = record.shutdown_grace().is_some() && pod.is_some();
                    (record.worker().key(), record.active_since(), added, shut_down, record.kept_sizes())
                }
                (None, Some(restored)) => {
                    let added = &*restored.debuggers;
                    let sizes = restored.resizing.as_ref().map(|(resizing, allocated)| {
                        resizing.kept(allocated.iter().map(|(name, sizes)| (&**name, *sizes)))
                    });
                    (&restored.key, restored.active_since, added, false, sizes)
                }
                (None, None) => return None,
            };
            let sizes = sizes.filter(|sizes| sizes.len() <= room);
            room -= sizes.as_ref().map_or(0, Vec::len);
            let pod = PodCheckpoint {
                uid: uid.as_str(),
                namespace: &key.namespace,
                name: &key.name,
                status,
                active_ms: active_since.map(|since| millis(now.since(since))),
                shut_down: shut_down.then_some(true),
                debuggers: (!added.is_empty()).then(|| added.iter().map(Debugger::of).collect()),
                sizes,
            };
            // No source starts a pod with a longer name; its record would make the file unreadable.
            let fits = |text: &str| text.len() <= CHECKPOINT_TEXT_BYTES_MAX;
            [pod.uid, pod.namespace, pod.name].into_iter().all(fits).then_some(pod)
        });
        let wait = |(key, wait, age): (BackoffKey, Duration, Duration)| BackoffCheckpoint {
            key: key.kept(),
            wait_ms: millis(wait),
            age_ms: millis(age),
        };
        let image =
            |(image, first, last)| ImageCheckpoint { image, first_ms: millis(first), last_ms: millis(last) };
        Checkpoint {
            boot: &self.boot,
            written_ms: millis(now.since(Mono(0))),
            pods: kept.take(CHECKPOINT_PODS_MAX).collect(),
            crashes: pods.backoff().waits(now).map(wait).collect(),
            pulls: pods.manager().images.waits(now).into_iter().map(wait).collect(),
            images: images.seen().ages(now).map(image).collect(),
            written_wall_ms: Some(wall_millis(wall)),
        }
    }
}

/// Restores the pods and the images from the checkpoint.
fn take_over<R: Runtime + 'static>(
    kept: &Checkpoint<'_>,
    boot: &str,
    pods: &mut Pods<R>,
    images: &mut ImageGc,
    now: Now,
) {
    let elapsed = kept.elapsed(boot, now.mono);
    let is_current = kept.boot == boot;
    let ago = |ms: u64| now.mono - Duration::from_millis(ms) - elapsed;
    for pod in &kept.pods {
        let Some(mut status) = restored_status(pod) else { continue };
        if pod.shut_down == Some(true) {
            revive(&mut status);
        }
        if pod.shut_down == Some(true) || !is_current {
            end_of_boot(&mut status);
        }
        let sizes = pod.sizes.as_deref().filter(|sizes| !sizes.is_empty());
        let resizing = sizes.map(|sizes| Resizing::restored(sizes, &status));
        let resizing = resizing.map(|(resizing, allocated)| (Box::new(resizing), allocated));
        let key = PodKey::new(pod.namespace, pod.name, pod.uid);
        // Debug containers of another boot are not started again.
        let debuggers = pod.debuggers.iter().flatten().filter(|_| is_current).map(Debugger::container);
        let (active_since, debuggers) = (pod.active_ms.map(ago), debuggers.collect());
        let is_of_earlier_boot = !is_current;
        pods.restore(Restored { key, active_since, is_of_earlier_boot, debuggers, resizing }, status);
    }
    let elapsed = kept.backoffs_elapsed(boot, now);
    let last_failure = |ms: u64| now.mono - Duration::from_millis(ms) - elapsed;
    for wait in &kept.crashes {
        let key = BackoffKey::from_kept(wait.key);
        pods.restore_backoff(key, Duration::from_millis(wait.wait_ms), last_failure(wait.age_ms));
    }
    for wait in &kept.pulls {
        let key = BackoffKey::from_kept(wait.key);
        pods.manager().images.restore(key, Duration::from_millis(wait.wait_ms), last_failure(wait.age_ms));
    }
    for image in &kept.images {
        images.restore(image.image, ago(image.first_ms), ago(image.last_ms));
    }
}
