//! Messages of rtnetlink(7): links, addresses, routes and neighbours, as they are asked for, read and changed. PURE.

use std::net::IpAddr;

use super::plan::{Entry, LinkSpec};
use super::{Mac, family};
use crate::model::Network;
use crate::netlink::link_address::{self, LINK_ADDRESS as ADDRESS, LinkAddress, address};
use crate::netlink::{CREATE, DUMP, EXCLUSIVE, Message, REPLACE, attribute};

/// `RTM_NEW…`; a deletion is the next number, a question the one after it.
const LINK: u16 = 16;
const ROUTE: u16 = 24;
const NEIGHBOUR: u16 = 28;
const DELETE: u16 = 1;
const GET: u16 = 2;

/// `AF_INET`, `AF_INET6` by family, and `AF_BRIDGE` of forwarding tables.
pub(super) const FAMILIES: [u8; 2] = [2, 10];
const BRIDGE: u8 = 7;
/// `IFLA_…`
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
/// `IFLA_VXLAN_…`; the local address by family.
const VXLAN_ID: u16 = 1;
const VXLAN_LINK: u16 = 3;
const VXLAN_LOCAL: [u16; 2] = [4, 17];
const VXLAN_LEARNING: u16 = 7;
const VXLAN_PORT: u16 = 15;
/// Kinds of links.
const VXLAN: &[u8] = b"vxlan";
const WIREGUARD: &[u8] = b"wireguard";
/// `IFF_UP`.
const UP: u32 = 1;
/// `IFA_F_NODAD`.
const NO_DUPLICATES: u32 = 2;
/// `RTA_DST`, `RTA_OIF`, `RTA_GATEWAY`, `RTA_TABLE`.
const ROUTE_TO: u16 = 1;
const ROUTE_LINK: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_TABLE: u16 = 15;
/// `RT_TABLE_MAIN`, `RTPROT_KERNEL`, `RTPROT_BOOT` (as flannel's), `RT_SCOPE_LINK`, `RT_SCOPE_NOWHERE`, `RTN_UNICAST`, `RTNH_F_ONLINK`.
const MAIN: u8 = 254;
const KERNEL: u8 = 2;
const BOOT: u8 = 3;
const SCOPE_LINK: u8 = 253;
const NOWHERE: u8 = 255;
const UNICAST: u8 = 1;
const ON_LINK: u32 = 4;
/// `NDA_DST`, `NDA_LLADDR`, `NUD_PERMANENT`, `NTF_SELF`.
const NEIGHBOUR_TO: u16 = 1;
const NEIGHBOUR_MAC: u16 = 2;
const PERMANENT: u16 = 0x80;
const SELF: u8 = 2;

/// A link, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: Box<str>,
    pub(super) mtu: u32,
    pub(super) mac: Option<Mac>,
    pub(super) is_up: bool,
    /// `None`: none that flannel makes.
    pub(super) kind: Option<LinkKind>,
}

/// What flannel makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    Vxlan(Vxlan),
    Wireguard,
}

/// What makes a vxlan link another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub(super) id: u32,
    pub(super) parent: u32,
    pub(super) local: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) learns: bool,
}

/// Questions for all links, routes or neighbours of a family, all forwarding tables.
pub(super) fn links() -> Message {
    Message::new(LINK + GET, DUMP, &[0; 16])
}

pub(super) fn routes(family: usize) -> Message {
    Message::new(ROUTE + GET, DUMP, &route_header(FAMILIES[family], 0, 0))
}

pub(super) fn neighbours(family: usize) -> Message {
    Message::new(NEIGHBOUR + GET, DUMP, &neighbour_header(FAMILIES[family], 0, 0))
}

pub(super) fn forwarding() -> Message {
    Message::new(NEIGHBOUR + GET, DUMP, &neighbour_header(BRIDGE, 0, 0))
}

/// `struct ifinfomsg` with flags that change.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    [0, index, flags, flags].map(u32::to_ne_bytes).concat()
}

/// `struct rtmsg`.
fn route_header(family: u8, bits: u8, flags: u32) -> Vec<u8> {
    let mut header = vec![family, bits, 0, 0, MAIN, BOOT, 0, UNICAST];
    header.extend(flags.to_ne_bytes());
    header
}

