//! One simulated node: its manifests, its runtime, its clock and the agent's lives, on one thread.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use smol::channel::Sender;
use smolet::addresses::NodeAddresses;
use smolet::blocking::Blocking;
use smolet::clock::{Clock as _, VirtualClock};
use smolet::cri::EventService;
use smolet::executor::Executor;
use smolet::facts;
use smolet::logs::rotate::LogReports;
use smolet::model::{DesiredPod, Now, Wall};
use smolet::node::{Ending, Parts, Stop};
use smolet::poison::SetAside;
use smolet::printers::table::PodsFormat;
use smolet::proto::runtime::v1 as cri;
use smolet::server::{Answer, Later, PodsQuestion, Query, Question};
use smolet::source::manifest::parse;
use smolet::source::{NodeName, Origin, Problem, SourceUpdate, SourcedPod};
use smolet::store::identity::Identity;

use crate::common::agent::{self, Home, NODE};
use crate::runtime::SimRuntime;

const START: Wall = Wall(1_770_000_000_000_000_000);
/// Turns of the executor within one instant. More: something turns in a circle.
const TURNS_MAX: u32 = 200_000;
/// How long containerd shows a container running after it told of its end.
const EXIT_LAG: Duration = Duration::from_millis(60);

/// Of eight runtimes one tells nothing: relists alone have to do. They cost the most time to simulate.
pub const SEED_WITHOUT_EVENTS: u64 = 0;

pub struct World {
    pub runtime: SimRuntime,
    pub clock: VirtualClock,
    home: Home,
    life: Option<Life>,
    /// The manifests as they are, by name.
    manifests: BTreeMap<String, String>,
    /// Some manifest cannot be read.
    pub broken: bool,
    /// The agent was not yet told of the manifests.
    untold: bool,
    /// The agent is killed after so many turns.
    pub dies_in: Option<u32>,
    /// Virtual time over all boots.
    pub lived: Duration,
    pub lives: u32,
}

