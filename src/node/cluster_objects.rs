//! What this node's pods name in the cluster: which ConfigMaps, Secrets and tokens are followed, and what was found.
//!
//! A pod that came from the API server begins when each of them was looked for, whether it is there or not: else it would
//! begin with a failure. One that is here already is not held back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::agent::Agent;
use crate::admit::chooses;
use crate::cri::Runtime;
use crate::limits::{KUBE_OBJECTS_BYTES_MAX, KUBE_OBJECTS_MAX, KUBE_WATCHES_MAX};
use crate::model::desired::{Claimed, ClaimedSource, ClassHandler, UNTOLD};
use crate::model::object::{ClaimedVolume, TokenWish, claim_of, class_of, named_by, services_of, tokens_of};
use crate::model::{Object, ObjectKey, ObjectKind, PodUid};
use crate::source::api_claims::keep_claim;
use crate::source::api_objects::{Found, Sought, follow_object, keep_token};
use crate::source::identity::is_of_api_server;
use crate::source::object::cost;
use crate::source::{Origin, SourceUpdate, SourcedObject, api};
use crate::store::keep::content::name_of;
use crate::store::keep::folder::Content;

/// What is followed.
pub(super) struct Following {
    found: Found,
    /// One for each object; dropping it ends it.
    tasks: BTreeMap<ObjectKey, smol::Task<()>>,
    /// What was found of them; `None` = it is not there.
    known: BTreeMap<ObjectKey, Option<SourcedObject>>,
    /// What was known before the agent's start, while the server has not told its pods; bounded by the folder.
    pub(super) kept: BTreeMap<ObjectKey, Option<Object>>,
    /// Those of `known` that were kept, and of which the server has not said a word.
    unconfirmed: BTreeSet<ObjectKey>,
    /// The server's last word on pods, or, not complete, what was kept of it.
    pub(super) last: Option<SourceUpdate>,
    origin: Arc<str>,
    said_full: bool,
}

impl Following {
    pub(super) fn new(found: Found) -> Self {
        Self {
            found,
            tasks: BTreeMap::new(),
            known: BTreeMap::new(),
            kept: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            last: None,
            origin: Arc::from(api::ORIGIN),
            said_full: false,
        }
    }

