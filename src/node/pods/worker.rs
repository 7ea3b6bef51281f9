//! The pod worker: drives one pod from its last read to the next plan, starts its job, and applies the job's result.
//!
//! ```text
//!     drive ─► read ─► status ─► plan ─► act ─► read … ─► settled
//!                                  └─► collect garbage, or bring volumes up to date
//! ```
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;

use super::Pods;
use super::record::{Record, StartFailures};
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::events::{About, EventKind};
use crate::eviction::pods::refusal;
use crate::gc::{self, GcPlan};
use crate::limits::{
    KILL_PATIENCE_MIN, NAME_RESERVED_RETRY, OBJECTS_PATIENCE, OVERRIDE_GRACE_SECONDS_MIN, PULL_ERROR_SHOWN,
    RELIST_PERIOD, START_FAILURES_MAX, SYNC_RETRY,
};
use crate::model::SortedSet;
use crate::model::backoff::BackoffKey;
use crate::model::{ContainerKind, DesiredPod, Mono, Now, ObservedPod, PodUid, Seconds};
use crate::node::agent::Event;
use crate::node::debug::forgotten;
use crate::node::effects::{Effect, Effects, Forgotten};
use crate::node::jobs;
use crate::pleg;
use crate::poison;
use crate::render::cgroup_settings::burstable_milli_cpu;
use crate::render::paths;
use crate::status::eviction::EVICTED;
use crate::status::restarts::next_restart_counts;
use crate::status::{self, DEADLINE_EXCEEDED, DEADLINE_MESSAGE, time};
use crate::sync::act::{GiveUp, LeastCounts};
use crate::sync::kill::{kill_pod, remove_garbage};
use crate::sync::outcome::{Failure, Outcome, SyncError};
use crate::sync::plan::{Plan, PlanInput, PodAction, Start, StartWhen, plan};
use crate::sync::sandbox::addresses;
use crate::sync::worker::{Job, Life, Step};
use crate::text::quoted;
use crate::volume::{self, VolumeStep};

/// The message for pods with `dnsPolicy: ClusterFirst` when no cluster DNS is configured.
const MISSING_DNS: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

/// Result of a pod's job.
pub(in crate::node) enum JobResult {
    Read(RuntimeResult<ObservedPod>),
    /// Of an act or a kill.
    Done(Outcome),
    Removed(Result<(), String>),
    /// The files of a running pod's volumes were updated.
    Refreshed(Result<(), String>),
}

/// Reasons that depend on the runtime's features and for which the kubelet does not admit a pod
/// (`rejectPodAdmissionBasedOnSupplementalGroupsPolicy`). With other reasons the sandbox fails and is retried, as in the kubelet.
const NOT_ADMITTED: [&str; 1] = ["SupplementalGroupsPolicyNotSupported"];

/// The work of a job.
pub(in crate::node) enum Work {
    Act(Plan),
    Collect(GcPlan),
    /// Updates the files of ConfigMap, Secret, projected and downward API volumes.
    Refresh(Vec<VolumeStep>),
}

impl Work {
    /// Nothing of the pod runs, and its sandbox is created again.
    pub(in crate::node) fn recreates(&self) -> bool {
        matches!(self, Self::Act(Plan { action: PodAction::Recreate { .. }, .. }))
    }

    /// The work removes the runtime's last record of a container's restart count while the pod is kept.
    pub(in crate::node) fn loses_counts(&self, observed: &ObservedPod) -> bool {
        gc::loses_counts(observed, |container| match self {
            Self::Act(plan) => {
                let resets = match &plan.action {
                    PodAction::RestartAll { resets, .. } => resets.as_slice(),
                    PodAction::Keep { .. } | PodAction::Recreate { .. } | PodAction::End { .. } => &[],
                };
                plan.prunes.contains(&container.id) || resets.iter().any(|reset| reset.id == container.id)
            }
            Self::Refresh(_) => false,
            Self::Collect(garbage) => {
                garbage.sandboxes.contains(&container.sandbox_id)
                    || garbage.containers.iter().any(|removal| removal.id == container.id)
            }
        })
    }
}

