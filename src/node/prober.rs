//! The prober: starts the probes that are due, each as a task, and applies their results.
//!
//! ```text
//!     due probes of all pods ─► the earliest first, each pod within its share ─► at most PROBES_AT_ONCE_MAX tasks
//!                            ─► Event::Probed ─► status, plan
//! ```

use super::agent::Event;
use super::effects::{Effect, Effects};
use super::pods::Record;
use super::pods::{AskedProbe, Pods};
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::limits::{PROBES, PROBES_AT_ONCE_MAX};
use crate::model::{ContainerId, Mono, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::net::Lookups;
use crate::poison;
use crate::probe::ProbeKey;
use crate::probe::run::{Answer, Tools, probe};
use crate::sync::ProbeResult;
use crate::sync::act::ActContext;

/// The running probes (kubelet `prober`).
pub(super) struct Prober<R> {
    tools: Tools<R>,
    /// The number of the last probe.
    asked: u64,
    /// At most `PROBES_AT_ONCE_MAX`.
    running: SortedMap<u64, Running>,
}

struct Running {
    pod: PodUid,
    place: ProbeKey,
    /// The probed container and the task, which dropping cancels; `None` = not started yet.
    task: Option<(ContainerId, smol::Task<()>)>,
}

impl<R: Runtime + 'static> Prober<R> {
    pub(super) fn new(ctx: &ActContext<R>) -> Self {
        let tools = Tools {
            runtime: ctx.manager.runtime.clone(),
            clock: ctx.manager.clock.clone(),
            lookups: Lookups::default(),
        };
        Self { tools, asked: 0, running: SortedMap::new() }
    }

    /// Number of running probes.
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    fn may_begin(&self, pod: &PodUid) -> bool {
        let of_pod = self.running.values().filter(|running| running.pod == *pod).count();
        let pods: SortedSet<&PodUid> = self.running.values().map(|running| &running.pod).collect();
        PROBES.may_begin(of_pod, pods.len(), self.running.len())
    }

    /// Cancels the probes of a removed pod.
    pub(super) fn end(&mut self, pod: &PodUid) {
        self.running.retain(|_, running| running.pod != *pod);
    }

    /// When the next probe is due. At the limit of all pods or of one pod, the next result starts the next turn.
    pub(super) fn due(&self, pods: &Pods<R>) -> Option<Mono> {
        if self.running.len() >= PROBES_AT_ONCE_MAX {
            return None;
        }
        let may_begin = |(uid, _): &(&PodUid, &Record)| self.may_begin(uid);
        probed(pods).filter(may_begin).filter_map(|(_, record)| record.probers().due()).min()
    }

    /// Requests the probes that are due, the earliest first, within the limits.
    pub(super) fn turn(&mut self, pods: &Pods<R>, now: Mono, out: &mut Effects) {
        if self.due(pods).is_none_or(|at| at > now) {
            return;
        }
        let due = |(uid, record): (&PodUid, &Record)| {
            let uid = uid.clone();
            record.probers().all_due(now).map(move |(at, place)| (at, uid.clone(), place)).collect::<Vec<_>>()
        };
        let mut due: Vec<(Mono, PodUid, ProbeKey)> = probed(pods).flat_map(due).collect();
        due.sort_by_key(|(at, ..)| *at);
        for (_, pod, place) in due {
            if self.may_begin(&pod) && pods.can_be_probed(&pod, place) {
                self.asked += 1;
                out.push(Effect::Probe(self.asked, pod.clone(), place));
                self.running.insert(self.asked, Running { pod, place, task: None });
            }
        }
    }

    /// Starts the probe with that number; `None` = its container no longer exists.
    pub(super) fn begin(&mut self, number: u64, asked: Option<AskedProbe>, out: &Effects) {
        let Some(running) = self.running.get_mut(&number) else { return };
        let Some(AskedProbe { container, handler, timeout, mark }) = asked else {
            self.running.remove(&number);
            return;
        };
        let (tools, id) = (self.tools.of_pod(&running.pod), container.clone());
        let task = async move {
            let answer = match handler {
                Ok(handler) => probe(&tools, &id, &handler, timeout).await,
                Err(error) => Err(error),
            };
            Event::Probed(number, answer)
        };
        running.task = Some((container, out.keep("probe", poison::scoped(mark, task))));
    }

    /// A probe ended: records its event and passes on its result (`prober.probe`).
    pub(super) fn take(
        &mut self,
        number: u64,
        answer: Result<Answer, String>,
        pods: &Pods<R>,
        out: &mut Effects,
    ) {
        let Some(Running { pod: uid, place, task: Some((container, _)) }) = self.running.remove(&number)
        else {
            return;
        };
        let Some(record) = pods.get(&uid) else { return };
        let _handling = poison::handling(Some(record.mark().clone()));
        let kind = place.kind();
        let pod = record.worker().pod();
        let probed =
            pod.and_then(|pod| place.find(pod)).map(|(container, _)| (place.list(), &*container.name));
        let about = About { pod: record.worker().key(), container: probed };
        let note = |reason: &'static str, message: String| {
            pods.ctx().note(about, EventKind::Warning, reason, &message);
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
        out.metrics().probe(kind, result);
        out.push(Effect::Probed(uid, place, container, result));
    }
}

fn probed<R: Runtime + 'static>(pods: &Pods<R>) -> impl Iterator<Item = (&PodUid, &Record)> {
    pods.iter().filter(|(_, record)| !record.is_set_aside())
}
