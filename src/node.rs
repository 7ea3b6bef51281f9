//! All wiring: the executor, the clock, the channel, the tasks that live as long as the agent, and the loop.
//!
//! The loop takes one event at a time, changes [`agent::Agent`]'s state, and sleeps until the next event or the next deadline.
//! Tasks are spawned here alone, except those of single connections in `server`, `node_api` and `grpc`.

mod agent;
mod cgroups;
mod checkpoint;
#[cfg(feature = "tls")]
mod cluster;
#[cfg(not(feature = "tls"))]
#[path = "node/no_cluster.rs"]
mod cluster;
mod container_gc;
mod debug;
mod devices;
mod drain;
mod effects;
mod event_ring;
mod eviction;
mod find_runtime;
mod identity_file;
mod image_gc;
mod image_lists;
mod image_sync;
mod jobs;
#[cfg(feature = "tls")]
mod join;
mod local_storage;
mod log_flush;
mod logs;
#[cfg(feature = "tls")]
mod network_policy;
#[cfg(feature = "tls")]
mod node_api;
#[cfg(not(feature = "tls"))]
#[path = "node/no_node_api.rs"]
mod node_api;
mod node_runtime;
mod node_stats;
mod pods;
mod prober;
mod registries;
mod relist;
mod runtime_events;
#[cfg(feature = "tls")]
mod service_proxy;
mod shims;
mod show;
mod shutdown;
mod streams;
mod top;
mod torn_cni;
mod unpacked_layers;
mod written;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use async_signal::{Signal, Signals};
use serde_json::json;
use smol::channel::{Receiver, Sender};
use smol::stream::StreamExt as _;

use crate::addresses::NodeAddresses;
use crate::blocking::Blocking;
use crate::cgroup::Cgroups;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::cri::{ImageStore, Runtime, RuntimeHandler};
use crate::events::{About, EventKind};
use crate::executor::Executor;
use crate::facts;
use crate::filesystem::read_start;
use crate::hook::HookRunner;
use crate::image::archive_store::ArchiveStore;
use crate::image::credentials::NODE_LOGINS;
use crate::image::import::{self, Importer};
use crate::image::lists::ListedImages;
use crate::image::pull::ImagePuller;
use crate::image::pulled::PullManager;
use crate::image_store::inflate::inflate;
use crate::kernel_tunables;
use crate::limits::{
    EVENTS_QUEUED_MAX, KIB, KUBE_MEMORY_MAX, MOUNTINFO_BYTES_MAX, ONCE_PATIENCE, ONCE_SETTLE,
    SERVER_CONNECTIONS_MAX, STOPS_QUEUED_MAX, memory_ceiling,
};
use crate::logs::rotate::{LogReports, Rotator};
use crate::metrics::Metrics;
use crate::model::Mono;
use crate::net::Lookups;
use crate::poison::{self, SetAside};
use crate::probe::run::Tools;
use crate::render::{CgroupDriver, ManifestObjects, NodeSettings};
use crate::server::{Query, Server};
use crate::source::{FileSource, HttpSource, ManifestRoom, NodeName, SourceUpdate};
use crate::store::identity::Identity;
use crate::sync::act::{ActContext, NoPodNetwork, PodNetwork, RuntimeManager};
use crate::sync::start_limiter::StartLimiter;
use crate::systemd::Systemd;
use crate::systemd::logind::{DelayLock, Logind, Preparation};
use crate::systemd::notify::Notify;
use agent::{Agent, Event};
use cgroups::{NodeCgroups, PodsCgroups};
use cluster::Cluster;
pub use cluster::Joined;
#[cfg(not(feature = "tls"))]
use cluster::{join, node_name, remember};
use effects::{Effects, Tasks};
use event_ring::Ring;
use find_runtime::{FoundRuntime, Wait, wait_for_runtime};
use image_lists::ImageLists;
#[cfg(feature = "tls")]
use join::{join, node_name, remember};
use log_flush::log_directories;
use node_runtime::NodeRuntime;
use pods::{NodeRoom, Pods};

/// How the agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A signal ended the agent; the containers keep running.
    Stopped,
    /// With `--once`: one line for each pod's result, and whether all pods are as desired.
    Once {
        /// For standard output.
        lines: Vec<String>,
        /// Every pod runs or has succeeded, and every manifest is valid.
        all_well: bool,
    },
}

