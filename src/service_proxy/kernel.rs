//! Brings the rules of all services into the kernel. I/O, blocking.
//!
//! ```text
//!     changed services ─► Rules ─► a transaction of each family ─► the kernel ─► clients leave endpoints that are gone
//!                           ▲                                       │ refused, or somebody else deleted the table
//!                           └── all rules, in one transaction ◄─────┘
//! ```
//!
//! The families know nothing of each other: one that the kernel refuses waits for the next look at the tables, and the other goes on.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::model::{ServiceName, ServicePort};
use super::rules::{Rules, Settings};
use super::skeleton::{AFFINITY, TABLE, family_of};
use crate::conntrack;
use crate::limits::{AFFINITIES_DELETED_MAX, AFFINITIES_MAX, CONNTRACK_DELETED_MAX, CONNTRACK_ROUNDS_MAX};
use crate::model::{SortedMap, SortedSet, Transport};
use crate::netlink::{BatchError, Netlink, Protocol};
use crate::nftables::{self, Batch, Element, ElementData, Family};

/// The kernel's tables and what should be in them.
#[derive(Debug)]
pub struct Kernel {
    rules: Rules,
    netlink: Netlink,
    /// The ports of UDP whose connections are still to be looked at, of services that have changed, IPv4's and IPv6's.
    stale: [SortedMap<ServiceName, Vec<Front>>; 2],
    /// IPv4's, IPv6's.
    states: [State; 2],
    /// The kernel's number of its rules up to which all changes were ours or looked at.
    seen: u32,
    /// Transactions that the kernel has made for us. Each adds one to its number.
    transactions: u32,
}

/// Of the table of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Unknown, or wrong.
    Unknown,
    /// No service has an address of the family, and there is no table.
    Absent,
    /// As in [`Rules`].
    Current,
    /// The kernel refused all rules, which are written again after the next [`Kernel::check`].
    Refused,
}

/// What a change came to in one family (`syncProxyRules` of its proxier).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilySync {
    /// The rules are as they should be.
    Current,
    /// They are, but the connections or clients of endpoints that are gone could not be forgotten, as a sentence; the next change tries it
    /// again.
    Left(String),
    /// The kernel refused the rules, as a sentence.
    Refused(String),
    /// It refused them before. They are written after the next [`Kernel::check`].
    Waiting,
}

impl FamilySync {
    /// Something was tried in vain.
    pub fn is_failed(&self) -> bool {
        match self {
            Self::Left(_) | Self::Refused(_) => true,
            Self::Current | Self::Waiting => false,
        }
    }
}

impl Kernel {
    /// For the thread's network namespace; nothing is read or changed yet.
    ///
    /// # Errors
    /// A kernel without netfilter's netlink.
    pub fn open(settings: Settings) -> io::Result<Self> {
        let netlink = Netlink::open(Protocol::Netfilter)?;
        let (rules, stale) = (Rules::new(settings), [SortedMap::new(), SortedMap::new()]);
        Ok(Self { rules, netlink, stale, states: [State::Unknown; 2], seen: 0, transactions: 0 })
    }

    /// Services with rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// No service has rules.
    pub fn is_empty(&self) -> bool {
        self.rules.len() == 0
    }

    /// Bytes held on the heap, nearly.
    pub fn bytes(&self) -> usize {
        let front_bytes = |front: &Front| 160 + size_of::<SocketAddr>() * front.serves.len();
        let fronts = self.stale.iter().flat_map(SortedMap::values).flatten();
        self.rules.bytes() + fronts.map(front_bytes).sum::<usize>()
    }

    /// Services that do without an address and port that another one has.
    pub fn contested(&self) -> Vec<ServiceName> {
        self.rules.contested().cloned().collect()
    }

    /// Sets what does not depend on services. Other ranges of pods make the next change write all rules again; other addresses of the node
    /// count for the services that it is called for.
    pub fn set_settings(&mut self, settings: Settings) {
        if self.rules.set_settings(settings) {
            self.states = [State::Unknown; 2];
        }
    }

