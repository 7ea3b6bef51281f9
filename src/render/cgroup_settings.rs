//! Settings of the cgroups of pods and of their quality-of-service classes, file by file. PURE.
//! Follows `cm/qos_container_manager_linux.go`, `cm/pod_container_manager_linux.go` and libcontainer's cgroup manager.
//!
//! ```text
//! |     kubepods                CPU weight: all of the node's CPUs; no limit on the pods together
//! |     ├─ burstable            CPU weight: the sum of its pods' CPU requests
//!     │  └─ podUID            CPU weight, quota, memory, huge pages
//! |     ├─ besteffort           CPU weight: the minimum
//! |     │  └─ podUID            CPU weight: the minimum; no huge pages
//! |     └─ podUID               Guaranteed: as a burstable pod's
//! ```
//!
//! With the systemd driver the units have the same values as properties (`slice`), and systemd writes most of the files.

use super::cgroup_name::{class_cgroup, pod_cgroup_parent};
use super::node::{CgroupDriver, CgroupVersion, NodeSettings};
use super::qos::{QosClass, pod_qos};
use super::resources::{hugepage_unit_size, milli_cpu_to_shares, pod_cgroup, pod_requests};
use crate::model::{DesiredPod, Resource};

/// A cgroup controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Huge pages.
    Hugetlb,
    /// The number of processes.
    Pids,
}

impl Controller {
    /// All controllers used here.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Hugetlb, Self::Pids];

    /// The kernel's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Hugetlb => "hugetlb",
            Self::Pids => "pids",
        }
    }
}

/// One file of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFile {
    /// Controller that the file belongs to.
    pub controller: Controller,
    /// The file's name.
    pub name: String,
    /// The file's content.
    pub value: String,
    /// True for a limit: a node that cannot enforce it may not run the pod. Other settings are skipped when the kernel does
    /// not have their controller.
    pub is_limit: bool,
}

/// One cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSettings {
    /// The absolute name in every hierarchy.
    pub name: String,
    /// In write order.
    pub files: Vec<CgroupFile>,
    /// The slice's unit properties with the systemd driver (libcontainer's names); otherwise empty.
    pub properties: Vec<(&'static str, u64)>,
}

/// A part of a pod's cgroup settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPart {
    /// The limit of a resource.
    Limit(Resource),
    /// The CPU weight.
    CpuWeight,
}

/// The limits that the kernel has for a pod's cgroup; `None` = no such limit, or no such controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodLimits {
    /// On the scale of cgroup version 1.
    pub cpu_shares: Option<i64>,
    /// Microseconds of the period.
    pub cpu_quota_us: Option<i64>,
    /// Bytes.
    pub memory_limit_bytes: Option<i64>,
    /// Bytes in use, caches included.
    pub memory_usage_bytes: Option<u64>,
}

impl CgroupSettings {
    /// Only the settings of that part.
    #[must_use]
    pub fn part(mut self, part: PodPart) -> Self {
        let is_weight = |name: &str| matches!(name, "cpu.shares" | "cpu.weight" | "CPUShares" | "CPUWeight");
        let is_memory = |name: &str| name.starts_with("memory.") || name.starts_with("Memory");
        let is_quota = |name: &str| !is_weight(name) && (name.starts_with("cpu.") || name.starts_with("CPU"));
        let keeps = |name: &str| match part {
            PodPart::CpuWeight => is_weight(name),
            PodPart::Limit(Resource::Cpu) => is_quota(name),
            PodPart::Limit(Resource::Memory) => is_memory(name),
        };
        self.files.retain(|file| keeps(&file.name));
        self.properties.retain(|(name, _)| keeps(name));
        self
    }
}

/// CPU request of a burstable pod in thousandths of a CPU; 0 for pods of other classes (`setCPUCgroupConfig`).
pub fn burstable_milli_cpu(pod: &DesiredPod) -> i64 {
    match pod_qos(&pod.pod) {
        QosClass::Burstable => pod_requests(&pod.pod, true).get("cpu").map_or(0, |cpu| cpu.milli_value()),
        QosClass::Guaranteed | QosClass::BestEffort => 0,
    }
}

