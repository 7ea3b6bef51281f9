//! The methods of CRI v1's `RuntimeService` and `ImageService`: path, request, function of the runtime.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use prost::Message;
use smol::stream::{Stream, StreamExt as _};

use crate::cri::requests::CHECK_NETWORKS;
use crate::cri::{RuntimeError, RuntimeResult};
use crate::grpc::Code;
use crate::grpc::server::{Replies, Reply, Service, Serving, Status, decoded, encoded};
use crate::limits::CRI_STREAMED_ITEMS;
use crate::proto::runtime::v1 as cri;

/// The runtime's events, until it ends.
pub type Events = Pin<Box<dyn Stream<Item = cri::ContainerEventResponse>>>;

/// The runtime behind the server, by the CRI's own messages.
#[allow(async_fn_in_trait, reason = "all tasks run on one thread, so no Send bound is wanted")]
#[allow(missing_docs, reason = "each method is the CRI's of that name")]
pub trait Cri {
    async fn version(&self, request: cri::VersionRequest) -> RuntimeResult<cri::VersionResponse>;
    async fn status(&self, request: cri::StatusRequest) -> RuntimeResult<cri::StatusResponse>;
    /// [`CHECK_NETWORKS`], which is smolet's own.
    async fn check_networks(&self, request: cri::StatusRequest) -> RuntimeResult<cri::StatusResponse>;
    async fn runtime_config(
        &self,
        request: cri::RuntimeConfigRequest,
    ) -> RuntimeResult<cri::RuntimeConfigResponse>;
    async fn update_runtime_config(
        &self,
        request: cri::UpdateRuntimeConfigRequest,
    ) -> RuntimeResult<cri::UpdateRuntimeConfigResponse>;
    async fn run_pod_sandbox(
        &self,
        request: cri::RunPodSandboxRequest,
    ) -> RuntimeResult<cri::RunPodSandboxResponse>;
    async fn stop_pod_sandbox(
        &self,
        request: cri::StopPodSandboxRequest,
    ) -> RuntimeResult<cri::StopPodSandboxResponse>;
    async fn remove_pod_sandbox(
        &self,
        request: cri::RemovePodSandboxRequest,
    ) -> RuntimeResult<cri::RemovePodSandboxResponse>;
    async fn pod_sandbox_status(
        &self,
        request: cri::PodSandboxStatusRequest,
    ) -> RuntimeResult<cri::PodSandboxStatusResponse>;
    async fn list_pod_sandbox(
        &self,
        request: cri::ListPodSandboxRequest,
    ) -> RuntimeResult<cri::ListPodSandboxResponse>;
    async fn create_container(
        &self,
        request: cri::CreateContainerRequest,
    ) -> RuntimeResult<cri::CreateContainerResponse>;
    async fn start_container(
        &self,
        request: cri::StartContainerRequest,
    ) -> RuntimeResult<cri::StartContainerResponse>;
    async fn stop_container(
        &self,
        request: cri::StopContainerRequest,
    ) -> RuntimeResult<cri::StopContainerResponse>;
    async fn remove_container(
        &self,
        request: cri::RemoveContainerRequest,
    ) -> RuntimeResult<cri::RemoveContainerResponse>;
    async fn list_containers(
        &self,
        request: cri::ListContainersRequest,
    ) -> RuntimeResult<cri::ListContainersResponse>;
    async fn container_status(
        &self,
        request: cri::ContainerStatusRequest,
    ) -> RuntimeResult<cri::ContainerStatusResponse>;
    async fn update_container_resources(
        &self,
        request: cri::UpdateContainerResourcesRequest,
    ) -> RuntimeResult<cri::UpdateContainerResourcesResponse>;
    async fn update_pod_sandbox_resources(
        &self,
        request: cri::UpdatePodSandboxResourcesRequest,
    ) -> RuntimeResult<cri::UpdatePodSandboxResourcesResponse>;
    async fn reopen_container_log(
        &self,
        request: cri::ReopenContainerLogRequest,
    ) -> RuntimeResult<cri::ReopenContainerLogResponse>;
    async fn checkpoint_container(
        &self,
        request: cri::CheckpointContainerRequest,
    ) -> RuntimeResult<cri::CheckpointContainerResponse>;
    async fn exec_sync(&self, request: cri::ExecSyncRequest) -> RuntimeResult<cri::ExecSyncResponse>;
    async fn exec(&self, request: cri::ExecRequest) -> RuntimeResult<cri::ExecResponse>;
    async fn attach(&self, request: cri::AttachRequest) -> RuntimeResult<cri::AttachResponse>;
    async fn port_forward(&self, request: cri::PortForwardRequest)
    -> RuntimeResult<cri::PortForwardResponse>;
    async fn container_stats(
        &self,
        request: cri::ContainerStatsRequest,
    ) -> RuntimeResult<cri::ContainerStatsResponse>;
    async fn list_container_stats(
        &self,
        request: cri::ListContainerStatsRequest,
    ) -> RuntimeResult<cri::ListContainerStatsResponse>;
    async fn pod_sandbox_stats(
        &self,
        request: cri::PodSandboxStatsRequest,
    ) -> RuntimeResult<cri::PodSandboxStatsResponse>;
    async fn list_pod_sandbox_stats(
        &self,
        request: cri::ListPodSandboxStatsRequest,
    ) -> RuntimeResult<cri::ListPodSandboxStatsResponse>;
    async fn list_metric_descriptors(
        &self,
        request: cri::ListMetricDescriptorsRequest,
    ) -> RuntimeResult<cri::ListMetricDescriptorsResponse>;
    async fn list_pod_sandbox_metrics(
        &self,
        request: cri::ListPodSandboxMetricsRequest,
    ) -> RuntimeResult<cri::ListPodSandboxMetricsResponse>;
    async fn list_images(&self, request: cri::ListImagesRequest) -> RuntimeResult<cri::ListImagesResponse>;
    async fn image_status(&self, request: cri::ImageStatusRequest)
    -> RuntimeResult<cri::ImageStatusResponse>;
    async fn pull_image(&self, request: cri::PullImageRequest) -> RuntimeResult<cri::PullImageResponse>;
    async fn remove_image(&self, request: cri::RemoveImageRequest)
    -> RuntimeResult<cri::RemoveImageResponse>;
    async fn image_fs_info(
        &self,
        request: cri::ImageFsInfoRequest,
    ) -> RuntimeResult<cri::ImageFsInfoResponse>;

