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

// ---- volumes ---------------------------------------------------------------------------------------------

/// Bytes of the mount table that are read before a pod's directory is removed. Longer: nothing is removed.
pub const MOUNTINFO_BYTES_MAX: usize = 4 * MIB;

// ---- images ----------------------------------------------------------------------------------------------

// ---- status and store ------------------------------------------------------------------------------------

/// Pods taken over from another agent that are remembered. Full: a further one is not remembered, and is ours only
/// as long as a manifest names it.
pub const ADOPTED_MAX: usize = 4 * PODS_MAX;
/// Bytes of the identity file. Larger: damaged.
pub const IDENTITY_FILE_BYTES_MAX: usize = 64 * KIB;
// A UID is 36 bytes or less where anyone makes them; the longest list fits with room for the name.
const _: () = assert!(ADOPTED_MAX * 64 + 512 <= IDENTITY_FILE_BYTES_MAX);

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

/// Connections at once. Full: further ones wait in the kernel's queue.
pub const SERVER_CONNECTIONS_MAX: usize = 8;
/// Bytes of a request's head. Longer: refused.
pub const SERVER_BUFFER_BYTES: usize = 16 * KIB;
/// How long one connection may last. Longer: closed.
pub const SERVER_CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Bytes a command reads of the agent's answer. Longer: refused.
pub const ANSWER_BYTES_MAX: usize = 64 * MIB;

// ---- time ------------------------------------------------------------------------------------------------

/// How long any call to the runtime may take when it has no rule of its own (kubelet `runtimeRequestTimeout`).
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