    /// What is followed, and the bytes of what was found.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.tasks.len(), self.bytes())
    }

    /// The object, if the server has told it.
    pub(super) fn found_of(&self, key: &ObjectKey) -> Option<&Object> {
        let known = self.known.get(key).filter(|_| !self.unconfirmed.contains(key))?;
        known.as_ref().map(|sourced| &sourced.object)
    }

    fn sourced(&self, object: Object) -> SourcedObject {
        SourcedObject { object, origin: Origin { file: self.origin.clone(), document: 1 } }
    }

    /// Takes over what was kept of it, if nothing is known.
    fn recall(&mut self, key: &ObjectKey) {
        if self.known.contains_key(key) {
            return;
        }
        let Some(kept) = self.kept.remove(key) else { return };
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

    /// What the runtime class means.
    fn handler(&self, class: &ObjectKey) -> ClassHandler {
        match self.known.get(class).and_then(|known| known.as_ref()).map(|sourced| &sourced.object) {
            Some(Object::RuntimeClass(class)) => ClassHandler::Of(class.handler.clone()),
            Some(_) | None => ClassHandler::Missing,
        }
    }

    /// What the pod's claims have for it.
    ///
    /// What it `had` it keeps: the node may have other labels by now, and the pod runs.
    fn claims(
        &self,
        pod: &Pod,
        labels: Option<&BTreeMap<String, String>>,
        had: &[(Box<str>, Claimed)],
    ) -> Vec<(Box<str>, Claimed)> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claimed = volumes.filter_map(|volume| {
            let source = volume.persistent_volume_claim.as_ref()?;
            if let Some(kept) = had.iter().find(|(name, path)| **name == *volume.name && path.is_ok()) {
                return Some(kept.clone());
            }
            let key = ObjectKey::new(ObjectKind::Claim, namespace, &claim_of(pod, &source.claim_name));
            let known = self.known.get(&key).and_then(|known| known.as_ref()).map(|sourced| &sourced.object);
            let found = match known {
                Some(Object::Claim(claim)) => claim.volume.clone(),
                Some(_) | None => Err(UNTOLD.into()),
            };
            let here = |of: &ClaimedVolume| match (&of.nodes, labels) {
                (Some(nodes), Some(labels)) => chooses(nodes, labels),
                (Some(_), None) | (None, _) => true,
            };
            let path = found.and_then(|of| {
                if !here(&of) {
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

    /// Said once.
    fn full(&mut self, what: &ObjectKey) {
        if !std::mem::replace(&mut self.said_full, true) {
            log::warn!(
                "{what}: this node's pods name too much: at most {KUBE_OBJECTS_MAX} ConfigMaps, Secrets, tokens, claims and classes of \
                 {KUBE_OBJECTS_BYTES_MAX} bytes together are kept (said once)"
            );
        }
    }
}

/// What a pod needs to know of before it begins.
pub(super) fn wanted_by(pod: &Pod) -> impl Iterator<Item = ObjectKey> {
    named_by(pod).into_iter().chain(services_of(pod)).chain(class_of(pod))
}

impl<R: Runtime + 'static> Agent<R> {
    /// Follows what the update's pods name, adds what is known of it, and leaves out pods that have to wait for it.
    pub(super) fn follow_objects(&mut self, update: &mut SourceUpdate) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut wishes: BTreeMap<ObjectKey, (Box<str>, TokenWish)> = BTreeMap::new();
        let mut needed = BTreeSet::new();
        for sourced in &update.pods {
            needed.extend(wanted_by(&sourced.pod.pod));
            let name = &*sourced.pod.key.name;
            wishes.extend(tokens_of(&sourced.pod.pod).map(|(key, wish)| (key, (name.into(), wish))));
        }
        let client = cluster.client.clone();
        let following = &mut cluster.following;
        following.tasks.retain(|key, _| needed.contains(key));
        following.known.retain(|key, _| needed.contains(key));
        following.unconfirmed.retain(|key| needed.contains(key));
        if update.complete {
            following.kept = BTreeMap::new();
        }
        for key in needed {
            following.recall(&key);
            if following.tasks.contains_key(&key) {
                continue;
            }
            let is_asked_for = |key: &ObjectKey| matches!(key.kind, ObjectKind::Token | ObjectKind::Claim);
            let watches = following.tasks.keys().filter(|key| !is_asked_for(key)).count();
            if following.tasks.len() >= KUBE_OBJECTS_MAX
                || (!is_asked_for(&key) && watches >= KUBE_WATCHES_MAX)
            {
                following.full(&key);
                following.known.insert(key, None);
                continue;
            }
            let found = following.found.clone();
            let task = match wishes.remove(&key) {
                Some((pod, wish)) => {
                    self.executor.spawn(keep_token(client.clone(), pod, key.clone(), wish, found))
                }
                None if key.kind == ObjectKind::Claim => {
                    self.executor.spawn(keep_claim(client.clone(), key.clone(), found))
                }
                None => self.executor.spawn(follow_object(client.clone(), key.clone(), found)),
            };
            following.tasks.insert(key, task);
        }
        update.objects = following.known.values().flatten().cloned().collect();
        let labels = cluster.admission.labels();
        for sourced in &mut update.pods {
            let had = self.desired.pod(&sourced.pod.key.uid).map(|entry| &*entry.wanted.pod.claims);
            sourced.pod.claims = following.claims(&sourced.pod.pod, labels, had.unwrap_or_default());
            if let Some(class) = class_of(&sourced.pod.pod) {
                sourced.pod.handler = following.handler(&class);
            }
        }
        let relist = self.relist.as_ref();
        let (desired, following, complete) = (&self.desired, &cluster.following, update.complete);
        // A pod that the server tells of begins with what the server says.
        let is_known = |key: &ObjectKey| {
            following.known.contains_key(key) && !(complete && following.unconfirmed.contains(key))
        };
        update.pods.retain(|sourced| {
            let uid = &sourced.pod.key.uid;
            desired.pod(uid).is_some()
                || relist.is_none_or(|relist| relist.pods.contains_key(uid))
                || wanted_by(&sourced.pod.pod).all(|key| is_known(&key))
        });
    }

    /// What stands in the pod's volumes is not known yet: after a restart of the agent, for one that runs.
    pub(super) fn waits_for_objects(&self, uid: &PodUid) -> bool {
        let (Some(cluster), Some(entry)) = (&self.cluster, self.desired.pod(uid)) else { return false };
        let pod = &entry.wanted.pod.pod;
        let known = &cluster.following.known;
        is_of_api_server(pod) && !named_by(pod).iter().all(|key| known.contains_key(key))
    }

    /// Something was found: the pods that it is of get it.
    pub(super) fn objects_found(&mut self) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let following = &mut cluster.following;
        for (key, sought) in following.found.take() {
            if !following.tasks.contains_key(&key) {
                continue;
            }
            let was_kept = following.unconfirmed.remove(&key);
            let (object, is_word) = match sought {
                Sought::There(object) => (Some(object), true),
                Sought::Missing => (None, true),
                // A server that is ill takes nothing away.
                Sought::Refused if was_kept => continue,
                Sought::Refused => (None, false),
            };
            let before =
                following.known.get(&key).and_then(|known| known.as_ref()).map_or(0, |o| cost(&o.object));
            let after = object.as_ref().map_or(0, cost);
            let object = object.filter(|_| following.bytes() - before + after <= KUBE_OBJECTS_BYTES_MAX);
            if object.is_none() && after > 0 {
                following.full(&key);
            } else if is_word {
                cluster.keeping.put(name_of(&key), Content::Object(object.clone()), now);
            }
            let sourced = object.map(|object| following.sourced(object));
            following.known.insert(key, sourced);
        }
        self.ask_again();
    }
}
