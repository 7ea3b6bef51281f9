//! Probes.

use super::*;

#[test]
fn probes() {
    for (field, probe, says) in [
        ("livenessProbe", json!({}), ": is required: one of exec, httpGet, tcpSocket and grpc"),
        ("livenessProbe", json!({"exec": {}}), ".exec.command: is required"),
        (
            "livenessProbe",
            json!({"exec": {"command": ["x"]}, "grpc": {"port": 1}}),
            ".grpc: may not be given beside exec",
        ),
        ("livenessProbe", json!({"httpGet": {"port": 0}}), ".httpGet.port: 0: must be between 1 and 65535"),
        (
            "livenessProbe",
            json!({"tcpSocket": {"port": "Web"}}),
            ".tcpSocket.port: \"Web\": must be at most 15",
        ),
        ("livenessProbe", json!({"grpc": {"port": 65536}}), ".grpc.port: 65536: must be between 1 and 65535"),
        (
            "livenessProbe",
            json!({"httpGet": {"port": 1, "scheme": "HTTPS"}}),
            ".httpGet.scheme: \"HTTPS\": is not supported by this version",
        ),
        (
            "livenessProbe",
            json!({"httpGet": {"port": 1, "scheme": "http"}}),
            ".httpGet.scheme: \"http\": must be one of HTTP",
        ),
        (
            "startupProbe",
            json!({"httpGet": {"port": "http", "httpHeaders": [{"name": "A B", "value": "x"}]}}),
            ".httpGet.httpHeaders[0].name: \"A B\": must be letters, digits and '-'",
        ),
        (
            "livenessProbe",
            json!({"tcpSocket": {"port": 1}, "periodSeconds": -1}),
            ".periodSeconds: -1: must be 0 or more",
        ),
        (
            "livenessProbe",
            json!({"tcpSocket": {"port": 1}, "successThreshold": 2}),
            ".successThreshold: 2: must be 1",
        ),
        (
            "startupProbe",
            json!({"tcpSocket": {"port": 1}, "successThreshold": 2}),
            ".successThreshold: 2: must be 1",
        ),
        (
            "startupProbe",
            json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 0}),
            ".terminationGracePeriodSeconds: 0: must be greater than 0",
        ),
        (
            "readinessProbe",
            json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 7}),
            ".terminationGracePeriodSeconds: 7: may not be given for a readiness probe",
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
