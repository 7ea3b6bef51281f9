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
use crate::limits::LAYERS_PER_IMAGE_MAX;

/// Of a directory that no layer describes.
const MODE: u32 = 0o755;

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
    chain.update(b"directories of the layers");
    for (layer, is_shared) in layers.iter().copied() {
        chain.update(&layer.bytes());
        let (own, below) = (chain.finish(), described.clone());
        described.push(layer);
        if !state.borrow().found.layers.contains_key(&own) {
            let record = disk.layer_record(layer)?;
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
            let made = make(disk, own, (&root, &record), &below)?;
            state.borrow_mut().arrived(made);
        }
        described.push(own);
        if described.len() > LAYERS_PER_IMAGE_MAX {
            return Err(io::Error::other(
                "there are too many layers with directories that only others describe",
            ));
        }
    }
    if let Some(root) = last {
        syncfs(root)?;
    }
    Ok(described)
}

/// The directory in the highest of these layers that has it.
fn below(disk: &Disk, layers: &[Digest], path: &[u8]) -> io::Result<Option<OwnedFd>> {
    for layer in layers.iter().rev() {
        match beneath(&directory(&disk.files(*layer))?, path) {
            Ok(dir) => return Ok(Some(dir)),
            // This layer does not have it.
            Err(Errno::NOENT) => {}
            // It is hidden there, or something else.
            Err(_) => break,
        }
    }
    Ok(None)
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
        let Ok(there) = within(root, path) else { continue };
        if Attributes::of(Some(&there))? != Attributes::of(below(disk, layers, path)?.as_ref())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Gives the directories what the layers below give them.
fn give(disk: &Disk, root: &OwnedFd, layer: &Layer, layers: &[Digest]) -> io::Result<()> {
    for path in &layer.implicit {
        if let Ok(there) = within(root, path)
            && let Some(below) = below(disk, layers, path)?
        {
            describe_as(&below, &there)?;
        }
    }
    Ok(())
}

/// Opens a directory of a layer, through no link. It may have been replaced later on in the layer.
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
fn make(disk: &Disk, own: Digest, (of, layer): (&OwnedFd, &Layer), layers: &[Digest]) -> io::Result<Layer> {
    // No name of a part of a layer that arrives.
    let dir = disk.path("ingest", &format!("own-{}", own.hex()));
    let root = begin(disk, &dir)?;
    let mut counts = Counts { bytes: 0, inodes: 1 };
    if layer.implicit.first().is_none_or(|path| !path.is_empty()) {
        describe_as(of, &root)?;
    }
    for path in &layer.implicit {
        counts.inodes += lead_to(path, of, &root)?;
    }
    give(disk, &root, layer, layers)?;
    // There are no whiteouts, so it is of either form.
    let made = Layer { diff_id: own, counts, implicit: Vec::new(), form: Snapshotter::Overlay };
    put(disk, &dir, &made, &root)?;
    Ok(made)
}

/// Makes a directory of a layer, and those above it as the layer has them: one that is among those to be described came before. Returns how
/// many it made.
fn lead_to(path: &[u8], of: &OwnedFd, root: &OwnedFd) -> io::Result<u64> {
    let (mut from, mut to, mut made) = (enter(of, b".")?, enter(root, b".")?, 0);
    let mut names = names_of(path).peekable();
    while let Some(name) = names.next() {
        let Ok(next) = enter(&from, name) else { break };
        to = match enter(&to, name) {
            Err(Errno::NOENT) => {
                mkdirat(&to, name, Mode::from_raw_mode(MODE))?;
                let new = enter(&to, name)?;
                if names.peek().is_some() {
                    describe_as(&next, &new)?;
                }
                made += 1;
                new
            }
            there => there?,
        };
        from = next;
    }
    Ok(made)
}
