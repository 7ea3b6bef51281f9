//! Starts one container (`startContainer`): images, configuration, create, start, log link.
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, LifecycleHandler, Secret, Service};

use super::KillReason;
use super::act::{ActContext, HookCall};
use super::files::{self, create_dir};
use super::images::{Images, ensure_images};
use super::kill::{Victim, kill_container, remove_container};
use super::outcome::{Failure, SyncError};
use super::plan::Start;
use super::sandbox::PodSandbox;
use super::start_limiter::{StartCall, StartPermit};
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::model::SortedMap;
use crate::model::device::device_lines;
use crate::model::{
    ContainerDevice, ContainerId, ContainerKind, ContainerSpec, ContainerState, DesiredPod, ObjectKind,
    ObservedPod, Sizes,
};
use crate::proto::runtime::v1::{ContainerConfig, Device, Mount};
use crate::render::labels::{DEVICES_ANNOTATION, RESOURCES_ANNOTATION, cdi_annotations};
use crate::render::resources::sizes;
use crate::render::{
    ContainerInput, EnvSources, Environment, container_config, hosts_file, mounts_hosts_file, paths,
};
use crate::volume::VolumeImages;

/// Result of a start that did not fail.
pub(super) enum Started {
    /// The container runs.
    Runs,
    /// The pull was cancelled because the pod changed or is terminating; nothing was created.
    GivenUp,
}

/// Starts a container in the pod's sandbox. The error is shown in the pod's status.
pub(super) async fn start_container<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    sandbox: &PodSandbox<'_>,
    start: &Start,
    secrets: &[Arc<Secret>],
    permit: &mut StartPermit<'_>,
) -> Result<Started, Failure> {
    let spec = pod.container(start.kind, start.index);
    let name = spec.name;
    let about = About::container(&pod.key, start.kind, name);
    let fail = |error, message: String| {
        let shown = format!("Error: container {name}: {message}");
        ctx.note(about, EventKind::Warning, "Failed", &shown);
        Failure::new(error, message)
    };
    let images = ensure_images(ctx, pod, &spec, sandbox, secrets, permit);
    let images = match ctx.give_up.unless_asked(images).await {
        None => return Ok(Started::GivenUp),
        Some(Ok(images)) => images,
        Some(Err(Failure { error, message, retry_at })) => {
            return Err(Failure { retry_at, ..fail(error, message) });
        }
    };
    let counted = next_restart_count(ctx, pod, observed, name, permit).await;
    let counted = counted.map_err(|message| fail(SyncError::CreateContainerConfig, message))?;
    if ctx.give_up.unless_asked(permit.acquire()).await.is_none() {
        return Ok(Started::GivenUp);
    }
    // Differs from the kubelet, whose counts restart at 0 when the runtime and the logs have lost theirs.
    let restart_count = counted.max(ctx.least_counts.of(name));
    let target =
        target(&spec, observed).map_err(|message| fail(SyncError::CreateContainerConfig, message))?;
    let made = Made { observed, restart_count, images: &images, target };
    let config = configuration(ctx, pod, sandbox, start, &spec, &made, permit);
    let Some(config) = ctx.give_up.unless_ending(config).await else { return Ok(Started::GivenUp) };
    let config = config.map_err(|message| fail(SyncError::CreateContainerConfig, message))?;
    if ctx.give_up.unless_asked(permit.acquire()).await.is_none() {
        return Ok(Started::GivenUp);
    }
    let attempt = config.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    let overtaken = &ctx.give_up.overtaken;
    if !overtaken.container_may_be_made(&*ctx.manager.runtime, &pod.key.uid, name, attempt).await {
        return Ok(Started::GivenUp);
    }
    // Differs from the kubelet (`startContainer`), which leaves the old one beside the new one until garbage collection: its
    // start may have been cancelled, by a deadline or by the agent's death, and still be executed. Then both would run.
    if let Some(left) = observed.container(name).filter(|left| left.state == ContainerState::Created) {
        let removed = remove_container(ctx, &pod.key, left, true).await;
        removed.map_err(|error| fail(SyncError::CreateContainer, error.to_string()))?;
    }
    let created = ctx.manager.runtime.create_container(&sandbox.id, &config, sandbox.config);
    let created = permit.call(&ctx.manager.clock, StartCall::CreateContainer, created).await;
    let id = created.map_err(|error| fail(SyncError::CreateContainer, error.to_string()))?;
    ctx.note(about, EventKind::Normal, "Created", &format!("Created container {name}"));
    let started = permit
        .call(&ctx.manager.clock, StartCall::StartContainer, ctx.manager.runtime.start_container(&id))
        .await;
    started.map_err(|error| fail(SyncError::RunContainer, error.to_string()))?;
    ctx.note(about, EventKind::Normal, "Started", &format!("Started container {name}"));
    link_log(ctx, pod, sandbox, &config, name, &id).await;
    if config.stop_signal != 0 {
        check_stop_signal(ctx, pod, name, &id).await;
    }
    let hook = spec.lifecycle.and_then(|lifecycle| lifecycle.post_start.as_ref());
    if let Some(handler) = hook {
        // A hook has no deadline; other syncs may start containers meanwhile.
        permit.release();
        post_start(ctx, pod, sandbox, &spec, &id, handler).await?;
    }
    Ok(Started::Runs)
}

