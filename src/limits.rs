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

/// Calls running at once on the connection. Full: a further call waits, within its deadline.
pub const GRPC_CALLS_MAX: usize = 128;
/// Bytes of one encoded request. Over: the call fails before anything is sent.
pub const GRPC_REQUEST_BYTES_MAX: usize = 4 * MIB;
/// Bytes of one answer that is kept whole (lists and `ExecSync` are not). Over: the call fails and is reset.
/// The kubelet takes 16 MiB; decoded messages may need ten times their bytes, so that is too much here.
pub const GRPC_ANSWER_BYTES_MAX: usize = MIB;
/// Bytes of one item of a list. Over: skipped and counted in a list of everything, an error in a pod's own list.
/// The API allows 256 KiB of annotations.
pub const CRI_ITEM_BYTES_MAX: usize = 512 * KIB;
/// Bytes of an error status' message. Over: cut.
pub const GRPC_STATUS_MESSAGE_BYTES_MAX: usize = 4 * KIB;
/// Bytes of one answer's headers or trailers (error messages stand there). Over: HTTP/2 resets the call.
pub const GRPC_HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of one HTTP/2 frame (the protocol's minimum).
pub const GRPC_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Unread bytes of one call. Full: the server waits with this call.
pub const GRPC_WINDOW_STREAM_BYTES: u32 = 64 * 1024;
/// Unread bytes of all calls. Full: the server waits with all calls.
pub const GRPC_WINDOW_CONNECTION_BYTES: u32 = 1024 * 1024;
/// Messages that wait to be sent in one bidirectional call. Full: sending waits.
pub const GRPC_QUEUE_MAX: usize = 4;
/// Streams that nobody reads may fill their windows and still leave the other calls room.
const _: () = assert!(GRPC_WINDOW_CONNECTION_BYTES >= 8 * GRPC_WINDOW_STREAM_BYTES);

/// Bytes of an id in the runtime. Over: the item is skipped, a status is refused.
pub const CRI_ID_BYTES_MAX: usize = KIB;
/// Bytes of a name, reason, image or address the runtime reports. Over: cut.
pub const CRI_TEXT_BYTES_MAX: usize = KIB;
/// Bytes of a message the runtime reports (the kubelet's `MaxContainerTerminationMessageLength`). Over: cut.
pub const CRI_MESSAGE_BYTES_MAX: usize = 4 * KIB;
/// Bytes of a JSON annotation (preStop handler, ports). Over: counts as absent, because half of it is no JSON.
pub const CRI_JSON_BYTES_MAX: usize = 64 * KIB;
/// Entries of a list within one reported object (tags, addresses, groups, conditions). Over: the rest is dropped.
pub const CRI_ENTRIES_MAX: usize = 256;

/// Bytes of a Unix socket's path (`sun_path` less its end mark). Over: refused with a message.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Bytes read of crictl's settings. Over: the rest is not looked at.
pub const CRICTL_CONFIG_BYTES_MAX: u64 = 64 * 1024;

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
/// Bytes of termination messages one pod's status shows, shared evenly by its containers (kubelet
/// `MaxPodTerminationMessageLogLength`). Full: each message is cut to its share.
pub const TERMINATION_MESSAGES_BYTES_MAX: usize = 12 * KIB;

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

/// How long the runtime's socket may take to accept a connection (kubelet `minConnectionTimeout`).
pub const GRPC_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after a first failed connection (kubelet `baseBackoffDelay`); doubles with each further one.
pub const GRPC_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two attempts to connect (kubelet `maxBackoffDelay`).
pub const GRPC_BACKOFF_MAX: Duration = Duration::from_secs(3);
/// How long a runtime may take for its first answer before it counts as silent.
pub const ENDPOINT_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
