//! Effects, which parts request and the loop applies after a part's turn, and the task spawner that all parts use.
//!
//! ```text
//!     part.turn(pods, now, out) ─► effects, in order ─► the loop applies them to the pods and the other parts
//!                              └─► tasks ─► each ends with one event for the loop
//! ```
//!
//! Tasks are started and their results sent to the loop in this file alone.

use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use k8s_openapi::api::core::v1::PodStatus;
use smol::channel::{Receiver, Sender};

use super::agent::Event;
use super::checkpoint::Saved;
use super::event_ring::Ring;
use super::forward;
use super::pods::EvictedFor;
use crate::clock::SharedClock;
use crate::events::EventKind;
use crate::eviction::NodeCondition;
use crate::executor::Executor;
use crate::gc::GcRemoval;
#[cfg(feature = "tls")]
use crate::k3s::{Settings, Unset};
use crate::metrics::Metrics;
use crate::model::{ContainerId, Mono, Now, PodKey, PodUid, Seconds, SortedMap, SortedSet};
use crate::pleg::evented::{AwaitedState, Instance};
use crate::probe::ProbeKey;
use crate::shutdown::ShutdownGroup;
#[cfg(feature = "tls")]
use crate::source::{EndingPod, SourceUpdate, api_node::NodeFields};
use crate::sync::ProbeResult;

/// Starts tasks, and sends their results to the loop.
#[derive(Clone)]
pub(super) struct Tasks {
    executor: Rc<Executor>,
    events: Sender<Event>,
}

impl Tasks {
    pub(super) fn new(executor: Rc<Executor>, events: Sender<Event>) -> Self {
        Self { executor, events }
    }

    /// A task that sends its own events to the loop, if any.
    pub(super) fn run(&self, name: &'static str, work: impl Future<Output = ()> + 'static) -> smol::Task<()> {
        self.executor.spawn(name, work)
    }

    pub(super) fn sender(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Forwards each item of a channel to the loop as an event.
    pub(super) fn forward<T: 'static>(
        &self,
        name: &'static str,
        from: Receiver<T>,
        event: impl Fn(T) -> Event + 'static,
    ) {
        self.executor.spawn(name, forward(from, self.events.clone(), event)).detach();
    }

    /// Number of events that wait for the loop.
    pub(super) fn queued(&self) -> usize {
        self.events.len()
    }

    /// A task that ends with an event for the loop; dropping the returned handle cancels it.
    pub(super) fn keep(
        &self,
        name: &'static str,
        work: impl Future<Output = Event> + 'static,
    ) -> smol::Task<()> {
        let events = self.events.clone();
        self.executor.spawn(name, async move {
            let event = work.await;
            // The loop ends only with the process.
            let _ = events.send(event).await;
        })
    }

    /// A task that is never cancelled.
    pub(super) fn start(&self, name: &'static str, work: impl Future<Output = Event> + 'static) {
        self.keep(name, work).detach();
    }
}

/// A change of the pods or of another part, applied by the loop in the order of the requests.
pub(super) enum Effect {
    // ---- to the pods ---------------------------------------------------------------------------------------
    /// Drives the pod's worker.
    Drive(PodUid),
    /// Plans the pod once more, and drives its worker.
    PlanAgain(PodUid),
    /// Reads the pod from the runtime once more.
    ReadAgain(PodUid),
    /// Computes the pod's status anew.
    RefreshStatus(PodUid),
    /// An update of a source was applied; these pods have reached a terminal phase in the API server.
    Applied(SortedSet<PodUid>),
    /// Evicts the pod with that grace period.
    Evict { uid: PodUid, message: String, grace: Seconds, why: EvictedFor },
    /// Terminates the pod for the node's shutdown.
    EndForShutdown(PodUid, ShutdownGroup),
    /// Removes the containers and files of the ended pod.
    ClearEnded(PodUid),
    /// Retries the pod's image pulls: there is disk space again.
    PullAgain(PodUid),
    /// Waits until the runtime's status shows the change that an event announced.
    AwaitChange(PodUid, Box<str>, Instance, AwaitedState),
    /// Begins that probe, under that number.
    Probe(u64, PodUid, ProbeKey),
    /// A probe's result.
    Probed(PodUid, ProbeKey, ContainerId, Option<ProbeResult>),
    /// The node's pressure conditions.
    Conditions(Vec<NodeCondition>),
    /// Dead containers beyond the limit for all pods.
    Surplus(SortedMap<PodUid, Vec<GcRemoval>>),
    /// The contents of the checkpoint file changed.
    Saved(Saved),
    /// Terminates the pod in favour of a critical one.
    #[cfg(feature = "tls")]
    Preempt(PodUid),
    /// Terminates the pod, which was deleted in the API server.
    #[cfg(feature = "tls")]
    Delete(EndingPod),
    /// Shortens the grace period of a terminating pod.
    #[cfg(feature = "tls")]
    Hurry(EndingPod),
    /// The Node has these labels and taints in the API server.
    #[cfg(feature = "tls")]
    NodeChanged(Box<NodeFields>),
    /// The labels and taints of the Node in the offline copy.
    #[cfg(feature = "tls")]
    OfflineNode(Box<NodeFields>),
    /// The cluster's DNS servers and domain.
    #[cfg(feature = "tls")]
    K3sSettings(Settings, Unset),
    /// The node shuts down: new pods are terminated as those of this group.
    Close(Option<ShutdownGroup>),
    /// The shutdown was cancelled.
    Reopen,

