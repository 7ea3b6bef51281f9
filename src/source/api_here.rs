//! Which pods have something on this node, for the source to know: what runs here comes first, and of a pod that is over and
//! has nothing here nothing is kept.

use std::cell::RefCell;
use std::rc::Rc;

use smol::channel::{Receiver, Sender};

use crate::model::PodUid;
use crate::model::SortedSet;

/// The pods with a record or something in the runtime. The loop tells them; the source only asks.
#[derive(Clone)]
pub struct PodsHere {
    /// As many as a relist and the records hold.
    uids: Rc<RefCell<SortedSet<PodUid>>>,
    /// Bounded by one: the runtime was looked at.
    looked: Sender<()>,
}

impl PodsHere {
    /// None are known; the receiver gets a word when the runtime was looked at for the first time. Nothing the server says
    /// can be judged before.
    pub fn new() -> (Self, Receiver<()>) {
        let (looked, told) = smol::channel::bounded(1);
        (Self { uids: Rc::default(), looked }, told)
    }

    /// These are all.
    pub fn are(&self, uids: SortedSet<PodUid>) {
        self.uids.replace(uids);
        // Full, or nobody waits any more: it is known.
        let _ = self.looked.try_send(());
    }

    /// Something of the pod is here.
    pub fn has(&self, uid: &PodUid) -> bool {
        self.uids.borrow().contains(uid)
    }
}
