//! The files of the node's certificate: the key of the one that is asked for, the one in force, and the kubeconfig that names
//! it. I/O, blocking.

use std::fmt;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use futures_rustls::pki_types::PrivateKeyDer;
use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::sign::CertifiedKey;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _};

use crate::cluster::csr::{self, Purpose};
use crate::filesystem::read_linked;
use crate::filesystem::replace;
use crate::limits::KUBECONFIG_BYTES_MAX;
use crate::model::Wall;
use crate::tls::certificates;
use crate::x509::{self, Validity};

/// Where a certificate is with its key, in the folder of both (the kubelet's name).
pub(crate) fn current(folder: &Path, purpose: Purpose) -> PathBuf {
    folder.join(format!("{}-current.pem", purpose.files()))
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct CertificateSpec {
    pub(crate) purpose: Purpose,
    /// Where its files are.
    pub(crate) folder: PathBuf,
    pub(crate) node: Box<str>,
    /// The names and addresses that it is for, of a server's.
    pub(crate) names: Vec<String>,
}

impl CertificateSpec {
    /// The key of a certificate that is asked for, until there is an answer (the kubelet's name).
    fn pending(&self) -> PathBuf {
        self.folder.join(format!("{}.key.tmp", self.purpose.files()))
    }

    /// Where the certificate in force is with its key, unless a kubeconfig names another place.
    pub(crate) fn current(&self) -> PathBuf {
        current(&self.folder, self.purpose)
    }

    /// What a file begins with that is for these names.
    pub(crate) fn mark(&self) -> String {
        let mut names = vec![csr::user(&self.node)];
        names.extend(self.names.iter().cloned());
        format!("# {}\n", names.join(" "))
    }
}

/// Whether what begins with that mark is for these names: a machine that has no address yet goes by its name.
pub(crate) fn is_for(pem: &[u8], mark: &str, has_addresses: bool) -> bool {
    let rest = pem.strip_prefix(mark.trim_end().as_bytes());
    rest.is_some_and(|rest| rest.starts_with(b"\n") || !has_addresses && rest.starts_with(b" "))
}

/// From when until when a certificate holds that stands before its key.
///
/// # Errors
/// It is none, or not for this key.
pub(crate) fn usable(pem: &[u8]) -> Result<Validity, String> {
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "has no key".to_owned())?;
    fits(pem, key).map_err(|unfit| unfit.to_string())
}

/// How a certificate does not go with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    NoCertificate,
    OtherKey,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCertificate => "is no certificate",
            Self::OtherKey => "is for another key",
        })
    }
}

/// From when until when the first certificate there holds, which is for that key.
fn fits(pem: &[u8], key: PrivateKeyDer<'static>) -> Result<Validity, Unusable> {
    let chain = certificates(pem).ok_or(Unusable::NoCertificate)?;
    let validity = chain.first().and_then(|first| x509::validity(first)).ok_or(Unusable::NoCertificate)?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|_| Unusable::OtherKey)?;
    Ok(validity)
}

/// A request for a certificate, and the key that stays here.
pub(crate) struct Request {
    pub(crate) purpose: Purpose,
    /// The node that it is for.
    mark: String,
    /// The name of its object.
    pub(crate) name: String,
    pub(crate) pkcs10: Vec<u8>,
    key: KeyPair,
}

/// The request of this node: with the key that is there, so that it is the same after a restart, else with a new one.
pub(crate) fn request(wanted: &CertificateSpec) -> Result<Request, String> {
    let CertificateSpec { purpose, folder, node, names } = wanted;
    let path = wanted.pending();
    let fail = |why: String| format!("{}: {why}", path.display());
    let mark = wanted.mark();
    let found = read_linked(&path, KUBECONFIG_BYTES_MAX).ok();
    // One for other names was asked for under those.
    let found = found.filter(|pem| pem.starts_with(mark.as_bytes()));
    let found = found.and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).ok());
    let key = if let Some(key) = found.and_then(|key| KeyPair::try_from(&key).ok()) {
        key
    } else {
        let key = KeyPair::generate().map_err(|error| fail(error.to_string()))?;
        let text = format!("{mark}{}", x509::pem("PRIVATE KEY", key.serialized_der()));
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        replace(&path, &beside(&path), text.as_bytes()).map_err(|error| fail(error.to_string()))?;
        key
    };
    let mut params = CertificateParams::new(names.clone()).map_err(|error| fail(error.to_string()))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, csr::GROUP);
    params.distinguished_name.push(DnType::CommonName, csr::user(node));
    let made = params.serialize_request(&key).map_err(|error| fail(error.to_string()))?;
    let name = csr::name(&key.subject_public_key_info());
    Ok(Request { purpose: *purpose, mark, name, pkcs10: made.der().to_vec(), key })
}

