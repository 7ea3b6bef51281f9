//! A channel's connection: opened when a call needs it, replaced when lost, with a capped back-off between failed attempts.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hyper::client::conn::http2::{Builder, SendRequest};

use super::status::{Code, GrpcError};
use crate::clock::SharedClock;
use crate::http2::{RequestBody, Spawner};
use crate::limits::{
    GRPC_BACKOFF_MAX, GRPC_BACKOFF_MIN, GRPC_CALLS_MAX, GRPC_CONNECT_TIMEOUT, GRPC_CONNECTION_CALLS,
    GRPC_FRAME_BYTES_MAX, GRPC_HEADER_BYTES_MAX, GRPC_WINDOW_CONNECTION_BYTES, GRPC_WINDOW_STREAM_BYTES,
    HTTP2_HEADER_TABLE_BYTES,
};
use crate::model::Mono;
use crate::stream::{Socket, Stream, stream};

/// A connection as held by its calls, each to its end.
pub(super) struct Connected {
    requests: SendRequest<RequestBody>,
    /// The connection's number on this channel, from 1.
    pub(super) number: u64,
    /// Its fate.
    pub(super) fate: Rc<Fate>,
}

impl Connected {
    /// For one call.
    pub(super) fn requests(&self) -> SendRequest<RequestBody> {
        self.requests.clone()
    }
}

#[derive(Default)]
pub(super) struct Fate {
    /// Set by the first response: the server speaks HTTP/2.
    pub(super) answered: Cell<bool>,
    /// Why the connection ended, when with an error.
    error: RefCell<Option<GrpcError>>,
}

/// State of the connection; behind an async lock, so that calls that start together share one attempt.
///
/// HTTP/2's tables of streams and frames never shrink (h2): calls beyond `limits::GRPC_CONNECTION_CALLS` at once share a further
/// connection, which ends with the last of them and the first call that finds room on this one.
#[derive(Default)]
pub(super) struct Link {
    up: Option<Rc<Connected>>,
    /// Held by its calls.
    further: Weak<Connected>,
    /// The same while `up` is full: hanging calls would have each later call connect anew.
    kept: Option<Rc<Connected>>,
    /// Connections made so far.
    made: u64,
    failures: u32,
    /// No attempt before this instant, because of this error; calls fail at once until then.
    wait: Option<(Mono, GrpcError)>,
}

impl Link {
    /// The connection, opened now when there is none.
    ///
    /// # Errors
    /// `Unavailable` when connecting fails, and immediately during the back-off.
    pub(super) async fn connected(
        &mut self,
        path: &Path,
        clock: &SharedClock,
        spawner: &Spawner,
    ) -> Result<Rc<Connected>, GrpcError> {
        if let Some(up) = self.up.take_if(|up| up.requests.is_closed()) {
            if up.fate.answered.get() {
                // The runtime was reachable a moment ago (a restart, say): the first attempt needs no back-off.
                self.failures = 0;
                self.wait = None;
            } else {
                // Accepted and closed without a response: counts as a failed attempt.
                let hung_up = || {
                    let at = path.display();
                    GrpcError::Unavailable(format!("{at} accepts connections and closes them unanswered"))
                };
                self.failed(clock, up.fate.error.take().unwrap_or_else(hung_up));
            }
        }
        if let Some(up) = self.up.clone() {
            // One holder is this link, and one is this call.
            let is_full = Rc::strong_count(&up) - 2 >= GRPC_CONNECTION_CALLS;
            self.kept = if is_full { self.further(path, clock, spawner).await } else { None };
            return Ok(self.kept.clone().unwrap_or(up));
        }
        if let Some((until, error)) = &self.wait {
            let left = until.since(clock.now().mono);
            if left > Duration::ZERO {
                let later = format!("{error}; next attempt in {} ms", left.as_millis());
                return Err(match error {
                    GrpcError::Protocol(_) => GrpcError::Protocol(later),
                    GrpcError::Unavailable(_) | GrpcError::DeadlineExceeded(_) | GrpcError::Status { .. } => {
                        GrpcError::Unavailable(later)
                    }
                });
            }
        }
        match connect(path, clock, spawner, self.made + 1).await {
            Ok(up) => {
                self.made = up.number;
                Ok(self.up.insert(Rc::new(up)).clone())
            }
            Err(reason) => {
                let error = GrpcError::Unavailable(format!("cannot connect to {}: {reason}", path.display()));
                self.failed(clock, error.clone());
                Err(error)
            }
        }
    }

