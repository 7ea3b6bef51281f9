//! Moving to another runtime (`--drain-runtime`): this node's pods are ended in the runtime that it leaves, before the first pod
//! starts in the other.
//!
//! The pods are those that smolet has made there for this node, by their annotation, and those that it has taken over from another agent;
//! what others run stays. Their containers
//! get their grace periods, without preStop hooks: the pods' definitions are not known yet. Once nothing of them is left the drain
//! costs two calls at each start, and the flag can be removed. A runtime that does not answer is an error: its containers may run on
//! while it is stopped.

use std::rc::Rc;

use crate::clock::SharedClock;
use crate::cri::choice::RuntimeChoice;
use crate::cri::endpoint::{Candidates, Origin, find};
use crate::cri::{Runtime, RuntimeResult};
use crate::executor::Executor;
use crate::model::{ContainerId, ContainerItem, ContainerState, PodUid, SandboxId, SandboxItem};
use crate::store::identity::Identity;
use crate::sync::order::restored_grace_period;

/// Ends and removes this node's pods in the runtime at `endpoint`, which the node leaves for the chosen one.
///
/// # Errors
/// One sentence that says how to fix it: it may be the runtime that is used, it does not answer (its containers may run on, also while
/// its socket is missing), or a pod could not be ended. All were tried.
pub(super) async fn drain(
    endpoint: &str,
    chosen: &RuntimeChoice,
    identity: &Identity,
    executor: &Rc<Executor>,
    clock: &SharedClock,
) -> Result<(), String> {
    let candidates = Candidates::one(Origin::Drain, endpoint).map_err(|error| error.to_string())?;
    if let RuntimeChoice::Sockets(used) = chosen
        && candidates.sockets.iter().any(|socket| used.sockets.contains(socket))
    {
        return Err(format!(
            "--drain-runtime {endpoint}: the node uses this runtime, and its pods would end at each start: name the other one with \
             --runtime-endpoint, or remove the flag"
        ));
    }
    let found = find(&candidates, executor, clock).await.map_err(|error| {
        format!(
            "--drain-runtime: {error}; pods start here once those in the old runtime are ended: if it is gone for good, remove \
             the flag"
        )
    })?;
    match drain_pods(&found.runtime, identity, executor).await {
        Ok(Drained { ours: 0, others }) => log::info!(
            "--drain-runtime {endpoint}: no pods of this node; the flag can be removed; {others} pods of others stay"
        ),
        Ok(Drained { ours, others }) => log::info!(
            "--drain-runtime {endpoint}: {ours} pods ended and removed; {others} pods of others stay"
        ),
        Err(error) => {
            return Err(format!(
                "--drain-runtime {endpoint}: a pod of this node could not be ended ({error}): end it with crictl, or see the \
                 runtime's log"
            ));
        }
    }
    Ok(())
}

/// What a drain found, in pods.
struct Drained {
    ours: usize,
    others: usize,
}

/// Ends and removes all pods of this node, those that it took over from another agent among them, all at once; the client limits
/// concurrent stops.
async fn drain_pods<R: Runtime + Clone + 'static>(
    runtime: &R,
    identity: &Identity,
    executor: &Rc<Executor>,
) -> RuntimeResult<Drained> {
    let mut sandboxes: Vec<SandboxItem> = Vec::new();
    let mut others = 0;
    let mut ours = |sandbox: SandboxItem| {
        let is_adopted = sandbox.node.is_none() && identity.adopted().contains(&sandbox.pod.uid);
        if sandbox.node.as_deref() == Some(identity.node_name()) || is_adopted {
            sandboxes.push(sandbox);
        } else {
            others += 1;
        }
    };
    runtime.list_pod_sandboxes(None, &mut ours).await?;
    let mut running: Vec<(SandboxId, ContainerId)> = Vec::new();
    let mut each = |container: ContainerItem| {
        if container.state != ContainerState::Exited {
            running.push((container.sandbox_id, container.id));
        }
    };
    runtime.list_containers(None, &mut each).await?;
    let drained = Drained { ours: sandboxes.len(), others };
    let mut tasks = Vec::new();
    for sandbox in sandboxes {
        let (of_it, rest) = running.into_iter().partition(|(of, _)| *of == sandbox.id);
        running = rest;
        let containers: Vec<(SandboxId, ContainerId)> = of_it;
        let containers = containers.into_iter().map(|(_, id)| id).collect();
        let end = end_pod(runtime.clone(), sandbox.pod.uid.clone(), sandbox.id, containers, executor.clone());
        tasks.push(executor.spawn("drain", end));
    }
    let mut first = Ok(());
    for task in tasks {
        first = first.and(task.await);
    }
    first.map(|()| drained)
}

/// Stops the pod's containers at once, then its sandbox, and removes it.
async fn end_pod<R: Runtime + Clone + 'static>(
    runtime: R,
    pod: PodUid,
    sandbox: SandboxId,
    containers: Vec<ContainerId>,
    executor: Rc<Executor>,
) -> RuntimeResult<()> {
    let stops: Vec<_> = containers
        .into_iter()
        .map(|id| {
            let (runtime, pod) = (runtime.clone(), pod.clone());
            executor.spawn("drain", async move {
                let grace = restored_grace_period(&runtime.container_status(&id).await?.meta);
                runtime.stop_container(&pod, &id, grace).await
            })
        })
        .collect();
    // All are awaited: a task that is dropped is cancelled, and the container would have no end.
    let mut first = Ok(());
    for stop in stops {
        first = first.and(stop.await);
    }
    first?;
    runtime.stop_pod_sandbox(&pod, &sandbox).await?;
    runtime.remove_pod_sandbox(&sandbox).await
}
