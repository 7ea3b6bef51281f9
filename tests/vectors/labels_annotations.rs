//! Set `labels_annotations`: `newPodLabels`, `newContainerAnnotations` and their neighbours.

use serde_json::{Value, json};
use smolet::model::DesiredPod;
use smolet::render::{NodeSettings, labels, paths};

use crate::run_set;

#[test]
fn labels_annotations() {
    let node = NodeSettings::new("node-1", "/var/lib/kubelet");
    run_set("labels_annotations", |case| {
        let pod = DesiredPod::new(serde_json::from_value(case.input["pod"].clone()).expect("a pod"));
        let index = usize::try_from(case.input["containerIndex"].as_u64().unwrap_or_default()).unwrap();
        let container = &pod.containers()[index];
        let restarts = u32::try_from(case.input["restartCount"].as_u64().unwrap_or_default()).unwrap();
        let text = |value: &Value| Box::from(value.as_str().unwrap_or_default());
        let devices: Vec<(Box<str>, Box<str>)> = case.input["devicePluginAnnotations"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| (text(&one["name"]), text(&one["value"])))
            .collect();
        let pod_annotations = labels::pod_annotations(&pod);
        let container_labels = labels::container_labels(&pod, &container.name);
        let annotations = labels::container_annotations(&pod, container, restarts, &devices);
        // What is written must come back, whatever the case.
        let meta = labels::container_meta(&annotations);
        assert_eq!(meta.hash, u64::from(pod.app_hashes[index]));
        assert_eq!(meta.restart_count, restarts);
        assert_eq!(meta.termination_grace_period, pod.spec().termination_grace_period_seconds);
        assert_eq!(meta.deletion_grace_period, pod.pod.metadata.deletion_grace_period_seconds);
        let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.clone());
        assert_eq!(meta.pre_stop_handler.as_deref().and_then(labels::pre_stop_handler), pre_stop);
        let ports = meta.ports.as_deref().and_then(labels::container_ports).unwrap_or_default();
        assert_eq!(ports.len(), container.ports.as_ref().map_or(0, Vec::len));
        let id = case.input["containerID"].as_str().expect("a container id");
        json!({
            "podLabels": labels::pod_labels(&pod),
            "podAnnotations": (!pod_annotations.is_empty()).then_some(pod_annotations),
            "containerLabels": container_labels,
            "containerAnnotations": annotations,
            "podLogsDirectory": paths::pod_logs_dir(&node, &pod.key),
            "containerLogPath": paths::container_log_path(&container.name, restarts),
            "legacyLogSymlink": paths::legacy_log_symlink(&pod.key, &container.name, id),
            "backoffKey": format!("{:x}", smolet::model::backoff::BackoffKey::container(&pod, container).kept()),
        })
    });
}
