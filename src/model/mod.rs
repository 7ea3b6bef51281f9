//! The common data types: ids, time, the desired pod and the observed pod. PURE.
//!
//! Plain data only: no I/O, no clock, no Kubernetes decision. It uses no other module except the limits.

pub mod annotations;
pub mod backoff;
pub mod debugger;
pub mod desired;
pub mod device;
pub mod hash;
pub mod ids;
pub mod names;
pub mod network;
pub mod nfs;
pub mod object;
pub mod observed;
pub mod packed;
pub mod pod_dirs;
pub mod quantity;
pub mod runtime;
pub mod sizes;

pub mod time;

pub use crate::sorted::{SortedMap, SortedSet};
pub use debugger::Debugger;
pub use desired::{ContainerKind, ContainerSpec, DesiredPod};
pub use device::{ContainerDevice, DeviceNumber};
pub use hash::container_hash;
pub use ids::{ContainerId, PodKey, PodUid, SandboxId};
pub use network::{Network, Transport};
pub use nfs::NfsExport;
pub use object::{Object, ObjectKey, ObjectKind, Objects, Side};
pub use observed::{
    ContainerItem, ContainerMeta, ContainerState, ContainerStatus, ContainerUser, NamespaceMode, ObservedPod,
    SandboxItem, SandboxNetwork, SandboxState, SandboxStatus,
};
pub use sizes::{Resource, Sizes};
pub use time::{Mono, NanoFixed, Now, Seconds, Wall};
