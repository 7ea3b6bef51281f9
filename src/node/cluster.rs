//! This node in a cluster: its lease, its Node object, and what its pods become there.
//!
//! ```text
//!     register ─► lease          four times while it holds
//!              └► report         every nodeStatusUpdateFrequency a look; told when it changed, and every
//!              │                  nodeStatusReportFrequency
//!     a pod's status changed ─► its status is patched
//!     a pod that was deleted there has ended, and nothing of it is left here ─► its last status, then it is deleted for good
//! ```
//!
//! Each of these is a task that takes a snapshot and brings an outcome; one per pod at a time, of all pods
//! `KUBE_TELLING_MAX`. What fails is told again later, with what there is to tell then.
use std::path::PathBuf;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::Value;
use smol::channel::Receiver;

use super::agent::{Agent, Event};
use super::cluster_admission::{Admission, note_refusal};
use super::cluster_calls::{Registered, refusal, renew, tell};
use super::cluster_events::Telling;
use super::cluster_kept::{Keeping, Outcome};
use super::cluster_mirrors::{Mirrors, Name};
pub(super) use super::cluster_network::Network;
use super::cluster_objects::Following;
use super::cluster_oom::{OomsRead, SystemOoms};
use super::cluster_said::Said;
use super::cluster_status::{NodeStatus, RuntimeHere};
use crate::cluster::node_object::Machine;
use crate::cluster::pod_status::tells_of_resize;
use crate::cri::{Runtime, RuntimeStatus};
use crate::k3s::Settings;
use crate::kube::{Client, KubeError, RetryWait, seed};
use crate::limits::{GRACE_SECONDS_MIN, KUBE_RETRY_MAX, KUBE_TELLING_MAX, STATUS_CORRECTION_PERIOD};
use crate::model::SortedMap;
use crate::model::{Mono, Now, PodKey, PodUid, Seconds};
use crate::pleg::Relist;
use crate::source::api::Shared;
use crate::source::api_kept::Trees;
use crate::source::api_node::NodeMarks;
use crate::source::api_objects::Found;
use crate::source::api_statuses::StatusThere;
use crate::source::{self, EndingPod, RefusedPod, SourceUpdate};
use crate::status::merge;
use crate::store::keep::folder::{Folder, Kept};
use crate::sync::worker::{Life, Why};

/// What the wiring hands over when this node joins a cluster.
pub struct Joined {
    /// The API server.
    pub client: Client,
    /// What this machine is.
    pub machine: Machine,
    /// The pods that are bound to it.
    pub pods: Receiver<SourceUpdate>,
    /// What others wrote on its Node; `None` = it was deleted.
    pub marks: Receiver<Option<NodeMarks>>,
    /// Where its pods are left for the disk.
    pub trees: Trees,
    /// What their source is told, and tells beside.
    pub shared: Shared,
    /// The server was not reached.
    pub failed: Receiver<()>,
    /// Where they are kept for a start without the server.
    pub folder: Folder,
    /// Where the configuration of a bridge for its pods goes; `None`: there is to be none.
    pub bridge: Option<PathBuf>,
    /// What a k3s server says of its cluster.
    pub(crate) dns: Receiver<Settings>,
}

/// What is kept of it.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) machine: Rc<Machine>,
    /// The Node's UID, once it is registered.
    pub(super) registered: Option<Box<str>>,
    pub(super) status: NodeStatus,
    pub(super) ooms: SystemOoms,
    pub(super) lease: Task,
    lease_version: Option<Box<str>>,
    pub(super) pods: SortedMap<PodUid, Told>,
    pub(super) telling: usize,
    pub(super) mirrors: Mirrors,
    pub(super) following: Following,
    pub(super) shared: Shared,
    pub(super) admission: Admission,
    pub(super) network: Network,
    pub(super) keeping: Keeping,
    pub(super) telling_events: Telling,
    pub(super) said: Said,
}

