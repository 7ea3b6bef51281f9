//! Brings flannel's network up on this node and keeps it so, by rtnetlink. I/O, blocking; a thread of its own.
//!
//! Everything that is there is read and compared first: a call changes nothing where nothing differs. What was made stays when the
//! agent ends.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use super::plan::{self, Entry, External, LINKS, LinkSpec};
use super::rtnetlink::{self as messages, Link, LinkAddress};
use super::rules::{self, FORWARD, POSTROUTING, RuleSpec, TABLES};
use super::{Backend, Mac, Way, family};
use crate::limits::{FLANNEL_ENTRIES_MAX, FLANNEL_LINKS_MAX};
use crate::model::Network;
use crate::netlink::{Message, Netlink, Protocol};
use crate::nftables;

/// `ENOENT`, `ESRCH`, `ENODEV`, `EADDRNOTAVAIL`: what is removed is gone already.
const GONE: [i32; 4] = [2, 3, 19, 99];
/// `EOPNOTSUPP`.
const NOT_SUPPORTED: i32 = 95;

/// What the network is to be.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) backend: Backend,
    /// The cluster's ranges, by family.
    pub(crate) networks: [Option<Network>; 2],
    /// Those of this node's pods.
    pub(crate) own: [Option<Network>; 2],
    /// `--flannel-iface`.
    pub(crate) interface: Option<Box<str>>,
    /// The node's addresses, the primary one first.
    pub(crate) addresses: Vec<IpAddr>,
    /// Hardware addresses that the Node remembers, and those for links that never were.
    pub(crate) remembered: [Option<Mac>; 2],
    pub(crate) derived: [Mac; 2],
    /// Other nodes; `None`: they are not known yet, and what the kernel has of them stays.
    pub(crate) peers: Option<Vec<Way>>,
    /// Packets of IPv6 pods to others are masqueraded; those of IPv4 always are.
    pub(crate) masquerades_v6: bool,
    /// The rules that were made last.
    pub(crate) made: [Option<RuleSpec>; 2],
}

/// What it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BroughtUp {
    /// The link between the nodes.
    pub(crate) interface: Box<str>,
    /// The pods' MTU.
    pub(crate) mtu: u32,
    /// This node's address on it, by family; `None`: the family is not used.
    pub(crate) hosts: [Option<IpAddr>; 2],
    /// Hardware addresses of the vxlan links.
    pub(crate) macs: [Option<Mac>; 2],
    /// The node's ranges that are used, with the cluster's.
    pub(crate) rules: [Option<RuleSpec>; 2],
    /// Entries of other nodes.
    pub(crate) entries: usize,
    /// Messages that changed something.
    pub(crate) changes: usize,
    /// Why it is not whole: an entry of a node, or the rules. What is there works.
    pub(crate) refused: Option<String>,
}

/// Brings the network up.
///
/// # Errors
/// A sentence that says what is missing, or what the kernel refused of the links.
pub(crate) fn bring_up(wanted: &Wanted) -> Result<BroughtUp, String> {
    let used = used_families(wanted)?;
    let mut kernel = Kernel::open()?;
    let (links, addresses) = (kernel.links()?, kernel.addresses()?);
    let mut external = plan::external(&links, &addresses, wanted.interface.as_deref(), &wanted.addresses)?;
    for (address, used) in external.addresses.iter_mut().zip(used) {
        *address = address.filter(|_| used.is_some());
    }
    let mut up = BroughtUp {
        interface: external.name.clone(),
        // As flannel: larger packets of the other family are answered by the kernel.
        mtu: wanted.backend.mtu(external.mtu, usize::from(external.addresses[0].is_none())),
        hosts: external.addresses,
        ..BroughtUp::default()
    };
    if up.hosts == [None; 2] {
        return Err(format!(
            "interface {} has no address of the pods' families; give --flannel-iface",
            external.name
        ));
    }
    let mut vxlan = [None; 2];
    for of in 0..2 {
        let spec = LinkSpec::new(of, &external, &links, wanted.remembered[of], wanted.derived[of]);
        let there = links.iter().find(|link| &*link.name == LINKS[of]);
        match (wanted.backend, spec, used[of]) {
            (Backend::Vxlan, Some(spec), Some(own)) => {
                let link = kernel.ensure_link(&spec, there)?;
                kernel.ensure_address(&spec, link, own, wanted.networks[of], &addresses)?;
                (vxlan[of], up.macs[of]) = (Some(link), Some(spec.mac));
            }
            // Left by another backend, or by a family that is no longer used.
            (Backend::Vxlan | Backend::HostGw, ..) => {
                if let Some(there) = there.filter(|there| there.vxlan.is_some()) {
                    kernel.remove(&messages::delete_link(there.index), &format!("link {}", there.name))?;
                }
            }
        }
    }
    if let Some(peers) = &wanted.peers {
        (up.entries, up.refused) = kernel.ensure_entries(wanted, peers, &external, used, vxlan)?;
    }
    up.rules = [0, 1].map(|of| {
        let own = used[of].filter(|_| up.hosts[of].is_some())?;
        Some(RuleSpec { network: wanted.networks[of]?, own, masquerades: of == 0 || wanted.masquerades_v6 })
    });
    up.changes = kernel.changes;
    match ensure_rules(&up.rules, &wanted.made) {
        Ok(changes) => up.changes += changes,
        Err(why) => up.refused = up.refused.or(Some(why)),
    }
    Ok(up)
}

