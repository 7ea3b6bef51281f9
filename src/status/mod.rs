//! PURE: converts the runtime's status, start failures and probe results to a `v1.PodStatus`.
//!
//! ```text
//!   pod_status (generateAPIPodStatus)        merge::update (updateStatusInternal)     merge::for_api
//!   containers → phase → probes → conditions ──► times, generation, illegal moves ──► (mergePodStatus)
//! ```
//!
//! Follows the kubelet's `kubelet_pods.go`, `prober_manager.go` and `status/generate.go` rule by rule: the vectors in
//! `tests/vectors/container_statuses.rs` compare it with the kubelet's own results. No clock: times are inputs.

mod conditions;
mod containers;
pub mod eviction;
pub mod merge;
mod phase;
mod probes;
pub(crate) mod resources;
pub mod restarts;
mod rules;

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::model::network::parse_ip;
use crate::model::{ContainerId, ContainerStatus, DesiredPod, ObservedPod, Wall};
use crate::render::qos::pod_qos;

pub use phase::Phase;
pub use resources::{ActualResources, PodCgroup};

/// Reason of a pod that was active for longer than `spec.activeDeadlineSeconds`, and of its event (`active_deadline.go`).
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// Its message.
pub const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// The probes whose workers and results the status depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusProbe {
    /// `readinessProbe`.
    Readiness,
    /// `startupProbe`.
    Startup,
}

/// What the loop knows of one pod besides the runtime's status. Queried while the status is made.
pub trait StatusFacts {
    /// Reason and message of the container's last failed start (kubelet `ReasonCache`); `None` after a successful one.
    fn start_failure(&self, container: &str) -> Option<(&str, &str)>;
    /// The newest result of that probe for the container id (without `containerd://`): `Some(true)` = success,
    /// `Some(false)` = failure or unknown, `None` = no result yet.
    fn probe_result(&self, probe: StatusProbe, container_id: &str) -> Option<bool>;
    /// True when a worker for that probe exists for the container of this name (prober manager `getWorker`).
    fn probe_worker(&self, probe: StatusProbe, container: &str) -> bool;
    /// A container's actual resources, as quantities.
    fn actual_resources(&self, container: &ContainerStatus) -> Option<ActualResources> {
        ActualResources::of(container)
    }
}

/// No start failures and no probes: for pods without probes, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFacts;

impl StatusFacts for NoFacts {
    fn start_failure(&self, _: &str) -> Option<(&str, &str)> {
        None
    }
    fn probe_result(&self, _: StatusProbe, _: &str) -> Option<bool> {
        None
    }
    fn probe_worker(&self, _: StatusProbe, _: &str) -> bool {
        false
    }
}

/// Inputs of [`pod_status`].
#[derive(Clone, Copy)]
pub struct StatusInput<'a> {
    /// The desired pod (`DesiredPod::pod`); its `status` is the API server's, `None` for a static pod.
    pub pod: &'a Pod,
    /// The runtime's status of the pod.
    pub observed: &'a ObservedPod,
    /// The status shown last (the status manager's cache); `None` = none yet, then `pod.status` is used.
    pub previous: Option<&'a PodStatus>,
    /// Start failures, probe results and workers.
    pub facts: &'a dyn StatusFacts,
    /// The pod worker has terminated the pod: its containers will not restart (`podIsTerminal`).
    pub is_terminal: bool,
    /// The resize conditions (`GetPodResizeConditions`).
    pub resizes: &'a [PodCondition],
    /// Time since the previous status' `startTime` on the monotonic clock; `None` without a start time. Compared with
    /// `spec.activeDeadlineSeconds`; the kubelet subtracts wall times there.
    pub active_for: Option<Duration>,
    /// The limits read from the pod's cgroup; `None` = not read.
    pub pod_cgroup: Option<PodCgroup>,
    /// When the agent started, on the wall clock that the runtime's `startedAt` uses.
    pub agent_start: Wall,
    /// The node's addresses, at most one per family, the primary first; empty = `hostIP` stays as it was.
    pub host_ips: &'a [IpAddr],
    /// The node prefers IPv6 (the first `--node-ip` is an IPv6 address); pods then show their IPv6 address first.
    pub ipv6_first: bool,
    /// The runtime's name: `containerd` of `containerd://ID`.
    pub runtime_name: &'a str,
    /// The runtime handler of this pod supports recursive read-only mounts.
    pub recursive_read_only: bool,
}

