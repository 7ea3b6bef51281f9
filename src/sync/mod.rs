//! The sync of one pod: decide what to do, then do it.
//!
//! ```text
//!     desired ─┐
//!     observed ┼─► plan (PURE) ──► Plan ──► act ──► CRI calls ──► Outcome ──► the loop
//!     probes   │                             ├─ start   one container, its images before it
//!     backoff ─┘                             └─ kill    containers in order, sandboxes, the whole pod
//! ```
//!
//! `plan` and `backoff` read no clock and do no I/O; `act`, `start` and `kill` are tasks that get a snapshot and return an
//! outcome. The types they share are defined here.

use std::fmt;

use crate::limits::PROBED_CONTAINERS_MAX;
use crate::model::ContainerId;

pub mod act;
mod actuate;
pub(crate) mod files;
mod images;
mod init;
pub mod kill;
pub mod order;
pub mod outcome;
pub mod overtaken;
pub mod plan;
pub mod resize;
pub mod rules;
pub(crate) mod sandbox;
pub mod start;
pub mod start_limiter;
pub mod worker;

/// Latest result of a container's probe (`proberesults.Result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeResult {
    /// The container is alive, or has started.
    Success,
    /// The container is to be killed.
    Failure,
    /// The probe ran and came to no result.
    Unknown,
}

/// Results of one kind of probe by container id; a missing id has no result yet.
///
/// At most [`PROBED_CONTAINERS_MAX`] containers. Full: the oldest entry is dropped and counts as "no result yet" until its
/// probe runs again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults(Vec<(ContainerId, ProbeResult)>);

impl ProbeResults {
    /// The result of that container's probe, if it has one.
    pub fn of(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.0.iter().find(|(known, _)| known == id).map(|(_, result)| *result)
    }

    /// Records a result.
    pub fn set(&mut self, id: &ContainerId, result: ProbeResult) {
        if let Some((_, known)) = self.0.iter_mut().find(|(known, _)| known == id) {
            *known = result;
            return;
        }
        if self.0.len() == PROBED_CONTAINERS_MAX {
            self.0.remove(0);
        }
        self.0.push((id.clone(), result));
    }

    /// Forgets a removed container.
    pub fn forget(&mut self, id: &ContainerId) {
        self.0.retain(|(known, _)| known != id);
    }
}

/// The probe results that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Of liveness probes.
    pub liveness: ProbeResults,
    /// Of startup probes.
    pub startup: ProbeResults,
    /// `Failure` of a container with a device volume behind which there is another device now.
    pub devices: ProbeResults,
}

/// Why a container is killed (`containerKillReason`); selects the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KillReason {
    /// Its definition changed: the kubelet records no reason then.
    Changed,
    /// Its liveness probe failed.
    LivenessProbe,
    /// Its startup probe failed.
    StartupProbe,
    /// Its postStart hook failed.
    FailedPostStartHook,
    /// A container restart rule requested the restart of all containers of the pod.
    RestartAllContainers,
    /// Every other case, including the pod's termination.
    Unknown,
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "",
            Self::LivenessProbe => "LivenessProbe",
            Self::StartupProbe => "StartupProbe",
            Self::FailedPostStartHook => "FailedPostStartHook",
            Self::RestartAllContainers => "RestartAllContainers",
            Self::Unknown => "Unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_of_results_loses_its_oldest() {
        let id = |n: usize| ContainerId::from(format!("c{n}"));
        let mut results = ProbeResults::default();
        for n in 0..=PROBED_CONTAINERS_MAX {
            results.set(&id(n), ProbeResult::Success);
        }
        assert_eq!(results.of(&id(0)), None);
        results.set(&id(1), ProbeResult::Failure);
        assert_eq!(results.of(&id(1)), Some(ProbeResult::Failure), "a known container is updated in place");
        assert_eq!(results.of(&id(2)), Some(ProbeResult::Success));
        results.forget(&id(1));
        assert_eq!(results.of(&id(1)), None);
    }
}
