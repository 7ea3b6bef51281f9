//! The whole agent as a node of a cluster: against an API server with real HTTP/2 and TLS, and a runtime that runs nothing.
//! Time is real.

#![cfg(all(feature = "tls", target_arch = "x86_64"))]
#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod admission;
mod api;
mod borders;
mod certificates;
mod claims;
mod client;
mod doors;
mod ended;
mod finished;
mod flannel;
mod gates;
mod k3s;
mod k3s_components;
mod k3s_node;
mod link;
mod mirrors;
mod network;
mod network_policy;
mod nfs;
mod node;
mod node_status;
mod objects;
mod offline;
mod pods;
mod rates;
mod resize;
mod servers;
mod services;
mod supervisor;
mod world;
