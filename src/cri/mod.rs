//! The container runtime interface: the [`Runtime`] trait in model types, and its gRPC implementation.
//!
//! `convert` (PURE) converts received messages to model types; `client` makes the calls; `events` follows the runtime's
//! event streams; `store` imports images into containerd's own store, and knows its layers; `shims` finds its shims; `choice` says which kind of runtime the node has; `endpoint` finds the socket; `termination` reads
//! containers' termination messages. Configuration is sent as the CRI's own messages (see `crate::proto`).

pub mod choice;
pub mod client;
pub mod convert;
pub mod endpoint;
pub mod events;
pub mod operations;
pub mod requests;
pub mod shims;
pub mod store;
pub mod termination;

use std::fmt;
use std::time::Duration;

use crate::model::{
    ContainerId, ContainerItem, ContainerStatus, PodKey, PodUid, SandboxId, SandboxItem, SandboxStatus,
    Seconds, Wall,
};
use crate::proto::runtime::v1::{
    AttachRequest, AuthConfig, ContainerConfig, ExecRequest, LinuxContainerResources, PodSandboxConfig,
    PortForwardRequest,
};

pub use client::GrpcRuntime;
pub use events::{EventService, RuntimeEvent, RuntimeEventKind};
pub use store::ImageStore;

pub use crate::model::runtime::{Image, RuntimeCondition, RuntimeHandler, RuntimeStatus};

/// How far the pull of an image is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// The image, as it was asked for.
    pub image: Box<str>,
    /// Bytes of its layers that have arrived, those that were there included.
    pub received_bytes: u64,
    /// Bytes of all its layers.
    pub size_bytes: u64,
    /// Layers that are in the store.
    pub layers_done: usize,
    /// All its layers; 0 until its manifest is known.
    pub layers: usize,
}

impl fmt::Display for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, received_bytes, size_bytes, layers_done, layers } = self;
        if *layers == 0 {
            return write!(f, "image {image}: reading its manifest");
        }
        let megabytes = |bytes: u64| format!("{}.{}", bytes / 1_000_000, bytes % 1_000_000 / 100_000);
        let (received, size) = (megabytes(*received_bytes), megabytes(*size_bytes));
        write!(f, "image {image}: {received} of {size} MB, {layers_done} of {layers} layers")
    }
}

/// CRI `VersionResponse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd`, `cri-o` ...
    pub runtime_name: Box<str>,
    /// The runtime's own version.
    pub runtime_version: Box<str>,
    /// `v1`.
    pub runtime_api_version: Box<str>,
}

/// The runtime's support for CRI `Mount.image` (KEP-4639).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageVolumes {
    /// It mounts images.
    pub whole: bool,
    /// It mounts a directory of an image (`image_sub_path`).
    pub in_part: bool,
}

/// The releases from which on a runtime mounts images, and directories of them. The CRI reports neither, and a runtime
/// ignores fields that it does not know: older ones see a mount without a source and fail, those in between mount the whole
/// image instead of the directory. Sources: containerd `container_image_mount.go` (v2.1.0, v2.2.0), CRI-O `mountImage`
/// (v1.31.0, v1.33.0).
const IMAGE_VOLUMES_SINCE: [(&str, Release, Release); 2] =
    [("containerd", (2, 1), (2, 2)), ("cri-o", (1, 31), (1, 33))];

/// From this release on CRI-O stops a container by `lifecycle.stopSignal`. It never reports it (`container_status.go` leaves
/// `ContainerStatus.stop_signal` empty).
const CRIO_STOP_SIGNAL_SINCE: Release = (1, 33);

/// Major and minor number.
type Release = (u32, u32);

impl RuntimeVersion {
    /// Support for image volumes. An unknown runtime or version is assumed to support everything: its response to the call
    /// decides.
    pub fn image_volumes(&self) -> ImageVolumes {
        let since = IMAGE_VOLUMES_SINCE.iter().find(|(name, ..)| **name == *self.runtime_name);
        match (since, self.release()) {
            (Some((_, whole, in_part)), Some(version)) => {
                ImageVolumes { whole: version >= *whole, in_part: version >= *in_part }
            }
            (None, _) | (_, None) => ImageVolumes { whole: true, in_part: true },
        }
    }

    /// The runtime stops containers by `lifecycle.stopSignal`, though the status of a container has none.
    pub fn hides_stop_signal(&self) -> bool {
        &*self.runtime_name == "cri-o"
            && self.release().is_some_and(|version| version >= CRIO_STOP_SIGNAL_SINCE)
    }

    /// `v2.1.4-k3s1` → 2, 1; `None` for a version of another form.
    fn release(&self) -> Option<Release> {
        let text = self.runtime_version.strip_prefix('v').unwrap_or(&self.runtime_version);
        let (major, rest) = text.split_once('.')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        Some((major.parse().ok()?, rest[..end].parse().ok()?))
    }
}

/// CRI `FilesystemUsage` of an image file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// The mount point.
    pub mountpoint: Box<str>,
    /// Bytes used by images.
    pub used_bytes: u64,
    /// Inodes used by images.
    pub inodes_used: u64,
    /// Time of the measurement, on the runtime's wall clock.
    pub timestamp: Wall,
}

