//! A runtime that answers from a script and writes down what it is asked: the counterpart of the fake CRI the
//! kubelet's own answers were recorded with. Stops take their time on a virtual clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use serde_json::{Value, json};
use smolet::clock::{Clock as _, VirtualClock};
use smolet::cri::{
    ContainerStats, EventService, ExecOutput, FilesystemUsage, Image, Runtime, RuntimeError, RuntimeEvent,
    RuntimeResult, RuntimeStatus, RuntimeVersion, StreamRequest,
};
use smolet::events::{About, EventKind};
use smolet::image::pull::ImagePuller;
use smolet::limits::PULLS_AT_ONCE;
use smolet::model::{
    ContainerId, ContainerItem, ContainerStatus, PodUid, SandboxId, SandboxItem, SandboxNetwork,
    SandboxState, SandboxStatus, Seconds, Wall,
};
use smolet::proto::runtime::v1::{AuthConfig, ContainerConfig, LinuxContainerResources, PodSandboxConfig};
use smolet::render::{ManifestObjects, NodeSettings};
use smolet::sync::act::{ActContext, HookCall, HookFuture, Hooks, NoCgroups, NoVolumes, RuntimeManager};

/// How long a container takes to stop.
#[derive(Clone, Copy)]
pub struct Exit {
    /// From the stop signal to its end.
    pub after_term: Duration,
    /// From SIGKILL to its end.
    pub after_kill: Duration,
}

/// The script and the record.
pub struct Recorder {
    pub clock: VirtualClock,
    pub calls: RefCell<Vec<Value>>,
    pub create_fails: Vec<String>,
    pub start_fails: Vec<String>,
    pub sandbox_fails: bool,
    /// By id; a container that is not there stops at once.
    pub exits: BTreeMap<String, Exit>,
    began: smolet::model::Mono,
    names: RefCell<BTreeMap<String, String>>,
}

impl Recorder {
    pub fn new(now: Wall) -> Self {
        let clock = VirtualClock::new(now);
        Self {
            began: clock.now().mono,
            clock,
            calls: RefCell::default(),
            create_fails: Vec::new(),
            start_fails: Vec::new(),
            sandbox_fails: false,
            exits: BTreeMap::new(),
            names: RefCell::default(),
        }
    }

    /// Milliseconds since the start.
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.clock.now().mono.since(self.began).as_millis()).unwrap()
    }

    fn record(&self, call: Value) {
        self.calls.borrow_mut().push(call);
    }

    /// Runs a task to its end, moving the clock whenever it only waits.
    pub fn run<T>(&self, task: impl Future<Output = T>) -> T {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut task = std::pin::pin!(task);
        loop {
            if let Poll::Ready(value) = task.as_mut().poll(&mut cx) {
                return value;
            }
            // One that has woken itself only let others have their turn (`Blocking::on_this_thread`).
            if !woken.0.swap(false, Ordering::Relaxed) {
                let at = self.clock.next_sleeper().expect("a task that waits sleeps");
                self.clock.advance(at.since(self.clock.now().mono));
            }
        }
    }
}

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A context in which files go to a directory of the test's own.
/// For sets whose pods have none.
pub struct NoHooks;

impl Hooks for NoHooks {
    fn run<'a>(&'a self, call: HookCall<'a>) -> HookFuture<'a> {
        unreachable!("{call:?}")
    }
}

pub fn context(recorder: Rc<Recorder>, hooks: Rc<dyn Hooks>, dir: &std::path::Path) -> ActContext<Recorder> {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let mut node = NodeSettings::new("node", &path("state"));
    node.pod_logs_dir = path("pods").into();
    let clock = Rc::new(recorder.clock.clone());
    let manager = RuntimeManager {
        runtime: recorder,
        clock: clock.clone(),
        handlers: Box::default(),
        images: ImagePuller::new(clock, PULLS_AT_ONCE),
        volumes: Box::new(NoVolumes),
        network: Box::new(smolet::sync::act::NoPodNetwork),
        cgroups: Box::new(NoCgroups),
        hooks,
        notes: Box::new(|_: About<'_>, _: EventKind, _: &'static str, _: &str| {}),
        container_logs_dir: dir.join("containers").into(),
        hosts_file: dir.join("hosts").into(),
        resolver: None,
        blocking: Rc::new(smolet::blocking::Blocking::on_this_thread()),
        starts: smolet::sync::start_limiter::StartLimiter::new(1),
    };
    ActContext::new(manager, Rc::new(node), Rc::new(ManifestObjects::default()))
}

fn failed<T>(message: &str) -> RuntimeResult<T> {
    Err(RuntimeError::Failed { code: 2, message: message.to_owned() })
}

fn unused<T>() -> RuntimeResult<T> {
    Err(RuntimeError::Unimplemented("not part of this set".to_owned()))
}

