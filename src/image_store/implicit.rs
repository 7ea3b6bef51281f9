//! Directories that a layer has files in and does not describe itself: they have the attributes that the layers below give them, as with
//! containerd's differ (`mkparent`). I/O, blocking.
//!
//! ```text
//!     no other image or container has the layer    they are described in its place
//!     they are as they are to be                   nothing
//!     they are not: another image has the layer    a layer of their own lies directly above it: nothing but these directories, and those
//!     on other ones                                that lead to them; its name is made of all layers below it
//! ```
//!
//! An image says nothing about another one's directories: neither that its users may enter them, nor that they may not.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, mkdirat, openat, syncfs};
use rustix::io::Errno;

use super::State;
use super::copy::{describe_as, each_xattr};
use super::digest::{Digest, Hasher};
use super::disk::Disk;
use super::layer::{begin, directory, put};
use super::record::{Layer, Snapshotter};
use super::shared::Shared;
use super::unpack::{Counts, beneath, through};
use crate::limits::{IMPLICIT_LOOKUPS_MAX, LAYERS_PER_IMAGE_MAX};

/// Of a directory that no layer describes.
const MODE: u32 = 0o755;

const TOO_MANY: &str = "its layers leave too many directories to those below";

/// Describes the directories of an image's layers: by its configuration, the lowest first, and whether others have it. Returns the layers
/// that the image has then. It is the caller's turn: no layer is removed meanwhile.
///
/// # Errors
/// A layer's record cannot be read, there are too many layers, or the file system's.
pub(super) fn describe(
    disk: &Disk,
    state: &Shared<State>,
    layers: &[(Digest, bool)],
) -> io::Result<Vec<Digest>> {
    let (mut chain, mut described, mut last) = (Hasher::default(), Vec::with_capacity(layers.len()), None);
    let mut lookups = 0;
    chain.update(b"directories of the layers");
    for (layer, is_shared) in layers.iter().copied() {
        chain.update(&layer.bytes());
        let (own, below) = (chain.finish(), described.clone());
        described.push(layer);
        if !state.borrow().found.layers.contains_key(&own) {
            let record = disk.layer_record(layer)?;
            lookups += record.implicit.len() * below.len();
            if lookups > IMPLICIT_LOOKUPS_MAX {
                return Err(io::Error::other(TOO_MANY));
            }
            let root = directory(&disk.files(layer))?;
            if !is_shared {
                give(disk, &root, &record, &below)?;
            }
            if are_right(disk, &root, &record, &below)? {
                if !is_shared && !record.implicit.is_empty() {
                    last = Some(root);
                }
                continue;
            }
            // No name of a part of a layer that arrives.
            let dir = disk.path("ingest", &format!("own-{}", own.hex()));
            let made = make(disk, (own, &dir), (&root, &record), &below).inspect_err(|_| {
                // Of no use to anyone.
                let _ = disk.set_aside(&dir);
            })?;
            state.borrow_mut().arrived(made);
        }
        described.push(own);
    }
    if described.len() > LAYERS_PER_IMAGE_MAX {
        return Err(io::Error::other(TOO_MANY));
    }
    if let Some(root) = last {
        syncfs(root)?;
    }
    Ok(described)
}

