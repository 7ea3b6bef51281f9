//! Annotations with a pod's source (kubelet `pkg/kubelet/types`). PURE.

use k8s_openapi::api::core::v1::Pod;

/// Annotation: the kind of the pod's source (`file`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Its value for a manifest in a directory.
pub const OF_FILE: &str = "file";
/// Its value for a manifest from a URL.
pub const OF_URL: &str = "http";
/// Its value for a pod of an API server, and the name of that source (`SourceUpdate::source`).
pub const OF_API: &str = "api";
/// Annotation: when the source first saw this manifest, RFC 3339 with nanoseconds (`Timestamp.GetString`).
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: the hash of the whole manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Annotation: the pod is the mirror pod of the static pod with this manifest hash.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// True for a pod of an API server.
pub fn is_of_api_server(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(CONFIG_SOURCE)).is_some_and(|source| source == OF_API)
}
