//! Why something failed in the image store. PURE.

use std::fmt;
use std::io;

use super::digest::Digest;

/// Why an operation on the image store failed.
#[derive(Debug)]
pub enum ImageStoreError {
    /// The file system failed.
    Io {
        /// What was done, and to what.
        what: String,
        /// The cause.
        error: io::Error,
    },
    /// A layer is hostile, damaged or of a form that is not supported: pulling it again does not help.
    Layer {
        /// Its digest.
        layer: Digest,
        /// The entry of its archive; empty when it is not about an entry.
        entry: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// Bytes are not those of their digest: they are damaged on the way or at their source, and pulled again.
    Digest {
        /// The digest that was wanted.
        wanted: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// A manifest, a configuration or an archive is not usable.
    Invalid {
        /// The image or the archive.
        what: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The image does not exist.
    NotFound(String),
    /// A bound of the store is reached.
    Full(String),
}

impl ImageStoreError {
    pub(super) fn io(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), error: error.into() }
    }

    pub(super) fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), reason: reason.into() }
    }

    /// True when the disk, or what this user may have of it, is full.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Io { error, .. } => {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Layer { .. }
            | Self::Digest { .. }
            | Self::Invalid { .. }
            | Self::NotFound(_)
            | Self::Full(_) => false,
        }
    }

    /// True when the same content fails again: retrying needs other content first.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Layer { .. } | Self::Invalid { .. } => true,
            Self::Io { .. } | Self::Digest { .. } | Self::NotFound(_) | Self::Full(_) => false,
        }
    }
}

impl fmt::Display for ImageStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, error } => write!(f, "{what}: {error}"),
            Self::Layer { layer, entry, reason } if entry.is_empty() => write!(f, "layer {layer}: {reason}"),
            Self::Layer { layer, entry, reason } => {
                write!(f, "layer {layer}: entry {}: {reason}", crate::text::quoted(entry))
            }
            Self::Digest { wanted, found } => {
                write!(f, "content of {wanted} has the digest {found}: it is damaged; pull or copy it again")
            }
            Self::Invalid { what, reason } => write!(f, "{what}: {reason}"),
            Self::NotFound(image) => write!(f, "image {} is not in the store", crate::text::quoted(image)),
            Self::Full(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ImageStoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::Layer { .. }
            | Self::Digest { .. }
            | Self::Invalid { .. }
            | Self::NotFound(_)
            | Self::Full(_) => None,
        }
    }
}

/// Result of an operation on the image store.
pub type ImageStoreResult<T> = Result<T, ImageStoreError>;
