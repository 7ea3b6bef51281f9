//! The pod's phase from its containers (`getPhase`). PURE.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec};

use super::rules::{self, SpecContainer, find_status, is_running, is_waiting, last_terminated, terminated};
use crate::render::resources::is_sidecar;

/// The values of `status.phase` that the kubelet computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs or will restart.
    Running,
    /// All containers succeeded and none restarts.
    Succeeded,
    /// All containers terminated, at least one with a failure, and none restarts; or initialisation failed for good.
    Failed,
}

impl Phase {
    /// The API's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// A terminal phase from its text; `None` for every other.
    pub fn terminal(text: Option<&str>) -> Option<Self> {
        match text {
            Some("Succeeded") => Some(Self::Succeeded),
            Some("Failed") => Some(Self::Failed),
            _ => None,
        }
    }
}

/// Progress of one init container.
#[derive(PartialEq)]
enum Init {
    Done,
    Pending,
    FailedForGood,
}

fn init_state(container: SpecContainer<'_>, spec: &PodSpec, status: Option<&ContainerStatus>) -> Init {
    let Some(status) = status else { return Init::Pending };
    // A waiting init container is judged by its last state; without one it has not run yet.
    let end = if is_running(status) {
        None
    } else {
        terminated(status).or_else(|| last_terminated(status).filter(|_| is_waiting(status)))
    };
    match end {
        None => Init::Pending,
        Some(end) if end.exit_code != 0 && !container.restarts_after(spec, end) => Init::FailedForGood,
        // Failed but restarting: neither pending nor failed in the kubelet's count.
        Some(_) => Init::Done,
    }
}

/// `getPhase`: the phase of a pod from its container statuses alone, before earlier phases, active deadline and eviction.
///
/// `statuses` are those of the app and the init containers; `initialized`: an app container has a record in the current
/// sandbox. Sidecars' `started` is still that of the previous status, as the kubelet runs this before the prober's update.
pub(super) fn phase_of(
    pod: &Pod,
    statuses: [&[ContainerStatus]; 2],
    terminal: bool,
    initialized: bool,
) -> Phase {
    let Some(spec) = &pod.spec else { return Phase::Pending };
    let status_of = |name: &str| statuses.into_iter().find_map(|list| find_status(list, name));
    let (mut pending_init, mut failed_init) = (false, false);
    let (mut pending_sidecar, mut unknown, mut running, mut waiting) = (false, 0, 0, 0);
    let (mut stopped, mut stopped_for_good, mut succeeded) = (0, 0, 0);

    for container in rules::init_containers(spec) {
        if !is_sidecar(container) {
            match init_state(container.into(), spec, status_of(&container.name)) {
                Init::Done => {}
                Init::Pending => pending_init = true,
                Init::FailedForGood => failed_init = true,
            }
            continue;
        }
        let Some(status) = status_of(&container.name) else {
            unknown += 1;
            continue;
        };
        if is_running(status) {
            pending_sidecar |= status.started != Some(true);
            running += 1;
        } else if terminated(status).is_some() {
            // A terminated sidecar has no influence on the pod's phase.
        } else if is_waiting(status) {
            if last_terminated(status).is_none() {
                pending_sidecar = true;
                waiting += 1;
            }
        } else {
            pending_sidecar = true;
            unknown += 1;
        }
    }

    for container in &spec.containers {
        let Some(status) = status_of(&container.name) else {
            unknown += 1;
            continue;
        };
        let container = SpecContainer::from(container);
        if is_running(status) {
            running += 1;
        } else if let Some(end) = terminated(status) {
            stopped += 1;
            stopped_for_good += usize::from(!container.restarts_after(spec, end));
            succeeded += usize::from(end.exit_code == 0);
        } else if is_waiting(status) {
            match last_terminated(status) {
                Some(end) => {
                    stopped += 1;
                    stopped_for_good += usize::from(!container.restarts_after(spec, end));
                }
                None => waiting += 1,
            }
        } else {
            unknown += 1;
        }
    }

    if failed_init {
        return Phase::Failed;
    }
    // A restarting sidecar does not revert a pod whose app containers have run.
    if pending_init || (pending_sidecar && !initialized) || waiting > 0 {
        return Phase::Pending;
    }
    if unknown > 0 {
        return Phase::Pending;
    }
    if running > 0 {
        return Phase::Running;
    }
    if stopped == 0 {
        return Phase::Pending;
    }
    let ended = if stopped == succeeded { Phase::Succeeded } else { Phase::Failed };
    // In a terminal pod nothing restarts, whatever its policy; static pods follow their policy.
    if (terminal && !rules::is_static(pod)) || stopped == stopped_for_good { ended } else { Phase::Running }
}
