//! Counters, gauges, and the text of `/metrics` and `smolet top --self`.
//!
//! Counters are cells on the loop's thread: counting is an addition without lock or allocation. Text is rendered on request.
//! Metric names are the kubelet's (`pkg/kubelet/metrics/metrics.go`) where it has the same metric, else `smolet_*`. Where the
//! kubelet has a histogram, there is a summary with sum and count: enough for rates and means; buckets would be a hundred lines
//! a scrape.

mod process;
mod terminated;

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::rc::Rc;

use crate::eviction::local::OwnLimit;
use crate::eviction::{NodeCondition, Signal};
use crate::executor::Polls;
use crate::limits::{Bound, KIB};
use crate::model::SortedMap;
use crate::model::{ContainerKind, PodKey, Wall};
use crate::probe::prober::ProbeKind;
use crate::sync::ProbeResult;
use crate::sync::outcome::SyncError;

pub use crate::counters::{Counter, Entered, Gauge, Sum};
use crate::cri::operations::Operations;

pub use process::{Process, written_by_server};
pub use terminated::Terminations;

/// The gauge by which a command sees that the node is one of its cluster.
pub(crate) const NODE_REGISTERED: &str = "smolet_node_registered";

/// The kubelet's label values for a pod's lists of containers, in the order of [`ContainerKind`].
const CONTAINER_TYPES: [&str; 3] = ["init_container", "container", "ephemeral_container"];

/// Counters of the loop and its tasks.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Calls to the runtime.
    pub operations: Rc<Operations>,
    /// Open connections to the local socket.
    pub connections: Gauge,
    /// Usage of the node API.
    pub node_api: NodeApiUse,
    /// Received runtime events.
    pub runtime_events: Counter,
    /// Turns of the loop, each for a timer or an event.
    pub turns: Counter,
    /// Durations of polls.
    pub polls: Rc<Polls>,
    /// Durations of relists.
    pub relists: Sum,
    /// Time between the ends of two relists.
    pub relist_intervals: Sum,
    /// From the first observation of a pod's manifest to the running pod.
    pub pod_starts: Sum,
    /// Writes of files in the state directory.
    pub state_writes: Counter,
    /// Probes that started late.
    pub probes_late: Counter,
    /// Pods that were evicted under node pressure, by [`Signal`].
    pub evictions: [Counter; Signal::ALL.len()],
    /// Pods that were evicted because they exceeded a limit of their own, by [`OwnLimit`].
    pub evictions_of_limits: [Counter; OwnLimit::ALL.len()],
    /// Checks of images and their disk: the successful and the failed ones.
    pub image_looks: [Counter; 2],
    /// Removed images, by [`Collected`].
    pub images_collected: [Counter; 2],
    /// Layers of images that a power cut may have damaged, removed to be unpacked again.
    pub layers_removed: Counter,
    /// Shims of containerd that serve no sandbox.
    pub orphaned_shims: Cell<usize>,
    /// Terminated containers.
    pub terminations: Terminations,
    starts: [Starts; 3],
    /// By kind and result.
    probes: [[Counter; 3]; 3],
}

/// Usage of the node API.
#[derive(Clone, Debug, Default)]
pub struct NodeApiUse {
    /// Open connections.
    pub connections: Gauge,
    /// Cached users and rejected tokens.
    pub users: Gauge,
    /// Cached authorization decisions.
    pub decisions: Gauge,
    /// Open tunnels to servers.
    pub tunnels: Gauge,
    /// Open connections through them.
    pub tunnel_connections: Gauge,
    /// Open connections of the load balancer before k3s servers.
    pub balancer_connections: Gauge,
    /// Ports and endpoints of Services that are kept, and bytes of all that is kept for them.
    pub services: Rc<Cell<(usize, usize)>>,
    /// Pods that are kept for network policies, and bytes of all that is kept for them.
    pub network_policies: Rc<Cell<(usize, usize)>>,
}

/// Why an image was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// It was unused for longer than the maximum age.
    Age,
    /// Disk usage.
    Space,
}

#[derive(Debug, Default)]
struct Starts {
    all: Counter,
    /// Failed starts, by the error's reason.
    failed: RefCell<SortedMap<String, u64>>,
}

impl Metrics {
    /// All zero except the executor's polls.
    pub fn new(polls: Rc<Polls>) -> Self {
        Self { polls, ..Self::default() }
    }

