//! PURE: the state machine of one pod on this node (kubelet `pod_workers.go`), as a record instead of a task.
//!
//! ```text
//!             name still taken            all containers done
//!   Waiting ─────────────────► Syncing ──────────────────────► Ending(Finished) ──► Ended
//!                                 │  manifest gone                     │              │ manifest gone
//!                                 └────────────► Ending(Unwanted) ◄────┘              │
//!                                                       │ all stopped                 │
//!                                                       └────────► Removing ◄─────────┘
//!                                                                     │ nothing left
//!                                                                     ▼ (gone; desired again: a new record)
//! ```
//!
//! A pod that was evicted because its node was short of a resource is removed once it has ended; its record stays until no
//! source has the pod any more.
//!
//! At most one job per pod is in flight. Nothing is decided from an observation older than the last job.

use std::rc::Rc;
use std::time::Duration;

use crate::limits::UNCHANGED_RETRY;
use crate::model::{DesiredPod, Mono, ObservedPod, PodKey};

/// Why a pod is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its containers have completed and none restarts: the dead ones are kept for their logs.
    Finished,
    /// No source has it any more: everything of it is removed.
    Unwanted,
}

/// The pod's state in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Waits for a pod of the same name and another UID to end.
    Waiting,
    /// Kept in its desired state (`SyncPod`).
    Syncing,
    /// Being stopped (`SyncTerminatingPod`).
    Ending(Why),
    /// Completed; its dead containers stay until its manifest is removed, its volumes do not (`SyncTerminatedPod`).
    Ended,
    /// Stopped; its objects are being removed from the runtime and the disk.
    Removing,
}

/// The next action for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start a task with this job.
    Start(Job),
    /// Compare desired and observed state and plan, at once, without a task. Results in a [`Job::Act`], or in
    /// [`Worker::settled`].
    Plan,
    /// Forget the record; nothing is left of the pod.
    Forget,
}

/// A task's job for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Read its full status from the runtime.
    Read,
    /// Execute the plan.
    Act,
    /// Stop its containers and sandboxes.
    Kill,
    /// Remove its unused dead containers and sandboxes while the pod runs.
    Collect,
    /// Remove what an ended pod no longer needs: volumes, cgroups, its range of user ids (`SyncTerminatedPod`). The
    /// containers that its logs and its status are read from stay.
    CleanUp,
    /// Remove its objects from the runtime and the disk.
    Remove,
}

/// One pod's record.
#[derive(Debug)]
pub struct Worker {
    key: PodKey,
    /// The desired pod, or the last one desired; `None` for a pod that only the runtime knows.
    pod: Option<Rc<DesiredPod>>,
    /// The pod that a source added again while this one ends; starts when this one is removed.
    readded: Option<Rc<DesiredPod>>,
    life: Life,
    in_flight: Option<Job>,
    observed: Option<Rc<ObservedPod>>,
    /// The runtime or a job changed something since the last read.
    stale: bool,
    /// The next read shows the effect of smolet's own job, which is no reason to shorten a failed one's retry delay.
    after_job: bool,
    /// The desired pod changed since the last job other than a read began.
    asked_anew: bool,
    /// The removal succeeded: nothing of the pod is left in the runtime or on the disk.
    removed: bool,
    /// The clean-up of the ended pod succeeded.
    cleaned_up: bool,
    /// Once it has ended, everything but its record is removed.
    clears: bool,
    /// Desired state, observed state or time changed since the last plan.
    replan: bool,
    /// Earliest time of the next read, after a failed one.
    read_at: Option<Mono>,
    /// Earliest time of the next plan, kill or removal, after a failed one.
    retry_at: Option<Mono>,
    /// Time at which the plan changes by itself.
    wake_at: Option<Mono>,
}

impl Worker {
    /// The record of a pod that a source desires. `name_taken`: another pod of this name still exists.
    pub fn wanted(pod: Rc<DesiredPod>, name_taken: bool) -> Self {
        let life = if name_taken { Life::Waiting } else { Life::Syncing };
        let key = pod.key.clone();
        Self { pod: Some(pod), ..Self::in_life(key, life) }
    }

    /// The record of a pod of ours that only the runtime knows: it is terminated.
    pub fn orphan(key: PodKey) -> Self {
        Self::in_life(key, Life::Ending(Why::Unwanted))
    }

