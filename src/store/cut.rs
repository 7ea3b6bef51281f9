//! PURE: what is dropped from a status when the store is full.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodCondition, PodStatus};

use crate::limits::{STATUS_ID_BYTES_CUT, STATUS_MESSAGE_BYTES_CUT, STATUS_REASON_BYTES_CUT};

/// How much of a status is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// All of it.
    #[default]
    Whole,
    /// Messages are cut to `STATUS_MESSAGE_BYTES_CUT`.
    Messages,
    /// What the next status and the next start need: phase, reason, start time, address, the conditions without their reasons;
    /// of a container its name, id, state, restart count and last termination.
    Bare,
}

/// Cuts a status. Idempotent.
pub fn cut(status: &mut PodStatus, how: Cut) {
    match how {
        Cut::Whole => {}
        Cut::Messages => cut_messages(status),
        Cut::Bare => bare(status),
    }
}

fn containers(status: &mut PodStatus) -> impl Iterator<Item = &mut ContainerStatus> {
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

fn cut_messages(status: &mut PodStatus) {
    shorten(&mut status.message, STATUS_MESSAGE_BYTES_CUT);
    for condition in status.conditions.iter_mut().flatten() {
        shorten(&mut condition.message, STATUS_MESSAGE_BYTES_CUT);
    }
    for container in containers(status) {
        for state in [&mut container.state, &mut container.last_state].into_iter().flatten() {
            if let Some(waiting) = &mut state.waiting {
                shorten(&mut waiting.message, STATUS_MESSAGE_BYTES_CUT);
            }
            if let Some(end) = &mut state.terminated {
                shorten(&mut end.message, STATUS_MESSAGE_BYTES_CUT);
            }
        }
    }
}

fn bare(status: &mut PodStatus) {
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        bare_container(container);
    }
    let conditions =
        status.conditions.take().map(|list| list.into_iter().filter_map(bare_condition).collect());
    shorten(&mut status.reason, STATUS_REASON_BYTES_CUT);
    *status = PodStatus {
        phase: status.phase.take(),
        reason: status.reason.take(),
        start_time: status.start_time.take(),
        observed_generation: status.observed_generation,
        pod_ip: status.pod_ip.take().filter(|ip| ip.len() <= STATUS_REASON_BYTES_CUT),
        qos_class: status.qos_class.take(),
        conditions,
        container_statuses: status.container_statuses.take(),
        init_container_statuses: status.init_container_statuses.take(),
        ephemeral_container_statuses: status.ephemeral_container_statuses.take(),
        ..PodStatus::default()
    };
}

/// Conditions of other clients come again with the pod from its source.
fn bare_condition(condition: PodCondition) -> Option<PodCondition> {
    crate::status::is_known_condition(&condition.type_).then(|| PodCondition {
        type_: condition.type_,
        status: condition.status,
        last_transition_time: condition.last_transition_time,
        ..PodCondition::default()
    })
}

fn bare_container(container: &mut ContainerStatus) {
    for state in [&mut container.state, &mut container.last_state].into_iter().flatten() {
        bare_state(state);
    }
    *container = ContainerStatus {
        name: std::mem::take(&mut container.name),
        container_id: container.container_id.take().filter(|id| id.len() <= STATUS_ID_BYTES_CUT),
        state: container.state.take(),
        last_state: container.last_state.take(),
        ready: container.ready,
        started: container.started,
        restart_count: container.restart_count,
        ..ContainerStatus::default()
    };
}

fn bare_state(state: &mut ContainerState) {
    if let Some(waiting) = &mut state.waiting {
        waiting.message = None;
        shorten(&mut waiting.reason, STATUS_REASON_BYTES_CUT);
    }
    if let Some(end) = &mut state.terminated {
        end.message = None;
        shorten(&mut end.reason, STATUS_REASON_BYTES_CUT);
        // `status::restarts` needs only that there was a container of this termination, not its id.
        end.container_id = end.container_id.take().map(|_| String::new());
    }
}

fn shorten(text: &mut Option<String>, bytes_max: usize) {
    if let Some(text) = text.as_mut().filter(|text| text.len() > bytes_max) {
        crate::text::cut(text, bytes_max);
    }
}
