//! The body of a watch: one JSON object a line.
//!
//! It has a position in the history; the connection requests the next line when the last one is being sent. So a client that
//! reads slowly takes no memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use serde_json::{Value, json};
use smolet::clock::Sleep;

use super::Shared;
use super::failure::Failure;
use super::store::{Object, Scope};

pub struct Watch {
    shared: Arc<Shared>,
    id: u64,
    scope: Scope,
    /// All changes up to this revision were sent.
    since: u64,
    /// The initial objects, which are sent first.
    first: VecDeque<Object>,
    /// A bookmark follows them.
    first_ends: bool,
    /// Number of requested bookmarks when the last one was sent. `None`: this client accepts none.
    bookmarks: Option<u64>,
    /// Number of requested ends of all watches when this one began.
    expiries: u64,
    /// It fails before the first event.
    failure: Option<Failure>,
    time_is_up: Sleep,
    ended: bool,
}

/// Start of a watch.
pub struct Begin {
    pub since: u64,
    pub first: VecDeque<Object>,
    pub first_ends: bool,
    pub bookmarks: bool,
    pub failure: Option<Failure>,
}

impl Watch {
    pub fn new(shared: Arc<Shared>, scope: Scope, begin: Begin, time_is_up: Sleep) -> Self {
        let (id, asked, expiries) = {
            let mut state = shared.state();
            state.watches_begun += 1;
            state.watches_open += 1;
            (state.watches_begun, state.bookmarks, state.expiries)
        };
        Self {
            shared,
            id,
            scope,
            since: begin.since,
            first: begin.first,
            first_ends: begin.first_ends,
            bookmarks: begin.bookmarks.then_some(asked),
            expiries,
            failure: begin.failure,
            time_is_up,
            ended: false,
        }
    }

    fn last(&mut self, failure: &Failure) -> Bytes {
        self.ended = true;
        line("ERROR", &failure.status())
    }

    fn bookmark(&self, first_ends: bool) -> Bytes {
        let resource = self.scope.resource;
        let mut object = json!({
            "kind": resource.kind,
            "apiVersion": resource.api_version(),
            "metadata": {"resourceVersion": self.since.to_string(), "creationTimestamp": null},
        });
        if first_ends {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        line("BOOKMARK", &object)
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut line = json!({"type": kind, "object": object}).to_string();
    line.push('\n');
    line.into()
}

impl Body for Watch {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let next = |bytes| Poll::Ready(Some(Ok(Frame::data(bytes))));
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(failure) = this.failure.take() {
            return next(this.last(&failure));
        }
        if let Some(object) = this.first.pop_front() {
            return next(line("ADDED", &object));
        }
        if std::mem::take(&mut this.first_ends) {
            return next(this.bookmark(true));
        }
        if this.time_is_up.as_mut().poll(cx).is_ready() {
            this.ended = true;
            return Poll::Ready(None);
        }
        let shared = this.shared.clone();
        let mut state = shared.state();
        if state.expiries != this.expiries {
            let failure = Failure::too_old(this.since, state.store.revision());
            return next(this.last(&failure));
        }
        match state.store.next(&this.scope, this.since) {
            Err(failure) => return next(this.last(&failure)),
            Ok(Some(told)) => {
                this.since = told.revision;
                return next(line(told.kind, &told.object));
            }
            // Changes outside its scope are skipped for good. A watch from a future revision waits for it.
            Ok(None) => this.since = this.since.max(state.store.revision()),
        }
        if this.bookmarks.is_some_and(|sent| sent != state.bookmarks) {
            this.bookmarks = Some(state.bookmarks);
            return next(this.bookmark(false));
        }
        state.store.wake_later(this.id, cx.waker());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.watches_open -= 1;
        state.store.forget_waker(self.id);
    }
}
