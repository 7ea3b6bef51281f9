//! `nf_tables`: tables, chains, rules, sets and maps as messages of netlink, which the kernel takes together or not at all
//! (`linux/netfilter/nf_tables.h`). PURE, but for `io`.
//!
//! ```text
//!     table ip smolet-services
//!       ├─ chain   rules in their order; one at a hook of the kernel (base chain), or entered by a verdict
//!       │    └─ rule   expressions, left to right: load into registers, compare, look up, decide
//!       └─ set, map   elements, and what each stands for: a value or a verdict
//! ```
//!
//! `nft list table ip smolet-services` shows what comes of it: the types of sets are those that nft(8) knows.

mod io;
mod rule;

pub use io::{chains, generation, keys, run, table_exists};
pub use rule::{Compare, Payload, Register, Rule};

use crate::limits::AFFINITIES_MAX;
use crate::netlink::{APPEND, CREATE, Message};

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN` and its end.
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

/// `enum nf_tables_msg_types`.
const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;
const GET_GENERATION: u16 = 16;
const GET_TABLE: u16 = 1;

/// The bytes of elements in one message; the length of an attribute has 16 bits.
const ELEMENTS_BYTES_MAX: usize = 32 * 1024;

/// Whose packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Both.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

impl Family {
    /// `NFPROTO_*`.
    pub fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }
}

/// Type of a key or value, by nft(8)'s number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// An IPv4 address.
    Ipv4Addr,
    /// An IPv6 address.
    Ipv6Addr,
    /// Number of a transport protocol.
    InetProto,
    /// A port, in network order.
    InetService,
    /// 32 bits in the machine's order.
    Mark,
}

impl Type {
    const fn number(self) -> u32 {
        match self {
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::Mark => 19,
        }
    }

    /// Bytes in a key, in which each part fills whole registers of 32 bits.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Ipv6Addr => 16,
            Self::Ipv4Addr | Self::InetProto | Self::InetService | Self::Mark => 4,
        }
    }
}

/// Bytes of a key or value of these parts.
pub fn bytes_of(types: &[Type]) -> usize {
    types.iter().map(|kind| kind.bytes()).sum()
}

/// What elements stand for.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Nothing: a set.
    None,
    /// What happens to the packet.
    Verdict,
    /// A value.
    Value(&'a [Type]),
}

/// A set or map.
#[derive(Clone, Copy, Debug)]
pub struct Set<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its parts.
    pub key: &'a [Type],
    /// What elements stand for.
    pub data: Data<'a>,
    /// Rules add elements, `limits::AFFINITIES_MAX` at most, which end by themselves. Full: a rule that would add one ends there.
    pub is_dynamic: bool,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It is discarded.
    Drop,
    /// It is done with at this hook's chain.
    Accept,
    /// Goes on behind the jump to this chain.
    Return,
    /// To that chain, and back.
    Jump(&'a str),
    /// To that chain.
    Goto(&'a str),
}

impl<'a> Verdict<'a> {
    fn parts(self) -> (i32, Option<&'a str>) {
        match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Return => (-5, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
        }
    }

    /// `NFTA_DATA_VERDICT` in `NFTA_*_DATA`.
    fn write(self, into: &mut Message) {
        let (code, chain) = self.parts();
        into.nest(2, |data| {
            data.attribute(1, &code.to_be_bytes());
            if let Some(chain) = chain {
                name(data, 2, chain);
            }
        });
    }
}

/// An element.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    /// As long as the set's key.
    pub key: &'a [u8],
    /// Of the set's kind.
    pub data: ElementData<'a>,
}

/// What an element stands for.
#[derive(Clone, Copy, Debug)]
pub enum ElementData<'a> {
    /// Nothing.
    None,
    /// A verdict.
    Verdict(Verdict<'a>),
    /// A value, as long as the map's.
    Value(&'a [u8]),
}

/// Where a base chain is (`enum nf_inet_hooks`).
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    /// All that comes in.
    Prerouting,
    /// For this node.
    Input,
    /// Passes through it.
    Forward,
    /// From it.
    Output,
    /// All that leaves.
    Postrouting,
}

/// A string with its zero.
fn name(into: &mut Message, attribute: u16, text: &str) {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend(text.as_bytes());
    bytes.push(0);
    into.attribute(attribute, &bytes);
}

/// A comment as nft(8) keeps it: type, length, text with its zero.
fn comment(into: &mut Message, attribute: u16, text: &str) {
    let text = crate::text::start_of(text, 127);
    let mut bytes = vec![0, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)];
    bytes.extend(text.as_bytes());
    bytes.push(0);
    into.attribute(attribute, &bytes);
}

/// Changes of one table, which the kernel makes together ([`run`]).
#[derive(Clone, Debug)]
pub struct Batch {
    family: Family,
    table: Box<str>,
    messages: Message,
    sets: u32,
}

impl Batch {
    /// For the table of this name; nothing yet.
    pub fn new(family: Family, table: &str) -> Self {
        let mut messages = Message::default();
        let at = messages.begin(BATCH_BEGIN, 0, &batch_header());
        messages.end(at);
        Self { family, table: table.into(), messages, sets: 0 }
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Nothing is in it but its begin.
    pub fn is_empty(&self) -> bool {
        self.messages.len() <= 20
    }

    fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Message)) {
        let at = self.messages.begin(SUBSYSTEM << 8 | kind, flags, &[self.family.number(), 0, 0, 0]);
        name(&mut self.messages, 1, &self.table);
        fill(&mut self.messages);
        self.messages.end(at);
    }

    /// The table, unless it is there.
    pub fn add_table(&mut self) {
        self.message(NEW_TABLE, CREATE, |_| {});
    }

    /// Deletes the table with all in it; the kernel refuses it where there is none.
    pub fn delete_table(&mut self) {
        self.message(DELETE_TABLE, 0, |_| {});
    }

    /// A chain, unless it is there.
    pub fn add_chain(&mut self, chain: &str) {
        self.message(NEW_CHAIN, CREATE, |message| name(message, 3, chain));
    }

    /// A chain of type `filter` or `nat` at a hook, which accepts what no rule decides.
    pub fn add_base_chain(&mut self, chain: &str, kind: &str, hook: Hook, priority: i32) {
        self.message(NEW_CHAIN, CREATE, |message| {
            name(message, 3, chain);
            message.nest(4, |at| {
                at.attribute(1, &(hook as u32).to_be_bytes()).attribute(2, &priority.to_be_bytes());
            });
            message.attribute(5, &1_u32.to_be_bytes());
            name(message, 7, kind);
        });
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, chain: &str) {
        self.message(DELETE_RULE, 0, |message| name(message, 2, chain));
    }

    /// Deletes a chain that no rule and no element leads to.
    pub fn delete_chain(&mut self, chain: &str) {
        self.message(DELETE_CHAIN, 0, |message| name(message, 3, chain));
    }

    /// Adds a rule behind those of the chain.
    pub fn add_rule(&mut self, chain: &str, rule: &Rule<'_>) {
        self.message(NEW_RULE, CREATE | APPEND, |message| {
            name(message, 2, chain);
            message.nest(4, |expressions| expressions.append(&rule.expressions));
            if let Some(text) = rule.comment {
                comment(message, 7, text);
            }
        });
    }

    /// A set or map, unless it is there.
    pub fn add_set(&mut self, set: &Set<'_>) {
        const MAP: u32 = 8;
        const TIMEOUT_AND_EVAL: u32 = 0x30;
        /// `NFT_DATA_VERDICT`.
        const VERDICT: u32 = 0xffff_ff00;
        self.sets += 1;
        let number = self.sets;
        self.message(NEW_SET, CREATE, |message| {
            let mut flags = 0;
            if !matches!(set.data, Data::None) {
                flags |= MAP;
            }
            if set.is_dynamic {
                flags |= TIMEOUT_AND_EVAL;
            }
            name(message, 2, set.name);
            let numbers =
                [(3, flags), (4, type_of(set.key)), (5, u32::try_from(bytes_of(set.key)).unwrap_or(0))];
            for (attribute, number) in numbers {
                message.attribute(attribute, &number.to_be_bytes());
            }
            let data = match set.data {
                Data::None => None,
                Data::Verdict => Some((VERDICT, 0)),
                Data::Value(types) => Some((type_of(types), u32::try_from(bytes_of(types)).unwrap_or(0))),
            };
            if let Some((kind, length)) = data {
                message.attribute(6, &kind.to_be_bytes()).attribute(7, &length.to_be_bytes());
            }
            message.attribute(10, &number.to_be_bytes());
            if set.is_dynamic {
                // Senders of packets fill it: without a size the kernel takes one of its own.
                message.nest(9, |description| {
                    description.attribute(1, &AFFINITIES_MAX.to_be_bytes());
                });
                // What has ended is looked for once a minute and not each second.
                message.attribute(12, &60_000_u32.to_be_bytes());
            }
        });
    }

    /// Deletes all elements.
    pub fn flush_set(&mut self, set: &str) {
        self.message(DELETE_ELEMENT, 0, |message| name(message, 2, set));
    }

    /// Deletes a set that no rule has.
    pub fn delete_set(&mut self, set: &str) {
        self.message(DELETE_SET, 0, |message| name(message, 2, set));
    }

    /// Adds elements. One that is there with the same data is no error, with other data it is.
    pub fn add_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = Element<'a>>) {
        self.elements(NEW_ELEMENT, set, &mut elements.into_iter());
    }

    /// Deletes elements, which must be there.
    pub fn delete_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = Element<'a>>) {
        self.elements(DELETE_ELEMENT, set, &mut elements.into_iter());
    }

    fn elements(&mut self, kind: u16, set: &str, elements: &mut dyn Iterator<Item = Element<'_>>) {
        let mut elements = elements.peekable();
        while elements.peek().is_some() {
            self.message(kind, CREATE, |message| {
                name(message, 2, set);
                message.nest(3, |list| {
                    let begin = list.len();
                    while list.len() - begin < ELEMENTS_BYTES_MAX {
                        let Some(element) = elements.next() else { return };
                        list.nest(1, |message| write_element(message, &element));
                    }
                });
            });
        }
    }

    /// The messages, with the batch's end.
    fn finish(mut self) -> Message {
        let at = self.messages.begin(BATCH_END, 0, &batch_header());
        self.messages.end(at);
        self.messages
    }
}

fn write_element(message: &mut Message, element: &Element<'_>) {
    message.nest(1, |key| {
        key.attribute(1, element.key);
    });
    match element.data {
        ElementData::None => {}
        ElementData::Verdict(verdict) => {
            message.nest(2, |data| verdict.write(data));
        }
        ElementData::Value(value) => {
            message.nest(2, |data| {
                data.attribute(1, value);
            });
        }
    }
}

/// `struct nfgenmsg` of a batch: the subsystem in network order.
fn batch_header() -> [u8; 4] {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
}

/// Types in a row, 6 bits each.
fn type_of(types: &[Type]) -> u32 {
    types.iter().fold(0, |all, kind| all << 6 | kind.number())
}
