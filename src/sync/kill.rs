//! Stops and removes: one container, all containers of a pod in order, a whole pod.
//!
//! ```text
//! |     kill_container   preStop hook ─► wait for its turn ─► StopContainer(rest of the grace period, ≥ 2 s)
//!     kill_pod         all running containers at once, then every sandbox
//! |     remove_pod       containers, sandboxes, symlinks, log directory, smolet's files in the pod's directory
//! ```
//!
//! Every call may be repeated: a cancelled sync leaves nothing behind that the next one does not see.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerPort, LifecycleHandler};

use super::KillReason;
use super::act::{ActContext, HookCall};
use super::files;
use super::order::{TerminationOrder, grace_period, restored_grace_period};
use super::outcome::{Failure, Outcome, SyncAction, SyncError};
use crate::blocking::Stuck;
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::events::{About, EventKind};
use crate::gc::GcPlan;
use crate::grpc::Code;
use crate::limits::{GRACE_SECONDS_MIN, LOG_LINKS_READ_MAX, STOPS_AT_ONCE_MAX};
use crate::logs::memory;
use crate::model::{
    ContainerId, ContainerKind, ContainerMeta, ContainerState, ContainerStatus, DesiredPod, ObservedPod,
    PodKey, Seconds,
};
use crate::render::{labels, paths};

/// gRPC status code of a cancelled call.
const CANCELLED: i32 = 1;

/// One container to stop, and the facts of its pod.
#[derive(Clone, Copy)]
pub(super) struct Victim<'a> {
    pub key: &'a PodKey,
    pub pod: Option<&'a DesiredPod>,
    pub id: &'a ContainerId,
    pub name: &'a str,
    /// The metadata in the container's annotations; unused when the pod's definition has the container.
    pub meta: Option<&'a ContainerMeta>,
    /// The pod's addresses, for hooks.
    pub pod_ips: &'a [Box<str>],
    pub reason: KillReason,
    /// Message of the `Killing` event; empty = "Stopping container NAME".
    pub message: &'a str,
    /// Overrides every grace period.
    pub grace: Option<Seconds>,
}

impl<'a> Victim<'a> {
    /// A container without a known definition counts as an app container, as in `restoreSpecsFromContainerLabels`.
    fn about(&self) -> About<'a> {
        let kind = self.pod.and_then(|pod| pod.container_kind(self.name)).unwrap_or(ContainerKind::App);
        About::container(self.key, kind, self.name)
    }

    /// Stops this container without a specific reason.
    pub(super) fn new(
        key: &'a PodKey,
        pod: Option<&'a DesiredPod>,
        observed: &'a ObservedPod,
        status: &'a ContainerStatus,
    ) -> Self {
        Self {
            key,
            pod,
            id: &status.id,
            name: &status.name,
            meta: Some(&status.meta),
            pod_ips: &observed.ips,
            reason: KillReason::Unknown,
            message: "",
            grace: None,
        }
    }
}

/// Stops all running containers of a pod, then its sandboxes (`killPodWithSyncResult`).
///
/// `pod` is `None` for a pod that only the runtime knows: grace periods and hooks then come from the containers'
/// annotations. `grace` overrides every grace period.
pub async fn kill_pod<R: Runtime>(
    ctx: &ActContext<R>,
    key: &PodKey,
    pod: Option<&DesiredPod>,
    observed: &ObservedPod,
    grace: Option<Seconds>,
) -> Outcome {
    let mut outcome = Outcome::default();
    kill_containers(ctx, key, pod, observed, grace, &mut outcome).await;
    // Stopping the sandbox kills its containers at once: they have not had their grace period yet.
    if ctx.give_up.is_ending() {
        return outcome;
    }
    let mut failure = None;
    for sandbox in &observed.sandboxes {
        if let Err(error) = unless_gone(ctx.manager.runtime.stop_pod_sandbox(&key.uid, &sandbox.id).await) {
            failure = Some(Failure::new(SyncError::KillPodSandbox, error.to_string()));
        }
    }
    if failure.is_none() {
        ctx.manager.network.gone(key);
    }
    outcome.add(SyncAction::KillPodSandbox, &Rc::from(key.uid.as_str()), failure);
    outcome
}

