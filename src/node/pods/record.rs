//! The loop's record of one pod, without its status (`store::statuses`).
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod, PodStatus};
use smol::channel::Sender;

use super::devices::ChangedDevices;
use super::{Resizing, container_sizes, with_allocation};
use crate::eviction::local::is_limited;
use crate::eviction::pods::is_critical;
use crate::limits::START_FAILURE_BYTES_MAX;
use crate::model::SortedMap;
use crate::model::annotations::CONFIG_HASH;
use crate::model::{DesiredPod, Mono, Now, ObservedPod, PodKey, Seconds, Wall};
use crate::pleg::evented::{AwaitedState, Instance};
use crate::poison::{Mark, pod_mark};
use crate::printers::table::SOURCE_FILE_ANNOTATION;
use crate::probe::Probers;
use crate::status::merge::IllegalTransition;
use crate::status::time;
use crate::store::statuses::StatusStore;
use crate::sync::outcome::Outcome;
use crate::sync::overtaken::Overtaken;
use crate::sync::worker::{Job, Life, Why, Worker};
use crate::text::start_of;
use crate::volume::usage::limited;

/// One pod: its life, its status, and the task that works for it.
pub(in crate::node) struct Record {
    pub(super) worker: Worker,
    /// The manifest's file, for messages.
    pub(super) file: Option<Arc<str>>,
    /// When the status got its start time: `activeDeadlineSeconds` counts from here.
    pub(super) active_since: Option<Mono>,
    /// Restored from the checkpoint: its status and age are not derived from the runtime's report.
    pub(super) restored: bool,
    /// When the pod was first desired, until it runs; `None` for one that was running at the agent's start.
    pub(super) wanted_since: Option<Mono>,
    /// When the manifest was removed, shown as the deletion time.
    pub(super) unwanted_at: Option<Wall>,
    pub(super) failures: StartFailures,
    /// Its last work was a collection: the next one is none, even when a removal failed.
    pub(super) has_collected: bool,
    /// Why its last status update was aborted, as logged.
    pub(super) aborted: Option<Box<IllegalTransition>>,
    /// It is or was being resized: its allocated resources differ from those its containers were created with.
    pub(super) resizing: Option<Box<Resizing>>,
    pub(super) probers: Probers,
    /// Its running containers that got other devices; at most its containers.
    pub(super) devices: Vec<ChangedDevices>,
    /// Dropping it cancels the job in flight.
    pub(super) task: Option<smol::Task<()>>,
    /// Dropping it requests that the sync in flight ends before its next step.
    pub(super) give_up: Option<Sender<Infallible>>,
    /// Dropping it requests that the sync in flight ends, because the pod terminates. Only a shorter grace period cuts the waits
    /// of a kill.
    pub(super) ends: Option<Sender<Infallible>>,
    /// Requests that the sync in flight checks the runtime again before it creates anything.
    pub(super) overtaken: Overtaken,
    pub(super) agreement: Agreement,
    /// Changes that events announced and the runtime's status does not show yet, by the id. Of all pods at most
    /// `CHANGES_AWAITED_MAX`.
    pub(super) awaited: SortedMap<Box<str>, Awaited>,
    /// The mark that a panic during this pod's handling is attributed to.
    pub(super) mark: Mark,
    /// Handling it ended the process too often: nothing is done to it until its manifest changes.
    pub(super) set_aside: bool,
    /// The files of its volumes may be others than its ConfigMaps and Secrets have now.
    pub(super) volumes_stale: bool,
    /// Deadline of its first start's wait for the objects that it references.
    pub(super) objects_until: Option<Mono>,
    /// How long it gets to end when it is evicted.
    pub(super) eviction_grace: Seconds,
    /// It has limits of its own on local storage.
    pub(super) limits_disk: bool,
    /// It is admitted, or started before: admission is not repeated.
    pub(super) admitted: bool,
    /// The number of other pods beside which this static pod has no room.
    pub(super) awaits_room: Option<usize>,
    /// The node's shutdown terminates it with this grace period.
    pub(super) shutdown_grace: Option<Seconds>,
    /// It was deleted once more, with this grace period.
    pub(super) hurried: Option<Seconds>,
    /// The number of the container that `smolet debug` added last (`Saving::debugger_added`).
    pub(super) debugger: u64,
    /// Number of the job in flight; a result with another number comes from a cancelled one.
    pub(super) job: u64,
    /// When it began.
    pub(super) job_began: Mono,
}

