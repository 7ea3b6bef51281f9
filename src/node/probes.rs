//! Probes: which are due, the tasks that run them, and what their answers lead to.
//!
//! ```text
//!     due (all records) ─► the ones due first, of each pod its share ─► at most PROBES_AT_ONCE_MAX tasks ─► Event::Probed ─► status, plan
//! ```
use std::net::Ipv4Addr;

use super::agent::{Agent, Event};
use super::record::{Record, StartFailures};
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::limits::{PROBERS_MAX, PROBES, PROBES_AT_ONCE_MAX};
use crate::model::{ContainerId, DesiredPod, Mono, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::net::Lookups;
use crate::poison;
use crate::probe::handler::Handler;
use crate::probe::prober::ProbeKind;
use crate::probe::run::{Answer, Tools, probe};
use crate::probe::{Place, Probers, has_probe, timeout};
use crate::status::{self, StatusFacts, StatusProbe};
use crate::sync::ProbeResult;
use crate::sync::act::ActContext;

/// The probes that run.
pub(super) struct Probing<R> {
    tools: Tools<R>,
    /// Numbers them.
    asked: u64,
    /// At most `PROBES_AT_ONCE_MAX`.
    running: SortedMap<u64, Running>,
}

struct Running {
    pod: PodUid,
    place: Place,
    container: ContainerId,
    /// Dropping it ends the probe.
    _task: smol::Task<()>,
}

impl<R> Probing<R> {
    pub(super) fn new(ctx: &ActContext<R>) -> Self {
        let tools =
            Tools { runtime: ctx.runtime.clone(), clock: ctx.clock.clone(), lookups: Lookups::default() };
        Self { tools, asked: 0, running: SortedMap::new() }
    }

    /// How many run.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    fn may_begin(&self, pod: &PodUid) -> bool {
        let of_pod = self.running.values().filter(|running| running.pod == *pod).count();
        let pods: SortedSet<&PodUid> = self.running.values().map(|running| &running.pod).collect();
        PROBES.may_begin(of_pod, pods.len(), self.running.len())
    }

    /// The pod is gone, and its probes with it.
    pub(super) fn end(&mut self, pod: &PodUid) {
        self.running.retain(|_, running| running.pod != *pod);
    }
}

/// What the loop knows of a pod beside the runtime's report.
pub(super) struct Facts<'a> {
    pub(super) failures: &'a StartFailures,
    pub(super) probers: &'a Probers,
    pub(super) pod: &'a DesiredPod,
}

impl StatusFacts for Facts<'_> {
    fn start_failure(&self, container: &str) -> Option<(&str, &str)> {
        self.failures.of(container)
    }

    fn probe_result(&self, probe: StatusProbe, container_id: &str) -> Option<bool> {
        self.probers.result(kind(probe), container_id).map(|result| result == ProbeResult::Success)
    }

    // Whether there is room for its prober or not.
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

