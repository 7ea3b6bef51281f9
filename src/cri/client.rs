//! [`GrpcRuntime`]: the [`Runtime`] trait over gRPC, with the kubelet's deadlines
//! (`cri-client/pkg/remote_runtime.go`, `remote_image.go`).

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use prost::Message;

use super::operations::Operations;
use super::{
    ContainerStats, ExecOutput, FilesystemUsage, Image, Runtime, RuntimeError, RuntimeResult, RuntimeStatus,
    RuntimeVersion, StreamRequest,
};
use super::{EventService, ImageStore, RuntimeEvent, convert, events, requests, termination};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::fair_semaphore::{Acquire, FairSemaphore};
use crate::grpc::{Call, Channel, Code, Field, GrpcError, Value};
use crate::limits::{
    CNI_PLUGIN_TIME, CRI_ITEM_BYTES_MAX, CRI_PULLS, CRI_STOPS, CRI_TEXT_BYTES_MAX, EXEC_OUTPUT_BYTES_MAX,
    NETWORK_CHECKS_TIME, RUNTIME_REQUEST_TIMEOUT, STREAM_URL_BYTES_MAX,
};
use crate::model::SortedMap;
use crate::model::{
    ContainerId, ContainerItem, ContainerStatus, Mono, PodUid, SandboxId, SandboxItem, SandboxStatus, Seconds,
};
use crate::proto::runtime::v1 as cri;
use crate::render::CgroupDriver;

/// A client of the container runtime behind a Unix socket. Clones share one connection, which the first call opens.
#[derive(Clone)]
pub struct GrpcRuntime {
    channel: Channel,
    clock: SharedClock,
    /// Pool for reading containers' termination messages.
    blocking: Rc<Blocking>,
    operations: Rc<Operations>,
    /// kubelet `runtimeRequestTimeout`.
    timeout: Duration,
    /// Permits of stops and of pulls, which may take minutes each: neither delays the other or status calls.
    stops: FairSemaphore,
    pulls: FairSemaphore,
    /// Number of items that each list call skipped the last time, to log each change once. One entry per list call.
    skipped: Rc<RefCell<SortedMap<&'static str, u64>>>,
    /// Streaming list calls that the runtime does not implement, and on which connection it said so: an upgrade may add
    /// them. One entry per list call.
    unimplemented: Rc<RefCell<SortedMap<&'static str, u64>>>,
}

/// A list call in both its forms (KEP-5825): the items are field 1 of the response, or of every message of the stream, and
/// the requests are the same. The stream has no limit on the response's size on the runtime's side.
#[derive(Clone, Copy)]
struct List {
    whole: &'static str,
    streamed: &'static str,
}

macro_rules! method {
    ($service:literal, $name:literal) => {
        concat!("/runtime.v1.", $service, "Service/", $name)
    };
}

impl GrpcRuntime {
    /// A client for the runtime at `socket`. Connects on demand; `executor` must be driven for calls to proceed.
    pub fn new(socket: &Path, executor: &Rc<Executor>, clock: SharedClock) -> Self {
        let channel = Channel::new(socket, executor, clock.clone());
        let (operations, skipped, unimplemented) = Default::default();
        Self {
            channel,
            blocking: Rc::new(Blocking::on_threads(clock.clone(), Path::new("/"))),
            clock,
            operations,
            timeout: RUNTIME_REQUEST_TIMEOUT,
            stops: FairSemaphore::new(CRI_STOPS),
            pulls: FairSemaphore::new(CRI_PULLS),
            skipped,
            unimplemented,
        }
    }

    /// The same with another `runtimeRequestTimeout`.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same, which reads files on that pool.
    #[must_use]
    pub fn reading_in(mut self, blocking: Rc<Blocking>) -> Self {
        self.blocking = blocking;
        self
    }

    /// The same, which counts its calls in `operations`.
    #[must_use]
    pub fn counted_by(mut self, operations: Rc<Operations>) -> Self {
        self.operations = operations;
        self
    }

    /// containerd's own image store, on the same connection. `lease` names the lease under which blobs are written.
    pub fn image_store(&self, lease: &str) -> ImageStore {
        ImageStore::new(&self.channel, lease, self.timeout)
    }

