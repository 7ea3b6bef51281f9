//! The loop's state, and the order in which its parts are called.
//!
//! ```text
//!     event ─► the part it is for ─► effects ─► pods, other parts ─► effects …
//!     turn  ─► each part that is due, in the order of `Agent::turn`
//! ```
//!
//! The pods are one value (`pods`); every other concern is a part with `due`, `turn` and `take`. A part reads the pods and
//! requests effects (`effects`), which only this loop applies. All of it runs on the loop's thread between two awaits; whatever
//! takes time is a task that ends with an event.

use super::checkpoint::Checkpointing;
use super::cluster::{Cluster, ClusterEvent};
use super::container_gc::ContainerGc;
use super::devices::{Devices, FoundDevices};
use super::effects::{Effect, Effects, Forgotten};
use super::eviction::{EvictionManager, PodStats};
use super::identity_file::IdentityFile;
use super::image_gc::{ImageGc, ListedImages, RemovedImage};
use super::image_sync::ImageSync;
use super::local_storage::{LocalStorage, LocalStorageUsage};
use super::log_flush::LogFlush;
#[cfg(feature = "tls")]
use super::node_api;
use super::node_stats::NodeStats;
use super::pods::{JobResult, Pods};
use super::prober::Prober;
use super::relist::Relisting;
use super::runtime_events::RuntimeEvents;
use super::shims::Shims;
use super::show::{self, PartsUse};
use super::shutdown::ShutdownManager;
use super::unpacked_layers::LayerRecord;
use super::written::with_written;
use super::{Ending, Stop, debug, event_ring, logs, streams, top};
use crate::config::Config;
use crate::cri::shims::Shim;
use crate::cri::{ImageStore, Runtime, RuntimeEvent, RuntimeResult};
use crate::events::EventKind;
use crate::limits::EVENT_QUEUED_BYTES_MAX;
use crate::metrics::{self, Shown};
use crate::model::{ContainerId, Mono, Now, PodUid};
use crate::pleg::Relist;
use crate::pleg::evented::AwaitedState;
use crate::probe::run::Answer;
use crate::server::{self, Query, Question};
use crate::shutdown::{TERMINATED, TERMINATED_MESSAGE};
use crate::source::SourceUpdate;
#[cfg(feature = "tls")]
use crate::source::{self, api_node::NodeFields};
use crate::store::file::CheckpointFile;
use crate::systemd::logind::DelayLock;

/// Size of an event in the queue, without what it points to: an event is queued for a moment only.
const _: () = assert!(size_of::<Event>() <= EVENT_QUEUED_BYTES_MAX);

/// An event, which a task brings to the loop.
pub(super) enum Event {
    /// A source's full set. Boxed: it is far larger than the others, and every slot of the queue has the size of the largest
    /// variant.
    Source(Box<SourceUpdate>),
    /// Images of these names were imported.
    Imported(Vec<String>),
    /// A relist ended.
    Relisted(RuntimeResult<Relist>),
    /// An event from the runtime's stream.
    Runtime(RuntimeEvent),
    /// The event stream of that number ended.
    StreamEnded(u64, RuntimeResult<()>),
    /// The runtime's status shows the change that an event announced for this id, or the wait for it timed out.
    Shown { uid: PodUid, id: Box<str>, until: AwaitedState },
    /// A pod's job ended; `job` is its number.
    Job { uid: PodUid, job: u64, result: JobResult },
    /// The sweep of orphaned pod directories ended; those of these pods are left.
    Swept(Vec<PodUid>),
    /// A write of the identity file ended.
    IdentityWritten(std::io::Result<()>),
    /// Logs in memory were flushed to the disk.
    LogsFlushed(Result<(), String>),
    /// A write of the checkpoint ended.
    CheckpointWritten(std::io::Result<()>),
    /// Local storage usage of the pods that have limits of their own.
    Measured(Box<LocalStorageUsage>),
    /// The list of images was read.
    ImagesListed(Result<Box<ListedImages>, String>),
    /// Images were written out to their disk.
    ImagesWritten(Result<(), String>),
    /// Shims that serve no sandbox.
    ShimsSeen(Option<Vec<Shim>>),
    /// The removal of an image ended.
    ImageRemoved(Box<RemovedImage>),
    /// Memory and file systems were measured.
    Observed(Box<NodeStats>),
    /// Resource usage of the pods that may be evicted.
    PodsMeasured(Box<PodStats>),
    /// A probe ended; the number identifies it.
    Probed(u64, Result<Answer, String>),
    /// A task of the cluster ended.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no cluster then"))]
    Cluster(Box<ClusterEvent>),
    /// A request on the local socket.
    Query(Query),
    /// The node's addresses changed.
    Addresses(Vec<Box<str>>),
    /// Other devices are behind the paths of device volumes.
    Devices(Box<FoundDevices>),
    /// A running container was to get other devices: those that it has got, or why it cannot have them.
    DevicesChanged(PodUid, ContainerId, Result<String, String>),
    /// A signal, or a notification by logind.
    Stop(Stop),
}

