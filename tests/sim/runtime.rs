//! The runtime of the simulation: the fake's state behind the trait `Runtime`, without a socket, with trouble.
//!
//! ```text
//!     call ─► down? frozen? ─► trouble: fails │ waits │ hangs ─► effect ─► trouble: answer late │ lost ─► answer
//! ```
//!
//! A call that is dropped before its effect may have it all the same, a moment later: a runtime does not always
//! notice that nobody waits any more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use prost::Message;
use smolet::clock::{Clock as _, VirtualClock};
use smolet::cri::events::{of_containerd, of_cri};
use smolet::cri::{
    ContainerStats, EventService, ExecOutput, FilesystemUsage, Image, Runtime, RuntimeError, RuntimeEvent,
    RuntimeResult, RuntimeStatus, RuntimeVersion, StreamRequest, convert,
};
use smolet::limits::RUNTIME_REQUEST_TIMEOUT;
use smolet::model::{
    ContainerId, ContainerItem, ContainerStatus, Mono, Now, PodUid, SandboxId, SandboxItem, SandboxStatus,
    Seconds,
};
use smolet::proto::runtime::v1 as cri;

use crate::common::fake::{Reply, State};
use crate::rules::Rules;

/// Calls kept for the trace of a failure.
const TRACE_MAX: usize = 400;

