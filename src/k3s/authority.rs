//! Compares a server's certificate authority with the hash in the token (`clientaccess.hashCA`). PURE.

use sha2::{Digest as _, Sha256};

use crate::text::hex;
use crate::tls::certificates;
use crate::x509;

/// The part of `pem`, the server's `/cacerts`, that a token with that `hash` pins: all of it when the hash is that of the whole,
/// else the one certificate with that hash.
///
/// Of several certificates k3s hashes the root above the first and then trusts them all. Here only the root is trusted: the
/// others need not be signed by it. The server sends the intermediates.
///
/// # Errors
/// The hash matches neither.
pub(crate) fn pinned(pem: &[u8], hash: &str) -> Result<Vec<u8>, String> {
    let found = certificates(pem)
        .ok_or_else(|| "its /cacerts holds no certificate in PEM; it is no k3s server".to_owned())?;
    if digest(pem) == hash {
        return Ok(pem.to_vec());
    }
    if found.len() > 1
        && let Some(root) = found.iter().find(|certificate| digest(certificate) == hash)
    {
        return Ok(x509::pem("CERTIFICATE", root).into_bytes());
    }
    Err(format!(
        "its authority is not the one of the token (hash {} and not {hash}): the token is of another cluster, or somebody in \
         between answers; take the token anew from the server's /var/lib/rancher/k3s/server/node-token",
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
        assert!(pinned(both.as_bytes(), &whole(&first)).is_err());
        assert!(pinned(b"404 page not found", &whole("")).unwrap_err().contains("no k3s server"));
    }
}
