//! The pods: the desired ones, a record for each, the last relist, and their statuses.
//!
//! ```text
//!     source update ─► desired ─► records (workers) ─► drive: read ─► status ─► plan ─► act ─► read …
//!     relist, the runtime's events ─► changes ─► touched records ─► drive
//! ```
//!
//! Sources are in `sources`, pods of a former agent in `handover`, the worker of one pod in `worker`, statuses in `status`,
//! terminations besides a manifest's removal in `endings`, admission of static pods in `admission`, in-place resizing in
//! `allocation`. Other parts only read the pods; their findings that a plan depends on are in [`Facts`].

mod admission;
mod allocation;
mod devices;
mod endings;
mod events;
mod find;
mod handover;
mod probes;
mod record;
mod relist;
mod sources;
mod status;
mod worker;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

pub(super) use crate::allocation::resizing::Resizing;
pub(super) use crate::allocation::{AllocatedSizes, container_sizes, with_allocation};
pub(super) use admission::NodeRoom;
pub(super) use endings::EvictedFor;
pub(super) use probes::AskedProbe;
pub(super) use record::{Awaited, Record, StartFailures};
pub(super) use worker::{JobResult, Work};
#[cfg(feature = "tls")]
pub(super) use {
    admission::{REJECTED, note_refusal},
    allocation::as_it_counts,
};

use super::cgroups::NodeCgroups;
use super::checkpoint::{Restored, Saved};
use super::devices::FoundDevices;
use super::effects::{Effect, Effects};
use crate::config::Config;
use crate::cri::Runtime;
use crate::desired::Desired;
use crate::eviction::NodeCondition;
use crate::gc::{self, GcPlan, GcPolicy, GcRemoval};
#[cfg(feature = "tls")]
use crate::k3s::{Settings, Unset};
use crate::logs::rotate::LogReports;
use crate::metrics::Metrics;
use crate::model::backoff::Backoff;
use crate::model::object::named_by;
use crate::model::{DesiredPod, Mono, Now, ObservedPod, PodUid, Seconds, Wall};
use crate::model::{SortedMap, SortedSet};
use crate::pleg::Relist;
use crate::poison::SetAside;
use crate::render::NodeSettings;
use crate::shutdown::ShutdownGroup;
#[cfg(feature = "tls")]
use crate::source::EndingPod;
use crate::source::{self, SourceUpdate, SourceUsage};
use crate::store::identity::Identity;
use crate::store::statuses::StatusStore;
use crate::sync::act::{ActContext, RuntimeManager};

/// All state of the node's pods.
pub(super) struct Pods<R> {
    ctx: ActContext<R>,
    cgroups: NodeCgroups,
    metrics: Rc<Metrics>,
    /// Reports the running containers to the log rotation.
    logs: LogReports,
    identity: Identity,
    /// The identity has changed since its file was written.
    identity_changed: bool,
    runtime_name: Box<str>,
    started: Wall,
    host_ips: Vec<IpAddr>,
    desired: Desired,
    records: BTreeMap<PodUid, Record>,
    backoff: Backoff,
    statuses: StatusStore,
    relist: Option<Relist>,
    /// The first update of each source, until the first relist: of two manifests that name one pod, the running one stays.
    early_updates: SortedMap<&'static str, SourceUpdate>,
    /// The checkpoint's records of pods that no source has named yet. Bounded by its file.
    restored: SortedMap<PodUid, Restored>,
    /// The number of the last job.
    jobs: u64,
    /// Number of reads of pods.
    reads: u64,
    /// The pods that no valid manifest names and that were logged as held. At most `HELD_PODS_REPORTED_MAX`.
    reported_held: SortedSet<PodUid>,
    set_aside: Arc<SetAside>,
    /// Number of objects and bytes of each source.
    held: SortedMap<&'static str, SourceUsage>,
    /// Pods of a former agent that no source names are terminated.
    take_over: bool,
    swept: bool,
    /// While the sweep runs: the pods whose directories it spares. A pod that is added meanwhile waits for its end.
    spared: Option<SortedSet<PodUid>>,
    /// Pending resizes are retried in the next turn.
    retry_resizes: bool,
    /// The number of the last change to resizes that the checkpoint has to hold.
    resizes: u64,
    facts: Facts,
}

/// Whether pods start at all.
enum MachineState {
    Runs,
    /// No pod starts; new ones are terminated as those of this group, if there is one.
    ShutsDown(Option<ShutdownGroup>),
}

