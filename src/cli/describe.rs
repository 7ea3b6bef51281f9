//! `smolet describe POD`: spec, status, and the last decisions and errors: why it is not running.

use std::process::ExitCode;

use super::{SocketArg, client, color_query, fail, pod_query, print};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The pod: NAME, NAMESPACE/NAME or pod/NAME, with or without the node's name behind it
    pod: String,
    /// Its namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match pod_query(&args.pod, args.namespace.as_deref()) {
        Ok(query) => print(client::get(&args.socket.socket, &format!("/describe?{query}{}", color_query()))),
        Err(why) => fail(&why),
    }
}
