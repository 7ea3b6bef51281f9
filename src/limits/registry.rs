//! Bounds of pulls ([`registry`](crate::registry)).

use std::time::Duration;

use super::{KIB, MIB};

// ---- configuration ---------------------------------------------------------------------------------------

/// Bytes of one `hosts.toml`, of `registries.yaml`, and of one file with certificates or a key that they name. Larger: pulls
/// from the host fail with a message.
pub const REGISTRY_CONFIG_BYTES_MAX: usize = 256 * KIB;
/// Bytes of the system's certificate authorities. Larger: pulls by HTTPS fail with a message.
pub const REGISTRY_ROOTS_BYTES_MAX: usize = 2 * MIB;
/// Files of a directory with certificates that are read. More: the rest is not read.
pub const REGISTRY_ROOTS_FILES_MAX: usize = 512;
/// Hosts that one image may be pulled from: mirrors and the registry itself. More: the file is refused with a message.
pub const REGISTRY_ENDPOINTS_MAX: usize = 16;
/// Mirrors, and configurations of hosts, in `registries.yaml`. More: the file is refused with a message.
pub const REGISTRY_MIRRORS_MAX: usize = 128;
/// Headers of one host in `hosts.toml`. More: the file is refused with a message.
pub const REGISTRY_HEADERS_MAX: usize = 32;
/// Rewrites of one mirror. More: the file is refused with a message.
pub const REGISTRY_REWRITES_MAX: usize = 32;
/// Bytes of one rewrite's pattern. Longer: the file is refused with a message.
pub const REGISTRY_PATTERN_BYTES_MAX: usize = 512;

// ---- requests --------------------------------------------------------------------------------------------

/// Redirects of one request. More: it fails with a message.
pub const REGISTRY_REDIRECTS_MAX: usize = 5;
/// Bytes of a response's head, and of the buffer of a connection. Longer: the request fails.
pub const REGISTRY_BUFFER_BYTES: usize = 64 * KIB;
/// Headers of a response. More: the request fails.
pub const REGISTRY_ANSWER_HEADERS_MAX: usize = 100;
/// Bytes of a proxy's response to CONNECT. Longer: the request fails.
pub const REGISTRY_PROXY_HEAD_BYTES_MAX: usize = 8 * KIB;
/// Open connections without a request, of one pull. Full: a further one is closed.
pub const REGISTRY_IDLE_CONNECTIONS_MAX: usize = 4;
/// How long an address lookup, the connection and the handshakes may take. Longer: the host counts as unreachable.
pub const REGISTRY_CONNECT_TIME: Duration = Duration::from_secs(30);
/// How long a response's head, or all of a small response, may take. Longer: the host counts as unreachable.
pub const REGISTRY_ANSWER_TIME: Duration = Duration::from_secs(30);
/// How long a blob may not progress. Longer: the connection counts as cut; one whose bytes the image store does not take for that long
/// is closed.
pub const REGISTRY_STALL_TIME: Duration = Duration::from_secs(30);
/// Attempts in a row of a blob at one host (429, 5xx, cut, stalled, refused) without one byte of progress. Reached at all hosts: the
/// pull fails, and is tried again as the image's back-off says; what was received of layers is kept.
pub const REGISTRY_TRIES_MAX: u32 = 8;
/// Attempts of a small request (a manifest, a configuration) that fails for now at all hosts. Reached: the pull fails.
pub const REGISTRY_SMALL_TRIES_MAX: u32 = 4;
/// Bytes that an attempt of a blob must bring, for the waits to begin anew.
pub const REGISTRY_PROGRESS_BYTES_MIN: u64 = 16 * KIB as u64;
/// First wait before such an attempt; doubles up to the last one.
pub const REGISTRY_RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest wait before such an attempt.
pub const REGISTRY_RETRY_MAX: Duration = Duration::from_secs(30);
/// Longest `Retry-After` that is waited for. Longer: the request fails with a message.
pub const REGISTRY_RETRY_AFTER_MAX: Duration = Duration::from_mins(1);
/// Bytes of a response with an error that are read.
pub const REGISTRY_ERROR_BYTES_MAX: usize = 8 * KIB;
/// Bytes of its message that are shown.
pub const REGISTRY_MESSAGE_BYTES_MAX: usize = 512;

// ---- authorization ---------------------------------------------------------------------------------------

/// Bytes of a token service's response. Larger: the pull fails.
pub const REGISTRY_TOKEN_ANSWER_BYTES_MAX: usize = 64 * KIB;
/// Bytes of one token. Longer: the pull fails.
pub const REGISTRY_TOKEN_BYTES_MAX: usize = 32 * KIB;
/// Bytes of one `WWW-Authenticate` header, and parameters of it. More: the header is ignored.
pub const REGISTRY_CHALLENGE_BYTES_MAX: usize = 4 * KIB;
/// Parameters of one challenge. More: ignored.
pub const REGISTRY_CHALLENGE_PARAMETERS_MAX: usize = 16;

// ---- images ----------------------------------------------------------------------------------------------

/// Bytes of an index. Larger: the image is refused. The platform's manifest has at most `IMAGE_JSON_BYTES_MAX`.
pub const REGISTRY_MANIFEST_BYTES_MAX: usize = 4 * MIB;
/// Bytes of an image's configuration: what the image store takes. Larger: the image is refused.
pub const REGISTRY_IMAGE_CONFIG_BYTES_MAX: usize = super::IMAGE_JSON_BYTES_MAX;
const _: () = assert!(super::IMAGE_JSON_BYTES_MAX <= REGISTRY_MANIFEST_BYTES_MAX);
/// Manifests in an index. More: the image is refused.
pub const REGISTRY_INDEX_ENTRIES_MAX: usize = 1024;
/// Indexes in one another. More: the image is refused.
pub const REGISTRY_INDEX_DEPTH_MAX: usize = 3;
/// Layers of an image that are fetched at once. Full: the next one waits.
pub const REGISTRY_LAYERS_AT_ONCE: usize = 3;
/// How often a blob with the wrong content is fetched once more.
pub const REGISTRY_RESTARTS_MAX: u32 = 1;
const _: () = assert!(REGISTRY_MESSAGE_BYTES_MAX < REGISTRY_ERROR_BYTES_MAX);
const _: () = assert!(REGISTRY_TOKEN_BYTES_MAX < REGISTRY_TOKEN_ANSWER_BYTES_MAX);
const _: () = assert!(REGISTRY_TOKEN_BYTES_MAX < REGISTRY_BUFFER_BYTES);
