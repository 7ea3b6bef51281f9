//! A container runtime that runs nothing: stateful, on a real Unix socket, with real HTTP/2 and real protobuf, on its own
//! thread. [`Fake`] is the handle of a test: it reads and changes the state, injects faults and waits.
//!
//! `state` has the runtime's state and the effect of each method; `store` containerd's image records; `events` the event
//! streams; `server` the socket and the wire.
//! Time comes from the [`FakeClock`]: container programs exit, and delays elapse, on virtual time when it is virtual.
//!
//! Methods have their CRI names (`RunPodSandbox`); containers are `app`, `web/app` (pod, container) or an id: the newest that
//! matches. Pods are `web` or a sandbox id.

mod crowd;
mod events;
mod server;
mod state;
mod stats;
mod store;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use smolet::proto::runtime::v1 as cri;

#[allow(unused_imports, reason = "each test binary names other ones")]
pub use crowd::Crowd;
#[allow(unused_imports, reason = "each test binary names other ones")]
pub use events::{EventFaults, EventStream};
use smolet::clock::{SharedClock, SystemClock, VirtualClock};
use smolet::cri::{EventService, RuntimeEventKind};
#[allow(unused_imports, reason = "each test binary names other ones")]
pub use state::{BreakOff, Call, Container, Exec, Image, Program, Reply, Rule, Sandbox, Services, State};

use super::TempDir;
use super::agent::PATIENCE;
use super::gauge::Gauge;

/// The fake's clock.
#[derive(Clone)]
pub enum FakeClock {
    System,
    Virtual(VirtualClock),
}

impl FakeClock {
    pub fn shared(&self) -> SharedClock {
        match self {
            Self::System => Rc::new(SystemClock),
            Self::Virtual(clock) => Rc::new(clock.clone()),
        }
    }

    pub fn now(&self) -> smolet::model::Now {
        use smolet::clock::Clock;
        match self {
            Self::System => SystemClock.now(),
            Self::Virtual(clock) => clock.now(),
        }
    }
}

impl From<VirtualClock> for FakeClock {
    fn from(clock: VirtualClock) -> Self {
        Self::Virtual(clock)
    }
}

/// The fake runtime; stops when dropped.
pub struct Fake {
    shared: Arc<Shared>,
    commands: smol::channel::Sender<server::Message>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    _folder: TempDir,
}

struct Shared {
    state: Mutex<State>,
    clock: FakeClock,
    /// See [`Fake::bytes_sent`].
    sent: AtomicU64,
    gauge: Arc<Gauge>,
}

impl Shared {
    /// The state after all programs that are due have exited.
    fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle(self.clock.now());
        state
    }
}

