//! Image archives: reading ([`tar`]), and planning their import into the runtime ([`plan`]).

pub mod plan;
pub mod tar;

pub use plan::{Blob, Data, Descriptor, NamedImage, Plan, Platform, plan};
pub use tar::{Extent, Index};