/// Makes the rules unless they were made, and their chains are there; returns the number of changes.
fn ensure_rules(rules: &[Option<RuleSpec>; 2], made: &[Option<RuleSpec>; 2]) -> Result<usize, String> {
    let missing = |why: io::Error| {
        format!("nf_tables: {why}; does the kernel have it (CONFIG_NF_TABLES, CONFIG_NFT_MASQ)?")
    };
    let mut netlink = Netlink::open(Protocol::Netfilter).map_err(missing)?;
    let mut changes = 0;
    for (spec, made) in rules.iter().zip(made) {
        let Some(spec) = spec else { continue };
        let (family, table) = TABLES[family(spec.network.address)];
        if made.as_ref() == Some(spec) {
            let chains = nftables::chains(&mut netlink, family, table).map_err(missing)?;
            if [FORWARD, POSTROUTING].iter().all(|chain| chains.iter().any(|there| **there == **chain)) {
                continue;
            }
        }
        nftables::run(&mut netlink, rules::batch(spec)).map_err(|refused| missing(refused.error))?;
        changes += 1;
    }
    Ok(changes)
}

/// The node's own ranges of the families that are used.
fn used_families(wanted: &Wanted) -> Result<[Option<Network>; 2], String> {
    let mut used = [None; 2];
    for (used, (network, own)) in used.iter_mut().zip(wanted.networks.into_iter().zip(wanted.own)) {
        let (Some(network), Some(own)) = (network, own) else { continue };
        if !network.covers(&own) {
            return Err(format!(
                "the Node's podCIDR {own} is outside the cluster's {network}; remove the Node, so that it gets another one, or \
                 set the servers' --cluster-cidr right"
            ));
        }
        *used = Some(own);
    }
    if used == [None; 2] {
        return Err(
            "the Node's podCIDRs have no range of the families of the servers' --cluster-cidr".to_owned()
        );
    }
    Ok(used)
}

/// The kernel's networking, and the number of changes.
struct Kernel {
    netlink: Netlink,
    changes: usize,
}

impl Kernel {
    fn open() -> Result<Self, String> {
        let netlink = Netlink::open(Protocol::Route).map_err(|error| format!("rtnetlink: {error}"))?;
        Ok(Self { netlink, changes: 0 })
    }

