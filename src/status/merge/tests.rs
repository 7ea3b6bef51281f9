//! What a new status takes over from the previous one.

use super::*;
use serde_json::{Value, json};

const NOW: Wall = Wall(1_767_229_200_500_000_000);
const SHOWN_NOW: &str = "2026-01-01T01:00:00Z";
const EARLIER: &str = "2026-01-01T00:00:00Z";

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn text(status: &PodStatus) -> Value {
    serde_json::to_value(status).unwrap()
}

fn running_pod(policy: &str) -> Pod {
    pod(json!({
        "metadata": {"name": "p", "generation": 3},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": "z"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "b"}, {"name": "a"}],
        },
    }))
}

#[test]
fn a_first_status_gets_its_times_and_generation() {
    let fresh = status(json!({"conditions": [{"type": "Ready", "status": "True"}]}));
    let shown = update(&running_pod("Always"), None, fresh, NOW).unwrap().unwrap();
    assert_eq!(
        text(&shown),
        json!({
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": SHOWN_NOW}],
            "observedGeneration": 3,
            "startTime": SHOWN_NOW,
        })
    );
}

#[test]
fn a_condition_keeps_its_time_until_its_status_changes() {
    // (shown before, new, expected time)
    for (before, fresh, expected) in [
        ("True", "True", EARLIER),
        ("True", "False", SHOWN_NOW),
        ("False", "False", EARLIER),
        ("False", "True", SHOWN_NOW),
    ] {
        for kind in TIMED_CONDITIONS {
            let cached = status(json!({
                "startTime": EARLIER,
                "conditions": [{"type": kind, "status": before, "lastTransitionTime": EARLIER}],
            }));
            let fresh = status(json!({"phase": "Running", "conditions": [{"type": kind, "status": fresh}]}));
            let shown = update(&running_pod("Always"), Some(&cached), fresh, NOW).unwrap().unwrap();
            let shown = text(&shown);
            assert_eq!(shown["conditions"][0]["lastTransitionTime"], expected, "{kind}");
            assert_eq!(shown["startTime"], EARLIER, "set once");
        }
    }
}

#[test]
fn foreign_conditions_keep_the_time_they_came_with() {
    let kept = json!([{"type": "example.com/gate", "status": "True", "lastTransitionTime": EARLIER}]);
    let fresh = status(json!({"conditions": kept}));
    let shown = update(&running_pod("Always"), None, fresh, NOW).unwrap().unwrap();
    assert_eq!(text(&shown)["conditions"], kept);
}

#[test]
fn only_what_we_write_counts_as_a_change() {
    let base = json!({
        "phase": "Running",
        "startTime": EARLIER,
        "observedGeneration": 3,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": EARLIER}],
    });
    let cached = status(base.clone());
    let with = |change: Value| {
        let mut value = base.clone();
        for (key, part) in change.as_object().unwrap() {
            value[key] = part.clone();
        }
        status(value)
    };
    for (change, changed) in [
        (json!({}), false),
        (json!({"resourceClaimStatuses": [{"name": "x"}]}), false),
        (json!({"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 9}]}), false),
        (
            json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "example.com/a", "status": "True"}]}),
            false,
        ),
        (json!({"conditions": [{"type": "Ready", "status": "False"}]}), true),
        (json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Because"}]}), true),
        (json!({"conditions": [{"type": "Ready", "status": "True", "message": "so"}]}), true),
        (json!({"conditions": []}), true),
        (json!({"phase": "Failed"}), true),
        (json!({"podIP": "10.0.0.1"}), true),
        (json!({"message": "x"}), true),
        (json!({"qosClass": "Burstable"}), true),
        (json!({"observedGeneration": 2}), false),
    ] {
        let answer = update(&running_pod("Always"), Some(&cached), with(change.clone()), NOW).unwrap();
        assert_eq!(answer.is_some(), changed, "{change}");
    }
    let mut deleted = running_pod("Always");
    deleted.metadata.deletion_timestamp = time(NOW);
    assert!(
        update(&deleted, Some(&cached), with(json!({})), NOW).unwrap().is_some(),
        "its worker waits for it"
    );
}

