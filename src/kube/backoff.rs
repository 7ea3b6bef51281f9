//! How long to wait before the next try. PURE.
//!
//! Twice as long after each failure in a row, with jitter: nodes that lost their server together do not come back together
//! (client-go: from 0.8 s, each up to twice as long).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use crate::limits::{KUBE_RETRY_MAX, KUBE_RETRY_MIN};

/// What tells the node, or the thing, of that name from others.
pub fn seed(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The waits of one thing that is tried again.
#[derive(Clone, Debug)]
pub struct RetryWait {
    failures: u32,
    random: u64,
}

impl RetryWait {
    /// `seed` tells nodes apart.
    pub fn new(seed: u64) -> Self {
        Self { failures: 0, random: seed | 1 }
    }

    /// How long to wait after one more failure: between `KUBE_RETRY_MIN` and twice `KUBE_RETRY_MAX`.
    pub fn failed(&mut self) -> Duration {
        let wait = KUBE_RETRY_MIN.saturating_mul(1 << self.failures.min(16)).min(KUBE_RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        // xorshift64: what comes of it only spreads waits.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = u32::try_from(self.random >> 48).unwrap_or_default();
        wait + wait * share / (1 << 16)
    }

    /// It went well.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_a_bound_and_differ_between_nodes() {
        let waits = |seed: u64| {
            let mut wait = RetryWait::new(seed);
            (0..40).map(|_| wait.failed()).collect::<Vec<_>>()
        };
        let (one, other) = (waits(1), waits(0x9e37_79b9_7f4a_7c15));
        assert_ne!(one, other);
        for (n, wait) in one.iter().chain(&other).enumerate() {
            let least = KUBE_RETRY_MIN.saturating_mul(1 << (n % 40).min(16)).min(KUBE_RETRY_MAX);
            assert!(*wait >= least && *wait <= 2 * least, "{n}: {wait:?}");
        }
        let mut wait = RetryWait::new(7);
        wait.failed();
        wait.failed();
        wait.succeeded();
        assert!(wait.failed() <= 2 * KUBE_RETRY_MIN);
    }
}
