//! Registries with TLS: authorities, client certificates, proxies.

use std::path::Path;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::server::WebPkiClientVerifier;
use futures_rustls::rustls::{RootCertStore, ServerConfig};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use smolet::registry::Proxies;

use super::server::{Auth, Faults, LOGIN, Registry};
use super::{Node, put_app};
use crate::common::TempDir;

/// An authority, which signs servers and clients.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: futures_rustls::pki_types::CertificateDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).unwrap();
        let (pem, der) = (pem("CERTIFICATE", certificate.der()), certificate.der().clone());
        Self { issuer: Issuer::new(params, key), pem, der }
    }

    fn sign(&self, names: &[&str], purpose: ExtendedKeyUsagePurpose) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
        params.extended_key_usages = vec![purpose];
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn server(&self, needs_client: bool) -> Registry {
        let (certificate, key) =
            self.sign(&["127.0.0.1", "registry.test"], ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if needs_client {
            let mut roots = RootCertStore::empty();
            roots.add(self.der.clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let registry =
            Registry::start_tls(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap());
        put_app(&registry, &[700_000]);
        registry
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn write(directory: &Path, name: &str, text: &str) {
    std::fs::write(directory.join(name), text).unwrap();
}

#[test]
fn certificates_are_verified_and_shown() {
    let authority = Authority::new("registries");
    let (client, client_key) = authority.sign(&["node"], ExtendedKeyUsagePurpose::ClientAuth);
    let (open, closed) = (authority.server(false), authority.server(true));
    let plain = Registry::start();
    let directory = TempDir::new();
    let of = |registry: &Registry| {
        let path = directory.path().join(registry.host());
        std::fs::create_dir_all(&path).unwrap();
        write(&path, "ca.pem", &authority.pem);
        write(&path, "client.pem", &pem("CERTIFICATE", client.der()));
        write(&path, "key.pem", &pem("PRIVATE KEY", &client_key.serialize_der()));
        write(&path, "empty.pem", "");
        (path, format!("{}/team/app:1", registry.host()))
    };
    let ca = "ca = \"ca.pem\"\n";
    let rows = [
        (&open, ca.to_owned(), ""),
        (&open, "skip_verify = true\n".to_owned(), ""),
        (&open, String::new(), "certificate signed by unknown authority; name its authority as ca"),
        (&open, "ca = \"none.pem\"\n".to_owned(), "none.pem: "),
        (&open, "ca = \"empty.pem\"\n".to_owned(), "empty.pem: holds no certificate in PEM"),
        (&closed, format!("{ca}client = [[\"client.pem\", \"key.pem\"]]\n"), ""),
        (&closed, ca.to_owned(), "hosts.toml names as client"),
        (&closed, format!("{ca}client = \"client.pem\"\n"), "client.pem: holds no private key in PEM"),
        (&plain, ca.to_owned(), "http: server gave HTTP response to HTTPS client; name the host as http://"),
    ];
    let system = Authority::new("system");
    write(directory.path(), "system.pem", &system.pem);
    for (registry, text, error) in rows {
        let (path, image) = of(registry);
        write(&path, "hosts.toml", &format!("server = \"https://{}\"\n{text}", registry.host()));
        let mut node = Node::with_login(LOGIN.0, LOGIN.1);
        node.hosts.directories = vec![directory.path().to_owned()];
        node.hosts.environment.certificates_file = Some(directory.path().join("system.pem"));
        registry.set(Auth::TokenForLogin, Faults { cut: Some((500_000, 2)), ..Faults::default() });
        match node.pull(&image) {
            Ok(_) => assert_eq!(error, "", "{text}"),
            Err(found) => {
                let found = found.to_string();
                assert!(!error.is_empty() && found.contains(error), "{text}: {found}");
            }
        }
    }
    // The system's own authorities, without any configuration but the port of the registry.
    let (path, image) = of(&open);
    write(&path, "hosts.toml", &format!("server = \"https://{}\"\n", open.host()));
    write(directory.path(), "system.pem", &format!("{}{}", system.pem, authority.pem));
    let mut node = Node::new();
    node.hosts.directories = vec![directory.path().to_owned()];
    node.hosts.environment.certificates_file = Some(directory.path().join("system.pem"));
    open.set(Auth::Token, Faults::default());
    node.pull(&image).unwrap();
}

#[test]
fn a_proxy_leads_to_hosts_by_https() {
    let authority = Authority::new("registries");
    let registry = authority.server(false);
    let directory = TempDir::new();
    write(directory.path(), "system.pem", &authority.pem);
    let proxy = format!("me:proxy-secret@{}", registry.host());
    let mut node = Node::new();
    node.hosts.environment.certificates_file = Some(directory.path().join("system.pem"));
    node.hosts.environment.proxies =
        Proxies::from_variables(|name| (name == "https_proxy").then(|| proxy.clone()));
    node.pull("registry.test/team/app:1").unwrap();
    let log = registry.log();
    let connects: Vec<_> = log.iter().filter(|request| request.method == "CONNECT").collect();
    assert!(!connects.is_empty() && connects.len() <= 2, "connections are used again: {log:?}");
    for connect in connects {
        assert_eq!(connect.target, "registry.test:443");
        assert_eq!(connect.headers["proxy-authorization"], "Basic bWU6cHJveHktc2VjcmV0");
    }
    assert!(
        log.iter().all(
            |request| request.method == "CONNECT" || !request.headers.contains_key("proxy-authorization")
        )
    );
}
