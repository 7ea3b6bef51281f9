//! The loop's state and what each event does to it.
//!
//! ```text
//!     source update ─► desired ─► records (workers) ─► drive: read ─► status ─► plan ─► act ─► read …
//!     relist ─► what changed ─► touched records ─► drive
//! ```
//!
//! Everything here runs on the loop's thread between two awaits; what takes time is a task (`jobs`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smol::LocalExecutor;
use smol::channel::Sender;

use super::disk::Disk;
use super::jobs;
use super::record::{Record, Seen};
use crate::cgroup::Cgroups;
use crate::cri::{Runtime, RuntimeError, RuntimeResult};
use crate::desired::{Change, Desired};
use crate::events::{EventKind, EventRing};
use crate::gc::{GcPlan, collect_pod};
use crate::limits::{
    HELD_PODS_TOLD_MAX, PULL_ERROR_SHOWN, RELIST_PERIOD, RELIST_RETRY_MAX, STATUS_PASSES_MAX, SYNC_RETRY,
};
use crate::model::{DesiredPod, Mono, Now, ObservedPod, PodKey, PodUid, Wall};
use crate::pleg::{self, Interest, Relist, RelistPod};
use crate::source::SourceUpdate;
use crate::status::{self, StatusInput, merge};
use crate::store::identity::Identity;
use crate::sync::Probes;
use crate::sync::act::{ActContext, GiveUp};
use crate::sync::backoff::{Backoff, BackoffKey};
use crate::sync::kill::{kill_pod, remove_garbage};
use crate::sync::outcome::{Failure, Outcome, SyncError};
use crate::sync::plan::{Plan, PlanInput, PodAction, StartWhen, plan};
use crate::sync::worker::{Job, Life, Step, Worker};

/// What a task brings to the loop.
pub(super) enum Event {
    /// A source's full set.
    Source(SourceUpdate),
    /// A relist ended.
    Relisted(RuntimeResult<Relist>),
    /// A pod's job ended; the number tells whose.
    Job { uid: PodUid, job: u64, result: JobResult },
    /// The disk was cleared of pods that are gone.
    Swept,
    /// A write of the identity file ended.
    IdentityWritten(std::io::Result<()>),
    /// Somebody asks on the local socket.
    Query(crate::server::Query),
    /// SIGTERM or SIGINT.
    Stop,
}

/// How a pod's job ended.
pub(super) enum JobResult {
    Read(RuntimeResult<ObservedPod>),
    /// Of an act or a kill.
    Done(Outcome),
    Removed(Result<(), String>),
}

/// The node's state; one loop owns it.
pub(super) struct Agent<R> {
    pub(super) ctx: ActContext<R>,
    pub(super) executor: Rc<LocalExecutor<'static>>,
    pub(super) events: Sender<Event>,
    pub(super) cgroups: Rc<Cgroups>,
    pub(super) identity: Identity,
    pub(super) runtime_name: Box<str>,
    pub(super) started: Wall,
    pub(super) host_ips: Vec<IpAddr>,
    pub(super) desired: Desired,
    pub(super) records: BTreeMap<PodUid, Record>,
    pub(super) ring: Rc<RefCell<EventRing>>,
    backoff: Backoff,
    pub(super) relist: Option<Relist>,
    /// Waits for the first relist: of two manifests that name one pod, the running one stays.
    early_update: Option<SourceUpdate>,
    relist_at: Option<Mono>,
    relist_failures: u32,
    jobs: u64,
    told_held: BTreeSet<PodUid>,
    pub(super) disk: Disk,
}

/// What a job carries out.
enum Work {
    Act(Plan),
    Collect(GcPlan),
}

