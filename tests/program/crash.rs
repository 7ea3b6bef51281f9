//! The built agent, killed with SIGKILL at random instants while manifests come and go, on the fake runtime over a real
//! socket in real time. Afterwards exactly what is wanted runs, nothing ran twice, no restart count went back, and
//! once the manifests are gone nothing of ours is left in the runtime or on the disk.
//!
//! The seed is printed; `SMOLET_TEST_SEEDS=7..8` sets it, and repeats the choices if not the instants.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "the seed")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::agent::{Home, NODE};
use crate::common::fake::{Fake, Program};
use crate::common::seeds;
use fastrand::Rng;
use smolet::clock::{Clock as _, SystemClock};
use smolet::proto::runtime::v1 as cri;

/// Kills of the first test; a promise of the project.
const KILLS: u32 = 300;
/// Kills while the runtime dies and freezes too.
const KILLS_IN_TROUBLE: u32 = 60;
/// An agent that has nothing to do is not waited for longer: from its first call on, or from its start where no runtime
/// answers.
const LIFE_MAX: Duration = Duration::from_millis(250);
/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);
const NAMES: [&str; 4] = ["one", "two", "three", "four"];
const CALLS: [&str; 13] = [
    "Version",
    "Status",
    "ListPodSandbox",
    "ListContainers",
    "ImageStatus",
    "PodSandboxStatus",
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "ContainerStatus",
];

struct Node {
    fake: Fake,
    home: Home,
    agent: Option<Child>,
    rng: Rng,
    /// Names with the number that makes each wish another pod, and the image.
    wanted: BTreeMap<&'static str, (u32, u8)>,
    wishes: u32,
    /// What the ConfigMap says now.
    conf: u32,
    /// The last restart count, by UID and container.
    counts: BTreeMap<(String, String), u32>,
    /// The newest container looked at.
    newest: String,
    seed: u64,
}

impl Node {
    fn new(default_seed: u64) -> Self {
        let seed = seeds::to_run(default_seed..default_seed + 1).start;
        println!("seed {seed}");
        let fake = Fake::start_on_real_time();
        for image in ["busybox:1", "busybox:2", "busybox:3"] {
            fake.add_image(image);
        }
        fake.program("crasher", Program::exits(1, Duration::from_millis(200)));
        fake.program("init", Program::exits(0, Duration::from_millis(50)));
        fake.program("stubborn", Program::STUBBORN);
        fake.state().writes_logs = true;
        run_foreign_pod(&fake);
        let home = Home::new();
        fs::write(
            home.path("config.yaml"),
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             crashLoopBackOff: {maxContainerRestartPeriod: 1s}\nevictionHard: {memory.available: 0%}\n\
             imageGCHighThresholdPercent: 100\n",
        )
        .unwrap();
        let node = Self {
            fake,
            home,
            agent: None,
            rng: Rng::with_seed(seed),
            wanted: BTreeMap::new(),
            wishes: 0,
            conf: 0,
            counts: BTreeMap::new(),
            newest: String::new(),
            seed,
        };
        node.configure();
        node
    }

    // ---- the agent -------------------------------------------------------------------------------------

