//! Bounds of eviction.

use std::time::Duration;

/// Time between two measurements of memory and disks.
pub const EVICTION_PERIOD: Duration = Duration::from_secs(30);
/// The same when a threshold is near, or was met a while ago (kubelet `evictionMonitoringPeriod`).
pub const EVICTION_PERIOD_NEAR: Duration = Duration::from_secs(10);
/// A threshold is near when less than this many times its quantity is available.
pub const EVICTION_NEAR_TIMES: u64 = 2;
/// How long the next eviction waits for the end of the evicted pod before it (kubelet `podCleanupTimeout`).
pub const EVICTION_CLEANUP_MAX: Duration = Duration::from_secs(30);
/// Bytes of `/proc/meminfo` that are read. More: the rest is not read.
pub const MEMINFO_BYTES_MAX: u64 = 16 * 1024;
const _: () = assert!(EVICTION_PERIOD_NEAR.as_millis() < EVICTION_PERIOD.as_millis());
/// How long a condition holds after its threshold was last met, unless configured (kubelet `evictionPressureTransitionPeriod`).
pub const EVICTION_TRANSITION: Duration = Duration::from_mins(5);
