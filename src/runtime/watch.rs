//! Tells when a container's monitor has recorded an exit, and when a monitor was killed: inotify on the containers' directories.
//!
//! ```text
//!     exit moved in           the container has ended
//!     lock closed by writer   its monitor is gone: with an exit all is well, without one it was killed
//! ```
//!
//! One inotify instance for all; a directory's watch ends with the directory.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use async_io::Async;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::context::Context;
use crate::limits::INOTIFY_BUFFER_BYTES;
use crate::model::{ContainerId, SortedMap};
use crate::monitor;

/// What happened in a container's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Its exit may be recorded, or its monitor killed: look there.
    Look(ContainerId),
    /// Changes were lost: look everywhere.
    LookEverywhere,
}

/// The watches.
pub(super) struct Watch {
    inotify: Arc<Async<OwnedFd>>,
    /// At most one for each container.
    watched: RefCell<SortedMap<i32, ContainerId>>,
    context: Rc<Context>,
}

impl Watch {
    pub(super) fn new(context: Rc<Context>) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = Arc::new(Async::new_nonblocking(inotify)?);
        Ok(Self { inotify, watched: RefCell::default(), context })
    }

    /// Watches a container's directory.
    ///
    /// # Errors
    /// The directory does not exist; the user has no watch left.
    pub(super) async fn add(&self, id: &ContainerId, dir: PathBuf) -> io::Result<()> {
        let inotify = self.inotify.clone();
        let flags = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        let added =
            self.context.blocking(move || inotify::add_watch(inotify.get_ref().as_fd(), &dir, flags)).await;
        self.watched.borrow_mut().insert(added?, id.clone());
        Ok(())
    }

    /// Waits for changes.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) async fn next(&self) -> io::Result<Vec<Change>> {
        loop {
            self.inotify.readable().await?;
            let changes = self.read()?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn read(&self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); INOTIFY_BUFFER_BYTES];
        let mut reader = Reader::new(self.inotify.get_ref().as_fd(), &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(changes),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                changes.push(Change::LookEverywhere);
                continue;
            }
            if event.events().contains(ReadFlags::IGNORED) {
                self.watched.borrow_mut().remove(&event.wd());
                continue;
            }
            let name = event.file_name().map(std::ffi::CStr::to_bytes);
            let is_end = name == Some(monitor::names::EXIT.as_bytes())
                || name == Some(monitor::names::LOCK.as_bytes());
            if let Some(id) = self.watched.borrow().get(&event.wd()).filter(|_| is_end) {
                let change = Change::Look(id.clone());
                if !changes.contains(&change) {
                    changes.push(change);
                }
            }
        }
    }
}
