//! One row a rule: a good pod, one change, and the one error it gives.

mod container;
mod node;
mod pod;
mod probe;
mod resources;
mod security;
mod unsupported;
mod volumes;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::model::Wall;
use crate::source::identity::ManifestKind;
use crate::source::{defaults, identity};

fn good() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"a.b/c": "x"}},
        "spec": {
            "initContainers": [
                {"name": "i", "image": "x"},
                {"name": "s", "image": "x", "restartPolicy": "Always"},
            ],
            "containers": [
                {
                    "name": "a", "image": "x",
                    "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080}],
                    "env": [
                        {"name": "A", "value": "b"},
                        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                        {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y", "optional": true}}},
                    ],
                    "envFrom": [{"secretRef": {"name": "x", "optional": true}}],
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "h", "mountPath": "/h"}],
                    "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "100m"}},
                    "securityContext": {"runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
                    "restartPolicy": "Never",
                    "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}],
                },
                {"name": "b", "image": "x"},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv", "type": "Directory"}}],
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "securityContext": {"fsGroup": 5, "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
            "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a.b", "."], "options": [{"name": "ndots", "value": "2"}]},
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "os": {"name": "linux"},
            "priorityClassName": "system-node-critical",
            "hostname": "web",
        },
    })
}

/// What the pipeline says of a pod, one line an error.
fn errors(value: Value) -> Vec<String> {
    let node = NodeName::new("gw");
    let mut pod: Pod = serde_json::from_value(value).expect("a pod by type");
    let own = identity::Identity { uid: "u".to_owned(), config_hash: "h".to_owned() };
    let mut errors = as_written(&pod, &node, &[]);
    let has_spec = pod.spec.is_some();
    identity::apply(ManifestKind::File, &mut pod, &own, &node, Wall(0));
    defaults::set(&mut pod);
    pod.spec = pod.spec.filter(|_| has_spec);
    errors.append(super::pod(&pod, &[]));
    errors.into_iter().map(|error| error.to_string()).collect()
}

/// Sets (or with null removes) what `pointer` points to; `/-` at its end appends.
fn change(value: &mut Value, pointer: &str, to: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let parent = value.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer} has a parent"));
    match parent {
        Value::Array(items) if key == "-" => items.push(to),
        Value::Array(items) => items[key.parse::<usize>().expect("an index")] = to,
        Value::Object(map) if to.is_null() => {
            map.remove(key);
        }
        Value::Object(map) => {
            map.insert(key.replace("~1", "/"), to);
        }
        other => panic!("{pointer}: {other}"),
    }
}

#[test]
fn a_good_pod_is_good() {
    assert_eq!(errors(good()), [""; 0]);
}

const C: &str = "/spec/containers/0";

/// Each change of the good pod gives the error that begins with that text, and no other; an empty text: none.
fn each_gives_its_error(rows: Vec<(String, Value, &str)>) {
    let mut wrong = Vec::new();
    for (pointer, to, says) in rows {
        let mut pod = good();
        change(&mut pod, &pointer, to);
        let got = errors(pod);
        let wanted = usize::from(!says.is_empty());
        if got.len() != wanted || !got.iter().all(|line| line.starts_with(says)) {
            wrong.push(format!("{pointer}\n  got  {got:?}\n  want {says}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_between_fields() {
    for (changes, says) in [
        (
            vec![("/spec/dnsPolicy", json!("None")), ("/spec/dnsConfig", Value::Null)],
            vec!["spec.dnsConfig: Required value: dnsPolicy is None"],
        ),
        (
            vec![("/spec/dnsPolicy", json!("None")), ("/spec/dnsConfig/nameservers", json!([]))],
            vec!["spec.dnsConfig.nameservers: Required value: at least one"],
        ),
        (
            vec![("/spec/shareProcessNamespace", json!(true)), ("/spec/hostPID", json!(true))],
            vec!["spec.shareProcessNamespace: Invalid value: true: may not be true beside hostPID"],
        ),
        (
            vec![("/spec/containers/0/securityContext/procMount", json!("Unmasked"))],
            vec!["spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": needs"],
        ),
        (
            vec![("/spec/hostnameOverride", json!("a")), ("/spec/setHostnameAsFQDN", json!(true))],
            vec!["spec.hostnameOverride: Forbidden: may not be given when setHostnameAsFQDN"],
        ),
        (
            vec![("/spec/hostUsers", json!(false)), ("/spec/hostIPC", json!(true))],
            vec!["spec.hostIPC: Invalid value: true: may not be true beside hostUsers: false"],
        ),
        (
            vec![
                ("/spec/hostUsers", json!(false)),
                ("/spec/containers/0/securityContext/procMount", json!("Unmasked")),
            ],
            vec![],
        ),
        (
            vec![
                ("/spec/containers/0/lifecycle", json!({"stopSignal": "SIGINT"})),
                ("/spec/os", Value::Null),
            ],
            vec![
                "spec.containers[0].lifecycle.stopSignal: Forbidden: may only be given when spec.os.name is",
            ],
        ),
        (
            vec![("/spec/hostNetwork", json!(true)), ("/spec/securityContext/sysctls", json!([]))],
            vec!["spec.containers[0].ports[0].hostPort: Invalid value: 8080: must be the same"],
        ),
        (
            vec![("/spec/hostNetwork", json!(true)), ("/spec/containers/0/ports", json!([]))],
            vec![
                "spec.securityContext.sysctls[0].name: Invalid value: \"net.ipv4.tcp_syncookies\": may not be set when hostNetwork",
            ],
        ),
        (
            vec![
                ("/spec/containers/0/ports/0/containerPort", json!(0)),
                ("/spec/containers/0/image", json!("")),
            ],
            vec![
                "spec.containers[0].image: Required value",
                "spec.containers[0].ports[0].containerPort: Required value",
            ],
        ),
    ] {
        let mut pod = good();
        for (pointer, to) in &changes {
            change(&mut pod, pointer, to.clone());
        }
        let got = errors(pod);
        assert_eq!(got.len(), says.len(), "{changes:?}: {got:?}");
        for (line, wanted) in got.iter().zip(says) {
            assert!(line.starts_with(wanted), "{changes:?}: {got:?}");
        }
    }
}

#[test]
fn errors_are_bounded() {
    let mut pod = good();
    pod["spec"]["containers"] = json!(vec![json!({"name": "a"}); 100]);
    let errors = errors(pod);
    assert_eq!(errors.len(), limits::FIELD_ERRORS_MAX + 1, "the last says how many more");
    // The name of each but the first, and the image of each.
    let more = 99 + 100 - limits::FIELD_ERRORS_MAX;
    assert_eq!(errors.last().map(String::as_str), Some(&*format!("and {more} more errors")));
}
