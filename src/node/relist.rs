//! Looks at everything in the runtime: when, and what follows from one.
use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::cri::{Runtime, RuntimeResult};
use crate::limits::{RELIST_PERIOD, RELIST_RETRY_MAX};
use crate::model::Mono;
use crate::pleg::{self, Relist};

/// When the next relist begins.
pub(super) struct Relisting {
    at: Mono,
    in_flight: bool,
    /// When the last one began.
    begun: Mono,
    /// When the last one ended well.
    ended: Option<Mono>,
    /// In a row.
    failures: u32,
}

impl Relisting {
    pub(super) fn new(now: Mono) -> Self {
        Self { at: now, in_flight: false, begun: now, ended: None, failures: 0 }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (!self.in_flight).then_some(self.at)
    }

    /// When the last one began.
    pub(super) fn begun(&self) -> Mono {
        self.begun
    }

    /// The runtime did not answer the last one.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// A relist is to begin by then: one that is under way may have looked too early. While the runtime does not answer,
    /// the wait that was set stays.
    pub(super) fn request(&mut self, by: Mono) {
        if self.failures == 0 {
            self.at = self.at.min(by);
        }
    }

    /// The runtime answered a pod's read: after relists that failed, the next one need not wait.
    pub(super) fn runtime_answered(&mut self, now: Mono) {
        if self.failures > 0 {
            self.at = self.at.min(now);
        }
    }
    /// Begins one that is due.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        self.in_flight = true;
        self.begun = now;
        // Nothing is due but what is requested from now on.
        self.at = Mono(i64::MAX);
        let (runtime, interest) = (pods.manager().runtime.clone(), pods.interest());
        out.start("relist", async move { Event::Relisted(pleg::relist(&*runtime, &interest).await) });
    }

    /// One ended: what it found, when it began, and whether the runtime had not answered before.
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
