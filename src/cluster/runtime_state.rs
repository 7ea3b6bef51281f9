//! The container runtime's last status, and how long it counts (kubelet `runtimeState`, `updateRuntimeUp`). PURE.

use crate::limits::RUNTIME_PATIENCE;
use crate::model::Mono;
use crate::model::runtime::{RuntimeCondition, RuntimeStatus};

/// The last status of the runtime.
#[derive(Clone, Debug)]
pub struct RuntimeState {
    /// When it was last ready (`lastBaseRuntimeSync`).
    last_sync: Option<Mono>,
    runtime_error: Option<String>,
    network_error: Option<String>,
}

impl Default for RuntimeState {
    fn default() -> Self {
        // ErrNetworkUnknown.
        let network_error = Some("network state unknown".to_owned());
        Self { last_sync: None, runtime_error: None, network_error }
    }
}

impl RuntimeState {
    /// Records a response. A runtime that does not respond leaves the last status unchanged.
    pub fn answered(&mut self, status: &RuntimeStatus, now: Mono) {
        let error_of = |kind: &str, what: &str| {
            let condition = status.conditions.iter().find(|condition| &*condition.kind == kind);
            match condition {
                Some(RuntimeCondition { status: true, .. }) => None,
                Some(RuntimeCondition { kind, reason, message, .. }) => {
                    Some(format!("{what}: {kind}=false reason:{reason} message:{message}"))
                }
                None => Some(format!("{what}: <nil>")),
            }
        };
        self.network_error = error_of("NetworkReady", "container runtime network not ready");
        self.runtime_error = error_of("RuntimeReady", "container runtime not ready");
        if self.runtime_error.is_none() {
            self.last_sync = Some(now);
        }
    }

    /// Why the node cannot run pods (`runtimeErrors`, `networkErrors`); empty: it can.
    pub fn errors(&self, now: Mono) -> Vec<String> {
        let of_sync = match self.last_sync {
            None => Some("container runtime status check may not have completed yet"),
            Some(at) if now.since(at) >= RUNTIME_PATIENCE => Some("container runtime is down"),
            Some(_) => None,
        };
        let of_status = [&self.runtime_error, &self.network_error].into_iter().flatten().cloned();
        of_sync.map(str::to_owned).into_iter().chain(of_status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(runtime: bool, network: bool) -> RuntimeStatus {
        let condition = |kind: &str, status| RuntimeCondition {
            kind: kind.into(),
            status,
            reason: "Why".into(),
            message: "so".into(),
        };
        let conditions = vec![condition("RuntimeReady", runtime), condition("NetworkReady", network)];
        RuntimeStatus { conditions, ..RuntimeStatus::default() }
    }

    #[test]
    fn a_runtime_that_does_not_answer_counts_as_up_for_a_while() {
        let seconds = |seconds: i64| Mono(seconds * 1_000_000_000);
        let mut state = RuntimeState::default();
        let unknown = "container runtime status check may not have completed yet";
        assert_eq!(state.errors(seconds(0)), [unknown, "network state unknown"]);
        state.answered(&status(true, true), seconds(0));
        assert!(state.errors(seconds(29)).is_empty());
        assert_eq!(state.errors(seconds(30)), ["container runtime is down"]);
        state.answered(&status(true, false), seconds(40));
        let network = "container runtime network not ready: NetworkReady=false reason:Why message:so";
        assert_eq!(state.errors(seconds(41)), [network]);
        // A runtime that reports not ready does not count as synced: both errors are reported after a while.
        state.answered(&status(false, true), seconds(50));
        let runtime = "container runtime not ready: RuntimeReady=false reason:Why message:so";
        assert_eq!(state.errors(seconds(51)), [runtime]);
        assert_eq!(state.errors(seconds(70)), ["container runtime is down", runtime]);
        state.answered(&RuntimeStatus::default(), seconds(71));
        assert!(state.errors(seconds(71)).contains(&"container runtime not ready: <nil>".to_owned()));
    }
}
