//! `smolet doctor`: problems of this machine that keep pods from running well, each with its remedy.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use super::{SocketArg, client, fail, print};
use crate::config::{Config, Flags};
use crate::doctor::{self, facts, judge};
use crate::printers::style::Style;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) flags: Flags,
    #[command(flatten)]
    socket: SocketArg,
    /// json, for scripts
    #[arg(short, long, value_name = "FORMAT", value_parser = ["json"])]
    output: Option<String>,
}

/// Exit code 1 when there is a problem.
pub(super) fn run(args: &mut Args) -> ExitCode {
    let (socket, flags) = (&*args.socket.socket, &mut args.flags);
    if flags.root_dir.is_none() {
        flags.root_dir = client::directories(socket).map(|of| of.root);
    }
    let loaded = Config::load(flags, Some(socket)).map_err(|error| error.to_string());
    // The agent's start refuses that too.
    #[cfg(feature = "tls")]
    let loaded = loaded.and_then(|config| crate::k3s::check_credentials(&config).map(|()| config));
    let (config, bad_settings) = match loaded {
        Ok(config) => (Some(config), None),
        Err(error) => (facts::usual_settings(flags, socket), Some(error)),
    };
    let Some(config) = config else { return fail(&bad_settings.unwrap_or_default()) };
    let findings = judge::judge(&facts::collect(&config, bad_settings));
    let no_color = std::env::var("NO_COLOR").ok();
    let style = Style::for_output(std::io::stdout().is_terminal(), no_color.as_deref());
    let text = if args.output.is_some() { doctor::json(&findings) } else { doctor::lines(&findings, style) };
    let printed = print(Ok(text));
    if doctor::has_problems(&findings) { ExitCode::FAILURE } else { printed }
}
