//! Namespaces and pods of the cluster, as far as policies look at them. PURE.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::selector::{self, Label};
use super::words::{WordId, Words};
use crate::decode::Node;
use crate::limits::{NETWORK_POLICY_NAMESPACES_MAX, NETWORK_POLICY_POD_BYTES, NETWORK_POLICY_POD_PORTS_MAX};
use crate::model::Transport;

/// A namespace, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamespaceId(pub(super) u32);

/// The namespaces that exist, or that a pod or a policy names.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Vec<Namespace>);

#[derive(Debug)]
struct Namespace {
    name: Box<str>,
    /// `None`: it is not known to exist, or has too many labels: no `namespaceSelector` selects it.
    labels: Option<Box<[Label]>>,
    /// Pods and policies.
    holders: u32,
    generation: u32,
}

impl Namespaces {
    /// Held by a pod or a policy. `None`: there are too many, and this one is not needed.
    pub(super) fn hold(&mut self, name: &str, is_needed: bool) -> Option<NamespaceId> {
        let place = self.place(name, is_needed)?;
        self.0[place].holders += 1;
        Some(NamespaceId(u32::try_from(place).unwrap_or(u32::MAX)))
    }

    /// Its place, or a free one with its name.
    fn place(&mut self, name: &str, is_needed: bool) -> Option<usize> {
        let mut free = None;
        for (place, namespace) in self.0.iter().enumerate() {
            if *namespace.name == *name {
                return Some(place);
            }
            if namespace.name.is_empty() {
                free = Some(place);
            }
        }
        let new = Namespace { name: name.into(), labels: None, holders: 0, generation: 0 };
        if let Some(place) = free {
            self.0[place] = new;
            return Some(place);
        }
        if self.0.len() >= NETWORK_POLICY_NAMESPACES_MAX && !is_needed {
            return None;
        }
        self.0.push(new);
        Some(self.0.len() - 1)
    }

    pub(super) fn release(&mut self, NamespaceId(place): NamespaceId) {
        let namespace = &mut self.0[place as usize];
        namespace.holders -= 1;
        namespace.free();
    }

    pub(super) fn name(&self, NamespaceId(place): NamespaceId) -> &str {
        &self.0[place as usize].name
    }

    pub(super) fn labels(&self, NamespaceId(place): NamespaceId) -> Option<&[Label]> {
        self.0[place as usize].labels.as_deref()
    }

    /// It exists, with these labels. Returns it if they are new, and false if there are too many namespaces.
    pub(super) fn apply(
        &mut self,
        object: &Node,
        generation: u32,
        words: &mut Words,
    ) -> Result<Option<NamespaceId>, ()> {
        let metadata = object.field("metadata");
        let Some(name) = metadata.and_then(|metadata| metadata.field("name")).and_then(Node::text) else {
            return Ok(None);
        };
        let place = self.place(name, false).ok_or(())?;
        let namespace = &mut self.0[place];
        namespace.generation = generation;
        let labels = selector::labels(metadata, words);
        let old = std::mem::replace(&mut namespace.labels, labels);
        let is_new = old != namespace.labels;
        selector::release(&old.unwrap_or_default(), words);
        self.0[place].free();
        Ok(is_new.then(|| NamespaceId(u32::try_from(place).unwrap_or(u32::MAX))))
    }

    /// Removes the labels of those that `is_gone` names; returns these namespaces.
    pub(super) fn remove(
        &mut self,
        words: &mut Words,
        mut is_gone: impl FnMut(&str, u32) -> bool,
    ) -> Vec<NamespaceId> {
        let mut gone = Vec::new();
        for (place, namespace) in self.0.iter_mut().enumerate() {
            if !namespace.name.is_empty() && is_gone(&namespace.name, namespace.generation) {
                if let Some(labels) = namespace.labels.take() {
                    selector::release(&labels, words);
                    gone.push(NamespaceId(u32::try_from(place).unwrap_or(u32::MAX)));
                }
                namespace.free();
            }
        }
        gone
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |namespace: &Namespace| {
            namespace.name.len() + namespace.labels.as_ref().map_or(0, |labels| size_of_val(&**labels))
        };
        self.0.capacity() * size_of::<Namespace>() + self.0.iter().map(of).sum::<usize>()
    }
}

impl Namespace {
    /// Its place is free when nobody needs it.
    fn free(&mut self) {
        if self.holders == 0 && self.labels.is_none() {
            self.name = Box::default();
        }
    }
}

/// `metadata.uid`, digested to 16 bytes: a server's UID has as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UidDigest([u8; 16]);

