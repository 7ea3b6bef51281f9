//! The node's own API, on port 10250: the target of `kubectl logs`, `exec`, `attach`, `port-forward` and `top`, and of
//! metrics-server (kubelet `pkg/kubelet/server`).
//!
//! ```text
//!     API server ─► TLS ─► authentication (certificate, TokenReview) ─► authorization (SubjectAccessReview) ─► route
//!        /pods /runningpods/ /metrics /healthz           ─► a query of the loop
//!        /metrics/resource /stats/summary                ─► a sample of the runtime's stats, one at a time
//!        /containerLogs/NAMESPACE/POD/CONTAINER          ─► its path, from the loop; read on a thread, in chunks
//!        /exec /attach /portForward                      ─► the runtime's URL, from the loop; upgraded, then spliced
//!        /run /configz /logs/
//! ```
//!
//! A connection has one request. The loop owns the state: each request becomes queries for it (`server::Query`). Nothing is done
//! without a request.
//!
//! Differs from the kubelet: HTTP/1.1 alone, a connection for each request; no `/debug/`, `/checkpoint`, `/metrics/cadvisor` and
//! `/metrics/probes`; a WebSocket is passed to the runtime unchanged, so the node does not declare `ExtendWebSocketsToKubelet`
//! and the API server translates to SPDY.
//!
//! `request`, `decision_cache`, `peers`, `connection_limits` and `stats` are PURE.

mod accept;
mod auth;
mod connection_limits;
mod decision_cache;
pub mod handshake;
mod logs;
mod peers;
pub mod request;
pub(crate) mod stats;
mod system_logs;
mod tls;
mod tunnel_sockets;
mod upgrade;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use futures_rustls::TlsAcceptor;
use futures_rustls::server::TlsStream;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use smol::channel::Sender;
use smol::lock::{Semaphore, SemaphoreGuardArc};

use crate::blocking::{Blocking, unblock_apart};
use crate::clock::SharedClock;
use crate::config::NodeApi;
use crate::executor::Executor;
use crate::kube::Client;
use crate::limits::{
    HEALTHZ_ADDRESS_CONNECTIONS_MAX, HEALTHZ_CONNECTIONS_MAX, HEALTHZ_HEAD_BYTES_MAX,
    HEALTHZ_UNKNOWN_CONNECTIONS_MAX, NODE_ADDRESS_CONNECTIONS_MAX, NODE_CONNECTIONS_MAX, NODE_FILES_PERIOD,
    NODE_HANDSHAKE_TIME, NODE_HEAD_BYTES_MAX, NODE_KNOWN_CONNECTIONS, NODE_KNOWN_CONNECTIONS_MAX,
    NODE_REQUEST_TIME, NODE_STREAMS_MAX, NODE_TLS_OUT_BYTES, NODE_TUNNEL_CONNECTIONS,
    NODE_UNKNOWN_CONNECTIONS_MAX, PEER_HANDSHAKE_BYTES_MAX, SERVER_BACKLOG,
};
use crate::metrics::NodeApiUse;
use crate::model::Mono;
use crate::server::{
    self, Answer, Body, Handler, LargeAnswerPermit, NodeQuestion, Query, QuerySender, Question, STOPPING,
};
use crate::stream::{Duplex, Socket, stream};
use accept::{KnownOrigins, PendingConnection, accept, metered};
use auth::{Gate, PeerCertificate};
use connection_limits::Limits;
use logs::Reading;
use peers::{Origin, Peers};
use request::{JSON, Refusal, Route, TEXT, route};
pub use tls::Issued;
use tls::{Files, Loaded, Serving};
pub(crate) use tunnel_sockets::{Registration, TunnelSockets};
use upgrade::Backend;

impl Duplex for TlsStream<Socket<TcpStream>> {}

/// The bound ports, and the loaded certificates.
pub struct Listening {
    api: Async<TcpListener>,
    healthz: Option<Async<TcpListener>>,
    address: SocketAddr,
    names: Names,
    files: Files,
    loaded: Loaded,
    serving: Serving,
    tunnels: TunnelSockets,
}

/// The node's current names and addresses, which change.
pub type Names = Rc<dyn Fn() -> Vec<String>>;

