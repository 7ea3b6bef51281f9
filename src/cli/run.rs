//! `smolet run`: the agent.

use std::process::ExitCode;
use std::rc::Rc;

use super::{SocketArg, fail, logger, print};
use crate::clock::SystemClock;
use crate::config::{Call, Config, Flags, K3s};
use crate::executor::Executor;
use crate::node::{self, Ending};
use crate::process;
use crate::systemd::notify::Supervisor;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) flags: Flags,
    #[command(flatten)]
    pub(super) socket: SocketArg,
    /// Start the pods, print the result of each, and exit; the containers run on. Exit code 0 when every pod
    /// is as wanted
    #[arg(long)]
    once: bool,
    /// What to log; `SMOLET_LOG` sets it too [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace", "off"])]
    log_level: Option<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    run_as(args, Call::of_process())
}

/// The same; `call` is what a node of k3s says of it.
pub(super) fn run_as(args: &Args, call: Call) -> ExitCode {
    logger::install(args.log_level.as_deref());
    process::forbid_dumps();
    let config = match Config::load(&args.flags, Some(&args.socket.socket)) {
        Ok(config) => {
            let called = |k3s| K3s { call, ..k3s };
            Config { supervisor: Supervisor::of_process(), k3s: config.k3s.map(called), ..config }
        }
        Err(error) => return fail(&error.to_string()),
    };
    if let Err(why) = process::settle(&config) {
        return fail(&why);
    }
    let executor = Rc::new(Executor::new());
    // On the heap: the executor would copy the large future into each of its own.
    let agent = Box::pin(node::run(&config, args.once, &executor, Rc::new(SystemClock)));
    let ended = async_io::block_on(executor.run(agent));
    match ended {
        Ok(Ending::Stopped) => ExitCode::SUCCESS,
        Ok(Ending::Once { lines, all_well }) => {
            let mut text = lines.join("\n");
            text.push('\n');
            let printed = print(Ok(text));
            if all_well { printed } else { ExitCode::FAILURE }
        }
        Err(why) => fail(&why),
    }
}
