//! What the table calls honoured makes a difference where it is to make one, and what it calls not applicable makes
//! none anywhere.

use serde_json::{Value, json};
use smolet::source::validate::fields::{Answer, Field, fields};

use crate::effects::Owner::{
    self, Check, Container, Hosts, Plan, Pull, Sandbox, Shutdown, Status, Stop, Volumes,
};
use crate::effects::{OWNERS, effects};
use crate::{line_of, probes, set};

/// A pod that has something of most fields.
fn pod() -> Value {
    let container = |name: &str| {
        json!({
            "name": name, "image": "img:1", "command": ["/x"], "args": ["a"],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "R", "valueFrom": {"resourceFieldRef":
                    {"resource": "limits.cpu", "containerName": "d", "divisor": "1"}}},
                {"name": "M", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
                {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "s"}}],
            "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.1"}],
            "volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}, {"name": "i", "mountPath": "/i"}],
            "resources": {"limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"cpu": "1"}},
            "restartPolicy": "Never",
            "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [7]}}],
            "securityContext": {"capabilities": {}, "seccompProfile": {"type": "RuntimeDefault"}},
        })
    };
    let items = json!([{"key": "k", "path": "f"}, {"key": "other", "path": "g"}]);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [container("i")],
            "containers": [container("c"), {"name": "d", "image": "img:1", "resources": {"limits": {"cpu": "13"}}}],
            "volumes": [
                // Mounted nowhere, so that it may get another name.
                {"name": "spare", "emptyDir": {}},
                {"name": "e", "emptyDir": {}},
                {"name": "h", "hostPath": {"path": "/srv", "type": "Directory"}},
                {"name": "n", "nfs": {"server": "nas", "path": "/data"}},
                {"name": "m", "configMap": {"name": "m", "items": items}},
                {"name": "s", "secret": {"secretName": "s", "items": items}},
                {"name": "i", "image": {"reference": "model:1"}},
            ],
            "subdomain": "sub", "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.2"], "options": [{"name": "ndots", "value": "2"}]},
            "os": {"name": "linux"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            ]}}},
            "securityContext": {
                "seccompProfile": {"type": "RuntimeDefault"},
                "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}],
            },
        },
    });
    // What a version refuses it cannot have.
    let table = fields();
    let taken = |field| line_of(&table, field).is_some_and(|line| line.answer != Answer::Refused);
    let file = json!({"volumeName": "e", "path": "env", "key": "k"});
    for list in ["initContainers", "containers"] {
        if taken("spec.containers[*].env[*].valueFrom.fileKeyRef.key") {
            let variables = pod["spec"][list][0]["env"].as_array_mut().unwrap();
            variables.push(json!({"name": "K", "valueFrom": {"fileKeyRef": file}}));
        }
    }
    let items = json!([
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "cpu", "resourceFieldRef": {"resource": "limits.cpu", "containerName": "d", "divisor": "1"}},
    ]);
    let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
    if taken("spec.volumes[*].downwardAPI.items[*].path") {
        volumes.push(json!({"name": "a", "downwardAPI": {"items": items}}));
    }
    if taken("spec.volumes[*].projected.sources[*].configMap.name") {
        volumes.push(json!({"name": "p", "projected": {"sources": [
            {"configMap": {"name": "m", "items": [{"key": "k", "path": "m"}]}},
            {"secret": {"name": "s", "items": [{"key": "k", "path": "s"}]}},
            {"downwardAPI": {"items": items}},
        ]}}));
    }
    pod
}

/// A field, what it is set to, who acts on it, and what the pod has in both cases beside that; null removes.
#[derive(Clone)]
pub struct Row(pub &'static str, pub Value, pub Owner, pub Vec<(&'static str, Value)>);

/// A field of a term of the required node affinity.
macro_rules! node {
    ($field:literal) => {
        concat!(
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[*].",
            $field
        )
    };
}

