//! Results and errors of a sync, in the kubelet's terms (`sync_result.go`). PURE.

use std::fmt;
use std::rc::Rc;

use super::plan::Crash;
use crate::image::gc::is_no_space;
use crate::image::pull::ImageProblem;
use crate::limits::SYNC_RESULTS_MAX;
use crate::model::{ContainerId, Mono, SandboxId, Sizes};

/// `SyncAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Start of a container.
    StartContainer,
    /// Stop of a container.
    KillContainer,
    /// Removal of a container's record, in a restart in place.
    RemoveContainer,
    /// Creation of a sandbox.
    CreatePodSandbox,
    /// Stop of the pod's sandboxes.
    KillPodSandbox,
    /// In-place resize of running containers.
    ResizePodInPlace,
}

impl fmt::Display for SyncAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StartContainer => "StartContainer",
            Self::KillContainer => "KillContainer",
            Self::RemoveContainer => "RemoveContainer",
            Self::CreatePodSandbox => "CreatePodSandbox",
            Self::KillPodSandbox => "KillPodSandbox",
            Self::ResizePodInPlace => "ResizePodInPlace",
        })
    }
}

/// The class of a failure; shown as a container's waiting reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// The container crashed and waits for its back-off.
    CrashLoopBackOff,
    /// Its image is not available.
    Image(ImageProblem),
    /// The node cannot run its pod; the value is the reason.
    Refused(&'static str),
    /// Its configuration could not be rendered.
    CreateContainerConfig,
    /// The runtime did not create it.
    CreateContainer,
    /// The runtime did not start it.
    RunContainer,
    /// Its postStart hook failed, and it was killed for that.
    PostStartHook,
    /// The runtime did not stop it.
    KillContainer,
    /// The runtime did not remove it.
    RemoveContainer,
    /// The sandbox was not made.
    CreatePodSandbox,
    /// A sandbox was not stopped.
    KillPodSandbox,
    /// Not all of the pod has the CPU and memory that was allocated to it.
    ResizePodInPlace,
}

impl fmt::Display for SyncError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image(problem) => return problem.fmt(f),
            Self::Refused(reason) => reason,
            Self::CrashLoopBackOff => "CrashLoopBackOff",
            Self::CreateContainerConfig => "CreateContainerConfigError",
            Self::CreateContainer => "CreateContainerError",
            Self::RunContainer => "RunContainerError",
            Self::PostStartHook => "PostStartHookError",
            Self::KillContainer => "KillContainerError",
            Self::RemoveContainer => "RemoveContainerError",
            Self::CreatePodSandbox => "CreatePodSandboxError",
            Self::KillPodSandbox => "KillPodSandboxError",
            Self::ResizePodInPlace => "ResizePodInPlaceError",
        })
    }
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub error: SyncError,
    /// The message.
    pub message: String,
    /// The time of the next attempt, when known (`BackoffError`).
    pub retry_at: Option<Mono>,
}

impl Failure {
    /// A failure without a known retry time.
    pub fn new(error: SyncError, message: String) -> Self {
        Self { error, message, retry_at: None }
    }
}

/// `SyncResult`: one action and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncResult {
    /// The attempted action.
    pub action: SyncAction,
    /// A container's name; the pod's UID when its sandboxes stop; `NAME_NAMESPACE(UID)` when one is made.
    pub target: Rc<str>,
    /// `None` on success.
    pub failure: Option<Failure>,
}

/// A start that was attempted after a crash: the loop calls `backoff.next(crash.key, crash.finished, at)` for each, before
/// it plans this pod again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The container, and when it exited.
    pub crash: Crash,
    /// When the attempt was made.
    pub at: Mono,
}

/// What an act did (`PodSyncResult`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Every action in order; at most `limits::SYNC_RESULTS_MAX`.
    pub results: Vec<SyncResult>,
    /// Number of failures dropped because `results` was full.
    pub failures_left_out: usize,
    /// Error that ended the sync, besides failed actions.
    pub sync_error: Option<String>,
    /// Starts that increase a container's back-off.
    pub attempts: Vec<Attempt>,
    /// The sandbox that was created, if one was.
    pub sandbox: Option<SandboxId>,
    /// Resources that running containers have now, for those whose CPU or memory the runtime has changed.
    pub actuated: Vec<Actuated>,
}

/// Resources of a running container after a resize (the kubelet's `actuated_pods_state`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actuated {
    /// The container.
    pub id: ContainerId,
    /// The resources that the runtime applied.
    pub sizes: Sizes,
}

impl Outcome {
    /// True when every action succeeded.
    pub fn is_ok(&self) -> bool {
        self.sync_error.is_none()
            && self.failures_left_out == 0
            && self.results.iter().all(|result| result.failure.is_none())
    }

