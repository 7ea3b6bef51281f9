//! Which pod goes first (`rankMemoryPressure`, `rankDiskPressureFunc`, `rankPIDPressure`). PURE.

use std::cmp::Reverse;

/// What is known of a pod's use of what the node is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodUse<'a> {
    /// Its UID, for an order where all else is equal.
    pub uid: &'a str,
    /// `spec.priority`; 0 when not set.
    pub priority: i32,
    /// In bytes, inodes or process IDs; `None` when nothing is known, which counts as the worst.
    pub used: Option<u64>,
    /// Its request; 0 when it has none. Of inodes and process IDs no pod can have one.
    pub requested: u64,
}

impl PodUse<'_> {
    /// Smallest first: no stats, then a use above the request, then the lower priority, then the larger use above it.
    fn order(&self) -> (bool, bool, i32, Reverse<i128>, &str) {
        let used = self.used.unwrap_or_default();
        let above = i128::from(used) - i128::from(self.requested);
        (self.used.is_some(), above <= 0, self.priority, Reverse(above), self.uid)
    }
}

/// Those that may go, the first to go in front. The class is in it as in the kubelet: a `BestEffort` pod always uses more than
/// its request, a Guaranteed one never more.
pub fn rank(pods: &mut [PodUse<'_>]) {
    pods.sort_by(|a, b| a.order().cmp(&b.order()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, priority: i32, used: Option<u64>, requested: u64) -> PodUse<'_> {
        PodUse { uid, priority, used, requested }
    }

    #[test]
    fn pods_go_by_use_above_their_requests_then_priority_then_how_much() {
        let mut pods = [
            pod("guaranteed", 0, Some(100), 100),
            pod("low-below", -5, Some(10), 50),
            pod("little-above", 0, Some(60), 50),
            pod("much-above", 0, Some(90), 50),
            pod("best-effort", 0, Some(45), 0),
            pod("important-above", 1000, Some(900), 0),
            pod("unknown", 5000, None, 0),
            pod("twin-b", 0, Some(5), 10),
            pod("twin-a", 0, Some(5), 10),
        ];
        rank(&mut pods);
        let order: Vec<&str> = pods.iter().map(|pod| pod.uid).collect();
        let wanted = [
            "unknown",
            "best-effort",
            "much-above",
            "little-above",
            "important-above",
            "low-below",
            "guaranteed",
            "twin-a",
            "twin-b",
        ];
        assert_eq!(order, wanted);
    }
}
