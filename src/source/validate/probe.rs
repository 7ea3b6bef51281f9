//! Probes (`validateProbe` and what it calls). PURE.

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Check, names};

/// The probes of a container that may have some.
pub(super) fn probes(check: &mut Check, container: &Container) {
    for (field, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let Some(probe) = probe else { continue };
        check.at(field, |check| {
            self::probe(check, probe);
            if field == "readinessProbe" {
                if let Some(seconds) = probe.termination_grace_period_seconds {
                    let message = "may not be given for a readiness probe";
                    check.at("terminationGracePeriodSeconds", |check| check.invalid(seconds, message));
                }
            } else if let Some(times) = probe.success_threshold.filter(|times| *times != 1) {
                check.at("successThreshold", |check| check.invalid(times, "must be 1"));
            }
        });
    }
}

/// `validateProbe`.
fn probe(check: &mut Check, probe: &Probe) {
    handler(check, probe);
    for (field, number) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        check.at(field, |check| check.not_negative(number.unwrap_or_default().into()));
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        check.at("terminationGracePeriodSeconds", |check| check.invalid(seconds, "must be greater than 0"));
    }
}

/// `validateHandler`.
fn handler(check: &mut Check, probe: &Probe) {
    let given = [
        ("exec", probe.exec.is_some()),
        ("httpGet", probe.http_get.is_some()),
        ("tcpSocket", probe.tcp_socket.is_some()),
        ("grpc", probe.grpc.is_some()),
    ];
    let mut given = given.into_iter().filter(|(_, given)| *given).map(|(field, _)| field);
    let Some(first) = given.next() else {
        return check.required("one of exec, httpGet, tcpSocket and grpc");
    };
    for field in given {
        check.at(field, |check| check.wrong(&format!("may not be given beside {first}")));
    }
    check.at(first, |check| match first {
        "exec" => {
            let command = probe.exec.as_ref().and_then(|exec| exec.command.as_deref()).unwrap_or_default();
            if command.is_empty() {
                check.at("command", |check| check.required("the command"));
            }
        }
        "httpGet" => probe.http_get.iter().for_each(|action| http_get(check, action)),
        "tcpSocket" => probe.tcp_socket.iter().for_each(|action| port(check, &action.port)),
        _ => probe.grpc.iter().for_each(|action| port(check, &IntOrString::Int(action.port))),
    });
}

/// `validateHTTPGetAction`; every path has its default.
fn http_get(check: &mut Check, action: &HTTPGetAction) {
    port(check, &action.port);
    check.at("scheme", |check| match action.scheme.as_deref().unwrap_or_default() {
        "HTTPS" => {
            check.invalid_text("HTTPS", "is not supported by this version: use HTTP, tcpSocket or exec");
        }
        scheme => check.one_of(scheme, &["HTTP"]),
    });
    check.each("httpHeaders", action.http_headers.as_deref().unwrap_or_default(), |check, header| {
        check.at("name", |check| check.text(&header.name, names::http_header));
    });
}

/// `ValidatePortNumOrName`.
fn port(check: &mut Check, port: &IntOrString) {
    check.at("port", |check| match port {
        IntOrString::Int(number) => check.range(i64::from(*number), 1, 65535),
        IntOrString::String(name) => check.text(name, names::port_name),
    });
}
