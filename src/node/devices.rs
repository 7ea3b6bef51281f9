//! Devices of the machine that pods have through volumes of type `CharDevice` and `BlockDevice`: which device is behind each path now.
//! When one comes, pods that wait for it start; where it is another one than before, the containers that have it are restarted or given it.
//!
//! The kernel's uevents are not asked for: they come before udev has made the node's links and set its owner and mode.
//!
//! ```text
//!     pods' volumes ─► paths ─► a task: inotify on the directories of each path and its links ─► look ─► the loop
//! ```

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use async_io::Async;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use smol::channel::Sender;

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::Runtime;
use crate::limits::{DEVICE_LINKS_MAX, DEVICE_LOOK_AGAIN, DEVICE_RETRY, DEVICE_SETTLE, DEVICES_WATCHED_MAX};
use crate::model::{DeviceNumber, SortedMap, SortedSet, Wall};
use crate::volume::{device_at, device_paths};

/// The device behind each watched path, if there is one.
pub(super) type DevicesByPath = SortedMap<Box<str>, Option<DeviceNumber>>;

/// What was found at one look.
#[derive(Default)]
pub(super) struct FoundDevices {
    pub(super) by_path: DevicesByPath,
    /// From when on it is true.
    pub(super) at: Wall,
}

/// Follows the devices of the pods' volumes.
#[derive(Default)]
pub(super) struct Devices {
    /// At most [`DEVICES_WATCHED_MAX`].
    paths: SortedSet<PathBuf>,
    watch: Option<smol::Task<()>>,
}

impl Devices {
    /// Follows the devices of the pods as they are wanted now.
    pub(super) fn follow<R: Runtime + 'static>(&mut self, pods: &mut Pods<R>, out: &Effects) {
        if !pods.ctx().node.opens_devices {
            return;
        }
        let paths = pods.desired().entries().flat_map(|entry| device_paths(&entry.wanted.pod));
        let paths: SortedSet<PathBuf> = paths.collect();
        let paths: SortedSet<PathBuf> = paths.into_iter().take(DEVICES_WATCHED_MAX).collect();
        if paths == self.paths {
            return;
        }
        self.paths = paths;
        pods.forget_devices(|path| !self.paths.contains(Path::new(path)));
        self.watch = (!self.paths.is_empty()).then(|| {
            let watch = Watch {
                paths: self.paths.iter().cloned().collect(),
                blocking: pods.manager().blocking.clone(),
                clock: pods.manager().clock.clone(),
                events: out.tasks().sender(),
            };
            out.tasks().run("devices", watch.run())
        });
    }
}

struct Watch {
    paths: Rc<[PathBuf]>,
    blocking: Rc<Blocking>,
    clock: SharedClock,
    events: Sender<Event>,
}

impl Watch {
    async fn run(self) {
        let (mut last, mut looks_again) = (None, false);
        loop {
            let (paths, at) = (self.paths.to_vec(), self.clock.now().wall);
            let looked = self.blocking.run_outside(&self.paths[0], move || look(&paths)).await;
            let (found, watched) = match looked {
                Ok((found, watched)) => (Some(found), watched),
                Err(stuck) => (None, Err(io::Error::other(stuck))),
            };
            if let Some(by_path) = found {
                let is_new = last.as_ref() != Some(&by_path);
                if is_new || looks_again {
                    last = Some(by_path.clone());
                    let found = Box::new(FoundDevices { by_path, at });
                    if self.events.send(Event::Devices(found)).await.is_err() {
                        return;
                    }
                }
                // A container that was created while this look was made may have either device.
                looks_again = is_new;
            }
            match watched.and_then(Async::new_nonblocking) {
                // What happened is seen by looking; the watches are made anew with each look, as links may lead elsewhere.
                Ok(inotify) => {
                    let changed = async { drop(inotify.readable().await) };
                    if looks_again {
                        smol::future::or(changed, self.clock.sleep(DEVICE_LOOK_AGAIN)).await;
                    } else {
                        changed.await;
                    }
                }
                // One of the directories went away meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    log::debug!("devices: {error}; looking again in {} s", DEVICE_RETRY.as_secs());
                    self.clock.sleep(DEVICE_RETRY).await;
                }
            }
            self.clock.sleep(DEVICE_SETTLE).await;
        }
    }
}

/// Watches the directories of these paths, then looks what is there: no change after that is missed. Blocking.
fn look(paths: &[PathBuf]) -> (DevicesByPath, io::Result<OwnedFd>) {
    let watched = watch(paths);
    let found = paths.iter().map(|path| (path.to_string_lossy().into(), device_at(path)));
    (found.collect(), watched)
}

fn watch(paths: &[PathBuf]) -> io::Result<OwnedFd> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    let mut dirs = SortedSet::new();
    for path in paths {
        holders(path, &mut dirs);
    }
    for dir in dirs {
        inotify::add_watch(&inotify, &dir, flags)?;
    }
    Ok(inotify)
}

/// The directories in which an entry decides what the path leads to: those of its last component and of each link on the way, or the
/// deepest one that there is.
fn holders(path: &Path, dirs: &mut SortedSet<PathBuf>) {
    let parts = |path: &Path| -> VecDeque<OsString> {
        path.components().map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut rest, mut at, mut links) = (parts(path), PathBuf::from("/"), 0);
    while let Some(part) = rest.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(_)) => {
                let next = at.join(&part);
                let kind = fs::symlink_metadata(&next).map(|metadata| metadata.file_type());
                match kind {
                    Ok(kind) if kind.is_dir() && !rest.is_empty() => at = next,
                    Ok(kind) if kind.is_symlink() && links < DEVICE_LINKS_MAX => {
                        dirs.insert(at.clone());
                        links += 1;
                        let Ok(target) = fs::read_link(&next) else { return };
                        let mut behind = parts(&target);
                        behind.append(&mut rest);
                        rest = behind;
                    }
                    Ok(_) | Err(_) => {
                        dirs.insert(at);
                        return;
                    }
                }
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_directories_that_decide_what_a_path_is_are_watched() {
        let root = std::env::temp_dir().join(format!("smolet-devices-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("dev/serial/by-id")).unwrap();
        fs::write(root.join("dev/ttyUSB0"), "").unwrap();
        symlink("../../ttyUSB0", root.join("dev/serial/by-id/adapter")).unwrap();
        symlink(root.join("dev"), root.join("absolute")).unwrap();
        symlink("round", root.join("dev/round")).unwrap();
        for (path, wanted) in [
            ("dev/ttyUSB0", vec!["dev"]),
            ("dev/serial/by-id/adapter", vec!["dev", "dev/serial/by-id"]),
            ("dev/serial/by-id/other", vec!["dev/serial/by-id"]),
            ("dev/none/by-id/other", vec!["dev"]),
            ("absolute/ttyUSB0", vec!["", "dev"]),
            ("dev/ttyUSB0/x", vec!["dev"]),
            ("dev/round", vec!["dev"]),
        ] {
            let mut found = SortedSet::new();
            holders(&root.join(path), &mut found);
            let wanted: SortedSet<PathBuf> =
                wanted.into_iter().map(|dir| root.join(dir).components().collect()).collect();
            assert_eq!(found, wanted, "{path}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
