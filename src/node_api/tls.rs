//! TLS of the node's own API: its certificate, its key, and the client certificate authorities.
//!
//! The handshake succeeds with any client certificate or none, as the kubelet's does (`tls.RequestClientCert`): it proves that
//! the client has the key; the certificate is verified with the request, which then gets a response. A client with more
//! certificates than `limits::INTERMEDIATES_MAX` allows is refused in the handshake.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use futures_rustls::rustls::client::danger::HandshakeSignatureValid;
use futures_rustls::rustls::crypto::{CryptoProvider, ring};
use futures_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use futures_rustls::rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use futures_rustls::rustls::version::TLS13;
use futures_rustls::rustls::{
    ALL_VERSIONS, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use crate::config::NodeApi;
use crate::filesystem::read_linked;
use crate::filesystem::replace;
use crate::limits::NODE_FILE_BYTES_MAX;
use crate::tls::{bounded, certificates};
use crate::x509::pem;

/// Paths of the files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// Certificate and key, which smolet creates if `own` is set.
    certificate: PathBuf,
    key: PathBuf,
    /// Names and addresses of the self-signed certificate.
    own: Option<Vec<String>>,
    client_ca: Option<PathBuf>,
    /// Files that replace these as soon as they exist.
    issued: Option<Box<Files>>,
    policy: TlsPolicy,
}

/// Offered TLS versions and cipher suites.
#[derive(Clone, Debug, Default)]
struct TlsPolicy {
    tls13_only: bool,
    /// Cipher suites of TLS 1.2; empty: all.
    suites: Vec<String>,
}

impl TlsPolicy {
    /// By the Go names; TLS 1.3 has its own suites in any case (`crypto/tls.Config.CipherSuites`).
    fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|suite| {
            let own = format!("{:?}", suite.suite());
            let is_named = |name: &String| *name == own || own.strip_suffix("_SHA256") == Some(name);
            suite.tls13().is_some() || self.suites.is_empty() || self.suites.iter().any(is_named)
        });
        provider
    }
}

/// Files that a cluster issues for a node's API.
pub struct Issued {
    /// Certificate and key, in one file.
    pub certificate: PathBuf,
    /// The client certificate authorities, where the cluster issues them.
    pub client_ca: Option<PathBuf>,
}

/// Content of the files.
#[derive(PartialEq, Eq)]
pub(super) struct Loaded {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    /// Why these files are a temporary substitute for others.
    makeshift: Option<String>,
}

/// The configuration with which connections are accepted.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) config: Arc<ServerConfig>,
    pub(super) clients: Option<Arc<Clients>>,
}

impl Files {
    /// Those of the settings, of the cluster, or the self-signed ones below the state directory for these names and addresses.
    pub(super) fn new(settings: &NodeApi, root: &Path, names: Vec<String>, issued: Option<Issued>) -> Self {
        let policy = TlsPolicy { tls13_only: settings.tls13_only, suites: settings.cipher_suites.clone() };
        let client_ca = settings.client_ca.clone();
        let issued = issued.map(|issued| {
            let Issued { certificate, client_ca: authority } = issued;
            let client_ca = client_ca.clone().or(authority);
            let given = settings.certificate.clone();
            let (certificate, key) = given.unwrap_or_else(|| (certificate.clone(), certificate));
            Box::new(Self { certificate, key, own: None, client_ca, issued: None, policy: policy.clone() })
        });
        match settings.certificate.clone() {
            Some((certificate, key)) => Self { certificate, key, own: None, client_ca, issued, policy },
            // Not by the kubelet's file names: those of a node that is taken over stay unchanged.
            None => Self {
                certificate: root.join("pki/smolet.crt"),
                key: root.join("pki/smolet.key"),
                own: Some(names),
                client_ca,
                issued,
                policy,
            },
        }
    }

    /// The same, with these names and addresses of the self-signed certificate.
    pub(super) fn with_names(mut self, names: Vec<String>) -> Self {
        self.own = self.own.map(|_| names);
        self
    }

