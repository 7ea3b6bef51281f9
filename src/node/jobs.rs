//! The tasks the loop starts: each gets a snapshot and sends back one event.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::cgroup::Cgroups;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::model::{ContainerKind, DesiredPod, ObservedPod, PodKey};
use crate::proto::runtime::v1::Mount;
use crate::render::{NodeSettings, paths};
use crate::sync::act::{ActContext, act, remove_pod};
use crate::sync::outcome::Outcome;
use crate::sync::plan::Plan;
use crate::sync::start::VolumeMounts;
use crate::volume;

/// Where the volumes of a pod stand on the host.
pub(super) struct DiskVolumes(pub(super) Rc<NodeSettings>);

impl VolumeMounts for DiskVolumes {
    fn mounts(&self, pod: &DesiredPod, kind: ContainerKind, index: usize) -> Result<Vec<Mount>, String> {
        let mounts = match kind {
            ContainerKind::Init => &pod.init_containers()[index].volume_mounts,
            ContainerKind::App => &pod.containers()[index].volume_mounts,
            ContainerKind::Ephemeral => &pod.ephemeral_containers()[index].volume_mounts,
        };
        let mounts = mounts.as_deref().unwrap_or_default();
        volume::container_mounts(pod, mounts, &paths::pod_dir(&self.0, &pod.key)).map_err(|error| error.0)
    }
}

/// Makes the pod's volumes, then carries out the plan.
pub(super) async fn sync<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    plan: &Plan,
) -> Outcome {
    if !plan.starts().is_empty() {
        let steps = volume::pod_volumes(pod, &paths::pod_dir(&ctx.node, &pod.key));
        if !steps.is_empty() {
            let turn = ctx.blocking.acquire().await;
            let made = smol::unblock(move || volume::make(&steps)).await;
            drop(turn);
            if let Err(error) = made {
                (ctx.notes)(&pod.key, EventKind::Warning, "FailedMount", &error.0);
                return Outcome { sync_error: Some(error.0), ..Outcome::default() };
            }
        }
    }
    act(ctx, pod, observed, plan).await
}

/// Removes everything of a stopped pod: its objects in the runtime, its logs, its directory, its cgroups.
pub(super) async fn remove<R: Runtime>(
    ctx: &ActContext<R>,
    cgroups: &Rc<Cgroups>,
    key: &PodKey,
    observed: &ObservedPod,
) -> Result<(), String> {
    remove_pod(ctx, key, observed).await?;
    let pod_dir = PathBuf::from(paths::pod_dir(&ctx.node, key));
    let (cgroups, node, uid) = (Cgroups::clone(cgroups), NodeSettings::clone(&ctx.node), key.uid.to_string());
    let turn = ctx.blocking.acquire().await;
    let removed = smol::unblock(move || {
        volume::remove_pod_dir(Path::new(&pod_dir)).map_err(|error| error.0)?;
        cgroups.remove_pod(&node, &uid).map(drop).map_err(|error| error.to_string())
    });
    let removed = removed.await;
    drop(turn);
    removed
}
