//! The server's sockets: TLS and hyper's HTTP/2 server on a single-threaded executor, and faults of the link.
//!
//! Below TLS is [`Counted`]: it counts bytes as a mobile network would bill them, and blocks them while the link is frozen.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_io::{Async, Timer};
use futures_rustls::TlsAcceptor;
use hyper::server::conn::http2::Builder;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use smol::LocalExecutor;
use smol::channel::{Receiver, Sender};
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

use super::Shared;
use super::handle::{self, Peer};

/// Connections at once. Full: a further one is closed after it was accepted.
const CONNECTIONS_MAX: usize = 256;
/// Requests at once on a connection, as in the real server.
const STREAMS_MAX: u32 = 250;
/// The kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 128;
/// Pause after a connection that could not be accepted (out of descriptors).
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub enum Command {
    Listen,
    /// Stop listening, and close all connections.
    Refuse,
    Cut,
    /// Send GOAWAY on every connection: requests in progress complete.
    GoAway,
}

/// A command, and a channel for its completion.
pub struct Message(pub Command, pub mpsc::Sender<()>);

/// Counters and state of the link.
#[derive(Default)]
pub struct Link {
    pub received: AtomicU64,
    pub sent: AtomicU64,
    pub accepted: AtomicU64,
    pub open: AtomicUsize,
    frozen: Mutex<Frozen>,
}

#[derive(Default)]
struct Frozen {
    now: bool,
    /// One for each direction of each connection.
    waiting: Vec<Waker>,
}

impl Link {
    pub fn freeze(&self, frozen: bool) {
        let mut state = self.frozen();
        state.now = frozen;
        if !frozen {
            std::mem::take(&mut state.waiting).into_iter().for_each(Waker::wake);
        }
    }

    /// Ready when the link is not frozen, which stays so while the result is held: after [`Link::freeze`] has returned, no byte
    /// is in flight.
    fn poll_thawed(&self, cx: &Context<'_>) -> Poll<MutexGuard<'_, Frozen>> {
        let mut state = self.frozen();
        if !state.now {
            return Poll::Ready(state);
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn frozen(&self) -> MutexGuard<'_, Frozen> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket below TLS.
struct Counted {
    socket: Async<TcpStream>,
    shared: Arc<Shared>,
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { socket, shared } = self.get_mut();
        let _thawed = std::task::ready!(shared.link.poll_thawed(cx));
        let read = std::task::ready!(Pin::new(socket).poll_read(cx, buffer))?;
        shared.link.received.fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(read))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { socket, shared } = self.get_mut();
        let _thawed = std::task::ready!(shared.link.poll_thawed(cx));
        let written = std::task::ready!(Pin::new(socket).poll_write(cx, bytes))?;
        shared.link.sent.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, shared } = self.get_mut();
        let _thawed = std::task::ready!(shared.link.poll_thawed(cx));
        Pin::new(socket).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, shared } = self.get_mut();
        let _thawed = std::task::ready!(shared.link.poll_thawed(cx));
        Pin::new(socket).poll_close(cx)
    }
}

/// Counts an open connection, until dropped.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.link.open.fetch_add(1, Ordering::Relaxed);
        Self(shared.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.link.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// ---- sockets -------------------------------------------------------------------------------------------------

/// A socket with that address; port 0 selects any. It may share its port with others that do not listen, so that one socket
/// reserves the port between listeners.
pub fn bound(address: SocketAddrV4) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    Ok(socket)
}

fn listening(address: SocketAddrV4) -> io::Result<Async<TcpListener>> {
    let socket = bound(address)?;
    net::listen(&socket, BACKLOG)?;
    Async::new(TcpListener::from(socket))
}

// ---- the thread ----------------------------------------------------------------------------------------------

/// Runs hyper's futures. Weak: the tasks hold it, and the executor holds the tasks.
#[derive(Clone)]
struct Spawner(Weak<LocalExecutor<'static>>);

impl<F: Future + 'static> hyper::rt::Executor<F> for Spawner
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        if let Some(executor) = self.0.upgrade() {
            executor.spawn(task).detach();
        }
    }
}

