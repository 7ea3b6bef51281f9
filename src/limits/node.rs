//! Bounds of what is told of the node itself.

use std::time::Duration;

/// How long after the kernel tells of an address or a route the node's addresses are looked at: they come in groups.
pub const ADDRESSES_SETTLE: Duration = Duration::from_millis(500);
/// How long after a look that found nothing new the next one comes at the earliest, while the node has an address: pods that come and
/// go change addresses of the machine, and hundreds of messages a minute may tell of them.
pub const ADDRESSES_PERIOD: Duration = Duration::from_secs(10);
/// How long a runtime that does not answer `Status` well counts as up (`maxWaitForContainerRuntime`).
pub const RUNTIME_PATIENCE: Duration = Duration::from_secs(30);
/// How long the node's status waits for the runtime's. Later: it is told with what the runtime said last.
pub const RUNTIME_STATUS_WAIT: Duration = Duration::from_secs(2);
/// Bytes of one record of the kernel's log (`CONSOLE_EXT_LOG_MAX`). Longer: the kernel refuses the read, and the rest waits.
pub const KMSG_RECORD_BYTES_MAX: usize = 8192;
/// Records that are read at once. More: they are read with the next kill.
pub const KMSG_RECORDS_MAX: usize = 8192;
/// Victims that are told of one look. More: not told.
pub const SYSTEM_OOMS_TOLD_MAX: usize = 16;
