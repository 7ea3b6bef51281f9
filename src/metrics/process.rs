//! What the kernel says of this process.

use std::time::Duration;

/// What the kernel says of the process; zeros where it says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// All memory in RAM, in KiB: with the code pages, which the kernel may drop and read again.
    pub rss_kib: u64,
    /// Of these what is the process' own, in KiB.
    pub anonymous_kib: u64,
    /// The most it has been, in KiB.
    pub rss_max_kib: u64,
    /// Threads.
    pub threads: u64,
    /// How often the main thread went to sleep.
    pub sleeps: u64,
    /// Time on a processor.
    pub cpu: Duration,
}

impl Process {
    /// Reads the text of `/proc/self/status`. PURE.
    pub fn parse(status: &str, cpu: Duration) -> Self {
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self {
            rss_kib: number("VmRSS"),
            anonymous_kib: number("RssAnon"),
            rss_max_kib: number("VmHWM"),
            threads: number("Threads"),
            sleeps: number("voluntary_ctxt_switches"),
            cpu,
        }
    }

    /// This process, now.
    pub fn here() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = u64::try_from(cpu.tv_sec).unwrap_or(0);
        Self::parse(&status, Duration::new(seconds, u32::try_from(cpu.tv_nsec).unwrap_or(0)))
    }
}
