//! The fake's state, and the effect of each CRI method on it. Errors have containerd's wording.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::Message;
use smolet::model::{Mono, Now, Wall};
use smolet::proto::runtime::v1 as cri;
use smolet::proto::runtime::v1::{ContainerState, PodSandboxState};

use super::crowd::Crowd;
use super::events::EventSource;
use super::store::{self, Store};

/// gRPC codes as containerd uses them.
const UNKNOWN: i32 = 2;
const NOT_FOUND: i32 = 5;
const UNIMPLEMENTED: i32 = 12;

#[derive(Default)]
pub struct State {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    pub images: BTreeMap<String, Image>,
    /// Path of the images' file system; a missing one unless it is set.
    pub image_mountpoint: Option<String>,
    /// Memory usage of containers of that name.
    pub memory: BTreeMap<String, i64>,
    /// Size of the writable layer of containers of that name.
    pub written: BTreeMap<String, i64>,
    /// The sandbox image, reported as by containerd.
    pub sandbox_image: Option<String>,
    /// Images that no registry has.
    pub missing: BTreeSet<String>,
    /// Images that a registry gives only to this user with this password.
    pub private: BTreeMap<String, (String, String)>,
    /// Every call since the start or the last [`super::Fake::clear_calls`].
    pub calls: Vec<Call>,
    pub connections: u64,
    /// The available gRPC services.
    pub services: Services,
    /// Objects of other clients; only in unfiltered lists.
    pub crowd: Crowd,
    /// Each item of `ListContainerStats` is sent twice.
    pub repeats_stats: bool,
    /// `ListContainerStats` has ended containers too, without stats, as with containerd.
    pub lists_ended_stats: bool,
    /// It has the streaming list calls (KEP-5825).
    pub streams_lists: bool,
    pub(super) rules: Vec<(String, String, Rule)>,
    /// Calls that hang, to be polled again when faults are removed.
    hanging: Vec<Waker>,
    pub programs: Vec<(String, Program)>,
    /// `http://ADDRESS:PORT` of its streaming server; without one its URLs are unreachable.
    pub streaming_server: Option<String>,
    pub(super) execs: Vec<(String, Exec)>,
    /// The open connections, by the order of their arrival.
    pub(super) streams: BTreeMap<u64, UnixStream>,
    conditions: BTreeMap<String, (String, String)>,
    /// Its handlers, and whether each supports user namespaces; an older runtime lists none.
    pub handlers: Vec<(String, bool)>,
    /// It supports `supplementalGroupsPolicy: Strict`.
    pub strict_groups: bool,
    /// It reports a container's stop signal.
    pub stop_signals: bool,
    /// It reports a container's resources (containerd since 1.6.9).
    pub reports_resources: bool,
    /// Its name and version, to pose as a known runtime.
    pub version: Option<(&'static str, &'static str)>,
    made: u64,
    /// Number of unfiltered container lists.
    pub relists: usize,
    /// Calls in progress; those that hang, or wait for time to pass, do not count.
    pub(super) active: usize,
    /// The event streams.
    pub(super) teller: EventSource,
    /// containerd's image store.
    pub store: Store,
    /// How long a container that exited by itself is still reported as running.
    pub exit_lag: Duration,
    now: Mono,
    /// A container that starts creates its log file, as in a real runtime.
    pub writes_logs: bool,
    /// The response to `RuntimeConfig`; `None` = not implemented.
    pub cgroup_driver: Option<cri::CgroupDriver>,
    /// Pods have addresses on which tests can listen.
    pub pods_on_loopback: bool,
    /// Violations of invariants, detected after each call: see [`State::check`].
    pub violations: Vec<String>,
}

pub struct Sandbox {
    pub id: String,
    pub config: cri::PodSandboxConfig,
    pub handler: String,
    pub ready: bool,
    pub created_at: Wall,
    /// Empty with the host's network, and after the sandbox is stopped.
    pub ip: String,
}

pub struct Container {
    pub id: String,
    pub sandbox_id: String,
    pub config: cri::ContainerConfig,
    pub state: ContainerState,
    pub created_at: Wall,
    pub started_at: Wall,
    pub finished_at: Wall,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub program: Program,
    ends: Option<Mono>,
    /// It has exited, and is reported as running until then.
    shown_at: Option<Mono>,
}

pub struct Image {
    pub id: String,
    pub tag: String,
    pub digest: String,
    pub size: u64,
    pub pinned: bool,
    pub uid: Option<i64>,
    pub username: String,
}

/// The kind of server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Services {
    #[default]
    CriV1,
    /// A containerd before 1.6.
    CriV1alpha2,
    /// containerd with `disabled_plugins = ["cri"]`, as Docker's packages configure it.
    ContainerdWithoutCri,
    /// Some other gRPC server.
    Other,
}

/// The behaviour of a container.
#[derive(Clone, Debug)]
pub struct Program {
    /// Exits with this code, so long after its start; `None` = runs until it is stopped.
    pub ends: Option<(Duration, i32)>,
    /// Exits with this code at SIGTERM; `None` = ignores it and is killed (137) after the grace period.
    pub term: Option<i32>,
}

impl Program {
    /// Runs until stopped, then exits with 143.
    pub const FOREVER: Self = Self { ends: None, term: Some(143) };
    /// Runs until killed.
    pub const STUBBORN: Self = Self { ends: None, term: None };

    /// Ends with `code`, `after` its start.
    pub const fn exits(code: i32, after: Duration) -> Self {
        Self { ends: Some((after, code)), term: Some(143) }
    }
}

/// The response to `ExecSync`.
#[derive(Clone, Debug, Default)]
pub struct Exec {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// A call: `StopContainer web/app#0 grace=30`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub method: String,
    /// `POD#ATTEMPT` for sandboxes, `POD/CONTAINER#ATTEMPT` for containers, the name of an image; the id of an unknown object.
    /// Then further arguments: the grace period, the command.
    pub target: String,
    pub at: Wall,
    pub mono: Mono,
    /// The header `grpc-timeout`.
    pub timeout: Option<String>,
}