/// `struct ndmsg`.
fn neighbour_header(family: u8, link: u32, flags: u8) -> Vec<u8> {
    let mut header = vec![family, 0, 0, 0];
    header.extend(link.to_ne_bytes());
    header.extend(PERMANENT.to_ne_bytes());
    header.extend([flags, UNICAST]);
    header
}

/// A new link, which may not exist.
pub(super) fn new_link(spec: &LinkSpec) -> Message {
    let mut message = Message::new(LINK, CREATE | EXCLUSIVE, &link_header(0, 0));
    message.attribute(LINK_NAME, &zero_terminated(spec.name)).attribute(LINK_MTU, &spec.mtu.to_ne_bytes());
    if let Some(Mac(address)) = &spec.mac {
        message.attribute(LINK_ADDRESS, address);
    }
    message.nest(LINK_INFO, |info| match spec.kind {
        LinkKind::Wireguard => drop(info.attribute(INFO_KIND, WIREGUARD)),
        LinkKind::Vxlan(vxlan) => {
            info.attribute(INFO_KIND, VXLAN).nest(INFO_DATA, |data| {
                data.attribute(VXLAN_ID, &vxlan.id.to_ne_bytes());
                data.attribute(VXLAN_LINK, &vxlan.parent.to_ne_bytes());
                if let Some(local) = vxlan.local {
                    data.attribute(VXLAN_LOCAL[family(local)], &bytes(local));
                }
                data.attribute(VXLAN_LEARNING, &[u8::from(vxlan.learns)]);
                data.attribute(VXLAN_PORT, &vxlan.port.to_be_bytes());
            });
        }
    });
    message.end(0);
    message
}

/// The link is up and has this MTU.
pub(super) fn set_link(index: u32, mtu: u32) -> Message {
    let mut message = Message::new(LINK, 0, &link_header(index, UP));
    message.attribute(LINK_MTU, &mtu.to_ne_bytes()).end(0);
    message
}

pub(super) fn delete_link(index: u32) -> Message {
    Message::new(LINK + DELETE, 0, &link_header(index, 0))
}

/// An address of a link, alone in its range.
pub(super) fn new_address(link: u32, address: IpAddr) -> Message {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    // Nobody else on the link could have an IPv6 one.
    let flags = if address.is_ipv4() { 0 } else { NO_DUPLICATES };
    address_message(ADDRESS, CREATE | REPLACE, &LinkAddress { link, address, bits, flags })
}

pub(super) fn delete_address(of: &LinkAddress) -> Message {
    address_message(ADDRESS + DELETE, 0, of)
}

fn address_message(kind: u16, flags: u16, of: &LinkAddress) -> Message {
    // struct ifaddrmsg: family, bits, flags, scope, link.
    let flags_of_new = if kind == ADDRESS { of.flags.to_ne_bytes() } else { [0; 4] };
    let mut header = vec![FAMILIES[family(of.address)], of.bits, 0, 0];
    header.extend(of.link.to_ne_bytes());
    let mut message = Message::new(kind, flags, &header);
    let address = bytes(of.address);
    message.attribute(link_address::LOCAL, &address).attribute(link_address::ADDRESS, &address);
    message.attribute(link_address::FLAGS, &flags_of_new).end(0);
    message
}

/// Adds an entry, or puts it in the place of one of the same key; `on_link`: a route's gateway is behind its link, whatever its
/// address.
pub(super) fn add(entry: &Entry, on_link: bool) -> Message {
    entry_message(0, CREATE | REPLACE, entry, if on_link { ON_LINK } else { 0 })
}

pub(super) fn remove(entry: &Entry) -> Message {
    entry_message(DELETE, 0, entry, 0)
}

