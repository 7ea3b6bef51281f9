//! Rules shared by several parts of the status: restart rules, sidecars, lookups by name, the sandbox. PURE.

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod,
    PodCondition, PodSpec, PodStatus, ResourceRequirements, VolumeMount,
};

use crate::model::{ContainerState, NamespaceMode, ObservedPod, SandboxState};

/// `kubecontainer.ContainerReasonStatusUnknown`: the runtime lost the container.
pub(super) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// The reason of containers removed to restart the pod in place.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// The restart rule's action that restarts the whole pod in place.
const RESTART_ALL_ACTION: &str = "RestartAllContainers";

/// The fields of a container's spec that the status needs, the same for app, init and ephemeral containers.
#[derive(Clone, Copy)]
pub(super) struct SpecContainer<'a> {
    pub(super) name: &'a str,
    pub(super) image: &'a str,
    pub(super) restart_policy: Option<&'a str>,
    pub(super) rules: &'a [ContainerRestartRule],
    pub(super) resources: Option<&'a ResourceRequirements>,
    pub(super) volume_mounts: &'a [VolumeMount],
}

impl<'a> From<&'a Container> for SpecContainer<'a> {
    fn from(c: &'a Container) -> Self {
        Self {
            name: &c.name,
            image: c.image.as_deref().unwrap_or(""),
            restart_policy: c.restart_policy.as_deref(),
            rules: c.restart_policy_rules.as_deref().unwrap_or_default(),
            resources: c.resources.as_ref(),
            volume_mounts: c.volume_mounts.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> From<&'a EphemeralContainer> for SpecContainer<'a> {
    fn from(c: &'a EphemeralContainer) -> Self {
        Self {
            name: &c.name,
            image: c.image.as_deref().unwrap_or(""),
            restart_policy: c.restart_policy.as_deref(),
            rules: c.restart_policy_rules.as_deref().unwrap_or_default(),
            resources: c.resources.as_ref(),
            volume_mounts: c.volume_mounts.as_deref().unwrap_or_default(),
        }
    }
}

impl SpecContainer<'_> {
    /// `FindMatchingContainerRestartRule`: the action of the first rule that matches the exit code.
    fn rule_action(&self, exit_code: i32) -> Option<&str> {
        let named = |rule: &&ContainerRestartRule| {
            let Some(codes) = &rule.exit_codes else { return false };
            let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        };
        self.rules.iter().find(named).map(|rule| rule.action.as_str())
    }

    /// `ContainerShouldRestart`: rules (only with the container's own policy), the container's policy, the pod's policy.
    pub(super) fn should_restart(&self, spec: &PodSpec, exit_code: i32) -> bool {
        if let Some(policy) = self.restart_policy {
            if matches!(self.rule_action(exit_code), Some("Restart" | RESTART_ALL_ACTION)) {
                return true;
            }
            match policy {
                "Always" => return true,
                "OnFailure" => return exit_code != 0,
                "Never" => return false,
                _ => {}
            }
        }
        match spec.restart_policy.as_deref() {
            Some("OnFailure") => exit_code != 0,
            Some("Never") => false,
            _ => true,
        }
    }

    /// The same, but a container stopped by an in-place restart of the pod always restarts.
    pub(super) fn restarts_after(&self, spec: &PodSpec, end: &ContainerStateTerminated) -> bool {
        self.should_restart(spec, end.exit_code) || end.reason.as_deref() == Some(RESTARTING_ALL)
    }

    fn restarts_all_on(&self, exit_code: i32) -> bool {
        self.rule_action(exit_code) == Some(RESTART_ALL_ACTION)
    }
}

pub(super) fn init_containers(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

/// True for a static pod, from a manifest file or URL, not from the API (`kubetypes.IsStaticPod`).
pub(super) fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get("kubernetes.io/config.source")).is_some_and(|source| source != "api")
}

/// `PodConditionByKubelet`: the conditions that this agent writes; all others belong to other components and are kept.
pub(super) fn is_own_condition(kind: &str) -> bool {
    matches!(
        kind,
        "PodScheduled"
            | "Ready"
            | "Initialized"
            | "ContainersReady"
            | "PodResizeInProgress"
            | "PodResizePending"
            | "PodReadyToStartContainers"
            | "AllContainersRestarting"
    )
}

