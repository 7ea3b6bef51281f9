//! PURE: `smolet pods`: formats pods as a table, as names, as JSON or as YAML.
//!
//! STATUS, READY, RESTARTS and AGE are those of `kubectl get pods` (its `printPod`).

use std::borrow::Cow;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use serde_json::Value;

use super::style::{Style, status_tone};
use super::text::{Cell, NONE, age, columns, harmless, is_hostile, make_room};
use super::yaml::{to_yaml, write_yaml};
use crate::model::Wall;
use crate::status::nanos;
use crate::text::push_json_text;

/// Annotation with the file of a static pod, if its source sets it.
pub const SOURCE_FILE_ANNOTATION: &str = "smolet.io/source-file";

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodsFormat {
    /// No `-o`: the short table.
    #[default]
    Table,
    /// `wide`: with IP, node, UID and source.
    Wide,
    /// `name`: `pod/NAME` lines.
    Name,
    /// `json`: a `PodList`.
    Json,
    /// `yaml`: the same as YAML.
    Yaml,
}

impl PodsFormat {
    /// A list of whole pods, which may be long.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }

    /// Parses `-o`'s argument; `None` for an unknown format.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Table),
            "wide" => Some(Self::Wide),
            "name" => Some(Self::Name),
            "json" => Some(Self::Json),
            "yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// Formats the pods in their order; tables show ages at `now`. Each pod is taken from the iterator and dropped in turn, so that
/// the memory is that of the text and one pod.
pub fn pods(
    pods: &mut dyn Iterator<Item = Cow<'_, Pod>>,
    format: PodsFormat,
    now: Wall,
    style: Style,
) -> String {
    match format {
        PodsFormat::Table => table(pods, false, now, style),
        PodsFormat::Wide => table(pods, true, now, style),
        PodsFormat::Name => {
            let mut out = String::new();
            for pod in pods {
                let _ = writeln!(out, "pod/{}", harmless(key(&pod).1));
            }
            out
        }
        PodsFormat::Json | PodsFormat::Yaml => {
            let mut out = String::new();
            let mut list = PodList::begin(format, &mut out);
            pods.for_each(|pod| list.push(&pod, &mut out));
            list.end(&mut out);
            out
        }
    }
}

/// A `v1.PodList` written incrementally, as YAML or else as JSON.
pub struct PodList {
    yaml: bool,
    empty: bool,
}

impl PodList {
    /// Starts the list.
    pub fn begin(format: PodsFormat, out: &mut String) -> Self {
        let yaml = format == PodsFormat::Yaml;
        out.push_str(if yaml {
            "apiVersion: v1\nitems:"
        } else {
            "{\n    \"apiVersion\": \"v1\",\n    \"items\": ["
        });
        Self { yaml, empty: true }
    }

    /// Continues a list whose earlier pods were written elsewhere.
    pub fn resume(format: PodsFormat) -> Self {
        Self { yaml: format == PodsFormat::Yaml, empty: false }
    }

    /// Appends one pod.
    pub fn push(&mut self, pod: &Pod, out: &mut String) {
        let first = std::mem::take(&mut self.empty);
        if self.yaml {
            out.push_str(if first { "\n" } else { "" });
            write_yaml(out, &Value::Array(vec![value(pod)]));
        } else {
            out.push_str(if first { "\n        " } else { ",\n        " });
            json(out, &value(pod), 8);
        }
    }

