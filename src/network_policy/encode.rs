//! Transactions as messages to the kernel. PURE.

use super::policy::Direction;
use super::rules::{Chain, Element, Family, Kind, Match, Op, Rule, Set, Side, Verdict};
use crate::model::Network;
use crate::model::network::octets;
use crate::nftables::{
    self, Batch, Compare, Data, ElementData, Hook, Payload, Register, Rule as Expressions, Type,
};

/// Name of the table, of both families.
pub const TABLE: &str = "smolet-policy";

/// Of the chains `egress` and `input`: `filter`, as kube-router and kube-proxy, behind the translation of Services' addresses.
const PRIORITY: i32 = 0;

/// `ICMP`, `ICMPv6` in IP headers.
const ICMP: [u8; 2] = [1, 58];
/// `established` and `related` of a connection's state.
const ESTABLISHED: u32 = 2 | 4;

/// The transaction.
pub(super) fn batch(ops: &[Op]) -> Batch {
    let mut batch = Batch::new(nftables::Family::Inet, TABLE);
    for op in ops {
        match op {
            Op::ReplaceTable => {
                batch.add_table();
                batch.delete_table();
                batch.add_table();
            }
            Op::DeleteTable => {
                batch.add_table();
                batch.delete_table();
            }
            Op::AddSet(set) => add_set(*set, &mut batch),
            Op::AddChain(of) => {
                let hook = match of {
                    Chain::Egress => Some((Hook::Forward, PRIORITY)),
                    Chain::Input => Some((Hook::Input, PRIORITY)),
                    Chain::Ingress => Some((Hook::Forward, PRIORITY + 1)),
                    Chain::Common
                    | Chain::Pods(_)
                    | Chain::Policy(..)
                    | Chain::Ports(..)
                    | Chain::Block(..) => None,
                };
                let name = chain_name(*of);
                match hook {
                    Some((hook, priority)) => batch.add_base_chain(&name, "filter", hook, priority),
                    None => batch.add_chain(&name),
                }
            }
            Op::AddRule(rule) => add_rule(rule, &mut batch),
            Op::AddElements(set, of) => elements(of, |list| batch.add_elements(&set_name(*set), list)),
            Op::DeleteElements(set, of) => elements(of, |list| batch.delete_elements(&set_name(*set), list)),
            Op::DeleteChain(of) => batch.delete_chain(&chain_name(*of)),
            Op::DeleteSet(set) => batch.delete_set(&set_name(*set)),
        }
    }
    batch
}

fn chain_name(chain: Chain) -> String {
    let side = |direction| match direction {
        Direction::Ingress => "in",
        Direction::Egress => "out",
    };
    match chain {
        Chain::Common => "common".to_owned(),
        Chain::Egress => "egress".to_owned(),
        Chain::Input => "input".to_owned(),
        Chain::Ingress => "ingress".to_owned(),
        Chain::Pods(number) => format!("pods-{number}"),
        Chain::Policy(number, of) => format!("policy-{number}-{}", side(of)),
        Chain::Ports(number, of, rule) => format!("ports-{number}-{}-{rule}", side(of)),
        Chain::Block(number, of, rule, peer) => format!("block-{number}-{}-{rule}-{peer}", side(of)),
    }
}

fn set_name((kind, family): Set) -> String {
    let name = match kind {
        Kind::Isolated(Direction::Ingress) => "isolated-in".to_owned(),
        Kind::Isolated(Direction::Egress) => "isolated-out".to_owned(),
        Kind::Own => "own".to_owned(),
        Kind::Peers(number) => format!("peers-{number}"),
        Kind::Port(number) => format!("port-{number}"),
    };
    name + if family == Family::V4 { "-ip4" } else { "-ip6" }
}

fn add_set(set @ (kind, family): Set, batch: &mut Batch) {
    let address = if family == Family::V4 { Type::Ipv4Addr } else { Type::Ipv6Addr };
    let (two, with_port) = ([address, address], [address, Type::InetService]);
    let (key, data) = match kind {
        Kind::Isolated(_) => (&two[..1], Data::Verdict),
        Kind::Own => (&two[..], Data::None),
        Kind::Peers(_) => (&two[..1], Data::None),
        Kind::Port(_) => (&with_port[..], Data::None),
    };
    batch.add_set(&nftables::Set { name: &set_name(set), key, data, is_dynamic: false });
}