    fn in_life(key: PodKey, life: Life) -> Self {
        Self {
            key,
            pod: None,
            readded: None,
            life,
            in_flight: None,
            observed: None,
            stale: true,
            after_job: false,
            asked_anew: false,
            removed: false,
            cleaned_up: false,
            clears: false,
            replan: true,
            read_at: None,
            retry_at: None,
            wake_at: None,
        }
    }

    /// The pod's key.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// The pod's state in its life cycle.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The desired pod, or the last one desired.
    pub fn pod(&self) -> Option<&Rc<DesiredPod>> {
        self.pod.as_ref()
    }

    /// Approximate memory of its object that [`Worker::pack`] frees, unless a task holds it.
    pub fn opened_bytes(&self) -> usize {
        self.pod.iter().chain(&self.readded).map(|pod| pod.pod.opened_bytes()).sum()
    }

    /// Frees its unpacked object until the next access; has no effect while a task holds it.
    pub fn pack(&mut self) {
        let held = self.pod.iter_mut().chain(&mut self.readded);
        held.filter_map(Rc::get_mut).for_each(|pod| pod.pod.pack());
    }

    /// The last full read.
    pub fn observed(&self) -> Option<&Rc<ObservedPod>> {
        self.observed.as_ref()
    }

    /// The job in flight.
    pub fn in_flight(&self) -> Option<Job> {
        self.in_flight
    }

    /// The time at which this record next has to be processed without an event.
    pub fn due(&self) -> Option<Mono> {
        if self.in_flight.is_some() {
            return None;
        }
        [self.read_at, self.retry_at, self.wake_at].into_iter().flatten().min()
    }

    /// Sets the desired pod (added again, or changed in a way that keeps its UID).
    pub fn set_desired(&mut self, pod: Rc<DesiredPod>) {
        self.asked_anew = true;
        match self.life {
            Life::Waiting | Life::Syncing | Life::Ended | Life::Ending(Why::Finished) => {
                self.pod = Some(pod);
                self.replan = true;
                // A corrected manifest is tried at once, not after the old one's delay.
                self.retry_at = None;
            }
            Life::Ending(Why::Unwanted) | Life::Removing => self.readded = Some(pod),
        }
    }

    /// Sets the desired pod when only foreign conditions of its status changed: nothing has to be done for that.
    pub fn replace_pod(&mut self, pod: Rc<DesiredPod>) {
        match self.life {
            Life::Waiting | Life::Syncing | Life::Ended | Life::Ending(Why::Finished) => self.pod = Some(pod),
            Life::Ending(Why::Unwanted) | Life::Removing => {
                if let Some(readded) = &mut self.readded {
                    *readded = pod;
                }
            }
        }
    }

    /// No source desires the pod any more.
    pub fn remove_desired(&mut self) {
        self.readded = None;
        self.wake_at = None;
        self.asked_anew = true;
        match self.life {
            // A waiting pod never touched the runtime, but an earlier pod of its UID may exist there: read first.
            Life::Waiting | Life::Syncing | Life::Ending(Why::Finished) => {
                self.retry_at = None;
                self.life = Life::Ending(Why::Unwanted);
            }
            Life::Ended => {
                self.retry_at = None;
                self.life = Life::Removing;
            }
            Life::Ending(Why::Unwanted) | Life::Removing => {}
        }
    }

    /// The pod's name is no longer taken.
    pub fn name_is_free(&mut self) {
        if self.life == Life::Waiting {
            self.life = Life::Syncing;
        }
    }

    /// All containers are done (the status' phase is Succeeded or Failed).
    pub fn finished(&mut self) {
        if self.life == Life::Syncing {
            self.life = Life::Ending(Why::Finished);
            // A sync that failed, or fails now because it is cancelled, does not delay the kill.
            self.asked_anew = true;
            self.retry_at = None;
        }
    }

    /// Marks the pod for removal once it has ended, although it is still desired: its node is short of a resource. False
    /// when it was marked already.
    pub fn clear_when_ended(&mut self) -> bool {
        !std::mem::replace(&mut self.clears, true)
    }

    /// What is left of it when it has ended goes at once.
    pub fn is_cleared(&self) -> bool {
        self.clears
    }

    /// It ends now and is kept again later: its volumes stay.
    pub fn keep_volumes(&mut self) {
        self.cleaned_up = true;
    }

    /// The runtime or a job changed something since the last read.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Something about the pod changed in the runtime: read it again.
    pub fn touched(&mut self) {
        self.stale = true;
    }

