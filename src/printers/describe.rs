//! PURE: `smolet describe POD`: all details of one pod, and why it is not running.
//!
//! Formatted as `kubectl describe pod`. Values of Secrets are never shown; what is written in the manifest is. All outside text
//! is escaped line by line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerState, ContainerStatus, EnvFromSource, EnvVar, EphemeralContainer,
    Pod, PodSpec, PodStatus, Probe, ResourceRequirements, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::events;
use super::style::{Style, Tone, status_tone};
use super::table::{how_ended, source, summarise};
use super::text::{Cell, NONE, age, columns, harmless, long_time, push_harmless};
use crate::events::{Event, EventKind};
use crate::model::{Mono, Wall};
use crate::render::qos::pod_qos;
use crate::status::nanos;

/// Column of a pod's values.
const POD_VALUES: usize = 18;
/// Column of a container's values.
const CONTAINER_VALUES: usize = 20;

/// One decision or error of the agent about the pod, for the last section.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// Age, count and interval.
    pub seen: String,
    /// It is a warning.
    pub warning: bool,
    /// The reason: `Pulling`, `BackOff` ...
    pub reason: &'a str,
    /// The message.
    pub message: &'a str,
}

impl<'a> Decision<'a> {
    /// From an event of the pod.
    pub fn of(event: &Event<'a>, now: Mono) -> Self {
        Self {
            seen: events::seen(event, now),
            warning: event.kind == EventKind::Warning,
            reason: event.reason,
            message: event.message,
        }
    }
}

/// The whole page. `decisions` are the pod's own, the newest last.
pub fn describe(pod: &Pod, decisions: &[Decision<'_>], now: Wall, style: Style) -> String {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let mut page = Page { out: String::new(), style };
    head(&mut page, pod, spec, status, now);
    why(&mut page, pod, spec, status, now);

    let init = spec.init_containers.as_deref().unwrap_or_default();
    containers(&mut page, "Init Containers", init, status.init_container_statuses.as_deref());
    containers(&mut page, "Containers", &spec.containers, status.container_statuses.as_deref());
    let ephemeral: Vec<Container> = spec.ephemeral_containers.iter().flatten().map(common_part).collect();
    containers(&mut page, "Ephemeral Containers", &ephemeral, status.ephemeral_container_statuses.as_deref());

    conditions(&mut page, status);
    volumes(&mut page, spec.volumes.as_deref().unwrap_or_default());
    page.field(0, POD_VALUES, "QoS Class", pod_qos(pod).as_str());
    page.decisions(decisions);
    page.out
}

/// The output.
struct Page {
    out: String,
    style: Style,
}

impl Page {
    /// `KEY:   value`, with the value in column `values`; nothing after the key when it is empty.
    fn field(&mut self, indent: usize, values: usize, key: &str, value: &str) {
        let key = harmless(key);
        let key = key.as_ref();
        if value.is_empty() {
            let _ = writeln!(self.out, "{:indent$}{key}:", "");
        } else {
            // A long key is followed by at least two blanks.
            let blanks = values.saturating_sub(indent + key.chars().count() + 1).max(2);
            let _ = write!(self.out, "{:indent$}{key}:{:blanks$}", "", "");
            push_harmless(&mut self.out, value);
            self.out.push('\n');
        }
    }

    /// A field of the pod itself.
    fn pod_field(&mut self, key: &str, value: &str) {
        self.field(0, POD_VALUES, key, value);
    }

    /// A field of a container.
    fn container_field(&mut self, key: &str, value: &str) {
        self.field(4, CONTAINER_VALUES, key, value);
    }

    /// A field within a container's field.
    fn sub_field(&mut self, key: &str, value: &str) {
        self.field(6, CONTAINER_VALUES, key, value);
    }

    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.out, "{}", self.style.paint(Tone::Heading, text));
    }

    fn line(&mut self, indent: usize, text: &str) {
        let _ = write!(self.out, "{:indent$}", "");
        push_harmless(&mut self.out, text);
        self.out.push('\n');
    }

    /// `a=1` one below the other, or `<none>`.
    fn map(&mut self, key: &str, map: Option<&BTreeMap<String, String>>, between: &str) {
        let Some(map) = map.filter(|m| !m.is_empty()) else { return self.pod_field(key, NONE) };
        let mut first = true;
        for (name, value) in map {
            let entry = format!("{name}{between}{value}");
            if std::mem::take(&mut first) {
                self.pod_field(key, &entry);
            } else {
                self.line(POD_VALUES, &entry);
            }
        }
    }

    fn decisions(&mut self, decisions: &[Decision<'_>]) {
        if decisions.is_empty() {
            return self.pod_field("Events", NONE);
        }
        self.heading("Events:");
        let header = ["Type", "Reason", "Age", "Message"];
        let mut rows =
            vec![header.map(Cell::from).into(), header.map(|h| Cell::from("-".repeat(h.len()))).into()];
        for decision in decisions {
            let (word, tone) =
                if decision.warning { ("Warning", Tone::Wait) } else { ("Normal", Tone::Plain) };
            let seen = decision.seen.as_str().into();
            let cells = [Cell::toned(word, tone), decision.reason.into(), seen, decision.message.into()];
            rows.push(cells.into());
        }
        self.out.push_str(&columns(&rows, 2, self.style));
    }
}

