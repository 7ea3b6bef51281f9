//! [`NodeRuntime`]: the runtime of this node, a CRI runtime behind a socket or smolet itself.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::operations::Operations;
use crate::cri::{
    ContainerStats, EventService, ExecOutput, FilesystemUsage, GrpcRuntime, Image, PullProgress, Runtime,
    RuntimeEvent, RuntimeResult, RuntimeStatus, RuntimeVersion, StreamRequest,
};
use crate::image_store::ImageStore;
use crate::model::{
    ContainerId, ContainerItem, ContainerStatus, PodUid, SandboxId, SandboxItem, SandboxStatus, Seconds,
};
use crate::proto::runtime::v1::{AuthConfig, ContainerConfig, LinuxContainerResources, PodSandboxConfig};
use crate::runtime::Embedded;

/// The runtime that the agent uses.
#[derive(Clone)]
pub(super) enum NodeRuntime {
    /// A CRI runtime behind a socket.
    Cri(GrpcRuntime),
    /// smolet itself.
    Embedded(EmbeddedNode),
}

/// The embedded runtime of this node.
#[derive(Clone)]
pub(super) struct EmbeddedNode {
    pub(super) runtime: Embedded,
    /// Its images.
    pub(super) images: ImageStore,
    operations: Rc<Operations>,
    clock: SharedClock,
}

impl EmbeddedNode {
    pub(super) fn new(runtime: Embedded, images: ImageStore, clock: &SharedClock) -> Self {
        Self { runtime, images, operations: Rc::default(), clock: clock.clone() }
    }

    /// Counts a call, as those over gRPC are. A dropped one is not counted.
    async fn counted<T>(
        &self,
        method: &str,
        call: Pin<Box<dyn Future<Output = RuntimeResult<T>> + '_>>,
    ) -> RuntimeResult<T> {
        let _under_way = self.operations.under_way.enter();
        let begun = self.clock.now().mono;
        let answer = call.await;
        self.operations.note(method, self.clock.now().mono.since(begun), answer.is_err());
        answer
    }
}

/// The same call of either. The futures of the embedded runtime are boxed: they are large, and every task that calls a runtime would
/// have their size.
macro_rules! either {
    ($this:ident, $method:literal, $runtime:ident => $call:expr) => {
        match $this {
            NodeRuntime::Cri($runtime) => $call.await,
            NodeRuntime::Embedded(node) => {
                let $runtime = &node.runtime;
                node.counted($method, Box::pin($call)).await
            }
        }
    };
}

impl NodeRuntime {
    /// The same, which counts its calls in `operations`.
    #[must_use]
    pub(super) fn counted_by(self, operations: Rc<Operations>) -> Self {
        match self {
            Self::Cri(runtime) => Self::Cri(runtime.counted_by(operations)),
            Self::Embedded(node) => Self::Embedded(EmbeddedNode { operations, ..node }),
        }
    }

    /// The socket of a CRI runtime.
    pub(super) fn socket(&self) -> Option<&Path> {
        match self {
            Self::Cri(runtime) => Some(runtime.socket()),
            Self::Embedded(_) => None,
        }
    }

    /// The same, which reads files on that pool. The embedded runtime has the node's pool since its start.
    #[must_use]
    pub(super) fn reading_in(self, blocking: Rc<Blocking>) -> Self {
        match self {
            Self::Cri(runtime) => Self::Cri(runtime.reading_in(blocking)),
            Self::Embedded(node) => Self::Embedded(node),
        }
    }
}

impl Runtime for NodeRuntime {
    async fn version(&self) -> RuntimeResult<RuntimeVersion> {
        either!(self, "Version", runtime => runtime.version())
    }

    async fn status(&self) -> RuntimeResult<RuntimeStatus> {
        either!(self, "Status", runtime => runtime.status())
    }

    async fn sandbox_image(&self) -> RuntimeResult<Option<String>> {
        either!(self, "Status", runtime => runtime.sandbox_image())
    }

    async fn run_pod_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> RuntimeResult<SandboxId> {
        either!(self, "RunPodSandbox", runtime => runtime.run_pod_sandbox(config, handler))
    }

