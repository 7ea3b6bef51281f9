//! The kernel's statistics of this process, and of the runtime's.

use std::os::unix::net::UnixStream;
use std::path::Path;
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
        let number = |key: &str| number(status, key).unwrap_or(0);
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

/// Bytes that the process behind a Unix socket has made the kernel write to disks; `None` when it does not listen, or hides it.
/// Blocking: a process that hangs may not accept.
pub fn written_by_server(socket: &Path) -> Option<u64> {
    let peer = rustix::net::sockopt::socket_peercred(UnixStream::connect(socket).ok()?).ok()?;
    let io = std::fs::read_to_string(format!("/proc/{}/io", peer.pid.as_raw_nonzero())).ok()?;
    number(&io, "write_bytes")
}

/// PURE: the number of the line `KEY: NUMBER`.
fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_the_process_behind_a_socket_has_written_is_known() {
        let socket = std::env::temp_dir().join(format!("smolet-written-{}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        assert_eq!(written_by_server(&socket), None, "nobody listens");
        let listener = UnixListener::bind(&socket).unwrap();
        let before = Process::here().written_bytes;
        let found = written_by_server(&socket).expect("this very process");
        assert!((before..=Process::here().written_bytes).contains(&found), "{before} {found}");
        drop(listener);
        assert_eq!(written_by_server(&socket), None, "it has ended");
        std::fs::remove_file(&socket).unwrap();
    }
}
