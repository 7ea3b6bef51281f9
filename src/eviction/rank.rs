//! Order of eviction (`rankMemoryPressure`, `rankDiskPressureFunc`, `rankPIDPressure`). PURE.

use std::cmp::Reverse;

/// A pod's usage of the starved resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodUse<'a> {
    /// Its UID, to order pods that are otherwise equal.
    pub uid: &'a str,
    /// `spec.priority`; 0 when not set.
    pub priority: i32,
    /// In bytes, inodes or process IDs; `None` when unknown, which ranks first.
    pub used: Option<u64>,
    /// Its request; 0 without one. There are no requests of inodes and process IDs.
    pub requested: u64,
}

impl PodUse<'_> {
    /// Ascending: unknown usage, then usage above the request, then lower priority, then the larger excess.
    fn order(&self) -> (bool, bool, i32, Reverse<i128>, &str) {
        let used = self.used.unwrap_or_default();
        let above = i128::from(used) - i128::from(self.requested);
        (self.used.is_some(), above <= 0, self.priority, Reverse(above), self.uid)
    }
}

/// Sorts candidates, the first to evict in front. The QoS class is implied as in the kubelet: usage of a `BestEffort` pod
/// always exceeds its request, that of a Guaranteed one never.
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
    fn pods_rank_by_usage_above_requests_then_priority_then_amount() {
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