#[derive(Clone)]
pub struct SimRuntime(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    rules: RefCell<Rules>,
    clock: RefCell<VirtualClock>,
    rng: RefCell<Rng>,
    /// Of a thousand calls so many meet trouble.
    trouble: Cell<u16>,
    down: Cell<bool>,
    frozen: Cell<bool>,
    /// Counts the runtime's deaths and the ends of trouble: calls that wait since before are over.
    cut: Cell<u64>,
    healed: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
    /// Calls of this method whose target contains this panic in the caller's task, as a fault of the agent would.
    panics_on: RefCell<Option<(&'static str, String)>>,
    late: RefCell<VecDeque<(Mono, &'static str, Vec<u8>)>>,
    digest: Cell<u64>,
    calls: Cell<u64>,
    /// Events that the agent was told of.
    events: Cell<u64>,
}

enum Trouble {
    None,
    Fails(RuntimeError),
    WaitsBefore(Duration),
    WaitsAfter(Duration),
    HangsBefore,
    HangsAfter,
    AnswerLost,
}

impl Inner {
    fn wake_later(&self, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}

impl SimRuntime {
    pub fn new(clock: VirtualClock, seed: u64) -> Self {
        let rng = Rng::with_seed(seed ^ 0x5eed);
        Self(Rc::new(Inner {
            state: RefCell::default(),
            rules: RefCell::default(),
            clock: RefCell::new(clock),
            rng: RefCell::new(rng),
            trouble: Cell::new(0),
            down: Cell::new(false),
            frozen: Cell::new(false),
            cut: Cell::new(0),
            healed: Cell::new(0),
            waiting: RefCell::default(),
            panics_on: RefCell::default(),
            late: RefCell::default(),
            digest: Cell::new(0xcbf2_9ce4_8422_2325),
            calls: Cell::new(0),
            events: Cell::new(0),
        }))
    }

    // ---- for the world ---------------------------------------------------------------------------------

    /// The state with every program ended whose time has come.
    pub fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.borrow_mut();
        state.settle(self.now());
        self.0.rules.borrow_mut().note_done(&state);
        look(&mut state)
    }

    pub fn rules<T>(&self, look: impl FnOnce(&mut Rules) -> T) -> T {
        look(&mut self.0.rules.borrow_mut())
    }

    /// Of a thousand calls so many meet trouble from now on; 0 also ends what hangs.
    pub fn trouble(&self, of_thousand: u16) {
        self.0.trouble.set(of_thousand);
        if of_thousand == 0 {
            self.0.healed.set(self.0.healed.get() + 1);
            self.wake();
        }
    }

    pub fn troubled(&self) -> u16 {
        self.0.trouble.get()
    }

    /// Dies, which cuts every call, or comes back.
    pub fn down(&self, down: bool) {
        self.0.down.set(down);
        self.0.frozen.set(false);
        self.0.cut.set(self.0.cut.get() + 1);
        self.state(State::cut_event_streams);
        self.wake();
    }

    /// Takes calls and does nothing, or goes on with them.
    pub fn frozen(&self, frozen: bool) {
        self.0.frozen.set(frozen);
        self.wake();
    }

    /// The agent has a fault that shows in this call, or none.
    pub fn panics_on(&self, call: Option<(&'static str, &str)>) {
        self.0.panics_on.replace(call.map(|(method, target)| (method, target.to_owned())));
    }

    /// The machine boots: calls are cut, nothing runs, and the monotonic clock is another.
    pub fn reboot(&self, clock: VirtualClock) {
        self.0.late.borrow_mut().clear();
        self.0.clock.replace(clock);
        self.down(false);
        let now = self.now();
        self.state(|state| state.reboot(now.wall));
        self.rules(Rules::booted);
    }

    /// What the runtime does by itself: programs end, events are told, and what callers left behind that are gone is
    /// carried out.
    pub fn catch_up(&self) {
        self.state(|_| ());
        let now = self.now();
        loop {
            let due = {
                let mut late = self.0.late.borrow_mut();
                let at = late.iter().position(|(at, ..)| *at <= now.mono);
                at.and_then(|at| late.remove(at))
            };
            let Some((_, method, bytes)) = due else { return };
            let _ = self.effect(method, &bytes, false);
            self.check(method, "late");
        }
    }

    /// When the runtime does something next by itself.
    pub fn next_change(&self) -> Option<Mono> {
        let late = self.0.late.borrow().iter().map(|(at, ..)| *at).min();
        late.into_iter().chain(self.0.state.borrow().next_change()).min()
    }

    /// Stands for every call so far: method, target and instant.
    pub fn digest(&self) -> u64 {
        self.0.digest.get()
    }

    pub fn calls(&self) -> u64 {
        self.0.calls.get()
    }

    pub fn events(&self) -> u64 {
        self.0.events.get()
    }

    fn wake(&self) {
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }

    fn now(&self) -> Now {
        self.0.clock.borrow().now()
    }

    // ---- one call --------------------------------------------------------------------------------------

    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
    ) -> RuntimeResult<A> {
        let bytes = request.encode_to_vec();
        let target = self.note(method, &bytes);
        let faulty = self
            .0
            .panics_on
            .borrow()
            .as_ref()
            .is_some_and(|(of, what)| *of == method && target.contains(what));
        assert!(!faulty, "the agent's fault, for the test");
        if self.0.down.get() {
            return Err(unavailable(method));
        }
        let limit = deadline.map(|deadline| self.now().mono + deadline);
        let trouble = self.roll(method);
        let mut pending = Pending { of: self, work: Some((method, bytes)) };
        if self.0.frozen.get() {
            self.wait(method, None, limit, |inner| !inner.frozen.get()).await?;
        }
        match &trouble {
            Trouble::Fails(error) => {
                pending.work = None;
                return Err(error.clone());
            }
            Trouble::WaitsBefore(time) => self.wait_for(method, *time, limit).await?,
            Trouble::HangsBefore => {
                let healed = self.0.healed.get();
                self.wait(method, None, limit, move |inner| inner.healed.get() != healed).await?;
            }
            Trouble::None | Trouble::WaitsAfter(_) | Trouble::HangsAfter | Trouble::AnswerLost => {}
        }
        let mut graced = false;
        let answer = loop {
            let Some((_, bytes)) = &pending.work else { return Err(unavailable(method)) };
            match self.effect(method, bytes, graced) {
                Reply::Done(answer) => break answer,
                // The program ignores SIGTERM: its grace period has to pass first.
                Reply::After(time) => {
                    self.wait_for(method, time, limit).await?;
                    graced = true;
                }
            }
        };
        pending.work = None;
        self.check(method, &target);
        match trouble {
            Trouble::AnswerLost => return Err(unavailable(method)),
            Trouble::WaitsAfter(time) => self.wait_for(method, time, limit).await?,
            Trouble::HangsAfter => {
                let healed = self.0.healed.get();
                self.wait(method, None, limit, move |inner| inner.healed.get() != healed).await?;
            }
            Trouble::None | Trouble::Fails(_) | Trouble::WaitsBefore(_) | Trouble::HangsBefore => {}
        }
        match answer {
            Ok(bytes) => A::decode(&*bytes).map_err(|error| RuntimeError::Protocol(error.to_string())),
            Err((5, message)) => Err(RuntimeError::NotFound(message)),
            Err((12, message)) => Err(RuntimeError::Unimplemented(message)),
            Err((code, message)) => Err(RuntimeError::Failed { code, message }),
        }
    }

    fn note(&self, method: &'static str, bytes: &[u8]) -> String {
        let now = self.now();
        let mut state = self.0.state.borrow_mut();
        let target = state.record(method, bytes, None, now);
        if state.calls.len() > 2 * TRACE_MAX {
            state.calls.drain(..TRACE_MAX);
        }
        let (mono, wall) = (now.mono.0.to_le_bytes(), now.wall.0.to_le_bytes());
        self.digest_of(&[method.as_bytes(), target.as_bytes(), &mono, &wall]);
        self.0.calls.set(self.0.calls.get() + 1);
        target
    }

    fn digest_of(&self, words: &[&[u8]]) {
        let mut digest = self.0.digest.get();
        for byte in words.iter().copied().flatten() {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.0.digest.set(digest);
    }

    fn roll(&self, method: &str) -> Trouble {
        let mut rng = self.0.rng.borrow_mut();
        if self.0.trouble.get() == 0 || rng.u16(..1000) >= self.0.trouble.get() {
            return Trouble::None;
        }
        let error = |kind: u8| {
            let message = format!("{method}: trouble");
            match kind {
                0 => RuntimeError::Unavailable(message),
                1 => RuntimeError::DeadlineExceeded(message),
                2 => RuntimeError::Protocol(message),
                _ => RuntimeError::Failed { code: 2, message },
            }
        };
        match rng.u8(..9) {
            0..=2 => Trouble::Fails(error(rng.u8(..4))),
            3 => Trouble::WaitsBefore(Duration::from_millis(rng.u64(1..5_000))),
            4 => Trouble::WaitsAfter(Duration::from_millis(rng.u64(1..5_000))),
            5 => Trouble::HangsBefore,
            6 => Trouble::HangsAfter,
            _ => Trouble::AnswerLost,
        }
    }

    /// `graced`: the call has waited for a container's grace period.
    fn effect(&self, method: &'static str, bytes: &[u8], graced: bool) -> Reply {
        let now = self.now();
        self.state(|state| {
            let reply = state.handle(method, bytes, now, graced);
            if let Reply::Done(Ok(answer)) = &reply {
                self.rules(|rules| rules.note_call(state, method, bytes, answer, now));
            }
            reply
        })
    }

    fn check(&self, method: &str, target: &str) {
        if method.starts_with("List") || method.ends_with("Status") {
            return;
        }
        self.state(|state| {
            state.check(method, target);
            self.rules(|rules| rules.check(state, method, target));
        });
    }

    async fn wait_for(&self, method: &str, time: Duration, limit: Option<Mono>) -> RuntimeResult<()> {
        let until = self.now().mono + time;
        self.wait(method, Some(until), limit, |_| false).await
    }

    /// Waits until `until` or until `ready`; ends with an error at the call's limit and when the runtime dies.
    async fn wait(
        &self,
        method: &str,
        until: Option<Mono>,
        limit: Option<Mono>,
        ready: impl Fn(&Inner) -> bool,
    ) -> RuntimeResult<()> {
        let clock = self.0.clock.borrow().clone();
        let cut = self.0.cut.get();
        let mut timer = until.map(|at| clock.sleep_until(at));
        let mut over = limit.map(|at| clock.sleep_until(at));
        poll_fn(|cx| {
            if self.0.cut.get() != cut {
                return Poll::Ready(Err(unavailable(method)));
            }
            if ready(&self.0) || timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(Ok(()));
            }
            if over.as_mut().is_some_and(|over| over.as_mut().poll(cx).is_ready()) {
                let message = format!("{method}: context deadline exceeded");
                return Poll::Ready(Err(RuntimeError::DeadlineExceeded(message)));
            }
            self.0.wake_later(cx.waker());
            Poll::Pending
        })
        .await
    }

    async fn done<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
    ) -> RuntimeResult<()> {
        match self.call::<A>(method, request, Some(RUNTIME_REQUEST_TIMEOUT)).await {
            // As the client does: stop and remove may be repeated.
            Err(RuntimeError::NotFound(_)) if method != "StartContainer" => Ok(()),
            result => result.map(drop),
        }
    }
}

/// A call whose effect is to come. Dropped before, it may come all the same.
struct Pending<'a> {
    of: &'a SimRuntime,
    work: Option<(&'static str, Vec<u8>)>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let Some((method, bytes)) = self.work.take() else { return };
        let inner = &self.of.0;
        let mut rng = inner.rng.borrow_mut();
        if LATE.contains(&method) && rng.u8(..4) == 0 {
            let at = self.of.now().mono + Duration::from_millis(rng.u64(..LATE_MILLIS_MAX));
            inner.late.borrow_mut().push_back((at, method, bytes));
        }
    }
}

