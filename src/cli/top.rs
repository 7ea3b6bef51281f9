//! `smolet top [POD...]`: CPU and memory usage of pods; with `--self` every bounded structure of the agent with its use and its
//! limit, and the process' memory.

use std::process::ExitCode;

use super::{SocketArg, checked_name, client, fail, pod_arg, print, table_query};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these pods: NAME, NAMESPACE/NAME or pod/NAME, with or without the node's name behind it
    #[arg(value_name = "POD")]
    pods: Vec<String>,
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Instead: what the agent itself holds, and how much of each it may
    #[arg(long = "self", conflicts_with_all = ["pods", "namespace"])]
    itself: bool,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let path = if args.itself { Ok("/top".to_owned()) } else { query(args) };
    match path {
        Err(why) => fail(&why),
        Ok(path) => print(client::get(&args.socket.socket, &path)),
    }
}

/// `/top/pods?pods=NAMESPACE/NAME,NAME&namespace=NAMESPACE&color=1`, or a part of it.
fn query(args: &Args) -> Result<String, String> {
    let mut query = "/top/pods?pods=".to_owned();
    for pod in &args.pods {
        let (namespace, name) = pod_arg::parse(pod, args.namespace.as_deref())?;
        if let Some(namespace) = namespace {
            query.push_str(namespace);
            query.push('/');
        }
        query.push_str(name);
        query.push(',');
    }
    if let Some(namespace) = &args.namespace {
        query.push_str("&namespace=");
        query.push_str(checked_name(namespace)?);
    }
    query.push_str(table_query());
    Ok(query)
}
