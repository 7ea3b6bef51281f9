//! Pod lifecycle event generator (PLEG): detects changes in the runtime since the last relist.
//!
//! A relist lists every sandbox and container once and stores a few bytes of each of our pods; [`diff`] compares it with the
//! last read of each pod; [`read_pod`] then reads one pod in full. Sandboxes and containers of other clients are only counted.
//! With a runtime that has an event stream, `evented` decides what an event changes, [`await_change`] polls until the runtime's
//! status shows it, and `event_stream` decides how far the stream is trusted.

mod diff;
pub mod event_stream;
pub mod evented;
mod former;
use std::rc::Rc;
use std::time::Duration;

use crate::clock::SharedClock;
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::limits::{CHANGE_POLL_TIME, CONTAINERS_READ_MAX, POD_KEY_BYTES_MAX, RELIST_ORPHANS_MAX};
use crate::model::SortedSet;
use crate::model::{
    ContainerId, ContainerItem, ContainerState, ContainerStatus, Mono, Now, ObservedPod, PodKey, PodUid,
    SandboxId, SandboxItem, SandboxState,
};

pub use diff::{Relist, RelistPod};
use evented::{AwaitedState, Instance};
pub use former::{FormerPod, FormerPods};

/// Pods that a relist keeps: the UIDs that are desired here, managed, or adopted, and all pods that this node made.
#[derive(Debug, Default)]
pub struct Interest {
    /// The value of `smolet.io/node` on our sandboxes.
    pub node: Rc<str>,
    /// UIDs to keep, whichever agent made them.
    pub uids: SortedSet<PodUid>,
    /// Number of managed pods among them: they count against the limit on orphans.
    pub in_hand: usize,
    /// Keep all pods of a former agent, not only static pods.
    pub all_former: bool,
}

/// Lists all sandboxes and containers once (kubelet `GenericPLEG.Relist`).
///
/// # Errors
/// The runtime's, from either list call; an incomplete list is never returned.
pub async fn relist<R: Runtime>(runtime: &R, interest: &Interest) -> RuntimeResult<Relist> {
    let mut relist = Relist::default();
    let mut ours = SortedSet::<SandboxId>::new();
    let mut orphans = interest.in_hand;
    runtime
        .list_pod_sandboxes(None, &mut |sandbox: SandboxItem| {
            // With an invalid name or namespace it is not ours, whatever its annotation says.
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
/// A container or sandbox that disappears between the list and the status call is left out, as in the kubelet.
///
/// # Errors
/// The runtime's, except `NotFound`.
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
            // Only the list has its sandbox (kubelet `convertToKubeContainerStatus` lacks it too).
            Ok(status) => observed.containers.push(ContainerStatus { sandbox_id, ..status }),
            Err(RuntimeError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    // Kept for the pod's lifetime: most pods have one of each.
    observed.sandboxes.shrink_to_fit();
    observed.containers.shrink_to_fit();
    observed.ips = pod_ips(&observed);
    Ok(observed)
}

/// Polls until the runtime's status shows the change that an event reported. The waits add up to `CHANGE_POLL_TIME`; with a
/// runtime that answers slowly it ends after twice that. `at_once`: the first poll does not wait.
pub async fn await_change<R: Runtime>(
    runtime: &R,
    clock: &SharedClock,
    instance: &Instance,
    until: AwaitedState,
    at_once: bool,
) {
    let looks = async {
        let first = at_once.then_some(Duration::ZERO);
        for wait in first.into_iter().chain(evented::polls()) {
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
                Ok(ended) if ended && until == AwaitedState::Ended => return,
                Ok(_) => {}
                // Removed, or the runtime is unavailable: the next read of the pod shows which.
                Err(_) => return,
            }
        }
    };
    smol::future::or(looks, clock.sleep(CHANGE_POLL_TIME * 2)).await;
}

/// Full: dead containers are left out, oldest first; running ones never, because they have to be stoppable.
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

/// Sets the monotonic end time of every exited container once: an earlier value is kept, so that a step of the wall clock
/// changes no back-off.
pub fn fix_times(new: &mut ObservedPod, old: Option<&ObservedPod>, now: Now) {
    for container in &mut new.containers {
        let Some(finished_at) = container.finished_at else { continue };
        let known: Option<Mono> = old
            .and_then(|old| old.containers.iter().find(|c| c.id == container.id))
            .and_then(|c| c.finished_mono);
        container.finished_mono = Some(known.unwrap_or_else(|| now.mono_of(finished_at)));
    }
}
