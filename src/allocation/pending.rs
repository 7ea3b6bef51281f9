//! In-place pod resize: whether a pod may get its new CPU and memory now, the order of pending resizes, and their conditions and
//! events (`allocation_manager.go`, `podResizesAdmitHandler`, `events/resize.go`). PURE.
//!
//! ```text
//!     memory request of a container that may swap changes without a restart   Infeasible, until the desired resources change
//!     any rule of [`crate::admit::admit`] fails                               Deferred, until another pod frees resources
//!     else                                                                    allocated
//! ```
//!
//! There is no CPU or memory manager here that pins a pod to its resources, and 1.36 has no other infeasible resize.

use std::borrow::Cow;
use std::cmp::Ordering;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::admit::Rejection;
use crate::limits::RESIZES_NOTED_MAX;
use crate::model::Resource;
use crate::render::NodeSettings;
use crate::render::qos::{QosClass, pod_qos};
use crate::render::resources::{amount, may_swap, pod_requests, requests};
use crate::sync::resize::restarts_for;

/// A pending resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Infeasible; else deferred.
    pub infeasible: bool,
    /// The reason: `OutOfcpu`, `Infeasible` …
    pub reason: Cow<'static, str>,
    /// The kubelet's message.
    pub message: String,
}

impl Pending {
    /// From an admission rule's rejection.
    pub fn of(rejection: Rejection) -> Self {
        Self { infeasible: false, reason: rejection.reason, message: rejection.message }
    }

    /// The bound on containers that run with other resources than they were created with is reached; a restart of one frees a
    /// place.
    pub fn of_notes() -> Self {
        Self {
            infeasible: false,
            reason: "TooManyResizes".into(),
            message: format!(
                "{RESIZES_NOTED_MAX} containers that run were resized, and no more are kept in mind here"
            ),
        }
    }

    /// The reason of the condition `PodResizePending`.
    pub fn condition_reason(&self) -> &'static str {
        if self.infeasible { "Infeasible" } else { "Deferred" }
    }

    /// The reason of the event.
    pub fn event_reason(&self) -> &'static str {
        if self.infeasible { "ResizeInfeasible" } else { "ResizeDeferred" }
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
}

/// Whether the resize is infeasible (`disallowResizeForSwappableContainers`): a container's swap limit follows from its memory
/// request, and is not changed while it runs.
pub fn infeasible(node: &NodeSettings, wanted: &Pod, granted: &Pod) -> Option<Pending> {
    let memory = |container: &Container| amount(requests(container.resources.as_ref()), "memory");
    let swaps = containers(wanted).any(|container| {
        let before = containers(granted).find(|before| before.name == container.name);
        before.is_some_and(|before| {
            memory(before) != memory(container)
                && !restarts_for(before, Resource::Memory)
                && (may_swap(node, wanted, container) || may_swap(node, granted, before))
        })
    });
    swaps.then(|| Pending {
        infeasible: true,
        reason: "Infeasible".into(),
        message: "In-place resize of containers with swap is not supported.".to_owned(),
    })
}

/// A pending resize in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// With the desired resources.
    pub wanted: &'a Pod,
    /// With the allocated resources.
    pub granted: &'a Pod,
    /// Seconds since 1970 at which it was reported as pending, if it was.
    pub since: Option<i64>,
}

/// The order of pending resizes (`sortPendingResizes`): those that request no more than before; a higher priority; `Guaranteed`
/// pods; those that have been pending for longer.
pub fn first_served(a: &Waiting<'_>, b: &Waiting<'_>) -> Ordering {
    let grows = |of: &Waiting<'_>| {
        let (before, now) = (pod_requests(of.granted, true), pod_requests(of.wanted, true));
        ["cpu", "memory"].iter().any(|name| now.get(*name) > before.get(*name))
    };
    let priority = |of: &Waiting<'_>| of.wanted.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
    let other_class = |of: &Waiting<'_>| pod_qos(of.wanted) != QosClass::Guaranteed;
    let since = |of: &Waiting<'_>| of.since.unwrap_or(i64::MAX);
    (grows(a).cmp(&grows(b)))
        .then_with(|| priority(b).cmp(&priority(a)))
        .then_with(|| other_class(a).cmp(&other_class(b)))
        .then_with(|| since(a).cmp(&since(b)))
}

