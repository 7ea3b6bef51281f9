//! Compares a server's certificate authority with the hash in the token (`clientaccess.hashCA`). PURE.

use sha2::{Digest as _, Sha256};

use super::token::TOKEN_FILE;
use crate::text::hex;
use crate::tls::certificates;
use crate::x509;

/// The part of `pem`, the server's `/cacerts`, that a token with that `hash` pins: all of it when the hash is that of the whole,
/// else the one certificate with that hash.
///
/// Of several certificates k3s hashes the root above the first and then trusts them all. Here only the root is trusted: the
/// others need not be signed by it, and serve as intermediates.
///
/// Differs from k3s: a token from before the authority was replaced (`k3s certificate rotate-ca`) still pins the former one, when
/// the server lists it beside the new one. It was hashed as the file that it was then.
///
/// # Errors
/// The hash matches neither.
pub(crate) fn pinned(pem: &[u8], hash: &str) -> Result<Vec<u8>, String> {
    let found = certificates(pem)
        .ok_or_else(|| "its /cacerts holds no certificate in PEM; it is no k3s server".to_owned())?;
    if digest(pem) == hash {
        return Ok(pem.to_vec());
    }
    if found.len() > 1 {
        for certificate in &found {
            let file = x509::pem("CERTIFICATE", certificate).into_bytes();
            if digest(certificate) == hash || digest(&file) == hash {
                return Ok(file);
            }
        }
    }
    Err(format!(
        "its authority is not the one of the token (hash {} and not {hash}): the token is of another cluster, or from before \
         the cluster's authority was replaced (k3s certificate rotate-ca), or somebody in between answers; take the token \
         anew from {TOKEN_FILE}",
        digest(pem)
    ))
}

/// SHA-256 in hexadecimal digits.
fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_certificate_is_known_by_its_file_and_several_by_their_root_alone() {
        let (first, root) = (x509::pem("CERTIFICATE", b"first"), x509::pem("CERTIFICATE", b"root"));
        let whole = |text: &str| digest(text.as_bytes());
        assert_eq!(whole(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(pinned(first.as_bytes(), &whole(&first)), Ok(first.clone().into_bytes()));
        let why = pinned(first.as_bytes(), &digest(b"first")).unwrap_err();
        assert!(why.contains("of another cluster"), "one is known by its file alone: {why}");
        let both = format!("{first}{root}");
        assert_eq!(pinned(both.as_bytes(), &digest(b"root")), Ok(root.clone().into_bytes()));
        assert_eq!(pinned(both.as_bytes(), &whole(&both)), Ok(both.clone().into_bytes()));
        // It was the only one when the token was made.
        assert_eq!(pinned(both.as_bytes(), &whole(&first)), Ok(first.into_bytes()));
        let why = pinned(both.as_bytes(), &digest(b"another")).unwrap_err();
        assert!(why.contains("rotate-ca") && why.contains("server/agent-token"), "{why}");
        assert!(pinned(b"404 page not found", &whole("")).unwrap_err().contains("no k3s server"));
    }
}
