//! Pod life-cycle event generator: what changed in the runtime since the last look.
//!
//! A relist asks for every sandbox and container once and keeps a few bytes of each pod of ours; [`diff`]
//! compares it with what was read; [`read_pod`] then reads one pod in full. What belongs to others is counted, not kept.
//! Where the runtime tells of changes, `news` says what an event means, [`await_change`] waits until the runtime's
//! status shows it, and `watch` how far the events are trusted.

mod diff;
mod former;
pub mod news;
pub mod watch;
use std::rc::Rc;
use std::time::Duration;

use crate::clock::SharedClock;
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::limits::{CHANGE_LOOK_TIME, CONTAINERS_READ_MAX, POD_KEY_BYTES_MAX, RELIST_ORPHANS_MAX};
use crate::model::SortedSet;
use crate::model::{
    ContainerId, ContainerItem, ContainerState, ContainerStatus, Mono, Now, ObservedPod, PodKey, PodUid,
    SandboxId, SandboxItem, SandboxState,
};

pub use diff::{Relist, RelistPod};
pub use former::{FormerPod, FormerPods};
use news::{Instance, Until};

/// Whose pods a relist keeps: the UIDs that are desired here, in hand, or adopted, and all that this node made.
#[derive(Debug, Default)]
pub struct Interest {
    /// The value of `smolet.io/node` on our sandboxes.
    pub node: Rc<str>,
    /// UIDs to keep whoever made them.
    pub uids: SortedSet<PodUid>,
    /// How many of these are in hand: they leave those that are not less room.
    pub in_hand: usize,
    /// Of a former agent's pods all are kept, not only those of files.
    pub all_former: bool,
}

/// Lists everything once (kubelet `GenericPLEG.Relist`).
///
/// # Errors
/// The runtime's, from either list call; a half list is never handed out.
pub async fn relist<R: Runtime>(runtime: &R, interest: &Interest) -> RuntimeResult<Relist> {
    let mut relist = Relist::default();
    let mut ours = SortedSet::<SandboxId>::new();
    let mut orphans = interest.in_hand;
    runtime
        .list_pod_sandboxes(None, &mut |sandbox: SandboxItem| {
            // With names that are no names it is not ours, whatever its annotation says.
            let made_here = sandbox.node.as_deref() == Some(&*interest.node)
                && sandbox.pod.is_path_safe()
                && sandbox.pod.bytes() <= POD_KEY_BYTES_MAX;
            let known =
                interest.uids.contains(&sandbox.pod.uid) || relist.pods.contains_key(&sandbox.pod.uid);
            if known || made_here && orphans < RELIST_ORPHANS_MAX {
                orphans += usize::from(!known);
                ours.insert(sandbox.id.clone());
                let ready = sandbox.state == SandboxState::Ready;
                let pod = relist
                    .pods
                    .entry(sandbox.pod.uid.clone())
                    .or_insert_with(|| RelistPod::new(&sandbox.pod));
                pod.made_here |= made_here;
                pod.note_sandbox(&sandbox.id, sandbox.attempt, ready);
            } else if !made_here {
                relist.foreign_sandboxes += 1;
                relist.former.note_sandbox(&sandbox, interest.all_former);
            }
        })
        .await?;
    runtime
        .list_containers(None, &mut |container: ContainerItem| {
            relist.former.note_container(&container);
            let Some(key) = &container.pod else { return };
            if interest.uids.contains(&key.uid) {
                let pod = relist.pods.entry(key.uid.clone()).or_insert_with(|| RelistPod::new(key));
                pod.note_container(&container.id, container.state);
            } else if ours.contains(&container.sandbox_id)
                && let Some(pod) = relist.pods.get_mut(&key.uid)
            {
                pod.note_container(&container.id, container.state);
            }
        })
        .await?;
    Ok(relist)
}

