//! Concurrency limit of the syncs that make sandboxes and start containers.
//!
//! ```text
//! |     take ─► call ─► done in time: its duration adjusts the limit
//! |                └──► not within the call's patience: the permit passes to the next sync, and the call is awaited without one
//! ```
//!
//! The kubelet has no such limit: each pod worker calls as it likes. [`StartLimit`] is PURE.

use std::cell::RefCell;
use std::pin::Pin;
use std::time::Duration;

use smol::lock::{Semaphore, SemaphoreGuard};

use crate::clock::SharedClock;
use crate::limits::{
    START_FILES_PATIENCE, START_PATIENCE_FACTOR, START_PATIENCE_MAX, START_PATIENCE_MIN, STARTS_AT_ONCE_MAX,
    STARTS_AT_ONCE_MIN, STARTS_OVERDUE_MAX,
};
use crate::model::PodKey;

/// A CRI call of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartCall {
    /// `RunPodSandbox`.
    RunPodSandbox,
    /// `CreateContainer`.
    CreateContainer,
    /// `StartContainer`.
    StartContainer,
}

/// The number of concurrent starts, controlled by the runtime's response times: a gradient controller.
///
/// While calls take up to twice as long as the shortest of their kind, the runtime has capacity: the limit grows. When they
/// take longer, they queue in the runtime, and more concurrency makes none of them faster: the limit shrinks in proportion.
/// It settles a little above what keeps the runtime busy.
#[derive(Clone, Debug)]
pub struct StartLimit {
    /// In thousandths.
    limit: u64,
    /// Indexed by [`StartCall`].
    calls: [CallTimes; 3],
}

/// Durations of one kind of call, in microseconds; zero before the first.
#[derive(Clone, Copy, Debug, Default)]
struct CallTimes {
    /// The shortest; grows slowly, since a runtime may have become slower permanently.
    shortest: u64,
    /// The typical duration.
    usual: u64,
}

const ONE: u64 = 1000;
const LIMIT_MIN: u64 = STARTS_AT_ONCE_MIN as u64 * ONE;
const LIMIT_MAX: u64 = STARTS_AT_ONCE_MAX as u64 * ONE;

impl StartLimit {
    /// The initial limit, before any measurement: two for each of the machine's processors.
    pub fn new(processors: usize) -> Self {
        let limit = (processors as u64).saturating_mul(2 * ONE).clamp(LIMIT_MIN, LIMIT_MAX);
        Self { limit, calls: Default::default() }
    }

    /// The current limit.
    pub fn at_once(&self) -> usize {
        usize::try_from(self.limit / ONE).unwrap_or(STARTS_AT_ONCE_MIN)
    }

    /// Records a successful call's duration, with the number of starts in progress when it began, itself included.
    pub fn ended(&mut self, call: StartCall, took: Duration, under_way: usize) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 8).clamp(1, u64::MAX / 8);
        let times = &mut self.calls[call as usize];
        if times.shortest == 0 {
            *times = CallTimes { shortest: took, usual: took };
        }
        times.shortest = (times.shortest + times.shortest / 1024).min(took);
        times.usual = (times.usual * 7 + took) / 8;
        let gradient = (2 * ONE).saturating_mul(times.shortest) / took;
        let target = self.limit * gradient.clamp(ONE / 2, ONE) / ONE + ONE;
        let limit = ((self.limit * 3 + target) / 4).clamp(LIMIT_MIN, LIMIT_MAX);
        // A limit that was not reached gives no reason to raise it.
        if limit < self.limit || 2 * under_way >= self.at_once() {
            self.limit = limit;
        }
    }

    /// How long a call may take before it releases its permit.
    pub fn patience(&self, call: StartCall) -> Duration {
        let usual = Duration::from_micros(self.calls[call as usize].usual);
        usual.saturating_mul(START_PATIENCE_FACTOR).clamp(START_PATIENCE_MIN, START_PATIENCE_MAX)
    }
}

/// Limits the concurrent starts of all syncs.
pub struct StartLimiter {
    permits: Semaphore,
    /// Calls that released their permit and have not returned. Full: a further one keeps its permit until one returns.
    overdue: Semaphore,
    state: RefCell<State>,
}

struct State {
    limit: StartLimit,
    /// Number of permits, held or free; adjusted to the limit as they are released.
    permits: usize,
    held: usize,
}

impl StartLimiter {
    /// For a machine with that many processors.
    pub fn new(processors: usize) -> Self {
        let limit = StartLimit::new(processors);
        let permits = limit.at_once();
        Self {
            permits: Semaphore::new(permits),
            overdue: Semaphore::new(STARTS_OVERDUE_MAX),
            state: RefCell::new(State { limit, permits, held: 0 }),
        }
    }

    fn ended(&self, call: StartCall, took: Duration, under_way: usize) {
        let mut state = self.state.borrow_mut();
        state.limit.ended(call, took, under_way);
        let more = state.limit.at_once().saturating_sub(state.permits);
        if more > 0 {
            state.permits += more;
            self.permits.add_permits(more);
        }
    }
}

struct HeldPermit<'a> {
    of: &'a StartLimiter,
    guard: Option<SemaphoreGuard<'a>>,
}

impl Drop for HeldPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.borrow_mut();
        state.held -= 1;
        if state.permits > state.limit.at_once() {
            state.permits -= 1;
            if let Some(guard) = self.guard.take() {
                guard.forget();
            }
        }
    }
}

