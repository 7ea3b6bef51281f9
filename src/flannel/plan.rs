//! What flannel's network is on this node: which link carries it, what the vxlan links are, and the kernel's entries for the other
//! nodes. PURE.
//!
//! | for each other node and family | vxlan (`handleSubnetEvents`) | host-gw (`RouteNetwork`) |
//! |---|---|---|
//! | neighbour on `flannel.1` | the first address of its range has its link's hardware address | |
//! | entry of `flannel.1`'s forwarding table | that hardware address is at the node's address | |
//! | route | its range by way of that first address, on `flannel.1` | its range by way of the node, on the node's link |
//!
//! With `WireGuard` one route leads the cluster's network to `flannel-wg`, and its peers are the nodes (`wireguard`).

use std::fmt;
use std::net::IpAddr;

use super::node::VNI;
use super::rtnetlink::{Link, LinkKind, Vxlan};
use super::{Backend, LinkData, Mac, Way, family, wireguard};
use crate::model::Network;
use crate::netlink::link_address::{LinkAddress, preferred};

/// The vxlan links, by family.
pub(super) const LINKS: [&str; 2] = ["flannel.1", "flannel-v6.1"];
/// The UDP port of vxlan: the kernel's default, which flannel leaves.
pub(super) const PORT: u16 = 8472;
/// What vxlan puts before a packet, by family: the kernel lets no link of the other one have flannel's MTU (`encapOverhead`).
const VXLAN_BYTES: [u32; 2] = [50, 70];

/// The link between the nodes, with this node's address of each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct External {
    pub(super) index: u32,
    pub(super) name: Box<str>,
    pub(super) mtu: u32,
    pub(super) addresses: [Option<IpAddr>; 2],
}

impl External {
    /// Without the addresses of families that are not used. k3s' `LookupExtInterface`: at a boot one family may come later than the other,
    /// and pods that start between would never have it.
    ///
    /// # Errors
    /// It has no address of a family that is used.
    pub(super) fn use_families(&mut self, is_used: [bool; 2]) -> Result<(), String> {
        for ((address, is_used), family) in self.addresses.iter_mut().zip(is_used).zip(["IPv4", "IPv6"]) {
            *address = address.filter(|_| is_used);
            if is_used && address.is_none() {
                return Err(format!(
                    "interface {} has no {family} address, and the pods of this node have {family}; give --flannel-iface if it is another one",
                    self.name
                ));
            }
        }
        Ok(())
    }
}

/// The link that is `given` (`--flannel-iface`: its name or an address of it), else the one with the node's own address.
///
/// # Errors
/// There is none.
pub(super) fn external(
    links: &[Link],
    addresses: &[LinkAddress],
    given: Option<&str>,
    node: &[IpAddr],
) -> Result<External, String> {
    let with = |ip: IpAddr| {
        let found = addresses.iter().find(|of| of.address == ip)?;
        links.iter().find(|link| link.index == found.link)
    };
    let link = match given {
        Some(given) => {
            let found = given.parse().map_or_else(|_| links.iter().find(|link| &*link.name == given), with);
            found.ok_or_else(|| format!("--flannel-iface: there is no interface {given}"))?
        }
        None => node.iter().copied().find_map(with).ok_or_else(|| {
            let shown: Vec<String> = node.iter().map(IpAddr::to_string).collect();
            format!(
                "no interface has an address of the node ([{}]); give --flannel-iface or --node-ip",
                shown.join(" ")
            )
        })?,
    };
    let of = |wanted: usize| {
        let named = given.and_then(|given| given.parse().ok());
        let on_link = |ip: &IpAddr| addresses.iter().any(|of| of.link == link.index && of.address == *ip);
        let own =
            named.into_iter().chain(node.iter().copied()).find(|ip| family(*ip) == wanted && on_link(ip));
        own.or_else(|| {
            preferred(addresses.iter().filter(|of| of.link == link.index && family(of.address) == wanted))
        })
    };
    Ok(External { index: link.index, name: link.name.clone(), mtu: link.mtu, addresses: [of(0), of(1)] })
}

