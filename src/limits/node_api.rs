//! Bounds of the node's own API.

use std::time::Duration;

use super::{K3S_SERVERS_MAX, KIB, MIB, Rate};

/// Connections to the port at once, upgraded ones and logs that are followed included. Full: of those that nobody was let in
/// by yet one is closed, the oldest of the address that has most; where there is none, a further one waits.
pub const NODE_CONNECTIONS_MAX: usize = 32;
/// Of them those from one address that nobody knows, and that nobody was let in by yet. Full: its oldest is closed.
pub const NODE_ADDRESS_CONNECTIONS_MAX: usize = 8;
/// The same of all such addresses: the other places are for k3s tunnels, for this machine itself, and for addresses from which
/// somebody was let in before. Full: the oldest of the address that has most is closed.
pub const NODE_STRANGERS_MAX: usize = 16;
/// Those from one address that is known, or of this machine's own processes, that nobody was let in by yet. Full: the oldest of
/// them is closed, one by which somebody was authenticated last.
pub const NODE_KNOWN_CONNECTIONS_MAX: usize = 8;
/// So many connections of an address that is known are not closed for an unknown one's.
pub const NODE_KNOWN_CONNECTIONS: usize = 4;
/// So many places are for k3s servers that come through their tunnels; others have the rest.
pub const NODE_TUNNEL_CONNECTIONS: usize = 4;
/// Addresses, and networks of IPv6, whose use of this is known. Full: the one that was away for the longest is forgotten, of
/// those from which nobody was let in.
pub const NODE_PEERS_MAX: usize = 64;
/// Of them those from which somebody was let in. Full: the one that was away for the longest is as any other.
pub const NODE_PEERS_KNOWN_MAX: usize = 16;
/// Addresses of servers to which the agent has connected itself, by a verified certificate: they are known to its own API before
/// anybody was let in from there. Full: the one that it has connected to the longest time ago is none of them.
pub const SERVERS_AUTHENTICATED_MAX: usize = K3S_SERVERS_MAX + 1;
/// Microseconds of processor time that an address which nobody knows may take, by handshakes and by requests until somebody is
/// let in. Used up: its next handshakes wait, within `NODE_HANDSHAKE_TIME`.
pub const NODE_HANDSHAKES: Rate = Rate { per_second: 100_000, burst: 1_000_000 };
/// The same of all such addresses.
pub const NODE_HANDSHAKES_OF_STRANGERS: Rate = Rate { per_second: 200_000, burst: 2_000_000 };
/// The same of an address that is known, of this machine itself, and of its tunnels.
pub const NODE_HANDSHAKES_OF_KNOWN: Rate = Rate { per_second: 250_000, burst: 3_000_000 };
/// The same of all of them together. What tunnels take counts, but they do not wait for it.
pub const NODE_HANDSHAKES_IN_ALL: Rate = Rate { per_second: 500_000, burst: 3_000_000 };
/// Of it what each known one has when all of them together have used up theirs.
pub const NODE_HANDSHAKES_GUARANTEED: Rate = Rate { per_second: 14_000, burst: 100_000 };
/// How often the API server is asked whose token it is that comes from an address nobody knows. More: refused (429).
pub const NODE_TOKENS: Rate = Rate { per_second: 1, burst: 8 };
/// The same of all such addresses.
pub const NODE_TOKENS_OF_STRANGERS: Rate = Rate { per_second: 4, burst: 16 };
/// The same of an address that is known, and of this machine itself.
pub const NODE_TOKENS_OF_KNOWN: Rate = Rate { per_second: 20, burst: 40 };
/// Of them those that last for as long as both ends want: logs, commands, forwarded ports. Full: refused (429).
pub const NODE_STREAMS_MAX: usize = 24;
/// Connections to the port that tells `/healthz` alone. Full: the oldest one without a request is closed; where there is none, a
/// further one waits.
pub const HEALTHZ_CONNECTIONS_MAX: usize = 4;
/// Of them those without a request of one address that nobody knows. Full: its oldest is closed.
pub const HEALTHZ_ADDRESS_CONNECTIONS_MAX: usize = 2;
/// The same of all such addresses, and of one origin that is known: this machine's own processes.
pub const HEALTHZ_STRANGERS_MAX: usize = 3;
/// Bytes of a request's head; a command to be run stands in it. Longer: refused (431).
pub const NODE_HEAD_BYTES_MAX: usize = 32 * KIB;
/// How long it may take until somebody is let in: TLS, his request, and what the API server says of him beside it. Longer:
/// closed, unless it is the API server that is waited for.
pub const NODE_HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long a connection may last that is neither upgraded nor shows a log. Longer: closed.
pub const NODE_REQUEST_TIME: Duration = Duration::from_secs(30);
/// A connection that says nothing is asked by the kernel whether it is there still, after so long and then as often;
/// after three times without an answer it is closed, and so is one that takes nothing for as long as that.
pub const NODE_KEEPALIVE: Duration = Duration::from_mins(1);
/// How often, at most, the files of certificates are looked at for new ones: when somebody connects.
pub const NODE_FILES_PERIOD: Duration = Duration::from_mins(1);
/// Bytes of a file of certificates or of a key. Longer: it is not used, and that is said.
pub const NODE_FILE_BYTES_MAX: usize = 256 * KIB;
/// Questions to the API server who somebody is and what he may do, at once: it has room for other calls beside them.
/// Full: further ones wait.
pub const NODE_REVIEWS_MAX: usize = 4;
/// Of them those about tokens that come from addresses nobody knows. Full: further ones wait, and others do not wait with them.
pub const NODE_STRANGERS_REVIEWS_MAX: usize = 2;
/// Users whose token is known, and as many tokens of nobody. Full: the one whose time is over first is asked for again.
pub const NODE_USERS_MAX: usize = 64;
/// Bytes of what is known of a user: his name, groups and what else came with a token. Longer: he is nobody, which is said.
pub const NODE_USER_BYTES_MAX: usize = 4 * KIB;
/// Decisions on who may do what that are known. Full: the one whose time is over first is asked for again.
pub const NODE_DECISIONS_MAX: usize = 256;
/// Bytes of a piece of a container's log on its way.
pub const NODE_LOG_BYTES: usize = 16 * KIB;
/// Entries of a directory that `/logs/` lists. Full: the others are left out.
pub const SYSTEM_LOG_ENTRIES_MAX: usize = 1024;
/// Directories below `/var/log` that a path of `/logs/` goes through, each held by a descriptor. Deeper ones are not found.
pub const SYSTEM_LOG_LEVELS_MAX: usize = 16;
/// A log that grows is read so long after it did: what comes close together goes out together.
pub const NODE_LOG_PAUSE: Duration = Duration::from_millis(10);
/// Bytes on their way in one direction of an upgraded connection. Full: whoever brings more waits.
pub const NODE_SPLICE_BYTES: usize = 16 * KIB;
/// Bytes of the runtime's answer to an upgrade that it refuses. Longer: cut.
pub const NODE_REFUSAL_BYTES_MAX: usize = 4 * KIB;
/// How long the end of a connection may take. Longer: it is cut.
pub const NODE_CLOSE_TIME: Duration = Duration::from_secs(1);
/// Bytes that TLS keeps of a connection on their way out. Full: whoever brings more waits.
pub const NODE_TLS_OUT_BYTES: usize = 18 * KIB;
/// What TLS keeps of what comes in: a handshake's messages until one is whole (rustls' `MAX_HANDSHAKE_SIZE`), later a record.
const NODE_TLS_IN_BYTES: usize = 64 * KIB;
/// The most that a connection keeps; HTTP reads into a buffer and writes from another.
pub const NODE_CONNECTION_BYTES: usize = NODE_TLS_IN_BYTES + NODE_TLS_OUT_BYTES + 2 * NODE_HEAD_BYTES_MAX;
/// What is kept of a user or a decision besides his names: the digest of what was asked, and until when it counts.
pub const NODE_KNOWN_BYTES: usize = 96;

