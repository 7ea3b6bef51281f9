//! Bounds of what an unauthenticated TLS peer may send and cost.

use super::KIB;

/// Intermediate certificates of a peer. Clusters have one or two, public servers up to three and perhaps the root. More: the
/// handshake is refused before any of them is parsed. Four have 64 paths at most.
pub const INTERMEDIATES_MAX: usize = 4;
/// Bytes that a peer may send before its handshake is done: five certificates with RSA keys of 4096 bits are some 10 KiB, and an
/// API server may name many authorities. More: the connection is closed.
pub const PEER_HANDSHAKE_BYTES_MAX: usize = 32 * KIB;
