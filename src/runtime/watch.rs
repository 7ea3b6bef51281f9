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
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use async_io::Async;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::blocking::Blocking;
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
    inotify: RefCell<Arc<Async<OwnedFd>>>,
    /// At most one for each container and each pod's first process, with the watched directory.
    watched: RefCell<SortedMap<i32, (ContainerId, PathBuf)>>,
    blocking: Rc<Blocking>,
}

impl Watch {
    pub(super) fn new(blocking: Rc<Blocking>) -> io::Result<Self> {
        Ok(Self { inotify: RefCell::new(instance()?), watched: RefCell::default(), blocking })
    }

    /// A new instance with the same watches, after an error of [`Watch::next`]. Returns those of which the directories are not watched any
    /// more: they are gone, or the user has no watch left.
    ///
    /// # Errors
    /// There is no further instance.
    pub(super) async fn renew(&self) -> io::Result<Vec<(ContainerId, io::Error)>> {
        let new = instance()?;
        self.inotify.replace(new);
        let mut lost = Vec::new();
        for (_, (id, dir)) in self.watched.take() {
            if let Err(error) = self.add(&id, dir).await {
                lost.push((id, error));
            }
        }
        Ok(lost)
    }

    /// Watches a container's directory.
    ///
    /// # Errors
    /// The directory does not exist; the user has no watch left.
    pub(super) async fn add(&self, id: &ContainerId, dir: PathBuf) -> io::Result<()> {
        let (adder, watched) = (self.adder(), dir.clone());
        let added = self.blocking.run(move || adder.add(&watched)).await;
        self.insert(added?, id, dir);
        Ok(())
    }

    /// For a thread that watches a directory with other work. What it returns is [`Watch::insert`]ed afterwards: until then changes go
    /// unseen.
    pub(super) fn adder(&self) -> Adder {
        Adder(self.inotify.borrow().clone())
    }

    pub(super) fn insert(&self, added: i32, id: &ContainerId, dir: PathBuf) {
        self.watched.borrow_mut().insert(added, (id.clone(), dir));
    }

    /// Waits for changes.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) async fn next(&self) -> io::Result<Vec<Change>> {
        loop {
            let inotify = self.inotify.borrow().clone();
            inotify.readable().await?;
            let changes = self.read(&inotify)?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn read(&self, inotify: &Async<OwnedFd>) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); INOTIFY_BUFFER_BYTES];
        let mut reader = Reader::new(inotify.get_ref().as_fd(), &mut buffer);
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
            if let Some((id, _)) = self.watched.borrow().get(&event.wd()).filter(|_| is_end) {
                let change = Change::Look(id.clone());
                if !changes.contains(&change) {
                    changes.push(change);
                }
            }
        }
    }
}

/// Watches directories, on any thread.
pub(super) struct Adder(Arc<Async<OwnedFd>>);

impl Adder {
    /// Blocking.
    ///
    /// # Errors
    /// The directory does not exist; the user has no watch left.
    pub(super) fn add(&self, dir: &Path) -> io::Result<i32> {
        let flags = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(self.0.get_ref().as_fd(), dir, flags)?)
    }
}

fn instance() -> io::Result<Arc<Async<OwnedFd>>> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    Ok(Arc::new(Async::new_nonblocking(inotify)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_instance_has_the_same_watches() {
        let dir = std::env::temp_dir().join(format!("smolet-watch-{}", std::process::id()));
        let (one, gone) = (dir.join("one"), dir.join("gone"));
        std::fs::create_dir_all(&one).unwrap();
        std::fs::create_dir_all(&gone).unwrap();
        smol::block_on(async {
            let clock: crate::clock::SharedClock = Rc::new(crate::clock::SystemClock);
            let blocking = Rc::new(Blocking::on_threads(clock, Path::new("/")));
            let watch = Watch::new(blocking).unwrap();
            let id = ContainerId::from("one");
            watch.add(&id, one.clone()).await.unwrap();
            watch.add(&ContainerId::from("gone"), gone.clone()).await.unwrap();
            std::fs::remove_dir_all(&gone).unwrap();
            watch.renew().await.unwrap();
            std::fs::write(one.join("beside"), "").unwrap();
            std::fs::rename(one.join("beside"), one.join(monitor::names::EXIT)).unwrap();
            assert_eq!(watch.next().await.unwrap(), [Change::Look(id)]);
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
