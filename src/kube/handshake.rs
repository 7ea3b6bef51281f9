//! TLS client configuration of the API client for the fuzz targets, which run the handshake in memory.

use futures_rustls::rustls::client::ClientConfig;

use super::access::Loaded;
use super::kubeconfig::ServerUrl;
use super::tls::{self, Protocol};

/// Client configuration for a server whose certificate these authorities (PEM) have signed.
///
/// # Errors
/// A message: the authorities cannot be parsed.
pub fn config(authorities: &[u8]) -> Result<ClientConfig, String> {
    let server = ServerUrl { host: "gw".to_owned(), port: 6443, prefix: String::new() };
    let authorities = Some(authorities.to_vec());
    let with = Loaded {
        server,
        server_name: None,
        authorities,
        intermediates: None,
        certificate: None,
        token: None,
    };
    tls::config(&with, Protocol::Http2)
}
