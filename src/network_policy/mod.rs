//! Network policies (`networking.k8s.io/v1` `NetworkPolicy`) of this node's pods, in nftables: what kube-router is in `k3s agent`.
//!
//! ```text
//!     NetworkPolicies ─┐
//!     Namespaces ──────┼─► Controller (records, what is applied) ─► Op, Op, … ─► encode ─► one transaction
//!     Pods ────────────┘
//! ```
//!
//! The table `inet smolet-policy`:
//!
//! ```text
//!     forward ─► egress ─► map of this node's isolated pods by source address ────────┐
//!     input ───► input ──► the same: a pod's connections to the node itself           ├─► pods-N ─► policy-N ─► accept
//!     forward ─► ingress ► map of this node's isolated pods by destination address ───┘      └─► reject
//! ```
//!
//! A pod that no policy selects is in no map, and costs two look-ups. Pods that the same policies select share the chain `pods-N`,
//! which tries one policy after the other and rejects what none allows. Chains are never edited: a changed policy gets new ones, and
//! the pods' entries lead there from the same transaction on. A change of a pod is a change of set elements.
//!
//! The node's own connections to its pods (probes) pass the hook `output`, which has no chain here.
//!
//! `words`, `selector`, `policy`, `records`, `rules`, `sets`, `draft`, `controller` and `encode` are PURE; `node::network_policy` watches and applies.

mod controller;
mod draft;
mod encode;
mod new_pods;
mod policy;
mod records;
mod rules;
mod selector;
mod sets;
#[cfg(test)]
mod tests;
mod words;

pub use controller::{Controller, Resource};
pub use encode::TABLE;
pub use new_pods::NewPods;
pub use records::NewPod;

use crate::nftables::Batch;
use rules::Op;

/// Changes of the table that belong together.
#[derive(Debug)]
pub struct Transaction(Vec<Op>);

impl Transaction {
    /// The end of the table.
    pub fn end() -> Self {
        Self(vec![Op::DeleteTable])
    }

    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of changes, elements of one set together as one.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The messages.
    pub fn batch(&self) -> Batch {
        encode::batch(&self.0)
    }
}