impl Call {
    pub fn changes(&self) -> bool {
        let reads = ["Version", "Status", "RuntimeConfig", "ImageFsInfo", "GetContainerEvents", "Subscribe"]
            .contains(&&*self.method);
        !(reads
            || self.method.starts_with("List")
            || self.method.starts_with("Stream")
            || self.method.ends_with("Status"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.method)?;
        if self.target.is_empty() { Ok(()) } else { write!(f, " {}", self.target) }
    }
}

/// A scripted fault.
#[derive(Clone, Debug)]
pub enum Rule {
    Fail { times: u32, code: i32, message: String },
    Delay(Duration),
    Hang,
    LoseAnswer { times: u32 },
    BreakOff(BreakOff),
}

/// How a streamed list ends after its first message of two items.
#[derive(Clone, Copy, Debug)]
pub enum BreakOff {
    /// Not at all: the connection stays open.
    Silence,
    /// End of the stream, without a status.
    NoStatus,
    /// A status: this gRPC code.
    Status(i32),
    /// End with OK, but without the first message's second item.
    WithinMessage,
}

pub(super) enum Fault {
    Fail { code: i32, message: String },
    Delay(Duration),
    Hang,
    LoseAnswer,
    BreakOff(BreakOff),
}

type Result<T> = std::result::Result<T, (i32, String)>;

pub enum Reply {
    Done(Result<Vec<u8>>),
    /// To be polled again after this time.
    After(Duration),
}

impl Sandbox {
    pub fn pod(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    pub fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |metadata| metadata.attempt)
    }

    fn host_network(&self) -> bool {
        let context = self.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let options = context.and_then(|context| context.namespace_options.as_ref());
        options.is_some_and(|options| options.network() == cri::NamespaceMode::Node)
    }

    /// containerd's reserved name of a sandbox.
    fn reserved(&self) -> String {
        let m = self.config.metadata.clone().unwrap_or_default();
        format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt)
    }
}

impl Container {
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    pub fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |metadata| metadata.attempt)
    }

    pub fn running(&self) -> bool {
        self.state == ContainerState::ContainerRunning
    }

    fn image(&self) -> &str {
        self.config.image.as_ref().map_or("", |image| &image.image)
    }

    fn finish(&mut self, at: Wall, code: i32, reason: &str, message: &str) {
        self.state = ContainerState::ContainerExited;
        self.finished_at = at;
        self.exit_code = code;
        let usual = if code == 0 { "Completed" } else { "Error" };
        self.reason = if reason.is_empty() { usual.to_owned() } else { reason.to_owned() };
        self.message = message.to_owned();
        self.ends = None;
    }
}

impl Services {
    /// True when a server of this kind has that service.
    pub fn has(self, service: &str) -> bool {
        match self {
            Self::CriV1 => ["runtime.v1.RuntimeService", "runtime.v1.ImageService"].contains(&service),
            Self::CriV1alpha2 => service == "runtime.v1alpha2.RuntimeService",
            Self::ContainerdWithoutCri => service == "containerd.services.version.v1.Version",
            Self::Other => false,
        }
    }
}

impl State {
    // ---- for tests -----------------------------------------------------------------------------------

    /// The newest sandbox of that pod (by name) or with that id.
    pub fn sandbox(&self, pod: &str) -> Option<&Sandbox> {
        let of_pod = |sandbox: &&Sandbox| sandbox.pod() == pod || sandbox.id == pod;
        self.sandboxes.values().filter(of_pod).max_by_key(|sandbox| (sandbox.attempt(), sandbox.created_at))
    }

    /// The newest container called `app` or `web/app`, or with that id. Ids increase; the wall clock may have stepped.
    pub fn container(&self, container: &str) -> Option<&Container> {
        let of_name = |c: &&Container| match container.split_once('/') {
            Some((pod, name)) => c.name() == name && self.pod_of(c) == pod,
            None => c.name() == container || c.id == container,
        };
        self.containers.values().filter(of_name).max_by_key(|c| c.id.clone())
    }

    /// The running containers as `POD/CONTAINER#ATTEMPT`, in the order of their creation.
    pub fn running(&self) -> Vec<String> {
        self.containers.values().filter(|c| c.running()).map(|c| self.label(c)).collect()
    }

    /// The containers that do not run, likewise.
    pub fn dead(&self) -> Vec<String> {
        self.containers.values().filter(|c| !c.running()).map(|c| self.label(c)).collect()
    }

    fn found(&mut self, container: &str) -> &mut Container {
        let id = self.container(container).unwrap_or_else(|| panic!("no container {container}")).id.clone();
        self.containers.get_mut(&id).unwrap()
    }

    /// The client of the container's start has disconnected: the start fails as in containerd. Identified by its call's label.
    pub(super) fn start_was_cut_off(&mut self, label: &str, at: Wall) {
        let id = self.containers.values().find(|c| self.label(c) == label).map(|c| c.id.clone());
        let Some(container) = id.and_then(|id| self.containers.get_mut(&id)) else { return };
        if container.state == ContainerState::ContainerCreated {
            container.finish(at, 128, "StartError", "failed to create containerd task: context canceled");
        }
    }

    pub fn exit(&mut self, container: &str, at: Wall, code: i32, reason: &str, message: &str) {
        let shown_at = Some(self.now + self.exit_lag);
        let container = self.found(container);
        container.finish(at, code, reason, message);
        container.shown_at = shown_at;
    }

    /// Another agent creates and starts a container in the pod's newest sandbox.
    pub(super) fn run_container(&mut self, pod: &str, config: cri::ContainerConfig, now: Now) {
        let pod_sandbox_id = self.sandbox(pod).unwrap_or_else(|| panic!("no sandbox of {pod}")).id.clone();
        let request =
            cri::CreateContainerRequest { pod_sandbox_id, config: Some(config), ..Default::default() };
        self.create_container(request, now).expect("the container is created");
        let id = format!("container-{:04}", self.made);
        self.start_container(&id, now).expect("the container starts");
    }

