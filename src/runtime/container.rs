//! Containers: what is known of each, and the steps of its life that are the OCI runtime's. [`ends`] sees their ends.
//!
//! ```text
//!     create:  record (Making) ─► root file system ─► bundle ─► record (Created)
//!     start:   record (Starting) ─► monitor (OCI run) ─► record (Running)
//!     end:     the monitor's exit file ─► record (Exited) ─► OCI delete
//!     remove:  record (Removing) ─► OCI delete ─► root file system, bundle, directory removed
//! ```
//!
//! As with containerd the OCI runtime is called at the start: a container that was only created has no process.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use smol::channel::{Receiver, Sender, bounded};
use smol::lock::{Mutex, MutexGuard, MutexGuardArc};

use super::cgroups;
use super::context::{Context, failed, full, not_now};
use super::create;
use super::ends;
use super::force;
use super::images::Images;
use super::makers;
use super::monitors;
use super::namespaces;
use super::oci_runtime::OciRuntime;
use super::records::{self, ContainerPhase, ContainerRecord};
use super::sandbox::Sandbox;
use super::spec;
use super::stats::{self, Rate};
use super::users::{Owner, Users};
use super::volumes;
use super::watch::Watch;
use crate::cri::{RuntimeError, RuntimeEventKind, RuntimeResult};
use crate::limits::{KILL_TIME, KILL_TRIES, RUNTIME_CONTAINERS_MAX};
use crate::model::{ContainerId, SandboxId, SortedMap};
use crate::monitor::{self, HeldOutputs, Launched};
use crate::proto::runtime::v1 as cri;

/// Exit code and reason of a container that could not be started (containerd `StartContainer`).
const START_ERROR_CODE: i32 = 128;
const START_ERROR: &str = "StartError";

/// The file that says that a container has got its stop signal.
const STOP_SIGNALED: &str = "stop-signaled";

/// One container.
pub(super) struct Container {
    id: ContainerId,
    pub(super) record: RefCell<ContainerRecord>,
    /// Held by its start, its removal, and what the OCI runtime does after its end.
    turn: Mutex<()>,
    /// Number of calls to stop it: of several the last one's time counts.
    stops: Cell<u64>,
    is_stop_signaled: Cell<bool>,
    /// Held while its end is looked for.
    looking: Mutex<()>,
    /// Somebody waits for that, and will look.
    is_look_expected: Cell<bool>,
    adoption: Adoption,
    /// Held while its record is written.
    writing: Mutex<()>,
    /// Dropped when it has ended.
    end: Cell<Option<Sender<()>>>,
    /// Closed when it has ended.
    ended: Receiver<()>,
    /// What it prints while it has no monitor is kept.
    outputs: Cell<HeldOutputs>,
    of: OfSandbox,
    rate: Rate,
}

/// What a container has from its sandbox.
#[derive(Debug, Default)]
pub(super) struct OfSandbox {
    /// The runtime handler.
    handler: Box<str>,
    /// The UID of the pod.
    pod: Box<str>,
    /// The root user of its user namespace, on the node.
    root: Option<Owner>,
}

impl OfSandbox {
    pub(super) fn of(sandbox: &Sandbox) -> Self {
        let root = sandbox.users().as_ref().map(Users::root);
        Self { handler: sandbox.handler(), pod: sandbox.pod_uid().into(), root }
    }
}

/// Tries to give a container whose monitor was killed a new one.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    failures: Cell<u32>,
    /// The next try has its time.
    is_awaited: Cell<bool>,
}

impl Adoption {
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.get()
    }

    /// How long the next try waits; `None` when it has its time already.
    pub(super) fn await_next(&self) -> Option<Duration> {
        if self.is_awaited.replace(true) {
            return None;
        }
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        Some(ends::pause_after(failures))
    }

    pub(super) fn set_due(&self) {
        self.is_awaited.set(false);
    }

    pub(super) fn reset(&self) {
        self.failures.set(0);
    }
}

