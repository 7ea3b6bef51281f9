//! Usage of containers and pods, from the files of their cgroups: no process is started. I/O, blocking.
//!
//! The working set is the kubelet's and cAdvisor's: what is used without the inactive part of the page cache.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::namespaces::in_network;
use crate::filesystem::read_start;
use crate::limits::{CGROUP_STAT_BYTES_MAX, CPU_RATE_TIME_MIN};
use crate::model::{Mono, Now};
use crate::proto::runtime::v1 as cri;

/// A limit of so many bytes is none (containerd's `isMemoryUnlimited`, cAdvisor's `maxMemorySize`).
const UNLIMITED_BYTES: u64 = 1 << 62;

/// What a cgroup uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    cpu_nanos: Option<u64>,
    memory: Option<Memory>,
    processes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    usage: u64,
    working_set: u64,
    rss: u64,
    page_faults: u64,
    major_page_faults: u64,
    /// The most that it may use; `None`: there is no limit.
    limit: Option<u64>,
    /// Bytes of swap; `None`: they are not counted.
    swap: Option<u64>,
    /// The most of it; `None`: there is no limit for swap alone, as always with version 1.
    swap_limit: Option<u64>,
}

/// The path of a cgroup within a hierarchy, from `linux.cgroupsPath`: `SLICE:PREFIX:NAME` is systemd's scope in nested slices. PURE.
pub(super) fn cgroup_dir(cgroups_path: &str) -> String {
    let mut parts = cgroups_path.splitn(3, ':');
    let (Some(slice), Some(prefix), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return cgroups_path.trim_start_matches('/').to_owned();
    };
    format!("{}/{prefix}-{name}.scope", slice_dir(slice))
}

/// `a-b.slice` is `a.slice/a-b.slice` (systemd's nesting by the parts of a name). PURE.
fn slice_dir(slice: &str) -> String {
    let Some(name) = slice.strip_suffix(".slice").filter(|name| !name.contains('/')) else {
        return slice.trim_start_matches('/').to_owned();
    };
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("{}.slice", &name[..end])).collect::<Vec<_>>().join("/")
}

/// The path of a pod's cgroup within a hierarchy, from the CRI's `cgroup_parent`. PURE.
pub(super) fn parent_dir(parent: &str) -> String {
    let base = parent.rsplit('/').next().unwrap_or_default();
    slice_dir(if base.strip_suffix(".slice").is_some() { base } else { parent })
}

/// The directory of a controller's cgroup: of the only hierarchy of version 2, or the controller's own.
pub(super) fn controller_dir(mounts: &Path, controller: &str, cgroup: &str) -> PathBuf {
    if is_unified(mounts) { mounts.join(cgroup) } else { mounts.join(controller).join(cgroup) }
}

/// Version 2 is the only hierarchy.
pub(super) fn is_unified(mounts: &Path) -> bool {
    mounts.join("cgroup.controllers").exists()
}

/// What the cgroup of that path uses; values that cannot be read are absent.
pub(super) fn usage(mounts: &Path, cgroup: &str) -> Usage {
    let read = |controller: &str, file: &str| {
        let path = controller_dir(mounts, controller, cgroup).join(file);
        let bytes = read_start(&path, CGROUP_STAT_BYTES_MAX).ok()?;
        String::from_utf8(bytes).ok()
    };
    let number = |controller: &str, file: &str| read(controller, file)?.trim().parse::<u64>().ok();
    // `max` is no number, and what version 1 has for it is a page less than 2^63.
    let limit = |file: &str| number("memory", file).filter(|limit| *limit < UNLIMITED_BYTES);
    let unified = is_unified(mounts);
    let cpu_nanos = if unified {
        read("cpu", "cpu.stat")
            .and_then(|text| field(&text, "usage_usec"))
            .map(|micros| micros.saturating_mul(1000))
    } else {
        number("cpuacct", "cpuacct.usage")
    };
    let used = number("memory", if unified { "memory.current" } else { "memory.usage_in_bytes" });
    let memory = used.map(|used| {
        let stat = read("memory", "memory.stat").unwrap_or_default();
        let of_stat = memory_of(used, &stat, unified);
        if unified {
            let (swap, swap_limit) = (number("memory", "memory.swap.current"), limit("memory.swap.max"));
            Memory { limit: limit("memory.max"), swap, swap_limit, ..of_stat }
        } else {
            Memory { limit: limit("memory.limit_in_bytes"), ..of_stat }
        }
    });
    Usage { cpu_nanos, memory, processes: number("pids", "pids.current") }
}

