//! Calls with many messages: receiving and sending.

use std::pin::Pin;
use std::rc::Rc;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use prost::Message;
use smol::lock::SemaphoreGuardArc;

use super::channel::decoded;
use super::link::{Connected, blame};
use super::message::{Deframer, WholeMessage, framed};
use super::status::{GrpcError, of_head, of_headers};
use crate::clock::SharedClock;
use crate::model::Mono;

type Head = Pin<Box<dyn Future<Output = Result<Response<Incoming>, GrpcError>>>>;

/// The responses of a streaming call; drop it to cancel the call.
///
/// Unread responses stay with the server once `limits::GRPC_WINDOW_STREAM_BYTES` are buffered here.
pub struct Streaming {
    state: State,
    deadline: Option<(SharedClock, Mono)>,
    _guard: CallGuard,
}

/// What a call holds to its end.
pub(super) struct CallGuard {
    pub(super) _connection: Rc<Connected>,
    pub(super) _permit: SemaphoreGuardArc,
}

enum State {
    /// The server's headers have not arrived yet.
    Waiting(Head),
    Reading {
        body: Incoming,
        deframer: Deframer,
        whole: WholeMessage,
        rest: Bytes,
    },
    Ended,
}

impl Streaming {
    pub(super) fn new(head: Head, deadline: Option<(SharedClock, Mono)>, guard: CallGuard) -> Self {
        Self { state: State::Waiting(head), deadline, _guard: guard }
    }

    /// The next message, of at most `limits::GRPC_ANSWER_BYTES_MAX`; `None` when the server ended the call with OK. May
    /// be dropped and called again: nothing is lost. After an error or `None` the stream has ended.
    pub async fn next<A: Message + Default>(&mut self) -> Result<Option<A>, GrpcError> {
        self.next_bytes().await?.map(|bytes| decoded(&bytes)).transpose()
    }

    /// [`Streaming::next`] without decoding.
    pub async fn next_bytes(&mut self) -> Result<Option<Vec<u8>>, GrpcError> {
        let state = &mut self.state;
        let result = match &self.deadline {
            None => state.next().await,
            Some((clock, until)) => {
                let late = async {
                    clock.sleep_until(*until).await;
                    Err(GrpcError::DeadlineExceeded("the stream's deadline passed".to_owned()))
                };
                smol::future::or(state.next(), late).await
            }
        };
        if !matches!(result, Ok(Some(_))) {
            self.state = State::Ended;
        }
        result
    }
}

impl State {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, GrpcError> {
        loop {
            match self {
                Self::Ended => return Ok(None),
                Self::Waiting(head) => {
                    let (head, body) = head.await?.into_parts();
                    if of_head(head.status, &head.headers)? {
                        return Ok(None);
                    }
                    let (deframer, whole, rest) = Default::default();
                    *self = Self::Reading { body, deframer, whole, rest };
                }
                Self::Reading { body, deframer, whole, rest } => {
                    while !rest.is_empty() {
                        let (taken, ended) = deframer.feed(rest, whole)?;
                        // Kept as a slice of the frame, which is freed with its last message.
                        *rest = rest.slice(taken..);
                        if ended {
                            return Ok(whole.take());
                        }
                    }
                    let Some(frame) = body.frame().await else {
                        let message = "the server ended the stream without a grpc-status";
                        return Err(GrpcError::Protocol(message.to_owned()));
                    };
                    match frame.map_err(|e| blame(&e))?.into_data() {
                        Ok(data) => *rest = data,
                        Err(frame) => {
                            let Some(status) = frame.trailers_ref().and_then(of_headers) else { continue };
                            status?;
                            return if deframer.between_messages() {
                                Ok(None)
                            } else {
                                let message = "the server ended the stream within a message";
                                Err(GrpcError::Protocol(message.to_owned()))
                            };
                        }
                    }
                }
            }
        }
    }
}

/// The requests of a bidirectional call; dropping it ends the request side.
pub struct Sender(smol::channel::Sender<Bytes>);

impl Sender {
    pub(super) fn new(queue: smol::channel::Sender<Bytes>) -> Self {
        Self(queue)
    }

    /// Queues one message of at most `limits::GRPC_REQUEST_BYTES_MAX`; waits while the queue is full.
    ///
    /// # Errors
    /// `Unavailable` when the call has ended; the [`Streaming`] says why.
    pub async fn send(&self, message: &impl Message) -> Result<(), GrpcError> {
        let gone = |_| GrpcError::Unavailable("the call has ended".to_owned());
        self.0.send(framed(message)?).await.map_err(gone)
    }
}
