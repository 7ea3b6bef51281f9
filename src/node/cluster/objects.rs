//! The objects that this node's pods reference in the API server: which ConfigMaps, Secrets and tokens are watched, and their
//! states.
//!
//! A pod of the API server starts when each of its objects was looked up, whether it exists or not: otherwise its first start
//! would fail. A pod that runs already is not held back. Objects that only ended pods reference are dropped (`UnregisterPod`).
//!
//! The number of objects and their bytes are bounded. Running pods' objects have precedence, then those that are watched
//! already, then the rest; a pod whose objects have no room says so in its status and waits, even if they are optional.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::offline::OfflineCopy;
use crate::admit::chooses;
use crate::cri::Runtime;
use crate::kube::{Client, Watches};
use crate::limits::{KUBE_OBJECTS_BYTES_MAX, KUBE_OBJECTS_MAX};
use crate::model::desired::{CLAIM_NOT_FETCHED, Claimed, ClaimedSource, ClassHandler};
use crate::model::object::{
    ClaimedVolume, TokenRequest, claim_of, class_of, named_by, services_of, tokens_of,
};
use crate::model::{Mono, Object, ObjectKey, ObjectKind, PodKey, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::node::effects::{Effect, Effects, Tasks};
use crate::node::pods::Pods;
use crate::render::admission;
use crate::source::api_claims::keep_claim;
use crate::source::api_objects::{ObjectState, ObjectStates, follow_object, keep_token};
use crate::source::object::cost;
use crate::source::{Origin, SourceUpdate, SourcedObject, SourcedPod, api};
use crate::store::offline::content::name_of;
use crate::store::offline::folder::Content;
use crate::sync::worker::Life;

/// The watched objects.
pub(super) struct ApiObjects {
    found: ObjectStates,
    /// A task for each object; dropping it ends the watch.
    tasks: SortedMap<ObjectKey, smol::Task<()>>,
    /// The objects' states; `None` = it does not exist.
    known: SortedMap<ObjectKey, Option<SourcedObject>>,
    /// The offline copy's objects, until the API server sends its pods; bounded by the folder.
    offline: SortedMap<ObjectKey, Option<Object>>,
    /// Those of `known` that come from the offline copy and that the API server has not confirmed.
    unconfirmed: SortedSet<ObjectKey>,
    /// Objects that exist and had no room, with their sizes in bytes: they are not watched.
    too_large: SortedMap<ObjectKey, usize>,
    watches: Watches,
    /// The objects of each pod that waits for an unknown one, and the objects of all other pods, in the last update.
    waiting: Vec<SortedSet<ObjectKey>>,
    others: SortedSet<ObjectKey>,
    /// The API server's last update, or, not complete, the one of the offline copy.
    last: Option<SourceUpdate>,
    origin: Arc<str>,
    said_full: bool,
}

impl ApiObjects {
    pub(super) fn new(found: ObjectStates) -> Self {
        Self {
            found,
            tasks: SortedMap::new(),
            known: SortedMap::new(),
            offline: SortedMap::new(),
            unconfirmed: SortedSet::new(),
            too_large: SortedMap::new(),
            watches: Watches::default(),
            waiting: Vec::new(),
            others: SortedSet::new(),
            last: None,
            origin: Arc::from(api::ORIGIN),
            said_full: false,
        }
    }

    /// Number of watched objects, and bytes of the known ones.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.tasks.len(), self.bytes())
    }

    /// The object, if it is known.
    pub(super) fn object_of(&self, key: &ObjectKey) -> Option<&Object> {
        let known = self.known.get(key).filter(|_| !self.unconfirmed.contains(key))?;
        known.as_ref().map(|sourced| &sourced.object)
    }

    fn sourced(&self, object: Object) -> SourcedObject {
        SourcedObject { object, origin: Origin { file: self.origin.clone(), document: 1 } }
    }

    /// Takes the object from the offline copy, unless it is known already.
    fn load_offline(&mut self, key: &ObjectKey) {
        if self.known.contains_key(key) {
            return;
        }
        let Some(kept) = self.offline.remove(key) else { return };
        let fits = self.bytes() + kept.as_ref().map_or(0, cost) <= KUBE_OBJECTS_BYTES_MAX;
        if fits {
            let sourced = kept.map(|object| self.sourced(object));
            self.known.insert(key.clone(), sourced);
            self.unconfirmed.insert(key.clone());
        }
    }

    fn bytes(&self) -> usize {
        self.known.values().flatten().map(|sourced| cost(&sourced.object)).sum()
    }

    /// The handler of the runtime class.
    fn handler(&self, class: &ObjectKey) -> ClassHandler {
        match self.known.get(class).and_then(|known| known.as_ref()).map(|sourced| &sourced.object) {
            Some(Object::RuntimeClass(class)) => ClassHandler::Of(class.handler.clone()),
            Some(_) | None => ClassHandler::Missing,
        }
    }

    /// The volumes of the pod's claims.
    ///
    /// A claim that the pod `had` keeps its volume: the node's labels may have changed while the pod runs.
    fn claims(
        &self,
        pod: &Pod,
        labels: Option<&BTreeMap<String, String>>,
        had: &[(Box<str>, Claimed)],
    ) -> Vec<(Box<str>, Claimed)> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claimed = volumes.filter_map(|volume| {
            let source = volume.persistent_volume_claim.as_ref()?;
            if let Some(kept) = had.iter().find(|(name, path)| **name == *volume.name && path.is_ok()) {
                return Some(kept.clone());
            }
            let key = ObjectKey::of(pod, ObjectKind::Claim, &claim_of(pod, &source.claim_name));
            let known = self.known.get(&key).and_then(|known| known.as_ref()).map(|sourced| &sourced.object);
            let found = match known {
                Some(Object::Claim(claim)) => claim.volume.clone(),
                Some(_) | None => Err(CLAIM_NOT_FETCHED.into()),
            };
            let is_reachable = |of: &ClaimedVolume| match (&of.nodes, labels) {
                (Some(nodes), Some(labels)) => chooses(nodes, labels),
                (Some(_), None) | (None, _) => true,
            };
            let path = found.and_then(|of| {
                if !is_reachable(&of) {
                    let why = format!(
                        "MountVolume.NodeAffinity check failed for volume {:?} : no matching NodeSelectorTerms",
                        of.name
                    );
                    return Err(why.into());
                }
                let read_only = source.read_only == Some(true);
                Ok(ClaimedSource { volume: of, read_only })
            });
            Some((volume.name.as_str().into(), path))
        });
        claimed.collect()
    }

    /// The bytes of the known object.
    fn bytes_of(&self, key: &ObjectKey) -> usize {
        self.known.get(key).and_then(|known| known.as_ref()).map_or(0, |sourced| cost(&sourced.object))
    }

    /// An object of that many bytes has room in place of the known one.
    fn has_room(&self, key: &ObjectKey, bytes: usize) -> bool {
        self.bytes() - self.bytes_of(key) + bytes <= KUBE_OBJECTS_BYTES_MAX
    }

    /// Some of these objects are unknown because there is no room for them.
    fn lacks_room(&self, keys: &SortedSet<ObjectKey>) -> bool {
        keys.iter().any(|key| self.too_large.contains_key(key) && !self.known.contains_key(key))
    }

    /// Logged once, until there is room again.
    fn log_full(&mut self, pod: Option<&PodKey>) {
        match pod {
            None => self.said_full = false,
            Some(_) if self.said_full => {}
            Some(pod) => {
                self.said_full = true;
                log::warn!("pod {pod} and perhaps others: {}", admission::TOO_MANY_OBJECTS);
            }
        }
    }

    /// The API server's last update, or, not complete, the one of the offline copy.
    pub(super) fn last_update(&self) -> Option<&SourceUpdate> {
        self.last.as_ref()
    }

    /// Sets the update: the API server's, or the one of the offline copy.
    pub(super) fn set_update(&mut self, update: &SourceUpdate) {
        self.last = Some(update.clone());
    }

    /// Sets the offline copy's objects.
    pub(super) fn set_offline(&mut self, objects: SortedMap<ObjectKey, Option<Object>>) {
        self.offline = objects;
    }

    /// Watches the objects that the update's pods reference, adds the known ones to the update, and removes the pods that have
    /// to wait for theirs. Returns the pods whose objects are all known.
    pub(super) fn follow<R: Runtime + 'static>(
        &mut self,
        update: &mut SourceUpdate,
        client: &Client,
        pods: &Pods<R>,
        tasks: &Tasks,
    ) -> SortedSet<PodUid> {
        let mut named = named_in(update, self, pods);
        let (needed, token_requests) = choose_objects(&mut named, update);
        self.drop_others(&needed);
        if update.complete {
            self.offline = SortedMap::new();
        }
        self.watch(needed, token_requests, client, tasks);
        self.add_known_objects(update, pods);
        self.remove_waiting(named, update, pods);
        let is_known =
            |pod: &SourcedPod| named_by(&pod.pod.pod).iter().all(|key| self.known.contains_key(key));
        let known = update.pods.iter().filter(|pod| is_known(pod));
        known.map(|pod| pod.pod.key.uid.clone()).collect()
    }

    /// Ends the watches of all objects but the needed ones, and drops their states.
    fn drop_others(&mut self, needed: &SortedSet<ObjectKey>) {
        self.tasks.retain(|key, _| needed.contains(key));
        self.known.retain(|key, _| needed.contains(key));
        self.unconfirmed.retain(|key| needed.contains(key));
        self.too_large.retain(|key, _| needed.contains(key));
    }

    /// Starts a task for each needed object that has none, unless the object is too large for the room that is left.
    fn watch(
        &mut self,
        needed: SortedSet<ObjectKey>,
        mut token_requests: TokenRequests,
        client: &Client,
        tasks: &Tasks,
    ) {
        for key in needed {
            self.load_offline(&key);
            if self.tasks.contains_key(&key) {
                continue;
            }
            if let Some(bytes) = self.too_large.get(&key).copied() {
                if !self.has_room(&key, bytes) {
                    continue;
                }
                self.too_large.remove(&key);
            }
            let found = self.found.clone();
            let task = match token_requests.remove(&key) {
                Some((pod, request)) => tasks.run(
                    "service account token",
                    keep_token(client.clone(), pod, key.clone(), request, found),
                ),
                None if key.kind == ObjectKind::Claim => {
                    tasks.run("volume claim", keep_claim(client.clone(), key.clone(), found))
                }
                None => {
                    let watches = self.watches.clone();
                    tasks.run("object watch", follow_object(client.clone(), key.clone(), watches, found))
                }
            };
            self.tasks.insert(key, task);
        }
    }

    /// Adds the known objects, and each pod's claims and runtime handler, to the update.
    fn add_known_objects<R: Runtime + 'static>(&self, update: &mut SourceUpdate, pods: &Pods<R>) {
        update.objects = self.known.values().flatten().cloned().collect();
        let labels = pods.room().labels();
        for sourced in &mut update.pods {
            let had = pods.desired().pod(&sourced.pod.key.uid).map(|entry| &*entry.wanted.pod.claims);
            sourced.pod.claims = self.claims(&sourced.pod.pod, labels, had.unwrap_or_default());
            if let Some(class) = class_of(&sourced.pod.pod) {
                sourced.pod.handler = self.handler(&class);
            }
            sourced.pod.pod.pack();
        }
    }

    /// Removes from the update the new pods whose objects are not all known, and marks those whose objects have no room.
    fn remove_waiting<R: Runtime + 'static>(
        &mut self,
        named: Vec<Named>,
        update: &mut SourceUpdate,
        pods: &Pods<R>,
    ) {
        let relist = pods.relist();
        let (desired, complete) = (pods.desired(), update.complete);
        // A pod in the API server's update starts with the API server's objects.
        let is_known =
            |key: &ObjectKey| self.known.contains_key(key) && !(complete && self.unconfirmed.contains(key));
        let (mut waits, mut first_full) = (vec![false; update.pods.len()], None);
        let (mut waiting, mut others) = (Vec::new(), SortedSet::new());
        for Named { place, keys, is_left_out, .. } in named {
            let pod = &mut update.pods[place].pod;
            pod.too_many_objects = is_left_out || self.lacks_room(&keys);
            if pod.too_many_objects {
                first_full.get_or_insert_with(|| pod.key.clone());
            }
            let uid = &pod.key.uid;
            waits[place] = !pod.too_many_objects
                && desired.pod(uid).is_none()
                && relist.is_some_and(|relist| !relist.pods.contains_key(uid))
                && !keys.iter().all(is_known);
            if waits[place] {
                waiting.push(keys);
            } else {
                others.extend(keys);
            }
        }
        self.log_full(first_full.as_ref());
        (self.waiting, self.others) = (waiting, others);
        let mut waits = waits.into_iter();
        update.pods.retain(|_| waits.next() != Some(true));
    }

    /// Objects have changed: they are passed to their pods.
    pub(super) fn take(&mut self, kept: &mut OfflineCopy, now: Mono, out: &mut Effects) {
        // A pod may wait for hundreds of objects: until the last of them is known there is nothing to do.
        let mut is_due = false;
        for (key, sought) in self.found.take() {
            is_due |= self.others.contains(&key);
            if !self.tasks.contains_key(&key) {
                continue;
            }
            let was_kept = self.unconfirmed.contains(&key);
            let (object, is_word) = match sought {
                ObjectState::Present(object) => (Some(object), true),
                ObjectState::Missing => (None, true),
                // A failed request removes nothing.
                ObjectState::Refused if was_kept => {
                    self.unconfirmed.remove(&key);
                    continue;
                }
                ObjectState::Refused => (None, false),
            };
            let bytes = object.as_ref().map_or(0, cost);
            if bytes > 0 && !self.has_room(&key, bytes) {
                // The watch would keep it in memory: the watch ends, and the known state stays.
                self.tasks.remove(&key);
                self.too_large.insert(key, bytes);
                is_due = true;
                continue;
            }
            self.unconfirmed.remove(&key);
            if is_word {
                kept.put(name_of(&key), Content::Object(object.clone()), now);
            }
            let sourced = object.map(|object| self.sourced(object));
            self.known.insert(key, sourced);
        }
        let known = &self.known;
        let is_known = |key: &ObjectKey| known.contains_key(key);
        if is_due || self.waiting.iter().any(|keys| keys.iter().all(is_known)) {
            out.push(Effect::AdmitAgain);
        }
    }
}

