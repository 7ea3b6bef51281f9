//! Stored state: the pods' statuses, compact and bounded, the checkpoint, and the node's identity.
//!
//! ```text
//!     v1.PodStatus ──► [codec] ──► [statuses]: one record a pod, a byte budget, revisions
//!                      [cut]: what is dropped from a status when the store is full
//!     records, back-offs, images ──► [checkpoint] ──► [file]: survives the process and a reboot
//! ```
//!
//! The offline copy of the API server's objects is [`offline`].
//!
//! [`identity`] is a separate file, read before everything else; so are the records of panics ([`poison`]).

pub mod checkpoint;
pub mod codec;
pub mod cut;
pub mod file;
pub mod identity;
pub mod offline;
pub mod statuses;
#[cfg(test)]
mod tests;
