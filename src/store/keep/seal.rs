//! The device's key, and what is sealed by it: ChaCha20-Poly1305 (ring), which needs no help of the processor's, under random
//! nonces of the system. I/O at the key's file alone.
//!
//! The key is 32 random bytes in a file of mode 0600, made when the first Secret is kept, and never told to anybody. Whoever
//! wants it elsewhere (a mount that only this board's TPM opens) moves the file there and leaves a symbolic link: a link that
//! leads nowhere means that the key is away, and no other is made in its place.

use std::io;
use std::path::Path;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::filesystem::read_start;
use crate::filesystem::replace;

const KEY_BYTES: usize = 32;

/// The device's key; its `Debug` shows nothing of it (ring).
#[derive(Debug)]
pub struct Key(LessSafeKey);

impl Key {
    /// The key of that file; `None` = there is no such file, nor a link.
    ///
    /// # Errors
    /// A sentence: it is away, or no key.
    pub fn read(path: &Path) -> Result<Option<Self>, String> {
        if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let bytes =
            read_start(path, KEY_BYTES + 1).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::of(&bytes).map(Some).ok_or_else(|| format!("{}: must have {KEY_BYTES} bytes", path.display()))
    }

    /// A new key in that file, which is not there.
    ///
    /// # Errors
    /// The disk's, or the system has no random bytes.
    pub fn make(path: &Path) -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        random(&mut bytes)?;
        replace(path, &path.with_extension("new"), &bytes)?;
        Self::of(&bytes).ok_or_else(|| io::Error::other("no key"))
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        UnboundKey::new(&CHACHA20_POLY1305, bytes).ok().map(|key| Self(LessSafeKey::new(key)))
    }

    /// The nonce, the sealed content and its tag. `about` has to be the same to open it.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn seal(&self, content: Vec<u8>, about: &[u8]) -> io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce)?;
        let mut sealed = content;
        let tag = self.0.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(about),
            &mut sealed,
        );
        let tag = tag.map_err(|_| io::Error::other("cannot be sealed"))?;
        Ok([&nonce, &*sealed, tag.as_ref()].concat())
    }

    /// The content; nothing when it was sealed by another key, about something else, or was changed.
    pub fn open(&self, sealed: &[u8], about: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut content = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::from(about), &mut content).ok()?.len();
        content.truncate(opened);
        Some(content)
    }
}

fn random(bytes: &mut [u8]) -> io::Result<()> {
    SystemRandom::new().fill(bytes).map_err(|_| io::Error::other("the system has no random bytes"))
}
