//! Bounds of the node's own API.

use std::time::Duration;

use super::{K3S_SERVERS_MAX, KIB, MIB, Rate};

/// Connections to the port at once, upgraded ones and followed logs included. Full: of the unauthenticated connections the oldest
/// one of the address with the most is closed; when there is none, a further one waits.
pub const NODE_CONNECTIONS_MAX: usize = 32;
/// Unauthenticated connections from one unknown address. Full: its oldest is closed.
pub const NODE_ADDRESS_CONNECTIONS_MAX: usize = 8;
/// Unauthenticated connections of all unknown addresses: the other places are for k3s tunnels, for this machine itself, and for
/// known addresses, from which a client was authenticated before. Full: the oldest of the address with the most is closed.
pub const NODE_UNKNOWN_CONNECTIONS_MAX: usize = 16;
/// Unauthenticated connections from one known address, or of this machine's own processes. Full: the oldest of them is closed,
/// one by which a client was authenticated last.
pub const NODE_KNOWN_CONNECTIONS_MAX: usize = 8;
/// Connections of a known address that are never closed in favour of an unknown one's.
pub const NODE_KNOWN_CONNECTIONS: usize = 4;
/// Places reserved for k3s servers that connect through their tunnels; other clients have the rest.
pub const NODE_TUNNEL_CONNECTIONS: usize = 4;
/// Addresses, and networks of IPv6, whose use of the API is recorded. Full: of the unknown ones the one that has been absent for
/// the longest is dropped.
pub const NODE_PEERS_MAX: usize = 64;
/// Known addresses among them. Full: the one that has been absent for the longest becomes unknown.
pub const NODE_PEERS_KNOWN_MAX: usize = 16;
/// Addresses of servers to which the agent has connected with a verified certificate: its own API treats them as known before a
/// client was authenticated from there. Full: the one with the oldest connection is dropped.
pub const SERVERS_AUTHENTICATED_MAX: usize = K3S_SERVERS_MAX + 1;
/// Microseconds of processor time that an unknown address may use, for handshakes and for requests until a client is
/// authenticated. Used up: its next handshakes wait, within `NODE_HANDSHAKE_TIME`.
pub const NODE_HANDSHAKES: Rate = Rate { per_second: 100_000, burst: 1_000_000 };
/// The same for all unknown addresses.
pub const NODE_HANDSHAKES_OF_UNKNOWN: Rate = Rate { per_second: 200_000, burst: 2_000_000 };
/// The same for a known address, for this machine itself, and for its tunnels.
pub const NODE_HANDSHAKES_OF_KNOWN: Rate = Rate { per_second: 250_000, burst: 3_000_000 };
/// The same for all of them together. The use of tunnels counts, but they do not wait for it.
pub const NODE_HANDSHAKES_IN_ALL: Rate = Rate { per_second: 500_000, burst: 3_000_000 };
/// Share guaranteed to each known one when all of them together have used up theirs.
pub const NODE_HANDSHAKES_GUARANTEED: Rate = Rate { per_second: 14_000, burst: 100_000 };
/// Rate of `TokenReview`s for an unknown address. More: refused (429).
pub const NODE_TOKENS: Rate = Rate { per_second: 1, burst: 8 };
/// The same for all unknown addresses.
pub const NODE_TOKENS_OF_UNKNOWN: Rate = Rate { per_second: 4, burst: 16 };
/// The same for a known address, and for this machine itself.
pub const NODE_TOKENS_OF_KNOWN: Rate = Rate { per_second: 20, burst: 40 };
/// Connections among [`NODE_CONNECTIONS_MAX`] that last for as long as both ends want: logs, exec, port-forward. Full: refused
/// (429).
pub const NODE_STREAMS_MAX: usize = 24;
/// Connections to the port that serves `/healthz` alone. Full: the oldest one without a request is closed; when there is none, a
/// further one waits.
pub const HEALTHZ_CONNECTIONS_MAX: usize = 16;
/// Connections without a request of one unknown address. Full: its oldest is closed.
pub const HEALTHZ_ADDRESS_CONNECTIONS_MAX: usize = 8;
/// The same of all unknown addresses, and of one known origin: this machine's own processes.
pub const HEALTHZ_UNKNOWN_CONNECTIONS_MAX: usize = 12;
/// Bytes of a request's head on that port; a silent connection has no buffer. Longer: refused (431).
pub const HEALTHZ_HEAD_BYTES_MAX: usize = 8 * KIB;
/// Bytes of a request's head, which holds the command of an exec. Longer: refused (431).
pub const NODE_HEAD_BYTES_MAX: usize = 32 * KIB;
/// How long the authentication of a client may take: TLS, its request, and the API server's review. Longer: closed, unless the
/// API server's response is being awaited.
pub const NODE_HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a connection may last that is neither upgraded nor serves a log. Longer: closed.
pub const NODE_REQUEST_TIME: Duration = Duration::from_secs(30);
/// Idle time of a connection before a TCP keepalive probe, and between two of them; after three probes without an answer it is
/// closed, and so is one that reads nothing for as long.
pub const NODE_KEEPALIVE: Duration = Duration::from_mins(1);
/// Least time between two checks of the certificate files for a change; a new connection triggers them.
pub const NODE_FILES_PERIOD: Duration = Duration::from_mins(1);
/// Bytes of a certificate or key file. Longer: it is not used, with a message.
pub const NODE_FILE_BYTES_MAX: usize = 256 * KIB;
/// `TokenReview`s and `SubjectAccessReview`s in flight: the API server's connection has space for other calls beside them. Full:
/// further ones wait.
pub const NODE_REVIEWS_MAX: usize = 4;
/// `TokenReview`s in flight for tokens from unknown addresses. Full: further ones wait; those of other clients do not wait with
/// them.
pub const NODE_UNKNOWN_REVIEWS_MAX: usize = 2;
/// Users of cached tokens, and as many rejected tokens. Full: the entry that expires first is dropped and reviewed again.
pub const NODE_USERS_MAX: usize = 64;
/// Bytes of a cached user: name, UID, groups and extra. Longer: the token is rejected, with a message.
pub const NODE_USER_BYTES_MAX: usize = 4 * KIB;
/// Cached authorization decisions. Full: the entry that expires first is dropped and reviewed again.
pub const NODE_DECISIONS_MAX: usize = 256;
/// Bytes of a chunk of a container's log in flight.
pub const NODE_LOG_BYTES: usize = 16 * KIB;
/// Entries of a directory listing of `/logs/`. Full: the others are left out.
pub const SYSTEM_LOG_ENTRIES_MAX: usize = 1024;
/// Directory levels below `/var/log` that a path of `/logs/` passes, each held open by a descriptor. Deeper: not found.
pub const SYSTEM_LOG_LEVELS_MAX: usize = 16;
/// Wait before a log that grows is read: lines written close together are sent together.
pub const NODE_LOG_PAUSE: Duration = Duration::from_millis(10);
/// Bytes in flight in one direction of an upgraded connection. Full: the sender waits.
pub const NODE_SPLICE_BYTES: usize = 16 * KIB;
/// Bytes of the runtime's response to an upgrade that it refuses. Longer: cut.
pub const NODE_REFUSAL_BYTES_MAX: usize = 4 * KIB;
/// How long the close of a connection may take. Longer: it is reset.
pub const NODE_CLOSE_TIME: Duration = Duration::from_secs(1);
/// Bytes that TLS buffers of a connection's output. Full: the writer waits.
pub const NODE_TLS_OUT_BYTES: usize = 18 * KIB;
/// Bytes that TLS buffers of a connection's input: handshake messages until one is complete (rustls' `MAX_HANDSHAKE_SIZE`), later
/// a record.
const NODE_TLS_IN_BYTES: usize = 64 * KIB;
/// Greatest memory of a connection; HTTP reads into one buffer and writes from another.
pub const NODE_CONNECTION_BYTES: usize = NODE_TLS_IN_BYTES + NODE_TLS_OUT_BYTES + 2 * NODE_HEAD_BYTES_MAX;
/// Bytes of a cached user or decision besides its names: the digest of the request, and the expiry.
pub const NODE_KNOWN_BYTES: usize = 96;

