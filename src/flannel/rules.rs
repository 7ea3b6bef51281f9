//! Rules of packets from and to pods, in tables of `nf_tables` with flannel's names (`trafficmngr`). PURE.
//!
//! | chain `postrtg`, in this order | |
//! |---|---|
//! | marked by a service proxy, which masquerades itself | as it is |
//! | from this node's pods to the cluster's; from anybody to this node's pods | as it is |
//! | from the cluster's pods to others, multicast apart | masqueraded |
//! | from others to the cluster's pods on other nodes | masqueraded: the answer comes back by this node |
//!
//! Chain `forward` accepts what is from or to pods; it overrules no other chain that drops. The rules are those of flannel's iptables
//! manager, which k3s uses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::family;
use crate::model::Network;
use crate::nftables::{Batch, Compare, Family, Hook, Payload, Register, Rule, Verdict};

/// Tables by family.
pub(crate) const TABLES: [(Family, &str); 2] = [(Family::Ip, "flannel-ipv4"), (Family::Ip6, "flannel-ipv6")];
pub(super) const FORWARD: &str = "forward";
pub(super) const POSTROUTING: &str = "postrtg";

/// `FilterPriority` and `SNATPriority`.
const FILTER: i32 = 0;
const SOURCE_NAT: i32 = 100;
/// kube-proxy's mark of packets that it masquerades (`KubeProxyMark`).
const MASQUERADE_MARK: u32 = 0x4000;

/// A register, which each comparison uses anew.
const REGISTER: Register = Register(0);

/// Source and destination by family.
const ENDS: [[Payload; 2]; 2] =
    [[Payload::Ipv4Source, Payload::Ipv4Destination], [Payload::Ipv6Source, Payload::Ipv6Destination]];
const MULTICAST: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4),
    (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8),
];

/// What the rules of a family are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleSpec {
    /// The cluster's pods.
    pub(crate) network: Network,
    /// This node's pods.
    pub(crate) own: Network,
    /// Packets to others are masqueraded.
    pub(crate) masquerades: bool,
}

/// The rules, which take the place of those in the table.
pub(super) fn batch(spec: &RuleSpec) -> Batch {
    let of = family(spec.network.address);
    let (family, table) = TABLES[of];
    let [source, destination] = ENDS[of];
    let mut batch = Batch::new(family, table);
    batch.add_table();
    batch.add_base_chain(FORWARD, "filter", Hook::Forward, FILTER);
    batch.flush_chain(FORWARD);
    for end in [source, destination] {
        batch.add_rule(FORWARD, &within(Rule::new(), end, true, spec.network).verdict(Verdict::Accept));
    }
    batch.add_base_chain(POSTROUTING, "nat", Hook::Postrouting, SOURCE_NAT);
    batch.flush_chain(POSTROUTING);
    if !spec.masquerades {
        return batch;
    }
    let (cluster, own) = (spec.network, spec.own);
    let marked = Rule::new().mark(REGISTER).has_bits(REGISTER, MASQUERADE_MARK);
    batch.add_rule(POSTROUTING, &marked.verdict(Verdict::Return));
    let both =
        |is_from, from, is_to, to| within(within(Rule::new(), source, is_from, from), destination, is_to, to);
    for (is_from, from, to) in [(true, own, cluster), (true, cluster, own), (false, cluster, own)] {
        batch.add_rule(POSTROUTING, &both(is_from, from, true, to).verdict(Verdict::Return));
    }
    let (multicast, bits) = MULTICAST[of];
    if let Some(multicast) = Network::new(multicast, bits) {
        batch.add_rule(POSTROUTING, &both(true, cluster, false, multicast).masquerade());
    }
    batch.add_rule(POSTROUTING, &both(false, cluster, true, cluster).masquerade());
    batch
}

/// Goes on if that end of the packet is in the range, or if it is not.
fn within(rule: Rule<'_>, end: Payload, is_in: bool, range: Network) -> Rule<'_> {
    rule.within(end, &range, if is_in { Compare::Equal } else { Compare::NotEqual }, REGISTER)
}
