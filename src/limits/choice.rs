//! Bounds of the choice of a runtime ([`cri::choice`](crate::cri::choice)), and of `smolet image`.

/// Bytes of the file with the kind of the node's runtime (`ROOT_DIR/runtime-kind`); a larger one is refused.
pub const RUNTIME_KIND_BYTES_MAX: usize = 64;

/// OCI runtimes of the embedded runtime, one for each handler; more are refused at the start.
pub const OCI_RUNTIMES_MAX: usize = 16;

/// Bytes of an archive that `smolet image import -` reads. More: it is refused.
pub const IMPORT_BYTES_MAX: u64 = 64 << 30;

/// Images that `smolet image ls` shows; it counts the others.
pub const IMAGES_SHOWN_MAX: usize = 10_000;
