//! Bounds of systemd notifications and of `iptables`.

use std::time::Duration;

/// How long `iptables` may take for one chain or rule, its wait for the xtables lock included. Longer: it is killed, with a
/// message.
pub const IPTABLES_TIME: Duration = Duration::from_secs(10);

/// Least time between two watchdog notifications, even when the supervisor asks for more.
pub const WATCHDOG_PING_MIN: Duration = Duration::from_millis(100);
/// Bytes of the `STATUS=` text that `systemctl status` shows. Longer: cut.
pub const SERVICE_STATUS_BYTES_MAX: usize = 512;