/// Something that is done again and again.
pub(super) struct Task {
    pub(super) at: Mono,
    in_flight: bool,
    wait: RetryWait,
}

impl Task {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self { at: now, in_flight: false, wait: RetryWait::new(seed) }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (!self.in_flight).then_some(self.at)
    }

    /// It begins, when it is due.
    pub(super) fn begins(&mut self, now: Mono) -> bool {
        let begins = self.due().is_some_and(|at| at <= now);
        self.in_flight |= begins;
        begins
    }

    pub(super) fn ended(&mut self, well: bool, now: Mono, period: std::time::Duration) {
        self.in_flight = false;
        self.at = now + if well { period } else { self.wait.failed().min(period) };
        if well {
            self.wait.succeeded();
        }
    }
}

/// What the server knows of a pod.
pub(super) struct Told {
    pub(super) key: PodKey,
    /// It is a static pod, and the key that of its copy.
    pub(super) is_mirror: bool,
    /// Of the status that it has; 0 = none of this process.
    revision: u64,
    /// Something of a resize may stand in it.
    resized: bool,
    /// Somebody has changed its status there.
    changed: bool,
    /// When the status that somebody had changed was sent again.
    corrected: Option<Mono>,
    /// It was deleted there.
    ending: Option<EndingPod>,
    /// It does not run here, because of this.
    refused: Option<Box<RefusedPod>>,
    /// What its status was when the last of it went.
    last: Option<PodStatus>,
    task: Task,
}

impl Told {
    /// Nothing of it is told yet.
    pub(super) fn new(key: PodKey, now: Mono, seed: u64) -> Self {
        let task = Task::new(now, seed);
        Self {
            key,
            is_mirror: false,
            revision: 0,
            resized: false,
            changed: false,
            corrected: None,
            ending: None,
            refused: None,
            last: None,
            task,
        }
    }

    /// The same of a static pod, with its copy's key.
    pub(super) fn of_mirror(key: PodKey, now: Mono, seed: u64) -> Self {
        Self { is_mirror: true, ..Self::new(key, now, seed) }
    }

    /// Somebody has changed its status there, or no one has any more.
    pub(super) fn compared(&mut self, changed: bool, now: Mono) {
        if changed && !self.changed {
            self.correct(now);
        }
        self.changed = changed;
    }

    /// Its status is sent once more (`needsReconcile`), to one who changes it again and again not at once.
    fn correct(&mut self, now: Mono) {
        let at = self.corrected.map_or(now, |before| now.max(before + STATUS_CORRECTION_PERIOD));
        self.corrected = Some(at);
        self.revision = 0;
        self.task.at = at;
    }
}

/// What a task of the cluster's brings.
pub(super) enum ClusterEvent {
    Registered(Result<Registered, KubeError>),
    /// The runtime says how it is, or does not.
    RuntimeSaid(Result<RuntimeStatus, String>),
    /// What the runtime has.
    RuntimeHere(RuntimeHere),
    /// The kernel's log was read.
    OomsRead(OomsRead),
    /// With what was told and the conditions in it; nothing when it was as before.
    Reported(Result<Option<(u64, Vec<Value>)>, KubeError>),
    Leased(Result<Box<str>, KubeError>),
    Told {
        uid: PodUid,
        /// What the server has as the pod's key.
        key: PodKey,
        revision: u64,
        deleted: bool,
        /// With the status that the server has now.
        result: Result<Option<StatusThere>, KubeError>,
    },
    /// The copy of the static pod of that name was created or deleted, or not.
    Mirrored {
        name: Name,
        result: Result<(), KubeError>,
    },
    /// The runtime knows the pods' addresses, and the bridge's configuration is as it is to be; or not.
    NetworkTold(Result<(), String>),
    /// The cluster's name servers.
    Dns(Settings),
    /// There is something in `Found`.
    Found,
    /// The server is away: what was kept counts.
    KeptCounts,
    /// What was kept.
    KeptRead(Kept),
    /// A write of what is kept ended.
    KeptWritten(Outcome),
    /// The Node is this now; `None` = it was deleted.
    Marked(Option<NodeMarks>),
    /// The event with that revision of the ring was told, or not.
    EventTold {
        of_node: bool,
        revision: u64,
        result: Result<(), KubeError>,
    },
}

