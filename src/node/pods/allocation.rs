//! Pods whose CPU and memory are changed while they run (`allocation_manager.go`).
//!
//! ```text
//!     wanted with others ─► pending: what it was granted before counts
//!                            │ every pod that is here was looked at once; again whenever one changes, ends or goes
//!                            ├─ can never be, or has no room ─► told (PodResizePending), and asked again
//!                            ▼
//!                          granted ─► in the checkpoint ─► planned and carried out (PodResizeInProgress) ─► completed
//! ```
//!
//! What a container has stands on it since its creation ([`crate::render::labels::RESOURCES_ANNOTATION`]); only what it was
//! resized to since, and what its pod was granted, is kept in the checkpoint, and nothing of a pod that was never resized.
//!
//! Differs from the kubelet:
//! - One that waits is asked about when something changes that may give it room, and not every three minutes besides.
//! - A static pod is resized in place only when its manifest gives its UID, and is not asked whether it fits once more.
//! - Resources of the pod itself (`spec.resources`) are not changed: this node does not declare that it can.

use std::rc::Rc;

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodStatus};

use super::Pods;
use super::record::Record;
use super::worker::Work;
use crate::allocation::pending::{Pending, Waiting, event_message, first_served, infeasible};
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::RESIZES_NOTED_MAX;
use crate::model::{
    ContainerId, ContainerState, DesiredPod, Now, ObservedPod, PodUid, Resource, Sizes, Wall,
};
use crate::node::effects::Effects;
use crate::render::NodeSettings;
use crate::render::resources::{container_resources, is_sidecar, set_sizes, sizes};
use crate::status::{nanos, time};
use crate::store::checkpoint::KeptSizes;
use crate::store::statuses::StatusStore;
use crate::sync::outcome::Outcome;
use crate::sync::resize::{difference, restarts_for};
use crate::sync::worker::Life;

/// A pod that is being resized, or was. What it was granted is the pod that its worker has.
#[derive(Debug, Default)]
pub(in crate::node) struct Resizing {
    /// What running containers have that were made with something else; of all pods at most `RESIZES_NOTED_MAX`.
    actuated: Vec<(ContainerId, Sizes)>,
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
    /// When it was granted what it is (`Pods::resizes`).
    pub(in crate::node) number: u64,
}

/// What the containers of a pod were granted, by their names.
pub(in crate::node) type Granted = Vec<(Box<str>, Sizes)>;

/// App and init containers; those for debugging have no resources.
fn resizable(pod: &DesiredPod) -> impl Iterator<Item = &Container> {
    pod.init_containers().iter().chain(pod.containers())
}

/// What the pod's container of that name asks for.
pub(in crate::node) fn sizes_in(pod: &DesiredPod, name: &str) -> Option<Sizes> {
    resizable(pod).find(|container| container.name == name).map(sizes)
}

/// They ask for the same.
fn same_sizes(a: &DesiredPod, b: &DesiredPod) -> bool {
    resizable(a).all(|container| sizes_in(b, &container.name).is_none_or(|other| other == sizes(container)))
}

/// The pod with what it was granted. The object is there once more when that is not what it is wanted with.
pub(in crate::node) fn hold(pod: DesiredPod, granted: impl Fn(&str) -> Option<Sizes>) -> DesiredPod {
    let granted =
        |container: &Container| granted(&container.name).filter(|granted| *granted != sizes(container));
    if resizable(&pod).all(|container| granted(container).is_none()) {
        return pod;
    }
    let mut object = (*pod.pod).clone();
    let spec = object.spec.get_or_insert_default();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(sizes) = granted(container) {
            set_sizes(container, &sizes);
        }
    }
    DesiredPod { pod: object.into(), ..pod }
}

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// `updatedPodResizeCondition`.
fn condition(
    kind: &str,
    old: Option<&PodCondition>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Wall,
) -> PodCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let since = old.filter(|old| old.reason.as_deref().unwrap_or_default() == reason);
    PodCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        last_probe_time: time(now),
        last_transition_time: since.map_or_else(|| time(now), |old| old.last_transition_time.clone()),
        observed_generation: generation,
        reason: text(reason),
        message: text(message),
    }
}

