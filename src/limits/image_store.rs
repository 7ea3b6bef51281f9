//! Bounds of the images on disk ([`image_store`](crate::image_store)).

use std::time::Duration;

use super::{IMAGE_CHUNK_BYTES, KIB, MIB};

// ---- layers ----------------------------------------------------------------------------------------------

/// Entries of a layer's archive. More: the layer is refused.
pub const LAYER_ENTRIES_MAX: u64 = 1 << 20;
/// Bytes of a layer's archive, uncompressed, and of one file's length. More: the layer is refused.
pub const LAYER_BYTES_MAX: u64 = 16 << 30;
/// Bytes of a path or a link's target in a layer (`PATH_MAX`). More: the layer is refused.
pub const LAYER_PATH_BYTES_MAX: usize = 4 * KIB - 1;
/// Bytes of one name in a path (`NAME_MAX`). More: the layer is refused.
pub const LAYER_NAME_BYTES_MAX: usize = 255;
/// Directories above one another in a layer. More: the layer is refused. A copy holds two descriptors for each.
pub const LAYER_DEPTH_MAX: usize = 128;
/// Bytes of an extended header: names, extended attributes. More: the layer is refused.
pub const LAYER_HEADER_BYTES_MAX: usize = 256 * KIB;
/// Extended attributes of an entry. More: the layer is refused.
pub const LAYER_XATTRS_MAX: usize = 64;
/// Bytes of one extended attribute (`XATTR_SIZE_MAX`). More: the layer is refused.
pub const LAYER_XATTR_BYTES_MAX: usize = 64 * KIB;
/// Pieces of a sparse file. More: the layer is refused.
pub const LAYER_SPARSE_PIECES_MAX: usize = 16 * KIB;
/// Directories that a layer's entries lie in and that the layer does not describe. More: the layer is refused.
pub const LAYER_IMPLICIT_DIRS_MAX: usize = 8 * KIB;
/// Looks for them in layers below, of all layers of an image. More: the image is refused.
pub const IMPLICIT_LOOKUPS_MAX: usize = 8 * MIB;
/// Bytes of their paths. More: the layer is refused. In memory while the layer arrives, in its record afterwards.
pub const LAYER_IMPLICIT_BYTES_MAX: usize = 3 * MIB;
/// How many times larger than its compressed form a layer may be without its holes, beyond [`LAYER_RATIO_FREE_BYTES`]. More: the layer
/// is refused. Text compresses to a twentieth. Zeros compress to a thousandth, but they take no space: [`LAYER_BYTES_MAX`] counts them.
pub const LAYER_RATIO_MAX: u64 = 200;
/// Bytes of a layer's archive for which [`LAYER_RATIO_MAX`] does not count.
pub const LAYER_RATIO_FREE_BYTES: u64 = 64 << 20;
/// Bytes that must stay free where layers are unpacked. Less: the unpacking fails, and is tried again with the next pull.
pub const LAYER_DISK_FREE_MIN: u64 = 16 << 20;
/// Bytes of a gzip member's header. More: the layer is refused.
pub const GZIP_HEADER_BYTES_MAX: usize = 64 * KIB;
/// Window of a gzip layer in memory: a power of two, of which the last 32 KiB are kept in a restart point.
pub const INFLATE_WINDOW_BYTES: usize = 64 * KIB;
/// Bytes in memory of the windows of all zstd layers together: those that arrive, that are imported and that are parked. It is one
/// window of zstd's own up to level 19, and of Go's encoder by default, with which the agent keeps to its 16 MiB. Full: a layer waits
/// in a queue, and parked ones are let go, the oldest first. A larger window takes all of it.
pub const ZSTD_WINDOWS_BYTES_MAX: u64 = 8 << 20;
/// What they are counted in: a window takes as many of these pieces as the next power of two has.
pub const ZSTD_WINDOW_PIECE_BYTES: u64 = 1 << 20;
const _: () = assert!(ZSTD_WINDOWS_BYTES_MAX.is_multiple_of(ZSTD_WINDOW_PIECE_BYTES));
/// Window of one layer. Go's encoder, with which buildx compresses, has windows of 16 MiB and of 32 MiB at its two highest levels.
/// Larger, which zstd writes for `--ultra` and `--long` only: the layer is refused.
pub const ZSTD_WINDOW_BYTES_MAX: u64 = 32 << 20;
/// Window of an image archive, which takes all of [`ZSTD_WINDOWS_BYTES_MAX`]: k3s compresses its own with `--long=25`. Larger: the
/// archive is refused.
pub const ARCHIVE_ZSTD_WINDOW_BYTES_MAX: u64 = ZSTD_WINDOW_BYTES_MAX;
/// Bytes of a compressed image archive when it is unpacked, on the disk of the state directory. More: it is refused.
pub const ARCHIVE_INFLATED_BYTES_MAX: u64 = 16 << 30;
/// Compressed bytes held until a zstd block is complete: the largest block, its header and the frame's.
pub const ZSTD_BLOCK_BYTES_MAX: usize = 128 * KIB + 64;
/// Bytes that a decoder returns at a time.
pub const LAYER_STEP_BYTES: usize = 32 * KIB;
/// Compressed bytes that are collected before a thread unpacks them.
pub const LAYER_FEED_BYTES: usize = 2 * IMAGE_CHUNK_BYTES;
/// Unpacked bytes between two restart points. A pull goes on at the last one after a restart of the agent; each costs 33 KiB and a
/// sync of the file system.
pub const LAYER_RESTART_BYTES: u64 = 16 << 20;
/// Names of what was made after a restart point that are collected before they are removed, when reading goes on there.
pub const LAYER_PRUNE_BATCH: usize = 1024;
/// The longest tick of a kernel's clock (100 Hz), with which file systems date what is made.
pub const FILE_CLOCK_TICK: Duration = Duration::from_millis(12);
/// The same after an entry replaced another one, for which the last point was dropped.
pub const LAYER_RESTART_BYTES_AFTER_LOSS: u64 = 1 << 20;
/// Bytes of a restart point. Longer: it is ignored, and the layer is read from its beginning.
pub const LAYER_RESTART_FILE_BYTES_MAX: usize = 4 * MIB;
const _: () = assert!(INFLATE_WINDOW_BYTES.is_power_of_two() && INFLATE_WINDOW_BYTES >= 32 * KIB);
const _: () = assert!(LAYER_HEADER_BYTES_MAX + OF_IMPLICIT_DIRS + 64 * KIB < LAYER_RESTART_FILE_BYTES_MAX);
/// Bytes of what is kept of a layer besides its files.
pub const LAYER_RECORD_BYTES_MAX: usize = 4 * MIB;
const _: () = assert!(OF_IMPLICIT_DIRS + KIB < LAYER_RECORD_BYTES_MAX);
/// Each with the head of its text.
const OF_IMPLICIT_DIRS: usize = LAYER_IMPLICIT_BYTES_MAX + LAYER_IMPLICIT_DIRS_MAX * 9;

