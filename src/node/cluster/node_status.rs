//! What is told of the Node: registration, its status, and the events that go with them (kubelet `kubelet_node_status.go`).
//!
//! ```text
//!     every nodeStatusUpdateFrequency ─► the runtime is asked: status, images (tasks of their own)
//!        its status is here, or RUNTIME_STATUS_WAIT is over ─► register, or report when something changed
//!        its status comes later, and says something else    ─► the next look, at once
//! ```

use std::rc::Rc;

use serde_json::Value;

use super::calls::{Registered, register, report, runtime_here};
use super::oom::{OomsRead, SystemOoms};
use super::{Membership, News, Task};
use crate::cluster::node_images::NodeImage;
use crate::cluster::node_object::{Handler, Health};
use crate::cluster::runtime_state::RuntimeState;
use crate::cri::{Runtime, RuntimeStatus};
use crate::events::EventKind;
use crate::kube::KubeError;
use crate::limits::{NODE_IMAGES_PERIOD, RUNTIME_STATUS_WAIT};
use crate::model::{Mono, Now, SortedMap};
use crate::node::effects::Effects;
use crate::node::pods::Pods;

/// `ShutdownStatus`.
const SHUTTING_DOWN: &str = "node is shutting down";

/// What is known of the Node's status, and how far its telling is.
pub(super) struct NodeStatus {
    /// From the look to the server's answer.
    task: Task,
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
    conditions: Vec<Value>,
    /// The events of a start were noted.
    started: bool,
    ooms: SystemOoms,
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
            ooms: SystemOoms::default(),
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
    /// What was told is what is.
    pub(super) fn is_told(&self) -> bool {
        self.reported.is_some()
    }

