//! Shared by the HTTP/2 clients of gRPC and of the API server: one executor, one body type and, from `stream`, one socket type,
//! so that hyper's client is compiled once.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use smol::channel::Receiver;
use smol::stream::Stream;

use crate::executor::Executor;

/// Runs hyper's futures on the loop's thread. Weak: the tasks hold it, and the executor holds the tasks.
#[derive(Clone)]
pub(crate) struct Spawner(Weak<Executor>);

impl Spawner {
    pub(crate) fn new(executor: &Rc<Executor>) -> Self {
        Self(Rc::downgrade(executor))
    }
}

impl<F: Future + 'static> hyper::rt::Executor<F> for Spawner
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        if let Some(executor) = self.0.upgrade() {
            executor.spawn("HTTP/2 connection", task).detach();
        }
    }
}

/// The body of a request: one message, or messages from a bounded queue.
pub(crate) enum RequestBody {
    /// One message, framed for gRPC; `None` when it has been sent, or there is none.
    One(Option<Bytes>),
    /// Framed messages; the body ends when the senders are dropped.
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