// ---- images ----------------------------------------------------------------------------------------------

/// Images in the store. Full: a further one is refused until one is removed.
pub const STORED_IMAGES_MAX: usize = 1024;
/// Names of one image, with tags and with digests. Full: the oldest one with a digest is dropped, then the oldest tag.
pub const STORED_IMAGE_NAMES_MAX: usize = 64;
/// Labels of one image, and bytes of a label's key and value. More: refused.
pub const STORED_IMAGE_LABELS_MAX: usize = 32;
/// Bytes of a label's key, and of its value. Longer: refused.
pub const STORED_LABEL_BYTES_MAX: usize = KIB;
/// Bytes of an image's record. Longer: it counts as damaged, and the image as absent.
pub const STORED_IMAGE_BYTES_MAX: usize = 256 * KIB;
/// Names read in a directory of the store. More: the rest is not read.
pub const STORE_ENTRIES_MAX: usize = 64 * KIB;
/// How long layers of an interrupted pull, whole ones and parts, are kept after their last change, for a pull that goes on. Longer:
/// removed. A change in the future is recent: a clock without a battery is behind after a power cut.
pub const INGEST_KEPT: Duration = Duration::from_hours(24);
/// The same while little of the disk is free: longer than an image's longest back-off.
pub const INGEST_KEPT_SHORT: Duration = Duration::from_mins(10);
/// Percentage of the disk that is free then: less than what image garbage collection leaves by default, which removes images.
pub const INGEST_DISK_FREE_PERCENT: u64 = 15;
/// Parts of layers that nobody writes. More: the oldest is removed.
pub const INGESTS_MAX: usize = 64;
/// Bytes of files of these parts. More: the oldest is removed. It is one of the largest layers.
pub const INGESTS_BYTES_MAX: u64 = LAYER_BYTES_MAX;
/// How often the store looks for what is to be removed, at most: with the calls for its usage, every few minutes.
pub const INGEST_SWEEP_PERIOD: Duration = Duration::from_mins(1);
/// Layers that arrive at once, of all pulls: each has a decoder in memory, with a window of 32 KiB (gzip) or a part of
/// [`ZSTD_WINDOWS_BYTES_MAX`] (zstd). Full: a further one waits.
pub const LAYERS_ARRIVING_MAX: usize = 6;
/// Parts of layers whose pull ended that stay in memory, so that the next pull goes on at the very byte. Full: the oldest one is
/// let go, and goes on at its restart point.
pub const LAYERS_PARKED_MAX: usize = 3;
/// How long: more than an image's longest back-off.
pub const LAYER_PARKED_TIME: Duration = Duration::from_mins(6);
/// Blocking jobs that unpack or remove layers at once, of `BLOCKING_JOBS_MAX`. Full: further ones wait, and leave the other turns to
/// short work.
pub const IMAGE_JOBS_MAX: usize = 2;
const _: () = assert!(IMAGE_JOBS_MAX < super::BLOCKING_JOBS_MAX);

// ---- root file systems -----------------------------------------------------------------------------------

/// Root file systems of containers, and mounted images. Full: a further one is refused.
pub const ROOTFS_MAX: usize = 2048;
/// Bytes of a root file system's record. Longer: it counts as damaged.
pub const ROOTFS_RECORD_BYTES_MAX: usize = 64 * KIB;
/// Bytes of overlay options (a page, with its end). Longer: the layers are named by descriptors.
pub const OVERLAY_OPTIONS_BYTES_MAX: usize = 4095;
/// Files with several names whose copies are linked again, for each layer. More: the further ones are copied for each name.
pub const COPY_LINKS_MAX: usize = 16 * KIB;
/// Entries of a writable layer that are counted. More: the usage is that of the entries counted.
pub const WRITABLE_LAYER_ENTRIES_MAX: u64 = 1 << 20;
/// How long the usage of a writable layer counts in the sum of all. Longer: it is counted anew for the next sum.
pub const WRITABLE_LAYER_USAGE_AGE_MAX: Duration = Duration::from_mins(1);
/// Time for counting anew for one sum. Over: the others' last usage counts, and the next sum goes on with them.
pub const WRITABLE_LAYERS_USAGE_TIME: Duration = Duration::from_secs(2);
