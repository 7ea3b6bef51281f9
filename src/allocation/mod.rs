//! Allocation: the CPU and memory that pods may use, and how that is changed while they run (in-place pod resize, KEP-1287;
//! `pkg/kubelet/allocation`). PURE.
//!
//! ```text
//!     desired otherwise than allocated ─► asked about once every pod here was read; again whenever one changes, ends or goes
//!                            ├─ infeasible, or no room ─► condition PodResizePending; what was allocated before counts
//!                            ▼
//!                        allocated ─► in the checkpoint ─► planned and actuated, condition PodResizeInProgress ─► completed
//! ```
//!
//! [`pending`] decides whether a pod may have what it asks for, and in which order pods are asked about; [`resizing`] is the state
//! of one pod's resize. The plan of an allocated one is [`crate::sync::resize`]'s.
//!
//! The resources that a container was created with stand on it ([`crate::render::labels::RESOURCES_ANNOTATION`]). The checkpoint
//! keeps what is allocated to a resized pod and what its running containers were resized to, and nothing of other pods.
//!
//! Differs from the kubelet:
//! - A pending resize is retried when something changes that may make room, and not every three minutes besides.
//! - A static pod is resized in place only when its manifest gives its UID, and is not admitted once more.
//! - Resources of the pod itself (`spec.resources`) are not changed: the node does not declare that feature.

pub mod pending;
pub mod resizing;

use k8s_openapi::api::core::v1::Container;

use crate::model::{DesiredPod, ObservedPod, Sizes};
use crate::render::resources::{set_sizes, sizes};
use crate::sync::worker::Life;

/// Allocated resources of a pod's containers, by their names.
pub type AllocatedSizes = Vec<(Box<str>, Sizes)>;

/// App and init containers; ephemeral ones have no resources.
pub fn resizable(pod: &DesiredPod) -> impl Iterator<Item = &Container> {
    pod.init_containers().iter().chain(pod.containers())
}

/// The resources of the pod's container of that name.
pub fn container_sizes(pod: &DesiredPod, name: &str) -> Option<Sizes> {
    resizable(pod).find(|container| container.name == name).map(sizes)
}

/// The containers that both pods have ask for the same resources.
pub fn same_sizes(a: &DesiredPod, b: &DesiredPod) -> bool {
    resizable(a)
        .all(|container| container_sizes(b, &container.name).is_none_or(|other| other == sizes(container)))
}

/// The pod with its allocated resources (`UpdatePodFromAllocation`). The object is copied only when they differ from the desired
/// ones.
pub fn with_allocation(pod: DesiredPod, allocated: impl Fn(&str) -> Option<Sizes>) -> DesiredPod {
    let allocated =
        |container: &Container| allocated(&container.name).filter(|allocated| *allocated != sizes(container));
    if resizable(&pod).all(|container| allocated(container).is_none()) {
        return pod;
    }
    let mut object = (*pod.pod).clone();
    let spec = object.spec.get_or_insert_default();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some(sizes) = allocated(container) {
            set_sizes(container, &sizes);
        }
    }
    DesiredPod { pod: object.into(), ..pod }
}

/// A pod in that state of its life can be resized; one that ends keeps what it has.
pub fn may_resize(life: Life) -> bool {
    match life {
        Life::Waiting | Life::Syncing => true,
        Life::Ending(_) | Life::Ended | Life::Removing => false,
    }
}

/// The pod's new desired state is a resize of the one that is allocated to it.
pub fn is_resize(life: Life, allocated: Option<&DesiredPod>, desired: &DesiredPod) -> bool {
    may_resize(life) && allocated.is_some_and(|allocated| !same_sizes(allocated, desired))
}

