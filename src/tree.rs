//! Directory trees with untrusted content: removed and walked without recursion. I/O, blocking.
//!
//! ```text
//!     remove   descriptors of HELD_MAX levels; deeper directories are moved up into the first level, and removed there
//!     Walk     descriptors of HELD_MAX levels; it returns further up by `..`, which must be a level that it has passed (marks)
//! ```
//!
//! Both use a bounded number of descriptors and bounded memory at any depth and width: names are read in batches, and no paths
//! are built. No symlink is followed and no mount is entered. Concurrent renames cannot lead them out of the root: a removal
//! uses descriptors only, never `..`; a walk ends when `..` is a directory that it has not passed.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat, fstat, openat, openat2,
    renameat, seek, statat, unlinkat,
};
use rustix::io::Errno;

use crate::limits::{TREE_BATCH_BYTES, TREE_LEVELS_HELD_MAX, TREE_MARKS_MAX};

/// The owner of the tree may replace a directory by a link at any time.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A batch of names. On the heap, and shared by all levels.
fn batch() -> Vec<u8> {
    Vec::with_capacity(TREE_BATCH_BYTES)
}

/// The parent directory's descriptor, and the last component of a path. Links in the parent's path are followed: it is the
/// caller's own.
fn parent(path: &Path) -> io::Result<(OwnedFd, CString)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above =
        openat(CWD, parent, OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC), Mode::empty())?;
    Ok((above, CString::new(name.as_bytes())?))
}

/// Opens a directory in another one. `XDEV` for a mount.
fn enter(above: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    match openat2(above, name, DIRECTORY, Mode::empty(), ResolveFlags::NO_XDEV) {
        // The kernel is older than 5.6, or an emulator or filter does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => {
            let there = openat(above, name, DIRECTORY, Mode::empty())?;
            if fstat(&there)?.st_dev == fstat(above)?.st_dev { Ok(there) } else { Err(Errno::XDEV) }
        }
        entered => entered,
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

// ---- removal -------------------------------------------------------------------------------------------------

/// Removes the path with its content while `goes_on` returns true; it is called before each batch of names once something was
/// removed. True when everything is removed; else another call continues. A symlink is removed, never followed.
///
/// # Errors
/// The path does not exist; something cannot be removed; or there is a mount at the path or in it, whose content is not
/// touched.
pub fn remove(path: &Path, mut goes_on: impl FnMut() -> bool) -> io::Result<bool> {
    let (above, name) = parent(path)?;
    match unlinkat(&above, &name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed.map(|()| true)?),
    }
    let mut levels = vec![OpenDirectory::new(enter(&above, &name)?, name)];
    let (mut batch, mut moved) = (batch(), 0);
    // Each call makes progress, however short its time is.
    let mut goes_on = |has_removed: bool| !has_removed || goes_on();
    let mut has_removed = false;
    loop {
        let held = levels.len();
        let Some(level) = levels.last_mut() else { return Ok(true) };
        let left = level.next(&mut batch, |changed| goes_on(has_removed || changed))?;
        has_removed |= level.changed;
        match left {
            Remains::Stopped => return Ok(false),
            Remains::Directory(name) if held < TREE_LEVELS_HELD_MAX => match enter(&level.dir, &name) {
                Ok(dir) => levels.push(OpenDirectory::new(dir, name)),
                // It was removed or replaced: the next pass sees the new entry.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => level.changed = true,
                Err(error) => return Err(error.into()),
            },
            Remains::Directory(name) => move_up(&mut levels, &name, &mut moved)?,
            Remains::Nothing => {
                let Some(mut done) = levels.pop() else { return Ok(true) };
                let upper = levels.last().map_or(&above, |level| &level.dir);
                match unlinkat(upper, &done.name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // Passes continue while they remove or move something.
                    Err(Errno::NOTEMPTY | Errno::EXIST) if done.changed => {
                        done.rewind()?;
                        levels.push(done);
                        continue;
                    }
                    // It was replaced.
                    Err(Errno::NOTDIR) if !levels.is_empty() => {}
                    Err(error) => return Err(error.into()),
                }
                if let Some(upper) = levels.last_mut() {
                    upper.changed = true;
                }
            }
        }
    }
}

