//! The runtime's event stream, and the handling of its events.
//!
//! ```text
//!     event ─► known already: nothing
//!           ─► a start, or a state that differs from the last read ─► the pod is read
//!           ─► an exit ─► its status is polled until it shows that ─► the pod is read
//!           ─► of an unknown pod ─► remembered; a relist, if it was a start and the pod stays unknown
//! ```
//!
//! An event only causes a read. While a job of the pod runs, the read follows its end, so that any number of events leads to
//! one. A plan that is made for another reason while a status does not show an announced exit yet uses the previous read; its
//! sync checks again before it creates anything (`sync::overtaken`).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::agent::Event;
use super::effects::{Effect, Effects};
use super::pods::Pods;
use super::pods::Record;
use super::relist::Relisting;
use crate::cri::{EventService, Runtime, RuntimeError, RuntimeEvent, RuntimeEventKind, RuntimeResult};
use crate::limits::RELIST_PERIOD;
use crate::model::{Mono, ObservedPod, PodUid};
use crate::pleg::event_stream::{EventStream, StreamReport};
use crate::pleg::evented::{self, AwaitedState, Instance, Relevance, UnknownEvents};
use crate::sync::worker::Job;

/// The stream of the runtime's events, and its state.
pub(super) struct RuntimeEvents {
    stream: EventStream,
    unknown: UnknownEvents,
    /// Dropping it ends the stream.
    stream_task: Option<smol::Task<()>>,
    /// Number of the open stream; events of an earlier one are ignored.
    number: u64,
    /// The loop's queue was full: an event was dropped.
    dropped: Rc<Cell<bool>>,
}

