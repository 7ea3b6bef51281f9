//! A tunnel: a WebSocket that the node opens to a k3s server, through which that one connects to the node's API and to its
//! pods (rancher/remotedialer's client, k3s' `agentTunnel`).
//!
//! ```text
//!     server ─► Connect 7 "tcp/127.0.0.1:10250" ─► is it ours? ─► a socket, and a task that moves its bytes
//!     Data 7 ─► the task's queue ─► the socket       Pause when the queue is long, Resume when it is short again
//!     the socket ─► Data 7                           not while the server says Pause
//! ```
//!
//! Its memory is bounded: when all queues together are full, those of the other tunnels included, nothing further is read, as TCP
//! has it. A connection whose end here reads nothing meanwhile is given up, for the others stand still with it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use smol::LocalExecutor;
use smol::channel::{Receiver, Sender};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use smol::lock::{Semaphore, SemaphoreGuardArc};

use super::frame::{self, Kind};
use super::message::{self, END, Message};
use super::{Supervisor, random};
use crate::clock::SharedClock;
use crate::kube::{Access, KubeError, Loaded, RetryWait, ServerUrl, seed};
use crate::limits::{
    KUBE_CONNECT_TIME, NODE_SPLICE_BYTES, TUNNEL_DRAIN_TIME, TUNNEL_MESSAGE_BYTES_MAX, TUNNEL_NUDGE_TIME,
    TUNNEL_PAUSE_BYTES, TUNNEL_PAUSED_MAX, TUNNEL_PAUSED_TIME, TUNNEL_PIECE_BYTES, TUNNEL_PING_PERIOD,
    TUNNEL_QUEUED_BYTES_MAX, TUNNEL_QUEUED_BYTES_SHARE, TUNNEL_RESUME_BYTES, TUNNEL_SILENCE_MAX,
    TUNNEL_STUCK_TIME, TUNNEL_WRITES_MAX,
};
use crate::metrics::{Gauge, NodeApiUse};
use crate::model::Mono;
use crate::node_api::{NodeQuestion, upgrade_answer};
use crate::server::{Answer, Asker, Question};
use crate::stream::Duplex;
use crate::x509::base64;

/// Where the tunnel is on a k3s server.
const PATH: &str = "/v1-k3s/connect";
/// What a WebSocket's key is answered with (RFC 6455).
const ACCEPT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Whom the server may reach through it.
#[derive(Clone)]
pub(crate) struct Reach {
    /// The node's own API.
    pub(crate) node_api: SocketAddr,
    /// Knows the pods' addresses.
    pub(crate) asker: Asker,
    /// Whether the server reaches pods through it, too: as it says itself.
    pub(crate) pods: Rc<Cell<bool>>,
}

/// What all tunnels of a node have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) supervisor: Supervisor,
    /// The node's kubeconfig: who it is, and whom it trusts.
    pub(crate) access: Access,
    pub(crate) reach: Reach,
    pub(crate) executor: Rc<LocalExecutor<'static>>,
    pub(crate) clock: SharedClock,
    /// Tells nodes apart: they do not come back at the same instant.
    pub(crate) seed: u64,
    /// Counts what they hold.
    pub(crate) held: NodeApiUse,
    /// Room for `limits::TUNNEL_CONNECTIONS_MAX` connections.
    pub(crate) places: Arc<Semaphore>,
    /// Bytes that wait for sockets here.
    pub(crate) queued: Rc<Cell<usize>>,
}

/// Where a tunnel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was not opened yet.
    Tried,
    Open,
    /// It could not be opened, or was lost.
    Lost,
}

/// A tunnel to one server.
pub(super) struct Tunnel {
    pub(super) server: ServerUrl,
    pub(super) common: Common,
    pub(super) standing: Rc<Cell<Standing>>,
    /// Whom that is told when it becomes another.
    pub(super) told: Sender<()>,
}

