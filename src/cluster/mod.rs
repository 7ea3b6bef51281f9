//! Objects that a node writes to its API server: its Node, its lease, its pods' statuses, events, mirror pods. PURE.
//!
//! The objects are built as JSON values: typed, each kind would add its serialization code to the binary.

pub mod bridge;
pub(crate) mod csr;
pub mod event;
pub mod k3s_node;
pub mod lease;
pub mod mirror;
pub mod node_images;
pub mod node_object;
pub mod node_reconcile;
pub mod node_status;
pub mod pod_status;
pub mod runtime_state;
pub mod status_manager;
pub mod system_oom;
pub mod task;
