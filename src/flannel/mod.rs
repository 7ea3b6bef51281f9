//! flannel: the network between the pods of a k3s cluster's nodes, with the vxlan, host-gw and wireguard backends, as `k3s agent` brings it.
//!
//! ```text
//!     the servers' settings ─► NetConf ───┐
//!     Nodes, watched ─► Peers ────────────┼─► plan ─► network: links, addresses, routes, neighbours (rtnetlink)
//!     this Node's podCIDRs, annotations ──┘      └──► rules (nftables) ─► this Node's annotations, the CNI configuration
//! ```
//!
//! On the wire and in the Nodes' annotations it is flannel's own: `smolet` and `k3s agent` are nodes of one network. `files`, `net_conf`,
//! `node`, `plan`, `rtnetlink`, `rules` and `wireguard` are PURE; `peers` takes what the watch of Nodes says; `network` does the I/O. What
//! the state of it is on a node, `node::cluster::flannel` keeps.

mod files;
mod net_conf;
mod network;
mod node;
mod peers;
mod plan;
mod rtnetlink;
mod rules;
mod wireguard;

pub(crate) use files::{BANDWIDTH, CONFLIST, conflist, subnet_env};
pub(crate) use net_conf::{Backend, NetConf};
pub(crate) use network::{BroughtUp, Wanted, bring_up, look_at_rules};
pub(crate) use node::{Annotations, Key, LinkData, Mac, Peer, Way, annotations, macs};
pub(crate) use peers::{PeerFollower, Peers};
pub(crate) use rules::{RuleSpec, TABLES};
pub(crate) use wireguard::PeerSpec;

/// The place of an address's family in an array: IPv4 first.
pub(crate) fn family(address: std::net::IpAddr) -> usize {
    usize::from(address.is_ipv6())
}
