//! Certificates: two authorities, created for each server; identification of clients by certificate; certificate signing
//! requests.
//!
//! One authority signs the server's own certificate, the other signs clients (and nodes' servers): a client that confuses the
//! two fails here as in a cluster.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, alg_id};
use futures_rustls::rustls::client::danger::HandshakeSignatureValid;
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use futures_rustls::rustls::server::{ServerConfig, WebPkiClientVerifier};
use futures_rustls::rustls::time_provider::TimeProvider;
use futures_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName as RawName, Error, RootCertStore, SignatureScheme,
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
    SignatureAlgorithm,
};

use smolet::model::Wall;

use super::User;
use super::der::Der;
use crate::common::fake::FakeClock;

/// A client's certificate and key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: CertificateDer<'static>,
    /// PKCS#8.
    pub key: Vec<u8>,
}

impl Identity {
    pub fn certificate_pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    pub fn key_pem(&self) -> String {
        pem("PRIVATE KEY", &self.key)
    }
}

/// Signs certificates.
pub struct Authority {
    name: String,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// Purpose and validity of a certificate.
struct Use {
    purpose: ExtendedKeyUsagePurpose,
    valid: Option<(Wall, Wall)>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("ring makes keys");
        let mut params = params(named(name, &[]));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).expect("an authority signs itself").der().clone();
        Self { name: name.to_owned(), issuer: Issuer::new(params, key), certificate }
    }

    /// The certificate of another authority, signed by this one: whoever trusts this one may trust that.
    pub fn cross_signed(&self, other: &Authority) -> String {
        let mut params = params(named(&other.name, &[]));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let signed = params.signed_by(other.issuer.key(), &self.issuer).expect("it is well-formed");
        pem("CERTIFICATE", signed.der())
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// A client certificate: the user is its common name, and the groups, two at most, are its organizations. Without a
    /// validity it is always valid.
    pub fn client(&self, user: &str, groups: &[&str], valid: Option<(Wall, Wall)>) -> Identity {
        let purpose = ExtendedKeyUsagePurpose::ClientAuth;
        self.issue(named(user, groups), Vec::new(), Use { purpose, valid })
    }

    /// A server certificate for that address and for loopback addresses; several for a cluster of several servers.
    pub fn server(&self, host: Ipv4Addr) -> Identity {
        let localhost = "localhost".try_into().expect("a name in ASCII");
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        let mut names = vec![SanType::DnsName(localhost)];
        let hosts = (1..=4).map(|host| Ipv4Addr::new(127, 0, 0, host));
        let hosts = hosts.chain((!host.is_loopback()).then_some(host));
        names.extend(hosts.map(|host| SanType::IpAddress(IpAddr::V4(host))));
        self.issue(named("kube-apiserver", &[]), names, Use { purpose, valid: None })
    }

    /// A node's client certificate, for the key of its request or with a new key: certificate and key in PEM.
    pub fn k3s_client(
        &self,
        node: &str,
        request: Option<&[u8]>,
        valid: Option<(Wall, Wall)>,
    ) -> (String, String) {
        let subject = named(&format!("system:node:{node}"), &["system:nodes"]);
        self.k3s(subject, Vec::new(), request, Use { purpose: ExtendedKeyUsagePurpose::ClientAuth, valid })
    }

    /// The same of another user, without groups.
    pub fn k3s_component(
        &self,
        user: &str,
        request: Option<&[u8]>,
        valid: Option<(Wall, Wall)>,
    ) -> (String, String) {
        let how = Use { purpose: ExtendedKeyUsagePurpose::ClientAuth, valid };
        self.k3s(named(user, &[]), Vec::new(), request, how)
    }

    /// A node's serving certificate.
    pub fn k3s_server(
        &self,
        node: &str,
        ips: &[IpAddr],
        request: Option<&[u8]>,
        valid: Option<(Wall, Wall)>,
    ) -> (String, String) {
        let mut names = vec![SanType::DnsName(node.try_into().expect("a name in ASCII"))];
        names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        names.extend(ips.iter().copied().map(SanType::IpAddress));
        self.k3s(
            named(node, &[]),
            names,
            request,
            Use { purpose: ExtendedKeyUsagePurpose::ServerAuth, valid },
        )
    }

    fn k3s(
        &self,
        subject: DistinguishedName,
        names: Vec<SanType>,
        request: Option<&[u8]>,
        how: Use,
    ) -> (String, String) {
        let Some(request) = request else {
            let identity = self.issue(subject, names, how);
            return (identity.certificate_pem(), identity.key_pem());
        };
        let request = Request::of(request).expect("a node's request is one");
        assert!(request.signed, "with its own key");
        let mut params = params(subject);
        params.subject_alt_names = names;
        let signed = self
            .sign(params, how, &request.key.expect("of a kind that is known"))
            .expect("it is well-formed");
        (pem("CERTIFICATE", signed.der()), String::new())
    }

    fn issue(&self, subject: DistinguishedName, names: Vec<SanType>, how: Use) -> Identity {
        let key = KeyPair::generate().expect("ring makes keys");
        let mut params = params(subject);
        params.subject_alt_names = names;
        let signed = self.sign(params, how, &key).expect("what is signed here is well-formed");
        Identity { certificate: signed.der().clone(), key: key.serialize_der() }
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        how: Use,
        key: &impl PublicKeyData,
    ) -> Result<Certificate, rcgen::Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![how.purpose];
        if let Some((from, until)) = how.valid {
            let at = |wall: Wall| {
                let seconds = u64::try_from(wall.0.div_euclid(1_000_000_000)).unwrap_or(0);
                rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
            };
            params.not_before = at(from);
            params.not_after = at(until);
        }
        params.signed_by(key, &self.issuer)
    }

    /// Signs a request (PEM), with its subject and alternative names; returns the certificate as PEM. For a server or a client.
    ///
    /// # Errors
    /// A sentence: the request is invalid.
    pub fn sign_request(&self, request: &str, server: bool, valid: (Wall, Wall)) -> Result<String, String> {
        let bytes = pem_bytes(request).ok_or("spec.request is no PEM")?;
        let request = Request::of(&bytes).ok_or("spec.request is no certificate signing request")?;
        let key = request.key.ok_or("spec.request has a kind of key that this server does not know")?;
        if !request.signed {
            return Err("spec.request is not signed with its own key".into());
        }
        let mut params = params(request.subject);
        params.custom_extensions.extend(request.names.map(|names| {
            // In the request as in the certificate.
            CustomExtension::from_oid_content(&[2, 5, 29, 17], names)
        }));
        let purpose =
            if server { ExtendedKeyUsagePurpose::ServerAuth } else { ExtendedKeyUsagePurpose::ClientAuth };
        let signed = self.sign(params, Use { purpose, valid: Some(valid) }, &key);
        signed.map(|signed| pem("CERTIFICATE", signed.der())).map_err(|error| error.to_string())
    }
}

