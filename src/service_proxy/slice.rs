//! discovery.k8s.io/v1 `EndpointSlice`, parsed into a record of a few bytes for each endpoint (`addEndpoints`). PURE.

use std::net::IpAddr;

use crate::decode::Node;
use crate::limits::{SERVICE_PORTS_EACH_MAX, SLICE_ZONE_SETS_MAX};
use crate::model::Transport;
use crate::model::network::parse_ip;

use super::model::{label, port_number, transport};
use super::service::held;
use super::topology::{Endpoint, Hint};

/// The Service that the slice is of.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The Service is headless (`IsHeadlessService`): kube-proxy's selector leaves its slices out.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Bits of an endpoint's byte of conditions.
const READY: u8 = 1;
const SERVING: u8 = 2;
const TERMINATING: u8 = 4;
const LOCAL: u8 = 8;
/// It has hints for nodes; and one of them is this node.
const OF_NODES: u8 = 16;
const OF_THIS_NODE: u8 = 32;

/// What is kept of an `EndpointSlice`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slice {
    is_ipv4: bool,
    ports: Box<[Port]>,
    /// For each endpoint its address (4 or 16 bytes), its conditions, and the number of its set of zones: 0 for none, else one
    /// more than its index.
    endpoints: Box<[u8]>,
    /// The different sets of `hints.forZones`, each with commas between its zones.
    zone_sets: Box<[Box<str>]>,
}

#[derive(Debug, PartialEq, Eq)]
struct Port {
    name: Box<str>,
    transport: Transport,
    number: u16,
}

/// The Service that a slice is of.
pub(super) fn service_of(object: &Node) -> Option<&str> {
    label(object, SERVICE_NAME).and_then(Node::text).filter(|name| !name.is_empty())
}

impl Slice {
    /// `None`: nothing is served of it, because it is of a headless Service, or of names in the place of addresses.
    pub(super) fn read(object: &Node, node: &str) -> Option<Self> {
        let is_ipv4 = match object.field("addressType").and_then(Node::text)? {
            "IPv4" => true,
            "IPv6" => false,
            _ => return None,
        };
        if label(object, HEADLESS).is_some() {
            return None;
        }
        let items = |field| object.field(field).map(Node::items).unwrap_or_default().iter();
        let ports: Box<[Port]> = items("ports").filter_map(Port::read).take(SERVICE_PORTS_EACH_MAX).collect();
        let (mut endpoints, mut zone_sets) = (Vec::new(), Vec::new());
        // Nobody asks for endpoints without a port.
        for endpoint in items("endpoints").take_while(|_| !ports.is_empty()) {
            // The others are the same for each node (`Endpoint.addresses`).
            let first = endpoint.field("addresses").and_then(|addresses| addresses.items().first());
            let address = match first.and_then(Node::text).and_then(parse_ip) {
                Some(address) if address.is_ipv4() == is_ipv4 => address,
                _ => continue,
            };
            match address {
                IpAddr::V4(address) => endpoints.extend(address.octets()),
                IpAddr::V6(address) => endpoints.extend(address.octets()),
            }
            endpoints.extend([conditions(endpoint, node), zone_set(endpoint, &mut zone_sets)]);
        }
        Some(Self { is_ipv4, ports, endpoints: endpoints.into(), zone_sets: zone_sets.into() })
    }

    /// How many endpoints it has, counted with each port.
    pub(super) fn endpoints(&self) -> usize {
        self.endpoints.len() / self.record_bytes() * self.ports.len()
    }

    /// Bytes of one endpoint.
    fn record_bytes(&self) -> usize {
        if self.is_ipv4 { 6 } else { 18 }
    }

