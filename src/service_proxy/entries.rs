//! What a service has in the kernel's tables, as bytes: entries in their order, one behind the other. PURE.
//!
//! ```text
//!     place (with the family), key length, value length (2), key, value
//! ```
//!
//! 10,000 endpoints are 10,000 entries of 20 bytes. What changed between two lists is found by going through both once.

use std::cmp::Ordering;

/// Where an entry is in the tables. Those of a chain come first: elements lead to chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// A chain of a service's port with its rules.
    Chain,
    Endpoints,
    ClusterIps,
    ServiceIps,
    ServiceNodePorts,
    NoEndpointServices,
    NoEndpointNodePorts,
    FirewallIps,
    HairpinConnections,
}

impl Place {
    pub(super) const ALL: [Self; 9] = [
        Self::Chain,
        Self::Endpoints,
        Self::ClusterIps,
        Self::ServiceIps,
        Self::ServiceNodePorts,
        Self::NoEndpointServices,
        Self::NoEndpointNodePorts,
        Self::FirewallIps,
        Self::HairpinConnections,
    ];

    /// The sets and maps.
    pub(super) fn sets() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|place| *place != Self::Chain)
    }

    /// The name of the set or map, as in kube-proxy's tables.
    pub(super) fn set(self) -> &'static str {
        match self {
            Self::Chain => "",
            Self::Endpoints => "endpoints",
            Self::ClusterIps => "cluster-ips",
            Self::ServiceIps => "service-ips",
            Self::ServiceNodePorts => "service-nodeports",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::FirewallIps => "firewall-ips",
            Self::HairpinConnections => "hairpin-connections",
        }
    }

    /// Several services may have the same entry; that of any other place is the first one's that wants it.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::ClusterIps | Self::HairpinConnections)
    }

    /// No other service can want the entry: its key has a number that this one was given.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::Chain | Self::Endpoints)
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry<'a> {
    pub(super) is_ipv6: bool,
    pub(super) place: Place,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl Entry<'_> {
    /// Two with the same are the same thing in the kernel, with another value.
    fn by_key(&self, other: &Self) -> Ordering {
        (self.is_ipv6, self.place, self.key).cmp(&(other.is_ipv6, other.place, other.key))
    }
}

/// Entries in order, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries(Box<[u8]>);

impl Entries {
    /// Sorts them; of two with the same key the first one counts.
    pub(super) fn of(mut entries: Vec<Entry<'_>>) -> Self {
        entries.sort_by(Entry::by_key);
        entries.dedup_by(|next, kept| next.by_key(kept) == Ordering::Equal);
        let bytes = entries.iter().map(|entry| 4 + entry.key.len() + entry.value.len()).sum();
        let mut all = Vec::with_capacity(bytes);
        for entry in entries {
            all.push(entry.place as u8 | u8::from(entry.is_ipv6) << 7);
            all.push(u8::try_from(entry.key.len()).unwrap_or(u8::MAX));
            all.extend(u16::try_from(entry.value.len()).unwrap_or(u16::MAX).to_ne_bytes());
            all.extend(entry.key);
            all.extend(entry.value);
        }
        Self(all.into())
    }

    pub(super) fn iter(&self) -> Iter<'_> {
        Iter(&self.0)
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// What is to be deleted and what added on the way from `self` to `next`: an entry with another value is both.
    pub(super) fn changes<'a>(&'a self, next: &'a Self, each: &mut dyn FnMut(Change<'a>)) {
        let (mut before, mut after) = (self.iter().peekable(), next.iter().peekable());
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(before), Some(after)) => before.by_key(after),
            };
            let old = if order.is_le() { before.next() } else { None };
            let new = if order.is_ge() { after.next() } else { None };
            if old != new {
                if let Some(entry) = old {
                    each(Change::Delete(entry));
                }
                if let Some(entry) = new {
                    each(Change::Add(entry));
                }
            }
        }
    }
}

/// A step from one list to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    Delete(Entry<'a>),
    Add(Entry<'a>),
}

/// The entries of a list.
pub(super) struct Iter<'a>(&'a [u8]);

impl<'a> Iterator for Iter<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (head, rest) = self.0.split_at_checked(4)?;
        let (key, rest) = rest.split_at_checked(usize::from(head[1]))?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_ne_bytes([head[2], head[3]])))?;
        self.0 = rest;
        let place = *Place::ALL.get(usize::from(head[0] & 0x7f))?;
        Some(Entry { is_ipv6: head[0] & 0x80 != 0, place, key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(place: Place, key: &'a [u8], value: &'a [u8]) -> Entry<'a> {
        Entry { is_ipv6: false, place, key, value }
    }

    #[test]
    fn lists_are_kept_in_order_each_key_once() {
        let six = Entry { is_ipv6: true, ..entry(Place::Chain, b"a", b"x") };
        let list = Entries::of(vec![
            six,
            entry(Place::Endpoints, b"b", b""),
            entry(Place::Chain, b"a", b"1"),
            entry(Place::Chain, b"a", b"2"),
        ]);
        let found: Vec<_> = list.iter().collect();
        assert_eq!(found, [entry(Place::Chain, b"a", b"1"), entry(Place::Endpoints, b"b", b""), six]);
        for (index, place) in Place::ALL.into_iter().enumerate() {
            assert_eq!(place as usize, index);
        }
    }

    #[test]
    fn changes_are_what_differs() {
        let old = Entries::of(vec![
            entry(Place::Endpoints, b"1", b"a"),
            entry(Place::Endpoints, b"2", b"b"),
            entry(Place::Endpoints, b"3", b"c"),
        ]);
        let new = Entries::of(vec![
            entry(Place::Endpoints, b"0", b"z"),
            entry(Place::Endpoints, b"1", b"a"),
            entry(Place::Endpoints, b"2", b"B"),
        ]);
        let mut changes = Vec::new();
        old.changes(&new, &mut |change| changes.push(change));
        let wanted = [
            Change::Add(entry(Place::Endpoints, b"0", b"z")),
            Change::Delete(entry(Place::Endpoints, b"2", b"b")),
            Change::Add(entry(Place::Endpoints, b"2", b"B")),
            Change::Delete(entry(Place::Endpoints, b"3", b"c")),
        ];
        assert_eq!(changes, wanted);
        old.changes(&old, &mut |change| panic!("{change:?}"));
    }
}
