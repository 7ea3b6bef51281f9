//! Defaults of a pod, as the API server sets them (`pkg/apis/core/v1/defaults.go` and its generated walk). PURE.
//!
//! Only fields that static pods can have are walked: refused fields (see `validate::unsupported`) need no defaults.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, HTTPGetAction, LifecycleHandler, Pod, PodSecurityContext, PodSpec,
    Probe, ResourceRequirements, Volume,
};

use super::resources::{self, List};
use crate::image::name::default_pull_policy;
use crate::model::quantity::Quantity;

/// Default grace period of a pod, in seconds.
pub const GRACE_SECONDS: i64 = 30;
/// Default mode of the files of configMap, secret, downwardAPI and projected volumes: 0644.
pub const FILE_MODE: i32 = 0o644;

/// Sets the defaults of missing fields.
pub fn set(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    spec.volumes.iter_mut().flatten().for_each(volume);
    spec.containers.iter_mut().for_each(container);
    spec.init_containers.iter_mut().flatten().for_each(container);
    pod_spec(spec);
    pod_resources(spec);
    // SetDefaults_Pod; the requests follow the limits in `container`.
    spec.enable_service_links.get_or_insert(true);
    if spec.host_network == Some(true) {
        host_ports(&mut spec.containers);
        host_ports(spec.init_containers.as_deref_mut().unwrap_or_default());
    }
}

/// Sets the default of an absent or empty string.
fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

/// Sets the default of an absent or zero number.
fn number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(default);
    }
}

/// `SetDefaults_PodSpec`.
fn pod_spec(spec: &mut PodSpec) {
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    spec.termination_grace_period_seconds.get_or_insert(GRACE_SECONDS);
    text(&mut spec.scheduler_name, "default-scheduler");
    if let Some(overhead) = spec.overhead.as_mut() {
        round_up(overhead);
    }
}

/// `SetDefaults_Container` and the defaults of a container's fields.
fn container(container: &mut Container) {
    let image = container.image.as_deref().unwrap_or_default();
    let policy = default_pull_policy(image);
    text(&mut container.image_pull_policy, policy);
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
    }
    for variable in container.env.iter_mut().flatten() {
        if let Some(field) = variable.value_from.as_mut().and_then(|from| from.field_ref.as_mut()) {
            text(&mut field.api_version, "v1");
        }
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
    {
        probe.iter_mut().for_each(self::probe);
    }
    if let Some(lifecycle) = container.lifecycle.as_mut() {
        lifecycle.post_start.iter_mut().for_each(handler);
        lifecycle.pre_stop.iter_mut().for_each(handler);
    }
    container.resources.iter_mut().for_each(requests_from_limits);
}

