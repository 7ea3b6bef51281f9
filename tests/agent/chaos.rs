//! Random faults, then none: the desired pods run, once, and nothing else is left.
//! Other seeds by hand: `SMOLET_TEST_SEEDS=1000..1100`.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use smolet::clock::Clock as _;
use smolet::cri::EventService;

use crate::common::fake::{EventFaults, Program, State};
use crate::common::seeds;
use crate::world::World;

const CALLS: [&str; 12] = [
    "ListPodSandbox",
    "ListContainers",
    "ImageStatus",
    "PodSandboxStatus",
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
    "ContainerStatus",
];

/// Version `version` of the pod's spec: versions differ in an image, or in a field that replaces the pod.
fn spec(version: usize) -> String {
    let image = version % 3 + 1;
    let host = version / 3 % 2;
    let sidecar = if version / 6 % 2 == 1 {
        "initContainers: [{name: side, image: 'busybox:1', restartPolicy: Always}], "
    } else {
        ""
    };
    format!(
        "hostname: h{host}, terminationGracePeriodSeconds: 5, {sidecar}\
         containers: [{{name: app, image: 'busybox:{image}'}}, {{name: more, image: 'busybox:1'}}]"
    )
}

struct Chaos {
    world: World,
    rng: Rng,
    wanted: BTreeMap<&'static str, usize>,
    broken: bool,
    told: Vec<String>,
}

impl Chaos {
    fn tell(&mut self, what: String) {
        self.told.push(format!("{} s: {what}", self.world.seconds()));
    }

    /// Does that to a running container, if there is one: under one lock, because the agent may remove it meanwhile.
    fn strike_any_running(&mut self, what: &str, does: impl FnOnce(&mut State, &str)) {
        let mut state = self.world.fake.state();
        let Some(name) = self.rng.choice(state.running()) else { return };
        let container = name.split('#').next().unwrap_or_default();
        does(&mut state, container);
        drop(state);
        self.tell(format!("{container} {what}"));
    }

    fn trouble_events(&mut self) {
        let hang = match self.rng.u8(..8) {
            0 => {
                self.tell("the streams of events end".to_owned());
                return self.world.fake.end_event_streams();
            }
            1 => true,
            2 => false,
            _ => return,
        };
        self.tell(format!("events hang: {hang}"));
        let (lost, doubled, late, delay) = (10, 20, 20, Duration::from_millis(500));
        let seed = self.rng.u64(..);
        self.world.fake.event_faults(EventFaults { seed, lost, doubled, late, delay, hang });
    }

    fn act(&mut self) {
        let name = ["one", "two", "three"][self.rng.usize(..3)];
        match self.rng.u8(..18) {
            0..=3 => {
                let version = self.rng.usize(..12);
                self.tell(format!("{name} is wanted, version {version}"));
                self.world.put(name, &spec(version));
                self.wanted.insert(name, version);
            }
            4 => {
                if self.wanted.remove(name).is_some() {
                    self.tell(format!("{name} is not wanted"));
                    self.world.remove(name);
                }
            }
            5 => {
                if self.broken {
                    self.world.remove("broken");
                } else {
                    self.world.put_text("broken", "kind: [\n");
                }
                self.broken = !self.broken;
                self.tell(format!("broken manifest: {}", self.broken));
            }
            6 => {
                self.tell("the agent is killed".to_owned());
                self.world.kill();
                self.world.start_in_trouble();
            }
            7 => {
                self.tell("connections are cut".to_owned());
                self.world.fake.drop_connections();
            }
            8 => {
                let call = CALLS[self.rng.usize(..CALLS.len())];
                let times = self.rng.u32(1..4);
                self.tell(format!("{call} fails {times} times"));
                self.world.fake.fail(call, times, 2, "trouble");
            }
            9 => {
                let call = CALLS[self.rng.usize(..CALLS.len())];
                self.tell(format!("an answer to {call} is lost"));
                self.world.fake.lose_answer(call, 1);
            }
            10 => {
                let now = self.world.clock.now().wall;
                self.strike_any_running("crashes", |state, container| state.exit(container, now, 1, "", ""));
            }
            11 => self.strike_any_running("is forgotten", State::forget),
            12 => self.strike_any_running("is unknown", State::report_unknown),
            13 => {
                self.tell("the node boots".to_owned());
                self.world.kill();
                self.world.fake.reboot();
                self.world.start_in_trouble();
            }
            14 => {
                let by = self.rng.i64(-100_000_000..100_000_000);
                self.tell(format!("the wall clock steps by {by} s"));
                self.world.clock.step_wall(by);
            }
            15 => {
                let call = CALLS[self.rng.usize(..CALLS.len())];
                self.tell(format!("{call} hangs"));
                self.world.fake.hang(call);
            }
            16 => {
                let call = CALLS[self.rng.usize(..CALLS.len())];
                self.tell(format!("all is well with {call}"));
                self.world.fake.heal(call);
            }
            _ => self.strike_any_running("has lost its sandbox", |state, container| {
                state.kill_sandbox(container.split('/').next().unwrap_or_default());
            }),
        }
    }

