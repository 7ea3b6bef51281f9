//! What all services have in the kernel's tables, and the transactions that change it. PURE.
//!
//! A change is first made here and then by the kernel. When the kernel refuses it, or somebody else has changed the tables, they are
//! written whole again from what is here, in one transaction.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use super::encode::{Encoder, Program, Role, Target, chain_of};
use super::entries::{Change, Entries, Entry, Place};
use super::model::{ServiceName, ServicePort};
use super::skeleton::{IPV4, IPV6, Kind, TABLE};
use crate::limits::AFFINITY_BACKENDS_GONE_MAX;
use crate::model::{Network, SortedMap, SortedSet, Transport};
use crate::nftables::{Batch, Element, ElementData, Verdict};

/// The two families' batches.
#[derive(Debug)]
pub(super) struct Batches {
    pub ipv4: Batch,
    pub ipv6: Batch,
}

/// What does not depend on services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Addresses of the cluster's pods. None: nobody is known as a pod, as with kube-proxy without `--cluster-cidr`.
    pub cluster_cidrs: Vec<Network>,
    /// This node's addresses.
    pub node_addresses: Vec<IpAddr>,
}

/// The name of a port within its Service, whose chains keep their number.
type PortKey = (bool, Transport, Box<str>);

/// A service.
#[derive(Debug, Default)]
struct Held {
    number: u32,
    ports: Vec<(PortKey, u32)>,
    entries: Entries,
}

/// Numbers that are given again when they are free.
#[derive(Debug, Default)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// Who has an entry that others may want too, by the hash of its key.
#[derive(Debug, Default)]
struct Owners(SortedMap<u64, Owner>);

/// A service by its number, or how many of them there are.
#[derive(Clone, Copy, Debug)]
struct Owner {
    service: u32,
    count: u32,
}

impl Owners {
    fn key(entry: &Entry<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        (entry.is_ipv6, entry.place as u8, entry.key).hash(&mut hasher);
        hasher.finish()
    }

    /// Whether the service may have it.
    fn allows(&self, entry: &Entry<'_>, service: u32) -> bool {
        entry.place.is_own()
            || entry.place.is_shared()
            || self.0.get(&Self::key(entry)).is_none_or(|owner| owner.service == service)
    }

    /// Whether the kernel is to be told.
    fn add(&mut self, entry: &Entry<'_>, service: u32) -> bool {
        if entry.place.is_own() {
            return true;
        }
        let owner = self.0.entry(Self::key(entry)).or_insert(Owner { service, count: 0 });
        owner.count += 1;
        owner.count == 1
    }

    /// Whether the kernel is to be told.
    fn delete(&mut self, entry: &Entry<'_>) -> bool {
        if entry.place.is_own() {
            return true;
        }
        let key = Self::key(entry);
        let Some(owner) = self.0.get_mut(&key) else { return false };
        owner.count -= 1;
        if owner.count == 0 {
            self.0.remove(&key);
            return true;
        }
        false
    }
}

/// The rules of all services.
#[derive(Debug, Default)]
pub(super) struct Rules {
    settings: Settings,
    services: SortedMap<ServiceName, Held>,
    services_numbers: Numbers,
    ports_numbers: Numbers,
    owners: Owners,
    /// Services that want an address and port that another one has.
    contested: SortedSet<ServiceName>,
    /// Marks of endpoints that are gone, and whose clients are still to be forgotten, IPv4's and IPv6's; at most
    /// `limits::AFFINITY_BACKENDS_GONE_MAX` of each.
    gone: [SortedSet<u32>; 2],
}

impl Rules {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Whether all rules are others: they are from the next [`Rules::all`] on. The node's addresses count for services that
    /// [`Rules::change`] is called for.
    pub(super) fn set_settings(&mut self, settings: Settings) -> bool {
        let is_changed = self.settings.cluster_cidrs != settings.cluster_cidrs;
        self.settings = settings;
        is_changed
    }

    /// Some service has an address of the family.
    pub(super) fn has_family(&self, is_ipv6: bool) -> bool {
        self.services.values().any(|held| held.ports.iter().any(|((of, ..), _)| *of == is_ipv6))
    }

    /// How many services have rules.
    pub(super) fn len(&self) -> usize {
        self.services.len()
    }

