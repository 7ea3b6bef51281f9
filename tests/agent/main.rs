//! The whole agent with the fake runtime: manifests in a real directory, gRPC on a real socket, virtual time.
//!
//! No container ever runs twice: the fake checks this after each call, and every test fails on a violation.

#![allow(missing_docs, unreachable_pub, clippy::expect_used, clippy::unwrap_used, clippy::pedantic)]

mod adopt;
mod archives;
mod change;
mod chaos;
mod checkpoint;
mod collect;
#[path = "../common/mod.rs"]
mod common;
mod debug;
mod ended;
mod events;
mod faults;
mod garbage;
mod handover;
mod hangs;
mod hooks;
mod image_volumes;
mod images;
mod limits;
mod logs;
mod manifest_url;
mod metrics;
mod moving;
mod objects;
mod permits;
mod pressure;
mod probes;
mod restart;
mod room;
mod settings;
mod shutdown;
mod socket;
mod start;
mod streams;
mod top;
mod why;
mod world;