/// Reads one pod in full (kubelet `GetPodStatus`): sandboxes and containers, newest first.
///
/// What disappears between the list and the status call is left out, as the kubelet does.
///
/// # Errors
/// The runtime's, but for `NotFound`.
pub async fn read_pod<R: Runtime>(runtime: &R, key: &PodKey) -> RuntimeResult<ObservedPod> {
    let mut sandboxes: Vec<(u32, i64, SandboxId)> = Vec::new();
    runtime
        .list_pod_sandboxes(Some(&key.uid), &mut |item| {
            sandboxes.push((item.attempt, item.created_at.0, item.id));
        })
        .await?;
    let mut containers: Vec<(u32, i64, ContainerState, ContainerId, SandboxId)> = Vec::new();
    runtime
        .list_containers(Some(&key.uid), &mut |item| {
            containers.push((item.attempt, item.created_at.0, item.state, item.id, item.sandbox_id));
        })
        .await?;
    // Generations by attempt, then by time: a gateway's wall clock may have been set back in between.
    sandboxes.sort_by(|a, b| (b.0, b.1, &a.2).cmp(&(a.0, a.1, &b.2)));
    containers.sort_by(|a, b| (b.0, b.1, &a.3).cmp(&(a.0, a.1, &b.3)));
    keep_newest(&mut containers);
    sandboxes.truncate(CONTAINERS_READ_MAX);

    let mut observed = ObservedPod::default();
    for (_, _, id) in &sandboxes {
        match runtime.pod_sandbox_status(id).await {
            Ok(status) => observed.sandboxes.push(status),
            Err(RuntimeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    for (.., id, sandbox_id) in containers {
        match runtime.container_status(&id).await {
            // Only the list says where it lives (kubelet `convertToKubeContainerStatus` lacks it too).
            Ok(status) => observed.containers.push(ContainerStatus { sandbox_id, ..status }),
            Err(RuntimeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    // Kept as long as the pod is: most pods have one of each.
    observed.sandboxes.shrink_to_fit();
    observed.containers.shrink_to_fit();
    observed.ips = pod_ips(&observed);
    Ok(observed)
}

/// Waits until the runtime's status shows what an event told. The waits between the looks come to `CHANGE_LOOK_TIME`; with a
/// runtime that answers slowly it ends after twice that. `at_once`: the first look need not wait.
pub async fn await_change<R: Runtime>(
    runtime: &R,
    clock: &SharedClock,
    instance: &Instance,
    until: Until,
    at_once: bool,
) {
    let looks = async {
        let first = at_once.then_some(Duration::ZERO);
        for wait in first.into_iter().chain(news::looks()) {
            clock.sleep(wait).await;
            let ended = match instance {
                Instance::Container(id) => {
                    runtime.container_status(id).await.map(|status| status.state == ContainerState::Exited)
                }
                Instance::Sandbox(id) => {
                    runtime.pod_sandbox_status(id).await.map(|status| status.state == SandboxState::NotReady)
                }
            };
            match ended {
                Ok(ended) if ended && until == Until::Ended => return,
                Ok(_) => {}
                // Gone, or the runtime is: whoever reads the pod next finds out.
                Err(_) => return,
            }
        }
    };
    smol::future::or(looks, clock.sleep(CHANGE_LOOK_TIME * 2)).await;
}

/// Full: dead containers are left out, oldest first; what lives is never left out, it must be stoppable.
fn keep_newest(containers: &mut Vec<(u32, i64, ContainerState, ContainerId, SandboxId)>) {
    let mut dead = 0;
    containers.retain(|(_, _, state, ..)| {
        dead += usize::from(*state == ContainerState::Exited);
        *state != ContainerState::Exited || dead <= CONTAINERS_READ_MAX
    });
}

/// The newest sandbox's addresses when it is ready (kubelet `determinePodSandboxIPs` in `GetPodStatus`).
fn pod_ips(observed: &ObservedPod) -> Vec<Box<str>> {
    let Some(sandbox) = observed.sandboxes.first().filter(|s| s.state == SandboxState::Ready) else {
        return Vec::new();
    };
    let Some(network) = &sandbox.network else { return Vec::new() };
    std::iter::once(&network.ip)
        .chain(&network.additional_ips)
        .filter(|ip| ip.parse::<std::net::IpAddr>().is_ok())
        .cloned()
        .collect()
}

/// Fixes every end of a container as a monotonic instant, once: what was fixed before is kept, so that a step of
/// the wall clock changes no back-off.
pub fn fix_times(new: &mut ObservedPod, old: Option<&ObservedPod>, now: Now) {
    for container in &mut new.containers {
        let Some(finished_at) = container.finished_at else { continue };
        let known: Option<Mono> = old
            .and_then(|old| old.containers.iter().find(|c| c.id == container.id))
            .and_then(|c| c.finished_mono);
        container.finished_mono = Some(known.unwrap_or_else(|| now.mono_of(finished_at)));
    }
}
