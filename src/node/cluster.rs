//! This node in a cluster: its lease, its Node object, and what its pods become there.
//!
//! ```text
//!     register ─► lease          every LEASE_PERIOD
//!              └► report         every NODE_LOOK_PERIOD a look; told when it changed, and every NODE_REPORT_PERIOD
//!     a pod's status changed ─► its status is patched
//!     a pod that was deleted there has ended, and nothing of it is left here ─► its last status, then it is deleted for good
//! ```
//!
//! Each of these is a task that takes a snapshot and brings an outcome; one per pod at a time, of all pods
//! `KUBE_TELLING_MAX`. What fails is told again later, with what there is to tell then.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;

use hyper::Method;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};
use smol::channel::Receiver;

use super::agent::{Agent, Event};
use super::cluster_admission::Admission;
use super::cluster_events::Telling;
use super::cluster_objects::Following;
use crate::cluster::node_object::{Health, Machine};
use crate::cluster::{lease, pod_status};
use crate::cri::{Runtime, RuntimeStatus};
use crate::eviction::NodeCondition;
use crate::kube::{Client, Content, KubeError, Resource, RetryWait, object_path, seed, subresource_path};
use crate::limits::{KUBE_RETRY_MAX, KUBE_TELLING_MAX, LEASE_PERIOD, NODE_LOOK_PERIOD, NODE_REPORT_PERIOD};
use crate::model::{Mono, Now, PodKey, PodUid, Wall};
use crate::source::api_node::NodeMarks;
use crate::source::api_objects::Found;
use crate::source::decode::Node;
use crate::source::{self, EndingPod, SourceUpdate};
use crate::status::merge;
use crate::sync::worker::{Life, Why};

/// What the wiring hands over when this node joins a cluster.
pub struct Joined {
    /// The API server.
    pub client: Client,
    /// What this machine is.
    pub machine: Machine,
    /// The pods that are bound to it.
    pub pods: Receiver<SourceUpdate>,
    /// The labels and taints of its Node.
    pub marks: Receiver<NodeMarks>,
}

/// What is kept of it.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) machine: Rc<Machine>,
    /// The Node's UID, once it is registered.
    pub(super) registered: Option<Box<str>>,
    node: Task,
    /// What was told last, and when.
    reported: Option<(u64, Mono)>,
    conditions: Vec<Value>,
    lease: Task,
    lease_version: Option<Box<str>>,
    pub(super) pods: BTreeMap<PodUid, Told>,
    telling: usize,
    pub(super) following: Following,
    pub(super) admission: Admission,
    pub(super) telling_events: Telling,
    /// Said once.
    said: Option<KubeError>,
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
    key: PodKey,
    /// Of the status that it has; 0 = none of this process.
    revision: u64,
    /// It was deleted there.
    ending: Option<EndingPod>,
    /// It does not run here, because of this: reason and message.
    refused: Option<(Box<str>, Box<str>)>,
    /// What its status was when the last of it went.
    last: Option<PodStatus>,
    task: Task,
}

/// What a task of the cluster's brings.
pub(super) enum ClusterEvent {
    Registered(Result<(Box<str>, Vec<Value>), KubeError>),
    /// With what was told and the conditions in it; nothing when it was as before.
    Reported(Result<Option<(u64, Vec<Value>)>, KubeError>),
    Leased(Result<Box<str>, KubeError>),
    Told {
        uid: PodUid,
        revision: u64,
        deleted: bool,
        result: Result<(), KubeError>,
    },
    /// There is something in `Found`.
    Found,
    /// The node's labels or taints are these now.
    Marked(NodeMarks),
    /// The event with that revision of the ring was told, or not.
    EventTold {
        revision: u64,
        result: Result<(), KubeError>,
    },
}

impl Cluster {
    pub(super) fn new(client: Client, machine: Machine, found: Found, now: Mono) -> Self {
        let seed = seed(&machine.name);
        Self {
            client,
            admission: Admission::new(&machine),
            telling_events: Telling::new(now, &machine.name),
            machine: Rc::new(machine),
            registered: None,
            node: Task::new(now, seed),
            reported: None,
            conditions: Vec::new(),
            lease: Task::new(now, seed),
            lease_version: None,
            pods: BTreeMap::new(),
            telling: 0,
            following: Following::new(found),
            said: None,
        }
    }

