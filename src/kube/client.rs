//! Requests to the API server, with a buffered or a streamed response.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{Method, Request, Response, Uri};
use smol::lock::{Mutex, Semaphore, SemaphoreGuardArc};

use super::link::{Connected, Link};
use super::{Access, Authenticated, KubeError};
use crate::clock::SharedClock;
use crate::decode::Node;
use crate::decode::json;
use crate::executor::Executor;
use crate::http2::{RequestBody, Spawner};
use crate::limits::{
    ApiRates, KUBE_ANSWER_BYTES_MAX, KUBE_CALL_TIME, KUBE_CALLS_MAX, KUBE_ERROR_BYTES_MAX,
    KUBE_MESSAGE_BYTES_MAX, Rate,
};
use crate::rate::TokenBucket;
use crate::text::start_of;

/// A request's body.
#[derive(Clone, Debug)]
pub struct Content {
    kind: &'static str,
    bytes: Vec<u8>,
}

impl Content {
    /// An object as JSON.
    pub fn json(object: &serde_json::Value) -> Self {
        Self { kind: "application/json", bytes: object.to_string().into_bytes() }
    }

    /// A strategic merge patch.
    pub fn strategic(patch: &serde_json::Value) -> Self {
        Self { kind: "application/strategic-merge-patch+json", bytes: patch.to_string().into_bytes() }
    }
}

/// An API server. Clones share one connection.
#[derive(Clone)]
pub struct Client {
    shared: Rc<Shared>,
    lane: Lane,
}

/// The rate limit of a request: the kubelet's three clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Requests,
    Events,
    /// Not limited: a node that is late with them becomes not ready.
    Heartbeats,
}

struct Shared {
    link: Link,
    clock: SharedClock,
    /// The holder of the lock waits for the next token; the others queue for the lock.
    requests: Option<Mutex<TokenBucket>>,
    events: Option<Mutex<TokenBucket>>,
    calls: Arc<Semaphore>,
    agent: HeaderValue,
    seed: u64,
}

impl Client {
    /// A client for the server of that kubeconfig. Connects with the first request; hyper's tasks run on `executor`. `seed`
    /// differs from node to node, so that they do not reconnect at the same instant.
    pub fn new(
        access: Access,
        executor: &Rc<Executor>,
        clock: SharedClock,
        seed: u64,
        rates: ApiRates,
    ) -> Self {
        let agent = concat!("smolet/", env!("CARGO_PKG_VERSION"));
        let now = clock.now().mono;
        let bucket = |rate: Option<Rate>| rate.map(|rate| Mutex::new(TokenBucket::new(rate, now)));
        let shared = Rc::new(Shared {
            link: Link::new(access, clock.clone(), Spawner::new(executor), seed),
            clock,
            requests: bucket(rates.requests),
            events: bucket(rates.events),
            calls: Arc::new(Semaphore::new(KUBE_CALLS_MAX)),
            agent: HeaderValue::from_static(agent),
            seed,
        });
        Self { shared, lane: Lane::Requests }
    }

    /// The same server, with the rate limit of events.
    #[must_use]
    pub fn for_events(&self) -> Self {
        Self { shared: self.shared.clone(), lane: Lane::Events }
    }

    /// The same server, for the node's lease and status, without a rate limit.
    #[must_use]
    pub fn for_heartbeats(&self) -> Self {
        Self { shared: self.shared.clone(), lane: Lane::Heartbeats }
    }

    /// Waits for a token of the rate limit (`Request.tryThrottle`). A caller that is cancelled before has taken none.
    async fn throttle(&self) {
        let bucket = match self.lane {
            Lane::Requests => &self.shared.requests,
            Lane::Events => &self.shared.events,
            Lane::Heartbeats => &None,
        };
        let Some(bucket) = bucket else { return };
        let mut bucket = bucket.lock().await;
        while !bucket.try_accept(self.shared.clock.now().mono) {
            self.shared.clock.sleep_until(bucket.ready_at()).await;
        }
    }

    /// Closes the connection, and ends its back-off: the kubeconfig's files have changed.
    pub(crate) fn reconnect(&self) {
        self.shared.link.reconnect();
    }

    /// Number of moves of the connection to another server of the cluster.
    pub(crate) fn moves(&self) -> u64 {
        self.shared.link.moves()
    }

    /// Number of servers besides the kubeconfig's.
    pub(crate) fn others(&self) -> usize {
        self.shared.link.access().others().len()
    }

    /// The addresses of servers that have shown a verified certificate of the cluster.
    pub(crate) fn authenticated(&self) -> Authenticated {
        self.shared.link.access().authenticated().clone()
    }

    /// The list of servers besides the kubeconfig's has changed.
    pub(crate) fn servers_changed(&self) {
        self.shared.link.servers_changed();
    }

    /// Requests in flight or waiting for their turn: each holds the semaphore.
    pub fn calls_under_way(&self) -> usize {
        (Arc::strong_count(&self.shared.calls) - 1).min(KUBE_CALLS_MAX)
    }