    /// Counts a container's start, or its failure. Waiting for a back-off is no start.
    pub fn start(&self, kind: ContainerKind, error: Option<&SyncError>) {
        let starts = &self.starts[kind as usize];
        starts.all.inc();
        if let Some(error) = error {
            *starts.failed.borrow_mut().entry(error.to_string()).or_default() += 1;
        }
    }

    /// Counts a probe; `None` when it could not be run.
    pub fn probe(&self, kind: ProbeKind, result: Option<ProbeResult>) {
        let result = match result {
            Some(ProbeResult::Success) => 0,
            Some(ProbeResult::Failure) => 1,
            Some(ProbeResult::Unknown) | None => 2,
        };
        self.probes[kind as usize][result].inc();
    }
}

/// Usage of a bounded structure.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Its name.
    pub name: &'static str,
    /// Number of entries.
    pub entries: usize,
    /// Maximum number of entries.
    pub entries_max: usize,
    /// Bytes, as the limit counts them.
    pub bytes: usize,
    /// Maximum number of bytes.
    pub bytes_max: usize,
}

impl Usage {
    /// With the bound's limits.
    pub fn of(bound: &'static Bound, entries: usize, bytes: usize) -> Self {
        let Bound { name, entries_max, bytes_max } = *bound;
        Self { name, entries, entries_max, bytes, bytes_max }
    }
}