/// The cgroup of all pods and those of the two classes below it, given the sum of the burstable pods' CPU requests.
///
/// The weight of all pods together is that of the node's CPUs, whatever is enforced (`enforceNodeAllocatableCgroups`): with
/// the kernel's default weight the pods together would get no more than one of the system's slices.
pub fn class_settings(node: &NodeSettings, burstable_milli_cpu: i64) -> [CgroupSettings; 3] {
    let all = (QosClass::Guaranteed, node.cpu_capacity_millis);
    [all, (QosClass::Burstable, burstable_milli_cpu), (QosClass::BestEffort, 0)].map(|(class, milli_cpu)| {
        let (file, property) = weight(node.cgroup_version, milli_cpu_to_shares(milli_cpu));
        kept(
            node,
            CgroupSettings { name: class_cgroup(node, class), files: vec![file], properties: vec![property] },
        )
    })
}

/// Drops the properties unless the driver is systemd.
fn kept(node: &NodeSettings, mut settings: CgroupSettings) -> CgroupSettings {
    match node.cgroup_driver {
        CgroupDriver::Systemd => {}
        CgroupDriver::Cgroupfs => settings.properties.clear(),
    }
    settings
}

/// The pod's cgroup (`EnsureExists`).
pub fn pod_settings(node: &NodeSettings, pod: &DesiredPod) -> CgroupSettings {
    let own = pod_cgroup(&pod.pod, node.cpu_cfs_quota, node.cpu_cfs_period_us);
    let is_v1 = matches!(node.cgroup_version, CgroupVersion::V1 { .. });
    let (file, property) = weight(node.cgroup_version, own.cpu_shares);
    let (mut files, mut properties) = (vec![file], vec![property]);
    let mut put = |controller, name: &str, value: String, is_limit| {
        files.push(CgroupFile { controller, name: name.to_owned(), value, is_limit });
    };
    // libcontainer treats 0 as "not set".
    let quota = own.cpu_quota_us.filter(|quota| *quota != 0);
    let period = own.cpu_period_us.unwrap_or(node.cpu_cfs_period_us);
    let quota = match node.cgroup_driver {
        CgroupDriver::Systemd => quota.map(|quota| {
            let (quota, of_a_second) = whole_percents(quota, period);
            // The default period is not sent: systemd has that property only since version 242.
            properties
                .extend((period != SYSTEMD_PERIOD_US).then_some(("CPUQuotaPeriodUSec", number(period))));
            properties.push(("CPUQuotaPerSecUSec", of_a_second));
            quota
        }),
        CgroupDriver::Cgroupfs => quota,
    };
    match quota {
        None => {}
        Some(quota) if is_v1 => {
            put(Controller::Cpu, "cpu.cfs_period_us", period.to_string(), quota > 0);
            put(Controller::Cpu, "cpu.cfs_quota_us", quota.to_string(), quota > 0);
        }
        Some(quota) if quota > 0 => put(Controller::Cpu, "cpu.max", format!("{quota} {period}"), true),
        Some(_) => put(Controller::Cpu, "cpu.max", format!("max {period}"), false),
    }
    if let Some(bytes) = own.memory_limit_bytes.filter(|bytes| *bytes > 0) {
        let name = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        put(Controller::Memory, name, bytes.to_string(), true);
        properties.push((if is_v1 { "MemoryLimit" } else { "MemoryMax" }, number(bytes)));
    }
    if let Some(most) = node.pod_pids_limit {
        put(Controller::Pids, "pids.max", most.to_string(), true);
        properties.push(("TasksMax", most));
    }
    let asked = own
        .huge_page_limit_bytes
        .iter()
        .filter_map(|(size, bytes)| Some((hugepage_unit_size(*size)?, *bytes)));
    let asked: Vec<(String, i64)> = asked.collect();
    // Page sizes that the pod does not request are limited to 0. As in the kubelet (`maybeSetHugetlb`) a kernel without the
    // hugetlb controller does not prevent the pod: huge pages have to be allocated to be used.
    let others = node.hugepage_sizes.iter().filter(|size| asked.iter().all(|(known, _)| **known != ***size));
    let others = others.map(|size| (size.to_string(), 0));
    for (size, bytes) in asked.iter().cloned().chain(others) {
        let file = if is_v1 { "limit_in_bytes" } else { "max" };
        put(Controller::Hugetlb, &format!("hugetlb.{size}.{file}"), bytes.to_string(), false);
    }
    let name = pod_cgroup_parent(node, pod.key.uid.as_str(), pod_qos(&pod.pod));
    kept(node, CgroupSettings { name, files, properties })
}

