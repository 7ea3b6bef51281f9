//! Resizes the CPU and memory of running containers and of their pod's cgroup (`doPodResizeAction`).
//!
//! ```text
//! |     memory of running containers ─► is a shrinking limit at least the memory in use?
//!     for memory, then for CPU:
//!       the pod's cgroup when it grows (limit, then weight) ─► containers ─► the pod's cgroup when it shrinks (weight, limit)
//! ```
//!
//! The first failure ends the resize; the rest is planned again. What the runtime applied is reported in
//! [`Outcome::actuated`].

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use super::act::ActContext;
use super::outcome::{Actuated, Failure, Outcome, SyncAction, SyncError};
use super::resize::{Resize, Resizes};
use crate::cri::{ContainerStats, Runtime, RuntimeError};
use crate::limits::CGROUP_SHRINK_PAUSES;
use crate::model::{ContainerId, ContainerKind, DesiredPod, Resource, SandboxId, Sizes};
use crate::render::cgroup_settings::{PodLimits, PodPart};
use crate::render::resources::{PodCgroup, container_resources, pod_cgroup, sandbox_resources, set_sizes};
use crate::text::quoted;

/// The future of a read of a pod's cgroup, or of a write to it.
pub type CgroupFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + 'a>>;

/// The pods' cgroups (`PodContainerManager`).
pub trait PodCgroups {
    /// The limits that the pod's cgroup has now.
    fn read<'a>(&'a self, pod: &'a DesiredPod) -> CgroupFuture<'a, PodLimits>;
    /// Writes one part of the pod's allocated resources to its cgroup.
    fn set<'a>(&'a self, pod: &'a DesiredPod, part: PodPart) -> CgroupFuture<'a, ()>;
}

/// For nodes where pods have no cgroups of their own, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCgroups;

impl PodCgroups for NoCgroups {
    fn read<'a>(&'a self, _: &'a DesiredPod) -> CgroupFuture<'a, PodLimits> {
        Box::pin(async { Ok(PodLimits::default()) })
    }

    fn set<'a>(&'a self, _: &'a DesiredPod, _: PodPart) -> CgroupFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Step 8 of `SyncPod`.
pub(super) async fn resize<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &SandboxId,
    resizes: &Resizes,
    outcome: &mut Outcome,
) {
    let resized = carry_out(ctx, pod, sandbox, resizes, outcome).await;
    let failure = resized.err().map(|message| Failure::new(SyncError::ResizePodInPlace, message));
    outcome.add(SyncAction::ResizePodInPlace, &Rc::from(pod.key.kubelet_format()), failure);
}

async fn carry_out<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &SandboxId,
    resizes: &Resizes,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let wanted = pod_cgroup(&pod.pod, ctx.node.cpu_cfs_quota, ctx.node.cpu_cfs_period_us);
    let there = ctx.manager.cgroups.read(pod).await.map_err(|error| {
        format!("unable to get pod cgroup config for pod {}: {error}", quoted(&pod.key.kubelet_format()))
    })?;
    check_memory(ctx, pod, &wanted, &there, resizes).await?;
    let mut told = false;
    let mut now: Vec<(&Resize, Sizes)> = Vec::new();
    for resource in [Resource::Memory, Resource::Cpu] {
        let containers = resizes.of(resource);
        if containers.is_empty() && !resizes.cgroup {
            continue;
        }
        let (grow, shrink) = steps(resource, &wanted, &there);
        if !(told || grow.is_empty() && shrink.is_empty()) {
            tell_runtime(ctx, pod, sandbox).await?;
            told = true;
        }
        for part in grow {
            ctx.manager.cgroups.set(pod, part).await?;
        }
        for resize in containers {
            // Containers resized a moment ago keep their new value; those not yet resized keep their old one.
            let of = now.iter().position(|(other, _)| other.id == resize.id);
            let from = of.map_or(resize.from, |at| now[at].1);
            let to = from.with(resource, &resize.to);
            update(ctx, pod, resize, &to).await?;
            match of {
                Some(at) => now[at].1 = to,
                None => now.push((resize, to)),
            }
            outcome.actuated.retain(|other| other.id != resize.id);
            outcome.actuated.push(Actuated { id: resize.id.clone(), sizes: to });
        }
        for part in shrink {
            shrink_cgroup(ctx, pod, part).await?;
        }
    }
    Ok(())
}

