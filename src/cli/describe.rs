//! `smolet describe POD`: spec, status, and the last decisions and errors, which explain why a pod is not running.

use std::process::ExitCode;

use super::pod_arg::PodArg;
use super::{SocketArg, client, color_query, fail, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pod: PodArg,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match args.pod.query() {
        Err(why) => fail(&why),
        Ok(pod) => print(client::get(&args.socket.socket, &format!("/describe?{pod}{}", color_query()))),
    }
}
