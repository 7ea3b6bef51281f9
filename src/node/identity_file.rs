//! Writes the identity file when the identity has changed.

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::cri::Runtime;
use crate::limits::SYNC_RETRY;
use crate::model::Mono;
use crate::store::identity::Identity;

/// The write in flight. One at a time, so that an older identity never replaces a newer one.
#[derive(Default)]
pub(super) struct IdentityFile {
    /// The write in flight.
    write: Option<smol::Task<()>>,
    /// Earliest time of the next write, after a failed one.
    write_at: Option<Mono>,
}

impl IdentityFile {
    /// When a failed write is retried.
    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>) -> Option<Mono> {
        self.write_at.filter(|_| pods.is_identity_changed() && self.write.is_none())
    }

    /// Writes a changed identity.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &mut Pods<R>, now: Mono, out: &Effects) {
        if self.write.is_some() || self.write_at.is_some_and(|at| at > now) {
            return;
        }
        let Some(pending) = pods.take_changed_identity().map(Identity::pending) else { return };
        let blocking = pods.manager().blocking.clone();
        self.write = Some(out.keep("identity file", async move {
            Event::IdentityWritten(blocking.run(move || pending.write()).await)
        }));
    }

    /// A write ended.
    pub(super) fn take<R: Runtime + 'static>(
        &mut self,
        result: std::io::Result<()>,
        pods: &mut Pods<R>,
        now: Mono,
        out: &Effects,
    ) {
        self.write = None;
        match result {
            Ok(()) => {
                out.metrics().state_writes.inc();
                self.write_at = None;
            }
            Err(error) => {
                if self.write_at.is_none() {
                    log::warn!("identity file not written: {error}; retrying");
                }
                pods.mark_identity_unwritten();
                self.write_at = Some(now + SYNC_RETRY);
            }
        }
    }
}