    fn start(&mut self) {
        assert!(self.agent.is_none(), "one agent at a time");
        let log = File::options().create(true).append(true).open(self.home.path("agent.log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_smolet"))
            .args(self.home.words(&self.fake))
            .arg("--config")
            .arg(self.home.path("config.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the agent can be started");
        self.agent = Some(child);
    }

    /// SIGKILL; the agent must not have ended by itself.
    fn kill(&mut self) {
        let mut child = self.agent.take().expect("an agent runs");
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "the agent ended by itself: {ended:?}; {}", self.story());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.home.path("agent.log")).unwrap_or_default()).into_owned()
    }

    fn story(&self) -> String {
        let (log, calls) = (self.log(), self.fake.actions());
        let log: Vec<&str> = log.lines().collect();
        let log = &log[log.len().saturating_sub(60)..];
        let calls = &calls[calls.len().saturating_sub(60)..];
        format!("seed {}\n{}\nlast actions:\n  {}", self.seed, log.join("\n"), calls.join("\n  "))
    }

    // ---- churn -----------------------------------------------------------------------------------------

    fn churn(&mut self) {
        let name = NAMES[self.rng.usize(..NAMES.len())];
        let file = self.home.manifest(name);
        match self.rng.u8(..9) {
            0 if self.wanted.remove(name).is_some() => fs::remove_file(file).unwrap(),
            1..=3 => {
                // Another host name makes another pod.
                self.wishes += 1;
                let image = self.rng_image();
                self.want(name, (self.wishes, image));
            }
            4 | 5 => {
                if let Some((wish, _)) = self.wanted.get(name).copied() {
                    let image = self.rng_image();
                    self.want(name, (wish, image));
                }
            }
            6 => {
                // Half a manifest, beside the others.
                let broken = self.home.manifest("broken");
                if broken.exists() { fs::remove_file(broken) } else { fs::write(broken, "kind: [\n") }
                    .unwrap();
            }
            7 => {
                self.conf += 1;
                self.configure();
            }
            _ => {
                // Under one lock: the agent may remove it meanwhile.
                let mut state = self.fake.state();
                let running = state.running();
                let ours = running.into_iter().filter(|name| !name.starts_with("other/"));
                if let Some(container) = self.rng.choice(ours.collect::<Vec<_>>()) {
                    let now = SystemClock.now().wall;
                    state.exit(container.split('#').next().unwrap(), now, 1, "", "");
                }
            }
        }
    }

    /// A ConfigMap that all pods have as a volume, with the same in two of its keys.
    fn configure(&self) {
        let folder = self.home.path("manifests");
        let number = self.conf;
        let text = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: conf}}, data: {{a: '{number}', b: '{number}'}}}}\n"
        );
        fs::write(folder.join(".conf"), text).unwrap();
        fs::rename(folder.join(".conf"), folder.join("conf.yaml")).unwrap();
    }

    /// What both files say in the volume of each pod that has it; nothing for one that is changing just now.
    fn configured(&self) -> Vec<(String, String)> {
        let pods = fs::read_dir(self.home.path("root/pods")).into_iter().flatten().flatten();
        let read = |pod: fs::DirEntry| {
            let data = pod.path().join("volumes/kubernetes.io~configmap/conf/..data").canonicalize().ok()?;
            Some((fs::read_to_string(data.join("a")).ok()?, fs::read_to_string(data.join("b")).ok()?))
        };
        pods.filter_map(read).collect()
    }

    fn rng_image(&mut self) -> u8 {
        self.rng.u8(1..=3)
    }

    fn want(&mut self, name: &'static str, wish: (u32, u8)) {
        let (number, image) = wish;
        let (before, more) = match name {
            "one" => ("", "{name: crasher, image: 'busybox:1'}"),
            "two" => {
                ("initContainers: [{name: init, image: 'busybox:1'}],", "{name: more, image: 'busybox:2'}")
            }
            "three" => (
                "initContainers: [{name: side, image: 'busybox:1', restartPolicy: Always}],",
                "{name: more, image: 'busybox:2'}",
            ),
            _ => ("", "{name: stubborn, image: 'busybox:1'}"),
        };
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{hostname: h{number}, \
             terminationGracePeriodSeconds: 2, {before} \
             volumes: [{{name: data, emptyDir: {{}}}}, {{name: conf, configMap: {{name: conf}}}}], \
             containers: [{{name: app, image: 'busybox:{image}', \
             volumeMounts: [{{name: data, mountPath: /data}}, {{name: conf, mountPath: /conf}}]}}, {more}]}}\n"
        );
        let folder = self.home.path("manifests");
        fs::write(folder.join(format!(".{name}")), text).unwrap();
        fs::rename(folder.join(format!(".{name}")), folder.join(format!("{name}.yaml"))).unwrap();
        self.wanted.insert(name, wish);
    }

    // ---- what must hold --------------------------------------------------------------------------------

    fn check(&mut self) {
        let state = self.fake.state();
        assert!(state.violations.is_empty(), "{:#?}", state.violations);
        let other = state.container("other/app").expect("the other agent's container is there");
        assert!(other.running(), "the other agent's container runs");
        // Ids count up: what was made since the last look, in the order of its making.
        let new = state.containers.values().filter(|container| container.id > self.newest);
        let made: Vec<(String, String, u32)> = new
            .map(|container| {
                let uid = container.config.labels["io.kubernetes.pod.uid"].clone();
                (uid, container.name().to_owned(), container.attempt())
            })
            .collect();
        self.newest =
            state.containers.keys().next_back().cloned().unwrap_or_default().max(self.newest.clone());
        drop(state);
        for (a, b) in self.configured() {
            assert_eq!(a, b, "files of one volume are of one time; {}", self.story());
        }
        for (uid, name, count) in made {
            let last = self.counts.insert((uid, name.clone()), count).unwrap_or(0);
            assert!(count >= last, "restart count of {name}: {last}, then {count}; {}", self.story());
        }
    }

    /// What is wanted runs, in one sandbox each.
    fn reached(&self) -> bool {
        let state = self.fake.state();
        let ours = |pod: &str| pod != "other";
        let mut running: Vec<(String, String, String)> = state
            .containers
            .values()
            .filter(|container| container.running() && container.name() != "crasher")
            .map(|container| {
                let hash = container.config.annotations.get("io.kubernetes.container.hash");
                let pod = container.config.labels["io.kubernetes.pod.name"].clone();
                (pod, container.name().to_owned(), hash.cloned().unwrap_or_default())
            })
            .filter(|(pod, ..)| ours(pod))
            .collect();
        running.sort();
        let mut goal = Vec::new();
        for (name, (_, image)) in &self.wanted {
            let more: &[(&str, u8)] = match *name {
                "one" => &[],
                "two" => &[("more", 2)],
                "three" => &[("more", 2), ("side", 1)],
                _ => &[("stubborn", 1)],
            };
            for (container, image) in more.iter().chain(&[("app", *image)]) {
                let hash = smolet::model::container_hash(container, &format!("busybox:{image}"));
                goal.push((format!("{name}-{NODE}"), (*container).to_owned(), format!("{hash:x}")));
            }
        }
        goal.sort();
        let mut hosts: Vec<String> = state
            .sandboxes
            .values()
            .filter(|sandbox| sandbox.ready && ours(sandbox.pod()))
            .map(|sandbox| sandbox.config.hostname.clone())
            .collect();
        hosts.sort();
        let mut wanted: Vec<String> = self.wanted.values().map(|(number, _)| format!("h{number}")).collect();
        wanted.sort();
        drop(state);
        let conf = (self.conf.to_string(), self.conf.to_string());
        let configured = self.configured();
        let follow = configured.len() == self.wanted.len() && configured.iter().all(|files| *files == conf);
        running == goal && hosts == wanted && follow
    }

    /// What is left of our pods.
    fn left(&self) -> Vec<String> {
        let state = self.fake.state();
        let sandboxes = state.sandboxes.values().filter(|sandbox| sandbox.pod() != "other");
        let mut left: Vec<String> = sandboxes.map(|sandbox| sandbox.id.clone()).collect();
        let foreign = |container: &crate::common::fake::Container| {
            container.config.labels["io.kubernetes.pod.name"] == "other"
        };
        left.extend(state.containers.values().filter(|c| !foreign(c)).map(|c| c.id.clone()));
        let names = |folder: &str| {
            let entries = fs::read_dir(self.home.path(folder)).into_iter().flatten().flatten();
            entries.map(|entry| entry.path().display().to_string()).collect::<Vec<_>>()
        };
        left.extend(["root/pods", "logs", "links"].into_iter().flat_map(names));
        left.extend(
            names("root").into_iter().filter(|name| name.ends_with(".new") || name.ends_with(".tmp")),
        );
        left
    }

    fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let (left, wanted) = (self.left(), &self.wanted);
            assert!(begun.elapsed() < PATIENCE, "{what}: {left:?}, wanted {wanted:?}; {}", self.story());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.check();
    }

    /// No more trouble: what is wanted runs; then nothing is wanted, and nothing is left.
    fn end(&mut self) {
        let _ = fs::remove_file(self.home.manifest("broken"));
        self.start();
        self.wait("what is wanted does not run", Self::reached);
        for name in std::mem::take(&mut self.wanted).into_keys() {
            fs::remove_file(self.home.manifest(name)).unwrap();
        }
        self.wait("something is left", |node| node.left().is_empty());
        self.kill();
        assert!(!self.log().contains("panicked"), "{}", self.story());
        let touched = self.fake.actions().into_iter().filter(|call| call.contains("other"));
        assert_eq!(touched.collect::<Vec<_>>(), [""; 0], "another agent's pod is left alone");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn run_foreign_pod(fake: &Fake) {
    let labels: BTreeMap<String, String> =
        [("name", "other"), ("namespace", "default"), ("uid", "other-uid")]
            .map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned()))
            .into();
    let metadata = cri::PodSandboxMetadata {
        name: "other".to_owned(),
        namespace: "default".to_owned(),
        uid: "other-uid".to_owned(),
        attempt: 0,
    };
    let sandbox =
        cri::PodSandboxConfig { metadata: Some(metadata), labels: labels.clone(), ..Default::default() };
    let container = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "app".to_owned(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: "busybox:1".to_owned(), ..Default::default() }),
        labels,
        ..Default::default()
    };
    fake.run_pod(sandbox, vec![container]);
    fake.clear_calls();
}

