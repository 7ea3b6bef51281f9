//! Pulls from a registry of the tests: what is fetched, whom it is fetched from, and what happens on bad links.

#![allow(clippy::pedantic, clippy::unwrap_used)]

mod hosts;
mod links;
mod logins;
#[cfg(all(feature = "tls", target_arch = "x86_64"))]
mod secure;
#[path = "../../common/registry.rs"]
mod server;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use smolet::blocking::Blocking;
use smolet::clock::{Clock, SharedClock, Sleep, SystemClock};
use smolet::image_store::Digest;
use smolet::model::{Mono, Now};
use smolet::net::Lookups;
use smolet::proto::runtime::v1::AuthConfig;
use smolet::registry::{
    BlobSink, BlobStore, Descriptor, Hosts, Platform, Progress, Pull, Pulled, PulledImage, RegistryError,
    SinkError,
};

use server::{Auth, Faults, Registry};

/// A clock whose timers take a twentieth of their time. It knows which sleeps were begun.
#[derive(Default)]
struct Quick(Rc<RefCell<Vec<Duration>>>);

impl Clock for Quick {
    fn now(&self) -> Now {
        SystemClock.now()
    }

    fn sleep_until(&self, at: Mono) -> Sleep {
        let now = self.now().mono;
        self.0.borrow_mut().push(at.since(now));
        SystemClock.sleep_until(now + at.since(now) / 20)
    }

    fn boot_id(&self) -> Box<str> {
        "".into()
    }
}

/// A store in memory. Clones share it.
#[derive(Clone, Default)]
pub struct Memory(Rc<RefCell<Content>>);

#[derive(Default)]
pub struct Content {
    layers: HashMap<Digest, Vec<u8>>,
    /// What has arrived of layers, and stays when a pull is dropped.
    partial: HashMap<Digest, Vec<u8>>,
    images: HashMap<String, PulledImage>,
    restarts: usize,
}

pub struct Sink {
    store: Memory,
    of: Digest,
}

impl BlobSink for Sink {
    fn offset(&self) -> u64 {
        self.store.0.borrow().partial.get(&self.of).map_or(0, Vec::len) as u64
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.store.0.borrow_mut().partial.entry(self.of).or_default().extend_from_slice(bytes);
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), SinkError> {
        let mut store = self.store.0.borrow_mut();
        store.partial.remove(&self.of);
        store.restarts += 1;
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), SinkError> {
        let mut store = self.store.0.borrow_mut();
        let bytes = store.partial.get(&self.of).cloned().unwrap_or_default();
        let found = Digest::of(&bytes);
        if found != self.of {
            return Err(SinkError::Digest(format!("content of {} has the digest {found}", self.of)));
        }
        store.partial.remove(&self.of);
        store.layers.insert(self.of, bytes);
        Ok(())
    }
}

impl BlobStore for Memory {
    type Sink = Sink;

    async fn existing(&self, name: &str, _tag: &str, target: Digest) -> Result<Option<String>, SinkError> {
        let store = self.0.borrow();
        Ok(store.images.get(&format!("{name}@{target}")).map(|image| image.config_digest.to_string()))
    }

    async fn layer(&self, layer: &Descriptor, _diff_id: Digest) -> Result<Option<Sink>, SinkError> {
        let is_there = self.0.borrow().layers.contains_key(&layer.digest);
        Ok((!is_there).then(|| Sink { store: self.clone(), of: layer.digest }))
    }

    async fn commit(&self, image: PulledImage) -> Result<String, SinkError> {
        let id = image.config_digest.to_string();
        assert_eq!(Digest::of(&image.config), image.config_digest);
        assert_eq!(Digest::of(&image.manifest), image.manifest_digest);
        let mut store = self.0.borrow_mut();
        assert!(image.layers.iter().all(|(layer, _)| store.layers.contains_key(&layer.digest)));
        store.images.insert(format!("{}@{}", image.name, image.target), image);
        Ok(id)
    }
}

/// A node's side of a pull.
pub struct Node {
    pub hosts: Hosts,
    pub store: Memory,
    pub platform: Platform,
    pub progress: Progress,
    pub auth: Option<AuthConfig>,
    /// Timers that were begun.
    pub sleeps: Rc<RefCell<Vec<Duration>>>,
}

impl Node {
    pub fn new() -> Self {
        Self {
            hosts: Hosts::default(),
            store: Memory::default(),
            platform: Platform::new("linux", "arm", "v7"),
            progress: Progress::default(),
            auth: None,
            sleeps: Rc::default(),
        }
    }

    pub fn with_login(username: &str, password: &str) -> Self {
        let auth =
            AuthConfig { username: username.into(), password: password.into(), ..AuthConfig::default() };
        Self { auth: Some(auth), ..Self::new() }
    }

    pub async fn pull_it(&self, image: &str) -> Result<Pulled, RegistryError> {
        let clock: SharedClock = Rc::new(Quick(self.sleeps.clone()));
        let lookups = Lookups::default();
        let Self { hosts, store, platform, progress, auth, .. } = self;
        let blocking = Rc::new(Blocking::on_this_thread());
        let pull =
            Pull { hosts, store, clock: &clock, lookups: &lookups, blocking: &blocking, platform, progress };
        pull.image(image, auth.as_ref()).await
    }

    /// Blocking. The error's text has no secret.
    pub fn pull(&self, image: &str) -> Result<Pulled, RegistryError> {
        let pulled = smol::block_on(self.pull_it(image));
        if let Err(error) = &pulled {
            let error = error.to_string();
            assert!(!error.contains("-secret"), "{error}");
        }
        pulled
    }

