//! Writes images out to the disk before a power cut can damage them: containerd and CRI-O leave what they unpack to the kernel's
//! write-back, and files that are cut off there are empty ever after, in all containers of the image.
//!
//! ```text
//!     images were imported, or a container has an image that had none ──► IMAGE_SYNC_DELAY ──► syncfs of the images' disk (task)
//! ```
//!
//! Not in the kubelet. The embedded runtime's images are on the disk before they can be used.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, syncfs};

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::cri::Runtime;
use crate::limits::IMAGE_SYNC_DELAY;
use crate::model::Mono;

/// The schedule of the writes.
pub(super) struct ImageSync {
    /// The runtime leaves its images to the kernel.
    is_needed: bool,
    at: Option<Mono>,
    in_flight: bool,
}

impl ImageSync {
    pub(super) fn new(is_needed: bool) -> Self {
        Self { is_needed, at: None, in_flight: false }
    }

    /// An image was imported or unpacked. Several at once are written together.
    pub(super) fn request(&mut self, now: Mono) {
        if self.is_needed {
            self.at.get_or_insert(now + IMAGE_SYNC_DELAY);
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.at.filter(|_| !self.in_flight)
    }

    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        self.at = None;
        self.in_flight = true;
        let ctx = pods.ctx().clone();
        let task = async move {
            let told = ctx.manager.runtime.image_fs_info().await.unwrap_or_default();
            let Some(disk) = told.into_iter().next() else {
                return Event::ImagesWritten(Err("the runtime reports no image filesystem".to_owned()));
            };
            let path = PathBuf::from(&*disk.mountpoint);
            let theirs = path.clone();
            // One that takes longer goes on all the same.
            let written = ctx.manager.blocking.run_outside(&path, move || write_out(&theirs)).await;
            let written = written.map_err(|stuck| stuck.to_string()).and_then(|written| written);
            Event::ImagesWritten(written.map_err(|error| format!("{}: {error}", disk.mountpoint)))
        };
        out.start("image write-out", task);
    }

    /// A write has ended.
    pub(super) fn take(&mut self, written: Result<(), String>) {
        self.in_flight = false;
        if let Err(error) = written {
            log::debug!(
                "images are not written out: {error}; a power cut within half a minute may damage them"
            );
        }
    }
}

/// Blocking.
fn write_out(path: &Path) -> Result<(), String> {
    open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(syncfs)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_out_is_named() {
        assert_eq!(write_out(&std::env::temp_dir()), Ok(()));
        assert_eq!(
            write_out(Path::new("/no/images")),
            Err("No such file or directory (os error 2)".to_owned())
        );
    }
}
