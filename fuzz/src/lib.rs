//! What each fuzz target does with its bytes. The targets hand them over; tests/parts/corpus.rs replays the corpus.

#[cfg(feature = "tls")]
pub mod api_json;
pub mod archive;
pub mod checkpoint;
pub mod grpc;
#[cfg(feature = "tls")]
pub mod heads;
pub mod http;
pub mod kept;
pub mod log_lines;
pub mod manifests;
pub mod spdy;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tls")]
pub mod websocket;
#[cfg(feature = "tls")]
pub mod x509;
