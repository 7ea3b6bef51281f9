//! The CRI v1 messages, and those of containerd's own services, generated from `proto/` by `build.rs`.
//!
//! `render` builds the configuration messages directly: they are the CRI's own vocabulary, and a second copy of
//! them in model types would be transcription. What the runtime *reports* becomes model types in `cri::convert`.

#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

/// Package `runtime.v1`.
pub mod runtime {
    /// Version 1.
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));

        /// Shows nothing of the credentials.
        impl std::fmt::Debug for AuthConfig {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("AuthConfig")
            }
        }
    }
}

/// What is used of containerd's own services.
pub mod containerd {
    /// Package `containerd.events`.
    pub mod events {
        include!(concat!(env!("OUT_DIR"), "/containerd.events.rs"));
    }

    /// Package `containerd.images`: content, leases and image records.
    pub mod images {
        include!(concat!(env!("OUT_DIR"), "/containerd.images.rs"));
    }
}
