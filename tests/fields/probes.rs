//! The fields of probes and hooks, for `honoured`.

use serde_json::{Value, json};

use crate::effects::Owner::{self, Check, Probe};
use crate::honoured::Row;

/// A build without TLS refuses it.
const OF_HTTPS: Owner = if cfg!(feature = "tls") { Probe } else { Check };

/// A sidecar, or an app container, with that probe.
fn probed(field: &'static str, probe: Value) -> Vec<(&'static str, Value)> {
    vec![
        ("spec.containers[*].restartPolicyRules", Value::Null),
        ("spec.containers[*].restartPolicy", json!("Always")),
        (field, probe),
    ]
}

/// A field of a readiness probe.
macro_rules! readiness {
    ($field:literal, $to:expr, $owner:expr, $probe:expr) => {
        Row(
            concat!("spec.containers[*].readinessProbe.", $field),
            $to,
            $owner,
            probed("spec.containers[*].readinessProbe", $probe),
        )
    };
}

/// A field of a postStart hook.
macro_rules! post_start {
    ($field:literal, $to:expr, $owner:expr, $hook:expr) => {
        Row(
            concat!("spec.containers[*].lifecycle.postStart.", $field),
            $to,
            $owner,
            vec![
                ("spec.containers[*].restartPolicyRules", Value::Null),
                ("spec.containers[*].restartPolicy", json!("Always")),
                ("spec.containers[*].lifecycle", json!({ "postStart": $hook })),
            ],
        )
    };
}

pub fn rows() -> Vec<Row> {
    let exec = || json!({"exec": {"command": ["x"]}});
    let get = || json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "A", "value": "1"}]}});
    vec![
        Row(
            "spec.containers[*].livenessProbe.successThreshold",
            json!(2),
            Check,
            probed("spec.containers[*].livenessProbe", exec()),
        ),
        Row(
            "spec.containers[*].livenessProbe.terminationGracePeriodSeconds",
            json!(7),
            Probe,
            probed("spec.containers[*].livenessProbe", exec()),
        ),
        readiness!("exec.command", json!(["y"]), Probe, exec()),
        readiness!("failureThreshold", json!(7), Probe, exec()),
        readiness!("grpc.port", json!(7), Probe, json!({"grpc": {"port": 1}})),
        readiness!("grpc.service", json!("db"), Probe, json!({"grpc": {"port": 1}})),
        readiness!("httpGet.host", json!("h"), Probe, get()),
        readiness!("httpGet.httpHeaders[*].name", json!("B"), Probe, get()),
        readiness!("httpGet.httpHeaders[*].value", json!("2"), Probe, get()),
        readiness!("httpGet.path", json!("/x"), Probe, get()),
        readiness!("httpGet.port", json!("http"), Probe, get()),
        readiness!("httpGet.scheme", json!("HTTPS"), OF_HTTPS, get()),
        readiness!("initialDelaySeconds", json!(7), Probe, exec()),
        readiness!("periodSeconds", json!(7), Probe, exec()),
        readiness!("successThreshold", json!(7), Probe, exec()),
        readiness!("tcpSocket.host", json!("h"), Probe, json!({"tcpSocket": {"port": 1}})),
        readiness!("tcpSocket.port", json!("http"), Probe, json!({"tcpSocket": {"port": 1}})),
        readiness!("terminationGracePeriodSeconds", json!(7), Check, exec()),
        readiness!("timeoutSeconds", json!(7), Probe, exec()),
        post_start!("exec.command", json!(["y"]), Probe, exec()),
        post_start!("httpGet.host", json!("h"), Probe, get()),
        post_start!("httpGet.httpHeaders[*].name", json!("B"), Probe, get()),
        post_start!("httpGet.httpHeaders[*].value", json!("2"), Probe, get()),
        post_start!("httpGet.path", json!("/x"), Probe, get()),
        post_start!("httpGet.port", json!("http"), Probe, get()),
        post_start!("httpGet.scheme", json!("HTTPS"), OF_HTTPS, get()),
        post_start!("sleep.seconds", json!(7), Probe, json!({"sleep": {"seconds": 1}})),
        post_start!("tcpSocket.host", json!("h"), Probe, json!({"tcpSocket": {"port": 1}})),
        post_start!("tcpSocket.port", json!("http"), Probe, json!({"tcpSocket": {"port": 1}})),
    ]
}