/// CRI `ContainerStats`: resource usage of a running container. Values that the runtime does not report are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStats {
    /// The container.
    pub id: ContainerId,
    /// From its labels; `None` for a container outside pods.
    pub pod: Option<PodKey>,
    /// CPU time since its start.
    pub cpu: Option<CpuSample>,
    /// Current use in billionths of a core, averaged over a time of the runtime's choice.
    pub nano_cores: Option<u64>,
    /// Memory that cannot be reclaimed without writing (`working_set_bytes`), else the total.
    pub memory_bytes: Option<u64>,
    /// The total (`usage_bytes`), else the working set.
    pub memory_usage_bytes: Option<u64>,
    /// Bytes and inodes of its writable layer.
    pub writable_layer: Option<(u64, u64)>,
}

/// CRI `CpuUsage`: cumulative CPU time at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    /// On the runtime's wall clock.
    pub at: Wall,
    /// Sum over all cores (`usage_core_nano_seconds`).
    pub nanos: u64,
}

/// CRI `ExecSyncResponse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOutput {
    /// At most `limits::EXEC_OUTPUT_BYTES_MAX`; truncated beyond it.
    pub stdout: Vec<u8>,
    /// At most `limits::EXEC_OUTPUT_BYTES_MAX`; truncated beyond it.
    pub stderr: Vec<u8>,
    /// The command's exit code.
    pub exit_code: i32,
}

/// A request to the runtime's streaming server.
#[derive(Clone, Debug)]
pub enum StreamRequest {
    /// Run a command in a container.
    Exec(ExecRequest),
    /// Attach to a container's main process.
    Attach(AttachRequest),
    /// Connect to a port of a pod.
    PortForward(PortForwardRequest),
}

/// Why a call to the runtime failed. The class says how to handle it; the message names the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeError {
    /// The connection is lost or could not be made: try again when it is back. Whether the call was executed is unknown.
    Unavailable(String),
    /// No response before the call's deadline: the runtime may still be executing it.
    DeadlineExceeded(String),
    /// gRPC `NOT_FOUND`: the sandbox, container or image does not exist.
    NotFound(String),
    /// gRPC `UNIMPLEMENTED`: this runtime does not implement the call.
    Unimplemented(String),
    /// Every other status of the runtime: gRPC code and message unchanged.
    Failed {
        /// gRPC status code.
        code: i32,
        /// The runtime's message.
        message: String,
    },
    /// The response violates the protocol or one of our limits.
    Protocol(String),
}