/// Requests of service account tokens, each with its pod's name.
type TokenRequests = SortedMap<ObjectKey, (Box<str>, TokenRequest)>;

/// The objects of one pod of an update.
struct Named {
    /// Index of the pod in the update.
    place: usize,
    /// 0: it runs here; 1: its objects are watched; 2: neither.
    rank: u8,
    keys: SortedSet<ObjectKey>,
    /// There is no room for them.
    is_left_out: bool,
}

/// The objects to watch, within the limit of their number, and the requests of those that are tokens. Marks the pods whose
/// objects have no room.
fn choose_objects(named: &mut [Named], update: &SourceUpdate) -> (SortedSet<ObjectKey>, TokenRequests) {
    let mut requests = TokenRequests::new();
    let mut needed: SortedSet<ObjectKey> = SortedSet::new();
    for Named { place, keys, is_left_out, .. } in named {
        let further = keys.iter().filter(|key| !needed.contains(*key)).count();
        *is_left_out = needed.len() + further > KUBE_OBJECTS_MAX;
        if !*is_left_out {
            needed.extend(keys.iter().cloned());
            let pod = &update.pods[*place].pod;
            let opened = pod.pod.open();
            let of = |(key, request)| (key, (pod.key.name.as_ref().into(), request));
            requests.extend(tokens_of(&opened).map(of));
        }
    }
    (needed, requests)
}

