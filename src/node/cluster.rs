//! This node as a member of a cluster: its lease, its Node object, and the statuses of its pods.
//!
//! ```text
//!     register ─► lease          four times while it holds
//!    register ─► lease          renewed four times per lease duration
//!             └► report         computed every nodeStatusUpdateFrequency; sent when it changed, and every
//!    a pod's status changed ─► its status is patched
//!    a pod was deleted in the API server and nothing of it is left here ─► its last status, then the deletion
//! ```
//!
//! Each call is a task that takes a snapshot and returns a result; one per pod at a time, `KUBE_STATUS_CALLS_MAX` for all pods.
//! A failed call is repeated later with the state of that time.
//!
//! The lease is in `lease`, the Node in `node_status`, its labels and annotations in `metadata`, the pods' statuses in `status_manager`, mirror pods in `mirror_pods`,
//! the objects that pods reference in `objects`, admission in `admission`, addresses and the bridge in `network`, the copy for
//! a start without the API server in `offline`, events in `events`. All of them use [`Membership`].

mod admission;
mod calls;
mod events;
mod failures;
mod flannel;
mod lease;
mod metadata;
mod mirror_pods;
mod network;
mod node_status;
mod objects;
mod offline;
mod oom;
mod status_manager;

use std::path::PathBuf;
use std::rc::Rc;

use smol::channel::Receiver;

use super::agent::Event;
use super::effects::{Effect, Effects, Forgotten, Tasks};
use super::network_policy::PolicySwitch;
use super::pods::{NodeRoom, Pods};
use super::service_proxy::ProxySwitch;
use crate::clock::SharedClock;
use crate::cluster::node_images::NodeImage;
use crate::cluster::node_object::Machine;
use crate::cluster::node_status::{Registered, ReportEnd};
use crate::cluster::task::Task;
use crate::cri::{Runtime, RuntimeStatus};
use crate::flannel::BroughtUp;
use crate::k3s::{Settings, Unset};
use crate::kube::{Client, KubeError, seed};
use crate::limits::{
    CLUSTER_BOUNDED, CLUSTER_BOUNDS, FLANNEL_PEER_BYTES, K3S_BALANCER_PIECE_BYTES, K3S_SERVER_BYTES_MAX,
    KUBE_STATUS_CALLS_MAX, KUBE_WINDOW_CONNECTION_BYTES, NODE_CONNECTION_BYTES, NODE_KNOWN_BYTES,
    NODE_SPLICE_BYTES, NODE_USER_BYTES_MAX, TUNNEL_BYTES, TUNNEL_QUEUED_BYTES_MAX,
};
use crate::metrics::{Gauge, Usage};
use crate::model::{Mono, Now, PodKey, PodUid, SortedSet};
use crate::source::api::Shared;
use crate::source::api_node::NodeFields;
use crate::source::api_objects::ObjectStates;
use crate::source::api_offline::Trees;
use crate::source::api_status_versions::ApiStatusVersion;
use crate::source::{self, SourceUpdate};
use crate::store::offline::folder::{Folder, OfflineState};
use crate::sync::act::{NoPodNetwork, PodNetwork};
use crate::sync::worker::{Life, Why};
use admission::Admission;
use events::EventReports;
use failures::FailureLog;
use flannel::Flannel;
pub(crate) use flannel::FlannelInputs;
use lease::NodeLease;
use metadata::MetadataKeeper;
use mirror_pods::{MirrorPods, Name};
use network::Network;
use node_status::{NodeStatus, RuntimeInfo};
use objects::ApiObjects;
use offline::{OfflineCopy, Outcome};
use oom::OomsRead;
use status_manager::StatusManager;

/// Inputs of a node that joins a cluster.
pub struct Joined {
    /// The client of the API server.
    pub client: Client,
    /// Facts of this machine.
    pub machine: Machine,
    /// The pods that are bound to this node.
    pub pods: Receiver<SourceUpdate>,
    /// The Node's fields, which other clients may change; `None` = it was deleted.
    pub node: Receiver<Option<NodeFields>>,
    /// The pods' objects, for the offline copy.
    pub trees: Trees,
    /// State that is shared with the pod source.
    pub shared: Shared,
    /// The API server could not be reached.
    pub failed: Receiver<()>,
    /// The folder of the offline copy.
    pub folder: Folder,
    /// Where the configuration of a bridge for the pods is written; `None`: no bridge.
    pub bridge: Option<PathBuf>,
    /// Inputs of flannel; `None`: no flannel.
    pub flannel: Option<FlannelInputs>,
    /// The cluster's settings, from a k3s server.
    pub(crate) settings: Receiver<Settings>,
    /// Which of them count.
    pub(crate) unset: Unset,
    /// The service proxy.
    pub(crate) services: Option<ProxySwitch>,
    /// The enforcement of network policies.
    pub(crate) policies: Option<PolicySwitch>,
}

