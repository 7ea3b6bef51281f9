//! One row a rule: a good pod, one change, and the one error it gives.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::model::Wall;
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
    let mut errors = as_written(&pod, &node);
    if errors.is_empty() {
        let own = identity::Identity { uid: "u".to_owned(), config_hash: "h".to_owned() };
        identity::apply(&mut pod, &own, &node, Wall(0));
        defaults::set(&mut pod);
        errors = super::pod(&pod);
    }
    let line = |error: FieldError| match error.value {
        Some(value) => format!("{}: {value}: {}", error.path, error.message),
        None => format!("{}: {}", error.path, error.message),
    };
    errors.into_iter().map(line).collect()
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

#[test]
fn each_rule_of_kubernetes() {
    let c = |rest: &str| format!("{C}{rest}");
    let rows: Vec<(String, Value, &str)> = vec![
        ("/metadata/name".into(), Value::Null, "metadata.name: is required"),
        ("/metadata/name".into(), json!("Web"), "metadata.name: \"Web\": must be lower case letters"),
        ("/metadata/name".into(), json!("a".repeat(251)), "metadata.name: \"aaaaaaaa"),
        ("/metadata/uid".into(), json!("../etc"), "metadata.uid: \"../etc\": must be"),
        ("/metadata/namespace".into(), json!("a.b"), "metadata.namespace: \"a.b\": must be"),
        ("/metadata/labels/-x".into(), json!("a"), "metadata.labels: \"-x\": must be"),
        ("/metadata/labels/app".into(), json!("a b"), "metadata.labels.app: \"a b\": must be empty or"),
        ("/metadata/annotations/a b".into(), json!("x"), "metadata.annotations: \"a b\": must be"),
        ("/metadata/annotations/big".into(), json!("x".repeat(262_144)), "metadata.annotations: hold 26"),
        ("/spec".into(), Value::Null, "spec: is required"),
        (
            "/spec/terminationGracePeriodSeconds".into(),
            json!(-1),
            "spec.terminationGracePeriodSeconds: -1: must be 0",
        ),
        (
            "/spec/restartPolicy".into(),
            json!("Sometimes"),
            "spec.restartPolicy: \"Sometimes\": must be one of Always, OnF",
        ),
        ("/spec/dnsPolicy".into(), json!("x"), "spec.dnsPolicy: \"x\": must be one of ClusterFirst,"),
        ("/spec/dnsPolicy".into(), json!("None"), ""),
        (
            "/spec/dnsConfig/nameservers/0".into(),
            json!("dns"),
            "spec.dnsConfig.nameservers[0]: \"dns\": must be an IP",
        ),
        (
            "/spec/dnsConfig/nameservers".into(),
            json!(["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]),
            "spec.dnsConfig.nameservers: 4: must be at most 3",
        ),
        (
            "/spec/dnsConfig/searches/0".into(),
            json!("a b"),
            "spec.dnsConfig.searches[0]: \"a b\": must be a DNS name",
        ),
        ("/spec/dnsConfig/options/0/name".into(), Value::Null, "spec.dnsConfig.options[0].name: is required"),
        ("/spec/hostname".into(), json!("a.b"), "spec.hostname: \"a.b\": must be"),
        ("/spec/subdomain".into(), json!("A"), "spec.subdomain: \"A\": must be"),
        ("/spec/hostnameOverride".into(), json!("a_b"), "spec.hostnameOverride: \"a_b\": must be"),
        ("/spec/priorityClassName".into(), json!("A B"), "spec.priorityClassName: \"A B\": must be"),
        (
            "/spec/preemptionPolicy".into(),
            json!("x"),
            "spec.preemptionPolicy: \"x\": must be one of PreemptL",
        ),
        ("/spec/os/name".into(), json!("windows"), "spec.os.name: \"windows\": must be one of linux"),
        (
            "/spec/tolerations/0/operator".into(),
            json!("x"),
            "spec.tolerations[0].operator: \"x\": must be one of Equal",
        ),
        ("/spec/tolerations/0/key".into(), json!("-"), "spec.tolerations[0].key: \"-\": must be"),
        (
            "/spec/tolerations/0/effect".into(),
            json!("x"),
            "spec.tolerations[0].effect: \"x\": must be one of NoSch",
        ),
        (
            "/spec/tolerations/0/value".into(),
            json!("x"),
            "spec.tolerations[0].value: \"x\": must be empty when",
        ),
        (
            "/spec/tolerations/0/tolerationSeconds".into(),
            json!(1),
            "spec.tolerations[0].effect: \"\": must be NoExecute",
        ),
        ("/spec/shareProcessNamespace".into(), json!(true), ""),
        // Volumes.
        ("/spec/volumes/-".into(), json!({"name": "V"}), "spec.volumes[2].name: \"V\": must be"),
        ("/spec/volumes/-".into(), json!({"name": "v"}), "spec.volumes[2].name: \"v\": must be unique"),
        ("/spec/volumes/-".into(), json!({"emptyDir": {}}), "spec.volumes[2].name: is required"),
        (
            "/spec/volumes/0/hostPath".into(),
            json!({"path": "/x"}),
            "spec.volumes[0]: must be of one kind, not of 2 (emptyDir, hostPath)",
        ),
        ("/spec/volumes/1/hostPath/path".into(), json!(""), "spec.volumes[1].hostPath.path: is required"),
        (
            "/spec/volumes/1/hostPath/path".into(),
            json!("/a/../b"),
            "spec.volumes[1].hostPath.path: \"/a/../b\": must not",
        ),
        (
            "/spec/volumes/1/hostPath/type".into(),
            json!("Dir"),
            "spec.volumes[1].hostPath.type: \"Dir\": must be one of",
        ),
        // Containers.
        ("/spec/containers".into(), json!([]), "spec.containers: is required"),
        (c("/name"), json!("A"), "spec.containers[0].name: \"A\": must be at most 63 lower case"),
        (c("/name"), json!(""), "spec.containers[0].name: is required"),
        ("/spec/containers/1/name".into(), json!("a"), "spec.containers[1].name: \"a\": must be unique"),
        (
            "/spec/initContainers/0/name".into(),
            json!("a"),
            "spec.initContainers[0].name: \"a\": must be unique",
        ),
        (c("/image"), Value::Null, "spec.containers[0].image: is required"),
        (c("/image"), json!(" x"), "spec.containers[0].image: \" x\": must not have blanks"),
        (
            c("/imagePullPolicy"),
            json!("x"),
            "spec.containers[0].imagePullPolicy: \"x\": must be one of Always,",
        ),
        (
            c("/terminationMessagePolicy"),
            json!("x"),
            "spec.containers[0].terminationMessagePolicy: \"x\": must be one of F",
        ),
        (
            c("/ports/0/containerPort"),
            json!(99999),
            "spec.containers[0].ports[0].containerPort: 99999: must be between 1 and 65535",
        ),
        (c("/ports/0/containerPort"), json!(0), "spec.containers[0].ports[0].containerPort: is required"),
        (c("/ports/0/hostPort"), json!(-1), "spec.containers[0].ports[0].hostPort: -1: must be between"),
        (
            c("/ports/0/protocol"),
            json!("tcp"),
            "spec.containers[0].ports[0].protocol: \"tcp\": must be one of TCP, UDP, SCTP",
        ),
        (c("/ports/0/name"), json!("a--b"), "spec.containers[0].ports[0].name: \"a--b\": must be at most 15"),
        (
            c("/ports/-"),
            json!({"name": "http", "containerPort": 81}),
            "spec.containers[0].ports[1].name: \"http\": must be unique",
        ),
        (
            "/spec/containers/1/ports".into(),
            json!([{"containerPort": 1, "hostPort": 8080}]),
            "spec.containers[1].ports[0].hostPort: 8080: must be unique",
        ),
        ("/spec/initContainers/0/ports".into(), json!([{"containerPort": 1, "hostPort": 8080}]), ""),
        // Environment.
        (c("/env/0/name"), json!("A=B"), "spec.containers[0].env[0].name: \"A=B\": must be printable"),
        (c("/env/0/name"), json!(""), "spec.containers[0].env[0].name: is required"),
        (c("/env/1/value"), json!("x"), "spec.containers[0].env[1].valueFrom: may not be given beside value"),
        (c("/env/1/valueFrom"), json!({}), "spec.containers[0].env[1].valueFrom: must name a source"),
        (
            c("/env/1/valueFrom/resourceFieldRef"),
            json!({"resource": "limits.cpu"}),
            "spec.containers[0].env[1].valueFrom: must name one source only",
        ),
        (
            c("/env/1/valueFrom/fieldRef/fieldPath"),
            json!("metadata.nam"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: \"metadata.nam\": must be one of metadata.name",
        ),
        (
            c("/env/1/valueFrom/fieldRef/fieldPath"),
            json!("metadata.name['a']"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: \"metadata.name['a']\": has a subscript",
        ),
        (
            c("/env/1/valueFrom/fieldRef/apiVersion"),
            json!("v2"),
            "spec.containers[0].env[1].valueFrom.fieldRef.apiVersion: \"v2\": must be one of v1",
        ),
        (
            c("/env/2/valueFrom/resourceFieldRef/resource"),
            json!("limits.x"),
            "spec.containers[0].env[2].valueFrom.resourceFieldRef.resource: \"limits.x\": must be one of",
        ),
        (
            c("/env/2/valueFrom/resourceFieldRef/divisor"),
            json!("3"),
            "spec.containers[0].env[2].valueFrom.resourceFieldRef.divisor: \"3\": must be one of 1, 1k",
        ),
        (
            c("/env/3/valueFrom/configMapKeyRef/key"),
            json!(""),
            "spec.containers[0].env[3].valueFrom.configMapKeyRef.key: is r",
        ),
        (c("/envFrom/0"), json!({}), "spec.containers[0].envFrom[0]: must name a source"),
        (c("/envFrom/0/prefix"), json!("="), "spec.containers[0].envFrom[0].prefix: \"=\": must be"),
        // Mounts.
        (
            c("/volumeMounts/0/name"),
            json!("w"),
            "spec.containers[0].volumeMounts[0].name: \"w\": names no volume",
        ),
        (c("/volumeMounts/0/name"), json!(""), "spec.containers[0].volumeMounts[0].name: is required"),
        (
            c("/volumeMounts/0/mountPath"),
            json!(""),
            "spec.containers[0].volumeMounts[0].mountPath: is required",
        ),
        (
            c("/volumeMounts/1/mountPath"),
            json!("/v"),
            "spec.containers[0].volumeMounts[1].mountPath: \"/v\": must be unique",
        ),
        (
            c("/volumeMounts/0/mountPropagation"),
            json!("Bidirectional"),
            "spec.containers[0].volumeMounts[0].mountPropagation: \"Bidirectional\": is for privileged",
        ),
        (
            c("/volumeMounts/0/mountPropagation"),
            json!("x"),
            "spec.containers[0].volumeMounts[0].mountPropagation: \"x\": must be one of None",
        ),
        (
            c("/volumeMounts/0/recursiveReadOnly"),
            json!("Enabled"),
            "spec.containers[0].volumeMounts[0].recursiveReadOnly: \"Enabled\": may only be given when readOnly",
        ),
        // Resources.
        (
            c("/resources/limits/cpu"),
            json!("1x"),
            "spec.containers[0].resources.limits.cpu: \"1x\": must be a quantity",
        ),
        (
            c("/resources/requests/cpu"),
            json!("-1"),
            "spec.containers[0].resources.requests.cpu: -1: must be 0 or more",
        ),
        (
            c("/resources/requests/cpu"),
            json!("2"),
            "spec.containers[0].resources.requests.cpu: 2: must be at most the limit, 1",
        ),
        (
            c("/resources/requests/disk"),
            json!("1"),
            "spec.containers[0].resources.requests.disk: \"disk\": must be cpu,",
        ),
        (
            c("/resources/requests/hugepages-2Mi"),
            json!("2Mi"),
            "spec.containers[0].resources.requests.hugepages-2Mi: 2Mi: needs a limit",
        ),
        (
            c("/resources/limits/hugepages-2Mi"),
            json!("3Mi"),
            "spec.containers[0].resources.limits.hugepages-2Mi: 3Mi: must be a multiple",
        ),
        (
            "/spec/resources".into(),
            json!({"limits": {"cpu": "4"}, "requests": {"cpu": "1m"}}),
            "spec.resources.requests.cpu: 1m: must be at least what the containers ask for, 100m",
        ),
        (
            "/spec/resources".into(),
            json!({"limits": {"cpu": "500m"}}),
            "spec.containers[0].resources.limits.cpu: 1: must be at most the pod's limit, 500m",
        ),
        (
            "/spec/resources".into(),
            json!({"requests": {"ephemeral-storage": "1"}}),
            "spec.resources.requests.ephemeral-storage: \"ephemeral-storage\": must be cpu, memory or",
        ),
        // Security.
        (
            c("/securityContext/runAsUser"),
            json!(-1),
            "spec.containers[0].securityContext.runAsUser: -1: must be between 0",
        ),
        (
            c("/securityContext/runAsGroup"),
            json!(1i64 << 40),
            "spec.containers[0].securityContext.runAsGroup: 109951",
        ),
        (
            c("/securityContext/seccompProfile"),
            json!({"type": "Localhost"}),
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: is required: type is Localhost",
        ),
        (
            c("/securityContext/seccompProfile"),
            json!({"type": "Localhost", "localhostProfile": "../x"}),
            "spec.containers[0].securityContext.seccompProfile.localhostProfile: \"../x\": must not contain",
        ),
        (
            c("/securityContext/seccompProfile/type"),
            json!("x"),
            "spec.containers[0].securityContext.seccompProfile.type: \"x\": must be one of Runtime",
        ),
        (
            c("/securityContext"),
            json!({"privileged": true, "allowPrivilegeEscalation": false}),
            "spec.containers[0].securityContext.allowPrivilegeEscalation: false: may not be false beside privileged",
        ),
        (
            c("/securityContext"),
            json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": false}),
            "spec.containers[0].securityContext.allowPrivilegeEscalation: false: may not be false beside the cap",
        ),
        (
            "/spec/securityContext/fsGroup".into(),
            json!(-5),
            "spec.securityContext.fsGroup: -5: must be between 0",
        ),
        (
            "/spec/securityContext/supplementalGroups".into(),
            json!([-5]),
            "spec.securityContext.supplementalGroups[0]: -5: m",
        ),
        (
            "/spec/securityContext/fsGroupChangePolicy".into(),
            json!("x"),
            "spec.securityContext.fsGroupChangePolicy: \"x\"",
        ),
        (
            "/spec/securityContext/sysctls/0/name".into(),
            json!("a b"),
            "spec.securityContext.sysctls[0].name: \"a b\": must",
        ),
        (
            "/spec/securityContext/sysctls/-".into(),
            json!({"name": "net.ipv4.tcp_syncookies", "value": "1"}),
            "spec.securityContext.sysctls[1].name: \"net.ipv4.tcp_syncookies\": must be unique",
        ),
        (c("/securityContext/appArmorProfile"), json!({"type": "Unconfined"}), ""),
        (
            c("/securityContext/appArmorProfile"),
            json!({"type": "Localhost"}),
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: is required: type is Localhost",
        ),
        (
            c("/securityContext/appArmorProfile"),
            json!({"type": "Localhost", "localhostProfile": " x"}),
            "spec.containers[0].securityContext.appArmorProfile.localhostProfile: \" x\": must have",
        ),
        (
            "/spec/securityContext/appArmorProfile".into(),
            json!({"type": "x"}),
            "spec.securityContext.appArmorProfile.type: \"x\": must be one of Localhost, Runt",
        ),
        (
            "/spec/securityContext/appArmorProfile".into(),
            json!({"type": "Unconfined", "localhostProfile": "x"}),
            "spec.securityContext.appArmorProfile.localhostProfile: \"x\": may only be given when type",
        ),
        (
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1a".into(),
            json!("unconfined"),
            "",
        ),
        (
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1a".into(),
            json!("x"),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: \"x\": must be runtime/default",
        ),
        (
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1z".into(),
            json!("unconfined"),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/z]: names no container",
        ),
        ("/metadata/annotations/cdi.k8s.io~1gpu".into(), json!("v.example/gpu=0,v.example/gpu=1"), ""),
        (
            "/metadata/annotations/cdi.k8s.io~1gpu".into(),
            json!("v.example/gpu=0,gpu"),
            "metadata.annotations[cdi.k8s.io/gpu]: \"v.example/gpu=0,gpu\": must be devices",
        ),
        ("/spec/securityContext/seLinuxOptions".into(), json!({"level": "s0:c1,c2"}), ""),
        (c("/securityContext/seLinuxOptions"), json!({"type": "spc_t"}), ""),
        (
            "/spec/securityContext/seLinuxChangePolicy".into(),
            json!("x"),
            "spec.securityContext.seLinuxChangePolicy: \"x\": must be one of MountOption, Recursive",
        ),
        ("/spec/hostAliases".into(), json!([{"ip": "10.0.0.1", "hostnames": ["a"]}]), ""),
        ("/spec/hostAliases".into(), json!([{"ip": "x"}]), "spec.hostAliases[0].ip: \"x\": must be an IP"),
        ("/spec/runtimeClassName".into(), json!("kata"), ""),
        ("/spec/runtimeClassName".into(), json!("K"), "spec.runtimeClassName: \"K\": must be lower case"),
        ("/spec/hostUsers".into(), json!(false), ""),
        (c("/lifecycle"), json!({"stopSignal": "SIGRTMIN+3"}), ""),
        (
            c("/lifecycle"),
            json!({"stopSignal": "HUP"}),
            "spec.containers[0].lifecycle.stopSignal: \"HUP\": must be a signal's name",
        ),
        // Restart rules.
        (
            c("/restartPolicy"),
            json!("x"),
            "spec.containers[0].restartPolicy: \"x\": must be one of Always, OnFailure",
        ),
        (
            c("/restartPolicy"),
            Value::Null,
            "spec.containers[0].restartPolicy: is required: restartPolicyRules",
        ),
        (
            c("/restartPolicyRules/0/action"),
            json!("x"),
            "spec.containers[0].restartPolicyRules[0].action: \"x\": must be one",
        ),
        (
            c("/restartPolicyRules/0/exitCodes"),
            Value::Null,
            "spec.containers[0].restartPolicyRules[0].exitCodes: is req",
        ),
        (
            c("/restartPolicyRules/0/exitCodes/operator"),
            json!("x"),
            "spec.containers[0].restartPolicyRules[0].exitCodes.operator: \"x\": must be one of In, NotIn",
        ),
        (
            c("/restartPolicyRules"),
            json!(vec![json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}); 21]),
            "spec.containers[0].restartPolicyRules: 21: must be at most 20 rules",
        ),
        (
            c("/resizePolicy"),
            json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
            "spec.containers[0].resizePolicy[0].resourceName: \"disk\": must be one of cpu, memory",
        ),
        (
            "/spec/initContainers/0/resizePolicy".into(),
            json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
            "spec.initContainers[0].resizePolicy[0].restartPolicy: \"RestartContainer\": may not be given",
        ),
    ];
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
            vec!["spec.dnsConfig: is required: dnsPolicy is None"],
        ),
        (
            vec![("/spec/dnsPolicy", json!("None")), ("/spec/dnsConfig/nameservers", json!([]))],
            vec!["spec.dnsConfig.nameservers: is required: at least one"],
        ),
        (
            vec![("/spec/shareProcessNamespace", json!(true)), ("/spec/hostPID", json!(true))],
            vec!["spec.shareProcessNamespace: true: may not be true beside hostPID"],
        ),
        (
            vec![("/spec/containers/0/securityContext/procMount", json!("Unmasked"))],
            vec!["spec.containers[0].securityContext.procMount: \"Unmasked\": needs"],
        ),
        (
            vec![("/spec/hostnameOverride", json!("a")), ("/spec/setHostnameAsFQDN", json!(true))],
            vec!["spec.hostnameOverride: may not be given when setHostnameAsFQDN"],
        ),
        (
            vec![("/spec/hostUsers", json!(false)), ("/spec/hostIPC", json!(true))],
            vec!["spec.hostIPC: true: may not be true beside hostUsers: false"],
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
            vec!["spec.containers[0].lifecycle.stopSignal: may only be given when spec.os.name is"],
        ),
        (
            vec![("/spec/hostNetwork", json!(true)), ("/spec/securityContext/sysctls", json!([]))],
            vec!["spec.containers[0].ports[0].hostPort: 8080: must be the same"],
        ),
        (
            vec![("/spec/hostNetwork", json!(true)), ("/spec/containers/0/ports", json!([]))],
            vec![
                "spec.securityContext.sysctls[0].name: \"net.ipv4.tcp_syncookies\": may not be set when hostNetwork",
            ],
        ),
        (
            vec![
                ("/spec/containers/0/ports/0/containerPort", json!(0)),
                ("/spec/containers/0/image", json!("")),
            ],
            vec![
                "spec.containers[0].image: is required",
                "spec.containers[0].ports[0].containerPort: is required",
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

/// A node without an API server has three labels, and its name.
#[test]
fn a_pod_for_another_node_is_refused() {
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    let asks = |list: &str, key: &str, operator: &str, values: Value| json!({list: [{"key": key, "operator": operator, "values": values}]});
    let term = |key: &str, operator: &str, values: Value| asks("matchExpressions", key, operator, values);
    let name = |operator: &str, value: &str| asks("matchFields", "metadata.name", operator, json!([value]));
    let os = || term("kubernetes.io/os", "In", json!(["linux"]));
    for (terms, says) in [
        (json!([os()]), ""),
        (json!([term("kubernetes.io/os", "NotIn", json!(["linux"]))]), ": has no term"),
        (json!([term("kubernetes.io/os", "NotIn", json!(["linux"])), os()]), ""),
        (
            json!([term("disk", "In", json!(["ssd"]))]),
            ": has no term that fits this node, which is gw and has",
        ),
        (json!([term("disk", "NotIn", json!(["ssd"]))]), ""),
        (json!([term("disk", "Exists", Value::Null)]), ": has no term"),
        (json!([term("disk", "DoesNotExist", Value::Null)]), ""),
        (json!([term("kubernetes.io/hostname", "In", json!(["other", "gw"]))]), ""),
        (json!([term("kubernetes.io/hostname", "Gt", json!(["1"]))]), ": has no term"),
        (json!([name("In", "gw")]), ""),
        (json!([name("NotIn", "gw")]), ": has no term"),
        (json!([{}]), ": has no term"),
        (json!([]), ".nodeSelectorTerms: is required"),
        (json!([os(), term("disk", "In", json!([]))]), "matchExpressions[0].values: is required"),
        (json!([os(), term("disk", "Exists", json!(["x"]))]), "matchExpressions[0].values: may"),
        (json!([os(), term("disk", "Lt", json!(["1", "2"]))]), "matchExpressions[0].values: must"),
        (json!([os(), term("disk", "Is", json!(["1"]))]), "matchExpressions[0].operator: \"Is\""),
        (json!([os(), name("Exists", "gw")]), "matchFields[0].operator: \"Exists\""),
    ] {
        let mut pod = good();
        let required = json!({"nodeSelectorTerms": terms});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        change(&mut pod, "/spec/affinity", affinity);
        let got = errors(pod);
        let fits = match says {
            "" => got.is_empty(),
            says => got.len() == 1 && got[0].starts_with(&at[..40]) && got[0].contains(says),
        };
        assert!(fits, "{terms}: {got:?}");
    }
    for (key, value, fits) in [
        ("kubernetes.io~1os", "linux", true),
        ("beta.kubernetes.io~1os", "linux", true),
        ("kubernetes.io~1hostname", "gw", true),
        ("kubernetes.io~1hostname", "other", false),
        ("kubernetes.io~1arch", "pdp11", false),
        ("disk", "ssd", false),
    ] {
        let mut pod = good();
        change(&mut pod, &format!("/spec/nodeSelector/{key}"), json!(value));
        let got = errors(pod);
        assert_eq!(got.is_empty(), fits, "{got:?}");
        assert!(
            fits || got[0].contains(": does not fit this node, which has kubernetes.io/arch="),
            "{got:?}"
        );
    }
}

#[test]
fn what_this_version_does_not_do_is_refused() {
    for (pointer, to, field) in [
        ("/metadata/generateName", json!("a"), "metadata.generateName"),
        ("/metadata/finalizers", json!(["a.b/c"]), "metadata.finalizers"),
        (
            "/metadata/annotations/kubernetes.io~1config.mirror",
            json!("x"),
            "metadata.annotations[kubernetes.io/config.mirror]",
        ),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), "metadata.deletionTimestamp"),
        ("/spec/ephemeralContainers", json!([{"name": "e", "image": "x"}]), "spec.ephemeralContainers"),
        ("/spec/serviceAccountName", json!("s"), "spec.serviceAccountName"),
        ("/spec/serviceAccount", json!("s"), "spec.serviceAccount"),
        ("/spec/resourceClaims", json!([{"name": "s"}]), "spec.resourceClaims"),
        ("/spec/overhead", json!({"cpu": "1"}), "spec.overhead"),
        ("/spec/schedulingGates", json!([{"name": "a.b/c"}]), "spec.schedulingGates"),
        ("/spec/readinessGates", json!([{"conditionType": "a.b/c"}]), "spec.readinessGates"),
        ("/spec/resources", json!({"claims": [{"name": "x"}]}), "spec.resources.claims"),
        ("/spec/securityContext/windowsOptions", json!({}), "spec.securityContext.windowsOptions"),
        (
            "/spec/containers/0/livenessProbe",
            json!({"tcpSocket": {"port": 1}}),
            "spec.containers[0].livenessProbe",
        ),
        (
            "/spec/containers/0/readinessProbe",
            json!({"tcpSocket": {"port": 1}}),
            "spec.containers[0].readinessProbe",
        ),
        (
            "/spec/initContainers/1/startupProbe",
            json!({"tcpSocket": {"port": 1}}),
            "spec.initContainers[1].startupProbe",
        ),
        (
            "/spec/containers/0/lifecycle",
            json!({"preStop": {"exec": {"command": ["x"]}}}),
            "spec.containers[0].lifecycle.preStop",
        ),
        (
            "/spec/containers/0/volumeDevices",
            json!([{"name": "v", "devicePath": "/dev/x"}]),
            "spec.containers[0].volumeDevices",
        ),
        (
            "/spec/containers/0/resources/claims",
            json!([{"name": "x"}]),
            "spec.containers[0].resources.claims",
        ),
        (
            "/spec/containers/0/resources/limits/a.b~1gpu",
            json!("1"),
            "spec.containers[0].resources.limits[DOMAIN/NAME]",
        ),
        (
            "/spec/containers/0/resources/limits/ephemeral-storage",
            json!("1Gi"),
            "spec.containers[0].resources.limits.ephemeral-storage",
        ),
        (
            "/spec/volumes/0",
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        ),
        ("/spec/volumes/0", json!({"name": "v", "nfs": {"server": "x", "path": "/"}}), "spec.volumes[0].nfs"),
    ] {
        let mut pod = good();
        change(&mut pod, pointer, to);
        let got = errors(pod);
        assert_eq!(got.len(), 1, "{pointer}: {got:?}");
        let wanted = format!("{field}: is not supported by this version: ");
        assert!(got[0].starts_with(&wanted), "{pointer}: {got:?}");
    }
}

#[test]
fn errors_are_bounded() {
    let mut pod = good();
    pod["spec"]["containers"] = json!(vec![json!({"name": "a"}); 100]);
    assert_eq!(errors(pod).len(), limits::FIELD_ERRORS_MAX);
}
