//! `smolet attach POD`: attaches to a container's main process, as `kubectl attach`.

use std::process::ExitCode;

use super::exec::TargetArgs;
use super::session::{self, Session};
use super::{fact, fail, say};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) fn run(args: &Args) -> ExitCode {
    attach(&args.target, resumed).unwrap_or_else(|why| fail(&why))
}

fn resumed(again: &str) -> String {
    format!("Session ended, resume using '{again}' command")
}

/// Attaches to the container. `ended` formats the message at the end of a session on a terminal from the command that attaches
/// again.
///
/// # Errors
/// Why it could not be attached to, or the connection was lost.
pub(super) fn attach(target: &TargetArgs, ended: fn(&str) -> String) -> Result<ExitCode, String> {
    let answer = target.ask("/attach", false, Vec::new())?;
    let of = |name| fact(&answer, name).unwrap_or_default();
    let (url, container) = (of("url"), of("container"));
    // Whether a container has a terminal is fixed at its start.
    let tty = of("tty") == "1";
    if target.tty && !tty && !target.quiet {
        say(&format!("error: Unable to use a TTY - container {container} did not allocate one"));
    }
    // As kubectl, which uses a terminal if there is one, even if it was not requested.
    let raw = tty && target.stdin && super::terminal::is_usable(target.quiet);
    if !target.quiet {
        say(
            "All commands and output from this session will be recorded in container logs, including credentials and \
            sensitive information passed through the command prompt.",
        );
        say("If you don't see a command prompt, try pressing enter.");
    }
    let code = session::run(Session { url, stdin: target.stdin, tty, raw, attached: true })?;
    if raw && !target.quiet {
        let (namespace, pod) = of("pod").split_once(' ').unwrap_or_default();
        say(&ended(&format!("smolet attach {pod} -c {container} -n {namespace} -i -t")));
    }
    Ok(code)
}
