//! Errors of requests, by the party at fault. PURE.

use std::fmt;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeError {
    /// The server is unreachable or did not answer in time: whether the request took effect is unknown. Retry.
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
    /// The response is not that of an API server.
    Protocol(String),
    /// The kubeconfig, or a file that it references, cannot be used.
    Config(String),
    /// No known authority has signed the server's certificate.
    Untrusted(String),
    /// The kubeconfig does not exist yet: this agent writes it when the node has joined. No failure, and nothing to log.
    NotJoined(String),
}

impl KubeError {
    /// The server answered with the HTTP status `wanted`.
    pub fn is(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is(404)
    }

    /// The resource version is too old (`Expired`, or `Gone` of old servers), or one that the server has not reached: its data were
    /// restored from a backup (`IsTooLargeResourceVersion`).
    pub fn is_expired(&self) -> bool {
        let is_too_large = |message: &str| message.contains("Too large resource version");
        self.is(410) || matches!(self, Self::Refused { code: 504, message, .. } if is_too_large(message))
    }

    /// The server rejected this request for good: a retry gives the same response.
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
            Self::Unreachable(why)
            | Self::Protocol(why)
            | Self::Config(why)
            | Self::Untrusted(why)
            | Self::NotJoined(why) => f.write_str(why),
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