    pub fn forget(&mut self, container: &str) {
        let id = self.found(container).id.clone();
        self.containers.remove(&id);
    }

    pub fn report_unknown(&mut self, container: &str) {
        let container = self.found(container);
        container.state = ContainerState::ContainerUnknown;
        container.ends = None;
    }

    pub fn kill_sandbox(&mut self, pod: &str) {
        let id = self.sandbox(pod).unwrap_or_else(|| panic!("no sandbox of {pod}")).id.clone();
        let sandbox = self.sandboxes.get_mut(&id).unwrap();
        sandbox.ready = false;
        sandbox.ip.clear();
    }

    pub fn forget_sandbox(&mut self, pod: &str) {
        let id = self.sandbox(pod).unwrap_or_else(|| panic!("no sandbox of {pod}")).id.clone();
        self.sandboxes.remove(&id);
        self.containers.retain(|_, container| container.sandbox_id != id);
    }

    /// A running pod of another agent.
    pub fn run_pod(
        &mut self,
        sandbox: cri::PodSandboxConfig,
        containers: Vec<cri::ContainerConfig>,
        now: Now,
    ) {
        let request = cri::RunPodSandboxRequest { config: Some(sandbox), ..Default::default() };
        self.run_pod_sandbox(request, now).expect("the sandbox starts");
        let pod_sandbox_id = format!("sandbox-{:04}", self.made);
        for config in containers {
            let pod_sandbox_id = pod_sandbox_id.clone();
            let request =
                cri::CreateContainerRequest { pod_sandbox_id, config: Some(config), ..Default::default() };
            self.create_container(request, now).expect("the container is created");
            let id = format!("container-{:04}", self.made);
            self.start_container(&id, now).expect("the container starts");
        }
    }

    /// True while a call is in progress, or was received and not read.
    pub fn is_active(&self) -> bool {
        let unread = |stream: &UnixStream| rustix::io::ioctl_fionread(stream).is_ok_and(|bytes| bytes > 0);
        self.active > 0 || self.teller.telling() > 0 || self.streams.values().any(unread)
    }

    /// Records violations: two running instances of one container, two ready sandboxes of one pod, two running pods of one
    /// name.
    pub fn check(&mut self, method: &str, target: &str) {
        let mut running = BTreeSet::new();
        let mut uids: BTreeMap<(String, String), String> = BTreeMap::new();
        let mut wrong = Vec::new();
        let lives = |c: &&Container| {
            matches!(c.state, ContainerState::ContainerRunning | ContainerState::ContainerUnknown)
        };
        for container in self.containers.values().filter(lives) {
            let label = |name: &str| {
                let key = format!("io.kubernetes.pod.{name}");
                container.config.labels.get(&key).cloned().unwrap_or_default()
            };
            let (name, uid) = ((label("namespace"), label("name")), label("uid"));
            if !running.insert((uid.clone(), container.name().to_owned())) {
                wrong.push(format!("two instances of {}/{}", name.1, container.name()));
            }
            if uids.insert(name.clone(), uid.clone()).is_some_and(|other| other != uid) {
                wrong.push(format!("two pods called {}", name.1));
            }
        }
        let mut ready = BTreeSet::new();
        for sandbox in self.sandboxes.values().filter(|sandbox| sandbox.ready) {
            let uid = sandbox.config.metadata.as_ref().map_or("", |metadata| &metadata.uid);
            if !ready.insert(uid) {
                wrong.push(format!("two ready sandboxes of {}", sandbox.pod()));
            }
        }
        self.violations.extend(wrong.into_iter().map(|what| format!("{what} after {method} {target}")));
    }

    pub fn reboot(&mut self, at: Wall) {
        for sandbox in self.sandboxes.values_mut() {
            sandbox.ready = false;
            sandbox.ip.clear();
        }
        for container in self.containers.values_mut() {
            // An instant before the boot.
            container.shown_at = None;
            if container.state != ContainerState::ContainerExited {
                container.finish(at, 255, "Unknown", "");
            }
        }
    }

    fn image_mountpoint(&self) -> String {
        self.image_mountpoint.clone().unwrap_or_else(|| "/var/lib/fake".to_owned())
    }

    pub fn add_image(&mut self, name: &str) -> String {
        let tag = full_name(name);
        let hash = tag.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let id = format!("sha256:{hash:064x}");
        let repository = tag.split('@').next().unwrap().rsplit_once(':').map_or(&*tag, |(name, _)| name);
        let image = Image {
            id: id.clone(),
            digest: format!("{repository}@sha256:{:064x}", !hash),
            tag,
            size: 1_000_000 + hash % 1_000_000,
            pinned: false,
            uid: None,
            username: String::new(),
        };
        self.images.insert(id.clone(), image);
        id
    }

    pub(super) fn condition(&mut self, kind: &str, reason: &str, message: &str) {
        if reason.is_empty() && message.is_empty() {
            self.conditions.remove(kind);
        } else {
            self.conditions.insert(kind.to_owned(), (reason.to_owned(), message.to_owned()));
        }
    }

    // ---- time and faults -----------------------------------------------------------------------------

    pub fn settle(&mut self, now: Now) {
        self.now = now.mono;
        for container in self.containers.values_mut() {
            let Some(at) = container.ends.filter(|at| *at <= now.mono) else { continue };
            let late = i64::try_from(now.mono.since(at).as_nanos()).unwrap_or(0);
            let code = container.program.ends.map_or(0, |(_, code)| code);
            container.finish(Wall(now.wall.0 - late), code, "", "");
            container.shown_at = Some(at + self.exit_lag);
        }
        self.teller.tell(&self.sandboxes, &self.containers, now.mono);
    }

    /// The next instant at which the state changes without a call: a program exits, or its exit is reported.
    #[allow(dead_code, reason = "each test binary uses other parts")]
    pub fn next_change(&self) -> Option<Mono> {
        let later = |at: &Mono| *at > self.now;
        let ends = self.containers.values().filter_map(|container| container.ends);
        let shown = self.containers.values().filter_map(|container| container.shown_at).filter(later);
        ends.chain(shown).chain(self.next_held_event()).min()
    }

