//! Which running containers differ in CPU or memory from their pod's allocation, and how they are resized
//! (`computePodResizeAction`). PURE.
//!
//! | | CPU or memory, request or limit | its resizePolicy | action |
//! |---|---|---|
//! | | as allocated | any | none |
//! | | differs | `RestartContainer` | the container is killed and restarted with all that is allocated |
//! | | differs | `NotRequired`, or none | the runtime updates it in place, decreases before increases |
//!
//! Covers running app and init containers; ephemeral ones have no resources. A container whose creation resources are
//! unknown counts as having its allocated ones.

use k8s_openapi::api::core::v1::Container;

use crate::model::{ContainerId, ContainerKind, ContainerState, ContainerStatus, Resource, Sizes};
use crate::render::resources::sizes;

/// The pod's resources to change in place (`podActions.ContainersToUpdate`, `UpdatePodResources`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resizes {
    /// Containers whose memory changes, in this order.
    pub memory: Vec<Resize>,
    /// Containers whose CPU changes, in this order.
    pub cpu: Vec<Resize>,
    /// The pod's cgroup is compared with what is allocated, and updated: a container restarts with other resources, or a resize
    /// has not succeeded yet.
    ///
    /// Differs from the kubelet, which does not look at the cgroup again once its containers have what is allocated.
    pub cgroup: bool,
}

/// One container to resize in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The container's record.
    pub id: ContainerId,
    /// The container list that holds its definition.
    pub kind: ContainerKind,
    /// The index in that list.
    pub index: usize,
    /// Resources it runs with.
    pub from: Sizes,
    /// Allocated resources.
    pub to: Sizes,
}

impl Resizes {
    /// True when nothing is to be resized.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty() && !self.cgroup
    }

    /// The containers whose memory or CPU changes.
    pub fn of(&self, resource: Resource) -> &[Resize] {
        match resource {
            Resource::Memory => &self.memory,
            Resource::Cpu => &self.cpu,
        }
    }

    /// Adds the resizes that the container needs; true when it must be killed and restarted instead.
    pub(super) fn look(
        &mut self,
        kind: ContainerKind,
        index: usize,
        container: &Container,
        status: &ContainerStatus,
    ) -> bool {
        let Some((from, to)) = difference(container, status) else { return false };
        let changes = |resource: Resource| from.of(resource) != to.of(resource);
        let restarts = |resource: Resource| changes(resource) && restarts_for(container, resource);
        if restarts(Resource::Memory) || restarts(Resource::Cpu) {
            self.cgroup = true;
            return true;
        }
        for resource in [Resource::Memory, Resource::Cpu].into_iter().filter(|resource| changes(*resource)) {
            let resize = Resize { id: status.id.clone(), kind, index, from, to };
            let list = match resource {
                Resource::Memory => &mut self.memory,
                Resource::Cpu => &mut self.cpu,
            };
            if grows(from.of(resource), to.of(resource)) { list.push(resize) } else { list.insert(0, resize) }
        }
        false
    }
}

/// The limit decides when it changes, else the request.
fn grows((request, limit): (i64, i64), (to_request, to_limit): (i64, i64)) -> bool {
    if limit == to_limit { to_request > request } else { to_limit > limit }
}

/// Actual and allocated resources of a running container; `None` when they are equal.
pub fn difference(container: &Container, status: &ContainerStatus) -> Option<(Sizes, Sizes)> {
    match status.state {
        ContainerState::Running => {}
        ContainerState::Created | ContainerState::Exited | ContainerState::Unknown => return None,
    }
    let (from, to) = (status.meta.sizes?, sizes(container));
    (from != to).then_some((from, to))
}

