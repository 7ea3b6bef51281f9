//! What happens to a node: trouble and churn by a seed, then an end to all trouble, then an end to all manifests.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use crate::common::fake::{EventFaults, Program, State};
use crate::common::show_log;
use crate::rules::CONVERGES_WITHIN;
use crate::world::{SEED_WITHOUT_EVENTS, World};

/// Things that happen in one scenario.
const ACTS: u32 = 80;
/// How long nothing happens at a time.
const QUIET_HOURS: std::ops::RangeInclusive<u64> = 24..=240;
const QUIET_HOURS_CRASHING: std::ops::RangeInclusive<u64> = 1..=6;
/// How long the trouble of the moment may go on without another one.
const TROUBLED_HOURS: std::ops::RangeInclusive<u64> = 1..=12;
const NAMES: [&str; 4] = ["one", "two", "three", "four"];

pub struct Scenario {
    world: World,
    rng: Rng,
    /// The version of each manifest.
    wanted: BTreeMap<&'static str, Version>,
    down: bool,
    event_faults: EventFaults,
    told: Vec<String>,
    /// Time without trouble.
    quiet: Duration,
    seed: u64,
}

/// How a scenario went.
pub struct Ended {
    pub digest: u64,
    pub lived: Duration,
    /// Of that, time without trouble.
    pub quiet: Duration,
    pub calls: u64,
    /// That the agent was told of.
    pub events: u64,
    pub lives: u32,
}

/// One of the manifests a name can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    image: u8,
    host: u8,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    Sidecar,
    Inits,
    /// Crashes a second after each start.
    Crasher,
    /// Ends well after a while and stays so.
    Job,
}

const SHAPES: [Shape; 5] = [Shape::Plain, Shape::Sidecar, Shape::Inits, Shape::Crasher, Shape::Job];

impl Version {
    fn any(rng: &mut Rng) -> Self {
        Self { image: rng.u8(1..=4), host: rng.u8(..2), shape: SHAPES[rng.usize(..SHAPES.len())] }
    }

    fn spec(self) -> String {
        let Self { image, host, shape } = self;
        let (before, name, policy) = match shape {
            Shape::Plain => ("", "app", "Always"),
            Shape::Sidecar => (
                "initContainers: [{name: side, image: 'busybox:1', restartPolicy: Always}], ",
                "app",
                "Always",
            ),
            Shape::Inits => (
                "initContainers: [{name: init-a, image: 'busybox:1'}, \
                 {name: side, image: 'busybox:2', restartPolicy: Always}, {name: init-b, image: 'busybox:1'}], ",
                "app",
                "Always",
            ),
            Shape::Crasher => ("", "crasher", "Always"),
            Shape::Job => ("", "job", "OnFailure"),
        };
        let more = if shape == Shape::Job { "" } else { ", {name: stubborn, image: 'busybox:1'}" };
        format!(
            "hostname: h{host}, terminationGracePeriodSeconds: 5, restartPolicy: {policy}, {before}\
             containers: [{{name: {name}, image: 'busybox:{image}'}}{more}]"
        )
    }

    /// The containers that run when all is well; those that crash come and go.
    fn runs(self) -> &'static [&'static str] {
        match self.shape {
            Shape::Plain => &["app", "stubborn"],
            Shape::Sidecar | Shape::Inits => &["app", "side", "stubborn"],
            Shape::Crasher => &["stubborn"],
            Shape::Job => &[],
        }
    }
}

impl Scenario {
    /// Runs the scenario of this seed to its end; panics where the agent did wrong.
    pub fn run(seed: u64) -> Ended {
        show_log();
        println!("seed {seed}");
        let world = World::new(seed);
        world.runtime.state(|state| {
            state.writes_logs = true;
            for (name, program) in [
                ("stubborn", Program::STUBBORN),
                ("init", Program::exits(0, Duration::from_secs(2))),
                ("crasher", Program::exits(1, Duration::from_secs(1))),
                ("job", Program::exits(0, Duration::from_secs(20))),
            ] {
                state.programs.push((name.to_owned(), program));
            }
        });
        let rng = Rng::with_seed(seed);
        let mut scenario = Self {
            world,
            rng,
            wanted: BTreeMap::new(),
            down: false,
            event_faults: EventFaults::default(),
            told: Vec::new(),
            quiet: Duration::ZERO,
            seed,
        };
        scenario.world.start();
        for _ in 0..ACTS {
            scenario.act();
            let wait = scenario.wait();
            scenario.world.pass(wait);
            scenario.check();
        }
        scenario.end_trouble();
        scenario.converge();
        scenario.end_all();
        let world = &scenario.world;
        Ended {
            digest: world.runtime.digest(),
            lived: world.lived,
            quiet: scenario.quiet,
            calls: world.runtime.calls(),
            events: world.runtime.events(),
            lives: world.lives,
        }
    }

