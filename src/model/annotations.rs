//! Annotations that say where a pod comes from (kubelet `pkg/kubelet/types`). PURE.

use k8s_openapi::api::core::v1::Pod;

/// Annotation: which kind of source a pod came from (`file`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Its value for a manifest in a directory.
pub const OF_FILE: &str = "file";
/// Its value for a manifest behind a URL.
pub const OF_URL: &str = "http";
/// Its value for a pod of an API server; so the source is called too (`SourceUpdate::source`).
pub const OF_API: &str = "api";
/// Annotation: when the source first saw this manifest, RFC 3339 with nanoseconds (`Timestamp.GetString`).
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: the hash of the whole manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Annotation: the pod is a static pod's copy in an API server, of the manifest with this hash.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The pod comes from an API server, and not from a file.
pub fn is_of_api_server(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(CONFIG_SOURCE)).is_some_and(|source| source == OF_API)
}
