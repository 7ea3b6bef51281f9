//! Restart policies and rules: may a container start again? PURE.
//!
//! Rules apply only to a container with its own restart policy, and only after it has exited.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::model::{ContainerState, DesiredPod, ObservedPod};

/// `ShouldAllContainersRestart` on what the runtime reports: some init or app container's newest record exited
/// with a code whose rule says `RestartAllContainers`.
///
/// The other half of the kubelet's function, a pod that is already marked in its status, is up to the caller: a restart
/// continues until [`all_containers_restart_cleaned_up`].
pub fn should_all_containers_restart(pod: &DesiredPod, observed: &ObservedPod) -> bool {
    pod.init_containers().iter().chain(pod.containers()).any(|container| {
        observed.container(&container.name).is_some_and(|status| match status.state {
            ContainerState::Exited => asks_to_restart_all(container, status.exit_code),
            ContainerState::Created | ContainerState::Running | ContainerState::Unknown => false,
        })
    })
}

/// `AllContainersRestartCleanedUp`: no init or app container is on record any more.
pub fn all_containers_restart_cleaned_up(pod: &DesiredPod, observed: &ObservedPod) -> bool {
    let mut containers = pod.init_containers().iter().chain(pod.containers());
    containers.all(|container| observed.container(&container.name).is_none())
}

/// `ShouldContainerBeRestarted`, for a container that is not running.
pub fn should_container_be_restarted(container: &Container, pod: &Pod, observed: &ObservedPod) -> bool {
    if is_deleted(pod) {
        return false;
    }
    let Some(status) = observed.container(&container.name) else { return true };
    match status.state {
        ContainerState::Running => false,
        ContainerState::Unknown | ContainerState::Created => true,
        ContainerState::Exited => restarts_after(container, pod, status.exit_code),
    }
}

/// `ContainerShouldRestart`: the container's matching rule, else its policy, else the pod's.
fn restarts_after(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    let own = container_policy(container);
    // Rules apply only to a container with its own restart policy.
    if own.is_some() {
        match matching_rule(container, exit_code) {
            Some(RuleAction::Restart | RuleAction::RestartAllContainers) => return true,
            Some(RuleAction::Other) | None => {}
        }
    }
    match own.unwrap_or(pod_policy(pod)) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

pub(super) fn asks_to_restart_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code) == Some(RuleAction::RestartAllContainers)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleAction {
    Restart,
    RestartAllContainers,
    /// An action that this version does not know: the rule matches and has no effect.
    Other,
}

/// `FindMatchingContainerRestartRule`: the first rule that matches.
fn matching_rule(container: &Container, exit_code: i32) -> Option<RuleAction> {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let rule = rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
            match &*codes.operator {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })?;
    Some(match &*rule.action {
        "Restart" => RuleAction::Restart,
        "RestartAllContainers" => RuleAction::RestartAllContainers,
        _ => RuleAction::Other,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// The pod's restart policy; Always when unset or unknown to the API.
pub(super) fn pod_policy(pod: &Pod) -> RestartPolicy {
    let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    policy.and_then(RestartPolicy::parse).unwrap_or(RestartPolicy::Always)
}

/// The container's own restart policy, if it has one that the API knows.
pub(super) fn container_policy(container: &Container) -> Option<RestartPolicy> {
    container.restart_policy.as_deref().and_then(RestartPolicy::parse)
}

/// `IsRestartableInitContainer`.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

pub(super) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
