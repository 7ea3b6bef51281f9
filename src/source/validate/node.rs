//! What a pod asks of its node: `nodeSelector` and required node affinity (`ValidateNodeSelector`). PURE.
//!
//! A node without an API server has the labels of the kubelet's `initialNode` and no others. A pod that is not for it is
//! refused, as the kubelet's admission does (`generalFilter`).

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PodSpec};

use super::{Check, metadata};
use crate::model::names;

/// Go's word for this machine's processor.
const ARCH: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    std::env::consts::ARCH
};

fn label<'a>(spec: &'a PodSpec, key: &str) -> Option<&'a str> {
    match key {
        "kubernetes.io/arch" | "beta.kubernetes.io/arch" => Some(ARCH),
        "kubernetes.io/hostname" => spec.node_name.as_deref(),
        "kubernetes.io/os" | "beta.kubernetes.io/os" => Some("linux"),
        _ => None,
    }
}

/// Both; all that a message needs to say is what the node has.
pub(super) fn node(check: &mut Check<'_>, spec: &PodSpec) {
    let name = spec.node_name.as_deref().unwrap_or_default();
    let has = || format!("kubernetes.io/arch={ARCH}, kubernetes.io/hostname={name}, kubernetes.io/os=linux");
    check.at("nodeSelector", |check| {
        for (key, value) in spec.node_selector.iter().flatten() {
            metadata::label(check, key, value);
            if label(spec, key) != Some(value) {
                let message = format!("does not fit this node, which has {} alone", has());
                check.at(key, |check| check.invalid_text(value, &message));
            }
        }
    });
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return };
    check.at_path("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", |check| {
        let mut fits = false;
        check.each("nodeSelectorTerms", &required.node_selector_terms, |check, term| {
            let labels = term.match_expressions.as_deref().unwrap_or_default();
            let fields = term.match_fields.as_deref().unwrap_or_default();
            check.each("matchExpressions", labels, expression);
            check.each("matchFields", fields, field);
            // A term that asks for nothing fits no node.
            fits |= !(labels.is_empty() && fields.is_empty())
                && labels.iter().all(|asks| matches(asks, label(spec, &asks.key)))
                && fields.iter().all(|asks| matches(asks, Some(name)));
        });
        if required.node_selector_terms.is_empty() {
            check.at("nodeSelectorTerms", |check| check.required("at least one term"));
        } else if !fits {
            check.wrong(&format!("has no term that fits this node, which is {name} and has {} alone", has()));
        }
    });
}

/// `ValidateNodeSelectorRequirement`.
fn expression(check: &mut Check<'_>, asks: &NodeSelectorRequirement) {
    check.at("key", |check| check.text(&asks.key, names::qualified));
    check.at("operator", |check| {
        check.one_of(&asks.operator, &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
    });
    let values = asks.values.as_deref().unwrap_or_default();
    check.at("values", |check| match asks.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => check.required("operator is In or NotIn"),
        "Gt" | "Lt" if values.len() != 1 => check.wrong("must be one number when operator is Gt or Lt"),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            check.forbidden("may not be given when operator is Exists or DoesNotExist");
        }
        _ => {}
    });
    check.each("values", values, |check, value| check.text(value, names::label_value));
}

/// `ValidateNodeFieldSelectorRequirement`.
fn field(check: &mut Check<'_>, asks: &NodeSelectorRequirement) {
    check.at("key", |check| check.one_of(&asks.key, &["metadata.name"]));
    check.at("operator", |check| check.one_of(&asks.operator, &["In", "NotIn"]));
    if asks.values.as_ref().map_or(0, Vec::len) != 1 {
        check.at("values", |check| check.wrong("must be one name"));
    }
}

/// `labels.Requirement.Matches`.
fn matches(asks: &NodeSelectorRequirement, has: Option<&str>) -> bool {
    let values = asks.values.as_deref().unwrap_or_default();
    let listed = has.is_some_and(|has| values.iter().any(|value| value == has));
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = || has.and_then(number).zip(values.first().and_then(|value| number(value)));
    match asks.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => has.is_some(),
        "DoesNotExist" => has.is_none(),
        "Gt" => numbers().is_some_and(|(has, value)| has > value),
        "Lt" => numbers().is_some_and(|(has, value)| has < value),
        _ => false,
    }
}