pub(super) fn find_condition<'a>(conditions: &'a [PodCondition], kind: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// True when any condition of that type is true: lists from other components may have a type twice.
pub(super) fn holds(conditions: &[PodCondition], kind: &str) -> bool {
    conditions.iter().any(|c| c.type_ == kind && c.status == "True")
}

pub(super) fn conditions(status: &PodStatus) -> &[PodCondition] {
    status.conditions.as_deref().unwrap_or_default()
}

pub(super) fn find_status<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|s| s.name == name)
}

pub(super) fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref().and_then(|s| s.terminated.as_ref())
}

pub(super) fn last_terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref().and_then(|s| s.terminated.as_ref())
}

pub(super) fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

pub(super) fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.waiting.is_some())
}

/// `ShouldAllContainersRestart`: a container exited with a code whose rule restarts the whole pod, or such a restart is in
/// progress.
pub(super) fn should_all_restart(spec: &PodSpec, observed: &ObservedPod, old: &PodStatus) -> bool {
    if holds(conditions(old), "AllContainersRestarting") {
        return true;
    }
    init_containers(spec).iter().chain(&spec.containers).any(|c| {
        // The kubelet checks the shown status only when the runtime's newest record has exited too.
        let Some(record) = observed.container(&c.name).filter(|r| r.state == ContainerState::Exited) else {
            return false;
        };
        let container = SpecContainer::from(c);
        if container.restarts_all_on(record.exit_code) {
            return true;
        }
        // In the kubelet's map the last of a name wins, app containers after init containers.
        let shown = [&old.container_statuses, &old.init_container_statuses];
        let mut shown = shown.into_iter().flat_map(|list| list.iter().flatten().rev());
        shown
            .find(|s| s.name == c.name)
            .and_then(terminated)
            .is_some_and(|end| container.restarts_all_on(end.exit_code))
    })
}

/// `AllContainersRestartCleanedUp`: no record of any container is left.
pub(super) fn restart_cleaned_up(spec: &PodSpec, observed: &ObservedPod) -> bool {
    init_containers(spec).iter().chain(&spec.containers).all(|c| observed.container(&c.name).is_none())
}

/// `AllContainersCouldRestart`: some rule of the pod restarts all containers.
pub(super) fn all_could_restart(spec: &PodSpec) -> bool {
    init_containers(spec)
        .iter()
        .chain(&spec.containers)
        .flat_map(|c| c.restart_policy_rules.as_deref().unwrap_or_default())
        .any(|rule| rule.action == RESTART_ALL_ACTION)
}

/// `HasAnyActiveRegularContainerStarted`: an app container has a record in the ready newest sandbox.
pub(super) fn any_app_active(spec: &PodSpec, observed: &ObservedPod) -> bool {
    let Some(sandbox) = observed.sandboxes.first().filter(|s| s.state == SandboxState::Ready) else {
        return false;
    };
    observed.containers.iter().any(|record| {
        record.sandbox_id == sandbox.id && spec.containers.iter().any(|c| *c.name == *record.name)
    })
}

/// `HasAnyRegularContainerCreated`: an app container was created once, so the init containers are complete.
pub(super) fn any_app_created(spec: &PodSpec, observed: &ObservedPod) -> bool {
    spec.containers
        .iter()
        .any(|c| observed.container(&c.name).is_some_and(|record| record.state != ContainerState::Unknown))
}

/// `PodSandboxChanged`, its first result: no sandbox that the pod's containers could start in.
pub(super) fn needs_new_sandbox(spec: &PodSpec, observed: &ObservedPod) -> bool {
    let ready = observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    let Some(newest) = observed.sandboxes.first() else { return true };
    if ready > 1 || newest.state != SandboxState::Ready {
        return true;
    }
    let on_host = spec.host_network == Some(true);
    let wanted = if on_host { NamespaceMode::Node } else { NamespaceMode::Pod };
    newest.network_namespace.unwrap_or(NamespaceMode::Pod) != wanted
        || !on_host && newest.network.as_ref().is_some_and(|network| network.ip.is_empty())
}
