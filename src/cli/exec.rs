//! `smolet exec POD -- CMD`: runs a command in a container, as `kubectl exec`.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::pod_arg::PodArg;
use super::session::{self, Session};
use super::{SocketArg, checked_name, client, fact, facts, fail, say, terminal};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Arguments shared by `exec` and `attach`.
#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    #[command(flatten)]
    pub(super) pod: PodArg,
    /// The container; by default the pod's first one, or the one its annotation names
    #[arg(short, long, value_name = "NAME")]
    pub(super) container: Option<String>,
    /// Pass standard input to the container
    #[arg(short = 'i', long)]
    pub(super) stdin: bool,
    /// Standard input is a terminal
    #[arg(short = 't', long)]
    pub(super) tty: bool,
    /// Print nothing but what the container does
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) socket: SocketArg,
}

impl TargetArgs {
    /// The agent's response to that request; prints its note for the user.
    pub(super) fn ask(&self, path: &str, tty: bool, body: Vec<u8>) -> Result<String, String> {
        let mut query =
            format!("{path}?{}&stdin={}&tty={}", self.pod.query()?, u8::from(self.stdin), u8::from(tty));
        if let Some(container) = &self.container {
            let _ = write!(query, "&container={}", checked_name(container)?);
        }
        let answer = async_io::block_on(client::post(&self.socket.socket, &query, body))?;
        if !self.quiet {
            facts(&answer, "note").for_each(say);
        }
        Ok(answer)
    }

    /// A terminal is requested and available.
    pub(super) fn wants_tty(&self) -> bool {
        // Without standard input there is no terminal, as in kubectl.
        self.tty && self.stdin && terminal::is_usable(self.quiet)
    }
}

/// Arguments as the body of a request, each terminated by a NUL.
pub(super) fn body<'w>(words: impl IntoIterator<Item = &'w String>) -> Vec<u8> {
    let mut body = Vec::new();
    for word in words {
        body.extend_from_slice(word.as_bytes());
        body.push(0);
    }
    body
}

pub(super) fn run(args: &Args) -> ExitCode {
    execute(args).unwrap_or_else(|why| fail(&why))
}

fn execute(args: &Args) -> Result<ExitCode, String> {
    let target = &args.target;
    let tty = target.wants_tty();
    let answer = target.ask("/exec", tty, body(&args.command))?;
    let url = fact(&answer, "url").unwrap_or_default();
    session::run(Session { url, stdin: target.stdin, tty, raw: tty, attached: false })
}