/// `SetDefaults_ResourceList`, and `SetDefaults_Pod`: a limit without a request is the request.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    resources.limits.iter_mut().for_each(round_up);
    resources.requests.iter_mut().for_each(round_up);
    if let Some(limits) = &resources.limits {
        let requests = resources.requests.get_or_insert_with(BTreeMap::new);
        for (name, limit) in limits {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// Rounds quantities up to thousandths, the finest that is kept.
fn round_up(list: &mut List) {
    for text in list.values_mut() {
        if let Ok(quantity) = Quantity::parse(&text.0)
            && quantity != Quantity::from_millis(quantity.milli_value())
        {
            *text = resources::text(quantity);
        }
    }
}

/// `SetDefaults_Probe`.
fn probe(probe: &mut Probe) {
    number(&mut probe.timeout_seconds, 1);
    number(&mut probe.period_seconds, 10);
    number(&mut probe.success_threshold, 1);
    number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = probe.grpc.as_mut() {
        grpc.service.get_or_insert_with(String::new);
    }
}

fn handler(handler: &mut LifecycleHandler) {
    handler.http_get.iter_mut().for_each(http_get);
}

/// `SetDefaults_HTTPGetAction`.
fn http_get(action: &mut HTTPGetAction) {
    text(&mut action.path, "/");
    text(&mut action.scheme, "HTTP");
}

/// `SetDefaults_Volume` and those of the volume sources: an empty volume is an emptyDir.
fn volume(volume: &mut Volume) {
    if (Volume { name: volume.name.clone(), ..Volume::default() }) == *volume {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(path) = volume.host_path.as_mut() {
        path.type_.get_or_insert_with(String::new);
    }
    let modes = [
        volume.secret.as_mut().map(|source| &mut source.default_mode),
        volume.config_map.as_mut().map(|source| &mut source.default_mode),
        volume.downward_api.as_mut().map(|source| &mut source.default_mode),
        volume.projected.as_mut().map(|source| &mut source.default_mode),
    ];
    modes.into_iter().flatten().for_each(|mode| {
        mode.get_or_insert(FILE_MODE);
    });
    let own = volume.downward_api.iter_mut().flat_map(|source| source.items.iter_mut().flatten());
    let projected = volume.projected.iter_mut().flat_map(|of| of.sources.iter_mut().flatten());
    let projected = projected.filter_map(|source| source.downward_api.as_mut());
    for file in own.chain(projected.flat_map(|source| source.items.iter_mut().flatten())) {
        if let Some(field) = &mut file.field_ref {
            text(&mut field.api_version, "v1");
        }
    }
    if let Some(image) = volume.image.as_mut() {
        let policy = default_pull_policy(image.reference.as_deref().unwrap_or_default());
        text(&mut image.pull_policy, policy);
    }
}

/// `defaultHugePagePodLimits` and `defaultPodRequests`: completes partial pod-level resources.
fn pod_resources(spec: &mut PodSpec) {
    let Some(mut own) = spec.resources.take() else { return };
    own.limits.iter_mut().for_each(round_up);
    own.requests.iter_mut().for_each(round_up);
    let filled = |list: &Option<List>| list.as_ref().is_some_and(|list| !list.is_empty());
    if filled(&own.limits) || filled(&own.requests) {
        for (name, limit) in resources::aggregate(spec, resources::limits) {
            let requested = own.requests.as_ref().is_some_and(|requests| requests.contains_key(&name));
            if resources::is_hugepages(&name) && !requested {
                own.limits.get_or_insert_default().entry(name).or_insert_with(|| resources::text(limit));
            }
        }
    }
    if let Some(limits) = own.limits.as_ref().filter(|limits| !limits.is_empty()) {
        let mut requests = own.requests.take().unwrap_or_default();
        for (name, request) in resources::aggregate(spec, resources::requests) {
            if resources::is_pod_level(&name) && !resources::is_hugepages(&name) {
                requests.entry(name).or_insert_with(|| resources::text(request));
            }
        }
        for (name, limit) in limits {
            if resources::is_pod_level(name) {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
        own.requests = Some(requests).filter(|requests| !requests.is_empty());
    }
    spec.resources = Some(own);
}

/// `defaultHostNetworkPorts`: in the host's network a container's port is the host port.
fn host_ports(containers: &mut [Container]) {
    for port in containers.iter_mut().flat_map(|container| container.ports.iter_mut().flatten()) {
        if port.host_port.unwrap_or_default() == 0 {
            port.host_port = Some(port.container_port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Merges `given` into a minimal pod, sets the defaults, and returns the value at `pointer`.
    fn defaulted(spec: &Value, pointer: &str) -> Value {
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).expect("a pod");
        set(&mut pod);
        let value = serde_json::to_value(&pod).expect("a pod is JSON");
        value.pointer(pointer).cloned().unwrap_or(Value::Null)
    }

    fn with_container(container: &Value) -> Value {
        let mut container = container.clone();
        container["name"] = json!("c");
        json!({"containers": [container]})
    }

    #[test]
    fn each_default_of_a_pod() {
        let bare = json!({"containers": []});
        for (spec, pointer, expected) in [
            (bare.clone(), "/spec/restartPolicy", json!("Always")),
            (json!({"containers": [], "restartPolicy": "Never"}), "/spec/restartPolicy", json!("Never")),
            (bare.clone(), "/spec/dnsPolicy", json!("ClusterFirst")),
            (bare.clone(), "/spec/terminationGracePeriodSeconds", json!(30)),
            (
                json!({"containers": [], "terminationGracePeriodSeconds": 0}),
                "/spec/terminationGracePeriodSeconds",
                json!(0),
            ),
            (bare.clone(), "/spec/securityContext", json!({})),
            (bare.clone(), "/spec/schedulerName", json!("default-scheduler")),
            (bare, "/spec/enableServiceLinks", json!(true)),
            (
                json!({"containers": [], "enableServiceLinks": false}),
                "/spec/enableServiceLinks",
                json!(false),
            ),
            (json!({"containers": [], "volumes": [{"name": "v"}]}), "/spec/volumes/0/emptyDir", json!({})),
            (
                json!({"containers": [], "volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}),
                "/spec/volumes/0/downwardAPI/items/0/fieldRef/apiVersion",
                json!("v1"),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}]}),
                "/spec/volumes/0/projected/sources/0/downwardAPI/items/0/fieldRef/apiVersion",
                json!("v1"),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
                "/spec/volumes/0/hostPath/type",
                json!(""),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "configMap": {"name": "x"}}]}),
                "/spec/volumes/0/configMap/defaultMode",
                json!(420),
            ),
            (
                json!({"containers": [], "volumes": [{"name": "v", "secret": {"defaultMode": 256}}]}),
                "/spec/volumes/0/secret/defaultMode",
                json!(256),
            ),
            (json!({"containers": [], "overhead": {"cpu": "0.0001"}}), "/spec/overhead/cpu", json!("1m")),
        ] {
            assert_eq!(defaulted(&spec, pointer), expected, "{spec} {pointer}");
        }
    }

    #[test]
    fn each_default_of_a_container() {
        for (container, pointer, expected) in [
            (json!({"image": "x"}), "imagePullPolicy", json!("Always")),
            (json!({"image": "x:latest"}), "imagePullPolicy", json!("Always")),
            (json!({"image": "x:1"}), "imagePullPolicy", json!("IfNotPresent")),
            (json!({"image": "host:5000/x"}), "imagePullPolicy", json!("Always")),
            (json!({"image": "x:latest", "imagePullPolicy": "Never"}), "imagePullPolicy", json!("Never")),
            (json!({}), "terminationMessagePath", json!("/dev/termination-log")),
            (json!({}), "terminationMessagePolicy", json!("File")),
            (json!({"ports": [{"containerPort": 1}]}), "ports/0/protocol", json!("TCP")),
            (json!({"ports": [{"containerPort": 1}]}), "ports/0/hostPort", Value::Null),
            (
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
                "env/0/valueFrom/fieldRef/apiVersion",
                json!("v1"),
            ),
            (json!({"livenessProbe": {}}), "livenessProbe/periodSeconds", json!(10)),
            (json!({"livenessProbe": {"periodSeconds": 5}}), "livenessProbe/periodSeconds", json!(5)),
            (json!({"readinessProbe": {}}), "readinessProbe/timeoutSeconds", json!(1)),
            (json!({"startupProbe": {}}), "startupProbe/failureThreshold", json!(3)),
            (json!({"startupProbe": {}}), "startupProbe/successThreshold", json!(1)),
            (json!({"livenessProbe": {"httpGet": {"port": 1}}}), "livenessProbe/httpGet/path", json!("/")),
            (
                json!({"livenessProbe": {"httpGet": {"port": 1}}}),
                "livenessProbe/httpGet/scheme",
                json!("HTTP"),
            ),
            (json!({"livenessProbe": {"grpc": {"port": 1}}}), "livenessProbe/grpc/service", json!("")),
            (
                json!({"lifecycle": {"preStop": {"httpGet": {"port": 1}}}}),
                "lifecycle/preStop/httpGet/scheme",
                json!("HTTP"),
            ),
            (json!({"resources": {"limits": {"cpu": "2"}}}), "resources/requests/cpu", json!("2")),
            (
                json!({"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}),
                "resources/requests/cpu",
                json!("1"),
            ),
            (json!({"resources": {"limits": {"cpu": "0.1001"}}}), "resources/limits/cpu", json!("101m")),
        ] {
            let got = defaulted(&with_container(&container), &format!("/spec/containers/0/{pointer}"));
            assert_eq!(got, expected, "{container} {pointer}");
            let init = json!({"containers": [], "initContainers": with_container(&container)["containers"]});
            assert_eq!(
                defaulted(&init, &format!("/spec/initContainers/0/{pointer}")),
                expected,
                "{container}"
            );
        }
    }

    #[test]
    fn host_network_ports_are_the_hosts() {
        let spec =
            json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]});
        assert_eq!(defaulted(&spec, "/spec/containers/0/ports/0/hostPort"), json!(80));
    }

    #[test]
    fn pod_level_resources_are_completed() {
        let containers = json!([
            {"name": "a", "resources": {"requests": {"cpu": "500m"}, "limits": {"hugepages-2Mi": "4Mi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "1"}}},
        ]);
        let init = json!([{"name": "i", "resources": {"requests": {"cpu": "3"}}}]);
        for (own, pointer, expected) in [
            (json!({"limits": {"cpu": "4", "memory": "1Gi"}}), "requests/cpu", json!("3")),
            (json!({"limits": {"cpu": "4", "memory": "1Gi"}}), "requests/memory", json!("1Gi")),
            (json!({"limits": {"cpu": "4"}, "requests": {"cpu": "2"}}), "requests/cpu", json!("2")),
            (json!({"limits": {"cpu": "4"}}), "limits/hugepages-2Mi", json!("4194304")),
            (json!({"limits": {"cpu": "4"}}), "requests/hugepages-2Mi", json!("4194304")),
            (json!({"requests": {"cpu": "4"}}), "requests/memory", Value::Null),
            (json!({}), "requests", Value::Null),
        ] {
            let spec = json!({"containers": containers, "initContainers": init, "resources": own});
            assert_eq!(defaulted(&spec, &format!("/spec/resources/{pointer}")), expected, "{own} {pointer}");
        }
    }
}
