//! Makes the files of a layer below a directory, in overlayfs' form. I/O, blocking.
//!
//! ```text
//!                       overlay                                       native (the copy applies it)
//!     .wh.NAME          character device 0/0 in NAME's place          a file with trusted.smolet.whiteout=y
//!     .wh..wh..opq      trusted.overlay.opaque=y on its directory     trusted.smolet.opaque=y
//!     directories       that no entry describes are made and remembered: the layer below may describe them (`implicit`)
//! ```
//!
//! The archive is hostile. Directories are entered by openat2 within the layer's root, whatever links lie there; a path with `..` is
//! refused. Attributes that overlayfs itself reads are left out. A restart point on the disk promises that what was made before it is
//! there: it is dropped before the first of it is replaced.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use minicbor::{Decode, Encode};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fchmod, fchown, fsetxattr, fstat, ftruncate, futimens, lgetxattr, linkat, lsetxattr, makedev, mkdirat,
    mknodat, openat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::record::Snapshotter;
use super::tar::{Entry, Kind, Refused, Sink, Xattr};
use crate::filesystem::open_within;
use crate::limits::{
    LAYER_DEPTH_MAX, LAYER_IMPLICIT_BYTES_MAX, LAYER_IMPLICIT_DIRS_MAX, LAYER_NAME_BYTES_MAX,
};
use crate::tree;

/// Prefix of whiteouts.
const WHITEOUT: &[u8] = b".wh.";
/// Prefix of AUFS' own files.
const AUFS: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The mark of a whiteout where it cannot be a device: on an overlay of the node's own.
const WHITEOUT_MARK: &str = "trusted.smolet.whiteout";
/// Pieces of a file of at least this size that are zero become holes.
const HOLE_BYTES_MIN: usize = 4096;
/// Of directories that no entry describes: the same with every unpacking.
pub(super) const EPOCH: Timestamps = {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    Timestamps { last_access: zero, last_modification: zero }
};
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Why unpacking ended.
#[derive(Debug)]
pub enum UnpackError {
    /// The archive is refused.
    Refused(Refused),
    /// The file system failed.
    Io(&'static str, io::Error),
}

impl From<Refused> for UnpackError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> UnpackError {
    move |error| UnpackError::Io(what, error.into())
}

fn refused(reason: impl Into<String>) -> UnpackError {
    UnpackError::Refused(Refused(reason.into()))
}

/// What is counted while a layer is unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counts {
    /// Bytes of files' data.
    #[n(0)]
    pub bytes: u64,
    /// Files, directories and all others; a further name of a file is none.
    #[n(1)]
    pub inodes: u64,
}

/// A layer's directory.
pub struct Tree {
    root: OwnedFd,
    /// The directory of the last entry.
    parent: Option<Parent>,
    open: Option<Open>,
    implicit: Vec<Vec<u8>>,
    /// Bytes of all paths that have been among them.
    implicit_bytes: usize,
    counts: Counts,
    /// Bytes of the archive that are holes on the disk.
    pub(super) holes: u64,
    form: Snapshotter,
    /// It has, or may have, whiteouts of that form.
    has_marks: bool,
    /// The restart point's file, while there is one.
    point: Option<PathBuf>,
}

struct Parent {
    /// Its path, clean; empty for the root.
    path: Vec<u8>,
    dir: OwnedFd,
    /// Its times before entries were made in it.
    times: Timestamps,
}

/// The file whose data are written.
struct Open {
    file: File,
    entry: Entry,
    /// Where the data end.
    end: u64,
}

impl Tree {
    /// Below that directory, with whiteouts of that form.
    pub fn new(root: OwnedFd, form: Snapshotter) -> Self {
        let (parent, open, implicit_bytes, counts, holes, has_marks, point) = Default::default();
        // The root, until an entry describes it.
        let implicit = vec![Vec::new()];
        Self { root, parent, open, implicit, implicit_bytes, counts, holes, form, has_marks, point }
    }

