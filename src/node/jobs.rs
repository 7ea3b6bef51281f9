//! The tasks the loop starts: each gets a snapshot and sends back one event.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::cgroups::{NodeCgroups, SliceError};
use crate::blocking::{Blocking, Stuck};
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::ORPHAN_DIRS_MAX;
use crate::model::{ContainerKind, DesiredPod, Objects, ObservedPod, PodKey, PodUid, SandboxItem};
use crate::proto::runtime::v1::Mount;
use crate::render::{Environment, NodeSettings, paths};
use crate::sync::act::{ActContext, act, remove_pod};
use crate::sync::kill::{remove_dead_links, remove_pod_logs};
use crate::sync::outcome::Outcome;
use crate::sync::plan::Plan;
use crate::sync::start::{EnvFiles, VolumeFuture, VolumeMounts};
use crate::volume::subpath::{self, SubPath};
use crate::volume::{self, VolumeError, VolumeImages, files::Sources};

/// The volumes of pods, below the agent's root.
pub(super) struct DiskVolumes {
    pub(super) node: Rc<NodeSettings>,
    pub(super) blocking: Rc<Blocking>,
}

impl DiskVolumes {
    /// A link that a container put into a volume may lead anywhere, so each is a path of others, the pod's own too. Only
    /// the binding belongs to what its removal waits for: until then nothing is made in the pod's directory.
    async fn bind(&self, pod: &PodUid, part: SubPath) -> Result<(), String> {
        let part = Arc::new(part);
        let theirs = part.clone();
        let found = self.blocking.run_outside(&part.volume, move || subpath::find(&theirs)).await;
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
                let text = self.blocking.run_outside(&directory, move || file.read()).await;
                files.insert(name, text.unwrap_or_else(|stuck| Err(stuck.into())).map(Rc::from));
            }
            files
        })
    }
}

/// Makes the pod's cgroup and volumes, then carries out the plan.
pub(super) async fn sync<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    pod: &DesiredPod,
    observed: &ObservedPod,
    objects: &Objects,
    plan: &Plan,
) -> Outcome {
    if plan.makes_sandbox()
        && let Err(error) = cgroups.ensure(ctx, pod).await
    {
        let note = format!("unable to ensure pod container exists: {error}");
        (ctx.notes)(&pod.key, EventKind::Warning, "FailedCreatePodContainer", &note);
        let uid = &pod.key.uid;
        let error =
            format!("failed to ensure that the pod: {uid} cgroups exist and are correctly applied: {error}");
        return Outcome { sync_error: Some(error), ..Outcome::default() };
    }
    if !plan.starts().is_empty() {
        let made = make_volumes(ctx, pod, objects).await;
        let note = |error: &VolumeError| (ctx.notes)(&pod.key, EventKind::Warning, "FailedMount", &error.0);
        match made {
            Ok(kept) => kept.iter().for_each(note),
            Err(error) => {
                note(&error);
                return Outcome { sync_error: Some(error.0), ..Outcome::default() };
            }
        }
    }
    act(ctx, pod, observed, plan).await
}

/// Makes what is to be made of the pod's volumes, then checks those of the node. Returns what was kept although something it
/// needs is missing.
async fn make_volumes<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    objects: &Objects,
) -> Result<Vec<VolumeError>, VolumeError> {
    let from = Sources { pod, node: &ctx.node, objects };
    let (steps, missing) = volume::pod_volumes(from, &paths::pod_dir(&ctx.node, &pod.key));
    let mut kept = Vec::new();
    if !(steps.is_empty() && missing.is_empty()) {
        let made = ctx.blocking.run_for(&pod.key.uid, move || volume::make_or_keep(&steps, missing)).await;
        kept = made.map_err(|stuck| VolumeError(stuck.into()))??;
    }
    for volume in volume::host_paths(pod) {
        let theirs = volume.clone();
        let checked = ctx.blocking.run_outside(&volume.path, move || theirs.check()).await;
        checked.map_err(|stuck| volume.failed(&stuck.to_string()))??;
    }
    Ok(kept)
}

/// Removes everything of a stopped pod: its objects in the runtime, its logs, its cgroups, its directory. The
/// directory goes last: as long as it is there, [`sweep`] finds what an agent that was killed has left.
pub(super) async fn remove<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    key: &PodKey,
    observed: &ObservedPod,
) -> Result<(), String> {
    remove_pod(ctx, key, observed).await?;
    cgroups.stop(ctx, &key.uid).await.map_err(|error| error.to_string())?;
    cgroups.remove(ctx, &key.uid).await?;
    cgroups.weigh(ctx, &key.uid).await;
    Ok(())
}

/// Removes what is left on disk of pods that are neither wanted nor known to the runtime: an agent was killed while
/// it removed them. Only what has a directory below our root is taken for ours, and links to logs that are gone. Returns how
/// many pods went.
///
/// # Errors
/// The first thing that stayed; the others are tried all the same.
pub(super) async fn sweep<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &NodeCgroups,
    mut known: BTreeSet<String>,
) -> Result<usize, String> {
    // Another agent's pods may have their directories here too: whatever the runtime has stays.
    let mut note = |sandbox: SandboxItem| {
        known.insert(sandbox.pod.uid.to_string());
    };
    ctx.runtime.list_pod_sandboxes(None, &mut note).await.map_err(|error| error.to_string())?;
    let node = NodeSettings::clone(&ctx.node);
    let looked = ctx.blocking.run(move || {
        let left: Vec<String> = names(&Path::new(&*node.root_dir).join("pods"))
            .filter(|uid| !known.contains(uid.as_str()))
            .take(ORPHAN_DIRS_MAX)
            .collect();
        let (logs, links) = (Path::new(&*node.pod_logs_dir), Path::new(&*node.container_logs_dir));
        let mut first = Ok(());
        for name in names(logs).filter(|name| left.iter().any(|uid| uid == paths::uid_of_logs_dir(name))) {
            let path = logs.join(name);
            first = first.and(remove_pod_logs(links, &path));
        }
        first = first.and(remove_dead_links(links, logs));
        (left, first)
    });
    let (left, mut first) = looked.await;
    for uid in &left {
        let uid = PodUid::from(uid.as_str());
        let removed = match cgroups.stop(ctx, &uid).await {
            Ok(()) => cgroups.remove(ctx, &uid).await,
            // Not waited for once for each pod.
            Err(SliceError::Systemd(error)) if !error.is_of_unit() => {
                return first.and(Err(error.to_string()));
            }
            Err(error) => Err(error.to_string()),
        };
        first = first.and(removed);
    }
    first.map(|()| left.len())
}

/// The names in a directory that are text; none when it cannot be read.
fn names(directory: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}
