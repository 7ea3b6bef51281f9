//! Brings flannel's network up on this node and keeps it so, by rtnetlink. I/O, blocking; a thread of its own.
//!
//! Everything that is there is read and compared first: a call changes nothing where nothing differs. What was made stays when the
//! agent ends.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::plan::{self, Entry, External, LinkSpec};
use super::rtnetlink::{self as messages, Link, LinkKind};
use super::rules::{self, FORWARD, POSTROUTING, RuleSpec, TABLES};
use super::{Backend, LinkData, Mac, PeerSpec, Way, family};
use crate::limits::{FLANNEL_ENTRIES_MAX, FLANNEL_LINKS_MAX};
use crate::model::Network;
use crate::netlink::link_address::LinkAddress;
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
    /// Where the private key of `WireGuard` is.
    pub(crate) key_file: PathBuf,
    /// Other nodes; `None`: they are not known yet, and what the kernel has of them stays.
    pub(crate) peers: Option<Vec<Way>>,
    /// Packets of IPv6 pods to others are masqueraded; those of IPv4 always are.
    pub(crate) masquerades_v6: bool,
    /// The rules that were made last.
    pub(crate) made: [Option<RuleSpec>; 2],
    /// The peers of `WireGuard` that were set last, those of each family sorted by their keys.
    pub(crate) set: Arc<[PeerSpec]>,
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
    /// What others have to know of its links.
    pub(crate) data: [Option<LinkData>; 2],
    /// The node's ranges that are used, with the cluster's.
    pub(crate) rules: [Option<RuleSpec>; 2],
    /// Entries and peers of other nodes.
    pub(crate) entries: usize,
    /// The peers of `WireGuard` that are set now.
    pub(crate) set: Arc<[PeerSpec]>,
    /// Messages that changed something.
    pub(crate) changes: usize,
    /// Why it is not whole: an entry of a node, or the rules. What is there works.
    pub(crate) refused: Option<String>,
    /// Why iptables may drop what is forwarded.
    pub(crate) forward_refused: Option<String>,
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
    external.use_families(used.map(|used| used.is_some()))?;
    let mut up = BroughtUp {
        interface: external.name.clone(),
        // As flannel: larger packets of the other family are answered by the kernel.
        mtu: wanted.backend.mtu(external.mtu, usize::from(external.addresses[0].is_none())),
        hosts: external.addresses,
        ..BroughtUp::default()
    };
    let key = (wanted.backend == Backend::Wireguard).then(|| wireguard::private_key(&wanted.key_file));
    let key = key.transpose()?;
    let specs = [0, 1].map(|of| {
        let (remembered, derived) = (wanted.remembered[of], wanted.derived[of]);
        let own = used[of]?;
        LinkSpec::new(wanted.backend, of, &external, &links, remembered, derived).map(|spec| (spec, own))
    });
    // Left by another backend, or by a family that is no longer used.
    for left in links.iter().filter(|link| plan::is_flannels(link)) {
        if !specs.iter().flatten().any(|(spec, _)| *spec.name == *left.name) {
            log::info!("flannel: link {} is of another backend; it is removed", left.name);
            kernel.remove(&messages::delete_link(left.index), &format!("link {}", left.name))?;
        }
    }
    let mut own_links = [None; 2];
    for (of, (spec, own)) in specs.iter().enumerate().filter_map(|(of, spec)| Some((of, spec.as_ref()?))) {
        let link = kernel.ensure_link(spec, links.iter().find(|link| *link.name == *spec.name))?;
        kernel.ensure_address(spec, link, *own, wanted.networks[of], &addresses)?;
        own_links[of] = Some(link);
        up.data[of] = spec.mac.map(LinkData::Vxlan);
    }
    // What is for pods of others is not to go another way, unencrypted, while they are not known.
    let none = Vec::new();
    if let Some(peers) = wanted.peers.as_ref().or(key.as_ref().map(|_| &none)) {
        (up.entries, up.refused) = kernel.ensure_entries(wanted, peers, &external, used, own_links)?;
    }
    let mut set = Vec::new();
    for of in 0..2 {
        let (Some((spec, own)), Some(link), Some(key)) = (&specs[of], own_links[of], &key) else { continue };
        match wireguard::bring_up(wanted, of, (link, spec.name), *own, key) {
            Ok(made) => {
                up.data[of] = Some(made.data);
                up.refused = up.refused.or(made.refused);
                up.entries += made.peers.len();
                kernel.changes += made.changes;
                set.extend(made.peers);
            }
            Err(why) => up.refused = up.refused.or(Some(why)),
        }
    }
    up.set = set.into();
    up.rules = [0, 1].map(|of| {
        let own = used[of]?;
        Some(RuleSpec { network: wanted.networks[of]?, own, masquerades: of == 0 || wanted.masquerades_v6 })
    });
    up.changes = kernel.changes;
    match ensure_rules(&up.rules, &wanted.made) {
        Ok(changes) => up.changes += changes,
        Err(why) => up.refused = up.refused.or(Some(why)),
    }
    Ok(up)
}

