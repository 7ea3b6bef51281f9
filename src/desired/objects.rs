//! Merges the sources' ConfigMaps and Secrets into one set, with the sides of manifests and of the API server apart. PURE.
//!
//! | situation | result |
//! |---|---|
//! | a manifest and the API server have one of the same name | both are kept: each is for the pods of its side |
//! | two documents have the same object | the one already in use stays, the other is a problem naming both |
//! | an immutable object's content has changed | it stays unchanged, with a problem |
//! | a source is incomplete (invalid or unreadable manifest) | a missing object of its side is held, if a pod references it |

use super::Source;
use super::update::{Problem, SourcedObject};
use crate::limits;
use crate::model::{ObjectKey, Side, SortedMap, SortedSet};

pub(super) type MergedObjects = SortedMap<ObjectKey, SourcedObject>;

/// The current objects, and the problems of merging them. `named` are those that desired pods reference: no others are held, so
/// that their number stays bounded while objects change.
pub(super) fn merge(
    before: &MergedObjects,
    sources: &[Source],
    named: &SortedSet<ObjectKey>,
) -> (MergedObjects, Vec<Problem>) {
    let (mut after, mut problems) = (MergedObjects::new(), Vec::new());
    let mut candidates: Vec<(ObjectKey, &SourcedObject)> = sources
        .iter()
        .flat_map(|source| source.objects.iter().map(|candidate| (source.side(), candidate)))
        .map(|(side, candidate)| (candidate.object.key(side), candidate))
        .collect();
    // Stable: the others stay in the order of sources, files and documents.
    candidates.sort_by_key(|(key, new)| before.get(key).is_none_or(|old| old.origin != new.origin));
    for (key, new) in candidates {
        if let Some(other) = after.get(&key) {
            let message = format!("is in {} too, which stays; remove it from one of them", other.origin);
            refuse(&mut problems, &key, new, message);
            continue;
        }
        let mut new = new.clone();
        if let Some(old) =
            before.get(&key).filter(|old| old.object.is_immutable() && old.object != new.object)
        {
            let message = "is immutable and stays as it was; give what is changed another name";
            refuse(&mut problems, &key, &new, message.into());
            new.object = old.object.clone();
        }
        after.insert(key, new);
    }
    let is_complete = |side| {
        sources.iter().filter(|source| source.side() == side).all(|source| source.settled && source.complete)
    };
    for side in [Side::Manifests, Side::ApiServer].into_iter().filter(|side| !is_complete(*side)) {
        for (key, old) in before.iter().filter(|(key, _)| key.side == side && named.contains(*key)) {
            after.entry(key.clone()).or_insert_with(|| old.clone());
        }
    }
    (after, problems)
}

fn refuse(problems: &mut Vec<Problem>, key: &ObjectKey, of: &SourcedObject, message: String) {
    if problems.len() < limits::PROBLEMS_MAX {
        problems.push(Problem {
            document: Some(of.origin.document),
            object: Some(key.to_string().into()),
            ..Problem::of_file(&of.origin.file, message)
        });
    }
}

