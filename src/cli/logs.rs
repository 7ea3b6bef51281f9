//! `smolet logs POD`: prints the logs of a pod's containers. The agent returns their paths; this process reads them.

use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::client::{self, Refusal};
use super::pod_arg::PodArg;
use super::{SocketArg, fail, say};
use crate::clock::{Clock as _, SystemClock};
use crate::config::parse_go_duration;
use crate::limits::LOG_CHUNK_BYTES;
use crate::logs::follow::Follower;
use crate::logs::line::{Shown, Sink, Stream};
use crate::logs::read::{LogReader, Part};
use crate::model::{ContainerKind, Wall};
use crate::podcmd;
use crate::printers::text::harmless;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pod: PodArg,
    /// The container [default: the annotation kubectl.kubernetes.io/default-container, else the first]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// All containers of the pod, init containers first
    #[arg(long)]
    all_containers: bool,
    /// Go on until the container has ended
    #[arg(short, long)]
    follow: bool,
    /// The container's life before this one
    #[arg(short, long)]
    previous: bool,
    /// Only so many lines before the end; -1: all
    #[arg(long, value_name = "LINES", default_value_t = -1, allow_negative_numbers = true, hide_default_value = true)]
    tail: i64,
    /// Only lines newer than a duration like 5s, 2m or 3h
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// The time before each line
    #[arg(long)]
    timestamps: bool,
    #[command(flatten)]
    socket: SocketArg,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match show(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => fail(&why),
    }
}

impl Args {
    /// All of a container's log so far.
    pub(super) fn of(pod: PodArg, container: &str, socket: SocketArg) -> Self {
        Self {
            pod,
            container: Some(container.to_owned()),
            all_containers: false,
            follow: false,
            previous: false,
            tail: -1,
            since: None,
            timestamps: false,
            socket,
        }
    }

    /// Whether that container runs (true) or has exited (false), or why it has not started.
    ///
    /// # Errors
    /// The agent does not answer, or knows no such container.
    pub(super) fn state(&self) -> Result<Result<bool, String>, String> {
        let response = client::get(&self.socket.socket, &format!("/logs?{}", self.pod.query()?))?;
        let pod: Value =
            serde_json::from_str(&response).map_err(|error| format!("the agent's answer: {error}"))?;
        let (chosen, _) = choose(&pod, self.container.as_deref(), false, false)?;
        let of = |container: Chosen| container.path.map(|_| container.running);
        Ok(chosen.into_iter().next().map_or_else(|| Err(String::new()), of))
    }
}

/// A container's log to print.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    name: String,
    /// Its path, or why there is none.
    path: Result<PathBuf, String>,
    running: bool,
}

/// Prints the logs. False when one could not be printed, with a message.
fn show(args: &Args) -> Result<bool, String> {
    let shown =
        Shown { since: since(args.since.as_deref(), SystemClock.now().wall)?, timestamps: args.timestamps };
    let tail = u64::try_from(args.tail).ok();
    if args.tail < -1 {
        return Err("--tail must be greater than or equal to -1".to_owned());
    }
    if let Some(name) = args.container.as_ref().filter(|_| args.all_containers) {
        return Err(format!(
            "--all-containers=true should not be specified with container name {}",
            harmless(name)
        ));
    }
    let query = format!("/logs?{}", args.pod.query()?);
    let response = client::get(&args.socket.socket, &query)?;
    let pod: Value =
        serde_json::from_str(&response).map_err(|error| format!("the agent's answer: {error}"))?;
    let (chosen, note) = choose(&pod, args.container.as_deref(), args.all_containers, args.previous)?;
    if let Some(note) = note {
        say(&note);
    }
    let mut output = Output::new();
    let all_well = show_all(args, &chosen, tail, shown, &mut output);
    match all_well {
        // A closed pipe (`smolet logs web | head -1`) is not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        all_well => all_well.map_err(|error| format!("logs: {error}")),
    }
}

fn show_all(
    args: &Args,
    chosen: &[Chosen],
    tail: Option<u64>,
    shown: Shown,
    output: &mut Output,
) -> io::Result<bool> {
    let mut all_well = true;
    let mut refuse = |why: &str| {
        all_well = false;
        let _ = fail(&harmless(why));
    };
    let mut follower = args.follow.then(Follower::new).transpose()?;
    let mut followed = Vec::new();
    for container in chosen {
        let path = match &container.path {
            Ok(path) => path,
            Err(why) => {
                refuse(why);
                continue;
            }
        };
        let part = Part { tail, follow: args.follow && container.running };
        let open = || LogReader::open(path, part, shown);
        let opened = match follower.as_mut().filter(|_| part.follow) {
            Some(follower) => follower.add(path, open).map(|()| None),
            None => open().map(Some),
        };
        match opened {
            Ok(Some(mut reader)) => reader.read(output)?,
            Ok(None) => followed.push(container),
            Err(error) => refuse(&format!("container {}: {}: {error}", container.name, path.display())),
        }
    }
    if let Some(follower) = follower {
        follower.run(output, |at| followed.get(at).is_some_and(|container| runs(args, container)))?;
    }
    output.flush()?;
    Ok(all_well)
}

/// Whether the container of a followed log still runs, as far as is known.
fn runs(args: &Args, container: &Chosen) -> bool {
    let Ok(query) = args.pod.query() else { return false };
    match client::ask_for(&args.socket.socket, &format!("/logs?{query}")) {
        // Containers outlive the agent.
        Err(Refusal::Unreachable(_)) => true,
        Err(Refusal::Said(_)) => false,
        Ok(response) => {
            let pod: Value = serde_json::from_str(&response).unwrap_or_default();
            let (now, _) = choose(&pod, Some(&container.name), false, false).unwrap_or_default();
            now.iter().any(|now| now.running && now.path == container.path)
        }
    }
}

