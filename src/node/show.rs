//! Answers for the local socket and the verdict of `--once`, read from the loop's state.

use std::borrow::Cow;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{ContainerStatus, PodSpec, PodStatus};

use super::Ending;
use super::agent::Event;
use super::debug::debuggers;
use super::effects::Effects;
use super::pods::Pods;
use super::pods::{Awaited, Record, StartFailures};
use crate::cri::{PullProgress, Runtime};
use crate::image::name::for_runtime;
use crate::limits::{
    BACKOFF_ENTRY_BYTES, BOUNDED, BOUNDS, GRPC_CALLS_MAX, GRPC_WINDOW_CONNECTION_BYTES,
    GRPC_WINDOW_STREAM_BYTES, PROBE_BYTES_MAX, PROBER_BYTES_MAX, RELIST_PODS_MAX, RESIZE_NOTE_BYTES,
    SERVER_BUFFER_BYTES, SERVER_PART_BYTES,
};
use crate::metrics::{Process, Shown, Usage};
use crate::model::{Now, ObservedPod, PodUid, SandboxState, Wall};
use crate::pleg::Relist;
use crate::printers::describe::{Decision, describe};
use crate::printers::style::Style;
use crate::printers::table::{self, PodList, PodsFormat};
use crate::printers::text::{harmless, human_duration};
use crate::server::{Answer, PodCursor, PodsQuestion, Question};
use crate::source;
use crate::sync::worker::Life;

/// The state of a pod, for `--once`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Not started yet.
    Pending,
    /// Running or succeeded; the phase.
    Healthy(&'static str),
    /// Failed, with the reason.
    Failed(String),
}

/// Usage of the bounded collections of the loop's parts, for [`gauges`].
pub(super) struct PartsUse {
    pub(super) images_seen: (usize, usize),
    pub(super) probes: usize,
    pub(super) unknown_events: (usize, usize),
    /// Changes of pods without an event of the runtime.
    pub(super) missed_events: u64,
    /// Changes to another API server of the cluster; `None` = standalone.
    pub(super) server_moves: Option<u64>,
    /// The Node is registered; `None` = standalone.
    pub(super) is_registered: Option<bool>,
    pub(super) of_cluster: Vec<Usage>,
}

/// The current gauges, for `/metrics` and `smolet top --self`.
pub(super) fn gauges<R: Runtime + 'static>(pods: &Pods<R>, out: &Effects, parts: PartsUse) -> Shown {
    let observed = || pods.records().values().filter_map(|record| record.worker().observed());
    let ready = |pod: &&Rc<ObservedPod>| pod.sandboxes.iter().any(|s| s.state == SandboxState::Ready);
    let mut containers = [0; 4];
    for container in observed().flat_map(|pod| &pod.containers) {
        containers[container.state as usize] += 1;
    }
    let (relist, statuses) = (pods.relist(), pods.statuses().usage());
    Shown {
        conditions: pods.conditions().to_vec(),
        running_pods: observed().filter(ready).count(),
        containers,
        missed_events: parts.missed_events,
        foreign_sandboxes: relist.map_or(0, |relist| relist.foreign_sandboxes),
        statuses_short: [
            ("messages_cut", statuses.messages_cut),
            ("bared", statuses.bared),
            ("evicted", statuses.evicted),
            ("refused", statuses.refused),
        ],
        server_moves: parts.server_moves,
        is_registered: parts.is_registered,
        usage: usage(pods, out, parts),
        started: pods.started(),
        process: Process::here(),
    }
}

