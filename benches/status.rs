//! What a status costs: made for every sync of every pod.

#![allow(missing_docs, clippy::unwrap_used)]

use divan::{Bencher, black_box};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use smolet::limits::STATUS_STORE_BYTES;
use smolet::model::{
    ContainerMeta, ContainerState, ContainerStatus, ObservedPod, SandboxNetwork, SandboxState, SandboxStatus,
    Wall,
};
use smolet::status::{NoFacts, StatusInput, merge, pod_status};
use smolet::store::codec::{decode, encode};
use smolet::store::statuses::StatusStore;

fn main() {
    divan::main();
}

const NOW: Wall = Wall(1_767_229_200_000_000_000);

/// A running pod of three containers with requests and limits.
fn pod() -> (Pod, ObservedPod) {
    let containers: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            json!({
                "name": name,
                "image": "registry.example/app:v1",
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            })
        })
        .collect();
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {"restartPolicy": "Always", "containers": containers},
    }))
    .unwrap();
    let sandbox = SandboxStatus {
        id: "sandbox".into(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: NOW,
        network_namespace: None,
        network: Some(SandboxNetwork { ip: "10.42.0.5".into(), additional_ips: Vec::new() }),
    };
    let container = |name: &str| ContainerStatus {
        id: format!("{name}-0123456789abcdef").into(),
        name: name.into(),
        sandbox_id: "sandbox".into(),
        state: ContainerState::Running,
        created_at: NOW,
        started_at: Some(NOW),
        finished_at: None,
        finished_mono: None,
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "registry.example/app:v1".into(),
        image_ref: "registry.example/app@sha256:0123456789abcdef".into(),
        user: None,
        resources: None,
        stop_signal: 0,
        termination_log: None,
        meta: ContainerMeta::default(),
    };
    let observed = ObservedPod {
        ips: vec!["10.42.0.5".into()],
        sandboxes: vec![sandbox],
        containers: ["c", "b", "a"].map(container).into(),
    };
    (pod, observed)
}

fn input<'a>(pod: &'a Pod, observed: &'a ObservedPod) -> StatusInput<'a> {
    StatusInput {
        pod,
        observed,
        previous: None,
        facts: &NoFacts,
        is_terminal: false,
        resizes: &[],
        active_for: None,
        pod_cgroup: None,
        agent_start: NOW,
        host_ips: &[],
        ipv6_first: false,
        runtime_name: "containerd",
        recursive_read_only: false,
    }
}

/// A pod of three containers, nothing shown before.
#[divan::bench]
fn three_containers(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    bencher.bench_local(|| pod_status(black_box(&input(&pod, &observed))));
}

/// The common case of a quiet node: the same status again, and the merge finds nothing new.
#[divan::bench]
fn three_containers_unchanged(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    let first = pod_status(&input(&pod, &observed));
    let shown = merge::update(&pod, None, first, NOW).unwrap().unwrap();
    bencher.bench_local(|| {
        let again = StatusInput { previous: Some(&shown), ..input(&pod, &observed) };
        let changed = merge::update(&pod, Some(&shown), pod_status(black_box(&again)), NOW).unwrap();
        assert!(changed.is_none());
    });
}

/// The same through the store: the record is decoded, a status made and found to be the same.
#[divan::bench]
fn three_containers_unchanged_in_the_store(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    let first = pod_status(&input(&pod, &observed));
    let shown = merge::update(&pod, None, first, NOW).unwrap().unwrap();
    let mut store = StatusStore::new(STATUS_STORE_BYTES);
    let uid = "u".into();
    assert!(store.put(&uid, shown));
    bencher.bench_local(|| {
        let shown = store.status(&uid);
        let again = StatusInput { previous: shown.as_ref(), ..input(&pod, &observed) };
        let changed = merge::update(&pod, shown.as_ref(), pod_status(black_box(&again)), NOW).unwrap();
        assert!(changed.is_none());
    });
}

/// One record written.
#[divan::bench]
fn encode_three_containers(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    let status = pod_status(&input(&pod, &observed));
    bencher.bench_local(|| encode(black_box(&status)));
}

/// One record read.
#[divan::bench]
fn decode_three_containers(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    let record = encode(&pod_status(&input(&pod, &observed)));
    bencher.bench_local(|| decode(black_box(&record)).unwrap());
}
