//! The world of a test: a fake runtime, an agent on its own thread, and virtual time for both.
//!
//! Time advances only in [`World::step`]: by a second, then the agent's next relist and everything it starts are waited for (in
//! real time), so that every call to the runtime has the second it belongs to.

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::List;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use smolet::clock::VirtualClock;
use smolet::config::{Config, Flags};
use smolet::model::Wall;
use smolet::node::{Ending, Stop};

use crate::common::agent::{Ended, Home, endpoint};
pub use crate::common::agent::{NODE, PATIENCE, answer, ask, full, manifest};
use crate::common::fake::{Fake, State};
use crate::common::rest::{PeersActivity, Watched, is_at_the_disk};
use crate::common::show_log;

pub const START: Wall = Wall(1_770_000_000_000_000_000);
/// Virtual time that [`World::until`] allows.
const SECONDS_MAX: u32 = 90;

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
            let at_work = !world.is_idle() || !world.fake.is_idle();
            let moves = world.turns() != turns || at_work || is_at_the_disk();
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

    /// Waits until the agent waits for nothing but time, or an answer that a fault holds back.
    pub fn settle(&self) {
        if let Some(agent) = self.agent.borrow().as_ref() {
            agent.settle(|| self.peers(), || self.trace());
        }
    }

    /// The same with the work at the disk and what follows from it.
    fn settle_disk(&self) {
        if let Some(agent) = self.agent.borrow().as_ref() {
            agent.settle_disk(|| self.peers(), || self.trace());
        }
    }

    /// What the runtime does.
    fn peers(&self) -> PeersActivity {
        // An answer is on its way until the runtime's thread has nothing left to do.
        let at_work = !self.fake.is_idle();
        let state = self.fake.state();
        PeersActivity { active: at_work || state.is_active(), messages: state.calls.len() as u64 }
    }

    /// The agent's thread has nothing to do.
    fn is_idle(&self) -> bool {
        self.agent.borrow().as_ref().is_none_or(Watched::is_idle)
    }

    /// How often the agent's thread woke so far.
    pub fn turns(&self) -> u64 {
        self.agent.borrow().as_ref().map_or(0, Watched::turns)
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