    /// The services have these ports now; one without ports is gone. Then connections of UDP to endpoints that are gone are forgotten
    /// (`conntrack.CleanStaleEntries`), and which clients stayed with them. What came of it, IPv4's and IPv6's: a family that the kernel
    /// refuses keeps the other one from nothing.
    pub fn change(&mut self, changed: Vec<(ServiceName, Vec<ServicePort>)>) -> [FamilySync; 2] {
        for (name, ports) in &changed {
            for (stale, is_ipv6) in self.stale.iter_mut().zip([false, true]) {
                let of_family = ports.iter().filter(|port| port.cluster_ip.is_ipv6() == is_ipv6);
                let fronts: Vec<Front> = of_family.filter_map(Front::of).collect();
                if fronts.is_empty() {
                    stale.remove(name);
                } else {
                    stale.insert(name.clone(), fronts);
                }
            }
        }
        let batches = self.rules.change(changed);
        let is_whole = !self.states.contains(&State::Current);
        let (before, transactions) = (self.read_generation(), self.transactions);
        let synced = [(false, batches.ipv4), (true, batches.ipv6)]
            .map(|(is_ipv6, batch)| self.change_family(is_ipv6, batch));
        // What cannot be read is said by the next look, for which everything is unseen.
        if let (Ok(before), Ok(after)) = (before, self.read_generation()) {
            let made = self.transactions.wrapping_sub(transactions);
            self.seen = seen_after(self.seen, is_whole, before, made, after);
        }
        synced
    }

    fn change_family(&mut self, is_ipv6: bool, batch: Batch) -> FamilySync {
        if self.states[usize::from(is_ipv6)] == State::Refused {
            return FamilySync::Waiting;
        }
        if let Err(why) = self.apply(is_ipv6, batch) {
            return FamilySync::Refused(why);
        }
        // Behind the rules: what comes before them makes the same again.
        match self.forget(is_ipv6) {
            Ok(()) => FamilySync::Current,
            Err(why) => FamilySync::Left(why),
        }
    }

    /// Deletes the tables.
    ///
    /// # Errors
    /// What the kernel refused, as a sentence: the first of the two, both of which are tried.
    pub fn end(&mut self) -> Result<(), String> {
        let [ipv4, ipv6] = [false, true].map(|is_ipv6| self.delete_table(is_ipv6));
        ipv4.and(ipv6)
    }

    fn delete_table(&mut self, is_ipv6: bool) -> Result<(), String> {
        if self.table_exists(is_ipv6)? {
            let mut batch = Batch::new(family_of(is_ipv6), TABLE);
            batch.delete_table();
            self.run(batch).map_err(|error| refused(&error))?;
        }
        self.states[usize::from(is_ipv6)] = State::Absent;
        Ok(())
    }

    fn table_exists(&mut self, is_ipv6: bool) -> Result<bool, String> {
        let is_there = nftables::table_exists(&mut self.netlink, family_of(is_ipv6), TABLE);
        is_there.map_err(|error| format!("reading the table {TABLE}: {error}"))
    }

    /// Makes a transaction.
    fn run(&mut self, batch: Batch) -> Result<(), BatchError> {
        nftables::run(&mut self.netlink, batch)?;
        self.transactions = self.transactions.wrapping_add(1);
        Ok(())
    }

    /// Looks whether the tables are there: somebody may have flushed all rules. The next change writes again what is not, and what the
    /// kernel refused before; with `is_thorough` all rules, whatever is there.
    ///
    /// # Errors
    /// The kernel's, as a sentence.
    pub fn check(&mut self, is_thorough: bool) -> Result<(), String> {
        let looked = self.look();
        for state in &mut self.states {
            let is_to_write = match state {
                State::Refused => true,
                State::Current => is_thorough,
                State::Unknown | State::Absent => false,
            };
            if is_to_write {
                *state = State::Unknown;
            }
        }
        looked
    }

    fn look(&mut self) -> Result<(), String> {
        let generation = self.read_generation()?;
        if generation == self.seen {
            return Ok(());
        }
        for is_ipv6 in [false, true] {
            let index = usize::from(is_ipv6);
            if self.states[index] == State::Current && !self.table_exists(is_ipv6)? {
                self.states[index] = State::Unknown;
                log::warn!("services: somebody deleted the table {TABLE}; writing all rules again");
            }
        }
        self.seen = generation;
        Ok(())
    }

