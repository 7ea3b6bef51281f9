//! A pod's sandbox: admission, configuration and creation.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::act::ActContext;
use super::files::create_dir;
use super::outcome::{Failure, Outcome, SyncAction, SyncError};
use super::start_limiter::{StartCall, StartPermit};
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::LOG_MEMORY_NODE_PART;
use crate::logs::memory;
use crate::model::{DesiredPod, ObservedPod, SandboxId, SandboxStatus};
use crate::proto::runtime::v1::PodSandboxConfig;
use crate::render::admission::{self, Refusal};
use crate::render::labels::NODE_ANNOTATION;
use crate::render::log_memory::log_memory;
use crate::render::{UserNamespace, dns_warnings, paths, sandbox_config};
use crate::text::quoted;
use crate::userns;

/// The sandbox in which containers start.
pub(super) struct PodSandbox<'a> {
    pub id: SandboxId,
    pub config: &'a PodSandboxConfig,
    pub users: Option<UserNamespace>,
    pub ips: Vec<Box<str>>,
}

/// Why the node cannot run the pod. The runtime's features are queried only for pods that need some, and each time: an
/// upgrade may add them.
pub(super) async fn refused<R: Runtime>(ctx: &ActContext<R>, pod: &DesiredPod) -> Option<Refusal> {
    let runtime = if admission::asks_runtime(pod) {
        match ctx.manager.runtime.status().await {
            Ok(status) => Some(status),
            Err(error) => {
                let message = format!("the runtime's features cannot be queried: {error}");
                return Some(Refusal { reason: "CreatePodSandboxError", message });
            }
        }
    } else {
        None
    };
    admission::refusal(&ctx.node, pod, runtime.as_ref())
}

/// A sandbox's configuration.
pub(super) struct SandboxConfig {
    pub cri: PodSandboxConfig,
    /// The pod's user namespace.
    pub users: Option<UserNamespace>,
}

/// The sandbox's configuration with smolet's own annotation. `is_new`: there is no sandbox yet.
pub(super) async fn configure_sandbox<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    attempt: u32,
    is_new: bool,
) -> Result<SandboxConfig, String> {
    let mut users = None;
    if admission::wants_user_namespace(pod) {
        let pod_dir = paths::pod_dir(&ctx.node, &pod.key);
        let (root, uid) = (ctx.node.root_dir.to_string(), pod.key.uid.to_string());
        let given = move || {
            create_dir(&pod_dir, 0o750).map_err(|error| format!("pod directory {pod_dir}: {error}"))?;
            userns::of_pod(&Path::new(&root).join("pods"), &uid, is_new)
        };
        users = Some(ctx.manager.blocking.run_for(&pod.key.uid, given).await??);
    }
    let mut node = ctx.node.clone();
    if let Some(resolver) = ctx.manager.resolver.as_ref().filter(|_| is_new) {
        let host_network = pod.spec().host_network == Some(true);
        let theirs = resolver.clone();
        // The path is the administrator's choice: its file system may hang.
        let read = ctx.manager.blocking.run_outside(&resolver.path, move || theirs.read(host_network)).await;
        // A sandbox keeps this configuration for its lifetime.
        Rc::make_mut(&mut node).resolv_conf = read?;
    }
    let mut config = sandbox_config(&node, pod, attempt, users).map_err(|error| error.to_string())?;
    config.annotations.insert(NODE_ANNOTATION.to_owned(), ctx.node.node_name.to_string());
    if is_new {
        for warning in dns_warnings(&node, pod) {
            ctx.note(&pod.key, EventKind::Warning, "DNSConfigForming", &warning);
        }
    }
    Ok(SandboxConfig { cri: config, users })
}