/// A text that is not empty, without the trailing newline of a termination message.
fn filled(text: Option<&String>) -> Option<&str> {
    text.map(|t| t.trim_end()).filter(|t| !t.is_empty())
}

fn head(page: &mut Page, pod: &Pod, spec: &PodSpec, status: &PodStatus, now: Wall) {
    let meta = &pod.metadata;
    page.pod_field("Name", meta.name.as_deref().unwrap_or(NONE));
    page.pod_field("Namespace", meta.namespace.as_deref().unwrap_or(NONE));
    page.pod_field("UID", meta.uid.as_deref().unwrap_or(NONE));
    if let Some(class) = &spec.priority_class_name {
        page.pod_field("Priority Class", class);
    }
    page.pod_field("Priority", &spec.priority.unwrap_or(0).to_string());
    if let Some(account) = &spec.service_account_name {
        page.pod_field("Service Account", account);
    }
    let node = [spec.node_name.as_deref(), status.host_ip.as_deref()];
    let node: Vec<&str> = node.into_iter().flatten().collect();
    let node = if node.is_empty() { NONE.to_owned() } else { node.join("/") };
    page.pod_field("Node", &node);
    if let Some(at) = &status.start_time {
        page.pod_field("Start Time", &long_time(at));
    }
    if let Some(from) = source(pod) {
        page.pod_field("Source", from);
    }
    page.map("Labels", meta.labels.as_ref(), "=");
    page.map("Annotations", meta.annotations.as_ref(), ": ");
    let phase = status.phase.as_deref().unwrap_or("Unknown");
    if let Some(at) = &meta.deletion_timestamp {
        page.pod_field("Status", &format!("Terminating (lasts {})", age(Some(nanos(at)), now)));
        let grace = meta.deletion_grace_period_seconds.unwrap_or(0);
        page.pod_field("Termination Grace Period", &format!("{grace}s"));
    } else {
        let word = summarise(pod).status;
        let shown = if word == phase { word.clone() } else { format!("{phase} ({word})") };
        let blanks = POD_VALUES - "Status:".len();
        let painted = page.style.paint(status_tone(&word), &harmless(&shown)).to_string();
        let _ = writeln!(page.out, "Status:{:blanks$}{painted}", "");
    }
    if let Some(reason) = filled(status.reason.as_ref()) {
        page.pod_field("Reason", reason);
    }
    if let Some(message) = filled(status.message.as_ref()) {
        page.pod_field("Message", message);
    }
    page.pod_field("IP", status.pod_ip.as_deref().unwrap_or(""));
    let ips = status.pod_ips.as_deref().unwrap_or_default();
    if ips.is_empty() {
        page.pod_field("IPs", NONE);
    } else {
        page.line(0, "IPs:");
        for ip in ips {
            page.field(2, 0, "IP", &ip.ip);
        }
    }
}

