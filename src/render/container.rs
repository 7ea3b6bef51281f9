//! A container's CRI configuration (`generateContainerConfig`).

use std::rc::Rc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};

use super::{NodeSettings, RenderError};
use crate::cri::Image;
use crate::model::{ContainerId, ContainerKind, DesiredPod};
use crate::proto::runtime::v1::{ContainerConfig, Mount};

/// Where environment variables come from besides the pod. A node without an API server has [`NoSources`].
///
/// An `Err` is the message shown in the status, in the kubelet's words: `configmaps "x" not found`.
pub trait EnvSources {
    /// The ConfigMap; `Ok(None)` when it does not exist.
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Rc<ConfigMap>>, String>;
    /// The Secret; `Ok(None)` when it does not exist.
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<Rc<Secret>>, String>;
    /// All services the node knows.
    fn services(&self) -> Rc<[Service]>;
    /// The text of `path` in the pod's volume (`fileKeyRef`); `Ok(None)` when the file does not exist.
    fn volume_file(&self, volume: &str, path: &str) -> Result<Option<Rc<str>>, String>;
}

/// No ConfigMaps, Secrets, services or env files.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSources;

impl EnvSources for NoSources {
    fn config_map(&self, _: &str, _: &str) -> Result<Option<Rc<ConfigMap>>, String> {
        Ok(None)
    }

    fn secret(&self, _: &str, _: &str) -> Result<Option<Rc<Secret>>, String> {
        Ok(None)
    }

    fn services(&self) -> Rc<[Service]> {
        Rc::from([])
    }

    fn volume_file(&self, _: &str, _: &str) -> Result<Option<Rc<str>>, String> {
        Ok(None)
    }
}

/// What a container's configuration is made from, besides the node.
#[derive(Clone, Copy)]
pub struct ContainerInput<'a> {
    /// The pod it belongs to.
    pub pod: &'a DesiredPod,
    /// Which list of the spec it stands in.
    pub kind: ContainerKind,
    /// Its place in that list.
    pub index: usize,
    /// How often it was started before; the attempt in its metadata and the number of its log.
    pub restart_count: u32,
    /// What the runtime calls the image (`PullImage`'s or `ImageStatus`'s answer).
    pub image_ref: &'a str,
    /// The image as the runtime describes it, for its user; `None` counts as uid 0.
    pub image: Option<&'a Image>,
    /// The pod's addresses, from its sandbox.
    pub pod_ips: &'a [Box<str>],
    /// Volume mounts, resolved to host paths by the caller.
    pub mounts: &'a [Mount],
    /// The host file the termination message is written to; the caller makes it.
    /// `None` mounts none.
    pub termination_log: Option<&'a str>,
    /// The target of an ephemeral container's `targetContainerName`, when it runs.
    pub target: Option<&'a ContainerId>,
    /// Annotations of device plugins, overridden by the kubelet's own.
    pub annotations: &'a [(Box<str>, Box<str>)],
    /// Where environment variables come from.
    pub env: &'a dyn EnvSources,
}

/// True when the container gets the pod's hosts file mounted at `/etc/hosts` (`shouldMountHostsFile`, and no
/// volume of its own stands there): the caller writes it first (`hosts_file`, `paths::hosts_file_path`).
pub fn mounts_hosts_file(input: &ContainerInput<'_>) -> bool {
    !input.pod_ips.is_empty()
}

/// The configuration for `CreateContainer`.
pub fn container_config(
    _node: &NodeSettings,
    _input: &ContainerInput<'_>,
) -> Result<ContainerConfig, RenderError> {
    Ok(ContainerConfig::default())
}
