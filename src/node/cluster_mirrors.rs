//! The static pods' copies in the cluster: which are created and deleted, and through which the pods' statuses are told.
//!
//! Looked at when a source, a record's end or an answer may have changed something; what follows for each name is a task as
//! the others of the cluster, of which `KUBE_TELLING_MAX` go on at once.
use std::rc::Rc;

use hyper::Method;
use serde_json::Value;

use super::agent::{Agent, Event};
use super::cluster::{Cluster, ClusterEvent, Task, Told};
use crate::cluster::mirror::{self, Step, Wish};
use crate::cluster::pod_status;
use crate::cri::Runtime;
use crate::kube::{Client, Content, KubeError, Resource, object_path, seed};
use crate::limits::{KUBE_RETRY_MAX, KUBE_TELLING_MAX};
use crate::model::annotations::CONFIG_HASH;
use crate::model::{DesiredPod, Mono, Now, PodKey, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::source::MirrorPod;

/// Namespace and name.
pub(super) type Name = (Rc<str>, Rc<str>);

fn name_of(key: &PodKey) -> Name {
    (key.namespace.clone(), key.name.clone())
}

/// Of a static pod, the hash of its manifest.
pub(super) fn static_hash(pod: &DesiredPod) -> Option<&str> {
    if pod.pod.is_of_api_server() {
        return None;
    }
    let annotations = pod.pod.metadata.annotations.as_ref()?;
    annotations.get(CONFIG_HASH).map(String::as_str)
}

/// What is known of them.
pub(super) struct Mirrors {
    /// As the server has them; nothing before it has told its pods. At most `KUBE_PODS_MAX`, as it tells no more.
    there: Option<SortedMap<Name, MirrorPod>>,
    /// What is to be done, one entry for each static pod and each copy at most.
    doing: SortedMap<Name, Doing>,
    /// The pods that cannot be told there; each is named once in the log.
    refused: SortedSet<PodUid>,
    /// Something of it all may be another than at the last look.
    stale: bool,
    seed: u64,
}

struct Doing {
    step: Step,
    task: Task,
}

impl Mirrors {
    pub(super) fn new(node: &str) -> Self {
        Self {
            there: None,
            doing: SortedMap::new(),
            refused: SortedSet::new(),
            stale: true,
            seed: seed(node),
        }
    }

    /// The server has these.
    pub(super) fn are_there(&mut self, mirrors: &[MirrorPod]) {
        let named = mirrors.iter().map(|mirror| (name_of(&mirror.key), mirror.clone()));
        self.there = Some(named.collect());
    }

    /// Looks again at the next turn.
    pub(super) fn look_again(&mut self) {
        self.stale = true;
    }

    fn due(&self) -> Option<Mono> {
        self.doing.values().filter_map(|doing| doing.task.due()).min()
    }

    /// From now on this is to be done for the name: at once when it is another thing than before.
    fn wants(&mut self, name: Name, step: Step, now: Mono) {
        match self.doing.get_mut(&name) {
            // What goes on is waited for.
            Some(doing) if doing.task.due().is_none() => {}
            Some(doing) if doing.step == step => {}
            Some(_) | None if step == Step::Keep => {
                self.doing.remove(&name);
            }
            Some(_) | None => {
                self.doing.insert(name, Doing { step, task: Task::new(now, self.seed) });
            }
        }
    }
}

impl Cluster {
    /// The static pods of these UIDs are told of through these copies, and no others.
    fn tell_through(&mut self, mirrors: &SortedMap<PodUid, MirrorPod>, now: Mono) {
        let stays = |uid: &PodUid, told: &Told| mirrors.get(uid).is_some_and(|mirror| mirror.key == told.key);
        self.pods.retain(|uid, told| !told.is_mirror || stays(uid, told));
        for (uid, mirror) in mirrors {
            let seed = self.mirrors.seed;
            let told = self.pods.entry(uid.clone());
            let told = told.or_insert_with(|| Told::of_mirror(mirror.key.clone(), now, seed));
            told.compared(mirror.changed, now);
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn mirrors_due(&self) -> Option<Mono> {
        let cluster = self.cluster.as_ref().filter(|cluster| cluster.registered.is_some())?;
        cluster.mirrors.due().filter(|_| cluster.telling < KUBE_TELLING_MAX)
    }

    pub(super) fn turn_mirrors(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        if std::mem::take(&mut cluster.mirrors.stale) {
            self.look_at_mirrors(now.mono);
        }
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| cluster.registered.is_some()) else {
            return;
        };
        let room = KUBE_TELLING_MAX.saturating_sub(cluster.telling);
        let due = cluster.mirrors.doing.iter();
        let due = due.filter(|(_, doing)| doing.task.due().is_some_and(|at| at <= now.mono));
        let due: Vec<Name> = due.map(|(name, _)| name.clone()).take(room).collect();
        for name in due {
            self.begin_mirror(name, now.mono);
        }
    }

    /// What is to be done about each name, and through which copies statuses are told.
    fn look_at_mirrors(&mut self, now: Mono) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(there) = cluster.mirrors.there.take() else { return };
        let mut wishes: SortedMap<Name, (Wish<'_>, Option<&PodUid>)> = SortedMap::new();
        let mut refused = SortedSet::new();
        let wanted = self.desired.entries().map(|entry| &entry.wanted.pod);
        for (pod, hash) in wanted.filter_map(|pod| Some((pod, static_hash(pod)?))) {
            let uid = &pod.key.uid;
            let wish = match mirror::refusal(&pod.pod) {
                None => (Wish::Runs(hash), Some(uid)),
                Some(why) => {
                    if !cluster.mirrors.refused.contains(uid) {
                        log::warn!("pod {}: {why}", pod.key);
                    }
                    refused.insert(uid.clone());
                    (Wish::Gone, None)
                }
            };
            wishes.insert(name_of(&pod.key), wish);
        }
        cluster.mirrors.refused = refused;
        for (uid, record) in &self.records {
            if !record.worker.pod().is_some_and(|pod| pod.pod.is_of_api_server()) {
                let name = name_of(record.worker.key());
                wishes.entry(name).or_insert((Wish::Undecided, Some(uid)));
            }
        }
        let otherwise = if self.desired.may_terminate_orphans() { Wish::Gone } else { Wish::Undecided };
        for name in there.keys().chain(cluster.mirrors.doing.keys()) {
            wishes.entry(name.clone()).or_insert((otherwise, None));
        }
        let mut told = SortedMap::new();
        for (name, (wish, uid)) in wishes {
            let mirror = there.get(&name);
            let step = mirror::step(wish, mirror);
            if let (Step::Keep, Some(uid), Some(mirror)) = (step, uid, mirror) {
                told.insert(uid.clone(), mirror.clone());
            }
            cluster.mirrors.wants(name, step, now);
        }
        cluster.mirrors.there = Some(there);
        cluster.tell_through(&told, now);
    }

    fn begin_mirror(&mut self, name: Name, now: Mono) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(node_uid) = cluster.registered.as_deref() else { return };
        let Some(doing) = cluster.mirrors.doing.get_mut(&name) else { return };
        let path = object_path(Resource::PODS, &name.0, &name.1);
        let work = match doing.step {
            Step::Keep => None,
            Step::Create => {
                let mut wanted = self.desired.entries().map(|entry| &entry.wanted.pod);
                wanted.find(|pod| name_of(&pod.key) == name).map(|pod| {
                    let object = mirror::object(&pod.pod, &cluster.machine.name, node_uid);
                    (Method::POST, Resource::PODS.path(&name.0), object)
                })
            }
            Step::Delete => {
                let mirror = cluster.mirrors.there.as_ref().and_then(|there| there.get(&name));
                mirror.map(|mirror| (Method::DELETE, path, pod_status::deletion(mirror.key.uid.as_str())))
            }
        };
        let Some((method, path, object)) = work else {
            cluster.mirrors.stale = true;
            cluster.mirrors.doing.remove(&name);
            return;
        };
        doing.task.begins(now);
        cluster.telling += 1;
        let (client, events) = (cluster.client.clone(), self.events.clone());
        let task = async move {
            let result = ask(&client, method, &path, object).await;
            let event = ClusterEvent::Mirrored { name, result };
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Cluster(Box::new(event))).await;
        };
        self.executor.spawn("mirror pod", task).detach();
    }

    pub(super) fn mirrored(&mut self, name: &Name, result: Result<(), KubeError>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        cluster.telling = cluster.telling.saturating_sub(1);
        cluster.mirrors.stale = true;
        let Some(doing) = cluster.mirrors.doing.get_mut(name) else { return };
        // The server's word of what was done ends it; it is done once more when that does not come.
        doing.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
        match result {
            Ok(()) => {}
            // One that the server has not told of yet, or somebody else's.
            Err(why) if why.is(409) => log::debug!("pod {}/{}: its mirror pod: {why}", name.0, name.1),
            Err(why) => {
                cluster.failed(&format!("pod {}/{}: its mirror pod is not told", name.0, name.1), &why, now);
            }
        }
    }
}

async fn ask(client: &Client, method: Method, path: &str, object: Value) -> Result<(), KubeError> {
    let deletes = method == Method::DELETE;
    match client.call(method, path, Some(Content::json(&object))).await {
        // It is gone, or another one has its name by now.
        Err(why) if deletes && (why.is_not_found() || why.is(409)) => Ok(()),
        asked => asked.map(drop),
    }
}
