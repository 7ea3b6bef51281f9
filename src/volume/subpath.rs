//! A part of a volume for a container, bound so that nothing in the volume can lead it elsewhere (kubelet `subpath`). I/O,
//! blocking.
//!
//! A container writes into its volumes: between a look at a path and its mount it may put a symlink there. So the part is
//! opened first, component by component and following no link, and what was opened is what is bound.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, mkdirat, open, openat};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

/// A part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// The volume's name, for messages.
    pub mount: String,
    /// The container's name, for messages.
    pub container: String,
    /// Where the volume stands.
    pub volume: PathBuf,
    /// Relative, no `..` in it. Made when it is not there.
    pub part: String,
    /// What mounts below it do.
    pub propagation: Propagation,
    /// Where it is bound.
    pub target: PathBuf,
}

/// Whether what is mounted on the one side appears on the other (`mountPropagation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// On neither.
    None,
    /// What the node mounts, in the container.
    FromHost,
    /// On both.
    Both,
}

/// A part that was found.
#[derive(Debug)]
pub struct OpenedSubPath {
    handle: OwnedFd,
    is_dir: bool,
}

impl SubPath {
    /// The kubelet's words, without details: they would tell the pod of the node's files. Those go to the log.
    fn failed(&self, what: &str, error: &io::Error) -> String {
        // Not the part itself: a Secret's value may have been in its expression.
        log::warn!("{}: subPath for {}: {error}", self.volume.display(), self.target.display());
        self.not(what)
    }

    fn not(&self, what: &str) -> String {
        format!("failed to {what} for volumeMount {:?} of container {:?}", self.mount, self.container)
    }

    /// Why it could not be looked at.
    pub fn unanswered(&self, why: &str) -> String {
        format!("{}: {why}", self.not(PREPARE))
    }
}

const PREPARE: &str = "prepare subPath";

/// Finds the part, and makes it when it is not there. It may never end: the volume, or what a link in it leads to, may lie
/// on a server that is away. `None`: it is bound already, and stays.
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

/// Binds what was found. Of its file system only the mount is touched; that may be gone by now all the same.
///
/// # Errors
/// As [`find`].
pub fn bind(part: &SubPath, found: &OpenedSubPath) -> Result<(), String> {
    bind_real(part, found).map_err(|error| part.failed(PREPARE, &error))
}

fn find_real(volume: &Path, part: &SubPath) -> io::Result<Option<OpenedSubPath>> {
    let handle = open_real(volume, Path::new(&part.part))?;
    let source = fstat(&handle)?;
    // The same file only when it is bound there: the target's own is another.
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
    // The kubelet leaves it a peer of the node's own mount: then what goes here goes there too.
    match part.propagation {
        Propagation::None => mount_change(&part.target, MountPropagationFlags::PRIVATE)?,
        Propagation::FromHost => mount_change(&part.target, MountPropagationFlags::DOWNSTREAM)?,
        Propagation::Both => {}
    }
    Ok(())
}

/// A handle of what stands at `part` of a volume, itself a real path; links in it may lead anywhere within the volume.
pub(super) fn open_real(volume: &Path, part: &Path) -> io::Result<OwnedFd> {
    let real = volume.join(part).canonicalize()?;
    open_within(volume, within(volume, &real)?)
}

/// A path that means exactly what the handle stands for.
pub(super) fn handle_path(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// An empty directory or file to bind over.
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

/// `real` below the volume; an error when it is not (`PathWithinBase`).
fn within<'a>(volume: &Path, real: &'a Path) -> io::Result<&'a Path> {
    real.strip_prefix(volume)
        .map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, "it leads out of the volume"))
}

/// The names of a path below another; an error for anything else.
fn names(below: &Path) -> impl Iterator<Item = io::Result<&OsStr>> {
    below.components().filter(|part| *part != Component::CurDir).map(|part| match part {
        Component::Normal(name) => Ok(name),
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    })
}

const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens what stands at a real path below a real directory; a link that is there by now is an error (`doSafeOpen`).
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

/// Makes the directories that are missing, with the volume's own mode (`doSafeMakeDir`).
fn make(volume: &Path, part: &Path) -> io::Result<()> {
    // Above its umask and below 07777: setgid is part of it.
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

/// A directory opened for use, from a handle of it.
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
            while unmount(volume.join("dir/usb"), UnmountFlags::NOFOLLOW).is_ok() {}
            while unmount(&volume, UnmountFlags::NOFOLLOW).is_ok() {}
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_part_is_bound_once_and_another_takes_its_place() {
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
    fn what_the_node_mounted_in_a_part_stays_there_when_the_pod_goes() {
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
    fn what_is_missing_is_made_with_the_volumes_mode() {
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
    fn nothing_leads_out_of_the_volume() {
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
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was made there");
    }

    /// A container swaps a directory for a link all the time: what is bound is never outside.
    #[test]
    fn a_link_that_comes_in_between_is_not_followed() {
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
