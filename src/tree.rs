//! Trees of files that strangers made: removed and measured without recursion. I/O, blocking.
//!
//! ```text
//!     remove   descriptors of HELD_MAX levels; what lies deeper is moved up beside the first level, and is removed from there
//!     Walk     descriptors of HELD_MAX levels; further up it comes by `..`, which must lead to a level that it came by (marks)
//! ```
//!
//! Both hold a bounded number of descriptors and bounded memory at any depth and width: names are read in batches, paths are never
//! made. No symlink is followed and no mount entered. What is renamed meanwhile leads neither of them out of its root: a removal
//! goes by descriptors alone, never by `..`; a walk ends where `..` leads to a directory that it did not come by.

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

/// Whoever owns the tree may put a link in a directory's place at any time.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory's batch of names. On the heap: it is the same for all levels.
fn batch() -> Vec<u8> {
    Vec::with_capacity(TREE_BATCH_BYTES)
}

/// The directory above, by descriptor, and the last part of a path. What leads there is the caller's own; its links are followed.
fn parent(path: &Path) -> io::Result<(OwnedFd, CString)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above =
        openat(CWD, parent, OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC), Mode::empty())?;
    Ok((above, CString::new(name.as_bytes())?))
}

/// Opens a directory that stands in another. One that is mounted there is `XDEV`.
fn enter(above: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    match openat2(above, name, DIRECTORY, Mode::empty(), ResolveFlags::NO_XDEV) {
        // A kernel before 5.6, an emulator or a filter that is older than the call.
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

/// Removes what stands at the path with all that is in it, for as long as `goes_on` says; it is asked before each batch of names
/// once something was removed. Returns whether all of it is gone; else another call goes on with what is left. A symlink is removed, never followed.
///
/// # Errors
/// Nothing stands there; something cannot be removed, or something is mounted there or in it, below which nothing is touched.
pub fn remove(path: &Path, mut goes_on: impl FnMut() -> bool) -> io::Result<bool> {
    let (above, name) = parent(path)?;
    match unlinkat(&above, &name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed.map(|()| true)?),
    }
    let mut levels = vec![OpenDirectory::new(enter(&above, &name)?, name)];
    let (mut batch, mut moved) = (batch(), 0);
    // Each call gets further, however short its time is.
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
                // It went, or something else took its place: the next pass sees what it is.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => level.changed = true,
                Err(error) => return Err(error.into()),
            },
            Remains::Directory(name) => move_up(&mut levels, &name, &mut moved)?,
            Remains::Nothing => {
                let Some(mut done) = levels.pop() else { return Ok(true) };
                let upper = levels.last().map_or(&above, |level| &level.dir);
                match unlinkat(upper, &done.name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // Passes go on for as long as they remove or move something.
                    Err(Errno::NOTEMPTY | Errno::EXIST) if done.changed => {
                        done.rewind()?;
                        levels.push(done);
                        continue;
                    }
                    // Something else took its place.
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

/// Moves a directory of the deepest level up to the first level that takes it: those of another subvolume do not.
fn move_up(levels: &mut [OpenDirectory], name: &CStr, moved: &mut u64) -> io::Result<()> {
    let Some((deepest, uppers)) = levels.split_last_mut() else { return Ok(()) };
    deepest.changed = true;
    for upper in uppers {
        loop {
            let to = CString::new(format!(".deep-{moved}"))?;
            *moved += 1;
            match renameat(&deepest.dir, name, &upper.dir, &to) {
                // There it is seen by a later pass.
                Ok(()) => upper.changed = true,
                Err(Errno::NOENT) => {}
                // The name is taken: by a removal that was cut off, or by whoever made the tree.
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
    /// In the one above.
    name: CString,
    /// Since its names were read from the first on, something was removed or moved, here or below.
    changed: bool,
}

/// What a directory has left.
enum Remains {
    Nothing,
    /// One that is not empty.
    Directory(CString),
    /// The caller wants no more now.
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

    /// Removes files and empty directories from where the last call ended, up to a directory that is not empty.
    /// `goes_on` is told whether something was removed.
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
            // Not every file system tells what an entry is.
            let mut is_dir = entry.file_type().is_dir();
            let mut removed =
                unlinkat(&self.dir, name, if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() });
            if matches!(removed, Err(Errno::ISDIR | Errno::NOTDIR)) {
                is_dir = !is_dir;
                removed =
                    unlinkat(&self.dir, name, if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() });
            }
            match removed {
                // Or it changes its kind again and again: the next pass sees what it is.
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

/// A look at everything below a directory, which can be interrupted and taken up again. Each entry is seen once; what comes, goes
/// or is moved meanwhile may be missed or seen twice.
pub struct Walk {
    /// What lies on another device is not of the tree.
    device: u64,
    /// Something is mounted in the tree, which may not answer: no entry is looked at before it is known to be of the tree.
    has_mounts: bool,
    /// The deepest levels of the way from the root, the current one last.
    held: VecDeque<Level>,
    /// How many levels the current one is below the root.
    depth: usize,
    /// Of the levels above those held, the root first.
    marks: Vec<Mark>,
    batch: Vec<u8>,
}

struct Level {
    dir: OwnedFd,
    inode: u64,
    next: Next,
}

/// Where the reading of a directory goes on.
#[derive(Clone, Copy)]
enum Next {
    /// At that position.
    At(u64),
    /// Behind the entry that has this inode.
    Behind(u64),
}

/// A level whose descriptor is closed. Without one between them, two levels are found again step by step.
struct Mark {
    depth: usize,
    inode: u64,
    next: Next,
}

/// How a piece of a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkResult {
    /// Everything was seen.
    All,
    /// The visitor wants no more now.
    Stopped,
    /// A directory of the way was moved or removed: what lies above it was not seen.
    Cut,
}

/// What reading a directory led to.
enum Read {
    End,
    Down(OwnedFd, u64),
    Stopped,
}

impl Walk {
    /// At a directory, which nothing is mounted on. `has_mounts`: something is mounted below it.
    ///
    /// # Errors
    /// It is not there, or is no directory.
    pub fn new(path: &Path, has_mounts: bool) -> io::Result<Self> {
        let (above, name) = parent(path)?;
        let dir = if has_mounts {
            openat2(&above, &name, DIRECTORY, Mode::empty(), ResolveFlags::NO_XDEV)?
        } else {
            openat(&above, &name, DIRECTORY, Mode::empty())?
        };
        let there = fstat(&dir)?;
        let root = Level { dir, inode: there.st_ino, next: Next::At(0) };
        let (device, held) = (there.st_dev, VecDeque::from([root]));
        Ok(Self { device, has_mounts, held, depth: 0, marks: Vec::new(), batch: batch() })
    }

    /// Shows each further entry to `visit`, until that breaks off: the next call goes on behind that entry.
    pub fn go_on(&mut self, mut visit: impl FnMut(&Stat) -> ControlFlow<()>) -> WalkResult {
        let mut is_stopped = false;
        while !is_stopped {
            // None is held only once the walk is over.
            let Some(level) = self.held.back_mut() else { return WalkResult::All };
            match level.read(self.device, self.has_mounts, &mut self.batch, &mut is_stopped, &mut visit) {
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
        self.held.push_back(Level { dir, inode, next: Next::At(0) });
        self.depth += 1;
        if self.held.len() > TREE_LEVELS_HELD_MAX
            && let Some(Level { inode, next, .. }) = self.held.pop_front()
        {
            self.marks.push(Mark { depth: self.depth - self.held.len(), inode, next });
            self.thin_out();
        }
    }

    /// Full: every other mark goes, never the root's. Whoever needs one that is gone walks the few levels between, and looks for its
    /// place among the names.
    fn thin_out(&mut self) {
        if self.marks.len() >= TREE_MARKS_MAX {
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
    }

    /// To the level above the current one. False when there is none any more.
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
            let level = Level { dir, inode: there.st_ino, next: Next::Behind(below.inode) };
            // The one below is needed for its descriptor until now.
            let further = std::mem::replace(&mut below, level);
            if depth < self.depth && kept.len() + 1 < TREE_LEVELS_HELD_MAX {
                kept.push_front(further);
            }
        }
        // Whatever was moved meanwhile: these levels led up to one that the walk came by.
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
        visit: &mut impl FnMut(&Stat) -> ControlFlow<()>,
    ) -> Read {
        let (at, mut behind) = match self.next {
            Next::At(at) => (at, None),
            Next::Behind(inode) => (0, Some(inode)),
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
            *is_stopped = visit(&there).is_break();
            let below = if FileType::from_raw_mode(there.st_mode).is_dir() {
                enter(&self.dir, name).and_then(|dir| Ok((fstat(&dir)?, dir))).ok()
            } else {
                None
            };
            let below = below.filter(|(there, _)| there.st_dev == device);
            if *is_stopped || below.is_some() {
                self.next = Next::At(entry.next_entry_cookie());
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
