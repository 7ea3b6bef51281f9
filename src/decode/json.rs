//! Parses JSON, and what else serde reads, into the tree of manifests, so that pods of the API server and of files are decoded by the same code. PURE.
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::decode::Node;
use crate::sorted::SortedSet;

/// Field ownership, which only the API server needs.
const NOT_KEPT: &str = "managedFields";

/// Parses the bytes into a tree without `managedFields`. Nesting is bounded by `serde_json`'s own limit.
///
/// # Errors
/// It is not JSON.
pub fn read(bytes: &[u8]) -> Result<Node, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        #[allow(
            clippy::cast_precision_loss,
            reason = "beyond 64 bits with a sign nothing of the API is exact"
        )]
        let float = value as f64;
        Ok(i64::try_from(value).map_or(Node::Float(float), Node::Int))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map: Vec<(Box<str>, Node)> = Vec::new();
        while let Some(key) = entries.next_key::<Box<str>>()? {
            if &*key == NOT_KEPT {
                entries.next_value::<de::IgnoredAny>()?;
                continue;
            }
            map.push((key, entries.next_value()?));
        }
        Ok(Node::Map(last_of_each(map)))
    }
}

/// Removes repeated keys but the last, as Go does. Sorts for it: an object may have a hundred thousand keys.
fn last_of_each(mut map: Vec<(Box<str>, Node)>) -> Vec<(Box<str>, Node)> {
    let mut order: Vec<usize> = (0..map.len()).collect();
    order.sort_by(|a, b| map[*a].0.cmp(&map[*b].0).then(a.cmp(b)));
    let twice = order.windows(2).filter(|pair| map[pair[0]].0 == map[pair[1]].0).map(|pair| pair[0]);
    let twice: SortedSet<usize> = twice.collect();
    if !twice.is_empty() {
        let mut place = 0..;
        map.retain(|_| place.next().is_none_or(|place| !twice.contains(&place)));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_the_manifests_are() {
        let text = br#"{"a": [1, -2, 1.5, true, null, "x", 18446744073709551615], "managedFields": [{"b": 1}], "a2": {}}"#;
        let mut from_yaml = None;
        crate::decode::yaml::documents(
            br#"{"a": [1, -2, 1.5, true, null, "x", 18446744073709551615.0], "a2": {}}"#,
            |_, node| from_yaml = node.ok(),
        )
        .unwrap();
        assert_eq!(read(text).ok(), from_yaml);
        assert!(read(b"{").is_err());
        let Ok(Node::Map(map)) = read(br#"{"a": 1, "b": 3, "a": 0, "a": 2}"#) else { panic!("a map") };
        assert_eq!(map, [("b".into(), Node::Int(3)), ("a".into(), Node::Int(2))]);
        assert!(read("[".repeat(10_000).as_bytes()).is_err(), "deep nesting is refused");
    }
}
