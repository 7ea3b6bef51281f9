//! TLS to an API server without a connection, for the fuzz targets: they speak it in memory.

use futures_rustls::rustls::client::ClientConfig;

use super::access::Loaded;
use super::kubeconfig::ServerUrl;
use super::tls::{self, Protocol};

/// What a connection to a server that these authorities (PEM) have signed is made with.
///
/// # Errors
/// A sentence: the authorities are none.
pub fn config(authorities: &[u8]) -> Result<ClientConfig, String> {
    let server = ServerUrl { host: "gw".to_owned(), port: 6443, prefix: String::new() };
    let authorities = Some(authorities.to_vec());
    let with = Loaded { server, server_name: None, authorities, certificate: None, token: None };
    tls::config(&with, Protocol::Http2)
}
