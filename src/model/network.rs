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
            ("10.1.2/8", None),
            ("/8", None),
            ("", None),
        ] {
            let parsed = Network::parse(text).map(|range| range.to_string());
            assert_eq!(parsed.as_deref(), wanted, "{text:?}");
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
        ] {
            let range = Network::parse(range).unwrap();
            assert_eq!(range.contains(address.parse().unwrap()), is_in, "{range} {address}");
        }
    }
}
