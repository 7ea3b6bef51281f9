//! `ExecSync`: a command in a container, through the OCI runtime, with pipes and a deadline.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use smol::lock::Semaphore;

use super::container::{Container, Containers};
use super::context::{failed, invalid, not_now};
use super::oci_runtime::{Exec, OciRuntime, message_of};
use super::process::ProgramError;
use super::records::ContainerPhase;
use crate::cri::{ExecOutput, RuntimeError, RuntimeResult};
use crate::limits::{EXEC_COMMAND_BYTES_MAX, EXEC_SYNC_AT_ONCE_MAX};

/// Exit codes of runc and crun whose command could not be run are those of a shell; these mean that the OCI runtime itself failed.
const OCI_FAILED: [i32; 2] = [255, 1];

/// Runs commands.
pub(super) struct Execs {
    permits: Semaphore,
    next: Cell<u64>,
}

impl Default for Execs {
    fn default() -> Self {
        Self { permits: Semaphore::new(EXEC_SYNC_AT_ONCE_MAX), next: Cell::new(0) }
    }
}

impl Execs {
    /// `ExecSync`; `time` zero = none.
    ///
    /// # Errors
    /// The container does not run, the command cannot be run, or takes too long: then it is killed.
    pub(super) async fn run(
        &self,
        containers: &Containers,
        container: &Rc<Container>,
        command: &[String],
        time: Duration,
        output_bytes_max: usize,
    ) -> RuntimeResult<ExecOutput> {
        let id = container.id();
        if command.is_empty() || command.iter().map(String::len).sum::<usize>() > EXEC_COMMAND_BYTES_MAX {
            return Err(invalid(format!(
                "container {id}: the command is empty, or longer than {EXEC_COMMAND_BYTES_MAX} bytes"
            )));
        }
        let _permit = self.permits.acquire().await;
        if container.phase() != ContainerPhase::Running {
            return Err(not_now(format!("container {id} does not run")));
        }
        let number = self.next.replace(self.next.get().wrapping_add(1));
        let pid_file = containers.run_dir(id).join(format!("exec-{number}.pid"));
        let runtime = OciRuntime::of(&containers.context, container.handler())?;
        let time = (!time.is_zero()).then_some(time);
        let exec = Exec { command, pid_file: &pid_file, output_bytes_max, time, owner: container.root() };
        let output = match runtime.exec(id.as_str(), exec).await {
            Ok(output) => output,
            Err(ProgramError::TooSlow(_, time)) => {
                let seconds = time.as_secs_f64();
                let message = format!("command {:?} timed out after {seconds} s: it was killed", command[0]);
                return Err(RuntimeError::DeadlineExceeded(message));
            }
            Err(error) => return Err(failed(format!("container {id}: {error}"))),
        };
        let was_started = containers.context.blocking(move || std::fs::remove_file(pid_file).is_ok()).await;
        let code = output.status.code().unwrap_or(-1);
        if !was_started && OCI_FAILED.contains(&code) {
            let why = message_of(&output.last_error());
            return Err(failed(format!("container {id}: command {:?}: {why}", command[0])));
        }
        Ok(ExecOutput { stdout: output.stdout, stderr: output.stderr, exit_code: code })
    }
}
