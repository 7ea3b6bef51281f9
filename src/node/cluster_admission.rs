//! Which of the pods that are bound to this node may run on it (`admit`).
//!
//! A pod is asked about when it comes, and not again: one that is here runs on, whatever becomes of the node. Until the
//! node's labels and taints are known none is admitted; one that they do not fit is asked about once more a moment later, for
//! the word of a new label may come behind that of the pod. A critical one that lacks room waits for those that end for it
//! (`preemption`).

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

use super::agent::Agent;
use super::shutdown::disrupt;
use crate::admit::preempt::{self, victims};
use crate::admit::{NodeView, Remedy, Resources, admit, first_come};
use crate::cluster::node_object::Machine;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::ADMISSION_DOUBT;
use crate::model::{Mono, PodUid};
use crate::source::api_node::NodeMarks;
use crate::source::identity::is_of_api_server;
use crate::source::{RefusedPod, SourceUpdate};
use crate::status::Phase;
use crate::sync::worker::Life;

/// What pods are admitted by, and what was decided.
pub(super) struct Admission {
    /// `None` = not known yet.
    marks: Option<NodeMarks>,
    allocatable: Resources,
    name: Box<str>,
    /// The pods that were refused, for as long as the server has them.
    refused: BTreeMap<PodUid, RefusedPod>,
    /// Those that the node's labels do not fit, and until when that is doubted.
    doubted: BTreeMap<PodUid, Mono>,
}

impl Admission {
    pub(super) fn new(machine: &Machine) -> Self {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let allocatable = Resources {
            milli_cpu: number(machine.cpus.saturating_mul(1000)),
            memory: number(machine.memory.saturating_sub(machine.memory_reserved)),
            ephemeral_storage: number(machine.disk.saturating_sub(machine.disk_reserved)),
            pods: i64::try_from(machine.pods).unwrap_or(i64::MAX),
            scalars: BTreeMap::new(),
        };
        Self {
            marks: None,
            allocatable,
            name: machine.name.clone(),
            refused: BTreeMap::new(),
            doubted: BTreeMap::new(),
        }
    }

    /// When doubts are over.
    pub(super) fn due(&self) -> Option<Mono> {
        self.doubted.values().copied().min()
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// The node's labels or taints are others now.
    pub(super) fn node_marked(&mut self, marks: NodeMarks) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.admission.marks = Some(marks);
        self.ask_again();
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
                || relist.is_some_and(|relist| relist.pods.contains_key(uid))
        };
        let Some(cluster) = &mut self.cluster else { return };
        let admission = &mut cluster.admission;
        let there: BTreeSet<PodUid> = update.pods.iter().map(|sourced| sourced.pod.key.uid.clone()).collect();
        admission.refused.retain(|uid, _| there.contains(uid));
        admission.doubted.retain(|uid, _| there.contains(uid) && !is_here(uid));
        // Static pods, and those that end: they count until they are gone.
        let of_files =
            self.desired.entries().map(|entry| &entry.wanted.pod).filter(|pod| !is_of_api_server(&pod.pod));
        let ending = self.records.values().filter_map(|record| record.worker.pod());
        let ending = ending.filter(|pod| is_of_api_server(&pod.pod) && !there.contains(&pod.key.uid));
        let here = update.pods.iter().map(|sourced| &sourced.pod).filter(|pod| is_here(&pod.key.uid));
        let others = of_files.chain(ending.map(|pod| &**pod)).chain(here);
        let has_ended = |uid: &PodUid| {
            let ends =
                self.records.get(uid).is_some_and(|record| matches!(record.worker.life(), Life::Ending(_)));
            self.statuses.has_ended(uid) && !ends
        };
        let others = others.filter(|pod| !has_ended(&pod.key.uid));
        let mut others: Vec<Rc<Pod>> = others.map(|pod| pod.pod.clone()).collect();

        let new = update.pods.iter().map(|sourced| &sourced.pod).filter(|pod| !is_here(&pod.key.uid));
        let mut new: Vec<(PodUid, Rc<Pod>)> = new.map(|pod| (pod.key.uid.clone(), pod.pod.clone())).collect();
        new.sort_by(|(_, a), (_, b)| first_come(a, b));
        let (mut waits, mut preempted) = (BTreeSet::new(), BTreeSet::new());
        for (uid, pod) in new {
            if admission.refused.contains_key(&uid) {
                continue;
            }
            let Some(marks) = &admission.marks else {
                waits.insert(uid);
                continue;
            };
            let view = NodeView {
                name: &admission.name,
                labels: &marks.labels,
                taints: &marks.taints,
                allocatable: &admission.allocatable,
                declared_features: &[],
            };
            let Err(rejection) = admit(&pod, &view, &mut others.iter().map(|other| &**other)) else {
                admission.doubted.remove(&uid);
                others.push(pod);
                continue;
            };
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
            let sourced = update.pods.iter().find(|sourced| sourced.pod.key.uid == uid);
            let Some(key) = sourced.map(|sourced| sourced.pod.key.clone()) else { continue };
            log::warn!("pod {key}: {}: {}", rejection.reason, rejection.message);
            let message = format!("Pod was rejected: {}", rejection.message).into();
            let refused = RefusedPod { key, reason: rejection.reason.into_owned().into(), message };
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

    /// The pod ends for a critical one, for good (`evictPodsToFreeRequests`).
    fn preempt(&mut self, uid: &PodUid) {
        let Some(record) = self.records.get_mut(uid).filter(|record| !record.set_aside) else { return };
        if record.worker.life() != Life::Syncing {
            return;
        }
        record.cut_off_act();
        (self.ctx.notes)(record.worker.key(), EventKind::Warning, preempt::REASON, preempt::MESSAGE);
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