impl<R: Runtime + 'static> Agent<R> {
    #[expect(clippy::too_many_arguments, reason = "called once, by the wiring")]
    pub(super) fn new(
        ctx: ActContext<R>,
        executor: Rc<LocalExecutor<'static>>,
        events: Sender<Event>,
        cgroups: Rc<Cgroups>,
        identity: Identity,
        runtime_name: Box<str>,
        ring: Rc<RefCell<EventRing>>,
        longest_wait: Duration,
    ) -> Self {
        let now = ctx.clock.now();
        let host_ips = ctx.node.node_ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        Self {
            ctx,
            executor,
            events,
            cgroups,
            identity,
            runtime_name,
            started: now.wall,
            host_ips,
            desired: Desired::new(&[crate::source::file::NAME]),
            records: BTreeMap::new(),
            ring,
            backoff: Backoff::new(now.mono, longest_wait),
            relist: None,
            early_update: None,
            relist_at: Some(now.mono),
            relist_failures: 0,
            jobs: 0,
            told_held: BTreeSet::new(),
            disk: Disk::default(),
        }
    }

    /// The next instant at which something is to be done without an event.
    pub(super) fn due(&self) -> Option<Mono> {
        self.records.values().filter_map(|record| record.worker.due()).chain(self.relist_at).min()
    }

    /// Does what is due. Called after every event and timer.
    pub(super) fn turn(&mut self) {
        let now = self.ctx.clock.now();
        if self.relist_at.is_some_and(|at| at <= now.mono) {
            self.start_relist();
        }
        let due: Vec<PodUid> = self
            .records
            .iter()
            .filter(|(_, record)| record.worker.due().is_some_and(|at| at <= now.mono))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in due {
            self.drive(&uid);
        }
    }

    /// Takes one event; queries and the stop are the loop's own.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Source(update) => self.source(update),
            Event::Relisted(result) => self.relisted(result),
            Event::Job { uid, job, result } => self.job_ended(&uid, job, result),
            Event::Query(query) => self.answer(&query),
            Event::IdentityWritten(result) => self.identity_written(result),
            Event::Swept => self.sweep_ended(),
            Event::Stop => {}
        }
    }

    // ---- sources -----------------------------------------------------------------------------------------

    fn source(&mut self, update: SourceUpdate) {
        for problem in update.problems.iter().filter(|problem| problem.fresh) {
            log::warn!("{problem}");
        }
        if self.relist.is_none() {
            self.early_update = Some(update);
        } else {
            self.apply(update);
        }
    }

    fn apply(&mut self, update: SourceUpdate) {
        let relist = self.relist.as_ref();
        let changes = self.desired.apply(update, |uid| relist.is_some_and(|r| r.pods.contains_key(uid)));
        for problem in self.desired.merge_problems().filter(|problem| problem.fresh) {
            log::warn!("{problem}");
        }
        let now = self.ctx.clock.now();
        let mut touched = BTreeSet::new();
        let mut wanted = Vec::new();
        for change in changes {
            match change {
                Change::Removed(key) => {
                    log::info!("pod {key}: its manifest is gone; it ends");
                    touched.insert(key.uid.clone());
                    self.unwant(&key.uid, now);
                }
                Change::Changed(pod) | Change::Added(pod) => wanted.push(pod),
            }
        }
        // Before what is new begins: it may have to wait for one of them.
        self.end_orphans(&mut touched);
        for pod in wanted {
            touched.insert(pod.key.uid.clone());
            self.want(pod);
        }
        for uid in touched {
            self.drive(&uid);
        }
    }

    fn want(&mut self, pod: DesiredPod) {
        let uid = pod.key.uid.clone();
        let file = self.desired.pod(&uid).map(|entry| entry.wanted.origin.file.clone());
        let pod = Rc::new(pod);
        if let Some(record) = self.records.get_mut(&uid) {
            record.worker.want(pod);
            record.file = file;
            // A pull that hangs on the old image must not hold up the new one.
            record.give_up = None;
        } else {
            self.insert(pod, file);
        }
    }

    fn insert(&mut self, pod: Rc<DesiredPod>, file: Option<Arc<str>>) {
        let uid = pod.key.uid.clone();
        let waits = self.must_wait(&pod.key);
        self.records.insert(uid.clone(), Record::new(Worker::wanted(pod, waits), file));
        let now = self.ctx.clock.now();
        self.refresh_status(&uid, now);
    }

    /// Another pod of this name is still here, or the sweep might take the pod's directory for a leftover.
    fn must_wait(&self, key: &PodKey) -> bool {
        self.name_taken(key) || self.disk.spared.as_ref().is_some_and(|spared| !spared.contains(&key.uid))
    }

    /// Another pod of this name is still here, in hand or only in the runtime.
    fn name_taken(&self, key: &PodKey) -> bool {
        let other = |of: &PodKey| same_name(of, key) && of.uid != key.uid;
        let in_hand = |record: &Record| record.worker.life() != Life::Waiting && other(record.worker.key());
        let runs = |relist: &Relist| {
            let ours = |uid: &PodUid, pod: &RelistPod| pod.made_here || self.identity.adopted().contains(uid);
            relist.pods.iter().any(|(uid, pod)| other(&pod.key) && ours(uid, pod))
        };
        self.records.values().any(in_hand) || self.relist.as_ref().is_some_and(runs)
    }

    /// Pods that waited for their name to be free, and need not any more, begin.
    pub(super) fn free_names(&mut self, touched: &mut BTreeSet<PodUid>) {
        let waiting = |record: &&Record| record.worker.life() == Life::Waiting;
        let keys: Vec<PodKey> =
            self.records.values().filter(waiting).map(|record| record.worker.key().clone()).collect();
        for key in keys {
            if !self.must_wait(&key)
                && let Some(record) = self.records.get_mut(&key.uid)
            {
                record.worker.name_is_free();
                touched.insert(key.uid);
            }
        }
    }

    fn unwant(&mut self, uid: &PodUid, now: Now) {
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.unwant();
            record.unwanted_at.get_or_insert(now.wall);
            // As the kubelet cancels the sync of a pod that is to end. What a call does later all the same goes
            // with the sandbox, or is found as an orphan.
            if record.worker.in_flight() == Some(Job::Act) {
                record.task = None;
                record.worker.cancelled();
            }
        }
    }

    /// Pods of ours in the runtime that nothing wants any more.
    fn end_orphans(&mut self, touched: &mut BTreeSet<PodUid>) {
        self.sweep();
        let Some(relist) = &self.relist else { return };
        let ours = relist.pods.iter().filter(|(uid, pod)| {
            (pod.made_here || self.identity.adopted().contains(*uid)) && !self.records.contains_key(*uid)
        });
        let ours: Vec<PodKey> = ours.map(|(_, pod)| pod.key.clone()).collect();
        let now = self.ctx.clock.now();
        for key in ours {
            if self.desired.may_terminate(&key) {
                log::info!("pod {key}: runs, and no manifest names it; it ends");
                let mut record = Record::new(Worker::orphan(key.clone()), None);
                record.unwanted_at = Some(now.wall);
                self.records.insert(key.uid.clone(), record);
                touched.insert(key.uid);
            } else if self.desired.pod(&key.uid).is_none() && !self.told_held.contains(&key.uid) {
                if self.told_held.len() == HELD_PODS_TOLD_MAX {
                    self.told_held.clear();
                }
                self.told_held.insert(key.uid.clone());
                log::warn!(
                    "pod {key}: no valid manifest names it; it runs on until all manifests can be read"
                );
            }
        }
    }

    // ---- the runtime -------------------------------------------------------------------------------------

    fn start_relist(&mut self) {
        self.relist_at = None;
        for record in self.records.values_mut().filter(|record| record.seen == Seen::BeforeOurJob) {
            record.seen = Seen::Asked;
        }
        let mut uids: BTreeSet<PodUid> = self.records.keys().cloned().collect();
        uids.extend(self.identity.adopted().iter().cloned());
        let interest = Interest { node: Rc::from(self.identity.node_name()), uids };
        let (runtime, events) = (self.ctx.runtime.clone(), self.events.clone());
        let task = async move {
            let result = pleg::relist(&*runtime, &interest).await;
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Relisted(result)).await;
        };
        self.executor.spawn(task).detach();
    }

    fn relisted(&mut self, result: RuntimeResult<Relist>) {
        let now = self.ctx.clock.now();
        let relist = match result {
            Ok(relist) => relist,
            Err(error) => {
                if self.relist_failures == 0 {
                    log::warn!("the runtime does not answer: {error}; its pods run on, trying again");
                }
                self.relist_failures = self.relist_failures.saturating_add(1);
                let wait = RELIST_PERIOD * 2_u32.saturating_pow(self.relist_failures.min(10) - 1);
                self.relist_at = Some(now.mono + wait.min(RELIST_RETRY_MAX));
                return;
            }
        };
        self.relist_at = Some(now.mono + RELIST_PERIOD);
        // As the kubelet with each `HandlePodCleanups`.
        self.backoff.collect(now.mono);
        let mut touched = BTreeSet::new();
        if std::mem::take(&mut self.relist_failures) > 0 {
            log::info!("the runtime answers again");
            for (uid, record) in &mut self.records {
                record.worker.runtime_is_back();
                touched.insert(uid.clone());
            }
        }
        let before = self.relist.replace(relist).unwrap_or_default();
        if let Some(relist) = &self.relist {
            if before.foreign_sandboxes != relist.foreign_sandboxes {
                log::info!(
                    "{} sandboxes in the runtime are not this node's; left alone",
                    relist.foreign_sandboxes
                );
            }
            for uid in pleg::changed(&before, relist) {
                if let Some(record) = self.records.get_mut(uid) {
                    record.worker.touched();
                    touched.insert(uid.clone());
                }
            }
            let taken_over =
                |(uid, pod): &(&PodUid, &RelistPod)| !pod.made_here && self.desired.pod(uid).is_some();
            for (uid, _) in relist.pods.iter().filter(taken_over) {
                self.disk.changed |= self.identity.adopt(uid);
            }
        }
        self.write_identity();
        for (uid, record) in self.records.iter_mut().filter(|(_, record)| record.seen == Seen::Asked) {
            record.seen = Seen::Relisted;
            record.worker.touched();
            touched.insert(uid.clone());
        }
        if let Some(update) = self.early_update.take() {
            self.apply(update);
        }
        self.end_orphans(&mut touched);
        self.free_names(&mut touched);
        for uid in touched {
            self.drive(&uid);
        }
    }

    // ---- one pod -----------------------------------------------------------------------------------------

    /// Moves a pod on until it waits for a job, a time or an event.
    pub(super) fn drive(&mut self, uid: &PodUid) {
        loop {
            let now = self.ctx.clock.now();
            let Some(record) = self.records.get_mut(uid) else { return };
            match record.worker.next(now.mono) {
                None => {
                    if record.worker.life() == Life::Ended {
                        self.show_ended(uid, now);
                    }
                    return;
                }
                Some(Step::Start(job)) => return self.start(uid, job, None),
                Some(Step::Forget) => return self.forget(uid),
                Some(Step::Plan) => {
                    if let Some(work) = self.plan(uid, now) {
                        let job = if matches!(work, Work::Act(_)) { Job::Act } else { Job::Collect };
                        return self.start(uid, job, Some(work));
                    }
                }
            }
        }
    }

    /// What to carry out; `None` when the pod is settled or has ended.
    fn plan(&mut self, uid: &PodUid, now: Now) -> Option<Work> {
        let record = self.records.get(uid)?;
        let deadline = active_deadline(record.worker.pod()?, record.active_since);
        if deadline.is_some_and(|at| at <= now.mono) {
            // Time alone changed it: the status says now that the pod has failed.
            self.refresh_status(uid, now);
        }
        let record = self.records.get_mut(uid)?;
        let (pod, observed) = (record.worker.pod()?.clone(), record.worker.observed()?.clone());
        let status = record.status.as_ref();
        if matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed")) {
            record.worker.finished();
            return None;
        }
        let restart_all = status.and_then(|s| s.conditions.as_ref()).is_some_and(|conditions| {
            conditions.iter().any(|c| c.type_ == "AllContainersRestarting" && c.status == "True")
        });
        let input = PlanInput {
            pod: &pod,
            observed: &observed,
            // Probes are refused at the source.
            probes: &Probes::default(),
            backoff: &self.backoff,
            now,
            restart_all,
        };
        let plan = plan(&input);
        let deadline = deadline.filter(|at| *at > now.mono);
        let wake_at = [plan.wake_at, deadline].into_iter().flatten().min();
        let waits = only_waits(&plan);
        if !plan.is_idle() && !waits && !has_ended(&plan, &observed) {
            // It is made again after the act, whatever comes of that.
            record.worker.settled(None);
            return Some(Work::Act(plan));
        }
        record.worker.settled(wake_at);
        if waits {
            self.show_waits(uid, &plan, now);
        }
        let garbage = collect_pod(&pod.key, &observed, now);
        (!garbage.is_empty()).then_some(Work::Collect(garbage))
    }

    /// Every start of the plan is held in its back-off: the status says so, and nothing is called.
    fn show_waits(&mut self, uid: &PodUid, plan: &Plan, now: Now) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(pod) = record.worker.pod().cloned() else { return };
        for start in plan.starts() {
            if let StartWhen::Held { message, .. } = &start.when {
                let name = pod.container_name(start.kind, start.index);
                record.failures.set(
                    &Rc::from(name),
                    SyncError::CrashLoopBackOff.to_string(),
                    message.clone(),
                );
                let shown = format!(
                    "Back-off restarting failed container {name} in pod {}",
                    pod.key.kubelet_format()
                );
                (self.ctx.notes)(&pod.key, EventKind::Warning, "BackOff", &shown);
            }
        }
        self.refresh_status(uid, now);
    }

    fn start(&mut self, uid: &PodUid, job: Job, work: Option<Work>) {
        let Some(record) = self.records.get_mut(uid) else { return };
        self.jobs += 1;
        let number = self.jobs;
        let (key, pod) = (record.worker.key().clone(), record.worker.pod().cloned());
        let observed = record.worker.observed().cloned().unwrap_or_default();
        let (mut ctx, cgroups, events) = (self.ctx.clone(), self.cgroups.clone(), self.events.clone());
        let (give_up, asked) = GiveUp::new();
        ctx.give_up = asked;
        record.give_up = Some(give_up);
        let task = async move {
            let result = match (job, pod, work) {
                (Job::Read, ..) => JobResult::Read(pleg::read_pod(&*ctx.runtime, &key).await),
                (Job::Act, Some(pod), Some(Work::Act(plan))) => {
                    JobResult::Done(jobs::sync(&ctx, &pod, &observed, &plan).await)
                }
                (Job::Collect, _, Some(Work::Collect(garbage))) => {
                    JobResult::Removed(remove_garbage(&ctx, &key, &observed, &garbage).await)
                }
                // Without its work there is nothing to carry out.
                (Job::Act | Job::Collect, ..) => JobResult::Done(Outcome::default()),
                (Job::Kill, pod, _) => {
                    JobResult::Done(kill_pod(&ctx, &key, pod.as_deref(), &observed, None).await)
                }
                (Job::Remove, ..) => JobResult::Removed(jobs::remove(&ctx, &cgroups, &key, &observed).await),
            };
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Job { uid: key.uid, job: number, result }).await;
        };
        record.job = number;
        record.worker.started(job);
        record.task = Some(self.executor.spawn(task));
    }

    fn job_ended(&mut self, uid: &PodUid, job: u64, result: JobResult) {
        let now = self.ctx.clock.now();
        let Some(record) = self.records.get_mut(uid).filter(|record| record.job == job) else { return };
        let Some(kind) = record.worker.in_flight() else { return };
        record.task = None;
        match result {
            JobResult::Read(Ok(mut observed)) => {
                pleg::fix_times(&mut observed, record.worker.observed().map(|old| &**old), now);
                if record.worker.observed().is_none() {
                    record.found_running(&observed, now);
                }
                record.worker.read(Rc::new(observed), now.mono);
                self.refresh_status(uid, now);
            }
            JobResult::Read(Err(error)) => {
                let key = record.worker.key();
                if !matches!(error, RuntimeError::Unavailable(_)) {
                    (self.ctx.notes)(key, EventKind::Warning, "FailedStatus", &error.to_string());
                }
                record.worker.read_failed(now.mono, RELIST_PERIOD);
            }
            JobResult::Done(outcome) => {
                for attempt in &outcome.attempts {
                    self.backoff.next(attempt.crash.key, attempt.crash.finished, attempt.at);
                }
                record.failures.learn(&outcome);
                record.seen = Seen::BeforeOurJob;
                let key = record.worker.key().clone();
                record.worker.ended(retry(&outcome, now));
                if let Some(error) = outcome.error().filter(|_| kind == Job::Kill) {
                    (self.ctx.notes)(&key, EventKind::Warning, "FailedKillPod", &error);
                }
                self.refresh_status(uid, now);
            }
            JobResult::Removed(result) => {
                if let Err(error) = &result {
                    (self.ctx.notes)(record.worker.key(), EventKind::Warning, "FailedRemove", error);
                }
                record.worker.ended(result.map_err(|_| now.mono + SYNC_RETRY));
            }
        }
        self.drive(uid);
    }

    /// Drops a record of which nothing is left; who waited for its name, or for its end, begins.
    fn forget(&mut self, uid: &PodUid) {
        let Some(mut record) = self.records.remove(uid) else { return };
        let key = record.worker.key().clone();
        log::info!("pod {key}: ended, nothing of it is left");
        if let Some(relist) = &mut self.relist {
            relist.pods.remove(uid);
        }
        self.disk.changed |= self.identity.release(uid);
        self.write_identity();
        self.told_held.remove(uid);
        let mut touched = BTreeSet::new();
        if let Some(pod) = record.worker.take_afresh() {
            // The history went with the record; the waits go too.
            for container in pod.init_containers().iter().chain(pod.containers()) {
                self.backoff.forget(BackoffKey::container(&pod, container));
            }
            self.insert(pod, record.file);
            touched.insert(key.uid);
        }
        self.free_names(&mut touched);
        for uid in touched {
            self.drive(&uid);
        }
    }

    // ---- status ------------------------------------------------------------------------------------------

    /// Takes the pod's status from what was last seen. A status leans on the one before it (a sidecar's `started`
    /// there decides the phase here), and after this there may be nothing to compute it for a long time: so it is
    /// computed until it stands still. The kubelet gets there with its next syncs.
    fn refresh_status(&mut self, uid: &PodUid, now: Now) {
        for _ in 0..STATUS_PASSES_MAX {
            if !self.status_pass(uid, now) {
                return;
            }
        }
    }

    /// True when the status changed.
    fn status_pass(&mut self, uid: &PodUid, now: Now) -> bool {
        let Some(record) = self.records.get_mut(uid) else { return false };
        let Some(pod) = record.worker.pod().cloned() else { return false };
        let nothing = ObservedPod::default();
        let observed = record.worker.observed().cloned();
        let input = StatusInput {
            pod: &pod.pod,
            observed: observed.as_deref().unwrap_or(&nothing),
            previous: record.status.as_ref(),
            facts: &record.failures,
            is_terminal: !matches!(record.worker.life(), Life::Waiting | Life::Syncing),
            active_for: record.active_since.map(|since| now.mono.since(since)),
            pod_cgroup: None,
            agent_start: self.started,
            host_ips: &self.host_ips,
            ipv6_first: false,
            runtime_name: &self.runtime_name,
            recursive_read_only: false,
        };
        let fresh = status::pod_status(&input);
        match merge::update(&pod.pod, record.status.as_ref(), fresh, now.wall) {
            Ok(None) => false,
            Ok(Some(status)) => {
                if status.start_time.is_some() {
                    record.active_since.get_or_insert(now.mono);
                }
                record.status = Some(status);
                true
            }
            Err(error) => {
                log::error!("pod {}: status not shown: {error}", pod.key);
                false
            }
        }
    }

    fn show_ended(&mut self, uid: &PodUid, now: Now) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(pod) = record.worker.pod().cloned() else { return };
        if let Ok(status) = merge::terminate(&pod.pod, record.status.as_ref(), now.wall) {
            record.status = Some(status);
        }
    }
}

