//! What a node of a cluster keeps for a start without its server: the pods that are bound to it, the ConfigMaps, Secrets,
//! tokens, services, runtime classes and claims that they name, and the marks on its Node.
//!
//! ```text
//!     ROOT_DIR/cluster/                    0700
//!         key                              the device's own, by which Secrets and tokens are sealed ([`seal`])
//!         5f3a… (32 digits)                one object each ([`folder`]), 0600
//!
//!     "smokub" │ version │ CRC-32 of the body, little endian │ body (minicbor, [`record`])
//!     owner                                which cluster and node: of another one it is not used
//!     kind, namespace, name                of which the file's name is the hash: files that were swapped are found out
//!     content                              a pod's object ([`tree`]), else what is needed of it ([`content`])
//! ```
//!
//! One file for each object, not one for all. A node's objects change one at a time, and a memory card wears by what is
//! written: a changed ConfigMap is one small file, where one file of all would be rewritten with a hundred pods. Nothing has
//! to be held in memory to write it again, and one damaged file is one object's. What it costs is a file system's block for
//! each. What is in the file already is not written: the file is read and compared first, which wears nothing.
//!
//! A token is written once and not when it is renewed, which is each hour for each pod: its file has to be there for the pod
//! to begin, and by the time a link was cut for longer than tokens hold, the newest is as useless as any. The server renews
//! it when it is back.

pub mod content;
#[cfg(feature = "tls")]
pub mod folder;
pub mod record;
#[cfg(feature = "tls")]
pub mod seal;
#[cfg(all(test, feature = "tls"))]
mod tests;
pub mod tree;
