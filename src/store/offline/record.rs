//! PURE: the file of one object.

use minicbor::{Decode, Encode};

use super::super::checkpoint::{Unreadable, crc32};
use crate::limits::OFFLINE_RECORD_BYTES_MAX;

/// Magic number at the file's beginning.
const MAGIC: &[u8; 6] = b"smokub";
/// Format version. Fields are numbered and may be added without a new version; it is raised when a field's meaning changes.
const VERSION: u8 = 1;
const SUM_BYTES: usize = size_of::<u32>();
const HEAD_BYTES: usize = MAGIC.len() + 1 + SUM_BYTES;

/// Bytes of the digest that identifies an owner or a file.
pub const DIGEST_BYTES: usize = 16;
/// The first bytes of a digest.
pub type Digest = [u8; DIGEST_BYTES];

/// Kind of a stored object. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum Kind {
    /// A pod, named by its UID.
    #[n(0)]
    Pod,
    /// The Node's labels, taints and pod CIDRs, named by the Node.
    #[n(1)]
    Node,
    /// A ConfigMap.
    #[n(2)]
    ConfigMap,
    /// A Secret, encrypted.
    #[n(3)]
    Secret,
    /// A token, encrypted.
    #[n(4)]
    Token,
    /// Services of a namespace.
    #[n(5)]
    Services,
    /// A runtime class.
    #[n(6)]
    RuntimeClass,
    /// A claim with its volume.
    #[n(7)]
    Claim,
}

impl Kind {
    /// True for kinds whose content is encrypted.
    pub fn is_sealed(self) -> bool {
        match self {
            Self::Secret | Self::Token => true,
            Self::Pod | Self::Node | Self::ConfigMap | Self::Services | Self::RuntimeClass | Self::Claim => {
                false
            }
        }
    }
}

/// Identifies an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Kind of the object.
    pub kind: Kind,
    /// Its namespace; empty: none.
    pub namespace: Box<str>,
    /// Its name; for a pod its UID.
    pub name: Box<str>,
}

impl Name {
    /// Unambiguous encoding: different names have different bytes.
    pub fn as_bytes(&self) -> Vec<u8> {
        let parts = [&[self.kind as u8], self.namespace.as_bytes(), &[0], self.name.as_bytes()];
        parts.concat()
    }
}

/// The file's body. It borrows from the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Record<'a> {
    /// Its cluster and node.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub owner: Digest,
    /// Kind of the object.
    #[n(1)]
    pub kind: Kind,
    /// Its namespace.
    #[b(2)]
    pub namespace: &'a str,
    /// Its name.
    #[b(3)]
    pub name: &'a str,
    /// Its content; if encrypted, the nonce, the ciphertext and the tag.
    #[cbor(b(4), with = "minicbor::bytes")]
    pub content: &'a [u8],
}

impl Record<'_> {
    /// The object's identity.
    pub fn of(&self) -> Name {
        Name { kind: self.kind, namespace: self.namespace.into(), name: self.name.into() }
    }
}

/// Encodes a file.
pub fn to_bytes(record: &Record<'_>) -> Vec<u8> {
    const FIELDS: usize = 64;
    let texts = record.namespace.len() + record.name.len();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + FIELDS + texts + record.content.len());
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.extend_from_slice(&[0; SUM_BYTES]);
    // `Infallible`: writing to a vector does not fail.
    let _ = minicbor::encode(record, &mut bytes);
    let sum = crc32(&bytes[HEAD_BYTES..]).to_le_bytes();
    bytes[HEAD_BYTES - SUM_BYTES..HEAD_BYTES].copy_from_slice(&sum);
    bytes
}

/// Decodes a file, whole or not at all.
///
/// # Errors
/// The bytes are damaged, or of a newer version.
pub fn from_bytes(bytes: &[u8]) -> Result<Record<'_>, Unreadable> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Unreadable::Damaged)?;
    let (version, rest) = rest.split_first().ok_or(Unreadable::Damaged)?;
    if *version > VERSION {
        return Err(Unreadable::Newer);
    }
    let (sum, body) = rest.split_first_chunk::<SUM_BYTES>().ok_or(Unreadable::Damaged)?;
    let too_long = bytes.len() > OFFLINE_RECORD_BYTES_MAX;
    if *version != VERSION || too_long || crc32(body) != u32::from_le_bytes(*sum) {
        return Err(Unreadable::Damaged);
    }
    let mut decoder = minicbor::Decoder::new(body);
    let record: Record<'_> = decoder.decode().map_err(|_| Unreadable::Damaged)?;
    if decoder.position() < body.len() { Err(Unreadable::Damaged) } else { Ok(record) }
}
