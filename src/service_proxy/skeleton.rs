//! The fixed chains, sets and rules of the proxy's table, and the rules of a port's chains (`setupNFTables`). PURE.
//!
//! ```text
//!     prerouting, output  ─ -110 ► firewall-check            loadBalancerSourceRanges
//!     prerouting, output  ─ -101 ► services                  service-ips, service-nodeports ─► chain of a port ─► dnat
//!     forward ─────────────── 0 ► packets of pods that belong to no connection: drop
//!     input, forward, output ─ 0 ► …-endpoints-check         no-endpoint-…: reject, drop
//!     forward, output     ─── 0 ─► cluster-ips-check         ports that a cluster IP does not have: reject
//!     postrouting         ─ 100 ─► masquerading              marked packets, and those of a pod to itself
//! ```

use super::encode::{Endpoint, Program, Role, group};
use super::entries::Place;
use crate::model::Network;
use crate::model::network::octets;
use crate::nftables::{Batch, Compare, Data, Family, Hook, Payload, Register, Rule, Set, Type, Verdict};

/// Name of the table in both families.
pub const TABLE: &str = "smolet-services";
/// `--iptables-masquerade-bit` of kube-proxy: 14.
const MASQUERADE_MARK: u32 = 1 << 14;
/// Of a connection that begins.
const STATE_NEW: u32 = 8;
/// Of a packet that belongs to no connection, as far as the kernel can tell.
const STATE_INVALID: u32 = 1;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 0x20;

pub(super) const AFFINITY: &str = "affinity";
const REJECT: &str = "reject-chain";
const MASQUERADING: &str = "masquerading";
const SERVICES: &str = "services";

/// Base chains: name, type, hook, priority.
const BASE_CHAINS: [(&str, &str, Hook, i32); 8] = [
    ("filter-prerouting-pre-dnat", "filter", Hook::Prerouting, -110),
    ("filter-output-pre-dnat", "filter", Hook::Output, -110),
    ("filter-input", "filter", Hook::Input, 0),
    ("filter-forward", "filter", Hook::Forward, 0),
    ("filter-output", "filter", Hook::Output, 0),
    // Before those of iptables (-100), whose order beside others of one priority depends on which came first: the CNI plugin portmap
    // would take connections to a Service's port on the node for a pod's, as one of servicelb (kube-proxy puts its chain first).
    ("nat-prerouting", "nat", Hook::Prerouting, -101),
    ("nat-output", "nat", Hook::Output, -101),
    ("nat-postrouting", "nat", Hook::Postrouting, 100),
];

/// Chains, and the base chains that jump to them, for new connections alone unless they translate addresses.
const CHAINS: [(&str, &[&str]); 7] = [
    ("nodeport-endpoints-check", &["filter-input"]),
    ("service-endpoints-check", &["filter-input", "filter-forward", "filter-output"]),
    ("firewall-check", &["filter-prerouting-pre-dnat", "filter-output-pre-dnat"]),
    (SERVICES, &["nat-output", "nat-prerouting"]),
    (MASQUERADING, &["nat-postrouting"]),
    ("cluster-ips-check", &["filter-forward", "filter-output"]),
    (REJECT, &[]),
];

/// What differs between the families.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) family: Family,
    pub(super) is_ipv6: bool,
    address: Type,
    source: Payload,
    destination: Payload,
    /// Registers of an address.
    wide: u8,
}

pub(super) const IPV4: Kind = Kind {
    family: Family::Ip,
    is_ipv6: false,
    address: Type::Ipv4Addr,
    source: Payload::Ipv4Source,
    destination: Payload::Ipv4Destination,
    wide: 1,
};

pub(super) const IPV6: Kind = Kind {
    family: Family::Ip6,
    is_ipv6: true,
    address: Type::Ipv6Addr,
    source: Payload::Ipv6Source,
    destination: Payload::Ipv6Destination,
    wide: 4,
};

