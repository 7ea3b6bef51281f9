//! `smolet port-forward POD [LOCAL:]REMOTE...`: forwards local ports to a pod, as `kubectl port-forward`.
//!
//! Differs from kubectl, which has one connection to the runtime for all, and exits when that is lost or one of the forwarded
//! connections fails: here each has its own, so that none blocks another, and a restarted pod is reached again.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_io::{Async, Timer};
use async_signal::{Signal, Signals};
use smol::lock::Semaphore;
use smol::stream::StreamExt as _;

use super::pod_arg::PodArg;
use super::{SocketArg, checked_name, client, fact, facts, fail, say};
use crate::executor::Executor;
use crate::limits::{FORWARDED_CONNECTIONS_MAX, FORWARDED_PORTS_MAX};
use crate::streaming::forward;
use crate::streaming::upgrade::{self, FORWARD_PROTOCOL, Target};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pod: PodArg,
    /// [LOCAL:]REMOTE: a port here and one of the pod, by number or name; without LOCAL the same, with ":REMOTE" any
    #[arg(required = true, value_name = "PORT")]
    ports: Vec<String>,
    /// Addresses to listen on: IP addresses, or localhost for those of this machine alone
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    address: Vec<String>,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match forward(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

/// A local and a remote port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    /// 0: any free port.
    local: u16,
    remote: u16,
}

fn forward(args: &Args) -> Result<(), String> {
    if args.ports.len() > FORWARDED_PORTS_MAX {
        return Err(format!("{} ports; at most {FORWARDED_PORTS_MAX}", args.ports.len()));
    }
    let addresses = addresses(&args.address)?;
    let wanted = args.ports.iter().map(|port| split(port)).collect::<Result<Vec<_>, _>>()?;
    let question = format!("/portforward?{}", args.pod.query()?);
    let mut with_ports = question.clone();
    for (_, remote) in &wanted {
        let _ = write!(with_ports, "&port={remote}");
    }
    let socket: Rc<Path> = Rc::from(args.socket.socket.as_path());
    let answer = async_io::block_on(client::post(&socket, &with_ports, Vec::new()))?;
    // An unusable URL is better reported now than with the first connection.
    Target::parse(fact(&answer, "url").unwrap_or_default())?;
    let remotes = facts(&answer, "port").filter_map(|port| port.parse().ok());
    let pairs = wanted.iter().zip(remotes);
    let pairs = pairs.map(|((local, _), remote)| Pair { local: local.unwrap_or(remote), remote });

    let mut listeners = Vec::new();
    for pair in pairs {
        if let Err(why) = listen(pair, &addresses, &mut listeners) {
            say(&format!("Unable to listen on port {}: {why}", pair.local));
        }
    }
    if listeners.is_empty() {
        return Err("unable to listen on any of the requested ports".to_owned());
    }
    let signals = Signals::new([Signal::Int, Signal::Term, Signal::Hup]);
    let mut signals = signals.map_err(|error| format!("signals: {error}"))?;
    let executor = Rc::new(Executor::new());
    let slots = Arc::new(Semaphore::new(FORWARDED_CONNECTIONS_MAX));
    for (listener, pair) in listeners {
        let accepting =
            accept(listener, pair, socket.clone(), question.clone(), slots.clone(), executor.clone());
        executor.spawn("port-forward", accepting).detach();
    }
    async_io::block_on(executor.run(async {
        signals.next().await;
    }));
    Ok(())
}

/// Splits `[LOCAL:]REMOTE`: 0 for any free local port, `None` for the same one. PURE.
fn split(port: &str) -> Result<(Option<u16>, &str), String> {
    let (local, remote) = match port.split_once(':') {
        None => (None, port),
        Some(("", remote)) => (Some(0), remote),
        Some((local, remote)) => {
            let number =
                local.parse().map_err(|_| format!("error parsing local port {local:?}: 0 to 65535"))?;
            (Some(number), remote)
        }
    };
    Ok((local, checked_name(remote).map_err(|_| format!("invalid port format {port:?}: [LOCAL:]REMOTE"))?))
}

