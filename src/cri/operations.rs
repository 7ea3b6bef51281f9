//! Counts calls to the runtime by method. PURE.

use std::time::Duration;

use crate::counters::{Counter, Gauge, Sum};

/// Calls to the runtime by method.
#[derive(Debug, Default)]
pub struct Operations {
    by_method: [Operation; OPERATIONS.len()],
    /// Calls in progress, including those that wait for their turn.
    pub under_way: Gauge,
}

#[derive(Debug, Default)]
struct Operation {
    sum: Sum,
    failed: Counter,
}

/// The CRI method and the kubelet's operation name (`kuberuntime/instrumented_services.go`).
pub(crate) const OPERATIONS: [(&str, &str); 26] = [
    ("Version", "version"),
    ("Status", "status"),
    ("RunPodSandbox", "run_podsandbox"),
    ("StopPodSandbox", "stop_podsandbox"),
    ("RemovePodSandbox", "remove_podsandbox"),
    ("PodSandboxStatus", "podsandbox_status"),
    ("ListPodSandbox", "list_podsandbox"),
    ("CreateContainer", "create_container"),
    ("StartContainer", "start_container"),
    ("StopContainer", "stop_container"),
    ("RemoveContainer", "remove_container"),
    ("UpdateContainerResources", "update_container"),
    ("UpdatePodSandboxResources", "update_podsandbox_resources"),
    ("ContainerStatus", "container_status"),
    ("ListContainers", "list_containers"),
    ("ListContainerStats", "list_container_stats"),
    ("ExecSync", "exec_sync"),
    ("Exec", "exec"),
    ("Attach", "attach"),
    ("PortForward", "port_forward"),
    ("ReopenContainerLog", "reopen_container_log"),
    ("UpdateRuntimeConfig", "update_runtime_config"),
    ("RuntimeConfig", "runtime_config"),
    ("ImageStatus", "image_status"),
    ("PullImage", "pull_image"),
    ("OTHER", "other"),
];

impl Operations {
    /// Records a completed call of `method` (the CRI's name).
    pub fn note(&self, method: &str, took: Duration, failed: bool) {
        let known = OPERATIONS.iter().position(|(name, _)| *name == method);
        let operation = &self.by_method[known.unwrap_or(OPERATIONS.len() - 1)];
        operation.sum.add(took);
        if failed {
            operation.failed.inc();
        }
    }

    /// By the kubelet's operation name: the durations of the calls, and the number of failures.
    pub fn by_method(&self) -> impl Iterator<Item = (&'static str, &Sum, u64)> {
        let words = OPERATIONS.iter().map(|(_, word)| *word);
        words.zip(&self.by_method).map(|(word, operation)| (word, &operation.sum, operation.failed.get()))
    }
}
