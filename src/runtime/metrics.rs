//! The CRI's metrics of pods and containers: cAdvisor's names, with the labels that the kubelet gives them on `/metrics/cadvisor`.
//! Read from cgroups, `/proc` and the pinned network namespace: no process is started. I/O, blocking.
//!
//! What cannot be read on this machine has no sample: a controller that is not there, a file of the other version of cgroups.

use std::path::{Path, PathBuf};

use crate::filesystem::{Filesystem, read_start};
use crate::limits::{CGROUP_STAT_BYTES_MAX, METRICS_FILES_MAX, METRICS_PROCESSES_MAX};
use crate::proto::runtime::v1 as cri;
use cri::MetricType::{self, Counter, Gauge};

use super::stats::{controller_dir, field, is_unified};

/// Labels of every metric, sorted as all label keys here.
const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];

/// Name, help, type, labels beside `LABELS`.
type Described = (&'static str, &'static str, MetricType, &'static [&'static str]);

/// Metrics of containers.
const OF_CONTAINER: [Described; 39] = [
    ("container_cpu_usage_seconds_total", "Cumulative CPU time consumed.", Counter, &[]),
    ("container_cpu_user_seconds_total", "Cumulative user CPU time consumed.", Counter, &[]),
    ("container_cpu_system_seconds_total", "Cumulative system CPU time consumed.", Counter, &[]),
    ("container_cpu_cfs_periods_total", "Number of elapsed enforcement periods.", Counter, &[]),
    ("container_cpu_cfs_throttled_periods_total", "Number of throttled periods.", Counter, &[]),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "Time for which the container was throttled.",
        Counter,
        &[],
    ),
    ("container_memory_usage_bytes", "Current memory usage, all memory included.", Gauge, &[]),
    ("container_memory_working_set_bytes", "Current working set.", Gauge, &[]),
    ("container_memory_max_usage_bytes", "Maximum memory usage recorded.", Gauge, &[]),
    ("container_memory_failcnt", "Number of memory usage hits of limits.", Counter, &[]),
    ("container_memory_cache", "Page cache memory.", Gauge, &[]),
    ("container_memory_rss", "Anonymous memory.", Gauge, &[]),
    ("container_memory_mapped_file", "Memory mapped files.", Gauge, &[]),
    ("container_memory_swap", "Swap usage.", Gauge, &[]),
    ("container_memory_kernel_usage", "Kernel memory allocated.", Gauge, &[]),
    ("container_memory_failures_total", "Page faults.", Counter, &["failure_type", "scope"]),
    ("container_oom_events_total", "Processes killed for want of memory.", Counter, &[]),
    (
        "container_blkio_device_usage_total",
        "Bytes moved by block devices.",
        Counter,
        &["device", "major", "minor", "operation"],
    ),
    ("container_fs_reads_bytes_total", "Bytes read.", Counter, &["device"]),
    ("container_fs_reads_total", "Reads completed.", Counter, &["device"]),
    ("container_fs_writes_bytes_total", "Bytes written.", Counter, &["device"]),
    ("container_fs_writes_total", "Writes completed.", Counter, &["device"]),
    (
        "container_fs_usage_bytes",
        "Bytes that the container has written to its file system.",
        Gauge,
        &["device"],
    ),
    ("container_fs_limit_bytes", "Bytes of that file system.", Gauge, &["device"]),
    ("container_fs_inodes_total", "Inodes of that file system.", Gauge, &["device"]),
    ("container_fs_inodes_free", "Free inodes of that file system.", Gauge, &["device"]),
    ("container_processes", "Processes in the container.", Gauge, &[]),
    ("container_threads", "Threads in the container.", Gauge, &[]),
    ("container_threads_max", "Most threads that are allowed; 0: no limit.", Gauge, &[]),
    ("container_file_descriptors", "Open file descriptors.", Gauge, &[]),
    ("container_sockets", "Open sockets.", Gauge, &[]),
    ("container_spec_cpu_period", "CPU period.", Gauge, &[]),
    ("container_spec_cpu_quota", "CPU quota; absent: no limit.", Gauge, &[]),
    ("container_spec_cpu_shares", "CPU shares.", Gauge, &[]),
    ("container_spec_memory_limit_bytes", "Memory limit; 0: none.", Gauge, &[]),
    ("container_spec_memory_swap_limit_bytes", "Memory and swap limit; 0: none.", Gauge, &[]),
    ("container_spec_memory_reservation_limit_bytes", "Memory reservation; 0: none.", Gauge, &[]),
    ("container_start_time_seconds", "Start time since the epoch.", Gauge, &[]),
    ("container_last_seen", "When the container was last seen, since the epoch.", Gauge, &[]),
];