    fn apply(&mut self, is_ipv6: bool, batch: Batch) -> Result<(), String> {
        let index = usize::from(is_ipv6);
        let mut failed = None;
        match self.states[index] {
            State::Absent | State::Current if batch.is_empty() => return Ok(()),
            State::Current => match self.run(batch) {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            },
            State::Absent | State::Unknown | State::Refused => {}
        }
        self.states[index] = State::Refused;
        self.states[index] = self.apply_all(is_ipv6)?;
        if let Some(error) = failed {
            log::warn!("services: {}; all rules were written again", refused(&error));
        }
        Ok(())
    }

    /// Writes all rules. Chains of an earlier agent are emptied in the same transaction; a table that does not allow it is replaced.
    fn apply_all(&mut self, is_ipv6: bool) -> Result<State, String> {
        let family = family_of(is_ipv6);
        let reading = |error: io::Error| format!("reading the table {TABLE}: {error}");
        if !self.rules.has_family(is_ipv6) {
            self.delete_table(is_ipv6)?;
            return Ok(State::Absent);
        }
        let chains = nftables::chains(&mut self.netlink, family, TABLE).map_err(reading)?;
        let batch = self.rules.all(is_ipv6, &chains, false);
        if let Err(error) = self.run(batch) {
            if chains.is_empty() {
                return Err(refused(&error));
            }
            let batch = self.rules.all(is_ipv6, &chains, true);
            self.run(batch).map_err(|error| refused(&error))?;
            log::warn!("services: {}; the table {TABLE} was replaced", refused(&error));
        }
        Ok(State::Current)
    }

    /// Forgets what leads clients to endpoints that are gone, of a family whose rules lead to others. What is left is kept for the next
    /// change.
    fn forget(&mut self, is_ipv6: bool) -> Result<(), String> {
        let index = usize::from(is_ipv6);
        let has_table = self.states[index] == State::Current;
        let affinities = if has_table { self.forget_affinities(is_ipv6) } else { Ok(()) };
        if affinities.is_ok() {
            self.rules.forget_gone(is_ipv6);
        }
        let stale = if has_table { self.forget_stale(is_ipv6) } else { Ok(()) };
        if stale.is_ok() {
            self.stale[index].clear();
        }
        affinities.map_err(|error| format!("forgetting the endpoints of clients: {error}"))?;
        stale.map_err(|error| format!("forgetting connections of UDP: {error}"))
    }

    /// Clients that stayed with an endpoint that is gone do not come back to it when it does.
    fn forget_affinities(&mut self, is_ipv6: bool) -> io::Result<()> {
        let gone = self.rules.gone(is_ipv6);
        if gone.is_empty() {
            return Ok(());
        }
        let (family, address_bytes) = (family_of(is_ipv6), if is_ipv6 { 16 } else { 4 });
        let key_bytes = address_bytes + 4;
        let is_stale = |key: &[u8]| {
            let mark = key.get(address_bytes..).and_then(|mark| mark.try_into().ok());
            mark.is_some_and(|mark| gone.contains(&u32::from_ne_bytes(mark)))
        };
        let most = AFFINITIES_MAX as usize * key_bytes;
        let keys = match nftables::keys(&mut self.netlink, family, (TABLE, AFFINITY), most, &is_stale) {
            // No service of this family is one that clients stay with.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            keys => keys?,
        };
        for some in keys.chunks(AFFINITIES_DELETED_MAX * key_bytes) {
            self.delete_affinities(family, some, key_bytes)?;
        }
        Ok(())
    }

    /// In one transaction, or in several when the time of one of them has ended, for which the kernel refuses all.
    fn delete_affinities(&mut self, family: Family, keys: &[u8], key_bytes: usize) -> io::Result<()> {
        let mut batch = Batch::new(family, TABLE);
        let elements = keys.chunks(key_bytes).map(|key| Element { key, data: ElementData::None });
        batch.delete_elements(AFFINITY, elements);
        match self.run(batch) {
            Err(error) if error.error.kind() == io::ErrorKind::NotFound => {
                if keys.len() > key_bytes {
                    let (one, other) = keys.split_at(keys.len() / key_bytes / 2 * key_bytes);
                    self.delete_affinities(family, one, key_bytes)?;
                    self.delete_affinities(family, other, key_bytes)?;
                }
                Ok(())
            }
            done => done.map_err(|error| error.error),
        }
    }

