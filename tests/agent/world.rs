//! The world of a test: a fake runtime, an agent on its own thread, and virtual time for both.
//!
//! Time advances only in [`World::step`]: by a second, then the agent's next relist and everything it starts are waited for (in
//! real time), so that every call to the runtime has the second it belongs to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::List;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smolet::clock::VirtualClock;
use smolet::config::{Config, Flags};
use smolet::model::Wall;
use smolet::node::{Ending, Stop};

use crate::common::agent::{Ended, Home, Life, MAIN_THREAD, Waits, endpoint};
pub use crate::common::agent::{NODE, PATIENCE, answer, ask, full, manifest};
use crate::common::fake::{Fake, State};
use crate::common::gauge::Gauge;
use crate::common::show_log;

pub const START: Wall = Wall(1_770_000_000_000_000_000);
/// Virtual time that [`World::until`] allows.
const SECONDS_MAX: u32 = 90;
/// How long work on the disk may take, or hang on purpose, before time advances without it.
const DISK_PATIENCE: Duration = Duration::from_secs(3);
/// Consecutive works on the disk that are waited for before time advances: a sandbox and a container take some ten.
const DISK_WORKS_MAX: usize = 12;

pub struct World {
    pub fake: Fake,
    pub clock: VirtualClock,
    home: Home,
    agent: RefCell<Option<Watched>>,
    /// The runtime answers no relist, so none is waited for.
    silent: Cell<bool>,
    /// The runtime has an event stream, so that relists are rare.
    seldom: Cell<bool>,
}

/// A run of the agent, with its gauge.
struct Watched {
    life: Life,
    gauge: Arc<Gauge>,
    echo: UnixStream,
}

