//! What is told of the Node: registration, its status, and the events that go with them (kubelet `kubelet_node_status.go`).
//!
//! ```text
//!     every nodeStatusUpdateFrequency ─► the runtime is asked: status, images (tasks of their own)
//!        its status is here, or RUNTIME_STATUS_WAIT is over ─► register, or report when something changed
//!        its status comes later, and says something else    ─► the next look, at once
//! ```

use std::rc::Rc;

use serde_json::Value;

use super::agent::{Agent, Event};
use super::cluster::{ClusterEvent, Task};
use super::cluster_calls::{Registered, register, report, runtime_here};
use crate::cluster::node_images::NodeImage;
use crate::cluster::node_object::{Handler, Health, Machine};
use crate::cluster::runtime_state::RuntimeState;
use crate::cri::{Runtime, RuntimeStatus};
use crate::events::EventKind;
use crate::kube::KubeError;
use crate::limits::{NODE_IMAGES_PERIOD, RUNTIME_STATUS_WAIT};
use crate::model::{Mono, Now};

/// `ShutdownStatus`.
const SHUTTING_DOWN: &str = "node is shutting down";

/// What is known of the Node's status, and how far its telling is.
pub(super) struct NodeStatus {
    /// From the look to the server's answer.
    pub(super) task: Task,
    /// Until then the runtime's answers are waited for.
    waits_until: Option<Mono>,
    runtime: RuntimeState,
    asks_status: bool,
    asks_images: bool,
    /// The images that were here at that time.
    images: Rc<[NodeImage]>,
    images_at: Option<Mono>,
    /// What was told last, and when.
    reported: Option<(u64, Mono)>,
    /// The Node became another while its status was on its way: which of the two came first is not known.
    look_again: bool,
    /// As the Node has them.
    pub(super) conditions: Vec<Value>,
    /// The events of a start were noted.
    started: bool,
}

/// The images, and the runtime's name and version.
pub(super) struct RuntimeHere {
    pub(super) images: Option<Rc<[NodeImage]>>,
    pub(super) version: Option<Box<str>>,
}

