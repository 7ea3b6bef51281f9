//! The pods that have state on this node, for the API source: running pods come first, and a terminated pod without state on this
//! node is not kept.

use std::cell::RefCell;
use std::rc::Rc;

use smol::channel::{Receiver, Sender};

use crate::model::PodUid;
use crate::model::SortedSet;

/// The UIDs of pods with a record or with sandboxes or containers in the runtime. The loop sets them; the source only reads.
#[derive(Clone)]
pub struct LocalPods {
    /// As many as a relist and the records hold.
    uids: Rc<RefCell<SortedSet<PodUid>>>,
    /// Bounded by one: the first relist has completed.
    looked: Sender<()>,
}

impl LocalPods {
    /// An empty set; the receiver is notified of the first relist. The server's pods cannot be judged before.
    pub fn new() -> (Self, Receiver<()>) {
        let (looked, first_look) = smol::channel::bounded(1);
        (Self { uids: Rc::default(), looked }, first_look)
    }

    /// Replaces the set.
    pub fn are(&self, uids: SortedSet<PodUid>) {
        self.uids.replace(uids);
        // Full, or the receiver is dropped: the first relist is known already.
        let _ = self.looked.try_send(());
    }

    /// Whether the pod has state on this node.
    pub fn has(&self, uid: &PodUid) -> bool {
        self.uids.borrow().contains(uid)
    }
}