/// True for a condition that the node agent writes, alone or with other components.
pub(crate) fn is_known_condition(kind: &str) -> bool {
    rules::is_own_condition(kind) || kind == merge::SHARED_CONDITION
}

/// The status of the container with that name, if it has that container id.
pub(crate) fn container_status<'a>(
    status: &'a PodStatus,
    name: &str,
    id: &ContainerId,
) -> Option<&'a k8s_openapi::api::core::v1::ContainerStatus> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut named = all.filter(|container| container.name == name);
    named.find(|container| probes::bare_id(container) == id.as_str())
}

/// The pod's address for connections from its node (`podIP` of its status); `None` before it has one.
pub(crate) fn pod_ip(pod: &DesiredPod, observed: &ObservedPod, host_ips: &[IpAddr]) -> Option<IpAddr> {
    if pod.spec().host_network == Some(true) {
        return host_ips.first().copied();
    }
    let ipv6_first = host_ips.first().is_some_and(IpAddr::is_ipv6);
    sort_pod_ips(&observed.ips, ipv6_first).first().and_then(|ip| parse_ip(&ip.ip))
}

/// True when the condition of that type is true.
pub(crate) fn condition_holds(status: &PodStatus, kind: &str) -> bool {
    rules::holds(rules::conditions(status), kind)
}

/// A wall time as an API time; `None` when RFC 3339 cannot express it.
pub(crate) fn time(at: Wall) -> Option<Time> {
    Timestamp::from_nanosecond(i128::from(at.0)).ok().map(Time)
}

/// An API time as a wall time; clamped to the range of 64-bit nanoseconds (1677 to 2262).
pub(crate) fn nanos(time: &Time) -> Wall {
    let nanos = time.0.as_nanosecond().clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Wall(i64::try_from(nanos).unwrap_or(i64::MAX))
}

/// The pod's status as in the kubelet's `generateAPIPodStatus`, before [`merge::update`] sets its times.
///
/// A pod without a spec counts as an empty one. Differs from the kubelet in one place: the active deadline is measured on
/// the monotonic clock (`StatusInput::active_for`), as a gateway's wall clock steps.
pub fn pod_status(input: &StatusInput<'_>) -> PodStatus {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let pod = input.pod;
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let api_status = pod.status.as_ref().unwrap_or(&no_status);
    let old = input.previous.unwrap_or(api_status);

    let mut status = convert(input, spec, old);
    let phase = decide_phase(input, spec, api_status, old, &mut status);
    probes::apply(input, &mut status);
    status.conditions = Some(all_conditions(input, spec, old, &status, phase));
    set_host_ips(input, spec, old, &mut status);
    status
}

/// `convertStatusToAPIStatus`.
fn convert(input: &StatusInput<'_>, spec: &PodSpec, old: &PodStatus) -> PodStatus {
    use crate::model::ContainerKind::{App, Ephemeral, Init};
    let restarting = rules::should_all_restart(spec, input.observed, old);
    let lists = containers::Lists { input, spec, restarting };
    let of = |kind, containers: Vec<rules::SpecContainer<'_>>, previous: &Option<Vec<_>>| {
        Some(lists.convert(kind, &containers, previous.as_deref().unwrap_or_default()))
            .filter(|statuses| !statuses.is_empty())
    };
    let init = rules::init_containers(spec).iter().map(Into::into).collect();
    let app = spec.containers.iter().map(Into::into).collect();
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(Into::into).collect();

    let ips = sort_pod_ips(&input.observed.ips, input.ipv6_first);
    let allocated = resources::pod_requests(input.pod);
    PodStatus {
        pod_ip: ips.first().map(|ip| ip.ip.clone()),
        pod_ips: Some(ips).filter(|ips| !ips.is_empty()),
        qos_class: Some(pod_qos(input.pod).as_str().to_owned()),
        container_statuses: of(App, app, &old.container_statuses),
        init_container_statuses: of(Init, init, &old.init_container_statuses),
        ephemeral_container_statuses: of(Ephemeral, ephemeral, &old.ephemeral_container_statuses),
        resources: Some(resources::pod_resources(input.pod, old, input.pod_cgroup)),
        allocated_resources: Some(allocated).filter(|list| !list.is_empty()),
        ..PodStatus::default()
    }
}