impl<R: Runtime + 'static> Pods<R> {
    /// Advances the pod until it waits for a job, a time or an event.
    pub(in crate::node) fn drive(&mut self, uid: &PodUid, out: &mut Effects) {
        loop {
            let now = self.ctx.manager.clock.now();
            let Some(record) = self.records.get_mut(uid).filter(|record| !record.set_aside) else {
                return;
            };
            let _handling = poison::handling(Some(record.mark.clone()));
            match record.worker.next(now.mono) {
                None => {
                    if record.worker.life() == Life::Ended {
                        self.show_ended(uid, now);
                    }
                    return;
                }
                Some(Step::Start(job)) => {
                    if job == Job::CleanUp {
                        self.show_ended(uid, now);
                    }
                    return self.start(uid, job, None, out);
                }
                Some(Step::Forget) => return self.forget(uid, out),
                Some(Step::Plan) => {
                    if let Some(work) = self.plan(uid, now, out) {
                        if self.must_save_first(uid, &work, out) {
                            return;
                        }
                        let job = if matches!(work, Work::Act(_)) { Job::Act } else { Job::Collect };
                        return self.start(uid, job, Some(work), out);
                    }
                }
            }
        }
    }

    /// The work to start; `None` = the pod is settled, waits, or has ended.
    fn plan(&mut self, uid: &PodUid, now: Now, out: &mut Effects) -> Option<Work> {
        self.update_resize(uid, now);
        let record = self.records.get(uid)?;
        let deadline = active_deadline(record.worker.pod()?, record.active_since);
        if deadline.is_some_and(|at| at <= now.mono) {
            if !self.statuses.has_ended(uid) {
                self.ctx.note(record.worker.key(), EventKind::Normal, DEADLINE_EXCEEDED, DEADLINE_MESSAGE);
            }
            // The deadline passed without an event: the new status has the phase Failed.
            self.refresh_status(uid, now);
        }
        let record = self.records.get_mut(uid)?;
        let (pod, observed) = (record.worker.pod()?.clone(), record.worker.observed()?.clone());
        if self.statuses.has_ended(uid) {
            // Requested before the agent restarted.
            if self.statuses.status(uid).is_some_and(|status| status::eviction::was_for_the_node(&status)) {
                record.worker.clear_when_ended();
            }
            record.worker.finished();
            return None;
        }
        let mut probes = record.probers.for_plan();
        self.mark_other_devices(&pod, &observed, now.wall, &mut probes.devices, out);
        let record = self.records.get_mut(uid)?;
        let input = PlanInput {
            pod: &pod,
            observed: &observed,
            probes: &probes,
            backoff: &self.backoff,
            now,
            restart_all: self.statuses.is_restarting(uid),
            resizing: record.is_resizing(),
        };
        let plan = plan(&input);
        let deadline = deadline.filter(|at| *at > now.mono);
        // The API server's pods were checked at admission.
        if plan.makes_sandbox()
            && !pod.pod.is_of_api_server()
            && observed.sandboxes.is_empty()
            && let Some(why) = refusal(&self.facts.conditions, &pod)
        {
            record.worker.settled(deadline);
            self.hold_back(uid, &plan, "Evicted", &why);
            return None;
        }
        if plan.makes_sandbox() && !self.may_begin(uid, &pod, &observed, &plan, out) {
            return None;
        }
        if self.awaits_objects(uid, &plan, deadline, now) {
            return None;
        }
        let waits = only_waits(&plan);
        let acts = !plan.is_idle() && !waits && !has_ended(&plan, &observed);
        let record = self.records.get(uid)?;
        // While a container cannot start, those beside it leave dead ones: `containerGC` runs whatever the pod's sync does.
        let may_collect = !acts
            || (only_retries(&plan, &pod, &record.failures)
                && !record.has_collected
                && !self.facts.saved.failing);
        let garbage = if may_collect { self.all_garbage_of(&pod, &observed, now) } else { GcPlan::default() };
        let record = self.records.get_mut(uid)?;
        if acts && garbage.is_empty() {
            // The pod is planned again after the act; the act itself may have to wait for a checkpoint.
            record.worker.settled(deadline);
            if plan.makes_sandbox() {
                self.note_missing_dns(&pod, out);
            }
            return Some(Work::Act(plan));
        }
        let ripe_at = gc::ripe_at(self.facts.garbage, &observed, now.mono);
        record.worker.settled([plan.wake_at, deadline, ripe_at].into_iter().flatten().min());
        if waits {
            self.show_waits(uid, &plan, now);
        }
        if !garbage.is_empty() {
            return Some(Work::Collect(garbage));
        }
        self.stale_volumes(uid)
    }

    /// The dead containers of this pod to remove, and those of debug containers that it has no longer.
    fn all_garbage_of(&self, pod: &DesiredPod, observed: &ObservedPod, now: Now) -> GcPlan {
        let mut garbage = self.garbage_of(pod, observed, now);
        for removal in forgotten(pod, observed) {
            if !garbage.containers.iter().any(|other| other.id == removal.id) {
                garbage.containers.push(removal);
            }
        }
        garbage
    }

    /// True when the pod's start waits for objects that it references and that are not known yet. The wait is bounded by
    /// [`OBJECTS_PATIENCE`] while the pod has a sandbox: the API server may be unreachable, and the files of its volumes exist
    /// already. Without a sandbox, as after a reboot, they may not exist: the pod waits like a new one, until they are known.
    fn awaits_objects(&mut self, uid: &PodUid, plan: &Plan, deadline: Option<Mono>, now: Now) -> bool {
        // Objects without room are not watched: the status says so.
        let is_left_out = self.desired.pod(uid).is_some_and(|entry| entry.wanted.pod.too_many_objects);
        if plan.starts().is_empty() || is_left_out || !self.waits_for_objects(uid) {
            return false;
        }
        let Some(record) = self.records.get_mut(uid) else { return false };
        if plan.makes_sandbox() {
            record.objects_until = None;
        }
        let until = *record.objects_until.get_or_insert(now.mono + OBJECTS_PATIENCE);
        let waits = now.mono < until;
        if waits {
            record.worker.settled(Some(deadline.map_or(until, |deadline| deadline.min(until))));
        }
        waits
    }

    /// True when the checkpoint must be written before this work: the work removes the runtime's last record of a restart count,
    /// starts a debug container, or actuates a resize, and the file does not have it yet. The pod is planned again after the write.
    fn must_save_first(&self, uid: &PodUid, work: &Work, out: &mut Effects) -> bool {
        let (Some(record), saved) = (self.records.get(uid), &self.facts.saved) else { return false };
        // Does not wait when writing fails: then debugging is needed most.
        let is_unknown = work.starts_debugger() && record.debugger > saved.debuggers;
        let allocated = record.resizing.as_ref().map_or(0, |resizing| resizing.number);
        let is_unsaved_allocation = work.resizes() && allocated > saved.resizes;
        if !saved.failing && (is_unknown || is_unsaved_allocation) {
            out.push(Effect::AwaitSave(uid.clone()));
            return true;
        }
        let loses = record.worker.observed().is_some_and(|observed| work.loses_counts(observed));
        if !loses || self.statuses.revision_of(uid) <= saved.statuses {
            return false;
        }
        if saved.failing {
            // Nothing of the pod runs: starting it matters more than its restart count, which the log files may still have.
            if work.recreates() {
                return false;
            }
            let message = "its containers' records are not removed until the checkpoint can be written";
            self.ctx.note(record.worker.key(), EventKind::Warning, "CheckpointNotWritten", message);
        }
        out.push(Effect::AwaitSave(uid.clone()));
        true
    }

    /// Records an event when the sandbox gets the node's name servers because no cluster DNS is configured (`GetPodDNS`).
    fn note_missing_dns(&self, pod: &DesiredPod, out: &Effects) {
        let spec = pod.spec();
        let wants_cluster = match spec.dns_policy.as_deref() {
            None | Some("ClusterFirst") => spec.host_network != Some(true),
            Some(policy) => policy == "ClusterFirstWithHostNet",
        };
        let is_of_cluster = self.facts.room.is_of_cluster();
        if !is_of_cluster || !self.ctx.node.cluster_dns.is_empty() || !wants_cluster {
            return;
        }
        out.note_node(EventKind::Warning, "MissingClusterDNS", MISSING_DNS);
        let message = format!("pod: {}. {MISSING_DNS}", quoted(&pod.key.kubelet_format()));
        self.ctx.note(&pod.key, EventKind::Warning, "MissingClusterDNS", &message);
    }

    /// The update of a running pod's volumes, when their content may have changed.
    fn stale_volumes(&mut self, uid: &PodUid) -> Option<Work> {
        if self.waits_for_objects(uid) {
            return None;
        }
        let record = self.records.get_mut(uid)?;
        if !record.volumes_stale || !record.worker.observed()?.is_alive() {
            return None;
        }
        record.volumes_stale = false;
        let pod = record.worker.pod()?;
        let dir = paths::pod_dir(&self.ctx.node, &pod.key);
        let objects = self.desired.objects();
        let from = volume::files::Sources { pod, node: &self.ctx.node, objects: &objects };
        let (steps, errors) = volume::object_volumes(from, &dir);
        for error in errors {
            // The present files are kept.
            self.ctx.note(&pod.key, EventKind::Warning, "FailedMount", &error.0);
        }
        (!steps.is_empty()).then_some(Work::Refresh(steps))
    }

    /// Every start of the plan waits for its back-off: updates the status without a sync.
    fn show_waits(&mut self, uid: &PodUid, plan: &Plan, now: Now) {
        let mut room = self.start_failures_room();
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(pod) = record.worker.pod().cloned() else { return };
        for start in plan.starts() {
            if let StartWhen::Held { message, .. } = &start.when {
                let name = pod.container(start.kind, start.index).name;
                record.failures.set(
                    &Rc::from(name),
                    SyncError::CrashLoopBackOff.to_string(),
                    message,
                    &mut room,
                );
                let shown = format!(
                    "Back-off restarting failed container {name} in pod {}",
                    pod.key.kubelet_format()
                );
                let about = About::container(&pod.key, start.kind, name);
                self.ctx.note(about, EventKind::Warning, "BackOff", &shown);
            }
        }
        self.refresh_status(uid, now);
    }

    /// Starts the job as a task with a snapshot of the pod; its result is an [`Event::Job`].
    fn start(&mut self, uid: &PodUid, job: Job, work: Option<Work>, out: &mut Effects) {
        self.set_class_weight(uid, job, work.as_ref());
        let cgroups = self.cgroups.clone();
        let Some(record) = self.records.get_mut(uid) else { return };
        self.jobs += 1;
        let number = self.jobs;
        let (key, pod) = (record.worker.key().clone(), record.worker.pod().cloned());
        let observed = record.worker.observed().cloned().unwrap_or_default();
        let objects = self.desired.objects();
        // Decoded only for the jobs that need it.
        let status = if matches!(job, Job::Act | Job::Kill) { self.statuses.status(uid) } else { None };
        if job == Job::Kill {
            // Liveness and startup probes stop when the kill begins.
            record.update_probers(status.as_ref(), self.ctx.manager.clock.now());
        }
        let is_evicted = |status: &PodStatus| status.reason.as_deref() == Some("Evicted");
        let grace = status
            .as_ref()
            .is_some_and(is_evicted)
            .then_some(record.eviction_grace)
            .or(record.shutdown_grace);
        let grace = [grace, record.hurried].into_iter().flatten().min();
        // `calculateEffectiveGracePeriod`: a preStop hook always gets the minimum.
        let grace = grace.map(|grace| Seconds(grace.0.max(OVERRIDE_GRACE_SECONDS_MIN)));
        let mut ctx = self.ctx.clone();
        if job == Job::Act
            && let Some(status) = &status
        {
            ctx.least_counts = LeastCounts::new(next_restart_counts(status));
        }
        let (give_up, ends, asked) = GiveUp::new();
        record.overtaken = asked.overtaken.clone();
        if !record.awaited.is_empty() {
            // The observation that the plan was made from does not show the change yet.
            record.overtaken.tell();
        }
        ctx.give_up = asked;
        record.give_up = Some(give_up);
        record.ends = Some(ends);
        // Each future is boxed: the task is as large as the one it runs, not as the largest.
        let task = async move {
            let result = match (job, pod, work) {
                (Job::Read, ..) => {
                    JobResult::Read(Box::pin(pleg::read_pod(&*ctx.manager.runtime, &key)).await)
                }
                (Job::Act, Some(pod), Some(Work::Act(plan))) => JobResult::Done(
                    Box::pin(jobs::sync(&ctx, &cgroups, &pod, &observed, &objects, &plan)).await,
                ),
                (Job::Collect, _, Some(Work::Refresh(steps))) => {
                    let made = ctx.manager.blocking.run_for(&key.uid, move || volume::make(&steps)).await;
                    JobResult::Refreshed(made.map_err(String::from).and_then(|made| made.map_err(|e| e.0)))
                }
                (Job::Collect, _, Some(Work::Collect(garbage))) => {
                    JobResult::Removed(Box::pin(remove_garbage(&ctx, &key, &observed, &garbage)).await)
                }
                // Without work: nothing to do.
                (Job::Act | Job::Collect, ..) => JobResult::Done(Outcome::default()),
                (Job::Kill, pod, _) => {
                    JobResult::Done(Box::pin(kill_pod(&ctx, &key, pod.as_deref(), &observed, grace)).await)
                }
                (Job::CleanUp, ..) => {
                    JobResult::Removed(Box::pin(jobs::clean_up(&ctx, &cgroups, &key.uid)).await)
                }
                (Job::Remove, ..) => {
                    JobResult::Removed(Box::pin(jobs::remove(&ctx, &cgroups, &key, &observed)).await)
                }
            };
            Event::Job { uid: key.uid, job: number, result }
        };
        if job != Job::Read {
            record.has_collected = job == Job::Collect;
        }
        record.job = number;
        record.job_began = self.ctx.manager.clock.now().mono;
        record.worker.started(job);
        record.task = Some(out.keep("pod sync", poison::scoped(record.mark.clone(), task)));
    }

    /// Updates the CPU weight of the burstable QoS cgroup before a job that creates, resizes or removes a pod's cgroup.
    fn set_class_weight(&self, uid: &PodUid, job: Job, work: Option<&Work>) {
        let changes = match (job, work) {
            (Job::Act, Some(Work::Act(plan))) => plan.makes_sandbox() || !plan.resizes.is_empty(),
            (Job::CleanUp | Job::Remove, _) => true,
            (Job::Act | Job::Read | Job::Collect | Job::Kill, _) => false,
        };
        if !changes {
            return;
        }
        let goes = |of: &PodUid, record: &Record| {
            let job = if of == uid { Some(job) } else { record.worker.in_flight() };
            job == Some(Job::Remove)
        };
        let counts = |(of, record): &(&PodUid, &Record)| !goes(of, record) && !self.statuses.has_ended(of);
        let pods = self.records.iter().filter(counts);
        let milli_cpu = pods.filter_map(|(_, record)| Some(burstable_milli_cpu(record.worker.pod()?)));
        self.cgroups.set_burstable_milli_cpu(milli_cpu.fold(0, i64::saturating_add));
    }

    /// Number of further start failures that can be stored.
    pub(in crate::node) fn start_failures_room(&self) -> usize {
        let kept: usize = self.records.values().map(|record| record.failures.len()).sum();
        START_FAILURES_MAX.saturating_sub(kept)
    }

    /// Counts the container starts of a sync, except those in back-off (`kubelet_started_containers_total`).
    fn count_starts(&self, pod: &DesiredPod, outcome: &Outcome) {
        for (name, failure) in outcome.starts() {
            if failure.is_some_and(|failure| failure.error == SyncError::CrashLoopBackOff) {
                continue;
            }
            let kind = if pod.init_containers().iter().any(|container| container.name == **name) {
                ContainerKind::Init
            } else if pod.containers().iter().any(|container| container.name == **name) {
                ContainerKind::App
            } else {
                ContainerKind::Ephemeral
            };
            self.metrics.start(kind, failure.map(|failure| &failure.error));
        }
    }

    /// Applies the result of the pod's job, unless another job was started since.
    pub(in crate::node) fn job_ended(
        &mut self,
        uid: &PodUid,
        job: u64,
        result: JobResult,
        out: &mut Effects,
    ) {
        let now = self.ctx.manager.clock.now();
        let Some(record) = self.records.get_mut(uid).filter(|record| record.job == job) else { return };
        let Some(kind) = record.worker.in_flight() else { return };
        record.task = None;
        (record.give_up, record.ends) = (None, None);
        let _handling = poison::handling(Some(record.mark.clone()));
        match result {
            JobResult::Read(Ok(observed)) => self.read_ended(uid, observed, now, out),
            JobResult::Read(Err(error)) => {
                if !matches!(error, RuntimeError::Unavailable(_)) {
                    let key = record.worker.key();
                    self.ctx.note(key, EventKind::Warning, "FailedStatus", &error.to_string());
                }
                record.worker.read_failed(now.mono, RELIST_PERIOD);
            }
            JobResult::Done(outcome) => self.sync_ended(uid, kind, &outcome, now, out),
            JobResult::Refreshed(result) => {
                if let Err(error) = &result {
                    record.volumes_stale = true;
                    self.ctx.note(record.worker.key(), EventKind::Warning, "FailedMount", error);
                }
                record.worker.ended(result.map_err(|_| now.mono + SYNC_RETRY));
            }
            JobResult::Removed(result) => {
                if let Err(error) = &result {
                    self.ctx.note(record.worker.key(), EventKind::Warning, "FailedRemove", error);
                }
                record.worker.ended(result.map_err(|_| now.mono + SYNC_RETRY));
            }
        }
        self.queue_resize_retries();
        out.drive(uid);
    }

    /// A read ended: the observation replaces the last one.
    fn read_ended(&mut self, uid: &PodUid, mut observed: ObservedPod, now: Now, out: &mut Effects) {
        let Some(record) = self.records.get_mut(uid) else { return };
        out.push(Effect::RuntimeAnswered);
        pleg::fix_times(&mut observed, record.worker.observed().map(|old| &**old), now);
        let is_first = record.worker.observed().is_none();
        if is_first {
            if let Some(oldest) = record.found_running(&observed, now)
                && let Some(mut status) = self.statuses.status(uid)
            {
                status.start_time = time(oldest);
                self.statuses.put(uid, status);
            }
            record.probers.found(&observed);
        }
        record.agreement.at = record.job_began;
        self.retry_resizes |= record.note_sizes(&self.ctx.node, &mut observed);
        let observed = Rc::new(observed);
        record.worker.read(observed.clone(), now.mono);
        if is_first
            && observed.is_alive()
            && let Some(pod) = record.worker.pod()
        {
            self.ctx.manager.network.found(pod, &addresses(&self.ctx, pod, &observed));
        }
        self.report_running_logs(uid);
        self.reads += 1;
        out.push(Effect::WasRead(uid.clone()));
        out.push(Effect::RefreshStatus(uid.clone()));
    }

    /// A sync or a kill ended: records its failures and back-offs, and when the worker tries again.
    fn sync_ended(&mut self, uid: &PodUid, kind: Job, outcome: &Outcome, now: Now, out: &mut Effects) {
        let room = self.start_failures_room();
        let Some(record) = self.records.get_mut(uid) else { return };
        for attempt in &outcome.attempts {
            self.backoff.next(attempt.crash.key, attempt.crash.finished, attempt.at);
        }
        record.failures.update(outcome, room);
        if outcome.found_no_space() {
            out.push(Effect::NoSpace(uid.clone()));
        }
        if outcome.sandbox.is_some() || outcome.starts().any(|(_, failure)| failure.is_none()) {
            out.push(Effect::StartedSomething);
        }
        let (key, pod) = (record.worker.key().clone(), record.worker.pod().cloned());
        record.worker.ended(retry(outcome, now));
        if let Some(pod) = pod {
            self.count_starts(&pod, outcome);
        }
        self.resized(uid, outcome, now);
        self.reject_not_admitted(uid, outcome);
        if kind == Job::Kill {
            self.note_late_kill(uid, now);
        }
        // In a sync too, where the kubelet has `FailedSync`: until the sandbox of before has ended nothing starts.
        if (kind == Job::Kill || outcome.failed_to_kill())
            && let Some(error) = outcome.error()
        {
            self.ctx.note(&key, EventKind::Warning, "FailedKillPod", &error);
        }
        self.refresh_status(uid, now);
    }

    /// Records an event when the kill of an evicted pod took longer than its grace period allows (`killPodNow`).
    fn note_late_kill(&self, uid: &PodUid, now: Now) {
        let Some(record) = self.records.get(uid) else { return };
        let is_evicted =
            self.statuses.status(uid).is_some_and(|status| status.reason.as_deref() == Some(EVICTED));
        let grace = u64::try_from(record.eviction_grace.0).unwrap_or_default();
        let patience = Duration::from_secs(grace.saturating_add(grace / 2)).max(KILL_PATIENCE_MIN);
        if is_evicted && now.mono.since(record.job_began) > patience {
            let message = "Container runtime did not kill the pod within specified grace period.";
            self.ctx.note(record.worker.key(), EventKind::Warning, "ExceededGracePeriod", message);
        }
    }

    /// Rejects a pod of the API server that this node's runtime cannot run, since the kubelet would not admit it: its controller
    /// creates another pod. A static pod is retried instead.
    fn reject_not_admitted(&mut self, uid: &PodUid, outcome: &Outcome) {
        let refusal = outcome.starts().find_map(|(_, failure)| match failure {
            Some(Failure { error: SyncError::Refused(reason), message, .. })
                if NOT_ADMITTED.contains(reason) =>
            {
                Some((*reason, message))
            }
            Some(_) | None => None,
        });
        let Some((reason, message)) = refusal else { return };
        let Some(record) = self.records.get(uid) else { return };
        let is_api = record.worker.pod().is_some_and(|pod| pod.pod.is_of_api_server());
        if !is_api || record.worker.life() != Life::Syncing {
            return;
        }
        let message = format!("Pod was rejected: {message}");
        self.reject_pod(uid, reason.to_owned(), message);
    }

    /// Drops the record of a pod of which nothing is left, and starts the pods that waited for its name or its place.
    fn forget(&mut self, uid: &PodUid, out: &mut Effects) {
        let Some(mut record) = self.records.remove(uid) else { return };
        let key = record.worker.key().clone();
        log::info!("pod {key}: terminated, all its resources are removed");
        let (revision, status) = (self.statuses.revision_of(uid), self.statuses.status(uid));
        out.push(Effect::Forgotten(Box::new(Forgotten { uid: uid.clone(), revision, status })));
        self.queue_resize_retries();
        self.forget_status(uid);
        self.report_running_logs(uid);
        if let Some(relist) = &mut self.relist {
            relist.pods.remove(uid);
        }
        out.push(Effect::LocalPods);
        self.identity_changed |= self.identity.release(uid);
        self.reported_held.remove(uid);
        let mut touched = SortedSet::new();
        if let Some(pod) = record.worker.take_readded() {
            // A new pod with the same UID begins without back-offs.
            for container in pod.init_containers().iter().chain(pod.containers()) {
                self.backoff.forget(BackoffKey::container(&pod, container));
            }
            for image in pod.images() {
                self.ctx.manager.images.forget(&pod.key.uid, image);
            }
            self.insert(pod, record.file, out);
            touched.insert(key.uid);
        } else {
            touched.extend(self.take_next_waiting(out));
        }
        self.free_names(&mut touched);
        self.fit_waiting_probers();
        for uid in touched {
            out.drive(&uid);
        }
    }
}

