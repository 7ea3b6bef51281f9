//! Pod → CRI sandbox and container configuration. PURE: what to write is decided here, from the pod and from
//! facts the caller gathered; nothing here reads a file, a clock or the environment.
//!
//! [`sandbox_config`] follows `generatePodSandboxConfig`, [`container_config`] follows
//! `Kubelet.GenerateRunContainerOptions` and `generateContainerConfig`.

pub mod cgroup_name;
mod container;
mod dns;
mod env;
mod env_file;
mod error;
mod expand;
mod hostname;
pub mod labels;
mod node;
pub mod paths;
pub mod qos;
pub mod quantity;
pub mod resources;
mod sandbox;
mod security;
mod services;

pub use container::{ContainerInput, container_config, mounts_hosts_file};
pub use dns::pod_dns;
pub use env::{EnvSources, Environment, NoSources, environment, sorted_pod_ips};
pub use error::RenderError;
pub use expand::expand;
pub use hostname::hosts_file;
pub use node::{CgroupDriver, CgroupVersion, NodeSettings, ResolvConf, SwapBehavior};
pub use sandbox::sandbox_config;
