//! The bounds of what a service supervisor is told.

use std::time::Duration;

/// How long `iptables` may take for one chain or rule, its wait for others that use it included. Longer: it is killed, with a message.
pub const IPTABLES_TIME: Duration = Duration::from_secs(10);

/// Least time between two signs of life to the supervisor. It asks for them more often: it gets them so often.
pub const WATCHDOG_PING_MIN: Duration = Duration::from_millis(100);
/// Bytes of the sentence that `systemctl status` shows. Longer: cut.
pub const SERVICE_STATUS_BYTES_MAX: usize = 512;