    /// Mostly one trouble soon after the other, sometimes half an hour.
    fn wait(&mut self) -> Duration {
        match self.rng.u8(..10) {
            0..=2 => Duration::from_millis(self.rng.u64(..50)),
            3..=6 => Duration::from_millis(self.rng.u64(..5_000)),
            7 | 8 => Duration::from_millis(self.rng.u64(..400_000)),
            _ => Duration::from_secs(self.rng.u64(..1_800)),
        }
    }

    /// Days or weeks without trouble and churn, as a gateway has them; what was wrong is so again after them.
    fn quiet(&mut self) {
        // Without events there is a look at everything each second: an hour has to do.
        let tells = self.seed % 8 != SEED_WITHOUT_EVENTS;
        let crashes = self.wanted.values().any(|version| version.shape == Shape::Crasher);
        let hours = match (tells, crashes) {
            (false, _) => 1,
            (true, true) => self.rng.u64(QUIET_HOURS_CRASHING),
            (true, false) => self.rng.u64(QUIET_HOURS),
        };
        self.tell(format!("{hours} quiet hours"));
        let trouble = self.world.runtime.troubled();
        if std::mem::take(&mut self.down) {
            self.world.runtime.down(false);
        }
        self.world.dies_in = None;
        self.world.runtime.frozen(false);
        self.world.runtime.trouble(0);
        self.world.runtime.state(|state| state.event_faults(EventFaults::default()));
        // An event shows that they come (again): without, there are looks every second.
        if let Some((container, _)) = self.any_running() {
            let at = self.world.clock_now().wall;
            self.world.runtime.state(|state| state.exit(&container, at, 1, "", ""));
        }
        self.pass_quietly(Duration::from_hours(hours));
        self.world.runtime.trouble(trouble);
        let faults = self.event_faults.clone();
        self.world.runtime.state(|state| state.event_faults(faults));
    }

    fn pass_quietly(&mut self, time: Duration) {
        self.world.pass(time);
        self.quiet += time;
    }

    /// Calls fail, events get lost, a runtime is away or a manifest broken, and it stays so.
    fn long_trouble(&mut self) {
        let tells = self.seed % 8 != SEED_WITHOUT_EVENTS;
        let hours = if tells { self.rng.u64(TROUBLED_HOURS) } else { 1 };
        self.tell(format!("{hours} hours as it is"));
        self.world.pass(Duration::from_hours(hours));
    }

    fn tell(&mut self, what: String) {
        self.told.push(format!("{:?}: {what}", self.world.lived));
    }

    /// A running container of ours: its pod and name as `POD/CONTAINER`, and its sandbox.
    fn any_running(&mut self) -> Option<(String, String)> {
        let foreign = self.world.runtime.rules(|rules| rules.foreign().to_vec());
        let running: Vec<(String, String)> = self.world.runtime.state(|state| {
            let ours = state.containers.values().filter(|c| c.running() && !foreign.contains(&c.id));
            ours.map(|c| (c.id.clone(), c.sandbox_id.clone())).collect()
        });
        self.rng.choice(running)
    }