    /// The desired state: pod, container, image.
    fn goal(&self) -> Vec<(String, String, String)> {
        let mut goal = Vec::new();
        for (name, version) in &self.wanted {
            let mut add = |container: &str, image: usize| {
                goal.push((format!("{name}-gw"), container.to_owned(), format!("busybox:{image}")));
            };
            add("app", version % 3 + 1);
            add("more", 1);
            if version / 6 % 2 == 1 {
                add("side", 1);
            }
        }
        goal.sort();
        goal
    }

    fn reached(&self) -> bool {
        let state = self.world.fake.state();
        let mut running: Vec<(String, String, String)> = state
            .containers
            .values()
            .filter(|container| container.running())
            .map(|container| {
                let pod = container.config.labels["io.kubernetes.pod.name"].clone();
                let image = container.config.annotations["io.kubernetes.container.hash"].clone();
                (pod, container.name().to_owned(), image)
            })
            .collect();
        running.sort();
        let hash = |name: &str, image: &str| format!("{:x}", smolet::model::container_hash(name, image));
        let goal: Vec<_> =
            self.goal().into_iter().map(|(pod, name, image)| (pod, hash(&name, &image))).collect();
        let running: Vec<_> = running.into_iter().map(|(pod, _, hash)| (pod, hash)).collect();
        let pods = state.sandboxes.values().map(|s| s.config.metadata.clone().unwrap().uid);
        let pods: std::collections::BTreeSet<String> = pods.collect();
        let ready = state.sandboxes.values().filter(|sandbox| sandbox.ready);
        let mut ready: Vec<(String, String)> =
            ready.map(|sandbox| (sandbox.pod().to_owned(), sandbox.config.hostname.clone())).collect();
        ready.sort();
        let host = |version: &usize| format!("h{}", version / 3 % 2);
        let mut hosts: Vec<(String, String)> =
            self.wanted.iter().map(|(name, version)| (format!("{name}-gw"), host(version))).collect();
        hosts.sort();
        running == goal && pods.len() == self.wanted.len() && ready == hosts
    }
}

fn run(seed: u64, events: Option<EventService>) {
    #[allow(clippy::print_stdout, reason = "shown when the test fails")]
    {
        println!("seed {seed}, events {events:?}");
    }
    let world = World::without_agent();
    if let Some(service) = events {
        world.fake.tell_events(service);
        world.seldom(true);
        let (lost, doubled, late, delay) = (10, 20, 20, Duration::from_millis(500));
        world.fake.event_faults(EventFaults { seed, lost, doubled, late, delay, hang: false });
        if service == EventService::Containerd {
            world.fake.exit_lag(Duration::from_millis(60));
        }
    }
    world.fake.program("more", Program::STUBBORN);
    world.start();
    let mut chaos =
        Chaos { world, rng: Rng::with_seed(seed), wanted: BTreeMap::new(), broken: false, told: Vec::new() };
    chaos.world.silent(true);
    for _ in 0..60 {
        chaos.act();
        if events.is_some() {
            chaos.trouble_events();
        }
        for _ in 0..chaos.rng.u8(..4) {
            let millis = chaos.rng.u64(1..3000);
            chaos.world.leap_for(Duration::from_millis(millis));
        }
    }
    // No more faults. Longer than every back-off.
    chaos.world.fake.event_faults(EventFaults::default());
    for call in CALLS {
        chaos.world.fake.heal(call);
    }
    if chaos.broken {
        chaos.world.remove("broken");
    }
    // A missed change is found by a relist a minute after the last one.
    let mut seconds = 0;
    while !chaos.reached() {
        chaos.world.step();
        seconds += 1;
        let told = || format!("{}\n{}\n{}", chaos.told.join("\n"), chaos.world.trace(), chaos.world.table());
        assert!(seconds < 400, "seed {seed}: {:?} is not reached:\n{}", chaos.goal(), told());
    }
    // And stays so.
    chaos.world.pass(5);
    chaos.world.fake.clear_calls();
    chaos.world.pass(15);
    assert!(chaos.reached(), "seed {seed}: {}", chaos.world.trace());
    assert_eq!(chaos.world.actions(), [""; 0], "seed {seed}");
    assert!(!chaos.world.table().contains("Problems"), "seed {seed}: {}", chaos.world.table());
    for name in ["one", "two", "three"] {
        let phase = if chaos.wanted.contains_key(name) { "Running" } else { "" };
        // Real time for the agent's remaining work; no virtual time.
        chaos.world.wait(&format!("seed {seed}: {name} is {phase:?}"), |world| world.phase(name) == phase);
    }
    let violations = chaos.world.fake.state().violations.clone();
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}\n{}", chaos.told.join("\n"));
}

#[test]
fn after_any_faults_exactly_the_desired_pods_run() {
    seeds::to_run(0..6).for_each(|seed| run(seed, None));
}

#[test]
fn the_same_with_the_cris_events_and_faults_of_them() {
    seeds::to_run(0..4).for_each(|seed| run(seed, Some(EventService::Cri)));
}

#[test]
fn the_same_with_containerds_events_and_faults_of_them() {
    seeds::to_run(0..4).for_each(|seed| run(seed, Some(EventService::Containerd)));
}
