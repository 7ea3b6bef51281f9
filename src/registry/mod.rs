//! Pulls images by the OCI distribution protocol.
//!
//! ```text
//!     reference ─► hosts (hosts.toml, registries.yaml) ─► mirrors in order, then the registry itself
//!                                                              │ client: connections, TLS, tokens, redirects
//!                                                              ▼
//!          resolve (HEAD) ─► index ─► manifest ─► configuration ─► layers, REGISTRY_LAYERS_AT_ONCE at once
//!                                                                      │ blob: Range from the sink's offset, back-off
//!                                                                      ▼
//!                                                              BlobStore, BlobSink (image_store)
//! ```
//!
//! A pull is one future: dropping it cancels it, and what its sinks have received stays theirs. Every byte is verified by its
//! digest before it is used: manifests and configurations here, layers by the sink.

mod blob;
mod certs_d;
mod challenge;
mod client;
mod containerd_hosts;
mod endpoint;
mod error;
mod hosts;
mod hosts_toml;
mod http;
mod manifest;
mod platform;
mod proxy;
mod pull;
mod reference;
mod registries_yaml;
mod sink;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod token;
#[cfg(feature = "tls")]
mod tunnel;

pub use client::{Client, Credentials};
pub use containerd_hosts::{HostsWritten, logins, write_hosts};
pub use endpoint::{Capabilities, Endpoint, Rewrite, TlsOptions};
pub use error::{RegistryError, RegistryResult};
pub use hosts::{Environment, Hosts};
pub use manifest::{Descriptor, Index, Manifest, MediaType};
pub use platform::Platform;
pub use proxy::Proxies;
pub use pull::{LayerProgress, Progress, Pull, Pulled};
pub use reference::Reference;
pub use sink::{BlobSink, BlobStore, PulledImage, SinkError};
pub use store::{Registries, StoreOfPull};