impl Tunnel {
    /// Keeps it open, for ever.
    pub(super) async fn run(self) {
        let server = self.server.authority();
        let mut wait = RetryWait::new(self.common.seed ^ seed(&server));
        let mut said = String::new();
        let mut is_said_open = false;
        loop {
            let why = match self.common.access.load().await {
                // The certificate is on its way, and whoever waits for it has said so.
                Err(KubeError::Config(why)) => {
                    log::debug!("tunnel: {why}");
                    String::new()
                }
                Err(error) => error.to_string(),
                Ok(with) => match self.open(Loaded { server: self.server.clone(), ..with }).await {
                    Ok((incoming, outgoing)) => {
                        if !std::mem::replace(&mut is_said_open, true) {
                            log::info!("tunnel: open to k3s server {server}");
                        }
                        self.stands(Standing::Open);
                        let opened = self.common.clock.now().mono;
                        let why = self.serve(incoming, outgoing).await;
                        // One that is opened and closed in turn is as good as none.
                        if self.common.clock.now().mono.since(opened) > TUNNEL_SILENCE_MAX {
                            wait.succeeded();
                            said.clear();
                        }
                        why
                    }
                    Err(why) => why,
                },
            };
            if !why.is_empty() {
                self.stands(Standing::Lost);
                if why != said {
                    log::warn!(
                        "tunnel to k3s server {server}: {why}; it does not reach this node meanwhile; trying again"
                    );
                    said = why;
                    is_said_open = false;
                }
            }
            self.common.clock.sleep(wait.failed()).await;
        }
    }

    fn stands(&self, standing: Standing) {
        if self.standing.replace(standing) != standing {
            // Full: somebody comes and looks anyway.
            let _ = self.told.try_send(());
        }
    }

    async fn open(&self, with: Loaded) -> Result<(Incoming, WriteHalf<Box<dyn Duplex>>), String> {
        let late = async {
            self.common.clock.sleep(KUBE_CONNECT_TIME).await;
            Err(format!("nothing came back within {} s", KUBE_CONNECT_TIME.as_secs()))
        };
        smol::future::or(Box::pin(self.upgrade(&with)), late).await
    }

    /// The WebSocket's handshake.
    async fn upgrade(&self, with: &Loaded) -> Result<(Incoming, WriteHalf<Box<dyn Duplex>>), String> {
        let stream = self.common.supervisor.connect(with).await?.into_inner();
        let (incoming, mut outgoing) = smol::io::split(stream);
        let mut incoming = Incoming { stream: incoming, bytes: Vec::new(), taken: 0 };
        let key = base64(&random::<16>()?);
        let host = self.server.authority();
        let head = format!(
            "GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {key}\r\nUser-Agent: smolet\r\n\r\n"
        );
        let broken = |error: std::io::Error| error.to_string();
        outgoing.write_all(head.as_bytes()).await.map_err(broken)?;
        outgoing.flush().await.map_err(broken)?;
        let (status, headers, end) = loop {
            if let Some(answer) = upgrade_answer(&incoming.bytes)? {
                break answer;
            }
            incoming.more().await.map_err(broken)?;
        };
        incoming.taken = end;
        match status.as_u16() {
            101 => {}
            401 | 403 => {
                return Err(format!("it does not take the node's certificate ({status})"));
            }
            _ => return Err(format!("it has no tunnel at {PATH} ({status})")),
        }
        let wanted = base64(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{ACCEPT}").as_bytes()).as_ref());
        if headers.get("sec-websocket-accept").is_none_or(|accept| accept.as_bytes() != wanted.as_bytes()) {
            return Err(format!("its answer at {PATH} is no WebSocket's"));
        }
        Ok((incoming, outgoing))
    }

    /// Serves it to its end; why it ended.
    async fn serve(&self, mut incoming: Incoming, mut outgoing: WriteHalf<Box<dyn Duplex>>) -> String {
        let common = &self.common;
        let _held = common.held.tunnels.enter();
        let (frames, written) = smol::channel::bounded::<Vec<u8>>(TUNNEL_WRITES_MAX);
        // In a queue of its own, and before the others: the server counts no data as a sign of life.
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
        // One writes, whole frames: a task that is given up leaves none cut off.
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
                // While nothing is read for want of room nothing can be heard.
                let silence = common.clock.now().mono.since(session.heard.get());
                if !session.is_full() && silence > TUNNEL_SILENCE_MAX {
                    return format!("nothing came for {} s", TUNNEL_SILENCE_MAX.as_secs());
                }
                // This must not wait for a link that is dead.
                let _ = pings.try_send(framed(Kind::Ping, &[]));
            }
        };
        smol::future::or(write, smol::future::or(read, keep)).await
    }
}