/// Addresses to listen on, in groups of which at least one has to work. PURE.
fn addresses(wanted: &[String]) -> Result<Vec<Vec<IpAddr>>, String> {
    let of = |address: &String| match (address.as_str(), address.parse()) {
        ("localhost", _) => Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
        (_, Ok(address)) => Ok(vec![address]),
        (_, Err(_)) => Err(format!("{address} is not a valid IP")),
    };
    wanted.iter().map(of).collect()
}

type Listener = (Async<TcpListener>, Pair);

fn listen(pair: Pair, groups: &[Vec<IpAddr>], listeners: &mut Vec<Listener>) -> Result<(), String> {
    let mut local = pair.local;
    for group in groups {
        let (mut failed, before) = (String::new(), listeners.len());
        for address in group {
            match TcpListener::bind((*address, local)).and_then(Async::new) {
                Ok(listener) => {
                    let at = listener.get_ref().local_addr().map_err(|error| error.to_string())?;
                    // The same free port on all addresses.
                    local = at.port();
                    print(&format!("Forwarding from {at} -> {}", pair.remote));
                    listeners.push((listener, Pair { local, ..pair }));
                }
                Err(error) => failed = format!("{address}: {error}"),
            }
        }
        if listeners.len() == before {
            return Err(failed);
        }
    }
    Ok(())
}

async fn accept(
    listener: Async<TcpListener>,
    pair: Pair,
    socket: Rc<Path>,
    question: String,
    slots: Arc<Semaphore>,
    executor: Rc<Executor>,
) {
    let question: Rc<str> = question.into();
    let mut logged = None;
    loop {
        let slot = slots.acquire_arc().await;
        let local = match listener.accept().await {
            Ok((local, _)) => local,
            Err(error) => {
                // Usually out of descriptors: the command can only wait, and reports it once.
                if logged.replace(error.kind()) != Some(error.kind()) {
                    say(&format!("port {}: {error}; trying again every second", pair.local));
                }
                Timer::after(Duration::from_secs(1)).await;
                continue;
            }
        };
        print(&format!("Handling connection for {}", pair.local));
        let (socket, question) = (socket.clone(), question.clone());
        let handling = async move {
            if let Err(why) = handle(&local, pair.remote, &socket, &question).await {
                say(&format!("an error occurred forwarding {} -> {}: {why}", pair.local, pair.remote));
            }
            drop(slot);
        };
        executor.spawn("port-forward connection", handling).detach();
    }
}

async fn handle(local: &Async<TcpStream>, remote: u16, socket: &Path, question: &str) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    local.get_ref().set_nodelay(true).map_err(text)?;
    let answer = client::post(socket, question, Vec::new()).await?;
    let connection = upgrade::connect(fact(&answer, "url").unwrap_or_default(), FORWARD_PROTOCOL).await?;
    forward::run(connection, local, remote).await
}

/// Prints a line on standard output, which a script may wait for.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_addresses_are_read_as_kubectl_reads_them() {
        for (port, expected) in [
            ("80", Some((None, "80"))),
            ("8080:80", Some((Some(8080), "80"))),
            (":80", Some((Some(0), "80"))),
            ("0:http", Some((Some(0), "http"))),
            ("http", Some((None, "http"))),
            ("http:80", None),
            ("65536:80", None),
            ("80:", None),
            (":", None),
            ("", None),
            ("1:2:3", None),
            ("80&pod=x", None),
        ] {
            assert_eq!(split(port).ok(), expected, "{port}");
        }
        let read = |words: &[&str]| addresses(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        let (four, six) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST));
        assert_eq!(read(&["localhost"]), Ok(vec![vec![four, six]]));
        let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        assert_eq!(read(&["0.0.0.0", "::1"]), Ok(vec![vec![any], vec![six]]));
        assert_eq!(read(&["gateway"]), Err("gateway is not a valid IP".to_owned()));
    }
}
