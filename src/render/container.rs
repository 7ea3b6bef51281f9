//! A container's CRI configuration (`generateContainerConfig`). PURE.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, VolumeMount};

use super::env::{EnvSources, Environment, environment};
use super::expand::expand;
use super::hostname::hostname_and_domain;
use super::labels::{container_annotations, container_labels};
use super::paths::{container_log_path, hosts_file_path};
use super::resources::container_resources;
use super::security::{UserNamespace, container_security_context, image_user, verify_run_as_non_root};
use super::{NodeSettings, RenderError};
use crate::model::runtime::Image;
use crate::model::{ContainerId, ContainerKind, DesiredPod};
use crate::proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig, Mount, NamespaceMode,
    Signal,
};

/// The inputs of a container's configuration, besides the node's settings.
#[derive(Clone, Copy)]
pub struct ContainerInput<'a> {
    /// The pod it belongs to.
    pub pod: &'a DesiredPod,
    /// The spec's container list that defines it.
    pub kind: ContainerKind,
    /// The index in that list.
    pub index: usize,
    /// Number of earlier starts; the attempt in its metadata and the number of its log.
    pub restart_count: u32,
    /// The runtime's image reference (from the `PullImage` or `ImageStatus` response).
    pub image_ref: &'a str,
    /// The runtime's image status, for the image's user; `None` counts as uid 0.
    pub image: Option<&'a Image>,
    /// The pod's addresses, from its sandbox; the node's for a pod on the host network.
    pub pod_ips: &'a [Box<str>],
    /// Volume mounts, resolved to host paths by the caller.
    pub mounts: &'a [Mount],
    /// The termination log's path on the host. The caller creates it, mode 0666, in `paths::termination_log_dir` under a
    /// name of eight random hexadecimal digits; `None`: not mounted.
    pub termination_log: Option<&'a str>,
    /// The running container that an ephemeral container's `targetContainerName` refers to.
    pub target: Option<&'a ContainerId>,
    /// The pod's user namespace, if it has its own.
    pub user_namespace: Option<UserNamespace>,
    /// The pod's runtime handler supports recursive read-only mounts.
    pub recursive_read_only: bool,
    /// Annotations of device plugins, overridden by the kubelet's own.
    pub annotations: &'a [(Box<str>, Box<str>)],
    /// Source of environment variables.
    pub env: &'a dyn EnvSources,
}

impl<'a> ContainerInput<'a> {
    /// The container's definition; an ephemeral container's as a container (`EphemeralContainerCommon`). `None` when the
    /// index is not in the spec.
    pub fn container(&self) -> Option<Cow<'a, Container>> {
        let pod: &'a DesiredPod = self.pod;
        match self.kind {
            ContainerKind::Init => pod.init_containers().get(self.index).map(Cow::Borrowed),
            ContainerKind::App => pod.containers().get(self.index).map(Cow::Borrowed),
            ContainerKind::Ephemeral => pod
                .ephemeral_containers()
                .get(self.index)
                .map(|container| Cow::Owned(as_container(container))),
        }
    }
}

impl ContainerInput<'_> {
    /// The container's environment variables, as in [`container_config`].
    pub fn variables(&self, node: &NodeSettings) -> Result<Environment, String> {
        let container = self.container().ok_or_else(|| self.no_such_place())?;
        environment(node, self, &container)
    }

    fn no_such_place(&self) -> String {
        format!("pod {} has no container at place {} of its spec", self.pod.key, self.index)
    }
}

/// Converts an ephemeral container to a container (`EphemeralContainerCommon`).
pub fn as_container(of: &EphemeralContainer) -> Container {
    let of = of.clone();
    Container {
        args: of.args,
        command: of.command,
        env: of.env,
        env_from: of.env_from,
        image: of.image,
        image_pull_policy: of.image_pull_policy,
        lifecycle: of.lifecycle,
        liveness_probe: of.liveness_probe,
        name: of.name,
        ports: of.ports,
        readiness_probe: of.readiness_probe,
        resize_policy: of.resize_policy,
        resources: of.resources,
        restart_policy: of.restart_policy,
        restart_policy_rules: of.restart_policy_rules,
        security_context: of.security_context,
        startup_probe: of.startup_probe,
        stdin: of.stdin,
        stdin_once: of.stdin_once,
        termination_message_path: of.termination_message_path,
        termination_message_policy: of.termination_message_policy,
        tty: of.tty,
        volume_devices: of.volume_devices,
        volume_mounts: of.volume_mounts,
        working_dir: of.working_dir,
    }
}

