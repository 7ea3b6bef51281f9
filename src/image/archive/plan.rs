//! What of an image archive goes to the runtime, and under which names. PURE but for the reads it asks for.
//!
//! ```text
//!     OCI layout     index.json ─► (index of platforms ─►) manifest ─► configuration, layers
//!     docker save    manifest.json ─► configuration, layers; the manifest is made as containerd's importer makes it
//! ```
//!
//! An archive with both is read as an OCI layout. Of an index, the manifest that fits the node best counts, and the others
//! need not be in the archive. Digests are checked by whoever stores the blobs; here is checked that everything is there.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::tar::{Extent, Index};
use crate::image::name::full_name;
use crate::limits::{IMAGE_JSON_BYTES_MAX, IMAGES_PER_ARCHIVE_MAX, LAYERS_PER_IMAGE_MAX};

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// Labels by which containerd's garbage collection finds what a blob refers to (`ChildGCLabels`).
const REFERS_TO: &str = "containerd.io/gc.ref.content.";

/// What images are for: `linux` and an architecture as Go names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// `amd64`, `arm64`, `arm` …
    pub architecture: &'static str,
    /// For `arm`: 5 to 8. For others 0.
    pub variant: u8,
}

impl Platform {
    /// The platform of this build, on a machine that calls itself `machine` (`uname -m`).
    pub fn here(machine: &str) -> Self {
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

    /// How well an image for that platform fits; lower is better, `None` when it does not run here.
    fn rank(&self, os: &str, architecture: &str, variant: &str) -> Option<u8> {
        if os != "linux" {
            return None;
        }
        // What `platforms.Normalize` takes to be meant.
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
            // arm64 has v8 only here; amd64's levels are said by no image that needs none.
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
    /// Its media type.
    pub media_type: String,
    /// `sha256:…`.
    pub digest: String,
    /// In bytes.
    pub size: u64,
}

/// Where a blob's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the archive.
    InArchive(Extent),
    /// Here.
    Made(Vec<u8>),
}

/// Something to store by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// `sha256:…`; what is stored must have it.
    pub digest: String,
    /// In bytes.
    pub size: u64,
    /// Its bytes.
    pub data: Data,
    /// What it refers to: without these labels that would be garbage.
    pub labels: BTreeMap<String, String>,
}

/// A name for what was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedImage {
    /// Complete: `docker.io/library/busybox:1`.
    pub name: String,
    /// Its manifest or index.
    pub target: Descriptor,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What others refer to comes first; none twice.
    pub blobs: Vec<Blob>,
    /// No name twice.
    pub images: Vec<NamedImage>,
}

/// Reads so many bytes of the archive.
pub type Reads<'a> = dyn FnMut(Extent) -> Result<Vec<u8>, String> + 'a;