/// The objects that a pod needs before it starts.
pub(super) fn wanted_by(pod: &Pod) -> impl Iterator<Item = ObjectKey> {
    named_by(pod).into_iter().chain(services_of(pod)).chain(class_of(pod))
}

/// The objects of the update's pods, in the order of precedence.
fn named_in<R: Runtime + 'static>(update: &SourceUpdate, objects: &ApiObjects, pods: &Pods<R>) -> Vec<Named> {
    let relist = pods.relist();
    let is_alive = |uid: &PodUid| {
        let observed = pods.get(uid).and_then(|record| record.worker().observed());
        observed.is_some_and(|observed| observed.is_alive())
    };
    let named = update.pods.iter().enumerate().map(|(place, sourced)| {
        let uid = &sourced.pod.key.uid;
        // An ended pod needs none (`UnregisterPod`).
        let has_ended = pods.get(uid).is_some_and(|record| record.worker().life() == Life::Ended);
        let is_over = has_ended || update.server.over.contains(uid) && !is_alive(uid);
        // The key of the watch's task, if there is one: keys allocated with each update would fragment the heap.
        let same = |key: ObjectKey| match objects.tasks.get_key_value(&key) {
            Some((known, _)) => known.clone(),
            None => key,
        };
        let keys: SortedSet<ObjectKey> =
            if is_over { SortedSet::new() } else { wanted_by(&sourced.pod.pod.open()).map(same).collect() };
        let entry = pods.desired().pod(uid).filter(|entry| !entry.wanted.pod.too_many_objects);
        let runs = entry.is_some() || relist.is_some_and(|relist| relist.pods.contains_key(uid));
        let is_followed = keys.iter().all(|key| objects.tasks.contains_key(key));
        let rank = if runs { 0 } else { 2 - u8::from(is_followed) };
        Named { place, rank, keys, is_left_out: false }
    });
    let mut named: Vec<Named> = named.collect();
    // A stable sort.
    named.sort_by_key(|named| named.rank);
    named
}