impl Listening {
    /// Binds the ports, and loads or creates the certificate, for these names and addresses; the certificate that the cluster has
    /// `issued` replaces it as soon as its file exists. I/O, blocking.
    ///
    /// # Errors
    /// One message that names the port or the file, and the remedy.
    pub fn bind(
        settings: &NodeApi,
        root: &Path,
        names: Names,
        issued: Option<Issued>,
    ) -> Result<Self, String> {
        let files = Files::new(settings, root, names(), issued);
        let loaded = files.load()?;
        let serving = loaded.serving(&files)?;
        let address = SocketAddr::new(settings.address, settings.port);
        let api = listen(address).map_err(|error| {
            format!("node API {address}: {error}; is a kubelet here? choose another with --port or --address")
        })?;
        let port = api.get_ref().local_addr().map_or(settings.port, |address| address.port());
        let address = SocketAddr::new(settings.address, port);
        let healthz = settings.healthz.map(|address| {
            listen(address).map_err(|error| {
                format!("healthz {address}: {error}; choose another with healthzPort, 0: none")
            })
        });
        Ok(Self {
            api,
            healthz: healthz.transpose()?,
            address,
            names,
            files,
            loaded,
            serving,
            tunnels: TunnelSockets::default(),
        })
    }

    /// The port, for the Node's `status.daemonEndpoints`.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Local addresses of the k3s tunnels' connections.
    pub(crate) fn tunnel_sockets(&self) -> TunnelSockets {
        self.tunnels.clone()
    }

    /// The address by which this machine itself reaches it.
    pub(crate) fn own_address(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.port())
    }
}

/// `0.0.0.0` is all addresses of both families, as with Go; of IPv4 alone where the kernel has no IPv6.
fn listen(address: SocketAddr) -> std::io::Result<Async<TcpListener>> {
    if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        match listen_at(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port())) {
            Err(error)
                if matches!(Errno::from_io_error(&error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {
            }
            listening => return listening,
        }
    }
    listen_at(address)
}

fn listen_at(address: SocketAddr) -> std::io::Result<Async<TcpListener>> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A restarted agent need not wait for the connections of the previous one.
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // Whatever the node's default is.
        net::sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, SERVER_BACKLOG)?;
    Async::new(TcpListener::from(socket))
}

/// Inputs of the API.
pub struct Needs {
    /// Configuration of the API.
    pub settings: NodeApi,
    /// The node's name.
    pub node: Box<str>,
    /// The response of `/configz`.
    pub configz: String,
    /// Client for `TokenReviews` and `SubjectAccessReviews`.
    pub client: Client,
    /// Queue of the loop.
    pub queries: Sender<Query>,
    /// Threads that read logs.
    pub blocking: Rc<Blocking>,
    /// Spawns a task for each connection. Weak: a task that holds the executor lasts for ever.
    pub executor: Weak<Executor>,
    /// The machine's clock.
    pub clock: SharedClock,
    /// Memory gauges.
    pub held: NodeApiUse,
}

/// Limits of the API's port.
const OF_API: Limits = Limits {
    connections_max: NODE_CONNECTIONS_MAX,
    of_tunnels: NODE_TUNNEL_CONNECTIONS,
    of_address_max: NODE_ADDRESS_CONNECTIONS_MAX,
    of_unknown_max: NODE_UNKNOWN_CONNECTIONS_MAX,
    of_known_max: NODE_KNOWN_CONNECTIONS_MAX,
    of_known: NODE_KNOWN_CONNECTIONS,
};
/// Limits of the `/healthz` port, which has no authentication.
const OF_HEALTHZ: Limits = Limits {
    connections_max: HEALTHZ_CONNECTIONS_MAX,
    of_tunnels: 0,
    of_address_max: HEALTHZ_ADDRESS_CONNECTIONS_MAX,
    of_unknown_max: HEALTHZ_UNKNOWN_CONNECTIONS_MAX,
    of_known_max: HEALTHZ_UNKNOWN_CONNECTIONS_MAX,
    of_known: HEALTHZ_ADDRESS_CONNECTIONS_MAX,
};

