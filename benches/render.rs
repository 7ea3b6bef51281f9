//! What rendering costs: the agent adds it to every container start.

#![allow(missing_docs, clippy::unwrap_used)]

use divan::{Bencher, black_box};
use smolet::model::{ContainerKind, DesiredPod};
use smolet::render::{
    ContainerInput, ManifestObjects, NodeSettings, container_config, labels, sandbox_config,
};

fn main() {
    divan::main();
}

/// A web server as gateways run them: a few variables, ports, limits, a hook.
fn pod() -> DesiredPod {
    let env: Vec<_> = (0..10)
        .map(|n| serde_json::json!({"name": format!("VAR_{n}"), "value": format!("$(VAR_0) value {n}")}))
        .collect();
    let pod = serde_json::json!({
        "metadata": {"name": "web-node-1", "namespace": "default", "uid": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
            "labels": {"app": "web", "tier": "edge"}, "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"enableServiceLinks": true, "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst", "securityContext": {"runAsUser": 1000, "fsGroup": 2000},
            "containers": [{"name": "web", "image": "nginx:1.27", "command": ["nginx", "-g", "$(VAR_1)"], "env": env,
                "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "lifecycle": {"preStop": {"exec": {"command": ["nginx", "-s", "quit"]}}}}]}
    });
    DesiredPod::new(serde_json::from_value(pod).unwrap())
}

fn input<'a>(pod: &'a DesiredPod, env: &'a ManifestObjects) -> ContainerInput<'a> {
    ContainerInput {
        pod,
        kind: ContainerKind::App,
        index: 0,
        restart_count: 3,
        image_ref: "sha256:abc",
        image: None,
        pod_ips: &[],
        mounts: &[],
        termination_log: Some("/var/lib/smolet/pods/u/containers/web/01234567"),
        target: None,
        recursive_read_only: false,
        annotations: &[],
        user_namespace: None,
        env,
    }
}

#[divan::bench]
fn container_config_typical(bencher: Bencher<'_, '_>) {
    let (node, pod) = (NodeSettings::new("node-1", "/var/lib/smolet"), pod());
    let env = ManifestObjects::default();
    bencher.bench_local(|| container_config(black_box(&node), black_box(&input(&pod, &env))).unwrap());
}

#[divan::bench]
fn sandbox_config_typical(bencher: Bencher<'_, '_>) {
    let (node, pod) = (NodeSettings::new("node-1", "/var/lib/smolet"), pod());
    bencher.bench_local(|| sandbox_config(black_box(&node), black_box(&pod), 0, None).unwrap());
}

#[divan::bench]
fn container_labels_and_annotations(bencher: Bencher<'_, '_>) {
    let pod = pod();
    let container = &pod.containers()[0];
    bencher.bench_local(|| {
        let labels = labels::container_labels(black_box(&pod), &container.name);
        (labels, labels::container_annotations(black_box(&pod), container, 3, &[]))
    });
}

#[divan::bench]
fn container_meta(bencher: Bencher<'_, '_>) {
    let pod = pod();
    let annotations = labels::container_annotations(&pod, &pod.containers()[0], 3, &[]);
    bencher.bench_local(|| labels::container_meta(black_box(&annotations)));
}
