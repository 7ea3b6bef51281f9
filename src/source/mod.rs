//! Sources of desired pods: manifests and the API server.
//!
//! ```text
//!     file.rs (when) + scan.rs (what), http.rs ──bytes──► decode ──► identity ──► defaults ──► validate ──► SourceUpdate
//!                                                decode ──► object (ConfigMaps and Secrets) ──────► SourceUpdate
//!     check.rs (files named by hand) ──┘            (manifest.rs puts these together; all of them PURE)
//!     api.rs (an API server's pods) ──JSON──► manifest::bound ──► SourceUpdate; what they name: api_objects.rs
//! ```
//!
//! A source always sends its full set of pods and its full list of problems; `desired` turns these into changes.

#[cfg(feature = "tls")]
pub mod api;
#[cfg(feature = "tls")]
pub mod api_claims;
#[cfg(feature = "tls")]
pub mod api_local_pods;
#[cfg(feature = "tls")]
pub mod api_node;
#[cfg(feature = "tls")]
pub mod api_objects;
#[cfg(feature = "tls")]
pub mod api_offline;
#[cfg(feature = "tls")]
pub mod api_status_versions;
pub mod check;
#[cfg(feature = "tls")]
pub mod claim;
pub mod defaults;
pub mod file;
pub mod http;
pub mod identity;
pub mod manifest;
pub mod object;
pub mod resources;
pub mod scan;
pub mod validate;

use std::cell::Cell;
use std::rc::Rc;

use crate::limits;

pub use check::{CheckReport, check};
pub use file::FileSource;
pub use http::HttpSource;
pub use identity::NodeName;

pub(crate) use crate::desired::update::shown_file;
pub use crate::desired::update::{
    API, EndingPod, MirrorPod, Origin, Problem, RefusedPod, ServerPods, SourceUpdate, SourceUsage,
    SourcedObject, SourcedPod,
};

/// The memory budget of manifests, which files and a URL share (`limits::PODS_BYTES_MAX`): what one uses the other cannot. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub struct ManifestRoom {
    of_files: Rc<Cell<usize>>,
    of_url: Rc<Cell<usize>>,
}

impl ManifestRoom {
    /// Bytes left for the URL's manifests.
    fn beside_files(&self) -> usize {
        limits::PODS_BYTES_MAX.saturating_sub(self.of_files.get())
    }
}