/// What comes.
struct Incoming {
    stream: ReadHalf<Box<dyn Duplex>>,
    bytes: Vec<u8>,
    /// How many of them were looked at.
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

    /// The next so many bytes.
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

/// A tunnel that is open.
struct Session {
    frames: Sender<Vec<u8>>,
    /// Messages so far.
    sent: Cell<i64>,
    connections: RefCell<BTreeMap<i64, Rc<Connection>>>,
    places: Arc<Semaphore>,
    /// Bytes that wait for sockets here.
    queued: Cell<usize>,
    /// The same of all tunnels.
    of_all: Rc<Cell<usize>>,
    /// Some were taken.
    drained: Sender<()>,
    heard: Cell<Mono>,
    held: Gauge,
    reach: Reach,
    clock: SharedClock,
}

/// A connection of the server's through it.
struct Connection {
    /// Its queue; closed once the server has ended it.
    data: Sender<Vec<u8>>,
    /// Bytes in it.
    queued: Cell<usize>,
    /// The server is told to pause when the queue is longer than this.
    pauses_at: Cell<usize>,
    /// The server has told us to.
    paused: Cell<bool>,
    resumed: Sender<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // What connections have queued goes with them.
        self.unqueued(self.queued.get());
    }
}

impl Session {
    /// Nothing further is read.
    fn is_full(&self) -> bool {
        self.queued.get() > TUNNEL_QUEUED_BYTES_SHARE && self.of_all.get() > TUNNEL_QUEUED_BYTES_MAX
    }

    /// So many bytes do not wait any more.
    fn unqueued(&self, count: usize) {
        let count = count.min(self.queued.get());
        self.queued.set(self.queued.get() - count);
        self.of_all.set(self.of_all.get().saturating_sub(count));
    }

    async fn frame(&self, kind: Kind, payload: &[&[u8]]) {
        // The writer goes with the session, and whoever sends with it.
        let _ = self.frames.send(framed(kind, payload)).await;
    }

    async fn tell(&self, id: i64, message: Message<'_>) {
        self.sent.set(self.sent.get().wrapping_add(1));
        let head = message::head(self.sent.get(), id, &message);
        let rest = match message {
            Message::Data(bytes) | Message::Ended(bytes) => bytes,
            _ => &[],
        };
        self.frame(Kind::Binary, &[&head, rest]).await;
    }

