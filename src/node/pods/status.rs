//! The pods' statuses (status manager), their probers, and the logs of running containers.

use std::net::IpAddr;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::Pods;
use super::record::{Record, StartFailures};
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::{PROBERS_MAX, STATUS_PASSES_MAX};
use crate::logs::rotate::RunningLog;
use crate::model::{
    ContainerState, ContainerStatus as Observed, DesiredPod, Now, ObservedPod, PodUid, SortedSet,
};
use crate::node::effects::Effects;
use crate::poison;
use crate::probe::prober::ProbeKind;
use crate::probe::{Probers, has_probe};
use crate::render::paths;
use crate::status::restarts::count_lost_again;
use crate::status::{self, StatusFacts, StatusInput, StatusProbe, merge};
use crate::sync::ProbeResult;
use crate::sync::worker::Life;

/// Facts about a pod that the runtime does not report.
pub(in crate::node) struct PodFacts<'a> {
    failures: &'a StartFailures,
    probers: &'a Probers,
    pod: &'a DesiredPod,
}

impl StatusFacts for PodFacts<'_> {
    fn start_failure(&self, container: &str) -> Option<(&str, &str)> {
        self.failures.of(container)
    }

    fn probe_result(&self, probe: StatusProbe, container_id: &str) -> Option<bool> {
        self.probers.result(kind(probe), container_id).map(|result| result == ProbeResult::Success)
    }

    // True even if there was no room for its prober.
    fn probe_worker(&self, probe: StatusProbe, container: &str) -> bool {
        has_probe(self.pod, kind(probe), container)
    }
}

fn kind(probe: StatusProbe) -> ProbeKind {
    match probe {
        StatusProbe::Readiness => ProbeKind::Readiness,
        StatusProbe::Startup => ProbeKind::Startup,
    }
}

