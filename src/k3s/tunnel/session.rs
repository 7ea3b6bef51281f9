//! An open tunnel: the server's connections through it, each with its queue and its socket.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use smol::channel::{Receiver, Sender};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smol::lock::{Semaphore, SemaphoreGuardArc};

use super::Reach;
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::k3s::frame::{self, Kind};
use crate::k3s::message::{self, END, Message};
use crate::k3s::random;
use crate::limits::{
    KUBE_CONNECT_TIME, NODE_SPLICE_BYTES, TUNNEL_DRAIN_TIME, TUNNEL_NUDGE_TIME, TUNNEL_PAUSE_BYTES,
    TUNNEL_PAUSED_MAX, TUNNEL_PAUSED_TIME, TUNNEL_PIECE_BYTES, TUNNEL_QUEUED_BYTES_MAX,
    TUNNEL_QUEUED_BYTES_SHARE, TUNNEL_RESUME_BYTES, TUNNEL_STUCK_TIME,
};
use crate::metrics::Gauge;
use crate::model::Mono;
use crate::model::SortedMap;
use crate::node_api::Registration;
use crate::server::NodeQuestion;
use crate::server::{Answer, Question};
use crate::stream::Socket;

/// An open tunnel.
pub(super) struct Session {
    pub(super) frames: Sender<Vec<u8>>,
    /// Messages sent so far.
    pub(super) sent: Cell<i64>,
    pub(super) connections: RefCell<SortedMap<i64, Rc<Connection>>>,
    pub(super) places: Arc<Semaphore>,
    /// Bytes queued for local sockets.
    pub(super) queued: Cell<usize>,
    /// The same of all tunnels.
    pub(super) of_all: Rc<Cell<usize>>,
    /// Notified when queued bytes were written.
    pub(super) drained: Sender<()>,
    pub(super) heard: Cell<Mono>,
    pub(super) held: Gauge,
    pub(super) reach: Reach,
    pub(super) clock: SharedClock,
}

/// A connection of the server through the tunnel.
pub(super) struct Connection {
    /// Its queue; closed once the server has ended the connection.
    data: Sender<Vec<u8>>,
    /// Bytes in the queue.
    queued: Cell<usize>,
    /// The server is asked to pause when the queue is longer than this.
    pauses_at: Cell<usize>,
    /// The server has asked us to pause.
    paused: Cell<bool>,
    resumed: Sender<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // The queues of its connections are dropped with it.
        self.unqueued(self.queued.get());
    }
}

impl Session {
    /// The queues are full: nothing further is read.
    pub(super) fn is_full(&self) -> bool {
        self.queued.get() > TUNNEL_QUEUED_BYTES_SHARE && self.of_all.get() > TUNNEL_QUEUED_BYTES_MAX
    }

    /// Subtracts bytes that are no longer queued.
    fn unqueued(&self, count: usize) {
        let count = count.min(self.queued.get());
        self.queued.set(self.queued.get() - count);
        self.of_all.set(self.of_all.get().saturating_sub(count));
    }