    fn act(&mut self) {
        let name = NAMES[self.rng.usize(..NAMES.len())];
        match self.rng.u8(..30) {
            0..=4 => {
                let version = Version::any(&mut self.rng);
                self.tell(format!("{name} is wanted, {version:?}"));
                self.world.put(name, &version.spec());
                self.wanted.insert(name, version);
            }
            5 | 6 => {
                if self.wanted.remove(name).is_some() {
                    self.tell(format!("{name} is not wanted"));
                    self.world.remove(name);
                }
            }
            7 => {
                let broken = !self.world.broken;
                self.tell(format!("a manifest is broken: {broken}"));
                self.world.set_broken(broken);
            }
            8 => {
                self.tell("the agent is killed".to_owned());
                self.world.kill();
                let away = Duration::from_millis(self.rng.u64(..20_000));
                self.world.pass(away);
                self.world.start();
            }
            9..=11 => {
                let turns = self.rng.u32(1..200);
                self.tell(format!("the agent is killed after {turns} turns"));
                self.world.dies_in = Some(turns);
            }
            12 => {
                self.tell("the machine boots".to_owned());
                self.world.reboot();
                self.down = false;
                self.world.start();
            }
            13 => {
                self.down = !self.down;
                self.tell(format!("the runtime is down: {}", self.down));
                self.world.runtime.down(self.down);
            }
            14 => {
                let frozen = self.rng.bool();
                self.tell(format!("the runtime is frozen: {frozen}"));
                self.world.runtime.frozen(frozen);
            }
            15 | 16 => {
                let trouble = [0, 20, 100, 400][self.rng.usize(..4)];
                self.tell(format!("{trouble} of 1000 calls meet trouble"));
                self.world.runtime.trouble(trouble);
            }
            17 | 18 => {
                if let Some((container, _)) = self.any_running() {
                    let (code, reason) = if self.rng.bool() { (1, "") } else { (137, "OOMKilled") };
                    self.tell(format!("{container} ends with {code}"));
                    let at = self.world.clock_now().wall;
                    self.world.runtime.state(|state| state.exit(&container, at, code, reason, ""));
                }
            }
            19 => {
                if let Some((container, sandbox)) = self.any_running() {
                    self.tell(format!("{container} is forgotten"));
                    self.world.runtime.state(|state| state.forget(&container));
                    self.world.runtime.rules(|rules| rules.excuse(&sandbox));
                }
            }
            20 => {
                if let Some((container, sandbox)) = self.any_running() {
                    self.tell(format!("{container} is unknown"));
                    self.world.runtime.state(|state| state.report_unknown(&container));
                    self.world.runtime.rules(|rules| rules.excuse(&sandbox));
                }
            }
            21 => {
                if let Some((_, sandbox)) = self.any_running() {
                    let forget = self.rng.bool();
                    self.tell(format!("sandbox {sandbox} dies; forgotten: {forget}"));
                    self.world.runtime.state(|state| {
                        if forget { state.forget_sandbox(&sandbox) } else { state.kill_sandbox(&sandbox) }
                    });
                }
            }
            22 => {
                let by = self.rng.i64(-100_000_000..100_000_000);
                self.tell(format!("the wall clock steps by {by} s"));
                self.world.clock.step_wall(by);
            }
            23 | 24 => {
                let faults = EventFaults {
                    seed: self.rng.u64(..),
                    lost: [0, 0, 10, 50, 100][self.rng.usize(..5)],
                    doubled: [0, 0, 30][self.rng.usize(..3)],
                    late: [0, 0, 30][self.rng.usize(..3)],
                    delay: Duration::from_millis([0, 0, 50, 3_000][self.rng.usize(..4)]),
                    hang: self.rng.u8(..5) == 0,
                };
                self.tell(format!("events: {faults:?}"));
                self.event_faults = faults.clone();
                self.world.runtime.state(|state| state.event_faults(faults));
            }
            25 => {
                self.tell("streams of events end".to_owned());
                self.world.runtime.state(State::end_event_streams);
            }
            26 | 27 => self.quiet(),
            28 => self.long_trouble(),
            _ => {
                let missing = self.rng.bool();
                self.tell(format!("busybox:4 is missing: {missing}"));
                self.world.runtime.state(|state| {
                    state.images.retain(|_, image| !image.tag.ends_with(":4"));
                    state.missing.clear();
                    if missing {
                        state.missing.insert("busybox:4".to_owned());
                    }
                });
            }
        }
    }

    fn check(&mut self) {
        let mut violations = self.world.runtime.state(|state| state.violations.clone());
        violations.extend(self.world.runtime.rules(|rules| rules.violations.clone()));
        // An agent that is to die within its next turns may do so before it answers.
        if self.world.dies_in.is_none() {
            let over = self.world.over_limits().into_iter().map(|line| format!("more than may be: {line}"));
            violations.extend(over);
        }
        let streams = self.world.runtime.state(State::event_streams);
        if streams > 1 {
            violations.push(format!("{streams} streams of events"));
        }
        assert!(violations.is_empty(), "{violations:#?}\n{}", self.story());
    }

    fn story(&self) -> String {
        let trace = self.world.trace();
        format!("seed {}:\n{}\n{trace}", self.seed, self.told.join("\n"))
    }

    fn end_trouble(&mut self) {
        self.tell("no more trouble".to_owned());
        self.world.dies_in = None;
        self.world.runtime.trouble(0);
        self.world.runtime.frozen(false);
        if self.down {
            self.world.runtime.down(false);
        }
        self.world.runtime.state(|state| {
            state.missing.clear();
            state.event_faults(EventFaults::default());
        });
        self.world.set_broken(false);
    }

