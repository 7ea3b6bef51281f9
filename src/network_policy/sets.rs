//! The sets of peers and of named ports: which there are, and which pods are in them. PURE.
//!
//! All policies with the same selector share a set, and all with the same name of a port. A pod is a bit in each set of peers.

use std::net::IpAddr;

use super::draft::Draft;
use super::policy::{DIRECTIONS, GroupKey, Peer, Port, Scope, Spec};
use super::records::{Namespaces, Pod, Pods};
use super::rules::{Element, Family, Kind, Op};
use super::words::WordId;
use crate::limits::NETWORK_POLICY_MEMBERS_MAX;
use crate::model::Transport;

/// The pods that a peer selects.
#[derive(Debug)]
struct Group {
    number: u32,
    key: GroupKey,
    /// Peers of policies with chains.
    users: u32,
    members: Bits,
    is_new: bool,
}

/// The pods that have a port of this name.
#[derive(Debug)]
struct NamedPort {
    number: u32,
    protocol: Transport,
    name: WordId,
    /// Ports of policies with chains.
    users: u32,
    is_new: bool,
}

impl NamedPort {
    fn is(&self, protocol: Transport, name: WordId) -> bool {
        (self.protocol, self.name) == (protocol, name)
    }
}

/// A set of small numbers.
#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn set(&mut self, number: u32, is_member: bool) {
        let (index, bit) = (number as usize / 64, 1 << (number % 64));
        if is_member && index >= self.0.len() {
            self.0.reserve_exact(index + 1 - self.0.len());
            self.0.resize(index + 1, 0);
        }
        match self.0.get_mut(index) {
            Some(word) if is_member => *word |= bit,
            Some(word) => *word &= !bit,
            None => {}
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Sets {
    groups: Vec<Group>,
    ports: Vec<NamedPort>,
    /// Pods in all groups, each once for each.
    members: usize,
    /// Some did not fit.
    is_full: bool,
}

/// A selector of a peer, or a named port.
enum Term<'a> {
    Pods(&'a GroupKey),
    Port(Transport, WordId),
}

fn terms(spec: &Spec) -> impl Iterator<Item = Term<'_>> {
    let rules = DIRECTIONS.into_iter().filter_map(|direction| spec.rules(direction)).flatten();
    rules.flat_map(|rule| {
        let keys = rule.peers.iter().flatten().filter_map(|peer| match peer {
            Peer::Pods(key) => Some(Term::Pods(key)),
            Peer::Block { .. } => None,
        });
        let named = rule.ports.iter().filter_map(|port| match port {
            Port::Named(protocol, name) => Some(Term::Port(*protocol, *name)),
            Port::All(_) | Port::Numbers(..) => None,
        });
        keys.chain(named)
    })
}

impl Sets {
    /// A policy gets chains: its sets are made, unless they are there. `number` is the last one given to anything.
    pub(super) fn hold(&mut self, spec: &Spec, number: &mut u32, draft: &mut Draft) {
        for term in terms(spec) {
            let made = match term {
                Term::Pods(key) => {
                    if let Some(group) = self.groups.iter_mut().find(|group| group.key == *key) {
                        group.users += 1;
                        continue;
                    }
                    *number = number.wrapping_add(1);
                    let (key, members) = (key.clone(), Bits::default());
                    self.groups.push(Group { number: *number, key, users: 1, members, is_new: true });
                    Kind::Peers(*number)
                }
                Term::Port(protocol, name) => {
                    if let Some(port) = self.ports.iter_mut().find(|port| port.is(protocol, name)) {
                        port.users += 1;
                        continue;
                    }
                    *number = number.wrapping_add(1);
                    self.ports.push(NamedPort { number: *number, protocol, name, users: 1, is_new: true });
                    Kind::Port(*number)
                }
            };
            draft.made.extend(Family::BOTH.map(|family| Op::AddSet((made, family))));
        }
    }

    /// A policy has no chains any more.
    pub(super) fn release(&mut self, spec: &Spec) {
        for term in terms(spec) {
            let users = match term {
                Term::Pods(key) => {
                    self.groups.iter_mut().find(|group| group.key == *key).map(|group| &mut group.users)
                }
                Term::Port(protocol, name) => {
                    self.ports.iter_mut().find(|port| port.is(protocol, name)).map(|port| &mut port.users)
                }
            };
            if let Some(users) = users {
                *users -= 1;
            }
        }
    }

    /// Deletes the sets that no policy has any more.
    pub(super) fn delete_unused(&mut self, draft: &mut Draft) {
        let mut delete =
            |kind| draft.deleted.extend(Family::BOTH.map(|family| Op::DeleteSet((kind, family))));
        let members = &mut self.members;
        self.groups.retain(|group| {
            if group.users == 0 {
                *members -= group.members.count();
                delete(Kind::Peers(group.number));
            }
            group.users > 0
        });
        self.ports.retain(|port| {
            if port.users == 0 {
                delete(Kind::Port(port.number));
            }
            port.users > 0
        });
    }

    /// The number of the set of these pods.
    pub(super) fn group(&self, key: &GroupKey) -> u32 {
        self.groups.iter().find(|group| group.key == *key).map_or(0, |group| group.number)
    }

    /// The number of the set of pods with this port.
    pub(super) fn port(&self, protocol: Transport, name: WordId) -> u32 {
        self.ports.iter().find(|port| port.is(protocol, name)).map_or(0, |port| port.number)
    }

