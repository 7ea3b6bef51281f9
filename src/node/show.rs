//! Answers for the local socket and the verdict of `--once`, read from the loop's state.

use std::borrow::Cow;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::Ending;
use super::agent::{Agent, Event};
use super::record::{Awaited, Record, StartFailures};
use crate::cri::Runtime;
use crate::limits::{
    BACKOFF_ENTRY_BYTES, BOUNDED, BOUNDS, GRPC_CALLS_MAX, GRPC_WINDOW_CONNECTION_BYTES,
    GRPC_WINDOW_STREAM_BYTES, PROBE_BYTES_MAX, PROBER_BYTES_MAX, RELIST_PODS_MAX, RESIZE_NOTE_BYTES,
    SERVER_BUFFER_BYTES, SERVER_PART_BYTES,
};
use crate::metrics::{self, Process, Shown, Usage};
use crate::model::{Now, ObservedPod, PodUid, SandboxState, Wall};
use crate::pleg::Relist;
use crate::printers::describe::{Decision, describe};
use crate::printers::style::Style;
use crate::printers::table::{self, PodList, PodsFormat};
use crate::printers::text::{harmless, human_duration};
use crate::server::{Answer, Place, PodsQuestion, Query, Question};
use crate::source;
use crate::sync::worker::Life;