/// Moves a directory from the deepest level up to the first level that accepts it: one of another subvolume does not.
fn move_up(levels: &mut [OpenDirectory], name: &CStr, moved: &mut u64) -> io::Result<()> {
    let Some((deepest, uppers)) = levels.split_last_mut() else { return Ok(()) };
    deepest.changed = true;
    for upper in uppers {
        loop {
            let to = CString::new(format!(".deep-{moved}"))?;
            *moved += 1;
            match renameat(&deepest.dir, name, &upper.dir, &to) {
                // A later pass removes it there.
                Ok(()) => upper.changed = true,
                Err(Errno::NOENT) => {}
                // The name exists: of an interrupted removal, or of the tree's owner.
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => continue,
                Err(Errno::XDEV) => break,
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
    }
    Err(Errno::XDEV.into())
}

/// A directory that is being emptied.
struct OpenDirectory {
    dir: OwnedFd,
    /// Its name in the directory above.
    name: CString,
    /// An entry was removed or moved, here or below, since the first batch of names.
    changed: bool,
}

/// What remains in a directory.
enum Remains {
    Nothing,
    /// A subdirectory that is not empty.
    Directory(CString),
    /// Stopped by the caller.
    Stopped,
}

impl OpenDirectory {
    fn new(dir: OwnedFd, name: CString) -> Self {
        Self { dir, name, changed: false }
    }

    fn rewind(&mut self) -> rustix::io::Result<()> {
        self.changed = false;
        seek(&self.dir, SeekFrom::Start(0)).map(drop)
    }

    /// Removes files and empty directories from the last position on, up to a directory that is not empty. The argument of
    /// `goes_on` is true once something was removed.
    fn next(&mut self, batch: &mut Vec<u8>, mut goes_on: impl FnMut(bool) -> bool) -> io::Result<Remains> {
        if !goes_on(self.changed) {
            return Ok(Remains::Stopped);
        }
        let mut entries = RawDir::new(&self.dir, batch.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // The directory itself was removed.
                Err(Errno::NOENT) => break,
                entry => entry?,
            };
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            // Not every file system reports an entry's type.
            let mut is_dir = entry.file_type().is_dir();
            let mut removed =
                unlinkat(&self.dir, name, if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() });
            if matches!(removed, Err(Errno::ISDIR | Errno::NOTDIR)) {
                is_dir = !is_dir;
                removed =
                    unlinkat(&self.dir, name, if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() });
            }
            match removed {
                // Or it is replaced repeatedly: the next pass sees the new entry.
                Ok(()) | Err(Errno::ISDIR | Errno::NOTDIR) => self.changed = true,
                Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if is_dir => {
                    let (name, next) = (name.to_owned(), entry.next_entry_cookie());
                    seek(&self.dir, SeekFrom::Start(next))?;
                    return Ok(Remains::Directory(name));
                }
                Err(error) => return Err(error.into()),
            }
            if entries.is_buffer_empty() && !goes_on(self.changed) {
                return Ok(Remains::Stopped);
            }
        }
        Ok(Remains::Nothing)
    }
}

// ---- walk ----------------------------------------------------------------------------------------------------

/// An interruptible walk over all entries below a directory. Each entry is visited once; entries that are created, removed or
/// moved meanwhile may be missed or visited twice.
pub struct Walk {
    /// Entries on another device are not part of the tree.
    device: u64,
    /// Something is mounted in the tree, which may hang: each entry is checked for a mount before it is accessed.
    has_mounts: bool,
    /// The deepest levels of the current path, the current one last.
    held: VecDeque<Level>,
    /// Depth of the current level below the root.
    depth: usize,
    /// Marks of the levels above `held`, the root first.
    marks: Vec<Mark>,
    batch: Vec<u8>,
}

/// What is done with each entry: its directory, its name there, and what it was.
pub type Visit<'a> = &'a mut dyn FnMut(&OwnedFd, &CStr, &Stat) -> ControlFlow<()>;

struct Level {
    dir: OwnedFd,
    inode: u64,
    next: ReadPosition,
}

/// Position in a directory.
#[derive(Clone, Copy)]
enum ReadPosition {
    /// At that offset.
    At(u64),
    /// After the entry with this inode.
    After(u64),
}

/// A level whose descriptor is closed. Levels without a mark are found again from their neighbours.
struct Mark {
    depth: usize,
    inode: u64,
    next: ReadPosition,
}

/// How a call of a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkResult {
    /// All entries were visited.
    All,
    /// Stopped by the visitor.
    Stopped,
    /// A directory of the current path was moved or removed: entries above it were not visited.
    Cut,
}

/// Result of reading a directory.
enum Read {
    End,
    Down(OwnedFd, u64),
    Stopped,
}

impl Walk {
    /// Starts at a directory without a mount on it. `has_mounts`: something is mounted below it.
    ///
    /// # Errors
    /// It does not exist, or is not a directory.
    pub fn new(path: &Path, has_mounts: bool) -> io::Result<Self> {
        let (above, name) = parent(path)?;
        let dir = if has_mounts {
            openat2(&above, &name, DIRECTORY, Mode::empty(), ResolveFlags::NO_XDEV)?
        } else {
            openat(&above, &name, DIRECTORY, Mode::empty())?
        };
        let there = fstat(&dir)?;
        let root = Level { dir, inode: there.st_ino, next: ReadPosition::At(0) };
        let (device, held) = (there.st_dev, VecDeque::from([root]));
        Ok(Self { device, has_mounts, held, depth: 0, marks: Vec::new(), batch: batch() })
    }

