//! Golden pages, and the section "Why" of failing pods.

use super::*;
use crate::printers::text::is_hostile;
use serde_json::{Value, json};

/// 2026-01-01T01:00:00Z
const NOW: Wall = Wall(1_767_229_200_000_000_000);

fn pod_of(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn rich_pod() -> Pod {
    pod_of(json!({
        "metadata": {
            "name": "web-gateway",
            "namespace": "default",
            "uid": "f2b5",
            "labels": {"app": "web", "tier": "front"},
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": {
            "nodeName": "gateway",
            "serviceAccountName": "default",
            "initContainers": [{"name": "setup", "image": "busybox:1", "command": ["sh", "-c", "echo a\necho b"]}],
            "containers": [
                {
                    "name": "web",
                    "image": "nginx:1",
                    "args": ["--port", "80"],
                    "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}],
                    "resources": {"limits": {"cpu": "1", "memory": "128Mi"}, "requests": {"cpu": "100m"}},
                    "livenessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
                    "readinessProbe": {"exec": {"command": ["test", "-f", "/ready"]}},
                    "startupProbe": {"tcpSocket": {"port": 80}},
                    "envFrom": [{"configMapRef": {"name": "settings"}}, {"prefix": "S_", "secretRef": {"name": "keys", "optional": true}}],
                    "env": [
                        {"name": "MODE", "value": "fast"},
                        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
                        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level", "optional": true}}},
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    ],
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/srv", "readOnly": true, "subPath": "www"},
                        {"name": "logs", "mountPath": "/log"},
                    ],
                },
                {"name": "side", "image": "side:2"},
            ],
            "volumes": [
                {"name": "data", "hostPath": {"path": "/srv/web", "type": "Directory"}},
                {"name": "logs", "emptyDir": {"sizeLimit": "10Mi"}},
                {"name": "conf", "configMap": {"name": "settings"}},
                {"name": "keys", "secret": {"secretName": "keys", "optional": true}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "all", "projected": {"sources": [{"configMap": {"name": "settings"}}, {"secret": {"name": "keys"}}]}},
                {"name": "model", "image": {"reference": "model:1", "pullPolicy": "IfNotPresent"}},
                {"name": "net", "nfs": {"server": "s", "path": "/"}},
                {"name": "ceph", "cephfs": {"monitors": ["m"]}},
            ],
        },
        "status": {
            "phase": "Running",
            "hostIP": "192.0.2.1",
            "podIP": "10.42.0.5",
            "podIPs": [{"ip": "10.42.0.5"}, {"ip": "fd00::5"}],
            "startTime": "2026-01-01T00:00:00Z",
            "qosClass": "Burstable",
            "conditions": [
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            ],
            "initContainerStatuses": [{
                "name": "setup", "image": "busybox:1", "imageID": "busybox@sha256:1", "ready": true, "restartCount": 0,
                "containerID": "containerd://i1",
                "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:02Z"}},
            }],
            "containerStatuses": [
                {
                    "name": "side", "image": "side:2", "imageID": "side@sha256:2", "ready": true, "started": true, "restartCount": 0,
                    "containerID": "containerd://s1",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}},
                },
                {
                    "name": "web", "image": "nginx:1", "imageID": "nginx@sha256:3", "ready": false, "restartCount": 4,
                    "containerID": "containerd://w4",
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=web"}},
                    "lastState": {"terminated": {
                        "exitCode": 1, "reason": "Error", "message": "no config\n", "startedAt": "2026-01-01T00:57:00Z", "finishedAt": "2026-01-01T00:58:00Z",
                    }},
                },
            ],
        },
    }))
}

#[test]
fn the_page_is_golden() {
    let decisions = [
        Decision {
            seen: "60m".to_owned(),
            warning: false,
            reason: "Created",
            message: "created container setup",
        },
        Decision {
            seen: "2m (x4 over 5m)".to_owned(),
            warning: true,
            reason: "BackOff",
            message: "restarting web in 40 s",
        },
    ];
    let page = describe(&rich_pod(), &decisions, NOW, Style::PLAIN);
    assert_eq!(page, include_str!("../describe.golden"), "\n{page}");
}

#[test]
fn a_pod_with_nothing_known_has_a_page() {
    let page = describe(&Pod::default(), &[], NOW, Style::PLAIN);
    assert_eq!(
        page,
        "\
Name:             <none>
Namespace:        <none>
UID:              <none>
Priority:         0
Node:             <none>
Labels:           <none>
Annotations:      <none>
Status:           Unknown
IP:
IPs:              <none>
Volumes:          <none>
QoS Class:        BestEffort
Events:           <none>
"
    );
}

