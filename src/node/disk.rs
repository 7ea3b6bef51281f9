//! What the loop keeps on disk: the identity file, and that nothing is left of pods that are gone.

use super::agent::{Agent, Event};
use super::jobs;
use super::record::Record;
use crate::cri::Runtime;
use crate::limits::SYNC_RETRY;
use crate::model::SortedSet;
use crate::model::{Mono, PodKey, PodUid};
use crate::sync::worker::Worker;

/// How far the writes and the sweep are.
#[derive(Default)]
pub(super) struct Disk {
    /// The identity is not the one in its file.
    pub(super) changed: bool,
    /// The write in flight.
    write: Option<smol::Task<()>>,
    /// Not before: the next write, after a failed one.
    write_at: Option<Mono>,
    swept: bool,
    /// While the sweep runs: whose directories it leaves alone. A pod that comes meanwhile waits for its end.
    pub(super) spared: Option<SortedSet<PodUid>>,
}

impl Disk {
    /// When a failed write is tried again.
    pub(super) fn due(&self) -> Option<Mono> {
        self.write_at.filter(|_| self.changed && self.write.is_none())
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// Writes the identity file when it changed: one write at a time, or an older one might come last.
    pub(super) fn write_identity(&mut self) {
        let now = self.ctx.clock.now();
        let waits = self.disk.write.is_some() || self.disk.write_at.is_some_and(|at| at > now.mono);
        if waits || !std::mem::take(&mut self.disk.changed) {
            return;
        }
        let (pending, events) = (self.identity.pending(), self.events.clone());
        let blocking = self.ctx.blocking.clone();
        self.disk.write = Some(self.executor.spawn("identity file", async move {
            let written = blocking.run(move || pending.write()).await;
            // The loop is gone only when the process ends.
            let _ = events.send(Event::IdentityWritten(written)).await;
        }));
    }

    pub(super) fn identity_written(&mut self, result: std::io::Result<()>) {
        self.disk.write = None;
        match result {
            Ok(()) => {
                self.metrics.state_writes.inc();
                self.disk.write_at = None;
            }
            Err(error) => {
                if self.disk.write_at.is_none() {
                    log::warn!("the identity file was not written: {error}; tried again until it is");
                }
                self.disk.changed = true;
                self.disk.write_at = Some(self.ctx.clock.now().mono + SYNC_RETRY);
            }
        }
        self.write_identity();
    }

    /// Once, when every source and the runtime have been read: what is on disk of pods that are nowhere goes.
    pub(super) fn sweep(&mut self) {
        let Some(relist) =
            self.relist.as_ref().filter(|_| !self.disk.swept && self.desired.may_terminate_orphans())
        else {
            return;
        };
        self.disk.swept = true;
        let wanted = self.desired.entries().map(|entry| &entry.wanted.pod.key.uid);
        let known: SortedSet<PodUid> =
            relist.pods.keys().chain(self.records.keys()).chain(wanted).cloned().collect();
        // What was adopted and went while no agent ran is nobody's any more.
        self.disk.changed |= self.identity.release_all_but(|uid| known.contains(uid));
        self.forget_restored_but(&known);
        let spared = known.iter().map(ToString::to_string).collect();
        self.disk.spared = Some(known);
        self.write_identity();
        let (ctx, cgroups, events) = (self.ctx.clone(), self.cgroups.clone(), self.events.clone());
        let set_aside = self.set_aside.clone();
        let task = async move {
            let (swept, slow) = jobs::sweep(&ctx, &cgroups, spared, &set_aside).await;
            match swept {
                Ok(0) => {}
                Ok(pods) => log::info!("removed what was left on disk of {pods} pods that are gone"),
                Err(error) => {
                    log::warn!("leftovers of pods that are gone: {error}; tried again at the next start");
                }
            }
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Swept(slow)).await;
        };
        self.executor.spawn("orphaned pods", task).detach();
    }

    /// The directories of pods that come now may be made. Of those pods that are gone something may be mounted still, of a server
    /// that is away: they end as others do, each tried until nothing is left, with events of the node.
    pub(super) fn sweep_ended(&mut self, slow: Vec<PodUid>) {
        self.disk.spared = None;
        let mut touched = SortedSet::new();
        for uid in slow {
            if !self.records.contains_key(&uid) {
                let key = PodKey::new("", self.identity.node_name(), uid.as_str());
                let mut record = Record::new(Worker::orphan(key), None);
                record.unwanted_at = Some(self.ctx.clock.now().wall);
                self.records.insert(uid.clone(), record);
                touched.insert(uid);
            }
        }
        self.free_names(&mut touched);
        for uid in touched {
            self.drive(&uid);
        }
    }
}
