//! Indexes, manifests and the part of an image's configuration that a pull needs, OCI's and Docker's. PURE.

use serde::Deserialize;

use super::{Platform, RegistryError, RegistryResult};
use crate::image_store::Digest;
use crate::limits::{LAYER_BYTES_MAX, LAYERS_PER_IMAGE_MAX, REGISTRY_INDEX_ENTRIES_MAX};
use crate::text::quoted;

/// Types of documents that a pull asks for, the preferred first.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json, */*;q=0.1";

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// Manifests by platform.
    Index,
    /// One image.
    Manifest,
    /// Docker's old form, which is not supported.
    Schema1,
}

impl MediaType {
    /// `None`: another type.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split(';').next().unwrap_or_default().trim() {
            "application/vnd.oci.image.index.v1+json"
            | "application/vnd.docker.distribution.manifest.list.v2+json" => Some(Self::Index),
            "application/vnd.oci.image.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v2+json" => Some(Self::Manifest),
            "application/vnd.docker.distribution.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v1+prettyjws" => Some(Self::Schema1),
            _ => None,
        }
    }
}

/// A blob by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its type.
    pub media_type: String,
    /// Digest of its bytes.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The image's configuration.
    pub config: Descriptor,
    /// The layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

/// Manifests by platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    entries: Vec<(Option<Platform>, Descriptor)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    config: Option<Entry>,
    layers: Option<Vec<Entry>>,
    manifests: Option<Vec<Entry>>,
    #[serde(rename = "fsLayers")]
    fs_layers: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    size: i64,
    platform: Option<PlatformEntry>,
}

#[derive(Deserialize)]
struct PlatformEntry {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: String,
}

/// A document that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    Index(Index),
    Manifest(Manifest),
}

/// Parses a document; `said` is the type that the registry gave it.
///
/// # Errors
/// It is damaged, of another kind, or larger than the limits allow.
pub(super) fn parse(bytes: &[u8], said: &str) -> RegistryResult<Fetched> {
    let document: Document = serde_json::from_slice(bytes).map_err(|error| {
        RegistryError::Content(format!("the manifest is no JSON object as expected: {error}"))
    })?;
    let kind = MediaType::parse(&document.media_type).or_else(|| MediaType::parse(said));
    if kind == Some(MediaType::Schema1) || document.fs_layers.is_some() || document.schema_version == 1 {
        return Err(RegistryError::Content(
            "media type \"application/vnd.docker.distribution.manifest.v1+prettyjws\" is no longer supported; rebuild \
             the image with a current tool, or push it again to the registry"
                .to_owned(),
        ));
    }
    // A document that is both could be read as two different images (CVE-2021-41190).
    let is_manifest = document.layers.is_some() || document.config.is_some();
    let is_index = document.manifests.is_some();
    if is_manifest && is_index {
        return Err(RegistryError::Content(
            "the manifest is an index as well: it is ambiguous, and refused".to_owned(),
        ));
    }
    match (kind, document) {
        (Some(MediaType::Manifest) | None, Document { config: Some(config), layers, .. }) => {
            manifest(config, layers.unwrap_or_default()).map(Fetched::Manifest)
        }
        (Some(MediaType::Index) | None, Document { manifests: Some(manifests), .. }) => {
            index(manifests).map(Fetched::Index)
        }
        (Some(MediaType::Manifest | MediaType::Index | MediaType::Schema1) | None, _) => {
            Err(RegistryError::Content(format!(
                "a document of type {} is no image; check the image's name",
                quoted(crate::text::start_of(said, 128))
            )))
        }
    }
}