    pub(super) fn fault(&mut self, method: &str, target: &str) -> Option<Fault> {
        let hits = |of: &str, what: &str| of == method && target.contains(what);
        let at = self.rules.iter().position(|(of, what, _)| hits(of, what))?;
        let (fault, used_up) = match &mut self.rules[at].2 {
            Rule::Fail { times, code, message } => {
                *times -= 1;
                (Fault::Fail { code: *code, message: message.clone() }, *times == 0)
            }
            Rule::LoseAnswer { times } => {
                *times -= 1;
                (Fault::LoseAnswer, *times == 0)
            }
            Rule::Delay(delay) => (Fault::Delay(*delay), false),
            Rule::Hang => (Fault::Hang, false),
            Rule::BreakOff(how) => (Fault::BreakOff(*how), true),
        };
        if used_up {
            self.rules.remove(at);
        }
        Some(fault)
    }

    /// True when no fault of `method` is left.
    pub fn healthy(&self, method: &str) -> bool {
        self.rules.iter().all(|(of, ..)| of != method)
    }

    /// Ready once no fault makes this call hang. It sleeps until [`State::heal`]: polling many hanging calls would keep the
    /// thread busy.
    pub(super) fn poll_hanging(&mut self, method: &str, target: &str, cx: &Context<'_>) -> Poll<()> {
        let hang = |(of, what, rule): &(String, String, Rule)| {
            of == method && target.contains(what.as_str()) && matches!(rule, Rule::Hang)
        };
        if !self.rules.iter().any(hang) {
            return Poll::Ready(());
        }
        self.hanging.push(cx.waker().clone());
        Poll::Pending
    }

    /// Removes the faults of `method`.
    pub(super) fn heal(&mut self, method: &str) {
        self.rules.retain(|(of, ..)| of != method);
        self.hanging.drain(..).for_each(Waker::wake);
    }

    // ---- calls ---------------------------------------------------------------------------------------

    /// Records the call; returns its target.
    pub fn record(&mut self, method: &str, message: &[u8], timeout: Option<String>, now: Now) -> String {
        let target = self.target(method, message).unwrap_or_default();
        let lists = method == "ListContainers" || method == "StreamContainers" && self.streams_lists;
        self.relists += usize::from(lists && target.is_empty());
        self.calls.push(Call {
            method: method.to_owned(),
            target: target.clone(),
            at: now.wall,
            mono: now.mono,
            timeout,
        });
        target
    }

    fn pod_of(&self, container: &Container) -> &str {
        self.sandboxes.get(&container.sandbox_id).map_or("", Sandbox::pod)
    }

    fn label(&self, container: &Container) -> String {
        format!("{}/{}#{}", self.pod_of(container), container.name(), container.attempt())
    }

    fn target(&self, method: &str, m: &[u8]) -> Result<String> {
        let pod = |id: &str| {
            self.sandboxes.get(id).map_or(id.to_owned(), |s| format!("{}#{}", s.pod(), s.attempt()))
        };
        let container = |id: &str| self.containers.get(id).map_or(id.to_owned(), |c| self.label(c));
        let selector =
            |selector: &BTreeMap<String, String>| selector.values().cloned().collect::<Vec<_>>().join(",");
        Ok(match method {
            "RunPodSandbox" => {
                let metadata = decode::<cri::RunPodSandboxRequest>(m)?.config.unwrap_or_default().metadata;
                let metadata = metadata.unwrap_or_default();
                format!("{}#{}", metadata.name, metadata.attempt)
            }
            "StopPodSandbox" => pod(&decode::<cri::StopPodSandboxRequest>(m)?.pod_sandbox_id),
            "RemovePodSandbox" => pod(&decode::<cri::RemovePodSandboxRequest>(m)?.pod_sandbox_id),
            "PodSandboxStatus" => pod(&decode::<cri::PodSandboxStatusRequest>(m)?.pod_sandbox_id),
            "ListPodSandbox" | "StreamPodSandboxes" => {
                selector(&decode::<cri::ListPodSandboxRequest>(m)?.filter.unwrap_or_default().label_selector)
            }
            "CreateContainer" => {
                let request = decode::<cri::CreateContainerRequest>(m)?;
                let metadata = request.config.unwrap_or_default().metadata.unwrap_or_default();
                let pod = self.sandboxes.get(&request.pod_sandbox_id).map_or("", Sandbox::pod);
                format!("{pod}/{}#{}", metadata.name, metadata.attempt)
            }
            "StartContainer" => container(&decode::<cri::StartContainerRequest>(m)?.container_id),
            "StopContainer" => {
                let request = decode::<cri::StopContainerRequest>(m)?;
                format!("{} grace={}", container(&request.container_id), request.timeout)
            }
            "RemoveContainer" => container(&decode::<cri::RemoveContainerRequest>(m)?.container_id),
            "UpdateContainerResources" => {
                let request = decode::<cri::UpdateContainerResourcesRequest>(m)?;
                let linux = request.linux.unwrap_or_default();
                format!(
                    "{} shares={} quota={} memory={}",
                    container(&request.container_id),
                    linux.cpu_shares,
                    linux.cpu_quota,
                    linux.memory_limit_in_bytes
                )
            }
            "UpdatePodSandboxResources" => {
                pod(&decode::<cri::UpdatePodSandboxResourcesRequest>(m)?.pod_sandbox_id)
            }
            "ContainerStatus" => container(&decode::<cri::ContainerStatusRequest>(m)?.container_id),
            "ListContainers" | "StreamContainers" => {
                selector(&decode::<cri::ListContainersRequest>(m)?.filter.unwrap_or_default().label_selector)
            }
            "ExecSync" => {
                let request = decode::<cri::ExecSyncRequest>(m)?;
                format!("{} {}", container(&request.container_id), request.cmd.join(" "))
            }
            "Exec" => {
                let request = decode::<cri::ExecRequest>(m)?;
                let streams = [(request.stdin, " -i"), (request.tty, " -t"), (request.stderr, " 2>")];
                let streams: String =
                    streams.iter().filter(|(wanted, _)| *wanted).map(|(_, word)| *word).collect();
                format!("{}{streams} {}", container(&request.container_id), request.cmd.join(" "))
            }
            "Attach" => {
                let request = decode::<cri::AttachRequest>(m)?;
                let streams = [(request.stdin, " -i"), (request.tty, " -t"), (request.stderr, " 2>")];
                let streams: String =
                    streams.iter().filter(|(wanted, _)| *wanted).map(|(_, word)| *word).collect();
                format!("{}{streams}", container(&request.container_id))
            }
            "PortForward" => pod(&decode::<cri::PortForwardRequest>(m)?.pod_sandbox_id),
            "UpdateRuntimeConfig" => {
                let config = decode::<cri::UpdateRuntimeConfigRequest>(m)?.runtime_config.unwrap_or_default();
                config.network_config.unwrap_or_default().pod_cidr
            }
            "ReopenContainerLog" => container(&decode::<cri::ReopenContainerLogRequest>(m)?.container_id),
            "ImageStatus" => decode::<cri::ImageStatusRequest>(m)?.image.unwrap_or_default().image,
            "PullImage" => {
                let request = decode::<cri::PullImageRequest>(m)?;
                let login = request.auth.map(|auth| format!(" as {}", auth.username)).unwrap_or_default();
                request.image.unwrap_or_default().image + &login
            }
            "RemoveImage" => decode::<cri::RemoveImageRequest>(m)?.image.unwrap_or_default().image,
            _ => store::target(method, m).unwrap_or_default(),
        })
    }

