//! Taints that the pod does not tolerate (`FindMatchingUntoleratedTaint`). PURE.

use k8s_openapi::api::core::v1::{PodSpec, Taint, Toleration};

/// The only effect that the kubelet enforces: the others are for the scheduler.
const NO_EXECUTE: &str = "NoExecute";

/// There is an untolerated taint of the effect `NoExecute`. `tolerationSeconds` does not matter here: the taint eviction
/// controller counts it.
pub(super) fn any_untolerated(spec: &PodSpec, taints: &[Taint]) -> bool {
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let tolerated = |taint: &Taint| tolerations.iter().any(|toleration| tolerates(toleration, taint));
    taints.iter().any(|taint| taint.effect == NO_EXECUTE && !tolerated(taint))
}

/// `ToleratesTaint`: an absent effect or key matches any; without an operator the values have to be equal. `Lt` and `Gt` tolerate
/// nothing, as in 1.36 with its default settings (`TaintTolerationComparisonOperators` is alpha).
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_any_or = |given: &Option<String>, wanted: &str| {
        given.as_deref().is_none_or(|given| given.is_empty() || given == wanted)
    };
    let value = match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    };
    value && is_any_or(&toleration.effect, &taint.effect) && is_any_or(&toleration.key, &taint.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every toleration of a small space, against the rules of the API's documentation.
    #[test]
    fn a_toleration_is_for_a_taint_by_effect_key_operator_and_value() {
        let texts = [None, Some(""), Some("k"), Some("v"), Some("NoExecute"), Some("NoSchedule")];
        let operators =
            [None, Some(""), Some("Equal"), Some("Exists"), Some("Lt"), Some("Gt"), Some("equal")];
        let some = |text: Option<&str>| text.map(str::to_owned);
        let mut tolerated = 0;
        for value_of_taint in [None, Some(""), Some("v")] {
            let taint = Taint {
                key: "k".to_owned(),
                value: some(value_of_taint),
                effect: NO_EXECUTE.to_owned(),
                time_added: None,
            };
            for (effect, key) in texts.iter().flat_map(|effect| texts.map(|key| (*effect, key))) {
                for (operator, value) in operators.iter().flat_map(|op| texts.map(|value| (*op, value))) {
                    let toleration = Toleration {
                        effect: some(effect),
                        key: some(key),
                        operator: some(operator),
                        value: some(value),
                        toleration_seconds: Some(0),
                    };
                    let expected = ["", "NoExecute"].contains(&effect.unwrap_or(""))
                        && ["", "k"].contains(&key.unwrap_or(""))
                        && (operator == Some("Exists")
                            || ["", "Equal"].contains(&operator.unwrap_or(""))
                                && value.unwrap_or("") == value_of_taint.unwrap_or(""));
                    assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?} {taint:?}");
                    tolerated += usize::from(expected);
                }
            }
        }
        // 3 effects and 3 keys that match; `Exists` with each of 6 values, else 3 operators with the values that match.
        assert_eq!(tolerated, 3 * 3 * (3 * 6 + 3 * (2 + 2 + 1)));
    }

    #[test]
    fn only_no_execute_counts_and_each_taint_wants_its_toleration() {
        let taint = |key: &str, effect: &str| Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        };
        let exists = |key: &str| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        };
        let spec = |keys: &[&str]| PodSpec {
            tolerations: Some(keys.iter().map(|key| exists(key)).collect()),
            ..PodSpec::default()
        };
        let both = [taint("a", NO_EXECUTE), taint("b", NO_EXECUTE)];
        let others = [taint("a", "NoSchedule"), taint("b", "PreferNoSchedule"), taint("c", "")];
        let rows: [(&[Taint], &[&str], bool); 6] = [
            (&both, &[], true),
            (&both, &["a"], true),
            (&both, &["b", "a"], false),
            (&both, &[""], false),
            (&others, &[], false),
            (&[], &[], false),
        ];
        for (taints, keys, refused) in rows {
            assert_eq!(any_untolerated(&spec(keys), taints), refused, "{taints:?} {keys:?}");
        }
        assert!(any_untolerated(&PodSpec::default(), &both));
    }
}
