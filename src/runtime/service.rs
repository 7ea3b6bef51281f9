//! The embedded runtime as the agent's [`Runtime`]: the CRI's messages as model types, by the same conversions as over gRPC.
//!
//! Deadlines of calls are those of the programs and waits below them: nothing is lost on the way, so that no call has one of its own.

use std::time::Duration;

use super::Embedded;
use crate::cri::{
    ContainerStats, EventService, ExecOutput, FilesystemUsage, Image, PullProgress, Runtime, RuntimeError,
    RuntimeEvent, RuntimeResult, RuntimeStatus, RuntimeVersion, StreamRequest, convert, requests,
    termination,
};
use crate::limits::EXEC_OUTPUT_BYTES_MAX;
use crate::model::{
    ContainerId, ContainerItem, ContainerStatus, PodUid, SandboxId, SandboxItem, SandboxStatus, Seconds,
};
use crate::proto::runtime::v1 as cri;

fn no_id(what: &str) -> RuntimeError {
    RuntimeError::Protocol(format!("{what} has no valid id"))
}

impl Runtime for Embedded {
    async fn version(&self) -> RuntimeResult<RuntimeVersion> {
        let version = self.version_cri(cri::VersionRequest::default()).await?;
        Ok(RuntimeVersion {
            runtime_name: version.runtime_name.into(),
            runtime_version: version.runtime_version.into(),
            runtime_api_version: version.runtime_api_version.into(),
        })
    }

    async fn status(&self) -> RuntimeResult<RuntimeStatus> {
        self.status_cri(cri::StatusRequest::default()).await.map(convert::runtime_status)
    }

    async fn run_pod_sandbox(
        &self,
        config: &cri::PodSandboxConfig,
        handler: &str,
    ) -> RuntimeResult<SandboxId> {
        let request =
            cri::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        Box::pin(self.run_pod_sandbox_cri(request)).await.map(|answer| SandboxId::from(answer.pod_sandbox_id))
    }