impl<R: Runtime + 'static> Agent<R> {
    /// Probers of all pods.
    pub(super) fn probers(&self) -> usize {
        self.records.values().map(|record| record.probers.len()).sum()
    }

    /// Makes the probers that the pod wants, when its definition is another one.
    pub(super) fn fit_probers(&mut self, uid: &PodUid) {
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

    /// A pod is gone: others may have had no room for their probers.
    pub(super) fn fit_waiting_probers(&mut self) {
        let waits = |(_, record): &(&PodUid, &Record)| {
            !record.probers.is_fitted() && record.worker.observed().is_some()
        };
        let waiting: Vec<PodUid> = self.records.iter().filter(waits).map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            self.refresh_status(&uid, self.ctx.clock.now());
        }
    }

    /// When the next probe is to run. While as many run as may, of all pods or of one, an answer brings the next turn.
    pub(super) fn probes_due(&self) -> Option<Mono> {
        if self.probing.running.len() >= PROBES_AT_ONCE_MAX {
            return None;
        }
        let may_begin = |(uid, _): &(&PodUid, &Record)| self.probing.may_begin(uid);
        self.probed_records().filter(may_begin).filter_map(|(_, record)| record.probers.due()).min()
    }

    fn probed_records(&self) -> impl Iterator<Item = (&PodUid, &Record)> {
        self.records.iter().filter(|(_, record)| !record.set_aside)
    }

    /// Begins the probes that are due, as many as may run; those that are due first come first.
    pub(super) fn probe_when_due(&mut self, now: Mono) {
        if self.probes_due().is_none_or(|at| at > now) {
            return;
        }
        let due = |(uid, record): (&PodUid, &Record)| {
            let uid = uid.clone();
            record.probers.all_due(now).map(move |(at, place)| (at, uid.clone(), place)).collect::<Vec<_>>()
        };
        let mut due: Vec<(Mono, PodUid, Place)> = self.probed_records().flat_map(due).collect();
        due.sort_by_key(|(at, ..)| *at);
        for (_, uid, place) in due {
            if self.probing.may_begin(&uid) {
                self.start_probe(uid, place, now);
            }
        }
    }

    fn start_probe(&mut self, uid: PodUid, place: Place, now: Mono) {
        let Some(record) = self.records.get_mut(&uid) else { return };
        let _handling = poison::handling(Some(record.mark.clone()));
        let (Some(pod), Some(observed)) = (record.worker.pod(), record.worker.observed()) else { return };
        let Some((container, spec)) = place.find(pod) else { return };
        let pod_ip = status::pod_ip(pod, observed, &self.host_ips);
        // Differs from the kubelet, which finds no address then: a node without one reaches itself all the same.
        let on_node = pod.spec().host_network == Some(true);
        let pod_ip = pod_ip.or(on_node.then_some(Ipv4Addr::LOCALHOST.into()));
        let handler = Handler::of_probe(spec, container, pod_ip);
        let timeout = timeout(spec);
        let Some(asked) = record.probers.ask(place, now) else { return };
        if asked.is_late {
            self.metrics.probes_late.inc();
        }
        self.probing.asked += 1;
        let number = self.probing.asked;
        let (tools, events, id) =
            (self.probing.tools.of_pod(&uid), self.events.clone(), asked.container.clone());
        let task = async move {
            let answer = match handler {
                Ok(handler) => probe(&tools, &id, &handler, timeout).await,
                Err(error) => Err(error),
            };
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Probed(number, answer)).await;
        };
        let task = self.executor.spawn("probe", poison::scoped(record.mark.clone(), task));
        let running = Running { pod: uid, place, container: asked.container, _task: task };
        self.probing.running.insert(number, running);
    }

    /// A probe has ended (prober `probe`).
    pub(super) fn probed(&mut self, number: u64, answer: Result<Answer, String>) {
        let Some(Running { pod: uid, place, container, .. }) = self.probing.running.remove(&number) else {
            return;
        };
        let Some(record) = self.records.get_mut(&uid) else { return };
        let _handling = poison::handling(Some(record.mark.clone()));
        let kind = place.kind();
        let pod = record.worker.pod();
        let probed =
            pod.and_then(|pod| place.find(pod)).map(|(container, _)| (place.list(), &*container.name));
        let about = About { pod: record.worker.key(), container: probed };
        let note = |reason: &'static str, message: String| {
            self.ctx.note(about, EventKind::Warning, reason, &message);
        };
        let kind_name = kind.as_str();
        let result = match answer {
            Ok(Answer::Success) => Some(ProbeResult::Success),
            Ok(Answer::Warning(words)) => {
                note("ProbeWarning", format!("{kind_name} probe warning: {words}"));
                Some(ProbeResult::Success)
            }
            Ok(Answer::Failure(words)) => {
                note("Unhealthy", format!("{kind_name} probe failed: {words}"));
                Some(ProbeResult::Failure)
            }
            Err(error) => {
                note(
                    "Unhealthy",
                    format!("{kind_name} probe errored and resulted in unknown state: {error}"),
                );
                None
            }
        };
        self.metrics.probe(kind, result);
        if record.probers.answered(place, &container, result) {
            record.worker.probed();
            self.refresh_status(&uid, self.ctx.clock.now());
            self.drive(&uid);
        }
    }
}