/// A link of flannel's as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkSpec {
    pub(super) name: &'static str,
    pub(super) mtu: u32,
    pub(super) kind: LinkKind,
    /// That of a vxlan link.
    pub(super) mac: Option<Mac>,
}

impl LinkSpec {
    /// The link of the backend and family; `None`: it needs none, or the node has no such address. A vxlan link that exists keeps its
    /// hardware address, which other nodes know; else it gets the one that the Node remembers, else the derived one.
    pub(super) fn new(
        backend: Backend,
        of: usize,
        external: &External,
        links: &[Link],
        remembered: Option<Mac>,
        derived: Mac,
    ) -> Option<Self> {
        let (local, mtu) = (external.addresses[of]?, backend.mtu(external.mtu, of));
        match backend {
            Backend::Vxlan => {
                let is_there =
                    |link: &&Link| &*link.name == LINKS[of] && matches!(link.kind, Some(LinkKind::Vxlan(_)));
                let mac = links.iter().find(is_there).and_then(|link| link.mac).or(remembered);
                let (parent, local) = (external.index, Some(local));
                let kind = LinkKind::Vxlan(Vxlan { id: VNI, parent, local, port: PORT, learns: false });
                Some(Self { name: LINKS[of], mtu, kind, mac: Some(mac.unwrap_or(derived)) })
            }
            Backend::Wireguard => {
                Some(Self { name: wireguard::LINKS[of], mtu, kind: LinkKind::Wireguard, mac: None })
            }
            Backend::HostGw => None,
        }
    }

    /// The link is this one, whatever its MTU (`vxlanLinksIncompat`).
    pub(super) fn is(&self, link: &Link) -> bool {
        link.kind == Some(self.kind) && (self.mac.is_none() || link.mac == self.mac)
    }
}

/// The link was made by flannel, with this or another backend.
pub(super) fn is_flannels(link: &Link) -> bool {
    match link.kind {
        Some(LinkKind::Vxlan(_)) => LINKS.contains(&&*link.name),
        Some(LinkKind::Wireguard) => wireguard::LINKS.contains(&&*link.name),
        None => false,
    }
}

impl Backend {
    /// The MTU of a family where the nodes' link has this one.
    pub(super) fn mtu(self, external: u32, of: usize) -> u32 {
        match self {
            Self::Vxlan => external.saturating_sub(VXLAN_BYTES[of]),
            Self::HostGw => external,
            Self::Wireguard => external.saturating_sub(wireguard::OVERHEAD),
        }
    }
}

/// An entry of the kernel's. In this order they are added; they are removed in the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Entry {
    /// `ip neigh`
    Neighbour { link: u32, address: IpAddr, mac: Mac },
    /// `bridge fdb`
    Forward { link: u32, mac: Mac, host: IpAddr },
    /// `ip route`; without a gateway the link knows where to.
    Route { range: Network, gateway: Option<IpAddr>, link: u32 },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Neighbour { address, mac, .. } => write!(f, "neighbour {address} at {mac}"),
            Self::Forward { mac, host, .. } => write!(f, "forwarding of {mac} to {host}"),
            Self::Route { range, gateway: Some(gateway), .. } => write!(f, "route to {range} via {gateway}"),
            Self::Route { range, gateway: None, .. } => write!(f, "route to {range}"),
        }
    }
}

