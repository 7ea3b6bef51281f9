//! Container logs: their lines, their files, reading them and rotating them.
//!
//! ```text
//!     runtime ─► N.log ──(rename, ReopenContainerLog)──► N.log.STAMP ──(gzip)──► N.log.STAMP.gz ──► removed
//! ```
//!
//! `line` and `choose` are PURE; `files` names, renames and compresses files; `read` and `follow` show them, in the process
//! of `smolet logs`; `rotate` is the agent's task that limits their size; `memory` has them in memory instead of on the disk.

pub mod choose;
pub mod files;
pub mod follow;
mod gzip;
pub mod line;
pub mod memory;
pub mod read;
pub mod rotate;

#[cfg(test)]
mod tests;