/// The phase from the containers alone (`getPhase`), before [`pod_status`] applies earlier terminal phases, the active
/// deadline and the probes.
pub fn phase_from_containers(input: &StatusInput<'_>) -> Phase {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = input.pod.spec.as_ref().unwrap_or(&no_spec);
    let old = input.previous.or(input.pod.status.as_ref()).unwrap_or(&no_status);
    computed_phase(input, spec, &convert(input, spec, old))
}

fn computed_phase(input: &StatusInput<'_>, spec: &PodSpec, status: &PodStatus) -> Phase {
    let statuses = [
        status.container_statuses.as_deref().unwrap_or_default(),
        status.init_container_statuses.as_deref().unwrap_or_default(),
    ];
    phase::phase_of(input.pod, statuses, input.is_terminal, rules::any_app_active(spec, input.observed))
}

/// The phase with its reason and message: from the containers, kept at a terminal phase shown before, and overridden by the
/// active deadline.
fn decide_phase(
    input: &StatusInput<'_>,
    spec: &PodSpec,
    api_status: &PodStatus,
    old: &PodStatus,
    status: &mut PodStatus,
) -> Phase {
    let computed = computed_phase(input, spec, status);
    let shown = Phase::terminal(old.phase.as_deref());
    let in_api = Phase::terminal(api_status.phase.as_deref());
    let mut phase = match computed {
        Phase::Failed | Phase::Succeeded => computed,
        Phase::Pending | Phase::Running => shown.or(in_api).unwrap_or(computed),
    };
    if old.phase.as_deref() == Some(phase.as_str()) {
        let of = |first: &Option<String>, second: &Option<String>| {
            first.as_ref().filter(|text| !text.is_empty()).or(second.as_ref()).cloned()
        };
        status.reason = of(&old.reason, &api_status.reason);
        status.message = of(&old.message, &api_status.message);
    }
    if past_active_deadline(spec, input.active_for) {
        phase = Phase::Failed;
        status.reason = Some(DEADLINE_EXCEEDED.to_owned());
        status.message = Some(DEADLINE_MESSAGE.to_owned());
    }
    // A terminal phase that the API has seen is never reverted.
    let phase = in_api.unwrap_or(phase);
    status.phase = Some(phase.as_str().to_owned());
    phase
}

/// `pastActiveDeadline`.
fn past_active_deadline(spec: &PodSpec, active_for: Option<Duration>) -> bool {
    let (Some(allowed), Some(active_for)) = (spec.active_deadline_seconds, active_for) else { return false };
    active_for >= Duration::from_secs(u64::try_from(allowed).unwrap_or(0))
}

