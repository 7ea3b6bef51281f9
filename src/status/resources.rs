//! Resources in a status: allocated and actual resources of containers and of the pod. PURE.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::rules::{init_containers, is_running};
use crate::model::observed::{ContainerResources, ContainerStatus as Observed};
use crate::model::quantity::FormattedQuantity;
use crate::render::resources::{is_sidecar, quota_to_milli_cpu, shares_to_milli_cpu};

type List = BTreeMap<String, Quantity>;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// The minimum CPU weight (`cm.MinShares`): a request at or below it cannot be derived from the weight.
const SHARES_MIN: i64 = 2;
/// The minimum CPU limit of the kernel, in thousandths of a CPU (`cm.MinMilliCPULimit`).
const CPU_LIMIT_MIN_MILLI: i64 = 10;

/// A running container's actual resources (`kubecontainer.ContainerResources`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActualResources {
    /// From the CPU weight.
    pub cpu_request: Option<Quantity>,
    /// From quota and period.
    pub cpu_limit: Option<Quantity>,
    /// No runtime reports one today.
    pub memory_request: Option<Quantity>,
    /// From the memory limit.
    pub memory_limit: Option<Quantity>,
}

impl ActualResources {
    /// `toKubeContainerStatus`: the resources that the runtime reports, or those the container was given when it reports
    /// none.
    ///
    /// Differs from the kubelet, which shows a memory limit of 0 when there is no limit and the runtime reports nothing.
    pub fn of(container: &Observed) -> Option<Self> {
        let reported =
            container.resources.as_deref().map(Self::from_runtime).filter(|of| *of != Self::default());
        let Some(sizes) = &container.meta.sizes else { return reported };
        let some = |value: i64, amount: fn(i64) -> FormattedQuantity| {
            (value > 0).then(|| amount(value).to_quantity())
        };
        let memory_request = some(sizes.memory_request, FormattedQuantity::from_bytes);
        Some(match reported {
            Some(reported) => Self { memory_request, ..reported },
            None => Self {
                cpu_request: some(sizes.cpu_request, FormattedQuantity::from_milli),
                cpu_limit: some(sizes.cpu_limit, FormattedQuantity::from_milli),
                memory_limit: some(sizes.memory_limit, FormattedQuantity::from_bytes),
                memory_request,
            },
        })
    }

    /// `toKubeContainerResources` on Linux: CRI units to quantities; unset fields are `None`.
    pub fn from_runtime(resources: &ContainerResources) -> Self {
        let limit_milli = quota_to_milli_cpu(resources.cpu_quota, resources.cpu_period);
        let request_milli = shares_to_milli_cpu(resources.cpu_shares);
        let memory = resources.memory_limit_in_bytes;
        Self {
            cpu_request: (request_milli > 0)
                .then(|| FormattedQuantity::from_milli(request_milli).to_quantity()),
            cpu_limit: (limit_milli > 0).then(|| FormattedQuantity::from_milli(limit_milli).to_quantity()),
            memory_request: None,
            memory_limit: (memory > 0).then(|| FormattedQuantity::from_bytes(memory).to_quantity()),
        }
    }
}

/// The limits read from a pod's cgroup (`GetPodCgroupConfig`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCgroup {
    /// Microseconds per period; -1 = no limit.
    pub cpu_quota_us: i64,
    /// Microseconds.
    pub cpu_period_us: i64,
    /// Relative weight (cgroup v1 scale).
    pub cpu_shares: i64,
    /// Bytes; 0 = no limit.
    pub memory_limit_bytes: i64,
}

fn milli_of(list: Option<&List>, name: &str) -> i64 {
    list.and_then(|l| l.get(name)).map_or(0, |q| FormattedQuantity::of(q).milli())
}

fn keep(list: &mut List, name: &str, old: Option<&List>) {
    if let Some(quantity) = old.and_then(|l| l.get(name)) {
        list.insert(name.to_owned(), quantity.clone());
    }
}

/// A copy with every quantity in Go's canonical form (`0.5` → `500m`), as the kubelet's decoding produces it.
fn canonical(resources: Option<&ResourceRequirements>) -> ResourceRequirements {
    let mut resources = resources.cloned().unwrap_or_default();
    for list in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        for quantity in list.values_mut() {
            *quantity = FormattedQuantity::of(quantity).to_quantity();
        }
    }
    resources
}

