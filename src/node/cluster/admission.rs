//! Which of the pods that are bound to this node may run on it (`admit`).
//!
//! A pod is asked about when it comes, and not again: one that is here runs on, whatever becomes of the node. Until the
//! node's labels and taints are known none is admitted; one that they do not fit is asked about once more a moment later, for
//! the word of a new label may come behind that of the pod. A critical one that lacks room waits for those that end for it
//! (`preemption`). While the node is short of memory or disk one that may not come then fails (`managerImpl.Admit`).

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

/// What was decided.
#[derive(Default)]
pub(super) struct Admission {
    /// The pods that were refused, for as long as the server has them.
    refused: SortedMap<PodUid, RefusedPod>,
    /// Those that are asked about again, and when.
    doubted: SortedMap<PodUid, Mono>,
    /// The Node as it was told last.
    node: Option<NodeFields>,
}

/// A pod of the API server that the node's settings do not let run fails for good: whoever made it may make another, for
/// another node (`sysctl.patternAllowlist`, `appArmorAdmitHandler`).
fn of_settings(node: &NodeSettings, pod: &DesiredPod) -> Option<Rejection> {
    let why = refusal_of_settings(node, pod)?;
    Some(Rejection { reason: why.reason.into(), message: why.message, remedy: Remedy::None })
}

impl Admission {
    /// When doubts are over.
    pub(super) fn due(&self) -> Option<Mono> {
        self.doubted.values().copied().min()
    }

    /// The Node was told, or what was kept of it.
    pub(super) fn knows_node(&self) -> bool {
        self.node.is_some()
    }

    /// This is the Node now; false when nothing of it is another by which pods are admitted.
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

    /// Takes out of the update the pods that may not run here, and those of which that is not known yet.
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
                log::debug!("pod {uid}: waits for the server: {reason}: {message}");
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

/// A pod that came, and what the node has against it whatever room there is.
fn arrival<R: Runtime + 'static>(pod: &DesiredPod, pods: &Pods<R>) -> Arrival {
    let under_pressure = refusal(pods.conditions(), pod);
    let under_pressure =
        under_pressure.map(|message| Rejection { reason: EVICTED.into(), message, remedy: Remedy::None });
    let refusal = under_pressure.or_else(|| of_settings(&pods.ctx().node, pod));
    Arrival { uid: pod.key.uid.clone(), pod: pod.pod.open(), refusal }
}

/// The pods beside which those of the update come, as they count.
fn others<R: Runtime + 'static>(
    update: &SourceUpdate,
    there: &SortedSet<PodUid>,
    is_here: &dyn Fn(&PodUid) -> bool,
    pods: &Pods<R>,
) -> Vec<Rc<Pod>> {
    let relist = pods.relist();
    // Static pods, and those that end: they count until they are gone. One that the server has forgotten does not, as with
    // the kubelet, whose pod manager has it no more (`HandlePodRemoves`).
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
