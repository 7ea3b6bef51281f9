//! A registry of the tests: the OCI distribution protocol over real sockets of this machine, with faults on request. It is a token
//! service and a proxy as well.

#![allow(dead_code)]

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::json;
use smolet::image_store::Digest;

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// User name and password that it accepts.
pub const LOGIN: (&str, &str) = ("me", "hunter2-secret");
/// Refresh token that it accepts.
pub const REFRESH: &str = "refresh-secret";

/// Whom it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    #[default]
    Anyone,
    /// A user name and a password.
    Basic,
    /// Tokens, which anyone gets.
    Token,
    /// Tokens for [`LOGIN`] or [`REFRESH`].
    TokenForLogin,
}

/// What it does wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Responses with blobs are cut after so many bytes, so often.
    pub cut: Option<(u64, u32)>,
    /// `Range` is ignored.
    pub no_range: bool,
    /// So many responses with blobs have a wrong byte.
    pub wrong: u32,
    /// Requests for parts of a repository are answered like this first: status and `Retry-After`.
    pub statuses: VecDeque<(u16, Option<&'static str>)>,
    /// They are answered like this always.
    pub always: Option<u16>,
    /// Blobs are at this URL.
    pub blobs_at: Option<String>,
    /// Each response has another `ETag`.
    pub other_etags: bool,
    /// Ranges are answered with 416.
    pub refuses_ranges: bool,
    /// Blobs end with so many bytes less, without a Content-Length of their own.
    pub short: u64,
    /// A token serves so many requests.
    pub token_uses: Option<u32>,
    /// Time before each piece of a blob.
    pub slow: Option<Duration>,
    /// HEAD is not known.
    pub no_head: bool,
    /// So many blobs stop in their middle without an end.
    pub stalls: u32,
    /// The bodies of refusals do not come. HEAD, whose responses have none, is not refused.
    pub silent_refusals: bool,
    /// So many requests for ranges are answered with a page of something in between: a proxy, a portal.
    pub pages: u32,
    /// Requests for layers are answered like this always.
    pub layers: Option<u16>,
    /// With this `Retry-After`.
    pub after: Option<&'static str>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Logged {
    pub method: String,
    pub target: String,
    pub headers: HashMap<String, String>,
}

#[derive(Default)]
pub struct State {
    /// By `repository/manifests/reference` and `repository/blobs/digest`: type, bytes and their digest.
    content: HashMap<String, (String, Vec<u8>, Digest)>,
    pub auth: Auth,
    pub faults: Faults,
    pub log: Vec<Logged>,
    /// Bytes of blobs that were sent.
    pub sent: u64,
    tokens: HashMap<String, u32>,
    tokens_made: u32,
}

/// What makes TLS of a connection.
type Wrap = dyn Fn(TcpStream) -> Box<dyn Duplex> + Send + Sync;
pub trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// The registry. Its threads end when it is dropped.
pub struct Registry {
    pub address: SocketAddr,
    pub state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Registry {
    pub fn start() -> Self {
        Self::with(None)
    }

    /// With TLS; CONNECT comes before TLS.
    #[cfg(all(feature = "tls", target_arch = "x86_64"))]
    pub fn start_tls(config: futures_rustls::rustls::ServerConfig) -> Self {
        use futures_rustls::rustls::{ServerConnection, StreamOwned};
        let config = Arc::new(config);
        Self::with(Some(Arc::new(move |socket| {
            Box::new(StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket))
                as Box<dyn Duplex>
        })))
    }

