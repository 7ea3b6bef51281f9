//! Objects of the table `smolet-policy`, as data. PURE.

use std::net::IpAddr;

use super::policy::{Direction, GroupKey, Peer, Port, Spec};
use super::words::WordId;
use crate::model::{Network, Transport};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// A chain. The numbers are unique among all that a [`super::Controller`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Chain {
    /// What no policy can deny.
    Common,
    /// Hook `forward`: connections of this node's pods.
    Egress,
    /// Hook `input`: those to the node itself.
    Input,
    /// Hook `forward`, after `Egress`: connections to this node's pods.
    Ingress,
    /// Pods that the same policies isolate in one direction.
    Pods(u32),
    /// A policy in one direction.
    Policy(u32, Direction),
    /// The ports of that rule.
    Ports(u32, Direction, u16),
    /// A block of that rule with exceptions.
    Block(u32, Direction, u16, u16),
}

/// The kind of a set or map, of which there is one for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// This node's isolated pods: address → chain.
    Isolated(Direction),
    /// Each of them with itself: address . address.
    Own,
    /// The pods that a peer selects.
    Peers(u32),
    /// Pods with a port of one name: address . port.
    Port(u32),
}

/// A set or map.
pub(crate) type Set = (Kind, Family);

/// An element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Element {
    Address(IpAddr),
    AddressPort(IpAddr, u16),
    /// Of [`Kind::Own`].
    Own(IpAddr),
    /// Of [`Kind::Isolated`].
    Chain(IpAddr, Chain),
}

impl Element {
    pub(crate) fn family(self) -> Family {
        let (Self::Address(address)
        | Self::AddressPort(address, _)
        | Self::Own(address)
        | Self::Chain(address, _)) = self;
        Family::of(address)
    }
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// A condition on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// Of a connection that was allowed, or belongs to one.
    Established,
    /// Types of ICMP or `ICMPv6`, from and to.
    Icmp(Family, u8, u8),
    /// The address is in a set of [`Kind::Peers`].
    Peer(Side, Set),
    Network(Side, Network),
    Transport(Transport),
    /// Destination ports, from and to; behind `Transport`.
    Ports(u16, u16),
    /// Destination and its port are in a set of [`Kind::Port`]; behind `Transport`.
    NamedPort(Set),
    /// A pod with itself: a set of [`Kind::Own`].
    Own(Set),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accept,
    Return,
    Reject,
    Jump(Chain),
    /// To the chain of the address in a map of [`Kind::Isolated`].
    Map(Side, Set),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) chain: Chain,
    pub(crate) matches: Vec<Match>,
    pub(crate) verdict: Verdict,
    /// What is shown beside it; empty: nothing.
    pub(crate) comment: Box<str>,
}

impl Rule {
    fn new(chain: Chain, matches: Vec<Match>, verdict: Verdict) -> Self {
        Self { chain, matches, verdict, comment: Box::default() }
    }
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// An empty table in the place of what was there.
    ReplaceTable,
    /// No table.
    DeleteTable,
    AddSet(Set),
    AddChain(Chain),
    AddRule(Rule),
    AddElements(Set, Vec<Element>),
    DeleteElements(Set, Vec<Element>),
    /// With its rules.
    DeleteChain(Chain),
    DeleteSet(Set),
}

/// The side of an isolated pod's peer, and that of the pod.
fn sides(direction: Direction) -> (Side, Side) {
    match direction {
        Direction::Ingress => (Side::Source, Side::Destination),
        Direction::Egress => (Side::Destination, Side::Source),
    }
}

/// ICMP types that no policy denies, as in kube-router (`CommonICMPRules`): echo requests, unreachable, time exceeded; with IPv6 also
/// what is too big, echo replies and the discovery of neighbours.
const ICMP: [(Family, u8, u8); 6] = [
    (Family::V4, 3, 3),
    (Family::V4, 8, 8),
    (Family::V4, 11, 11),
    (Family::V6, 1, 3),
    (Family::V6, 128, 129),
    (Family::V6, 135, 136),
];

/// The table with its hooks, and no policy.
pub(super) fn table(ops: &mut Vec<Op>) {
    ops.push(Op::ReplaceTable);
    let kinds = [Kind::Isolated(Direction::Egress), Kind::Isolated(Direction::Ingress), Kind::Own];
    ops.extend(kinds.iter().flat_map(|kind| Family::BOTH.map(|family| Op::AddSet((*kind, family)))));
    ops.push(Op::AddChain(Chain::Common));
    let mut rule = |chain, matches, verdict| ops.push(Op::AddRule(Rule::new(chain, matches, verdict)));
    rule(Chain::Common, vec![Match::Established], Verdict::Accept);
    for (family, from, to) in ICMP {
        rule(Chain::Common, vec![Match::Icmp(family, from, to)], Verdict::Accept);
    }
    for family in Family::BOTH {
        rule(Chain::Common, vec![Match::Own((Kind::Own, family))], Verdict::Accept);
    }
    for (chain, direction) in [
        (Chain::Egress, Direction::Egress),
        (Chain::Input, Direction::Egress),
        (Chain::Ingress, Direction::Ingress),
    ] {
        let (_, own) = sides(direction);
        ops.push(Op::AddChain(chain));
        let mut rule = |verdict| ops.push(Op::AddRule(Rule::new(chain, Vec::new(), verdict)));
        rule(Verdict::Jump(Chain::Common));
        for family in Family::BOTH {
            rule(Verdict::Map(own, (Kind::Isolated(direction), family)));
        }
    }
}