/// Tunnels to k3s servers at once: one to each that is listed, and perhaps one to that which the user names.
pub const TUNNELS_MAX: usize = K3S_SERVERS_MAX + 1;
/// Connections of k3s servers through all of them, at once. Full: refused.
pub const TUNNEL_CONNECTIONS_MAX: usize = NODE_CONNECTIONS_MAX;
/// Bytes of a message through it. Longer: the tunnel is closed, and opened anew.
pub const TUNNEL_MESSAGE_BYTES_MAX: usize = 128 * KIB;
/// Bytes that wait for one of their connections' ends here. More: the server is told to pause.
pub const TUNNEL_PAUSE_BYTES: usize = 64 * KIB;
/// What a piece of them costs besides its bytes.
pub const TUNNEL_PIECE_BYTES: usize = 64;
/// It goes on when fewer are left than this.
pub const TUNNEL_RESUME_BYTES: usize = 16 * KIB;
/// The same of all of them, of all tunnels together. Full: nothing further is read from a tunnel that has its share. What is on
/// its way when a server is told to pause has room.
pub const TUNNEL_QUEUED_BYTES_MAX: usize = MIB;
/// That share, which a tunnel has however many bytes wait for the others.
pub const TUNNEL_QUEUED_BYTES_SHARE: usize = 128 * KIB;
/// Bytes that the kernel keeps for the tunnel: the server's kernel keeps few more.
pub const TUNNEL_WINDOW_BYTES: usize = 64 * KIB;
/// When nothing of them is taken for so long, the connection with the most is given up: the others stand still with it.
pub const TUNNEL_STUCK_TIME: Duration = Duration::from_secs(10);
/// How long what is queued may take when the server has ended a connection. Longer: it is cut.
pub const TUNNEL_DRAIN_TIME: Duration = Duration::from_secs(5);
/// How long the server may keep a connection from sending before it is asked whether it still means it; doubles.
pub const TUNNEL_PAUSED_TIME: Duration = Duration::from_secs(2);
/// The longest such wait.
pub const TUNNEL_PAUSED_MAX: Duration = Duration::from_mins(1);
/// How long that question may stop what the server sends.
pub const TUNNEL_NUDGE_TIME: Duration = Duration::from_secs(1);
/// Frames that wait to be written. Full: whoever brings more waits.
pub const TUNNEL_WRITES_MAX: usize = 4;
/// How often a server is told that the node is there: it waits for a minute (remotedialer's `PingWaitDuration`). All of them
/// at the same instant, so that several wake the node as often as one.
pub const TUNNEL_PING_PERIOD: Duration = Duration::from_secs(20);
/// How long nothing may come. Longer: the tunnel is opened anew.
pub const TUNNEL_SILENCE_MAX: Duration = Duration::from_mins(1);
/// The most that a tunnel keeps besides what its connections have on their way, and what waits for their ends beyond its share:
/// that share, two messages that come, what waits to be written, and TLS.
pub const TUNNEL_BYTES: usize = TUNNEL_QUEUED_BYTES_SHARE
    + 3 * TUNNEL_MESSAGE_BYTES_MAX
    + (TUNNEL_WRITES_MAX + 1) * (NODE_SPLICE_BYTES + KIB)
    + NODE_TLS_IN_BYTES
    + NODE_TLS_OUT_BYTES;