    /// Answers to a question that `read` makes something of.
    fn read<T>(
        &mut self,
        question: &Message,
        what: &str,
        entries_max: usize,
        read: &dyn Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, String> {
        let mut found = Vec::new();
        let asked = self.netlink.dump(question, &mut |_, answer| {
            if found.len() < entries_max {
                found.extend(read(answer));
            }
        });
        asked.map_err(|error| format!("reading {what}: {error}"))?;
        Ok(found)
    }

    fn links(&mut self) -> Result<Vec<Link>, String> {
        self.read(&messages::links(), "links", FLANNEL_LINKS_MAX, &messages::read_link)
    }

    fn addresses(&mut self) -> Result<Vec<LinkAddress>, String> {
        self.read(&messages::addresses(), "addresses", FLANNEL_LINKS_MAX, &messages::read_address)
    }

    fn change(&mut self, message: &Message, what: &str) -> Result<(), String> {
        self.changes += 1;
        self.netlink.request(message).map_err(|error| {
            let mend = match error.raw_os_error() {
                Some(NOT_SUPPORTED) => "; does the kernel have vxlan (CONFIG_VXLAN, modprobe vxlan)?",
                _ => "",
            };
            format!("{what}: {error}{mend}")
        })
    }

    /// Removes what may be gone.
    fn remove(&mut self, message: &Message, what: &str) -> Result<(), String> {
        self.changes += 1;
        match self.netlink.request(message) {
            Err(error) if error.raw_os_error().is_some_and(|code| GONE.contains(&code)) => Ok(()),
            done => done.map_err(|error| format!("removing {what}: {error}")),
        }
    }

    /// Makes the link unless it is there (`ensureLink`), and returns its index.
    fn ensure_link(&mut self, spec: &LinkSpec, there: Option<&Link>) -> Result<u32, String> {
        let name = spec.name;
        let mut same = there.filter(|there| spec.is(there)).cloned();
        if same.is_none() {
            if let Some(there) = there {
                log::warn!("flannel: link {name} has other settings; it is made anew");
                self.remove(&messages::delete_link(there.index), &format!("link {name}"))?;
            }
            self.change(&messages::new_link(spec), &format!("link {name}: making it"))?;
            same = self.links()?.into_iter().find(|link| &*link.name == name);
            // As flannel: a router's announcements are none of its business.
            let accepts = Path::new("/proc/sys/net/ipv6/conf").join(name).join("accept_ra");
            if let Err(error) = std::fs::write(accepts, "0") {
                log::debug!("flannel: accept_ra of {name}: {error}");
            }
        }
        let link = same.ok_or_else(|| format!("link {name}: was removed as soon as it was made"))?;
        if !link.is_up || link.mtu != spec.mtu {
            self.change(&messages::set_link(link.index, spec.mtu), &format!("link {name}: setting it up"))?;
        }
        Ok(link.index)
    }

    /// The first address of the node's range, alone, is the link's one in the cluster's network (`EnsureV4AddressOnLink`).
    fn ensure_address(
        &mut self,
        spec: &LinkSpec,
        link: u32,
        own: Network,
        network: Option<Network>,
        addresses: &[LinkAddress],
    ) -> Result<(), String> {
        let (name, bits) = (spec.name, if family(own.address) == 0 { 32 } else { 128 });
        let mut is_there = false;
        for of in addresses.iter().filter(|of| of.link == link && family(of.address) == family(own.address)) {
            let is_of_pods = Network::new(of.address, bits)
                .is_some_and(|address| network.is_some_and(|network| network.covers(&address)));
            if of.address == own.address && of.bits == bits {
                is_there = true;
            } else if is_of_pods {
                self.remove(
                    &messages::delete_address(of),
                    &format!("address {} of link {name}", of.address),
                )?;
            }
        }
        if is_there {
            return Ok(());
        }
        let what = format!("address {} of link {name}", own.address);
        self.change(&messages::new_address(link, own.address), &what)
    }

    /// Adds and removes entries of the other nodes; returns how many there are, and what was refused of them: the others are tried all
    /// the same.
    fn ensure_entries(
        &mut self,
        wanted: &Wanted,
        peers: &[Way],
        external: &External,
        used: [Option<Network>; 2],
        vxlan: [Option<u32>; 2],
    ) -> Result<(usize, Option<String>), String> {
        let links = match wanted.backend {
            Backend::Vxlan => vxlan,
            Backend::HostGw => external.addresses.map(|address| address.map(|_| external.index)),
        };
        let entries = plan::wanted(wanted.backend, peers, &wanted.networks, &used, links);
        let mut there = Vec::new();
        let ours = |entry: &Entry| entry.is_flannels(&wanted.networks, vxlan, external.index);
        let route = |answer: &[u8]| messages::read_route(answer).filter(ours);
        let neighbour = |answer: &[u8]| messages::read_neighbour(answer).filter(ours);
        for of in (0..2).filter(|of| wanted.networks[*of].is_some()) {
            there.extend(self.read(&messages::routes(of), "routes", FLANNEL_ENTRIES_MAX, &route)?);
            if vxlan[of].is_some() {
                let question = messages::neighbours(of);
                there.extend(self.read(&question, "neighbours", FLANNEL_ENTRIES_MAX, &neighbour)?);
            }
        }
        if vxlan != [None; 2] {
            let question = messages::forwarding();
            there.extend(self.read(&question, "forwarding tables", FLANNEL_ENTRIES_MAX, &neighbour)?);
        }
        let (removed, added) = plan::changes(&entries, there);
        let mut refused = None;
        for entry in &removed {
            refused = self.remove(&messages::remove(entry), &entry.to_string()).err().or(refused);
        }
        for entry in &added {
            let message = messages::add(entry, wanted.backend == Backend::Vxlan);
            let done = self.change(&message, &entry.to_string()).map_err(|why| match wanted.backend {
                Backend::Vxlan => why,
                Backend::HostGw => format!("{why}; host-gw needs all nodes on one link"),
            });
            refused = done.err().or(refused);
        }
        Ok((entries.len(), refused))
    }
}

#[cfg(test)]
mod tests;
