//! Resource requests and limits in the units of the CRI and the kernel. PURE.
//! Follows `kuberuntime_container_linux.go`, `kuberuntime_sandbox_linux.go`, `cm/helpers_linux.go` and
//! `component-helpers/resource`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::node::{CgroupVersion, NodeSettings, SwapBehavior};
use super::qos::{QosClass, is_critical_pod, oom_score_adjust, pod_qos};
use crate::model::quantity::FormattedQuantity;
use crate::model::quantity::Quantity;
use crate::model::{ContainerKind, Sizes};
use crate::proto::runtime::v1::{HugepageLimit, LinuxContainerResources};

/// `requests` or `limits` of an API object.
pub type Amounts = BTreeMap<String, ApiQuantity>;

/// Parsed sums by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

const SHARES_MIN: i64 = 2;
const SHARES_MAX: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
/// The kernel rejects a quota below a millisecond.
const QUOTA_US_MIN: i64 = 1000;
/// The kernel's default period, used where the agent's setting does not apply.
pub const QUOTA_PERIOD_US: i64 = 100_000;

/// CPU shares for thousandths of a CPU (`MilliCPUToShares`).
pub fn milli_cpu_to_shares(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 {
        return SHARES_MIN;
    }
    // Wraps as Go's int64 does.
    (milli_cpu.wrapping_mul(SHARES_PER_CPU) / 1000).clamp(SHARES_MIN, SHARES_MAX)
}

/// CFS quota in microseconds per `period_us` (`MilliCPUToQuota`); 0 = no limit.
pub fn milli_cpu_to_quota(milli_cpu: i64, period_us: i64) -> i64 {
    if milli_cpu == 0 { 0 } else { (milli_cpu.wrapping_mul(period_us) / 1000).max(QUOTA_US_MIN) }
}

/// Thousandths of a CPU for CPU shares, rounded up (`SharesToMilliCPU`).
pub fn shares_to_milli_cpu(shares: i64) -> i64 {
    if shares < SHARES_MIN {
        return 0;
    }
    let scaled = shares.wrapping_mul(1000);
    scaled / SHARES_PER_CPU + i64::from(scaled > 0 && scaled % SHARES_PER_CPU != 0)
}

/// Thousandths of a CPU for a CFS quota (`QuotaToMilliCPU`); -1 = no limit = 0.
pub fn quota_to_milli_cpu(quota_us: i64, period_us: i64) -> i64 {
    if quota_us == -1 { 0 } else { quota_us.wrapping_mul(1000).checked_div(period_us).unwrap_or_default() }
}

/// One amount of a list; zero when absent. An invalid quantity counts as absent: sources reject it before.
pub fn amount(list: Option<&Amounts>, name: &str) -> Quantity {
    list.and_then(|list| list.get(name))
        .map_or(Quantity::ZERO, |text| Quantity::parse(&text.0).unwrap_or_default())
}

pub(crate) fn requests(resources: Option<&ResourceRequirements>) -> Option<&Amounts> {
    resources.and_then(|resources| resources.requests.as_ref())
}

fn limits(resources: Option<&ResourceRequirements>) -> Option<&Amounts> {
    resources.and_then(|resources| resources.limits.as_ref())
}

/// The container's own CPU and memory.
pub fn sizes(container: &Container) -> Sizes {
    let own = container.resources.as_ref();
    let of = |list: Option<&Amounts>| {
        (amount(list, "cpu").milli_value().max(0), amount(list, "memory").value().max(0))
    };
    let ((cpu_request, memory_request), (cpu_limit, memory_limit)) = (of(requests(own)), of(limits(own)));
    Sizes { cpu_request, cpu_limit, memory_request, memory_limit }
}

/// Sets the container's CPU and memory; its other resources stay.
///
/// Differs from the kubelet (`updatePodContainerResources`), whose copy has CPU and memory only: each resize there asks the
/// runtime to remove the container's huge page limits.
pub fn set_sizes(container: &mut Container, sizes: &Sizes) {
    let own = container.resources.get_or_insert_default();
    let lists = [
        (&mut own.requests, sizes.cpu_request, sizes.memory_request),
        (&mut own.limits, sizes.cpu_limit, sizes.memory_limit),
    ];
    for (list, cpu, memory) in lists {
        for (name, value) in [("cpu", cpu), ("memory", memory)] {
            if value == 0 {
                list.as_mut().map(|list| list.remove(name));
            } else {
                let quantity = if name == "cpu" {
                    FormattedQuantity::from_milli(value)
                } else {
                    FormattedQuantity::from_bytes(value)
                };
                list.get_or_insert_default().insert(name.to_owned(), quantity.to_quantity());
            }
        }
    }
}

