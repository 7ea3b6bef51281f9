//! The CRI's calls about containers, their usage and the runtime's events.

use std::rc::Rc;
use std::time::Duration;

use smol::future::or;

use super::container::{Container, Containers};
use super::context::{failed, invalid, not_now};
use super::records::ContainerPhase;
use super::sandbox::Sandbox;
use super::sandboxes::Sandboxes;
use super::{Embedded, checkpoint, create, ends, metrics, namespaces, spec, stats, status, verbose};
use crate::cri::{RuntimeError, RuntimeEvent, RuntimeEventKind, RuntimeResult};
use crate::filesystem::read_bounded;
use crate::limits::{EXEC_SYNC_BYTES_MAX, SHOWN_SPEC_BYTES_MAX};
use crate::proto::runtime::v1 as cri;

#[allow(clippy::unused_async, reason = "every call of the CRI is awaited, whatever it does")]
impl Embedded {
    /// `CreateContainer`.
    ///
    /// # Errors
    /// The configuration is refused, its image is not there, or the machine fails. Nothing is left.
    pub async fn create_container_cri(
        &self,
        request: cri::CreateContainerRequest,
    ) -> RuntimeResult<cri::CreateContainerResponse> {
        let sandbox = self.sandboxes.existing(&request.pod_sandbox_id)?;
        let runtime = self.clone();
        let make = async move {
            let Some(config) = request.config else { return Err(invalid("config is missing")) };
            let _turn = sandbox.turn().read().await;
            let container = create::create(&runtime.containers, &runtime.sandboxes, &sandbox, config).await?;
            Ok(cri::CreateContainerResponse { container_id: container.id().to_string() })
        };
        self.context.to_the_end("create container", make).await
    }

    /// `StartContainer`.
    ///
    /// # Errors
    /// It was started before, or the OCI runtime's: then it has exited with the reason `StartError`.
    pub async fn start_container_cri(
        &self,
        request: cri::StartContainerRequest,
    ) -> RuntimeResult<cri::StartContainerResponse> {
        let container = self.containers.existing(&request.container_id)?;
        let runtime = self.clone();
        let start = async move {
            let sandbox = runtime.sandboxes.existing(container.sandbox_id().as_str())?;
            let _turn = sandbox.turn().read().await;
            if !sandbox.is_ready() {
                return Err(not_now(format!("container {}: its sandbox is not ready", container.id())));
            }
            let started = runtime.containers.start(&container).await;
            runtime.clean_up_later(&container);
            started
        };
        self.context.to_the_end("start container", start).await?;
        Ok(cri::StartContainerResponse {})
    }

    /// What the OCI runtime has of a container that has ended goes, behind the caller's back.
    fn clean_up_later(&self, container: &Rc<Container>) {
        if container.phase() == ContainerPhase::Exited {
            let (containers, container) = (self.containers.clone(), container.clone());
            let clean_up = async move { containers.clean_up(&container).await };
            drop(self.context.to_the_end("ended container", clean_up));
        }
    }

    /// `StopContainer`; idempotent.
    ///
    /// # Errors
    /// It runs on after SIGKILL; or a later call goes on, with a time of its own.
    pub async fn stop_container_cri(
        &self,
        request: cri::StopContainerRequest,
    ) -> RuntimeResult<cri::StopContainerResponse> {
        let Some(container) = self.containers.find(&request.container_id) else {
            return Ok(cri::StopContainerResponse {});
        };
        let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
        let containers = self.containers.clone();
        let stop = async move { containers.stop(&container, grace).await };
        self.context.to_the_end("stop container", stop).await?;
        Ok(cri::StopContainerResponse {})
    }

    /// `RemoveContainer`; idempotent. A running one is killed first.
    ///
    /// # Errors
    /// It cannot be killed, or something of it cannot be removed; a further call goes on.
    pub async fn remove_container_cri(
        &self,
        request: cri::RemoveContainerRequest,
    ) -> RuntimeResult<cri::RemoveContainerResponse> {
        let Some(container) = self.containers.find(&request.container_id) else {
            return Ok(cri::RemoveContainerResponse {});
        };
        let containers = self.containers.clone();
        let remove = async move { containers.remove(&container).await };
        self.context.to_the_end("remove container", remove).await?;
        Ok(cri::RemoveContainerResponse {})
    }