    /// A connection beside the first one, to the same server; `None`: there is no further one now.
    async fn further(
        &mut self,
        path: &Path,
        clock: &SharedClock,
        spawner: &Spawner,
    ) -> Option<Rc<Connected>> {
        if let Some(further) = self.further.upgrade().filter(|further| !further.requests.is_closed()) {
            return Some(further);
        }
        let further = connect(path, clock, spawner, self.made).await.ok().map(Rc::new);
        self.further = further.as_ref().map(Rc::downgrade).unwrap_or_default();
        further
    }

    /// Doubles the back-off after each consecutive failure (grpc-go's back-off, as the kubelet configures it).
    fn failed(&mut self, clock: &SharedClock, error: GrpcError) {
        let wait = GRPC_BACKOFF_MIN.saturating_mul(1 << self.failures.min(16)).min(GRPC_BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.wait = Some((clock.now().mono + wait, error));
    }
}

async fn connect(
    path: &Path,
    clock: &SharedClock,
    spawner: &Spawner,
    number: u64,
) -> Result<Connected, String> {
    let timeout = async {
        clock.sleep(GRPC_CONNECT_TIMEOUT).await;
        Err("nobody accepted the connection in time".to_owned())
    };
    let connected = async {
        let socket = Socket::<UnixStream>::connect(path).await.map_err(|e| e.to_string())?;
        let (requests, fate) = handshake(stream(socket), spawner).await.map_err(|e| e.to_string())?;
        Ok(Connected { requests, number, fate })
    };
    smol::future::or(connected, timeout).await
}

/// Opens an HTTP/2 connection on a socket; it runs on the spawner's executor until its requests are gone.
pub(super) async fn handshake(
    socket: Stream,
    spawner: &Spawner,
) -> Result<(SendRequest<RequestBody>, Rc<Fate>), hyper::Error> {
    let (requests, connection) = Builder::new(spawner.clone())
        .header_table_size(HTTP2_HEADER_TABLE_BYTES)
        .initial_stream_window_size(GRPC_WINDOW_STREAM_BYTES)
        .initial_connection_window_size(GRPC_WINDOW_CONNECTION_BYTES)
        .max_frame_size(GRPC_FRAME_BYTES_MAX)
        .max_header_list_size(GRPC_HEADER_BYTES_MAX)
        .max_send_buf_size(GRPC_WINDOW_STREAM_BYTES as usize)
        .initial_max_send_streams(GRPC_CALLS_MAX)
        .max_concurrent_streams(0)
        .handshake(socket)
        .await?;
    let fate = Rc::<Fate>::default();
    let record = fate.clone();
    hyper::rt::Executor::execute(spawner, async move {
        if let Err(error) = connection.await {
            log::debug!("gRPC connection ended: {error}");
            record.error.replace(Some(blame(&error)));
        }
    });
    Ok((requests, fate))
}

/// Converts hyper's error: which side is to blame, and whether the call may be retried.
pub(super) fn blame(error: &hyper::Error) -> GrpcError {
    let Some(h2) = h2_error(error) else {
        return GrpcError::Unavailable(format!("the connection ended before the answer: {error}"));
    };
    if let Some(io) = h2.get_io() {
        return GrpcError::Unavailable(format!("the connection was lost: {io}"));
    }
    let reason = h2.reason().unwrap_or(h2::Reason::INTERNAL_ERROR);
    if !h2.is_remote() {
        return GrpcError::Protocol(format!(
            "the other end does not speak HTTP/2 as gRPC needs it: {reason}"
        ));
    }
    if h2.is_go_away() {
        return GrpcError::Unavailable(format!("the server closes the connection (GOAWAY): {reason}"));
    }
    // gRPC's mapping of `RST_STREAM` codes (PROTOCOL-HTTP2.md, "Errors").
    let code = match reason {
        h2::Reason::REFUSED_STREAM => {
            return GrpcError::Unavailable("the server refused the call".to_owned());
        }
        h2::Reason::CANCEL => Code::CANCELLED,
        h2::Reason::ENHANCE_YOUR_CALM => Code::RESOURCE_EXHAUSTED,
        h2::Reason::INADEQUATE_SECURITY => Code::PERMISSION_DENIED,
        _ => Code::INTERNAL,
    };
    GrpcError::Status { code, message: format!("the server reset the call: {reason}") }
}

/// True when the server says that it has not begun the call: a reset with `REFUSED_STREAM`, or GOAWAY without an error for a
/// stream that it did not accept (RFC 9113, 6.8 and 8.7). A retry then executes nothing twice.
pub(super) fn not_begun(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|h2| {
        let graceful = h2.is_go_away() && h2.reason() == Some(h2::Reason::NO_ERROR);
        h2.is_remote() && (graceful || h2.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    let mut next = error.source();
    while let Some(source) = next {
        if let Some(h2) = source.downcast_ref() {
            return Some(h2);
        }
        next = source.source();
    }
    None
}
