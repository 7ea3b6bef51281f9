//! A tunnel: a WebSocket that the node opens to a k3s server, through which that server connects to the node's API and to its
//! pods (rancher/remotedialer's client, k3s' `agentTunnel`).
//!
//! ```text
//!     server ─► Connect 7 "tcp/127.0.0.1:10250" ─► is it allowed? ─► a socket, and a task that copies its bytes
//!     Data 7 ─► the task's queue ─► the socket       Pause when the queue is long, Resume when it is short again
//!     the socket ─► Data 7                           not while the server says Pause
//! ```
//!
//! Its memory is bounded: when all queues together are full, those of the other tunnels included, nothing further is read, and
//! TCP holds the server up. A connection whose local end reads nothing meanwhile is closed, because it blocks the others.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use smol::channel::Sender;
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use smol::lock::Semaphore;

use super::frame::{self, Kind};
use super::{Supervisor, random};
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::kube::{Access, KubeError, Loaded, RetryWait, ServerUrl, seed};
use crate::limits::{
    KUBE_CONNECT_TIME, NODE_SPLICE_BYTES, TUNNEL_MESSAGE_BYTES_MAX, TUNNEL_PING_PERIOD, TUNNEL_SILENCE_MAX,
    TUNNEL_WRITES_MAX,
};
use crate::metrics::NodeApiUse;
use crate::model::Mono;
use crate::node_api::TunnelSockets;
use crate::server::QuerySender;
use crate::stream::Duplex;
use crate::streaming::upgrade::{self, Head};

mod session;

use session::{Session, framed};

/// The tunnel's path on a k3s server.
const PATH: &str = "/v1-k3s/connect";
/// The `Sec-WebSocket-Accept` constant (RFC 6455).
const ACCEPT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The destinations that the server may connect to through the tunnel.
#[derive(Clone)]
pub(crate) struct Reach {
    /// Address of the node's own API.
    pub(crate) node_api: SocketAddr,
    /// Connects to the node's own API.
    pub(crate) sockets: TunnelSockets,
    /// Resolves the pods' addresses.
    pub(crate) asker: QuerySender,
    /// True when the server also connects to pods through the tunnel, by its settings.
    pub(crate) pods: Rc<Cell<bool>>,
}

/// State shared by all tunnels of a node.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) supervisor: Supervisor,
    /// The node's kubeconfig: its identity, and the authorities it trusts.
    pub(crate) access: Access,
    pub(crate) reach: Reach,
    /// Spawns a task for each connection. Weak: a task that holds the executor lasts for ever.
    pub(crate) executor: Weak<Executor>,
    pub(crate) clock: SharedClock,
    /// Differs from node to node, so that they do not reconnect at the same instant.
    pub(crate) seed: u64,
    /// Memory gauges.
    pub(crate) held: NodeApiUse,
    /// Slots of `limits::TUNNEL_CONNECTIONS_MAX` connections.
    pub(crate) places: Arc<Semaphore>,
    /// Bytes queued for local sockets.
    pub(crate) queued: Rc<Cell<usize>>,
}

/// The state of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelState {
    /// It has not been opened yet.
    Tried,
    Open,
    /// It could not be opened, or was lost.
    Lost,
}

/// A tunnel to one server.
pub(super) struct Tunnel {
    pub(super) server: ServerUrl,
    pub(super) common: Common,
    pub(super) standing: Rc<Cell<TunnelState>>,
    /// Notified when the state changes.
    pub(super) changed: Sender<()>,
    /// Notified when it becomes [`TunnelState::Lost`]: a tunnel may open and be lost before anybody looks at its state.
    pub(super) lost: Sender<()>,
}