/// Runs the agent of this machine until a signal ends it, or with `once` until every pod runs or has failed.
///
/// # Errors
/// One sentence that says what to do: the state directory, the socket or the runtime's name cannot be used.
pub async fn run(
    config: &Config,
    once: bool,
    executor: &Rc<Executor>,
    clock: SharedClock,
) -> Result<Ending, String> {
    let signals = Signals::new([Signal::Term, Signal::Int]).map_err(|e| format!("signals: {e}"))?;
    let (stop, stopped) = smol::channel::bounded(STOPS_QUEUED_MAX);
    let mut end = None;
    if !config.shutdown.is_empty() {
        if !config.shutdown_on_sigterm {
            let (preparations, prepared) = smol::channel::bounded(1);
            let logind = Logind::new(&config.system_bus, clock.clone(), config.shutdown.all(), preparations);
            executor.spawn("logind", logind.watch()).detach();
            executor.spawn("shutdown", forward(prepared, stop.clone(), Stop::from)).detach();
        }
        let systemd = Systemd::new(&config.systemd_socket, clock.clone());
        end = Some(MachineEnd { on_sigterm: config.shutdown_on_sigterm, systemd });
    }
    let blocking = Blocking::on_threads(clock.clone(), &config.root_dir);
    executor.spawn("torn CNI files", torn_cni::remove(torn_cni::DIR, blocking, clock.clone())).detach();
    executor.spawn("signals", wait_for_signal(signals, stop, end)).detach();
    poison::watch_panics(&config.root_dir);
    if let Some(directory) = config.socket.parent()
        && std::fs::create_dir_all(directory).is_ok()
    {
        poison::watch_work(directory);
    }
    let ending = run_until(config, once, executor, clock, stopped).await?;
    poison::end_of_work();
    Ok(ending)
}

/// As [`run`], ended by a message (or the channel's end) instead of a signal.
///
/// # Errors
/// As [`run`].
pub async fn run_until(
    config: &Config,
    once: bool,
    executor: &Rc<Executor>,
    clock: SharedClock,
    stopped: Receiver<Stop>,
) -> Result<Ending, String> {
    let identity = Identity::open(&config.root_dir, node_name(config)?.as_deref(), &facts::hostname())?;
    let mut node = facts::node_settings(config, identity.node_name());
    let addresses = NodeAddresses::new(&node.node_ips);
    remember(config, &mut node, &addresses);
    let node = Rc::new(node);
    if config.kubeconfig.is_some() || config.protect_kernel_defaults {
        kernel_tunables::set_up(&config.sysctl_root, config.protect_kernel_defaults)?;
    }
    let server = Server::bind(&config.socket)?;
    let listening = node_api::listen(config, &node, &addresses)?;
    log_directories(config)?;

    let (given, interface) =
        (config.registration.addresses.clone(), config.node_interface().map(str::to_owned));
    executor.spawn("node addresses", addresses.clone().follow(given, interface, clock.clone())).detach();
    // Before the runtime is available, so that `smolet pods` always has a server to connect to.
    let (queries, asked) = smol::channel::bounded(SERVER_CONNECTIONS_MAX);
    let metrics = Rc::new(Metrics::new(executor.polls().clone()));
    let of_cluster = if config.kubeconfig.is_some() { KUBE_MEMORY_MAX } else { 0 };
    log::info!(
        "memory ceiling {} KiB for all that is kept; smolet top --self shows its parts",
        (memory_ceiling(config.status_store_bytes) + of_cluster) / KIB
    );
    let connections = metrics.connections.clone();
    let [root, images] = [&config.root_dir, &config.images_dir].map(|dir| dir.to_string_lossy());
    let asked_for = (queries.clone(), json!({"root": root, "images": images}).to_string().into());
    let serving =
        executor.spawn("local socket", server.run(executor.clone(), clock.clone(), asked_for, connections));
    let notify = Rc::new(Notify::new(config.supervisor.as_ref(), clock.now().mono));
    notify.ready();

    let blocking = Rc::new(Blocking::on_threads(clock.clone(), &config.root_dir));
    let wait = Wait {
        config,
        identity: &identity,
        executor,
        clock: &clock,
        blocking: &blocking,
        once,
        metrics: &metrics,
    };
    let found = wait_for_runtime(&wait, &asked, &stopped, &notify).await;
    let ended = match found {
        Ok(Some(found)) => {
            let start =
                Start { config, identity, node, addresses, executor, clock, blocking, once, metrics, notify };
            Ok(start.run(found, listening, (queries, asked), stopped).await)
        }
        Ok(None) => Ok(Ending::Stopped),
        Err(why) => Err(why),
    };
    // The socket's file goes with the server.
    serving.cancel().await;
    ended
}

