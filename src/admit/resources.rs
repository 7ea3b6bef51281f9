//! Resource requests of pods and allocatable resources of the node, as the scheduler computes them (`framework.Resource`,
//! `noderesources.Fits`). PURE.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

use super::Rejection;
use crate::model::ContainerKind;
use crate::model::SortedMap;
use crate::model::names;
use crate::model::quantity::Quantity;
use crate::render::resources::{
    Amounts, ResourceList, add_list, aggregate, amount, is_sidecar, max_list, may_be_on_the_pod, pod_level,
    put_pod_level, requests,
};

/// Prefix of a device class's name in the extended resource that stands for one of its devices.
const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Resources as whole numbers (`framework.Resource`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral_storage: i64,
    /// Pods.
    pub pods: i64,
    /// All other counted resources: huge pages in bytes, extended resources in their own units. As many as are named.
    pub scalars: SortedMap<Box<str>, i64>,
}

impl Resources {
    /// Parses a list of the API (`NewResource`), such as a node's `status.allocatable`. An invalid quantity counts as zero,
    /// uncounted names are left out.
    pub fn of(list: &Amounts) -> Self {
        let mut all = Self::default();
        for name in list.keys() {
            all.put(name, amount(Some(list), name));
        }
        all
    }

    /// With enough of each requested resource that is not counted here, such as huge pages.
    #[must_use]
    pub fn with_uncounted(&self, pod: &Pod) -> Self {
        let mut all = self.clone();
        for name in wanted(pod, self).scalars.into_keys() {
            all.scalars.entry(name).or_insert(i64::MAX);
        }
        all
    }

    fn put(&mut self, name: &str, quantity: Quantity) {
        let (value, more) = match name {
            "cpu" => (&mut self.milli_cpu, quantity.milli_value()),
            "memory" => (&mut self.memory, quantity.value()),
            "ephemeral-storage" => (&mut self.ephemeral_storage, quantity.value()),
            "pods" => (&mut self.pods, quantity.value()),
            name if is_scalar(name) => (self.scalars.entry(name.into()).or_default(), quantity.value()),
            _ => return,
        };
        *value = value.saturating_add(more);
    }

    /// Adds the requests of another pod (`NodeInfo.update`).
    pub(super) fn add(&mut self, list: &ResourceList) {
        for (name, quantity) in list.iter().filter(|(name, _)| *name != "pods") {
            self.put(name, *quantity);
        }
    }

    fn scalar(&self, name: &str) -> i64 {
        self.scalars.get(name).copied().unwrap_or_default()
    }
}

/// An insufficient resource of the node (`InsufficientResourceError`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Its name: `cpu`, `memory`, `ephemeral-storage`, `pods`, or another.
    pub resource: Box<str>,
    /// The pod's request: thousandths of a CPU, bytes, or pieces.
    pub requested: i64,
    /// The requests of the others.
    pub used: i64,
    /// The node's allocatable amount.
    pub capacity: i64,
}

impl Shortage {
    /// The amount to be freed (`GetInsufficientAmount`).
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    pub(super) fn rejection(&self) -> Rejection {
        let reason = match &*self.resource {
            "cpu" => Cow::Borrowed("OutOfcpu"),
            "memory" => Cow::Borrowed("OutOfmemory"),
            "ephemeral-storage" => Cow::Borrowed("OutOfephemeral-storage"),
            "pods" => Cow::Borrowed("OutOfpods"),
            other => Cow::Owned(format!("OutOf{other}")),
        };
        Rejection::new(reason, self.to_string())
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, requested, used, capacity } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }
}

/// Insufficient resources for the pod (`fitsRequest`), in the order in which they are reported. Resources that it does not
/// request may be overcommitted by others.
pub(super) fn shortages(wanted: &Resources, there: &Resources, used: &Resources) -> Vec<Shortage> {
    let four = [
        ("pods", 1, there.pods, used.pods),
        ("cpu", wanted.milli_cpu, there.milli_cpu, used.milli_cpu),
        ("memory", wanted.memory, there.memory, used.memory),
        ("ephemeral-storage", wanted.ephemeral_storage, there.ephemeral_storage, used.ephemeral_storage),
    ];
    let others =
        wanted.scalars.iter().map(|(name, wanted)| (&**name, *wanted, there.scalar(name), used.scalar(name)));
    let short = four.into_iter().chain(others).filter(|(_, requested, capacity, used)| {
        *requested > 0 && *requested > capacity.saturating_sub(*used)
    });
    let short = short.map(|(name, requested, capacity, used)| Shortage {
        resource: name.into(),
        requested,
        used,
        capacity,
    });
    short.collect()
}

/// The requests of a new pod (`computePodResourceRequest`), from its manifest alone.
///
/// Extended resources that the node does not have are left out (`removeMissingExtendedResources`): they may be the cluster's. So
/// are those that stand for devices which have been allocated to the pod.
pub(super) fn wanted(pod: &Pod, there: &Resources) -> Resources {
    let counts = |container: &Container, name: &str| {
        let extended = is_extended(name);
        let of_devices =
            (extended || name.starts_with(DEVICE_CLASS_PREFIX)) && has_devices(pod, container, name);
        !of_devices && (!extended || there.scalars.contains_key(name))
    };
    let of = |container: &Container, _: ContainerKind| {
        let mut own = ResourceList::new();
        add_list(&mut own, requests(container.resources.as_ref()));
        own.retain(|name, _| counts(container, name));
        own
    };
    let mut sum = aggregate(pod, &of, &mut |_| {});
    put_pod_level(&mut sum, requests(pod_level(pod)));
    add_list(&mut sum, overhead(pod));
    // `SetMaxResource` starts at zero: negative amounts count as zero.
    for quantity in sum.values_mut() {
        *quantity = (*quantity).max(Quantity::ZERO);
    }
    let mut wanted = Resources::default();
    wanted.add(&sum);
    wanted
}