/// Conditions of other components as in the API, `DisruptionTarget` as shown last, then our own in fixed order.
fn all_conditions(
    input: &StatusInput<'_>,
    spec: &PodSpec,
    old: &PodStatus,
    status: &PodStatus,
    phase: Phase,
) -> Vec<PodCondition> {
    let in_api = input.pod.status.as_ref().map(rules::conditions).unwrap_or_default();
    let mut list: Vec<_> = in_api.iter().filter(|c| !rules::is_own_condition(&c.type_)).cloned().collect();
    if let Some(target) = rules::find_condition(rules::conditions(old), "DisruptionTarget") {
        match list.iter_mut().find(|c| c.type_ == target.type_) {
            Some(there) => there.clone_from(target),
            None => list.push(target.clone()),
        }
    }
    list.extend_from_slice(input.resizes);
    let make = conditions::Conditions {
        pod: input.pod,
        spec,
        observed: input.observed,
        old,
        init: status.init_container_statuses.as_deref().unwrap_or_default(),
        app: status.container_statuses.as_deref().unwrap_or_default(),
        phase,
    };
    list.push(make.ready_to_start());
    list.push(make.initialized());
    let ready = make.ready(&list);
    list.push(ready);
    list.push(make.containers_ready("ContainersReady"));
    list.push(conditions::condition("PodScheduled", true, conditions::generation(input.pod)));
    if rules::all_could_restart(spec) {
        list.push(make.all_restarting());
    }
    list
}

/// Host addresses; pods on the host network have them as pod addresses too. While the node has none they stay as they were told: the
/// kubelet takes them from the Node, whose addresses stay then (`NodeAddress`).
fn set_host_ips(input: &StatusInput<'_>, spec: &PodSpec, old: &PodStatus, status: &mut PodStatus) {
    let Some(first) = input.host_ips.first() else {
        status.host_ip.clone_from(&old.host_ip);
        status.host_ips.clone_from(&old.host_ips);
        if spec.host_network == Some(true) && status.pod_ip.is_none() {
            status.pod_ip.clone_from(&old.pod_ip);
            status.pod_ips.clone_from(&old.pod_ips);
        }
        return;
    };
    let second = input.host_ips.get(1);
    status.host_ip = Some(first.to_string());
    status.host_ips =
        Some([Some(first), second].into_iter().flatten().map(|ip| HostIP { ip: ip.to_string() }).collect());
    if spec.host_network != Some(true) {
        return;
    }
    let own = |ip: &IpAddr| PodIP { ip: ip.to_string() };
    if status.pod_ip.as_deref().unwrap_or("").is_empty() {
        status.pod_ip = Some(first.to_string());
        status.pod_ips = Some(vec![own(first)]);
    }
    if let (Some(second), Some(ips)) = (second, status.pod_ips.as_mut()) {
        let other_family = |ip: &PodIP| parse_ip(&ip.ip).is_some_and(|ip| ip.is_ipv4() != second.is_ipv4());
        if ips.len() == 1 && ips.iter().all(other_family) {
            ips.push(own(second));
        }
    }
}