/// True for an init container that keeps running (`restartPolicy: Always`).
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// True for CPU, memory and huge pages, which may be set on the pod itself (`IsSupportedPodLevelResource`).
pub(crate) fn may_be_on_the_pod(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

fn any_on_the_pod(list: Option<&Amounts>) -> bool {
    list.is_some_and(|list| list.keys().any(|name| may_be_on_the_pod(name)))
}

/// The huge page sizes in bytes that the pod or a container requests. Limits count as requests by default.
pub fn huge_page_sizes(pod: &Pod) -> BTreeSet<i64> {
    let spec = pod.spec.iter();
    let containers =
        spec.clone().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let own = spec.filter_map(|spec| spec.resources.as_ref());
    let all = containers.filter_map(|container| container.resources.as_ref()).chain(own);
    let names = all.flat_map(|resources| resources.requests.iter().flatten().map(|(name, _)| name));
    let sizes = names.filter(|name| is_huge_page(name));
    sizes.map(|name| Quantity::parse(&name["hugepages-".len()..]).unwrap_or_default().value()).collect()
}

/// The pod-level resources, when supported ones are set (`IsPodLevelResourcesSet`).
pub(crate) fn pod_level(pod: &Pod) -> Option<&ResourceRequirements> {
    let own = pod.spec.as_ref()?.resources.as_ref()?;
    (any_on_the_pod(own.requests.as_ref()) || any_on_the_pod(own.limits.as_ref())).then_some(own)
}

/// The pod-level limits (`IsPodLevelLimitsSet`), for the downward API.
pub(super) fn pod_level_limits(pod: &Pod) -> Option<&Amounts> {
    limits(pod_level(pod)).filter(|list| any_on_the_pod(Some(list)))
}

pub(crate) fn add_list(sum: &mut ResourceList, list: Option<&Amounts>) {
    for name in list.into_iter().flat_map(BTreeMap::keys) {
        add(sum, name, amount(list, name));
    }
}

fn add(sum: &mut ResourceList, name: &str, quantity: Quantity) {
    match sum.get_mut(name) {
        Some(value) => *value = *value + quantity,
        None => {
            sum.insert(name.to_owned(), quantity);
        }
    }
}

fn add_all(sum: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        add(sum, name, *quantity);
    }
}

/// Takes the larger amount of each resource.
pub(crate) fn max_list(list: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        list.entry(name.clone()).and_modify(|value| *value = (*value).max(*quantity)).or_insert(*quantity);
    }
}

/// Aggregates over containers: the sum of app containers and sidecars, but at least the highest need during the
/// initialisation (`AggregateContainerRequests`, `AggregateContainerLimits`). `of` returns a container's list; `each` is
/// called with what counts for every container.
pub(crate) fn aggregate(
    pod: &Pod,
    of: &dyn Fn(&Container, ContainerKind) -> ResourceList,
    each: &mut dyn FnMut(&ResourceList),
) -> ResourceList {
    let mut sum = ResourceList::new();
    let Some(spec) = pod.spec.as_ref() else { return sum };
    for container in &spec.containers {
        let own = of(container, ContainerKind::App);
        each(&own);
        add_all(&mut sum, &own);
    }
    let mut sidecars = ResourceList::new();
    let mut init = ResourceList::new();
    for container in spec.init_containers.as_deref().unwrap_or_default() {
        let mut own = of(container, ContainerKind::Init);
        if is_sidecar(container) {
            add_all(&mut sum, &own);
            add_all(&mut sidecars, &own);
            each(&sidecars);
            max_list(&mut init, &sidecars);
        } else {
            add_all(&mut own, &sidecars);
            each(&own);
            max_list(&mut init, &own);
        }
    }
    max_list(&mut sum, &init);
    sum
}

/// The container's own list, for any kind of container.
fn own_list(
    of: for<'a> fn(Option<&'a ResourceRequirements>) -> Option<&'a Amounts>,
) -> impl Fn(&Container, ContainerKind) -> ResourceList {
    move |container, _| {
        let mut own = ResourceList::new();
        add_list(&mut own, of(container.resources.as_ref()));
        own
    }
}

