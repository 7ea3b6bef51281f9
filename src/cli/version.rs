//! `smolet version`.

use std::process::ExitCode;

use super::print;

#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> ExitCode {
    print(Ok(format!("smolet {}\n", env!("CARGO_PKG_VERSION"))))
}