/// `sortPodIPs`: the first address of the preferred family, then the first of the other, in canonical form.
fn sort_pod_ips(ips: &[Box<str>], ipv6_first: bool) -> Vec<PodIP> {
    let first_of = |v6: bool| ips.iter().filter_map(|ip| parse_ip(ip)).find(|ip| ip.is_ipv6() == v6);
    [first_of(ipv6_first), first_of(!ipv6_first)]
        .into_iter()
        .flatten()
        .map(|ip| PodIP { ip: ip.to_string() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input<'a>(pod: &'a Pod, observed: &'a ObservedPod) -> StatusInput<'a> {
        StatusInput {
            pod,
            observed,
            previous: None,
            facts: &NoFacts,
            is_terminal: false,
            resizes: &[],
            active_for: None,
            pod_cgroup: None,
            agent_start: Wall(0),
            host_ips: &[],
            ipv6_first: false,
            runtime_name: "containerd",
            recursive_read_only: false,
        }
    }

    #[test]
    fn a_new_static_pod_waits_for_its_containers() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web-node", "namespace": "default"},
            "spec": {"containers": [{"name": "web", "image": "nginx"}], "restartPolicy": "Always"},
        }))
        .unwrap();
        let status = serde_json::to_value(pod_status(&input(&pod, &ObservedPod::default()))).unwrap();
        assert_eq!(status["phase"], "Pending");
        assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
        assert_eq!(status["conditions"][2]["message"], "containers with unready status: [web]");
        assert_eq!(status.get("hostIP"), None);
    }

    #[test]
    fn pods_without_spec_or_containers_have_a_status() {
        for value in [json!({}), json!({"spec": {"containers": []}})] {
            let pod: Pod = serde_json::from_value(value).unwrap();
            assert_eq!(pod_status(&input(&pod, &ObservedPod::default())).phase.as_deref(), Some("Pending"));
        }
    }

    #[test]
    fn addresses_are_ordered_by_family_and_rewritten() {
        for (ips, ipv6_first, shown) in [
            (&["10.0.0.1"][..], false, &["10.0.0.1"][..]),
            (&["fd00::1", "10.0.0.1"], false, &["10.0.0.1", "fd00::1"]),
            (&["10.0.0.1", "fd00::1"], true, &["fd00::1", "10.0.0.1"]),
            (&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], false, &["10.0.0.1", "fd00::1"]),
            (&["010.000.0.01"], false, &["10.0.0.1"]),
            (&["::ffff:10.0.0.1"], false, &["10.0.0.1"]),
            (&["FD00:0:0::1"], false, &["fd00::1"]),
            (&["10.0.0.256", "1.2.3", "1.2.3.4.5", "", "x"], false, &[]),
        ] {
            let ips: Vec<Box<str>> = ips.iter().map(|ip| (*ip).into()).collect();
            let sorted: Vec<_> = sort_pod_ips(&ips, ipv6_first).into_iter().map(|ip| ip.ip).collect();
            assert_eq!(sorted, shown, "{ips:?}");
        }
    }

    #[test]
    fn pods_on_the_hosts_network_show_the_hosts_addresses() {
        let hosts: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "fd00::9".parse().unwrap()];
        for (host_network, pod_ips, shown) in [
            (false, &[][..], &[][..]),
            (true, &[], &["192.0.2.1", "fd00::9"]),
            (true, &["192.0.2.7"], &["192.0.2.7", "fd00::9"]),
            (true, &["fd00::7"], &["fd00::7"]),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"hostNetwork": host_network, "containers": []}}))
                    .unwrap();
            let ips = pod_ips.iter().map(|ip: &&str| (*ip).into()).collect();
            let observed = ObservedPod { ips, ..ObservedPod::default() };
            let status = pod_status(&StatusInput { host_ips: &hosts, ..input(&pod, &observed) });
            let found: Vec<_> = status.pod_ips.unwrap_or_default().into_iter().map(|ip| ip.ip).collect();
            assert_eq!(found, shown);
            assert_eq!(status.host_ips.map(|ips| ips.len()), Some(2));
        }
    }

    #[test]
    fn a_node_without_addresses_takes_none_from_its_pods() {
        let observed = ObservedPod::default();
        for (host_network, pod_ip) in [(false, None), (true, Some("192.0.2.1"))] {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"hostNetwork": host_network, "containers": []}}))
                    .unwrap();
            let hosts = ["192.0.2.1", "fd00::9"].map(|ip| ip.parse().unwrap());
            let before = pod_status(&StatusInput { host_ips: &hosts, ..input(&pod, &observed) });
            let after = pod_status(&StatusInput { previous: Some(&before), ..input(&pod, &observed) });
            assert_eq!(after.host_ip.as_deref(), Some("192.0.2.1"));
            assert_eq!(after.pod_ip.as_deref(), pod_ip);
            assert_eq!((&after.host_ips, &after.pod_ips), (&before.host_ips, &before.pod_ips));
        }
    }

    #[test]
    fn the_active_deadline_counts_on_the_monotonic_clock() {
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"activeDeadlineSeconds": 10, "containers": []}})).unwrap();
        let observed = ObservedPod::default();
        for (active_for, phase) in [(None, "Pending"), (Some(9_999), "Pending"), (Some(10_000), "Failed")] {
            let active_for = active_for.map(Duration::from_millis);
            let status = pod_status(&StatusInput { active_for, ..input(&pod, &observed) });
            assert_eq!(status.phase.as_deref(), Some(phase));
            assert_eq!(status.reason.as_deref() == Some("DeadlineExceeded"), phase == "Failed");
        }
    }
}
