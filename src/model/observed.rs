//! The pod as the runtime reports it: the kubelet's `kubecontainer.PodStatus`, compact. PURE.

use std::rc::Rc;

use super::device::ContainerDevice;
use super::ids::{ContainerId, PodKey, SandboxId};
use super::sizes::Sizes;
use super::time::{Mono, Wall};

/// The state of one pod in the runtime at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// The pod's addresses, from the newest sandbox when it is ready and not on the host's network.
    pub ips: Vec<Box<str>>,
    /// Newest first: attempt descending, then creation time descending, then id.
    pub sandboxes: Vec<SandboxStatus>,
    /// All containers of the pod in all sandboxes, newest first; lookup by name takes the first entry.
    pub containers: Vec<ContainerStatus>,
}

/// CRI `PodSandboxState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SandboxState {
    /// `SANDBOX_READY`.
    Ready,
    /// `SANDBOX_NOTREADY`.
    NotReady,
}

/// CRI `NamespaceMode` of a sandbox's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceMode {
    /// The pod has its own.
    Pod,
    /// Each container has its own.
    Container,
    /// The node's.
    Node,
    /// Another container's.
    Target,
}

/// CRI `PodSandboxNetworkStatus`. Its absence is not the same as an empty `ip`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxNetwork {
    /// Empty when the network plugin reported none.
    pub ip: Box<str>,
    /// Further addresses (dual stack).
    pub additional_ips: Vec<Box<str>>,
}

/// CRI `PodSandboxStatus`, the fields that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxStatus {
    /// The sandbox's id.
    pub id: SandboxId,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// Ready or not.
    pub state: SandboxState,
    /// When it was created, by the runtime's wall clock.
    pub created_at: Wall,
    /// `linux.namespaces.options.network`; `None` when the runtime reported no options (counts as `Pod`).
    pub network_namespace: Option<NamespaceMode>,
    /// `None` when the runtime reported no network at all.
    pub network: Option<SandboxNetwork>,
}

/// CRI `ContainerState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerState {
    /// `CONTAINER_CREATED`, the message's zero value.
    #[default]
    Created,
    /// `CONTAINER_RUNNING`.
    Running,
    /// `CONTAINER_EXITED`.
    Exited,
    /// `CONTAINER_UNKNOWN`.
    Unknown,
}

/// CRI `ContainerUser` of a container on Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    /// Numeric user id of the first process.
    pub uid: i64,
    /// Numeric group id of the first process.
    pub gid: i64,
    /// Its supplementary groups.
    pub supplemental_groups: Vec<i64>,
}

/// Labels and annotations that smolet and the kubelet write on a container and read back (`labels.go`: `labeledContainerInfo`,
/// `annotatedContainerInfo`). They are enough to stop a container properly when its pod is no longer known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMeta {
    /// `io.kubernetes.container.hash`; 0 when absent.
    pub hash: u64,
    /// `io.kubernetes.container.restartCount`; 0 when absent.
    pub restart_count: u32,
    /// `io.kubernetes.pod.deletionGracePeriod`, seconds.
    pub deletion_grace_period: Option<i64>,
    /// `io.kubernetes.pod.terminationGracePeriod`, seconds.
    pub termination_grace_period: Option<i64>,
    /// `io.kubernetes.container.terminationMessagePath`.
    pub termination_message_path: Option<Box<str>>,
    /// `io.kubernetes.container.terminationMessagePolicy`.
    pub termination_message_policy: Option<Box<str>>,
    /// `io.kubernetes.container.preStopHandler`: a `LifecycleHandler` as JSON.
    pub pre_stop_handler: Option<Box<str>>,
    /// `io.kubernetes.container.ports`: `[]ContainerPort` as JSON (for a preStop hook's named port).
    pub ports: Option<Box<str>>,
    /// The container's actual CPU and memory (the kubelet's `actuated_pods_state`): those of its creation
    /// (`smolet.io/resources`), or of a later resize; `None` on a container of another agent.
    pub sizes: Option<Sizes>,
    /// Its device volumes as they were when it was created (`smolet.io/devices`); `None` = it has none.
    pub devices: Option<Rc<[ContainerDevice]>>,
}