impl Joined {
    /// What new sandboxes wait for.
    pub(super) fn network(&self, clock: SharedClock) -> Box<dyn PodNetwork> {
        match &self.policies {
            Some(policies) => Box::new(policies.gate(clock)),
            None => Box::new(NoPodNetwork),
        }
    }
}

/// The label of a Node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The state of the node's membership.
pub(super) struct Cluster {
    of: Membership,
    lease: NodeLease,
    status: NodeStatus,
    pods: StatusManager,
    mirrors: MirrorPods,
    objects: ApiObjects,
    admission: Admission,
    network: Network,
    offline: OfflineCopy,
    events: EventReports,
    metadata: MetadataKeeper,
    flannel: Option<Flannel>,
    unset: Unset,
    services: Option<ProxySwitch>,
    policies: Option<PolicySwitch>,
}

/// What all parts of it use.
struct Membership {
    client: Client,
    machine: Rc<Machine>,
    /// The Node's UID, once it is registered.
    registered: Option<Box<str>>,
    failures: FailureLog,
    /// State that is shared with the pod source.
    shared: Shared,
    seed: u64,
}

impl Membership {
    /// Logs a failed call to the API server, unless it repeats the last one ([`FailureLog`]).
    fn log_failure(&mut self, what: &str, why: &KubeError, now: Mono) {
        if self.failures.note(what, why, now) {
            log::warn!("{what}: {why}; retrying");
        }
    }

    /// Changes the facts of the machine.
    fn change_machine(&mut self, change: impl FnOnce(&mut Machine)) {
        let mut machine = Machine::clone(&self.machine);
        change(&mut machine);
        self.machine = Rc::new(machine);
    }
}

/// The result of a task of the cluster.
pub(super) struct ClusterEvent(ClusterEventKind);

/// The tasks and their results.
enum ClusterEventKind {
    Registered(Result<Registered, KubeError>),
    /// The runtime's status, or why it is not known.
    RuntimeStatus(Result<RuntimeStatus, String>),
    /// The runtime's images and version.
    RuntimeInfo(RuntimeInfo),
    /// The kernel's log was read.
    OomsRead(OomsRead),
    Reported(Result<ReportEnd, KubeError>),
    LeaseRenewed(Result<Box<str>, KubeError>),
    StatusPatched {
        uid: PodUid,
        /// The pod's key in the API server.
        key: PodKey,
        revision: u64,
        deleted: bool,
        /// With the status that the API server has now.
        result: Result<Option<ApiStatusVersion>, KubeError>,
    },
    /// The creation or deletion of a mirror pod ended.
    MirrorPodUpdated {
        name: Name,
        result: Result<(), KubeError>,
    },
    /// The runtime was configured with the pod CIDRs, and the bridge's configuration was written; or not.
    NetworkConfigured(Result<(), String>),
    /// The other nodes, or the machine's links or routes have changed.
    FlannelChanged,
    /// flannel's network was brought up, or not.
    FlannelUp(Result<BroughtUp, String>),
    /// The cluster's settings, from a k3s server.
    Settings(Settings),
    /// The Node was made that of a node of k3s, or not.
    MetadataPatched(Result<(), KubeError>),
    /// `ObjectStates` has changes.
    ObjectsChanged,
    /// The API server cannot be reached: the offline copy is used.
    ServerUnreachable,
    /// The offline copy, or why it cannot be used.
    OfflineRead(Result<OfflineState, String>),
    /// A write of the offline copy ended.
    OfflineWritten(Outcome),
    /// The Node has changed; `None` = it was deleted.
    NodeChanged(Option<NodeFields>),
    /// The report of the event with that revision of the ring ended.
    EventReported {
        of_node: bool,
        revision: u64,
        result: Result<(), KubeError>,
    },
}