    fn with(wrap: Option<Arc<Wrap>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (state, ended) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        let (serving, is_over) = (state.clone(), ended.clone());
        let accept = move || {
            let mut connections: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
            for socket in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(socket) = socket else { continue };
                let (state, wrap, held) = (serving.clone(), wrap.clone(), socket.try_clone().unwrap());
                connections.push((
                    held,
                    std::thread::spawn(move || connection(socket, address, &state, wrap.as_deref())),
                ));
            }
            for (socket, thread) in connections {
                let _ = socket.shutdown(std::net::Shutdown::Both);
                let _ = thread.join();
            }
        };
        Self { address, state, ended, listener: Some(std::thread::spawn(accept)) }
    }

    /// `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn put(&self, path: &str, kind: &str, bytes: Vec<u8>) {
        let digest = Digest::of(&bytes);
        self.state.lock().unwrap().content.insert(path.to_owned(), (kind.to_owned(), bytes, digest));
    }

    pub fn set(&self, auth: Auth, faults: Faults) {
        let mut state = self.state.lock().unwrap();
        (state.auth, state.faults) = (auth, faults);
        state.log.clear();
        state.sent = 0;
        state.tokens.clear();
    }

    pub fn log(&self) -> Vec<Logged> {
        self.state.lock().unwrap().log.clone()
    }

    pub fn sent(&self) -> u64 {
        self.state.lock().unwrap().sent
    }

    /// Puts an image for each platform under an index with this tag; returns the digest of the index. Layers are not compressed:
    /// each is its own archive.
    pub fn put_image(
        &self,
        repository: &str,
        tag: &str,
        platforms: &[(&str, &str)],
        layers: &[Vec<u8>],
    ) -> Digest {
        let layers: Vec<_> = layers.iter().map(|layer| (layer.clone(), Digest::of(layer))).collect();
        self.put_layers(repository, tag, platforms, &layers)
    }

    /// The same of layers with the digests of their archives.
    pub fn put_layers(
        &self,
        repository: &str,
        tag: &str,
        platforms: &[(&str, &str)],
        layers: &[(Vec<u8>, Digest)],
    ) -> Digest {
        let manifests: Vec<_> = platforms
            .iter()
            .map(|(architecture, variant)| {
                let (digest, size) = self.put_manifest(repository, architecture, "", layers);
                json!({
                    "mediaType": OCI_MANIFEST, "digest": digest.to_string(), "size": size,
                    "platform": {"os": "linux", "architecture": architecture, "variant": variant},
                })
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests}).to_string();
        let digest = Digest::of(index.as_bytes());
        for reference in [tag.to_owned(), digest.to_string()] {
            self.put(&format!("{repository}/manifests/{reference}"), OCI_INDEX, index.clone().into_bytes());
        }
        digest
    }

    /// Serves other bytes for a blob.
    pub fn replace_blob(&self, repository: &str, digest: &Digest, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        let blob = state.content.get_mut(&format!("{repository}/blobs/{digest}")).unwrap();
        blob.1 = bytes.to_vec();
    }

    /// Puts an image without an index, whose configuration has that author.
    pub fn put_described(&self, repository: &str, tag: &str, author: &str, layers: &[Vec<u8>]) {
        let layers: Vec<_> = layers.iter().map(|layer| (layer.clone(), Digest::of(layer))).collect();
        let (digest, _) = self.put_manifest(repository, "arm", author, &layers);
        let mut state = self.state.lock().unwrap();
        let manifest = state.content[&format!("{repository}/manifests/{digest}")].clone();
        state.content.insert(format!("{repository}/manifests/{tag}"), manifest);
    }

    fn put_manifest(
        &self,
        repository: &str,
        architecture: &str,
        author: &str,
        layers: &[(Vec<u8>, Digest)],
    ) -> (Digest, usize) {
        let diff_ids: Vec<String> = layers.iter().map(|(_, diff_id)| diff_id.to_string()).collect();
        let config = json!({
            "os": "linux", "architecture": architecture, "config": {"Cmd": ["/bin/sh"]}, "author": author,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        })
        .to_string();
        let config_digest = Digest::of(config.as_bytes());
        self.put(
            &format!("{repository}/blobs/{config_digest}"),
            "application/octet-stream",
            config.clone().into_bytes(),
        );
        let mut described = Vec::new();
        for (layer, _) in layers {
            let digest = Digest::of(layer).to_string();
            self.put(&format!("{repository}/blobs/{digest}"), "application/octet-stream", layer.clone());
            let packed = if layer.starts_with(&[0x1f, 0x8b]) { "+gzip" } else { "" };
            described.push(json!({
                "mediaType": format!("application/vnd.oci.image.layer.v1.tar{packed}"), "digest": digest, "size": layer.len(),
            }));
        }
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": described,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": config_digest.to_string(), "size": config.len(),
            },
        })
        .to_string();
        let (digest, size) = (Digest::of(manifest.as_bytes()), manifest.len());
        self.put(&format!("{repository}/manifests/{digest}"), OCI_MANIFEST, manifest.into_bytes());
        (digest, size)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// A response.
struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    is_blob: bool,
}