    /// The runtime is reachable again: a retry delay caused by its absence ends.
    pub fn runtime_is_back(&mut self) {
        self.read_at = None;
        self.retry_at = None;
        self.stale = true;
    }

    /// The next step. `Forget` is final: the record has to be dropped (see [`Worker::take_readded`]).
    pub fn next(&mut self, now: Mono) -> Option<Step> {
        if self.in_flight.is_some() || self.life == Life::Waiting {
            return None;
        }
        for due in [&mut self.read_at, &mut self.retry_at] {
            due.take_if(|at| *at <= now);
        }
        if self.wake_at.take_if(|at| *at <= now).is_some() {
            self.replan = true;
        }
        let Some(observed) = self.observed.as_ref().filter(|_| !self.stale) else {
            return self.read_at.is_none().then_some(Step::Start(Job::Read));
        };
        if self.retry_at.is_some() {
            return None;
        }
        if let Life::Ending(why) = self.life {
            if observed.is_alive() {
                return Some(Step::Start(Job::Kill));
            }
            self.life = match why {
                Why::Finished => Life::Ended,
                Why::Unwanted => Life::Removing,
            };
        }
        match self.life {
            Life::Ended if self.clears && !(observed.is_empty() && self.removed) => {
                Some(Step::Start(Job::Remove))
            }
            Life::Ended if !self.cleaned_up && !self.removed => Some(Step::Start(Job::CleanUp)),
            Life::Waiting | Life::Ended | Life::Ending(_) => None,
            Life::Syncing => self.replan.then_some(Step::Plan),
            Life::Removing if observed.is_empty() && self.removed => Some(Step::Forget),
            Life::Removing => Some(Step::Start(Job::Remove)),
        }
    }

    /// A job was handed to a task.
    pub fn started(&mut self, job: Job) {
        debug_assert!(self.in_flight.is_none(), "one job per pod at a time");
        self.in_flight = Some(job);
        // Changes from here on are not in this read.
        match job {
            Job::Read => self.stale = false,
            Job::Act | Job::Kill | Job::Collect | Job::CleanUp | Job::Remove => self.asked_anew = false,
        }
    }

    /// A read succeeded. After a job without a visible effect the next one is delayed: a runtime that reports success and
    /// does nothing must not be called in a loop.
    pub fn read(&mut self, observed: Rc<ObservedPod>, now: Mono) {
        self.in_flight = None;
        let changed = self.observed.as_ref() != Some(&observed);
        if std::mem::take(&mut self.after_job) {
            self.replan = true;
            if !changed && !self.asked_anew && !self.removed {
                self.retry_at.get_or_insert(now + UNCHANGED_RETRY);
            }
        } else if changed {
            self.replan = true;
            self.retry_at = None;
        }
        self.observed = Some(observed);
    }

    /// A plan was made and has nothing to execute; it changes by itself at `wake_at`.
    pub fn settled(&mut self, wake_at: Option<Mono>) {
        self.replan = false;
        self.wake_at = wake_at;
    }

    /// A condition that prevented the plan has ended: plan again.
    pub fn plan_again(&mut self) {
        self.replan = true;
    }

    /// A container's probe result changed: planned at once, whatever retry delay the pod has.
    pub fn probed(&mut self) {
        self.replan = true;
        self.retry_at = None;
    }

    /// A job other than a read ended: `Ok`, or `Err` with the time of its retry.
    pub fn ended(&mut self, result: Result<(), Mono>) {
        let job = self.in_flight.take();
        if job == Some(Job::CleanUp) {
            self.cleaned_up = result.is_ok();
        } else {
            self.stale = true;
            self.after_job = true;
        }
        if job == Some(Job::Remove) {
            // Disk and runtime are clean: when the next read is empty the record is dropped.
            self.removed = result.is_ok();
        }
        // What was requested meanwhile is tried at once.
        if let Err(retry_at) = result
            && !self.asked_anew
        {
            self.retry_at = Some(retry_at);
        }
    }

    /// A read failed: the last observation is kept, and the read is retried after the delay.
    pub fn read_failed(&mut self, now: Mono, retry: Duration) {
        self.in_flight = None;
        self.stale = true;
        self.read_at = Some(now + retry);
    }

    /// The job in flight was cancelled: what it may have done shows in the next read.
    pub fn cancel_job(&mut self) {
        self.in_flight = None;
        self.stale = true;
        self.retry_at = None;
    }

