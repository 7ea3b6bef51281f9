//! The pod's node selector and its required node affinity (`GetRequiredNodeAffinity`, `labels.Requirement`). PURE.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use super::NodeView;
use crate::model::names;

/// The only field.
const NAME_FIELD: &str = "metadata.name";

/// Both match (`RequiredNodeAffinity.Match`): every label of the selector, and any term of the affinity. An affinity
/// without terms matches no node.
pub(super) fn matches(spec: &PodSpec, node: &NodeView<'_>) -> bool {
    let mut selector = spec.node_selector.iter().flatten();
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    selector.all(|(key, value)| node.label(key) == Some(value.as_str()))
        && required.is_none_or(|required| required.node_selector_terms.iter().any(|term| is_met(term, node)))
}

/// The selector matches a node with these labels (`CheckNodeAffinity`, which has no node name).
pub(super) fn chooses(selector: &NodeSelector, node: &NodeView<'_>) -> bool {
    selector.node_selector_terms.iter().any(|term| is_met(term, node))
}

/// The node meets all requirements of the term. An empty term is met by no node, and neither is one with an invalid requirement
/// (`LazyErrorNodeSelector`): "false" means both.
fn is_met(term: &NodeSelectorTerm, node: &NodeView<'_>) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|requirement| label_matches(requirement, node))
        && fields.iter().all(|requirement| field_matches(requirement, node))
}

/// `NewRequirement` and `Requirement.Matches`:
///
/// ```text
///     operator      values          without the label   with the label
///     In            at least one    no                  when it is one of them
///     NotIn         at least one    yes                 when it is none of them
///     Exists        none            no                  yes
///     DoesNotExist  none            yes                 no
///     Gt, Lt        one integer     no                  when it is an integer above, below it
/// ```
fn label_matches(requirement: &NodeSelectorRequirement, node: &NodeView<'_>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    if names::qualified(&requirement.key).is_some()
        || values.iter().any(|value| names::label_value(value).is_some())
    {
        return false;
    }
    let label = node.label(&requirement.key);
    let is_one = |label: &str| values.iter().any(|value| value == label);
    match (&*requirement.operator, values) {
        ("In", [_, ..]) => label.is_some_and(is_one),
        ("NotIn", [_, ..]) => !label.is_some_and(is_one),
        ("Exists", []) => label.is_some(),
        ("DoesNotExist", []) => label.is_none(),
        ("Gt", [value]) => integers(label, value).is_some_and(|(label, value)| label > value),
        ("Lt", [value]) => integers(label, value).is_some_and(|(label, value)| label < value),
        _ => false,
    }
}

/// Both as integers, when both are.
fn integers(label: Option<&str>, value: &str) -> Option<(i64, i64)> {
    Some((label?.parse().ok()?, value.parse().ok()?))
}

