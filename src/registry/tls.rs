//! TLS to registries: the system's authorities and those of the host, and its client certificate.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_rustls::TlsConnector;
use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use futures_rustls::rustls::client::{ClientConfig, Resumption};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{CertificateError, Error, InvalidMessage, RootCertStore};

use super::{Environment, TlsOptions};
use crate::filesystem::read_linked;
use crate::limits::{
    PEER_HANDSHAKE_BYTES_MAX, REGISTRY_CONFIG_BYTES_MAX, REGISTRY_ROOTS_BYTES_MAX, REGISTRY_ROOTS_FILES_MAX,
};
use crate::stream::{Socket, Stream, stream};
use crate::tls::{AnyCertificate, certificates, server_verifier};

/// The files in which systems keep their authorities, as Go looks for them: Debian, Fedora, SUSE, Alpine.
const ROOT_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Directories with a file for each authority.
const ROOT_DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

/// The first file that is read: where it is says whom a read may wait for.
pub(super) fn first_file(options: &TlsOptions, environment: &Environment) -> PathBuf {
    let own = options.authorities.first().or(environment.certificates_file.as_ref());
    own.cloned().unwrap_or_else(|| PathBuf::from(ROOT_FILES[0]))
}

/// The configuration for hosts with these options. I/O, blocking.
///
/// # Errors
/// A sentence: a file cannot be used, or there are no authorities. No part of a key is in it.
pub(super) fn config(options: &TlsOptions, environment: &Environment) -> Result<ClientConfig, String> {
    let verifier = if options.skip_verify {
        Arc::new(AnyCertificate) as Arc<_>
    } else {
        let mut roots = system_roots(environment)?;
        for path in &options.authorities {
            let pem = read(path, REGISTRY_CONFIG_BYTES_MAX)?;
            let found = certificates(&pem)
                .ok_or_else(|| format!("{}: holds no certificate in PEM", path.display()))?;
            for certificate in found {
                roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        if roots.is_empty() {
            return Err("this machine has no certificate authorities: install the package ca-certificates, or name a \
                        file in SSL_CERT_FILE"
                .to_owned());
        }
        server_verifier(roots)?
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match options.client.first() {
        Some((path, key)) => {
            let chain = certificates(&read(path, REGISTRY_CONFIG_BYTES_MAX)?)
                .ok_or_else(|| format!("{}: holds no certificate in PEM", path.display()))?;
            let key_of = |pem: &[u8]| PrivateKeyDer::from_pem_slice(pem).ok();
            let parsed = key_of(&read(key, REGISTRY_CONFIG_BYTES_MAX)?)
                .ok_or_else(|| format!("{}: holds no private key in PEM", key.display()))?;
            builder
                .with_client_auth_cert(chain, parsed)
                .map_err(|error| format!("{} and {}: {error}", path.display(), key.display()))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    read_linked(path, bytes_max).map_err(|error| format!("{}: {error}", path.display()))
}

fn system_roots(environment: &Environment) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // An authority that cannot be parsed is left out, as in Go: bundles hold old ones.
    let mut add = |pem: &[u8]| {
        let found = CertificateDer::pem_slice_iter(pem).flatten();
        roots.add_parsable_certificates(found).0 > 0
    };
    if let Some(path) = &environment.certificates_file {
        add(&read(path, REGISTRY_ROOTS_BYTES_MAX).map_err(|why| format!("SSL_CERT_FILE: {why}"))?);
    } else if environment.certificates_directories.is_empty() {
        for path in ROOT_FILES {
            match read_linked(Path::new(path), REGISTRY_ROOTS_BYTES_MAX) {
                Ok(pem) => {
                    if add(&pem) {
                        return Ok(roots);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{path}: {error}")),
            }
        }
    }
    let directories = if environment.certificates_directories.is_empty() {
        ROOT_DIRECTORIES.iter().map(PathBuf::from).collect()
    } else {
        environment.certificates_directories.clone()
    };
    if environment.certificates_file.is_some() && environment.certificates_directories.is_empty() {
        return Ok(roots);
    }
    for directory in directories {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.take(REGISTRY_ROOTS_FILES_MAX).flatten() {
            if let Ok(pem) = read_linked(&entry.path(), REGISTRY_CONFIG_BYTES_MAX) {
                add(&pem);
            }
        }
    }
    Ok(roots)
}

/// TLS 1.2 or 1.3 over this connection to `host`.
///
/// # Errors
/// A sentence with the remedy: the handshake failed.
pub(super) async fn connect(
    config: Arc<ClientConfig>,
    host: &str,
    socket: Socket<TcpStream>,
) -> Result<Stream, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} is no name of a host"))?;
    socket.set_ration(PEER_HANDSHAKE_BYTES_MAX);
    let connected = TlsConnector::from(config).connect(name, socket).await;
    let connected =
        connected.map_err(|error| error_of(&error).map_or_else(|| format!("tls: {error}"), shown))?;
    connected.get_ref().0.end_ration();
    Ok(stream(connected))
}

/// The error of TLS in one of a stream.
pub(super) fn error_of(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|error| error.downcast_ref())
}

/// The cause, and the remedy.
pub(super) fn shown(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority; name its authority as ca in \
             the host's hosts.toml, or as ca_file in registries.yaml"
                .to_owned()
        }
        Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "tls: the certificate is not valid yet: this machine's clock is behind; it is tried again".to_owned()
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "tls: the certificate has expired, or this machine's clock is ahead".to_owned()
        }
        // CaUsedAsEndEntity above all: of an authority that this machine does not have.
        Error::InvalidCertificate(CertificateError::Other(why)) => format!(
            "tls: failed to verify certificate: {why}; name one that has signed itself as ca in the host's hosts.toml, or as \
             ca_file in registries.yaml"
        ),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "http: server gave HTTP response to HTTPS client; name the host as http://… in its hosts.toml or \
             registries.yaml if it has no TLS"
                .to_owned()
        }
        Error::AlertReceived(alert) => format!(
            "tls: the server refuses the connection ({alert:?}); it may want a client certificate, which hosts.toml names \
             as client"
        ),
        error => format!("tls: {error}"),
    }
}
