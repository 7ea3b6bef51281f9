//! Bounds of graceful node shutdown.

use std::time::Duration;

/// Priorities in `shutdownGracePeriodByPodPriority`. More: refused.
pub const SHUTDOWN_GROUPS_MAX: usize = 16;
/// Longest time of a group. Longer: refused.
pub const SHUTDOWN_GRACE_MAX: Duration = Duration::from_hours(24);
/// Most of a group's time, in seconds, that is for the kill of what ignores SIGTERM and for the end of its sandbox; a fifth of a
/// shorter time, and at least one second.
pub const SHUTDOWN_KILL_SECONDS_MAX: i64 = 2;
/// Shutdown and stop requests queued for the loop. Full: that of a further signal is dropped, and logind's waits.
pub const STOPS_QUEUED_MAX: usize = 4;
/// Wait before the bus is asked for logind again.
pub const LOGIND_RETRY: Duration = Duration::from_secs(30);
/// Inhibitor descriptors of logind that are not taken yet. Full: a further one is closed.
pub const LOGIND_DESCRIPTORS_MAX: usize = 2;

/// How long an agent whose pods have terminated waits, from the shutdown's beginning, for the API server to acknowledge that the
/// node is not ready. Longer: it ends without.
pub const SHUTDOWN_STATUS_WAIT: Duration = Duration::from_secs(3);