/// What became of a pod, for `--once`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Not clear yet.
    Coming,
    /// Runs, or has run to its end.
    Well(&'static str),
    /// Has failed, with the reason.
    Failed(String),
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn answer(&mut self, query: &Query) {
        let now = self.ctx.clock.now();
        let answer = match &query.question {
            Question::Health => Answer::Found("ok".to_owned()),
            Question::Metrics => Answer::Found(metrics::text(&self.metrics, &self.gauges())),
            Question::Top => Answer::Found(metrics::top(&self.gauges())),
            Question::TopPods(question) => self.top_pods(question),
            Question::Pods(question) if question.format.is_list() => self.list_pods(question),
            Question::Pods(question) => Answer::Found(self.show_pods(question, now.wall)),
            Question::Describe { name, namespace, style } => {
                self.show_pod(name, namespace.as_deref(), now, *style)
            }
            Question::Logs { name, namespace } => self.show_logs(name, namespace.as_deref()),
            Question::Stream(question) => self.stream(question),
            Question::Debug(question) => self.debug(question),
            Question::Events(question) => self.show_events(question),
            Question::EventAfter(revision) => self.await_event(*revision),
            #[cfg(feature = "tls")]
            Question::Node(question) => self.node_question(question),
        };
        // Full or closed: the client has hung up, or was answered already.
        let _ = query.answer.try_send(answer);
    }

    /// What the state holds at the moment, for `/metrics` and `smolet top --self`.
    fn gauges(&self) -> Shown {
        let observed = || self.records.values().filter_map(|record| record.worker.observed());
        let ready = |pod: &&Rc<ObservedPod>| pod.sandboxes.iter().any(|s| s.state == SandboxState::Ready);
        let mut containers = [0; 4];
        for container in observed().flat_map(|pod| &pod.containers) {
            containers[container.state as usize] += 1;
        }
        let (relist, statuses) = (self.relist.as_ref(), self.statuses.usage());
        Shown {
            conditions: self.watching.conditions().to_vec(),
            running_pods: observed().filter(ready).count(),
            containers,
            missed_events: self.runtime_events.watch.missed(),
            foreign_sandboxes: relist.map_or(0, |relist| relist.foreign_sandboxes),
            statuses_short: [
                ("messages_cut", statuses.messages_cut),
                ("bared", statuses.bared),
                ("evicted", statuses.evicted),
                ("refused", statuses.refused),
            ],
            server_moves: self.server_moves(),
            usage: self.usage(),
            started: self.started,
            process: Process::here(),
        }
    }

    /// The use of each of `limits::BOUNDS`, in that order, of the status store, and of what a node of a cluster holds.
    fn usage(&self) -> Vec<Usage> {
        let (waits, messages, message_bytes) = self.ctx.images.held();
        let merged = self.desired.problems();
        let (merged, merged_bytes) =
            merged.fold((0, 0), |(n, bytes), problem| (n + 1, bytes + problem.bytes()));
        let problems: usize = self.held.values().map(|held| held.problems).sum();
        let problem_bytes: usize = self.held.values().map(|held| held.problem_bytes).sum();
        let failures = || self.records.values().map(|record| &record.failures);
        let awaited = || self.records.values().flat_map(|record| record.awaited.keys());
        let relist = self.relist.as_ref();
        let adopted = self.identity.adopted();
        let calls = self.metrics.operations.under_way.get().min(GRPC_CALLS_MAX);
        let window = GRPC_WINDOW_STREAM_BYTES as usize;
        let of_files = self.held.iter().filter(|(source, _)| **source != source::API);
        let used: [(usize, usize); BOUNDED] = [
            (self.desired.entries().count(), of_files.map(|(_, held)| held.pod_bytes).sum()),
            self.debuggers(),
            (problems + merged, problem_bytes + merged_bytes),
            (self.ring.borrow().len(), self.ring.borrow().bytes()),
            (self.resizes_noted(), self.resizes_noted() * RESIZE_NOTE_BYTES),
            (failures().map(StartFailures::len).sum(), failures().map(StartFailures::bytes).sum()),
            (self.backoff.len(), self.backoff.len() * BACKOFF_ENTRY_BYTES),
            (waits, waits * BACKOFF_ENTRY_BYTES),
            (messages, message_bytes),
            self.images_seen.held(),
            (self.probers(), self.probers() * PROBER_BYTES_MAX),
            (self.probing.len(), self.probing.len() * PROBE_BYTES_MAX),
            (relist.map_or(0, |relist| relist.pods.len()), relist.map_or(0, Relist::bytes)),
            relist.map_or((0, 0), |relist| relist.former.held()),
            (adopted.len(), adopted.iter().map(|uid| size_of::<PodUid>() + uid.as_str().len()).sum()),
            self.runtime_events.strangers.held(),
            (awaited().count(), awaited().map(|id| size_of::<Awaited>() + id.len()).sum()),
            self.ctx.blocking.held(),
            self.logs.held(),
            (self.events.len(), self.events.len() * size_of::<Event>()),
            // What its buffers may hold; how full they are only the kernel and hyper know.
            (calls, (calls * window).min(GRPC_WINDOW_CONNECTION_BYTES as usize)),
            (self.metrics.connections.get(), self.metrics.connections.get() * SERVER_BUFFER_BYTES),
        ];
        let of = |(bound, (entries, bytes))| Usage::of(bound, entries, bytes);
        let statuses = self.statuses.usage();
        let mut usage: Vec<Usage> = BOUNDS.iter().zip(used).map(of).collect();
        usage.push(Usage {
            name: "statuses",
            entries: statuses.records,
            entries_max: RELIST_PODS_MAX,
            bytes: statuses.bytes,
            // From the configuration.
            bytes_max: statuses.bytes_max,
        });
        usage.extend(self.cluster_usage());
        usage
    }

    /// The records of a namespace or of all, in the order they are shown in.
    pub(super) fn sorted(&self, namespace: Option<&str>) -> Vec<&Record> {
        let of_namespace = |record: &&Record| namespace.is_none_or(|n| n == &*record.worker.key().namespace);
        let mut records: Vec<&Record> = self.records.values().filter(of_namespace).collect();
        records.sort_by_key(|record| Place::of(record.worker.key()));
        records
    }

    /// A `v1.PodList`, or the part of it behind `after`: whole pods up to `SERVER_PART_BYTES`, at least one. What comes and
    /// goes between two parts is in the list or is not; what stays is there once.
    fn list_pods(&self, question: &PodsQuestion) -> Answer {
        let mut text = String::with_capacity(SERVER_PART_BYTES);
        let mut list = match &question.after {
            None => PodList::begin(question.format, &mut text),
            Some(_) => PodList::resume(question.format),
        };
        let mut records = self.sorted(question.namespace.as_deref()).into_iter().peekable();
        while records
            .next_if(|record| question.after.as_ref().is_some_and(|at| Place::of(record.worker.key()) <= *at))
            .is_some()
        {}
        while let Some(record) = records.next() {
            list.push(&record.shown(&self.statuses), &mut text);
            if text.len() >= SERVER_PART_BYTES && records.peek().is_some() {
                let after = Some(Place::of(record.worker.key()));
                return Answer::Part(text, Question::Pods(PodsQuestion { after, ..question.clone() }));
            }
        }
        list.end(&mut text);
        Answer::Found(text)
    }

    fn show_pods(&self, question: &PodsQuestion, now: Wall) -> String {
        let PodsQuestion { format, namespace, style, .. } = question;
        let records = self.sorted(namespace.as_deref());
        let mut pods = records.into_iter().map(|record| Cow::Owned(record.shown(&self.statuses)));
        let mut out = table::pods(&mut pods, *format, now, *style);
        if matches!(format, PodsFormat::Table | PodsFormat::Wide) {
            for condition in self.watching.conditions() {
                out.push_str("\nThe node has ");
                out.push_str(condition.as_str());
                out.push_str(": pods may be ended or wait until it has none.\n");
            }
            for (index, problem) in self.desired.problems().enumerate() {
                if index == 0 {
                    out.push_str("\nProblems with the manifests:\n");
                }
                out.push_str(&harmless(&problem.to_string()));
                out.push('\n');
            }
        }
        out
    }

    /// The pod of that name, with or without the node's name behind it.
    ///
    /// # Errors
    /// There is none, or several, in a sentence.
    pub(super) fn find_record(&self, name: &str, namespace: Option<&str>) -> Result<&Record, String> {
        let full_name = format!("{name}-{}", self.identity.node_name());
        let named = |record: &&Record| {
            let key = record.worker.key();
            (*key.name == *name || *key.name == *full_name) && namespace.is_none_or(|n| n == &*key.namespace)
        };
        let mut found: Vec<&Record> = self.records.values().filter(named).collect();
        // A pod that waits for its name shares it with the one that ends; the one that is here is shown first.
        found.sort_by_key(|record| record.worker.life() == Life::Waiting);
        let Some(record) = found.first() else { return Err(self.why_not_here(name, namespace)) };
        if let Some(other) = found.iter().find(|r| r.worker.key().namespace != record.worker.key().namespace)
        {
            return Err(format!(
                "{name} stands in several namespaces ({}, {}); say which with -n\n",
                record.worker.key().namespace,
                other.worker.key().namespace
            ));
        }
        Ok(record)
    }

    fn show_pod(&self, name: &str, namespace: Option<&str>, now: Now, style: Style) -> Answer {
        let record = match self.find_record(name, namespace) {
            Ok(record) => record,
            Err(why) => return Answer::NotFound(why),
        };
        let key = record.worker.key();
        let ring = self.ring.borrow();
        let of_pod = ring.iter().filter(|event| event.pod.uid == key.uid);
        let mut decisions: Vec<Decision<'_>> = of_pod.map(|event| Decision::of(event, now.mono)).collect();
        let problems: Vec<String> = self
            .desired
            .problems()
            .filter(|problem| record.file.as_ref() == Some(&problem.file))
            .map(ToString::to_string)
            .collect();
        decisions.extend(problems.iter().map(|message| Decision {
            seen: human_duration(0),
            warning: true,
            reason: "InvalidManifest",
            message,
        }));
        decisions.extend(self.watching.conditions().iter().map(|condition| Decision {
            seen: human_duration(0),
            warning: true,
            reason: condition.as_str(),
            message: "the node has this condition: pods may be ended, or wait, until it has not",
        }));
        Answer::Found(describe(&record.shown(&self.statuses), &decisions, now.wall, style))
    }

    /// A pod that is not here, with what the manifests have to do with it.
    fn why_not_here(&self, name: &str, namespace: Option<&str>) -> String {
        let mut out = match namespace {
            Some(namespace) => format!("there is no pod {name} in namespace {namespace}"),
            None => format!("there is no pod {name}"),
        };
        let named = |pod: &str| pod.rsplit('/').next() == Some(name);
        let about = self.desired.problems().filter(|p| p.pod.as_deref().is_none_or(named));
        for (index, problem) in about.enumerate() {
            out.push_str(if index == 0 { "; the manifests have problems:\n" } else { "\n" });
            out.push_str(&harmless(&problem.to_string()));
        }
        out.push('\n');
        out
    }

    // ---- --once ------------------------------------------------------------------------------------------

    /// What became of every pod and what is wrong with the manifests, once that is clear or patience is over.
    pub(super) fn once_ending(&self, patience_is_over: bool) -> Option<Ending> {
        if (!self.desired.reported() || self.next_waiting().is_some()) && !patience_is_over {
            return None;
        }
        let (mut lines, mut all_well) = (Vec::new(), true);
        for record in self.records.values() {
            let status = self.statuses.status(&record.worker.key().uid);
            let state = match verdict(record, status.as_ref()) {
                Verdict::Coming if !patience_is_over => return None,
                Verdict::Well(state) => state.to_owned(),
                Verdict::Coming => {
                    all_well = false;
                    "does not run yet".to_owned()
                }
                Verdict::Failed(why) => {
                    all_well = false;
                    why
                }
            };
            lines.push(harmless(&format!("pod {}: {state}", record.worker.key())).into_owned());
        }
        lines.sort();
        for problem in self.desired.problems() {
            all_well = false;
            lines.push(harmless(&problem.to_string()).into_owned());
        }
        Some(Ending::Once { lines, all_well })
    }
}

/// Waiting reasons out of which a container does not come by itself in a moment.
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
    if record.set_aside {
        let why = status.and_then(|status| status.message.as_deref()).unwrap_or_default();
        return Verdict::Failed(format!("is set aside: {why}"));
    }
    // A restored status speaks of another time until the runtime has been asked.
    let Some(status) = status.filter(|_| record.worker.observed().is_some()) else { return Verdict::Coming };
    let init = status.init_container_statuses.iter().flatten();
    let app = status.container_statuses.as_deref().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Succeeded") => return Verdict::Well("Succeeded"),
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
    let wanted = record.worker.pod().map_or(0, |pod| pod.containers().len());
    let all_run = app.len() == wanted && app.iter().all(runs);
    if record.worker.life() == Life::Syncing && status.phase.as_deref() == Some("Running") && all_run {
        return Verdict::Well("Running");
    }
    Verdict::Coming
}
