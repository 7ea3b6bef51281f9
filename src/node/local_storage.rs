//! Evicts pods that exceed their own limits on local storage (`localStorageEviction`): the `sizeLimit` of an emptyDir, limits
//! on `ephemeral-storage`.
//!
//! Measured every [`VOLUME_USAGE_PERIOD`], all pods in one task; without such a limit on the node there is no wakeup.

use std::path::PathBuf;

use super::agent::Event;
use super::effects::{Effect, Effects};
use super::eviction::note_missing_stats;
use super::node_stats::{self, Measured};
use super::pods::Record;
use super::pods::{EvictedFor, Pods};
use crate::cri::{Runtime, RuntimeResult};
use crate::eviction::local::{OwnLimit, broken, is_limited};
use crate::eviction::pods::PodUsage;
use crate::limits::VOLUME_USAGE_PERIOD;
use crate::model::SortedMap;
use crate::model::{Mono, PodUid, Seconds};
use crate::render::paths;
use crate::volume::usage::{Limited, Measurement, limited};

/// The schedule of the measurements.
pub(super) struct LocalStorage {
    meminfo: PathBuf,
    /// Earliest time of the next measurement.
    next: Mono,
    in_flight: bool,
    /// Of emptyDirs, that goes on the next time.
    unfinished: Measurement,
    /// Images have a disk of their own; `None` = not known yet. Asked once (`dedicatedImageFs`).
    images_apart: Option<bool>,
    /// The failure of the runtime's stats was logged.
    stats_failure_logged: bool,
}

/// The measured usage of the pods that have limits of their own.
pub(super) struct LocalStorageUsage {
    /// Pods with an emptyDir above its limit, and the message.
    outgrown: Vec<(String, String)>,
    /// Usage of the pods that have limits on `ephemeral-storage`, by UID.
    usages: RuntimeResult<SortedMap<String, PodUsage>>,
    unfinished: Measurement,
    images_apart: Option<bool>,
}

impl LocalStorage {
    pub(super) fn new(meminfo: PathBuf, now: Mono) -> Self {
        let unfinished = Measurement::default();
        Self {
            meminfo,
            next: now + VOLUME_USAGE_PERIOD,
            in_flight: false,
            unfinished,
            images_apart: None,
            stats_failure_logged: false,
        }
    }

    /// When to measure next; `None` = no pod has a limit, or a measurement is in flight.
    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>) -> Option<Mono> {
        let wanted = !self.in_flight && limited_pods(pods).next().is_some();
        wanted.then_some(self.next)
    }

    /// Measures all pods when that is due.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        match self.due(pods) {
            Some(at) if at <= now => {}
            Some(_) => return,
            None => return self.unfinished.clear(),
        }
        let ctx = pods.ctx().clone();
        let (mut volumes, mut measured): (Vec<(String, Vec<Limited>)>, Vec<Measured>) = Default::default();
        for record in limited_pods(pods) {
            let Some(pod) = record.worker().pod() else { continue };
            let of_pod = limited(pod, &paths::pod_dir(&ctx.node, &pod.key));
            if !of_pod.is_empty() {
                volumes.push((pod.key.uid.to_string(), of_pod));
            }
            let observed =
                record.worker().observed().filter(|observed| observed.is_alive() && is_limited(pod));
            measured.extend(observed.map(|observed| Measured::new(&ctx.node, pod, observed, true)));
        }
        self.next = now + VOLUME_USAGE_PERIOD;
        self.in_flight = true;
        let (meminfo, mut images_apart) = (self.meminfo.clone(), self.images_apart);
        let mut unfinished = std::mem::take(&mut self.unfinished);
        let task = async move {
            let outgrown = move || (unfinished.run(volumes), unfinished);
            // A large volume takes long, and holds up nothing else. Mounts that a container made in it are not counted.
            let (outgrown, unfinished) =
                ctx.manager.blocking.run_alone(outgrown).await.unwrap_or_else(|error| {
                    log::warn!("measuring emptyDir volumes with a sizeLimit failed: {error}");
                    Default::default()
                });
            let mut usages = Ok(SortedMap::new());
            if !measured.is_empty() {
                if images_apart.is_none() {
                    let seen = node_stats::observe(&ctx, meminfo, false, None).await;
                    images_apart = seen.images_at.map(|_| seen.images_apart);
                }
                usages = node_stats::measure(&ctx, measured, None).await;
            }
            Event::Measured(Box::new(LocalStorageUsage { outgrown, usages, unfinished, images_apart }))
        };
        out.start("local storage usage", task);
    }

    /// Checks the limits in the kubelet's order: the emptyDirs, the pod as a whole, its containers.
    pub(super) fn take<R: Runtime + 'static>(
        &mut self,
        found: LocalStorageUsage,
        pods: &Pods<R>,
        out: &mut Effects,
    ) {
        let LocalStorageUsage { outgrown, usages, unfinished, images_apart } = found;
        self.in_flight = false;
        self.unfinished = unfinished;
        self.images_apart = images_apart;
        self.stats_failure_logged &= usages.is_err();
        let mut broke: Vec<(PodUid, OwnLimit, String)> = outgrown
            .into_iter()
            .map(|(uid, message)| (PodUid::from(uid.as_str()), OwnLimit::EmptyDir, message))
            .collect();
        match usages {
            Ok(usages) => broke.extend(usages.iter().filter_map(|(uid, usage)| {
                let uid = PodUid::from(uid.as_str());
                let (limit, message) = broken(pods.get(&uid)?.worker().pod()?, usage, images_apart)?;
                Some((uid, limit, message))
            })),
            Err(error) if std::mem::replace(&mut self.stats_failure_logged, true) => {
                log::debug!("limits on ephemeral-storage: {error}");
            }
            Err(error) => note_missing_stats(&error, out),
        }
        for (uid, limit, message) in broke {
            out.push(Effect::Evict { uid, message, grace: Seconds(0), why: EvictedFor::Limit(limit) });
        }
    }
}

/// The pods that have limits of their own.
fn limited_pods<R: Runtime + 'static>(pods: &Pods<R>) -> impl Iterator<Item = &Record> {
    let limited =
        |(uid, record): &(&PodUid, &Record)| record.limits_disk() && !pods.statuses().has_ended(uid);
    pods.iter().filter(limited).map(|(_, record)| record)
}
