//! Reports the events of the cluster's pods and of the node to the API server: one Event object for each entry of the ring, one
//! call at a time, the oldest first. Events that occur faster than the link or `eventRecordQPS` allows are reported with their
//! count at that time.

use hyper::Method;

use super::mirror_pods::static_hash;
use super::status_manager::StatusManager;
use super::{ClusterEventKind, Membership, Task};
use crate::cluster::event;
use crate::cri::Runtime;
use crate::desired::Desired;
use crate::events::{self, EventRing};
use crate::kube::{Client, Content, KubeError, Resource, object_path};
use crate::limits::KUBE_RETRY_MAX;
use crate::model::{Mono, Now, PodUid, SortedSet};
use crate::node::effects::Effects;
use crate::node::pods::Pods;

/// The progress of the reports.
pub(super) struct EventReports {
    /// All entries of pods up to this revision of the ring are reported. Pods come first: they may be deleted meanwhile.
    reported: u64,
    /// The same for the node's entries.
    reported_of_node: u64,
    /// Pods that the API server no longer has, or that have ended, with events that are still to be reported. Bounded by the
    /// ring, which has at least one entry of each.
    left: SortedSet<PodUid>,
    task: Task,
}

impl EventReports {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self { reported: 0, reported_of_node: 0, left: SortedSet::new(), task: Task::new(now, seed) }
    }

    /// The pod is no longer in the API server: its events are reported all the same.
    pub(super) fn forget_pod(&mut self, uid: &PodUid, ring: &EventRing) {
        let reported = self.reported;
        let waits =
            |uid: &PodUid| ring.iter().any(|event| event.uid == uid.as_str() && event.revision > reported);
        self.left.retain(waits);
        if waits(uid) {
            self.left.insert(uid.clone());
        }
    }

    pub(super) fn due(&self, of: &Membership, out: &Effects) -> Option<Mono> {
        of.registered.as_ref()?;
        self.task.due().filter(|_| self.reported.min(self.reported_of_node) < out.ring().borrow().revision())
    }

    /// Reports the next entry.
    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        known: &StatusManager,
        pods: &Pods<R>,
        now: Now,
        out: &Effects,
    ) {
        if of.registered.is_none() || self.task.due().is_none_or(|at| at > now.mono) {
            return;
        }
        let ring = out.ring().borrow();
        let desired = pods.desired();
        let is_unreported = |event: &events::Event<'_>| {
            let uid = event.uid;
            if event.is_of_node() {
                return event.revision > self.reported_of_node;
            }
            let is_known = known.has(uid) || self.left.contains(uid) || hash_of(desired, uid).is_some();
            event.revision > self.reported && is_known
        };
        let next = ring.iter().filter(is_unreported).min_by_key(|event| (event.is_of_node(), event.revision));
        let Some(next) = next else {
            (self.reported, self.reported_of_node) = (ring.revision(), ring.revision());
            self.left.clear();
            return;
        };
        let (next, node) = (next.to_owned(), of.machine.name.clone());
        let uid: Box<str> = hash_of(desired, next.event().uid).unwrap_or(next.event().uid).into();
        drop(ring);
        self.task.begin_if_due(now.mono);
        let client = of.client.for_events();
        out.start("event report", async move {
            let result = report(&client, &next.event(), &uid, &node, now).await;
            let (of_node, revision) = (next.event().is_of_node(), next.event().revision);
            ClusterEventKind::EventReported { of_node, revision, result }.event()
        });
    }

    /// The report of the entry with that revision ended.
    pub(super) fn take(&mut self, of_node: bool, revision: u64, result: Result<(), KubeError>, now: Mono) {
        let is_over = result.as_ref().map_or_else(gives_up, |()| true);
        self.task.ended(is_over, now, KUBE_RETRY_MAX);
        if is_over {
            let reported = if of_node { &mut self.reported_of_node } else { &mut self.reported };
            *reported = revision;
            self.task.at = now;
        }
        if let Err(why) = result {
            let then = if is_over { "dropping it" } else { "retrying" };
            log::debug!("event report failed: {why}; {then}");
        }
    }
}

/// An event that the API server refuses is dropped, so that the next one does not wait for it (client-go `recordEvent`). A
/// server that is overloaded, or does not know the node now, is asked again.
fn gives_up(why: &KubeError) -> bool {
    match why {
        KubeError::Refused { code, .. } => !matches!(code, 401 | 429 | 500..),
        KubeError::Unreachable(_)
        | KubeError::Protocol(_)
        | KubeError::Config(_)
        | KubeError::Untrusted(_)
        | KubeError::NotJoined(_) => false,
    }
}

/// The manifest hash of a static pod that is desired.
fn hash_of<'a>(desired: &'a Desired, uid: &str) -> Option<&'a str> {
    static_hash(&desired.pod_of(uid)?.wanted.pod)
}

/// Creates the Event object, or patches its count if it was created before.
async fn report(
    client: &Client,
    of: &events::Event<'_>,
    uid: &str,
    node: &str,
    now: Now,
) -> Result<(), KubeError> {
    let (namespace, name) = event::place(of);
    if of.count > 1 {
        let path = object_path(Resource::EVENTS, &namespace, &name);
        let again = Content::strategic(&event::again(of, now));
        match client.call(Method::PATCH, &path, Some(again)).await {
            Err(error) if error.is_not_found() => {}
            result => return result.map(drop),
        }
    }
    let path = Resource::EVENTS.path(&namespace);
    match client.call(Method::POST, &path, Some(Content::json(&event::object(of, uid, node, now)))).await {
        // It was created, and the response was lost.
        Err(error) if error.is(409) => Ok(()),
        result => result.map(drop),
    }
}
