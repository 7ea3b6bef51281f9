//! A container's CRI configuration (`generateContainerConfig`). PURE.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer};

use super::env::{EnvSources, Environment, environment};
use super::expand::expand;
use super::hostname::hostname_and_domain;
use super::labels::{container_annotations, container_labels};
use super::paths::{container_log_path, hosts_file_path};
use super::resources::container_resources;
use super::security::{container_security_context, image_user, verify_run_as_non_root};
use super::{NodeSettings, RenderError};
use crate::cri::Image;
use crate::model::{ContainerId, ContainerKind, DesiredPod};
use crate::proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig, Mount, NamespaceMode,
};

/// What a container's configuration is made from, besides the node.
#[derive(Clone, Copy)]
pub struct ContainerInput<'a> {
    /// The pod it belongs to.
    pub pod: &'a DesiredPod,
    /// Which list of the spec it stands in.
    pub kind: ContainerKind,
    /// Its place in that list.
    pub index: usize,
    /// How often it was started before; the attempt in its metadata and the number of its log.
    pub restart_count: u32,
    /// What the runtime calls the image (`PullImage`'s or `ImageStatus`'s answer).
    pub image_ref: &'a str,
    /// The image as the runtime describes it, for its user; `None` counts as uid 0.
    pub image: Option<&'a Image>,
    /// The pod's addresses, from its sandbox.
    pub pod_ips: &'a [Box<str>],
    /// Volume mounts, resolved to host paths by the caller.
    pub mounts: &'a [Mount],
    /// The host file for the termination message. The caller makes it, mode 0666, in
    /// `paths::termination_log_dir` under a name of eight random hexadecimal digits; `None` mounts none.
    pub termination_log: Option<&'a str>,
    /// The container an ephemeral container's `targetContainerName` means, when it runs.
    pub target: Option<&'a ContainerId>,
    /// Annotations of device plugins, overridden by the kubelet's own.
    pub annotations: &'a [(Box<str>, Box<str>)],
    /// Where environment variables come from.
    pub env: &'a dyn EnvSources,
}

impl<'a> ContainerInput<'a> {
    /// The container's definition; an ephemeral container as the container it stands for
    /// (`EphemeralContainerCommon`). `None` when there is no such place in the spec.
    pub fn container(&self) -> Option<Cow<'a, Container>> {
        let pod: &'a DesiredPod = self.pod;
        match self.kind {
            ContainerKind::Init => pod.init_containers().get(self.index).map(Cow::Borrowed),
            ContainerKind::App => pod.containers().get(self.index).map(Cow::Borrowed),
            ContainerKind::Ephemeral => {
                pod.ephemeral_containers().get(self.index).map(|container| Cow::Owned(common(container)))
            }
        }
    }
}

fn common(of: &EphemeralContainer) -> Container {
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

/// True when the container gets the pod's hosts file mounted at `/etc/hosts` (`shouldMountHostsFile`): the pod has
/// an address or the host's network, and no volume of the container stands there. The caller writes the file
/// first: `hosts_file` to `paths::hosts_file_path`.
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
    let container = input
        .container()
        .ok_or_else(|| format!("pod {} has no container at place {} of its spec", pod.key, input.index))?;
    let container = container.as_ref();
    // The checks come in the kubelet's order: the first one's message is what is shown.
    hostname_and_domain(node, pod)?;
    let environment = environment(node, input, container)?;
    let user = image_user(input.image);
    verify_run_as_non_root(pod, container, &user)?;
    let mut security_context = container_security_context(node, pod, container, &user)?;
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
        mounts: mounts(node, input, container),
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
        envs: environment.into_iter().map(|(key, value)| KeyValue { key, value }).collect(),
        ..ContainerConfig::default()
    })
}

/// Command or arguments with `$(NAME)` replaced (`ExpandContainerCommandAndArgs`). The CRI carries text, so that a
/// Secret's bytes that are no UTF-8 cannot be put in; the kubelet fails at the call then.
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

/// The caller's volumes, then the hosts file, then the termination message's (`makeMounts`).
fn mounts(node: &NodeSettings, input: &ContainerInput<'_>, container: &Container) -> Vec<Mount> {
    let file = |host_path: String, container_path: &str| Mount {
        host_path,
        container_path: container_path.to_owned(),
        ..Mount::default()
    };
    let mut mounts = input.mounts.to_vec();
    if mounts_hosts_file(input) {
        mounts.push(file(hosts_file_path(node, &input.pod.key), HOSTS));
    }
    let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    if let (Some(host_path), Some(path)) = (input.termination_log, path) {
        // A relative path counts from the root (`MakeAbsolutePath`).
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        mounts.push(file(host_path.to_owned(), &path));
    }
    mounts
}