    pub(super) async fn frame(&self, kind: Kind, payload: &[&[u8]]) {
        // The writer is dropped with the session, and so are its senders.
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

    pub(super) fn connection(&self, id: i64) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&id).cloned()
    }

    /// Processes a message.
    pub(super) async fn take(
        self: &Rc<Self>,
        message: &[u8],
        executor: &Weak<Executor>,
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
        executor: &Weak<Executor>,
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
                // Its registration lasts as long as the socket.
                Ok((socket, _registration)) => {
                    session.converse(id, &connection, &socket, &queue, &resuming).await;
                    END.to_owned()
                }
                Err(why) => why,
            };
            session.unqueued(connection.queued.get());
            let _ = session.drained.try_send(());
            // The server may have reused its id meanwhile.
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
        if let Some(executor) = executor.upgrade() {
            executor.spawn("k3s tunnel connection", smol::future::or(Box::pin(served), closed)).detach();
        }
    }

    /// Appends bytes to a connection's queue. Waits while all queues together are full.
    async fn queue(&self, id: i64, connection: &Connection, bytes: &[u8], draining: &Receiver<()>) {
        if bytes.is_empty() {
            return;
        }
        let cost = bytes.len() + TUNNEL_PIECE_BYTES;
        connection.queued.set(connection.queued.get() + cost);
        self.queued.set(self.queued.get() + cost);
        self.of_all.set(self.of_all.get() + cost);
        // Its task has ended, and subtracts the queued bytes.
        let _ = connection.data.try_send(bytes.to_vec());
        if connection.queued.get() > connection.pauses_at.get() {
            // Pause is sent again when the server keeps sending: it forgets a pause when it reads something itself.
            connection.pauses_at.set(connection.queued.get() + TUNNEL_PAUSE_BYTES);
            self.tell(id, Message::Pause).await;
        }
        while self.is_full() {
            let drained = async { draining.recv().await.is_ok() };
            let late = async {
                self.clock.sleep(TUNNEL_STUCK_TIME).await;
                false
            };
            // This session is not notified of what the other tunnels have drained meanwhile.
            if smol::future::or(drained, late).await || !self.is_full() {
                continue;
            }
            let most = |of: &(&i64, &Rc<Connection>)| of.1.queued.get();
            let longest = self.connections.borrow().iter().max_by_key(most).map(|(id, _)| *id);
            let Some(id) = longest else { return };
            log::debug!("tunnel: connection {id} closed: nothing read for {} s", TUNNEL_STUCK_TIME.as_secs());
            let given_up = self.connections.borrow_mut().remove(&id);
            if let Some(connection) = given_up {
                connection.data.close();
                self.tell(id, Message::Ended(b"reads nothing")).await;
            }
        }
    }

    /// The local end has read data that counted `count` bytes.
    async fn taken(&self, id: i64, connection: &Connection, count: usize) {
        connection.queued.set(connection.queued.get().saturating_sub(count));
        self.unqueued(count);
        let _ = self.drained.try_send(());
        let is_short = connection.queued.get() < TUNNEL_RESUME_BYTES && !connection.data.is_closed();
        if is_short && connection.pauses_at.replace(TUNNEL_PAUSE_BYTES) > TUNNEL_PAUSE_BYTES {
            self.tell(id, Message::Resume).await;
        }
    }

    /// Whether a Pause or Resume arrived within the time.
    async fn resumed_within(&self, time: Duration, resuming: &Receiver<()>) -> bool {
        let resumed = async { resuming.recv().await.is_ok() };
        let late = async {
            self.clock.sleep(time).await;
            false
        };
        smol::future::or(resumed, late).await
    }

    /// Copies bytes both ways until one side has ended, as remotedialer does.
    async fn converse(
        &self,
        id: i64,
        connection: &Connection,
        socket: &Socket<TcpStream>,
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
                    // The peer does not read any more; data received for the socket is still written.
                    return std::future::pending().await;
                }
                if !nudges {
                    self.tell(id, Message::Data(&buffer[..read])).await;
                    continue;
                }
                // remotedialer has one flag for both directions: a Resume of ours clears its own pause of us, and it then never
                // sends Resume. With the flag set it does, as soon as it has read something.
                self.tell(id, Message::Pause).await;
                self.tell(id, Message::Data(&buffer[..read])).await;
                self.resumed_within(TUNNEL_NUDGE_TIME, resuming).await;
                if connection.pauses_at.get() == TUNNEL_PAUSE_BYTES {
                    self.tell(id, Message::Resume).await;
                }
            }
        };
        // The queue of a connection that the server has ended has this long to drain.
        let over = async {
            connection.data.closed().await;
            self.clock.sleep(TUNNEL_DRAIN_TIME).await;
        };
        smol::future::or(down, smol::future::or(up, over)).await;
    }

    /// Connects to the node's own API, or to one of its pods.
    async fn dial(
        &self,
        protocol: &str,
        address: &str,
    ) -> Result<(Socket<TcpStream>, Option<Registration>), String> {
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
            let connected = if to == self.reach.node_api {
                let connected = self.reach.sockets.connect(to).await;
                connected.map(|(socket, registration)| (socket, Some(registration)))
            } else {
                Socket::<TcpStream>::connect(to).await.map(|socket| (socket, None))
            };
            connected.map_err(|error| format!("dial tcp {to}: {error}"))
        };
        let late = async {
            self.clock.sleep(KUBE_CONNECT_TIME).await;
            Err(format!("dial tcp {to}: i/o timeout"))
        };
        let (socket, registration) = smol::future::or(connect, late).await?;
        let _ = socket.get_ref().set_nodelay(true);
        Ok((socket, registration))
    }
}

/// A frame as it is sent.
pub(super) fn framed(kind: Kind, payload: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    // The mask keeps proxies without TLS from misinterpreting data: here its value is irrelevant.
    frame::put(&mut frame, kind, random().unwrap_or_default(), payload);
    frame
}
