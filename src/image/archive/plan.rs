//! Plans the import of an image archive: which blobs, and under which image names. PURE but for the reads it requests and
//! [`Platform::here`].
//!
//! ```text
//!     OCI layout     index.json ─► (index of platforms ─►) manifest ─► configuration, layers
//! |     docker save    manifest.json ─► configuration, layers; the manifest is built as in containerd's importer
//! ```
//!
//! An archive with both is read as an OCI layout. Of an index, the manifest that matches the node best is used, and the
//! others need not be in the archive. Digests are checked when the blobs are stored; here only that every blob is present.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::tar::{Extent, Index};
use crate::image::name::full_name;
use crate::limits::{IMAGE_JSON_BYTES_MAX, IMAGES_PER_ARCHIVE_MAX, LAYERS_PER_IMAGE_MAX};
use crate::model::SortedSet;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// Labels with which containerd's garbage collector finds the blobs that a blob refers to (`ChildGCLabels`).
const REFERS_TO: &str = "containerd.io/gc.ref.content.";

/// A platform of images: `linux` and an architecture by its Go name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// `amd64`, `arm64`, `arm` …
    pub architecture: &'static str,
    /// For `arm`: 5 to 8; otherwise 0.
    pub variant: u8,
}

impl Platform {
    /// The platform of this build on this machine.
    pub fn here() -> Self {
        Self::on(&rustix::system::uname().machine().to_string_lossy())
    }

    /// The same, on a machine whose `uname -m` is `machine`.
    fn on(machine: &str) -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            other => other,
        };
        let variant = match architecture {
            "arm" if machine.starts_with("armv6") => 6,
            "arm" => 7,
            _ => 0,
        };
        Self { architecture, variant }
    }

    /// How well an image for that platform matches; lower is better, `None` when it does not run here.
    fn rank(&self, os: &str, architecture: &str, variant: &str) -> Option<u8> {
        if os != "linux" {
            return None;
        }
        // Aliases, as in `platforms.Normalize`.
        let architecture = match architecture {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            "armhf" | "armel" => "arm",
            other => other,
        };
        if architecture != self.architecture {
            return None;
        }
        if architecture != "arm" {
            // arm64 has only v8 here; an amd64 image that needs no level declares none.
            return matches!(variant, "" | "v1" | "v8").then_some(0);
        }
        let wanted = match variant {
            "" => 7,
            variant => variant.strip_prefix('v')?.parse::<u8>().ok()?,
        };
        self.variant.checked_sub(wanted)
    }
}

/// `containerd.types.Descriptor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The media type.
    pub media_type: String,
    /// `sha256:…`.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
}

/// Source of a blob's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the archive.
    InArchive(Extent),
    /// Generated, in memory.
    Made(Vec<u8>),
}

/// A blob to store by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// `sha256:…` of the stored bytes.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// The source of its bytes.
    pub data: Data,
    /// References to other blobs, which would be garbage without these labels.
    pub labels: BTreeMap<String, String>,
}

/// An image name to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedImage {
    /// The full name: `docker.io/library/busybox:1`.
    pub name: String,
    /// Its manifest or index.
    pub target: Descriptor,
}

/// Blobs to upload and names to create for an archive, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Referenced blobs first; no duplicates.
    pub blobs: Vec<Blob>,
    /// No duplicate names.
    pub images: Vec<NamedImage>,
}

impl Plan {
    /// Keeps the images for which `keep` is true, and drops the others with the blobs that only they need.
    pub fn retain(&mut self, keep: &mut dyn FnMut(&str) -> bool) {
        self.images.retain(|image| keep(&image.name));
        let mut needed: SortedSet<&str> = self.images.iter().map(|image| &*image.target.digest).collect();
        // A blob comes after the blobs that it refers to.
        for blob in self.blobs.iter().rev() {
            if needed.contains(&*blob.digest) {
                needed.extend(blob.labels.values().map(String::as_str));
            }
        }
        let needed: SortedSet<String> = needed.into_iter().map(str::to_owned).collect();
        self.blobs.retain(|blob| needed.contains(&blob.digest));
    }
}

/// Reads a piece of the archive.
pub type Reads<'a> = dyn FnMut(Extent) -> Result<Vec<u8>, String> + 'a;

