//! The decision core: DESIGN.md promises 2 µs and no allocation for the plan of an unchanged pod.

#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use divan::{AllocProfiler, Bencher, black_box};
use serde_json::json;
use smolet::limits::{BACKOFF_ENTRIES_MAX, CRASH_BACKOFF_MAX};
use smolet::model::{
    ContainerMeta, ContainerState, ContainerStatus, DesiredPod, Mono, Now, ObservedPod, SandboxNetwork,
    SandboxState, SandboxStatus, Wall,
};
use smolet::sync::Probes;
use smolet::sync::backoff::{Backoff, BackoffKey};
use smolet::sync::plan::{PlanInput, plan};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const NOW: Now = Now { mono: Mono(1_000_000_000_000), wall: Wall(0) };

fn main() {
    divan::main();
}

/// A pod of two containers and a sidecar that run, with a dead record of each.
fn pod() -> (DesiredPod, ObservedPod) {
    let container = |name: &str| json!({"name": name, "image": "registry.example/app:1.2.3"});
    let mut sidecar = container("proxy");
    sidecar["restartPolicy"] = json!("Always");
    let pod = DesiredPod::new(
        serde_json::from_value(json!({
            "metadata": {"name": "web-node-1", "namespace": "default", "uid": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"},
            "spec": {"restartPolicy": "Always", "initContainers": [sidecar],
                "containers": [container("web"), container("metrics")]},
        }))
        .unwrap(),
    );
    let hashes = [("proxy", pod.init_hashes[0]), ("web", pod.app_hashes[0]), ("metrics", pod.app_hashes[1])];
    let record = |(name, hash): (&str, u32), state, generation: u32| ContainerStatus {
        id: format!("{name}-{generation}").into(),
        name: name.into(),
        sandbox_id: "sandbox".into(),
        state,
        created_at: Wall(0),
        started_at: None,
        finished_at: None,
        finished_mono: (state == ContainerState::Exited).then_some(NOW.mono),
        exit_code: 0,
        reason: "".into(),
        message: "".into(),
        image: "".into(),
        image_ref: "".into(),
        user: None,
        resources: None,
        meta: ContainerMeta { hash: u64::from(hash), restart_count: generation, ..ContainerMeta::default() },
    };
    let running = hashes.map(|one| record(one, ContainerState::Running, 1));
    let dead = hashes.map(|one| record(one, ContainerState::Exited, 0));
    let observed = ObservedPod {
        ips: vec!["10.0.0.1".into()],
        sandboxes: vec![SandboxStatus {
            id: "sandbox".into(),
            attempt: 0,
            state: SandboxState::Ready,
            created_at: Wall(0),
            network_namespace: None,
            network: Some(SandboxNetwork { ip: "10.0.0.1".into(), additional_ips: Vec::new() }),
        }],
        containers: running.into_iter().chain(dead).collect(),
    };
    (pod, observed)
}

fn bench_plan(bencher: Bencher<'_, '_>, observed: &ObservedPod, pod: &DesiredPod) {
    let (probes, backoff) = (Probes::default(), full_table());
    let input = PlanInput { pod, observed, probes: &probes, backoff: &backoff, now: NOW, restart_all: false };
    bencher.bench_local(|| plan(black_box(&input)));
}

#[divan::bench]
fn unchanged_pod_of_three_containers(bencher: Bencher<'_, '_>) {
    let (pod, observed) = pod();
    bench_plan(bencher, &observed, &pod);
}

#[divan::bench]
fn pod_of_three_crashed_containers(bencher: Bencher<'_, '_>) {
    let (pod, mut observed) = pod();
    observed.containers.drain(..3);
    bench_plan(bencher, &observed, &pod);
}

fn key(n: usize) -> BackoffKey {
    BackoffKey::image(&"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0".into(), &n.to_string())
}

fn full_table() -> Backoff {
    let mut table = Backoff::new(Mono(0), CRASH_BACKOFF_MAX);
    for n in 0..BACKOFF_ENTRIES_MAX {
        table.restore(key(n), Duration::from_mins(5), NOW.mono);
    }
    table
}

#[divan::bench]
fn backoff_lookup_in_a_full_table(bencher: Bencher<'_, '_>) {
    let (table, key) = (full_table(), key(500));
    bencher.bench_local(|| table.held_since(black_box(key), Some(NOW.mono), NOW.mono));
}

#[divan::bench]
fn backoff_next_in_a_full_table(bencher: Bencher<'_, '_>) {
    let (mut table, key) = (full_table(), key(500));
    bencher.bench_local(|| table.next(black_box(key), Some(NOW.mono), NOW.mono));
}

#[divan::bench]
fn backoff_key(bencher: Bencher<'_, '_>) {
    let (pod, _) = pod();
    bencher.bench_local(|| BackoffKey::container(black_box(&pod), &pod.containers()[0]));
}