fn params(subject: DistinguishedName) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params
}

fn named(user: &str, groups: &[&str]) -> DistinguishedName {
    // The library holds one value of each attribute; an attribute by its OID counts as a different one, which allows two.
    let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    assert!(groups.len() <= kinds.len(), "a certificate of these tests has two groups at most");
    let mut name = DistinguishedName::new();
    for (kind, group) in kinds.into_iter().zip(groups) {
        name.push(kind, *group);
    }
    name.push(DnType::CommonName, user);
    name
}

/// The parts of a certificate signing request (RFC 2986) that are signed here.
struct Request {
    subject: DistinguishedName,
    /// `None`: an unknown algorithm.
    key: Option<PublicKey>,
    /// The extension `subjectAltName`.
    names: Option<Vec<u8>>,
    /// Signed with its own key.
    signed: bool,
}

struct PublicKey {
    bytes: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

impl Request {
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut request = Der(bytes).sequence()?;
        let (info, info_bytes) = request.whole_sequence()?;
        let signed_with = request.sequence()?.0;
        let signature = request.bits()?;

        let mut info = info;
        info.skip()?;
        let mut subject = DistinguishedName::new();
        for (oid, value) in info.sequence()?.name()? {
            subject.push(DnType::from_oid(&oid), value);
        }
        let mut key = info.sequence()?;
        let key_kind = key.sequence()?.0;
        let key_bytes = key.bits()?;
        let kinds = [
            (alg_id::ECDSA_P256, &rcgen::PKCS_ECDSA_P256_SHA256),
            (alg_id::ECDSA_P384, &rcgen::PKCS_ECDSA_P384_SHA384),
            (alg_id::ED25519, &rcgen::PKCS_ED25519),
        ];
        let kind = kinds.into_iter().find(|(id, _)| id.as_ref() == key_kind);
        let verifiers = ring::default_provider().signature_verification_algorithms.all;
        let mut fitting = verifiers.iter().filter(|verifier| {
            verifier.public_key_alg_id().as_ref() == key_kind
                && verifier.signature_alg_id().as_ref() == signed_with
        });
        Some(Self {
            subject,
            key: kind.map(|(_, algorithm)| PublicKey { bytes: key_bytes.to_vec(), algorithm }),
            names: info.alternative_names(),
            signed: fitting
                .any(|verifier| verifier.verify_signature(key_bytes, info_bytes, signature).is_ok()),
        })
    }
}