/// The instant `spec.activeDeadlineSeconds` ends.
fn active_deadline(pod: &DesiredPod, since: Option<Mono>) -> Option<Mono> {
    let seconds = u64::try_from(pod.spec().active_deadline_seconds?).ok()?;
    Some(since? + Duration::from_secs(seconds))
}

/// The plan ends a pod of which nothing runs: nothing is left to do.
fn has_ended(plan: &Plan, observed: &ObservedPod) -> bool {
    matches!(&plan.action, PodAction::End { debuggers, .. } if debuggers.is_empty()) && !observed.is_alive()
}

/// The plan only waits for back-offs.
fn only_waits(plan: &Plan) -> bool {
    let PodAction::Keep { kills, starts, .. } = &plan.action else { return false };
    kills.is_empty()
        && plan.prunes.is_empty()
        && plan.resizes.is_empty()
        && !starts.is_empty()
        && starts.iter().all(|start| matches!(start.when, StartWhen::Held { .. }))
}

/// The plan only starts again what has failed to start.
fn only_retries(plan: &Plan, pod: &DesiredPod, failures: &StartFailures) -> bool {
    let PodAction::Keep { kills, starts, .. } = &plan.action else { return false };
    let has_failed = |start: &Start| {
        matches!(start.when, StartWhen::Held { .. })
            || failures.of(pod.container(start.kind, start.index).name).is_some()
    };
    kills.is_empty() && plan.prunes.is_empty() && plan.resizes.is_empty() && starts.iter().all(has_failed)
}

/// `Err`: when a failed sync is retried, at the end of its back-offs, else after [`SYNC_RETRY`].
fn retry(outcome: &Outcome, now: Now) -> Result<(), Mono> {
    if outcome.is_ok() {
        return Ok(());
    }
    let failures = outcome.results.iter().filter_map(|result| result.failure.as_ref());
    // containerd's error after RunPodSandbox was cut off by the end of the agent or of the connection.
    let retry_at = if failures.clone().any(|failure| failure.message.contains("is reserved for")) {
        now.mono + NAME_RESERVED_RETRY
    } else {
        now.mono + SYNC_RETRY
    };
    let wake_at = outcome.wake_at();
    let pulled = |failure: &Failure| match failure.error {
        SyncError::Image(problem) => problem.is_of_a_pull(),
        _ => false,
    };
    Err(if outcome.only_waits() && failures.clone().any(pulled) {
        // An earlier sync, so that the status shows ImagePullBackOff.
        let shown = now.mono + PULL_ERROR_SHOWN;
        wake_at.map_or(shown, |at| at.min(shown))
    } else if outcome.only_waits() {
        wake_at.unwrap_or(retry_at)
    } else {
        wake_at.map_or(retry_at, |at| at.min(retry_at))
    })
}