    /// True when every failure is retried at [`Self::wake_at`]: no other retry is needed.
    pub fn only_waits(&self) -> bool {
        let waits = |result: &SyncResult| result.failure.as_ref().is_none_or(|f| f.retry_at.is_some());
        self.sync_error.is_none() && self.results.iter().all(waits)
    }

    /// The earliest end of a back-off that stopped a start (`MinBackoffExpiration`, image pulls included).
    pub fn wake_at(&self) -> Option<Mono> {
        self.results.iter().filter_map(|result| result.failure.as_ref()?.retry_at).min()
    }

    /// Updates for the reason cache (`ReasonCache.Update`): for each container to start, the failure whose class and message
    /// become its waiting reason and message, or `None` to forget an older one.
    pub fn starts(&self) -> impl Iterator<Item = (&Rc<str>, Option<&Failure>)> {
        let starts = self.results.iter().filter(|result| result.action == SyncAction::StartContainer);
        starts.map(|result| (&result.target, result.failure.as_ref()))
    }

    /// The result of the resize, if there was one: why containers or cgroup did not get the CPU and memory allocated to them.
    pub fn resize(&self) -> Option<Option<&Failure>> {
        let result = self.results.iter().find(|result| result.action == SyncAction::ResizePodInPlace)?;
        Some(result.failure.as_ref())
    }

    /// An action, most likely a pull, failed because there is no space ([`is_no_space`]).
    pub fn found_no_space(&self) -> bool {
        let mut failures = self.results.iter().filter_map(|result| result.failure.as_ref());
        failures.any(|failure| is_no_space(&failure.message))
    }

    /// A container or sandbox that had to end did not.
    pub fn failed_to_kill(&self) -> bool {
        let kills = [SyncAction::KillContainer, SyncAction::KillPodSandbox];
        self.results.iter().any(|result| result.failure.is_some() && kills.contains(&result.action))
    }

    /// The pod's error in one line (`PodSyncResult.Error`), for the log; `None` on success.
    pub fn error(&self) -> Option<String> {
        let mut errors: Vec<String> = Vec::new();
        errors.extend(self.sync_error.as_ref().map(|error| format!("failed to SyncPod: {error}")));
        errors.extend(self.results.iter().filter_map(|result| {
            let failure = result.failure.as_ref()?;
            Some(format!(
                "failed to \"{}\" for \"{}\" with {}: {}",
                result.action,
                result.target,
                failure.error,
                crate::text::quoted(&failure.message)
            ))
        }));
        if self.failures_left_out > 0 {
            errors.push(format!("failures that are not listed: {}", self.failures_left_out));
        }
        (!errors.is_empty()).then(|| errors.join(", "))
    }

    pub(super) fn add(&mut self, action: SyncAction, target: &Rc<str>, failure: Option<Failure>) {
        if self.results.len() == SYNC_RESULTS_MAX {
            self.failures_left_out += usize::from(failure.is_some());
            return;
        }
        self.results.push(SyncResult { action, target: target.clone(), failure });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::gc::STORE_IS_FULL;

    #[test]
    fn a_full_disk_is_found_in_the_texts_of_containerd_and_of_the_embedded_runtime() {
        let full = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        for (message, expected) in [
            ("failed to extract layer: write /x: no space left on device: unknown".to_owned(), true),
            ("inotify: No space left on device (os error 28)".to_owned(), false),
            (format!("unpacking layer sha256:0 in /x: {full}"), true),
            (format!("{STORE_IS_FULL}: it has 7 images"), true),
            ("manifest unknown".to_owned(), false),
        ] {
            let mut outcome = Outcome::default();
            let failure =
                Failure { error: SyncError::RunContainer, message: message.clone(), retry_at: None };
            outcome.add(SyncAction::StartContainer, &"c".into(), Some(failure));
            assert_eq!(outcome.found_no_space(), expected, "{message}");
        }
    }

    #[test]
    fn failures_beyond_the_bound_are_counted() {
        let mut outcome = Outcome::default();
        let target: Rc<str> = "c".into();
        for _ in 0..SYNC_RESULTS_MAX {
            outcome.add(SyncAction::StartContainer, &target, None);
        }
        outcome.add(SyncAction::StartContainer, &target, None);
        assert!(outcome.is_ok() && outcome.error().is_none());
        let failure = Failure { error: SyncError::RunContainer, message: "no".into(), retry_at: None };
        outcome.add(SyncAction::StartContainer, &target, Some(failure));
        assert_eq!(outcome.results.len(), SYNC_RESULTS_MAX);
        assert!(!outcome.is_ok());
        assert_eq!(outcome.error().as_deref(), Some("failures that are not listed: 1"));
    }
}
