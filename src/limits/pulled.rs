//! Bounds of the pull records ([`image::pulled`](crate::image::pulled)).

use super::KIB;

/// Secrets of one image's record, by repository (kubelet `writeRecordWhileMatchingLimit`). Full: a further one is not kept, and its
/// pods pull the image at each start, which proves the same.
pub const PULL_RECORD_SECRETS_MAX: usize = 100;
/// Repositories of one image's record. Full: as for [`PULL_RECORD_SECRETS_MAX`].
pub const PULL_RECORD_REPOSITORIES_MAX: usize = 32;
/// Bytes of one record. Longer: it is ignored, and the image's pods pull it.
pub const PULL_RECORD_BYTES_MAX: usize = 512 * KIB;
/// Records that are read when images are collected. More: those after them stay until the next time.
pub const PULL_RECORDS_READ_MAX: usize = 1024;
/// Entries of `preloadedImagesVerificationAllowlist`. More: the configuration is refused.
pub const PULL_ALLOWLIST_MAX: usize = 256;
