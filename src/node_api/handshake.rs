//! The node's own API without its port, for the fuzz targets, which send it TLS and requests in memory.

use std::path::Path;
use std::sync::Arc;

use futures_rustls::pki_types::CertificateDer;
use futures_rustls::rustls::server::ServerConfig;
use hyper::StatusCode;
use smol::io::{AsyncRead, AsyncWrite};

use super::request::{TEXT, attributes, route};
use super::tls::{Files, Serving};
use crate::config::NodeApi;
use crate::limits::NODE_HEAD_BYTES_MAX;
use crate::server::{self, text};

/// The server configuration of the port.
pub struct Accepting(Serving);

impl Accepting {
    /// With these settings; without a configured certificate one is created below `root`. I/O, blocking.
    ///
    /// # Errors
    /// A message that names the file.
    pub fn new(settings: &NodeApi, root: &Path) -> Result<Self, String> {
        let files = Files::new(settings, root, vec!["gw".to_owned()], None);
        files.load()?.serving(&files).map(Self)
    }

    /// The TLS server configuration.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.0.config.clone()
    }

    /// Whether one of the client authorities has signed the first of the certificates.
    pub fn knows(&self, certificates: &[CertificateDer<'_>]) -> bool {
        let Some((own, others)) = certificates.split_first() else { return false };
        self.0.clients.as_ref().is_some_and(|clients| clients.verify(own, others))
    }
}

/// Serves one request as the API does; the response is the parsed request, or its rejection.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let handler: server::Handler = Box::new(|request| {
        let (method, uri) = (request.method().as_str(), request.uri());
        let needed = attributes(method, uri.path());
        let response = match route(method, uri.path(), uri.query().unwrap_or_default()) {
            Ok(route) => text(StatusCode::OK, TEXT, format!("{needed:?} {route:?}")),
            Err((status, why)) => text(StatusCode::from_u16(status).unwrap_or_default(), TEXT, why),
        };
        Box::pin(async { response })
    });
    server::serve(stream, NODE_HEAD_BYTES_MAX, handler).await;
}
