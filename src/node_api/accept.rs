//! The accept loop: connections are given places by the port's limits ([`places`](super::places)); those by which nobody was let in
//! are closed for others.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
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
use crate::stream::Socket;

/// A connection that nobody was let in by yet, and that makes room for others.
pub(super) struct PendingConnection {
    /// Where it comes from.
    pub(super) origin: Origin,
    told: Receiver<Infallible>,
    stage: Rc<Cell<Stage>>,
}

impl PendingConnection {
    /// Ends when its place is wanted, which it never is once somebody was let in.
    pub(super) async fn displaced(&self) {
        // Nothing is ever sent: this ends when the sender goes.
        let _ = self.told.recv().await;
        if self.is_let_in() {
            std::future::pending::<()>().await;
        }
    }

    /// Its certificate names somebody: others of its origin are closed before it.
    pub(super) fn mark_authenticated(&self) {
        self.stage.set(self.stage.get().max(Stage::Authenticated));
    }

    pub(super) fn mark_let_in(&self) {
        self.stage.set(Stage::Admitted);
    }

    pub(super) fn is_let_in(&self) -> bool {
        self.stage.get() == Stage::Admitted
    }
}

/// A connection as the accept loop knows it.
struct OpenConnection {
    origin: Origin,
    stage: Rc<Cell<Stage>>,
    /// Dropped: its place is wanted. Closed: it has ended.
    wanted: Sender<Infallible>,
}

/// What tells known origins from others.
pub(super) struct KnownOrigins {
    pub(super) peers: Rc<RefCell<Peers>>,
    pub(super) tunnels: TunnelSockets,
    pub(super) servers: Authenticated,
}

impl KnownOrigins {
    /// Where a connection comes from. The cluster's servers are known before anybody was let in from there: also those that a new
    /// agent has only connected to itself.
    fn origin(&self, peer: SocketAddr, ours: Option<IpAddr>, now: Mono) -> Origin {
        if self.tunnels.take(peer) {
            return Origin::Tunnel;
        }
        for server in self.servers.all() {
            self.peers.borrow_mut().mark_known(Origin::of(server, ours), now);
        }
        Origin::of(peer.ip(), ours)
    }
}

/// Accepts connections, so many at once, and has each served by a task of its own.
pub(super) async fn accept<F: Future<Output = ()> + 'static>(
    listener: &Async<TcpListener>,
    limits: Limits,
    known: &KnownOrigins,
    executor: &Executor,
    clock: &SharedClock,
    serve: impl Fn(Socket<TcpStream>, PendingConnection) -> F,
) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    // All but those that are for tunnels alone.
    let slots_of_others = Arc::new(Semaphore::new(limits.connections_max - limits.of_tunnels));
    let mut seats: Vec<OpenConnection> = Vec::with_capacity(limits.connections_max + 1);
    let mut said = None;
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, as a rule: waiting is all that helps, and saying so once.
                if said.replace(error.kind()) != Some(error.kind()) {
                    log::warn!("node API: accept failed: {error}; retrying every second");
                }
                clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        watch_over(socket.get_ref());
        let ours = socket.get_ref().local_addr().ok().map(|ours| ours.ip());
        let origin = known.origin(peer, ours, clock.now().mono);
        seats.retain(|seat| !seat.wanted.is_closed());
        let pools = match origin {
            Origin::Tunnel => vec![&slots],
            Origin::Own | Origin::V4(_) | Origin::V6(_) => vec![&slots_of_others, &slots],
        };
        let mut held: Vec<_> = pools.iter().map(|pool| pool.try_acquire_arc()).collect();
        let here: Vec<ConnectionInfo> = seats
            .iter()
            .map(|seat| ConnectionInfo { origin: seat.origin, stage: seat.stage.get() })
            .collect();
        let leaves = {
            let peers = known.peers.borrow();
            let is_free = held.iter().all(Option::is_some);
            limits.leaves(&here, origin, |origin| peers.is_known(origin), is_free)
        };
        leaves.map(|leaves| seats.remove(leaves));
        for (slot, pool) in held.iter_mut().zip(pools) {
            if slot.is_none() {
                *slot = Some(pool.acquire_arc().await);
            }
        }
        let (wanted, told) = smol::channel::bounded(1);
        let stage = Rc::new(Cell::new(Stage::Unauthenticated));
        seats.push(OpenConnection { origin, stage: stage.clone(), wanted });
        let served = serve(socket.into(), PendingConnection { origin, told, stage });
        executor
            .spawn("node API request", async move {
                served.await;
                drop(held);
            })
            .detach();
        // It is looked at once before another one comes, for which it might be closed.
        smol::future::yield_now().await;
    }
}

/// Has the kernel find out when the other end is gone without a word. What it refuses is not missed before that.
fn watch_over(socket: &TcpStream) {
    use rustix::net::sockopt;
    let _ = socket.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, NODE_KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(socket, NODE_KEEPALIVE);
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    // Of one that data is on its way to nothing is asked.
    let _ = sockopt::set_tcp_user_timeout(socket, 3 * millis(NODE_KEEPALIVE));
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The same work, with the processor time that each of its steps takes while it `counts`.
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

/// That of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
