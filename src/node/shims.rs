//! Looks for shims of containerd that serve no sandbox any more, and tells of them: `smolet_orphaned_shims`, and a line of the log.
//!
//! Not in the kubelet. None is ended: containerd may still know what it is for.

use std::path::{Path, PathBuf};

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::cri::shims::{Shim, orphaned, shims};
use crate::cri::{ImageStore, Runtime};
use crate::limits::SHIM_LOOK_PERIOD;
use crate::model::Mono;

/// The schedule of the looks.
pub(super) struct Shims {
    /// containerd's socket; `None`: another runtime, which has none.
    socket: Option<PathBuf>,
    at: Mono,
    in_flight: bool,
}

impl Shims {
    pub(super) fn new(store: Option<&ImageStore>, now: Mono) -> Self {
        let socket = store.map(|store| store.socket().to_owned());
        Self { socket, at: now + SHIM_LOOK_PERIOD, in_flight: false }
    }

    /// containerd's socket; `None`: another runtime.
    pub(super) fn socket(&self) -> Option<PathBuf> {
        self.socket.clone()
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (self.socket.is_some() && !self.in_flight).then_some(self.at)
    }

    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        let Some(socket) = self.socket.clone().filter(|_| !self.in_flight && self.at <= now) else { return };
        self.at = now + SHIM_LOOK_PERIOD;
        self.in_flight = true;
        let ctx = pods.ctx().clone();
        let task = async move {
            let manager = &ctx.manager;
            let look = async || {
                let socket = socket.clone();
                manager.blocking.run(move || shims(Path::new("/proc"), &socket)).await
            };
            let seen = orphaned(&*manager.runtime, &manager.clock, look).await;
            Event::ShimsSeen(seen.inspect_err(|error| log::debug!("shims are not looked at: {error}")).ok())
        };
        out.start("shims", task);
    }

    /// A look has ended. `None`: the runtime did not answer, and what is known stays.
    pub(super) fn take(&mut self, found: Option<&[Shim]>, out: &Effects) {
        self.in_flight = false;
        let Some(found) = found else { return };
        let before = out.metrics().orphaned_shims.replace(found.len());
        if let Some(last) = found.last().filter(|_| found.len() > before) {
            log::warn!(
                "{} shims of containerd serve no sandbox and keep their memory, the last that of sandbox {}; smolet doctor lists them",
                found.len(),
                last.sandbox
            );
        }
    }
}