impl Watched {
    fn begin(config: Config, once: bool, clock: VirtualClock) -> Self {
        let gauge = Arc::new(Gauge::default());
        let (echo, echoing) = UnixStream::pair().unwrap();
        echo.set_read_timeout(Some(PATIENCE)).unwrap();
        let life = Life::begin(config, once, clock, Waits::InTheGauge(gauge.clone()), |executor| {
            executor.spawn("test", send_back(echoing)).detach();
            MainThread::enter()
        });
        Self { life, gauge, echo }
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

/// The main threads of this process' agents.
static MAIN_THREADS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Identifies an agent's main thread among threads that it has just started.
struct MainThread(PathBuf);

impl MainThread {
    fn enter() -> Self {
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

fn is_at_the_disk() -> bool {
    !at_the_disk().is_empty()
}

impl World {
    /// A runtime with the images `busybox:1`, `busybox:2` and `busybox:3`; no agent yet.
    pub fn without_agent() -> Self {
        show_log();
        let clock = VirtualClock::new(START);
        let fake = Fake::start(clock.clone());
        // As every runtime has; the agent requests a log that does not exist.
        fake.state().writes_logs = true;
        for version in 1..=3 {
            fake.add_image(&format!("busybox:{version}"));
        }
        Self {
            fake,
            clock,
            home: Home::new(),
            agent: RefCell::new(None),
            silent: Cell::new(false),
            seldom: Cell::new(false),
        }
    }

    /// An agent with an empty manifest directory.
    pub fn new() -> Self {
        let world = Self::without_agent();
        world.start();
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    pub fn config(&self) -> Config {
        let flags = Flags { runtime_endpoint: Some(endpoint(&self.fake)), ..self.home.flags() };
        self.home.config(&flags)
    }

    // ---- the agent's life ------------------------------------------------------------------------------

    /// Starts the agent and waits until it is idle.
    pub fn start(&self) {
        self.start_with(self.config());
    }

    /// The same with another configuration.
    pub fn start_with(&self, config: Config) {
        self.spawn(config, false);
        self.wait("the first relist", |world| world.silent.get() || world.fake.count("ListContainers") > 0);
        self.settle();
    }

    /// Starts the agent while the runtime may have faults: it may take a while until it acts.
    pub fn start_in_trouble(&self) {
        self.spawn(self.config(), false);
        self.wait("the socket", |world| world.path("sock").exists());
        self.settle();
    }

    /// Starts an agent without waiting for anything.
    pub fn spawn(&self, config: Config, once: bool) {
        // Only calls of this run count as its relists.
        self.fake.clear_calls();
        let life = Watched::begin(config, once, self.clock.clone());
        assert!(self.agent.replace(Some(life)).is_none(), "one agent at a time");
    }

    /// A second agent with another configuration.
    pub fn second(&self, config: Config) -> Ended {
        Watched::begin(config, false, self.clock.clone()).life.end()
    }

    /// As `systemctl stop`.
    pub fn stop(&self) {
        self.agent.take().expect("an agent runs").life.stop();
    }

    /// Sends the agent a signal about the shutdown of the machine or of itself.
    pub fn tell(&self, stop: Stop) {
        self.agent.borrow().as_ref().expect("an agent runs").life.tell(stop);
    }

    /// True when the agent has ended by itself.
    pub fn has_stopped(&self) -> bool {
        let ended = self.agent.borrow().as_ref().is_some_and(|agent| agent.life.is_over());
        if ended {
            let agent = self.agent.take().expect("an agent ran");
            assert_eq!(agent.life.end(), Ok(Some(Ending::Stopped)));
        }
        ended
    }

    /// As `kill -9`.
    pub fn kill(&self) {
        self.agent.take().expect("an agent runs").life.kill();
    }

    /// Runs `smolet run --once` to its end.
    pub fn once(&self) -> (Vec<String>, bool) {
        self.silent(true);
        self.spawn(self.config(), true);
        // Time that advances while it looks for the runtime would count as the runtime's timeout.
        self.wait("a relist", |world| world.relists() > 0);
        let begun = Instant::now();
        while self.agent.borrow().as_ref().is_some_and(|agent| !agent.life.is_over()) {
            assert!(begun.elapsed() < PATIENCE, "--once does not end: {:?}", self.fake.actions());
            self.settle();
            self.settle_disk();
            self.clock.advance(Duration::from_secs(1));
        }
        match self.agent.take().unwrap().life.end() {
            Ok(Some(Ending::Once { lines, all_well })) => (lines, all_well),
            other => panic!("--once ended with {other:?}"),
        }
    }

    // ---- time ------------------------------------------------------------------------------------------

    /// The runtime is not expected to answer relists.
    pub fn silent(&self, silent: bool) {
        self.silent.set(silent);
    }

    /// No relist is waited for: the runtime reports events.
    pub fn seldom(&self, seldom: bool) {
        self.seldom.set(seldom);
    }

    pub fn relists(&self) -> usize {
        self.fake.state().relists
    }

    /// Waits until a relist began after `before`. On a busy machine the last step may have ended during the previous relist;
    /// the next one is then due a second later, and needs another step.
    fn await_relist(&self, before: usize) {
        if self.silent.get() || self.seldom.get() {
            return;
        }
        let mut still = Instant::now();
        let mut turns = self.turns();
        self.wait("a relist", |world| {
            let moves = world.turns() != turns || !world.fake.is_idle() || is_at_the_disk();
            if moves {
                turns = world.turns();
                still = Instant::now();
            } else if still.elapsed() > Duration::from_secs(1) {
                still = Instant::now();
                world.clock.advance(Duration::from_secs(1));
            }
            world.relists() > before
        });
    }

    /// Advances by a second, and waits for everything that follows at once.
    pub fn step(&self) {
        self.leap(1);
    }

    /// Advances by so many seconds at once, with one relist at the end.
    pub fn leap(&self, seconds: u64) {
        self.settle_disk();
        let before = self.relists();
        self.clock.advance(Duration::from_secs(seconds));
        self.await_relist(before);
        self.settle();
        self.settle_disk();
    }

    /// Advances by that time, with or without a relist.
    pub fn leap_for(&self, time: Duration) {
        self.settle_disk();
        self.clock.advance(time);
        self.settle();
        self.settle_disk();
    }

    /// Seconds since boot.
    pub fn seconds(&self) -> i64 {
        use smolet::clock::Clock as _;
        self.clock.now().mono.0 / 1_000_000_000
    }

    /// Advances by so many seconds, one by one.
    pub fn pass(&self, seconds: u32) {
        for _ in 0..seconds {
            self.step();
        }
    }

    /// Advances virtual time until `holds` returns true.
    pub fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        self.settle();
        self.settle_disk();
        for _ in 0..SECONDS_MAX {
            if holds(self) {
                return;
            }
            self.step();
        }
        panic!("{SECONDS_MAX} s went by without {what}; {}", self.trace());
    }

    /// What follows from the work at the disk comes about, and what follows from that: a start has some such works, one after the
    /// other. Those of others' agents count too, so not for ever.
    fn settle_disk(&self) {
        for _ in 0..DISK_WORKS_MAX {
            let was_there = self.await_disk();
            // One that has just ended is not there any more, and its agent may not have heard of it.
            self.settle();
            if !was_there && !is_at_the_disk() {
                return;
            }
        }
    }

    /// Waits until no agent's thread is at the disk, for no time is to go by meanwhile; whether one was. What waits there all
    /// the time hangs.
    fn await_disk(&self) -> bool {
        let begun = Instant::now();
        let mut there = at_the_disk();
        let was_there = !there.is_empty();
        let mut all_the_time = there.clone();
        while !there.is_empty() && begun.elapsed() < DISK_PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
            there = at_the_disk();
            all_the_time.retain(|(task, waits)| *waits && there.contains(&(task.clone(), true)));
        }
        if !there.is_empty() {
            HANGING.lock().unwrap().extend(all_the_time.into_iter().map(|(task, _)| task));
        }
        was_there
    }

    /// Waits in real time; virtual time stands still.
    pub fn wait(&self, what: &str, mut holds: impl FnMut(&World) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let ended = self.agent.borrow().as_ref().is_some_and(|agent| agent.life.is_over());
            if ended {
                panic!(
                    "waiting for {what}, the agent ended: {:?}",
                    self.agent.take().map(|agent| agent.life.end())
                );
            }
            assert!(begun.elapsed() < PATIENCE, "waited for {what}; {}", self.trace());
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Waits until the agent waits for nothing but time (or an answer that a fault holds back).
    ///
    /// A byte that comes back from it on a socket shows that all that could be read before it was read: the reactor hands
    /// out readiness in order.
    pub fn settle(&self) {
        let mut quiet = 0;
        while quiet < 2 {
            let Some(calls) = self.await_calm() else { return };
            if !self.agent.borrow().as_ref().is_some_and(Watched::answers) {
                return;
            }
            let Some(after) = self.await_calm() else { return };
            quiet = if calls == after { quiet + 1 } else { 0 };
        }
    }

    /// Waits until nothing moves; the number of calls so far. `None` when the agent has ended.
    fn await_calm(&self) -> Option<usize> {
        let begun = Instant::now();
        let mut last = None;
        loop {
            let (idle, turns) = self.agent.borrow().as_ref().and_then(|agent| {
                (!agent.life.is_over()).then(|| (agent.gauge.idle(), agent.gauge.turns()))
            })?;
            // An answer is on its way until the runtime's thread has nothing left to do.
            let at_work = !self.fake.is_idle();
            let (active, calls) = {
                let state = self.fake.state();
                (at_work || state.is_active(), state.calls.len())
            };
            if idle && !active && last == Some((turns, calls)) {
                return Some(calls);
            }
            last = (idle && !active).then_some((turns, calls));
            assert!(
                begun.elapsed() < PATIENCE,
                "no rest: agent idle {idle}, runtime active {active}, {turns} turns, {calls} calls; {}",
                self.trace()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// How often the agent's thread woke so far.
    pub fn turns(&self) -> u64 {
        self.agent.borrow().as_ref().map_or(0, |agent| agent.gauge.turns())
    }

    pub fn trace(&self) -> String {
        format!("actions so far:\n  {}\n", self.fake.actions().join("\n  "))
    }

    // ---- manifests -------------------------------------------------------------------------------------

    /// Writes `NAME.yaml` with a pod of that name and this `spec`.
    pub fn put(&self, name: &str, spec: &str) {
        self.put_text(name, &manifest(name, spec));
    }

    pub fn put_text(&self, file: &str, text: &str) {
        self.home.put(file, text);
    }

    pub fn remove(&self, file: &str) {
        self.home.remove(file);
    }

    /// Writes the manifest and waits until all its app containers run.
    pub fn run(&self, name: &str, spec: &str) {
        self.put(name, spec);
        self.until(&format!("{name} running"), |world| world.phase(name) == "Running");
    }

    // ---- what the agent says ---------------------------------------------------------------------------

    /// One request on the local socket: the status line's code and the body.
    pub fn ask(&self, path: &str) -> (u16, String) {
        self.home.ask(path)
    }

    /// The same with a POST of that body.
    pub fn post(&self, path: &str, body: &[u8]) -> (u16, String) {
        let mut stream = self.home.socket();
        let head = format!("POST {path} HTTP/1.1\r\nHost: smolet\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        answer(stream)
    }

    pub fn pods(&self) -> Vec<Pod> {
        let (code, body) = self.ask("/pods");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<List<Pod>>(&body).expect("/pods is a v1.PodList").items
    }

    /// The pod of the manifest `name`.
    pub fn pod(&self, name: &str) -> Option<Pod> {
        let name = full(name);
        self.pods().into_iter().find(|pod| pod.metadata.name.as_deref() == Some(&name))
    }

    pub fn phase(&self, name: &str) -> String {
        self.pod(name).and_then(|pod| pod.status?.phase).unwrap_or_default()
    }

    pub fn status_of(&self, name: &str, container: &str) -> Option<ContainerStatus> {
        let status = self.pod(name)?.status?;
        let all = status.init_container_statuses.into_iter().chain(status.container_statuses);
        let all = all.chain(status.ephemeral_container_statuses).flatten();
        all.into_iter().find(|status| status.name == container)
    }

    /// A waiting container's reason and message.
    pub fn waiting(&self, name: &str, container: &str) -> (String, String) {
        let waiting = self.status_of(name, container).and_then(|status| status.state?.waiting);
        let waiting = waiting.unwrap_or_default();
        (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
    }

    pub fn describe(&self, name: &str) -> String {
        let (code, body) = self.ask(&format!("/describe?pod={name}"));
        assert_eq!(code, 200, "{body}");
        body
    }

    /// The output of `smolet pods`, with problems of manifests.
    pub fn table(&self) -> String {
        self.ask("/pods?output=table").1
    }

    // ---- what the runtime saw --------------------------------------------------------------------------

    /// The changing calls, without the node's name: `StopContainer web/app#0 grace=30`.
    pub fn actions(&self) -> Vec<String> {
        self.fake.actions().iter().map(|call| call.replace(&format!("-{NODE}"), "")).collect()
    }

    /// Number of changing calls that begin like this.
    pub fn count(&self, call: &str) -> usize {
        self.actions().iter().filter(|action| action.starts_with(call)).count()
    }

    /// Seconds since boot of the calls that begin like this.
    pub fn times(&self, call: &str) -> Vec<i64> {
        let of = |text: String| text.replace(&format!("-{NODE}"), "").starts_with(call);
        let state = self.fake.state();
        let calls = state.calls.iter().filter(|call| of(call.to_string()));
        calls.map(|call| call.mono.0 / 1_000_000_000).collect()
    }

    /// All running containers as `web/app#0`.
    pub fn running(&self) -> Vec<String> {
        self.fake.state().running().iter().map(|name| name.replace(&format!("-{NODE}"), "")).collect()
    }

    /// The pod's log directory.
    pub fn logs(&self, name: &str) -> PathBuf {
        self.path("logs").join(format!("default_{}_{}", full(name), self.uid(name)))
    }

    /// The pod's directory below the state directory.
    pub fn pod_dir(&self, name: &str) -> PathBuf {
        self.path("root").join("pods").join(self.uid(name))
    }

    /// The UID of the newest sandbox of that pod; empty without one.
    pub fn uid(&self, name: &str) -> String {
        let state = self.fake.state();
        let metadata = state.sandbox(&full(name)).and_then(|sandbox| sandbox.config.metadata.clone());
        metadata.map(|metadata| metadata.uid).unwrap_or_default()
    }

    pub fn sandbox<T>(&self, name: &str, look: impl FnOnce(&crate::common::fake::Sandbox) -> T) -> T {
        let state: &State = &self.fake.state();
        look(state.sandbox(&full(name)).unwrap_or_else(|| panic!("no sandbox of {name}")))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(agent) = self.agent.take() {
            let panicked = agent.life.abandon();
            assert!(!panicked || std::thread::panicking(), "the agent panicked");
        }
        if !std::thread::panicking() {
            let violations = self.fake.state().violations.clone();
            assert!(violations.is_empty(), "{violations:#?}\n{}", self.trace());
        }
    }
}

/// Names below a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
