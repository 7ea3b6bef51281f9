//! Rules: expressions and the registers that they work on. PURE.
//!
//! Registers have 32 bits; a key of several parts stands in registers in a row, each part at the begin of one. A register must be set in the rule
//! that reads it.

use super::{Verdict, name};
use crate::model::Network;
use crate::model::network::octets;
use crate::netlink::Message;

/// A register of 32 bits, 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u8);

impl Register {
    /// `NFT_REG32_00` and further ones.
    fn number(self) -> u32 {
        8 + u32::from(self.0)
    }
}

/// Bytes of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Payload {
    /// Source address of IPv4.
    Ipv4Source,
    /// Destination address of IPv4.
    Ipv4Destination,
    /// Source address of IPv6.
    Ipv6Source,
    /// Destination address of IPv6.
    Ipv6Destination,
    /// Source port.
    SourcePort,
    /// Destination port.
    DestinationPort,
    /// Type of an ICMP or `ICMPv6` message.
    IcmpType,
}

/// A comparison.
#[derive(Clone, Copy, Debug)]
pub enum Compare {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// At most; in network order.
    AtMost,
    /// At least; in network order.
    AtLeast,
}

/// The value of an expression's attribute.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u32),
    Long(u64),
    Byte(u8),
    Name(&'a str),
    Data(&'a [u8]),
    Verdict(Verdict<'a>),
}

/// A rule under construction: expressions from left to right, and what is shown beside it.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Rule<'a> {
    pub(super) expressions: Message,
    pub(super) comment: Option<&'a str>,
}

impl<'a> Rule<'a> {
    /// Without expressions.
    pub fn new() -> Self {
        Self::default()
    }

    /// What `nft list` shows beside it.
    pub fn comment(mut self, text: &'a str) -> Self {
        self.comment = Some(text);
        self
    }

    fn expression(mut self, kind: &str, values: &[(u16, Value<'_>)]) -> Self {
        self.expressions.nest(1, |expression| {
            name(expression, 1, kind);
            expression.nest(2, |data| {
                for (attribute, value) in values {
                    match *value {
                        Value::Number(number) => {
                            data.attribute(*attribute, &number.to_be_bytes());
                        }
                        Value::Long(number) => {
                            data.attribute(*attribute, &number.to_be_bytes());
                        }
                        Value::Byte(byte) => {
                            data.attribute(*attribute, &[byte]);
                        }
                        Value::Name(text) => name(data, *attribute, text),
                        Value::Data(bytes) => {
                            data.nest(*attribute, |data| {
                                data.attribute(1, bytes);
                            });
                        }
                        Value::Verdict(verdict) => {
                            data.nest(*attribute, |data| verdict.write(data));
                        }
                    }
                }
            });
        });
        self
    }

    /// Loads bytes of the packet.
    pub fn payload(self, what: Payload, into: Register) -> Self {
        let (base, offset, length) = match what {
            Payload::Ipv4Source => (1, 12, 4),
            Payload::Ipv4Destination => (1, 16, 4),
            Payload::Ipv6Source => (1, 8, 16),
            Payload::Ipv6Destination => (1, 24, 16),
            Payload::SourcePort => (2, 0, 2),
            Payload::DestinationPort => (2, 2, 2),
            Payload::IcmpType => (2, 0, 1),
        };
        let into = Value::Number(into.number());
        let place = [base, offset, length].map(Value::Number);
        self.expression("payload", &[(1, into), (2, place[0]), (3, place[1]), (4, place[2])])
    }

    fn meta(self, key: u32, into: Register) -> Self {
        self.expression("meta", &[(2, Value::Number(key)), (1, Value::Number(into.number()))])
    }

    /// Loads the number of the transport protocol.
    pub fn transport(self, into: Register) -> Self {
        self.meta(16, into)
    }

    /// Loads the packet's mark.
    pub fn mark(self, into: Register) -> Self {
        self.meta(3, into)
    }

    /// Loads `NFPROTO_*` of the packet, in a table of both families.
    pub fn family(self, into: Register) -> Self {
        self.meta(15, into)
    }

    /// Sets the packet's mark to the register.
    pub fn set_mark(self, from: Register) -> Self {
        self.expression("meta", &[(2, Value::Number(3)), (3, Value::Number(from.number()))])
    }

    /// Loads bits of the connection's state: 1 invalid, 2 established, 4 related, 8 new.
    pub fn connection_state(self, into: Register) -> Self {
        self.expression("ct", &[(2, Value::Number(0)), (1, Value::Number(into.number()))])
    }

    /// Loads bits of the connection's status: 0x20 its destination was translated.
    pub fn connection_status(self, into: Register) -> Self {
        self.expression("ct", &[(2, Value::Number(2)), (1, Value::Number(into.number()))])
    }

    /// Goes on if one of these bits of the register is set.
    pub fn has_bits(self, register: Register, bits: u32) -> Self {
        self.masked(register, &bits.to_ne_bytes(), &[0; 4]).compare(register, Compare::NotEqual, &[0; 4])
    }

    /// `register = register & mask ^ other`.
    pub fn masked(self, register: Register, mask: &[u8], other: &[u8]) -> Self {
        let number = Value::Number(register.number());
        let length = Value::Number(u32::try_from(mask.len()).unwrap_or(0));
        let values = [(1, number), (2, number), (3, length), (4, Value::Data(mask)), (5, Value::Data(other))];
        self.expression("bitwise", &values)
    }

    /// Goes on if that address of the packet is in the range, or if it is not; the register is used.
    pub fn within(self, what: Payload, range: &Network, how: Compare, register: Register) -> Self {
        let (mask, address) = (range.mask(), octets(range.address));
        self.payload(what, register)
            .masked(register, &mask, &vec![0; mask.len()])
            .compare(register, how, &address)
    }

    /// Goes on if the comparison holds.
    pub fn compare(self, register: Register, how: Compare, value: &[u8]) -> Self {
        let how = match how {
            Compare::Equal => 0,
            Compare::NotEqual => 1,
            Compare::AtMost => 3,
            Compare::AtLeast => 5,
        };
        let values =
            [(1, Value::Number(register.number())), (2, Value::Number(how)), (3, Value::Data(value))];
        self.expression("cmp", &values)
    }

    /// Loads a value.
    pub fn immediate(self, value: &[u8], into: Register) -> Self {
        self.expression("immediate", &[(1, Value::Number(into.number())), (2, Value::Data(value))])
    }

    /// Decides.
    pub fn verdict(self, verdict: Verdict<'_>) -> Self {
        self.expression("immediate", &[(1, Value::Number(0)), (2, Value::Verdict(verdict))])
    }

    /// Goes on if the key, which begins in that register, is in the set.
    pub fn is_in(self, key: Register, set: &str) -> Self {
        self.expression("lookup", &[(2, Value::Number(key.number())), (1, Value::Name(set))])
    }

    /// Goes on if it is not.
    pub fn is_not_in(self, key: Register, set: &str) -> Self {
        let values = [(2, Value::Number(key.number())), (1, Value::Name(set)), (5, Value::Number(1))];
        self.expression("lookup", &values)
    }

    /// Loads what the key stands for in the map; ends the rule if it is not there.
    pub fn look_up(self, key: Register, map: &str, into: Register) -> Self {
        let values =
            [(2, Value::Number(key.number())), (3, Value::Number(into.number())), (1, Value::Name(map))];
        self.expression("lookup", &values)
    }

    /// Decides as the map of verdicts has it for the key.
    pub fn look_up_verdict(self, key: Register, map: &str) -> Self {
        let values = [(2, Value::Number(key.number())), (3, Value::Number(0)), (1, Value::Name(map))];
        self.expression("lookup", &values)
    }

    /// Loads a random number below `count`.
    pub fn random(self, count: u32, into: Register) -> Self {
        let values = [(1, Value::Number(into.number())), (2, Value::Number(count)), (3, Value::Number(1))];
        self.expression("numgen", &values)
    }

    /// Goes on if the source (else the destination) is an address of this node.
    pub fn is_local(self, is_source: bool, register: Register) -> Self {
        /// `RTN_LOCAL`.
        const LOCAL: u32 = 2;
        let flags = if is_source { 1 } else { 2 };
        let values =
            [(1, Value::Number(register.number())), (2, Value::Number(3)), (3, Value::Number(flags))];
        self.expression("fib", &values).compare(register, Compare::Equal, &LOCAL.to_ne_bytes())
    }

    /// Adds an element to a dynamic set, or gives it its whole time again.
    pub fn update(self, set: &str, key: Register, milliseconds: u64) -> Self {
        let values = [
            (1, Value::Name(set)),
            (3, Value::Number(1)),
            (4, Value::Number(key.number())),
            (6, Value::Long(milliseconds)),
        ];
        self.expression("dynset", &values)
    }

    /// Translates the destination to the address and the port in these registers.
    pub fn dnat(self, family: super::Family, address: Register, port: Register) -> Self {
        let values = [
            (1, Value::Number(1)),
            (2, Value::Number(u32::from(family.number()))),
            (3, Value::Number(address.number())),
            (5, Value::Number(port.number())),
        ];
        self.expression("nat", &values)
    }

    /// Translates the source to the address of the interface that the packet leaves by, with any port.
    pub fn masquerade(self) -> Self {
        /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
        const FULLY_RANDOM: u32 = 0x10;
        self.expression("masq", &[(1, Value::Number(FULLY_RANDOM))])
    }

    /// Answers that the port is unreachable.
    pub fn reject(self, family: super::Family) -> Self {
        let (kind, code) = match family {
            super::Family::Ip => (0, 3),
            super::Family::Ip6 => (0, 4),
            // Of either family.
            super::Family::Inet => (2, 1),
        };
        self.expression("reject", &[(1, Value::Number(kind)), (2, Value::Byte(code))])
    }
}