    /// Ends the list.
    pub fn end(self, out: &mut String) {
        out.push_str(match (self.yaml, self.empty) {
            (true, true) => " []\nkind: PodList\nmetadata: {}\n",
            (true, false) => "kind: PodList\nmetadata: {}\n",
            (false, true) => "],\n    \"kind\": \"PodList\",\n    \"metadata\": {}\n}\n",
            (false, false) => "\n    ],\n    \"kind\": \"PodList\",\n    \"metadata\": {}\n}\n",
        });
    }
}

/// One pod as JSON or YAML, else as a table of one row.
pub fn pod(pod: &Pod, format: PodsFormat, now: Wall, style: Style) -> String {
    match format {
        PodsFormat::Json => {
            let mut out = String::new();
            json(&mut out, &value(pod), 0);
            out.push('\n');
            out
        }
        PodsFormat::Yaml => to_yaml(&value(pod)),
        PodsFormat::Table | PodsFormat::Wide | PodsFormat::Name => {
            pods(&mut std::iter::once(Cow::Borrowed(pod)), format, now, style)
        }
    }
}

fn key(pod: &Pod) -> (&str, &str) {
    let meta = &pod.metadata;
    (meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
}

/// A pod always serializes: its maps have string keys. `Null` would be shown if it did not.
fn value(pod: &Pod) -> Value {
    serde_json::to_value(pod).unwrap_or_default()
}

/// Indented by four, as kubectl does, in lines that start at `indent`; without a trailing newline.
///
/// Written directly to `out`: escaped, a manifest's text may be six times as long, and need not be in memory twice.
fn json(out: &mut String, value: &Value, indent: usize) {
    let inner = indent + 4;
    let begin = |out: &mut String, number: usize, indent: usize| {
        out.push_str(if number > 0 { ",\n" } else { "\n" });
        let _ = write!(out, "{:indent$}", "");
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                begin(out, number, inner);
                json(out, item, inner);
            }
            let _ = write!(out, "\n{:indent$}]", "");
        }
        Value::Object(fields) if !fields.is_empty() => {
            out.push('{');
            for (number, (key, field)) in fields.iter().enumerate() {
                begin(out, number, inner);
                json_text(out, key);
                out.push_str(": ");
                json(out, field, inner);
            }
            let _ = write!(out, "\n{:indent$}}}", "");
        }
        Value::String(text) => json_text(out, text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

/// JSON allows some control and all reordering characters unescaped; here they are escaped, which is equivalent.
fn json_text(out: &mut String, text: &str) {
    // An escape has six characters for one.
    make_room(out, text.len() + 5 * text.chars().filter(|c| is_hostile(*c)).count());
    push_json_text(out, text, is_hostile);
}

fn table(pods: &mut dyn Iterator<Item = Cow<'_, Pod>>, wide: bool, now: Wall, style: Style) -> String {
    const NARROW: [&str; 6] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    const WIDE: [&str; 4] = ["IP", "NODE", "UID", "SOURCE"];
    let shown = NARROW.iter().chain(WIDE.iter().filter(|_| wide));
    let mut rows: Vec<Vec<Cell>> = vec![shown.map(|header| Cell::from(*header)).collect()];
    for pod in pods {
        let pod = &*pod;
        let summary = summarise(pod);
        let restarts = match summary.last_restart {
            Some(at) if summary.restarts > 0 => format!("{} ({} ago)", summary.restarts, age(Some(at), now)),
            _ => summary.restarts.to_string(),
        };
        let (namespace, name) = key(pod);
        let mut row: Vec<Cell> = vec![
            namespace.into(),
            name.into(),
            format!("{}/{}", summary.ready, summary.containers).into(),
            Cell::toned(&summary.status, status_tone(&summary.status)),
            restarts.into(),
            age(begin(pod), now).into(),
        ];
        if wide {
            let or_none = |text: Option<&str>| Cell::from(text.filter(|t| !t.is_empty()).unwrap_or(NONE));
            row.push(or_none(pod.status.as_ref().and_then(|s| s.pod_ip.as_deref())));
            row.push(or_none(pod.spec.as_ref().and_then(|s| s.node_name.as_deref())));
            row.push(or_none(pod.metadata.uid.as_deref()));
            row.push(or_none(source(pod)));
        }
        rows.push(row);
    }
    columns(&rows, 0, style)
}

/// The manifest's file, else the kind of source.
pub(super) fn source(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations
        .get(SOURCE_FILE_ANNOTATION)
        .or_else(|| annotations.get("kubernetes.io/config.source"))
        .map(String::as_str)
}

/// When the pod started: its creation, or its start time, because a static pod has no creation time.
fn begin(pod: &Pod) -> Option<Wall> {
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    pod.metadata.creation_timestamp.as_ref().or(started).map(nanos)
}

/// The columns of a pod's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Ready app containers and sidecars.
    pub ready: usize,
    /// All app containers and sidecars.
    pub containers: usize,
    /// `Running`, `Init:0/2`, `CrashLoopBackOff` ...
    pub status: String,
    /// Restarts of the relevant containers: init containers' while initialising, else app containers' and sidecars'.
    pub restarts: i64,
    /// The most recent termination before a restart among them.
    pub last_restart: Option<Wall>,
}

/// kubectl's `printPod`.
pub fn summarise(pod: &Pod) -> Summary {
    let no_status = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let spec = pod.spec.as_ref();
    let init_specs = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let is_sidecar = |name: &str| {
        init_specs.iter().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
    };
    let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());

    let mut word = set(&status.reason).or_else(|| set(&status.phase)).unwrap_or_else(|| "Unknown".to_owned());
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_true = |kind: &str| conditions.iter().any(|c| c.type_ == kind && c.status == "True");
    if conditions.iter().any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("SchedulingGated"))
    {
        "SchedulingGated".clone_into(&mut word);
    }
    let sidecars = init_specs.iter().filter(|c| is_sidecar(&c.name)).count();
    // A pod that only the runtime knows has no spec.
    let of_status = status.container_statuses.as_deref().unwrap_or_default().len();
    let containers = spec.map_or(of_status, |s| s.containers.len()) + sidecars;