impl Resizing {
    /// As the checkpoint and the status in it have it, and what the pod was granted.
    pub(in crate::node) fn restored(kept: &[KeptSizes<'_>], status: &PodStatus) -> (Self, Granted) {
        let (mut resizing, mut granted) = (Self::default(), Granted::new());
        for kept in kept {
            let sizes = Sizes::of_numbers(kept.sizes);
            if kept.runs {
                resizing.actuated.push((kept.name.into(), sizes));
            } else {
                granted.push((kept.name.into(), sizes));
            }
        }
        for condition in status.conditions.iter().flatten() {
            match &*condition.type_ {
                PENDING => resizing.pending = Some(condition.clone()),
                IN_PROGRESS => resizing.in_progress = Some(condition.clone()),
                _ => {}
            }
        }
        (resizing, granted)
    }

    /// For the checkpoint.
    pub(in crate::node) fn kept<'a>(
        &'a self,
        granted: impl Iterator<Item = (&'a str, Sizes)>,
    ) -> Vec<KeptSizes<'a>> {
        let kept = |name, runs, sizes: &Sizes| KeptSizes { name, runs, sizes: sizes.numbers() };
        let granted = granted.map(|(name, sizes)| kept(name, false, &sizes));
        granted.chain(self.actuated.iter().map(|(id, sizes)| kept(id.as_str(), true, sizes))).collect()
    }

    /// The conditions of the pod's status that tell of it (`GetPodResizeConditions`).
    pub(in crate::node) fn conditions(&self) -> impl Iterator<Item = &PodCondition> {
        self.pending.iter().chain(&self.in_progress)
    }

    /// What was carried out and not written down, because the agent was killed: a runtime that reports it is believed. Of what
    /// needs a restart it says nothing, for that stands on the container that was made then.
    fn recognise(&mut self, node: &NodeSettings, pod: &DesiredPod, observed: &ObservedPod) {
        for container in resizable(pod) {
            let Some(status) = observed.container(&container.name) else { continue };
            let known = self.actuated(&status.id).or(status.meta.sizes);
            let (Some(has), Some(reported)) = (known, &status.resources) else { continue };
            let (wanted, granted) = (container_resources(node, &pod.pod, container), sizes(container));
            let is = |wanted: i64, reported: i64| wanted == 0 || wanted == reported;
            let same = |resource: Resource| match resource {
                Resource::Cpu => {
                    is(wanted.cpu_shares, reported.cpu_shares) && is(wanted.cpu_quota, reported.cpu_quota)
                }
                Resource::Memory => is(wanted.memory_limit_in_bytes, reported.memory_limit_in_bytes),
            };
            let done = [Resource::Cpu, Resource::Memory].into_iter();
            let done = done.filter(|resource| same(*resource) && !restarts_for(container, *resource));
            let now = done.fold(has, |now, resource| now.with(resource, &granted));
            if now != has && status.state == ContainerState::Running {
                self.note(&status.id, now);
            }
        }
    }

    /// Nothing is known by it that does not stand on the containers.
    fn is_over(&self, pod: &DesiredPod, observed: Option<&Rc<ObservedPod>>) -> bool {
        let differs = |container: &Container| {
            let status = observed.and_then(|observed| observed.container(&container.name));
            status.is_some_and(|status| difference(container, status).is_some())
        };
        let told = self.pending.is_some() || self.in_progress.is_some();
        !told && self.actuated.is_empty() && !resizable(pod).any(differs)
    }

    /// That container runs with this now.
    fn note(&mut self, id: &ContainerId, sizes: Sizes) {
        self.actuated.retain(|(of, _)| of != id);
        self.actuated.push((id.clone(), sizes));
    }

    fn actuated(&self, id: &ContainerId) -> Option<Sizes> {
        self.actuated.iter().find(|(of, _)| of == id).map(|(_, sizes)| *sizes)
    }
}

