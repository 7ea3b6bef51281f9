//! Pending resizes: the order in which pods are asked about, and whether one may have its desired CPU and memory
//! (`allocation_manager.go`, `podResizesAdmitHandler`). PURE.
//!
//! | the pod, in this order | its resize |
//! |---|---|
//! | with it more than `RESIZES_NOTED_MAX` containers might run with other resources than they were created with | Deferred |
//! | the memory request of a container that may swap changes without a restart | Infeasible, until the desired resources change |
//! | is static, or the node is in no cluster | allocated |
//! | labels and taints of the Node are not known | not decided yet |
//! | every rule of [`crate::admit::admit`] holds beside the others | allocated |
//! | one fails, and too much memory is taken by pending resizes | allocated all the same |
//! | one fails | Deferred, until others free resources; those that a critical pod may preempt end |
//!
//! There is no CPU or memory manager here that pins a pod to its resources, and 1.36 has no other infeasible resize.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::resizable;
use crate::admit::arrivals::{RoomFor, room_for};
use crate::admit::{NodeView, Rejection, admit};
use crate::limits::{RESIZES_NOTED_MAX, RESIZES_WAITING_BYTES_MAX};
use crate::model::{DesiredPod, PodUid, Resource};
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
    fn of(rejection: Rejection) -> Self {
        Self { infeasible: false, reason: rejection.reason, message: rejection.message }
    }

    /// The bound on containers that run with other resources than they were created with is reached; a restart of one frees a
    /// place.
    fn of_notes() -> Self {
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
fn infeasible(node: &NodeSettings, wanted: &Pod, allocated: &Pod) -> Option<Pending> {
    let memory = |container: &Container| amount(requests(container.resources.as_ref()), "memory");
    let swaps = containers(wanted).any(|container| {
        let before = containers(allocated).find(|before| before.name == container.name);
        before.is_some_and(|before| {
            memory(before) != memory(container)
                && !restarts_for(before, Resource::Memory)
                && (may_swap(node, wanted, container) || may_swap(node, allocated, before))
        })
    });
    swaps.then(|| Pending {
        infeasible: true,
        reason: "Infeasible".into(),
        message: "In-place resize of containers with swap is not supported.".to_owned(),
    })
}

/// What a decision goes by.
#[derive(Debug)]
pub struct Request<'a> {
    /// Of the node.
    pub node: &'a NodeSettings,
    /// The pod with the desired resources.
    pub desired: &'a DesiredPod,
    /// The same with the allocated ones.
    pub allocated: &'a DesiredPod,
    /// Containers of all pods that run with other resources than they were created with.
    pub noted: usize,
    /// Memory of all pods whose resize is pending, with this one.
    pub waiting_bytes: usize,
    /// The node's room for pods.
    pub room: Room<'a>,
}

/// What a pod has to fit into.
#[derive(Clone, Copy, Debug)]
pub enum Room<'a> {
    /// It is not admitted once more: it is static, or the node is in no cluster.
    Unchecked,
    /// Labels and taints of the Node are not known yet.
    Unknown,
    /// This.
    Of(NodeView<'a>),
}

/// The decision on a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The desired resources are allocated.
    Allocate,
    /// They are, although the pod does not fit, for this reason: no further resize may be pending.
    AllocateUnfit(String),
    /// The resize is pending; these other pods end for it.
    PutOff(Pending, Vec<PodUid>),
    /// It cannot be decided yet.
    Wait,
}

/// Decides on the resize of a pod (`canAdmitPod`). `others` are the pods that take room beside it, and are asked for only when
/// it has to fit beside them.
pub fn decide(request: &Request<'_>, others: impl FnOnce() -> Vec<Rc<Pod>>) -> Decision {
    let (desired, allocated) = (&request.desired.pod, &request.allocated.pod);
    if request.noted + resizable(request.desired).count() > RESIZES_NOTED_MAX {
        return Decision::PutOff(Pending::of_notes(), Vec::new());
    }
    if let Some(pending) = infeasible(request.node, desired, allocated) {
        return Decision::PutOff(pending, Vec::new());
    }
    let view = match &request.room {
        Room::Unchecked => return Decision::Allocate,
        Room::Unknown => return Decision::Wait,
        Room::Of(view) => view,
    };
    let others = others();
    let Err(rejection) = admit(desired, view, &mut others.iter().map(|pod| &**pod)) else {
        return Decision::Allocate;
    };
    if request.waiting_bytes > RESIZES_WAITING_BYTES_MAX {
        return Decision::AllocateUnfit(rejection.message);
    }
    let victims = match room_for(desired, view, &others) {
        RoomFor::After(victims) => victims,
        RoomFor::Here | RoomFor::None(_) => Vec::new(),
    };
    Decision::PutOff(Pending::of(rejection), victims)
}

