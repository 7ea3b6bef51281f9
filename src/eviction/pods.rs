//! The pods' usage, the pod to evict, and the admission of pods under node pressure. PURE.

use k8s_openapi::api::core::v1::Toleration;

use super::message::ContainerUse;
use super::rank::{PodUse, rank};
use super::threshold::{Resource, Signal};
use super::{NodeCondition, Observation, Threshold, message};
use crate::model::DesiredPod;
use crate::render::qos::{QosClass, compute_pod_qos};
use crate::render::resources::{amount, pod_requests};

/// Least priority of pods that are never evicted (`SystemCriticalPriority`).
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Taint of nodes with the condition `MemoryPressure` (`TaintNodeMemoryPressure`).
const MEMORY_PRESSURE_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// Disk usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// In bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// A container's usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Its name.
    pub name: Box<str>,
    /// Its working set in bytes; `None` when the runtime does not report it.
    pub memory: Option<u64>,
    /// Its writable layer; `None` likewise.
    pub layer: Option<DiskUse>,
    /// Its logs.
    pub logs: DiskUse,
}

impl ContainerUsage {
    /// Bytes of its writable layer; 0 if unknown.
    pub(super) fn layer_bytes(&self) -> u64 {
        self.layer.map_or(0, |layer| layer.bytes)
    }
}

/// A pod's usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Its running containers; without any it uses no memory.
    pub containers: Vec<ContainerUsage>,
    /// Its volumes on the node's disk, and its hosts file.
    pub volumes: DiskUse,
    /// Process IDs of its processes and threads; `None` = not measured, or without a cgroup.
    pub pids: Option<u64>,
}

impl PodUsage {
    /// Usage of the signal's resource, in its unit (`memory`, `disk`): with images on a separate disk, the writable layers are
    /// there, else everything is on one disk. `None` when unknown.
    fn of(&self, signal: Signal, images_apart: bool) -> Option<u64> {
        let sum = |of: &dyn Fn(&ContainerUsage) -> Option<u64>| {
            self.containers.iter().filter_map(of).fold(0, u64::saturating_add)
        };
        let (layers, others) = match signal {
            Signal::MemoryAvailable => {
                let mut all = self.containers.iter();
                let known = self.containers.is_empty() || all.any(|container| container.memory.is_some());
                return known.then(|| sum(&|container| container.memory));
            }
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => (!images_apart, true),
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => (true, !images_apart),
            Signal::PidAvailable => return self.pids,
        };
        let part = |disk: DiskUse| match signal.resource() {
            Resource::Inodes => disk.inodes,
            Resource::Memory | Resource::EphemeralStorage | Resource::Pids => disk.bytes,
        };
        let of_layers = sum(&|container| container.layer.filter(|_| layers).map(part));
        let of_logs = sum(&|container| others.then(|| part(container.logs)));
        let volumes = if others { part(self.volumes) } else { 0 };
        Some(of_layers + of_logs + volumes)
    }

    /// Usage of each container, for the message; there is none for inodes and process IDs.
    fn of_containers(&self, pod: &DesiredPod, resource: Resource) -> Vec<ContainerUse<'_>> {
        let requested = |name: &str| {
            let mut all = pod.containers().iter().chain(pod.init_containers());
            let found = all.find(|container| container.name == name)?;
            let requests = found.resources.as_ref().and_then(|resources| resources.requests.as_ref());
            u64::try_from(amount(requests, resource.as_str()).value()).ok()
        };
        let used = |container: &ContainerUsage| match resource {
            Resource::Memory => container.memory,
            Resource::EphemeralStorage => Some(container.layer?.bytes + container.logs.bytes),
            Resource::Inodes | Resource::Pids => None,
        };
        let uses = self.containers.iter().filter_map(|container| {
            let (used, name) = (used(container)?, &*container.name);
            Some(ContainerUse { name, used, requested: requested(name)? })
        });
        uses.collect()
    }
}

/// A candidate for eviction.
#[derive(Clone, Copy, Debug)]
pub struct Evictable<'a> {
    /// The pod.
    pub pod: &'a DesiredPod,
    /// `None` = unknown.
    pub usage: Option<&'a PodUsage>,
}