impl Event {
    /// The loop's activity with this event, for the log and `/metrics`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Source(_) => "loop: source update",
            Self::Imported(_) => "loop: imported images",
            Self::Relisted(_) => "loop: relist",
            Self::Runtime(_) => "loop: runtime event",
            Self::StreamEnded(..) => "loop: end of runtime events",
            Self::Shown { .. } => "loop: container status",
            Self::Job { .. } => "loop: pod sync",
            Self::Swept(_) => "loop: orphaned pods",
            Self::IdentityWritten(_) => "loop: identity file",
            Self::CheckpointWritten(_) => "loop: checkpoint file",
            Self::Measured(_) => "loop: local storage usage",
            Self::ImagesListed(_) => "loop: image list",
            Self::ImagesWritten(_) => "loop: image write-out",
            Self::ShimsSeen(_) => "loop: shims",
            Self::LogsFlushed(_) => "loop: log flush",
            Self::ImageRemoved(_) => "loop: image removal",
            Self::Observed(_) => "loop: node stats",
            Self::PodsMeasured(_) => "loop: pod stats",
            Self::Probed(..) => "loop: probe result",
            Self::Cluster(_) => "loop: cluster event",
            Self::Query(_) => "loop: request",
            Self::Addresses(_) => "loop: node addresses",
            Self::Devices(_) | Self::DevicesChanged(..) => "loop: devices",
            Self::Stop(_) => "loop: stop",
        }
    }
}

/// The node's state, owned by one loop.
pub(super) struct Agent<R> {
    out: Effects,
    pods: Pods<R>,
    relisting: Relisting,
    runtime_events: RuntimeEvents,
    identity_file: IdentityFile,
    checkpointing: Checkpointing,
    measuring: LocalStorage,
    images: ImageGc,
    image_sync: ImageSync,
    shims: Shims,
    log_flush: LogFlush,
    eviction: EvictionManager,
    garbage: ContainerGc,
    prober: Prober<R>,
    devices: Devices,
    shutdown: ShutdownManager,
    /// The cluster that this node has joined.
    cluster: Option<Cluster>,
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn new(
        out: Effects,
        pods: Pods<R>,
        config: &Config,
        image_store: Option<ImageStore>,
        cluster: Option<Cluster>,
        now: Now,
    ) -> Self {
        let file = CheckpointFile::new(&config.root_dir);
        let mut agent = Self {
            relisting: Relisting::new(now.mono),
            runtime_events: RuntimeEvents::new(now.mono),
            identity_file: IdentityFile::default(),
            checkpointing: Checkpointing::new(file, out.clock().boot_id(), now.mono),
            measuring: LocalStorage::new(config.meminfo.clone(), now.mono),
            image_sync: ImageSync::new(
                image_store.clone(),
                LayerRecord::new(&config.root_dir, out.clock().boot_id()),
                now.mono,
            ),
            shims: Shims::new(image_store.as_ref(), now.mono),
            log_flush: LogFlush::new(config, now.mono),
            images: ImageGc::new(config.image_gc, image_store, now.mono),
            eviction: EvictionManager::new(config, now.mono),
            garbage: ContainerGc::new(config.dead_containers),
            prober: Prober::new(pods.ctx()),
            devices: Devices::default(),
            shutdown: ShutdownManager::new(config.shutdown.clone()),
            cluster,
            out,
            pods,
        };
        agent.checkpointing.restore(&mut agent.pods, &mut agent.images, now);
        agent
    }