    fn failed(&mut self, what: &str, why: &KubeError) {
        if self.said.as_ref() != Some(why) {
            log::warn!("{what}: {why}; trying again");
            self.said = Some(why.clone());
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    pub(super) fn cluster_due(&self) -> Option<Mono> {
        let cluster = self.cluster.as_ref()?;
        let lease = cluster.registered.as_ref().and_then(|_| cluster.lease.due());
        let full = cluster.telling >= KUBE_TELLING_MAX;
        let pods = cluster.pods.iter().filter(|_| !full);
        let pods = pods.filter(|(uid, told)| self.tells(uid, told)).filter_map(|(_, told)| told.task.due());
        pods.chain(lease)
            .chain(cluster.node.due())
            .chain(cluster.admission.due())
            .chain(self.telling_due())
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

    /// It was deleted there, and nothing of it is left here.
    fn is_gone(&self, uid: &PodUid, told: &Told) -> bool {
        let left = self.relist.as_ref().is_none_or(|relist| relist.pods.contains_key(uid));
        told.ending.is_some() && !left && !self.records.contains_key(uid)
    }

    pub(super) fn turn_cluster(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.node.begins(now.mono) {
            let (client, machine) = (cluster.client.clone(), cluster.machine.clone());
            let pressure = self.watching.conditions().to_vec();
            let (runtime, before) = (self.ctx.runtime.clone(), cluster.conditions.clone());
            let registered = cluster.registered.is_some();
            let told = cluster.reported.filter(|(_, at)| now.mono.since(*at) < NODE_REPORT_PERIOD);
            let events = self.events.clone();
            let task = async move {
                let health = health(pressure, runtime.status().await.map_err(|error| error.to_string()));
                let event = if registered {
                    let told = told.map(|(told, _)| told);
                    ClusterEvent::Reported(report(&client, &machine, &health, &before, told, now.wall).await)
                } else {
                    ClusterEvent::Registered(register(&client, &machine, &health, now.wall).await)
                };
                let _ = events.send(Event::Cluster(Box::new(event))).await;
            };
            self.executor.spawn(task).detach();
        }
        if cluster.admission.due().is_some_and(|at| at <= now.mono) {
            self.ask_again();
        }
        self.renew_lease(now);
        self.tell_pods(now);
        self.tell_event(now);
    }

    fn renew_lease(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(uid) = cluster.registered.clone() else { return };
        if !cluster.lease.begins(now.mono) {
            return;
        }
        let (client, name) = (cluster.client.clone(), cluster.machine.name.clone());
        let (version, events) = (cluster.lease_version.clone(), self.events.clone());
        let task = async move {
            let leased = renew(&client, &name, &uid, version, now.wall).await;
            let _ = events.send(Event::Cluster(Box::new(ClusterEvent::Leased(leased)))).await;
        };
        self.executor.spawn(task).detach();
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
            (1, Some(refusal(why)))
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
                Some(pod) => merge::for_api(&pod.pod, &PodStatus::default(), status, may_run, now.wall),
                None => status,
            });
            (self.statuses.revision_of(uid), status)
        };
        let Some(cluster) = &mut self.cluster else { return };
        let Some(told) = cluster.pods.get_mut(uid) else { return };
        told.task.in_flight = true;
        cluster.telling += 1;
        let (client, key, events) = (cluster.client.clone(), told.key.clone(), self.events.clone());
        let task = async move {
            let result = tell(&client, &key, status, deleted).await;
            let event = ClusterEvent::Told { uid: key.uid, revision, deleted, result };
            let _ = events.send(Event::Cluster(Box::new(event))).await;
        };
        self.executor.spawn(task).detach();
    }