/// Findings of other parts that plans depend on; the loop sets them.
pub(super) struct Facts {
    /// The node's pressure conditions.
    conditions: Vec<NodeCondition>,
    machine: MachineState,
    /// The pods that were deleted in the API server, and their grace periods.
    deleted: SortedMap<PodUid, Seconds>,
    /// The API server's pods whose objects are all known.
    known: SortedSet<PodUid>,
    room: NodeRoom,
    garbage: GcPolicy,
    /// Dead containers beyond the limit for all pods. At most as many as were read.
    surplus: SortedMap<PodUid, Vec<GcRemoval>>,
    /// The contents of the checkpoint file.
    saved: Saved,
    /// The devices behind the paths of device volumes.
    devices: FoundDevices,
}

impl<R: Runtime + 'static> Pods<R> {
    #[expect(clippy::too_many_arguments, reason = "called once, by the wiring")]
    pub(super) fn new(
        ctx: ActContext<R>,
        config: &Config,
        cgroups: NodeCgroups,
        (metrics, logs): (Rc<Metrics>, LogReports),
        identity: Identity,
        runtime_name: Box<str>,
        set_aside: Arc<SetAside>,
        room: NodeRoom,
        now: Now,
    ) -> Self {
        let of_url = config.static_pods.is_some().then_some(source::http::NAME);
        let of_server = room.is_of_cluster().then_some(source::API);
        let sources: Vec<&'static str> =
            [Some(source::file::NAME), of_url, of_server].into_iter().flatten().collect();
        Self {
            host_ips: ctx.node.node_ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            ctx,
            cgroups,
            metrics,
            logs,
            identity,
            identity_changed: false,
            runtime_name,
            started: now.wall,
            desired: Desired::new(&sources),
            records: BTreeMap::new(),
            backoff: Backoff::new(now.mono, config.max_container_restart_period),
            statuses: StatusStore::new(config.status_store_bytes),
            relist: None,
            early_updates: SortedMap::new(),
            restored: SortedMap::new(),
            jobs: 0,
            reads: 0,
            reported_held: SortedSet::new(),
            set_aside,
            held: SortedMap::new(),
            take_over: config.take_over,
            swept: false,
            spared: None,
            retry_resizes: false,
            resizes: 0,
            facts: Facts {
                conditions: Vec::new(),
                machine: MachineState::Runs,
                deleted: SortedMap::new(),
                known: SortedSet::new(),
                room,
                garbage: config.dead_containers,
                surplus: SortedMap::new(),
                saved: Saved::default(),
                devices: FoundDevices::default(),
            },
        }
    }
    // ---- read by other parts -------------------------------------------------------------------------------

    pub(super) fn now(&self) -> Now {
        self.ctx.manager.clock.now()
    }

    pub(super) fn ctx(&self) -> &ActContext<R> {
        &self.ctx
    }

    /// State that all jobs share: clients, clock and threads.
    pub(super) fn manager(&self) -> &RuntimeManager<R> {
        &self.ctx.manager
    }

    pub(super) fn cgroups(&self) -> &NodeCgroups {
        &self.cgroups
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When this agent started.
    pub(super) fn started(&self) -> Wall {
        self.started
    }

    pub(super) fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The pods that have a record.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PodUid, &Record)> {
        self.records.iter()
    }

    pub(super) fn records(&self) -> &BTreeMap<PodUid, Record> {
        &self.records
    }

    pub(super) fn get(&self, uid: &PodUid) -> Option<&Record> {
        self.records.get(uid)
    }

    pub(super) fn statuses(&self) -> &StatusStore {
        &self.statuses
    }

    pub(super) fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// The last relist.
    pub(super) fn relist(&self) -> Option<&Relist> {
        self.relist.as_ref()
    }

    /// The source's first update, while it waits for the first relist.
    #[cfg(feature = "tls")]
    pub(super) fn early_update(&self, source: &str) -> Option<&SourceUpdate> {
        self.early_updates.get(source)
    }

    /// Number of objects and bytes of each source.
    pub(super) fn held(&self) -> &SortedMap<&'static str, SourceUsage> {
        &self.held
    }

    pub(super) fn restored(&self) -> &SortedMap<PodUid, Restored> {
        &self.restored
    }

    /// Number and bytes of the running containers reported to the log rotation.
    pub(super) fn logs_held(&self) -> (usize, usize) {
        self.logs.held()
    }

    /// Number of reads of pods: it changes with the observed state.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// The number of the last change to resizes that the checkpoint has to hold.
    pub(super) fn resizes(&self) -> u64 {
        self.resizes
    }

    /// The node's pressure conditions.
    pub(super) fn conditions(&self) -> &[NodeCondition] {
        &self.facts.conditions
    }

    #[cfg(feature = "tls")]
    pub(super) fn room(&self) -> &NodeRoom {
        &self.facts.room
    }

    /// The node shuts down.
    #[cfg(feature = "tls")]
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.facts.machine, MachineState::ShutsDown(_))
    }

    /// It was deleted in the API server: it terminates even while manifests are unreadable.
    pub(super) fn is_deleted(&self, uid: &PodUid) -> bool {
        self.facts.deleted.contains_key(uid)
    }

    /// The objects of the pod's volumes are not known yet: after a restart of the agent, for a running pod.
    fn waits_for_objects(&self, uid: &PodUid) -> bool {
        let Some(entry) = self.desired.pod(uid) else { return false };
        let pod = &entry.wanted.pod.pod;
        pod.is_of_api_server() && !self.facts.known.contains(uid) && !named_by(pod).is_empty()
    }

    /// The dead containers of this pod to remove, by its own limit and the limit for all pods.
    fn garbage_of(&self, pod: &DesiredPod, observed: &ObservedPod, now: Now) -> GcPlan {
        let mut plan = gc::collect_pod(self.facts.garbage, &pod.key, observed, now);
        for removal in self.facts.surplus.get(&pod.key.uid).into_iter().flatten() {
            let is_there = observed.containers.iter().any(|container| container.id == removal.id);
            if is_there && !plan.containers.iter().any(|other| other.id == removal.id) {
                plan.containers.push(removal.clone());
            }
        }
        plan
    }

    // ---- set by the loop -----------------------------------------------------------------------------------

    /// Sets the dead containers beyond the limit for all pods; their pods are planned again.
    pub(super) fn set_surplus(&mut self, surplus: SortedMap<PodUid, Vec<GcRemoval>>, out: &mut Effects) {
        surplus.keys().for_each(|uid| out.push(Effect::PlanAgain(uid.clone())));
        self.facts.surplus = surplus;
    }

    /// Sets the contents of the checkpoint file.
    pub(super) fn set_saved(&mut self, saved: Saved) {
        self.facts.saved = saved;
    }

    /// Sets the pods that were deleted in the API server, and those whose objects are all known.
    #[cfg(feature = "tls")]
    pub(super) fn set_api_server_state(&mut self, deleted: &[EndingPod], known: SortedSet<PodUid>) {
        self.facts.deleted = deleted.iter().map(|of| (of.key.uid.clone(), of.grace)).collect();
        self.facts.known = known;
    }

    /// The identity, if its file has to be written; the caller writes it.
    pub(super) fn take_changed_identity(&mut self) -> Option<&Identity> {
        std::mem::take(&mut self.identity_changed).then_some(&self.identity)
    }

    /// The write of the identity's file failed.
    pub(super) fn mark_identity_unwritten(&mut self) {
        self.identity_changed = true;
    }

    pub(super) fn is_identity_changed(&self) -> bool {
        self.identity_changed
    }

    pub(super) fn take_early_updates(&mut self) -> SortedMap<&'static str, SourceUpdate> {
        std::mem::take(&mut self.early_updates)
    }

    /// Plans the pod once more, and drives its worker.
    pub(super) fn plan_again(&mut self, uid: &PodUid, out: &mut Effects) {
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.plan_again();
            self.drive(uid, out);
        }
    }

    /// Reads the pod from the runtime once more.
    pub(super) fn read_again(&mut self, uid: &PodUid, out: &mut Effects) {
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.touched();
        }
        self.drive(uid, out);
    }

    /// Drives the workers that are due.
    pub(super) fn drive_due(&mut self, now: Now, out: &mut Effects) {
        let due =
            self.records.iter().filter(|(_, record)| record.worker.due().is_some_and(|at| at <= now.mono));
        due.for_each(|(uid, _)| out.drive(uid));
    }

    /// The next deadline of any worker.
    pub(super) fn due(&self) -> Option<Mono> {
        let pods = self.records.values().filter(|record| !record.set_aside);
        pods.filter_map(|record| record.worker.due()).min()
    }

    /// Sets the node's addresses, the primary one first (`GetNodeHostIPs`): statuses get them, and failed starts are retried.
    /// False when they were the same before.
    pub(super) fn set_addresses(&mut self, addresses: &[Box<str>], out: &mut Effects) -> bool {
        if *self.ctx.node.node_ips == *addresses {
            return false;
        }
        let node = NodeSettings { node_ips: addresses.to_vec(), ..NodeSettings::clone(&self.ctx.node) };
        self.ctx.node = Rc::new(node);
        self.host_ips = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
        for (uid, record) in &mut self.records {
            out.push(Effect::RefreshStatus(uid.clone()));
            if record.failures.len() > 0 {
                // It may have failed because `status.hostIP` was not known (`CreateContainerConfigError`).
                record.worker.runtime_is_back();
                out.drive(uid);
            }
        }
        true
    }

    /// Sets what a k3s server says of DNS and sysctls, for pods that start from now on.
    #[cfg(feature = "tls")]
    pub(super) fn set_k3s_settings(&mut self, settings: &Settings, unset: Unset) {
        let mut node = NodeSettings::clone(&self.ctx.node);
        if settings.apply(unset, &mut node) {
            self.ctx.node = Rc::new(node);
        }
    }
}