impl UidDigest {
    /// FNV-1a of 128 bits: the server, and nobody else, chooses UIDs.
    pub(super) fn of(uid: &str) -> Self {
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        for byte in uid.bytes() {
            hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        Self(hash.to_be_bytes())
    }
}

/// A pod's addresses, one of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// The first of each family counts.
    pub(super) fn of<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut addresses = Self::default();
        for text in texts {
            match text.parse() {
                Ok(IpAddr::V4(address)) => addresses.v4 = addresses.v4.or(Some(address)),
                Ok(IpAddr::V6(address)) => addresses.v6 = addresses.v6.or(Some(address)),
                Err(_) => {}
            }
        }
        addresses
    }

    pub(super) fn iter(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }

    pub(super) fn is_empty(self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }

    pub(super) fn share(self, other: Self) -> bool {
        self.v4.is_some() && self.v4 == other.v4 || self.v6.is_some() && self.v6 == other.v6
    }
}

/// A named port of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodPort {
    pub(super) name: WordId,
    pub(super) number: u16,
    pub(super) protocol: Transport,
}

/// A pod with an address of its own that has not ended. Its addresses, its ports and its node never change: a pod with others is
/// another record.
#[derive(Debug)]
pub(super) struct Pod {
    uid: UidDigest,
    pub(super) namespace: NamespaceId,
    pub(super) addresses: Addresses,
    /// `None`: too many. No selector of a peer selects it, and each policy of its namespace isolates it.
    pub(super) labels: Option<Box<[Label]>>,
    pub(super) ports: Box<[PodPort]>,
    generation: u32,
    /// It runs on this node.
    pub(super) is_local: bool,
    /// It is being deleted: its address may be another pod's already.
    pub(super) is_ending: bool,
    /// It is removed once the kernel has been told.
    pub(super) is_gone: bool,
    /// Its elements are in the kernel's sets.
    pub(super) is_applied: bool,
    /// It waits for the next transaction.
    pub(super) is_changed: bool,
}

const _: () = assert!(size_of::<Pod>() + size_of::<u32>() <= NETWORK_POLICY_POD_BYTES / 2);

/// A pod of this node whose sandbox has just got its addresses.
#[derive(Clone, Debug)]
pub struct NewPod {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its labels.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// Its named ports: name, protocol, number.
    pub ports: Vec<(Box<str>, Box<str>, u16)>,
    /// Addresses of its sandbox.
    pub ips: Vec<Box<str>>,
}

impl NewPod {
    /// In the place of the server's UID: that of a static pod's mirror is another one.
    fn uid(namespace: &str, name: &str) -> String {
        format!("{namespace}/{name}")
    }

    pub(super) fn digest(namespace: &str, name: &str) -> UidDigest {
        UidDigest::of(&Self::uid(namespace, name))
    }

    /// Bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        let labels = self.labels.iter().map(|(key, value)| key.len() + value.len());
        let ports = self.ports.iter().map(|(name, protocol, _)| name.len() + protocol.len());
        let ips = self.ips.iter().map(|ip| ip.len());
        self.namespace.len() + self.name.len() + labels.chain(ports).chain(ips).sum::<usize>()
    }

    /// As the server would show it.
    pub(super) fn object(&self, node: &str) -> Node {
        let text = |text: &str| Node::Text(text.into());
        let map = |fields: Vec<(&str, Node)>| {
            Node::Map(fields.into_iter().map(|(key, value)| (key.into(), value)).collect())
        };
        let labels = self.labels.iter().map(|(key, value)| (key.clone(), Node::Text(value.clone())));
        let port = |(name, protocol, number): &(Box<str>, Box<str>, u16)| {
            let number = Node::Int(i64::from(*number));
            map(vec![("name", text(name)), ("protocol", text(protocol)), ("containerPort", number)])
        };
        let container = map(vec![("ports", Node::List(self.ports.iter().map(port).collect()))]);
        let ips = self.ips.iter().map(|ip| map(vec![("ip", text(ip))])).collect();
        map(vec![
            (
                "metadata",
                map(vec![
                    ("namespace", text(&self.namespace)),
                    ("name", text(&self.name)),
                    ("uid", Node::Text(Self::uid(&self.namespace, &self.name).into())),
                    ("labels", Node::Map(labels.collect())),
                ]),
            ),
            ("spec", map(vec![("nodeName", text(node)), ("containers", Node::List(vec![container]))])),
            ("status", map(vec![("podIPs", Node::List(ips))])),
        ])
    }
}

/// What is read of a pod's object.
pub(super) struct Read<'a> {
    pub(super) uid: UidDigest,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) addresses: Addresses,
    pub(super) is_local: bool,
    pub(super) is_ending: bool,
    object: &'a Node,
}