impl Fake {
    /// Listens on its own socket.
    pub fn start(clock: impl Into<FakeClock>) -> Self {
        let folder = TempDir::new();
        let socket = folder.path().join("cri.sock");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            clock: clock.into(),
            sent: AtomicU64::new(0),
            gauge: Arc::default(),
        });
        let (commands, inbox) = smol::channel::unbounded();
        let thread = {
            let (shared, socket) = (shared.clone(), socket.clone());
            std::thread::Builder::new()
                .name("fake-cri".into())
                .spawn(move || server::run(shared, &socket, inbox))
                .unwrap()
        };
        let fake = Self { shared, commands, thread: Some(thread), socket, _folder: folder };
        fake.command(server::Command::Listen);
        fake
    }

    /// On the machine's clock.
    pub fn start_on_real_time() -> Self {
        Self::start(FakeClock::System)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The state, to read or to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.settled()
    }

    /// True when its thread is idle: every received call is answered, and the response written.
    pub fn is_idle(&self) -> bool {
        self.shared.gauge.idle()
    }

    // ---- the connection ------------------------------------------------------------------------------

    /// Closes every connection, also during calls.
    pub fn drop_connections(&self) {
        self.command(server::Command::Cut);
    }

    /// Stops listening and closes every connection, as a stopped runtime: connecting is refused.
    pub fn refuse_connections(&self) {
        self.command(server::Command::Refuse);
    }

    /// Listens again after [`Fake::refuse_connections`].
    pub fn accept_connections(&self) {
        self.command(server::Command::Listen);
    }

    /// Number of accepted connections.
    pub fn connections(&self) -> u64 {
        self.state().connections
    }

    fn command(&self, command: server::Command) {
        let (done, ack) = std::sync::mpsc::channel();
        self.commands.try_send(server::Message(command, done)).expect("the fake's thread runs");
        ack.recv_timeout(PATIENCE).expect("the fake's thread answers");
    }

    // ---- faults --------------------------------------------------------------------------------------

    /// The next `times` calls of `method` fail with this gRPC code and message, without an effect.
    pub fn fail(&self, method: &str, times: u32, code: i32, message: &str) {
        self.fail_on(method, "", times, code, message);
    }

    /// The same for calls whose target (see [`Call`]) contains `target`.
    pub fn fail_on(&self, method: &str, target: &str, times: u32, code: i32, message: &str) {
        self.rule(method, target, Rule::Fail { times, code, message: message.to_owned() });
    }

    /// Calls of `method` whose target contains `target` hang until [`Fake::heal`].
    pub fn hang_on(&self, method: &str, target: &str) {
        self.rule(method, target, Rule::Hang);
    }

    /// Calls of `method` are delayed by this time.
    pub fn delay(&self, method: &str, delay: Duration) {
        self.rule(method, "", Rule::Delay(delay));
    }

    /// Calls of `method` hang without an effect until [`Fake::heal`].
    pub fn hang(&self, method: &str) {
        self.rule(method, "", Rule::Hang);
    }

    /// The next `times` calls of `method` take effect, but the connection is closed before the response.
    pub fn lose_answer(&self, method: &str, times: u32) {
        self.rule(method, "", Rule::LoseAnswer { times });
    }

    /// The next call of the streaming list `method` ends early.
    pub fn break_off(&self, method: &str, how: BreakOff) {
        self.rule(method, "", Rule::BreakOff(how));
    }

    /// Removes the faults of `method`.
    pub fn heal(&self, method: &str) {
        self.state().heal(method);
    }

    fn rule(&self, method: &str, target: &str, rule: Rule) {
        self.state().rules.push((method.to_owned(), target.to_owned(), rule));
    }

    // ---- events --------------------------------------------------------------------------------------

    /// From now on this service reports events; without this there is none.
    pub fn tell_events(&self, service: EventService) {
        self.state().teller.service = Some(service);
    }

    /// Faults of events from now on.
    pub fn event_faults(&self, faults: EventFaults) {
        self.state().teller.faults = faults;
    }

    /// Reports these events, true or not: kind, id and pod.
    pub fn flood(&self, events: impl IntoIterator<Item = (RuntimeEventKind, String, String)>) {
        let now = self.shared.clock.now().mono;
        let mut state = self.state();
        for (kind, id, pod) in events {
            state.teller.event(kind, &id, &pod, now);
        }
    }

    /// Sends these messages as events.
    pub fn flood_with(&self, messages: impl IntoIterator<Item = Vec<u8>>) {
        let mut state = self.state();
        messages.into_iter().for_each(|message| state.teller.send(&message));
    }

    /// Number of reported events that are not sent yet.
    pub fn events_waiting(&self) -> usize {
        self.state().teller.telling()
    }

    /// Ends every event stream orderly.
    pub fn end_event_streams(&self) {
        self.state().teller.end();
    }

    /// Number of open event streams.
    pub fn event_streams(&self) -> usize {
        self.state().teller.streams()
    }

    /// A container that exits by itself is reported as running for so long after its event, as in containerd.
    pub fn exit_lag(&self, lag: Duration) {
        self.state().exit_lag = lag;
    }

    // ---- what happens in the runtime -----------------------------------------------------------------

    /// Behaviour of containers whose image, command or name contains `what`; the last rule that matches applies.
    pub fn program(&self, what: &str, program: Program) {
        self.state().programs.push((what.to_owned(), program));
    }

    /// Response to `ExecSync` in containers and for commands that contain `what`; the last rule that matches applies.
    pub fn exec(&self, what: &str, exec: Exec) {
        self.state().execs.push((what.to_owned(), exec));
    }

    /// A running container exits by itself.
    pub fn exit(&self, container: &str, code: i32, reason: &str, message: &str) {
        let now = self.shared.clock.now();
        self.state().exit(container, now.wall, code, reason, message);
    }

    /// The runtime loses the container.
    pub fn forget_container(&self, container: &str) {
        self.state().forget(container);
    }

    /// The runtime loses the pod's newest sandbox and its containers.
    pub fn forget_sandbox(&self, pod: &str) {
        self.state().forget_sandbox(pod);
    }

    /// A running pod of another agent. The containers' images have to be present.
    pub fn run_pod(&self, sandbox: cri::PodSandboxConfig, containers: Vec<cri::ContainerConfig>) {
        let now = self.shared.clock.now();
        self.state().run_pod(sandbox, containers, now);
    }

    /// A running container of another agent in the pod's newest sandbox.
    pub fn run_container(&self, pod: &str, container: cri::ContainerConfig) {
        let now = self.shared.clock.now();
        self.state().run_container(pod, container, now);
    }

    /// The container is reported as `CONTAINER_UNKNOWN` from now on, until it is stopped.
    pub fn report_unknown(&self, container: &str) {
        self.state().report_unknown(container);
    }

    /// The pod's newest sandbox dies; its containers are unchanged.
    pub fn stop_sandbox(&self, pod: &str) {
        self.state().kill_sandbox(pod);
    }

    /// A reboot of the node: every sandbox is not ready, every container has exited with 255.
    pub fn reboot(&self) {
        let now = self.shared.clock.now();
        self.state().reboot(now.wall);
    }

    /// Objects of other clients from now on.
    pub fn crowd(&self, crowd: Crowd) {
        self.state().crowd = crowd;
    }

    /// Adds an image.
    pub fn add_image(&self, name: &str) {
        self.state().add_image(name);
    }

    /// No registry has this image: pulling it fails.
    pub fn missing_image(&self, name: &str) {
        self.state().missing.insert(name.to_owned());
    }

    /// `RuntimeReady` or `NetworkReady` is false, with this reason and message; empty ones = it is true again.
    pub fn condition(&self, kind: &str, reason: &str, message: &str) {
        self.state().condition(kind, reason, message);
    }

    // ---- what was asked ------------------------------------------------------------------------------

    /// Every call since the start, as text: `StopContainer web/app#0 grace=30`.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.iter().map(ToString::to_string).collect()
    }

    /// The calls that change something (no Version, Status, List…, …Status, ImageFsInfo).
    pub fn actions(&self) -> Vec<String> {
        self.state().calls.iter().filter(|call| call.changes()).map(ToString::to_string).collect()
    }

    /// Clears the recorded calls.
    pub fn clear_calls(&self) {
        self.state().calls.clear();
    }

    /// Number of calls of `method`.
    pub fn count(&self, method: &str) -> usize {
        self.state().calls.iter().filter(|call| call.method == method).count()
    }

    /// Bytes of responses that were written since the start; unread ones count only as far as the connection buffers them.
    pub fn bytes_sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Waits (in real time) until `holds` returns true. Panics with the recorded calls after the deadline.
    pub fn wait_for(&self, what: &str, timeout: Duration, mut holds: impl FnMut(&State) -> bool) {
        let start = Instant::now();
        loop {
            if holds(&self.state()) {
                return;
            }
            if start.elapsed() > timeout {
                panic!("waited {timeout:?} for {what}; calls so far:\n  {}", self.calls().join("\n  "));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.commands.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
