//! Pods for this node, and for others.

use super::*;

/// A node without an API server has three labels, and its name.
#[test]
fn a_pod_for_another_node_is_refused() {
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    let asks = |list: &str, key: &str, operator: &str, values: Value| json!({list: [{"key": key, "operator": operator, "values": values}]});
    let term = |key: &str, operator: &str, values: Value| asks("matchExpressions", key, operator, values);
    let name = |operator: &str, value: &str| asks("matchFields", "metadata.name", operator, json!([value]));
    let os = || term("kubernetes.io/os", "In", json!(["linux"]));
    for (terms, says) in [
        (json!([os()]), ""),
        (json!([term("kubernetes.io/os", "NotIn", json!(["linux"]))]), ": has no term"),
        (json!([term("kubernetes.io/os", "NotIn", json!(["linux"])), os()]), ""),
        (
            json!([term("disk", "In", json!(["ssd"]))]),
            ": has no term that fits this node, which is gw and has",
        ),
        (json!([term("disk", "NotIn", json!(["ssd"]))]), ""),
        (json!([term("disk", "Exists", Value::Null)]), ": has no term"),
        (json!([term("disk", "DoesNotExist", Value::Null)]), ""),
        (json!([term("kubernetes.io/hostname", "In", json!(["other", "gw"]))]), ""),
        (json!([term("kubernetes.io/hostname", "Gt", json!(["1"]))]), ": has no term"),
        (json!([name("In", "gw")]), ""),
        (json!([name("NotIn", "gw")]), ": has no term"),
        (json!([{}]), ": has no term"),
        (json!([]), ".nodeSelectorTerms: Required value"),
        (json!([os(), term("disk", "In", json!([]))]), "matchExpressions[0].values: Required value"),
        (json!([os(), term("disk", "Exists", json!(["x"]))]), "matchExpressions[0].values: Forbidden: may"),
        (
            json!([os(), term("disk", "Lt", json!(["1", "2"]))]),
            "matchExpressions[0].values: Invalid value: must",
        ),
        (
            json!([os(), term("disk", "Is", json!(["1"]))]),
            "matchExpressions[0].operator: Unsupported value: \"Is\"",
        ),
        (json!([os(), name("Exists", "gw")]), "matchFields[0].operator: Unsupported value: \"Exists\""),
    ] {
        let mut pod = good();
        let required = json!({"nodeSelectorTerms": terms});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        change(&mut pod, "/spec/affinity", affinity);
        let got = errors(pod);
        let fits = match says {
            "" => got.is_empty(),
            says => got.len() == 1 && got[0].starts_with(&at[..40]) && got[0].contains(says),
        };
        assert!(fits, "{terms}: {got:?}");
    }
    for (key, value, fits) in [
        ("kubernetes.io~1os", "linux", true),
        ("beta.kubernetes.io~1os", "linux", true),
        ("kubernetes.io~1hostname", "gw", true),
        ("kubernetes.io~1hostname", "other", false),
        ("kubernetes.io~1arch", "pdp11", false),
        ("disk", "ssd", false),
    ] {
        let mut pod = good();
        change(&mut pod, &format!("/spec/nodeSelector/{key}"), json!(value));
        let got = errors(pod);
        assert_eq!(got.is_empty(), fits, "{got:?}");
        assert!(
            fits || got[0].contains(": does not fit this node, which has kubernetes.io/arch="),
            "{got:?}"
        );
    }
}