/// The message of an event: the action, and the resources of the pod's containers (`podResizeMessage`).
pub fn event_message(what: &str, pod: &Pod, generation: i64, error: &str) -> String {
    let of = |list: &[Container]| -> Value {
        let one = |container: &Container| {
            let resources = container.resources.as_ref();
            let lists = resources.and_then(|resources| serde_json::to_value(resources).ok());
            json!({"name": container.name, "resources": lists.unwrap_or_else(|| json!({}))})
        };
        list.iter().map(one).collect()
    };
    let mut summary = serde_json::Map::new();
    if let Some(spec) = &pod.spec {
        let init = spec.init_containers.as_deref().unwrap_or_default();
        for (name, list) in [("initContainers", init), ("containers", &*spec.containers)] {
            if !list.is_empty() {
                summary.insert(name.to_owned(), of(list));
            }
        }
    }
    summary.insert("generation".to_owned(), generation.into());
    if !error.is_empty() {
        summary.insert("error".to_owned(), error.into());
    }
    format!("{what}: {}", Value::Object(summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{CgroupVersion, SwapBehavior};

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn of(request: &str, limit: &str, policy: &str) -> Pod {
        pod(&json!({"containers": [{"name": "c",
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}],
            "resources": {"requests": {"memory": request}, "limits": {"memory": limit}}}]}))
    }

    #[test]
    fn only_what_swaps_can_never_be() {
        let mut node = NodeSettings::new("n", "/r");
        node.memory_swap = SwapBehavior::LimitedSwap;
        node.cgroup_version = CgroupVersion::V2 { swap_controller: true };
        let rows = [
            ("1Mi", "2Mi", "NotRequired", true),
            ("1024Ki", "3Mi", "NotRequired", true),
            ("1Mi", "2Mi", "RestartContainer", false),
        ];
        for (request, limit, policy, swaps) in rows {
            let (before, same) = (of(request, limit, policy), of(request, "4Mi", policy));
            let more = of("3Mi", "4Mi", policy);
            assert_eq!(infeasible(&node, &more, &before).is_some(), swaps, "{request} {limit} {policy}");
            assert_eq!(infeasible(&node, &same, &before), None, "its request stays");
        }
        let (before, more) = (of("1Mi", "2Mi", "NotRequired"), of("3Mi", "4Mi", "NotRequired"));
        let why = infeasible(&node, &more, &before).unwrap();
        assert_eq!((why.condition_reason(), why.event_reason()), ("Infeasible", "ResizeInfeasible"));
        // Guaranteed pods do not swap, nor does any pod on cgroup v1 or without a swap behaviour.
        let guaranteed = |memory: &str| {
            pod(
                &json!({"containers": [{"name": "c", "resources": {"requests": {"memory": memory, "cpu": "1"},
                "limits": {"memory": memory, "cpu": "1"}}}]}),
            )
        };
        assert_eq!(infeasible(&node, &guaranteed("2Mi"), &guaranteed("1Mi")), None);
        for version in
            [CgroupVersion::V1 { swap_controller: true }, CgroupVersion::V2 { swap_controller: false }]
        {
            let node = NodeSettings { cgroup_version: version, ..node.clone() };
            assert_eq!(infeasible(&node, &more, &before), None);
        }
        let node = NodeSettings { memory_swap: SwapBehavior::NoSwap, ..node };
        assert_eq!(infeasible(&node, &more, &before), None);
    }

    #[test]
    fn who_waits_is_asked_in_order() {
        let plain = |cpu: &str, priority: i32| {
            pod(
                &json!({"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}),
            )
        };
        let strict = pod(&json!({"containers": [{"name": "c", "resources": {
            "requests": {"cpu": "2", "memory": "1Mi"}, "limits": {"cpu": "2", "memory": "1Mi"}}}]}));
        let before = plain("1", 0);
        let (less, more, high) = (plain("500m", 0), plain("2", 0), plain("2", 9));
        let all = [
            ("less", &less, Some(9)),
            ("high", &high, None),
            ("strict", &strict, None),
            ("older", &more, Some(1)),
            ("younger", &more, Some(2)),
            ("new", &more, None),
        ];
        let waiting = |at: usize| Waiting { wanted: all[at].1, granted: &before, since: all[at].2 };
        let mut order: Vec<usize> = (0..all.len()).rev().collect();
        order.sort_by(|a, b| first_served(&waiting(*a), &waiting(*b)));
        let names: Vec<&str> = order.into_iter().map(|at| all[at].0).collect();
        assert_eq!(names, ["less", "high", "strict", "older", "younger", "new"]);
    }

    #[test]
    fn events_say_what_the_containers_are_to_have() {
        let pod = pod(&json!({"initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}));
        assert_eq!(
            event_message("Pod resize started", &pod, 3, ""),
            r#"Pod resize started: {"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":3,"initContainers":[{"name":"i","resources":{}}]}"#
        );
        let message = event_message("Pod resize error", &pod, 3, "why");
        assert!(message.contains(r#","error":"why","generation":3,"#), "{message}");
    }
}
