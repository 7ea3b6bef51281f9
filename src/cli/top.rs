//! `smolet top --self`: every bounded structure of the agent with its use and its limit, and the process' memory.

use std::process::ExitCode;

use super::{SocketArg, client, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The agent itself; what its pods use is not measured
    #[arg(long = "self", required = true)]
    _itself: bool,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    print(client::get(&args.socket.socket, "/top"))
}