/// The agent starts, gets as far as so many calls to the runtime and a moment more, and is killed. Counted in calls,
/// because a busy machine may take long to start a process. Where the runtime `answers`, the first call is sure to come
/// and begins the life's time.
fn live(node: &mut Node, answers: bool) {
    let before = node.fake.state().calls.len();
    let calls = node.rng.usize(..60);
    node.start();
    node.churn();
    let (mut begun, mut is_timed) = (Instant::now(), !answers);
    loop {
        let made = node.fake.state().calls.len() - before;
        if made > 0 && !is_timed {
            (begun, is_timed) = (Instant::now(), true);
        }
        if made >= calls || is_timed && begun.elapsed() >= LIFE_MAX {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the agent asks the runtime nothing; {}", node.story());
        if node.rng.u8(..20) == 0 {
            node.churn();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let micros = node.rng.u64(..5_000);
    std::thread::sleep(Duration::from_micros(micros));
    node.kill();
    node.check();
}

#[test]
fn three_hundred_kills_double_nothing_and_lose_nothing() {
    let mut node = Node::new(1);
    for _ in 0..KILLS {
        live(&mut node, true);
    }
    node.end();
    let starts = node.fake.count("StartContainer");
    println!("{KILLS} kills, {starts} starts");
    assert!(starts > 100, "the agents lived long enough to do something: {starts} starts");
}

#[test]
fn kills_while_the_runtime_dies_and_freezes() {
    let mut node = Node::new(2);
    let (mut dead, mut frozen) = (false, false);
    for _ in 0..KILLS_IN_TROUBLE {
        match node.rng.u8(..4) {
            0 if dead => {
                node.fake.accept_connections();
                dead = false;
            }
            0 => {
                node.fake.refuse_connections();
                dead = true;
            }
            1 if frozen => {
                CALLS.iter().for_each(|call| node.fake.heal(call));
                frozen = false;
            }
            1 => {
                CALLS.iter().for_each(|call| node.fake.hang(call));
                frozen = true;
            }
            2 => {
                let call = CALLS[node.rng.usize(..CALLS.len())];
                node.fake.lose_answer(call, 1);
            }
            _ => {}
        }
        live(&mut node, !dead && !frozen);
    }
    if dead {
        node.fake.accept_connections();
    }
    CALLS.iter().for_each(|call| node.fake.heal(call));
    node.end();
}
