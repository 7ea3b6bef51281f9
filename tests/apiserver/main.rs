//! The API server of the tests, tested by itself: with a client that knows HTTP/2, TLS and nothing else.

#![cfg(all(feature = "tls", target_arch = "x86_64"))]
#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used, clippy::pedantic)]

mod access;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod link;
mod objects;
mod patch;
mod pods;
mod watch;

use std::time::Duration;

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
/// So long nothing has to come for a test to believe that nothing does.
const QUIET: Duration = Duration::from_millis(150);
