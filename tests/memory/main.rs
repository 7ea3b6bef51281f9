//! What memory is taken, counted by an allocator that counts each thread's, or measured of a process that does nothing else.

#![allow(missing_docs, unreachable_pub)]

mod allocations;
#[path = "../common/mod.rs"]
mod common;
mod grpc_memory;
mod hostile_manifests;
#[allow(dead_code, reason = "only a part of it is needed here")]
#[path = "../common/peer.rs"]
mod peer;
mod plan_space;
mod pod_memory;