/// The generation that is wanted, as conditions have it.
fn generation(pod: &Pod) -> Option<i64> {
    pod.metadata.generation.filter(|generation| *generation != 0)
}

impl Record {
    /// It is wanted like this now: with other CPU and memory than before it has to be asked whether it may. True then.
    fn begins_resize(&mut self, pod: &DesiredPod) -> bool {
        if !matches!(self.worker.life(), Life::Waiting | Life::Syncing) {
            return false;
        }
        if self.worker.pod().is_none_or(|known| same_sizes(known, pod)) {
            return false;
        }
        self.resizing.get_or_insert_default();
        true
    }

    /// What another agent made has what its pod was granted until now: nobody noted anything else.
    fn note_unknown(&mut self) {
        let (Some(resizing), Some(pod)) = (&mut self.resizing, self.worker.pod()) else { return };
        let containers = self.worker.observed().into_iter().flat_map(|observed| &observed.containers);
        let unknown = containers
            .filter(|status| status.meta.sizes.is_none() && status.state == ContainerState::Running)
            .filter_map(|status| Some((status.id.clone(), sizes_in(pod, &status.name)?)));
        let before = resizing.actuated.len();
        resizing.actuated.extend(unknown.collect::<Vec<_>>());
        if resizing.actuated.len() > before {
            // The next look takes it in.
            self.worker.touched();
        }
    }

    /// What the checkpoint keeps of it.
    pub(in crate::node) fn kept_sizes(&self) -> Option<Vec<KeptSizes<'_>>> {
        let (resizing, pod) = (self.resizing.as_ref()?, self.worker.pod()?);
        Some(resizing.kept(resizable(pod).map(|container| (&*container.name, sizes(container)))))
    }

    /// What its containers have, as far as the runtime does not say it. At the first look, what they were made with is what their
    /// pod was granted, unless the checkpoint knew better: it may be wanted otherwise by now. True then.
    pub(in crate::node) fn note_sizes(&mut self, node: &NodeSettings, observed: &mut ObservedPod) -> bool {
        let (resizing, pod) = (&mut self.resizing, self.worker.pod());
        let mut found = false;
        if let (None, Some(resizing), Some(pod)) = (self.worker.observed(), &mut *resizing, pod) {
            resizing.recognise(node, pod, observed);
        }
        if let (None, None, Some(pod)) = (self.worker.observed(), &resizing, pod) {
            let made_with = |container: &Container| observed.container(&container.name)?.meta.sizes;
            let others =
                |container: &&Container| made_with(container).is_some_and(|with| with != sizes(container));
            if resizable(pod).any(|container| others(&container)) {
                let with = |name: &str| observed.container(name)?.meta.sizes;
                let held = hold((**pod).clone(), with);
                resizing.get_or_insert_default();
                self.worker.knows(held.into());
                found = true;
            }
        }
        if let Some(resizing) = &mut self.resizing {
            // One that is gone, or was made with it, needs no note.
            resizing.actuated.retain(|(id, sizes)| {
                let status = observed.containers.iter().find(|status| status.id == *id);
                status.is_some_and(|status| status.meta.sizes != Some(*sizes))
            });
            for status in &mut observed.containers {
                status.meta.sizes = resizing.actuated(&status.id).or(status.meta.sizes);
            }
        }
        found
    }
}

