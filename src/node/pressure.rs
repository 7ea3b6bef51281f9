//! What happens when the node is short of memory, disk, inodes or process IDs (`eviction_manager.go`, `synchronize`).
//!
//! ```text
//!     every EVICTION_PERIOD ──► look (task) ──► conditions
//!                                 │ a threshold acts
//!                                 ├─► of disks: what ended pods left goes first, then another look
//!                                 ├─► of disks: then unused images (`images`), then another look
//!                                 ▼
//!                    measure the pods that may go (task) ──► one pod ends, and what it had goes: the next look waits
//!
//!     no condition holds any more ──► the pods that ended for it come again
//! ```
//!
//! What is decided by is in `eviction`.
//!
//! Differs from the kubelet in two things. There no pod of a manifest is ended, for nobody would make it again; here one that
//! had to go comes again when its node is well. And one that comes while the node is not is not marked Failed but waits.
use std::path::PathBuf;
use std::rc::Rc;

use super::agent::{Agent, Event};
use super::observe::{self, Measured, Seen};
use crate::config::Config;
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::events::EventKind;
use crate::eviction::pods::{Evictable, PodUsage, first_to_go, is_critical, refusal};
use crate::eviction::threshold::Resource;
use crate::eviction::{NodeCondition, Observation, Pressure, Signal, Threshold};
use crate::limits::{
    EVICTION_CLEANUP_MAX, EVICTION_NEAR_TIMES, EVICTION_PERIOD, EVICTION_PERIOD_NEAR, IMAGE_GC_PERIOD_MIN,
};
use crate::model::SortedMap;
use crate::model::{DesiredPod, Mono, Now, ObservedPod, PodUid, Seconds};
use crate::status::eviction;
use crate::sync::outcome::SyncError;
use crate::sync::plan::Plan;
use crate::sync::worker::Life;

/// What is known of the node's pressure.
pub(super) struct Watching {
    pressure: Pressure,
    max_pod_grace: i64,
    pub(super) meminfo: PathBuf,
    /// Not before.
    next: Mono,
    /// A task is under way, or images are removed.
    in_flight: bool,
    images_at: Option<Box<str>>,
    /// The conditions as they were told last.
    told: Vec<NodeCondition>,
    /// When unused images went for it.
    reclaimed_at: Option<Mono>,
    /// The pod that went last, and when.
    ending: Option<(PodUid, Mono)>,
}

/// What the pods that may go use.
pub(super) struct Measures {
    threshold: Threshold,
    seen: Observation,
    images_apart: bool,
    /// By UID.
    usages: RuntimeResult<SortedMap<String, PodUsage>>,
}

impl Watching {
    pub(super) fn new(config: &Config, now: Mono) -> Self {
        let policy = &config.eviction;
        Self {
            pressure: Pressure::new(&policy.thresholds, policy.transition),
            max_pod_grace: policy.max_pod_grace,
            meminfo: config.meminfo.clone(),
            // Not while pods that are here are still being found.
            next: now + EVICTION_PERIOD_NEAR,
            in_flight: false,
            images_at: None,
            told: Vec::new(),
            reclaimed_at: None,
            ending: None,
        }
    }

    /// The conditions that hold.
    pub(super) fn conditions(&self) -> &[NodeCondition] {
        &self.told
    }

    /// Why a pod may not come now.
    pub(super) fn refuses(&self, pod: &DesiredPod, observed: &ObservedPod) -> Option<String> {
        observed.sandboxes.is_empty().then(|| refusal(&self.told, pod)).flatten()
    }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn watching_due(&self) -> Option<Mono> {
        (self.watching.pressure.is_on() && !self.watching.in_flight).then_some(self.watching.next)
    }

