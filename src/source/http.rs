//! Manifests at a URL as a source (kubelet `pkg/kubelet/config/http.go`): fetched at the start and every `httpCheckFrequency`.
//! The limits are those of a manifest file.
//!
//! ```text
//!     a changed body   its pods replace the previous ones, as with a changed file
//!     the same body    no change
//!     an empty body    no pods
//!     a failed fetch   the pods stay as they are; before the first successful one no running pod is terminated
//! ```
//!
//! Differs from the kubelet: headers are sent to the URL's own host only, not to redirect targets; redirects to other schemes
//! than http and https are not followed; credentials in the URL are refused. Neither headers nor the query are logged.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, LOCATION};
use sha2::{Digest as _, Sha256};
use smol::channel::Sender;

use super::file::{sourced, sourced_object};
use super::identity::{ManifestKind, NodeName};
use super::manifest::{ParsedFile, parse_as};
use super::{ManifestRoom, Problem, ServerPods, SourceUpdate, SourceUsage, SourcedObject, SourcedPod};
use crate::blocking::unblock;
use crate::clock::SharedClock;
use crate::limits::{
    MANIFEST_BYTES_MAX, MANIFEST_URL_REQUESTS_MAX, MANIFEST_URL_TIME, MANIFEST_WIRE_BYTES_MAX,
};
use crate::model::Wall;
use crate::net::Lookups;
use crate::net::http::HttpGet;
use crate::net::http::exchange;
use crate::poison::{self, SetAside};
use crate::stream::{Stream, stream};

/// The name of this source in `SourceUpdate::source`.
pub const NAME: &str = "http";

/// The source of one manifest URL.
pub struct HttpSource {
    get: HttpGet,
    /// The URL as shown in problems.
    shown: Arc<str>,
    node: NodeName,
    clock: SharedClock,
    period: Duration,
    room: ManifestRoom,
    set_aside: Arc<SetAside>,
    lookups: Lookups,
    #[cfg(feature = "tls")]
    trust: Trust,
    /// The digest of the last body; `None`: none was fetched, or it was empty.
    last: Option<[u8; 32]>,
    /// A body was fetched since the start, even an empty one.
    seen: bool,
    pods: Vec<SourcedPod>,
    objects: Vec<SourcedObject>,
    bytes: usize,
    /// Errors in the last body.
    problems: Vec<Problem>,
    /// Why the last fetch failed; empty: it did not.
    failure: String,
    reported: Vec<Problem>,
    first: bool,
}

/// A response.
struct Reply {
    status: hyper::StatusCode,
    location: Option<String>,
    body: Vec<u8>,
}

impl HttpSource {
    /// A source for the manifests of this request. Nothing is sent before [`HttpSource::run`].
    pub fn new(get: HttpGet, node: NodeName, clock: SharedClock, period: Duration) -> Self {
        let url = get.to_string();
        let shown = url.split('?').next().unwrap_or_default();
        Self {
            shown: Arc::from(shown),
            get,
            node,
            clock,
            period,
            room: ManifestRoom::default(),
            set_aside: Arc::default(),
            lookups: Lookups::default(),
            #[cfg(feature = "tls")]
            trust: Trust::default(),
            last: None,
            seen: false,
            pods: Vec::new(),
            objects: Vec::new(),
            bytes: 0,
            problems: Vec::new(),
            failure: String::new(),
            reported: Vec::new(),
            first: true,
        }
    }

    /// The same, sharing its memory budget with the manifests of files, and without reading a body whose parsing ended the
    /// process too often.
    #[must_use]
    pub fn beside(mut self, room: ManifestRoom, set_aside: Arc<SetAside>) -> Self {
        self.room = room;
        self.set_aside = set_aside;
        self
    }

    /// Sends every update until the receiver is dropped.
    pub async fn run(mut self, updates: Sender<SourceUpdate>) {
        loop {
            let update = self.look().await;
            if let Some(update) = update
                && updates.send(update).await.is_err()
            {
                return;
            }
            self.clock.sleep(self.period).await;
        }
    }

