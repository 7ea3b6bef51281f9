//! `smolet check FILE|DIR...`: manifests read and validated as the agent would, without an agent.

use std::path::PathBuf;
use std::process::ExitCode;

use super::print;
use crate::clock::{Clock as _, SystemClock};
use crate::source::{NodeName, check};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, directories, or - for standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// The node's name, as the agent has it [default: this host's name]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    node_name: Option<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let node = args.node_name.clone().unwrap_or_else(|| crate::facts::hostname().to_ascii_lowercase());
    let report = check(&args.paths, &NodeName::new(&node), SystemClock.now().wall);
    let printed = print(Ok(report.to_string()));
    if report.is_good() { printed } else { ExitCode::FAILURE }
}
