//! `ExecSync`: a command in a container, through the OCI runtime, with pipes and a deadline.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use smol::future::or;

use super::container::{Container, Containers};
use super::context::{failed, full, invalid, not_now};
use super::oci_runtime::{Exec, message_of};
use super::process::ProgramError;
use super::records::ContainerPhase;
use crate::cri::{ExecOutput, RuntimeError, RuntimeResult};
use crate::fair_semaphore::{FairPermit, FairSemaphore, PermitOwner};
use crate::limits::{EXEC_COMMAND_BYTES_MAX, EXEC_SYNC};
use crate::model::PodUid;

/// Exit codes of runc and crun whose command could not be run are those of a shell; these mean that the OCI runtime itself failed.
const OCI_FAILED: [i32; 2] = [255, 1];

/// Runs commands.
pub(super) struct Execs {
    permits: FairSemaphore,
    next: Cell<u64>,
}

impl Default for Execs {
    fn default() -> Self {
        Self { permits: FairSemaphore::new(EXEC_SYNC), next: Cell::new(0) }
    }
}

impl Execs {
    /// The container's turn among others: within its pod's share.
    async fn permit(
        &self,
        containers: &Containers,
        container: &Container,
        time: Duration,
    ) -> RuntimeResult<FairPermit> {
        let owner = PermitOwner::from(&PodUid::from(container.pod()));
        let turn = async {
            let permit = self.permits.acquire(owner).await;
            permit.map_err(|error| full(format!("container {}: {error}", container.id())))
        };
        let late = async {
            if time.is_zero() {
                std::future::pending::<()>().await;
            }
            containers.context.clock.sleep(time).await;
            Err(RuntimeError::DeadlineExceeded(format!(
                "container {}: the command was not started within {} s: commands of this pod, or of many others, take long",
                container.id(),
                time.as_secs_f64()
            )))
        };
        or(turn, late).await
    }

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
        let begun = containers.context.clock.now().mono;
        let _permit = self.permit(containers, container, time).await?;
        if container.phase() != ContainerPhase::Running {
            return Err(not_now(format!("container {id} does not run")));
        }
        let number = self.next.replace(self.next.get().wrapping_add(1));
        let pid_file = containers.run_dir(id).join(format!("exec-{number}.pid"));
        let runtime = containers.oci_runtime(container)?;
        // The wait counts: a probe's time is that of its whole call.
        let left = time.saturating_sub(containers.context.clock.now().mono.since(begun));
        let left = (!time.is_zero()).then_some(left);
        let exec = Exec {
            command,
            pid_file: &pid_file,
            output_bytes_max,
            time: left,
            owner: container.root(),
            oom_score_adj: container.oom_score_adj(),
        };
        let output = match runtime.exec(id.as_str(), exec).await {
            Ok(output) => output,
            Err(ProgramError::TooSlow(..)) => {
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
