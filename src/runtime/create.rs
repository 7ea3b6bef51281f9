//! `CreateContainer`: the root file system, the bundle and the record of a container. Its process is made at the start.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use prost::Message as _;

use super::apparmor;
use super::container::{Container, Containers, OfSandbox, image_mount_name};
use super::context::{failed, invalid, make_dir, not_now};
use super::images::FoundImage;
use super::pause::PAUSE;
use super::records::{self, ContainerPhase, ContainerRecord};
use super::sandbox::Sandbox;
use super::sandboxes::Sandboxes;
use super::selinux;
use super::spec;
use super::users::{self, Users};
use super::volumes;
use crate::cri::{RuntimeError, RuntimeEventKind, RuntimeResult};
use crate::filesystem::{read_bounded, replace_unsynced};
use crate::image_store::RootfsOptions;
use crate::limits::{BUNDLE_SPEC_BYTES_MAX, CONTAINER_MOUNTS_MAX as MOUNTS_MAX};
use crate::model::{ContainerId, PodUid, SortedMap};
use crate::monitor;
use crate::proto::runtime::v1 as cri;

/// `CreateContainer`. The sandbox's turn is held for reading.
///
/// # Errors
/// The configuration is refused, its image is not there, or the machine fails. Nothing is left.
pub(super) async fn create(
    containers: &Rc<Containers>,
    sandboxes: &Sandboxes,
    sandbox: &Rc<Sandbox>,
    mut config: cri::ContainerConfig,
) -> RuntimeResult<Rc<Container>> {
    let Some(metadata) = config.metadata.clone() else { return Err(invalid("config.metadata is missing")) };
    let named = format!("container {} of sandbox {}", metadata.name, sandbox.id());
    if !sandbox.is_ready() {
        return Err(not_now(format!("{named}: the sandbox is not ready")));
    }
    if config.mounts.len() > MOUNTS_MAX {
        return Err(invalid(format!(
            "{named}: mounts has {} entries; {MOUNTS_MAX} at most",
            config.mounts.len()
        )));
    }
    let wanted = config.image.as_ref().map_or("", |image| &*image.image);
    let found = containers.images.find(wanted).await?;
    let Some(image) = found else {
        return Err(RuntimeError::NotFound(format!(
            "{named}: image {wanted:?} is not present; pull it first"
        )));
    };
    let id = ContainerId::from(containers.context.new_id().await?);
    let mounted = find_mounted_images(containers, &named, &mut config).await?;
    let mut kept = config.clone();
    // It may have secrets; the bundle, which has it, is on a tmpfs.
    kept.envs.clear();
    let record = ContainerRecord {
        phase: ContainerPhase::Making,
        created_at: containers.context.now(),
        boot: containers.context.boot.clone(),
        sandbox: sandbox.id().as_str().into(),
        config: kept.encode_to_vec(),
        image_id: image.id.clone(),
        image_ref: image.reference.clone(),
        image_name: image.name.clone(),
        image_mounts: u32::try_from(mounted.len()).unwrap_or(u32::MAX),
        oci_runtime: containers.context.settings.path_of(&sandbox.handler()),
        ..ContainerRecord::default()
    };
    let container = Container::new(id, record, OfSandbox::of(sandbox));
    containers.reserve(&container)?;
    match Box::pin(make(containers, sandboxes, sandbox, &container, (config, mounted), &image)).await {
        Ok(()) => {
            containers.publish(RuntimeEventKind::Created, &container);
            Ok(container)
        }
        Err(error) => {
            if let Err(left) = containers.remove(&container).await {
                log::warn!("{named}: {left}; what was made of it is removed later");
            }
            Err(match error {
                RuntimeError::Failed { code, message } => {
                    RuntimeError::Failed { code, message: format!("{named}: {message}") }
                }
                other => other,
            })
        }
    }
}