/// Serves the ports until the executor ends.
pub async fn run(listening: Listening, needs: Needs) {
    let Listening { api, healthz, names, files, loaded, serving, tunnels, .. } = listening;
    let Needs { settings, node, configz, client, queries, blocking, executor, clock, held } = needs;
    let asker = QuerySender::new(queries);
    let servers = client.authenticated();
    let peers = Rc::new(RefCell::new(Peers::new(clock.now().mono)));
    let (system_logs, stream_idle_max) = (settings.system_logs.clone(), settings.stream_idle_max);
    let shared = Rc::new(Api {
        system_logs,
        stream_idle_max,
        gate: Gate::new(client, clock.clone(), settings, node, peers.clone(), &held),
        reading: Reading { asker: asker.clone(), blocking, clock: clock.clone() },
        configz,
        tls: Tls {
            named: RefCell::new(names()),
            names,
            files,
            loaded: RefCell::new(loaded),
            serving: RefCell::new(serving),
            looked: Cell::new(clock.now().mono),
            looking: Arc::new(Semaphore::new(1)),
        },
        streams: Arc::new(Semaphore::new(NODE_STREAMS_MAX)),
        peers: peers.clone(),
        clock: clock.clone(),
    });
    let known = KnownOrigins { peers, tunnels, servers };
    let of_api = accept(&api, OF_API, &known, &executor, &clock, |socket, pending| {
        let (shared, open) = (shared.clone(), held.connections.enter());
        async move {
            let _open = open;
            shared.serve(socket, pending).await;
        }
    });
    let of_healthz = async {
        match &healthz {
            Some(listener) => {
                let serve = |socket, pending: PendingConnection| {
                    let pending = Rc::new(pending);
                    let served = serve_healthz(socket, pending.clone(), asker.clone(), clock.clone());
                    async move { smol::future::or(served, pending.displaced()).await }
                };
                accept(listener, OF_HEALTHZ, &known, &executor, &clock, serve).await;
            }
            None => std::future::pending().await,
        }
    };
    smol::future::or(of_api, of_healthz).await;
}

/// `/healthz`, without TLS and authentication.
async fn serve_healthz(
    socket: Socket<TcpStream>,
    pending: Rc<PendingConnection>,
    asker: QuerySender,
    clock: SharedClock,
) {
    let handler: Handler = Box::new(move |request| {
        // The response is short, and its time bounded: a connection with a request is not closed for another one.
        pending.mark_admitted();
        let asker = asker.clone();
        Box::pin(async move {
            match route(request.method().as_str(), request.uri().path(), "") {
                Ok(Route::Ask(question @ Question::Health, kind)) => {
                    let answer = asker.ask(&question).await;
                    asker.response(answer, kind, LargeAnswerPermit::default())
                }
                Err(refusal @ (405, _)) => refused(refusal),
                Ok(_) | Err(_) => refused((404, "404 page not found\n".to_owned())),
            }
        })
    });
    let served = async {
        if socket.readable().await.is_ok() {
            server::serve(stream(socket).into_inner(), HEALTHZ_HEAD_BYTES_MAX, handler).await;
        }
    };
    smol::future::or(served, clock.sleep(NODE_REQUEST_TIME)).await;
}

/// State shared by all connections.
struct Api {
    gate: Gate,
    reading: Reading,
    configz: String,
    /// The directory that `/logs/` serves.
    system_logs: Option<PathBuf>,
    tls: Tls,
    /// Slots of long-lived connections.
    streams: Arc<Semaphore>,
    /// Idle timeout of an upgraded connection.
    stream_idle_max: Duration,
    peers: Rc<RefCell<Peers>>,
    clock: SharedClock,
}

/// The certificates, which are reloaded when their files change.
struct Tls {
    names: Names,
    /// The names and addresses for which the self-signed certificate was last checked.
    named: RefCell<Vec<String>>,
    files: Files,
    loaded: RefCell<Loaded>,
    serving: RefCell<Serving>,
    looked: Cell<Mono>,
    /// Held while the files are checked: they may be on a disk that hangs.
    looking: Arc<Semaphore>,
}

