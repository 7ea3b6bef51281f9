//! The offline copy: the cluster's pods and their objects on disk, for a start without the API server.
//!
//! ```text
//!     the server's pods, objects and Node ─► OFFLINE_SETTLE to settle, OFFLINE_PERIOD since the last write ─► written
//!    a pod is no longer desired           ─► removed at once: it must not start after a reboot
//!    no API server at the start           ─► OFFLINE_PATIENCE after the first failure ─► read: pods start by it as by an update
//!                                             of the API server; none is terminated by it
//! ```
//!
//! While the API server answers, nothing is read: it would cost time, and pods deleted meanwhile would start.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::rc::Rc;
use std::sync::Arc;

use smol::channel::Receiver;

use super::objects::{ApiObjects, wanted_by};
use super::{ClusterEventKind, Membership};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::Runtime;
use crate::kube::Client;
use crate::limits::{
    OFFLINE_END_PATIENCE, OFFLINE_PATIENCE, OFFLINE_PATIENCE_MAX, OFFLINE_PERIOD, OFFLINE_RETRY,
    OFFLINE_SETTLE, OFFLINE_TREES_BYTES_MAX,
};
use crate::model::{Mono, PodUid};
use crate::model::{SortedMap, SortedSet};
use crate::node::agent::Event;
use crate::node::effects::Effects;
use crate::node::pods::Pods;
use crate::source::api_node::NodeFields;
use crate::source::api_offline::{self, Trees};
use crate::source::{NodeName, SourceUpdate};
use crate::store::offline::content::{OfflineNode, encode_node, name_of};
use crate::store::offline::folder::{Content, FileName, Folder, Owner, Put, Written};
use crate::store::offline::record::{Kind, Name};

/// Taints that the cluster adds and removes by the node's state: they say nothing about the next start, and a link that fails
/// often would cause a write each time.
const OF_THE_MOMENT: [&str; 6] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
];

/// The folder, and the changes that are not written yet.
pub(super) struct OfflineCopy {
    folder: Folder,
    /// The cluster and node that own the folder, once known.
    owner: Option<Owner>,
    trees: Trees,
    /// Changes that are not written yet. At most as many as the folder has entries.
    puts: SortedMap<FileName, Put>,
    /// The names of all entries to keep; `None` = the API server has not sent its pods yet.
    wanted: Option<Arc<SortedSet<FileName>>>,
    /// Hash of the pods that `wanted` was computed from.
    pods_hash: u64,
    write: Option<smol::Task<()>>,
    due: Option<Mono>,
    not_before: Mono,
    /// Why the copy is not complete, as logged.
    said: Option<String>,
}

/// The result of a write.
pub(super) struct Outcome {
    owner: Option<Owner>,
    /// Changes that were not written.
    left: SortedMap<FileName, Put>,
    result: Result<Written, String>,
}

impl OfflineCopy {
    pub(super) fn new(folder: Folder, trees: Trees, now: Mono) -> Self {
        Self {
            folder,
            owner: None,
            trees,
            puts: SortedMap::new(),
            wanted: None,
            pods_hash: 0,
            write: None,
            due: None,
            not_before: now,
            said: None,
        }
    }

    /// Records the object's new content.
    pub(super) fn put(&mut self, name: Name, content: Content, now: Mono) {
        self.puts.insert(FileName::of(&name), Put { name, content });
        self.due.get_or_insert((now + OFFLINE_SETTLE).max(self.not_before));
    }

    /// Records the Node's new fields.
    pub(super) fn put_node(&mut self, name: &str, node: &NodeFields, now: Mono) {
        let NodeFields { labels, mut taints, pod_cidrs, .. } = node.clone();
        taints.retain(|taint| !OF_THE_MOMENT.contains(&&*taint.key));
        let content = encode_node(&OfflineNode { labels, taints, pod_cidrs });
        self.put(name_of_node(name), Content::Bytes(content), now);
    }

    /// Records a pod. Bounded in bytes, since a disk that hangs takes no changes.
    fn put_tree(&mut self, name: Name, tree: Vec<u8>, now: Mono) {
        if self.waiting() + tree.len() <= OFFLINE_TREES_BYTES_MAX {
            self.put(name, Content::Bytes(tree), now);
        } else {
            self.puts.remove(&FileName::of(&name));
            self.log_failure(
                "offline copy: too many pods; those that do not fit wait for the API server after a restart"
                    .to_owned(),
            );
        }
    }

