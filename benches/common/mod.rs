//! What several benchmarks look at.

use serde_json::json;
use smolet::model::{
    ContainerMeta, ContainerState, ContainerStatus, DesiredPod, Mono, Now, ObservedPod, SandboxNetwork,
    SandboxState, SandboxStatus, Wall,
};

/// The instant of all observations.
pub const NOW: Now = Now { mono: Mono(1_000_000_000_000), wall: Wall(0) };

/// A pod of two containers and a sidecar that run, with a dead record of each.
pub fn pod() -> (DesiredPod, ObservedPod) {
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
        finished_mono: (state == ContainerState::Exited).then_some(NOW.mono),
        meta: ContainerMeta { hash: u64::from(hash), restart_count: generation, ..ContainerMeta::default() },
        ..ContainerStatus::default()
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
