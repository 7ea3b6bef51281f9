//! Sums of resources over a pod's containers (`AggregateContainerRequests`, `AggregateContainerLimits`). PURE.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::model::quantity::Quantity;

/// A resource list in the API's form.
pub type List = BTreeMap<String, Text>;

/// A parsed resource list, by name; invalid quantities are left out (validation reports them).
pub type Amounts = BTreeMap<String, Quantity>;

/// Parses a resource list.
pub fn amounts(list: Option<&List>) -> Amounts {
    let read = |(name, text): (&String, &Text)| Some((name.clone(), Quantity::parse(&text.0).ok()?));
    list.into_iter().flatten().filter_map(read).collect()
}

/// Formats a quantity: whole units, else thousandths (rounded up, the finest the API keeps in a pod).
pub fn text(quantity: Quantity) -> Text {
    let millis = quantity.milli_value();
    if millis % 1000 == 0 && quantity == Quantity::from_millis(millis) {
        Text(quantity.value().to_string())
    } else {
        Text(format!("{millis}m"))
    }
}

/// The containers' total: that of the app containers and sidecars together, or of one init container and the sidecars before it,
/// whichever is more.
pub fn aggregate(spec: &PodSpec, of: fn(&Container) -> Option<&List>) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &amounts(of(container)));
    }
    let (mut sidecars, mut init) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut own = amounts(of(container));
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add(&mut own, &sidecars);
        }
        for (name, amount) in own {
            let most = init.entry(name).or_insert(amount);
            *most = (*most).max(amount);
        }
    }
    for (name, amount) in init {
        let most = total.entry(name).or_insert(amount);
        *most = (*most).max(amount);
    }
    total
}

fn add(to: &mut Amounts, from: &Amounts) {
    for (name, amount) in from {
        let sum = to.entry(name.clone()).or_default();
        *sum = *sum + *amount;
    }
}

/// `resources.requests` of a container.
pub fn requests(container: &Container) -> Option<&List> {
    container.resources.as_ref()?.requests.as_ref()
}

/// `resources.limits` of a container.
pub fn limits(container: &Container) -> Option<&List> {
    container.resources.as_ref()?.limits.as_ref()
}

/// Whether pod-level resources may contain it (`IsSupportedPodLevelResource`).
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}

/// Whether it is a `hugepages-SIZE`.
pub fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}