/// The containers' aggregated requests (`AggregateContainerRequests`).
pub fn container_requests(pod: &Pod) -> ResourceList {
    aggregate(pod, &own_list(requests), &mut |_| {})
}

pub(crate) fn put_pod_level(list: &mut ResourceList, own: Option<&Amounts>) {
    for name in own.into_iter().flat_map(BTreeMap::keys).filter(|name| may_be_on_the_pod(name)) {
        list.insert(name.clone(), amount(own, name));
    }
}

/// The pod's requests (`PodRequests`).
pub fn pod_requests(pod: &Pod, with_overhead: bool) -> ResourceList {
    let mut sum = container_requests(pod);
    put_pod_level(&mut sum, requests(pod_level(pod)));
    if with_overhead {
        add_list(&mut sum, pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()));
    }
    sum
}

/// The pod's limits (`PodLimits`); overhead is added to limits above zero.
pub fn pod_limits(pod: &Pod, with_overhead: bool, mut each: impl FnMut(&ResourceList)) -> ResourceList {
    let mut sum = aggregate(pod, &own_list(limits), &mut each);
    put_pod_level(&mut sum, limits(pod_level(pod)));
    let overhead = pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()).filter(|_| with_overhead);
    for name in overhead.into_iter().flat_map(BTreeMap::keys) {
        if let Some(value) = sum.get_mut(name).filter(|value| !value.is_zero()) {
            *value = *value + amount(overhead, name);
        }
    }
    sum
}

/// Settings of the pod's own cgroup (`ResourceConfigForPod`); `None` = not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    /// CPU weight.
    pub cpu_shares: i64,
    /// Microseconds per period; -1 = no limit.
    pub cpu_quota_us: Option<i64>,
    /// Microseconds.
    pub cpu_period_us: Option<i64>,
    /// Bytes; 0 = no limit.
    pub memory_limit_bytes: Option<i64>,
    /// Page size in bytes → bytes.
    pub huge_page_limit_bytes: BTreeMap<i64, i64>,
}

/// The settings of the pod's cgroup. `enforce_cpu` is `cpuCFSQuota`, `period_us` its period.
pub fn pod_cgroup(pod: &Pod, enforce_cpu: bool, period_us: i64) -> PodCgroup {
    let asked = pod_requests(pod, true);
    let (mut cpu_declared, mut memory_declared) = (true, true);
    let zero = |list: &ResourceList, name: &str| list.get(name).is_none_or(|value| value.is_zero());
    let allowed = pod_limits(pod, true, |of_container| {
        cpu_declared &= !zero(of_container, "cpu");
        memory_declared &= !zero(of_container, "memory");
    });
    if let Some(own) = pod_level(pod) {
        cpu_declared |= !amount(own.limits.as_ref(), "cpu").is_zero();
        memory_declared |= !amount(own.limits.as_ref(), "memory").is_zero();
    }
    let of = |list: &ResourceList, name: &str| list.get(name).copied().unwrap_or_default();
    let shares = milli_cpu_to_shares(of(&asked, "cpu").milli_value());
    let quota =
        if enforce_cpu { milli_cpu_to_quota(of(&allowed, "cpu").milli_value(), period_us) } else { -1 };
    let memory = of(&allowed, "memory").value();
    let mut huge_page_limit_bytes = BTreeMap::new();
    for (name, quantity) in asked.iter().filter(|(name, _)| is_huge_page(name)) {
        let size = Quantity::parse(&name["hugepages-".len()..]).unwrap_or_default().value();
        // Several names may mean the same size.
        let bytes: &mut i64 = huge_page_limit_bytes.entry(size).or_default();
        *bytes = bytes.saturating_add(quantity.value());
    }
    let (cpu, memory_set, cpu_shares) = match pod_qos(pod) {
        QosClass::Guaranteed => (true, true, shares),
        QosClass::Burstable => (cpu_declared, memory_declared, shares),
        QosClass::BestEffort => (false, false, SHARES_MIN),
    };
    PodCgroup {
        cpu_shares,
        cpu_quota_us: cpu.then_some(quota),
        cpu_period_us: cpu.then_some(period_us),
        memory_limit_bytes: memory_set.then_some(memory),
        huge_page_limit_bytes,
    }
}

