//! Bounds of in-place pod resize.

use std::time::Duration;

use super::KIB;

/// Containers that run with other resources than they were created with. Full: the resize of a further pod waits until one of
/// them restarts.
pub const RESIZES_NOTED_MAX: usize = 512;
/// Memory of one such container: its id and four numbers.
pub const RESIZE_NOTE_BYTES: usize = 160;
/// Allocated and actual resources of resized containers in the checkpoint, of all pods. Full: those of a further pod are not
/// kept; after a restart of the agent it is resized once more, to the same values.
pub const CHECKPOINT_SIZES_MAX: usize = 1024;
/// Pauses between attempts to lower a limit of a pod's cgroup: together longer than the embedded runtime's `CLEAN_UP_PAUSE`.
pub const CGROUP_SHRINK_PAUSES: [Duration; 7] = [
    Duration::from_millis(16),
    Duration::from_millis(32),
    Duration::from_millis(64),
    Duration::from_millis(128),
    Duration::from_millis(256),
    Duration::from_millis(512),
    Duration::from_millis(1024),
];
/// Memory of pods whose resize is pending, by the cost of their manifests: each is kept a second time, as it was allocated. Full:
/// a further one is resized at once, without a check of the node's capacity.
pub const RESIZES_WAITING_BYTES_MAX: usize = 512 * KIB;
