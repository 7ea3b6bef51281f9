//! Changes that the runtime's events announced and its status does not show yet.

use std::rc::Rc;

use super::Pods;
use super::record::Awaited;
use crate::cri::Runtime;
use crate::limits::{CHANGES_AWAITED_MAX, RELIST_PERIOD};
use crate::model::{ObservedPod, PodUid};
use crate::node::agent::Event;
use crate::node::effects::{Effect, Effects};
use crate::pleg;
use crate::pleg::evented::{self, AwaitedState, Instance};
use crate::sync::worker::Job;

impl<R: Runtime + 'static> Pods<R> {
    /// Reads the pod once the runtime's status shows the change: `at_once` when the runtime sends events after it updates its
    /// status. While a job of the pod runs, which may have caused the change, the read after the job comes first.
    pub(in crate::node) fn await_change(
        &mut self,
        uid: &PodUid,
        (id, instance, until): (Box<str>, Instance, AwaitedState),
        at_once: bool,
        out: &mut Effects,
    ) {
        let awaited_by_all: usize = self.records.values().map(|record| record.awaited.len()).sum();
        let now = self.now().mono;
        let Some(record) = self.records.get_mut(uid) else { return };
        if awaited_by_all >= CHANGES_AWAITED_MAX && !record.awaited.contains_key(&id) {
            out.push(Effect::RelistBy(now + RELIST_PERIOD));
            return self.read_again(uid, out);
        }
        let awaited = record.awaited.entry(id).or_insert(Awaited { instance, until, is_polled: false });
        if until == AwaitedState::Gone && awaited.until != until {
            // The poll for its exit must not report a missing container.
            (awaited.until, awaited.is_polled) = (until, false);
        }
        if matches!(record.worker.in_flight(), None | Some(Job::Read)) {
            self.await_changes(uid, at_once, out);
        }
    }

    fn await_changes(&mut self, uid: &PodUid, at_once: bool, out: &Effects) {
        let Some(record) = self.records.get_mut(uid) else { return };
        for (id, awaited) in record.awaited.iter_mut().filter(|(_, awaited)| !awaited.is_polled) {
            awaited.is_polled = true;
            let (uid, id, instance, until) =
                (uid.clone(), id.clone(), awaited.instance.clone(), awaited.until);
            let (runtime, clock) = (self.ctx.manager.runtime.clone(), self.ctx.manager.clock.clone());
            out.start("container status", async move {
                pleg::await_change(&*runtime, &clock, &instance, until, at_once).await;
                Event::Shown { uid, id, until }
            });
        }
    }

    /// The runtime's status shows the announced change, or the wait for it timed out.
    pub(in crate::node) fn shown(&mut self, uid: &PodUid, id: &str, until: AwaitedState, out: &mut Effects) {
        let Some(record) = self.records.get_mut(uid) else { return };
        if record.awaited.get(id).is_some_and(|awaited| awaited.until == until) {
            record.awaited.remove(id);
            self.read_again(uid, out);
        }
    }

    /// Ends the wait for changes that the last read of the pod shows.
    pub(in crate::node) fn forget_shown(&mut self, uid: &PodUid) -> Option<Rc<ObservedPod>> {
        let record = self.records.get_mut(uid)?;
        let observed = record.worker.observed().cloned()?;
        record.awaited.retain(|id, awaited| !evented::is_shown(&observed, id, awaited.until));
        Some(observed)
    }

    /// Awaits the changes that the last read does not show yet, including those of events from before the pod was known.
    pub(in crate::node) fn await_unshown(
        &mut self,
        uid: &PodUid,
        met: Vec<(Box<str>, Instance, AwaitedState)>,
        at_once: bool,
        out: &mut Effects,
    ) {
        for change in met {
            self.await_change(uid, change, at_once, out);
        }
        self.await_changes(uid, at_once, out);
    }
}