/// Metrics of pods, whose network it is.
const OF_POD: [Described; 8] = [
    ("container_network_receive_bytes_total", "Bytes received.", Counter, &["interface"]),
    ("container_network_receive_packets_total", "Packets received.", Counter, &["interface"]),
    ("container_network_receive_errors_total", "Errors while receiving.", Counter, &["interface"]),
    (
        "container_network_receive_packets_dropped_total",
        "Packets dropped while receiving.",
        Counter,
        &["interface"],
    ),
    ("container_network_transmit_bytes_total", "Bytes sent.", Counter, &["interface"]),
    ("container_network_transmit_packets_total", "Packets sent.", Counter, &["interface"]),
    ("container_network_transmit_errors_total", "Errors while sending.", Counter, &["interface"]),
    (
        "container_network_transmit_packets_dropped_total",
        "Packets dropped while sending.",
        Counter,
        &["interface"],
    ),
];

/// Microseconds, nanoseconds and clock ticks (`USER_HZ`) in a second.
const MICROS: u64 = 1_000_000;
const NANOS: u64 = 1_000_000_000;
const TICKS: u64 = 100;

/// `ListMetricDescriptors`. PURE.
pub(super) fn descriptors() -> Vec<cri::MetricDescriptor> {
    let describe = |(name, help, _, extra): &Described| cri::MetricDescriptor {
        name: (*name).to_owned(),
        help: (*help).to_owned(),
        label_keys: LABELS.iter().chain(*extra).map(|key| (*key).to_owned()).collect(),
    };
    OF_CONTAINER.iter().chain(&OF_POD).map(describe).collect()
}

/// Whose metrics they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Whose {
    /// Values of `LABELS`.
    pub(super) labels: [String; 6],
}

/// Metrics of one container or pod.
struct Samples<'a> {
    table: &'a [Described],
    whose: &'a Whose,
    all: Vec<cri::Metric>,
}

impl Samples<'_> {
    fn add(&mut self, name: &str, extra: &[&str], value: Option<u64>) {
        let described = self.table.iter().find(|described| described.0 == name);
        let (Some((_, _, kind, keys)), Some(value)) = (described, value) else { return };
        debug_assert_eq!(keys.len(), extra.len(), "{name}");
        let extra = extra.iter().map(|value| (*value).to_owned());
        self.all.push(cri::Metric {
            name: name.to_owned(),
            // 0: gathered for this call.
            timestamp: 0,
            metric_type: (*kind).into(),
            label_values: self.whose.labels.iter().cloned().chain(extra).collect(),
            value: Some(cri::UInt64Value { value }),
        });
    }
}

/// What is known of a container without its cgroup.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) whose: Whose,
    /// The path of its cgroup within a hierarchy.
    pub(super) cgroup: String,
    pub(super) resources: cri::LinuxContainerResources,
    /// Nanoseconds since the epoch.
    pub(super) started_at: i64,
    pub(super) now: i64,
    /// Bytes that it has written to its root file system.
    pub(super) written: Option<u64>,
    /// A directory of the file system that has its root file system.
    pub(super) root_dir: PathBuf,
}

/// Metrics of a container.
pub(super) fn of_container(mounts: &Path, known: &Known) -> Vec<cri::Metric> {
    let files = Files { mounts, cgroup: &known.cgroup, unified: is_unified(mounts) };
    let mut samples = Samples { table: &OF_CONTAINER, whose: &known.whose, all: Vec::new() };
    cpu(&mut samples, &files);
    memory(&mut samples, &files);
    block_devices(&mut samples, &files);
    processes(&mut samples, &files);
    filesystem(&mut samples, known);
    specified(&mut samples, known);
    samples.all
}

