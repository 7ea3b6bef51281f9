//! The CRI v1 messages, and those of containerd's own services, generated from `proto/` by `make proto`.
//!
//! What is generated is kept, in `src/proto/`: the compiler of `proto/` costs more than most of the dependencies together, in
//! each build and for each target anew. A test compiles it again and compares (`tests/repository/proto_table.rs`).
//!
//! `render` builds the configuration messages directly: they are the CRI's own vocabulary, and a second copy of
//! them in model types would be transcription. What the runtime *reports* becomes model types in `cri::convert`.

#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

/// Package `runtime.v1`.
pub mod runtime {
    /// Version 1.
    pub mod v1 {
        include!("proto/runtime.v1.rs");

        /// Shows nothing of the credentials.
        impl std::fmt::Debug for AuthConfig {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("AuthConfig")
            }
        }
    }
}

/// The messages of containerd's own services that are used here.
pub mod containerd {
    /// Package `containerd.events`.
    pub mod events {
        include!("proto/containerd.events.rs");
    }

    /// Package `containerd.images`: content, leases and image records.
    pub mod images {
        include!("proto/containerd.images.rs");
    }
}