/// PURE.
fn memory_of(usage: u64, stat: &str, unified: bool) -> Memory {
    let value = |name: &str| field(stat, name).unwrap_or_default();
    let (inactive, rss, faults, major) = if unified {
        ("inactive_file", "anon", "pgfault", "pgmajfault")
    } else {
        ("total_inactive_file", "total_rss", "total_pgfault", "total_pgmajfault")
    };
    Memory {
        usage,
        working_set: usage.saturating_sub(value(inactive)),
        rss: value(rss),
        page_faults: value(faults),
        major_page_faults: value(major),
        limit: None,
        swap: field(stat, "total_swap"),
        swap_limit: None,
    }
}

/// The number behind a name at a line's beginning. PURE.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A counter of CPU time at its last readings, from which its rate is (containerd's `getUsageNanoCores`). PURE.
#[derive(Debug, Default)]
pub(super) struct Rate(Cell<Option<Reading>>);

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Mono,
    nanos: u64,
    /// Between this reading and the one before.
    nano_cores: Option<u64>,
}

impl Rate {
    /// CPU time per second, in billionths of a CPU, between this reading of the counter and the last one that is a second older at
    /// least: several clients read. `None` with the first one, and when the counter began anew.
    fn read(&self, at: Mono, nanos: u64) -> Option<u64> {
        let last = self.0.get();
        if let Some(last) = last.filter(|last| at.since(last.at) < CPU_RATE_TIME_MIN) {
            return last.nano_cores;
        }
        let nano_cores = last.filter(|last| last.nanos <= nanos).and_then(|last| {
            let used = u128::from(nanos - last.nanos) * 1_000_000_000;
            u64::try_from(used / at.since(last.at).as_nanos()).ok()
        });
        self.0.set(Some(Reading { at, nanos, nano_cores }));
        nano_cores
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the CRI's fields are optional messages")]
fn some(value: u64) -> Option<cri::UInt64Value> {
    Some(cri::UInt64Value { value })
}

impl Usage {
    pub(super) fn cpu(&self, now: Now, rate: &Rate) -> Option<cri::CpuUsage> {
        let nanos = self.cpu_nanos?;
        Some(cri::CpuUsage {
            timestamp: now.wall.0,
            usage_core_nano_seconds: some(nanos),
            usage_nano_cores: rate.read(now.mono, nanos).and_then(some),
        })
    }

    pub(super) fn memory(&self, timestamp: i64) -> Option<cri::MemoryUsage> {
        let memory = self.memory?;
        Some(cri::MemoryUsage {
            timestamp,
            working_set_bytes: some(memory.working_set),
            usage_bytes: some(memory.usage),
            rss_bytes: some(memory.rss),
            page_faults: some(memory.page_faults),
            major_page_faults: some(memory.major_page_faults),
            // containerd has 0 where there is no limit, cAdvisor nothing.
            available_bytes: memory.limit.and_then(|limit| some(limit.saturating_sub(memory.working_set))),
        })
    }

    pub(super) fn swap(&self, timestamp: i64) -> Option<cri::SwapUsage> {
        let memory = self.memory?;
        let used = memory.swap?;
        Some(cri::SwapUsage {
            timestamp,
            swap_available_bytes: memory.swap_limit.and_then(|limit| some(limit.saturating_sub(used))),
            swap_usage_bytes: some(used),
        })
    }

    pub(super) fn processes(&self, timestamp: i64) -> Option<cri::ProcessUsage> {
        Some(cri::ProcessUsage { timestamp, process_count: some(self.processes?) })
    }
}

/// Counters of the interfaces in a network namespace.
pub(super) fn network(namespace: &Path, timestamp: i64) -> Option<cri::NetworkUsage> {
    let mut interfaces = interfaces(&network_counters(namespace)?);
    let at = interfaces.iter().position(|of| of.name == super::cni::INTERFACE)?;
    let default_interface = Some(interfaces.remove(at));
    Some(cri::NetworkUsage { timestamp, default_interface, interfaces })
}

/// `/proc/net/dev` of a network namespace, read by a thread that enters it and ends.
pub(super) fn network_counters(namespace: &Path) -> Option<String> {
    let read = || read_start(Path::new("/proc/thread-self/net/dev"), CGROUP_STAT_BYTES_MAX);
    String::from_utf8(in_network(namespace, read).ok()?.ok()?).ok()
}

/// `/proc/net/dev` without the loopback interface. PURE.
fn interfaces(text: &str) -> Vec<cri::NetworkInterfaceUsage> {
    let of = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<u64> =
            counters.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let [rx_bytes, _, rx_errors, _, _, _, _, _, tx_bytes, _, tx_errors, ..] = counters[..] else {
            return None;
        };
        Some(cri::NetworkInterfaceUsage {
            name: name.trim().to_owned(),
            rx_bytes: some(rx_bytes),
            rx_errors: some(rx_errors),
            tx_bytes: some(tx_bytes),
            tx_errors: some(tx_errors),
        })
    };
    text.lines().filter_map(of).filter(|interface| interface.name != "lo").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_both_drivers() {
        assert_eq!(cgroup_dir("/kubepods/burstable/podu/c1"), "kubepods/burstable/podu/c1");
        let nested =
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice/cri-containerd-c1.scope";
        assert_eq!(cgroup_dir("kubepods-burstable-podu.slice:cri-containerd:c1"), nested);
        let nested = "kubepods.slice/kubepods-podu.slice";
        assert_eq!(parent_dir("/kubepods.slice/kubepods-podu.slice"), nested);
        assert_eq!(parent_dir("/kubepods/podu"), "kubepods/podu");
    }

    #[test]
    fn the_working_set_has_no_inactive_page_cache() {
        let stat = "inactive_file 30\nanon 50\ntotal_inactive_file 40\ntotal_rss 60\npgfault 7\n";
        let two = memory_of(100, stat, true);
        assert_eq!((two.working_set, two.rss, two.page_faults), (70, 50, 7));
        let one = memory_of(30, stat, false);
        assert_eq!((one.working_set, one.rss), (0, 60));
    }

    /// A cgroup of files.
    fn read_memory(mounts: &Path, files: &[(&str, &str)]) -> (Option<u64>, Option<(Option<u64>, u64)>) {
        let _ = std::fs::remove_dir_all(mounts);
        for (file, text) in files {
            let path = mounts.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let of = |value: Option<cri::UInt64Value>| value.map(|value| value.value);
        let usage = usage(mounts, "c");
        let memory = usage.memory(7).expect("it has memory");
        let swap = usage.swap(7).map(|swap| {
            assert_eq!(swap.timestamp, 7);
            (of(swap.swap_available_bytes), of(swap.swap_usage_bytes).unwrap())
        });
        std::fs::remove_dir_all(mounts).unwrap();
        (of(memory.available_bytes), swap)
    }

    #[test]
    fn memory_and_swap_are_available_up_to_their_limits() {
        let mounts = std::env::temp_dir().join(format!("smolet-stats-{}", std::process::id()));
        let two = |more: &[(&'static str, &'static str)]| {
            let all = [
                ("cgroup.controllers", "memory\n"),
                ("c/memory.current", "100\n"),
                ("c/memory.stat", "inactive_file 30\n"),
            ];
            read_memory(&mounts, &[&all, more].concat())
        };
        assert_eq!(two(&[]), (None, None));
        assert_eq!(
            two(&[("c/memory.max", "max\n"), ("c/memory.swap.current", "0\n")]),
            (None, Some((None, 0)))
        );
        let limits =
            [("c/memory.max", "1000\n"), ("c/memory.swap.max", "50\n"), ("c/memory.swap.current", "20\n")];
        assert_eq!(two(&limits), (Some(930), Some((Some(30), 20))));
        // A limit that was lowered below what is used.
        assert_eq!(two(&[("c/memory.max", "60\n")]), (Some(0), None));
        let one = |limit: &'static str, stat: &'static str| {
            let all = [
                ("memory/c/memory.usage_in_bytes", "100\n"),
                ("memory/c/memory.stat", stat),
                ("memory/c/memory.limit_in_bytes", limit),
            ];
            read_memory(&mounts, &all)
        };
        assert_eq!(one("9223372036854771712\n", "total_inactive_file 30\n"), (None, None));
        assert_eq!(
            one("1000\n", "total_inactive_file 30\ntotal_swap 8192\n"),
            (Some(930), Some((None, 8192)))
        );
    }

    #[test]
    fn the_rate_of_cpu_time_is_between_two_readings() {
        let rate = Rate::default();
        let at = |ms: i64| Mono(ms * 1_000_000);
        for (ms, nanos, expected) in [
            (0, 5_000, None),
            // Another client, a moment later.
            (500, 400_005_000, None),
            (2_000, 500_005_000, Some(250_000_000)),
            (2_100, 900_005_000, Some(250_000_000)),
            (4_000, 500_005_000, Some(0)),
            // A new cgroup.
            (6_000, 10, None),
            (7_000, 2_000_000_010, Some(2_000_000_000)),
        ] {
            assert_eq!(rate.read(at(ms), nanos), expected, "{ms}");
        }
    }

    #[test]
    fn interfaces_of_a_pod() {
        let text = "Inter-|   Receive\n face |bytes packets\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 976 12 1 0 0 0 0 0 500 6 2 0 0 0 0 0\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].name, found[0].rx_bytes, found[0].tx_errors), ("eth0", some(976), some(2)));
    }
}
