//! Allocation: the CPU and memory that pods may use, and how that is changed while they run (in-place pod resize, KEP-1287;
//! `pkg/kubelet/allocation`). PURE.

pub mod pending;