    /// Goes on at a restart point: with the file that was open there, up to that many bytes.
    ///
    /// # Errors
    /// The file is not there.
    pub fn resume(
        (root, form): (OwnedFd, Snapshotter),
        open: Option<(Entry, u64)>,
        implicit: Vec<Vec<u8>>,
        counts: Counts,
    ) -> Result<Self, UnpackError> {
        let mut tree = Self::new(root, form);
        tree.implicit_bytes = implicit.iter().map(Vec::len).sum();
        (tree.implicit, tree.counts) = (implicit, counts);
        // The point does not say.
        tree.has_marks = true;
        if let Some((entry, end)) = open {
            let (dir, name) = split(&entry.path)?;
            tree.enter(&dir)?;
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file =
                openat(tree.dir(), &*name, flags, Mode::empty()).map_err(failed("opening it again"))?;
            ftruncate(&file, end).map_err(failed("cutting it"))?;
            tree.open = Some(Open { file: file.into(), entry, end });
        }
        Ok(tree)
    }

    /// The file that is open, and where its data end: for a restart point.
    pub fn open_file(&self) -> Option<(&Entry, u64)> {
        self.open.as_ref().map(|open| (&open.entry, open.end))
    }

    /// Directories that no entry described.
    pub fn implicit(&self) -> &[Vec<u8>] {
        &self.implicit
    }

    /// What was made so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The form of whiteouts.
    pub fn form(&self) -> Snapshotter {
        self.form
    }

    /// The form that a layer is in which is whole: one without whiteouts is in each of them.
    pub fn form_of_whole(&self) -> Snapshotter {
        if self.has_marks { self.form } else { Snapshotter::Overlay }
    }

    /// The layer's root.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// A restart point was written to that file, or found there.
    pub fn set_point(&mut self, file: PathBuf) {
        self.point = Some(file);
    }

    /// True while reading can go on at a restart point.
    pub fn has_point(&self) -> bool {
        self.point.is_some()
    }