/// Plans the import of an archive.
///
/// # Errors
/// The error and its remedy, as a text that follows the archive's name.
pub fn plan(index: &Index, platform: &Platform, read: &mut Reads<'_>) -> Result<Plan, String> {
    let mut planner = Planner { index, platform, read, plan: Plan::default() };
    if index.file("oci-layout").is_some() && index.file("index.json").is_some() {
        planner.oci()?;
    } else if let Some(manifest) = index.file("manifest.json") {
        planner.docker(manifest)?;
    } else {
        let forms = "pack it with docker save, podman save, skopeo copy oci-archive: or ctr images export";
        return Err(format!("is no image archive: it has neither index.json nor manifest.json; {forms}"));
    }
    if planner.plan.images.is_empty() {
        return Err("has no image with a name; save it by its name and tag".to_owned());
    }
    Ok(planner.plan)
}

struct Planner<'a, 'r> {
    index: &'a Index,
    platform: &'a Platform,
    read: &'a mut Reads<'r>,
    plan: Plan,
}

impl Planner<'_, '_> {
    // ---- OCI layout ------------------------------------------------------------------------------------

    fn oci(&mut self) -> Result<(), String> {
        let at = self.index.file("index.json").ok_or("has no index.json")?;
        let top = self.json("index.json", at)?;
        // By name, with the rank of its platform: two platforms of one image may be side by side.
        let mut named: Vec<(String, u8, &Value)> = Vec::new();
        let mut other_platform = None;
        for entry in list(&top, "manifests") {
            let Some(name) = name_of(entry)? else { continue };
            let Some(rank) = self.rank(entry) else {
                other_platform.get_or_insert(name);
                continue;
            };
            match named.iter().position(|(known, ..)| *known == name) {
                Some(at) if named[at].1 > rank => named[at] = (name, rank, entry),
                Some(_) => {}
                None if named.len() == IMAGES_PER_ARCHIVE_MAX => return Err(too_many_images()),
                None => named.push((name, rank, entry)),
            }
        }
        if let (true, Some(name)) = (named.is_empty(), other_platform) {
            return Err(format!("{name} is for another platform than {}", self.platform_name()));
        }
        for (name, _, entry) in named {
            let target =
                descriptor(entry).ok_or_else(|| format!("{name}: its entry in index.json is damaged"))?;
            self.tree(&name, &target, 0)?;
            self.plan.images.push(NamedImage { name, target });
        }
        Ok(())
    }

    /// Adds an index or manifest and everything that it refers to.
    fn tree(&mut self, image: &str, of: &Descriptor, depth: usize) -> Result<(), String> {
        if self.is_planned(&of.digest) {
            return Ok(());
        }
        let at = self.blob(image, of)?;
        let json = self.json(&of.digest, at)?;
        let media_type = json["mediaType"].as_str().filter(|kind| !kind.is_empty()).unwrap_or(&of.media_type);
        let mut labels = BTreeMap::new();
        match media_type {
            OCI_INDEX | DOCKER_LIST if depth == 0 => {
                let fitting =
                    list(&json, "manifests").iter().filter_map(|entry| Some((self.rank(entry)?, entry)));
                let best = fitting.min_by_key(|(rank, _)| *rank).and_then(|(_, entry)| descriptor(entry));
                let best = best
                    .ok_or_else(|| format!("{image} has nothing for this node, {}", self.platform_name()))?;
                self.tree(image, &best, depth + 1)?;
                labels.insert(format!("{REFERS_TO}m.0"), best.digest);
            }
            OCI_MANIFEST | DOCKER_MANIFEST => {
                let damaged = || format!("{image}: its manifest {} is damaged", of.digest);
                let config = descriptor(&json["config"]).ok_or_else(damaged)?;
                let layers: Option<Vec<Descriptor>> = list(&json, "layers").iter().map(descriptor).collect();
                let layers = layers.ok_or_else(damaged)?;
                if layers.len() > LAYERS_PER_IMAGE_MAX {
                    return Err(too_many_layers(image));
                }
                for layer in &layers {
                    let at = self.blob(image, layer)?;
                    self.put(layer, Data::InArchive(at), BTreeMap::new());
                }
                let at = self.blob(image, &config)?;
                let read = self.json(&config.digest, at)?;
                self.check_platform(image, &read)?;
                self.put(&config, Data::InArchive(at), BTreeMap::new());
                labels = references(&config, &layers);
            }
            other => return Err(format!("{image} is a {other:?}, which is no image")),
        }
        self.put(of, Data::InArchive(at), labels);
        Ok(())
    }

    /// The blob's place in the layout.
    fn blob(&self, image: &str, of: &Descriptor) -> Result<Extent, String> {
        let at = self.index.file(&format!("blobs/{}", of.digest.replacen(':', "/", 1)));
        match at {
            Some(at) if at.size == of.size => Ok(at),
            Some(at) => Err(format!(
                "{image}: {} has {} bytes where its manifest says {}; copy the archive again",
                of.digest, at.size, of.size
            )),
            None => Err(format!("{image}: {} is missing; save the image with all its layers", of.digest)),
        }
    }

