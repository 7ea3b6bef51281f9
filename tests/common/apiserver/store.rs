//! The server's objects, and the history of their changes, which watches read.
//!
//! One revision counts all changes. A change has the object before and after it, so that a watch can report what entered and
//! left its selector, and a paginated list can continue at its first page's revision. A watch has only a position in the
//! history: unread events of a slow client take no memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use serde_json::{Value, json};

use super::failure::{Failure, Outcome};
use super::pki::{base64_url, unbase64_url};
use super::resource::{Query, Resource, Selector, named};

/// Changes in the history. Full: the oldest is dropped, and a watch that has not read it fails.
const HISTORY_MAX: usize = 10_000;

/// Namespace (or empty) and name.
pub type Key = (String, String);
pub type Object = Arc<Value>;

#[derive(Default)]
pub struct Store {
    objects: BTreeMap<&'static str, BTreeMap<Key, Object>>,
    history: VecDeque<Change>,
    revision: u64,
    /// A watch from an older revision fails.
    compacted: u64,
    /// The history begins after this revision.
    forgotten: u64,
    /// Wakers of watches without unread changes.
    wakers: BTreeMap<u64, Waker>,
    /// Content of `kube-root-ca.crt`.
    pub root_ca: String,
    /// Pods get a volume with a token, and need their service account.
    pub admits_accounts: bool,
    names: u64,
}

struct Change {
    revision: u64,
    resource: &'static str,
    before: Option<Object>,
    after: Option<Object>,
}

/// The scope of a list or watch.
#[derive(Clone, Debug)]
pub struct Scope {
    pub resource: &'static Resource,
    /// Empty: all.
    pub namespace: String,
    pub selector: Selector,
}

impl Scope {
    fn holds(&self, object: &Object) -> bool {
        let namespace = text(object, "/metadata/namespace");
        (self.namespace.is_empty() || namespace == self.namespace) && self.selector.matches(object)
    }
}

/// A watch event: `ADDED`, `MODIFIED` or `DELETED`, and the object.
pub struct WatchEvent {
    pub revision: u64,
    pub kind: &'static str,
    pub object: Object,
}

impl Store {
    pub fn revision(&self) -> u64 {
        self.revision
    }

    // ---- reading -------------------------------------------------------------------------------------