    /// Bytes held on the heap, nearly.
    pub(super) fn bytes(&self) -> usize {
        let of = |(name, held): (&ServiceName, &Held)| {
            200 + name.name.len() + name.namespace.len() + held.entries.bytes() + held.ports.len() * 48
        };
        let gone = self.gone.iter().map(|marks| marks.len() * 4).sum::<usize>();
        self.services.iter().map(of).sum::<usize>() + self.owners.0.len() * 24 + gone
    }

    /// Services that had to do without an address and port, because another one has it.
    pub(super) fn contested(&self) -> impl Iterator<Item = &ServiceName> {
        self.contested.iter()
    }

    /// Marks of the family's endpoints that clients stayed with, and that are gone since [`Rules::forget_gone`].
    pub(super) fn gone(&self, is_ipv6: bool) -> &SortedSet<u32> {
        &self.gone[usize::from(is_ipv6)]
    }

    /// Nobody stays with those any more.
    pub(super) fn forget_gone(&mut self, is_ipv6: bool) {
        self.gone[usize::from(is_ipv6)].clear();
    }

    /// The services have these ports now; without ports a service is gone. What the kernel has to do: nothing, if nothing changed.
    pub(super) fn change(&mut self, changed: Vec<(ServiceName, Vec<ServicePort>)>) -> Batches {
        let mut names: SortedMap<ServiceName, Vec<ServicePort>> = changed.into_iter().collect();
        let mut steps = Steps::default();
        // First all that goes: another service may want it.
        let mut next = Vec::with_capacity(names.len());
        while let Some((name, ports)) = names.pop_first() {
            let mut held = self
                .services
                .remove(&name)
                .unwrap_or_else(|| Held { number: self.services_numbers.take(), ..Held::default() });
            let encoder = self.encode(&mut held, &ports);
            let wanted = Entries::of(encoder.entries());
            held.entries.changes(&wanted, &mut |change| {
                if let Change::Delete(entry) = change
                    && self.owners.delete(&entry)
                {
                    steps.delete(&entry);
                }
            });
            next.push((name, held, wanted, ports.is_empty()));
        }
        let deleted = [false, true].map(|is_ipv6| marks_of(steps.deleted(), is_ipv6));
        let has_gone = deleted.iter().chain(&self.gone).any(|marks| !marks.is_empty());
        // An unchanged chain has its endpoints' clients too: the port's other policy leads to the same ones.
        let mut kept = <[SortedSet<u32>; 2]>::default();
        for (name, mut held, wanted, is_gone) in next {
            let allowed: Vec<_> =
                wanted.iter().filter(|entry| self.owners.allows(entry, held.number)).collect();
            let is_whole = allowed.len() == wanted.iter().count();
            if is_whole {
                self.contested.remove(&name);
            } else {
                self.contested.insert(name.clone());
            }
            let allowed = Entries::of(allowed);
            held.entries.changes(&allowed, &mut |change| {
                if let Change::Add(entry) = change
                    && self.owners.add(&entry, held.number)
                {
                    steps.add(&entry);
                }
            });
            held.entries = allowed;
            if has_gone {
                for (marks, is_ipv6) in kept.iter_mut().zip([false, true]) {
                    marks.extend(marks_of(held.entries.iter(), is_ipv6));
                }
            }
            if is_gone {
                self.contested.remove(&name);
                self.services_numbers.free.push(held.number);
                self.ports_numbers.free.extend(held.ports.iter().map(|(_, number)| *number));
            } else {
                self.services.insert(name, held);
            }
        }
        for ((gone, deleted), kept) in self.gone.iter_mut().zip(deleted).zip(&kept) {
            // One that is there again has its clients.
            gone.retain(|mark| !kept.contains(mark));
            let room = AFFINITY_BACKENDS_GONE_MAX - gone.len();
            gone.extend(deleted.into_iter().filter(|mark| !kept.contains(mark)).take(room));
        }
        self.write(&steps)
    }