struct Life {
    // The loop's future holds the executor, so it is polled beside it and dropped before it.
    main: Pin<Box<dyn Future<Output = Ending>>>,
    executor: Rc<Executor>,
    woken: Arc<Flag>,
    updates: Sender<SourceUpdate>,
    asked: Sender<Query>,
    _stop: Sender<Stop>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let clock = VirtualClock::new(START);
        let runtime = SimRuntime::new(clock.clone(), seed);
        let now = clock.now();
        runtime.state(|state| {
            for version in 1..=3 {
                state.add_image(&format!("busybox:{version}"));
            }
            let foreign = |name: &str| cri::PodSandboxMetadata {
                name: name.to_owned(),
                namespace: "default".to_owned(),
                uid: format!("foreign-{name}"),
                attempt: 0,
            };
            let labels = |name: &str| {
                BTreeMap::from([
                    ("io.kubernetes.pod.name".to_owned(), name.to_owned()),
                    ("io.kubernetes.pod.namespace".to_owned(), "default".to_owned()),
                    ("io.kubernetes.pod.uid".to_owned(), format!("foreign-{name}")),
                ])
            };
            let sandbox = cri::PodSandboxConfig {
                metadata: Some(foreign("other")),
                labels: labels("other"),
                ..Default::default()
            };
            let container = cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata { name: "app".to_owned(), attempt: 0 }),
                image: Some(cri::ImageSpec { image: "busybox:1".to_owned(), ..Default::default() }),
                labels: labels("other"),
                ..Default::default()
            };
            state.run_pod(sandbox, vec![container], now);
            match seed % 8 {
                SEED_WITHOUT_EVENTS => {}
                2 | 6 => {
                    state.tell_events(EventService::Containerd);
                    state.exit_lag = EXIT_LAG;
                }
                _ => state.tell_events(EventService::Cri),
            }
            runtime.rules(|rules| rules.note_foreign(state));
        });
        Self {
            runtime,
            clock,
            home: Home::in_memory(),
            life: None,
            manifests: BTreeMap::new(),
            broken: false,
            untold: true,
            dies_in: None,
            lived: Duration::ZERO,
            lives: 0,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    // ---- the agent's lives -----------------------------------------------------------------------------

    pub fn start(&mut self) {
        assert!(self.life.is_none(), "one agent at a time");
        let config = self.home.config(&self.home.flags());
        let identity =
            Identity::open(&config.root_dir, Some(NODE), NODE).expect("the state directory is free");
        let node = Rc::new(facts::node_settings(&config, NODE));
        let addresses = NodeAddresses::new(&node.node_ips);
        let executor = Rc::new(Executor::new());
        let (updates, source) = smol::channel::bounded(1);
        // No image archives.
        let (_, images) = smol::channel::bounded(1);
        let (asked, queries) = smol::channel::bounded(4);
        let (stop, stopped) = smol::channel::bounded(1);
        let (clock, runtime, on) = (Rc::new(self.clock.clone()), self.runtime.clone(), executor.clone());
        let set_aside = Arc::new(SetAside::read(&config.root_dir));
        let main = Box::pin(async move {
            let blocking = Rc::new(Blocking::on_this_thread());
            let parts = Parts {
                config: &config,
                identity,
                node,
                addresses,
                executor: on,
                clock,
                blocking,
                source,
                images,
                image_store: None,
                // Nobody rotates logs.
                logs: LogReports::new().0,
                set_aside,
                once: false,
                metrics: Rc::default(),
                notify: Rc::default(),
                joined: None,
            };
            parts.run_loop(runtime, "fake".into(), Vec::new(), queries, stopped).await
        });
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        self.life = Some(Life { main, executor, woken, updates, asked, _stop: stop });
        self.untold = true;
        self.lives += 1;
        self.runtime.rules(|rules| rules.new_life());
    }

    /// As `kill -9`: whatever is under way is dropped.
    pub fn kill(&mut self) {
        self.dies_in = None;
        let Some(Life { main, executor, .. }) = self.life.take() else { return };
        drop(main);
        drop(executor);
    }

    /// The machine boots: the monotonic clock begins anew, nothing runs, the disk stays.
    pub fn reboot(&mut self) {
        self.kill();
        self.clock = VirtualClock::new(self.clock.now().wall);
        self.runtime.reboot(self.clock.clone());
    }

    // ---- time ------------------------------------------------------------------------------------------

    pub fn clock_now(&self) -> Now {
        self.clock.now()
    }

    /// Everything that needs no time happens.
    fn settle(&mut self) {
        self.runtime.catch_up();
        self.tell();
        let mut turns = 0;
        loop {
            let Some(life) = &mut self.life else { return };
            if life.woken.0.swap(false, Ordering::Relaxed) {
                let waker = Waker::from(life.woken.clone());
                if let Poll::Ready(ended) = life.main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    panic!("the loop ended: {ended:?}");
                }
            } else if !life.executor.try_tick() {
                return;
            }
            turns += 1;
            assert!(turns < TURNS_MAX, "no rest within one instant; {}", self.trace());
            if let Some(left) = &mut self.dies_in {
                *left -= 1;
                if *left == 0 {
                    self.kill();
                    self.start();
                    self.tell();
                }
            }
        }
    }

    /// So much time passes, instant by instant.
    pub fn pass(&mut self, time: Duration) {
        let end = self.clock.now().mono + time;
        self.lived += time;
        loop {
            self.settle();
            let now = self.clock.now().mono;
            if now >= end {
                return;
            }
            let next = [self.clock.next_sleeper(), self.runtime.next_change()].into_iter().flatten().min();
            let next = next.map_or(end, |at| at.min(end));
            self.clock.advance(next.since(now).max(Duration::from_nanos(1)));
        }
    }

    // ---- manifests -------------------------------------------------------------------------------------

    /// Wants the pod `name` with this `spec`.
    pub fn put(&mut self, name: &str, spec: &str) {
        let before = self.uid(name);
        self.manifests.insert(name.to_owned(), agent::manifest(name, spec));
        let after = self.uid(name);
        if before != after {
            self.end_history(before);
            let pod = self.pod(name).expect("it was just put there");
            let inits = pod.pod.init_containers().iter();
            let inits = inits.filter(|c| c.restart_policy.is_none()).map(|c| c.name.clone()).collect();
            self.runtime.rules(|rules| rules.wanted(pod.pod.key.uid.as_str(), inits));
        }
        self.untold = true;
    }

    pub fn remove(&mut self, name: &str) {
        let before = self.uid(name);
        self.manifests.remove(name);
        self.end_history(before);
        self.untold = true;
    }

    fn end_history(&mut self, uid: Option<String>) {
        if let Some(uid) = uid {
            self.runtime.rules(|rules| rules.unwanted(&uid));
        }
    }

    pub fn set_broken(&mut self, broken: bool) {
        self.broken = broken;
        self.untold = true;
    }

    fn pod(&self, name: &str) -> Option<SourcedPod> {
        let file: Arc<str> = Arc::from(format!("/manifests/{name}.yaml"));
        let text = self.manifests.get(name)?;
        let parsed = parse(&file, text.as_bytes(), &NodeName::new(NODE), START, usize::MAX);
        assert!(parsed.problems.is_empty(), "{:?}\n{text}", parsed.problems);
        let pod = parsed.pods.into_iter().next()?;
        Some(SourcedPod {
            pod: DesiredPod::new(pod.pod),
            origin: Origin { file, document: pod.document },
            config_hash: pod.config_hash,
            bytes: pod.bytes,
        })
    }

    fn uid(&self, name: &str) -> Option<String> {
        self.pod(name).map(|pod| pod.pod.key.uid.to_string())
    }

    /// Hands the manifests to the agent, as soon as it takes them.
    fn tell(&mut self) {
        let Some(life) = self.life.as_ref().filter(|_| self.untold) else { return };
        let broken: Arc<str> = Arc::from("/manifests/broken.yaml");
        let problems = self.broken.then(|| Problem::of_file(&broken, "cannot be read"));
        let update = SourceUpdate {
            source: smolet::source::file::NAME,
            pods: self.manifests.keys().filter_map(|name| self.pod(name)).collect(),
            objects: Vec::new(),
            problems: problems.into_iter().collect(),
            complete: !self.broken,
            held: smolet::source::SourceUsage::default(),
            server: smolet::source::ServerPods::default(),
        };
        // Full: the agent is behind; told with the next instant.
        self.untold = life.updates.try_send(update).is_err();
    }

    // ---- what the agent says ---------------------------------------------------------------------------

    fn ask(&mut self, mut question: Question) -> String {
        let mut all = String::new();
        loop {
            let (answer, answered) = smol::channel::bounded(1);
            let life = self.life.as_ref().expect("an agent runs");
            life.asked.try_send(Query { question, answer }).expect("the agent takes questions");
            self.settle();
            let mut answer = answered.try_recv();
            // What the connection of the question waits for: work that is done when its turn comes.
            for _ in 0..10 {
                let Ok(Answer::Later(Later(later))) = &mut answer else { break };
                if let Some(done) = smol::block_on(smol::future::poll_once(later)) {
                    answer = Ok(done);
                }
                self.settle();
            }
            match answer {
                Ok(Answer::Found(text) | Answer::NotFound(text) | Answer::Refused(_, text)) => {
                    return all + &text;
                }
                Ok(Answer::Later(_)) => panic!("it waits for more than its turn"),
                Ok(Answer::Part(text, rest)) => {
                    all += &text;
                    question = rest;
                }
                Err(error) => panic!("no answer: {error}; {}", self.trace()),
            }
        }
    }

    /// What `smolet pods` prints.
    pub fn table(&mut self) -> String {
        self.ask(pods(PodsFormat::Table))
    }

    /// The phase of each pod, by manifest.
    pub fn phases(&mut self) -> BTreeMap<String, String> {
        let list: serde_json::Value = serde_json::from_str(&self.ask(pods(PodsFormat::Json))).expect("JSON");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let pods = list["items"].as_array().expect("a list").iter();
        pods.map(|pod| {
            let name = text(&pod["metadata"]["name"]);
            (name.trim_end_matches("-gw").to_owned(), text(&pod["status"]["phase"]))
        })
        .collect()
    }

    /// What the agent keeps more of than it may: lines of `smolet top --self`.
    pub fn over_limits(&mut self) -> Vec<String> {
        let top = self.ask(Question::Top);
        let over = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [.., entries, entries_max, kib, kib_max] = words[..] else { return false };
            let more = |is: &str, may: &str| {
                is.parse::<u64>().is_ok_and(|is| may.parse::<u64>().is_ok_and(|may| is > may))
            };
            more(entries, entries_max) || more(kib, kib_max)
        };
        let lines = top.lines().take_while(|line| !line.starts_with("memory ceiling"));
        assert!(lines.clone().count() > 10, "{top}");
        lines.filter(over).map(str::to_owned).collect()
    }

    pub fn trace(&self) -> String {
        let calls = self.runtime.state(|state| {
            let changing = state.calls.iter().filter(|call| call.changes());
            changing.map(|call| format!("{} {call}", call.mono.0 / 1_000_000)).collect::<Vec<_>>()
        });
        format!("the last calls (ms since boot):\n  {}", calls.join("\n  "))
    }
}

fn pods(format: PodsFormat) -> Question {
    Question::Pods(PodsQuestion { format, ..PodsQuestion::default() })
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}