/// The usage of each of `limits::BOUNDS`, in that order, then of the status store and of the cluster's parts.
fn usage<R: Runtime + 'static>(pods: &Pods<R>, out: &Effects, parts: PartsUse) -> Vec<Usage> {
    let (waits, messages, message_bytes) = pods.manager().images.held();
    let merged = pods.desired().problems();
    let (merged, merged_bytes) = merged.fold((0, 0), |(n, bytes), problem| (n + 1, bytes + problem.bytes()));
    let problems: usize = pods.held().values().map(|held| held.problems).sum();
    let problem_bytes: usize = pods.held().values().map(|held| held.problem_bytes).sum();
    let failures = || pods.records().values().map(Record::failures);
    let awaited = || pods.records().values().flat_map(|record| record.awaited().keys());
    let relist = pods.relist();
    let adopted = pods.identity().adopted();
    let calls = out.metrics().operations.under_way.get().min(GRPC_CALLS_MAX);
    let window = GRPC_WINDOW_STREAM_BYTES as usize;
    let of_files = pods.held().iter().filter(|(source, _)| **source != source::API);
    let used: [(usize, usize); BOUNDED] = [
        (pods.desired().entries().count(), of_files.map(|(_, held)| held.pod_bytes).sum()),
        debuggers(pods),
        (problems + merged, problem_bytes + merged_bytes),
        (out.ring().borrow().len(), out.ring().borrow().bytes()),
        (pods.resizes_noted(), pods.resizes_noted() * RESIZE_NOTE_BYTES),
        (failures().map(StartFailures::len).sum(), failures().map(StartFailures::bytes).sum()),
        (pods.backoff().len(), pods.backoff().len() * BACKOFF_ENTRY_BYTES),
        (waits, waits * BACKOFF_ENTRY_BYTES),
        (messages, message_bytes),
        parts.images_seen,
        (pods.probers(), pods.probers() * PROBER_BYTES_MAX),
        (parts.probes, parts.probes * PROBE_BYTES_MAX),
        (relist.map_or(0, |relist| relist.pods.len()), relist.map_or(0, Relist::bytes)),
        relist.map_or((0, 0), |relist| relist.former.held()),
        (adopted.len(), adopted.iter().map(|uid| size_of::<PodUid>() + uid.as_str().len()).sum()),
        parts.unknown_events,
        (awaited().count(), awaited().map(|id| size_of::<Awaited>() + id.len()).sum()),
        pods.manager().blocking.held(),
        pods.devices_held(),
        pods.logs_held(),
        (out.tasks().queued(), out.tasks().queued() * size_of::<Event>()),
        // Capacity of the buffers; only the kernel and hyper know how full they are.
        (calls, (calls * window).min(GRPC_WINDOW_CONNECTION_BYTES as usize)),
        (out.metrics().connections.get(), out.metrics().connections.get() * SERVER_BUFFER_BYTES),
    ];
    let of = |(bound, (entries, bytes))| Usage::of(bound, entries, bytes);
    let statuses = pods.statuses().usage();
    let mut usage: Vec<Usage> = BOUNDS.iter().zip(used).map(of).collect();
    usage.push(Usage {
        name: "statuses",
        entries: statuses.records,
        entries_max: RELIST_PODS_MAX,
        bytes: statuses.bytes,
        // From the configuration.
        bytes_max: statuses.bytes_max,
    });
    usage.extend(parts.of_cluster);
    usage
}

/// A `v1.PodList`, or the part of it after `after`: whole pods up to `SERVER_PART_BYTES`, at least one. A pod that exists
/// during all parts is listed once; one that is added or removed between two parts may be missing.
pub(super) fn list_pods<R: Runtime + 'static>(pods: &Pods<R>, question: &PodsQuestion) -> Answer {
    let mut text = String::with_capacity(SERVER_PART_BYTES);
    let mut list = match &question.after {
        None => PodList::begin(question.format, &mut text),
        Some(_) => PodList::resume(question.format),
    };
    let mut records = pods.sorted(question.namespace.as_deref()).into_iter().peekable();
    while records
        .next_if(|record| {
            question.after.as_ref().is_some_and(|at| PodCursor::of(record.worker().key()) <= *at)
        })
        .is_some()
    {}
    while let Some(record) = records.next() {
        list.push(&record.shown(pods.statuses()), &mut text);
        if text.len() >= SERVER_PART_BYTES && records.peek().is_some() {
            let after = Some(PodCursor::of(record.worker().key()));
            return Answer::Part(text, Question::Pods(PodsQuestion { after, ..question.clone() }));
        }
    }
    list.end(&mut text);
    Answer::Found(text)
}

pub(super) fn show_pods<R: Runtime + 'static>(pods: &Pods<R>, question: &PodsQuestion, now: Wall) -> String {
    let PodsQuestion { format, namespace, style, .. } = question;
    let records = pods.sorted(namespace.as_deref());
    let mut shown = records.into_iter().map(|record| Cow::Owned(record.shown(pods.statuses())));
    let mut out = table::pods(&mut shown, *format, now, *style);
    if matches!(format, PodsFormat::Table | PodsFormat::Wide) {
        for condition in pods.conditions() {
            out.push_str("\nThe node has ");
            out.push_str(condition.as_str());
            out.push_str(": pods may be evicted, and new pods wait until the pressure is over.\n");
        }
        for (index, problem) in pods.desired().problems().enumerate() {
            if index == 0 {
                out.push_str("\nProblems with the manifests:\n");
            }
            out.push_str(&harmless(&problem.to_string()));
            out.push('\n');
        }
    }
    out
}

pub(super) fn show_pod<R: Runtime + 'static>(
    pods: &Pods<R>,
    out: &Effects,
    name: &str,
    namespace: Option<&str>,
    now: Now,
    style: Style,
) -> Answer {
    let record = match pods.find_record(name, namespace) {
        Ok(record) => record,
        Err(why) => return Answer::NotFound(why),
    };
    let key = record.worker().key();
    let ring = out.ring().borrow();
    let of_pod = ring.iter().filter(|event| event.uid == key.uid.as_str());
    let mut decisions: Vec<Decision<'_>> = of_pod.map(|event| Decision::of(&event, now.mono)).collect();
    let problems: Vec<String> = pods
        .desired()
        .problems()
        .filter(|problem| record.file() == Some(&problem.file))
        .map(ToString::to_string)
        .collect();
    decisions.extend(problems.iter().map(|message| Decision {
        seen: human_duration(0),
        warning: true,
        reason: "InvalidManifest",
        message,
    }));
    decisions.extend(pods.conditions().iter().map(|condition| Decision {
        seen: human_duration(0),
        warning: true,
        reason: condition.as_str(),
        message: "the node has this condition: pods may be evicted, and new pods wait until it is over",
    }));
    let progress = record
        .worker()
        .pod()
        .map_or_else(Vec::new, |pod| pull_messages(pod.spec(), &pods.manager().runtime.pulls()));
    decisions.extend(progress.iter().map(|message| Decision {
        seen: human_duration(0),
        warning: false,
        reason: "Pulling",
        message,
    }));
    Answer::Found(describe(&record.shown(pods.statuses()), &decisions, now.wall, style))
}

