//! The local socket: HTTP/1.1 for `smolet pods`, `smolet describe` and other clients with root's rights.
//!
//! `/healthz` → `ok`; `/pods` → a `v1.PodList`, as the kubelet's own `/pods`, or with `?output=table` the output of `smolet
//! pods`; `/describe?pod=NAME` → the output of `smolet describe`; `/logs?pod=NAME` → the paths of its containers' logs, for
//! `smolet logs`; `/events` → the output of `smolet events`, and `/events/next?after=REVISION` → a response once there is a later
//! event; `/metrics` → the metrics, for Prometheus; `/top` → the output of `smolet top --self`, and `/top/pods` → that of `smolet
//! top`; a POST to `/exec`, `/attach` or `/portforward` → the runtime's streaming URL, and one to `/debug` adds a container to a
//! pod (`stream`). Text is rendered here, as API servers render kubectl's tables: the commands stay small and show exactly the
//! agent's state.
//!
//! The server owns no state: each request becomes a [`Query`] for the loop, which answers with a finished body, or, for a long
//! list, with a part of it and the query for the next part: a list of all pods takes the memory of a few.

mod connection;
#[cfg(feature = "tls")]
pub mod node_question;
mod stream;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use http_body_util::{BodyExt as _, Either, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use smol::channel::Sender;
use smol::io::{AsyncRead, AsyncWrite};
use smol::lock::{Semaphore, SemaphoreGuardArc};
use smol::stream::{Stream as Pieces, StreamExt as _};

use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::limits::{
    SERVER_ANSWER_BYTES, SERVER_BACKLOG, SERVER_BUFFER_BYTES, SERVER_CONNECTION_TIME, SERVER_CONNECTIONS_MAX,
    STREAM_COMMAND_BYTES_MAX,
};
use crate::metrics::Gauge;
use crate::model::{PodKey, PodUid};
use crate::printers::style::Style;
use crate::printers::table::PodsFormat;
use crate::stream::{Socket, stream as of_socket};

pub(crate) use connection::{Handler, serve};
#[cfg(feature = "tls")]
pub use node_question::NodeQuestion;
pub use stream::{DebugQuestion, StreamKind, StreamQuestion};

/// A request to the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Liveness of the loop.
    Health,
    /// The metrics, in Prometheus' text format.
    Metrics,
    /// The usage of each bounded structure.
    Top,
    /// Usage of pods.
    TopPods(TopQuestion),
    /// All pods with their status.
    Pods(PodsQuestion),
    /// One pod in detail.
    Describe {
        /// The pod's name, with or without the node's name as its suffix.
        name: String,
        /// Its namespace; without one, a name that exists in only one namespace is found.
        namespace: Option<String>,
        /// With colours or without.
        style: Style,
    },
    /// The log paths of one pod's containers.
    Logs {
        /// The pod's name, with or without the node's name as its suffix.
        name: String,
        /// Its namespace, optional as for `Describe`.
        namespace: Option<String>,
    },
    /// A streaming URL of the runtime.
    Stream(StreamQuestion),
    /// Adds a container to a pod.
    Debug(Box<DebugQuestion>),
    /// Recorded events.
    Events(EventsQuestion),
    /// Waits for an event after this revision of the ring.
    EventAfter(u64),
    /// A query of the node's own API.
    #[cfg(feature = "tls")]
    Node(Box<NodeQuestion>),
}

/// Which pods, and their format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodsQuestion {
    /// The format.
    pub format: PodsFormat,
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// With colours or without.
    pub style: Style,
    /// Only pods after this one, without the list's beginning: the rest of an earlier response.
    pub after: Option<PodCursor>,
}

/// Pods whose usage is requested, and its format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopQuestion {
    /// NAME or NAMESPACE/NAME of pods, with or without the node's name as its suffix; empty: all pods.
    pub names: Vec<String>,
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// With colours or without.
    pub style: Style,
}

/// Which events, and their format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsQuestion {
    /// Only those of pods of that name, with or without the node's name as its suffix.
    pub pod: Option<String>,
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// For a client that follows: only those after this revision of the ring (0: all), after a line `revision N`.
    pub since: Option<u64>,
    /// Without the heading, which an earlier response had.
    pub continued: bool,
    /// With colours or without.
    pub style: Style,
}

/// A pod's position in a list: namespace, name and UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodCursor(Rc<str>, Rc<str>, PodUid);

