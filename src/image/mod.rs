//! Images: their names (PURE, [`name`]).

pub mod name;
pub mod pull;
pub mod seen;