/// (init status, app status) → the section "Why".
#[test]
fn why_it_does_not_run_is_said_in_a_sentence() {
    let status = |name: &str, rest: &Value| {
        let mut value = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        for (key, part) in rest.as_object().unwrap() {
            value[key] = part.clone();
        }
        value
    };
    let waiting =
        |reason: &str, message: &str| json!({"state": {"waiting": {"reason": reason, "message": message}}});
    let turn = waiting("PodInitializing", "");
    for (init, app, said) in [
        (json!({"state": {"terminated": {"exitCode": 0}}}), waiting("ContainerCreating", ""), ""),
        (
            json!({"state": {"terminated": {"exitCode": 0}}}),
            waiting("ImagePullBackOff", "Back-off pulling image \"x\""),
            "Why:\n  container a: ImagePullBackOff: Back-off pulling image \"x\"\n",
        ),
        (
            json!({"state": {"running": {"startedAt": "2026-01-01T00:50:00Z"}}}),
            turn.clone(),
            "Why:\n  init container i: has been running for 10m; the pod waits for it to end\n",
        ),
        (
            json!({"state": {"terminated": {"exitCode": 2, "reason": "Error", "message": "no disk"}}}),
            turn.clone(),
            "Why:\n  init container i: ended with Error, exit code 2: no disk\n",
        ),
        (
            json!({"state": {"terminated": {"exitCode": 0}}}),
            json!({"state": {"terminated": {"exitCode": 3}}}),
            "Why:\n  container a: ended with ExitCode:3, exit code 3\n",
        ),
        (
            json!({"state": {"terminated": {"exitCode": 0}}}),
            json!({"state": {"running": {}}, "started": false}),
            "Why:\n  container a: is running, its startup probe has not succeeded yet\n",
        ),
        (
            json!({"state": {"terminated": {"exitCode": 0}}}),
            json!({"state": {"running": {}}, "started": true}),
            "Why:\n  container a: is running, its readiness probe does not succeed\n",
        ),
        (
            json!({"state": {"terminated": {"exitCode": 0}}}),
            json!({"state": {"running": {}}, "started": true, "ready": true}),
            "",
        ),
    ] {
        let pod = pod_of(json!({
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]},
            "status": {"initContainerStatuses": [status("i", &init)], "containerStatuses": [status("a", &app)]},
        }));
        let page = describe(&pod, &[], NOW, Style::PLAIN);
        let start = page.find("Why:").unwrap_or(page.find("Init Containers:").unwrap());
        assert_eq!(&page[start..page.find("Init Containers:").unwrap()], said, "{page}");
    }
}

#[test]
fn secrets_stay_secret_and_hostile_text_stays_text() {
    let evil = "\u{1b}]0;x\u{7}\u{9b}2J\r\u{202e}";
    let mut text = serde_json::to_string(&rich_pod()).unwrap();
    for word in [
        "web-gateway",
        "default",
        "nginx",
        "MODE",
        "fast",
        "front",
        "no config",
        "back-off",
        "settings",
        "Directory",
        "www",
    ] {
        text = text.replace(word, serde_json::to_string(&format!("{word}{evil}")).unwrap().trim_matches('"'));
    }
    let pod: Pod = serde_json::from_str(&text).unwrap();
    let decisions = [Decision { seen: evil.to_owned(), warning: true, reason: evil, message: evil }];
    let page = describe(&pod, &decisions, NOW, Style::PLAIN);
    assert!(!page.contains(|c| c != '\n' && is_hostile(c)), "{page}");
    assert!(page.contains("<set to the key 'password' in secret 'keys'>  Optional: false"), "{page}");
    let lines = describe(&rich_pod(), &decisions, NOW, Style::PLAIN).lines().count();
    assert_eq!(page.lines().count(), lines, "no line was added");
}

#[test]
fn a_pod_on_its_way_out_says_so() {
    let mut pod = rich_pod();
    pod.metadata.deletion_timestamp = crate::status::time(Wall(NOW.0 - 30_000_000_000));
    pod.metadata.deletion_grace_period_seconds = Some(60);
    let page = describe(&pod, &[], NOW, Style::PLAIN);
    assert!(
        page.contains("Status:           Terminating (lasts 30s)\nTermination Grace Period:  60s\n"),
        "{page}"
    );
    assert!(!page.contains("Why:"));
}

#[test]
fn the_agents_events_are_decisions() {
    let pod = crate::model::PodKey::new("default", "web", "u");
    let mut ring = crate::events::EventRing::default();
    let at = |second: i64| Mono(second * 1_000_000_000);
    for second in [0, 10, 20] {
        ring.record((&pod).into(), EventKind::Warning, "BackOff", "restarting", at(second));
    }
    // Independent of the wall clock.
    let decisions: Vec<Decision<'_>> = ring.iter().map(|event| Decision::of(&event, at(30))).collect();
    let page = describe(&Pod::default(), &decisions, NOW, Style::PLAIN);
    assert!(page.ends_with("  Warning   BackOff   10s (x3 over 30s)   restarting\n"), "{page}");
}