    /// Entries of a service with these ports, whose numbers are given and taken back.
    fn encode(&mut self, held: &mut Held, ports: &[ServicePort]) -> Encoder {
        let key = |port: &ServicePort| (port.cluster_ip.is_ipv6(), port.transport, port.port_name.clone());
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut held.ports)
            .into_iter()
            .partition(|(of, _)| ports.iter().any(|port| key(port) == *of));
        held.ports = kept;
        let mut encoder = Encoder::default();
        for port in ports {
            let of = key(port);
            let known = held.ports.iter().find(|(known, _)| *known == of).map(|(_, number)| *number);
            let number = known.unwrap_or_else(|| {
                let number = self.ports_numbers.take();
                held.ports.push((of, number));
                number
            });
            encoder.add(port, number, &self.settings.node_addresses, &held.entries);
        }
        self.ports_numbers.free.extend(gone.into_iter().map(|(_, number)| number));
        encoder
    }

    fn write(&self, steps: &Steps) -> Batches {
        let write = |kind: Kind| {
            let mut batch = Batch::new(kind.family, TABLE);
            steps.write(kind, &mut batch, &self.settings.cluster_cidrs);
            batch
        };
        Batches { ipv4: write(IPV4), ipv6: write(IPV6) }
    }

    /// One family's table from nothing, or from what an earlier agent left there: `chains` are those that are there. With `is_new` a table that
    /// is there is deleted before.
    pub(super) fn all(&self, is_ipv6: bool, chains: &[Box<str>], is_new: bool) -> Batch {
        let kind = if is_ipv6 { IPV6 } else { IPV4 };
        let mut batch = Batch::new(kind.family, TABLE);
        if is_new {
            batch.add_table();
            batch.delete_table();
        }
        kind.write_all(&mut batch, &self.settings.cluster_cidrs);
        for chain in chains.iter().filter(|chain| Role::is_chain(chain) && !is_new) {
            batch.flush_chain(chain);
        }
        let mut steps = Steps::default();
        let mut owners = Owners::default();
        for held in self.services.values() {
            for entry in held.entries.iter().filter(|entry| entry.is_ipv6 == is_ipv6) {
                if owners.add(&entry, held.number) {
                    steps.add(&entry);
                }
            }
        }
        steps.write(kind, &mut batch, &self.settings.cluster_cidrs);
        batch
    }
}

/// Entries that go and that come.
#[derive(Debug, Default)]
struct Steps {
    deleted: Vec<Own>,
    added: Vec<Own>,
}

/// A key and a value.
type Pair = (Box<[u8]>, Box<[u8]>);

/// An entry: where, its key, its value.
type Own = (bool, Place, Box<[u8]>, Box<[u8]>);

impl Steps {
    fn delete(&mut self, entry: &Entry<'_>) {
        self.deleted.push((entry.is_ipv6, entry.place, entry.key.into(), entry.value.into()));
    }

    fn add(&mut self, entry: &Entry<'_>) {
        self.added.push((entry.is_ipv6, entry.place, entry.key.into(), entry.value.into()));
    }

    fn deleted(&self) -> impl Iterator<Item = Entry<'_>> {
        self.deleted.iter().map(|(is_ipv6, place, key, value)| Entry {
            is_ipv6: *is_ipv6,
            place: *place,
            key,
            value,
        })
    }

    /// Elements that go, chains, elements that come.
    fn write(&self, kind: Kind, batch: &mut Batch, cluster_cidrs: &[Network]) {
        let of = |entries: &'_ [Own], place: Place| -> Vec<Pair> {
            let matching = entries.iter().filter(move |entry| entry.0 == kind.is_ipv6 && entry.1 == place);
            matching.map(|(_, _, key, value)| (key.clone(), value.clone())).collect()
        };
        for place in Place::sets() {
            write_elements(batch, place, &of(&self.deleted, place), false);
        }
        let (gone, new) = (of(&self.deleted, Place::Chain), of(&self.added, Place::Chain));
        let chains = |entries: &'_ [Pair]| -> Vec<(Role, u32)> {
            entries.iter().filter_map(|(key, _)| chain_of(key)).collect()
        };
        for (role, number) in chains(&gone) {
            batch.flush_chain(&role.chain(number));
        }
        for (role, number) in chains(&new) {
            batch.add_chain(&role.chain(number));
        }
        for (key, value) in &new {
            if let (Some(chain), Some((program, comment))) =
                (chain_of(key), Program::read(value, kind.is_ipv6))
            {
                kind.write_chain(batch, chain, &program, comment, cluster_cidrs);
            }
        }
        for place in Place::sets() {
            write_elements(batch, place, &of(&self.added, place), true);
        }
    }
}

/// Marks of the endpoints in the family's chains that clients stay with.
fn marks_of<'a>(entries: impl Iterator<Item = Entry<'a>>, is_ipv6: bool) -> SortedSet<u32> {
    let chains = entries.filter(|entry| entry.place == Place::Chain && entry.is_ipv6 == is_ipv6);
    let programs = chains.filter_map(|entry| Program::read(entry.value, entry.is_ipv6));
    let endpoints = programs.flat_map(|(program, _)| match program {
        Program::Stay { endpoints, .. } => endpoints,
        Program::Pick { .. } | Program::External { .. } | Program::Sources(_) => Vec::new(),
    });
    endpoints.map(|endpoint| endpoint.mark).collect()
}

