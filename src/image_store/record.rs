//! What the store keeps of layers, images and root file systems in files of its own. PURE.
//!
//! ```text
//!     "smolimg" │ version │ first 8 bytes of the body's SHA-256 │ body (minicbor)
//! ```
//!
//! A file that is damaged counts as absent, and what it described as well. One of another version is left alone.

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Decoder, Encode};

use super::digest::{Digest, Hasher};
use super::tar::{Entry, Parser};
use super::unpack::Counts;
use crate::limits::{
    LAYER_IMPLICIT_DIRS_MAX, LAYERS_PER_IMAGE_MAX, STORED_IMAGE_LABELS_MAX, STORED_IMAGE_NAMES_MAX,
    STORED_LABEL_BYTES_MAX,
};

const MAGIC: &[u8; 7] = b"smolimg";
const VERSION: u8 = 1;
const SUM_BYTES: usize = 8;

/// Encodes a record.
pub(super) fn to_bytes<T: Encode<()>>(record: &T) -> Vec<u8> {
    let mut body = Vec::new();
    // `Infallible`: writing to a vector does not fail.
    let _ = minicbor::encode(record, &mut body);
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    bytes.extend_from_slice(&sum(&body));
    bytes.append(&mut body);
    bytes
}

/// Decodes a record. `None`: it is cut off, damaged, or of another version.
pub(super) fn from_bytes<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Option<T> {
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
    let (said, body) = rest.split_first_chunk::<SUM_BYTES>()?;
    if *said != sum(body) {
        return None;
    }
    let mut decoder = Decoder::new(body);
    let record = decoder.decode().ok()?;
    (decoder.position() == body.len()).then_some(record)
}

/// True when it is a record of another version of smolet: it is left alone.
pub(super) fn is_of_other_version(bytes: &[u8]) -> bool {
    bytes.strip_prefix(MAGIC).and_then(<[u8]>::first).is_some_and(|version| *version != VERSION)
}

fn sum(body: &[u8]) -> [u8; SUM_BYTES] {
    let mut hash = Hasher::default();
    hash.update(body);
    let hash = hash.finish().bytes();
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&hash[..SUM_BYTES]);
    sum
}

/// A layer in the store.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Layer {
    /// Digest of its archive, uncompressed; its name if the store made it (`super::implicit`).
    #[n(0)]
    pub diff_id: Digest,
    /// What it takes.
    #[n(1)]
    pub counts: Counts,
    /// Directories that it does not describe: they get the attributes of those below. In the record alone: empty in memory once the
    /// layer is in the store.
    #[n(2)]
    pub(super) implicit: Vec<ByteVec>,
    /// The form of its whiteouts.
    #[n(3)]
    pub(super) form: Snapshotter,
}

impl Layer {
    pub(super) fn is_within_limits(&self) -> bool {
        self.implicit.len() <= LAYER_IMPLICIT_DIRS_MAX
    }
}

/// An image name with a tag.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Tag {
    /// `docker.io/library/busybox:1`.
    #[n(0)]
    pub name: String,
    /// When it was given: of two images with one name, the later one has it.
    #[n(1)]
    pub(super) serial: u64,
}

/// An image in the store.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct StoredImage {
    /// Digest of its configuration: the image's id.
    #[n(0)]
    pub id: Digest,
    /// Digest of the manifest that it was read by.
    #[n(1)]
    pub manifest: Digest,
    /// Names with tags.
    #[n(2)]
    pub tags: Vec<Tag>,
    /// Names with digests: `docker.io/library/busybox@sha256:…`.
    #[n(3)]
    pub digests: Vec<String>,
    /// Its layers, the lowest first.
    #[n(4)]
    pub layers: Vec<Digest>,
    /// Bytes that its layers, configuration and manifest take.
    #[n(5)]
    pub size: u64,
    /// `User` of its configuration.
    #[n(6)]
    pub user: String,
    /// Garbage collection keeps it.
    #[n(7)]
    pub pinned: bool,
    /// Labels that whoever stored it gave it.
    #[n(8)]
    pub labels: Vec<(String, String)>,
}

impl StoredImage {
    pub(super) fn is_within_limits(&self) -> bool {
        let short = |text: &String| text.len() <= STORED_LABEL_BYTES_MAX;
        self.tags.len() + self.digests.len() <= STORED_IMAGE_NAMES_MAX
            && self.tags.iter().map(|tag| &tag.name).chain(&self.digests).all(short)
            && self.layers.len() <= LAYERS_PER_IMAGE_MAX
            && self.labels.len() <= STORED_IMAGE_LABELS_MAX
            && self.labels.iter().all(|(key, value)| short(key) && short(value))
            && short(&self.user)
    }
}

/// How a root file system is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Snapshotter {
    /// overlayfs: the layers below, the container's own above.
    #[n(0)]
    Overlay,
    /// A copy of the layers, where overlayfs cannot be mounted.
    #[n(1)]
    Native,
}

/// A root file system of a container, or a mounted image.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct RootfsRecord {
    #[n(0)]
    pub(super) image: Digest,
    /// In use: they stay when the image is removed.
    #[n(1)]
    pub(super) layers: Vec<Digest>,
    #[n(2)]
    pub(super) snapshotter: Snapshotter,
    /// A view without a writable layer.
    #[n(3)]
    pub(super) read_only: bool,
}

/// A point of a layer at which reading can go on: after that many bytes of the compressed layer.
#[derive(Encode, Decode)]
pub(super) struct RestartPoint {
    #[n(0)]
    pub(super) digest: Digest,
    #[n(1)]
    pub(super) offset: u64,
    /// States of both digests.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub(super) compressed: Vec<u8>,
    #[cbor(n(3), with = "minicbor::bytes")]
    pub(super) diff: Vec<u8>,
    /// Bytes of the archive so far.
    #[n(4)]
    pub(super) unpacked: u64,
    #[n(5)]
    pub(super) decoder: super::decompress::State,
    #[n(6)]
    pub(super) parser: Parser,
    /// The file that is open, and the end of its data.
    #[n(7)]
    pub(super) open: Option<(Entry, u64)>,
    #[n(8)]
    pub(super) implicit: Vec<ByteVec>,
    #[n(9)]
    pub(super) counts: Counts,
    #[n(10)]
    pub(super) form: Snapshotter,
    /// Whatever was made later than this (seconds and nanoseconds of the file system's clock) was made after the point.
    #[n(11)]
    pub(super) made_until: (u64, u32),
    /// Bytes of the archive that are holes on the disk.
    #[n(12)]
    pub(super) holes: u64,
}