/// CRI `ContainerStatus`, the fields that are used; by default those of an empty message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStatus {
    /// The container's id.
    pub id: ContainerId,
    /// `io.kubernetes.container.name`.
    pub name: Rc<str>,
    /// Its sandbox; empty when the runtime did not report it.
    pub sandbox_id: SandboxId,
    /// Created, running, exited or unknown.
    pub state: ContainerState,
    /// By the runtime's wall clock.
    pub created_at: Wall,
    /// `None` before the start.
    pub started_at: Option<Wall>,
    /// `None` before the end.
    pub finished_at: Option<Wall>,
    /// `finished_at` as a monotonic instant, fixed at first sight (`Now::mono_of`); `None` before the end.
    /// Back-off counts from here.
    pub finished_mono: Option<Mono>,
    /// 0 before the end.
    pub exit_code: i32,
    /// The runtime's reason for the state: `Completed`, `Error`, `OOMKilled` ...
    pub reason: Box<str>,
    /// The termination message, or the runtime's.
    pub message: Box<str>,
    /// The image as requested.
    pub image: Box<str>,
    /// `image_ref`: the resolved image, shown as imageID.
    pub image_ref: Box<str>,
    /// `None` when the runtime does not report it.
    pub user: Option<ContainerUser>,
    /// `resources.linux` as the runtime reports it; `None` when it does not.
    pub resources: Option<Box<ContainerResources>>,
    /// The CRI's number of the stop signal; 0 when the runtime does not report it.
    pub stop_signal: i32,
    /// The name of its termination log on the node; `None` when it has none.
    pub termination_log: Option<Box<str>>,
    /// Labels and annotations of its creation.
    pub meta: ContainerMeta,
}

/// CRI `LinuxContainerResources` of a running container, in the CRI's units; 0 = not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// Microseconds.
    pub cpu_period: i64,
    /// Microseconds per period; -1 = no limit.
    pub cpu_quota: i64,
    /// Relative weight.
    pub cpu_shares: i64,
    /// Bytes.
    pub memory_limit_in_bytes: i64,
}

impl ObservedPod {
    /// The newest container of that name (`PodStatus.FindContainerStatusByName`).
    pub fn container(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| &*c.name == name)
    }

    /// True when part of the pod may still run: a ready sandbox, or a container that is not known to have exited.
    pub fn is_alive(&self) -> bool {
        self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
            || self
                .containers
                .iter()
                .any(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
    }

    /// True without sandboxes and containers.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// An item of CRI `ListPodSandbox`. Decoded one at a time; only what is needed is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxItem {
    /// The sandbox's id.
    pub id: SandboxId,
    /// From `metadata`.
    pub pod: PodKey,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// Ready or not.
    pub state: SandboxState,
    /// By the runtime's wall clock.
    pub created_at: Wall,
    /// The annotation `smolet.io/node`: the node name of the smolet that created the sandbox.
    pub node: Option<Box<str>>,
    /// Created by a kubelet, or an agent with the same labels: `io.kubernetes.pod.*` match `metadata`.
    pub labelled: bool,
    /// A static pod from a directory or a URL: the annotation `kubernetes.io/config.source` is `file` or `http`.
    pub of_file: bool,
}

/// An item of CRI `ListContainers`.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerItem {
    /// The container's id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// From the labels `io.kubernetes.pod.*`; `None` when one is missing (not a pod's container).
    pub pod: Option<PodKey>,
    /// `io.kubernetes.container.name`, else `metadata.name`.
    pub name: Rc<str>,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// Created, running, exited or unknown.
    pub state: ContainerState,
    /// By the runtime's wall clock.
    pub created_at: Wall,
    /// `image_id`, else `image_ref`: the image that the container's root file system uses.
    pub image: Box<str>,
    /// `io.kubernetes.container.hash`; 0 when absent.
    pub hash: u64,
}