fn same_name(a: &PodKey, b: &PodKey) -> bool {
    a.namespace == b.namespace && a.name == b.name
}

/// The instant `spec.activeDeadlineSeconds` ends.
fn active_deadline(pod: &DesiredPod, since: Option<Mono>) -> Option<Mono> {
    let seconds = u64::try_from(pod.spec().active_deadline_seconds?).ok()?;
    Some(since? + Duration::from_secs(seconds))
}

/// The plan ends a pod in which nothing lives: that was done already.
fn has_ended(plan: &Plan, observed: &ObservedPod) -> bool {
    matches!(&plan.action, PodAction::End { debuggers, .. } if debuggers.is_empty()) && !observed.is_alive()
}

/// Nothing is to do but to wait for back-offs.
fn only_waits(plan: &Plan) -> bool {
    let PodAction::Keep { kills, starts, .. } = &plan.action else { return false };
    kills.is_empty()
        && plan.prunes.is_empty()
        && !starts.is_empty()
        && starts.iter().all(|start| matches!(start.when, StartWhen::Held { .. }))
}

/// When a sync that did not go well is tried again: at the end of its back-offs, else after the usual time.
fn retry(outcome: &Outcome, now: Now) -> Result<(), Mono> {
    if outcome.is_ok() {
        return Ok(());
    }
    let usual = now.mono + SYNC_RETRY;
    let wake_at = outcome.wake_at();
    let pulled = |failure: &Failure| match failure.error {
        SyncError::Image(problem) => problem.is_of_a_pull(),
        _ => false,
    };
    let failures = outcome.results.iter().filter_map(|result| result.failure.as_ref());
    Err(if outcome.only_waits() && failures.clone().any(pulled) {
        // A sync in between, to show ImagePullBackOff.
        let shown = now.mono + PULL_ERROR_SHOWN;
        wake_at.map_or(shown, |at| at.min(shown))
    } else if outcome.only_waits() {
        wake_at.unwrap_or(usual)
    } else {
        wake_at.map_or(usual, |at| at.min(usual))
    })
}
