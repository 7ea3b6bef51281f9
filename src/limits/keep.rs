//! Bounds of what a node of a cluster keeps on its disk, for the time without a server.

use std::time::Duration;

use super::{KIB, KUBE_OBJECTS_BYTES_MAX, KUBE_OBJECTS_MAX, KUBE_PODS_MAX, MIB, PODS_BYTES_MAX};

/// Files: the pods, what they name, the Node. More: those that come behind them are not read.
pub const KEPT_RECORDS_MAX: usize = KUBE_PODS_MAX + KUBE_OBJECTS_MAX + 1;
/// Bytes of one file. Longer: it is not written; there, it counts as damaged.
pub const KEPT_RECORD_BYTES_MAX: usize = PODS_BYTES_MAX;
/// Bytes of all files. Full: what comes is not kept, nor what it was before, and its pods wait for the server after a
/// restart; what is there stays.
pub const KEPT_BYTES_MAX: usize = 6 * MIB;
/// Bytes a file has beside its content, about: who and what, nonce and tag.
const KEPT_HEAD_BYTES: usize = KIB;
// What a node holds of them has room: each is smaller there than in memory, an object by as much as its file's head takes.
const _: () = assert!(
    PODS_BYTES_MAX + KUBE_OBJECTS_BYTES_MAX + (KUBE_PODS_MAX + 1) * KEPT_HEAD_BYTES <= KEPT_BYTES_MAX,
    "a node's pods and what they name fit"
);
/// Bytes of pods that are on their way to the disk. Full: a further one is not kept, until it changes or the agent starts
/// anew.
pub const KEPT_TREES_BYTES_MAX: usize = MIB;
/// Nesting of a pod (`serde_json`'s own bound). Deeper: it is not kept.
pub const KEPT_DEPTH_MAX: usize = 128;
/// Labels or taints of the Node. More: damaged.
pub const KEPT_LABELS_MAX: usize = 4 * KIB;
/// How long a change waits for others before it is written.
pub const KEPT_SETTLE: Duration = Duration::from_secs(2);
/// How long the next write waits after one. Pods that ended are taken out at once.
pub const KEPT_PERIOD: Duration = Duration::from_secs(10);
/// How long a write that failed waits.
pub const KEPT_RETRY: Duration = Duration::from_mins(1);
/// How long the agent's end waits for the last write.
pub const KEPT_END_PATIENCE: Duration = Duration::from_secs(2);
/// How long after the first failure what is kept counts. A network that comes up a moment after the agent is no server that
/// is away, and a pod that was deleted meanwhile is better not started; a gateway without a link waits no longer for it than
/// for its images' file systems.
pub const KEPT_PATIENCE: Duration = Duration::from_secs(5);
/// The same after the start, when nothing fails and nothing comes: a link that swallows all.
pub const KEPT_PATIENCE_MAX: Duration = Duration::from_secs(20);
