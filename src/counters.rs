//! Counters, sums and gauges of one thread: a count is an addition, without a lock or an allocation. PURE.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.0.set(self.0.get().wrapping_add(1));
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// How often something was measured, and the sum.
#[derive(Debug, Default)]
pub struct Sum {
    count: Counter,
    nanos: Cell<u64>,
}

impl Sum {
    /// One more measurement.
    pub fn add(&self, took: Duration) {
        self.count.inc();
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.set(self.nanos.get().saturating_add(nanos));
    }

    /// How often.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// The sum in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.nanos.get()
    }
}

/// How many of something there are at the moment.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Rc<Cell<usize>>);

impl Gauge {
    /// One more, until what is returned is dropped.
    #[must_use]
    pub fn enter(&self) -> Entered {
        self.0.set(self.0.get().saturating_add(1));
        Entered(self.clone())
    }

    /// How many there are.
    pub fn get(&self) -> usize {
        self.0.get()
    }
}

/// One of what a [`Gauge`] counts.
#[derive(Debug)]
pub struct Entered(Gauge);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get().saturating_sub(1));
    }
}