impl Entry {
    /// The kernel has one entry with the same of these: adding one replaces the other.
    fn replaces(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Neighbour { link, address, .. }, Self::Neighbour { link: of, address: to, .. }) => {
                (link, address) == (of, to)
            }
            (Self::Forward { link, mac, .. }, Self::Forward { link: of, mac: to, .. }) => {
                (link, mac) == (of, to)
            }
            // With IPv6 a gateway may not be behind another link by the route that is there.
            (Self::Route { range, link, .. }, Self::Route { range: of, link: on, .. }) => {
                range == of && (range.address.is_ipv4() || link == on)
            }
            (Self::Neighbour { .. } | Self::Forward { .. } | Self::Route { .. }, _) => false,
        }
    }

    /// The entry is flannel's: on its own link, or a route to pods of the cluster by way of another node, on the link between the nodes.
    /// Such a route has nothing that tells it from one of the owner's: all are flannel's where it makes them (`external`), else those
    /// that it made before, which are among the sorted `former` ones.
    pub(super) fn is_flannels(
        &self,
        networks: &[Option<Network>; 2],
        own: [Option<u32>; 2],
        external: Option<u32>,
        former: &[Self],
    ) -> bool {
        let on_own = |link: &u32| own.contains(&Some(*link));
        match self {
            Self::Neighbour { link, .. } | Self::Forward { link, .. } => on_own(link),
            Self::Route { range, link, gateway } => {
                let is_of_pods = networks[family(range.address)].is_some_and(|network| network.covers(range));
                let is_between = external == Some(*link) && gateway.is_some();
                is_of_pods && (on_own(link) || is_between || former.binary_search(self).is_ok())
            }
        }
    }
}

/// The entries for these nodes, sorted. A node whose range is outside the cluster's network, or this node's own, is left out.
/// `links` are those that lead to the nodes, by family.
pub(super) fn wanted(
    backend: Backend,
    peers: &[Way],
    networks: &[Option<Network>; 2],
    own: &[Option<Network>; 2],
    links: [Option<u32>; 2],
) -> Vec<Entry> {
    let mut entries = Vec::new();
    if backend == Backend::Wireguard {
        for (network, link) in networks.iter().zip(links) {
            let (Some(range), Some(link)) = (*network, link) else { continue };
            entries.push(Entry::Route { range, gateway: None, link });
        }
        return entries;
    }
    for Way { range, host, data } in peers {
        let of = family(range.address);
        let is_theirs = own[of].is_some_and(|own| is_of_others(*range, networks[of], own));
        let Some(link) = links[of].filter(|_| is_theirs) else { continue };
        match (backend, data) {
            (Backend::Vxlan, Some(LinkData::Vxlan(mac))) => {
                let (gateway, mac) = (range.address, *mac);
                entries.push(Entry::Neighbour { link, address: gateway, mac });
                entries.push(Entry::Forward { link, mac, host: *host });
                entries.push(Entry::Route { range: *range, gateway: Some(gateway), link });
            }
            // It says so when its link is there.
            (Backend::Vxlan | Backend::Wireguard, _) => {}
            (Backend::HostGw, _) => {
                entries.push(Entry::Route { range: *range, gateway: Some(*host), link });
            }
        }
    }
    entries.sort_unstable();
    entries.dedup_by(|later, earlier| later.replaces(earlier));
    entries
}

/// The range is one of the cluster's network, and has nothing of this node's own.
pub(super) fn is_of_others(range: Network, network: Option<Network>, own: Network) -> bool {
    network.is_some_and(|network| network.covers(&range)) && !own.covers(&range) && !range.covers(&own)
}

