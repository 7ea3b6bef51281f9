//! The decision table: computes a pod's actions from its desired and observed state (`computePodActions`).
//!
//! PURE. Same input, same plan, same order: the spec's order everywhere, where the kubelet walks maps.
//!
//! ```text
//!  sandbox                       containers                                            plan
//!  ───────────────────────────── ───────────────────────────────────────────────────── ────────────────────
//!  changed (table below)         restart policy Never, attempt > 0, any on record      End
//!  changed                       nothing left to start, some app container was made    End
//!  changed                       else                                                  Recreate: init 0, else apps
//!  as it should be               an init container failed and may not restart          End
//!  as it should be               initialised, none to keep, none to start              End
//!  as it should be               else                                                  Keep: kills, starts
//!  any                           a rule asked to restart all containers                RestartAll
//! ```
//!
//! Each start carries its own back-off (`SyncPod`, `doBackOff`). The kubelet reads the clock again before each start; one
//! reading for the whole plan differs by the duration of the sync, always towards waiting, and `wake_at` schedules the next
//! sync in time.

use k8s_openapi::api::core::v1::Container;

use super::init::{Init, decide_init_containers};
use super::resize::Resizes;
use super::rules::{
    RestartPolicy, asks_to_restart_all, container_policy, is_deleted, is_sidecar, pod_policy,
    should_container_be_restarted,
};
use super::{KillReason, ProbeResult, Probes};
use crate::model::backoff::{Backoff, BackoffKey, GoDuration};
use crate::model::{
    ContainerId, ContainerKind, ContainerState, ContainerStatus, DesiredPod, Mono, NamespaceMode, Now,
    ObservedPod, SandboxId, SandboxState,
};

/// Everything that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The desired pod.
    pub pod: &'a DesiredPod,
    /// What the runtime reports.
    pub observed: &'a ObservedPod,
    /// Latest results of the liveness and startup probes.
    pub probes: &'a Probes,
    /// Back-off of crashed containers.
    pub backoff: &'a Backoff,
    /// The time for which the plan is made.
    pub now: Now,
    /// The pod is being restarted in place ([`super::rules::should_all_containers_restart`]).
    pub restart_all: bool,
    /// A resize of the pod has begun, and none has succeeded since: its cgroup may have other limits than it is allocated.
    pub resizing: bool,
}

/// The planned actions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The action on the pod as a whole.
    pub action: PodAction,
    /// Dead records of init containers to remove before anything starts: all of them when the sandbox is made
    /// anew (`purgeInitContainers`), else all but the newest of each name (`pruneInitContainersBeforeStart`).
    pub prunes: Vec<ContainerId>,
    /// Running containers to resize, after init containers are started and before app containers are; only for a kept
    /// sandbox.
    pub resizes: Resizes,
    /// The earliest end of a back-off that a start waits for: plan again then.
    pub wake_at: Option<Mono>,
}

/// The action on the pod as a whole. Single kills are executed only in a kept sandbox; an ended pod starts nothing but
/// ephemeral containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodAction {
    /// The sandbox stays: kill some containers, then start some. Without either, nothing happens.
    Keep {
        /// The sandbox to start in.
        sandbox: SandboxId,
        /// Its attempt.
        attempt: u32,
        /// In spec order, init containers first.
        kills: Vec<Kill>,
        /// Ephemeral, init, app containers, each in spec order.
        starts: Vec<Start>,
    },
    /// Stop everything, make a new sandbox, start from the beginning.
    Recreate {
        /// The sandbox it replaces; `None` for a new pod, and when the network namespace changed.
        old: Option<SandboxId>,
        /// The new sandbox's attempt.
        attempt: u32,
        /// The first init container, else app containers.
        starts: Vec<Start>,
    },
    /// Stop everything: the pod is complete, or may not restart.
    End {
        /// The latest sandbox on record, if there is one.
        sandbox: Option<SandboxId>,
        /// The attempt a next sandbox would have.
        attempt: u32,
        /// Why single containers would have been killed. Informational: ending the pod stops them all.
        kills: Vec<Kill>,
        /// The kubelet still starts ephemeral containers then.
        debuggers: Vec<Start>,
    },
    /// Restart in place: stop and remove every container; the next plan starts from the beginning.
    RestartAll {
        /// The sandbox's action. When it is recreated the resets are void: everything is stopped anyway.
        sandbox: SandboxStep,
        /// Containers to reset: first the others, then those whose exit requested the restart; app containers before init
        /// containers.
        resets: Vec<Reset>,
    },
}

