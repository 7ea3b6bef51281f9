//! What nodes with flannel say of themselves in their Nodes' annotations (`subnet/kube`). PURE.
//!
//! | annotation `flannel.alpha.coreos.com/` | vxlan | host-gw | wireguard |
//! |---|---|---|---|
//! | `backend-type` | `vxlan` | `host-gw` | `wireguard` |
//! | `backend-data`, `backend-v6-data` | `{"VNI":1,"VtepMAC":"…"}` of each family | `null` | `{"PublicKey":"…","Port":51820}`, of IPv6 51821 |
//! | `public-ip`, `public-ipv6` | where the node is reached | | |
//! | `kube-subnet-manager` | `true` | | |
//! | `public-ip-overwrite`, `public-ipv6-overwrite` | takes the place of `public-ip`: an administrator's, or that of `--node-external-ip` | | |

use std::fmt;
use std::net::IpAddr;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::wireguard::PORTS;
use super::{Backend, family};
use crate::cluster::k3s_node::FLANNEL;
use crate::decode::{Node, json};
use crate::limits::FLANNEL_PEER_WAY_BYTES;
use crate::model::Network;
use crate::model::SortedMap;

/// The VNI of k3s' networks, flannel's default.
pub(super) const VNI: u32 = 1;

/// Names by family.
const PUBLIC: [&str; 2] = ["public-ip", "public-ipv6"];
const OVERWRITE: [&str; 2] = ["public-ip-overwrite", "public-ipv6-overwrite"];
const DATA: [&str; 2] = ["backend-data", "backend-v6-data"];
const TYPE: &str = "backend-type";
const MANAGED: &str = "kube-subnet-manager";

/// A link's hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl Mac {
    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let is_byte =
                |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let part = parts.next().filter(is_byte)?;
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }

    /// One of this node's own, for a link that was never there: local, of one machine, the same each time.
    pub(crate) fn derived(seed: u64) -> Self {
        let [_, _, mut bytes @ ..] = seed.to_be_bytes();
        bytes[0] = (bytes[0] & 0xfe) | 2;
        Self(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|byte| format!("{byte:02x}")).join(":"))
    }
}

/// A public key of `WireGuard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) [u8; 32]);

impl Key {
    fn parse(text: &str) -> Option<Self> {
        BASE64_STANDARD.decode(text).ok()?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

/// What others have to know of a node's link beside the node's address (`backend-data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkData {
    /// The hardware address of its vxlan link.
    Vxlan(Mac),
    /// The key and the UDP port of its `WireGuard` link.
    Wireguard(Key, u16),
}

impl LinkData {
    /// What `backend-data` of a family says.
    fn parse(text: &str, of: usize) -> Option<Self> {
        let data = json::read(text.as_bytes()).ok()?;
        let value = |name: &str| data.field(name).and_then(Node::text);
        if let Some(key) = value("PublicKey") {
            // An older flannel names no port.
            let port = match data.field("Port") {
                None | Some(Node::Int(0)) => PORTS[of],
                Some(Node::Int(port)) => u16::try_from(*port).ok()?,
                Some(_) => return None,
            };
            return Some(Self::Wireguard(Key::parse(key)?, port));
        }
        Some(Self::Vxlan(Mac::parse(value("VtepMAC")?)?))
    }
}

impl fmt::Display for LinkData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(mac) => write!(f, r#"{{"VNI":{VNI},"VtepMAC":"{mac}"}}"#),
            Self::Wireguard(key, port) => write!(f, r#"{{"PublicKey":"{key}","Port":{port}}}"#),
        }
    }
}

/// The way to a node's pods of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The pods' addresses.
    pub(crate) range: Network,
    /// The node's address.
    pub(crate) host: IpAddr,
    /// Of its link, if it has one.
    pub(crate) data: Option<LinkData>,
}

const _: () = assert!(size_of::<Way>() <= FLANNEL_PEER_WAY_BYTES);

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) backend: Backend,
    /// One of each family that it has.
    pub(crate) ways: Box<[Way]>,
}