    /// Reads them, and creates the self-signed ones. I/O, blocking.
    ///
    /// # Errors
    /// A message that names the file.
    pub(super) fn load(&self) -> Result<Loaded, String> {
        let mut makeshift = None;
        if let Some(issued) = self.issued.as_deref() {
            match issued.load().and_then(|loaded| loaded.serving(issued).map(|_| loaded)) {
                Ok(loaded) => return Ok(loaded),
                Err(why) => makeshift = Some(why),
            }
        }
        if let Some(names) = &self.own {
            self.make(names)?;
        }
        let client_ca = self.client_ca.as_deref().map(read).transpose()?;
        Ok(Loaded { certificate: read(&self.certificate)?, key: read(&self.key)?, client_ca, makeshift })
    }

    /// Creates certificate and key unless they exist for these names. The key is kept when only the names have changed.
    ///
    /// The certificate never expires (the kubelet's: after a year): many a gateway does not know the time when it boots.
    fn make(&self, names: &[String]) -> Result<(), String> {
        let mark = format!("# {}\n", names.join(" "));
        let fail =
            |path: &Path, why: String| format!("the node's own certificate: {}: {why}", path.display());
        let found = read(&self.key).ok().and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).ok());
        if found.is_some() && read(&self.certificate).is_ok_and(|pem| pem.starts_with(mark.as_bytes())) {
            return Ok(());
        }
        let key = match found {
            Some(key) => KeyPair::try_from(&key),
            None => KeyPair::generate(),
        };
        let key = key.map_err(|error| fail(&self.key, error.to_string()))?;
        let signed = CertificateParams::new(names.to_vec()).and_then(|mut params| {
            if let Some(name) = names.first() {
                params.distinguished_name.push(DnType::CommonName, name.as_str());
            }
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params.self_signed(&key)
        });
        let signed = signed.map_err(|error| fail(&self.certificate, error.to_string()))?;
        if let Some(directory) = self.key.parent() {
            std::fs::create_dir_all(directory).map_err(|error| fail(directory, error.to_string()))?;
        }
        for (path, label, head, der) in [
            (&self.key, "PRIVATE KEY", "", key.serialized_der()),
            (&self.certificate, "CERTIFICATE", mark.as_str(), &**signed.der()),
        ] {
            let text = format!("{head}{}", pem(label, der));
            replace(path, &path.with_extension("new"), text.as_bytes())
                .map_err(|error| fail(path, error.to_string()))?;
        }
        Ok(())
    }
}

/// Reads a regular file of at most `limits::NODE_FILE_BYTES_MAX`: opening a FIFO would wait for its writer.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_linked(path, NODE_FILE_BYTES_MAX).map_err(|error| format!("{}: {error}", path.display()))
}

impl Loaded {
    /// Why these files are a substitute; `None` when they are not.
    pub(super) fn makeshift(&self) -> Option<&str> {
        self.makeshift.as_deref()
    }

    /// TLS 1.2 and 1.3 with these files, for HTTP/1.1 alone. Without session resumption.
    ///
    /// # Errors
    /// A message, without any part of the key.
    pub(super) fn serving(&self, files: &Files) -> Result<Serving, String> {
        let files = files.issued.as_deref().filter(|_| self.makeshift.is_none()).unwrap_or(files);
        let at = |path: &Path, why: &str| format!("{}: {why}", path.display());
        let chain = certificates(&self.certificate)
            .ok_or_else(|| at(&files.certificate, "holds no certificate in PEM"))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| at(&files.key, "holds no private key in PEM"))?;
        let clients = match (&self.client_ca, &files.client_ca) {
            (Some(pem), Some(path)) => {
                let clients = Clients::new(pem).map_err(|why| at(path, &why))?;
                Some(Arc::new(clients))
            }
            (None, _) | (_, None) => None,
        };
        let versions: &[_] = if files.policy.tls13_only { &[&TLS13] } else { ALL_VERSIONS };
        let builder = ServerConfig::builder_with_provider(Arc::new(files.policy.provider()))
            .with_protocol_versions(versions)
            .map_err(|error| format!("TLS: {error}"))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(clients.clone()),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            at(&files.certificate, &format!("does not go with {}: {error}", files.key.display()))
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Serving { config: Arc::new(config), clients })
    }
}

/// The client certificate authorities.
#[derive(Debug)]
pub(super) struct Clients(Arc<dyn ClientCertVerifier>);

