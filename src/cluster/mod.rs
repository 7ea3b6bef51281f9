//! What a node tells its API server: its Node object, its lease, its pods' statuses, what happens. PURE.
//!
//! The objects are made as JSON values: typed, each kind would cost its code in the binary once more.

pub mod bridge;
pub(crate) mod csr;
pub mod event;
pub mod lease;
pub mod mirror;
pub mod node_images;
pub mod node_object;
pub mod node_reconcile;
pub mod pod_status;
pub mod runtime_state;
pub mod system_oom;