fn write_elements(batch: &mut Batch, place: Place, entries: &[Pair], is_added: bool) {
    let chains: Vec<Option<String>> = entries
        .iter()
        .map(|(_, value)| match Target::read(value).filter(|_| place != Place::Endpoints)? {
            Target::Chain(role, number) => Some(role.chain(number)),
            Target::Reject => Some("reject-chain".to_owned()),
            Target::Drop => None,
        })
        .collect();
    let elements = entries.iter().zip(&chains).map(|((key, value), chain)| Element {
        key,
        data: match (place, chain) {
            _ if value.is_empty() => ElementData::None,
            (Place::Endpoints, _) => ElementData::Value(value),
            (_, Some(chain)) => ElementData::Verdict(Verdict::Goto(chain)),
            (_, None) => ElementData::Verdict(Verdict::Drop),
        },
    });
    if is_added {
        batch.add_elements(place.set(), elements);
    } else {
        batch.delete_elements(place.set(), elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_proxy::Backend;

    /// A service whose clients stay with these endpoints.
    fn sticky(ends: &[u8]) -> Vec<(ServiceName, Vec<ServicePort>)> {
        let service = ServiceName { namespace: "default".into(), name: "web".into() };
        let backend =
            |end: &u8| Backend { address: IpAddr::from([10, 42, 0, *end]), port: 8080, is_local: false };
        let port = ServicePort {
            service: service.clone(),
            port_name: Box::default(),
            transport: Transport::Tcp,
            cluster_ip: IpAddr::from([10, 43, 0, 10]),
            port: 80,
            node_port: 0,
            external_ips: Box::default(),
            load_balancer_ips: Box::default(),
            source_ranges: Box::default(),
            affinity_seconds: 600,
            is_internal_local: false,
            is_external_local: false,
            health_check_node_port: 0,
            cluster: ends.iter().map(backend).collect(),
            local: Vec::new(),
            serving: Vec::new(),
            has_endpoints: true,
        };
        vec![(service, vec![port])]
    }

    fn gone(rules: &Rules) -> [usize; 2] {
        [false, true].map(|is_ipv6| rules.gone(is_ipv6).len())
    }

    #[test]
    fn endpoints_that_are_gone_are_known_until_their_clients_are_forgotten() {
        let mut rules = Rules::new(Settings::default());
        for (ends, count) in [
            (&[1, 2, 3][..], 0),
            (&[1], 2),
            (&[1], 2),
            // One is there again, and has its clients.
            (&[1, 3], 1),
            (&[3], 2),
        ] {
            rules.change(sticky(ends));
            assert_eq!(gone(&rules), [count, 0], "{ends:?}");
        }
        // The kernel refused it; the next attempt has nothing new to say.
        rules.change(Vec::new());
        assert_eq!(gone(&rules), [2, 0]);
        rules.forget_gone(true);
        assert_eq!(gone(&rules), [2, 0], "the other family's");
        rules.forget_gone(false);
        rules.change(sticky(&[3, 4]));
        assert_eq!(gone(&rules), [0, 0]);
    }

    /// A node port by both policies: an endpoint is in the chain of either.
    #[test]
    fn endpoints_of_a_chain_that_does_not_change_have_their_clients() {
        let of = |cluster: &[u8], local: &[u8]| {
            let mut service = sticky(cluster);
            let port = &mut service[0].1[0];
            (port.node_port, port.is_external_local) = (30080, !local.is_empty());
            port.local = sticky(local).remove(0).1.remove(0).cluster;
            service
        };
        for (row, before, after, count) in [
            ("Local becomes Cluster", of(&[1, 2, 3], &[1, 2]), of(&[1, 2, 3], &[]), 0),
            ("Cluster becomes Local", of(&[1, 2, 3], &[]), of(&[1, 2, 3], &[1, 2]), 0),
            ("local ones that terminate serve alone", of(&[1, 2], &[1]), of(&[2], &[1]), 0),
            ("one goes from both", of(&[1, 2], &[1, 2]), of(&[1], &[1]), 1),
            ("all go", of(&[1, 2], &[2]), of(&[], &[]), 2),
        ] {
            let mut rules = Rules::new(Settings::default());
            rules.change(before);
            rules.change(after.clone());
            assert_eq!(gone(&rules), [count, 0], "{row}");
            // What is said again changes nothing.
            rules.change(after);
            assert_eq!(gone(&rules), [count, 0], "{row}");
        }
    }

    #[test]
    fn each_family_has_its_own_endpoints_that_are_gone() {
        let six = |ends: &[u8]| {
            let mut service = sticky(ends);
            let port = &mut service[0].1[0];
            port.cluster_ip = IpAddr::from([0xfd43, 0, 0, 0, 0, 0, 0, 0x10_u16]);
            for backend in &mut port.cluster {
                let IpAddr::V4(address) = backend.address else { panic!("{backend:?}") };
                backend.address = IpAddr::V6(address.to_ipv6_mapped());
            }
            service.remove(0).1.remove(0)
        };
        let both = |ends: &[u8]| {
            let mut service = sticky(ends);
            service[0].1.push(six(ends));
            service
        };
        let mut rules = Rules::new(Settings::default());
        rules.change(both(&[1, 2, 3]));
        rules.change(both(&[1]));
        assert_eq!(gone(&rules), [2, 2]);
        rules.forget_gone(false);
        assert_eq!(gone(&rules), [0, 2]);
        rules.change(sticky(&[1]));
        assert_eq!(gone(&rules), [0, 3]);
    }

    #[test]
    fn endpoints_that_are_gone_are_bounded() {
        let mut rules = Rules::new(Settings::default());
        rules.gone[0] = (0..).take(AFFINITY_BACKENDS_GONE_MAX).collect();
        rules.change(sticky(&[1, 2]));
        rules.change(sticky(&[]));
        assert_eq!(gone(&rules), [AFFINITY_BACKENDS_GONE_MAX, 0]);
    }

    #[test]
    fn a_change_of_one_endpoint_changes_no_other_element() {
        let of = |ends: &[u8]| {
            let mut service = sticky(ends);
            let port = &mut service[0].1[0];
            port.affinity_seconds = 0;
            port.local = port.cluster.iter().filter(|backend| backend.port == 8080).copied().collect();
            port.is_internal_local = true;
            port.node_port = 30080;
            service
        };
        let mut rules = Rules::new(Settings::default());
        rules.change(of(&[10, 20, 30, 40, 50]));
        // Each endpoint is in two groups.
        for (row, ends, added, deleted) in [
            ("one comes before all others", &[5, 10, 20, 30, 40, 50][..], 2, 0),
            ("the first of them goes: the last one takes its place", &[5, 20, 30, 40, 50], 2, 4),
            ("the last one goes", &[5, 20, 30, 40], 0, 2),
            ("one in the place of another", &[5, 20, 30, 60], 2, 2),
            ("all but one go", &[30], 2, 8),
            ("nothing changes", &[30], 0, 0),
        ] {
            let entries = |rules: &Rules| rules.services.values().next().unwrap().entries.clone();
            let before = entries(&rules);
            rules.change(of(ends));
            let (after, mut counts) = (entries(&rules), (0, 0));
            before.changes(&after, &mut |change| match change {
                Change::Add(entry) => counts.0 += usize::from(entry.place == Place::Endpoints),
                Change::Delete(entry) => counts.1 += usize::from(entry.place == Place::Endpoints),
            });
            assert_eq!(counts, (added, deleted), "{row}");
            let elements: Vec<_> = after.iter().filter(|entry| entry.place == Place::Endpoints).collect();
            for group in elements.chunks(ends.len()) {
                let indexes =
                    group.iter().map(|entry| u32::from_ne_bytes(entry.key[4..].try_into().unwrap()));
                assert!(
                    indexes.eq(0..u32::try_from(ends.len()).unwrap()),
                    "{row}: those of the rule's random numbers"
                );
                let mut last: Vec<u8> = group.iter().map(|entry| entry.value[3]).collect();
                last.sort_unstable();
                assert_eq!(last, ends, "{row}");
            }
        }
    }

    #[test]
    fn other_addresses_of_the_node_are_no_reason_to_write_all_rules() {
        let mut rules = Rules::new(Settings::default());
        let node_addresses = vec![IpAddr::from([192, 168, 9, 1])];
        let settings = Settings { node_addresses, ..Settings::default() };
        assert!(!rules.set_settings(settings.clone()));
        let cluster_cidrs = vec![Network { address: IpAddr::from([10, 42, 0, 0]), prefix: 16 }];
        assert!(rules.set_settings(Settings { cluster_cidrs, ..settings }));
    }
}
