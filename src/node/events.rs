//! What the runtime tells by itself: the stream, and what its events lead to.
//!
//! ```text
//!     event ─► known already: nothing
//!           ─► something began, or is not as it was read ─► the pod is read
//!           ─► something ended ─► its status is looked at until it shows that ─► the pod is read
//!           ─► of nobody we know ─► remembered; a relist, when something began and stays unknown
//! ```
//!
//! An event decides nothing: what it tells is read. While a job of the pod runs, its end brings the read, so that any
//! number of events leads to one. A plan that something else brings about while a status does not show a told end yet is
//! made on the read before; its act looks once more before it makes anything (`sync::overtaken`).

use std::cell::Cell;
use std::rc::Rc;

use super::agent::{Agent, Event};
use super::record::{Awaited, Record};
use crate::cri::{EventService, Runtime, RuntimeError, RuntimeEvent, RuntimeEventKind, RuntimeResult};
use crate::limits::{CHANGES_AWAITED_MAX, RELIST_PERIOD};
use crate::model::{Mono, PodUid};
use crate::pleg;
use crate::pleg::news::{self, Instance, News, Strangers, Until};
use crate::pleg::watch::{Said, Watch};
use crate::sync::worker::Job;

/// The stream of the runtime's events, and what is kept of them.
pub(super) struct RuntimeEvents {
    pub(super) watch: Watch,
    pub(super) strangers: Strangers,
    /// Dropping it ends the stream.
    stream: Option<smol::Task<()>>,
    /// Which stream is open; what comes of another one is late.
    number: u64,
    /// The loop's queue was full: an event was dropped.
    dropped: Rc<Cell<bool>>,
}

impl RuntimeEvents {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            watch: Watch::new(now),
            strangers: Strangers::default(),
            stream: None,
            number: 0,
            dropped: Rc::default(),
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// While the runtime does not answer, relists find out when it does.
    pub(super) fn runtime_events_due(&self) -> Option<Mono> {
        let events = &self.runtime_events;
        let of_watch = events.watch.due().filter(|_| self.relisting.failures == 0);
        of_watch.into_iter().chain(events.strangers.due()).min()
    }

    /// Does what is due.
    pub(super) fn turn_runtime_events(&mut self, now: Mono) {
        if let Some(said) = self.runtime_events.watch.judge(now) {
            say(said, None);
            self.runtime_events.stream = None;
            self.relisting.request(now + RELIST_PERIOD);
        }
        if self.relisting.failures == 0
            && let Some(service) = self.runtime_events.watch.open(now)
        {
            self.open_stream(service);
            // By then the runtime has begun to tell; what changed before is seen so.
            self.relisting.request(now + RELIST_PERIOD);
        }
        if self.runtime_events.dropped.take() {
            self.relisting.request(now);
        }
        let strangers = &mut self.runtime_events.strangers;
        if strangers.due().is_some_and(|at| at <= now) {
            strangers.looked(now);
            // Whatever else goes on in the runtime: at most as often as without events.
            let by = self.relisting.begun + RELIST_PERIOD;
            self.relisting.request(by.max(now));
        }
    }

    fn open_stream(&mut self, service: EventService) {
        self.runtime_events.number += 1;
        let number = self.runtime_events.number;
        let (runtime, events) = (self.ctx.runtime.clone(), self.events.clone());
        let dropped = self.runtime_events.dropped.clone();
        let task = async move {
            let mut each = |event| {
                // Waiting here would hold up the runtime.
                if events.try_send(Event::Runtime(event)).is_err() {
                    dropped.set(true);
                }
            };
            let result = runtime.follow_events(service, &mut each).await;
            // The loop is gone only when the process ends.
            let _ = events.send(Event::StreamEnded(number, result)).await;
        };
        self.runtime_events.stream = Some(self.executor.spawn("runtime events", task));
    }

    pub(super) fn stream_ended(&mut self, number: u64, result: RuntimeResult<()>) {
        if number != self.runtime_events.number || self.runtime_events.stream.take().is_none() {
            return;
        }
        let now = self.ctx.clock.now().mono;
        let unsupported = matches!(result, Err(RuntimeError::Unimplemented(_)));
        if let Some(said) = self.runtime_events.watch.ended(unsupported, now) {
            say(said, result.err());
        }
        if !unsupported {
            // The runtime may be gone: the relist finds out.
            self.relisting.request(now.max(self.relisting.begun + RELIST_PERIOD));
        }
    }