    /// The node's jitter seed.
    pub(super) fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// The server's identity: its certificate authorities, else its address. It identifies the cluster.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn trust(&self) -> Result<Vec<u8>, KubeError> {
        self.shared.link.access().trust().await
    }

    /// The clock of its timeouts.
    pub(crate) fn clock(&self) -> &SharedClock {
        &self.shared.clock
    }

    /// Sends one request and parses its response, within `limits::KUBE_CALL_TIME` of its turn. On a timeout the connection is
    /// abandoned: a stalled one would hold up everything else for a quarter of an hour.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        content: Option<Content>,
    ) -> Result<Node, KubeError> {
        self.throttle().await;
        let on = Cell::new(self.shared.link.made());
        let made = Box::pin(async {
            let (response, _turn) = self.send(method, path, content, &on).await?;
            let body = whole(response.into_body(), KUBE_ANSWER_BYTES_MAX).await?;
            json::read(&body)
                .map_err(|error| KubeError::Protocol(format!("{path}: the answer is no JSON: {error}")))
        });
        self.within(KUBE_CALL_TIME, &on, made).await
    }

    /// Sends a request whose response is streamed.
    pub(super) async fn open(&self, path: &str) -> Result<Opened, KubeError> {
        self.throttle().await;
        let on = Cell::new(self.shared.link.made());
        let opening = Box::pin(async {
            // Watches come last: they take no slot from the requests.
            let (response, _turn) = self.send(Method::GET, path, None, &on).await?;
            Ok(response.into_body())
        });
        let body = self.within(KUBE_CALL_TIME, &on, opening).await?;
        Ok(Opened { body, on })
    }

    /// Bounds `work` by the time, after which the connection `on` which it stalls is abandoned. A connection opened since then
    /// may be another server's, and is kept.
    async fn within<T>(
        &self,
        time: Duration,
        on: &Cell<u64>,
        work: impl Future<Output = Result<T, KubeError>>,
    ) -> Result<T, KubeError> {
        let late = async {
            self.shared.clock.sleep(time).await;
            let why = format!("gave no answer within {} s", time.as_secs());
            self.shared.link.silent(on.get(), &why);
            Err(KubeError::Unreachable(format!("the API server {why}")))
        };
        smol::future::or(work, late).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: Option<Content>,
        on: &Cell<u64>,
    ) -> Result<(Response<Incoming>, SemaphoreGuardArc), KubeError> {
        let turn = self.shared.calls.acquire_arc().await;
        let mut up = self.shared.link.connected().await?;
        on.set(up.number);
        let request = self.request(&up, method, path, content)?;
        let number = up.number;
        let response = up.requests.send_request(request).await.map_err(|error| {
            // Whatever the error, the next request is better off on a new connection.
            self.shared.link.give_up(number);
            KubeError::Unreachable(format!("the connection to the API server was lost: {error}"))
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok((response, turn));
        }
        let body = whole(response.into_body(), KUBE_ERROR_BYTES_MAX).await.unwrap_or_default();
        match status.as_u16() {
            // The token or the certificate in the files may have been renewed: they are read again with the next connection.
            401 => self.shared.link.give_up(number),
            503 => self.shared.link.unready(number),
            _ => {}
        }
        Err(refusal(status.as_u16(), &json::read(&body).unwrap_or(Node::Null)))
    }

    fn request(
        &self,
        up: &Connected,
        method: Method,
        path: &str,
        content: Option<Content>,
    ) -> Result<Request<RequestBody>, KubeError> {
        let wrong = || KubeError::Config(format!("{path} cannot be asked for"));
        let mut uri = hyper::http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTPS);
        uri.authority = Some(up.authority.clone());
        let path = if up.prefix.is_empty() { path.to_owned() } else { format!("{}{path}", up.prefix) };
        uri.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| wrong())?);
        let kind = content.as_ref().map(|content| content.kind);
        let mut request = Request::new(RequestBody::One(content.map(|content| Bytes::from(content.bytes))));
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| wrong())?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.shared.agent.clone());
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        if let Some(token) = &up.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        Ok(request)
    }
}

/// A streamed response. Dropping it cancels the request.
pub(super) struct Opened {
    body: Incoming,
    /// The number of its connection.
    on: Cell<u64>,
}

impl Opened {
    /// The next bytes, which have to arrive within that time; `None` at the end.
    pub(super) async fn next(&mut self, client: &Client, time: Duration) -> Result<Option<Bytes>, KubeError> {
        let Self { body, on } = self;
        let next = async {
            loop {
                let Some(frame) = body.frame().await else { return Ok(None) };
                let frame = frame
                    .map_err(|error| KubeError::Unreachable(format!("the answer breaks off: {error}")))?;
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        };
        client.within(time, on, next).await
    }
}

async fn whole(mut body: Incoming, bytes_max: usize) -> Result<Vec<u8>, KubeError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| KubeError::Unreachable(format!("the answer breaks off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > bytes_max {
            return Err(KubeError::Protocol(format!("an answer of more than {bytes_max} bytes is not read")));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Converts a `Status` to an error.
pub(super) fn refusal(code: u16, status: &Node) -> KubeError {
    let text = |field| status.field(field).and_then(Node::text).unwrap_or_default();
    KubeError::Refused {
        code,
        reason: start_of(text("reason"), 64).into(),
        message: start_of(text("message"), KUBE_MESSAGE_BYTES_MAX).into(),
    }
}