/// The sandbox's action in a restart in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxStep {
    /// It stays.
    Keep {
        /// Its id.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
    },
    /// A new one is made.
    Recreate {
        /// The one it replaces.
        old: Option<SandboxId>,
        /// The new one's attempt.
        attempt: u32,
    },
}

/// One container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The container's record.
    pub id: ContainerId,
    /// The container list that holds its definition.
    pub kind: ContainerKind,
    /// The index in that list.
    pub index: usize,
    /// Selects the grace period.
    pub reason: KillReason,
    /// The kubelet's message.
    pub message: String,
}

/// One container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The container list that holds its definition.
    pub kind: ContainerKind,
    /// The index in that list.
    pub index: usize,
    /// Now, or after its back-off.
    pub when: StartWhen,
}

/// Whether a container starts in this sync (`doBackOff`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartWhen {
    /// It never exited before: no back-off.
    First,
    /// It exited before and may start again: the attempt doubles its back-off.
    Again(Crash),
    /// It is in back-off.
    Held {
        /// End of the back-off.
        until: Mono,
        /// The kubelet's message.
        message: String,
    },
}

/// Input of [`Backoff::next`] when the start is attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The container's key.
    pub key: BackoffKey,
    /// When it exited, if known.
    pub finished: Option<Mono>,
}

/// One container record to remove in a restart in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The container's record.
    pub id: ContainerId,
    /// The container list that holds its definition.
    pub kind: ContainerKind,
    /// The index in that list.
    pub index: usize,
    /// It is still running: stop it first, with grace period 0.
    pub kill: bool,
}

impl Plan {
    /// True when there is nothing to do.
    pub fn is_idle(&self) -> bool {
        let idle = match &self.action {
            PodAction::Keep { kills, starts, .. } => kills.is_empty() && starts.is_empty(),
            PodAction::Recreate { .. } | PodAction::End { .. } | PodAction::RestartAll { .. } => false,
        };
        idle && self.prunes.is_empty() && self.resizes.is_empty()
    }

    /// True when a sandbox is created, the pod's first or a new one.
    pub fn makes_sandbox(&self) -> bool {
        match &self.action {
            PodAction::Recreate { .. }
            | PodAction::RestartAll { sandbox: SandboxStep::Recreate { .. }, .. } => true,
            PodAction::Keep { .. }
            | PodAction::End { .. }
            | PodAction::RestartAll { sandbox: SandboxStep::Keep { .. }, .. } => false,
        }
    }

    /// Every start of the plan, whatever the action on the sandbox.
    pub fn starts(&self) -> &[Start] {
        match &self.action {
            PodAction::Keep { starts, .. }
            | PodAction::Recreate { starts, .. }
            | PodAction::End { debuggers: starts, .. } => starts,
            PodAction::RestartAll { .. } => &[],
        }
    }
}

/// `computePodActions`, with the back-off decisions of `SyncPod`.
///
/// An unchanged pod costs no allocation: the plan's lists stay empty.
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut resizes = Resizes::default();
    let action = decide(input, &mut resizes);
    let recreates = match &action {
        PodAction::Recreate { .. } | PodAction::RestartAll { sandbox: SandboxStep::Recreate { .. }, .. } => {
            true
        }
        PodAction::Keep { .. } | PodAction::End { .. } | PodAction::RestartAll { .. } => false,
    };
    if matches!(action, PodAction::Keep { .. }) {
        resizes.cgroup |= input.resizing;
    } else {
        resizes = Resizes::default();
    }
    let mut plan = Plan { action, prunes: prunes(input, recreates), resizes, wake_at: None };
    plan.wake_at = wake_at(input.pod, plan.starts());
    plan
}

fn decide(input: &PlanInput<'_>, resizes: &mut Resizes) -> PodAction {
    let check = check_sandbox(input.pod, input.observed);
    if input.restart_all {
        return PodAction::RestartAll { sandbox: check.into(), resets: resets(input) };
    }
    match check {
        SandboxCheck::Changed { old, attempt } => decide_recreate(input, old, attempt),
        SandboxCheck::Good { id, attempt } => decide_containers(input, id, attempt, resizes),
    }
}

// ---- sandbox ---------------------------------------------------------------------------------------------

enum SandboxCheck {
    Good { id: SandboxId, attempt: u32 },
    Changed { old: Option<SandboxId>, attempt: u32 },
}

