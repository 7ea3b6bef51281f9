//! Which of the pods that are bound to this node may run on it (`admit`).
//!
//! A pod is asked about when it comes, and not again: one that is here runs on, whatever becomes of the node. Until the
//! node's labels and taints are known none is admitted; one that they do not fit is asked about once more a moment later, for
//! the word of a new label may come behind that of the pod. A critical one that lacks room waits for those that end for it
//! (`preemption`). While the node is short of memory or disk one that may not come then fails (`managerImpl.Admit`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

use super::agent::Agent;
use super::resizes::as_it_counts;
use super::shutdown::disrupt;
use crate::admit::preempt::{self, victims};
use crate::admit::resize::Pending;
use crate::admit::{DECLARED_FEATURES, NodeView, Rejection, Remedy, Resources, admit, first_come, fits};
use crate::cluster::node_object::Machine;
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::eviction::pods::refusal;
use crate::limits::{ADMISSION_DOUBT, RESIZES_WAITING_BYTES_MAX};
use crate::model::{DesiredPod, Mono, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::render::NodeSettings;
use crate::render::admission::refusal_of_settings;
use crate::source::api_node::NodeMarks;
use crate::source::{RefusedPod, SourceUpdate};
use crate::status::Phase;
use crate::status::eviction::EVICTED;
use crate::store::keep::content::Marks;
use crate::sync::worker::Life;

/// What the message of a pod's status begins with when the node does not take it.
const REJECTED: &str = "Pod was rejected: ";

/// Says that a pod does not run here (`rejectPod`).
pub(super) fn note_refusal(note: &dyn Fn(About<'_>, EventKind, &'static str, &str), refused: &RefusedPod) {
    let RefusedPod { key, message, .. } = refused;
    let message = message.strip_prefix(REJECTED).unwrap_or(message);
    match &refused.reason {
        Cow::Borrowed(reason) => note(key.into(), EventKind::Warning, reason, message),
        // Of a resource that only this cluster has: the status alone has that word.
        Cow::Owned(reason) => log::warn!("pod {key}: {reason}: {message}"),
    }
}

/// What pods are admitted by, and what was decided.
pub(super) struct Admission {
    /// `None` = not known yet.
    marks: Option<NodeMarks>,
    allocatable: Resources,
    name: Box<str>,
    /// The pods that were refused, for as long as the server has them.
    refused: SortedMap<PodUid, RefusedPod>,
    /// Those that the node's labels do not fit, and until when that is doubted.
    doubted: SortedMap<PodUid, Mono>,
}

impl Admission {
    pub(super) fn new(machine: &Machine) -> Self {
        Self {
            marks: None,
            allocatable: machine.allocatable(),
            name: machine.name.clone(),
            refused: SortedMap::new(),
            doubted: SortedMap::new(),
        }
    }

    /// The node's labels, once they are known.
    pub(super) fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.marks.as_ref().map(|marks| &marks.labels)
    }

    /// When doubts are over.
    pub(super) fn due(&self) -> Option<Mono> {
        self.doubted.values().copied().min()
    }
}

/// A pod of the API server that the node's settings do not let run fails for good: whoever made it may make another, for
/// another node (`sysctl.patternAllowlist`, `appArmorAdmitHandler`).
fn of_settings(node: &NodeSettings, pod: &DesiredPod) -> Result<(), Rejection> {
    let Some(why) = refusal_of_settings(node, pod) else { return Ok(()) };
    Err(Rejection { reason: why.reason.into(), message: why.message, remedy: Remedy::None })
}