    pub fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Object> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.get(resource.plural)?.get(&key).cloned()
    }

    pub fn read(&self, resource: &Resource, namespace: &str, name: &str) -> Outcome<Object> {
        self.find(resource, namespace, name).ok_or_else(|| Failure::not_found(resource, name))
    }

    /// All objects in the scope, by namespace and name.
    pub fn all(&self, scope: &Scope) -> Vec<Object> {
        let objects = self.objects.get(scope.resource.plural).into_iter().flat_map(BTreeMap::values);
        objects.filter(|object| scope.holds(object)).cloned().collect()
    }

    /// At an earlier revision: later changes are undone.
    fn as_of(&self, scope: &Scope, revision: u64) -> Vec<Object> {
        let mut objects = self.objects.get(scope.resource.plural).cloned().unwrap_or_default();
        let since = self.history.iter().rev().take_while(|change| change.revision > revision);
        for change in since.filter(|change| change.resource == scope.resource.plural) {
            match (&change.before, &change.after) {
                (Some(before), _) => drop(objects.insert(key_of(before), before.clone())),
                (None, Some(after)) => drop(objects.remove(&key_of(after))),
                (None, None) => {}
            }
        }
        objects.into_values().filter(|object| scope.holds(object)).collect()
    }

    /// The response to a list.
    pub fn list(&self, scope: &Scope, query: &Query) -> Outcome<Value> {
        let resource = scope.resource;
        let (revision, objects) = match &query.continued {
            Some(token) => {
                let (revision, start) = unpacked(token)
                    .ok_or_else(|| Failure::bad_request("continue key is not valid: wrong encoding"))?;
                if revision < self.compacted.max(self.forgotten) {
                    return Err(Failure::expired(
                        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
                    ));
                }
                let mut objects = self.as_of(scope, revision);
                objects.retain(|object| key_of(object) > start);
                (revision, objects)
            }
            None => {
                if let Some(asked) = query.resource_version.filter(|asked| *asked > self.revision) {
                    return Err(Failure::too_new(asked, self.revision));
                }
                (self.revision, self.all(scope))
            }
        };
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let limit = query.limit.unwrap_or(objects.len());
        if let Some(last) = objects.get(..limit).filter(|_| objects.len() > limit).and_then(<[_]>::last) {
            metadata["continue"] = packed(revision, &key_of(last)).into();
            metadata["remainingItemCount"] = (objects.len() - limit).into();
        }
        let items = objects.iter().take(limit).map(|object| {
            let mut item = Value::clone(object);
            // The real server's items omit what the list has.
            if let Some(fields) = item.as_object_mut() {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            item
        });
        Ok(json!({
            "kind": format!("{}List", resource.kind),
            "apiVersion": resource.api_version(),
            "metadata": metadata,
            "items": items.collect::<Vec<_>>(),
        }))
    }

    // ---- watching ------------------------------------------------------------------------------------

    /// True when a watch can begin after this revision.
    pub fn watchable(&self, since: u64) -> Outcome<()> {
        let begin = self.compacted.max(self.forgotten);
        if since < begin { Err(Failure::too_old(since, begin)) } else { Ok(()) }
    }

    /// The first change after `since` in the scope. `Err`: it is no longer in the history.
    pub fn next(&self, scope: &Scope, since: u64) -> Outcome<Option<WatchEvent>> {
        if since < self.forgotten {
            return Err(Failure::too_old(since, self.forgotten));
        }
        let from = self.history.partition_point(|change| change.revision <= since);
        let changes = self.history.range(from..);
        let mut of_scope = changes.filter(|change| change.resource == scope.resource.plural);
        Ok(of_scope.find_map(|change| {
            let before = change.before.as_ref().filter(|object| scope.holds(object));
            let after = change.after.as_ref().filter(|object| scope.holds(object));
            let (kind, object) = match (before, after) {
                (None, None) => return None,
                (None, Some(after)) => ("ADDED", after.clone()),
                (Some(_), Some(after)) => ("MODIFIED", after.clone()),
                // Removed, or no longer selected: the last selected state, at this revision.
                (Some(before), None) => {
                    let mut object = Value::clone(before);
                    object["metadata"]["resourceVersion"] = change.revision.to_string().into();
                    ("DELETED", Arc::new(object))
                }
            };
            Some(WatchEvent { revision: change.revision, kind, object })
        }))
    }

    /// Registers the watch to be woken by the next change, or by a command of the test.
    pub fn wake_later(&mut self, watch: u64, waker: &Waker) {
        self.wakers.insert(watch, waker.clone());
    }

    pub fn forget_waker(&mut self, watch: u64) {
        self.wakers.remove(&watch);
    }

    pub fn wake(&mut self) {
        std::mem::take(&mut self.wakers).into_values().for_each(Waker::wake);
    }

    /// No earlier revision can be watched from now on; open watches continue.
    pub fn compact(&mut self) {
        self.revision += 1;
        self.compacted = self.revision;
    }

    /// Its data come from a backup of an earlier revision: nobody knows later ones any more.
    pub fn restore(&mut self, revision: u64) {
        assert!(revision < self.revision);
        self.revision = revision;
        self.history.clear();
        (self.compacted, self.forgotten) = (0, revision);
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.values().map(BTreeMap::len).sum()
    }

    /// The kinds and objects of a namespace.
    pub fn inside(&self, namespace: &str) -> Vec<(&'static str, Object)> {
        let all = self
            .objects
            .iter()
            .flat_map(|(plural, objects)| objects.iter().map(move |found| (*plural, found)));
        let inside = all.filter(|(_, ((of, _), _))| of == namespace);
        inside.map(|(plural, (_, object))| (plural, object.clone())).collect()
    }

    // ---- changes -------------------------------------------------------------------------------------

    /// Removes an existing object.
    pub fn remove(&mut self, resource: &'static Resource, object: &Object) -> Object {
        let key = key_of(object);
        self.revision += 1;
        if let Some(before) = self.objects.entry(resource.plural).or_default().remove(&key) {
            self.record(resource, Some(before), None);
        }
        if resource.plural == "pods" {
            self.end_namespace(&key.0);
        }
        object.clone()
    }

    pub fn write(&mut self, resource: &'static Resource, mut object: Value) -> Object {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let object = Arc::new(object);
        let before = self.objects.entry(resource.plural).or_default().insert(key_of(&object), object.clone());
        self.record(resource, before, Some(object.clone()));
        object
    }

    fn record(&mut self, resource: &'static Resource, before: Option<Object>, after: Option<Object>) {
        self.history.push_back(Change { revision: self.revision, resource: resource.plural, before, after });
        if self.history.len() > HISTORY_MAX
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        self.wake();
    }

    /// Suffix of a generated name: five characters, unique.
    pub fn suffix(&mut self) -> String {
        const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut rest = usize::try_from(self.names).unwrap_or(0);
        self.names += 1;
        let mut text = String::new();
        for _ in 0..5 {
            text.insert(0, char::from(ALPHABET[rest % ALPHABET.len()]));
            rest /= ALPHABET.len();
        }
        text
    }
}

/// The resource of that plural, which must exist.
pub fn known(plural: &str) -> &'static Resource {
    named(plural).expect("it stands in the table of resources")
}

/// The text at this JSON pointer; empty without one.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn key_of(object: &Value) -> Key {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

fn packed(revision: u64, (namespace, name): &Key) -> String {
    base64_url(
        json!({"v": "meta.k8s.io/v1", "rv": revision, "start": [namespace, name]}).to_string().as_bytes(),
    )
}

fn unpacked(token: &str) -> Option<(u64, Key)> {
    let token: Value = serde_json::from_slice(&unbase64_url(token)?).ok()?;
    let part = |index: usize| Some(token["start"].get(index)?.as_str()?.to_owned());
    Some((token["rv"].as_u64()?, (part(0)?, part(1)?)))
}