/// Watched by every connection: a closed channel is a command to all of them.
struct Signals {
    cut: (Sender<Infallible>, Receiver<Infallible>),
    leave: (Sender<Infallible>, Receiver<Infallible>),
}

impl Signals {
    fn new() -> Self {
        Self { cut: smol::channel::bounded(1), leave: smol::channel::bounded(1) }
    }
}

/// Serves until the command channel is closed; all sockets are closed then.
pub fn run(shared: Arc<Shared>, address: SocketAddrV4, inbox: Receiver<Message>) {
    let executor = Rc::new(LocalExecutor::new());
    let acceptor = TlsAcceptor::from(Arc::new(shared.pki.server_config(&shared.clock)));
    let signals = Rc::new(RefCell::new(Signals::new()));
    shared.gauge.clone().block_on(executor.run(async {
        let mut listener: Option<smol::Task<()>> = None;
        while let Ok(Message(command, done)) = inbox.recv().await {
            match command {
                Command::Listen if listener.is_some() => {}
                Command::Listen => {
                    let socket = listening(address).expect("the port is held for this server");
                    let spawner = Spawner(Rc::downgrade(&executor));
                    let accepting =
                        accept(shared.clone(), socket, acceptor.clone(), spawner, signals.clone());
                    listener = Some(executor.spawn(accepting));
                }
                Command::Refuse => {
                    if let Some(task) = listener.take() {
                        task.cancel().await;
                    }
                    cut(&signals).await;
                }
                Command::Cut => cut(&signals).await,
                Command::GoAway => {
                    let mut signals = signals.borrow_mut();
                    signals.leave.0.close();
                    signals.leave = Signals::new().leave;
                }
            }
            let _ = done.send(());
        }
        if let Some(task) = listener.take() {
            task.cancel().await;
        }
        cut(&signals).await;
    }));
}

/// Closes every connection, and waits until its socket is closed.
async fn cut(signals: &RefCell<Signals>) {
    let old = signals.replace(Signals::new());
    old.cut.0.close();
    // Each of them holds a receiver until its socket is closed; a new connection has another channel's.
    while old.cut.0.receiver_count() > 1 {
        smol::future::yield_now().await;
    }
}

async fn accept(
    shared: Arc<Shared>,
    listener: Async<TcpListener>,
    acceptor: TlsAcceptor,
    spawner: Spawner,
    signals: Rc<RefCell<Signals>>,
) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            Timer::after(PAUSE).await;
            continue;
        };
        shared.link.accepted.fetch_add(1, Ordering::Relaxed);
        if shared.link.open.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        // Responses are small and are written in several pieces.
        let _ = socket.get_ref().set_nodelay(true);
        let (all_cut, leave) = {
            let signals = signals.borrow();
            (signals.cut.1.clone(), signals.leave.1.clone())
        };
        let (cut, own_cut) = smol::channel::bounded::<Infallible>(1);
        let open = Open::new(&shared);
        let serving = serve(shared.clone(), socket, acceptor.clone(), spawner.clone(), cut, leave);
        let connection = async move {
            let ended = async {
                smol::future::or(all_cut.recv(), own_cut.recv()).await.err();
            };
            smol::future::or(serving, ended).await;
            // The socket was dropped with its future.
            drop(open);
        };
        if let Some(executor) = spawner.0.upgrade() {
            executor.spawn(connection).detach();
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    socket: Async<TcpStream>,
    acceptor: TlsAcceptor,
    spawner: Spawner,
    cut: Sender<Infallible>,
    leave: Receiver<Infallible>,
) {
    // A client that does not trust this server, or uses another protocol, is ignored.
    let Ok(tls) = acceptor.accept(Counted { socket, shared: shared.clone() }).await else { return };
    let certificates = tls.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
    let peer = Rc::new(Peer { certificates, cut });
    let service =
        hyper::service::service_fn(move |request| handle::serve(shared.clone(), peer.clone(), request));
    let mut connection = pin!(
        Builder::new(spawner)
            .max_concurrent_streams(STREAMS_MAX)
            .serve_connection(FuturesIo::new(tls), service)
    );
    let mut leave = pin!(leave.recv());
    let mut staying = true;
    let _ = poll_fn(|cx| {
        if staying && leave.as_mut().poll(cx).is_ready() {
            staying = false;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
}