    /// Fetches once; returns all pods, objects and problems, if they differ from the last update.
    async fn look(&mut self) -> Option<SourceUpdate> {
        let seen = self.clock.now().wall;
        let late = async {
            self.clock.sleep(MANIFEST_URL_TIME).await;
            Err(format!("gave no whole answer within {} s", MANIFEST_URL_TIME.as_secs()))
        };
        let fetched = smol::future::or(Box::pin(self.fetch()), late).await;
        let (failure, changed) = match fetched {
            Ok(body) if body.is_empty() => {
                let changed = !self.seen || self.last.is_some();
                self.take(ParsedFile::default());
                self.last = None;
                ("zero-length data received; its pods end".to_owned(), changed)
            }
            Ok(body) => {
                let digest = Sha256::digest(&body).into();
                let changed = self.last != Some(digest);
                if changed {
                    self.parse(body, seen).await;
                    self.last = Some(digest);
                }
                (String::new(), changed)
            }
            Err(why) => {
                #[cfg(feature = "tls")]
                self.trust.forget();
                let kept = if self.seen { "; its pods stay as they are" } else { "" };
                (format!("{why}{kept}"), false)
            }
        };
        if failure.is_empty() && !self.failure.is_empty() {
            log::info!("{}: manifest URL readable again", self.shown);
        }
        let changed = changed || failure != self.failure;
        self.failure = failure;
        (changed || self.first).then(|| self.update())
    }

    /// The body at the URL, redirects followed.
    async fn fetch(&self) -> Result<Vec<u8>, String> {
        let mut next: Option<HttpGet> = None;
        for _ in 0..MANIFEST_URL_REQUESTS_MAX {
            let current = next.as_ref().unwrap_or(&self.get);
            let socket = self.connect(current).await?;
            let reply = exchange(socket, current, whole).await?;
            let followed = matches!(reply.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            match reply.location.filter(|_| followed) {
                Some(location) => {
                    let mut to = current
                        .resolved(&location)
                        .ok_or("redirects to what is no http:// or https:// URL")?;
                    if (to.tls, &to.address) != (self.get.tls, &self.get.address) {
                        to.headers = HeaderMap::new();
                    }
                    next = Some(to);
                }
                None if reply.status == hyper::StatusCode::OK => return Ok(reply.body),
                None => return Err(format!("answers {}", reply.status)),
            }
        }
        Err(format!("stopped after {MANIFEST_URL_REQUESTS_MAX} redirects"))
    }

    async fn connect(&self, to: &HttpGet) -> Result<Stream, String> {
        let socket = self.lookups.connect(&to.address).await?;
        socket.set_ration(MANIFEST_WIRE_BYTES_MAX);
        if !to.tls {
            return Ok(stream(socket));
        }
        #[cfg(feature = "tls")]
        return self.trust.connect(&to.address.host, socket).await;
        #[cfg(not(feature = "tls"))]
        Err("redirects to https, and this build has no TLS".to_owned())
    }

    /// Parses a changed body on a thread.
    async fn parse(&mut self, body: Vec<u8>, seen: Wall) {
        let (shown, url, node) = (self.shown.clone(), self.get.to_string(), self.node.clone());
        let (room, set_aside) = (self.room.beside_files(), self.set_aside.clone());
        let parsed = unblock(move || {
            let mark = poison::file_mark(&shown, &body);
            if let Some(panics) = set_aside.panics(&mark) {
                let message = format!(
                    "reading it ended the agent {panics} times; it is not read until it changes or another version of \
                     smolet runs"
                );
                let problems = vec![Problem::of_file(&shown, message)];
                return ParsedFile { problems, ..ParsedFile::default() };
            }
            let _handling = poison::handling(Some(mark));
            parse_as(ManifestKind::Url(&url), &shown, &body, &node, seen, room)
        });
        self.take(parsed.await);
    }

    fn take(&mut self, parsed: ParsedFile) {
        self.seen = true;
        self.pods = parsed.pods.into_iter().map(|pod| sourced(pod, &self.shown)).collect();
        self.objects = parsed.objects.into_iter().map(|object| sourced_object(object, &self.shown)).collect();
        self.problems = parsed.problems;
        self.bytes = parsed.bytes;
        self.room.of_url.set(parsed.bytes);
    }

    fn update(&mut self) -> SourceUpdate {
        let failure =
            (!self.failure.is_empty()).then(|| Problem::of_file(&self.shown, self.failure.as_str()));
        let mut problems: Vec<Problem> = self.problems.iter().cloned().chain(failure).collect();
        for problem in &mut problems {
            problem.fresh = !self.reported.iter().any(|reported| reported.same_as(problem));
        }
        self.reported.clone_from(&problems);
        self.first = false;
        let kept = || self.problems.iter().chain(&self.reported);
        SourceUpdate {
            source: NAME,
            pods: self.pods.clone(),
            objects: self.objects.clone(),
            // A failed fetch does not invalidate the pods of the one before.
            complete: self.seen && self.problems.is_empty(),
            held: SourceUsage {
                pod_bytes: self.bytes,
                problems: kept().count(),
                problem_bytes: kept().map(Problem::bytes).sum(),
            },
            problems,
            server: ServerPods::default(),
        }
    }
}

async fn whole(response: Response<Incoming>) -> Result<Reply, String> {
    let status = response.status();
    let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned);
    let (mut incoming, mut body) = (response.into_body(), Vec::new());
    // The body of any other status is ignored.
    while status == hyper::StatusCode::OK
        && let Some(frame) = incoming.frame().await
    {
        let Ok(data) = frame.map_err(|error| format!("the answer breaks off: {error}"))?.into_data() else {
            continue;
        };
        if body.len() + data.len() > MANIFEST_BYTES_MAX {
            return Err(format!("is too large: at most {MANIFEST_BYTES_MAX} bytes are read"));
        }
        body.extend_from_slice(&data);
    }
    Ok(Reply { status, location, body })
}