/// The directory in the highest of these layers that has it, whatever hides it above (`mkparent` does not ask that either).
fn below(disk: &Disk, layers: &[Digest], path: &[u8]) -> io::Result<Option<OwnedFd>> {
    for layer in layers.iter().rev() {
        match beneath(&directory(&disk.files(*layer))?, path) {
            Ok(dir) => return Ok(Some(dir)),
            // This layer does not have it.
            Err(Errno::NOENT) => {}
            // It is hidden there, or something else.
            Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// `None` where there is no such directory: it may have been replaced later on in the layer.
fn there(opened: Result<OwnedFd, Errno>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What counts of a directory: owner, group, mode, and the digests of its extended attributes, in whatever order they come. Those of the
/// file system's own count for nothing.
#[derive(PartialEq, Eq)]
struct Attributes(u32, u32, u32, [u8; 32]);

impl Attributes {
    /// Of a directory, or of one that no layer describes.
    fn of(dir: Option<&OwnedFd>) -> io::Result<Self> {
        let mut xattrs = [0; 32];
        let Some(dir) = dir else { return Ok(Self(0, 0, MODE, xattrs)) };
        each_xattr(&through(dir, c"."), &mut |name, value| {
            if name.starts_with(b"user.") || name.starts_with(b"system.") {
                let one = Digest::of(&[name, b"\0", value].concat()).bytes();
                xattrs.iter_mut().zip(one).for_each(|(all, one)| *all ^= one);
            }
            Ok(())
        })?;
        let stat = fstat(dir)?;
        Ok(Self(stat.st_uid, stat.st_gid, stat.st_mode & 0o7777, xattrs))
    }
}

/// True when the directories have what the layers below give them.
fn are_right(disk: &Disk, root: &OwnedFd, layer: &Layer, layers: &[Digest]) -> io::Result<bool> {
    for path in &layer.implicit {
        let Some(dir) = there(within(root, path))? else { continue };
        if Attributes::of(Some(&dir))? != Attributes::of(below(disk, layers, path)?.as_ref())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Gives the directories what the layers below give them.
fn give(disk: &Disk, root: &OwnedFd, layer: &Layer, layers: &[Digest]) -> io::Result<()> {
    for path in &layer.implicit {
        if let Some(dir) = there(beneath(root, path))?
            && let Some(below) = below(disk, layers, path)?
        {
            describe_as(&below, &dir)?;
        }
    }
    Ok(())
}

/// Opens a directory of a layer, through no link.
fn within(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    names_of(path).try_fold(enter(root, b".")?, |dir, name| enter(&dir, name))
}

fn enter(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

fn names_of(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// Makes the layer of that name, with the directories of another one.
fn make(
    disk: &Disk,
    (own, dir): (Digest, &Path),
    (of, layer): (&OwnedFd, &Layer),
    layers: &[Digest],
) -> io::Result<Layer> {
    let root = begin(disk, dir)?;
    let mut inodes = 1;
    for path in &layer.implicit {
        inodes += lead_to(path, (of, &root), None)?;
    }
    // Once all are there: what is made in one changes its times, and may inherit from it.
    let mut implicit: Vec<&[u8]> = layer.implicit.iter().map(|path| &***path).collect();
    implicit.sort_unstable();
    if implicit.binary_search(&&b""[..]).is_err() {
        describe_as(of, &root)?;
    }
    for path in &implicit {
        lead_to(path, (of, &root), Some(&implicit))?;
    }
    give(disk, &root, layer, layers)?;
    let counts = Counts { bytes: 0, inodes };
    // There are no whiteouts, so it is of either form.
    let made = Layer { diff_id: own, counts, implicit: Vec::new(), form: Snapshotter::Overlay };
    put(disk, dir, &made, &root)?;
    Ok(made)
}

/// Goes to a directory of a layer, in the layer and in the one that is made: makes those that are not there, and returns how many; with the
/// directories that are not the layer's own, describes those above it that are.
fn lead_to(path: &[u8], (of, root): (&OwnedFd, &OwnedFd), implicit: Option<&[&[u8]]>) -> io::Result<u64> {
    let (mut from, mut to, mut end, mut made) = (enter(of, b".")?, enter(root, b".")?, 0, 0);
    for name in names_of(path) {
        let Some(next) = there(enter(&from, name))? else { break };
        end += name.len();
        if implicit.is_none() {
            match mkdirat(&to, name, Mode::from_raw_mode(MODE)) {
                Err(Errno::EXIST) => {}
                new => {
                    new?;
                    made += 1;
                }
            }
        }
        (from, to) = (next, enter(&to, name)?);
        if implicit.is_some_and(|implicit| implicit.binary_search(&&path[..end]).is_err()) {
            describe_as(&from, &to)?;
        }
        // The slash.
        end += 1;
    }
    Ok(made)
}
