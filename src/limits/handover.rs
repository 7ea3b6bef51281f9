//! Bounds of the pods that a former agent of the node has left.

use super::{ADOPTED_MAX, IDENTITY_FILE_BYTES_MAX, PODS_MAX};

/// Pods of a former agent that a relist keeps until they are adopted. Full: a static pod replaces another one; a further one is
/// left alone until others are adopted or gone.
pub const FORMER_PODS_MAX: usize = PODS_MAX;
/// Distinct container hashes kept of a former agent's pod. More: no manifest's pod adopts it.
pub const FORMER_HASHES_MAX: usize = 16;
/// Bytes of a former agent's pod's UID, which has 36 in Kubernetes. Longer: it is left alone.
pub const FORMER_UID_BYTES_MAX: usize = 64;
/// Bytes of its namespace, name and UID. Longer: it is left alone.
pub const FORMER_KEY_BYTES_MAX: usize = 63 + 253 + FORMER_UID_BYTES_MAX;
/// Memory of one such pod: its key and hashes, and its entry.
pub const FORMER_POD_BYTES_MAX: usize = FORMER_KEY_BYTES_MAX + FORMER_HASHES_MAX * 8 + 192;
/// Pods of manifests that keep the UID with which they were found. Full: a further one gets its own UID.
pub const ADOPTED_UIDS_MAX: usize = PODS_MAX;
// Each has two UIDs.
const _: () = assert!(
    ADOPTED_MAX * 64 + ADOPTED_UIDS_MAX * (2 * FORMER_UID_BYTES_MAX + 16) + 512 <= IDENTITY_FILE_BYTES_MAX
);