fn manifest(config: Entry, layers: Vec<Entry>) -> RegistryResult<Manifest> {
    if layers.len() > LAYERS_PER_IMAGE_MAX {
        let count = layers.len();
        return Err(RegistryError::Content(format!(
            "the image has {count} layers, at most {LAYERS_PER_IMAGE_MAX} are supported"
        )));
    }
    let config = descriptor(config)?;
    let layers = layers.into_iter().map(descriptor).collect::<RegistryResult<Vec<_>>>()?;
    if let Some(layer) = layers.iter().find(|layer| layer.media_type.ends_with("+encrypted")) {
        return Err(RegistryError::Content(format!(
            "layer {} is encrypted, which is not supported",
            layer.digest
        )));
    }
    if let Some(layer) = layers.iter().find(|layer| layer.size > LAYER_BYTES_MAX) {
        return Err(RegistryError::Content(format!(
            "layer {} has {} bytes: too many",
            layer.digest, layer.size
        )));
    }
    Ok(Manifest { config, layers })
}

fn index(manifests: Vec<Entry>) -> RegistryResult<Index> {
    if manifests.len() > REGISTRY_INDEX_ENTRIES_MAX {
        let count = manifests.len();
        return Err(RegistryError::Content(format!(
            "the index has {count} manifests, at most {REGISTRY_INDEX_ENTRIES_MAX} are supported"
        )));
    }
    let entries = manifests.into_iter().map(|mut entry| {
        let platform = entry.platform.take().filter(|platform| !platform.architecture.is_empty());
        let platform = platform.map(|p| Platform::new(&p.os, &p.architecture, &p.variant));
        Ok((platform, descriptor(entry)?))
    });
    Ok(Index { entries: entries.collect::<RegistryResult<_>>()? })
}

fn descriptor(entry: Entry) -> RegistryResult<Descriptor> {
    let Entry { media_type, digest, size, platform: _ } = entry;
    let shown = || quoted(crate::text::start_of(&digest, 128));
    let size = u64::try_from(size)
        .map_err(|_| RegistryError::Content(format!("the manifest gives {} the size {size}", shown())))?;
    let digest = Digest::parse(&digest).ok_or_else(|| {
        RegistryError::Content(format!("the manifest holds the digest {}; only sha256 is supported", shown()))
    })?;
    Ok(Descriptor { media_type, digest, size })
}

impl Index {
    /// The manifest for this platform; one without a platform only when no other suits.
    ///
    /// # Errors
    /// There is none; names the platforms that there are.
    pub fn choose(&self, host: &Platform) -> RegistryResult<&Descriptor> {
        let suits = |(platform, descriptor): &(Option<Platform>, Descriptor)| {
            // Other documents that an index may hold have a type of their own.
            if MediaType::parse(&descriptor.media_type).is_none() && !descriptor.media_type.is_empty() {
                return None;
            }
            platform.as_ref().map_or(Some(usize::MAX), |platform| host.rank(platform))
        };
        let ranked = self.entries.iter().filter_map(|entry| Some((suits(entry)?, &entry.1)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, descriptor)| descriptor).ok_or_else(|| {
            let mut offered: Vec<String> =
                self.entries.iter().filter_map(|(platform, _)| platform.as_ref()).map(Platform::shown).collect();
            offered.retain(|platform| !platform.starts_with("unknown/"));
            offered.truncate(16);
            RegistryError::Content(format!(
                "no match for platform in manifest: this node is {}, the image is for {}; use an image for this platform",
                host.shown(),
                if offered.is_empty() { "none".to_owned() } else { offered.join(", ") }
            ))
        })
    }
}

#[derive(Deserialize)]
struct Config {
    rootfs: Option<Rootfs>,
}

