//! References to images, and the part of a configuration that the store needs. PURE.

use serde_json::Value;

use super::digest::Digest;
use super::record::StoredImage;
use crate::image::name::{ImageName, full_name};
use crate::limits::STORED_LABEL_BYTES_MAX;

/// Fewest digits of an id that stand for the whole.
const ID_DIGITS_MIN: usize = 8;

/// Finds an image as containerd's CRI does: by id, by name, then by the first digits of an id.
pub(super) fn find<'a>(images: &'a [StoredImage], reference: &str) -> Option<&'a StoredImage> {
    let digits = reference.strip_prefix("sha256:").unwrap_or(reference);
    if let Some(digest) = Digest::from_hex(digits) {
        return images.iter().find(|image| image.id == digest);
    }
    let named = full_name(reference).ok().and_then(|name| ImageName::parse(&name).ok()).and_then(|name| {
        let (repository, digest) = (&name.repository, &name.digest);
        if digest.is_empty() {
            let name = format!("{repository}:{}", name.tag);
            images.iter().find(|image| image.tags.iter().any(|tag| tag.name == name))
        } else {
            let name = format!("{repository}@{digest}");
            images.iter().find(|image| image.digests.contains(&name))
        }
    });
    named.or_else(|| {
        let is_hex = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if digits.len() < ID_DIGITS_MIN || !is_hex {
            return None;
        }
        let mut fitting = images.iter().filter(|image| image.id.hex().starts_with(digits));
        // Ambiguous: none.
        fitting.next().filter(|_| fitting.next().is_none())
    })
}

/// What the store needs of a configuration (OCI image-spec `config.md`).
pub(super) struct Config {
    /// `rootfs.diff_ids`, the lowest layer first.
    pub(super) layers: Vec<Digest>,
    /// `config.User`.
    pub(super) user: String,
}

impl Config {
    /// The error is a text that follows the image's name.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let json: Value = serde_json::from_slice(bytes).map_err(|_| "its configuration is no JSON")?;
        let layers = json["rootfs"]["diff_ids"].as_array().map_or(&[][..], Vec::as_slice);
        let layers = layers.iter().map(|id| id.as_str().and_then(Digest::parse));
        let layers: Option<Vec<Digest>> = layers.collect();
        let user = json["config"]["User"].as_str().unwrap_or_default();
        if user.len() > STORED_LABEL_BYTES_MAX {
            return Err("the user in its configuration is too long".to_owned());
        }
        Ok(Self {
            layers: layers
                .ok_or("its configuration has a layer (rootfs.diff_ids) without a sha256 digest")?,
            user: user.to_owned(),
        })
    }
}
