//! Pods whose emptyDirs outgrow their `sizeLimit` are ended (eviction manager, `emptyDirLimitEviction`).
//!
//! Looked at every [`VOLUME_USAGE_PERIOD`], all pods in one task; with no such volume on the node nothing wakes up.

use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::VOLUME_USAGE_PERIOD;
use crate::model::{Mono, PodUid, Seconds};
use crate::render::paths;
use crate::status;
use crate::volume::usage::{Limited, limited};

use super::agent::{Agent, Event};

/// When volumes are measured.
pub(super) struct Measuring {
    /// Not before.
    next: Mono,
    in_flight: bool,
}

impl Measuring {
    pub(super) fn new(now: Mono) -> Self {
        Self { next: now + VOLUME_USAGE_PERIOD, in_flight: false }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn measuring_due(&self) -> Option<Mono> {
        let limited = |(uid, record): (&PodUid, &super::record::Record)| {
            record.limits_volumes && !self.statuses.has_ended(uid)
        };
        let wanted = !self.measuring.in_flight && self.records.iter().any(limited);
        wanted.then_some(self.measuring.next)
    }

    pub(super) fn measure_when_due(&mut self, now: Mono) {
        if self.measuring_due().is_none_or(|at| at > now) {
            return;
        }
        self.measuring = Measuring { next: now + VOLUME_USAGE_PERIOD, in_flight: true };
        let of_pod = |(uid, record): (&PodUid, &super::record::Record)| {
            let pod = record.worker.pod().filter(|_| record.limits_volumes)?;
            let volumes = limited(pod, &paths::pod_dir(&self.ctx.node, &pod.key));
            (!self.statuses.has_ended(uid)).then(|| (uid.to_string(), volumes))
        };
        let pods: Vec<(String, Vec<Limited>)> = self.records.iter().filter_map(of_pod).collect();
        let (blocking, events) = (self.ctx.blocking.clone(), self.events.clone());
        let task = async move {
            let outgrown = move || {
                let message = |volumes: Vec<Limited>| volumes.iter().find_map(Limited::outgrown);
                let found = pods.into_iter().filter_map(|(uid, volumes)| Some((uid, message(volumes)?)));
                found.collect::<Vec<_>>()
            };
            // A large volume takes long, and nothing else waits. What a container mounted in it is not looked at.
            let found = blocking.run_alone(outgrown).await;
            let found = found.unwrap_or_else(|error| {
                log::warn!("no emptyDir with a sizeLimit was measured: {error}");
                Vec::new()
            });
            let found =
                found.into_iter().map(|(uid, message)| (PodUid::from(uid.as_str()), message)).collect();
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Measured(found)).await;
        };
        self.executor.spawn(task).detach();
    }

    pub(super) fn measured(&mut self, outgrown: Vec<(PodUid, String)>) {
        self.measuring.in_flight = false;
        for (uid, message) in outgrown {
            self.evict(&uid, &message, Seconds(0), false);
        }
    }

    /// Ends a pod within that time (`evictPod`): for good when it broke a limit of its own; else, `for_the_node`, until that
    /// is well again, and then what it had goes at once.
    ///
    /// Differs from the kubelet, which evicts no pod of a manifest: those are critical there. Here all pods are of manifests,
    /// and a limit that ends none of them would be none.
    pub(super) fn evict(&mut self, uid: &PodUid, message: &str, grace: Seconds, for_the_node: bool) {
        let now = self.ctx.clock.now();
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(mut status) = self.statuses.status(uid).filter(|_| !self.statuses.has_ended(uid)) else {
            return;
        };
        status::eviction::evict(&mut status, message, for_the_node, now.wall);
        record.eviction_grace = grace;
        // An act that starts its containers would go on.
        record.give_up = None;
        (self.ctx.notes)(record.worker.key(), EventKind::Warning, "Evicted", message);
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
    }
}
