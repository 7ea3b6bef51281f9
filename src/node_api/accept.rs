//! The accept loop: connections get places by the port's limits ([`places`](super::places)); unauthenticated ones may be closed
//! for others.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use smol::channel::{Receiver, Sender};
use smol::lock::Semaphore;

use super::connection_limits::{ConnectionInfo, Limits, Stage};
use super::peers::{Origin, Peers};
use super::tunnel_sockets::TunnelSockets;
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::kube::Authenticated;
use crate::limits::NODE_KEEPALIVE;
use crate::model::Mono;
use crate::net::notice_silence;
use crate::stream::Socket;

/// A connection without an admitted request, which may be closed for another one.
pub(super) struct PendingConnection {
    /// Its origin.
    pub(super) origin: Origin,
    evicted: Receiver<Infallible>,
    stage: Rc<Cell<Stage>>,
}

impl PendingConnection {
    /// Resolves when its place is needed for another connection, which never happens after admission.
    pub(super) async fn displaced(&self) {
        // Nothing is ever sent: this ends when the sender is dropped.
        let _ = self.evicted.recv().await;
        if self.is_admitted() {
            std::future::pending::<()>().await;
        }
    }

    /// Its certificate names a user: others of its origin are closed before it.
    pub(super) fn mark_authenticated(&self) {
        self.stage.set(self.stage.get().max(Stage::Authenticated));
    }

    pub(super) fn mark_admitted(&self) {
        self.stage.set(Stage::Admitted);
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.stage.get() == Stage::Admitted
    }
}

/// The accept loop's record of a connection.
struct OpenConnection {
    origin: Origin,
    stage: Rc<Cell<Stage>>,
    /// Dropped: the place is needed. Closed: the connection has ended.
    wanted: Sender<Infallible>,
}

/// Distinguishes known origins from unknown ones.
pub(super) struct KnownOrigins {
    pub(super) peers: Rc<RefCell<Peers>>,
    pub(super) tunnels: TunnelSockets,
    pub(super) servers: Authenticated,
}

impl KnownOrigins {
    /// The origin of a connection. The cluster's servers are known before a client was admitted from there, including those to
    /// which a new agent has only connected itself.
    fn origin(&self, peer: SocketAddr, ours: Option<IpAddr>, now: Mono) -> Origin {
        if self.tunnels.take(peer) {
            return Origin::Tunnel;
        }
        for server in self.servers.all() {
            self.peers.borrow_mut().mark_known(Origin::of(server, ours), now);
        }
        Origin::of(peer.ip().to_canonical(), ours)
    }
}

/// Accepts connections up to the limits, and spawns a task to serve each of them.
pub(super) async fn accept<F: Future<Output = ()> + 'static>(
    listener: &Async<TcpListener>,
    limits: Limits,
    known: &KnownOrigins,
    executor: &Weak<Executor>,
    clock: &SharedClock,
    serve: impl Fn(Socket<TcpStream>, PendingConnection) -> F,
) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    // All places except those reserved for tunnels.
    let slots_of_others = Arc::new(Semaphore::new(limits.connections_max - limits.of_tunnels));
    let mut seats: Vec<OpenConnection> = Vec::with_capacity(limits.connections_max + 1);
    let mut logged = None;
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually out of descriptors: the loop can only wait, and logs it once.
                if logged.replace(error.kind()) != Some(error.kind()) {
                    log::warn!("node API: accept failed: {error}; retrying every second");
                }
                clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        watch_over(socket.get_ref());
        let ours = socket.get_ref().local_addr().ok().map(|ours| ours.ip().to_canonical());
        let origin = known.origin(peer, ours, clock.now().mono);
        seats.retain(|seat| !seat.wanted.is_closed());
        let pools = match origin {
            Origin::Tunnel => vec![&slots],
            Origin::Own | Origin::V4(_) | Origin::V6(_) => vec![&slots_of_others, &slots],
        };
        let mut held: Vec<_> = pools.iter().map(|pool| pool.try_acquire_arc()).collect();
        let is_free = held.iter().all(Option::is_some);
        let mut leaves = leaving(&seats, limits, origin, known, is_free);
        if leaves.is_some() {
            // A request that has come by now is read first: its connection may be the one to be closed. Tasks that are always
            // ready leave no turn to the reactor; it reports this socket, which can be written to, with all others.
            let _ = socket.writable().await;
            smol::future::yield_now().await;
            seats.retain(|seat| !seat.wanted.is_closed());
            leaves = leaving(&seats, limits, origin, known, is_free);
        }
        leaves.map(|leaves| seats.remove(leaves));
        for (slot, pool) in held.iter_mut().zip(pools) {
            if slot.is_none() {
                *slot = Some(pool.acquire_arc().await);
            }
        }
        let (wanted, evicted) = smol::channel::bounded(1);
        let stage = Rc::new(Cell::new(Stage::Unauthenticated));
        seats.push(OpenConnection { origin, stage: stage.clone(), wanted });
        let served = serve(socket.into(), PendingConnection { origin, evicted, stage });
        // Not held across an await, where the executor may end.
        let Some(executor) = executor.upgrade() else { return };
        executor
            .spawn("node API request", async move {
                served.await;
                drop(held);
            })
            .detach();
        drop(executor);
        // The task is polled once before the next accept, which might close it.
        smol::future::yield_now().await;
    }
}

/// Which of the connections is closed for one of this origin.
fn leaving(
    seats: &[OpenConnection],
    limits: Limits,
    origin: Origin,
    known: &KnownOrigins,
    is_free: bool,
) -> Option<usize> {
    let info = |seat: &OpenConnection| ConnectionInfo { origin: seat.origin, stage: seat.stage.get() };
    let here: Vec<ConnectionInfo> = seats.iter().map(info).collect();
    let peers = known.peers.borrow();
    limits.leaves(&here, origin, |origin| peers.is_known(origin), is_free)
}

/// The kernel detects a dead peer, and one that reads nothing: it sends no keepalive probes while data is unacknowledged.
fn watch_over(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    notice_silence(socket, NODE_KEEPALIVE, 3 * NODE_KEEPALIVE);
}

/// The same future, reporting the processor time of each of its polls while it `counts`.
pub(super) async fn metered<T>(
    work: impl Future<Output = T>,
    counts: impl Fn() -> bool,
    spent: impl Fn(Duration),
) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| {
        if !counts() {
            return work.as_mut().poll(cx);
        }
        let begun = processor_time();
        let polled = work.as_mut().poll(cx);
        spent(processor_time().saturating_sub(begun));
        polled
    })
    .await
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