/// The next request has another key.
pub(crate) fn forget(wanted: &CertificateSpec) -> Result<(), String> {
    let path = wanted.pending();
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{}: {error}", path.display())),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// When the certificate that was issued holds.
///
/// # Errors
/// It is none for this key, or has ended by `now`.
pub(crate) fn check(pem: &[u8], request: &Request, now: Wall) -> Result<Validity, String> {
    let name = &request.name;
    let key = PrivateKeyDer::Pkcs8(request.key.serialize_der().into());
    let validity = fits(pem, key).map_err(|unfit| match unfit {
        Unusable::NoCertificate => {
            format!("what was issued for {name} is no certificate; see to the cluster's signer")
        }
        Unusable::OtherKey => {
            format!(
                "the certificate that was issued for {name} is for another key; see to the cluster's signer"
            )
        }
    })?;
    if validity.until <= now {
        return Err(format!(
            "the certificate that was issued for {name} has ended on {}, or this machine's clock is ahead; see to the clock",
            validity.until
        ));
    }
    Ok(validity)
}

/// Puts certificate and key in force at `current`: as a link to a file with the date, as the kubelet has it, or in place where
/// there is a file. The file of the one before goes: whoever reads it has it.
pub(crate) fn install(current: &Path, pem: &[u8], request: &Request, now: Wall) -> Result<(), String> {
    let folder = current.parent().unwrap_or(Path::new("/"));
    let mut text = [request.mark.as_bytes(), pem].concat();
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend_from_slice(x509::pem("PRIVATE KEY", request.key.serialized_der()).as_bytes());
    let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
    let beside = beside(current);
    let before = match std::fs::symlink_metadata(current) {
        Ok(found) if !found.is_symlink() => {
            return replace(current, &beside, &text).map_err(|error| at(current, error));
        }
        Ok(_) => std::fs::read_link(current).ok().map(|target| folder.join(target)),
        Err(_) => None,
    };
    let dated = folder.join(csr::file_name(request.purpose, now));
    replace(&dated, &self::beside(&dated), &text).map_err(|error| at(&dated, error))?;
    let link = || {
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        symlink(dated.file_name().unwrap_or_default(), &beside)?;
        std::fs::rename(&beside, current)?;
        std::fs::File::open(folder)?.sync_all()
    };
    link().map_err(|error| at(current, error))?;
    let is_ours = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.parent() == Some(folder) && name.is_some_and(|name| csr::is_file_name(request.purpose, name))
    };
    if let Some(before) = before.filter(|before| *before != dated && is_ours(before))
        && let Err(error) = std::fs::remove_file(&before)
    {
        log::debug!("{}: {error}", before.display());
    }
    Ok(())
}

/// Writes a kubeconfig, for root alone.
pub(crate) fn write_kubeconfig(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    replace(path, &beside(path), text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn signed(request: &Request) -> Vec<u8> {
        let made = CertificateParams::default().self_signed(&request.key).unwrap();
        x509::pem("CERTIFICATE", made.der()).into_bytes()
    }

    #[test]
    fn a_key_is_kept_until_it_is_forgotten_and_what_is_issued_takes_the_place_of_what_was() {
        let folder = std::env::temp_dir().join(format!("smolet-certificates-{}", std::process::id()));
        let wanted = |node: &str, names: &[&str]| CertificateSpec {
            purpose: if names.is_empty() { Purpose::Client } else { Purpose::Server },
            folder: folder.clone(),
            node: node.into(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
        };
        let request = |node: &str| super::request(&wanted(node, &[])).unwrap();
        let first = request("gw");
        assert_eq!(request("gw").name, first.name, "the same after a restart");
        let serving = super::request(&wanted("gw", &["gw", "10.0.0.2"])).unwrap();
        assert_ne!(serving.name, first.name, "another file");
        assert_eq!(super::request(&wanted("gw", &["gw", "10.0.0.2"])).unwrap().name, serving.name);
        assert_ne!(super::request(&wanted("gw", &["gw", "10.0.0.3"])).unwrap().name, serving.name);
        let (with, without) = (wanted("gw", &["gw", "10.0.0.2"]).mark(), wanted("gw", &["gw"]).mark());
        assert!(is_for(with.as_bytes(), &with, true) && !is_for(without.as_bytes(), &with, true));
        assert!(is_for(with.as_bytes(), &without, false) && !is_for(with.as_bytes(), &without, true));
        assert!(!is_for(b"# system:node:gw gw2\n", &without, false));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&folder.join("kubelet-client.key.tmp")), 0o600);
        let second = request("other");
        assert_ne!(second.name, first.name, "another node");
        forget(&wanted("gw", &[])).unwrap();
        forget(&wanted("gw", &[])).unwrap();
        assert_ne!(request("other").name, second.name);

        let now = Wall::of_civil(2026, 11, 23, 0);
        check(&signed(&first), &first, now).unwrap();
        assert!(check(&signed(&second), &first, now).unwrap_err().contains("another key"));
        assert!(check(b"", &first, now).unwrap_err().contains("no certificate"));
        assert!(check(&signed(&first), &first, Wall(i64::MAX)).unwrap_err().contains("clock"));

        let at = wanted("gw", &[]).current();
        install(&at, &signed(&first), &first, now).unwrap();
        let target = std::fs::read_link(&at).unwrap();
        assert_eq!(target, Path::new("kubelet-client-2026-11-23-00-00-00.pem"));
        assert_eq!(mode(&at), 0o600);
        let later = Wall::of_civil(2026, 11, 24, 0);
        install(&at, &signed(&second), &second, later).unwrap();
        assert!(!folder.join(target).exists(), "the one before is gone");
        let text = std::fs::read(&at).unwrap();
        assert_eq!(PrivateKeyDer::from_pem_slice(&text).unwrap().secret_der(), second.key.serialized_der());
        // Where there is a file and no link, it stays one.
        let plain = folder.join("node.pem");
        std::fs::write(&plain, "x").unwrap();
        install(&plain, &signed(&first), &first, later).unwrap();
        assert!(std::fs::symlink_metadata(&plain).unwrap().is_file());
        assert_eq!(mode(&plain), 0o600);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
