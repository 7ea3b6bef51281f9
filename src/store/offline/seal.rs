//! The device's key, and encryption with it: ChaCha20-Poly1305 (ring), which is fast without processor support, with random
//! nonces from the system. I/O only at the key's file.
//!
//! The key is 32 random bytes in a file of mode 0600, created when the first Secret is stored, and never sent anywhere. To
//! store it elsewhere (a mount that only this board's TPM unlocks), move the file there and leave a symbolic link: a dangling
//! link means that the key is not available, and no new one is created.

use std::io;
use std::path::Path;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::filesystem::read_start;
use crate::filesystem::replace;

const KEY_BYTES: usize = 32;

/// The device's key; its `Debug` output does not show it (ring).
#[derive(Debug)]
pub struct Key(LessSafeKey);

impl Key {
    /// Reads the key; `None` = there is neither a file nor a link.
    ///
    /// # Errors
    /// A sentence: the key is not available, or invalid.
    pub fn read(path: &Path) -> Result<Option<Self>, String> {
        if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let bytes =
            read_start(path, KEY_BYTES + 1).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::of(&bytes).map(Some).ok_or_else(|| format!("{}: must have {KEY_BYTES} bytes", path.display()))
    }

    /// Creates a key in that file, which must not exist.
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

    /// Encrypts: the nonce, the ciphertext and its tag. `about` is the associated data, the same for decryption.
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

    /// Decrypts; `None` when it was encrypted with another key or other associated data, or was changed.
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