/// A pending resize in the queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The pod.
    pub uid: PodUid,
    /// With the desired resources.
    pub desired: DesiredPod,
    /// With the allocated resources.
    pub allocated: Rc<DesiredPod>,
    /// When it was reported as pending, if it was: nanoseconds since 1970.
    pub since: Option<i64>,
}

/// Sorts pending resizes (`sortPendingResizes`): those that request no more than before; a higher priority; `Guaranteed` pods;
/// those that have been pending for longer.
pub fn sort(queue: &mut [Waiting]) {
    queue.sort_by(|a, b| {
        // Copies: a large pod is open only while it is compared.
        let open = |of: &Waiting| (of.desired.pod.clone(), of.allocated.pod.clone());
        let ((a_desired, a_allocated), (b_desired, b_allocated)) = (open(a), open(b));
        let rank = |desired: &Pod, allocated: &Pod, since: Option<i64>| {
            let (before, now) = (pod_requests(allocated, true), pod_requests(desired, true));
            let grows = ["cpu", "memory"].iter().any(|name| now.get(*name) > before.get(*name));
            let priority = desired.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            let other_class = pod_qos(desired) != QosClass::Guaranteed;
            (grows, Reverse(priority), other_class, since.unwrap_or(i64::MAX))
        };
        rank(&a_desired, &a_allocated, a.since).cmp(&rank(&b_desired, &b_allocated, b.since))
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::admit::Resources;
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

    /// `name cpu [priority=N] [guaranteed]`.
    fn sized(text: &str) -> DesiredPod {
        let mut words = text.split_whitespace();
        let (name, cpu) = (words.next().unwrap(), words.next().unwrap());
        let rest: Vec<&str> = words.collect();
        let priority = rest.iter().find_map(|word| word.strip_prefix("priority="));
        let list = json!({"cpu": cpu, "memory": "1Mi"});
        let limits = rest.contains(&"guaranteed").then(|| list.clone());
        let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {
            "priority": priority.map_or(0, |priority| priority.parse().unwrap()),
            "containers": [{"name": "c", "resources": {"requests": list, "limits": limits}}]}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn pending_resizes_are_asked_about_in_order() {
        let waiting = |(text, since): &(&str, Option<i64>)| Waiting {
            uid: text.split(' ').next().unwrap().into(),
            desired: sized(text),
            allocated: sized("p 1").into(),
            since: *since,
        };
        #[rustfmt::skip]
        let rows: [&[(&str, Option<i64>)]; 6] = [
            &[("less 500m", Some(9)), ("more 2", Some(1))],
            &[("same 1", None), ("high 2 priority=9", Some(1))],
            &[("high 2 priority=9", None), ("low 2 priority=8 guaranteed", Some(1))],
            &[("zero 2", None), ("negative 2 priority=-1", Some(1))],
            &[("guaranteed 2 guaranteed", None), ("burstable 2", Some(1))],
            &[("older 2", Some(1)), ("younger 2", Some(2)), ("new 2", None)],
        ];
        for row in rows {
            let want: Vec<&str> = row.iter().map(|(text, _)| text.split(' ').next().unwrap()).collect();
            for turn in 0..row.len() {
                let mut queue: Vec<Waiting> = row.iter().map(waiting).collect();
                queue.rotate_left(turn);
                sort(&mut queue);
                let got: Vec<&str> = queue.iter().map(|waiting| waiting.uid.as_str()).collect();
                assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn the_table_holds() {
        #[derive(Clone, Copy)]
        struct Row<'a> {
            /// Desired; `100m` is allocated.
            pod: &'a str,
            others: &'a [&'a str],
            noted: usize,
            waiting_bytes: usize,
            swaps: bool,
            /// The node is of a cluster and the pod of its API server; the Node's labels are known.
            checked: bool,
            known: bool,
        }
        let (notes, bytes) = (RESIZES_NOTED_MAX, RESIZES_WAITING_BYTES_MAX);
        let plain = Row {
            pod: "p 600m",
            others: &["q 400m"],
            noted: 0,
            waiting_bytes: 1,
            swaps: false,
            checked: true,
            known: true,
        };
        let critical = "p 601m priority=2000000000";
        // On a node of one CPU. The decision, the reason of a pending one, the pods that end for it.
        #[rustfmt::skip]
        let rows = [
            (plain, "allocated"),
            (Row { pod: "p 601m", ..plain }, "Deferred OutOfcpu"),
            (Row { pod: "p 601m", others: &[], ..plain }, "allocated"),
            // Nobody ends for a pod of a common priority; for a critical one those that give enough.
            (Row { pod: "p 601m priority=100", ..plain }, "Deferred OutOfcpu"),
            (Row { pod: critical, ..plain }, "Deferred OutOfcpu q"),
            (Row { pod: critical, others: &["q 400m priority=2000000000"], ..plain }, "Deferred OutOfcpu"),
            (Row { pod: "p 2 priority=2000000000", ..plain }, "Deferred OutOfcpu"),
            // Of a static pod, and on a node alone, nobody asks; before the Node's labels are known nobody can.
            (Row { pod: "p 601m", checked: false, ..plain }, "allocated"),
            (Row { pod: "p 601m", checked: false, known: false, ..plain }, "allocated"),
            (Row { known: false, ..plain }, "not yet"),
            // Too much that waits.
            (Row { pod: "p 601m", waiting_bytes: bytes, ..plain }, "Deferred OutOfcpu"),
            (Row { pod: "p 601m", waiting_bytes: bytes + 1, ..plain }, "allocated unfit"),
            (Row { pod: critical, waiting_bytes: bytes + 1, ..plain }, "allocated unfit"),
            (Row { waiting_bytes: bytes + 1, ..plain }, "allocated"),
            // Too many notes; those come first.
            (Row { noted: notes - 1, ..plain }, "allocated"),
            (Row { noted: notes, ..plain }, "Deferred TooManyResizes"),
            (Row { noted: notes, checked: false, ..plain }, "Deferred TooManyResizes"),
            (Row { noted: notes, swaps: true, ..plain }, "Deferred TooManyResizes"),
            // Swap is asked about before the room, and of static pods too.
            (Row { swaps: true, ..plain }, "Infeasible Infeasible"),
            (Row { swaps: true, checked: false, ..plain }, "Infeasible Infeasible"),
            (Row { swaps: true, known: false, ..plain }, "Infeasible Infeasible"),
        ];
        let (labels, allocatable) = (
            BTreeMap::new(),
            Resources { milli_cpu: 1000, memory: 1 << 30, pods: 10, ..Resources::default() },
        );
        for (at, (row, want)) in rows.into_iter().enumerate() {
            let mut node = NodeSettings::new("n", "/r");
            node.memory_swap = SwapBehavior::LimitedSwap;
            node.cgroup_version = CgroupVersion::V2 { swap_controller: true };
            let view = NodeView {
                name: "n",
                labels: &labels,
                taints: &[],
                allocatable: &allocatable,
                declared_features: &[],
            };
            let (desired, mut allocated) = (sized(row.pod), sized("p 100m"));
            if row.swaps {
                let mut object = (*allocated.pod).clone();
                let resources = object.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
                resources.requests.as_mut().unwrap().get_mut("memory").unwrap().0 = "2Mi".to_owned();
                allocated.pod = object.into();
            }
            let request = Request {
                node: &node,
                desired: &desired,
                allocated: &allocated,
                noted: row.noted,
                waiting_bytes: row.waiting_bytes,
                room: match (row.checked, row.known) {
                    (false, _) => Room::Unchecked,
                    (true, false) => Room::Unknown,
                    (true, true) => Room::Of(view),
                },
            };
            let others = || row.others.iter().map(|text| sized(text).pod.open()).collect();
            let got = match decide(&request, others) {
                Decision::Allocate => "allocated".to_owned(),
                Decision::AllocateUnfit(why) => {
                    assert!(why.contains("cpu"), "{why}");
                    "allocated unfit".to_owned()
                }
                Decision::PutOff(pending, victims) => {
                    let victims: Vec<&str> = victims.iter().map(PodUid::as_str).collect();
                    let words = [pending.condition_reason(), &*pending.reason, &*victims.join(" ")];
                    words.join(" ").trim_end().to_owned()
                }
                Decision::Wait => "not yet".to_owned(),
            };
            assert_eq!(got, want, "row {at}: {}", row.pod);
        }
    }
}
