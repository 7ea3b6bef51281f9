//! A port of a Service as entries of the kernel's tables (`syncProxyRules`, the part for each service). PURE.
//!
//! ```text
//!     service-ips, service-nodeports ──► cluster-N   one of the endpoints of policy Cluster
//!                                    ──► local-N     one of the endpoints of policy Local, on this node
//!                                    ──► external-N  from outside: masquerade, or by policy Local
//!     no-endpoint-services, …        ──► reject-chain, or drop
//!     firewall-ips                   ──► firewall-N  loadBalancerSourceRanges
//! ```
//!
//! N is a number that the port has as long as it exists. Endpoints are elements `endpoints { group . index : address . port }`, and keep their
//! index: one that comes is one element, in the place of one that goes the last one is set, and one rule has their number. With session
//! affinity the chain has rules for each endpoint, and is written again.

use std::net::IpAddr;

use super::entries::{Entries, Entry, Place};
use super::model::{Backend, ServicePort};
use crate::limits::{AFFINITY_ENDPOINTS_MAX, SOURCE_RANGES_MAX};
use crate::model::Network;
use crate::model::network::octets;

/// The roles of a port's chains. Their numbers are in the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Cluster,
    Local,
    External,
    Firewall,
}

impl Role {
    pub(super) const ALL: [Self; 4] = [Self::Cluster, Self::Local, Self::External, Self::Firewall];

    fn prefix(self) -> &'static str {
        match self {
            Self::Cluster => "cluster-",
            Self::Local => "local-",
            Self::External => "external-",
            Self::Firewall => "firewall-",
        }
    }

    /// The chain's name.
    pub(super) fn chain(self, number: u32) -> String {
        format!("{}{number}", self.prefix())
    }

    /// Whether it is the name of a port's chain.
    pub(super) fn is_chain(name: &str) -> bool {
        let number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        Self::ALL.iter().any(|role| name.strip_prefix(role.prefix()).is_some_and(number))
    }

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// Where an element leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Drop,
    Reject,
    Chain(Role, u32),
}

impl Target {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Drop => vec![u8::MAX],
            Self::Reject => vec![u8::MAX - 1],
            Self::Chain(role, number) => [&[role as u8][..], &number.to_ne_bytes()].concat(),
        }
    }

    /// The target of an element's value.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        match value {
            [u8::MAX] => Some(Self::Drop),
            [byte] if *byte == u8::MAX - 1 => Some(Self::Reject),
            [role, number @ ..] => {
                Some(Self::Chain(Role::of(*role)?, u32::from_ne_bytes(number.try_into().ok()?)))
            }
            [] => None,
        }
    }
}

/// The rules of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// One of `count` endpoints.
    Pick { count: u32 },
    /// The client's former endpoint among these, else one of them, for so many seconds; while too many clients stay, one of them.
    Stay { seconds: u32, endpoints: Vec<Endpoint> },
    /// From outside, by policy: `Cluster` masquerades, `Local` serves this node and its pods from all endpoints, others (if there is a local
    /// endpoint) from the local ones.
    External { is_local: bool, has_endpoints: bool },
    /// Others than these sources are dropped.
    Sources(Vec<Network>),
}

impl Program {
    fn bytes(&self, comment: &str) -> Vec<u8> {
        let mut bytes = match self {
            Self::Pick { count } => [&[0][..], &count.to_ne_bytes()].concat(),
            Self::Stay { seconds, endpoints } => {
                let mut bytes = [&[3][..], &seconds.to_ne_bytes()].concat();
                bytes.extend(u16::try_from(endpoints.len()).unwrap_or(u16::MAX).to_ne_bytes());
                for endpoint in endpoints {
                    bytes.extend(endpoint.mark.to_ne_bytes());
                    bytes.extend(octets(endpoint.address));
                    bytes.extend(endpoint.port.to_ne_bytes());
                }
                bytes
            }
            Self::External { is_local, has_endpoints } => {
                vec![1, u8::from(*is_local), u8::from(*has_endpoints)]
            }
            Self::Sources(sources) => {
                let mut bytes = vec![2];
                bytes.extend(u16::try_from(sources.len()).unwrap_or(u16::MAX).to_ne_bytes());
                for source in sources {
                    bytes.push(source.prefix);
                    bytes.extend(octets(source.address));
                }
                bytes
            }
        };
        bytes.extend(comment.as_bytes());
        bytes
    }