impl Peer {
    /// From its Node (`nodeToLease`); `None`: it has no flannel, or none that is ready. A family that is not whole is left out, where
    /// flannel leaves out the node.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let annotations = node.field("metadata")?.field("annotations")?;
        let text = |name: &str| annotations.field(&format!("{FLANNEL}{name}")).and_then(Node::text);
        if text(MANAGED) != Some("true") {
            return None;
        }
        let backend = Backend::of(text(TYPE)?)?;
        let spec = node.field("spec")?;
        let several = spec.field("podCIDRs").map(Node::items).unwrap_or_default();
        let one = spec.field("podCIDR").filter(|_| several.is_empty());
        let mut ways: [Option<Way>; 2] = [None; 2];
        for range in several.iter().chain(one).filter_map(Node::text).filter_map(Network::parse) {
            let of = family(range.address);
            let host: Option<IpAddr> = text(PUBLIC[of]).and_then(|ip| ip.parse().ok());
            // One of the other family, or none that a packet could be sent to, is nobody's.
            let Some(host) = host.filter(|host| family(*host) == of && is_host(*host)) else { continue };
            let data = text(DATA[of]).and_then(|data| LinkData::parse(data, of));
            ways[of].get_or_insert(Way { range, host, data });
        }
        let ways: Box<[Way]> = ways.into_iter().flatten().collect();
        (!ways.is_empty()).then_some(Self { backend, ways })
    }
}

fn is_host(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// The annotations of a Node, by their whole names.
pub(crate) type Annotations = SortedMap<Box<str>, Box<str>>;

fn annotation<'a>(annotations: &'a Annotations, name: &str) -> Option<&'a str> {
    annotations.get(format!("{FLANNEL}{name}").as_str()).map(|value| &**value)
}

/// The hardware addresses that this node had (`GetStoredMacAddresses`), by family.
pub(crate) fn macs(annotations: &Annotations) -> [Option<Mac>; 2] {
    [0, 1].map(|of| match LinkData::parse(annotation(annotations, DATA[of])?, of)? {
        LinkData::Vxlan(mac) => Some(mac),
        LinkData::Wireguard(..) => None,
    })
}