async fn make(
    containers: &Rc<Containers>,
    sandboxes: &Sandboxes,
    sandbox: &Rc<Sandbox>,
    container: &Rc<Container>,
    (mut config, mounted): (cri::ContainerConfig, Vec<FoundImage>),
    image: &FoundImage,
) -> RuntimeResult<()> {
    let context = &containers.context;
    let id = container.id().as_str();
    let (dir, run_dir) = (containers.dir(container.id()), containers.run_dir(container.id()));
    let (kept, run, record) = (dir.clone(), run_dir.clone(), container.record.borrow().clone());
    let (asked, document) = (config.clone(), image.config.clone());
    // Nobody else writes its record before it is made.
    let begin = move || {
        let made =
            make_dir(&kept).and_then(|()| make_dir(&run)).and_then(|()| records::write(&kept, &record));
        made.map_err(|error| failed(format!("its directory and its record: {error}")))?;
        spec::volume_paths(&asked, &document)
    };
    let volumes = context.blocking(begin).await?;
    let users = sandbox.users();
    let of_pod = sandbox.selinux();
    let no_context = cri::LinuxContainerSecurityContext::default();
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let labels = of_pod.as_ref().map(|of_pod| of_pod.of_container(security.unwrap_or(&no_context)));
    // Those of the pod were checked with it.
    if let Some(labels) = labels.as_ref().filter(|_| labels != of_pod) {
        selinux::check(context, labels).await?;
    }
    let label = labels.as_ref().map(|labels| labels.mount.clone()).unwrap_or_default();
    let options = rootfs_options(false, users.as_ref(), &label);
    let rootfs = containers.images.make_rootfs(id, &image.id, options).await?;
    selinux::label_copy(context, container.pod(), &rootfs, &label).await?;
    if let Some(root) = users.as_ref().map(Users::root) {
        let (path, ours) = (rootfs.clone(), context.settings.root_dir.clone());
        let reached =
            context.blocking(move || users::let_reach(&path, ours.parent().unwrap_or(&ours), root)).await;
        reached.map_err(|error| failed(format!("its root file system: {error}")))?;
    }
    mount_images(containers, container, (users.as_ref(), &label), &mut config, &mounted).await?;
    let volumes = volumes::make(containers, container, users.as_ref(), volumes).await?;
    let sandbox_config = sandbox.config();
    real_paths(containers, container, &mut config).await?;
    let log = (!config.log_path.is_empty())
        .then(|| Path::new(&sandbox_config.log_directory).join(&config.log_path));
    let runtime = containers.oci_runtime(container)?;
    let arguments = monitor::Arguments {
        id: id.to_owned(),
        bundle: run_dir.clone(),
        runtime: runtime.path().to_owned(),
        runtime_arguments: runtime.global_arguments(),
        log,
        tty: config.tty,
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        oom_events: None,
        owner: container.root(),
        label: label.clone(),
    };
    let profiles = apparmor::profiles(context, &config).await?;
    let asked = spec::Asked {
        id: id.to_owned(),
        sandbox: sandbox.id().as_str().to_owned(),
        bundle: run_dir.clone(),
        sandbox_run: sandboxes.run_dir(sandbox.id()),
        sandbox_dir: sandboxes.file(sandbox.id(), ""),
        config,
        sandbox_config,
        image: image.clone(),
        rootfs,
        volumes,
        pod_pid: pod_pid(containers, sandboxes, sandbox).await?,
        target: target_pid(containers, container).await?,
        node: context.node_of(container.handler()),
        cgroup_mounts: context.settings.cgroup_mounts.clone(),
        apparmor: profiles,
        selinux: labels,
    };
    let mut record = container.record.borrow().clone();
    let finish = move || {
        let made = spec::make(&asked)?;
        write_bundle(&run_dir, &made, arguments, &mut record)?;
        let written = records::write(&dir, &record);
        let made = written.map(|()| (record, made.relabelled));
        made.map_err(|error| failed(format!("its record: {error}")))
    };
    let (made, relabelled) = context.blocking(finish).await?;
    // The hosts file is there by now. Nobody starts it before it is listed.
    for path in &relabelled {
        selinux::relabel(context, container.pod(), path, &label).await?;
    }
    container.record.replace(made);
    Ok(())
}