/// Calls that may have their effect after their caller has gone, be it dropped or dead. Checked after each effect, late
/// ones too: no two live instances of a container, no two ready sandboxes of a pod.
const LATE: [&str; 7] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
];
const LATE_MILLIS_MAX: u64 = 2_000;

fn unavailable(method: &str) -> RuntimeError {
    RuntimeError::Unavailable(format!("{method}: the connection is lost"))
}

fn selector(pod: &PodUid) -> convert::Map {
    convert::Map::from([("io.kubernetes.pod.uid".to_owned(), pod.to_string())])
}

fn spec(image: &str) -> Option<cri::ImageSpec> {
    Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() })
}

const USUAL: Option<Duration> = Some(RUNTIME_REQUEST_TIMEOUT);

impl Runtime for SimRuntime {
    async fn version(&self) -> RuntimeResult<RuntimeVersion> {
        let answer: cri::VersionResponse =
            self.call("Version", &cri::VersionRequest::default(), USUAL).await?;
        Ok(RuntimeVersion {
            runtime_name: answer.runtime_name.into(),
            runtime_version: answer.runtime_version.into(),
            runtime_api_version: answer.runtime_api_version.into(),
        })
    }

    async fn status(&self) -> RuntimeResult<RuntimeStatus> {
        self.call("Status", &cri::StatusRequest::default(), USUAL).await.map(convert::runtime_status)
    }