impl Container {
    pub(super) fn new(id: ContainerId, record: ContainerRecord, of: OfSandbox) -> Rc<Self> {
        let (end, ended) = bounded(1);
        let is_over = matches!(record.phase, ContainerPhase::Exited | ContainerPhase::Removing);
        let end = Cell::new((!is_over).then_some(end));
        let (turn, looking, writing) = (Mutex::new(()), Mutex::new(()), Mutex::new(()));
        Rc::new(Self {
            id,
            record: RefCell::new(record),
            turn,
            stops: Cell::new(0),
            is_stop_signaled: Cell::new(false),
            looking,
            is_look_expected: Cell::new(false),
            adoption: Adoption::default(),
            writing,
            end,
            ended,
            outputs: Cell::default(),
            of,
            rate: Rate::default(),
        })
    }

    pub(super) fn id(&self) -> &ContainerId {
        &self.id
    }

    pub(super) fn handler(&self) -> &str {
        &self.of.handler
    }

    /// Of its CPU time.
    pub(super) fn rate(&self) -> &Rate {
        &self.rate
    }

    /// The root user of its user namespace, on the node; `None` in the node's.
    pub(super) fn root(&self) -> Option<Owner> {
        self.of.root
    }

    /// `oom_score_adj` of its processes: 0, as its monitor's before it starts them, where nothing is configured.
    pub(super) fn oom_score_adj(&self) -> i64 {
        let linux = self.record.borrow().config().linux;
        linux.and_then(|linux| linux.resources).map_or(0, |resources| resources.oom_score_adj)
    }

    pub(super) fn phase(&self) -> ContainerPhase {
        self.record.borrow().phase
    }

    pub(super) fn sandbox_id(&self) -> SandboxId {
        SandboxId::from(&*self.record.borrow().sandbox)
    }

    /// The UID of its pod.
    pub(super) fn pod(&self) -> &str {
        &self.of.pod
    }

    /// Whether the kernel has ended all of it with its first process, and nothing else is to be done: a handler may have more than that, and
    /// CDI devices hooks that run at the end.
    pub(super) fn ends_by_itself(&self) -> bool {
        let config = self.record.borrow().config();
        let has_devices = spec::has_cdi_devices(&config);
        let options = config.linux.and_then(|linux| linux.security_context?.namespace_options);
        let has_own_pids =
            options.is_some_and(|options| options.pid == i32::from(cri::NamespaceMode::Container));
        has_own_pids && !has_devices && self.of.handler.is_empty()
    }

    /// Says that somebody will look for its end. `true`: somebody else has said so.
    pub(super) fn expect_look(&self) -> bool {
        self.is_look_expected.replace(true)
    }

    /// Held while its end is looked for.
    pub(super) async fn begin_look(&self) -> MutexGuard<'_, ()> {
        let looking = self.looking.lock().await;
        self.is_look_expected.set(false);
        looking
    }

    pub(super) fn adoption(&self) -> &Adoption {
        &self.adoption
    }

    /// Waits for its end.
    async fn ended(&self) {
        // Nothing is ever sent.
        let _ = self.ended.recv().await;
    }
}

/// All containers.
pub(super) struct Containers {
    pub(super) context: Rc<Context>,
    pub(super) images: Rc<dyn Images>,
    all: RefCell<SortedMap<ContainerId, Rc<Container>>>,
    watch: Watch,
    /// Held while a checkpoint is made: one at a time.
    checkpoints: Arc<Mutex<()>>,
}

impl Containers {
    pub(super) fn new(context: Rc<Context>, images: Rc<dyn Images>) -> std::io::Result<Rc<Self>> {
        let watch = Watch::new(context.blocking.clone())?;
        Ok(Rc::new(Self { context, images, all: RefCell::default(), watch, checkpoints: Arc::default() }))
    }

    // ---- the table -------------------------------------------------------------------------------------

    /// The container's directory on the disk.
    pub(super) fn dir(&self, id: &ContainerId) -> PathBuf {
        self.context.settings.containers().join(id.as_str())
    }

    /// Its bundle, with the files of its monitor.
    pub(super) fn run_dir(&self, id: &ContainerId) -> PathBuf {
        self.context.settings.containers_run().join(id.as_str())
    }

