//! Executes a plan (`SyncPod`): the kubelet's steps, in its order, with its arguments to the CRI calls.
//!
//! ```text
//!     Keep         kill some ─► prune ─► start init containers ─► resize ─► start the others
//!     Recreate     kill all ─► purge ─► RunPodSandbox ─► PodSandboxStatus ─► start
//!     End          kill all ─► prune ─► start ephemeral containers
//!     RestartAll   kill and remove each ─► prune
//! ```
//!
//! A failed kill or sandbox ends the sync. A failed init container (not a sidecar) ends the starts. The next sync plans from
//! the state that it observes then.

use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerPort, LifecycleHandler};
use smol::channel::{Receiver, Sender};

use super::KillReason;
use super::actuate::resize;
use super::images::pull_secrets;
use super::kill::{Victim, kill_container, kill_pod, remove_container};
use super::outcome::{Attempt, Failure, Outcome, SyncAction, SyncError};
use super::overtaken::Overtaken;
use super::plan::{Kill, Plan, PodAction, Reset, SandboxStep, Start, StartWhen};
use super::rules::is_sidecar;
use super::sandbox::{PodSandbox, addresses, configure_sandbox, make_sandbox, refused, sandbox_failed};
use super::start::{Started, VolumeMounts, start_container};
use super::start_limiter::{StartLimiter, StartPermit};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::{Runtime, RuntimeHandler};
use crate::events::{About, EventKind};
use crate::image::pull::ImagePuller;
use crate::model::{
    ContainerId, ContainerKind, ContainerStatus, DesiredPod, ObservedPod, PodKey, SandboxId, Seconds,
};
use crate::render::{EnvSources, NodeSettings, admission, paths};
use crate::resolv_conf::Resolver;
use crate::text::quoted;

pub use super::actuate::{CgroupFuture, NoCgroups, PodCgroups};
pub use super::kill::remove_pod;
pub use super::start::NoVolumes;

/// Event recorder: gets the pod (and container), the event's type, its reason and its message.
pub type Notes = Box<dyn Fn(About<'_>, EventKind, &'static str, &str)>;

/// The wait for a new sandbox's network.
pub type NetworkFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What the network of a pod needs beside its sandbox, before a container is in it: the rules of network policies.
pub trait PodNetwork {
    /// Ends when they are there, or when the pod has to start without them.
    fn ready<'a>(&'a self, pod: &'a DesiredPod, ips: &'a [Box<str>]) -> NetworkFuture<'a>;

    /// A pod that the agent before this one started has these addresses.
    fn found(&self, pod: &DesiredPod, ips: &[Box<str>]);

    /// The pod has no network any more.
    fn gone(&self, pod: &PodKey);
}

/// For nodes without network policies, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPodNetwork;

impl PodNetwork for NoPodNetwork {
    fn ready<'a>(&'a self, _: &'a DesiredPod, _: &'a [Box<str>]) -> NetworkFuture<'a> {
        Box::pin(std::future::ready(()))
    }

    fn found(&self, _: &DesiredPod, _: &[Box<str>]) {}

    fn gone(&self, _: &PodKey) {}
}

/// What all jobs of pods use, for the life of the process (fields of the kubelet's `kubeGenericRuntimeManager`).
pub struct RuntimeManager<R> {
    /// The CRI runtime.
    pub runtime: Rc<R>,
    /// Clock for grace periods, hooks and the duration of pulls.
    pub clock: SharedClock,
    /// The runtime's handlers, as listed in its `Status` response at the start.
    pub handlers: Box<[RuntimeHandler]>,
    /// The image puller.
    pub images: ImagePuller,
    /// Volume manager: host paths of the volumes.
    pub volumes: Box<dyn VolumeMounts>,
    /// The pods' cgroups.
    pub cgroups: Box<dyn PodCgroups>,
    /// Network policies.
    pub network: Box<dyn PodNetwork>,
    /// Runs lifecycle hooks.
    pub hooks: Rc<dyn Hooks>,
    /// Receives each decision and error as an event, when it happens.
    pub notes: Notes,
    /// `/var/log/containers`.
    pub container_logs_dir: Box<Path>,
    /// The node's own hosts file, for pods on the host network.
    pub hosts_file: Box<Path>,
    /// The node's resolver configuration, read again for each sandbox: it changes with the network, and may appear after the
    /// agent has started. `None`: the parsed configuration in [`ActContext::node`] is used.
    pub resolver: Option<Arc<Resolver>>,
    /// Thread pool for blocking work.
    pub blocking: Rc<Blocking>,
    /// Concurrency limit for the syncs that make a sandbox or start containers.
    pub starts: StartLimiter,
}