const HOSTS: &str = "/etc/hosts";

/// True when the container gets the pod's hosts file mounted at `/etc/hosts` (`shouldMountHostsFile`): the pod has an
/// address or the host network, and the container mounts no volume there. The caller writes the file first: `hosts_file` to
/// `paths::hosts_file_path`.
pub fn mounts_hosts_file(input: &ContainerInput<'_>) -> bool {
    (!input.pod_ips.is_empty() || input.pod.spec().host_network == Some(true))
        && input.container().is_some_and(|container| {
            !container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == HOSTS)
        })
}

/// The configuration for `CreateContainer`.
pub fn container_config(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
) -> Result<ContainerConfig, RenderError> {
    render(node, input).map_err(RenderError::Container)
}

fn render(node: &NodeSettings, input: &ContainerInput<'_>) -> Result<ContainerConfig, String> {
    let pod = input.pod;
    let container = input.container().ok_or_else(|| input.no_such_place())?;
    let container = container.as_ref();
    // The checks are in the kubelet's order: the first error is the one shown.
    hostname_and_domain(node, pod)?;
    let environment = environment(node, input, container)?;
    let user = image_user(input.image);
    verify_run_as_non_root(pod, container, &user)?;
    let mut security_context = container_security_context(node, pod, container, &user, input.user_namespace)?;
    if let (Some(target), Some(namespaces)) = (input.target, &mut security_context.namespace_options)
        && namespaces.pid == NamespaceMode::Container as i32
    {
        namespaces.pid = NamespaceMode::Target as i32;
        namespaces.target_id = target.to_string();
    }
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: input.restart_count }),
        image: Some(ImageSpec {
            image: input.image_ref.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        }),
        command: expanded(container.command.as_deref(), &environment)?,
        args: expanded(container.args.as_deref(), &environment)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts: mounts(node, input, container)?,
        labels: container_labels(pod, &container.name),
        annotations: container_annotations(pod, container, input.restart_count, input.annotations),
        log_path: container_log_path(&container.name, input.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(LinuxContainerConfig {
            resources: Some(container_resources(node, &pod.pod, container)),
            security_context: Some(security_context),
        }),
        stop_signal: container_stop_signal(container).map_or(0, |signal| signal as i32),
        envs: environment.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        ..ContainerConfig::default()
    })
}

/// The signal that ends the container (`getContainerConfigStopSignal`); `None` leaves it to the image.
fn container_stop_signal(container: &Container) -> Option<Signal> {
    stop_signal(container.lifecycle.as_ref()?.stop_signal.as_deref()?)
}

/// A signal by its API name, for example `SIGRTMIN+1`; `None` for an unknown name.
pub fn stop_signal(name: &str) -> Option<Signal> {
    // The CRI spells the signs as words.
    let words = ["PLUS", "MINUS", "DEFAULT"];
    if words.iter().any(|word| name.contains(word)) {
        return None;
    }
    Signal::from_str_name(&name.replace('+', words[0]).replace('-', words[1]))
}

/// Command or arguments with `$(NAME)` expanded (`ExpandContainerCommandAndArgs`). The CRI carries text, so a Secret's bytes
/// that are not UTF-8 cannot be expanded; with the kubelet the CRI call fails then.
fn expanded(words: Option<&[String]>, environment: &Environment) -> Result<Vec<String>, String> {
    let lookup = |name: &[u8]| environment.get(std::str::from_utf8(name).ok()?).map(Vec::as_slice);
    words
        .unwrap_or_default()
        .iter()
        .map(|word| {
            String::from_utf8(expand(word.as_bytes(), lookup)).map_err(|_| {
                format!("{word:?} becomes text that is not valid UTF-8; check the variables it names")
            })
        })
        .collect()
}

