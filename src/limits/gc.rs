//! Bounds of garbage collection.

use std::time::Duration;

use super::{KIB, MIB};

/// A dead container younger than this is not removed (kubelet `minimumGCAge`: none).
pub const GC_MIN_AGE: Duration = Duration::ZERO;

/// Time between two image collections (kubelet `ImageGCPeriod`).
pub const IMAGE_GC_PERIOD: Duration = Duration::from_mins(5);
/// Least time between two image collections when pulls fail because the disk is full.
pub const IMAGE_GC_PERIOD_MIN: Duration = Duration::from_secs(30);
/// Layers, and what is on them, that an event names when they could not be removed after a power cut. More: counted alone.
pub const LAYERS_NAMED_MAX: usize = 3;
/// Disk usage in percent at which unused images are removed, unless configured (kubelet `imageGCHighThresholdPercent`).
pub const IMAGE_GC_HIGH_PERCENT: u8 = 85;
/// Disk usage in percent down to which images are removed, unless configured (kubelet `imageGCLowThresholdPercent`).
pub const IMAGE_GC_LOW_PERCENT: u8 = 80;
/// Bytes to keep available whatever the percentages say, unless configured: 15 % of a small card hold no image.
pub const IMAGE_GC_AVAILABLE_MIN: u64 = 512 * 1024 * 1024;
/// `IMAGE_GC_AVAILABLE_MIN` is at most this fraction of a disk: a disk smaller than a few images would never have enough.
pub const IMAGE_GC_AVAILABLE_SHARE: u64 = 4;
/// An image first detected more recently than this is not removed, unless configured (kubelet `imageMinimumGCAge`).
pub const IMAGE_GC_MIN_AGE: Duration = Duration::from_mins(2);
/// Images listed in one collection. More: the rest is not considered, until others are gone.
pub const IMAGES_LISTED_MAX: usize = 1024;
/// Bytes of their ids and names. More: likewise.
pub const IMAGES_LISTED_BYTES_MAX: usize = MIB;
/// Bytes of the names of images that containers use, those of other clients of the runtime included. More: nothing is removed,
/// with a message.
pub const IMAGES_USED_BYTES_MAX: usize = MIB;
const _: () = assert!(IMAGE_GC_LOW_PERCENT < IMAGE_GC_HIGH_PERCENT && IMAGE_GC_HIGH_PERCENT <= 100);
const _: () = assert!(IMAGES_LISTED_BYTES_MAX / IMAGES_LISTED_MAX >= KIB);
const _: () = assert!(super::IMAGES_SEEN_MAX <= IMAGES_LISTED_MAX);
