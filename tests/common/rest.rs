//! When an agent waits for nothing but time, so that a test advances virtual time: its thread is idle, its peers have answered
//! everything, and none of its threads works on the disk.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smolet::clock::VirtualClock;
use smolet::config::Config;

use super::Stopwatch;
use super::agent::{Life, MAIN_THREAD, PATIENCE, Waits};
use super::gauge::Gauge;

/// How long work on the disk may take, or hang on purpose, before time advances without it. The time in which the machine waits
/// for a disk does not count: an fsync beside others' writes takes longer than that now and then.
const DISK_PATIENCE: Duration = Duration::from_secs(3);
/// With the time in which the machine waits for a disk.
const BUSY_DISK_PATIENCE: Duration = Duration::from_secs(15);
/// Consecutive works on the disk that are waited for before time advances: a sandbox and a container take some ten.
const DISK_WORKS_MAX: usize = 12;

/// A run of the agent on virtual time, with its gauge.
pub struct Watched {
    pub life: Life,
    gauge: Arc<Gauge>,
    echo: UnixStream,
}

/// What the peers of an agent do.
pub struct PeersActivity {
    /// A message was received and is not answered yet, or an answer is not written. Answers that a fault or a delay holds back
    /// do not count.
    pub active: bool,
    /// Messages since the start.
    pub messages: u64,
}

impl Watched {
    pub fn begin(config: Config, once: bool, clock: VirtualClock) -> Self {
        let gauge = Arc::new(Gauge::default());
        let (echo, echoing) = UnixStream::pair().unwrap();
        echo.set_read_timeout(Some(PATIENCE)).unwrap();
        let life = Life::begin(config, once, clock, Waits::InTheGauge(gauge.clone()), |executor| {
            executor.spawn("test", send_back(echoing)).detach();
        });
        Self { life, gauge, echo }
    }

    /// How often the agent's thread woke so far.
    pub fn turns(&self) -> u64 {
        self.gauge.turns()
    }

    /// False while the agent's thread has something to do, also when no processor runs it yet.
    pub fn is_idle(&self) -> bool {
        self.gauge.idle()
    }

    /// Waits until the agent waits for nothing but time, or an answer that a fault holds back, or has ended.
    ///
    /// A byte that comes back from it on a socket shows that all that could be read before it was read: the reactor hands
    /// out readiness in order.
    pub fn settle(&self, peers: impl Fn() -> PeersActivity, trace: impl Fn() -> String) {
        let mut quiet = 0;
        while quiet < 2 {
            let Some(before) = self.await_calm(&peers, &trace) else { return };
            if !self.answers() {
                return;
            }
            let Some(after) = self.await_calm(&peers, &trace) else { return };
            quiet = if before == after { quiet + 1 } else { 0 };
        }
    }

    /// As [`Watched::settle`], with what follows from the work at the disk, and what follows from that: a start has some such
    /// works, one after the other. Those of others' agents count too, so not for ever.
    pub fn settle_disk(&self, peers: impl Fn() -> PeersActivity, trace: impl Fn() -> String) {
        for _ in 0..DISK_WORKS_MAX {
            let was_there = await_disk();
            // One that has just ended is not there any more, and its agent may not have heard of it.
            self.settle(&peers, &trace);
            if !was_there && !is_at_the_disk() {
                return;
            }
        }
    }

    /// Waits until nothing moves; the number of messages so far. `None` when the agent has ended.
    fn await_calm(&self, peers: impl Fn() -> PeersActivity, trace: impl Fn() -> String) -> Option<u64> {
        let begun = Instant::now();
        let mut last = None;
        loop {
            if self.life.is_over() {
                return None;
            }
            let (idle, turns) = (self.gauge.idle(), self.gauge.turns());
            let PeersActivity { active, messages } = peers();
            if idle && !active && last == Some((turns, messages)) {
                return Some(messages);
            }
            last = (idle && !active).then_some((turns, messages));
            assert!(
                begun.elapsed() < PATIENCE,
                "no rest: agent idle {idle}, peers active {active}, {turns} turns, {messages} messages; {}",
                trace()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until the agent's executor has echoed a byte on a socket; false when it has ended.
    fn answers(&self) -> bool {
        let mut echo = &self.echo;
        let answer = echo.write_all(&[0]).and_then(|()| echo.read_exact(&mut [0]));
        let late = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!late, "the agent's thread does nothing else for {PATIENCE:?}");
        answer.is_ok()
    }
}

/// Echoes until the peer is closed.
async fn send_back(stream: UnixStream) {
    let mut stream = async_io::Async::new(stream).unwrap();
    let mut byte = [0];
    while stream.read_exact(&mut byte).await.is_ok() && stream.write_all(&byte).await.is_ok() {}
}

// ---- threads at the disk -------------------------------------------------------------------------------

/// The main threads of this process' agents.
static MAIN_THREADS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Identifies an agent's main thread among threads that it has just started.
pub struct MainThread(PathBuf);

impl MainThread {
    pub fn enter() -> Self {
        // "PID/task/TID", of /proc.
        let here = std::fs::read_link("/proc/thread-self").unwrap();
        let task = Path::new("/proc/self/task").join(here.file_name().unwrap());
        MAIN_THREADS.lock().unwrap().insert(task.clone());
        Self(task)
    }
}

impl Drop for MainThread {
    fn drop(&mut self) {
        MAIN_THREADS.lock().unwrap().remove(&self.0);
    }
}

/// Threads that hang on purpose: they were waited for once, for [`DISK_PATIENCE`].
static HANGING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The threads of agents that work on the disk or wait for it: the agent waits for them, not for time. Another test's thread
/// may be among them, which costs a moment. For each, whether it waits: for a disk, or for a lock, as in an emulator's memory
/// map or in the C library, at the start of the thread too.
fn at_the_disk() -> Vec<(PathBuf, bool)> {
    let mut hanging = HANGING.lock().unwrap();
    let mut still = BTreeSet::new();
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        // "TID (NAME) STATE ...": R is runnable, D waits for a disk, S for a lock. It may have exited meanwhile.
        let task = task.path();
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        let (name, state) =
            stat.split_once('(').and_then(|(_, rest)| rest.split_once(") ")).unwrap_or_default();
        let is_new = || name == MAIN_THREAD && !MAIN_THREADS.lock().unwrap().contains(&task);
        if name != "blocking" && !is_new() {
            continue;
        }
        let waits = state.starts_with(['D', 'S']);
        if waits && hanging.contains(&task) {
            still.insert(task);
        } else if waits || state.starts_with('R') {
            found.push((task, waits));
        }
    }
    *hanging = still;
    found
}

pub fn is_at_the_disk() -> bool {
    !at_the_disk().is_empty()
}

/// Waits until no agent's thread is at the disk, for no time is to go by meanwhile; whether one was. What waits there all
/// the time hangs.
fn await_disk() -> bool {
    let (begun, counted) = (Instant::now(), Stopwatch::without_waits_for_disks());
    let mut there = at_the_disk();
    let was_there = !there.is_empty();
    let mut all_the_time = there.clone();
    while !there.is_empty() && counted.elapsed() < DISK_PATIENCE && begun.elapsed() < BUSY_DISK_PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
        there = at_the_disk();
        all_the_time.retain(|(task, waits)| *waits && there.contains(&(task.clone(), true)));
    }
    if !there.is_empty() {
        HANGING.lock().unwrap().extend(all_the_time.into_iter().map(|(task, _)| task));
    }
    was_there
}
