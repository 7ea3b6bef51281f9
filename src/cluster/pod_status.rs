//! The status of a pod for the API server, and its patch (`PatchPodStatus`). PURE.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Map, Value, json};

use crate::desired::update::RefusedPod;
use crate::model::Wall;
use crate::status::{merge, time};

/// Status fields that a node agent owns: one without a value is removed from the object. An address goes with its list: the server
/// refuses a `hostIP` that is not the first of the `hostIPs` (`validateHostIPs`).
const OWN: &[&str] = &[
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "hostIPs",
    "initContainerStatuses",
    "message",
    "podIP",
    "podIPs",
    "qosClass",
    "reason",
    "startTime",
];

/// Lists that the server merges by a key, and that have to be replaced.
const REPLACED: &[&str] = &["hostIPs", "podIPs"];

/// Optional fields of a condition: the server merges conditions by their type, so that the reason why a pod was not ready would
/// stay after it becomes ready.
const OF_CONDITION: &[&str] = &["message", "reason"];

/// Optional conditions that the node owns.
const OF_A_MOMENT: [&str; 2] = ["PodResizeInProgress", "PodResizePending"];

/// The status has a resize condition.
pub fn tells_of_resize(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| OF_A_MOMENT.contains(&&*condition.type_))
}

/// The status of a pod that this node rejects (`rejectPod`).
pub fn rejection(pod: &RefusedPod, now: Wall) -> PodStatus {
    PodStatus {
        observed_generation: pod.generation.filter(|generation| *generation != 0),
        phase: Some("Failed".to_owned()),
        reason: Some(pod.reason.to_string()),
        message: Some(pod.message.to_string()),
        // `updateStatusInternal`, in whole seconds as all times of a status.
        start_time: time(Wall(now.0 / 1_000_000_000 * 1_000_000_000)),
        ..PodStatus::default()
    }
}

/// The status that the pod has here, for the API server, where the pod ended only if its phase there says so.
pub fn for_api(pod: &Pod, status: PodStatus, may_run: bool, now: Wall) -> PodStatus {
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    merge::for_api(pod, &PodStatus { phase, ..PodStatus::default() }, status, may_run, now)
}

/// The strategic merge patch that sets this status of the pod with that UID. Conditions of other clients stay, because the server
/// merges conditions by their type. With `resized` the resize conditions are removed. On another pod of the same name it fails
/// with a conflict.
pub fn patch(uid: &str, status: &PodStatus, resized: bool) -> Value {
    let mut fields = match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    };
    for field in OWN {
        fields.entry(*field).or_insert(Value::Null);
    }
    for field in REPLACED {
        if let Some(Value::Array(items)) = fields.get_mut(*field) {
            items.insert(0, json!({"$patch": "replace"}));
        }
    }
    let conditions = fields.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        for field in OF_CONDITION {
            condition.entry(*field).or_insert(Value::Null);
        }
    }
    if let Some(Value::Array(conditions)) = fields.get_mut("conditions").filter(|_| resized) {
        for kind in OF_A_MOMENT {
            if !conditions.iter().any(|condition| condition["type"] == kind) {
                conditions.push(json!({"type": kind, "$patch": "delete"}));
            }
        }
    }
    json!({"metadata": {"uid": uid}, "status": fields})
}

/// The `DeleteOptions` that remove the pod with that UID without a grace period.
pub fn deletion(uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": uid},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodCondition, PodIP};

    #[test]
    fn what_is_not_there_any_more_is_taken_away() {
        let status = PodStatus {
            phase: Some("Running".to_owned()),
            pod_ip: Some("10.0.0.1".to_owned()),
            pod_ips: Some(vec![PodIP { ip: "10.0.0.1".to_owned() }]),
            ..PodStatus::default()
        };
        let patch = patch("u", &status, false);
        assert_eq!(patch["metadata"], json!({"uid": "u"}));
        assert_eq!(patch["status"]["phase"], "Running");
        assert_eq!(patch["status"]["podIPs"], json!([{"$patch": "replace"}, {"ip": "10.0.0.1"}]));
        let Value::Object(fields) = &patch["status"] else { panic!("an object") };
        for gone in ["reason", "hostIP", "hostIPs"] {
            assert_eq!(fields.get(gone), Some(&Value::Null), "{gone}");
        }
        assert!(!fields.contains_key("conditions"), "others' conditions are not touched");
    }

    #[test]
    fn why_a_condition_did_not_hold_is_taken_away_with_it() {
        let ready =
            PodCondition { type_: "Ready".to_owned(), status: "True".to_owned(), ..PodCondition::default() };
        let status = PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() };
        let patch = patch("u", &status, false);
        assert_eq!(
            patch["status"]["conditions"],
            json!([{"type": "Ready", "status": "True", "message": null, "reason": null}])
        );
    }

    #[test]
    fn what_was_told_of_a_resize_is_taken_away() {
        let condition = |kind: &str| PodCondition { type_: kind.to_owned(), ..PodCondition::default() };
        let of = |kinds: &[&str]| PodStatus {
            conditions: Some(kinds.iter().map(|kind| condition(kind)).collect()),
            ..PodStatus::default()
        };
        let pending = of(&["Ready", "PodResizePending"]);
        assert!(tells_of_resize(&pending) && !tells_of_resize(&of(&["Ready"])));
        let kinds = |resized| {
            let patch = patch("u", &pending, resized);
            let all = patch["status"]["conditions"].as_array().unwrap().clone();
            all.into_iter().map(|one| (one["type"].clone(), one["$patch"] == "delete")).collect::<Vec<_>>()
        };
        let kept = vec![(json!("Ready"), false), (json!("PodResizePending"), false)];
        assert_eq!(kinds(false), kept);
        assert_eq!(kinds(true), [kept, vec![(json!("PodResizeInProgress"), true)]].concat());
    }
}
