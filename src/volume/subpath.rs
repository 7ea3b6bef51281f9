//! subPaths of volumes, bound so that nothing in the volume can redirect them (kubelet `subpath`). Blocking I/O.
//!
//! Containers write into their volumes: between the check of a path and its mount one may put a symlink there. So the
//! subPath is opened first, component by component without following symlinks, and the open file is what is bound.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, mkdirat, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

/// A subPath of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// The volume's name, for messages.
    pub mount: String,
    /// The container's name, for messages.
    pub container: String,
    /// The volume's path.
    pub volume: PathBuf,
    /// The subPath: relative, no `..` in it. Created when missing.
    pub part: String,
    /// Propagation of mounts below it.
    pub propagation: Propagation,
    /// The mount point of the bind.
    pub target: PathBuf,
}

/// Mount propagation between node and container (`mountPropagation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// None.
    None,
    /// From the node to the container.
    FromHost,
    /// In both directions.
    Both,
}

/// A subPath that was opened.
#[derive(Debug)]
pub struct OpenedSubPath {
    handle: OwnedFd,
    is_dir: bool,
}

impl SubPath {
    /// The kubelet's error, without details: they would disclose the node's files to the pod. Details go to the log.
    fn failed(&self, what: &str, error: &io::Error) -> String {
        // Without the subPath itself: its expression may have contained a Secret's value.
        log::warn!("{}: subPath for {}: {error}", self.volume.display(), self.target.display());
        self.not(what)
    }

    fn not(&self, what: &str) -> String {
        format!("failed to {what} for volumeMount {:?} of container {:?}", self.mount, self.container)
    }

    /// The error of an access that did not complete.
    pub fn unanswered(&self, why: &str) -> String {
        format!("{}: {why}", self.not(PREPARE))
    }
}

const PREPARE: &str = "prepare subPath";

/// Opens the subPath, and creates it when missing. May hang: the volume, or the target of a symlink in it, may be on an
/// unreachable file server. `None`: it is bound already, and stays.
///
/// # Errors
/// One sentence; the details are in the log.
pub fn find(part: &SubPath) -> Result<Option<OpenedSubPath>, String> {
    let unprepared = |error| part.failed(PREPARE, &error);
    let volume = part.volume.canonicalize().map_err(unprepared)?;
    if !volume.join(&part.part).exists() {
        make(&volume, Path::new(&part.part))
            .map_err(|error| part.failed("create subPath directory", &error))?;
    }
    find_real(&volume, part).map_err(unprepared)
}

/// Binds the opened subPath. Only its mount is touched on its file system, which may hang all the same.
///
/// # Errors
/// As [`find`].
pub fn bind(part: &SubPath, found: &OpenedSubPath) -> Result<(), String> {
    bind_real(part, found).map_err(|error| part.failed(PREPARE, &error))
}

fn find_real(volume: &Path, part: &SubPath) -> io::Result<Option<OpenedSubPath>> {
    let handle = open_real(volume, Path::new(&part.part))?;
    let source = fstat(&handle)?;
    // The target is the same file only when the subPath is bound there.
    let bound = part.target.symlink_metadata();
    if bound.is_ok_and(|bound| (bound.dev(), bound.ino()) == (source.st_dev, source.st_ino)) {
        return Ok(None);
    }
    Ok(Some(OpenedSubPath { handle, is_dir: FileType::from_raw_mode(source.st_mode).is_dir() }))
}

fn bind_real(part: &SubPath, found: &OpenedSubPath) -> io::Result<()> {
    loop {
        match unmount(&part.target, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(error.into()),
        }
    }
    make_target(&part.target, found.is_dir)?;
    mount_bind(handle_path(&found.handle), &part.target)?;
    // The kubelet leaves it in the peer group of the node's mount: an unmount here would propagate to the node.
    match part.propagation {
        Propagation::None => mount_change(&part.target, MountPropagationFlags::PRIVATE)?,
        Propagation::FromHost => mount_change(&part.target, MountPropagationFlags::DOWNSTREAM)?,
        Propagation::Both => {}
    }
    Ok(())
}

/// A handle of `part` of a volume, itself a resolved path; symlinks in it may lead anywhere within the volume.
pub(super) fn open_real(volume: &Path, part: &Path) -> io::Result<OwnedFd> {
    let real = volume.join(part).canonicalize()?;
    open_within(volume, within(volume, &real)?)
}

