//! The server's side of gRPC: one connection by hyper's HTTP/2 server, whose calls go to a [`Service`].
//!
//! ```text
//!     socket ──► hyper ──► head (path, grpc-timeout, grpc-encoding) ──► one request message ──► Service::call
//!                                                                                                 │
//!     socket ◄── hyper ◄── grpc-status, percent-encoded grpc-message ◄── messages (one, or a stream) ◄┘
//! ```
//!
//! Calls with one request and one or many responses: the CRI has no others. A call that the client cancels, or whose deadline
//! passes, is dropped at its await. The caller accepts the connections, and bounds their number.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use smol::stream::Stream as Messages;

use super::message::{Deframer, PREFIX_BYTES, Sink};
use super::status::{Code, percent_encoded};
use crate::clock::{SharedClock, Sleep};
use crate::executor::Executor;
use crate::http2::Spawner;
use crate::limits::{
    GRPC_FRAME_BYTES_MAX, GRPC_REQUEST_BYTES_MAX, GRPC_SERVED_ANSWER_BYTES_MAX, GRPC_SERVED_BYTES_MAX,
    GRPC_SERVED_CALLS_MAX, GRPC_SERVED_CLOSE_TIME, GRPC_SERVED_HEADER_BYTES_MAX, GRPC_SERVED_REQUEST_TIME,
    GRPC_SERVED_SEND_BYTES_MAX, GRPC_WINDOW_CONNECTION_BYTES, GRPC_WINDOW_STREAM_BYTES,
    HTTP2_HEADER_TABLE_BYTES,
};
use crate::stream::{Duplex, stream};

/// The status that ends a call which did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its code.
    pub code: Code,
    /// A sentence for the caller; cut to `limits::GRPC_STATUS_MESSAGE_BYTES_MAX`.
    pub message: String,
}

impl Status {
    /// A status with that message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Encoded messages of a call with many responses; polled only as fast as the client reads.
pub type Replies = Pin<Box<dyn Messages<Item = Result<Bytes, Status>>>>;

/// What a call returns.
pub enum Reply {
    /// One message, encoded by [`encoded`].
    One(Bytes),
    /// Any number of them.
    Many(Replies),
}

/// A call in progress; dropped when the client cancels it, or at its deadline.
pub type Serving = Pin<Box<dyn Future<Output = Result<Reply, Status>>>>;

/// The methods of a server.
pub trait Service {
    /// Calls the method at `path` (`/package.Service/Method`) with an encoded request; `None`: there is no such method.
    fn call(&self, path: &str, request: Vec<u8>) -> Option<Serving>;
}

/// A response message with its prefix.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` when it is over `limits::GRPC_SERVED_ANSWER_BYTES_MAX`.
pub fn encoded(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let Some(prefix) = u32::try_from(length).ok().filter(|_| length <= GRPC_SERVED_ANSWER_BYTES_MAX) else {
        let message = format!(
            "the response has {length} bytes, the limit is {GRPC_SERVED_ANSWER_BYTES_MAX}: use a filter"
        );
        return Err(Status::new(Code::RESOURCE_EXHAUSTED, message));
    };
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
    bytes.push(0);
    bytes.extend_from_slice(&prefix.to_be_bytes());
    message.encode_raw(&mut bytes);
    Ok(bytes.into())
}

/// A request of that type.
///
/// # Errors
/// `INTERNAL`, as grpc-go answers bytes that are no such message.
pub fn decoded<M: Message + Default>(request: &[u8]) -> Result<M, Status> {
    M::decode(request)
        .map_err(|error| Status::new(Code::INTERNAL, format!("the request is no valid protobuf: {error}")))
}

/// What a connection does.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    calls: Cell<usize>,
}

impl Activity {
    fn begin(self: Rc<Self>) -> RunningCall {
        self.calls.set(self.calls.get() + 1);
        RunningCall(self)
    }

    /// No call runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.get() == 0
    }
}

/// Counts a call until its response was sent or dropped.
struct RunningCall(Rc<Activity>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get().saturating_sub(1));
    }
}

/// Serves connections with one service. Clones share the budget of bytes.
#[derive(Clone)]
pub struct Server {
    service: Rc<dyn Service>,
    clock: SharedClock,
    spawner: Spawner,
    /// Bytes of requests that are being read or served.
    held: Rc<Cell<usize>>,
}

impl Server {
    /// hyper's tasks run on `executor`, which the caller owns and drives.
    pub fn new(service: Rc<dyn Service>, executor: &Rc<Executor>, clock: SharedClock) -> Self {
        Self { service, clock, spawner: Spawner::new(executor), held: Rc::default() }
    }