/// The honoured fields, in the table's order.
fn rows() -> Vec<Row> {
    let row = |field, to, owner| Row(field, to, owner, Vec::new());
    const C: &str = "spec.containers[*].securityContext";
    const SECCOMP: &str = "spec.containers[*].securityContext.seccompProfile";
    const OF_POD: &str = "spec.securityContext.seccompProfile";
    let localhost = || json!({"type": "Localhost", "localhostProfile": "a.json"});
    let resized = || {
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        vec![
            ("spec.restartPolicy", json!("Always")),
            ("spec.containers[*].restartPolicyRules", Value::Null),
            ("spec.containers[*].restartPolicy", json!("Always")),
            ("spec.containers[*].resizePolicy", policy),
        ]
    };
    let own_rules = || {
        vec![
            ("spec.containers[*].restartPolicyRules", Value::Null),
            ("spec.containers[*].restartPolicy", Value::Null),
        ]
    };
    vec![
        row("metadata.annotations", json!({"a": "b"}), Sandbox),
        row("metadata.deletionGracePeriodSeconds", json!(7), Stop),
        row("metadata.generation", json!(7), Status),
        row("metadata.labels", json!({"a": "b"}), Sandbox),
        row("metadata.name", json!("q"), Sandbox),
        row("metadata.namespace", json!("other"), Sandbox),
        row("metadata.uid", json!("u2"), Sandbox),
        row("spec.activeDeadlineSeconds", json!(30), Status),
        row(node!("matchExpressions[*].key"), json!("disk"), Check),
        row(node!("matchExpressions[*].operator"), json!("NotIn"), Check),
        row(node!("matchExpressions[*].values"), json!(["plan9"]), Check),
        row(node!("matchFields[*].key"), json!("metadata.uid"), Check),
        row(node!("matchFields[*].operator"), json!("NotIn"), Check),
        row(node!("matchFields[*].values"), json!(["other"]), Check),
        row("spec.containers[*].args", json!(["b"]), Container),
        row("spec.containers[*].command", json!(["/y"]), Container),
        row("spec.containers[*].env[*].name", json!("B"), Container),
        row("spec.containers[*].env[*].value", json!("2"), Container),
        row("spec.containers[*].env[*].valueFrom.configMapKeyRef.key", json!("other"), Container),
        row("spec.containers[*].env[*].valueFrom.configMapKeyRef.name", json!("m2"), Container),
        Row(
            "spec.containers[*].env[*].valueFrom.configMapKeyRef.optional",
            json!(true),
            Container,
            vec![("spec.containers[*].env[*].valueFrom.configMapKeyRef.name", json!("none"))],
        ),
        row("spec.containers[*].env[*].valueFrom.fieldRef.apiVersion", json!("v2"), Check),
        row("spec.containers[*].env[*].valueFrom.fieldRef.fieldPath", json!("metadata.uid"), Container),
        row("spec.containers[*].env[*].valueFrom.resourceFieldRef.containerName", json!("c"), Container),
        row("spec.containers[*].env[*].valueFrom.resourceFieldRef.divisor", json!("1m"), Container),
        row("spec.containers[*].env[*].valueFrom.fileKeyRef.key", json!("l"), Container),
        Row(
            "spec.containers[*].env[*].valueFrom.fileKeyRef.optional",
            json!(true),
            Container,
            vec![("spec.containers[*].env[*].valueFrom.fileKeyRef.key", json!("none"))],
        ),
        row("spec.containers[*].env[*].valueFrom.fileKeyRef.path", json!("env2"), Container),
        row("spec.containers[*].env[*].valueFrom.fileKeyRef.volumeName", json!("spare"), Container),
        row(
            "spec.containers[*].env[*].valueFrom.resourceFieldRef.resource",
            json!("limits.memory"),
            Container,
        ),
        row("spec.containers[*].env[*].valueFrom.secretKeyRef.key", json!("other"), Container),
        row("spec.containers[*].env[*].valueFrom.secretKeyRef.name", json!("s2"), Container),
        Row(
            "spec.containers[*].env[*].valueFrom.secretKeyRef.optional",
            json!(true),
            Container,
            vec![("spec.containers[*].env[*].valueFrom.secretKeyRef.name", json!("none"))],
        ),
        row("spec.containers[*].envFrom[*].configMapRef.name", json!("m2"), Container),
        Row(
            "spec.containers[*].envFrom[*].configMapRef.optional",
            json!(true),
            Container,
            vec![("spec.containers[*].envFrom[*].configMapRef.name", json!("none"))],
        ),
        row("spec.containers[*].envFrom[*].prefix", json!("P_"), Container),
        row("spec.containers[*].envFrom[*].secretRef.name", json!("s2"), Container),
        Row(
            "spec.containers[*].envFrom[*].secretRef.optional",
            json!(true),
            Container,
            vec![("spec.containers[*].envFrom[*].secretRef.name", json!("none"))],
        ),
        row("spec.containers[*].image", json!("img:2"), Container),
        row("spec.containers[*].imagePullPolicy", json!("Always"), Pull),
        Row(
            "spec.containers[*].lifecycle.stopSignal",
            json!("SIGUSR1"),
            Container,
            vec![
                ("spec.containers[*].lifecycle", json!({})),
                ("spec.containers[*].restartPolicy", json!("Always")),
            ],
        ),
        row("spec.containers[*].name", json!("e"), Container),
        row("spec.containers[*].ports[*].containerPort", json!(81), Container),
        row("spec.containers[*].ports[*].hostIP", json!("192.0.2.3"), Sandbox),
        row("spec.containers[*].ports[*].hostPort", json!(8081), Sandbox),
        row("spec.containers[*].ports[*].name", json!("web"), Container),
        row("spec.containers[*].ports[*].protocol", json!("UDP"), Container),
        row("spec.containers[*].resources.limits", json!({"cpu": "2", "memory": "65Mi"}), Container),
        row("spec.containers[*].resources.requests", json!({"cpu": "500m"}), Container),
        Row("spec.containers[*].resizePolicy[*].resourceName", json!("memory"), Plan, resized()),
        Row("spec.containers[*].resizePolicy[*].restartPolicy", json!("NotRequired"), Plan, resized()),
        row("spec.containers[*].restartPolicy", json!("OnFailure"), Plan),
        row("spec.containers[*].restartPolicyRules[*].action", json!("RestartAllContainers"), Plan),
        row("spec.containers[*].restartPolicyRules[*].exitCodes.operator", json!("NotIn"), Plan),
        row("spec.containers[*].restartPolicyRules[*].exitCodes.values", json!([9]), Plan),
        row("spec.containers[*].securityContext.allowPrivilegeEscalation", json!(false), Container),
        Row(
            "spec.containers[*].securityContext.appArmorProfile.localhostProfile",
            json!("b"),
            Container,
            vec![(
                "spec.containers[*].securityContext.appArmorProfile",
                json!({"type": "Localhost", "localhostProfile": "a"}),
            )],
        ),
        Row(
            "spec.containers[*].securityContext.appArmorProfile.type",
            json!("Unconfined"),
            Container,
            vec![("spec.containers[*].securityContext.appArmorProfile", json!({"type": "RuntimeDefault"}))],
        ),
        row("spec.containers[*].securityContext.capabilities.add", json!(["NET_ADMIN"]), Container),
        row("spec.containers[*].securityContext.capabilities.drop", json!(["ALL"]), Container),
        row("spec.containers[*].securityContext.privileged", json!(true), Container),
        Row(
            "spec.containers[*].securityContext.procMount",
            json!("Unmasked"),
            Container,
            vec![("spec.hostUsers", json!(false))],
        ),
        row("spec.containers[*].securityContext.readOnlyRootFilesystem", json!(true), Container),
        row("spec.containers[*].securityContext.runAsGroup", json!(5), Container),
        row("spec.containers[*].securityContext.runAsNonRoot", json!(true), Container),
        row("spec.containers[*].securityContext.runAsUser", json!(5), Container),
        Row(
            "spec.containers[*].securityContext.seLinuxOptions.level",
            json!("x"),
            Container,
            vec![("spec.containers[*].securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.containers[*].securityContext.seLinuxOptions.role",
            json!("x"),
            Container,
            vec![("spec.containers[*].securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.containers[*].securityContext.seLinuxOptions.type",
            json!("x"),
            Container,
            vec![("spec.containers[*].securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.containers[*].securityContext.seLinuxOptions.user",
            json!("x"),
            Container,
            vec![("spec.containers[*].securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.containers[*].securityContext.seccompProfile.localhostProfile",
            json!("b.json"),
            Container,
            vec![(SECCOMP, localhost())],
        ),
        row("spec.containers[*].securityContext.seccompProfile.type", json!("Unconfined"), Container),
        row("spec.containers[*].stdin", json!(true), Container),
        row("spec.containers[*].stdinOnce", json!(true), Container),
        row("spec.containers[*].terminationMessagePath", json!("/log"), Container),
        row("spec.containers[*].terminationMessagePolicy", json!("FallbackToLogsOnError"), Container),
        row("spec.containers[*].tty", json!(true), Container),
        row("spec.containers[*].volumeMounts[*].mountPath", json!("/f"), Container),
        row("spec.containers[*].volumeMounts[*].mountPropagation", json!("HostToContainer"), Container),
        row("spec.containers[*].volumeMounts[*].name", json!("s"), Container),
        row("spec.containers[*].volumeMounts[*].readOnly", json!(true), Container),
        Row(
            "spec.containers[*].volumeMounts[*].recursiveReadOnly",
            json!("Enabled"),
            Container,
            vec![("spec.containers[*].volumeMounts[*].readOnly", json!(true))],
        ),
        row("spec.containers[*].volumeMounts[*].subPath", json!("x"), Container),
        row("spec.containers[*].volumeMounts[*].subPathExpr", json!("$(A)"), Container),
        row("spec.containers[*].workingDir", json!("/w"), Container),
        row("spec.dnsConfig.nameservers", json!(["192.0.2.3"]), Sandbox),
        row("spec.dnsConfig.options[*].name", json!("timeout"), Sandbox),
        row("spec.dnsConfig.options[*].value", json!("3"), Sandbox),
        row("spec.dnsConfig.searches", json!(["a.example"]), Sandbox),
        row("spec.dnsPolicy", json!("Default"), Sandbox),
        Row(
            "spec.hostAliases[*].hostnames",
            json!(["b"]),
            Hosts,
            vec![("spec.hostAliases", json!([{"ip": "192.0.2.9", "hostnames": ["a"]}]))],
        ),
        Row(
            "spec.hostAliases[*].ip",
            json!("192.0.2.8"),
            Hosts,
            vec![("spec.hostAliases", json!([{"ip": "192.0.2.9", "hostnames": ["a"]}]))],
        ),
        Row("spec.hostIPC", json!(true), Sandbox, vec![("spec.securityContext.sysctls", Value::Null)]),
        Row(
            "spec.hostNetwork",
            json!(true),
            Sandbox,
            vec![("spec.containers[*].ports[*].hostPort", json!(80))],
        ),
        row("spec.hostPID", json!(true), Sandbox),
        row("spec.hostUsers", json!(false), Sandbox),
        row("spec.hostname", json!("h"), Sandbox),
        row("spec.hostnameOverride", json!("h"), Sandbox),
        Row(
            "spec.imagePullSecrets[*].name",
            json!("s2"),
            Pull,
            vec![("spec.imagePullSecrets", json!([{"name": "s"}]))],
        ),
        row("spec.nodeSelector", json!({"disk": "ssd"}), Check),
        row("spec.os.name", json!("windows"), Check),
        row("spec.priority", json!(7), Shutdown),
        row("spec.priorityClassName", json!("system-node-critical"), Container),
        Row("spec.resources.limits", json!({"cpu": "99"}), Sandbox, vec![("spec.resources", json!({}))]),
        Row("spec.resources.requests", json!({"cpu": "99"}), Sandbox, vec![("spec.resources", json!({}))]),
        Row("spec.restartPolicy", json!("OnFailure"), Plan, own_rules()),
        row("spec.runtimeClassName", json!("kata"), Sandbox),
        Row(
            "spec.securityContext.appArmorProfile.localhostProfile",
            json!("b"),
            Container,
            vec![(
                "spec.securityContext.appArmorProfile",
                json!({"type": "Localhost", "localhostProfile": "a"}),
            )],
        ),
        Row(
            "spec.securityContext.appArmorProfile.type",
            json!("Unconfined"),
            Container,
            vec![("spec.securityContext.appArmorProfile", json!({"type": "RuntimeDefault"}))],
        ),
        row("spec.securityContext.fsGroup", json!(5), Volumes),
        row("spec.securityContext.runAsGroup", json!(5), Container),
        row("spec.securityContext.runAsNonRoot", json!(true), Container),
        row("spec.securityContext.runAsUser", json!(5), Container),
        Row(
            "spec.securityContext.seLinuxOptions.level",
            json!("x"),
            Container,
            vec![("spec.securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.securityContext.seLinuxOptions.role",
            json!("x"),
            Container,
            vec![("spec.securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.securityContext.seLinuxOptions.type",
            json!("x"),
            Container,
            vec![("spec.securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.securityContext.seLinuxOptions.user",
            json!("x"),
            Container,
            vec![("spec.securityContext.seLinuxOptions", json!({"level": "s0"}))],
        ),
        Row(
            "spec.securityContext.seccompProfile.localhostProfile",
            json!("b.json"),
            Container,
            vec![(C, Value::Null), (OF_POD, localhost())],
        ),
        Row(
            "spec.securityContext.seccompProfile.type",
            json!("Unconfined"),
            Container,
            vec![(C, Value::Null)],
        ),
        row("spec.securityContext.supplementalGroups", json!([5]), Container),
        row("spec.securityContext.supplementalGroupsPolicy", json!("Strict"), Container),
        row("spec.securityContext.sysctls[*].name", json!("kernel.msgmax"), Sandbox),
        row("spec.securityContext.sysctls[*].value", json!("1"), Sandbox),
        row("spec.setHostnameAsFQDN", json!(true), Sandbox),
        row("spec.shareProcessNamespace", json!(true), Container),
        row("spec.subdomain", json!("other"), Hosts),
        row("spec.terminationGracePeriodSeconds", json!(7), Stop),
        row("spec.volumes[*].configMap.defaultMode", json!(0o400), Volumes),
        row("spec.volumes[*].configMap.items[*].key", json!("other"), Volumes),
        row("spec.volumes[*].configMap.items[*].mode", json!(0o400), Volumes),
        row("spec.volumes[*].configMap.items[*].path", json!("f2"), Volumes),
        row("spec.volumes[*].configMap.name", json!("m2"), Volumes),
        Row(
            "spec.volumes[*].configMap.optional",
            json!(true),
            Volumes,
            vec![("spec.volumes[*].configMap.name", json!("none"))],
        ),
        row("spec.volumes[*].downwardAPI.defaultMode", json!(0o400), Volumes),
        row("spec.volumes[*].downwardAPI.items[*].fieldRef.apiVersion", json!("v2"), Check),
        row("spec.volumes[*].downwardAPI.items[*].fieldRef.fieldPath", json!("metadata.namespace"), Volumes),
        row("spec.volumes[*].downwardAPI.items[*].mode", json!(0o400), Volumes),
        row("spec.volumes[*].downwardAPI.items[*].path", json!("name2"), Volumes),
        row("spec.volumes[*].downwardAPI.items[*].resourceFieldRef.containerName", json!("c"), Volumes),
        row("spec.volumes[*].downwardAPI.items[*].resourceFieldRef.divisor", json!("1m"), Volumes),
        row(
            "spec.volumes[*].downwardAPI.items[*].resourceFieldRef.resource",
            json!("limits.memory"),
            Volumes,
        ),
        row("spec.volumes[*].emptyDir.medium", json!("Memory"), Volumes),
        row("spec.volumes[*].emptyDir.sizeLimit", json!("1Mi"), Volumes),
        row("spec.volumes[*].hostPath.path", json!("/other"), Volumes),
        row("spec.volumes[*].hostPath.type", json!("File"), Volumes),
        row("spec.volumes[*].image.pullPolicy", json!("Always"), Pull),
        row("spec.volumes[*].image.reference", json!("model:2"), Container),
        row("spec.volumes[*].name", json!("spare2"), Volumes),
        row("spec.volumes[*].nfs.path", json!("/other"), Volumes),
        row("spec.volumes[*].nfs.readOnly", json!(true), Volumes),
        row("spec.volumes[*].nfs.server", json!("other"), Volumes),
        row("spec.volumes[*].projected.defaultMode", json!(0o400), Volumes),
        row("spec.volumes[*].projected.sources[*].configMap.items[*].key", json!("other"), Volumes),
        row("spec.volumes[*].projected.sources[*].configMap.items[*].mode", json!(0o400), Volumes),
        row("spec.volumes[*].projected.sources[*].configMap.items[*].path", json!("f2"), Volumes),
        row("spec.volumes[*].projected.sources[*].configMap.name", json!("m2"), Volumes),
        Row(
            "spec.volumes[*].projected.sources[*].configMap.optional",
            json!(true),
            Volumes,
            vec![("spec.volumes[*].projected.sources[*].configMap.name", json!("none"))],
        ),
        row(
            "spec.volumes[*].projected.sources[*].downwardAPI.items[*].fieldRef.apiVersion",
            json!("v2"),
            Check,
        ),
        row(
            "spec.volumes[*].projected.sources[*].downwardAPI.items[*].fieldRef.fieldPath",
            json!("metadata.namespace"),
            Volumes,
        ),
        row("spec.volumes[*].projected.sources[*].downwardAPI.items[*].mode", json!(0o400), Volumes),
        row("spec.volumes[*].projected.sources[*].downwardAPI.items[*].path", json!("name2"), Volumes),
        row(
            "spec.volumes[*].projected.sources[*].downwardAPI.items[*].resourceFieldRef.containerName",
            json!("c"),
            Volumes,
        ),
        row(
            "spec.volumes[*].projected.sources[*].downwardAPI.items[*].resourceFieldRef.divisor",
            json!("1m"),
            Volumes,
        ),
        row(
            "spec.volumes[*].projected.sources[*].downwardAPI.items[*].resourceFieldRef.resource",
            json!("limits.memory"),
            Volumes,
        ),
        row("spec.volumes[*].projected.sources[*].secret.items[*].key", json!("other"), Volumes),
        row("spec.volumes[*].projected.sources[*].secret.items[*].mode", json!(0o400), Volumes),
        row("spec.volumes[*].projected.sources[*].secret.items[*].path", json!("f2"), Volumes),
        row("spec.volumes[*].projected.sources[*].secret.name", json!("s2"), Volumes),
        Row(
            "spec.volumes[*].projected.sources[*].secret.optional",
            json!(true),
            Volumes,
            vec![("spec.volumes[*].projected.sources[*].secret.name", json!("none"))],
        ),
        row("spec.volumes[*].secret.defaultMode", json!(0o400), Volumes),
        row("spec.volumes[*].secret.items[*].key", json!("other"), Volumes),
        row("spec.volumes[*].secret.items[*].mode", json!(0o400), Volumes),
        row("spec.volumes[*].secret.items[*].path", json!("f2"), Volumes),
        Row(
            "spec.volumes[*].secret.optional",
            json!(true),
            Volumes,
            vec![("spec.volumes[*].secret.secretName", json!("none"))],
        ),
        row("spec.volumes[*].secret.secretName", json!("s2"), Volumes),
    ]
}

/// The fields that are not applicable, each with a value the check takes.
fn without_effect() -> Vec<(&'static str, Value)> {
    let windows = json!({"runAsUserName": "x", "hostProcess": true});
    let spread = json!([{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]);
    let term = json!([{"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b"}}}]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": term});
    vec![
        ("metadata.creationTimestamp", json!("2026-01-02T03:04:05Z")),
        ("metadata.managedFields", json!([{"manager": "x"}])),
        ("metadata.resourceVersion", json!("7")),
        ("metadata.selfLink", json!("x")),
        (
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
            json!([{"weight": 1, "preference": {}}]),
        ),
        ("spec.affinity.podAffinity", required.clone()),
        ("spec.affinity.podAntiAffinity", required),
        ("spec.automountServiceAccountToken", json!(true)),
        ("spec.enableServiceLinks", json!(false)),
        ("spec.nodeName", json!("elsewhere")),
        ("spec.preemptionPolicy", json!("Never")),
        ("spec.schedulerName", json!("x")),
        ("spec.containers[*].securityContext.windowsOptions", windows.clone()),
        ("spec.securityContext.windowsOptions", windows),
        ("spec.securityContext.fsGroupChangePolicy", json!("OnRootMismatch")),
        ("spec.securityContext.seLinuxChangePolicy", json!("Recursive")),
        ("spec.tolerations", json!([{"key": "a", "operator": "Exists", "effect": "NoExecute"}])),
        ("spec.topologySpreadConstraints", spread),
    ]
}

/// A row's field in that list of containers.
fn in_list(list: &str, path: &str) -> String {
    path.replacen("spec.containers[*]", &format!("spec.{list}[*]"), 1)
}

/// The lists of containers that a field is looked at in: all that the table gives its answer for.
fn lists(table: &[Field], field: &str, answer: Answer) -> Vec<&'static str> {
    let lists = ["containers", "initContainers"].into_iter();
    let of = |list: &&str| line_of(table, &in_list(list, field)).is_some_and(|line| line.answer == answer);
    lists.filter(of).take(if field.starts_with("spec.containers[*]") { 2 } else { 1 }).collect()
}

#[test]
fn every_honoured_field_makes_a_difference_to_the_one_that_acts_on_it() {
    let (table, rows) = (fields(), [rows(), probes::rows()].concat());
    let mut wrong = Vec::new();
    let mut shown = 0;
    for line in table.iter().filter(|line| line.answer == Answer::Honoured) {
        let Some(Row(_, to, owner, both)) = rows.iter().find(|row| row.0 == line.path) else {
            wrong.push(format!("{} has no row that shows what it does", line.path));
            continue;
        };
        for list in lists(&table, &line.path, Answer::Honoured) {
            let mut without = pod();
            for (field, value) in both {
                assert!(set(&mut without, &in_list(list, field), value), "{}: {field}", line.path);
            }
            let mut with = without.clone();
            assert!(set(&mut with, &in_list(list, &line.path), to), "{}", line.path);
            let (without, with) = (effects(&without), effects(&with));
            let refused = if *owner == Check { &without.problems } else { &with.problems };
            if !without.problems.is_empty() || !refused.is_empty() {
                wrong.push(format!("{} in {list}: {:?} {refused:?}", line.path, without.problems));
            } else if without.of(*owner) == with.of(*owner) {
                wrong.push(format!("{} in {list} changes nothing for {owner:?}", line.path));
            }
        }
        shown += 1;
    }
    for Row(field, ..) in &rows {
        // A row may be there before its feature.
        let refused = line_of(&table, field).is_some_and(|line| line.answer == Answer::Refused);
        if !refused && !table.iter().any(|line| line.path == *field && line.answer == Answer::Honoured) {
            wrong.push(format!("{field} has a row and is not honoured"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("fields honoured: {shown}, each seen to make a difference");
}

#[test]
fn what_is_not_applicable_changes_nothing() {
    let (table, rows) = (fields(), without_effect());
    let mut wrong = Vec::new();
    let mut before = pod();
    assert!(set(&mut before, "spec.securityContext.fsGroup", &json!(5)));
    // Beside os.name linux there may be no options for Windows.
    assert!(set(&mut before, "spec.os", &Value::Null));
    for line in table.iter().filter(|line| line.answer == Answer::NotApplicable) {
        // The exceptions of init containers.
        let field = line.path.replace("initContainers", "containers");
        let to = match rows.iter().find(|(field, _)| *field == line.path) {
            Some((_, to)) => to.clone(),
            None if field.ends_with("hostIP") => json!("192.0.2.7"),
            None if field.ends_with("hostPort") => json!(7),
            None => {
                wrong.push(format!("{} has no row that shows that it does nothing", line.path));
                continue;
            }
        };
        let lists = if field == line.path {
            lists(&table, &field, Answer::NotApplicable)
        } else {
            vec!["initContainers"]
        };
        for list in lists {
            let mut with = before.clone();
            assert!(set(&mut with, &in_list(list, &field), &to), "{}", line.path);
            let (without, with) = (effects(&before), effects(&with));
            // That a port is asked for is written on its container, as the kubelet does.
            let noted = |owner: &Owner| *owner == Container && field.contains(".ports[*].");
            for owner in OWNERS.into_iter().filter(|owner| !noted(owner)) {
                if without.of(owner) != with.of(owner) {
                    wrong.push(format!("{} in {list} does something: {owner:?}", line.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows.iter().all(|(field, _)| line_of(&table, field).is_some()));
}