/// The restart count of a container's next start: one more than the runtime has on record, else as its logs have it. The logs may
/// not answer.
async fn next_restart_count<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    name: &str,
    permit: &mut StartPermit<'_>,
) -> Result<u32, String> {
    if let Some(status) = observed.container(name) {
        return Ok(status.meta.restart_count.saturating_add(1));
    }
    let logs = PathBuf::from(format!("{}/{name}", paths::pod_logs_dir(&ctx.node, &pod.key)));
    let theirs = logs.clone();
    let counted = move || files::restart_count_of_logs(&theirs);
    let counted = ctx.manager.blocking.run_on_logs(&pod.key.uid, &logs, counted);
    permit.files(&ctx.manager.clock, counted).await.map_err(|stuck| stuck.to_string())
}

/// The container whose namespaces an ephemeral container shares (`targetContainerName`), if it names one.
fn target<'a>(
    spec: &ContainerSpec<'_>,
    observed: &'a ObservedPod,
) -> Result<Option<&'a ContainerId>, String> {
    let Some(target) = spec.target else { return Ok(None) };
    match observed.container(target) {
        Some(status) => Ok(Some(&status.id)),
        None => Err(format!("unable to find target container {target}")),
    }
}

/// Runs the container's postStart hook; a failure kills the container. The sync waits for it, as the kubelet's does: the
/// next container starts after it. The pod's termination does not wait for it.
async fn post_start<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &PodSandbox<'_>,
    spec: &ContainerSpec<'_>,
    id: &ContainerId,
    handler: &LifecycleHandler,
) -> Result<(), Failure> {
    let call = HookCall {
        key: &pod.key,
        id,
        container: spec.name,
        ports: spec.ports,
        pod_ips: &sandbox.ips,
        handler,
    };
    let message = match ctx.give_up.unless_ending(ctx.manager.hooks.run(call)).await {
        // The kill follows, and does not wait for the hook.
        None => return Ok(()),
        Some(Ok(warning)) => {
            ctx.warn_of_hook(&pod.key, warning);
            return Ok(());
        }
        Some(Err(message)) => message,
    };
    // The hook's output may contain secrets: not for events.
    let shown = format!("PostStartHook of {} failed", spec.name);
    let kind = pod.container_kind(spec.name).unwrap_or(ContainerKind::App);
    ctx.note(About::container(&pod.key, kind, spec.name), EventKind::Warning, "FailedPostStartHook", &shown);
    let victim = Victim {
        key: &pod.key,
        pod: Some(pod),
        id,
        name: spec.name,
        meta: None,
        pod_ips: &sandbox.ips,
        reason: KillReason::FailedPostStartHook,
        message: "FailedPostStartHook",
        grace: None,
    };
    if let Err(error) = kill_container(ctx, victim, None).await {
        log::warn!(
            "{}: container {}, whose postStart hook failed, was not killed: {error}",
            pod.key,
            spec.name
        );
    }
    Err(Failure::new(SyncError::PostStartHook, message))
}

/// A runtime that does not support `lifecycle.stopSignal` ignores it silently (containerd before 2.1); only the reported
/// status shows it, and CRI-O's does not. The container runs all the same; it is stopped by its image's signal.
async fn check_stop_signal<R: Runtime>(ctx: &ActContext<R>, pod: &DesiredPod, name: &str, id: &ContainerId) {
    let runtime = &ctx.manager.runtime;
    if runtime.container_status(id).await.is_ok_and(|status| status.stop_signal == 0)
        && !runtime.version().await.is_ok_and(|version| version.hides_stop_signal())
    {
        let message = format!(
            "container {name}: this runtime has no lifecycle.stopSignal; the container is stopped by its image's signal, \
             SIGTERM when that has none"
        );
        ctx.note(&pod.key, EventKind::Warning, "StopSignalIgnored", &message);
    }
}

/// Inputs resolved for this start.
struct Made<'a> {
    observed: &'a ObservedPod,
    restart_count: u32,
    images: &'a Images,
    target: Option<&'a ContainerId>,
}

