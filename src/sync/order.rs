//! Termination order and grace periods of containers. PURE.
//!
//! [`TerminationOrder`] follows `kuberuntime_termination_order.go`: sidecars stop after the app containers, and
//! the last sidecar of the spec first. [`grace_period`] follows `setTerminationGracePeriod`.

use std::cell::Cell;

use k8s_openapi::api::core::v1::{Container, Probe};

use super::KillReason;
use super::rules::is_sidecar;
use crate::limits::GRACE_SECONDS_MIN;
use crate::model::{ContainerMeta, DesiredPod, Seconds};

/// The order in which the containers of a pod with sidecars stop. Owned by one kill of one pod.
#[derive(Debug)]
pub struct TerminationOrder {
    /// App and init containers by name; `true` once stopped, or when not running at the start.
    stopped: Vec<(Box<str>, Cell<bool>)>,
    /// Sidecars by name, with the indices in `stopped` that they wait for, in order.
    waits: Vec<(Box<str>, Vec<usize>)>,
}

impl TerminationOrder {
    /// `newTerminationOrdering`; `None` for a pod without sidecars, whose containers all stop at once.
    pub fn new(pod: &DesiredPod, running: &[&str]) -> Option<Self> {
        if !pod.init_containers().iter().any(is_sidecar) {
            return None;
        }
        let entry = |container: &Container| {
            let runs = running.contains(&&*container.name);
            (Box::from(&*container.name), Cell::new(!runs))
        };
        let mut stopped: Vec<_> = pod.containers().iter().map(entry).collect();
        let apps = stopped.len();
        let mut waits = Vec::new();
        let mut later: Option<usize> = None;
        for container in pod.init_containers().iter().rev() {
            let place = stopped.len();
            stopped.push(entry(container));
            if is_sidecar(container) {
                // A later sidecar that does not run counts as stopped: the chain ends there.
                waits.push((container.name.as_str().into(), (0..apps).chain(later).collect()));
                later = Some(place);
            }
        }
        Some(Self { stopped, waits })
    }

    /// The containers that this one waits for, running or not.
    pub fn waits_for(&self, name: &str) -> impl Iterator<Item = &str> {
        self.places(name).iter().map(|&place| &*self.stopped[place].0)
    }

    /// The containers that this one waits for and that still run.
    pub fn waits_for_running(&self, name: &str) -> impl Iterator<Item = &str> {
        let places = self.places(name).iter().filter(|&&place| !self.stopped[place].1.get());
        places.map(|&place| &*self.stopped[place].0)
    }

    /// True when none of the containers it waits for runs any more.
    pub fn is_turn_of(&self, name: &str) -> bool {
        self.places(name).iter().all(|&place| self.stopped[place].1.get())
    }

    /// `containerTerminated`: marks the container as stopped.
    pub fn terminated(&self, name: &str) {
        if let Some((_, stopped)) = self.stopped.iter().find(|(known, _)| **known == *name) {
            stopped.set(true);
        }
    }

    fn places(&self, name: &str) -> &[usize] {
        self.waits.iter().find(|(known, _)| **known == *name).map_or(&[], |(_, places)| places)
    }
}

/// The time between a container's stop signal and SIGKILL (`setTerminationGracePeriod`):
///
/// | known | grace |
/// |---|---|
/// | the pod's `deletionGracePeriodSeconds` | that |
/// | the pod's `terminationGracePeriodSeconds`, killed by a probe with its own | the probe's |
/// | the pod's `terminationGracePeriodSeconds` | that |
/// | nothing | the minimum |
pub fn grace_period(pod: &DesiredPod, container: Option<&Container>, reason: KillReason) -> Seconds {
    if let Some(seconds) = pod.pod.metadata.deletion_grace_period_seconds {
        return Seconds(seconds);
    }
    let Some(of_pod) = pod.spec().termination_grace_period_seconds else {
        return Seconds(GRACE_SECONDS_MIN);
    };
    let own = |probe: Option<&Probe>| probe.and_then(|probe| probe.termination_grace_period_seconds);
    let of_probe = match reason {
        KillReason::StartupProbe => own(container.and_then(|c| c.startup_probe.as_ref())),
        KillReason::LivenessProbe => own(container.and_then(|c| c.liveness_probe.as_ref())),
        KillReason::Changed
        | KillReason::FailedPostStartHook
        | KillReason::RestartAllContainers
        | KillReason::Unknown => None,
    };
    Seconds(of_probe.unwrap_or(of_pod))
}

/// The grace period of a container whose pod is no longer known, from the annotations written at its creation
/// (`restoreSpecsFromContainerLabels`).
pub fn restored_grace_period(meta: &ContainerMeta) -> Seconds {
    let known = meta.deletion_grace_period.or(meta.termination_grace_period);
    Seconds(known.unwrap_or(GRACE_SECONDS_MIN))
}