    /// The pod to start when this record is dropped.
    pub fn take_readded(&mut self) -> Option<Rc<DesiredPod>> {
        self.readded.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SandboxId, SandboxState, SandboxStatus, Wall};
    use k8s_openapi::api::core::v1::Pod;

    const NOW: Mono = Mono(1_000_000_000_000);

    fn pod() -> Rc<DesiredPod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.uid = Some("u1".into());
        Rc::new(DesiredPod::new(pod))
    }

    fn with_sandbox(state: SandboxState) -> Rc<ObservedPod> {
        Rc::new(ObservedPod {
            sandboxes: vec![SandboxStatus {
                id: SandboxId::from("s"),
                attempt: 0,
                state,
                created_at: Wall(1),
                network_namespace: None,
                network: None,
            }],
            ..ObservedPod::default()
        })
    }

    fn empty() -> Rc<ObservedPod> {
        Rc::new(ObservedPod::default())
    }

    const READ: Step = Step::Start(Job::Read);
    const KILL: Step = Step::Start(Job::Kill);
    const CLEAN_UP: Step = Step::Start(Job::CleanUp);
    const REMOVE: Step = Step::Start(Job::Remove);

    /// Executes the next step, which must be `expected`, and ends it with the observation that follows.
    fn step(worker: &mut Worker, expected: Step, then_observed: &Rc<ObservedPod>) {
        assert_eq!(worker.next(NOW), Some(expected));
        match expected {
            Step::Plan => worker.settled(None),
            Step::Forget => {}
            Step::Start(job) => {
                worker.started(job);
                assert_eq!(worker.next(NOW), None, "one job at a time");
                if job == Job::Read {
                    worker.read(then_observed.clone(), NOW);
                } else {
                    worker.ended(Ok(()));
                    step(worker, READ, then_observed);
                }
            }
        }
    }

    #[test]
    fn a_pod_is_read_before_it_is_planned_and_rests_when_settled() {
        let mut worker = Worker::wanted(pod(), false);
        step(&mut worker, READ, &empty());
        step(&mut worker, Step::Plan, &empty());
        assert_eq!(worker.next(NOW), None);
        worker.settled(Some(NOW + Duration::from_secs(10)));
        assert_eq!(worker.due(), Some(NOW + Duration::from_secs(10)));
        assert_eq!(worker.next(NOW + Duration::from_secs(10)), Some(Step::Plan));
    }

    #[test]
    fn a_pod_that_is_to_be_cleared_is_removed_when_it_has_ended_and_stays_as_a_record() {
        let mut worker = Worker::wanted(pod(), false);
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        worker.clear_when_ended();
        worker.finished();
        step(&mut worker, KILL, &with_sandbox(SandboxState::NotReady));
        step(&mut worker, REMOVE, &empty());
        assert_eq!((worker.next(NOW), worker.life()), (None, Life::Ended));
        worker.remove_desired();
        worker.set_desired(pod());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
        assert!(worker.take_readded().is_some());
    }

    #[test]
    fn an_unwanted_pod_is_killed_removed_and_forgotten() {
        let mut worker = Worker::wanted(pod(), false);
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        step(&mut worker, Step::Plan, &empty());
        worker.remove_desired();
        step(&mut worker, KILL, &with_sandbox(SandboxState::NotReady));
        step(&mut worker, REMOVE, &empty());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
        assert!(worker.take_readded().is_none());
    }

    #[test]
    fn a_pod_restored_while_it_ends_starts_again_afterwards() {
        let mut worker = Worker::wanted(pod(), false);
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        worker.remove_desired();
        worker.set_desired(pod());
        assert_eq!(worker.life(), Life::Ending(Why::Unwanted), "it still ends first");
        step(&mut worker, KILL, &with_sandbox(SandboxState::NotReady));
        step(&mut worker, REMOVE, &empty());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
        assert!(worker.take_readded().is_some());
    }

    #[test]
    fn a_finished_pod_keeps_its_dead_containers_until_it_is_unwanted() {
        let mut worker = Worker::wanted(pod(), false);
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        worker.finished();
        step(&mut worker, KILL, &with_sandbox(SandboxState::NotReady));
        assert_eq!(worker.next(NOW), Some(CLEAN_UP));
        assert_eq!(worker.life(), Life::Ended);
        worker.started(Job::CleanUp);
        worker.ended(Err(NOW + UNCHANGED_RETRY));
        assert_eq!(worker.next(NOW), None, "something is still mounted");
        assert_eq!(worker.next(NOW + UNCHANGED_RETRY), Some(CLEAN_UP));
        worker.started(Job::CleanUp);
        worker.ended(Ok(()));
        assert_eq!(worker.next(NOW), None, "nothing in the runtime changed: nothing is read");
        worker.remove_desired();
        step(&mut worker, REMOVE, &empty());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
    }

    #[test]
    fn an_orphan_ends_and_what_lives_on_is_killed_again() {
        let mut worker = Worker::orphan(PodKey::new("default", "old", "u0"));
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        step(&mut worker, KILL, &with_sandbox(SandboxState::Ready));
        assert_eq!(worker.next(NOW), None, "a kill of which nothing shows is not repeated in a circle");
        assert_eq!(worker.due(), Some(NOW + UNCHANGED_RETRY));
        assert_eq!(worker.next(NOW + UNCHANGED_RETRY), Some(KILL));
        step(&mut worker, KILL, &with_sandbox(SandboxState::NotReady));
        step(&mut worker, REMOVE, &empty());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
    }

    #[test]
    fn an_orphan_whose_disk_could_not_be_cleaned_is_not_forgotten() {
        let mut worker = Worker::orphan(PodKey::new("default", "old", "u0"));
        step(&mut worker, READ, &with_sandbox(SandboxState::NotReady));
        assert_eq!(worker.next(NOW), Some(REMOVE));
        worker.started(Job::Remove);
        worker.ended(Err(NOW + Duration::from_secs(10)));
        step(&mut worker, READ, &empty());
        assert_eq!(worker.next(NOW), None, "its sandbox went, its directory did not");
        assert_eq!(worker.next(NOW + Duration::from_secs(10)), Some(REMOVE));
        step(&mut worker, REMOVE, &empty());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
    }

    #[test]
    fn an_act_of_which_nothing_shows_is_not_repeated_in_a_circle_but_a_new_wish_is_tried_at_once() {
        for wish in [false, true] {
            let mut worker = Worker::wanted(pod(), false);
            step(&mut worker, READ, &empty());
            step(&mut worker, Step::Plan, &empty());
            worker.started(Job::Act);
            if wish {
                worker.set_desired(pod());
            }
            worker.ended(Ok(()));
            step(&mut worker, READ, &empty());
            let expected = if wish { Some(Step::Plan) } else { None };
            assert_eq!(worker.next(NOW), expected);
        }
    }

    #[test]
    fn a_change_during_a_job_is_read_after_it_and_a_failure_waits() {
        let mut worker = Worker::wanted(pod(), false);
        assert_eq!(worker.next(NOW), Some(READ));
        worker.started(Job::Read);
        worker.touched();
        worker.read(empty(), NOW);
        assert_eq!(worker.next(NOW), Some(READ), "the read in flight may have missed it");
        worker.started(Job::Read);
        worker.read_failed(NOW, Duration::from_secs(1));
        assert_eq!(worker.next(NOW), None);
        assert_eq!(worker.due(), Some(NOW + Duration::from_secs(1)));
        worker.runtime_is_back();
        assert_eq!(worker.next(NOW), Some(READ));
    }

    #[test]
    fn a_failed_job_waits_unless_the_runtime_reports_a_change() {
        let mut worker = Worker::wanted(pod(), false);
        step(&mut worker, READ, &empty());
        worker.started(Job::Act);
        worker.ended(Err(NOW + Duration::from_secs(10)));
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        assert_eq!(worker.next(NOW), None, "what our own job did is no reason to hurry");
        worker.touched();
        step(&mut worker, READ, &with_sandbox(SandboxState::Ready));
        assert_eq!(worker.next(NOW), None, "nothing changed");
        worker.touched();
        step(&mut worker, READ, &with_sandbox(SandboxState::NotReady));
        assert_eq!(worker.next(NOW), Some(Step::Plan), "something did");
    }

    #[test]
    fn a_pod_waits_for_its_name_and_can_be_given_up_meanwhile() {
        let mut worker = Worker::wanted(pod(), true);
        assert_eq!(worker.next(NOW), None);
        worker.name_is_free();
        assert_eq!(worker.next(NOW), Some(READ));
        let mut worker = Worker::wanted(pod(), true);
        worker.remove_desired();
        step(&mut worker, READ, &empty());
        step(&mut worker, REMOVE, &empty());
        assert_eq!(worker.next(NOW), Some(Step::Forget));
    }
}
