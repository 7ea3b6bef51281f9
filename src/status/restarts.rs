//! Restart counts from a status when the runtime has lost them (a reboot, `crictl rm`). PURE.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::Phase;
use super::rules::{is_running, is_waiting, last_terminated, terminated};

/// Waiting reason of a container in crash back-off.
const CRASHES: &str = "CrashLoopBackOff";

/// The minimum restart counts of the next containers, by container name; containers that never ran are left out.
///
/// The kubelet uses the runtime's record and the log names alone (`startContainer`): when both are gone, its counts restart
/// at 0.
pub fn next_restart_counts(status: &PodStatus) -> impl Iterator<Item = (&str, u32)> {
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let containers = lists.into_iter().flat_map(|list| list.iter().flatten());
    containers
        .map(|container| (container.name.as_str(), next_count(container)))
        .filter(|(_, count)| *count > 0)
}

/// ```text
/// |     runs                                          the shown count is its own: plus one
/// |     terminated, or waits after it, id known       the shown count is that container's: plus one
/// |     terminated unobserved, no id known            the shown count was raised when the end was inferred: unchanged
/// |     never ran                                     the shown count
/// ```
fn next_count(container: &ContainerStatus) -> u32 {
    let end = terminated(container).or_else(|| last_terminated(container));
    let ran = is_running(container) || end.is_some_and(|end| end.container_id.is_some());
    let shown = u32::try_from(container.restart_count).unwrap_or(0);
    // The API's restart count has 31 bits.
    shown.saturating_add(u32::from(ran)).min(i32::MAX.unsigned_abs())
}

/// Changes a status of which no container runs any more, because the machine or its pods ended: nothing is ready, and the pod
/// has no address. The containers' states stay, as their next restart counts come from them.
pub fn end_of_boot(status: &mut PodStatus) {
    if Phase::terminal(status.phase.as_deref()).is_some() {
        return;
    }
    (status.pod_ip, status.pod_ips) = (None, None);
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        container.ready = false;
    }
    for condition in status.conditions.iter_mut().flatten() {
        if ["Ready", "ContainersReady", "PodReadyToStartContainers"].contains(&&*condition.type_) {
            "False".clone_into(&mut condition.status);
        }
    }
}

/// True when the status shows that the container waits for its crash back-off.
pub fn is_in_crash_backoff(status: &PodStatus, container: &str) -> bool {
    let waits = |of: &ContainerStatus| {
        let waiting = of.state.as_ref().and_then(|state| state.waiting.as_ref());
        of.name == container && waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(CRASHES))
    };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().any(waits)
}

