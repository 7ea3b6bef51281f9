//! Executes the actions of probes and lifecycle hooks: one CRI call or connection each, without processes of the agent.
//!
//! Every part may be dropped at any await: an exec's call is then reset, and a connection closed.

use std::rc::Rc;
use std::time::Duration;

use super::handler::Handler;
use super::{grpc, http};
use crate::clock::SharedClock;
use crate::cri::{ExecOutput, Runtime, RuntimeError};

use crate::limits::{PROBE_OUTPUT_BYTES_MAX, PROBE_TRIES_MAX};
use crate::model::{ContainerId, PodUid};
use crate::net::Lookups;
use crate::text::start_of;

/// Result of a probe (`probe.Result`), with the message for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success.
    Success,
    /// Success, with a warning.
    Warning(String),
    /// Failure.
    Failure(String),
}

/// Dependencies of the actions.
pub struct Tools<R> {
    /// Runs commands in containers.
    pub runtime: Rc<R>,
    /// For timeouts.
    pub clock: SharedClock,
    /// Resolves host names.
    pub lookups: Lookups,
}

impl<R> Tools<R> {
    /// The same for a pod, with its own turns for name lookups.
    #[must_use]
    pub fn of_pod(&self, pod: &PodUid) -> Self {
        Self { runtime: self.runtime.clone(), clock: self.clock.clone(), lookups: self.lookups.of_pod(pod) }
    }
}

/// Runs a probe (`runProbeWithRetries`); `timeout` is that of each attempt, and is not zero.
///
/// # Errors
/// A sentence: it could not run, which says nothing about the container.
pub async fn probe<R: Runtime>(
    tools: &Tools<R>,
    container: &ContainerId,
    handler: &Handler,
    timeout: Duration,
) -> Result<Answer, String> {
    let late = |words: String| async move {
        tools.clock.sleep(timeout).await;
        Ok(Answer::Failure(words))
    };
    match handler {
        Handler::Exec(command) => exec(tools, container, command, timeout).await,
        Handler::HttpGet(get) => {
            let words = format!(
                "Get \"{get}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            );
            let asked = async {
                let reply = http::get(&tools.lookups, get).await;
                Ok(reply.map_or_else(Answer::Failure, http::Reply::answer))
            };
            smol::future::or(asked, late(words)).await
        }
        Handler::TcpSocket(address) => {
            let connected = async {
                let connected = tools.lookups.connect(address).await;
                Ok(connected.map_or_else(Answer::Failure, |_| Answer::Success))
            };
            smol::future::or(connected, late(format!("dial tcp {address}: i/o timeout"))).await
        }
        Handler::Grpc { address, service } => {
            let checked = async { Ok(grpc::check(&tools.lookups, address, service, timeout).await) };
            smol::future::or(checked, late(grpc::late(timeout))).await
        }
    }
}

/// `execProber.Probe`: the runtime enforces the timeout.
async fn exec<R: Runtime>(
    tools: &Tools<R>,
    container: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> Result<Answer, String> {
    let mut last = String::new();
    for _ in 0..PROBE_TRIES_MAX {
        match tools.runtime.exec_sync(container, command, timeout).await {
            Ok(ExecOutput { exit_code: 0, .. }) => return Ok(Answer::Success),
            Ok(ExecOutput { stdout, stderr, .. }) => return Ok(Answer::Failure(said(&stdout, &stderr))),
            Err(RuntimeError::DeadlineExceeded(why)) => {
                return Ok(Answer::Failure(format!("command timed out: {why}")));
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

/// Both outputs, concatenated and truncated to the limit.
pub(crate) fn said(stdout: &[u8], stderr: &[u8]) -> String {
    let mut both = Vec::with_capacity(PROBE_OUTPUT_BYTES_MAX);
    both.extend(stdout.iter().chain(stderr).take(PROBE_OUTPUT_BYTES_MAX));
    start_of(&String::from_utf8_lossy(&both), PROBE_OUTPUT_BYTES_MAX).to_owned()
}
