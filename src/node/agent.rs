//! The loop's state and what each event does to it.
//!
//! ```text
//!     source update ─► desired ─► records (workers) ─► drive: read ─► status ─► plan ─► act ─► read …
//!     relist, the runtime's events ─► what changed ─► touched records ─► drive
//! ```
//!
//! Sources are here, looks at the runtime in `relist`, what it tells by itself in `events`, what follows for one pod in
//! `pod`, its probes in `probes`, what volumes take in `usage`, what the node is short of in `pressure`, images that
//! nobody needs in `images`, dead containers of all pods in `garbage`, container logs in `logs`, what is kept on disk in
//! `disk` and `checkpoint`, what a former agent has left in `handover`. All of it runs on the loop's thread between two
//! awaits; what takes time is a task (`jobs`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use smol::channel::Sender;

use super::Stop;
use super::cgroups::NodeCgroups;
use super::checkpoint::{Restored, Saving};
use super::cluster::{Cluster, ClusterEvent};
use super::disk::Disk;
use super::events::RuntimeEvents;
use super::garbage::Garbage;
use super::images::{Collecting, Look, Removed};
use super::observe::Seen;
use super::pressure::{Measures, Watching};
use super::probes::Probing;
use super::record::Record;
use super::relist::Relisting;
use super::resizes::{Resizes, hold};
use super::ring::Ring;
use super::shutdown::Shutdown;
use super::static_admission::allocatable;
use super::usage::{HeldToLimits, Measuring};
use crate::admit::Resources;
use crate::config::Config;
use crate::cri::{ImageStore, Runtime, RuntimeEvent, RuntimeResult};
use crate::desired::{Change, Desired};
use crate::events::EventKind;
use crate::executor::Executor;
use crate::facts;
use crate::image::name::full_name;
use crate::image::seen::ImagesSeen;
use crate::limits::{EVENT_QUEUED_BYTES_MAX, HELD_PODS_TOLD_MAX, PODS_IN_HAND_MAX, PODS_OPENED_BYTES_MAX};
use crate::logs::rotate::Told;
use crate::metrics::Metrics;
use crate::model::backoff::Backoff;
use crate::model::{DesiredPod, Mono, Now, ObjectKey, ObjectKind, ObservedPod, PodKey, PodUid, Wall, object};
use crate::model::{SortedMap, SortedSet};
use crate::pleg::news::Until;
use crate::pleg::{Relist, RelistPod};
use crate::poison::{self, SetAside};
use crate::probe::run::Answer;
use crate::render::ManifestObjects;
use crate::shutdown::ShutdownGroups;
use crate::source::{self, Held, SourceUpdate, SourcedPod};
use crate::store::file::CheckpointFile;
use crate::store::identity::Identity;
use crate::store::statuses::StatusStore;
use crate::sync::act::ActContext;
use crate::sync::outcome::Outcome;
use crate::sync::worker::{Life, Worker};
use crate::systemd::logind::DelayLock;

/// What a waiting event takes in the queue; what it points to is in nobody else's hands for a moment only.
const _: () = assert!(size_of::<Event>() <= EVENT_QUEUED_BYTES_MAX);