/// A sync's permit to make sandboxes and start containers. Operations that may hang (a pull, a foreign path) hold none.
pub(super) struct StartPermit<'a> {
    of: &'a StartLimiter,
    key: &'a PodKey,
    held: Option<HeldPermit<'a>>,
}

impl<'a> StartPermit<'a> {
    /// The permit of that pod's sync; not acquired yet.
    pub(super) fn new(of: &'a StartLimiter, key: &'a PodKey) -> Self {
        Self { of, key, held: None }
    }

    /// Waits for a permit, unless it is held already.
    pub(super) async fn acquire(&mut self) {
        if self.held.is_none() {
            let guard = self.of.permits.acquire().await;
            self.of.state.borrow_mut().held += 1;
            self.held = Some(HeldPermit { of: self.of, guard: Some(guard) });
        }
    }

    /// Releases the permit: the next waiting sync gets it.
    pub(super) fn release(&mut self) {
        self.held = None;
    }

    /// Awaits work on foreign paths, which normally completes at once. If it does not, the permit is released, and the next call
    /// acquires one.
    pub(super) fn files<'s, T>(
        &'s mut self,
        clock: &'s SharedClock,
        work: impl Future<Output = T> + 's,
    ) -> Pin<Box<dyn Future<Output = T> + 's>> {
        // Boxed: it ends long before the start does.
        Box::pin(smol::future::or(work, async {
            clock.sleep(START_FILES_PATIENCE).await;
            let _overdue = self.of.overdue.acquire().await;
            self.held = None;
            std::future::pending().await
        }))
    }

    /// Makes a call with the permit. A call that hangs is still awaited, but releases the permit: one pod's trouble does not
    /// delay the others.
    pub(super) async fn call<T, E>(
        &mut self,
        clock: &SharedClock,
        call: StartCall,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.acquire().await;
        let (begun, of) = (clock.now().mono, self.of);
        let (under_way, patience) = {
            let state = of.state.borrow();
            (state.held, state.limit.patience(call))
        };
        let release = async {
            clock.sleep(patience).await;
            let _overdue = of.overdue.acquire().await;
            log::info!(
                "pod {}: {call:?} still running after {} s; starting other pods meanwhile",
                self.key,
                patience.as_secs()
            );
            self.held = None;
            std::future::pending().await
        };
        let answer = smol::future::or(answer, release).await;
        if answer.is_ok() {
            of.ended(call, clock.now().mono.since(begun), under_way);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a runtime whose calls take `took_ms` with that many in progress: the final limit from an initial one.
    fn ends_at(begins: usize, took_ms: impl Fn(usize) -> usize) -> usize {
        let mut limit = StartLimit { limit: begins as u64 * ONE, calls: Default::default() };
        // One alone, as most starts are.
        limit.ended(StartCall::RunPodSandbox, Duration::from_millis(took_ms(1) as u64), 1);
        for _ in 0..200 {
            let at_once = limit.at_once();
            limit.ended(StartCall::RunPodSandbox, Duration::from_millis(took_ms(at_once) as u64), at_once);
        }
        limit.at_once()
    }

    #[test]
    fn the_limit_follows_what_the_runtime_shows() {
        // A runtime of that many processors: further concurrent calls queue.
        let bound_by = |processors: usize| move |at_once: usize| 200 * at_once.max(processors) / processors;
        for begins in [2, 4, 8, 12] {
            for (what, ends, expected) in [
                ("one processor", ends_at(begins, bound_by(1)), 2..=4),
                ("two processors", ends_at(begins, bound_by(2)), 4..=7),
                ("four processors", ends_at(begins, bound_by(4)), 8..=11),
                ("it waits for the network only", ends_at(begins, |_| 2000), 12..=12),
                ("it takes no time", ends_at(begins, |_| 0), 12..=12),
                ("one after another", ends_at(begins, |at_once| 200 * at_once * at_once), 2..=4),
            ] {
                assert!(expected.contains(&ends), "{what}, from {begins}: {ends}");
            }
        }
    }

    #[test]
    fn the_limit_begins_with_the_processors_and_stays_in_its_bounds() {
        for (processors, at_once) in [(0, 2), (1, 2), (2, 4), (4, 8), (16, 12), (256, 12)] {
            assert_eq!(StartLimit::new(processors).at_once(), at_once, "{processors}");
        }
        let mut limit = StartLimit::new(4);
        for _ in 0..100 {
            limit.ended(StartCall::StartContainer, Duration::from_millis(50), 1);
        }
        assert_eq!(limit.at_once(), 8, "one at a time says nothing of eight");
        for under_way in 1..100 {
            limit.ended(StartCall::StartContainer, Duration::MAX, under_way);
        }
        assert_eq!(limit.at_once(), 2, "and calls that take for ever leave the least");
    }

    #[test]
    fn patience_is_a_multiple_of_the_usual() {
        for (took_ms, patience_ms) in [(0, 2_000), (300, 2_000), (1_000, 4_000), (60_000, 30_000)] {
            let mut limit = StartLimit::new(2);
            assert_eq!(limit.patience(StartCall::RunPodSandbox), START_PATIENCE_MIN);
            limit.ended(StartCall::RunPodSandbox, Duration::from_millis(took_ms), 1);
            assert_eq!(
                limit.patience(StartCall::RunPodSandbox),
                Duration::from_millis(patience_ms),
                "{took_ms}"
            );
            assert_eq!(limit.patience(StartCall::CreateContainer), START_PATIENCE_MIN, "each has its own");
        }
    }
}