/// `generateContainerConfig`, with the files that it refers to. I/O that may hang is awaited without holding the permit.
async fn configuration<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &PodSandbox<'_>,
    start: &Start,
    spec: &ContainerSpec<'_>,
    made: &Made<'_>,
    permit: &mut StartPermit<'_>,
) -> Result<ContainerConfig, String> {
    let name = spec.name;
    let termination_log = if spec.termination_message_path.is_some_and(|path| !path.is_empty()) {
        let dir = paths::termination_log_dir(&ctx.node, &pod.key, name);
        let at = PathBuf::from(&dir);
        let records = made.observed.containers.iter().filter(|status| *status.name == *name);
        let kept: Vec<Box<str>> = records.filter_map(|status| status.termination_log.clone()).collect();
        let make = move || files::termination_log(&dir, &kept).map_err(|error| error.to_string());
        let made = permit
            .files(&ctx.manager.clock, ctx.manager.blocking.run_outside_for(&pod.key.uid, &at, make))
            .await;
        // The kubelet too starts the container without it.
        let made = made.unwrap_or_else(|stuck| Err(stuck.to_string()));
        made.inspect_err(|error| log::warn!("{}: container {name}: termination log: {error}", pod.key)).ok()
    } else {
        None
    };
    let env_files = ctx.manager.volumes.files(pod, start.kind, start.index, &mut || permit.release()).await;
    let env = WithFiles { others: &*ctx.env, files: env_files };
    let mut input = ContainerInput {
        pod,
        kind: start.kind,
        index: start.index,
        restart_count: made.restart_count,
        image_ref: &made.images.own.image_ref,
        image: made.images.own.image.as_ref(),
        pod_ips: &sandbox.ips,
        mounts: &[],
        termination_log: termination_log.as_deref(),
        target: made.target,
        user_namespace: sandbox.users,
        recursive_read_only: ctx.mounts_recursively_read_only(pod),
        annotations: &cdi_annotations(pod),
        env: &env,
    };
    let (of_volumes, variables) = (&made.images.volumes, || input.variables(&ctx.node));
    let waits = &mut || permit.release();
    let mounts =
        ctx.manager.volumes.mounts(pod, start.kind, start.index, of_volumes, &variables, waits).await?;
    let opened = ctx.manager.volumes.devices(pod, start.kind, start.index, waits).await?;
    input.mounts = &mounts;
    let records = made.observed.containers.iter().filter(|status| *status.name == *name);
    let known = records.map(|status| status.meta.restart_count).collect();
    let written =
        write_files(ctx, pod, sandbox, (mounts_hosts_file(&input), name), (known, made.restart_count));
    permit.files(&ctx.manager.clock, written).await?;
    let mut config = container_config(&ctx.node, &input).map_err(|error| error.to_string())?;
    open_devices(&mut config, opened);
    if let Some(sizes) = sizes_of(pod, start) {
        // Records the resources on the container itself, so that they survive the agent and its files.
        config.annotations.insert(RESOURCES_ANNOTATION.to_owned(), sizes.to_string());
    }
    Ok(config)
}

/// Opens the devices of its volumes in the container's device cgroup, and records on the container which they are.
///
/// Differs from the kubelet, which mounts the nodes and leaves them closed to containers that are not privileged (kubernetes#5607).
fn open_devices(config: &mut ContainerConfig, opened: Vec<OpenedDevice>) {
    if opened.is_empty() {
        return;
    }
    let devices: Vec<ContainerDevice> = opened.iter().map(|of| of.device.clone()).collect();
    config.annotations.insert(DEVICES_ANNOTATION.to_owned(), device_lines(&devices));
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    if !context.is_some_and(|context| context.privileged) {
        config.devices = opened.into_iter().map(|of| of.asked).collect();
    }
}

/// The CPU and memory of a container that requests any.
fn sizes_of(pod: &DesiredPod, start: &Start) -> Option<Sizes> {
    let list = match start.kind {
        ContainerKind::Init => pod.init_containers(),
        ContainerKind::App => pod.containers(),
        ContainerKind::Ephemeral => &[],
    };
    list.get(start.index).map(sizes)
}

/// `ensureHostsFile`, and the directory of the container's logs, with those of `known` starts, of `restart_count` and of the one before.
async fn write_files<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &PodSandbox<'_>,
    (has_hosts, name): (bool, &str),
    (known, restart_count): (Vec<u32>, u32),
) -> Result<(), String> {
    let hosts = if has_hosts { Some(hosts_text(ctx, pod, sandbox).await?) } else { None };
    let pod_dir = paths::pod_dir(&ctx.node, &pod.key);
    let logs = format!("{}/{name}", paths::pod_logs_dir(&ctx.node, &pod.key));
    let at = PathBuf::from(paths::hosts_file_path(&ctx.node, &pod.key));
    let (path, name) = (at.clone(), name.to_owned());
    let written = ctx.manager.blocking.run_outside_for(&pod.key.uid, &at, move || {
        if let Some(text) = hosts {
            files::write_hosts(&pod_dir, &path, &text)
                .map_err(|error| format!("hosts file {} was not written: {error}", path.display()))?;
        }
        create_dir(&logs, 0o755).map_err(|error| {
            format!("create container log directory for container {name} failed: {error}")
        })?;
        files::remove_stray_logs(Path::new(&logs), &known, restart_count);
        Ok(())
    });
    written.await?
}

