//! `smolet debug POD --image IMAGE`: adds a debug container to a running pod and attaches to it, as `kubectl debug`.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::attach::attach;
use super::exec::{TargetArgs, body};
use super::logs;
use super::pod_arg::PodArg;
use super::{SocketArg, checked_name, client, fact, facts, fail, say};
use crate::limits::DEBUG_WAIT;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pod: PodArg,
    /// The image of the new container
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Its name [default: debugger-xxxxx]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// When its image is pulled [default: Always for :latest, else `IfNotPresent`]
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: Option<String>,
    /// The container whose processes it sees
    #[arg(long, value_name = "CONTAINER")]
    target: Option<String>,
    /// Keep its standard input open, wait until it runs and join it
    #[arg(short = 'i', long)]
    stdin: bool,
    /// It has a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// Print nothing but what the container does
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    other: OtherArgs,
    #[command(flatten)]
    socket: SocketArg,
    /// The command and its arguments, instead of the image's own
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What `kubectl debug` has besides, known here so that it is answered by name.
#[derive(Debug, clap::Args)]
struct OtherArgs {
    #[arg(long, hide = true)]
    copy_to: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    share_processes: Option<String>,
    #[arg(long, hide = true)]
    profile: Option<String>,
    #[arg(long, hide = true)]
    custom: Option<String>,
    #[arg(long, hide = true)]
    set_image: Option<String>,
}

impl OtherArgs {
    /// # Errors
    /// A message that names the unsupported flag.
    fn refuse(&self) -> Result<(), String> {
        const COPIES: &str =
            "pods come from manifests here: for a copy, copy the manifest under another name";
        let profile = self.profile.as_ref().filter(|profile| *profile != "general");
        let asked = [
            ("--copy-to", self.copy_to.as_ref(), COPIES),
            ("--set-image", self.set_image.as_ref(), COPIES),
            ("--share-processes", self.share_processes.as_ref(), "it is for copies of pods; see --target"),
            ("--profile", profile, "a debug container always has the profile general"),
            ("--custom", self.custom.as_ref(), "a debug container always has the profile general"),
        ];
        match asked.into_iter().find(|(_, given, _)| given.is_some()) {
            Some((flag, _, why)) => Err(format!("{flag} is not supported: {why}")),
            None => Ok(()),
        }
    }
}

pub(super) fn run(args: &Args) -> ExitCode {
    debug(args).unwrap_or_else(|why| fail(&why))
}

fn debug(args: &Args) -> Result<ExitCode, String> {
    args.other.refuse()?;
    let image = args.image.as_ref().ok_or("you must specify --image, the image of the new container")?;
    if args.tty && !args.stdin {
        return Err("-i/--stdin is required for containers with -t/--tty=true".to_owned());
    }
    let (stdin, tty) = (u8::from(args.stdin), u8::from(args.tty));
    let mut query = format!("/debug?{}&stdin={stdin}&tty={tty}", args.pod.query()?);
    let given = [("container", &args.container), ("target", &args.target), ("pull", &args.image_pull_policy)];
    for (key, given) in given {
        if let Some(given) = given {
            let _ = write!(query, "&{key}={}", checked_name(given)?);
        }
    }
    let words = body(std::iter::once(image).chain(&args.command));
    let answer = async_io::block_on(client::post(&args.socket.socket, &query, words))?;
    for note in facts(&answer, "note").filter(|_| !args.quiet) {
        say(note);
    }
    if !args.stdin {
        return Ok(ExitCode::SUCCESS);
    }
    let (namespace, pod) = fact(&answer, "pod").and_then(|pod| pod.split_once(' ')).unwrap_or_default();
    let container = fact(&answer, "container").unwrap_or_default();
    join(args, &PodArg::of(namespace, pod), pod, container)
}

/// Waits for the container and attaches to it; if it has exited by then, prints its log (kubectl `handleAttachPod`).
fn join(args: &Args, pod: &PodArg, name: &str, container: &str) -> Result<ExitCode, String> {
    let log = logs::Args::of(pod.clone(), container, args.socket.clone());
    if wait(&log, container, args.quiet)? {
        let target = TargetArgs {
            pod: pod.clone(),
            container: Some(container.to_owned()),
            stdin: args.stdin,
            tty: args.tty,
            quiet: args.quiet,
            socket: args.socket.clone(),
        };
        match attach(&target, ended) {
            Ok(code) => return Ok(code),
            Err(why) => {
                say(&format!("warning: couldn't attach to pod/{name}, falling back to its logs: {why}"));
            }
        }
    }
    Ok(logs::run(&log))
}

fn ended(again: &str) -> String {
    format!(
        "Session ended, the ephemeral container will not be restarted but may be reattached using '{again}' if it is still \
         running"
    )
}

/// True when the container runs, false when it has exited; until then each new reason why it has not started is printed.
fn wait(log: &logs::Args, container: &str, quiet: bool) -> Result<bool, String> {
    let mut printed = String::new();
    loop {
        match log.state()? {
            Ok(runs) => return Ok(runs),
            Err(why) => {
                let usual = why.ends_with(": ContainerCreating") || why.ends_with(" is not available");
                if !quiet && !usual && why != printed {
                    say(&format!("Warning: container {container}: {why}"));
                    printed = why;
                }
            }
        }
        std::thread::sleep(DEBUG_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn refusal_of(words: &[&str]) -> String {
        let line = Line::try_parse_from(["debug", "web", "--socket", "/nowhere"].iter().chain(words))
            .expect("parsed");
        debug(&line.args).expect_err("refused")
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_name() {
        for (words, why) in [
            (
                &["--copy-to", "x", "--image", "b"][..],
                "--copy-to is not supported: pods come from manifests here",
            ),
            (&["--share-processes", "--copy-to", "x"], "--copy-to is not supported"),
            (
                &["--share-processes", "--image", "b"],
                "--share-processes is not supported: it is for copies of pods",
            ),
            (&["--share-processes=false"], "--share-processes is not supported"),
            (
                &["--profile=sysadmin", "--image", "b"],
                "--profile is not supported: a debug container always has",
            ),
            (&["--custom", "x.json"], "--custom is not supported"),
            (&["--set-image", "*=b"], "--set-image is not supported"),
            (&["--", "sh"], "you must specify --image"),
            (&["--image", "b", "-t"], "-i/--stdin is required for containers with -t/--tty=true"),
            (&["--image", "b", "-c", "a b"], "\"a b\" is no name"),
            (
                &["--image", "b", "--profile", "general", "--", "sh", "-c", "x"],
                "cannot reach the agent at /nowhere",
            ),
        ] {
            let got = refusal_of(words);
            assert!(got.starts_with(why), "{words:?}: {got}");
        }
    }
}