    /// Bytes of the pods that are not written yet.
    fn waiting(&self) -> usize {
        let bytes = |put: &Put| if let Content::Bytes(bytes) = &put.content { bytes.len() } else { 0 };
        self.puts.values().map(bytes).sum()
    }

    /// Number and bytes of the changes that are not written yet.
    pub(super) fn held(&self) -> (usize, usize) {
        let (trees, bytes) = self.trees.held();
        (self.puts.len() + trees, self.waiting() + bytes)
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.due.filter(|_| self.write.is_none() && self.wanted.is_some())
    }

    /// The next write; `None` when nothing has changed.
    fn work(&mut self, client: &Client, node: &str, blocking: &Rc<Blocking>) -> Option<Work> {
        self.due.take()?;
        let wanted = self.wanted.clone()?;
        Some(Work {
            folder: self.folder.clone(),
            owner: self.owner,
            wanted,
            puts: std::mem::take(&mut self.puts),
            client: client.clone(),
            node: node.into(),
            blocking: blocking.clone(),
        })
    }

    fn log_failure(&mut self, why: String) {
        if self.said.as_ref() != Some(&why) {
            log::warn!("{why}");
            self.said = Some(why);
        }
    }

    fn ended(&mut self, outcome: Outcome, now: Mono) {
        let Outcome { owner, left, result } = outcome;
        self.owner = owner;
        match result {
            Ok(Written { left_out: 0, no_key: None, .. }) => self.said = None,
            Ok(Written { no_key: Some(why), .. }) => {
                self.log_failure(format!("{why}: Secrets and tokens are not in the offline copy; their pods wait for the API server after a restart"));
            }
            Ok(Written { left_out, .. }) => self.log_failure(format!(
                "{left_out} objects of the cluster exceed the offline copy's size; their pods wait for the API server after a restart"
            )),
            Err(why) => {
                self.log_failure(format!("offline copy of the cluster's pods not written: {why}; retrying"));
                for (file, put) in left {
                    self.puts.entry(file).or_insert(put);
                }
                self.due = Some(now + OFFLINE_RETRY);
                return;
            }
        }
        self.not_before = now + OFFLINE_PERIOD;
    }

    // ---- writing -------------------------------------------------------------------------------------------

    /// The API server has sent its pods: the copy keeps these and the objects that they reference, and nothing else.
    pub(super) fn keep_pods(&mut self, objects: &ApiObjects, node: &str, now: Mono) {
        let Some(last) = objects.last_update().filter(|last| last.complete) else { return };
        let kept = || last.pods.iter().filter(|pod| !last.server.over.contains(&pod.pod.key.uid));
        let mut hasher = DefaultHasher::new();
        kept().for_each(|pod| (&pod.pod.key.uid, &pod.config_hash).hash(&mut hasher));
        let pods_hash = hasher.finish();
        if self.wanted.is_some() && self.pods_hash == pods_hash {
            return;
        }
        let before = self.wanted.take().unwrap_or_default();
        let is_first = before.is_empty();
        let mut wanted = SortedSet::from([FileName::of(&name_of_node(node))]);
        for pod in kept() {
            let name = name_of_pod(&pod.pod.key.uid);
            wanted.insert(FileName::of(&name));
            if let Some(tree) = self.trees.take(&pod.pod.key.uid) {
                self.put_tree(name, tree, now);
            }
            for key in wanted_by(&pod.pod.pod.open()) {
                let name = name_of(&key);
                // An object that is watched for another pod already causes no event.
                if wanted.insert(FileName::of(&name))
                    && !before.contains(&FileName::of(&name))
                    && let Some(object) = objects.object_of(&key)
                {
                    self.put(name, Content::Object(Some(object.clone())), now);
                }
            }
        }
        let some_go = before.iter().any(|file| !wanted.contains(file));
        self.puts.retain(|file, _| wanted.contains(file));
        if some_go {
            self.due = Some(now);
        } else if is_first || wanted.len() > before.len() {
            self.due.get_or_insert((now + OFFLINE_SETTLE).max(self.not_before));
        }
        self.pods_hash = pods_hash;
        self.wanted = Some(Arc::new(wanted));
    }

