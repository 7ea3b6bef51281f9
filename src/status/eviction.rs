//! The status of an evicted pod, and whether the pod may start again. PURE.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::merge::SHARED_CONDITION;
use super::{Phase, time};
use crate::model::Wall;

/// `eviction.Reason`.
pub const EVICTED: &str = "Evicted";
/// The condition's reason when a pod was terminated because its node was short of a resource
/// (`PodReasonTerminationByKubelet`).
const TERMINATED: &str = "TerminationByKubelet";

/// Sets the pod to Failed with reason Evicted (`evictPod`). `for_the_node`: the node was short of a resource, rather than
/// the pod exceeding one of its own limits.
pub fn evict(status: &mut PodStatus, message: &str, for_the_node: bool, now: Wall) {
    status.phase = Some(Phase::Failed.as_str().to_owned());
    status.reason = Some(EVICTED.to_owned());
    status.message = Some(message.to_owned());
    if for_the_node {
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != SHARED_CONDITION);
        conditions.push(PodCondition {
            type_: SHARED_CONDITION.to_owned(),
            status: "True".to_owned(),
            reason: Some(TERMINATED.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: time(now),
            ..PodCondition::default()
        });
    }
}

/// True when the pod was evicted because its node was short of a resource: it may start again. A pod that exceeded a limit
/// would only exceed it again.
pub fn was_for_the_node(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    status.reason.as_deref() == Some(EVICTED)
        && conditions.any(|condition| {
            condition.type_ == SHARED_CONDITION && condition.reason.as_deref() == Some(TERMINATED)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_broke_a_limit_is_told_from_one_that_had_to_go() {
        let (mut limit, mut node) = (PodStatus::default(), PodStatus::default());
        evict(&mut limit, "too much", false, Wall(0));
        for again in [1, 2] {
            evict(&mut node, "too little", true, Wall(again));
        }
        assert!(
            !was_for_the_node(&limit) && was_for_the_node(&node) && !was_for_the_node(&PodStatus::default())
        );
        assert_eq!(node.conditions.as_ref().map(Vec::len), Some(1));
        for status in [limit, node] {
            assert_eq!(
                (status.phase.as_deref(), status.reason.as_deref()),
                (Some("Failed"), Some("Evicted"))
            );
        }
    }
}