/// Context of one job of a pod: what is the job's own, and the snapshot of the node's settings and objects that it was started
/// with. Everything in it belongs to the loop's thread; cloning allocates nothing.
pub struct ActContext<R> {
    /// Shared by all jobs.
    pub manager: Rc<RuntimeManager<R>>,
    /// The node's settings for rendering, and the paths. Addresses and name servers change; a job keeps those of its start.
    pub node: Rc<NodeSettings>,
    /// Source of environment variables: ConfigMaps, Secrets, services.
    pub env: Rc<dyn EnvSources>,
    /// Cancellation signals of this sync.
    pub give_up: GiveUp,
    /// Least restart counts of this sync's containers.
    pub least_counts: LeastCounts,
}

/// Asks a sync to end before its next step, because the pod's definition changed or because the pod is terminating.
///
/// Waits are cancelled at any point: an image pull and the wait for a permit by either signal; a hook, a container's grace
/// period and volumes that do not become ready only when the pod is terminating. A CRI call that creates, starts or removes
/// something is always awaited (`SyncPod` runs `WithoutCancel`): a runtime may still execute a call whose caller has gone,
/// after the next observation of the pod, and then two containers of one name would run; or it records a container as failed
/// that never ran (containerd's `StartError`, exit code 128).
#[derive(Clone, Debug, Default)]
pub struct GiveUp {
    asked: Option<Receiver<Infallible>>,
    ending: Option<Receiver<Infallible>>,
    /// The pod changed since it was observed: nothing is created before the runtime's list is read again.
    pub overtaken: Overtaken,
}

impl GiveUp {
    /// Dropping the first sender signals that the definition changed; dropping the second one too, that the pod is
    /// terminating.
    pub fn new() -> (Sender<Infallible>, Sender<Infallible>, Self) {
        let (changed, asked) = smol::channel::bounded(1);
        let (ends, ending) = smol::channel::bounded(1);
        (changed, ends, Self { asked: Some(asked), ending: Some(ending), overtaken: Overtaken::default() })
    }

    fn is_asked(&self) -> bool {
        self.asked.iter().chain(&self.ending).any(Receiver::is_closed)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.as_ref().is_some_and(Receiver::is_closed)
    }

    /// Result of the wait; `None` when it was cancelled, because the definition changed or the pod is terminating.
    pub(super) async fn unless_asked<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let asked = smol::future::or(closed(self.asked.as_ref()), closed(self.ending.as_ref()));
        smol::future::or(async { Some(wait.await) }, async {
            asked.await;
            None
        })
        .await
    }

    /// Result of the wait; `None` when it was cancelled because the pod is terminating.
    pub(crate) async fn unless_ending<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        smol::future::or(async { Some(wait.await) }, async {
            closed(self.ending.as_ref()).await;
            None
        })
        .await
    }
}

/// Ends when the channel is closed; nothing is ever sent.
async fn closed(channel: Option<&Receiver<Infallible>>) {
    match channel {
        Some(receiver) => drop(receiver.recv().await),
        None => std::future::pending().await,
    }
}

/// Minimum restart counts of containers at their start, by container name: those that the runtime no longer has on record.
#[derive(Clone, Debug, Default)]
pub struct LeastCounts(Rc<[(Box<str>, u32)]>);

impl LeastCounts {
    /// From the restart counts in a pod's saved status (`status::restarts`).
    pub fn new<'a>(counts: impl Iterator<Item = (&'a str, u32)>) -> Self {
        Self(counts.map(|(name, count)| (Box::from(name), count)).collect())
    }

    pub(super) fn of(&self, container: &str) -> u32 {
        self.0.iter().find(|(name, _)| **name == *container).map_or(0, |(_, count)| *count)
    }
}

impl<R> Clone for ActContext<R> {
    fn clone(&self) -> Self {
        Self {
            manager: self.manager.clone(),
            node: self.node.clone(),
            env: self.env.clone(),
            give_up: self.give_up.clone(),
            least_counts: self.least_counts.clone(),
        }
    }
}

