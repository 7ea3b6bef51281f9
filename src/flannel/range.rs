//! A range of addresses, as `10.42.0.0/16`. PURE.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    first: IpAddr,
    bits: u8,
}

impl Range {
    /// The range of this size that has the address; `None`: the family has no such size.
    pub(crate) fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let first = match address {
            IpAddr::V4(ip) => {
                let host = 32_u32.checked_sub(bits.into())?;
                let mask = u32::MAX.checked_shl(host).unwrap_or(0);
                Ipv4Addr::from(u32::from(ip) & mask).into()
            }
            IpAddr::V6(ip) => {
                let host = 128_u32.checked_sub(bits.into())?;
                let mask = u128::MAX.checked_shl(host).unwrap_or(0);
                Ipv6Addr::from(u128::from(ip) & mask).into()
            }
        };
        Some(Self { first, bits })
    }

    /// Parses `ADDRESS/BITS`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        Self::new(address.parse().ok()?, bits.parse().ok()?)
    }

    /// Its first address, that of the network.
    pub(crate) fn first(&self) -> IpAddr {
        self.first
    }

    /// The length of its prefix.
    pub(crate) fn bits(&self) -> u8 {
        self.bits
    }

    /// The place of its family in an array: IPv4 first.
    pub(crate) fn family(&self) -> usize {
        family(self.first)
    }

    /// All addresses of the other range are in this one.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.bits <= other.bits && Self::new(other.first, self.bits) == Some(*self)
    }
}

/// The place of an address's family in an array: IPv4 first.
pub(crate) fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_masked_and_contain_others() {
        let of = |text: &str| Range::parse(text).unwrap();
        for (text, shown) in [
            ("10.42.1.7/24", "10.42.1.0/24"),
            ("10.42.1.7/0", "0.0.0.0/0"),
            ("10.42.1.7/32", "10.42.1.7/32"),
            ("fd00:42::7/56", "fd00:42::/56"),
            ("fd00::7/0", "::/0"),
            ("fd00::7/128", "fd00::7/128"),
        ] {
            assert_eq!(of(text).to_string(), shown);
        }
        for wrong in ["", "10.42.1.0", "10.42.1.0/33", "fd00::/129", "x/1", "10.42.1.0/-1", "10.42.1.0/24/1"]
        {
            assert_eq!(Range::parse(wrong), None, "{wrong}");
        }
        for (outer, inner, contains) in [
            ("10.42.0.0/16", "10.42.1.0/24", true),
            ("10.42.0.0/16", "10.42.0.0/16", true),
            ("10.42.1.0/24", "10.42.0.0/16", false),
            ("10.42.0.0/16", "10.43.1.0/24", false),
            ("0.0.0.0/0", "10.43.1.0/24", true),
            ("0.0.0.0/0", "fd00::/64", false),
            ("fd00:42::/56", "fd00:42:0:1::/64", true),
        ] {
            assert_eq!(of(outer).contains(&of(inner)), contains, "{outer} {inner}");
        }
    }
}
