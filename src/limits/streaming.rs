//! Bounds of `exec`, `attach` and `port-forward`.

use std::time::Duration;

use super::{GRPC_REQUEST_BYTES_MAX, KIB, SERVER_ANSWER_BYTES};

/// Bytes of a command with its arguments that the agent takes on its socket. Longer: refused with a message.
pub const STREAM_COMMAND_BYTES_MAX: usize = 64 * KIB;
/// Bytes of one port or one name in such a request. Longer: refused.
pub const STREAM_URL_BYTES_MAX: usize = 4 * KIB;
/// Ports of one `port-forward`. More: refused.
pub const FORWARDED_PORTS_MAX: usize = 32;
/// Connections that one `port-forward` moves at once. Full: further ones wait in the kernel's queue.
pub const FORWARDED_CONNECTIONS_MAX: usize = 64;

/// Bytes of the head of the streaming server's response. Longer: it is not a streaming server.
pub const STREAM_HEAD_BYTES_MAX: usize = 4 * KIB;
/// Headers in it. More: it is no streaming server.
pub const STREAM_HEADERS_MAX: usize = 64;
/// How long the streaming server may take to accept a connection, and then its streams (the kubelet's
/// `DefaultStreamCreationTimeout`). Longer: the command fails.
pub const STREAM_OPEN_TIME: Duration = Duration::from_secs(30);
/// Bytes of a control frame's payload; a few hundred in fact. Longer: the stream is not SPDY.
pub const STREAM_CONTROL_BYTES_MAX: usize = 64 * KIB;
/// Bytes read of a connection at once. Full: the server waits.
pub const STREAM_BUFFER_BYTES: usize = 64 * KIB;
/// Bytes of one DATA frame that is sent, as kubectl has them: the server buffers fifty frames of a stream.
pub const STREAM_CHUNK_BYTES: usize = 32 * KIB;
/// Chunks of input or output queued between a connection and a file. Full: the sender waits.
pub const STREAM_QUEUE_MAX: usize = 4;
/// Bytes of the error stream's status of an ended command. Longer: the rest is dropped, and the status is shown as unclear.
pub const STREAM_STATUS_BYTES_MAX: usize = 64 * KIB;

const _: () = assert!(STREAM_COMMAND_BYTES_MAX < GRPC_REQUEST_BYTES_MAX);
const _: () = assert!(STREAM_URL_BYTES_MAX < SERVER_ANSWER_BYTES);
// The length of a frame has 24 bits.
const _: () = assert!(STREAM_CHUNK_BYTES < 1 << 24);
