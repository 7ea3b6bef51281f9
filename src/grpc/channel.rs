//! Calls over a channel's connection, with their deadlines.

use std::cell::Cell;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, Request, Response, Uri};
use prost::Message;
use smol::lock::{Mutex, Semaphore};

use super::link::{Connected, Link, blame, not_begun};
use super::message::{Deframer, Field, Fields, Sink, WholeMessage, framed};
use super::status::{GrpcError, of_head, of_headers};
use super::streaming::{CallGuard, Sender, Streaming};
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::http2::{RequestBody, Spawner};
use crate::limits::{GRPC_CALLS_MAX, GRPC_QUEUE_MAX};

/// A call in progress.
pub type Call<'s, A, E = GrpcError> = Pin<Box<dyn Future<Output = Result<A, E>> + 's>>;

/// A gRPC server behind a Unix socket. Clones share one connection, and a further one during a burst.
///
/// At most `limits::GRPC_CALLS_MAX` calls run at once; a further one waits, and its deadline runs meanwhile.
#[derive(Clone)]
pub struct Channel {
    shared: Rc<Shared>,
    /// Sent with every call.
    metadata: Rc<[(&'static str, HeaderValue)]>,
}

struct Shared {
    path: Box<Path>,
    clock: SharedClock,
    spawner: Spawner,
    link: Mutex<Link>,
    connection: Cell<u64>,
    calls: std::sync::Arc<Semaphore>,
}

impl Channel {
    /// A channel to the socket at `path`. Connects with the first call, not before. hyper's tasks run on `executor`, which
    /// the caller owns and drives.
    pub fn new(path: &Path, executor: &Rc<Executor>, clock: SharedClock) -> Self {
        let shared = Rc::new(Shared {
            path: path.into(),
            clock,
            spawner: Spawner::new(executor),
            link: Mutex::default(),
            connection: Cell::new(0),
            calls: std::sync::Arc::new(Semaphore::new(GRPC_CALLS_MAX)),
        });
        Self { shared, metadata: Rc::from([]) }
    }

    /// The same channel, with these headers on every call. An invalid value (control characters) is left out.
    #[must_use]
    pub fn with_metadata(&self, metadata: &[(&'static str, &str)]) -> Self {
        let header = |(name, value): &(&'static str, &str)| Some((*name, HeaderValue::from_str(value).ok()?));
        Self { shared: self.shared.clone(), metadata: metadata.iter().filter_map(header).collect() }
    }

    /// The clock for deadlines.
    pub fn clock(&self) -> &SharedClock {
        &self.shared.clock
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// One request, one response of at most `limits::GRPC_ANSWER_BYTES_MAX`. `method` is `/package.Service/Method`;
    /// `deadline` covers everything from connecting to the trailers, `None` = no deadline.
    ///
    /// The request is encoded at once and not kept, and the call is boxed while it runs: tasks that make calls stay small.
    pub fn unary<'s, A: Message + Default + 'static>(
        &'s self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
    ) -> Call<'s, A> {
        let message = framed(request);
        // Only encoding and decoding depend on the types: the rest is compiled once for all methods.
        Box::pin(async move { decoded(&self.whole(method, message?, deadline).await?) })
    }

    async fn whole(
        &self,
        method: &'static str,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<Vec<u8>, GrpcError> {
        let mut whole = WholeMessage::default();
        self.exchange(method, message, deadline, &mut whole, Messages::One).await?;
        Ok(whole.take().unwrap_or_default())
    }

    /// One request, one response of any size, parsed while it arrives: `each` gets the outermost fields one by one, each
    /// truncated to `cap` bytes, and may end the call with an error.
    pub async fn unary_fields(
        &self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
        cap: usize,
        each: &mut dyn FnMut(Field<'_>) -> Result<(), GrpcError>,
    ) -> Result<(), GrpcError> {
        let mut fields = Fields::new(cap, each);
        Box::pin(self.exchange(method, framed(request)?, deadline, &mut fields, Messages::One)).await
    }

    /// One request, any number of responses, parsed as in [`Channel::unary_fields`]: the fields of all of them one after
    /// another. Ends without an error only when the server ended the stream with OK: the deadline covers all of it, and what
    /// `each` got before an error may be incomplete.
    pub async fn stream_fields(
        &self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
        cap: usize,
        each: &mut dyn FnMut(Field<'_>) -> Result<(), GrpcError>,
    ) -> Result<(), GrpcError> {
        let mut fields = Fields::new(cap, each);
        Box::pin(self.exchange(method, framed(request)?, deadline, &mut fields, Messages::Any)).await
    }

    /// Number of the current connection: increases with each new one, 0 before the first. An unimplemented method is worth
    /// remembering as long as it is the same server.
    pub fn connection(&self) -> u64 {
        self.shared.connection.get()
    }

    /// One request, many responses. Returns when the request is sent, without waiting for the server's headers: a quiet
    /// stream sends them with its first message.
    pub async fn server_stream(
        &self,
        method: &'static str,
        request: &impl Message,
        deadline: Option<Duration>,
    ) -> Result<Streaming, GrpcError> {
        let body = RequestBody::One(Some(framed(request)?));
        self.open(method, body, deadline).await
    }

    /// Many requests, many responses. The request side ends when the [`Sender`] is dropped, the whole call when the
    /// [`Streaming`] is. Up to `limits::GRPC_QUEUE_MAX` messages are queued; then sending waits.
    pub async fn bidirectional(
        &self,
        method: &'static str,
        deadline: Option<Duration>,
    ) -> Result<(Sender, Streaming), GrpcError> {
        let (sender, queue) = smol::channel::bounded(GRPC_QUEUE_MAX);
        let streaming = self.open(method, RequestBody::Queue(Box::pin(queue)), deadline).await?;
        Ok((Sender::new(sender), streaming))
    }

    async fn open(
        &self,
        method: &'static str,
        body: RequestBody,
        deadline: Option<Duration>,
    ) -> Result<Streaming, GrpcError> {
        let shared = &*self.shared;
        let until = deadline.map(|deadline| shared.clock.now().mono + deadline);
        let opening = async {
            let permit = shared.calls.acquire_arc().await;
            let up = self.connected().await?;
            let answer = up.requests().try_send_request(self.request(method, body, deadline));
            let fate = up.fate.clone();
            let head = Box::pin(async move {
                let response = answer.await.map_err(|e| blame(e.error()))?;
                fate.answered.set(true);
                Ok(response)
            });
            let until = until.map(|until| (shared.clock.clone(), until));
            Ok(Streaming::new(head, until, CallGuard { _connection: up, _permit: permit }))
        };
        self.within(method, deadline, opening).await
    }

    async fn exchange(
        &self,
        method: &'static str,
        message: Bytes,
        deadline: Option<Duration>,
        sink: &mut dyn Sink,
        messages: Messages,
    ) -> Result<(), GrpcError> {
        let work = async {
            let _permit = self.shared.calls.acquire().await;
            let (_connection, response) = self.respond(method, &message, deadline).await?;
            read(response, sink, messages).await
        };
        self.within(method, deadline, work).await
    }

    /// Sends the request and waits for the response head. A call that the server certainly did not begin is retried once, as
    /// gRPC's transparent retry does.
    async fn respond(
        &self,
        method: &'static str,
        message: &Bytes,
        deadline: Option<Duration>,
    ) -> Result<(Rc<Connected>, Response<Incoming>), GrpcError> {
        let mut again = true;
        loop {
            let up = self.connected().await?;
            let body = RequestBody::One(Some(message.clone()));
            match up.requests().try_send_request(self.request(method, body, deadline)).await {
                Ok(response) => {
                    up.fate.answered.set(true);
                    return Ok((up, response));
                }
                Err(mut failure) => {
                    let untouched = if not_begun(failure.error()) {
                        // This counts as a response: the server speaks HTTP/2, and reconnecting needs no back-off.
                        up.fate.answered.set(true);
                        true
                    } else {
                        failure.take_message().is_some()
                    };
                    if !(untouched && std::mem::take(&mut again)) {
                        return Err(blame(failure.error()));
                    }
                }
            }
        }
    }

    fn request(
        &self,
        method: &'static str,
        body: RequestBody,
        deadline: Option<Duration>,
    ) -> Request<RequestBody> {
        let mut request = request(method, body, deadline);
        for (name, value) in &*self.metadata {
            request.headers_mut().insert(*name, value.clone());
        }
        request
    }

    async fn connected(&self) -> Result<Rc<Connected>, GrpcError> {
        let shared = &*self.shared;
        let up = shared.link.lock().await.connected(&shared.path, &shared.clock, &shared.spawner).await?;
        shared.connection.set(up.number);
        Ok(up)
    }

    /// Cancels `work` at the deadline; dropping it resets the call's stream.
    async fn within<T>(
        &self,
        method: &str,
        deadline: Option<Duration>,
        work: impl Future<Output = Result<T, GrpcError>>,
    ) -> Result<T, GrpcError> {
        let Some(deadline) = deadline else { return work.await };
        let late = async {
            self.shared.clock.sleep(deadline).await;
            Err(late(method, deadline))
        };
        smol::future::or(work, late).await
    }
}

/// The error of a deadline that passed on this side.
fn late(method: &str, deadline: Duration) -> GrpcError {
    let name = method.rsplit('/').next().unwrap_or(method);
    GrpcError::DeadlineExceeded(format!("{name}: no answer within {} s", deadline.as_secs_f32()))
}

/// A request head. `method` is one of our own constants, so building it cannot fail.
pub(super) fn request(
    method: &'static str,
    body: RequestBody,
    deadline: Option<Duration>,
) -> Request<RequestBody> {
    let mut uri = hyper::http::uri::Parts::default();
    uri.scheme = Some(Scheme::HTTP);
    // What grpc-go sends for a Unix socket.
    uri.authority = Some(Authority::from_static("localhost"));
    uri.path_and_query = Some(PathAndQuery::from_static(method));
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("smolet/", env!("CARGO_PKG_VERSION"))));
    if let Some(Ok(value)) = deadline.map(|deadline| HeaderValue::try_from(timeout_header(deadline))) {
        headers.insert("grpc-timeout", value);
    }
    request
}

/// `grpc-timeout`: at most eight digits and a unit; rounded up, so that the server does not time out before us.
fn timeout_header(deadline: Duration) -> String {
    const DIGITS_MAX: u128 = 99_999_999;
    let millis = deadline.as_nanos().div_ceil(1_000_000).max(1);
    if millis <= DIGITS_MAX {
        return format!("{millis}m");
    }
    let seconds = millis.div_ceil(1000);
    if seconds <= DIGITS_MAX {
        format!("{seconds}S")
    } else {
        format!("{}H", (seconds / 3600).min(DIGITS_MAX))
    }
}

/// Number of messages in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Messages {
    One,
    Any,
}

/// Reads a response with that many messages into `sink`, then the trailers.
pub(super) async fn read(
    response: Response<Incoming>,
    sink: &mut dyn Sink,
    expected: Messages,
) -> Result<(), GrpcError> {
    let (head, mut body) = response.into_parts();
    if of_head(head.status, &head.headers)? {
        return match expected {
            Messages::Any => Ok(()),
            Messages::One => Err(GrpcError::Protocol("the server answered OK without a message".to_owned())),
        };
    }
    let mut deframer = Deframer::default();
    let mut messages = 0_u64;
    while let Some(frame) = body.frame().await {
        let frame = match frame.map_err(|e| blame(&e))?.into_data() {
            Ok(data) => {
                let mut rest = &data[..];
                while !rest.is_empty() {
                    if messages > 0 && expected == Messages::One {
                        return Err(GrpcError::Protocol("the server answered with two messages".to_owned()));
                    }
                    let (taken, ended) = deframer.feed(rest, sink)?;
                    messages += u64::from(ended);
                    rest = &rest[taken..];
                }
                continue;
            }
            Err(frame) => frame,
        };
        if let Some(status) = frame.trailers_ref().and_then(of_headers) {
            status?;
            return if deframer.between_messages() && (messages > 0 || expected == Messages::Any) {
                Ok(())
            } else {
                Err(GrpcError::Protocol("the server answered OK without a whole message".to_owned()))
            };
        }
    }
    Err(GrpcError::Protocol("the server ended the call without a grpc-status".to_owned()))
}

/// A message from its bytes.
pub(super) fn decoded<A: Message + Default>(bytes: &[u8]) -> Result<A, GrpcError> {
    A::decode(bytes).map_err(|e| GrpcError::Protocol(format!("the answer is no valid protobuf: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_eight_digits_at_most() {
        for (deadline, header) in [
            (Duration::ZERO, "1m"),
            (Duration::from_micros(1), "1m"),
            (Duration::from_mins(2), "120000m"),
            (Duration::from_micros(1_500_100), "1501m"),
            (Duration::from_secs(200_000), "200000S"),
            (Duration::from_secs(u64::MAX), "99999999H"),
        ] {
            assert_eq!(timeout_header(deadline), header);
        }
    }

    #[test]
    fn a_request_carries_what_grpc_wants() {
        let request = request("/a.B/C", RequestBody::One(None), Some(Duration::from_secs(2)));
        assert_eq!(request.uri(), "http://localhost/a.B/C");
        assert_eq!(request.headers()["te"], "trailers");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        assert_eq!(request.headers()["grpc-timeout"], "2000m");
    }
}