    /// Removes the restart point, on the disk when this returns: what was made before it will not be what it was.
    ///
    /// # Errors
    /// The file system's.
    pub fn drop_point(&mut self) -> Result<(), UnpackError> {
        let Some(file) = self.point.take() else { return Ok(()) };
        let dropped = match std::fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all()),
        };
        dropped.map_err(|error| UnpackError::Io("dropping the restart point", error))
    }

    /// Sets the current directory's times back, which an entry in it has changed. At once: nothing but the instant of a kill loses them.
    fn settle(&self) -> Result<(), UnpackError> {
        match &self.parent {
            Some(parent) => {
                futimens(&parent.dir, &parent.times).map_err(failed("setting a directory's time"))
            }
            None => Ok(()),
        }
    }

    fn dir(&self) -> &OwnedFd {
        self.parent.as_ref().map_or(&self.root, |parent| &parent.dir)
    }

    /// Makes the directory with that path the current one.
    fn enter(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        if self.parent.as_ref().is_some_and(|parent| parent.path == path) {
            return Ok(());
        }
        let dir = match beneath(&self.root, path) {
            Err(Errno::NOENT) => self.make_implicit(path)?,
            Err(Errno::NOTDIR) => return Err(refused("it lies in something that is no directory")),
            Err(Errno::LOOP | Errno::XDEV) => {
                return Err(refused("it lies behind a link that leads nowhere"));
            }
            entered => entered.map_err(failed("entering its directory"))?,
        };
        let times = times_of(&fstat(&dir).map_err(failed("looking at its directory"))?);
        self.parent = Some(Parent { path: path.to_vec(), dir, times });
        Ok(())
    }

    fn make_implicit(&mut self, path: &[u8]) -> Result<OwnedFd, UnpackError> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut above = beneath(&self.root, b"").map_err(failed("entering the layer"))?;
        let mut from = 0;
        for end in ends.chain([path.len()]) {
            let name = name_of(&path[from..end])?;
            from = end + 1;
            above = match beneath(&self.root, &path[..end]) {
                Err(Errno::NOENT) => {
                    let times = times_of(&fstat(&above).map_err(failed("looking at a directory"))?);
                    mkdirat(&above, &*name, Mode::from(0o755)).map_err(|error| match error {
                        Errno::EXIST => refused("it lies behind a link that leads nowhere"),
                        error => failed("making its directory")(error),
                    })?;
                    self.implicit_bytes += end;
                    if self.implicit.len() == LAYER_IMPLICIT_DIRS_MAX
                        || self.implicit_bytes > LAYER_IMPLICIT_BYTES_MAX
                    {
                        return Err(refused(format!(
                            "the layer has more than {LAYER_IMPLICIT_DIRS_MAX} directories without an entry, or their paths have more \
                             than {LAYER_IMPLICIT_BYTES_MAX} bytes"
                        )));
                    }
                    self.implicit.push(path[..end].to_vec());
                    self.counts.inodes += 1;
                    let made = beneath(&self.root, &path[..end]).map_err(failed("entering its directory"))?;
                    let set = futimens(&made, &EPOCH).and_then(|()| futimens(&above, &times));
                    set.map_err(failed("setting a directory's time"))?;
                    made
                }
                entered => entered.map_err(failed("entering its directory"))?,
            };
        }
        Ok(above)
    }

    /// Removes what stands in an entry's place, unless it is a directory and the entry one too. True when there was a whiteout.
    fn clear(&mut self, name: &CString, kind: Kind) -> Result<bool, UnpackError> {
        let there = match statat(self.dir(), &**name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(false),
            there => there.map_err(failed("looking at it"))?,
        };
        let is_dir = FileType::from_raw_mode(there.st_mode).is_dir();
        if is_dir && kind == Kind::Directory {
            return Ok(false);
        }
        self.drop_point()?;
        let is_hidden = is_whiteout(self.dir(), name, &there);
        if is_dir {
            // By the directory's descriptor, so that no link leads the removal elsewhere.
            let path = through(self.dir(), name);
            tree::remove(&path, || true).map_err(|error| UnpackError::Io("replacing a directory", error))?;
        } else {
            unlinkat(self.dir(), &**name, AtFlags::empty()).map_err(failed("replacing it"))?;
        }
        Ok(is_hidden)
    }

    /// `.wh.NAME`, and AUFS' own files.
    fn whiteout(&mut self, base: &[u8]) -> Result<(), UnpackError> {
        self.has_marks = true;
        if base == OPAQUE {
            return set_opaque(self.dir(), self.form);
        }
        if base.starts_with(AUFS) {
            return Ok(());
        }
        let name = name_of(&base[WHITEOUT.len()..])?;
        let made = match self.form {
            Snapshotter::Overlay => {
                mknodat(self.dir(), &*name, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))
            }
            Snapshotter::Native => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(self.dir(), &*name, flags, Mode::empty())
                    .and_then(|file| fsetxattr(&file, WHITEOUT_MARK, b"y", XattrFlags::empty()))
            }
        };
        match made {
            Ok(()) => {
                self.counts.inodes += 1;
                Ok(())
            }
            // An entry of this layer has the name: it stays, and hides what the layers below have.
            Err(Errno::EXIST) => {
                match openat(self.dir(), &*name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
                    Ok(dir) => set_opaque(&dir, self.form),
                    Err(_) => Ok(()),
                }
            }
            Err(error) => Err(failed("making a whiteout")(error)),
        }
    }

    /// True when a link is there already, as in an archive that is read again.
    fn is_linked(&self, entry: &Entry, name: &CString) -> Result<bool, UnpackError> {
        let Ok(there) = statat(self.dir(), &**name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(false) };
        let (dir, target) = split(&entry.target)?;
        let target =
            beneath(&self.root, &dir).and_then(|dir| statat(&dir, &*target, AtFlags::SYMLINK_NOFOLLOW));
        Ok(target.is_ok_and(|target| (target.st_dev, target.st_ino) == (there.st_dev, there.st_ino)))
    }

    fn make(&mut self, entry: Entry, name: &CString) -> Result<(), UnpackError> {
        if entry.kind == Kind::HardLink && self.is_linked(&entry, name)? {
            return Ok(());
        }
        let hid = self.clear(name, entry.kind)?;
        let perm = Mode::from_raw_mode(entry.mode);
        match entry.kind {
            Kind::File => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file =
                    openat(self.dir(), &**name, flags, Mode::from(0o600)).map_err(failed("making it"))?;
                self.counts.inodes += 1;
                self.open = Some(Open { file: file.into(), entry, end: 0 });
                return Ok(());
            }
            Kind::HardLink => {
                let (dir, target) = split(&entry.target)?;
                let from = beneath(&self.root, &dir);
                let linked =
                    from.and_then(|from| linkat(&from, &*target, self.dir(), &**name, AtFlags::empty()));
                return linked.map_err(|error| match error {
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::PERM => {
                        refused("it is a link to an entry that the layer does not have")
                    }
                    error => failed("linking it")(error),
                });
            }
            Kind::Directory => {
                match mkdirat(self.dir(), &**name, Mode::from(0o700)) {
                    Ok(()) => self.counts.inodes += 1,
                    Err(Errno::EXIST) => self.implicit.retain(|path| *path != clean_of(&entry.path)),
                    Err(error) => return Err(failed("making it")(error)),
                }
                let flags = DIRECTORY | OFlags::NOFOLLOW;
                let dir = openat(self.dir(), &**name, flags, Mode::empty()).map_err(failed("entering it"))?;
                if hid {
                    self.has_marks = true;
                    set_opaque(&dir, self.form)?;
                }
                return describe(&dir, &entry);
            }
            Kind::Symlink => {
                let target = CString::new(&*entry.target).map_err(|_| refused("its target has a NUL"))?;
                if target.is_empty() {
                    return Err(refused("it is a symbolic link to nothing"));
                }
                symlinkat(&*target, self.dir(), &**name).map_err(failed("making it"))?;
            }
            Kind::Char | Kind::Block | Kind::Fifo => {
                let kind = match entry.kind {
                    Kind::Char => FileType::CharacterDevice,
                    Kind::Block => FileType::BlockDevice,
                    Kind::File | Kind::HardLink | Kind::Symlink | Kind::Directory | Kind::Fifo => {
                        FileType::Fifo
                    }
                };
                let (major, minor) = entry.device;
                // The kernel's own bounds.
                if major >= 1 << 12 || minor >= 1 << 20 {
                    return Err(refused("its device number is too large"));
                }
                let made = mknodat(self.dir(), &**name, kind, perm, makedev(major, minor));
                made.map_err(failed("making it"))?;
            }
        }
        self.counts.inodes += 1;
        let dir = self.dir();
        let (uid, gid) = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
        chownat(dir, &**name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(failed("setting its owner"))?;
        if entry.kind != Kind::Symlink {
            chmodat(dir, &**name, perm, AtFlags::empty()).map_err(failed("setting its mode"))?;
        }
        let path = through(dir, name);
        set_xattrs(&entry.xattrs, |name, value| lsetxattr(&path, name, value, XattrFlags::empty()))?;
        utimensat(dir, &**name, &times(&entry), AtFlags::SYMLINK_NOFOLLOW).map_err(failed("setting its time"))
    }
}

