//! Bounds of what a peer of TLS may show and cost before it is known who it is.

use super::KIB;

/// Certificates that a peer may show beside its own. Clusters have one or two, public servers up to three and perhaps the root.
/// More: the handshake is refused, before any of them is looked at. Of four there are 64 paths at most.
pub const INTERMEDIATES_MAX: usize = 4;
/// Bytes that a peer may send before its handshake is done, whatever it shows: five certificates with RSA keys of 4096 bits are
/// some 10 KiB, and an API server may name many authorities. More: the connection is closed.
pub const PEER_HANDSHAKE_BYTES_MAX: usize = 32 * KIB;
