//! `smolet describe POD`: spec, status, and the last decisions and errors: why it is not running.

use std::process::ExitCode;

use super::text::harmless;
use super::{SocketArg, checked_name, client, color_query, fail, print};

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
    let pod = args.pod.strip_prefix("pod/").unwrap_or(&args.pod);
    let (namespace, name) = match pod.split_once('/') {
        Some((namespace, _)) if args.namespace.as_deref().is_some_and(|given| given != namespace) => {
            return fail(&format!("{} and -n name two namespaces; give one", harmless(pod)));
        }
        Some((namespace, name)) => (Some(namespace), name),
        None => (args.namespace.as_deref(), pod),
    };
    let namespace = namespace.map(checked_name).transpose();
    match (checked_name(name), namespace) {
        (Err(why), _) | (_, Err(why)) => fail(&why),
        (Ok(name), Ok(namespace)) => {
            let namespace = namespace.map(|n| format!("&namespace={n}")).unwrap_or_default();
            let query = format!("/describe?pod={name}{namespace}{}", color_query());
            print(client::get(&args.socket.socket, &query))
        }
    }
}
