//! Probes and hooks (`validateProbe`, `validateLifecycle` and what they call). PURE.

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, PodSpec, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Check;
use crate::model::names;

/// The probes of a container that may have some.
pub(super) fn probes(check: &mut Check<'_>, container: &Container) {
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
fn probe(check: &mut Check<'_>, probe: &Probe) {
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

fn handler(check: &mut Check<'_>, probe: &Probe) {
    let actions = Actions {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        other: ("grpc", probe.grpc.is_some()),
    };
    if self::actions(check, &actions) == Some("grpc") {
        let port = |check: &mut Check<'_>, number| self::port(check, &IntOrString::Int(number));
        check.at("grpc", |check| probe.grpc.iter().for_each(|action| port(check, action.port)));
    }
}

/// The hooks of a container that may have some (`validateLifecycle`).
pub(super) fn hooks(check: &mut Check<'_>, container: &Container, spec: &PodSpec) {
    let Some(lifecycle) = &container.lifecycle else { return };
    for (field, hook) in
        [("lifecycle.postStart", &lifecycle.post_start), ("lifecycle.preStop", &lifecycle.pre_stop)]
    {
        let Some(hook) = hook else { continue };
        let actions = Actions {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref(),
            tcp_socket: hook.tcp_socket.as_ref(),
            other: ("sleep", hook.sleep.is_some()),
        };
        check.at_path(field, |check| {
            if let (Some("sleep"), Some(sleep)) = (self::actions(check, &actions), &hook.sleep) {
                // It has its default.
                let grace = spec.termination_grace_period_seconds.unwrap_or_default();
                check.at("sleep", |check| check.at("seconds", |check| check.range(sleep.seconds, 0, grace)));
            }
        });
    }
}

/// What a probe or a hook may do; one of them.
struct Actions<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    /// What only the one kind has, and whether it is given.
    other: (&'static str, bool),
}

/// `validateHandler`: the action that is given, checked unless it is the one that only this kind has.
fn actions(check: &mut Check<'_>, actions: &Actions<'_>) -> Option<&'static str> {
    let given = [
        ("exec", actions.exec.is_some()),
        ("httpGet", actions.http_get.is_some()),
        ("tcpSocket", actions.tcp_socket.is_some()),
        actions.other,
    ];
    let mut given = given.into_iter().filter(|(_, given)| *given).map(|(field, _)| field);
    let Some(first) = given.next() else {
        check.required(&format!("one of exec, httpGet, tcpSocket and {}", actions.other.0));
        return None;
    };
    for field in given {
        check.at(field, |check| check.forbidden(&format!("may not be given beside {first}")));
    }
    check.at(first, |check| match first {
        "exec" => {
            let command = actions.exec.and_then(|exec| exec.command.as_deref()).unwrap_or_default();
            if command.is_empty() {
                check.at("command", |check| check.required("the command"));
            }
        }
        "httpGet" => actions.http_get.iter().for_each(|action| http_get(check, action)),
        "tcpSocket" => actions.tcp_socket.iter().for_each(|action| port(check, &action.port)),
        _ => {}
    });
    Some(first)
}

/// `validateHTTPGetAction`; every path has its default.
fn http_get(check: &mut Check<'_>, action: &HTTPGetAction) {
    port(check, &action.port);
    check.at("scheme", |check| match action.scheme.as_deref().unwrap_or_default() {
        "HTTPS" if cfg!(not(feature = "tls")) => {
            check.invalid_text(
                "HTTPS",
                "is not supported by this build, which has no TLS: use HTTP, tcpSocket or exec",
            );
        }
        scheme => check.one_of(scheme, if cfg!(feature = "tls") { &["HTTP", "HTTPS"] } else { &["HTTP"] }),
    });
    check.each("httpHeaders", action.http_headers.as_deref().unwrap_or_default(), |check, header| {
        check.at("name", |check| check.text(&header.name, names::http_header));
    });
}

/// `ValidatePortNumOrName`.
fn port(check: &mut Check<'_>, port: &IntOrString) {
    check.at("port", |check| match port {
        IntOrString::Int(number) => check.range(i64::from(*number), 1, 65535),
        IntOrString::String(name) => check.text(name, names::port_name),
    });
}
