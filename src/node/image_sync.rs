//! Writes images out to the disk before a power cut can damage them: containerd and CRI-O leave what they unpack to the kernel's
//! write-back, and files that are cut off there are empty ever after, in all containers of the image.
//!
//! ```text
//!     start; images were imported or are new, or a container has an image that had none
//!           ──► IMAGE_SYNC_DELAY ──► syncfs of the images' disk (task) ──► the layers that were there before are recorded
//! ```
//!
//! What was not written out by the time of a power cut is removed at the next start (`unpacked_layers`); what could not be removed then
//! is not recorded, and an event says what is to be done. Not in the kubelet. The embedded runtime's images are on the disk before they can be used.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, open, syncfs};

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use super::unpacked_layers::{LayerRecord, snapshotter};
use crate::blocking::Blocking;
use crate::cri::{ImageStore, Runtime};
use crate::events::EventKind;
use crate::limits::{IMAGE_SYNC_DELAY, IMAGE_SYNC_RETRY};
use crate::model::Mono;

/// The schedule of the writes.
pub(super) struct ImageSync {
    /// Of a runtime that leaves its images to the kernel.
    store: Option<ImageStore>,
    record: LayerRecord,
    at: Option<Mono>,
    in_flight: bool,
    /// The last write failed: the next one that fails waits for the next request.
    has_failed: bool,
    /// Number of images when last looked at.
    images: usize,
    /// What the last write has to say of layers that stay doubted, until the event is made.
    doubts: Rc<Cell<String>>,
}

impl ImageSync {
    pub(super) fn new(store: Option<ImageStore>, record: LayerRecord, now: Mono) -> Self {
        let doubts = Rc::default();
        let mut sync =
            Self { store, record, at: None, in_flight: false, has_failed: false, images: 0, doubts };
        sync.request(now);
        sync
    }

    /// An image was imported or unpacked. Several at once are written together.
    pub(super) fn request(&mut self, now: Mono) {
        if self.store.is_some() {
            self.at.get_or_insert(now + IMAGE_SYNC_DELAY);
        }
    }

    /// So many images are known: further ones were pulled, by whomever.
    pub(super) fn count(&mut self, images: usize, now: Mono) {
        if std::mem::replace(&mut self.images, images) < images {
            self.request(now);
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.at.filter(|_| !self.in_flight)
    }

    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        let doubts = self.doubts.take();
        if !doubts.is_empty() {
            out.note_node(EventKind::Warning, "ImagesMayBeDamaged", &doubts);
        }
        if self.due().is_none_or(|at| at > now) {
            return;
        }
        self.at = None;
        let (ctx, record, doubts) = (pods.ctx().clone(), self.record.clone(), self.doubts.clone());
        let Some(store) = self.store.clone() else { return };
        self.in_flight = true;
        let task = async move {
            let written =
                write_images_out(&*ctx.manager.runtime, &store, record, &ctx.manager.blocking).await;
            Event::ImagesWritten(written.map(|told| doubts.set(told)))
        };
        out.start("image write-out", task);
    }

    /// A write has ended.
    pub(super) fn take(&mut self, written: Result<(), String>, now: Mono) {
        self.in_flight = false;
        let has_failed = std::mem::replace(&mut self.has_failed, written.is_err());
        if let Err(error) = written {
            // Else the next boot would doubt layers that are well. Not for ever: a runtime may report a disk that is not there.
            if !has_failed {
                self.at.get_or_insert(now + IMAGE_SYNC_RETRY);
            }
            log::debug!(
                "images are not written out: {error}; a power cut within half a minute may damage new ones"
            );
        }
    }
}

/// Returns what the owner has to know of layers that stay doubted; empty if none is.
async fn write_images_out<R: Runtime>(
    runtime: &R,
    store: &ImageStore,
    record: LayerRecord,
    blocking: &Blocking,
) -> Result<String, String> {
    let told = runtime.image_fs_info().await.unwrap_or_default();
    let disk = told.into_iter().next().ok_or("the runtime reports no image filesystem")?;
    // Those that are unpacked meanwhile are not written out.
    let layers = match snapshotter(&disk.mountpoint) {
        Some(snapshotter) => Some(store.snapshots(snapshotter).await),
        None => None,
    };
    let path = PathBuf::from(&*disk.mountpoint);
    // However long it takes on a slow card: layers that are not recorded are removed after a power cut. There is one at a time.
    let written = blocking.run_alone(move || write_out(&path)).await;
    let written = written.map_err(|error| error.to_string()).and_then(|written| written);
    written.map_err(|error| format!("{}: {error}", disk.mountpoint))?;
    let Some(layers) = layers else { return Ok(String::new()) };
    let layers = layers.map_err(|error| format!("layers: {error}"))?;
    blocking.run(move || record.write(&layers)).await.map_err(|error| format!("layers: {error}"))
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
    fn a_write_that_failed_is_tried_again_once_and_after_a_success_once_more() {
        let (start, retry) = (Mono::default(), Mono::default() + IMAGE_SYNC_RETRY);
        let mut sync = ImageSync::new(None, LayerRecord::new(Path::new("/"), "boot".into()), start);
        let failed = || Err("the disk hangs".to_owned());
        for (written, due) in [
            (failed(), Some(retry)),
            (failed(), None),
            (failed(), None),
            (Ok(()), None),
            (failed(), Some(retry)),
        ] {
            sync.at = None;
            sync.take(written, start);
            assert_eq!(sync.due(), due);
        }
    }

    #[test]
    fn what_cannot_be_written_out_is_named() {
        assert_eq!(write_out(&std::env::temp_dir()), Ok(()));
        assert_eq!(
            write_out(Path::new("/no/images")),
            Err("No such file or directory (os error 2)".to_owned())
        );
    }
}