/// Tunnels to k3s servers at once: one to each listed server, and one to the server that the user names.
pub const TUNNELS_MAX: usize = K3S_SERVERS_MAX + 1;
/// Connections of k3s servers through all tunnels, at once. Full: refused.
pub const TUNNEL_CONNECTIONS_MAX: usize = NODE_CONNECTIONS_MAX;
/// Bytes of a tunnel message. Longer: the tunnel is closed and reopened.
pub const TUNNEL_MESSAGE_BYTES_MAX: usize = 128 * KIB;
/// Bytes queued for one local end of a tunnel connection. More: the server is asked to pause.
pub const TUNNEL_PAUSE_BYTES: usize = 64 * KIB;
/// Overhead of a queued piece.
pub const TUNNEL_PIECE_BYTES: usize = 64;
/// A paused connection resumes when fewer bytes than this are queued.
pub const TUNNEL_RESUME_BYTES: usize = 16 * KIB;
/// Bytes queued for all connections of all tunnels. Full: nothing further is read from a tunnel that has its share. Bytes in
/// flight when a server is asked to pause have space.
pub const TUNNEL_QUEUED_BYTES_MAX: usize = MIB;
/// The share of a tunnel, which it has however many bytes are queued for the others.
pub const TUNNEL_QUEUED_BYTES_SHARE: usize = 128 * KIB;
/// Receive buffer of the tunnel's socket: the server's kernel then keeps few more.
pub const TUNNEL_WINDOW_BYTES: usize = 64 * KIB;
/// When no byte of a tunnel's queue is read for this long, the connection with the most bytes is closed: the others are blocked
/// by it.
pub const TUNNEL_STUCK_TIME: Duration = Duration::from_secs(10);
/// How long the queue of a connection that the server has closed may take to drain. Longer: it is cut.
pub const TUNNEL_DRAIN_TIME: Duration = Duration::from_secs(5);
/// How long the server may keep a connection paused before its state is probed; doubles.
pub const TUNNEL_PAUSED_TIME: Duration = Duration::from_secs(2);
/// The longest such wait.
pub const TUNNEL_PAUSED_MAX: Duration = Duration::from_mins(1);
/// How long that probe may pause what the server sends.
pub const TUNNEL_NUDGE_TIME: Duration = Duration::from_secs(1);
/// Frames queued for writing. Full: the sender waits.
pub const TUNNEL_WRITES_MAX: usize = 4;
/// Period of pings to a server, which expects one within a minute (remotedialer's `PingWaitDuration`). All tunnels ping at the
/// same instant, so that several wake the node as often as one.
pub const TUNNEL_PING_PERIOD: Duration = Duration::from_secs(20);
/// How long a tunnel may receive nothing. Longer: it is reopened.
pub const TUNNEL_SILENCE_MAX: Duration = Duration::from_mins(1);
/// Greatest memory of a tunnel besides the bytes that its connections have in flight, and queued bytes beyond its share: that
/// share, two received messages, the frames queued for writing, and TLS.
pub const TUNNEL_BYTES: usize = TUNNEL_QUEUED_BYTES_SHARE
    + 3 * TUNNEL_MESSAGE_BYTES_MAX
    + (TUNNEL_WRITES_MAX + 1) * (NODE_SPLICE_BYTES + KIB)
    + NODE_TLS_IN_BYTES
    + NODE_TLS_OUT_BYTES;