/// systemd's default CPU quota period.
const SYSTEMD_PERIOD_US: i64 = 100_000;

/// systemd keeps whole percents of a CPU: the quota per period, rounded up to a percent, and the same per second, both in
/// microseconds (`addCPUQuota`). Negative: no limit.
fn whole_percents(quota: i64, period: i64) -> (i64, u64) {
    if quota < 0 {
        return (quota, u64::MAX);
    }
    const PERCENT_US: i64 = 10_000;
    let of_a_second = quota.saturating_mul(1_000_000) / period;
    let of_a_second = of_a_second.saturating_add(PERCENT_US - 1) / PERCENT_US * PERCENT_US;
    (of_a_second.saturating_mul(period) / 1_000_000, number(of_a_second))
}

/// Converts a value that is never negative.
fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// The CPU weight as a file and as a unit property.
fn weight(version: CgroupVersion, shares: i64) -> (CgroupFile, (&'static str, u64)) {
    let (name, property, value) = match version {
        CgroupVersion::V1 { .. } => ("cpu.shares", "CPUShares", shares),
        CgroupVersion::V2 { .. } => ("cpu.weight", "CPUWeight", shares_to_weight(shares)),
    };
    let value_text = value.to_string();
    let file =
        CgroupFile { controller: Controller::Cpu, name: name.to_owned(), value: value_text, is_limit: false };
    (file, (property, number(value)))
}

/// From a weight of 1 … 10000 to shares of 2 … 262144 (`cpuWeightToCPUShares`).
pub(crate) fn weight_to_shares(weight: i64) -> i64 {
    (weight.clamp(1, 10_000) - 1) * 262_142 / 9999 + 2
}

/// From shares of 2 … 262144 to a weight of 1 … 10000 (`getCPUWeight`). `shares` must be in range.
fn shares_to_weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value) -> DesiredPod {
        let pod = json!({"metadata": {"name": "p", "uid": "u1"}, "spec": spec});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn lines(settings: &CgroupSettings) -> Vec<String> {
        let mark = |file: &CgroupFile| if file.is_limit { "!" } else { "" };
        settings.files.iter().map(|f| format!("{}{}={}", f.name, mark(f), f.value)).collect()
    }

    #[test]
    fn each_class_on_both_versions() {
        let mut v1 = NodeSettings::new("n", "/r");
        v1.cgroup_version = CgroupVersion::V1 { swap_controller: false };
        v1.hugepage_sizes = vec!["2MB".into(), "1GB".into()];
        let v2 = NodeSettings { cgroup_version: CgroupVersion::V2 { swap_controller: false }, ..v1.clone() };
        let of = |resources: Value| json!({"containers": [{"name": "c", "resources": resources}]});
        let guaranteed = json!({"requests": {"cpu": "500m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}});
        let pages = json!({"limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"},
            "requests": {"memory": "1Mi", "hugepages-2Mi": "4Mi"}});
        let own = json!({"containers": [{"name": "c"}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}});
        let none = ["hugetlb.2MB.limit_in_bytes=0", "hugetlb.1GB.limit_in_bytes=0"];
        let none2 = ["hugetlb.2MB.max=0", "hugetlb.1GB.max=0"];
        type Row<'a> = (Value, &'a str, Vec<&'a str>, Vec<&'a str>);
        let rows: [Row<'_>; 5] = [
            (of(json!({})), "/kubepods/besteffort/podu1", vec!["cpu.shares=2"], vec!["cpu.weight=1"]),
            (
                of(guaranteed),
                "/kubepods/podu1",
                vec![
                    "cpu.shares=512",
                    "cpu.cfs_period_us!=100000",
                    "cpu.cfs_quota_us!=50000",
                    "memory.limit_in_bytes!=67108864",
                ],
                vec!["cpu.weight=20", "cpu.max!=50000 100000", "memory.max!=67108864"],
            ),
            (
                of(json!({"requests": {"cpu": "1"}})),
                "/kubepods/burstable/podu1",
                vec!["cpu.shares=1024"],
                vec!["cpu.weight=39"],
            ),
            (
                own,
                "/kubepods/burstable/podu1",
                vec![
                    "cpu.shares=1024",
                    "cpu.cfs_period_us!=100000",
                    "cpu.cfs_quota_us!=200000",
                    "memory.limit_in_bytes!=1073741824",
                ],
                vec!["cpu.weight=39", "cpu.max!=200000 100000", "memory.max!=1073741824"],
            ),
            (
                of(pages),
                "/kubepods/burstable/podu1",
                vec![
                    "cpu.shares=2",
                    "memory.limit_in_bytes!=1073741824",
                    "hugetlb.2MB.limit_in_bytes=4194304",
                    "hugetlb.1GB.limit_in_bytes=0",
                ],
                vec![
                    "cpu.weight=1",
                    "memory.max!=1073741824",
                    "hugetlb.2MB.max=4194304",
                    "hugetlb.1GB.max=0",
                ],
            ),
        ];
        for (spec, name, mut first, mut second) in rows {
            if !first.iter().any(|line| line.starts_with("hugetlb")) {
                first.extend(none);
                second.extend(none2);
            }
            let ours = [&v1, &v2].map(|node| pod_settings(node, &pod(&spec)));
            assert!(ours.iter().all(|settings| settings.name == name), "{spec}: {ours:?}");
            assert_eq!(lines(&ours[0]), first, "{spec}");
            assert_eq!(lines(&ours[1]), second, "{spec}");
        }
    }

    #[test]
    fn without_enforcement_a_quota_is_lifted() {
        let mut node = NodeSettings::new("n", "/r");
        node.cpu_cfs_quota = false;
        let pod = pod(&json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}));
        assert_eq!(lines(&pod_settings(&node, &pod)), ["cpu.weight=1", "cpu.max=max 100000"]);
    }

    #[test]
    fn slices_have_the_same_as_properties() {
        let mut v1 = NodeSettings::new("n", "/r");
        v1.cgroup_driver = CgroupDriver::Systemd;
        v1.cgroup_version = CgroupVersion::V1 { swap_controller: false };
        let v2 = NodeSettings { cgroup_version: CgroupVersion::V2 { swap_controller: false }, ..v1.clone() };
        let uncapped = NodeSettings { cpu_cfs_quota: false, ..v2.clone() };
        let quick = NodeSettings { cpu_cfs_period_us: 5_000, ..v2.clone() };
        let of = |limits: Value| {
            pod(&json!({"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]}))
        };
        let strict = of(json!({"cpu": "500m", "memory": "64Mi"}));
        let odd = of(json!({"cpu": "1234m"}));
        let properties = |node: &NodeSettings, pod: &DesiredPod| pod_settings(node, pod).properties;
        let memory = 64 << 20;
        assert_eq!(
            properties(&v1, &strict),
            [("CPUShares", 512), ("CPUQuotaPerSecUSec", 500_000), ("MemoryLimit", memory)]
        );
        assert_eq!(
            properties(&v2, &strict),
            [("CPUWeight", 20), ("CPUQuotaPerSecUSec", 500_000), ("MemoryMax", memory)]
        );
        // Rounded up to whole percents in the file too: systemd would write the same.
        assert_eq!(properties(&v2, &odd)[1], ("CPUQuotaPerSecUSec", 1_240_000));
        assert_eq!(lines(&pod_settings(&v2, &odd))[1], "cpu.max!=124000 100000");
        assert_eq!(
            properties(&quick, &odd)[1..],
            [("CPUQuotaPeriodUSec", 5_000), ("CPUQuotaPerSecUSec", 1_240_000)]
        );
        assert_eq!(lines(&pod_settings(&quick, &odd))[1], "cpu.max!=6200 5000");
        assert_eq!(properties(&uncapped, &odd)[1], ("CPUQuotaPerSecUSec", u64::MAX));
        assert_eq!(lines(&pod_settings(&uncapped, &odd))[1], "cpu.max=max 100000");
        assert_eq!(properties(&v2, &of(json!({}))), [("CPUWeight", 1)]);
        let [all, burstable, best_effort] =
            class_settings(&NodeSettings { cpu_capacity_millis: 4_000, ..v1.clone() }, 1750);
        assert_eq!((&*all.name, all.properties), ("/kubepods.slice", vec![("CPUShares", 4096)]));
        assert_eq!(&*burstable.name, "/kubepods.slice/kubepods-burstable.slice");
        assert_eq!(
            (burstable.properties, best_effort.properties),
            (vec![("CPUShares", 1792)], vec![("CPUShares", 2)])
        );
        let names = |part| {
            let settings = pod_settings(&v2, &strict).part(part);
            let files: Vec<String> = settings.files.into_iter().map(|file| file.name).collect();
            (files.join(" "), settings.properties.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(names(PodPart::CpuWeight), ("cpu.weight".to_owned(), vec!["CPUWeight"]));
        assert_eq!(names(PodPart::Limit(Resource::Cpu)), ("cpu.max".to_owned(), vec!["CPUQuotaPerSecUSec"]));
        assert_eq!(names(PodPart::Limit(Resource::Memory)), ("memory.max".to_owned(), vec!["MemoryMax"]));
        // The other driver has no unit properties.
        let cgroupfs = NodeSettings { cgroup_driver: CgroupDriver::Cgroupfs, ..v2.clone() };
        assert_eq!(properties(&cgroupfs, &strict), []);
        assert_eq!(lines(&pod_settings(&cgroupfs, &odd))[1], "cpu.max!=123400 100000");
    }

    #[test]
    fn a_pods_processes_are_limited_when_the_settings_say_so() {
        let mut node = NodeSettings::new("n", "/r");
        let pod = pod(&json!({"containers": [{"name": "c"}]}));
        assert_eq!(lines(&pod_settings(&node, &pod)), ["cpu.weight=1"]);
        node.pod_pids_limit = Some(100);
        let limited = pod_settings(&node, &pod);
        assert_eq!(lines(&limited), ["cpu.weight=1", "pids.max!=100"]);
        node.cgroup_driver = CgroupDriver::Systemd;
        assert!(pod_settings(&node, &pod).properties.contains(&("TasksMax", 100)));
    }

    #[test]
    fn a_class_weighs_what_its_pods_ask_for() {
        let node = NodeSettings::new("n", "/r");
        let of = |cpu: &str, limit: Option<&str>| {
            let mut resources = json!({"requests": {"cpu": cpu, "memory": "1Mi"}});
            if let Some(limit) = limit {
                resources["limits"] = json!({"cpu": limit, "memory": "1Mi"});
            }
            burstable_milli_cpu(&pod(&json!({"containers": [{"name": "c", "resources": resources}]})))
        };
        assert_eq!((of("250m", None), of("1500m", Some("2")), of("1", Some("1"))), (250, 1500, 0));
        let node = NodeSettings { cpu_capacity_millis: 4_000, ..node };
        let [all, burstable, best_effort] = class_settings(&node, 1750);
        assert_eq!((&*all.name, lines(&all)), ("/kubepods", vec!["cpu.weight=157".to_owned()]));
        assert_eq!(
            (&*burstable.name, lines(&burstable)),
            ("/kubepods/burstable", vec!["cpu.weight=69".to_owned()])
        );
        assert_eq!(
            (&*best_effort.name, lines(&best_effort)),
            ("/kubepods/besteffort", vec!["cpu.weight=1".to_owned()])
        );
        assert_eq!((shares_to_weight(2), shares_to_weight(1024), shares_to_weight(262_144)), (1, 39, 10_000));
        assert_eq!((weight_to_shares(1), weight_to_shares(39), weight_to_shares(10_000)), (2, 998, 262_144));
        for weight in 1..=10_000 {
            assert!((0..=1).contains(&(weight - shares_to_weight(weight_to_shares(weight)))), "{weight}");
        }
    }
}