impl From<SandboxCheck> for SandboxStep {
    fn from(check: SandboxCheck) -> Self {
        match check {
            SandboxCheck::Good { id, attempt } => Self::Keep { id, attempt },
            SandboxCheck::Changed { old, attempt } => Self::Recreate { old, attempt },
        }
    }
}

/// `PodSandboxChanged`:
///
/// | newest sandbox | changed | old | attempt |
/// |---|---|---|---|
/// | none | yes | none | 0 |
/// | more than one is ready | yes | it | + 1 |
/// | not ready | yes | it | + 1 |
/// | network namespace is not the one the pod asks for | yes | none | + 1 |
/// | own network, reported, without address | yes | it | + 1 |
/// | else | no | | |
fn check_sandbox(pod: &DesiredPod, observed: &ObservedPod) -> SandboxCheck {
    let Some(newest) = observed.sandboxes.first() else {
        return SandboxCheck::Changed { old: None, attempt: 0 };
    };
    let changed = |old| SandboxCheck::Changed { old, attempt: newest.attempt.saturating_add(1) };
    let ready = observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    if ready > 1 || newest.state != SandboxState::Ready {
        return changed(Some(newest.id.clone()));
    }
    let host_network = pod.spec().host_network.unwrap_or_default();
    let wanted = if host_network { NamespaceMode::Node } else { NamespaceMode::Pod };
    if newest.network_namespace.unwrap_or(NamespaceMode::Pod) != wanted {
        return changed(None);
    }
    if !host_network && newest.network.as_ref().is_some_and(|network| network.ip.is_empty()) {
        return changed(Some(newest.id.clone()));
    }
    SandboxCheck::Good { id: newest.id.clone(), attempt: newest.attempt }
}

/// The sandbox must be recreated: is there anything left to run in it?
fn decide_recreate(input: &PlanInput<'_>, old: Option<SandboxId>, attempt: u32) -> PodAction {
    let (pod, observed) = (input.pod, input.observed);
    let end = |old| PodAction::End { sandbox: old, attempt, kills: Vec::new(), debuggers: Vec::new() };
    // Fact 3 of the kubelet: a container's own policy does not help a pod that never restarts.
    if pod_policy(&pod.pod) == RestartPolicy::Never && attempt != 0 && !observed.containers.is_empty() {
        return end(old);
    }
    let succeeded = |container: &Container| {
        observed.container(&container.name).is_some_and(|status| match status.state {
            ContainerState::Exited => status.exit_code == 0,
            ContainerState::Created | ContainerState::Running | ContainerState::Unknown => false,
        })
    };
    let is_left = |container: &Container| {
        let policy = container_policy(container).unwrap_or(pod_policy(&pod.pod));
        policy != RestartPolicy::OnFailure || !succeeded(container)
    };
    let left = || pod.containers().iter().enumerate().filter(|(_, container)| is_left(container));
    if left().next().is_none() && has_any_app_container_created(pod, observed) {
        return end(old);
    }
    let starts = if pod.init_containers().is_empty() {
        left().map(|(index, _)| start(input, ContainerKind::App, index)).collect()
    } else {
        vec![start(input, ContainerKind::Init, 0)]
    };
    PodAction::Recreate { old, attempt, starts }
}

/// `HasAnyRegularContainerCreated`: if so, all init containers were complete.
fn has_any_app_container_created(pod: &DesiredPod, observed: &ObservedPod) -> bool {
    pod.containers().iter().filter_map(|c| observed.container(&c.name)).any(|status| match status.state {
        ContainerState::Created | ContainerState::Running | ContainerState::Exited => true,
        ContainerState::Unknown => false,
    })
}

// ---- containers ------------------------------------------------------------------------------------------

