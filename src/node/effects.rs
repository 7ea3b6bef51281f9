//! What parts do: the effects that the loop applies after a part's turn, and what they all use.
//!
//! ```text
//!     part.turn(pods, now, out) ─► effects, in order ─► the loop applies them to the pods and the other parts
//!                              └─► tasks ─► each ends with one event for the loop
//! ```
//!
//! This is the one place where a task is started and where what it brings is sent to the loop.

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
use crate::k3s::Settings;
use crate::metrics::Metrics;
use crate::model::{ContainerId, Mono, Now, PodKey, PodUid, Seconds, SortedMap, SortedSet};
use crate::pleg::evented::{AwaitedState, Instance};
use crate::probe::ProbeKey;
use crate::shutdown::ShutdownGroup;
#[cfg(feature = "tls")]
use crate::source::{EndingPod, SourceUpdate, api_node::NodeFields};
use crate::sync::ProbeResult;

/// Starts tasks, and brings what they answer to the loop.
#[derive(Clone)]
pub(super) struct Tasks {
    executor: Rc<Executor>,
    events: Sender<Event>,
}

impl Tasks {
    pub(super) fn new(executor: Rc<Executor>, events: Sender<Event>) -> Self {
        Self { executor, events }
    }

    /// A task that tells the loop by itself, or nothing.
    #[cfg(feature = "tls")]
    pub(super) fn run(&self, name: &'static str, work: impl Future<Output = ()> + 'static) -> smol::Task<()> {
        self.executor.spawn(name, work)
    }

    pub(super) fn sender(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Whatever comes there is an event for the loop.
    pub(super) fn forward<T: 'static>(
        &self,
        name: &'static str,
        from: Receiver<T>,
        event: impl Fn(T) -> Event + 'static,
    ) {
        self.executor.spawn(name, forward(from, self.events.clone(), event)).detach();
    }

    /// Events that wait for the loop.
    pub(super) fn queued(&self) -> usize {
        self.events.len()
    }

    /// A task that ends with an event for the loop; dropping what is returned ends it without one.
    pub(super) fn keep(
        &self,
        name: &'static str,
        work: impl Future<Output = Event> + 'static,
    ) -> smol::Task<()> {
        let events = self.events.clone();
        self.executor.spawn(name, async move {
            let event = work.await;
            // The loop is gone only when the process ends.
            let _ = events.send(event).await;
        })
    }

    /// A task that nobody ends.
    pub(super) fn start(&self, name: &'static str, work: impl Future<Output = Event> + 'static) {
        self.keep(name, work).detach();
    }
}

/// What the loop does for the pods and the parts, in the order in which it was asked for.
pub(super) enum Effect {
    // ---- to the pods ---------------------------------------------------------------------------------------
    /// The pod goes on.
    Drive(PodUid),
    /// The pod is planned once more, and goes on.
    PlanAgain(PodUid),
    /// The pod is read once more.
    ReadAgain(PodUid),
    /// The pod's status is computed anew.
    RefreshStatus(PodUid),
    /// What follows from an update once its pods went on; these are over.
    Applied(SortedSet<PodUid>),
    /// The pod ends within that time.
    Evict {
        uid: PodUid,
        message: String,
        grace: Seconds,
        why: EvictedFor,
    },
    /// The node's shutdown ends the pod.
    EndForShutdown(PodUid, ShutdownGroup),
    /// What is left of the pod, which has ended, goes.
    ClearEnded(PodUid),
    /// There is room for the pod's images by now.
    PullAgain(PodUid),
    /// An event told of a change that the runtime's status may not show yet.
    AwaitChange(PodUid, Box<str>, Instance, AwaitedState),
    /// That probe is to begin, under that number.
    Probe(u64, PodUid, ProbeKey),
    /// A probe was answered.
    Probed(PodUid, ProbeKey, ContainerId, Option<ProbeResult>),
    /// The node has these conditions now.
    Conditions(Vec<NodeCondition>),
    /// These dead containers are beyond what is kept of all pods.
    Surplus(SortedMap<PodUid, Vec<GcRemoval>>),
    /// This is in the checkpoint now.
    Saved(Saved),
    /// The pod ends for a critical one.
    #[cfg(feature = "tls")]
    Preempt(PodUid),
    /// The pod ends as its deletion on the API server has it.
    #[cfg(feature = "tls")]
    Delete(EndingPod),
    /// The pod, which ends already, is to end sooner.
    #[cfg(feature = "tls")]
    Hurry(EndingPod),
    /// The Node has these labels and taints, as the server says.
    #[cfg(feature = "tls")]
    NodeChanged(Box<NodeFields>),
    /// The Node had these labels and taints when the server was last heard.
    #[cfg(feature = "tls")]
    OfflineNode(Box<NodeFields>),
    /// The cluster's name servers are these.
    #[cfg(feature = "tls")]
    Dns(Settings),
    /// The node shuts down, and pods that come end like those of this group; or it does not after all.
    Close(Option<ShutdownGroup>),
    Reopen,

    // ---- to the parts --------------------------------------------------------------------------------------
    /// The pod was read, and nothing else was done for that yet.
    WasRead(PodUid),
    /// Nothing of the pod is left.
    Forgotten(Box<Forgotten>),
    /// The pods that are here may be others.
    LocalPods,
    /// The pod waits for the checkpoint, which is written at once.
    AwaitSave(PodUid),
    /// A pull of the pod found no room.
    NoSpace(PodUid),
    /// Unused images go now.
    ReclaimImages,
    /// No unused image is left that may go.
    ImagesReclaimed,
    /// An act has started a sandbox or a container.
    StartedSomething,
    /// The runtime has answered a read.
    RuntimeAnswered,
    /// The pod has changed since then, and no event told of it.
    Suspect(PodUid, Mono),
    /// A relist begins by then.
    RelistBy(Mono),
    /// The Node is another one by now: it is told at once.
    ReportNode,
    /// The API server's pods are asked about once more.
    #[cfg(feature = "tls")]
    AdmitAgain,
    /// This is taken for the API server's word.
    #[cfg(feature = "tls")]
    Update(Box<SourceUpdate>),
}

/// A pod of which nothing is left here, with its last status.
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no server to tell then"))]
pub(super) struct Forgotten {
    pub(super) uid: PodUid,
    pub(super) revision: u64,
    pub(super) status: Option<PodStatus>,
}

/// What a part is given beside the pods: what it may use at once, and where its effects go.
pub(super) struct Effects {
    tasks: Tasks,
    clock: SharedClock,
    metrics: Rc<Metrics>,
    ring: Rc<Ring>,
    /// What happens to the node itself is noted under its name.
    node: PodKey,
    /// Emptied before the next event is taken; a few for each pod.
    queue: VecDeque<Effect>,
}

/// The queue keeps the memory of so many effects between two events.
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

    /// Notes something about the node itself.
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

    /// The pod goes on.
    pub(super) fn drive(&mut self, uid: &PodUid) {
        self.push(Effect::Drive(uid.clone()));
    }

    /// The next one that is to be applied.
    pub(super) fn next(&mut self) -> Option<Effect> {
        let next = self.queue.pop_front();
        if next.is_none() {
            // A burst's effects take 130 KB.
            self.queue.shrink_to(EFFECTS_KEPT);
        }
        next
    }
}
