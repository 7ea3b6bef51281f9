//! The part of a vector's input that several sets share: pod, runtime state, probe results.

use serde_json::Value;
use smolet::model::{
    ContainerMeta, ContainerState, ContainerStatus, DesiredPod, Mono, NamespaceMode, Now, ObservedPod,
    SandboxNetwork, SandboxState, SandboxStatus, Wall,
};
use smolet::sync::{ProbeResult, ProbeResults, Probes};

/// The member as text, empty when absent.
pub fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap_or_default().to_owned()
}

/// The member as a list, empty when absent.
pub fn list<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    value[member].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// `in.pod`.
pub fn desired(input: &Value) -> DesiredPod {
    DesiredPod::new(serde_json::from_value(input["pod"].clone()).expect("a vector's pod is a v1.Pod"))
}

/// `in.podStatus`; `now` fixes the monotonic instants of its times.
pub fn observed(input: &Value, now: Now) -> ObservedPod {
    let status = &input["podStatus"];
    ObservedPod {
        ips: list(status, "ips").iter().map(|ip| ip.as_str().unwrap().into()).collect(),
        sandboxes: list(status, "sandboxes").iter().map(sandbox).collect(),
        containers: list(status, "containers").iter().map(|c| container(c, now)).collect(),
    }
}

fn sandbox(value: &Value) -> SandboxStatus {
    SandboxStatus {
        id: text(value, "id").into(),
        attempt: u32::try_from(value["attempt"].as_u64().unwrap_or_default()).unwrap(),
        state: match value["state"].as_str() {
            Some("ready") => SandboxState::Ready,
            Some("notready") => SandboxState::NotReady,
            other => panic!("sandbox state {other:?}"),
        },
        created_at: Wall(value["createdAt"].as_i64().unwrap_or_default()),
        network_namespace: match value["networkNamespace"].as_str() {
            None => None,
            Some("POD") => Some(NamespaceMode::Pod),
            Some("NODE") => Some(NamespaceMode::Node),
            Some(other) => panic!("network namespace {other}"),
        },
        network: value["network"].is_object().then(|| SandboxNetwork {
            ip: text(&value["network"], "ip").into(),
            additional_ips: list(&value["network"], "additionalIPs")
                .iter()
                .map(|ip| ip.as_str().unwrap().into())
                .collect(),
        }),
    }
}

fn container(value: &Value, now: Now) -> ContainerStatus {
    let finished_at = value["finishedAt"].as_i64().map(Wall);
    ContainerStatus {
        id: text(value, "id").into(),
        name: text(value, "name").into(),
        sandbox_id: text(value, "sandboxID").into(),
        state: match value["state"].as_str() {
            Some("created") => ContainerState::Created,
            Some("running") => ContainerState::Running,
            Some("exited") => ContainerState::Exited,
            Some("unknown") => ContainerState::Unknown,
            other => panic!("container state {other:?}"),
        },
        created_at: Wall(value["createdAt"].as_i64().unwrap_or_default()),
        started_at: value["startedAt"].as_i64().map(Wall),
        finished_at,
        // Not clamped to boot as the agent does: the kubelet's case may be of any age.
        finished_mono: finished_at.map(|at| Mono(now.mono.0 - (now.wall.0 - at.0))),
        exit_code: i32::try_from(value["exitCode"].as_i64().unwrap_or_default()).unwrap(),
        reason: text(value, "reason").into(),
        message: text(value, "message").into(),
        image: text(value, "image").into(),
        image_ref: text(value, "imageRef").into(),
        meta: ContainerMeta {
            hash: value["hash"].as_u64().unwrap_or_default(),
            restart_count: u32::try_from(value["restartCount"].as_u64().unwrap_or_default()).unwrap(),
            ..ContainerMeta::default()
        },
        ..ContainerStatus::default()
    }
}

/// `in.liveness` and `in.startup`.
pub fn probes(input: &Value) -> Probes {
    let results = |member: &str| {
        let mut results = ProbeResults::default();
        for (id, result) in input[member].as_object().into_iter().flatten() {
            let result = match result.as_str() {
                Some("success") => ProbeResult::Success,
                Some("failure") => ProbeResult::Failure,
                Some("unknown") => ProbeResult::Unknown,
                other => panic!("probe result {other:?}"),
            };
            results.set(&id.as_str().into(), result);
        }
        results
    };
    Probes { liveness: results("liveness"), startup: results("startup"), ..Probes::default() }
}
