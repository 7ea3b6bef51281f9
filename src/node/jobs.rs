//! The tasks that the loop starts for pods: each gets a snapshot and sends back one event.
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::cgroups::{NodeCgroups, RemoveFiles, SliceError};
use crate::blocking::{Blocking, Server, Stuck};
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::{NFS_LEFTOVERS_MAX, NFS_MOUNT_TIME, NFS_UNMOUNT_TIME, ORPHAN_DIRS_MAX, OUTSIDE_PATIENCE};
use crate::model::SortedSet;
use crate::model::{
    ContainerDevice, ContainerKind, DesiredPod, Objects, ObservedPod, PodKey, PodUid, SandboxItem,
};
use crate::poison::{self, SetAside};
use crate::program::KillOnDrop;
use crate::proto::runtime::v1::{Device, Mount};
use crate::render::{Environment, NodeSettings, paths};
use crate::sync::act::{ActContext, act, remove_pod};
use crate::sync::kill::{remove_dead_links, remove_pod_logs};
use crate::sync::outcome::Outcome;
use crate::sync::plan::Plan;
use crate::sync::start::{EnvFiles, OpenedDevice, VolumeFuture, VolumeMounts};
use crate::volume::nfs::{has_volumes, mounted_below};
use crate::volume::subpath::{self, SubPath};
use crate::volume::{self, DeviceMount, Nfs, VolumeError, VolumeImages, files::Sources};

/// The volumes of pods, below the agent's root directory.
pub(super) struct DiskVolumes {
    pub(super) node: Rc<NodeSettings>,
    pub(super) blocking: Rc<Blocking>,
}

impl DiskVolumes {
    /// Binds a `subPath`. A container may have put a symlink into its volume, so every path counts as foreign, even one in the
    /// pod's own directory. The pod's removal waits for the bind alone: nothing else creates entries in the pod's directory.
    async fn bind(&self, pod: &PodUid, part: SubPath) -> Result<(), String> {
        let part = Arc::new(part);
        let theirs = part.clone();
        let found = self.blocking.run_outside_of(pod, &part.volume, move || subpath::find(&theirs)).await;
        let stuck = |stuck: Stuck| part.unanswered(&stuck.to_string());
        let Some(found) = found.map_err(stuck)?? else { return Ok(()) };
        let theirs = part.clone();
        let bind = move || subpath::bind(&theirs, &found);
        self.blocking.run_outside_for(pod, &part.volume, bind).await.map_err(stuck)?
    }
}

impl VolumeMounts for DiskVolumes {
    fn mounts<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        images: &VolumeImages,
        variables: &dyn Fn() -> Result<Environment, String>,
        waits: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, Result<Vec<Mount>, String>> {
        let container = pod.container(kind, index);
        let wanted = container.volume_mounts;
        let variables = if volume::needs_variables(wanted) { variables() } else { Ok(Environment::new()) };
        let dir = paths::pod_dir(&self.node, &pod.key);
        let found = variables.and_then(|variables| {
            volume::container_mounts(pod, container.name, wanted, images, &variables, &dir)
        });
        Box::pin(async move {
            let volume::Mounts { mounts, sub_paths } = found?;
            for part in sub_paths {
                waits();
                self.bind(&pod.key.uid, part).await?;
            }
            Ok(mounts)
        })
    }

    fn devices<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        waits: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, Result<Vec<OpenedDevice>, String>> {
        let wanted = if self.node.opens_devices {
            volume::device_mounts(pod, pod.container(kind, index).volume_mounts)
        } else {
            Ok(Vec::new())
        };
        Box::pin(async move {
            let mut opened = Vec::new();
            for DeviceMount { volume, container_path, read_only } in wanted? {
                waits();
                let theirs = volume.clone();
                let found =
                    self.blocking.run_outside_of(&pod.key.uid, &volume.path, move || theirs.device()).await;
                let found = found.unwrap_or_else(|stuck| Err(volume.failed(&stuck.to_string())));
                let (real, number) = found.map_err(|error| error.0)?;
                let path = volume.path.to_string_lossy().into();
                opened.push(OpenedDevice {
                    device: ContainerDevice { path, number },
                    asked: Device {
                        container_path,
                        host_path: real.to_string_lossy().into_owned(),
                        permissions: if read_only { "r" } else { "rw" }.to_owned(),
                    },
                });
            }
            Ok(opened)
        })
    }

    fn files<'a>(
        &'a self,
        pod: &'a DesiredPod,
        kind: ContainerKind,
        index: usize,
        waits: &'a mut dyn FnMut(),
    ) -> VolumeFuture<'a, EnvFiles> {
        let dir = paths::pod_dir(&self.node, &pod.key);
        let wanted = volume::env_files(pod, pod.container(kind, index).env, &dir);
        Box::pin(async move {
            let mut files = EnvFiles::new();
            for file in wanted {
                let (name, directory) = ((file.volume.clone(), file.path.clone()), file.directory.clone());
                waits();
                let text = self.blocking.run_outside_of(&pod.key.uid, &directory, move || file.read()).await;
                files.insert(name, text.unwrap_or_else(|stuck| Err(stuck.into())).map(Rc::from));
            }
            files
        })
    }
}