const _: () = assert!(NODE_STREAMS_MAX < NODE_CONNECTIONS_MAX - NODE_TUNNEL_CONNECTIONS);
// Tunnels, which do not wait for the others, and the shares guaranteed to the known addresses and this machine.
const _: () = assert!(
    NODE_HANDSHAKES_OF_KNOWN.per_second as usize
        + (NODE_PEERS_KNOWN_MAX + 1) * NODE_HANDSHAKES_GUARANTEED.per_second as usize
        <= NODE_HANDSHAKES_IN_ALL.per_second as usize
);
const _: () = assert!(SERVERS_AUTHENTICATED_MAX < NODE_PEERS_KNOWN_MAX);
// Unknown addresses and one known address leave some of the time and of the places to the others.
const _: () = assert!(
    NODE_HANDSHAKES_OF_UNKNOWN.per_second + NODE_HANDSHAKES_OF_KNOWN.per_second
        < NODE_HANDSHAKES_IN_ALL.per_second
);
const _: () = assert!(
    NODE_UNKNOWN_CONNECTIONS_MAX + NODE_KNOWN_CONNECTIONS_MAX
        < NODE_CONNECTIONS_MAX - NODE_TUNNEL_CONNECTIONS
);
const _: () = assert!(
    NODE_ADDRESS_CONNECTIONS_MAX < NODE_UNKNOWN_CONNECTIONS_MAX
        && NODE_UNKNOWN_CONNECTIONS_MAX < NODE_CONNECTIONS_MAX
);
const _: () = assert!(HEALTHZ_UNKNOWN_CONNECTIONS_MAX < HEALTHZ_CONNECTIONS_MAX);
const _: () =
    assert!(NODE_PEERS_KNOWN_MAX + 2 < NODE_PEERS_MAX && NODE_UNKNOWN_REVIEWS_MAX < NODE_REVIEWS_MAX);
const _: () = assert!(NODE_REVIEWS_MAX < super::KUBE_CALLS_MAX);
const _: () = assert!(2 * NODE_SPLICE_BYTES <= NODE_HEAD_BYTES_MAX && NODE_LOG_BYTES <= NODE_HEAD_BYTES_MAX);
const _: () = assert!(NODE_HANDSHAKE_TIME.as_millis() < NODE_REQUEST_TIME.as_millis());
