//! The command line: one file per subcommand, and what they print.
//!
//! `table`, `describe_text`, `yaml`, `style` and `text` are PURE: values and a time in, text out.

mod check;
mod client;
mod describe;
pub mod describe_text;
mod logger;
mod logs;
mod pods;
mod run;
mod top;
mod version;

pub mod style;
pub mod table;
pub mod text;
pub mod yaml;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Check manifests without an agent
    Check(check::Args),
    /// List the pods of this node
    Pods(pods::Args),
    /// Show all that is known of a pod, and why it is not running
    Describe(describe::Args),
    /// Print what a pod's containers wrote
    Logs(logs::Args),
    /// Show what the agent itself holds, and how much of each it may
    Top(top::Args),
    /// Show the version
    Version(version::Args),
}

/// Where the agent listens.
#[derive(Clone, Debug, clap::Args)]
struct SocketArg {
    /// The agent's local socket
    #[arg(long, value_name = "PATH", default_value = crate::config::paths::SOCKET)]
    socket: PathBuf,
}

/// Runs the command the arguments name.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Pods(args) => pods::run(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Version(args) => version::run(&args),
    }
}

/// `&color=1` when standard output is a terminal and `NO_COLOR` is unset.
fn color_query() -> &'static str {
    let no_color = std::env::var("NO_COLOR").ok();
    let style = style::Style::for_output(std::io::stdout().is_terminal(), no_color.as_deref());
    if style == style::Style::PLAIN { "" } else { "&color=1" }
}

/// Prints an answer, or says why there is none.
fn print(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) => {
            // A closed pipe (`smolet pods | head -1`) is the reader's choice.
            let _ = std::io::stdout().lock().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => fail(&why),
    }
}

/// One sentence on standard error, exit code 1.
fn fail(why: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "smolet: {why}");
    ExitCode::FAILURE
}

/// A pod as commands take it (NAME, NAMESPACE/NAME, pod/NAME), as a query: `pod=NAME&namespace=NAMESPACE`.
fn pod_query(pod: &str, namespace: Option<&str>) -> Result<String, String> {
    let pod = pod.strip_prefix("pod/").unwrap_or(pod);
    let (namespace, name) = match pod.split_once('/') {
        Some((other, _)) if namespace.is_some_and(|given| given != other) => {
            return Err(format!("{} and -n name two namespaces; give one", text::harmless(pod)));
        }
        Some((namespace, name)) => (Some(namespace), name),
        None => (namespace, pod),
    };
    let name = checked_name(name)?;
    let namespace = namespace.map(checked_name).transpose()?;
    let namespace = namespace.map(|namespace| format!("&namespace={namespace}")).unwrap_or_default();
    Ok(format!("pod={name}{namespace}"))
}

/// A name as it may stand in a query: Kubernetes names need no escaping, whatever else is none.
fn checked_name(name: &str) -> Result<&str, String> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'.';
    if !name.is_empty() && name.len() <= 253 && name.bytes().all(fits) {
        return Ok(name);
    }
    Err(format!("{:?} is no name: letters, digits, - and ., at most 253", text::harmless(name)))
}