impl ClusterEventKind {
    /// Wraps it for the loop.
    fn event(self) -> Event {
        Event::Cluster(Box::new(ClusterEvent(self)))
    }
}

impl Cluster {
    /// Starts the tasks of the membership.
    pub(super) fn begin(joined: Joined, tasks: &Tasks, clock: &SharedClock) -> Self {
        let now = clock.now().mono;
        tasks.forward("pod source", joined.pods, |update| Event::Source(Box::new(update)));
        let (news, found) = smol::channel::bounded(1);
        tasks.forward("API objects", found, |()| ClusterEventKind::ObjectsChanged.event());
        tasks.forward("Node fields", joined.node, |node| ClusterEventKind::NodeChanged(node).event());
        tasks.forward("k3s settings", joined.settings, |all| ClusterEventKind::Settings(all).event());
        if let Some(inputs) = &joined.flannel {
            tasks.forward("flannel changes", inputs.changes.clone(), |()| {
                ClusterEventKind::FlannelChanged.event()
            });
        }
        tasks.start("offline copy wait", offline::wait(joined.failed, clock.clone()));
        let seed = seed(&joined.machine.name);
        Self {
            lease: NodeLease::new(now, seed),
            status: NodeStatus::new(now, seed),
            pods: StatusManager::default(),
            mirrors: MirrorPods::default(),
            objects: ApiObjects::new(ObjectStates::new(news)),
            admission: Admission::default(),
            network: Network::new(joined.bridge, now, seed),
            offline: OfflineCopy::new(joined.folder, joined.trees, now),
            events: EventReports::new(now, seed),
            metadata: MetadataKeeper::new(now, seed),
            flannel: joined.flannel.map(|inputs| Flannel::new(inputs, now, seed)),
            unset: joined.unset,
            services: joined.services,
            policies: joined.policies,
            of: Membership {
                client: joined.client,
                machine: Rc::new(joined.machine),
                registered: None,
                failures: FailureLog::default(),
                shared: joined.shared,
                seed,
            },
        }
    }