/// `killContainersWithSyncResult`: all at once, sidecars in their termination order.
async fn kill_containers<R: Runtime>(
    ctx: &ActContext<R>,
    key: &PodKey,
    pod: Option<&DesiredPod>,
    observed: &ObservedPod,
    grace: Option<Seconds>,
    outcome: &mut Outcome,
) {
    let mut running: Vec<&ContainerStatus> =
        observed.containers.iter().filter(|status| status.state == ContainerState::Running).collect();
    if running.is_empty() {
        return;
    }
    let names: Vec<&str> = running.iter().map(|status| &*status.name).collect();
    let order = pod.and_then(|pod| TerminationOrder::new(pod, &names));
    // A kill must not hold a slot while it waits for one that has none: those with the most dependencies come last.
    if let Some(order) = &order {
        running.sort_by_key(|status| order.waits_for_running(&status.name).count());
    }
    let kills = running.iter().map(|status| {
        let victim = Victim { grace, ..Victim::new(key, pod, observed, status) };
        Box::pin(kill_container(ctx, victim, order.as_ref()))
    });
    let killed = all_of(kills.collect()).await;
    for (status, killed) in running.iter().zip(killed) {
        let failure = killed.err().map(|error| Failure::new(SyncError::KillContainer, error.to_string()));
        outcome.add(SyncAction::KillContainer, &status.name, failure);
    }
}

/// `killContainer`.
///
/// Differs from the kubelet, which refuses to stop a container whose name is no longer in the pod's spec: here the
/// container's annotations are used instead, so that nothing is left running.
pub(super) async fn kill_container<R: Runtime>(
    ctx: &ActContext<R>,
    victim: Victim<'_>,
    order: Option<&TerminationOrder>,
) -> RuntimeResult<()> {
    let name = victim.name;
    let spec = victim.pod.and_then(|pod| Some((pod, definition(pod, name)?)));
    let known = match (&spec, victim.meta) {
        (Some((pod, container)), _) => grace_period(pod, container.as_container(), victim.reason),
        (None, Some(meta)) => restored_grace_period(meta),
        (None, None) => Seconds(GRACE_SECONDS_MIN),
    };
    let about = victim.about();
    if victim.message.is_empty() {
        ctx.note(about, EventKind::Normal, "Killing", &format!("Stopping container {name}"));
    } else {
        ctx.note(about, EventKind::Normal, "Killing", victim.message);
    }
    let grace = victim.grace.unwrap_or(known).0;
    let hook = match (&spec, victim.meta) {
        (Some((_, container)), _) => container.pre_stop(),
        (None, Some(meta)) => restored_pre_stop(meta),
        (None, None) => None,
    };
    // A pod that becomes terminating meanwhile is killed as a whole, with the grace period that holds then.
    let ended = || Err(RuntimeError::Failed { code: CANCELLED, message: "the pod is to end".to_owned() });
    ctx.give_up.unless_ending(stop(ctx, &victim, hook, order, grace)).await.unwrap_or_else(ended)
}

/// The hook, the wait for its turn and the stop of [`kill_container`].
async fn stop<R: Runtime>(
    ctx: &ActContext<R>,
    victim: &Victim<'_>,
    hook: Option<PreStop<'_>>,
    order: Option<&TerminationOrder>,
    mut grace: i64,
) -> RuntimeResult<()> {
    let name = victim.name;
    if let Some((handler, ports)) = hook.filter(|_| grace > 0) {
        let call = HookCall {
            key: victim.key,
            id: victim.id,
            container: name,
            ports: &ports,
            pod_ips: victim.pod_ips,
            handler: &handler,
        };
        grace = grace.saturating_sub(pre_stop(ctx, victim.about(), call, grace).await);
    }
    if let Some(order) = order.filter(|_| grace > 0) {
        grace = grace.saturating_sub(wait_for_turn(ctx, order, name, grace).await);
    }
    // The kubelet's minimum grace period, even when the override is zero.
    let timeout = Seconds(grace.max(GRACE_SECONDS_MIN));
    unless_gone(ctx.manager.runtime.stop_container(&victim.key.uid, victim.id, timeout).await)?;
    if let Some(order) = order {
        order.terminated(name);
    }
    Ok(())
}

