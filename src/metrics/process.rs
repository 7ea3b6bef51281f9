//! The kernel's statistics of this process.

use std::time::Duration;

/// Statistics of the process; 0 where the kernel has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// All memory in RAM, in KiB: with the code pages, which the kernel may drop and read again.
    pub rss_kib: u64,
    /// Anonymous memory among it, in KiB.
    pub anonymous_kib: u64,
    /// The greatest resident memory so far, in KiB.
    pub rss_max_kib: u64,
    /// Number of threads.
    pub threads: u64,
    /// Voluntary context switches of the main thread.
    pub sleeps: u64,
    /// Processor time.
    pub cpu: Duration,
    /// Bytes that it has made the kernel write to disks.
    pub written_bytes: u64,
}

impl Process {
    /// Parses the texts of `/proc/self/status` and `/proc/self/io`, one after the other. PURE.
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
            written_bytes: number("write_bytes"),
        }
    }

    /// Reads the statistics of this process.
    pub fn here() -> Self {
        let [status, io] = ["status", "io"]
            .map(|file| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default());
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = u64::try_from(cpu.tv_sec).unwrap_or(0);
        Self::parse(&(status + &io), Duration::new(seconds, u32::try_from(cpu.tv_nsec).unwrap_or(0)))
    }
}
