//! What smolet makes of the kernel's network, in network namespaces of the tests' own; two whole nodes with pods of theirs. Root only;
//! `make network` runs it.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::pedantic
)]

// Where the tests' API server is.
#[cfg(target_arch = "x86_64")]
mod cluster;
#[cfg(target_arch = "x86_64")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(target_arch = "x86_64")]
mod first_hour;
#[cfg(target_arch = "x86_64")]
mod node;
#[cfg(target_arch = "x86_64")]
mod pod;
mod services;
mod space;
#[cfg(target_arch = "x86_64")]
#[path = "../cluster/supervisor.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod supervisor;
#[cfg(target_arch = "x86_64")]
mod two_nodes;
