//! Set `compute_pod_actions`: `kubeGenericRuntimeManager.computePodActions`.

use serde_json::{Value, json};
use smolet::limits::CRASH_BACKOFF_MAX;
use smolet::model::backoff::Backoff;
use smolet::model::{ContainerKind, DesiredPod, Mono, Now, SandboxId, Wall};
use smolet::sync::plan::{Kill, Plan, PlanInput, PodAction, SandboxStep, plan};

use crate::pod_input::{desired, observed, probes};
use crate::{Case, run_set};

#[test]
fn compute_pod_actions() {
    run_set("compute_pod_actions", |case| {
        let (pod, plan) = plan_of(case, false);
        actions(&pod, &plan)
    });
}

/// The plan of a case whose set has no clock: nothing is in back-off.
pub fn plan_of(case: &Case, restart_all: bool) -> (DesiredPod, Plan) {
    let now = Now { mono: Mono(0), wall: Wall(0) };
    let pod = desired(&case.input);
    let plan = plan(&PlanInput {
        pod: &pod,
        observed: &observed(&case.input, now),
        probes: &probes(&case.input),
        backoff: &Backoff::new(now.mono, CRASH_BACKOFF_MAX),
        now,
        restart_all,
        resizing: false,
    });
    (pod, plan)
}

/// A plan in the words of `podActions`.
pub fn actions(pod: &DesiredPod, plan: &Plan) -> Value {
    let text = |id: Option<&SandboxId>| id.map(ToString::to_string).unwrap_or_default();
    let (kill_pod, create, id, attempt, kills): (bool, bool, String, u32, &[Kill]) = match &plan.action {
        PodAction::Keep { sandbox, attempt, kills, .. } => {
            (false, false, text(Some(sandbox)), *attempt, kills)
        }
        PodAction::Recreate { old, attempt, .. } => (true, true, text(old.as_ref()), *attempt, &[]),
        PodAction::End { sandbox, attempt, kills, .. } => {
            (true, false, text(sandbox.as_ref()), *attempt, kills)
        }
        PodAction::RestartAll { sandbox: SandboxStep::Keep { id, attempt }, .. } => {
            (false, false, text(Some(id)), *attempt, &[])
        }
        PodAction::RestartAll { sandbox: SandboxStep::Recreate { old, attempt }, .. } => {
            (true, true, text(old.as_ref()), *attempt, &[])
        }
    };
    let starts = |kind| -> Vec<usize> {
        plan.starts().iter().filter(|start| start.kind == kind).map(|start| start.index).collect()
    };
    let mut out = json!({
        "killPod": kill_pod,
        "createSandbox": create,
        "sandboxID": id,
        "attempt": attempt,
        "initContainersToStart": starts(ContainerKind::Init),
        "containersToStart": starts(ContainerKind::App),
        "ephemeralContainersToStart": starts(ContainerKind::Ephemeral),
    });
    for kill in kills {
        let name = name_of(pod, kill.kind, kill.index);
        out["containersToKill"][kill.id.as_str()] =
            json!({"name": name, "message": kill.message, "reason": kill.reason.to_string()});
    }
    out
}

/// The name of a container by its place in the spec.
pub fn name_of(pod: &DesiredPod, kind: ContainerKind, index: usize) -> &str {
    match kind {
        ContainerKind::Init => &pod.init_containers()[index].name,
        ContainerKind::App => &pod.containers()[index].name,
        ContainerKind::Ephemeral => &pod.ephemeral_containers()[index].name,
    }
}
