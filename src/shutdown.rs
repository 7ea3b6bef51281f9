//! Graceful node shutdown: the order in which pods are terminated, and their time (`pkg/kubelet/nodeshutdown`). PURE.
//!
//! ```text
//!     groups by priority, each with its time: 0 ─ 20 s, 1000 ─ 5 s, 2000000000 ─ 10 s
//!     lowest first: all pods of a group at once ─► all have terminated, or its time has elapsed ─► the next group
//! ```
//!
//! | a pod's priority | its group |
//! |---|---|
//! | that of a group | that one |
//! | between those of two groups | the lower one |
//! | below all | the lowest |
//! | above all | the highest |

use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;

use crate::eviction::pods::SYSTEM_CRITICAL_PRIORITY;
use crate::limits::{SHUTDOWN_GRACE_MAX, SHUTDOWN_GROUPS_MAX, SHUTDOWN_KILL_SECONDS_MAX};
use crate::model::Seconds;

/// Reason of a pod that the shutdown terminated (`nodeShutdownReason`).
pub const TERMINATED: &str = "Terminated";
/// Its message.
pub const TERMINATED_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Reason of a pod that is rejected during the shutdown (`NodeShutdownNotAdmittedReason`).
pub const REFUSED: &str = "NodeShutdown";
/// Its message.
pub const REFUSED_MESSAGE: &str = "Pod was rejected as the node is shutting down.";

/// The pods from this priority up to the next group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// Its least priority.
    pub priority: i32,
    /// Time for all of its pods together, and for each at most.
    pub grace: Seconds,
}

/// The groups in the order of termination; none = the shutdown is not delayed, and pods are not terminated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownGroups(Box<[ShutdownGroup]>);

impl ShutdownGroups {
    /// From `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, which is part of it (`migrateConfig`). Whole seconds.
    ///
    /// # Errors
    /// A sentence (`ValidateKubeletConfiguration`).
    pub fn of_periods(all: Duration, critical: Duration) -> Result<Self, String> {
        for (name, period) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
            let too_short = !period.is_zero() && period < Duration::from_secs(1);
            if too_short || period > SHUTDOWN_GRACE_MAX {
                return Err(format!(
                    "{name}: {} s: must be 0 or between 1 s and {} s",
                    period.as_secs_f64(),
                    SHUTDOWN_GRACE_MAX.as_secs()
                ));
            }
        }
        let Some(others) = all.checked_sub(critical) else {
            return Err(format!(
                "shutdownGracePeriodCriticalPods: {} s: must be at most shutdownGracePeriod, {} s, of which it is a part",
                critical.as_secs_f64(),
                all.as_secs_f64()
            ));
        };
        if all.is_zero() {
            return Ok(Self::default());
        }
        let group = |priority, grace: Duration| ShutdownGroup {
            priority,
            grace: Seconds(i64::try_from(grace.as_secs()).unwrap_or(i64::MAX)),
        };
        Ok(Self(Box::new([group(0, others), group(SYSTEM_CRITICAL_PRIORITY, critical)])))
    }

    /// From `shutdownGracePeriodByPodPriority`, in any order.
    ///
    /// # Errors
    /// A sentence.
    pub fn of_priorities(mut groups: Vec<ShutdownGroup>) -> Result<Self, String> {
        const NAME: &str = "shutdownGracePeriodByPodPriority";
        if groups.len() > SHUTDOWN_GROUPS_MAX {
            return Err(format!("{NAME}: at most {SHUTDOWN_GROUPS_MAX} priorities"));
        }
        let most = SHUTDOWN_GRACE_MAX.as_secs();
        let within = |group: &&ShutdownGroup| u64::try_from(group.grace.0).is_ok_and(|grace| grace <= most);
        if let Some(group) = groups.iter().find(|group| !within(group)) {
            let grace = group.grace.0;
            return Err(format!("{NAME}: shutdownGracePeriodSeconds: {grace}: must be between 0 and {most}"));
        }
        groups.sort_by_key(|group| group.priority);
        if let Some(pair) = groups.windows(2).find(|pair| pair[0].priority == pair[1].priority) {
            return Err(format!("{NAME}: priority: {}: is listed twice", pair[0].priority));
        }
        Ok(Self(groups.into()))
    }

    /// True when none is configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The group at that index.
    pub fn get(&self, place: usize) -> Option<ShutdownGroup> {
        self.0.get(place).copied()
    }

    /// Time of the groups that need none, for the one that begins first. `needs`: there are pods of the group at that index.
    ///
    /// Differs from the kubelet (`killPods`), whose nodes go down without having used the time of groups without pods.
    pub fn spare(&self, needs: impl Fn(usize) -> bool) -> Seconds {
        let spare =
            self.0.iter().enumerate().filter(|(place, _)| !needs(*place)).map(|(_, group)| group.grace.0);
        Seconds(spare.fold(0, i64::saturating_add))
    }

    /// Index of the group for that priority (`groupByPriority`).
    pub fn place_of(&self, priority: i32) -> usize {
        self.0.iter().rposition(|group| group.priority <= priority).unwrap_or_default()
    }

    /// Time of all groups (`periodRequested`).
    pub fn all(&self) -> Duration {
        let seconds = self.0.iter().map(|group| u64::try_from(group.grace.0).unwrap_or_default());
        Duration::from_secs(seconds.fold(0, u64::saturating_add))
    }
}

