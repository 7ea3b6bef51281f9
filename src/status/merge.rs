//! PURE: the status manager's changes to a new status before it is shown, stored or sent.
//!
//! [`update`] sets times and generation relative to the status shown last and reports whether anything changed
//! (`updateStatusInternal`); [`terminate`] closes a terminated pod (`TerminatePod`); [`for_api`] merges our status with the
//! API server's copy (`mergePodStatus`).

use std::fmt;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodSpec,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::conditions::not_ready_any_more;
use super::phase::Phase;
use super::rules::{
    self, STATUS_UNKNOWN, SpecContainer, conditions, find_condition, find_status, is_own_condition,
    is_running, is_waiting, last_terminated, terminated,
};
use super::time;
use crate::limits::TERMINATION_MESSAGES_BYTES_MAX;
use crate::model::Wall;
use crate::render::resources::is_sidecar;

/// The condition that both the node agent and other components write.
pub(super) const SHARED_CONDITION: &str = "DisruptionTarget";

/// The conditions whose `lastTransitionTime` is set here; those of other components keep theirs.
const TIMED_CONDITIONS: [&str; 7] = [
    "ContainersReady",
    "Ready",
    "Initialized",
    "PodReadyToStartContainers",
    "PodScheduled",
    SHARED_CONDITION,
    "AllContainersRestarting",
];

/// A status that would revert a final termination of a container: the status shown last stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IllegalTransition {
    /// An app container that must not restart is no longer terminated.
    App(String),
    /// An init container that must not restart is no longer terminated.
    Init(String),
    /// The shown init containers differ from the spec's.
    Mismatch(String),
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::App(name) => {
                write!(f, "terminated container {name} attempted illegal transition to non-terminated state")
            }
            Self::Init(name) => {
                write!(
                    f,
                    "terminated init container {name} attempted illegal transition to non-terminated state"
                )
            }
            Self::Mismatch(name) => {
                write!(f, "found mismatch between pod spec and status, container: {name}")
            }
        }
    }
}

impl std::error::Error for IllegalTransition {}

/// Completes `status`, newly made by [`super::pod_status`], against the status shown last.
///
/// `cached` = the status shown last (`None`: none yet; then the pod's own status is used). A condition's
/// `lastTransitionTime` changes only with its status; `startTime` is set once; times are truncated to seconds;
/// `observedGeneration` never decreases; termination messages share [`TERMINATION_MESSAGES_BYTES_MAX`]. `Ok(None)` = nothing
/// changed, keep showing `cached`; a pod being deleted always counts as changed, as its pod worker waits for that.
pub fn update(
    pod: &Pod,
    cached: Option<&PodStatus>,
    mut status: PodStatus,
    now: Wall,
) -> Result<Option<PodStatus>, IllegalTransition> {
    status.observed_generation = pod.metadata.generation.filter(|g| *g != 0);
    complete(pod, cached, &mut status, now)?;
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let same = cached.is_some_and(|shown| is_same(shown, &status));
    Ok(if same && !deleted { None } else { Some(status) })
}

/// The final status of a terminated pod: every container that may have run is terminated, and the phase is terminal (a
/// static pod's is unchanged, as in the kubelet).
///
/// Differs from the kubelet (`hasPodInitialized`): the status shown last is considered besides the API's copy, which a
/// static pod does not have.
pub fn terminate(pod: &Pod, cached: Option<&PodStatus>, now: Wall) -> Result<PodStatus, IllegalTransition> {
    let none = PodStatus::default();
    let api_status = pod.status.as_ref().unwrap_or(&none);
    let mut status = cached.unwrap_or(api_status).clone();
    let spec = pod.spec.as_ref();

    if spec.is_none_or(|spec| has_initialized(spec, api_status) || has_initialized(spec, &status)) {
        status.container_statuses.iter_mut().flatten().for_each(end_unseen);
    }
    let init = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let tried =
        init.iter().rposition(|s| !is_waiting(s) || last_terminated(s).is_some()).map_or(1, |last| last + 1);
    init.iter_mut().take(tried).for_each(end_unseen);

    if !rules::is_static(pod) && Phase::terminal(status.phase.as_deref()).is_none() {
        status.phase = Some(Phase::Failed.as_str().to_owned());
    }
    complete(pod, cached, &mut status, now)?;
    Ok(status)
}

/// True when a stored status belongs to the pod as it is now: its init containers are the spec's, in the same order. (A
/// manifest with its own UID may have changed in any way while no agent ran.)
pub fn is_of(pod: &Pod, kept: &PodStatus) -> bool {
    let shown = kept.init_container_statuses.as_deref().unwrap_or_default();
    let wanted = pod.spec.as_ref().map(rules::init_containers).unwrap_or_default();
    shown.len() <= wanted.len()
        && shown.iter().zip(wanted).all(|(status, container)| status.name == container.name)
}