    /// Path of the runtime's socket.
    pub fn socket(&self) -> &Path {
        self.channel.path()
    }

    /// The runtime's own configuration (`StatusResponse.info["config"]`): JSON in the runtime's format.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn settings(&self) -> RuntimeResult<Option<String>> {
        let request = cri::StatusRequest { verbose: true };
        let mut answer: cri::StatusResponse = self.call(method!("Runtime", "Status"), request).await?;
        Ok(answer.info.remove("config"))
    }

    /// Conditions of pods' networks that are not as they were made, as an embedded runtime finds them.
    ///
    /// # Errors
    /// The runtime's; others do not implement it.
    pub async fn check_networks(&self) -> RuntimeResult<RuntimeStatus> {
        // The last one may have begun just before the time was over.
        let deadline = Some(NETWORK_CHECKS_TIME + CNI_PLUGIN_TIME + self.timeout);
        let call = self.call_within(requests::CHECK_NETWORKS, cri::StatusRequest::default(), deadline);
        call.await.map(convert::runtime_status)
    }

    /// True when the server implements `method`, called with an empty request.
    pub(super) async fn answers(&self, method: &'static str) -> bool {
        self.channel.unary::<()>(method, &(), Some(self.timeout)).await.is_ok()
    }

    /// A call with the default deadline.
    fn call<'s, A: Message + Default + 'static>(
        &'s self,
        method: &'static str,
        request: impl Message,
    ) -> Call<'s, A, RuntimeError> {
        self.call_within(method, request, Some(self.timeout))
    }

    /// Takes the request, which is encoded at once: a call may wait for minutes, and a task keeps the arguments of its async
    /// functions.
    fn call_within<'s, A: Message + Default + 'static>(
        &'s self,
        method: &'static str,
        request: impl Message,
        deadline: Option<Duration>,
    ) -> Call<'s, A, RuntimeError> {
        self.call_with_permit(None, method, request, deadline)
    }

    /// The same after waiting for a permit; deadline and duration start with the permit.
    fn call_with_permit<'s, A: Message + Default + 'static>(
        &'s self,
        permit: Option<Acquire>,
        method: &'static str,
        request: impl Message,
        deadline: Option<Duration>,
    ) -> Call<'s, A, RuntimeError> {
        let under_way = self.operations.under_way.enter();
        let call = self.channel.unary(method, &request, deadline);
        drop(request);
        Box::pin(async move {
            let _permit = match permit {
                Some(permit) => Some(permit.await.map_err(|why| {
                    let message = format!("{}: {why}", name(method));
                    RuntimeError::Unavailable(message)
                })?),
                None => None,
            };
            let begun = self.clock.now().mono;
            let answer = call.await;
            drop(under_way);
            self.count(method, begun, answer.is_err());
            answer.map_err(|error| blame(method, error))
        })
    }

    /// Counts a completed call. A cancelled one is not counted.
    fn count(&self, method: &'static str, begun: Mono, failed: bool) {
        self.operations.note(name(method), self.clock.now().mono.since(begun), failed);
    }

    /// Lists by streaming if the runtime implements it (as the kubelet with `CRIListStreaming`), else in one response. An
    /// item over `limits::CRI_ITEM_BYTES_MAX` or without an id is skipped and counted in the log when `all` objects are
    /// listed: a foreign container must not blind the agent. In the list of one pod it is an error, so that no object of
    /// ours is taken for removed.
    ///
    /// # Errors
    /// The runtime's, or that the list was interrupted: what `each` received by then is incomplete and must be discarded.
    async fn list<M: Message + Default, T>(
        &self,
        list: List,
        request: &impl Message,
        all: bool,
        convert: fn(M) -> Option<T>,
        each: &mut dyn FnMut(T),
    ) -> RuntimeResult<()> {
        let _under_way = self.operations.under_way.enter();
        let begun = self.clock.now().mono;
        let (mut skipped, handed_out) = (0_u64, Cell::new(false));
        let mut item = |field: Field<'_>| {
            let Field { number: 1, value: Value::Bytes { kept, length } } = field else { return Ok(()) };
            handed_out.set(true);
            let whole = kept.len() as u64 == length;
            match M::decode(kept).ok().filter(|_| whole).and_then(convert) {
                Some(item) => each(item),
                None if all => skipped += 1,
                None => {
                    let what = if whole { "cannot be read" } else { "is over the limit" };
                    return Err(GrpcError::Protocol(format!("an item of {length} bytes {what}")));
                }
            }
            Ok(())
        };
        // Boxed, as every call is.
        let listed = match Box::pin(self.stream(list.streamed, request, &mut item)).await {
            // Never after a part of a list: the items would be received twice.
            None if !handed_out.get() => {
                let (timeout, cap) = (Some(self.timeout), CRI_ITEM_BYTES_MAX);
                let listed =
                    Box::pin(self.channel.unary_fields(list.whole, request, timeout, cap, &mut item)).await;
                listed.map_err(|error| blame(list.whole, error))
            }
            None => Err(RuntimeError::Protocol(format!("{}: it broke off", name(list.streamed)))),
            Some(listed) => listed.map_err(|error| blame(list.streamed, error)),
        };
        // Counted as one call in either form, as in the kubelet.
        self.count(list.whole, begun, listed.is_err());
        if all && self.skipped.borrow_mut().insert(list.whole, skipped).unwrap_or(0) != skipped {
            log::warn!("{}: {skipped} items skipped: broken or too large", name(list.whole));
        }
        listed
    }

    /// `RuntimeConfig`: the cgroup driver that the runtime uses. `None` from a runtime that does not report it (containerd
    /// before 2.0).
    ///
    /// # Errors
    /// The call's, except for an unimplemented one.
    pub async fn cgroup_driver(&self) -> RuntimeResult<Option<CgroupDriver>> {
        let asked: RuntimeResult<cri::RuntimeConfigResponse> =
            self.call(method!("Runtime", "RuntimeConfig"), cri::RuntimeConfigRequest {}).await;
        match asked {
            Ok(answer) => Ok(answer.linux.map(|linux| match linux.cgroup_driver() {
                cri::CgroupDriver::Systemd => CgroupDriver::Systemd,
                cri::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
            })),
            Err(RuntimeError::Unimplemented(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A streaming list; `None` when this runtime does not implement it (the kubelet's fallback at the first
    /// `UNIMPLEMENTED`).
    async fn stream(
        &self,
        method: &'static str,
        request: &impl Message,
        item: &mut dyn FnMut(Field<'_>) -> Result<(), GrpcError>,
    ) -> Option<Result<(), GrpcError>> {
        let connection = self.channel.connection();
        if self.unimplemented.borrow().get(method) == Some(&connection) {
            return None;
        }
        let (timeout, cap) = (Some(self.timeout), CRI_ITEM_BYTES_MAX);
        let listed = self.channel.stream_fields(method, request, timeout, cap, item).await;
        if let Err(GrpcError::Status { code: Code::UNIMPLEMENTED, .. }) = listed {
            // Received over this connection or a later one; wrong only until the next connection.
            self.unimplemented.borrow_mut().insert(method, self.channel.connection());
            return None;
        }
        Some(listed)
    }
}

impl Runtime for GrpcRuntime {
    async fn version(&self) -> RuntimeResult<RuntimeVersion> {
        // The kubelet's own API version; runtimes ignore it.
        let request = cri::VersionRequest { version: "0.1.0".to_owned() };
        let answer: cri::VersionResponse = self.call(method!("Runtime", "Version"), request).await?;
        let text = |text| convert::cut(text, CRI_TEXT_BYTES_MAX);
        Ok(RuntimeVersion {
            runtime_name: text(answer.runtime_name),
            runtime_version: text(answer.runtime_version),
            runtime_api_version: text(answer.runtime_api_version),
        })
    }

    async fn status(&self) -> RuntimeResult<RuntimeStatus> {
        let request = cri::StatusRequest { verbose: false };
        self.call(method!("Runtime", "Status"), request).await.map(convert::runtime_status)
    }

    async fn sandbox_image(&self) -> RuntimeResult<Option<String>> {
        Ok(self.settings().await?.as_deref().and_then(convert::sandbox_image))
    }

    async fn run_pod_sandbox(
        &self,
        config: &cri::PodSandboxConfig,
        handler: &str,
    ) -> RuntimeResult<SandboxId> {
        const METHOD: &str = method!("Runtime", "RunPodSandbox");
        let request =
            cri::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        // Twice the default deadline: the pause image may have to be pulled and the network set up.
        let answer: cri::RunPodSandboxResponse =
            self.call_within(METHOD, request, Some(self.timeout.saturating_mul(2))).await?;
        convert::id(answer.pod_sandbox_id).map(SandboxId::from).ok_or_else(|| no_id(METHOD))
    }

    async fn stop_pod_sandbox(&self, pod: &PodUid, id: &SandboxId) -> RuntimeResult<()> {
        const METHOD: &str = method!("Runtime", "StopPodSandbox");
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        let (permit, deadline) = (Some(self.stops.acquire(pod.into())), Some(self.timeout));
        idempotent(
            self.call_with_permit::<cri::StopPodSandboxResponse>(permit, METHOD, request, deadline).await,
        )
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> RuntimeResult<()> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        idempotent(
            self.call::<cri::RemovePodSandboxResponse>(method!("Runtime", "RemovePodSandbox"), request).await,
        )
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> RuntimeResult<SandboxStatus> {
        const METHOD: &str = method!("Runtime", "PodSandboxStatus");
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: false };
        let answer: cri::PodSandboxStatusResponse = self.call(METHOD, request).await?;
        answer.status.and_then(convert::sandbox_status).ok_or_else(|| no_id(METHOD))
    }

    async fn list_pod_sandboxes(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(SandboxItem),
    ) -> RuntimeResult<()> {
        let request = requests::list_pod_sandboxes(pod);
        let convert = convert::sandbox_item;
        let list = List {
            whole: method!("Runtime", "ListPodSandbox"),
            streamed: method!("Runtime", "StreamPodSandboxes"),
        };
        self.list(list, &request, pod.is_none(), convert, each).await
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &cri::ContainerConfig,
        sandbox_config: &cri::PodSandboxConfig,
    ) -> RuntimeResult<ContainerId> {
        const METHOD: &str = method!("Runtime", "CreateContainer");
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config.clone()),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let answer: cri::CreateContainerResponse = self.call(METHOD, request).await?;
        convert::id(answer.container_id).map(ContainerId::from).ok_or_else(|| no_id(METHOD))
    }

    async fn start_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::StartContainerRequest { container_id: id.to_string() };
        let answer = self.call::<cri::StartContainerResponse>(method!("Runtime", "StartContainer"), request);
        answer.await.map(drop)
    }

    async fn stop_container(&self, pod: &PodUid, id: &ContainerId, timeout: Seconds) -> RuntimeResult<()> {
        const METHOD: &str = method!("Runtime", "StopContainer");
        let grace = timeout.0.max(0);
        let request = cri::StopContainerRequest { container_id: id.to_string(), timeout: grace };
        let deadline = self.timeout.saturating_add(Duration::from_secs(grace.unsigned_abs()));
        let (permit, deadline) = (Some(self.stops.acquire(pod.into())), Some(deadline));
        idempotent(
            self.call_with_permit::<cri::StopContainerResponse>(permit, METHOD, request, deadline).await,
        )
    }

    async fn remove_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::RemoveContainerRequest { container_id: id.to_string() };
        idempotent(
            self.call::<cri::RemoveContainerResponse>(method!("Runtime", "RemoveContainer"), request).await,
        )
    }

    async fn container_status(&self, id: &ContainerId) -> RuntimeResult<ContainerStatus> {
        const METHOD: &str = method!("Runtime", "ContainerStatus");
        let request = cri::ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let answer: cri::ContainerStatusResponse = self.call(METHOD, request).await?;
        let status = answer.status.unwrap_or_default();
        let status = termination::with_message(status, &self.blocking).await;
        status.ok_or_else(|| no_id(METHOD))
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: cri::LinuxContainerResources,
    ) -> RuntimeResult<()> {
        let request =
            cri::UpdateContainerResourcesRequest { container_id: id.to_string(), linux: Some(resources) };
        const METHOD: &str = method!("Runtime", "UpdateContainerResources");
        self.call::<cri::UpdateContainerResourcesResponse>(METHOD, request).await.map(drop)
    }

    async fn update_pod_sandbox_resources(
        &self,
        id: &SandboxId,
        resources: cri::LinuxContainerResources,
        overhead: cri::LinuxContainerResources,
    ) -> RuntimeResult<()> {
        let request = requests::update_pod_sandbox_resources(id, resources, overhead);
        const METHOD: &str = method!("Runtime", "UpdatePodSandboxResources");
        self.call::<cri::UpdatePodSandboxResourcesResponse>(METHOD, request).await.map(drop)
    }

    async fn list_containers(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(ContainerItem),
    ) -> RuntimeResult<()> {
        let request = requests::list_containers(pod);
        let convert = convert::container_item;
        let list = List {
            whole: method!("Runtime", "ListContainers"),
            streamed: method!("Runtime", "StreamContainers"),
        };
        self.list(list, &request, pod.is_none(), convert, each).await
    }

    async fn list_container_stats(&self, each: &mut dyn FnMut(ContainerStats)) -> RuntimeResult<()> {
        let request = cri::ListContainerStatsRequest::default();
        let list = List {
            whole: method!("Runtime", "ListContainerStats"),
            streamed: method!("Runtime", "StreamContainerStats"),
        };
        self.list(list, &request, true, convert::container_stats, each).await
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> RuntimeResult<ExecOutput> {
        const METHOD: &str = method!("Runtime", "ExecSync");
        // Rounded up where the kubelet rounds down: half a second would become "no timeout".
        let seconds = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
        let request = cri::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = (!timeout.is_zero()).then(|| self.timeout.saturating_add(timeout));
        // Field by field: a command's output has no limit except for the part that is kept.
        let mut output = ExecOutput { stdout: Vec::new(), stderr: Vec::new(), exit_code: 0 };
        let mut field = |field: Field<'_>| {
            match (field.number, field.value) {
                (1, Value::Bytes { kept, .. }) => output.stdout = kept.to_vec(),
                (2, Value::Bytes { kept, .. }) => output.stderr = kept.to_vec(),
                // An int32 as a varint: the low half, with its sign.
                #[allow(clippy::cast_possible_truncation, reason = "protobuf truncates int32 so")]
                (3, Value::Varint(code)) => output.exit_code = code as i32,
                _ => {}
            }
            Ok(())
        };
        let _under_way = self.operations.under_way.enter();
        let begun = self.clock.now().mono;
        let done =
            self.channel.unary_fields(METHOD, &request, deadline, EXEC_OUTPUT_BYTES_MAX, &mut field).await;
        self.count(METHOD, begun, done.is_err());
        done.map_err(|error| blame(METHOD, error))?;
        Ok(output)
    }

    async fn streaming_url(&self, request: StreamRequest) -> RuntimeResult<String> {
        let (method, url) = match request {
            StreamRequest::Exec(request) => {
                const METHOD: &str = method!("Runtime", "Exec");
                (METHOD, self.call::<cri::ExecResponse>(METHOD, request).await?.url)
            }
            StreamRequest::Attach(request) => {
                const METHOD: &str = method!("Runtime", "Attach");
                (METHOD, self.call::<cri::AttachResponse>(METHOD, request).await?.url)
            }
            StreamRequest::PortForward(request) => {
                const METHOD: &str = method!("Runtime", "PortForward");
                (METHOD, self.call::<cri::PortForwardResponse>(METHOD, request).await?.url)
            }
        };
        let fits = url.len() <= STREAM_URL_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(url) } else { Err(RuntimeError::Protocol(format!("{}: no valid URL", name(method)))) }
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> RuntimeResult<()> {
        let network = cri::NetworkConfig { pod_cidr: pod_cidr.to_owned() };
        let config = cri::RuntimeConfig { network_config: Some(network) };
        let request = cri::UpdateRuntimeConfigRequest { runtime_config: Some(config) };
        let answer =
            self.call::<cri::UpdateRuntimeConfigResponse>(method!("Runtime", "UpdateRuntimeConfig"), request);
        answer.await.map(drop)
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::ReopenContainerLogRequest { container_id: id.to_string() };
        let answer =
            self.call::<cri::ReopenContainerLogResponse>(method!("Runtime", "ReopenContainerLog"), request);
        answer.await.map(drop)
    }

    async fn image_status(&self, image: &str) -> RuntimeResult<Option<Image>> {
        let request = cri::ImageStatusRequest { image: Some(requests::image(image)), verbose: false };
        let answer: cri::ImageStatusResponse = self.call(method!("Image", "ImageStatus"), request).await?;
        // An image without an id counts as absent; the kubelet makes it an error and pulls again later.
        Ok(answer.image.and_then(convert::image))
    }

    async fn list_images(&self, each: &mut dyn FnMut(Image)) -> RuntimeResult<()> {
        let request = cri::ListImagesRequest::default();
        let list = List { whole: method!("Image", "ListImages"), streamed: method!("Image", "StreamImages") };
        self.list(list, &request, true, convert::image, each).await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&cri::AuthConfig>,
        sandbox: &cri::PodSandboxConfig,
    ) -> RuntimeResult<Box<str>> {
        const METHOD: &str = method!("Image", "PullImage");
        let request = requests::pull_image(image, auth, sandbox);
        let pod = PodUid::from(sandbox.metadata.as_ref().map_or("", |metadata| &*metadata.uid));
        let permit = self.pulls.acquire((&pod).into());
        let answer: cri::PullImageResponse =
            self.call_with_permit(Some(permit), METHOD, request, None).await?;
        convert::id(answer.image_ref).map(String::into_boxed_str).ok_or_else(|| no_id(METHOD))
    }

    async fn remove_image(&self, image: &str) -> RuntimeResult<()> {
        let request = cri::RemoveImageRequest { image: Some(requests::image(image)) };
        idempotent(self.call::<cri::RemoveImageResponse>(method!("Image", "RemoveImage"), request).await)
    }

    async fn image_fs_info(&self) -> RuntimeResult<Vec<FilesystemUsage>> {
        let request = cri::ImageFsInfoRequest {};
        self.call(method!("Image", "ImageFsInfo"), request).await.map(convert::filesystems)
    }

    async fn follow_events(
        &self,
        service: EventService,
        each: &mut dyn FnMut(RuntimeEvent),
    ) -> RuntimeResult<()> {
        events::follow(&self.channel, service, each).await.map_err(|error| blame(service.method(), error))
    }
}

/// The CRI's stop and remove calls succeed when there is nothing left to do; some runtimes (containerd 1.6) return
/// `NOT_FOUND` instead.
fn idempotent<T>(result: RuntimeResult<T>) -> RuntimeResult<()> {
    match result {
        Ok(_) | Err(RuntimeError::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// `RunPodSandbox` of `/runtime.v1.RuntimeService/RunPodSandbox`.
fn name(method: &str) -> &str {
    method.rsplit('/').next().unwrap_or(method)
}

fn no_id(method: &str) -> RuntimeError {
    RuntimeError::Protocol(format!("{}: the runtime answered without a valid id", name(method)))
}

/// Converts a gRPC error to the runtime's error class. The runtime's message is unchanged: it is shown in pod statuses.
pub(super) fn blame(method: &str, error: GrpcError) -> RuntimeError {
    let named = |message: String| format!("{}: {message}", name(method));
    match error {
        GrpcError::Unavailable(message) => RuntimeError::Unavailable(named(message)),
        GrpcError::DeadlineExceeded(message) => RuntimeError::DeadlineExceeded(message),
        GrpcError::Protocol(message) => RuntimeError::Protocol(named(message)),
        GrpcError::Status { code, message } => match code {
            Code::UNAVAILABLE => RuntimeError::Unavailable(named(message)),
            Code::DEADLINE_EXCEEDED => RuntimeError::DeadlineExceeded(named(message)),
            Code::NOT_FOUND => RuntimeError::NotFound(message),
            Code::UNIMPLEMENTED => RuntimeError::Unimplemented(message),
            Code(code) => RuntimeError::Failed { code, message },
        },
    }
}
