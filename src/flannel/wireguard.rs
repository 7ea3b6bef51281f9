//! The `WireGuard` links between the nodes (flannel's `backend/wireguard` in its mode `separate`, as k3s has it): messages of the kernel's
//! generic netlink (`linux/wireguard.h`), and what differs of a link's peers. PURE.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::plan::is_of_others;
use super::rtnetlink::{FAMILIES, bytes};
use super::{Key, LinkData, Way, family};
use crate::limits::{FLANNEL_ENTRIES_MAX, FLANNEL_PEER_SPEC_BYTES};
use crate::model::Network;
use crate::netlink::link_address::address;
use crate::netlink::{DUMP, Message, attribute, attributes};

/// The links, by family.
pub(super) const LINKS: [&str; 2] = ["flannel-wg", "flannel-wg-v6"];
/// Their UDP ports.
pub(super) const PORTS: [u16; 2] = [51820, 51821];
/// What `WireGuard` puts before and behind a packet, whatever its family (`overhead`).
pub(super) const OVERHEAD: u32 = 80;
/// Seconds between two packets that keep a way through NAT open: k3s' `PersistentKeepaliveInterval`.
const KEEPALIVE: u16 = 25;
/// Seconds after which a peer without a new handshake is not reached: `REJECT_AFTER_TIME` of `WireGuard`.
const HEARD: u64 = 180;
/// Peers of one message: an attribute holds 64 KiB, and a peer has at most 200 bytes.
const PEERS_OF_MESSAGE: usize = 128;

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_NAME`, `CTRL_ATTR_FAMILY_ID`.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const FAMILY_ID: u16 = 1;
/// `WG_CMD_GET_DEVICE`, `WG_CMD_SET_DEVICE`.
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;
/// `struct genlmsghdr`.
const HEADER: usize = 4;
/// `WGDEVICE_A_…`
const DEVICE_LINK: u16 = 1;
const DEVICE_PRIVATE_KEY: u16 = 3;
const DEVICE_PUBLIC_KEY: u16 = 4;
const DEVICE_PORT: u16 = 6;
const DEVICE_MARK: u16 = 7;
const DEVICE_PEERS: u16 = 8;
/// `WGPEER_A_…`
const PEER_KEY: u16 = 1;
const PEER_PRESHARED_KEY: u16 = 2;
const PEER_FLAGS: u16 = 3;
const PEER_ENDPOINT: u16 = 4;
const PEER_KEEPALIVE: u16 = 5;
const PEER_HANDSHAKE: u16 = 6;
const PEER_ALLOWED: u16 = 9;
/// `WGPEER_F_REMOVE_ME`, `WGPEER_F_REPLACE_ALLOWEDIPS`.
const REMOVE: u32 = 1;
const REPLACE_ALLOWED: u32 = 2;
/// `WGALLOWEDIP_A_…`
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_BITS: u16 = 3;

/// A private key. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PrivateKey([u8; 32]);

impl PrivateKey {
    /// Of random bytes (`GeneratePrivateKey`).
    pub(super) fn of(mut random: [u8; 32]) -> Self {
        random[0] &= 0xf8;
        random[31] = (random[31] & 0x7f) | 0x40;
        Self(random)
    }

    /// From the text of a file, as the kernel takes it.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        BASE64_STANDARD.decode(text.trim_ascii()).ok()?.try_into().ok().map(Self::of)
    }

    /// The text of a file.
    pub(super) fn text(&self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

/// A peer as it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSpec {
    key: Key,
    endpoint: SocketAddr,
    range: Network,
}

const _: () = assert!(size_of::<PeerSpec>() <= FLANNEL_PEER_SPEC_BYTES);

impl PeerSpec {
    /// It is one of that family's link.
    pub(super) fn is_of(&self, of: usize) -> bool {
        family(self.range.address) == of
    }
}

/// The peers of the family's link, sorted by their keys. A node whose range is outside the cluster's network, or this node's own, is left
/// out.
pub(super) fn wanted(
    of: usize,
    ways: &[Way],
    network: Option<Network>,
    own: Network,
    own_key: Key,
) -> Vec<PeerSpec> {
    let mut peers: Vec<PeerSpec> = ways
        .iter()
        .filter(|way| family(way.range.address) == of && is_of_others(way.range, network, own))
        .filter_map(|way| match way.data {
            Some(LinkData::Wireguard(key, port)) if key != own_key => {
                Some(PeerSpec { key, endpoint: SocketAddr::new(way.host, port), range: way.range })
            }
            _ => None,
        })
        .collect();
    // A range has one peer, a key has one range: the first.
    peers.sort_by_key(|peer| (peer.range.address, peer.range.prefix));
    peers.dedup_by_key(|peer| peer.range);
    peers.sort_by_key(|peer| peer.key);
    peers.dedup_by_key(|peer| peer.key);
    peers
}

/// A peer as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Present {
    key: Key,
    has_endpoint: bool,
    keepalive: u16,
    /// It is reached with a preshared key too, which no other node knows.
    has_preshared_key: bool,
    /// Time of its last handshake, since 1970; 0: there was none.
    handshake: u64,
    /// The first range of those that it may have; there are others.
    range: Option<Network>,
    has_others: bool,
}

/// A link as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) private_key: Option<PrivateKey>,
    pub(super) public_key: Option<Key>,
    pub(super) port: u16,
    pub(super) mark: u32,
    peers: Vec<Present>,
}

/// A change of a link's peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerChange {
    Remove(Key),
    /// The endpoint where it is set.
    Set(Key, Option<SocketAddr>, Network),
}

impl fmt::Display for PeerChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove(key) => write!(f, "removing peer {key}"),
            Self::Set(key, _, range) => write!(f, "peer {key} of {range}"),
        }
    }
}

/// What differs. `wanted` is sorted; `made` are the peers of this link that this agent set last; `now` is the time since 1970.
///
/// The kernel takes a peer's endpoint from its packets, as it may be behind NAT. The endpoint of its Node is set when the peer is new, when
/// the Node has another one than the one that was set last, and by an agent that has started when the peer is not heard of.
pub(super) fn changes(
    wanted: &[PeerSpec],
    there: &Device,
    made: &[PeerSpec],
    now: Duration,
) -> Vec<PeerChange> {
    let find = |all: &[PeerSpec], key: Key| all.binary_search_by_key(&key, |peer| peer.key).ok();
    let mut present: Vec<&Present> = there.peers.iter().collect();
    present.sort_by_key(|present| present.key);
    let gone = present.iter().filter(|present| find(wanted, present.key).is_none());
    let mut changes: Vec<PeerChange> = gone.map(|present| PeerChange::Remove(present.key)).collect();
    for peer in wanted {
        let present =
            present.binary_search_by_key(&peer.key, |present| present.key).ok().map(|at| present[at]);
        let is_placed = present.is_some_and(|present| {
            let is_heard = now.as_secs().abs_diff(present.handshake) < HEARD;
            let is_last = find(made, peer.key).map(|at| made[at].endpoint == peer.endpoint);
            present.has_endpoint && is_last.unwrap_or(is_heard)
        });
        let is_same = present.is_some_and(|present| {
            present.range == Some(peer.range)
                && !present.has_others
                && !present.has_preshared_key
                && present.keepalive == KEEPALIVE
        });
        if !is_placed || !is_same {
            changes.push(PeerChange::Set(peer.key, (!is_placed).then_some(peer.endpoint), peer.range));
        }
    }
    changes
}

/// `struct genlmsghdr`.
fn header(command: u8) -> [u8; HEADER] {
    [command, 1, 0, 0]
}

/// The question for the number that `WireGuard` has in this kernel.
pub(super) fn family_id() -> Message {
    let mut message = Message::new(CONTROL, 0, &header(GET_FAMILY));
    message.attribute(FAMILY_NAME, b"wireguard\0").end(0);
    message
}

/// That number.
pub(super) fn read_family_id(answer: &[u8]) -> Option<u16> {
    let id = attribute(answer.get(HEADER..)?, FAMILY_ID)?;
    Some(u16::from_ne_bytes(id.try_into().ok()?))
}

/// The question for a link.
pub(super) fn device(family_id: u16, link: u32) -> Message {
    let mut message = Message::new(family_id, DUMP, &header(GET_DEVICE));
    message.attribute(DEVICE_LINK, &link.to_ne_bytes()).end(0);
    message
}

/// A link has this key and this port, and marks no packets.
pub(super) fn set_device(family_id: u16, link: u32, key: &PrivateKey, port: u16) -> Message {
    let mut message = Message::new(family_id, 0, &header(SET_DEVICE));
    message.attribute(DEVICE_LINK, &link.to_ne_bytes()).attribute(DEVICE_PRIVATE_KEY, &key.0);
    message.attribute(DEVICE_PORT, &port.to_ne_bytes()).attribute(DEVICE_MARK, &[0; 4]).end(0);
    message
}

/// Changes of a link's peers, each message with some of them.
pub(super) fn set_peers(
    family_id: u16,
    link: u32,
    changes: &[PeerChange],
) -> impl Iterator<Item = (Message, &[PeerChange])> {
    changes.chunks(PEERS_OF_MESSAGE).map(move |changes| {
        let mut message = Message::new(family_id, 0, &header(SET_DEVICE));
        message.attribute(DEVICE_LINK, &link.to_ne_bytes()).nest(DEVICE_PEERS, |peers| {
            for change in changes {
                peers.nest(0, |peer| put(peer, change));
            }
        });
        message.end(0);
        (message, changes)
    })
}

fn put(peer: &mut Message, change: &PeerChange) {
    match change {
        PeerChange::Remove(key) => {
            peer.attribute(PEER_KEY, &key.0).attribute(PEER_FLAGS, &REMOVE.to_ne_bytes());
        }
        PeerChange::Set(key, endpoint, range) => {
            peer.attribute(PEER_KEY, &key.0).attribute(PEER_PRESHARED_KEY, &[0; 32]);
            peer.attribute(PEER_FLAGS, &REPLACE_ALLOWED.to_ne_bytes());
            if let Some(endpoint) = endpoint {
                peer.attribute(PEER_ENDPOINT, &socket_address(*endpoint));
            }
            peer.attribute(PEER_KEEPALIVE, &KEEPALIVE.to_ne_bytes()).nest(PEER_ALLOWED, |all| {
                all.nest(0, |one| {
                    one.attribute(ALLOWED_FAMILY, &kernels_family(range.address));
                    one.attribute(ALLOWED_ADDRESS, &bytes(range.address));
                    one.attribute(ALLOWED_BITS, &[range.prefix]);
                });
            });
        }
    }
}

/// `AF_INET` or `AF_INET6`, in 16 bits.
fn kernels_family(of: IpAddr) -> [u8; 2] {
    u16::from(FAMILIES[family(of)]).to_ne_bytes()
}

/// `struct sockaddr_in`, `struct sockaddr_in6`.
fn socket_address(of: SocketAddr) -> Vec<u8> {
    // Flow before and scope behind an address of IPv6, padding behind one of IPv4.
    let (before, behind) = if of.is_ipv4() { (0, 8) } else { (4, 4) };
    let head = [kernels_family(of.ip()), of.port().to_be_bytes()].concat();
    [head, vec![0; before], bytes(of.ip()), vec![0; behind]].concat()
}

impl Device {
    /// Adds what a message of the answer says. Peers beyond `limits::FLANNEL_ENTRIES_MAX` are left for the next turn.
    pub(super) fn read(&mut self, answer: &[u8]) {
        let rest = answer.get(HEADER..).unwrap_or_default();
        let key = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).ok();
        if let Some(bytes) = attribute(rest, DEVICE_PRIVATE_KEY).and_then(key) {
            self.private_key = Some(PrivateKey(bytes));
        }
        if let Some(bytes) = attribute(rest, DEVICE_PUBLIC_KEY).and_then(key) {
            self.public_key = Some(Key(bytes));
        }
        if let Some(port) = attribute(rest, DEVICE_PORT).and_then(|port| port.try_into().ok()) {
            self.port = u16::from_ne_bytes(port);
        }
        if let Some(mark) = attribute(rest, DEVICE_MARK).and_then(|mark| mark.try_into().ok()) {
            self.mark = u32::from_ne_bytes(mark);
        }
        for (_, peer) in attribute(rest, DEVICE_PEERS).into_iter().flat_map(attributes) {
            let Some(key) = attribute(peer, PEER_KEY).and_then(key).map(Key) else { continue };
            let mut ranges = attribute(peer, PEER_ALLOWED)
                .into_iter()
                .flat_map(attributes)
                .map(|(_, one)| read_range(one));
            // Ranges that did not fit are in the next message, all of them maybe.
            if let Some(last) = self.peers.last_mut().filter(|last| last.key == key) {
                last.range = last.range.or_else(|| ranges.next().flatten());
                last.has_others |= ranges.next().is_some();
                continue;
            }
            if self.peers.len() >= FLANNEL_ENTRIES_MAX {
                return;
            }
            let keepalive = attribute(peer, PEER_KEEPALIVE).and_then(|seconds| seconds.try_into().ok());
            // struct __kernel_timespec: seconds, nanoseconds.
            let handshake = attribute(peer, PEER_HANDSHAKE).and_then(|time| time.get(..8)?.try_into().ok());
            self.peers.push(Present {
                key,
                has_endpoint: attribute(peer, PEER_ENDPOINT).is_some(),
                keepalive: keepalive.map(u16::from_ne_bytes).unwrap_or_default(),
                has_preshared_key: attribute(peer, PEER_PRESHARED_KEY)
                    .is_some_and(|key| key.iter().any(|byte| *byte != 0)),
                handshake: handshake.map(u64::from_ne_bytes).unwrap_or_default(),
                range: ranges.next().flatten(),
                has_others: ranges.next().is_some(),
            });
        }
    }
}

fn read_range(allowed: &[u8]) -> Option<Network> {
    let address = address(attribute(allowed, ALLOWED_ADDRESS)?)?;
    Network::new(address, *attribute(allowed, ALLOWED_BITS)?.first()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    fn way(range: &str, host: &str, key: u8) -> Way {
        let data = Some(LinkData::Wireguard(Key([key; 32]), 51820));
        Way { range: network(range), host: host.parse().unwrap(), data }
    }

    fn peers(ways: &[Way]) -> Vec<PeerSpec> {
        wanted(0, ways, Some(network("10.42.0.0/16")), network("10.42.1.0/24"), Key([1; 32]))
    }

    #[test]
    fn a_private_key_is_one_of_the_curve_and_is_not_shown() {
        for random in [[0; 32], [0xff; 32], [0x5a; 32]] {
            let key = PrivateKey::of(random);
            assert_eq!((key.0[0] & 7, key.0[31] & 0xc0), (0, 0x40));
            assert_eq!(PrivateKey::parse(format!("{}\n", key.text()).as_bytes()).as_ref(), Some(&key));
            assert_eq!(format!("{key:?}"), "PrivateKey");
        }
        for wrong in ["", "AAAA", "!", &"A".repeat(44)] {
            assert_eq!(PrivateKey::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn each_other_node_is_a_peer() {
        let v6 = Way { range: network("fd00:42:0:2::/64"), ..way("10.42.2.0/24", "fd07::2", 2) };
        let without = Way { data: None, ..way("10.42.4.0/24", "192.168.1.14", 4) };
        let found = peers(&[
            way("10.42.3.0/24", "192.168.1.13", 3),
            way("10.42.2.0/24", "192.168.1.12", 2),
            v6,
            without,
            // Outside of the cluster, this node's own, all of the network; one key, one range, or this node's key twice.
            way("10.43.2.0/24", "192.168.1.19", 9),
            way("10.42.1.128/25", "192.168.1.19", 9),
            way("10.42.0.0/16", "192.168.1.19", 9),
            way("10.42.5.0/24", "192.168.1.19", 3),
            way("10.42.3.0/24", "192.168.1.19", 9),
            way("10.42.6.0/24", "192.168.1.19", 1),
        ]);
        let shown: Vec<String> =
            found.iter().map(|peer| format!("{} {}", peer.endpoint, peer.range)).collect();
        assert_eq!(shown, ["192.168.1.12:51820 10.42.2.0/24", "192.168.1.13:51820 10.42.3.0/24"]);
    }

    /// What the kernel answers when it has these peers: it has the attributes of a change, with others between them.
    fn device(changes: &[PeerChange]) -> Device {
        let mut device = Device::default();
        for (message, _) in set_peers(20, 7, changes) {
            device.read(&message.bytes()[16..]);
        }
        device
    }

    const NOW: Duration = Duration::from_hours(500_000);

    #[test]
    fn the_difference_is_made_and_nothing_else() {
        let wanted = peers(&[way("10.42.2.0/24", "192.168.1.12", 2), way("10.42.3.0/24", "192.168.1.13", 3)]);
        let set = |of: usize, endpoint: bool| {
            PeerChange::Set(wanted[of].key, endpoint.then_some(wanted[of].endpoint), wanted[of].range)
        };
        let all = changes(&wanted, &Device::default(), &[], NOW);
        assert_eq!(all, [set(0, true), set(1, true)]);
        let there = device(&all);
        assert_eq!(changes(&wanted, &there, &wanted, NOW), []);
        assert_eq!(changes(&wanted[..1], &there, &wanted, NOW), [PeerChange::Remove(wanted[1].key)]);
        // The Node has another address: the endpoint is set, though the kernel may know a later one.
        let moved = PeerSpec { endpoint: "192.168.1.99:7".parse().unwrap(), ..wanted[1] };
        let to_moved = PeerChange::Set(moved.key, Some(moved.endpoint), moved.range);
        assert_eq!(changes(&[wanted[0], moved], &there, &wanted, NOW), [to_moved]);
        // The other family's: its key is the same.
        let v6 = PeerSpec {
            endpoint: "[fd07::3]:7".parse().unwrap(),
            range: network("fd00:42:0:3::/64"),
            ..wanted[1]
        };
        assert!(!v6.is_of(0) && v6.is_of(1));
        // Another range: the endpoint stays.
        let other = PeerSpec { range: network("10.42.8.0/24"), ..wanted[0] };
        let to_other = PeerChange::Set(other.key, None, other.range);
        assert_eq!(changes(&[other, wanted[1]], &there, &wanted, NOW), [to_other]);
        // A peer that has no endpoint yet, one with a further range, one that keeps no way open, one with a key between two.
        let broken = |mend: &dyn Fn(&mut Vec<Present>)| {
            let mut broken = there.clone();
            mend(&mut broken.peers);
            changes(&wanted, &broken, &wanted, NOW)
        };
        assert_eq!(broken(&|peers| peers[0].has_endpoint = false), [set(0, true)]);
        assert_eq!(broken(&|peers| peers[1].has_others = true), [set(1, false)]);
        assert_eq!(broken(&|peers| peers[0].keepalive = 0), [set(0, false)]);
        assert_eq!(broken(&|peers| peers[1].has_preshared_key = true), [set(1, false)]);
    }

    #[test]
    fn an_agent_that_has_started_leaves_the_endpoints_of_those_that_are_heard() {
        let wanted = peers(&[way("10.42.2.0/24", "192.168.1.12", 2)]);
        let mut there = device(&changes(&wanted, &Device::default(), &[], NOW));
        let set = PeerChange::Set(wanted[0].key, Some(wanted[0].endpoint), wanted[0].range);
        for (handshake, expected) in [
            (0, vec![set]),
            (NOW.as_secs() - 179, vec![]),
            (NOW.as_secs() - 181, vec![set]),
            (NOW.as_secs() + 181, vec![set]),
        ] {
            there.peers[0].handshake = handshake;
            assert_eq!(changes(&wanted, &there, &[], NOW), expected, "{handshake}");
            assert_eq!(changes(&wanted, &there, &wanted, NOW), [], "it has set it itself");
        }
    }

    #[test]
    fn messages_hold_some_peers_each_and_an_answer_goes_on_in_the_next_one() {
        let key = |of: u16| Key(std::array::from_fn(|at| of.to_ne_bytes()[at % 2]));
        let endpoint = Some("[fd07::2]:51821".parse().unwrap());
        let all: Vec<PeerChange> =
            (0..1000).map(|of| PeerChange::Set(key(of), endpoint, network("fd00:42:0:2::/64"))).collect();
        let messages: Vec<usize> = set_peers(20, 7, &all).map(|(message, _)| message.bytes().len()).collect();
        assert!(messages.len() == 8 && messages.iter().all(|bytes| *bytes < 0x8000), "{messages:?}");
        let found = device(&all);
        assert_eq!(found.peers.len(), 1000);
        let first = Present {
            key: key(0),
            has_endpoint: true,
            keepalive: 25,
            has_preshared_key: false,
            handshake: 0,
            range: Some(network("fd00:42:0:2::/64")),
            has_others: false,
        };
        assert_eq!(found.peers[0], first.clone());
        // The kernel sends a peer without the ranges that do not fit any more, and then these.
        let mut halves = Device::default();
        let mut half = Message::new(20, 0, &header(SET_DEVICE));
        half.nest(DEVICE_PEERS, |peers| {
            peers.nest(0, |peer| {
                peer.attribute(PEER_KEY, &key(0).0);
            });
        });
        half.end(0);
        halves.read(&half.bytes()[16..]);
        assert_eq!((halves.peers[0].range, halves.peers[0].has_others), (None, false));
        let (rest, _) = set_peers(20, 7, &all[..1]).next().unwrap();
        halves.read(&rest.bytes()[16..]);
        assert_eq!((halves.peers[0].range, halves.peers[0].has_others), (first.range, false));
        let twice = device(&[all[..PEERS_OF_MESSAGE].to_vec(), vec![all[PEERS_OF_MESSAGE - 1]]].concat());
        let last = twice.peers.last().unwrap();
        assert!(twice.peers.len() == PEERS_OF_MESSAGE && last.has_others);
        let many: Vec<PeerChange> = (0..=u16::try_from(FLANNEL_ENTRIES_MAX).unwrap())
            .map(|of| PeerChange::Set(key(of), None, network("10.42.2.0/24")))
            .collect();
        assert_eq!(device(&many).peers.len(), FLANNEL_ENTRIES_MAX);
        let mut device = Device::default();
        let private = PrivateKey::of([7; 32]);
        device.read(&set_device(20, 7, &private, 51820).bytes()[16..]);
        assert_eq!((device.private_key, device.port, device.mark), (Some(private), 51820, 0));
        assert_eq!((read_family_id(&[0; 4]), read_family_id(&[])), (None, None));
    }
}
