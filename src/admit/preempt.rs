//! PURE: chooses the pods that are preempted for a critical one (`preemption.CriticalPodAdmissionHandler`).
//!
//! ```text
//!     pods that may be preempted ─► by class ─► as few as suffice:  Guaranteed, when all others are preempted
//!                                                                   Burstable, with those and all BestEffort
//!                                                                   BestEffort, with both
//! ```
//!
//! A pod may be preempted when it is not critical, or of a lower priority. Of each class the pods closest to what is still
//! missing are chosen, one after the other.
//!
//! The caller terminates them with their own grace periods and waits for that, each with a warning event of [`REASON`] and
//! [`MESSAGE`]; their phase becomes Failed with the same two, and the condition `DisruptionTarget` is True for
//! `TerminationByKubelet` with [`CONDITION_MESSAGE`]. The critical pod is admitted, even if one of them does not terminate.

use std::cmp::Ordering;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Pod;

use super::resources::given_back;
use super::{Rejection, Shortage};
use crate::render::qos::{QosClass, is_critical_pod, pod_qos};

/// The reason of a preempted pod (`events.PreemptContainer`).
pub const REASON: &str = "Preempting";
/// The message of a preempted pod.
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
/// The message of its condition.
pub const CONDITION_MESSAGE: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// The pods to preempt, as their indexes in `others`: the least important class first, and within it in the order in which they
/// were chosen (`getPodsToPreempt`). `others` are the pods of the admission request; the pod itself is never chosen. When all
/// candidates together would not suffice, none is preempted and the pod is rejected.
pub fn victims(pod: &Pod, others: &[&Pod], shortages: &[Shortage]) -> Result<Vec<usize>, Rejection> {
    let may_end = others.iter().enumerate().filter(|(_, other)| preemptable(pod, other));
    let candidate = |(place, other): (usize, &&Pod)| Candidate {
        place,
        class: pod_qos(other),
        gives: shortages.iter().map(|shortage| given_back(other, &shortage.resource)).collect(),
        size: (given_back(other, "memory"), given_back(other, "cpu")),
    };
    let candidates: Vec<Candidate> = may_end.map(candidate).collect();
    let missing = shortages.iter().map(Shortage::missing).enumerate();
    let needs = Needs(missing.filter(|(_, amount)| *amount > 0).collect());
    let chosen = choose(&candidates, &needs).map_err(|unmet| {
        let message = format!(
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of \
             pods to preempt: no set of running pods found to reclaim resources: {}",
            unmet.words(shortages)
        );
        Rejection::new("UnexpectedAdmissionError", message)
    })?;
    Ok(chosen.into_iter().map(|candidate| candidate.place).collect())
}

/// As few of the higher classes as suffice when the lower ones are preempted anyway; then as few of the lower ones as are needed
/// beside those. The error is what remains missing.
fn choose<'a>(candidates: &'a [Candidate], needs: &Needs) -> Result<Vec<&'a Candidate>, Needs> {
    let of = |class| candidates.iter().filter(move |candidate| candidate.class == class).collect();
    let best_effort: Vec<&Candidate> = of(QosClass::BestEffort);
    let burstable: Vec<&Candidate> = of(QosClass::Burstable);
    let guaranteed: Vec<&Candidate> = of(QosClass::Guaranteed);
    let unmet = needs.less(&[&best_effort, &burstable, &guaranteed]);
    if !unmet.0.is_empty() {
        return Err(unmet);
    }
    let of_guaranteed = nearest(guaranteed, needs.less(&[&best_effort, &burstable]))?;
    let of_burstable = nearest(burstable, needs.less(&[&best_effort, &of_guaranteed]))?;
    let of_best_effort = nearest(best_effort, needs.less(&[&of_burstable, &of_guaranteed]))?;
    Ok([of_best_effort, of_burstable, of_guaranteed].concat())
}

/// `Preemptable`.
fn preemptable(preemptor: &Pod, other: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.priority);
    is_critical_pod(preemptor) && !is_critical_pod(other)
        || matches!((priority(preemptor), priority(other)), (Some(own), Some(its)) if own > its)
}

/// A pod that may be preempted.
struct Candidate {
    place: usize,
    class: QosClass,
    /// The amounts that it frees of each short resource.
    gives: Vec<i64>,
    /// Memory and CPU, by which pods are compared (`smallerResourceRequest`).
    size: (i64, i64),
}

/// The missing amounts: index in the shortages, and how much (`admissionRequirementList`); never zero.
struct Needs(Vec<(usize, i64)>);

impl Needs {
    /// What remains missing without these pods, one list after the other (`subtract`).
    fn less(&self, pods: &[&[&Candidate]]) -> Self {
        let left = self.0.iter().filter_map(|(which, amount)| {
            let mut left = *amount;
            for pod in pods.iter().copied().flatten() {
                left = left.saturating_sub(pod.gives[*which]);
                if left <= 0 {
                    break;
                }
            }
            (left > 0).then_some((*which, left))
        });
        Self(left.collect())
    }

    /// The distance of the pod from freeing all that is missing (`distance`): each need has the same weight, whatever its amount.
    #[expect(clippy::cast_precision_loss, reason = "it is a measure, and the kubelet's")]
    fn distance(&self, pod: &Candidate) -> f64 {
        let shares = self.0.iter().map(|(which, amount)| {
            let left = amount.saturating_sub(pod.gives[*which]);
            if left > 0 { (left as f64 / *amount as f64).powi(2) } else { 0.0 }
        });
        shares.sum()
    }

    /// `toString`.
    fn words(&self, shortages: &[Shortage]) -> String {
        let mut text = "[".to_owned();
        for (which, amount) in &self.0 {
            // Writing to a `String` does not fail.
            let _ = write!(text, "(res: {}, q: {amount}), ", shortages[*which].resource);
        }
        text + "]"
    }
}

/// The pods that free what is missing (`getPodsToPreemptByDistance`): the nearest is chosen, of equally near ones the smallest,
/// of equally small ones the last, until nothing is missing. The error is what remains missing with all of them.
fn nearest(mut pods: Vec<&Candidate>, mut needs: Needs) -> Result<Vec<&Candidate>, Needs> {
    let mut chosen = Vec::new();
    while !needs.0.is_empty() {
        let mut best: Option<(f64, usize)> = None;
        for (index, pod) in pods.iter().enumerate() {
            let distance = needs.distance(pod);
            let nearer = best.is_none_or(|(least, place)| match distance.total_cmp(&least) {
                Ordering::Less => true,
                Ordering::Equal => pod.size <= pods[place].size,
                Ordering::Greater => false,
            });
            if nearer {
                best = Some((distance, index));
            }
        }
        let Some((_, index)) = best else { return Err(needs) };
        // The last one moves to its index, as in the kubelet: the order decides between equals.
        let pod = pods.swap_remove(index);
        needs = needs.less(&[&[pod]]);
        chosen.push(pod);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests;