    /// The program of a chain's value, and its comment.
    pub(super) fn read(value: &[u8], is_ipv6: bool) -> Option<(Self, &str)> {
        let (kind, rest) = value.split_first()?;
        let (program, rest) = match kind {
            0 => {
                let (count, rest) = rest.split_first_chunk()?;
                (Self::Pick { count: u32::from_ne_bytes(*count) }, rest)
            }
            1 => {
                let ([is_local, has_endpoints], rest) = rest.split_first_chunk()?;
                (Self::External { is_local: *is_local != 0, has_endpoints: *has_endpoints != 0 }, rest)
            }
            2 => {
                let (count, mut rest) = rest.split_first_chunk()?;
                let mut sources = Vec::with_capacity(usize::from(u16::from_ne_bytes(*count)));
                for _ in 0..u16::from_ne_bytes(*count) {
                    let (prefix, after) = rest.split_first()?;
                    let (address, after) = read_address(after, is_ipv6)?;
                    rest = after;
                    sources.push(Network { address, prefix: *prefix });
                }
                (Self::Sources(sources), rest)
            }
            _ => {
                let (seconds, rest) = rest.split_first_chunk()?;
                let (count, mut rest) = rest.split_first_chunk()?;
                let mut endpoints = Vec::with_capacity(usize::from(u16::from_ne_bytes(*count)));
                for _ in 0..u16::from_ne_bytes(*count) {
                    let (mark, after) = rest.split_first_chunk()?;
                    let (address, after) = read_address(after, is_ipv6)?;
                    let (port, after) = after.split_first_chunk()?;
                    rest = after;
                    let (mark, port) = (u32::from_ne_bytes(*mark), u16::from_ne_bytes(*port));
                    endpoints.push(Endpoint { mark, address, port });
                }
                (Self::Stay { seconds: u32::from_ne_bytes(*seconds), endpoints }, rest)
            }
        };
        Some((program, std::str::from_utf8(rest).ok()?))
    }
}

/// An endpoint that clients stay with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Its name in the set of affinities: the same for the next agent.
    pub(super) mark: u32,
    pub(super) address: IpAddr,
    pub(super) port: u16,
}

/// FNV-1a.
fn mark_of(parts: &[&[u8]]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    parts.iter().flat_map(|part| part.iter().chain([&0])).fold(0x811c_9dc5, step)
}

/// The address that the bytes begin with, and the others.
fn read_address(bytes: &[u8], is_ipv6: bool) -> Option<(IpAddr, &[u8])> {
    if is_ipv6 {
        let (address, rest) = bytes.split_first_chunk::<16>()?;
        Some((IpAddr::from(*address), rest))
    } else {
        let (address, rest) = bytes.split_first_chunk::<4>()?;
        Some((IpAddr::from(*address), rest))
    }
}

/// The role and number of a chain's key.
pub(super) fn chain_of(key: &[u8]) -> Option<(Role, u32)> {
    let (role, number) = key.split_first()?;
    Some((Role::of(*role)?, u32::from_ne_bytes(number.try_into().ok()?)))
}

/// The group of endpoints of a chain.
pub(super) fn group(role: Role, number: u32) -> u32 {
    number * 2 + u32::from(role == Role::Local)
}

/// A port in a key: padded to 4 bytes.
fn port(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [high, low, 0, 0]
}

/// Address and port, as the value of an element.
fn end_of(backend: &Backend) -> Vec<u8> {
    [&octets(backend.address)[..], &port(backend.port)].concat()
}

/// The address and port of each endpoint of a group among a service's entries, with their indexes.
fn ends_in(entries: &Entries, is_ipv6: bool, group: u32) -> impl Iterator<Item = (usize, (IpAddr, u16))> {
    entries.iter().filter_map(move |of| {
        let (of_group, index) = of.key.split_first_chunk()?;
        let index = u32::from_ne_bytes(index.try_into().ok()?);
        let is_one =
            of.place == Place::Endpoints && of.is_ipv6 == is_ipv6 && *of_group == group.to_ne_bytes();
        let (address, port) = read_address(of.value, is_ipv6).filter(|_| is_one)?;
        let port = u16::from_be_bytes(*port.first_chunk()?);
        Some((usize::try_from(index).ok()?, (address, port)))
    })
}

/// Those that were there keep their index, as far as there are so many; the others take what is free. `backends` are sorted by address
/// and port.
fn in_places(backends: &[Backend], before: impl Iterator<Item = (usize, (IpAddr, u16))>) -> Vec<Backend> {
    let mut places = vec![None; backends.len()];
    let mut rest: Vec<Option<&Backend>> = backends.iter().map(Some).collect();
    for (index, end) in before {
        if let Some(place) = places.get_mut(index)
            && let Ok(found) = backends.binary_search_by_key(&end, |of| (of.address, of.port))
        {
            *place = rest[found].take();
        }
    }
    let mut rest = rest.into_iter().flatten();
    places.into_iter().filter_map(|place| place.or_else(|| rest.next())).copied().collect()
}

/// Keys and values of entries, until they are sorted.
#[derive(Debug, Default)]
pub(super) struct Encoder(Vec<(bool, Place, Vec<u8>, Vec<u8>)>);