    /// Passes each further entry to `visit` until that breaks; the next call continues after that entry.
    pub fn go_on(&mut self, mut visit: impl FnMut(&Stat) -> ControlFlow<()>) -> WalkResult {
        self.go_on_at(&mut |_, _, there| visit(there))
    }

    /// The same, with the directory of each entry and its name there, which may be another file's by then.
    pub fn go_on_at(&mut self, visit: Visit<'_>) -> WalkResult {
        let mut is_stopped = false;
        while !is_stopped {
            // `held` is empty only after the end of the walk.
            let Some(level) = self.held.back_mut() else { return WalkResult::All };
            match level.read(self.device, self.has_mounts, &mut self.batch, &mut is_stopped, visit) {
                Read::Stopped => {}
                Read::Down(dir, inode) => self.down(dir, inode),
                Read::End if self.depth == 0 => {
                    self.held.clear();
                    return WalkResult::All;
                }
                Read::End => {
                    if !self.up() {
                        self.held.clear();
                        self.depth = 0;
                        return WalkResult::Cut;
                    }
                }
            }
        }
        WalkResult::Stopped
    }

    fn down(&mut self, dir: OwnedFd, inode: u64) {
        self.held.push_back(Level { dir, inode, next: ReadPosition::At(0) });
        self.depth += 1;
        if self.held.len() > TREE_LEVELS_HELD_MAX
            && let Some(Level { inode, next, .. }) = self.held.pop_front()
        {
            self.marks.push(Mark { depth: self.depth - self.held.len(), inode, next });
            self.thin_out();
        }
    }

    /// Full: every second mark is dropped, never the root's. A dropped one is found again by walking the few levels between its
    /// neighbours, and searching its entry among the names.
    fn thin_out(&mut self) {
        if self.marks.len() >= TREE_MARKS_MAX {
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// Returns to the level above the current one. False at the root.
    fn up(&mut self) -> bool {
        let Some(left) = self.held.pop_back() else { return false };
        self.depth -= 1;
        !self.held.is_empty() || self.climb(left).is_ok_and(|()| !self.held.is_empty())
    }

    /// Opens the levels above `left` up to the nearest mark, and holds the deepest of them.
    fn climb(&mut self, left: Level) -> rustix::io::Result<()> {
        let Some(mark) = self.marks.last() else { return Err(Errno::NOENT) };
        let (mut below, mut depth) = (left, self.depth + 1);
        let mut kept: VecDeque<Level> = VecDeque::new();
        while depth > mark.depth {
            let dir = openat(&below.dir, c"..", DIRECTORY, Mode::empty())?;
            let there = fstat(&dir)?;
            if there.st_dev != self.device {
                return Err(Errno::XDEV);
            }
            depth -= 1;
            let level = Level { dir, inode: there.st_ino, next: ReadPosition::After(below.inode) };
            // The lower one's descriptor was needed until here.
            let further = std::mem::replace(&mut below, level);
            if depth < self.depth && kept.len() + 1 < TREE_LEVELS_HELD_MAX {
                kept.push_front(further);
            }
        }
        // Whatever was moved meanwhile: these levels lead up to one that the walk has passed.
        if below.inode != mark.inode {
            return Err(Errno::XDEV);
        }
        if self.depth - mark.depth == kept.len() {
            below.next = mark.next;
            kept.push_front(below);
            self.marks.pop();
        }
        self.held = kept;
        Ok(())
    }
}

impl Level {
    fn read(
        &mut self,
        device: u64,
        has_mounts: bool,
        batch: &mut Vec<u8>,
        is_stopped: &mut bool,
        visit: Visit<'_>,
    ) -> Read {
        let (at, mut behind) = match self.next {
            ReadPosition::At(at) => (at, None),
            ReadPosition::After(inode) => (0, Some(inode)),
        };
        if seek(&self.dir, SeekFrom::Start(at)).is_err() {
            return Read::End;
        }
        let mut entries = RawDir::new(&self.dir, batch.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            if let Some(inode) = behind {
                behind = (entry.ino() != inode).then_some(inode);
                continue;
            }
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            let there = if has_mounts {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat2(&self.dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV).and_then(fstat)
            } else {
                statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            };
            let Ok(there) = there else { continue };
            if there.st_dev != device {
                continue;
            }
            *is_stopped = visit(&self.dir, name, &there).is_break();
            let below = if FileType::from_raw_mode(there.st_mode).is_dir() {
                enter(&self.dir, name).and_then(|dir| Ok((fstat(&dir)?, dir))).ok()
            } else {
                None
            };
            let below = below.filter(|(there, _)| there.st_dev == device);
            if *is_stopped || below.is_some() {
                self.next = ReadPosition::At(entry.next_entry_cookie());
            }
            match below {
                Some((there, dir)) => return Read::Down(dir, there.st_ino),
                None if *is_stopped => return Read::Stopped,
                None => {}
            }
        }
        Read::End
    }
}

#[cfg(test)]
mod tests;
