//! The Services and endpoints of the cluster, and which Services have changed. PURE.
//!
//! Objects arrive as a list and then as a watch's events; each is parsed at once into a record, and the Service that it belongs to is
//! marked as changed if the record differs from the former one. Nothing is marked twice until the marks are taken.
//!
//! ```text
//!     begin ─► apply … ─► settled        what was not applied in between is gone
//!     apply, delete … ─► settled         events of the watch
//! ```

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;

use crate::decode::Node;
use crate::limits::{
    ALLOCATION_BYTES, ENDPOINTS_MAX, SERVICE_PORTS_MAX, SERVICES_BYTES_MAX, SERVICES_LEFT_OUT_NAMED_MAX,
};
use crate::model::{SortedMap, SortedSet, Transport};

use super::model::{ServiceName, ServicePort};
use super::service::{Service, held};
use super::slice::{self, Slice};
use super::topology::{self, Endpoint};

/// All Services and endpoints, as this node sees them.
pub(crate) struct Cluster {
    node: Box<str>,
    zone: Box<str>,
    node_addresses: Vec<IpAddr>,
    /// By `NAMESPACE/NAME`, in the order of the API server's lists: entries are added at the end. Bounded by `used`.
    entries: SortedMap<Box<str>, Box<Entry>>,
    /// At most `SERVICE_PORTS_MAX`, `ENDPOINTS_MAX` and `SERVICES_BYTES_MAX`.
    used: Used,
    /// Services that are marked, in the order of their first change: one for each entry at most.
    changed: Vec<ServiceName>,
    services: Listing,
    slices: Listing,
    /// Services that were left out, wholly or with a part of their endpoints, and are to be reported.
    left_out: Vec<ServiceName>,
    /// Those that were reported already, at most `SERVICES_LEFT_OUT_NAMED_MAX`.
    named: SortedSet<Box<str>>,
}

/// What is known of the name of one Service.
#[derive(Default)]
struct Entry {
    /// None of a Service that is not proxied, and where only its endpoints are known yet.
    service: Option<Service>,
    slices: Vec<HeldSlice>,
    is_service_listed: bool,
    is_changed: bool,
}

struct HeldSlice {
    name: Box<str>,
    slice: Slice,
    is_listed: bool,
}

/// State of a collection.
#[derive(Default)]
struct Listing {
    /// A list is being received.
    is_under_way: bool,
    is_synced: bool,
    /// Something did not fit since the last list began.
    has_left_out: bool,
    /// Something else has gone since.
    has_room: bool,
}

/// What is held, or a part of it.
#[derive(Clone, Copy, Default)]
struct Used {
    bytes: usize,
    ports: usize,
    endpoints: usize,
}

impl Used {
    /// The same with `after` in the place of `before`.
    fn with(self, before: Self, after: Self) -> Self {
        Self {
            bytes: self.bytes + after.bytes - before.bytes,
            ports: self.ports + after.ports - before.ports,
            endpoints: self.endpoints + after.endpoints - before.endpoints,
        }
    }

    fn fits(self) -> bool {
        self.is_within(1, 1)
    }

    /// So much is free that another list is worth while.
    fn has_room(self) -> bool {
        self.is_within(15, 16)
    }

    fn is_within(self, part: usize, of: usize) -> bool {
        let is_within = |used, most: usize| used <= most / of * part;
        is_within(self.bytes, SERVICES_BYTES_MAX)
            && is_within(self.ports, SERVICE_PORTS_MAX)
            && is_within(self.endpoints, ENDPOINTS_MAX)
    }
}

impl Entry {
    fn used(&self) -> Used {
        let own = Used {
            bytes: self.service.as_ref().map_or(0, Service::bytes) + held(&*self.slices),
            ports: self.service.as_ref().map_or(0, Service::ports),
            endpoints: 0,
        };
        self.slices.iter().fold(own, |used, of| Used {
            bytes: used.bytes + held(&*of.name) + of.slice.bytes(),
            endpoints: used.endpoints + of.slice.endpoints(),
            ..used
        })
    }

    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }

    fn place(&self, slice: &str) -> Option<usize> {
        self.slices.iter().position(|of| *of.name == *slice)
    }

    /// The endpoints of a port, each once.
    fn endpoints(&self, port: (bool, &str, Transport), zone: &str) -> Vec<Endpoint> {
        let mut found = Vec::new();
        for held in &self.slices {
            held.slice.find(port, zone, &mut found);
        }
        found.sort_unstable_by_key(Endpoint::order);
        found.dedup_by_key(|endpoint| (endpoint.address, endpoint.port));
        found
    }
}