impl Encoder {
    /// The entries.
    pub(super) fn entries(&self) -> Vec<Entry<'_>> {
        self.0
            .iter()
            .map(|(is_ipv6, place, key, value)| Entry { is_ipv6: *is_ipv6, place: *place, key, value })
            .collect()
    }

    /// Adds those of a port, whose chains have that number. `node_addresses` are this node's, `before` what its service has had.
    pub(super) fn add(
        &mut self,
        service: &ServicePort,
        number: u32,
        node_addresses: &[IpAddr],
        before: &Entries,
    ) {
        let is_ipv6 = service.cluster_ip.is_ipv6();
        let mut add = |place, key: Vec<u8>, value: Vec<u8>| self.0.push((is_ipv6, place, key, value));
        let transport = [service.transport.number(), 0, 0, 0];
        let front = |ip: IpAddr| [&octets(ip)[..], &transport, &port(service.port)].concat();
        let comment = match &*service.port_name {
            "" => service.service.to_string(),
            name => format!("{}:{name}", service.service),
        };
        let chain = |role: Role, program: &Program| {
            ([&[role as u8][..], &number.to_ne_bytes()].concat(), program.bytes(&comment))
        };
        let mut pick = |role, backends: &[Backend]| {
            let group = group(role, number);
            for backend in backends.iter().filter(|backend| backend.is_local) {
                let ip = octets(backend.address);
                let key = [&ip[..], &ip, &transport, &port(backend.port)].concat();
                add(Place::HairpinConnections, key, Vec::new());
            }
            let is_sticky = service.affinity_seconds > 0;
            let count = if is_sticky { AFFINITY_ENDPOINTS_MAX } else { usize::MAX };
            let backends = backends.get(..count).unwrap_or(backends);
            let backends = in_places(backends, ends_in(before, is_ipv6, group));
            for (index, backend) in (0_u32..).zip(&backends) {
                add(Place::Endpoints, [group.to_ne_bytes(), index.to_ne_bytes()].concat(), end_of(backend));
            }
            let program = if is_sticky {
                let endpoint = |of: &Backend| {
                    let mark = mark_of(&[comment.as_bytes(), &transport, &end_of(of)]);
                    Endpoint { mark, address: of.address, port: of.port }
                };
                let endpoints = backends.iter().map(endpoint).collect();
                Program::Stay { seconds: service.affinity_seconds, endpoints }
            } else {
                Program::Pick { count: u32::try_from(backends.len()).unwrap_or(u32::MAX) }
            };
            let (key, value) = chain(role, &program);
            add(Place::Chain, key, value);
        };
        let (has_cluster, has_local) = (!service.cluster.is_empty(), !service.local.is_empty());
        if has_cluster {
            pick(Role::Cluster, &service.cluster);
        }
        if has_local {
            pick(Role::Local, &service.local);
        }
        let policy = |is_local: bool| if is_local { Role::Local } else { Role::Cluster };
        let is_served = |is_local: bool| if is_local { has_local } else { has_cluster };
        let nobody = if service.has_endpoints { Target::Drop } else { Target::Reject };

        add(Place::ClusterIps, octets(service.cluster_ip), Vec::new());
        let internal = service.is_internal_local;
        if is_served(internal) {
            let target = Target::Chain(policy(internal), number);
            add(Place::ServiceIps, front(service.cluster_ip), target.bytes());
        } else {
            add(Place::NoEndpointServices, front(service.cluster_ip), nobody.bytes());
        }
        if !service.is_external() {
            return;
        }

        let external = service.is_external_local;
        let is_reached = is_served(external);
        let target = Target::Chain(Role::External, number).bytes();
        if service.has_endpoints {
            let program = Program::External { is_local: external, has_endpoints: is_reached };
            let (key, value) = chain(Role::External, &program);
            add(Place::Chain, key, value);
            if !has_cluster {
                // What it leads to; nothing is translated there.
                let (key, value) = chain(Role::Cluster, &Program::Pick { count: 0 });
                add(Place::Chain, key, value);
            }
        }
        for ip in service.external_ips.iter().chain(&service.load_balancer_ips) {
            if service.has_endpoints {
                add(Place::ServiceIps, front(*ip), target.clone());
            }
            if !is_reached {
                add(Place::NoEndpointServices, front(*ip), nobody.bytes());
            }
        }
        if service.node_port != 0 {
            let key = [transport, port(service.node_port)].concat();
            if service.has_endpoints {
                add(Place::ServiceNodePorts, key.clone(), target);
            }
            if !is_reached {
                add(Place::NoEndpointNodePorts, key, nobody.bytes());
            }
        }
        if !service.source_ranges.is_empty() && !service.load_balancer_ips.is_empty() {
            let mut sources = service.source_ranges.to_vec();
            // A node that reaches the address of a load balancer of its own has that as its source.
            if sources.iter().any(|range| node_addresses.iter().any(|ip| range.contains(*ip))) {
                let whole = if is_ipv6 { 128 } else { 32 };
                let own = |ip: &IpAddr| Network { address: *ip, prefix: whole };
                sources.extend(service.load_balancer_ips.iter().take(SOURCE_RANGES_MAX).map(own));
            }
            let (key, value) = chain(Role::Firewall, &Program::Sources(sources));
            add(Place::Chain, key, value);
            for ip in &service.load_balancer_ips {
                add(Place::FirewallIps, front(*ip), Target::Chain(Role::Firewall, number).bytes());
            }
        }
    }
}
