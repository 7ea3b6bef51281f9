//! SHA-256 digests of blobs and layers. PURE.

use std::fmt;

use minicbor::{Decode, Encode};
use sha2::digest::common::hazmat::SerializableState as _;
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "sha256:";

/// `sha256:` and 64 digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Digest(#[cbor(n(0), with = "minicbor::bytes")] [u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Parses `sha256:…`, in lower case; no other algorithm.
    pub fn parse(text: &str) -> Option<Self> {
        Self::from_hex(text.strip_prefix(ALGORITHM)?)
    }

    /// Parses 64 digits in lower case.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let hex: &[u8; 64] = hex.as_bytes().try_into().ok()?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// The digest's bytes.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The 64 digits without the algorithm: a file's name.
    pub fn hex(&self) -> String {
        crate::text::hex(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A digest of bytes that arrive, which can be put into a restart point.
#[derive(Clone, Default)]
pub(super) struct Hasher(Sha256);

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }

    /// Its state, to go on later.
    pub(super) fn state(&self) -> Vec<u8> {
        self.0.serialize().to_vec()
    }

    /// `None` when it is no state.
    pub(super) fn of_state(state: &[u8]) -> Option<Self> {
        Sha256::deserialize(state.try_into().ok()?).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_parsed_and_shown_and_a_hash_goes_on_where_it_stopped() {
        let digest = Digest::of(b"abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.to_string(), Digest::parse(text)), (text.to_owned(), Some(digest)));
        for wrong in ["", "sha256:", "sha512:00", &text[1..], &text.to_ascii_uppercase(), &text[..70]] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
        let bytes = vec![7; 1000];
        let mut first = Hasher::default();
        first.update(&bytes[..333]);
        let mut second = Hasher::of_state(&first.state()).unwrap();
        second.update(&bytes[333..]);
        assert_eq!(second.finish(), Digest::of(&bytes));
        assert!(Hasher::of_state(b"short").is_none());
        let cbor = minicbor::to_vec(digest).unwrap();
        assert_eq!((cbor.len(), minicbor::decode::<Digest>(&cbor).unwrap()), (34, digest));
    }
}