/// The instant that far before `now`. PURE.
fn since(duration: Option<&str>, now: Wall) -> Result<Option<Wall>, String> {
    let Some(text) = duration else { return Ok(None) };
    let duration = parse_go_duration(text)
        .ok_or_else(|| format!("--since {:?}: must be a duration such as 5s, 2m or 3h", harmless(text)))?;
    let nanos = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    Ok((nanos > 0).then(|| Wall(now.0.saturating_sub(nanos))))
}

/// Which of a pod's containers are printed, and the message before (kubectl `logsForObjectWithClient`). PURE.
fn choose(
    pod: &Value,
    wanted: Option<&str>,
    all: bool,
    previous: bool,
) -> Result<(Vec<Chosen>, Option<String>), String> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = |container: &Value| {
        let log = &container[if previous { "previous" } else { "log" }];
        let path = log["path"].as_str().map(PathBuf::from).ok_or_else(|| text(log, "why"));
        Chosen { name: text(container, "name"), path, running: log["running"] == true }
    };
    if all {
        return Ok((containers.iter().map(chosen).collect(), None));
    }
    let kind = |container: &Value| match container["kind"].as_str() {
        Some("init") => ContainerKind::Init,
        Some("ephem") => ContainerKind::Ephemeral,
        _ => ContainerKind::App,
    };
    let list: Vec<(ContainerKind, &str)> =
        containers.iter().map(|of| (kind(of), of["name"].as_str().unwrap_or_default())).collect();
    let (place, note) = podcmd::choose(&text(pod, "pod"), &list, wanted, pod["default"].as_str())?;
    Ok((vec![chosen(&containers[place])], note))
}

/// Standard output and standard error, in the order of the lines.
struct Output {
    out: BufWriter<StdoutLock<'static>>,
    err: BufWriter<io::Stderr>,
}

impl Output {
    fn new() -> Self {
        Self {
            out: BufWriter::with_capacity(LOG_CHUNK_BYTES, io::stdout().lock()),
            err: BufWriter::new(io::stderr()),
        }
    }
}

impl Sink for Output {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            Stream::Out => {
                self.err.flush()?;
                self.out.write_all(bytes)
            }
            Stream::Err => {
                self.out.flush()?;
                self.err.write_all(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.err.flush()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(default: Option<&str>) -> Value {
        let log = |path: &str| json!({"path": path, "running": true});
        let none = || json!({"why": "no"});
        json!({"pod": "web-gw", "default": default, "containers": [
            {"name": "setup", "kind": "init", "log": {"path": "/s/0.log", "running": false}, "previous": none()},
            {"name": "app", "kind": "app", "log": log("/a/1.log"), "previous": {"path": "/a/0.log", "running": false}},
            {"name": "side", "kind": "app", "log": none(), "previous": none()},
            {"name": "debug", "kind": "ephem", "log": log("/d/0.log"), "previous": none()},
        ]})
    }

    fn chosen(name: &str, path: Result<&str, &str>, running: bool) -> Chosen {
        Chosen { name: name.to_owned(), path: path.map(PathBuf::from).map_err(str::to_owned), running }
    }

    #[test]
    fn the_container_is_the_one_kubectl_takes() {
        let one = |container: Chosen, note: Option<&str>| Ok((vec![container], note.map(str::to_owned)));
        let all_names = "app, side, debug (ephem), setup (init)";
        let defaulted = format!("Defaulted container \"app\" out of: {all_names}");
        let app = || chosen("app", Ok("/a/1.log"), true);
        for (default, wanted, previous, expected) in [
            (None, None, false, one(app(), Some(&defaulted))),
            (Some("side"), None, false, one(chosen("side", Err("no"), false), None)),
            (
                Some("gone"),
                None,
                false,
                one(
                    app(),
                    Some(&format!("Default container name \"gone\" not found in pod web-gw\n{defaulted}")),
                ),
            ),
            (Some("side"), Some("setup"), false, one(chosen("setup", Ok("/s/0.log"), false), None)),
            (None, Some("app"), true, one(chosen("app", Ok("/a/0.log"), false), None)),
            (
                None,
                Some("nope"),
                false,
                Err(format!("container nope is not valid for pod web-gw out of: {all_names}")),
            ),
        ] {
            assert_eq!(choose(&pod(default), wanted, false, previous), expected, "{default:?} {wanted:?}");
        }
        let (all, note) = choose(&pod(None), None, true, false).unwrap();
        let names: Vec<&str> = all.iter().map(|container| &*container.name).collect();
        assert_eq!((names, note), (vec!["setup", "app", "side", "debug"], None));
        let alone =
            json!({"pod": "p", "containers": [{"name": "app", "kind": "app", "log": {"path": "/l"}}]});
        assert_eq!(choose(&alone, None, false, false), one(chosen("app", Ok("/l"), false), None));
        let early = json!({"pod": "p", "containers": []});
        assert_eq!(choose(&early, None, false, false), Err("pod p has no containers yet".to_owned()));
    }

    #[test]
    fn since_is_a_duration_before_now() {
        let now = Wall(10_000_000_000);
        assert_eq!(since(None, now), Ok(None));
        assert_eq!(since(Some("0"), now), Ok(None), "as kubectl: all");
        assert_eq!(since(Some("3s"), now), Ok(Some(Wall(7_000_000_000))));
        assert_eq!(
            since(Some("yesterday"), now).unwrap_err(),
            "--since \"yesterday\": must be a duration such as 5s, 2m or 3h"
        );
    }
}
