//! Brings the rules of all services into the kernel. I/O, blocking.
//!
//! ```text
//!     changed services ─► Rules ─► a transaction of each family ─► the kernel ─► clients leave endpoints that are gone
//!                           ▲                                       │ refused, or somebody else deleted the table
//!                           └── all rules, in one transaction ◄─────┘
//! ```

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
    /// The ports of UDP whose connections are still to be looked at, of services that have changed.
    stale: SortedMap<ServiceName, Vec<Front>>,
    /// IPv4's, IPv6's.
    states: [State; 2],
    /// The kernel's number of its rules up to which all changes were ours.
    own: u32,
    /// The same up to which they were ours or looked at.
    seen: u32,
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
}

impl Kernel {
    /// For the thread's network namespace; nothing is read or changed yet.
    ///
    /// # Errors
    /// A kernel without netfilter's netlink.
    pub fn open(settings: Settings) -> io::Result<Self> {
        let netlink = Netlink::open(Protocol::Netfilter)?;
        let (rules, stale, states) = (Rules::new(settings), SortedMap::new(), [State::Unknown; 2]);
        Ok(Self { rules, netlink, stale, states, own: 0, seen: 0 })
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
        self.rules.bytes() + self.stale.values().flatten().map(front_bytes).sum::<usize>()
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
    /// (`conntrack.CleanStaleEntries`), and which clients stayed with them. `Some`: why they could not be, with rules that are as they
    /// should be; the next call tries it again.
    ///
    /// # Errors
    /// What the kernel refused, as a sentence; the next call writes everything again.
    pub fn change(
        &mut self,
        changed: Vec<(ServiceName, Vec<ServicePort>)>,
    ) -> Result<Option<String>, String> {
        for (name, ports) in &changed {
            let fronts: Vec<Front> = ports.iter().filter_map(Front::of).collect();
            if fronts.is_empty() {
                self.stale.remove(name);
            } else {
                self.stale.insert(name.clone(), fronts);
            }
        }
        let batches = self.rules.change(changed);
        let changes = [(false, batches.ipv4), (true, batches.ipv6)];
        let is_whole = !self.states.contains(&State::Current);
        // Else these batches would be lost.
        let before = self.read_generation().inspect_err(|_| self.states = [State::Unknown; 2])?;
        // A family that fails keeps the other one from nothing: these batches are all that is said of the change.
        let applied = changes.map(|(is_ipv6, batch)| self.apply(is_ipv6, batch));
        // Behind the rules: what comes before them makes the same again.
        let left = self.forget();
        let failures: Vec<String> = applied.into_iter().filter_map(Result::err).collect();
        if !failures.is_empty() {
            return Err(failures.join("; "));
        }
        let after = self.read_generation()?;
        // What somebody else has changed before, a flush of the other family's rules say, is still to be looked at.
        for known in [&mut self.own, &mut self.seen] {
            if is_whole || *known == before {
                *known = after;
            }
        }
        Ok(left.err())
    }

    /// Deletes the tables.
    ///
    /// # Errors
    /// As [`Kernel::change`].
    pub fn end(&mut self) -> Result<(), String> {
        for is_ipv6 in [false, true] {
            self.delete_table(is_ipv6)?;
        }
        Ok(())
    }

    fn delete_table(&mut self, is_ipv6: bool) -> Result<(), String> {
        let family = family_of(is_ipv6);
        let is_there = nftables::table_exists(&mut self.netlink, family, TABLE);
        if is_there.map_err(|error| format!("reading the table {TABLE}: {error}"))? {
            let mut batch = Batch::new(family, TABLE);
            batch.delete_table();
            nftables::run(&mut self.netlink, batch).map_err(|error| refused(&error))?;
        }
        self.states[usize::from(is_ipv6)] = State::Absent;
        Ok(())
    }

    /// Looks whether the tables are as they should be, as far as can be seen cheaply: somebody may have flushed all rules. The next change
    /// writes again what is not; with `is_thorough` all rules, whenever somebody else changed any table.
    ///
    /// # Errors
    /// The kernel's, as a sentence.
    pub fn check(&mut self, is_thorough: bool) -> Result<(), String> {
        let generation = self.read_generation()?;
        if generation != if is_thorough { self.own } else { self.seen } {
            for is_ipv6 in [false, true] {
                let state = &mut self.states[usize::from(is_ipv6)];
                let family = family_of(is_ipv6);
                let is_there = nftables::table_exists(&mut self.netlink, family, TABLE);
                let is_there = is_there.map_err(|error| format!("reading the table {TABLE}: {error}"))?;
                if *state == State::Current && (is_thorough || !is_there) {
                    *state = State::Unknown;
                    if !is_there {
                        log::warn!("services: somebody deleted the table {TABLE}; writing all rules again");
                    }
                }
            }
            self.seen = generation;
        }
        Ok(())
    }

    fn apply(&mut self, is_ipv6: bool, batch: Batch) -> Result<(), String> {
        let index = usize::from(is_ipv6);
        if self.states[index] == State::Current {
            if batch.is_empty() {
                return Ok(());
            }
            match nftables::run(&mut self.netlink, batch) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    log::warn!("services: {}; writing all rules again", refused(&error));
                }
            }
        } else if self.states[index] == State::Absent && batch.is_empty() {
            return Ok(());
        }
        self.states[index] = State::Unknown;
        self.states[index] = self.apply_all(is_ipv6)?;
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
        if let Err(error) = nftables::run(&mut self.netlink, batch) {
            if chains.is_empty() {
                return Err(refused(&error));
            }
            log::warn!("services: {}; replacing the table {TABLE}", refused(&error));
            let batch = self.rules.all(is_ipv6, &chains, true);
            nftables::run(&mut self.netlink, batch).map_err(|error| refused(&error))?;
        }
        Ok(State::Current)
    }

    /// Forgets what leads clients to endpoints that are gone, in families whose rules lead to others. What is left is kept for the next
    /// change.
    fn forget(&mut self) -> Result<(), String> {
        let (mut is_whole, mut result) = (true, Ok(()));
        for is_ipv6 in [false, true] {
            match self.states[usize::from(is_ipv6)] {
                State::Unknown => is_whole = false,
                State::Absent => {}
                State::Current => {
                    let affinities = self
                        .forget_affinities(is_ipv6)
                        .map_err(|error| format!("forgetting the endpoints of clients: {error}"));
                    let stale = self
                        .forget_stale(is_ipv6)
                        .map_err(|error| format!("forgetting connections of UDP: {error}"));
                    result = result.and(affinities).and(stale);
                }
            }
        }
        if is_whole && result.is_ok() {
            self.rules.forget_gone();
            self.stale.clear();
        }
        result
    }

    /// Clients that stayed with an endpoint that is gone do not come back to it when it does.
    fn forget_affinities(&mut self, is_ipv6: bool) -> io::Result<()> {
        let gone = self.rules.gone();
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
        match nftables::run(&mut self.netlink, batch) {
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
        let fronts = self.stale.values().flatten().filter(|front| front.is_ipv6 == is_ipv6);
        let fronts: Vec<&Front> = fronts.collect();
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
    is_ipv6: bool,
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
            is_ipv6: port.cluster_ip.is_ipv6(),
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
