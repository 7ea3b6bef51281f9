//! Admission of the pods that are bound to this node (`admit`).
//!
//! A pod is admitted once: one that runs here keeps running, however the node changes. Until the node's labels and taints are
//! known no pod is admitted. A pod that does not match them is tried once more a moment later, since the update of a label may
//! arrive after the pod's. A critical pod that lacks room waits for the pods that are terminated for it (`preemption`). While
//! the node is short of memory or disk, a pod that is not admitted for that fails (`managerImpl.Admit`).

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

use crate::admit::arrivals::{Answers, Arrival, answer};
use crate::admit::{Rejection, Remedy};
use crate::cri::Runtime;
use crate::eviction::pods::refusal;
use crate::model::{DesiredPod, Mono, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::node::effects::{Effect, Effects};
use crate::node::pods::{Pods, REJECTED, Record, as_it_counts};
use crate::render::NodeSettings;
use crate::render::admission::refusal_of_settings;
use crate::source::api_node::NodeFields;
use crate::source::{RefusedPod, SourceUpdate};
use crate::status::eviction::EVICTED;
use crate::sync::worker::Life;

/// The decisions.
#[derive(Default)]
pub(super) struct Admission {
    /// The rejected pods, while the API server has them.
    refused: SortedMap<PodUid, RefusedPod>,
    /// The pods that are tried once more, and when.
    doubted: SortedMap<PodUid, Mono>,
    /// The fields of the Node in its last update.
    node: Option<NodeFields>,
}

/// A pod of the API server that the node's settings do not permit fails for good: its controller may create another one for
/// another node (`sysctl.patternAllowlist`, `appArmorAdmitHandler`).
fn of_settings(node: &NodeSettings, pod: &DesiredPod) -> Option<Rejection> {
    let why = refusal_of_settings(node, pod)?;
    Some(Rejection { reason: why.reason.into(), message: why.message, remedy: Remedy::None })
}

impl Admission {
    /// When the next pod is tried once more.
    pub(super) fn due(&self) -> Option<Mono> {
        self.doubted.values().copied().min()
    }

    /// The Node's fields are known, from the API server or the offline copy.
    pub(super) fn knows_node(&self) -> bool {
        self.node.is_some()
    }

    /// Sets the Node's fields; false when none of those changed that admission depends on.
    pub(super) fn set_node(&mut self, node: &NodeFields) -> bool {
        let of = |node: &NodeFields| {
            (node.labels.clone(), node.taints.clone(), node.pod_cidrs.clone(), node.scalars.clone())
        };
        let is_news = self.node.as_ref().map(of) != Some(of(node));
        if is_news {
            self.node = Some(node.clone());
        }
        is_news
    }

    /// Removes from the update the pods that may not run here, and those for which that is not decided.
    pub(super) fn admit<R: Runtime + 'static>(
        &mut self,
        update: &mut SourceUpdate,
        pods: &Pods<R>,
        now: Mono,
        out: &mut Effects,
    ) {
        let relist = pods.relist();
        let is_here = |uid: &PodUid| {
            pods.desired().pod(uid).is_some()
                || pods.get(uid).is_some()
                || relist.is_some_and(|relist| relist.pods.contains_key(uid) || relist.former.contains(uid))
        };
        let there: SortedSet<PodUid> =
            update.pods.iter().map(|sourced| sourced.pod.key.uid.clone()).collect();
        self.refused.retain(|uid, _| there.contains(uid));
        self.doubted.retain(|uid, _| there.contains(uid) && !is_here(uid));
        let new = update.pods.iter().map(|sourced| &sourced.pod);
        let new = new.filter(|pod| !is_here(&pod.key.uid) && !self.refused.contains_key(&pod.key.uid));
        let arrivals: Vec<Arrival> = new.map(|pod| arrival(pod, pods)).collect();
        let others = others(update, &there, &is_here, pods);
        let view = pods.room().view();
        let doubted = std::mem::take(&mut self.doubted);
        let Answers { refused, waiting, preempted, doubted } =
            answer(arrivals, view.as_ref(), others, doubted, update.complete, now);
        self.doubted = doubted;
        for (uid, why) in &waiting {
            if let Some(Rejection { reason, message, .. }) = why {
                log::debug!("pod {uid}: not admitted yet: {reason}: {message}; retrying");
            }
        }
        for (uid, rejection) in refused {
            let Some(sourced) = update.pods.iter().find(|sourced| sourced.pod.key.uid == uid) else {
                continue;
            };
            let key = sourced.pod.key.clone();
            let message = format!("{REJECTED}{}", rejection.message).into();
            let generation = sourced.pod.pod.metadata.generation;
            self.refused.insert(uid, RefusedPod { key, reason: rejection.reason, message, generation });
        }
        update.server.refused.extend(self.refused.values().cloned());
        update.pods.retain(|sourced| {
            let uid = &sourced.pod.key.uid;
            !self.refused.contains_key(uid) && !waiting.contains_key(uid)
        });
        preempted.into_iter().for_each(|uid| out.push(Effect::Preempt(uid)));
    }
}

/// A new pod, with the reasons against it that do not depend on resources.
fn arrival<R: Runtime + 'static>(pod: &DesiredPod, pods: &Pods<R>) -> Arrival {
    let under_pressure = refusal(pods.conditions(), pod);
    let under_pressure =
        under_pressure.map(|message| Rejection { reason: EVICTED.into(), message, remedy: Remedy::None });
    let refusal = under_pressure.or_else(|| of_settings(&pods.ctx().node, pod));
    Arrival { uid: pod.key.uid.clone(), pod: pod.pod.open(), refusal }
}

/// The pods whose resources count beside those of the update.
fn others<R: Runtime + 'static>(
    update: &SourceUpdate,
    there: &SortedSet<PodUid>,
    is_here: &dyn Fn(&PodUid) -> bool,
    pods: &Pods<R>,
) -> Vec<Rc<Pod>> {
    let relist = pods.relist();
    // Static pods and terminating pods count until they are gone. A pod that the API server no longer has does not count, as in
    // the kubelet, whose pod manager has removed it (`HandlePodRemoves`).
    let begins = |uid: &PodUid| {
        pods.get(uid).is_some_and(Record::is_admitted)
            || relist.is_some_and(|relist| relist.pods.contains_key(uid))
    };
    let of_files = pods.desired().entries().map(|entry| &entry.wanted.pod);
    let of_files = of_files.filter(|pod| !pod.pod.is_of_api_server() && begins(&pod.key.uid));
    let ending = pods.records().values().filter_map(|record| record.worker().pod());
    let server = &update.server.ending;
    let is_known_to_source =
        |uid: &PodUid| !update.complete || server.iter().any(|ending| ending.key.uid == *uid);
    let ending = ending.filter(|pod| {
        pod.pod.is_of_api_server() && !there.contains(&pod.key.uid) && is_known_to_source(&pod.key.uid)
    });
    let here = update.pods.iter().map(|sourced| &sourced.pod).filter(|pod| is_here(&pod.key.uid));
    let others = of_files.chain(ending.map(|pod| &**pod)).chain(here);
    let has_ended = |uid: &PodUid| {
        let ends =
            pods.records().get(uid).is_some_and(|record| matches!(record.worker().life(), Life::Ending(_)));
        pods.statuses().has_ended(uid) && !ends
    };
    let others = others.filter(|pod| !has_ended(&pod.key.uid));
    let as_it_counts = |pod| as_it_counts(pods.records(), pods.statuses(), pod);
    others.map(as_it_counts).collect()
}
