//! Containers and init containers (`validateContainers`, `validateInitContainers`). PURE.

use k8s_openapi::api::core::v1::{Container, ContainerPort, EphemeralContainer, PodSpec, VolumeMount};

use super::{Check, env, probe, resources, security};
use crate::decode::ErrorKind;
use crate::model::SortedSet;
use crate::model::names;
use crate::render::{as_container, stop_signal};

/// Both lists of containers, and the host ports they share.
pub(super) fn containers(check: &mut Check<'_>, spec: &PodSpec) {
    let volumes: SortedSet<&str> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    let mut seen = SortedSet::new();
    if spec.containers.is_empty() {
        check.at("containers", |check| check.required("at least one container"));
    }
    let mut ports = SortedSet::new();
    check.each("containers", &spec.containers, |check, container| {
        common(check, container, spec, &volumes, &mut seen);
        restart_policy(check, container);
        probe::probes(check, container);
        probe::hooks(check, container, spec);
        host_ports(check, container, &mut ports);
        if spec.host_network == Some(true) {
            // validatePodHostNetworkDeps looks at app containers only.
            check.each("ports", container.ports.as_deref().unwrap_or_default(), |check, port| {
                if let Some(host) = port.host_port.filter(|host| *host != port.container_port) {
                    let message = "must be the same as containerPort when hostNetwork is true";
                    check.at("hostPort", |check| check.invalid(host, message));
                }
            });
        }
    });
    check.each("initContainers", spec.init_containers.as_deref().unwrap_or_default(), |check, container| {
        common(check, container, spec, &volumes, &mut seen);
        restart_policy(check, container);
        // Init containers run one after the other, so each has its ports for itself.
        host_ports(check, container, &mut SortedSet::new());
        init_only(check, container, spec);
    });
}

/// `validateEphemeralContainers`, of one that is added to a running pod: it has nothing that such a container may not have.
pub(super) fn ephemeral(check: &mut Check<'_>, added: &EphemeralContainer, spec: &PodSpec) {
    let volumes: SortedSet<&str> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    let init = spec.init_containers.iter().flatten();
    let others: SortedSet<&str> = init.chain(&spec.containers).map(|of| of.name.as_str()).collect();
    check.at("targetContainerName", |check| match added.target_container_name.as_deref() {
        None | Some("") => {}
        Some(target) if others.contains(target) => {}
        Some(target) => check.invalid_text(target, "names no container or init container of the pod"),
    });
    let before = spec.ephemeral_containers.iter().flatten().map(|of| of.name.as_str());
    let container = as_container(added);
    let mut seen = others.iter().copied().chain(before).collect();
    common(check, &container, spec, &volumes, &mut seen);
}

/// What an init container may not have unless it is a sidecar.
fn init_only(check: &mut Check<'_>, container: &Container, spec: &PodSpec) {
    if container.restart_policy.as_deref() == Some("Always") {
        probe::probes(check, container);
        return probe::hooks(check, container, spec);
    }
    for (field, given) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if given {
            let message = "may not be given for an init container without restartPolicy: Always";
            check.at(field, |check| check.forbidden(message));
        }
    }
    check.each("resizePolicy", container.resize_policy.as_deref().unwrap_or_default(), |check, policy| {
        if policy.restart_policy == "RestartContainer" {
            let message = "may not be given for an init container without restartPolicy: Always";
            check.at("restartPolicy", |check| check.invalid_text("RestartContainer", message));
        }
    });
}

