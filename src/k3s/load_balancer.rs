//! A port of the machine's own behind which the cluster's servers are, for whoever shares the node's network (`agent/loadbalancer`):
//! host-network pods and units find a server there whichever one is down.
//!
//! ```text
//!     127.0.0.1:6444 ─► the server that was reached last, else the next one of the known ones, each tried once
//! ```
//!
//! A server whose tunnel is lost comes last, and is left as soon as another one is there (k3s closes the connections of a server
//! that is not healthy); so is one that leaves the cluster: the client connects anew, to another one.
//!
//! A node whose first address is of IPv6 has it on `[::1]`; it moves there when such an address comes later.
//!
//! TCP alone: TLS is between the client and the server. Nothing is kept of a connection that moves no bytes, and of one that does no
//! more than a piece in each direction. A server that vanishes is noticed by keepalive; the client's next connection goes to another
//! one.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use async_io::Async;
use smol::channel::{Receiver, Sender};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smol::lock::Semaphore;

use super::Servers;
use crate::addresses::NodeAddresses;
use crate::clock::SharedClock;
use crate::counters::Gauge;
use crate::executor::Executor;
use crate::kube::{Rotation, ServerUrl};
use crate::limits::{
    K3S_BALANCER_CONNECTIONS_MAX, K3S_BALANCER_HALF_CLOSED_TIME, K3S_BALANCER_KEEPALIVE,
    K3S_BALANCER_PIECE_BYTES, K3S_BALANCER_RETRY, KUBE_CONNECT_TIME, TUNNEL_SILENCE_MAX,
};
use crate::net::{Address, Lookups, notice_silence};
use crate::stream::Socket;

/// The load balancer.
pub(crate) struct LoadBalancer {
    pub(crate) port: u16,
    /// Those of a node with IPv6 alone have it on `::1`.
    pub(crate) addresses: NodeAddresses,
    pub(crate) servers: Rc<Servers>,
    pub(crate) executor: Weak<Executor>,
    pub(crate) clock: SharedClock,
    /// Open connections.
    pub(crate) held: Gauge,
}

/// What its connections share.
struct Shared {
    servers: Rc<Servers>,
    turn: RefCell<Rotation>,
    /// The open connections' servers, each with what closes it; at most `limits::K3S_BALANCER_CONNECTIONS_MAX`.
    open: RefCell<Vec<(ServerUrl, Sender<Infallible>)>>,
    lookups: Lookups,
    clock: SharedClock,
    /// A failure was logged since the last connection that succeeded.
    is_logged: Cell<bool>,
}

impl LoadBalancer {
    /// Serves until dropped. A port that somebody else has is tried again each minute.
    pub(crate) async fn run(self) {
        let shared = Rc::new(Shared {
            servers: self.servers.clone(),
            turn: RefCell::default(),
            open: RefCell::default(),
            lookups: Lookups::default(),
            clock: self.clock.clone(),
            is_logged: Cell::new(false),
        });
        let changes = self.servers.watch();
        let sweep = async {
            while changes.recv().await.is_ok() {
                shared.sweep();
            }
            std::future::pending::<()>().await;
        };
        smol::future::or(self.listen(&shared), sweep).await;
    }

    async fn listen(&self, shared: &Rc<Shared>) {
        let changes = self.addresses.changes();
        let places = Arc::new(Semaphore::new(K3S_BALANCER_CONNECTIONS_MAX));
        let (mut is_logged, mut loopback) = (false, IpAddr::from(Ipv4Addr::LOCALHOST));
        loop {
            loopback = own_loopback(&self.addresses.as_found(), loopback);
            let address = SocketAddr::new(loopback, self.port);
            match Async::<TcpListener>::bind(address) {
                Ok(listener) => {
                    log::info!("load balancer: {address} leads to the k3s servers");
                    let accept = self.accept(&listener, shared, &places);
                    smol::future::or(accept, self.moves(loopback, &changes)).await;
                    if own_loopback(&self.addresses.as_found(), loopback) != loopback {
                        continue;
                    }
                }
                Err(error) if !is_logged => {
                    is_logged = true;
                    log::warn!(
                        "load balancer: {address}: {error}; nobody finds the k3s servers there; end what has this port (k3s \
                         agent?), or give another one: --lb-server-port"
                    );
                }
                Err(_) => {}
            }
            smol::future::or(self.clock.sleep(K3S_BALANCER_RETRY), self.moves(loopback, &changes)).await;
        }
    }