/// `calculateLinuxResources`: an absent CPU request falls back to the limit, a zero one does not.
fn linux_resources(
    node: &NodeSettings,
    cpu_request: Option<Quantity>,
    cpu_limit: Quantity,
    memory_limit: Quantity,
) -> LinuxContainerResources {
    let mut resources = LinuxContainerResources {
        cpu_shares: milli_cpu_to_shares(cpu_request.unwrap_or(cpu_limit).milli_value()),
        memory_limit_in_bytes: memory_limit.value(),
        ..LinuxContainerResources::default()
    };
    if node.cpu_cfs_quota {
        resources.cpu_quota = milli_cpu_to_quota(cpu_limit.milli_value(), node.cpu_cfs_period_us);
        resources.cpu_period = node.cpu_cfs_period_us;
    }
    if matches!(node.cgroup_version, CgroupVersion::V2 { .. }) && !node.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".into(), "1".into());
    }
    resources
}

/// The sandbox's resources and its overhead (`applySandboxResources`).
pub(crate) fn sandbox_resources(
    node: &NodeSettings,
    pod: &Pod,
) -> (LinuxContainerResources, LinuxContainerResources) {
    let asked = pod_requests(pod, false);
    let allowed = pod_limits(pod, false, |_| {});
    let of = |name: &str| allowed.get(name).copied().unwrap_or_default();
    let resources = linux_resources(node, asked.get("cpu").copied(), of("cpu"), of("memory"));
    let overhead = pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref());
    let overhead = match overhead {
        Some(_) => {
            let cpu = amount(overhead, "cpu");
            linux_resources(node, Some(cpu), cpu, amount(overhead, "memory"))
        }
        None => LinuxContainerResources::default(),
    };
    (resources, overhead)
}

/// A container's resources (`generateLinuxContainerResources`).
pub fn container_resources(node: &NodeSettings, pod: &Pod, container: &Container) -> LinuxContainerResources {
    let own = container.resources.as_ref();
    let of_pod = limits(pod_level(pod));
    // Without its own limit the container gets the pod's.
    let limit = |name: &str| {
        let limit = amount(limits(own), name);
        if limit.is_zero() { amount(of_pod, name) } else { limit }
    };
    let cpu_request =
        requests(own).filter(|list| list.contains_key("cpu")).map(|list| amount(Some(list), "cpu"));
    let mut resources = linux_resources(node, cpu_request, limit("cpu"), limit("memory"));
    resources.oom_score_adj = oom_score_adjust(pod, container, node.memory_capacity_bytes);
    resources.hugepage_limits = hugepage_limits(node, of_pod, limits(own));
    set_swap(node, pod, container, &mut resources);
    resources
}

/// A limit for every page size of the kernel, 0 unless requested; the container's limits override the pod's
/// (`GetHugepageLimitsFromResources`).
fn hugepage_limits(
    node: &NodeSettings,
    of_pod: Option<&Amounts>,
    own: Option<&Amounts>,
) -> Vec<HugepageLimit> {
    let mut asked: BTreeMap<String, u64> = BTreeMap::new();
    for list in [of_pod, own] {
        for name in list.into_iter().flat_map(BTreeMap::keys) {
            let size = name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok());
            if let Some(size) = size.and_then(|size| hugepage_unit_size(size.value())) {
                asked.insert(size, u64::try_from(amount(list, name).value()).unwrap_or_default());
            }
        }
    }
    let limit = |size: &str| asked.get(size).copied().unwrap_or_default();
    node.hugepage_sizes
        .iter()
        .map(|size| HugepageLimit { page_size: size.to_string(), limit: limit(size) })
        .collect()
}

/// `2097152` → `2MB`, the spelling of the cgroup files (`HugePageUnitSizeFromByteSize`); `None` for a size that is not a
/// whole number of the largest unit below it.
pub(super) fn hugepage_unit_size(bytes: i64) -> Option<String> {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let (mut size, mut unit) = (bytes, 0);
    while size % 1024 == 0 && unit < UNITS.len() - 1 {
        size /= 1024;
        unit += 1;
    }
    (size <= 1024 || unit == UNITS.len() - 1).then(|| format!("{size}{}", UNITS[unit]))
}

/// `configureContainerSwapResources`.
fn set_swap(node: &NodeSettings, pod: &Pod, container: &Container, resources: &mut LinuxContainerResources) {
    match node.cgroup_version {
        CgroupVersion::V1 { swap_controller: false } | CgroupVersion::V2 { swap_controller: false } => {}
        // Memory plus swap limited to the memory limit: no swap.
        CgroupVersion::V1 { swap_controller: true } => {
            resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        }
        CgroupVersion::V2 { swap_controller: true } => {
            let swap = limited_swap(node, pod, container).unwrap_or(0);
            resources.unified.insert("memory.swap.max".into(), swap.to_string());
        }
    }
}