/// Makes the pod's cgroup and volumes, then carries out the plan. The futures of its steps are boxed: a pod that waits in `act`
/// for its start permit, as a hundred may, keeps no memory of completed steps.
pub(super) async fn sync<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    pod: &DesiredPod,
    observed: &ObservedPod,
    objects: &Objects,
    plan: &Plan,
) -> Outcome {
    if plan.makes_sandbox()
        && let Err(error) = Box::pin(cgroups.ensure(ctx, pod)).await
    {
        let note = format!("unable to ensure pod container exists: {error}");
        ctx.note(&pod.key, EventKind::Warning, "FailedCreatePodContainer", &note);
        let uid = &pod.key.uid;
        let error =
            format!("failed to ensure that the pod: {uid} cgroups exist and are correctly applied: {error}");
        return Outcome { sync_error: Some(error), ..Outcome::default() };
    }
    if !plan.starts().is_empty() {
        let made = Box::pin(ctx.give_up.unless_ending(make_volumes(ctx, pod, objects))).await;
        let Some(made) = made else { return Outcome::default() };
        let note = |error: &VolumeError| ctx.note(&pod.key, EventKind::Warning, "FailedMount", &error.0);
        match made {
            Ok(kept) => kept.iter().for_each(note),
            Err(error) => {
                note(&error);
                return Outcome { sync_error: Some(error.0), ..Outcome::default() };
            }
        }
    }
    let outcome = act(ctx, pod, observed, plan).await;
    if !plan.resizes.is_empty() {
        Box::pin(cgroups.weigh(ctx, &pod.key.uid)).await;
    }
    outcome
}

/// Makes the pod's volumes, then checks those of the node. Returns the errors of volumes that kept their former content because
/// an object is missing.
async fn make_volumes<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    objects: &Objects,
) -> Result<Vec<VolumeError>, VolumeError> {
    let from = Sources { pod, node: &ctx.node, objects };
    let (steps, missing) = volume::pod_volumes(from, &paths::pod_dir(&ctx.node, &pod.key));
    let mut kept = Vec::new();
    if !(steps.is_empty() && missing.is_empty()) {
        let made =
            ctx.manager.blocking.run_for(&pod.key.uid, move || volume::make_or_keep(&steps, missing)).await;
        kept = made.map_err(|stuck| VolumeError(stuck.into()))??;
    }
    for volume in volume::nfs_volumes(pod, &paths::pod_dir(&ctx.node, &pod.key)) {
        mount(ctx, pod, Arc::new(volume?)).await?;
    }
    for volume in volume::host_paths(pod) {
        let theirs = volume.clone();
        let checked =
            ctx.manager.blocking.run_outside_of(&pod.key.uid, &volume.path, move || theirs.check()).await;
        checked.map_err(|stuck| volume.failed(&stuck.to_string()))??;
    }
    Ok(kept)
}

/// Mounts an NFS volume unless it is mounted already, without a request to the server, which may be unreachable. A server that
/// does not respond is reported in the pod's events long before the attempt ends.
async fn mount<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    volume: Arc<Nfs>,
) -> Result<(), VolumeError> {
    let (uid, theirs) = (&pod.key.uid, volume.clone());
    let stuck = |stuck: Stuck| volume.failed(&stuck.to_string());
    if ctx.manager.blocking.run_for(uid, move || theirs.is_mounted()).await.map_err(stuck)?? {
        return Ok(());
    }
    let (wanted, theirs, source) = (KillOnDrop::default(), volume.clone(), Path::new(&volume.source));
    let dropped = wanted.dropped();
    let time = NFS_MOUNT_TIME + OUTSIDE_PATIENCE;
    let server = (Server::Mount, &*volume.server);
    let mounted =
        ctx.manager.blocking.run_with_server(uid, server, source, time, move || theirs.mount(&dropped));
    let told = async {
        ctx.manager.clock.sleep(OUTSIDE_PATIENCE).await;
        let note = stuck(Stuck::Hangs(source.to_owned()));
        ctx.note(&pod.key, EventKind::Warning, "FailedMount", &note.0);
        std::future::pending().await
    };
    smol::future::or(mounted, told).await.map_err(stuck)?
}

