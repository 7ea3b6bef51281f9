//! One test's cluster: an API server, a runtime and an agent.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::clock::SystemClock;
use smolet::config::{Config, Flags, NodeApi};
use smolet::node::Stop;

use crate::common::agent::{Home, Life, Waits, endpoint};
pub use crate::common::agent::{NODE, PATIENCE};
use crate::common::apiserver::ApiServer;
use crate::common::fake::Fake;
use crate::common::show_log;

pub struct World {
    pub api: ApiServer,
    pub fake: Fake,
    home: Home,
    agent: RefCell<Option<Life>>,
}

impl World {
    /// A cluster that trusts nodes no further than they need, and an agent that has joined it.
    pub fn new() -> Self {
        let world = Self::without_agent();
        world.start();
        world
    }

    pub fn without_agent() -> Self {
        show_log();
        let fake = Fake::start_on_real_time();
        fake.state().writes_logs = true;
        for version in 1..=2 {
            fake.add_image(&format!("busybox:{version}"));
        }
        let api = ApiServer::start();
        api.authorize_nodes();
        Self { api, fake, home: Home::new(), agent: RefCell::default() }
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
        let life = Life::begin(config, false, SystemClock, Waits::InTheReactor, |_| ());
        assert!(self.agent.replace(Some(life)).is_none(), "one agent at a time");
    }

    /// Why an agent with these settings does not start.
    pub fn refusal(&self, config: Config) -> String {
        self.start_with(config);
        let life = self.agent.take().expect("an agent was started");
        life.end().expect_err("it does not start")
    }

    /// As `systemctl stop`.
    pub fn stop(&self) {
        self.agent.take().expect("an agent runs").stop();
    }

    /// As logind, or a signal.
    pub fn tell(&self, stop: Stop) {
        self.agent.borrow().as_ref().expect("an agent runs").tell(stop);
    }

    /// The processor time that the agent's thread has taken.
    pub fn processor_time(&self) -> Duration {
        let tid = self.agent.borrow().as_ref().expect("an agent runs").tid();
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    /// As `kill -9`.
    pub fn kill(&self) {
        self.agent.take().expect("an agent runs").kill();
    }

    pub fn wait<T>(&self, what: &str, mut look: impl FnMut(&World) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let ended = self.agent.borrow().as_ref().is_some_and(Life::is_over);
            if ended {
                let life = self.agent.take().expect("an agent ran");
                panic!("waiting for {what}, the agent ended: {:?}", life.end());
            }
            let requests: Vec<String> = self.api.requests().iter().map(|r| format!("{r:?}")).collect();
            let last = &requests[requests.len().saturating_sub(15)..];
            assert!(
                begun.elapsed() < PATIENCE,
                "waited for {what}; pods: {:?}; calls: {:?}; requests:\n{}",
                self.api.list("pods", ""),
                self.fake.actions(),
                last.join("\n")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
        self.wait(what, |world| holds(world).then_some(()));
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
        if let Some(life) = self.agent.take() {
            life.abandon();
        }
    }
}

/// A pod of one container.
pub fn app() -> Value {
    json!({"terminationGracePeriodSeconds": 3, "containers": [{"name": "app", "image": "busybox:1"}]})
}