/// `nodeSelectorRequirementsAsFieldSelector`: In and `NotIn` with one value. Every field but the name is empty, and on a node
/// without a name no field is compared.
fn field_matches(requirement: &NodeSelectorRequirement, node: &NodeView<'_>) -> bool {
    let field = if requirement.key == NAME_FIELD { node.name } else { "" };
    match (&*requirement.operator, requirement.values.as_deref().unwrap_or_default()) {
        ("In", [value]) => node.name.is_empty() || value == field,
        ("NotIn", [value]) => node.name.is_empty() || value != field,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::super::Resources;
    use super::*;

    fn spec(value: &Value) -> PodSpec {
        let mut spec = value.clone();
        spec["containers"] = json!([]);
        serde_json::from_value(spec).unwrap()
    }

    fn terms(terms: &Value) -> PodSpec {
        spec(&json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
    }

    fn on_node(name: &str, labels: &[(&str, &str)], spec: &PodSpec) -> bool {
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let allocatable = Resources::default();
        let (labels, allocatable) = (&labels, &allocatable);
        matches(spec, &NodeView { name, labels, taints: &[], allocatable, declared_features: &[] })
    }

    /// One requirement on the label `k` in each row: operator, values, then for each value of the label whether the node
    /// matches. `-` is no value and no label, `''` the empty one.
    const REQUIREMENTS: &str = "
        operator      values         -    ''   1    5    05   -5   x    9223372036854775808
        In            -              no   no   no   no   no   no   no   no
        In            ''             no   yes  no   no   no   no   no   no
        In            5              no   no   no   yes  no   no   no   no
        In            5,x            no   no   no   yes  no   no   yes  no
        In            5,-x           no   no   no   no   no   no   no   no
        NotIn         -              no   no   no   no   no   no   no   no
        NotIn         5              yes  yes  yes  no   yes  yes  yes  yes
        NotIn         5,x            yes  yes  yes  no   yes  yes  no   yes
        NotIn         -x             no   no   no   no   no   no   no   no
        Exists        -              no   yes  yes  yes  yes  yes  yes  yes
        Exists        5              no   no   no   no   no   no   no   no
        DoesNotExist  -              yes  no   no   no   no   no   no   no
        DoesNotExist  ''             no   no   no   no   no   no   no   no
        Gt            1              no   no   no   yes  yes  no   no   no
        Gt            05             no   no   no   no   no   no   no   no
        Gt            5              no   no   no   no   no   no   no   no
        Gt            -9             no   no   no   no   no   no   no   no
        Gt            -              no   no   no   no   no   no   no   no
        Gt            1,1            no   no   no   no   no   no   no   no
        Gt            x              no   no   no   no   no   no   no   no
        Lt            5              no   no   yes  no   no   yes  no   no
        Lt            9              no   no   yes  yes  yes  yes  no   no
        Lt            9223372036854775808  no  no  no  no  no  no  no   no
        Equals        5              no   no   no   no   no   no   no   no
        in            5              no   no   no   no   no   no   no   no
        ''            -              no   no   no   no   no   no   no   no
    ";

    #[test]
    fn each_operator_with_each_kind_of_value() {
        let text = |word: &str| if word == "''" { String::new() } else { word.to_owned() };
        let mut rows = REQUIREMENTS.trim().lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let labels = rows.next().unwrap();
        let mut asked = 0;
        for row in rows {
            assert_eq!(row.len(), labels.len(), "{row:?}");
            let values: Vec<String> =
                if row[1] == "-" { Vec::new() } else { row[1].split(',').map(text).collect() };
            let spec = terms(
                &json!([{"matchExpressions": [{"key": "k", "operator": text(row[0]), "values": values}]}]),
            );
            for (label, expected) in labels.iter().zip(&row).skip(2) {
                let value = text(label);
                let labels = [("other", "5"), ("k", &*value)];
                let labels = if *label == "-" { &labels[..1] } else { &labels[..] };
                assert_eq!(on_node("n", labels, &spec), *expected == "yes", "{row:?} label {label}");
                asked += 1;
            }
        }
        assert_eq!(asked, 26 * 8);
    }

    #[test]
    fn terms_are_alternatives_and_their_requirements_are_not() {
        let expression = |key: &str| json!({"key": key, "operator": "Exists"});
        let (a, b, bad) = (expression("a"), expression("b"), expression("-a"));
        for (name, given, expected) in [
            ("no terms match no node", json!([]), false),
            ("an empty term matches no node", json!([{}]), false),
            ("one of no requirements neither", json!([{"matchExpressions": [], "matchFields": []}]), false),
            ("the label is there", json!([{"matchExpressions": [a]}]), true),
            ("the label is not there", json!([{"matchExpressions": [b]}]), false),
            ("both have to be there", json!([{"matchExpressions": [a, b]}]), false),
            ("either term will do", json!([{"matchExpressions": [b]}, {"matchExpressions": [a]}]), true),
            ("an empty term beside a good one", json!([{}, {"matchExpressions": [a]}]), true),
            ("a bad requirement spoils its term", json!([{"matchExpressions": [a, bad]}]), false),
            ("and no other", json!([{"matchExpressions": [bad]}, {"matchExpressions": [a]}]), true),
            (
                "a field has to match as well",
                json!([{"matchExpressions": [a], "matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["m"]}]}]),
                false,
            ),
            (
                "both match",
                json!([{"matchExpressions": [a], "matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]),
                true,
            ),
        ] {
            assert_eq!(on_node("n", &[("a", "")], &terms(&given)), expected, "{name}");
        }
    }

    #[test]
    fn of_fields_only_the_name_has_a_value() {
        for (key, operator, values, on_n, on_nameless) in [
            ("metadata.name", "In", json!(["n"]), true, true),
            ("metadata.name", "In", json!(["m"]), false, true),
            ("metadata.name", "In", json!(["n", "m"]), false, false),
            ("metadata.name", "In", json!([]), false, false),
            ("metadata.name", "NotIn", json!(["n"]), false, true),
            ("metadata.name", "NotIn", json!(["m"]), true, true),
            ("metadata.name", "NotIn", json!(["m", "o"]), false, false),
            ("metadata.name", "Exists", json!([]), false, false),
            ("metadata.name", "Gt", json!(["1"]), false, false),
            ("metadata.namespace", "In", json!(["n"]), false, true),
            ("metadata.namespace", "In", json!([""]), true, true),
            ("metadata.namespace", "NotIn", json!(["n"]), true, true),
        ] {
            let spec =
                terms(&json!([{"matchFields": [{"key": key, "operator": operator, "values": values}]}]));
            assert_eq!(on_node("n", &[], &spec), on_n, "{key} {operator} {values}");
            assert_eq!(on_node("", &[], &spec), on_nameless, "{key} {operator} {values}, no name");
        }
    }

    #[test]
    fn the_selector_and_the_affinity_both_have_to_match() {
        let selector = |labels: Value| spec(&json!({"nodeSelector": labels}));
        let labels = [("a", "1"), ("b", "")];
        for (given, expected) in [
            (json!({}), true),
            (json!({"a": "1"}), true),
            (json!({"a": "1", "b": ""}), true),
            (json!({"a": "2"}), false),
            (json!({"a": "1", "c": ""}), false),
            (json!({"-c": ""}), false),
        ] {
            let mut spec = selector(given.clone());
            assert_eq!(on_node("n", &labels, &spec), expected, "{given}");
            spec.affinity =
                terms(&json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}])).affinity;
            assert_eq!(on_node("n", &labels, &spec), expected, "{given} and an affinity");
            spec.affinity = terms(&json!([])).affinity;
            assert!(!on_node("n", &labels, &spec), "{given} and an affinity that does not match");
        }
        let preferred = spec(&json!({"affinity": {"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [
                {"key": "a", "operator": "DoesNotExist"}]}}]}}}));
        assert!(on_node("n", &labels, &preferred), "a wish is for the scheduler");
    }

    #[test]
    fn the_label_of_the_system_is_right_whatever_the_node_says() {
        let wants = |system: &str| spec(&json!({"nodeSelector": {"kubernetes.io/os": system}}));
        let (right, wrong) = ([("kubernetes.io/os", "linux")], [("kubernetes.io/os", "windows")]);
        for (labels, system, expected) in [
            (&right[..], "linux", true),
            (&wrong[..], "linux", true),
            (&wrong[..], "windows", false),
            (&[("a", "")][..], "linux", true),
            // The kubelet corrects a list that it then discards.
            (&[][..], "linux", false),
            (&[][..], "windows", false),
        ] {
            assert_eq!(on_node("n", labels, &wants(system)), expected, "{labels:?} {system}");
        }
    }
}