/// No critical pod is ended for breaking one (`evictPod`).
fn limits_disk(worker: &Worker) -> bool {
    let has_some = |pod: &DesiredPod| is_limited(pod) || !limited(pod, "").is_empty();
    worker.pod().is_some_and(|pod| has_some(pod) && !is_critical(pod))
}

/// Whether the runtime is as the last full read shows it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::node) struct Agreement {
    /// When it was so for the last time that we know of: the begin of that read, or of a relist that agreed.
    pub(super) at: Mono,
    /// The state in which a relist showed the pod otherwise, and when: it was read once more for that, and is not again
    /// and again when the runtime's list and its statuses do not fit together.
    pub(super) differed: Option<(u64, Mono)>,
}

/// A change that an event announced.
pub(in crate::node) struct Awaited {
    pub(super) instance: Instance,
    pub(super) until: AwaitedState,
    /// A task polls its status.
    pub(super) is_polled: bool,
}

impl Record {
    /// The pod's life.
    pub(in crate::node) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The manifest's file, for messages.
    pub(in crate::node) fn file(&self) -> Option<&Arc<str>> {
        self.file.as_ref()
    }

    /// When the status got its start time.
    pub(in crate::node) fn active_since(&self) -> Option<Mono> {
        self.active_since
    }

    /// Why its containers did not start.
    pub(in crate::node) fn failures(&self) -> &StartFailures {
        &self.failures
    }

    /// Its probes.
    pub(in crate::node) fn probers(&self) -> &Probers {
        &self.probers
    }

    /// Requests that the sync in flight checks the runtime again.
    pub(in crate::node) fn overtaken(&self) -> &Overtaken {
        &self.overtaken
    }

    /// The container changes of events that the runtime's status does not show yet.
    pub(in crate::node) fn awaited(&self) -> &SortedMap<Box<str>, Awaited> {
        &self.awaited
    }

    /// What a panic is put down to while this pod is handled.
    pub(in crate::node) fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Handling it ended the process too often.
    pub(in crate::node) fn is_set_aside(&self) -> bool {
        self.set_aside
    }

    /// It has limits of its own on the node's disk.
    pub(in crate::node) fn limits_disk(&self) -> bool {
        self.limits_disk
    }

    /// The node's shutdown ends it, with this grace period.
    pub(in crate::node) fn shutdown_grace(&self) -> Option<Seconds> {
        self.shutdown_grace
    }

    /// It may begin, or began before.
    #[cfg(feature = "tls")]
    pub(in crate::node) fn is_admitted(&self) -> bool {
        self.admitted
    }

    pub(in crate::node) fn new(worker: Worker, file: Option<Arc<str>>) -> Self {
        let mark = mark_of(&worker);
        let limits_disk = limits_disk(&worker);
        Self {
            worker,
            file,
            active_since: None,
            restored: false,
            wanted_since: None,
            unwanted_at: None,
            failures: StartFailures::default(),
            has_collected: false,
            aborted: None,
            resizing: None,
            probers: Probers::default(),
            devices: Vec::new(),
            task: None,
            give_up: None,
            ends: None,
            overtaken: Overtaken::default(),
            agreement: Agreement::default(),
            awaited: SortedMap::new(),
            mark,
            set_aside: false,
            volumes_stale: true,
            objects_until: None,
            eviction_grace: Seconds(0),
            limits_disk,
            admitted: false,
            awaits_room: None,
            shutdown_grace: None,
            hurried: None,
            debugger: 0,
            job: 0,
            job_began: Mono(0),
        }
    }

    /// Sets the desired pod. Containers of `smolet debug` are kept unless the pod is terminated first. A pod of the API server
    /// has its own ephemeral containers.
    pub(in crate::node) fn set_desired(&mut self, pod: DesiredPod) {
        let pod = self.with_allocated_sizes(pod);
        self.set_desired_and_allocated(pod);
    }

    /// The manifest is another one than that of the pod here.
    pub(in crate::node) fn is_changed_by(&self, pod: &DesiredPod) -> bool {
        self.worker.pod().is_some_and(|known| config_hash(known) != config_hash(pod))
    }

    /// The same, with the desired CPU and memory, which the pod was allocated.
    pub(in crate::node) fn set_desired_and_allocated(&mut self, pod: DesiredPod) {
        let added = match self.worker.life() {
            _ if pod.pod.is_of_api_server() => Vec::new(),
            Life::Waiting | Life::Syncing | Life::Ended | Life::Ending(Why::Finished) => {
                self.worker.pod().map(|pod| pod.ephemeral_containers().to_vec()).unwrap_or_default()
            }
            Life::Ending(Why::Unwanted) | Life::Removing => Vec::new(),
        };
        self.worker.set_desired(Rc::new(with_debuggers(pod, added)));
    }