    /// Takes one event.
    pub(super) fn runtime_event(&mut self, event: RuntimeEvent) {
        self.metrics.runtime_events.inc();
        let now = self.ctx.clock.now().mono;
        if let Some(said) = self.runtime_events.watch.delivered() {
            say(said, None);
        }
        let named = event.pod.clone().filter(|uid| self.records.contains_key(uid));
        let Some(uid) = named.or_else(|| self.pod_of(&event)) else {
            self.runtime_events.strangers.note(event, now);
            return;
        };
        self.runtime_events.watch.told(&uid);
        let Some(record) = self.records.get_mut(&uid) else { return };
        let news = news::judge(&event, record.worker.observed().map(|observed| &**observed));
        if news != News::Known && record.worker.in_flight() == Some(Job::Act) {
            record.overtaken.tell();
        }
        match news {
            News::Known => {}
            News::Changed => self.look_again(&uid),
            News::Await(instance, until) => self.await_change(&uid, event.id, instance, until),
            News::Stranger => {
                let is_end = matches!(event.kind, RuntimeEventKind::Exited | RuntimeEventKind::Deleted);
                if is_end {
                    self.runtime_events.strangers.note(event, now);
                }
                self.look_again(&uid);
            }
        }
    }

    /// The pod whose last read shows the event's id.
    fn pod_of(&self, event: &RuntimeEvent) -> Option<PodUid> {
        let shows = |record: &Record| {
            let observed = record.worker.observed().map(|observed| &**observed);
            news::judge(event, observed) != News::Stranger || record.awaited.contains_key(&event.id)
        };
        self.records.iter().find(|(_, record)| shows(record)).map(|(uid, _)| uid.clone())
    }

    fn look_again(&mut self, uid: &PodUid) {
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.touched();
        }
        self.drive(uid);
    }

    /// Reads the pod once the runtime's status shows the change. While a job of ours runs, which may well have brought it
    /// about, the read after it comes first.
    fn await_change(&mut self, uid: &PodUid, id: Box<str>, instance: Instance, until: Until) {
        let awaited_by_all: usize = self.records.values().map(|record| record.awaited.len()).sum();
        let Some(record) = self.records.get_mut(uid) else { return };
        if awaited_by_all >= CHANGES_AWAITED_MAX && !record.awaited.contains_key(&id) {
            let now = self.ctx.clock.now().mono;
            self.relisting.request(now + RELIST_PERIOD);
            return self.look_again(uid);
        }
        let awaited = record.awaited.entry(id).or_insert(Awaited { instance, until, looked_at: false });
        if until == Until::Gone && awaited.until != until {
            // Who looks for its end is not to say that it is gone.
            (awaited.until, awaited.looked_at) = (until, false);
        }
        if matches!(record.worker.in_flight(), None | Some(Job::Read)) {
            self.look_at_awaited(uid);
        }
    }

    fn look_at_awaited(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let at_once = self.runtime_events.watch.tells_after_the_status();
        for (id, awaited) in record.awaited.iter_mut().filter(|(_, awaited)| !awaited.looked_at) {
            awaited.looked_at = true;
            let (uid, id, instance, until) =
                (uid.clone(), id.clone(), awaited.instance.clone(), awaited.until);
            let (runtime, clock, events) =
                (self.ctx.runtime.clone(), self.ctx.clock.clone(), self.events.clone());
            let task = async move {
                pleg::await_change(&*runtime, &clock, &instance, until, at_once).await;
                // The loop is gone only when the process ends.
                let _ = events.send(Event::Shown { uid, id, until }).await;
            };
            self.executor.spawn("container status", task).detach();
        }
    }

    pub(super) fn shown(&mut self, uid: &PodUid, id: &str, until: Until) {
        let Some(record) = self.records.get_mut(uid) else { return };
        if record.awaited.get(id).is_some_and(|awaited| awaited.until == until) {
            record.awaited.remove(id);
            self.look_again(uid);
        }
    }

    /// After a read: what it shows need not be awaited any more, what it does not show yet is.
    pub(super) fn compare_with_events(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(observed) = record.worker.observed().cloned() else { return };
        record.awaited.retain(|id, awaited| !news::is_shown(&observed, id, awaited.until));
        for (id, instance, until) in self.runtime_events.strangers.met(&observed) {
            self.await_change(uid, id, instance, until);
        }
        self.look_at_awaited(uid);
    }
}

/// One line per change of trust.
fn say(said: Said, error: Option<RuntimeError>) {
    let why = error.map_or_else(|| "the runtime ended it".to_owned(), |error| error.to_string());
    match said {
        Said::Trusted(service) => {
            log::info!("events: {service} come; everything is looked at every minute only");
        }
        Said::Absent => log::info!("events: the runtime has none; everything is looked at every second"),
        Said::Ended(service) => log::warn!("events: the stream of {service} is lost: {why}; opened again"),
        Said::MissedAgain(service, total) => {
            log::debug!("events: none of {service} came ({total} missed so far)");
        }
        Said::Missed(service, pods, total) => log::warn!(
            "events: {service} did not tell that {pods} pods changed ({total} so far); everything is looked at \
             every second for now"
        ),
    }
}
