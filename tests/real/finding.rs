//! What the kernel says of the agent's process.

use std::fs;
use std::time::{Duration, Instant};

/// Resident memory now and at its highest, threads, CPU time, voluntary context switches and bytes written to disk.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    pub resident_kib: u64,
    /// Of these, what no file backs: heap, stacks, written data.
    pub anonymous_kib: u64,
    pub resident_kib_max: u64,
    pub threads: u64,
    pub cpu: Duration,
    /// Of all threads: each time one of them waited and was woken.
    pub wakeups: u64,
    pub disk_bytes: u64,
}

impl Finding {
    pub fn of(pid: u32) -> Self {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let (status, memory) = (read("status"), read("smaps_rollup"));
        let tasks: Vec<_> =
            fs::read_dir(format!("/proc/{pid}/task")).expect("the process has tasks").flatten().collect();
        // A thread may end meanwhile.
        let of_tasks = |file: &str| -> Vec<String> {
            tasks.iter().filter_map(|task| fs::read_to_string(task.path().join(file)).ok()).collect()
        };
        // Nanoseconds on a CPU, of each thread: the ticks of `stat` are far too coarse for an idle agent.
        let nanos = of_tasks("schedstat")
            .iter()
            .map(|text| text.split_whitespace().next().expect("a value").parse::<u64>().expect("a number"))
            .sum();
        Self {
            resident_kib: number(&memory, "Rss:"),
            anonymous_kib: number(&memory, "Anonymous:"),
            resident_kib_max: number(&status, "VmHWM:"),
            threads: number(&status, "Threads:"),
            cpu: Duration::from_nanos(nanos),
            wakeups: of_tasks("status").iter().map(|text| number(text, "voluntary_ctxt_switches:")).sum(),
            disk_bytes: number(&read("io"), "write_bytes:"),
        }
    }
}

/// Memory of a process with a share of the pages that it shares with others; 0 when it has ended.
#[allow(dead_code, reason = "the benchmark's")]
pub fn pss_kib(pid: u32) -> u64 {
    let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    if memory.contains("Pss:") { number(&memory, "Pss:") } else { 0 }
}

fn number(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
    line.split_whitespace().next().expect("a value").parse().expect("a number")
}

/// Waits until the process has written nothing for that long: what its start leaves to be written out waits for a busy disk.
#[allow(dead_code, reason = "not the benchmark's")]
pub fn settle(pid: u32, time: Duration) {
    let begun = Instant::now();
    let (mut at, mut written) = (begun, Finding::of(pid).disk_bytes);
    while at.elapsed() < time {
        assert!(begun.elapsed() < time * 8, "the process writes on and on: {written} bytes by now");
        std::thread::sleep(Duration::from_millis(500));
        let now = Finding::of(pid).disk_bytes;
        if now != written {
            (at, written) = (Instant::now(), now);
        }
    }
}

/// What a process costs while nothing happens.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// At the end of the watch.
    pub end: Finding,
    pub cpu_ms_per_minute: f64,
    pub wakeups_per_minute: f64,
    /// In the whole watch.
    pub disk_bytes: u64,
}

impl Idle {
    /// Watches the process that long.
    pub fn watch(pid: u32, time: Duration) -> Self {
        let (at, before) = (Instant::now(), Finding::of(pid));
        std::thread::sleep(time);
        let end = Finding::of(pid);
        let minutes = at.elapsed().as_secs_f64() / 60.0;
        // A thread that ended in between took its count along.
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        Self {
            end,
            cpu_ms_per_minute: end.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e3 / minutes,
            wakeups_per_minute: since(end.wakeups, before.wakeups) / minutes,
            disk_bytes: end.disk_bytes.saturating_sub(before.disk_bytes),
        }
    }
}
