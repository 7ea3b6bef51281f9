//! Schedules the relists: lists all pods of the runtime, periodically and on request (`GenericPLEG.Relist`).

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::cri::{Runtime, RuntimeResult};
use crate::limits::{RELIST_PERIOD, RELIST_RETRY_MAX};
use crate::model::Mono;
use crate::pleg::{self, Relist};

/// The schedule of the relists.
pub(super) struct Relisting {
    at: Mono,
    in_flight: bool,
    /// When the last relist began.
    begun: Mono,
    /// When the last successful relist ended.
    ended: Option<Mono>,
    /// Consecutive failures.
    failures: u32,
}

impl Relisting {
    pub(super) fn new(now: Mono) -> Self {
        Self { at: now, in_flight: false, begun: now, ended: None, failures: 0 }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (!self.in_flight).then_some(self.at)
    }

    /// When the last relist began.
    pub(super) fn begun(&self) -> Mono {
        self.begun
    }

    /// The last relist failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Requests a relist that begins by then; one in flight does not count, since it may miss the change. While the runtime is
    /// unreachable, the back-off stays.
    pub(super) fn request(&mut self, by: Mono) {
        if self.failures == 0 {
            self.at = self.at.min(by);
        }
    }

    /// The runtime answered another call: ends the back-off after failed relists.
    pub(super) fn runtime_answered(&mut self, now: Mono) {
        if self.failures > 0 {
            self.at = self.at.min(now);
        }
    }

    /// Starts a relist that is due.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        self.in_flight = true;
        self.begun = now;
        // No relist is due until the next request.
        self.at = Mono(i64::MAX);
        let (runtime, interest) = (pods.manager().runtime.clone(), pods.interest());
        out.start("relist", async move { Event::Relisted(pleg::relist(&*runtime, &interest).await) });
    }

    /// A relist ended. Returns its result, when it began, and whether the runtime was unreachable before; `None` = it failed.
    pub(super) fn take(
        &mut self,
        result: RuntimeResult<Relist>,
        now: Mono,
        out: &Effects,
    ) -> Option<(Relist, Mono, bool)> {
        self.in_flight = false;
        let relist = match result {
            Ok(relist) => relist,
            Err(error) => {
                if self.failures == 0 {
                    log::warn!("container runtime unreachable: {error}; pods keep running, retrying");
                }
                self.failures = self.failures.saturating_add(1);
                let wait = RELIST_PERIOD * 2_u32.saturating_pow(self.failures.min(10) - 1);
                self.at = now + wait.min(RELIST_RETRY_MAX);
                return None;
            }
        };
        let is_back = std::mem::take(&mut self.failures) > 0;
        let metrics = out.metrics();
        metrics.relists.add(now.since(self.begun));
        if let Some(before) = self.ended.replace(now) {
            metrics.relist_intervals.add(now.since(before));
        }
        if is_back {
            log::info!("container runtime reachable again");
        }
        Some((relist, self.begun, is_back))
    }
}