    async fn run_pod_sandbox(
        &self,
        config: &cri::PodSandboxConfig,
        handler: &str,
    ) -> RuntimeResult<SandboxId> {
        let request =
            cri::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        let answer: cri::RunPodSandboxResponse =
            self.call("RunPodSandbox", &request, Some(2 * RUNTIME_REQUEST_TIMEOUT)).await?;
        Ok(SandboxId::from(answer.pod_sandbox_id))
    }

    async fn stop_pod_sandbox(&self, _: &PodUid, id: &SandboxId) -> RuntimeResult<()> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        self.done::<cri::StopPodSandboxResponse>("StopPodSandbox", &request).await
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> RuntimeResult<()> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        self.done::<cri::RemovePodSandboxResponse>("RemovePodSandbox", &request).await
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> RuntimeResult<SandboxStatus> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: false };
        let answer: cri::PodSandboxStatusResponse = self.call("PodSandboxStatus", &request, USUAL).await?;
        Ok(answer.status.and_then(convert::sandbox_status).expect("the fake's status has an id"))
    }

    async fn list_pod_sandboxes(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(SandboxItem),
    ) -> RuntimeResult<()> {
        let filter =
            pod.map(|uid| cri::PodSandboxFilter { label_selector: selector(uid), ..Default::default() });
        let request = cri::ListPodSandboxRequest { filter };
        let answer: cri::ListPodSandboxResponse = self.call("ListPodSandbox", &request, USUAL).await?;
        answer.items.into_iter().filter_map(convert::sandbox_item).for_each(each);
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &cri::ContainerConfig,
        sandbox_config: &cri::PodSandboxConfig,
    ) -> RuntimeResult<ContainerId> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config.clone()),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let answer: cri::CreateContainerResponse = self.call("CreateContainer", &request, USUAL).await?;
        Ok(ContainerId::from(answer.container_id))
    }

    async fn start_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::StartContainerRequest { container_id: id.to_string() };
        self.done::<cri::StartContainerResponse>("StartContainer", &request).await
    }

    async fn stop_container(&self, _: &PodUid, id: &ContainerId, timeout: Seconds) -> RuntimeResult<()> {
        let request = cri::StopContainerRequest { container_id: id.to_string(), timeout: timeout.0.max(0) };
        let deadline = RUNTIME_REQUEST_TIMEOUT + Duration::from_secs(timeout.0.max(0).unsigned_abs());
        let stopped: RuntimeResult<cri::StopContainerResponse> =
            self.call("StopContainer", &request, Some(deadline)).await;
        match stopped {
            Ok(_) | Err(RuntimeError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn remove_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::RemoveContainerRequest { container_id: id.to_string() };
        self.done::<cri::RemoveContainerResponse>("RemoveContainer", &request).await
    }

    async fn container_status(&self, id: &ContainerId) -> RuntimeResult<ContainerStatus> {
        let request = cri::ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let answer: cri::ContainerStatusResponse = self.call("ContainerStatus", &request, USUAL).await?;
        Ok(answer.status.and_then(convert::container_status).expect("the fake's status has an id"))
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: cri::LinuxContainerResources,
    ) -> RuntimeResult<()> {
        let request =
            cri::UpdateContainerResourcesRequest { container_id: id.to_string(), linux: Some(resources) };
        self.done::<cri::UpdateContainerResourcesResponse>("UpdateContainerResources", &request).await
    }

    async fn list_containers(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(ContainerItem),
    ) -> RuntimeResult<()> {
        let filter =
            pod.map(|uid| cri::ContainerFilter { label_selector: selector(uid), ..Default::default() });
        let request = cri::ListContainersRequest { filter };
        let answer: cri::ListContainersResponse = self.call("ListContainers", &request, USUAL).await?;
        answer.containers.into_iter().filter_map(convert::container_item).for_each(each);
        Ok(())
    }

    async fn list_container_stats(&self, each: &mut dyn FnMut(ContainerStats)) -> RuntimeResult<()> {
        let request = cri::ListContainerStatsRequest::default();
        let answer: cri::ListContainerStatsResponse =
            self.call("ListContainerStats", &request, USUAL).await?;
        answer.stats.into_iter().filter_map(convert::container_stats).for_each(each);
        Ok(())
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        _: Duration,
    ) -> RuntimeResult<ExecOutput> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            ..Default::default()
        };
        let answer: cri::ExecSyncResponse = self.call("ExecSync", &request, USUAL).await?;
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }

    async fn streaming_url(&self, request: StreamRequest) -> RuntimeResult<String> {
        Ok(match request {
            StreamRequest::Exec(request) => {
                self.call::<cri::ExecResponse>("Exec", &request, USUAL).await?.url
            }
            StreamRequest::Attach(request) => {
                self.call::<cri::AttachResponse>("Attach", &request, USUAL).await?.url
            }
            StreamRequest::PortForward(request) => {
                self.call::<cri::PortForwardResponse>("PortForward", &request, USUAL).await?.url
            }
        })
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::ReopenContainerLogRequest { container_id: id.to_string() };
        self.call::<cri::ReopenContainerLogResponse>("ReopenContainerLog", &request, USUAL).await.map(drop)
    }

    async fn image_status(&self, image: &str) -> RuntimeResult<Option<Image>> {
        let request = cri::ImageStatusRequest { image: spec(image), verbose: false };
        let answer: cri::ImageStatusResponse = self.call("ImageStatus", &request, USUAL).await?;
        Ok(answer.image.and_then(convert::image))
    }

    async fn list_images(&self, each: &mut dyn FnMut(Image)) -> RuntimeResult<()> {
        let answer: cri::ListImagesResponse =
            self.call("ListImages", &cri::ListImagesRequest::default(), USUAL).await?;
        answer.images.into_iter().filter_map(convert::image).for_each(each);
        Ok(())
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&cri::AuthConfig>,
        sandbox: &cri::PodSandboxConfig,
    ) -> RuntimeResult<Box<str>> {
        let request = cri::PullImageRequest {
            image: spec(image),
            auth: auth.cloned(),
            sandbox_config: Some(sandbox.clone()),
        };
        let answer: cri::PullImageResponse = self.call("PullImage", &request, None).await?;
        Ok(answer.image_ref.into())
    }

    async fn remove_image(&self, image: &str) -> RuntimeResult<()> {
        let request = cri::RemoveImageRequest { image: spec(image) };
        self.done::<cri::RemoveImageResponse>("RemoveImage", &request).await
    }

    async fn image_fs_info(&self) -> RuntimeResult<Vec<FilesystemUsage>> {
        let answer: cri::ImageFsInfoResponse =
            self.call("ImageFsInfo", &cri::ImageFsInfoRequest {}, USUAL).await?;
        Ok(convert::filesystems(answer))
    }

    async fn follow_events(
        &self,
        service: EventService,
        each: &mut dyn FnMut(RuntimeEvent),
    ) -> RuntimeResult<()> {
        let method = match service {
            EventService::Cri => "GetContainerEvents",
            EventService::Containerd => "Subscribe",
        };
        self.note(method, &[]);
        if self.0.down.get() {
            return Err(unavailable(method));
        }
        if let Trouble::Fails(error) = self.roll(method) {
            return Err(error);
        }
        let Some(mut told) = self.state(|state| state.follow_events(service)) else {
            return Err(RuntimeError::Unimplemented(format!("unknown method {method}")));
        };
        let cut = self.0.cut.get();
        loop {
            let next = poll_fn(|cx| {
                if self.0.cut.get() != cut {
                    return Poll::Ready(Err(unavailable(method)));
                }
                self.0.wake_later(cx.waker());
                if self.0.frozen.get() { Poll::Pending } else { told.poll_next(cx).map(Ok) }
            });
            let Some(message) = next.await? else { return Ok(()) };
            self.digest_of(&[method.as_bytes(), &message]);
            self.0.events.set(self.0.events.get() + 1);
            let event = match service {
                EventService::Cri => of_cri(&message),
                EventService::Containerd => of_containerd(&message),
            };
            event.into_iter().for_each(&mut *each);
        }
    }
}
