//! The eviction manager: reclaims memory, disk space, inodes and process IDs (`eviction_manager.go`, `synchronize`).
//!
//! ```text
//!     every EVICTION_PERIOD ──► observe (task) ──► node conditions
//!                                 │ a threshold is met
//!                                 ├─► disk: remove ended pods' containers first, then observe again
//!                                 ├─► disk: then unused images (`image_gc`), then observe again
//!                                 ▼
//!                    measure the evictable pods (task) ──► evict one pod; the next observation waits for its end
//!                                                     └──► memory is to be had again: observe again
//!
//!     no condition is true any more ──► the evicted static pods start again
//! ```
//!
//! The decisions are in `eviction`.
//!
//! Differs from the kubelet in two points. It never evicts static pods, since nothing would create them again; here an evicted
//! static pod starts again when the pressure is over. And a static pod that is added under pressure waits instead of failing.
use std::path::PathBuf;
use std::rc::Rc;

use super::agent::Event;
use super::effects::{Effect, Effects};
use super::node_stats::{self, Measured, NodeStats};
use super::pods::Record;
use super::pods::{EvictedFor, Pods};
use crate::config::Config;
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::events::EventKind;
use crate::eviction::pods::{Evictable, PodUsage, first_to_go, is_critical};
use crate::eviction::threshold::Resource;
use crate::eviction::{NodeCondition, Observation, Observations, Pressure, Signal, Threshold};
use crate::limits::{
    EVICTION_CLEANUP_MAX, EVICTION_NEAR_TIMES, EVICTION_PERIOD, EVICTION_PERIOD_NEAR, IMAGE_GC_PERIOD_MIN,
};
use crate::model::SortedMap;
use crate::model::{DesiredPod, Mono, ObservedPod, PodUid, Seconds};
use crate::sync::worker::Life;

/// State of the node's pressure and of the eviction in progress.
pub(super) struct EvictionManager {
    pressure: Pressure,
    max_pod_grace: i64,
    meminfo: PathBuf,
    /// Image garbage collection is enabled.
    images_may_go: bool,
    /// Earliest time of the next observation.
    next: Mono,
    /// A task runs, or images are being removed.
    in_flight: bool,
    /// Eviction is off, and the pods that were evicted before it was have been told once.
    has_released: bool,
    images_at: Option<Box<str>>,
    /// The last reported conditions.
    reported: Vec<NodeCondition>,
    /// When unused images were last removed because of pressure.
    reclaimed_at: Option<Mono>,
    /// The last evicted pod, and when it was evicted.
    ending: Option<(PodUid, Mono)>,
}

/// Usage of the evictable pods.
pub(super) struct PodStats {
    threshold: Threshold,
    seen: Observation,
    images_apart: bool,
    /// By UID.
    usages: RuntimeResult<SortedMap<String, PodUsage>>,
}