    /// True when the fake has that gRPC service.
    pub(super) fn has(&self, service: &str) -> bool {
        self.services.has(service)
            || self.teller.has(service)
            || self.store.is_there && store::named(service, "").is_some()
    }

    /// The unary list call of a streaming one; `None` for other methods, and for a runtime without streaming.
    pub(super) fn list_of(&self, streaming: &str) -> Option<&'static str> {
        let list = match streaming {
            "StreamPodSandboxes" => "ListPodSandbox",
            "StreamContainers" => "ListContainers",
            "StreamImages" => "ListImages",
            "StreamContainerStats" => "ListContainerStats",
            _ => return None,
        };
        self.streams_lists.then_some(list)
    }

    /// Executes the method. `graced`: this call has waited for [`Reply::After`].
    pub fn handle(&mut self, method: &str, m: &[u8], now: Now, graced: bool) -> Reply {
        if !graced
            && method == "StopContainer"
            && let Ok(request) = decode::<cri::StopContainerRequest>(m)
            && let Some(container) = self.containers.get(&request.container_id)
            && container.running()
            && container.program.term.is_none()
            && request.timeout > 0
        {
            return Reply::After(Duration::from_secs(request.timeout.unsigned_abs()));
        }
        Reply::Done(self.answer(method, m, now))
    }

    fn answer(&mut self, method: &str, m: &[u8], now: Now) -> Result<Vec<u8>> {
        match method {
            "Version" => {
                let (name, version) = self.version.unwrap_or(("fake", "1.0.0"));
                encode(&cri::VersionResponse {
                    version: "0.1.0".into(),
                    runtime_name: name.into(),
                    runtime_version: version.into(),
                    runtime_api_version: "v1".into(),
                })
            }
            "Status" => encode(&self.status(decode(m)?)),
            "RunPodSandbox" => self.run_pod_sandbox(decode(m)?, now),
            "StopPodSandbox" => {
                let id = decode::<cri::StopPodSandboxRequest>(m)?.pod_sandbox_id;
                self.stop_pod_sandbox(&id, now);
                encode(&cri::StopPodSandboxResponse {})
            }
            "RemovePodSandbox" => {
                let id = decode::<cri::RemovePodSandboxRequest>(m)?.pod_sandbox_id;
                self.stop_pod_sandbox(&id, now);
                self.containers.retain(|_, container| container.sandbox_id != id);
                self.sandboxes.remove(&id);
                encode(&cri::RemovePodSandboxResponse {})
            }
            "PodSandboxStatus" => {
                let id = decode::<cri::PodSandboxStatusRequest>(m)?.pod_sandbox_id;
                let sandbox = self.sandboxes.get(&id).ok_or_else(|| not_found("sandbox", &id))?;
                encode(&sandbox_status(sandbox))
            }
            "ListPodSandbox" => encode(&self.list_sandboxes(decode(m)?)),
            "CreateContainer" => self.create_container(decode(m)?, now),
            "StartContainer" => {
                self.start_container(&decode::<cri::StartContainerRequest>(m)?.container_id, now)
            }
            "StopContainer" => {
                let request = decode::<cri::StopContainerRequest>(m)?;
                self.stop_container(&request.container_id, request.timeout, now);
                encode(&cri::StopContainerResponse {})
            }
            "RemoveContainer" => {
                self.containers.remove(&decode::<cri::RemoveContainerRequest>(m)?.container_id);
                encode(&cri::RemoveContainerResponse {})
            }
            "UpdateContainerResources" => {
                self.update_container(decode(m)?)?;
                encode(&cri::UpdateContainerResourcesResponse {})
            }
            "ContainerStatus" => {
                let id = decode::<cri::ContainerStatusRequest>(m)?.container_id;
                let container = self.containers.get(&id).ok_or_else(|| not_found("container", &id))?;
                let status = Some(self.container_status(container));
                encode(&cri::ContainerStatusResponse { status, ..Default::default() })
            }
            "ListContainers" => encode(&self.list_containers(decode(m)?)),
            "ListContainerStats" => encode(&self.stats(now)),
            "ExecSync" => self.exec_sync(decode(m)?),
            "Exec" => {
                self.streamed(&decode::<cri::ExecRequest>(m)?.container_id)?;
                encode(&cri::ExecResponse { url: self.url("exec") })
            }
            "Attach" => {
                self.streamed(&decode::<cri::AttachRequest>(m)?.container_id)?;
                encode(&cri::AttachResponse { url: self.url("attach") })
            }
            "PortForward" => {
                let id = decode::<cri::PortForwardRequest>(m)?.pod_sandbox_id;
                match self.sandboxes.get(&id) {
                    Some(sandbox) if sandbox.ready => {
                        encode(&cri::PortForwardResponse { url: self.url("portforward") })
                    }
                    _ => Err(not_found("sandbox", &id)),
                }
            }
            "UpdateRuntimeConfig" => encode(&cri::UpdateRuntimeConfigResponse {}),
            "RuntimeConfig" => match self.cgroup_driver {
                Some(driver) => {
                    let linux = cri::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
                    encode(&cri::RuntimeConfigResponse { linux: Some(linux) })
                }
                None => Err((UNIMPLEMENTED, "unknown method RuntimeConfig".to_owned())),
            },
            "ReopenContainerLog" => {
                let id = decode::<cri::ReopenContainerLogRequest>(m)?.container_id;
                match self.containers.get(&id) {
                    Some(container) if container.running() => {
                        if self.writes_logs {
                            let log = self.log_path(container);
                            let made = std::fs::File::options().append(true).create(true).open(log);
                            made.map_err(|error| (UNKNOWN, error.to_string()))?;
                        }
                        encode(&cri::ReopenContainerLogResponse {})
                    }
                    Some(_) => Err((UNKNOWN, "container is not running".into())),
                    None => Err(not_found("container", &id)),
                }
            }
            "ImageStatus" => {
                let name = decode::<cri::ImageStatusRequest>(m)?.image.unwrap_or_default().image;
                let image = self.image(&name).map(image_message);
                encode(&cri::ImageStatusResponse { image, ..Default::default() })
            }
            "ListImages" => {
                let images = self.images.values().map(image_message).collect();
                encode(&cri::ListImagesResponse { images })
            }
            "PullImage" => {
                let request = decode::<cri::PullImageRequest>(m)?;
                let name = request.image.unwrap_or_default().image;
                let auth = request.auth.unwrap_or_default();
                if self
                    .private
                    .get(&name)
                    .is_some_and(|login| *login != (auth.username, auth.password.clone()))
                {
                    let full = full_name(&name);
                    // With the credentials that were sent: a registry may return anything.
                    let message = format!(
                        "failed to resolve reference \"{full}\": pull access denied, {:?} may not: authorization failed",
                        auth.password
                    );
                    return Err((UNKNOWN, message));
                }
                if self.missing.contains(&name) {
                    let full = full_name(&name);
                    let message = format!(
                        "failed to pull and unpack image \"{full}\": failed to resolve reference \"{full}\": \
                         {full}: not found"
                    );
                    return Err((NOT_FOUND, message));
                }
                encode(&cri::PullImageResponse { image_ref: self.add_image(&name) })
            }
            "RemoveImage" => {
                let name = decode::<cri::RemoveImageRequest>(m)?.image.unwrap_or_default().image;
                if let Some(id) = self.image(&name).map(|image| image.id.clone()) {
                    self.images.remove(&id);
                }
                encode(&cri::RemoveImageResponse {})
            }
            "ImageFsInfo" => {
                let used = self.images.values().map(|image| image.size).sum();
                let usage = cri::FilesystemUsage {
                    timestamp: now.wall.0,
                    fs_id: Some(cri::FilesystemIdentifier { mountpoint: self.image_mountpoint() }),
                    used_bytes: Some(cri::UInt64Value { value: used }),
                    inodes_used: Some(cri::UInt64Value { value: self.images.len() as u64 }),
                };
                encode(&cri::ImageFsInfoResponse { image_filesystems: vec![usage], ..Default::default() })
            }
            _ if method.contains('/') => store::handle(self, method, m),
            _ => Err((UNIMPLEMENTED, format!("unknown method {method} for service runtime.v1"))),
        }
    }

    fn status(&self, request: cri::StatusRequest) -> cri::StatusResponse {
        let condition = |kind: &str| {
            let (reason, message) = self.conditions.get(kind).cloned().unwrap_or_default();
            let status = !self.conditions.contains_key(kind);
            cri::RuntimeCondition { r#type: kind.to_owned(), status, reason, message }
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let handler = |(name, user_namespaces): &(String, bool)| cri::RuntimeHandler {
            name: name.clone(),
            features: Some(cri::RuntimeHandlerFeatures {
                user_namespaces: *user_namespaces,
                // As recent as that.
                recursive_read_only_mounts: *user_namespaces,
            }),
        };
        let told = self.sandbox_image.iter().filter(|_| request.verbose);
        let settings = |image: &String| format!("{{\"sandboxImage\":\"{image}\",\"other\":{{\"x\":[1]}}}}");
        cri::StatusResponse {
            info: told.map(|image| ("config".to_owned(), settings(image))).collect(),
            status: Some(cri::RuntimeStatus { conditions }),
            runtime_handlers: self.handlers.iter().map(handler).collect(),
            features: Some(cri::RuntimeFeatures {
                supplemental_groups_policy: self.strict_groups,
                ..Default::default()
            }),
        }
    }

    fn run_pod_sandbox(&mut self, request: cri::RunPodSandboxRequest, now: Now) -> Result<Vec<u8>> {
        let id = format!("sandbox-{:04}", self.made + 1);
        let mut sandbox = Sandbox {
            id: id.clone(),
            config: request.config.unwrap_or_default(),
            handler: request.runtime_handler,
            ready: true,
            created_at: now.wall,
            ip: String::new(),
        };
        let name = sandbox.reserved();
        if let Some(holder) = self.sandboxes.values().find(|other| other.reserved() == name) {
            return Err(reserved("sandbox", &name, &holder.id));
        }
        self.made += 1;
        if !sandbox.host_network() {
            let network = if self.pods_on_loopback { 127 } else { 10 };
            sandbox.ip = format!("{network}.88.{}.{}", self.made / 250, self.made % 250 + 2);
        }
        self.sandboxes.insert(id.clone(), sandbox);
        encode(&cri::RunPodSandboxResponse { pod_sandbox_id: id })
    }

    fn stop_pod_sandbox(&mut self, id: &str, now: Now) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        sandbox.ready = false;
        sandbox.ip.clear();
        for container in self.containers.values_mut().filter(|container| container.sandbox_id == id) {
            if container.state != ContainerState::ContainerExited {
                container.finish(now.wall, 137, "", "");
            }
        }
    }

    fn list_sandboxes(&self, request: cri::ListPodSandboxRequest) -> cri::ListPodSandboxResponse {
        let filter = request.filter.unwrap_or_default();
        let wanted = |sandbox: &&Sandbox| {
            (filter.id.is_empty() || filter.id == sandbox.id)
                && filter.state.as_ref().is_none_or(|state| state.state == i32::from(!sandbox.ready))
                && selected(&filter.label_selector, &sandbox.config.labels)
        };
        let item = |sandbox: &Sandbox| cri::PodSandbox {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            state: sandbox_state(sandbox).into(),
            created_at: sandbox.created_at.0,
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: sandbox.handler.clone(),
        };
        cri::ListPodSandboxResponse { items: self.sandboxes.values().filter(wanted).map(item).collect() }
    }

    fn create_container(&mut self, request: cri::CreateContainerRequest, now: Now) -> Result<Vec<u8>> {
        let sandbox_id = request.pod_sandbox_id;
        let Some(sandbox) = self.sandboxes.get(&sandbox_id) else {
            return Err(not_found("sandbox", &sandbox_id));
        };
        if !sandbox.ready {
            let message = format!(
                "failed to create containerd task: sandbox container \"{sandbox_id}\" is not running"
            );
            return Err((UNKNOWN, message));
        }
        let config = request.config.unwrap_or_default();
        let image = config.image.as_ref().map_or("", |image| &image.image);
        if self.image(image).is_none() {
            return Err((
                NOT_FOUND,
                format!("failed to get image from containerd \"{image}\": image not found"),
            ));
        }
        for mount in &config.mounts {
            self.check_mount(mount)?;
        }
        let metadata = config.metadata.clone().unwrap_or_default();
        let taken = |other: &&Container| {
            other.sandbox_id == sandbox_id && other.config.metadata.as_ref() == Some(&metadata)
        };
        if let Some(holder) = self.containers.values().find(taken) {
            let name = format!("{}_{}_{}", metadata.name, sandbox.reserved(), metadata.attempt);
            return Err(reserved("container", &name, &holder.id));
        }
        self.made += 1;
        let id = format!("container-{:04}", self.made);
        let command = [config.command.join(" "), config.args.join(" ")].join(" ");
        let matches =
            |what: &str| image.contains(what) || command.contains(what) || metadata.name.contains(what);
        let program = self.programs.iter().rev().find(|(what, _)| matches(what));
        let container = Container {
            id: id.clone(),
            sandbox_id,
            program: program.map_or(Program::FOREVER, |(_, program)| program.clone()),
            config,
            state: ContainerState::ContainerCreated,
            created_at: now.wall,
            started_at: Wall(0),
            finished_at: Wall(0),
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            ends: None,
            shown_at: None,
        };
        self.containers.insert(id.clone(), container);
        encode(&cri::CreateContainerResponse { container_id: id })
    }

    /// As containerd 2.2 does.
    fn check_mount(&self, mount: &cri::Mount) -> Result<()> {
        let wrong = match &mount.image {
            None if mount.host_path.is_empty() => "failed to mkdir \"\": mkdir : no such file or directory",
            None => return Ok(()),
            Some(_) if !mount.host_path.is_empty() => {
                "ImageVolumeMountFailed: hostpath must be empty while mount image"
            }
            Some(_) if !mount.readonly => "ImageVolumeMountFailed: readonly must be true while mount image",
            Some(image) if self.image(&image.image).is_none() => {
                "ImageVolumeMountFailed: failed to resolve image: not found"
            }
            Some(_) => return Ok(()),
        };
        Err((UNKNOWN, wrong.to_owned()))
    }

    fn start_container(&mut self, id: &str, now: Now) -> Result<Vec<u8>> {
        let container = self.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        if container.state != ContainerState::ContainerCreated {
            let message = format!("container \"{id}\" is in {} state", container.state.as_str_name());
            return Err((UNKNOWN, message));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = now.wall;
        container.ends = container.program.ends.map(|(after, _)| now.mono + after);
        if self.writes_logs {
            let log = self.log_path(&self.containers[id]);
            // A directory that was removed meanwhile gets none.
            let _ = std::fs::write(log, "");
        }
        self.settle(now);
        encode(&cri::StartContainerResponse {})
    }

    fn stop_container(&mut self, id: &str, grace: i64, now: Now) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let code = if grace > 0 { container.program.term.unwrap_or(137) } else { 137 };
        match container.state {
            ContainerState::ContainerRunning => container.finish(now.wall, code, "", ""),
            ContainerState::ContainerUnknown => container.finish(now.wall, 255, "Unknown", ""),
            ContainerState::ContainerCreated | ContainerState::ContainerExited => {}
        }
    }

    /// As containerd: a value of 0 leaves the setting unchanged.
    fn update_container(&mut self, request: cri::UpdateContainerResourcesRequest) -> Result<()> {
        let id = &request.container_id;
        let container = self.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        if !container.running() {
            return Err((UNKNOWN, "container is not running".into()));
        }
        let there = container.config.linux.get_or_insert_default().resources.get_or_insert_default();
        let wanted = request.linux.unwrap_or_default();
        let values = [
            (&mut there.cpu_shares, wanted.cpu_shares),
            (&mut there.cpu_quota, wanted.cpu_quota),
            (&mut there.cpu_period, wanted.cpu_period),
            (&mut there.memory_limit_in_bytes, wanted.memory_limit_in_bytes),
        ];
        for (there, wanted) in values {
            if wanted != 0 {
                *there = wanted;
            }
        }
        Ok(())
    }

    fn container_status(&self, container: &Container) -> cri::ContainerStatus {
        let image = self.image(container.image());
        let shown = self.shown(container);
        let ended = |value: i64| if shown == ContainerState::ContainerExited { value } else { 0 };
        cri::ContainerStatus {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            state: shown.into(),
            created_at: container.created_at.0,
            started_at: container.started_at.0,
            finished_at: ended(container.finished_at.0),
            exit_code: ended(container.exit_code.into()) as i32,
            image: image.map(|image| cri::ImageSpec { image: image.tag.clone(), ..Default::default() }),
            image_ref: image.map(|image| image.digest.clone()).unwrap_or_default(),
            image_id: image.map(|image| image.id.clone()).unwrap_or_default(),
            reason: container.reason.clone(),
            message: container.message.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            mounts: container.config.mounts.clone(),
            log_path: self.log_path(container),
            stop_signal: if self.stop_signals { container.config.stop_signal } else { 0 },
            resources: container
                .config
                .linux
                .as_ref()
                .filter(|_| self.reports_resources)
                .map(|linux| cri::ContainerResources { linux: linux.resources.clone() }),
            ..Default::default()
        }
    }

    /// The state as the CRI shows it.
    fn shown(&self, container: &Container) -> ContainerState {
        let lags = container.shown_at.is_some_and(|at| at > self.now);
        if lags { ContainerState::ContainerRunning } else { container.state }
    }

    fn log_path(&self, container: &Container) -> String {
        let folder = self.sandboxes.get(&container.sandbox_id).map_or("", |s| &s.config.log_directory);
        if folder.is_empty() { String::new() } else { format!("{folder}/{}", container.config.log_path) }
    }

    fn list_containers(&self, request: cri::ListContainersRequest) -> cri::ListContainersResponse {
        let filter = request.filter.unwrap_or_default();
        let wanted = |container: &&Container| {
            (filter.id.is_empty() || filter.id == container.id)
                && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == container.sandbox_id)
                && filter.state.as_ref().is_none_or(|state| state.state == i32::from(self.shown(container)))
                && selected(&filter.label_selector, &container.config.labels)
        };
        let item = |container: &Container| {
            let image = self.image(container.image());
            cri::Container {
                id: container.id.clone(),
                pod_sandbox_id: container.sandbox_id.clone(),
                metadata: container.config.metadata.clone(),
                image: container.config.image.clone(),
                image_ref: image.map(|image| image.id.clone()).unwrap_or_default(),
                state: self.shown(container).into(),
                created_at: container.created_at.0,
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
                image_id: image.map(|image| image.id.clone()).unwrap_or_default(),
            }
        };
        cri::ListContainersResponse {
            containers: self.containers.values().filter(wanted).map(item).collect(),
        }
    }

    /// Its streaming server, if it has one.
    fn url(&self, path: &str) -> String {
        let at = self.streaming_server.as_deref().unwrap_or("http://127.0.0.1:1");
        format!("{at}/{path}/token")
    }

    fn streamed(&self, id: &str) -> Result<()> {
        match self.containers.get(id) {
            Some(container) if container.running() => Ok(()),
            Some(_) => Err((UNKNOWN, "container is not running".into())),
            None => Err(not_found("container", id)),
        }
    }

    fn exec_sync(&self, request: cri::ExecSyncRequest) -> Result<Vec<u8>> {
        let id = &request.container_id;
        let container = self.containers.get(id).ok_or_else(|| not_found("container", id))?;
        if !container.running() {
            let message = format!("container is in {} state", container.state.as_str_name());
            return Err((UNKNOWN, format!("failed to exec in container: {message}")));
        }
        let command = request.cmd.join(" ");
        let label = self.label(container);
        let exec = self.execs.iter().rev().find(|(what, _)| command.contains(what) || label.contains(what));
        let exec = exec.map(|(_, exec)| exec.clone()).unwrap_or_default();
        encode(&cri::ExecSyncResponse { stdout: exec.stdout, stderr: exec.stderr, exit_code: exec.code })
    }

    fn image(&self, name: &str) -> Option<&Image> {
        let full = full_name(name);
        self.images.values().find(|i| i.id == name || i.tag == full || i.digest == full || i.digest == name)
    }
}