    /// `GetContainerEvents`: those from now on.
    ///
    /// # Errors
    /// There are too many who follow them.
    fn container_events(&self) -> RuntimeResult<Events>;
}

/// Both services of the CRI, over one runtime.
pub struct CriService<R>(Rc<R>);

impl<R> CriService<R> {
    /// Serves that runtime.
    pub fn new(runtime: Rc<R>) -> Self {
        Self(runtime)
    }
}

/// A call with one response; the request is decoded when the call begins.
fn one<R: 'static, Q, A, F>(
    runtime: &Rc<R>,
    request: Vec<u8>,
    call: impl FnOnce(Rc<R>, Q) -> F + 'static,
) -> Serving
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = RuntimeResult<A>> + 'static,
{
    let runtime = runtime.clone();
    Box::pin(async move {
        let answer = call(runtime, decoded(&request)?).await.map_err(status)?;
        encoded(&answer).map(Reply::One)
    })
}

/// A call whose response is a list in several messages of at most `limits::CRI_STREAMED_ITEMS` each.
fn many<R: 'static, Q, I, F, A>(
    runtime: &Rc<R>,
    request: Vec<u8>,
    call: impl FnOnce(Rc<R>, Q) -> F + 'static,
    message: fn(Vec<I>) -> A,
) -> Serving
where
    Q: Message + Default + 'static,
    I: 'static,
    A: Message + 'static,
    F: Future<Output = RuntimeResult<Vec<I>>> + 'static,
{
    let runtime = runtime.clone();
    Box::pin(async move {
        let mut items = call(runtime, decoded(&request)?).await.map_err(status)?.into_iter();
        let parts = std::iter::from_fn(move || {
            let part: Vec<I> = items.by_ref().take(CRI_STREAMED_ITEMS).collect();
            (!part.is_empty()).then(|| encoded(&message(part)))
        });
        Ok(Reply::Many(Box::pin(smol::stream::iter(parts)) as Replies))
    })
}

impl<R: Cri + 'static> Service for CriService<R> {
    fn call(&self, path: &str, request: Vec<u8>) -> Option<Serving> {
        if path == CHECK_NETWORKS {
            return Some(self.status(request, true));
        }
        let (service, method) = path.strip_prefix("/runtime.v1.")?.split_once('/')?;
        match service {
            "RuntimeService" => self.runtime_service(method, request),
            "ImageService" => self.image_service(method, request),
            _ => None,
        }
    }
}

/// A table of unary methods: the name, and the function of [`Cri`] with the CRI's request of that name.
macro_rules! unary {
    ($runtime:expr, $method:expr, $request:expr, $($name:literal => $call:ident,)*) => {
        match $method {
            $($name => Some(one($runtime, $request, |runtime, request| async move { runtime.$call(request).await })),)*
            _ => None,
        }
    };
}