/// The subject of a request (PEM), and whether it has alternative names.
pub fn requested(pem: &str) -> Option<(User, bool)> {
    let bytes = pem_bytes(pem)?;
    let mut info = Der(&bytes).sequence()?.sequence()?;
    info.skip()?;
    let mut user = User { name: String::new(), groups: Vec::new() };
    for (oid, value) in info.sequence()?.name()? {
        match *oid {
            [2, 5, 4, 3] => user.name = value,
            [2, 5, 4, 10] => user.groups.push(value),
            _ => {}
        }
    }
    info.skip()?;
    Some((user, info.alternative_names().is_some()))
}

/// Accepts every client, with any certificate or without one: each request is authenticated later, as in the real server. Only
/// the possession of the certificate's key is verified here.
#[derive(Debug)]
pub struct Clients {
    inner: Arc<dyn ClientCertVerifier>,
}

impl Clients {
    fn new(authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone()).expect("an authority of ours");
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
        Self { inner: builder.allow_unauthenticated().build().expect("there is an authority") }
    }

    /// The certificate's user; `None` when the authority has not signed it, or it is not valid now.
    pub fn user(&self, chain: &[CertificateDer<'static>], now: Wall) -> Option<User> {
        let (certificate, others) = chain.split_first()?;
        self.inner.verify_client_cert(certificate, others, unix(now)).ok()?;
        let mut parts = Der(certificate).sequence()?.sequence()?;
        // Version, number, algorithm, issuer and validity precede the subject.
        for _ in 0..5 {
            parts.skip()?;
        }
        let mut user = User { name: String::new(), groups: Vec::new() };
        for (oid, value) in parts.sequence()?.name()? {
            match *oid {
                [2, 5, 4, 3] => user.name = value,
                [2, 5, 4, 10] => user.groups.push(value),
                _ => {}
            }
        }
        (!user.name.is_empty()).then_some(user)
    }
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[RawName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The server's authorities and TLS configuration.
pub struct Pki {
    /// Signs the server's own certificate.
    pub cluster: Authority,
    /// Signs certificates of clients and nodes.
    pub clients: Authority,
    pub verifier: Arc<Clients>,
    /// The server's address.
    host: Ipv4Addr,
}

impl Pki {
    pub fn new(host: Ipv4Addr) -> Self {
        let clients = Authority::new("kubernetes-client-ca");
        let verifier = Arc::new(Clients::new(&clients));
        Self { cluster: Authority::new("kubernetes-ca"), clients, verifier, host }
    }

    /// TLS 1.2 and 1.3, for HTTP/2 only.
    pub fn server_config(&self, clock: &FakeClock) -> ServerConfig {
        self.server_config_of(&self.cluster, clock)
    }

    /// The same, with a certificate of that authority.
    pub fn server_config_of(&self, authority: &Authority, clock: &FakeClock) -> ServerConfig {
        let own = authority.server(self.host);
        let key = PrivateKeyDer::Pkcs8(own.key.into());
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_details(provider, Arc::new(TlsTime(clock.clone())))
            .with_safe_default_protocol_versions()
            .expect("ring knows both versions")
            .with_client_cert_verifier(self.verifier.clone())
            .with_single_cert(vec![own.certificate], key)
            .expect("the key belongs to the certificate");
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }
}

struct TlsTime(FakeClock);

impl fmt::Debug for TlsTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsTime")
    }
}

impl TimeProvider for TlsTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(self.0.now().wall))
    }
}

fn unix(wall: Wall) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_nanos(u64::try_from(wall.0).unwrap_or(0)))
}

// ---- text ------------------------------------------------------------------------------------------------

pub fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// As in tokens: for URLs, without padding.
pub fn base64_url(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

pub fn unbase64(text: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok()
}

pub fn unbase64_url(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}

pub fn pem(label: &str, bytes: &[u8]) -> String {
    let text = base64(bytes);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64 is ASCII")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Of the first block.
pub fn pem_bytes(text: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once("-----BEGIN ")?;
    let (_, rest) = rest.split_once("-----\n")?;
    let (body, _) = rest.split_once("-----END ")?;
    unbase64(&body.split_whitespace().collect::<String>())
}
