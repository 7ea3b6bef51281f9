//! One test's cluster: an API server, a runtime and an agent, on one clock.
//!
//! Time is virtual unless a test says why it needs the machine's ([`World::on_real_time`]): it advances only while the test
//! waits, and only when the agent waits for nothing but time, to the next instant at which something is due.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::clock::{Clock as _, SystemClock, VirtualClock};
use smolet::config::{Config, Flags, NodeApi};
use smolet::model::Mono;
use smolet::node::{Ending, Stop};

use crate::common::agent::{Ended, Home, Life, Waits, endpoint};
pub use crate::common::agent::{NODE, PATIENCE};
use crate::common::apiserver::ApiServer;
use crate::common::fake::{Fake, FakeClock};
use crate::common::rest::{PeersActivity, Watched};
use crate::common::{Stopwatch, log_of, show_log};

/// By how much virtual time advances at most before the agent is waited for again.
const STEP_MAX: Duration = Duration::from_secs(1);
/// How long the servers may take for what an agent that has ended asked them for. Longer: an answer is held back on purpose.
const SERVERS_PATIENCE: Duration = Duration::from_secs(2);
/// How often a test on real time looks at what it waits for.
const LOOK: Duration = Duration::from_millis(5);

pub struct World {
    pub api: ApiServer,
    pub fake: Fake,
    clock: FakeClock,
    home: Home,
    agent: RefCell<Option<Run>>,
}

/// A run of the agent.
enum Run {
    OnRealTime(Life),
    OnVirtualTime(Watched),
}

impl Run {
    fn life(&self) -> &Life {
        match self {
            Self::OnRealTime(life) => life,
            Self::OnVirtualTime(watched) => &watched.life,
        }
    }

    fn into_life(self) -> Life {
        match self {
            Self::OnRealTime(life) => life,
            Self::OnVirtualTime(watched) => watched.life,
        }
    }
}

impl World {
    /// A cluster that trusts nodes no further than they need, and an agent that has joined it.
    pub fn new() -> Self {
        let world = Self::without_agent();
        world.start();
        world
    }

    pub fn without_agent() -> Self {
        // Certificates, which the agent's TLS checks by the machine's clock, are valid at the start.
        Self::on(VirtualClock::new(SystemClock.now().wall).into())
    }

    /// As [`World::new`], on the machine's clock.
    pub fn on_real_time() -> Self {
        let world = Self::on_real_time_without_agent();
        world.start();
        world
    }

    /// As [`World::without_agent`], on the machine's clock.
    pub fn on_real_time_without_agent() -> Self {
        Self::on(FakeClock::System)
    }

