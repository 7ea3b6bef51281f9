//! The message of an eviction (`evictionMessage`). PURE.

use std::fmt::Write as _;

use super::Observation;
use super::threshold::{Resource, Threshold};
use crate::model::quantity::{shown_bytes, shown_count};

/// A container's usage of the starved resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerUse<'a> {
    /// Its name.
    pub name: &'a str,
    /// In bytes.
    pub used: u64,
    /// Its request; 0 when it has none.
    pub requested: u64,
}

/// The eviction message: the starved resource, and the containers whose usage exceeds their request. There is no usage per
/// container for inodes and process IDs.
pub fn message(threshold: &Threshold, seen: Observation, containers: &[ContainerUse<'_>]) -> String {
    let resource = threshold.signal.resource();
    let shown = |amount: u64| match resource {
        Resource::Memory | Resource::EphemeralStorage => shown_bytes(amount),
        Resource::Inodes | Resource::Pids => shown_count(amount),
    };
    let name = resource.as_str();
    let mut text = format!(
        "The node was low on resource: {name}. Threshold quantity: {}, available: {}. ",
        shown(threshold.at.of(seen.capacity)),
        shown(seen.available)
    );
    for container in containers.iter().filter(|container| container.used > container.requested) {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "Container {} was using {}, request is {}, has larger consumption of {name}. ",
            container.name,
            shown(container.used),
            shown(container.requested)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::threshold::{Amount, Signal};
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_message_is_the_kubelets() {
        let threshold = |signal, at| Threshold { signal, at, grace: Duration::ZERO, min_reclaim: None };
        let containers = [
            ContainerUse { name: "app", used: 60 << 20, requested: 0 },
            ContainerUse { name: "modest", used: 10 << 20, requested: 20 << 20 },
        ];
        let memory = threshold(Signal::MemoryAvailable, Amount::Quantity(100 << 20));
        let seen = Observation { available: 51_300 << 10, capacity: 1 << 30 };
        assert_eq!(
            message(&memory, seen, &containers),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51300Ki. Container app was \
             using 60Mi, request is 0, has larger consumption of memory. "
        );
        let inodes = threshold(Signal::NodeFsInodesFree, Amount::Share(50_000));
        let seen = Observation { available: 4_999, capacity: 100_000 };
        assert_eq!(
            message(&inodes, seen, &[]),
            "The node was low on resource: inodes. Threshold quantity: 5k, available: 4999. "
        );
    }
}
