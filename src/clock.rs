//! The clock and the timers as a trait, so that tests and simulation run on virtual time.
//!
//! [`SystemClock`] is the machine's; [`VirtualClock`] advances only when a test moves it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::model::{Mono, Now, Wall};

/// The future of a timer.
pub type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// Source of time. Only `node`, `grpc` and the tasks they start may hold one; pure code gets a [`Now`].
pub trait Clock {
    /// Both clocks, read once.
    fn now(&self) -> Now;

    /// Completes at `at`, immediately when that is past.
    fn sleep_until(&self, at: Mono) -> Sleep;

    /// Id of the boot that the monotonic instants belong to; empty = unknown.
    fn boot_id(&self) -> Box<str>;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now().mono + duration)
    }
}

/// A clock shared on the loop's thread.
pub type SharedClock = Rc<dyn Clock>;

/// The machine's clocks: `CLOCK_BOOTTIME`, which counts suspended time, and `CLOCK_REALTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let nanos = |id| {
            let at = rustix::time::clock_gettime(id);
            at.tv_sec.saturating_mul(1_000_000_000).saturating_add(at.tv_nsec)
        };
        Now {
            mono: Mono(nanos(rustix::time::ClockId::Boottime)),
            wall: Wall(nanos(rustix::time::ClockId::Realtime)),
        }
    }

    fn sleep_until(&self, at: Mono) -> Sleep {
        let after = at.since(self.now().mono);
        Box::pin(async move {
            async_io::Timer::after(after).await;
        })
    }

    fn boot_id(&self) -> Box<str> {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
    }
}

/// A clock that advances only by [`VirtualClock::advance`]. Clones share their time; a test's thread may advance it while the
/// agent's thread sleeps on it.
#[derive(Clone)]
pub struct VirtualClock(Arc<Mutex<VirtualState>>);

struct VirtualState {
    now: Now,
    boots: u32,
    /// Polled sleeps that are neither due nor dropped, by their instant and a number.
    sleepers: BTreeMap<(Mono, u64), Waker>,
    sleeps: u64,
}

impl VirtualClock {
    /// Starts at the given wall time, a minute after boot.
    pub fn new(wall: Wall) -> Self {
        let now = Now { mono: Mono(60_000_000_000), wall };
        Self(Arc::new(Mutex::new(VirtualState { now, boots: 1, sleepers: BTreeMap::new(), sleeps: 0 })))
    }

    /// Advances both clocks and wakes the sleepers that are due.
    pub fn advance(&self, by: Duration) {
        let woken = {
            let mut state = self.state();
            state.now.mono = state.now.mono + by;
            state.now.wall = Wall(state.now.wall.0 + i64::try_from(by.as_nanos()).unwrap_or(i64::MAX));
            let now = state.now.mono;
            let sleeping = state.sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.sleepers, sleeping)
        };
        woken.into_values().for_each(Waker::wake);
    }

    /// Steps only the wall clock, as NTP does on a machine without an RTC.
    pub fn step_wall(&self, by_seconds: i64) {
        let mut state = self.state();
        state.now.wall = Wall(state.now.wall.0 + by_seconds * 1_000_000_000);
    }

    /// The machine reboots while the agent is stopped. The new boot has a new id and is a minute old.
    pub fn reboot(&self) {
        let mut state = self.state();
        state.boots += 1;
        state.now.mono = Mono(60_000_000_000);
    }

    /// The earliest instant of a sleep that is polled and not dropped.
    pub fn next_sleeper(&self) -> Option<Mono> {
        self.state().sleepers.keys().next().map(|(at, _)| *at)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, VirtualState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Now {
        self.state().now
    }

    fn boot_id(&self) -> Box<str> {
        format!("boot {}", self.state().boots).into()
    }

    fn sleep_until(&self, at: Mono) -> Sleep {
        let number = {
            let mut state = self.state();
            state.sleeps += 1;
            state.sleeps
        };
        Box::pin(VirtualSleep { clock: self.clone(), key: (at, number) })
    }
}

/// A sleep on a [`VirtualClock`]. Dropped: the clock forgets it, with the task of its waker.
struct VirtualSleep {
    clock: VirtualClock,
    key: (Mono, u64),
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let former = {
            let mut state = self.clock.state();
            if state.now.mono >= self.key.0 {
                return Poll::Ready(());
            }
            state.sleepers.insert(self.key, cx.waker().clone())
        };
        // Outside the lock: the last waker of a task drops what it held.
        drop(former);
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        let former = self.clock.state().sleepers.remove(&self.key);
        drop(former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_sleep_is_forgotten() {
        let clock = VirtualClock::new(Wall(0));
        let poll = |sleep: &mut Sleep| sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let (mut first, mut second) =
            (clock.sleep(Duration::from_secs(1)), clock.sleep(Duration::from_secs(2)));
        let now = clock.now().mono;
        assert_eq!(clock.next_sleeper(), None, "a sleep begins with its first poll");
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        assert_eq!(clock.next_sleeper(), Some(now + Duration::from_secs(1)));
        drop(first);
        assert_eq!(clock.next_sleeper(), Some(now + Duration::from_secs(2)));
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.next_sleeper(), None, "it was woken");
        assert!(poll(&mut second).is_ready());
    }
}
