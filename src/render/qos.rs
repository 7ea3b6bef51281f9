//! The quality-of-service class of a pod and the out-of-memory score of its containers. PURE.
//! Follows `apis/core/v1/helper/qos` and `kubelet/qos/policy.go`.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::resources::{self, Amounts, amount, is_sidecar};
use crate::model::quantity::Quantity;

/// `status.qosClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Requests equal limits, for CPU and memory, in every container.
    Guaranteed,
    /// Neither of the other two.
    Burstable,
    /// No requests and no limits.
    BestEffort,
}

impl QosClass {
    /// The class as the API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The class in the pod's status, else the computed one (`GetPodQOS`). An unknown class is computed again.
pub fn pod_qos(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        Some(_) | None => compute_pod_qos(pod),
    }
}

/// Sums of CPU and memory; `None` until a container has an amount.
type Sums = [Option<Quantity>; 2];

/// Computes the class from requests and limits (`ComputePodQOS`). Ephemeral containers have no resources.
pub fn compute_pod_qos(pod: &Pod) -> QosClass {
    let Some(spec) = pod.spec.as_ref() else { return QosClass::BestEffort };
    let mut requests = Sums::default();
    let mut limits = Sums::default();
    let mut guaranteed = true;
    if let Some(own) = &spec.resources {
        add(&mut requests, own.requests.as_ref());
        if own.limits.as_ref().is_some_and(|limits| !limits.is_empty()) {
            guaranteed &= add(&mut limits, own.limits.as_ref());
        }
    } else {
        let init = spec.init_containers.as_deref().unwrap_or_default();
        for container in spec.containers.iter().chain(init) {
            let own = container.resources.as_ref();
            add(&mut requests, own.and_then(|own| own.requests.as_ref()));
            guaranteed &= add(&mut limits, own.and_then(|own| own.limits.as_ref()));
        }
    }
    if requests == Sums::default() && limits == Sums::default() {
        QosClass::BestEffort
    } else if guaranteed && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Adds positive CPU and memory amounts; true when both are present.
fn add(sums: &mut Sums, list: Option<&Amounts>) -> bool {
    let mut both = true;
    for (sum, name) in sums.iter_mut().zip(["cpu", "memory"]) {
        let quantity = amount(list, name);
        if quantity.is_positive() {
            *sum = Some(sum.unwrap_or_default() + quantity);
        } else {
            both = false;
        }
    }
    both
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// True for a pod from a manifest file or URL, not from the API (`IsStaticPod`).
pub fn is_static_pod(pod: &Pod) -> bool {
    annotation(pod, "kubernetes.io/config.source").is_some_and(|source| source != "api")
}

/// Static, mirror or of system priority (`IsCriticalPod`).
pub fn is_critical_pod(pod: &Pod) -> bool {
    const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
    is_static_pod(pod)
        || annotation(pod, "kubernetes.io/config.mirror").is_some()
        || pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
}

/// Critical and of class `system-node-critical` (`IsNodeCriticalPod`).
pub fn is_node_critical_pod(pod: &Pod) -> bool {
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    class == Some("system-node-critical") && is_critical_pod(pod)
}

const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;

/// The container's OOM score adjustment, -997 (killed last) to 1000 (`GetContainerOOMScoreAdjust`). `memory_capacity` is the
/// machine's memory in bytes.
pub fn oom_score_adjust(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    if is_node_critical_pod(pod) {
        return GUARANTEED_OOM_SCORE;
    }
    match pod_qos(pod) {
        QosClass::Guaranteed => return GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => return BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {}
    }
    let Some(spec) = pod.spec.as_ref() else { return BEST_EFFORT_OOM_SCORE };
    let remaining = remaining_memory_per_container(pod, spec);
    let score =
        |bytes: i64| 1000 - 1000i64.saturating_mul(bytes.saturating_add(remaining)) / memory_capacity.max(1);
    let mut adjust = score(memory_request(container));
    if is_sidecar(container)
        && spec.init_containers.as_deref().unwrap_or_default().iter().any(|init| init.name == container.name)
    {
        // A sidecar must not be killed before the container that it serves.
        let least = spec.containers.iter().map(memory_request).min().unwrap_or_default();
        adjust = adjust.min(score(least));
    }
    if adjust < 1000 + GUARANTEED_OOM_SCORE {
        1000 + GUARANTEED_OOM_SCORE
    } else if adjust == BEST_EFFORT_OOM_SCORE {
        adjust - 1
    } else {
        adjust
    }
}

fn memory_request(container: &Container) -> i64 {
    amount(container.resources.as_ref().and_then(|own| own.requests.as_ref()), "memory").value()
}

/// The pod's memory request beyond those of its containers, divided among them (`remainingPodMemReqPerContainer`). 0 without
/// pod-level requests.
fn remaining_memory_per_container(pod: &Pod, spec: &PodSpec) -> i64 {
    let own: Option<&ResourceRequirements> = spec.resources.as_ref();
    let Some(requests) = own.and_then(|own| own.requests.as_ref()) else { return 0 };
    let memory = amount(Some(requests), "memory");
    if memory.is_zero() {
        return 0;
    }
    let containers = spec.containers.len() + spec.init_containers.as_deref().unwrap_or_default().len();
    let of_containers = resources::container_requests(pod).get("memory").copied().unwrap_or_default();
    (memory.value() - of_containers.value()) / i64::try_from(containers).unwrap_or(i64::MAX).max(1)
}
