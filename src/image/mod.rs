//! Images: their names and the logins that fit them (PURE, [`name`], [`keyring`]), and how they come to the node.

pub mod archive;
pub mod credentials;
pub mod import;
pub mod keyring;
pub mod name;
pub mod pull;
pub mod seen;