/// True when the container's resize policy requires a restart for that resource.
pub fn restarts_for(container: &Container, resource: Resource) -> bool {
    let policies = container.resize_policy.as_deref().unwrap_or_default();
    let policy = policies.iter().find(|policy| policy.resource_name == resource.as_str());
    policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::ContainerMeta;

    fn container(request: &str, limit: &str, policy: &str) -> Container {
        // cpu/memory
        let list = |text: &str| {
            let (cpu, memory) = text.split_once('/').unwrap();
            let mut list = serde_json::Map::new();
            for (name, value) in [("cpu", cpu), ("memory", memory)] {
                if !value.is_empty() {
                    list.insert(name.to_owned(), value.into());
                }
            }
            list
        };
        let policies: Vec<_> = policy
            .split_whitespace()
            .map(|name| {
                json!({"resourceName": name.trim_end_matches('!'),
                "restartPolicy": if name.ends_with('!') { "RestartContainer" } else { "NotRequired" }})
            })
            .collect();
        serde_json::from_value(json!({"name": "c", "resizePolicy": policies,
            "resources": {"requests": list(request), "limits": list(limit)}}))
        .unwrap()
    }

    fn running(id: &str, sizes: Option<[i64; 4]>) -> ContainerStatus {
        let sizes = sizes.map(|[cpu_request, cpu_limit, memory_request, memory_limit]| Sizes {
            cpu_request,
            cpu_limit,
            memory_request,
            memory_limit,
        });
        ContainerStatus {
            id: id.into(),
            name: "c".into(),
            sandbox_id: "s".into(),
            state: ContainerState::Running,
            meta: ContainerMeta { sizes, ..ContainerMeta::default() },
            ..ContainerStatus::default()
        }
    }

    /// Resizes of a container of 100m/200m and 1 KiB/2 KiB.
    #[test]
    fn one_container() {
        const RUNS: [i64; 4] = [100, 200, 1024, 2048];
        let rows = [
            // requests, limits, policies; memory, cpu, restart
            ("100m/1Ki", "200m/2Ki", "", "- - -"),
            ("0.1/1024", "0.2/2048", "", "- - -"),
            ("150m/1Ki", "200m/2Ki", "", "- cpu -"),
            ("100m/1Ki", "300m/2Ki", "cpu memory!", "- cpu -"),
            ("100m/1Ki", "200m/3Ki", "cpu memory!", "- - restart"),
            ("100m/2Ki", "200m/2Ki", "memory!", "- - restart"),
            ("100m/2Ki", "200m/2Ki", "cpu!", "memory - -"),
            ("50m/2Ki", "100m/4Ki", "", "memory cpu -"),
            // A container that restarts gets all its resources at the restart.
            ("50m/2Ki", "100m/4Ki", "cpu!", "- - restart"),
            ("100m/1Ki", "/2Ki", "", "- cpu -"),
            ("/", "/", "", "memory cpu -"),
        ];
        for (requests, limits, policies, expected) in rows {
            let mut resizes = Resizes::default();
            let container = container(requests, limits, policies);
            let restarts = resizes.look(ContainerKind::App, 0, &container, &running("id", Some(RUNS)));
            let word = |is: bool, word: &'static str| if is { word } else { "-" };
            let [memory, cpu] = [&resizes.memory, &resizes.cpu].map(|list| !list.is_empty());
            let found = [word(memory, "memory"), word(cpu, "cpu"), word(restarts, "restart")].join(" ");
            assert_eq!(found, expected, "{requests} {limits} {policies}");
            assert_eq!((resizes.cgroup, resizes.is_empty()), (restarts, expected == "- - -"));
        }
    }

    #[test]
    fn what_does_not_run_or_is_not_known_is_left_alone() {
        let container = container("1/1Gi", "2/2Gi", "cpu! memory!");
        let mut resizes = Resizes::default();
        assert!(!resizes.look(ContainerKind::App, 0, &container, &running("id", None)));
        for state in [ContainerState::Created, ContainerState::Exited, ContainerState::Unknown] {
            let status = ContainerStatus { state, ..running("id", Some([1; 4])) };
            assert!(!resizes.look(ContainerKind::Init, 0, &container, &status));
        }
        assert!(resizes.is_empty());
    }

    #[test]
    fn shrinking_ones_come_before_growing_ones() {
        let mut resizes = Resizes::default();
        for (index, (id, requests, limits)) in [
            ("grows", "200m/1Ki", "200m/2Ki"),
            ("shrinks", "50m/1Ki", "200m/1Ki"),
            // Limits decide: its request shrinks.
            ("grows too", "50m/1Ki", "300m/2Ki"),
            ("shrinks too", "150m/1Ki", "150m/1536"),
        ]
        .into_iter()
        .enumerate()
        {
            let status = running(id, Some([100, 200, 1024, 2048]));
            resizes.look(ContainerKind::App, index, &container(requests, limits, ""), &status);
        }
        let ids = |list: &[Resize]| list.iter().map(|r| r.id.to_string()).collect::<Vec<_>>();
        assert_eq!(ids(&resizes.cpu), ["shrinks too", "shrinks", "grows", "grows too"]);
        assert_eq!(ids(&resizes.memory), ["shrinks too", "shrinks"]);
    }
}