    pub(super) fn cluster_event(&mut self, event: ClusterEvent) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        match event {
            ClusterEvent::Found => self.objects_found(),
            ClusterEvent::Marked(marks) => self.node_marked(marks),
            ClusterEvent::EventTold { revision, result } => self.event_told(revision, result),
            ClusterEvent::Registered(result) => {
                cluster.node.ended(result.is_ok(), now, NODE_LOOK_PERIOD);
                match result {
                    Ok((uid, conditions)) => {
                        log::info!("node {}: registered", cluster.machine.name);
                        cluster.registered = Some(uid);
                        cluster.conditions = conditions;
                        // What the server had of it is not what it is now.
                        cluster.node.at = now;
                        cluster.lease.at = now;
                    }
                    Err(why) => cluster.failed("the node is not registered", &why),
                }
            }
            ClusterEvent::Reported(result) => {
                cluster.node.ended(result.is_ok(), now, NODE_LOOK_PERIOD);
                match result {
                    Ok(None) => {}
                    Ok(Some((told, conditions))) => {
                        cluster.reported = Some((told, now));
                        cluster.conditions = conditions;
                        cluster.said = None;
                    }
                    Err(why) => {
                        if why.is_not_found() {
                            // Somebody deleted the Node.
                            cluster.registered = None;
                            cluster.reported = None;
                        }
                        cluster.failed("the node's status is not told", &why);
                    }
                }
            }
            ClusterEvent::Leased(result) => {
                cluster.lease.ended(result.is_ok(), now, LEASE_PERIOD);
                match result {
                    Ok(version) => {
                        cluster.lease_version = Some(version);
                        cluster.said = None;
                    }
                    Err(why) => {
                        cluster.lease_version = None;
                        cluster.failed("the node's lease is not renewed", &why);
                    }
                }
            }
            ClusterEvent::Told { uid, revision, deleted, result } => {
                cluster.telling = cluster.telling.saturating_sub(1);
                let Some(told) = cluster.pods.get_mut(&uid) else { return };
                let key = told.key.clone();
                told.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
                match result {
                    Ok(()) if deleted => drop(cluster.pods.remove(&uid)),
                    Ok(()) => {
                        told.revision = revision;
                        // What changed meanwhile is told at once.
                        told.task.at = now;
                    }
                    Err(why) => {
                        if why.is_final() && !deleted {
                            // The same once more would be refused once more.
                            told.revision = revision;
                        }
                        cluster.failed(&format!("pod {key}: its status is not told"), &why);
                    }
                }
            }
        }
    }

    /// Takes out of an update of the server's what the pods that are wanted do not say.
    pub(super) fn server_pods(&mut self, update: &mut SourceUpdate) {
        if update.source != source::API {
            return;
        }
        let now = self.ctx.clock.now().mono;
        if let Some(cluster) = &mut self.cluster {
            cluster.following.last = Some(update.clone());
        }
        let over = &update.server.over;
        let relist = self.relist.as_ref();
        let is_here =
            |uid: &PodUid| self.records.contains_key(uid) || relist.is_some_and(|r| r.pods.contains_key(uid));
        update.pods.retain(|sourced| !over.contains(&sourced.pod.key.uid) || is_here(&sourced.pod.key.uid));
        self.admit_pods(update);
        let Some(cluster) = &mut self.cluster else { return };
        let seed = seed(&cluster.machine.name);
        let mut before = std::mem::take(&mut cluster.pods);
        let mut know = |key: &PodKey| {
            before.remove(&key.uid).unwrap_or_else(|| Told {
                key: key.clone(),
                revision: 0,
                ending: None,
                refused: None,
                last: None,
                task: Task::new(now, seed),
            })
        };
        for sourced in &update.pods {
            let key = &sourced.pod.key;
            let told = Told { refused: None, ..know(key) };
            cluster.pods.insert(key.uid.clone(), told);
        }
        for refused in &update.server.refused {
            let why = (refused.reason.clone(), refused.message.clone());
            let told = Told { refused: Some(why), ..know(&refused.key) };
            cluster.pods.insert(refused.key.uid.clone(), told);
        }
        let mut deleted = Vec::new();
        for ending in &update.server.ending {
            let told = know(&ending.key);
            if told.ending.is_none() {
                deleted.push(ending.clone());
            }
            let told = Told { ending: Some(ending.clone()), ..told };
            cluster.pods.insert(ending.key.uid.clone(), told);
        }
        for ending in deleted {
            self.begin_deletion(&ending);
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
            deleted.pod = Rc::new(object);
            record.worker.want(Rc::new(deleted));
        }
    }

    /// Nothing of the pod is left here: its last status is told before it goes there too.
    pub(super) fn cluster_forgets(&mut self, key: &PodKey) {
        let revision = self.statuses.revision_of(&key.uid);
        let status = self.statuses.status(&key.uid);
        let Some(told) = self.cluster.as_mut().and_then(|cluster| cluster.pods.get_mut(&key.uid)) else {
            return;
        };
        if told.ending.is_some() && told.revision != revision {
            told.last = status;
        }
    }
}

/// What the runtime says of itself, in the kubelet's words.
fn health(pressure: Vec<NodeCondition>, runtime: Result<RuntimeStatus, String>) -> Health {
    let not_ready = match runtime {
        Err(error) => vec![format!("container runtime is down: {error}")],
        Ok(status) => {
            let failing = status.conditions.iter().filter(|condition| !condition.status);
            let told = failing.map(|condition| {
                let what = match &*condition.kind {
                    "NetworkReady" => "container runtime network not ready",
                    _ => "container runtime not ready",
                };
                let (kind, reason, message) = (&condition.kind, &condition.reason, &condition.message);
                format!("{what}: {kind}=false reason:{reason} message:{message}")
            });
            told.collect()
        }
    };
    Health { pressure, not_ready }
}