/// True when the container may swap, judged by its memory requests and limits (`GetContainerSwapBehavior`).
pub fn may_swap(node: &NodeSettings, pod: &Pod, container: &Container) -> bool {
    let own = container.resources.as_ref();
    // Also equal when neither is set.
    node.memory_swap == SwapBehavior::LimitedSwap
        && node.cgroup_version == (CgroupVersion::V2 { swap_controller: true })
        && !is_critical_pod(pod)
        && pod_qos(pod) == QosClass::Burstable
        && amount(requests(own), "memory") != amount(limits(own), "memory")
}

/// Swap in proportion to the memory request (`calcSwapForBurstablePods`); `None` = no swap for this container.
fn limited_swap(node: &NodeSettings, pod: &Pod, container: &Container) -> Option<i64> {
    if !may_swap(node, pod, container) {
        return None;
    }
    let request = amount(requests(container.resources.as_ref()), "memory");
    let (request, total) = (request.value(), node.memory_capacity_bytes);
    if total <= 0 || request > total {
        return None;
    }
    // The kubelet computes in floating point; integers differ from it by one byte at most.
    let share = i128::from(request) * i128::from(node.swap_capacity_bytes) / i128::from(total);
    i64::try_from(share).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn node(version: CgroupVersion) -> NodeSettings {
        let mut node = NodeSettings::new("n", "/r");
        node.cgroup_version = version;
        node.memory_swap = SwapBehavior::LimitedSwap;
        node.memory_capacity_bytes = 4 << 30;
        node.swap_capacity_bytes = 1 << 30;
        node
    }

    const V2: CgroupVersion = CgroupVersion::V2 { swap_controller: true };

    #[test]
    fn swap_is_shared_out_by_memory_request() {
        let burstable = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        for (resources, annotations, expected) in [
            (burstable.clone(), json!({}), "268435456"),
            (burstable, json!({"kubernetes.io/config.source": "file"}), "0"),
            (json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}), json!({}), "0"),
            (json!({"requests": {"memory": "8Gi"}}), json!({}), "0"),
            (json!({"requests": {"cpu": "1"}}), json!({}), "0"),
            (json!({}), json!({}), "0"),
        ] {
            let mut pod = pod(&json!({"containers": [{"name": "c", "resources": resources}]}));
            pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
            let container = pod.spec.as_ref().unwrap().containers[0].clone();
            let ours = container_resources(&node(V2), &pod, &container);
            assert_eq!(ours.unified["memory.swap.max"], expected, "{resources}");
            let none =
                container_resources(&node(CgroupVersion::V2 { swap_controller: false }), &pod, &container);
            assert!(!none.unified.contains_key("memory.swap.max"));
            let v1 =
                container_resources(&node(CgroupVersion::V1 { swap_controller: true }), &pod, &container);
            assert_eq!((v1.memory_swap_limit_in_bytes, v1.unified.len()), (v1.memory_limit_in_bytes, 0));
        }
    }

    #[test]
    fn without_cfs_quota_there_is_no_limit_on_cpu() {
        let pod = pod(&json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}));
        let mut node = node(V2);
        node.cpu_cfs_quota = false;
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        let ours = container_resources(&node, &pod, &container);
        assert_eq!((ours.cpu_shares, ours.cpu_quota, ours.cpu_period), (1024, 0, 0));
        node.single_process_oom_kill = true;
        let ours = container_resources(&node, &pod, &container);
        assert!(!ours.unified.contains_key("memory.oom.group"));
    }

    #[test]
    fn page_sizes_are_spelled_as_the_kernel_does() {
        for (bytes, size) in
            [(2 << 20, Some("2MB")), (1 << 30, Some("1GB")), (64 << 10, Some("64KB")), (2049, None)]
        {
            assert_eq!(hugepage_unit_size(bytes).as_deref(), size, "{bytes}");
        }
    }

    #[test]
    fn an_amount_nobody_can_read_counts_as_absent() {
        let pod = pod(&json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "lots"}}}]}));
        assert_eq!(pod_cgroup(&pod, true, QUOTA_PERIOD_US).memory_limit_bytes, None);
    }
}