/// `executePreStopHook`: returns the whole seconds that it took, at most `grace`.
async fn pre_stop<R: Runtime>(ctx: &ActContext<R>, about: About<'_>, call: HookCall<'_>, grace: i64) -> i64 {
    let began = ctx.manager.clock.now().mono;
    let (key, name) = (call.key, call.container);
    let hook = ctx.manager.hooks.run(call);
    let over = async {
        ctx.manager.clock.sleep(seconds(grace)).await;
        log::warn!("{key}: container {name}: preStop hook not completed in {grace} s of grace");
        Ok(None)
    };
    match smol::future::or(hook, over).await {
        Ok(warning) => ctx.warn_of_hook(key, warning),
        // The message may contain secrets, so it goes to the log only.
        Err(error) => {
            log::warn!("{key}: container {name}: preStop hook failed: {error}");
            ctx.note(
                about,
                EventKind::Warning,
                "FailedPreStopHook",
                &format!("PreStopHook of {name} failed"),
            );
        }
    }
    whole_seconds(ctx.manager.clock.now().mono.since(began))
}

/// `waitForTurn`: returns the whole seconds until all containers that it waits for have stopped, at most `grace`.
async fn wait_for_turn<R: Runtime>(
    ctx: &ActContext<R>,
    order: &TerminationOrder,
    name: &str,
    grace: i64,
) -> i64 {
    if order.is_turn_of(name) {
        return 0;
    }
    let began = ctx.manager.clock.now().mono;
    // No waker: `all_of` polls every kill again when one has ended.
    let turn = poll_fn(|_| if order.is_turn_of(name) { Poll::Ready(()) } else { Poll::Pending });
    smol::future::or(turn, ctx.manager.clock.sleep(seconds(grace))).await;
    whole_seconds(ctx.manager.clock.now().mono.since(began))
}

