//! Bounds of the list of k3s servers, and of the load balancer before them.

use std::time::Duration;

use super::{CERTIFICATE_CHECK_PERIOD, KIB, MIB};

/// Servers of a cluster besides the one that the user names: etcd goes to seven. More: the last ones in alphabetical order are
/// skipped with a message.
pub const K3S_SERVERS_MAX: usize = 8;
/// Bytes of the list of servers. Longer: the list is refused.
pub const K3S_LIST_BYTES_MAX: usize = 16 * KIB;
/// Bytes of one server: a name, a colon and a port. Longer: it is skipped.
pub const K3S_SERVER_BYTES_MAX: usize = 253 + 6;
/// How often the list is fetched: a little sooner than the certificates are checked, so that both are done at once.
pub const K3S_LIST_PERIOD: Duration = CERTIFICATE_CHECK_PERIOD.saturating_sub(Duration::from_secs(1));
/// Wait before the list is fetched after a tunnel is lost: by then the cluster has removed a dead server from it (`kubernetes`
/// endpoints: 15 s).
pub const K3S_LOST_WAIT: Duration = Duration::from_secs(30);
/// Least time between two changes of the server because of 503 (not ready).
pub const K3S_UNREADY_WAIT: Duration = Duration::from_secs(10);

/// How long `modprobe` may take for one module. Longer: it is killed, with a message.
pub const MODPROBE_TIME: Duration = Duration::from_secs(10);

/// Connections through the load balancer at once. Full: further ones wait in the kernel's queue.
pub const K3S_BALANCER_CONNECTIONS_MAX: usize = 64;
/// Bytes that are moved at once, in each direction of a connection.
pub const K3S_BALANCER_PIECE_BYTES: usize = 8 * KIB;
/// How long the other side of a connection may go on when one side has ended. Longer: closed.
pub const K3S_BALANCER_HALF_CLOSED_TIME: Duration = Duration::from_mins(1);
/// Silence after which a server is asked whether it is there, and the time between the questions; the kernel asks nine times.
pub const K3S_BALANCER_KEEPALIVE: Duration = Duration::from_secs(10);
/// Wait before a port that somebody else has is tried again.
pub const K3S_BALANCER_RETRY: Duration = Duration::from_mins(1);

/// How long `smolet k3s takeover` waits for a unit to be active. Later: k3s agent is started again.
pub const TAKEOVER_UNIT_TIME: Duration = Duration::from_mins(2);
/// How long it waits, behind that, until smolet has its runtime and its Node. Later: k3s agent is started again.
pub const TAKEOVER_JOIN_TIME: Duration = Duration::from_mins(2);
/// How long it waits for each address of the server before anything is changed. Longer: the server counts as unreachable.
pub const TAKEOVER_CONNECT_TIME: Duration = Duration::from_secs(5);
/// Restarts of a unit behind which it does not wait any more.
pub const TAKEOVER_RESTARTS: u32 = 2;
/// How long it waits for the rules that take the place of others. Later: those stay.
pub const TAKEOVER_RULES_TIME: Duration = Duration::from_mins(1);
/// How often it looks.
pub const TAKEOVER_LOOK_PERIOD: Duration = Duration::from_millis(200);
/// Bytes of a unit, of a file of k3s' and of a process's command that it reads. More: it counts as empty.
pub const TAKEOVER_FILE_BYTES_MAX: usize = 256 * KIB;
/// Bytes of the rules that `iptables-save` prints. More: they count as none.
pub const TAKEOVER_RULES_BYTES_MAX: usize = 64 * MIB;