/// The chain of pods that these policies, with their names, isolate.
pub(super) fn pods(
    number: u32,
    direction: Direction,
    policies: impl Iterator<Item = (u32, Box<str>)>,
    ops: &mut Vec<Op>,
) {
    let chain = Chain::Pods(number);
    ops.push(Op::AddChain(chain));
    for (policy, comment) in policies {
        let verdict = Verdict::Jump(Chain::Policy(policy, direction));
        ops.push(Op::AddRule(Rule { comment, ..Rule::new(chain, Vec::new(), verdict) }));
    }
    ops.push(Op::AddRule(Rule::new(chain, Vec::new(), Verdict::Reject)));
}

/// The chains of a policy in one direction, those that are jumped to first.
pub(super) fn policy(
    number: u32,
    direction: Direction,
    spec: &Spec,
    group: impl Fn(&GroupKey) -> u32,
    port: impl Fn(Transport, WordId) -> u32,
    ops: &mut Vec<Op>,
) {
    let (peer_side, _) = sides(direction);
    let mut rules = Vec::new();
    let of = Chain::Policy(number, direction);
    for (index, rule) in (0..).zip(spec.rules(direction).unwrap_or_default()) {
        // Without peers the ports stand in the policy's own chain.
        let ports_chain = if rule.peers.is_some() { Chain::Ports(number, direction, index) } else { of };
        let mut verdict = Verdict::Accept;
        if !rule.ports.is_empty() {
            if rule.peers.is_some() {
                ops.push(Op::AddChain(ports_chain));
                verdict = Verdict::Jump(ports_chain);
            }
            let to = if rule.peers.is_some() { &mut *ops } else { &mut rules };
            for matches in rule.ports.iter().flat_map(|one| port_matches(one, &port)) {
                to.push(Op::AddRule(Rule::new(ports_chain, matches, Verdict::Accept)));
            }
        } else if rule.peers.is_none() {
            rules.push(Op::AddRule(Rule::new(of, Vec::new(), verdict)));
        }
        for (place, peer) in (0..).zip(rule.peers.iter().flatten()) {
            let mut allow = |matching, verdict| {
                rules.push(Op::AddRule(Rule::new(of, vec![matching], verdict)));
            };
            match peer {
                Peer::Pods(key) => {
                    let kind = Kind::Peers(group(key));
                    for family in Family::BOTH {
                        allow(Match::Peer(peer_side, (kind, family)), verdict);
                    }
                }
                Peer::Block { network, except } if except.is_empty() => {
                    allow(Match::Network(peer_side, *network), verdict);
                }
                Peer::Block { network, except } => {
                    let chain = Chain::Block(number, direction, index, place);
                    ops.push(Op::AddChain(chain));
                    for inner in except {
                        let matches = vec![Match::Network(peer_side, *inner)];
                        ops.push(Op::AddRule(Rule::new(chain, matches, Verdict::Return)));
                    }
                    ops.push(Op::AddRule(Rule::new(chain, Vec::new(), verdict)));
                    allow(Match::Network(peer_side, *network), Verdict::Jump(chain));
                }
            }
        }
    }
    ops.push(Op::AddChain(of));
    ops.append(&mut rules);
}

fn port_matches(port: &Port, named: &impl Fn(Transport, WordId) -> u32) -> Vec<Vec<Match>> {
    match port {
        Port::All(protocol) => vec![vec![Match::Transport(*protocol)]],
        Port::Numbers(protocol, first, last) => {
            vec![vec![Match::Transport(*protocol), Match::Ports(*first, *last)]]
        }
        Port::Named(protocol, name) => {
            let kind = Kind::Port(named(*protocol, *name));
            let of = |family| vec![Match::Transport(*protocol), Match::NamedPort((kind, family))];
            Family::BOTH.map(of).into()
        }
    }
}

/// The chains of a policy in one direction, those that jump to others first.
pub(super) fn policy_chains(number: u32, direction: Direction, spec: &Spec) -> Vec<Chain> {
    let Some(rules) = spec.rules(direction) else { return Vec::new() };
    let mut chains = vec![Chain::Policy(number, direction)];
    for (index, rule) in (0..).zip(rules) {
        for (place, peer) in (0..).zip(rule.peers.iter().flatten()) {
            if matches!(peer, Peer::Block { except, .. } if !except.is_empty()) {
                chains.push(Chain::Block(number, direction, index, place));
            }
        }
        if rule.peers.is_some() && !rule.ports.is_empty() {
            chains.push(Chain::Ports(number, direction, index));
        }
    }
    chains
}
