//! Label selectors (`metav1.LabelSelector`). PURE.

use super::words::{WordId, Words};
use crate::decode::Node;
use crate::limits::NETWORK_POLICY_LABELS_MAX;

/// A label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label {
    key: WordId,
    value: WordId,
}

/// The labels of an object, each of them held. `None`: it has more than `NETWORK_POLICY_LABELS_MAX`.
pub(super) fn labels(metadata: Option<&Node>, words: &mut Words) -> Option<Box<[Label]>> {
    let entries = entries(metadata.and_then(|metadata| metadata.field("labels")));
    if entries.len() > NETWORK_POLICY_LABELS_MAX {
        return None;
    }
    let label = |(key, value): &(Box<str>, Node)| {
        let value = value.text()?;
        Some(Label { key: words.hold(key), value: words.hold(value) })
    };
    let mut labels: Vec<Label> = entries.iter().filter_map(label).collect();
    labels.sort_unstable();
    Some(labels.into())
}

/// Releases the labels' texts.
pub(super) fn release(labels: &[Label], words: &mut Words) {
    for Label { key, value } in labels {
        words.release(*key);
        words.release(*value);
    }
}

fn entries(node: Option<&Node>) -> &[(Box<str>, Node)] {
    if let Some(Node::Map(entries)) = node { entries } else { &[] }
}

/// All of the requirements hold; without any, everything is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector(Box<[Requirement]>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: WordId,
    operator: Operator,
    values: Box<[WordId]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// The texts that a policy holds.
pub(super) struct Held<'a> {
    pub(super) words: &'a mut Words,
    pub(super) ids: Vec<WordId>,
}

impl Held<'_> {
    pub(super) fn hold(&mut self, text: &str) -> WordId {
        let id = self.words.hold(text);
        self.ids.push(id);
        id
    }
}

impl Selector {
    /// From the object (`LabelSelectorAsSelector`).
    ///
    /// # Errors
    /// The part of the field's path behind the selector, and what is wrong with it.
    pub(super) fn read(selector: &Node, held: &mut Held<'_>) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for (key, value) in entries(selector.field("matchLabels")) {
            let value = value.text().ok_or_else(|| format!("matchLabels[{key}] is no text"))?;
            let values = [held.hold(value)].into();
            requirements.push(Requirement { key: held.hold(key), operator: Operator::In, values });
        }
        let expressions = selector.field("matchExpressions").map(Node::items).unwrap_or_default();
        for (index, expression) in expressions.iter().enumerate() {
            let wrong = |what: &str| format!("matchExpressions[{index}]{what}");
            let key = expression.field("key").and_then(Node::text).ok_or_else(|| wrong(" has no key"))?;
            let values = expression.field("values").map(Node::items).unwrap_or_default();
            let operator = match expression.field("operator").and_then(Node::text) {
                Some("In") if !values.is_empty() => Operator::In,
                Some("NotIn") if !values.is_empty() => Operator::NotIn,
                Some("Exists") => Operator::Exists,
                Some("DoesNotExist") => Operator::DoesNotExist,
                Some("In" | "NotIn") => return Err(wrong(".values is empty")),
                _ => return Err(wrong(".operator is none of In, NotIn, Exists, DoesNotExist")),
            };
            let mut ids = Vec::new();
            for value in values {
                ids.push(held.hold(value.text().ok_or_else(|| wrong(".values is no list of texts"))?));
            }
            ids.sort_unstable();
            requirements.push(Requirement { key: held.hold(key), operator, values: ids.into() });
        }
        requirements.sort_unstable();
        Ok(Self(requirements.into()))
    }

    pub(super) fn matches(&self, labels: &[Label]) -> bool {
        self.0.iter().all(|Requirement { key, operator, values }| {
            let value = labels.iter().find(|label| label.key == *key).map(|label| label.value);
            match operator {
                Operator::In => value.is_some_and(|value| values.contains(&value)),
                Operator::NotIn => value.is_none_or(|value| !values.contains(&value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::json::read;

    #[test]
    fn selectors_match_as_upstream() {
        for (selector, labels, matches) in [
            ("{}", "{}", true),
            ("{}", r#"{"a":"b"}"#, true),
            (r#"{"matchLabels":{"a":"b"}}"#, r#"{"a":"b","c":"d"}"#, true),
            (r#"{"matchLabels":{"a":"b"}}"#, r#"{"a":"c"}"#, false),
            (r#"{"matchLabels":{"a":""}}"#, r#"{"a":""}"#, true),
            (r#"{"matchLabels":{"a":""}}"#, "{}", false),
            (r#"{"matchLabels":{"a":"b","c":"d"}}"#, r#"{"a":"b"}"#, false),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]}]}"#,
                r#"{"a":"c"}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]}]}"#,
                r#"{"a":"d"}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]}"#,
                r#"{"a":"b"}"#,
                false,
            ),
            (r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]}"#, r#"{"a":"c"}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]}"#, r#"{"b":"b"}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"Exists"}]}"#, r#"{"a":""}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"Exists"}]}"#, r#"{"b":"a"}"#, false),
            (r#"{"matchExpressions":[{"key":"a","operator":"DoesNotExist"}]}"#, r#"{"b":"a"}"#, true),
            (r#"{"matchExpressions":[{"key":"a","operator":"DoesNotExist"}]}"#, r#"{"a":"a"}"#, false),
            (
                r#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"Exists"}]}"#,
                r#"{"a":"b"}"#,
                false,
            ),
        ] {
            let mut words = Words::default();
            let metadata = read(format!(r#"{{"labels":{labels}}}"#).as_bytes()).unwrap();
            let labels = super::labels(Some(&metadata), &mut words).unwrap();
            let mut held = Held { words: &mut words, ids: Vec::new() };
            let read = Selector::read(&read(selector.as_bytes()).unwrap(), &mut held).unwrap();
            assert_eq!(read.matches(&labels), matches, "{selector} {metadata:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_selector_is_named() {
        for (selector, why) in [
            (r#"{"matchLabels":{"a":1}}"#, "matchLabels[a] is no text"),
            (r#"{"matchExpressions":[{"operator":"Exists"}]}"#, "matchExpressions[0] has no key"),
            (r#"{"matchExpressions":[{"key":"a","operator":"In"}]}"#, "matchExpressions[0].values is empty"),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}"#,
                "matchExpressions[0].operator",
            ),
            (r#"{"matchExpressions":[{"key":"a","operator":"In","values":[1]}]}"#, "list of texts"),
        ] {
            let mut words = Words::default();
            let mut held = Held { words: &mut words, ids: Vec::new() };
            let found = Selector::read(&read(selector.as_bytes()).unwrap(), &mut held).unwrap_err();
            assert!(found.contains(why), "{selector}: {found}");
        }
    }
}
