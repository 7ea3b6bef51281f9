//! What the kernel says of the agent's process, all its threads together.

use std::fs;
use std::time::Duration;

/// Resident memory now and at its highest, threads, CPU time, wake-ups and bytes written to disk.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    pub resident_kib: u64,
    pub resident_kib_max: u64,
    pub threads: u64,
    pub cpu: Duration,
    /// How often a thread waited for something, and therefore woke.
    pub wakeups: u64,
    pub disk_bytes: u64,
}

impl Finding {
    pub fn of(pid: u32) -> Self {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let number = |text: &str, key: &str| -> u64 {
            let line =
                text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
            line.split_whitespace().next().expect("a value").parse().expect("a number")
        };
        let status = read("status");
        let tasks = || fs::read_dir(format!("/proc/{pid}/task")).expect("the process has tasks").flatten();
        // Nanoseconds on a CPU, of each thread: the ticks of `stat` are far too coarse for an idle agent.
        let nanos = tasks().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        let wakeups = tasks().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("status")).ok()?;
            Some(number(&text, "voluntary_ctxt_switches:"))
        });
        Self {
            resident_kib: number(&status, "VmRSS:"),
            resident_kib_max: number(&status, "VmHWM:"),
            threads: number(&status, "Threads:"),
            cpu: Duration::from_nanos(nanos.sum()),
            wakeups: wakeups.sum(),
            disk_bytes: number(&read("io"), "write_bytes:"),
        }
    }
}