impl EvictionManager {
    pub(super) fn new(config: &Config, now: Mono) -> Self {
        let policy = &config.eviction;
        Self {
            pressure: Pressure::new(&policy.thresholds, policy.transition),
            max_pod_grace: policy.max_pod_grace,
            meminfo: config.meminfo.clone(),
            images_may_go: config.image_gc.is_some(),
            // After the first relist has found the running pods.
            next: now + EVICTION_PERIOD_NEAR,
            in_flight: false,
            has_released: false,
            images_at: None,
            reported: Vec::new(),
            reclaimed_at: None,
            ending: None,
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        let is_due = if self.pressure.is_on() { !self.in_flight } else { !self.has_released };
        is_due.then_some(self.next)
    }

    /// Starts an observation that is due, unless the last evicted pod is still terminating.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &mut Effects) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        if !self.pressure.is_on() {
            self.has_released = true;
            return out.push(Effect::Conditions(Vec::new()));
        }
        let still_ends = |uid: &PodUid| {
            let observed = pods.get(uid).and_then(|record| record.worker().observed());
            observed.is_some_and(|observed| !observed.is_empty())
        };
        if let Some((uid, since)) = &self.ending
            && now.since(*since) < EVICTION_CLEANUP_MAX
            && still_ends(uid)
        {
            self.next = now + EVICTION_PERIOD_NEAR;
            return;
        }
        self.ending = None;
        self.in_flight = true;
        let ctx = pods.ctx().clone();
        let (meminfo, images_at) = (self.meminfo.clone(), self.images_at.clone());
        let pids = self.pressure.observes(Signal::PidAvailable);
        let task = async move {
            let seen = Box::new(node_stats::observe(&ctx, meminfo, pids, images_at).await);
            Event::Observed(seen)
        };
        out.start("node stats", task);
    }

    /// An observation of memory and disks ended.
    pub(super) fn take_observation<R: Runtime + 'static>(
        &mut self,
        seen: NodeStats,
        pods: &Pods<R>,
        out: &mut Effects,
    ) {
        let now = out.now();
        let NodeStats { signals, images_at, images_apart } = seen;
        self.in_flight = false;
        self.images_at = images_at;
        let acting = self.pressure.observe(&signals, now.mono);
        let conditions = self.pressure.conditions(now.mono);
        let is_near = self.pressure.is_near(&signals, EVICTION_NEAR_TIMES) || !conditions.is_empty();
        self.next = now.mono + if is_near { EVICTION_PERIOD_NEAR } else { EVICTION_PERIOD };
        self.set_conditions(conditions, out);
        let Some(threshold) = acting else { return };
        let Some(seen) = signals[threshold.signal as usize] else { return };
        let resource = threshold.signal.resource();
        let message = format!("Attempting to reclaim {}", resource.as_str());
        out.note_node(EventKind::Warning, "EvictionThresholdMet", &message);
        if resource.is_on_disk() && clear_ended(pods, out) {
            self.next = now.mono + EVICTION_PERIOD_NEAR;
            return;
        }
        // Images on a disk of their own free no space on the node's disk.
        let images_count = match threshold.signal {
            Signal::MemoryAvailable | Signal::PidAvailable => false,
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => !images_apart,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => true,
        };
        let lately = self.reclaimed_at.is_some_and(|at| now.mono.since(at) < IMAGE_GC_PERIOD_MIN);
        if images_count && !lately && self.images_may_go && pods.desired().settled() {
            out.push(Effect::ReclaimImages);
            self.in_flight = true;
            return;
        }
        self.measure(threshold, seen, images_apart, pods, out);
    }

    /// All unused images were removed: the next observation shows whether that was enough.
    pub(super) fn images_reclaimed(&mut self, now: Mono) {
        self.in_flight = false;
        self.reclaimed_at = Some(now);
        self.next = now;
    }

    fn measure<R: Runtime + 'static>(
        &mut self,
        threshold: Threshold,
        seen: Observation,
        images_apart: bool,
        pods: &Pods<R>,
        out: &Effects,
    ) {
        let resource = threshold.signal.resource();
        let counted = (resource == Resource::Pids).then(|| pods.cgroups().hierarchies.clone());
        let measured: Vec<Measured> = evictable(pods)
            .map(|(_, pod, observed)| Measured::new(&pods.ctx().node, pod, observed, resource.is_on_disk()))
            .collect();
        if measured.is_empty() {
            return;
        }
        self.in_flight = true;
        let ctx = pods.ctx().clone();
        let meminfo = (threshold.signal == Signal::MemoryAvailable).then(|| self.meminfo.clone());
        let task = async move {
            let usages = node_stats::measure(&ctx, measured, counted).await;
            // A node without memory measures its pods for half a minute, and the kernel ends a process meanwhile. The kubelet takes both
            // from one summary.
            let seen = match meminfo {
                Some(path) => {
                    ctx.manager.blocking.run(move || node_stats::memory(&path)).await.unwrap_or(seen)
                }
                None => seen,
            };
            let measures = Box::new(PodStats { threshold, seen, images_apart, usages });
            Event::PodsMeasured(measures)
        };
        out.start("pod stats", task);
    }

    /// The measurement ended: evicts the pod that ranks first.
    pub(super) fn take_measures<R: Runtime + 'static>(
        &mut self,
        measures: PodStats,
        pods: &Pods<R>,
        out: &mut Effects,
    ) {
        self.in_flight = false;
        let PodStats { threshold, seen, images_apart, usages } = measures;
        let mut signals = Observations::default();
        signals[threshold.signal as usize] = Some(seen);
        if !threshold.is_met(&signals, true) {
            self.next = out.now().mono;
            return;
        }
        let usages = match usages {
            Ok(usages) => usages,
            Err(error) => return note_missing_stats(&error, out),
        };
        let all: Vec<Evictable<'_>> =
            evictable(pods).map(|(uid, pod, _)| Evictable { pod, usage: usages.get(uid.as_str()) }).collect();
        let Some((place, message)) = first_to_go(&all, &threshold, seen, images_apart) else { return };
        let Some(pod) = all.get(place).map(|of| of.pod) else { return };
        let asked = pod.spec().termination_grace_period_seconds;
        let most = if threshold.is_hard() { 0 } else { self.max_pod_grace };
        let grace = asked.map_or(most, |asked| asked.min(most));
        let uid = pod.key.uid.clone();
        out.metrics().evictions[threshold.signal as usize].inc();
        self.ending = Some((uid.clone(), out.now().mono));
        self.next = out.now().mono + EVICTION_PERIOD_NEAR;
        out.push(Effect::Evict { uid, message, grace: Seconds(grace), why: EvictedFor::Node });
    }

    /// Records events for the conditions that changed, and passes the conditions to the pods.
    fn set_conditions(&mut self, conditions: Vec<NodeCondition>, out: &mut Effects) {
        for condition in NodeCondition::ALL {
            let (was, is) = (self.reported.contains(&condition), conditions.contains(&condition));
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
            out.note_node(kind, reason, &format!("Node {} status is now: {reason}", out.node_name()));
        }
        self.reported.clone_from(&conditions);
        out.push(Effect::Conditions(conditions));
    }
}