impl Cluster {
    pub(super) fn new(
        client: Client,
        machine: Machine,
        found: Found,
        network: Network,
        keeping: Keeping,
        shared: Shared,
        now: Mono,
    ) -> Self {
        let seed = seed(&machine.name);
        Self {
            client,
            admission: Admission::new(&machine),
            telling_events: Telling::new(now, &machine.name),
            mirrors: Mirrors::new(&machine.name),
            network,
            keeping,
            machine: Rc::new(machine),
            registered: None,
            status: NodeStatus::new(now, seed),
            ooms: SystemOoms::default(),
            lease: Task::new(now, seed),
            lease_version: None,
            pods: SortedMap::new(),
            telling: 0,
            following: Following::new(found),
            shared,
            said: Said::default(),
        }
    }

    /// The Node has these conditions, by type. When they are not those that were told last, they are told at once: a node of
    /// which nothing is heard for a while is marked as unknown (`monitorNodeHealth`), and stays so until it speaks.
    pub(super) fn compare(&mut self, there: &SortedMap<Box<str>, Box<str>>, now: Mono) {
        let is_as_told = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            there.get(text("type")).is_some_and(|status| **status == *text("status"))
        };
        if !self.status.conditions.iter().all(is_as_told) {
            self.status.tell(now);
        }
    }

    /// Somebody deleted the Node: it registers afresh.
    pub(super) fn was_deleted(&mut self, now: Mono) {
        if self.registered.take().is_some() {
            self.status.tell(now);
        }
    }

    pub(super) fn failed(&mut self, what: &str, why: &KubeError, now: Mono) {
        if self.said.is_news(what, why, now) {
            log::warn!("{what}: {why}; trying again");
        }
    }
}

