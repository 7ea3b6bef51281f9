//! Probes.

use super::*;

#[test]
fn probes() {
    for (field, probe, says) in [
        ("livenessProbe", json!({}), ": Required value: one of exec, httpGet, tcpSocket and grpc"),
        ("livenessProbe", json!({"exec": {}}), ".exec.command: Required value"),
        (
            "livenessProbe",
            json!({"exec": {"command": ["x"]}, "grpc": {"port": 1}}),
            ".grpc: Forbidden: may not be given beside exec",
        ),
        (
            "livenessProbe",
            json!({"httpGet": {"port": 0}}),
            ".httpGet.port: Invalid value: 0: must be between 1 and 65535",
        ),
        (
            "livenessProbe",
            json!({"tcpSocket": {"port": "Web"}}),
            ".tcpSocket.port: Invalid value: \"Web\": must be at most 15",
        ),
        (
            "livenessProbe",
            json!({"grpc": {"port": 65536}}),
            ".grpc.port: Invalid value: 65536: must be between 1 and 65535",
        ),
        (
            "livenessProbe",
            json!({"httpGet": {"port": 1, "scheme": "http"}}),
            ".httpGet.scheme: Unsupported value: \"http\": supported values: \"HTTP\"",
        ),
        (
            "startupProbe",
            json!({"httpGet": {"port": "http", "httpHeaders": [{"name": "A B", "value": "x"}]}}),
            ".httpGet.httpHeaders[0].name: Invalid value: \"A B\": must be letters, digits and '-'",
        ),
        (
            "livenessProbe",
            json!({"tcpSocket": {"port": 1}, "periodSeconds": -1}),
            ".periodSeconds: Invalid value: -1: must be 0 or more",
        ),
        (
            "livenessProbe",
            json!({"tcpSocket": {"port": 1}, "successThreshold": 2}),
            ".successThreshold: Invalid value: 2: must be 1",
        ),
        (
            "startupProbe",
            json!({"tcpSocket": {"port": 1}, "successThreshold": 2}),
            ".successThreshold: Invalid value: 2: must be 1",
        ),
        (
            "startupProbe",
            json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 0}),
            ".terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "readinessProbe",
            json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 7}),
            ".terminationGracePeriodSeconds: Invalid value: 7: may not be given for a readiness probe",
        ),
    ] {
        for place in ["containers/0", "initContainers/1"] {
            let mut pod = good();
            change(&mut pod, &format!("/spec/{place}/{field}"), probe.clone());
            let got = errors(pod);
            let (list, index) = place.split_once('/').unwrap();
            let wanted = format!("spec.{list}[{index}].{field}{says}");
            assert!(got.len() == 1 && got[0].starts_with(&wanted), "{wanted}: {got:?}");
        }
    }
    let mut pod = good();
    let probe = json!({"httpGet": {"port": "http"}, "successThreshold": 2});
    change(&mut pod, "/spec/containers/0/readinessProbe", probe.clone());
    assert_eq!(errors(pod), Vec::<String>::new());
    let mut pod = good();
    change(&mut pod, "/spec/initContainers/0/readinessProbe", probe);
    assert!(errors(pod)[0].contains("may not be given for an init container without restartPolicy: Always"));
}

#[test]
fn a_hook_does_one_thing_within_the_grace_period() {
    for (hook, says) in [
        (json!({}), ": Required value: one of exec, httpGet, tcpSocket and sleep"),
        (json!({"exec": {"command": []}}), ".exec.command: Required value"),
        (
            json!({"exec": {"command": ["x"]}, "sleep": {"seconds": 1}}),
            ".sleep: Forbidden: may not be given beside exec",
        ),
        (json!({"httpGet": {"port": 0}}), ".httpGet.port: Invalid value: 0: must be between 1 and 65535"),
        (
            json!({"httpGet": {"port": 1, "scheme": "https"}}),
            ".httpGet.scheme: Unsupported value: \"https\": supported values: \"HTTP\"",
        ),
        (json!({"tcpSocket": {"port": "A"}}), ".tcpSocket.port: Invalid value: \"A\""),
        (json!({"sleep": {"seconds": -1}}), ".sleep.seconds: Invalid value: -1: must be between 0 and 30"),
        (json!({"sleep": {"seconds": 31}}), ".sleep.seconds: Invalid value: 31: must be between 0 and 30"),
    ] {
        for field in ["postStart", "preStop"] {
            let mut pod = good();
            change(&mut pod, "/spec/containers/0/lifecycle", json!({ field: hook }));
            let got = errors(pod);
            let wanted = format!("spec.containers[0].lifecycle.{field}{says}");
            assert!(got.len() == 1 && got[0].starts_with(&wanted), "{wanted}: {got:?}");
        }
    }
    let hook = json!({"preStop": {"sleep": {"seconds": 30}}, "postStart": {"tcpSocket": {"port": "http"}}});
    for (place, errors_wanted) in [("containers/0", 0), ("initContainers/1", 0), ("initContainers/0", 1)] {
        let mut pod = good();
        change(&mut pod, &format!("/spec/{place}/lifecycle"), hook.clone());
        assert_eq!(errors(pod).len(), errors_wanted, "{place}");
    }
}