    /// Puts changed pods into the sets that they belong to, and takes them out of others; into new sets, all pods. True if some do not
    /// fit for the first time.
    pub(super) fn place(&mut self, pods: &Pods, namespaces: &Namespaces, draft: &mut Draft) -> bool {
        let is_new =
            self.groups.iter().any(|group| group.is_new) || self.ports.iter().any(|port| port.is_new);
        let mut leaving = Vec::new();
        let before = self.is_full;
        if is_new {
            pods.iter().for_each(|(place, pod)| self.look(place, pod, namespaces, &mut leaving, draft));
        } else {
            for place in &pods.changed {
                if let Some(pod) = pods.get(*place) {
                    self.look(*place, pod, namespaces, &mut leaving, draft);
                }
            }
        }
        self.take_out(&leaving, pods, draft);
        self.groups.iter_mut().for_each(|group| group.is_new = false);
        self.ports.iter_mut().for_each(|port| port.is_new = false);
        self.is_full && !before
    }

    /// One pod. `leaving` gets its place, and the sets that it leaves.
    fn look(
        &mut self,
        place: u32,
        pod: &Pod,
        namespaces: &Namespaces,
        leaving: &mut Vec<(u32, Kind)>,
        draft: &mut Draft,
    ) {
        for group in self.groups.iter_mut().filter(|group| pod.is_changed || group.is_new) {
            let is_member = !pod.is_gone && selects(&group.key, pod, namespaces);
            match (group.members.has(place), is_member) {
                (false, true) if self.members == NETWORK_POLICY_MEMBERS_MAX => {
                    self.is_full = true;
                    continue;
                }
                (false, true) => {
                    self.members += 1;
                    for address in pod.addresses.iter() {
                        draft.add(Kind::Peers(group.number), Element::Address(address));
                    }
                }
                (true, false) => {
                    self.members -= 1;
                    leaving.push((place, Kind::Peers(group.number)));
                }
                (true, true) | (false, false) => continue,
            }
            group.members.set(place, is_member);
        }
        for set in &self.ports {
            let kind = Kind::Port(set.number);
            for port in pod.ports.iter().filter(|port| set.is(port.protocol, port.name)) {
                if !pod.is_gone && (set.is_new || !pod.is_applied) {
                    for address in pod.addresses.iter() {
                        draft.add(kind, Element::AddressPort(address, port.number));
                    }
                } else if pod.is_gone && pod.is_applied && !set.is_new {
                    leaving.push((place, kind));
                }
            }
        }
    }

    /// Takes pods out of sets, unless a pod with the same address stays there.
    fn take_out(&self, leaving: &[(u32, Kind)], pods: &Pods, draft: &mut Draft) {
        // They come pod by pod.
        for of_pod in leaving.chunk_by(|(before, _), (next, _)| before == next) {
            let Some((place, pod)) = of_pod.first().and_then(|(place, _)| Some((*place, pods.get(*place)?)))
            else {
                continue;
            };
            let is_other = |(other, with): &(u32, &Pod)| {
                *other != place && !with.is_gone && with.addresses.share(pod.addresses)
            };
            let others: Vec<(u32, &Pod)> = pods.iter().filter(is_other).collect();
            for (_, kind) in of_pod {
                let stay: Vec<Element> =
                    others.iter().flat_map(|(other, with)| self.elements(*kind, *other, with)).collect();
                let mine: Vec<Element> = match kind {
                    Kind::Peers(_) => pod.addresses.iter().map(Element::Address).collect(),
                    Kind::Port(_) | Kind::Isolated(_) | Kind::Own => self.elements(*kind, place, pod),
                };
                for element in mine.into_iter().filter(|element| !stay.contains(element)) {
                    draft.remove(*kind, element);
                }
            }
        }
    }

    /// The elements of a pod in a set.
    fn elements(&self, kind: Kind, place: u32, pod: &Pod) -> Vec<Element> {
        let addresses: Vec<IpAddr> = pod.addresses.iter().collect();
        match kind {
            Kind::Peers(number) => {
                let is_in = |group: &Group| group.number == number && group.members.has(place);
                let is_member = self.groups.iter().any(is_in);
                addresses.into_iter().filter(|_| is_member).map(Element::Address).collect()
            }
            Kind::Port(number) => {
                let Some(set) = self.ports.iter().find(|set| set.number == number) else { return Vec::new() };
                let ports = pod.ports.iter().filter(|port| set.is(port.protocol, port.name));
                let of =
                    |port: u16| addresses.iter().map(move |address| Element::AddressPort(*address, port));
                ports.flat_map(|port| of(port.number)).collect()
            }
            Kind::Isolated(_) | Kind::Own => Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |group: &Group| size_of::<Group>() + group.members.0.capacity() * size_of::<u64>();
        self.groups.iter().map(of).sum::<usize>() + self.ports.capacity() * size_of::<NamedPort>()
    }
}

/// The peer selects the pod.
fn selects(key: &GroupKey, pod: &Pod, namespaces: &Namespaces) -> bool {
    let Some(labels) = &pod.labels else { return false };
    let is_of_namespace = match &key.namespaces {
        Scope::One(namespace) => *namespace == pod.namespace,
        Scope::Matching(selector) => {
            namespaces.labels(pod.namespace).is_some_and(|labels| selector.matches(labels))
        }
    };
    is_of_namespace && key.pods.matches(labels)
}