/// What a task brings to the loop.
pub(super) enum Event {
    /// A source's full set.
    Source(SourceUpdate),
    /// Images of these names were imported.
    Imported(Vec<String>),
    /// A relist ended.
    Relisted(RuntimeResult<Relist>),
    /// The runtime tells something.
    Runtime(RuntimeEvent),
    /// The stream of that number ended.
    StreamEnded(u64, RuntimeResult<()>),
    /// The runtime's status shows what an event told of this id, or does not in time.
    Shown { uid: PodUid, id: Box<str>, until: Until },
    /// A pod's job ended; the number tells whose.
    Job { uid: PodUid, job: u64, result: JobResult },
    /// The disk was cleared of pods that are gone, but for these.
    Swept(Vec<PodUid>),
    /// A write of the identity file ended.
    IdentityWritten(std::io::Result<()>),
    /// A write of the checkpoint ended.
    CheckpointWritten(std::io::Result<()>),
    /// What the pods use that have limits of their own.
    Measured(Box<HeldToLimits>),
    /// A look at the images ended.
    ImagesLooked(Result<Box<Look>, String>),
    /// The removal of an image ended.
    ImageRemoved(Box<Removed>),
    /// A look at memory and disks ended.
    Observed(Box<Seen>),
    /// What the pods use that may go.
    PodsMeasured(Box<Measures>),
    /// A probe ended; the number tells which.
    Probed(u64, Result<Answer, String>),
    /// A task of the cluster's ended.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no cluster then"))]
    Cluster(Box<ClusterEvent>),
    /// Somebody asks on the local socket.
    Query(crate::server::Query),
    /// The node's addresses are these now.
    Addresses(Vec<Box<str>>),
    /// A signal, or logind.
    Stop(Stop),
}

impl Event {
    /// What the loop is at with it, for the log and `/metrics`.
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
            Self::ImagesLooked(_) => "loop: image list",
            Self::ImageRemoved(_) => "loop: image removal",
            Self::Observed(_) => "loop: node stats",
            Self::PodsMeasured(_) => "loop: pod stats",
            Self::Probed(..) => "loop: probe result",
            Self::Cluster(_) => "loop: cluster event",
            Self::Query(_) => "loop: request",
            Self::Addresses(_) => "loop: node addresses",
            Self::Stop(_) => "loop: stop",
        }
    }
}

/// How a pod's job ended.
pub(super) enum JobResult {
    Read(RuntimeResult<ObservedPod>),
    /// Of an act or a kill.
    Done(Outcome),
    Removed(Result<(), String>),
    /// The files that a running pod's volumes hold.
    Refreshed(Result<(), String>),
}

/// The node's state; one loop owns it.
pub(super) struct Agent<R> {
    pub(super) ctx: ActContext<R>,
    pub(super) executor: Rc<Executor>,
    pub(super) events: Sender<Event>,
    pub(super) cgroups: NodeCgroups,
    pub(super) identity: Identity,
    pub(super) runtime_name: Box<str>,
    pub(super) started: Wall,
    pub(super) host_ips: Vec<IpAddr>,
    pub(super) desired: Desired,
    pub(super) records: BTreeMap<PodUid, Record>,
    pub(super) ring: Rc<Ring>,
    pub(super) backoff: Backoff,
    pub(super) statuses: StatusStore,
    pub(super) relist: Option<Relist>,
    /// What each source said first waits for the first relist: of two manifests that name one pod, the running one stays.
    pub(super) early_updates: SortedMap<&'static str, SourceUpdate>,
    pub(super) relisting: Relisting,
    pub(super) runtime_events: RuntimeEvents,
    pub(super) jobs: u64,
    pub(super) told_held: SortedSet<PodUid>,
    /// Who rotates logs is told here what runs.
    pub(super) logs: Told,
    pub(super) set_aside: Arc<SetAside>,
    pub(super) disk: Disk,
    pub(super) saving: Saving,
    pub(super) images_seen: ImagesSeen,
    pub(super) measuring: Measuring,
    pub(super) collecting: Collecting,
    pub(super) watching: Watching,
    pub(super) garbage: Garbage,
    pub(super) probing: Probing<R>,
    pub(super) resizes: Resizes,
    pub(super) metrics: Rc<Metrics>,
    /// What each source holds.
    pub(super) held: SortedMap<&'static str, Held>,
    /// What is kept of the cluster that this node joined.
    pub(super) cluster: Option<Cluster>,
    pub(super) shutdown_groups: ShutdownGroups,
    /// The node's, while it is under way.
    pub(super) shutdown: Option<Shutdown>,
    /// logind's, while it waits.
    pub(super) delay_lock: Option<DelayLock>,
    /// Pods of a former agent that nothing names are ended.
    pub(super) take_over: bool,
    /// What the pods of a node that is alone may ask for.
    pub(super) allocatable: Resources,
}

