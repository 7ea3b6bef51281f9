//! Images: names and registry credentials (PURE, [`name`], [`keyring`]), pulls and imports, and garbage collection (PURE,
//! [`gc`], [`seen`]). Which pods may use an image that is present is in [`pulled`].

pub mod archive;
pub mod archive_store;
pub mod credentials;
pub mod gc;
pub mod import;
pub mod keyring;
pub mod lists;
pub mod name;
pub mod pull;
pub mod pulled;
pub mod seen;
