//! Errors of rendering a pod or container, in the kubelet's wording. PURE.

use std::fmt;

/// A configuration that cannot be rendered. The message is the kubelet's: it is shown in the pod's status, where users and
/// tools search for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderError {
    /// The sandbox's configuration (`ErrConfigPodSandbox`).
    Sandbox(String),
    /// A container's configuration (`ErrCreateContainerConfig`): retried at the next sync, since a missing ConfigMap may
    /// appear or the manifest may change.
    Container(String),
}

impl RenderError {
    /// The waiting reason in the status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "ConfigPodSandboxError",
            Self::Container(_) => "CreateContainerConfigError",
        }
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(message) | Self::Container(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for RenderError {}