    let (mut ready, mut initializing) = (0, false);
    let (mut all_init, mut of_sidecars) = (Restarts::default(), Restarts::default());
    for (index, container) in status.init_container_statuses.iter().flatten().enumerate() {
        let sidecar = is_sidecar(&container.name);
        all_init.count(container);
        if sidecar {
            of_sidecars.count(container);
        }
        let state = container.state.as_ref();
        let end = state.and_then(|s| s.terminated.as_ref());
        if end.is_some_and(|end| end.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) {
            ready += usize::from(container.ready);
            continue;
        }
        let waits = state.and_then(|s| s.waiting.as_ref()).and_then(|w| set(&w.reason));
        word = match (end, waits) {
            (Some(end), _) => format!("Init:{}", how_ended(end)),
            (None, Some(reason)) if reason != "PodInitializing" => format!("Init:{reason}"),
            (None, _) => format!("Init:{index}/{}", init_specs.len()),
        };
        initializing = true;
        break;
    }

    let mut restarts = all_init;
    if !initializing || is_true("Initialized") {
        restarts = of_sidecars;
        let mut running = false;
        for container in status.container_statuses.iter().flatten().rev() {
            restarts.count(container);
            let state = container.state.as_ref();
            if let Some(reason) = state.and_then(|s| s.waiting.as_ref()).and_then(|w| set(&w.reason)) {
                word = reason;
            } else if let Some(end) = state.and_then(|s| s.terminated.as_ref()) {
                word = how_ended(end);
            } else if container.ready && state.is_some_and(|s| s.running.is_some()) {
                running = true;
                ready += 1;
            }
        }
        if word == "Completed" && running {
            (if is_true("Ready") { "Running" } else { "NotReady" }).clone_into(&mut word);
        }
    }

    if pod.metadata.deletion_timestamp.is_some() {
        if status.reason.as_deref() == Some("NodeLost") {
            "Unknown".clone_into(&mut word);
        } else if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            "Terminating".clone_into(&mut word);
        }
    }
    Summary { ready, containers, status: word, restarts: restarts.count, last_restart: restarts.last }
}

/// `Error`, else `Signal:9`, else `ExitCode:3`.
pub(super) fn how_ended(end: &ContainerStateTerminated) -> String {
    match (end.reason.as_deref().unwrap_or(""), end.signal.unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", end.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Wall>,
}

impl Restarts {
    fn count(&mut self, container: &ContainerStatus) {
        self.count += i64::from(container.restart_count);
        let end = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        self.last = self.last.max(end.and_then(|end| end.finished_at.as_ref()).map(nanos));
    }
}

#[cfg(test)]
mod tests;