    // ---- docker save -----------------------------------------------------------------------------------

    fn docker(&mut self, manifest: Extent) -> Result<(), String> {
        let top = self.json("manifest.json", manifest)?;
        let entries = top.as_array().ok_or("has a manifest.json that is no list")?;
        for entry in entries {
            let tags = list(entry, "RepoTags").iter().filter_map(Value::as_str);
            let names: Result<Vec<String>, String> = tags.map(full_name).collect();
            let names = names?;
            // An image without a name cannot be referred to.
            let Some(image) = names.first() else { continue };
            let target = self.docker_image(image, entry)?;
            for name in names {
                if self.plan.images.iter().any(|known| known.name == name) {
                    continue;
                }
                if self.plan.images.len() == IMAGES_PER_ARCHIVE_MAX {
                    return Err(too_many_images());
                }
                self.plan.images.push(NamedImage { name, target: target.clone() });
            }
        }
        Ok(())
    }

    fn docker_image(&mut self, image: &str, entry: &Value) -> Result<Descriptor, String> {
        let missing = |what: &str| format!("{image}: {what:?} is missing; save the image again");
        let file = entry["Config"].as_str().ok_or_else(|| missing("Config"))?;
        let at = self.index.file(file).ok_or_else(|| missing(file))?;
        let bytes = self.bytes(file, at)?;
        let json: Value = serde_json::from_slice(&bytes).map_err(|_| format!("{file:?} is no JSON"))?;
        self.check_platform(image, &json)?;
        let config = Descriptor { media_type: DOCKER_CONFIG.into(), digest: sha256(&bytes), size: at.size };
        self.put(&config, Data::InArchive(at), BTreeMap::new());

        let (files, diff_ids) = (list(entry, "Layers"), list(&json["rootfs"], "diff_ids"));
        if files.len() != diff_ids.len() {
            let (files, ids) = (files.len(), diff_ids.len());
            return Err(format!(
                "{image} has {files} layers where its configuration says {ids}; save the image again"
            ));
        }
        if files.len() > LAYERS_PER_IMAGE_MAX {
            return Err(too_many_layers(image));
        }
        let mut layers = Vec::with_capacity(files.len());
        for (file, diff_id) in files.iter().zip(diff_ids) {
            let file = file.as_str().unwrap_or_default();
            let at = self.index.file(file).ok_or_else(|| missing(file))?;
            let layer = self.docker_layer(at, diff_id.as_str().unwrap_or_default())?;
            self.put(&layer, Data::InArchive(at), BTreeMap::new());
            layers.push(layer);
        }
        let manifest = docker_manifest(&config, &layers).into_bytes();
        let (digest, size) = (sha256(&manifest), manifest.len() as u64);
        let target = Descriptor { media_type: DOCKER_MANIFEST.into(), digest, size };
        self.put(&target, Data::Made(manifest), references(&config, &layers));
        Ok(target)
    }

    /// A layer as it is in the archive. The configuration has the digest of the uncompressed layer; a compressed one is
    /// read.
    fn docker_layer(&mut self, at: Extent, diff_id: &str) -> Result<Descriptor, String> {
        let begin = (self.read)(Extent { size: at.size.min(4), ..at })?;
        if !(begin.starts_with(b"\x1f\x8b") || begin == b"\x28\xb5\x2f\xfd") {
            if !is_digest(diff_id) {
                return Err("has a configuration with a damaged digest; save the image again".to_owned());
            }
            return Ok(Descriptor {
                media_type: DOCKER_LAYER.into(),
                digest: diff_id.to_owned(),
                size: at.size,
            });
        }
        let mut hash = Sha256::new();
        let mut done = 0;
        while done < at.size {
            let size = (at.size - done).min(IMAGE_JSON_BYTES_MAX as u64);
            hash.update((self.read)(Extent { offset: at.offset + done, size })?);
            done += size;
        }
        let digest = hex(&hash.finalize());
        Ok(Descriptor { media_type: DOCKER_LAYER_GZIP.into(), digest, size: at.size })
    }

    // ---- both ------------------------------------------------------------------------------------------

    fn put(&mut self, of: &Descriptor, data: Data, labels: BTreeMap<String, String>) {
        if !self.is_planned(&of.digest) {
            self.plan.blobs.push(Blob { digest: of.digest.clone(), size: of.size, data, labels });
        }
    }

    fn is_planned(&self, digest: &str) -> bool {
        self.plan.blobs.iter().any(|blob| blob.digest == digest)
    }