impl Runtime for Recorder {
    async fn run_pod_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> RuntimeResult<SandboxId> {
        assert_eq!(handler, "");
        assert_eq!(config.annotations.get("smolet.io/node").map(String::as_str), Some("node"));
        let attempt = config.metadata.as_ref().map(|metadata| metadata.attempt);
        self.record(json!({"op": "RunPodSandbox", "attempt": attempt}));
        if self.sandbox_fails { failed("cni failed") } else { Ok("NEW".into()) }
    }

    async fn stop_pod_sandbox(&self, _: &PodUid, id: &SandboxId) -> RuntimeResult<()> {
        self.record(json!({"op": "StopPodSandbox", "id": id.as_str()}));
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> RuntimeResult<SandboxStatus> {
        Ok(SandboxStatus {
            id: id.clone(),
            attempt: 0,
            state: SandboxState::Ready,
            created_at: Wall(0),
            network_namespace: None,
            network: Some(SandboxNetwork { ip: "10.0.0.1".into(), additional_ips: Vec::new() }),
        })
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        _: &PodSandboxConfig,
    ) -> RuntimeResult<ContainerId> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let name = metadata.name;
        self.record(json!({
            "op": "CreateContainer", "name": name, "attempt": metadata.attempt, "sandboxID": sandbox.as_str(),
        }));
        if self.create_fails.contains(&name) {
            return failed("create failed");
        }
        let id = format!("new-{name}");
        self.names.borrow_mut().insert(id.clone(), name);
        Ok(id.into())
    }

    async fn start_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let name = self.names.borrow()[id.as_str()].clone();
        self.record(json!({"op": "StartContainer", "name": name}));
        if self.start_fails.contains(&name) { failed("start failed") } else { Ok(()) }
    }

    async fn stop_container(&self, _: &PodUid, id: &ContainerId, timeout: Seconds) -> RuntimeResult<()> {
        let at = self.elapsed_ms();
        self.record(json!({
            "op": "StopContainer", "id": id.as_str(), "timeoutSeconds": timeout.0, "atMs": at,
        }));
        if let Some(exit) = self.exits.get(id.as_str()) {
            let timeout = Duration::from_secs(u64::try_from(timeout.0).unwrap());
            self.clock.sleep(exit.after_term.min(timeout + exit.after_kill)).await;
            self.record(json!({"op": "exited", "id": id.as_str(), "atMs": self.elapsed_ms()}));
        }
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        self.record(json!({"op": "RemoveContainer", "id": id.as_str()}));
        Ok(())
    }

    async fn update_container_resources(
        &self,
        _: &ContainerId,
        _: LinuxContainerResources,
    ) -> RuntimeResult<()> {
        unused()
    }

    async fn image_status(&self, image: &str) -> RuntimeResult<Option<Image>> {
        Ok(Some(Image {
            id: format!("sha256:{image}").into(),
            repo_tags: vec![image.into()],
            repo_digests: Vec::new(),
            size_bytes: 1,
            uid: Some(0),
            username: "".into(),
            pinned: false,
        }))
    }

    async fn version(&self) -> RuntimeResult<RuntimeVersion> {
        unused()
    }
    async fn status(&self) -> RuntimeResult<RuntimeStatus> {
        unused()
    }
    async fn remove_pod_sandbox(&self, _: &SandboxId) -> RuntimeResult<()> {
        unused()
    }
    async fn list_pod_sandboxes(
        &self,
        _: Option<&PodUid>,
        _: &mut dyn FnMut(SandboxItem),
    ) -> RuntimeResult<()> {
        unused()
    }
    async fn container_status(&self, _: &ContainerId) -> RuntimeResult<ContainerStatus> {
        unused()
    }
    async fn list_containers(
        &self,
        _: Option<&PodUid>,
        _: &mut dyn FnMut(ContainerItem),
    ) -> RuntimeResult<()> {
        unused()
    }
    async fn list_container_stats(&self, _: &mut dyn FnMut(ContainerStats)) -> RuntimeResult<()> {
        unused()
    }
    async fn exec_sync(&self, _: &ContainerId, _: &[String], _: Duration) -> RuntimeResult<ExecOutput> {
        unused()
    }
    async fn streaming_url(&self, _: StreamRequest) -> RuntimeResult<String> {
        unused()
    }
    async fn reopen_container_log(&self, _: &ContainerId) -> RuntimeResult<()> {
        unused()
    }
    async fn list_images(&self, _: &mut dyn FnMut(Image)) -> RuntimeResult<()> {
        unused()
    }
    async fn pull_image(
        &self,
        _: &str,
        _: Option<&AuthConfig>,
        _: &PodSandboxConfig,
    ) -> RuntimeResult<Box<str>> {
        unused()
    }
    async fn remove_image(&self, _: &str) -> RuntimeResult<()> {
        unused()
    }
    async fn image_fs_info(&self) -> RuntimeResult<Vec<FilesystemUsage>> {
        unused()
    }
    async fn follow_events(&self, _: EventService, _: &mut dyn FnMut(RuntimeEvent)) -> RuntimeResult<()> {
        unused()
    }
}