/// Runs futures concurrently, [`STOPS_AT_ONCE_MAX`] at a time, and polls all running ones whenever one is woken or has
/// ended. The outputs are in the order of the futures.
async fn all_of<T, F: Future<Output = T>>(futures: Vec<Pin<Box<F>>>) -> Vec<T> {
    let mut running: Vec<Option<Pin<Box<F>>>> = futures.into_iter().map(Some).collect();
    let mut outputs: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        loop {
            let mut ended = false;
            let mut left = STOPS_AT_ONCE_MAX;
            for (slot, output) in running.iter_mut().zip(&mut outputs) {
                let Some(future) = slot else { continue };
                if left == 0 {
                    break;
                }
                left -= 1;
                if let Poll::Ready(value) = future.as_mut().poll(cx) {
                    *output = Some(value);
                    *slot = None;
                    ended = true;
                }
            }
            if running.iter().all(Option::is_none) {
                return Poll::Ready(());
            }
            if !ended {
                return Poll::Pending;
            }
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Removes a stopped pod's records from the runtime, its log symlinks and its logs. Every removal is tried; the error names
/// the first that failed.
pub async fn remove_pod<R: Runtime>(
    ctx: &ActContext<R>,
    key: &PodKey,
    observed: &ObservedPod,
) -> Result<(), String> {
    let mut first: Result<(), String> = Ok(());
    let mut keep = |result: Result<(), String>| {
        if first.is_ok() {
            first = result;
        }
    };
    let links = observed.containers.iter();
    let links: Vec<_> = links.map(|status| ctx.log_link(key, &status.name, status.id.as_str())).collect();
    let at = ctx.manager.container_logs_dir.to_path_buf();
    let unlinked = move || links.iter().for_each(|link| files::remove_link(link));
    if let Err(stuck) = ctx.manager.blocking.run_on_logs(&key.uid, &at, unlinked).await {
        log::warn!("pod {key}: log links not removed: {stuck}");
    }
    for status in &observed.containers {
        let removed = unless_gone(ctx.manager.runtime.remove_container(&status.id).await);
        keep(removed.map_err(|error| {
            format!("pod {key}: container {} ({}) was not removed: {error}", status.name, status.id)
        }));
    }
    for sandbox in &observed.sandboxes {
        // Normally stopped already; the kubelet's `removeSandbox` stops it again too.
        let stopped = unless_gone(ctx.manager.runtime.stop_pod_sandbox(&key.uid, &sandbox.id).await);
        let removed = match stopped {
            Ok(()) => unless_gone(ctx.manager.runtime.remove_pod_sandbox(&sandbox.id).await),
            Err(error) => Err(error),
        };
        keep(removed.map_err(|error| format!("pod {key}: sandbox {} was not removed: {error}", sandbox.id)));
    }
    let logs = paths::pod_logs_dir(&ctx.node, key);
    let links = ctx.manager.container_logs_dir.to_path_buf();
    // Off the loop's thread: a pod's logs may be large.
    let at = PathBuf::from(&logs);
    let removed =
        ctx.manager.blocking.run_on_logs(&key.uid, &at, move || remove_pod_logs(&links, Path::new(&logs)));
    keep(
        removed
            .await
            .unwrap_or_else(|stuck| Err(stuck.into()))
            .map_err(|error| format!("pod {key}: {error}")),
    );
    first
}

/// Removes a pod's log directory, and first the symlinks into it: those of containers that the runtime no longer knows can
/// be found in no other way. (The kubelet removes every dangling symlink, whoever made it.) Blocking.
///
/// # Errors
/// The paths that could not be removed; a directory that does not exist is no error.
pub(crate) fn remove_pod_logs(links: &Path, logs: &Path) -> Result<(), String> {
    for link in std::fs::read_dir(links).into_iter().flatten().take(LOG_LINKS_READ_MAX).flatten() {
        let path = link.path();
        if std::fs::read_link(&path).is_ok_and(|log| log.starts_with(logs)) {
            std::fs::remove_file(&path)
                .map_err(|error| format!("{} was not removed: {error}", path.display()))?;
        }
    }
    memory::unmounted(logs)?;
    match crate::tree::remove(logs, || true) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{} was not removed: {error}", logs.display()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Removes symlinks into the logs of pods whose log directory is gone (`evictPodLogsDirectories`), after the agent was
/// killed or the logs were removed by hand. A symlink into an existing directory is removed with its pod; its log may not
/// exist yet. Symlinks to other places are left alone. Blocking.
///
/// # Errors
/// The symlinks that could not be removed.
pub(crate) fn remove_dead_links(links: &Path, pod_logs: &Path) -> Result<(), String> {
    for link in std::fs::read_dir(links).into_iter().flatten().take(LOG_LINKS_READ_MAX).flatten() {
        let path = link.path();
        let Ok(log) = std::fs::read_link(&path) else { continue };
        let pod = log.strip_prefix(pod_logs).ok().and_then(|log| log.components().next());
        let Some(pod) = pod.map(|pod| pod_logs.join(pod)) else { continue };
        if matches!(pod.try_exists(), Ok(false)) {
            std::fs::remove_file(&path)
                .map_err(|error| format!("{} was not removed: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes the dead containers and sandboxes of a running pod that garbage collection chose (`evictContainers`,
/// `evictSandboxes`).
///
/// # Errors
/// The first removal that failed; the others are tried all the same.
pub async fn remove_garbage<R: Runtime>(
    ctx: &ActContext<R>,
    key: &PodKey,
    observed: &ObservedPod,
    garbage: &GcPlan,
) -> Result<(), String> {
    let mut first: Result<(), String> = Ok(());
    for removal in &garbage.containers {
        let Some(status) = observed.containers.iter().find(|status| status.id == removal.id) else {
            continue;
        };
        let mut result = Ok(());
        if removal.stop {
            let message = match status.state {
                ContainerState::Unknown => "Container is in unknown state, try killing it before removal",
                ContainerState::Running | ContainerState::Created | ContainerState::Exited => {
                    "A newer container of this name runs"
                }
            };
            let victim = Victim { message, ..Victim::new(key, None, observed, status) };
            result = kill_container(ctx, victim, None).await;
        }
        if result.is_ok() {
            result = remove_container(ctx, key, status, false).await;
        }
        first = first.and(result.map_err(|error| format!("container {}: {error}", removal.id)));
    }
    for id in &garbage.sandboxes {
        let mut result = unless_gone(ctx.manager.runtime.stop_pod_sandbox(&key.uid, id).await);
        if result.is_ok() {
            result = unless_gone(ctx.manager.runtime.remove_pod_sandbox(id).await);
        }
        first = first.and(result.map_err(|error| format!("sandbox {id}: {error}")));
    }
    first
}

/// `removeContainer`: the symlink and, unless they are kept, the logs first, so that a container whose logs could not be
/// removed is tried again.
pub(super) async fn remove_container<R: Runtime>(
    ctx: &ActContext<R>,
    key: &PodKey,
    status: &ContainerStatus,
    keep_logs: bool,
) -> RuntimeResult<()> {
    if !keep_logs {
        // `ContainerLogManager.Clean`: the log of this start and its rotated parts.
        let log = paths::container_log_path(&status.name, status.meta.restart_count);
        let log = format!("{}/{log}", paths::pod_logs_dir(&ctx.node, key));
        let link = ctx.log_link(key, &status.name, status.id.as_str());
        let at = PathBuf::from(&log);
        let removed = ctx.manager.blocking.run_on_logs(&key.uid, &at, move || {
            files::remove_logs(Path::new(&log));
            files::remove_link(&link);
        });
        let failed = |stuck: Stuck| RuntimeError::Failed {
            code: Code::INTERNAL.0,
            message: format!("its logs were not removed: {stuck}"),
        };
        Box::pin(removed).await.map_err(failed)?;
    }
    unless_gone(ctx.manager.runtime.remove_container(&status.id).await)
}

/// A container's definition in any of the pod's container lists (`GetContainerSpec`).
enum Definition<'a> {
    Container(&'a Container),
    /// Ephemeral containers have no probes and no hooks.
    Ephemeral,
}

impl<'a> Definition<'a> {
    fn as_container(&self) -> Option<&'a Container> {
        match self {
            Self::Container(container) => Some(container),
            Self::Ephemeral => None,
        }
    }

    fn pre_stop(&self) -> Option<PreStop<'a>> {
        let container = self.as_container()?;
        let handler = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
        Some((Cow::Borrowed(handler), Cow::Borrowed(container.ports.as_deref().unwrap_or_default())))
    }
}

/// A preStop hook, and the ports that it may refer to by name.
type PreStop<'a> = (Cow<'a, LifecycleHandler>, Cow<'a, [ContainerPort]>);

/// `restoreSpecsFromContainerLabels`.
fn restored_pre_stop(meta: &ContainerMeta) -> Option<PreStop<'static>> {
    let handler = labels::pre_stop_handler(meta.pre_stop_handler.as_deref()?)?;
    let ports = meta.ports.as_deref().and_then(labels::container_ports).unwrap_or_default();
    Some((Cow::Owned(handler), Cow::Owned(ports)))
}

fn definition<'a>(pod: &'a DesiredPod, name: &str) -> Option<Definition<'a>> {
    let mut containers = pod.init_containers().iter().chain(pod.containers());
    if let Some(container) = containers.find(|container| container.name == name) {
        return Some(Definition::Container(container));
    }
    pod.ephemeral_containers().iter().any(|container| container.name == name).then_some(Definition::Ephemeral)
}

/// Success when the object no longer exists (`crierror.IsNotFound`): it counts as stopped or removed.
fn unless_gone(result: RuntimeResult<()>) -> RuntimeResult<()> {
    match result {
        Err(RuntimeError::NotFound(_)) => Ok(()),
        result => result,
    }
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or_default())
}

fn whole_seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}
