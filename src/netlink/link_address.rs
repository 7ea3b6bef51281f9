//! Addresses of links: `struct ifaddrmsg` of rtnetlink(7), as they are asked for and read. PURE.

use std::net::IpAddr;

use super::{DUMP, Message, attribute};

/// `RTM_NEWADDR`; a deletion is the next number, a question the one after it.
pub const LINK_ADDRESS: u16 = 20;
const GET: u16 = 2;
/// `struct ifaddrmsg`: family, bits, flags, scope, link.
const HEADER: usize = 8;
/// `IFA_ADDRESS`.
pub const ADDRESS: u16 = 1;
/// `IFA_LOCAL`.
pub const LOCAL: u16 = 2;
/// `IFA_FLAGS`.
pub const FLAGS: u16 = 8;
/// `IFA_F_TEMPORARY`.
pub const TEMPORARY: u32 = 1;
/// `IFA_F_DEPRECATED`.
const DEPRECATED: u32 = 0x20;
/// `IFA_F_PERMANENT`.
pub const PERMANENT: u32 = 0x80;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// The link's index.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// Bits of its range.
    pub bits: u8,
    /// `IFA_F_…`
    pub flags: u32,
}

impl LinkAddress {
    /// The question for all addresses of all links.
    pub fn question() -> Message {
        Message::new(LINK_ADDRESS + GET, DUMP, &[0; HEADER])
    }

    /// The address of one answer, without `struct nlmsghdr`; `None`: it is cut short.
    pub fn read(answer: &[u8]) -> Option<Self> {
        let (header, rest) = answer.split_at_checked(HEADER)?;
        // Of a link between two ends the local one counts; IPv6 has it in the other attribute alone.
        let found = attribute(rest, LOCAL).or_else(|| attribute(rest, ADDRESS))?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
        let flags = attribute(rest, FLAGS).and_then(number).unwrap_or_else(|| header[2].into());
        Some(Self { link: number(&header[4..])?, address: address(found)?, bits: header[1], flags })
    }

    /// The kernel selects it for no new connection: its prefix is no longer announced, or it is a temporary one that was replaced.
    pub fn is_deprecated(self) -> bool {
        self.flags & DEPRECATED != 0
    }
}

/// The address that flannel prefers (`compareAddrs`): none that is deprecated; one beyond the link, permanent, not temporary.
pub fn preferred<'a>(addresses: impl Iterator<Item = &'a LinkAddress>) -> Option<IpAddr> {
    let usable = addresses.filter(|of| !of.is_deprecated() && !of.address.is_loopback());
    usable
        .min_by_key(|of| (is_link_local(of.address), of.flags & PERMANENT == 0, of.flags & TEMPORARY != 0))
        .map(|of| of.address)
}

/// It is of its link alone.
pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The address that an attribute has; `None`: of no family that is known here.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_with_its_flags() {
        let mut answer = vec![10, 64, 0x80, 0, 2, 0, 0, 0, 20, 0, 1, 0];
        answer.extend(std::net::Ipv6Addr::LOCALHOST.octets());
        let whole = [answer.clone(), vec![8, 0, 8, 0], 0x20_u32.to_ne_bytes().to_vec()].concat();
        let found = LinkAddress::read(&whole).unwrap();
        let address = std::net::Ipv6Addr::LOCALHOST.into();
        assert_eq!(
            found,
            LinkAddress { link: u32::from_ne_bytes([2, 0, 0, 0]), address, bits: 64, flags: 0x20 }
        );
        assert!(found.is_deprecated());
        let short = LinkAddress::read(&answer).unwrap();
        assert!(short.flags == 0x80 && !short.is_deprecated(), "those of the header");
        assert_eq!(LinkAddress::read(&answer[..20]), None);
    }
}
