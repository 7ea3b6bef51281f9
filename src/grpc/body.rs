//! The body of a request: one message, or messages from a bounded queue.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use smol::channel::Receiver;
use smol::stream::Stream;

/// One type for all calls, so that hyper's client is compiled once.
pub(super) enum RequestBody {
    /// One framed message; `None` when it has been sent.
    One(Option<Bytes>),
    /// Framed messages; the body ends when the senders are gone.
    Queue(Pin<Box<Receiver<Bytes>>>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Self::One(message) => message.take(),
            Self::Queue(queue) => std::task::ready!(queue.as_mut().poll_next(cx)),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::One(message) => message.is_none(),
            Self::Queue(_) => false,
        }
    }
}