    /// Held while a checkpoint is made.
    pub(super) async fn turn_of_checkpoint(&self) -> MutexGuardArc<()> {
        self.checkpoints.lock_arc().await
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The OCI runtime with which it was made.
    ///
    /// # Errors
    /// It is not known any more.
    pub(super) fn oci_runtime(&self, container: &Container) -> RuntimeResult<OciRuntime> {
        OciRuntime::kept(&self.context, &container.record.borrow().oci_runtime, container.handler())
    }

    pub(super) fn all(&self) -> Vec<Rc<Container>> {
        self.all.borrow().values().cloned().collect()
    }

    pub(super) fn of_sandbox(&self, sandbox: &SandboxId) -> Vec<Rc<Container>> {
        let is_its = |container: &&Rc<Container>| *container.record.borrow().sandbox == *sandbox.as_str();
        self.all.borrow().values().filter(is_its).cloned().collect()
    }

    /// The container with that id, or the only one whose id begins so.
    pub(super) fn find(&self, id: &str) -> Option<Rc<Container>> {
        let all = self.all.borrow();
        if let Some(found) = all.get(id) {
            return Some(found.clone());
        }
        let mut begin = all.values().filter(|of| !id.is_empty() && of.id.as_str().starts_with(id));
        let found = begin.next()?;
        begin.next().is_none().then(|| found.clone())
    }

    /// The same of one that is known to exist.
    ///
    /// # Errors
    /// It does not exist.
    pub(super) fn existing(&self, id: &str) -> RuntimeResult<Rc<Container>> {
        self.find(id).ok_or_else(|| RuntimeError::NotFound(format!("container {id:?} does not exist")))
    }

    /// Takes a place among the containers: one for each attempt of a container in its sandbox.
    ///
    /// # Errors
    /// The place is taken, or there are too many.
    pub(super) fn reserve(&self, container: &Rc<Container>) -> RuntimeResult<()> {
        let metadata = container.record.borrow().config().metadata;
        let of_sandbox = self.of_sandbox(&container.sandbox_id());
        let same = of_sandbox.iter().find(|other| other.record.borrow().config().metadata == metadata);
        if let Some(other) = same {
            let metadata = metadata.unwrap_or_default();
            return Err(not_now(format!(
                "container {} is attempt {} of {} in this sandbox already; remove it first",
                other.id, metadata.attempt, metadata.name
            )));
        }
        let mut all = self.all.borrow_mut();
        if all.len() >= RUNTIME_CONTAINERS_MAX {
            return Err(full(format!("there are {RUNTIME_CONTAINERS_MAX} containers; remove ended ones")));
        }
        all.insert(container.id.clone(), container.clone());
        Ok(())
    }

    /// Adds one that was found at the start.
    pub(super) fn insert(&self, container: &Rc<Container>) {
        self.all.borrow_mut().insert(container.id.clone(), container.clone());
    }

    pub(super) async fn write(&self, container: &Container) -> RuntimeResult<()> {
        // The last writer writes the latest state.
        let _writing = container.writing.lock().await;
        let record = container.record.borrow().clone();
        self.context.write(self.dir(&container.id), record).await
    }

    pub(super) fn publish(&self, kind: RuntimeEventKind, container: &Container) {
        self.context.events.publish(kind, container.id.as_str(), &container.of.pod);
    }

    // ---- start -----------------------------------------------------------------------------------------

    /// `StartContainer`.
    ///
    /// # Errors
    /// It is not in the state `Created`, or the OCI runtime's: then it has exited with the reason `StartError`.
    pub(super) async fn start(self: &Rc<Self>, container: &Rc<Container>) -> RuntimeResult<()> {
        let _turn = container.turn.lock().await;
        match container.phase() {
            ContainerPhase::Created => {}
            other => return Err(not_now(format!("container {} is not created but {other:?}", container.id))),
        }
        container.record.borrow_mut().phase = ContainerPhase::Starting;
        let launched = match self.launch(container).await {
            Ok(launched) => launched,
            Err(error) => {
                // Nothing was started: a further call may.
                container.record.borrow_mut().phase = ContainerPhase::Created;
                return Err(error);
            }
        };
        let started = match launched {
            Ok(launched) => Box::pin(self.run_init(container, launched)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &started {
            // A monitor that did not answer in time may still start it.
            makers::end(&self.context, container.id.as_str(), &self.run_dir(&container.id)).await;
            match Box::pin(self.end(container)).await {
                Ok(()) => {
                    let (end, message) = ((START_ERROR_CODE, self.context.now()), error.to_string());
                    self.set_exited(container, end, START_ERROR, &message).await;
                }
                Err(left) => {
                    log::warn!("{left}; it may have been started, and counts as running");
                    self.set_running(container, Duration::ZERO).await;
                    ends::retry(self, container);
                }
            }
        }
        started
    }

    /// Writes its record, watches its directory and starts its monitor, all on one thread.
    ///
    /// # Errors
    /// The record could not be written: nothing else was done. The inner one: what followed failed.
    async fn launch(
        self: &Rc<Self>,
        container: &Rc<Container>,
    ) -> RuntimeResult<RuntimeResult<(Launched, Child)>> {
        let _writing = container.writing.lock().await;
        let (dir, run_dir) = (self.dir(&container.id), self.run_dir(&container.id));
        let (record, adder) = (container.record.borrow().clone(), self.watch.adder());
        let (kept, run, program) = (dir.clone(), run_dir.clone(), self.context.settings.program.clone());
        let launch = move || {
            records::write(&kept, &record)?;
            let watched = adder.add(&run);
            let launched = monitor::launch(&program, &run).map_err(|error| failed(error.to_string()));
            std::io::Result::Ok(launched.map(|launched| (watched, launched)))
        };
        let launched = self.context.blocking(launch).await;
        let launched =
            launched.map_err(|error| failed(format!("the record in {}: {error}", dir.display())))?;
        Ok(launched.map(|(watched, launched)| {
            match watched {
                Ok(watched) => self.watch.insert(watched, &container.id, run_dir),
                Err(error) => ends::watch_later(self, None, &container.id, &error),
            }
            launched
        }))
    }

    async fn run_init(
        self: &Rc<Self>,
        container: &Rc<Container>,
        launched: (Launched, Child),
    ) -> RuntimeResult<()> {
        let started = monitors::wait(&self.context, self.run_dir(&container.id), launched).await;
        started.map_err(|error| failed(error.to_string()))?;
        self.hold_outputs(container);
        self.set_running(container, Duration::ZERO).await;
        // A quick one has ended already: its exit came while the turn was held.
        ends::look(self, container).await;
        Ok(())
    }

    /// Until it ends.
    pub(super) fn hold_outputs(&self, container: &Container) {
        container.outputs.set(monitor::hold_outputs(&self.run_dir(&container.id)));
    }

    /// Its first process was started, so long ago.
    pub(super) async fn set_running(&self, container: &Rc<Container>, ago: Duration) {
        {
            let mut record = container.record.borrow_mut();
            let ago = i64::try_from(ago.as_nanos()).unwrap_or_default();
            record.started_at = self.context.now().saturating_sub(ago);
            record.phase = ContainerPhase::Running;
        }
        self.publish(RuntimeEventKind::Started, container);
        if let Err(error) = self.write(container).await {
            // After a restart of the agent its monitor's files say that it was started.
            log::warn!("container {}: {error}", container.id);
        }
    }

    // ---- end -------------------------------------------------------------------------------------------

    /// Records the end, once.
    pub(super) async fn set_exited(
        &self,
        container: &Rc<Container>,
        (code, finished_at): (i32, i64),
        reason: &str,
        message: &str,
    ) {
        {
            let mut record = container.record.borrow_mut();
            if matches!(record.phase, ContainerPhase::Exited | ContainerPhase::Removing) {
                return;
            }
            record.phase = ContainerPhase::Exited;
            record.exit_code = code;
            record.finished_at = finished_at;
            record.reason = reason.into();
            record.message = message.into();
        }
        container.end.take();
        container.outputs.take();
        self.publish(RuntimeEventKind::Exited, container);
        if let Err(error) = self.write(container).await {
            log::warn!("container {}: {error}", container.id);
        }
    }

    /// Lets the OCI runtime forget an ended container: processes that outlived the first one are killed, and its cgroup, whose
    /// quota bounds its pod's, is removed.
    pub(super) async fn clean_up(&self, container: &Rc<Container>) {
        let _turn = container.turn.lock().await;
        if container.phase() == ContainerPhase::Exited
            && let Err(error) = self.end(container).await
        {
            log::warn!("{error}; retrying at its removal");
        }
    }

    /// Ends all processes of it, and lets the OCI runtime forget it. Idempotent.
    ///
    /// # Errors
    /// A process of it may run on.
    pub(super) async fn end(&self, container: &Container) -> RuntimeResult<()> {
        let target = force::Target {
            id: container.id.as_str(),
            runtime: self.oci_runtime(container),
            dir: self.run_dir(&container.id),
            cgroup: stats::cgroup_dir(&container.record.borrow().cgroup),
        };
        Box::pin(force::end(&self.context, target)).await
    }

    // ---- stop and remove -------------------------------------------------------------------------------

    /// `StopContainer`; idempotent. Of several calls the last one's time counts.
    ///
    /// # Errors
    /// It runs on after SIGKILL; or a later call goes on.
    pub(super) async fn stop(
        self: &Rc<Self>,
        container: &Rc<Container>,
        grace: Duration,
    ) -> RuntimeResult<()> {
        if container.phase() == ContainerPhase::Starting {
            drop(container.turn.lock().await);
        }
        if container.phase() != ContainerPhase::Running {
            return Ok(());
        }
        let stop = container.stops.get().wrapping_add(1);
        container.stops.set(stop);
        if !grace.is_zero() {
            self.send_stop_signal(container).await;
            if self.ends_within(container, grace).await {
                return Ok(());
            }
            if container.stops.get() != stop {
                return Err(not_now(format!(
                    "container {}: a later call to stop it goes on, with a time of its own",
                    container.id
                )));
            }
        }
        let mut why = String::new();
        for _ in 0..KILL_TRIES {
            if let Err(error) = self.signal(container, Signal::KILL.as_raw()).await {
                why = format!(": {error}");
            }
            if self.ends_within(container, KILL_TIME / KILL_TRIES).await {
                return Ok(());
            }
            // Its monitor may have been killed, and the one after that.
            ends::look(self, container).await;
            if container.phase() != ContainerPhase::Running {
                return Ok(());
            }
        }
        let seconds = KILL_TIME.as_secs();
        Err(RuntimeError::DeadlineExceeded(format!(
            "container {} still runs {seconds} s after SIGKILL{why}; a process of it may wait for a disk or a server",
            container.id
        )))
    }

    /// Its stop signal, once: a program that handles the first one may end at once by the second. A file in its directory, which goes with the
    /// boot, tells a later agent (containerd: `IsStopSignaledWithTimeout`).
    async fn send_stop_signal(&self, container: &Container) {
        let file = self.run_dir(&container.id).join(STOP_SIGNALED);
        let looked = file.clone();
        if container.is_stop_signaled.replace(true) || self.context.blocking(move || looked.exists()).await {
            return;
        }
        let signal = container.record.borrow().stop_signal;
        match self.signal(container, signal).await {
            // Without the file a later agent sends it again.
            Ok(()) => {
                let made = move || File::options().create_new(true).write(true).mode(0o600).open(file);
                drop(self.context.blocking(made).await);
            }
            Err(error) => {
                container.is_stop_signaled.set(false);
                log::warn!("container {}: stop signal {signal}: {error}", container.id);
            }
        }
    }

    /// A signal to its first process.
    async fn signal(&self, container: &Container, number: i32) -> RuntimeResult<()> {
        let sent = match self.oci_runtime(container) {
            Ok(runtime) => runtime.kill(container.id.as_str(), &number.to_string()).await,
            Err(error) => Err(error),
        };
        let Err(error) = sent else { return Ok(()) };
        // Without the OCI runtime, which failed, or is not installed any more.
        let dir = self.run_dir(&container.id);
        let send = move || {
            let init = monitor::init_of(&dir).ok().flatten()?;
            init.signal(Signal::from_named_raw(number)?).ok()
        };
        let was_sent = self.context.blocking(send).await.is_some();
        // It may have exited between the two.
        if was_sent || container.phase() != ContainerPhase::Running { Ok(()) } else { Err(error) }
    }

    async fn ends_within(&self, container: &Container, time: Duration) -> bool {
        let late = async {
            self.context.clock.sleep(time).await;
            false
        };
        let ended = async {
            container.ended().await;
            true
        };
        smol::future::or(ended, late).await
    }

    /// `RemoveContainer`; a running one is killed first.
    ///
    /// # Errors
    /// It cannot be killed; its mounts or files cannot be removed. A further call goes on.
    pub(super) async fn remove(self: &Rc<Self>, container: &Rc<Container>) -> RuntimeResult<()> {
        self.stop(container, Duration::ZERO).await?;
        let _turn = container.turn.lock().await;
        if self.find(container.id.as_str()).is_none() {
            return Ok(());
        }
        let was_made = container.phase() != ContainerPhase::Making;
        set_removing(&mut container.record.borrow_mut(), self.context.now());
        container.end.take();
        if was_made && let Err(error) = self.write(container).await {
            // A full disk must not keep it from being removed: its record goes with its directory.
            log::warn!("container {}: {error}; it is removed all the same", container.id);
        }
        Box::pin(self.dismantle(container)).await?;
        self.all.borrow_mut().remove(&container.id);
        if was_made {
            self.publish(RuntimeEventKind::Deleted, container);
        }
        Ok(())
    }

    /// Removes everything of a container. Idempotent.
    ///
    /// # Errors
    /// The OCI runtime's, the image store's, the file system's.
    pub(super) async fn dismantle(&self, container: &Container) -> RuntimeResult<()> {
        let id = container.id.as_str();
        self.end(container).await?;
        // Without the OCI runtime it was ended, and is not forgotten: its state is the runtime's to remove.
        if let Ok(runtime) = self.oci_runtime(container)
            && runtime.knows(id).await
        {
            runtime.delete(id).await?;
        }
        let cgroup = stats::cgroup_dir(&container.record.borrow().cgroup);
        // Its last part is the container's id: nothing else is removed.
        if cgroup.contains(id) {
            let mounts = self.context.settings.cgroup_mounts.clone();
            let removed = self.context.blocking(move || cgroups::remove(&mounts, &cgroup)).await;
            removed.map_err(|error| failed(format!("container {id}: {error}")))?;
        }
        let images = container.record.borrow().image_mounts;
        for name in std::iter::once(id.to_owned()).chain((0..images).map(|index| image_mount_name(id, index)))
        {
            self.images.remove_rootfs(&name).await?;
        }
        let (dir, run_dir) = (self.dir(&container.id), self.run_dir(&container.id));
        let removed = volumes::remove(self, &container.id).await;
        removed.map_err(|error| failed(format!("container {id}: its volumes: {error}")))?;
        let removed = self.context.blocking(move || {
            namespaces::remove_dir(&run_dir)?;
            namespaces::remove_dir(&dir)
        });
        removed.await.map_err(|error| failed(format!("container {id}: its directory: {error}")))
    }

    // ---- others ----------------------------------------------------------------------------------------

    /// `UpdateContainerResources`. What the container runs with from now on is in its status.
    ///
    /// # Errors
    /// It has ended; the OCI runtime's.
    pub(super) async fn update(
        &self,
        container: &Rc<Container>,
        asked: cri::LinuxContainerResources,
        resources: Vec<u8>,
        merge: impl FnOnce(&mut cri::ContainerConfig, cri::LinuxContainerResources),
    ) -> RuntimeResult<()> {
        use prost::Message as _;
        let _turn = container.turn.lock().await;
        match container.phase() {
            ContainerPhase::Running => {
                self.oci_runtime(container)?.update(container.id.as_str(), resources).await?;
            }
            ContainerPhase::Created => {
                let run_dir = self.run_dir(&container.id);
                let update = move || create::update_bundle(&run_dir, &resources);
                let updated = self.context.blocking(update).await;
                updated
                    .map_err(|error| failed(format!("container {}: its bundle: {error}", container.id)))?;
            }
            _ => return Err(not_now(format!("container {} does not run", container.id))),
        }
        {
            let mut record = container.record.borrow_mut();
            let mut config = record.config();
            merge(&mut config, asked);
            record.config = config.encode_to_vec();
        }
        self.write(container).await
    }

    /// `ReopenContainerLog`.
    ///
    /// # Errors
    /// It does not run; the monitor's.
    pub(super) async fn reopen_log(&self, container: &Container) -> RuntimeResult<()> {
        if container.phase() != ContainerPhase::Running {
            return Err(not_now(format!("container {} does not run", container.id)));
        }
        let reopened = self.context.reopen_log(self.run_dir(&container.id)).await;
        reopened.map_err(|error| failed(format!("container {}: {error}", container.id)))
    }

    /// The containers of a sandbox end with it: SIGKILL, as with containerd.
    ///
    /// # Errors
    /// A container's, after all were tried.
    pub(super) async fn stop_all(self: &Rc<Self>, sandbox: &Sandbox) -> RuntimeResult<()> {
        let mut done = Ok(());
        for container in self.of_sandbox(sandbox.id()) {
            done = done.and(self.stop(&container, Duration::ZERO).await);
            self.clean_up(&container).await;
        }
        done
    }

    /// Removes the containers of a sandbox.
    ///
    /// # Errors
    /// A container's, after all were tried.
    pub(super) async fn remove_all(self: &Rc<Self>, sandbox: &Sandbox) -> RuntimeResult<()> {
        let mut done = Ok(());
        for container in self.of_sandbox(sandbox.id()) {
            done = done.and(self.remove(&container).await);
        }
        done
    }
}

/// The name of the root file system that a mounted image of a container has in the store.
pub(super) fn image_mount_name(id: &str, index: u32) -> String {
    format!("{id}-{index}")
}

/// It is being removed. One that never ran is shown as one that could not be started, and not as one that ran and succeeded. PURE.
fn set_removing(record: &mut ContainerRecord, now: i64) {
    match record.phase {
        ContainerPhase::Making | ContainerPhase::Created | ContainerPhase::Starting => {
            record.exit_code = START_ERROR_CODE;
            record.finished_at = now;
            record.reason = START_ERROR.into();
            record.message = "it was removed before it was started".into();
        }
        ContainerPhase::Running | ContainerPhase::Exited | ContainerPhase::Removing => {}
    }
    record.phase = ContainerPhase::Removing;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ran_is_not_shown_as_a_success() {
        for (phase, code, reason) in [
            (ContainerPhase::Making, 128, "StartError"),
            (ContainerPhase::Created, 128, "StartError"),
            (ContainerPhase::Starting, 128, "StartError"),
            (ContainerPhase::Running, 0, ""),
            (ContainerPhase::Exited, 0, "Completed"),
            (ContainerPhase::Removing, 0, "Completed"),
        ] {
            let mut record = ContainerRecord { phase, ..ContainerRecord::default() };
            if matches!(phase, ContainerPhase::Exited | ContainerPhase::Removing) {
                record.reason = "Completed".into();
            }
            set_removing(&mut record, 7);
            assert_eq!(
                (record.phase, record.exit_code, &*record.reason),
                (ContainerPhase::Removing, code, reason),
                "{phase:?}"
            );
        }
    }

    #[test]
    fn one_try_at_a_time_has_a_monitor_killed() {
        let adoption = Adoption::default();
        assert_eq!(adoption.await_next(), Some(Duration::from_secs(1)));
        assert_eq!((adoption.await_next(), adoption.is_awaited()), (None, true));
        adoption.set_due();
        assert_eq!(adoption.await_next(), Some(Duration::from_secs(2)));
        adoption.set_due();
        adoption.reset();
        assert_eq!(adoption.await_next(), Some(Duration::from_secs(1)));
    }
}