impl Sink for Tree {
    type Error = UnpackError;

    fn entry(&mut self, entry: Entry) -> Result<(), UnpackError> {
        self.open = None;
        let path = clean(&entry.path)?;
        if path.is_empty() {
            // The root itself.
            if entry.kind != Kind::Directory {
                return Err(refused("it has no name"));
            }
            self.parent = None;
            self.implicit.retain(|path| !path.is_empty());
            return describe(&self.root, &entry);
        }
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (dir, base) = at.map_or((&[][..], &path[..]), |at| (&path[..at], &path[at + 1..]));
        self.enter(dir)?;
        if base.starts_with(WHITEOUT) {
            self.whiteout(base)?;
        } else {
            let name = name_of(base)?;
            self.make(entry, &name)?;
        }
        self.settle()
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), UnpackError> {
        // A file of AUFS' own, or one whose name marks a whiteout, has data that nobody reads.
        let Some(open) = &mut self.open else { return Ok(()) };
        open.end = offset + bytes.len() as u64;
        if bytes.len() >= HOLE_BYTES_MIN && bytes.iter().all(|byte| *byte == 0) {
            self.holes += bytes.len() as u64;
            return Ok(());
        }
        self.counts.bytes += bytes.len() as u64;
        open.file.write_all_at(bytes, offset).map_err(|error| UnpackError::Io("writing it", error))
    }

    fn end(&mut self) -> Result<(), UnpackError> {
        let Some(Open { file, entry, .. }) = self.open.take() else { return Ok(()) };
        ftruncate(&file, entry.size).map_err(failed("setting its length"))?;
        describe(&file, &entry)
    }
}

/// Owner, mode, attributes and times of an open file or directory.
fn describe(file: &impl std::os::fd::AsFd, entry: &Entry) -> Result<(), UnpackError> {
    let (uid, gid) = (Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)));
    // The owner first: a change of it clears setuid and capabilities.
    fchown(file, uid, gid).map_err(failed("setting its owner"))?;
    fchmod(file, Mode::from_raw_mode(entry.mode)).map_err(failed("setting its mode"))?;
    set_xattrs(&entry.xattrs, |name, value| fsetxattr(file, name, value, XattrFlags::empty()))?;
    futimens(file, &times(entry)).map_err(failed("setting its time"))
}

