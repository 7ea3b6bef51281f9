//! A model of what the kernel makes of transactions: it refuses what the kernel refuses, and decides about packets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::Transport;
use crate::network_policy::policy::Direction;
use crate::network_policy::rules::{self, Chain, Element, Family, Kind, Match, Op, Rule, Set, Side, Verdict};

/// The first packet of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: Transport,
    pub(crate) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Accept,
    Reject,
    Return,
}

#[derive(Default)]
pub(crate) struct Kernel {
    is_there: bool,
    /// Elements by their keys; of a map with their chains.
    sets: BTreeMap<Set, BTreeMap<Element, Option<Chain>>>,
    chains: BTreeMap<Chain, Vec<Rule>>,
}

/// The key alone, and where it leads.
fn key(element: Element) -> (Element, Option<Chain>) {
    match element {
        Element::Chain(address, chain) => (Element::Address(address), Some(chain)),
        other => (other, None),
    }
}

impl Kernel {
    /// With a table without policies.
    pub(crate) fn empty() -> Self {
        let (mut kernel, mut ops) = (Self::default(), Vec::new());
        rules::table(&mut ops);
        kernel.apply(&ops);
        kernel
    }

    pub(crate) fn apply(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::ReplaceTable => *self = Self { is_there: true, ..Self::default() },
                Op::DeleteTable => *self = Self::default(),
                Op::AddSet(set) => {
                    assert!(self.is_there && self.sets.insert(*set, BTreeMap::new()).is_none(), "{op:?}");
                }
                Op::AddChain(chain) => {
                    assert!(self.is_there && self.chains.insert(*chain, Vec::new()).is_none(), "{op:?}");
                }
                Op::AddRule(rule) => {
                    for matching in &rule.matches {
                        if let Match::Peer(_, set) | Match::NamedPort(set) | Match::Own(set) = matching {
                            assert!(self.sets.contains_key(set), "{op:?}");
                        }
                    }
                    match &rule.verdict {
                        Verdict::Jump(to) => assert!(self.chains.contains_key(to), "{op:?}"),
                        Verdict::Map(_, map) => assert!(self.sets.contains_key(map), "{op:?}"),
                        Verdict::Accept | Verdict::Return | Verdict::Reject => {}
                    }
                    self.chains.get_mut(&rule.chain).unwrap_or_else(|| panic!("{op:?}")).push(rule.clone());
                }
                Op::AddElements(set, elements) => {
                    let known = self.sets.get_mut(set).unwrap_or_else(|| panic!("{op:?}"));
                    for element in elements {
                        assert_eq!(element.family(), set.1);
                        let (key, chain) = key(*element);
                        assert!(chain.is_none_or(|chain| self.chains.contains_key(&chain)), "{op:?}");
                        let before = known.insert(key, chain);
                        assert!(before.is_none_or(|before| before == chain), "it leads elsewhere: {op:?}");
                    }
                }
                Op::DeleteElements(set, elements) => {
                    let known = self.sets.get_mut(set).unwrap_or_else(|| panic!("{op:?}"));
                    for element in elements {
                        assert!(known.remove(&key(*element).0).is_some(), "{op:?}");
                    }
                }
                Op::DeleteChain(chain) => {
                    assert!(self.chains.remove(chain).is_some(), "{op:?}");
                    let leads = |rule: &Rule| rule.verdict == Verdict::Jump(*chain);
                    assert!(!self.chains.values().flatten().any(leads), "a rule leads there: {op:?}");
                    let is_in = |elements: &BTreeMap<_, _>| elements.values().any(|to| *to == Some(*chain));
                    assert!(!self.sets.values().any(is_in), "an element leads there: {op:?}");
                }
                Op::DeleteSet(set) => {
                    assert!(self.sets.remove(set).is_some(), "{op:?}");
                    let has = |matching: &Match| match matching {
                        Match::Peer(_, of) | Match::NamedPort(of) | Match::Own(of) => of == set,
                        Match::Established
                        | Match::Icmp(..)
                        | Match::Network(..)
                        | Match::Transport(_)
                        | Match::Ports(..) => false,
                    };
                    let is_in = |rule: &Rule| rule.matches.iter().any(has);
                    assert!(!self.chains.values().flatten().any(is_in), "a rule has it: {op:?}");
                }
            }
        }
    }

    /// Objects in the table.
    pub(crate) fn size(&self) -> usize {
        let rules: usize = self.chains.values().map(Vec::len).sum();
        let elements: usize = self.sets.values().map(BTreeMap::len).sum();
        self.chains.len() + self.sets.len() + rules + elements
    }

    /// Elements of the maps of isolated pods.
    pub(crate) fn isolated(&self) -> usize {
        let of = |((kind, _), elements): (&Set, &BTreeMap<_, _>)| match kind {
            Kind::Isolated(_) => elements.len(),
            Kind::Own | Kind::Peers(_) | Kind::Port(_) => 0,
        };
        self.sets.iter().map(of).sum()
    }

    /// Where the address leads as a destination.
    pub(crate) fn chain_of(&self, address: IpAddr) -> Option<Chain> {
        let map = &self.sets[&(Kind::Isolated(Direction::Ingress), Family::of(address))];
        map.get(&Element::Address(address)).copied().flatten()
    }

    /// It is in a set of peers.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        let is_in = |((kind, _), elements): (&Set, &BTreeMap<Element, _>)| {
            matches!(kind, Kind::Peers(_)) && elements.contains_key(&Element::Address(address))
        };
        self.sets.iter().any(is_in)
    }

    /// The hook `forward`: both of its chains.
    pub(crate) fn forwards(&self, packet: &Packet) -> bool {
        !self.is_there
            || [Chain::Egress, Chain::Ingress].iter().all(|base| self.run(*base, packet) != Outcome::Reject)
    }

    /// The hook `input`.
    pub(crate) fn takes(&self, packet: &Packet) -> bool {
        self.run(Chain::Input, packet) != Outcome::Reject
    }

    fn run(&self, chain: Chain, packet: &Packet) -> Outcome {
        for rule in &self.chains[&chain] {
            if !rule.matches.iter().all(|matching| self.matches(matching, packet)) {
                continue;
            }
            let outcome = match &rule.verdict {
                Verdict::Accept => Outcome::Accept,
                Verdict::Reject => Outcome::Reject,
                Verdict::Return => return Outcome::Return,
                Verdict::Jump(to) => self.run(*to, packet),
                Verdict::Map(side, map) => {
                    let to = self.sets[map].get(&Element::Address(address(*side, packet)));
                    to.map_or(Outcome::Return, |to| self.run(to.unwrap(), packet))
                }
            };
            if outcome != Outcome::Return {
                return outcome;
            }
        }
        Outcome::Return
    }

    fn matches(&self, matching: &Match, packet: &Packet) -> bool {
        match matching {
            Match::Established | Match::Icmp(..) => false,
            Match::Peer(side, set) => self.sets[set].contains_key(&Element::Address(address(*side, packet))),
            Match::Network(side, network) => network.contains(address(*side, packet)),
            Match::Transport(protocol) => *protocol == packet.protocol,
            Match::Ports(first, last) => (*first..=*last).contains(&packet.port),
            Match::NamedPort(set) => {
                self.sets[set].contains_key(&Element::AddressPort(packet.to, packet.port))
            }
            Match::Own(set) => {
                packet.from == packet.to && self.sets[set].contains_key(&Element::Own(packet.to))
            }
        }
    }
}

fn address(side: Side, packet: &Packet) -> IpAddr {
    match side {
        Side::Source => packet.from,
        Side::Destination => packet.to,
    }
}
