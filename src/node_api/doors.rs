//! Who is at the doors: connections are accepted, and given places ([`places`](super::places)); strangers leave for others.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use smol::channel::{Receiver, Sender};
use smol::lock::Semaphore;

use super::peers::{Origin, Peers};
use super::places::Limits;
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::limits::NODE_KEEPALIVE;
use crate::stream::Socket;

/// A connection that nobody was let in by yet, and that makes room for others.
pub(super) struct Stranger {
    /// Where it comes from.
    pub(super) origin: Origin,
    told: Receiver<Infallible>,
    let_in: Cell<bool>,
}

impl Stranger {
    /// Ends when its place is wanted, which it never is once somebody was let in.
    pub(super) async fn in_the_way(&self) {
        // Nothing is ever sent: this ends when the sender goes.
        let _ = self.told.recv().await;
        if self.let_in.get() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn mark_let_in(&self) {
        self.let_in.set(true);
        self.told.close();
    }

    pub(super) fn is_let_in(&self) -> bool {
        self.let_in.get()
    }
}

/// Accepts connections, so many at once, and has each served by a task of its own.
pub(super) async fn accept<F: Future<Output = ()> + 'static>(
    listener: &Async<TcpListener>,
    limits: Limits,
    peers: &Rc<RefCell<Peers>>,
    executor: &Executor,
    clock: &SharedClock,
    serve: impl Fn(Socket<TcpStream>, Stranger) -> F,
) {
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let mut strangers: Vec<(Origin, Sender<Infallible>)> = Vec::with_capacity(limits.connections_max);
    let mut said = None;
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, as a rule: waiting is all that helps, and saying so once.
                if said.replace(error.kind()) != Some(error.kind()) {
                    log::warn!("node API: {error}; trying again every second");
                }
                clock.sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        watch_over(socket.get_ref());
        let ours = socket.get_ref().local_addr().ok().map(|ours| ours.ip());
        let origin = Origin::of(peer.ip(), ours);
        // Closed: it is gone, or somebody was let in.
        strangers.retain(|(_, stranger)| !stranger.is_closed());
        let free = slots.try_acquire_arc();
        let here: Vec<Origin> = strangers.iter().map(|(origin, _)| *origin).collect();
        let leaves = {
            let peers = peers.borrow();
            limits.leaves(&here, origin, |origin| peers.is_known(origin), free.is_some())
        };
        leaves.map(|leaves| strangers.remove(leaves));
        let slot = match free {
            Some(slot) => slot,
            None => slots.acquire_arc().await,
        };
        let (stranger, told) = smol::channel::bounded(1);
        strangers.push((origin, stranger));
        let served = serve(socket.into(), Stranger { origin, told, let_in: Cell::new(false) });
        executor
            .spawn("node API request", async move {
                served.await;
                drop(slot);
            })
            .detach();
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