/// Files of one cgroup.
struct Files<'a> {
    mounts: &'a Path,
    cgroup: &'a str,
    unified: bool,
}

impl Files<'_> {
    fn text(&self, controller: &str, file: &str) -> Option<String> {
        let path = controller_dir(self.mounts, controller, self.cgroup).join(file);
        String::from_utf8(read_start(&path, CGROUP_STAT_BYTES_MAX).ok()?).ok()
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        self.text(controller, file)?.trim().parse().ok()
    }

    /// The file of this machine's version of cgroups.
    fn of_version<'n>(&self, one: &'n str, two: &'n str) -> &'n str {
        if self.unified { two } else { one }
    }
}

fn cpu(samples: &mut Samples<'_>, files: &Files<'_>) {
    let stat = files.text("cpu", "cpu.stat").unwrap_or_default();
    let value = |name| field(&stat, name);
    let (usage, user, system, throttled) = if files.unified {
        let seconds = |name| value(name).map(|micros| micros / MICROS);
        (seconds("usage_usec"), seconds("user_usec"), seconds("system_usec"), seconds("throttled_usec"))
    } else {
        let ticks = files.text("cpuacct", "cpuacct.stat").unwrap_or_default();
        let seconds = |name| field(&ticks, name).map(|ticks| ticks / TICKS);
        let usage = files.number("cpuacct", "cpuacct.usage").map(|nanos| nanos / NANOS);
        (usage, seconds("user"), seconds("system"), value("throttled_time").map(|nanos| nanos / NANOS))
    };
    samples.add("container_cpu_usage_seconds_total", &[], usage);
    samples.add("container_cpu_user_seconds_total", &[], user);
    samples.add("container_cpu_system_seconds_total", &[], system);
    samples.add("container_cpu_cfs_periods_total", &[], value("nr_periods"));
    samples.add("container_cpu_cfs_throttled_periods_total", &[], value("nr_throttled"));
    samples.add("container_cpu_cfs_throttled_seconds_total", &[], throttled);
}

fn memory(samples: &mut Samples<'_>, files: &Files<'_>) {
    let stat = files.text("memory", "memory.stat").unwrap_or_default();
    let of_version = |one, two| field(&stat, files.of_version(one, two));
    let number = |one, two| files.number("memory", files.of_version(one, two));
    let usage = number("memory.usage_in_bytes", "memory.current");
    let inactive = of_version("total_inactive_file", "inactive_file").unwrap_or_default();
    let events = files.text("memory", "memory.events").unwrap_or_default();
    samples.add("container_memory_usage_bytes", &[], usage);
    samples.add("container_memory_working_set_bytes", &[], usage.map(|usage| usage.saturating_sub(inactive)));
    samples.add("container_memory_max_usage_bytes", &[], number("memory.max_usage_in_bytes", "memory.peak"));
    let hits = if files.unified { field(&events, "max") } else { files.number("memory", "memory.failcnt") };
    samples.add("container_memory_failcnt", &[], hits);
    samples.add("container_memory_cache", &[], of_version("total_cache", "file"));
    samples.add("container_memory_rss", &[], of_version("total_rss", "anon"));
    samples.add("container_memory_mapped_file", &[], of_version("total_mapped_file", "file_mapped"));
    let swap = if files.unified {
        files.number("memory", "memory.swap.current")
    } else {
        field(&stat, "total_swap")
    };
    // A machine without swap counts none.
    samples.add("container_memory_swap", &[], swap.or_else(|| usage.map(|_| 0)));
    let kernel = if files.unified {
        field(&stat, "kernel")
    } else {
        files.number("memory", "memory.kmem.usage_in_bytes")
    };
    samples.add("container_memory_kernel_usage", &[], kernel);
    for kind in ["pgfault", "pgmajfault"] {
        let own = field(&stat, kind);
        samples.add("container_memory_failures_total", &[kind, "container"], own);
        let total = field(&stat, &format!("total_{kind}"));
        samples.add("container_memory_failures_total", &[kind, "hierarchy"], total.or(own));
    }
    let control = files.text("memory", "memory.oom_control").unwrap_or_default();
    let killed = field(if files.unified { &events } else { &control }, "oom_kill");
    samples.add("container_oom_events_total", &[], killed);
}