/// Merges our `new` status with the API server's `old` one: conditions of other components are the API's, and the pod does
/// not become terminal there while containers of it may still run.
pub fn for_api(pod: &Pod, old: &PodStatus, mut new: PodStatus, may_run: bool, now: Wall) -> PodStatus {
    let ending =
        Phase::terminal(old.phase.as_deref()).is_none() && Phase::terminal(new.phase.as_deref()).is_some();
    let mut joined: Vec<PodCondition> =
        conditions(old).iter().filter(|c| !is_own_condition(&c.type_)).cloned().collect();
    for condition in new.conditions.take().unwrap_or_default() {
        if is_own_condition(&condition.type_) {
            joined.push(condition);
        } else if condition.type_ == SHARED_CONDITION && ending && !may_run {
            // Its time is out of date: sending it waited until the containers had terminated.
            replace_or_push(&mut joined, timed(condition, old, now));
        }
    }
    new.conditions = Some(joined);
    new.resource_claim_statuses.clone_from(&old.resource_claim_statuses);
    new.extended_resource_claim_status.clone_from(&old.extended_resource_claim_status);
    new.node_allocatable_resource_claim_statuses.clone_from(&old.node_allocatable_resource_claim_statuses);
    if ending && may_run {
        new.phase.clone_from(&old.phase);
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
    // A terminal phase is never shown together with "ready".
    if let Some(phase) = Phase::terminal(new.phase.as_deref()) {
        let list = new.conditions.get_or_insert_default();
        let is_true = |kind| find_condition(list, kind).is_some_and(|c| c.status == "True");
        if is_true("Ready") || is_true("ContainersReady") {
            for kind in ["ContainersReady", "Ready"] {
                let mut condition = not_ready_any_more(kind, pod, phase);
                let there = find_condition(list, kind);
                condition.last_transition_time = match there {
                    Some(there) if there.status == condition.status => there.last_transition_time.clone(),
                    _ => time(now),
                };
                replace_or_push(list, condition);
            }
        }
    }
    new
}

fn replace_or_push(list: &mut Vec<PodCondition>, condition: PodCondition) {
    match list.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(there) => *there = condition,
        None => list.push(condition),
    }
}

/// `updateLastTransitionTime`.
fn timed(mut condition: PodCondition, old: &PodStatus, now: Wall) -> PodCondition {
    condition.last_transition_time = match find_condition(conditions(old), &condition.type_) {
        Some(before) if before.status == condition.status => before.last_transition_time.clone(),
        _ => time(now),
    };
    condition
}

/// The steps of `updateStatusInternal` for every status.
fn complete(
    pod: &Pod,
    cached: Option<&PodStatus>,
    status: &mut PodStatus,
    now: Wall,
) -> Result<(), IllegalTransition> {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let old = cached.or(pod.status.as_ref()).unwrap_or(&no_status);
    check_transitions(spec, old, status)?;

    for kind in TIMED_CONDITIONS {
        if let Some(condition) = status.conditions.iter_mut().flatten().find(|c| c.type_ == kind) {
            *condition = timed(std::mem::take(condition), old, now);
        }
    }
    if old.start_time.is_some() {
        status.start_time.clone_from(&old.start_time);
    } else if status.start_time.is_none() {
        status.start_time = time(now);
    }
    status.observed_generation = status.observed_generation.max(old.observed_generation);
    normalise(spec, status);
    Ok(())
}

/// `checkContainerStateTransition`.
fn check_transitions(spec: &PodSpec, old: &PodStatus, new: &PodStatus) -> Result<(), IllegalTransition> {
    let policy = spec.restart_policy.as_deref();
    if policy == Some("Always") || rules::all_could_restart(spec) {
        return Ok(());
    }
    let left_its_end = |before: &ContainerStatus, containers: &[Container], now: &[ContainerStatus]| {
        let Some(end) = terminated(before) else { return false };
        if end.exit_code != 0 && policy == Some("OnFailure") {
            return false;
        }
        let restarts = containers
            .iter()
            .any(|c| c.name == before.name && SpecContainer::from(c).should_restart(spec, end.exit_code));
        !restarts && find_status(now, &before.name).is_some_and(|after| terminated(after).is_none())
    };

    let now = new.container_statuses.as_deref().unwrap_or_default();
    for before in old.container_statuses.iter().flatten() {
        if left_its_end(before, &spec.containers, now) {
            return Err(IllegalTransition::App(before.name.clone()));
        }
    }
    let init = rules::init_containers(spec);
    let now = new.init_container_statuses.as_deref().unwrap_or_default();
    for (index, before) in old.init_container_statuses.iter().flatten().enumerate() {
        let Some(container) = init.get(index).filter(|c| c.name == before.name) else {
            return Err(IllegalTransition::Mismatch(before.name.clone()));
        };
        if !is_sidecar(container) && left_its_end(before, init, now) {
            return Err(IllegalTransition::Init(before.name.clone()));
        }
    }
    Ok(())
}