/// Heap of an entry besides what it holds, and its place in the table, which may be half empty.
fn entry_bytes(key: &str) -> usize {
    held(key) + size_of::<Entry>() + ALLOCATION_BYTES + 2 * size_of::<(Box<str>, Box<Entry>)>()
}

fn key_of(namespace: &str, name: &str) -> Box<str> {
    [namespace, "/", name].concat().into()
}

fn name_of(key: &str) -> ServiceName {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    ServiceName { namespace: namespace.into(), name: name.into() }
}

/// The namespace and name of an object.
fn names(object: &Node) -> Option<(&str, &str)> {
    let metadata = object.field("metadata")?;
    let text = |field| metadata.field(field).and_then(Node::text).filter(|text| !text.is_empty());
    Some((text("namespace")?, text("name")?))
}

impl Cluster {
    /// An empty one, for the node with that name.
    pub(crate) fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            zone: Box::default(),
            node_addresses: Vec::new(),
            entries: SortedMap::new(),
            used: Used::default(),
            changed: Vec::new(),
            services: Listing::default(),
            slices: Listing::default(),
            left_out: Vec::new(),
            named: SortedSet::new(),
        }
    }

    /// Sets the zone of this node (`topology.kubernetes.io/zone`); empty: none. Services with hints for zones change by it.
    pub(crate) fn set_zone(&mut self, zone: &str) {
        if *self.zone == *zone {
            return;
        }
        self.zone = zone.into();
        for (key, entry) in self.entries.iter_mut() {
            if entry.slices.iter().any(|held| held.slice.depends_on_zone()) {
                mark(key, entry, &mut self.changed);
            }
        }
    }

    /// Sets this node's addresses. Services with `loadBalancerSourceRanges` change by it.
    pub(crate) fn set_node_addresses(&mut self, addresses: &[IpAddr]) {
        if self.node_addresses == addresses {
            return;
        }
        self.node_addresses = addresses.to_vec();
        for (key, entry) in self.entries.iter_mut() {
            if entry.service.as_ref().is_some_and(Service::depends_on_node_addresses) {
                mark(key, entry, &mut self.changed);
            }
        }
    }

    /// A list of the Services begins.
    pub(crate) fn services_begin(&mut self) {
        self.services.begin();
        self.entries.values_mut().for_each(|entry| entry.is_service_listed = false);
    }

    /// The Service was listed, added or modified.
    pub(crate) fn apply_service(&mut self, object: &Node) {
        if let Some((namespace, name)) = names(object) {
            self.put_service(&key_of(namespace, name), Service::read(object));
        }
    }

    /// The Service was deleted.
    pub(crate) fn delete_service(&mut self, object: &Node) {
        if let Some((namespace, name)) = names(object) {
            self.put_service(&key_of(namespace, name), None);
        }
    }

    /// The list of the Services, or some events of their watch, are complete.
    pub(crate) fn services_settled(&mut self) {
        if mem::take(&mut self.services.is_under_way) {
            let known = self.entries.iter();
            let gone = known.filter(|(_, entry)| entry.service.is_some() && !entry.is_service_listed);
            let gone: Vec<Box<str>> = gone.map(|(key, _)| key.clone()).collect();
            for key in &gone {
                self.put_service(key, None);
            }
            self.forget_named();
        }
        self.services.is_synced = true;
    }

    /// Services that were left out would fit now: they are to be listed again.
    pub(crate) fn services_have_room(&self) -> bool {
        self.services.has_room
    }

    /// A list of the slices begins.
    pub(crate) fn slices_begin(&mut self) {
        self.slices.begin();
        let slices = self.entries.values_mut().flat_map(|entry| &mut entry.slices);
        slices.for_each(|held| held.is_listed = false);
    }

    /// The slice was listed, added or modified.
    pub(crate) fn apply_slice(&mut self, object: &Node) {
        let Some((namespace, name)) = names(object) else { return };
        match (slice::service_of(object), Slice::read(object, &self.node)) {
            (Some(service), Some(slice)) => self.put_slice(&key_of(namespace, service), name, slice),
            _ => self.delete_slice(object),
        }
    }

    /// The slice was deleted.
    pub(crate) fn delete_slice(&mut self, object: &Node) {
        let Some((namespace, name)) = names(object) else { return };
        let service = slice::service_of(object).unwrap_or_default();
        if !self.remove_slice(&key_of(namespace, service), name) {
            self.remove_slice_elsewhere(namespace, name);
        }
    }

    /// The list of the slices, or some events of their watch, are complete.
    pub(crate) fn slices_settled(&mut self) {
        if mem::take(&mut self.slices.is_under_way) {
            let mut gone = Vec::new();
            for (key, entry) in &self.entries {
                let unlisted = entry.slices.iter().filter(|held| !held.is_listed);
                gone.extend(unlisted.map(|held| (key.clone(), held.name.clone())));
            }
            for (key, slice) in gone {
                self.remove_slice(&key, &slice);
            }
            self.forget_named();
        }
        self.slices.is_synced = true;
    }

    /// Slices that were left out would fit now: they are to be listed again.
    pub(crate) fn slices_have_room(&self) -> bool {
        self.slices.has_room
    }

    /// Both collections were listed once.
    pub(crate) fn is_synced(&self) -> bool {
        self.services.is_synced && self.slices.is_synced
    }

    /// The Services that have changed, come or gone since the last call, or whose endpoints have.
    pub(crate) fn take_changed(&mut self) -> Vec<ServiceName> {
        let changed = mem::take(&mut self.changed);
        for name in &changed {
            let key = key_of(&name.namespace, &name.name);
            if let Some(entry) = self.entries.get_mut(&*key) {
                entry.is_changed = false;
                self.drop_empty(&key);
            }
        }
        changed
    }

    /// The Services to be reported as left out, because their ports or some of their endpoints do not fit. Each is reported once,
    /// until a list was received of which everything fitted.
    pub(crate) fn take_left_out(&mut self) -> Vec<ServiceName> {
        mem::take(&mut self.left_out)
    }

    /// What is to be served of a Service: each of its ports in each of its families. Empty: the Service is gone, or is not proxied.
    pub(crate) fn ports(&self, name: &ServiceName) -> Vec<ServicePort> {
        let Some(entry) = self.entries.get(&*key_of(&name.namespace, &name.name)) else { return Vec::new() };
        let with_backends = |mut port: ServicePort| {
            let wanted = (port.cluster_ip.is_ipv4(), &*port.port_name, port.transport);
            let endpoints = entry.endpoints(wanted, &self.zone);
            let usable = topology::categorize(&endpoints, &port);
            (port.cluster, port.local, port.has_endpoints) =
                (usable.cluster, usable.local, usable.has_endpoints);
            if port.transport == Transport::Udp {
                let serving = endpoints.iter().filter(|endpoint| endpoint.is_serving);
                port.serving = serving.map(|of| SocketAddr::new(of.address, of.port)).collect();
            }
            port
        };
        entry.service.iter().flat_map(|service| service.families(name)).map(with_backends).collect()
    }

    /// Number of ready endpoints of a Service on this node, for `healthCheckNodePort`: of the family that has more of them, each
    /// address once, whatever its ports (`LocalReadyEndpoints`).
    pub(crate) fn local_ready(&self, name: &ServiceName) -> usize {
        let Some(entry) = self.entries.get(&*key_of(&name.namespace, &name.name)) else { return 0 };
        let count = |is_ipv4| {
            let mut found = Vec::new();
            for address in entry.slices.iter().flat_map(|held| held.slice.local_ready(is_ipv4)) {
                if !found.contains(&address) {
                    found.push(address);
                }
            }
            found.len()
        };
        count(true).max(count(false))
    }

    /// How many service ports are held, and endpoints, counted with each of their ports.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.used.ports, self.used.endpoints)
    }

    /// Heap that is held, the allocator's part included.
    pub(crate) fn bytes(&self) -> usize {
        self.used.bytes
    }

    fn put_service(&mut self, key: &str, service: Option<Service>) {
        if service.is_none() && !self.entries.contains_key(key) {
            return;
        }
        let entry = entry(&mut self.entries, &mut self.used, key);
        entry.is_service_listed = true;
        if entry.service == service {
            return;
        }
        let (before, was_there, is_there) = (entry.used(), entry.service.is_some(), service.is_some());
        let is_too_large = service.as_ref().is_some_and(Service::is_too_large);
        entry.service = service;
        let mut used = self.used.with(before, entry.used());
        let is_left_out = is_there && (is_too_large || !used.fits());
        if is_left_out {
            entry.service = None;
            used = self.used.with(before, entry.used());
        }
        let is_gone = entry.service.is_none() && used.bytes < self.used.bytes;
        self.used = used;
        // Of one that does not fit nothing is kept, however many there are.
        if was_there || entry.service.is_some() {
            mark(key, entry, &mut self.changed);
        }
        self.services.has_left_out |= is_left_out && !is_too_large;
        self.finish(key, is_left_out, is_gone);
    }

    fn put_slice(&mut self, key: &str, name: &str, slice: Slice) {
        let known = self.entries.get(key).and_then(|entry| entry.place(name));
        if known.is_none() && !self.slices.is_under_way {
            // Its label may have been changed. Of a list, the sweep finds what is left of it.
            let (namespace, _) = key.split_once('/').unwrap_or_default();
            self.remove_slice_elsewhere(namespace, name);
        }
        let entry = entry(&mut self.entries, &mut self.used, key);
        let before = entry.used();
        let place = known.unwrap_or(entry.slices.len());
        match entry.slices.get_mut(place) {
            Some(held) if held.slice == slice => {
                held.is_listed = true;
                return;
            }
            Some(held) => (held.slice, held.is_listed) = (slice, true),
            None => {
                // Most Services have one.
                entry.slices.reserve_exact(1);
                entry.slices.push(HeldSlice { name: name.into(), slice, is_listed: true });
            }
        }
        let mut used = self.used.with(before, entry.used());
        let is_left_out = !used.fits();
        if is_left_out {
            entry.slices.remove(place);
            entry.slices.shrink_to_fit();
            used = self.used.with(before, entry.used());
        }
        let is_gone = is_left_out && used.bytes < self.used.bytes;
        self.used = used;
        if entry.service.is_some() {
            mark(key, entry, &mut self.changed);
        }
        self.slices.has_left_out |= is_left_out;
        self.finish(key, is_left_out, is_gone);
    }

    /// Removes a slice of that Service. False: the Service has no such slice.
    fn remove_slice(&mut self, key: &str, name: &str) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let Some(place) = entry.place(name) else { return false };
        let before = entry.used();
        entry.slices.remove(place);
        entry.slices.shrink_to_fit();
        self.used = self.used.with(before, entry.used());
        if entry.service.is_some() {
            mark(key, entry, &mut self.changed);
        }
        self.finish(key, false, true);
        true
    }

    /// Removes a slice of whichever Service has it.
    fn remove_slice_elsewhere(&mut self, namespace: &str, name: &str) {
        let prefix = key_of(namespace, "");
        let from: (Bound<&str>, Bound<&str>) = (Bound::Included(&prefix), Bound::Unbounded);
        let mut in_namespace =
            self.entries.range::<str>(from).take_while(|(key, _)| key.starts_with(&*prefix));
        let found = in_namespace.find(|(_, entry)| entry.place(name).is_some()).map(|(key, _)| key.clone());
        if let Some(key) = found {
            self.remove_slice(&key, name);
        }
    }

    /// Ends a change of an entry: something of it did not fit, or something is gone.
    fn finish(&mut self, key: &str, is_left_out: bool, is_gone: bool) {
        if is_left_out && self.named.len() < SERVICES_LEFT_OUT_NAMED_MAX && self.named.insert(key.into()) {
            self.left_out.push(name_of(key));
        }
        for listing in [&mut self.services, &mut self.slices] {
            listing.has_room |= is_gone && listing.has_left_out && self.used.has_room();
        }
        self.drop_empty(key);
    }

    /// After a list of which everything fitted, what is left out later is reported again.
    fn forget_named(&mut self) {
        if !self.services.has_left_out && !self.slices.has_left_out {
            self.named.clear();
        }
    }

    /// Removes the entry if there is nothing of it, and nothing to be said.
    fn drop_empty(&mut self, key: &str) {
        if self.entries.get(key).is_some_and(|entry| entry.is_empty() && !entry.is_changed) {
            self.entries.remove(key);
            self.used.bytes -= entry_bytes(key);
        }
    }
}

impl Listing {
    fn begin(&mut self) {
        *self = Self { is_under_way: true, is_synced: self.is_synced, ..Self::default() };
    }
}

/// The entry of that key, which is made where there is none.
fn entry<'a>(entries: &'a mut SortedMap<Box<str>, Box<Entry>>, used: &mut Used, key: &str) -> &'a mut Entry {
    entries.entry(key.into()).or_insert_with(|| {
        used.bytes += entry_bytes(key);
        Box::default()
    })
}

fn mark(key: &str, entry: &mut Entry, changed: &mut Vec<ServiceName>) {
    if !mem::replace(&mut entry.is_changed, true) {
        changed.push(name_of(key));
    }
}
