//! PURE: one kept object's file.

use minicbor::{Decode, Encode};

use super::super::checkpoint::{Unreadable, crc32};
use crate::limits::KEPT_RECORD_BYTES_MAX;

/// What a file begins with.
const MAGIC: &[u8; 6] = b"smokub";
/// The format. Fields are numbered and may be added without a new version; it changes with their meaning.
const VERSION: u8 = 1;
const SUM_BYTES: usize = size_of::<u32>();
const HEAD_BYTES: usize = MAGIC.len() + 1 + SUM_BYTES;

/// Bytes of a digest that names an owner or a file.
pub const DIGEST_BYTES: usize = 16;
/// A digest's first bytes.
pub type Digest = [u8; DIGEST_BYTES];

/// What is kept. The numbers are for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum Kind {
    /// A pod: its object, named by its UID.
    #[n(0)]
    Pod,
    /// The marks on the Node, named by it.
    #[n(1)]
    Node,
    /// A ConfigMap.
    #[n(2)]
    ConfigMap,
    /// A Secret, sealed.
    #[n(3)]
    Secret,
    /// A token, sealed.
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
    /// Its content is for nobody's eyes.
    pub fn is_sealed(self) -> bool {
        match self {
            Self::Secret | Self::Token => true,
            Self::Pod | Self::Node | Self::ConfigMap | Self::Services | Self::RuntimeClass | Self::Claim => {
                false
            }
        }
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Kind of the object.
    pub kind: Kind,
    /// Its namespace; empty: none.
    pub namespace: Box<str>,
    /// Its name; a pod's is its UID.
    pub name: Box<str>,
}

impl Name {
    /// All of it as bytes that those of no other name are.
    pub fn as_bytes(&self) -> Vec<u8> {
        let parts = [&[self.kind as u8], self.namespace.as_bytes(), &[0], self.name.as_bytes()];
        parts.concat()
    }
}

/// A file's body. It borrows from the bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Record<'a> {
    /// Of which cluster and node it is.
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
    /// Its content; of a sealed kind the nonce, the content and the tag.
    #[cbor(b(4), with = "minicbor::bytes")]
    pub content: &'a [u8],
}

impl Record<'_> {
    /// Which object it is of.
    pub fn of(&self) -> Name {
        Name { kind: self.kind, namespace: self.namespace.into(), name: self.name.into() }
    }
}

/// The file's bytes.
pub fn to_bytes(record: &Record<'_>) -> Vec<u8> {
    const FIELDS: usize = 64;
    let texts = record.namespace.len() + record.name.len();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + FIELDS + texts + record.content.len());
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.extend_from_slice(&[0; SUM_BYTES]);
    // `Infallible`: a vector takes what it is given.
    let _ = minicbor::encode(record, &mut bytes);
    let sum = crc32(&bytes[HEAD_BYTES..]).to_le_bytes();
    bytes[HEAD_BYTES - SUM_BYTES..HEAD_BYTES].copy_from_slice(&sum);
    bytes
}

/// What the file says; all of it or nothing.
///
/// # Errors
/// When it is not whole, or of a later version.
pub fn from_bytes(bytes: &[u8]) -> Result<Record<'_>, Unreadable> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Unreadable::Damaged)?;
    let (version, rest) = rest.split_first().ok_or(Unreadable::Damaged)?;
    if *version > VERSION {
        return Err(Unreadable::Newer);
    }
    let (sum, body) = rest.split_first_chunk::<SUM_BYTES>().ok_or(Unreadable::Damaged)?;
    let too_long = bytes.len() > KEPT_RECORD_BYTES_MAX;
    if *version != VERSION || too_long || crc32(body) != u32::from_le_bytes(*sum) {
        return Err(Unreadable::Damaged);
    }
    let mut decoder = minicbor::Decoder::new(body);
    let record: Record<'_> = decoder.decode().map_err(|_| Unreadable::Damaged)?;
    if decoder.position() < body.len() { Err(Unreadable::Damaged) } else { Ok(record) }
}