fn entry_message(change: u16, flags: u16, entry: &Entry, of_route: u32) -> Message {
    let mut message = match entry {
        Entry::Neighbour { link, address, mac } => {
            let header = neighbour_header(FAMILIES[family(*address)], *link, 0);
            let mut message = Message::new(NEIGHBOUR + change, flags, &header);
            message.attribute(NEIGHBOUR_TO, &bytes(*address)).attribute(NEIGHBOUR_MAC, &mac.0);
            message
        }
        Entry::Forward { link, mac, host } => {
            let mut message = Message::new(NEIGHBOUR + change, flags, &neighbour_header(BRIDGE, *link, SELF));
            message.attribute(NEIGHBOUR_TO, &bytes(*host)).attribute(NEIGHBOUR_MAC, &mac.0);
            message
        }
        Entry::Route { range, gateway, link } => {
            let mut header = route_header(FAMILIES[family(range.address)], range.prefix, of_route);
            if change == DELETE {
                // Whoever made it.
                (header[5], header[6]) = (0, NOWHERE);
            } else if gateway.is_none() {
                header[6] = SCOPE_LINK;
            }
            let mut message = Message::new(ROUTE + change, flags, &header);
            message.attribute(ROUTE_TO, &bytes(range.address));
            if let Some(gateway) = gateway {
                message.attribute(ROUTE_GATEWAY, &bytes(*gateway));
            }
            message.attribute(ROUTE_LINK, &link.to_ne_bytes());
            message
        }
    };
    message.end(0);
    message
}

fn zero_terminated(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

pub(super) fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

// ---- answers, without struct nlmsghdr; what is cut short, or of no use here, is None -----------------------------

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

pub(super) fn read_link(answer: &[u8]) -> Option<Link> {
    let (header, rest) = answer.split_at_checked(16)?;
    let name = attribute(rest, LINK_NAME)?;
    let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
    let kind = attribute(rest, LINK_INFO).and_then(|info| {
        let kind = attribute(info, INFO_KIND)?;
        if kind.starts_with(WIREGUARD) {
            return Some(LinkKind::Wireguard);
        }
        let data = attribute(info, INFO_DATA).filter(|_| kind.starts_with(VXLAN))?;
        let of = |kind| attribute(data, kind);
        Some(LinkKind::Vxlan(Vxlan {
            id: number(of(VXLAN_ID)?, 0)?,
            parent: of(VXLAN_LINK).and_then(|link| number(link, 0)).unwrap_or(0),
            local: VXLAN_LOCAL.into_iter().find_map(of).and_then(address),
            port: u16::from_be_bytes(of(VXLAN_PORT)?.try_into().ok()?),
            learns: of(VXLAN_LEARNING).is_none_or(|learns| learns != [0]),
        }))
    });
    Some(Link {
        index: number(header, 4)?,
        name: name.into(),
        mtu: attribute(rest, LINK_MTU).and_then(|mtu| number(mtu, 0)).unwrap_or(0),
        mac: attribute(rest, LINK_ADDRESS).and_then(mac),
        is_up: number(header, 8)? & UP != 0,
        kind,
    })
}

/// A route of the main table with one gateway or none, behind one link; not one that the kernel made with an address.
pub(super) fn read_route(answer: &[u8]) -> Option<Entry> {
    let (header, rest) = answer.split_at_checked(12)?;
    let table = attribute(rest, ROUTE_TABLE).and_then(|table| number(table, 0));
    if table.unwrap_or_else(|| u32::from(header[4])) != u32::from(MAIN) || header[7] != UNICAST {
        return None;
    }
    let range = Network::new(address(attribute(rest, ROUTE_TO)?)?, header[1])?;
    let gateway = match attribute(rest, ROUTE_GATEWAY) {
        Some(gateway) => Some(address(gateway)?),
        None if header[5] == KERNEL => return None,
        None => None,
    };
    Some(Entry::Route { range, gateway, link: number(attribute(rest, ROUTE_LINK)?, 0)? })
}

/// A permanent neighbour, or entry of a forwarding table.
pub(super) fn read_neighbour(answer: &[u8]) -> Option<Entry> {
    let (header, rest) = answer.split_at_checked(12)?;
    let state = u16::from_ne_bytes([header[8], header[9]]);
    if state & PERMANENT == 0 {
        return None;
    }
    let (link, to) = (number(header, 4)?, address(attribute(rest, NEIGHBOUR_TO)?)?);
    let mac = mac(attribute(rest, NEIGHBOUR_MAC)?)?;
    Some(match header[0] {
        BRIDGE => Entry::Forward { link, mac, host: to },
        _ => Entry::Neighbour { link, address: to, mac },
    })
}
