//! Registers the Node and reports its status, as [`crate::cluster::node_status`] decides, and records the events of both.

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

/// The state of the Node's status, and of its reports.
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

    /// The last report is out of date: the next one follows at once.
    pub(super) fn report_now(&mut self, now: Mono) {
        self.sync.report_now(now);
    }

    /// The last report is up to date.
    pub(super) fn is_reported(&self) -> bool {
        self.sync.is_reported()
    }

    /// The Node has these conditions, by type: they are reported again if they differ.
    pub(super) fn compare_conditions(&mut self, there: &SortedMap<Box<str>, Box<str>>, now: Mono) {
        self.sync.compare_conditions(there, now);
    }

    /// The Node was deleted: it is registered again.
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

    /// The runtime's status, or why it is not known.
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

    /// Sets the runtime's images and version.
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

    /// The registration ended. True when it succeeded.
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

    /// The report ended.
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

/// Starts the calls to the runtime for its status, and for its images and version.
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
