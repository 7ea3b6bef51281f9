//! Bounds of the list of k3s servers.

use std::time::Duration;

use super::{CERTIFICATE_CHECK_PERIOD, KIB};

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