/// What a block device has moved: bytes read, bytes written, reads, writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moved {
    device: String,
    counts: [u64; 4],
}

/// `io.stat` of cgroup v2. PURE.
fn moved_two(text: &str) -> Vec<Moved> {
    let of = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let count = |name: &str| {
            rest.split(' ')
                .find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .unwrap_or_default()
        };
        let counts = ["rbytes", "wbytes", "rios", "wios"].map(count);
        device.contains(':').then(|| Moved { device: device.to_owned(), counts })
    };
    text.lines().filter_map(of).collect()
}

/// `blkio.throttle.io_service_bytes` and `blkio.throttle.io_serviced` of cgroup v1. PURE.
fn moved_one(bytes: &str, operations: &str) -> Vec<Moved> {
    let mut all: Vec<Moved> = Vec::new();
    for (text, at) in [(bytes, 0), (operations, 2)] {
        for line in text.lines() {
            let parts: Vec<&str> = line.split(' ').collect();
            let [device, operation, count] = parts[..] else { continue };
            let at = match operation {
                "Read" => at,
                "Write" => at + 1,
                _ => continue,
            };
            let Ok(count) = count.parse() else { continue };
            let found = all.iter().position(|of| of.device == device);
            let found = found.unwrap_or_else(|| {
                all.push(Moved { device: device.to_owned(), ..Moved::default() });
                all.len() - 1
            });
            all[found].counts[at] = count;
        }
    }
    all
}

fn block_devices(samples: &mut Samples<'_>, files: &Files<'_>) {
    let text = |file| files.text(if files.unified { "io" } else { "blkio" }, file).unwrap_or_default();
    let moved = if files.unified {
        moved_two(&text("io.stat"))
    } else {
        moved_one(&text("blkio.throttle.io_service_bytes"), &text("blkio.throttle.io_serviced"))
    };
    for Moved { device: numbers, counts: [read, written, reads, writes] } in moved {
        let (major, minor) = numbers.split_once(':').unwrap_or_default();
        let device = device_name(&numbers);
        for (operation, bytes) in [("Read", read), ("Write", written)] {
            let labels = [&*device, major, minor, operation];
            samples.add("container_blkio_device_usage_total", &labels, Some(bytes));
        }
        samples.add("container_fs_reads_bytes_total", &[&device], Some(read));
        samples.add("container_fs_writes_bytes_total", &[&device], Some(written));
        samples.add("container_fs_reads_total", &[&device], Some(reads));
        samples.add("container_fs_writes_total", &[&device], Some(writes));
    }
}

/// `/dev/NAME` of a block device's numbers; empty: it has none.
fn device_name(numbers: &str) -> String {
    let path = Path::new("/sys/dev/block").join(numbers).join("uevent");
    let text = read_start(&path, CGROUP_STAT_BYTES_MAX).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

fn processes(samples: &mut Samples<'_>, files: &Files<'_>) {
    samples.add("container_threads", &[], files.number("pids", "pids.current"));
    let most = files.text("pids", "pids.max").map(|text| text.trim().parse().unwrap_or_default());
    samples.add("container_threads_max", &[], most);
    let Some(procs) = files.text("pids", "cgroup.procs") else { return };
    let (mut processes, mut descriptors, mut sockets) = (0, 0, 0);
    let mut left = METRICS_FILES_MAX;
    for pid in procs.lines().filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())) {
        processes += 1;
        if processes > METRICS_PROCESSES_MAX {
            continue;
        }
        // One that has ended meanwhile has none.
        let Ok(entries) = std::fs::read_dir(Path::new("/proc").join(pid).join("fd")) else { continue };
        for entry in entries.flatten().take(left) {
            left -= 1;
            descriptors += 1;
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
        }
    }
    samples.add("container_processes", &[], Some(u64::try_from(processes).unwrap_or(u64::MAX)));
    samples.add("container_file_descriptors", &[], Some(descriptors));
    samples.add("container_sockets", &[], Some(sockets));
}