#[derive(Deserialize)]
struct Rootfs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// Digests of the layers' archives, uncompressed, of an image's configuration.
///
/// # Errors
/// It is no image's configuration, or has not as many layers as the manifest.
pub(super) fn diff_ids(config: &[u8], layers: usize) -> RegistryResult<Vec<Digest>> {
    let refused = |why: String| {
        RegistryError::Content(format!("the image's configuration {why}; build the image again"))
    };
    let config: Config =
        serde_json::from_slice(config).map_err(|error| refused(format!("is damaged: {error}")))?;
    let Some(rootfs) = config.rootfs else {
        return Err(RegistryError::Content(
            "it is an artifact and no image: its configuration has no rootfs".to_owned(),
        ));
    };
    if rootfs.diff_ids.len() != layers {
        return Err(refused(format!("names {} layers, the manifest {layers}", rootfs.diff_ids.len())));
    }
    let parse =
        |text: &String| Digest::parse(text).ok_or_else(|| refused("holds a digest that is none".to_owned()));
    rootfs.diff_ids.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";

    fn digest(of: &str) -> String {
        Digest::of(of.as_bytes()).to_string()
    }

    #[test]
    fn documents_that_are_no_image_are_refused() {
        let one = digest("one");
        let config = format!(r#"{{"mediaType": "x", "digest": "{one}", "size": 1}}"#);
        let many = vec![config.clone(); LAYERS_PER_IMAGE_MAX + 1].join(",");
        for (text, said, error) in [
            ("[", DOCKER, "no JSON object"),
            (r#"{"schemaVersion": 1}"#, "", "is no longer supported; rebuild"),
            ("{}", "application/vnd.docker.distribution.manifest.v1+prettyjws", "is no longer supported"),
            (&format!(r#"{{"config": {config}, "layers": [], "manifests": []}}"#), "", "ambiguous"),
            ("{}", "text/html", r#"a document of type "text/html" is no image"#),
            (&format!(r#"{{"config": {config}, "layers": []}}"#), INDEX, "is no image"),
            (&format!(r#"{{"config": {config}, "layers": [{many}]}}"#), DOCKER, "at most"),
            (r#"{"config": {"digest": "md5:1", "size": 1}}"#, DOCKER, r#""md5:1"; only sha256"#),
            (&format!(r#"{{"config": {{"digest": "{one}", "size": -1}}}}"#), DOCKER, "the size -1"),
            (
                &format!(
                    r#"{{"config": {config}, "layers": [{{"mediaType": "a+encrypted", "digest": "{one}"}}]}}"#
                ),
                DOCKER,
                "is encrypted",
            ),
        ] {
            let found = parse(text.as_bytes(), said).unwrap_err().to_string();
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn an_index_offers_its_platforms() {
        let entry = |name: &str, platform: &str| {
            let digest = digest(name);
            format!(r#"{{"mediaType": "{DOCKER}", "digest": "{digest}", "size": 9, "platform": {platform}}}"#)
        };
        let text = format!(
            r#"{{"schemaVersion": 2, "manifests": [{}, {}, {}, {}]}}"#,
            entry("unknown", r#"{"os": "unknown", "architecture": "unknown"}"#),
            entry("v6", r#"{"os": "linux", "architecture": "arm", "variant": "v6"}"#),
            entry("v7", r#"{"os": "linux", "architecture": "arm", "variant": "v7"}"#),
            entry("amd64", r#"{"os": "linux", "architecture": "amd64"}"#),
        );
        let Fetched::Index(index) = parse(text.as_bytes(), "").unwrap() else { panic!("no index") };
        let chosen = |platform: &Platform| index.choose(platform).map(|found| found.digest.to_string());
        assert_eq!(chosen(&Platform::new("linux", "arm", "v7")).unwrap(), digest("v7"));
        assert_eq!(chosen(&Platform::new("linux", "arm", "v6")).unwrap(), digest("v6"));
        let error = chosen(&Platform::new("linux", "riscv64", "")).unwrap_err().to_string();
        assert!(error.contains(
            "this node is linux/riscv64, the image is for linux/arm/v6, linux/arm/v7, linux/amd64"
        ));
    }

    #[test]
    fn a_configuration_has_a_digest_for_each_layer() {
        let config = format!(r#"{{"rootfs": {{"type": "layers", "diff_ids": ["{}"]}}}}"#, digest("a"));
        assert_eq!(diff_ids(config.as_bytes(), 1).unwrap(), [Digest::of(b"a")]);
        assert!(
            diff_ids(config.as_bytes(), 2)
                .unwrap_err()
                .to_string()
                .contains("names 1 layers, the manifest 2")
        );
        assert!(diff_ids(b"{}", 0).unwrap_err().to_string().contains("artifact"));
        assert!(diff_ids(b"no", 0).unwrap_err().to_string().contains("damaged"));
    }
}
