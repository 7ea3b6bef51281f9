//! `smolet events [POD]`: decisions and errors of the agent, counted; with `-w` new ones as they occur.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use super::{SocketArg, checked_name, client, fact, fail, pod_arg, say, table_query};
use crate::limits::EVENTS_PAUSE;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only of this pod: NAME, NAMESPACE/NAME or pod/NAME, with or without the node's name behind it
    pod: Option<String>,
    /// Only of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Go on with what happens from now on
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let shown =
        filter(args).and_then(|filter| if args.watch { watch(args, &filter) } else { list(args, &filter) });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

/// The query `pod=NAME&namespace=NAMESPACE&color=1`, or a part of it.
fn filter(args: &Args) -> Result<String, String> {
    let namespace = args.namespace.as_deref();
    let of_pod = match &args.pod {
        Some(pod) => pod_arg::query(pod, namespace)?,
        None => match namespace {
            Some(namespace) => format!("namespace={}", checked_name(namespace)?),
            None => String::new(),
        },
    };
    Ok(format!("{of_pod}{}", table_query()))
}

fn list(args: &Args, filter: &str) -> Result<(), String> {
    let table = client::get(&args.socket.socket, &format!("/events?{filter}"))?;
    if table.is_empty() {
        say("No events found.");
    }
    show(&table).map(drop)
}

/// Requests new events, prints them, and waits for more; until the agent or the reader ends.
fn watch(args: &Args, filter: &str) -> Result<(), String> {
    let ask = |path: String| client::get(&args.socket.socket, &path);
    let (mut since, mut heading) = (0, "");
    loop {
        let response = ask(format!("/events?since={since}{heading}&{filter}"))?;
        let (head, table) = response.split_once('\n').unwrap_or((&response, ""));
        let revision = fact(head, "revision").and_then(|number| number.parse().ok());
        since = revision.ok_or("the agent gives no revision of its events; is it as new as this command?")?;
        if !table.is_empty() {
            heading = "&heading=0";
        }
        if !show(table)? {
            return Ok(());
        }
        ask(format!("/events/next?after={since}"))?;
        // Events in quick succession are printed together.
        std::thread::sleep(EVENTS_PAUSE);
    }
}

/// Prints the text. False when the reader has closed the pipe (`smolet events -w | head -1`).
fn show(text: &str) -> Result<bool, String> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("events: {error}")),
    }
}