    /// Heap that it holds.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.ports.iter().map(|port| held(&*port.name)).sum();
        let zones: usize = self.zone_sets.iter().map(|set| held(&**set)).sum();
        held(&*self.ports) + names + held(&*self.endpoints) + held(&*self.zone_sets) + zones
    }

    /// Which endpoints are used may depend on the zone of this node.
    pub(super) fn depends_on_zone(&self) -> bool {
        !self.zone_sets.is_empty()
    }

    /// Adds its endpoints of that port to `found`, as a node in that zone sees them.
    pub(super) fn find(
        &self,
        (is_ipv4, name, transport): (bool, &str, Transport),
        zone: &str,
        found: &mut Vec<Endpoint>,
    ) {
        let is_it =
            |port: &&Port| is_ipv4 == self.is_ipv4 && (&*port.name, port.transport) == (name, transport);
        for port in self.ports.iter().filter(is_it) {
            let records = self.endpoints.chunks_exact(self.record_bytes());
            found.extend(records.filter_map(|record| self.endpoint(record, port.number, zone)));
        }
    }

    /// Addresses of its ready endpoints on this node.
    pub(super) fn local_ready(&self, is_ipv4: bool) -> impl Iterator<Item = IpAddr> {
        let endpoints =
            self.endpoints.chunks_exact(self.record_bytes()).filter(move |_| is_ipv4 == self.is_ipv4);
        let endpoints = endpoints.filter_map(move |record| self.endpoint(record, 0, ""));
        endpoints.filter(|endpoint| endpoint.is_ready && endpoint.is_local).map(|endpoint| endpoint.address)
    }

    fn endpoint(&self, record: &[u8], port: u16, zone: &str) -> Option<Endpoint> {
        let (address, [conditions, set]) = record.split_last_chunk::<2>()?;
        let address = match <[u8; 4]>::try_from(address) {
            Ok(octets) => IpAddr::from(octets),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        let is = |bit: u8| conditions & bit != 0;
        let zones = usize::from(*set).checked_sub(1).and_then(|index| self.zone_sets.get(index));
        Some(Endpoint {
            address,
            port,
            is_ready: is(READY),
            is_serving: is(SERVING),
            is_terminating: is(TERMINATING),
            is_local: is(LOCAL),
            node: if is(OF_NODES) { Hint::of(is(OF_THIS_NODE)) } else { Hint::None },
            zone: zones.map_or(Hint::None, |zones| Hint::of(zones.split(',').any(|of| of == zone))),
        })
    }
}

impl Port {
    /// `None`: it has no name, or no number, which would mean all ports.
    fn read(port: &Node) -> Option<Self> {
        let name = port.field("name").and_then(Node::text)?;
        Some(Self { name: name.into(), transport: transport(port)?, number: port_number(port, "port")? })
    }
}

/// An endpoint's byte of conditions. Ready and serving are true where they are not given, terminating is false.
fn conditions(endpoint: &Node, node: &str) -> u8 {
    let given = endpoint.field("conditions");
    let is = |condition: &str, by_default: bool| match given.and_then(|given| given.field(condition)) {
        Some(Node::Bool(is)) => *is,
        _ => by_default,
    };
    let is_local = endpoint.field("nodeName").and_then(Node::text) == Some(node) && !node.is_empty();
    let nodes = || hints(endpoint, "forNodes");
    let bits = [
        (READY, is("ready", true)),
        (SERVING, is("serving", true)),
        (TERMINATING, is("terminating", false)),
        (LOCAL, is_local),
        (OF_NODES, nodes().next().is_some()),
        (OF_THIS_NODE, nodes().any(|of| of == node)),
    ];
    bits.into_iter().filter(|(_, is)| *is).fold(0, |bits, (bit, _)| bits | bit)
}

/// The number of an endpoint's set of zones, which is added where it is new. Full: the endpoint has none, and its Service is
/// served as one without hints.
fn zone_set(endpoint: &Node, sets: &mut Vec<Box<str>>) -> u8 {
    let zones: Vec<&str> = hints(endpoint, "forZones").collect();
    if zones.is_empty() {
        return 0;
    }
    let zones = zones.join(",");
    let index = sets.iter().position(|set| **set == *zones).unwrap_or_else(|| {
        if sets.len() < SLICE_ZONE_SETS_MAX {
            sets.push(zones.into());
            sets.len() - 1
        } else {
            SLICE_ZONE_SETS_MAX
        }
    });
    u8::try_from(index + 1).unwrap_or_default()
}

/// The names of an endpoint's hints.
fn hints<'a>(endpoint: &'a Node, field: &str) -> impl Iterator<Item = &'a str> {
    let hints = endpoint.field("hints").and_then(|hints| hints.field(field));
    let names = hints.map(Node::items).unwrap_or_default().iter();
    names.filter_map(|hint| hint.field("name").and_then(Node::text))
}
