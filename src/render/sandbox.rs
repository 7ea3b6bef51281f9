//! A pod sandbox's CRI configuration (`generatePodSandboxConfig`) and the pod's hosts file.

use super::{NodeSettings, RenderError};
use crate::model::DesiredPod;
use crate::proto::runtime::v1::PodSandboxConfig;

/// The configuration for `RunPodSandbox`.
pub fn sandbox_config(
    _node: &NodeSettings,
    _pod: &DesiredPod,
    _attempt: u32,
) -> Result<PodSandboxConfig, RenderError> {
    Ok(PodSandboxConfig::default())
}

/// The content of the pod's hosts file (`ensureHostsFile`). `host` is the node's own `/etc/hosts`, which pods on
/// the host's network get.
pub fn hosts_file(
    _node: &NodeSettings,
    _pod: &DesiredPod,
    _pod_ips: &[Box<str>],
    _host: &str,
) -> Result<String, RenderError> {
    Ok(String::new())
}