/// A path that refers to exactly the handle's file.
pub(super) fn handle_path(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// Creates an empty directory or file as the mount point.
fn make_target(target: &Path, directory: bool) -> io::Result<()> {
    match target.symlink_metadata() {
        Ok(there) if there.is_dir() == directory && (there.is_dir() || there.is_file()) => return Ok(()),
        Ok(there) if there.is_dir() => std::fs::remove_dir(target)?,
        Ok(_) => std::fs::remove_file(target)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(parent) = target.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
    }
    if directory { DirBuilder::new().mode(0o750).create(target) } else { File::create_new(target).map(drop) }
}

/// `real` relative to the volume; an error when it is outside (`PathWithinBase`).
fn within<'a>(volume: &Path, real: &'a Path) -> io::Result<&'a Path> {
    real.strip_prefix(volume)
        .map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, "it leads out of the volume"))
}

/// The components of a relative path; an error for anything but names.
fn names(below: &Path) -> impl Iterator<Item = io::Result<&OsStr>> {
    below.components().filter(|part| *part != Component::CurDir).map(|part| match part {
        Component::Normal(name) => Ok(name),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    })
}

const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a resolved path below a resolved directory; a symlink that appeared meanwhile is an error (`doSafeOpen`).
fn open_within(volume: &Path, below: &Path) -> io::Result<OwnedFd> {
    let mut at = open(volume, HANDLE, Mode::empty())?;
    for name in names(below) {
        at = openat(&at, name?, HANDLE, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&at)?.st_mode).is_symlink() {
            return Err(Errno::LOOP.into());
        }
    }
    Ok(at)
}