impl<'a> Read<'a> {
    /// `None`: it has no name, which no server sends. A pod with the node's addresses, and one that has ended, has none of its own
    /// (kube-router's `isNetPolActionable`).
    pub(super) fn of(object: &'a Node, node: &str) -> Option<Self> {
        let metadata = object.field("metadata")?;
        let text = |field| metadata.field(field).and_then(Node::text);
        let (spec, status) = (object.field("spec"), object.field("status"));
        let phase = status.and_then(|status| status.field("phase")).and_then(Node::text);
        let is_on_host = spec.and_then(|spec| spec.field("hostNetwork")) == Some(&Node::Bool(true));
        let addresses = if is_on_host || matches!(phase, Some("Succeeded" | "Failed")) {
            Addresses::default()
        } else {
            let several =
                status.and_then(|status| status.field("podIPs")).map(Node::items).unwrap_or_default();
            let one = status.and_then(|status| status.field("podIP"));
            let several = several.iter().filter_map(|ip| ip.field("ip"));
            Addresses::of(several.chain(one).filter_map(Node::text))
        };
        Some(Self {
            uid: UidDigest::of(text("uid")?),
            namespace: text("namespace")?,
            name: text("name")?,
            addresses,
            is_local: spec.and_then(|spec| spec.field("nodeName")).and_then(Node::text) == Some(node),
            is_ending: metadata.field("deletionTimestamp").is_some(),
            object,
        })
    }

    /// Its named ports, those of sidecars among them.
    fn ports(&self, words: &mut Words) -> Box<[PodPort]> {
        let spec = self.object.field("spec");
        let list = |field| spec.and_then(|spec| spec.field(field)).map(Node::items).unwrap_or_default();
        let is_sidecar = |init: &&Node| init.field("restartPolicy").and_then(Node::text) == Some("Always");
        let mut ports = Vec::new();
        for container in list("containers").iter().chain(list("initContainers").iter().filter(is_sidecar)) {
            for port in container.field("ports").map(Node::items).unwrap_or_default() {
                let name = port.field("name").and_then(Node::text).filter(|name| !name.is_empty());
                let protocol = Transport::read(port.field("protocol").and_then(Node::text));
                let number = match port.field("containerPort") {
                    Some(Node::Int(number)) => u16::try_from(*number).ok(),
                    _ => None,
                };
                if let (Some(name), Some(protocol), Some(number)) = (name, protocol, number)
                    && ports.len() < NETWORK_POLICY_POD_PORTS_MAX
                {
                    ports.push(PodPort { name: words.hold(name), number, protocol });
                }
            }
        }
        ports.into()
    }
}

/// The pods, each at its place until the kernel has been told that it is gone.
#[derive(Debug, Default)]
pub(super) struct Pods {
    places: Vec<Option<Pod>>,
    /// Places of those that are not gone, by UID.
    order: Vec<u32>,
    /// Free places.
    free: Vec<u32>,
    /// Places of those that wait for the next transaction.
    pub(super) changed: Vec<u32>,
    /// Bytes of labels and ports.
    heap_bytes: usize,
    /// Pods of this node have changed.
    pub(super) is_local_changed: bool,
}

/// Room for more without doubling what there is.
fn grow<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(16.max(list.len() / 8));
    }
}

impl Pods {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    fn find(&self, uid: UidDigest) -> Result<usize, usize> {
        let uid_at = |place: &u32| self.places[*place as usize].as_ref().map(|pod| pod.uid);
        self.order.binary_search_by(|place| uid_at(place).cmp(&Some(uid)))
    }

    pub(super) fn get(&self, place: u32) -> Option<&Pod> {
        self.places[place as usize].as_ref()
    }