/// What is removed, and then what is added, in this order. `there` is what the kernel has of flannel's.
pub(super) fn changes(wanted: &[Entry], mut there: Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
    there.sort_unstable();
    let added: Vec<Entry> =
        wanted.iter().filter(|entry| there.binary_search(entry).is_err()).copied().collect();
    let is_left =
        |old: &Entry| wanted.binary_search(old).is_err() && !added.iter().any(|new| new.replaces(old));
    let removed = there.iter().rev().filter(|old| is_left(old)).copied().collect();
    (removed, added)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::link_address::{PERMANENT, TEMPORARY};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn range(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.into(), mtu: 1500, mac: None, is_up: true, kind: None }
    }

    fn at(link: u32, address: &str, flags: u32) -> LinkAddress {
        LinkAddress { link, address: ip(address), bits: 24, flags }
    }

    #[test]
    fn a_network_waits_for_the_addresses_of_all_its_families() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        for (addresses, is_used, expected) in [
            ([Some(v4), Some(v6)], [true, true], Ok([Some(v4), Some(v6)])),
            ([Some(v4), Some(v6)], [true, false], Ok([Some(v4), None])),
            ([None, Some(v6)], [false, true], Ok([None, Some(v6)])),
            ([None, Some(v6)], [true, true], Err("has no IPv4 address")),
            ([Some(v4), None], [true, true], Err("has no IPv6 address")),
        ] {
            let mut external = External { index: 2, name: "eth0".into(), mtu: 1500, addresses };
            let used = external.use_families(is_used);
            match expected {
                Ok(expected) => assert_eq!((used, external.addresses), (Ok(()), expected)),
                Err(word) => assert!(used.clone().unwrap_err().contains(word), "{used:?}"),
            }
        }
    }

    #[test]
    fn the_link_between_the_nodes_is_the_given_one_or_that_of_the_nodes_address() {
        let links = [link(1, "lo"), link(2, "eth0"), link(3, "eth1")];
        let addresses = [
            at(1, "127.0.0.1", PERMANENT),
            at(2, "192.168.1.11", 0),
            at(2, "fe80::2", PERMANENT),
            at(2, "fd01::99", TEMPORARY),
            at(2, "fd01::11", 0),
            at(3, "169.254.3.3", PERMANENT),
            at(3, "10.9.0.3", 0x20),
            at(3, "10.9.0.4", PERMANENT),
        ];
        let (v4, v6) = (Some(ip("192.168.1.11")), Some(ip("fd01::11")));
        let node = [ip("192.168.1.11"), ip("fd01::11")];
        for (given, of_node, name, found) in [
            (None, &node[..], "eth0", [v4, v6]),
            // The other family is found on the same link.
            (None, &node[..1], "eth0", [v4, v6]),
            (Some("eth0"), &[], "eth0", [v4, v6]),
            (Some("eth1"), &node, "eth1", [Some(ip("10.9.0.4")), None]),
            (Some("169.254.3.3"), &node, "eth1", [Some(ip("169.254.3.3")), None]),
        ] {
            let external = external(&links, &addresses, given, of_node).unwrap();
            assert_eq!((&*external.name, external.addresses), (name, found), "{given:?} {of_node:?}");
        }
        for (given, of_node, named) in [
            (Some("eth7"), &node[..], "no interface eth7"),
            (None, &[ip("10.1.1.1")], "[10.1.1.1]"),
            (None, &[], "--node-ip"),
        ] {
            let why = external(&links, &addresses, given, of_node).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }

    #[test]
    fn a_link_keeps_its_hardware_address_and_is_another_one_when_its_ends_change() {
        let of =
            |mtu, v4: &str| External { index: 2, name: "eth0".into(), mtu, addresses: [Some(ip(v4)), None] };
        let external = of(1500, "192.168.1.11");
        let (derived, remembered, own) = (Mac([2; 6]), Mac([6; 6]), Mac([10; 6]));
        let new = |of, external: &External, links: &[Link], remembered| {
            LinkSpec::new(Backend::Vxlan, of, external, links, remembered, derived)
        };
        let spec = |links: &[Link], remembered| new(0, &external, links, remembered);
        assert_eq!(spec(&[], None).unwrap().mac, Some(derived));
        let made = spec(&[], Some(remembered)).unwrap();
        assert_eq!((made.mac, made.mtu, made.name), (Some(remembered), 1450, "flannel.1"));
        let vxlan = Vxlan { id: 1, parent: 2, local: Some(ip("192.168.1.11")), port: 8472, learns: false };
        let there = Link { mac: Some(own), kind: Some(LinkKind::Vxlan(vxlan)), ..link(9, "flannel.1") };
        let kept = spec(std::slice::from_ref(&there), Some(remembered)).unwrap();
        assert!(kept.mac == Some(own) && kept.is(&there) && is_flannels(&there));
        assert_eq!(new(1, &external, &[], None), None, "no address of this family");
        for other in [
            Vxlan { id: 2, ..vxlan },
            Vxlan { parent: 3, ..vxlan },
            Vxlan { local: None, ..vxlan },
            Vxlan { port: 4789, ..vxlan },
            Vxlan { learns: true, ..vxlan },
        ] {
            assert!(!kept.is(&Link { kind: Some(LinkKind::Vxlan(other)), ..there.clone() }), "{other:?}");
        }
        let moved = new(0, &of(1400, "192.168.1.12"), std::slice::from_ref(&there), None);
        assert!(moved.is_some_and(|moved| moved.mac == Some(own) && moved.mtu == 1350 && !moved.is(&there)));

        let encrypted = LinkSpec::new(Backend::Wireguard, 0, &external, &[], None, derived).unwrap();
        assert_eq!((encrypted.mac, encrypted.mtu, encrypted.name), (None, 1420, "flannel-wg"));
        let there = Link { kind: Some(LinkKind::Wireguard), ..link(9, "flannel-wg") };
        assert!(encrypted.is(&there) && is_flannels(&there) && !encrypted.is(&link(9, "flannel-wg")));
        let others = Link { name: "wg0".into(), ..there };
        assert!(!is_flannels(&others) && !is_flannels(&link(9, "flannel.1")));
        assert_eq!(LinkSpec::new(Backend::HostGw, 0, &external, &[], None, derived), None);
    }

    fn way(cidr: &str, host: &str, mac: u8) -> Way {
        let data = (mac > 0).then_some(LinkData::Vxlan(Mac([mac; 6])));
        Way { range: range(cidr), host: ip(host), data }
    }

    const NETWORKS: [&str; 2] = ["10.42.0.0/16", "fd00:42::/56"];

    fn networks() -> [Option<Network>; 2] {
        NETWORKS.map(Network::parse)
    }

    fn entries(backend: Backend, peers: &[Way]) -> Vec<Entry> {
        let own = [Some(range("10.42.1.0/24")), Some(range("fd00:42:0:1::/64"))];
        let links = match backend {
            Backend::Vxlan | Backend::Wireguard => [Some(9), Some(10)],
            Backend::HostGw => [Some(2); 2],
        };
        wanted(backend, peers, &networks(), &own, links)
    }

    #[test]
    fn each_node_has_its_entries_as_flannel_makes_them() {
        let peers = [way("10.42.2.0/24", "192.168.1.12", 2), way("fd00:42:0:2::/64", "fd01::12", 4)];
        assert_eq!(
            entries(Backend::Vxlan, &peers),
            [
                Entry::Neighbour { link: 9, address: ip("10.42.2.0"), mac: Mac([2; 6]) },
                Entry::Neighbour { link: 10, address: ip("fd00:42:0:2::"), mac: Mac([4; 6]) },
                Entry::Forward { link: 9, mac: Mac([2; 6]), host: ip("192.168.1.12") },
                Entry::Forward { link: 10, mac: Mac([4; 6]), host: ip("fd01::12") },
                Entry::Route { range: peers[0].range, gateway: Some(ip("10.42.2.0")), link: 9 },
                Entry::Route { range: peers[1].range, gateway: Some(ip("fd00:42:0:2::")), link: 10 },
            ]
        );
        assert_eq!(
            entries(Backend::HostGw, &peers),
            [
                Entry::Route { range: peers[0].range, gateway: Some(ip("192.168.1.12")), link: 2 },
                Entry::Route { range: peers[1].range, gateway: Some(ip("fd01::12")), link: 2 },
            ]
        );
        let [v4, v6] = networks().map(Option::unwrap);
        assert_eq!(
            entries(Backend::Wireguard, &peers),
            [
                Entry::Route { range: v4, gateway: None, link: 9 },
                Entry::Route { range: v6, gateway: None, link: 10 },
            ]
        );
        // Outside the network, this node's own, all of the network, without a link yet; the second one of the same range.
        for wrong in [
            way("10.43.2.0/24", "192.168.1.12", 2),
            way("10.42.1.0/24", "192.168.1.12", 2),
            way("10.42.1.128/25", "192.168.1.12", 2),
            way("10.42.0.0/16", "192.168.1.12", 2),
            way("0.0.0.0/0", "192.168.1.12", 2),
            way("10.42.2.0/24", "192.168.1.12", 0),
        ] {
            assert_eq!(entries(Backend::Vxlan, &[wrong]), [], "{wrong:?}");
        }
        let twice = [way("10.42.2.0/24", "192.168.1.12", 2), way("10.42.2.0/24", "192.168.1.13", 2)];
        assert_eq!(entries(Backend::HostGw, &twice).len(), 1);
        assert_eq!(entries(Backend::Vxlan, &twice).len(), 3);
    }

    #[test]
    fn the_difference_is_made_and_nothing_else() {
        let before = entries(
            Backend::Vxlan,
            &[way("10.42.2.0/24", "192.168.1.12", 2), way("10.42.3.0/24", "192.168.1.13", 3)],
        );
        let none = (Vec::new(), Vec::new());
        assert_eq!(changes(&before, before.iter().rev().copied().collect()), none);
        assert_eq!(changes(&before, Vec::new()), (Vec::new(), before.clone()));
        // All go: the routes first.
        let (gone, added) = changes(&[], before.clone());
        assert!(added.is_empty() && gone.len() == 6 && matches!(gone[0], Entry::Route { .. }));
        assert!(matches!(gone[5], Entry::Neighbour { .. }));
        // One has another link: its neighbour is replaced, which a removal behind it would undo.
        let other = entries(
            Backend::Vxlan,
            &[way("10.42.2.0/24", "192.168.1.12", 7), way("10.42.3.0/24", "192.168.1.13", 3)],
        );
        let (gone, added) = changes(&other, before.clone());
        assert_eq!(gone, [Entry::Forward { link: 9, mac: Mac([2; 6]), host: ip("192.168.1.12") }]);
        assert_eq!(added.len(), 2);
        // One has another address.
        let moved = entries(
            Backend::Vxlan,
            &[way("10.42.2.0/24", "192.168.1.22", 2), way("10.42.3.0/24", "192.168.1.13", 3)],
        );
        let (gone, added) = changes(&moved, before.clone());
        assert!(gone.is_empty());
        assert_eq!(added, [Entry::Forward { link: 9, mac: Mac([2; 6]), host: ip("192.168.1.22") }]);
        // Another backend: the routes are replaced.
        let routes = entries(
            Backend::HostGw,
            &[way("10.42.2.0/24", "192.168.1.12", 2), way("10.42.3.0/24", "192.168.1.13", 3)],
        );
        let (gone, added) = changes(&routes, before);
        assert!(gone.len() == 4 && !gone.iter().any(|entry| matches!(entry, Entry::Route { .. })));
        assert_eq!(added, routes);
    }

    #[test]
    fn what_is_of_others_is_none_of_flannels() {
        let route = |to: &str, link| Entry::Route { range: range(to), gateway: Some(ip("10.0.0.1")), link };
        let direct = |to: &str, link| Entry::Route { range: range(to), gateway: None, link };
        // Of a node that is known host-gw would have made the route.
        let former = entries(Backend::HostGw, &[way("10.42.3.0/24", "10.0.0.1", 3)]);
        // With host-gw, and with vxlan.
        for (entry, is_ours) in [
            (route("10.42.2.0/24", 9), [true; 2]),
            (route("10.42.2.0/24", 2), [true, false]),
            (route("10.42.3.0/24", 2), [true; 2]),
            (route("10.42.2.0/24", 5), [false; 2]),
            (route("192.168.7.0/24", 2), [false; 2]),
            (route("0.0.0.0/0", 2), [false; 2]),
            (direct("10.42.0.0/16", 9), [true; 2]),
            (direct("10.42.9.0/24", 2), [false; 2]),
            (Entry::Forward { link: 9, mac: Mac([1; 6]), host: ip("10.0.0.1") }, [true; 2]),
            (Entry::Neighbour { link: 2, address: ip("10.0.0.1"), mac: Mac([1; 6]) }, [false; 2]),
        ] {
            let of = |external| entry.is_flannels(&networks(), [Some(9), None], external, &former);
            assert_eq!([of(Some(2)), of(None)], is_ours, "{entry:?}");
        }
    }
}
