//! Exponential back-off of retries. PURE.
//!
//! The wait doubles after each consecutive failure, with jitter, so that nodes that lost their server together do not reconnect
//! together (client-go: from 0.8 s, each up to twice as long).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use super::KubeError;
use crate::limits::{KUBE_RETRY_MAX, KUBE_RETRY_MIN, NODE_AUTHORIZER_TRIES, NODE_AUTHORIZER_WAIT};

/// A seed for jitter that differs from name to name.
pub fn seed(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Back-off of one retried operation.
#[derive(Clone, Debug)]
pub struct RetryWait {
    failures: u32,
    random: u64,
}

impl RetryWait {
    /// `seed` differs from node to node.
    pub fn new(seed: u64) -> Self {
        Self { failures: 0, random: seed | 1 }
    }

    /// Wait after one more failure: between `KUBE_RETRY_MIN` and twice `KUBE_RETRY_MAX`.
    pub fn failed(&mut self) -> Duration {
        let wait = KUBE_RETRY_MIN.saturating_mul(1 << self.failures.min(16)).min(KUBE_RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        wait + self.part(wait)
    }

    /// Wait for the next of many periodic operations: the period, plus or minus half of it.
    pub fn spread(&mut self, period: Duration) -> Duration {
        period / 2 + self.part(period)
    }

    /// A random fraction of the time; it only spreads waits (xorshift64).
    fn part(&mut self, of: Duration) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = u32::try_from(self.random >> 48).unwrap_or_default();
        of * share / (1 << 16)
    }

    /// Resets the back-off.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// Fast retries of a read that the node authorizer does not allow yet.
///
/// A node may read what its pods reference, and the server's node authorizer learns of a pod a moment after the node does: both
/// follow the same watch events. The read is retried a few times in quick succession, then as after any other failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthorizerLag {
    refusals: u32,
}

impl AuthorizerLag {
    /// Wait after this failure; `None`: it is not a delay of the node authorizer.
    pub fn wait(&mut self, why: &KubeError) -> Option<Duration> {
        if !why.is(403) || self.refusals >= NODE_AUTHORIZER_TRIES {
            return None;
        }
        self.refusals += 1;
        Some(NODE_AUTHORIZER_WAIT * (1 << (self.refusals - 1)))
    }

    /// The read was allowed: a rejection from now on is not a delay.
    pub fn reset(&mut self) {
        self.refusals = NODE_AUTHORIZER_TRIES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authorizer_that_lags_is_asked_again_soon_and_not_for_long() {
        let refused =
            |code| KubeError::Refused { code, reason: "Forbidden".into(), message: "no relationship".into() };
        let mut lag = AuthorizerLag::default();
        assert_eq!(lag.wait(&refused(503)), None);
        assert_eq!(lag.wait(&KubeError::Unreachable(String::new())), None);
        let waits: Vec<u128> =
            std::iter::from_fn(|| lag.wait(&refused(403))).map(|w| w.as_millis()).collect();
        assert_eq!(waits, [25, 50, 100, 200, 400]);
        let mut lag = AuthorizerLag::default();
        lag.reset();
        assert_eq!(lag.wait(&refused(403)), None);
    }

    #[test]
    fn what_comes_once_a_period_is_spread_over_it() {
        let (mut wait, period) = (RetryWait::new(7), Duration::from_mins(1));
        let all: Vec<Duration> = (0..1000).map(|_| wait.spread(period)).collect();
        assert!(all.iter().all(|wait| (period / 2..period * 3 / 2).contains(wait)));
        let mean = all.iter().sum::<Duration>() / 1000;
        assert!((Duration::from_secs(57)..Duration::from_secs(63)).contains(&mean), "{mean:?}");
    }

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
