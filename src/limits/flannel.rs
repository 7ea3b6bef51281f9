//! Bounds of flannel's network.

use std::time::Duration;

use super::ADDRESSES_PERIOD;

/// Other nodes whose pods are reached. Full: a further node is skipped, with a message; its pods are not reached from here.
pub const FLANNEL_PEERS_MAX: usize = 1000;
/// Bytes of the way to a node's pods of one family.
pub const FLANNEL_PEER_WAY_BYTES: usize = 80;
/// Bytes of a node: its ways of both families, its name's hash, its backend; its peers of `WireGuard`.
pub const FLANNEL_PEER_BYTES: usize = 2 * FLANNEL_PEER_WAY_BYTES + 32 + 2 * FLANNEL_PEER_SPEC_BYTES;
/// Links, and addresses of links, that are read. More: the rest does not exist here.
pub const FLANNEL_LINKS_MAX: usize = 4096;
/// Routes, neighbours, and entries of forwarding tables that are read of flannel's. More: the rest is compared at the next turn.
pub const FLANNEL_ENTRIES_MAX: usize = 2 * FLANNEL_PEERS_MAX;
/// Bytes of a file with a private key of `WireGuard`. More: it is none.
pub const FLANNEL_KEY_FILE_BYTES_MAX: usize = 256;
/// Bytes of a peer of `WireGuard` that was set: its key, its endpoint, its range. A node has one of each family.
pub const FLANNEL_PEER_SPEC_BYTES: usize = 88;
/// How often what the kernel has is compared when nothing seems to change.
pub const FLANNEL_RESYNC_PERIOD: Duration = Duration::from_mins(10);
/// How often the rules are, which a flush of all tables removes.
pub const FLANNEL_RULES_PERIOD: Duration = Duration::from_mins(1);
const _: () = assert!(FLANNEL_RULES_PERIOD.as_millis() < FLANNEL_RESYNC_PERIOD.as_millis());
/// Wait after a change before it is acted on: changes come in groups.
pub const FLANNEL_SETTLE: Duration = Duration::from_millis(200);
/// Longest wait after a failure.
pub const FLANNEL_RETRY_MAX: Duration = Duration::from_mins(1);
/// Least time between two looks because of the machine's links and routes: pods that come and go change some, too.
pub const FLANNEL_WATCH_PERIOD: Duration = ADDRESSES_PERIOD;