/// How far the pulls of a pod's images are.
fn pull_messages(spec: &PodSpec, pulls: &[PullProgress]) -> Vec<String> {
    let volumes =
        spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    let of_containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let of_containers = of_containers.filter_map(|container| container.image.as_deref());
    let of_debuggers = spec.ephemeral_containers.iter().flatten().filter_map(|of| of.image.as_deref());
    let images: Vec<String> = of_containers
        .chain(of_debuggers)
        .chain(volumes)
        .filter_map(|image| for_runtime(image).ok())
        .collect();
    pulls
        .iter()
        .filter(|pull| images.iter().any(|image| **image == *pull.image))
        .map(ToString::to_string)
        .collect()
}

// ---- --once ------------------------------------------------------------------------------------------

/// The state of every pod and the problems of the manifests, once all pods are decided or the deadline is over.
pub(super) fn once_ending<R: Runtime + 'static>(pods: &Pods<R>, patience_is_over: bool) -> Option<Ending> {
    if (!pods.desired().reported() || pods.next_waiting().is_some()) && !patience_is_over {
        return None;
    }
    let (mut lines, mut all_well) = (Vec::new(), true);
    for record in pods.records().values() {
        let status = pods.statuses().status(&record.worker().key().uid);
        let state = match verdict(record, status.as_ref()) {
            Verdict::Pending if !patience_is_over => return None,
            Verdict::Healthy(state) => state.to_owned(),
            Verdict::Pending => {
                all_well = false;
                "does not run yet".to_owned()
            }
            Verdict::Failed(why) => {
                all_well = false;
                why
            }
        };
        lines.push(harmless(&format!("pod {}: {state}", record.worker().key())).into_owned());
    }
    lines.sort();
    for problem in pods.desired().problems() {
        all_well = false;
        lines.push(harmless(&problem.to_string()).into_owned());
    }
    Some(Ending::Once { lines, all_well })
}

/// Waiting reasons that do not clear within moments.
const STUCK: [&str; 10] = [
    "CrashLoopBackOff",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "RegistryUnavailable",
];

fn verdict(record: &Record, status: Option<&PodStatus>) -> Verdict {
    if record.is_set_aside() {
        let why = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
        return Verdict::Failed(format!("is set aside: {why}"));
    }
    // A status from the checkpoint may be outdated until the pod was read from the runtime.
    let Some(status) = status.filter(|_| record.worker().observed().is_some()) else {
        return Verdict::Pending;
    };
    let init = status.init_container_statuses.iter().flatten();
    let app = status.container_statuses.as_deref().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Succeeded") => return Verdict::Healthy("Succeeded"),
        Some("Failed") => {
            let why = status.message.as_deref().or(status.reason.as_deref()).unwrap_or("");
            return Verdict::Failed(format!("Failed {why}").trim_end().to_owned());
        }
        _ => {}
    }
    let stuck = |container: &ContainerStatus| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| STUCK.contains(reason))?;
        let message = waiting.message.as_deref().unwrap_or("");
        Some(format!("container {}: {reason}: {message}", container.name))
    };
    if let Some(why) = init.chain(app).find_map(stuck) {
        return Verdict::Failed(why);
    }
    let runs = |c: &ContainerStatus| {
        c.state.as_ref().is_some_and(|state| {
            state.running.is_some() || state.terminated.as_ref().is_some_and(|t| t.exit_code == 0)
        })
    };
    let wanted = record.worker().pod().map_or(0, |pod| pod.containers().len());
    let all_run = app.len() == wanted && app.iter().all(runs);
    if record.worker().life() == Life::Syncing && status.phase.as_deref() == Some("Running") && all_run {
        return Verdict::Healthy("Running");
    }
    Verdict::Pending
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pulls_of_the_pods_images_are_shown() {
        let spec = json!({
            "initContainers": [{"name": "i", "image": "r.io/init@sha256:aa"}],
            "containers": [{"name": "c", "image": "nginx"}, {"name": "d"}],
            "volumes": [{"name": "v", "image": {"reference": "r.io/data:2"}}, {"name": "e", "emptyDir": {}}],
        });
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let pull = |image: &str| PullProgress { image: image.into(), ..PullProgress::default() };
        let pulls = ["r.io/data:2", "nginx:latest", "nginx:1", "redis:latest"].map(pull);
        assert_eq!(
            pull_messages(&spec, &pulls),
            ["image r.io/data:2: reading its manifest", "image nginx:latest: reading its manifest"]
        );
    }
}