#[cfg(feature = "tls")]
use trust::Trust;

/// The trusted certificate authorities: the system's, from the paths that Go uses (`crypto/x509/root_linux.go`).
#[cfg(feature = "tls")]
mod trust {
    use std::cell::RefCell;
    use std::net::TcpStream;
    use std::path::PathBuf;
    use std::sync::Arc;

    use futures_rustls::TlsConnector;
    use futures_rustls::pki_types::ServerName;
    use futures_rustls::rustls::client::{ClientConfig, Resumption};
    use futures_rustls::rustls::crypto::ring;
    use futures_rustls::rustls::{CertificateError, Error, RootCertStore};

    use crate::blocking::unblock;
    use crate::filesystem::read_linked;
    use crate::limits::{AUTHORITIES_BYTES_MAX, MANIFEST_WIRE_BYTES_MAX, PEER_HANDSHAKE_BYTES_MAX};
    use crate::stream::{Socket, Stream, stream};
    use crate::tls::{certificates, server_verifier};

    /// The environment variable that names another file.
    const FILE: &str = "SSL_CERT_FILE";
    const FILES: [&str; 6] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/pki/tls/cacert.pem",
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];

    /// The TLS configuration; loaded for the first connection, and again after a failed one.
    #[derive(Default)]
    pub(super) struct Trust {
        config: RefCell<Option<Arc<ClientConfig>>>,
        /// The only file, in tests.
        pub(super) file: Option<PathBuf>,
    }

    impl Trust {
        /// Reloads the files for the next connection, because they may have changed.
        pub(super) fn forget(&self) {
            self.config.replace(None);
        }

        /// TLS 1.2 or 1.3 over this connection to `host`.
        ///
        /// # Errors
        /// There are no certificate authorities, or the handshake failed.
        pub(super) async fn connect(&self, host: &str, socket: Socket<TcpStream>) -> Result<Stream, String> {
            let known = self.config.borrow().clone();
            let config = if let Some(config) = known {
                config
            } else {
                let file = self.file.clone();
                let config = Arc::new(unblock(move || config(file)).await?);
                self.config.replace(Some(config.clone()));
                config
            };
            let name = ServerName::try_from(host.to_owned())
                .map_err(|_| format!("{host:?} is no name of a host"))?;
            socket.set_ration(PEER_HANDSHAKE_BYTES_MAX);
            let connected = TlsConnector::from(config).connect(name, socket).await.map_err(|error| {
                match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
                    Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => format!(
                        "tls: no authority of this machine has signed the server's certificate; add it (ca-certificates), or name \
                         a file of authorities with {FILE}"
                    ),
                    Some(error) => format!("tls: {error}"),
                    None => format!("tls: {error}"),
                }
            })?;
            connected.get_ref().0.set_ration(MANIFEST_WIRE_BYTES_MAX);
            Ok(stream(connected))
        }
    }

    /// I/O, blocking.
    fn config(file: Option<PathBuf>) -> Result<ClientConfig, String> {
        let named = file.or_else(|| std::env::var_os(FILE).map(PathBuf::from));
        let files = named.map_or_else(|| FILES.iter().map(PathBuf::from).collect(), |file| vec![file]);
        // A bundle has some 200 KiB.
        let pem = files.iter().find_map(|path| read_linked(path, AUTHORITIES_BYTES_MAX).ok());
        let mut roots = RootCertStore::empty();
        // Unusable certificates are skipped.
        roots.add_parsable_certificates(pem.as_deref().and_then(certificates).unwrap_or_default());
        if roots.is_empty() {
            let looked = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "tls: this machine has no certificates of authorities (looked for {looked}); install ca-certificates, or name \
                 a file with {FILE}"
            ));
        }
        let verifier = server_verifier(roots).map_err(|error| format!("tls: {error}"))?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("tls: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

#[cfg(test)]
#[cfg(feature = "tls")]
mod tests {
    use std::net::TcpListener;
    use std::rc::Rc;

    use async_io::Async;
    use futures_rustls::TlsAcceptor;
    use futures_rustls::pki_types::PrivateKeyDer;
    use futures_rustls::rustls::ServerConfig;
    use futures_rustls::rustls::crypto::ring;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock::SystemClock;
    use crate::x509::pem;

    /// A self-signed certificate in PEM, and the server configuration with it.
    fn signed(by: &str) -> (String, TlsAcceptor) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, by);
        let certificate = params.self_signed(&key).unwrap();
        let text = pem("CERTIFICATE", certificate.der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialized_der().to_vec().into()),
            );
        (text, TlsAcceptor::from(Arc::new(config.unwrap())))
    }

    async fn serve(listener: Async<TcpListener>, acceptor: TlsAcceptor) -> Option<SourceUpdate> {
        let body =
            "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: app, image: a}]}}";
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let Ok(mut tls) = acceptor.accept(socket).await else { continue };
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                tls.read_exact(&mut byte).await.unwrap();
                head.push(byte[0]);
            }
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            tls.write_all(answer.as_bytes()).await.unwrap();
            tls.close().await.unwrap();
        }
    }

    #[test]
    fn a_server_by_https_is_believed_when_an_authority_of_this_machine_has_signed_it() {
        let (own, acceptor) = signed("own");
        let (other, _) = signed("other");
        let listener = Async::<TcpListener>::bind(([127, 0, 0, 1], 0)).unwrap();
        let url = format!("https://localhost:{}/pods", listener.get_ref().local_addr().unwrap().port());
        let get = HttpGet::of_url(&url, HeaderMap::new()).unwrap();
        let file = std::env::temp_dir().join(format!("smolet-authorities-{}", std::process::id()));
        let mut source =
            HttpSource::new(get, NodeName::new("gw"), Rc::new(SystemClock), Duration::from_secs(20));
        source.trust.file = Some(file.clone());
        let asked = async {
            for (text, why) in [
                (None, "tls: this machine has no certificates of authorities (looked for /"),
                (Some(other), "tls: no authority of this machine has signed the server's certificate"),
                (Some(own), ""),
            ] {
                if let Some(text) = text {
                    std::fs::write(&file, text).unwrap();
                }
                let update = source.look().await.unwrap();
                let reported = update.problems.first().map(|problem| problem.message.to_string());
                assert!(reported.unwrap_or_default().starts_with(why), "{:?}", update.problems);
                assert_eq!(
                    (update.pods.len(), update.complete),
                    (usize::from(why.is_empty()), why.is_empty())
                );
            }
            None
        };
        smol::block_on(smol::future::or(asked, serve(listener, acceptor)));
        std::fs::remove_file(&file).unwrap();
    }
}
