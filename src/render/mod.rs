//! Pod → CRI sandbox and container configuration. PURE: what to write is decided here, from the pod and from
//! facts the caller gathered; nothing here reads a file, a clock or the environment.
//!
//! [`sandbox_config`] follows `generatePodSandboxConfig`, [`container_config`] follows
//! `Kubelet.GenerateRunContainerOptions` and `generateContainerConfig`.

mod container;
mod error;
mod node;
mod sandbox;

pub use container::{ContainerInput, EnvSources, NoSources, container_config, mounts_hosts_file};
pub use error::RenderError;
pub use node::{CgroupDriver, CgroupVersion, NodeSettings, ResolvConf, SwapBehavior};
pub use sandbox::{hosts_file, sandbox_config};
