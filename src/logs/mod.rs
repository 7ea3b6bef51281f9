//! Container logs: their lines, their files, and reading them.
//!
//! ```text
//!     runtime ─► N.log ──(rename, ReopenContainerLog)──► N.log.STAMP ──(gzip)──► N.log.STAMP.gz ──► removed
//! ```
//!
//! `line` and `choose` are PURE; `files` names, renames and compresses files; `read` and `follow` show them, in the process of
//! `smolet logs`.

pub mod choose;
pub mod files;
pub mod follow;
pub mod line;
pub mod read;

#[cfg(test)]
mod tests;
