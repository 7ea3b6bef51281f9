//! Bounds of the CRI server ([`cri_server`](crate::cri_server)), and of gRPC's server below it.

use std::time::Duration;

use super::{GRPC_REQUEST_BYTES_MAX, KIB, MIB};

/// Connections to the CRI socket at once; the kubelet has two, and crictl two for each command. Full: the oldest one without a call
/// is closed for a further one; when all have calls, it waits in the kernel's queue.
pub const CRI_CONNECTIONS_MAX: usize = 32;
/// Calls of one connection at once; the kubelet has one for each pod's sync. Full: the client waits (HTTP/2's
/// `SETTINGS_MAX_CONCURRENT_STREAMS`).
pub const GRPC_SERVED_CALLS_MAX: u32 = 256;
/// Bytes of all requests that are being read or served. Full: a call fails with `RESOURCE_EXHAUSTED`.
pub const GRPC_SERVED_BYTES_MAX: usize = 8 * MIB;
/// Bytes of one response; grpc-go's clients of the CRI take as many. Over: the call fails with `RESOURCE_EXHAUSTED`.
pub const GRPC_SERVED_ANSWER_BYTES_MAX: usize = 16 * MIB;
/// Bytes of one request's headers. Over: hyper answers 431.
pub const GRPC_SERVED_HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of one response that hyper buffers for a client that does not read. Full: the call's stream is not polled.
pub const GRPC_SERVED_SEND_BYTES_MAX: usize = 64 * KIB;
/// How long the bytes of one request may take to arrive. Longer: the call fails with `DEADLINE_EXCEEDED`.
pub const GRPC_SERVED_REQUEST_TIME: Duration = Duration::from_secs(30);
/// How long a client may take to answer the end of a connection that has no calls, for which another one waits. Longer: it is closed
/// without.
pub const GRPC_SERVED_CLOSE_TIME: Duration = Duration::from_millis(100);
/// Items of one message of a streamed list (`StreamContainers` and the like). More: a further message.
pub const CRI_STREAMED_ITEMS: usize = 32;

const _: () = assert!(GRPC_SERVED_BYTES_MAX >= 2 * GRPC_REQUEST_BYTES_MAX);