/// The status of a pod that does not run here (`rejectPod`).
fn refusal((reason, message): &(Box<str>, Box<str>)) -> PodStatus {
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_string()),
        message: Some(message.to_string()),
        ..PodStatus::default()
    }
}

fn text(node: &Node, path: [&str; 2]) -> Option<Box<str>> {
    node.field(path[0])?.field(path[1])?.text().map(Box::from)
}

/// `tryRegisterWithAPIServer`: the Node's UID and the conditions that it has there.
async fn register(
    client: &Client,
    machine: &Machine,
    health: &Health,
    now: Wall,
) -> Result<(Box<str>, Vec<Value>), KubeError> {
    let object = machine.object(health, &[], now);
    let nodes = Resource::NODES.path("");
    let node = match client.call(Method::POST, &nodes, Some(Content::json(&object))).await {
        Err(error) if error.is(409) => {
            let path = object_path(Resource::NODES, "", &machine.name);
            let patch = json!({"metadata": {"labels": machine.labels()}});
            client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await?
        }
        created => created?,
    };
    let uid = text(&node, ["metadata", "uid"])
        .ok_or_else(|| KubeError::Protocol("a Node without a UID".to_owned()))?;
    let conditions = node.field("status").and_then(|status| status.field("conditions"));
    let conditions = conditions.map(Node::items).unwrap_or_default().iter().map(|condition| {
        let of = |field| condition.field(field).and_then(Node::text).unwrap_or_default();
        json!({
            "type": of("type"), "status": of("status"), "lastTransitionTime": of("lastTransitionTime"),
        })
    });
    Ok((uid, conditions.collect()))
}

/// `tryUpdateNodeStatus`: what was told, when it is another than `told`.
async fn report(
    client: &Client,
    machine: &Machine,
    health: &Health,
    before: &[Value],
    told: Option<u64>,
    now: Wall,
) -> Result<Option<(u64, Vec<Value>)>, KubeError> {
    // Times apart.
    let mut hasher = DefaultHasher::new();
    machine.status(health, &[], Wall(0)).to_string().hash(&mut hasher);
    let digest = hasher.finish();
    if told == Some(digest) {
        return Ok(None);
    }
    let status = machine.status(health, before, now);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let path = subresource_path(Resource::NODES, "", &machine.name, "status");
    client.call(Method::PATCH, &path, Some(Content::strategic(&json!({"status": status})))).await?;
    Ok(Some((digest, conditions)))
}

/// `controller.sync` of the lease: its version.
async fn renew(
    client: &Client,
    node: &str,
    uid: &str,
    version: Option<Box<str>>,
    now: Wall,
) -> Result<Box<str>, KubeError> {
    let path = object_path(Resource::LEASES, lease::NAMESPACE, node);
    let version = match version {
        Some(version) => Some(version),
        None => match client.call(Method::GET, &path, None).await {
            Ok(found) => text(&found, ["metadata", "resourceVersion"]),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        },
    };
    let object = Content::json(&lease::lease(node, Some(uid), version.as_deref(), now));
    let renewed = if version.is_some() {
        client.call(Method::PUT, &path, Some(object)).await?
    } else {
        client.call(Method::POST, &Resource::LEASES.path(lease::NAMESPACE), Some(object)).await?
    };
    text(&renewed, ["metadata", "resourceVersion"])
        .ok_or_else(|| KubeError::Protocol("a Lease without a resourceVersion".to_owned()))
}

/// Tells a pod's status, and deletes the pod when nothing of it is left here. That it is gone there, or another one has its
/// name, is as good.
async fn tell(
    client: &Client,
    key: &PodKey,
    status: Option<PodStatus>,
    deleted: bool,
) -> Result<(), KubeError> {
    let is_past = |error: &KubeError| error.is_not_found() || error.is(409);
    if let Some(status) = status {
        let path = subresource_path(Resource::PODS, &key.namespace, &key.name, "status");
        let patch = pod_status::patch(key.uid.as_str(), &status);
        match client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await {
            Err(error) if !is_past(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    if deleted {
        let path = object_path(Resource::PODS, &key.namespace, &key.name);
        let options = Content::json(&pod_status::deletion(key.uid.as_str()));
        match client.call(Method::DELETE, &path, Some(options)).await {
            Err(error) if !is_past(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}