/// The resource stands for devices that were allocated to this container (`isResourceBackedByDRA`).
fn has_devices(pod: &Pod, container: &Container, name: &str) -> bool {
    let claims = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let mut mappings = claims.into_iter().flat_map(|claims| &claims.request_mappings);
    mappings.any(|mapping| mapping.resource_name == name && mapping.container_name == container.name)
}

/// The requests of a running pod (`PodInfo.CalculateResource`). During a resize they are the maximum of its manifest, its status
/// and its allocation; without a status those of its manifest.
pub(super) fn requested(pod: &Pod) -> ResourceList {
    let status = pod.status.as_ref();
    let of = |container: &Container, kind: ContainerKind| {
        let own = requests(container.resources.as_ref());
        // Of a non-sidecar init container only the manifest counts.
        let resizable = kind == ContainerKind::App || is_sidecar(container);
        let reported = status.filter(|_| resizable).and_then(|status| {
            let init = status.init_container_statuses.iter().flatten();
            let mut all = init.chain(status.container_statuses.iter().flatten());
            all.find(|reported| reported.name == container.name)
        });
        match reported.and_then(|reported| Some((reported, reported.resources.as_ref()?))) {
            Some((reported, actual)) => {
                most(status, own, actual.requests.as_ref(), reported.allocated_resources.as_ref())
            }
            None => most(None, own, None, None),
        }
    };
    let mut sum = aggregate(pod, &of, &mut |_| {});
    let own = requests(pod_level(pod));
    match status.and_then(|status| Some((status, status.resources.as_ref()?))) {
        Some((reported, actual)) => {
            let most = most(status, own, actual.requests.as_ref(), reported.allocated_resources.as_ref());
            for name in own
                .into_iter()
                .flat_map(std::collections::BTreeMap::keys)
                .filter(|name| may_be_on_the_pod(name))
            {
                sum.insert(name.clone(), most.get(name).copied().unwrap_or_default());
            }
        }
        None => put_pod_level(&mut sum, own),
    }
    add_list(&mut sum, overhead(pod));
    sum
}

/// The maximum of the desired, actual and allocated amounts (`determineEffectiveRequests`). The desired amounts do not count when
/// the resize is infeasible.
fn most(
    status: Option<&PodStatus>,
    asked: Option<&Amounts>,
    actual: Option<&Amounts>,
    granted: Option<&Amounts>,
) -> ResourceList {
    let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let pending = conditions.find(|condition| condition.type_ == "PodResizePending");
    let infeasible = pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"));
    let mut most = ResourceList::new();
    for list in [asked.filter(|_| !infeasible), actual, granted] {
        let mut one = ResourceList::new();
        add_list(&mut one, list);
        max_list(&mut most, &one);
    }
    most
}

fn overhead(pod: &Pod) -> Option<&Amounts> {
    pod.spec.as_ref()?.overhead.as_ref()
}

/// The amount of a resource that the pod's termination would free (`GetResourceRequest`). With pod-level resources the
/// containers' do not count here, whatever the resource; overhead is added only to an amount that is not zero.
pub(super) fn given_back(pod: &Pod, name: &str) -> i64 {
    if name == "pods" {
        return 1;
    }
    let quantity = match pod_level(pod) {
        Some(own) if may_be_on_the_pod(name) => amount(own.requests.as_ref(), name),
        Some(_) => Quantity::ZERO,
        None => {
            let of = |container: &Container, _: ContainerKind| {
                let own = requests(container.resources.as_ref());
                let quantity =
                    own.filter(|list| list.contains_key(name)).map(|list| amount(Some(list), name));
                quantity.into_iter().map(|quantity| (name.to_owned(), quantity)).collect()
            };
            aggregate(pod, &of, &mut |_| {}).remove(name).unwrap_or_default()
        }
    };
    let quantity = if quantity.is_zero() { quantity } else { quantity + amount(overhead(pod), name) };
    if name == "cpu" { quantity.milli_value() } else { quantity.value() }
}

/// A resource outside Kubernetes' own domain (`IsExtendedResourceName`).
fn is_extended(name: &str) -> bool {
    let native = !name.contains('/') || is_prefixed_native(name);
    // The name has to be valid with this prefix, as in a quota.
    !native && !name.starts_with("requests.") && names::qualified(&format!("requests.{name}")).is_none()
}

/// `IsPrefixedNativeResource`.
fn is_prefixed_native(name: &str) -> bool {
    name.contains("kubernetes.io/")
}

/// A counted resource beside the first four (`IsScalarResourceName`).
fn is_scalar(name: &str) -> bool {
    is_extended(name)
        || name.starts_with("hugepages-")
        || is_prefixed_native(name)
        || name.starts_with("attachable-volumes-")
}

#[cfg(test)]
mod tests;