    /// `ListContainers`.
    ///
    /// # Errors
    /// None.
    pub async fn list_containers_cri(
        &self,
        request: cri::ListContainersRequest,
    ) -> RuntimeResult<cri::ListContainersResponse> {
        let mut containers = Vec::new();
        for container in self.containers.all() {
            if container.phase() != ContainerPhase::Making {
                let item = status::item(container.id().as_str(), &container.record.borrow());
                containers.extend(Some(item).filter(|item| status::passes(item, request.filter.as_ref())));
            }
        }
        Ok(cri::ListContainersResponse { containers })
    }

    /// `ContainerStatus`.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn container_status_cri(
        &self,
        request: cri::ContainerStatusRequest,
    ) -> RuntimeResult<cri::ContainerStatusResponse> {
        let container = self.containers.existing(&request.container_id)?;
        let sandbox = self.sandboxes.find(container.sandbox_id().as_str());
        let logs = sandbox.map(|sandbox| sandbox.config().log_directory).unwrap_or_default();
        let status = status::status(container.id().as_str(), &container.record.borrow(), &logs);
        let mut answer = cri::ContainerStatusResponse { status: Some(status), ..Default::default() };
        if request.verbose {
            let (dir, record) = (self.containers.run_dir(container.id()), container.record.borrow().clone());
            let look = move || {
                let init =
                    crate::monitor::init_of(&dir).ok().flatten().filter(crate::monitor::Init::is_there);
                let spec = read_bounded(&dir.join("config.json"), SHOWN_SPEC_BYTES_MAX).ok();
                verbose::container(&record, init.map_or(0, |init| init.pid), spec.as_deref())
            };
            answer.info = self.context.blocking(look).await;
        }
        Ok(answer)
    }

    /// `UpdateContainerResources`.
    ///
    /// # Errors
    /// It has ended; a value is refused; the OCI runtime's.
    pub async fn update_container_resources_cri(
        &self,
        request: cri::UpdateContainerResourcesRequest,
    ) -> RuntimeResult<cri::UpdateContainerResourcesResponse> {
        let container = self.containers.existing(&request.container_id)?;
        let asked = request.linux.unwrap_or_default();
        let json = spec::update(&asked, &self.context.node)?;
        let containers = self.containers.clone();
        let update = async move { containers.update(&container, asked, json, status::merge).await };
        self.context.to_the_end("update container", update).await?;
        Ok(cri::UpdateContainerResourcesResponse {})
    }

    /// `UpdatePodSandboxResources`. The limits are those of the pod's cgroup, which the kubelet sets itself; the cgroups of ended
    /// containers are removed before it does, because the kernel holds the pod's limits above theirs.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn update_pod_sandbox_resources_cri(
        &self,
        request: cri::UpdatePodSandboxResourcesRequest,
    ) -> RuntimeResult<cri::UpdatePodSandboxResourcesResponse> {
        let sandbox = self.sandboxes.existing(&request.pod_sandbox_id)?;
        let (containers, ended) = (self.containers.clone(), self.containers.of_sandbox(sandbox.id()));
        let clean_up = async move {
            for container in ended {
                containers.clean_up(&container).await;
            }
        };
        self.context.to_the_end("resources of a sandbox", clean_up).await;
        Ok(cri::UpdatePodSandboxResourcesResponse {})
    }

    /// `ReopenContainerLog`.
    ///
    /// # Errors
    /// It does not run; the monitor's.
    pub async fn reopen_container_log_cri(
        &self,
        request: cri::ReopenContainerLogRequest,
    ) -> RuntimeResult<cri::ReopenContainerLogResponse> {
        let container = self.containers.existing(&request.container_id)?;
        self.containers.reopen_log(&container).await?;
        Ok(cri::ReopenContainerLogResponse {})
    }

    /// `CheckpointContainer`.
    ///
    /// # Errors
    /// It does not run; the disk has too little space; the OCI runtime's and CRIU's. After the client's time the checkpoint goes on.
    pub async fn checkpoint_container_cri(
        &self,
        request: cri::CheckpointContainerRequest,
    ) -> RuntimeResult<cri::CheckpointContainerResponse> {
        let container = self.containers.existing(&request.container_id)?;
        let time = checkpoint::time_of(&request)?;
        let stats = self.stats_of(&container).await;
        let (containers, sandbox) =
            (self.containers.clone(), self.sandboxes.find(container.sandbox_id().as_str()));
        let logs = sandbox.map(|sandbox| sandbox.config().log_directory).unwrap_or_default();
        let seconds = time.as_secs();
        let begun = self.context.clock.now().mono;
        let late = async |what: String| {
            self.context.clock.sleep(time.saturating_sub(self.context.clock.now().mono.since(begun))).await;
            RuntimeError::DeadlineExceeded(what)
        };
        // Who does not get a turn in time leaves nothing behind.
        let turn = async { Ok(containers.turn_of_checkpoint().await) };
        let busy = format!("another checkpoint took more than {seconds} s; try again");
        let turn = or(turn, async { Err(late(busy).await) }).await?;
        let make = async move {
            let _turn = turn;
            let asked = checkpoint::Asked { request, stats, logs };
            checkpoint::make(&containers, &container, asked).await
        };
        let slow = format!("the checkpoint takes more than {seconds} s; it goes on");
        or(self.context.to_the_end("checkpoint", make), async { Err(late(slow).await) }).await?;
        Ok(cri::CheckpointContainerResponse {})
    }

    /// `ExecSync`.
    ///
    /// # Errors
    /// The container does not run, the command cannot be run, or takes too long: then it is killed.
    pub async fn exec_sync_cri(&self, request: cri::ExecSyncRequest) -> RuntimeResult<cri::ExecSyncResponse> {
        let container = self.containers.existing(&request.container_id)?;
        let time = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
        let ran =
            self.execs.run(&self.containers, &container, &request.cmd, time, EXEC_SYNC_BYTES_MAX).await?;
        Ok(cri::ExecSyncResponse { stdout: ran.stdout, stderr: ran.stderr, exit_code: ran.exit_code })
    }

    // ---- usage -----------------------------------------------------------------------------------------

    /// `ContainerStats`.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn container_stats_cri(
        &self,
        request: cri::ContainerStatsRequest,
    ) -> RuntimeResult<cri::ContainerStatsResponse> {
        let container = self.containers.existing(&request.container_id)?;
        Ok(cri::ContainerStatsResponse { stats: Some(self.stats_of(&container).await) })
    }

    /// `ListContainerStats`, of running containers.
    ///
    /// # Errors
    /// None.
    pub async fn list_container_stats_cri(
        &self,
        request: cri::ListContainerStatsRequest,
    ) -> RuntimeResult<cri::ListContainerStatsResponse> {
        let filter = request.filter.map(|filter| cri::ContainerFilter {
            id: filter.id,
            pod_sandbox_id: filter.pod_sandbox_id,
            label_selector: filter.label_selector,
            state: None,
        });
        let mut stats = Vec::new();
        for container in self.containers.all() {
            let item = status::item(container.id().as_str(), &container.record.borrow());
            if container.phase() == ContainerPhase::Running && status::passes(&item, filter.as_ref()) {
                stats.push(self.stats_of(&container).await);
            }
        }
        Ok(cri::ListContainerStatsResponse { stats })
    }

    async fn stats_of(&self, container: &Rc<Container>) -> cri::ContainerStats {
        let (attributes, cgroup) = {
            let record = container.record.borrow();
            let config = record.config();
            let attributes = cri::ContainerAttributes {
                id: container.id().to_string(),
                metadata: config.metadata,
                labels: config.labels,
                annotations: config.annotations,
            };
            (attributes, stats::cgroup_dir(&record.cgroup))
        };
        let mounts = self.context.settings.cgroup_mounts.clone();
        let usage = self.context.blocking(move || stats::usage(&mounts, &cgroup)).await;
        let now = self.context.clock.now();
        let timestamp = now.wall.0;
        let written = self.containers.images.written(container.id().as_str()).await;
        let writable_layer = written.map(|(bytes, inodes)| cri::FilesystemUsage {
            timestamp,
            fs_id: Some(cri::FilesystemIdentifier {
                mountpoint: self.context.settings.root_dir.display().to_string(),
            }),
            used_bytes: Some(cri::UInt64Value { value: bytes }),
            inodes_used: Some(cri::UInt64Value { value: inodes }),
        });
        cri::ContainerStats {
            attributes: Some(attributes),
            cpu: usage.cpu(now, container.rate()),
            memory: usage.memory(timestamp),
            writable_layer,
            swap: usage.swap(timestamp),
        }
    }

    /// `PodSandboxStats`.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn pod_sandbox_stats_cri(
        &self,
        request: cri::PodSandboxStatsRequest,
    ) -> RuntimeResult<cri::PodSandboxStatsResponse> {
        let sandbox = self.sandboxes.existing(&request.pod_sandbox_id)?;
        Ok(cri::PodSandboxStatsResponse { stats: Some(self.pod_stats_of(&sandbox).await) })
    }

    /// `ListPodSandboxStats`, of ready sandboxes.
    ///
    /// # Errors
    /// None.
    pub async fn list_pod_sandbox_stats_cri(
        &self,
        request: cri::ListPodSandboxStatsRequest,
    ) -> RuntimeResult<cri::ListPodSandboxStatsResponse> {
        let filter = request.filter.map(|filter| cri::PodSandboxFilter {
            id: filter.id,
            label_selector: filter.label_selector,
            state: Some(cri::PodSandboxStateValue { state: cri::PodSandboxState::SandboxReady.into() }),
        });
        let mut stats = Vec::new();
        for item in self.sandboxes.list(filter.as_ref()) {
            if let Some(sandbox) = self.sandboxes.find(&item.id).filter(|sandbox| sandbox.is_ready()) {
                stats.push(self.pod_stats_of(&sandbox).await);
            }
        }
        Ok(cri::ListPodSandboxStatsResponse { stats })
    }

    async fn pod_stats_of(&self, sandbox: &Rc<Sandbox>) -> cri::PodSandboxStats {
        let config = sandbox.config();
        let parent = config.linux.as_ref().map_or("", |linux| &*linux.cgroup_parent);
        let cgroup = stats::parent_dir(parent);
        let (mounts, run_dir) =
            (self.context.settings.cgroup_mounts.clone(), self.sandboxes.run_dir(sandbox.id()));
        let now = self.context.clock.now();
        let timestamp = now.wall.0;
        let read = move || {
            let usage =
                if cgroup.is_empty() { stats::Usage::default() } else { stats::usage(&mounts, &cgroup) };
            (
                usage,
                namespaces::pinned_net(&run_dir)
                    .ok()
                    .flatten()
                    .and_then(|net| stats::network(&net, timestamp)),
            )
        };
        let (usage, network) = self.context.blocking(read).await;
        let mut containers = Vec::new();
        for container in self.containers.of_sandbox(sandbox.id()) {
            if container.phase() == ContainerPhase::Running {
                containers.push(self.stats_of(&container).await);
            }
        }
        cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes {
                id: sandbox.id().to_string(),
                metadata: config.metadata,
                labels: config.labels,
                annotations: config.annotations,
            }),
            linux: Some(cri::LinuxPodSandboxStats {
                cpu: usage.cpu(now, sandbox.rate()),
                memory: usage.memory(timestamp),
                network,
                process: usage.processes(timestamp),
                containers,
            }),
        }
    }

    /// `ListPodSandboxMetrics`, of ready sandboxes and their running containers.
    ///
    /// # Errors
    /// None.
    pub async fn list_pod_sandbox_metrics_cri(
        &self,
        _request: cri::ListPodSandboxMetricsRequest,
    ) -> RuntimeResult<cri::ListPodSandboxMetricsResponse> {
        let mut pod_metrics = Vec::new();
        for item in self.sandboxes.list(None) {
            if let Some(sandbox) = self.sandboxes.find(&item.id).filter(|sandbox| sandbox.is_ready()) {
                pod_metrics.push(self.metrics_of(&sandbox).await);
            }
        }
        Ok(cri::ListPodSandboxMetricsResponse { pod_metrics })
    }

    async fn metrics_of(&self, sandbox: &Rc<Sandbox>) -> cri::PodSandboxMetrics {
        let config = sandbox.config();
        let cgroup = stats::parent_dir(config.linux.as_ref().map_or("", |linux| &*linux.cgroup_parent));
        let pod = config.metadata.unwrap_or_default();
        let whose = |container: String, cgroup: &str, image: String, id: &str| metrics::Whose {
            labels: [
                container,
                format!("/{cgroup}"),
                image,
                id.to_owned(),
                pod.namespace.clone(),
                pod.name.clone(),
            ],
        };
        let of_pod = whose(String::new(), &cgroup, String::new(), sandbox.id().as_str());
        let run_dir = self.sandboxes.run_dir(sandbox.id());
        let read = move || {
            let text =
                namespaces::pinned_net(&run_dir).ok().flatten().and_then(|net| stats::network_counters(&net));
            metrics::of_pod(&of_pod, &text.unwrap_or_default())
        };
        let of_network = self.context.blocking(read).await;
        let mut container_metrics = Vec::new();
        for container in self.containers.of_sandbox(sandbox.id()) {
            if container.phase() != ContainerPhase::Running {
                continue;
            }
            let id = container.id().as_str();
            let written = self.containers.images.written(id).await.map(|(bytes, _)| bytes);
            let known = {
                let record = container.record.borrow();
                let (config, cgroup) = (record.config(), stats::cgroup_dir(&record.cgroup));
                let name = config.metadata.unwrap_or_default().name;
                metrics::Known {
                    whose: whose(name, &cgroup, record.image_ref.to_string(), id),
                    cgroup,
                    resources: config.linux.and_then(|linux| linux.resources).unwrap_or_default(),
                    started_at: record.started_at,
                    now: self.context.now(),
                    written,
                    root_dir: self.context.settings.root_dir.clone(),
                }
            };
            let mounts = self.context.settings.cgroup_mounts.clone();
            let read = move || metrics::of_container(&mounts, &known);
            let metrics = self.context.blocking(read).await;
            container_metrics.push(cri::ContainerMetrics { container_id: id.to_owned(), metrics });
        }
        cri::PodSandboxMetrics {
            pod_sandbox_id: sandbox.id().to_string(),
            metrics: of_network,
            container_metrics,
        }
    }

    /// `ListMetricDescriptors`.
    ///
    /// # Errors
    /// None.
    pub async fn list_metric_descriptors_cri(
        &self,
        _request: cri::ListMetricDescriptorsRequest,
    ) -> RuntimeResult<cri::ListMetricDescriptorsResponse> {
        Ok(cri::ListMetricDescriptorsResponse { descriptors: metrics::descriptors() })
    }

    // ---- events, and the way to a container -----------------------------------------------------------

    /// An event as `GetContainerEvents` has it, with the statuses at this moment.
    pub fn event_cri(&self, event: &RuntimeEvent) -> cri::ContainerEventResponse {
        let kind = match event.kind {
            RuntimeEventKind::Created => cri::ContainerEventType::ContainerCreatedEvent,
            RuntimeEventKind::Started => cri::ContainerEventType::ContainerStartedEvent,
            RuntimeEventKind::Exited | RuntimeEventKind::OutOfMemory => {
                cri::ContainerEventType::ContainerStoppedEvent
            }
            RuntimeEventKind::Deleted => cri::ContainerEventType::ContainerDeletedEvent,
        };
        let container = self.containers.find(&event.id);
        let of_container = container.as_ref().map(|container| container.sandbox_id());
        let sandbox = self.sandboxes.find(of_container.as_ref().map_or(&event.id, |id| id.as_str()));
        // A container that is gone does not tell its sandbox.
        let sandbox = sandbox.or_else(|| self.sandboxes.newest_of(event.pod.as_ref()?.as_str()));
        // A kubelet passes over an event without a sandbox (`processCRIEvents`), also that of the sandbox's own removal.
        let gone = || cri::PodSandboxStatus {
            id: event.id.to_string(),
            metadata: event.pod.as_ref().map(|uid| cri::PodSandboxMetadata {
                uid: uid.to_string(),
                ..cri::PodSandboxMetadata::default()
            }),
            state: cri::PodSandboxState::SandboxNotready.into(),
            ..cri::PodSandboxStatus::default()
        };
        cri::ContainerEventResponse {
            container_id: event.id.to_string(),
            container_event_type: kind.into(),
            created_at: self.context.now(),
            containers_statuses: sandbox.as_ref().map(|of| self.statuses_of(of)).unwrap_or_default(),
            pod_sandbox_status: Some(sandbox.map_or_else(gone, |sandbox| sandbox.status())),
        }
    }

    /// The statuses of a sandbox's containers, but for half-made ones.
    pub(super) fn statuses_of(&self, sandbox: &Sandbox) -> Vec<cri::ContainerStatus> {
        let logs = sandbox.config().log_directory;
        let all = self.containers.of_sandbox(sandbox.id());
        let made = all.iter().filter(|of| of.phase() != ContainerPhase::Making);
        made.map(|of| status::status(of.id().as_str(), &of.record.borrow(), &logs)).collect()
    }

    /// The directory with the files of a running container's monitor: `attach`, `control`.
    ///
    /// # Errors
    /// It does not exist, or does not run.
    pub fn monitor_dir(&self, container: &str) -> RuntimeResult<std::path::PathBuf> {
        let container = self.containers.existing(container)?;
        if container.phase() != ContainerPhase::Running {
            return Err(not_now(format!("container {} does not run", container.id())));
        }
        Ok(self.containers.run_dir(container.id()))
    }

    /// The network namespace of a ready sandbox; `None` when its network is the node's.
    ///
    /// # Errors
    /// It does not exist, or is not ready.
    pub fn network_namespace(&self, sandbox: &str) -> RuntimeResult<Option<std::path::PathBuf>> {
        let sandbox = self.sandboxes.existing(sandbox)?;
        if !sandbox.is_ready() {
            return Err(not_now(format!("sandbox {} is not ready", sandbox.id())));
        }
        let is_node = super::pod_config::namespaces(&sandbox.config()).host_network;
        Ok((!is_node).then(|| self.sandboxes.run_dir(sandbox.id()).join(namespaces::NET)))
    }

    /// The OCI runtime of a running container, with its arguments before the command: for `exec` with streams.
    ///
    /// # Errors
    /// It does not exist, or does not run.
    pub fn oci_runtime_of(&self, container: &str) -> RuntimeResult<(std::path::PathBuf, Vec<String>)> {
        let container = self.containers.existing(container)?;
        if container.phase() != ContainerPhase::Running {
            return Err(not_now(format!("container {} does not run", container.id())));
        }
        let runtime = self.containers.oci_runtime(&container)?;
        Ok((runtime.path().to_owned(), runtime.global_arguments()))
    }
}

/// Follows the ends of containers, until it is dropped.
pub(super) fn follow_ends(containers: &Rc<Containers>, sandboxes: &Rc<Sandboxes>) -> smol::Task<()> {
    containers.context.task("ends of containers", ends::follow(containers.clone(), sandboxes.clone()))
}

/// The error of a node that has no inotify instance left.
pub(super) fn no_inotify(error: &std::io::Error) -> crate::cri::RuntimeError {
    failed(format!("inotify: {error}; raise fs.inotify.max_user_instances"))
}
