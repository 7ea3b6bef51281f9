//! Pods that break a limit of their own on the node's disk are ended (`localStorageEviction`): the `sizeLimit` of an
//! emptyDir, limits on `ephemeral-storage`.
//!
//! Looked at every [`VOLUME_USAGE_PERIOD`], all pods in one task; with no such limit on the node nothing wakes up.

use crate::cri::{Runtime, RuntimeResult};
use crate::events::EventKind;
use crate::eviction::local::{OwnLimit, broken, is_limited};
use crate::eviction::pods::PodUsage;
use crate::limits::VOLUME_USAGE_PERIOD;
use crate::model::SortedMap;
use crate::model::{Mono, PodUid, Seconds};
use crate::render::paths;
use crate::status;
use crate::volume::usage::{Limited, Measurement, limited};

use super::agent::{Agent, Event};
use super::observe::{self, Measured};

/// When pods with limits of their own are measured.
pub(super) struct Measuring {
    /// Not before.
    next: Mono,
    in_flight: bool,
    /// Of emptyDirs, that goes on the next time.
    unfinished: Measurement,
    /// Images have a disk of their own; `None` = not known yet. Asked once (`dedicatedImageFs`).
    images_apart: Option<bool>,
    /// It was said that the runtime does not tell what containers use.
    is_untold: bool,
}

/// What was found of the pods that have limits of their own.
pub(super) struct HeldToLimits {
    /// Those with an emptyDir that has outgrown its limit, and the message.
    outgrown: Vec<(String, String)>,
    /// What those use that have limits on `ephemeral-storage`, by UID.
    usages: RuntimeResult<SortedMap<String, PodUsage>>,
    unfinished: Measurement,
    images_apart: Option<bool>,
}

impl Measuring {
    pub(super) fn new(now: Mono) -> Self {
        let unfinished = Measurement::default();
        Self {
            next: now + VOLUME_USAGE_PERIOD,
            in_flight: false,
            unfinished,
            images_apart: None,
            is_untold: false,
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// The pods to be held to limits of their own.
    fn limited_pods(&self) -> impl Iterator<Item = &super::record::Record> {
        let limited = |(uid, record): &(&PodUid, &super::record::Record)| {
            record.limits_disk && !self.statuses.has_ended(uid)
        };
        self.records.iter().filter(limited).map(|(_, record)| record)
    }

    pub(super) fn measuring_due(&self) -> Option<Mono> {
        let wanted = !self.measuring.in_flight && self.limited_pods().next().is_some();
        wanted.then_some(self.measuring.next)
    }

    pub(super) fn measure_when_due(&mut self, now: Mono) {
        match self.measuring_due() {
            Some(at) if at <= now => {}
            Some(_) => return,
            None => return self.measuring.unfinished.clear(),
        }
        let (mut pods, mut measured): (Vec<(String, Vec<Limited>)>, Vec<Measured>) = Default::default();
        for record in self.limited_pods() {
            let Some(pod) = record.worker.pod() else { continue };
            let volumes = limited(pod, &paths::pod_dir(&self.ctx.node, &pod.key));
            if !volumes.is_empty() {
                pods.push((pod.key.uid.to_string(), volumes));
            }
            let observed = record.worker.observed().filter(|observed| observed.is_alive() && is_limited(pod));
            measured.extend(observed.map(|observed| Measured::new(&self.ctx.node, pod, observed, true)));
        }
        self.measuring.next = now + VOLUME_USAGE_PERIOD;
        self.measuring.in_flight = true;
        let (ctx, events) = (self.ctx.clone(), self.events.clone());
        let (meminfo, mut images_apart) = (self.watching.meminfo.clone(), self.measuring.images_apart);
        let mut unfinished = std::mem::take(&mut self.measuring.unfinished);
        let task = async move {
            let outgrown = move || (unfinished.run(pods), unfinished);
            // A large volume takes long, and nothing else waits. What a container mounted in it is not looked at.
            let (outgrown, unfinished) = ctx.blocking.run_alone(outgrown).await.unwrap_or_else(|error| {
                log::warn!("no emptyDir with a sizeLimit was measured: {error}");
                Default::default()
            });
            let mut usages = Ok(SortedMap::new());
            if !measured.is_empty() {
                if images_apart.is_none() {
                    let seen = observe::observe(&ctx, meminfo, false, None).await;
                    images_apart = seen.images_at.map(|_| seen.images_apart);
                }
                usages = observe::measure(&ctx, measured, None).await;
            }
            let found = Box::new(HeldToLimits { outgrown, usages, unfinished, images_apart });
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Measured(found)).await;
        };
        self.executor.spawn("local storage usage", task).detach();
    }

    /// In the kubelet's order: the emptyDirs, the pod as a whole, its containers.
    pub(super) fn measured(&mut self, found: HeldToLimits) {
        let HeldToLimits { outgrown, usages, unfinished, images_apart } = found;
        self.measuring.in_flight = false;
        self.measuring.unfinished = unfinished;
        self.measuring.images_apart = images_apart;
        self.measuring.is_untold &= usages.is_err();
        let mut broke: Vec<(PodUid, OwnLimit, String)> = outgrown
            .into_iter()
            .map(|(uid, message)| (PodUid::from(uid.as_str()), OwnLimit::EmptyDir, message))
            .collect();
        match usages {
            Ok(usages) => broke.extend(usages.iter().filter_map(|(uid, usage)| {
                let uid = PodUid::from(uid.as_str());
                let (limit, message) = broken(self.records.get(&uid)?.worker.pod()?, usage, images_apart)?;
                Some((uid, limit, message))
            })),
            Err(error) if std::mem::replace(&mut self.measuring.is_untold, true) => {
                log::debug!("limits on ephemeral-storage: {error}");
            }
            Err(error) => self.note_untold(&error),
        }
        for (uid, limit, message) in broke {
            if self.evict(&uid, &message, Seconds(0), false) {
                self.metrics.evictions_of_limits[limit as usize].inc();
            }
        }
    }

    /// Ends a pod within that time (`evictPod`), unless it has ended: for good when it broke a limit of its own; else, `for_the_node`, until that
    /// is well again, and then what it had goes at once.
    ///
    /// Differs from the kubelet, which evicts no pod of a manifest: those are critical there. Here all pods are of manifests,
    /// and a limit that ends none of them would be none.
    pub(super) fn evict(&mut self, uid: &PodUid, message: &str, grace: Seconds, for_the_node: bool) -> bool {
        let now = self.ctx.clock.now();
        let Some(record) = self.records.get_mut(uid) else { return false };
        let Some(mut status) = self.statuses.status(uid).filter(|_| !self.statuses.has_ended(uid)) else {
            return false;
        };
        status::eviction::evict(&mut status, message, for_the_node, now.wall);
        record.eviction_grace = grace;
        // An act that starts its containers would go on.
        record.cut_off_act();
        self.ctx.note(record.worker.key(), EventKind::Warning, "Evicted", message);
        self.statuses.put(uid, status);
        // Over a restart too: not with the next write, but now.
        self.saving.waiting.insert(uid.clone());
        self.refresh_status(uid, now);
        if let Some(record) = self.records.get_mut(uid) {
            if for_the_node {
                record.worker.clear_when_ended();
            }
            record.worker.finished();
        }
        self.drive(uid);
        true
    }
}
