//! flannel on this node: brings the pods' network up when the servers' settings, the Node, its addresses or other nodes change, and when
//! the machine's links or routes do; and compares it every ten minutes, its rules, those of iptables among them, every minute. Then the
//! Node gets its annotations, and the runtime its CNI configuration.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use smol::channel::{Receiver, Sender};

use super::network::{place, read};
use super::{ClusterEventKind, Membership, Task};
use crate::cri::Runtime;
use crate::filesystem::replace_unsynced;
use crate::flannel::{
    self, Annotations, BANDWIDTH, BroughtUp, CONFLIST, Mac, NetConf, Peers, RuleSpec, Wanted, family,
};
use crate::iptables;
use crate::kube::seed;
use crate::limits::{FLANNEL_RESYNC_PERIOD, FLANNEL_RETRY_MAX, FLANNEL_RULES_PERIOD, FLANNEL_SETTLE};
use crate::model::{Mono, Network, Now};
use crate::node::effects::Effects;
use crate::node::pods::Pods;

/// flannel's name of the file with `WireGuard`'s private key.
const KEY: &str = "wgkey";

/// Inputs of flannel.
pub struct FlannelInputs {
    /// `--flannel-iface`.
    pub(crate) interface: Option<Box<str>>,
    /// Where CNI configurations are, and plugins.
    pub(crate) conf_dir: PathBuf,
    pub(crate) bin_dirs: Vec<PathBuf>,
    /// The file for k3s' own CNI plugin.
    pub(crate) subnet_file: PathBuf,
    /// The settings that the servers sent last.
    pub(crate) kept: Option<NetConf>,
    /// The other nodes.
    pub(crate) peers: Peers,
    /// They have changed, or the machine's links and routes.
    pub(crate) changes: Receiver<()>,
    /// Starts the watch of Nodes.
    pub(crate) begin: Sender<()>,
}

/// The state of flannel's network.
pub(super) struct Flannel {
    inputs: FlannelInputs,
    /// `None`: not known yet.
    conf: Option<NetConf>,
    pod_cidrs: Vec<Box<str>>,
    /// Those of the Node, k3s' among them.
    there: Annotations,
    task: Task,
    /// Something changed while it was being brought up.
    again: bool,
    /// When all of it is compared next; until then the rules are.
    whole_at: Mono,
    /// When the rules of iptables are looked at next, and for which networks they were made; `None`: for none.
    forwarded: Option<(Mono, [Option<Network>; 2])>,
    /// The failure of that which was logged last; empty: none.
    forward_said: String,
    /// Looks at the rules so far: those of iptables are looked at for one family at a time.
    looks: usize,
    /// As it is; `None`: not since the agent started.
    up: Option<BroughtUp>,
    /// The failure that was logged last; empty: none.
    said: String,
}

impl Flannel {
    pub(super) fn new(mut inputs: FlannelInputs, now: Mono, seed: u64) -> Self {
        let kept = inputs.kept.take();
        let mut this = Self {
            inputs,
            conf: None,
            pod_cidrs: Vec::new(),
            there: Annotations::new(),
            task: Task::new(now, seed),
            again: false,
            whole_at: now,
            forwarded: None,
            forward_said: String::new(),
            looks: 0,
            up: None,
            said: String::new(),
        };
        if let Some(kept) = kept {
            this.set_conf(kept, now);
        }
        this
    }

    /// The servers have sent their settings.
    pub(super) fn set_conf(&mut self, conf: NetConf, now: Mono) {
        if self.conf.as_ref() == Some(&conf) {
            return;
        }
        match conf.backend() {
            Ok(Some(_)) => {
                // Full: it begins already. Closed: it has begun.
                let _ = self.inputs.begin.try_send(());
            }
            Ok(None) => log::info!(
                "flannel: the servers have none (FlannelBackend); the pods' network is another one's"
            ),
            Err(why) => log::error!("flannel: {why}"),
        }
        self.conf = Some(conf);
        self.changed(now);
    }

    /// The Node has these ranges.
    pub(super) fn set_pod_cidrs(&mut self, pod_cidrs: &[Box<str>], now: Mono) {
        if self.pod_cidrs != pod_cidrs {
            self.pod_cidrs = pod_cidrs.to_vec();
            self.changed(now);
        }
    }

    /// The Node has these annotations.
    pub(super) fn set_annotations(&mut self, there: &Annotations, of: &mut Membership) {
        if self.there != *there {
            self.there.clone_from(there);
            self.annotate(of);
        }
    }