/// Creates the missing directories, with the volume's mode (`doSafeMakeDir`).
fn make(volume: &Path, part: &Path) -> io::Result<()> {
    // Regardless of the umask and with all of 07777: setgid is part of it.
    let mode = Mode::from_raw_mode(volume.metadata()?.permissions().mode() & 0o7777);
    let (mut there, mut missing) = (part, Vec::new());
    let real = loop {
        match volume.join(there).canonicalize() {
            Ok(real) => break real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.extend(there.file_name());
                there = there.parent().ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    };
    let handle = open_within(volume, within(volume, &real)?)?;
    let mut at = readable(&handle)?;
    for name in missing.into_iter().rev() {
        match mkdirat(&at, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = openat(&at, name, flags, Mode::empty())?;
        fchmod(&at, mode)?;
    }
    Ok(())
}

/// Reopens a directory handle for reading.
fn readable(handle: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(handle.as_fd(), ".", flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::remove_pod_dir;
    use std::os::unix::fs::symlink;

    fn bind(part: &SubPath) -> Result<(), String> {
        find(part)?.map_or(Ok(()), |found| super::bind(part, &found))
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("smolet-subpath-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(path.join("volume")).unwrap();
            Self(path)
        }

        fn part(&self, part: &str) -> SubPath {
            SubPath {
                mount: "v".into(),
                container: "c".into(),
                volume: self.0.join("volume"),
                part: part.into(),
                propagation: Propagation::None,
                target: self.0.join("pod/volume-subpaths/v/c/0"),
            }
        }

        fn mounts(&self) -> usize {
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            table.lines().filter(|line| line.contains(&*self.0.to_string_lossy())).count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = remove_pod_dir(&self.0.join("pod"));
            let volume = self.0.join("volume");
            let lazily = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            while unmount(volume.join("dir/usb"), lazily).is_ok() {}
            while unmount(&volume, lazily).is_ok() {}
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_subpath_is_bound_once_and_replaced_by_another() {
        let scratch = Scratch::new("bind");
        let volume = scratch.0.join("volume");
        std::fs::write(volume.join("file"), "text").unwrap();
        std::fs::create_dir(volume.join("dir")).unwrap();
        symlink("dir/../file", volume.join("link")).unwrap();
        for (part, is_file) in
            [("dir", false), ("file", true), ("file", true), ("link", true), ("./dir//", false)]
        {
            let part = scratch.part(part);
            bind(&part).unwrap();
            assert_eq!(part.target.metadata().unwrap().is_file(), is_file, "{}", part.part);
            assert_eq!(scratch.mounts(), 1, "{}", part.part);
        }
        std::fs::write(scratch.part("").target.join("new"), "").unwrap();
        assert!(volume.join("dir/new").exists(), "what is written there is in the volume");
        remove_pod_dir(&scratch.0.join("pod")).unwrap();
        assert_eq!(scratch.mounts(), 0);
        assert!(volume.join("dir/new").exists(), "the volume's own files stay");
    }

    #[test]
    fn mounts_of_the_node_in_a_subpath_stay_when_the_pod_is_removed() {
        use rustix::mount::{MountFlags, mount};
        let scratch = Scratch::new("shared");
        let volume = scratch.0.join("volume");
        let memory = |at: &Path| mount("tmpfs", at, "tmpfs", MountFlags::NODEV, None::<&std::ffi::CStr>);
        memory(&volume).unwrap();
        mount_change(&volume, MountPropagationFlags::SHARED).unwrap();
        std::fs::create_dir_all(volume.join("dir/usb")).unwrap();
        for propagation in [Propagation::None, Propagation::FromHost, Propagation::Both] {
            let part = SubPath { propagation, ..scratch.part("dir") };
            bind(&part).unwrap();
            memory(&volume.join("dir/usb")).unwrap();
            let seen = if propagation == Propagation::None { 3 } else { 4 };
            assert_eq!(scratch.mounts(), seen, "{propagation:?}");
            remove_pod_dir(&scratch.0.join("pod")).unwrap();
            assert_eq!(scratch.mounts(), 2, "{propagation:?}: the node's own are there");
            unmount(volume.join("dir/usb"), UnmountFlags::NOFOLLOW).unwrap();
        }
    }

    #[test]
    fn missing_directories_are_created_with_the_volumes_mode() {
        let scratch = Scratch::new("make");
        let volume = scratch.0.join("volume");
        std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o2777)).unwrap();
        bind(&scratch.part("a/b/c")).unwrap();
        for made in ["a", "a/b", "a/b/c"] {
            let mode = volume.join(made).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o2777, "{made}");
        }
    }

    #[test]
    fn a_subpath_cannot_leave_the_volume() {
        let scratch = Scratch::new("escape");
        let volume = scratch.0.join("volume");
        let outside = scratch.0.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "").unwrap();
        symlink(&outside, volume.join("out")).unwrap();
        symlink("..", volume.join("up")).unwrap();
        symlink("loop", volume.join("loop")).unwrap();
        symlink("../outside/new", volume.join("dangling")).unwrap();
        for part in
            ["out", "out/secret", "out/new", "up", "up/outside", "loop", "loop/x", "dangling", "dangling/x"]
        {
            let error = bind(&scratch.part(part)).expect_err(part);
            assert!(error.starts_with("failed to ") && !error.contains("outside"), "{part}: {error}");
            assert_eq!(scratch.mounts(), 0, "{part}");
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was created there");
    }

    /// A container keeps replacing a directory by a symlink: what is bound is never outside.
    #[test]
    fn a_link_that_appears_meanwhile_is_not_followed() {
        let scratch = Scratch::new("race");
        let (volume, outside) = (scratch.0.join("volume"), scratch.0.join("outside"));
        std::fs::create_dir_all(outside.join("x")).unwrap();
        std::fs::write(outside.join("x/secret"), "").unwrap();
        std::fs::create_dir_all(volume.join("real/x")).unwrap();
        symlink(&outside, volume.join("link")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for target in ["real", "link"] {
                        let _ = std::fs::remove_file(volume.join("at"));
                        let _ = std::fs::rename(volume.join("at"), volume.join("was"));
                        let _ = if target == "link" {
                            symlink(&outside, volume.join("at"))
                        } else {
                            std::fs::rename(volume.join("real"), volume.join("at"))
                        };
                        let _ = std::fs::rename(volume.join("was"), volume.join("real"));
                    }
                }
            });
            let mut bound = 0;
            for _ in 0..500 {
                let part = scratch.part("at/x");
                if bind(&part).is_ok() {
                    bound += 1;
                    assert!(!part.target.join("secret").exists());
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            println!("bound {bound} of 500 times");
        });
    }
}
