//! Where a pod's container logs are: on the disk as with the kubelet, or in memory. PURE.

use super::NodeSettings;
use crate::limits::{LOG_BYTES_MIN, LOG_MEMORY_RANGE, LOG_MEMORY_SHARES};
use crate::model::DesiredPod;
use crate::model::quantity::Quantity;
use crate::text::quoted;

/// smolet's own annotation on pods: the memory for the pod's container logs; 0: they are on the disk.
pub const LOG_MEMORY_ANNOTATION: &str = "smolet.io/log-memory";

/// Bytes of memory for the pod's container logs, by its annotation or else the node's default; `None`: they are on the disk.
///
/// A pod of the API server gets at most the node's default: its author is not the node's owner. The default grows with the number
/// of containers, so that each has room for its logs.
///
/// # Errors
/// The annotation has no valid value, too little for the pod's containers, or the node rotates no logs.
pub fn log_memory(node: &NodeSettings, pod: &DesiredPod) -> Result<Option<u64>, String> {
    let containers = pod.init_containers().len() + pod.containers().len();
    let least =
        u64::try_from(containers).unwrap_or(u64::MAX).saturating_mul(LOG_MEMORY_SHARES * LOG_BYTES_MIN);
    let default = node.log_memory.map(|bytes| bytes.max(least));
    let annotations = pod.pod.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(LOG_MEMORY_ANNOTATION)) else { return Ok(default) };
    let wrong = |why: &str| Err(format!("annotation {LOG_MEMORY_ANNOTATION}: {}: {why}", quoted(text)));
    match bytes_of(text) {
        Err(why) => wrong(&why),
        Ok(None) => Ok(None),
        Ok(Some(_)) if !node.rotates_logs => {
            wrong("logs in memory are rotated; set containerLogMaxSize to a positive value on this node")
        }
        Ok(Some(bytes)) if bytes < least => {
            wrong(&format!("must be at least {least} for {containers} containers, or 0 for logs on the disk"))
        }
        Ok(Some(bytes)) if pod.pod.is_of_api_server() => Ok(default.map(|most| bytes.min(most))),
        Ok(Some(bytes)) => Ok(Some(bytes)),
    }
}

/// Bytes of memory for a pod's logs; `None` for 0.
///
/// # Errors
/// What the value must be.
pub fn bytes_of(text: &str) -> Result<Option<u64>, String> {
    let (least, most) = LOG_MEMORY_RANGE;
    let bytes = Quantity::parse(text).ok().and_then(|given| u64::try_from(given.value()).ok());
    match bytes {
        Some(0) => Ok(None),
        Some(bytes) if (least..=most).contains(&bytes) => Ok(Some(bytes)),
        Some(_) | None => Err(format!(
            "must be 0, for logs on the disk, or a quantity between {}Ki and {}Mi",
            least >> 10,
            most >> 20
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::annotations::CONFIG_SOURCE;

    fn pod(annotations: &Value) -> DesiredPod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations},
            "spec": {"containers": [{"name": "c"}]}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn the_annotation_counts_over_the_nodes_default_as_far_as_the_node_allows() {
        let disk = NodeSettings::new("n", "/r");
        let memory = NodeSettings { log_memory: Some(1 << 20), ..disk.clone() };
        let unrotated = NodeSettings { rotates_logs: false, ..disk.clone() };
        let of = |node: &NodeSettings, value: &str, source: &str| {
            log_memory(node, &pod(&json!({LOG_MEMORY_ANNOTATION: value, CONFIG_SOURCE: source})))
        };
        let none = |node| log_memory(node, &pod(&json!({CONFIG_SOURCE: "file"})));
        assert_eq!((none(&disk), none(&memory)), (Ok(None), Ok(Some(1 << 20))));
        assert_eq!(of(&disk, "256Ki", "file"), Ok(Some(256 << 10)));
        assert_eq!(of(&memory, "0", "file"), Ok(None));
        assert_eq!(of(&memory, "2Mi", "file"), Ok(Some(2 << 20)));
        assert_eq!(of(&memory, "512Ki", "api"), Ok(Some(512 << 10)));
        assert_eq!(of(&memory, "2Mi", "api"), Ok(Some(1 << 20)), "as much as the node allows");
        assert_eq!(of(&disk, "2Mi", "api"), Ok(None));
        let many = |annotations: Value| {
            let containers: Vec<Value> = (0..20).map(|n| json!({"name": format!("c{n}")})).collect();
            let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations},
                "spec": {"containers": containers}});
            DesiredPod::new(serde_json::from_value(pod).unwrap())
        };
        let small = NodeSettings { log_memory: Some(64 << 10), ..disk.clone() };
        assert_eq!(log_memory(&small, &many(json!({}))), Ok(Some(20 * 5 * 4096)));
        let error = log_memory(&small, &many(json!({LOG_MEMORY_ANNOTATION: "128Ki"}))).unwrap_err();
        assert!(
            error.ends_with("must be at least 409600 for 20 containers, or 0 for logs on the disk"),
            "{error}"
        );
        for (node, value, source, why) in [
            (&unrotated, "2Mi", "file", "set containerLogMaxSize to a positive value"),
            (&disk, "63Ki", "file", "between 64Ki and 16Mi"),
            (&disk, "17Mi", "file", "between 64Ki and 16Mi"),
            (&disk, "-1", "file", "must be 0"),
            (&disk, "much", "file", "must be 0"),
        ] {
            let error = of(node, value, source).expect_err(value);
            assert!(error.starts_with("annotation smolet.io/log-memory: ") && error.contains(why), "{error}");
        }
    }
}