impl PodCursor {
    /// The pod's position.
    pub fn of(key: &PodKey) -> Self {
        Self(key.namespace.clone(), key.name.clone(), key.uid.clone())
    }
}

/// The loop's answer.
#[derive(Debug)]
pub enum Answer {
    /// The finished body.
    Found(String),
    /// A part of the body, and the question for the next one.
    Part(String, Question),
    /// The requested object does not exist; a sentence.
    NotFound(String),
    /// The request is refused: the HTTP status, and a message.
    Refused(u16, String),
    /// The answer takes a while.
    Later(Later),
}

/// An answer that its connection awaits: as many are awaited as there are connections, for as long as those last.
pub struct Later(pub Pin<Box<dyn Future<Output = Answer>>>);

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

impl Answer {
    fn text(&self) -> &str {
        match self {
            Self::Found(text) | Self::Part(text, _) | Self::NotFound(text) | Self::Refused(_, text) => text,
            Self::Later(_) => "",
        }
    }
}

/// A request with the channel for its answer.
#[derive(Debug)]
pub struct Query {
    /// The request.
    pub question: Question,
    /// Takes one answer. Closed when the client has disconnected.
    pub answer: Sender<Answer>,
}

/// The bound socket; its file is removed on drop.
#[derive(Debug)]
pub struct Server {
    listener: Async<UnixListener>,
    path: PathBuf,
}

impl Server {
    /// Binds the socket with mode 0600. A file left behind by a dead agent is replaced: the caller holds the lock on the state
    /// directory, but another agent may have been configured with the same socket, so a socket with a listener is left alone, and
    /// so is a file that is not a socket.
    ///
    /// # Errors
    /// One message that names the path and the remedy.
    pub fn bind(path: &Path) -> Result<Server, String> {
        let fail = |what: &str, e: std::io::Error| {
            format!("socket {}: {what}: {e}; choose another with --socket", path.display())
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| fail("its directory cannot be made", e))?;
        }
        if is_answered(path) {
            return Err(format!(
                "socket {}: another agent answers there; stop it or choose another with --socket",
                path.display()
            ));
        }
        // A mistyped --socket must not remove any other file.
        if std::fs::symlink_metadata(path).is_ok_and(|there| !there.file_type().is_socket()) {
            return Err(format!(
                "socket {}: something that is no socket is there; choose another with --socket",
                path.display()
            ));
        }
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail("cannot be replaced", e)),
            _ => {}
        }
        let listener = listen(path).map_err(|e| fail("cannot be bound", e.into()))?;
        let listener = Async::new(listener).map_err(|e| fail("cannot be served", e))?;
        Ok(Server { listener, path: path.to_path_buf() })
    }

    /// The next connection, for a server that speaks something else on such a socket.
    pub(crate) async fn accept(&self) -> io::Result<Socket<UnixStream>> {
        Ok(self.listener.accept().await?.0.into())
    }

    /// Serves until dropped; `directories` are those of the agent, as JSON. At most `SERVER_CONNECTIONS_MAX` connections at once,
    /// further ones wait in the kernel's queue; each lasts at most `SERVER_CONNECTION_TIME`.
    pub async fn run(
        self,
        executor: Rc<Executor>,
        clock: SharedClock,
        (queries, directories): (Sender<Query>, Rc<str>),
        connections: Gauge,
    ) {
        let slots = Arc::new(Semaphore::new(SERVER_CONNECTIONS_MAX));
        let asker = QuerySender { directories, ..QuerySender::new(queries) };
        let mut logged = None;
        loop {
            let slot = slots.acquire_arc().await;
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Usually out of descriptors: the server can only wait, and logs it once.
                    if logged.replace(error.kind()) != Some(error.kind()) {
                        log::warn!(
                            "local socket {}: accept failed: {error}; retrying every second",
                            self.path.display()
                        );
                    }
                    clock.sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let counted = connections.enter();
            let (asker, time_is_up) = (asker.clone(), clock.sleep(SERVER_CONNECTION_TIME));
            executor
                .spawn("local socket request", async move {
                    // A broken or slow client affects only its own connection.
                    smol::future::or(asker.serve(of_socket(Socket::from(stream)).into_inner()), async {
                        time_is_up.await;
                    })
                    .await;
                    drop((slot, counted));
                })
                .detach();
        }
    }
}