/// The sandbox is kept: ephemeral, init, then app containers.
fn decide_containers(
    input: &PlanInput<'_>,
    sandbox: SandboxId,
    attempt: u32,
    resizes: &mut Resizes,
) -> PodAction {
    let (pod, observed) = (input.pod, input.observed);
    // Ephemeral containers start once, whether the pod is initialised or not.
    let mut starts: Vec<Start> = Vec::new();
    for (index, container) in pod.ephemeral_containers().iter().enumerate() {
        if observed.container(&container.name).is_none() {
            starts.push(start(input, ContainerKind::Ephemeral, index));
        }
    }
    let debuggers = starts.len();
    let mut kills = Vec::new();
    let initialised = match decide_init_containers(input, &mut kills, &mut starts, resizes) {
        Init::Done => true,
        Init::InProgress => false,
        Init::Failed => {
            starts.truncate(debuggers);
            return PodAction::End { sandbox: Some(sandbox), attempt, kills, debuggers: starts };
        }
    };
    if !initialised {
        return PodAction::Keep { sandbox, attempt, kills, starts };
    }
    let before_apps = starts.len();
    let mut keeps = false;
    for (index, container) in pod.containers().iter().enumerate() {
        match decide_app_container(input, index, container, resizes) {
            AppDecision::Keep => keeps = true,
            AppDecision::Rest => {}
            AppDecision::Start => starts.push(start(input, ContainerKind::App, index)),
            AppDecision::KillAndStart(kill) => {
                kills.push(kill);
                starts.push(start(input, ContainerKind::App, index));
            }
            AppDecision::Kill(kill) => kills.push(kill),
        }
    }
    if !keeps && starts.len() == before_apps {
        // Sidecars alone do not keep a pod alive, so their restarts are dropped too.
        starts.truncate(debuggers);
        return PodAction::End { sandbox: Some(sandbox), attempt, kills, debuggers: starts };
    }
    PodAction::Keep { sandbox, attempt, kills, starts }
}

enum AppDecision {
    /// It runs and stays.
    Keep,
    /// It has exited and is not restarted.
    Rest,
    Start,
    Kill(Kill),
    KillAndStart(Kill),
}

/// One app container:
///
/// | newest record | then |
/// |---|---|
/// | none, created | start |
/// | unknown | kill, then start: it may still run |
/// | exited | start when its policy or a rule says so |
/// | running, definition changed | kill, then start whatever the policy |
/// | running, liveness or startup `Failure` | kill; start unless the policy is Never (rules do not count) |
/// | running, another device is behind a device volume | kill, then start; keep when the policy is Never (not in the kubelet) |
/// | running, other CPU or memory granted, its policy is `RestartContainer` | kill, then start |
/// | running | keep |
fn decide_app_container(
    input: &PlanInput<'_>,
    index: usize,
    container: &Container,
    resizes: &mut Resizes,
) -> AppDecision {
    let pod = input.pod;
    let name = &container.name;
    let Some(status) = input.observed.container(name) else {
        return if is_deleted(&pod.pod) { AppDecision::Rest } else { AppDecision::Start };
    };
    let kill =
        |reason, message| Kill { id: status.id.clone(), kind: ContainerKind::App, index, reason, message };
    match status.state {
        ContainerState::Running => {}
        ContainerState::Created | ContainerState::Exited | ContainerState::Unknown => {
            if !should_container_be_restarted(container, &pod.pod, input.observed) {
                return AppDecision::Rest;
            }
            return match status.state {
                ContainerState::Unknown => AppDecision::KillAndStart(kill(
                    KillReason::Unknown,
                    "Container is in \"unknown\" state, try killing it before restart".to_owned(),
                )),
                ContainerState::Created | ContainerState::Exited | ContainerState::Running => {
                    AppDecision::Start
                }
            };
        }
    }
    let failed = |results: &super::ProbeResults| results.of(&status.id) == Some(ProbeResult::Failure);
    if status.meta.hash != hash_at(&pod.app_hashes, index) {
        return AppDecision::KillAndStart(kill(
            KillReason::Changed,
            format!("Container {name} definition changed, will be restarted"),
        ));
    }
    let policy = container_policy(container).unwrap_or(pod_policy(&pod.pod));
    let (reason, probe) = if failed(&input.probes.liveness) {
        (KillReason::LivenessProbe, "liveness")
    } else if failed(&input.probes.startup) {
        (KillReason::StartupProbe, "startup")
    } else if policy != RestartPolicy::Never && failed(&input.probes.devices) {
        return AppDecision::KillAndStart(kill(KillReason::Changed, has_another_device(name)));
    } else if resizes.look(ContainerKind::App, index, container, status) {
        return AppDecision::KillAndStart(kill(KillReason::Changed, needs_restart(name)));
    } else {
        return AppDecision::Keep;
    };
    match policy {
        RestartPolicy::Always | RestartPolicy::OnFailure => AppDecision::KillAndStart(kill(
            reason,
            format!("Container {name} failed {probe} probe, will be restarted"),
        )),
        RestartPolicy::Never => {
            AppDecision::Kill(kill(reason, format!("Container {name} failed {probe} probe")))
        }
    }
}