impl<R: Runtime + 'static> Pods<R> {
    /// Computes the pod's status from the last observation. A status depends on the previous one (a sidecar's `started` decides
    /// the phase), and nothing may compute it again for a long time: so it is computed until it no longer changes. The kubelet
    /// reaches the same status with its next syncs.
    pub(in crate::node) fn refresh_status(&mut self, uid: &PodUid, now: Now) {
        let _handling = self.records.get(uid).map(|record| poison::handling(Some(record.mark.clone())));
        for _ in 0..STATUS_PASSES_MAX {
            if !self.status_pass(uid, now) {
                return;
            }
        }
    }

    /// True when the status changed.
    fn status_pass(&mut self, uid: &PodUid, now: Now) -> bool {
        self.fit_probers(uid);
        let Some(record) = self.records.get_mut(uid) else { return false };
        let Some(pod) = record.worker.pod().cloned() else { return false };
        let nothing = ObservedPod::default();
        let observed = record.worker.observed().cloned();
        if observed.is_none() && record.restored {
            // The pod was not read yet: an empty observation would count as the end of its containers.
            return false;
        }
        let previous = self.statuses.status(uid);
        record.update_probers(previous.as_ref(), now);
        let is_terminal = !matches!(record.worker.life(), Life::Waiting | Life::Syncing);
        let resizing = record.resizing.iter().filter(|_| !is_terminal);
        let resizes: Vec<PodCondition> = resizing.flat_map(|of| of.conditions().cloned()).collect();
        let input = StatusInput {
            pod: &pod.pod,
            observed: observed.as_deref().unwrap_or(&nothing),
            previous: previous.as_ref(),
            facts: &PodFacts { failures: &record.failures, probers: &record.probers, pod: &pod },
            is_terminal,
            resizes: &resizes,
            active_for: record.active_since.map(|since| now.mono.since(since)),
            pod_cgroup: None,
            agent_start: self.started,
            host_ips: &self.host_ips,
            ipv6_first: self.host_ips.first().is_some_and(IpAddr::is_ipv6),
            runtime_name: &self.runtime_name,
            recursive_read_only: self.ctx.mounts_recursively_read_only(&pod),
        };
        let mut fresh = status::pod_status(&input);
        if let Some(previous) = &previous {
            count_lost_again(previous, &mut fresh);
        }
        let updated = merge::update(&pod.pod, previous.as_ref(), fresh, now.wall);
        if let Some(error) = record.note_aborted(updated.as_ref().err()) {
            log::warn!(
                "pod {}: status update aborted: {error}; its last status is shown until the container has ended again \
                 (somebody else ended the pod's sandbox or its containers?)",
                pod.key
            );
        }
        match updated {
            Ok(None) | Err(_) => false,
            Ok(Some(status)) => {
                let is_running = |status: &PodStatus| status.phase.as_deref() == Some("Running");
                if is_running(&status)
                    && !previous.as_ref().is_some_and(is_running)
                    && let Some(since) = record.wanted_since.take()
                {
                    self.metrics.pod_starts.add(now.mono.since(since));
                }
                if status.start_time.is_some() {
                    record.active_since.get_or_insert(now.mono);
                }
                self.metrics.terminations.note(previous.as_ref(), &status);
                let (before, is_new) = (self.statuses.usage().refused, self.statuses.put(uid, status));
                if before == 0 && self.statuses.usage().refused > 0 {
                    log::warn!(
                        "pod {}: the status store is full, its status is not shown as it is; give it more with \
                         --status-store-bytes (said once; smolet_statuses_short_total counts)",
                        pod.key
                    );
                }
                is_new
            }
        }
    }

    /// What others have set in the statuses of pods with readiness gates may be other than it was: their status is, too
    /// (`HandlePodReconcile`).
    pub(in crate::node) fn update_readiness_gates(&mut self) {
        let now = self.ctx.manager.clock.now();
        let mut changed = Vec::new();
        for entry in self.desired.entries() {
            let pod = &entry.wanted.pod;
            if pod.spec().readiness_gates.is_none() {
                continue;
            }
            let Some(record) = self.records.get_mut(&pod.key.uid) else { continue };
            let known = record.worker.pod().map(|known| known.pod.conditions()).unwrap_or_default();
            if known != pod.pod.conditions() {
                record.worker.replace_pod(Rc::new(record.with_allocated_sizes(pod.clone())));
                changed.push(pod.key.uid.clone());
            }
        }
        for uid in changed {
            self.refresh_status(&uid, now);
        }
    }

    /// Pods that others have set to Succeeded or Failed in the API, and that are kept here, end for good: their containers are
    /// killed, and phase, reason and message stay as they are there (`podWorkers.UpdatePod`, `generateAPIPodStatus`).
    pub(in crate::node) fn end_terminal(&mut self, over: &SortedSet<PodUid>, out: &mut Effects) {
        let now = self.ctx.manager.clock.now();
        for uid in over {
            if self.statuses.has_ended(uid) {
                continue;
            }
            let Some(entry) = self.desired.pod(uid) else { continue };
            let Some(record) = self.records.get_mut(uid) else { continue };
            if record.set_aside || !matches!(record.worker.life(), Life::Waiting | Life::Syncing) {
                continue;
            }
            let pod = record.with_allocated_sizes(entry.wanted.pod.clone());
            let status = pod.pod.status.as_ref();
            let (phase, reason) =
                (status.and_then(|of| of.phase.as_deref()), status.and_then(|of| of.reason.as_deref()));
            log::info!(
                "pod {}: phase set to {} ({}) in the API; terminating it",
                pod.key,
                phase.unwrap_or_default(),
                reason.unwrap_or("no reason")
            );
            record.worker.replace_pod(Rc::new(pod));
            record.cut_off_act();
            self.refresh_status(uid, now);
            if let Some(record) = self.records.get_mut(uid) {
                record.worker.name_is_free();
                record.worker.finished();
            }
            out.drive(uid);
        }
    }

    pub(super) fn show_ended(&mut self, uid: &PodUid, now: Now) {
        let Some(pod) = self.records.get(uid).and_then(|record| record.worker.pod().cloned()) else {
            return;
        };
        if let Ok(status) = merge::terminate(&pod.pod, self.statuses.status(uid).as_ref(), now.wall) {
            self.statuses.put(uid, status);
        }
    }

    /// Number of probers of all pods.
    pub(in crate::node) fn probers(&self) -> usize {
        self.records.values().map(|record| record.probers.len()).sum()
    }

    /// Makes the probers that the pod wants, when its definition is another one.
    pub(in crate::node) fn fit_probers(&mut self, uid: &PodUid) {
        if self.records.get(uid).is_none_or(|record| record.probers.is_fitted()) {
            return;
        }
        let others = self.records.iter().filter(|(of, _)| *of != uid).map(|(_, record)| record.probers.len());
        let room = PROBERS_MAX.saturating_sub(others.sum());
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(pod) = record.worker.pod() else { return };
        if record.probers.fit(pod, room).is_err() {
            let message = format!("its containers are not probed: there are {PROBERS_MAX} probes already");
            self.ctx.note(&pod.key, EventKind::Warning, "ProbesNotRun", &message);
        }
    }

    /// A pod was removed: creates probers of other pods that had no room before.
    pub(in crate::node) fn fit_waiting_probers(&mut self) {
        let waits = |(_, record): &(&PodUid, &Record)| {
            !record.probers.is_fitted() && record.worker.observed().is_some()
        };
        let waiting: Vec<PodUid> = self.records.iter().filter(waits).map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            self.refresh_status(&uid, self.ctx.manager.clock.now());
        }
    }

    /// The pod's running containers, and the paths of their logs.
    pub(in crate::node) fn report_running_logs(&self, uid: &PodUid) {
        let observed = self.records.get(uid).and_then(|record| Some((record, record.worker.observed()?)));
        let running = observed.into_iter().flat_map(|(record, observed)| {
            let runs =
                observed.containers.iter().filter(|container| container.state == ContainerState::Running);
            // A name that leads to another directory was not created by this agent.
            runs.filter(|container| !container.name.contains('/') && !container.name.starts_with('.')).map(
                |container| RunningLog {
                    id: container.id.clone(),
                    path: self.log_path(record, container).into(),
                },
            )
        });
        self.logs.report(uid, running.collect());
    }

    pub(in crate::node) fn log_path(&self, record: &Record, container: &Observed) -> String {
        let logs = paths::pod_logs_dir(&self.ctx.node, record.worker.key());
        let log = paths::container_log_path(&container.name, container.meta.restart_count);
        format!("{logs}/{log}")
    }
}
