//! PURE: detects a shortage of memory, disk, inodes or process IDs, and selects the pod to evict (`pkg/kubelet/eviction`).
//!
//! ```text
//!     observations ─► thresholds that are met ─► conditions (MemoryPressure, DiskPressure), for the transition period
//!                              │ for their grace period, and until the minimum is reclaimed
//!                              ▼
//!                     starved resource, memory first ─► the first pod of the ranking ([`pods`], [`rank`])
//! ```
//!
//! The caller measures the signals, reclaims node-level resources first (unused images, dead containers), and kills the pod.

pub mod local;
pub mod message;
pub mod pods;
pub mod rank;
pub mod threshold;

use std::time::Duration;

use crate::model::Mono;
pub use threshold::{Amount, Signal, Threshold};

/// Hard eviction thresholds, unless configured (kubelet `DefaultEvictionHard`).
pub const EVICTION_HARD: [(Signal, Amount); 5] = [
    (Signal::MemoryAvailable, Amount::Quantity(100 * 1024 * 1024)),
    (Signal::NodeFsAvailable, Amount::Share(100_000)),
    (Signal::NodeFsInodesFree, Amount::Share(50_000)),
    (Signal::ImageFsAvailable, Amount::Share(150_000)),
    (Signal::ImageFsInodesFree, Amount::Share(50_000)),
];

/// A node condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeCondition {
    /// `MemoryPressure`.
    Memory,
    /// `DiskPressure`.
    Disk,
    /// `PIDPressure`.
    Pid,
}

impl NodeCondition {
    /// All of them, in the order of `as usize`.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The condition's type in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

/// A signal's value, in bytes, inodes or process IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Available amount.
    pub available: u64,
    /// Total amount.
    pub capacity: u64,
}

/// The values of all signals, in the order of [`Signal::ALL`]; `None` = unknown, which meets no threshold.
pub type Observations = [Option<Observation>; Signal::ALL.len()];

/// State of the thresholds and conditions between observations.
#[derive(Clone, Debug)]
pub struct Pressure {
    thresholds: Vec<Tracked>,
    /// When each condition's thresholds were last met.
    met_at: [Option<Mono>; NodeCondition::ALL.len()],
    transition: Duration,
}

#[derive(Clone, Debug)]
struct Tracked {
    threshold: Threshold,
    /// Met without interruption since.
    since: Option<Mono>,
    /// Its grace period is over: it stays met until the minimum is reclaimed.
    acts: bool,
}

impl Pressure {
    /// With these thresholds, at most a hard and a soft one for each signal. A condition holds for `transition` after its
    /// threshold was last met (`evictionPressureTransitionPeriod`).
    pub fn new(thresholds: &[Threshold], transition: Duration) -> Self {
        let known = |threshold: &Threshold| Tracked { threshold: *threshold, since: None, acts: false };
        Self { thresholds: thresholds.iter().map(known).collect(), met_at: Default::default(), transition }
    }

    /// Processes an observation (`synchronize`) and returns the threshold to act upon: of the thresholds that are met for their
    /// grace period, one of memory first (`byEvictionPriority`), then a hard one, then in the configured order.
    pub fn observe(&mut self, seen: &Observations, now: Mono) -> Option<Threshold> {
        for known in &mut self.thresholds {
            let met = known.threshold.is_met(seen, known.acts);
            known.since = met.then(|| known.since.unwrap_or(now));
            known.acts = known.since.is_some_and(|since| now.since(since) >= known.threshold.grace);
            if met {
                self.met_at[known.threshold.signal.condition() as usize] = Some(now);
            }
        }
        let acting = self.thresholds.iter().filter(|known| known.acts).map(|known| known.threshold);
        acting.min_by_key(|threshold| (threshold.signal != Signal::MemoryAvailable, !threshold.is_hard()))
    }

    /// True when the condition holds, or held within the transition period.
    pub fn holds(&self, condition: NodeCondition, now: Mono) -> bool {
        self.met_at[condition as usize].is_some_and(|at| now.since(at) < self.transition)
    }

    /// The conditions that hold now.
    pub fn conditions(&self, now: Mono) -> Vec<NodeCondition> {
        NodeCondition::ALL.into_iter().filter(|condition| self.holds(*condition, now)).collect()
    }

    /// True when a threshold of that signal is configured.
    pub fn observes(&self, signal: Signal) -> bool {
        self.thresholds.iter().any(|known| known.threshold.signal == signal)
    }

