//! A token bucket (client-go's `flowcontrol.NewTokenBucketRateLimiter`). PURE.

use std::time::Duration;

use crate::limits::Rate;
use crate::model::Mono;

/// A token bucket.
#[derive(Debug)]
pub struct TokenBucket {
    rate: Rate,
    left: f64,
    at: Mono,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Mono) -> Self {
        Self { rate, left: f64::from(rate.burst), at: now }
    }

    /// Takes a token, if one is available.
    pub fn try_accept(&mut self, now: Mono) -> bool {
        self.refill(now);
        let accepted = self.missing() <= 0.0;
        self.left -= if accepted { 1.0 } else { 0.0 };
        accepted
    }

    /// When a token is available, for a caller that knows the cost only afterwards; `None` when one is available now.
    pub fn wait(&mut self, now: Mono) -> Option<Mono> {
        self.refill(now);
        (self.missing() > 0.0).then(|| self.ready_at())
    }

    /// Takes this many tokens, even more than are available: later callers then wait for the debt.
    pub fn spend(&mut self, tokens: u32, now: Mono) {
        self.refill(now);
        self.left -= f64::from(tokens);
    }

    fn refill(&mut self, now: Mono) {
        let more = now.since(self.at).as_secs_f64() * f64::from(self.rate.per_second);
        self.left = (self.left + more).min(f64::from(self.rate.burst));
        self.at = now;
    }

    /// When a token is available, if none is taken before; the last update when one is.
    pub fn ready_at(&self) -> Mono {
        self.at + Duration::from_secs_f64(self.missing() / f64::from(self.rate.per_second))
    }

    /// The missing part of a token. Waits are in whole nanoseconds, so that rounding never grants a token early.
    fn missing(&self) -> f64 {
        let missing = 1.0 - self.left;
        if missing > 1e-6 { missing } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Mono {
        Mono(millis * 1_000_000)
    }

    #[test]
    fn the_rate_and_the_burst_are_limits() {
        let mut bucket = TokenBucket::new(Rate { per_second: 2, burst: 3 }, at(0));
        let accepted =
            |bucket: &mut TokenBucket, millis| (0..5).filter(|_| bucket.try_accept(at(millis))).count();
        assert_eq!(accepted(&mut bucket, 0), 3, "the burst");
        assert_eq!(accepted(&mut bucket, 400), 0);
        assert_eq!(accepted(&mut bucket, 1_000), 2, "two a second");
        assert_eq!(accepted(&mut bucket, 60_000), 3, "no more than the burst is saved");
    }

    #[test]
    fn a_debt_is_waited_for() {
        let mut bucket = TokenBucket::new(Rate { per_second: 100, burst: 50 }, at(0));
        assert_eq!(bucket.wait(at(0)), None);
        bucket.spend(149, at(0));
        let ready = bucket.wait(at(100)).expect("a wait");
        assert_eq!((ready.0 / 1_000_000, bucket.wait(at(1_001))), (1_000, None));
    }

    #[test]
    fn a_caller_that_waits_gets_a_token() {
        for per_second in [1, 3, 7, 50, 1_000_003] {
            let mut bucket = TokenBucket::new(Rate { per_second, burst: 1 }, at(0));
            let mut now = at(0);
            for turn in 0..1_000 {
                assert!(bucket.try_accept(now), "{per_second} a second: round {turn}");
                assert!(!bucket.try_accept(now));
                let ready = bucket.ready_at();
                assert!(ready > now, "{per_second} a second: round {turn}");
                now = ready;
            }
        }
    }
}