    /// The next deadline of any part.
    pub(super) fn due(&self) -> Option<Mono> {
        let of_parts = [
            self.pods.due(),
            self.relisting.due(),
            self.runtime_events.due(&self.relisting),
            self.identity_file.due(&self.pods),
            self.checkpointing.due(&self.pods),
            self.measuring.due(&self.pods),
            self.images.due(&self.pods),
            self.image_sync.due(),
            self.shims.due(),
            self.log_flush.due(),
            self.eviction.due(),
            self.garbage.due(),
            self.prober.due(&self.pods),
            self.shutdown.due(self.is_node_reported()),
            self.cluster.as_ref().and_then(|cluster| cluster.due(&self.pods, &self.out)),
        ];
        of_parts.into_iter().flatten().min()
    }

    /// Runs each part that is due, in this order. Called after every event and timer.
    pub(super) fn turn(&mut self) {
        let now = self.out.now();
        self.out.metrics().turns.inc();
        self.runtime_events.turn(&self.pods, &self.relisting, now.mono, &mut self.out);
        self.apply_effects();
        self.relisting.turn(&self.pods, now.mono, &self.out);
        self.identity_file.turn(&mut self.pods, now.mono, &self.out);
        self.measuring.turn(&self.pods, now.mono, &self.out);
        self.eviction.turn(&self.pods, now.mono, &mut self.out);
        self.images.turn(&self.pods, now.mono, &self.out);
        self.garbage.turn(&self.pods, now, &mut self.out);
        self.apply_effects();
        self.prober.turn(&self.pods, now.mono, &mut self.out);
        self.apply_effects();
        while self.shutdown.turn(&self.pods, now.mono, &mut self.out) {
            self.apply_effects();
        }
        self.pods.drive_due(now, &mut self.out);
        self.apply_effects();
        self.pods.settle_resizes(now, &mut self.out);
        self.apply_effects();
        self.pods.admit_waiting(&mut self.out);
        self.apply_effects();
        if let Some(cluster) = &mut self.cluster {
            cluster.turn_admission(now.mono, &mut self.out);
            self.apply_effects();
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.turn(&self.pods, now, &mut self.out);
            self.apply_effects();
        }
        self.identity_file.turn(&mut self.pods, now.mono, &self.out);
        if self.images.note_used(&self.pods, now.mono) {
            self.image_sync.request(now.mono);
        }
        self.image_sync.count(self.images.seen().held().0, now.mono);
        self.image_sync.turn(&self.pods, now.mono, &self.out);
        self.shims.turn(&self.pods, now.mono, &self.out);
        self.log_flush.turn(&self.pods, now.mono, &self.out);
        self.checkpointing.turn(&self.pods, &self.images, now.mono, &self.out);
        self.pods.pack();
    }

