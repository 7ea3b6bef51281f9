//! When a call to the API server that is repeated is due: after a period, and after a failure with back-off. PURE.

use std::time::Duration;

use crate::kube::RetryWait;
use crate::model::Mono;

/// A repeated call.
#[derive(Clone, Debug)]
pub struct Task {
    /// When it is due, while none is in flight.
    pub at: Mono,
    in_flight: bool,
    wait: RetryWait,
}

impl Task {
    /// One that is due now. `seed` spreads retries of different nodes.
    pub fn new(now: Mono, seed: u64) -> Self {
        Self { at: now, in_flight: false, wait: RetryWait::new(seed) }
    }

    /// When it is due; `None` while it is in flight.
    pub fn due(&self) -> Option<Mono> {
        (!self.in_flight).then_some(self.at)
    }

    /// It begins, if it is due.
    pub fn begin_if_due(&mut self, now: Mono) -> bool {
        let begins = self.due().is_some_and(|at| at <= now);
        self.in_flight |= begins;
        begins
    }

    /// It begins, due or not.
    pub fn begin(&mut self) {
        self.in_flight = true;
    }

    /// It ended: the next is due after `period`, after a failure sooner.
    pub fn ended(&mut self, well: bool, now: Mono, period: Duration) {
        self.in_flight = false;
        self.at = now + if well { period } else { self.wait.failed().min(period) };
        if well {
            self.wait.succeeded();
        }
    }
}