/// Gives the elements of a set, of which there may be many thousands, in the form of messages.
fn elements(of: &[Element], give: impl FnOnce(&mut dyn Iterator<Item = nftables::Element<'_>>)) {
    let (mut keys, mut chains) = (Vec::new(), Vec::new());
    for element in of {
        match *element {
            Element::Address(address) => keys.extend(octets(address)),
            Element::AddressPort(address, port) => {
                keys.extend(octets(address));
                keys.extend(port.to_be_bytes());
                keys.extend([0; 2]);
            }
            Element::Own(address) => keys.extend(octets(address).repeat(2)),
            Element::Chain(address, chain) => {
                keys.extend(octets(address));
                chains.push(chain_name(chain));
            }
        }
    }
    let mut chains = chains.iter();
    // The keys of a set have one length.
    let length = (keys.len() / of.len().max(1)).max(1);
    give(&mut keys.chunks_exact(length).map(|key| {
        let verdict = chains.next().map(|chain| ElementData::Verdict(nftables::Verdict::Goto(chain)));
        nftables::Element { key, data: verdict.unwrap_or(ElementData::None) }
    }));
}

/// The first register; a key begins there.
const FIRST: Register = Register(0);

/// The register behind an address in the first ones.
fn behind(family: Family) -> Register {
    Register(if family == Family::V4 { 1 } else { 4 })
}

/// Goes on with packets of the family.
fn of_family(rule: Expressions<'_>, family: Family) -> Expressions<'_> {
    let family = if family == Family::V4 { nftables::Family::Ip } else { nftables::Family::Ip6 };
    rule.family(FIRST).compare(FIRST, Compare::Equal, &[family.number()])
}

fn payload(side: Side, family: Family) -> Payload {
    match (side, family) {
        (Side::Source, Family::V4) => Payload::Ipv4Source,
        (Side::Source, Family::V6) => Payload::Ipv6Source,
        (Side::Destination, Family::V4) => Payload::Ipv4Destination,
        (Side::Destination, Family::V6) => Payload::Ipv6Destination,
    }
}

fn is_between<'a>(rule: Expressions<'a>, first: &[u8], last: &[u8]) -> Expressions<'a> {
    if first == last {
        return rule.compare(FIRST, Compare::Equal, first);
    }
    rule.compare(FIRST, Compare::AtLeast, first).compare(FIRST, Compare::AtMost, last)
}

fn is_in_network(rule: Expressions<'_>, side: Side, network: Network) -> Expressions<'_> {
    let family = Family::of(network.address);
    let rule = of_family(rule, family);
    if network.prefix == 0 {
        return rule;
    }
    rule.within(payload(side, family), &network, Compare::Equal, FIRST)
}

fn add_rule(Rule { chain, matches, verdict, comment }: &Rule, batch: &mut Batch) {
    let mut rule = Expressions::new();
    for matching in matches {
        rule = match *matching {
            Match::Established => rule.connection_state(FIRST).has_bits(FIRST, ESTABLISHED),
            Match::Icmp(family, first, last) => {
                let protocol = ICMP[usize::from(family == Family::V6)];
                let rule = rule.transport(FIRST).compare(FIRST, Compare::Equal, &[protocol]);
                is_between(rule.payload(Payload::IcmpType, FIRST), &[first], &[last])
            }
            Match::Peer(side, set @ (_, family)) => {
                of_family(rule, family).payload(payload(side, family), FIRST).is_in(FIRST, &set_name(set))
            }
            Match::Network(side, network) => is_in_network(rule, side, network),
            Match::Transport(protocol) => {
                rule.transport(FIRST).compare(FIRST, Compare::Equal, &[protocol.number()])
            }
            Match::Ports(first, last) => {
                let rule = rule.payload(Payload::DestinationPort, FIRST);
                is_between(rule, &first.to_be_bytes(), &last.to_be_bytes())
            }
            Match::NamedPort(set @ (_, family)) => of_family(rule, family)
                .payload(payload(Side::Destination, family), FIRST)
                .payload(Payload::DestinationPort, behind(family))
                .is_in(FIRST, &set_name(set)),
            Match::Own(set @ (_, family)) => of_family(rule, family)
                .payload(payload(Side::Source, family), FIRST)
                .payload(payload(Side::Destination, family), behind(family))
                .is_in(FIRST, &set_name(set)),
        };
    }
    let rule = match *verdict {
        Verdict::Accept => rule.verdict(nftables::Verdict::Accept),
        Verdict::Return => rule.verdict(nftables::Verdict::Return),
        Verdict::Reject => rule.reject(nftables::Family::Inet),
        Verdict::Jump(to) => rule.verdict(nftables::Verdict::Jump(&chain_name(to))),
        Verdict::Map(side, map @ (_, family)) => of_family(rule, family)
            .payload(payload(side, family), FIRST)
            .look_up_verdict(FIRST, &set_name(map)),
    };
    let rule = if comment.is_empty() { rule } else { rule.comment(comment) };
    batch.add_rule(&chain_name(*chain), &rule);
}
