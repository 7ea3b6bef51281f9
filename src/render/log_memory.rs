//! Where a pod's container logs are: on the disk as with the kubelet, or in memory. PURE.

use super::NodeSettings;
use crate::limits::LOG_MEMORY_RANGE;
use crate::model::DesiredPod;
use crate::model::quantity::Quantity;
use crate::text::quoted;

/// smolet's own annotation on pods: the memory for the pod's container logs; 0: they are on the disk.
pub const LOG_MEMORY_ANNOTATION: &str = "smolet.io/log-memory";

/// Bytes of memory for the pod's container logs, by its annotation or else the node's default; `None`: they are on the disk.
///
/// A pod of the API server gets no more than the node's default: its author is not the node's owner.
///
/// # Errors
/// The annotation has no valid value, or one that the node does not allow.
pub fn log_memory(node: &NodeSettings, pod: &DesiredPod) -> Result<Option<u64>, String> {
    let annotations = pod.pod.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(LOG_MEMORY_ANNOTATION)) else {
        return Ok(node.log_memory);
    };
    let wrong = |why: &str| Err(format!("annotation {LOG_MEMORY_ANNOTATION}: {}: {why}", quoted(text)));
    let bytes = match bytes_of(text) {
        Ok(bytes) => bytes,
        Err(why) => return wrong(&why),
    };
    match (bytes, node.log_memory) {
        (None, _) => Ok(None),
        (Some(_), _) if !node.rotates_logs => {
            wrong("logs in memory need rotation: containerLogMaxSize is negative on this node")
        }
        (Some(_), None) if pod.pod.is_of_api_server() => {
            wrong("this node keeps logs on its disk; start smolet with --pod-logs-memory to allow it")
        }
        (Some(bytes), Some(most)) if bytes > most && pod.pod.is_of_api_server() => {
            wrong(&format!("this node allows {most} bytes at most (--pod-logs-memory)"))
        }
        (Some(bytes), _) => Ok(Some(bytes)),
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
        for (node, value, source, why) in [
            (&memory, "2Mi", "api", "allows 1048576 bytes at most"),
            (&disk, "2Mi", "api", "--pod-logs-memory"),
            (&unrotated, "2Mi", "file", "containerLogMaxSize is negative"),
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