/// `convertContainerStatusResources`: a container's allocated resources; for a running one the runtime's values, and where
/// the runtime reports none those of the previous status of the same container.
pub(super) fn container_resources(
    allocated: Option<&ResourceRequirements>,
    running: bool,
    container_id: &str,
    actual: Option<&ActualResources>,
    old: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut resources = canonical(allocated);
    if !running {
        return resources;
    }
    let kept = old
        .filter(|o| is_running(o) && o.container_id.as_deref().unwrap_or("") == container_id)
        .and_then(|o| o.resources.as_ref());
    if let Some(limits) = &mut resources.limits {
        let kept = kept.and_then(|r| r.limits.as_ref());
        match actual.and_then(|a| a.cpu_limit.as_ref()) {
            Some(cpu) => {
                if FormattedQuantity::of(cpu).milli() > CPU_LIMIT_MIN_MILLI
                    || milli_of(Some(limits), CPU) > CPU_LIMIT_MIN_MILLI
                {
                    limits.insert(CPU.to_owned(), cpu.clone());
                }
            }
            None => keep(limits, CPU, kept),
        }
        match actual.and_then(|a| a.memory_limit.as_ref()) {
            Some(memory) => {
                limits.insert(MEMORY.to_owned(), memory.clone());
            }
            None => keep(limits, MEMORY, kept),
        }
    }
    if let Some(requests) = &mut resources.requests {
        let kept = kept.and_then(|r| r.requests.as_ref());
        match actual.and_then(|a| a.cpu_request.as_ref()) {
            Some(cpu) => {
                if FormattedQuantity::of(cpu).milli() > SHARES_MIN
                    || milli_of(Some(requests), CPU) > SHARES_MIN
                {
                    requests.insert(CPU.to_owned(), cpu.clone());
                }
            }
            None => keep(requests, CPU, kept),
        }
        match actual.and_then(|a| a.memory_request.as_ref()) {
            Some(memory) => {
                requests.insert(MEMORY.to_owned(), memory.clone());
            }
            None => keep(requests, MEMORY, kept),
        }
    }
    resources
}

fn is_pod_level(name: &str) -> bool {
    name == CPU || name == MEMORY || name.starts_with("hugepages-")
}

fn add(list: &mut List, more: Option<&List>) {
    for (name, quantity) in more.into_iter().flatten() {
        let sum = match list.get(name) {
            Some(have) => FormattedQuantity::of(have).plus(FormattedQuantity::of(quantity)).to_quantity(),
            None => FormattedQuantity::of(quantity).to_quantity(),
        };
        list.insert(name.clone(), sum);
    }
}

fn take_larger(list: &mut List, other: &List) {
    for (name, quantity) in other {
        let larger = match list.get(name) {
            Some(have) => {
                FormattedQuantity::of(quantity).cmp(FormattedQuantity::of(have)) == Ordering::Greater
            }
            None => true,
        };
        if larger {
            list.insert(name.clone(), quantity.clone());
        }
    }
}

/// Selects requests or limits.
type Side = fn(&ResourceRequirements) -> Option<&List>;

fn requests_of(r: &ResourceRequirements) -> Option<&List> {
    r.requests.as_ref()
}

fn limits_of(r: &ResourceRequirements) -> Option<&List> {
    r.limits.as_ref()
}

/// `AggregateContainerRequests`, `AggregateContainerLimits`: the sum of app containers and sidecars, or the need of an init
/// container plus the sidecars started before it, whichever is more.
fn aggregate(pod: &Pod, side: Side) -> List {
    let Some(spec) = &pod.spec else { return List::new() };
    let (mut sum, mut sidecars, mut init_peak) = (List::new(), List::new(), List::new());
    for container in &spec.containers {
        add(&mut sum, container.resources.as_ref().and_then(side));
    }
    for container in init_containers(spec) {
        let own = container.resources.as_ref().and_then(side);
        if is_sidecar(container) {
            add(&mut sum, own);
            add(&mut sidecars, own);
            take_larger(&mut init_peak, &sidecars);
        } else {
            let mut at_once = List::new();
            add(&mut at_once, own);
            add(&mut at_once, Some(&sidecars));
            take_larger(&mut init_peak, &at_once);
        }
    }
    take_larger(&mut sum, &init_peak);
    sum
}