impl Response {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), is_blob: false }
    }

    fn error(status: u16, code: &str, message: &str) -> Self {
        Self::new(status, json!({"errors": [{"code": code, "message": message}]}).to_string())
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

fn connection(socket: TcpStream, address: SocketAddr, state: &Mutex<State>, wrap: Option<&Wrap>) {
    let mut socket = socket;
    let _ = socket.set_nodelay(true);
    let mut first = [0];
    // A TLS record begins with 22, CONNECT with a letter.
    if wrap.is_some() && socket.peek(&mut first).is_ok_and(|n| n == 1) && first[0] != 22 {
        let Some(request) = read_request(&mut socket) else { return };
        let is_connect = request.method == "CONNECT";
        state.lock().unwrap().log.push(request);
        let answer = if is_connect { "200 OK" } else { "400 Bad Request" };
        if write!(socket, "HTTP/1.1 {answer}\r\n\r\n").is_err() || !is_connect {
            return;
        }
    }
    if wrap.is_none() && socket.peek(&mut first).is_ok_and(|n| n == 1) && first[0] == 22 {
        // As Go's and other servers answer TLS.
        let _ = socket.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n\n");
        let _ = socket.shutdown(std::net::Shutdown::Both);
        return;
    }
    let held = socket.try_clone().unwrap();
    match wrap {
        Some(wrap) => serve(&mut wrap(socket), address, state, "https"),
        None => serve(&mut socket, address, state, "http"),
    }
    let _ = held.shutdown(std::net::Shutdown::Both);
}

fn serve(socket: &mut (impl Read + Write + ?Sized), address: SocketAddr, state: &Mutex<State>, scheme: &str) {
    while let Some(request) = read_request(socket) {
        let response = respond(&request, address, &mut state.lock().unwrap(), scheme);
        if !send(socket, &request, response, state) {
            return;
        }
    }
}

fn read_request(socket: &mut (impl Read + ?Sized)) -> Option<Logged> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if socket.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let split = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()));
    let headers: HashMap<String, String> = lines.filter_map(split).collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    socket.read_exact(&mut body).ok()?;
    let mut headers = headers;
    if length > 0 {
        headers.insert("body".to_owned(), String::from_utf8(body).unwrap());
    }
    Some(Logged { method, target, headers })
}

/// False: the connection is over.
fn send(
    socket: &mut (impl Read + Write + ?Sized),
    request: &Logged,
    response: Response,
    state: &Mutex<State>,
) -> bool {
    let Response { status, headers, body, is_blob } = response;
    let mut head = format!("HTTP/1.1 {status} X\r\n");
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    if socket.write_all(head.as_bytes()).is_err() {
        return false;
    }
    if status == 401 && state.lock().unwrap().faults.silent_refusals {
        // Until the client, or the registry, closes the connection.
        let _ = socket.flush();
        let _ = socket.read(&mut [0]);
        return false;
    }
    if request.method == "HEAD" {
        return socket.flush().is_ok();
    }
    if !is_blob {
        return socket.write_all(&body).and_then(|()| socket.flush()).is_ok();
    }
    let (cut, slow, short, stalls) = {
        let mut state = state.lock().unwrap();
        let faults = &mut state.faults;
        let cut = faults.cut.as_mut().filter(|(_, times)| *times > 0).map(|(bytes, times)| {
            *times -= 1;
            *bytes
        });
        let stalls = faults.stalls > 0;
        faults.stalls = faults.stalls.saturating_sub(1);
        (cut, faults.slow, faults.short, stalls)
    };
    let whole = body.len() as u64;
    let mut end = cut.unwrap_or(whole).min(whole - short.min(whole));
    if stalls {
        end = whole / 2;
    }
    for piece in body[..usize::try_from(end).unwrap()].chunks(16 * 1024) {
        if let Some(slow) = slow {
            std::thread::sleep(slow);
        }
        if socket.write_all(piece).is_err() {
            return false;
        }
        state.lock().unwrap().sent += piece.len() as u64;
    }
    let flushed = socket.flush().is_ok();
    if stalls {
        // Longer than the client waits, of whose time there is a twentieth.
        std::thread::sleep(Duration::from_secs(3));
    }
    flushed && end == whole
}