    /// The node's room for pods before its Node is known.
    pub(super) fn room(&self) -> NodeRoom {
        NodeRoom::of_cluster(&self.of.machine.name, self.of.machine.allocatable())
    }

    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>, out: &Effects) -> Option<Mono> {
        let of_parts = [
            self.lease.due(&self.of),
            self.status.due(),
            self.pods.due(pods, self.is_busy()),
            self.mirrors.due(&self.of).filter(|_| !self.is_busy()),
            self.admission.due(),
            self.network.due(),
            self.offline.due(),
            self.events.due(&self.of, out),
            self.metadata.due(&self.of),
            self.flannel.as_ref().and_then(Flannel::due),
        ];
        of_parts.into_iter().flatten().min()
    }

    /// As many calls are in flight for statuses and mirror pods as are allowed.
    fn is_busy(&self) -> bool {
        self.under_way() >= KUBE_STATUS_CALLS_MAX
    }

    fn under_way(&self) -> usize {
        self.pods.under_way() + self.mirrors.under_way()
    }

    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Now, out: &mut Effects) {
        self.status.turn(&mut self.of, pods, now, out);
        self.network.turn(pods, now, out);
        self.offline.turn(&self.of, pods, now.mono, out);
        self.lease.turn(&self.of, now, out);
        let room = KUBE_STATUS_CALLS_MAX.saturating_sub(self.under_way());
        self.mirrors.turn(&self.of, &mut self.pods, pods, room, now.mono, out);
        let room = KUBE_STATUS_CALLS_MAX.saturating_sub(self.under_way());
        self.pods.turn(&self.of, pods, room, now, out);
        self.events.turn(&self.of, &self.pods, pods, now, out);
        self.metadata.turn(&self.of, now.mono, out);
        if let Some(flannel) = &mut self.flannel {
            flannel.turn(&self.of, pods, now, out);
        }
    }

    /// Repeats the admission of pods when it is due.
    pub(super) fn turn_admission(&self, now: Mono, out: &mut Effects) {
        if self.admission.due().is_some_and(|at| at <= now) {
            out.push(Effect::AdmitAgain);
        }
    }

    pub(super) fn take<R: Runtime + 'static>(
        &mut self,
        ClusterEvent(kind): ClusterEvent,
        pods: &Pods<R>,
        now: Mono,
        out: &mut Effects,
    ) {
        match kind {
            ClusterEventKind::ObjectsChanged => self.objects.take(&mut self.offline, now, out),
            ClusterEventKind::ServerUnreachable => {
                if !self.has_server_update(pods) {
                    self.offline.read(&self.of, pods, out);
                }
            }
            ClusterEventKind::OfflineRead(kept) => self.offline_read(kept, pods, now, out),
            ClusterEventKind::OfflineWritten(outcome) => self.offline.written(outcome, now, out),
            ClusterEventKind::NodeChanged(node) => self.node_changed(node, now, out),
            ClusterEventKind::EventReported { of_node, revision, result } => {
                self.events.take(of_node, revision, result, now);
            }
            ClusterEventKind::NetworkConfigured(result) => self.network.take(result, now),
            ClusterEventKind::FlannelChanged => self.flannel_changed(now),
            ClusterEventKind::FlannelUp(result) => {
                if let Some(flannel) = &mut self.flannel {
                    flannel.take(result, &mut self.of, now);
                    self.metadata.changed(&self.of, now);
                }
            }
            ClusterEventKind::Settings(settings) => self.set_settings(settings, now, out),
            ClusterEventKind::MetadataPatched(result) => self.metadata.take(result, &mut self.of, now),
            ClusterEventKind::MirrorPodUpdated { name, result } => {
                self.mirrors.take(&name, result, &mut self.of, now);
            }
            ClusterEventKind::Registered(result) => {
                if self.status.registered(result, &mut self.of, now, out) {
                    self.lease.renew_at(now);
                }
            }
            ClusterEventKind::RuntimeStatus(said) => self.status.take_runtime_status(said, &mut self.of, now),
            ClusterEventKind::RuntimeInfo(here) => self.status.set_runtime_info(here, &mut self.of),
            ClusterEventKind::OomsRead(read) => self.status.ooms_read(read, out),
            ClusterEventKind::Reported(result) => self.status.reported(result, &mut self.of, now, out),
            ClusterEventKind::LeaseRenewed(result) => self.lease.take(result, &mut self.of, now),
            ClusterEventKind::StatusPatched { uid, key, revision, deleted, result } => {
                let is_over = self.pods.take((&uid, &key, revision, deleted), &result, &mut self.of, now);
                if is_over {
                    self.events.forget_pod(&uid, &out.ring().borrow());
                }
            }
        }
    }

    /// A client, perhaps this agent, changed the Node; `None` = it was deleted.
    fn node_changed(&mut self, node: Option<NodeFields>, now: Mono, out: &mut Effects) {
        if let (Some(flannel), Some(node)) = (&mut self.flannel, &node) {
            flannel.set_annotations(&node.metadata.annotations, &mut self.of);
        }
        self.metadata.set_there(node.as_ref().map(|node| &node.metadata), &self.of);
        let Some(node) = node else { return self.status.register_again(&mut self.of, now) };
        if self.of.registered.as_ref().is_some_and(|uid| *uid != node.uid) {
            self.status.register_again(&mut self.of, now);
        }
        self.status.compare_conditions(&node.conditions, now);
        self.set_pod_cidrs(&node.pod_cidrs, now);
        if let Some(services) = &self.services {
            services.set_zone(node.labels.get(ZONE).map_or("", String::as_str));
        }
        if self.admission.set_node(&node) {
            self.offline.put_node(&self.of.machine.name, &node, now);
            out.push(Effect::NodeChanged(Box::new(node)));
            out.push(Effect::AdmitAgain);
        }
    }

    /// The Node has these ranges of addresses.
    fn set_pod_cidrs(&mut self, pod_cidrs: &[Box<str>], now: Mono) {
        self.network.set_pod_cidrs(pod_cidrs, now);
        if let Some(flannel) = &mut self.flannel {
            flannel.set_pod_cidrs(pod_cidrs, now);
        }
    }

    fn flannel_changed(&mut self, now: Mono) {
        if let Some(flannel) = &mut self.flannel {
            flannel.changed(now);
        }
    }

    /// A k3s server has sent its settings.
    fn set_settings(&mut self, settings: Settings, now: Mono, out: &mut Effects) {
        self.of.change_machine(|machine| {
            if let Some(k3s) = &mut machine.k3s {
                k3s.reaches_pods = settings.reaches_pods;
                k3s.has_cloud_controller = !settings.disable_cloud_controller;
            }
        });
        if let Some(flannel) = &mut self.flannel {
            flannel.set_conf(settings.network.clone(), now);
        }
        self.metadata.changed(&self.of, now);
        self.status.report_now(now);
        if let Some(services) = &self.services {
            services.set_cluster(!settings.disable_kube_proxy, settings.cluster_cidrs());
        }
        if let Some(policies) = &self.policies {
            policies.set(!settings.disable_network_policy);
        }
        out.push(Effect::K3sSettings(settings, self.unset));
    }

    // ---- the API server's pods of this node ------------------------------------------------------------------

    /// The API server's last update, or, not complete, the one of the offline copy.
    pub(super) fn last_update(&self) -> Option<&SourceUpdate> {
        self.objects.last_update()
    }

    /// The API server has sent its pods since the start.
    fn has_server_update<R: Runtime + 'static>(&self, pods: &Pods<R>) -> bool {
        let is_complete = |update: Option<&SourceUpdate>| update.is_some_and(|update| update.complete);
        is_complete(self.objects.last_update()) || is_complete(pods.early_update(source::API))
    }

    /// The offline copy was read: pods start by it as by an update of the API server, and none is terminated by it.
    fn offline_read<R: Runtime + 'static>(
        &mut self,
        kept: Result<OfflineState, String>,
        pods: &Pods<R>,
        now: Mono,
        out: &mut Effects,
    ) {
        let kept = match kept {
            Ok(kept) => kept,
            Err(why) => return log::warn!("{why}; the cluster's pods wait for the API server"),
        };
        if self.has_server_update(pods) {
            return;
        }
        let OfflineState { pods, objects, node } = kept;
        let Some(update) = offline::update(&self.of, pods, out.clock()) else { return };
        if let Some(node) = node.filter(|_| !self.admission.knows_node()) {
            let node = NodeFields {
                labels: node.labels,
                taints: node.taints,
                pod_cidrs: node.pod_cidrs,
                ..NodeFields::default()
            };
            self.set_pod_cidrs(&node.pod_cidrs, now);
            self.admission.set_node(&node);
            out.push(Effect::OfflineNode(Box::new(node)));
        }
        self.objects.set_offline(objects);
        out.push(Effect::Update(Box::new(update)));
    }

    /// The API server has sent its pods, or the offline copy stands in for it.
    pub(super) fn set_update(&mut self, update: &SourceUpdate, now: Mono) {
        if update.complete {
            self.mirrors.set_mirrors(&update.server.mirrors);
        }
        self.objects.set_update(update);
        self.offline.keep_pods(&self.objects, &self.of.machine.name, now);
    }

    /// Admits a source's pods. Of the API server's, the update keeps those that may run here and whose objects are available.
    /// Returns the pods whose objects are all known.
    pub(super) fn admit<R: Runtime + 'static>(
        &mut self,
        update: &mut SourceUpdate,
        pods: &Pods<R>,
        now: Mono,
        out: &mut Effects,
    ) -> Option<SortedSet<PodUid>> {
        self.mirrors.mark_stale();
        if update.source != source::API {
            return None;
        }
        leave_out_ended(update, pods);
        self.admission.admit(update, pods, now, out);
        let gone = self.pods.update_pods(update, self.of.seed, now, &*pods.manager().notes, out);
        for uid in &gone {
            self.events.forget_pod(uid, &out.ring().borrow());
        }
        Some(self.objects.follow(update, &self.of.client, pods, out.tasks()))
    }

    // ---- called by the loop ---------------------------------------------------------------------------------

    /// Nothing of the pod is left here: its last status is reported before it is deleted in the API server.
    pub(super) fn forget(&mut self, forgotten: Forgotten) {
        self.mirrors.mark_stale();
        self.pods.forget(forgotten);
    }

    /// Publishes to the source which pods exist on this node.
    pub(super) fn publish_local_pods<R: Runtime + 'static>(&self, pods: &Pods<R>) {
        let Some(relist) = pods.relist() else { return };
        let former = relist.former.iter().map(|former| &former.key.uid);
        let here = pods.iter().map(|(uid, _)| uid).chain(relist.pods.keys()).chain(former);
        self.of.shared.local_pods.are(here.cloned().collect());
    }

    /// The Node has changed: its status is reported at once.
    pub(super) fn report_node(&mut self, now: Mono) {
        self.status.report_now(now);
    }

    /// The last report of the Node's status is up to date.
    pub(super) fn is_node_reported(&self) -> bool {
        self.of.registered.is_none() || self.status.is_reported()
    }

    /// Sets the Node's addresses (`nodestatus.NodeAddress`).
    pub(super) fn set_addresses(&mut self, addresses: &[Box<str>], now: Mono) {
        self.of.change_machine(|machine| machine.addresses = addresses.to_vec());
        self.flannel_changed(now);
        self.metadata.changed(&self.of, now);
        self.status.report_now(now);
    }

    /// Writes the offline copy before the agent ends.
    pub(super) async fn save_offline_copy<R: Runtime + 'static>(&mut self, pods: &Pods<R>) {
        self.offline.at_end(&self.of, pods).await;
    }

    /// How often the node changed to another of its cluster's API servers.
    pub(super) fn server_moves(&self) -> u64 {
        self.of.client.moves()
    }

    /// The Node is registered.
    pub(super) fn is_registered(&self) -> bool {
        self.of.registered.is_some()
    }

    /// The use of each of `limits::CLUSTER_BOUNDS`, in that order.
    pub(super) fn usage<R: Runtime + 'static>(&self, pods: &Pods<R>, out: &Effects) -> Vec<Usage> {
        let held = pods.held().get(source::API);
        let (calls, servers) = (self.of.client.calls_under_way(), self.of.client.others());
        let api = &out.metrics().node_api;
        let [connections, users, decisions] = [&api.connections, &api.users, &api.decisions].map(Gauge::get);
        let [tunnels, through, balanced] =
            [&api.tunnels, &api.tunnel_connections, &api.balancer_connections].map(Gauge::get);
        let peers = self.flannel.as_ref().map_or(0, Flannel::peers);
        let images = self.status.images();
        let used: [(usize, usize); CLUSTER_BOUNDED] = [
            (self.pods.len(), held.map_or(0, |held| held.pod_bytes) + pods.opened_bytes()),
            self.objects.held(),
            // Their capacity: how full they are only the kernel and hyper know.
            (calls, if calls > 0 { KUBE_WINDOW_CONNECTION_BYTES as usize } else { 0 }),
            self.offline.held(),
            pods.resizes_waiting(None),
            self.of.failures.held(),
            (images.len(), images.iter().map(NodeImage::bytes).sum()),
            (connections, connections * NODE_CONNECTION_BYTES),
            (users, users * (NODE_USER_BYTES_MAX / 2 + NODE_KNOWN_BYTES)),
            (decisions, decisions * NODE_KNOWN_BYTES),
            (servers, servers * 4 * (K3S_SERVER_BYTES_MAX + 64)),
            (tunnels, tunnels * TUNNEL_BYTES + if tunnels > 0 { TUNNEL_QUEUED_BYTES_MAX } else { 0 }),
            (through, through * NODE_SPLICE_BYTES),
            (balanced, balanced * 2 * K3S_BALANCER_PIECE_BYTES),
            api.services.get(),
            (peers, peers * FLANNEL_PEER_BYTES),
            api.network_policies.get(),
        ];
        let of = |(bound, (entries, bytes))| Usage::of(bound, entries, bytes);
        CLUSTER_BOUNDS.iter().zip(used).map(of).collect()
    }
}

/// Removes the pods that have ended in the API server and of which nothing exists here: they are not started.
fn leave_out_ended<R: Runtime + 'static>(update: &mut SourceUpdate, pods: &Pods<R>) {
    let over = &update.server.over;
    let is_here = |uid: &PodUid| match pods.get(uid) {
        // It is being removed, and is not started again.
        Some(record) => !matches!(record.worker().life(), Life::Ending(Why::Unwanted) | Life::Removing),
        None => {
            pods.relist().is_some_and(|relist| relist.pods.contains_key(uid) || relist.former.contains(uid))
        }
    };
    update.pods.retain(|sourced| !over.contains(&sourced.pod.key.uid) || is_here(&sourced.pod.key.uid));
}