/// Keys of objects that were added, removed or changed.
pub(super) fn changes<'a>(
    before: &'a MergedObjects,
    after: &'a MergedObjects,
) -> impl Iterator<Item = &'a ObjectKey> {
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let new = after.iter().filter(|(key, new)| before.get(*key).is_none_or(|old| old.object != new.object));
    gone.chain(new.map(|(key, _)| key))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::update::{API, Origin, ServerPods, SourceUpdate, SourceUsage, SourcedPod};
    use super::*;
    use crate::desired::{Change, Desired};
    use crate::model::{DesiredPod, Object, ObjectKind};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    /// `NAME VALUE FILE [immutable]`
    fn object(text: &str) -> SourcedObject {
        let words: Vec<&str> = text.split(' ').collect();
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": words[0], "namespace": "default"},
            "data": {"k": words[1]}, "immutable": words.len() > 3}))
        .unwrap();
        let origin = Origin { file: Arc::from(words[2]), document: 1 };
        SourcedObject { object: Object::ConfigMap(Arc::new(map)), origin }
    }

    /// A pod of that source that references the object `a`.
    fn pod(source: &str) -> SourcedPod {
        let annotations = json!({"kubernetes.io/config.source": source});
        let metadata =
            json!({"name": source, "namespace": "default", "uid": source, "annotations": annotations});
        let pod = json!({"metadata": metadata, "spec": {"containers": [],
            "volumes": [{"name": "v", "configMap": {"name": "a"}}]}});
        SourcedPod {
            pod: DesiredPod::new(serde_json::from_value(pod).unwrap()),
            origin: Origin { file: Arc::from("p"), document: 1 },
            config_hash: "h".into(),
            bytes: 0,
        }
    }

    /// Applies the objects; returns the changes, and the problems after them.
    fn apply(desired: &mut Desired, objects: &[&str], complete: bool) -> String {
        apply_of("file", desired, objects, complete)
    }

    fn apply_of(source: &'static str, desired: &mut Desired, objects: &[&str], complete: bool) -> String {
        let update = SourceUpdate {
            source,
            pods: vec![pod(source)],
            objects: objects.iter().map(|text| object(text)).collect(),
            problems: Vec::new(),
            complete,
            held: SourceUsage::default(),
            server: ServerPods::default(),
        };
        let changes = desired.apply(update, |_| false);
        let changed = changes.iter().filter_map(|change| match change {
            Change::Object(key) if (key.side == Side::ApiServer) == (source == API) => {
                Some(key.name.to_string())
            }
            Change::Object(key) => Some(format!("{key} of the other side")),
            _ => None,
        });
        let problems = desired.merge_problems().map(ToString::to_string);
        changed.chain(problems).collect::<Vec<_>>().join(" | ")
    }

    fn value(desired: &Desired, name: &str) -> Option<String> {
        value_for("file", desired, name)
    }

    /// The object's value for a pod of that source.
    fn value_for(source: &str, desired: &Desired, name: &str) -> Option<String> {
        let objects = desired.objects();
        let Object::ConfigMap(map) = objects.find(&pod(source).pod, ObjectKind::ConfigMap, name)? else {
            return None;
        };
        map.data.as_ref()?.get("k").cloned()
    }

    #[test]
    fn objects_come_change_and_go() {
        let mut desired = Desired::new(&["file"]);
        assert_eq!(apply(&mut desired, &["a 1 f", "b 1 f"], true), "a | b");
        assert_eq!(apply(&mut desired, &["a 2 f", "b 1 g"], true), "a", "another place is no change");
        assert_eq!(value(&desired, "a").as_deref(), Some("2"));
        assert_eq!(apply(&mut desired, &["a 2 f", "b 1 g", "c 1 g"], true), "c");
        assert_eq!(
            apply(&mut desired, &["b 1 g"], false),
            "c",
            "held while a manifest cannot be read, if named"
        );
        assert_eq!(value(&desired, "a").as_deref(), Some("2"));
        assert_eq!(apply(&mut desired, &["b 1 g"], true), "a");
        assert_eq!(value(&desired, "a"), None);
    }

    #[test]
    fn each_side_has_its_own_of_one_name() {
        let both = |desired: &Desired, name: &str| {
            [API, "file", "http"].map(|source| value_for(source, desired, name).unwrap_or_default())
        };
        let mut desired = Desired::new(&["file", "http", API]);
        assert_eq!(apply_of("file", &mut desired, &["a 1 f immutable", "m 1 f"], true), "a | m");
        assert_eq!(apply_of("http", &mut desired, &[], true), "");
        assert_eq!(both(&desired, "a"), ["", "1", "1"], "the server has none");
        assert_eq!(
            apply_of(API, &mut desired, &["a 2 s", "t 2 s"], true),
            "a | t",
            "neither stays for the other"
        );
        assert_eq!(both(&desired, "a"), ["2", "1", "1"]);
        assert_eq!(both(&desired, "m"), ["", "1", "1"]);
        assert_eq!(both(&desired, "t"), ["2", "", ""]);
        assert_eq!(apply_of(API, &mut desired, &["a 3 s"], true), "t | a");
        assert_eq!(both(&desired, "a"), ["3", "1", "1"], "the immutable one is another");
        // An object that is held on one side is not held on the other.
        apply_of("file", &mut desired, &[], false);
        assert_eq!(apply_of(API, &mut desired, &[], true), "a");
        assert_eq!(both(&desired, "a"), ["", "1", "1"]);
        assert_eq!(apply_of(API, &mut desired, &["a 4 s"], true), "a");
        assert_eq!(apply_of(API, &mut desired, &[], false), "");
        assert_eq!(apply_of("file", &mut desired, &[], true), "a");
        assert_eq!(both(&desired, "a"), ["4", "", ""]);
        // A directory and a URL are on the same side: only one of the objects stays.
        assert_eq!(apply_of("http", &mut desired, &["a 5 u"], true), "a");
        let problems = apply_of("file", &mut desired, &["a 6 f"], true);
        assert!(
            problems.starts_with("f: document 1: ConfigMap default/a: is in u (document 1) too"),
            "{problems}"
        );
        assert_eq!(both(&desired, "a"), ["4", "5", "5"]);
    }

    #[test]
    fn of_two_the_one_in_use_stays_and_both_are_named() {
        let mut desired = Desired::new(&["file"]);
        apply(&mut desired, &["a 1 new"], true);
        let problems = apply(&mut desired, &["a 2 before", "a 1 new"], true);
        assert_eq!(
            problems,
            "before: document 1: ConfigMap default/a: is in new (document 1) too, which stays; remove it from one of them"
        );
        assert_eq!(value(&desired, "a").as_deref(), Some("1"));
        assert_eq!(apply(&mut desired, &["a 2 before"], true), "a", "the other takes its place");
    }

    #[test]
    fn an_immutable_object_stays_as_it_was() {
        let mut desired = Desired::new(&["file"]);
        apply(&mut desired, &["a 1 f immutable"], true);
        for other in ["a 2 f immutable", "a 1 f"] {
            let problems = apply(&mut desired, &[other], true);
            assert_eq!(
                problems,
                "f: document 1: ConfigMap default/a: is immutable and stays as it was; give what is changed another name"
            );
            assert_eq!(value(&desired, "a").as_deref(), Some("1"));
        }
        assert_eq!(apply(&mut desired, &[], true), "a");
        assert_eq!(apply(&mut desired, &["a 2 f"], true), "a", "gone and made anew");
    }
}