    /// The pod with its allocated CPU and memory in place of the desired ones.
    pub(in crate::node) fn with_allocated_sizes(&self, pod: DesiredPod) -> DesiredPod {
        match (&self.resizing, self.worker.pod()) {
            (Some(_), Some(allocated)) => with_allocation(pod, |name| container_sizes(allocated, name)),
            (None, _) | (_, None) => pod,
        }
    }

    /// Sets the pod's ephemeral containers; the last one is new and has that number.
    pub(in crate::node) fn debug(&mut self, containers: Vec<EphemeralContainer>, number: u64) {
        let Some(pod) = self.worker.pod().cloned() else { return };
        self.debugger = number;
        self.worker.set_desired(Rc::new(pod.with_ephemeral_containers(containers)));
        // A debug container does not wait for a pull that hangs.
        self.give_up = None;
    }

    /// The pod terminates: the act in flight stops waiting, and ends when the runtime has answered its current call
    /// (`GiveUp`). The kill follows.
    pub(in crate::node) fn cut_off_act(&mut self) {
        if self.worker.in_flight() == Some(Job::Act) {
            (self.give_up, self.ends) = (None, None);
        }
    }

    /// The pod was deleted again with a shorter grace period: cancels the kill in flight, and the next one uses that period
    /// (`podWorkers.UpdatePod`, `wasGracePeriodShortened`).
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no cluster then"))]
    pub(in crate::node) fn hurry(&mut self, grace: Seconds) {
        self.hurried = Some(grace);
        if self.worker.in_flight() == Some(Job::Kill) {
            self.task = None;
            self.worker.cancel_job();
        }
    }

    /// The manifest changed: the pod is no longer set aside.
    pub(in crate::node) fn manifest_changed(&mut self) {
        self.mark = mark_of(&self.worker);
        self.limits_disk = limits_disk(&self.worker);
        self.probers.changed();
        self.try_again();
    }

    /// The manifest was removed: the termination is tried even if the pod was set aside.
    pub(in crate::node) fn manifest_removed(&mut self) {
        self.mark = pod_mark(&self.worker.key().uid, "");
        self.try_again();
    }

    fn try_again(&mut self) {
        self.set_aside = false;
    }

    /// Sets the pod aside, with the reason in its status: handling it ended the process too often.
    pub(in crate::node) fn set_aside(&mut self, panics: u32, status: &mut PodStatus) {
        let message = format!(
            "handling it ended the agent {panics} times; it is left as it is until its manifest changes or another \
             version of smolet runs (to try it all the same, remove the file panics in the state directory and \
             restart the agent)"
        );
        self.set_aside = true;
        status.phase = Some("Unknown".to_owned());
        status.reason = Some("SetAside".to_owned());
        status.message = Some(message);
    }

    /// The first read of a pod that ran before this agent started: its age counts from its oldest sandbox. Returns that
    /// sandbox's creation time.
    pub(in crate::node) fn found_running(&mut self, observed: &ObservedPod, now: Now) -> Option<Wall> {
        if !observed.sandboxes.is_empty() {
            self.wanted_since = None;
        }
        if self.restored {
            return None;
        }
        let oldest = observed.sandboxes.iter().map(|sandbox| sandbox.created_at).min();
        let oldest = oldest.filter(|oldest| *oldest < now.wall)?;
        self.active_since = Some(now.mono_of(oldest));
        Some(oldest)
    }

    /// Records why the status update was aborted, if it was. Returns the reason when it differs from the last one, which was
    /// logged already; `updateStatusInternal` logs it with every sync.
    pub(in crate::node) fn note_aborted<'a>(
        &mut self,
        why: Option<&'a IllegalTransition>,
    ) -> Option<&'a IllegalTransition> {
        let news = why.filter(|why| self.aborted.as_deref() != Some(why));
        if news.is_some() || why.is_none() {
            self.aborted = why.map(|why| Box::new(why.clone()));
        }
        news
    }

    /// Updates the probers by the pod's observed containers and by the status that was `shown` last.
    pub(in crate::node) fn update_probers(&mut self, shown: Option<&PodStatus>, now: Now) {
        let (Some(pod), Some(observed)) = (self.worker.pod(), self.worker.observed()) else { return };
        let is_ending = !matches!(self.worker.life(), Life::Waiting | Life::Syncing);
        self.probers.update(pod, observed, shown, is_ending, now);
    }

    /// The pod with its status and that one's revision, as the API would show it; one that only the runtime knows has
    /// a name and nothing else.
    pub(in crate::node) fn shown(&self, statuses: &StatusStore) -> Pod {
        let mut pod = match self.worker.pod() {
            Some(pod) => (*pod.pod).clone(),
            None => named(self.worker.key()),
        };
        if let Some(file) = &self.file {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(SOURCE_FILE_ANNOTATION.to_owned(), file.to_string());
        }
        pod.metadata.deletion_timestamp = self.unwanted_at.and_then(time);
        let uid = &self.worker.key().uid;
        pod.status = statuses.status(uid);
        pod.metadata.resource_version = pod.status.is_some().then(|| statuses.revision_of(uid).to_string());
        pod
    }
}

