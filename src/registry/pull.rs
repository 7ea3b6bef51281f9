//! Pulls one image: resolves its name, chooses the manifest of this node's platform, and fetches what is missing.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::Method;

use super::client::{Call, Client, Credentials};
use super::manifest::{ACCEPTED, Fetched, Manifest, diff_ids, parse};
use super::sink::{BlobSink as _, BlobStore, PulledImage, SinkError};
use super::{Descriptor, Endpoint, Hosts, Platform, Reference, RegistryError, RegistryResult, blob};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::image_store::Digest;
use crate::limits::{
    IMAGE_JSON_BYTES_MAX, REGISTRY_IMAGE_CONFIG_BYTES_MAX, REGISTRY_INDEX_DEPTH_MAX, REGISTRY_LAYERS_AT_ONCE,
    REGISTRY_MANIFEST_BYTES_MAX, REGISTRY_SMALL_TRIES_MAX,
};
use crate::net::Lookups;
use crate::proto::runtime::v1::AuthConfig;

/// Progress of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    /// Its digest.
    pub digest: Digest,
    /// Bytes that have arrived.
    pub received: u64,
    /// Bytes of all.
    pub size: u64,
    /// It is in the store.
    pub is_done: bool,
}

/// Progress of a pull, for `describe`. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Rc<RefCell<Vec<LayerProgress>>>);

impl Progress {
    /// The layers, the lowest first; none before the manifest is known. At most `LAYERS_PER_IMAGE_MAX`.
    pub fn layers(&self) -> Vec<LayerProgress> {
        self.0.borrow().clone()
    }

    /// Bytes that have arrived, and bytes of all layers.
    pub fn bytes(&self) -> (u64, u64) {
        let layers = self.0.borrow();
        layers.iter().fold((0, 0), |(received, size), layer| {
            (received.saturating_add(layer.received), size.saturating_add(layer.size))
        })
    }

    /// The same pull's.
    pub(super) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    fn set(&self, index: usize, received: u64, is_done: bool) {
        if let Some(layer) = self.0.borrow_mut().get_mut(index) {
            (layer.received, layer.is_done) = (received, is_done);
        }
    }
}

/// A pulled image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The image's id in the store.
    pub id: String,
    /// `docker.io/library/busybox@sha256:…`.
    pub repo_digest: String,
}

/// What a pull works with.
pub struct Pull<'a, S> {
    /// The configuration of hosts.
    pub hosts: &'a Hosts,
    /// Where the image is put.
    pub store: &'a S,
    /// For deadlines and waits.
    pub clock: &'a SharedClock,
    /// For names of hosts.
    pub lookups: &'a Lookups,
    /// For files of the configuration.
    pub blocking: &'a Rc<Blocking>,
    /// This node's.
    pub platform: &'a Platform,
    /// Told while it goes on.
    pub progress: &'a Progress,
}

impl Platform {
    /// This node's.
    pub fn of_this_machine() -> Self {
        let machine = rustix::system::uname();
        Self::of_machine(std::env::consts::ARCH, &machine.machine().to_string_lossy())
    }
}

impl<S: BlobStore> Pull<'_, S> {
    /// Pulls an image by its name. Dropping the future cancels it; what has arrived is used by the next pull.
    ///
    /// # Errors
    /// In containerd's words, with what to do. A layer's error names the layer.
    pub async fn image(&self, image: &str, auth: Option<&AuthConfig>) -> RegistryResult<Pulled> {
        let reference = Reference::parse(image)?;
        let full = reference.full();
        let credentials = auth.map(Credentials::of_auth_config).transpose();
        let credentials = credentials
            .map_err(|why| RegistryError::Config(format!("credentials for {full}: {why}")))?
            .flatten();
        let endpoints = self.hosts.endpoints(self.blocking, &reference.host).await?;
        let environment = self.hosts.environment.clone();
        let client = Client::new(
            self.clock.clone(),
            self.lookups.clone(),
            self.blocking.clone(),
            environment,
            credentials,
        );
        let puller = Puller { pull: self, client: &client, endpoints: &endpoints, reference: &reference };
        puller
            .run()
            .await
            .map_err(|error| error.while_doing(&format!("failed to pull and unpack image \"{full}\"")))
    }
}