impl<R: Runtime + 'static> Pods<R> {
    /// The pod of that record is wanted like this now.
    pub(in crate::node) fn look_for_resize(&mut self, pod: &DesiredPod) {
        let record = self.records.get_mut(&pod.key.uid);
        self.retry_resizes |=
            record.is_some_and(|record| record.begins_resize(pod) || record.resizing.is_some());
    }

    /// Something changed that may give others room.
    pub(in crate::node) fn may_give_room(&mut self) {
        let waits =
            |record: &Record| record.resizing.as_ref().is_some_and(|resizing| resizing.pending.is_some());
        self.retry_resizes |= self.records.values().any(waits);
    }

    /// Asks about those that wait (`RetryPendingResizes`).
    pub(in crate::node) fn settle_resizes(&mut self, now: Now, out: &mut Effects) {
        if !self.retry_resizes {
            return;
        }
        // What they were granted is known of all then, and of none before.
        let Some(relist) = &self.relist else { return };
        let unread = |(uid, record): (&PodUid, &Record)| {
            record.worker.observed().is_none() && !record.set_aside && relist.pods.contains_key(uid)
        };
        if self.records.iter().any(unread) {
            return;
        }
        self.retry_resizes = false;
        let mut waiting = Vec::new();
        for (uid, record) in &mut self.records {
            let Some(resizing) = &mut record.resizing else { continue };
            let (Some(granted), Some(entry)) = (record.worker.pod(), self.desired.pod(uid)) else {
                continue;
            };
            if record.set_aside || !matches!(record.worker.life(), Life::Waiting | Life::Syncing) {
                continue;
            }
            let wanted = &entry.wanted.pod;
            if !same_sizes(wanted, granted) {
                let at = |condition: &PodCondition| Some(nanos(condition.last_transition_time.as_ref()?).0);
                let since = resizing.pending.as_ref().and_then(at);
                waiting.push((uid.clone(), wanted.clone(), granted.clone(), since));
            } else if resizing.pending.take().is_some() {
                // It is wanted as it was granted again.
                waiting.push((uid.clone(), wanted.clone(), granted.clone(), None));
            } else if resizing.is_over(granted, record.worker.observed())
                && record.worker.in_flight().is_none()
            {
                record.resizing = None;
            }
        }
        let of = |(_, wanted, granted, since): &(_, DesiredPod, Rc<DesiredPod>, _)| {
            (wanted.pod.clone(), granted.pod.clone(), *since)
        };
        waiting.sort_by(|a, b| {
            let ((wanted, granted, since), (others, before, time)) = (of(a), of(b));
            let a = Waiting { wanted: &wanted, granted: &granted, since };
            first_served(&a, &Waiting { wanted: &others, granted: &before, since: time })
        });
        for (uid, wanted, granted, _) in waiting {
            if same_sizes(&wanted, &granted) {
                self.refresh_status(&uid, now);
                continue;
            }
            let pending = if self.resizes_noted() + resizable(&wanted).count() > RESIZES_NOTED_MAX {
                Some(Err(Pending::of_notes()))
            } else {
                self.judge_resize(&uid, &wanted, &granted, out)
            };
            match pending {
                Some(Ok(())) => self.grant(&uid, wanted, now, out),
                Some(Err(pending)) => self.put_off(&uid, &wanted, &pending, now),
                // The node's labels will be known.
                None => self.retry_resizes = true,
            }
        }
    }

    /// Containers of which it is noted what they have.
    pub(in crate::node) fn resizes_noted(&self) -> usize {
        let resizing = self.records.values().filter_map(|record| record.resizing.as_ref());
        resizing.map(|resizing| resizing.actuated.len()).sum()
    }

    /// Pods that wait to be resized and are there once more for that, but for one, and what they take.
    pub(in crate::node) fn resizes_waiting(&self, but: Option<&PodUid>) -> (usize, usize) {
        let waits = |(uid, record): &(&PodUid, &Record)| {
            Some(*uid) != but && record.resizing.as_ref().is_some_and(|resizing| resizing.pending.is_some())
        };
        let waiting = self.records.iter().filter(waits);
        waiting.fold((0, 0), |(pods, bytes), (uid, _)| {
            (pods + 1, bytes + self.desired.pod(uid).map_or(0, |entry| entry.wanted.bytes))
        })
    }

    /// `canAdmitPod`; `None` = that is not known yet.
    fn judge_resize(
        &mut self,
        uid: &PodUid,
        wanted: &DesiredPod,
        granted: &DesiredPod,
        out: &mut Effects,
    ) -> Option<Result<(), Pending>> {
        if let Some(pending) = infeasible(&self.ctx.node, &wanted.pod, &granted.pod) {
            return Some(Err(pending));
        }
        if wanted.pod.is_of_api_server() { self.asks_for_room(uid, wanted, out) } else { Some(Ok(())) }
    }

    /// The pod may have what it is wanted with.
    fn grant(&mut self, uid: &PodUid, wanted: DesiredPod, now: Now, out: &mut Effects) {
        let Some(record) = self.records.get_mut(uid) else { return };
        record.note_unknown();
        let Some(resizing) = &mut record.resizing else { return };
        self.resizes += 1;
        resizing.number = self.resizes;
        resizing.pending = None;
        let of = generation(&wanted.pod);
        resizing.in_progress = Some(condition(IN_PROGRESS, None, "", "", of, now.wall));
        let message = event_message("Pod resize started", &wanted.pod, of.unwrap_or_default(), "");
        self.ctx.note(&wanted.key, EventKind::Normal, "ResizeStarted", &message);
        record.want_whole(wanted);
        self.refresh_status(uid, now);
        out.drive(uid);
    }

    /// The pod may not have it, or not yet.
    fn put_off(&mut self, uid: &PodUid, wanted: &DesiredPod, pending: &Pending, now: Now) {
        let record = self.records.get_mut(uid);
        let Some(resizing) = record.and_then(|record| record.resizing.as_mut()) else { return };
        let (reason, of) = (pending.condition_reason(), generation(&wanted.pod));
        let old = resizing.pending.take();
        let known = old
            .as_ref()
            .is_some_and(|old| old.reason.as_deref() == Some(reason) && old.observed_generation == of);
        resizing.pending = Some(condition(PENDING, old.as_ref(), reason, &pending.message, of, now.wall));
        if !known {
            let what = format!("Pod resize {}", pending.reason);
            let message = event_message(&what, &wanted.pod, of.unwrap_or_default(), &pending.message);
            self.ctx.note(&wanted.key, EventKind::Warning, pending.event_reason(), &message);
        }
        self.refresh_status(uid, now);
    }

    /// Takes in what an act has changed.
    pub(in crate::node) fn resized(&mut self, uid: &PodUid, outcome: &Outcome, now: Now) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let (Some(resizing), Some(pod)) = (&mut record.resizing, record.worker.pod()) else { return };
        for fresh in &outcome.actuated {
            self.resizes += 1;
            resizing.note(&fresh.id, fresh.sizes);
        }
        let Some(failure) = outcome.resize_failure() else { return };
        let old = resizing.in_progress.take();
        let of = old.as_ref().map_or_else(|| generation(&pod.pod), |old| old.observed_generation);
        let fresh = condition(IN_PROGRESS, old.as_ref(), "Error", &failure.message, of, now.wall);
        let known = old.is_some_and(|old| old.reason == fresh.reason && old.message == fresh.message);
        resizing.in_progress = Some(fresh);
        if !known {
            let message =
                event_message("Pod resize error", &pod.pod, of.unwrap_or_default(), &failure.message);
            self.ctx.note(&pod.key, EventKind::Warning, "ResizeError", &message);
        }
    }

    /// All of the pod that runs has what was granted to it, or not (`IsPodResizeInProgress`).
    pub(in crate::node) fn look_at_resize(&mut self, uid: &PodUid, now: Now) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let (Some(pod), Some(observed)) = (record.worker.pod().cloned(), record.worker.observed()) else {
            return;
        };
        let Some(resizing) = &mut record.resizing else { return };
        // Of an init container that ends by itself nobody waits for it.
        let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
        let differs = |container: &Container| {
            observed.container(&container.name).is_some_and(|status| difference(container, status).is_some())
        };
        let in_progress = sidecars.chain(pod.containers()).any(differs);
        let of = generation(&pod.pod);
        match (&resizing.in_progress, in_progress) {
            (Some(_), true) | (None, false) => return,
            (None, true) => {
                resizing.in_progress = Some(condition(IN_PROGRESS, None, "", "", of, now.wall));
            }
            (Some(done), false) => {
                let of = done.observed_generation.unwrap_or_default();
                let message = event_message("Pod resize completed", &pod.pod, of, "");
                self.ctx.note(&pod.key, EventKind::Normal, "ResizeCompleted", &message);
                resizing.in_progress = None;
            }
        }
        self.refresh_status(uid, now);
        // What it gave back others may have.
        self.may_give_room();
        self.retry_resizes |= self.records.get(uid).is_some_and(|record| record.resizing.is_some());
    }
}

