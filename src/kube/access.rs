//! Address and credentials of a connection, read from the kubeconfig's files for each one, so that a renewed certificate or token
//! is used.

use std::path::{Path, PathBuf};

use futures_rustls::pki_types::CertificateDer;
use futures_rustls::pki_types::pem::PemObject as _;

use super::kubeconfig::{Kubeconfig, Material, ServerUrl, Trust};
use super::{Authenticated, KubeError, Others};
use crate::blocking::unblock_apart;
use crate::filesystem::read_linked;
use crate::limits::KUBECONFIG_BYTES_MAX;
use crate::x509::{self, Validity};

/// The kubeconfig's path.
#[derive(Clone, Debug)]
pub struct Access {
    path: PathBuf,
    /// The kubeconfig is written once the node has joined.
    awaited: bool,
    /// Further addresses of the cluster's API.
    others: Others,
    /// Addresses at which a server was authenticated.
    authenticated: Authenticated,
}

/// Address and credentials of a connection. Holds secrets, and is dropped when the connection is established.
pub(crate) struct Loaded {
    pub(crate) server: ServerUrl,
    pub(crate) server_name: Option<String>,
    /// The certificate authorities in PEM; `None`: the server's certificate is not verified.
    pub(crate) authorities: Option<Vec<u8>>,
    /// Certificates in PEM that are not trusted, but may lead from the server's to an authority; what is none counts as absent.
    pub(crate) intermediates: Option<Vec<u8>>,
    /// Certificate and key in PEM.
    pub(crate) certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) token: Option<Vec<u8>>,
}

impl Access {
    /// The kubeconfig at `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        let (others, authenticated) = (Others::default(), Authenticated::default());
        Self { path: path.to_owned(), awaited: false, others, authenticated }
    }

    /// The same, for a kubeconfig that this agent writes.
    pub fn awaited(path: &Path) -> Self {
        Self { awaited: true, ..Self::new(path) }
    }

    /// The same servers, with the credentials of the kubeconfig at `path`.
    #[must_use]
    pub(crate) fn with_kubeconfig(&self, path: &Path) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    /// Further addresses of the same cluster's API: empty until they are set.
    pub(crate) fn others(&self) -> &Others {
        &self.others
    }

    /// Addresses of the cluster's servers whose certificate was verified.
    pub(crate) fn authenticated(&self) -> &Authenticated {
        &self.authenticated
    }

    /// Reads the kubeconfig and its files on a thread.
    pub(crate) async fn load(&self) -> Result<Loaded, KubeError> {
        let (path, awaited) = (self.path.clone(), self.awaited);
        let loaded = unblock_apart(move || {
            let at = |why: &str| format!("kubeconfig {}: {why}", path.display());
            if awaited && is_missing(&path) {
                let why = "is written when the cluster has signed the certificate that is asked for";
                return Err(KubeError::NotJoined(at(why)));
            }
            load(&path).map_err(|why| KubeError::Config(at(&why)))
        });
        loaded.await.map_err(|error| KubeError::Config(error.to_string()))?
    }

    /// The certificate authorities, else the server's address.
    pub(super) async fn trust(&self) -> Result<Vec<u8>, KubeError> {
        let Loaded { server, authorities, .. } = self.load().await?;
        Ok(authorities.unwrap_or_else(|| format!("{}:{}", server.host, server.port).into_bytes()))
    }
}

/// The kind of a kubeconfig's credential.
#[derive(Debug)]
pub(crate) enum Credential {
    /// The kubeconfig does not exist.
    NoKubeconfig,
    /// A certificate in this file, which does not exist.
    Gone(PathBuf),
    /// A certificate and its key, both in this file.
    InFile(PathBuf, Validity),
    /// A certificate in two files, or in the kubeconfig itself.
    Elsewhere(Validity),
    /// A token, or none.
    NoCertificate,
}

/// Reads the kubeconfig and its certificate. I/O, blocking.
///
/// # Errors
/// A message.
pub(crate) fn credential(path: &Path) -> Result<Credential, String> {
    let named = |path: &Path, why: String| format!("{}: {why}", path.display());
    if is_missing(path) {
        return Ok(Credential::NoKubeconfig);
    }
    let bytes = read(path).map_err(|error| named(path, error.to_string()))?;
    let config = Kubeconfig::parse(&bytes).map_err(|why| named(path, why))?;
    let Some((certificate, key)) = config.certificate else { return Ok(Credential::NoCertificate) };
    let one_file = certificate == key;
    let (pem, file) = match certificate {
        Material::Inline(pem) => (pem, None),
        Material::File(file) => {
            let file = folder(path).join(file);
            if is_missing(&file) {
                return Ok(Credential::Gone(file));
            }
            (read(&file).map_err(|error| named(&file, error.to_string()))?, Some(file))
        }
    };
    let validity = CertificateDer::from_pem_slice(&pem).ok().and_then(|der| x509::validity(&der));
    let at = file.as_deref().unwrap_or(path);
    let validity = validity.ok_or_else(|| named(at, "holds no certificate in PEM".to_owned()))?;
    Ok(match file.filter(|_| one_file) {
        Some(file) => Credential::InFile(file, validity),
        None => Credential::Elsewhere(validity),
    })
}

/// The text of a kubeconfig for the server of the one at `bootstrap`, with the certificate and the key in `file`. I/O, blocking.
///
/// # Errors
/// A message.
pub(crate) fn joined(bootstrap: &Path, file: &Path) -> Result<String, String> {
    let named = |why: String| format!("bootstrap kubeconfig {}: {why}", bootstrap.display());
    let config =
        Kubeconfig::parse(&read(bootstrap).map_err(|error| named(error.to_string()))?).map_err(named)?;
    Ok(config.by_certificate(folder(bootstrap), file))
}

/// The text of a kubeconfig for that server, with the files of its `authorities` and of the client's certificate and key.
pub(crate) fn kubeconfig_of(server: ServerUrl, authorities: &Path, file: &Path) -> String {
    let trust = Trust::Authorities(Material::File(authorities.to_owned()));
    let config = Kubeconfig { server, trust, server_name: None, certificate: None, token: None };
    config.by_certificate(Path::new("/"), file)
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn load(path: &Path) -> Result<Loaded, String> {
    let config = Kubeconfig::parse(&read(path).map_err(|error| error.to_string())?)?;
    let dir = folder(path);
    let bytes = |material: Material| match material {
        Material::Inline(bytes) => Ok(bytes),
        Material::File(file) => {
            let file = dir.join(file);
            read(&file).map_err(|error| format!("{}: {error}", file.display()))
        }
    };
    Ok(Loaded {
        server: config.server,
        server_name: config.server_name,
        authorities: match config.trust {
            Trust::Authorities(material) => Some(bytes(material)?),
            Trust::AnyCertificate => None,
        },
        intermediates: None,
        certificate: match config.certificate {
            Some((certificate, key)) => Some((bytes(certificate)?, bytes(key)?)),
            None => None,
        },
        token: config.token.map(bytes).transpose()?,
    })
}

/// Reads a file with the kubeconfig's size limit. I/O, blocking.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    read_linked(path, KUBECONFIG_BYTES_MAX)
}
