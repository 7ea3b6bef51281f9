//! The ring of events, the queries that wait for the next event, and the output of `smolet events`.

use std::cell::{Ref, RefCell};

use smol::channel::{Receiver, Sender};

use super::effects::Effects;
use super::pods::Pods;
use crate::cri::Runtime;
use crate::events::{About, Event, EventKind, EventRing};
use crate::limits::{EVENTS_WAIT_MAX, EVENTS_WAITING_MAX};
use crate::model::Mono;
use crate::printers::events::{self as printer, Shown};
use crate::server::{Answer, EventsQuestion, Later};

/// The ring, shared by the loop and the tasks that record events.
#[derive(Default)]
pub(super) struct Ring {
    entries: RefCell<EventRing>,
    /// Dropping a sender wakes its waiting query. Full: see [`Ring::next`].
    waiting: RefCell<Vec<Sender<()>>>,
}

impl Ring {
    /// As [`EventRing::record`].
    pub(super) fn record(
        &self,
        about: About<'_>,
        kind: EventKind,
        reason: &'static str,
        message: &str,
        now: Mono,
    ) -> bool {
        self.waiting.borrow_mut().clear();
        self.entries.borrow_mut().record(about, kind, reason, message, now)
    }

    /// The entries. Must not be held across an await.
    pub(super) fn borrow(&self) -> Ref<'_, EventRing> {
        self.entries.borrow()
    }

    /// A channel that closes at the next event; `None` = `EVENTS_WAITING_MAX` queries wait already.
    fn next(&self) -> Option<Receiver<()>> {
        let mut waiting = self.waiting.borrow_mut();
        // Queries whose connections have closed.
        waiting.retain(|sender| !sender.is_closed());
        (waiting.len() < EVENTS_WAITING_MAX).then(|| {
            let (sender, receiver) = smol::channel::bounded(1);
            waiting.push(sender);
            receiver
        })
    }
}

/// Answers `smolet events`.
pub(super) fn show_events<R: Runtime + 'static>(
    pods: &Pods<R>,
    out: &Effects,
    question: &EventsQuestion,
) -> Answer {
    let ring = out.ring().borrow();
    let full_name = question.pod.as_ref().map(|name| format!("{name}-{}", pods.identity().node_name()));
    let of_pod = |event: &Event<'_>| {
        let is_called = |name: Option<&str>| !event.is_of_node() && name == Some(event.name);
        question.pod.is_none() || is_called(question.pod.as_deref()) || is_called(full_name.as_deref())
    };
    // A lower revision than the last seen one: the agent was restarted, and all events are new.
    let seen = question.since.filter(|since| *since <= ring.revision()).unwrap_or_default();
    let wanted = |event: &Event<'_>| {
        event.revision > seen
            && of_pod(event)
            && question.namespace.as_ref().is_none_or(|namespace| namespace == event.namespace())
    };
    let shown = Shown {
        namespaces: question.namespace.is_none() && question.pod.is_none(),
        followed: question.since.is_some(),
        continued: question.continued,
    };
    let now = out.now().mono;
    let table = printer::events(ring.iter().filter(wanted), shown, now, question.style);
    Answer::Found(match question.since {
        Some(_) => format!("revision {}\n{table}", ring.revision()),
        None => table,
    })
}

/// Answers when there is an event after that revision, at the latest after `EVENTS_WAIT_MAX`.
pub(super) fn await_event(out: &Effects, after: u64) -> Answer {
    let answer = Answer::Found(String::new());
    if out.ring().borrow().revision() != after {
        return answer;
    }
    let Some(next) = out.ring().next() else { return answer };
    let time_is_up = out.clock().sleep(EVENTS_WAIT_MAX);
    Answer::Later(Later(Box::pin(async move {
        smol::future::or(
            async {
                // The channel closes; nothing is ever sent.
                let _ = next.recv().await;
            },
            time_is_up,
        )
        .await;
        answer
    })))
}
