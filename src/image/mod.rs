//! Images: their names and the logins that fit them (PURE, [`name`], [`keyring`]), how they come to the node, and which go
//! (PURE, [`gc`], [`seen`]). Which pods may use what is there already is in [`pulled`].

pub mod archive;
pub mod credentials;
pub mod gc;
pub mod import;
pub mod keyring;
pub mod name;
pub mod pull;
pub mod pulled;
pub mod seen;
