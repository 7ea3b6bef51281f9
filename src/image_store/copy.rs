//! Copies of layers, where overlayfs cannot be mounted, and changes of owners for pods with user namespaces. I/O, blocking.
//!
//! Layers are trees of their own making (`super::unpack`), at most `limits::LAYER_DEPTH_MAX` deep; the copies are made before a container
//! sees them. Whiteouts and opaque directories are applied, holes stay holes, and files are cloned where the file system can.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timestamps, Uid, XattrFlags, chmodat, chownat,
    copy_file_range, fstat, ftruncate, futimens, ioctl_ficlone, lgetxattr, linkat, llistxattr, lremovexattr,
    lsetxattr, mkdirat, mknodat, openat, readlinkat, seek, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::layer::directory;
use super::record::Snapshotter;
use super::rootfs::IdMapping;
use super::unpack::{is_marked, is_whiteout, opaque_mark, through, times_of};
use crate::limits::{COPY_LINKS_MAX, LAYER_DEPTH_MAX, LAYER_XATTR_BYTES_MAX};
use crate::model::SortedMap;
use crate::tree;

/// The attribute with a file's capabilities, and its longest value.
const CAPABILITY: &str = "security.capability";
const CAPABILITY_BYTES: usize = 24;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Owners of a pod's user namespace on the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Shift {
    pub(super) uids: Vec<IdMapping>,
    pub(super) gids: Vec<IdMapping>,
}

impl Shift {
    pub(super) fn is_empty(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }

    /// Owner and group on the node. An owner that the namespace does not have stays as it is: nobody there.
    pub(super) fn of(&self, uid: u32, gid: u32) -> (Uid, Gid) {
        let mapped = |mappings: &[IdMapping], id: u32| {
            let found = mappings.iter().find_map(|mapping| {
                let within = id.checked_sub(mapping.container_id).filter(|within| *within < mapping.size)?;
                mapping.host_id.checked_add(within)
            });
            found.filter(|id| *id != u32::MAX).unwrap_or(id)
        };
        (Uid::from_raw(mapped(&self.uids, uid)), Gid::from_raw(mapped(&self.gids, gid)))
    }

    /// The attribute [`CAPABILITY`] for a file of the namespace: those of the node's root (revision 2) become its own root's, which
    /// revision 3 names (capabilities(7)).
    fn capability<'a>(&self, value: &'a [u8]) -> Cow<'a, [u8]> {
        let root = self.of(0, 0).0.as_raw();
        if value.len() == 20 && value[3] == 2 && root != 0 {
            return [&value[..3], &[3], &value[4..], &root.to_le_bytes()].concat().into();
        }
        value.into()
    }
}

/// A directory on the way.
struct Level {
    from: OwnedFd,
    to: OwnedFd,
    entries: Dir,
    /// Below the root, with a slash at its end.
    path: Vec<u8>,
    /// Of the directory, set when its entries are done.
    times: Timestamps,
}

/// First names of files that have several, below the root of the copy.
type Links = SortedMap<u64, CString>;

/// Copies a layer over what is there.
pub(super) fn copy_layer(from: &Path, to: &Path, shift: &Shift) -> io::Result<()> {
    copy_over(directory(from)?, &directory(to)?, shift)
}

/// Copies a directory, owners as they are.
pub(super) fn copy_tree(from: OwnedFd, to: &Path) -> io::Result<()> {
    copy_over(from, &directory(to)?, &Shift::default())
}

/// Gives a directory the owner, mode, attributes and times of another one.
pub(super) fn describe_as(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let there = fstat(from)?;
    describe((from, c"."), (to, c"."), &there, &Shift::default())?;
    Ok(futimens(to, &times_of(&there))?)
}

/// Gives a directory the attributes of another one, without its content.
pub(super) fn copy_root(from: &Path, to: &Path) -> io::Result<()> {
    describe_as(&directory(from)?, &directory(to)?)
}