/// The caller's volumes, then the hosts file, then the termination log (`makeMounts`).
fn mounts(
    node: &NodeSettings,
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<Vec<Mount>, String> {
    let file = |host_path: String, container_path: &str| Mount {
        host_path,
        container_path: container_path.to_owned(),
        selinux_relabel: node.selinux,
        ..Mount::default()
    };
    let mut mounts = input.mounts.to_vec();
    // Both in spec order.
    for (mount, wanted) in mounts.iter_mut().zip(container.volume_mounts.iter().flatten()) {
        mount.recursive_read_only = recursive_read_only(wanted, input.recursive_read_only)
            .map_err(|why| format!("failed to resolve recursive read-only mode: {why}"))?;
    }
    if mounts_hosts_file(input) {
        mounts.push(file(hosts_file_path(node, &input.pod.key), HOSTS));
    }
    let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    if let (Some(host_path), Some(path)) = (input.termination_log, path) {
        // A relative path is relative to the root (`MakeAbsolutePath`).
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        mounts.push(file(host_path.to_owned(), &path));
    }
    // Files of the node's root belong to the pod's root in the container (`applyPlatformSpecificContainerConfig`).
    if let Some(users) = input.user_namespace {
        for mount in &mut mounts {
            (mount.uid_mappings, mount.gid_mappings) = (users.mappings(), users.mappings());
        }
    }
    Ok(mounts)
}

/// `resolveRecursiveReadOnly`.
fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let asked =
        |what: &str| format!("volume {:?} requested recursive read-only mode, but it is {what}", mount.name);
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if mount.read_only != Some(true) {
        return Err(asked("not read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|propagation| *propagation != "None")
    {
        return Err(asked(&format!("not compatible with propagation {propagation:?}")));
    }
    match (mode, supported) {
        ("IfPossible", _) | ("Enabled", true) => Ok(supported),
        ("Enabled", false) => Err(asked("not supported by the runtime")),
        _ => Err(format!("unknown recursive read-only mode {mode:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
    use serde_json::{Value, json};

    use super::super::{ManifestObjects, RenderError};
    use super::*;

    fn pod(spec: &Value) -> DesiredPod {
        let pod = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u1",
            "labels": {"app": "web"}, "annotations": {"example.com/note": "n"}}, "spec": spec});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn input<'a>(pod: &'a DesiredPod, env: &'a dyn EnvSources) -> ContainerInput<'a> {
        ContainerInput {
            pod,
            kind: ContainerKind::App,
            index: 0,
            restart_count: 2,
            image_ref: "sha256:1",
            image: None,
            pod_ips: &[],
            mounts: &[],
            termination_log: None,
            target: None,
            recursive_read_only: false,
            annotations: &[],
            user_namespace: None,
            env,
        }
    }

    fn node() -> NodeSettings {
        let mut node = NodeSettings::new("n", "/var/lib/smolet");
        node.cpu_allocatable_millis = 4000;
        node.memory_allocatable_bytes = 4 << 30;
        node.memory_capacity_bytes = 4 << 30;
        node.node_ips = vec!["192.0.2.1".into(), "2001:db8::1".into()];
        node
    }

    /// A ConfigMap, a Secret whose value is not UTF-8, and a file of variables.
    struct Some3;

    impl EnvSources for Some3 {
        fn config_map(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
            let map = json!({"data": {"A": "a", "x": "$(A)"}, "binaryData": {"B": "AA=="}});
            Ok((&*pod.key.namespace == "ns" && name == "cm")
                .then(|| Arc::new(serde_json::from_value(map).unwrap())))
        }

        fn secret(&self, _: &DesiredPod, name: &str) -> Result<Option<Arc<Secret>>, String> {
            match name {
                "s" => Ok(Some(Arc::new(serde_json::from_value(json!({"data": {"S": "/w=="}})).unwrap()))),
                "broken" => Err("the store is closed".into()),
                _ => Ok(None),
            }
        }

        fn services(&self, _: &DesiredPod) -> Rc<[Service]> {
            Rc::from([])
        }

        fn volume_file(&self, volume: &str, path: &str) -> Result<Option<Rc<str>>, String> {
            Ok((volume == "v" && path == "env").then(|| Rc::from("K='one'\nEMPTY=''\n")))
        }
    }

    fn variables(env: &Value, from: &Value) -> Result<Vec<(String, String)>, String> {
        let spec = json!({"enableServiceLinks": false, "serviceAccountName": "sa", "nodeName": "n",
            "resources": {"limits": {"memory": "1Gi"}},
            "containers": [{"name": "c", "env": env, "envFrom": from, "resources": {"limits": {"cpu": "1500m"}}}],
            "initContainers": [{"name": "i"}]});
        let (node, pod) = (node(), pod(&spec));
        let ips: [Box<str>; 3] = ["2001:db8:0::9".into(), "10.0.0.9".into(), "10.0.0.10".into()];
        let input = ContainerInput { pod_ips: &ips, ..input(&pod, &Some3) };
        let config = container_config(&node, &input).map_err(|error| error.to_string())?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(config.envs.into_iter().map(|one| (one.key, text(one.value))).collect())
    }

    #[test]
    fn a_variable_comes_from_wherever_it_points() {
        let field = |path: &str| json!({"valueFrom": {"fieldRef": {"fieldPath": path}}});
        let resource = |resource: &str, of: &str, divisor: &str| {
            json!({"valueFrom": {"resourceFieldRef":
                {"resource": resource, "containerName": of, "divisor": divisor}}})
        };
        let file = |key: &str, path: &str, optional: bool| {
            json!({"valueFrom": {"fileKeyRef":
                {"volumeName": "v", "path": path, "key": key, "optional": optional}}})
        };
        for (source, expected) in [
            (field("metadata.name"), Ok(Some("web"))),
            (field("metadata.labels['app']"), Ok(Some("web"))),
            (field("metadata.annotations['example.com/note']"), Ok(Some("n"))),
            (field("metadata.annotations"), Ok(Some("example.com/note=\"n\""))),
            (field("metadata.labels['none']"), Ok(Some(""))),
            (
                field("metadata.labels['a b']"),
                Err("invalid key subscript in metadata.labels['a b']: name part must"),
            ),
            (field("spec.x['a']"), Err("field label does not support subscript: spec.x['a']")),
            (field("spec.serviceAccountName"), Ok(Some("sa"))),
            (field("spec.host"), Ok(Some("n"))),
            (field("status.hostIP"), Ok(Some("192.0.2.1"))),
            (field("status.hostIPs"), Ok(Some("192.0.2.1,2001:db8::1"))),
            (field("status.podIP"), Ok(Some("10.0.0.9"))),
            (field("status.podIPs"), Ok(Some("10.0.0.9,2001:db8::9"))),
            (field("status.phase"), Err("unsupported fieldPath: status.phase")),
            (field("spec.x"), Err("field label not supported: spec.x")),
            (resource("limits.cpu", "", "0"), Ok(Some("2"))),
            (resource("limits.cpu", "c", "1m"), Ok(Some("1500"))),
            (resource("limits.memory", "", "1Mi"), Ok(Some("1024"))),
            (resource("limits.memory", "i", "1Mi"), Ok(Some("0"))),
            (resource("requests.hugepages-2Mi", "", "1"), Ok(Some("0"))),
            (resource("limits.cpu", "x", "1"), Err("container x not found")),
            (resource("limits.gpu", "", "1"), Err("unsupported container resource : limits.gpu")),
            (resource("cpu", "", "1"), Err("unsupported container resource : cpu")),
            (file("K", "env", false), Ok(Some("one"))),
            (file("EMPTY", "env", true), Ok(None)),
            (
                file("EMPTY", "env", false),
                Err("environment variable key \"EMPTY\" not found in file \"env\""),
            ),
            (file("K", "none", true), Err("couldn't parse env file")),
            (json!({"value": "$(V)"}), Ok(Some("$(V)"))),
            (json!({}), Ok(Some(""))),
        ] {
            let mut variable = source.clone();
            variable["name"] = "V".into();
            let ours = variables(&json!([variable]), &json!([]));
            match (ours, expected) {
                (Ok(ours), Ok(expected)) => {
                    let expected = expected.map(|value| ("V".to_owned(), value.to_owned()));
                    assert_eq!(ours, Vec::from_iter(expected), "{source}");
                }
                (Err(ours), Err(expected)) => assert!(ours.starts_with(expected), "{source}: {ours}"),
                (ours, expected) => panic!("{source}: {ours:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn whole_maps_come_first_and_may_be_optional() {
        let map = |name: &str, prefix: &str| json!({"configMapRef": {"name": name}, "prefix": prefix});
        let secret = |name: &str, optional: bool| json!({"secretRef": {"name": name, "optional": optional}});
        let own = json!([{"name": "P_A", "value": "own $(P_x) $(S)"}]);
        let both =
            variables(&own, &json!([map("cm", "P_"), secret("s", false), secret("none", true)])).unwrap();
        let expected = [("P_A", "own $(A) \u{fffd}"), ("P_x", "$(A)"), ("S", "\u{fffd}")];
        assert_eq!(both, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        for (from, error) in [
            (map("none", ""), "configmaps \"none\" not found"),
            (secret("none", false), "secrets \"none\" not found"),
            (secret("broken", true), "the store is closed"),
        ] {
            assert_eq!(variables(&json!([]), &json!([from])).unwrap_err(), error);
        }
    }

    #[test]
    fn a_command_is_text() {
        let spec = json!({"enableServiceLinks": false, "containers": [{"name": "c", "command": ["$(S)"],
            "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "S"}}}]}]});
        let pod = pod(&spec);
        let error = container_config(&node(), &input(&pod, &Some3)).unwrap_err();
        assert_eq!(error.reason(), "CreateContainerConfigError");
        assert!(error.to_string().contains("not valid UTF-8"), "{error}");
    }

    #[test]
    fn an_ephemeral_container_joins_its_target() {
        let spec = json!({"enableServiceLinks": false, "containers": [{"name": "c"}],
            "ephemeralContainers": [{"name": "debug", "image": "busybox", "stdin": true, "tty": true,
                "targetContainerName": "c", "env": [{"name": "A", "value": "a"}], "args": ["$(A)"]}]});
        let (target, none) = (ContainerId::from("id-of-c"), ManifestObjects::default());
        let (node, pod) = (node(), pod(&spec));
        let input =
            ContainerInput { kind: ContainerKind::Ephemeral, target: Some(&target), ..input(&pod, &none) };
        let config = container_config(&node, &input).unwrap();
        assert_eq!(config.metadata.unwrap().name, "debug");
        assert_eq!((config.args, config.stdin, config.tty), (vec!["a".to_owned()], true, true));
        let namespaces = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!((namespaces.pid, &*namespaces.target_id), (NamespaceMode::Target as i32, "id-of-c"));

        // With a shared process namespace there is no target's namespace to join.
        let mut spec = spec;
        spec["shareProcessNamespace"] = true.into();
        let pod = self::pod(&spec);
        let config = container_config(&node, &ContainerInput { pod: &pod, ..input }).unwrap();
        let namespaces = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!((namespaces.pid, &*namespaces.target_id), (NamespaceMode::Pod as i32, ""));

        let nowhere = ContainerInput { index: 7, ..input };
        assert!(matches!(container_config(&node, &nowhere), Err(RenderError::Container(_))));
    }

    #[test]
    fn mounts_come_in_the_kubelets_order() {
        let mut spec = json!({"enableServiceLinks": false, "containers": [{"name": "c",
            "terminationMessagePath": "dev/log", "volumeMounts": [{"name": "v", "mountPath": "/data"}]}]});
        let volume = Mount { host_path: "/v".into(), container_path: "/data".into(), ..Mount::default() };
        let paths = |spec: &Value, ips: &[Box<str>]| -> Vec<(String, String)> {
            let pod = pod(spec);
            let (volumes, none) = ([volume.clone()], ManifestObjects::default());
            let input = ContainerInput {
                mounts: &volumes,
                pod_ips: ips,
                termination_log: Some("/t/0a0b0c0d"),
                ..input(&pod, &none)
            };
            let config = container_config(&node(), &input).unwrap();
            config.mounts.into_iter().map(|mount| (mount.host_path, mount.container_path)).collect()
        };
        let row = |host: &str, container: &str| (host.to_owned(), container.to_owned());
        let (data, log) = (row("/v", "/data"), row("/t/0a0b0c0d", "/dev/log"));
        let hosts = row("/var/lib/smolet/pods/u1/etc-hosts", "/etc/hosts");
        let ips: [Box<str>; 1] = ["10.0.0.9".into()];
        assert_eq!(paths(&spec, &ips), [data.clone(), hosts.clone(), log.clone()]);
        assert_eq!(paths(&spec, &[]), [data.clone(), log.clone()], "no address yet, no hosts file");
        spec["hostNetwork"] = true.into();
        assert_eq!(paths(&spec, &[]), [data.clone(), hosts, log.clone()]);
        spec["containers"][0]["volumeMounts"][0]["mountPath"] = "/etc/hosts".into();
        assert_eq!(paths(&spec, &ips), [data, log], "the container brings its own");
    }

    #[test]
    fn the_agents_own_files_get_a_label_where_the_kernel_has_selinux() {
        let containers = json!([{"name": "c", "terminationMessagePath": "/dev/log"}]);
        let pod = pod(&json!({"enableServiceLinks": false, "containers": containers}));
        let (ips, none): ([Box<str>; 1], _) = (["10.0.0.9".into()], ManifestObjects::default());
        let input =
            ContainerInput { pod_ips: &ips, termination_log: Some("/t/0a0b0c0d"), ..input(&pod, &none) };
        for selinux in [false, true] {
            let node = NodeSettings { selinux, ..node() };
            let config = container_config(&node, &input).unwrap();
            let relabelled: Vec<bool> = config.mounts.iter().map(|mount| mount.selinux_relabel).collect();
            assert_eq!(relabelled, [selinux; 2]);
        }
    }

    #[test]
    fn a_stop_signal_is_called_as_in_the_api() {
        for (name, signal) in [
            ("SIGQUIT", Some(Signal::Sigquit)),
            ("SIGRTMIN", Some(Signal::Sigrtmin)),
            ("SIGRTMIN+3", Some(Signal::Sigrtminplus3)),
            ("SIGRTMAX-14", Some(Signal::Sigrtmaxminus14)),
            ("SIGRTMINPLUS3", None),
            ("RUNTIME_DEFAULT", None),
            ("QUIT", None),
            ("sigquit", None),
            ("", None),
        ] {
            assert_eq!(stop_signal(name), signal, "{name}");
        }
        let spec = json!({"enableServiceLinks": false,
            "containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGUSR1"}}]});
        let config = container_config(&node(), &input(&pod(&spec), &ManifestObjects::default())).unwrap();
        assert_eq!(config.stop_signal, Signal::Sigusr1 as i32);
    }

    #[test]
    fn a_pods_own_users_are_mapped_in_its_mounts_too() {
        let spec = json!({"enableServiceLinks": false, "hostUsers": false, "containers": [{"name": "c"}]});
        let (pod, none) = (pod(&spec), ManifestObjects::default());
        let ips: [Box<str>; 1] = ["10.0.0.9".into()];
        let users = UserNamespace { first: 131_072 };
        let input = ContainerInput { user_namespace: Some(users), pod_ips: &ips, ..input(&pod, &none) };
        let config = container_config(&node(), &input).unwrap();
        let options = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        let options = options.userns_options.unwrap();
        assert_eq!(options.mode, NamespaceMode::Pod as i32);
        for mappings in
            [&options.uids, &options.gids, &config.mounts[0].uid_mappings, &config.mounts[0].gid_mappings]
        {
            assert_eq!(
                (mappings[0].host_id, mappings[0].container_id, mappings[0].length),
                (131_072, 0, 65_536)
            );
        }
    }

    #[test]
    fn user_namespaces_are_refused() {
        let spec = json!({"enableServiceLinks": false, "hostUsers": false, "containers": [{"name": "c"}]});
        let pod = pod(&spec);
        let error = container_config(&node(), &input(&pod, &ManifestObjects::default())).unwrap_err();
        assert!(error.to_string().contains("does not support user namespaces"), "{error}");
    }
}