fn filesystem(samples: &mut Samples<'_>, known: &Known) {
    let Ok(of) = Filesystem::of(&known.root_dir) else { return };
    let device = device_name(&format!("{}:{}", rustix::fs::major(of.device), rustix::fs::minor(of.device)));
    let device = [&*device];
    samples.add("container_fs_usage_bytes", &device, known.written);
    samples.add("container_fs_limit_bytes", &device, Some(of.bytes));
    samples.add("container_fs_inodes_total", &device, Some(of.inodes));
    samples.add("container_fs_inodes_free", &device, Some(of.inodes_free));
}

/// What the container's configuration says.
fn specified(samples: &mut Samples<'_>, known: &Known) {
    let of = &known.resources;
    let or =
        |value: i64, default| Some(u64::try_from(value).ok().filter(|value| *value > 0).unwrap_or(default));
    samples.add("container_spec_cpu_period", &[], or(of.cpu_period, 100_000));
    samples.add("container_spec_cpu_shares", &[], or(of.cpu_shares, 1024));
    samples.add("container_spec_cpu_quota", &[], u64::try_from(of.cpu_quota).ok().filter(|quota| *quota > 0));
    samples.add("container_spec_memory_limit_bytes", &[], or(of.memory_limit_in_bytes, 0));
    samples.add("container_spec_memory_swap_limit_bytes", &[], or(of.memory_swap_limit_in_bytes, 0));
    samples.add("container_spec_memory_reservation_limit_bytes", &[], Some(0));
    let seconds = |nanos: i64| u64::try_from(nanos).ok().map(|nanos| nanos / NANOS);
    samples.add("container_start_time_seconds", &[], seconds(known.started_at));
    samples.add("container_last_seen", &[], seconds(known.now));
}