    /// The number of other nodes.
    pub(super) fn peers(&self) -> usize {
        self.inputs.peers.len()
    }

    /// Something else of it changed.
    pub(super) fn changed(&mut self, now: Mono) {
        self.whole_at = now;
        match self.task.due() {
            Some(at) => self.task.at = at.min(now + FLANNEL_SETTLE),
            None => self.again = true,
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        let is_wanted = matches!(self.conf.as_ref().map(NetConf::backend), Some(Ok(Some(_))));
        self.task.due().filter(|_| is_wanted && !self.pod_cidrs.is_empty())
    }

    /// What the network is to be.
    fn wanted(&self, of: &Membership) -> Option<Wanted> {
        let conf = self.conf.as_ref()?;
        let backend = conf.backend().ok()??;
        let name = &of.machine.name;
        Some(Wanted {
            backend,
            networks: conf.networks,
            own: by_family(
                self.pod_cidrs.iter().filter_map(|cidr| Network::parse(cidr)),
                |range: &Network| family(range.address),
            ),
            interface: self.inputs.interface.clone(),
            addresses: of.machine.addresses.iter().filter_map(|ip| ip.parse().ok()).collect(),
            remembered: flannel::macs(&self.there),
            derived: ["", "-v6"].map(|family| Mac::derived(seed(&format!("flannel{family} {name}")))),
            key_file: self.inputs.subnet_file.with_file_name(KEY),
            peers: self.inputs.peers.ways(backend),
            masquerades_v6: conf.masquerades_v6,
            made: self.up.as_ref().filter(|up| up.refused.is_none()).map(|up| up.rules).unwrap_or_default(),
            set: self.up.as_ref().map(|up| up.set.clone()).unwrap_or_default(),
        })
    }

    /// Brings the network up when it is due.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        pods: &Pods<R>,
        now: Now,
        out: &Effects,
    ) {
        if self.due().is_none_or(|at| at > now.mono) {
            return;
        }
        let blocking = pods.manager().blocking.clone();
        if let Some(up) = self.up.clone().filter(|_| self.whole_at > now.mono) {
            self.task.begin();
            self.looks = self.looks.wrapping_add(1);
            // What was refused is tried again with the whole.
            let used: Vec<Network> = used_networks(&up).collect();
            let looked_at = self.forwarded.and_then(|_| in_turn(&used, self.looks));
            out.start("flannel", async move {
                let looked = blocking.run(move || {
                    let mut up = flannel::look_at_rules(up)?;
                    if looked_at.is_some_and(|network| !iptables::has_forward(&network)) {
                        log::warn!(
                            "flannel: the rules of {} are gone; they are made anew",
                            iptables::FORWARD
                        );
                        up.forward_refused = iptables::ensure_forward(used_networks(&up)).err();
                    }
                    Ok(up)
                });
                ClusterEventKind::FlannelUp(looked.await).event()
            });
            return;
        }
        let Some(wanted) = self.wanted(of) else { return };
        self.task.begin();
        self.whole_at = now.mono + FLANNEL_RESYNC_PERIOD;
        let networks = wanted.networks;
        let forwards = self.forwarded.is_none_or(|(at, made)| at <= now.mono || made != networks);
        if forwards {
            self.forwarded = Some((self.whole_at, networks));
        }
        let FlannelInputs { conf_dir, bin_dirs, subnet_file, .. } = &self.inputs;
        let (conf_dir, bin_dirs, subnet_file) = (conf_dir.clone(), bin_dirs.clone(), subnet_file.clone());
        out.start("flannel", async move {
            let up = blocking.run(move || {
                let mut up = flannel::bring_up(&wanted)?;
                if forwards {
                    up.forward_refused = iptables::ensure_forward(used_networks(&up)).err();
                }
                // Once pods can be reached.
                write_files(&up, &conf_dir, &bin_dirs, &subnet_file)?;
                Ok(up)
            });
            ClusterEventKind::FlannelUp(up.await).event()
        });
    }