    /// Serves one connection until the client closes it, or `close` resolves: then the calls that run end first, and a client of
    /// gRPC opens another one for its next call. A client that does not answer then is dropped. Dropped: its calls end.
    pub(crate) async fn serve(
        &self,
        socket: impl Duplex + 'static,
        activity: Rc<Activity>,
        close: impl Future<Output = ()>,
    ) {
        let (server, calls) = (self.clone(), activity.clone());
        let service = hyper::service::service_fn(move |request| {
            let (server, activity) = (server.clone(), calls.clone());
            // Boxed: of one size for hyper, whatever the call needs.
            Box::pin(async move {
                let running = activity.begin();
                let mut response = server.answer(request).await;
                response.body_mut().running = Some(running);
                Ok::<_, Infallible>(response)
            })
        });
        let connection = hyper::server::conn::http2::Builder::new(self.spawner.clone())
            .auto_date_header(false)
            .max_concurrent_streams(GRPC_SERVED_CALLS_MAX)
            .max_header_list_size(GRPC_SERVED_HEADER_BYTES_MAX)
            .header_table_size(HTTP2_HEADER_TABLE_BYTES)
            .max_frame_size(GRPC_FRAME_BYTES_MAX)
            .initial_stream_window_size(GRPC_WINDOW_STREAM_BYTES)
            .initial_connection_window_size(GRPC_WINDOW_CONNECTION_BYTES)
            .max_send_buf_size(GRPC_SERVED_SEND_BYTES_MAX)
            .serve_connection(stream(socket), service);
        let mut connection = std::pin::pin!(connection);
        let is_wanted = async {
            close.await;
            None
        };
        let ended = smol::future::or(async { Some(connection.as_mut().await) }, is_wanted).await;
        let served = if let Some(served) = ended {
            served
        } else {
            connection.as_mut().graceful_shutdown();
            loop {
                let late = async {
                    self.clock.sleep(GRPC_SERVED_CLOSE_TIME).await;
                    None
                };
                match smol::future::or(async { Some(connection.as_mut().await) }, late).await {
                    Some(served) => break served,
                    // A client that is stopped does not answer the shutdown, and would keep its place.
                    None if activity.is_idle() => return,
                    None => {}
                }
            }
        };
        if let Err(error) = served {
            log::trace!("a gRPC connection: {error}");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        match self.serve_call(request).await {
            Ok(answer) => {
                let mut response = Response::new(answer);
                response.headers_mut().insert(CONTENT_TYPE, GRPC);
                response
            }
            Err(Failure::Http(status)) => {
                let mut response = Response::new(Answer::default());
                *response.status_mut() = status;
                response
            }
            // Trailers only: the status stands in the head.
            Err(Failure::Status(status)) => {
                let mut response = Response::new(Answer::default());
                *response.headers_mut() = trailers(&status);
                response.headers_mut().insert(CONTENT_TYPE, GRPC);
                response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
                response
            }
        }
    }

    async fn serve_call(&self, request: Request<Incoming>) -> Result<Answer, Failure> {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return Err(Failure::Http(StatusCode::METHOD_NOT_ALLOWED));
        }
        if !is_grpc(&head.headers) {
            return Err(Failure::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        if let Some(encoding) = head.headers.get("grpc-encoding").filter(|encoding| *encoding != "identity") {
            let message = format!("grpc-encoding {encoding:?} is not supported; send messages uncompressed");
            return Err(Status::new(Code::UNIMPLEMENTED, message).into());
        }
        let time = match head.headers.get("grpc-timeout") {
            None => None,
            Some(value) => Some(timeout(value.as_bytes()).ok_or_else(|| {
                Status::new(
                    Code::INTERNAL,
                    format!("grpc-timeout {value:?} is no time; it is like 2S or 500m"),
                )
            })?),
        };
        let mut late = match time {
            None => Box::pin(std::future::pending()) as Sleep,
            Some(time) => self.clock.sleep(time),
        };
        let serving = async {
            let held = Held { bytes: 0, all: self.held.clone() };
            let mut message = RequestMessage { bytes: Vec::new(), ended: false, refused: None, held };
            self.read(body, &mut message).await?;
            let unknown = || {
                let message = format!("unknown method {}; this is the CRI v1 server", head.uri.path());
                Status::new(Code::UNIMPLEMENTED, message)
            };
            let RequestMessage { bytes, held, .. } = message;
            let reply = self.service.call(head.uri.path(), bytes).ok_or_else(unknown)?.await?;
            drop(held);
            Ok::<_, Status>(reply)
        };
        let expired = async {
            (&mut late).await;
            Err(deadline_exceeded())
        };
        Ok(match smol::future::or(serving, expired).await? {
            Reply::One(message) => {
                Answer { message: Some(message), trailers: Some(success()), ..Answer::default() }
            }
            Reply::Many(replies) => Answer { replies: Some((replies, late)), ..Answer::default() },
        })
    }

    /// Reads the one message of a request, to the end of the client's side.
    async fn read(&self, mut body: Incoming, message: &mut RequestMessage) -> Result<(), Status> {
        let late = async {
            self.clock.sleep(GRPC_SERVED_REQUEST_TIME).await;
            let message =
                format!("the request has not arrived within {} s", GRPC_SERVED_REQUEST_TIME.as_secs());
            Err(Status::new(Code::DEADLINE_EXCEEDED, message))
        };
        let all = async {
            let mut deframer = Deframer::default();
            while let Some(frame) = body.frame().await {
                let cut = |_| Status::new(Code::CANCELLED, "the request was cut off");
                let Ok(data) = frame.map_err(cut)?.into_data() else { continue };
                let mut rest = &data[..];
                while !rest.is_empty() {
                    if message.ended {
                        return Err(Status::new(Code::INTERNAL, "the request has more than one message"));
                    }
                    let fed = deframer.feed(rest, message);
                    let (taken, _) = fed.map_err(|_| message.refused.take().unwrap_or_else(compressed))?;
                    rest = &rest[taken..];
                }
            }
            if message.ended {
                Ok(())
            } else {
                Err(Status::new(Code::INTERNAL, "the request has no whole message"))
            }
        };
        smol::future::or(all, late).await
    }
}

/// Why there is no answer by the service.
enum Failure {
    /// It is not gRPC.
    Http(StatusCode),
    Status(Status),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .and_then(|kind| kind.strip_prefix(b"application/grpc"));
    // Protobuf is the default, and no other encoding of messages is served.
    kind.is_some_and(|rest| rest.is_empty() || rest.starts_with(b";") || rest.starts_with(b"+proto"))
}

fn compressed() -> Status {
    Status::new(Code::UNIMPLEMENTED, "compressed messages are not supported; send them uncompressed")
}

fn deadline_exceeded() -> Status {
    Status::new(Code::DEADLINE_EXCEEDED, "the call's deadline passed")
}

/// The time in a `grpc-timeout`: up to eight digits and a unit. PURE.
fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The headers of a status. PURE.
fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status.code.0));
    if let Ok(message) = HeaderValue::try_from(percent_encoded(&status.message)) {
        trailers.insert("grpc-message", message);
    }
    trailers
}

