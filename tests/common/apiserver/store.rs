//! Everything the server knows: objects, and the history of their changes, which watches read.
//!
//! One revision counts all changes. A change holds the object before and after it, so that a watch can tell what entered
//! and left its selector, and a list can go on as of its first page. A watch has a place in the history and nothing else:
//! what a slow client has not read yet costs no memory of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use serde_json::{Value, json};

use super::failure::{Failure, Outcome};
use super::pki::{base64_url, unbase64_url};
use super::resource::{Query, Resource, Selector, named};

/// Changes that watches can still be told. Full: the oldest goes, and who had not read it is told to begin anew.
const HISTORY_MAX: usize = 10_000;

/// Namespace (or nothing) and name.
pub type Key = (String, String);
pub type Object = Arc<Value>;

#[derive(Default)]
pub struct Store {
    objects: BTreeMap<&'static str, BTreeMap<Key, Object>>,
    history: VecDeque<Change>,
    revision: u64,
    /// Who asks for what follows an older revision is told that it is gone.
    compacted: u64,
    /// The history begins behind this revision.
    forgotten: u64,
    /// Of watches that have told all there is.
    wakers: BTreeMap<u64, Waker>,
    /// What `kube-root-ca.crt` holds.
    pub root_ca: String,
    /// Pods get a volume with a token, and their service account has to be there.
    pub admits_accounts: bool,
    names: u64,
}

struct Change {
    revision: u64,
    resource: &'static str,
    before: Option<Object>,
    after: Option<Object>,
}

/// What a list or watch is about.
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

/// What a watch tells: `ADDED`, `MODIFIED` or `DELETED`, and the object.
pub struct Told {
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

    /// All that the scope holds, by namespace and name.
    pub fn all(&self, scope: &Scope) -> Vec<Object> {
        let objects = self.objects.get(scope.resource.plural).into_iter().flat_map(BTreeMap::values);
        objects.filter(|object| scope.holds(object)).cloned().collect()
    }

    /// As of an earlier revision: the changes since then are taken back.
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

    /// A list as it is answered.
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
            // The real server's items leave out what the list says once.
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

    /// Whether a watch may begin behind this revision.
    pub fn watchable(&self, since: u64) -> Outcome<()> {
        let begin = self.compacted.max(self.forgotten);
        if since < begin { Err(Failure::too_old(since, begin)) } else { Ok(()) }
    }

    /// The first change behind `since` that concerns the scope. `Err`: the history does not reach back so far any more.
    pub fn next(&self, scope: &Scope, since: u64) -> Outcome<Option<Told>> {
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
                // Gone, or gone out of the selector: the last state that was in it, at this revision.
                (Some(before), None) => {
                    let mut object = Value::clone(before);
                    object["metadata"]["resourceVersion"] = change.revision.to_string().into();
                    ("DELETED", Arc::new(object))
                }
            };
            Some(Told { revision: change.revision, kind, object })
        }))
    }

    /// Wakes this watch with the next change, or when the test wants something of it.
    pub fn wake_later(&mut self, watch: u64, waker: &Waker) {
        self.wakers.insert(watch, waker.clone());
    }

    pub fn forget_waker(&mut self, watch: u64) {
        self.wakers.remove(&watch);
    }

    pub fn wake(&mut self) {
        std::mem::take(&mut self.wakers).into_values().for_each(Waker::wake);
    }

    /// No revision that anybody has seen can be gone on from any more; who watches already goes on.
    pub fn compact(&mut self) {
        self.revision += 1;
        self.compacted = self.revision;
    }

    /// How many objects there are.
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

    /// Takes the object out; it is there.
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

    /// Five characters, as behind generated names; no two alike.
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

/// Of the table; the plural is one of ours.
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
