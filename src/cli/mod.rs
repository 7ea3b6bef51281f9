//! The command line: one file per subcommand. Their output is formatted in `printers`.

#[cfg(feature = "tls")]
mod agent;
mod archives;
mod attach;
mod check;
mod client;
mod debug;
mod describe;
mod doctor;
mod events;
mod exec;
mod image;
#[cfg(feature = "tls")]
mod k3s;
#[cfg(feature = "tls")]
mod k3s_back;
#[cfg(feature = "tls")]
mod k3s_flags;
mod k3s_link;
mod kubelet_flags;
mod logger;
mod logs;
mod pod_arg;
mod pods;
mod port_forward;
mod run;
mod session;
mod stdio;
mod terminal;
mod top;
mod version;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::printers::style::Style;
use crate::printers::text::harmless;

/// A Kubernetes node agent in a few megabytes: keeps the pods of a manifest directory running.
#[derive(Debug, Parser)]
#[command(name = "smolet", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent
    Run(Box<run::Args>),
    /// Run the agent in the words of k3s agent, with its configuration files and variables
    #[cfg(feature = "tls")]
    Agent(agent::Args),
    /// Take the place of k3s agent on its board, or give it back
    #[cfg(feature = "tls")]
    K3s(k3s::Args),
    /// Check manifests without an agent
    Check(check::Args),
    /// List the pods of this node
    Pods(pods::Args),
    /// Show a pod's spec, status and events, and why it is not running
    Describe(describe::Args),
    /// List events of pods; equal ones are counted
    Events(events::Args),
    /// Print the logs of a pod's containers
    Logs(logs::Args),
    /// Run a command in a container
    Exec(exec::Args),
    /// Attach to the main process of a container
    Attach(attach::Args),
    /// Add an ephemeral container to a running pod and attach to it
    Debug(debug::Args),
    /// Forward local ports to a pod
    PortForward(port_forward::Args),
    /// List, pull, import and remove images of this node's runtime
    Image(image::Args),
    /// Check this machine, and say how to fix what keeps pods from running
    Doctor(Box<doctor::Args>),
    /// Show CPU and memory of pods, or of the agent's own structures
    Top(top::Args),
    /// Show the version
    Version(version::Args),
}

/// The socket's path.
#[derive(Clone, Debug, clap::Args)]
struct SocketArg {
    /// The agent's local socket
    #[arg(long, value_name = "PATH", default_value = crate::config::paths::SOCKET)]
    socket: PathBuf,
}

/// Runs the command of the arguments.
pub fn main() -> ExitCode {
    // Before anything else is touched: there is one for each container.
    let of_containers = || crate::monitor::main().or_else(crate::runtime::pause_main);
    if let Some(code) = of_containers().or_else(crate::runtime::user_namespace_main) {
        return code;
    }
    run_command()
}

/// Apart from [`main`]: the stack of all commands would be resident in every monitor.
#[inline(never)]
fn run_command() -> ExitCode {
    let mut words = std::env::args_os().take(2).map(|word| word.to_string_lossy().into_owned());
    let called = words.next().unwrap_or_default();
    let named = words.next();
    if let Some(why) = k3s_link::refusal(&called, named.as_deref()) {
        return fail(&why);
    }
    // `agent`, and what belongs to it.
    #[cfg(not(feature = "tls"))]
    if let Some(name @ ("agent" | "k3s")) = named.as_deref() {
        return fail(&format!("{name}: needs TLS, and this program was built without it (--features tls)"));
    }
    let (cli, kubelet) = parse_apart();
    match cli.command {
        Command::Run(mut args) => {
            args.flags.kubelet = kubelet;
            run::run(&args)
        }
        #[cfg(feature = "tls")]
        Command::Agent(args) => agent::run(&args),
        #[cfg(feature = "tls")]
        Command::K3s(args) => k3s::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Pods(args) => pods::run(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Debug(args) => debug::run(&args),
        Command::PortForward(args) => port_forward::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Doctor(mut args) => {
            args.flags.kubelet = kubelet;
            doctor::run(&mut args)
        }
        Command::Top(args) => top::run(&args),
        Command::Version(args) => version::run(&args),
    }
}

/// As [`parse`], on a thread that is gone with its stack afterwards: clap describes all flags within one function, of which 100 KiB
/// of stack would stay resident for as long as the agent runs.
fn parse_apart() -> (Cli, Vec<(String, String)>) {
    let parsed = std::thread::Builder::new().name("arguments".to_owned()).spawn(parse);
    match parsed.map(std::thread::JoinHandle::join) {
        Ok(Ok(parsed)) => parsed,
        // There is no thread to be had.
        Ok(Err(_)) | Err(_) => parse(),
    }
}

/// The command line, and the kubelet's flags of a command that has the flags of `run`.
fn parse() -> (Cli, Vec<(String, String)>) {
    let named = std::env::args_os().nth(1);
    if !named.is_some_and(|name| name == "run" || name == "doctor") {
        return (Cli::parse(), Vec::new());
    }
    let command = Cli::command();
    let run = command.find_subcommand("run");
    let is_own = |flag: &str| {
        let names = |arg: &clap::Arg| {
            arg.get_long() == Some(flag) || arg.get_all_aliases().is_some_and(|names| names.contains(&flag))
        };
        run.is_some_and(|run| run.get_arguments().any(names))
    };
    let (left, kubelet) = kubelet_flags::split(std::env::args_os(), is_own);
    (Cli::parse_from(left), kubelet)
}

/// All commands and their arguments, for man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// `&color=1` when standard output is a terminal and `NO_COLOR` is unset.
fn color_query() -> &'static str {
    let no_color = std::env::var("NO_COLOR").ok();
    let style = Style::for_output(std::io::stdout().is_terminal(), no_color.as_deref());
    if style == Style::PLAIN { "" } else { "&color=1" }
}

/// For a table: colours as in `color_query` on a terminal, one tab between fields otherwise.
fn table_query() -> &'static str {
    if std::io::stdout().is_terminal() { color_query() } else { "&columns=0" }
}

/// Prints a response, or the error.
fn print(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => {
            // A closed pipe (`smolet pods | head -1`) is not an error.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

/// Prints one message on standard error; exit code 1.
fn fail(why: &str) -> ExitCode {
    say(&format!("smolet: {why}"));
    ExitCode::FAILURE
}

/// Prints lines on standard error, with control characters of outside text escaped.
fn say(lines: &str) {
    let mut stderr = std::io::stderr().lock();
    for line in lines.lines() {
        let _ = writeln!(stderr, "{}", harmless(line));
    }
}

/// The value of that name in a response with a line for each.
fn fact<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    facts(answer, name).next()
}

/// All values of that name.
fn facts<'a>(answer: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    answer.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(' '))
}

/// A name for a query: Kubernetes names need no escaping, and others are refused.
fn checked_name(name: &str) -> Result<&str, String> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'.';
    if !name.is_empty() && name.len() <= 253 && name.bytes().all(fits) {
        return Ok(name);
    }
    Err(format!("{:?} is no name: letters, digits, - and ., at most 253", harmless(name)))
}
