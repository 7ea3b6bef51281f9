//! The offline copy: objects of the API server that a node needs to start its pods without the server. These are the pods bound
//! to it, the ConfigMaps, Secrets, tokens, services, runtime classes and claims that they reference, and its Node's labels,
//! taints and pod CIDRs.
//!
//! ```text
//!     ROOT_DIR/cluster/                    0700
//!         key                              the device's key, which encrypts Secrets and tokens ([`seal`])
//!         5f3a… (32 digits)                one object each ([`folder`]), 0600
//!
//!     "smokub" │ version │ CRC-32 of the body, little endian │ body (minicbor, [`record`])
//!     owner                                the cluster and node: a file of another one is ignored
//!     kind, namespace, name                their hash is the file's name: swapped files are detected
//!     content                              a pod's whole object ([`tree`]), or the needed fields ([`content`])
//! ```
//!
//! One file for each object: a node's objects change one at a time, and writes wear a memory card. A changed ConfigMap is one
//! small file, where a common file would be rewritten with a hundred pods. Nothing is held in memory for a rewrite, and a
//! damaged file affects one object. The cost is a block of the file system for each. A file is read and compared first, and not
//! written when its content is the same.
//!
//! A token is written once and not when it is renewed, hourly for each pod: the pod needs its file to start, and after an
//! outage longer than a token's lifetime the newest one would be expired too. The server renews it when it is reachable again.

pub mod content;
#[cfg(feature = "tls")]
pub mod folder;
pub mod record;
#[cfg(feature = "tls")]
pub mod seal;
#[cfg(all(test, feature = "tls"))]
mod tests;
pub mod tree;
