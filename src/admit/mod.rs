//! PURE: admission of pods of an API server to this node (`predicateAdmitHandler.Admit`, `scheduler.AdmissionCheck`).
//!
//! ```text
//!     rule                                              reason
//!     label kubernetes.io/os is that of another system  PodOSSelectorNodeLabelDoesNotMatch   alone, before all others
//!     spec.os.name is another system                    PodOSNotSupported                    likewise
//!   ┌ more pods than allowed                            OutOfpods                            ┐ a critical pod that lacks
//!   │ cpu, memory, ephemeral-storage, then the others   OutOfcpu, OutOfmemory, OutOf...      ┘ nothing else may preempt
//!   │ nodeSelector, required node affinity              NodeAffinity                         alone: read the node again
//!   │ spec.nodeName is another node                     NodeName
//!   │ a host port is taken                              NodePorts
//!   └ a NoExecute taint, unless the pod is static       TaintToleration
//!     a feature that the node does not declare          PodFeatureUnsupported                (`declaredFeaturesAdmitHandler`)
//! ```
//!
//! All rules of the bracket are checked; the first failure is reported, of a critical pod the first that is not about resources.
//! Pod settings that no node of this kind supports (sysctls, `AppArmor`, supplemental groups) are checked in `render::admission`,
//! those that are refused under memory or disk pressure in `eviction`. 1.36 has no rule about the restart policies of init
//! containers any more; of that one the kubelet kept only the reason's name.
//!
//! Callers: pods that arrive together are taken in [`first_come`]'s order. A pod for which [`is_ended`] is true, or that is to be
//! terminated already, is not checked (`HandlePodAdditions`). `others` are the admitted pods that have not terminated;
//! terminating pods count until they are gone (`filterOutInactivePods`). A pod of the API has to have the annotation
//! `kubernetes.io/config.source: api`, which is set whatever value it had (`podConfig`): otherwise any user who may create a pod
//! could mark it static, which makes it critical.
//!
//! Differs from the kubelet:
//! - Resources beside the first four are checked in the order of their names; the kubelet's order is random.
//! - A missing feature is checked before preemption: the kubelet preempts other pods first and rejects the pod then.
//! - There are no device plugins and no CPU manager here, so none of their rules fails (`UnexpectedAdmissionError`), and there is
//!   always a node object (`InvalidNodeInfo`).
//! - Sums saturate at the largest number, where the kubelet's overflow.

mod affinity;
pub mod arrivals;
mod features;
mod ports;
pub mod preempt;
mod resources;
mod taints;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, Pod, PodSpec, PodStatus, Taint};

use crate::render::qos::{is_critical_pod, is_static_pod, pod_qos};
use crate::status::Phase;

pub use features::DECLARED_FEATURES;
pub use resources::{Resources, Shortage};

/// The operating system of all nodes of smolet (`runtime.GOOS`).
const OS: &str = "linux";
/// `LabelOSStable`.
const OS_LABEL: &str = "kubernetes.io/os";

/// Properties of the node, from its API object.
///
/// Except `unschedulable`: the pod has been bound.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.labels`.
    pub labels: &'a BTreeMap<String, String>,
    /// `spec.taints`. Only the effect `NoExecute` counts.
    pub taints: &'a [Taint],
    /// `status.allocatable`, parsed.
    pub allocatable: &'a Resources,
    /// `status.declaredFeatures`.
    pub declared_features: &'a [&'a str],
}

/// The selector matches a node with these labels (`CheckNodeAffinity`).
pub fn chooses(selector: &NodeSelector, labels: &BTreeMap<String, String>) -> bool {
    let allocatable = Resources::default();
    let node = NodeView { name: "", labels, taints: &[], allocatable: &allocatable, declared_features: &[] };
    affinity::chooses(selector, &node)
}

impl NodeView<'_> {
    /// One label, as the kubelet sees it: before matching it corrects the label of the operating system in its own copy of the
    /// node (`rejectPodAdmissionBasedOnOSSelector`), if that has any label at all.
    fn label(&self, key: &str) -> Option<&str> {
        if key == OS_LABEL && !self.labels.is_empty() {
            return Some(OS);
        }
        self.labels.get(key).map(String::as_str)
    }
}

/// A rejected pod. It fails for good, with [`Rejection::status`]; its event is a warning with the same reason and message
/// (`rejectPod`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The kubelet's reason.
    pub reason: Cow<'static, str>,
    /// The kubelet's message, as in the event. The status has a prefix before it.
    pub message: String,
    /// To be tried before the pod is rejected.
    pub remedy: Remedy,
}

/// A remedy to try before a pod that does not fit fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// None.
    None,
    /// The node's labels may have changed: the node is to be read from the API again, and the pod checked once more. If it fails
    /// again, there is no remedy (`predicateAdmitHandler.generalFilter`).
    FreshNode,
    /// The pod is critical and lacks nothing but these resources: [`preempt::victims`] names the pods to preempt. When they have
    /// terminated the pod is admitted (`HandleAdmissionFailure`). No more entries than resources that the pod requests.
    Preemption(Vec<Shortage>),
}