/// The kubelet's message for a container that is killed because of its `resizePolicy`.
pub(super) fn needs_restart(name: &str) -> String {
    format!("Container {name} resize requires restart")
}

/// The message for a container behind whose device volume there is another device.
pub(super) fn has_another_device(name: &str) -> String {
    format!("Container {name}: a device volume has another device now, will be restarted")
}

// ---- back-off --------------------------------------------------------------------------------------------

/// `doBackOff`: the newest exited record of that name says since when it waits.
pub(super) fn start(input: &PlanInput<'_>, kind: ContainerKind, index: usize) -> Start {
    let pod = input.pod;
    let container = match kind {
        ContainerKind::Init => &pod.init_containers()[index],
        ContainerKind::App => &pod.containers()[index],
        // An ephemeral container with a record is never restarted.
        ContainerKind::Ephemeral => return Start { kind, index, when: StartWhen::First },
    };
    let name = &container.name;
    let exited = |status: &&ContainerStatus| *status.name == **name && status.state == ContainerState::Exited;
    let Some(status) = input.observed.containers.iter().find(exited) else {
        return Start { kind, index, when: StartWhen::First };
    };
    let key = BackoffKey::container(pod, container);
    let when = match input.backoff.held_since(key, status.finished_mono, input.now.mono) {
        Some(hold) => StartWhen::Held {
            until: hold.until,
            message: format!(
                "back-off {} restarting failed container={name} pod={}",
                GoDuration(hold.wait),
                pod.key.kubelet_format()
            ),
        },
        None => StartWhen::Again(Crash { key, finished: status.finished_mono }),
    };
    Start { kind, index, when }
}

/// The earliest end of the back-offs that `SyncPod` would report: it stops at the first init container (sidecars apart) that
/// does not start.
fn wake_at(pod: &DesiredPod, starts: &[Start]) -> Option<Mono> {
    let mut earliest: Option<Mono> = None;
    for start in starts {
        let StartWhen::Held { until, .. } = start.when else { continue };
        earliest = Some(earliest.map_or(until, |known| known.min(until)));
        if start.kind == ContainerKind::Init && !is_sidecar(&pod.init_containers()[start.index]) {
            break;
        }
    }
    earliest
}

// ---- removals --------------------------------------------------------------------------------------------

/// Dead init container records: `purgeInitContainers` and `pruneInitContainersBeforeStart`.
fn prunes(input: &PlanInput<'_>, all: bool) -> Vec<ContainerId> {
    let mut removed = Vec::new();
    let containers = input.pod.init_containers();
    for (index, container) in containers.iter().enumerate() {
        if containers[..index].iter().any(|earlier| earlier.name == container.name) {
            continue;
        }
        let records = input.observed.containers.iter().filter(|status| *status.name == *container.name);
        if all {
            removed.extend(records.map(|status| status.id.clone()));
            continue;
        }
        let dead = records.filter(|status| match status.state {
            ContainerState::Exited | ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Running => false,
        });
        removed.extend(dead.skip(1).map(|status| status.id.clone()));
    }
    removed
}

/// `getContainersToReset` for app, then init containers: victims first, then those that asked for it.
fn resets(input: &PlanInput<'_>) -> Vec<Reset> {
    let lists =
        [(ContainerKind::App, input.pod.containers()), (ContainerKind::Init, input.pod.init_containers())];
    let (mut victims, mut sources) = (Vec::new(), Vec::new());
    for (kind, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let records = input.observed.containers.iter().filter(|status| *status.name == *container.name);
            for status in records {
                let (kill, asked) = match status.state {
                    ContainerState::Exited => (false, asks_to_restart_all(container, status.exit_code)),
                    ContainerState::Created | ContainerState::Running | ContainerState::Unknown => {
                        (true, false)
                    }
                };
                let reset = Reset { id: status.id.clone(), kind, index, kill };
                if asked { &mut sources } else { &mut victims }.push(reset);
            }
        }
    }
    victims.append(&mut sources);
    victims
}

/// The desired hash as the runtime's records carry it; a missing one (never for a `DesiredPod`) matches nothing.
pub(super) fn hash_at(hashes: &[u32], index: usize) -> u64 {
    hashes.get(index).map_or(u64::MAX, |&hash| u64::from(hash))
}