/// Unmounts the NFS volumes of a pod that has ended. A server that is unreachable does not delay the unmount of others'
/// volumes.
///
/// # Errors
/// The first failure.
pub(super) async fn unmount<R: Runtime>(ctx: &ActContext<R>, uid: &PodUid) -> Result<(), String> {
    let pod_dir = Path::new(&*ctx.node.root_dir).join("pods").join(uid.as_str());
    let found = ctx.manager.blocking.run_for(uid, move || mounted_below(&pod_dir)).await?;
    let (mut first, mut failed) = (Ok(()), SortedSet::new());
    for mounted in found.map_err(|error| error.0)? {
        if failed.contains(&mounted.server) {
            continue;
        }
        let (wanted, theirs) = (KillOnDrop::default(), mounted.clone());
        let dropped = wanted.dropped();
        let time = NFS_UNMOUNT_TIME * 2 + OUTSIDE_PATIENCE;
        let server = (Server::Unmount, &*mounted.server);
        let unmount = move || theirs.unmount(&dropped);
        let done = ctx.manager.blocking.run_with_server(uid, server, &mounted.point, time, unmount);
        let done = done.await.unwrap_or_else(|stuck| Err(mounted.failed(&stuck.to_string())));
        if let Err(error) = done {
            failed.insert(mounted.server);
            first = first.and(Err(error.0));
        }
    }
    first
}

/// Removes everything of a stopped pod: its sandboxes and containers, its logs, its cgroups, its directory. The directory is
/// last: while it exists, [`sweep`] finds what a killed agent has left.
pub(super) async fn remove<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    key: &PodKey,
    observed: &ObservedPod,
) -> Result<(), String> {
    if let Err(error) = remove_pod(ctx, key, observed).await {
        cgroups.end(ctx, &key.uid).await;
        return Err(error);
    }
    remove_disk(ctx, cgroups, &key.uid, volume::remove_pod_dir).await?;
    cgroups.forget_written(&key.uid);
    Ok(())
}

/// Removes what a terminated pod no longer needs (`SyncTerminatedPod`): its cgroups, its volumes with their mounts, its range
/// of user IDs. Its dead containers, its logs and the rest of its directory stay until it is no longer desired.
pub(super) async fn clean_up<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    uid: &PodUid,
) -> Result<(), String> {
    remove_disk(ctx, cgroups, uid, volume::remove_volumes).await
}

async fn remove_disk<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    uid: &PodUid,
    remove: RemoveFiles,
) -> Result<(), String> {
    cgroups.stop(ctx, uid).await.map_err(|error| error.to_string())?;
    cgroups.remove(ctx, uid, remove).await?;
    cgroups.weigh(ctx, uid).await;
    Ok(())
}

/// Removes the files of pods that are neither desired nor known to the runtime: an agent was killed while it removed them. Only
/// pods with a directory below this agent's root count, and links to logs that no longer exist. Returns how many pods were
/// removed, and those with NFS volumes: other pods wait for the sweep, which does not wait for NFS servers.
///
/// # Errors
/// The first failure; the other pods are removed all the same.
pub(super) async fn sweep<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    mut known: SortedSet<String>,
    set_aside: &SetAside,
) -> (Result<usize, String>, Vec<PodUid>) {
    // Another agent's pods may have directories in the same place: pods that the runtime knows are spared.
    let mut note = |sandbox: SandboxItem| {
        known.insert(sandbox.pod.uid.to_string());
    };
    if let Err(error) = ctx.manager.runtime.list_pod_sandboxes(None, &mut note).await {
        return (Err(error.to_string()), Vec::new());
    }
    let node = NodeSettings::clone(&ctx.node);
    let looked = ctx.manager.blocking.run(move || {
        let pods = Path::new(&*node.root_dir).join("pods");
        let left: Vec<String> =
            names(&pods).filter(|uid| !known.contains(uid.as_str())).take(ORPHAN_DIRS_MAX).collect();
        let (logs, links) = (Path::new(&*node.pod_logs_dir), Path::new(&*node.container_logs_dir));
        let mut first = Ok(());
        for name in names(logs).filter(|name| left.iter().any(|uid| uid == paths::uid_of_logs_dir(name))) {
            let path = logs.join(name);
            first = first.and(remove_pod_logs(links, &path));
        }
        first = first.and(remove_dead_links(links, logs));
        let (slow, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|uid| has_volumes(&pods.join(uid)));
        (left, slow, first)
    });
    let (left, slow, mut first) = looked.await;
    let slow = slow.iter().take(NFS_LEFTOVERS_MAX).map(|uid| PodUid::from(uid.as_str())).collect();
    for uid in &left {
        let uid = PodUid::from(uid.as_str());
        let mark = poison::pod_mark(&uid, "");
        if let Some(times) = set_aside.panics(&mark) {
            let why =
                format!("pod {uid}: removing it ended the agent {times} times; remove its directory by hand");
            first = first.and(Err(why));
            continue;
        }
        let removed = match cgroups.stop(ctx, &uid).await {
            Ok(()) => {
                let removed = poison::scoped(mark, cgroups.remove(ctx, &uid, volume::remove_pod_dir)).await;
                cgroups.forget_written(&uid);
                removed
            }
            // systemd does not answer: one timeout is enough for all pods.
            Err(SliceError::Systemd(error)) if !error.is_of_unit() => {
                return (first.and(Err(error.to_string())), slow);
            }
            Err(error) => Err(error.to_string()),
        };
        first = first.and(removed);
    }
    (first.map(|()| left.len()), slow)
}

/// The UTF-8 names in a directory; none when it cannot be read.
fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}
