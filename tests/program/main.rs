//! The built program, as a process.

#![allow(missing_docs, unreachable_pub)]

mod binary;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod upgrade;
