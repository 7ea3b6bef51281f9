//! Bounds of what a former agent of the node has left.

use super::{ADOPTED_MAX, IDENTITY_FILE_BYTES_MAX, PODS_MAX};

/// Pods of a former agent that a relist keeps until they are taken over. Full: a static one takes the place of another, and a
/// further one is left alone until others are ours, or gone.
pub const FORMER_PODS_MAX: usize = PODS_MAX;
/// Different containers kept of such a pod. More: no manifest's pod is taken for it.
pub const FORMER_HASHES_MAX: usize = 16;
/// Bytes of such a pod's UID, which is 36 where anyone makes them. Longer: it is left alone.
pub const FORMER_UID_BYTES_MAX: usize = 64;
/// Bytes of its namespace, name and UID. Longer: it is left alone.
pub const FORMER_KEY_BYTES_MAX: usize = 63 + 253 + FORMER_UID_BYTES_MAX;
/// Memory one such pod takes: its key and hashes, and what holds them.
pub const FORMER_POD_BYTES_MAX: usize = FORMER_KEY_BYTES_MAX + FORMER_HASHES_MAX * 8 + 192;
/// Pods of manifests that are remembered to keep the UID with which they were found. Full: a further one gets its own.
pub const KEPT_UIDS_MAX: usize = PODS_MAX;
// Each with two UIDs.
const _: () = assert!(
    ADOPTED_MAX * 64 + KEPT_UIDS_MAX * (2 * FORMER_UID_BYTES_MAX + 16) + 512 <= IDENTITY_FILE_BYTES_MAX
);