impl RuntimeEvents {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            stream: EventStream::new(now),
            unknown: UnknownEvents::default(),
            stream_task: None,
            number: 0,
            dropped: Rc::default(),
        }
    }

    /// The next deadline. While the runtime does not answer, relists detect when it does again.
    pub(super) fn due(&self, relisting: &Relisting) -> Option<Mono> {
        let of_stream = self.stream.due().filter(|_| !relisting.is_failing());
        of_stream.into_iter().chain(self.unknown.due()).min()
    }

    /// Opens the stream or requests a relist, if due.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        pods: &Pods<R>,
        relisting: &Relisting,
        now: Mono,
        out: &mut Effects,
    ) {
        if let Some(report) = self.stream.judge(now) {
            log_report(report, None);
            self.stream_task = None;
            out.push(Effect::RelistBy(now + RELIST_PERIOD));
        }
        if !relisting.is_failing()
            && let Some(service) = self.stream.open(now)
        {
            self.open_stream(service, pods, out);
            // The stream is open by then; the relist finds earlier changes.
            out.push(Effect::RelistBy(now + RELIST_PERIOD));
        }
        if self.dropped.take() {
            out.push(Effect::RelistBy(now));
        }
        if self.unknown.due().is_some_and(|at| at <= now) {
            self.unknown.relisted(now);
            // At most as often as without events, whatever else happens in the runtime.
            out.push(Effect::RelistBy((relisting.begun() + RELIST_PERIOD).max(now)));
        }
    }

    fn open_stream<R: Runtime + 'static>(&mut self, service: EventService, pods: &Pods<R>, out: &Effects) {
        self.number += 1;
        let number = self.number;
        let (runtime, events, dropped) =
            (pods.manager().runtime.clone(), out.tasks().sender(), self.dropped.clone());
        self.stream_task = Some(out.keep("runtime events", async move {
            let mut each = |event| {
                // Waiting here would hold up the runtime.
                if events.try_send(Event::Runtime(event)).is_err() {
                    dropped.set(true);
                }
            };
            Event::StreamEnded(number, runtime.follow_events(service, &mut each).await)
        }));
    }

    /// The stream of that number ended.
    pub(super) fn take_end(
        &mut self,
        number: u64,
        result: RuntimeResult<()>,
        relisting: &Relisting,
        now: Mono,
        out: &mut Effects,
    ) {
        if number != self.number || self.stream_task.take().is_none() {
            return;
        }
        let unsupported = matches!(result, Err(RuntimeError::Unimplemented(_)));
        if let Some(report) = self.stream.ended(unsupported, now) {
            log_report(report, result.err());
        }
        if !unsupported {
            // The runtime may have ended: the relist detects that.
            out.push(Effect::RelistBy(now.max(relisting.begun() + RELIST_PERIOD)));
        }
    }

    /// Handles one event.
    pub(super) fn take<R: Runtime + 'static>(
        &mut self,
        event: RuntimeEvent,
        pods: &Pods<R>,
        now: Mono,
        out: &mut Effects,
    ) {
        out.metrics().runtime_events.inc();
        if let Some(report) = self.stream.delivered() {
            log_report(report, None);
        }
        let named = event.pod.clone().filter(|uid| pods.get(uid).is_some());
        let Some(uid) = named.or_else(|| pod_of(&event, pods)) else {
            self.unknown.note(event, now);
            return;
        };
        self.stream.event_arrived(&uid);
        let Some(record) = pods.get(&uid) else { return };
        let relevance = evented::judge(&event, record.worker().observed().map(|observed| &**observed));
        if relevance != Relevance::Known && record.worker().in_flight() == Some(Job::Act) {
            record.overtaken().tell();
        }
        match relevance {
            Relevance::Known => {}
            Relevance::Changed => out.push(Effect::ReadAgain(uid)),
            Relevance::Await(instance, until) => {
                out.push(Effect::AwaitChange(uid, event.id, instance, until));
            }
            Relevance::UnknownId => {
                let is_end = matches!(event.kind, RuntimeEventKind::Exited | RuntimeEventKind::Deleted);
                if is_end {
                    self.unknown.note(event, now);
                }
                out.push(Effect::ReadAgain(uid));
            }
        }
    }

    /// The events of these containers and sandboxes that came before their pod was known.
    pub(super) fn met(&mut self, observed: &ObservedPod) -> Vec<(Box<str>, Instance, AwaitedState)> {
        self.unknown.take_known(observed)
    }

    /// The runtime sends an event only after its status shows the change.
    pub(super) fn come_after_the_status(&self) -> bool {
        self.stream.reports_after_status()
    }

    /// A sync has started a sandbox or a container: its events are expected.
    pub(super) fn started_something(&mut self, now: Mono) {
        self.stream.started_something(now);
    }

    /// A relist that began then succeeded; with `is_back`, the runtime had not answered before. Returns the time until the next
    /// one.
    pub(super) fn relisted(&mut self, begun: Mono, is_back: bool, now: Mono) -> Duration {
        let wait = self.stream.relist_wait();
        self.unknown.relisted(begun);
        if is_back {
            self.stream.runtime_is_back(now);
        }
        wait
    }

    /// The pod has changed since then without an event.
    pub(super) fn suspect(&mut self, uid: &PodUid, agreed: Mono, now: Mono) {
        self.stream.suspect(uid, agreed, now);
    }

    /// Number of changes without an event.
    pub(super) fn missed(&self) -> u64 {
        self.stream.missed()
    }

    /// Number and bytes of the events of unknown pods.
    pub(super) fn held(&self) -> (usize, usize) {
        self.unknown.held()
    }
}

/// The pod whose last read shows the event's id.
fn pod_of<R: Runtime + 'static>(event: &RuntimeEvent, pods: &Pods<R>) -> Option<PodUid> {
    let shows = |record: &Record| {
        let observed = record.worker().observed().map(|observed| &**observed);
        evented::judge(event, observed) != Relevance::UnknownId || record.awaited().contains_key(&event.id)
    };
    pods.iter().find(|(_, record)| shows(record)).map(|(uid, _)| uid.clone())
}

/// Logs each change of the stream's state once.
fn log_report(report: StreamReport, error: Option<RuntimeError>) {
    let why = error.map_or_else(|| "the runtime ended it".to_owned(), |error| error.to_string());
    match report {
        StreamReport::Trusted(service) => {
            log::info!("event stream of {service} is up; relisting every 60 s");
        }
        StreamReport::Absent => log::info!("the runtime has no event stream; relisting every 1 s"),
        StreamReport::Ended(service) => log::warn!("event stream of {service} lost: {why}; reopening it"),
        StreamReport::MissedAgain(service, total) => {
            log::debug!("event stream of {service}: missed an event ({total} so far)");
        }
        StreamReport::Missed(service, pods, total) => log::warn!(
            "event stream of {service} missed changes of {pods} pods ({total} so far); relisting every 1 s for now"
        ),
    }
}