impl fmt::Display for RuntimeError {
    /// The runtime's message: it is shown in pod statuses as by the kubelet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(message)
            | Self::DeadlineExceeded(message)
            | Self::NotFound(message)
            | Self::Unimplemented(message)
            | Self::Failed { message, .. }
            | Self::Protocol(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for RuntimeError {}

/// Result of a call to the runtime.
pub type RuntimeResult<T> = Result<T, RuntimeError>;

/// The core's interface to a container runtime: the part of CRI v1's `RuntimeService` and `ImageService` that smolet uses.
/// Every call but a pull has a deadline and may be dropped at any await.
///
/// List calls pass on one decoded item at a time, so memory depends on what the caller keeps.
#[allow(async_fn_in_trait, reason = "all tasks run on one thread, so no Send bound is wanted")]
pub trait Runtime {
    /// `Version`.
    async fn version(&self) -> RuntimeResult<RuntimeVersion>;
    /// `Status`: the runtime's conditions and features.
    async fn status(&self) -> RuntimeResult<RuntimeStatus>;
    /// The pause image, from the verbose `Status`; `None` when the runtime does not report it (containerd from 2.0 on pins
    /// that image instead).
    async fn sandbox_image(&self) -> RuntimeResult<Option<String>> {
        Ok(None)
    }

    /// `RunPodSandbox`. `handler` is the runtime handler, empty for the default.
    async fn run_pod_sandbox(&self, config: &PodSandboxConfig, handler: &str) -> RuntimeResult<SandboxId>;
    /// `StopPodSandbox`; idempotent. `pod` is the sandbox's pod: stops wait for turns, which are limited per pod.
    async fn stop_pod_sandbox(&self, pod: &PodUid, id: &SandboxId) -> RuntimeResult<()>;
    /// `RemovePodSandbox`; idempotent, removes the sandbox's containers too.
    async fn remove_pod_sandbox(&self, id: &SandboxId) -> RuntimeResult<()>;
    /// `PodSandboxStatus`; `NotFound` when it does not exist.
    async fn pod_sandbox_status(&self, id: &SandboxId) -> RuntimeResult<SandboxStatus>;
    /// `ListPodSandbox`, of one pod or of all.
    async fn list_pod_sandboxes(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(SandboxItem),
    ) -> RuntimeResult<()>;

    /// `CreateContainer`.
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> RuntimeResult<ContainerId>;
    /// `StartContainer`.
    async fn start_container(&self, id: &ContainerId) -> RuntimeResult<()>;
    /// `StopContainer`: the stop signal, `timeout`, then SIGKILL; idempotent. `pod` as above.
    async fn stop_container(&self, pod: &PodUid, id: &ContainerId, timeout: Seconds) -> RuntimeResult<()>;
    /// `RemoveContainer`; idempotent.
    async fn remove_container(&self, id: &ContainerId) -> RuntimeResult<()>;
    /// `ContainerStatus`; `NotFound` when it does not exist.
    async fn container_status(&self, id: &ContainerId) -> RuntimeResult<ContainerStatus>;
    /// `UpdateContainerResources`: changes a running container's resources; a value of 0 leaves that resource unchanged.
    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: LinuxContainerResources,
    ) -> RuntimeResult<()>;
    /// `UpdatePodSandboxResources`: announces a sandbox's new resources, which the runtime may refuse. Ignored by runtimes
    /// that do not need it.
    async fn update_pod_sandbox_resources(
        &self,
        _id: &SandboxId,
        _resources: LinuxContainerResources,
        _overhead: LinuxContainerResources,
    ) -> RuntimeResult<()> {
        Ok(())
    }
    /// `ListContainers`, of one pod or of all.
    async fn list_containers(
        &self,
        pod: Option<&PodUid>,
        each: &mut dyn FnMut(ContainerItem),
    ) -> RuntimeResult<()>;
    /// `ListContainerStats`, of all running containers.
    async fn list_container_stats(&self, each: &mut dyn FnMut(ContainerStats)) -> RuntimeResult<()>;
    /// `ExecSync`; `timeout` zero = none, as the CRI has it.
    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> RuntimeResult<ExecOutput>;
    /// `Exec`, `Attach` or `PortForward`: the URL on the runtime's streaming server, valid once and for a short time.
    async fn streaming_url(&self, request: StreamRequest) -> RuntimeResult<String>;
    /// `UpdateRuntimeConfig`: the pod CIDRs of this node, separated by commas. Ignored by runtimes that do not need them.
    async fn update_runtime_config(&self, _pod_cidr: &str) -> RuntimeResult<()> {
        Ok(())
    }
    /// `ReopenContainerLog`.
    async fn reopen_container_log(&self, id: &ContainerId) -> RuntimeResult<()>;

    /// `ImageStatus`; `None` when the image is not present.
    async fn image_status(&self, image: &str) -> RuntimeResult<Option<Image>>;
    /// `ListImages`.
    async fn list_images(&self, each: &mut dyn FnMut(Image)) -> RuntimeResult<()>;
    /// `PullImage`: the image's reference. No deadline; drop the future to cancel it.
    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> RuntimeResult<Box<str>>;
    /// The pulls that are under way, and how far they are. Runtimes behind a socket do not say.
    fn pulls(&self) -> Vec<PullProgress> {
        Vec::new()
    }
    /// `RemoveImage`; idempotent.
    async fn remove_image(&self, image: &str) -> RuntimeResult<()>;
    /// `ImageFsInfo`.
    async fn image_fs_info(&self) -> RuntimeResult<Vec<FilesystemUsage>>;

    /// Follows the events of `service` until it ends the stream (`Ok`) or the connection is lost. No deadline; drop the
    /// future to end it. `each` must not block: a runtime may stall when its events are not read.
    async fn follow_events(
        &self,
        service: EventService,
        each: &mut dyn FnMut(RuntimeEvent),
    ) -> RuntimeResult<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_a_pull_is_one_line() {
        let pull = PullProgress {
            image: "nginx:1".into(),
            received_bytes: 12_399_999,
            size_bytes: 45_000_000,
            layers_done: 2,
            layers: 7,
        };
        assert_eq!(pull.to_string(), "image nginx:1: 12.3 of 45.0 MB, 2 of 7 layers");
    }

    #[test]
    fn runtimes_mount_images_since_a_release_and_parts_of_them_since_a_later_one() {
        for (name, version, whole, in_part) in [
            ("containerd", "1.6.20~ds1", false, false),
            ("containerd", "v1.7.28", false, false),
            ("containerd", "v2.0.7", false, false),
            ("containerd", "v2.1.0", true, false),
            ("containerd", "v2.1.5-k3s1", true, false),
            ("containerd", "2.2.0-rc.1", true, true),
            ("containerd", "v2.10.0", true, true),
            ("containerd", "v3.0.0", true, true),
            ("cri-o", "1.30.14", false, false),
            ("cri-o", "1.31.0", true, false),
            ("cri-o", "1.33", true, true),
            // Unknown versions.
            ("containerd", "", true, true),
            ("containerd", "main", true, true),
            ("containerd", "2.x", true, true),
            ("other", "0.1.0", true, true),
        ] {
            let of = RuntimeVersion {
                runtime_name: name.into(),
                runtime_version: version.into(),
                runtime_api_version: "v1".into(),
            };
            assert_eq!(of.image_volumes(), ImageVolumes { whole, in_part }, "{name} {version}");
            assert_eq!(of.hides_stop_signal(), name == "cri-o" && version == "1.33", "{name} {version}");
        }
    }
}