/// The section "Why": why the pod is not running, in sentences; nothing for a pod that is ready or has succeeded.
fn why(page: &mut Page, pod: &Pod, spec: &PodSpec, status: &PodStatus, now: Wall) {
    let is_ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    if is_ready || status.phase.as_deref() == Some("Succeeded") || pod.metadata.deletion_timestamp.is_some() {
        return;
    }
    let mut sentences = Vec::new();
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let lists =
        [("init container", &status.init_container_statuses), ("container", &status.container_statuses)];
    for (kind, statuses) in lists {
        for container in statuses.iter().flatten() {
            let is_init = kind == "init container";
            let sidecar = init
                .iter()
                .any(|c| c.name == container.name && c.restart_policy.as_deref() == Some("Always"));
            if let Some(sentence) = why_container(container, is_init && !sidecar, now) {
                sentences.push(format!("{kind} {}: {sentence}", container.name));
            }
        }
    }
    if sentences.is_empty() {
        return;
    }
    page.heading("Why:");
    for sentence in sentences {
        page.line(2, &sentence);
    }
}

/// Why a container is not running or not ready; `None` when it is, or only waits for its turn.
fn why_container(container: &ContainerStatus, runs_once: bool, now: Wall) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = filled(waiting.reason.as_ref()).unwrap_or("waiting");
        if reason == "PodInitializing" || reason == "ContainerCreating" {
            return None;
        }
        let mut sentence = reason.to_owned();
        if let Some(message) = filled(waiting.message.as_ref()) {
            let _ = write!(sentence, ": {message}");
        }
        if let Some(end) = container.last_state.as_ref().and_then(|s| s.terminated.as_ref()) {
            let ago = end.finished_at.as_ref().map(|at| format!("{} ago ", age(Some(nanos(at)), now)));
            let _ = write!(
                sentence,
                "; it ended {}with {}, exit code {}",
                ago.unwrap_or_default(),
                how_ended(end),
                end.exit_code
            );
            if let Some(message) = filled(end.message.as_ref()) {
                let _ = write!(sentence, ": {message}");
            }
        }
        return Some(sentence);
    }
    if let Some(end) = &state.terminated {
        if end.exit_code == 0 && runs_once {
            return None;
        }
        let mut sentence = format!("ended with {}, exit code {}", how_ended(end), end.exit_code);
        if let Some(message) = filled(end.message.as_ref()) {
            let _ = write!(sentence, ": {message}");
        }
        return Some(sentence);
    }
    let running = state.running.as_ref()?;
    if runs_once {
        let since = age(running.started_at.as_ref().map(nanos), now);
        return Some(format!("has been running for {since}; the pod waits for it to end"));
    }
    if container.started != Some(true) {
        return Some("is running, its startup probe has not succeeded yet".to_owned());
    }
    (!container.ready).then(|| "is running, its readiness probe does not succeed".to_owned())
}

/// An ephemeral container has a container's fields without ports, probes and resources.
fn common_part(c: &EphemeralContainer) -> Container {
    Container {
        name: c.name.clone(),
        image: c.image.clone(),
        command: c.command.clone(),
        args: c.args.clone(),
        env: c.env.clone(),
        env_from: c.env_from.clone(),
        volume_mounts: c.volume_mounts.clone(),
        ..Container::default()
    }
}