    pub fn restarts(&self) -> usize {
        self.store.0.borrow().restarts
    }
}

/// Bytes without a pattern.
pub fn layer(seed: u64, size: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(size).collect()
}

/// A registry with `app:1` of two layers for two platforms, and the image's name.
pub fn with_app(sizes: &[usize]) -> (Registry, String) {
    let registry = Registry::start();
    let image = put_app(&registry, sizes);
    (registry, image)
}

pub fn put_app(registry: &Registry, sizes: &[usize]) -> String {
    let layers: Vec<_> = sizes.iter().zip(0..).map(|(size, seed)| layer(seed, *size)).collect();
    registry.put_image("team/app", "1", &[("amd64", ""), ("arm", "v6"), ("arm64", "v8")], &layers);
    format!("{}/team/app:1", registry.host())
}

#[test]
fn an_image_is_pulled_and_then_only_looked_at() {
    let (registry, image) = with_app(&[300_000, 10]);
    let node = Node::new();
    let pulled = node.pull(&image).unwrap();
    assert!(pulled.repo_digest.starts_with(&format!("{}/team/app@sha256:", registry.host())));
    {
        let store = node.store.0.borrow();
        let image = store.images.values().next().unwrap();
        assert_eq!((image.tag.as_str(), image.layers.len(), store.layers.len()), ("1", 2, 2));
        assert!(
            String::from_utf8_lossy(&image.config).contains(r#""architecture":"arm""#),
            "the variant of the node"
        );
        assert_eq!(image.config_digest.to_string(), pulled.id);
    }
    assert_eq!(node.progress.bytes(), (300_010, 300_010));
    assert!(node.progress.layers().iter().all(|layer| layer.is_done));
    let methods: Vec<_> = registry.log().into_iter().map(|request| request.method).collect();
    // Index, manifest, configuration, two layers.
    assert_eq!(methods, ["HEAD", "GET", "GET", "GET", "GET", "GET"]);

    registry.set(Auth::Anyone, Faults::default());
    assert_eq!(node.pull(&image).unwrap(), pulled);
    assert_eq!(registry.log().len(), 1, "one HEAD, which counts for no rate limit");
    let by_digest = node.pull(&pulled.repo_digest).unwrap();
    assert_eq!(by_digest, pulled);
}

#[test]
fn what_is_not_there_or_no_image_is_refused_with_the_mend() {
    let (registry, image) = with_app(&[10]);
    let host = registry.host();
    let manifest = |text: &str, kind: &str, tag: &str| {
        for reference in [tag.to_owned(), Digest::of(text.as_bytes()).to_string()] {
            registry.put(&format!("team/app/manifests/{reference}"), kind, text.as_bytes().to_vec());
        }
    };
    manifest(
        r#"{"schemaVersion": 1, "fsLayers": []}"#,
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
        "old",
    );
    manifest("<html>", "text/html", "page");
    registry.put_image("team/app", "big", &[("riscv64", "")], &[]);
    manifest(&"x".repeat(5 << 20), server::OCI_MANIFEST, "long");
    for (tag, error) in [
        ("none", "failed to resolve reference"),
        ("none", "/team/app:none: not found; check the image's name and tag"),
        ("old", "no longer supported; rebuild the image"),
        ("page", "the manifest is no JSON"),
        (
            "big",
            "no match for platform in manifest: this node is linux/arm/v7, the image is for linux/riscv64",
        ),
        ("long", "is longer than 4194304 bytes"),
    ] {
        let found = Node::new().pull(&format!("{host}/team/app:{tag}")).unwrap_err().to_string();
        assert!(found.contains(error), "{tag}: {found}");
        assert!(found.starts_with("failed to pull and unpack image"), "{found}");
    }
    let wrong = format!("{image}@sha256:{}", "0".repeat(64));
    assert!(matches!(Node::new().pull(&wrong), Err(RegistryError::NotFound(_))));
    assert!(matches!(Node::new().pull("UPPER"), Err(RegistryError::Reference(_))));
    let nowhere = Node::new().pull("127.0.0.1:1/app").unwrap_err().to_string();
    assert!(
        nowhere
            .contains("failed to do request: Head \"http://127.0.0.1:1/v2/app/manifests/latest\": dial tcp")
    );
}

#[test]
fn a_registry_without_head_is_asked_for_the_manifest() {
    let (registry, image) = with_app(&[10]);
    registry.set(Auth::Anyone, Faults { no_head: true, ..Faults::default() });
    Node::new().pull(&image).unwrap();
}

#[test]
fn a_pull_that_is_dropped_goes_on_where_it_was() {
    let (registry, image) = with_app(&[1_000_000]);
    // More than a second from there to its end, also for a client that gets no processor for a while.
    registry.set(Auth::Anyone, Faults { slow: Some(Duration::from_millis(30)), ..Faults::default() });
    let node = Node::new();
    smol::block_on(async {
        let enough = async {
            while node.progress.bytes().0 < 300_000 {
                async_io::Timer::after(Duration::from_millis(1)).await;
            }
            None
        };
        let pull = async { Some(node.pull_it(&image).await) };
        assert_eq!(smol::future::or(enough, pull).await, None, "it is dropped in its midst");
    });
    let had = node.store.0.borrow().partial.values().next().unwrap().len();
    registry.set(Auth::Anyone, Faults::default());
    node.pull(&image).unwrap();
    let ranges: Vec<_> =
        registry.log().into_iter().filter_map(|request| request.headers.get("range").cloned()).collect();
    assert_eq!(ranges, [format!("bytes={had}-")]);
    assert_eq!(node.restarts(), 0);
}