fn respond(request: &Logged, address: SocketAddr, state: &mut State, scheme: &str) -> Response {
    state.log.push(request.clone());
    let target = request.target.strip_prefix("http://registry.test").unwrap_or(&request.target);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let login = format!("Basic {}", BASE64_STANDARD.encode(format!("{}:{}", LOGIN.0, LOGIN.1)));
    let authorization = request.headers.get("authorization").map(String::as_str);
    if path == "/token" {
        let body = request.headers.get("body").map(String::as_str).unwrap_or_default();
        let refreshed = request.method == "POST" && body.contains(&format!("refresh_token={REFRESH}"));
        let allowed = state.auth == Auth::Token && authorization.is_none_or(|given| given == login)
            || authorization == Some(&*login)
            || refreshed;
        if !allowed {
            return Response::new(401, json!({"details": "incorrect username or password"}).to_string());
        }
        assert!(refreshed || query.contains("service=tests&scope=repository%3A"), "{query}");
        state.tokens_made += 1;
        let token = format!("token-secret-{}", state.tokens_made);
        state.tokens.insert(token.clone(), 0);
        return Response::new(200, json!({"token": token, "expires_in": 300}).to_string());
    }
    let Some(part) = path.strip_prefix("/v2/") else {
        return Response::error(404, "UNKNOWN", "no such path");
    };
    let is_open = request.method == "HEAD" && state.faults.silent_refusals;
    if let Some(refused) = refused(authorization, &login, part, address, state, scheme)
        && !is_open
    {
        return refused;
    }
    if let Some(status) = state.faults.always {
        return Response::error(status, "UNKNOWN", "always wrong");
    }
    if let Some((status, after)) = state.faults.statuses.pop_front() {
        let response = Response::error(status, "TOOMANYREQUESTS", "for now");
        return after.map_or(response, |after| {
            Response::error(status, "TOOMANYREQUESTS", "for now").with("Retry-After", after)
        });
    }
    if part.is_empty() {
        return Response::new(200, "{}");
    }
    if request.method == "HEAD" && state.faults.no_head {
        return Response::new(405, "");
    }
    let is_blob = part.contains("/blobs/");
    if is_blob && let Some(at) = &state.faults.blobs_at {
        return Response::new(307, "").with("Location", format!("{at}{path}?signature=signed-secret"));
    }
    let Some((kind, bytes, digest)) = state.content.get(part).cloned() else {
        return Response::error(404, "MANIFEST_UNKNOWN", "manifest unknown");
    };
    if let Some(status) = state.faults.layers
        && is_blob
        && !bytes.starts_with(b"{")
    {
        let response = Response::error(status, "UNAVAILABLE", "no layers now");
        return match state.faults.after {
            Some(after) => response.with("Retry-After", after),
            None => response,
        };
    }
    let digest = digest.to_string();
    let headers = |response: Response| {
        response.with("Content-Type", kind.clone()).with("Docker-Content-Digest", digest.clone())
    };
    if !is_blob {
        return headers(Response::new(200, bytes));
    }
    let mut bytes = bytes;
    if state.faults.wrong > 0 && bytes.len() > 1000 {
        state.faults.wrong -= 1;
        bytes[0] ^= 1;
    }
    let etag = if state.faults.other_etags { state.log.len().to_string() } else { digest.clone() };
    let from = request.headers.get("range").filter(|_| !state.faults.no_range);
    let from = from.map(|range| {
        range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse::<usize>().unwrap()
    });
    let response = match from {
        Some(_) if state.faults.pages > 0 => {
            state.faults.pages -= 1;
            return Response::new(200, "<p>Who are you?</p>");
        }
        Some(_) if state.faults.refuses_ranges => Response::error(416, "RANGE_INVALID", "no"),
        Some(from) => {
            let all = bytes.len();
            Response::new(206, &bytes[from..])
                .with("Content-Range", format!("bytes {from}-{}/{all}", all - 1))
        }
        None => Response::new(200, bytes),
    };
    let is_blob = response.status < 300;
    Response { is_blob, ..headers(response).with("ETag", format!("\"{etag}\"")) }
}

/// The challenge, when the request is not allowed.
fn refused(
    authorization: Option<&str>,
    login: &str,
    part: &str,
    address: SocketAddr,
    state: &mut State,
    scheme: &str,
) -> Option<Response> {
    let challenge = match state.auth {
        Auth::Anyone => return None,
        Auth::Basic if authorization == Some(login) => return None,
        Auth::Basic => "Basic realm=\"tests\"".to_owned(),
        Auth::Token | Auth::TokenForLogin => {
            let token = authorization.and_then(|given| given.strip_prefix("Bearer ")).unwrap_or_default();
            if token == "given-secret" {
                return None;
            }
            let uses_max = state.faults.token_uses.unwrap_or(u32::MAX);
            if let Some(uses) = state.tokens.get_mut(token).filter(|uses| **uses < uses_max) {
                *uses += 1;
                return None;
            }
            let repository = part.split("/manifests/").next().unwrap().split("/blobs/").next().unwrap();
            format!(
                "Bearer realm=\"{scheme}://{address}/token\",service=\"tests\",scope=\"repository:{repository}:pull\""
            )
        }
    };
    Some(Response::error(401, "UNAUTHORIZED", "authentication required").with("WWW-Authenticate", challenge))
}