    /// The Node has these conditions, by type. When they are not those that were told last, they are told at once: a node of
    /// which nothing is heard for a while is marked as unknown (`monitorNodeHealth`), and stays so until it speaks.
    pub(super) fn compare(&mut self, there: &SortedMap<Box<str>, Box<str>>, now: Mono) {
        let is_as_told = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            there.get(text("type")).is_some_and(|status| **status == *text("status"))
        };
        if !self.conditions.iter().all(is_as_told) {
            self.tell(now);
        }
    }

    /// Somebody deleted the Node: it registers afresh.
    pub(super) fn was_deleted(&mut self, of: &mut Membership, now: Mono) {
        if of.registered.take().is_some() {
            self.tell(now);
        }
    }

    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &mut Membership,
        pods: &Pods<R>,
        now: Now,
        out: &Effects,
    ) {
        if self.task.begins(now.mono) {
            self.waits_until = Some(now.mono + RUNTIME_STATUS_WAIT);
            self.ask_runtime(of, pods, now.mono, out);
            self.ooms.count(pods, out);
        }
        let is_known = !self.asks_status && !self.asks_images;
        if self.waits_until.take_if(|until| is_known || *until <= now.mono).is_some() {
            self.report(of, pods, now, out);
        }
    }

    /// Asks the runtime how it is and what it has, unless it has not answered the last question yet.
    fn ask_runtime<R: Runtime + 'static>(
        &mut self,
        of: &Membership,
        pods: &Pods<R>,
        now: Mono,
        out: &Effects,
    ) {
        if !std::mem::replace(&mut self.asks_status, true) {
            let runtime = pods.ctx().runtime.clone();
            let task = async move {
                let said = runtime.status().await.map_err(|error| error.to_string());
                News::RuntimeSaid(said).event()
            };
            out.start("runtime status", task);
        }
        let lists = self.images_at.is_none_or(|at| now.since(at) >= NODE_IMAGES_PERIOD);
        if lists && !std::mem::replace(&mut self.asks_images, true) {
            self.images_at = Some(now);
            let runtime = pods.ctx().runtime.clone();
            let images_max = of.machine.images_max;
            let task = async move {
                let here = runtime_here(&*runtime, images_max).await;
                News::RuntimeHere(here).event()
            };
            out.start("node images", task);
        }
    }

    /// The runtime says how it is, or does not.
    pub(super) fn runtime_said(
        &mut self,
        said: Result<RuntimeStatus, String>,
        of: &mut Membership,
        now: Mono,
    ) {
        self.asks_status = false;
        let said = match said {
            Ok(said) => said,
            Err(why) => {
                // One that comes back may be another version.
                self.images_at = None;
                return log::debug!("container runtime status unknown: {why}");
            }
        };
        let before = self.runtime.errors(now);
        self.runtime.answered(&said, now);
        // It came too late for the last report.
        if self.waits_until.is_none() && self.runtime.errors(now) != before {
            self.tell(now);
        }
        let mut handlers: Vec<Handler> = said.handlers.iter().map(Handler::of).collect();
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        let policy = Some(said.supplemental_groups_policy);
        let machine = &of.machine;
        if machine.handlers != handlers || machine.supplemental_groups_policy != policy {
            of.change_machine(|machine| {
                machine.handlers = handlers;
                machine.supplemental_groups_policy = policy;
            });
        }
    }

    /// What the runtime has.
    pub(super) fn runtime_has(&mut self, here: RuntimeHere, of: &mut Membership) {
        self.asks_images = false;
        if let Some(images) = here.images {
            self.images = images;
        }
        if let Some(version) = here.version.filter(|version| of.machine.runtime != *version) {
            of.change_machine(|machine| machine.runtime = version);
        }
    }

    /// The kernel's log was read.
    pub(super) fn ooms_read(&mut self, read: OomsRead, out: &Effects) {
        self.ooms.take(read, out);
    }

    fn report<R: Runtime + 'static>(&self, of: &Membership, pods: &Pods<R>, now: Now, out: &Effects) {
        let pressure = pods.conditions().to_vec();
        let mut not_ready = self.runtime.errors(now.mono);
        if pods.is_closing() {
            not_ready.push(SHUTTING_DOWN.to_owned());
        }
        let health = Health { pressure, not_ready, images: self.images.clone() };
        let registered = of.registered.is_some();
        let client = if registered { of.client.for_heartbeats() } else { of.client.clone() };
        let machine = of.machine.clone();
        let before = self.conditions.clone();
        let told = self.reported.filter(|(_, at)| now.mono.since(*at) < machine.periods.report);
        let task = async move {
            let event = if registered {
                let told = told.map(|(told, _)| told);
                News::Reported(report(&client, &machine, &health, &before, told, now.wall).await)
            } else {
                News::Registered(register(&client, &machine, &health, now.wall).await)
            };
            event.event()
        };
        out.start("node status", task);
    }

    /// The Node was registered, or not. True when it was.
    pub(super) fn registered(
        &mut self,
        result: Result<Registered, KubeError>,
        of: &mut Membership,
        now: Mono,
        out: &Effects,
    ) -> bool {
        self.task.ended(result.is_ok(), now, of.machine.periods.look);
        let there = match result {
            Ok(there) => there,
            Err(why) => {
                of.failed("node registration failed", &why, now);
                return false;
            }
        };
        log::info!("node {}: registered", of.machine.name);
        self.look_again = false;
        // What the server had of it is not what it is now.
        self.task.at = now;
        let is_created = there.former.is_none();
        let is_ready = is_created && ready_of(&there.conditions) == Some("True");
        self.conditions = there.conditions;
        let is_first = !std::mem::replace(&mut self.started, true);
        let (name, boot_id) = (of.machine.name.clone(), of.machine.boot_id.clone());
        of.registered = Some(there.uid);
        if is_first {
            // As the kubelet makes its Node anew at each start: conditions that nobody has told are news.
            for reason in ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
                note_status(reason, out);
            }
            let rebooted = there.former.is_some_and(|of| !of.boot_id.is_empty() && of.boot_id != boot_id);
            if rebooted {
                let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
                out.note_node(EventKind::Warning, "Rebooted", &message);
            }
        }
        if is_ready {
            note_status("NodeReady", out);
        }
        true
    }

    /// The Node's status was told, or not: with what was told and the conditions in it; nothing when it was as before.
    pub(super) fn reported(
        &mut self,
        result: Result<Option<(u64, Vec<Value>)>, KubeError>,
        of: &mut Membership,
        now: Mono,
        out: &Effects,
    ) {
        self.task.ended(result.is_ok(), now, of.machine.periods.look);
        let mut news = None;
        match result {
            Ok(told) => {
                if let Some((told, conditions)) = told {
                    self.reported = Some((told, now));
                    news = match (ready_of(&self.conditions), ready_of(&conditions)) {
                        (Some(was), Some(is)) if was == is => None,
                        (Some(_), Some("True")) => Some("NodeReady"),
                        (Some(_), Some(_)) => Some("NodeNotReady"),
                        (None, _) | (_, None) => None,
                    };
                    self.conditions = conditions;
                    of.failures.went_well();
                }
                if std::mem::take(&mut self.look_again) {
                    self.reported = None;
                    self.task.at = now;
                }
            }
            Err(why) => {
                if why.is_not_found() {
                    self.was_deleted(of, now);
                }
                of.failed("node status update failed", &why, now);
            }
        }
        if let Some(reason) = news {
            note_status(reason, out);
        }
    }
}

/// `recordNodeStatusEvent`.
fn note_status(reason: &'static str, out: &Effects) {
    out.note_node(EventKind::Normal, reason, &format!("Node {} status is now: {reason}", out.node_name()));
}

/// The status of the Ready condition among these.
fn ready_of(conditions: &[Value]) -> Option<&str> {
    conditions.iter().find(|condition| condition["type"] == "Ready")?["status"].as_str()
}