fn containers(page: &mut Page, title: &str, list: &[Container], statuses: Option<&[ContainerStatus]>) {
    if list.is_empty() {
        return;
    }
    page.heading(&format!("{title}:"));
    for container in list {
        let status = statuses.unwrap_or_default().iter().find(|s| s.name == container.name);
        page.field(2, 0, &container.name, "");
        page.container_field("Container ID", status.and_then(|s| s.container_id.as_deref()).unwrap_or(""));
        page.container_field("Image", container.image.as_deref().unwrap_or(""));
        page.container_field("Image ID", status.map_or("", |s| s.image_id.as_str()));
        ports(page, container.ports.as_deref().unwrap_or_default());
        words(page, "Command", container.command.as_deref());
        words(page, "Args", container.args.as_deref());
        if let Some(status) = status {
            let empty = ContainerState::default();
            state(page, "State", status.state.as_ref().unwrap_or(&empty));
            if let Some(last) = status.last_state.as_ref().filter(|s| **s != empty) {
                state(page, "Last State", last);
            }
            page.container_field("Ready", if status.ready { "True" } else { "False" });
            page.container_field("Restart Count", &status.restart_count.to_string());
        }
        if let Some(resources) = &container.resources {
            resource_list(page, "Limits", resources, |r| r.limits.as_ref());
            resource_list(page, "Requests", resources, |r| r.requests.as_ref());
        }
        for (key, probe) in [
            ("Liveness", &container.liveness_probe),
            ("Readiness", &container.readiness_probe),
            ("Startup", &container.startup_probe),
        ] {
            if let Some(probe) = probe {
                page.container_field(key, &probe_text(probe));
            }
        }
        env_from(page, container.env_from.as_deref().unwrap_or_default());
        environment(page, container.env.as_deref().unwrap_or_default());
        mounts(page, container.volume_mounts.as_deref().unwrap_or_default());
    }
}

fn ports(page: &mut Page, list: &[ContainerPort]) {
    let join = |of: &dyn Fn(&ContainerPort) -> i32| {
        let one = |p: &ContainerPort| format!("{}/{}", of(p), p.protocol.as_deref().unwrap_or("TCP"));
        list.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let (plain, host) = (join(&|p| p.container_port), join(&|p| p.host_port.unwrap_or(0)));
    let (key, host_key) = if list.len() > 1 { ("Ports", "Host Ports") } else { ("Port", "Host Port") };
    page.container_field(key, if list.is_empty() { NONE } else { &plain });
    page.container_field(host_key, if list.is_empty() { NONE } else { &host });
}

/// A command or its arguments, one per line; line breaks within an argument are kept.
fn words(page: &mut Page, key: &str, list: Option<&[String]>) {
    let Some(list) = list.filter(|l| !l.is_empty()) else { return };
    page.container_field(key, "");
    for line in list.iter().flat_map(|word| word.split('\n')) {
        page.line(6, line);
    }
}

fn state(page: &mut Page, key: &str, state: &ContainerState) {
    let text = |page: &mut Page, key: &str, value: &Option<String>| {
        if let Some(value) = filled(value.as_ref()) {
            page.sub_field(key, value);
        }
    };
    if let Some(running) = &state.running {
        page.container_field(key, "Running");
        if let Some(at) = &running.started_at {
            page.sub_field("Started", &long_time(at));
        }
    } else if let Some(end) = &state.terminated {
        page.container_field(key, "Terminated");
        text(page, "Reason", &end.reason);
        text(page, "Message", &end.message);
        page.sub_field("Exit Code", &end.exit_code.to_string());
        if let Some(signal) = end.signal.filter(|s| *s > 0) {
            page.sub_field("Signal", &signal.to_string());
        }
        let times = [("Started", &end.started_at), ("Finished", &end.finished_at)];
        for (key, at) in times {
            if let Some(at) = at {
                page.sub_field(key, &long_time(at));
            }
        }
    } else {
        page.container_field(key, "Waiting");
        if let Some(waiting) = &state.waiting {
            text(page, "Reason", &waiting.reason);
            text(page, "Message", &waiting.message);
        }
    }
}

fn resource_list(
    page: &mut Page,
    key: &str,
    resources: &ResourceRequirements,
    side: fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>,
) {
    let Some(list) = side(resources).filter(|l| !l.is_empty()) else { return };
    page.container_field(key, "");
    for (name, quantity) in list {
        page.sub_field(name, &quantity.0);
    }
}

/// kubectl's `DescribeProbe`.
fn probe_text(probe: &Probe) -> String {
    let port = |port: &IntOrString| match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let what = if let Some(exec) = &probe.exec {
        format!("exec [{}]", exec.command.as_deref().unwrap_or_default().join(" "))
    } else if let Some(http) = &probe.http_get {
        let scheme = http.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
        let (host, path) = (http.host.as_deref().unwrap_or(""), http.path.as_deref().unwrap_or(""));
        format!("http-get {scheme}://{host}:{}{path}", port(&http.port))
    } else if let Some(tcp) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", tcp.host.as_deref().unwrap_or(""), port(&tcp.port))
    } else if let Some(grpc) = &probe.grpc {
        format!("grpc <pod>:{} {}", grpc.port, grpc.service.as_deref().unwrap_or(""))
    } else {
        "unknown".to_owned()
    };
    // Absent fields show the API's defaults.
    format!(
        "{what} delay={}s timeout={}s period={}s #success={} #failure={}",
        probe.initial_delay_seconds.unwrap_or(0),
        probe.timeout_seconds.unwrap_or(1),
        probe.period_seconds.unwrap_or(10),
        probe.success_threshold.unwrap_or(1),
        probe.failure_threshold.unwrap_or(3)
    )
}