/// Counts the containers that ran and of which the runtime has lost the record for the second time in a row.
///
/// The kubelet (`convertToAPIContainerStatuses`) counts such a container only when no earlier termination is shown: one that
/// is lost twice keeps its count, and its next container would have the number of the previous one.
pub fn count_lost_again(previous: &PodStatus, fresh: &mut PodStatus) {
    let lists = [
        (&previous.container_statuses, &mut fresh.container_statuses),
        (&previous.init_container_statuses, &mut fresh.init_container_statuses),
    ];
    for (before, now) in lists {
        for container in now.iter_mut().flatten() {
            let ran = |old: &ContainerStatus| {
                old.name == container.name && is_running(old) && old.restart_count == container.restart_count
            };
            let lost = is_waiting(container)
                && last_terminated(container).is_some_and(|end| end.container_id.is_none());
            if lost && before.iter().flatten().any(ran) {
                container.restart_count = container.restart_count.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_next_count_is_above_that_of_whatever_ran() {
        let end = |id: Value| json!({"terminated": {"exitCode": 1, "containerID": id}});
        let wait = json!({"waiting": {}});
        for (state, last, count, next) in [
            (json!({"running": {}}), json!({}), 3, Some(4)),
            (end(json!("c://x")), json!({}), 3, Some(4)),
            (end(Value::Null), json!({}), 3, Some(3)),
            (wait.clone(), end(json!("c://x")), 3, Some(4)),
            (wait.clone(), end(Value::Null), 3, Some(3)),
            // Its id was dropped because the status was too large.
            (wait.clone(), end(json!("")), 3, Some(4)),
            (wait.clone(), json!({}), 3, Some(3)),
            (wait, json!({}), 0, None),
            (json!({"running": {}}), json!({}), i64::from(i32::MAX), Some(i32::MAX.unsigned_abs())),
            (json!({"running": {}}), json!({}), -7, Some(1)),
        ] {
            let container = json!({"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": count, "state": state, "lastState": last});
            for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
                let status: PodStatus = serde_json::from_value(json!({list: [container]})).unwrap();
                let found: Vec<_> = next_restart_counts(&status).collect();
                assert_eq!(
                    found,
                    next.map(|next| ("c", next)).into_iter().collect::<Vec<_>>(),
                    "{container}"
                );
            }
        }
    }

    #[test]
    fn at_the_end_of_a_boot_nothing_is_ready_and_no_address_stays() {
        let status = |phase: &str| -> PodStatus {
            let container = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 3,
                "state": {"running": {}}});
            let condition = |kind: &str| json!({"type": kind, "status": "True"});
            serde_json::from_value(
                json!({"phase": phase, "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}],
                "containerStatuses": [container], "initContainerStatuses": [container],
                "conditions": [condition("Ready"), condition("ContainersReady"), condition("PodScheduled")]}),
            )
            .unwrap()
        };
        for phase in ["Running", "Pending"] {
            let mut ended = status(phase);
            end_of_boot(&mut ended);
            let shown = serde_json::to_value(&ended).unwrap();
            assert_eq!((shown.get("podIP"), shown.get("podIPs")), (None, None));
            for list in ["containerStatuses", "initContainerStatuses"] {
                assert_eq!(shown[list][0]["ready"], false, "{list}");
            }
            let conditions: Vec<&Value> = (0..3).map(|index| &shown["conditions"][index]["status"]).collect();
            assert_eq!(conditions, ["False", "False", "True"]);
            assert_eq!(next_restart_counts(&ended).collect::<Vec<_>>(), [("c", 4), ("c", 4)]);
        }
        let mut over = status("Succeeded");
        end_of_boot(&mut over);
        assert_eq!(over, status("Succeeded"));
    }

    #[test]
    fn only_a_container_that_waits_for_its_back_off_has_crashed() {
        let crashes = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        for (state, crashed) in [
            (crashes.clone(), true),
            (json!({"waiting": {"reason": "ContainerCreating"}}), false),
            (json!({"waiting": {}}), false),
            (json!({"running": {}}), false),
            (json!({"terminated": {"exitCode": 143}}), false),
            (json!({}), false),
        ] {
            let container = |name: &str, state: &Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": state});
            for list in ["containerStatuses", "initContainerStatuses"] {
                let list = json!({list: [container("other", &crashes), container("c", &state)]});
                let status: PodStatus = serde_json::from_value(list).unwrap();
                assert_eq!(is_in_crash_backoff(&status, "c"), crashed, "{status:?}");
            }
        }
        assert!(!is_in_crash_backoff(&PodStatus::default(), "c"));
    }

    #[test]
    fn what_is_lost_twice_in_a_row_counts_twice() {
        let status = |state: &Value, id: Value, count: i32| -> PodStatus {
            let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": count,
                "state": state, "lastState": {"terminated": {"exitCode": 137, "containerID": id}}});
            serde_json::from_value(json!({"containerStatuses": [container]})).unwrap()
        };
        let (runs, waits) = (json!({"running": {}}), json!({"waiting": {}}));
        for (before, now, expected) in [
            // Lost before, ran again, and is lost again.
            (status(&runs, Value::Null, 1), status(&waits, Value::Null, 1), 2),
            // Counted already when the loss was observed.
            (status(&runs, Value::Null, 1), status(&waits, Value::Null, 2), 2),
            // The earlier termination has a container id: the next count is above it anyway.
            (status(&runs, json!("c://x"), 1), status(&waits, json!("c://x"), 1), 1),
            (status(&waits, Value::Null, 1), status(&waits, Value::Null, 1), 1),
            (status(&runs, Value::Null, 1), status(&runs, Value::Null, 1), 1),
        ] {
            let mut fresh = now;
            count_lost_again(&before, &mut fresh);
            let counted = fresh.container_statuses.as_ref().unwrap()[0].restart_count;
            assert_eq!(counted, expected, "{fresh:?}");
        }
    }
}