const _: () = assert!(NODE_STREAMS_MAX < NODE_CONNECTIONS_MAX - NODE_TUNNEL_CONNECTIONS);
// Tunnels, which do not wait for the others, and what is guaranteed to these: the addresses that are known, and this machine.
const _: () = assert!(
    NODE_HANDSHAKES_OF_KNOWN.per_second as usize
        + (NODE_PEERS_KNOWN_MAX + 1) * NODE_HANDSHAKES_GUARANTEED.per_second as usize
        <= NODE_HANDSHAKES_IN_ALL.per_second as usize
);
const _: () = assert!(SERVERS_AUTHENTICATED_MAX < NODE_PEERS_KNOWN_MAX);
// Strangers and one known address leave something of the time and of the places.
const _: () = assert!(
    NODE_HANDSHAKES_OF_STRANGERS.per_second + NODE_HANDSHAKES_OF_KNOWN.per_second
        < NODE_HANDSHAKES_IN_ALL.per_second
);
const _: () =
    assert!(NODE_STRANGERS_MAX + NODE_KNOWN_CONNECTIONS_MAX < NODE_CONNECTIONS_MAX - NODE_TUNNEL_CONNECTIONS);
const _: () =
    assert!(NODE_ADDRESS_CONNECTIONS_MAX < NODE_STRANGERS_MAX && NODE_STRANGERS_MAX < NODE_CONNECTIONS_MAX);
const _: () = assert!(HEALTHZ_STRANGERS_MAX < HEALTHZ_CONNECTIONS_MAX);
const _: () =
    assert!(NODE_PEERS_KNOWN_MAX + 2 < NODE_PEERS_MAX && NODE_STRANGERS_REVIEWS_MAX < NODE_REVIEWS_MAX);
const _: () = assert!(NODE_REVIEWS_MAX < super::KUBE_CALLS_MAX);
const _: () = assert!(2 * NODE_SPLICE_BYTES <= NODE_HEAD_BYTES_MAX && NODE_LOG_BYTES <= NODE_HEAD_BYTES_MAX);
const _: () = assert!(NODE_HANDSHAKE_TIME.as_millis() < NODE_REQUEST_TIME.as_millis());