struct Puller<'a, S> {
    pull: &'a Pull<'a, S>,
    client: &'a Client,
    endpoints: &'a [Endpoint],
    reference: &'a Reference,
}

/// A document with its digest and the type that the registry gives it.
struct Document {
    digest: Digest,
    bytes: Vec<u8>,
    media_type: String,
}

impl<S: BlobStore> Puller<'_, S> {
    async fn run(&self) -> RegistryResult<Pulled> {
        let full = self.reference.full();
        let resolved = self.resolve().await;
        let (target, document) = resolved
            .map_err(|error| error.while_doing(&format!("failed to resolve reference \"{full}\"")))?;
        let name = self.reference.name();
        let pulled = |id| Pulled { id, repo_digest: format!("{name}@{target}") };
        let existing = self.pull.store.existing(&name, &self.reference.tag, target).await.map_err(store)?;
        if let Some(id) = existing {
            return Ok(pulled(id));
        }
        let (manifest_document, manifest) = self.manifest(target, document).await?;
        // Before the layers: the store would refuse it after them.
        if manifest_document.bytes.len() > IMAGE_JSON_BYTES_MAX {
            return Err(RegistryError::Content(format!(
                "manifest {} is longer than {IMAGE_JSON_BYTES_MAX} bytes",
                manifest_document.digest
            )));
        }
        let config = self.config(&manifest.config).await?;
        let diff_ids = diff_ids(&config, manifest.layers.len())?;
        let layers: Vec<_> = manifest.layers.into_iter().zip(diff_ids).collect();
        self.layers(&layers).await?;
        let image = PulledImage {
            name: name.clone(),
            tag: self.reference.tag.clone(),
            target,
            manifest_digest: manifest_document.digest,
            manifest: manifest_document.bytes,
            config_digest: manifest.config.digest,
            config,
            layers,
        };
        self.pull.store.commit(image).await.map(pulled).map_err(store)
    }

    /// Digest of what the name refers to; its document as well when the registry tells no digest without it.
    async fn resolve(&self) -> RegistryResult<(Digest, Option<Document>)> {
        let able = self.endpoints.iter().filter(|endpoint| {
            endpoint.capabilities.resolve || self.reference.digest.is_some() && endpoint.capabilities.pull
        });
        self.at_each(able, async |endpoint| {
            let part = format!("manifests/{}", self.reference.manifest());
            let answer = self.small(endpoint, Method::HEAD, &part, 0).await;
            let found = match answer {
                Ok((_, headers)) => headers.digest,
                // A registry that knows no HEAD says so with the GET.
                Err(RegistryError::Content(_)) => None,
                Err(error) => return Err(error),
            };
            match (found, self.reference.digest) {
                (Some(found), Some(wanted)) if found != wanted => Err(RegistryError::Content(format!(
                    "{}: unexpected digest {found}, {wanted} was asked for",
                    endpoint.host()
                ))),
                (Some(found), _) => Ok((found, None)),
                (None, wanted) => {
                    let document = self.document_at(endpoint, &self.reference.manifest(), wanted).await?;
                    Ok((document.digest, Some(document)))
                }
            }
        })
        .await
    }

    /// The manifest for this node's platform.
    async fn manifest(
        &self,
        target: Digest,
        document: Option<Document>,
    ) -> RegistryResult<(Document, Manifest)> {
        let mut document = match document {
            Some(document) => document,
            None => self.document(target).await?,
        };
        for _ in 0..=REGISTRY_INDEX_DEPTH_MAX {
            match parse(&document.bytes, &document.media_type)? {
                Fetched::Manifest(manifest) => return Ok((document, manifest)),
                Fetched::Index(index) => {
                    document = self.document(index.choose(self.pull.platform)?.digest).await?;
                }
            }
        }
        Err(RegistryError::Content(format!(
            "more than {REGISTRY_INDEX_DEPTH_MAX} indexes in one another are refused"
        )))
    }

    async fn document(&self, digest: Digest) -> RegistryResult<Document> {
        let fetched = self.at_each(self.pulling(), async |endpoint| {
            self.document_at(endpoint, &digest.to_string(), Some(digest)).await
        });
        fetched.await.map_err(|error| error.while_doing(&format!("failed to fetch manifest {digest}")))
    }

    async fn document_at(
        &self,
        endpoint: &Endpoint,
        reference: &str,
        wanted: Option<Digest>,
    ) -> RegistryResult<Document> {
        let part = format!("manifests/{reference}");
        let (bytes, said) = self.small(endpoint, Method::GET, &part, REGISTRY_MANIFEST_BYTES_MAX).await?;
        let digest = Digest::of(&bytes);
        if let Some(wanted) = wanted.or(said.digest)
            && wanted != digest
        {
            return Err(RegistryError::Content(format!(
                "{}: manifest {wanted} has the digest {digest}: it is damaged on the way or at its source",
                endpoint.host()
            )));
        }
        Ok(Document { digest, bytes, media_type: said.media_type })
    }

    async fn config(&self, config: &Descriptor) -> RegistryResult<Vec<u8>> {
        let digest = config.digest;
        let part = format!("blobs/{digest}");
        let fetched = self.at_each(self.pulling(), async |endpoint| {
            let (bytes, _) = self.small(endpoint, Method::GET, &part, REGISTRY_IMAGE_CONFIG_BYTES_MAX).await?;
            let found = Digest::of(&bytes);
            if found == digest {
                return Ok(bytes);
            }
            Err(RegistryError::Content(format!(
                "{}: the image's configuration {digest} has the digest {found}: it is damaged on the way or at its source",
                endpoint.host()
            )))
        });
        fetched.await.map_err(|error| error.while_doing(&format!("failed to fetch configuration {digest}")))
    }

    /// Fetches the layers that are missing, a few at once.
    async fn layers(&self, layers: &[(Descriptor, Digest)]) -> RegistryResult<()> {
        *self.pull.progress.0.borrow_mut() = layers
            .iter()
            .map(|(layer, _)| LayerProgress {
                digest: layer.digest,
                received: 0,
                size: layer.size,
                is_done: false,
            })
            .collect();
        let is_first = |&(index, (_, diff_id)): &(usize, &(Descriptor, Digest))| {
            layers[..index].iter().all(|(_, earlier)| earlier != diff_id)
        };
        let fetches =
            layers.iter().enumerate().filter(is_first).map(|(index, (layer, diff_id))| async move {
                let fetched = self.layer(index, layer, *diff_id).await;
                fetched.map_err(|error| error.while_doing(&format!("failed to pull layer {}", layer.digest)))
            });
        at_once(fetches, REGISTRY_LAYERS_AT_ONCE).await?;
        for layer in self.pull.progress.0.borrow_mut().iter_mut() {
            (layer.received, layer.is_done) = (layer.size, true);
        }
        Ok(())
    }

    async fn layer(&self, index: usize, layer: &Descriptor, diff_id: Digest) -> RegistryResult<()> {
        let progress = self.pull.progress;
        if let Some(mut sink) = self.pull.store.layer(layer, diff_id).await.map_err(store)? {
            let endpoints: Vec<_> = self.pulling().collect();
            let told = |received| progress.set(index, received, false);
            let from = sink.offset();
            if from > 0 {
                log::info!("layer {}: going on at {from} of {} bytes", layer.digest, layer.size);
            }
            let repository = &self.reference.repository;
            blob::fetch(self.client, &endpoints, repository, layer, &mut sink, &told).await?;
        }
        progress.set(index, layer.size, true);
        Ok(())
    }

    fn pulling(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.capabilities.pull)
    }

    /// Tries each host in order; those that cannot answer for now once more when no other one could. The error of the first one that does
    /// not only say that it has not got it comes first.
    async fn at_each<'e, T>(
        &self,
        endpoints: impl Iterator<Item = &'e Endpoint>,
        work: impl AsyncFn(&'e Endpoint) -> RegistryResult<T>,
    ) -> RegistryResult<T> {
        let mut first: Option<RegistryError> = None;
        let mut hosts: Vec<&Endpoint> = self.client.answering_first(endpoints).collect();
        for tries in 1..=REGISTRY_SMALL_TRIES_MAX {
            let mut pause = blob::wait(tries);
            let mut later = Vec::new();
            for endpoint in hosts {
                let error = match work(endpoint).await {
                    Ok(done) => return Ok(done),
                    Err(error) if error.is_of_host() => error,
                    Err(error) => return Err(error),
                };
                log::debug!("{}: {error}", endpoint.host());
                if let RegistryError::Unavailable { after, .. } = &error
                    && !error.asks_for_long_wait()
                {
                    pause = pause.max(after.unwrap_or_default());
                    later.push(endpoint);
                }
                if first.as_ref().is_none_or(|first| matches!(first, RegistryError::NotFound(_))) {
                    first = Some(error);
                }
            }
            hosts = later;
            if hosts.is_empty() || tries == REGISTRY_SMALL_TRIES_MAX {
                break;
            }
            self.client.clock().sleep(pause).await;
        }
        Err(match first {
            Some(RegistryError::NotFound(_)) => RegistryError::NotFound(format!(
                "{}: not found; check the image's name and tag",
                self.reference.full()
            )),
            Some(error) => error,
            None => RegistryError::Config(format!(
                "no host of {} is allowed to pull and resolve; see capabilities in its hosts.toml",
                self.reference.host
            )),
        })
    }

    /// A small response.
    async fn small(
        &self,
        endpoint: &Endpoint,
        method: Method,
        part: &str,
        bytes_max: usize,
    ) -> RegistryResult<(Vec<u8>, Said)> {
        let accept = if part.starts_with("manifests/") { ACCEPTED } else { "*/*" };
        let repository = &self.reference.repository;
        let call = Call { method: method.clone(), endpoint, repository, part, accept, from: 0 };
        let answer = self.client.send(&call).await?;
        let said = Said {
            digest: answer.header("docker-content-digest").and_then(Digest::parse),
            media_type: answer.header("content-type").unwrap_or_default().to_owned(),
        };
        if answer.header("content-length").and_then(|length| length.parse().ok()) > Some(bytes_max)
            && method != Method::HEAD
        {
            return Err(RegistryError::Content(format!("{part} is longer than {bytes_max} bytes")));
        }
        let small = self.client.small(answer, bytes_max).await;
        let (bytes, connection) =
            small.map_err(|why| RegistryError::unavailable(format!("{}: {part}: {why}", endpoint.host())))?;
        self.client.keep(endpoint, connection);
        Ok((bytes, said))
    }
}

/// What a response's head says of its document.
struct Said {
    digest: Option<Digest>,
    media_type: String,
}

fn store(error: SinkError) -> RegistryError {
    match error {
        SinkError::Digest(why) | SinkError::Refused(why) => RegistryError::Content(why),
        SinkError::Failed(why) => RegistryError::Store(why),
    }
}

/// Waits for all, so many at once; with the first error the others are cancelled.
async fn at_once<F: Future<Output = RegistryResult<()>>>(
    works: impl Iterator<Item = F>,
    most: usize,
) -> RegistryResult<()> {
    let mut waiting = works.fuse();
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    poll_fn(move |cx| {
        loop {
            while running.len() < most
                && let Some(next) = waiting.next()
            {
                running.push(Box::pin(next));
            }
            let mut ended = false;
            let mut index = 0;
            while index < running.len() {
                match running[index].as_mut().poll(cx) {
                    Poll::Ready(Ok(())) => {
                        drop(running.swap_remove(index));
                        ended = true;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => index += 1,
                }
            }
            if running.is_empty() && !ended {
                return Poll::Ready(Ok(()));
            }
            if !ended {
                return Poll::Pending;
            }
        }
    })
    .await
}
