//! Set `gc`: `containerGC.GarbageCollect`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use smolet::gc::{GcContainer, GcInput, GcPolicy, GcSandbox, PodFate, collect};
use smolet::model::{ContainerState, SandboxState};

use crate::pod_input::{list, text};
use crate::run_set;

#[test]
fn gc() {
    run_set("gc", |case| run(&case.input));
}

fn run(input: &Value) -> Value {
    let policy = &input["policy"];
    let limit = |member: &str| usize::try_from(policy[member].as_i64().expect("a limit")).ok();
    let fates: BTreeMap<String, PodFate> =
        list(input, "pods").iter().map(|pod| (text(pod, "uid"), fate(pod))).collect();
    let containers: Vec<GcContainer> = list(input, "containers")
        .iter()
        .map(|row| GcContainer {
            id: text(row, "id").into(),
            sandbox_id: text(row, "sandboxID").into(),
            pod: text(row, "podUID").into(),
            name: text(row, "name").into(),
            attempt: u32::try_from(row["attempt"].as_u64().unwrap_or_default()).unwrap(),
            state: match row["state"].as_str() {
                Some("created") => ContainerState::Created,
                Some("running") => ContainerState::Running,
                Some("exited") => ContainerState::Exited,
                Some("unknown") => ContainerState::Unknown,
                other => panic!("state {other:?}"),
            },
            age: age(row),
        })
        .collect();
    let sandboxes: Vec<GcSandbox> = list(input, "sandboxes")
        .iter()
        .map(|row| GcSandbox {
            id: text(row, "id").into(),
            pod: text(row, "podUID").into(),
            attempt: u32::try_from(row["attempt"].as_u64().unwrap_or_default()).unwrap(),
            state: match row["state"].as_str() {
                Some("ready") => SandboxState::Ready,
                Some("notready") => SandboxState::NotReady,
                other => panic!("state {other:?}"),
            },
            age: age(row),
        })
        .collect();
    let logs: Vec<Box<str>> =
        list(input, "podLogDirectories").iter().map(|name| name.as_str().unwrap().into()).collect();
    let plan = collect(&GcInput {
        policy: GcPolicy {
            min_age: Duration::from_secs(policy["minAgeSeconds"].as_u64().expect("an age")),
            per_container_max: limit("maxPerPodContainer"),
            containers_max: limit("maxContainers"),
        },
        all_sources_ready: input["allSourcesReady"].as_bool().expect("a bool"),
        evict_stopped_pods: input["evictNonDeletedPods"].as_bool().expect("a bool"),
        containers: &containers,
        sandboxes: &sandboxes,
        log_directories: &logs,
        fate: &|uid| fates.get(uid).copied().unwrap_or(PodFate::Stays),
    });
    let sorted = |names: Vec<&str>| {
        let mut names = names;
        names.sort_unstable();
        json!(names)
    };
    json!({
        "removedContainers": sorted(plan.containers.iter().map(|removal| removal.id.as_str()).collect()),
        "stoppedContainers": sorted(
            plan.containers.iter().filter(|removal| removal.stop).map(|removal| removal.id.as_str()).collect(),
        ),
        "removedSandboxes": sorted(plan.sandboxes.iter().map(smolet::model::SandboxId::as_str).collect()),
        "removedLogDirectories": sorted(plan.log_directories.iter().map(|name| &**name).collect()),
    })
}

fn fate(pod: &Value) -> PodFate {
    let flag = |member: &str| pod[member].as_bool().unwrap_or_default();
    if flag("contentRemoved") {
        PodFate::Gone
    } else if flag("runtimeRemoved") {
        PodFate::Stopped
    } else {
        PodFate::Stays
    }
}

fn age(row: &Value) -> Duration {
    Duration::from_secs(row["ageSeconds"].as_u64().unwrap_or_default())
}
