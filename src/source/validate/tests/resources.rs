//! Resources of containers and of the pod.

use super::*;

#[test]
fn resources_of_containers_and_pods() {
    let c = |rest: &str| format!("{C}{rest}");
    each_gives_its_error(vec![
        (
            c("/resources/limits/cpu"),
            json!("1x"),
            "spec.containers[0].resources.limits.cpu: Invalid value: \"1x\": must be a quantity",
        ),
        (
            c("/resources/requests/cpu"),
            json!("-1"),
            "spec.containers[0].resources.requests.cpu: Invalid value: -1: must be 0 or more",
        ),
        (
            c("/resources/requests/cpu"),
            json!("2"),
            "spec.containers[0].resources.requests.cpu: Invalid value: 2: must be at most the limit, 1",
        ),
        (
            c("/resources/requests/disk"),
            json!("1"),
            "spec.containers[0].resources.requests.disk: Invalid value: \"disk\": must be cpu,",
        ),
        (
            c("/resources/requests/hugepages-2Mi"),
            json!("2Mi"),
            "spec.containers[0].resources.requests.hugepages-2Mi: Invalid value: 2Mi: needs a limit",
        ),
        (
            c("/resources/limits/hugepages-2Mi"),
            json!("3Mi"),
            "spec.containers[0].resources.limits.hugepages-2Mi: Invalid value: 3Mi: must be a multiple",
        ),
        (
            "/spec/resources".into(),
            json!({"limits": {"cpu": "4"}, "requests": {"cpu": "1m"}}),
            "spec.resources.requests.cpu: Invalid value: 1m: must be at least what the containers ask for, 100m",
        ),
        (
            "/spec/resources".into(),
            json!({"limits": {"cpu": "500m"}}),
            "spec.containers[0].resources.limits.cpu: Invalid value: 1: must be at most the pod's limit, 500m",
        ),
        (
            "/spec/resources".into(),
            json!({"requests": {"ephemeral-storage": "1"}}),
            "spec.resources.requests.ephemeral-storage: Invalid value: \"ephemeral-storage\": must be cpu, memory or",
        ),
    ]);
}
