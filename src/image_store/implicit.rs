//! Directories that a layer has files in and does not describe itself: they have the attributes that the layers below give them, as with
//! containerd's differ, which unpacks a layer over those. I/O, blocking.
//!
//! ```text
//!     no other image or container has the layer       they are described in its place
//!     others have it, and they are as they are to be   it is used
//!     others have it, and they are not                 it is linked: a layer with directories of its own and the same files, whose name
//!                                                      is the digest of all layers up to it
//! ```
//!
//! An image says nothing about another one's directories: neither that its users may enter them, nor that they may not.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Mode, Uid, fchmod, fchown, fremovexattr, fstat, futimens, syncfs};
use rustix::io::Errno;

use super::State;
use super::copy::{describe_as, each_xattr, link_layer};
use super::digest::{Digest, Hasher};
use super::disk::Disk;
use super::layer::{FILES, begin, directory, put};
use super::record::Layer;
use super::shared::Shared;
use super::unpack::{EPOCH, beneath, through};

/// Of a directory that no layer describes.
const MODE: u32 = 0o755;

/// The layers of an image that is stored.
pub(super) struct Layers {
    /// By its configuration, the lowest first.
    pub(super) all: Vec<Digest>,
    /// So many of them lie on each other in another image already.
    pub(super) settled: usize,
    /// The name of each that others have too: of a layer with directories of its own.
    pub(super) own: Vec<Option<Digest>>,
}

/// The name of the last of these layers, with directories of its own.
pub(super) fn own_name(layers: &[Digest]) -> Digest {
    let mut hash = Hasher::default();
    hash.update(b"layer with the directories of those below it");
    for layer in layers {
        hash.update(&layer.bytes());
    }
    hash.finish()
}

/// Describes the directories of all layers, and returns the layers to be used: some may be made for it. It is the caller's turn: no layer is
/// removed meanwhile.
///
/// # Errors
/// A layer's record cannot be read, or the file system's.
pub(super) fn settle(disk: &Disk, state: &Shared<State>, layers: &Layers) -> io::Result<Vec<Digest>> {
    let mut settled: Vec<Digest> = Vec::with_capacity(layers.all.len());
    let mut described = None;
    for (index, layer) in layers.all.iter().copied().enumerate() {
        let used = match layers.own[index] {
            _ if index < layers.settled => layer,
            Some(own) => shared(disk, state, (layer, own), &settled)?,
            None => {
                described = describe_in_place(disk, layer, &settled)?.or(described);
                layer
            }
        };
        settled.push(used);
    }
    if let Some(root) = described {
        syncfs(root)?;
    }
    Ok(settled)
}

/// The layer itself where its directories are right on those layers; otherwise the one with that name, which is made if need be.
fn shared(
    disk: &Disk,
    state: &Shared<State>,
    (layer, own): (Digest, Digest),
    layers: &[Digest],
) -> io::Result<Digest> {
    if state.borrow().found.layers.contains_key(&own) {
        return Ok(own);
    }
    let record = disk.layer_record(layer)?;
    if are_right(disk, &directory(&disk.files(layer))?, (&record, layers), Wrong::Told)? {
        return Ok(layer);
    }
    let record = Layer { diff_id: own, ..record };
    if let Err(error) = link(disk, layer, &record, layers) {
        // Of no use to anyone.
        let _ = disk.set_aside(&disk.ingest(own));
        return Err(error);
    }
    state.borrow_mut().arrived(record);
    Ok(own)
}

/// The root of what it has changed.
fn describe_in_place(disk: &Disk, layer: Digest, layers: &[Digest]) -> io::Result<Option<OwnedFd>> {
    let (record, root) = (disk.layer_record(layer)?, directory(&disk.files(layer))?);
    are_right(disk, &root, (&record, layers), Wrong::Mended)?;
    Ok((!record.implicit.is_empty()).then_some(root))
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

/// What counts of a directory: owner, group, mode, and whether it has extended attributes, such as lists of who else may use it.
#[derive(PartialEq, Eq)]
struct Attributes(u32, u32, u32, bool);

impl Attributes {
    /// Of a directory, or of one that no layer describes.
    fn of(dir: Option<&OwnedFd>) -> io::Result<Self> {
        let Some(dir) = dir else { return Ok(Self(0, 0, MODE, false)) };
        let (stat, mut has_xattrs) = (fstat(dir)?, false);
        each_xattr(&through(dir, c"."), &mut |name, _| {
            has_xattrs |= !is_the_stores(name);
            Ok(())
        })?;
        Ok(Self(stat.st_uid, stat.st_gid, stat.st_mode & 0o7777, has_xattrs))
    }
}

/// Not of the image.
fn is_the_stores(xattr: &[u8]) -> bool {
    xattr.starts_with(b"trusted.") || xattr == b"security.selinux"
}

/// What becomes of directories that are not as they are to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Told,
    Mended,
}

/// True when the directories of a layer have what those layers below give them, which includes their times where wrong ones are mended.
fn are_right(
    disk: &Disk,
    root: &OwnedFd,
    (layer, layers): (&Layer, &[Digest]),
    wrong: Wrong,
) -> io::Result<bool> {
    for path in &layer.implicit {
        let Ok(there) = beneath(root, path) else { continue };
        let below = below(disk, layers, path)?;
        let attributes = Attributes::of(Some(&there))?;
        // Extended attributes are not compared: where there are some it counts as wrong.
        let is_right = !attributes.3 && attributes == Attributes::of(below.as_ref())?;
        if wrong == Wrong::Told {
            if is_right {
                continue;
            }
            return Ok(false);
        }
        if !is_right {
            // An image that was not stored to the end may have given it some.
            each_xattr(&through(&there, c"."), &mut |name, _| {
                if is_the_stores(name) { Ok(()) } else { Ok(fremovexattr(&there, name)?) }
            })?;
        }
        match below {
            Some(below) => describe_as(&below, &there)?,
            None if is_right => {}
            None => {
                fchown(&there, Some(Uid::ROOT), Some(Gid::ROOT))?;
                fchmod(&there, Mode::from_raw_mode(MODE))?;
                futimens(&there, &EPOCH)?;
            }
        }
    }
    Ok(true)
}

/// Makes that layer, with the files of another one.
fn link(disk: &Disk, files: Digest, layer: &Layer, layers: &[Digest]) -> io::Result<()> {
    let dir = disk.ingest(layer.diff_id);
    let root = begin(disk, &dir)?;
    link_layer(&disk.files(files), &dir.join(FILES))?;
    are_right(disk, &root, (layer, layers), Wrong::Mended)?;
    put(disk, &dir, layer, &root)
}
