//! Tracked connections (`linux/netfilter/nfnetlink_conntrack.h`): those of UDP that go where nobody listens are forgotten, so that the next
//! packet is translated anew. I/O, blocking.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::limits::CONNTRACK_DELETED_MAX;
use crate::netlink::{DUMP, Message, NESTED, Netlink, attribute};

/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET`, `IPCTNL_MSG_CT_DELETE`.
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `IPPROTO_UDP`.
const UDP: u8 = 17;

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where the client sends to.
    pub destination: SocketAddr,
    /// Who answers it.
    pub replier: SocketAddr,
}

/// Forgets the connections of UDP for which `is_stale` holds, `limits::CONNTRACK_DELETED_MAX` of them at most. How many there were.
///
/// # Errors
/// The kernel's.
pub fn forget_udp(
    netlink: &mut Netlink,
    is_ipv6: bool,
    is_stale: &dyn Fn(&Flow) -> bool,
) -> io::Result<usize> {
    // AF_INET6, AF_INET.
    let header = [if is_ipv6 { 10 } else { 2 }, 0, 0, 0];
    let mut requests = Vec::new();
    netlink.dump(&Message::new(GET, DUMP, &header), &mut |_, content| {
        let attributes = content.get(4..).unwrap_or_default();
        if requests.len() < CONNTRACK_DELETED_MAX && udp_of(attributes).is_some_and(|flow| is_stale(&flow)) {
            let mut request = Message::default();
            let at = request.begin(DELETE, 0, &header);
            for kind in [TUPLE_ORIGINAL, ID, ZONE] {
                if let Some(value) = attribute(attributes, kind) {
                    let nested = if kind == TUPLE_ORIGINAL { NESTED } else { 0 };
                    request.attribute(kind | nested, value);
                }
            }
            request.end(at);
            requests.push(request);
        }
    })?;
    for request in &requests {
        match netlink.request(request) {
            Ok(()) => {}
            // It has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(requests.len())
}

/// The flow of a connection of UDP.
fn udp_of(attributes: &[u8]) -> Option<Flow> {
    let original = attribute(attributes, TUPLE_ORIGINAL)?;
    let reply = attribute(attributes, TUPLE_REPLY)?;
    Some(Flow { destination: end(original, true)?, replier: end(reply, false)? })
}

/// The destination of a tuple of UDP, else its source.
fn end(tuple: &[u8], is_destination: bool) -> Option<SocketAddr> {
    let (addresses, transport) = (attribute(tuple, 1)?, attribute(tuple, 2)?);
    if attribute(transport, 1)? != [UDP] {
        return None;
    }
    let step = u16::from(is_destination);
    let port = u16::from_be_bytes(attribute(transport, 2 + step)?.try_into().ok()?);
    let address = match attribute(addresses, 1 + step) {
        Some(ipv4) => IpAddr::from(<[u8; 4]>::try_from(ipv4).ok()?),
        None => IpAddr::from(<[u8; 16]>::try_from(attribute(addresses, 3 + step)?).ok()?),
    };
    Some(SocketAddr::new(address, port))
}