/// What is made is in the record then, with the phase.
fn write_bundle(
    run_dir: &Path,
    made: &spec::Made,
    mut arguments: monitor::Arguments,
    record: &mut ContainerRecord,
) -> RuntimeResult<()> {
    arguments.oom_events.clone_from(&made.oom_events);
    if let Some(dir) = arguments.log.as_deref().and_then(Path::parent) {
        // The agent makes the pods' directories; other clients of the CRI leave it to the runtime.
        let made = std::fs::create_dir_all(dir);
        made.map_err(|error| failed(format!("the directory of its log {}: {error}", dir.display())))?;
    }
    let beside = run_dir.join("config.json.new");
    let written = replace_unsynced(&run_dir.join("config.json"), &beside, &made.json);
    written.map_err(|error| failed(format!("its bundle: {error}")))?;
    monitor::write_arguments(run_dir, &arguments).map_err(|error| failed(error.to_string()))?;
    record.phase = ContainerPhase::Created;
    record.stop_signal = made.stop_signal;
    record.cgroup = made.cgroup.as_str().into();
    (record.uid, record.gid, record.groups) = (made.uid, made.gid, made.groups.clone());
    Ok(())
}

/// Gives a container that was not started yet other resources. Blocking.
///
/// # Errors
/// Its bundle cannot be read or written.
pub(super) fn update_bundle(run_dir: &Path, resources: &[u8]) -> io::Result<()> {
    let path = run_dir.join("config.json");
    let spec = read_bounded(&path, BUNDLE_SPEC_BYTES_MAX)?;
    let spec = spec::with_resources(&spec, resources).map_err(io::Error::other)?;
    replace_unsynced(&path, &run_dir.join("config.json.new"), &spec)
}

fn rootfs_options(read_only: bool, users: Option<&Users>, label: &str) -> RootfsOptions {
    let (uids, gids) = users.map(|users| (users.uids.clone(), users.gids.clone())).unwrap_or_default();
    RootfsOptions { read_only, uids, gids, label: label.to_owned() }
}

/// The images that are volumes of the container, in the order of its mounts, which get their ids (KEP-5365).
async fn find_mounted_images(
    containers: &Rc<Containers>,
    named: &str,
    config: &mut cri::ContainerConfig,
) -> RuntimeResult<Vec<FoundImage>> {
    let mut all = Vec::new();
    for mount in &mut config.mounts {
        let Some(image) = &mut mount.image else { continue };
        let refused =
            |why: &str| invalid(format!("{named}: the image mounted on {:?} {why}", mount.container_path));
        if !mount.readonly {
            return Err(refused("cannot be written to; set readonly"));
        }
        if !mount.host_path.is_empty() {
            return Err(refused("has a host_path too; one of the two is possible"));
        }
        let found = containers.images.find(&image.image).await?;
        let found = found.ok_or_else(|| {
            RuntimeError::NotFound(format!(
                "{named}: volume image {:?} is not present; pull it first",
                image.image
            ))
        })?;
        image.image_ref = found.id.to_string();
        all.push(found);
    }
    Ok(all)
}

/// Mounts these images; the container's configuration gets their paths. Their files are the users' already: the mounts are not mapped.
async fn mount_images(
    containers: &Rc<Containers>,
    container: &Container,
    (users, label): (Option<&Users>, &str),
    config: &mut cri::ContainerConfig,
    images: &[FoundImage],
) -> RuntimeResult<()> {
    let mounts = config.mounts.iter_mut().filter(|mount| mount.image.is_some());
    for ((index, mount), found) in (0..).zip(mounts).zip(images) {
        mount.image = None;
        let name = image_mount_name(container.id().as_str(), index);
        let options = rootfs_options(true, users, label);
        let path = containers.images.make_rootfs(&name, &found.id, options).await?;
        selinux::label_copy(&containers.context, container.pod(), &path, label).await?;
        let path = if mount.image_sub_path.is_empty() {
            path
        } else {
            let below = mount.image_sub_path.clone();
            let inside = containers.context.blocking(move || directory_inside(&path, &below)).await;
            inside.map_err(|error| invalid(format!("image_sub_path {:?}: {error}", mount.image_sub_path)))?
        };
        mount.host_path = path.display().to_string();
        (mount.uid_mappings, mount.gid_mappings) = Default::default();
    }
    Ok(())
}