impl ShutdownGroup {
    /// A pod's time until its containers are killed: at most its grace period, and less than the group's time, so that nothing
    /// of it is left when that is over.
    ///
    /// Differs from the kubelet (`killPods`), which gives all of the group's time: the kill of what ignores SIGTERM falls due when
    /// nobody waits for it any more.
    pub fn grace_of(self, spec: Option<&PodSpec>) -> Seconds {
        let most = (self.grace.0 - (self.grace.0 / 5).clamp(1, SHUTDOWN_KILL_SECONDS_MAX)).max(0);
        let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
        Seconds(own.map_or(most, |own| own.min(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn groups(of: &[(i32, i64)]) -> ShutdownGroups {
        let group = |&(priority, grace)| ShutdownGroup { priority, grace: Seconds(grace) };
        ShutdownGroups(of.iter().map(group).collect())
    }

    /// The kubelet's table (`Test_migrateConfig`), and invalid values.
    #[test]
    fn two_periods_are_two_groups() {
        for (all, critical, expected) in [
            (300, 120, Ok(groups(&[(0, 180), (SYSTEM_CRITICAL_PRIORITY, 120)]))),
            (100, 0, Ok(groups(&[(0, 100), (SYSTEM_CRITICAL_PRIORITY, 0)]))),
            (0, 0, Ok(groups(&[]))),
            (1, 100, Err("shutdownGracePeriodCriticalPods: 100 s: must be at most shutdownGracePeriod, 1 s")),
            (0, 1, Err("shutdownGracePeriodCriticalPods: 1 s: must be at most shutdownGracePeriod, 0 s")),
            (90_000, 0, Err("shutdownGracePeriod: 90000 s: must be 0 or between 1 s and 86400 s")),
        ] {
            let got = ShutdownGroups::of_periods(seconds(all), seconds(critical));
            match (&got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(*got, expected),
                (Err(got), Err(expected)) => assert!(got.starts_with(expected), "{got}"),
                (got, expected) => panic!("{all} {critical}: {got:?} instead of {expected:?}"),
            }
        }
        let short = ShutdownGroups::of_periods(seconds(10), Duration::from_millis(500)).unwrap_err();
        assert!(
            short.contains("shutdownGracePeriodCriticalPods: 0.5 s: must be 0 or between 1 s"),
            "{short}"
        );
        assert_eq!(groups(&[(0, 180), (SYSTEM_CRITICAL_PRIORITY, 120)]).all(), seconds(300));
    }

    #[test]
    fn priorities_are_sorted_and_unique() {
        let group = |priority, grace| ShutdownGroup { priority, grace: Seconds(grace) };
        let sorted = ShutdownGroups::of_priorities(vec![group(5, 1), group(-3, 2), group(0, 0)]);
        assert_eq!(sorted, Ok(groups(&[(-3, 2), (0, 0), (5, 1)])));
        for (given, why) in [
            (vec![group(1, 1), group(1, 2)], "priority: 1: is listed twice"),
            (vec![group(1, -1)], "shutdownGracePeriodSeconds: -1: must be between 0 and 86400"),
            (vec![group(1, 86_401)], "shutdownGracePeriodSeconds: 86401: must be between"),
            (vec![group(1, 1); SHUTDOWN_GROUPS_MAX + 1], "at most 16 priorities"),
        ] {
            let got = ShutdownGroups::of_priorities(given).unwrap_err();
            assert!(got.contains(why), "{got}");
        }
    }

    /// The kubelet's table (`Test_groupByPriority`).
    #[test]
    fn a_pod_is_in_the_group_at_or_below_its_priority() {
        const HIGHEST_OF_USERS: i32 = 1_000_000_000;
        let migrated = groups(&[(0, 180), (SYSTEM_CRITICAL_PRIORITY, 120)]);
        let four = groups(&[(1, 10), (10, 20), (100, 30), (1000, 40)]);
        for (groups, priority, place) in [
            (&migrated, 0, 0),
            (&migrated, HIGHEST_OF_USERS, 0),
            (&migrated, SYSTEM_CRITICAL_PRIORITY, 1),
            (&migrated, SYSTEM_CRITICAL_PRIORITY + 1000, 1),
            (&migrated, -1, 0),
            (&four, 0, 0),
            (&four, 1, 0),
            (&four, 2, 0),
            (&four, 9, 0),
            (&four, 10, 1),
            (&four, 99, 1),
            (&four, 100, 2),
            (&four, 999, 2),
            (&four, 1000, 3),
            (&four, 1001, 3),
            (&four, i32::MIN, 0),
            (&four, i32::MAX, 3),
        ] {
            assert_eq!(groups.place_of(priority), place, "{priority} in {groups:?}");
        }
    }

    #[test]
    fn a_pods_time_is_its_grace_period_and_ends_before_its_groups() {
        let group = |grace| ShutdownGroup { priority: 0, grace: Seconds(grace) };
        let spec = |grace| PodSpec { termination_grace_period_seconds: grace, ..PodSpec::default() };
        for (own, grace) in
            [(None, 18), (Some(5), 5), (Some(0), 0), (Some(18), 18), (Some(20), 18), (Some(30), 18)]
        {
            assert_eq!(group(20).grace_of(Some(&spec(own))), Seconds(grace), "{own:?}");
        }
        for (all, grace) in [(0, 0), (1, 0), (3, 2), (5, 4), (9, 8), (10, 8), (300, 298)] {
            assert_eq!(group(all).grace_of(None), Seconds(grace), "of {all} s");
        }
    }

    #[test]
    fn time_that_a_group_does_not_need_is_spare() {
        let three = groups(&[(0, 20), (1000, 5), (2_000_000_000, 10)]);
        for (needing, spare) in [(&[0, 1, 2][..], 0), (&[0], 15), (&[0, 2], 5), (&[2], 25), (&[], 35)] {
            assert_eq!(three.spare(|place| needing.contains(&place)), Seconds(spare), "{needing:?}");
        }
    }
}
