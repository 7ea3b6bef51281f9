//! Registers the Node and reports its status, as [`crate::cluster::node_status`] decides, and notes the events that go with them.

use std::rc::Rc;

use super::calls::{register, report, runtime_info};
use super::oom::{OomsRead, SystemOoms};
use super::{ClusterEventKind, Membership};
use crate::cluster::node_images::NodeImage;
use crate::cluster::node_status::{NodeEvent, NodeStatusSync, Registered, ReportEnd, RuntimeQuery};
use crate::cri::{Runtime, RuntimeStatus};
use crate::kube::KubeError;
use crate::model::{Mono, Now, SortedMap};
use crate::node::effects::Effects;
use crate::node::pods::Pods;

/// What is known of the Node's status, and how far its telling is.
pub(super) struct NodeStatus {
    sync: NodeStatusSync,
    ooms: SystemOoms,
}

/// The images, and the runtime's name and version.
pub(super) struct RuntimeInfo {
    pub(super) images: Option<Rc<[NodeImage]>>,
    pub(super) version: Option<Box<str>>,
}

impl NodeStatus {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self { sync: NodeStatusSync::new(now, seed), ooms: SystemOoms::default() }
    }

    pub(super) fn images(&self) -> &[NodeImage] {
        self.sync.images()
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.sync.due()
    }

    /// What was told is not what is any more: it is told anew at once.
    pub(super) fn report_now(&mut self, now: Mono) {
        self.sync.report_now(now);
    }

    /// What was told is what is.
    pub(super) fn is_reported(&self) -> bool {
        self.sync.is_reported()
    }

    /// The Node has these conditions, by type.
    pub(super) fn compare_conditions(&mut self, there: &SortedMap<Box<str>, Box<str>>, now: Mono) {
        self.sync.compare_conditions(there, now);
    }

    /// Somebody deleted the Node: it registers afresh.
    pub(super) fn register_again(&mut self, of: &mut Membership, now: Mono) {
        if of.registered.take().is_some() {
            self.sync.report_now(now);
        }
    }

    pub(super) fn turn<R: Runtime + 'static>(
        &mut self,
        of: &mut Membership,
        pods: &Pods<R>,
        now: Now,
        out: &Effects,
    ) {
        if let Some(query) = self.sync.query_runtime(now.mono) {
            ask_runtime(query, of, pods, out);
            self.ooms.count(pods, out);
        }
        if self.sync.begin_report(now.mono) {
            self.report(of, pods, now, out);
        }
    }

    /// The runtime says how it is, or does not.
    pub(super) fn take_runtime_status(
        &mut self,
        said: Result<RuntimeStatus, String>,
        of: &mut Membership,
        now: Mono,
    ) {
        self.sync.take_runtime_status(said.as_ref().ok(), now);
        match said {
            Ok(said) => {
                if let Some(machine) = of.machine.with_runtime(&said) {
                    of.machine = Rc::new(machine);
                }
            }
            Err(why) => log::debug!("container runtime status unknown: {why}"),
        }
    }

    /// What the runtime has.
    pub(super) fn set_runtime_info(&mut self, here: RuntimeInfo, of: &mut Membership) {
        self.sync.set_images(here.images);
        if let Some(version) = here.version.filter(|version| of.machine.runtime != *version) {
            of.change_machine(|machine| machine.runtime = version);
        }
    }

    /// The kernel's log was read.
    pub(super) fn ooms_read(&mut self, read: OomsRead, out: &Effects) {
        self.ooms.take(read, out);
    }

    fn report<R: Runtime + 'static>(&self, of: &Membership, pods: &Pods<R>, now: Now, out: &Effects) {
        let health = self.sync.health(pods.conditions().to_vec(), pods.is_closing(), now.mono);
        let registered = of.registered.is_some();
        let client = if registered { of.client.for_heartbeats() } else { of.client.clone() };
        let machine = of.machine.clone();
        let before = self.sync.conditions().to_vec();
        let digest = self.sync.reported_digest(machine.periods.report, now.mono);
        let task = async move {
            let event = if registered {
                ClusterEventKind::Reported(
                    report(&client, &machine, &health, &before, digest, now.wall).await,
                )
            } else {
                ClusterEventKind::Registered(register(&client, &machine, &health, now.wall).await)
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
        let there = match result {
            Ok(there) => there,
            Err(why) => {
                self.sync.failed(of.machine.periods.look, now);
                of.log_failure("node registration failed", &why, now);
                return false;
            }
        };
        log::info!("node {}: registered", of.machine.name);
        of.registered = Some(there.uid.clone());
        for event in self.sync.registered(there, &of.machine, now) {
            note(&event, out);
        }
        true
    }

    /// The Node's status was told, or not.
    pub(super) fn reported(
        &mut self,
        result: Result<ReportEnd, KubeError>,
        of: &mut Membership,
        now: Mono,
        out: &Effects,
    ) {
        match result {
            Ok(end) => {
                if matches!(end, ReportEnd::Reported(..)) {
                    of.failures.note_success();
                }
                if let Some(event) = self.sync.reported(end, &of.machine, now) {
                    note(&event, out);
                }
            }
            Err(why) => {
                self.sync.reported(ReportEnd::Failed, &of.machine, now);
                if why.is_not_found() {
                    self.register_again(of, now);
                }
                of.log_failure("node status update failed", &why, now);
            }
        }
    }
}

fn note(event: &NodeEvent, out: &Effects) {
    out.note_node(event.kind, event.reason, &event.message);
}

/// Asks the runtime how it is and what it has.
fn ask_runtime<R: Runtime + 'static>(query: RuntimeQuery, of: &Membership, pods: &Pods<R>, out: &Effects) {
    if query.status {
        let runtime = pods.manager().runtime.clone();
        let task = async move {
            let said = runtime.status().await.map_err(|error| error.to_string());
            ClusterEventKind::RuntimeStatus(said).event()
        };
        out.start("runtime status", task);
    }
    if query.images {
        let runtime = pods.manager().runtime.clone();
        let images_max = of.machine.images_max;
        let task = async move {
            let here = runtime_info(&*runtime, images_max).await;
            ClusterEventKind::RuntimeInfo(here).event()
        };
        out.start("node images", task);
    }
}