    /// Until the node's addresses want another loopback address than this one.
    async fn moves(&self, from: IpAddr, changes: &Receiver<()>) {
        while own_loopback(&self.addresses.as_found(), from) == from {
            if changes.recv().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Until the listener fails. Full: further connections wait in its queue, which is said.
    async fn accept(&self, listener: &Async<TcpListener>, shared: &Rc<Shared>, places: &Arc<Semaphore>) {
        let fullness = Fullness::default();
        loop {
            fullness.look(self.held.get());
            let place = if let Some(place) = places.try_acquire_arc() {
                place
            } else {
                let client_waits = async {
                    let _ = listener.readable().await;
                    if fullness.is_news() {
                        log::warn!(
                            "load balancer: all {K3S_BALANCER_CONNECTIONS_MAX} connections are in use; further clients wait until \
                             one ends"
                        );
                    }
                    std::future::pending().await
                };
                smol::future::or(places.acquire_arc(), client_waits).await
            };
            let client = match listener.accept().await {
                Ok((client, _)) => Socket::from(client),
                // Of this connection, or the process has no files left: the others run on meanwhile.
                Err(error) => {
                    log::debug!("load balancer: {error}");
                    self.clock.sleep(K3S_BALANCER_RETRY / 60).await;
                    continue;
                }
            };
            let Some(executor) = self.executor.upgrade() else { return };
            let (shared, held) = (shared.clone(), self.held.clone());
            let serve = async move {
                let (_place, _held) = (place, held.enter());
                shared.serve(client).await;
            };
            executor.spawn("k3s load balancer", serve).detach();
        }
    }
}

/// The loopback address of the family of the node's first address, whatever is first in the cluster, as with k3s; while it has none,
/// `before`. PURE.
fn own_loopback(addresses: &[Box<str>], before: IpAddr) -> IpAddr {
    match addresses.first().and_then(|ip| ip.parse::<IpAddr>().ok()) {
        Some(IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        Some(IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
        None => before,
    }
}

/// Whether it was said that all connections are in use.
#[derive(Default)]
struct Fullness {
    is_said: Cell<bool>,
}

impl Fullness {
    /// So many are in use. It is news again that all are when half of them were not: at the bound one ends and the next one comes all the
    /// time.
    fn look(&self, connections: usize) {
        if connections <= K3S_BALANCER_CONNECTIONS_MAX / 2 {
            self.is_said.set(false);
        }
    }

    /// All are in use, and somebody waits: whether that is still to be said.
    fn is_news(&self) -> bool {
        !self.is_said.replace(true)
    }
}

impl Shared {
    async fn serve(&self, client: Socket<TcpStream>) {
        let Some((name, server)) = self.reach().await else { return };
        let _ = client.get_ref().set_nodelay(true);
        let (open, closed) = smol::channel::bounded(1);
        self.open.borrow_mut().push((name, open));
        let closing = async {
            // Nothing is sent: the sender is dropped.
            let _ = closed.recv().await;
        };
        smol::future::or(self.exchange(&client, &server), closing).await;
        drop(closed);
        self.open.borrow_mut().retain(|(_, open)| !open.is_closed());
    }

    /// Closes the connections to servers that are left.
    fn sweep(&self) {
        let mut left: Vec<String> = Vec::new();
        self.open.borrow_mut().retain(|(server, _)| {
            let (stays, name) = (self.servers.keeps(server), server.authority());
            if !stays && !left.contains(&name) {
                left.push(name);
            }
            stays
        });
        if !left.is_empty() {
            let left = left.join(", ");
            log::info!(
                "load balancer: k3s server {left} left the cluster, or its tunnel is lost; its connections are closed"
            );
        }
    }

    async fn exchange(&self, client: &Socket<TcpStream>, server: &Socket<TcpStream>) {
        let mut there = Box::pin(forward(client, server));
        let mut back = Box::pin(forward(server, client));
        let first = async { (there.as_mut().await, true) };
        let (ended, is_there) = smol::future::or(first, async { (back.as_mut().await, false) }).await;
        // What broke one way breaks the other.
        if ended.is_ok() {
            let rest = if is_there { back.as_mut() } else { there.as_mut() };
            let late = async {
                self.clock.sleep(K3S_BALANCER_HALF_CLOSED_TIME).await;
                Ok(())
            };
            let _ = smol::future::or(rest, late).await;
        }
    }

    /// A connection to the next server that can be reached.
    async fn reach(&self) -> Option<(ServerUrl, Socket<TcpStream>)> {
        let mut first = None;
        for all in self.servers.by_health() {
            for _ in 0..all.len() {
                let server = self.turn.borrow().aim(&all).clone();
                match self.connect(&server).await {
                    Ok(socket) => {
                        self.turn.borrow_mut().reached(&server);
                        self.is_logged.set(false);
                        return Some((server, socket));
                    }
                    Err(why) => {
                        self.turn.borrow_mut().failed(&server, all.len());
                        first.get_or_insert_with(|| format!("{}: {why}", server.authority()));
                    }
                }
            }
        }
        if !self.is_logged.replace(true) {
            log::warn!("load balancer: no k3s server can be reached: {}", first.unwrap_or_default());
        }
        None
    }

    async fn connect(&self, server: &ServerUrl) -> Result<Socket<TcpStream>, String> {
        let late = async {
            self.clock.sleep(KUBE_CONNECT_TIME).await;
            Err(format!("no answer within {} s", KUBE_CONNECT_TIME.as_secs()))
        };
        let address = Address { host: server.host.clone(), port: server.port };
        let socket = smol::future::or(Box::pin(self.lookups.connect(&address)), late).await?;
        let raw = socket.get_ref();
        let _ = raw.set_nodelay(true);
        notice_silence(raw, K3S_BALANCER_KEEPALIVE, TUNNEL_SILENCE_MAX);
        Ok(socket)
    }
}

/// Moves what comes, until there is no more; then `to` is told so.
async fn forward(mut from: &Socket<TcpStream>, mut to: &Socket<TcpStream>) -> io::Result<()> {
    loop {
        from.readable().await?;
        // Of this turn alone: a connection that waits holds none.
        let mut piece = vec![0; K3S_BALANCER_PIECE_BYTES];
        let read = from.read(&mut piece).await?;
        if read == 0 {
            let _ = to.get_ref().shutdown(Shutdown::Write);
            return Ok(());
        }
        to.write_all(&piece[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_that_all_connections_are_in_use_and_again_after_there_was_room() {
        let fullness = Fullness::default();
        let max = K3S_BALANCER_CONNECTIONS_MAX;
        for (in_use, is_news) in [(max, true), (max, false), (max - 1, false), (max / 2 + 1, false)] {
            fullness.look(in_use);
            assert_eq!(fullness.is_news(), is_news, "{in_use}");
        }
        fullness.look(max / 2);
        fullness.look(max);
        assert_eq!([fullness.is_news(), fullness.is_news()], [true, false]);
    }
}