    async fn stop_pod_sandbox(&self, _pod: &PodUid, id: &SandboxId) -> RuntimeResult<()> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        self.stop_pod_sandbox_cri(request).await.map(drop)
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> RuntimeResult<()> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        self.remove_pod_sandbox_cri(request).await.map(drop)
    }

    async fn pod_sandbox_status(&self, id: &SandboxId) -> RuntimeResult<SandboxStatus> {
        let status = self.sandboxes.existing(id.as_str())?.status();
        convert::sandbox_status(status).ok_or_else(|| no_id("the sandbox"))
    }

    async fn list_pod_sandboxes(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(SandboxItem),
    ) -> RuntimeResult<()> {
        let request = requests::list_pod_sandboxes(pod);
        let answer = self.list_pod_sandbox_cri(request).await?;
        answer.items.into_iter().filter_map(convert::sandbox_item).for_each(each);
        Ok(())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &cri::ContainerConfig,
        _sandbox_config: &cri::PodSandboxConfig,
    ) -> RuntimeResult<ContainerId> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config.clone()),
            sandbox_config: None,
        };
        Box::pin(self.create_container_cri(request))
            .await
            .map(|answer| ContainerId::from(answer.container_id))
    }

    async fn start_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::StartContainerRequest { container_id: id.to_string() };
        self.start_container_cri(request).await.map(drop)
    }

    async fn stop_container(&self, _pod: &PodUid, id: &ContainerId, timeout: Seconds) -> RuntimeResult<()> {
        let request = cri::StopContainerRequest { container_id: id.to_string(), timeout: timeout.0.max(0) };
        self.stop_container_cri(request).await.map(drop)
    }

    async fn remove_container(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::RemoveContainerRequest { container_id: id.to_string() };
        self.remove_container_cri(request).await.map(drop)
    }

    async fn container_status(&self, id: &ContainerId) -> RuntimeResult<ContainerStatus> {
        let request = cri::ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let status = self.container_status_cri(request).await?.status.unwrap_or_default();
        let status = termination::with_message(status, &self.context.blocking).await;
        status.ok_or_else(|| no_id("the container"))
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: cri::LinuxContainerResources,
    ) -> RuntimeResult<()> {
        let request =
            cri::UpdateContainerResourcesRequest { container_id: id.to_string(), linux: Some(resources) };
        self.update_container_resources_cri(request).await.map(drop)
    }

    async fn update_pod_sandbox_resources(
        &self,
        id: &SandboxId,
        resources: cri::LinuxContainerResources,
        overhead: cri::LinuxContainerResources,
    ) -> RuntimeResult<()> {
        let request = requests::update_pod_sandbox_resources(id, resources, overhead);
        self.update_pod_sandbox_resources_cri(request).await.map(drop)
    }

    async fn list_containers(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(ContainerItem),
    ) -> RuntimeResult<()> {
        let request = requests::list_containers(pod);
        let answer = self.list_containers_cri(request).await?;
        answer.containers.into_iter().filter_map(convert::container_item).for_each(each);
        Ok(())
    }

    async fn list_container_stats(&self, each: &mut dyn FnMut(ContainerStats)) -> RuntimeResult<()> {
        let answer = self.list_container_stats_cri(cri::ListContainerStatsRequest::default()).await?;
        answer.stats.into_iter().filter_map(convert::container_stats).for_each(each);
        Ok(())
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> RuntimeResult<ExecOutput> {
        let container = self.containers.existing(id.as_str())?;
        self.execs.run(&self.containers, &container, command, timeout, EXEC_OUTPUT_BYTES_MAX).await
    }

    async fn streaming_url(&self, request: StreamRequest) -> RuntimeResult<String> {
        match self.context.streaming_url.borrow().as_ref() {
            Some(url) => url(request),
            None => Err(RuntimeError::Unimplemented("there is no streaming server".to_owned())),
        }
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> RuntimeResult<()> {
        let network_config = Some(cri::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
        let runtime_config = Some(cri::RuntimeConfig { network_config });
        self.update_runtime_config_cri(cri::UpdateRuntimeConfigRequest { runtime_config }).await.map(drop)
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> RuntimeResult<()> {
        let request = cri::ReopenContainerLogRequest { container_id: id.to_string() };
        self.reopen_container_log_cri(request).await.map(drop)
    }

    async fn image_status(&self, image: &str) -> RuntimeResult<Option<Image>> {
        let request = cri::ImageStatusRequest { image: Some(requests::image(image)), verbose: false };
        let answer = self.images().image_status(request).await?;
        Ok(answer.image.and_then(convert::image))
    }

    async fn list_images(&self, each: &mut dyn FnMut(Image)) -> RuntimeResult<()> {
        let answer = self.images().list_images(cri::ListImagesRequest::default()).await?;
        answer.images.into_iter().filter_map(convert::image).for_each(each);
        Ok(())
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&cri::AuthConfig>,
        sandbox: &cri::PodSandboxConfig,
    ) -> RuntimeResult<Box<str>> {
        let request = requests::pull_image(image, auth, sandbox);
        self.images().pull_image(request).await.map(|answer| answer.image_ref.into())
    }

    fn pulls(&self) -> Vec<PullProgress> {
        self.images().pulls()
    }

    async fn remove_image(&self, image: &str) -> RuntimeResult<()> {
        let request = cri::RemoveImageRequest { image: Some(requests::image(image)) };
        match self.images().remove_image(request).await {
            Ok(_) | Err(RuntimeError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn image_fs_info(&self) -> RuntimeResult<Vec<FilesystemUsage>> {
        self.images().image_fs_info().await.map(convert::filesystems)
    }

    async fn follow_events(
        &self,
        service: EventService,
        each: &mut dyn FnMut(RuntimeEvent),
    ) -> RuntimeResult<()> {
        if service != EventService::Cri {
            return Err(RuntimeError::Unimplemented(format!("{service} events are not served")));
        }
        let events = self.subscribe()?;
        while let Ok(event) = events.recv().await {
            each(event);
        }
        Ok(())
    }
}