impl Tls {
    /// The certificates, as loaded `NODE_FILES_PERIOD` ago or later.
    async fn now(&self, clock: &SharedClock) -> Serving {
        let now = clock.now().mono;
        // A certificate that the cluster issues is used by the first connection after it.
        let names = (self.names)();
        let is_makeshift = self.loaded.borrow().makeshift().is_some();
        let is_for_others = *self.named.borrow() != names;
        let period = if is_makeshift || is_for_others { Duration::ZERO } else { NODE_FILES_PERIOD };
        if now.since(self.looked.get()) >= period
            && let Some(turn) = self.looking.try_acquire_arc()
        {
            self.looked.set(now);
            self.named.replace(names.clone());
            let files = self.files.clone().with_names(names);
            let load = unblock_apart(move || {
                let _turn = turn;
                files.load()
            });
            let late = async {
                clock.sleep(NODE_HANDSHAKE_TIME).await;
                Err(std::io::ErrorKind::TimedOut.into())
            };
            let loaded = smol::future::or(load, late).await;
            let loaded = loaded.map_err(|error| error.to_string()).and_then(|loaded| loaded);
            let renewed = loaded.and_then(|loaded| {
                if *self.loaded.borrow() == loaded {
                    return Ok(());
                }
                if let Some(why) = loaded.makeshift()
                    && self.loaded.borrow().makeshift().is_none()
                {
                    return Err(why.to_owned());
                }
                self.serving.replace(loaded.serving(&self.files)?);
                self.loaded.replace(loaded);
                log::info!("node API: serving certificates reloaded");
                Ok(())
            });
            if let Err(why) = renewed {
                log::warn!("node API: {why}; keeping the current certificates");
            }
        }
        self.serving.borrow().clone()
    }
}

/// State of one connection.
struct ConnectionState {
    shown: PeerCertificate,
    pending: PendingConnection,
    /// Its slot, while it is long-lived.
    unhurried: RefCell<Option<SemaphoreGuardArc>>,
    /// The backend connection after an upgrade.
    backend: RefCell<Option<Backend>>,
    held: LargeAnswerPermit,
}

impl Api {
    /// Serves one connection to its end.
    async fn serve(self: Rc<Self>, socket: Socket<TcpStream>, pending: PendingConnection) {
        let late = async {
            self.clock.sleep(NODE_HANDSHAKE_TIME).await;
            Err(std::io::ErrorKind::TimedOut.into())
        };
        let displaced = async {
            pending.displaced().await;
            Err(std::io::ErrorKind::ConnectionAborted.into())
        };
        let greeted = self.greet(socket, &pending);
        let (tls, shown) = match smol::future::or(smol::future::or(greeted, late), displaced).await {
            Ok(greeted) => greeted,
            Err(error) => {
                log::debug!("node API: TLS: {error}");
                return;
            }
        };
        if matches!(shown, PeerCertificate::User(_)) {
            pending.mark_authenticated();
        }
        let own = Rc::new(ConnectionState {
            shown,
            pending,
            unhurried: RefCell::default(),
            backend: RefCell::default(),
            held: LargeAnswerPermit::default(),
        });
        let (api, of_handler) = (self.clone(), own.clone());
        let handler: Handler = Box::new(move |request| {
            let (api, own) = (api.clone(), of_handler.clone());
            Box::pin(async move { api.respond(&own, request).await.unwrap_or_else(refused) })
        });
        // A request that is not admitted counts for its origin, too.
        let served = metered(
            server::serve(stream(tls).into_inner(), NODE_HEAD_BYTES_MAX, handler),
            || !own.pending.is_admitted(),
            |time| self.spend(own.pending.origin, time),
        );
        let served = async { Some(served.await) };
        let late = async {
            self.clock.sleep(NODE_REQUEST_TIME).await;
            if own.unhurried.borrow().is_some() {
                std::future::pending::<()>().await;
            }
            None
        };
        let displaced = async {
            own.pending.displaced().await;
            None
        };
        let served = smol::future::or(smol::future::or(served, late), displaced).await;
        let backend = own.backend.take();
        match (served, backend) {
            (Some((client, already)), Some(backend)) => {
                upgrade::splice(client, already, backend, &self.clock, self.stream_idle_max).await;
            }
            // hyper leaves a connection open that was to be upgraded, and was not.
            (Some((mut client, _)), None) => upgrade::close(&mut client).await,
            (None, _) => {}
        }
    }

