//! What happens to pods of the cluster, and to the node, is told there too: one object for each entry of the ring, one at a
//! time, the oldest first. What happens faster than the link takes it, or than `eventRecordQPS` has it, is told as it stands then.

use hyper::Method;

use super::agent::{Agent, Event};
use super::cluster::{ClusterEvent, Task};
use super::cluster_mirrors::static_hash;
use crate::cluster::event;
use crate::cri::Runtime;
use crate::desired::Desired;
use crate::events::{self, EventRing};
use crate::kube::{Client, Content, KubeError, Resource, object_path, seed};
use crate::limits::KUBE_RETRY_MAX;
use crate::model::{Mono, Now, PodUid, SortedSet};

/// How far it is.
pub(super) struct Telling {
    /// The ring's revision up to which all of pods is told, which comes first: a pod may go before.
    told: u64,
    /// The same of the node.
    told_of_node: u64,
    /// Pods that the API server has no more, or that are over, with events that are still to be sent. Bounded by the ring, which
    /// has at least one of each.
    left: SortedSet<PodUid>,
    task: Task,
}

impl Telling {
    pub(super) fn new(now: Mono, node: &str) -> Self {
        Self { told: 0, told_of_node: 0, left: SortedSet::new(), task: Task::new(now, seed(node)) }
    }

    /// The pod is none of the node's any more: what happened to it is sent all the same.
    pub(super) fn leaves(&mut self, uid: &PodUid, ring: &EventRing) {
        let told = self.told;
        let waits = |uid: &PodUid| ring.iter().any(|event| event.pod.uid == *uid && event.revision > told);
        self.left.retain(waits);
        if waits(uid) {
            self.left.insert(uid.clone());
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn telling_due(&self) -> Option<Mono> {
        let cluster = self.cluster.as_ref().filter(|cluster| cluster.registered.is_some())?;
        let telling = &cluster.telling_events;
        telling.task.due().filter(|_| telling.told.min(telling.told_of_node) < self.ring.borrow().revision())
    }

    pub(super) fn tell_event(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        let telling = &mut cluster.telling_events;
        if cluster.registered.is_none() || telling.task.due().is_none_or(|at| at > now.mono) {
            return;
        }
        let ring = self.ring.borrow();
        let (pods, desired) = (&cluster.pods, &self.desired);
        let is_there = |event: &&events::Event| {
            let uid = &event.pod.uid;
            if event.is_of_node() {
                return event.revision > telling.told_of_node;
            }
            let is_known =
                pods.contains_key(uid) || telling.left.contains(uid) || hash_of(desired, uid).is_some();
            event.revision > telling.told && is_known
        };
        let next = ring.iter().filter(is_there).min_by_key(|event| (event.is_of_node(), event.revision));
        let Some(next) = next else {
            (telling.told, telling.told_of_node) = (ring.revision(), ring.revision());
            telling.left.clear();
            return;
        };
        let (next, node) = (next.clone(), cluster.machine.name.clone());
        let uid: Box<str> = hash_of(desired, &next.pod.uid).unwrap_or(next.pod.uid.as_str()).into();
        drop(ring);
        telling.task.begins(now.mono);
        let (client, events) = (cluster.client.for_events(), self.events.clone());
        let task = async move {
            let result = tell(&client, &next, &uid, &node, now).await;
            let (of_node, revision) = (next.is_of_node(), next.revision);
            let event = ClusterEvent::EventTold { of_node, revision, result };
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Cluster(Box::new(event))).await;
        };
        self.executor.spawn("event report", task).detach();
    }

    pub(super) fn event_told(&mut self, of_node: bool, revision: u64, result: Result<(), KubeError>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let telling = &mut cluster.telling_events;
        let is_over = result.as_ref().map_or_else(gives_up, |()| true);
        telling.task.ended(is_over, now, KUBE_RETRY_MAX);
        if is_over {
            let told = if of_node { &mut telling.told_of_node } else { &mut telling.told };
            *told = revision;
            telling.task.at = now;
        }
        if let Err(why) = result {
            let then = if is_over { "left out" } else { "trying again" };
            log::debug!("event not sent: {why}; {then}");
        }
    }
}

/// An event is not worth more than one answer of the server's: what is refused is left out, and the next one does not wait for it
/// (client-go `recordEvent`). A server that has too much to do, or does not know the node now, is asked again.
fn gives_up(why: &KubeError) -> bool {
    match why {
        KubeError::Refused { code, .. } => !matches!(code, 401 | 429 | 500..),
        KubeError::Unreachable(_) | KubeError::Protocol(_) | KubeError::Config(_) => false,
    }
}

/// Of a static pod that is wanted, the hash of its manifest.
fn hash_of<'a>(desired: &'a Desired, uid: &PodUid) -> Option<&'a str> {
    static_hash(&desired.pod(uid)?.wanted.pod)
}

/// Tells it: the first time the whole of it, later what changed.
async fn tell(client: &Client, of: &events::Event, uid: &str, node: &str, now: Now) -> Result<(), KubeError> {
    let (namespace, name) = event::place(of);
    if of.count > 1 {
        let path = object_path(Resource::EVENTS, &namespace, &name);
        let again = Content::strategic(&event::again(of, now));
        match client.call(Method::PATCH, &path, Some(again)).await {
            Err(error) if error.is_not_found() => {}
            told => return told.map(drop),
        }
    }
    let path = Resource::EVENTS.path(&namespace);
    match client.call(Method::POST, &path, Some(Content::json(&event::object(of, uid, node, now)))).await {
        // It came there, and the answer was lost.
        Err(error) if error.is(409) => Ok(()),
        told => told.map(drop),
    }
}