/// The first register.
const FIRST: Register = Register(0);

impl Kind {
    /// The key `address . protocol . port` of where the packet goes, in the first registers.
    fn front<'a>(self) -> Rule<'a> {
        Rule::new()
            .payload(self.destination, FIRST)
            .transport(Register(self.wide))
            .payload(Payload::DestinationPort, Register(self.wide + 1))
    }

    /// Goes on unless the destination is the loopback's: node ports are not there, as in kube-proxy's nftables mode.
    fn no_loopback(self, rule: Rule<'_>) -> Rule<'_> {
        let range = if self.is_ipv6 {
            Network { address: std::net::Ipv6Addr::LOCALHOST.into(), prefix: 128 }
        } else {
            Network { address: std::net::Ipv4Addr::new(127, 0, 0, 0).into(), prefix: 8 }
        };
        rule.within(self.destination, &range, Compare::NotEqual, FIRST)
    }

    /// The key `protocol . port`, in the first registers.
    fn node_port(rule: Rule<'_>) -> Rule<'_> {
        rule.transport(FIRST).payload(Payload::DestinationPort, Register(1))
    }

    /// The types of a set's key, and what its elements stand for.
    fn set(self, name: &'static str, batch: &mut Batch) {
        use Type::{InetProto, InetService, Mark};
        let ip = self.address;
        let backend = [ip, InetService];
        let (key, data, is_dynamic): (&[Type], Data<'_>, bool) = match name {
            "endpoints" => (&[Mark, Mark], Data::Value(&backend), false),
            AFFINITY => (&[ip, Mark], Data::None, true),
            "cluster-ips" => (&[ip], Data::None, false),
            "hairpin-connections" => (&[ip, ip, InetProto, InetService], Data::None, false),
            "service-nodeports" | "no-endpoint-nodeports" => {
                (&[InetProto, InetService], Data::Verdict, false)
            }
            _ => (&[ip, InetProto, InetService], Data::Verdict, false),
        };
        batch.add_set(&Set { name, key, data, is_dynamic });
    }

    /// Writes the fixed part; what services had there is gone then, but for affinities.
    pub(super) fn write_all(self, batch: &mut Batch, cluster_cidrs: &[Network]) {
        let state = || Rule::new().connection_state(FIRST).has_bits(FIRST, STATE_NEW);
        batch.add_table();
        for (chain, kind, hook, priority) in BASE_CHAINS {
            batch.add_base_chain(chain, kind, hook, priority);
            batch.flush_chain(chain);
        }
        for (chain, _) in CHAINS {
            batch.add_chain(chain);
            batch.flush_chain(chain);
        }
        for place in Place::sets() {
            self.set(place.set(), batch);
            batch.flush_set(place.set());
        }
        self.drop_invalid(batch, cluster_cidrs);
        for (chain, bases) in CHAINS {
            for base in bases {
                let rule = if base.starts_with("nat-") { Rule::new() } else { state() };
                batch.add_rule(base, &rule.verdict(Verdict::Jump(chain)));
            }
        }

        batch.add_rule(REJECT, &Rule::new().reject(self.family));
        let check = self.front().look_up_verdict(FIRST, "no-endpoint-services");
        batch.add_rule("service-endpoints-check", &check);
        let check = Self::node_port(self.no_loopback(Rule::new()));
        batch.add_rule("nodeport-endpoints-check", &check.look_up_verdict(FIRST, "no-endpoint-nodeports"));
        let check = Rule::new().payload(self.destination, FIRST).is_in(FIRST, "cluster-ips");
        let check = check.reject(self.family).comment("ports that a cluster IP does not have");
        batch.add_rule("cluster-ips-check", &check);
        batch.add_rule("firewall-check", &self.front().look_up_verdict(FIRST, "firewall-ips"));

        let cidrs: Vec<&Network> = self.of_family(cluster_cidrs).collect();
        if !cidrs.is_empty() {
            // From outside to a cluster IP by this node: the answer has to come back the same way.
            let outside = cidrs.iter().fold(
                Rule::new().payload(self.destination, FIRST).is_in(FIRST, "cluster-ips"),
                |rule, range| rule.within(self.source, range, Compare::NotEqual, FIRST),
            );
            let rule =
                masquerade_later(outside).comment("masquerade cluster IP traffic from outside the cluster");
            batch.add_rule(SERVICES, &rule);
        }
        batch.add_rule(SERVICES, &self.front().look_up_verdict(FIRST, "service-ips"));
        let node_port = Self::node_port(self.no_loopback(Rule::new().is_local(false, FIRST)));
        batch.add_rule(SERVICES, &node_port.look_up_verdict(FIRST, "service-nodeports"));

        let marked = Rule::new().mark(FIRST).has_bits(FIRST, MASQUERADE_MARK);
        let unmark =
            marked.mark(FIRST).masked(FIRST, &(!0_u32).to_ne_bytes(), &MASQUERADE_MARK.to_ne_bytes());
        batch.add_rule(MASQUERADING, &unmark.set_mark(FIRST).masquerade());
        let hairpin = Rule::new()
            .connection_status(FIRST)
            .has_bits(FIRST, STATUS_DNAT)
            .payload(self.source, FIRST)
            .payload(self.destination, Register(self.wide))
            .transport(Register(2 * self.wide))
            .payload(Payload::DestinationPort, Register(2 * self.wide + 1))
            .is_in(FIRST, "hairpin-connections")
            .masquerade();
        batch.add_rule(MASQUERADING, &hairpin);
    }

    /// An endpoint's packet that is outside of its connection's window is not translated back: the client would answer the stranger with
    /// a reset, which ends the connection. kube-proxy drops all such packets in its iptables mode (`KUBE-FORWARD`), and none in its
    /// nftables mode; here those of other networks, which may take another way back, pass where the pods' ranges are known.
    fn drop_invalid(self, batch: &mut Batch, cluster_cidrs: &[Network]) {
        let invalid = || Rule::new().connection_state(FIRST).has_bits(FIRST, STATE_INVALID);
        if cluster_cidrs.is_empty() {
            batch.add_rule("filter-forward", &invalid().verdict(Verdict::Drop));
        }
        for range in self.of_family(cluster_cidrs) {
            for end in [self.source, self.destination] {
                let rule = invalid().within(end, range, Compare::Equal, FIRST).verdict(Verdict::Drop);
                batch.add_rule("filter-forward", &rule);
            }
        }
    }

    fn of_family(self, ranges: &[Network]) -> impl Iterator<Item = &Network> {
        let is_ipv6 = self.is_ipv6;
        ranges.iter().filter(move |range| range.address.is_ipv6() == is_ipv6)
    }

    /// Writes the rules of a port's chain, which has none.
    pub(super) fn write_chain(
        self,
        batch: &mut Batch,
        (role, number): (Role, u32),
        program: &Program,
        comment: &str,
        cluster_cidrs: &[Network],
    ) {
        let chain = &*role.chain(number);
        match program {
            Program::Pick { count: 0 } => {}
            Program::Pick { count } => self.write_pick(batch, chain, group(role, number), *count, comment),
            Program::Stay { seconds, endpoints } => {
                // Here and not with all sets: the kernel makes a table for all of its size at once.
                self.set(AFFINITY, batch);
                self.write_affinity(batch, chain, *seconds, endpoints, comment);
                // The set is full, and ended each of the rules before: the client is served, and does not stay.
                let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
                self.write_pick(batch, chain, group(role, number), count, comment);
            }
            Program::External { is_local: false, .. } => {
                batch.add_rule(chain, &masquerade_later(Rule::new()).comment(comment));
                let target = Role::Cluster.chain(number);
                batch.add_rule(chain, &Rule::new().verdict(Verdict::Goto(&target)));
            }
            Program::External { is_local: true, has_endpoints } => {
                let cluster = Role::Cluster.chain(number);
                for range in self.of_family(cluster_cidrs) {
                    let rule = Rule::new().within(self.source, range, Compare::Equal, FIRST);
                    batch.add_rule(
                        chain,
                        &rule.verdict(Verdict::Goto(&cluster)).comment("pods of the cluster"),
                    );
                }
                let local = || Rule::new().is_local(true, FIRST);
                batch.add_rule(chain, &masquerade_later(local()).comment(comment));
                batch.add_rule(chain, &local().verdict(Verdict::Goto(&cluster)));
                if *has_endpoints {
                    let target = Role::Local.chain(number);
                    batch.add_rule(chain, &Rule::new().verdict(Verdict::Goto(&target)));
                }
            }
            Program::Sources(sources) => {
                for source in sources.iter().filter(|source| source.address.is_ipv6() == self.is_ipv6) {
                    let rule = Rule::new().within(self.source, source, Compare::Equal, FIRST);
                    batch.add_rule(chain, &rule.verdict(Verdict::Return));
                }
                batch.add_rule(chain, &Rule::new().verdict(Verdict::Drop).comment(comment));
            }
        }
    }

    /// Translates to a random one of the first `count` endpoints of the group.
    fn write_pick(self, batch: &mut Batch, chain: &str, group: u32, count: u32, comment: &str) {
        let (address, port) = (Register(2), Register(2 + self.wide));
        let rule = Rule::new().immediate(&group.to_ne_bytes(), FIRST).random(count, Register(1));
        let rule = rule.look_up(FIRST, Place::Endpoints.set(), address);
        batch.add_rule(chain, &rule.dnat(self.family, address, port).comment(comment));
    }

    /// A client and its endpoint are in the set of affinities for so long. First the rules of clients that have one, then each endpoint by
    /// chance: of those that are left the first one with 1/N.
    fn write_affinity(
        self,
        batch: &mut Batch,
        chain: &str,
        seconds: u32,
        endpoints: &[Endpoint],
        comment: &str,
    ) {
        let milliseconds = u64::from(seconds) * 1000;
        let end = Register(self.wide + 1);
        let port = Register(end.0 + self.wide);
        let add = |batch: &mut Batch, count: Option<u32>, endpoint: &Endpoint| {
            let mut rule = Rule::new().comment(comment);
            if let Some(count) = count {
                rule = rule.random(count, FIRST).compare(FIRST, Compare::Equal, &0_u32.to_ne_bytes());
            }
            rule =
                rule.payload(self.source, FIRST).immediate(&endpoint.mark.to_ne_bytes(), Register(self.wide));
            if count.is_none() {
                rule = rule.is_in(FIRST, AFFINITY);
            }
            let rule = rule
                .update(AFFINITY, FIRST, milliseconds)
                .immediate(&octets(endpoint.address), end)
                .immediate(&endpoint.port.to_be_bytes(), port);
            batch.add_rule(chain, &rule.dnat(self.family, end, port));
        };
        for endpoint in endpoints {
            add(batch, None, endpoint);
        }
        for (left, endpoint) in (1..).zip(endpoints.iter().rev()).collect::<Vec<_>>().into_iter().rev() {
            // Of one that is left it is the one.
            add(batch, Some(left), endpoint);
        }
    }
}

/// Marks the packet: its source is translated when it leaves.
fn masquerade_later(rule: Rule<'_>) -> Rule<'_> {
    let (mask, bit) = ((!MASQUERADE_MARK).to_ne_bytes(), MASQUERADE_MARK.to_ne_bytes());
    rule.mark(FIRST).masked(FIRST, &mask, &bit).set_mark(FIRST)
}

/// The table's family.
pub(super) fn family_of(is_ipv6: bool) -> Family {
    if is_ipv6 { IPV6.family } else { IPV4.family }
}
