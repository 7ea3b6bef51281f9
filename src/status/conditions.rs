//! Pod conditions that the node agent writes (`status/generate.go`). PURE.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};

use super::phase::Phase;
use super::rules::{self, conditions, find_condition, find_status, is_running, terminated};
use crate::model::ObservedPod;
use crate::render::resources::is_sidecar;

const NOT_READY: &str = "ContainersNotReady";
const NOT_INITIALIZED: &str = "ContainersNotInitialized";
const COMPLETED: &str = "PodCompleted";
const FAILED: &str = "PodFailed";

/// A condition without times; the merge sets them.
pub(super) fn condition(kind: &str, holds: bool, generation: Option<i64>) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: (if holds { "True" } else { "False" }).to_owned(),
        observed_generation: generation,
        ..PodCondition::default()
    }
}

fn because(mut condition: PodCondition, reason: &str, message: &str) -> PodCondition {
    condition.reason = Some(reason.to_owned());
    condition.message = (!message.is_empty()).then(|| message.to_owned());
    condition
}

/// `CalculatePodConditionObservedGeneration` with its gate on: the pod's generation, 0 = not shown.
pub(super) fn generation(pod: &Pod) -> Option<i64> {
    pod.metadata.generation.filter(|g| *g != 0)
}

/// `containers with WHAT status: [a b]`, for the non-empty lists.
fn listed(parts: [(&str, &[&str]); 2]) -> String {
    let sentences: Vec<String> = parts
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
        .collect();
    sentences.join(", ")
}

/// Inputs of the conditions.
pub(super) struct Conditions<'a> {
    pub(super) pod: &'a Pod,
    pub(super) spec: &'a PodSpec,
    pub(super) observed: &'a ObservedPod,
    pub(super) old: &'a PodStatus,
    /// Init containers' statuses.
    pub(super) init: &'a [ContainerStatus],
    /// App containers' statuses.
    pub(super) app: &'a [ContainerStatus],
    pub(super) phase: Phase,
}

impl Conditions<'_> {
    fn make(&self, kind: &str, holds: bool) -> PodCondition {
        condition(kind, holds, generation(self.pod))
    }

    /// Init containers' statuses are searched first, as in the kubelet's joined list.
    fn status_of(&self, name: &str) -> Option<&ContainerStatus> {
        find_status(self.init, name).or_else(|| find_status(self.app, name))
    }

    /// `GenerateContainersReadyCondition`.
    pub(super) fn containers_ready(&self, kind: &str) -> PodCondition {
        let sidecars = rules::init_containers(self.spec).iter().filter(|c| is_sidecar(c));
        let (mut unknown, mut unready) = (Vec::new(), Vec::new());
        for container in sidecars.chain(&self.spec.containers) {
            match self.status_of(&container.name) {
                Some(status) if !status.ready => unready.push(container.name.as_str()),
                Some(_) => {}
                None => unknown.push(container.name.as_str()),
            }
        }
        if self.phase == Phase::Succeeded && unknown.is_empty() {
            return because(self.make(kind, false), COMPLETED, "");
        }
        if self.phase == Phase::Failed {
            return because(self.make(kind, false), FAILED, "");
        }
        let message = listed([("unknown", &unknown), ("unready", &unready)]);
        if message.is_empty() {
            self.make(kind, true)
        } else {
            because(self.make(kind, false), NOT_READY, &message)
        }
    }

    /// `GeneratePodReadyCondition`: the containers, then the readiness gates among `known` conditions.
    pub(super) fn ready(&self, known: &[PodCondition]) -> PodCondition {
        let containers = self.containers_ready("Ready");
        if containers.status != "True" {
            return containers;
        }
        let mut messages = Vec::new();
        for gate in self.spec.readiness_gates.iter().flatten() {
            let kind = &gate.condition_type;
            match find_condition(known, kind) {
                None => {
                    messages.push(format!(
                        "corresponding condition of pod readiness gate {kind:?} does not exist."
                    ));
                }
                Some(c) if c.status != "True" => messages.push(format!(
                    "the status of pod readiness gate {kind:?} is not \"True\", but {}",
                    c.status
                )),
                Some(_) => {}
            }
        }
        if messages.is_empty() {
            return containers;
        }
        because(self.make("Ready", false), "ReadinessGatesNotReady", &messages.join(", "))
    }

    /// `GeneratePodInitializedCondition`.
    pub(super) fn initialized(&self) -> PodCondition {
        let kind = "Initialized";
        let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
        for container in rules::init_containers(self.spec) {
            match self.status_of(&container.name) {
                None => unknown.push(container.name.as_str()),
                Some(status) => {
                    let done =
                        if is_sidecar(container) { status.started == Some(true) } else { status.ready };
                    if !done {
                        incomplete.push(container.name.as_str());
                    }
                }
            }
        }
        if self.phase == Phase::Succeeded && unknown.is_empty() {
            return because(self.make(kind, true), COMPLETED, "");
        }
        let message = listed([("unknown", &unknown), ("incomplete", &incomplete)]);
        // Initialised stays initialised: an app container has run, or an in-place restart is in progress.
        let was_initialized = || {
            let app_started = self.init.iter().chain(self.app).any(|s| {
                (is_running(s) || terminated(s).is_some())
                    && self.spec.containers.iter().any(|c| c.name == s.name)
            });
            app_started || rules::holds(conditions(self.old), kind)
        };
        if message.is_empty() || was_initialized() {
            return self.make(kind, true);
        }
        because(self.make(kind, false), NOT_INITIALIZED, &message)
    }

    /// `GeneratePodReadyToStartContainersCondition`.
    pub(super) fn ready_to_start(&self) -> PodCondition {
        self.make("PodReadyToStartContainers", !rules::needs_new_sandbox(self.spec, self.observed))
    }

    /// `GenerateAllContainersRestartingCondition`; without `observedGeneration`, as in the kubelet.
    pub(super) fn all_restarting(&self) -> PodCondition {
        let make = |holds| condition("AllContainersRestarting", holds, None);
        match self.phase {
            Phase::Succeeded => because(make(false), COMPLETED, ""),
            Phase::Failed => because(make(false), FAILED, ""),
            Phase::Pending | Phase::Running => {
                let restarting = rules::should_all_restart(self.spec, self.observed, self.old)
                    && !rules::restart_cleaned_up(self.spec, self.observed);
                if restarting {
                    let message = "container exited with restart policy rule";
                    because(make(true), "RestartAllContainersStarted", message)
                } else {
                    make(false)
                }
            }
        }
    }
}

/// The false `Ready` and `ContainersReady` of a terminal phase (`generate*ForTerminalPhase`).
pub(super) fn not_ready_any_more(kind: &str, pod: &Pod, phase: Phase) -> PodCondition {
    let condition = condition(kind, false, generation(pod));
    match phase {
        Phase::Failed => because(condition, FAILED, ""),
        Phase::Succeeded => because(condition, COMPLETED, ""),
        Phase::Pending | Phase::Running => condition,
    }
}
