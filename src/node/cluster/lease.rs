//! The node's lease (kubelet `nodelease`, client-go `lease.controller`): renewed four times per lease duration.

use super::calls::renew;
use super::{ClusterEventKind, Membership, Task};
use crate::kube::KubeError;
use crate::model::{Mono, Now};
use crate::node::effects::Effects;

/// The renewals.
pub(super) struct NodeLease {
    task: Task,
    /// Its resource version; `None` = it has to be read.
    version: Option<Box<str>>,
}

impl NodeLease {
    pub(super) fn new(now: Mono, seed: u64) -> Self {
        Self { task: Task::new(now, seed), version: None }
    }

    pub(super) fn due(&self, of: &Membership) -> Option<Mono> {
        of.registered.as_ref().and_then(|_| self.task.due())
    }

    /// Sets the time of the next renewal.
    pub(super) fn renew_at(&mut self, at: Mono) {
        self.task.at = at;
    }

    pub(super) fn turn(&mut self, of: &Membership, now: Now, out: &Effects) {
        let Some(uid) = of.registered.clone() else { return };
        if !self.task.begin_if_due(now.mono) {
            return;
        }
        let (client, machine, version) =
            (of.client.for_heartbeats(), of.machine.clone(), self.version.clone());
        out.start("node lease", async move {
            ClusterEventKind::LeaseRenewed(renew(&client, &machine, &uid, version, now.wall).await).event()
        });
    }

    /// A renewal ended.
    pub(super) fn take(&mut self, result: Result<Box<str>, KubeError>, of: &mut Membership, now: Mono) {
        self.task.ended(result.is_ok(), now, of.machine.periods.renewal());
        match result {
            Ok(version) => {
                self.version = Some(version);
                of.failures.note_success();
            }
            Err(why) => {
                self.version = None;
                of.log_failure("node lease renewal failed", &why, now);
            }
        }
    }
}
