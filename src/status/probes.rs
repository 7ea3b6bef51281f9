//! `started` and `ready` from probe results (prober manager `UpdatePodStatus`). PURE.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use super::rules::{self, conditions, is_running, terminated};
use super::{StatusInput, StatusProbe, nanos};
use crate::render::resources::is_sidecar;

/// A container that started this long before the agent counts as started before it (`kubeletRestartGracePeriod`).
const AGENT_START_GRACE_NS: i64 = 10_000_000_000;

/// The id without the runtime's name as prefix (`ParseContainerID`).
pub(super) fn bare_id(status: &ContainerStatus) -> &str {
    let id = status.container_id.as_deref().unwrap_or("");
    id.split_once("://").map_or(id, |(_, bare)| bare)
}

/// `isContainerStarted`.
fn is_started(input: &StatusInput<'_>, status: &ContainerStatus) -> bool {
    if !is_running(status) {
        return false;
    }
    if let Some(success) = input.facts.probe_result(StatusProbe::Startup, bare_id(status)) {
        return success;
    }
    // Shown as started before the agent's restart, or no startup probe is still to run.
    status.started == Some(true) || !input.facts.probe_worker(StatusProbe::Startup, &status.name)
}

/// `ready` of a started, running container.
fn is_ready(input: &StatusInput<'_>, status: &ContainerStatus, container: Option<&Container>) -> bool {
    let result = input.facts.probe_result(StatusProbe::Readiness, bare_id(status));
    if result == Some(true) {
        return true;
    }
    let ready = !input.facts.probe_worker(StatusProbe::Readiness, &status.name);
    let Some(container) = container else { return ready };

    // setReadyStateOnKubeletRestart: a container that ran before the agent keeps the shown value until its probe has a
    // result.
    let started_at = status
        .state
        .as_ref()
        .and_then(|s| s.running.as_ref())
        .and_then(|r| r.started_at.as_ref())
        .map_or(i64::MAX, |time| nanos(time).0);
    if started_at >= input.agent_start.0.saturating_sub(AGENT_START_GRACE_NS) {
        return ready;
    }
    let was_ready = || {
        let shown = input.pod.status.as_ref().map(conditions).unwrap_or_default();
        rules::holds(shown, "Ready")
    };
    (ready || result.is_none()) && (container.readiness_probe.is_none() || was_ready())
}

/// Sets `started` and `ready` of app and init containers; ephemeral ones have neither.
pub(super) fn apply(input: &StatusInput<'_>, status: &mut PodStatus) {
    let Some(spec) = &input.pod.spec else { return };
    for status in status.container_statuses.iter_mut().flatten() {
        let started = is_started(input, status);
        status.started = Some(started);
        if started {
            let container = spec.containers.iter().find(|c| c.name == status.name);
            status.ready = is_ready(input, status, container);
        }
    }
    for (index, status) in status.init_container_statuses.iter_mut().flatten().enumerate() {
        let started = is_started(input, status);
        status.started = Some(started);
        let Some(container) = rules::init_containers(spec).get(index).filter(|c| c.name == status.name)
        else {
            continue;
        };
        if !is_sidecar(container) {
            status.ready |= terminated(status).is_some_and(|end| end.exit_code == 0);
        } else if started {
            status.ready = is_ready(input, status, Some(container));
        }
    }
}