/// What of the archive goes to the runtime.
///
/// # Errors
/// What is wrong with it and the mend, to be read behind its name.
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
        // By name, with how well it fits: two platforms of one image may stand side by side.
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

    /// Everything below an index or manifest, and itself.
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

    /// Where a blob stands in the layout.
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
            // What has no name is found by nobody.
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

    /// A layer as it is in the archive. The configuration has the digest of an unpacked one; a packed one is read.
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

    /// How well an entry of an index fits; one that says nothing about it comes last.
    fn rank(&self, entry: &Value) -> Option<u8> {
        let platform = &entry["platform"];
        let text = |field: &str| platform[field].as_str().unwrap_or_default();
        if text("architecture").is_empty() {
            return Some(u8::MAX);
        }
        self.platform.rank(text("os"), text("architecture"), text("variant"))
    }

    /// A configuration says what the image is for, if anything does.
    fn check_platform(&self, image: &str, config: &Value) -> Result<(), String> {
        let text = |field: &str| config[field].as_str().unwrap_or_default();
        let (os, architecture, variant) = (text("os"), text("architecture"), text("variant"));
        // Which arm, many configurations do not say.
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

/// `imageName`: containerd's own annotation has the whole name, OCI's a name or a tag alone.
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

/// The one algorithm that everybody uses.
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

/// Byte for byte what containerd's importer makes, so that the same archive is the same image there.
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
    use std::fmt::Write as _;
    hash.iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn too_many_images() -> String {
    format!("has more than {IMAGES_PER_ARCHIVE_MAX} images; put the others into another archive")
}

fn too_many_layers(image: &str) -> String {
    format!("{image} has more than {LAYERS_PER_IMAGE_MAX} layers")
}

#[cfg(test)]
mod tests {
    use super::super::tar::{Bytes, tar};
    use super::*;
    use serde_json::json;

    const ARM64: Platform = Platform { architecture: "arm64", variant: 0 };

    fn planned(archive: &Bytes, platform: &Platform) -> Result<Plan, String> {
        plan(&archive.index()?, platform, &mut |at| Ok(archive.read(at)))
    }

    /// Files by name; blobs by digest.
    #[derive(Clone, Default)]
    struct Layout(Vec<(String, Vec<u8>)>);

    impl Layout {
        fn add(&mut self, name: &str, value: &Value) {
            self.0.push((name.to_owned(), value.to_string().into_bytes()));
        }

        fn blob(&mut self, kind: &str, bytes: &[u8]) -> Value {
            let digest = sha256(bytes);
            let name = format!("blobs/{}", digest.replace(':', "/"));
            if !self.0.iter().any(|(known, _)| *known == name) {
                self.0.push((name, bytes.to_vec()));
            }
            json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
        }

        /// A manifest for that architecture with one layer, and its descriptor.
        fn manifest(&mut self, os: &str, architecture: &str, variant: &str) -> Value {
            let config = json!({"os": os, "architecture": architecture, "variant": variant});
            let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
            let layer = self.blob("application/vnd.oci.image.layer.v1.tar+gzip", b"a layer");
            let manifest =
                json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [layer]});
            let mut descriptor = self.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
            descriptor["platform"] = json!({"os": os, "architecture": architecture, "variant": variant});
            descriptor
        }

        fn archive(&self) -> Bytes {
            let files: Vec<(&str, &[u8])> = self.0.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
            tar(&files)
        }

        fn planned(&mut self, manifests: &[Value], platform: &Platform) -> Result<Plan, String> {
            self.add("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}));
            self.add("index.json", &json!({"schemaVersion": 2, "manifests": manifests}));
            planned(&self.archive(), platform)
        }
    }

    fn named(mut descriptor: Value, name: &str) -> Value {
        descriptor["annotations"] = json!({"io.containerd.image.name": name});
        descriptor
    }

    fn names(plan: &Plan) -> Vec<&str> {
        plan.images.iter().map(|image| image.name.as_str()).collect()
    }

    #[test]
    fn an_oci_layout_is_stored_from_its_leaves_up() {
        let mut layout = Layout::default();
        let arm64 = layout.manifest("linux", "arm64", "v8");
        let amd64 = layout.manifest("linux", "amd64", "");
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [amd64, arm64,
            {"digest": sha256(b"attestation"), "size": 1, "platform": {"os": "unknown", "architecture": "unknown"}}]});
        let index = layout.blob(OCI_INDEX, index.to_string().as_bytes());
        let plan = layout
            .planned(&[named(index.clone(), "app:1"), named(index.clone(), "r.io/app:2")], &ARM64)
            .unwrap();
        assert_eq!(names(&plan), ["docker.io/library/app:1", "r.io/app:2"]);
        assert_eq!(plan.images[1].target, descriptor(&index).unwrap());
        let digests: Vec<&str> = plan.blobs.iter().map(|blob| blob.digest.as_str()).collect();
        let config =
            sha256(json!({"os": "linux", "architecture": "arm64", "variant": "v8"}).to_string().as_bytes());
        let manifest = arm64["digest"].as_str().unwrap();
        let top = index["digest"].as_str().unwrap();
        assert_eq!(digests, [&*sha256(b"a layer"), &*config, manifest, top], "amd64's are left out");
        assert_eq!(
            plan.blobs[2].labels,
            BTreeMap::from([
                ("containerd.io/gc.ref.content.config".to_owned(), config.clone()),
                ("containerd.io/gc.ref.content.l.0".to_owned(), sha256(b"a layer")),
            ])
        );
        let of_index = BTreeMap::from([("containerd.io/gc.ref.content.m.0".to_owned(), manifest.to_owned())]);
        assert_eq!(plan.blobs[3].labels, of_index);
        let archive = layout.archive();
        for blob in &plan.blobs {
            let Data::InArchive(at) = blob.data else { panic!("all of it is in the archive") };
            assert_eq!(sha256(&archive.read(at)), blob.digest);
        }
    }

    #[test]
    fn names_come_from_either_annotation() {
        let name = |annotations: Value| {
            let mut layout = Layout::default();
            let mut manifest = layout.manifest("linux", "arm64", "");
            manifest["annotations"] = annotations;
            layout.planned(&[manifest], &ARM64).map(|plan| names(&plan).join(" "))
        };
        let reference =
            |name: &str| name_of(&json!({"annotations": {"org.opencontainers.image.ref.name": name}}));
        assert_eq!(
            name(json!({"io.containerd.image.name": "a", "org.opencontainers.image.ref.name": "1"})).unwrap(),
            "docker.io/library/a:latest"
        );
        assert_eq!(reference("app:1").unwrap().unwrap(), "docker.io/library/app:1");
        assert_eq!(reference("localhost/app").unwrap().unwrap(), "localhost/app:latest");
        assert!(reference("latest").unwrap_err().contains("no more of a name than \"latest\""));
        assert!(reference("a:B:c").is_err());
        assert!(name(json!({})).unwrap_err().contains("has no image with a name"));
    }

    /// Rows: the node, what is on offer, which one is taken.
    #[test]
    fn the_best_platform_is_taken() {
        let node = |architecture, variant| Platform { architecture, variant };
        for (platform, offers, taken) in [
            (node("arm", 7), &[("arm", "v5"), ("arm", "v6"), ("arm", "v7"), ("arm64", "v8")][..], Some(2)),
            (node("arm", 7), &[("arm", "v5"), ("arm", "v6"), ("arm64", "v8")], Some(1)),
            (node("arm", 6), &[("arm", "v7"), ("arm", "v5"), ("arm", "v6")], Some(2)),
            (node("arm", 6), &[("arm", "v7")], None),
            (node("arm", 6), &[("arm", "")], None),
            (node("arm", 7), &[("armhf", "")], Some(0)),
            (node("arm64", 0), &[("arm", "v7"), ("aarch64", "")], Some(1)),
            (node("arm64", 0), &[("arm", "v7")], None),
            (node("amd64", 0), &[("386", ""), ("amd64", "")], Some(1)),
            (node("amd64", 0), &[("amd64", "v3")], None),
            (node("riscv64", 0), &[("riscv64", "")], Some(0)),
        ] {
            let ranks = offers.iter().enumerate();
            let ranks =
                ranks.filter_map(|(at, (of, variant))| Some((platform.rank("linux", of, variant)?, at)));
            assert_eq!(ranks.min().map(|(_, at)| at), taken, "{platform:?} {offers:?}");
            assert_eq!(platform.rank("windows", platform.architecture, ""), None);
        }
        // In an index.
        let mut layout = Layout::default();
        let both = [layout.manifest("linux", "arm", "v5"), layout.manifest("linux", "arm", "v6")];
        let index = json!({"mediaType": OCI_INDEX, "manifests": both});
        let index = named(layout.blob(OCI_INDEX, index.to_string().as_bytes()), "app:1");
        let plan = layout.planned(&[index], &node("arm", 7)).unwrap();
        assert!(plan.blobs.iter().any(|blob| blob.digest == both[1]["digest"].as_str().unwrap()));
        assert_eq!(plan.blobs.len(), 4, "v5's are left out");
        // Side by side under one name, without an index between.
        let mut layout = Layout::default();
        let both = [layout.manifest("linux", "arm", "v5"), layout.manifest("linux", "arm", "v6")];
        let wanted = both[1]["digest"].clone();
        let plan = layout.planned(&both.map(|of| named(of, "app:1")), &node("arm", 7)).unwrap();
        assert_eq!((plan.images.len(), plan.images[0].target.digest.as_str()), (1, wanted.as_str().unwrap()));
    }

    fn docker(tags: &Value, layers: &[(&str, &[u8], &str)]) -> Layout {
        let mut layout = Layout::default();
        let diff_ids: Vec<&str> = layers.iter().map(|(.., diff_id)| *diff_id).collect();
        let files: Vec<&str> = layers.iter().map(|(name, ..)| *name).collect();
        let config = json!({"os": "linux", "architecture": "arm64", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        layout.add("c.json", &config);
        layout.add("manifest.json", &json!([{"Config": "c.json", "RepoTags": tags, "Layers": files}]));
        layout.0.extend(layers.iter().map(|(name, bytes, _)| ((*name).to_owned(), bytes.to_vec())));
        layout
    }

    #[test]
    fn what_docker_saves_gets_the_manifest_that_containerd_makes() {
        let (plain, packed) = (sha256(b"plain"), sha256(b"\x1f\x8bpacked"));
        let unpacked = sha256(b"unpacked");
        let layers: [(&str, &[u8], &str); 2] =
            [("a/layer.tar", b"plain", &plain), ("b/layer.tar", b"\x1f\x8bpacked", &unpacked)];
        let layout = docker(&json!(["app:1", "r.io/app:2", "app:1"]), &layers);
        let plan = planned(&layout.archive(), &ARM64).unwrap();
        assert_eq!(names(&plan), ["docker.io/library/app:1", "r.io/app:2"]);
        let config = sha256(&layout.0[0].1);
        let digests: Vec<&str> = plan.blobs.iter().map(|blob| blob.digest.as_str()).collect();
        let target = plan.images[0].target.digest.as_str();
        assert_eq!(digests, [&*config, &*plain, &*packed, target]);
        let Data::Made(manifest) = &plan.blobs[3].data else { panic!("the manifest is made") };
        let manifest = String::from_utf8(manifest.clone()).unwrap();
        assert_eq!(
            manifest,
            format!(
                "{{\"schemaVersion\":2,\"mediaType\":\"{DOCKER_MANIFEST}\",\"config\":{{\"mediaType\":\"{DOCKER_CONFIG}\",\
                 \"digest\":\"{config}\",\"size\":{}}},\"layers\":[{{\"mediaType\":\"{DOCKER_LAYER}\",\
                 \"digest\":\"{plain}\",\"size\":5}},{{\"mediaType\":\"{DOCKER_LAYER_GZIP}\",\"digest\":\"{packed}\",\
                 \"size\":8}}]}}",
                layout.0[0].1.len()
            )
        );
        assert_eq!(plan.blobs[3].labels.len(), 3);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_image_and_the_mend() {
        let plain = sha256(b"plain");
        let good: [(&str, &[u8], &str); 1] = [("l.tar", b"plain", &plain)];
        let docker_error = |change: &dyn Fn(&mut Layout)| {
            let mut layout = docker(&json!(["app:1"]), &good);
            change(&mut layout);
            planned(&layout.archive(), &ARM64).unwrap_err()
        };
        let replace = |layout: &mut Layout, name: &str, text: &str| {
            layout.0.iter_mut().find(|(known, _)| known == name).unwrap().1 = text.as_bytes().to_vec();
        };
        let large = " ".repeat(IMAGE_JSON_BYTES_MAX + 1);
        for (name, text, wanted) in [
            ("manifest.json", "[]", "has no image with a name"),
            ("manifest.json", "{}", "no list"),
            ("manifest.json", "[", "manifest.json is no JSON"),
            ("manifest.json", &large, "manifest.json has 524289 bytes"),
            ("manifest.json", r#"[{"Config": "c.json", "RepoTags": null}]"#, "has no image with a name"),
            ("manifest.json", r#"[{"RepoTags": ["app:1"]}]"#, "\"Config\" is missing"),
            ("manifest.json", r#"[{"Config": "x", "RepoTags": ["app:1"]}]"#, "app:1: \"x\" is missing"),
            ("manifest.json", r#"[{"Config": "c.json", "RepoTags": ["A:1"]}]"#, "couldn't parse image name"),
            (
                "manifest.json",
                r#"[{"Config": "c.json", "RepoTags": ["a"], "Layers": []}]"#,
                "has 0 layers where",
            ),
            (
                "manifest.json",
                r#"[{"Config": "c.json", "RepoTags": ["a"], "Layers": ["x"]}]"#,
                "\"x\" is missing",
            ),
            ("c.json", "[", "\"c.json\" is no JSON"),
            (
                "c.json",
                r#"{"os": "linux", "architecture": "amd64"}"#,
                "docker.io/library/app:1 is for linux/amd64, and this node is linux/arm64",
            ),
            ("c.json", r#"{"rootfs": {"diff_ids": ["sha256:00"]}}"#, "a damaged digest"),
        ] {
            let error = docker_error(&|layout| replace(layout, name, text));
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
        let none = tar(&[("README", b"")]);
        assert!(planned(&none, &ARM64).unwrap_err().starts_with("is no image archive"));

        let oci_error = |change: &dyn Fn(&mut Layout, &mut Value)| {
            let mut layout = Layout::default();
            let mut manifest = named(layout.manifest("linux", "arm64", ""), "app:1");
            change(&mut layout, &mut manifest);
            layout.planned(&[manifest], &ARM64).unwrap_err()
        };
        for (change, wanted) in [
            (
                (|layout, _| layout.0.clear()) as fn(&mut Layout, &mut Value),
                "is missing; save the image with all its",
            ),
            (|layout, _| drop(layout.0.remove(1)), "is missing; save the image with all its layers"),
            (|_, of| of["size"] = json!(1), "bytes where its manifest says 1"),
            (|_, of| of["size"] = json!(-1), "its entry in index.json is damaged"),
            (|_, of| of["digest"] = json!("../../etc/passwd"), "its entry in index.json is damaged"),
            (
                |_, of| of["platform"]["architecture"] = json!("s390x"),
                "is for another platform than linux/arm64",
            ),
            (
                |layout, of| {
                    let blob = layout.blob("x", br#"{"mediaType": "text/plain"}"#);
                    *of = named(blob, "app:1");
                },
                "is a \"text/plain\", which is no image",
            ),
            (
                |layout, of| {
                    let inner = layout.blob(OCI_INDEX, b"{}");
                    let outer = json!({"mediaType": OCI_INDEX, "manifests": [inner]});
                    *of = named(layout.blob(OCI_INDEX, outer.to_string().as_bytes()), "app:1");
                },
                "which is no image",
            ),
            (
                |layout, of| {
                    let inner = layout.blob(OCI_INDEX, br#"{"manifests": []}"#);
                    *of = named(inner, "app:1");
                },
                "has nothing for this node, linux/arm64",
            ),
        ] {
            let error = oci_error(&change);
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    /// Whatever stands in the files of an archive, it is planned or refused.
    #[test]
    fn hostile_archives_are_planned_or_refused() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut oci = Layout::default();
        let manifest = named(oci.manifest("linux", "arm64", ""), "app:1");
        assert!(oci.planned(&[manifest], &ARM64).is_ok());
        let plain = sha256(b"plain");
        let saved = docker(&json!(["app:1"]), &[("l.tar", b"plain", &plain)]);
        let values =
            ["null", "[]", "{}", "-1", "1e99", "\"\"", "\"sha256:\"", "[{}]", "[[]]", "99999999999999999999"];
        for _ in 0..5_000 {
            let mut layout = if random.bool() { oci.clone() } else { saved.clone() };
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..layout.0.len());
                let bytes = &mut layout.0[at].1;
                if bytes.is_empty() || random.u8(..8) == 0 {
                    layout.0.swap_remove(at);
                } else if random.bool() {
                    let byte = random.usize(..bytes.len());
                    bytes[byte] = random.u8(b' '..=b'~');
                } else {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    let colon = text.match_indices(':').map(|(at, _)| at).nth(random.usize(..8));
                    let end = colon
                        .and_then(|colon| text[colon..].find([',', '}']).map(|end| (colon, colon + end)));
                    if let Some((colon, end)) = end {
                        let value = values[random.usize(..values.len())];
                        *bytes = format!("{}:{value}{}", &text[..colon], &text[end..]).into_bytes();
                    }
                }
                if layout.0.is_empty() {
                    break;
                }
            }
            let archive = layout.archive();
            if let Ok(plan) = planned(&archive, &ARM64) {
                for blob in plan.blobs {
                    assert!(is_digest(&blob.digest));
                    if let Data::InArchive(at) = blob.data {
                        assert_eq!((at.size, archive.read(at).len() as u64), (blob.size, blob.size));
                    }
                }
            }
        }
    }
}