/// Removes the containers of ended pods (`DeleteAllUnusedContainers`). False when none is left to remove.
fn clear_ended<R: Runtime + 'static>(pods: &Pods<R>, out: &mut Effects) -> bool {
    let left_some = |record: &Record| {
        let observed = record.worker().observed();
        record.worker().life() == Life::Ended
            && observed.is_some_and(|observed| !observed.is_empty())
            && !record.worker().is_cleared()
    };
    let mut some = false;
    for (uid, _) in pods.iter().filter(|(_, record)| left_some(record)) {
        out.push(Effect::ClearEnded(uid.clone()));
        some = true;
    }
    some
}

/// The evictable pods: running and not critical.
fn evictable<R: Runtime + 'static>(
    pods: &Pods<R>,
) -> impl Iterator<Item = (&PodUid, &Rc<DesiredPod>, &Rc<ObservedPod>)> {
    pods.iter().filter_map(|(uid, record)| {
        let (pod, observed) = (record.worker().pod()?, record.worker().observed()?);
        let may = record.worker().life() == Life::Syncing
            && !record.is_set_aside()
            && observed.is_alive()
            && !is_critical(pod)
            && !pods.statuses().has_ended(uid);
        may.then_some((uid, pod, observed))
    })
}

/// Records an event: without the runtime's stats no pod can be chosen for eviction.
pub(super) fn note_missing_stats(error: &RuntimeError, out: &Effects) {
    let message = format!("no pod evicted: the runtime reports no container stats: {error}");
    out.note_node(EventKind::Warning, "FailedEviction", &message);
}
