//! Bounds of the node's status.

use std::time::Duration;

/// Wait after a netlink message about an address or a route before the node's addresses are read: the messages come in groups.
pub const ADDRESSES_SETTLE: Duration = Duration::from_millis(500);
/// Least time between two reads of the node's addresses after one that found no change, while the node has an address: pods that
/// come and go change addresses of the machine, with hundreds of messages a minute.
pub const ADDRESSES_PERIOD: Duration = Duration::from_secs(10);
/// Addresses of `--node-external-ip`. More: refused.
pub const NODE_EXTERNAL_ADDRESSES_MAX: usize = 16;
/// Least wait between two searches for the runtime at the agent's start.
pub const RUNTIME_SEARCH_PERIOD: Duration = Duration::from_millis(250);
/// Part of the time waited so far that is waited until the next search, up to [`super::RELIST_RETRY_MAX`]: no more than that is lost
/// of a boot.
pub const RUNTIME_SEARCH_SHARE: u32 = 16;
/// How long a runtime may start while the agent waits for it. Longer: a warning says why it is not found.
pub const RUNTIME_START_PATIENCE: Duration = Duration::from_secs(15);
/// How long a runtime whose `Status` fails counts as up (`maxWaitForContainerRuntime`).
pub const RUNTIME_PATIENCE: Duration = Duration::from_secs(30);
/// How long the node's status waits for the runtime's `Status`. Later: it is reported with the last one.
pub const RUNTIME_STATUS_WAIT: Duration = Duration::from_secs(2);
/// Bytes of one record of `/dev/kmsg` (`CONSOLE_EXT_LOG_MAX`). Longer: the kernel refuses the read, and the rest waits.
pub const KMSG_RECORD_BYTES_MAX: usize = 8192;
/// Records that are read at once. More: they are read with the next OOM kill.
pub const KMSG_RECORDS_MAX: usize = 8192;
/// Victims reported of one read. More: not reported.
pub const SYSTEM_OOM_EVENTS_MAX: usize = 16;