impl<R: Runtime + 'static> Agent<R> {
    /// Somebody, perhaps this agent, changed the Node; `None` = it was deleted.
    pub(super) fn node_marked(&mut self, marks: Option<NodeMarks>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let Some(marks) = marks else { return cluster.was_deleted(now) };
        if cluster.registered.as_ref().is_some_and(|uid| *uid != marks.uid) {
            cluster.was_deleted(now);
        }
        cluster.compare(&marks.conditions, now);
        cluster.network.has(&marks.pod_cidrs, now);
        let of = |marks: &NodeMarks| {
            (marks.labels.clone(), marks.taints.clone(), marks.pod_cidrs.clone(), marks.scalars.clone())
        };
        if cluster.admission.marks.as_ref().map(of) != Some(of(&marks)) {
            cluster.keeping.put_marks(&cluster.machine.name, &marks, now);
            // What others have put on the Node counts (`getNodeAnyWay`).
            cluster.admission.allocatable.scalars.clone_from(&marks.scalars);
            cluster.admission.marks = Some(marks);
            self.ask_again();
            // Static pods that wait are asked about by what the Node says.
            for record in self.records.values_mut() {
                record.awaits_room = record.awaits_room.map(|_| usize::MAX);
            }
        }
    }

    /// The Node was this when the server was last heard.
    pub(super) fn marks_kept(&mut self, marks: Marks) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.admission.marks.is_none() {
            let Marks { labels, taints, pod_cidrs } = marks;
            cluster.network.has(&pod_cidrs, now);
            cluster.admission.marks = Some(NodeMarks { labels, taints, pod_cidrs, ..NodeMarks::default() });
        }
    }

    /// Asks about pods once more that wait for an answer.
    pub(super) fn ask_again(&mut self) {
        let last = self.cluster.as_ref().and_then(|cluster| cluster.following.last.clone());
        if let Some(update) = last {
            self.source(update);
        }
    }

    /// Takes out of the update the pods that may not run here, and those of which that is not known yet.
    pub(super) fn admit_pods(&mut self, update: &mut SourceUpdate) {
        let now = self.ctx.clock.now().mono;
        let relist = self.relist.as_ref();
        let is_here = |uid: &PodUid| {
            self.desired.pod(uid).is_some()
                || self.records.contains_key(uid)
                || relist.is_some_and(|relist| relist.pods.contains_key(uid) || relist.former.contains(uid))
        };
        let Some(cluster) = &mut self.cluster else { return };
        let admission = &mut cluster.admission;
        let there: SortedSet<PodUid> =
            update.pods.iter().map(|sourced| sourced.pod.key.uid.clone()).collect();
        admission.refused.retain(|uid, _| there.contains(uid));
        admission.doubted.retain(|uid, _| there.contains(uid) && !is_here(uid));
        // Static pods, and those that end: they count until they are gone. One that the server has forgotten does not, as with
        // the kubelet, whose pod manager has it no more (`HandlePodRemoves`).
        let begins = |uid: &PodUid| {
            self.records.get(uid).is_some_and(|record| record.admitted)
                || relist.is_some_and(|relist| relist.pods.contains_key(uid))
        };
        let of_files = self.desired.entries().map(|entry| &entry.wanted.pod);
        let of_files = of_files.filter(|pod| !pod.pod.is_of_api_server() && begins(&pod.key.uid));
        let ending = self.records.values().filter_map(|record| record.worker.pod());
        let server = &update.server.ending;
        let is_told = |uid: &PodUid| !update.complete || server.iter().any(|ending| ending.key.uid == *uid);
        let ending = ending.filter(|pod| {
            pod.pod.is_of_api_server() && !there.contains(&pod.key.uid) && is_told(&pod.key.uid)
        });
        let here = update.pods.iter().map(|sourced| &sourced.pod).filter(|pod| is_here(&pod.key.uid));
        let others = of_files.chain(ending.map(|pod| &**pod)).chain(here);
        let has_ended = |uid: &PodUid| {
            let ends =
                self.records.get(uid).is_some_and(|record| matches!(record.worker.life(), Life::Ending(_)));
            self.statuses.has_ended(uid) && !ends
        };
        let others = others.filter(|pod| !has_ended(&pod.key.uid));
        let as_it_counts = |pod| as_it_counts(&self.records, &self.statuses, pod);
        let mut others: Vec<Rc<Pod>> = others.map(as_it_counts).collect();

        let new = update.pods.iter().map(|sourced| &sourced.pod).filter(|pod| !is_here(&pod.key.uid));
        let mut new: Vec<(PodUid, Rc<Pod>)> = new.map(|pod| (pod.key.uid.clone(), pod.pod.open())).collect();
        new.sort_by(|(_, a), (_, b)| first_come(a, b));
        let (mut waits, mut preempted) = (SortedSet::new(), SortedSet::new());
        for (uid, pod) in new {
            if admission.refused.contains_key(&uid) {
                continue;
            }
            let Some(marks) = &admission.marks else {
                waits.insert(uid);
                continue;
            };
            let Some(sourced) = update.pods.iter().find(|sourced| sourced.pod.key.uid == uid) else {
                continue;
            };
            let view = NodeView {
                name: &admission.name,
                labels: &marks.labels,
                taints: &marks.taints,
                allocatable: &admission.allocatable,
                declared_features: DECLARED_FEATURES,
            };
            let under_pressure = match refusal(self.watching.conditions(), &sourced.pod) {
                Some(message) => Err(Rejection { reason: EVICTED.into(), message, remedy: Remedy::None }),
                None => Ok(()),
            };
            let by_rooms = || admit(&pod, &view, &mut others.iter().map(|other| &**other));
            let by_settings = || of_settings(&self.ctx.node, &sourced.pod);
            let Err(rejection) = under_pressure.and_then(|()| by_settings()).and_then(|()| by_rooms()) else {
                admission.doubted.remove(&uid);
                others.push(pod);
                continue;
            };
            if !update.complete {
                // The last word on it is the server's.
                log::debug!("pod {uid}: waits for the server: {}: {}", rejection.reason, rejection.message);
                waits.insert(uid);
                continue;
            }
            let rejection = match &rejection.remedy {
                Remedy::None => rejection,
                Remedy::FreshNode => {
                    let doubt = *admission.doubted.entry(uid.clone()).or_insert(now + ADMISSION_DOUBT);
                    if now < doubt {
                        waits.insert(uid);
                        continue;
                    }
                    rejection
                }
                Remedy::Preemption(shortages) => {
                    let all: Vec<&Pod> = others.iter().map(|other| &**other).collect();
                    match victims(&pod, &all, shortages) {
                        Ok(places) => {
                            let uid_of =
                                |place: usize| all.get(place)?.metadata.uid.as_deref().map(PodUid::from);
                            preempted.extend(places.into_iter().filter_map(uid_of));
                            // Until they have ended they count.
                            admission.doubted.insert(uid.clone(), now + ADMISSION_DOUBT);
                            waits.insert(uid);
                            continue;
                        }
                        Err(hopeless) => hopeless,
                    }
                }
            };
            admission.doubted.remove(&uid);
            let key = sourced.pod.key.clone();
            let message = format!("{REJECTED}{}", rejection.message).into();
            let generation = sourced.pod.pod.metadata.generation;
            let refused = RefusedPod { key, reason: rejection.reason, message, generation };
            admission.refused.insert(uid, refused);
        }
        update.server.refused.extend(admission.refused.values().cloned());
        let refused = &admission.refused;
        update.pods.retain(|sourced| {
            let uid = &sourced.pod.key.uid;
            !refused.contains_key(uid) && !waits.contains(uid)
        });
        for uid in preempted {
            self.preempt(&uid);
        }
    }

    /// Tells the source which pods have something here.
    pub(super) fn tell_pods_here(&self) {
        let (Some(cluster), Some(relist)) = (&self.cluster, &self.relist) else { return };
        let former = relist.former.iter().map(|former| &former.key.uid);
        cluster
            .shared
            .here
            .are(self.records.keys().chain(relist.pods.keys()).chain(former).cloned().collect());
    }

    /// Whether a pod that is here may have the CPU and memory that it is wanted with (`canAdmitPod`): a critical one others end for.
    /// `None` = that is not known yet.
    pub(super) fn asks_for_room(&mut self, uid: &PodUid, wanted: &DesiredPod) -> Option<Result<(), Pending>> {
        let Some(cluster) = &self.cluster else { return Some(Ok(())) };
        let admission = &cluster.admission;
        let marks = admission.marks.as_ref()?;
        let ends = |of: &PodUid| {
            self.records.get(of).is_some_and(|record| matches!(record.worker.life(), Life::Ending(_)))
        };
        let is_told = |of: &PodUid| self.desired.pod(of).is_some() || self.is_deleted(of);
        let takes = |of: &PodUid| of != uid && is_told(of) && (!self.statuses.has_ended(of) || ends(of));
        let here = self.records.values().filter_map(|record| record.worker.pod());
        let waiting = self.desired.entries().map(|entry| &entry.wanted.pod);
        let waiting = waiting.filter(|pod| !self.records.contains_key(&pod.key.uid));
        let others = here.map(|pod| &**pod).chain(waiting).filter(|pod| takes(&pod.key.uid));
        let others: Vec<Rc<Pod>> =
            others.map(|pod| as_it_counts(&self.records, &self.statuses, pod)).collect();
        let view = NodeView {
            name: &admission.name,
            labels: &marks.labels,
            taints: &marks.taints,
            allocatable: &admission.allocatable,
            declared_features: DECLARED_FEATURES,
        };
        let Err(rejection) = admit(&wanted.pod, &view, &mut others.iter().map(|pod| &**pod)) else {
            return Some(Ok(()));
        };
        let (_, waiting) = self.resizes_waiting(Some(uid));
        let own = self.desired.pod(uid).map_or(0, |entry| entry.wanted.bytes);
        if waiting + own > RESIZES_WAITING_BYTES_MAX {
            log::warn!(
                "pod {}: resized though it does not fit, for too many wait: {}",
                wanted.key,
                rejection.message
            );
            return Some(Ok(()));
        }
        if let Remedy::Preemption(shortages) = &rejection.remedy {
            let all: Vec<&Pod> = others.iter().map(|pod| &**pod).collect();
            let places = victims(&wanted.pod, &all, shortages).unwrap_or_default().into_iter();
            let uids = places.filter_map(|place| all.get(place)?.metadata.uid.as_deref().map(PodUid::from));
            for uid in uids.collect::<Vec<_>>() {
                self.preempt(&uid);
            }
        }
        Some(Err(Pending::of(rejection)))
    }

    /// Whether a static pod may begin: others end for it, or it has failed for good, when it may not. `None` = the node is alone.
    /// While the Node is not known it waits for no more than room.
    pub(super) fn admit_static(
        &mut self,
        uid: &PodUid,
        pod: &DesiredPod,
        others: &[Rc<Pod>],
    ) -> Option<Result<(), Option<Rejection>>> {
        let admission = &self.cluster.as_ref()?.admission;
        let all: Vec<&Pod> = others.iter().map(|other| &**other).collect();
        let allocatable = admission.allocatable.with_uncounted(&pod.pod);
        let Some(marks) = &admission.marks else {
            return Some(fits(&pod.pod, &allocatable, &mut all.iter().copied()).map_err(Some));
        };
        let view = NodeView {
            name: &admission.name,
            labels: &marks.labels,
            taints: &marks.taints,
            allocatable: &allocatable,
            declared_features: DECLARED_FEATURES,
        };
        let Err(mut rejection) = admit(&pod.pod, &view, &mut all.iter().copied()) else {
            return Some(Ok(()));
        };
        if let Remedy::Preemption(shortages) = &rejection.remedy {
            match victims(&pod.pod, &all, shortages) {
                Ok(places) => {
                    let uids = places.into_iter().filter_map(|place| all.get(place)?.metadata.uid.as_deref());
                    for victim in uids.map(PodUid::from).collect::<Vec<_>>() {
                        self.preempt(&victim);
                    }
                    return Some(Err(None));
                }
                Err(hopeless) => rejection = hopeless,
            }
        }
        self.reject_static(uid, rejection);
        Some(Err(None))
    }

    /// The static pod has failed, for good (`rejectPod`).
    fn reject_static(&mut self, uid: &PodUid, rejection: Rejection) {
        let Some(record) = self.records.get(uid) else { return };
        let refused = RefusedPod {
            key: record.worker.key().clone(),
            reason: rejection.reason,
            message: format!("{REJECTED}{}", rejection.message).into(),
            generation: None,
        };
        note_refusal(&*self.ctx.notes, &refused);
        self.reject_pod(uid, refused.reason.into_owned(), refused.message.into());
    }

    /// The pod ends for a critical one, for good (`evictPodsToFreeRequests`).
    fn preempt(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get_mut(uid).filter(|record| !record.set_aside) else { return };
        if record.worker.life() != Life::Syncing {
            return;
        }
        record.cut_off_act();
        self.ctx.note(record.worker.key(), EventKind::Warning, preempt::REASON, preempt::MESSAGE);
        let now = self.ctx.clock.now();
        let mut status = self.statuses.status(uid).unwrap_or_default();
        status.phase = Some(Phase::Failed.as_str().to_owned());
        status.reason = Some(preempt::REASON.to_owned());
        status.message = Some(preempt::MESSAGE.to_owned());
        disrupt(&mut status, preempt::CONDITION_MESSAGE, now.wall);
        self.statuses.put(uid, status);
        self.refresh_status(uid, now);
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.finished();
        }
        self.drive(uid);
    }
}