fn set_xattrs(xattrs: &[Xattr], set: impl Fn(&str, &[u8]) -> Result<(), Errno>) -> Result<(), UnpackError> {
    for Xattr { name, value } in xattrs {
        // `trusted.overlay.` and `user.overlay.` are orders to overlayfs; no image needs anything else of `trusted.`, which
        // containers cannot read. SELinux labels are the node's.
        if name.starts_with("trusted.") || name.starts_with("user.overlay.") || name == "security.selinux" {
            continue;
        }
        match set(name, value) {
            // The file system has none, or this file may not have it: as containerd does, it goes without.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {}
            Err(error) => return Err(failed("setting an extended attribute")(error)),
        }
    }
    Ok(())
}

/// The mark of a directory that hides the ones below it.
pub(super) fn opaque_mark(form: Snapshotter) -> &'static str {
    match form {
        Snapshotter::Overlay => "trusted.overlay.opaque",
        Snapshotter::Native => "trusted.smolet.opaque",
    }
}

fn set_opaque(dir: &OwnedFd, form: Snapshotter) -> Result<(), UnpackError> {
    fsetxattr(dir, opaque_mark(form), b"y", XattrFlags::empty()).map_err(failed("marking a directory opaque"))
}

/// True for a whiteout of either form.
pub(super) fn is_whiteout(dir: &OwnedFd, name: &CStr, stat: &Stat) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => stat.st_rdev == 0,
        FileType::RegularFile => stat.st_size == 0 && is_marked(dir, name, WHITEOUT_MARK),
        _ => false,
    }
}

/// True when something has that mark.
pub(super) fn is_marked(dir: &OwnedFd, name: &CStr, mark: &str) -> bool {
    let mut value = [0_u8; 1];
    lgetxattr(through(dir, name), mark, &mut value[..]).is_ok() && value == *b"y"
}

fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanos) = entry.mtime;
    #[allow(clippy::useless_conversion, reason = "the field is narrower on 32-bit targets")]
    let time = Timespec { tv_sec: seconds.into(), tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[allow(
    clippy::unnecessary_cast,
    clippy::cast_possible_wrap,
    reason = "the fields' types depend on the target"
)]
pub(super) fn times_of(stat: &Stat) -> Timestamps {
    let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    Timestamps {
        last_access: time(stat.st_atime as i64, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime as i64, stat.st_mtime_nsec as _),
    }
}

/// The path without `.` and empty parts; `..` is refused: no builder writes it.
fn clean(path: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let parts = || path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    if parts().any(|part| part == b"..") {
        return Err(refused("its path leads upwards (..): the image is hostile or damaged"));
    }
    if parts().count() > LAYER_DEPTH_MAX {
        return Err(refused(format!("it lies in more than {LAYER_DEPTH_MAX} directories")));
    }
    if let Some(long) = parts().find(|part| part.len() > LAYER_NAME_BYTES_MAX) {
        return Err(refused(format!(
            "a name has {} bytes; at most {LAYER_NAME_BYTES_MAX} are allowed",
            long.len()
        )));
    }
    Ok(clean_of(path))
}

fn clean_of(path: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    parts.join(&b'/')
}

/// Directory and name of a path that names something.
fn split(path: &[u8]) -> Result<(Vec<u8>, CString), UnpackError> {
    let path = clean(path)?;
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (dir, base) = at.map_or((&[][..], &path[..]), |at| (&path[..at], &path[at + 1..]));
    if base.is_empty() {
        return Err(refused("it is a link to the root"));
    }
    Ok((dir.to_vec(), name_of(base)?))
}

fn name_of(base: &[u8]) -> Result<CString, UnpackError> {
    match base {
        b"" | b"." | b".." => Err(refused("it has no name")),
        base => CString::new(base).map_err(|_| refused("its name has a NUL")),
    }
}

/// A path that leads through an open directory, for calls that have no other form.
pub(super) fn through(dir: &OwnedFd, name: &CStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(OsStr::from_bytes(name.to_bytes()))
}

/// Opens a directory below the root, of which links lead nowhere out.
pub(super) fn beneath(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let shown = if path.is_empty() { b"." } else { path };
    open_within(root, shown, DIRECTORY)
}