#[test]
fn a_final_end_stays() {
    let end = |code: i32| json!({"terminated": {"exitCode": code}});
    let containers = |name: &str, state: Value| json!([{"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let init = |state: Value| {
        json!([
            {"name": "z", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ])
    };
    let waiting = json!({"waiting": {}});
    for (policy, field, before, after, legal) in [
        ("Never", "containerStatuses", containers("a", end(0)), containers("a", waiting.clone()), false),
        ("Never", "containerStatuses", containers("a", end(1)), containers("a", waiting.clone()), false),
        ("Never", "containerStatuses", containers("a", end(1)), containers("a", end(1)), true),
        ("Never", "containerStatuses", containers("a", end(1)), json!([]), true),
        ("OnFailure", "containerStatuses", containers("a", end(1)), containers("a", waiting.clone()), true),
        ("OnFailure", "containerStatuses", containers("a", end(0)), containers("a", waiting.clone()), false),
        ("Always", "containerStatuses", containers("a", end(0)), containers("a", waiting.clone()), true),
        ("Never", "initContainerStatuses", init(end(0)), init(waiting.clone()), false),
        ("OnFailure", "initContainerStatuses", init(end(1)), init(waiting.clone()), true),
        ("Never", "initContainerStatuses", containers("other", end(0)), init(waiting.clone()), false),
        ("Never", "initContainerStatuses", init(waiting.clone()), init(end(0)), true),
    ] {
        let (old, new) = (status(json!({field: before})), status(json!({field: after})));
        let answer = update(&running_pod(policy), Some(&old), new, NOW);
        assert_eq!(answer.is_ok(), legal, "{policy} {field} {answer:?}");
    }
}

#[test]
fn statuses_are_ordered_cut_to_seconds_and_messages_share_their_bound() {
    let long = "ä".repeat(TERMINATION_MESSAGES_BYTES_MAX);
    let of = |name: &str, state: Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let fresh = status(json!({
        "containerStatuses": [
            of("b", json!({"terminated": {"exitCode": 1, "message": long, "finishedAt": "2026-01-01T00:00:01.9Z"}})),
            of("a", json!({"running": {"startedAt": "2026-01-01T00:00:01.9Z"}})),
        ],
        "initContainerStatuses": [of("s", json!({"waiting": {}})), of("z", json!({"waiting": {}}))],
    }));
    let shown = update(&running_pod("Always"), None, fresh, NOW).unwrap().unwrap();
    let names = |list: &Option<Vec<ContainerStatus>>| {
        list.iter().flatten().map(|s| s.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&shown.container_statuses), ["a", "b"]);
    assert_eq!(names(&shown.init_container_statuses), ["z", "s"], "spec order");
    let end = terminated(&shown.container_statuses.as_ref().unwrap()[1]).unwrap();
    assert_eq!(end.message.as_ref().unwrap().len(), TERMINATION_MESSAGES_BYTES_MAX / 4, "four containers");
    assert_eq!(end.finished_at.as_ref().unwrap().0.subsec_nanosecond(), 0);
}

#[test]
fn a_pod_that_is_over_has_ended_containers_and_a_terminal_phase() {
    let of = |name: &str, state: Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let wait = json!({"waiting": {}});
    let run = json!({"running": {}});
    let done = json!({"terminated": {"exitCode": 0}});
    // (init statuses, app statuses, phase) → exit codes of z, s, a, b (-1 = not terminated), phase
    for (init, app, phase, codes, ended) in [
        // Never initialised: only the first init container counts as started.
        ([&wait, &wait], [&wait, &wait], "Pending", [137, -1, -1, -1], "Failed"),
        ([&run, &wait], [&wait, &wait], "Pending", [137, -1, -1, -1], "Failed"),
        ([&done, &run], [&wait, &wait], "Pending", [0, 137, -1, -1], "Failed"),
        ([&done, &run], [&run, &wait], "Running", [0, 137, 137, 137], "Failed"),
        ([&done, &done], [&done, &done], "Succeeded", [0, 0, 0, 0], "Succeeded"),
    ] {
        let cached = status(json!({
            "phase": phase,
            "initContainerStatuses": [of("z", init[0].clone()), of("s", init[1].clone())],
            "containerStatuses": [of("a", app[0].clone()), of("b", app[1].clone())],
        }));
        let last = terminate(&running_pod("Never"), Some(&cached), NOW).unwrap();
        let statuses = last.init_container_statuses.iter().chain(&last.container_statuses).flatten();
        let found: Vec<i32> = statuses.map(|s| terminated(s).map_or(-1, |end| end.exit_code)).collect();
        assert_eq!(found, codes);
        assert_eq!(last.phase.as_deref(), Some(ended));
    }
    let mut still = running_pod("Always");
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    still.metadata.annotations = Some([source].into());
    let cached = status(json!({"phase": "Running"}));
    let last = terminate(&still, Some(&cached), NOW).unwrap();
    assert_eq!(last.phase.as_deref(), Some("Running"), "static pods keep theirs");
}

#[test]
fn the_api_is_told_of_an_end_only_when_nothing_runs() {
    let pod = running_pod("Never");
    let old = status(json!({
        "phase": "Running",
        "reason": "r",
        "conditions": [
            {"type": "example.com/a", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": EARLIER},
        ],
        "resourceClaimStatuses": [{"name": "claim"}],
    }));
    let new = status(json!({
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [
            {"type": "example.com/a", "status": "False"},
            {"type": "Ready", "status": "True", "lastTransitionTime": EARLIER},
            {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": EARLIER},
        ],
    }));
    let held = text(&for_api(&pod, &old, new.clone(), true, NOW));
    assert_eq!((&held["phase"], &held["reason"]), (&json!("Running"), &json!("r")));
    assert_eq!(held["resourceClaimStatuses"], json!([{"name": "claim"}]));
    assert_eq!(
        held["conditions"],
        json!([
            {"type": "example.com/a", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": EARLIER},
        ])
    );
    let merged = text(&for_api(&pod, &old, new, false, NOW));
    assert_eq!((&merged["phase"], &merged["reason"]), (&json!("Failed"), &json!("Evicted")));
    let not_ready = |kind: &str| json!({"type": kind, "status": "False", "reason": "PodFailed", "observedGeneration": 3, "lastTransitionTime": SHOWN_NOW});
    assert_eq!(
        merged["conditions"],
        json!([
            {"type": "example.com/a", "status": "True"},
            not_ready("Ready"),
            {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": SHOWN_NOW},
            not_ready("ContainersReady"),
        ])
    );
}