impl<R> ActContext<R> {
    /// A context without cancellation signals and restart counts.
    pub fn new(manager: RuntimeManager<R>, node: Rc<NodeSettings>, env: Rc<dyn EnvSources>) -> Self {
        let manager = Rc::new(manager);
        Self { manager, node, env, give_up: GiveUp::default(), least_counts: LeastCounts::default() }
    }

    /// True when the pod's runtime handler supports recursive read-only mounts.
    pub fn mounts_recursively_read_only(&self, pod: &DesiredPod) -> bool {
        let wanted = admission::runtime_handler(pod);
        let handler = self.manager.handlers.iter().find(|handler| *handler.name == *wanted);
        handler.is_some_and(|handler| handler.recursive_read_only_mounts)
    }

    /// Records an event of a pod, or of one of its containers.
    pub fn note<'a>(
        &self,
        about: impl Into<About<'a>>,
        kind: EventKind,
        reason: &'static str,
        message: &str,
    ) {
        (self.manager.notes)(about.into(), kind, reason, message);
    }

    /// Records the warning event of a hook that succeeded.
    pub(super) fn warn_of_hook(&self, key: &PodKey, warning: Option<String>) {
        if let Some(warning) = warning {
            self.note(key, EventKind::Warning, "LifecycleHTTPFallback", &warning);
        }
    }

    /// The symlink to a container's log, below [`RuntimeManager::container_logs_dir`].
    pub(super) fn log_link(&self, key: &PodKey, container: &str, id: &str) -> PathBuf {
        let link = paths::legacy_log_symlink(key, container, id);
        let name = Path::new(&link).file_name().unwrap_or_default();
        self.manager.container_logs_dir.join(name)
    }
}

/// The future of a hook.
pub type HookFuture<'a> = Pin<Box<dyn Future<Output = Result<Option<String>, String>> + 'a>>;

/// Runs a container's hooks.
pub trait Hooks {
    /// Runs a hook to its end, without a deadline; dropping the future cancels it. `Ok(Some)` is a warning about a hook that
    /// succeeded (`LifecycleHTTPFallback`). The error of a preStop hook goes to the log only: it may contain secrets.
    fn run<'a>(&'a self, call: HookCall<'a>) -> HookFuture<'a>;
}

/// One run of a lifecycle hook.
#[derive(Clone, Copy, Debug)]
pub struct HookCall<'a> {
    /// The pod.
    pub key: &'a PodKey,
    /// The running container.
    pub id: &'a ContainerId,
    /// Its name.
    pub container: &'a str,
    /// The container's ports, which a hook may refer to by name.
    pub ports: &'a [ContainerPort],
    /// The pod's addresses; empty when it is on the host network.
    pub pod_ips: &'a [Box<str>],
    /// The hook.
    pub handler: &'a LifecycleHandler,
}

/// `SyncPod` after `computePodActions`. Takes as long as its pulls and grace periods; may be dropped at any await.
pub async fn act<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    plan: &Plan,
) -> Outcome {
    let mut outcome = Outcome::default();
    if !Box::pin(stop(ctx, pod, observed, plan, &mut outcome)).await {
        return outcome;
    }
    if ctx.give_up.is_asked() {
        return outcome;
    }
    for id in &plan.prunes {
        let Some(status) = record(observed, id) else { continue };
        if let Err(error) = Box::pin(remove_container(ctx, &pod.key, status, false)).await {
            // The kubelet continues here too. If this sync is cancelled once the sandbox is made, the record that remained
            // tells the next one that this init container has run.
            if matches!(
                plan.action,
                PodAction::Recreate { .. }
                    | PodAction::RestartAll { sandbox: SandboxStep::Recreate { .. }, .. }
            ) {
                let failure = Failure::new(SyncError::RemoveContainer, error.to_string());
                outcome.add(SyncAction::RemoveContainer, &status.name, Some(failure));
                return outcome;
            }
            // As in the kubelet, which leaves it to garbage collection.
            log::warn!("{}: init container {} ({id}) was not removed: {error}", pod.key, status.name);
        }
    }
    // The sandbox to start in, and its attempt; with nothing to start, the sync ends here.
    let (known, attempt) = match &plan.action {
        PodAction::Recreate { attempt, .. }
        | PodAction::RestartAll { sandbox: SandboxStep::Recreate { attempt, .. }, .. } => (None, *attempt),
        PodAction::Keep { sandbox, attempt, .. }
        | PodAction::End { sandbox: Some(sandbox), attempt, .. }
        | PodAction::RestartAll { sandbox: SandboxStep::Keep { id: sandbox, attempt }, .. }
            if !plan.starts().is_empty() =>
        {
            (Some(sandbox.clone()), *attempt)
        }
        PodAction::Keep { sandbox, .. } if !plan.resizes.is_empty() => {
            Box::pin(resize(ctx, pod, sandbox, &plan.resizes, &mut outcome)).await;
            return outcome;
        }
        PodAction::Keep { .. } | PodAction::End { .. } | PodAction::RestartAll { .. } => return outcome,
    };
    // From here on a sync holds a start permit: a sync that waits has created nothing, and has not
    // yet allocated the futures of the steps that follow.
    let mut permit = StartPermit::new(&ctx.manager.starts, &pod.key);
    if ctx.give_up.unless_asked(permit.acquire()).await.is_some() && !ctx.give_up.is_asked() {
        Box::pin(make(ctx, pod, observed, plan, known, attempt, permit, &mut outcome)).await;
    }
    outcome
}