fn copy_over(from: OwnedFd, root: &OwnedFd, shift: &Shift) -> io::Result<()> {
    let to = openat(root, c".", DIRECTORY, Mode::empty())?;
    let there = fstat(&from)?;
    describe((&from, c"."), (&to, c"."), &there, shift)?;
    let mut links = Links::default();
    let (entries, times) = (Dir::read_from(&from)?, times_of(&there));
    let mut levels = vec![Level { from, to, entries, path: Vec::new(), times }];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next() else {
            futimens(&level.to, &level.times)?;
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let there = statat(&level.from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let path = [&level.path, name.to_bytes()].concat();
        if FileType::from_raw_mode(there.st_mode).is_dir() {
            let from = openat(&level.from, name, DIRECTORY, Mode::empty())?;
            let to = copy_directory(level, name, &there, shift)?;
            let (entries, times) = (Dir::read_from(&from)?, times_of(&there));
            if levels.len() > LAYER_DEPTH_MAX {
                return Err(io::Error::other("a layer is too deep"));
            }
            levels.push(Level { from, to, entries, path: [&path, &b"/"[..]].concat(), times });
        } else {
            remove_at(&level.to, name)?;
            if is_whiteout(&level.from, name, &there) {
                continue;
            }
            if there.st_nlink > 1
                && let Some(first) = links.get(&there.st_ino)
            {
                linkat(root, &**first, &level.to, name, AtFlags::empty())?;
                continue;
            }
            copy_file(level, name, &there, shift)?;
            if there.st_nlink > 1 && links.len() < COPY_LINKS_MAX {
                links.insert(there.st_ino, CString::new(path)?);
            }
        }
    }
    Ok(())
}

/// Makes the directory, or takes the one that a layer below has, unless this one hides it.
fn copy_directory(level: &Level, name: &CStr, there: &Stat, shift: &Shift) -> io::Result<OwnedFd> {
    let is_there = statat(&level.to, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_dir = is_there.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
    let is_opaque = [Snapshotter::Overlay, Snapshotter::Native]
        .into_iter()
        .any(|form| is_marked(&level.from, name, opaque_mark(form)));
    if !is_dir || is_opaque {
        remove_at(&level.to, name)?;
        mkdirat(&level.to, name, Mode::from(0o700))?;
    } else {
        // Those of the layer below do not show through.
        let to = through(&level.to, name);
        each_xattr(&to, &mut |name, _| unless_refused(lremovexattr(&to, name)))?;
    }
    describe((&level.from, name), (&level.to, name), there, shift)?;
    Ok(openat(&level.to, name, DIRECTORY, Mode::empty())?)
}

fn copy_file(level: &Level, name: &CStr, there: &Stat, shift: &Shift) -> io::Result<()> {
    match FileType::from_raw_mode(there.st_mode) {
        FileType::RegularFile => {
            let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let from: File = openat(&level.from, name, read, Mode::empty())?.into();
            let to: File = openat(&level.to, name, write, Mode::from(0o600))?.into();
            copy_data(&from, &to, u64::try_from(there.st_size).unwrap_or(0))?;
        }
        FileType::Symlink => {
            let target = readlinkat(&level.from, name, Vec::new())?;
            symlinkat(&*target, &level.to, name)?;
        }
        kind => mknodat(&level.to, name, kind, Mode::from(0o600), there.st_rdev)?,
    }
    describe((&level.from, name), (&level.to, name), there, shift)?;
    Ok(utimensat(&level.to, name, &times_of(there), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Clones the data, or copies what is not a hole.
fn copy_data(from: &File, to: &File, size: u64) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    ftruncate(to, size)?;
    let mut at = 0;
    while at < size {
        let begin = match seek(from, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // The rest is a hole.
            Err(Errno::NXIO) => break,
            // The file system knows no holes.
            Err(_) => at,
        };
        let end = seek(from, SeekFrom::Hole(begin)).unwrap_or(size);
        let (mut source, mut target) = (begin, begin);
        while source < end {
            let most = usize::try_from(end - source).unwrap_or(usize::MAX).min(1 << 30);
            match copy_file_range(from, Some(&mut source), to, Some(&mut target), most) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // Between two file systems of different kinds, or an older kernel.
                Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => {
                    copy_slowly(from, to, source, end)?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        at = end;
    }
    Ok(())
}

fn copy_slowly(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let mut buffer = vec![0; crate::limits::IMAGE_CHUNK_BYTES];
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let count = from.read_at(&mut buffer[..most], at)?;
        if count == 0 {
            break;
        }
        to.write_all_at(&buffer[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

/// Owner, mode and attributes.
fn describe(
    (from, source): (&OwnedFd, &CStr),
    (to, name): (&OwnedFd, &CStr),
    there: &Stat,
    shift: &Shift,
) -> io::Result<()> {
    let (uid, gid) = shift.of(there.st_uid, there.st_gid);
    chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(there.st_mode) != FileType::Symlink {
        chmodat(to, name, Mode::from_raw_mode(there.st_mode), AtFlags::empty())?;
    }
    copy_xattrs((from, source), (to, name), shift)
}

fn copy_xattrs(
    (from, source): (&OwnedFd, &CStr),
    (to, name): (&OwnedFd, &CStr),
    shift: &Shift,
) -> io::Result<()> {
    let to = through(to, name);
    each_xattr(&through(from, source), &mut |name, value| {
        let is_capability = name == CAPABILITY.as_bytes();
        set_xattr(&to, name, &if is_capability { shift.capability(value) } else { value.into() })
    })
}

/// Takes the name and the value of an extended attribute.
type TakeXattr<'a> = dyn FnMut(&[u8], &[u8]) -> io::Result<()> + 'a;

/// Calls it with each of the extended attributes that are an image's: not with the store's own marks and labels.
pub(super) fn each_xattr(path: &Path, take: &mut TakeXattr<'_>) -> io::Result<()> {
    let mut names = vec![0_u8; LAYER_XATTR_BYTES_MAX];
    let length = match llistxattr(path, &mut names[..]) {
        // The file system has none.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        length => length?,
    };
    if length == 0 {
        return Ok(());
    }
    let mut value = vec![0_u8; LAYER_XATTR_BYTES_MAX];
    for xattr in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if xattr.starts_with(b"trusted.") || xattr == b"security.selinux" {
            continue;
        }
        let size = lgetxattr(path, xattr, &mut value[..])?;
        take(xattr, &value[..size])?;
    }
    Ok(())
}

fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    unless_refused(lsetxattr(path, name, value, XattrFlags::empty()))
}

/// Attributes that a file system does not have, or keeps to itself, are none of the image's.
fn unless_refused(done: Result<(), Errno>) -> io::Result<()> {
    match done {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes whatever has the name; nothing is no error.
fn remove_at(dir: &OwnedFd, name: &CStr) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => tree::remove(&through(dir, name), || true).map(drop),
        Err(error) => Err(error.into()),
    }
}

/// Gives everything in a root file system that no container has seen yet to the users of a user namespace.
pub(super) fn shift_owners(root: &Path, shift: &Shift) -> io::Result<()> {
    let dir = directory(root)?;
    shift_owner(&dir, c".", &fstat(&dir)?, shift)?;
    let mut given = SortedMap::default();
    let mut levels = vec![(Dir::read_from(&dir)?, dir)];
    loop {
        let depth = levels.len();
        let Some((entries, dir)) = levels.last_mut() else { return Ok(()) };
        let Some(entry) = entries.next() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let there = statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // A file with several names is given once; but overlayfs makes a file of each of them. Full: a further one might be
        // given twice, so that is refused.
        if there.st_nlink > 1 && !FileType::from_raw_mode(there.st_mode).is_dir() {
            let owner = (there.st_uid, there.st_gid);
            if *given.entry(there.st_ino).or_insert(owner) != owner {
                continue;
            }
            if given.len() > COPY_LINKS_MAX {
                return Err(io::Error::other("it has too many hard links for a user namespace"));
            }
        }
        shift_owner(dir, name, &there, shift)?;
        if FileType::from_raw_mode(there.st_mode).is_dir() {
            if depth > LAYER_DEPTH_MAX {
                return Err(io::Error::other("a layer is too deep"));
            }
            let below = openat(&*dir, name, DIRECTORY, Mode::empty())?;
            levels.push((Dir::read_from(&below)?, below));
        }
    }
}

fn shift_owner(dir: &OwnedFd, name: &CStr, there: &Stat, shift: &Shift) -> io::Result<()> {
    let (uid, gid) = shift.of(there.st_uid, there.st_gid);
    let (path, mut value) = (through(dir, name), [0; CAPABILITY_BYTES]);
    let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
    // Few have it, and not every file system.
    let size = if is_file { lgetxattr(&path, CAPABILITY, &mut value[..]).unwrap_or_default() } else { 0 };
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    // The change of an owner clears capabilities, setuid and setgid.
    if size > 0 {
        set_xattr(&path, CAPABILITY.as_bytes(), &shift.capability(&value[..size]))?;
    }
    if there.st_mode & 0o6000 != 0 && FileType::from_raw_mode(there.st_mode) != FileType::Symlink {
        chmodat(dir, name, Mode::from_raw_mode(there.st_mode), AtFlags::empty())?;
    }
    Ok(())
}
