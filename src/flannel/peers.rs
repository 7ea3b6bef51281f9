//! The other nodes, from a watch of all Nodes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smol::channel::Sender;

use super::{Backend, Peer, Way};
use crate::decode::Node;
use crate::kube::{Collection, Follower, KubeError, Resource, seed};
use crate::limits::{FLANNEL_PEER_BYTES, FLANNEL_PEER_SPEC_BYTES, FLANNEL_PEER_WAY_BYTES, FLANNEL_PEERS_MAX};
use crate::model::SortedMap;

/// The nodes with flannel, by a hash of their names: a name may have 253 bytes.
type Known = SortedMap<u64, Peer>;

const _: () = assert!(
    size_of::<(u64, Peer)>() + 2 * (FLANNEL_PEER_WAY_BYTES + FLANNEL_PEER_SPEC_BYTES) <= FLANNEL_PEER_BYTES
);

/// The other nodes, shared by the watch and the loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    known: RefCell<Known>,
    is_listed: Cell<bool>,
}

impl Peers {
    /// Their ways with that backend; `None`: they were not listed since the agent started. Nodes with another backend are not reached,
    /// as with flannel.
    pub(crate) fn ways(&self, backend: Backend) -> Option<Vec<Way>> {
        let known = self.0.known.borrow();
        let all = known.values().filter(|peer| peer.backend == backend);
        self.0.is_listed.get().then(|| all.flat_map(|peer| peer.ways.iter().copied()).collect())
    }

    /// Number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.0.known.borrow().len()
    }
}

/// Follows the Nodes.
pub(crate) struct PeerFollower {
    /// This node's name.
    own: Box<str>,
    peers: Peers,
    /// While they are listed: those that the list has named so far.
    listed: Option<Known>,
    is_changed: bool,
    is_full: bool,
    /// What was logged last; empty: nothing.
    said: String,
    /// Bounded by one.
    changed: Sender<()>,
}

impl PeerFollower {
    /// Sends to `changed`, which holds one, when others than `own` have changed.
    pub(crate) fn new(own: &str, peers: Peers, changed: Sender<()>) -> Self {
        let (listed, is_changed, is_full, said) = (None, false, false, String::new());
        Self { own: own.into(), peers, listed, is_changed, is_full, said, changed }
    }

    /// All Nodes.
    pub(crate) fn collection() -> Collection {
        Collection::all(Resource::NODES)
    }

    fn put(&mut self, node: &Node, peer: Option<Peer>) {
        let name = node.field("metadata").and_then(|metadata| metadata.field("name")).and_then(Node::text);
        let Some(name) = name.filter(|name| **name != *self.own) else { return };
        let mut now = self.peers.0.known.borrow_mut();
        let known = self.listed.as_mut().unwrap_or(&mut *now);
        let key = seed(name);
        if known.get(&key) == peer.as_ref() {
            return;
        }
        match peer {
            Some(_) if known.len() >= FLANNEL_PEERS_MAX && !known.contains_key(&key) => {
                if !std::mem::replace(&mut self.is_full, true) {
                    log::warn!(
                        "flannel: the cluster has more than {FLANNEL_PEERS_MAX} nodes; pods of node {name} and of further ones \
                         are not reached"
                    );
                }
                return;
            }
            Some(peer) => drop(known.insert(key, peer)),
            None => drop(known.remove(&key)),
        }
        self.is_changed = true;
    }
}

impl Follower for PeerFollower {
    fn list_begins(&mut self) {
        self.listed = Some(Known::new());
    }

    fn apply(&mut self, object: Node) {
        let peer = Peer::of(&object);
        self.put(&object, peer);
    }

    fn delete(&mut self, object: &Node) {
        self.put(object, None);
    }

    fn settled(&mut self) {
        if let Some(listed) = self.listed.take() {
            // The first list is news though it names nobody.
            let is_first = !self.peers.0.is_listed.replace(true);
            self.is_changed = is_first || *self.peers.0.known.borrow() != listed;
            self.peers.0.known.replace(listed);
        }
        self.said.clear();
        if std::mem::take(&mut self.is_changed) {
            // Full: the loop has not read them since the last change.
            let _ = self.changed.try_send(());
        }
    }