/// The pod with the containers that `smolet debug` added; itself without any.
pub(in crate::node) fn with_debuggers(pod: DesiredPod, added: Vec<EphemeralContainer>) -> DesiredPod {
    if added.is_empty() { pod } else { pod.with_ephemeral_containers(added) }
}

fn mark_of(worker: &Worker) -> Mark {
    pod_mark(&worker.key().uid, worker.pod().map_or("", |pod| config_hash(pod)))
}

fn config_hash(pod: &DesiredPod) -> &str {
    let annotations = pod.pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(CONFIG_HASH)).map_or("", String::as_str)
}

fn named(key: &PodKey) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = Some(key.namespace.to_string());
    pod.metadata.name = Some(key.name.to_string());
    pod.metadata.uid = Some(key.uid.to_string());
    pod
}

/// Why containers did not start (kubelet `ReasonCache`), by container name; at most `START_FAILURES_MAX` of all pods.
#[derive(Debug, Default)]
pub(in crate::node) struct StartFailures(SortedMap<Rc<str>, (String, String)>);

impl StartFailures {
    /// Applies the results of a sync's starts; at most `room` further containers.
    pub(in crate::node) fn update(&mut self, outcome: &Outcome, mut room: usize) {
        for (container, failure) in outcome.starts() {
            match failure {
                Some(failure) => {
                    self.set(container, failure.error.to_string(), &failure.message, &mut room);
                }
                None => {
                    self.0.remove(container);
                }
            }
        }
    }

    /// Stores why a container did not start. Full: the reason of a further container is dropped.
    pub(in crate::node) fn set(
        &mut self,
        container: &Rc<str>,
        reason: String,
        message: &str,
        room: &mut usize,
    ) {
        let kept = (reason, start_of(message, START_FAILURE_BYTES_MAX).to_owned());
        if let Some(known) = self.0.get_mut(container) {
            *known = kept;
        } else if *room > 0 {
            *room -= 1;
            self.0.insert(container.clone(), kept);
        }
    }

    /// Reason and message of the container's last failed start; `None` after a good one.
    pub(in crate::node) fn of(&self, container: &str) -> Option<(&str, &str)> {
        self.0.get(container).map(|(reason, message)| (reason.as_str(), message.as_str()))
    }

    pub(in crate::node) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::node) fn bytes(&self) -> usize {
        let of =
            |(reason, message): &(String, String)| reason.len() + message.len() + 2 * size_of::<String>();
        self.0.iter().map(|(name, why)| name.len() + of(why)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::START_FAILURE_BYTES_MAX;

    #[test]
    fn an_aborted_status_update_is_told_once() {
        let mut record = Record::new(Worker::orphan(PodKey::new("default", "web", "u")), None);
        let (app, init) = (IllegalTransition::App("a".into()), IllegalTransition::Init("i".into()));
        let looks = [Some(&app), Some(&app), Some(&init), Some(&init), None, None, Some(&init)];
        let told = looks.map(|why| record.note_aborted(why).is_some());
        assert_eq!(told, [true, false, true, false, false, false, true]);
    }

    #[test]
    fn without_room_only_known_containers_reasons_are_renewed() {
        let (mut failures, mut room) = (StartFailures::default(), 1);
        let mut set = |name: &str, why: &str| {
            failures.set(&Rc::from(name), "CreateContainerError".to_owned(), why, &mut room);
        };
        set("a", "first");
        set("b", "no room");
        set("a", &"é".repeat(START_FAILURE_BYTES_MAX));
        assert_eq!((failures.len(), room), (1, 0));
        let (_, message) = failures.of("a").expect("kept");
        assert_eq!(message.len(), START_FAILURE_BYTES_MAX);
        assert!(failures.of("b").is_none());
    }
}