    fn on(clock: FakeClock) -> Self {
        show_log();
        let fake = Fake::start(clock.clone());
        fake.state().writes_logs = true;
        for version in 1..=2 {
            fake.add_image(&format!("busybox:{version}"));
        }
        let api = ApiServer::start_on(clock.clone());
        api.authorize_nodes();
        Self { api, fake, clock, home: Home::new(), agent: RefCell::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    pub fn config(&self) -> Config {
        let flags = Flags {
            runtime_endpoint: Some(endpoint(&self.fake)),
            sysctl_root: Some(self.path("sys")),
            kubeconfig: Some(self.api.kubeconfig(self.home.root(), &format!("system:node:{NODE}"))),
            ..self.home.flags()
        };
        let config = self.home.config(&flags);
        let client_ca = self.path("clients.crt");
        std::fs::write(&client_ca, self.api.client_ca_pem()).unwrap();
        let node_api = NodeApi {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            client_ca: Some(client_ca),
            healthz: None,
            ..config.node_api
        };
        Config { make_iptables_util_chains: false, node_api, ..config }
    }

    /// An agent that knows the cluster's name servers.
    pub fn start(&self) {
        self.start_with(Config { cluster_dns: vec!["10.43.0.10".to_owned()], ..self.config() });
    }

    pub fn start_with(&self, config: Config) {
        let run = match &self.clock {
            FakeClock::System => {
                Run::OnRealTime(Life::begin(config, false, SystemClock, Waits::InTheReactor, |_| ()))
            }
            FakeClock::Virtual(clock) => Run::OnVirtualTime(Watched::begin(config, false, clock.clone())),
        };
        assert!(self.agent.replace(Some(run)).is_none(), "one agent at a time");
    }

    /// Why an agent with these settings does not start.
    pub fn refusal(&self, config: Config) -> String {
        self.start_with(config);
        self.end().expect_err("it does not start")
    }

    /// As `systemctl stop`.
    pub fn stop(&self) {
        self.tell(Stop::Agent);
        assert_eq!(self.end(), Ok(Some(Ending::Stopped)));
    }

    /// As logind, or a signal.
    pub fn tell(&self, stop: Stop) {
        self.agent.borrow().as_ref().expect("an agent runs").life().tell(stop);
    }

    /// The processor time that the agent's thread has taken.
    pub fn processor_time(&self) -> Duration {
        let tid = self.agent.borrow().as_ref().expect("an agent runs").life().tid();
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    /// What the agent has logged.
    pub fn log(&self) -> Vec<String> {
        log_of(self.agent.borrow().as_ref().expect("an agent runs").life().tid())
    }

    /// As `kill -9`.
    pub fn kill(&self) {
        self.agent.take().expect("an agent runs").into_life().kill();
        self.await_servers();
    }

    fn is_over(&self) -> bool {
        self.agent.borrow().as_ref().is_some_and(|run| run.life().is_over())
    }

    /// Waits for the agent's end; its result.
    fn end(&self) -> Ended {
        let deadline = Deadline::after(self, PATIENCE);
        while !self.is_over() {
            assert!(!deadline.is_past(self), "the agent does not end: {}", self.trace());
            self.advance(STEP_MAX);
        }
        let ended = self.agent.take().expect("an agent runs").into_life().end();
        self.await_servers();
        ended
    }

    /// Waits until the servers have done what an agent that has ended asked them for: none of it comes after what the test does
    /// next.
    fn await_servers(&self) {
        let begun = Instant::now();
        let mut before = None;
        while begun.elapsed() < SERVERS_PATIENCE {
            let is_quiet = self.fake.is_idle() && self.api.is_idle() && self.api.open_connections() == 0;
            let messages = is_quiet.then(|| self.peers().messages);
            if is_quiet && messages == before {
                return;
            }
            before = messages;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    // ---- time ------------------------------------------------------------------------------------------

    /// The instant on the world's clock.
    pub fn now(&self) -> Mono {
        self.clock.now().mono
    }

    /// Time on the world's clock since that instant.
    pub fn since(&self, instant: Mono) -> Duration {
        self.now().since(instant)
    }

    /// Waits so long on the world's clock, and for what follows at once.
    pub fn pass(&self, time: Duration) {
        let end = self.now() + time;
        loop {
            let left = end.since(self.now());
            if left.is_zero() {
                break;
            }
            self.advance(left);
        }
        self.settle();
    }

    /// Waits until `look` finds something. On virtual time it looks while the agent and the servers are at rest.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut(&World) -> Option<T>) -> T {
        let deadline = Deadline::after(self, PATIENCE);
        loop {
            // What happens at this instant, before time goes on: what is found is not in the middle of something.
            self.settle();
            if let Some(found) = look(self) {
                return found;
            }
            if self.is_over() {
                let run = self.agent.take().expect("an agent ran");
                panic!("waiting for {what}, the agent ended: {:?}", run.into_life().end());
            }
            assert!(!deadline.is_past(self), "waited for {what}; {}", self.trace());
            self.advance(STEP_MAX);
        }
    }

    pub fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        self.wait(what, |world| holds(world).then_some(()));
    }

    /// Lets time advance to the next instant at which something is due, but by `at_most`.
    fn advance(&self, at_most: Duration) {
        match &self.clock {
            FakeClock::System => std::thread::sleep(LOOK.min(at_most)),
            FakeClock::Virtual(clock) => {
                self.settle();
                let now = clock.now().mono;
                let due = clock.next_sleeper().map_or(at_most, |at| at.since(now));
                clock.advance(due.clamp(Duration::from_nanos(1), at_most.min(STEP_MAX)));
            }
        }
    }

    /// On virtual time: waits until the agent waits for nothing but time, or an answer that a fault holds back.
    fn settle(&self) {
        if let Some(Run::OnVirtualTime(watched)) = self.agent.borrow().as_ref() {
            watched.settle_disk(|| self.peers(), || self.trace());
        }
    }

    /// What the runtime and the API server do.
    fn peers(&self) -> PeersActivity {
        // An answer is on its way until the server's thread has nothing left to do.
        let at_work = !self.fake.is_idle() || !self.api.is_idle();
        let state = self.fake.state();
        let messages = state.calls.len() as u64 + self.api.turns();
        PeersActivity { active: at_work || state.is_active(), messages }
    }

    fn trace(&self) -> String {
        let requests: Vec<String> = self.api.requests().iter().map(|r| format!("{r:?}")).collect();
        let last = &requests[requests.len().saturating_sub(15)..];
        let (pods, calls) = (self.api.list("pods", ""), self.fake.actions());
        format!("pods: {pods:?}; calls: {calls:?}; requests:\n{}", last.join("\n"))
    }

    /// What the agent answers to one GET on its own socket.
    pub fn local(&self, path: &str) -> String {
        self.home.ask(path).1
    }

    // ---- objects ---------------------------------------------------------------------------------------

    pub fn node(&self) -> Option<Value> {
        self.api.get("nodes", "", NODE)
    }

    /// Binds a pod with that spec to the node.
    pub fn bind(&self, name: &str, spec: Value) -> Value {
        let mut spec = spec;
        spec["nodeName"] = NODE.into();
        self.api.create("pods", json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
    }

    pub fn pod(&self, name: &str) -> Option<Value> {
        self.api.get("pods", "default", name)
    }

    pub fn phase(&self, name: &str) -> String {
        self.pod(name)
            .map(|pod| pod["status"]["phase"].as_str().unwrap_or_default().to_owned())
            .unwrap_or_default()
    }

    pub fn is_ready(&self, name: &str) -> bool {
        let pod = self.pod(name).unwrap_or_default();
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    }

    /// Binds a pod of one container and waits until the cluster has it as ready.
    pub fn run(&self, name: &str) {
        self.run_as(name, app());
    }

    /// The same with that spec.
    pub fn run_as(&self, name: &str, spec: Value) {
        self.bind(name, spec);
        self.until("the pod is ready", |world| world.is_ready(name));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(run) = self.agent.take() {
            run.into_life().abandon();
        }
    }
}

/// The end of a wait, on the world's clock and on the machine's.
struct Deadline {
    at: Mono,
    /// How busy the machine is does not count: virtual time goes on as fast as it lets it.
    begun: Stopwatch,
    patience: Duration,
}

impl Deadline {
    fn after(world: &World, patience: Duration) -> Self {
        Self { at: world.now() + patience, begun: Stopwatch::start(), patience }
    }

    fn is_past(&self, world: &World) -> bool {
        world.now() >= self.at || self.begun.elapsed() >= self.patience
    }
}

/// A pod of one container.
pub fn app() -> Value {
    json!({"terminationGracePeriodSeconds": 3, "containers": [{"name": "app", "image": "busybox:1"}]})
}