    /// The TLS handshake, within its origin's rate limit, and the client certificate. Its processor time is counted.
    async fn greet(
        &self,
        socket: Socket<TcpStream>,
        pending: &PendingConnection,
    ) -> std::io::Result<(TlsStream<Socket<TcpStream>>, PeerCertificate)> {
        let origin = pending.origin;
        let ready_at = || {
            let now = self.clock.now().mono;
            self.peers.borrow_mut().handshake_at(origin, now)
        };
        while let Some(ready) = ready_at() {
            self.clock.sleep_until(ready).await;
        }
        let serving = self.tls.now(&self.clock).await;
        let greeted = async {
            socket.set_ration(PEER_HANDSHAKE_BYTES_MAX);
            let mut tls = TlsAcceptor::from(serving.config).accept(socket).await?;
            tls.get_ref().0.end_ration();
            tls.get_mut().1.set_buffer_limit(Some(NODE_TLS_OUT_BYTES));
            let shown = PeerCertificate::of(serving.clients.as_deref(), tls.get_ref().1.peer_certificates());
            Ok((tls, shown))
        };
        metered(greeted, || true, |time| self.spend(origin, time)).await
    }

    fn spend(&self, origin: Origin, time: Duration) {
        self.peers.borrow_mut().spend(origin, time, self.clock.now().mono);
    }

    async fn respond(
        &self,
        own: &ConnectionState,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let (head, _) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        self.gate.admit(&own.shown, own.pending.origin, &head.method, path, &head.headers).await?;
        own.pending.mark_admitted();
        let asker = self.reading.asker.clone();
        match route(head.method.as_str(), path, query)? {
            Route::Ask(question, kind) => {
                let answer = asker.ask_in_turn(&question, &own.held).await;
                Ok(asker.response(answer, kind, own.held.clone()))
            }
            Route::Measure(question, kind) => {
                let question = Question::Node(Box::new(question));
                let answer = asker.ask_alone(&question, &own.held).await;
                Ok(asker.response(answer, kind, own.held.clone()))
            }
            Route::Config => Ok(server::text(StatusCode::OK, JSON, self.configz.clone())),
            Route::Log(request) => {
                self.lasts(own)?;
                self.reading.clone().show(request).await
            }
            Route::SystemLog(path, slash) => {
                // `getHandlerForDisabledEndpoint`.
                let disabled = || (405, "logs endpoint is disabled.\n".to_owned());
                let root = self.system_logs.clone().ok_or_else(disabled)?;
                self.lasts(own)?;
                system_logs::show(&self.reading.blocking, root, path, slash).await
            }
            Route::Run(question) => {
                self.lasts(own)?;
                let answer = asker.ask(&Question::Node(Box::new(question))).await;
                Ok(asker.response(answer, TEXT, own.held.clone()))
            }
            Route::Stream(question) => self.upgrade(own, question, &head).await,
        }
    }

    /// Takes a slot of the long-lived connections for this one.
    fn lasts(&self, own: &ConnectionState) -> Result<(), Refusal> {
        let full = || (429, "too many logs, commands and forwarded ports at once; try again\n".to_owned());
        own.unhurried.replace(Some(self.streams.try_acquire_arc().ok_or_else(full)?));
        Ok(())
    }

    async fn upgrade(
        &self,
        own: &ConnectionState,
        question: NodeQuestion,
        head: &Parts,
    ) -> Result<Response<Body>, Refusal> {
        if !upgrade::is_wanted(&head.headers) {
            return Err((400, "Upgrade request required".to_owned()));
        }
        // The runtime and its streaming server have deadlines of their own.
        self.lasts(own)?;
        match self.reading.asker.ask(&Question::Node(Box::new(question))).await {
            Some(Answer::Found(url)) => {
                let (response, backend) = upgrade::open(&url, head).await?;
                own.backend.replace(backend);
                Ok(response)
            }
            Some(Answer::Refused(status, why)) => Err((status, why)),
            Some(_) | None => Err((503, STOPPING.to_owned())),
        }
    }
}

fn refused((status, why): Refusal) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    server::text(status, TEXT, why)
}
