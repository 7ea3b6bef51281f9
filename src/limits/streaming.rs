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

/// URLs of the streaming server that nobody has used yet. Full: a further `Exec`, `Attach` or `PortForward` is refused.
pub const STREAM_TOKENS_MAX: usize = 256;
/// How long such a URL is good (the kubelet's `cacheTTL`). Longer: it is refused.
pub const STREAM_TOKEN_TIME: Duration = Duration::from_mins(1);
/// Connections to the streaming server without a token. Full: a further one waits in the kernel's queue.
pub const STREAM_HEADS_MAX: usize = 16;
/// How long one of them may take to send its request. Longer: it is closed.
pub const STREAM_HEAD_TIME: Duration = Duration::from_secs(5);
/// Bytes of the head of such a request; the node API passes on a client's headers. Longer: refused.
pub const SERVED_HEAD_BYTES_MAX: usize = 16 * KIB;
/// Connections with a token. Full: refused (503).
pub const SERVED_STREAMS_MAX: usize = 128;
/// Bytes of a control frame of a client. Longer: the connection is closed.
pub const SERVED_CONTROL_BYTES_MAX: usize = 16 * KIB;
/// Bytes of the headers of one stream, decompressed. More: the connection is closed.
pub const SERVED_HEADER_BYTES_MAX: usize = 8 * KIB;
/// Number of these headers. More: the connection is closed.
pub const SERVED_HEADERS_MAX: usize = 32;
/// Streams of a connection that were opened. More: reset.
pub const SERVED_CHANNELS_MAX: usize = 16;
/// Answers to a client's control frames that are queued for sending. Full: the client is read no further.
pub const SERVED_ANSWERS_MAX: usize = 16;
/// Time between two looks whether a client is still there whose input waits for a command that does not read.
pub const SERVED_CLIENT_PERIOD: Duration = Duration::from_secs(5);
/// Bytes of one size of a terminal, as JSON. Longer: it is dropped.
pub const SERVED_SIZE_BYTES_MAX: usize = 256;
/// How long a command that is killed may take to have a process ID, by its OCI runtime, and its keeper to exit with it. Longer: the keeper
/// is killed.
pub const EXEC_PID_TIME: Duration = Duration::from_secs(5);
/// Time between two looks for it.
pub const EXEC_PID_PERIOD: Duration = Duration::from_millis(5);
/// Processes between the keeper and its command: an OCI runtime may be a script that starts another one.
pub const EXEC_PROCESS_DEPTH_MAX: usize = 8;
/// How long a port of a pod may take to accept a connection. Longer: it is refused.
pub const PORT_CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a client may take to close a connection that has ended. Longer: it is closed here.
pub const STREAM_CLOSE_TIME: Duration = Duration::from_secs(5);

const _: () = assert!(STREAM_COMMAND_BYTES_MAX < GRPC_REQUEST_BYTES_MAX);
const _: () = assert!(STREAM_URL_BYTES_MAX < SERVER_ANSWER_BYTES);
// The length of a frame has 24 bits.
const _: () = assert!(STREAM_CHUNK_BYTES < 1 << 24);
