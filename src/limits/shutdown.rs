//! Bounds of graceful node shutdown.

use std::time::Duration;

/// Priorities in `shutdownGracePeriodByPodPriority`. More: refused.
pub const SHUTDOWN_GROUPS_MAX: usize = 16;
/// Longest time of a group. Longer: refused.
pub const SHUTDOWN_GRACE_MAX: Duration = Duration::from_hours(24);
/// Words on the machine's or the agent's end that wait for the loop. Full: a further signal's is dropped, and logind's waits.
pub const STOPS_QUEUED_MAX: usize = 4;
/// Wait before the bus is asked for logind again.
pub const LOGIND_RETRY: Duration = Duration::from_secs(30);
/// Descriptors of logind's that are not taken yet. Full: a further one is closed.
pub const LOGIND_DESCRIPTORS_MAX: usize = 2;

/// How long an agent whose pods have ended waits, from the shutdown's beginning, for the API server to take in that the node is
/// not ready. Over: it ends without.
pub const SHUTDOWN_TOLD_WAIT: Duration = Duration::from_secs(3);
