//! A k3s server as a node meets it: its supervisor's paths over HTTP/1.1 and TLS, and its end of the tunnel (remotedialer's server),
//! written for itself from what k3s does, with nothing of the agent's.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_io::Async;
use futures_rustls::TlsAcceptor;
use futures_rustls::server::TlsStream;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};
use smol::LocalExecutor;
use smol::channel::{Receiver, Sender};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::apiserver::signer::Signer;
use crate::common::apiserver::{ApiServer, Authority, base64};

pub const SECRET: &str = "0ffe7a8d3c21";
/// How long connections of an agent that was killed are waited for.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// A token of `k3s token create`.
pub const BOOTSTRAP: &str = "abcdef.0123456789abcdef";

/// A request, without its body.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// By certificate.
    pub user: Option<String>,
}

#[derive(Default)]
pub struct State {
    pub asked: Vec<RecordedRequest>,
    /// Of nodes, by name: the first that it was told.
    pub passwords: BTreeMap<String, String>,
    /// It knows no requests of nodes, and sends keys.
    pub legacy: bool,
    /// Nobody is let in by the token any more.
    pub token_ended: bool,
    /// It wants to reach pods, too.
    pub reaches_pods: bool,
    /// It opens no tunnels.
    pub refuses_tunnels: bool,
    /// It gives nothing but what nodes need.
    pub refuses_components: bool,
    /// The secret of its token, instead of [`SECRET`].
    pub secret: Option<String>,
    /// Settings besides the usual ones.
    pub settings: Value,
    /// The authorities that it lists, instead of its first one.
    pub authorities: Option<String>,
    /// What it lists as the cluster's servers; none: it knows no such list.
    pub apiservers: Option<Value>,
    /// Connections since the start, those of whoever does not trust it included.
    pub connections: usize,
    /// Connections whose TLS handshake is not over.
    pub handshakes: usize,
    /// Connections that are not over.
    pub open: usize,
    /// Certificates hold for so many seconds.
    pub seconds: Option<i64>,
    /// Its tunnels, by node.
    tunnels: BTreeMap<String, Sender<Dial>>,
}

/// A connection that is to go through a tunnel.
struct Dial(String, Async<TcpStream>);

pub struct K3s {
    state: Arc<Mutex<State>>,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    address: SocketAddr,
    ca: String,
    ports: Sender<(String, String, Async<TcpListener>)>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Arc<Mutex<State>>,
    signer: Signer,
    ca: String,
    client_ca: String,
    api_port: u16,
    acceptor: Arc<Mutex<TlsAcceptor>>,
}