/// `validateContainerCommon`.
fn common<'a>(
    check: &mut Check<'_>,
    container: &'a Container,
    spec: &PodSpec,
    volumes: &SortedSet<&str>,
    seen: &mut SortedSet<&'a str>,
) {
    check.at("name", |check| {
        if container.name.is_empty() {
            return check.required("the container's name");
        }
        check.text(&container.name, names::label);
        if !seen.insert(container.name.as_str()) {
            check.duplicate(&container.name, "another container of the pod has this name");
        }
    });
    check.at("image", |check| match container.image.as_deref().unwrap_or_default() {
        "" => check.required("the image's name"),
        image if image.trim() != image => {
            check.invalid_text(image, "must not have blanks before or behind it");
        }
        _ => {}
    });
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    check.at("terminationMessagePolicy", |check| {
        check.one_of(&text(&container.termination_message_policy), &["File", "FallbackToLogsOnError"]);
    });
    check.at("imagePullPolicy", |check| pull_policy(check, container.image_pull_policy.as_deref()));
    ports(check, container.ports.as_deref().unwrap_or_default());
    env::env(check, container, spec.volumes.as_deref().unwrap_or_default());
    let mut places = SortedSet::new();
    check.each("volumeMounts", container.volume_mounts.as_deref().unwrap_or_default(), |check, mount| {
        volume_mount(check, mount, container, volumes);
        if !places.insert(mount.mount_path.as_str()) {
            check.at("mountPath", |check| {
                check.duplicate(&mount.mount_path, "something else is mounted there");
            });
        }
    });
    resources::container(check, container.resources.as_ref());
    resize_policy(check, container, spec);
    security::container(check, container, spec);
    stop_signal_of(check, container, spec);
}

/// `validatePullPolicy`, of a field that has its default.
pub(super) fn pull_policy(check: &mut Check<'_>, policy: Option<&str>) {
    check.one_of(policy.unwrap_or_default(), &["Always", "IfNotPresent", "Never"]);
}

/// `validateStopSignal`.
fn stop_signal_of(check: &mut Check<'_>, container: &Container, spec: &PodSpec) {
    let Some(signal) = container.lifecycle.as_ref().and_then(|own| own.stop_signal.as_deref()) else {
        return;
    };
    check.at_path("lifecycle.stopSignal", |check| {
        if spec.os.is_none() {
            check.forbidden("may only be given when spec.os.name is");
        }
        if stop_signal(signal).is_none() {
            check.invalid_text(signal, "must be a signal's name, such as SIGQUIT or SIGRTMIN+3");
        }
    });
}

/// `validateContainerPorts`.
fn ports(check: &mut Check<'_>, ports: &[ContainerPort]) {
    let mut seen = SortedSet::new();
    check.each("ports", ports, |check, port| {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            check.at("name", |check| {
                if let Some(message) = names::port_name(name) {
                    check.invalid_text(name, message);
                } else if !seen.insert(name) {
                    check.duplicate(name, "another port of the container has this name");
                }
            });
        }
        check.at("containerPort", |check| match port.container_port {
            0 => check.required("a port between 1 and 65535"),
            number => check.range(i64::from(number), 1, 65535),
        });
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            // On the host's network an absent host port is the container's, whose error is enough.
            let copied = number == port.container_port && !(1..=65535).contains(&number);
            if !copied {
                check.at("hostPort", |check| check.range(i64::from(number), 1, 65535));
            }
        }
        check.at("protocol", |check| {
            check.one_of(port.protocol.as_deref().unwrap_or_default(), &["TCP", "UDP", "SCTP"]);
        });
    });
}

type HostPort<'a> = (&'a str, &'a str, i32);

/// `AccumulateUniqueHostPorts`.
fn host_ports<'a>(check: &mut Check<'_>, container: &'a Container, seen: &mut SortedSet<HostPort<'a>>) {
    check.each("ports", container.ports.as_deref().unwrap_or_default(), |check, port| {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { return };
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let address = port.host_ip.as_deref().unwrap_or_default();
        if !seen.insert((protocol, address, number)) {
            let message = format!("the pod has this host port for {protocol} already");
            check
                .at("hostPort", |check| check.push(ErrorKind::Duplicate, Some(number.to_string()), &message));
        }
    });
}