/// Creates what is missing: the sandbox (with that attempt) when there is none `known`, then the containers.
#[expect(clippy::too_many_arguments, reason = "the second half of `act`")]
async fn make<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    plan: &Plan,
    known: Option<SandboxId>,
    attempt: u32,
    mut permit: StartPermit<'_>,
    outcome: &mut Outcome,
) {
    let _thread = ctx.manager.blocking.keep_thread();
    let starts = plan.starts();
    if let Some(refusal) = refused(ctx, pod).await {
        ctx.note(&pod.key, EventKind::Warning, refusal.reason, &refusal.message);
        for start in starts {
            let failure = Failure::new(SyncError::Refused(refusal.reason), refusal.message.clone());
            let name = Rc::from(pod.container(start.kind, start.index).name);
            outcome.add(SyncAction::StartContainer, &name, Some(failure));
        }
        if starts.is_empty() {
            outcome.sync_error = Some(refusal.message);
        }
        return;
    }
    let config = match configure_sandbox(ctx, pod, attempt, known.is_none()).await {
        Ok(config) => config,
        Err(error) => {
            let name = quoted(&pod.key.kubelet_format());
            if known.is_none() {
                let message = format!("Failed to generate sandbox config for pod {name}: {error}");
                sandbox_failed(ctx, pod, outcome, &error, message);
            } else {
                outcome.sync_error = Some(format!("GeneratePodSandboxConfig for pod {name} failed: {error}"));
            }
            return;
        }
    };
    let sandbox = match known {
        Some(id) => {
            let ips = addresses(ctx, pod, observed);
            // The agent before this one made it, and did not come to its first container.
            let is_new = observed.containers.iter().all(|container| container.sandbox_id != id);
            if is_new && !starts.is_empty() {
                ctx.manager.network.ready(pod, &ips).await;
            }
            PodSandbox { id, config: &config.cri, users: config.users, ips }
        }
        None => match make_sandbox(ctx, pod, observed, &config, &mut permit, outcome).await {
            Some(sandbox) => {
                ctx.manager.network.ready(pod, &sandbox.ips).await;
                sandbox
            }
            None => return,
        },
    };
    // Init and ephemeral containers, which the plan lists before the app containers.
    let (first, apps) = starts.split_at(starts.partition_point(|start| start.kind != ContainerKind::App));
    if !start_all(ctx, pod, observed, &sandbox, first, &mut permit, outcome).await {
        return;
    }
    if !plan.resizes.is_empty() {
        resize(ctx, pod, &sandbox.id, &plan.resizes, outcome).await;
    }
    start_all(ctx, pod, observed, &sandbox, apps, &mut permit, outcome).await;
}

