//! `ExecSync`: a command in a container, through the OCI runtime, with pipes and a deadline.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smol::future::or;

use super::command::{ContainerCommand, EXEC, KEEPER_KILLED};
use super::container::{Container, Containers};
use super::context::{failed, full, invalid, not_now};
use super::oci_runtime::{Exec, message_of};
use super::process::{ProgramError, Room};
use super::records::ContainerPhase;
use crate::cri::{ExecOutput, RuntimeError, RuntimeResult};
use crate::fair_semaphore::{FairPermit, FairSemaphore, PermitOwner};
use crate::limits::{EXEC_COMMAND_BYTES_MAX, EXEC_OUTPUT_BYTES_MAX, EXEC_OUTPUTS_BYTES_MAX, EXEC_SYNC};
use crate::model::PodUid;

/// Exit codes of runc and crun whose command could not be run are those of a shell; these mean that the OCI runtime itself failed.
const OCI_FAILED: [i32; 2] = [255, 1];

/// Runs commands.
pub(super) struct Execs {
    permits: FairSemaphore,
    next: Cell<u64>,
    /// For outputs that the CRI's clients ask for; those of the agent's probes and hooks are small.
    room: Room,
}

impl Default for Execs {
    fn default() -> Self {
        let room = Rc::new(Cell::new(EXEC_OUTPUTS_BYTES_MAX));
        Self { permits: FairSemaphore::new(EXEC_SYNC), next: Cell::new(0), room }
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
        let (bundle, name) = (containers.run_dir(id), format!("{EXEC}{number}"));
        let command = Arc::new(ContainerCommand::in_bundle(bundle, &name, command.to_vec(), false));
        let runtime = containers.oci_runtime(container)?;
        // The wait counts: a probe's time is that of its whole call.
        let left = time.saturating_sub(containers.context.clock.now().mono.since(begun));
        let left = (!time.is_zero()).then_some(left);
        let exec = Exec {
            command: command.clone(),
            output_bytes_max,
            room: (output_bytes_max > EXEC_OUTPUT_BYTES_MAX).then(|| self.room.clone()),
            time: left,
            owner: container.root(),
            oom_score_adj: container.oom_score_adj(),
        };
        let output = match runtime.exec(id.as_str(), exec).await {
            Ok(output) => output,
            Err(ProgramError::TooSlow(..)) => {
                let seconds = time.as_secs_f64();
                let program = command.program();
                let message = format!("command {program:?} timed out after {seconds} s: it was killed");
                return Err(RuntimeError::DeadlineExceeded(message));
            }
            Err(error) => return Err(failed(format!("container {id}: {error}"))),
        };
        let Some(code) = output.status.code() else {
            let left = command.clone();
            containers.context.blocking(move || left.end_left(output.pid)).await;
            return Err(failed(format!("container {id}: command {:?}: {KEEPER_KILLED}", command.program())));
        };
        let files = command.clone();
        let was_started = containers.context.blocking(move || files.remove()).await;
        if !was_started && OCI_FAILED.contains(&code) {
            let why = message_of(&output.last_error());
            return Err(failed(format!("container {id}: command {:?}: {why}", command.program())));
        }
        Ok(ExecOutput { stdout: output.stdout, stderr: output.stderr, exit_code: code })
    }
}
