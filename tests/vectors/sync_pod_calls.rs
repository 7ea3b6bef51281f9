//! Set `sync_pod_calls`: `kubeGenericRuntimeManager.SyncPod` against a recording runtime.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use smolet::clock::Clock as _;
use smolet::limits::CRASH_BACKOFF_MAX;
use smolet::model::backoff::{Backoff, BackoffKey};
use smolet::model::{ContainerState, Wall};
use smolet::sync::act::act;
use smolet::sync::plan::{PlanInput, plan};

use crate::pod_input::{desired, list, observed, probes, text};
use crate::recorder::{NoHooks, Recorder, context};
use crate::run_set;

#[test]
fn sync_pod_calls() {
    let dir = std::env::temp_dir().join(format!("smolet-sync-pod-calls-{}", std::process::id()));
    run_set("sync_pod_calls", |case| {
        // Restart counts of containers without a record come from log directories, so each case has its own.
        let dir = dir.join(case.number.to_string());
        run(&case.input, &dir)
    });
    std::fs::remove_dir_all(&dir).expect("the test's own directory");
}

fn run(input: &Value, dir: &Path) -> Value {
    let mut input = input.clone();
    for member in ["containers", "initContainers", "ephemeralContainers"] {
        for container in input["pod"]["spec"][member].as_array_mut().into_iter().flatten() {
            container["imagePullPolicy"] = json!("Never");
        }
    }
    let wall: Timestamp = text(&input, "now").parse().expect("a time");
    let names = |member: &str| list(&input, member).iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    let mut recorder = Recorder::new(Wall(i64::try_from(wall.as_nanosecond()).unwrap()));
    recorder.create_fails = names("createFails");
    recorder.start_fails = names("startFails");
    recorder.sandbox_fails = input["sandboxFails"].as_bool().unwrap_or_default();
    let recorder = Rc::new(recorder);

    let now = recorder.clock.now();
    let (pod, observed) = (desired(&input), observed(&input, now));
    // Differs on purpose (`sync/start.rs`): one that was created and never started goes before its successor is made.
    let never_started: Vec<(String, String)> = observed
        .containers
        .iter()
        .filter(|container| container.state == ContainerState::Created)
        .map(|container| (container.id.to_string(), container.name.to_string()))
        .collect();
    let mut backoff = Backoff::new(now.mono, CRASH_BACKOFF_MAX);
    for container in pod.init_containers().iter().chain(pod.containers()) {
        if let Some(wait) = input["crashBackoffMs"][&container.name].as_u64() {
            backoff.restore(BackoffKey::container(&pod, container), Duration::from_millis(wait), now.mono);
        }
    }
    let probes = probes(&input);
    let plan = plan(&PlanInput {
        pod: &pod,
        observed: &observed,
        probes: &probes,
        backoff: &backoff,
        now,
        restart_all: false,
        resizing: false,
    });
    let ctx = context(recorder.clone(), Rc::new(NoHooks), dir);
    let outcome = recorder.run(act(&ctx, &pod, &observed, &plan));
    assert!(outcome.error().is_some() != outcome.is_ok());

    let mut calls = recorder.calls.borrow().clone();
    for (id, name) in &never_started {
        let goes_first = |two: &[Value]| {
            two[0]["op"] == "RemoveContainer"
                && two[0]["id"] == **id
                && two[1]["op"] == "CreateContainer"
                && two[1]["name"] == **name
        };
        if let Some(at) = calls.windows(2).position(goes_first) {
            calls.remove(at);
        }
    }
    for call in &mut calls {
        call.as_object_mut().unwrap().remove("atMs");
    }
    for op in ["StopContainer", "RemoveContainer"] {
        sort_runs(&mut calls, |call| (call["op"] == op).then(|| text(call, "id")));
    }
    let mut results: Vec<Value> = outcome
        .results
        .iter()
        .map(|result| {
            let mut shown = json!({"action": result.action.to_string(), "target": &*result.target});
            if let Some(failure) = &result.failure {
                shown["error"] = json!(failure.error.to_string());
                shown["message"] = json!(failure.message);
            }
            shown
        })
        .collect();
    sort_runs(&mut results, |result| (result["action"] == "KillContainer").then(|| text(result, "target")));
    json!({"calls": calls, "results": results, "syncError": outcome.sync_error})
}

/// Sorts each run of adjacent entries that have a key: their order is not defined.
fn sort_runs(entries: &mut [Value], key: impl Fn(&Value) -> Option<String>) {
    entries
        .chunk_by_mut(|a, b| key(a).is_some() && key(b).is_some())
        .for_each(|run| run.sort_by_key(|entry| key(entry)));
}
