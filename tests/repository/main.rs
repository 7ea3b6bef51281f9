//! What stands in the repository agrees with itself: dependencies, generated files, tables and rules of the source.

#![allow(missing_docs)]

mod dependencies;
mod docs;
mod files;
mod pages;
mod proto_table;
mod tidy;
