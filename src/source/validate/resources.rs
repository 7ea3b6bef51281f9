//! Resources of containers and pods (`validateResourceRequirements`, `validatePodResources`). PURE.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

use super::Check;
use crate::model::names;
use crate::model::quantity::Quantity;
use crate::source::resources::{self, List, aggregate, amounts, is_hugepages, is_pod_level};

/// `spec.containers[*].resources`.
pub(super) fn container(check: &mut Check<'_>, requirements: Option<&ResourceRequirements>) {
    if let Some(requirements) = requirements {
        check.at("resources", |check| self::requirements(check, requirements, container_resource));
    }
}

/// `spec.resources`: valid, no less than the containers ask for, no container's limit above the pod's.
pub(super) fn pod(check: &mut Check<'_>, spec: &PodSpec) {
    let Some(own) = &spec.resources else { return };
    check.at("resources", |check| {
        requirements(check, own, pod_resource);
        let requests = amounts(own.requests.as_ref());
        check.at("requests", |check| {
            for (name, needed) in aggregate(spec, resources::requests) {
                if requests.get(&name).is_some_and(|given| needed > *given) {
                    let shown = given(own.requests.as_ref(), &name);
                    let message = format!(
                        "must be at least what the containers ask for, {}",
                        resources::text(needed).0
                    );
                    check.at(&name, |check| check.invalid(shown, &message));
                }
            }
        });
        let limits = amounts(own.limits.as_ref());
        check.at("limits", |check| {
            for (name, needed) in aggregate(spec, resources::limits) {
                if is_hugepages(&name) && limits.get(&name).is_some_and(|given| needed > *given) {
                    let shown = given(own.limits.as_ref(), &name);
                    let message =
                        format!("must be at least the containers' limits, {}", resources::text(needed).0);
                    check.at(&name, |check| check.invalid(shown, &message));
                }
            }
        });
    });
    let pod_limits = amounts(own.limits.as_ref());
    check.each("containers", &spec.containers, |check, container| {
        let list = resources::limits(container);
        for (name, limit) in amounts(list) {
            if pod_limits.get(&name).is_some_and(|pod| limit > *pod) {
                let message =
                    format!("must be at most the pod's limit, {}", given(own.limits.as_ref(), &name));
                check.at("resources", |check| {
                    check.at("limits", |check| {
                        check.at(&name, |check| check.invalid(given(list, &name), &message));
                    });
                });
            }
        }
    });
}

fn given<'a>(list: Option<&'a List>, name: &str) -> &'a str {
    list.and_then(|list| list.get(name)).map_or("", |text| text.0.as_str())
}

fn requirements(
    check: &mut Check<'_>,
    given: &ResourceRequirements,
    name_rule: fn(&str) -> Option<&'static str>,
) {
    for (field, list) in [("limits", &given.limits), ("requests", &given.requests)] {
        check.at(field, |check| {
            for (name, text) in list.iter().flatten() {
                // A request that was not given is the limit, whose error is enough.
                if field == "requests"
                    && given.limits.as_ref().and_then(|limits| limits.get(name)) == Some(text)
                {
                    continue;
                }
                check.at(name, |check| {
                    if let Some(message) = name_rule(name) {
                        check.invalid_text(name, message);
                    }
                    amount(check, name, &text.0);
                });
            }
        });
    }
    let limits = amounts(given.limits.as_ref());
    let requests = amounts(given.requests.as_ref());
    check.at("requests", |check| {
        for (name, request) in &requests {
            let shown = self::given(given.requests.as_ref(), name);
            let overcommit = is_native(name) && !is_hugepages(name);
            check.at(name, |check| match limits.get(name) {
                Some(limit) if !overcommit && request != limit => {
                    check.invalid(shown, "must be equal to the limit, since it cannot be overcommitted");
                }
                Some(limit) if request > limit => {
                    let limit = self::given(given.limits.as_ref(), name);
                    check.invalid(shown, &format!("must be at most the limit, {limit}"));
                }
                None if !overcommit => {
                    check.invalid(shown, "needs a limit, since it cannot be overcommitted");
                }
                Some(_) | None => {}
            });
        }
    });
    let mut names = limits.keys().chain(requests.keys());
    let has = |name: &str| limits.contains_key(name) || requests.contains_key(name);
    if names.any(|name| is_hugepages(name)) && !has("cpu") && !has("memory") {
        check.wrong("has huge pages, which need cpu or memory beside them");
    }
}

/// `ValidateResourceQuantityValue` and `validateResourceQuantityHugePageValue`.
fn amount(check: &mut Check<'_>, name: &str, text: &str) {
    let Ok(quantity) = Quantity::parse(text) else {
        return check.invalid_text(text, "must be a quantity, such as 500m or 64Mi");
    };
    if quantity < Quantity::ZERO {
        check.invalid(text, "must be 0 or more");
    }
    if !is_native(name) && quantity.milli_value() % 1000 != 0 {
        check.invalid(text, "must be a whole number");
    }
    if let Some(size) = name.strip_prefix("hugepages-") {
        match Quantity::parse(size).map(Quantity::value) {
            Ok(size) if size > 0 && quantity.value() % size == 0 => {}
            Ok(_) | Err(_) => {
                check.invalid(text, "must be a multiple of the page size in the resource's name");
            }
        }
    }
}

/// `IsNativeResource`.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// `validateContainerResourceName`.
fn container_resource(name: &str) -> Option<&'static str> {
    const STANDARD: &str = "must be cpu, memory, ephemeral-storage, hugepages-SIZE or DOMAIN/NAME";
    names::qualified(name).or_else(|| {
        let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_hugepages(name);
        let extended = name.contains('/') && !name.starts_with("requests.");
        if standard || extended { None } else { Some(STANDARD) }
    })
}

/// `validatePodResourceName`.
fn pod_resource(name: &str) -> Option<&'static str> {
    if is_pod_level(name) { None } else { Some("must be cpu, memory or hugepages-SIZE for a pod") }
}
