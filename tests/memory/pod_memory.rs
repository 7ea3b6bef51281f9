//! What pods cost in memory, counted by the allocator.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::pedantic)]
#![cfg(feature = "tls")]

use serde_json::{Value, json};
use smolet::decode::json::read;
use smolet::limits::{PODS_BYTES_MAX, PODS_MAX};
use smolet::model::{DesiredPod, Wall};
use smolet::source::NodeName;
use smolet::source::manifest::bound;

fn common(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1, "resourceVersion": "5",
        "labels": {"app": "web", "pod-template-hash": "5d59d67564"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "name": "web-5d59d67564", "uid": "0a7a5b0e-9a5e-4a5f-8ed5-2f5f60a3e5d1", "controller": true, "blockOwnerDeletion": true}]}, "spec": spec})
}

/// As a ReplicaSet makes one, with its service account's token.
fn simple() -> Value {
    common(
        "simple",
        json!({
        "volumes": [{"name": "kube-api-access-x2x4z", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}],
        "containers": [{"name": "web", "image": "registry.example/web:1.2.3", "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "kube-api-access-x2x4z", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "serviceAccountName": "default",
        "serviceAccount": "default", "nodeName": "gw", "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": true,
        "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]}),
    )
}

/// Three containers with probes, variables and limits, an annotation of some kilobytes: 10 KiB, as `kubectl get -o json` has it
/// 40 KiB with `managedFields` and status.
fn usual() -> Value {
    let mut pod = simple();
    let container = |n: usize| {
        let probe = json!({"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
        let env: Vec<Value> =
            (0..8).map(|v| json!({"name": format!("VARIABLE_{v}"), "value": format!("value-{v}")})).collect();
        let mut container = simple()["spec"]["containers"][0].take();
        container["name"] = format!("c{n}").into();
        container["livenessProbe"] = probe.clone();
        container["readinessProbe"] = probe;
        container["env"] = env.into();
        container
    };
    pod["spec"]["containers"] = (0..3).map(container).collect::<Vec<_>>().into();
    let note = "x".repeat(4096);
    pod["metadata"]["annotations"] = json!({"example.org/config": note});
    pod
}

/// Fifty ConfigMaps, each a volume with items and its mount: the pods of the e2e test "EmptyDir wrapper race".
fn large() -> Value {
    let mut pod = simple();
    let volumes: Vec<Value> = (0..50).map(|n| json!({"name": format!("racey-configmap-{n}"), "configMap": {"name": format!("racey-configmap-{n}"),
        "defaultMode": 420, "items": [{"key": "data-1", "path": "data-1"}]}})).collect();
    let mounts: Vec<Value> = (0..50)
        .map(|n| json!({"name": format!("racey-configmap-{n}"), "mountPath": format!("/etc/config-{n}")}))
        .collect();
    pod["spec"]["volumes"].as_array_mut().unwrap().extend(volumes);
    pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().extend(mounts);
    pod
}

/// The pod as the source and the loop keep it, and what it counts.
fn kept(value: &Value) -> (DesiredPod, usize) {
    let mut tree = read(value.to_string().as_bytes()).unwrap();
    let read = bound(&mut tree, &NodeName::new("gw"), Wall(0)).unwrap();
    (DesiredPod::new(read.pod), read.bytes)
}

#[test]
fn a_full_node_and_fifteen_pods_of_fifty_volumes_fit() {
    for (name, usual) in [("simple", simple()), ("usual", usual())] {
        let (mut pods, mut counted) = (Vec::new(), 0);
        let spent = allocation_counter::measure(|| {
            let all = std::iter::repeat_n(&usual, PODS_MAX).cloned().chain((0..15).map(|_| large()));
            for value in all {
                let (mut pod, bytes) = kept(&value);
                counted += bytes;
                pod.pod.pack();
                pods.push(pod);
            }
        });
        let heap = usize::try_from(spent.bytes_current).unwrap();
        println!("{PODS_MAX} {name} pods and 15 of 50 volumes: {heap} bytes, counted {counted}");
        assert!(counted <= PODS_BYTES_MAX, "{name}: they are all taken: {counted}");
        assert!(heap <= counted, "{name}: no more than is counted: {heap} of {counted}");
    }
}

#[test]
fn a_packed_pod_takes_little_more_than_its_text() {
    for (name, value) in [("usual", usual()), ("large", large())] {
        let mut pod = None;
        let opened = allocation_counter::measure(|| pod = Some(kept(&value).0)).bytes_current;
        let mut pod = pod.unwrap();
        let packed = opened + allocation_counter::measure(|| pod.pod.pack()).bytes_current;
        let text = i64::try_from(value.to_string().len()).unwrap();
        println!("{name}: text {text}, open {opened}, packed {packed}");
        assert!(packed <= text + 2048, "{name}: {packed} bytes packed, {text} of text");
        let estimate = i64::try_from(smolet::model::packed::opened_bytes(&pod.pod)).unwrap();
        assert!((estimate - opened).abs() <= opened / 4, "{name}: {estimate} estimated, {opened} open");
    }
}

#[test]
fn a_packed_pod_is_the_same_when_it_is_opened() {
    for value in [usual(), large()] {
        let (mut pod, _) = kept(&value);
        let before = (*pod.pod.open()).clone();
        let copy = pod.clone();
        pod.pod.pack();
        assert_eq!(*pod.pod, before);
        assert!(std::rc::Rc::ptr_eq(&pod.pod.open(), &copy.pod.open()), "all who have it open share it");
        pod.pod.pack();
        drop(copy);
        assert_eq!(pod.pod.opened_bytes(), 0);
        let shown = pod.pod.without_volumes();
        assert_eq!(shown.spec.as_ref().unwrap().containers, before.spec.as_ref().unwrap().containers);
        assert_eq!(pod.pod.opened_bytes(), 0, "it is not opened for that");
        assert_eq!(*pod.pod, before);
    }
}

#[test]
fn a_small_pod_stays_open() {
    let (mut pod, _) = kept(&simple());
    pod.pod.pack();
    let spent = allocation_counter::measure(|| assert_eq!(pod.containers().len(), 1));
    assert_eq!(spent.count_total, 0);
}