/// How the pod ended in the server's word; nothing of one that is not over there.
fn terminal_there(pod: &Pod) -> PodStatus {
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    PodStatus { phase, ..PodStatus::default() }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn cluster_due(&self) -> Option<Mono> {
        let cluster = self.cluster.as_ref()?;
        let lease = cluster.registered.as_ref().and_then(|_| cluster.lease.due());
        let full = cluster.telling >= KUBE_TELLING_MAX;
        let pods = cluster.pods.iter().filter(|_| !full);
        let pods = pods.filter(|(uid, told)| self.tells(uid, told)).filter_map(|(_, told)| told.task.due());
        pods.chain(lease)
            .chain(cluster.status.due())
            .chain(cluster.admission.due())
            .chain(cluster.network.due())
            .chain(cluster.keeping.due())
            .chain(self.telling_due())
            .chain(self.mirrors_due())
            .min()
    }

    /// There is something to tell of this pod.
    fn tells(&self, uid: &PodUid, told: &Told) -> bool {
        told.refused.is_some() && told.revision == 0 || self.is_gone(uid, told) || self.has_news(uid, told)
    }

    /// Its status here is not what the server has; one that was not looked at yet has none to tell.
    fn has_news(&self, uid: &PodUid, told: &Told) -> bool {
        let looked_at = self.records.get(uid).is_some_and(|record| {
            record.worker.observed().is_some() || record.worker.life() == Life::Waiting || record.set_aside
        });
        looked_at && self.statuses.revision_of(uid) != told.revision
    }

    /// It was deleted there: it ends, whatever manifests cannot be read.
    pub(super) fn is_deleted(&self, uid: &PodUid) -> bool {
        let told = self.cluster.as_ref().and_then(|cluster| cluster.pods.get(uid));
        told.is_some_and(|told| told.ending.is_some())
    }

    /// The grace period of its deletion there.
    pub(super) fn deletion_grace(&self, uid: &PodUid) -> Option<Seconds> {
        let told = self.cluster.as_ref().and_then(|cluster| cluster.pods.get(uid))?;
        told.ending.as_ref().map(|ending| ending.grace)
    }

    /// It was deleted there, and nothing of it is left here.
    fn is_gone(&self, uid: &PodUid, told: &Told) -> bool {
        let left = self.relist.as_ref().is_none_or(|relist| relist.pods.contains_key(uid));
        told.ending.is_some() && !left && !self.records.contains_key(uid)
    }

    pub(super) fn turn_cluster(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.admission.due().is_some_and(|at| at <= now.mono) {
            self.ask_again();
        }
        self.turn_node_status(now);
        self.turn_network(now);
        self.turn_keeping(now.mono);
        self.renew_lease(now);
        self.turn_mirrors(now);
        self.tell_pods(now);
        self.tell_event(now);
    }

    fn renew_lease(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(uid) = cluster.registered.clone() else { return };
        if !cluster.lease.begins(now.mono) {
            return;
        }
        let (client, machine) = (cluster.client.for_heartbeats(), cluster.machine.clone());
        let (version, events) = (cluster.lease_version.clone(), self.events.clone());
        let task = async move {
            let leased = renew(&client, &machine, &uid, version, now.wall).await;
            let _ = events.send(Event::Cluster(Box::new(ClusterEvent::Leased(leased)))).await;
        };
        self.executor.spawn("node lease", task).detach();
    }

    fn tell_pods(&mut self, now: Now) {
        let Some(cluster) = &self.cluster else { return };
        let room = KUBE_TELLING_MAX.saturating_sub(cluster.telling);
        let due = cluster
            .pods
            .iter()
            .filter(|(uid, told)| told.task.due().is_some_and(|at| at <= now.mono) && self.tells(uid, told));
        let due: Vec<PodUid> = due.map(|(uid, _)| uid.clone()).take(room).collect();
        for uid in due {
            self.tell_pod(&uid, now);
        }
    }

    fn tell_pod(&mut self, uid: &PodUid, now: Now) {
        let Some(told) = self.cluster.as_ref().and_then(|cluster| cluster.pods.get(uid)) else { return };
        let deleted = self.is_gone(uid, told);
        let (revision, status) = if let Some(why) = told.refused.as_ref().filter(|_| !deleted) {
            (1, Some(refusal(why, now.wall)))
        } else if deleted {
            (told.revision, told.last.clone())
        } else {
            let status = self.statuses.status(uid);
            let record = self.records.get(uid);
            let may_run = record
                .and_then(|record| record.worker.observed())
                .is_some_and(|observed| observed.is_alive());
            let pod = record.and_then(|record| record.worker.pod());
            let status = status.map(|status| match pod {
                Some(pod) => merge::for_api(&pod.pod, &terminal_there(&pod.pod), status, may_run, now.wall),
                None => status,
            });
            (self.statuses.revision_of(uid), status)
        };
        // Before this process one may have told anything of what runs.
        let observed = self.records.get(uid).and_then(|record| record.worker.observed());
        let ran = observed.is_some_and(|observed| !observed.containers.is_empty());
        let Some(cluster) = &mut self.cluster else { return };
        let Some(told) = cluster.pods.get_mut(uid) else { return };
        let tells = status.as_ref().is_some_and(tells_of_resize);
        let resized = std::mem::replace(&mut told.resized, tells) || told.revision == 0 && ran;
        told.task.in_flight = true;
        cluster.telling += 1;
        cluster.shared.statuses.sending(&told.key.uid);
        let (client, key, events) = (cluster.client.clone(), told.key.clone(), self.events.clone());
        let uid = uid.clone();
        let task = async move {
            let result = tell(&client, &key, status, resized, deleted).await;
            let event = ClusterEvent::Told { uid, key, revision, deleted, result };
            let _ = events.send(Event::Cluster(Box::new(event))).await;
        };
        self.executor.spawn("pod status", task).detach();
    }

    pub(super) fn cluster_event(&mut self, event: ClusterEvent) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        match event {
            ClusterEvent::Found => self.objects_found(),
            ClusterEvent::KeptCounts => self.kept_counts(),
            ClusterEvent::KeptRead(kept) => self.kept_read(kept),
            ClusterEvent::KeptWritten(outcome) => self.kept_written(outcome),
            ClusterEvent::Marked(marks) => self.node_marked(marks),
            ClusterEvent::EventTold { of_node, revision, result } => {
                self.event_told(of_node, revision, result);
            }
            ClusterEvent::NetworkTold(result) => self.network_told(result),
            ClusterEvent::Dns(settings) => self.dns_known(&settings),
            ClusterEvent::Mirrored { name, result } => self.mirrored(&name, result),
            ClusterEvent::Registered(result) => self.node_registered(result),
            ClusterEvent::RuntimeSaid(said) => self.runtime_said(said),
            ClusterEvent::RuntimeHere(here) => self.runtime_has(here),
            ClusterEvent::OomsRead(read) => self.ooms_read(read),
            ClusterEvent::Reported(result) => self.node_reported(result),
            ClusterEvent::Leased(result) => {
                cluster.lease.ended(result.is_ok(), now, cluster.machine.periods.renewal());
                match result {
                    Ok(version) => {
                        cluster.lease_version = Some(version);
                        cluster.said.went_well();
                    }
                    Err(why) => {
                        cluster.lease_version = None;
                        cluster.failed("the node's lease is not renewed", &why, now);
                    }
                }
            }
            ClusterEvent::Told { uid, key, revision, deleted, result } => {
                cluster.telling = cluster.telling.saturating_sub(1);
                // A static pod may have another copy by now.
                let told = cluster.pods.get_mut(&uid).filter(|told| told.key == key);
                let Some(told) = told else { return };
                told.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
                let answer = result.as_ref().ok().copied().flatten();
                let changed = cluster.shared.statuses.sent(&key.uid, answer);
                match result {
                    Ok(_) if deleted => {
                        cluster.pods.remove(&uid);
                        cluster.telling_events.leaves(&uid, &self.ring.borrow());
                    }
                    Ok(_) => {
                        told.revision = revision;
                        // What changed meanwhile is told at once.
                        told.task.at = now;
                        if changed {
                            told.correct(now);
                        }
                    }
                    Err(why) => {
                        told.resized = true;
                        if why.is_final() && !deleted {
                            // The same once more would be refused once more.
                            told.revision = revision;
                        }
                        cluster.failed(&format!("pod {key}: its status is not told"), &why, now);
                    }
                }
            }
        }
    }

    /// Takes out of an update of the server's what the pods that are wanted do not say.
    pub(super) fn server_pods(&mut self, update: &mut SourceUpdate) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.mirrors.look_again();
        if update.source != source::API {
            return;
        }
        if update.complete {
            cluster.mirrors.are_there(&update.server.mirrors);
        }
        cluster.following.last = Some(update.clone());
        self.keep_pods();
        let now = self.ctx.clock.now().mono;
        let over = &update.server.over;
        let relist = self.relist.as_ref();
        let is_in =
            |relist: &Relist, uid: &PodUid| relist.pods.contains_key(uid) || relist.former.contains(uid);
        let is_here = |uid: &PodUid| match self.records.get(uid) {
            // What is left of it goes; it is not to come again.
            Some(record) => !matches!(record.worker.life(), Life::Ending(Why::Unwanted) | Life::Removing),
            None => relist.is_some_and(|relist| is_in(relist, uid)),
        };
        update.pods.retain(|sourced| !over.contains(&sourced.pod.key.uid) || is_here(&sourced.pod.key.uid));
        self.admit_pods(update);
        let Some(cluster) = &mut self.cluster else { return };
        let seed = seed(&cluster.machine.name);
        let known = std::mem::take(&mut cluster.pods).into_iter();
        let (mirrors, mut before): (SortedMap<_, _>, SortedMap<_, _>) =
            known.partition(|(_, told)| told.is_mirror);
        cluster.pods = mirrors;
        let mut know =
            |key: &PodKey| before.remove(&key.uid).unwrap_or_else(|| Told::new(key.clone(), now, seed));
        for sourced in &update.pods {
            let key = &sourced.pod.key;
            let mut told = Told { refused: None, ..know(key) };
            told.compared(update.server.changed.contains(&key.uid), now);
            cluster.pods.insert(key.uid.clone(), told);
        }
        for refused in &update.server.refused {
            let told = know(&refused.key);
            if told.refused.is_none() {
                note_refusal(&*self.ctx.notes, refused);
            }
            let told = Told { refused: Some(Box::new(refused.clone())), ..told };
            cluster.pods.insert(refused.key.uid.clone(), told);
        }
        let (mut deleted, mut sooner) = (Vec::new(), Vec::new());
        for ending in &update.server.ending {
            let told = know(&ending.key);
            match &told.ending {
                None => deleted.push(ending.clone()),
                Some(before) if ending.grace < before.grace => sooner.push(ending.clone()),
                Some(_) => {}
            }
            let told = Told { ending: Some(ending.clone()), ..told };
            cluster.pods.insert(ending.key.uid.clone(), told);
        }
        for uid in before.keys() {
            cluster.telling_events.leaves(uid, &self.ring.borrow());
        }
        // The server knows nothing more of a pod that ends here: it was deleted once more, at once (`kubectl delete --force`).
        let forgotten = before.into_values().filter(|told| told.ending.is_some());
        sooner.extend(forgotten.map(|told| EndingPod { key: told.key, grace: Seconds(0) }));
        for ending in deleted {
            self.begin_deletion(&ending);
        }
        for ending in sooner {
            self.hurry(&ending);
        }
        self.follow_objects(update);
    }

    /// The pod ends as its deletion has it; that it is wanted no more follows from the update.
    fn begin_deletion(&mut self, ending: &EndingPod) {
        let wall = self.ctx.clock.now().wall;
        let Some(record) = self.records.get_mut(&ending.key.uid) else { return };
        record.unwanted_at.get_or_insert(wall);
        // One that nobody wants any more ends already, and must not begin afresh.
        let is_wanted = !matches!(record.worker.life(), Life::Ending(Why::Unwanted) | Life::Removing);
        if let Some(pod) = record.worker.pod().filter(|_| is_wanted) {
            let mut deleted = (**pod).clone();
            let mut object = (*deleted.pod).clone();
            object.metadata.deletion_grace_period_seconds = Some(ending.grace.0);
            object.metadata.deletion_timestamp = crate::status::time(wall);
            deleted.pod = object.into();
            record.worker.want(Rc::new(deleted));
        }
    }

    /// The pod, which ends already, is to end sooner.
    fn hurry(&mut self, ending: &EndingPod) {
        let EndingPod { key, grace } = ending;
        let Some(record) = self.records.get_mut(&key.uid) else { return };
        log::info!(
            "pod {key}: it was deleted once more; it ends within {} s",
            grace.0.max(GRACE_SECONDS_MIN)
        );
        record.hurry(*grace);
        self.drive(&key.uid);
    }

    /// Nothing of the pod is left here: its last status is told before it goes there too.
    pub(super) fn cluster_forgets(&mut self, key: &PodKey) {
        let revision = self.statuses.revision_of(&key.uid);
        let status = self.statuses.status(&key.uid);
        let Some(cluster) = &mut self.cluster else { return };
        cluster.mirrors.look_again();
        let Some(told) = cluster.pods.get_mut(&key.uid) else { return };
        if told.ending.is_some() && told.revision != revision {
            told.last = status;
        }
    }
}