fn optional(value: Option<bool>) -> bool {
    value.unwrap_or(false)
}

fn env_from(page: &mut Page, list: &[EnvFromSource]) {
    if list.is_empty() {
        return;
    }
    page.container_field("Environment Variables from", "");
    for from in list {
        let (name, kind, is_optional) = if let Some(map) = &from.config_map_ref {
            (map.name.as_str(), "ConfigMap", optional(map.optional))
        } else if let Some(secret) = &from.secret_ref {
            (secret.name.as_str(), "Secret", optional(secret.optional))
        } else {
            continue;
        };
        let prefix = from.prefix.as_deref().filter(|p| !p.is_empty());
        let prefix = prefix.map_or(String::new(), |p| format!(" with prefix '{p}'"));
        page.line(6, &format!("{name}  {kind}{prefix}  Optional: {is_optional}"));
    }
}

/// Names and sources of environment variables; a Secret's value is never read.
fn environment(page: &mut Page, list: &[EnvVar]) {
    if list.is_empty() {
        return page.container_field("Environment", NONE);
    }
    page.container_field("Environment", "");
    let longest = list.iter().map(|e| e.name.chars().count()).max().unwrap_or(0).min(32);
    let values = 6 + longest + 3;
    for variable in list {
        let key_of = |kind: &str, key: &str, name: &str, is_optional| {
            format!("<set to the key '{key}' in {kind} '{name}'>  Optional: {}", optional(is_optional))
        };
        let from = variable.value_from.as_ref();
        let value = if let Some(field) = from.and_then(|f| f.field_ref.as_ref()) {
            format!("({}:{})", field.api_version.as_deref().unwrap_or("v1"), field.field_path)
        } else if let Some(resource) = from.and_then(|f| f.resource_field_ref.as_ref()) {
            let container = resource.container_name.as_deref().unwrap_or("");
            let place = if container.is_empty() { String::new() } else { format!("{container}: ") };
            format!("({place}{})", resource.resource)
        } else if let Some(secret) = from.and_then(|f| f.secret_key_ref.as_ref()) {
            key_of("secret", &secret.key, &secret.name, secret.optional)
        } else if let Some(map) = from.and_then(|f| f.config_map_key_ref.as_ref()) {
            key_of("config map", &map.key, &map.name, map.optional)
        } else if let Some(file) = from.and_then(|f| f.file_key_ref.as_ref()) {
            let place = format!("{}:{}", file.volume_name, file.path);
            key_of("file", &file.key, &place, file.optional)
        } else {
            variable.value.clone().unwrap_or_default()
        };
        page.field(6, values, &variable.name, &value);
    }
}

fn mounts(page: &mut Page, list: &[VolumeMount]) {
    if list.is_empty() {
        return page.container_field("Mounts", NONE);
    }
    page.container_field("Mounts", "");
    let mut sorted: Vec<&VolumeMount> = list.iter().collect();
    sorted.sort_by(|a, b| a.mount_path.cmp(&b.mount_path));
    for mount in sorted {
        let mut flags = (if mount.read_only == Some(true) { "ro" } else { "rw" }).to_owned();
        if let Some(path) = mount.sub_path.as_deref().filter(|p| !p.is_empty()) {
            let _ = write!(flags, ",path={path:?}");
        }
        page.line(6, &format!("{} from {} ({flags})", mount.mount_path, mount.name));
    }
}

