//! Where a pull puts what it fetches: the image store, or a store of the tests.

use std::fmt;

use super::Descriptor;
use crate::image_store::Digest;

/// Why a sink or a store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkError {
    /// The bytes are not those of the digest: they are fetched once more.
    Digest(String),
    /// The content is refused. Once its digest was verified it would be again.
    Refused(String),
    /// The disk failed; a later pull may succeed.
    Failed(String),
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest(why) | Self::Refused(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

/// A layer that arrives. What it has received stays when it is dropped, as far as the store keeps it.
#[allow(async_fn_in_trait, reason = "all tasks run on one thread, so no Send bound is wanted")]
pub trait BlobSink {
    /// Bytes that it has; the next ones follow after them.
    fn offset(&self) -> u64;
    /// Takes the next bytes.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError>;
    /// Forgets all bytes: the offset is zero again.
    async fn restart(&mut self) -> Result<(), SinkError>;
    /// All bytes are there: verifies the digest, and makes the layer visible. After [`SinkError::Digest`] it can be restarted.
    async fn finish(&mut self) -> Result<(), SinkError>;
}

/// An image whose parts are all there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledImage {
    /// `docker.io/library/busybox`.
    pub name: String,
    /// Empty when the image was asked for by digest only.
    pub tag: String,
    /// Digest that the name refers to: of the index, if there is one. It is the one of `name@digest`.
    pub target: Digest,
    /// Digest of the platform's manifest.
    pub manifest_digest: Digest,
    /// The platform's manifest.
    pub manifest: Vec<u8>,
    /// Digest of the configuration: the image's id.
    pub config_digest: Digest,
    /// The configuration.
    pub config: Vec<u8>,
    /// The layers with the digests of their archives, the lowest first.
    pub layers: Vec<(Descriptor, Digest)>,
}

/// A store of images.
#[allow(async_fn_in_trait, reason = "all tasks run on one thread, so no Send bound is wanted")]
pub trait BlobStore {
    /// Its sinks.
    type Sink: BlobSink;
    /// Gives the image with that target (`name@target`) the tag too, when it is there with all its parts; returns its id.
    async fn existing(&self, name: &str, tag: &str, target: Digest) -> Result<Option<String>, SinkError>;
    /// A sink for the layer; `None` when the layer is there.
    async fn layer(&self, layer: &Descriptor, diff_id: Digest) -> Result<Option<Self::Sink>, SinkError>;
    /// Makes the image visible; returns its id.
    async fn commit(&self, image: PulledImage) -> Result<String, SinkError>;
}
