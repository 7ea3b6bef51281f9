//! Calls of the OCI runtime (crun, runc), each a process with a deadline. The monitor calls `create` itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::command::ContainerCommand;
use super::context::{Context, failed};
use super::process::{self, Output, Program, ProgramError, Room};
use super::settings::Settings;
use super::users::Owner;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::{RuntimeError, RuntimeResult};
use crate::limits::{KIB, OCI_FEATURES_BYTES_MAX, OCI_RUNTIME_TIME, PROGRAM_ERROR_BYTES_MAX};
use crate::model::SortedMap;
use crate::oci::RuntimeFeatures;
use crate::render::CgroupDriver;

/// The OCI runtime of a handler.
pub(super) struct OciRuntime {
    context: Rc<Context>,
    path: PathBuf,
}

/// How a command in a container is run.
pub(super) struct Exec {
    pub(super) command: Arc<ContainerCommand>,
    pub(super) output_bytes_max: usize,
    /// That of all commands, where it counts.
    pub(super) room: Option<Room>,
    /// `None`: it may run for ever.
    pub(super) time: Option<Duration>,
    /// Whose its outputs are: it may open them by their names (`/dev/stdout`).
    pub(super) owner: Option<Owner>,
    /// Its container's `oom_score_adj`.
    pub(super) oom_score_adj: i64,
}

impl OciRuntime {
    /// That of the handler.
    ///
    /// # Errors
    /// The handler is not configured.
    pub(super) fn of(context: &Rc<Context>, handler: &str) -> RuntimeResult<Self> {
        let path = context.settings.handlers.get(handler).cloned();
        let path = path.ok_or_else(|| match handler {
            "" => failed("there is no OCI runtime; apt install crun, or runc"),
            _ => failed(format!("runtime handler {handler:?} is not configured")),
        })?;
        Ok(Self { context: context.clone(), path })
    }