    /// True when any threshold is configured.
    pub fn is_on(&self) -> bool {
        !self.thresholds.is_empty()
    }

    /// True when less than `times` a threshold's quantity is available: signals are then measured more often.
    pub fn is_near(&self, seen: &Observations, times: u64) -> bool {
        self.thresholds.iter().any(|known| known.threshold.is_near(seen, times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn memory(available: u64) -> Observations {
        let mut seen = Observations::default();
        seen[Signal::MemoryAvailable as usize] = Some(Observation { available, capacity: 1024 * MIB });
        seen
    }

    fn threshold(signal: Signal, grace: u64, min_reclaim: Option<u64>) -> Threshold {
        let (at, min_reclaim) = (Amount::Quantity(100 * MIB), min_reclaim.map(Amount::Quantity));
        Threshold { signal, at, grace: Duration::from_secs(grace), min_reclaim }
    }

    #[test]
    fn a_hard_threshold_acts_at_once_and_its_condition_holds_for_the_transition_period() {
        let mut pressure =
            Pressure::new(&[threshold(Signal::MemoryAvailable, 0, None)], Duration::from_mins(5));
        let holds = |pressure: &Pressure, at| pressure.holds(NodeCondition::Memory, seconds(at));
        assert!(
            pressure.observe(&memory(100 * MIB), seconds(0)).is_none(),
            "exactly the threshold is enough"
        );
        assert!(!holds(&pressure, 0));
        assert!(pressure.observe(&memory(100 * MIB - 1), seconds(30)).is_some());
        assert!(holds(&pressure, 30) && !pressure.holds(NodeCondition::Disk, seconds(30)));
        assert!(pressure.observe(&memory(200 * MIB), seconds(60)).is_none());
        assert!(holds(&pressure, 329) && !holds(&pressure, 330));
    }

    #[test]
    fn a_soft_threshold_acts_after_an_uninterrupted_grace_period() {
        let soft = [threshold(Signal::MemoryAvailable, 90, None)];
        let mut pressure = Pressure::new(&soft, Duration::from_mins(5));
        for (at, available, acts) in [
            (0, 50, false),
            (60, 50, false),
            (90, 50, true),
            (120, 150, false),
            (150, 50, false),
            (210, 50, false),
            (240, 50, true),
        ] {
            let found = pressure.observe(&memory(available * MIB), seconds(at)).is_some();
            assert_eq!(found, acts, "{at} s");
            if available < 100 {
                assert!(
                    pressure.holds(NodeCondition::Memory, seconds(at)),
                    "the condition has no grace period"
                );
            }
        }
    }

    #[test]
    fn an_active_threshold_stays_met_until_the_minimum_is_reclaimed() {
        let hard = [threshold(Signal::MemoryAvailable, 0, Some(50 * MIB))];
        let mut pressure = Pressure::new(&hard, Duration::from_mins(5));
        for (at, available, acts) in
            [(0, 120, false), (30, 99, true), (60, 120, true), (90, 150, false), (120, 120, false)]
        {
            assert_eq!(pressure.observe(&memory(available * MIB), seconds(at)).is_some(), acts, "{at} s");
        }
    }

    #[test]
    fn memory_comes_first_and_what_is_not_known_is_not_met() {
        let all = [threshold(Signal::NodeFsAvailable, 0, None), threshold(Signal::MemoryAvailable, 0, None)];
        let mut pressure = Pressure::new(&all, Duration::ZERO);
        let mut seen = memory(0);
        seen[Signal::NodeFsAvailable as usize] = Some(Observation { available: 0, capacity: 1 });
        let first = pressure.observe(&seen, seconds(0)).map(|threshold| threshold.signal);
        assert_eq!(first, Some(Signal::MemoryAvailable));
        seen[Signal::MemoryAvailable as usize] = None;
        let first = pressure.observe(&seen, seconds(1)).map(|threshold| threshold.signal);
        assert_eq!(first, Some(Signal::NodeFsAvailable));
        assert!(pressure.observe(&Observations::default(), seconds(2)).is_none());
    }

    #[test]
    fn near_means_below_a_multiple_of_the_threshold() {
        let pressure = Pressure::new(&[threshold(Signal::MemoryAvailable, 0, None)], Duration::ZERO);
        assert!(pressure.is_near(&memory(199 * MIB), 2) && !pressure.is_near(&memory(200 * MIB), 2));
    }
}
