//! Bounds of what a node of k3s knows of its cluster's servers.

use std::time::Duration;

use super::{CERTIFICATE_LOOK, KIB};

/// Servers of a cluster that are known besides the one that the user names: etcd goes to seven. More: the last ones of the
/// alphabet are passed over with a message.
pub const K3S_SERVERS_MAX: usize = 8;
/// Bytes of the list of them. Longer: it is none.
pub const K3S_LIST_BYTES_MAX: usize = 16 * KIB;
/// Bytes of one: a name, a colon and a port. Longer: it is passed over.
pub const K3S_SERVER_BYTES_MAX: usize = 253 + 6;
/// How often they are asked for: a little sooner than the certificates are looked at, which is done then, too.
pub const K3S_LIST_PERIOD: Duration = CERTIFICATE_LOOK.saturating_sub(Duration::from_secs(1));
/// How long after a tunnel is lost they are asked for: the cluster has taken a server that is gone off its list by then
/// (`kubernetes` endpoints: 15 s).
pub const K3S_LOST_WAIT: Duration = Duration::from_secs(30);
/// How long at least between two moves away from servers that answer that they are not ready (503).
pub const K3S_UNREADY_WAIT: Duration = Duration::from_secs(10);