impl Tunnel {
    /// Keeps the tunnel open until dropped.
    pub(super) async fn run(self) {
        let server = self.server.authority();
        let mut wait = RetryWait::new(self.common.seed ^ seed(&server));
        let mut logged = String::new();
        let mut is_said_open = false;
        loop {
            let why = match self.common.access.load().await {
                // The certificate was not issued yet; the join task has logged that.
                Err(KubeError::Config(why) | KubeError::NotJoined(why)) => {
                    log::debug!("tunnel: {why}");
                    String::new()
                }
                Err(error) => error.to_string(),
                Ok(with) => match self.open(Loaded { server: self.server.clone(), ..with }).await {
                    Ok((incoming, outgoing)) => {
                        if !std::mem::replace(&mut is_said_open, true) {
                            log::info!("tunnel: open to k3s server {server}");
                        }
                        self.stands(TunnelState::Open);
                        let opened = self.common.clock.now().mono;
                        let why = self.serve(incoming, outgoing).await;
                        // A tunnel that closes soon after each opening counts as failed.
                        if self.common.clock.now().mono.since(opened) > TUNNEL_SILENCE_MAX {
                            wait.succeeded();
                            logged.clear();
                        }
                        why
                    }
                    Err(why) => why,
                },
            };
            if !why.is_empty() {
                self.stands(TunnelState::Lost);
                if why != logged {
                    log::warn!("tunnel to k3s server {server}: {why}; retrying");
                    logged = why;
                    is_said_open = false;
                }
            }
            self.common.clock.sleep(wait.failed()).await;
        }
    }

    fn stands(&self, standing: TunnelState) {
        if self.standing.replace(standing) != standing {
            // Full: a notification is pending already.
            let _ = self.changed.try_send(());
            if standing == TunnelState::Lost {
                let _ = self.lost.try_send(());
            }
        }
    }

    async fn open(&self, with: Loaded) -> Result<(Incoming, WriteHalf<Box<dyn Duplex>>), String> {
        let late = async {
            self.common.clock.sleep(KUBE_CONNECT_TIME).await;
            Err(format!("no response within {} s", KUBE_CONNECT_TIME.as_secs()))
        };
        smol::future::or(Box::pin(self.upgrade(&with)), late).await
    }

    /// The WebSocket's handshake.
    async fn upgrade(&self, with: &Loaded) -> Result<(Incoming, WriteHalf<Box<dyn Duplex>>), String> {
        // Without a limit on bytes: the connection lasts. The response's head is bounded where it is read (`upgrade::head`).
        let stream = self.common.supervisor.connect(with, None).await;
        let stream = stream.map_err(|error| error.to_string())?.into_inner();
        let (incoming, mut outgoing) = smol::io::split(stream);
        let mut incoming = Incoming { stream: incoming, bytes: Vec::new(), taken: 0 };
        let key = BASE64_STANDARD.encode(random::<16>()?);
        let host = self.server.authority();
        let head = format!(
            "GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {key}\r\nUser-Agent: smolet\r\n\r\n"
        );
        let broken = |error: std::io::Error| error.to_string();
        outgoing.write_all(head.as_bytes()).await.map_err(broken)?;
        outgoing.flush().await.map_err(broken)?;
        let Head { status, headers, end, .. } = loop {
            if let Some(answer) = upgrade::head(&incoming.bytes)? {
                break answer;
            }
            incoming.more().await.map_err(broken)?;
        };
        incoming.taken = end;
        match status.as_u16() {
            101 => {}
            401 | 403 => {
                return Err(format!("the node's certificate was refused ({status})"));
            }
            _ => return Err(format!("no tunnel at {PATH} ({status})")),
        }
        let accept = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{ACCEPT}").as_bytes());
        let wanted = BASE64_STANDARD.encode(accept.as_ref());
        if headers.get("sec-websocket-accept").is_none_or(|accept| accept.as_bytes() != wanted.as_bytes()) {
            return Err(format!("the response at {PATH} is not a WebSocket handshake"));
        }
        Ok((incoming, outgoing))
    }

