//! Keeps the labels, annotations and the provider ID of a node of k3s in its Node, as [`crate::cluster::k3s_node`] decides: when
//! the Node, the machine's addresses, its pods' network or the server's settings change.

use hyper::Method;
use serde_json::Value;

use super::{ClusterEventKind, Membership, Task};
use crate::cluster::k3s_node::NodeMetadata;
use crate::kube::{Content, KubeError, Resource, object_path};
use crate::limits::NODE_STATUS_UPDATE_PERIOD;
use crate::model::Mono;
use crate::node::effects::Effects;

/// The Node as it was watched last, and the patch that it needs.
pub(super) struct MetadataKeeper {
    /// At most one patch is in flight, and one is sent in `NODE_STATUS_UPDATE_PERIOD`, whoever else changes the Node. What changes here
    /// is sent at once: other nodes reach this one's pods by it.
    task: Task,
    /// It changed here while a patch was in flight.
    again: bool,
    /// `None`: it is not known, or does not exist.
    there: Option<NodeMetadata>,
    patch: Option<Value>,
}

impl MetadataKeeper {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self { task: Task::new(now, seed), again: false, there: None, patch: None }
    }

    /// The Node is so; `None`: there is none.
    pub(super) fn set_there(&mut self, there: Option<&NodeMetadata>, of: &Membership) {
        // Of another cluster than k3s' nothing is kept.
        self.there = there.filter(|_| of.machine.k3s.is_some()).cloned();
        self.compare(of);
    }

    /// Compares the Node with what it should be.
    pub(super) fn compare(&mut self, of: &Membership) {
        self.patch = self.there.as_ref().and_then(|there| of.machine.k3s_patch(there));
    }

    /// What the Node should be has changed.
    pub(super) fn changed(&mut self, of: &Membership, now: Mono) {
        self.compare(of);
        if self.patch.is_none() {
            return;
        }
        match self.task.due() {
            Some(at) => self.task.at = at.min(now),
            None => self.again = true,
        }
    }

    pub(super) fn due(&self, of: &Membership) -> Option<Mono> {
        let is_wanted = self.patch.is_some() && of.registered.is_some();
        self.task.due().filter(|_| is_wanted)
    }

    pub(super) fn turn(&mut self, of: &Membership, now: Mono, out: &Effects) {
        if self.due(of).is_none_or(|at| at > now) || !self.task.begin_if_due(now) {
            return;
        }
        let Some(patch) = self.patch.take() else { return };
        let (client, path) = (of.client.clone(), object_path(Resource::NODES, "", &of.machine.name));
        out.start("node metadata", async move {
            let patched = client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await;
            ClusterEventKind::MetadataPatched(patched.map(|_| ())).event()
        });
    }

    /// A patch ended. What became of it the watch says.
    pub(super) fn take(&mut self, result: Result<(), KubeError>, of: &mut Membership, now: Mono) {
        self.task.ended(result.is_ok(), now, NODE_STATUS_UPDATE_PERIOD);
        if std::mem::take(&mut self.again) && result.is_ok() {
            self.task.at = now;
        }
        if let Err(why) = result {
            self.compare(of);
            of.log_failure("update of the Node's labels and annotations failed", &why, now);
        }
    }
}
