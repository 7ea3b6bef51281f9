//! The server's authorities for another server, as k3s' supervisor has them.

use std::net::IpAddr;
use std::sync::Arc;

use futures_rustls::pki_types::CertificateDer;
use futures_rustls::rustls::server::ServerConfig;
use smolet::model::Wall;

use super::{ApiServer, Authority, Shared, User};

impl ApiServer {
    /// Signs as the server does.
    pub fn signer(&self) -> Signer {
        Signer(self.shared.clone())
    }

    /// TLS with a certificate of the server's authority, for that protocol.
    pub fn tls(&self, protocol: &[u8]) -> ServerConfig {
        let mut config = self.shared.pki.server_config(&self.shared.clock);
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }
}

impl ApiServer {
    /// TLS with a certificate of another authority, for that protocol.
    pub fn tls_of(&self, authority: &Authority, protocol: &[u8]) -> ServerConfig {
        let mut config = self.shared.pki.server_config_of(authority, &self.shared.clock);
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }

    /// Another authority, which the server's own one has signed.
    pub fn cross_signed(&self, other: &Authority) -> String {
        self.shared.pki.cluster.cross_signed(other)
    }
}

/// Authenticates and signs nodes.
pub struct Signer(Arc<Shared>);

impl Signer {
    /// The user of that certificate.
    pub fn user(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        let chain: Vec<_> = chain.iter().map(|of| of.clone().into_owned()).collect();
        self.0.pki.verifier.user(&chain, self.0.clock.now().wall)
    }

    /// A node's client certificate, or a serving one with addresses: for the key of its request (DER), else with a new key
    /// appended. Valid for a year, or so many seconds.
    pub fn node(
        &self,
        node: &str,
        ips: Option<&str>,
        request: Option<&[u8]>,
        seconds: Option<i64>,
    ) -> String {
        let valid = self.valid(seconds);
        let pki = &self.0.pki;
        let (issued, authority) = match ips {
            None => (pki.clients.k3s_client(node, request, valid), &pki.clients),
            Some(ips) => {
                // A node without a network has none.
                let ips = ips.split(',').filter(|ip| !ip.is_empty());
                let ips: Vec<IpAddr> = ips.map(|ip| ip.parse().expect("an address")).collect();
                (pki.cluster.k3s_server(node, &ips, request, valid), &pki.cluster)
            }
        };
        let (certificate, key) = issued;
        format!("{certificate}{}{key}", authority.pem())
    }

    /// The same of a part of `k3s agent`, for the API server.
    pub fn component(&self, user: &str, request: Option<&[u8]>, seconds: Option<i64>) -> String {
        let clients = &self.0.pki.clients;
        let (certificate, key) = clients.k3s_component(user, request, self.valid(seconds));
        format!("{certificate}{}{key}", clients.pem())
    }

    fn valid(&self, seconds: Option<i64>) -> Option<(Wall, Wall)> {
        let now = self.0.clock.now().wall.0;
        let until = now + seconds.unwrap_or(365 * 24 * 3600) * 1_000_000_000;
        Some((Wall(now - 1_000_000_000), Wall(until)))
    }
}
