//! Images as files: what is in an archive ([`tar`]), and what of it goes to the runtime ([`plan`]).

pub mod plan;
pub mod tar;

pub use plan::{Blob, Data, Descriptor, NamedImage, Plan, Platform, plan};
pub use tar::{Extent, Index};