/// Whether the socket has a listener. Does not wait: a full queue means one, too.
fn is_answered(path: &Path) -> bool {
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    matches!(net::connect(&socket, &address), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

/// A listening socket whose file has mode 0600 from its first instant: no moment in which another user could
/// connect. Linux takes the file's mode from the socket's own; the umask, which belongs to all threads, stays.
fn listen(path: &Path) -> rustix::io::Result<UnixListener> {
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, SERVER_BACKLOG)?;
    Ok(socket.into())
}

impl Drop for Server {
    fn drop(&mut self) {
        // Best effort: a leftover file is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers a connection's request by the loop.
#[derive(Clone)]
pub struct QuerySender {
    /// Queue of the loop.
    queries: Sender<Query>,
    /// Permit to hold an answer over `limits::SERVER_ANSWER_BYTES`; shared by all connections, so that clients that never read
    /// cost the memory of one of them.
    large: Arc<Semaphore>,
    /// Permit to hold an answer whose size is not known yet.
    turn: Arc<Semaphore>,
    /// Permit to measure pods' usage: between the two samples much is kept.
    measuring: Arc<Semaphore>,
    /// The answer to `/directories`, which no loop is asked for.
    directories: Rc<str>,
}

impl QuerySender {
    /// For all connections of a server: clones share the permits.
    pub fn new(queries: Sender<Query>) -> Self {
        let one = || Arc::new(Semaphore::new(1));
        Self { queries, large: one(), turn: one(), measuring: one(), directories: Rc::default() }
    }

    /// Serves one connection with one request to its end.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S) {
        // Released when the connection has ended: until then its answer is held.
        let held = LargeAnswerPermit::default();
        let respond: Handler = Box::new(move |request| Box::pin(self.clone().respond(request, held.clone())));
        serve(stream, SERVER_BUFFER_BYTES, respond).await;
    }

    async fn respond(self, request: Request<Incoming>, held: LargeAnswerPermit) -> Response<Body> {
        let (head, body) = request.into_parts();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or(""));
        if path == "/directories" && head.method == Method::GET {
            return text(StatusCode::OK, JSON, self.directories.to_string());
        }
        let streams = stream::is_path(path);
        let (allowed, name) = if streams { (Method::POST, "POST") } else { (Method::GET, "GET") };
        let known = if streams { None } else { Some(question(path, query)) };
        if let Some(Err(what)) = known {
            return text(StatusCode::NOT_FOUND, TEXT, what.to_owned());
        }
        if head.method != allowed {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("only {name}\n"));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(name));
            return response;
        }
        let (content_type, answer) = match known {
            // Without a permit: it waits, and its answer is short.
            Some(Ok((question @ Question::EventAfter(_), content_type))) => {
                (content_type, self.ask(&question).await)
            }
            Some(Ok((question @ Question::TopPods(_), content_type))) => {
                (content_type, self.ask_alone(&question, &held).await)
            }
            Some(Ok((question, content_type))) => (content_type, self.ask_in_turn(&question, &held).await),
            Some(Err(_)) | None => match posted(path, query, body).await {
                // Without a permit: the runtime may delay it, and its answer is short.
                Ok(question) => (TEXT, self.ask(&question).await),
                Err(what) => return text(StatusCode::BAD_REQUEST, TEXT, what.to_owned()),
            },
        };
        self.response(answer, content_type, held)
    }

    /// The loop's answer as a response; further parts are requested as the client reads.
    pub(crate) fn response(
        self,
        answer: Option<Answer>,
        content_type: &'static str,
        held: LargeAnswerPermit,
    ) -> Response<Body> {
        match answer {
            Some(Answer::Found(body)) => text(StatusCode::OK, content_type, body),
            Some(Answer::Part(body, rest)) => parts(content_type, body, rest, self, held),
            Some(Answer::NotFound(why)) => text(StatusCode::NOT_FOUND, TEXT, why),
            Some(Answer::Refused(status, why)) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                text(status, TEXT, why)
            }
            Some(Answer::Later(_)) | None => text(StatusCode::SERVICE_UNAVAILABLE, TEXT, STOPPING.to_owned()),
        }
    }

    /// The loop's answer. A large one needs the permit to hold it, which is kept in `held` from then on.
    pub(crate) async fn ask_in_turn(&self, question: &Question, held: &LargeAnswerPermit) -> Option<Answer> {
        if held.borrow().is_some() {
            return self.ask(question).await;
        }
        let turn = self.turn.acquire().await;
        let answer = self.ask(question).await?;
        if answer.text().len() <= SERVER_ANSWER_BYTES {
            return Some(answer);
        }
        if let Some(right) = self.large.try_acquire_arc() {
            held.replace(Some(right));
            return Some(answer);
        }
        // Not held while it waits.
        drop((answer, turn));
        let right = self.large.acquire_arc().await;
        held.replace(Some(right));
        self.ask(question).await
    }

    /// The loop's answer to a request that takes a while, without blocking other requests. It cannot be repeated: a large answer
    /// is kept while its connection waits for the permit to hold it.
    pub(crate) async fn ask_alone(&self, question: &Question, held: &LargeAnswerPermit) -> Option<Answer> {
        let _alone = self.measuring.acquire().await;
        let answer = self.ask(question).await?;
        if answer.text().len() > SERVER_ANSWER_BYTES {
            let right = self.large.acquire_arc().await;
            held.replace(Some(right));
        }
        Some(answer)
    }

    /// The loop's answer; `None` when it has ended.
    pub(crate) async fn ask(&self, question: &Question) -> Option<Answer> {
        let (tx, rx) = smol::channel::bounded(1);
        self.queries.send(Query { question: question.clone(), answer: tx }).await.ok()?;
        match rx.recv().await.ok()? {
            Answer::Later(Later(answer)) => Some(answer.await),
            answer => Some(answer),
        }
    }
}

