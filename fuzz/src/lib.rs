//! What each fuzz target does with its bytes. The targets hand them over; tests/corpus.rs replays the corpus.

pub mod archive;
pub mod checkpoint;
pub mod grpc;
pub mod http;
pub mod kept;
pub mod log_lines;
pub mod manifests;
pub mod spdy;
