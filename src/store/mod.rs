//! What the agent remembers: the pods' statuses, compact and bounded, and who it is.
//!
//! ```text
//!     v1.PodStatus ──► [codec] ──► [statuses]: one record a pod, a budget of bytes, revisions
//!                      [cut]: what goes of a status when the budget is short
//!     records, back-offs, images ──► [checkpoint] ──► [file]: what survives the process and the boot
//! ```
//!
//! What a node of a cluster keeps for the time without its server is [`keep`].
//!
//! [`identity`] is a file of its own: it is needed before all else; so is what panics are put down to ([`poison`]).

pub mod checkpoint;
pub mod codec;
pub mod cut;
pub mod file;
pub mod identity;
pub mod keep;
pub mod statuses;
#[cfg(test)]
mod tests;