/// `ValidateVolumeMounts`.
fn volume_mount(
    check: &mut Check<'_>,
    mount: &VolumeMount,
    container: &Container,
    volumes: &SortedSet<&str>,
) {
    check.at("name", |check| {
        if mount.name.is_empty() {
            check.required("the volume's name");
        } else if !volumes.contains(mount.name.as_str()) {
            check.invalid_text(&mount.name, "names no volume in spec.volumes");
        }
    });
    if mount.mount_path.is_empty() {
        check.at("mountPath", |check| check.required("where the volume appears in the container"));
    }
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
    check.at("subPath", |check| check.text(sub_path, names::descending));
    check.at("subPathExpr", |check| {
        check.text(expression, names::descending);
        if !expression.is_empty() && !sub_path.is_empty() {
            check.invalid_text(expression, "may not be given beside subPath");
        }
    });
    let propagation = mount.mount_propagation.as_deref();
    if let Some(mode) = propagation {
        check.at("mountPropagation", |check| {
            check.one_of(mode, &["None", "HostToContainer", "Bidirectional"]);
            let privileged = container.security_context.as_ref().and_then(|context| context.privileged);
            if mode == "Bidirectional" && privileged != Some(true) {
                check.invalid_text(mode, "is for privileged containers only");
            }
        });
    }
    if let Some(mode) = mount.recursive_read_only.as_deref() {
        check.at("recursiveReadOnly", |check| {
            check.one_of(mode, &["Disabled", "IfPossible", "Enabled"]);
            if matches!(mode, "IfPossible" | "Enabled") {
                if mount.read_only != Some(true) {
                    check.invalid_text(mode, "may only be given when readOnly is true");
                }
                if propagation.is_some_and(|mode| mode != "None") {
                    check.invalid_text(mode, "may only be given when mountPropagation is None");
                }
            }
        });
    }
}

/// `validateContainerRestartPolicy` and `validateInitContainerRestartPolicy`.
fn restart_policy(check: &mut Check<'_>, container: &Container) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    check.at("restartPolicy", |check| match container.restart_policy.as_deref() {
        None if !rules.is_empty() => check.required("restartPolicyRules are given"),
        None => {}
        Some(policy) => check.one_of(policy, &["Always", "OnFailure", "Never"]),
    });
    check.at("restartPolicyRules", |check| {
        if rules.len() > 20 {
            check.invalid(rules.len(), "must be at most 20 rules");
        }
    });
    check.each("restartPolicyRules", rules, |check, rule| {
        check.at("action", |check| check.one_of(&rule.action, &["Restart", "RestartAllContainers"]));
        check.at("exitCodes", |check| {
            let Some(codes) = &rule.exit_codes else {
                return check.required("the exit codes the rule is for");
            };
            check.at("operator", |check| check.one_of(&codes.operator, &["In", "NotIn"]));
            let count = codes.values.as_ref().map_or(0, Vec::len);
            if count > 255 {
                check.at("values", |check| check.invalid(count, "must be at most 255 values"));
            }
        });
    });
}

/// `validateResizePolicy`.
fn resize_policy(check: &mut Check<'_>, container: &Container, spec: &PodSpec) {
    let mut seen = SortedSet::new();
    check.each("resizePolicy", container.resize_policy.as_deref().unwrap_or_default(), |check, policy| {
        check.at("resourceName", |check| {
            check.one_of(&policy.resource_name, &["cpu", "memory"]);
            if !seen.insert(policy.resource_name.as_str()) {
                check.duplicate(&policy.resource_name, "");
            }
        });
        check.at("restartPolicy", |check| {
            check.one_of(&policy.restart_policy, &["NotRequired", "RestartContainer"]);
            if spec.restart_policy.as_deref() == Some("Never") && policy.restart_policy == "RestartContainer"
            {
                check.invalid_text(
                    "RestartContainer",
                    "must be NotRequired when the pod's restartPolicy is Never",
                );
            }
        });
    });
}