/// The pod with the resources that its containers were created with, when those are others than the desired ones: allocated to it
/// by an earlier agent.
pub fn created_with(desired: &DesiredPod, observed: &ObservedPod) -> Option<DesiredPod> {
    let with = |name: &str| observed.container(name)?.meta.sizes;
    let differs = |container: &Container| with(&container.name).is_some_and(|with| with != sizes(container));
    resizable(desired).any(differs).then(|| with_allocation(desired.clone(), with))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{ContainerMeta, ContainerState, ContainerStatus};
    use crate::sync::worker::Why;

    /// `name=CPU`, init containers with a `+` before their name.
    fn pod(containers: &str) -> DesiredPod {
        let (mut apps, mut inits) = (Vec::new(), Vec::new());
        for word in containers.split_whitespace() {
            let (name, cpu) = word.split_once('=').unwrap();
            let list = if name.starts_with('+') { &mut inits } else { &mut apps };
            list.push(json!({"name": name.trim_start_matches('+'), "resources": {
                "requests": {"cpu": cpu, "example.com/card": "1"}}}));
        }
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": apps, "initContainers": inits}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    /// The CPU of each container.
    fn cpus(pod: &DesiredPod) -> String {
        let one = |container: &Container| format!("{}={}m", container.name, sizes(container).cpu_request);
        resizable(pod).map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_a_resize() {
        // life, allocated, desired → it is one
        #[rustfmt::skip]
        let rows: [(Life, Option<&str>, &str, bool); 11] = [
            (Life::Syncing, Some("c=100m"), "c=200m", true),
            (Life::Waiting, Some("c=100m"), "c=200m", true),
            (Life::Syncing, Some("c=100m"), "c=50m", true),
            (Life::Syncing, Some("+i=100m c=1"), "+i=200m c=1", true),
            // The same, otherwise written.
            (Life::Syncing, Some("c=100m"), "c=0.1", false),
            // Only the orphan's record has no pod.
            (Life::Syncing, None, "c=200m", false),
            // Another container is no resize of this one.
            (Life::Syncing, Some("c=100m"), "d=200m", false),
            (Life::Ending(Why::Finished), Some("c=100m"), "c=200m", false),
            (Life::Ending(Why::Unwanted), Some("c=100m"), "c=200m", false),
            (Life::Ended, Some("c=100m"), "c=200m", false),
            (Life::Removing, Some("c=100m"), "c=200m", false),
        ];
        for (life, allocated, desired, want) in rows {
            let allocated_pod = allocated.map(pod);
            let got = is_resize(life, allocated_pod.as_ref(), &pod(desired));
            assert_eq!(got, want, "{life:?}: {allocated:?} → {desired}");
        }
    }

    #[test]
    fn a_pod_keeps_what_is_allocated_and_all_else_is_as_desired() {
        let (allocated, mut desired) = (pod("+i=10m c=100m d=0"), pod("+i=10m c=200m d=0 e=5m"));
        let mut object = (*desired.pod).clone();
        object.metadata.generation = Some(7);
        desired.pod = object.into();
        let held = with_allocation(desired.clone(), |name| container_sizes(&allocated, name));
        assert_eq!(cpus(&held), "i=10m c=100m d=0m e=5m");
        assert_eq!(held.pod.metadata.generation, Some(7));
        let requests = held.containers()[0].resources.as_ref().unwrap().requests.as_ref().unwrap();
        assert_eq!(requests["example.com/card"].0, "1");
    }

    #[test]
    fn what_containers_were_created_with_is_allocated() {
        // created with; desired → allocated
        #[rustfmt::skip]
        let rows: [(&str, &str, Option<&str>); 6] = [
            ("c=100m", "c=200m", Some("c=100m")),
            ("c=100m i=5m", "+i=6m c=200m", Some("i=5m c=100m")),
            ("c=100m", "c=100m", None),
            ("", "c=200m", None),
            // Of one without a note on it nothing is known.
            ("c=?", "c=200m", None),
            ("c=? d=1", "c=200m d=2", Some("c=200m d=1000m")),
        ];
        for (created, desired, want) in rows {
            let containers = created.split_whitespace().map(|word| {
                let (name, cpu) = word.split_once('=').unwrap();
                let sizes = (cpu != "?").then(|| container_sizes(&pod(word), name)).flatten();
                let meta = ContainerMeta { sizes, ..ContainerMeta::default() };
                ContainerStatus {
                    name: name.into(),
                    state: ContainerState::Running,
                    meta,
                    ..ContainerStatus::default()
                }
            });
            let observed = ObservedPod { containers: containers.collect(), ..ObservedPod::default() };
            let got = created_with(&pod(desired), &observed).map(|pod| cpus(&pod));
            assert_eq!(got.as_deref(), want, "{created}; {desired}");
        }
    }
}