    /// It was brought up, or not.
    pub(super) fn take(&mut self, result: Result<BroughtUp, String>, of: &mut Membership, now: Mono) {
        let why = match &result {
            Ok(up) => up.refused.clone(),
            Err(why) => Some(why.clone()),
        };
        let period = if why.is_none() { FLANNEL_RULES_PERIOD } else { FLANNEL_RETRY_MAX };
        self.task.ended(why.is_none(), now, period);
        if why.is_some() {
            self.whole_at = now;
        }
        if std::mem::take(&mut self.again) {
            self.changed(now);
        }
        if let Ok(up) = result {
            self.take_forward(up.forward_refused.as_deref(), now);
            let before = self.up.as_ref();
            let is_news =
                before.is_none_or(|before| before.interface != up.interface || before.mtu != up.mtu);
            if is_news || up.changes > 0 {
                log::info!(
                    "flannel: the pods' network is up on {}: MTU {}, {} other nodes, {} changes",
                    up.interface,
                    up.mtu,
                    self.inputs.peers.len(),
                    up.changes
                );
            }
            self.up = Some(up);
            self.annotate(of);
        }
        let why = why.unwrap_or_default();
        if self.said != why {
            if why.is_empty() {
                log::info!("flannel: nothing is refused any more");
            } else {
                log::warn!("flannel: {why}; retrying");
            }
            self.said = why;
        }
    }

    /// What became of the rules of iptables.
    fn take_forward(&mut self, refused: Option<&str>, now: Mono) {
        let Some(why) = refused else {
            self.forward_said.clear();
            return;
        };
        // With the next look.
        (self.whole_at, self.forwarded) = (now, None);
        if self.forward_said != why {
            log::warn!("flannel: {why}; retrying");
            why.clone_into(&mut self.forward_said);
        }
    }

    /// The Node's annotations are those of the network as it is.
    fn annotate(&self, of: &mut Membership) {
        let (Some(up), Some(conf)) = (&self.up, &self.conf) else { return };
        let (Ok(Some(backend)), Some(k3s)) = (conf.backend(), &of.machine.k3s) else { return };
        let external = if conf.by_external_address {
            by_family(k3s.external_addresses.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()), |ip| {
                flannel::family(*ip)
            })
        } else {
            [None; 2]
        };
        let wanted = flannel::annotations(backend, up.hosts, up.data, external, &self.there);
        if k3s.flannel != wanted {
            of.change_machine(|machine| {
                if let Some(k3s) = &mut machine.k3s {
                    k3s.flannel = wanted;
                }
            });
        }
    }
}

/// The cluster's networks that are used.
fn used_networks(up: &BroughtUp) -> impl Iterator<Item = Network> {
    up.rules.iter().flatten().map(|spec| spec.network)
}

/// The network whose rules of iptables are looked at, of both families in turn: a look is a run of iptables.
fn in_turn(networks: &[Network], look: usize) -> Option<Network> {
    networks.get(look.checked_rem(networks.len())?).copied()
}

/// The first of each family.
fn by_family<T>(all: impl Iterator<Item = T>, family: impl Fn(&T) -> usize) -> [Option<T>; 2] {
    let mut found = [None, None];
    for one in all {
        let of = family(&one);
        found[of].get_or_insert(one);
    }
    found
}

/// Writes the files for plugins unless they are so. Blocks.
fn write_files(
    up: &BroughtUp,
    conf_dir: &Path,
    bin_dirs: &[PathBuf],
    subnet_file: &Path,
) -> Result<(), String> {
    let specs = || up.rules.iter().flatten();
    let networks: Vec<Network> = specs().map(|spec: &RuleSpec| spec.network).collect();
    let own: Vec<Network> = specs().map(|spec| spec.own).collect();
    let text = flannel::subnet_env(&networks, &own, up.mtu);
    let written = write_subnet(subnet_file, &text);
    written.map_err(|error| format!("{}: {error}", subnet_file.display()))?;
    let has_bandwidth = bin_dirs.iter().any(|dir| dir.join(BANDWIDTH).exists());
    let text = flannel::conflist(&networks, &own, up.mtu, has_bandwidth);
    let placed = place(conf_dir, CONFLIST, &text);
    placed.map_err(|error| format!("CNI configuration in {}: {error}", conf_dir.display()))
}

fn write_subnet(path: &Path, text: &str) -> io::Result<()> {
    if read(path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    replace_unsynced(path, &path.with_extension("new"), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_iptables_is_one_family() {
        let [v4, v6] = ["10.42.0.0/16", "fd00:42::/56"].map(|text| Network::parse(text).unwrap());
        for (networks, looks) in [
            (&[][..], [None, None, None]),
            (&[v4], [Some(v4), Some(v4), Some(v4)]),
            (&[v4, v6], [Some(v6), Some(v4), Some(v6)]),
        ] {
            assert_eq!([1, 2, 3].map(|look| in_turn(networks, look)), looks);
        }
    }
}
