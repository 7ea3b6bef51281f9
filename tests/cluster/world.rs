//! One test's cluster: an API server, a runtime and an agent.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smol::channel::Sender;
use smolet::clock::SystemClock;
use smolet::config::{Config, EvictionPolicy, Flags, NodeApi};
use smolet::executor::Executor;
use smolet::node::{self, Ending, Stop};

use crate::common::apiserver::ApiServer;
use crate::common::fake::Fake;
use crate::common::{TempDir, show_log};

pub const NODE: &str = "gw";
/// How long anything may take, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_mins(2);

pub struct World {
    pub api: ApiServer,
    pub fake: Fake,
    folder: TempDir,
    agent: RefCell<Option<Life>>,
}

struct Life {
    stop: Sender<Stop>,
    kill: Sender<()>,
    thread: JoinHandle<Result<Option<Ending>, String>>,
    /// The kernel's number of that thread.
    tid: u32,
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
        let folder = TempDir::new();
        for name in ["manifests", "root", "logs", "links"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let api = ApiServer::start();
        api.authorize_nodes();
        Self { api, fake, folder, agent: RefCell::default() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn config(&self) -> Config {
        let flags = Flags {
            manifests: Some(self.path("manifests")),
            root_dir: Some(self.path("root")),
            runtime_endpoint: Some(format!("unix://{}", self.fake.socket().display())),
            node_name: Some(NODE.to_owned()),
            pod_logs_dir: Some(self.path("logs")),
            container_logs_dir: Some(self.path("links")),
            cgroup_mounts: Some(self.path("cgroup")),
            sysctl_root: Some(self.path("sys")),
            kubeconfig: Some(self.api.kubeconfig(self.folder.path(), &format!("system:node:{NODE}"))),
            ..Flags::default()
        };
        let config = Config::load(&flags, Some(&self.path("sock"))).expect("the settings are valid");
        let client_ca = self.path("clients.crt");
        std::fs::write(&client_ca, self.api.client_ca_pem()).unwrap();
        let node_api = NodeApi {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            client_ca: Some(client_ca),
            healthz: None,
            ..config.node_api
        };
        Config {
            make_iptables_util_chains: false,
            image_gc: None,
            eviction: EvictionPolicy::NEVER,
            node_api,
            ..config
        }
    }

    /// An agent that knows the cluster's name servers.
    pub fn start(&self) {
        self.start_with(Config { cluster_dns: vec!["10.43.0.10".to_owned()], ..self.config() });
    }

    pub fn start_with(&self, config: Config) {
        let (stop, stopped) = smol::channel::bounded(4);
        let (kill, killed) = smol::channel::bounded::<()>(1);
        let (tid_sender, tid) = std::sync::mpsc::channel();
        let live = move || {
            tid_sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let executor = Rc::new(Executor::new());
            let life = async {
                let agent = node::run_until(&config, false, &executor, Rc::new(SystemClock), stopped);
                let agent = async { agent.await.map(Some) };
                let killed = async {
                    let _ = killed.recv().await;
                    Ok(None)
                };
                smol::future::or(agent, killed).await
            };
            let ended = async_io::block_on(executor.run(life));
            // As at the end of a process: what was given up is dropped, and nothing else runs.
            while executor.try_tick() {}
            ended
        };
        let thread = std::thread::Builder::new().name("agent".into()).spawn(live).unwrap();
        let tid = tid.recv().unwrap().unsigned_abs();
        let life = Life { stop, kill, thread, tid };
        assert!(self.agent.replace(Some(life)).is_none(), "one agent at a time");
    }

    /// Why an agent with these settings does not start.
    pub fn refusal(&self, config: Config) -> String {
        self.start_with(config);
        let life = self.agent.take().expect("an agent was started");
        life.thread.join().unwrap().expect_err("it does not start")
    }

    /// As `systemctl stop`.
    pub fn stop(&self) {
        let life = self.agent.take().expect("an agent runs");
        life.stop.try_send(Stop::Agent).unwrap();
        assert_eq!(life.thread.join().unwrap(), Ok(Some(Ending::Stopped)));
    }

    /// As logind, or a signal.
    pub fn tell(&self, stop: Stop) {
        let agent = self.agent.borrow();
        agent.as_ref().expect("an agent runs").stop.try_send(stop).unwrap();
    }

    /// The processor time that the agent's thread has taken.
    pub fn processor_time(&self) -> Duration {
        let tid = self.agent.borrow().as_ref().expect("an agent runs").tid;
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    /// As `kill -9`.
    pub fn kill(&self) {
        let life = self.agent.take().expect("an agent runs");
        life.kill.try_send(()).unwrap();
        assert_eq!(life.thread.join().unwrap(), Ok(None));
    }

    pub fn wait<T>(&self, what: &str, mut look: impl FnMut(&World) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let ended = self.agent.borrow().as_ref().is_some_and(|life| life.thread.is_finished());
            if ended {
                let life = self.agent.take().expect("an agent ran");
                panic!("waiting for {what}, the agent ended: {:?}", life.thread.join().unwrap());
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
        use std::io::{Read as _, Write as _};
        let mut stream =
            std::os::unix::net::UnixStream::connect(self.path("sock")).expect("the agent listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in time");
        answer
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
            let _ = life.kill.try_send(());
            let _ = life.thread.join();
        }
    }
}

/// A pod of one container.
pub fn app() -> Value {
    json!({"terminationGracePeriodSeconds": 3, "containers": [{"name": "app", "image": "busybox:1"}]})
}