/// State that exists before the runtime is available.
struct Start<'a> {
    config: &'a Config,
    identity: Identity,
    node: Rc<NodeSettings>,
    addresses: NodeAddresses,
    executor: &'a Rc<Executor>,
    clock: SharedClock,
    blocking: Rc<Blocking>,
    once: bool,
    metrics: Rc<Metrics>,
    notify: Rc<Notify>,
}

impl Start<'_> {
    /// Starts the tasks beside the loop, and runs the loop.
    async fn run(
        self,
        found: FoundRuntime,
        listening: Option<node_api::Listening>,
        (queries, asked): (Sender<Query>, Receiver<Query>),
        stopped: Receiver<Stop>,
    ) -> Ending {
        let FoundRuntime { runtime, version, handlers, cgroup_driver } = found;
        let config = &Config { cgroup_driver, ..self.config.clone() };
        let node = if self.node.cgroup_driver == cgroup_driver {
            self.node.clone()
        } else {
            Rc::new(NodeSettings { cgroup_driver, ..NodeSettings::clone(&self.node) })
        };
        let set_aside = Arc::new(SetAside::read(&config.root_dir));
        let source = self.start_sources(&set_aside);
        let blocking = self.blocking.clone();
        let runtime = runtime.counted_by(self.metrics.operations.clone()).reading_in(blocking.clone());
        registries::write_hosts(config, &version.runtime_name, runtime.socket());
        let (images, image_store) = self.start_import(&runtime, &version.runtime_name);
        let logs = self.start_rotation(&runtime, &blocking);
        let joined = join(
            config,
            &node,
            &self.addresses,
            (&version, handlers.as_slice()),
            self.executor,
            &self.clock,
            listening.map(|of| (of, queries, blocking.clone(), self.metrics.node_api.clone())),
        );
        let parts = Parts {
            config,
            identity: self.identity,
            node,
            addresses: self.addresses,
            executor: self.executor.clone(),
            clock: self.clock,
            blocking,
            source,
            images,
            image_store,
            logs,
            set_aside,
            once: self.once,
            metrics: self.metrics,
            notify: self.notify,
            joined,
        };
        parts.run_loop(runtime, version.runtime_name, handlers, asked, stopped).await
    }

    /// Starts the sources of manifests: files and, if configured, a URL.
    fn start_sources(&self, set_aside: &Arc<SetAside>) -> Receiver<SourceUpdate> {
        let (config, node) = (self.config, || NodeName::new(self.identity.node_name()));
        let (updates, source) = smol::channel::bounded(1);
        let manifests =
            FileSource::new(&config.manifests, node(), self.clock.clone(), config.file_check_frequency)
                .setting_aside(set_aside.clone());
        let manifests = match &config.static_pods {
            None => manifests,
            Some(of) => {
                let room = ManifestRoom::default();
                let pods = HttpSource::new(of.get.clone(), node(), self.clock.clone(), of.period);
                let pods = pods.beside(room.clone(), set_aside.clone());
                self.executor.spawn("manifest URL", pods.run(updates.clone())).detach();
                manifests.sharing(room)
            }
        };
        self.executor.spawn("manifest files", manifests.run(updates)).detach();
        source
    }

    /// Starts the import of image archives from a directory. Returns the channel of imported image names, and the image store.
    fn start_import(
        &self,
        runtime: &NodeRuntime,
        runtime_name: &str,
    ) -> (Receiver<Vec<String>>, Option<ImageStore>) {
        let (dir, of) = (&self.config.images_dir, self.identity.node_name());
        let (imported, images) = smol::channel::bounded(1);
        let (target, store) = match runtime {
            NodeRuntime::Cri(runtime) => {
                let store = || runtime.image_store(&import::lease(of));
                (ArchiveStore::Containerd(store(), runtime.clone()), Some(store()))
            }
            // Its images tell by themselves that they are pinned.
            NodeRuntime::Embedded(node) => (ArchiveStore::Embedded(Rc::new(node.images.clone())), None),
        };
        let (listed, changes) = ListedImages::new();
        let root = &self.config.root_dir;
        let inflate = (inflate as import::Inflate, root.join("image-archive"));
        let importer = Importer::new(dir, target, self.clock.clone(), imported, inflate, listed.clone());
        self.executor.spawn("image import", importer.run()).detach();
        let logins = registries::logins(self.config, runtime_name);
        let lists = ImageLists {
            listed,
            changes,
            runtime: runtime.clone(),
            puller: ImagePuller::new(self.clock.clone(), 1).with_registries(logins),
            logins: root.join(NODE_LOGINS),
            blocking: self.blocking.clone(),
            clock: self.clock.clone(),
        };
        self.executor.spawn("image lists", lists.run()).detach();
        (images, store)
    }

    /// Starts the rotation of container logs. Returns the channel on which running containers are reported to it.
    fn start_rotation(&self, runtime: &NodeRuntime, blocking: &Rc<Blocking>) -> LogReports {
        let (logs, woken) = LogReports::new();
        if let Some(rotation) = self.config.log_rotation {
            let told = (logs.clone(), woken);
            let (rotator, compressing) =
                Rotator::new(rotation, runtime.clone(), self.clock.clone(), blocking.clone(), told);
            self.executor.spawn("log rotation", rotator.run()).detach();
            self.executor.spawn("log compression", compressing).detach();
        }
        logs
    }
}