/// `hasPodInitialized`: some app container is no longer waiting for the first time, or the last init container is complete.
fn has_initialized(spec: &PodSpec, status: &PodStatus) -> bool {
    let init = rules::init_containers(spec);
    if init.is_empty() {
        return true;
    }
    let app = status.container_statuses.iter().flatten();
    if app.into_iter().any(|s| last_terminated(s).is_some() || !is_waiting(s)) {
        return true;
    }
    let statuses = status.init_container_statuses.as_deref().unwrap_or_default();
    let Some(last) = statuses.last() else { return false };
    match init.get(statuses.len() - 1).filter(|c| c.name == last.name) {
        None => false,
        Some(container) if is_sidecar(container) => is_running(last) && last.started == Some(true),
        Some(_) => {
            [last_terminated(last), terminated(last)].into_iter().flatten().any(|end| end.exit_code == 0)
        }
    }
}

/// The container's end was not observed, so it counts as failed.
fn end_unseen(status: &mut ContainerStatus) {
    if terminated(status).is_some() {
        return;
    }
    status.state = Some(ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some(STATUS_UNKNOWN.to_owned()),
            message: Some("The container could not be located when the pod was terminated".to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    });
}

/// `normalizeStatus`: whole seconds, a fixed order, and messages within the pod's limit.
fn normalise(spec: &PodSpec, status: &mut PodStatus) {
    let ephemeral = spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
    let containers = spec.containers.len() + rules::init_containers(spec).len() + ephemeral;
    let message_bytes = TERMINATION_MESSAGES_BYTES_MAX / containers.max(1);

    whole_seconds(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        whole_seconds(&mut condition.last_probe_time);
        whole_seconds(&mut condition.last_transition_time);
    }
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        for state in [&mut container.state, &mut container.last_state].into_iter().flatten() {
            if let Some(running) = &mut state.running {
                whole_seconds(&mut running.started_at);
            }
            if let Some(end) = &mut state.terminated {
                whole_seconds(&mut end.started_at);
                whole_seconds(&mut end.finished_at);
                if let Some(message) = end.message.as_mut().filter(|m| m.len() > message_bytes) {
                    crate::text::cut(message, message_bytes);
                }
            }
        }
    }
    let by_name = [&mut status.container_statuses, &mut status.ephemeral_container_statuses];
    for statuses in by_name.into_iter().flatten() {
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let place = |name: &str| rules::init_containers(spec).iter().position(|c| c.name == name);
    if let Some(statuses) = &mut status.init_container_statuses {
        statuses.sort_by_key(|s| place(&s.name));
    }
}

fn whole_seconds(time: &mut Option<Time>) {
    if let Some(Time(at)) = time {
        *at = Timestamp::from_second(at.as_second()).unwrap_or(*at);
    }
}

/// `isPodStatusByKubeletEqual`: equal in all fields that we write; conditions without their times and generations.
fn is_same(a: &PodStatus, b: &PodStatus) -> bool {
    let ours = |c: &&PodCondition| is_own_condition(&c.type_) || c.type_ == SHARED_CONDITION;
    let count = |status| conditions(status).iter().filter(ours).count();
    let all_alike = conditions(b).iter().filter(ours).all(|new| {
        find_condition(conditions(a), &new.type_).is_some_and(|old| {
            old.status == new.status && old.message == new.message && old.reason == new.reason
        })
    });
    if count(a) != count(b) || !all_alike {
        return false;
    }
    // Destructured, so that a field added to the API is not forgotten here.
    let PodStatus {
        allocated_resources,
        conditions: _,
        container_statuses,
        ephemeral_container_statuses,
        extended_resource_claim_status: _,
        host_ip,
        host_ips,
        init_container_statuses,
        message,
        node_allocatable_resource_claim_statuses: _,
        nominated_node_name,
        observed_generation,
        phase,
        pod_ip,
        pod_ips,
        qos_class,
        reason,
        resize,
        resource_claim_statuses: _,
        resources,
        start_time,
    } = a;
    *phase == b.phase
        && *reason == b.reason
        && *message == b.message
        && *container_statuses == b.container_statuses
        && *init_container_statuses == b.init_container_statuses
        && *ephemeral_container_statuses == b.ephemeral_container_statuses
        && *pod_ip == b.pod_ip
        && *pod_ips == b.pod_ips
        && *host_ip == b.host_ip
        && *host_ips == b.host_ips
        && *qos_class == b.qos_class
        && *resources == b.resources
        && *allocated_resources == b.allocated_resources
        && *observed_generation == b.observed_generation
        && *nominated_node_name == b.nominated_node_name
        && *resize == b.resize
        && *start_time == b.start_time
}

#[cfg(test)]
mod tests;