/// Values from the loop's state.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The node's conditions that hold.
    pub conditions: Vec<NodeCondition>,
    /// Pods with a sandbox that is ready.
    pub running_pods: usize,
    /// Containers in the states created, running, exited, unknown.
    pub containers: [usize; 4],
    /// Changes in the runtime without an event.
    pub missed_events: u64,
    /// Sandboxes of other clients of the runtime.
    pub foreign_sandboxes: usize,
    /// Statuses cut, dropped or refused because the store is full, and how often.
    pub statuses_short: [(&'static str, u64); 4],
    /// Number of changes of the API server; `None`: standalone.
    pub server_moves: Option<u64>,
    /// The Node is registered in the cluster; `None` = standalone.
    pub is_registered: Option<bool>,
    /// Usage of `limits::BOUNDS` in that order, of the status store, and of the structures of a cluster's node.
    pub usage: Vec<Usage>,
    /// Start of the agent.
    pub started: Wall,
    /// Statistics of the process.
    pub process: Process,
}

impl Shown {
    /// The memory ceiling in bytes: all structures full (`limits::memory_ceiling`).
    fn ceiling(&self) -> usize {
        self.usage.iter().map(|usage| usage.bytes_max).sum()
    }
}

/// Renders the page in Prometheus' text format. PURE.
pub fn text(metrics: &Metrics, shown: &Shown) -> String {
    let mut page = Page { text: String::with_capacity(8 * KIB), family: "" };
    pods_and_containers(&mut page, metrics, shown);
    node(&mut page, metrics, shown);
    runtime_and_pleg(&mut page, metrics);
    probes(&mut page, metrics);
    runtime_state(&mut page, metrics, shown);
    event_loop(&mut page, metrics);
    bounds(&mut page, shown);
    process(&mut page, shown.started, &shown.process);
    page.text
}

fn pods_and_containers(page: &mut Page, metrics: &Metrics, shown: &Shown) {
    page.family("kubelet_running_pods", "gauge", "Pods that have a running sandbox");
    page.value("", shown.running_pods as u64);
    page.family("kubelet_running_containers", "gauge", "Containers by state");
    for (state, count) in ["created", "running", "exited", "unknown"].iter().zip(shown.containers) {
        page.labelled("container_state", state, count as u64);
    }
    page.family("kubelet_started_containers_total", "counter", "Containers that were to start");
    for (kind, starts) in CONTAINER_TYPES.iter().zip(&metrics.starts) {
        page.labelled("container_type", kind, starts.all.get());
    }
    page.family("kubelet_started_containers_errors_total", "counter", "Containers that did not start");
    for (kind, starts) in CONTAINER_TYPES.iter().zip(&metrics.starts) {
        for (error, count) in starts.failed.borrow().iter() {
            page.value(&format!("{{container_type=\"{kind}\",code=\"{error}\"}}"), *count);
        }
    }
    page.family("kubelet_terminated_containers_total", "counter", "Containers that have ended");
    for (labels, count) in metrics.terminations.lines() {
        page.value(&labels, count);
    }
    page.family("kubelet_evictions", "counter", "Evicted pods, by the signal or the limit that was exceeded");
    let signals = Signal::ALL.map(Signal::as_str).into_iter().zip(&metrics.evictions);
    let limits = OwnLimit::ALL.map(OwnLimit::as_str).into_iter().zip(&metrics.evictions_of_limits);
    for (signal, count) in signals.chain(limits) {
        if count.get() > 0 {
            page.labelled("eviction_signal", signal, count.get());
        }
    }
}

fn node(page: &mut Page, metrics: &Metrics, shown: &Shown) {
    page.family("smolet_node_condition", "gauge", "1 while the node condition holds");
    for condition in NodeCondition::ALL {
        let holds = shown.conditions.contains(&condition);
        page.labelled("condition", condition.as_str(), u64::from(holds));
    }
    page.family("smolet_image_looks_total", "counter", "Checks of images and their disk, by result");
    for (result, count) in ["ok", "failed"].iter().zip(&metrics.image_looks) {
        page.labelled("result", result, count.get());
    }
    page.family("kubelet_image_garbage_collected_total", "counter", "Removed images, by reason");
    for (reason, count) in ["age", "space"].iter().zip(&metrics.images_collected) {
        page.labelled("reason", reason, count.get());
    }
    page.family("smolet_layers_removed_total", "counter", "Layers of images removed after a power cut");
    page.value("", metrics.layers_removed.get());
    page.family("smolet_orphaned_shims", "gauge", "Shims of containerd that serve no sandbox");
    page.value("", metrics.orphaned_shims.get() as u64);
}

fn runtime_and_pleg(page: &mut Page, metrics: &Metrics) {
    page.family(
        "kubelet_pod_start_duration_seconds",
        "summary",
        "From the first observation of a pod to its start",
    );
    page.sum("", &metrics.pod_starts);
    page.family("kubelet_pleg_relist_duration_seconds", "summary", "Duration of relists");
    page.sum("", &metrics.relists);
    page.family("kubelet_pleg_relist_interval_seconds", "summary", "Time between relists");
    page.sum("", &metrics.relist_intervals);

    let operations = || metrics.operations.by_method().filter(|(_, took, _)| took.count() > 0);
    page.family("kubelet_runtime_operations_total", "counter", "Calls to the runtime");
    for (kind, took, _) in operations() {
        page.labelled("operation_type", kind, took.count());
    }
    page.family("kubelet_runtime_operations_errors_total", "counter", "Calls to the runtime that failed");
    for (kind, _, failed) in operations().filter(|(_, _, failed)| *failed > 0) {
        page.labelled("operation_type", kind, failed);
    }
    page.family("kubelet_runtime_operations_duration_seconds", "summary", "Duration of calls to the runtime");
    for (kind, took, _) in operations() {
        page.sum(&format!("{{operation_type=\"{kind}\"}}"), took);
    }
}

fn probes(page: &mut Page, metrics: &Metrics) {
    // The kubelet has a line for each container, on a page of its own (/metrics/probes).
    page.family("prober_probe_total", "counter", "Probes by kind and result");
    for (kind, results) in ProbeKind::ALL.iter().zip(&metrics.probes) {
        for (result, count) in ["successful", "failed", "unknown"].iter().zip(results) {
            if count.get() > 0 {
                let labels = format!("{{probe_type=\"{}\",result=\"{result}\"}}", kind.as_str());
                page.value(&labels, count.get());
            }
        }
    }
    page.family("smolet_probes_late_total", "counter", "Probes that started late");
    page.value("", metrics.probes_late.get());
}

fn runtime_state(page: &mut Page, metrics: &Metrics, shown: &Shown) {
    page.family("smolet_foreign_sandboxes", "gauge", "Sandboxes in the runtime that are not this node's");
    page.value("", shown.foreign_sandboxes as u64);
    page.family(
        "smolet_statuses_short_total",
        "counter",
        "Statuses cut, dropped or refused because the store is full",
    );
    for (what, count) in shown.statuses_short {
        page.labelled("what", what, count);
    }
    page.family("smolet_runtime_events_total", "counter", "Events received from the runtime");
    page.value("", metrics.runtime_events.get());
    page.family("smolet_runtime_events_missed_total", "counter", "Changes in the runtime without an event");
    page.value("", shown.missed_events);
    if let Some(moves) = shown.server_moves {
        page.family(
            "smolet_api_server_moves_total",
            "counter",
            "Moves to another of the cluster's API servers",
        );
        page.value("", moves);
    }
    if let Some(is_registered) = shown.is_registered {
        page.family(NODE_REGISTERED, "gauge", "1 while the Node is registered in the cluster");
        page.value("", is_registered.into());
    }
}

fn event_loop(page: &mut Page, metrics: &Metrics) {
    page.family("smolet_loop_turns_total", "counter", "Turns of the loop: events and timers");
    page.value("", metrics.turns.get());
    page.family("smolet_slow_polls_total", "counter", "Polls that held the thread for 0.1 s or longer");
    page.value("", metrics.polls.slow());
    page.family(
        "smolet_longest_poll_seconds",
        "gauge",
        "The longest poll so far, by task, without waits for a processor",
    );
    let (longest, task) = metrics.polls.longest();
    page.seconds(&format!("{{task=\"{task}\"}}"), longest.as_nanos());
    page.family("smolet_state_writes_total", "counter", "Writes of files in the state directory");
    page.value("", metrics.state_writes.get());
}

fn bounds(page: &mut Page, shown: &Shown) {
    for (family, help, of) in [
        (
            "smolet_bounded_entries",
            "Entries in a bounded structure",
            (|u: &Usage| u.entries) as fn(&Usage) -> usize,
        ),
        ("smolet_bounded_entries_limit", "Most entries of a bounded structure", |u| u.entries_max),
        ("smolet_bounded_bytes", "Bytes in a bounded structure", |u| u.bytes),
        ("smolet_bounded_bytes_limit", "Most bytes of a bounded structure", |u| u.bytes_max),
    ] {
        page.family(family, "gauge", help);
        for usage in &shown.usage {
            page.labelled("structure", usage.name, of(usage) as u64);
        }
    }
    page.family("smolet_memory_ceiling_bytes", "gauge", "Sum of smolet_bounded_bytes_limit");
    page.value("", shown.ceiling() as u64);
}

fn process(page: &mut Page, started: Wall, process: &Process) {
    page.family("process_resident_memory_bytes", "gauge", "Resident memory, code included");
    page.value("", process.rss_kib * 1024);
    page.family("process_cpu_seconds_total", "counter", "Processor time");
    page.seconds("", process.cpu.as_nanos());
    page.family("process_start_time_seconds", "gauge", "Start of the process");
    page.seconds("", started.0.max(0).unsigned_abs().into());
    page.family("smolet_process_anonymous_bytes", "gauge", "Anonymous resident memory");
    page.value("", process.anonymous_kib * 1024);
    page.family("smolet_process_resident_memory_max_bytes", "gauge", "The most resident memory so far");
    page.value("", process.rss_max_kib * 1024);
    page.family("smolet_process_threads", "gauge", "Threads");
    page.value("", process.threads);
    page.family("smolet_process_sleeps_total", "counter", "Voluntary context switches of the main thread");
    page.value("", process.sleeps);
    page.family("smolet_process_written_bytes_total", "counter", "Bytes written to disks");
    page.value("", process.written_bytes);
}

/// What pods and the runtime have written to disks since their cgroups, and the process, were made.
#[derive(Debug, Default)]
pub struct Written {
    /// Of the pods whose cgroups count it (version 2), in the order of `smolet pods`.
    pub pods: Vec<(PodKey, u64)>,
    /// Of containerd, or another smolet behind its CRI socket: images, state and container logs.
    pub runtime: Option<u64>,
}

/// Adds what was written to the metrics. PURE.
pub fn add_written(text: &mut String, written: &Written) {
    let mut page = Page { text: std::mem::take(text), family: "" };
    page.family("smolet_pod_written_bytes_total", "counter", "Bytes written to disks by the pod (cgroup v2)");
    for (pod, bytes) in &written.pods {
        // Names of Kubernetes have nothing to be escaped.
        page.value(&format!("{{namespace=\"{}\",pod=\"{}\"}}", pod.namespace, pod.name), *bytes);
    }
    if let Some(bytes) = written.runtime {
        page.family("smolet_runtime_written_bytes_total", "counter", "Bytes written to disks by the runtime");
        page.value("", bytes);
    }
    *text = page.text;
}

/// Adds what the runtime has written to `smolet top --self`. PURE.
pub fn add_written_to_top(text: &mut String, written: &Written) {
    if let Some(bytes) = written.runtime {
        let _ = writeln!(text, "runtime: {} KiB written to disks", bytes / KIB as u64);
    }
}

/// The page that is rendered, and the family of the next values.
struct Page {
    text: String,
    family: &'static str,
}

// Writing to a string does not fail.
impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = write!(self.text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
    }

    fn value(&mut self, labels: &str, value: u64) {
        let _ = writeln!(self.text, "{}{labels} {value}", self.family);
    }

    /// Label values are constants: nothing has to be escaped.
    fn labelled(&mut self, label: &str, word: &str, value: u64) {
        let _ = writeln!(self.text, "{}{{{label}=\"{word}\"}} {value}", self.family);
    }

    fn seconds(&mut self, labels: &str, nanos: u128) {
        let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        let _ = writeln!(self.text, "{}{labels} {seconds}.{rest:09}", self.family);
    }

    fn sum(&mut self, labels: &str, sum: &Sum) {
        let (seconds, rest) = (sum.nanos() / 1_000_000_000, sum.nanos() % 1_000_000_000);
        let _ = writeln!(self.text, "{}_sum{labels} {seconds}.{rest:09}", self.family);
        let _ = writeln!(self.text, "{}_count{labels} {}", self.family, sum.count());
    }
}