/// A request to stop the agent, or the node's pods.
#[derive(Debug)]
pub enum Stop {
    /// The agent ends; the containers keep running.
    Agent,
    /// The machine shuts down: the pods are terminated, then the agent ends.
    Pods,
    /// The machine is about to shut down, and logind waits for the pods while the delay lock is held.
    Prepare(Option<DelayLock>),
    /// The shutdown was cancelled.
    Cancelled,
}

impl From<Preparation> for Stop {
    fn from(preparation: Preparation) -> Self {
        match preparation {
            Preparation::Begun(lock) => Self::Prepare(lock),
            Preparation::Cancelled => Self::Cancelled,
        }
    }
}

/// Detects that SIGTERM was sent because the machine shuts down.
struct MachineEnd {
    on_sigterm: bool,
    systemd: Systemd,
}

impl MachineEnd {
    async fn is_meant(&self) -> bool {
        if self.on_sigterm {
            return true;
        }
        let asked = self.systemd.is_stopping().await;
        asked.unwrap_or_else(|error| {
            // Without systemd, the flag decides.
            log::debug!("state of systemd unknown: {error}; not a system shutdown");
            false
        })
    }
}

/// The first SIGTERM may mean a system shutdown; any further signal ends the agent at once.
async fn wait_for_signal(mut signals: Signals, stop: Sender<Stop>, mut end: Option<MachineEnd>) {
    while let Some(Ok(signal)) = signals.next().await {
        let ends = match end.take().filter(|_| signal == Signal::Term) {
            Some(end) => end.is_meant().await,
            None => false,
        };
        // Full: the loop still has to handle the previous requests to stop.
        if !ends {
            log::info!("{signal:?}: stopping; the containers run on");
            let _ = stop.try_send(Stop::Agent);
            return;
        }
        log::info!("{signal:?}: system shutdown; terminating pods");
        let _ = stop.try_send(Stop::Pods);
    }
}

/// Inputs of the loop.
pub struct Parts<'a> {
    /// The settings.
    pub config: &'a Config,
    /// The identity from the locked state directory.
    pub identity: Identity,
    /// Settings and facts of the machine.
    pub node: Rc<NodeSettings>,
    /// The node's addresses, which may change.
    pub addresses: NodeAddresses,
    /// The executor of all tasks.
    pub executor: Rc<Executor>,
    /// The machine's clock, or a test's.
    pub clock: SharedClock,
    /// Runs blocking work.
    pub blocking: Rc<Blocking>,
    /// The desired pods of each source: a full set with each update.
    pub source: Receiver<SourceUpdate>,
    /// The full names of imported images.
    pub images: Receiver<Vec<String>>,
    /// Where imported images are recorded; `None` when no directory is configured.
    pub image_store: Option<ImageStore>,
    /// Receives the running containers, for the rotation of their logs.
    pub logs: LogReports,
    /// Pods and manifests that ended the process too often.
    pub set_aside: Arc<SetAside>,
    /// End when every pod runs or has failed.
    pub once: bool,
    /// The counters, shared with the server and the runtime's client.
    pub metrics: Rc<Metrics>,
    /// Sends the watchdog notifications of the loop to systemd.
    pub notify: Rc<Notify>,
    /// The cluster that this node has joined.
    pub joined: Option<Joined>,
}