/// Lowers a part of the pod's cgroup behind its containers. The kernel counts the CPU quota of a container's cgroup of version 1 until
/// a grace period of RCU after its removal: one that was refused is tried again, for two seconds.
async fn shrink_cgroup<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    part: PodPart,
) -> Result<(), String> {
    for pause in CGROUP_SHRINK_PAUSES {
        if ctx.manager.cgroups.set(pod, part).await.is_ok() {
            return Ok(());
        }
        ctx.manager.clock.sleep(pause).await;
    }
    ctx.manager.cgroups.set(pod, part).await
}

/// Which parts of the pod's cgroup are set before the containers, and which after them: the pod's limits are never below
/// those of its containers, and at no time below the requests (`resizeContainers`). A limit that the pod does not define is
/// left unchanged.
fn steps(resource: Resource, wanted: &PodCgroup, there: &PodLimits) -> (Vec<PodPart>, Vec<PodPart>) {
    let (mut grow, mut shrink) = (Vec::new(), Vec::new());
    // No limit counts as the largest value.
    let or_most = |limit: Option<i64>| limit.filter(|limit| *limit > 0).unwrap_or(i64::MAX);
    let (limit, now) = match resource {
        Resource::Memory => (wanted.memory_limit_bytes.filter(|limit| *limit > 0), there.memory_limit_bytes),
        Resource::Cpu => (wanted.cpu_quota_us.filter(|quota| *quota != 0), there.cpu_quota_us),
    };
    let weight = match (resource, there.cpu_shares) {
        (Resource::Cpu, Some(shares)) => wanted.cpu_shares.cmp(&shares),
        (Resource::Memory, _) | (_, None) => std::cmp::Ordering::Equal,
    };
    if limit.is_some_and(|limit| or_most(Some(limit)) > or_most(now)) {
        grow.push(PodPart::Limit(resource));
    }
    if weight.is_gt() {
        grow.push(PodPart::CpuWeight);
    }
    if weight.is_lt() {
        shrink.push(PodPart::CpuWeight);
    }
    if limit.is_some_and(|limit| or_most(Some(limit)) < or_most(now)) {
        shrink.push(PodPart::Limit(resource));
    }
    (grow, shrink)
}

/// Announces the sandbox's new resources to the runtime (`UpdatePodSandboxResources`). A runtime that does not implement the
/// call does not need it.
///
/// Differs from the kubelet (`updatePodSandboxResources`), which sends each step of the pod's cgroup: here the pod's new
/// resources are sent once, and the runtime may refuse them.
async fn tell_runtime<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    sandbox: &SandboxId,
) -> Result<(), String> {
    let (resources, overhead) = sandbox_resources(&ctx.node, &pod.pod);
    match ctx.manager.runtime.update_pod_sandbox_resources(sandbox, resources, overhead).await {
        Ok(()) | Err(RuntimeError::Unimplemented(_)) => Ok(()),
        // containerd 2.2's error for an unimplemented call.
        Err(RuntimeError::Failed { message, .. }) if message.contains("not implemented") => Ok(()),
        Err(error) => {
            Err(format!("failed to notify runtime for UpdatePodSandboxResources; resize rejected: {error}"))
        }
    }
}

async fn update<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    resize: &Resize,
    to: &Sizes,
) -> Result<(), String> {
    let list = match resize.kind {
        ContainerKind::Init => pod.init_containers(),
        ContainerKind::App | ContainerKind::Ephemeral => pod.containers(),
    };
    let Some(container) = list.get(resize.index) else { return Ok(()) };
    let mut container = container.clone();
    set_sizes(&mut container, to);
    let resources = container_resources(&ctx.node, &pod.pod, &container);
    ctx.manager
        .runtime
        .update_container_resources(&resize.id, resources)
        .await
        .map_err(|error| error.to_string())
}