    /// Serves the open tunnel to its end; returns why it ended.
    async fn serve(&self, mut incoming: Incoming, mut outgoing: WriteHalf<Box<dyn Duplex>>) -> String {
        let common = &self.common;
        let _held = common.held.tunnels.enter();
        let (frames, written) = smol::channel::bounded::<Vec<u8>>(TUNNEL_WRITES_MAX);
        // In a queue of their own, before the other frames: the server does not count data as a sign of life.
        let (pings, pinging) = smol::channel::bounded::<Vec<u8>>(1);
        let (_open, closed) = smol::channel::bounded::<Infallible>(1);
        let (drained, draining) = smol::channel::bounded(1);
        let session = Rc::new(Session {
            frames,
            sent: Cell::new(0),
            connections: RefCell::default(),
            places: common.places.clone(),
            queued: Cell::new(0),
            of_all: common.queued.clone(),
            drained,
            heard: Cell::new(common.clock.now().mono),
            held: common.held.tunnel_connections.clone(),
            reach: common.reach.clone(),
            clock: common.clock.clone(),
        });
        // A single writer of whole frames: a task that is dropped leaves no partial frame.
        let write = async {
            while let Ok(frame) = smol::future::or(pinging.recv(), written.recv()).await {
                let done = async {
                    outgoing.write_all(&frame).await?;
                    outgoing.flush().await
                };
                if let Err(error) = done.await {
                    return format!("the connection was lost: {error}");
                }
            }
            String::new()
        };
        let read = async {
            let mut message = Vec::new();
            loop {
                if let Err(why) = incoming.message(&session, &mut message).await {
                    return why;
                }
                if let Err(why) = session.take(&message, &common.executor, &closed, &draining).await {
                    return why;
                }
            }
        };
        let keep = async {
            loop {
                common.clock.sleep(until_ping(common.clock.now().mono)).await;
                // While reading is paused because the queue is full, nothing can be received.
                let silence = common.clock.now().mono.since(session.heard.get());
                if !session.is_full() && silence > TUNNEL_SILENCE_MAX {
                    return format!("nothing received for {} s", TUNNEL_SILENCE_MAX.as_secs());
                }
                // This must not wait for a dead link.
                let _ = pings.try_send(framed(Kind::Ping, &[]));
            }
        };
        smol::future::or(write, smol::future::or(read, keep)).await
    }
}

/// The receiving side.
struct Incoming {
    stream: ReadHalf<Box<dyn Duplex>>,
    bytes: Vec<u8>,
    /// Number of buffered bytes already consumed.
    taken: usize,
}

impl Incoming {
    async fn more(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.bytes.extend_from_slice(&buffer[..read]);
                Ok(())
            }
        }
    }

    /// The next `count` bytes.
    async fn next(&mut self, count: usize) -> Result<&[u8], String> {
        while self.bytes.len() - self.taken < count {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            let read = self.more().await;
            read.map_err(|error| format!("the connection was lost: {error}"))?;
        }
        let from = self.taken;
        self.taken += count;
        Ok(&self.bytes[from..self.taken])
    }

    /// The next message; pings are answered meanwhile.
    async fn message(&mut self, session: &Session, message: &mut Vec<u8>) -> Result<(), String> {
        message.clear();
        message.shrink_to(NODE_SPLICE_BYTES);
        loop {
            let mut first = [0; 2];
            first.copy_from_slice(self.next(2).await?);
            let head = frame::head(first, self.next(frame::length_bytes(first)).await?)?;
            let payload = self.next(head.length).await?;
            session.heard.set(session.clock.now().mono);
            match head.kind {
                Kind::Ping => session.frame(Kind::Pong, &[payload]).await,
                Kind::Pong => {}
                Kind::Close => return Err("the server has closed it".to_owned()),
                Kind::Text => return Err("the server sends text, which no tunnel has".to_owned()),
                Kind::Binary | Kind::Continuation => {
                    if message.len() + payload.len() > TUNNEL_MESSAGE_BYTES_MAX {
                        return Err(format!("a message of more than {TUNNEL_MESSAGE_BYTES_MAX} bytes"));
                    }
                    message.extend_from_slice(payload);
                    if head.is_last {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Time until the next ping: all tunnels wake the node at the same instant.
fn until_ping(now: Mono) -> Duration {
    let period = TUNNEL_PING_PERIOD.as_nanos();
    let past = u128::from(now.0.unsigned_abs()) % period;
    TUNNEL_PING_PERIOD.saturating_sub(Duration::from_nanos(u64::try_from(past).unwrap_or(0)))
}

#[cfg(test)]
mod tests;
