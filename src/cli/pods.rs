//! `smolet pods`: the pods of this node.

use std::process::ExitCode;

use super::{SocketArg, checked_name, client, fail, print, table_query};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_parser = ["wide", "json", "yaml", "name"])]
    output: Option<String>,
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let namespace = match args.namespace.as_deref().map(checked_name) {
        None => String::new(),
        Some(Ok(name)) => format!("&namespace={name}"),
        Some(Err(why)) => return fail(&why),
    };
    let output = args.output.as_deref().unwrap_or("table");
    let query = format!("/pods?output={output}{namespace}{}", table_query());
    print(client::get(&args.socket.socket, &query))
}