impl<R: Cri + 'static> CriService<R> {
    fn runtime_service(&self, method: &str, request: Vec<u8>) -> Option<Serving> {
        let runtime = &self.0;
        match method {
            "StreamPodSandboxes" => Some(many(
                runtime,
                request,
                |runtime, request| async move { Ok(runtime.list_pod_sandbox(request).await?.items) },
                |items| cri::ListPodSandboxResponse { items },
            )),
            "StreamContainers" => Some(many(
                runtime,
                request,
                |runtime, request| async move { Ok(runtime.list_containers(request).await?.containers) },
                |containers| cri::ListContainersResponse { containers },
            )),
            "StreamContainerStats" => Some(many(
                runtime,
                request,
                |runtime, request| async move { Ok(runtime.list_container_stats(request).await?.stats) },
                |stats| cri::ListContainerStatsResponse { stats },
            )),
            "StreamPodSandboxStats" => Some(many(
                runtime,
                request,
                |runtime, request| async move { Ok(runtime.list_pod_sandbox_stats(request).await?.stats) },
                |stats| cri::ListPodSandboxStatsResponse { stats },
            )),
            "GetContainerEvents" => {
                let events = self.0.container_events().map_err(status);
                Some(Box::pin(async move {
                    let messages = events?.map(|event| encoded(&event));
                    Ok(Reply::Many(Box::pin(messages) as Replies))
                }))
            }
            "StreamPodSandboxMetrics" => Some(many(
                runtime,
                request,
                |runtime, request| async move { Ok(runtime.list_pod_sandbox_metrics(request).await?.pod_metrics) },
                |pod_metrics| cri::ListPodSandboxMetricsResponse { pod_metrics },
            )),
            "Status" => Some(self.status(request, false)),
            _ => unary!(runtime, method, request,
                "Version" => version,
                "RuntimeConfig" => runtime_config,
                "UpdateRuntimeConfig" => update_runtime_config,
                "RunPodSandbox" => run_pod_sandbox,
                "StopPodSandbox" => stop_pod_sandbox,
                "RemovePodSandbox" => remove_pod_sandbox,
                "PodSandboxStatus" => pod_sandbox_status,
                "ListPodSandbox" => list_pod_sandbox,
                "CreateContainer" => create_container,
                "StartContainer" => start_container,
                "StopContainer" => stop_container,
                "RemoveContainer" => remove_container,
                "ListContainers" => list_containers,
                "ContainerStatus" => container_status,
                "UpdateContainerResources" => update_container_resources,
                "UpdatePodSandboxResources" => update_pod_sandbox_resources,
                "ReopenContainerLog" => reopen_container_log,
                "CheckpointContainer" => checkpoint_container,
                "ExecSync" => exec_sync,
                "Exec" => exec,
                "Attach" => attach,
                "PortForward" => port_forward,
                "ContainerStats" => container_stats,
                "ListContainerStats" => list_container_stats,
                "PodSandboxStats" => pod_sandbox_stats,
                "ListPodSandboxStats" => list_pod_sandbox_stats,
                "ListMetricDescriptors" => list_metric_descriptors,
                "ListPodSandboxMetrics" => list_pod_sandbox_metrics,
            ),
        }
    }

    /// Of the runtime or, with the same messages, of pods' networks.
    fn status(&self, request: Vec<u8>, of_networks: bool) -> Serving {
        one(&self.0, request, move |runtime, request| async move {
            if of_networks { runtime.check_networks(request).await } else { runtime.status(request).await }
        })
    }

    fn image_service(&self, method: &str, request: Vec<u8>) -> Option<Serving> {
        let runtime = &self.0;
        match method {
            "StreamImages" => Some(many(
                runtime,
                request,
                |runtime, request| async move { Ok(runtime.list_images(request).await?.images) },
                |images| cri::ListImagesResponse { images },
            )),
            _ => unary!(runtime, method, request,
                "ListImages" => list_images,
                "ImageStatus" => image_status,
                "PullImage" => pull_image,
                "RemoveImage" => remove_image,
                "ImageFsInfo" => image_fs_info,
            ),
        }
    }
}

/// The status of a runtime's error.
fn status(error: RuntimeError) -> Status {
    match error {
        RuntimeError::Unavailable(message) => Status::new(Code::UNAVAILABLE, message),
        RuntimeError::DeadlineExceeded(message) => Status::new(Code::DEADLINE_EXCEEDED, message),
        RuntimeError::NotFound(message) => Status::new(Code::NOT_FOUND, message),
        RuntimeError::Unimplemented(message) => Status::new(Code::UNIMPLEMENTED, message),
        RuntimeError::Failed { code, message } => Status::new(Code(code), message),
        RuntimeError::Protocol(message) => Status::new(Code::INTERNAL, message),
    }
}