fn override_with_pod_level(list: &mut List, pod: &Pod, side: Side) {
    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(side);
    for (name, quantity) in own.into_iter().flatten().filter(|(name, _)| is_pod_level(name)) {
        list.insert(name.clone(), FormattedQuantity::of(quantity).to_quantity());
    }
}

/// `resourcehelper.PodRequests`.
pub(super) fn pod_requests(pod: &Pod) -> List {
    let mut list = aggregate(pod, requests_of);
    override_with_pod_level(&mut list, pod, requests_of);
    add(&mut list, pod.spec.as_ref().and_then(|s| s.overhead.as_ref()));
    list
}

/// `resourcehelper.PodLimits`: overhead is added to limits that are set and not zero.
pub(crate) fn pod_limits(pod: &Pod) -> List {
    let mut list = aggregate(pod, limits_of);
    override_with_pod_level(&mut list, pod, limits_of);
    for (name, quantity) in pod.spec.as_ref().and_then(|s| s.overhead.as_ref()).into_iter().flatten() {
        if let Some(have) = list.get_mut(name) {
            let amount = FormattedQuantity::of(have);
            if !amount.is_zero() {
                *have = amount.plus(FormattedQuantity::of(quantity)).to_quantity();
            }
        }
    }
    list
}

/// `convertToAPIPodLevelResourcesStatus`: before the pod runs its requests and limits, then the values of its cgroup.
pub(super) fn pod_resources(pod: &Pod, old: &PodStatus, cgroup: Option<PodCgroup>) -> ResourceRequirements {
    let mut resources = canonical(pod.spec.as_ref().and_then(|s| s.resources.as_ref()));
    if pod.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Running") {
        resources.requests = Some(pod_requests(pod)).filter(|list| !list.is_empty());
        resources.limits = Some(pod_limits(pod)).filter(|list| !list.is_empty());
        return resources;
    }
    let kept = old.resources.as_ref().filter(|_| old.phase.as_deref() == Some("Running"));
    let (kept_requests, kept_limits) = (kept.and_then(requests_of), kept.and_then(limits_of));
    let mut requests = resources.requests.take().unwrap_or_default();
    let mut limits = resources.limits.take().unwrap_or_default();

    let cpu_request = cgroup.map_or(0, |c| shares_to_milli_cpu(c.cpu_shares));
    if cpu_request > 0 {
        if cpu_request > SHARES_MIN || milli_of(Some(&requests), CPU) > SHARES_MIN {
            requests.insert(CPU.to_owned(), FormattedQuantity::from_milli(cpu_request).to_quantity());
        }
    } else {
        keep(&mut requests, CPU, kept_requests);
    }
    if !requests.contains_key(MEMORY)
        && let Some(memory) = pod_requests(pod).remove(MEMORY)
    {
        requests.insert(MEMORY.to_owned(), memory);
    }
    keep(&mut requests, MEMORY, kept_requests);

    let cpu_limit = cgroup.map_or(0, |c| quota_to_milli_cpu(c.cpu_quota_us, c.cpu_period_us));
    if cpu_limit > 0 {
        if cpu_limit > CPU_LIMIT_MIN_MILLI || milli_of(Some(&limits), CPU) > CPU_LIMIT_MIN_MILLI {
            limits.insert(CPU.to_owned(), FormattedQuantity::from_milli(cpu_limit).to_quantity());
        }
    } else {
        keep(&mut limits, CPU, kept_limits);
    }
    match cgroup.map(|c| c.memory_limit_bytes).filter(|bytes| *bytes > 0) {
        Some(bytes) => {
            limits.insert(MEMORY.to_owned(), FormattedQuantity::from_bytes(bytes).to_quantity());
        }
        None => keep(&mut limits, MEMORY, kept_limits),
    }

    resources.requests = Some(requests).filter(|list| !list.is_empty());
    resources.limits = Some(limits).filter(|list| !list.is_empty());
    resources
}