    fn read_generation(&mut self) -> Result<u32, String> {
        let found = nftables::generation(&mut self.netlink);
        found.map_err(|error| format!("reading the generation of nf_tables: {error}"))
    }

    /// Connections of UDP to an address of these ports that go to nobody who serves it: a client that goes on sending would never
    /// reach another endpoint.
    fn forget_stale(&mut self, is_ipv6: bool) -> io::Result<()> {
        let fronts: Vec<&Front> = self.stale[usize::from(is_ipv6)].values().flatten().collect();
        if fronts.is_empty() {
            return Ok(());
        }
        let is_stale = |flow: &conntrack::Flow| {
            let front = fronts.iter().find(|front| front.is_reached_by(flow.destination));
            front.is_some_and(|front| !front.serves.contains(&flow.replier))
        };
        for _ in 0..CONNTRACK_ROUNDS_MAX {
            if conntrack::forget_udp(&mut self.netlink, is_ipv6, &is_stale)? < CONNTRACK_DELETED_MAX {
                return Ok(());
            }
        }
        Err(io::Error::other("there are too many at a time"))
    }
}

/// The addresses of a UDP port, and who serves it.
#[derive(Debug)]
struct Front {
    addresses: Vec<IpAddr>,
    port: u16,
    node_port: u16,
    serves: SortedSet<SocketAddr>,
}

impl Front {
    /// None of a port without endpoints: new packets are rejected, and what is under way ends by itself.
    fn of(port: &ServicePort) -> Option<Self> {
        if port.transport != Transport::Udp || port.serving.is_empty() {
            return None;
        }
        let addresses = [port.cluster_ip].into_iter();
        let addresses = addresses.chain(port.external_ips.iter().chain(&port.load_balancer_ips).copied());
        Some(Self {
            addresses: addresses.collect(),
            port: port.port,
            node_port: port.node_port,
            serves: port.serving.iter().copied().collect(),
        })
    }

    fn is_reached_by(&self, destination: SocketAddr) -> bool {
        let is_address = self.port == destination.port() && self.addresses.contains(&destination.ip());
        is_address || self.node_port != 0 && self.node_port == destination.port()
    }
}

fn refused(error: &BatchError) -> String {
    match error.message {
        Some(number) => format!("nf_tables refused message {number} of a change: {}", error.error),
        None => format!("nf_tables refused a change: {}", error.error),
    }
}

/// `seen` of a [`Kernel`] behind a change, with the kernel's number of its rules before and after it, and how many transactions it made for us
/// between. Whatever it made for somebody else too is unseen: a flush of all rules right behind ours. `is_whole`: no rules were kept from
/// before.
fn seen_after(seen: u32, is_whole: bool, before: u32, transactions: u32, after: u32) -> u32 {
    let is_ours = after == before.wrapping_add(transactions);
    if is_ours && (is_whole || seen == before) { after } else { seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_others_are_unseen_whenever_they_are_made() {
        for (row, seen, is_whole, [before, transactions, after], wanted) in [
            ("ours alone", 7, false, [7, 2, 9], 9),
            ("nothing was made", 7, false, [7, 0, 7], 7),
            ("a flush between ours and the read", 7, false, [7, 1, 9], 7),
            ("a flush, and nothing of ours", 7, false, [7, 0, 8], 7),
            ("a flush before, which nobody has seen", 7, false, [8, 1, 9], 7),
            ("both", 7, false, [8, 1, 10], 7),
            ("what was before does not count where all is written", 0, true, [8, 1, 9], 9),
            ("all is written, and flushed", 0, true, [8, 1, 10], 0),
            ("the number begins again", u32::MAX - 1, false, [u32::MAX - 1, 1, u32::MAX], u32::MAX),
        ] {
            assert_eq!(seen_after(seen, is_whole, before, transactions, after), wanted, "{row}");
        }
    }
}