async fn hosts_text<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &PodSandbox<'_>,
) -> Result<String, String> {
    let of_node = if pod.spec().host_network == Some(true) {
        let path = ctx.manager.hosts_file.to_path_buf();
        let read =
            ctx.manager.blocking.run_outside(&ctx.manager.hosts_file, move || files::read_hosts(&path)).await;
        read?.map_err(|error| error.to_string())?
    } else {
        String::new()
    };
    hosts_file(&ctx.node, pod, &sandbox.ips, &of_node).map_err(|error| error.to_string())
}

/// Creates the symlink that log collectors read. A failure is logged: the container runs all the same.
async fn link_log<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &PodSandbox<'_>,
    config: &ContainerConfig,
    name: &str,
    id: &ContainerId,
) {
    let log = format!("{}/{}", sandbox.config.log_directory, config.log_path);
    let link = ctx.log_link(&pod.key, name, id.as_str());
    let shown = link.display().to_string();
    let (at, log) = (PathBuf::from(&log), log);
    let linked =
        ctx.manager.blocking.run_on_logs(&pod.key.uid, &at, move || files::link_log(Path::new(&log), &link));
    if let Err(error) = linked.await.map_err(io::Error::other).and_then(|linked| linked) {
        log::warn!("{}: container {name}: log link {shown}: {error}", pod.key);
    }
}

/// The volume manager's interface to a start: mounts and files of a container's volumes.
pub trait VolumeMounts {
    /// The mounts in spec order. `images` are those of its image volumes; `variables` is called for the container's
    /// variables when a mount has a `subPathExpr`; `waits` is called before an operation that may hang. The error is shown
    /// as the container's waiting message.
    fn mounts<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        images: &VolumeImages,
        variables: &dyn Fn() -> Result<Environment, String>,
        waits: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, Result<Vec<Mount>, String>>;

    /// The devices of the container's device volumes; none where the node does not open them. `waits` as above.
    fn devices<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        waits: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, Result<Vec<OpenedDevice>, String>>;

    /// The contents of the files that the container's variables come from (`fileKeyRef`); `waits` as above.
    fn files<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        waits: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, EnvFiles>;
}

/// A device volume where a container mounts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedDevice {
    /// The volume's path, and the device behind it.
    pub device: ContainerDevice,
    /// In the runtime's words.
    pub asked: Device,
}

/// The future of a [`VolumeMounts`] call.
pub type VolumeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// By volume and path: the file's text, or why it could not be read.
pub type EnvFiles = SortedMap<(Box<str>, Box<str>), Result<Rc<str>, String>>;

/// The node's sources of variables, with the files of one container.
struct WithFiles<'a> {
    others: &'a dyn EnvSources,
    files: EnvFiles,
}

impl EnvSources for WithFiles<'_> {
    fn config_map(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
        self.others.config_map(pod, name)
    }

    fn secret(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<Secret>>, String> {
        self.others.secret(pod, name)
    }

    fn not_found(&self, kind: ObjectKind, name: &str) -> String {
        self.others.not_found(kind, name)
    }

    fn services(&self, pod: &DesiredPod) -> Rc<[Service]> {
        self.others.services(pod)
    }

    fn volume_file(&self, volume: &str, path: &str) -> Result<Option<Rc<str>>, String> {
        self.files.get(&(volume.into(), path.into())).cloned().transpose()
    }
}

/// No volumes: a container that mounts one does not start, with an error that says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoVolumes;

impl VolumeMounts for NoVolumes {
    fn mounts<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        _: &VolumeImages,
        _: &dyn Fn() -> Result<Environment, String>,
        _: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, Result<Vec<Mount>, String>> {
        let mounts = match pod.container(kind, index).volume_mounts.first() {
            None => Ok(Vec::new()),
            Some(mount) => Err(format!(
                "volume {} cannot be mounted at {}: this agent has no volumes; remove it from volumeMounts",
                mount.name, mount.mount_path
            )),
        };
        Box::pin(std::future::ready(mounts))
    }

    fn devices<'a>(
        &'a self,
        _: &'a DesiredPod,
        _: ContainerKind,
        _: usize,
        _: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, Result<Vec<OpenedDevice>, String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn files<'a>(
        &'a self,
        _: &'a DesiredPod,
        _: ContainerKind,
        _: usize,
        _: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, EnvFiles> {
        Box::pin(std::future::ready(EnvFiles::new()))
    }
}
