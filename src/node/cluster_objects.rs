//! What this node's pods name in the cluster: which ConfigMaps, Secrets and tokens are followed, and what was found.
//!
//! A pod that came from the API server begins when each of them was looked for, whether it is there or not: else it would
//! begin with a failure. One that is here already is not held back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::agent::Agent;
use crate::cri::Runtime;
use crate::limits::{KUBE_OBJECTS_BYTES_MAX, KUBE_OBJECTS_MAX, KUBE_WATCHES_MAX};
use crate::model::object::{TokenWish, named_by, services_of, tokens_of};
use crate::model::{ObjectKey, ObjectKind, PodUid};
use crate::source::api_objects::{Found, follow_object, keep_token};
use crate::source::identity::is_of_api_server;
use crate::source::object::cost;
use crate::source::{Origin, SourceUpdate, SourcedObject, api};

/// What is followed.
pub(super) struct Following {
    found: Found,
    /// One for each object; dropping it ends it.
    tasks: BTreeMap<ObjectKey, smol::Task<()>>,
    /// What was found of them; `None` = it is not there.
    known: BTreeMap<ObjectKey, Option<SourcedObject>>,
    /// The server's last word on pods.
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
            last: None,
            origin: Arc::from(api::ORIGIN),
            said_full: false,
        }
    }

    fn bytes(&self) -> usize {
        self.known.values().flatten().map(|sourced| cost(&sourced.object)).sum()
    }

    /// Said once.
    fn full(&mut self, what: &ObjectKey) {
        if !std::mem::replace(&mut self.said_full, true) {
            log::warn!(
                "{what}: this node's pods name too much: at most {KUBE_OBJECTS_MAX} ConfigMaps, Secrets and tokens of \
                 {KUBE_OBJECTS_BYTES_MAX} bytes together are kept (said once)"
            );
        }
    }
}

/// What a pod needs to know of before it begins.
fn wanted_by(pod: &Pod) -> impl Iterator<Item = ObjectKey> {
    named_by(pod).into_iter().chain(services_of(pod))
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
        for key in needed {
            if following.tasks.contains_key(&key) {
                continue;
            }
            let watches = following.tasks.keys().filter(|key| key.kind != ObjectKind::Token).count();
            let is_token = key.kind == ObjectKind::Token;
            if following.tasks.len() >= KUBE_OBJECTS_MAX || (!is_token && watches >= KUBE_WATCHES_MAX) {
                following.full(&key);
                following.known.insert(key, None);
                continue;
            }
            let found = following.found.clone();
            let task = match wishes.remove(&key) {
                Some((pod, wish)) => {
                    self.executor.spawn(keep_token(client.clone(), pod, key.clone(), wish, found))
                }
                None => self.executor.spawn(follow_object(client.clone(), key.clone(), found)),
            };
            following.tasks.insert(key, task);
        }
        update.objects = following.known.values().flatten().cloned().collect();
        let relist = self.relist.as_ref();
        let (desired, known) = (&self.desired, &following.known);
        update.pods.retain(|sourced| {
            let uid = &sourced.pod.key.uid;
            desired.pod(uid).is_some()
                || relist.is_none_or(|relist| relist.pods.contains_key(uid))
                || wanted_by(&sourced.pod.pod).all(|key| known.contains_key(&key))
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
        let Some(cluster) = &mut self.cluster else { return };
        let following = &mut cluster.following;
        for (key, object) in following.found.take() {
            if !following.tasks.contains_key(&key) {
                continue;
            }
            let before =
                following.known.get(&key).and_then(|known| known.as_ref()).map_or(0, |o| cost(&o.object));
            let after = object.as_ref().map_or(0, cost);
            let object = object.filter(|_| following.bytes() - before + after <= KUBE_OBJECTS_BYTES_MAX);
            if object.is_none() && after > 0 {
                following.full(&key);
            }
            let origin = Origin { file: following.origin.clone(), document: 1 };
            let sourced = object.map(|object| SourcedObject { object, origin });
            following.known.insert(key, sourced);
        }
        self.ask_again();
    }
}
