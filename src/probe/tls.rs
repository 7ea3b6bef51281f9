//! TLS without certificate verification, for HTTPS probes and lifecycle hooks (Go's `InsecureSkipVerify`, as in the
//! kubelet).
//!
//! Differs from the kubelet, which uses HTTP/2 with a server that selects it: HTTP/1.1 only.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use futures_rustls::pki_types::ServerName;
use futures_rustls::rustls::client::{ClientConfig, Resumption};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{Error, InvalidMessage};

use super::http::NOT_TLS;
use crate::limits::{TLS_DATA_BYTES_MAX, TLS_HANDSHAKE_BYTES_MAX};
use crate::stream::{Duplex, Socket, Stream, stream};
use crate::tls::AnyCertificate;

impl Duplex for TlsStream<Socket<TcpStream>> {}

/// TLS 1.2 or 1.3 over this connection to `host`. No sessions are cached: probes are seconds apart.
///
/// # Errors
/// A sentence: the handshake failed.
pub(super) async fn connect(host: &str, socket: Socket<TcpStream>) -> Result<Stream, String> {
    let failed = |error: &Error| format!("tls: {error}");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    let name = name(host, &socket);
    // rustls buffers input until a message is complete, up to 64 KiB.
    socket.set_ration(TLS_HANDSHAKE_BYTES_MAX);
    let connected =
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(|error| match tls_error(
            &error,
        ) {
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => NOT_TLS.to_owned(),
            Some(error) => failed(error),
            None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
            None if error.raw_os_error().is_some() => error.kind().to_string(),
            None => error.to_string(),
        })?;
    connected.get_ref().0.set_ration(TLS_DATA_BYTES_MAX);
    Ok(stream(connected))
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|error| error.downcast_ref())
}

/// The server name to send; one that is not a DNS name is not sent.
fn name(host: &str, socket: &Socket<TcpStream>) -> ServerName<'static> {
    let unnamed = || socket.get_ref().peer_addr().map_or(IpAddr::from([0; 4]), |peer| peer.ip()).into();
    ServerName::try_from(host.to_owned()).unwrap_or_else(|_| unnamed())
}
