//! Every bound in one place. Each says what happens when it is reached; const assertions hold the relations.

use std::time::Duration;

/// One KiB.
pub const KIB: usize = 1024;
/// One MiB.
pub const MIB: usize = 1024 * KIB;

// ---- pods ------------------------------------------------------------------------------------------------

/// Pods one node runs (kubelet `maxPods`). Full: a further manifest's pod is refused with a message, what runs stays.
pub const PODS_MAX: usize = 110;

// ---- source ----------------------------------------------------------------------------------------------

// ---- sync ------------------------------------------------------------------------------------------------

/// Longest crash-loop back-off (kubelet `MaxContainerBackOff`).
pub const CRASH_BACKOFF_MAX: Duration = Duration::from_secs(300);
/// How long a failed job of a pod waits before it is tried again (kubelet `backOffPeriod`).
pub const SYNC_RETRY: Duration = Duration::from_secs(10);

// ---- grpc and cri ----------------------------------------------------------------------------------------

/// Kept bytes of each output of an `ExecSync`. Full: the rest is cut.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 16 * KIB;

// ---- images ----------------------------------------------------------------------------------------------

// ---- status and store ------------------------------------------------------------------------------------

// ---- configuration ---------------------------------------------------------------------------------------

/// Bytes of a KubeletConfiguration file. Larger: refused.
pub const CONFIG_FILE_BYTES_MAX: usize = 256 * KIB;
/// Name servers in `clusterDNS`. More: refused.
pub const DNS_SERVERS_MAX: usize = 16;

// ---- node loop -------------------------------------------------------------------------------------------

/// Entries of the ring of decisions and errors. Full: the one touched longest ago goes.
pub const EVENTS_MAX: usize = 512;
/// Bytes of one entry's message. Longer: cut.
pub const EVENT_MESSAGE_BYTES_MAX: usize = 512;
/// Dead containers, and sandboxes, of one pod that are read in full. More: the oldest are left out until they
/// are removed.
pub const CONTAINERS_READ_MAX: usize = 64;

// ---- local server ----------------------------------------------------------------------------------------

// ---- time ------------------------------------------------------------------------------------------------

/// How long any call to the runtime may take when it has no rule of its own (kubelet `runtimeRequestTimeout`).
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