fn conditions(page: &mut Page, status: &PodStatus) {
    let list = status.conditions.as_deref().unwrap_or_default();
    if list.is_empty() {
        return;
    }
    page.heading("Conditions:");
    let mut rows: Vec<Vec<Cell>> = vec![vec!["Type".into(), "Status".into(), "Reason".into()]];
    for condition in list {
        let tone = if condition.status == "True" { Tone::Plain } else { Tone::Wait };
        let reason = condition.reason.as_deref().unwrap_or("");
        rows.push(vec![condition.type_.as_str().into(), Cell::toned(&condition.status, tone), reason.into()]);
    }
    page.out.push_str(&columns(&rows, 2, page.style));
}

fn volumes(page: &mut Page, list: &[Volume]) {
    if list.is_empty() {
        return page.pod_field("Volumes", NONE);
    }
    page.heading("Volumes:");
    for volume in list {
        page.field(2, 0, &volume.name, "");
        let mut field = |key: &str, value: &str| page.field(4, CONTAINER_VALUES, key, value);
        if let Some(dir) = &volume.empty_dir {
            field("Type", "EmptyDir (a temporary directory that shares a pod's lifetime)");
            field("Medium", dir.medium.as_deref().unwrap_or(""));
            field("SizeLimit", dir.size_limit.as_ref().map_or("<unset>", |q| q.0.as_str()));
        } else if let Some(host) = &volume.host_path {
            field("Type", "HostPath (bare host directory volume)");
            field("Path", &host.path);
            field("HostPathType", host.type_.as_deref().unwrap_or(""));
        } else if let Some(nfs) = &volume.nfs {
            field("Type", "NFS (an NFS mount that lasts the lifetime of a pod)");
            field("Server", &nfs.server);
            field("Path", &nfs.path);
            field("ReadOnly", if nfs.read_only == Some(true) { "true" } else { "false" });
        } else if let Some(map) = &volume.config_map {
            field("Type", "ConfigMap (a volume populated by a ConfigMap)");
            field("Name", &map.name);
            field("Optional", if optional(map.optional) { "true" } else { "false" });
        } else if let Some(secret) = &volume.secret {
            field("Type", "Secret (a volume populated by a Secret)");
            field("SecretName", secret.secret_name.as_deref().unwrap_or(""));
            field("Optional", if optional(secret.optional) { "true" } else { "false" });
        } else if let Some(image) = &volume.image {
            field("Type", "Image (a container image or OCI artifact)");
            field("Reference", image.reference.as_deref().unwrap_or(""));
            field("PullPolicy", image.pull_policy.as_deref().unwrap_or(""));
        } else if let Some(items) =
            volume.downward_api.as_ref().map(|d| d.items.as_deref().unwrap_or_default())
        {
            field("Type", "DownwardAPI (a volume populated by information about the pod)");
            for item in items {
                let from = item.field_ref.as_ref().map(|f| f.field_path.as_str());
                let from = from.or(item.resource_field_ref.as_ref().map(|r| r.resource.as_str()));
                field("Item", &format!("{} -> {}", from.unwrap_or(""), item.path));
            }
        } else if let Some(projected) = &volume.projected {
            field("Type", "Projected (a volume that contains injected data from multiple sources)");
            for part in projected.sources.iter().flatten() {
                if let Some(map) = &part.config_map {
                    field("ConfigMapName", &map.name);
                } else if let Some(secret) = &part.secret {
                    field("SecretName", &secret.name);
                } else if let Some(token) = &part.service_account_token {
                    field("TokenExpirationSeconds", &token.expiration_seconds.unwrap_or(3600).to_string());
                } else if part.downward_api.is_some() {
                    field("DownwardAPI", "true");
                }
            }
        } else {
            field("Type", "<unknown>");
        }
    }
}

#[cfg(test)]
mod tests;