/// The pod as it counts for its node's room: with what it was granted, and while it is being resized with what it still has
/// (`PodRequests` with `UseStatusResources`).
pub(in crate::node) fn as_it_counts(
    records: &std::collections::BTreeMap<PodUid, Record>,
    statuses: &StatusStore,
    pod: &DesiredPod,
) -> Rc<Pod> {
    let uid = &pod.key.uid;
    let record = records.get(uid);
    let granted = record.and_then(|record| record.worker.pod()).map_or(&pod.pod, |pod| &pod.pod);
    let resizing = record.and_then(|record| record.resizing.as_ref());
    if resizing.is_none_or(|resizing| resizing.in_progress.is_none()) {
        return granted.without_volumes();
    }
    let mut object = (**granted).clone();
    object.status = statuses.status(uid);
    object.into()
}

impl Work {
    /// It gives running containers other CPU and memory.
    pub(in crate::node) fn resizes(&self) -> bool {
        matches!(self, Self::Act(plan) if !plan.resizes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sync::worker::Worker;

    fn pod(cpu: &str) -> DesiredPod {
        let container = |name: &str, list: Value| json!({"name": name, "resources": {"requests": list}});
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {
            "initContainers": [container("i", json!({"cpu": "10m"}))],
            "containers": [container("c", json!({"cpu": cpu, "example.com/card": "1"})), container("d", json!({}))],
        }});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn cpu(pod: &DesiredPod) -> i64 {
        sizes_in(pod, "c").unwrap().cpu_request
    }

    #[test]
    fn a_pod_keeps_what_it_was_granted_and_all_else_is_as_it_is_wanted() {
        let mut record = Record::new(Worker::wanted(pod("100m").into(), false), None);
        assert!(
            !record.begins_resize(&pod("0.1")) && record.resizing.is_none(),
            "the same, otherwise written"
        );
        assert!(record.begins_resize(&pod("200m")));
        let mut wanted = pod("200m");
        let mut object = (*wanted.pod).clone();
        object.metadata.generation = Some(7);
        wanted.pod = object.into();
        record.want(wanted.clone());
        let held = record.worker.pod().unwrap();
        assert_eq!((cpu(held), held.pod.metadata.generation), (100, Some(7)));
        let requests = held.containers()[0].resources.as_ref().unwrap().requests.as_ref().unwrap();
        assert_eq!(requests["example.com/card"].0, "1");
        // Without a difference the object is not there twice.
        let same = record.as_granted(pod("100m"));
        assert_eq!(cpu(&same), 100);
        record.want_whole(wanted);
        assert_eq!(cpu(record.worker.pod().unwrap()), 200);
    }

    #[test]
    fn what_is_kept_comes_back() {
        let mut record = Record::new(Worker::wanted(pod("100m").into(), false), None);
        assert_eq!(record.kept_sizes(), None);
        record.resizing.get_or_insert_default().note(&"id".into(), Sizes::of_numbers([1, 2, 3, 4]));
        let status: PodStatus = serde_json::from_value(json!({"conditions": [
            {"type": "Ready", "status": "True"}, {"type": PENDING, "status": "True", "reason": "Deferred"}]}))
        .unwrap();
        let (resizing, granted) = Resizing::restored(&record.kept_sizes().unwrap(), &status);
        assert_eq!(resizing.actuated(&"id".into()), Some(Sizes::of_numbers([1, 2, 3, 4])));
        assert_eq!(resizing.conditions().count(), 1);
        let names: Vec<&str> = granted.iter().map(|(name, _)| &**name).collect();
        assert_eq!((names, granted[1].1.cpu_request), (vec!["i", "c", "d"], 100));
    }
}
