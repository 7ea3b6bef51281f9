//! Shared by the integration tests: the fake CRI server, the API server, temporary directories, seeds and the agents' log.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
// Every test binary compiles this module and uses a part of it.
#![allow(dead_code)]

pub mod agent;
// Only with TLS, and where the crate for certificates builds (Cargo.toml).
#[cfg(all(feature = "tls", target_arch = "x86_64"))]
pub mod apiserver;
pub mod away;
#[cfg(all(feature = "tls", target_arch = "x86_64"))]
pub mod client;
pub mod fake;
pub mod gauge;
pub mod namespace;
pub mod rest;
pub mod runner;
pub mod seeds;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Measures elapsed time without the time in which some task of the machine waited for a processor (`/proc/pressure/cpu`): a
/// deadline of a test then does not depend on other load. Without that file all time counts.
pub struct Stopwatch {
    begun: Instant,
    resource: &'static str,
    waited: Duration,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self::without_waits_for("cpu")
    }

    /// The same without the time in which some task waited for a disk (`/proc/pressure/io`). A file system that never answers
    /// is no such wait.
    pub fn without_waits_for_disks() -> Self {
        Self::without_waits_for("io")
    }

    fn without_waits_for(resource: &'static str) -> Self {
        Self { begun: Instant::now(), resource, waited: waited_for(resource) }
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed().saturating_sub(waited_for(self.resource).saturating_sub(self.waited))
    }
}

/// Since the boot.
fn waited_for(resource: &str) -> Duration {
    let pressure = std::fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
    let some = pressure.lines().find(|line| line.starts_with("some "));
    let total = some.and_then(|line| line.split_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

/// Names tried for a temporary directory. Full: the test fails and says what to remove.
const FOLDER_NAMES_MAX: usize = 10_000;

/// Writes a script that can be executed at once. By another process: in one that a parallel test has just forked, the file would be open
/// for writing.
pub fn write_program(path: &Path, text: &str) {
    let source = path.with_extension("text");
    std::fs::write(&source, text).unwrap();
    let mut install = std::process::Command::new("install");
    let made = install.args(["-m", "755"]).args([&*source, path]).status().expect("install is in coreutils");
    assert!(made.success(), "{}", path.display());
}

/// A directory in the system's temporary directory, removed when dropped.
///
/// The path is short, because a Unix socket's has at most 107 bytes.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// On a tmpfs if the machine has one, where writing takes no disk time.
    pub fn in_memory() -> Self {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() { Self::below(shm) } else { Self::new() }
    }

    fn below(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // `runtime.sh leftovers` reads the PID from the name.
        let ours = format!("smolet-test-{}", std::process::id());
        for _ in 0..FOLDER_NAMES_MAX {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{ours}-{number}"));
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a test that was killed and had our PID.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("no temporary folder {}: {error}", path.display()),
            }
        }
        panic!("{}: full of folders of killed tests; remove {ours}-*", parent.display());
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    /// Unmounts the subpaths that an agent has mounted there.
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
        let mut below: Vec<&Path> = paths.filter(|path| path.starts_with(&self.0)).collect();
        below.sort_unstable();
        for path in below.into_iter().rev() {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lines of the agents' log that are kept, of all agents of a test binary. Full: the oldest are dropped.
const LOG_LINES_MAX: usize = 10_000;

/// The kept lines, each with the thread that logged it.
static LOG: Mutex<VecDeque<(u32, String)>> = Mutex::new(VecDeque::new());

/// What an agent has logged, as `LEVEL: TEXT`: warnings and information of the thread with that number.
pub fn log_of(tid: u32) -> Vec<String> {
    let log = LOG.lock().unwrap();
    log.iter().filter(|(of, _)| *of == tid).map(|(_, line)| line.clone()).collect()
}

/// The agents' log is kept for [`log_of`]; with `SMOLET_TEST_LOG` set it goes to standard error, too.
pub fn show_log() {
    struct Sink;
    impl log::Log for Sink {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.target().starts_with("smolet")
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                let line = format!("{}: {}", record.level(), record.args());
                if std::env::var_os("SMOLET_TEST_LOG").is_some() {
                    eprintln!("    {line}");
                }
                let mut log = LOG.lock().unwrap();
                if log.len() == LOG_LINES_MAX {
                    log.pop_front();
                }
                log.push_back((rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), line));
            }
        }
        fn flush(&self) {}
    }
    if log::set_logger(&Sink).is_ok() {
        log::set_max_level(log::LevelFilter::Info);
    }
}