impl Rejection {
    /// The status of the rejected pod (`rejectPod`); the status manager adds the start time.
    pub fn status(&self, pod: &Pod) -> PodStatus {
        PodStatus {
            qos_class: Some(pod_qos(pod).as_str().to_owned()),
            phase: Some(Phase::Failed.as_str().to_owned()),
            reason: Some(self.reason.clone().into_owned()),
            message: Some(format!("Pod was rejected: {}", self.message)),
            ..PodStatus::default()
        }
    }

    fn new(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), remedy: Remedy::None }
    }
}

/// A failed rule of the bracket above other than those about resources (`PredicateFailureError`), in the order in which they are
/// reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mismatch {
    NodeAffinity,
    NodeName,
    NodePorts,
    TaintToleration,
}

impl Mismatch {
    /// The plugin's name, and its message.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NodeAffinity => ("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"),
            Self::NodeName => ("NodeName", "node(s) didn't match the requested node name"),
            Self::NodePorts => ("NodePorts", "node(s) didn't have free ports for the requested pod ports"),
            Self::TaintToleration => ("TaintToleration", "node(s) had taints that the pod didn't tolerate"),
        }
    }

    fn rejection(self) -> Rejection {
        let (name, words) = self.words();
        Rejection::new(name, format!("Predicate {name} failed: {words}"))
    }
}

/// Whether the pod may run on the node beside the `others` (`predicateAdmitHandler.Admit`, and the declared features). The pod
/// itself does not count if it is among them (`canAdmitPod`).
pub fn admit(
    pod: &Pod,
    node: &NodeView<'_>,
    others: &mut dyn Iterator<Item = &Pod>,
) -> Result<(), Rejection> {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    of_this_system(pod, spec)?;

    let (shortages, taken) = room(pod, spec, node.allocatable, others);
    let checks = [
        (Mismatch::NodeAffinity, !affinity::matches(spec, node)),
        (
            Mismatch::NodeName,
            spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != node.name),
        ),
        (Mismatch::NodePorts, taken),
        (Mismatch::TaintToleration, !is_static_pod(pod) && taints::any_untolerated(spec, node.taints)),
    ];
    let failed: Vec<Mismatch> =
        checks.into_iter().filter(|(_, fails)| *fails).map(|(which, _)| which).collect();

    // For a critical pod a shortage is not the reason as long as there is another one (`HandleAdmissionFailure`).
    let critical = is_critical_pod(pod);
    if let Some(shortage) = shortages.first().filter(|_| !critical) {
        return Err(shortage.rejection());
    }
    if let Some(first) = failed.first() {
        let alone = shortages.is_empty() && failed == [Mismatch::NodeAffinity];
        let remedy = if alone { Remedy::FreshNode } else { Remedy::None };
        return Err(Rejection { remedy, ..first.rejection() });
    }
    features::check(spec, node.declared_features)?;
    match shortages.first().map(Shortage::rejection) {
        None => Ok(()),
        Some(rejection) => Err(Rejection { remedy: Remedy::Preemption(shortages), ..rejection }),
    }
}

/// Resource shortages beside the `others`, and whether one of them has one of the pod's host ports.
fn room(
    pod: &Pod,
    spec: &PodSpec,
    there: &Resources,
    others: &mut dyn Iterator<Item = &Pod>,
) -> (Vec<Shortage>, bool) {
    let wanted_ports = ports::Wanted::of(spec);
    let mut used = Resources::default();
    let mut taken = false;
    for other in others.filter(|other| uid(other) != uid(pod)) {
        used.add(&resources::requested(other));
        used.pods = used.pods.saturating_add(1);
        taken |= other.spec.as_ref().is_some_and(|spec| wanted_ports.conflict(spec));
    }
    (resources::shortages(&resources::wanted(pod, there), there, &used), taken)
}

/// Whether a static pod fits on a standalone node, which has no labels and taints. Resources that the node does not count are
/// sufficient.
///
/// # Errors
/// The shortage, with the message of [`admit`].
pub fn fits(
    pod: &Pod,
    allocatable: &Resources,
    others: &mut dyn Iterator<Item = &Pod>,
) -> Result<(), Rejection> {
    let none = PodSpec::default();
    let there = allocatable.with_uncounted(pod);
    let (shortages, taken) = room(pod, pod.spec.as_ref().unwrap_or(&none), &there, others);
    match shortages.first() {
        Some(shortage) => Err(shortage.rejection()),
        None if taken => Err(Mismatch::NodePorts.rejection()),
        None => Ok(()),
    }
}

/// The pod is for this node's operating system (`rejectPodAdmissionBasedOnOSSelector`, `rejectPodAdmissionBasedOnOSField`).
/// Checked first: preemption would not help.
fn of_this_system(pod: &Pod, spec: &PodSpec) -> Result<(), Rejection> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|system| system != OS) {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    if spec.os.as_ref().is_some_and(|system| system.name != OS) {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Rejection::new("PodOSNotSupported", message));
    }
    Ok(())
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod has terminated, so its admission is not checked (`IsPodPhaseTerminal`).
pub fn is_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some(Phase::Failed.as_str()) || phase == Some(Phase::Succeeded.as_str())
}

/// The order in which pods that arrive together are admitted: the oldest first (`PodsByCreationTime`).
pub fn first_come(a: &Pod, b: &Pod) -> Ordering {
    a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp)
}

#[cfg(test)]
mod tests;