    fn bytes(&mut self, name: &str, at: Extent) -> Result<Vec<u8>, String> {
        if at.size > IMAGE_JSON_BYTES_MAX as u64 {
            return Err(format!("{name} has {} bytes; at most {IMAGE_JSON_BYTES_MAX} are read", at.size));
        }
        (self.read)(at)
    }

    fn json(&mut self, name: &str, at: Extent) -> Result<Value, String> {
        serde_json::from_slice(&self.bytes(name, at)?)
            .map_err(|_| format!("{name} is no JSON; save the image again"))
    }

    /// The rank of an entry of an index; one without a platform comes last.
    fn rank(&self, entry: &Value) -> Option<u8> {
        let platform = &entry["platform"];
        let text = |field: &str| platform[field].as_str().unwrap_or_default();
        if text("architecture").is_empty() {
            return Some(u8::MAX);
        }
        self.platform.rank(text("os"), text("architecture"), text("variant"))
    }

    /// The platform in a configuration, if it has one, must match the node.
    fn check_platform(&self, image: &str, config: &Value) -> Result<(), String> {
        let text = |field: &str| config[field].as_str().unwrap_or_default();
        let (os, architecture, variant) = (text("os"), text("architecture"), text("variant"));
        // Many configurations do not set the arm variant.
        let variant_or = if variant.is_empty() && architecture == "arm" { "v5" } else { variant };
        if architecture.is_empty() || self.platform.rank(os, architecture, variant_or).is_some() {
            return Ok(());
        }
        let slash = if variant.is_empty() { "" } else { "/" };
        let here = self.platform_name();
        Err(format!("{image} is for {os}/{architecture}{slash}{variant}, and this node is {here}"))
    }

    fn platform_name(&self) -> String {
        match self.platform.variant {
            0 => format!("linux/{}", self.platform.architecture),
            variant => format!("linux/{}/v{variant}", self.platform.architecture),
        }
    }
}

fn list<'v>(of: &'v Value, field: &str) -> &'v [Value] {
    of[field].as_array().map_or(&[], Vec::as_slice)
}

/// `imageName`: containerd's own annotation has the full name, OCI's a name or only a tag.
fn name_of(entry: &Value) -> Result<Option<String>, String> {
    let annotation = |key: &str| entry["annotations"][key].as_str().filter(|name| !name.is_empty());
    if let Some(name) = annotation("io.containerd.image.name") {
        return full_name(name).map(Some);
    }
    match annotation("org.opencontainers.image.ref.name") {
        None => Ok(None),
        Some(name) if name.contains([':', '/']) => full_name(name).map(Some),
        Some(tag) => {
            Err(format!("has an image with no more of a name than {tag:?}; save it by its name and tag"))
        }
    }
}

fn descriptor(value: &Value) -> Option<Descriptor> {
    let digest = value["digest"].as_str().filter(|digest| is_digest(digest))?.to_owned();
    let media_type = value["mediaType"].as_str().unwrap_or_default().to_owned();
    Some(Descriptor { media_type, digest, size: value["size"].as_u64()? })
}

/// Only sha256 is supported.
fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The labels of a manifest (`SetChildrenLabels`).
fn references(config: &Descriptor, layers: &[Descriptor]) -> BTreeMap<String, String> {
    let layers = layers.iter().enumerate();
    let layers = layers.map(|(index, layer)| (format!("{REFERS_TO}l.{index}"), layer.digest.clone()));
    layers.chain([(format!("{REFERS_TO}config"), config.digest.clone())]).collect()
}

/// Byte for byte what containerd's importer generates, so that the same archive results in the same image there.
fn docker_manifest(config: &Descriptor, layers: &[Descriptor]) -> String {
    let one = |of: &Descriptor| {
        format!(r#"{{"mediaType":"{}","digest":"{}","size":{}}}"#, of.media_type, of.digest, of.size)
    };
    let (config, layers) = (one(config), layers.iter().map(one).collect::<Vec<_>>().join(","));
    format!(r#"{{"schemaVersion":2,"mediaType":"{DOCKER_MANIFEST}","config":{config},"layers":[{layers}]}}"#)
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(hash: &[u8]) -> String {
    format!("sha256:{}", crate::text::hex(hash))
}

fn too_many_images() -> String {
    format!("has more than {IMAGES_PER_ARCHIVE_MAX} images; put the others into another archive")
}

fn too_many_layers(image: &str) -> String {
    format!("{image} has more than {LAYERS_PER_IMAGE_MAX} layers")
}

#[cfg(test)]
mod tests;