    /// Starts a write that is due.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        pods: &Pods<R>,
        now: Mono,
        out: &Effects,
    ) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        let Some(work) = self.work(&of.client, &of.machine.name, &pods.manager().blocking) else {
            return;
        };
        let task = async move { ClusterEventKind::OfflineWritten(work.carry_out().await).event() };
        self.write = Some(out.keep("offline copy", task));
    }

    /// A write ended.
    pub(super) fn written(&mut self, outcome: Outcome, now: Mono, out: &Effects) {
        self.write = None;
        if outcome.result.as_ref().is_ok_and(|written| written.files > 0) {
            out.metrics().state_writes.inc();
        }
        self.ended(outcome, now);
    }

    /// Writes the changes before the agent ends. Bounded by a deadline.
    pub(super) async fn at_end<R: Runtime + 'static>(&mut self, of: &Membership, pods: &Pods<R>) {
        let before = self.write.take();
        let work = self.work(&of.client, &of.machine.name, &pods.manager().blocking);
        let write = async {
            if let Some(before) = before {
                before.await;
            }
            match work {
                Some(work) => work.carry_out().await.result.map(drop),
                None => Ok(()),
            }
        };
        let patience = async {
            pods.manager().clock.sleep(OFFLINE_END_PATIENCE).await;
            Err("the disk does not respond".to_owned())
        };
        if let Err(why) = smol::future::or(write, patience).await {
            log::warn!("offline copy of the cluster's pods not written: {why}");
        }
    }

    // ---- the start -----------------------------------------------------------------------------------------

    /// The API server stays unreachable: the offline copy is read.
    pub(super) fn read<R: Runtime + 'static>(&self, of: &Membership, pods: &Pods<R>, out: &Effects) {
        let (client, node) = (of.client.clone(), of.machine.name.clone());
        let (folder, blocking) = (self.folder.clone(), pods.manager().blocking.clone());
        out.start("offline copy reading", async move {
            let kept = match owner_of(&client, &node).await {
                Ok(owner) => Ok(blocking.run(move || folder.read(owner)).await),
                Err(why) => Err(why),
            };
            ClusterEventKind::OfflineRead(kept).event()
        });
    }
}

/// The offline copy's pods as an update of the API server; `None` = there are none.
pub(super) fn update(of: &Membership, pods: Vec<Vec<u8>>, clock: &SharedClock) -> Option<SourceUpdate> {
    let (node, local_pods) = (NodeName::new(&of.machine.name), of.shared.local_pods.clone());
    let update = api_offline::update(&node, clock.clone(), local_pods, pods);
    if update.pods.is_empty() {
        return None;
    }
    log::info!("API server unreachable; {} pods taken from the offline copy", update.pods.len());
    Some(update)
}

fn name_of_node(node: &str) -> Name {
    Name { kind: Kind::Node, namespace: "".into(), name: node.into() }
}

fn name_of_pod(uid: &PodUid) -> Name {
    Name { kind: Kind::Pod, namespace: "".into(), name: uid.as_str().into() }
}

/// The owner of the folder.
async fn owner_of(client: &Client, node: &str) -> Result<Owner, String> {
    let trust = client.trust().await.map_err(|error| error.to_string())?;
    Ok(Owner::new(node, &trust))
}

/// One write.
struct Work {
    folder: Folder,
    owner: Option<Owner>,
    wanted: Arc<SortedSet<FileName>>,
    puts: SortedMap<FileName, Put>,
    client: Client,
    node: Box<str>,
    blocking: Rc<Blocking>,
}

impl Work {
    async fn carry_out(self) -> Outcome {
        let Self { folder, owner, wanted, puts, client, node, blocking } = self;
        let owner = match owner {
            Some(owner) => Ok(owner),
            None => owner_of(&client, &node).await,
        };
        let owner = match owner {
            Ok(owner) => owner,
            Err(why) => return Outcome { owner: None, left: puts, result: Err(why) },
        };
        let write = move || {
            let result = folder.write(owner, &wanted, &puts).map_err(|error| error.to_string());
            let left = if result.is_ok() { SortedMap::new() } else { puts };
            Outcome { owner: Some(owner), left, result }
        };
        blocking.run(write).await
    }
}

/// Waits until the offline copy is used: a while after the first failure, or after the start.
pub(super) async fn wait(failed: Receiver<()>, clock: SharedClock) -> Event {
    let failure = async {
        // Closed: no failure will be reported.
        let _ = failed.recv().await;
        clock.sleep(OFFLINE_PATIENCE).await;
    };
    smol::future::or(failure, clock.sleep(OFFLINE_PATIENCE_MAX)).await;
    ClusterEventKind::ServerUnreachable.event()
}