    /// All of them, with their places; those that are gone among them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Pod)> {
        (0..).zip(&self.places).filter_map(|(place, pod)| Some((place, pod.as_ref()?)))
    }

    pub(super) fn has(&self, uid: UidDigest) -> bool {
        self.find(uid).is_ok()
    }

    /// The pod exists. One without an address is none.
    pub(super) fn apply(
        &mut self,
        read: &Read<'_>,
        generation: u32,
        namespaces: &mut Namespaces,
        words: &mut Words,
    ) {
        if read.addresses.is_empty() {
            return self.delete(read.uid);
        }
        let labels = selector::labels(read.object.field("metadata"), words);
        if let Ok(at) = self.find(read.uid) {
            let place = self.order[at];
            if let Some(pod) = &mut self.places[place as usize]
                && (pod.addresses, pod.is_local) == (read.addresses, read.is_local)
            {
                pod.generation = generation;
                let old = std::mem::replace(&mut pod.labels, labels);
                let is_changed = old != pod.labels || pod.is_ending != read.is_ending;
                pod.is_ending = read.is_ending;
                let bytes = |labels: &Option<Box<[Label]>>| {
                    labels.as_ref().map_or(0, |labels| size_of_val(&**labels))
                };
                self.heap_bytes = self.heap_bytes + bytes(&pod.labels) - bytes(&old);
                selector::release(&old.unwrap_or_default(), words);
                if is_changed {
                    self.mark(place);
                }
                return;
            }
            self.delete(read.uid);
        }
        // This node's pods are few, and to be isolated in any case.
        let Some(namespace) = namespaces.hold(read.namespace, read.is_local) else {
            return selector::release(&labels.unwrap_or_default(), words);
        };
        let pod = Pod {
            uid: read.uid,
            namespace,
            addresses: read.addresses,
            labels,
            ports: read.ports(words),
            generation,
            is_local: read.is_local,
            is_ending: read.is_ending,
            is_gone: false,
            is_applied: false,
            is_changed: false,
        };
        self.heap_bytes += pod.heap();
        let place = if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(pod);
            place
        } else {
            grow(&mut self.places);
            self.places.push(Some(pod));
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        };
        if let Err(at) = self.find(read.uid) {
            grow(&mut self.order);
            self.order.insert(at, place);
        }
        self.mark(place);
    }

    /// It no longer exists, or has ended.
    pub(super) fn delete(&mut self, uid: UidDigest) {
        if let Ok(at) = self.find(uid) {
            let place = self.order.remove(at);
            if let Some(pod) = &mut self.places[place as usize] {
                pod.is_gone = true;
            }
            self.mark(place);
        }
    }

    /// The list would have named it.
    pub(super) fn keep(&mut self, uid: UidDigest, generation: u32) {
        if let Ok(at) = self.find(uid)
            && let Some(pod) = &mut self.places[self.order[at] as usize]
        {
            pod.generation = generation;
        }
    }

    /// Those that a list did not name no longer exist.
    pub(super) fn delete_others(&mut self, generation: u32) {
        let of = |pod: &Pod| (pod.generation != generation && !pod.is_gone).then_some(pod.uid);
        let gone: Vec<UidDigest> = self.iter().filter_map(|(_, pod)| of(pod)).collect();
        for uid in gone {
            self.delete(uid);
        }
    }

    fn mark(&mut self, place: u32) {
        if let Some(pod) = &mut self.places[place as usize] {
            self.is_local_changed |= pod.is_local;
            if !pod.is_changed {
                pod.is_changed = true;
                self.changed.push(place);
            }
        }
    }

    /// The labels of these namespaces have changed.
    pub(super) fn mark_namespaces(&mut self, changed: &[NamespaceId]) {
        if changed.is_empty() {
            return;
        }
        let of = |(place, pod): (u32, &Pod)| changed.contains(&pod.namespace).then_some(place);
        let places: Vec<u32> = self.iter().filter_map(of).collect();
        for place in places {
            self.mark(place);
        }
    }

    /// The kernel has been told about the pod at that place. One that is gone is forgotten.
    pub(super) fn applied(&mut self, place: u32, namespaces: &mut Namespaces, words: &mut Words) {
        let Some(pod) = &mut self.places[place as usize] else { return };
        pod.is_applied = true;
        pod.is_changed = false;
        if pod.is_gone
            && let Some(pod) = self.places[place as usize].take()
        {
            self.heap_bytes -= pod.heap();
            selector::release(&pod.labels.unwrap_or_default(), words);
            for port in pod.ports {
                words.release(port.name);
            }
            namespaces.release(pod.namespace);
            self.free.push(place);
        }
    }

    /// The kernel knows none.
    pub(super) fn mark_all(&mut self) {
        for place in 0..self.places.len() {
            if let Some(pod) = &mut self.places[place] {
                pod.is_applied = false;
            }
            self.mark(u32::try_from(place).unwrap_or(u32::MAX));
        }
        self.is_local_changed = true;
    }

    pub(super) fn bytes(&self) -> usize {
        let numbers = self.order.capacity() + self.free.capacity() + self.changed.capacity();
        self.places.capacity() * size_of::<Option<Pod>>() + numbers * size_of::<u32>() + self.heap_bytes
    }
}

impl Pod {
    fn heap(&self) -> usize {
        size_of_val(&*self.ports) + self.labels.as_ref().map_or(0, |labels| size_of_val(&**labels))
    }
}
