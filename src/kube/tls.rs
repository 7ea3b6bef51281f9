//! TLS to an API server: its certificate is verified against the kubeconfig's authorities, the client certificate is sent if
//! there is one. The address of a server whose certificate was verified is `authenticated` from then on.

use std::net::TcpStream;
use std::sync::Arc;

use futures_rustls::TlsConnector;
use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use futures_rustls::rustls::client::{ClientConfig, Resumption};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{CertificateError, Error, RootCertStore};

use super::access::Loaded;
use super::{Authenticated, KubeError};
use crate::limits::PEER_HANDSHAKE_BYTES_MAX;
use crate::stream::{Socket, Stream, stream};
use crate::tls::{AnyCertificate, server_verifier_by_way_of};

/// Protocol negotiated by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1, and protocols that it is upgraded to.
    Http1,
    /// HTTP/2 only.
    Http2,
}

impl Protocol {
    /// Its ALPN name.
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// TLS 1.2 or 1.3 over this connection, of which at most `ration` bytes can be read after the handshake, if one is given.
///
/// # Errors
/// `Config` when certificates or keys cannot be used; `Unreachable` or `Untrusted` when the handshake fails, with the remedy.
pub(crate) async fn connect(
    with: &Loaded,
    socket: Socket<TcpStream>,
    protocol: Protocol,
    ration: Option<usize>,
    authenticated: &Authenticated,
) -> Result<Stream, KubeError> {
    let config = config(with, protocol).map_err(KubeError::Config)?;
    let name = with.server_name.as_deref().unwrap_or(&with.server.host);
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| KubeError::Config(format!("kubeconfig: server: {name:?} is no name of a host")))?;
    socket.set_ration(PEER_HANDSHAKE_BYTES_MAX);
    let connected = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
    let connected = connected.map_err(|error| {
        let inner = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
        match inner {
            Some(error @ Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                KubeError::Untrusted(failed(error))
            }
            Some(error) => KubeError::Unreachable(failed(error)),
            None => KubeError::Unreachable(format!("TLS: {error}")),
        }
    })?;
    if with.authorities.is_some()
        && let Ok(address) = connected.get_ref().0.get_ref().peer_addr()
    {
        authenticated.add(address.ip());
    }
    match ration {
        Some(bytes) => connected.get_ref().0.set_ration(bytes),
        None => connected.get_ref().0.end_ration(),
    }
    if protocol == Protocol::Http2 && connected.get_ref().1.alpn_protocol() != Some(protocol.name()) {
        let host = &with.server.host;
        return Err(KubeError::Protocol(format!(
            "{host} does not speak HTTP/2: it is no API server, or something in between takes HTTP/2 away"
        )));
    }
    Ok(stream(connected))
}

/// The cause, and the remedy.
fn failed(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the server's certificate is not signed by the certificate-authority of the kubeconfig, or of the token: it is \
             another server, or its authority is another one now"
                .to_owned()
        }
        Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "the server's certificate is not valid yet: this machine's clock is behind; it is tried again when the \
             clock is right"
                .to_owned()
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the server's certificate has expired, or this machine's clock is ahead".to_owned()
        }
        Error::AlertReceived(alert) => format!(
            "the server refuses the connection ({alert:?}): the client certificate of the kubeconfig may have expired"
        ),
        error => format!("TLS: {error}"),
    }
}

pub(super) fn config(with: &Loaded, protocol: Protocol) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    let verifier = match &with.authorities {
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, "certificate-authority")? {
                roots.add(certificate).map_err(|error| format!("certificate-authority: {error}"))?;
            }
            let others = with.intermediates.as_deref().and_then(crate::tls::certificates).unwrap_or_default();
            server_verifier_by_way_of(roots, others)
                .map_err(|error| format!("certificate-authority: {error}"))?
        }
        None => Arc::new(AnyCertificate),
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &with.certificate {
        Some((certificate, key)) => {
            let chain = certificates(certificate, "client-certificate")?;
            // An error about a key is reported without any part of it.
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|_| "client-key: holds no private key in PEM")?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("client-certificate: {error}"))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.name().to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn certificates(pem: &[u8], field: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    crate::tls::certificates(pem).ok_or_else(|| format!("{field}: holds no certificate in PEM"))
}