    async fn stop_pod_sandbox(&self, pod: &PodUid, id: &SandboxId) -> RuntimeResult<()> {
        either!(self, "StopPodSandbox", runtime => runtime.stop_pod_sandbox(pod, id))
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> RuntimeResult<()> {
        either!(self, "RemovePodSandbox", runtime => runtime.remove_pod_sandbox(id))
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> RuntimeResult<SandboxStatus> {
        either!(self, "PodSandboxStatus", runtime => runtime.pod_sandbox_status(id))
    }

    async fn list_pod_sandboxes(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(SandboxItem),
    ) -> RuntimeResult<()> {
        either!(self, "ListPodSandbox", runtime => runtime.list_pod_sandboxes(pod, each))
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> RuntimeResult<ContainerId> {
        either!(self, "CreateContainer", runtime => runtime.create_container(sandbox, config, sandbox_config))
    }

    async fn start_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        either!(self, "StartContainer", runtime => runtime.start_container(id))
    }

    async fn stop_container(&self, pod: &PodUid, id: &ContainerId, timeout: Seconds) -> RuntimeResult<()> {
        either!(self, "StopContainer", runtime => runtime.stop_container(pod, id, timeout))
    }

    async fn remove_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        either!(self, "RemoveContainer", runtime => runtime.remove_container(id))
    }

    async fn container_status(&self, id: &ContainerId) -> RuntimeResult<ContainerStatus> {
        either!(self, "ContainerStatus", runtime => runtime.container_status(id))
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: LinuxContainerResources,
    ) -> RuntimeResult<()> {
        either!(self, "UpdateContainerResources", runtime => runtime.update_container_resources(id, resources))
    }

    async fn update_pod_sandbox_resources(
        &self,
        id: &SandboxId,
        resources: LinuxContainerResources,
        overhead: LinuxContainerResources,
    ) -> RuntimeResult<()> {
        either!(self, "UpdatePodSandboxResources", runtime => runtime.update_pod_sandbox_resources(id, resources, overhead))
    }

    async fn list_containers(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(ContainerItem),
    ) -> RuntimeResult<()> {
        either!(self, "ListContainers", runtime => runtime.list_containers(pod, each))
    }

    async fn list_container_stats(&self, each: &mut dyn FnMut(ContainerStats)) -> RuntimeResult<()> {
        either!(self, "ListContainerStats", runtime => runtime.list_container_stats(each))
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> RuntimeResult<ExecOutput> {
        either!(self, "ExecSync", runtime => runtime.exec_sync(id, command, timeout))
    }

    async fn streaming_url(&self, request: StreamRequest) -> RuntimeResult<String> {
        match (self, &request) {
            (Self::Cri(runtime), _) => runtime.streaming_url(request).await,
            (_, StreamRequest::Exec(_)) => either!(self, "Exec", runtime => runtime.streaming_url(request)),
            (_, StreamRequest::Attach(_)) => {
                either!(self, "Attach", runtime => runtime.streaming_url(request))
            }
            (_, StreamRequest::PortForward(_)) => {
                either!(self, "PortForward", runtime => runtime.streaming_url(request))
            }
        }
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> RuntimeResult<()> {
        either!(self, "UpdateRuntimeConfig", runtime => runtime.update_runtime_config(pod_cidr))
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> RuntimeResult<()> {
        either!(self, "ReopenContainerLog", runtime => runtime.reopen_container_log(id))
    }

    async fn image_status(&self, image: &str) -> RuntimeResult<Option<Image>> {
        either!(self, "ImageStatus", runtime => runtime.image_status(image))
    }

    async fn list_images(&self, each: &mut dyn FnMut(Image)) -> RuntimeResult<()> {
        either!(self, "ListImages", runtime => runtime.list_images(each))
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> RuntimeResult<Box<str>> {
        either!(self, "PullImage", runtime => runtime.pull_image(image, auth, sandbox))
    }

    fn pulls(&self) -> Vec<PullProgress> {
        match self {
            Self::Cri(runtime) => runtime.pulls(),
            Self::Embedded(node) => node.runtime.pulls(),
        }
    }

    async fn remove_image(&self, image: &str) -> RuntimeResult<()> {
        either!(self, "RemoveImage", runtime => runtime.remove_image(image))
    }

    async fn image_fs_info(&self) -> RuntimeResult<Vec<FilesystemUsage>> {
        either!(self, "ImageFsInfo", runtime => runtime.image_fs_info())
    }

    async fn follow_events(
        &self,
        service: EventService,
        each: &mut dyn FnMut(RuntimeEvent),
    ) -> RuntimeResult<()> {
        match self {
            Self::Cri(runtime) => runtime.follow_events(service, each).await,
            // No call that has an end to count.
            Self::Embedded(node) => Box::pin(node.runtime.follow_events(service, each)).await,
        }
    }
}