/// A memory limit is not set below the memory in use: the kernel would kill processes for it (`validateMemoryResizeAction`).
async fn check_memory<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    wanted: &PodCgroup,
    there: &PodLimits,
    resizes: &Resizes,
) -> Result<(), String> {
    if resizes.memory.is_empty() && !resizes.cgroup {
        return Ok(());
    }
    let limit = wanted.memory_limit_bytes.filter(|limit| *limit > 0);
    let limit = limit.filter(|limit| there.memory_limit_bytes.is_none_or(|now| *limit < now));
    let shrinks = |resize: &&Resize| {
        resize.to.memory_limit != 0
            && (resize.from.memory_limit == 0 || resize.to.memory_limit < resize.from.memory_limit)
    };
    let mut shrinking = resizes.memory.iter().filter(shrinks).peekable();
    let mut errors = Vec::new();
    if let (Some(limit), Some(usage)) = (limit, there.memory_usage_bytes)
        && i128::from(usage) >= i128::from(limit)
    {
        errors.push(format!("attempting to set pod memory limit ({limit}) below current usage ({usage})"));
    }
    if shrinking.peek().is_some() {
        let mut used = Vec::new();
        let is_ours = |id: &ContainerId| resizes.memory.iter().any(|resize| resize.id == *id);
        let mut note = |stats: ContainerStats| {
            used.extend(is_ours(&stats.id).then_some((stats.id, stats.memory_usage_bytes)));
        };
        let listed = ctx.manager.runtime.list_container_stats(&mut note).await;
        if let Err(error) = listed {
            let name = quoted(&pod.key.kubelet_format());
            return Err(format!(
                "cannot decrease memory limits: unable to read memory usage for pod {name}: {error}"
            ));
        }
        for resize in shrinking {
            let (name, limit) = (pod.container(resize.kind, resize.index).name, resize.to.memory_limit);
            let usage = used.iter().find(|(id, _)| *id == resize.id).and_then(|(_, usage)| *usage);
            match usage {
                None => errors.push(format!("missing container {} memory usage", quoted(name))),
                Some(usage) if i128::from(usage) >= i128::from(limit) => errors.push(format!(
                    "attempting to set container {} memory limit ({limit}) below current usage ({usage})",
                    quoted(name)
                )),
                Some(_) => {}
            }
        }
    }
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("cannot decrease memory limits: {one}")),
        all => Err(format!("cannot decrease memory limits: [{}]", all.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_cgroup_grows_before_its_containers_and_shrinks_behind_them() {
        use PodPart::{CpuWeight, Limit};
        use Resource::{Cpu, Memory};
        let wanted = |shares, quota, memory| PodCgroup {
            cpu_shares: shares,
            cpu_quota_us: quota,
            memory_limit_bytes: memory,
            ..PodCgroup::default()
        };
        let there = PodLimits {
            cpu_shares: Some(100),
            cpu_quota_us: Some(20_000),
            memory_limit_bytes: Some(4096),
            memory_usage_bytes: None,
        };
        let none = PodLimits { cpu_shares: Some(2), ..PodLimits::default() };
        type Row<'a> = (Resource, PodCgroup, &'a PodLimits, &'a [PodPart], &'a [PodPart]);
        let rows: [Row<'_>; 12] = [
            (Cpu, wanted(200, Some(30_000), None), &there, &[Limit(Cpu), CpuWeight], &[]),
            (Cpu, wanted(50, Some(10_000), None), &there, &[], &[CpuWeight, Limit(Cpu)]),
            (Cpu, wanted(200, Some(10_000), None), &there, &[CpuWeight], &[Limit(Cpu)]),
            (Cpu, wanted(50, Some(30_000), None), &there, &[Limit(Cpu)], &[CpuWeight]),
            (Cpu, wanted(100, Some(20_000), Some(1)), &there, &[], &[]),
            // A limit that is no longer defined stays in place; a new limit shrinks.
            (Cpu, wanted(100, None, None), &there, &[], &[]),
            (Cpu, wanted(2, Some(10_000), None), &none, &[], &[Limit(Cpu)]),
            // cpuCFSQuota: false.
            (Cpu, wanted(2, Some(-1), None), &none, &[], &[]),
            (Memory, wanted(900, Some(1), Some(8192)), &there, &[Limit(Memory)], &[]),
            (Memory, wanted(900, Some(1), Some(1024)), &there, &[], &[Limit(Memory)]),
            (Memory, wanted(2, None, Some(0)), &there, &[], &[]),
            (Memory, wanted(2, None, Some(1024)), &none, &[], &[Limit(Memory)]),
        ];
        for (resource, wanted, there, grow, shrink) in rows {
            assert_eq!(steps(resource, &wanted, there), (grow.to_vec(), shrink.to_vec()), "{wanted:?}");
        }
        // Without the controller nothing is set, and that is no error.
        assert_eq!(steps(Cpu, &wanted(7, None, None), &PodLimits::default()), (vec![], vec![]));
    }
}