    /// That of a container of which this path is recorded; an empty one is that of the handler.
    ///
    /// # Errors
    /// There is neither.
    pub(super) fn kept(context: &Rc<Context>, path: &str, handler: &str) -> RuntimeResult<Self> {
        if path.is_empty() {
            return Self::of(context, handler);
        }
        Ok(Self { context: context.clone(), path: path.into() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Arguments before the command.
    pub(super) fn global_arguments(&self) -> Vec<String> {
        let settings = &self.context.settings;
        let mut arguments = vec!["--root".to_owned(), settings.oci_state().display().to_string()];
        if settings.cgroup_driver == CgroupDriver::Systemd {
            arguments.push("--systemd-cgroup".to_owned());
        }
        arguments
    }

    /// `kill`.
    ///
    /// # Errors
    /// The OCI runtime's, also when the container's first process has exited.
    pub(super) async fn kill(&self, id: &str, signal: &str) -> RuntimeResult<()> {
        self.call("kill", &["kill", id, signal]).await.map(drop)
    }

    /// `delete --force`: kills what is left of the container, and removes its cgroup and state. A container that it does not know is
    /// deleted.
    ///
    /// # Errors
    /// The OCI runtime's.
    pub(super) async fn delete(&self, id: &str) -> RuntimeResult<()> {
        if !self.knows(id).await {
            return Ok(());
        }
        let deleted = self.call("delete", &["delete", "--force", id]).await.map(drop);
        if deleted.is_err() && !self.knows(id).await { Ok(()) } else { deleted }
    }

    /// It has state of that container.
    pub(super) async fn knows(&self, id: &str) -> bool {
        let dir = self.context.settings.oci_state().join(id);
        self.context.blocking(move || dir.exists()).await
    }

    /// `update`, with the resources as JSON.
    ///
    /// # Errors
    /// The OCI runtime's.
    pub(super) async fn update(&self, id: &str, resources: Vec<u8>) -> RuntimeResult<()> {
        let program = Program { stdin: resources, ..self.program(&["update", "--resources", "-", id]) };
        self.run("update", program).await.map(drop)
    }

    /// `checkpoint`, after which the container runs on: CRIU's images and its log go to these directories.
    ///
    /// # Errors
    /// The OCI runtime's and CRIU's.
    pub(super) async fn checkpoint(&self, id: &str, images: &Path, work: &Path) -> RuntimeResult<()> {
        let [images, work] = [images, work].map(|path| path.display().to_string());
        let arguments = [
            "checkpoint",
            "--leave-running",
            "--tcp-established",
            "--file-locks",
            "--image-path",
            &images,
            "--work-path",
            &work,
            id,
        ];
        // CRIU, ended halfway, leaves the container frozen, and its network locked.
        let program = Program { time: None, outlives: true, ..self.program(&arguments) };
        self.run("checkpoint", program).await.map(drop)
    }

    /// `exec`. The exit code is the command's.
    ///
    /// # Errors
    /// The program cannot be run, or takes too long: then the command is killed, as it is when the future is dropped. Only of a
    /// program that has exited the files of the command are left, for the caller.
    pub(super) async fn exec(&self, id: &str, exec: Exec) -> Result<Output, ProgramError> {
        let mut program = self.program(&[]);
        program.path.clone_from(&self.context.settings.program);
        program.arguments = exec.command.arguments(&self.path, self.global_arguments(), exec.oom_score_adj);
        program.arguments.push(id.into());
        program.stdout_bytes_max = exec.output_bytes_max;
        program.stderr_bytes_max = exec.output_bytes_max;
        program.time = exec.time;
        program.command = Some(exec.command);
        program.owner = exec.owner;
        program.room = exec.room;
        process::run(&self.context.blocking, &self.context.clock, program).await
    }

    fn program(&self, arguments: &[&str]) -> Program {
        let mut all: Vec<OsString> = self.global_arguments().into_iter().map(OsString::from).collect();
        all.extend(arguments.iter().map(OsString::from));
        Program {
            path: self.path.clone(),
            arguments: all,
            environment: Vec::new(),
            stdin: Vec::new(),
            stdout_bytes_max: 64 * KIB,
            stderr_bytes_max: PROGRAM_ERROR_BYTES_MAX,
            time: Some(OCI_RUNTIME_TIME),
            command: None,
            owner: None,
            outlives: false,
            room: None,
        }
    }

    async fn call(&self, name: &str, arguments: &[&str]) -> RuntimeResult<Output> {
        self.run(name, self.program(arguments)).await
    }

    async fn run(&self, name: &str, program: Program) -> RuntimeResult<Output> {
        let ran = process::run(&self.context.blocking, &self.context.clock, program).await;
        let output = ran.map_err(|error| match error {
            ProgramError::TooSlow(..) => RuntimeError::DeadlineExceeded(error.to_string()),
            ProgramError::NotStarted(..) | ProgramError::Lost(..) => failed(error.to_string()),
        })?;
        if output.status.success() {
            return Ok(output);
        }
        let program = self.path.file_name().unwrap_or_default().to_string_lossy();
        Err(failed(format!("{program} {name}: {}", message_of(&output.last_error()))))
    }
}

/// Features of the OCI runtimes, by their handlers. One that does not say has none.
pub(super) async fn features(
    settings: &Settings,
    blocking: &Blocking,
    clock: &SharedClock,
) -> SortedMap<Box<str>, RuntimeFeatures> {
    let mut all = SortedMap::new();
    for (handler, path) in &settings.handlers {
        all.insert(handler.clone(), features_of(path, blocking, clock).await);
    }
    all
}

async fn features_of(path: &Path, blocking: &Blocking, clock: &SharedClock) -> RuntimeFeatures {
    let program = Program {
        path: path.to_owned(),
        arguments: vec!["features".into()],
        environment: Vec::new(),
        stdin: Vec::new(),
        stdout_bytes_max: OCI_FEATURES_BYTES_MAX,
        stderr_bytes_max: PROGRAM_ERROR_BYTES_MAX,
        time: Some(OCI_RUNTIME_TIME),
        command: None,
        owner: None,
        outlives: false,
        room: None,
    };
    // crun has the command since 1.9, runc since 1.1.
    let output = process::run(blocking, clock, program).await;
    output.map(|output| RuntimeFeatures::parse(&output.stdout)).unwrap_or_default()
}

/// The message in a line of the OCI runtime's log: `time="…" level=error msg="…"`, what crun writes to a command's terminal in
/// its place (`2026-01-01T00:00:00.000000Z: …`, in colours), or plain text. PURE.
pub(super) fn message_of(line: &str) -> String {
    let line = without_colours(line);
    let quoted = line.split_once("msg=\"").and_then(|(_, rest)| rest.strip_suffix('"'));
    if let Some(message) = quoted {
        return message.replace("\\\"", "\"");
    }
    let is_time = |text: &str| {
        text.contains('T') && text.bytes().all(|byte| byte.is_ascii_digit() || b"-:.T".contains(&byte))
    };
    let of_crun = line.split_once("Z: ").filter(|(time, _)| is_time(time));
    of_crun.map_or_else(|| line.clone(), |(_, message)| message.to_owned())
}

/// Without the terminal's `ESC [ … m`.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default();
    pieces.fold(first.to_owned(), |plain, piece| plain + piece.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_log_lines() {
        let line = r#"time="2026-01-01T00:00:00Z" level=error msg="exec: \"no\": not found""#;
        assert_eq!(message_of(line), r#"exec: "no": not found"#);
        assert_eq!(message_of("container does not exist"), "container does not exist");
        let line = "\u{1b}[1;31m2026-01-01T00:00:00.123456Z: exec failed: no such file\u{1b}[0m";
        assert_eq!(message_of(line), "exec failed: no such file");
        assert_eq!(message_of("from A to Z: no"), "from A to Z: no");
    }
}