/// Steps 2 and 3: stops the containers or the pod. False when that failed and the sync ends.
async fn stop<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    plan: &Plan,
    outcome: &mut Outcome,
) -> bool {
    match &plan.action {
        PodAction::Keep { kills, .. } => kill_some(ctx, pod, observed, kills, outcome).await,
        PodAction::RestartAll { sandbox: SandboxStep::Keep { .. }, resets } => {
            reset_all(ctx, pod, observed, resets, outcome).await
        }
        PodAction::Recreate { old, .. }
        | PodAction::RestartAll { sandbox: SandboxStep::Recreate { old, .. }, .. } => {
            if old.is_some() {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                ctx.note(&pod.key, EventKind::Normal, "SandboxChanged", message);
            }
            kill_all(ctx, pod, observed, outcome).await
        }
        PodAction::End { .. } => kill_all(ctx, pod, observed, outcome).await,
    }
}

async fn kill_all<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    outcome: &mut Outcome,
) -> bool {
    let killed = kill_pod(ctx, &pod.key, Some(pod), observed, None).await;
    outcome.results.extend(killed.results);
    outcome.is_ok()
}

async fn kill_some<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    kills: &[Kill],
    outcome: &mut Outcome,
) -> bool {
    for kill in kills {
        let Some(status) = record(observed, &kill.id) else { continue };
        let victim = Victim {
            reason: kill.reason,
            message: &kill.message,
            ..Victim::new(&pod.key, Some(pod), observed, status)
        };
        let killed = kill_container(ctx, victim, None).await;
        let failure = killed.err().map(|error| Failure::new(SyncError::KillContainer, error.to_string()));
        outcome.add(SyncAction::KillContainer, &status.name, failure);
        if !outcome.is_ok() {
            return false;
        }
    }
    true
}

async fn reset_all<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    resets: &[Reset],
    outcome: &mut Outcome,
) -> bool {
    for reset in resets {
        let Some(status) = record(observed, &reset.id) else { continue };
        let mut failure = None;
        if reset.kill {
            let victim = Victim {
                reason: KillReason::RestartAllContainers,
                message: "killing",
                grace: Some(Seconds(0)),
                ..Victim::new(&pod.key, Some(pod), observed, status)
            };
            let killed = kill_container(ctx, victim, None).await;
            failure = killed.err().map(|error| Failure::new(SyncError::KillContainer, error.to_string()));
        }
        if failure.is_none() {
            // The logs are kept until the pod is removed.
            let removed = remove_container(ctx, &pod.key, status, true).await;
            failure = removed.err().map(|error| Failure::new(SyncError::RemoveContainer, error.to_string()));
        }
        outcome.add(SyncAction::RemoveContainer, &status.name, failure);
        if !outcome.is_ok() {
            return false;
        }
    }
    true
}

/// Steps 6, 7 and 9. False when an init container did not start, or the sync was asked to end: no further container is
/// started then.
async fn start_all<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    sandbox: &PodSandbox<'_>,
    starts: &[Start],
    permit: &mut StartPermit<'_>,
    outcome: &mut Outcome,
) -> bool {
    let secrets = pull_secrets(ctx, pod);
    for start in starts {
        if ctx.give_up.is_asked() {
            return false;
        }
        let name: Rc<str> = Rc::from(pod.container(start.kind, start.index).name);
        let failure = match &start.when {
            StartWhen::Held { until, message } => {
                let shown = format!(
                    "Back-off restarting failed container {name} in pod {}",
                    pod.key.kubelet_format()
                );
                let about = About::container(&pod.key, start.kind, &name);
                ctx.note(about, EventKind::Warning, "BackOff", &shown);
                Some(Failure {
                    error: SyncError::CrashLoopBackOff,
                    message: message.clone(),
                    retry_at: Some(*until),
                })
            }
            StartWhen::First | StartWhen::Again(_) => {
                let at = ctx.manager.clock.now().mono;
                let started = start_container(ctx, pod, observed, sandbox, start, &secrets, permit).await;
                if matches!(started, Ok(Started::GivenUp)) {
                    return false;
                }
                if let StartWhen::Again(crash) = start.when {
                    outcome.attempts.push(Attempt { crash, at });
                }
                started.err()
            }
        };
        let failed = failure.is_some();
        outcome.add(SyncAction::StartContainer, &name, failure);
        // The pod cannot proceed without this init container; a failed sidecar is retried while the others start.
        if failed && start.kind == ContainerKind::Init && !is_sidecar(&pod.init_containers()[start.index]) {
            return false;
        }
    }
    true
}

fn record<'a>(observed: &'a ObservedPod, id: &ContainerId) -> Option<&'a ContainerStatus> {
    observed.containers.iter().find(|status| status.id == *id)
}