/// Renders `smolet top --self`: every bounded structure with its usage and limit. PURE.
pub fn top(shown: &Shown) -> String {
    let mut out = String::with_capacity(4 * KIB);
    let _ = writeln!(out, "{:<22} {:>8} {:>8} {:>9} {:>9}", "STRUCTURE", "ENTRIES", "LIMIT", "KIB", "LIMIT");
    let mut sum = 0;
    for usage in &shown.usage {
        sum += usage.bytes;
        let (kib, kib_max) = (usage.bytes.div_ceil(KIB), usage.bytes_max.div_ceil(KIB));
        let (entries, max) = (usage.entries, usage.entries_max);
        let _ = writeln!(out, "{:<22} {entries:>8} {max:>8} {kib:>9} {kib_max:>9}", usage.name);
    }
    let ceiling = shown.ceiling().div_ceil(KIB);
    let _ =
        writeln!(out, "{:<22} {:>8} {:>8} {:>9} {ceiling:>9}", "memory ceiling", "", "", sum.div_ceil(KIB));
    let process = &shown.process;
    let _ = write!(
        out,
        "\nThe ceiling is what the agent may keep. Code ({} KiB resident now), stacks and what the allocator has not\n\
         given back come on top.\n\
         process: {} KiB resident ({} KiB its own), {} KiB at most so far, {} threads,\n\
         {} KiB written to disks\n",
        process.rss_kib.saturating_sub(process.anonymous_kib),
        process.rss_kib,
        process.anonymous_kib,
        process.rss_max_kib,
        process.threads,
        process.written_bytes / KIB as u64,
    );
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::{BOUNDS, memory_ceiling};

    fn shown() -> Shown {
        let usage = BOUNDS.iter().map(|bound| Usage::of(bound, 1, 1025)).collect();
        let status = "Name:\tsmolet\nVmHWM:\t    4000 kB\nVmRSS:\t    3000 kB\nRssAnon:\t     500 kB\nThreads:\t2\n\
                      voluntary_ctxt_switches:\t77\nnonvoluntary_ctxt_switches:\t5\nrchar: 9\nwrite_bytes: 40960\n\
                      cancelled_write_bytes: 5\n";
        Shown {
            conditions: vec![NodeCondition::Disk],
            running_pods: 2,
            containers: [0, 3, 1, 0],
            missed_events: 6,
            foreign_sandboxes: 4,
            statuses_short: [("messages_cut", 1), ("bared", 2), ("evicted", 0), ("refused", 0)],
            server_moves: Some(8),
            is_registered: Some(true),
            usage,
            started: Wall(2_208_988_800_500_000_000),
            process: Process::parse(status, Duration::from_millis(1500)),
        }
    }

    #[test]
    fn the_page_shows_the_counters() {
        let metrics = Metrics::default();
        metrics.operations.note("RunPodSandbox", Duration::from_millis(250), false);
        metrics.operations.note("RunPodSandbox", Duration::from_millis(1750), true);
        metrics.operations.note("Unheard", Duration::ZERO, false);
        metrics.start(ContainerKind::App, None);
        metrics.start(ContainerKind::App, Some(&SyncError::RunContainer));
        metrics.start(ContainerKind::Init, None);
        metrics.relists.add(Duration::from_nanos(5));
        let page = text(&metrics, &shown());
        for line in [
            "kubelet_running_pods 2",
            "smolet_node_condition{condition=\"MemoryPressure\"} 0",
            "smolet_node_condition{condition=\"DiskPressure\"} 1",
            "kubelet_running_containers{container_state=\"running\"} 3",
            "kubelet_started_containers_total{container_type=\"container\"} 2",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1",
            "kubelet_started_containers_errors_total{container_type=\"container\",code=\"RunContainerError\"} 1",
            "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 2",
            "kubelet_runtime_operations_total{operation_type=\"other\"} 1",
            "kubelet_runtime_operations_errors_total{operation_type=\"run_podsandbox\"} 1",
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=\"run_podsandbox\"} 2.000000000",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"run_podsandbox\"} 2",
            "kubelet_pleg_relist_duration_seconds_sum 0.000000005",
            "process_start_time_seconds 2208988800.500000000",
            "process_cpu_seconds_total 1.500000000",
            "process_resident_memory_bytes 3072000",
            "smolet_process_sleeps_total 77",
            "smolet_api_server_moves_total 8",
            "smolet_node_registered 1",
            "smolet_bounded_bytes{structure=\"events\"} 1025",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
        }
        assert!(!page.contains("pull_image"), "an operation that was never called has no line");
    }

    /// As Prometheus' parser requires: each value belongs to the last family, and no line occurs twice.
    #[test]
    fn the_page_is_well_formed() {
        let metrics = Metrics::default();
        for (method, _) in crate::cri::operations::OPERATIONS {
            metrics.operations.note(method, Duration::ZERO, true);
        }
        let page = text(&metrics, &shown());
        let mut seen = crate::model::SortedSet::new();
        let mut family = "";
        for line in page.lines() {
            if let Some(line) = line.strip_prefix("# HELP ") {
                family = line.split(' ').next().unwrap();
                assert!(seen.insert(family), "{family} twice");
                continue;
            }
            if let Some(line) = line.strip_prefix("# TYPE ") {
                assert_eq!(line.split(' ').next(), Some(family));
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let bare = name.split('{').next().unwrap();
            let of = bare.strip_prefix(family).unwrap_or_else(|| panic!("{line} under {family}"));
            assert!(["", "_sum", "_count"].contains(&of), "{line}");
            assert!(name.len() == bare.len() || name.ends_with("\"}"), "{line}");
            assert!(seen.insert(name) || name == family, "{name} twice");
        }
    }

    #[test]
    fn what_pods_and_the_runtime_have_written_comes_last() {
        let pods =
            vec![(PodKey::new("prod", "web-n", "u1"), 4096), (PodKey::new("default", "db-n", "u2"), 0)];
        let (mut page, mut shown) = ("a 1\n".to_owned(), "NAME\n".to_owned());
        add_written(&mut page, &Written { pods: pods.clone(), runtime: Some(7) });
        let values: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "a 1",
                "smolet_pod_written_bytes_total{namespace=\"prod\",pod=\"web-n\"} 4096",
                "smolet_pod_written_bytes_total{namespace=\"default\",pod=\"db-n\"} 0",
                "smolet_runtime_written_bytes_total 7",
            ]
        );
        add_written_to_top(&mut shown, &Written { pods, runtime: Some(10 << 10) });
        assert_eq!(shown, "NAME\nruntime: 10 KiB written to disks\n");
        // cgroup v1 counts nothing, and the embedded runtime is in this process.
        let mut page = String::new();
        add_written(&mut page, &Written::default());
        assert!(page.lines().all(|line| line.starts_with('#')), "{page}");
        shown.clear();
        add_written_to_top(&mut shown, &Written::default());
        assert_eq!(shown, "");
    }

    #[test]
    fn top_shows_the_sum_of_all_usage() {
        let shown = top(&shown());
        for bound in &BOUNDS {
            assert!(shown.lines().any(|line| line.starts_with(bound.name)), "{} in\n{shown}", bound.name);
        }
        let ceiling = shown.lines().find(|line| line.starts_with("memory ceiling")).unwrap();
        let numbers: Vec<usize> = ceiling.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers, [(BOUNDS.len() * 1025).div_ceil(KIB), memory_ceiling(0).div_ceil(KIB)]);
        assert!(
            shown
                .contains("process: 3000 KiB resident (500 KiB its own), 4000 KiB at most so far, 2 threads")
        );
    }
}