impl K3s {
    pub fn start(api: &ApiServer) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").unwrap(), api, api.address().port())
    }

    /// On that socket, with its API on that port of the same host.
    pub fn start_on(listener: TcpListener, api: &ApiServer, api_port: u16) -> Self {
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let (ca, client_ca) = (api.ca_pem(), api.client_ca_pem());
        let acceptor = TlsAcceptor::from(Arc::new(api.tls(b"http/1.1")));
        let acceptor = Arc::new(Mutex::new(acceptor));
        let shared = Shared {
            state: state.clone(),
            signer: api.signer(),
            ca: ca.clone(),
            client_ca,
            api_port,
            acceptor: acceptor.clone(),
        };
        let (ports, wanted) = smol::channel::unbounded();
        let run = move || {
            let executor = Rc::new(LocalExecutor::new());
            let serve = serve(Async::new(listener).unwrap(), Rc::new(shared), executor.clone(), wanted);
            smol::block_on(executor.run(serve));
        };
        let thread = std::thread::Builder::new().name("k3s".into()).spawn(run).unwrap();
        Self { state, acceptor, address, ca, ports, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The whole token of a node.
    pub fn token(&self) -> String {
        format!("K10{}::node:{SECRET}", hex(digest(&SHA256, self.ca.as_bytes()).as_ref()))
    }

    /// As after `k3s certificate rotate-ca` and a restart of the server: it has a certificate of that authority, lists these, and
    /// its tunnels are gone.
    pub fn rotate(&self, api: &ApiServer, authority: &Authority, listed: &[String]) {
        *self.acceptor.lock().unwrap() = TlsAcceptor::from(Arc::new(api.tls_of(authority, b"http/1.1")));
        self.state().authorities = Some(listed.concat());
        self.cut_tunnels();
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What was asked for.
    pub fn paths(&self) -> Vec<String> {
        self.state().asked.iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect()
    }

    /// Forgets what was asked for by an agent that was killed, when its connections have ended: none of it comes later.
    pub fn forget(&self) {
        let begun = Instant::now();
        while self.state().open > 0 && begun.elapsed() < END_PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.state().asked.clear();
    }

    /// A port of this machine behind which the node connects to that, through its tunnel.
    pub fn forward(&self, node: &str, to: &str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let listener = Async::new(listener).unwrap();
        self.ports.try_send((node.to_owned(), to.to_owned(), listener)).unwrap();
        port
    }

    pub fn has_tunnel(&self, node: &str) -> bool {
        self.state().tunnels.get(node).is_some_and(|tunnel| !tunnel.is_closed())
    }

    pub fn cut_tunnels(&self) {
        for tunnel in std::mem::take(&mut self.state().tunnels).into_values() {
            tunnel.close();
        }
    }
}

impl Drop for K3s {
    fn drop(&mut self) {
        self.ports.close();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn serve(
    listener: Async<TcpListener>,
    shared: Rc<Shared>,
    executor: Rc<LocalExecutor<'static>>,
    wanted: Receiver<(String, String, Async<TcpListener>)>,
) {
    let forward = async {
        while let Ok((node, to, listener)) = wanted.recv().await {
            let state = shared.state.clone();
            let accept = async move {
                while let Ok((socket, _)) = listener.accept().await {
                    let tunnel = state.lock().unwrap().tunnels.get(&node).cloned();
                    if let Some(tunnel) = tunnel {
                        let _ = tunnel.send(Dial(to.clone(), socket)).await;
                    }
                }
            };
            executor.spawn(accept).detach();
        }
    };
    let accept = async {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let shared = shared.clone();
            let acceptor = shared.acceptor.lock().unwrap().clone();
            {
                let mut state = shared.state.lock().unwrap();
                state.connections += 1;
                state.handshakes += 1;
                state.open += 1;
            }
            let served = async move {
                let accepted = acceptor.accept(socket).await;
                shared.state.lock().unwrap().handshakes -= 1;
                // Whoever trusts another authority goes away in the middle of it.
                if let Ok(tls) = accepted {
                    let _ = answer(tls, &shared).await;
                }
                shared.state.lock().unwrap().open -= 1;
            };
            executor.spawn(served).detach();
        }
    };
    smol::future::or(forward, accept).await;
}

async fn answer(mut tls: TlsStream<Async<TcpStream>>, shared: &Rc<Shared>) -> io::Result<()> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        more(&mut tls, &mut bytes).await?;
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < end + length {
        more(&mut tls, &mut bytes).await?;
    }
    let user = shared.signer.user(tls.get_ref().1.peer_certificates().unwrap_or_default());
    let asked = RecordedRequest {
        method: first.next().unwrap().to_owned(),
        path: first.next().unwrap().to_owned(),
        headers,
        user: user.map(|user| user.name),
    };
    shared.state.lock().unwrap().asked.push(asked.clone());
    if asked.path == "/v1-k3s/connect" {
        return connect(tls, shared, asked).await;
    }
    let (status, body) = respond(shared, &asked, &bytes[end..]);
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    tls.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    tls.close().await
}

async fn more(tls: &mut TlsStream<Async<TcpStream>>, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 4096];
    match tls.read(&mut piece).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => {
            bytes.extend_from_slice(&piece[..read]);
            Ok(())
        }
    }
}