/// `createPodSandbox` and how `SyncPod` handles its result; `None` when the sync ends.
pub(super) async fn make_sandbox<'a, R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
    made: &'a SandboxConfig,
    permit: &mut StartPermit<'_>,
    outcome: &mut Outcome,
) -> Option<PodSandbox<'a>> {
    let (config, name) = (&made.cri, quoted(&pod.key.kubelet_format()));
    // Created before the sandbox: the directory is how a pod's leftovers are found after the agent was killed.
    let pod_dir = paths::pod_dir(&ctx.node, &pod.key);
    let at = PathBuf::from(&pod_dir);
    let wanted = [("pod", pod_dir, 0o750), ("log", config.log_directory.clone(), 0o755)];
    let (bytes, flushed) = (log_memory(&ctx.node, pod), paths::flushed_logs_dir(&ctx.node, &pod.key));
    let node_max = u64::try_from(ctx.node.memory_capacity_bytes).unwrap_or_default() / LOG_MEMORY_NODE_PART;
    let make = move || {
        wanted.iter().try_for_each(|(what, path, mode)| {
            create_dir(path, *mode).map_err(|error| (*what, error.to_string()))
        })?;
        let [_, (what, logs, _)] = &wanted;
        let prepared =
            bytes.and_then(|bytes| memory::prepare(Path::new(logs), Path::new(&flushed), bytes, node_max));
        prepared.map_err(|error| (*what, error))
    };
    let directories = ctx.manager.blocking.run_outside_for(&pod.key.uid, &at, make);
    let directories = permit.files(&ctx.manager.clock, directories).await;
    if let Err((what, error)) = directories.unwrap_or_else(|stuck| Err(("pod", stuck.to_string()))) {
        let message = format!("Failed to create {what} directory for pod {name}: {error}");
        sandbox_failed(ctx, pod, outcome, &error, message);
        return None;
    }
    let attempt = config.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    if !ctx.give_up.overtaken.sandbox_may_be_made(&*ctx.manager.runtime, &pod.key.uid, attempt).await {
        return None;
    }
    let run = ctx.manager.runtime.run_pod_sandbox(config, admission::runtime_handler(pod));
    let id = match permit
        .call(&ctx.manager.clock, StartCall::RunPodSandbox, run)
        .await
        .map_err(|error| explained(error.to_string()))
    {
        Ok(id) => id,
        Err(error) => {
            note_network(ctx, pod).await;
            let message = format!("Failed to create sandbox for pod {name}: {error}");
            sandbox_failed(ctx, pod, outcome, &error, message);
            return None;
        }
    };
    outcome.add(SyncAction::CreatePodSandbox, &Rc::from(pod.key.kubelet_format()), None);
    outcome.sandbox = Some(id.clone());
    let status = match ctx.manager.runtime.pod_sandbox_status(&id).await {
        Ok(status) => status,
        Err(error) => {
            let message = format!("Unable to get pod sandbox status: {error}");
            ctx.note(&pod.key, EventKind::Warning, "FailedPodSandBoxStatus", &message);
            outcome.sync_error = Some(error.to_string());
            return None;
        }
    };
    let host_network = pod.spec().host_network == Some(true);
    let ips = if host_network { addresses(ctx, pod, observed) } else { sandbox_ips(&status) };
    Some(PodSandbox { id, config, users: made.users, ips })
}

/// Records that the runtime's network is not ready, when that may be why the sandbox failed (`SyncPod`).
///
/// Differs from the kubelet, which checks this first and then creates no sandbox: here the runtime is called all the same.
async fn note_network<R: Runtime>(ctx: &ActContext<R>, pod: &DesiredPod) {
    if pod.spec().host_network == Some(true) {
        return;
    }
    let Ok(status) = ctx.manager.runtime.status().await else { return };
    let network = status.conditions.iter().find(|of| &*of.kind == "NetworkReady" && !of.status);
    if let Some(of) = network {
        let message = format!(
            "network is not ready: container runtime network not ready: NetworkReady=false reason:{} message:{}",
            of.reason, of.message
        );
        ctx.note(&pod.key, EventKind::Warning, "NetworkNotReady", &message);
    }
}

/// The addresses of a pod with a sandbox. On the host network the runtime reports none: they are the node's, as in the pod's
/// status (where `SyncPod` takes them from).
pub(crate) fn addresses<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    observed: &ObservedPod,
) -> Vec<Box<str>> {
    if pod.spec().host_network == Some(true) && observed.ips.is_empty() {
        return ctx.node.node_ips.clone();
    }
    observed.ips.clone()
}

/// The runtime's error, with what to set when it is runc's word on the cgroup path of another driver than the runtime's. A runtime
/// without `RuntimeConfig` (containerd 1) has no better way to say so.
fn explained(error: String) -> String {
    if error.contains("for systemd cgroups, got") {
        return format!(
            "{error} (the runtime has the cgroup driver systemd, smolet cgroupfs: set cgroupDriver: systemd)"
        );
    }
    error
}

pub(super) fn sandbox_failed<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    outcome: &mut Outcome,
    error: &str,
    message: String,
) {
    let note = format!("Failed to create pod sandbox: {error}");
    ctx.note(&pod.key, EventKind::Warning, "FailedCreatePodSandBox", &note);
    let failure = Failure::new(SyncError::CreatePodSandbox, message);
    outcome.add(SyncAction::CreatePodSandbox, &Rc::from(pod.key.kubelet_format()), Some(failure));
}

/// `determinePodSandboxIPs`: empty when any of them cannot be parsed.
fn sandbox_ips(status: &SandboxStatus) -> Vec<Box<str>> {
    let Some(network) = &status.network else { return Vec::new() };
    let primary = Some(&network.ip).filter(|ip| !ip.is_empty());
    let ips: Vec<Box<str>> = primary.into_iter().chain(&network.additional_ips).cloned().collect();
    if ips.iter().all(|ip| ip.parse::<IpAddr>().is_ok()) { ips } else { Vec::new() }
}
