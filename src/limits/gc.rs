//! Bounds of garbage collection.

use std::time::Duration;

use super::{KIB, MIB};

/// A dead container younger than this stays (kubelet `minimumGCAge`: none).
pub const GC_MIN_AGE: Duration = Duration::ZERO;

/// Time between two looks at the images and at their disk (kubelet `ImageGCPeriod`).
pub const IMAGE_GC_PERIOD: Duration = Duration::from_mins(5);
/// Least time between two looks when pulls fail for want of room.
pub const IMAGE_GC_PERIOD_MIN: Duration = Duration::from_secs(30);
/// Percent of the disk in use from which on unused images go, unless configured (kubelet `imageGCHighThresholdPercent`).
pub const IMAGE_GC_HIGH_PERCENT: u8 = 85;
/// Percent in use down to which they go, unless configured (kubelet `imageGCLowThresholdPercent`).
pub const IMAGE_GC_LOW_PERCENT: u8 = 80;
/// Bytes that are to be free whatever the percentages say, unless configured: 15 % of a small card hold no image.
pub const IMAGE_GC_AVAILABLE_MIN: u64 = 512 * 1024 * 1024;
/// But at most this part of a disk: one that is smaller than a few images would never have enough.
pub const IMAGE_GC_AVAILABLE_SHARE: u64 = 4;
/// An image that was first seen later than this stays, unless configured (kubelet `imageMinimumGCAge`).
pub const IMAGE_GC_MIN_AGE: Duration = Duration::from_mins(2);
/// Images looked at in one collection. More: the rest is not looked at, until others are gone.
pub const IMAGES_LISTED_MAX: usize = 1024;
/// Bytes of their ids and names. More: likewise.
pub const IMAGES_LISTED_BYTES_MAX: usize = MIB;
/// Bytes of the names of images that everybody's containers have. More: nothing is removed, with a message.
pub const IMAGES_USED_BYTES_MAX: usize = MIB;
const _: () = assert!(IMAGE_GC_LOW_PERCENT < IMAGE_GC_HIGH_PERCENT && IMAGE_GC_HIGH_PERCENT <= 100);
const _: () = assert!(IMAGES_LISTED_BYTES_MAX / IMAGES_LISTED_MAX >= KIB);
const _: () = assert!(super::IMAGES_SEEN_MAX <= IMAGES_LISTED_MAX);
