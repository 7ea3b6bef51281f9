//! Addresses and ranges of them, as the API's objects have them. PURE.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `ParseIPSloppy`: IPv4 octets may have leading zeros (still decimal); an IPv4-mapped IPv6 address is an IPv4 address.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))?;
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

/// The address in the order of the network.
#[cfg(feature = "tls")]
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// `protocol` of a port, by the number in IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP, the default.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

#[cfg(feature = "tls")]
impl Transport {
    /// The one of the API's name, which is TCP by default; `None`: the API does not know it.
    pub(crate) fn read(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// The protocol's number in IP headers.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}

/// A range of addresses; the bits after the prefix are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The first address.
    pub address: IpAddr,
    /// How many bits all addresses of it share.
    pub prefix: u8,
}

impl Network {
    /// The range of this size that has the address; `None`: the family has no such size.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(address) => {
                let host = 32_u32.checked_sub(prefix.into())?;
                let mask = u32::MAX.checked_shl(host).unwrap_or_default();
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let host = 128_u32.checked_sub(prefix.into())?;
                let mask = u128::MAX.checked_shl(host).unwrap_or_default();
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        };
        Some(Self { address, prefix })
    }

    /// Parses `10.0.0.0/8`; space around it is allowed, as in `loadBalancerSourceRanges`.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.trim().split_once('/')?;
        let prefix: u8 = prefix.parse().ok().filter(|_| prefix.bytes().all(|b| b.is_ascii_digit()))?;
        Self::new(parse_ip(address)?, prefix)
    }

    /// The address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv6() == self.address.is_ipv6() && Self::new(address, self.prefix) == Some(*self)
    }

    /// All addresses of the other range are in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    /// The bytes of its mask, as many as an address has.
    pub fn mask(&self) -> Vec<u8> {
        let bytes: u8 = if self.address.is_ipv4() { 4 } else { 16 };
        let byte = |index: u8| {
            let bits = self.prefix.saturating_sub(index * 8).min(8);
            u8::MAX.checked_shl(u32::from(8 - bits)).unwrap_or(0)
        };
        (0..bytes).map(byte).collect()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_lose_the_bits_after_the_prefix() {
        for (text, wanted) in [
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            (" 10.1.2.3/32 ", Some("10.1.2.3/32")),
            ("010.1.2.3/24", Some("10.1.2.0/24")),
            ("10.1.2.3/0", Some("0.0.0.0/0")),
            ("fd00::1:2/112", Some("fd00::1:0/112")),
            ("fd00::1/128", Some("fd00::1/128")),
            ("fd00::1/0", Some("::/0")),
            ("10.1.2.3/33", None),
            ("fd00::1/129", None),
            ("10.1.2.3/+8", None),
            ("10.1.2.3/", None),
            ("10.1.2.3", None),
            ("10.1.2.0/24/1", None),
            ("x/1", None),
            ("10.1.2/8", None),
            ("/8", None),
            ("", None),
        ] {
            let parsed = Network::parse(text).map(|range| range.to_string());
            assert_eq!(parsed.as_deref(), wanted, "{text:?}");
        }
    }

    #[test]
    fn ranges_cover_those_within_them() {
        for (outer, inner, is_covered) in [
            ("10.42.0.0/16", "10.42.1.0/24", true),
            ("10.42.0.0/16", "10.42.0.0/16", true),
            ("10.42.1.0/24", "10.42.0.0/16", false),
            ("10.42.0.0/16", "10.43.1.0/24", false),
            ("0.0.0.0/0", "10.43.1.0/24", true),
            ("0.0.0.0/0", "fd00::/64", false),
            ("fd00:42::/56", "fd00:42:0:1::/64", true),
        ] {
            let [outer, inner] = [outer, inner].map(|text| Network::parse(text).unwrap());
            assert_eq!(outer.covers(&inner), is_covered, "{outer} {inner}");
        }
    }

    #[test]
    fn a_mask_has_the_bits_of_the_prefix() {
        for (range, mask) in [
            ("10.0.0.0/0", [0, 0, 0, 0]),
            ("10.0.0.0/8", [255, 0, 0, 0]),
            ("10.0.0.0/13", [255, 248, 0, 0]),
            ("10.0.0.1/32", [255; 4]),
        ] {
            assert_eq!(Network::parse(range).unwrap().mask(), mask, "{range}");
        }
        let long = Network::parse("fd00::/65").unwrap().mask();
        assert_eq!(long, [vec![255; 8], vec![128], vec![0; 7]].concat());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn protocols_have_the_numbers_of_ip() {
        for (name, number) in [
            (None, Some(6)),
            (Some("TCP"), Some(6)),
            (Some("UDP"), Some(17)),
            (Some("SCTP"), Some(132)),
            (Some("tcp"), None),
        ] {
            assert_eq!(Transport::read(name).map(Transport::number), number, "{name:?}");
        }
    }

    #[test]
    fn addresses_are_in_ranges_of_their_family() {
        for (range, address, is_in) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "192.0.2.1", false),
            ("fd00::/64", "fd00::ffff", true),
            ("fd00::/64", "fd00:0:0:1::", false),
            ("10.1.2.3/31", "10.1.2.2", true),
            ("10.1.2.3/32", "10.1.2.2", false),
            ("fd00:1::/33", "fd00:1:7fff::1", true),
            ("fd00:1::/33", "fd00:1:8000::1", false),
        ] {
            let range = Network::parse(range).unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), is_in, "{range} {address}");
        }
    }
}
