//! Plans of archives.

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
    let plan =
        layout.planned(&[named(index.clone(), "app:1"), named(index.clone(), "r.io/app:2")], &ARM64).unwrap();
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

/// Rows: the node, the available platforms, the selected one.
#[test]
fn the_best_matching_platform_is_selected() {
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
        let ranks = ranks.filter_map(|(at, (of, variant))| Some((platform.rank("linux", of, variant)?, at)));
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
    // Side by side under one name, without an index in between.
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
    let config =
        json!({"os": "linux", "architecture": "arm64", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    layout.add("c.json", &config);
    layout.add("manifest.json", &json!([{"Config": "c.json", "RepoTags": tags, "Layers": files}]));
    layout.0.extend(layers.iter().map(|(name, bytes, _)| ((*name).to_owned(), bytes.to_vec())));
    layout
}

#[test]
fn a_docker_archive_gets_the_manifest_of_containerds_importer() {
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
fn errors_name_the_image_and_say_how_to_fix_it() {
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
        ("manifest.json", r#"[{"Config": "c.json", "RepoTags": ["a"], "Layers": []}]"#, "has 0 layers where"),
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
        (|_, of| of["platform"]["architecture"] = json!("s390x"), "is for another platform than linux/arm64"),
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

/// Whatever the archive's files contain, the import is planned or rejected.
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
    for _ in 0..crate::cases(5_000) {
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
                let end =
                    colon.and_then(|colon| text[colon..].find([',', '}']).map(|end| (colon, colon + end)));
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

#[test]
fn an_image_that_is_left_out_drops_its_own_blobs() {
    let mut layout = Layout::default();
    let one = layout.manifest("linux", "arm64", "");
    let other = layout.manifest("linux", "arm64", "v8");
    let manifests = [named(one.clone(), "one:1"), named(other.clone(), "other:1"), named(other, "more:1")];
    let mut plan = layout.planned(&manifests, &ARM64).unwrap();
    let all = plan.blobs.len();
    plan.retain(&mut |name| !name.contains("more"));
    assert_eq!((names(&plan).len(), plan.blobs.len()), (2, all), "the other name needs them");
    plan.retain(&mut |name| name.contains("one"));
    assert_eq!(names(&plan), ["docker.io/library/one:1"]);
    let digests: Vec<&str> = plan.blobs.iter().map(|blob| blob.digest.as_str()).collect();
    let config =
        sha256(json!({"os": "linux", "architecture": "arm64", "variant": ""}).to_string().as_bytes());
    let manifest = one["digest"].as_str().unwrap();
    assert_eq!(digests, [&*sha256(b"a layer"), &*config, manifest], "the layer is the other's too");
}
