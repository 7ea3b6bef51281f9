//! The embedded runtime as the server calls it.

use smol::stream::StreamExt as _;

use super::service::{Cri, Events};
use crate::cri::{Runtime as _, RuntimeResult, StreamRequest};
use crate::proto::runtime::v1 as cri;
use crate::runtime::Embedded;

/// Methods that the runtime has under the same name.
macro_rules! of_runtime {
    ($($name:ident $call:ident $request:ident $answer:ident,)*) => {
        $(async fn $name(&self, request: cri::$request) -> RuntimeResult<cri::$answer> {
            self.$call(request).await
        })*
    };
}

/// Methods of its images.
macro_rules! of_images {
    ($($name:ident $request:ident $answer:ident,)*) => {
        $(async fn $name(&self, request: cri::$request) -> RuntimeResult<cri::$answer> {
            self.images().$name(request).await
        })*
    };
}

impl Cri for Embedded {
    of_runtime! {
        version version_cri VersionRequest VersionResponse,
        status status_cri StatusRequest StatusResponse,
        check_networks check_networks_cri StatusRequest StatusResponse,
        runtime_config runtime_config_cri RuntimeConfigRequest RuntimeConfigResponse,
        update_runtime_config update_runtime_config_cri UpdateRuntimeConfigRequest UpdateRuntimeConfigResponse,
        run_pod_sandbox run_pod_sandbox_cri RunPodSandboxRequest RunPodSandboxResponse,
        stop_pod_sandbox stop_pod_sandbox_cri StopPodSandboxRequest StopPodSandboxResponse,
        remove_pod_sandbox remove_pod_sandbox_cri RemovePodSandboxRequest RemovePodSandboxResponse,
        pod_sandbox_status pod_sandbox_status_cri PodSandboxStatusRequest PodSandboxStatusResponse,
        list_pod_sandbox list_pod_sandbox_cri ListPodSandboxRequest ListPodSandboxResponse,
        create_container create_container_cri CreateContainerRequest CreateContainerResponse,
        start_container start_container_cri StartContainerRequest StartContainerResponse,
        stop_container stop_container_cri StopContainerRequest StopContainerResponse,
        remove_container remove_container_cri RemoveContainerRequest RemoveContainerResponse,
        list_containers list_containers_cri ListContainersRequest ListContainersResponse,
        container_status container_status_cri ContainerStatusRequest ContainerStatusResponse,
        update_container_resources update_container_resources_cri UpdateContainerResourcesRequest UpdateContainerResourcesResponse,
        update_pod_sandbox_resources update_pod_sandbox_resources_cri UpdatePodSandboxResourcesRequest UpdatePodSandboxResourcesResponse,
        reopen_container_log reopen_container_log_cri ReopenContainerLogRequest ReopenContainerLogResponse,
        checkpoint_container checkpoint_container_cri CheckpointContainerRequest CheckpointContainerResponse,
        exec_sync exec_sync_cri ExecSyncRequest ExecSyncResponse,
        container_stats container_stats_cri ContainerStatsRequest ContainerStatsResponse,
        list_container_stats list_container_stats_cri ListContainerStatsRequest ListContainerStatsResponse,
        pod_sandbox_stats pod_sandbox_stats_cri PodSandboxStatsRequest PodSandboxStatsResponse,
        list_metric_descriptors list_metric_descriptors_cri ListMetricDescriptorsRequest ListMetricDescriptorsResponse,
        list_pod_sandbox_metrics list_pod_sandbox_metrics_cri ListPodSandboxMetricsRequest ListPodSandboxMetricsResponse,
        list_pod_sandbox_stats list_pod_sandbox_stats_cri ListPodSandboxStatsRequest ListPodSandboxStatsResponse,
    }

    of_images! {
        image_status ImageStatusRequest ImageStatusResponse,
        remove_image RemoveImageRequest RemoveImageResponse,
        list_images ListImagesRequest ListImagesResponse,
        pull_image PullImageRequest PullImageResponse,
    }

    async fn image_fs_info(
        &self,
        _request: cri::ImageFsInfoRequest,
    ) -> RuntimeResult<cri::ImageFsInfoResponse> {
        self.images().image_fs_info().await
    }

    async fn exec(&self, request: cri::ExecRequest) -> RuntimeResult<cri::ExecResponse> {
        // A URL of a container that does not run is refused now, and not when it is used.
        self.oci_runtime_of(&request.container_id)?;
        Ok(cri::ExecResponse { url: self.streaming_url(StreamRequest::Exec(request)).await? })
    }

    async fn attach(&self, request: cri::AttachRequest) -> RuntimeResult<cri::AttachResponse> {
        self.monitor_dir(&request.container_id)?;
        Ok(cri::AttachResponse { url: self.streaming_url(StreamRequest::Attach(request)).await? })
    }

    async fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> RuntimeResult<cri::PortForwardResponse> {
        self.network_namespace(&request.pod_sandbox_id)?;
        Ok(cri::PortForwardResponse { url: self.streaming_url(StreamRequest::PortForward(request)).await? })
    }

    fn container_events(&self) -> RuntimeResult<Events> {
        let (runtime, events) = (self.clone(), self.subscribe()?);
        let events = events.filter_map(move |event| {
            // The kubelet knows no event of memory, and learns of the end by that of the end.
            let is_known = event.kind != crate::cri::RuntimeEventKind::OutOfMemory;
            is_known.then(|| runtime.event_cri(&event))
        });
        Ok(Box::pin(events))
    }
}