impl NodeStatus {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self {
            task: Task::new(now, seed),
            waits_until: None,
            runtime: RuntimeState::default(),
            asks_status: false,
            asks_images: false,
            images: Rc::default(),
            images_at: None,
            reported: None,
            look_again: false,
            conditions: Vec::new(),
            started: false,
        }
    }

    pub(super) fn images(&self) -> &[NodeImage] {
        &self.images
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.waits_until.or_else(|| self.task.due())
    }

    /// What was told is not what is any more: it is told anew at once.
    pub(super) fn tell(&mut self, now: Mono) {
        self.look_again |= self.task.due().is_none() && self.waits_until.is_none();
        self.reported = None;
        if self.task.due().is_some() {
            self.task.at = now;
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// The Node is another one by now, or is to be: it is told at once.
    pub(super) fn tell_node(&mut self) {
        let now = self.ctx.clock.now().mono;
        if let Some(cluster) = &mut self.cluster {
            cluster.status.tell(now);
        }
    }

    /// `BirthCry`.
    pub(super) fn note_start(&self) {
        if self.cluster.is_some() {
            self.note_node(EventKind::Normal, "Starting", "Starting kubelet.");
        }
    }

    /// All that is to be told of the Node has been told.
    pub(super) fn node_is_told(&self) -> bool {
        let Some(cluster) = &self.cluster else { return true };
        cluster.registered.is_none() || cluster.status.reported.is_some()
    }

    /// The Node has these addresses from now on (`nodestatus.NodeAddress`).
    pub(super) fn node_has_addresses(&mut self, addresses: &[Box<str>]) {
        self.change_machine(|machine| machine.addresses = addresses.to_vec());
        self.tell_node();
    }

    fn change_machine(&mut self, change: impl FnOnce(&mut Machine)) {
        if let Some(cluster) = &mut self.cluster {
            let mut machine = Machine::clone(&cluster.machine);
            change(&mut machine);
            cluster.machine = Rc::new(machine);
        }
    }

    pub(super) fn turn_node_status(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        let status = &mut cluster.status;
        if status.task.begins(now.mono) {
            status.waits_until = Some(now.mono + RUNTIME_STATUS_WAIT);
            self.ask_runtime(now.mono);
            self.count_ooms();
        }
        let Some(cluster) = &mut self.cluster else { return };
        let status = &mut cluster.status;
        let is_known = !status.asks_status && !status.asks_images;
        if status.waits_until.take_if(|until| is_known || *until <= now.mono).is_some() {
            self.report_node(now);
        }
    }

    /// Asks the runtime how it is and what it has, unless it has not answered the last question yet.
    fn ask_runtime(&mut self, now: Mono) {
        let Some(cluster) = &mut self.cluster else { return };
        let status = &mut cluster.status;
        if !std::mem::replace(&mut status.asks_status, true) {
            let (runtime, events) = (self.ctx.runtime.clone(), self.events.clone());
            let task = async move {
                let said = runtime.status().await.map_err(|error| error.to_string());
                // The loop is gone only when the process ends.
                let _ = events.send(Event::Cluster(Box::new(ClusterEvent::RuntimeSaid(said)))).await;
            };
            self.executor.spawn("runtime status", task).detach();
        }
        let lists = status.images_at.is_none_or(|at| now.since(at) >= NODE_IMAGES_PERIOD);
        if lists && !std::mem::replace(&mut status.asks_images, true) {
            status.images_at = Some(now);
            let (runtime, events) = (self.ctx.runtime.clone(), self.events.clone());
            let images_max = cluster.machine.images_max;
            let task = async move {
                let here = runtime_here(&*runtime, images_max).await;
                let _ = events.send(Event::Cluster(Box::new(ClusterEvent::RuntimeHere(here)))).await;
            };
            self.executor.spawn("node images", task).detach();
        }
    }

    pub(super) fn runtime_said(&mut self, said: Result<RuntimeStatus, String>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let status = &mut cluster.status;
        status.asks_status = false;
        let said = match said {
            Ok(said) => said,
            Err(why) => {
                // One that comes back may be another version.
                status.images_at = None;
                return log::debug!("the container runtime's status is not known: {why}");
            }
        };
        let before = status.runtime.errors(now);
        status.runtime.answered(&said, now);
        // It came too late for the last report.
        if status.waits_until.is_none() && status.runtime.errors(now) != before {
            status.tell(now);
        }
        let mut handlers: Vec<Handler> = said.handlers.iter().map(Handler::of).collect();
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        let policy = Some(said.supplemental_groups_policy);
        let machine = &cluster.machine;
        if machine.handlers != handlers || machine.supplemental_groups_policy != policy {
            self.change_machine(|machine| {
                machine.handlers = handlers;
                machine.supplemental_groups_policy = policy;
            });
        }
    }

    pub(super) fn runtime_has(&mut self, here: RuntimeHere) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.status.asks_images = false;
        if let Some(images) = here.images {
            cluster.status.images = images;
        }
        if let Some(version) = here.version.filter(|version| cluster.machine.runtime != *version) {
            self.change_machine(|machine| machine.runtime = version);
        }
    }

    fn report_node(&mut self, now: Now) {
        let pressure = self.watching.conditions().to_vec();
        let Some(cluster) = &mut self.cluster else { return };
        let status = &cluster.status;
        let mut not_ready = status.runtime.errors(now.mono);
        if self.shutdown.is_some() {
            not_ready.push(SHUTTING_DOWN.to_owned());
        }
        let health = Health { pressure, not_ready, images: status.images.clone() };
        let registered = cluster.registered.is_some();
        let client = if registered { cluster.client.for_heartbeats() } else { cluster.client.clone() };
        let machine = cluster.machine.clone();
        let (before, events) = (status.conditions.clone(), self.events.clone());
        let told = status.reported.filter(|(_, at)| now.mono.since(*at) < machine.periods.report);
        let task = async move {
            let event = if registered {
                let told = told.map(|(told, _)| told);
                ClusterEvent::Reported(report(&client, &machine, &health, &before, told, now.wall).await)
            } else {
                ClusterEvent::Registered(register(&client, &machine, &health, now.wall).await)
            };
            let _ = events.send(Event::Cluster(Box::new(event))).await;
        };
        self.executor.spawn("node status", task).detach();
    }

    pub(super) fn node_registered(&mut self, result: Result<Registered, KubeError>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let status = &mut cluster.status;
        status.task.ended(result.is_ok(), now, cluster.machine.periods.look);
        let there = match result {
            Ok(there) => there,
            Err(why) => return cluster.failed("the node is not registered", &why, now),
        };
        log::info!("node {}: registered", cluster.machine.name);
        status.look_again = false;
        // What the server had of it is not what it is now.
        status.task.at = now;
        let is_created = there.former.is_none();
        let is_ready = is_created && ready_of(&there.conditions) == Some("True");
        status.conditions = there.conditions;
        let is_first = !std::mem::replace(&mut status.started, true);
        let (name, boot_id) = (cluster.machine.name.clone(), cluster.machine.boot_id.clone());
        cluster.registered = Some(there.uid);
        cluster.lease.at = now;
        if is_first {
            // As the kubelet makes its Node anew at each start: conditions that nobody has told are news.
            for reason in ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
                self.note_node_status(reason);
            }
            let rebooted = there.former.is_some_and(|of| !of.boot_id.is_empty() && of.boot_id != boot_id);
            if rebooted {
                let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
                self.note_node(EventKind::Warning, "Rebooted", &message);
            }
        }
        if is_ready {
            self.note_node_status("NodeReady");
        }
    }

    pub(super) fn node_reported(&mut self, result: Result<Option<(u64, Vec<Value>)>, KubeError>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let status = &mut cluster.status;
        status.task.ended(result.is_ok(), now, cluster.machine.periods.look);
        let mut news = None;
        match result {
            Ok(told) => {
                if let Some((told, conditions)) = told {
                    status.reported = Some((told, now));
                    news = match (ready_of(&status.conditions), ready_of(&conditions)) {
                        (Some(was), Some(is)) if was == is => None,
                        (Some(_), Some("True")) => Some("NodeReady"),
                        (Some(_), Some(_)) => Some("NodeNotReady"),
                        (None, _) | (_, None) => None,
                    };
                    status.conditions = conditions;
                    cluster.said.went_well();
                }
                if std::mem::take(&mut status.look_again) {
                    status.reported = None;
                    status.task.at = now;
                }
            }
            Err(why) => {
                if why.is_not_found() {
                    cluster.was_deleted(now);
                }
                cluster.failed("the node's status is not told", &why, now);
            }
        }
        if let Some(reason) = news {
            self.note_node_status(reason);
        }
    }

    /// `recordNodeStatusEvent`.
    fn note_node_status(&self, reason: &'static str) {
        let node = self.identity.node_name();
        self.note_node(EventKind::Normal, reason, &format!("Node {node} status is now: {reason}"));
    }
}

/// The status of the Ready condition among these.
fn ready_of(conditions: &[Value]) -> Option<&str> {
    conditions.iter().find(|condition| condition["type"] == "Ready")?["status"].as_str()
}
