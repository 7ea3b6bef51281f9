//! The API server's client: TLS, requests, lists and watches. Independent of the sync.
//!
//! ```text
//!     kubeconfig ──► Access (server, certificate authorities, credentials)
//!                       │
//!     Client ──► link (one connection, HTTP/2, made when it is needed) ──► TLS ──► the API server
//!        ├─ call    request → answer of at most `limits::KUBE_ANSWER_BYTES_MAX`
//!        └─ follow  list by pages, then watch: one object at a time, whatever the size of the list
//! ```
//!
//! Requests are built here and not by kube-core: a node uses a dozen paths, and the crate would cost 0.4 MB.
//!
//! `kubeconfig`, `json`, `split`, `path`, `backoff` and `servers` are PURE; `access`, `tls`, `link`, `client` and `follow` do the I/O.

mod access;
mod backoff;
mod client;
mod error;
mod follow;
pub mod handshake;
mod kubeconfig;
mod link;
mod path;
mod servers;
pub mod split;
mod tls;

pub use access::Access;
pub(crate) use access::{Credential, Loaded, credential, joined, kubeconfig_of, read};
pub use backoff::{AuthorizerLag, RetryWait, seed};
pub use client::{Client, Content};
pub use error::KubeError;
pub use follow::{Collection, Follower, Watches, follow, follow_or_list, take as take_event};
pub(crate) use kubeconfig::ServerUrl;
pub use path::{Resource, object_path, subresource_path};
pub(crate) use servers::{Authenticated, Others, Rotation};
pub(crate) use tls::{Protocol, connect as tls_connect};
