//! The ring of events, those who wait for the next one, and what `smolet events` prints of it.

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

/// The ring, shared by the loop and the tasks that note what they do.
#[derive(Default)]
pub(super) struct Ring {
    entries: RefCell<EventRing>,
    /// Dropping one wakes the one who waits. Full: see [`Ring::next`].
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

    /// What it holds. Not to be kept over an await.
    pub(super) fn borrow(&self) -> Ref<'_, EventRing> {
        self.entries.borrow()
    }

    /// Closes with the next event; `None` when `EVENTS_WAITING_MAX` wait already.
    fn next(&self) -> Option<Receiver<()>> {
        let mut waiting = self.waiting.borrow_mut();
        // Those that have gone.
        waiting.retain(|sender| !sender.is_closed());
        (waiting.len() < EVENTS_WAITING_MAX).then(|| {
            let (sender, receiver) = smol::channel::bounded(1);
            waiting.push(sender);
            receiver
        })
    }
}

/// The events that are asked for.
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
    // A ring that is younger than what was seen is another agent's: all of it is new.
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

/// Answers when there was an event after that revision, or `EVENTS_WAIT_MAX` is over.
pub(super) fn await_event(out: &Effects, after: u64) -> Answer {
    let told = Answer::Found(String::new());
    if out.ring().borrow().revision() != after {
        return told;
    }
    let Some(next) = out.ring().next() else { return told };
    let time_is_up = out.clock().sleep(EVENTS_WAIT_MAX);
    Answer::Later(Later(Box::pin(async move {
        smol::future::or(
            async {
                // It closes; nothing is ever sent.
                let _ = next.recv().await;
            },
            time_is_up,
        )
        .await;
        told
    })))
}
