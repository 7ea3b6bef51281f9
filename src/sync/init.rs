//! What to do for init containers and sidecars (`computeInitContainerActions`). PURE.

use k8s_openapi::api::core::v1::Container;

use super::plan::{Kill, PlanInput, Start, has_another_device, hash_at, needs_restart, start};
use super::resize::Resizes;
use super::rules::{RestartPolicy, container_policy, is_sidecar, pod_policy, should_container_be_restarted};
use super::{KillReason, ProbeResult};
use crate::model::{ContainerKind, ContainerState, ContainerStatus};

pub(super) enum Init {
    /// All init containers have completed or, as sidecars, started; app containers are considered.
    Done,
    /// Some init container has to run first.
    InProgress,
    /// One failed and may not run again.
    Failed,
}

/// `computeInitContainerActions`, from the last init container to the first: finished records may be removed already, so the
/// last one on record says how far the initialisation came. `through` below means "a later init container, or an app
/// container, proves that this one is complete".
///
/// | newest record | init container | sidecar |
/// |---|---|---|
/// | none | nothing | start when `through` |
/// | any, `through` | nothing | as below |
/// | created | start | start |
/// | running | resized: kill, start; else wait | startup unknown: wait; failed: kill, start. Else it is through: start the next, then: definition changed: kill, start; liveness failed: kill, start; resized: kill, start |
/// | exited, failed | start, or fail the pod | start |
/// | exited, done | it is through: start the next | start |
/// | unknown | kill, start, or fail the pod | kill, start |
/// | none at all | start the first | start the first |
///
/// A startup or liveness probe that has no result yet means "wait".
pub(super) fn decide_init_containers(
    input: &PlanInput<'_>,
    kills: &mut Vec<Kill>,
    starts: &mut Vec<Start>,
    resizes: &mut Resizes,
) -> Init {
    let (pod, observed) = (input.pod, input.observed);
    let containers = pod.init_containers();
    if containers.is_empty() {
        return Init::Done;
    }
    // An exited app container proves nothing: it may belong to an earlier sandbox, before a reboot.
    let mut initialised = pod.containers().iter().any(|container| {
        observed.container(&container.name).is_some_and(|status| match status.state {
            ContainerState::Created | ContainerState::Running => true,
            ContainerState::Exited | ContainerState::Unknown => false,
        })
    });
    let mut through = initialised;
    let (first_kill, first_start) = (kills.len(), starts.len());
    let last = containers.len() - 1;
    for (index, container) in containers.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(status) = observed.container(&container.name) else {
            if through && sidecar {
                starts.push(start(input, ContainerKind::Init, index));
            }
            continue;
        };
        if through && !sidecar {
            continue;
        }
        match decide_init_container(input, index, container, status, resizes) {
            InitDecision::Wait => {}
            InitDecision::Start => starts.push(start(input, ContainerKind::Init, index)),
            InitDecision::KillAndStart(kill) => {
                kills.push(kill);
                starts.push(start(input, ContainerKind::Init, index));
            }
            InitDecision::Fail => {
                kills[first_kill..].reverse();
                starts.truncate(first_start);
                return Init::Failed;
            }
            InitDecision::Through(kill) => {
                if index == last {
                    initialised = true;
                } else if !through {
                    starts.push(start(input, ContainerKind::Init, index + 1));
                }
                if let Some(kill) = kill {
                    kills.push(kill);
                    starts.push(start(input, ContainerKind::Init, index));
                }
            }
        }
        through = true;
    }
    if !through {
        starts.push(start(input, ContainerKind::Init, 0));
    }
    // The loop goes backwards; the pod starts in spec order.
    kills[first_kill..].reverse();
    starts[first_start..].reverse();
    if initialised { Init::Done } else { Init::InProgress }
}

enum InitDecision {
    /// It runs, or its probe has no result yet.
    Wait,
    Start,
    KillAndStart(Kill),
    /// It is complete: the next one may start. A running sidecar may have to be replaced all the same.
    Through(Option<Kill>),
    /// It failed and may not restart.
    Fail,
}

fn decide_init_container(
    input: &PlanInput<'_>,
    index: usize,
    container: &Container,
    status: &ContainerStatus,
    resizes: &mut Resizes,
) -> InitDecision {
    let pod = &input.pod.pod;
    let sidecar = is_sidecar(container);
    let kill =
        |reason, message| Kill { id: status.id.clone(), kind: ContainerKind::Init, index, reason, message };
    let name = &container.name;
    match status.state {
        // The runtime failed to start it.
        ContainerState::Created => InitDecision::Start,
        ContainerState::Running if !sidecar => {
            if resizes.look(ContainerKind::Init, index, container, status) {
                return InitDecision::KillAndStart(kill(KillReason::Changed, needs_restart(name)));
            }
            InitDecision::Wait
        }
        ContainerState::Running => {
            if container.startup_probe.is_some() {
                match input.probes.startup.of(&status.id) {
                    Some(ProbeResult::Success) => {}
                    Some(ProbeResult::Failure) => {
                        return InitDecision::KillAndStart(kill(
                            KillReason::StartupProbe,
                            format!("Init container {name} failed startup probe"),
                        ));
                    }
                    Some(ProbeResult::Unknown) | None => return InitDecision::Wait,
                }
            }
            if status.meta.hash != hash_at(&input.pod.init_hashes, index) {
                return InitDecision::Through(Some(kill(
                    KillReason::Changed,
                    format!("Init container {name} definition changed"),
                )));
            }
            let liveness =
                container.liveness_probe.as_ref().and_then(|_| input.probes.liveness.of(&status.id));
            let devices = input.probes.devices.of(&status.id);
            InitDecision::Through(match liveness {
                Some(ProbeResult::Failure) => Some(kill(
                    KillReason::LivenessProbe,
                    format!("Init container {name} failed liveness probe"),
                )),
                _ if devices == Some(ProbeResult::Failure) => {
                    Some(kill(KillReason::Changed, has_another_device(name)))
                }
                // A container whose resources are unknown is not resized either.
                None if container.liveness_probe.is_some() => None,
                Some(ProbeResult::Success | ProbeResult::Unknown) | None => resizes
                    .look(ContainerKind::Init, index, container, status)
                    .then(|| kill(KillReason::Changed, needs_restart(name))),
            })
        }
        ContainerState::Exited if sidecar => InitDecision::Start,
        ContainerState::Exited if !is_init_container_failed(status) => InitDecision::Through(None),
        ContainerState::Exited => {
            if should_container_be_restarted(container, pod, input.observed) {
                InitDecision::Start
            } else {
                InitDecision::Fail
            }
        }
        ContainerState::Unknown => {
            // Rules need an exit code, so only the policies are checked here.
            let policy = container_policy(container).unwrap_or(pod_policy(pod));
            if policy == RestartPolicy::Never {
                return InitDecision::Fail;
            }
            InitDecision::KillAndStart(kill(
                KillReason::Unknown,
                "Init container is in \"unknown\" state, try killing it before restart".to_owned(),
            ))
        }
    }
}

/// `isInitContainerFailed`: a non-zero exit code, or killed for memory whatever the exit code.
fn is_init_container_failed(status: &ContainerStatus) -> bool {
    &*status.reason == "OOMKilled"
        || match status.state {
            ContainerState::Exited => status.exit_code != 0,
            ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Running => false,
        }
}