    fn connection(&self, id: i64) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&id).cloned()
    }

    /// Does what a message says.
    async fn take(
        self: &Rc<Self>,
        message: &[u8],
        executor: &LocalExecutor<'static>,
        closed: &Receiver<Infallible>,
        draining: &Receiver<()>,
    ) -> Result<(), String> {
        let (id, message) = message::read(message)?;
        match (message, self.connection(id)) {
            (Message::Connect(protocol, address), None) => match self.places.try_acquire_arc() {
                Some(place) => self.connect(id, protocol, address, place, executor, closed.clone()),
                None => self.tell(id, Message::Ended(b"too many connections at once")).await,
            },
            (Message::Connect(..), Some(_)) => return Err(format!("connection {id} is opened twice")),
            (Message::Data(bytes), Some(connection)) => self.queue(id, &connection, bytes, draining).await,
            (Message::Data(_), None) => self.tell(id, Message::Ended(b"connection not found")).await,
            (Message::Ended(_), Some(connection)) => {
                self.connections.borrow_mut().remove(&id);
                connection.data.close();
            }
            (Message::Pause, Some(connection)) => connection.paused.set(true),
            (Message::Resume, Some(connection)) => {
                connection.paused.set(false);
                let _ = connection.resumed.try_send(());
            }
            (Message::Ended(_) | Message::Pause | Message::Resume, None) | (Message::Other, _) => {}
        }
        Ok(())
    }

    fn connect(
        self: &Rc<Self>,
        id: i64,
        protocol: &str,
        address: &str,
        place: SemaphoreGuardArc,
        executor: &LocalExecutor<'static>,
        closed: Receiver<Infallible>,
    ) {
        let (data, queue) = smol::channel::unbounded();
        let (resumed, resuming) = smol::channel::bounded(1);
        let connection = Rc::new(Connection {
            data,
            queued: Cell::new(0),
            pauses_at: Cell::new(TUNNEL_PAUSE_BYTES),
            paused: Cell::new(false),
            resumed,
        });
        self.connections.borrow_mut().insert(id, connection.clone());
        let (session, protocol, address) = (self.clone(), protocol.to_owned(), address.to_owned());
        let served = async move {
            let _held = session.held.enter();
            let why = match session.dial(&protocol, &address).await {
                Ok(socket) => {
                    session.converse(id, &connection, &socket, &queue, &resuming).await;
                    END.to_owned()
                }
                Err(why) => why,
            };
            session.unqueued(connection.queued.get());
            let _ = session.drained.try_send(());
            // The server may have given its number to another meanwhile.
            let is_it = session.connection(id).is_some_and(|of| Rc::ptr_eq(&of, &connection));
            if is_it {
                session.connections.borrow_mut().remove(&id);
                session.tell(id, Message::Ended(why.as_bytes())).await;
            }
            drop(place);
        };
        let closed = async move {
            // Nothing is ever sent: this ends with the session.
            let _ = closed.recv().await;
        };
        executor.spawn(smol::future::or(Box::pin(served), closed)).detach();
    }

    /// Puts bytes into a connection's queue. Waits while all of them together are full.
    async fn queue(&self, id: i64, connection: &Connection, bytes: &[u8], draining: &Receiver<()>) {
        if bytes.is_empty() {
            return;
        }
        let cost = bytes.len() + TUNNEL_PIECE_BYTES;
        connection.queued.set(connection.queued.get() + cost);
        self.queued.set(self.queued.get() + cost);
        self.of_all.set(self.of_all.get() + cost);
        // Its task has ended, and takes what is queued off with it.
        let _ = connection.data.try_send(bytes.to_vec());
        if connection.queued.get() > connection.pauses_at.get() {
            // Once more when it goes on all the same: it forgets a pause when it takes something itself.
            connection.pauses_at.set(connection.queued.get() + TUNNEL_PAUSE_BYTES);
            self.tell(id, Message::Pause).await;
        }
        while self.is_full() {
            let drained = async { draining.recv().await.is_ok() };
            let late = async {
                self.clock.sleep(TUNNEL_STUCK_TIME).await;
                false
            };
            // Of what the other tunnels have taken meanwhile nobody has told.
            if smol::future::or(drained, late).await || !self.is_full() {
                continue;
            }
            let most = |of: &(&i64, &Rc<Connection>)| of.1.queued.get();
            let longest = self.connections.borrow().iter().max_by_key(most).map(|(id, _)| *id);
            let Some(id) = longest else { return };
            log::debug!(
                "tunnel: connection {id} reads nothing for {} s, and is given up",
                TUNNEL_STUCK_TIME.as_secs()
            );
            let given_up = self.connections.borrow_mut().remove(&id);
            if let Some(connection) = given_up {
                connection.data.close();
                self.tell(id, Message::Ended(b"reads nothing")).await;
            }
        }
    }

    /// Its end here has taken what cost so much.
    async fn taken(&self, id: i64, connection: &Connection, count: usize) {
        connection.queued.set(connection.queued.get().saturating_sub(count));
        self.unqueued(count);
        let _ = self.drained.try_send(());
        let is_short = connection.queued.get() < TUNNEL_RESUME_BYTES && !connection.data.is_closed();
        if is_short && connection.pauses_at.replace(TUNNEL_PAUSE_BYTES) > TUNNEL_PAUSE_BYTES {
            self.tell(id, Message::Resume).await;
        }
    }

    /// Whether something was said of going on.
    async fn resumed_within(&self, time: Duration, resuming: &Receiver<()>) -> bool {
        let resumed = async { resuming.recv().await.is_ok() };
        let late = async {
            self.clock.sleep(time).await;
            false
        };
        smol::future::or(resumed, late).await
    }

    /// Moves bytes both ways until one side has no more, as remotedialer's does.
    async fn converse(
        &self,
        id: i64,
        connection: &Connection,
        socket: &Async<TcpStream>,
        queue: &Receiver<Vec<u8>>,
        resuming: &Receiver<()>,
    ) {
        let (mut reader, mut writer) = (socket, socket);
        let down = async {
            while let Ok(bytes) = queue.recv().await {
                if writer.write_all(&bytes).await.is_err() {
                    return;
                }
                self.taken(id, connection, bytes.len() + TUNNEL_PIECE_BYTES).await;
            }
        };
        let up = async {
            let mut buffer = vec![0; NODE_SPLICE_BYTES];
            let mut patience = TUNNEL_PAUSED_TIME;
            loop {
                let mut nudges = false;
                while connection.paused.get() && !nudges {
                    nudges = !self.resumed_within(patience, resuming).await;
                }
                patience = if nudges { (2 * patience).min(TUNNEL_PAUSED_MAX) } else { TUNNEL_PAUSED_TIME };
                let read = match reader.read(&mut buffer).await {
                    Ok(read) if read > 0 => read,
                    Ok(_) | Err(_) => return,
                };
                if connection.data.is_closed() {
                    // Nobody wants it any more; what came for the socket goes on to it.
                    return std::future::pending().await;
                }
                if !nudges {
                    self.tell(id, Message::Data(&buffer[..read])).await;
                    continue;
                }
                // remotedialer has one mark for both directions: a word of ours that what comes goes on takes off that it has
                // paused us, and it never says that we go on. With the mark on it does, as soon as it has taken something.
                self.tell(id, Message::Pause).await;
                self.tell(id, Message::Data(&buffer[..read])).await;
                self.resumed_within(TUNNEL_NUDGE_TIME, resuming).await;
                if connection.pauses_at.get() == TUNNEL_PAUSE_BYTES {
                    self.tell(id, Message::Resume).await;
                }
            }
        };
        // What is still queued when the server has ended it has so long.
        let over = async {
            connection.data.closed().await;
            self.clock.sleep(TUNNEL_DRAIN_TIME).await;
        };
        smol::future::or(down, smol::future::or(up, over)).await;
    }

    /// Connects to the node's own API, or to one of its pods.
    async fn dial(&self, protocol: &str, address: &str) -> Result<Async<TcpStream>, String> {
        let refused = || {
            log::debug!(
                "tunnel: the server asks for {protocol}/{address}, which is neither this node's API nor one of its pods"
            );
            "connect not allowed".to_owned()
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(refused)?;
        let ip: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
        let (Some(ip), Ok(port)) = (ip, port.parse()) else { return Err(refused()) };
        let to = if protocol != "tcp" {
            return Err(refused());
        } else if ip.is_loopback() && port == self.reach.node_api.port() {
            self.reach.node_api
        } else if !self.reach.pods.get() {
            return Err(refused());
        } else {
            let question = Question::Node(Box::new(NodeQuestion::Reaches { ip, port }));
            match self.reach.asker.ask(&question).await {
                Some(Answer::Found(_)) => SocketAddr::new(ip, port),
                _ => return Err(refused()),
            }
        };
        let connect = async {
            Async::<TcpStream>::connect(to).await.map_err(|error| format!("dial tcp {to}: {error}"))
        };
        let late = async {
            self.clock.sleep(KUBE_CONNECT_TIME).await;
            Err(format!("dial tcp {to}: i/o timeout"))
        };
        let socket = smol::future::or(connect, late).await?;
        let _ = socket.get_ref().set_nodelay(true);
        Ok(socket)
    }
}

/// How long until the next ping: all tunnels wake the node at the same instant.
fn until_ping(now: Mono) -> Duration {
    let period = TUNNEL_PING_PERIOD.as_nanos();
    let past = u128::from(now.0.unsigned_abs()) % period;
    TUNNEL_PING_PERIOD.saturating_sub(Duration::from_nanos(u64::try_from(past).unwrap_or(0)))
}

/// A frame as it goes out.
fn framed(kind: Kind, payload: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    // The mask keeps proxies without TLS from taking data for something else: here it may be any.
    frame::put(&mut frame, kind, random().unwrap_or_default(), payload);
    frame
}

#[cfg(test)]
mod tests;