/// Parses a POST, its body included.
async fn posted(path: &str, query: &str, body: Incoming) -> Result<Question, &'static str> {
    let body = Limited::new(body, STREAM_COMMAND_BYTES_MAX).collect().await;
    let body = body.map_err(|_| "the command is too long, or broke off\n")?;
    stream::question(path, query, &body.to_bytes())
}

pub(crate) const STOPPING: &str = "the agent is stopping\n";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";
/// Prometheus' text format.
pub(crate) const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Parses path and query into the request and its content type. PURE.
fn question(path: &str, query: &str) -> Result<(Question, &'static str), &'static str> {
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let mut style = Style::for_output(value("color").as_deref() == Some("1"), None);
    if value("columns").as_deref() == Some("0") {
        style = style.with_tabs();
    }
    let namespace = value("namespace");
    match path {
        "/healthz" => Ok((Question::Health, TEXT)),
        "/metrics" => Ok((Question::Metrics, METRICS)),
        "/top" => Ok((Question::Top, TEXT)),
        "/top/pods" => {
            let names = value("pods").unwrap_or_default();
            let names = names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            Ok((Question::TopPods(TopQuestion { names, namespace, style }), TEXT))
        }
        "/pods" | "/pods/" => {
            let output = value("output").unwrap_or_else(|| "json".to_owned());
            let format = match output.as_str() {
                "table" => Some(PodsFormat::Table),
                other => PodsFormat::parse(other),
            };
            let format = format.ok_or("output: one of json, yaml, table, wide, name\n")?;
            let content_type = if format == PodsFormat::Json { JSON } else { TEXT };
            let question = PodsQuestion { format, namespace, style, after: None };
            Ok((Question::Pods(question), content_type))
        }
        "/describe" => {
            let name = value("pod").ok_or("describe what? /describe?pod=NAME\n")?;
            Ok((Question::Describe { name, namespace, style }, TEXT))
        }
        "/events" => {
            let since = value("since").map(|since| since.parse()).transpose();
            let since = since.map_err(|_| "since: a revision\n")?;
            let continued = value("heading").as_deref() == Some("0");
            let question = EventsQuestion { pod: value("pod"), namespace, since, continued, style };
            Ok((Question::Events(question), TEXT))
        }
        "/events/next" => {
            let after = value("after").and_then(|after| after.parse().ok());
            Ok((Question::EventAfter(after.ok_or("after: a revision\n")?), TEXT))
        }
        "/logs" => {
            let name = value("pod").ok_or("whose logs? /logs?pod=NAME\n")?;
            Ok((Question::Logs { name, namespace }, JSON))
        }
        _ => Err(
            "not found; there are /healthz /metrics /pods /describe /events /logs /top /directories, and for a POST /exec /attach /portforward /debug\n",
        ),
    }
}

/// The permit to hold a large answer, once it was needed; released with the connection.
pub(crate) type LargeAnswerPermit = Rc<RefCell<Option<SemaphoreGuardArc>>>;
/// A finished body, or one in parts.
pub(crate) type Body = Either<Full<Bytes>, StreamBody<Pin<Box<dyn Pieces<Item = io::Result<Frame<Bytes>>>>>>>;

/// A body in parts: the next one is requested once the client has read the one before.
fn parts(
    content_type: &'static str,
    first: String,
    rest: Question,
    asker: QuerySender,
    held: LargeAnswerPermit,
) -> Response<Body> {
    let part = |body: String| Ok(Frame::data(Bytes::from(body)));
    let others = smol::stream::unfold(Some(rest), move |rest| {
        let (asker, held) = (asker.clone(), held.clone());
        async move {
            Some(match asker.ask_in_turn(&rest?, &held).await {
                Some(Answer::Part(body, rest)) => (part(body), Some(rest)),
                Some(Answer::Found(body) | Answer::NotFound(body) | Answer::Refused(_, body)) => {
                    (part(body), None)
                }
                // The response is truncated, which the client detects.
                Some(Answer::Later(_)) | None => (Err(io::Error::other(STOPPING)), None),
            })
        }
    });
    let all = smol::stream::once(part(first)).chain(others);
    let mut response = Response::new(Either::Right(StreamBody::new(all.boxed_local())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_become_questions() {
        let ask = |uri: &str| {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            question(path, query).map(|(question, _)| question)
        };
        assert_eq!(ask("/healthz"), Ok(Question::Health));
        assert_eq!(ask("/metrics"), Ok(Question::Metrics));
        assert_eq!(ask("/top"), Ok(Question::Top));
        assert_eq!(ask("/top/pods"), Ok(Question::TopPods(TopQuestion::default())));
        let names = vec!["prod/web".to_owned(), "db".to_owned()];
        let top = TopQuestion { names, namespace: Some("prod".to_owned()), ..TopQuestion::default() };
        assert_eq!(ask("/top/pods?pods=prod/web,db,&namespace=prod"), Ok(Question::TopPods(top)));
        let pods = |format, namespace: Option<&str>| {
            Question::Pods(PodsQuestion {
                format,
                namespace: namespace.map(str::to_owned),
                ..PodsQuestion::default()
            })
        };
        assert_eq!(ask("/pods"), Ok(pods(PodsFormat::Json, None)), "as the kubelet's own");
        assert_eq!(ask("/pods?output=table&namespace=prod"), Ok(pods(PodsFormat::Table, Some("prod"))));
        let Ok(Question::Pods(PodsQuestion { style, .. })) = ask("/pods?output=table&columns=0") else {
            panic!("pods")
        };
        assert!(style.tabs());
        assert!(ask("/pods?output=xml").is_err());
        let Ok(Question::Describe { name, style, .. }) = ask("/describe?pod=web&color=1") else {
            panic!("a describe");
        };
        assert_eq!((name.as_str(), style), ("web", Style::for_output(true, None)));
        assert!(ask("/describe").is_err());
        let logs = Question::Logs { name: "web".to_owned(), namespace: Some("prod".to_owned()) };
        assert_eq!(ask("/logs?pod=web&namespace=prod"), Ok(logs));
        assert!(ask("/logs").is_err());
        let (pod, since) = (Some("web".to_owned()), Some(7));
        let events = EventsQuestion { pod, since, continued: true, ..EventsQuestion::default() };
        assert_eq!(ask("/events?pod=web&since=7&heading=0"), Ok(Question::Events(events)));
        assert_eq!(ask("/events"), Ok(Question::Events(EventsQuestion::default())));
        assert!(ask("/events?since=x").is_err());
        assert_eq!(ask("/events/next?after=7"), Ok(Question::EventAfter(7)));
        assert!(ask("/events/next").is_err());
        assert!(ask("/run").is_err());
    }

    #[test]
    fn a_dead_socket_is_replaced_and_anything_else_is_left_alone() {
        use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
        let path = std::env::temp_dir().join(format!("smolet-socket-{}", std::process::id()));
        std::fs::write(&path, "precious").unwrap();
        let refused = Server::bind(&path).unwrap_err();
        assert!(refused.contains("no socket is there; choose another with --socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();

        // It never listened: of a listener a process that another test starts has a copy until it has its program.
        let dead = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&dead, &SocketAddrUnix::new(path.as_path()).unwrap()).unwrap();
        drop(dead);
        let server = Server::bind(&path).unwrap();
        assert!(Server::bind(&path).unwrap_err().contains("another agent answers there"));
        drop(server);
        assert!(!path.exists());
    }
}