impl Parts<'_> {
    /// Runs the loop on an available runtime. `stopped` ends it; `asked` brings requests.
    pub async fn run_loop<R: Runtime + 'static>(
        self,
        runtime: R,
        runtime_name: Box<str>,
        handlers: Vec<RuntimeHandler>,
        asked: Receiver<Query>,
        stopped: Receiver<Stop>,
    ) -> Ending {
        let (once, notify, polls) = (self.once, self.notify.clone(), self.metrics.polls.clone());
        let (config, clock) = (self.config, self.clock.clone());
        let (events, inbox) = smol::channel::bounded(EVENTS_QUEUED_MAX);
        let mut agent = self.assemble(runtime, runtime_name, handlers, asked, stopped, events);
        let mut judge = once.then(|| Judge { patience: clock.now().mono + ONCE_PATIENCE, seen: None });
        // With the pods, at a system shutdown.
        let mut ends = false;
        loop {
            polls.at("loop: turn");
            agent.turn();
            if ends && agent.shutdown_is_over() {
                agent.save_at_end().await;
                return Ending::Stopped;
            }
            let now = clock.now().mono;
            notify.turn(now);
            if let Some(judge) = &mut judge
                && let Some(ending) = judge.ending(agent.once_ending(now >= judge.patience), now)
            {
                agent.save_at_end().await;
                return ending;
            }
            let judged = judge.as_ref().map(Judge::due);
            let due = [agent.due(), judged, notify.due()].into_iter().flatten().min();
            match next_event(&inbox, due, &clock).await {
                Some(Event::Stop(Stop::Prepare(lock))) => agent.begin_shutdown(lock),
                Some(Event::Stop(Stop::Cancelled)) => agent.cancel_shutdown(),
                Some(Event::Stop(Stop::Pods)) => {
                    agent.begin_shutdown(None);
                    notify.stopping_within(config.shutdown.all());
                    ends = true;
                }
                Some(Event::Stop(Stop::Agent)) => {
                    notify.stopping();
                    agent.save_at_end().await;
                    return Ending::Stopped;
                }
                Some(event) => {
                    polls.at(event.name());
                    agent.take(event);
                    polls.give_way().await;
                }
                None => {}
            }
        }
    }

    /// Builds the loop's state, and starts the tasks that bring it events.
    fn assemble<R: Runtime + 'static>(
        self,
        runtime: R,
        runtime_name: Box<str>,
        handlers: Vec<RuntimeHandler>,
        asked: Receiver<Query>,
        stopped: Receiver<Stop>,
        events: Sender<Event>,
    ) -> Agent<R> {
        let Parts { config, identity, addresses, clock, metrics, .. } = self;
        let tasks = Tasks::new(self.executor, events);
        tasks.forward("source", self.source, |update| Event::Source(Box::new(update)));
        tasks.forward("imported images", self.images, Event::Imported);
        tasks.forward("requests", asked, Event::Query);
        tasks.forward("stop", stopped, Event::Stop);
        let (changes, followed) = (addresses.changes(), addresses.clone());
        tasks.forward("addresses", changes, move |()| Event::Addresses(followed.now()));

        let ring = Rc::new(Ring::default());
        let cgroups = node_cgroups(config, &self.node, &clock);
        let pods_cgroups = PodsCgroups {
            cgroups: cgroups.clone(),
            node: self.node.clone(),
            blocking: self.blocking.clone(),
        };
        let network = match &self.joined {
            Some(joined) => joined.network(clock.clone()),
            None => Box::new(NoPodNetwork),
        };
        let ctx = context(
            config,
            (runtime, handlers, &*runtime_name),
            (self.node, &addresses),
            (pods_cgroups, network),
            self.blocking,
            &clock,
            &ring,
        );
        let cluster = self.joined.map(|joined| Cluster::begin(joined, &tasks, &clock));
        let now = clock.now();
        let room = match &cluster {
            Some(cluster) => cluster.room(),
            None => NodeRoom::alone(&ctx.node, facts::pods_max(config, &ctx.node)),
        };
        let out = Effects::new(tasks, clock, metrics.clone(), ring, identity.node_name());
        let sinks = (metrics, self.logs);
        let pods = Pods::new(ctx, config, cgroups, sinks, identity, runtime_name, self.set_aside, room, now);
        let mut agent = Agent::new(out, pods, config, self.image_store, cluster, now);
        // The addresses may have changed while the runtime was not available.
        agent.take(Event::Addresses(addresses.now()));
        agent.note_start();
        agent
    }
}

