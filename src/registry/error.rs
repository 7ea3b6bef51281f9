//! Why a pull failed, in containerd's words where they are known. PURE.

use std::fmt;
use std::time::Duration;

use crate::limits::REGISTRY_RETRY_AFTER_MAX;

/// Why a pull, or a request of it, failed. No variant holds credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryError {
    /// The image's name is not valid.
    Reference(String),
    /// The configuration of hosts, or a file that it names, cannot be used.
    Config(String),
    /// The registry does not have it.
    NotFound(String),
    /// The credentials are missing or not sufficient.
    Denied(String),
    /// The registry cannot be connected to: a later pull may succeed.
    Unreachable(String),
    /// The registry does not answer as it should, or not now: a later pull may succeed.
    Unavailable {
        /// The cause.
        why: String,
        /// The wait that the registry asks for.
        after: Option<Duration>,
    },
    /// What the registry has cannot be used on this node, or is not what its digest says.
    Content(String),
    /// The image store failed.
    Store(String),
}

/// Result of a pull or a request.
pub type RegistryResult<T> = Result<T, RegistryError>;

impl RegistryError {
    pub(super) fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { why: why.into(), after: None }
    }

    /// True when the host asks for a longer wait than a pull makes: it is not asked again by this one.
    pub(super) fn asks_for_long_wait(&self) -> bool {
        match self {
            Self::Unavailable { after, .. } => after.is_some_and(|after| after > REGISTRY_RETRY_AFTER_MAX),
            Self::Reference(_)
            | Self::Config(_)
            | Self::NotFound(_)
            | Self::Denied(_)
            | Self::Unreachable(_)
            | Self::Content(_)
            | Self::Store(_) => false,
        }
    }

    /// True when another host may have what this one has not.
    pub(super) fn is_of_host(&self) -> bool {
        match self {
            Self::NotFound(_)
            | Self::Denied(_)
            | Self::Unreachable(_)
            | Self::Unavailable { .. }
            | Self::Content(_)
            | Self::Config(_) => true,
            Self::Reference(_) | Self::Store(_) => false,
        }
    }

    /// The same, with what was done before its message.
    #[must_use]
    pub(super) fn while_doing(self, what: &str) -> Self {
        let with = |why: String| format!("{what}: {why}");
        match self {
            Self::Reference(why) => Self::Reference(with(why)),
            Self::Config(why) => Self::Config(with(why)),
            Self::NotFound(why) => Self::NotFound(with(why)),
            Self::Denied(why) => Self::Denied(with(why)),
            Self::Unreachable(why) => Self::Unreachable(with(why)),
            Self::Unavailable { why, after } => Self::Unavailable { why: with(why), after },
            Self::Content(why) => Self::Content(with(why)),
            Self::Store(why) => Self::Store(with(why)),
        }
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reference(why)
            | Self::Config(why)
            | Self::NotFound(why)
            | Self::Denied(why)
            | Self::Unreachable(why)
            | Self::Unavailable { why, .. }
            | Self::Content(why)
            | Self::Store(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RegistryError {}