fn success() -> HeaderMap {
    HeaderMap::from_iter([(hyper::header::HeaderName::from_static("grpc-status"), HeaderValue::from(0))])
}

/// Bytes of a request, counted until the call has its answer.
struct Held {
    bytes: usize,
    all: Rc<Cell<usize>>,
}

impl Held {
    /// Counts further bytes; false when the server holds too many.
    fn add(&mut self, bytes: usize) -> bool {
        let all = self.all.get().saturating_add(bytes);
        if all > GRPC_SERVED_BYTES_MAX {
            return false;
        }
        self.all.set(all);
        self.bytes += bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.set(self.all.get().saturating_sub(self.bytes));
    }
}

/// The one message of a request.
struct RequestMessage {
    bytes: Vec<u8>,
    ended: bool,
    /// Why it is not taken.
    refused: Option<Status>,
    held: Held,
}

impl RequestMessage {
    fn refuse(&mut self, message: String) -> super::GrpcError {
        self.refused = Some(Status::new(Code::RESOURCE_EXHAUSTED, message));
        super::GrpcError::Protocol(String::new())
    }
}

impl Sink for RequestMessage {
    fn piece(&mut self, bytes: &[u8]) -> Result<(), super::GrpcError> {
        if self.bytes.len() + bytes.len() > GRPC_REQUEST_BYTES_MAX {
            return Err(self.refuse(format!("the request is over {GRPC_REQUEST_BYTES_MAX} bytes")));
        }
        if !self.held.add(bytes.len()) {
            let message =
                format!("requests of over {GRPC_SERVED_BYTES_MAX} bytes are being served; try again");
            return Err(self.refuse(message));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), super::GrpcError> {
        self.ended = true;
        Ok(())
    }
}

/// The body of a response: its messages, and the status as trailers.
#[derive(Default)]
struct Answer {
    message: Option<Bytes>,
    /// The messages to come, and the call's deadline.
    replies: Option<(Replies, Sleep)>,
    trailers: Option<HeaderMap>,
    running: Option<RunningCall>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if let Some((replies, late)) = &mut self.replies {
            let ended = match replies.as_mut().poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Poll::Ready(Some(Err(status))) => trailers(&status),
                Poll::Ready(None) => success(),
                Poll::Pending if late.as_mut().poll(cx).is_ready() => trailers(&deadline_exceeded()),
                Poll::Pending => return Poll::Pending,
            };
            self.replies = None;
            self.trailers = Some(ended);
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.replies.is_none() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests;