impl Clients {
    fn new(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem).ok_or("holds no certificate in PEM")? {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Self(verifier.build().map_err(|error| error.to_string())?))
    }

    /// Whether one of them has signed it for client authentication, and it is valid now.
    pub(super) fn verify(&self, own: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> bool {
        // Before 1970 the clock has not been set: nothing is valid yet.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let verified = self.0.verify_client_cert(own, others, UnixTime::since_unix_epoch(now));
        if let Err(error) = &verified {
            log::debug!("node API: client certificate not verified: {error}");
        }
        verified.is_ok()
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        bounded(others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_certificate_of_its_own_is_made_once_and_for_other_names_anew_with_the_same_key() {
        let root = std::env::temp_dir().join(format!("smolet-node-api-{}", std::process::id()));
        let files = |names: &[&str]| Files {
            certificate: root.join("pki/smolet.crt"),
            key: root.join("pki/smolet.key"),
            own: Some(names.iter().map(|&name| name.to_owned()).collect()),
            client_ca: None,
            issued: None,
            policy: TlsPolicy::default(),
        };
        let first = files(&["gw", "10.0.0.2"]).load().unwrap();
        assert!(first.serving(&files(&[])).is_ok());
        let mode = std::fs::metadata(root.join("pki/smolet.key")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(files(&["gw", "10.0.0.2"]).load().unwrap() == first, "as it was");
        let second = files(&["gw", "10.0.0.3"]).load().unwrap();
        assert!(second.certificate != first.certificate && second.key == first.key);
        std::fs::write(root.join("pki/smolet.key"), "damaged").unwrap();
        let third = files(&["gw", "10.0.0.3"]).load().unwrap();
        assert!(third.key != second.key && third.serving(&files(&[])).is_ok(), "a damaged one is replaced");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let path = PathBuf::from("/nowhere/at.crt");
        let (certificate, key) = (path.clone(), path.clone());
        let files = Files {
            certificate,
            key,
            own: None,
            client_ca: Some(path),
            issued: None,
            policy: TlsPolicy::default(),
        };
        assert!(files.load().err().unwrap().starts_with("/nowhere/at.crt: "));
        let (certificate, key) = (b"x".to_vec(), b"secret".to_vec());
        let loaded = Loaded { certificate, key, client_ca: None, makeshift: None };
        let why = loaded.serving(&files).err().unwrap();
        assert_eq!(why, "/nowhere/at.crt: holds no certificate in PEM");
        assert!(Clients::new(b"").is_err());
    }

    #[test]
    fn a_fifo_in_place_of_an_authority_is_refused_and_not_waited_for() {
        let root = std::env::temp_dir().join(format!("smolet-node-api-fifo-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let (fifo, long) = (root.join("fifo"), root.join("long"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
        std::fs::write(&long, vec![b'x'; NODE_FILE_BYTES_MAX + 1]).unwrap();
        for (path, why) in [
            (fifo, "is no regular file".to_owned()),
            (long, format!("has more than {NODE_FILE_BYTES_MAX} bytes")),
            (PathBuf::from("/dev/zero"), "is no regular file".to_owned()),
        ] {
            let files = Files {
                certificate: root.join("pki/smolet.crt"),
                key: root.join("pki/smolet.key"),
                own: Some(vec!["gw".to_owned()]),
                client_ca: Some(path.clone()),
                issued: None,
                policy: TlsPolicy::default(),
            };
            // On a thread: opening a FIFO never returns here.
            let (sender, loaded) = std::sync::mpsc::channel();
            std::thread::spawn(move || sender.send(files.load().err()));
            let loaded = loaded.recv_timeout(Duration::from_secs(30)).expect("an answer in time");
            assert_eq!(loaded, Some(format!("{}: {why}", path.display())));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_suites_of_tls_1_2_are_those_that_are_named() {
        let offered = |names: &[&str]| {
            let suites = names.iter().map(|&name| name.to_owned()).collect();
            let provider = TlsPolicy { tls13_only: false, suites }.provider();
            let (new, old): (Vec<_>, Vec<_>) =
                provider.cipher_suites.into_iter().partition(|suite| suite.tls13().is_some());
            (new.len(), old.into_iter().map(|suite| format!("{:?}", suite.suite())).collect::<Vec<_>>())
        };
        assert_eq!(offered(&[]).1.len(), 6);
        let (new, old) = offered(&[
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
            "TLS_RSA_WITH_AES_128_CBC_SHA",
        ]);
        assert_eq!(new, 3);
        assert_eq!(
            old,
            ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]
        );
    }
}
