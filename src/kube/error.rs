//! What goes wrong with a request, by who is to blame. PURE.

use std::fmt;

/// Why a request did not do what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeError {
    /// The server is not there, or did not answer in time: nothing is known of what it did. Try again.
    Unreachable(String),
    /// The server answered with a `Status`, or with an HTTP status alone.
    Refused {
        /// The HTTP status.
        code: u16,
        /// `Status.reason` (`NotFound`, `AlreadyExists`, `Expired` ...); empty when there is none.
        reason: Box<str>,
        /// `Status.message`, cut.
        message: Box<str>,
    },
    /// What came is no answer of an API server's.
    Protocol(String),
    /// The kubeconfig, or a file that it names, cannot be used.
    Config(String),
}

impl KubeError {
    /// The server answered with that HTTP status.
    pub fn is(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }

    /// The object is not there.
    pub fn is_not_found(&self) -> bool {
        self.is(404)
    }

    /// What the watch began from is too old (`Expired`, or `Gone` of old servers).
    pub fn is_expired(&self) -> bool {
        self.is(410)
    }

    /// The server is there and refused this request for good: the same once more gives the same answer.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { code: 400..=499, .. })
            && !self.is(408)
            && !self.is(409)
            && !self.is(410)
            && !self.is(429)
            && !self.is(401)
            && !self.is(403)
    }
}

impl fmt::Display for KubeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Protocol(why) | Self::Config(why) => f.write_str(why),
            Self::Refused { code: 401, message, .. } => write!(
                f,
                "the API server does not know this node ({message}); check the client certificate or token of the \
                 kubeconfig"
            ),
            Self::Refused { code, reason, message } if message.is_empty() => {
                write!(f, "the API server answers {code} {reason}")
            }
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for KubeError {}