impl<R: Runtime + 'static> Agent<R> {
    #[expect(clippy::too_many_arguments, reason = "called once, by the wiring")]
    pub(super) fn new(
        ctx: ActContext<R>,
        executor: Rc<Executor>,
        events: Sender<Event>,
        cgroups: NodeCgroups,
        identity: Identity,
        runtime_name: Box<str>,
        ring: Rc<Ring>,
        config: &Config,
        image_store: Option<ImageStore>,
        logs: Told,
        set_aside: Arc<SetAside>,
        metrics: Rc<Metrics>,
        cluster: Option<Cluster>,
    ) -> Self {
        let now = ctx.clock.now();
        let saving = Saving::new(CheckpointFile::new(&config.root_dir), ctx.clock.boot_id(), now.mono);
        let host_ips = ctx.node.node_ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        let probing = Probing::new(&ctx);
        let allocatable = allocatable(&ctx.node, facts::pods_max(config, &ctx.node));
        let of_url = config.static_pods.is_some().then_some(source::http::NAME);
        let of_server = cluster.is_some().then_some(source::API);
        let sources: Vec<&'static str> =
            [Some(source::file::NAME), of_url, of_server].into_iter().flatten().collect();
        let mut agent = Self {
            ctx,
            executor,
            events,
            cgroups,
            identity,
            runtime_name,
            started: now.wall,
            host_ips,
            desired: Desired::new(&sources),
            records: BTreeMap::new(),
            ring,
            backoff: Backoff::new(now.mono, config.max_container_restart_period),
            statuses: StatusStore::new(config.status_store_bytes),
            relist: None,
            early_updates: SortedMap::new(),
            relisting: Relisting::new(now.mono),
            runtime_events: RuntimeEvents::new(now.mono),
            jobs: 0,
            told_held: SortedSet::new(),
            logs,
            set_aside,
            disk: Disk::default(),
            saving,
            images_seen: ImagesSeen::default(),
            measuring: Measuring::new(now.mono),
            collecting: Collecting::new(config.image_gc, image_store, now.mono),
            watching: Watching::new(config, now.mono),
            garbage: Garbage::new(config.dead_containers),
            probing,
            resizes: Resizes::default(),
            metrics,
            held: SortedMap::new(),
            cluster,
            shutdown_groups: config.shutdown.clone(),
            shutdown: None,
            delay_lock: None,
            take_over: config.take_over,
            allocatable,
        };
        agent.restore(now);
        agent
    }

    /// The next instant at which something is to be done without an event.
    pub(super) fn due(&self) -> Option<Mono> {
        let of_pods = self.records.values().filter(|r| !r.set_aside).filter_map(|record| record.worker.due());
        let others = [
            self.relisting.due(),
            self.runtime_events_due(),
            self.disk.due(),
            self.save_due(),
            self.measuring_due(),
            self.collecting_due(),
            self.watching_due(),
            self.garbage.due(),
            self.probes_due(),
            self.shutdown_due(),
            self.cluster_due(),
        ];
        of_pods.chain(others.into_iter().flatten()).min()
    }

    /// Does what is due. Called after every event and timer.
    pub(super) fn turn(&mut self) {
        let now = self.ctx.clock.now();
        self.metrics.turns.inc();
        self.turn_runtime_events(now.mono);
        self.start_relist_when_due(now.mono);
        if self.disk.due().is_some_and(|at| at <= now.mono) {
            self.write_identity();
        }
        self.measure_when_due(now.mono);
        self.watch_when_due(now.mono);
        self.collect_when_due(now.mono);
        self.count_garbage_when_due(now);
        self.probe_when_due(now.mono);
        self.turn_shutdown(now.mono);
        let due: Vec<PodUid> = self
            .records
            .iter()
            .filter(|(_, record)| record.worker.due().is_some_and(|at| at <= now.mono))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in due {
            self.drive(&uid);
        }
        self.settle_resizes(now);
        self.admit_those_that_wait();
        self.turn_cluster(now);
        self.save_when_due(now.mono);
        self.pack_pods();
    }

    /// Memory of large pods' objects that are open, about.
    pub(super) fn opened_bytes(&self) -> usize {
        self.records.values().map(|record| record.worker.opened_bytes()).sum()
    }

    /// Packs the largest pods that nothing is done for, until what is open of large ones fits.
    fn pack_pods(&mut self) {
        self.desired.pack();
        let mut sum = self.opened_bytes();
        if sum <= PODS_OPENED_BYTES_MAX {
            return;
        }
        let open = |record: &Record| record.worker.opened_bytes();
        let mut large: Vec<&mut Record> =
            self.records.values_mut().filter(|record| open(record) > 0).collect();
        large.sort_by_key(|record| Reverse(open(record)));
        for record in large {
            let before = open(record);
            record.worker.pack();
            sum -= before - open(record);
            if sum <= PODS_OPENED_BYTES_MAX {
                return;
            }
        }
    }

    /// Takes one event; queries and the stop are the loop's own.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Source(update) => self.source(update),
            Event::Imported(images) => self.imported(&images),
            Event::Relisted(result) => self.relisted(result),
            Event::Runtime(event) => self.runtime_event(event),
            Event::StreamEnded(stream, result) => self.stream_ended(stream, result),
            Event::Shown { uid, id, until } => self.shown(&uid, &id, until),
            Event::Job { uid, job, result } => self.job_ended(&uid, job, result),
            Event::Query(query) => self.answer(&query),
            Event::IdentityWritten(result) => self.identity_written(result),
            Event::CheckpointWritten(result) => self.checkpoint_written(result),
            Event::Measured(found) => self.measured(*found),
            Event::ImagesLooked(looked) => self.images_looked(looked),
            Event::ImageRemoved(removed) => self.image_removed(*removed),
            Event::Observed(seen) => self.observed(*seen),
            Event::PodsMeasured(measures) => self.pods_measured(*measures),
            Event::Probed(number, answer) => self.probed(number, answer),
            Event::Swept(slow) => self.sweep_ended(slow),
            Event::Addresses(addresses) => self.addresses_changed(&addresses),
            Event::Cluster(event) => self.cluster_event(*event),
            Event::Stop(_) => {}
        }
    }

    // ---- sources -----------------------------------------------------------------------------------------

    pub(super) fn source(&mut self, update: SourceUpdate) {
        for problem in update.problems.iter().filter(|problem| problem.fresh) {
            log::warn!("{problem}");
        }
        if self.relist.is_none() {
            self.early_updates.insert(update.source, update);
        } else {
            self.apply(update);
        }
    }

    pub(super) fn apply(&mut self, mut update: SourceUpdate) {
        self.held.insert(update.source, update.held);
        self.keep_uids(&mut update);
        self.server_pods(&mut update);
        let over = update.server.over.clone();
        // What has ended here is over, whether the server has heard of it yet or not (`filterOutInactivePods`).
        let ended = update.pods.iter().map(|sourced| &sourced.pod.key.uid);
        update.server.over.extend(ended.filter(|uid| self.statuses.has_ended(uid)).cloned());
        let relist = self.relist.as_ref();
        let changes = self.desired.apply(update, |uid| relist.is_some_and(|r| r.pods.contains_key(uid)));
        for problem in self.desired.merge_problems().filter(|problem| problem.fresh) {
            log::warn!("{problem}");
        }
        let now = self.ctx.clock.now();
        let mut touched = SortedSet::new();
        let (mut wanted, mut objects) = (Vec::new(), SortedSet::new());
        for change in changes {
            match change {
                Change::Removed(key) => {
                    let pod = self.records.get(&key.uid).and_then(|record| record.worker.pod());
                    let of_server = pod.is_some_and(|pod| pod.pod.is_of_api_server());
                    let why = match (of_server, over.contains(&key.uid)) {
                        (true, true) => "removing what a finished pod has left here",
                        (true, false) => "deleted on the API server; terminating it",
                        (false, _) => "its manifest is gone; terminating it",
                    };
                    log::info!("pod {key}: {why}");
                    touched.insert(key.uid.clone());
                    self.unwant(&key.uid, now);
                }
                Change::Changed(pod) | Change::Added(pod) => wanted.push(pod),
                Change::Object(key) => drop(objects.insert(key)),
            }
        }
        if !objects.is_empty() {
            self.ctx.env = Rc::new(ManifestObjects(self.desired.objects()));
            self.try_again_with(&objects, &mut touched);
        }
        self.try_again_elsewise(&mut touched);
        // Before what is new begins: it may have to wait for one of them.
        self.end_orphans(&mut touched);
        for pod in wanted {
            touched.insert(pod.key.uid.clone());
            self.want(pod);
        }
        for uid in touched {
            self.drive(&uid);
        }
        self.look_at_gates();
        self.end_terminal(&over);
    }

    /// Pods that name one of the objects have what they wait for, perhaps. One that runs gets other files in its volumes;
    /// variables are read when a container is made.
    fn try_again_with(&mut self, objects: &SortedSet<ObjectKey>, touched: &mut SortedSet<PodUid>) {
        for (uid, record) in &mut self.records {
            // As it is wanted now: one that ends is still what it was. One whose manifest is gone must not come back.
            let Some(entry) = self.desired.pod(uid) else { continue };
            let pod = &entry.wanted.pod;
            if !object::named_by(&pod.pod).is_disjoint(objects) {
                // Differs from the kubelet, whose pulls wait on although the login is another one now.
                if object::pull_secrets(&pod.pod)
                    .any(|name| objects.contains(&pod.names(ObjectKind::Secret, name)))
                {
                    for image in pod.images() {
                        self.ctx.images.forget(uid, image);
                    }
                    // A pull that hangs with the old login must not hold up the new one.
                    record.give_up = None;
                }
                record.want(pod.clone());
                record.volumes_stale = true;
                touched.insert(uid.clone());
            }
        }
    }

    /// Pods that have another handler or other volumes by now, by what the cluster says of their class, their claims or their
    /// node, or room for what they name, have what they wait for, perhaps. What runs is not touched by that.
    fn try_again_elsewise(&mut self, touched: &mut SortedSet<PodUid>) {
        for entry in self.desired.entries() {
            let pod = &entry.wanted.pod;
            let Some(record) = self.records.get_mut(&pod.key.uid) else { continue };
            let known = record.worker.pod();
            let is_other = |known: &DesiredPod| {
                known.claims != pod.claims
                    || known.handler != pod.handler
                    || known.too_many_objects != pod.too_many_objects
            };
            if known.is_some_and(|known| is_other(known)) {
                record.want(pod.clone());
                touched.insert(pod.key.uid.clone());
            }
        }
    }

    /// Pods that want one of these images may have waited for it, and need not any more.
    fn imported(&mut self, images: &[String]) {
        let is_one = |image: &&str| full_name(image).is_ok_and(|name| images.contains(&name));
        let mut touched = SortedSet::new();
        for (uid, record) in &mut self.records {
            let Some(entry) = self.desired.pod(uid) else { continue };
            // Those of `smolet debug` are in the record alone.
            let debuggers = record.worker.pod().map(|pod| pod.ephemeral_containers()).unwrap_or_default();
            let debuggers = debuggers.iter().filter_map(|container| container.image.as_deref());
            let images = entry.wanted.pod.images().chain(debuggers).filter(is_one);
            let waited = images.inspect(|image| self.ctx.images.forget(uid, image)).count();
            if waited > 0 {
                record.want(entry.wanted.pod.clone());
                touched.insert(uid.clone());
            }
        }
        for uid in touched {
            self.drive(&uid);
        }
    }

    pub(super) fn want(&mut self, pod: DesiredPod) {
        let uid = pod.key.uid.clone();
        let file = self.desired.pod(&uid).map(|entry| entry.wanted.origin.file.clone());
        self.look_for_resize(&pod);
        if let Some(record) = self.records.get_mut(&uid) {
            record.want(pod);
            self.statuses.set_wanted(&uid, true);
            record.file = file;
            // A pull that hangs on the old image must not hold up the new one.
            record.give_up = None;
            // Labels and annotations stand in files too.
            record.volumes_stale = true;
            record.changed();
            self.judge(&uid);
        } else if self.records.len() < PODS_IN_HAND_MAX {
            self.insert(Rc::new(pod), file);
        } else {
            let message = format!("waits: {PODS_IN_HAND_MAX} pods are here, those that end included");
            self.ctx.note(&pod.key, EventKind::Warning, "TooManyPods", &message);
        }
    }

    /// A wanted pod that waits for room among the pods in hand.
    pub(super) fn next_waiting(&self) -> Option<&SourcedPod> {
        let mut wanted = self.desired.entries().map(|entry| &entry.wanted);
        wanted.find(|wanted| !self.records.contains_key(&wanted.pod.key.uid))
    }

    /// There is room for one more.
    pub(super) fn take_next_waiting(&mut self) -> Option<PodUid> {
        let next = self.next_waiting()?;
        let (pod, file) = (next.pod.clone(), next.origin.file.clone());
        let uid = pod.key.uid.clone();
        self.insert(Rc::new(pod), Some(file));
        Some(uid)
    }

    pub(super) fn insert(&mut self, pod: Rc<DesiredPod>, file: Option<Arc<str>>) {
        let uid = pod.key.uid.clone();
        let waits = self.must_wait(&pod.key);
        let now = self.ctx.clock.now();
        let restored = self.claim(&pod);
        let is_restored = restored.is_some();
        let mut restored = restored;
        let resizing = restored.as_mut().and_then(|restored| restored.resizing.take());
        let (resizing, granted) = resizing.unzip();
        let of = |name: &str| {
            let granted = granted.iter().flatten();
            granted.into_iter().find(|(known, _)| **known == *name).map(|(_, sizes)| *sizes)
        };
        let pod = if granted.is_some() { Rc::new(hold((*pod).clone(), of)) } else { pod };
        let (active_since, pod) = match restored {
            Some(Restored { active_since, debuggers, .. })
                if !debuggers.is_empty() && !pod.pod.is_of_api_server() =>
            {
                (active_since, Rc::new(pod.with_ephemeral_containers(debuggers)))
            }
            restored => (restored.and_then(|restored| restored.active_since), pod),
        };
        let mut record = Record::new(Worker::wanted(pod, waits), file);
        record.restored = is_restored;
        self.resizes.look |= resizing.is_some();
        record.resizing = resizing;
        record.active_since = active_since;
        record.wanted_since = Some(now.mono);
        let _handling = poison::handling(Some(record.mark.clone()));
        self.records.insert(uid.clone(), record);
        self.tell_pods_here();
        if !self.judge(&uid) {
            self.refresh_status(&uid, now);
        }
        self.refuse_for_shutdown(&uid);
    }

    /// Sets a pod aside whose handling ended the process too often. True when it is.
    fn judge(&mut self, uid: &PodUid) -> bool {
        let Some(record) = self.records.get_mut(uid) else { return false };
        let Some(panics) = self.set_aside.panics(&record.mark) else { return false };
        // What is known of its containers stays.
        let mut status = self.statuses.status(uid).unwrap_or_default();
        record.set_aside(panics, &mut status);
        let message = status.message.as_deref().unwrap_or_default();
        self.ctx.note(record.worker.key(), EventKind::Warning, "SetAside", message);
        self.statuses.put(uid, status);
        true
    }

    /// Another pod of this name is still here, or the sweep might take the pod's directory for a leftover.
    fn must_wait(&self, key: &PodKey) -> bool {
        self.name_taken(key) || self.disk.spared.as_ref().is_some_and(|spared| !spared.contains(&key.uid))
    }

    /// Another pod of this name is still here, in hand or only in the runtime.
    fn name_taken(&self, key: &PodKey) -> bool {
        let other = |of: &PodKey| same_name(of, key) && of.uid != key.uid;
        let in_hand = |record: &Record| record.worker.life() != Life::Waiting && other(record.worker.key());
        let runs = |relist: &Relist| {
            let ours = |uid: &PodUid, pod: &RelistPod| pod.made_here || self.identity.adopted().contains(uid);
            relist.pods.iter().any(|(uid, pod)| other(&pod.key) && ours(uid, pod))
        };
        self.records.values().any(in_hand) || self.relist.as_ref().is_some_and(runs)
    }

    /// Pods that waited for their name to be free, and need not any more, begin.
    pub(super) fn free_names(&mut self, touched: &mut SortedSet<PodUid>) {
        if self.shutdown.is_some() {
            return;
        }
        let waiting = |record: &&Record| record.worker.life() == Life::Waiting;
        let keys: Vec<PodKey> =
            self.records.values().filter(waiting).map(|record| record.worker.key().clone()).collect();
        for key in keys {
            if !self.must_wait(&key)
                && let Some(record) = self.records.get_mut(&key.uid)
            {
                record.worker.name_is_free();
                touched.insert(key.uid);
            }
        }
    }

    pub(super) fn unwant(&mut self, uid: &PodUid, now: Now) {
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.unwant();
            self.statuses.set_wanted(uid, false);
            record.unwanted();
            record.unwanted_at.get_or_insert(now.wall);
            record.cut_off_act();
        }
        self.judge(uid);
    }

    /// Pods of ours in the runtime that nothing wants any more.
    pub(super) fn end_orphans(&mut self, touched: &mut SortedSet<PodUid>) {
        self.sweep();
        self.take_over_orphans();
        let Some(relist) = &self.relist else { return };
        let ours = relist.pods.iter().filter(|(uid, pod)| {
            (pod.made_here || self.identity.adopted().contains(*uid)) && !self.records.contains_key(*uid)
        });
        let ours: Vec<PodKey> = ours.map(|(_, pod)| pod.key.clone()).collect();
        let now = self.ctx.clock.now();
        for key in ours {
            if self.desired.may_terminate(&key) || self.is_deleted(&key.uid) {
                log::info!("pod {key}: runs, and no manifest names it; it ends");
                let mut record = Record::new(Worker::orphan(key.clone()), None);
                record.unwanted_at = Some(now.wall);
                // What its container has noted is the spec's.
                record.hurried = self.deletion_grace(&key.uid);
                self.records.insert(key.uid.clone(), record);
                self.judge(&key.uid);
                touched.insert(key.uid);
            } else if self.desired.reported()
                && self.desired.pod(&key.uid).is_none()
                && !self.told_held.contains(&key.uid)
            {
                if self.told_held.len() == HELD_PODS_TOLD_MAX {
                    self.told_held.clear();
                }
                self.told_held.insert(key.uid.clone());
                log::warn!(
                    "pod {key}: no valid manifest names it; it runs on until all manifests can be read"
                );
            }
        }
    }
}

fn same_name(a: &PodKey, b: &PodKey) -> bool {
    a.namespace == b.namespace && a.name == b.name
}
