//! Mirror pods of static pods: creates and deletes them, and assigns statuses to them.
//!
//! The actions are computed when a source, a record's end or a response may have changed something. Each action is a task like
//! the others of the cluster, of which `KUBE_STATUS_CALLS_MAX` run at once.
use std::rc::Rc;

use hyper::Method;
use serde_json::Value;

use super::status_manager::StatusManager;
use super::{ClusterEventKind, Membership, Task};
use crate::cluster::mirror::{self, Action, StaticPodState};
use crate::cluster::pod_status;
use crate::cri::Runtime;
use crate::kube::{Client, Content, KubeError, Resource, object_path};
use crate::limits::KUBE_RETRY_MAX;
use crate::model::annotations::CONFIG_HASH;
use crate::model::{DesiredPod, Mono, PodKey, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::node::effects::Effects;
use crate::node::pods::Pods;
use crate::source::MirrorPod;

/// Namespace and name.
pub(super) type Name = (Rc<str>, Rc<str>);

fn name_of(key: &PodKey) -> Name {
    (key.namespace.clone(), key.name.clone())
}

/// The manifest hash of a static pod.
pub(super) fn static_hash(pod: &DesiredPod) -> Option<&str> {
    if pod.pod.is_of_api_server() {
        return None;
    }
    let annotations = pod.pod.metadata.annotations.as_ref()?;
    annotations.get(CONFIG_HASH).map(String::as_str)
}

/// The mirror pods, and the pending actions on them.
pub(super) struct MirrorPods {
    /// Those in the API server; `None` before its first update. At most `KUBE_PODS_MAX`, the limit of an update.
    mirrors: Option<SortedMap<Name, MirrorPod>>,
    /// Pending actions; at most one for each static pod and each mirror pod.
    pending: SortedMap<Name, PendingAction>,
    /// The pods that cannot have a mirror pod; each is logged once.
    refused: SortedSet<PodUid>,
    /// The actions have to be computed anew.
    stale: bool,
    /// Number of creations and deletions in flight.
    under_way: usize,
}

struct PendingAction {
    action: Action,
    task: Task,
}

impl Default for MirrorPods {
    fn default() -> Self {
        Self {
            mirrors: None,
            pending: SortedMap::new(),
            refused: SortedSet::new(),
            stale: true,
            under_way: 0,
        }
    }
}

impl MirrorPods {
    /// Sets the mirror pods that the API server has.
    pub(super) fn set_mirrors(&mut self, mirrors: &[MirrorPod]) {
        let named = mirrors.iter().map(|mirror| (name_of(&mirror.key), mirror.clone()));
        self.mirrors = Some(named.collect());
    }

    /// Requests that the actions are computed anew in the next turn.
    pub(super) fn mark_stale(&mut self) {
        self.stale = true;
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn due(&self, of: &Membership) -> Option<Mono> {
        of.registered.as_ref()?;
        self.pending.values().filter_map(|pending| pending.task.due()).min()
    }

    /// Sets the pending action of a name. Due at once if it is a new one.
    fn set_action(&mut self, name: Name, action: Action, seed: u64, now: Mono) {
        match self.pending.get_mut(&name) {
            // The call in flight is awaited.
            Some(pending) if pending.task.due().is_none() => {}
            Some(pending) if pending.action == action => {}
            Some(_) | None if action == Action::Keep => {
                self.pending.remove(&name);
            }
            Some(_) | None => {
                self.pending.insert(name, PendingAction { action, task: Task::new(now, seed) });
            }
        }
    }
    /// Computes the actions if needed, and starts at most `room` of those that are due.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        statuses: &mut StatusManager,
        pods: &Pods<R>,
        room: usize,
        now: Mono,
        out: &Effects,
    ) {
        if std::mem::take(&mut self.stale) {
            self.reconcile(of.seed, statuses, pods, now);
        }
        let Some(node_uid) = of.registered.as_deref() else { return };
        let due = self.pending.iter().filter(|(_, pending)| pending.task.due().is_some_and(|at| at <= now));
        let due: Vec<Name> = due.map(|(name, _)| name.clone()).take(room).collect();
        for name in due {
            self.begin(name, node_uid, of, pods, now, out);
        }
    }

    /// Computes the action for each name, and through which mirror pods statuses are reported.
    fn reconcile<R: Runtime + 'static>(
        &mut self,
        seed: u64,
        statuses: &mut StatusManager,
        pods: &Pods<R>,
        now: Mono,
    ) {
        let Some(mirrors) = self.mirrors.take() else { return };
        let mut states: SortedMap<Name, (StaticPodState<'_>, Option<&PodUid>)> = SortedMap::new();
        let mut refused = SortedSet::new();
        let wanted = pods.desired().entries().map(|entry| &entry.wanted.pod);
        for (pod, hash) in wanted.filter_map(|pod| Some((pod, static_hash(pod)?))) {
            let uid = &pod.key.uid;
            let state = match mirror::refusal(&pod.pod) {
                None => (StaticPodState::Desired(hash), Some(uid)),
                Some(why) => {
                    if !self.refused.contains(uid) {
                        log::warn!("pod {}: {why}", pod.key);
                    }
                    refused.insert(uid.clone());
                    (StaticPodState::Gone, None)
                }
            };
            states.insert(name_of(&pod.key), state);
        }
        self.refused = refused;
        for (uid, record) in pods.iter() {
            if !record.worker().pod().is_some_and(|pod| pod.pod.is_of_api_server()) {
                let name = name_of(record.worker().key());
                states.entry(name).or_insert((StaticPodState::Undecided, Some(uid)));
            }
        }
        let otherwise = if pods.desired().may_terminate_orphans() {
            StaticPodState::Gone
        } else {
            StaticPodState::Undecided
        };
        for name in mirrors.keys().chain(self.pending.keys()) {
            states.entry(name.clone()).or_insert((otherwise, None));
        }
        let mut reporting = SortedMap::new();
        for (name, (state, uid)) in states {
            let mirror = mirrors.get(&name);
            let action = mirror::action(state, mirror);
            if let (Action::Keep, Some(uid), Some(mirror)) = (action, uid, mirror) {
                reporting.insert(uid.clone(), mirror.clone());
            }
            self.set_action(name, action, seed, now);
        }
        self.mirrors = Some(mirrors);
        statuses.set_mirror_pods(&reporting, seed, now);
    }

    fn begin<R: Runtime + 'static>(
        &mut self,
        name: Name,
        node_uid: &str,
        of: &Membership,
        pods: &Pods<R>,
        now: Mono,
        out: &Effects,
    ) {
        let Some(pending) = self.pending.get_mut(&name) else { return };
        let path = object_path(Resource::PODS, &name.0, &name.1);
        let work = match pending.action {
            Action::Keep => None,
            Action::Create => {
                let mut wanted = pods.desired().entries().map(|entry| &entry.wanted.pod);
                wanted.find(|pod| name_of(&pod.key) == name).map(|pod| {
                    let object = mirror::object(&pod.pod, &of.machine.name, node_uid);
                    (Method::POST, Resource::PODS.path(&name.0), object)
                })
            }
            Action::Delete => {
                let mirror = self.mirrors.as_ref().and_then(|mirrors| mirrors.get(&name));
                mirror.map(|mirror| (Method::DELETE, path, pod_status::deletion(mirror.key.uid.as_str())))
            }
        };
        let Some((method, path, object)) = work else {
            self.stale = true;
            self.pending.remove(&name);
            return;
        };
        pending.task.begin_if_due(now);
        self.under_way += 1;
        let client = of.client.clone();
        let task = async move {
            let result = call(&client, method, &path, object).await;
            ClusterEventKind::MirrorPodUpdated { name, result }.event()
        };
        out.start("mirror pod", task);
    }

    /// The creation or deletion of that mirror pod ended.
    pub(super) fn take(
        &mut self,
        name: &Name,
        result: Result<(), KubeError>,
        of: &mut Membership,
        now: Mono,
    ) {
        self.under_way = self.under_way.saturating_sub(1);
        self.stale = true;
        let Some(pending) = self.pending.get_mut(name) else { return };
        // The watch's update of the mirror pod completes the action; without one it is repeated.
        pending.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
        match result {
            Ok(()) => {}
            // A mirror pod that the watch has not shown yet, or another client's pod.
            Err(why) if why.is(409) => {
                log::debug!("pod {}/{}: mirror pod not created: {why}", name.0, name.1);
            }
            Err(why) => {
                of.log_failure(&format!("pod {}/{}: mirror pod update failed", name.0, name.1), &why, now);
            }
        }
    }
}

async fn call(client: &Client, method: Method, path: &str, object: Value) -> Result<(), KubeError> {
    let deletes = method == Method::DELETE;
    match client.call(method, path, Some(Content::json(&object))).await {
        // It is gone, or another pod has its name.
        Err(why) if deletes && (why.is_not_found() || why.is(409)) => Ok(()),
        asked => asked.map(drop),
    }
}