/// The node's cgroups for the configured driver.
fn node_cgroups(config: &Config, node: &NodeSettings, clock: &SharedClock) -> NodeCgroups {
    // The cgroup mounts are among the first lines.
    let mounts = read_start(Path::new("/proc/self/mounts"), MOUNTINFO_BYTES_MAX).unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let systemd = match node.cgroup_driver {
        CgroupDriver::Systemd => Some(Systemd::new(&config.systemd_socket, clock.clone())),
        CgroupDriver::Cgroupfs => None,
    };
    NodeCgroups::new(Cgroups::from_mounts(&mounts, &config.cgroup_mounts), systemd)
}

/// Decides when `--once` ends: when the result has been the same for a moment, or the patience is over.
struct Judge {
    patience: Mono,
    /// The last result, and since when it is the same.
    seen: Option<(Ending, Mono)>,
}

impl Judge {
    fn ending(&mut self, now_seen: Option<Ending>, now: Mono) -> Option<Ending> {
        let Some(ending) = now_seen else {
            self.seen = None;
            return None;
        };
        let since = match &self.seen {
            Some((seen, since)) if *seen == ending => *since,
            _ => now,
        };
        let settled = now >= self.patience || now.since(since) >= ONCE_SETTLE;
        self.seen = Some((ending, since));
        if settled { self.seen.take().map(|(ending, _)| ending) } else { None }
    }

    fn due(&self) -> Mono {
        self.seen.as_ref().map_or(self.patience, |(_, since)| self.patience.min(*since + ONCE_SETTLE))
    }
}

/// The next event; `None` when the deadline comes first.
async fn next_event(inbox: &Receiver<Event>, due: Option<Mono>, clock: &SharedClock) -> Option<Event> {
    // The agent owns a sender, so the channel never closes.
    let event = async { inbox.recv().await.ok() };
    match due {
        None => event.await,
        Some(at) => {
            smol::future::or(event, async {
                clock.sleep_until(at).await;
                None
            })
            .await
        }
    }
}

fn context<R: Runtime + 'static>(
    config: &Config,
    (runtime, handlers, runtime_name): (R, Vec<RuntimeHandler>, &str),
    (node, addresses): (Rc<NodeSettings>, &NodeAddresses),
    (cgroups, network): (PodsCgroups, Box<dyn PodNetwork>),
    blocking: Rc<Blocking>,
    clock: &SharedClock,
    ring: &Rc<Ring>,
) -> ActContext<R> {
    let (ring, note_clock) = (ring.clone(), clock.clone());
    let notes = move |about: About<'_>, kind: EventKind, reason: &'static str, message: &str| {
        let pod = about.pod;
        let is_new = ring.record(about, kind, reason, message, note_clock.now().mono);
        // Every start is a change of its own, even with the same message as the one before.
        if is_new || reason == "Started" {
            match kind {
                EventKind::Normal => log::info!("pod {pod}: {reason}: {message}"),
                EventKind::Warning => log::warn!("pod {pod}: {reason}: {message}"),
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = Rc::new(runtime);
    let tools = Tools { runtime: runtime.clone(), clock: clock.clone(), lookups: Lookups::default() };
    let puller = ImagePuller::new(clock.clone(), config.image_pulls)
        .limited(config.pull_rate)
        .with_registries(registries::logins(config, runtime_name))
        .verifying(PullManager::new(config.pull_verification.clone(), &config.root_dir));
    let manager = RuntimeManager {
        runtime,
        clock: clock.clone(),
        handlers: handlers.into(),
        images: puller,
        volumes: Box::new(jobs::DiskVolumes { node: node.clone(), blocking: blocking.clone() }),
        cgroups: Box::new(cgroups),
        network,
        hooks: Rc::new(HookRunner::new(tools, addresses.clone())),
        notes: Box::new(notes),
        container_logs_dir: config.container_logs_dir.as_path().into(),
        hosts_file: Path::new("/etc/hosts").into(),
        resolver: Some(Arc::new(config.resolver())),
        blocking,
        starts: StartLimiter::new(processors),
    };
    ActContext::new(manager, node, Rc::new(ManifestObjects::default()))
}

async fn forward<T, U>(from: Receiver<T>, to: Sender<U>, wrap: impl Fn(T) -> U) {
    while let Ok(item) = from.recv().await {
        if to.send(wrap(item)).await.is_err() {
            return;
        }
    }
}
