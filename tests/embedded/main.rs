//! The embedded runtime on a real OCI runtime and real CNI plugins. Root only; `make embedded` runs it.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]

mod archives;
mod checkpoint;
mod cni;
#[path = "../common/mod.rs"]
mod common;
mod container;
mod crash;
mod doctor;
mod faults;
mod image_faults;
mod images;
mod keeper;
mod machine;
mod monitor;
mod network_policy;
mod recovery;
mod registry;
mod sandbox;
mod shared_layers;
mod shown;
mod spec;
mod spec_containerd;
mod streams;
mod users;