fn sandbox_state(sandbox: &Sandbox) -> PodSandboxState {
    if sandbox.ready { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
}

fn sandbox_status(sandbox: &Sandbox) -> cri::PodSandboxStatusResponse {
    let context = sandbox.config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.clone()).unwrap_or_default();
    let status = cri::PodSandboxStatus {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox).into(),
        created_at: sandbox.created_at.0,
        network: Some(cri::PodSandboxNetworkStatus { ip: sandbox.ip.clone(), ..Default::default() }),
        linux: Some(cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace { options: Some(options) }),
        }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    };
    cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() }
}

fn image_message(image: &Image) -> cri::Image {
    cri::Image {
        id: image.id.clone(),
        repo_tags: vec![image.tag.clone()],
        repo_digests: vec![image.digest.clone()],
        size: image.size,
        uid: image.uid.map(|value| cri::Int64Value { value }),
        username: image.username.clone(),
        pinned: image.pinned,
        ..Default::default()
    }
}

/// `nginx` → `docker.io/library/nginx:latest`.
fn full_name(name: &str) -> String {
    if name.starts_with("sha256:") {
        return name.to_owned();
    }
    let registry = name.split_once('/').map(|(first, _)| first.contains(['.', ':']) || first == "localhost");
    let full = match registry {
        None => format!("docker.io/library/{name}"),
        Some(false) => format!("docker.io/{name}"),
        Some(true) => name.to_owned(),
    };
    let last = full.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { full } else { format!("{full}:latest") }
}

fn selected(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn not_found(what: &str, id: &str) -> (i32, String) {
    (NOT_FOUND, format!("an error occurred when try to find {what} \"{id}\": not found"))
}

fn reserved(what: &str, name: &str, holder: &str) -> (i32, String) {
    let message =
        format!("failed to reserve {what} name \"{name}\": name \"{name}\" is reserved for \"{holder}\"");
    (UNKNOWN, message)
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| (13, e.to_string()))
}

fn encode(message: &impl Message) -> Result<Vec<u8>> {
    Ok(message.encode_to_vec())
}