fn respond(shared: &Shared, asked: &RecordedRequest, body: &[u8]) -> (u16, String) {
    let mut state = shared.state.lock().unwrap();
    let header = |name: &str| asked.headers.get(name).cloned().unwrap_or_default();
    let authorities = state.authorities.clone().unwrap_or_else(|| shared.ca.clone());
    if asked.path == "/cacerts" {
        return (200, authorities);
    }
    let secret = state.secret.as_deref().unwrap_or(SECRET);
    let basic = format!("Basic {}", base64(format!("node:{secret}").as_bytes()));
    let by_token =
        !state.token_ended && [basic, format!("Bearer {BOOTSTRAP}")].contains(&header("authorization"));
    let by_certificate = asked.user.as_ref().is_some_and(|user| user.starts_with("system:node:"));
    if !by_token && !by_certificate {
        return (401, "Unauthorized".into());
    }
    match asked.path.as_str() {
        "/v1-k3s/client-ca.crt" => (200, shared.client_ca.clone()),
        "/v1-k3s/server-ca.crt" => (200, authorities),
        "/v1-k3s/config" => {
            let mut config = json!({"ClusterDNS": "10.43.0.10", "ClusterDNSs": ["10.43.0.10"], "ClusterDomain": "k3s.test",
                "HTTPSPort": shared.api_port, "SupervisorPort": 1, "EgressSelectorMode": if state.reaches_pods { "pod" } else { "agent" }});
            for (field, value) in state.settings.as_object().into_iter().flatten() {
                config[field] = value.clone();
            }
            (200, config.to_string())
        }
        "/v1-k3s/apiservers" if state.apiservers.is_some() => {
            (200, state.apiservers.clone().unwrap_or_default().to_string())
        }
        path @ ("/v1-k3s/serving-kubelet.crt" | "/v1-k3s/client-kubelet.crt") => {
            let (node, password) = (header("k3s-node-name"), header("k3s-node-password"));
            // A certificate counts before the token.
            if by_certificate && asked.user != Some(format!("system:node:{node}")) {
                return (400, "header node name does not match auth node name".into());
            }
            let known = state.passwords.entry(node.clone()).or_insert_with(|| password.clone());
            if *known != password || password.is_empty() {
                return (403, "unable to verify password".into());
            }
            if state.legacy && asked.method == "POST" {
                return (405, "Method Not Allowed".into());
            }
            let request = (!state.legacy).then_some(body);
            let ips = header("k3s-node-ip");
            let serves = path.contains("serving").then_some(ips.as_str());
            (200, shared.signer.node(&node, serves, request, state.seconds))
        }
        path @ ("/v1-k3s/client-kube-proxy.crt" | "/v1-k3s/client-k3s-controller.crt") => {
            if state.refuses_components {
                return (403, "Forbidden".into());
            }
            let proxy = path.contains("kube-proxy");
            let user = if proxy { "system:kube-proxy" } else { "system:k3s-controller" };
            // An older one sends its files, whatever the method.
            let request = (!state.legacy).then_some(body);
            (200, shared.signer.component(user, request, state.seconds))
        }
        _ => (404, "404 page not found".into()),
    }
}

