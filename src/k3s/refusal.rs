//! Why a k3s server did not do what it was asked for: what follows from that, and the sentence for the log. PURE.

use std::path::Path;

use super::token::TOKEN_FILE;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The supervisor is unreachable, or its certificate is not valid.
    Unreachable(String),
    /// No known authority has signed the supervisor's certificate.
    Untrusted,
    /// The HTTP status, and the response's message.
    Status(u16, String),
}

impl Refused {
    /// The server is not there or not ready: another server of the cluster may answer.
    pub(super) fn is_of_one_server(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Untrusted | Self::Status(500.., _))
    }

    /// The cluster may not know the certificate that was shown, or it is another name's, which counts before the token
    /// (`GetNodeAuthValidator`): the token alone may do (as k3s).
    pub(super) fn may_be_of_certificate(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Status(400 | 401, _))
    }

    /// A server before 1.27, which takes no signing requests of nodes and sends a key with the certificate.
    pub(super) fn is_of_older_server(&self) -> bool {
        matches!(self, Self::Status(404 | 405, _))
    }

    /// A sentence with the remedy. `password` is the file with the node's password.
    pub(super) fn explain(&self, host: &str, node: &str, password: &Path) -> String {
        match self {
            Self::Unreachable(why) => why.clone(),
            Self::Untrusted => format!(
                "k3s server {host}: no authority that this node knows has signed its certificate: it is of another cluster, or the \
                 cluster's authority was replaced (k3s certificate rotate-ca); for the new authority give --token-file the token \
                 of {TOKEN_FILE} anew, whose hash names it"
            ),
            Self::Status(401, _) => format!(
                "k3s server {host} does not take the token; take it anew from {TOKEN_FILE}, or make one: k3s token create"
            ),
            Self::Status(403, _) => format!(
                "k3s server {host} knows node {node} by another password than that of {}: another machine has this name (give \
                 another one: --node-name), or the file was lost (kubectl -n kube-system delete secret \
                 {node}.node-password.k3s)",
                password.display()
            ),
            Self::Status(404, _) => {
                format!("{host} is no k3s server; --server names its address, https://HOST:6443")
            }
            Self::Status(503, said) => format!("k3s server {host} is not ready yet ({said})"),
            Self::Status(code, said) => format!("k3s server {host} answers {code}: {said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_consequence_and_its_remedy() {
        let status = |code| Refused::Status(code, "said".to_owned());
        let unreachable = Refused::Unreachable("k3s server s: no answer within 30 s".to_owned());
        // Refusal | another server | by the token alone | an older server | the sentence.
        for (refused, other, token, older, sentence) in [
            (unreachable, true, true, false, "no answer within 30 s"),
            (Refused::Untrusted, true, false, false, "give --token-file the token of the server's"),
            (status(401), false, true, false, "does not take the token; take it anew"),
            (status(403), false, false, false, "knows node gw by another password than that of /pw: another"),
            (status(404), false, false, true, "s is no k3s server; --server names its address"),
            (status(405), false, false, true, "k3s server s answers 405: said"),
            (status(400), false, true, false, "k3s server s answers 400: said"),
            (status(500), true, false, false, "k3s server s answers 500: said"),
            (status(503), true, false, false, "k3s server s is not ready yet (said)"),
            (status(u16::MAX), true, false, false, "answers 65535"),
        ] {
            let found =
                (refused.is_of_one_server(), refused.may_be_of_certificate(), refused.is_of_older_server());
            assert_eq!(found, (other, token, older), "{refused:?}");
            let said = refused.explain("s", "gw", Path::new("/pw"));
            assert!(said.contains(sentence), "{refused:?}: {said}");
        }
    }
}
