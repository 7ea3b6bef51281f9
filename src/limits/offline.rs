//! Bounds of the offline copy: what a node of a cluster keeps on its disk for the time without a server.

use std::time::Duration;

use super::{KIB, KUBE_OBJECTS_BYTES_MAX, KUBE_OBJECTS_MAX, KUBE_PODS_MAX, MIB, PODS_BYTES_MAX};

/// Files: the pods, the objects that they reference, the Node. More: the files after them are not read.
pub const OFFLINE_RECORDS_MAX: usize = KUBE_PODS_MAX + KUBE_OBJECTS_MAX + 1;
/// Bytes of one file. Longer: it is not written; when found on the disk it counts as damaged.
pub const OFFLINE_RECORD_BYTES_MAX: usize = PODS_BYTES_MAX;
/// Bytes of all files. Full: a new object is not kept, nor is its earlier version, and its pods wait for the server after a
/// restart; existing files stay.
pub const OFFLINE_BYTES_MAX: usize = 6 * MIB;
/// Bytes of a file besides its content, about: identity, nonce and tag.
const OFFLINE_HEAD_BYTES: usize = KIB;
// The node's pods and objects fit: each is smaller on the disk than in memory, except for an object's file head.
const _: () = assert!(
    PODS_BYTES_MAX + KUBE_OBJECTS_BYTES_MAX + (KUBE_PODS_MAX + 1) * OFFLINE_HEAD_BYTES <= OFFLINE_BYTES_MAX,
    "a node's pods and what they name fit"
);
/// Bytes of pods that are waiting to be written. Full: a further one is not kept until it changes or the agent restarts.
pub const OFFLINE_TREES_BYTES_MAX: usize = MIB;
/// Nesting of a pod (`serde_json`'s own bound). Deeper: it is not kept.
pub const OFFLINE_DEPTH_MAX: usize = 128;
/// Labels or taints of the Node. More: damaged.
pub const OFFLINE_LABELS_MAX: usize = 4 * KIB;
/// How long a change waits for others before it is written.
pub const OFFLINE_SETTLE: Duration = Duration::from_secs(2);
/// Least time between two writes. Terminated pods are removed at once.
pub const OFFLINE_PERIOD: Duration = Duration::from_secs(10);
/// Wait before a failed write is retried.
pub const OFFLINE_RETRY: Duration = Duration::from_mins(1);
/// How long the agent's end waits for the last write of the offline copy.
pub const OFFLINE_END_PATIENCE: Duration = Duration::from_secs(2);
/// How long after the first failed call the offline copy is used. A network that comes up a moment after the agent does not mean
/// that the server is unreachable, and a pod that was deleted meanwhile should not start; a gateway without a link waits no
/// longer for it than for its images' file systems.
pub const OFFLINE_PATIENCE: Duration = Duration::from_secs(5);
/// The same after the start, when no call fails and no response arrives: a link that drops all packets.
pub const OFFLINE_PATIENCE_MAX: Duration = Duration::from_secs(20);