/// Makes the rules of a network that is up again where somebody has removed them.
///
/// # Errors
/// The kernel's.
pub(crate) fn look_at_rules(mut up: BroughtUp) -> Result<BroughtUp, String> {
    up.forward_refused = None;
    up.changes = ensure_rules(&up.rules, &up.rules)?;
    Ok(up)
}

/// The time since 1970, as the kernel has it.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
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
        let found = self.netlink.collect(question, &mut |found: &mut Vec<T>, _, answer| {
            if found.len() < entries_max {
                found.extend(read(answer));
            }
        });
        found.map_err(|error| format!("reading {what}: {error}"))
    }

    fn links(&mut self) -> Result<Vec<Link>, String> {
        self.read(&messages::links(), "links", FLANNEL_LINKS_MAX, &messages::read_link)
    }

    fn addresses(&mut self) -> Result<Vec<LinkAddress>, String> {
        self.read(&LinkAddress::question(), "addresses", FLANNEL_LINKS_MAX, &LinkAddress::read)
    }

    fn change(&mut self, message: &Message, what: &str) -> Result<(), String> {
        self.changes += 1;
        self.netlink.request(message).map_err(|error| format!("{what}: {error}"))
    }

    /// Makes a link.
    fn make(&mut self, spec: &LinkSpec) -> Result<(), String> {
        self.changes += 1;
        self.netlink.request(&messages::new_link(spec)).map_err(|error| {
            let mend = match (error.raw_os_error(), spec.kind) {
                (Some(NOT_SUPPORTED), LinkKind::Vxlan(_)) => {
                    "; the kernel has no vxlan (CONFIG_VXLAN, modprobe vxlan); smolet doctor says how to get it"
                }
                (Some(NOT_SUPPORTED), LinkKind::Wireguard) => {
                    "; the kernel has no WireGuard (CONFIG_WIREGUARD, modprobe wireguard); smolet doctor says how to get it"
                }
                _ => "",
            };
            format!("link {}: making it: {error}{mend}", spec.name)
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
            self.make(spec)?;
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
        own_links: [Option<u32>; 2],
    ) -> Result<(usize, Option<String>), String> {
        let between = external.addresses.map(|address| address.map(|_| external.index));
        let of_host_gw = plan::wanted(Backend::HostGw, peers, &wanted.networks, &used, between);
        let (entries, former, gateways) = match wanted.backend {
            Backend::Vxlan | Backend::Wireguard => {
                let entries = plan::wanted(wanted.backend, peers, &wanted.networks, &used, own_links);
                (entries, of_host_gw, None)
            }
            Backend::HostGw => (of_host_gw, Vec::new(), Some(external.index)),
        };
        let mut there = Vec::new();
        let ours = |entry: &Entry| entry.is_flannels(&wanted.networks, own_links, gateways, &former);
        let route = |answer: &[u8]| messages::read_route(answer).filter(ours);
        let neighbour = |answer: &[u8]| messages::read_neighbour(answer).filter(ours);
        for of in (0..2).filter(|of| wanted.networks[*of].is_some()) {
            there.extend(self.read(&messages::routes(of), "routes", FLANNEL_ENTRIES_MAX, &route)?);
            if wanted.backend == Backend::Vxlan && own_links[of].is_some() {
                let question = messages::neighbours(of);
                there.extend(self.read(&question, "neighbours", FLANNEL_ENTRIES_MAX, &neighbour)?);
            }
        }
        if wanted.backend == Backend::Vxlan && own_links != [None; 2] {
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
                Backend::Vxlan | Backend::Wireguard => why,
                Backend::HostGw => format!("{why}; host-gw needs all nodes on one link"),
            });
            refused = done.err().or(refused);
        }
        Ok((entries.len(), refused))
    }
}

#[cfg(test)]
mod tests;
mod wireguard;
