//! The API server's pods in the offline copy: handed over for writing, and read again when the server is unreachable at the
//! start.

use std::cell::RefCell;
use std::rc::Rc;

use smol::channel::Sender;

use super::api::{ApiPods, Shared};
use super::api_local_pods::LocalPods;
use super::api_status_versions::ApiStatusVersions;
use super::identity::NodeName;
use super::{API, SourceUpdate};
use crate::clock::SharedClock;
use crate::decode::Node;
use crate::kube::Follower as _;
use crate::limits::OFFLINE_TREES_BYTES_MAX;
use crate::model::PodUid;
use crate::model::SortedMap;
use crate::store::offline::tree;

/// Objects of new or changed pods, as they are written. They are held until the loop has processed the update with their pods.
#[derive(Clone)]
pub struct Trees {
    trees: Rc<RefCell<SortedMap<PodUid, Vec<u8>>>>,
    /// Bounded by one: the server was not reached.
    failed: Sender<()>,
}

impl Trees {
    /// `failed`, which holds one message, is notified when the server cannot be followed.
    pub fn new(failed: Sender<()>) -> Self {
        Self { trees: Rc::default(), failed }
    }

    pub(super) fn put(&self, uid: &PodUid, object: &Node) {
        let bytes = tree::encode(object);
        let mut trees = self.trees.borrow_mut();
        trees.remove(uid);
        let waiting: usize = trees.values().map(Vec::len).sum();
        if waiting + bytes.len() <= OFFLINE_TREES_BYTES_MAX {
            trees.insert(uid.clone(), bytes);
        } else {
            log::warn!(
                "pod {uid}: no room for it in the offline copy; after a restart it waits for the API server"
            );
        }
    }

    pub(super) fn remove(&self, uid: &PodUid) {
        self.trees.borrow_mut().remove(uid);
    }

    /// Number of held objects, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let trees = self.trees.borrow();
        (trees.len(), trees.values().map(Vec::len).sum())
    }

    /// The pod's object, if it is new.
    pub fn take(&self, uid: &PodUid) -> Option<Vec<u8>> {
        self.trees.borrow_mut().remove(uid)
    }

    pub(super) fn failed(&self) {
        // Full: a notification is pending already.
        let _ = self.failed.try_send(());
    }
}

/// The pods of the offline copy, as an incomplete update: no pod is terminated because it is missing from it.
pub fn update(
    node: &NodeName,
    clock: SharedClock,
    local_pods: LocalPods,
    pods: Vec<Vec<u8>>,
) -> SourceUpdate {
    let (updates, receiver) = smol::channel::bounded(1);
    let (failed, _) = smol::channel::bounded(1);
    let shared = Shared { local_pods, statuses: ApiStatusVersions::default() };
    let mut source = ApiPods::new(node.clone(), clock, updates, Trees::new(failed), shared);
    // One at a time: a parsed object takes ten times its bytes.
    for bytes in pods {
        if let Ok(object) = tree::decode(&bytes) {
            source.apply(object);
        }
    }
    source.settled();
    let update = receiver.try_recv().unwrap_or_else(|_| SourceUpdate {
        source: API,
        pods: Vec::new(),
        objects: Vec::new(),
        problems: Vec::new(),
        complete: false,
        held: super::SourceUsage::default(),
        server: super::ServerPods::default(),
    });
    SourceUpdate { complete: false, ..update }
}