    // ---- to the parts --------------------------------------------------------------------------------------
    /// The pod was read; awaited changes are compared with it.
    WasRead(PodUid),
    /// Nothing of the pod is left on this node.
    Forgotten(Box<Forgotten>),
    /// The set of local pods may have changed.
    LocalPods,
    /// The pod waits for the checkpoint, which is written at once.
    AwaitSave(PodUid),
    /// An image pull of the pod found no disk space.
    NoSpace(PodUid),
    /// Removes unused images now.
    ReclaimImages,
    /// No unused image is left to remove.
    ImagesReclaimed,
    /// A sync has started a sandbox or a container.
    StartedSomething,
    /// The runtime has answered a call.
    RuntimeAnswered,
    /// The pod has changed since then without an event.
    Suspect(PodUid, Mono),
    /// Requests a relist by then.
    RelistBy(Mono),
    /// Reports the Node's status at once: it has changed.
    ReportNode,
    /// Repeats the admission of the API server's pods.
    #[cfg(feature = "tls")]
    AdmitAgain,
    /// Applies this update as the API server's.
    #[cfg(feature = "tls")]
    Update(Box<SourceUpdate>),
}

/// A pod of which nothing is left on this node, with its last status.
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only a cluster's node reports it"))]
pub(super) struct Forgotten {
    pub(super) uid: PodUid,
    pub(super) revision: u64,
    pub(super) status: Option<PodStatus>,
}

/// A part's access to tasks, clock and metrics, and its queue of effects.
pub(super) struct Effects {
    tasks: Tasks,
    clock: SharedClock,
    metrics: Rc<Metrics>,
    ring: Rc<Ring>,
    /// The node itself, as the object of events.
    node: PodKey,
    /// Emptied before the next event is handled; a few for each pod.
    queue: VecDeque<Effect>,
}

/// Capacity that the queue keeps between two events.
const EFFECTS_KEPT: usize = 32;

impl Effects {
    pub(super) fn new(
        tasks: Tasks,
        clock: SharedClock,
        metrics: Rc<Metrics>,
        ring: Rc<Ring>,
        node: &str,
    ) -> Self {
        Self { tasks, clock, metrics, ring, node: PodKey::new("", node, node), queue: VecDeque::new() }
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(super) fn node_name(&self) -> &str {
        &self.node.name
    }

    pub(super) fn clock(&self) -> &SharedClock {
        &self.clock
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(super) fn ring(&self) -> &Rc<Ring> {
        &self.ring
    }

    /// As [`Tasks::start`].
    pub(super) fn start(&self, name: &'static str, work: impl Future<Output = Event> + 'static) {
        self.tasks.start(name, work);
    }

    /// As [`Tasks::keep`].
    pub(super) fn keep(
        &self,
        name: &'static str,
        work: impl Future<Output = Event> + 'static,
    ) -> smol::Task<()> {
        self.tasks.keep(name, work)
    }

    /// Records an event of the node itself.
    pub(super) fn note_node(&self, kind: EventKind, reason: &'static str, message: &str) {
        let node = &self.node.name;
        let is_new = self.ring.record((&self.node).into(), kind, reason, message, self.now().mono);
        match kind {
            EventKind::Normal if is_new => log::info!("node {node}: {reason}: {message}"),
            EventKind::Warning if is_new => log::warn!("node {node}: {reason}: {message}"),
            EventKind::Normal | EventKind::Warning => {}
        }
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.queue.push_back(effect);
    }

    /// Drives the pod's worker.
    pub(super) fn drive(&mut self, uid: &PodUid) {
        self.push(Effect::Drive(uid.clone()));
    }

    /// The next effect to apply.
    pub(super) fn next(&mut self) -> Option<Effect> {
        let next = self.queue.pop_front();
        if next.is_none() {
            // A burst's effects take 130 KB.
            self.queue.shrink_to(EFFECTS_KEPT);
        }
        next
    }
}