/// The annotations of this node (`AcquireLease`, k3s' `setAnnotations`): its addresses and links by family. `there` are those
/// of its Node, `external` are the addresses by which other nodes reach it, if those count.
pub(crate) fn annotations(
    backend: Backend,
    hosts: [Option<IpAddr>; 2],
    links: [Option<LinkData>; 2],
    external: [Option<IpAddr>; 2],
    there: &Annotations,
) -> Annotations {
    let mut annotations = Annotations::new();
    let mut put =
        |name: &str, value: String| annotations.insert(format!("{FLANNEL}{name}").into(), value.into());
    put(TYPE, backend.name().to_owned());
    put(MANAGED, "true".to_owned());
    for of in 0..2 {
        let Some(host) = hosts[of] else { continue };
        put(DATA[of], links[of].map_or_else(|| "null".to_owned(), |data| data.to_string()));
        if let Some(external) = external[of] {
            put(OVERWRITE[of], external.to_string());
        }
        let overwritten = external[of].map(|ip| ip.to_string());
        let overwritten = overwritten.or_else(|| annotation(there, OVERWRITE[of]).map(str::to_owned));
        put(PUBLIC[of], overwritten.filter(|ip| !ip.is_empty()).unwrap_or_else(|| host.to_string()));
    }
    annotations
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn peer(annotations: &Value, cidrs: &Value) -> Option<Peer> {
        let mut named = serde_json::Map::new();
        for (name, value) in annotations.as_object().unwrap() {
            named.insert(format!("{FLANNEL}{name}"), value.clone());
        }
        let node = json!({"metadata": {"name": "b", "annotations": named}, "spec": cidrs});
        Peer::of(&json::read(node.to_string().as_bytes()).unwrap())
    }

    /// A Node as flanneld leaves it.
    fn vxlan() -> Value {
        json!({"backend-data": r#"{"VNI":1,"VtepMAC":"5a:3f:01:9c:00:fe"}"#, "backend-type": "vxlan",
            "kube-subnet-manager": "true", "public-ip": "192.168.1.12"})
    }

    #[test]
    fn nodes_are_read_as_flannel_writes_them() {
        let cidrs = json!({"podCIDR": "10.42.2.0/24", "podCIDRs": ["10.42.2.0/24"]});
        let way = Way {
            range: Network::parse("10.42.2.0/24").unwrap(),
            host: "192.168.1.12".parse().unwrap(),
            data: Some(LinkData::Vxlan(Mac([0x5a, 0x3f, 1, 0x9c, 0, 0xfe]))),
        };
        let of_vxlan = Peer { backend: Backend::Vxlan, ways: [way].into() };
        assert_eq!(peer(&vxlan(), &cidrs), Some(of_vxlan.clone()));
        assert_eq!(peer(&vxlan(), &json!({"podCIDR": "10.42.2.0/24"})), Some(of_vxlan));
        let host_gw = json!({"backend-data": "null", "backend-type": "host-gw", "kube-subnet-manager": "true",
            "public-ip": "192.168.1.12"});
        let of_host_gw = Peer { backend: Backend::HostGw, ways: [Way { data: None, ..way }].into() };
        assert_eq!(peer(&host_gw, &cidrs), Some(of_host_gw));
        let mut dual = vxlan();
        dual["public-ipv6"] = "fd01::12".into();
        dual["backend-v6-data"] = r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:06"}"#.into();
        let both = json!({"podCIDRs": ["10.42.2.0/24", "fd00:42:0:2::/64"]});
        let ways = peer(&dual, &both).unwrap().ways;
        assert_eq!(
            (ways.len(), ways[1].host, ways[1].data),
            (2, "fd01::12".parse().unwrap(), Some(LinkData::Vxlan(Mac([2, 0, 0, 0, 0, 6]))),)
        );
    }

    #[test]
    fn keys_of_wireguard_are_read_with_their_ports() {
        let cidrs = json!({"podCIDRs": ["10.42.2.0/24", "fd00:42:0:2::/64"]});
        let key = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
        let of = |v4: &str, v6: &str| {
            let node = json!({"backend-data": v4, "backend-v6-data": v6, "backend-type": "wireguard",
                "kube-subnet-manager": "true", "public-ip": "192.168.1.12", "public-ipv6": "fd01::12"});
            let peer = peer(&node, &cidrs).unwrap();
            assert_eq!(peer.backend, Backend::Wireguard);
            [peer.ways[0].data, peer.ways[1].data]
        };
        let data = |port| Some(LinkData::Wireguard(Key::parse(key).unwrap(), port));
        let made = |port| data(port).unwrap().to_string();
        assert_eq!(made(51820), format!(r#"{{"PublicKey":"{key}","Port":51820}}"#));
        assert_eq!(of(&made(51820), &made(51821)), [data(51820), data(51821)]);
        let bare = format!(r#"{{"PublicKey":"{key}"}}"#);
        assert_eq!(of(&bare, &bare), [data(51820), data(51821)], "an older flannel's");
        assert_eq!(of(&made(0), &made(0)), [data(51820), data(51821)]);
        for wrong in ["null", "{}", r#"{"PublicKey":"","Port":1}"#, &made(1).replace(":1}", ":65536}")] {
            assert_eq!(of(wrong, &made(7)), [None, data(7)], "{wrong}");
        }
    }

    #[test]
    fn a_node_that_is_not_ready_or_says_nonsense_has_no_way() {
        let cidrs = json!({"podCIDRs": ["10.42.2.0/24"]});
        for (name, value) in [
            ("kube-subnet-manager", json!(null)),
            ("kube-subnet-manager", json!("false")),
            ("backend-type", json!("udp")),
            ("public-ip", json!(null)),
            ("public-ip", json!("fd00::1")),
            ("public-ip", json!("0.0.0.0")),
            ("public-ip", json!("127.0.0.1")),
            ("public-ip", json!("224.0.0.1")),
            ("public-ip", json!("host")),
        ] {
            let mut wrong = vxlan();
            wrong[name] = value.clone();
            assert_eq!(peer(&wrong, &cidrs), None, "{name} {value}");
        }
        for cidrs in [json!({}), json!({"podCIDRs": ["10.42.2.0"]}), json!({"podCIDRs": ["fd00::/64"]})] {
            assert_eq!(peer(&vxlan(), &cidrs), None, "{cidrs}");
        }
        for mac in ["", "5a:3f:01:9c:00", "5a:3f:01:9c:00:fe:00", "5a:3f:01:9c:00:+e", "5a-3f-01-9c-00-fe"] {
            let mut wrong = vxlan();
            wrong["backend-data"] = json!({"VNI": 1, "VtepMAC": mac}).to_string().into();
            assert_eq!(peer(&wrong, &cidrs).unwrap().ways[0].data, None, "{mac}");
        }
    }

    #[test]
    fn own_annotations_are_flannels_and_are_read_again() {
        let host: [Option<IpAddr>; 2] = ["192.168.1.11".parse().ok(), "fd01::11".parse().ok()];
        let own = [Some(Mac::derived(7)), Some(Mac::derived(8))];
        let links = own.map(|mac| mac.map(LinkData::Vxlan));
        let none = Annotations::new();
        let made = annotations(Backend::Vxlan, host, links, [None; 2], &none);
        let shown: Vec<String> = made
            .iter()
            .map(|(key, value)| format!("{}={value}", key.strip_prefix(FLANNEL).unwrap()))
            .collect();
        assert_eq!(
            shown,
            [
                r#"backend-data={"VNI":1,"VtepMAC":"02:00:00:00:00:07"}"#,
                "backend-type=vxlan",
                r#"backend-v6-data={"VNI":1,"VtepMAC":"02:00:00:00:00:08"}"#,
                "kube-subnet-manager=true",
                "public-ip=192.168.1.11",
                "public-ipv6=fd01::11",
            ]
        );
        assert_eq!(macs(&made), own);
        assert_eq!(macs(&none), [None; 2]);
        let v4 = [host[0], None];
        let host_gw = annotations(Backend::HostGw, v4, [None; 2], [None; 2], &none);
        assert_eq!(annotation(&host_gw, "backend-data"), Some("null"));
        assert_eq!((annotation(&host_gw, "public-ipv6"), host_gw.len()), (None, 4));
        // An administrator's address counts, and the external one before it.
        let mut there = none.clone();
        there.insert(format!("{FLANNEL}public-ip-overwrite").into(), "198.51.100.7".into());
        let made = annotations(Backend::Vxlan, v4, links, [None; 2], &there);
        assert_eq!(annotation(&made, "public-ip"), Some("198.51.100.7"));
        let external = ["203.0.113.9".parse().ok(), None];
        let made = annotations(Backend::Vxlan, v4, links, external, &there);
        assert_eq!(annotation(&made, "public-ip"), Some("203.0.113.9"));
        assert_eq!(annotation(&made, "public-ip-overwrite"), Some("203.0.113.9"));
        let keys = [Some(LinkData::Wireguard(Key([0; 32]), 51820)), None];
        let made = annotations(Backend::Wireguard, v4, keys, [None; 2], &none);
        assert_eq!(annotation(&made, "backend-type"), Some("wireguard"));
        assert_eq!(macs(&made), [None; 2]);
    }

    #[test]
    fn a_derived_hardware_address_is_local_and_of_one_machine() {
        for seed in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            let Mac([first, ..]) = Mac::derived(seed);
            assert_eq!(first & 3, 2, "{seed}");
        }
        assert_eq!(Mac::derived(0x0123_4567_89ab_cdef).to_string(), "46:67:89:ab:cd:ef");
    }
}
