//! Set `compute_pod_actions_restart_all`: `computePodActions` of a pod marked for restart in place, with
//! `ShouldAllContainersRestart` and `AllContainersRestartCleanedUp`.

use serde_json::json;
use smolet::model::{Mono, Now, Wall};
use smolet::sync::plan::PodAction;
use smolet::sync::rules::{all_containers_restart_cleaned_up, should_all_containers_restart};

use crate::compute_pod_actions::{actions, name_of, plan_of};
use crate::pod_input::observed;
use crate::run_set;

#[test]
fn compute_pod_actions_restart_all() {
    run_set("compute_pod_actions_restart_all", |case| {
        let restart_all = case.input["restartAllContainers"].as_bool().unwrap_or_default();
        let (pod, plan) = plan_of(case, restart_all);
        let seen = observed(&case.input, Now { mono: Mono(0), wall: Wall(0) });
        let mut out = actions(&pod, &plan);
        out["shouldAllContainersRestart"] = json!(should_all_containers_restart(&pod, &seen));
        out["allContainersRestartCleanedUp"] = json!(all_containers_restart_cleaned_up(&pod, &seen));
        if let PodAction::RestartAll { resets, .. } = &plan.action {
            let shown = resets.iter().map(|reset| {
                let name = name_of(&pod, reset.kind, reset.index);
                json!({"id": reset.id.as_str(), "name": name, "kill": reset.kill})
            });
            out["containersToReset"] = shown.collect();
        }
        out
    });
}