/// The pod to evict first, as its index among the candidates, and the message; `None` without candidates.
pub fn first_to_go(
    pods: &[Evictable<'_>],
    threshold: &Threshold,
    seen: Observation,
    images_apart: bool,
) -> Option<(usize, String)> {
    let resource = threshold.signal.resource();
    let requested = |pod: &DesiredPod| match resource {
        Resource::Inodes | Resource::Pids => 0,
        Resource::Memory | Resource::EphemeralStorage => {
            let asked = pod_requests(&pod.pod, true).get(resource.as_str()).map_or(0, |asked| asked.value());
            u64::try_from(asked).unwrap_or_default()
        }
    };
    let uses = pods.iter().map(|of| PodUse {
        uid: of.pod.key.uid.as_str(),
        priority: priority(of.pod),
        used: of.usage.and_then(|usage| usage.of(threshold.signal, images_apart)),
        requested: requested(of.pod),
    });
    let mut ranked: Vec<PodUse<'_>> = uses.collect();
    rank(&mut ranked);
    let uid = ranked.first()?.uid;
    let place = pods.iter().position(|of| of.pod.key.uid.as_str() == uid)?;
    let of = pods.get(place)?;
    let containers = of.usage.map(|usage| usage.of_containers(of.pod, resource)).unwrap_or_default();
    Some((place, message::message(threshold, seen, &containers)))
}

/// `spec.priority`, else the priority of a class that exists in every cluster; other classes are known only to the API server.
pub fn priority(pod: &DesiredPod) -> i32 {
    let spec = pod.spec();
    spec.priority.unwrap_or(match spec.priority_class_name.as_deref() {
        Some("system-node-critical") => SYSTEM_CRITICAL_PRIORITY + 1000,
        Some("system-cluster-critical") => SYSTEM_CRITICAL_PRIORITY,
        Some(_) | None => 0,
    })
}

/// True for a pod that is neither evicted nor refused under node pressure. Differs from the kubelet's `IsCriticalPod`, for
/// which every static pod is critical: here standalone nodes run only static pods.
pub fn is_critical(pod: &DesiredPod) -> bool {
    priority(pod) >= SYSTEM_CRITICAL_PRIORITY
}

/// Why a pod without sandboxes and containers is not admitted now (`managerImpl.Admit`); `None` when it is.
pub fn refusal(conditions: &[NodeCondition], pod: &DesiredPod) -> Option<String> {
    if conditions.is_empty() || is_critical(pod) {
        return None;
    }
    if conditions == [NodeCondition::Memory]
        && (compute_pod_qos(&pod.pod) != QosClass::BestEffort || tolerates_memory_pressure(pod))
    {
        return None;
    }
    let names: Vec<&str> = conditions.iter().map(|condition| condition.as_str()).collect();
    Some(format!("The node had condition: [{}]. ", names.join(" ")))
}

/// `TolerationsTolerateTaint`.
fn tolerates_memory_pressure(pod: &DesiredPod) -> bool {
    let tolerates = |toleration: &Toleration| {
        let is =
            |text: &Option<String>, wanted: &[&str]| wanted.contains(&text.as_deref().unwrap_or_default());
        let exists = is(&toleration.operator, &["Exists"]);
        let key = is(&toleration.key, &[MEMORY_PRESSURE_TAINT]) || exists && is(&toleration.key, &[""]);
        let value = exists || is(&toleration.operator, &["", "Equal"]) && is(&toleration.value, &[""]);
        key && value && is(&toleration.effect, &["", "NoSchedule"])
    };
    pod.spec().tolerations.iter().flatten().any(tolerates)
}

#[cfg(test)]
mod tests {
    use super::super::Amount;
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    fn pod(uid: &str, spec: Value) -> DesiredPod {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "app"}]);
        }
        let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": spec});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn threshold(signal: Signal) -> Threshold {
        Threshold { signal, at: Amount::Quantity(100), grace: Duration::ZERO, min_reclaim: None }
    }

    fn usage(memory: u64, layer: u64, logs: u64, volumes: u64) -> PodUsage {
        let disk = |mib: u64| DiskUse { bytes: mib * MIB, inodes: 1000 - mib };
        let app = ContainerUsage {
            name: "app".into(),
            memory: Some(memory * MIB),
            layer: Some(disk(layer)),
            logs: disk(logs),
        };
        PodUsage { containers: vec![app], volumes: disk(volumes), pids: None }
    }

    #[test]
    fn the_pod_with_the_largest_usage_of_the_starved_resource_is_evicted_first() {
        let (a, b, c) = (pod("a", json!({})), pod("b", json!({})), pod("c", json!({})));
        let usages = [usage(30, 1, 1, 1), usage(20, 50, 2, 2), usage(10, 3, 20, 20)];
        let pods: Vec<Evictable<'_>> = [&a, &b, &c]
            .into_iter()
            .zip(&usages)
            .map(|(pod, usage)| Evictable { pod, usage: Some(usage) })
            .collect();
        let seen = Observation { available: 1, capacity: 1000 };
        for (signal, apart, goes) in [
            (Signal::MemoryAvailable, false, "a"),
            (Signal::NodeFsAvailable, false, "b"),
            (Signal::NodeFsAvailable, true, "c"),
            (Signal::ImageFsAvailable, true, "b"),
            (Signal::ImageFsAvailable, false, "b"),
            // Usage of inodes is in the opposite order to that of bytes.
            (Signal::NodeFsInodesFree, true, "a"),
            (Signal::ImageFsInodesFree, true, "a"),
        ] {
            let (place, _) = first_to_go(&pods, &threshold(signal), seen, apart).expect("there are pods");
            assert_eq!(pods[place].pod.key.uid.as_str(), goes, "{signal:?} {apart}");
        }
        assert!(first_to_go(&[], &threshold(Signal::MemoryAvailable), seen, false).is_none());
    }

    #[test]
    fn for_process_ids_priority_counts_and_then_the_number() {
        let with = |pids| PodUsage { pids, ..usage(900, 0, 0, 0) };
        let mut urgent = json!({});
        urgent["priority"] = json!(10);
        let (few, many, urgent) = (pod("few", json!({})), pod("many", json!({})), pod("urgent", urgent));
        let usages = [with(Some(3)), with(Some(40)), with(Some(500))];
        let all: Vec<Evictable<'_>> = [&few, &many, &urgent]
            .into_iter()
            .zip(&usages)
            .map(|(pod, usage)| Evictable { pod, usage: Some(usage) })
            .collect();
        let seen = Observation { available: 10, capacity: 1000 };
        let (place, message) =
            first_to_go(&all, &threshold(Signal::PidAvailable), seen, false).expect("there are pods");
        assert_eq!(all[place].pod.key.uid.as_str(), "many");
        assert_eq!(message, "The node was low on resource: pids. Threshold quantity: 100, available: 10. ");
    }

    #[test]
    fn requests_and_priority_protect_a_pod() {
        let asks = |bytes: &str| json!({"containers": [{"name": "app", "resources": {"requests": {"memory": bytes}}}]});
        let modest = pod("modest", asks("40Mi"));
        let greedy = pod("greedy", asks("10Mi"));
        let mut urgent = asks("1Mi");
        urgent["priority"] = json!(1000);
        let urgent = pod("urgent", urgent);
        let use_of = usage(30, 0, 0, 0);
        let all = [&urgent, &modest, &greedy].map(|pod| Evictable { pod, usage: Some(&use_of) });
        let seen = Observation { available: 50, capacity: 1000 };
        let (place, message) =
            first_to_go(&all, &threshold(Signal::MemoryAvailable), seen, false).expect("there are pods");
        assert_eq!(place, 2, "above its request, and without priority");
        assert_eq!(
            message,
            "The node was low on resource: memory. Threshold quantity: 100, available: 50. Container app was using \
             30Mi, request is 10Mi, has larger consumption of memory. "
        );
        let unknown = [all[2], Evictable { pod: &modest, usage: None }];
        let first = first_to_go(&unknown, &threshold(Signal::MemoryAvailable), seen, false);
        assert_eq!(first.map(|(place, _)| place), Some(1), "as in the kubelet: unknown usage ranks first");
        let waits = PodUsage::default();
        let waiting = [Evictable { pod: &modest, usage: Some(&waits) }, all[0]];
        let first = first_to_go(&waiting, &threshold(Signal::MemoryAvailable), seen, false);
        assert_eq!(first.map(|(place, _)| place), Some(1), "a pod without a running container uses nothing");
    }

    #[test]
    fn pods_are_admitted_under_pressure_as_by_the_kubelet() {
        let best_effort = pod("a", json!({}));
        let burstable =
            pod("b", json!({"containers": [{"name": "app", "resources": {"requests": {"memory": "1Mi"}}}]}));
        let critical = pod("c", json!({"priorityClassName": "system-cluster-critical"}));
        let tolerant = |toleration: Value| pod("d", json!({"tolerations": [toleration]}));
        let by_key =
            tolerant(json!({"key": MEMORY_PRESSURE_TAINT, "operator": "Exists", "effect": "NoSchedule"}));
        let all = tolerant(json!({"operator": "Exists"}));
        let other =
            tolerant(json!({"key": MEMORY_PRESSURE_TAINT, "operator": "Exists", "effect": "NoExecute"}));
        let memory = &[NodeCondition::Memory][..];
        let both = &[NodeCondition::Memory, NodeCondition::Disk][..];
        for (name, pod, with_memory, with_both) in [
            ("best effort", &best_effort, false, false),
            ("burstable", &burstable, true, false),
            ("critical", &critical, true, true),
            ("tolerates it", &by_key, true, false),
            ("tolerates everything", &all, true, false),
            ("tolerates something else", &other, false, false),
        ] {
            assert_eq!(refusal(&[], pod), None, "{name}");
            assert_eq!(refusal(memory, pod).is_none(), with_memory, "{name}");
            assert_eq!(refusal(both, pod).is_none(), with_both, "{name}");
        }
        let words = "The node had condition: [MemoryPressure DiskPressure]. ";
        assert_eq!(refusal(both, &best_effort).as_deref(), Some(words));
    }
}