/// A directory of an image, whose links do not lead out of it.
fn directory_inside(root: &Path, below: &str) -> io::Result<PathBuf> {
    let found = root.join(below.trim_start_matches('/')).canonicalize()?;
    if found.starts_with(root.canonicalize()?) && found.is_dir() {
        Ok(found)
    } else {
        Err(io::Error::other("is no directory of the image"))
    }
}

/// The host paths of mounts without links: what is not there is made as a directory, as with containerd.
async fn real_paths(
    containers: &Rc<Containers>,
    container: &Container,
    config: &mut cri::ContainerConfig,
) -> RuntimeResult<()> {
    let (pod, blocking) = (PodUid::from(container.pod()), &containers.context.blocking);
    // Each on its own: it may be on a server that does not answer, and the others are not. Those in a pod's directory are together.
    let mut jobs: Vec<(Option<PathBuf>, Vec<PathBuf>)> = Vec::new();
    for mount in &config.mounts {
        let path = PathBuf::from(&mount.host_path);
        let dir = blocking.pod_dir_of(&path);
        match jobs.iter_mut().find(|(of, paths)| paths.contains(&path) || dir.is_some() && *of == dir) {
            Some((_, paths)) if paths.contains(&path) => {}
            Some((_, paths)) => paths.push(path),
            None => jobs.push((dir, vec![path])),
        }
    }
    let mut known: SortedMap<PathBuf, PathBuf> = SortedMap::new();
    for (_, paths) in jobs {
        let asked = paths.clone();
        let real = move || asked.iter().map(|path| real_path(path)).collect::<Vec<_>>();
        let real = blocking.run_outside_of(&pod, &paths[0], real).await;
        for (path, real) in paths.into_iter().zip(real.map_err(|stuck| failed(stuck.to_string()))?) {
            let real = real.map_err(|error| failed(format!("mount of {}: {error}", path.display())))?;
            known.insert(path, real);
        }
    }
    for mount in &mut config.mounts {
        if let Some(real) = known.get(Path::new(&mount.host_path)) {
            mount.host_path = real.display().to_string();
        }
    }
    Ok(())
}

/// One of them. Blocking.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path)?;
            path.canonicalize()
        }
        other => other,
    }
}

/// The first process of the pod's PID namespace.
async fn pod_pid(
    containers: &Rc<Containers>,
    sandboxes: &Sandboxes,
    sandbox: &Sandbox,
) -> RuntimeResult<Option<u32>> {
    if !sandbox.shares_pids() {
        return Ok(None);
    }
    let dir = sandboxes.run_dir(sandbox.id()).join(PAUSE);
    let init = containers.context.blocking(move || monitor::init_of(&dir)).await;
    let init = init.map_err(|error| failed(error.to_string()))?.filter(monitor::Init::is_there);
    let gone = || not_now(format!("the first process of sandbox {} has ended; stop it", sandbox.id()));
    init.map(|init| Some(init.pid)).ok_or_else(gone)
}

/// The first process of the container whose process IDs this one sees.
async fn target_pid(containers: &Rc<Containers>, container: &Container) -> RuntimeResult<Option<u32>> {
    let config = container.record.borrow().config();
    let context = config.linux.and_then(|linux| linux.security_context);
    let options = context.and_then(|context| context.namespace_options).unwrap_or_default();
    if options.pid != i32::from(cri::NamespaceMode::Target) {
        return Ok(None);
    }
    let target = containers.existing(&options.target_id)?;
    if target.phase() != ContainerPhase::Running || target.sandbox_id() != container.sandbox_id() {
        return Err(not_now(format!("the target container {} does not run in this sandbox", target.id())));
    }
    let dir = containers.run_dir(target.id());
    let init = containers.context.blocking(move || monitor::init_of(&dir)).await;
    let init = init.map_err(|error| failed(error.to_string()))?;
    Ok(init.map(|init| init.pid))
}