    /// Handles one event; [`Event::Stop`] is handled by the loop itself.
    pub(super) fn take(&mut self, event: Event) {
        let now = self.now();
        let (pods, out) = (&mut self.pods, &mut self.out);
        match event {
            Event::Source(update) => self.source(*update),
            Event::Imported(images) => {
                pods.imported(&images, out);
                self.image_sync.request(now);
            }
            Event::Relisted(result) => self.relisted(result, now),
            Event::Runtime(event) => self.runtime_events.take(event, pods, now, out),
            Event::StreamEnded(stream, result) => {
                self.runtime_events.take_end(stream, result, &self.relisting, now, out);
            }
            Event::Shown { uid, id, until } => pods.shown(&uid, &id, until, out),
            Event::Job { uid, job, result } => pods.job_ended(&uid, job, result, out),
            Event::Query(query) => self.answer(&query),
            Event::IdentityWritten(result) => self.identity_file.take(result, pods, now, out),
            Event::CheckpointWritten(result) => self.checkpointing.take(result, now, out),
            Event::Measured(found) => self.measuring.take(*found, pods, out),
            Event::ImagesListed(looked) => self.images.take_list(looked, pods, out),
            Event::ImagesWritten(written) => self.image_sync.take(written, now),
            Event::ShimsSeen(found) => self.shims.take(found.as_deref(), out),
            Event::LogsFlushed(flushed) => self.log_flush.take(&flushed),
            Event::ImageRemoved(removed) => self.images.take_removed(*removed, pods, out),
            Event::Observed(seen) => self.eviction.take_observation(*seen, pods, out),
            Event::PodsMeasured(measures) => self.eviction.take_measures(*measures, pods, out),
            Event::Probed(number, answer) => self.prober.take(number, answer, pods, out),
            Event::Swept(slow) => pods.sweep_ended(slow, out),
            Event::Addresses(addresses) => self.addresses_changed(&addresses),
            Event::Devices(found) => pods.set_devices(*found, out),
            Event::DevicesChanged(uid, id, done) => pods.devices_changed(&uid, &id, done, out),
            Event::Cluster(event) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.take(*event, pods, now, out);
                }
            }
            Event::Stop(_) => {}
        }
        self.apply_effects();
    }

    /// Applies the effects that parts have requested, and those that follow from them, until none is left.
    fn apply_effects(&mut self) {
        while let Some(effect) = self.out.next() {
            self.apply(effect);
        }
    }

    fn apply(&mut self, effect: Effect) {
        let now = self.now();
        let (pods, out) = (&mut self.pods, &mut self.out);
        match effect {
            Effect::Drive(uid) => pods.drive(&uid, out),
            Effect::PlanAgain(uid) => pods.plan_again(&uid, out),
            Effect::ReadAgain(uid) => pods.read_again(&uid, out),
            Effect::RefreshStatus(uid) => pods.refresh_status(&uid, pods.now()),
            Effect::Applied(over) => {
                pods.update_readiness_gates();
                pods.end_terminal(&over, out);
                self.devices.follow(pods, out);
            }
            Effect::Evict { uid, message, grace, why } => pods.evict(&uid, &message, grace, why, out),
            Effect::EndForShutdown(uid, group) => {
                pods.end_for_shutdown(&uid, group, TERMINATED, TERMINATED_MESSAGE, out);
            }
            Effect::ClearEnded(uid) => pods.clear_ended(&uid, out),
            Effect::PullAgain(uid) => pods.pull_again(&uid, out),
            Effect::AwaitChange(uid, id, instance, until) => {
                let at_once = self.runtime_events.come_after_the_status();
                pods.await_change(&uid, (id, instance, until), at_once, out);
            }
            Effect::Probe(number, uid, place) => {
                let asked = pods.ask_probe(&uid, place, now);
                self.prober.begin(number, asked, out);
            }
            Effect::Probed(uid, place, container, result) => {
                pods.probe_answered(&uid, place, &container, result, out);
            }
            Effect::Conditions(conditions) => pods.set_conditions(conditions, out),
            Effect::Surplus(surplus) => pods.set_surplus(surplus, out),
            Effect::Saved(saved) => pods.set_saved(saved),
            Effect::Close(group) => pods.close(group),
            Effect::Reopen => pods.reopen(out),
            Effect::WasRead(uid) => self.was_read(&uid),
            Effect::Forgotten(forgotten) => self.forget(*forgotten),
            Effect::LocalPods => self.publish_local_pods(),
            Effect::AwaitSave(uid) => self.checkpointing.await_save(uid),
            Effect::NoSpace(uid) => self.images.found_no_space(&uid, now),
            Effect::ReclaimImages => self.images.reclaim(now),
            Effect::ImagesReclaimed => self.eviction.images_reclaimed(now),
            Effect::StartedSomething => self.runtime_events.started_something(now),
            Effect::RuntimeAnswered => self.relisting.runtime_answered(now),
            Effect::Suspect(uid, agreed) => self.runtime_events.suspect(&uid, agreed, now),
            Effect::RelistBy(at) => self.relisting.request(at),
            Effect::ReportNode => self.report_node(now),
            #[cfg(feature = "tls")]
            Effect::Preempt(uid) => pods.preempt(&uid, out),
            #[cfg(feature = "tls")]
            Effect::Delete(ending) => pods.begin_deletion(&ending),
            #[cfg(feature = "tls")]
            Effect::Hurry(ending) => pods.hurry(&ending, out),
            #[cfg(feature = "tls")]
            Effect::NodeChanged(node) => {
                let NodeFields { labels, taints, scalars, .. } = *node;
                pods.set_node_fields(labels, taints, Some(&scalars));
            }
            #[cfg(feature = "tls")]
            Effect::OfflineNode(node) => pods.set_node_fields(node.labels, node.taints, None),
            #[cfg(feature = "tls")]
            Effect::K3sSettings(settings, unset) => pods.set_k3s_settings(&settings, unset),
            #[cfg(feature = "tls")]
            Effect::AdmitAgain => self.admit_again(),
            #[cfg(feature = "tls")]
            Effect::Update(update) => self.source(*update),
        }
    }

    fn now(&self) -> Mono {
        self.out.now().mono
    }

    // ---- across several parts ------------------------------------------------------------------------------

    /// The pod was read: awaited changes that its status does not show yet stay awaited.
    fn was_read(&mut self, uid: &PodUid) {
        let Some(observed) = self.pods.forget_shown(uid) else { return };
        let met = self.runtime_events.met(&observed);
        let at_once = self.runtime_events.come_after_the_status();
        self.pods.await_unshown(uid, met, at_once, &mut self.out);
    }

    /// Nothing of the pod is left on this node: the other parts drop their state of it.
    fn forget(&mut self, forgotten: Forgotten) {
        self.prober.end(&forgotten.uid);
        self.checkpointing.forget(&forgotten.uid);
        if let Some(cluster) = &mut self.cluster {
            cluster.forget(forgotten);
        }
    }

    fn publish_local_pods(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.publish_local_pods(&self.pods);
        }
    }

    fn report_node(&mut self, now: Mono) {
        if let Some(cluster) = &mut self.cluster {
            cluster.report_node(now);
        }
    }

    /// Repeats the admission of the API server's last update.
    #[cfg(feature = "tls")]
    fn admit_again(&mut self) {
        if let Some(update) = self.cluster.as_ref().and_then(|cluster| cluster.last_update().cloned()) {
            self.admit(update);
        }
    }

    /// A source's full set.
    pub(super) fn source(&mut self, update: SourceUpdate) {
        for problem in update.problems.iter().filter(|problem| problem.fresh) {
            log::warn!("{problem}");
        }
        if let Some(update) = self.pods.await_relist(update) {
            self.apply_update(update);
        }
    }

    fn apply_update(&mut self, mut update: SourceUpdate) {
        self.pods.keep_uids(&mut update);
        #[cfg(feature = "tls")]
        if let Some(cluster) = self.cluster.as_mut().filter(|_| update.source == source::API) {
            cluster.set_update(&update, self.out.now().mono);
        }
        self.admit(update);
    }

    /// Sources → admission → desired.
    #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "alone, all pods are admitted"))]
    fn admit(&mut self, mut update: SourceUpdate) {
        #[cfg(feature = "tls")]
        if let Some(cluster) = &mut self.cluster {
            let now = self.out.now().mono;
            let known = cluster.admit(&mut update, &self.pods, now, &mut self.out);
            self.apply_effects();
            if let Some(known) = known {
                self.pods.set_api_server_state(&update.server.ending, known);
            }
        }
        self.pods.apply(update, &mut self.out);
        self.apply_effects();
    }

    /// A relist ended.
    fn relisted(&mut self, result: RuntimeResult<Relist>, now: Mono) {
        let Some((relist, begun, is_back)) = self.relisting.take(result, now, &self.out) else {
            return;
        };
        self.relisting.request(now + self.runtime_events.relisted(begun, is_back, now));
        let touched = self.pods.relisted(relist, begun, is_back, &mut self.out);
        self.apply_effects();
        for (_, update) in self.pods.take_early_updates() {
            self.apply_update(update);
        }
        self.pods.settle_relist(touched, &mut self.out);
    }

    fn addresses_changed(&mut self, addresses: &[Box<str>]) {
        if self.pods.set_addresses(addresses, &mut self.out) {
            let now = self.now();
            if let Some(cluster) = &mut self.cluster {
                cluster.set_addresses(addresses, now);
            }
        }
    }

    // ---- system shutdown -----------------------------------------------------------------------------------

    pub(super) fn begin_shutdown(&mut self, lock: Option<DelayLock>) {
        self.shutdown.begin(lock, self.now(), &mut self.out);
        self.apply_effects();
    }

    pub(super) fn cancel_shutdown(&mut self) {
        self.shutdown.cancel(&mut self.out);
        self.apply_effects();
    }

    /// The pods have terminated or their time is over, and the API server has the Node's shutdown condition or its time for
    /// that is over.
    pub(super) fn shutdown_is_over(&self) -> bool {
        self.shutdown.is_over() && (self.is_node_reported() || self.shutdown.has_waited(self.now()))
    }

    /// The Node's status was reported, or there is no API server.
    fn is_node_reported(&self) -> bool {
        self.cluster.as_ref().is_none_or(Cluster::is_node_reported)
    }

    /// `BirthCry`.
    pub(super) fn note_start(&self) {
        if self.cluster.is_some() {
            self.out.note_node(EventKind::Normal, "Starting", "Starting kubelet.");
        }
        let layers = self.out.metrics().layers_removed.get();
        if layers > 0 {
            let message = format!(
                "{layers} layers of images may not have been on the disk when the power was cut; they are unpacked again"
            );
            self.out.note_node(EventKind::Warning, "ImagesUnpackedAgain", &message);
        }
    }

    /// Writes the checkpoint and the offline copy, and flushes logs in memory, before the agent ends.
    pub(super) async fn save_at_end(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.save_offline_copy(&self.pods).await;
        }
        self.checkpointing.save_at_end(&self.pods, &self.images).await;
        self.log_flush.flush_at_end(self.pods.manager()).await;
    }

    // ---- requests ------------------------------------------------------------------------------------------

    fn answer(&mut self, query: &Query) {
        let (pods, out, now) = (&self.pods, &self.out, self.out.now());
        let answer = match &query.question {
            Question::Health => server::Answer::Found("ok".to_owned()),
            Question::Metrics => {
                let page = metrics::text(out.metrics(), &self.gauges());
                with_written(pods, self.shims.socket(), page, metrics::add_written)
            }
            Question::Top => with_written(
                pods,
                self.shims.socket(),
                metrics::top(&self.gauges()),
                metrics::add_written_to_top,
            ),
            Question::TopPods(question) => top::top_pods(pods, question),
            Question::Pods(question) if question.format.is_list() => show::list_pods(pods, question),
            Question::Pods(question) => server::Answer::Found(show::show_pods(pods, question, now.wall)),
            Question::Describe { name, namespace, style } => {
                show::show_pod(pods, out, name, namespace.as_deref(), now, *style)
            }
            Question::Logs { name, namespace } => logs::show_logs(pods, name, namespace.as_deref()),
            Question::Stream(question) => streams::stream(pods, question),
            Question::Debug(question) => {
                debug::debug(&mut self.pods, &mut self.checkpointing, &mut self.out, question)
            }
            Question::Events(question) => event_ring::show_events(pods, out, question),
            Question::EventAfter(revision) => event_ring::await_event(out, *revision),
            #[cfg(feature = "tls")]
            Question::Node(question) => node_api::node_question(pods, question),
        };
        // Full or closed: the client disconnected, or has its response already.
        let _ = query.answer.try_send(answer);
    }

    fn gauges(&self) -> Shown {
        let cluster = self.cluster.as_ref();
        let parts = PartsUse {
            images_seen: self.images.seen().held(),
            probes: self.prober.len(),
            unknown_events: self.runtime_events.held(),
            missed_events: self.runtime_events.missed(),
            server_moves: cluster.map(Cluster::server_moves),
            is_registered: cluster.map(Cluster::is_registered),
            of_cluster: cluster.map(|of| of.usage(&self.pods, &self.out)).unwrap_or_default(),
        };
        show::gauges(&self.pods, &self.out, parts)
    }

    /// For `--once`: the results of all pods and the errors in manifests, once they are final or the patience is over.
    pub(super) fn once_ending(&self, patience_is_over: bool) -> Option<Ending> {
        show::once_ending(&self.pods, patience_is_over)
    }
}
