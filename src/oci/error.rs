//! Why a container has no spec. PURE.

use std::borrow::Cow;
use std::fmt;

/// Why a spec cannot be made. The caller names the container or the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// A value that cannot be: the owner of the pod or of the image mends it.
    Invalid {
        /// The field of the CRI's message or of the image's configuration, or the file.
        field: Cow<'static, str>,
        /// What is wrong, and what to do.
        why: Cow<'static, str>,
    },
    /// The machine or its OCI runtime does not have it.
    Unsupported {
        /// The field of the CRI's message.
        field: Cow<'static, str>,
        /// What the machine lacks, and what to do.
        why: Cow<'static, str>,
    },
    /// More than a bound of `limits` allows.
    TooMany {
        /// What there is too much of.
        field: Cow<'static, str>,
        /// The bound.
        max: usize,
    },
}

impl SpecError {
    pub(super) fn invalid(field: impl Into<Cow<'static, str>>, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }

    pub(super) fn unsupported(
        field: impl Into<Cow<'static, str>>,
        why: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Unsupported { field: field.into(), why: why.into() }
    }

    /// An error when there are more than so many.
    pub(super) fn at_most(field: &'static str, count: usize, max: usize) -> Result<(), Self> {
        if count > max { Err(Self::TooMany { field: field.into(), max }) } else { Ok(()) }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { field, why } => write!(f, "{field}: {why}"),
            Self::Unsupported { field, why } => write!(f, "{field} is not supported here: {why}"),
            Self::TooMany { field, max } => write!(f, "{field}: at most {max} are allowed"),
        }
    }
}

impl std::error::Error for SpecError {}