    /// What is wanted comes to run in bounded time, and then nothing is done any more.
    fn converge(&mut self) {
        let mut waited = Duration::ZERO;
        while !self.reached() {
            self.pass_quietly(Duration::from_secs(1));
            waited += Duration::from_secs(1);
            if waited > CONVERGES_WITHIN {
                let table = self.world.table();
                panic!("{:?} is not reached:\n{}\n{table}", self.wanted, self.story());
            }
        }
        self.pass_quietly(Duration::from_secs(10));
        self.world.runtime.state(|state| state.calls.clear());
        self.pass_quietly(Duration::from_secs(20));
        self.check();
        assert!(self.reached(), "it does not last: {}", self.story());
        let crashes = self.wanted.values().any(|version| version.shape == Shape::Crasher);
        let busy = self.world.runtime.state(|state| state.calls.iter().any(|call| call.changes()));
        assert!(crashes || !busy, "there is nothing to do: {}", self.story());
        let table = self.world.table();
        assert!(!table.contains("Problems"), "{table}\n{}", self.story());
    }

    /// The phase of each manifest's pod when all is well.
    fn phases(&self) -> BTreeMap<String, String> {
        let phase = |version: &Version| if version.shape == Shape::Job { "Succeeded" } else { "Running" };
        self.wanted.iter().map(|(name, version)| ((*name).to_owned(), phase(version).to_owned())).collect()
    }

    fn reached(&mut self) -> bool {
        let mut goal = Vec::new();
        let mut hosts = Vec::new();
        for (name, version) in &self.wanted {
            let main = version.image;
            for container in version.runs() {
                let image = match *container {
                    "app" => main,
                    "side" if version.shape == Shape::Inits => 2,
                    _ => 1,
                };
                let image = format!("busybox:{image}");
                let hash = format!("{:x}", smolet::model::container_hash(container, &image));
                goal.push((format!("{name}-gw"), (*container).to_owned(), hash));
            }
            if version.shape != Shape::Job {
                hosts.push((format!("{name}-gw"), format!("h{}", version.host)));
            }
        }
        goal.sort();
        hosts.sort();
        let foreign = self.world.runtime.rules(|rules| rules.foreign().to_vec());
        let there = self.world.runtime.state(|state| {
            let text = |c: &crate::common::fake::Container, key: &str| {
                let config = &c.config;
                config.labels.get(key).or(config.annotations.get(key)).cloned().unwrap_or_default()
            };
            let running = state.containers.values().filter(|c| c.running() && !foreign.contains(&c.id));
            let mut running: Vec<_> = running
                .filter(|c| c.name() != "crasher")
                .map(|c| {
                    let hash = text(c, "io.kubernetes.container.hash");
                    (text(c, "io.kubernetes.pod.name"), c.name().to_owned(), hash)
                })
                .collect();
            running.sort();
            let ready = state.sandboxes.values().filter(|s| s.ready && s.pod() != "other");
            let mut ready: Vec<(String, String)> =
                ready.map(|s| (s.pod().to_owned(), s.config.hostname.clone())).collect();
            ready.sort();
            (running, ready)
        });
        there == (goal, hosts) && self.world.phases() == self.phases()
    }

    /// All manifests go: nothing of ours is left, in the runtime and on the disk.
    fn end_all(&mut self) {
        self.tell("nothing is wanted".to_owned());
        for name in std::mem::take(&mut self.wanted).into_keys() {
            self.world.remove(name);
        }
        let mut waited = Duration::ZERO;
        loop {
            let left = self.left();
            if left.is_empty() {
                break;
            }
            assert!(waited < CONVERGES_WITHIN, "left: {left:?}\n{}", self.story());
            self.pass_quietly(Duration::from_secs(1));
            waited += Duration::from_secs(1);
        }
        self.check();
    }

    fn left(&mut self) -> Vec<String> {
        let foreign = self.world.runtime.rules(|rules| rules.foreign().to_vec());
        let mut left: Vec<String> = self.world.runtime.state(|state| {
            let containers = state.containers.keys().filter(|id| !foreign.contains(id)).cloned();
            let sandboxes = state.sandboxes.values().filter(|s| s.pod() != "other").map(|s| s.id.clone());
            containers.chain(sandboxes).collect()
        });
        for folder in ["root/pods", "logs", "links"] {
            let entries = std::fs::read_dir(self.world.path(folder)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        left.extend(self.world.phases().into_keys());
        left
    }
}
