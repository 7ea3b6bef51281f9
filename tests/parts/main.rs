//! Parts of the agent, each over real sockets or real files: the runtime's client, the sources, probes, streams, and what syncs
//! a pod.

#![allow(missing_docs, unreachable_pub)]

mod act;
#[path = "../common/mod.rs"]
mod common;
mod corpus;
mod cri;
mod grpc;
#[path = "../common/peer.rs"]
mod peer;
mod probe;
mod registry;
mod source;
mod streaming;