    pub(super) fn watch_when_due(&mut self, now: Mono) {
        if self.watching_due().is_none_or(|at| at > now) {
            return;
        }
        let still_ends = |uid: &PodUid| {
            let observed = self.records.get(uid).and_then(|record| record.worker.observed());
            observed.is_some_and(|observed| !observed.is_empty())
        };
        if let Some((uid, since)) = &self.watching.ending
            && now.since(*since) < EVICTION_CLEANUP_MAX
            && still_ends(uid)
        {
            self.watching.next = now + EVICTION_PERIOD_NEAR;
            return;
        }
        self.watching.ending = None;
        self.watching.in_flight = true;
        let (ctx, events) = (self.ctx.clone(), self.events.clone());
        let (meminfo, images_at) = (self.watching.meminfo.clone(), self.watching.images_at.clone());
        let pids = self.watching.pressure.observes(Signal::PidAvailable);
        let task = async move {
            let seen = Box::new(observe::observe(&ctx, meminfo, pids, images_at).await);
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Observed(seen)).await;
        };
        self.executor.spawn("node stats", task).detach();
    }

    pub(super) fn observed(&mut self, seen: Seen) {
        let now = self.ctx.clock.now();
        let Seen { signals, images_at, images_apart } = seen;
        let watching = &mut self.watching;
        watching.in_flight = false;
        watching.images_at = images_at;
        let acting = watching.pressure.observe(&signals, now.mono);
        let conditions = watching.pressure.conditions(now.mono);
        let is_near = watching.pressure.is_near(&signals, EVICTION_NEAR_TIMES) || !conditions.is_empty();
        watching.next = now.mono + if is_near { EVICTION_PERIOD_NEAR } else { EVICTION_PERIOD };
        self.tell_conditions(conditions, now);
        let Some(threshold) = acting else { return };
        let Some(seen) = signals[threshold.signal as usize] else { return };
        let resource = threshold.signal.resource();
        let message = format!("Attempting to reclaim {}", resource.as_str());
        self.note_node(EventKind::Warning, "EvictionThresholdMet", &message);
        if resource.is_on_disk() && self.clear_ended() {
            self.watching.next = now.mono + EVICTION_PERIOD_NEAR;
            return;
        }
        // With images on a disk of their own, those make no room on the other.
        let images_count = match threshold.signal {
            Signal::MemoryAvailable | Signal::PidAvailable => false,
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => !images_apart,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => true,
        };
        let lately = self.watching.reclaimed_at.is_some_and(|at| now.mono.since(at) < IMAGE_GC_PERIOD_MIN);
        if images_count && !lately && self.reclaim_images(now.mono) {
            self.watching.in_flight = true;
            return;
        }
        self.measure_evictable(threshold, seen, images_apart);
    }

    /// The containers, logs and volumes of pods that have ended for good go (`DeleteAllUnusedContainers`); false when nobody has
    /// any that are not on their way.
    fn clear_ended(&mut self) -> bool {
        let left_some = |(uid, record): (&PodUid, &super::record::Record)| {
            let observed = record.worker.observed()?;
            (record.worker.life() == Life::Ended && !observed.is_empty()).then(|| uid.clone())
        };
        let ended: Vec<PodUid> = self.records.iter().filter_map(left_some).collect();
        let mut some = false;
        for uid in ended {
            let first = self.records.get_mut(&uid).is_some_and(|record| record.worker.clear_when_ended());
            if first {
                log::info!("{uid}: what is left of the ended pod goes, for the disk is short");
                self.drive(&uid);
                some = true;
            }
        }
        some
    }

    /// No unused image is left that may go: the next look shows whether that was enough.
    pub(super) fn images_reclaimed(&mut self) {
        let now = self.ctx.clock.now().mono;
        self.watching.in_flight = false;
        self.watching.reclaimed_at = Some(now);
        self.watching.next = now;
    }

    /// The pods that may go: those that run, but for critical ones.
    fn evictable(&self) -> impl Iterator<Item = (&PodUid, &Rc<DesiredPod>, &Rc<ObservedPod>)> {
        self.records.iter().filter_map(|(uid, record)| {
            let (pod, observed) = (record.worker.pod()?, record.worker.observed()?);
            let may = record.worker.life() == Life::Syncing
                && !record.set_aside
                && observed.is_alive()
                && !is_critical(pod)
                && !self.statuses.has_ended(uid);
            may.then_some((uid, pod, observed))
        })
    }

    fn measure_evictable(&mut self, threshold: Threshold, seen: Observation, images_apart: bool) {
        let resource = threshold.signal.resource();
        let counted = (resource == Resource::Pids).then(|| self.cgroups.hierarchies.clone());
        let pods: Vec<Measured> = self
            .evictable()
            .map(|(_, pod, observed)| Measured::new(&self.ctx.node, pod, observed, resource.is_on_disk()))
            .collect();
        if pods.is_empty() {
            return;
        }
        self.watching.in_flight = true;
        let (ctx, events) = (self.ctx.clone(), self.events.clone());
        let task = async move {
            let usages = observe::measure(&ctx, pods, counted).await;
            let measures = Box::new(Measures { threshold, seen, images_apart, usages });
            // The loop is gone only when the process ends.
            let _ = events.send(Event::PodsMeasured(measures)).await;
        };
        self.executor.spawn("pod stats", task).detach();
    }

    /// The runtime does not tell what pods use, which would have to be known.
    pub(super) fn note_untold(&self, error: &RuntimeError) {
        let message = format!("no pod is ended, for the runtime does not tell what they use: {error}");
        self.note_node(EventKind::Warning, "FailedEviction", &message);
    }

    /// One pod goes, of those that may now.
    pub(super) fn pods_measured(&mut self, measures: Measures) {
        self.watching.in_flight = false;
        let Measures { threshold, seen, images_apart, usages } = measures;
        let usages = match usages {
            Ok(usages) => usages,
            Err(error) => return self.note_untold(&error),
        };
        let pods: Vec<Evictable<'_>> = self
            .evictable()
            .map(|(uid, pod, _)| Evictable { pod, usage: usages.get(uid.as_str()) })
            .collect();
        let Some((place, message)) = first_to_go(&pods, &threshold, seen, images_apart) else { return };
        let Some(pod) = pods.get(place).map(|of| of.pod) else { return };
        let asked = pod.spec().termination_grace_period_seconds;
        let most = if threshold.is_hard() { 0 } else { self.watching.max_pod_grace };
        let grace = asked.map_or(most, |asked| asked.min(most));
        let uid = pod.key.uid.clone();
        self.metrics.evictions[threshold.signal as usize].inc();
        self.watching.ending = Some((uid.clone(), self.ctx.clock.now().mono));
        self.watching.next = self.ctx.clock.now().mono + EVICTION_PERIOD_NEAR;
        self.evict(&uid, &message, Seconds(grace), true);
    }

    /// Says which conditions began and which ended; then pods that waited for that come.
    fn tell_conditions(&mut self, conditions: Vec<NodeCondition>, now: Now) {
        let node = self.identity.node_name().to_owned();
        for condition in NodeCondition::ALL {
            let (was, is) = (self.watching.told.contains(&condition), conditions.contains(&condition));
            let reason = match (condition, was, is) {
                (_, false, false) | (_, true, true) => continue,
                (NodeCondition::Memory, false, true) => "NodeHasInsufficientMemory",
                (NodeCondition::Memory, true, false) => "NodeHasSufficientMemory",
                (NodeCondition::Disk, false, true) => "NodeHasDiskPressure",
                (NodeCondition::Disk, true, false) => "NodeHasNoDiskPressure",
                (NodeCondition::Pid, false, true) => "NodeHasInsufficientPID",
                (NodeCondition::Pid, true, false) => "NodeHasSufficientPID",
            };
            let kind = if is { EventKind::Warning } else { EventKind::Normal };
            self.note_node(kind, reason, &format!("Node {node} status is now: {reason}"));
        }
        let ended = self.watching.told.iter().any(|condition| !conditions.contains(condition));
        self.watching.told = conditions;
        if ended {
            let waits = |(uid, record): (&PodUid, &super::record::Record)| {
                let observed = record.worker.observed()?;
                let is_new = record.worker.life() == Life::Syncing && observed.sandboxes.is_empty();
                is_new.then(|| uid.clone())
            };
            let waiting: Vec<PodUid> = self.records.iter().filter_map(waits).collect();
            for uid in waiting {
                if let Some(record) = self.records.get_mut(&uid) {
                    record.worker.plan_again();
                    self.drive(&uid);
                }
            }
        }
        if self.watching.told.is_empty() {
            self.take_evicted_back(now);
        }
    }

    /// Pods that ended because the node was short of something come again.
    fn take_evicted_back(&mut self, now: Now) {
        let evicted = |uid: &&PodUid| {
            self.statuses.has_ended(uid)
                && self.statuses.status(uid).is_some_and(|status| eviction::was_for_the_node(&status))
        };
        let evicted: Vec<PodUid> = self.records.keys().filter(evicted).cloned().collect();
        for uid in evicted {
            // One whose manifest is gone ends anyway.
            let Some(pod) = self.desired.pod(&uid).map(|entry| entry.wanted.pod.clone()) else { continue };
            // One of an API server has failed for good: whoever owns it makes another one, perhaps elsewhere.
            if pod.pod.is_of_api_server() {
                continue;
            }
            log::info!("pod {}: the node is well again; it comes again", pod.key);
            self.unwant(&uid, now);
            self.want(pod);
            self.drive(&uid);
        }
    }

    /// The pod may not come while the node is short of something: its containers wait, with the kubelet's word for it.
    pub(super) fn hold_back(
        &mut self,
        uid: &PodUid,
        plan: &Plan,
        reason: &'static str,
        message: &str,
        now: Now,
    ) {
        let mut room = self.start_failures_room();
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(pod) = record.worker.pod().cloned() else { return };
        for start in plan.starts() {
            let name = Rc::from(pod.container(start.kind, start.index).name);
            record.failures.set(&name, SyncError::Refused(reason).to_string(), message, &mut room);
        }
        self.ctx.note(&pod.key, EventKind::Warning, reason, message);
        self.refresh_status(uid, now);
    }
}