    fn lost(&mut self, why: &KubeError) {
        self.listed = None;
        let text = why.to_string();
        match why {
            // The node's own watches say so.
            KubeError::Unreachable(_) | KubeError::NotJoined(_) => {
                log::debug!("flannel: watch of Nodes failed: {text}");
            }
            _ if self.said == text => {}
            _ => {
                log::warn!(
                    "flannel: watch of Nodes failed: {text}; pods of new nodes are not reached; retrying"
                );
                self.said = text;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::k3s_node::FLANNEL;
    use crate::decode::json::read;

    fn node(name: &str, third: u16) -> Node {
        let annotations = json!({
            format!("{FLANNEL}backend-type"): "host-gw",
            format!("{FLANNEL}kube-subnet-manager"): "true",
            format!("{FLANNEL}public-ip"): format!("192.168.{}.{}", third / 256, third % 256),
        });
        let spec = json!({"podCIDR": format!("10.{}.{}.0/24", 42 + third / 256, third % 256)});
        let node = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        read(node.to_string().as_bytes()).unwrap()
    }

    fn follower() -> (PeerFollower, Peers, smol::channel::Receiver<()>) {
        let (changed, changes) = smol::channel::bounded(1);
        let peers = Peers::default();
        (PeerFollower::new("gw", peers.clone(), changed), peers, changes)
    }

    fn hosts(peers: &Peers) -> Vec<String> {
        let mut hosts: Vec<String> = peers
            .ways(Backend::HostGw)
            .expect("they were listed")
            .iter()
            .map(|way| way.host.to_string())
            .collect();
        hosts.sort();
        hosts
    }

    #[test]
    fn the_others_are_known_and_each_change_is_told_once() {
        let (mut follower, peers, changes) = follower();
        let is_told = || changes.try_recv().is_ok();
        follower.list_begins();
        for (name, third) in [("gw", 1), ("b", 2), ("c", 3)] {
            follower.apply(node(name, third));
        }
        assert_eq!((peers.ways(Backend::HostGw), is_told()), (None, false), "the list is not complete");
        follower.settled();
        assert_eq!(
            (hosts(&peers), is_told()),
            (vec!["192.168.0.2".to_owned(), "192.168.0.3".to_owned()], true)
        );
        assert_eq!(peers.ways(Backend::Vxlan), Some(Vec::new()), "another network's");
        // Nothing of the node's network is in it: a report of its status.
        follower.apply(node("b", 2));
        follower.apply(node("gw", 9));
        follower.settled();
        assert!(!is_told());
        follower.apply(node("b", 4));
        follower.settled();
        assert_eq!(
            (hosts(&peers), is_told()),
            (vec!["192.168.0.3".to_owned(), "192.168.0.4".to_owned()], true)
        );
        follower.delete(&node("c", 3));
        follower.settled();
        assert_eq!((hosts(&peers), is_told()), (vec!["192.168.0.4".to_owned()], true));
        // A list that breaks off changes nothing; a whole one drops who is gone.
        follower.list_begins();
        follower.lost(&KubeError::Unreachable("it broke off".to_owned()));
        assert_eq!(peers.len(), 1);
        follower.list_begins();
        follower.settled();
        assert!(peers.len() == 0 && is_told());
    }

    #[test]
    fn there_is_an_end_to_the_nodes() {
        let (mut follower, peers, _changes) = follower();
        follower.list_begins();
        for third in 0..=u16::try_from(FLANNEL_PEERS_MAX).unwrap() {
            follower.apply(node(&format!("n{third}"), third + 1));
        }
        follower.settled();
        assert_eq!(peers.len(), FLANNEL_PEERS_MAX);
        // A known one still changes.
        follower.apply(node("n0", 5000));
        follower.settled();
        assert!(hosts(&peers).contains(&"192.168.19.136".to_owned()));
    }
}