/// The server's end of a tunnel: connections by number, each with the writer of its socket.
async fn connect(
    mut tls: TlsStream<Async<TcpStream>>,
    shared: &Rc<Shared>,
    asked: RecordedRequest,
) -> io::Result<()> {
    if shared.state.lock().unwrap().refuses_tunnels {
        return tls.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await;
    }
    let Some(node) = asked.user.as_ref().and_then(|user| user.strip_prefix("system:node:")) else {
        return tls.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").await;
    };
    let key = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", asked.headers["sec-websocket-key"]);
    let accept = base64(digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()).as_ref());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    tls.write_all(head.as_bytes()).await?;
    let (dials, dialling) = smol::channel::unbounded();
    shared.state.lock().unwrap().tunnels.insert(node.to_owned(), dials.clone());
    let (mut reader, mut writer) = smol::io::split(tls);
    let (out, frames) = smol::channel::bounded::<Vec<u8>>(8);
    let sockets: RefCell<BTreeMap<i64, Rc<Async<TcpStream>>>> = RefCell::default();
    let connections = LocalExecutor::new();
    let write = async {
        while let Ok(frame) = frames.recv().await {
            writer.write_all(&frame).await?;
            writer.flush().await?;
        }
        io::Result::Ok(())
    };
    let dial = async {
        let mut number = 0;
        while let Ok(Dial(address, socket)) = dialling.recv().await {
            number += 1;
            let (id, socket, out) = (number, Rc::new(socket), out.clone());
            sockets.borrow_mut().insert(id, socket.clone());
            out.send(binary(&[varints(&[1, id, 2, 15_000]), format!("tcp/{address}").into_bytes()].concat()))
                .await
                .unwrap();
            let up = async move {
                let mut buffer = vec![0; 32 * 1024];
                while let Ok(read @ 1..) = (&*socket).read(&mut buffer).await {
                    let message = [varints(&[1, id, 1, 15_000]), buffer[..read].to_vec()].concat();
                    if out.send(binary(&message)).await.is_err() {
                        return;
                    }
                }
                let _ = out.send(binary(&[varints(&[1, id, 3]), b"EOF".to_vec()].concat())).await;
            };
            connections.spawn(up).detach();
        }
        // Cut by the test.
        io::Result::Ok(())
    };
    let read = async {
        loop {
            let mut head = [0; 2];
            reader.read_exact(&mut head).await?;
            let length = match head[1] & 0x7f {
                126 => {
                    let mut bytes = [0; 2];
                    reader.read_exact(&mut bytes).await?;
                    usize::from(u16::from_be_bytes(bytes))
                }
                127 => panic!("a node sends no frame so long"),
                short => usize::from(short),
            };
            assert_eq!(head[1] & 0x80, 0x80, "a client masks what it sends");
            let mut mask = [0; 4];
            reader.read_exact(&mut mask).await?;
            let mut payload = vec![0; length];
            reader.read_exact(&mut payload).await?;
            payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
            match head[0] {
                0x82 => {}
                0x89 => {
                    out.send([&[0x8a, u8::try_from(length).unwrap()][..], &payload].concat()).await.unwrap();
                    continue;
                }
                other => panic!("a frame {other:#x}"),
            }
            let mut rest = &payload[..];
            let (_, id, kind) = (varint(&mut rest), varint(&mut rest), varint(&mut rest));
            let socket = sockets.borrow().get(&id).cloned();
            match kind {
                1 => {
                    varint(&mut rest);
                    if let Some(socket) = socket {
                        let _ = (&*socket).write_all(rest).await;
                    }
                }
                3 => {
                    sockets.borrow_mut().remove(&id);
                    if let Some(socket) = socket {
                        let _ = socket.get_ref().shutdown(std::net::Shutdown::Both);
                    }
                }
                other => panic!("a message of kind {other}"),
            }
        }
    };
    let served = smol::future::or(write, smol::future::or(dial, read));
    let ended = connections.run(served).await;
    dials.close();
    ended
}

fn binary(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x82];
    match u8::try_from(message.len()) {
        Ok(short @ ..126) => frame.push(short),
        _ if message.len() < 65_536 => {
            frame.push(126);
            frame.extend_from_slice(&u16::try_from(message.len()).unwrap().to_be_bytes());
        }
        _ => panic!("no message is so long"),
    }
    frame.extend_from_slice(message);
    frame
}

fn varints(values: &[i64]) -> Vec<u8> {
    let mut out = Vec::new();
    for value in values {
        let mut value = u64::try_from(*value).unwrap() * 2;
        while value >= 0x80 {
            out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).unwrap());
    }
    out
}

fn varint(bytes: &mut &[u8]) -> i64 {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            assert_eq!(value & 1, 0, "nothing is negative here");
            return i64::try_from(value / 2).unwrap();
        }
    }
}