/// Metrics of a pod: those of its network. `text` is `/proc/net/dev` in its namespace. PURE.
pub(super) fn of_pod(whose: &Whose, text: &str) -> Vec<cri::Metric> {
    let mut samples = Samples { table: &OF_POD, whose, all: Vec::new() };
    for line in text.lines() {
        let Some((name, counters)) = line.split_once(':') else { continue };
        let counters: Vec<u64> =
            counters.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let [
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            _,
            _,
            _,
            _,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
            ..,
        ] = counters[..]
        else {
            continue;
        };
        let name = name.trim();
        if name == "lo" {
            continue;
        }
        let values =
            [rx_bytes, rx_packets, rx_errors, rx_dropped, tx_bytes, tx_packets, tx_errors, tx_dropped];
        for ((metric, ..), value) in OF_POD.iter().zip(values) {
            samples.add(metric, &[name], Some(value));
        }
    }
    samples.all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metrics: &[cri::Metric], name: &str) -> Vec<(Vec<String>, u64)> {
        let of = metrics.iter().filter(|metric| metric.name == name);
        of.map(|metric| (metric.label_values[6..].to_vec(), metric.value.unwrap().value)).collect()
    }

    fn made(files: &[(&str, &str)]) -> (PathBuf, Vec<cri::Metric>) {
        let root =
            std::env::temp_dir().join(format!("smolet-metrics-{}-{}", std::process::id(), files.len()));
        let _ = std::fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let resources = cri::LinuxContainerResources { cpu_quota: 20_000, ..Default::default() };
        let known = Known {
            cgroup: "c1".into(),
            resources,
            started_at: 7_500_000_000,
            written: Some(9),
            root_dir: root.clone(),
            ..Default::default()
        };
        let metrics = of_container(&root, &known);
        (root, metrics)
    }

    #[test]
    fn both_versions_of_cgroups_have_the_same_metrics() {
        let (one, of_one) = made(&[
            ("cpu/c1/cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 3000000000\n"),
            ("cpuacct/c1/cpuacct.usage", "5000000000\n"),
            ("cpuacct/c1/cpuacct.stat", "user 300\nsystem 200\n"),
            ("memory/c1/memory.usage_in_bytes", "1000\n"),
            ("memory/c1/memory.max_usage_in_bytes", "1500\n"),
            ("memory/c1/memory.failcnt", "6\n"),
            ("memory/c1/memory.kmem.usage_in_bytes", "70\n"),
            ("memory/c1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            (
                "memory/c1/memory.stat",
                "pgfault 11\npgmajfault 12\ntotal_cache 500\ntotal_rss 400\ntotal_mapped_file 80\ntotal_swap 0\n\
                 total_inactive_file 300\ntotal_pgfault 11\ntotal_pgmajfault 12\n",
            ),
            (
                "blkio/c1/blkio.throttle.io_service_bytes",
                "999:1 Read 10\n999:1 Write 20\n999:1 Total 30\nTotal 30\n",
            ),
            ("blkio/c1/blkio.throttle.io_serviced", "999:1 Read 1\n999:1 Write 2\n"),
            ("pids/c1/pids.current", "3\n"),
            ("pids/c1/pids.max", "max\n"),
            ("pids/c1/cgroup.procs", "4000000000\n"),
        ]);
        let (two, of_two) = made(&[
            ("cgroup.controllers", "cpu io memory pids\n"),
            (
                "c1/cpu.stat",
                "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 4\nnr_throttled 2\nthrottled_usec 3000000\n",
            ),
            ("c1/memory.current", "1000\n"),
            ("c1/memory.peak", "1500\n"),
            ("c1/memory.events", "low 0\nhigh 0\nmax 6\noom 1\noom_kill 1\n"),
            (
                "c1/memory.stat",
                "anon 400\nfile 500\nkernel 70\nfile_mapped 80\ninactive_file 300\npgfault 11\npgmajfault 12\n",
            ),
            ("c1/io.stat", "999:1 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n"),
            ("c1/pids.current", "3\n"),
            ("c1/pids.max", "max\n"),
            ("c1/cgroup.procs", "4000000000\n"),
        ]);
        assert_eq!(of_one.len(), of_two.len());
        for (name, ..) in OF_CONTAINER {
            assert!(!value(&of_one, name).is_empty(), "{name}");
            if !["container_fs_limit_bytes", "container_fs_inodes_free"].contains(&name) {
                assert_eq!(value(&of_one, name), value(&of_two, name), "{name}");
            }
        }
        for (name, expected) in [
            ("container_cpu_cfs_throttled_seconds_total", 3),
            ("container_memory_working_set_bytes", 700),
            ("container_memory_kernel_usage", 70),
            ("container_oom_events_total", 1),
            ("container_threads_max", 0),
            ("container_spec_cpu_quota", 20_000),
            ("container_spec_cpu_period", 100_000),
            ("container_start_time_seconds", 7),
            ("container_fs_usage_bytes", 9),
        ] {
            assert_eq!(value(&of_one, name)[0].1, expected, "{name}");
        }
        for root in [one, two] {
            std::fs::remove_dir_all(root).unwrap();
        }
    }

    #[test]
    fn every_sample_has_a_value_for_each_label() {
        let text = "face |bytes\n  lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n eth0: 976 12 1 2 0 0 0 0 500 6 3 4 0 0 0 0\n";
        let samples = of_pod(&Whose::default(), text);
        assert_eq!(
            value(&samples, "container_network_transmit_errors_total"),
            [(vec!["eth0".to_owned()], 3)]
        );
        assert_eq!(samples.len(), OF_POD.len());
        let descriptors = descriptors();
        let (root, of_container) = made(&[("none", "")]);
        std::fs::remove_dir_all(root).unwrap();
        for sample in samples.iter().chain(&of_container) {
            let described = descriptors.iter().find(|described| described.name == sample.name).unwrap();
            assert_eq!(described.label_keys.len(), sample.label_values.len(), "{}", sample.name);
        }
    }
}
